//! Addresses and frame numbers.
//!
//! A [`Pfn`] names a physical page frame, a [`VirtAddr`] a byte of some address space. The two
//! never convert into each other here: only a page table, or the direct map's owner, relates them.

use core::fmt;
use core::ops::Range;

/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a page and in a frame.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// [`PAGE_SIZE`] where addresses and lengths of 64 bits are counted.
pub const PAGE: u64 = PAGE_SIZE as u64;
/// log2 of the frames in a pageblock, the unit that moves between kernel and user memory.
pub const PAGEBLOCK_ORDER: u32 = 9;
/// Frames in a pageblock: 512 of 4 KiB, 2 MiB.
pub const PAGEBLOCK_FRAMES: u64 = 1 << PAGEBLOCK_ORDER;

/// Mask for a frame's record. If the frame's owner is one of the kinds of program memory, the
/// masked bits are [`PROGRAM_OWNER`]. So one load tells whether a frame is outside the kernel's
/// map.
pub const PROGRAM_OWNER_MASK: u64 = 0b1110;
/// See [`PROGRAM_OWNER_MASK`].
pub const PROGRAM_OWNER: u64 = 0b0110;
/// One bit for each owner whose frames the kernel accesses through the direct map. The bit's index
/// is the owner's number: a record's lowest four bits.
pub const KERNEL_OWNERS: u64 = 0b1010_0000_1100;
/// The number of the owner of bounce pages, through which devices' transfers pass. They have no
/// reference count, and the kernel accesses their bytes by windows, too.
pub const BOUNCE_OWNER: u64 = 4;
/// log2 of the frames in the largest block of this owner. A larger one is divided before its bytes
/// are used, except that it is zeroed from its first frame on.
pub const BOUNCE_ORDER: u32 = 6;
/// In the record of a block's first frame, the shift and the mask of the field with log2 of the
/// block's frames. Records of a block's other frames name no owner.
pub const BLOCK_ORDER_SHIFT: u32 = 4;
/// See [`BLOCK_ORDER_SHIFT`].
pub const BLOCK_ORDER_MASK: u64 = 31;

/// A physical page frame number: physical address / 4096.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Pfn(pub u64);

impl Pfn {
    /// The frame that holds the physical byte `addr`.
    pub const fn containing(addr: PhysAddr) -> Self {
        Self(addr.0 >> PAGE_SHIFT)
    }
    /// The physical address of the frame's first byte.
    pub const fn start(self) -> PhysAddr {
        PhysAddr(self.0 << PAGE_SHIFT)
    }
    /// The frame `count` frames further up.
    #[must_use]
    pub const fn offset(self, count: u64) -> Self {
        Self(self.0 + count)
    }
    /// Whether the frame starts a naturally aligned block of 2^`order` frames.
    pub const fn is_aligned(self, order: u32) -> bool {
        self.0 & ((1 << order) - 1) == 0
    }
    /// The first frame of the pageblock this frame is in.
    #[must_use]
    pub const fn pageblock_start(self) -> Self {
        Self(self.0 & !(PAGEBLOCK_FRAMES - 1))
    }
}

impl fmt::Debug for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pfn {:#x}", self.0)
    }
}

/// A physical address, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct PhysAddr(pub u64);

impl fmt::Debug for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "phys {:#x}", self.0)
    }
}

/// A virtual address, in bytes, in the address space that the context names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct VirtAddr(pub u64);

impl VirtAddr {
    /// The first byte of the page this address is in.
    #[must_use]
    pub const fn page_start(self) -> Self {
        Self(self.0 & !(PAGE_SIZE as u64 - 1))
    }
    /// The offset inside the page, 0..4096.
    pub const fn page_offset(self) -> usize {
        (self.0 as usize) & (PAGE_SIZE - 1)
    }
    /// The address `bytes` further up; `None` past the end of the address space.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "virt {:#x}", self.0)
    }
}

/// Kind of access to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Load.
    Read,
    /// Store.
    Write,
    /// Instruction fetch.
    Execute,
}

/// A run of frames, start included, end excluded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PfnRange {
    /// The first frame.
    pub start: Pfn,
    /// The first frame that is no longer part of the run.
    pub end: Pfn,
}

impl PfnRange {
    /// The run from `start` to before `end`; empty where `end` is not above `start`.
    pub const fn new(start: Pfn, end: Pfn) -> Self {
        if end.0 < start.0 { Self { start, end: start } } else { Self { start, end } }
    }
    /// How many frames the run has.
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }
    /// Whether the run has no frame.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
    /// Whether `pfn` is part of the run.
    pub const fn contains(self, pfn: Pfn) -> bool {
        self.start.0 <= pfn.0 && pfn.0 < self.end.0
    }
    /// The frames that both runs have.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }
    /// The frames, upwards.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Pfn> + ExactSizeIterator {
        let Range { start, end } = self.start.0 as usize..self.end.0 as usize;
        (start..end).map(|n| Pfn(n as u64))
    }
}

impl fmt::Debug for PfnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pfn {:#x}..{:#x}", self.start.0, self.end.0)
    }
}
