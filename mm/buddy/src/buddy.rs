//! The allocator: requests in, blocks out, and back again.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{
    Content, FrameSource, FrameTable, Freed, NodePolicy, NodeSet, Order, OutOfMemory, Owner, Pressure, Request, Side, State,
};
use freehold_machine::topology::MAX_NODES;
use freehold_machine::{CpuId, MAX_CPUS, Machine, NodeId, PAGEBLOCK_ORDER, Pfn, PfnRange, Pinned, Topology};

use crate::block::{BlockId, Blocks};
use crate::lane::{FOREIGN, LISTS, Lane, Shapes};
use crate::misuse::Misuse;
use crate::options::{Check, Options, Wipe};
use crate::rng::Rng;
use crate::word::Plain;
use crate::zone::{MOVE_BATCH, Reach, Zone};

/// Blocks that go back to a zone under one hold of its lock.
const DRAIN_CHUNK: usize = 64;
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
    /// All ones with shuffle on, else 0.
    pub(crate) spread: u64,
    pub(crate) blocks: Blocks,
    pub(crate) zones: [Option<Zone>; MAX_NODES],
    /// For each node, the nodes with memory by distance from it; `NONE` after the last.
    pub(crate) nearest: [[u8; MAX_NODES]; MAX_NODES],
    /// For each CPU, the node whose memory its lists hold.
    pub(crate) home: [u8; MAX_CPUS],
    pub(crate) lanes: &'static [AtomicU64],
    pub(crate) shapes: Shapes,
    pub(crate) cpus: usize,
    pub(crate) topology: Topology,
    pub(crate) misuses: AtomicU64,
}

/// No more nodes in a list of nodes.
pub(crate) const NONE: u8 = u8::MAX;

/// What a CPU is about to do when it [polls](Buddy::poll).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Go on with work after a timer tick.
    Tick,
    /// Halt until something happens.
    Idle,
}

impl<M: Machine> Buddy<M> {
    /// A block as wished; its record says who owns it. [`Owner::Free`] and [`Owner::Reserved`] get nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`]; never waits for memory.
    #[inline]
    pub fn allocate(&self, request: Request) -> Result<Pfn, OutOfMemory> {
        let pinned = self.machine.pin();
        let cpu = pinned.cpu();
        let lane = self.lane(cpu);
        let list = match request.policy {
            NodePolicy::Local => self.shapes.serving(request.order, request.owner),
            _ => None,
        };
        let block = loop {
            let hit = list.and_then(|list| lane.pop(list));
            let (block, node) = match hit {
                Some(block) => (block, NodeId(self.home[usize::from(cpu.0)])),
                None => self.allocate_slowly(&pinned, lane, cpu, request, list)?,
            };
            if self.hand_out(block, request, node) {
                break block;
            }
        };
        drop(pinned);
        self.prepare(block, request);
        Ok(block)
    }

    /// Take back a block. Anything that is not a block of the allocator's in this size is reported as [`Misuse`] and left alone.
    #[inline]
    pub fn release(&self, block: Pfn, order: Order) {
        let Some(record) = self.table.get(block) else { return self.report(Misuse::NotMemory(block)) };
        let (owner, node) = match record.state() {
            State::Owned { owner, order: actual, node } if actual == order && owner != Owner::Reserved => (owner, node),
            _ => return self.refuse(block, order),
        };
        if owner.is_user() && !record.counts().load().is_none() {
            return self.report(Misuse::StillHeld(block));
        }
        let pinned = self.machine.pin();
        let cpu = pinned.cpu();
        let freed = Freed { owner, order, cpu };
        if self.options.check == Check::Fill || self.options.init_on_free == Wipe::Always {
            self.scrub(block, freed);
        }
        record.set_state(State::Unowned(Some(freed)));
        let lane = self.lane(cpu);
        lane.count_given();
        if node.0 == self.home[usize::from(cpu.0)] {
            if let Some(list) = self.shapes.serving(order, owner) {
                if !lane.push(list, block) {
                    self.make_room(&pinned, lane, cpu, list, block);
                }
            } else {
                self.give_back(&pinned, node, &[block], order.log2(), owner.side());
            }
        } else if order.log2() > PAGEBLOCK_ORDER || !lane.push_foreign(block, order.log2()) {
            self.send_foreign_home(&pinned, lane);
            self.give_back(&pinned, node, &[block], order.log2(), owner.side());
        }
    }

    /// Stamp a block with its new owner. `false` if somebody wrote into its record meanwhile.
    #[inline]
    fn hand_out(&self, block: Pfn, request: Request, node: NodeId) -> bool {
        let record = self.table.get(block).expect("the lists hold frames of the table only");
        let state = record.state();
        if let State::Owned { owner, .. } = state {
            self.report(Misuse::OwnedWhileFree { block, owner });
            return false;
        }
        if self.options.check == Check::Fill {
            self.verify(block, request.order);
        }
        record.clear_home();
        record.set_state(State::Owned { owner: request.owner, order: request.order, node });
        true
    }
    #[inline]
    fn prepare(&self, block: Pfn, request: Request) {
        if request.content == Content::Zeroed || self.options.init_on_alloc == Wipe::Always {
            for frame in PfnRange::new(block, block.offset(request.order.frames())).iter() {
                self.machine.zero(frame);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate_slowly(
        &self,
        pinned: &Pinned<M>,
        lane: Lane<'_>,
        cpu: CpuId,
        request: Request,
        list: Option<usize>,
    ) -> Result<(Pfn, NodeId), OutOfMemory> {
        if matches!(request.owner, Owner::Free | Owner::Reserved) {
            return Err(OutOfMemory);
        }
        if lane.drain_requested() {
            self.drain_lane(pinned, lane, cpu);
        }
        // Before any lock: the generator may have one of its own.
        let mut rng = Rng::new(self.machine.random_u64());
        lane.set_key(rng.next());
        let (home, order) = (self.home[usize::from(cpu.0)], request.order.log2());
        let (first, allowed) = self.preference(request.policy, home, cpu);
        for last_try in [false, true] {
            for node in self.nearest[usize::from(first)].into_iter().take_while(|node| *node != NONE) {
                if !allowed.contains(NodeId(node)) {
                    continue;
                }
                let zone = self.zone(NodeId(node));
                let refill = list.filter(|_| node == home);
                let want = refill.map_or(1, |list| lane.grow(list));
                let class = refill.map_or(request.owner, |list| self.shapes.shape(list).class);
                let mut single = None;
                let got = self.take_from(pinned, zone, class, order, want, request.pressure, &mut rng, &mut |block| {
                    if refill.is_none_or(|list| !lane.push(list, block)) {
                        single = Some(block);
                    }
                });
                if got == 0 {
                    continue;
                }
                if refill.is_none() {
                    lane.count_taken();
                }
                if zone.free() < zone.marks.low {
                    self.request_drain();
                }
                let block = single.or_else(|| lane.pop(refill?));
                return Ok((block.expect("at least one block was taken"), NodeId(node)));
            }
            if !last_try {
                // What lies in this CPU's other lists may make a whole block, or be what is asked for.
                self.drain_lane(pinned, lane, cpu);
                self.request_drain();
            }
        }
        Err(OutOfMemory)
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

    #[allow(clippy::too_many_arguments, reason = "one caller: the slow path")]
    fn take_from(
        &self,
        pinned: &Pinned<M>,
        zone: &Zone,
        class: Owner,
        order: u32,
        want: u64,
        pressure: Pressure,
        rng: &mut Rng,
        out: &mut impl FnMut(Pfn),
    ) -> u64 {
        let floor = match pressure {
            Pressure::Normal => zone.marks.min,
            Pressure::Reserve => 0,
        };
        let side = class.side();
        let mut rng = (self.spread != 0).then_some(rng);
        if order > PAGEBLOCK_ORDER {
            return self.gather(pinned, zone, order, side, floor, out);
        }
        let mut held = zone.lock(pinned, self.machine);
        loop {
            let Some(spare) = zone.free().checked_sub(floor).filter(|spare| *spare >> order > 0) else { return 0 };
            let want = want.min(spare >> order);
            if order < PAGEBLOCK_ORDER {
                let got = zone.take(&held, class, order, want, Reach::Near, rng.as_deref_mut(), out);
                if got > 0 {
                    return got;
                }
                if zone.managed() < FRUGAL {
                    let got = self.take_stolen(&held, zone, class, order, 1, out);
                    if got > 0 {
                        return got;
                    }
                }
                if zone.open(&held, class, rng.as_deref_mut()).is_some() {
                    continue;
                }
            } else {
                let mut got = 0;
                while got < want
                    && let Some(block) = zone.take_whole(&held, side, rng.as_deref_mut())
                {
                    out(block.start());
                    got += 1;
                }
                if got > 0 {
                    return got;
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
                let got = zone.take(&held, class, order, 1, Reach::Far, rng, out);
                return if got > 0 { got } else { self.take_stolen(&held, zone, class, order, want, out) };
            } else {
                return 0;
            }
        }
    }
    /// Take from another class of the same side.
    fn take_stolen(
        &self,
        held: &crate::word::Held<'_>,
        zone: &Zone,
        class: Owner,
        order: u32,
        want: u64,
        out: &mut impl FnMut(Pfn),
    ) -> u64 {
        // A candidate only may have a run: each look that finds none marks its block, so this ends.
        while let Some(whose) = zone.steal(held, class, order) {
            let got = zone.take(held, whose, order, want, Reach::Far, None, out);
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

    #[cold]
    #[inline(never)]
    fn make_room(&self, pinned: &Pinned<M>, lane: Lane<'_>, cpu: CpuId, list: usize, block: Pfn) {
        lane.set_key(self.machine.random_u64());
        lane.shrink(list);
        let shape = self.shapes.shape(list);
        self.drain_list(pinned, lane, cpu, list, shape.batch.max(1));
        if !lane.push(list, block) {
            self.give_back(pinned, NodeId(self.home[usize::from(cpu.0)]), &[block], shape.order, lane.side(list));
        }
    }
    fn drain_list(&self, pinned: &Pinned<M>, lane: Lane<'_>, cpu: CpuId, list: usize, mut count: u64) {
        let shape = self.shapes.shape(list);
        let node = NodeId(self.home[usize::from(cpu.0)]);
        while count > 0 && lane.len(list) > 0 {
            let mut chunk = [Pfn(0); DRAIN_CHUNK];
            let mut len = 0;
            lane.evict(list, count.min(DRAIN_CHUNK as u64), |block| {
                chunk[len] = block;
                len += 1;
            });
            self.give_back(pinned, node, &chunk[..len], shape.order, shape.class.side());
            count -= len as u64;
        }
    }
    fn drain_lane(&self, pinned: &Pinned<M>, lane: Lane<'_>, cpu: CpuId) {
        for list in 0..LISTS {
            self.drain_list(pinned, lane, cpu, list, u64::MAX);
            lane.shrink(list);
        }
        self.send_foreign_home(pinned, lane);
    }
    fn send_foreign_home(&self, pinned: &Pinned<M>, lane: Lane<'_>) {
        let mut entries = [(Pfn(0), 0); FOREIGN];
        let mut len = 0;
        lane.take_foreign(|block, order| {
            entries[len] = (block, order);
            len += 1;
        });
        entries[..len].sort_unstable_by_key(|(block, order)| (self.topology.node_of(*block), *order, *block));
        for group in entries[..len].chunk_by(|a, b| a.1 == b.1 && self.topology.node_of(a.0) == self.topology.node_of(b.0)) {
            let Some(node) = self.topology.node_of(group[0].0) else { continue };
            for &(block, order) in group {
                let freed = self.table.state(block);
                let side = match freed {
                    State::Unowned(Some(freed)) => freed.owner.side(),
                    _ => Side::User,
                };
                self.give_back(pinned, node, &[block], order, side);
            }
        }
    }
    /// Put blocks of one order back into their zone.
    fn give_back(&self, pinned: &Pinned<M>, node: NodeId, blocks: &[Pfn], order: u32, side: Side) {
        let zone = self.zone(node);
        let mut refused = None;
        let held = zone.lock(pinned, self.machine);
        for &block in blocks {
            let put = if order < PAGEBLOCK_ORDER {
                zone.put(&held, block, order)
            } else {
                let first = BlockId::of(block).0;
                (first..first + (1 << (order - PAGEBLOCK_ORDER))).try_for_each(|id| zone.put_whole(&held, BlockId(id), side))
            };
            if put.is_err() {
                refused = Some(block);
            }
        }
        drop(held);
        if let Some(block) = refused {
            self.report(Misuse::FreedTwice(block));
        }
    }

    /// Serve what other CPUs asked of this one, and let lists that are not used shrink. Called on the way to idle and on the way back
    /// to work after a tick, in task context.
    pub fn poll(&self, moment: Moment) {
        let pinned = self.machine.pin();
        let cpu = pinned.cpu();
        let lane = self.lane(cpu);
        if lane.drain_requested() || moment == Moment::Idle {
            self.drain_lane(&pinned, lane, cpu);
        } else if lane.refills() == 0 {
            for list in 0..LISTS {
                let surplus = lane.len(list).saturating_sub(self.shapes.shape(list).batch);
                self.drain_list(&pinned, lane, cpu, list, surplus / 2);
                lane.shrink(list);
            }
        }
    }
    /// Give back all that this CPU's lists hold.
    pub fn drain_local(&self) {
        let pinned = self.machine.pin();
        let cpu = pinned.cpu();
        self.drain_lane(&pinned, self.lane(cpu), cpu);
    }
    /// Ask every CPU to give back what its lists hold, when it next polls or runs out.
    pub fn request_drain(&self) {
        (0..self.cpus).for_each(|cpu| self.lane(CpuId(cpu as u16)).request_drain());
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
                    self.give_back(&pinned, node, &[frame], 0, Side::Kernel);
                }
                _ => self.refuse(frame, Order::FRAME),
            }
        }
    }

    pub(crate) fn lane(&self, cpu: CpuId) -> Lane<'_> {
        let first = usize::from(cpu.0) * self.shapes.words;
        Lane::new(&self.lanes[first..first + self.shapes.words], &self.shapes, self.spread)
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
            (Some((head, actual, owner, _)), _) => Misuse::WrongOrder { block, given: order, head, actual, owner },
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
