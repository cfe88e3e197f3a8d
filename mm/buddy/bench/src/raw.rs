//! The only unsafe code here: peers that keep their metadata in the memory they manage and get its
//! address, tables in large pages, and indices without bounds checks for a peer that is written in
//! C.
//!
//! The peers' memory is address space that gets pages on first access, and they access only their
//! metadata.

use std::num::NonZeroUsize;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Mutex;

use buddy_slab_allocator::BuddyAllocator;
use frame_alloc::{
    CpuId, DepotAllocator, PageSize, PhysRange, PhysicalAllocator, Provenance, RegionInit,
    SummaryBuddyAllocator,
};
use freehold_machine::Cpus;
use rustix::mm::{Advice, madvise};
use zerocopy::FromZeros;

use crate::machine::Bare;
use crate::peers::Peer;

const PAGE: usize = 4096;
const BASE: PageSize = PageSize::from_log2(12);
/// frame-alloc's orders: 0 to 10.
const ORDERS: usize = 11;

/// Page size for an allocator's tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB, allocated on first access.
    Small,
    /// 2 MiB if the system has them, as the kernel maps its tables.
    Large,
}

/// Zeroed memory that is allocated on first access.
pub fn zeroed<T: FromZeros>(count: usize, pages: Pages) -> &'static [T] {
    const LARGE: usize = 2 << 20;
    let bytes = (count * size_of::<T>()).next_multiple_of(LARGE);
    let memory = vec![0u8; bytes + LARGE].leak();
    let skip = memory.as_ptr().align_offset(LARGE);
    if pages == Pages::Large {
        in_large_pages(&mut memory[skip..skip + bytes]);
    }
    let start = memory[skip..].as_mut_ptr();
    // SAFETY: the memory is leaked, aligned, all zero, which is a T, and has no other user.
    unsafe { slice::from_raw_parts(start.cast(), count) }
}

/// Backs memory by large pages where it is used. A system without them continues with small ones.
fn in_large_pages(memory: &mut [u8]) {
    // SAFETY: the advice is for memory that is ours, and does not change its contents.
    let _advised = unsafe { madvise(memory.as_mut_ptr().cast(), memory.len(), Advice::LinuxHugepage) };
}

/// Element `index`, without a bounds check: C has none.
#[inline(always)]
pub fn at<T>(slice: &'static [T], index: usize) -> &'static T {
    debug_assert!(index < slice.len());
    // SAFETY: the model's indices are frames that it was made with, heads that it made after them,
    // and what the harness got from it and puts back; its test runs with the check.
    unsafe { slice.get_unchecked(index) }
}

/// So many frames of memory, aligned to the largest block, in large pages where it is used.
fn memory(frames: u64) -> &'static mut [u8] {
    let (bytes, align) = (frames as usize * PAGE, PAGE << (ORDERS - 1));
    let memory = vec![0u8; bytes + align].leak();
    let skip = memory.as_ptr().align_offset(align);
    let memory = &mut memory[skip..skip + bytes];
    in_large_pages(memory);
    memory
}

/// Physical and virtual addresses are the same.
pub enum Identity {}

// SAFETY: the addresses are those of memory that `memory` leaked and whose provenance
// `frame_allocator` exposed.
unsafe impl Provenance for Identity {
    unsafe fn create(phys: usize) -> NonNull<u8> {
        NonNull::new(ptr::with_exposed_provenance_mut(phys)).expect("memory does not begin at 0")
    }
    unsafe fn destroy<T>(ptr: NonNull<T>) -> usize {
        ptr.addr().get()
    }
}

/// The CPU number that the harness gave the thread.
pub enum ThisCpu {}

impl CpuId for ThisCpu {
    fn current_cpu() -> usize {
        usize::from(Bare.current_cpu().0)
    }
}

type Summary = SummaryBuddyAllocator<ORDERS, Identity>;
type Depot = DepotAllocator<Summary, ThisCpu, 2>;

/// frame-alloc: its lock-free buddy allocator, or that behind per-CPU magazines and a shared depot.
pub struct FrameAlloc<A> {
    inner: A,
    flush: fn(&A),
}

impl FrameAlloc<Summary> {
    pub fn summary(frames: u64) -> Self {
        Self::over(frames, Summary::new(BASE), |_| {})
    }
}

impl FrameAlloc<Depot> {
    pub fn depot(frames: u64) -> Self {
        Self::over(frames, Depot::new(BASE, Summary::new(BASE)), Depot::flush)
    }
}

impl<A: RegionInit> FrameAlloc<A> {
    fn over(frames: u64, inner: A, flush: fn(&A)) -> Self {
        let memory = memory(frames);
        let base = memory.as_mut_ptr().expose_provenance();
        let range = PhysRange { base, len: memory.len() };
        // SAFETY: the range is ours, aligned, leaked and has no other user, and this is the only
        // initialisation.
        unsafe { inner.init(base, memory.len(), &[range]) };
        Self { inner, flush }
    }
}

impl<A: PhysicalAllocator + Sync> Peer for FrameAlloc<A> {
    #[inline(always)]
    fn get(&self, order: u32) -> Option<u64> {
        let count = NonZeroUsize::new(1 << order)?;
        self.inner.allocate_physical(BASE, count).ok().map(|address| address as u64)
    }
    #[inline(always)]
    fn put(&self, block: u64, order: u32) {
        let Some(count) = NonZeroUsize::new(1 << order) else { return };
        // SAFETY: the harness frees each block once, in the size in which it was taken.
        unsafe { self.inner.deallocate_physical(BASE, count, block as usize) };
    }
    fn drain(&self) {
        (self.flush)(&self.inner);
    }
}

/// buddy-slab-allocator's page allocator under a mutex.
pub struct BuddySlab(Mutex<BuddyAllocator<PAGE>>);

impl BuddySlab {
    pub fn new(frames: u64) -> Self {
        let mut inner = BuddyAllocator::new();
        // Its metadata, 12 bytes per frame, comes first.
        let memory = memory(frames + frames / 256);
        // SAFETY: the region is writable, leaked, and has no other user.
        let made = unsafe { inner.init(memory) };
        made.expect("a region large enough");
        Self(Mutex::new(inner))
    }
}

impl Peer for BuddySlab {
    fn get(&self, order: u32) -> Option<u64> {
        // Blocks are aligned to their size relative to the start of its memory, after the metadata.
        self.0.lock().ok()?.alloc_pages(1 << order, PAGE).ok().map(|address| address as u64)
    }
    fn put(&self, block: u64, order: u32) {
        if let Ok(mut inner) = self.0.lock() {
            inner.dealloc_pages(block as usize, 1 << order);
        }
    }
}
