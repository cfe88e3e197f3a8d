//! The allocator: serves requests with blocks, and takes blocks back.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_frame::{
    Content, FrameSource, FrameState, FrameTable, Freed, NodePolicy, NotGiven, Order, OutOfMemory, Owner,
    Payer, Pressure, Request, Tag,
};
use freehold_machine::topology::MAX_NODES;
use freehold_machine::{CpuId, MAX_CPUS, Machine, NodeId, Pfn, PfnRange, PhysicalBytes, Pinned, Topology};
use freehold_tracepoints::TraceEvent;
use freehold_tracepoints::table::FrameOwner;

use crate::arena::Arena;
use crate::block::Blocks;
use crate::misuse::Misuse;
use crate::options::{Options, Wipe};
use crate::pcp::{CpuLists, Hit, Pcp};
use crate::rng::Rng;
use crate::shape::Shapes;
use crate::word::Plain;
use crate::zone::Zone;

/// The page allocator of a machine. Used through `&'static Buddy<M>`, which is a [`FrameSource`].
///
/// Task context only: the CPU may be pinned and interrupts are on; no lock is held that an
/// interrupt handler takes, since a pageblock that leaves the direct map is flushed on every CPU.
#[derive(Debug)]
pub struct Buddy<M: Machine + PhysicalBytes> {
    pub(crate) machine: M,
    pub(crate) table: FrameTable,
    pub(crate) options: Options,
    pub(crate) shuffled: bool,
    pub(crate) bytes: Bytes,
    pub(crate) blocks: Blocks,
    pub(crate) zones: [Option<Zone>; MAX_NODES],
    /// For each node, the nodes with memory in order of distance; `NONE` after the last.
    pub(crate) nearest: [[u8; MAX_NODES]; MAX_NODES],
    /// The CPUs' lists for requests and frees that they serve directly. If every block's bytes are
    /// [accessed](Bytes::Looked), the lists refuse them.
    pub(crate) cpu_lists: CpuLists,
    pub(crate) pcps: &'static [Pcp],
    /// For each CPU, its number among the CPUs whose lists hold the same node's blocks, which is
    /// also its arena's number there.
    pub(crate) slots: [u8; MAX_CPUS],
    pub(crate) shapes: Shapes,
    pub(crate) cpus: usize,
    pub(crate) topology: &'static Topology,
    pub(crate) misuses: AtomicU64,
    /// Pageblocks that were wiped on their way into the direct map.
    pub(crate) wiped: AtomicU64,
    /// Whether the options' fault hook is called.
    pub(crate) injecting: AtomicBool,
}

/// Whether the allocator accesses the bytes of blocks that it hands out and gets back
/// (`page_alloc.check=fill`, `init_on_alloc`, `init_on_free`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bytes {
    Left,
    Looked,
}

/// No more nodes in a list of nodes.
pub(crate) const NONE: u8 = u8::MAX;

impl<M: Machine + PhysicalBytes> Buddy<M> {
    /// Returns a block as requested; its record names its owner. [`Owner::Free`] and
    /// [`Owner::Reserved`] get nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`]; never waits for memory.
    #[inline(always)]
    pub fn allocate(&self, request: Request) -> Result<Pfn, OutOfMemory> {
        if request.owner.is_charged() && self.machine.charges_frames() {
            return self.allocate_for(Payer::Asker, request);
        }
        self.allocate_uncharged(request)
    }
    /// As [`Buddy::allocate`], but no account pays.
    #[inline(always)]
    pub(crate) fn allocate_uncharged(&self, request: Request) -> Result<Pfn, OutOfMemory> {
        // Destructured here, so that the request never has to be in memory for a hit.
        let Request { owner, order, content, policy, pressure } = request;
        match policy {
            NodePolicy::Local => match self.hit(owner, order, content) {
                Some(block) => Ok(block),
                None => self.take_slowly(owner, order, content, pressure),
            },
            _ => self.take_by_policy(request),
        }
    }
    /// From now on asks the options' fault hook about each request. For this the lists stop serving
    /// requests. Until then the hook costs nothing for a request that a list serves.
    pub fn inject_faults(&self) {
        self.injecting.store(true, Ordering::Relaxed);
        self.pcps.iter().for_each(Pcp::serve_nobody);
    }
    fn is_injected(&self, request: &Request) -> bool {
        self.injecting.load(Ordering::Relaxed)
            && self.options.fault_hook.is_some_and(|hook| hook(request.owner, request.order))
    }
    /// Returns a block from this CPU's list.
    #[inline(always)]
    fn hit(&self, owner: Owner, order: Order, content: Content) -> Option<Pfn> {
        let pinned = self.machine.pin();
        let list = self.serving(&pinned, owner, order);
        let block = list.pop()?;
        if self.table.get(block).is_none_or(|record| record.hand_out(list.tag()).is_err()) {
            self.report_owned(block);
            return None;
        }
        self.trace_owner(block, order, (Owner::Free, owner));
        drop(pinned);
        if content == Content::Zeroed {
            self.zero(block, order);
        }
        Some(block)
    }

    /// The list of this CPU that serves an owner and order.
    #[inline(always)]
    fn serving(&self, pinned: &Pinned<M>, owner: Owner, order: Order) -> Hit<'_> {
        Hit::serving(self.cpu_lists[usize::from(pinned.cpu().0) % MAX_CPUS], owner, order)
    }

    /// Frees a block. Anything that is not an allocated block of this size is reported as
    /// [`Misuse`] and left unchanged.
    pub fn release(&self, block: Pfn, order: Order) {
        let owner = self.table.get(block).map_or(Owner::Free, |record| record.state().owner());
        self.release_of(owner, block, order);
    }
    /// As [`Buddy::release`], for a caller that knows the likely owner. The block's record decides;
    /// a free for the right owner is cheaper.
    #[inline(always)]
    pub fn release_of(&self, likely: Owner, block: Pfn, order: Order) {
        if self.machine.charges_frames() {
            self.uncharge(block, order);
        }
        let pinned = self.machine.pin();
        let list = self.serving(&pinned, likely, order);
        if let Some(record) = self.table.get(block)
            && record.is_freeable_as(list.tag())
            && list.push(block, &self.blocks)
        {
            record.take_back(list.trace());
            self.trace_owner(block, order, (likely, Owner::Free));
            return;
        }
        self.release_slowly(pinned, block, order);
    }

    /// Stamps a block with its new owner. `false` if the record was written meanwhile.
    fn hand_out(&self, block: Pfn, tag: Tag) -> bool {
        if self.bytes == Bytes::Looked {
            self.verify(block, tag.order());
        }
        let stamped = self.table.get(block).is_some_and(|record| record.hand_out(tag).is_ok());
        if !stamped {
            self.report_owned(block);
        } else {
            self.trace_owner(block, tag.order(), (Owner::Free, tag.owner()));
        }
        stamped
    }
    /// The tracepoint of an owner's change.
    #[inline(always)]
    fn trace_owner(&self, block: Pfn, order: Order, owners: (Owner, Owner)) {
        if self.machine.is_traced::<{ FrameOwner::NUMBER }>() {
            record_owner(self.machine, block, order, owners);
        }
    }
    #[cold]
    fn zero(&self, block: Pfn, order: Order) {
        if order == Order::FRAME {
            self.machine.zero(block);
        } else {
            self.machine.zero_run(block, order.frames());
        }
    }

    /// Takes a block that no list has.
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
    /// Reports a free block that has an owner; the block is left to that owner.
    #[cold]
    #[inline(never)]
    fn report_owned(&self, block: Pfn) {
        self.report(Misuse::OwnedWhileFree { block, owner: self.table.state(block).owner() });
    }
    #[cold]
    #[inline(never)]
    fn take_by_policy(&self, request: Request) -> Result<Pfn, OutOfMemory> {
        if self.is_injected(&request) {
            return Err(OutOfMemory);
        }
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
    /// Frees a block in the less common cases. The block is not the caller's, or has another owner
    /// than the likely one. Or it has no place in the lists (too large, of another node,
    /// or the list is full). Or its bytes are to be overwritten.
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
        let pcp = self.pcp(cpu);
        if self.bytes == Bytes::Looked {
            self.scrub(block, Freed { owner: tag.owner(), order, cpu });
        }
        record.take_back(tag.trace(cpu));
        self.trace_owner(block, order, (tag.owner(), Owner::Free));
        let Some(list) = self.shapes.serving(tag) else {
            pcp.count_passed_back(tag.owner(), order.frames());
            // Lists never hold such a block: it is returned to its pageblock at once.
            return self.give_back_one(&pinned, node, block, order);
        };
        if node == pcp.node() && !pcp.is_sparse(block, self.blocks) {
            if pcp.push(list, block) {
                return;
            }
            pcp.key_list(list, &mut Rng::new(self.machine.random_u64()));
            let shape = self.shapes.shape(list);
            let count = shape.batch.min(pcp.len(list));
            let others = self.drain_list(&pinned, pcp, list, count);
            // A CPU that frees blocks of other CPUs keeps few of them in its list. Mixed with its
            // own blocks they would later be returned one by one, and each pageblock's words would
            // move from CPU to CPU. This lasts until the next refill.
            let room = if others > count / 2 { (shape.batch / 2).max(1) } else { shape.room };
            pcp.set_room(list, room);
            if order == Order::FRAME && !self.zone(node).is_balanced() {
                // More blocks are freed here than taken: until the next refill or tick, all of them
                // return to their pageblocks through this list.
                pcp.set_sparse(None);
            }
            if pcp.push(list, block) {
                return;
            }
        }
        pcp.count_given(list);
        if !pcp.push_homeward(block, tag) {
            self.send_home(&pinned, pcp);
            self.give_back_one(&pinned, node, block, order);
        }
    }

    /// From now on hands out frames that were reserved at boot, for example those of the initial
    /// RAM disk. Frames of `frames` that are not reserved are reported.
    pub fn release_reserved(&self, frames: PfnRange) {
        let pinned = self.machine.pin();
        for frame in frames.iter() {
            let node = self.topology.node_of(frame);
            match (self.table.get(frame), node) {
                (Some(record), Some(node)) if record.state().owner() == Owner::Reserved => {
                    let freed = Freed { owner: Owner::Reserved, order: Order::FRAME, cpu: pinned.cpu() };
                    record.set_state(FrameState::Unowned(Some(freed)));
                    self.trace_owner(frame, Order::FRAME, (Owner::Reserved, Owner::Free));
                    let zone = self.zone(node);
                    zone.manage(&zone.lock(&pinned, self.machine), 1);
                    self.give_back_one(&pinned, node, frame, Order::FRAME);
                }
                _ => self.refuse(frame, Order::FRAME),
            }
        }
    }

    #[inline]
    pub(crate) fn pcp(&self, cpu: CpuId) -> &'static Pcp {
        &self.pcps[usize::from(cpu.0)]
    }
    /// The arena of a zone from which this CPU takes frames.
    pub(crate) fn arena(&self, pinned: &Pinned<M>, zone: &Zone) -> Arena {
        zone.arena(self.slots[usize::from(pinned.cpu().0) % MAX_CPUS].into())
    }
    pub(crate) fn zone(&self, node: NodeId) -> &Zone {
        self.zones[usize::from(node.0)].as_ref().expect("a frame's node has a zone")
    }
    /// Reports a block that does not match its caller's claim.
    #[cold]
    #[inline(never)]
    fn refuse(&self, block: Pfn, order: Order) {
        let misuse = match (self.table.block_of(block), self.table.look(block)) {
            (Some((_, _, Owner::Reserved, _)), _) => Misuse::Reserved(block),
            (Some((head, actual, owner, _)), _) => {
                Misuse::WrongOrder { block, given: order, head, actual, owner }
            }
            (None, FrameState::Unowned(before)) => Misuse::NotOwned { block, order, before },
            (None, FrameState::Owned { .. }) => Misuse::FreedTwice(block),
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

impl<M: Machine + PhysicalBytes> FrameSource for &'static Buddy<M> {
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
    fn allocate_for(self, payer: Payer, request: Request) -> Result<Pfn, OutOfMemory> {
        Buddy::allocate_for(self, payer, request)
    }
    fn ensure_objects(self) -> Result<(), OutOfMemory> {
        self.options.object_reserve.map_or(Ok(()), |fill| fill())
    }
    fn rest(self) {
        if let Some(rest) = self.options.rest {
            rest();
        }
    }
    fn release(self, block: Pfn, order: Order) {
        Buddy::release(self, block, order);
    }
    #[inline(always)]
    fn release_of(self, likely: Owner, block: Pfn, order: Order) {
        Buddy::release_of(self, likely, block, order);
    }
}

/// Records an owner's change. Not inlined, so that the code that hands out frames stays short.
#[cold]
#[inline(never)]
fn record_owner(machine: impl Machine, block: Pfn, order: Order, (from, to): (Owner, Owner)) {
    let event = FrameOwner { pfn: block.0, order: order.log2(), from: from as u32, to: to as u32 };
    machine.record_event(FrameOwner::NUMBER, &event.words());
}
