//! Frames and their records, which start-up passes to the page allocator.

use std::sync::OnceLock;

use freehold_machine::{Cpus, Pfn, PfnRange, Topology};
use freehold_xpfo::{Policy, Rules};
use zerocopy::FromZeros;

pub use freehold_arch::memory::{FrameProvider, MapFigures, OutOfMemory};

use super::machine::{self, RESERVED, ROOT};
use super::std;

/// Returns a record and a second value for each frame, all zero.
///
/// # Errors
/// None on a host.
pub fn frame_table<T: FromZeros, U: FromZeros>(
    _topology: &Topology,
) -> Result<(&'static [T], &'static [U]), OutOfMemory> {
    Ok((machine::per_frame(), machine::per_frame()))
}

/// Returns `count` zeroes that are never freed.
///
/// # Errors
/// None on a host.
pub fn boot_zeroes<T: FromZeros + Sync>(count: usize) -> Result<&'static [T], OutOfMemory> {
    Ok(machine::zeroes(count))
}

/// Returns the frames that start-up took.
pub fn seal() -> &'static [PfnRange] {
    &RESERVED
}

static POLICY: OnceLock<Policy> = OnceLock::new();

/// Returns the policy by which frames of programs are kept out of the direct map.
pub fn policy() -> Policy {
    POLICY.get().copied().unwrap_or_default()
}

/// Sets the policy of the kernel's command line; once.
pub fn set_policy(policy: Policy) {
    // The first policy stays: there is one kernel in a process.
    let _ = POLICY.set(policy);
}

/// Does nothing: the heap is the host's and takes no frames.
pub fn set_frame_provider(_provider: &'static dyn FrameProvider) {}

/// Does nothing: windows read no record.
///
/// # Errors
/// None on a host.
pub fn use_frame_table() -> Result<(), OutOfMemory> {
    Ok(())
}

/// Returns zeroes: the model keeps no figures of its map.
pub fn map_figures() -> MapFigures {
    MapFigures::default()
}

/// Number of windows opened, and of laps begun.
pub fn window_totals() -> [u64; 2] {
    [0; 2]
}

/// Number of refused windows: always 0, since the model panics instead.
pub fn refused_windows() -> u64 {
    0
}

/// Whether the kernel can access the frame's bytes through the direct map.
pub fn is_in_direct_map(frame: Pfn) -> bool {
    machine::model().is_in_direct_map(frame)
}

/// Returns the rules for the kernel half: it has no leaf, since the model keeps the direct map
/// apart.
pub fn map_rules() -> Rules {
    let nothing = PfnRange { start: Pfn(0), end: Pfn(0) };
    Rules { root: ROOT, windows: 0..0, stacks: 0..0, read_only: nothing, exclusive: policy().is_exclusive() }
}

/// Memory that is plugged in and out: each frame of the model has its record from the start.
pub mod pluggable {
    use super::{OutOfMemory, Pfn, PfnRange, machine};

    /// Whether the frame is in a pageblock that can be plugged in.
    pub fn is_plugged(frame: Pfn) -> bool {
        machine::model().topology().pluggable_ranges().any(|range| range.frames.contains(frame))
    }
    /// Whether memory can be plugged in at `blocks`.
    pub fn is_possible(blocks: PfnRange) -> bool {
        !blocks.is_empty()
    }
    /// Declares the memory that may be plugged in.
    ///
    /// # Errors
    /// None on a host.
    pub fn declare(_runs: &[PfnRange]) -> Result<(), OutOfMemory> {
        Ok(())
    }
    /// Makes records for the pageblock. They exist already.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub fn plug(_block: Pfn, _alloc: &mut dyn FnMut(u32) -> Option<Pfn>) -> Result<(), OutOfMemory> {
        Ok(())
    }
    /// Frees the records.
    pub fn unplug(_block: Pfn) {}
}

/// The host build has no replicas of the text: all nodes share the test's.
pub mod replica {
    use freehold_machine::{CpuId, NodeId, Topology, VirtAddr};
    use freehold_replica::{KernelImage, PatchError, Port, Rest};

    use super::{Cpus, Pfn, PfnRange, ROOT, machine};

    /// Returns whether nodes have roots of their own: never.
    pub fn are_used() -> bool {
        false
    }
    /// Counts nothing: there is one root.
    pub fn note_shared_load(_cpu: CpuId) {}
    /// Returns 0: no load is counted.
    pub fn shared_load_count() -> u64 {
        0
    }
    /// Does nothing: no shared text was loaded.
    pub fn forget_shared_text(_cpu: CpuId) {}
    /// Does nothing: every CPU has the one root.
    pub fn load_own(_cpu: CpuId) {}
    /// Returns an image without a page, on the first CPU's node.
    pub fn image(_topology: &Topology) -> KernelImage {
        let node = super::super::Hardware.node_of_cpu(CpuId(0));
        KernelImage { start: VirtAddr(0), pages: 0, text_pages: 0, first: Pfn(0), node, root: ROOT }
    }

    /// The image and the nodes' roots.
    #[derive(Clone, Copy, Debug)]
    pub struct ImagePort;

    impl Port for ImagePort {
        fn copy_image(self, page: u64, _frames: PfnRange) {
            panic!("page {page} of an image without pages")
        }
        fn forget_text(self) {}
        fn rest(self) -> Rest {
            Rest::Pageblock
        }
        fn is_in_direct_map(self, frames: PfnRange) -> bool {
            machine::model().is_in_direct_map(frames.start)
        }
        fn leave_direct_map(self, _frames: PfnRange) {}
        fn prepare_patching(self) -> Result<(), PatchError> {
            Ok(())
        }
        fn store_text(self, frame: Pfn, _offset: usize, _bytes: &[u8]) {
            panic!("{frame:?} of an image without pages")
        }
        fn synchronise(self) {}
        fn set_root(self, _node: NodeId, _root: Pfn) {}
    }
}
