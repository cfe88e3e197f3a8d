//! The DMA API: the only way in which a device gets an address.
//!
//! **The rule.** A device accesses only memory that the DMA API put into its domain. Without an
//! IOMMU, only bounce frames are in it.
//!
//! **Invariant.** A device sees bytes only of [`Bounce`](freehold_frame::Bounce) and
//! [`Ring`](freehold_frame::Ring) frames, and behind an IOMMU also of frames that are held for one
//! transfer ([`InPlace`]). A bounce or ring page belongs to one device at a time, because an IOMMU
//! separates pages. Small buffers are in cells of 64, 512 and 2,048 bytes inside a device's own
//! pages.
//!
//! **Exclusion.** Pages of transfers, including cells, hold programs' bytes in transit. They are
//! outside the kernel's map, and each copy opens a window on a page. Rings are in the map: they
//! hold addresses and lengths, and drivers keep pointers to them.
//!
//! **Residue.** No device sees bytes that another device may have left in memory: a page that moves
//! from one device to another is zeroed before the other gets its address. So is memory from the
//! page allocator. So a hostile device learns only the bytes that drivers exchanged with it.
//! Programs that share a device are separated by the driver, which never copies out more bytes than
//! the device reports to have written. So an honest device shows a program only its own transfer,
//! and a dishonest one can hand over only bytes that it was given before. [`Scrub::Always`] also
//! zeroes at the end of each mapping: then a dishonest device cannot do even that.
//!
//! | what | for | memory |
//! |---|---|---|
//! | [`Device::map`] → [`DmaMapping`] | one transfer of existing bytes | pages in up to 16 runs, or a cell; copied |
//! | [`Device::buffer`] → [`DmaMapping`] | a buffer that a driver fills itself | the same, not copied |
//! | [`Device::buffer_up_to`] → [`DmaMapping`] | a transfer that can go in parts | what can be had now, a page at least |
//! | [`Device::bounce`] → [`DmaMapping`] | one transfer whose addresses have to be aligned, or near | the same, aligned |
//! | [`Device::in_place`] → [`InPlace`] | one transfer of pinned or page-cache frames, behind an IOMMU | the frames themselves |
//! | [`Device::coherent`] → [`Coherent`] | rings that both sides use at any time | whole frames |
//!
//! An address a device sees ([`DmaAddr`]) never mixes with a physical one. They are equal, behind
//! an IOMMU too: there a page is mapped when it joins a device ([`DeviceRules::domain`]), and
//! unmapped before another device or the page allocator gets it; a transfer maps nothing. Memory
//! that the IOMMU does not confirm as unmapped is lost. Each device has a name, an address limit
//! and a quota. The memory that it holds is counted, so that a driver's leak can be attributed.
//!
//! **Memory.** Pieces of up to 256 pages come from the page allocator, and segments of 64 pages go
//! back to it (`pool.rs`, `pool/growth.rs`), both near the CPU that uses them.
//! Taking and freeing change one word by compare-exchange, in a segment that other CPUs avoid if
//! they can, and counts of this CPU. No lock is taken, and no cache line is written that all CPUs
//! share (`word.rs`: the protocol).
//!
//! In a confidential guest, memory becomes visible to the host when a segment or a ring is added,
//! and private before it is returned to the page allocator ([`Dma::set_publisher`]); a transfer
//! changes nothing.
//!
//! A device that is unplugged leaves an empty slot ([`Device::detach`], `gone.rs`).
//!
//! A restricted device ([`Dma::attach_restricted`]) has a pool that no other device uses and that
//! never grows.
//!
//! **Lost memory.** A driver gives memory back once the device has returned the buffer or has
//! confirmed a reset. If the device confirms neither, the driver calls [`DmaMapping::lose`],
//! [`Coherent::lose`] or [`InPlace::lose`]: the memory leaks on purpose, [`Usage::lost`] and
//! [`Statistics::lost`] count it, and [`Dma::kept`] names the holders of other owners' frames.
//!
//! **Context.** Tasks and start-up only, interrupts on; no interrupt handler calls this. **Locks.**
//! Spin locks are held for a few instructions, while a segment or a page of cells is added or
//! removed. Frames are allocated and freed outside them. **Failure.** Every function that takes
//! memory returns [`DmaError`]; freeing cannot fail.
//!
//! Words, parameters and counts are those of Linux' SWIOTLB (Documentation/core-api/swiotlb.rst): a
//! slot is 2 KiB. Unlike there, a mapping need not be contiguous, pools do not belong to a device,
//! and memory is returned to the page allocator.
#![doc = "\n"]
#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

mod areas;
#[cfg(test)]
mod areas_tests;
mod cells;
mod coherent;
mod constraint;
mod device;
mod domains;
mod gone;
#[cfg(test)]
mod gone_tests;
#[cfg(test)]
mod growth_tests;
mod in_place;
#[cfg(test)]
mod in_place_tests;
mod mapping;
mod original;
mod owners;
mod pool;
mod published;
#[cfg(test)]
mod reach;
mod runs;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upstream;
mod usage;
mod word;
mod worker;

/// The atomics of `word.rs` and `owners.rs`, which `tests/loom.rs` replaces.
mod atomic {
    pub use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
}

use core::fmt;

use freehold_frame::FrameSource;
use freehold_machine::{Cpus, PAGE_SIZE, PhysicalBytes};

pub use coherent::Coherent;
pub use constraint::{Alignment, Boundary, Constraint, Transfer};
pub use device::{Device, DeviceRules, Dma, Limits, Scrub};
pub use gone::DetachError;
pub use in_place::InPlace;
pub use mapping::DmaMapping;
pub use original::{FrameBytes, FrameList, HeldBytes, HeldFrames, Original, OriginalMut};
pub use runs::{MAX_RUNS, Piece};
pub use usage::{Statistics, Usage};
pub use worker::Worker;

/// Bytes in a slot, the unit of counts and parameters.
pub const SLOT_SIZE: usize = 2048;
/// Bytes of the longest mapping, if every run is a whole segment: 4 MiB.
pub const MAX_MAPPING: usize = MAX_RUNS * word::SEGMENT_PAGES as usize * PAGE_SIZE;
/// Largest number of devices.
pub const MAX_DEVICES: usize = 32;

/// A page allocator of DMA memory, which can access the bytes of its frames.
pub trait DmaSource: FrameSource<Machine: PhysicalBytes + Cpus> {}
impl<S: FrameSource<Machine: PhysicalBytes + Cpus>> DmaSource for S {}

/// An address as a device uses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DmaAddr(pub u64);

impl fmt::Debug for DmaAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dma {:#x}", self.0)
    }
}

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The device reads the bytes.
    ToDevice,
    /// The device writes the bytes.
    FromDevice,
    /// The device reads and writes the bytes.
    Bidirectional,
}

impl Direction {
    /// Whether the device reads.
    pub const fn is_to_device(self) -> bool {
        matches!(self, Self::ToDevice | Self::Bidirectional)
    }
    /// Whether the device writes.
    pub const fn is_from_device(self) -> bool {
        matches!(self, Self::FromDevice | Self::Bidirectional)
    }
}

/// Reasons why a device gets no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DmaError {
    /// No bytes were asked for.
    Empty,
    /// More than [`MAX_MAPPING`] bytes: the driver must split the transfer.
    TooLong,
    /// The device's quota is used up.
    Quota,
    /// All devices together have reached the cap.
    Cap,
    /// The available memory lies above the device's address limit.
    OutOfReach,
    /// No memory.
    OutOfMemory,
    /// [`MAX_DEVICES`] are attached already.
    TooManyDevices,
}

impl fmt::Display for DmaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "a mapping of no bytes",
            Self::TooLong => "a mapping of more than 4 MiB",
            Self::Cap => "the cap of all devices is reached",
            Self::Quota => "the device's quota is used up",
            Self::OutOfReach => "no memory within the device's reach",
            Self::OutOfMemory => "out of memory",
            Self::TooManyDevices => "too many devices",
        })
    }
}

impl core::error::Error for DmaError {}

impl From<freehold_frame::OutOfMemory> for DmaError {
    fn from(_: freehold_frame::OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}
