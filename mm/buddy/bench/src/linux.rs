//! A page allocator of Linux' shape, to compare with: a model of our own after mm/page_alloc.c.
//!
//! A buddy allocator of orders 0 to 10 whose free lists are inside the table of frames, under one
//! spin lock. In front of it, per CPU, lists for orders 0 to 3 and 9, each CPU's under a lock of
//! their own. Blocks move between both in batches: 63 pages, or 2 blocks of order 9; a CPU's list
//! holds six batches at most. A frame has 12 bytes of metadata.
//!
//! It has no migrate types, zones, watermarks, checks of pages or accounts, and does not mask
//! interrupts: it is cheaper than Linux.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use freehold_machine::Cpus;
use zerocopy::FromZeros;

use crate::machine::Bare;
use crate::peers::Peer;
use crate::raw::{Pages, at, zeroed};

/// Number of orders.
const ORDERS: u32 = 11;
/// Number of a CPU's lists: orders 0 to 3, and 9.
const LISTS: usize = 5;
const CPUS: usize = 2;
/// Pages of a batch.
const BATCH: usize = 63;
/// Batches that a CPU's list holds.
const HIGH: usize = 6;
/// Distance of the heads of two CPUs' lists, and of the buddy's: in separate cache lines.
const APART: u32 = 32;

/// A frame: its neighbours in a list, and its order plus 1 while it is the first frame of a block
/// in the buddy's lists, else 0. After the frames there are the heads of all lists, which are
/// rings.
#[derive(FromZeros)]
#[repr(C)]
struct FrameLink {
    next: AtomicU32,
    previous: AtomicU32,
    free: AtomicU32,
}

/// A spin lock in a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct PaddedLock(AtomicU32);

impl PaddedLock {
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        while self.0.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.0.load(Ordering::Relaxed) != 0 {
                spin_loop();
            }
        }
        let result = f();
        self.0.store(0, Ordering::Release);
        result
    }
}

/// A CPU's lists: their lock, and the number of blocks in each.
#[derive(Default)]
#[repr(align(128))]
struct CpuLists {
    lock: PaddedLock,
    counts: [AtomicUsize; LISTS],
}

/// See the module's head.
pub struct LinuxShaped {
    rings: Rings,
    frames: u32,
    zone: PaddedLock,
    pcps: [CpuLists; CPUS],
}

/// The list of a CPU that serves an order.
#[inline(always)]
fn list_of(order: u32) -> Option<usize> {
    match order {
        0..=3 => Some(order as usize),
        9 => Some(4),
        _ => None,
    }
}

/// Blocks of an order in a batch.
#[inline(always)]
fn batch(order: u32) -> usize {
    (BATCH >> order).max(2)
}

/// The rings that are made of a table's links.
#[derive(Clone, Copy)]
struct Rings(&'static [FrameLink]);

impl Rings {
    #[inline(always)]
    fn link(self, number: u32) -> &'static FrameLink {
        at(self.0, number as usize)
    }
    #[inline(always)]
    fn add(self, head: u32, block: u32) {
        let (first, link) = (self.link(head), self.link(block));
        let next = first.next.load(Ordering::Relaxed);
        link.next.store(next, Ordering::Relaxed);
        link.previous.store(head, Ordering::Relaxed);
        self.link(next).previous.store(block, Ordering::Relaxed);
        first.next.store(block, Ordering::Relaxed);
    }
    #[inline(always)]
    fn remove(self, block: u32) {
        let link = self.link(block);
        let (next, previous) = (link.next.load(Ordering::Relaxed), link.previous.load(Ordering::Relaxed));
        self.link(next).previous.store(previous, Ordering::Relaxed);
        self.link(previous).next.store(next, Ordering::Relaxed);
    }
    /// Removes the first block of a ring.
    #[inline(always)]
    fn pop(self, head: u32) -> Option<u32> {
        let first = self.link(head);
        let block = first.next.load(Ordering::Relaxed);
        if block == head {
            return None;
        }
        let next = self.link(block).next.load(Ordering::Relaxed);
        first.next.store(next, Ordering::Relaxed);
        self.link(next).previous.store(head, Ordering::Relaxed);
        Some(block)
    }
    /// Removes the last block of a ring.
    fn pop_last(self, head: u32) -> Option<u32> {
        let block = self.link(head).previous.load(Ordering::Relaxed);
        (block != head).then(|| {
            self.remove(block);
            block
        })
    }
}

impl LinuxShaped {
    pub fn new(frames: u64) -> Self {
        let frames = u32::try_from(frames).expect("fewer frames");
        let heads = (CPUS as u32 + 1) * APART;
        let rings = Rings(zeroed((frames + heads) as usize, Pages::Large));
        let this = Self { rings, frames, zone: PaddedLock::default(), pcps: Default::default() };
        (frames..frames + heads).for_each(|head| {
            rings.link(head).next.store(head, Ordering::Relaxed);
            rings.link(head).previous.store(head, Ordering::Relaxed);
        });
        let largest = 1 << (ORDERS - 1);
        // Added from the end, so that the lowest block is the first one of its list.
        (0..frames / largest).rev().for_each(|n| this.add_free(n * largest, ORDERS - 1));
        this
    }
    #[inline(always)]
    fn zone_head(&self, order: u32) -> u32 {
        self.frames + order
    }
    #[inline(always)]
    fn cpu_head(&self, cpu: usize, list: usize) -> u32 {
        self.frames + (cpu as u32 + 1) * APART + list as u32
    }
    fn add_free(&self, block: u32, order: u32) {
        self.rings.link(block).free.store(order + 1, Ordering::Relaxed);
        self.rings.add(self.zone_head(order), block);
    }
    /// Takes a block out of the buddy's lists, whose lock is held.
    fn take(&self, order: u32) -> Option<u32> {
        let (mut have, block) =
            (order..ORDERS).find_map(|have| Some((have, self.rings.pop(self.zone_head(have))?)))?;
        self.rings.link(block).free.store(0, Ordering::Relaxed);
        while have > order {
            have -= 1;
            self.add_free(block + (1 << have), have);
        }
        Some(block)
    }
    /// Puts a block into the buddy's lists, whose lock is held, together with its free buddies.
    fn merge(&self, mut block: u32, mut order: u32) {
        while order < ORDERS - 1 {
            let buddy = block ^ 1 << order;
            if buddy >= self.frames || self.rings.link(buddy).free.load(Ordering::Relaxed) != order + 1 {
                break;
            }
            self.rings.remove(buddy);
            self.rings.link(buddy).free.store(0, Ordering::Relaxed);
            block &= buddy;
            order += 1;
        }
        self.add_free(block, order);
    }
    /// Moves a batch from the buddy's lists into an empty list of a CPU; returns the number of
    /// blocks.
    #[cold]
    #[inline(never)]
    fn refill(&self, head: u32, order: u32) -> usize {
        self.zone.with(|| {
            let blocks = (0..batch(order)).map_while(|_| self.take(order));
            let last = || self.rings.link(head).previous.load(Ordering::Relaxed);
            blocks.inspect(|block| self.rings.add(last(), *block)).count()
        })
    }
    /// Moves up to `most` blocks of a CPU's list, the oldest first, to the buddy's lists; returns
    /// their number.
    #[cold]
    #[inline(never)]
    fn flush(&self, head: u32, order: u32, most: usize) -> usize {
        self.zone.with(|| {
            let blocks = (0..most).map_while(|_| self.rings.pop_last(head));
            blocks.inspect(|block| self.merge(*block, order)).count()
        })
    }
}

impl Peer for LinuxShaped {
    #[inline(always)]
    fn get(&self, order: u32) -> Option<u64> {
        let Some(list) = list_of(order) else {
            return self.zone.with(|| self.take(order)).map(u64::from);
        };
        let cpu = usize::from(Bare.current_cpu().0);
        let (pcp, head) = (&self.pcps[cpu % CPUS], self.cpu_head(cpu, list));
        pcp.lock.with(|| {
            let (rings, mut count) = (self.rings, pcp.counts[list].load(Ordering::Relaxed));
            let mut block = rings.pop(head);
            if block.is_none() {
                count = self.refill(head, order);
                block = rings.pop(head);
            }
            let block = block?;
            pcp.counts[list].store(count - 1, Ordering::Relaxed);
            Some(u64::from(block))
        })
    }
    #[inline(always)]
    fn put(&self, block: u64, order: u32) {
        let block = block as u32;
        let Some(list) = list_of(order) else {
            return self.zone.with(|| self.merge(block, order));
        };
        let cpu = usize::from(Bare.current_cpu().0);
        let (pcp, head) = (&self.pcps[cpu % CPUS], self.cpu_head(cpu, list));
        pcp.lock.with(|| {
            let rings = self.rings;
            rings.add(head, block);
            let mut count = pcp.counts[list].load(Ordering::Relaxed) + 1;
            if count >= HIGH * batch(order) {
                count -= self.flush(head, order, batch(order));
            }
            pcp.counts[list].store(count, Ordering::Relaxed);
        });
    }
    fn drain(&self) {
        let cpu = usize::from(Bare.current_cpu().0);
        let pcp = &self.pcps[cpu % CPUS];
        for order in [0, 1, 2, 3, 9] {
            let Some(list) = list_of(order) else { continue };
            pcp.lock.with(|| {
                self.flush(self.cpu_head(cpu, list), order, usize::MAX);
                pcp.counts[list].store(0, Ordering::Relaxed);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_block_is_handed_out_twice_and_all_memory_becomes_whole_again() {
        const FRAMES: u64 = 1 << 14;
        let (peer, mut rng) = (LinuxShaped::new(FRAMES), fastrand::Rng::with_seed(5));
        let (mut held, mut used) = (Vec::new(), vec![false; FRAMES as usize]);
        for _ in 0..100_000 {
            if rng.bool() {
                let order = rng.u32(..ORDERS);
                let Some(block) = peer.get(order) else { continue };
                let frames = &mut used[block as usize..][..1 << order];
                assert!(block % (1 << order) == 0 && !frames.contains(&true));
                frames.fill(true);
                held.push((block, order));
            } else if !held.is_empty() {
                let (block, order) = held.swap_remove(rng.usize(..held.len()));
                used[block as usize..][..1 << order].fill(false);
                peer.put(block, order);
            }
        }
        held.into_iter().for_each(|(block, order)| peer.put(block, order));
        peer.drain();
        let largest = (0..).map_while(|_| peer.get(ORDERS - 1)).count();
        assert_eq!(largest as u64, FRAMES >> (ORDERS - 1));
    }
}
