//! A block that no list has: by the request's policy from a node's zone, with a refill of the list that serves it.
//!
//! Random bits are drawn before any lock. What happens under an arena's lock, and in which order, is said in [`zone`](crate::zone).

use core::sync::atomic::AtomicU64;

use freehold_frame::{NodePolicy, NodeSet, OutOfMemory, Owner, Pressure, Request, Side, Tag};
use freehold_machine::{CpuId, Machine, NodeId, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, PfnRange, Pinned};

use crate::Buddy;
use crate::arena::{Arena, HeldArena};
use crate::basket::Basket;
use crate::block::BlockId;
use crate::buddy::NONE;
use crate::numa::{Listed, Passed};
use crate::rng::Rng;
use crate::take::{Reach, Wish};
use crate::zone::{MOVE_BATCH, Zone};

/// Below this many frames a zone shares split blocks between CPUs and classes before it opens new ones: 128 MiB.
const FRUGAL: u64 = 64 << PAGEBLOCK_ORDER;
/// A zone with more free frames than this many times the low watermark is not short, whoever can use them.
const NEAR: u64 = 16;
/// Pageblocks of a class with something free that a CPU's arena keeps when others have none: one that it takes from, and the next.
const KEPT: u64 = 2;
/// Most frames that are adopted at once.
const ADOPTED: u64 = PAGEBLOCK_FRAMES;

/// What there is to do when a CPU's own arena, and what it could get without waiting, had no block.
enum Next {
    /// There was one.
    Done,
    /// So many pageblocks are to change sides.
    Move(usize),
    /// Others move pageblocks, which will be there in a moment.
    Wait,
    /// Only other arenas and other classes have free frames.
    Scrape,
    /// There is none.
    Fail,
}

impl<M: Machine> Buddy<M> {
    /// A block from the zones, by the request's policy; with a refill of the list that serves it, if there is one.
    pub(crate) fn find(&self, pinned: &Pinned<M>, request: Request) -> Result<(Pfn, NodeId), OutOfMemory> {
        let cpu = pinned.cpu();
        let lane = self.lane(cpu);
        let list = match request.policy {
            NodePolicy::Local => self.shapes.serving(Tag::new(request.owner, request.order, lane.node())),
            _ => None,
        };
        if let Some(block) = list.and_then(|list| lane.pop(list)) {
            return Ok((block, lane.node()));
        }
        if matches!(request.owner, Owner::Free | Owner::Reserved) {
            return Err(OutOfMemory);
        }
        if lane.drain_requested() {
            self.drain_lane(pinned, lane);
        }
        // What waits to go home may be just what is asked for, and still occupies its near-cache bin.
        self.send_home(pinned, lane);
        // Before any lock: the generator may have one of its own. A list's refill keys what follows; a single block is drawn with
        // what the last refill left.
        let mut rng = match list {
            Some(_) => Rng::new(self.machine.random_u64()),
            None => Rng::new(lane.key()),
        };
        lane.set_key(rng.next());
        if let Some(list) = list {
            lane.key_list(list, &mut rng);
            lane.set_room(list, self.shapes.shape(list).room);
        }
        let (home, order) = (lane.node().0, request.order.log2());
        let (first, allowed) = self.preference(request.policy, home, cpu);
        for last_try in [false, true] {
            for node in self.nearest[usize::from(first)].into_iter().take_while(|node| *node != NONE) {
                if !allowed.contains(NodeId(node)) {
                    continue;
                }
                let zone = self.zone(NodeId(node));
                let refill = list.filter(|_| node == home);
                let single = [AtomicU64::new(0)];
                let places = refill.map_or(&single[..], |list| {
                    lane.room(list, lane.grow(list, self.shapes.shape(list).batch).max(zone.group() >> order))
                });
                let mut basket = Basket::new(places);
                self.take_from(pinned, zone, request.owner, order, request.pressure, &mut rng, &mut basket);
                if basket.len() == 0 || self.is_short(pinned, zone) {
                    self.tell_shortage(NodeId(node));
                }
                if basket.len() == 0 {
                    continue;
                }
                let block = match (refill, list) {
                    (Some(list), _) => {
                        if lane.is_random(list) || (order == 0 && zone.has_groups()) {
                            // In a row, where hits will come at random: so the records are read ahead.
                            self.table.warm(basket.since(0));
                        } else {
                            // By address: the last one comes out first.
                            basket.reverse();
                        }
                        lane.fill(list, basket.len());
                        lane.set_sparse(Some(zone.sparse()));
                        lane.pop(list)
                    }
                    (None, Some(list)) => {
                        lane.count_taken(list);
                        basket.since(0).next()
                    }
                    (None, None) => {
                        lane.count_passed_out(request.owner, request.order.frames());
                        basket.since(0).next()
                    }
                };
                if refill.is_none() {
                    let listed = if list.is_some() { Listed::Yes } else { Listed::No };
                    let (home, wanted, got) = (lane.node(), (first, allowed), NodeId(node));
                    self.count_passed(&Passed { cpu, home, wanted, got, listed }, request);
                }
                return Ok((block.expect("at least one block was taken"), NodeId(node)));
            }
            if !last_try {
                // What lies in this CPU's other lists may make a whole block, or be what is asked for.
                self.drain_lane(pinned, lane);
                self.request_drain();
                let zones = self.zones.iter().flatten().filter(|zone| allowed.contains(zone.node));
                zones.for_each(|zone| zone.settle(pinned, self.machine));
            }
        }
        if let Some(sink) = self.options.on_denial {
            sink(&request);
        }
        Err(OutOfMemory)
    }

    /// Whether less is left for programs than the low watermark, or too little for the kernel. That takes a look at the kernel's pageblocks, so not
    /// while there is much.
    fn is_short(&self, pinned: &Pinned<M>, zone: &Zone) -> bool {
        let low = zone.marks().low;
        zone.free() < NEAR * low
            && (self.free_for_programs(pinned, zone) < low || zone.leaves_kernel_nothing())
    }
    /// Free frames of a zone that programs can get: those in the kernel's split pageblocks are none.
    pub(crate) fn free_for_programs(&self, pinned: &Pinned<M>, zone: &Zone) -> u64 {
        let of_kernel = |arena| zone.lock_arena(arena, pinned, self.machine).free_of_kernel();
        let of_kernel = zone.arenas().map(of_kernel).sum();
        zone.note_free_of_kernel(of_kernel);
        zone.free().saturating_sub(of_kernel)
    }

    #[cold]
    fn tell_shortage(&self, node: NodeId) {
        self.request_drain();
        if let Some(sink) = self.options.on_pressure {
            sink(node);
        }
    }

    /// The node to begin with, and those that may be used at all.
    fn preference(&self, policy: NodePolicy, home: u8, cpu: CpuId) -> (u8, NodeSet) {
        let nodes = self.topology.node_count() as u8;
        let known = |node: NodeId| if node.0 < nodes { node.0 } else { home };
        match policy {
            NodePolicy::Local => (known(self.machine.node_of_cpu(cpu)), NodeSet::ALL),
            NodePolicy::Preferred(node) => (known(node), NodeSet::ALL),
            NodePolicy::Bind(set) => (known(self.machine.node_of_cpu(cpu)), set),
            NodePolicy::Interleave(set, n) => (set.nth(n).map_or(home, known), NodeSet::ALL),
        }
    }

    /// Take blocks out of `zone` until `out` has all it wants, or at least one.
    #[allow(clippy::too_many_arguments, reason = "one caller: the slow path")]
    fn take_from(
        &self,
        pinned: &Pinned<M>,
        zone: &Zone,
        class: Owner,
        order: u32,
        pressure: Pressure,
        rng: &mut Rng,
        out: &mut Basket<'_>,
    ) {
        let floor = match pressure {
            // User memory stops first: what a system call needs to end well is still there.
            Pressure::Normal if class.side() == Side::User => zone.marks().min,
            Pressure::Normal => zone.marks().min / 2,
            Pressure::Reserve => 0,
        };
        let side = class.side();
        let mut rng = self.shuffled.then_some(rng);
        if order > PAGEBLOCK_ORDER {
            return self.gather(pinned, zone, order, side, floor, out);
        }
        let arena = self.arena(pinned, zone);
        loop {
            let mut moved = [BlockId(0); MOVE_BATCH];
            let held = zone.lock_arena(arena, pinned, self.machine);
            let Some(want) = zone.reserve(out.room(), order, floor) else { return };
            let wish = Wish { class, order, want, reach: Reach::Near, pressure };
            let (next, taken) = self.take_here(zone, &held, wish, rng.as_deref_mut(), out, &mut moved);
            held.gain((want - taken) << order);
            drop(held);
            match next {
                Next::Done | Next::Fail => return,
                Next::Scrape => {
                    return self.scrape(
                        pinned,
                        zone,
                        arena,
                        Wish { reach: Reach::Far, ..wish },
                        floor,
                        rng,
                        out,
                    );
                }
                Next::Wait => self.machine.relax(),
                Next::Move(count) => {
                    let to = side;
                    self.change_side(&mut moved[..count], to);
                    zone.finish_move(&zone.lock(pinned, self.machine), to, &moved[..count]);
                }
            }
        }
    }
    /// Take what there is without letting go of the arena's lock; how many blocks that were. Their frames, and those of all that are wanted, are reserved.
    fn take_here(
        &self,
        zone: &Zone,
        held: &HeldArena<'_, M>,
        wish: Wish,
        mut rng: Option<&mut Rng>,
        out: &mut Basket<'_>,
        moved: &mut [BlockId; MOVE_BATCH],
    ) -> (Next, u64) {
        let Wish { class, order, want, .. } = wish;
        let side = class.side();
        let may_open = zone.may_open(&wish);
        if order < PAGEBLOCK_ORDER {
            // A block that is opened is taken from before anyone else sees it: split blocks with nothing in use do not exist outside of the lock.
            loop {
                let mut taken = zone.take(held, wish, rng.as_deref_mut(), out);
                if taken == 0 && self.adopt(zone, held, wish) {
                    continue;
                }
                if taken == 0 && zone.managed() < FRUGAL {
                    taken = Self::take_stolen(zone, held, Wish { want: 1, ..wish }, out);
                }
                if taken > 0 {
                    return (Next::Done, taken);
                }
                if !may_open || zone.open(held, class, rng.as_deref_mut()).is_none() {
                    break;
                }
            }
        } else if may_open {
            let taken = zone.take_whole(held, side, want, rng.as_deref_mut(), out);
            if taken > 0 {
                return (Next::Done, taken);
            }
        }
        let from = match side {
            Side::Kernel => Side::User,
            Side::User => Side::Kernel,
        };
        let sets = zone.lock_inside(held);
        let count = if may_open { zone.begin_move(&sets, from, rng, moved) } else { 0 };
        let next = match () {
            () if count > 0 => Next::Move(count),
            () if zone.moving(&sets) > 0 => Next::Wait,
            () if order < PAGEBLOCK_ORDER => Next::Scrape,
            () => Next::Fail,
        };
        (next, 0)
    }
    /// Adopt pageblocks of the wished class from another arena that can spare some. Whether there was one.
    fn adopt(&self, zone: &Zone, held: &HeldArena<'_, M>, wish: Wish) -> bool {
        let keep = if zone.managed() < FRUGAL { 0 } else { KEPT };
        let others = (1..zone.arenas().len()).map(|step| zone.arena(usize::from(held.id) + step));
        let frames = (wish.want << wish.order).min(ADOPTED);
        others.filter(|other| other.listed(wish.class) > keep).any(|other| {
            let giver = held.try_other(other);
            giver.is_some_and(|giver| held.adopt_from(&giver, wish.class, wish.order, frames, keep))
        })
    }
    /// Take from another class of the same side.
    fn take_stolen(zone: &Zone, held: &HeldArena<'_, M>, wish: Wish, out: &mut Basket<'_>) -> u64 {
        // A candidate only may have a run: each look that finds none marks its block, so this ends.
        while let Some(class) = zone.steal(held, wish.class, wish.order) {
            let got = zone.take(held, Wish { class, reach: Reach::Far, ..wish }, None, out);
            if got > 0 {
                return got;
            }
        }
        0
    }
    /// No pageblock is free: whatever any arena has, this CPU's first.
    #[allow(clippy::too_many_arguments, reason = "one caller: the slow path")]
    fn scrape(
        &self,
        pinned: &Pinned<M>,
        zone: &Zone,
        first: Arena,
        wish: Wish,
        floor: u64,
        mut rng: Option<&mut Rng>,
        out: &mut Basket<'_>,
    ) {
        for step in 0..zone.arenas().len() {
            let arena = zone.arena(usize::from(first.id) + step);
            let held = zone.lock_arena(arena, pinned, self.machine);
            let Some(want) = zone.reserve(wish.want, wish.order, floor) else { continue };
            let mut taken = zone.take(&held, Wish { want: 1, ..wish }, rng.as_deref_mut(), out);
            if taken == 0 {
                taken = Self::take_stolen(zone, &held, Wish { want, ..wish }, out);
            }
            held.gain((want - taken) << wish.order);
            if taken > 0 {
                return;
            }
        }
    }
    /// Take pageblocks into or out of the direct map, neighbours in one step. Bytes of programs are wiped before the
    /// kernel's map shows them. No lock is held, and interrupts are on.
    pub(crate) fn change_side(&self, moved: &mut [BlockId], to: Side) {
        moved.sort_unstable();
        for run in moved.chunk_by(|a, b| a.0 + 1 == b.0) {
            let range = PfnRange::new(run[0].start(), BlockId(run[0].0 + run.len() as u64).start());
            match to {
                Side::Kernel => {
                    run.iter().for_each(|&block| self.wipe_residue(block));
                    self.machine.enter(range);
                }
                Side::User => self.machine.leave(range),
            }
        }
    }
}
