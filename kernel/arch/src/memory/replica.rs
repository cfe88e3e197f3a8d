//! The image as [`freehold_replica`] copies it, and the root of each node's kernel half.
//!
//! Roots are set once, on the first CPU, before a second one runs and before an address space
//! exists. Every CPU then has its node's root, or a copy of it, loaded for ever ([`load_own`]). A
//! copy that is made later changes leaves below the node's root.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_machine::topology::MAX_NODES;
use freehold_machine::{
    CpuId, Cpus, Flush, MAX_CPUS, NodeId, PAGE_SIZE, PAGEBLOCK_FRAMES, Pfn, PfnRange, Tlb, Topology, VirtAddr,
};
use freehold_replica::{KernelImage, PatchError, Port, Rest};

use super::{block_window, direct, patching, tables, windows};
use crate::{X86, boot, built, cpu};

/// By node: the root whose kernel half is copied to the roots of its CPUs. 0: the kernel's own
/// root.
static ROOTS: [AtomicU64; MAX_NODES] = [const { AtomicU64::new(0) }; MAX_NODES];

/// Whether a node's root differs from the kernel's own.
static USED: AtomicBool = AtomicBool::new(false);

/// By CPU: how often it was about to load a root with another node's image. The microscope reads
/// it.
static SHARED_LOADS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// By CPU: the value of the count when the CPU last flushed the text of such a root.
static FORGOTTEN: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// Whether nodes have roots of their own.
#[inline]
pub fn are_used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Describes the running image. `topology` tells its node.
pub fn image(topology: &Topology) -> KernelImage {
    let frames = boot::read_only_frames();
    let (text, _) = boot::read_only_parts();
    KernelImage {
        start: VirtAddr(text.start),
        pages: frames.len(),
        text_pages: (text.end - text.start) / PAGE_SIZE as u64,
        first: frames.start,
        node: topology.node_of(frames.start).unwrap_or(NodeId(0)),
        root: tables::root(),
    }
}

/// Returns the root whose kernel half is copied to the roots of `node`'s CPUs.
pub(super) fn root_of(node: NodeId) -> Pfn {
    match ROOTS[usize::from(node.0)].load(Ordering::Acquire) {
        0 => tables::root(),
        root => Pfn(root),
    }
}

/// Loads the kernel's root of `cpu`'s node on `cpu`, which is the running CPU and has the kernel's
/// own root loaded, and flushes that root's text.
pub fn load_own(cpu: CpuId) {
    let root = root_of(X86.node_of_cpu(cpu));
    if root != tables::root() {
        X86.load_root(root);
        // Global entries survive a change of the root.
        X86.flush_local(Flush::All);
    }
}

/// Notes that the running CPU `cpu` is about to load a root with another node's image, because
/// there is no memory for its own.
pub fn note_shared_load(cpu: CpuId) {
    SHARED_LOADS[usize::from(cpu.0)].fetch_add(1, Ordering::Relaxed);
}

/// Returns how often a CPU loaded a root with another node's image.
pub fn shared_load_count() -> u64 {
    SHARED_LOADS.iter().map(|count| count.load(Ordering::Relaxed)).sum()
}

/// Returns the address of the counts by CPU.
pub(crate) fn shared_loads() -> VirtAddr {
    VirtAddr(SHARED_LOADS.as_ptr() as u64)
}

/// Flushes the text of a shared root on the running CPU `cpu`, if it has loaded one since the last
/// call and has its own loaded now: global entries survive a change of the root.
pub fn forget_shared_text(cpu: CpuId) {
    let number = usize::from(cpu.0);
    let count = SHARED_LOADS[number].load(Ordering::Relaxed);
    if FORGOTTEN[number].swap(count, Ordering::Relaxed) != count {
        X86.flush_local(Flush::All);
    }
}

/// The image and the nodes' roots, as [`freehold_replica`] needs them.
#[derive(Clone, Copy, Debug)]
pub struct ImagePort;

impl Port for ImagePort {
    fn copy_image(self, page: u64, frames: PfnRange) {
        assert!(page + frames.len() <= boot::read_only_frames().len());
        let address = boot::read_only_parts().0.start + page * PAGE_SIZE as u64;
        let bytes = frames.len() as usize * PAGE_SIZE;
        // SAFETY: text and read-only data are mapped for reading, for ever, and are not written
        // while a single CPU runs this code.
        let bytes = unsafe { core::slice::from_raw_parts(address as *const u8, bytes) };
        block_window::fill(frames, bytes);
    }
    fn rest(self) -> Rest {
        if windows::policy().is_exclusive() { Rest::Frames } else { Rest::Pageblock }
    }
    fn is_in_direct_map(self, frames: PfnRange) -> bool {
        direct::touches(frames)
    }
    fn leave_direct_map(self, frames: PfnRange) {
        if direct::touches(frames) {
            assert!(frames.len() == PAGEBLOCK_FRAMES, "{frames:?} is no pageblock");
            direct::take_out(frames);
        }
    }
    fn prepare_patching(self) -> Result<(), PatchError> {
        patching::prepare().map_err(|_| PatchError::OutOfMemory)
    }
    fn store_text(self, frame: Pfn, offset: usize, bytes: &[u8]) {
        patching::store(frame, offset, bytes);
    }
    fn synchronise(self) {
        patching::synchronise();
    }
    fn forget_text(self) {
        X86.flush_on(cpu::online(), Flush::All);
    }
    fn is_as_built(self, page: u64, bytes: &[u8; PAGE_SIZE]) -> bool {
        built::is_page_as_built(page, bytes)
    }
    fn set_root(self, node: NodeId, root: Pfn) {
        ROOTS[usize::from(node.0)].store(root.0, Ordering::Release);
        if root != tables::root() {
            USED.store(true, Ordering::Relaxed);
        }
    }
}
