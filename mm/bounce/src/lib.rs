//! The DMA API: the only road by which a device gets an address.
//!
//! **The rule.** A device reaches what the DMA API put into its domain, and nothing else. Without an IOMMU that is bounce
//! frames only.
//!
//! **Invariant.** A device sees bytes only of [`Bounce`](freehold_frame::Bounce) frames, and of those only
//! slots that were zero when it got them, or that a driver filled for it. Nobody's residue is in them: slots
//! are scrubbed when they are given back, padding included. So a hostile device learns and damages nothing
//! but what drivers exchange with it.
//!
//! | what | for | memory |
//! |---|---|---|
//! | [`Device::map`] → [`Mapping`] | one transfer of existing bytes | slots of 2 KiB, at most 256 KiB, copied |
//! | [`Device::buffer`] → [`Mapping`] | a buffer that a driver keeps and refills | the same, starting as zeroes |
//! | [`Device::coherent`] → [`Coherent`] | rings that both sides use at any time | whole frames |
//!
//! An address a device sees ([`DmaAddr`]) never mixes with a physical one; today they are equal, and an IOMMU
//! or encrypted memory changes that here and nowhere else. Each device has a name, a reach (the highest address it can
//! use) and a quota, and what it holds is counted, so that a driver's leak has an owner.
//!
//! **Lost memory.** A driver gives memory back once the device has returned the buffer or has confirmed a reset. If
//! the device confirms neither, the driver calls [`Mapping::lose`] or [`Coherent::lose`]: the memory leaks on purpose,
//! and [`Usage::lost`] and [`Statistics::lost`] count it.
//!
//! **Context.** Tasks and start-up only, interrupts on; no interrupt handler calls this. **Lock.** One spin
//! lock over the pools; frames are asked from and given back to the page allocator outside it. **Failure.**
//! Every function that takes memory returns [`DmaError`]; letting go cannot fail.
//!
//! Slots and segments follow Linux' SWIOTLB (Documentation/core-api/swiotlb.rst): a mapping lies inside one segment
//! of 128 slots and shares no slot.
//!
//! ```
//! use core::sync::atomic::AtomicU64;
//! use freehold_bounce::{DeviceRules, Direction, Dma, DmaAddr};
//! use freehold_buddy::{Buddy, Options};
//! use freehold_frame::{FrameRecord, FrameTable};
//! use freehold_machine::model::{Config, Model};
//!
//! // A machine of 16 MiB with a page allocator.
//! let machine = Model::new(Config { frames: 4096, cpus: 1, nodes: 1, ..Config::default() });
//! let records = (0..4096).map(|_| zerocopy::FromZeros::new_zeroed()).collect::<Box<[FrameRecord]>>();
//! let options = Options::default();
//! let words = Buddy::<Model>::metadata_words(machine.topology(), 1, &options);
//! let metadata = (0..words).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>();
//! let table = FrameTable::new(Box::leak(records));
//! let buddy = Buddy::new(machine, table, Box::leak(metadata), machine.topology(), &[], options).ok().unwrap();
//! let frames: &'static Buddy<Model> = Box::leak(Box::new(buddy));
//!
//! // A device that may hold 64 KiB.
//! let dma: &'static Dma<_> = Box::leak(Box::new(Dma::new(frames)));
//! let rules = DeviceRules { name: "disk", reach: DmaAddr(u64::MAX), quota: 64 << 10 };
//! let disk = dma.attach(rules)?;
//! let mut sector = [0u8; 512];
//! let mapping = disk.map(sector.as_slice(), Direction::FromDevice)?;
//! // Here the device writes to `mapping.address()`; this stands for it.
//! mapping.write(0, b"boot");
//! mapping.unmap(sector.as_mut_slice());
//! assert_eq!(&sector[..4], b"boot");
//! assert_eq!(disk.held(), 0);
//! # Ok::<(), freehold_bounce::DmaError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod device;
mod mapping;
mod original;
mod pool;
#[cfg(test)]
mod tests;

use core::fmt;

use freehold_frame::FrameSource;
use freehold_machine::PhysicalBytes;

pub use device::{Coherent, Device, DeviceRules, Dma, Statistics, Usage};
pub use mapping::Mapping;
pub use original::{FrameBytes, Original, OriginalMut};

/// Bytes in a slot.
pub const SLOT_SIZE: usize = 2048;
/// Slots in a segment, the most that one mapping can have.
pub const SEGMENT_SLOTS: usize = 128;
/// Bytes of the longest mapping: 256 KiB.
pub const MAX_MAPPING: usize = SLOT_SIZE * SEGMENT_SLOTS;
/// The most devices.
pub const MAX_DEVICES: usize = 32;

/// A page allocator whose frames' bytes can be reached: what DMA memory is made of.
pub trait DmaSource: FrameSource<Machine: PhysicalBytes> {}
impl<S: FrameSource<Machine: PhysicalBytes>> DmaSource for S {}

/// An address as a device uses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DmaAddr(pub u64);

impl fmt::Debug for DmaAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dma {:#x}", self.0)
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The device reads them.
    ToDevice,
    /// The device writes them.
    FromDevice,
    /// Both.
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

/// Why a device does not get its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DmaError {
    /// No bytes were asked for.
    Empty,
    /// More than [`MAX_MAPPING`] bytes: the driver must split the transfer.
    TooLong,
    /// The device's quota is used up.
    Quota,
    /// What memory there is lies beyond the device's reach.
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
            Self::TooLong => "a mapping of more than 256 KiB",
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
