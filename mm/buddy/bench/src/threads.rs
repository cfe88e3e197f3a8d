//! Two threads at once, each pinned to a CPU, in chunks of a thousand operations between barriers.
//!
//! A chunk counts only if the two threads' times for it overlap by [`LEAST_OVERLAP`]: while one's
//! CPU was away, the other worked alone.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use fastrand::Rng;
use rustix::time::ClockId;

use crate::machine::become_cpu;
use crate::peers::Peer;
use crate::rows::{median, now};

/// Operations of a chunk.
const CHUNK: usize = 1000;
/// Least overlap of a chunk that counts.
const LEAST_OVERLAP: f64 = 0.85;
/// Least share of chunks that count: below it there is no figure.
const LEAST_COUNTED: usize = 8;

/// A barrier at which two threads wait without sleeping, so that both continue with warm caches.
#[derive(Default)]
struct Barrier(AtomicU32);

impl Barrier {
    fn wait(&self) {
        let arrived = self.0.fetch_add(1, Ordering::AcqRel);
        for spins in 0u32.. {
            if self.0.load(Ordering::Acquire) > arrived | 1 {
                break;
            }
            // On a machine with a single CPU the other thread needs this thread's CPU.
            if spins < 1 << 16 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

/// A thread's part of a chunk: when it began and ended, and its operations.
#[derive(Clone, Copy)]
struct ChunkPart {
    start: f64,
    end: f64,
    operations: usize,
}

/// ns per operation of the chunks that both threads did at the same time.
fn overlapping(mine: &[ChunkPart], other: &[ChunkPart]) -> f64 {
    let counted: Vec<f64> = mine
        .iter()
        .zip(other)
        .filter(|(a, b)| {
            let common = a.end.min(b.end) - a.start.max(b.start);
            common >= LEAST_OVERLAP * (a.end - a.start).max(b.end - b.start)
        })
        .map(|(a, b)| (a.end - a.start + b.end - b.start) / (a.operations + b.operations) as f64)
        .collect();
    if counted.len() * LEAST_COUNTED < mine.len() { f64::NAN } else { median(counted) }
}

/// One of the two threads.
struct Worker<'a, P> {
    peer: &'a P,
    cpu: usize,
    barrier: &'a Barrier,
    /// The blocks that the threads exchange.
    exchange: &'a Mutex<[Vec<u64>; 2]>,
    held: Vec<u64>,
    parts: [Vec<ChunkPart>; 4],
}

impl<P: Peer> Worker<'_, P> {
    fn chunk(&mut self, measure: usize, work: impl FnOnce(&mut Self) -> usize) {
        self.barrier.wait();
        let start = now(ClockId::Monotonic);
        let operations = work(self);
        let end = now(ClockId::Monotonic);
        self.parts[measure].push(ChunkPart { start, end, operations: operations.max(1) });
    }
    fn swap(&mut self) {
        for which in [self.cpu, 1 - self.cpu] {
            self.barrier.wait();
            let mut lists = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut lists[which], &mut self.held);
        }
    }
    fn run(mut self, frames: usize) -> [Vec<ChunkPart>; 4] {
        become_cpu(self.cpu as u16);
        self.peer.join(self.cpu as u16);
        let mut rng = Rng::with_seed(17 + self.cpu as u64);
        let chunks = frames / 4 / CHUNK;
        for _ in 0..100 {
            self.chunk(0, |this| {
                for _ in 0..CHUNK {
                    if let Some(block) = this.peer.get(0) {
                        this.peer.put(std::hint::black_box(block), 0);
                    }
                }
                CHUNK
            });
        }
        // The first time memory is fresh, which does not count.
        for pass in 0..3 {
            for measure in [2, 3] {
                for _ in 0..chunks {
                    self.chunk(1, |this| {
                        let before = this.held.len();
                        this.held.extend((0..CHUNK).map_while(|_| this.peer.get(0)));
                        this.held.len() - before
                    });
                }
                rng.shuffle(&mut self.held);
                if measure == 3 {
                    self.swap();
                }
                for _ in 0..chunks {
                    self.chunk(measure, |this| {
                        let count = this.held.len().min(CHUNK);
                        let rest = this.held.len() - count;
                        this.held.drain(rest..).for_each(|block| this.peer.put(block, 0));
                        count
                    });
                }
            }
            if pass == 0 {
                self.parts[1..].iter_mut().for_each(Vec::clear);
            }
        }
        self.peer.drain();
        self.parts
    }
}

/// ns per pair, get, put, and put of the other thread's frames; a quarter of memory for each.
pub fn contended<P: Peer>(peer: &P, frames: usize) -> [f64; 4] {
    let (barrier, exchange) = (Barrier::default(), Mutex::default());
    let worker = |cpu| Worker {
        peer,
        cpu,
        barrier: &barrier,
        exchange: &exchange,
        held: Vec::with_capacity(frames / 4),
        parts: Default::default(),
    };
    let (mine, other) = (worker(0), worker(1));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| other.run(frames));
        let mine = mine.run(frames);
        let other = other.join().unwrap_or_default();
        std::array::from_fn(|measure| overlapping(&mine[measure], &other[measure]))
    })
}
