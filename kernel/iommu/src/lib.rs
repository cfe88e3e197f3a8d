//! Intel VT-d: devices can access the frames in their domains and raise the interrupts that they
//! have entries for, and nothing else.
//!
//! | module | what |
//! |---|---|
//! | [`unit`] | a remapping unit: root and context tables, queued invalidation, faults |
//! | [`domain`] | the frames that one device can access: second-level tables |
//! | [`interrupts`] | the interrupts that devices can raise: the interrupt remapping table |
//!
//! **Rule.** A function of PCI without a domain can access nothing: its context entry is absent,
//! and each access is a fault. A device with a domain can access the frames that were mapped into
//! it, at addresses equal to physical ones. Translated requests (ATS) are refused: a device's own
//! translation cache could not be trusted.
//!
//! **Protocol.** [`Domain::map`] replaces absent entries, which no cache holds, so it sends no
//! invalidation (except if the unit says that it caches absent entries). [`Domain::unmap`] clears
//! entries, sends an invalidation and a wait through the queue, and returns after the unit has
//! answered the wait. Only then may the caller reuse the frames. Without an answer within
//! [`PATIENCE`] checks the frames stay out of use ([`Unconfirmed`](freehold_machine::Unconfirmed)),
//! and the unit is not asked again: no task waits for a dead unit twice. The queue's lock is held
//! while descriptors are written. A waiter holds no lock, and reads a word of its own, so that the
//! order of the answers does not matter. Tables are linked by compare-exchange; no lock is taken
//! where they exist. They exist as long as the domain: at most one frame for 512 that were ever
//! mapped, and their parents.
//!
//! **Windows.** With [`Unit::allow_windows`] a domain has places at the end of its addresses. There
//! a device accesses frames of others for one transfer:
//! [`open`](freehold_machine::DeviceDomain::open) writes their entries,
//! [`close`](freehold_machine::DeviceDomain::close) clears them and returns after the unit's
//! answer, so that the caller may release the frames. No caller opens a window that is open:
//! windows belong to the places of a driver's requests. A page may be in several windows.
//!
//! **Hostile devices** cause faults. They are recorded by the unit in its few registers; a task
//! reads them ([`unit::Unit::take_fault`]) as often as it chooses, so a flood costs no more than
//! that.
//!
//! Tables are written through the kernel's map and not flushed from caches: an emulated unit reads
//! memory as CPUs do. (A real unit may not, ECAP.C; Freehold runs in virtual machines only.)
//!
//! Sources: Intel Virtualization Technology for Directed I/O, revision 3.2: chapters 3 (tables), 5
//! (interrupts), 6.5 (queue), 7 (faults), 10 and 11 (registers). The nearest relatives in Linux are
//! `drivers/iommu/intel/{iommu,dmar,irq_remapping}.c`.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

pub mod domain;
#[cfg(test)]
mod gone_tests;
#[cfg(test)]
mod interrupt_tests;
pub mod interrupts;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
pub mod unit;

use core::fmt;

use freehold_frame::{FrameSource, OutOfMemory};
use freehold_machine::Tables;

pub use domain::Domain;
pub use interrupts::{Arrival, CpuNumbers, GivenEntry, Interrupts};
pub use unit::{Deed, DeviceFault, Mode, Transfers, Unit};

/// Number of checks of a register or a status word before the unit counts as dead. They take
/// seconds, since each check is an exit to the host.
pub const PATIENCE: usize = 10_000_000;

/// A page allocator whose frames can be tables.
pub trait TableSource: FrameSource<Machine: Tables> {}
impl<S: FrameSource<Machine: Tables>> TableSource for S {}

/// The registers of a unit, uncached.
pub trait Registers: Send + Sync + 'static {
    /// Reads 32 bits at a multiple of 4.
    fn read32(&self, offset: usize) -> u32;
    /// Writes 32 bits at a multiple of 4.
    fn write32(&self, offset: usize, value: u32);
    /// Reads 64 bits at a multiple of 8.
    fn read64(&self, offset: usize) -> u64;
    /// Writes 64 bits at a multiple of 8.
    fn write64(&self, offset: usize, value: u64);
}

/// The reason why there is no IOMMU, or no domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IommuError {
    /// Firmware describes no usable IOMMU.
    Absent,
    /// The IOMMU is to stay off, but devices could have accessed programs' memory.
    Off,
    /// The unit lacks something that is needed.
    Unsupported(&'static str),
    /// The unit does not obey.
    Dead(&'static str),
    /// No memory for tables.
    OutOfMemory,
    /// The unit knows no more domains.
    TooManyDomains,
    /// The table has no entry left.
    TooManyInterrupts,
    /// The function has a domain.
    Taken,
}

impl fmt::Display for IommuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("firmware tells of none"),
            Self::Off => f.write_str("iommu=off leaves it off, and dma=direct needs it"),
            Self::Unsupported(what) => write!(f, "it lacks {what}"),
            Self::Dead(what) => write!(f, "it does not answer: {what}"),
            Self::OutOfMemory => f.write_str("no memory for its tables"),
            Self::TooManyDomains => f.write_str("it knows no more domains"),
            Self::TooManyInterrupts => f.write_str("it knows no more interrupts"),
            Self::Taken => f.write_str("the function has a domain"),
        }
    }
}

impl core::error::Error for IommuError {}

impl From<OutOfMemory> for IommuError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}
