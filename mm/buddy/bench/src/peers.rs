//! The allocators under test behind one trait.

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use bitmap_allocator::{BitAlloc, BitAlloc16M};
use freehold_buddy::{Buddy, Managed, Moment, Options, Pcp, Shuffle};
use freehold_frame::{FrameRecord, FrameTable, Order, Owner, Request, Tag};
use freehold_machine::{CpuId, NodeId, Pfn, PfnRange, Topology};

use crate::machine::Bare;
use crate::raw::{Pages, zeroed};

/// A page allocator: blocks by frame number.
pub trait Peer: Sync {
    fn get(&self, order: u32) -> Option<u64>;
    fn put(&self, block: u64, order: u32);
    /// Returns all blocks in the per-CPU lists of this thread's CPU.
    fn drain(&self) {}
    /// A timer tick.
    fn tick(&self) {}
    /// From now on the calling thread is one of two, CPU `cpu`.
    fn join(&self, _cpu: u16) {}
    /// Returns the operations that the peer supports.
    fn sort(&self) -> Sort {
        Sort::Allocator
    }
}

/// Operations that a peer supports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// Blocks of every order, on any thread.
    Allocator,
    /// Single frames only: a lower bound, not an allocator.
    Stack,
}

/// Frame records, words, and per-CPU lists.
pub type AllocatorMemory = (&'static [FrameRecord], &'static [AtomicU64], &'static [Pcp]);

/// Ours.
pub struct Freehold(pub &'static Buddy<Bare>);

impl Freehold {
    pub fn new(frames: u64, shuffle: Shuffle, pages: Pages) -> Self {
        let mut topology = Topology::new(1).expect("one node");
        topology.add_range(PfnRange::new(Pfn(0), Pfn(frames)), NodeId(0)).expect("one range");
        let options = Options { shuffle, ..Options::default() };
        let words = Buddy::<Bare>::metadata_words(&topology, 2, &options);
        let memory = (zeroed(frames as usize, pages), zeroed(words, pages), zeroed(2, pages));
        Self::with_memory(topology, options, memory)
    }
    /// Only the set-up, over memory that is present and zero.
    pub fn with_memory(
        topology: Topology,
        options: Options,
        (records, metadata, pcps): AllocatorMemory,
    ) -> Self {
        let topology: &'static Topology = Box::leak(Box::new(topology));
        let managed = Managed { topology, reserved: &[], table: FrameTable::new(records), metadata, pcps };
        let buddy = Buddy::new(Bare, managed, options);
        Self(Box::leak(Box::new(buddy.expect("memory enough"))))
    }
}

impl Peer for Freehold {
    #[inline(always)]
    fn get(&self, order: u32) -> Option<u64> {
        let request = Request::new(Owner::Anon).order(Order::new(order)?).from_reserve();
        self.0.allocate(request).ok().map(|block| block.0)
    }
    #[inline(always)]
    fn put(&self, block: u64, order: u32) {
        let order = Order::new(order).expect("an order that was handed out");
        self.0.release_of(Owner::Anon, Pfn(block), order);
    }
    fn drain(&self) {
        self.0.drain_local();
    }
    fn tick(&self) {
        self.0.poll(Moment::Tick);
    }
}

/// The lower bound: a thread-local stack of frame numbers.
pub struct Stack {
    frames: u64,
}

thread_local! {
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Stack {
    pub fn new(frames: u64) -> Self {
        STACK.with_borrow_mut(|stack| *stack = (0..frames).rev().collect());
        Self { frames }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        STACK.take();
    }
}

impl Peer for Stack {
    #[inline(always)]
    fn get(&self, _order: u32) -> Option<u64> {
        STACK.with_borrow_mut(Vec::pop)
    }
    #[inline(always)]
    fn put(&self, block: u64, _order: u32) {
        STACK.with_borrow_mut(|stack| stack.push(block));
    }
    /// Half of memory is this thread's own.
    fn join(&self, cpu: u16) {
        let (half, cpu) = (self.frames / 2, u64::from(cpu));
        STACK.with_borrow_mut(|stack| *stack = (cpu * half..(cpu + 1) * half).rev().collect());
    }
    fn sort(&self) -> Sort {
        Sort::Stack
    }
}

/// The lower bound for an allocator that detects all misuse: the thread-local stack, and for each
/// frame a record of 8 bytes with its owner.
pub struct RecordedStack {
    stack: Stack,
    table: FrameTable,
}

impl RecordedStack {
    const TAG: Tag = Tag::new(Owner::Anon, Order::FRAME, NodeId(0));

    pub fn new(frames: u64) -> Self {
        Self { stack: Stack::new(frames), table: FrameTable::new(zeroed(frames as usize, Pages::Large)) }
    }
}

impl Peer for RecordedStack {
    #[inline(always)]
    fn get(&self, order: u32) -> Option<u64> {
        let block = self.stack.get(order)?;
        self.table.get(Pfn(block))?.hand_out(Self::TAG).ok()?;
        Some(block)
    }
    #[inline(always)]
    fn put(&self, block: u64, order: u32) {
        let record = self.table.get(Pfn(block)).filter(|record| record.is_freeable_as(Self::TAG));
        if let Some(record) = record {
            record.take_back(Self::TAG.trace(CpuId(0)));
            self.stack.put(block, order);
        }
    }
    fn join(&self, cpu: u16) {
        self.stack.join(cpu);
    }
    fn sort(&self) -> Sort {
        Sort::Stack
    }
}

/// Stack of frame numbers under a mutex: the cost of one lock.
pub struct LockedStack(Mutex<Vec<u64>>);

impl LockedStack {
    pub fn new(frames: u64) -> Self {
        Self(Mutex::new((0..frames).rev().collect()))
    }
}

impl Peer for LockedStack {
    #[inline(always)]
    fn get(&self, _order: u32) -> Option<u64> {
        self.0.lock().ok()?.pop()
    }
    #[inline(always)]
    fn put(&self, block: u64, _order: u32) {
        if let Ok(mut stack) = self.0.lock() {
            stack.push(block);
        }
    }
    fn sort(&self) -> Sort {
        Sort::Stack
    }
}

/// buddy_system_allocator's frame allocator under a mutex.
pub struct BuddySystem(Mutex<buddy_system_allocator::FrameAllocator<32>>);

impl BuddySystem {
    pub fn new(frames: u64) -> Self {
        let mut inner = buddy_system_allocator::FrameAllocator::new();
        inner.add_frame(0, frames as usize);
        Self(Mutex::new(inner))
    }
}

impl Peer for BuddySystem {
    fn get(&self, order: u32) -> Option<u64> {
        self.0.lock().ok()?.alloc(1 << order).map(|block| block as u64)
    }
    fn put(&self, block: u64, order: u32) {
        if let Ok(mut inner) = self.0.lock() {
            inner.dealloc(block as usize, 1 << order);
        }
    }
}

/// bitmap-allocator under a mutex.
pub struct Bitmap(Mutex<Box<BitAlloc16M>>);

impl Bitmap {
    pub fn new(frames: u64) -> Self {
        let mut inner = Box::new(BitAlloc16M::DEFAULT);
        inner.insert(0..frames as usize);
        Self(Mutex::new(inner))
    }
}

impl Peer for Bitmap {
    fn get(&self, order: u32) -> Option<u64> {
        let mut inner = self.0.lock().ok()?;
        let block =
            if order == 0 { inner.alloc() } else { inner.alloc_contiguous(None, 1 << order, order as usize) };
        block.map(|block| block as u64)
    }
    fn put(&self, block: u64, order: u32) {
        if let Ok(mut inner) = self.0.lock() {
            if order == 0 {
                inner.dealloc(block as usize);
            } else {
                inner.dealloc_contiguous(block as usize, 1 << order);
            }
        }
    }
}
