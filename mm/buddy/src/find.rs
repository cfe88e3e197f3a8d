//! Finds a block that no list has: in a node's zone, by the request's policy. Also refills the list
//! that serves such requests.
//!
//! Random bits are drawn before any lock. [`zone`](crate::zone) describes the steps under an
//! arena's lock, and their order.

use core::sync::atomic::AtomicU64;

use freehold_frame::{NodePolicy, NodeSet, OutOfMemory, Owner, Pressure, Request, Side, Tag};
use freehold_machine::{
    CpuId, Machine, NodeId, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, PfnRange, PhysicalBytes, Pinned,
};

use crate::Buddy;
use crate::arena::{Arena, HeldArena};
use crate::block::BlockId;
use crate::buddy::NONE;
use crate::numa::{Listed, Passed};
use crate::output::{Draw, OutputSlice};
use crate::rng::Rng;
use crate::sides::Moving;
use crate::take::{Effort, TakeRequest};
use crate::zone::Zone;

/// Below this many frames a zone shares split blocks between CPUs and owners before it opens new
/// ones: 128 MiB.
const FRUGAL: u64 = 64 << PAGEBLOCK_ORDER;
/// A zone with more free frames than this many times the low watermark is not short of memory for
/// any request.
const NEAR: u64 = 16;
/// Number of an owner's pageblocks with free frames that a CPU's arena keeps when others have none:
/// one from which it takes, and the next.
const KEPT: u64 = 2;
/// Largest number of frames that are adopted at once.
const ADOPTED: u64 = PAGEBLOCK_FRAMES;

/// Next step if neither a CPU's own arena nor memory available without waiting has a block.
enum NextAttempt {
    /// A block was found.
    Done,
    /// Pageblocks have to enter or leave the direct map.
    Move(Moving),
    /// Other CPUs are moving pageblocks, which will be available in a moment.
    Wait,
    /// Only other arenas and other owners have free frames.
    Scrape,
    /// There is no block.
    Fail,
}

/// Search for a block in the zones.
struct Search {
    request: Request,
    /// The list that serves it, if one does.
    list: Option<usize>,
    /// The node to begin with.
    first: u8,
    allowed: NodeSet,
}

/// A search for the requested blocks in one zone, and the number of frames that must stay free
/// there.
pub(crate) struct Trip<'a, M: Machine + PhysicalBytes> {
    pub(crate) pinned: &'a Pinned<M>,
    pub(crate) zone: &'a Zone,
    floor: u64,
    pub(crate) wanted: TakeRequest,
}

impl<M: Machine + PhysicalBytes> Trip<'_, M> {
    /// Reserves up to `want` of the requested blocks; returns the number.
    pub(crate) fn reserve(&self, want: u64) -> Option<u64> {
        self.zone.reserve(want, self.wanted.order, self.floor)
    }
}

impl<M: Machine + PhysicalBytes> Buddy<M> {
    /// Takes a block from the zones by the request's policy. Also refills the list that serves such
    /// requests, if there is one.
    pub(crate) fn find(&self, pinned: &Pinned<M>, request: Request) -> Result<(Pfn, NodeId), OutOfMemory> {
        let cpu = pinned.cpu();
        let pcp = self.pcp(cpu);
        let is_home = match request.policy {
            NodePolicy::Local => true,
            NodePolicy::Preferred(node) => node == pcp.node(),
            _ => false,
        };
        let tag = Tag::new(request.owner, request.order, pcp.node());
        let list = if is_home { self.shapes.serving(tag) } else { None };
        if let Some(block) = list.and_then(|list| pcp.pop(list)) {
            return Ok((block, pcp.node()));
        }
        if matches!(request.owner, Owner::Free | Owner::Reserved) {
            return Err(OutOfMemory);
        }
        if pcp.drain_requested() {
            self.drain_pcp(pinned, pcp);
        }
        // Blocks that wait to be returned may be the requested ones, and they still occupy their
        // near-cache bins.
        self.send_home(pinned, pcp);
        // Drawn before any lock: the generator may have a lock of its own. A list's refill draws a
        // new key; a single block is drawn with the last search's seed.
        let mut rng = match list {
            Some(_) => Rng::new(self.machine.random_u64()),
            None => Rng::new(pcp.key()),
        };
        pcp.set_key(rng.next());
        if let Some(list) = list {
            pcp.key_list(list, &mut rng);
            pcp.set_room(list, self.shapes.shape(list).room);
        }
        let (first, allowed) = self.preference(request.policy, pcp.node().0, cpu);
        let search = Search { request, list, first, allowed };
        for last_try in [false, true] {
            for node in self.nearest[usize::from(first)].into_iter().take_while(|node| *node != NONE) {
                let node = NodeId(node);
                if allowed.contains(node)
                    && let Some(block) = self.find_on(node, pinned, &search, &mut rng)
                {
                    return Ok((block, node));
                }
            }
            if !last_try {
                // Blocks in this CPU's other lists may complete a whole block, or serve the
                // request.
                self.drain_pcp(pinned, pcp);
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

    /// Takes a block from a node's zone, if there is one. If that is the CPU's own node, the list
    /// is filled up too.
    fn find_on(&self, node: NodeId, pinned: &Pinned<M>, search: &Search, rng: &mut Rng) -> Option<Pfn> {
        let &Search { request, list, first, allowed } = search;
        let (cpu, zone) = (pinned.cpu(), self.zone(node));
        let pcp = self.pcp(cpu);
        let (home, order) = (pcp.node(), request.order.log2());
        let refill = list.filter(|_| node == home);
        let single = [AtomicU64::new(0)];
        let places = refill.map_or(&single[..], |list| {
            pcp.room(list, pcp.grow(list, self.shapes.shape(list).batch).max(zone.group() >> order))
        });
        let mut draw = Draw { rng: self.shuffled.then_some(rng), out: OutputSlice::new(places) };
        self.take_from(pinned, zone, &request, &mut draw);
        let output = draw.out;
        if output.len() == 0 || self.is_short(pinned, zone) {
            self.tell_shortage(node);
        }
        if output.len() == 0 {
            return None;
        }
        let block = match (refill, list) {
            (Some(list), _) => {
                if pcp.is_random(list) || (order == 0 && zone.has_groups()) {
                    // Reads the records ahead in sequence, because later hits will access them at
                    // random.
                    self.table.warm(output.since(0));
                } else {
                    // In order of addresses: the list hands out its last entry first.
                    output.reverse();
                }
                pcp.fill(list, output.len());
                pcp.set_sparse(zone.sparse());
                pcp.pop(list)
            }
            (None, Some(list)) => {
                pcp.count_taken(list);
                output.since(0).next()
            }
            (None, None) => {
                pcp.count_passed_out(request.owner, request.order.frames());
                output.since(0).next()
            }
        };
        if refill.is_none() {
            let listed = if list.is_some() { Listed::Yes } else { Listed::No };
            self.count_passed(&Passed { cpu, home, wanted: (first, allowed), got: node, listed }, request);
        }
        Some(block.expect("at least one block was taken"))
    }

    /// Whether less than the low watermark is left for programs, or too little for the kernel. The
    /// check has to count the kernel's pageblocks, so it is skipped while much memory is free.
    fn is_short(&self, pinned: &Pinned<M>, zone: &Zone) -> bool {
        let low = zone.marks().low;
        zone.free() < NEAR * low
            && (self.free_for_programs(pinned, zone) < low || zone.leaves_kernel_nothing())
    }
    /// Free frames of a zone that programs can get: all except those in the kernel's split
    /// pageblocks.
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

    /// Returns the node to begin with, and the nodes that may be used at all.
    fn preference(&self, policy: NodePolicy, home: u8, cpu: CpuId) -> (u8, NodeSet) {
        let nodes = self.topology.node_count() as u8;
        let known = |node: NodeId| if node.0 < nodes { node.0 } else { home };
        match policy {
            NodePolicy::Local => (known(self.machine.node_of_cpu(cpu)), NodeSet::ALL),
            NodePolicy::Preferred(node) => (known(node), NodeSet::ALL),
            NodePolicy::Bind(set) => (known(self.machine.node_of_cpu(cpu)), set),
            NodePolicy::BindNear(set, node) => (known(node), set),
            NodePolicy::Interleave(set, n) => (set.nth(n).map_or(home, known), NodeSet::ALL),
        }
    }

    /// Takes blocks out of `zone` until the output has all requested blocks, or at least one.
    fn take_from(&self, pinned: &Pinned<M>, zone: &Zone, request: &Request, draw: &mut Draw<'_, '_>) {
        let &Request { owner, pressure, .. } = request;
        let (side, order) = (owner.side(), request.order.log2());
        let floor = match pressure {
            // Allocation of user memory stops first, so that memory is left for system calls to
            // complete.
            Pressure::Normal if owner.is_user() => zone.marks().min,
            Pressure::Normal => zone.marks().min / 2,
            Pressure::Reserve => 0,
        };
        let wanted = TakeRequest { owner, order, want: draw.out.room(), effort: Effort::Near, pressure };
        let trip = Trip { pinned, zone, floor, wanted };
        if order > PAGEBLOCK_ORDER {
            return self.gather(&trip, &mut draw.out);
        }
        let arena = self.arena(pinned, zone);
        loop {
            let held = zone.lock_arena(arena, pinned, self.machine);
            let Some(want) = trip.reserve(draw.out.room()) else { return };
            let (next, taken) = self.take_here(zone, &held, TakeRequest { want, ..wanted }, draw);
            held.gain((want - taken) << order);
            drop(held);
            match next {
                NextAttempt::Done | NextAttempt::Fail => return,
                NextAttempt::Scrape => {
                    let wanted = TakeRequest { want, effort: Effort::Far, ..wanted };
                    return self.scrape(&Trip { wanted, ..trip }, arena, draw);
                }
                NextAttempt::Wait => self.machine.relax(),
                NextAttempt::Move(mut moving) => {
                    self.change_side(moving.blocks(), side);
                    zone.finish_move(&zone.lock(pinned, self.machine), side, moving.blocks());
                }
            }
        }
    }
    /// Takes available blocks without releasing the arena's lock; returns their number. The frames
    /// of all requested blocks have been reserved.
    fn take_here(
        &self,
        zone: &Zone,
        held: &HeldArena<'_, M>,
        wanted: TakeRequest,
        draw: &mut Draw<'_, '_>,
    ) -> (NextAttempt, u64) {
        let TakeRequest { owner, order, want, .. } = wanted;
        let side = owner.side();
        let may_open = zone.may_open(&wanted);
        if order < PAGEBLOCK_ORDER {
            // Frames are taken from an opened block before another CPU sees it: outside the lock no
            // split block has all frames free.
            loop {
                let mut taken = zone.take(held, wanted, draw);
                if taken == 0 && self.adopt(zone, held, wanted) {
                    continue;
                }
                if taken == 0 && zone.managed() < FRUGAL {
                    taken = Self::take_stolen(zone, held, TakeRequest { want: 1, ..wanted }, draw);
                }
                if taken > 0 {
                    return (NextAttempt::Done, taken);
                }
                if !may_open || zone.open(held, owner, draw.rng.as_deref_mut()).is_none() {
                    break;
                }
            }
        } else if may_open {
            let taken = zone.take_whole(held, side, want, draw);
            if taken > 0 {
                return (NextAttempt::Done, taken);
            }
        }
        let from = match side {
            Side::Kernel => Side::User,
            Side::User => Side::Kernel,
        };
        let sets = zone.lock_inside(held);
        let rng = draw.rng.as_deref_mut();
        let mut moving = if may_open { zone.begin_move(&sets, from, rng) } else { Moving::NONE };
        let next = match () {
            () if !moving.blocks().is_empty() => NextAttempt::Move(moving),
            () if zone.moving(&sets) > 0 => NextAttempt::Wait,
            () if order < PAGEBLOCK_ORDER => NextAttempt::Scrape,
            () => NextAttempt::Fail,
        };
        (next, 0)
    }
    /// Adopts pageblocks of the wanted owner from another arena that can spare some; returns
    /// whether any were found.
    fn adopt(&self, zone: &Zone, held: &HeldArena<'_, M>, wanted: TakeRequest) -> bool {
        let keep = if zone.managed() < FRUGAL { 0 } else { KEPT };
        let others = (1..zone.arenas().len()).map(|step| zone.arena(usize::from(held.id) + step));
        let frames = (wanted.want << wanted.order).min(ADOPTED);
        others.filter(|other| other.listed(wanted.owner) > keep).any(|other| {
            let giver = held.try_other(other);
            giver.is_some_and(|giver| held.adopt_from(&giver, wanted, frames, keep))
        })
    }
    /// Takes frames from pageblocks of another owner on the same side.
    fn take_stolen(
        zone: &Zone,
        held: &HeldArena<'_, M>,
        wanted: TakeRequest,
        draw: &mut Draw<'_, '_>,
    ) -> u64 {
        // Takes the lowest frames here; random choice is only used in the owner's own pageblocks.
        let rng = draw.rng.take();
        // A candidate is not certain to have a run. Each search that finds none marks the block, so
        // this ends.
        while let Some(owner) = zone.steal(held, wanted) {
            let got = zone.take(held, TakeRequest { owner, effort: Effort::Far, ..wanted }, draw);
            if got > 0 {
                draw.rng = rng;
                return got;
            }
        }
        draw.rng = rng;
        0
    }
    /// No pageblock is free: takes free frames of any arena, beginning with this CPU's.
    fn scrape(&self, trip: &Trip<'_, M>, first: Arena, draw: &mut Draw<'_, '_>) {
        let &Trip { pinned, zone, wanted, .. } = trip;
        for step in 0..zone.arenas().len() {
            let arena = zone.arena(usize::from(first.id) + step);
            let held = zone.lock_arena(arena, pinned, self.machine);
            let Some(want) = trip.reserve(wanted.want) else { continue };
            let mut taken = zone.take(&held, TakeRequest { want: 1, ..wanted }, draw);
            if taken == 0 {
                taken = Self::take_stolen(zone, &held, TakeRequest { want, ..wanted }, draw);
            }
            held.gain((want - taken) << wanted.order);
            if taken > 0 {
                return;
            }
        }
    }
    /// Moves pageblocks into or out of the direct map, adjacent ones in one step. Programs' bytes
    /// are wiped before the pageblock enters the kernel's map. No lock is held, and interrupts are
    /// on.
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
