//! `make bench`, or `cargo run --profile bench -p freehold-bounce-bench [-- quick]`: the cost of
//! getting slots and giving them back, beside Linux' algorithm.
//!
//! Both are timed in turn, batch by batch, in the thread's CPU time: what else the host does falls
//! on both. `median` is that of the batches, for one take and one give; `p99.9` is of operations
//! that were timed one by one, with the clock's own time. Two threads are timed by the wall clock
//! and mean something where two CPUs are idle.
//!
//! Exit status: 1 where a search of ours grows with the number of full segments by more than
//! [`FLAT`], one takes longer than Linux' algorithm, or two threads share a segment's word.
#![forbid(unsafe_code)]

mod linux;
mod ours;

use std::cell::Cell;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use linux::Linux;
use ours::Ours;
use rustix::time::{ClockId, clock_gettime};

/// Bytes of a segment, with both.
pub const SEGMENT: usize = 256 << 10;
/// How much longer a search may take among full segments.
const FLAT: f64 = 1.3;
/// Least throughput of two threads, as a multiple of one thread's.
const TWO: f64 = 1.8;

/// Gives memory to a device.
trait Allocator {
    /// Buffer that was taken.
    type Held;
    /// In the table.
    const NAME: &'static str;
    fn take(&self, cpu: usize, bytes: usize) -> Option<Self::Held>;
    fn give(&self, held: Self::Held);
}

thread_local! {
    static CPU: Cell<u16> = const { Cell::new(0) };
}

/// The number of this thread's CPU.
fn cpu() -> u16 {
    CPU.get()
}

/// From now on this thread is CPU `cpu`; where there is none of that number it stays where it is.
fn become_cpu(cpu: u16) {
    CPU.set(cpu);
    let mut set = rustix::thread::CpuSet::new();
    set.set(usize::from(cpu));
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// A small generator: xorshift64*.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(value) * bound as u128) >> 64) as usize
    }
}

fn cpu_time() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn quantile(figures: &mut [f64], share: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    let last = figures.len().saturating_sub(1);
    figures.get((last as f64 * share) as usize).copied().unwrap_or(f64::NAN)
}

/// How much is done.
#[derive(Clone, Copy)]
struct Effort {
    batches: usize,
    batch: usize,
}

/// ns for a take and a give: the median of batches, and p99.9 of single ones.
#[derive(Clone, Copy)]
struct BenchFigure {
    median: f64,
    tail: f64,
}

/// Batches of a take and a give of both, in turn.
fn pairs(ours: &impl Allocator, other: &impl Allocator, bytes: usize, effort: Effort) -> [BenchFigure; 2] {
    let mut batches = [Vec::new(), Vec::new()];
    let mut singles = [Vec::new(), Vec::new()];
    for _ in 0..effort.batches {
        batch(ours, bytes, effort.batch, (&mut batches[0], &mut singles[0]));
        batch(other, bytes, effort.batch, (&mut batches[1], &mut singles[1]));
    }
    let of = |batches: &mut [f64], singles: &mut [f64]| BenchFigure {
        median: quantile(batches, 0.5),
        tail: quantile(singles, 0.999),
    };
    [of(&mut batches[0], &mut singles[0]), of(&mut batches[1], &mut singles[1])]
}

fn batch<A: Allocator>(
    from: &A,
    bytes: usize,
    times: usize,
    (batches, singles): (&mut Vec<f64>, &mut Vec<f64>),
) {
    let once = || from.give(black_box(from.take(0, bytes).expect("there is memory")));
    let start = cpu_time();
    (0..times).for_each(|_| once());
    batches.push((cpu_time() - start) / times as f64);
    for _ in 0..times {
        let start = Instant::now();
        once();
        singles.push(start.elapsed().as_nanos() as f64);
    }
}

/// Sizes in the shares that the authors of cc-swiotlb (2023) counted: 57.7% up to 2 KiB, 91.3% up
/// to 4 KiB, the rest longer.
fn size(rng: &mut Rng) -> usize {
    match rng.below(1000) {
        0..577 => 1 + rng.below(2048),
        577..913 => 4096,
        913..980 => 4096 * (2 + rng.below(15)),
        _ => 4096 * (17 + rng.below(48)),
    }
}

/// A trace of `size`s, with 32 transfers under way, of which any ends next: the same one each time.
fn trace(from: &impl Allocator, rounds: usize) -> f64 {
    let mut rng = Rng(7);
    let mut held: Vec<_> = (0..32).filter_map(|_| from.take(0, size(&mut rng))).collect();
    let start = cpu_time();
    for _ in 0..rounds {
        let ended = rng.below(held.len());
        from.give(held.swap_remove(ended));
        held.push(from.take(0, size(&mut rng)).expect("there is memory"));
    }
    let spent = (cpu_time() - start) / rounds as f64;
    held.into_iter().for_each(|held| from.give(held));
    spent
}

/// Takes and gives per ns of `threads` threads at once, each on its CPU.
fn throughput(from: &(impl Allocator + Sync), threads: u16, times: usize) -> f64 {
    let arrived = AtomicUsize::new(0);
    let work = |number: u16| {
        become_cpu(number);
        arrived.fetch_add(1, Ordering::AcqRel);
        while arrived.load(Ordering::Acquire) < usize::from(threads) {
            std::thread::yield_now();
        }
        let start = Instant::now();
        for _ in 0..times {
            from.give(black_box(from.take(number.into(), 4096).expect("there is memory")));
        }
        times as f64 / start.elapsed().as_nanos() as f64
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|number| scope.spawn(move || work(number))).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).sum()
    })
}

/// Both with this many segments, all of them full but what `is_free` says.
fn filled<A: Allocator>(from: &A, segments: usize, is_free: impl Fn(usize) -> bool) -> Vec<A::Held> {
    let all: Vec<_> = (0..segments).map_while(|_| from.take(0, SEGMENT)).collect();
    assert_eq!(all.len(), segments, "{}: every segment can be filled", A::NAME);
    let mut kept = Vec::new();
    for (number, held) in all.into_iter().enumerate() {
        if is_free(number) { from.give(held) } else { kept.push(held) }
    }
    kept
}

/// Prints a row; whether ours took no longer.
fn show(name: &str, [ours, other]: [BenchFigure; 2]) -> bool {
    println!(
        "{name:<34} {:>8.0} {:>8.0} {:>10.0} {:>10.0} {:>7.2}",
        ours.median,
        ours.tail,
        other.median,
        other.tail,
        ours.median / other.median
    );
    ours.median <= other.median
}

fn full_segments(effort: Effort) -> bool {
    let mut good = true;
    for (bytes, name) in [(4 << 10, "4 KiB"), (64 << 10, "64 KiB")] {
        let mut empty = None;
        for full in [0, 126, 4095] {
            let (ours, other) = (Ours::new(full + 1), Linux::new(1, full + 1));
            let _ours = filled(&ours, full + 1, |number| number == full);
            let _other = filled(&other, full + 1, |number| number == full);
            let figures = pairs(&ours, &other, bytes, effort);
            good &= show(&format!("{name}, {full} full segments"), figures);
            let first = *empty.get_or_insert(figures[0].median);
            if figures[0].median > first * FLAT {
                println!("    grows by more than {FLAT}: {:.2}", figures[0].median / first);
                good = false;
            }
        }
    }
    let (ours, other) = (Ours::new(256), Linux::new(1, 256));
    let _ours = filled(&ours, 256, |number| number % 43 == 20);
    let _other = filled(&other, 256, |number| number % 43 == 20);
    good & show("256 KiB, 250 of 256 segments full", pairs(&ours, &other, SEGMENT, effort))
}

/// Not judged: Linux' algorithm has slots of 2 KiB that devices share, ours pages that they do not,
/// and cells in them.
fn replay(effort: Effort) {
    let (ours, other) = (Ours::new(256), Linux::new(1, 256));
    let mut spent = [Vec::new(), Vec::new()];
    for _ in 0..effort.batches {
        spent[0].push(trace(&ours, effort.batch));
        spent[1].push(trace(&other, effort.batch));
    }
    let [ours, other] = spent.map(|mut spent| quantile(&mut spent, 0.5));
    println!(
        "{:<34} {ours:>8.0} {:>8} {other:>10.0} {:>10} {:>7.2}",
        "a trace, 32 under way",
        "",
        "",
        ours / other
    );
}

fn two_threads(effort: Effort) {
    fn ratio(from: &(impl Allocator + Sync), effort: Effort) -> f64 {
        let times = effort.batch * 20;
        let both =
            (0..effort.batches.div_ceil(4)).map(|_| throughput(from, 2, times) / throughput(from, 1, times));
        both.fold(0.0, f64::max)
    }
    let (ours, other) = (ratio(&Ours::new(256), effort), ratio(&Linux::new(2, 256), effort));
    println!(
        "two threads over one: {ours:.2} (Linux' algorithm, two areas: {other:.2}); asked: {TWO} where two CPUs are idle"
    );
}

/// Takes of two threads at once from segments whose words the other one stored to as well, per
/// take: a count, which does not depend on the host.
fn shared_words(times: usize) -> f64 {
    let ours = Ours::new(256);
    let arrived = AtomicUsize::new(0);
    let segments = |number: u16| {
        become_cpu(number);
        arrived.fetch_add(1, Ordering::AcqRel);
        while arrived.load(Ordering::Acquire) < 2 {
            std::thread::yield_now();
        }
        let mut takes = vec![0usize; 260];
        for _ in 0..times {
            let held = ours.take(number.into(), 4096).expect("there is memory");
            takes[held.address().0 as usize / SEGMENT] += 1;
            ours.give(held);
        }
        takes
    };
    let both: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..2).map(|number| scope.spawn(move || segments(number))).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let of_both = both[0].iter().zip(&both[1]).filter(|&(one, other)| *one > 0 && *other > 0);
    of_both.map(|(one, other)| one + other).sum::<usize>() as f64 / (2 * times) as f64
}

fn main() -> ExitCode {
    let is_quick = std::env::args().nth(1).as_deref() == Some("quick");
    let effort =
        if is_quick { Effort { batches: 11, batch: 500 } } else { Effort { batches: 101, batch: 5000 } };
    become_cpu(0);
    println!("{:<34} {:>17} {:>21} {:>7}", "take and give, ns", "Freehold", "Linux' algorithm", "ratio");
    println!("{:<34} {:>8} {:>8} {:>10} {:>10}", "", "median", "p99.9", "median", "p99.9");
    let good = full_segments(effort);
    replay(effort);
    two_threads(effort);
    let shared = shared_words(effort.batch * 20);
    println!("segments' words shared by two threads per hit: {shared:.4}; asked: 0");
    if good && shared == 0.0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
