//! Figures of the memory that devices hold and of their transfers.

/// Memory that a device holds, and counts of its transfers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Its name.
    pub name: &'static str,
    /// Bytes of slots, coherent frames, and others' frames in their places.
    pub held: usize,
    /// The most bytes of slots and coherent frames that it may hold.
    pub quota: usize,
    /// Bytes of `held` that stay out of use for ever: the device may still write to them.
    pub lost: usize,
    /// How often its driver waited for memory.
    pub waits: usize,
    /// Segments that were added because it found too little.
    pub grows: usize,
    /// Bytes of slots that it had, one time after the other.
    pub bytes: usize,
    /// Mappings that failed.
    pub failed: usize,
}

/// Counts over all devices, with Linux' names where it has one (debugfs swiotlb/).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Slots in all segments (io_tlb_nslabs).
    pub nslabs: usize,
    /// Slots in use (io_tlb_used).
    pub used: usize,
    /// The most that ever were, to within a segment for each CPU (io_tlb_used_hiwater).
    pub used_hiwater: usize,
    /// Slots that callers added and that the worker has not looked at (io_tlb_transient_nslabs).
    pub transient: usize,
    /// Segments added and removed.
    pub grows: usize,
    /// Segments that went back to the page allocator.
    pub shrinks: usize,
    /// Frames in coherent use.
    pub coherent_frames: usize,
    /// Mappings that failed.
    pub failed: usize,
    /// Bytes that all devices together have lost: see
    /// [`DmaMapping::lose`](crate::DmaMapping::lose).
    pub lost: usize,
    /// Bytes of slots that devices had, one time after the other.
    pub bytes: usize,
}
