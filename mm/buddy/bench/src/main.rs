//! `make bench`, or `cargo run --profile bench -p freehold-buddy-bench [-- GIB [ONLY]]`: median
//! nanoseconds per operation, compared with other allocators.
//!
//! ONLY is the beginning of a row's name, `set-up`, or one of `pair`, `bulk`, `bulk9`, `mixed`:
//! only that measure of our allocator, for a profiler. Single-threaded figures are thread CPU time;
//! two threads, each pinned to a CPU, are timed by the wall clock and are meaningful only on an
//! idle machine. All figures are medians of the rounds of one run: compare within a run, by the
//! ratio to the stack in the first row. `valgrind --tool=callgrind` counts instructions of `pair`,
//! `bulk`, `bulk9` and `mixed` at any load of the machine.
//!
//! May use `unsafe`: the module `raw` gives memory to peers that keep their metadata inside it,
//! frees by address as those peers require, and puts our tables into large pages.

mod machine;
mod peers;
#[allow(unsafe_code, reason = "peers keep their metadata in raw memory")]
mod raw;

use std::sync::atomic::{AtomicU32, Ordering};

use freehold_buddy::Shuffle;
use rustix::time::{ClockId, clock_gettime};

use fastrand::Rng;
use machine::become_cpu;
use peers::{Bitmap, BuddySystem, Freehold, LockedStack, Peer, RecordedStack, Sort, Stack};
use raw::{BuddySlab, FrameAlloc, Pages};

fn cpu_time() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

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

fn pair(peer: &impl Peer, order: u32) -> f64 {
    const OPS: u32 = 200_000;
    let rounds = (0..11).map(|_| {
        let start = cpu_time();
        for _ in 0..OPS {
            let Some(block) = peer.get(order) else { return f64::NAN };
            peer.put(std::hint::black_box(block), order);
        }
        (cpu_time() - start) / f64::from(OPS)
    });
    median(rounds.collect())
}

/// Takes `count` blocks, frees them in random order: ns per get and per put.
fn bulk(peer: &impl Peer, order: u32, count: usize, rounds: usize) -> (f64, f64) {
    let mut rng = Rng::with_seed(7);
    let mut blocks = Vec::with_capacity(count);
    let (mut gets, mut puts) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = cpu_time();
        blocks.extend((0..count).map_while(|_| peer.get(order)));
        gets.push((cpu_time() - start) / blocks.len() as f64);
        rng.shuffle(&mut blocks);
        let (start, len) = (cpu_time(), blocks.len());
        blocks.drain(..).for_each(|block| peer.put(block, order));
        puts.push((cpu_time() - start) / len as f64);
    }
    (median(gets), median(puts))
}

/// Half of memory in use at random: ns per get of a quarter more.
fn aged(peer: &impl Peer, frames: usize) -> f64 {
    let mut rng = Rng::with_seed(9);
    let mut held: Vec<u64> = (0..frames).map_while(|_| peer.get(0)).collect();
    rng.shuffle(&mut held);
    held.drain(frames / 2..).for_each(|block| peer.put(block, 0));
    let mut gets = Vec::new();
    for _ in 0..5 {
        let start = cpu_time();
        let more: Vec<u64> = (0..frames / 4).map_while(|_| peer.get(0)).collect();
        gets.push((cpu_time() - start) / more.len() as f64);
        held.extend(more);
        rng.shuffle(&mut held);
        let keep = frames / 2;
        held.drain(keep..).for_each(|block| peer.put(block, 0));
    }
    held.into_iter().for_each(|block| peer.put(block, 0));
    median(gets)
}

/// Random slots of random orders 0–9: ns per operation above the harness, and the share of free
/// memory usable at order 9 after.
fn mixed(peer: &impl Peer, frames: usize) -> (f64, f64) {
    let (times, shares) = (0..5).map(|round| mixed_once(peer, frames, 11 + 2 * round)).unzip();
    (median(times), median(shares))
}

fn mixed_once(peer: &impl Peer, frames: usize, seed: u64) -> (f64, f64) {
    let slots = frames / 150;
    let steps = slots * 400;
    let mut rng = Rng::with_seed(seed);
    let plan: Vec<(u32, u32)> = (0..steps).map(|_| (rng.u32(..slots as u32), rng.u32(..10))).collect();
    let mut held: Vec<Option<(u64, u32)>> = vec![None; slots];
    let start = cpu_time();
    for &(slot, order) in &plan {
        std::hint::black_box(&mut held[slot as usize]).take();
        held[slot as usize] = Some((u64::from(slot), order));
    }
    let harness = cpu_time() - start;
    held.fill(None);
    let mut used = 0u64;
    let mut ops = 0;
    let start = cpu_time();
    for &(slot, order) in &plan {
        if let Some((block, order)) = held[slot as usize].take() {
            peer.put(block, order);
            used -= 1 << order;
            ops += 1;
        } else if used < frames as u64 / 2
            && let Some(block) = peer.get(order)
        {
            held[slot as usize] = Some((block, order));
            used += 1 << order;
            ops += 1;
        }
    }
    let time = (cpu_time() - start - harness) / f64::from(ops);
    let share = usable(peer, frames as u64 - used);
    held.into_iter().flatten().for_each(|(block, order)| peer.put(block, order));
    (time, share)
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
/// times.
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

/// Two threads at once, a quarter of memory each: ns per pair, get, put, and put of the other's
/// blocks.
fn contended(peer: &impl Peer, frames: usize) -> [f64; 4] {
    const ROUNDS: usize = 9;
    let barrier = Barrier::default();
    let exchange = std::sync::Mutex::new([Vec::new(), Vec::new()]);
    let work = |cpu: u16| {
        become_cpu(cpu);
        peer.join(cpu);
        let mut rng = Rng::with_seed(17 + u64::from(cpu));
        let mut figures: [Vec<f64>; 4] = Default::default();
        let timed = |f: &mut dyn FnMut() -> usize| {
            barrier.wait();
            let start = cpu_time();
            let count = f();
            (cpu_time() - start) / count as f64
        };
        let mut held: Vec<u64> = Vec::with_capacity(frames);
        for _ in 0..ROUNDS {
            figures[0].push(timed(&mut || {
                for _ in 0..200_000 {
                    if let Some(block) = peer.get(0) {
                        peer.put(std::hint::black_box(block), 0);
                    }
                }
                200_000
            }));
            for remote in [false, true] {
                let get = timed(&mut || {
                    held.extend((0..frames / 4).map_while(|_| peer.get(0)));
                    held.len()
                });
                figures[1].push(get);
                rng.shuffle(&mut held);
                if remote {
                    barrier.wait();
                    let mut lists = exchange.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    lists[usize::from(cpu)] = std::mem::take(&mut held);
                    drop(lists);
                    barrier.wait();
                    let mut lists = exchange.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    held = std::mem::take(&mut lists[usize::from(1 - cpu)]);
                }
                let put = timed(&mut || {
                    let count = held.len();
                    held.drain(..).for_each(|block| peer.put(block, 0));
                    count
                });
                figures[if remote { 3 } else { 2 }].push(put);
            }
        }
        peer.drain();
        figures.map(median)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| work(1));
        let mine = work(0);
        let other = other.join().unwrap_or([f64::NAN; 4]);
        std::array::from_fn(|i| mine[i].max(other[i]))
    })
}

/// Set the allocator up over so many GiB of metadata-only memory and take the first frame: ns for
/// both.
fn set_up(gib: u64) -> f64 {
    let rounds = (0..9).map(|_| {
        let start = cpu_time();
        let peer = Freehold::new(gib << 18, Shuffle::On, Pages::Small);
        std::hint::black_box(peer.get(0));
        cpu_time() - start
    });
    median(rounds.collect())
}

fn row(name: &str, peer: &impl Peer, frames: usize) {
    become_cpu(0);
    let half = frames / 2;
    let rounds = if frames > 1 << 20 { 5 } else { 9 };
    let pair0 = pair(peer, 0);
    let (get0, put0) = bulk(peer, 0, half, rounds);
    if peer.sort() != Sort::Allocator {
        let [pair, get, put, remote] = contended(peer, frames);
        println!(
            "{name:<22} {pair0:6.1}   {get0:6.1} {put0:6.1}{:68}{pair:6.1} {get:6.1} {put:6.1} {remote:6.1}",
            ""
        );
        return;
    }
    let pair9 = pair(peer, 9);
    let (get9, put9) = bulk(peer, 9, half / 512, rounds);
    let aged = aged(peer, frames * 9 / 10);
    let (mix, mix_share) = mixed(peer, frames);
    let share = churn(peer, frames, 16);
    let [cpair, cget, cput, cremote] = contended(peer, frames);
    println!(
        "{name:<22} {pair0:6.1}   {get0:6.1} {put0:6.1}   {aged:6.1}   {pair9:6.1}   {get9:6.1} {put9:6.1}   {mix:6.1}   {mix_share:5.1} {share:5.1}   {cpair:6.1} {cget:6.1} {cput:6.1} {cremote:6.1}"
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let gib: usize = arguments.next().and_then(|argument| argument.parse().ok()).unwrap_or(1);
    let only = arguments.next();
    let wanted = |name: &str| only.as_deref().is_none_or(|only| name.starts_with(only));
    let frames = gib << 18;
    if only.as_deref() == Some("set-up") {
        for gib in [1, 8, 64] {
            println!("set-up and first frame, {gib} GiB: {:.0} ns", set_up(gib));
        }
        return;
    }
    println!("{gib} GiB, ns; two threads on the right; %9: share of free memory usable at order 9");
    println!(
        "                         pair0     get0   put0     aged    pair9     get9   put9      mix     mix%9 churn%9   pair0   get0   put0 remote"
    );
    if wanted("thread-local") {
        row("thread-local stack", &Stack::new(frames as u64), frames);
        row("the same with records", &RecordedStack::new(frames as u64), frames);
    }
    // One measure at a time, for a profiler.
    let ours = || Freehold::new(frames as u64, Shuffle::On, Pages::Large);
    match only.as_deref() {
        Some("pair") => println!("{:.2}", pair(&ours(), 0)),
        Some("bulk9") => println!("{:?}", bulk(&ours(), 9, frames >> 10, 200)),
        Some("bulk") => println!("{:?}", bulk(&ours(), 0, frames / 2, 20)),
        Some("mixed") => println!("{:?}", mixed(&ours(), frames)),
        _ => {}
    }
    if wanted("freehold") {
        row("freehold, shuffle on", &Freehold::new(frames as u64, Shuffle::On, Pages::Large), frames);
        row("freehold, shuffle off", &Freehold::new(frames as u64, Shuffle::Off, Pages::Large), frames);
    }
    if wanted("stack under") {
        row("stack under a lock", &LockedStack::new(frames as u64), frames);
    }
    if wanted("frame-alloc") {
        row("frame-alloc depot", &FrameAlloc::depot(frames as u64), frames);
        row("frame-alloc summary", &FrameAlloc::summary(frames as u64), frames);
    }
    if wanted("buddy-slab") {
        row("buddy-slab-allocator", &BuddySlab::new(frames as u64), frames);
    }
    if wanted("buddy_system") {
        row("buddy_system_allocator", &BuddySystem::new(frames as u64), frames);
    }
    if wanted("bitmap") {
        row("bitmap-allocator", &Bitmap::new(frames as u64), frames);
    }
}
