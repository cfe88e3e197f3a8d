//! `make bench`, or `cargo run --profile bench -p freehold-buddy-bench [-- GIB [ROUNDS]]`: the page
//! allocator beside other allocators.
//!
//! Each round runs every allocator once, made anew, in an order that moves on by one from round to
//! round. A row is judged by the ratio of our figure to that of the best other allocator: the
//! median of the rounds' ratios, with its 95% interval. All allocators run in one process, so in
//! one scheduling class, and all have their tables in pages of 2 MiB where the system has such
//! pages.
//! Single-threaded figures are thread CPU time. Two threads are timed by the wall clock, and only
//! while both are at work ([`threads`]).
//!
//! `-- GIB MEASURE [ALLOCATOR]` runs one of `pair`, `held`, `bulk`, `pair9`, `bulk9`, `mixed` with
//! one allocator, by the beginning of its name, by default ours: for a profiler.
//! `valgrind --tool=callgrind` counts instructions at any load of the machine. `-- GIB set-up`
//! times the set-up of ours.
//!
//! May use `unsafe`: the module `raw` gives memory to peers that keep their metadata inside it,
//! frees by address as those peers require, puts tables into large pages, and spares a peer that
//! is written in C the bounds checks.

mod linux;
mod machine;
mod peers;
#[allow(unsafe_code, reason = "peers keep their metadata in raw memory")]
mod raw;
mod rows;
mod threads;

use std::os::unix::process::CommandExt;
use std::process::Command;

use freehold_buddy::Shuffle;
use rustix::time::ClockId;

use linux::LinuxShaped;
use peers::{Bitmap, BuddySystem, Freehold, LockedStack, Peer, RecordedStack, Stack};
use raw::{BuddySlab, FrameAlloc, Pages};
use rows::{FigureKind, Orders, ROWS, RoundFigures, bulk, figures, held, median, mixed, now, pair};

/// Rounds of a comparison.
const ROUNDS: usize = 10;
/// Tells the C library to put what it allocates into large pages.
const LARGE_PAGES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

/// The part of a contender in the comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Ours,
    /// Ours with other options, for information.
    Variant,
    /// A lower bound that is no allocator: for information.
    Floor,
    Peer,
}

/// An allocator in the comparison.
struct Contender {
    name: &'static str,
    role: Role,
    /// Runs one round.
    round: fn(usize, usize) -> RoundFigures,
    /// Runs one measure.
    measure: fn(usize, &str) -> Option<String>,
}

/// Makes an entry of the table.
macro_rules! contender {
    ($name:literal, $role:ident, $make:path) => {
        Contender {
            name: $name,
            role: Role::$role,
            round: |frames, round| figures(&$make(frames as u64), frames, round),
            measure: |frames, only| one(&$make(frames as u64), frames, only),
        }
    };
}

fn shuffled(frames: u64) -> Freehold {
    Freehold::new(frames, Shuffle::On, Pages::Large)
}

fn unshuffled(frames: u64) -> Freehold {
    Freehold::new(frames, Shuffle::Off, Pages::Large)
}

const CONTENDERS: [Contender; 11] = [
    contender!("freehold", Ours, shuffled),
    contender!("unshuffled freehold", Variant, unshuffled),
    contender!("thread-local stack", Floor, Stack::new),
    contender!("with records", Floor, RecordedStack::new),
    contender!("locked stack", Floor, LockedStack::new),
    contender!("linux-shaped", Peer, LinuxShaped::new),
    contender!("depot of frame-alloc", Peer, FrameAlloc::depot),
    contender!("summary of frame-alloc", Peer, FrameAlloc::summary),
    contender!("buddy-slab-allocator", Peer, BuddySlab::new),
    contender!("buddy_system_allocator", Peer, BuddySystem::new),
    contender!("bitmap-allocator", Peer, Bitmap::new),
];

/// Runs one measure with a peer; `None` if there is no such measure.
fn one(peer: &impl Peer, frames: usize, only: &str) -> Option<String> {
    Some(match only {
        "pair" => format!("{:.2}", pair::<0>(peer, 200_000)),
        "held" => format!("{:.2?}", held(peer, frames * 9 / 10)),
        "bulk" => format!("{:.2?}", bulk::<0>(peer, frames / 2, 20)),
        "pair9" => format!("{:.2}", pair::<9>(peer, 200_000)),
        "bulk9" => format!("{:.2?}", bulk::<9>(peer, frames >> 10, 200)),
        "mixed" => [Orders::Uniform, Orders::Geometric]
            .map(|orders| format!("{:.2?}", mixed(peer, frames, orders, 11)))
            .join(" "),
        _ => return None,
    })
}

/// Set the allocator up over so many GiB of metadata-only memory and take the first frame: ns for
/// both.
fn set_up(gib: u64) -> f64 {
    let rounds = (0..9).map(|_| {
        let start = now(ClockId::ThreadCPUTime);
        let peer = Freehold::new(gib << 18, Shuffle::On, Pages::Small);
        std::hint::black_box(peer.get(0));
        now(ClockId::ThreadCPUTime) - start
    });
    median(rounds.collect())
}

/// The median of a sample, and the interval that holds the median of what it was drawn from with a
/// probability of 95% or more, whatever its distribution: between two of the sample's values that
/// the binomial distribution tells (the sign test's interval).
fn median_with_interval(mut sample: Vec<f64>) -> [f64; 3] {
    sample.sort_by(f64::total_cmp);
    let n = sample.len();
    // The probability that at most `k` of n values are below the median.
    let mut term = 0.5f64.powi(n as i32);
    let (mut below, mut k) = (term, 0);
    while k < n / 2 {
        term *= (n - k) as f64 / (k + 1) as f64;
        if below + term > 0.025 {
            break;
        }
        below += term;
        k += 1;
    }
    let middle = f64::midpoint(sample[(n - 1) / 2], sample[n / 2]);
    // With so few values that even the extremes do not hold it, nothing is known.
    if below > 0.025 { [middle, 0.0, f64::INFINITY] } else { [middle, sample[k], sample[n - 1 - k]] }
}

/// Runs all rounds: for each contender, its figures by round.
fn compare(frames: usize, rounds: usize) -> Vec<Vec<RoundFigures>> {
    let mut all: Vec<Vec<RoundFigures>> = CONTENDERS.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..CONTENDERS.len() {
            let which = (round + turn) % CONTENDERS.len();
            all[which].push((CONTENDERS[which].round)(frames, round));
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    all
}

/// Prints the medians, and for each row how ours compares with the best peer.
fn report(all: &[Vec<RoundFigures>]) {
    let column = |which: usize, row: usize| -> Vec<f64> {
        all[which]
            .iter()
            .map(|figures: &RoundFigures| figures[row])
            .filter(|figure| !figure.is_nan())
            .collect()
    };
    let typical = |which: usize, row: usize| match column(which, row) {
        figures if figures.is_empty() => f64::NAN,
        figures => median_with_interval(figures)[0],
    };
    for (number, contender) in CONTENDERS.iter().enumerate() {
        println!("{:>4}: {}", number + 1, contender.name);
    }
    println!("   –: llfree, which is not on crates.io, is not measured");
    let numbers: String = (1..=CONTENDERS.len()).map(|number| format!("{number:>8}")).collect();
    println!("{:31}{numbers}   ours / best peer", "");
    for (row, (name, unit)) in ROWS.iter().enumerate() {
        let cells: String = (0..CONTENDERS.len())
            .map(|which| match typical(which, row) {
                figure if figure.is_nan() => format!("{:>8}", "–"),
                figure => format!("{figure:8.1}"),
            })
            .collect();
        let peers = (0..CONTENDERS.len())
            .filter(|which| CONTENDERS[*which].role == Role::Peer && !typical(*which, row).is_nan());
        let score = |which: &usize| match unit {
            FigureKind::Time => typical(*which, row),
            FigureKind::Whole => -typical(*which, row),
        };
        let Some(best) = peers.min_by(|a, b| score(a).total_cmp(&score(b))) else { continue };
        let ours = CONTENDERS.iter().position(|contender| contender.role == Role::Ours).unwrap_or(0);
        let ratios: Vec<f64> = all[ours]
            .iter()
            .zip(&all[best])
            .map(|(our, their)| match unit {
                FigureKind::Time => our[row] / their[row],
                FigureKind::Whole => their[row] / our[row],
            })
            .filter(|ratio| !ratio.is_nan())
            .collect();
        if ratios.is_empty() {
            println!("{name:31}{cells}   –");
            continue;
        }
        let [ratio, low, high] = median_with_interval(ratios);
        let verdict = match () {
            () if low > 1.0 => "lost to",
            () if high < 1.0 => "ahead of",
            () => "even with",
        };
        println!("{name:31}{cells}   {ratio:.2} ({low:.2} to {high:.2}) {verdict} {}", CONTENDERS[best].name);
    }
    println!("A ratio above 1 means that ours costs more, or leaves less whole.");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let gib: usize = arguments.first().and_then(|argument| argument.parse().ok()).unwrap_or(1);
    let frames = gib << 18;
    let second = arguments.get(1).map(String::as_str);
    let rounds = second.map_or(Some(ROUNDS), |argument| argument.parse().ok().filter(|rounds| *rounds > 0));
    match (rounds, second) {
        (None, Some("set-up")) => {
            for gib in [1, 8, 64] {
                println!("set-up and first frame, {gib} GiB: {:.0} ns", set_up(gib));
            }
        }
        (None, measure) => {
            let name = arguments.get(2).map_or("freehold", String::as_str);
            let found = CONTENDERS.iter().find(|contender| contender.name.starts_with(name));
            match found.and_then(|contender| (contender.measure)(frames, measure?)) {
                Some(figures) => println!("{figures}"),
                None => eprintln!("no such measure, or no such allocator"),
            }
        }
        (Some(rounds), _) => {
            let (variable, value) = LARGE_PAGES;
            if std::env::var(variable).is_err() {
                // The C library reads it at its start.
                let again = std::env::current_exe()
                    .map(|program| Command::new(program).args(&arguments).env(variable, value).exec());
                eprintln!("tables of some allocators are in small pages: {again:?}");
            }
            println!("{gib} GiB, {rounds} rounds, medians: ns per operation, % of free memory that is whole");
            report(&compare(frames, rounds));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::median_with_interval;

    #[test]
    fn intervals_of_medians_are_those_of_the_sign_test() {
        let sample = |n: u32| (1..=n).rev().map(f64::from).collect();
        assert_eq!(median_with_interval(sample(10)), [5.5, 2.0, 9.0]);
        assert_eq!(median_with_interval(sample(6)), [3.5, 1.0, 6.0]);
        assert_eq!(median_with_interval(sample(20)), [10.5, 6.0, 15.0]);
        assert_eq!(median_with_interval(sample(5)), [3.0, 0.0, f64::INFINITY]);
    }
}
