//! Constraints of a transfer on the addresses that its device gets.
//!
//! Linux' nearest relatives are `struct device_dma_parameters` and the masks of
//! `swiotlb_tbl_map_single`. Its masks are numbers that may have holes; an [`Alignment`] cannot.

use freehold_machine::PAGE_SIZE;

use crate::word::SEGMENT_PAGES;
use crate::{DmaAddr, MAX_MAPPING};

/// An alignment: a power of two, from 1 byte to 256 KiB, the size of a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Alignment(u32);

impl Alignment {
    /// The alignment that every address has.
    pub const BYTE: Self = Self(1);
    /// A page's alignment.
    pub const PAGE: Self = Self(PAGE_SIZE as u32);

    /// Returns the alignment; `None` if `bytes` is not a power of two, or more than a segment.
    pub const fn new(bytes: usize) -> Option<Self> {
        let most = SEGMENT_PAGES as usize * PAGE_SIZE;
        if bytes.is_power_of_two() && bytes <= most { Some(Self(bytes as u32)) } else { None }
    }
    /// Returns the alignment in bytes.
    pub const fn bytes(self) -> usize {
        self.0 as usize
    }
    /// Returns the bits of an address below the alignment.
    pub const fn mask(self) -> u64 {
        self.0 as u64 - 1
    }
}

/// A boundary that no piece of a device's memory may cross: the multiples of a power of two, which
/// is a page at least.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Boundary(u64);

impl Boundary {
    /// Returns the boundary; `None` if `bytes` is not a power of two, or less than a page.
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= PAGE_SIZE as u64 { Some(Self(bytes)) } else { None }
    }
    /// Returns the bytes from an address to the next boundary.
    pub(crate) const fn room(self, address: u64) -> u64 {
        self.0 - (address & (self.0 - 1))
    }
}

/// See the module's head. [`Constraint::NONE`] asks for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Constraint {
    /// Modulus under which the device's address and the original's are equal (Linux: min_align_mask
    /// plus 1).
    pub keeps: Alignment,
    /// Multiple at which the memory begins and ends, so that an IOMMU with pages of that size shows
    /// the device nothing else (Linux: alloc_align_mask plus 1).
    pub align: Alignment,
    /// Boundary that no piece crosses; `None`: pieces may have any length (Linux: the segment
    /// boundary, all ones).
    pub boundary: Option<Boundary>,
    /// The highest allowed address, if it is lower than the device's own limit.
    pub reach: DmaAddr,
}

impl Constraint {
    /// The constraint that allows any memory that the device can use.
    pub const NONE: Self =
        Self { keeps: Alignment::BYTE, align: Alignment::BYTE, boundary: None, reach: DmaAddr(u64::MAX) };

    /// Returns the number of bytes of which each run of memory is a multiple.
    pub(crate) fn step(self) -> usize {
        self.keeps.max(self.align).bytes()
    }
}

/// A transfer to be bounced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Its bytes.
    pub length: usize,
    /// The original's address. Only the bits that [`Constraint::keeps`] names count.
    pub origin: u64,
    /// Constraint on the addresses that the device gets.
    pub constraint: Constraint,
}

impl Transfer {
    /// Returns a transfer without a constraint.
    pub const fn of(length: usize) -> Self {
        Self { length, origin: 0, constraint: Constraint::NONE }
    }
    /// Bytes of memory before the transfer's first.
    pub(crate) const fn start(self) -> usize {
        (self.origin & self.constraint.keeps.mask()) as usize
    }
    /// Bytes of memory up to the transfer's last; `None` for more than a mapping can have.
    pub(crate) fn span(self) -> Option<usize> {
        self.start().checked_add(self.length).filter(|&span| span <= MAX_MAPPING)
    }
}
