//! Blocks on their way from the per-CPU lists back to their pageblocks.
//!
//! Only a CPU touches its lists, so only it can drain them: others ask ([`Buddy::request_drain`]), and it answers when it runs out or polls.

use freehold_frame::Side;
use freehold_machine::{CpuId, Machine, Pfn, Pinned};

use crate::Buddy;
use crate::lane::{Lane, homeward};
use crate::misuse::Misuse;
use crate::shape::LISTS;
use crate::word::{Held, Plain};
use crate::zone::{NotTaken, Zone};

/// Most blocks that go back to a zone under one hold of its lock.
const DRAIN_CHUNK: u64 = 512;

/// What a CPU is about to do when it [polls](Buddy::poll).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Go on with work after a timer tick.
    Tick,
    /// Halt until something happens.
    Idle,
}

impl<M: Machine> Buddy<M> {
    /// Serve what other CPUs asked of this one; and before it idles, give back all if its node is short of memory, else a part of what
    /// its lists have not needed since. In task context, on the way back to user mode after an interrupt and on the way to idle.
    pub fn poll(&self, moment: Moment) {
        let pinned = self.machine.pin();
        let lane = self.lane(pinned.cpu());
        let asked = lane.drain_requested();
        let zone = self.zone(lane.node());
        if moment == Moment::Tick && !asked {
            lane.set_sparse(zone.sparse());
            return;
        }
        if asked || zone.free() < zone.marks().high {
            self.drain_lane(&pinned, lane);
        } else if lane.refills() == 0 {
            for list in 0..LISTS {
                let surplus = lane.len(list).saturating_sub(self.shapes.shape(list).batch);
                self.drain_list(&pinned, lane, list, surplus / 2);
                lane.shrink(list);
            }
        }
    }
    /// Give back all that this CPU's lists hold.
    pub fn drain_local(&self) {
        let pinned = self.machine.pin();
        let cpu = pinned.cpu();
        self.drain_lane(&pinned, self.lane(cpu));
    }
    /// Ask every CPU to give back what its lists hold, when it next polls or runs out.
    pub fn request_drain(&self) {
        (0..self.cpus).for_each(|cpu| self.lane(CpuId(cpu as u16)).request_drain());
    }
    pub(crate) fn drain_list(&self, pinned: &Pinned<M>, lane: Lane<'_>, list: usize, mut count: u64) {
        let shape = self.shapes.shape(list);
        let zone = self.zone(lane.node());
        while count > 0 && lane.len(list) > 0 {
            let leavers = lane.leavers(list, count.min(DRAIN_CHUNK));
            let held = zone.lock(pinned, self.machine);
            let blocks = leavers.places.iter().map(|place| Pfn(place.get()));
            let refused = Self::put_all(zone, &held, blocks, shape.order, shape.class.side());
            drop(held);
            lane.forget(list, &leavers);
            self.report_refused(refused);
            count -= leavers.places.len() as u64;
        }
    }
    pub(crate) fn drain_lane(&self, pinned: &Pinned<M>, lane: Lane<'_>) {
        for list in 0..LISTS {
            self.drain_list(pinned, lane, list, u64::MAX);
            lane.shrink(list);
        }
        self.send_home(pinned, lane);
    }
    /// Put all that waits to go home where it belongs.
    pub(crate) fn send_home(&self, pinned: &Pinned<M>, lane: Lane<'_>) {
        let mut open: Option<(&Zone, Held<'_>)> = None;
        let mut refused = None;
        for alike in lane.homeward().chunk_by(|a, b| homeward(a).1.is_like(homeward(b).1)) {
            let (_, tag) = homeward(&alike[0]);
            if open.as_ref().is_none_or(|(zone, _)| zone.node != tag.node()) {
                // One lock at a time: let go of the last node's before this one's is taken.
                drop(open.take());
                let zone = self.zone(tag.node());
                open = Some((zone, zone.lock(pinned, self.machine)));
            }
            let (zone, held) = open.as_ref().expect("just opened");
            let blocks = alike.iter().map(|entry| homeward(entry).0);
            refused = Self::put_all(zone, held, blocks, tag.order().log2(), tag.owner().side()).or(refused);
        }
        if let Some((zone, held)) = open {
            drop(held);
            lane.set_sparse(zone.sparse());
        }
        lane.clear_homeward();
        self.report_refused(refused);
    }
    /// Put blocks of one order back into their zone; one that was not taken, if there is one.
    fn put_all(
        zone: &Zone,
        held: &Held<'_>,
        blocks: impl Iterator<Item = Pfn>,
        order: u32,
        side: Side,
    ) -> Option<Pfn> {
        if order == 0 {
            return zone.put_singles(held, blocks);
        }
        blocks.fold(None, |refused, block| match Self::put(zone, held, block, order, side) {
            Ok(()) => refused,
            Err(NotTaken) => Some(block),
        })
    }
    fn report_refused(&self, refused: Option<Pfn>) {
        if let Some(block) = refused {
            self.report(Misuse::FreedTwice(block));
        }
    }
}
