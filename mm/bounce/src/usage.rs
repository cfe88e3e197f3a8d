//! Figures of the memory that devices hold and of their transfers.

/// Memory that a device holds, and counts of its transfers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Its name.
    pub name: &'static str,
    /// Bytes of slots, coherent frames, and other owners' frames accessed in place.
    pub held: usize,
    /// Largest number of bytes of slots and coherent frames that the device may hold.
    pub quota: usize,
    /// Bytes of `held` that stay out of use for ever: the device may still write to them.
    pub lost: usize,
    /// Number of times that its driver waited for memory.
    pub waits: usize,
    /// Segments that were added because the device found too little memory.
    pub grows: usize,
    /// Total bytes of slots that it has taken since it was attached.
    pub bytes: usize,
    /// Mappings that failed.
    pub failed: usize,
}

/// Counts over all devices, with Linux' names if Linux has the count (debugfs swiotlb/).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Slots in all segments (io_tlb_nslabs).
    pub nslabs: usize,
    /// Slots in use (io_tlb_used).
    pub used: usize,
    /// High-water mark of used slots, exact to a segment per CPU (io_tlb_used_hiwater).
    pub used_hiwater: usize,
    /// Slots that callers added and that the worker has not scanned yet (io_tlb_transient_nslabs).
    pub transient: usize,
    /// Segments added so far.
    pub grows: usize,
    /// Segments returned to the page allocator so far.
    pub shrinks: usize,
    /// Frames in coherent use.
    pub coherent_frames: usize,
    /// Mappings that failed.
    pub failed: usize,
    /// Bytes that all devices together have lost: see
    /// [`DmaMapping::lose`](crate::DmaMapping::lose).
    pub lost: usize,
    /// Total bytes of slots that devices have taken.
    pub bytes: usize,
}
