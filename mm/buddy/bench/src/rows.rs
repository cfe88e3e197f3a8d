//! The measures: what is done with an allocator, and the figure that comes out.

use fastrand::Rng;
use rustix::time::{ClockId, clock_gettime};

use crate::machine::become_cpu;
use crate::peers::{Peer, Sort};
use crate::threads::contended;

/// The meaning of a figure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FigureKind {
    /// Nanoseconds per operation.
    Time,
    /// Percent of free memory that can be had as blocks of order 9.
    Whole,
}

/// Names and meanings of the figures.
pub const ROWS: [(&str, FigureKind); 17] = [
    ("a frame in and out", FigureKind::Time),
    ("the same, half of memory held", FigureKind::Time),
    ("half of memory: get", FigureKind::Time),
    ("  put, shuffled", FigureKind::Time),
    ("half held: get a quarter", FigureKind::Time),
    ("order 9 in and out", FigureKind::Time),
    ("half of memory, order 9: get", FigureKind::Time),
    ("  put, shuffled", FigureKind::Time),
    ("mixed orders, uniform", FigureKind::Time),
    ("  whole after", FigureKind::Whole),
    ("mixed orders, geometric", FigureKind::Time),
    ("  whole after", FigureKind::Whole),
    ("whole after churn", FigureKind::Whole),
    ("two threads: in and out", FigureKind::Time),
    ("  get", FigureKind::Time),
    ("  put, shuffled", FigureKind::Time),
    ("  put, the other's", FigureKind::Time),
];

/// One round's figures of one allocator; NaN for an operation that it does not have.
pub type RoundFigures = [f64; ROWS.len()];

/// Reads a clock, in nanoseconds.
pub fn now(clock: ClockId) -> f64 {
    let now = clock_gettime(clock);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn cpu_time() -> f64 {
    now(ClockId::ThreadCPUTime)
}

pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// ns per pair of get and put. The order is a constant, as it is for nearly all callers in a
/// kernel.
pub fn pair<const ORDER: u32>(peer: &impl Peer, operations: u32) -> f64 {
    let rounds = (0..7).map(|_| {
        let start = cpu_time();
        for _ in 0..operations {
            let Some(block) = peer.get(ORDER) else { return f64::NAN };
            peer.put(std::hint::black_box(block), ORDER);
        }
        (cpu_time() - start) / f64::from(operations)
    });
    median(rounds.collect())
}

/// Takes `count` blocks, frees them in random order: ns per get and per put.
pub fn bulk<const ORDER: u32>(peer: &impl Peer, count: usize, rounds: usize) -> [f64; 2] {
    // A thread's CPU time is read by a system call, which is long beside a few hundred operations.
    let clock = if count < 10_000 { ClockId::Monotonic } else { ClockId::ThreadCPUTime };
    let mut rng = Rng::with_seed(7);
    let mut blocks = Vec::with_capacity(count);
    let (mut gets, mut puts) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = now(clock);
        blocks.extend((0..count).map_while(|_| peer.get(ORDER)));
        gets.push((now(clock) - start) / blocks.len() as f64);
        rng.shuffle(&mut blocks);
        let (start, len) = (now(clock), blocks.len());
        blocks.drain(..).for_each(|block| peer.put(block, ORDER));
        puts.push((now(clock) - start) / len as f64);
    }
    [median(gets), median(puts)]
}

/// Half of memory in use at random: ns per pair, and per get of a quarter more.
pub fn held(peer: &impl Peer, frames: usize) -> [f64; 2] {
    let mut rng = Rng::with_seed(9);
    let mut held: Vec<u64> = (0..frames).map_while(|_| peer.get(0)).collect();
    rng.shuffle(&mut held);
    held.drain(frames / 2..).for_each(|block| peer.put(block, 0));
    peer.tick();
    let pairs = pair::<0>(peer, 100_000);
    let mut gets = Vec::new();
    for _ in 0..3 {
        let mut more = Vec::with_capacity(frames / 4);
        let start = cpu_time();
        more.extend((0..frames / 4).map_while(|_| peer.get(0)));
        gets.push((cpu_time() - start) / more.len() as f64);
        held.extend(more);
        rng.shuffle(&mut held);
        held.drain(frames / 2..).for_each(|block| peer.put(block, 0));
    }
    held.into_iter().for_each(|block| peer.put(block, 0));
    [pairs, median(gets)]
}

/// How orders are drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Orders {
    /// 0 to 9, equally likely.
    Uniform,
    /// 0 to 9, each half as likely as the one below.
    Geometric,
}

impl Orders {
    fn draw(self, rng: &mut Rng) -> u32 {
        match self {
            Self::Uniform => rng.u32(..10),
            Self::Geometric => rng.u64(..).trailing_zeros().min(9),
        }
    }
    /// Number of frames for each slot, so that slots limit what is in use, and steps per slot.
    const fn scale(self) -> (usize, usize) {
        match self {
            Self::Uniform => (150, 400),
            Self::Geometric => (8, 20),
        }
    }
}

/// Random slots of random orders: ns per operation above the harness, and the share of free memory
/// usable at order 9 after.
pub fn mixed(peer: &impl Peer, frames: usize, orders: Orders, seed: u64) -> [f64; 2] {
    let (frames_per_slot, steps_per_slot) = orders.scale();
    let slots = frames / frames_per_slot;
    let mut rng = Rng::with_seed(seed);
    let plan: Vec<(u32, u32)> =
        (0..slots * steps_per_slot).map(|_| (rng.u32(..slots as u32), orders.draw(&mut rng))).collect();
    let mut held: Vec<Option<(u64, u32)>> = vec![None; slots];
    let start = cpu_time();
    for &(slot, order) in &plan {
        std::hint::black_box(&mut held[slot as usize]).take();
        held[slot as usize] = Some((u64::from(slot), order));
    }
    let harness = cpu_time() - start;
    held.fill(None);
    let mut used = 0u64;
    let mut operations = 0;
    let start = cpu_time();
    for &(slot, order) in &plan {
        if let Some((block, order)) = held[slot as usize].take() {
            peer.put(block, order);
            used -= 1 << order;
            operations += 1;
        } else if used < frames as u64 / 2
            && let Some(block) = peer.get(order)
        {
            held[slot as usize] = Some((block, order));
            used += 1 << order;
            operations += 1;
        }
    }
    let time = (cpu_time() - start - harness) / f64::from(operations);
    let share = usable(peer, frames as u64 - used);
    held.into_iter().flatten().for_each(|(block, order)| peer.put(block, order));
    [time, share]
}

/// The share of `free` frames that can be had as blocks of order 9.
fn usable(peer: &impl Peer, free: u64) -> f64 {
    peer.drain();
    let blocks: Vec<u64> = std::iter::from_fn(|| peer.get(9)).collect();
    let share = (blocks.len() as f64 * 512.0) / free as f64 * 100.0;
    blocks.into_iter().for_each(|block| peer.put(block, 9));
    share
}

/// Memory filled at order 0, a random half freed, then live frames replaced one by one, `turnovers`
/// times: the share of free memory usable at order 9.
fn churn(peer: &impl Peer, frames: usize, turnovers: usize) -> f64 {
    let mut rng = Rng::with_seed(13);
    let mut held: Vec<u64> = (0..frames * 99 / 100).map_while(|_| peer.get(0)).collect();
    let (taken, free) = (held.len(), (frames - held.len()) as u64);
    rng.shuffle(&mut held);
    held.drain(frames / 2..).for_each(|block| peer.put(block, 0));
    for step in 0..held.len() * turnovers {
        // About every millisecond, like a kernel's timer tick.
        if step % (1 << 15) == 0 {
            peer.tick();
        }
        let slot = rng.usize(..held.len());
        peer.put(held[slot], 0);
        held[slot] = peer.get(0).unwrap_or(u64::MAX);
    }
    let share = usable(peer, free + (taken - held.len()) as u64);
    held.into_iter().for_each(|block| peer.put(block, 0));
    share
}

/// All figures of an allocator of so many frames; `round` seeds the mixed orders.
pub fn figures(peer: &impl Peer, frames: usize, round: usize) -> RoundFigures {
    become_cpu(0);
    let half = frames / 2;
    let repeats = if frames > 1 << 20 { 1 } else { 5 };
    let pair0 = pair::<0>(peer, 100_000);
    let [get0, put0] = bulk::<0>(peer, half, repeats);
    let mut figures = [f64::NAN; ROWS.len()];
    (figures[0], figures[2], figures[3]) = (pair0, get0, put0);
    if peer.sort() == Sort::Allocator {
        [figures[1], figures[4]] = held(peer, frames * 9 / 10);
        figures[5] = pair::<9>(peer, 10_000);
        [figures[6], figures[7]] = bulk::<9>(peer, half / 512, 20 * repeats);
        let seed = 11 + 2 * round as u64;
        [figures[8], figures[9]] = mixed(peer, frames, Orders::Uniform, seed);
        [figures[10], figures[11]] = mixed(peer, frames, Orders::Geometric, seed);
        figures[12] = churn(peer, frames, 16);
    }
    figures[13..].copy_from_slice(&contended(peer, frames));
    figures
}
