//! `make bench`, or `cargo run --profile bench -p freehold-bounce-bench [-- quick]`: the cost of
//! taking and freeing slots, compared with Linux' algorithm and a pool of fixed size.
//!
//! All are timed in turn, batch by batch, in the thread's CPU time, so that other load of the host
//! affects all alike. `median` is the median of the batches, per take and give. `p99.9` is for
//! operations timed one by one, and includes the clock's own time.
//!
//! The exit status is 1 in four cases: a search of ours grows by more than [`FLAT`] with the number
//! of full segments; a search takes longer than Linux' algorithm; two threads have less than
//! [`TWO`] times the throughput of one; two threads share a segment's word.
#![forbid(unsafe_code)]

mod fixed;
mod linux;
mod ours;

use std::cell::Cell;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fixed::Fixed;
use linux::Linux;
use ours::Ours;
use rustix::time::{ClockId, clock_gettime};

/// Bytes of a segment, in both algorithms.
pub const SEGMENT: usize = 256 << 10;
/// Limit for the time of a search among full segments, as a multiple of one without them.
const FLAT: f64 = 1.3;
/// Smallest allowed throughput of two threads, as a multiple of one thread's.
const TWO: f64 = 1.8;

/// Gives memory to a device.
trait Allocator {
    /// Buffer that was taken.
    type Held;
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

/// From now on this thread is CPU `cpu`; if the host has no CPU of that number, the thread stays
/// where it is.
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

/// Numbers of rounds and operations.
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

/// All allocators that are compared, each with the same number of segments.
struct Peers {
    ours: Ours,
    linux: Linux,
    fixed: Fixed,
    segments: usize,
}

/// Held slots of each allocator.
type Full =
    (Vec<<Ours as Allocator>::Held>, Vec<<Linux as Allocator>::Held>, Vec<<Fixed as Allocator>::Held>);

/// Times rounds of a take and a give. Returns the mean ns of one round, and adds those of single
/// rounds to a list.
trait Timed {
    fn batch(&self, from: &impl Allocator, singles: &mut Vec<f64>) -> f64;
}

impl Peers {
    fn new(segments: usize) -> Self {
        let (ours, linux, fixed) = (Ours::new(segments), Linux::new(1, segments), Fixed::new(segments));
        Self { ours, linux, fixed, segments }
    }
    fn filled(&self, is_free: impl Fn(usize) -> bool + Copy) -> Full {
        let segments = self.segments;
        (
            filled(&self.ours, segments, is_free),
            filled(&self.linux, segments, is_free),
            filled(&self.fixed, segments, is_free),
        )
    }
    /// Runs batches of all allocators in turn.
    fn measured(&self, effort: Effort, timed: &impl Timed) -> [BenchFigure; 3] {
        let (mut batches, mut singles) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
        for _ in 0..effort.batches {
            batches[0].push(timed.batch(&self.ours, &mut singles[0]));
            batches[1].push(timed.batch(&self.linux, &mut singles[1]));
            batches[2].push(timed.batch(&self.fixed, &mut singles[2]));
        }
        core::array::from_fn(|peer| BenchFigure {
            median: quantile(&mut batches[peer], 0.5),
            tail: quantile(&mut singles[peer], 0.999),
        })
    }
}

/// Takes and gives of one size.
struct OneSize {
    bytes: usize,
    times: usize,
}

impl Timed for OneSize {
    fn batch(&self, from: &impl Allocator, singles: &mut Vec<f64>) -> f64 {
        let once = || from.give(black_box(from.take(0, self.bytes).expect("there is memory")));
        let start = cpu_time();
        (0..self.times).for_each(|_| once());
        let spent = (cpu_time() - start) / self.times as f64;
        for _ in 0..self.times {
            let start = Instant::now();
            once();
            singles.push(start.elapsed().as_nanos() as f64);
        }
        spent
    }
}

/// A trace with some transfers in flight. The one that ends next is random, but the same in each
/// replay.
struct Replay {
    sizes: Vec<usize>,
    times: usize,
}

impl Timed for Replay {
    fn batch(&self, from: &impl Allocator, singles: &mut Vec<f64>) -> f64 {
        let mut rng = Rng(7);
        let mut sizes = self.sizes.iter().copied().cycle();
        let mut take = || from.take(0, sizes.next().expect("a trace")).expect("there is memory");
        let mut held: Vec<_> = (0..UNDER_WAY).map(|_| take()).collect();
        let mut next = || {
            let ended = rng.below(held.len());
            from.give(held.swap_remove(ended));
            held.push(take());
        };
        let start = cpu_time();
        (0..self.times).for_each(|_| next());
        let spent = (cpu_time() - start) / self.times as f64;
        for _ in 0..self.times {
            let start = Instant::now();
            next();
            singles.push(start.elapsed().as_nanos() as f64);
        }
        held.into_iter().for_each(|held| from.give(held));
        spent
    }
}

/// Sizes of transfers of real runs, in their order: `SIZE` or `SIZE*TIMES`, one a line. Recorded
/// from a guest's events swiotlb_bounced (see `traces/README.md`).
const TRACES: [(&str, &str); 2] = [
    ("programs from a folder", include_str!("../traces/folder.txt")),
    ("a disk, cached and direct", include_str!("../traces/disk.txt")),
];
/// Transfers in flight while a trace is replayed, as many as a disk has requests.
const UNDER_WAY: usize = 16;

fn sizes(trace: &str) -> Vec<usize> {
    let run = |line: &str| {
        let (size, times) = line.split_once('*').unwrap_or((line, "1"));
        let size: usize = size.parse().expect("a number of bytes");
        std::iter::repeat_n(size.clamp(1, SEGMENT), times.parse().expect("a number"))
    };
    trace.lines().flat_map(run).collect()
}

/// CPU time of a take and a give, in ns, of `threads` threads at once, each on its CPU: the mean of
/// the threads.
fn beside(from: &(impl Allocator + Sync), threads: u16, times: usize) -> f64 {
    let arrived = AtomicUsize::new(0);
    let work = |number: u16| {
        become_cpu(number);
        arrived.fetch_add(1, Ordering::AcqRel);
        while arrived.load(Ordering::Acquire) < usize::from(threads) {
            std::thread::yield_now();
        }
        let start = cpu_time();
        for _ in 0..times {
            from.give(black_box(from.take(number.into(), 4096).expect("there is memory")));
        }
        (cpu_time() - start) / times as f64
    };
    let spent: f64 = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|number| scope.spawn(move || work(number))).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).sum()
    });
    spent / f64::from(threads)
}

/// Makes each allocator with this many segments, all of them full except the slots for which
/// `is_free` holds.
fn filled<A: Allocator>(from: &A, segments: usize, is_free: impl Fn(usize) -> bool) -> Vec<A::Held> {
    let all: Vec<_> = (0..segments).map_while(|_| from.take(0, SEGMENT)).collect();
    assert_eq!(all.len(), segments, "every segment can be filled");
    let mut kept = Vec::new();
    for (number, held) in all.into_iter().enumerate() {
        if is_free(number) { from.give(held) } else { kept.push(held) }
    }
    kept
}

/// Prints a row; returns whether ours took no longer than Linux' algorithm.
fn show(name: &str, figures: [BenchFigure; 3]) -> bool {
    print!("{name:<34}");
    for BenchFigure { median, tail } in figures {
        print!(" {median:>8.0} {tail:>8.0}");
    }
    let [ours, linux, _] = figures;
    println!(" {:>7.2}", ours.median / linux.median);
    ours.median <= linux.median
}

fn full_segments(effort: Effort) -> bool {
    let mut good = true;
    for (bytes, name) in [(4 << 10, "4 KiB"), (64 << 10, "64 KiB")] {
        let mut empty = None;
        for full in [0, 126, 4095] {
            let all = Peers::new(full + 1);
            let _full = all.filled(|number| number == full);
            let figures = all.measured(effort, &OneSize { bytes, times: effort.batch });
            good &= show(&format!("{name}, {full} full segments"), figures);
            let first = *empty.get_or_insert(figures[0].median);
            if figures[0].median > first * FLAT {
                println!("    grows by more than {FLAT}: {:.2}", figures[0].median / first);
                good = false;
            }
        }
    }
    let all = Peers::new(256);
    let _full = all.filled(|number| number % 43 == 20);
    let figures = all.measured(effort, &OneSize { bytes: SEGMENT, times: effort.batch });
    good & show("256 KiB, 250 of 256 segments full", figures)
}

/// No limit applies here: Linux' algorithm has slots of 2 KiB that devices share; ours has pages
/// that devices do not share, and cells in them.
fn traces(effort: Effort) {
    for (name, trace) in TRACES {
        let replay = Replay { sizes: sizes(trace), times: effort.batch };
        show(name, Peers::new(256).measured(effort, &replay));
    }
}

/// Measures the throughput of two threads divided by that of one, by the CPU time of each, so that
/// other load of the host and pauses do not count. Takes the median of rounds; returns whether it
/// is large enough.
fn two_threads(effort: Effort) -> bool {
    fn ratio(from: &(impl Allocator + Sync), effort: Effort) -> f64 {
        let times = effort.batch * 20;
        let round = |_| 2.0 * beside(from, 1, times) / beside(from, 2, times);
        quantile(&mut (0..effort.batches.div_ceil(4)).map(round).collect::<Vec<_>>(), 0.5)
    }
    let [ours, linux, fixed] =
        [ratio(&Ours::new(256), effort), ratio(&Linux::new(2, 256), effort), ratio(&Fixed::new(256), effort)];
    println!(
        "two threads over one: {ours:.2}; asked: {TWO} (Linux' algorithm with two areas: {linux:.2}, the fixed pool: {fixed:.2})"
    );
    ours >= TWO
}

/// Returns the share of takes, of two threads at once, from segments whose words the other thread
/// stored to as well. This is a count and does not depend on the host.
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
    let names = ["Freehold", "Linux' algorithm", "fixed pool"];
    println!("{:<34} {:>17} {:>17} {:>17} {:>7}", "take and give, ns", names[0], names[1], names[2], "ratio");
    println!("{:<34}{}", "", [" ", " ", " "].map(|_| format!(" {:>8} {:>8}", "median", "p99.9")).concat());
    let good = full_segments(effort);
    traces(effort);
    let is_parallel = two_threads(effort);
    let shared = shared_words(effort.batch * 20);
    println!("segments' words shared by two threads per hit: {shared:.4}; asked: 0");
    if good && is_parallel && shared == 0.0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_sizes_in_their_order_and_runs_of_them() {
        assert_eq!(sizes("16\n4096*3\n999999\n"), [16, 4096, 4096, 4096, SEGMENT]);
        for (name, trace) in TRACES {
            let sizes = sizes(trace);
            assert!(sizes.len() > 500, "{name}: {} transfers", sizes.len());
        }
    }
}
