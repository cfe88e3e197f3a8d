//! The allocator: requests in, blocks out, and back again.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{
    Content, FrameSource, FrameTable, Freed, NodePolicy, NodeSet, NotGiven, Order, OutOfMemory, Owner,
    Pressure, Request, Side, State, Tag,
};
use freehold_machine::topology::MAX_NODES;
use freehold_machine::{
    CpuId, MAX_CPUS, Machine, NodeId, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, PfnRange, Pinned, Topology,
};

use crate::basket::Basket;
use crate::block::{BlockId, Blocks};
use crate::lane::{HEAD, Lane};
use crate::misuse::Misuse;
use crate::numa::{Listed, Passed};
use crate::options::{Options, Wipe};
use crate::rng::Rng;
use crate::shape::Shapes;
use crate::take::{Reach, Wish};
use crate::word::{Held, Plain};
use crate::zone::{MOVE_BATCH, NotTaken, Zone};

/// Below this many frames a zone shares split blocks between classes before it opens new ones: 128 MiB.
const FRUGAL: u64 = 64 << PAGEBLOCK_ORDER;

/// The page allocator of a machine. Used through `&'static Buddy<M>`, which is a [`FrameSource`].
///
/// Task context only: the CPU may be pinned and interrupts are on; no lock is held that an interrupt handler takes,
/// since a pageblock that leaves the direct map is flushed on every CPU.
#[derive(Debug)]
pub struct Buddy<M: Machine> {
    pub(crate) machine: M,
    pub(crate) table: FrameTable,
    pub(crate) options: Options,
    pub(crate) shuffled: bool,
    pub(crate) bytes: Bytes,
    pub(crate) blocks: Blocks,
    pub(crate) zones: [Option<Zone>; MAX_NODES],
    /// For each node, the nodes with memory by distance from it; `NONE` after the last.
    pub(crate) nearest: [[u8; MAX_NODES]; MAX_NODES],
    /// The heads of the CPUs' lists; of CPUs that are not there, and where every block is [looked](Bytes::Looked) at, one that never hits.
    pub(crate) hits: [&'static [AtomicU64; HEAD]; MAX_CPUS],
    pub(crate) heads: &'static [[AtomicU64; HEAD]],
    pub(crate) stacks: &'static [AtomicU64],
    pub(crate) shapes: Shapes,
    pub(crate) cpus: usize,
    pub(crate) topology: &'static Topology,
    pub(crate) misuses: AtomicU64,
}

/// Whether the allocator has to do with the bytes of what it hands out and gets back (`page_alloc.check=fill`, `init_on_alloc`, `init_on_free`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bytes {
    Left,
    Looked,
}

/// No more nodes in a list of nodes.
pub(crate) const NONE: u8 = u8::MAX;

impl<M: Machine> Buddy<M> {
    /// A block as wished; its record says who owns it. [`Owner::Free`] and [`Owner::Reserved`] get nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`]; never waits for memory.
    #[inline(always)]
    pub fn allocate(&self, request: Request) -> Result<Pfn, OutOfMemory> {
        // Taken apart here, so that it never has to be in memory for a hit.
        let Request { owner, order, content, policy, pressure } = request;
        match policy {
            NodePolicy::Local => self.take_nearby(owner, order, content, pressure),
            _ => self.take_by_policy(request),
        }
    }
    #[inline]
    fn take_nearby(
        &self,
        owner: Owner,
        order: Order,
        content: Content,
        pressure: Pressure,
    ) -> Result<Pfn, OutOfMemory> {
        let pinned = self.machine.pin();
        let list = self.hits(pinned.cpu()).serving(owner, order);
        if let Some(block) = list.pop() {
            if self.table.get(block).is_some_and(|record| record.hand_out(list.tag).is_ok()) {
                drop(pinned);
                if content == Content::Zeroed {
                    self.zero(block, order);
                }
                return Ok(block);
            }
            self.report_owned(block);
        }
        drop(pinned);
        self.take_slowly(owner, order, content, pressure)
    }

    /// Take back a block. Anything that is not a block of the allocator's in this size is reported as [`Misuse`] and left alone.
    #[inline]
    pub fn release(&self, block: Pfn, order: Order) {
        let pinned = self.machine.pin();
        let lane = self.hits(pinned.cpu());
        let list = lane.guess(order);
        if let Some(record) = self.table.get(block)
            && record.is_freeable_as(list.tag)
            && lane.push_guessed(list, block, self.blocks.state_hint(block))
        {
            record.take_back(list.trace);
            return;
        }
        self.release_slowly(pinned, block, order);
    }

    /// Stamp a block with its new owner. `false` if somebody wrote into its record meanwhile.
    fn hand_out(&self, block: Pfn, tag: Tag) -> bool {
        if self.bytes == Bytes::Looked {
            self.verify(block, tag.order());
        }
        let stamped = self.table.get(block).is_some_and(|record| record.hand_out(tag).is_ok());
        if !stamped {
            self.report_owned(block);
        }
        stamped
    }
    #[cold]
    fn zero(&self, block: Pfn, order: Order) {
        if order == Order::FRAME {
            self.machine.zero(block);
        } else {
            self.machine.zero_run(block, order.frames());
        }
    }

    /// Not from a list.
    #[cold]
    #[inline(never)]
    fn take_slowly(
        &self,
        owner: Owner,
        order: Order,
        content: Content,
        pressure: Pressure,
    ) -> Result<Pfn, OutOfMemory> {
        self.take_by_policy(Request { owner, order, content, pressure, policy: NodePolicy::Local })
    }
    /// A free block has an owner: it is left to that owner.
    #[cold]
    #[inline(never)]
    fn report_owned(&self, block: Pfn) {
        self.report(Misuse::OwnedWhileFree { block, owner: self.table.state(block).owner() });
    }
    #[cold]
    #[inline(never)]
    fn take_by_policy(&self, request: Request) -> Result<Pfn, OutOfMemory> {
        let block = self.take_pinned(&self.machine.pin(), request)?;
        if request.content == Content::Zeroed || self.options.init_on_alloc == Wipe::Always {
            self.zero(block, request.order);
        }
        Ok(block)
    }
    fn take_pinned(&self, pinned: &Pinned<M>, request: Request) -> Result<Pfn, OutOfMemory> {
        loop {
            let (block, node) = self.find(pinned, request)?;
            if self.hand_out(block, Tag::new(request.owner, request.order, node)) {
                return Ok(block);
            }
        }
    }
    /// A block from the zones, by the request's policy; with a refill of the list that serves it, if there is one.
    fn find(&self, pinned: &Pinned<M>, request: Request) -> Result<(Pfn, NodeId), OutOfMemory> {
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
                if zone.free() < zone.marks().low {
                    self.tell_shortage(NodeId(node));
                }
                if basket.len() == 0 {
                    continue;
                }
                let block = match (refill, list) {
                    (Some(list), _) => {
                        if lane.is_random(list) || (order == 0 && zone.has_groups()) {
                            // In a row, where hits will come at random: so the records are read ahead.
                            basket.since(0).for_each(|block| self.table.warm(block));
                        } else {
                            // By address: the last one comes out first.
                            basket.reverse();
                        }
                        lane.fill(list, basket.len());
                        lane.set_sparse(zone.sparse());
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
            }
        }
        Err(OutOfMemory)
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
        let mut held = zone.lock(pinned, self.machine);
        loop {
            let Some(spare) = zone.free().checked_sub(floor).filter(|spare| *spare >> order > 0) else {
                return;
            };
            let want = out.room().min(spare >> order);
            if order < PAGEBLOCK_ORDER {
                let wish = Wish { class, order, want, reach: Reach::Near };
                if zone.take(&held, wish, rng.as_deref_mut(), out) > 0 {
                    return;
                }
                if zone.managed() < FRUGAL && self.take_stolen(&held, zone, class, order, 1, out) > 0 {
                    return;
                }
                if zone.open(&held, class, rng.as_deref_mut()).is_some() {
                    continue;
                }
            } else {
                while out.len() < want
                    && let Some(block) = zone.take_whole(&held, side, rng.as_deref_mut())
                {
                    out.push(block.start());
                }
                if out.len() > 0 {
                    return;
                }
            }
            let mut moved = [BlockId(0); MOVE_BATCH];
            let (from, to) = match side {
                Side::Kernel => (Side::User, Side::Kernel),
                Side::User => (Side::Kernel, Side::User),
            };
            let count = zone.begin_move(&held, from, rng.as_deref_mut(), &mut moved);
            if count > 0 {
                drop(held);
                self.change_side(&mut moved[..count], to);
                held = zone.lock(pinned, self.machine);
                zone.finish_move(&held, to, &moved[..count]);
            } else if zone.moving(&held) > 0 {
                // Somebody else's blocks are between the sides and will be on one of them in a moment.
                drop(held);
                self.machine.relax();
                held = zone.lock(pinned, self.machine);
            } else if order < PAGEBLOCK_ORDER {
                let wish = Wish { class, order, want: 1, reach: Reach::Far };
                if zone.take(&held, wish, rng, out) == 0 {
                    self.take_stolen(&held, zone, class, order, want, out);
                }
                return;
            } else {
                return;
            }
        }
    }
    /// Take from another class of the same side.
    fn take_stolen(
        &self,
        held: &Held<'_>,
        zone: &Zone,
        class: Owner,
        order: u32,
        want: u64,
        out: &mut Basket<'_>,
    ) -> u64 {
        // A candidate only may have a run: each look that finds none marks its block, so this ends.
        while let Some(whose) = zone.steal(held, class, order) {
            let got = zone.take(held, Wish { class: whose, order, want, reach: Reach::Far }, None, out);
            if got > 0 {
                return got;
            }
        }
        0
    }
    /// Take pageblocks into or out of the direct map, neighbours in one step.
    pub(crate) fn change_side(&self, moved: &mut [BlockId], to: Side) {
        moved.sort_unstable();
        for run in moved.chunk_by(|a, b| a.0 + 1 == b.0) {
            let range = PfnRange::new(run[0].start(), BlockId(run[0].0 + run.len() as u64).start());
            match to {
                Side::Kernel => self.machine.enter(range),
                Side::User => self.machine.leave(range),
            }
        }
    }

    /// A block that is not the caller's; or of another owner than the last of its size; or has no place in the lists: too large,
    /// of another node, or the list is full; or whose bytes are to be written over.
    #[cold]
    #[inline(never)]
    fn release_slowly(&self, pinned: Pinned<M>, block: Pfn, order: Order) {
        let Some(record) = self.table.get(block) else { return self.report(Misuse::NotMemory(block)) };
        let tag = match record.freeable(order) {
            Ok(tag) => tag,
            Err(NotGiven::Held) => return self.report(Misuse::StillHeld(block)),
            Err(NotGiven::NotOwned) => return self.refuse(block, order),
        };
        let (cpu, node) = (pinned.cpu(), tag.node());
        let lane = self.lane(cpu);
        if self.bytes == Bytes::Looked {
            self.scrub(block, Freed { owner: tag.owner(), order, cpu });
        }
        record.take_back(tag.trace(cpu));
        let Some(list) = self.shapes.serving(tag) else {
            lane.count_passed_back(tag.owner(), order.frames());
            // No list ever holds such a block: its pageblock gets it at once.
            return self.give_back_one(&pinned, node, block, order, tag.owner().side());
        };
        lane.set_guess(list);
        if node == lane.node() && !lane.is_sparse(self.blocks.state_hint(block)) {
            if lane.push(list, block) {
                return;
            }
            lane.key_list(list, &mut Rng::new(self.machine.random_u64()));
            self.drain_list(&pinned, lane, list, self.shapes.shape(list).batch);
            if order == Order::FRAME && !self.zone(node).is_balanced() {
                // More comes in than goes out: all of it goes home by way of this list. Until the next refill or tick.
                lane.set_sparse(PAGEBLOCK_FRAMES);
            }
            if lane.push(list, block) {
                return;
            }
        }
        lane.count_given(list);
        if !lane.push_homeward(block, tag) {
            self.send_home(&pinned, lane);
            self.give_back_one(&pinned, node, block, order, tag.owner().side());
        }
    }
    pub(crate) fn put(
        zone: &Zone,
        held: &Held<'_>,
        block: Pfn,
        order: u32,
        side: Side,
    ) -> Result<(), NotTaken> {
        if order < PAGEBLOCK_ORDER {
            return zone.put(held, block, order);
        }
        let first = BlockId::of(block).0;
        (first..first + (1 << (order - PAGEBLOCK_ORDER)))
            .try_for_each(|id| zone.put_whole(held, BlockId(id), side))
    }
    /// Put a block back into its zone.
    fn give_back_one(&self, pinned: &Pinned<M>, node: NodeId, block: Pfn, order: Order, side: Side) {
        let zone = self.zone(node);
        let refused = Self::put(zone, &zone.lock(pinned, self.machine), block, order.log2(), side).is_err();
        if refused {
            self.report(Misuse::FreedTwice(block));
        }
    }

    /// Hand out from now on what was reserved at boot: the initial RAM disk, say. Frames of `frames` that are not reserved are reported.
    pub fn release_reserved(&self, frames: PfnRange) {
        let pinned = self.machine.pin();
        for frame in frames.iter() {
            let node = self.topology.node_of(frame);
            match (self.table.get(frame), node) {
                (Some(record), Some(node)) if record.state().owner() == Owner::Reserved => {
                    let freed = Freed { owner: Owner::Reserved, order: Order::FRAME, cpu: pinned.cpu() };
                    record.set_state(State::Unowned(Some(freed)));
                    let zone = self.zone(node);
                    zone.manage(&zone.lock(&pinned, self.machine), 1);
                    self.give_back_one(&pinned, node, frame, Order::FRAME, Side::Kernel);
                }
                _ => self.refuse(frame, Order::FRAME),
            }
        }
    }

    /// The lists of the CPU this runs on, for a hit.
    #[inline(always)]
    fn hits(&self, cpu: CpuId) -> Lane<'_> {
        Lane::new(self.hits[usize::from(cpu.0) % MAX_CPUS], self.stacks)
    }
    #[inline]
    pub(crate) fn lane(&self, cpu: CpuId) -> Lane<'_> {
        Lane::new(&self.heads[usize::from(cpu.0)], self.stacks)
    }
    pub(crate) fn zone(&self, node: NodeId) -> &Zone {
        self.zones[usize::from(node.0)].as_ref().expect("a frame's node has a zone")
    }
    /// Say what is wrong with a block that is not what its giver thinks.
    #[cold]
    #[inline(never)]
    fn refuse(&self, block: Pfn, order: Order) {
        let misuse = match (self.table.block_of(block), self.table.state(block)) {
            (Some((_, _, Owner::Reserved, _)), _) => Misuse::Reserved(block),
            (Some((head, actual, owner, _)), _) => {
                Misuse::WrongOrder { block, given: order, head, actual, owner }
            }
            (None, State::Unowned(before)) => Misuse::NotOwned { block, order, before },
            (None, State::Owned { .. }) => Misuse::FreedTwice(block),
        };
        self.report(misuse);
    }
    #[cold]
    #[inline(never)]
    pub(crate) fn report(&self, misuse: Misuse) {
        self.misuses.fetch_add(1, Ordering::Relaxed);
        if let Some(sink) = self.options.on_misuse {
            sink(&misuse);
        }
    }
    /// How often misuse was detected.
    pub fn misuses(&self) -> u64 {
        self.misuses.get()
    }
}

impl<M: Machine> FrameSource for &'static Buddy<M> {
    type Machine = M;
    fn machine(self) -> M {
        self.machine
    }
    fn table(self) -> FrameTable {
        self.table
    }
    #[inline]
    fn allocate(self, request: Request) -> Result<Pfn, OutOfMemory> {
        Buddy::allocate(self, request)
    }
    #[inline]
    fn release(self, block: Pfn, order: Order) {
        Buddy::release(self, block, order);
    }
}
