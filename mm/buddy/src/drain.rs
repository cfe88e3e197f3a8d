//! Returns blocks from the per-CPU lists to their pageblocks.
//!
//! Only the CPU itself accesses its lists, so only it can drain them. Others request this
//! ([`Buddy::request_drain`]), and the CPU does it when its lists run out or it polls.

use core::sync::atomic::AtomicU64;

use freehold_frame::Order;
use freehold_machine::{CpuId, Machine, NodeId, PAGEBLOCK_ORDER, Pfn, PhysicalBytes, Pinned};

use crate::Buddy;
use crate::block::{BlockId, BlockState, PutPlain};
use crate::misuse::Misuse;
use crate::pcp::{Pcp, homeward};
use crate::shape::LISTS;
use crate::word::Plain;
use crate::zone::{NotTaken, Zone};

/// Largest number of blocks that are returned to an arena under one hold of its lock.
const DRAIN_CHUNK: u64 = 512;

/// If a CPU's lists had no surplus, the CPU idles this many times before it checks them again. A
/// check reads a line of each list. If another CPU requests the surplus, it is returned at once.
const PAUSE: u64 = 7;

/// Next step of a CPU that [polls](Buddy::poll).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The CPU continues its work after a timer tick.
    Tick,
    /// The CPU halts until the next interrupt.
    Idle,
}

impl<M: Machine + PhysicalBytes> Buddy<M> {
    /// Serves requests of other CPUs. Before this CPU idles, it returns all blocks if its node is
    /// short of memory, else a part of those that its lists did not need since the last time.
    /// Called in task context, on return to user mode after an interrupt and before idling.
    pub fn poll(&self, moment: Moment) {
        let pinned = self.machine.pin();
        let pcp = self.pcp(pinned.cpu());
        let asked = pcp.drain_requested();
        let zone = self.zone(pcp.node());
        if moment == Moment::Tick && !asked {
            pcp.set_sparse(zone.sparse());
            return;
        }
        if asked || zone.free() < zone.marks().high {
            self.drain_pcp(&pinned, pcp);
        } else if pcp.refills() > 0 {
            pcp.set_pause(0);
        } else if pcp.pause() > 0 {
            pcp.set_pause(pcp.pause() - 1);
        } else {
            // This code runs at each sleep of a program that waits for a device.
            let mut changed = pcp.shrink_all();
            for list in 0..LISTS {
                let surplus = pcp.len(list).saturating_sub(self.shapes.shape(list).batch);
                if surplus > 1 {
                    self.drain_list(&pinned, pcp, list, surplus / 2);
                    changed += 1;
                }
            }
            pcp.set_pause(if changed > 0 { 0 } else { PAUSE });
        }
    }
    /// Returns all blocks of this CPU's lists.
    pub fn drain_local(&self) {
        let pinned = self.machine.pin();
        let cpu = pinned.cpu();
        self.drain_pcp(&pinned, self.pcp(cpu));
    }
    /// Asks every CPU to return the blocks of its lists when it next polls or runs out.
    pub fn request_drain(&self) {
        (0..self.cpus).for_each(|cpu| self.pcp(CpuId(cpu as u16)).request_drain());
    }
    /// Returns `count` of a list's blocks, or all, to their pageblocks. The result is the number of
    /// blocks from other CPUs' pageblocks.
    pub(crate) fn drain_list(&self, pinned: &Pinned<M>, pcp: &Pcp, list: usize, mut count: u64) -> u64 {
        let shape = self.shapes.shape(list);
        let zone = self.zone(pcp.node());
        let mut others = 0;
        while count > 0 && pcp.len(list) > 0 {
            let leavers = pcp.leavers(list, count.min(DRAIN_CHUNK));
            others += self.put_all(pinned, zone, leavers.places, |_| shape.order);
            pcp.forget(list, &leavers);
            count -= leavers.places.len() as u64;
        }
        others
    }
    pub(crate) fn drain_pcp(&self, pinned: &Pinned<M>, pcp: &Pcp) {
        for list in 0..LISTS {
            self.drain_list(pinned, pcp, list, u64::MAX);
        }
        pcp.shrink_all();
        self.send_home(pinned, pcp);
    }
    /// Returns all waiting blocks to their pageblocks.
    pub(crate) fn send_home(&self, pinned: &Pinned<M>, pcp: &Pcp) {
        let waiting = pcp.homeward();
        let order_of = |entry: &AtomicU64| homeward(entry).1.order().log2();
        let alike = |entry: &AtomicU64| (homeward(entry).1.node(), order_of(entry) == PAGEBLOCK_ORDER);
        for blocks in waiting.chunk_by(|a, b| alike(a) == alike(b)) {
            let (node, _) = alike(&blocks[0]);
            self.put_all(pinned, self.zone(node), blocks, order_of);
        }
        if !waiting.is_empty() {
            pcp.set_sparse(self.zone(pcp.node()).sparse());
        }
        pcp.clear_homeward();
    }
    /// Returns blocks to their pageblocks, arena by arena: each arena's lock is held once for all
    /// its blocks. Either all blocks are whole pageblocks or none is. Reorders the places. Returns
    /// the number of blocks that were not of this CPU's arena.
    fn put_all(
        &self,
        pinned: &Pinned<M>,
        zone: &Zone,
        places: &[AtomicU64],
        order_of: impl Fn(&AtomicU64) -> u32,
    ) -> u64 {
        let may_be_plain = !zone.is_balanced();
        let mine = self.arena(pinned, zone).id;
        let (mut rest, mut others) = (places, 0);
        while let Some(first) = rest.first() {
            let arena = zone.arena_of(BlockId::of(homeward(first).0));
            let held = zone.lock_arena(arena, pinned, self.machine);
            let sets = (order_of(first) == PAGEBLOCK_ORDER).then(|| zone.lock_inside(&held));
            let (plain, blocks) = (BlockState::plain_of(held.id), self.blocks);
            let (mut freed, mut left, mut refused) = (0, 0, None);
            for place in rest {
                let ((block, _), order) = (homeward(place), order_of(place));
                let put =
                    if may_be_plain && order == 0 { blocks.put_plain(block, plain) } else { PutPlain::No };
                if let PutPlain::Moves { from, to } = put {
                    held.update(BlockId::of(block), from, to);
                }
                if !matches!(put, PutPlain::No) {
                    freed += 1;
                    continue;
                }
                let put = match &sets {
                    Some(sets) => zone.put_whole(&held, sets, BlockId::of(block)),
                    None => zone.put(&held, block, order),
                };
                match put {
                    Ok(()) => {}
                    Err(NotTaken::Elsewhere) => {
                        // It stays with the others that belong to another arena.
                        rest[left].set(place.get());
                        left += 1;
                    }
                    Err(NotTaken::Misuse) => refused = Some(block),
                }
            }
            held.gain(freed);
            drop((sets, held));
            if let Some(block) = refused {
                self.report(Misuse::FreedTwice(block));
            }
            if arena.id != mine {
                others += (rest.len() - left) as u64;
            }
            rest = &rest[..left];
        }
        others
    }
    /// Returns a block of any order to its pageblock; a larger one pageblock by pageblock.
    pub(crate) fn give_back_one(&self, pinned: &Pinned<M>, node: NodeId, block: Pfn, order: Order) {
        let part = order.log2().min(PAGEBLOCK_ORDER);
        for start in (0..order.frames()).step_by(1 << part) {
            self.put_all(pinned, self.zone(node), &[AtomicU64::new(block.0 + start)], |_| part);
        }
    }
}
