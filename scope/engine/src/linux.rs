//! The direct map of a stock Linux, which publishes nothing: all memory but that of
//! memfd_secret(2).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::guest::{GuestMemory, walk};

/// The direct map's address without KASLR (Documentation/arch/x86/x86_64/mm.rst; 4 levels).
pub const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;

/// Frames of the image without KASLR, which stay in the direct map.
const IMAGE: [u64; 3] = [0x1000, 0x1001, 0x1200];

/// Where the tables of the direct map begin.
#[derive(Default)]
pub struct LinuxMap {
    /// The root, once it was found; 0 before.
    found: AtomicU64,
}

impl LinuxMap {
    /// Returns the root among `frames` frames. Registers are out of the microscope's sight: it is
    /// the lowest table whose direct map has the image's frames in order.
    pub fn root(&self, memory: &dyn GuestMemory, frames: u64) -> Option<u64> {
        let shows = |root: u64, frame: u64| {
            walk(memory, root, DIRECT_MAP + (frame << 12)).is_some_and(|leaf| leaf.page >> 12 == frame)
        };
        let is_root = |root: &u64| IMAGE.iter().all(|&frame| shows(*root, frame));
        let known = self.found.load(Ordering::Relaxed);
        if known != 0 && is_root(&known) {
            return Some(known);
        }
        let root = (1..frames).map(|frame| frame << 12).find(is_root)?;
        self.found.store(root, Ordering::Relaxed);
        Some(root)
    }
}
