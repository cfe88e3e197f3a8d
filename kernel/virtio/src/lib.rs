//! virtio devices on PCI: consoles as byte streams, disks as block devices, networks as frames,
//! folders of the host, memory hotplug, IOMMUs.
//!
//! | module | what |
//! |---|---|
//! | [`platform`] | services of the kernel: configuration space, registers, interrupts, sleep |
//! | [`pci`] | finding functions, their capabilities and BARs; MSI-X |
//! | [`port`] | root ports: slots that devices are plugged into while the machine runs |
//! | [`transport`] | the registers of a virtio function, as `virtio-drivers` wants them |
//! | [`console`] | [`console::Console`]: a [`ByteStream`] |
//! | [`block`] | [`block::Block`]: a [`BlockDevice`] |
//! | [`net`] | [`net::Net`]: a [`FrameDevice`] |
//! | [`p9`] | [`p9::Messages`]: a [`MessageDevice`], by which the host shows folders |
//! | [`iommu`] | [`iommu::VirtioIommu`]: domains for the other devices |
//! | [`mem`] | [`mem::Mem`]: a device that plugs memory in; [`mem::Resizer`] follows what the host wants of it |
//!
//! **Protocol.** Interrupt handlers only wake ([`platform::Notify`]); tasks read the rings, under
//! one spin lock per device, which has no order with other locks. All memory that a device can
//! access comes from its [`Device`](freehold_bounce::Device) of the DMA API, most of it once, at
//! start-up. **Hostile devices** get errors: the chains that they give back are compared with the
//! chains that they have. A device that breaks the protocol is reset and [`Failed`] from then on
//! (`link.rs`: when it releases its memory). A disk that does not answer costs each program one
//! time-out at most ([`block`]). The table of protocol violations and their outcomes is a test:
//! `tests/lies/`.
//!
//! The types for transports are `virtio-drivers`'; rings are `freehold-virtqueue`'s. The crate's
//! PCI transport and its drivers are not used: the transport knows no MSI-X and trusts the notify
//! offset, the console spins until the host has taken its bytes, and neither checks what a device
//! gives back.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

pub mod block;
pub mod console;
#[cfg(test)]
mod driver_tests;
#[cfg(test)]
mod in_place_tests;
pub mod iommu;
mod link;
pub mod mem;
pub mod net;
#[cfg(test)]
mod net_tests;
pub mod p9;
pub mod pci;
#[cfg(test)]
mod pci_tests;
pub mod platform;
pub mod port;
#[cfg(test)]
mod port_tests;
pub mod transport;
#[cfg(test)]
mod waiting_ends;
#[cfg(test)]
mod waiting_model;
#[cfg(test)]
mod waiting_tests;

use core::fmt;

use freehold_bounce::{DmaError, Original, OriginalMut};
use freehold_virtqueue::{Broken, TransportError};
pub use platform::Sleep;

/// The reason why a device cannot be used at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetupError {
    /// A capability or BAR that virtio needs is missing or impossible.
    NoRegisters(&'static str),
    /// The device speaks the legacy interface only.
    Legacy,
    /// The device does not confirm a reset.
    NoReset,
    /// The device does not accept the features.
    Features,
    /// The ring could not be set up.
    Ring(TransportError),
    /// No memory for its buffers.
    Memory(DmaError),
    /// No interrupt for it.
    NoInterrupt,
    /// The IOMMU gives it no domain.
    NoDomain,
    /// The device's description of itself is impossible.
    Nonsense(&'static str),
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRegisters(what) => write!(f, "no {what}"),
            Self::Legacy => f.write_str("a legacy device"),
            Self::NoReset => f.write_str("the device does not confirm a reset"),
            Self::Features => f.write_str("the device refuses our features"),
            Self::Ring(error) => write!(f, "ring: {error}"),
            Self::Memory(error) => write!(f, "buffers: {error}"),
            Self::NoInterrupt => f.write_str("no interrupt vector or no MSI-X"),
            Self::NoDomain => f.write_str("no domain behind the IOMMU"),
            Self::Nonsense(what) => write!(f, "the device's {what} cannot be"),
        }
    }
}

impl core::error::Error for SetupError {}

impl From<TransportError> for SetupError {
    fn from(error: TransportError) -> Self {
        Self::Ring(error)
    }
}

impl From<DmaError> for SetupError {
    fn from(error: DmaError) -> Self {
        Self::Memory(error)
    }
}

/// A device that broke the protocol; it is not used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed;

impl From<Broken> for Failed {
    fn from(_: Broken) -> Self {
        Self
    }
}

/// Bytes in and out, without waiting. Methods are for tasks; see [`platform::Notify`] for when to
/// try again.
pub trait ByteStream: Send + Sync {
    /// Takes bytes that have come; returns 0 if there are none.
    ///
    /// # Errors
    /// [`Failed`].
    fn try_read(&self, bytes: &mut [u8]) -> Result<usize, Failed>;
    /// Sends as many of `bytes` as there is room for, perhaps none.
    ///
    /// # Errors
    /// [`Failed`].
    fn try_write(&self, bytes: &[u8]) -> Result<usize, Failed>;
    /// Whether a read would find bytes (or an error).
    fn is_readable(&self) -> bool;
    /// Whether a write would find room (or an error).
    fn is_writable(&self) -> bool;
    /// Whether the host has taken every byte (or never will).
    fn is_drained(&self) -> bool;
    /// Waits until the host has taken every byte, without sleeping and for at most `looks` checks,
    /// even if a lock is held by a CPU that stands still. For the last output of a panic. Returns
    /// whether the host has taken every byte.
    fn settle(&self, looks: usize) -> bool;
    /// Sends one byte to the host now: no lock, no memory, no wait. For the last output of a panic.
    /// Returns whether the device can do that.
    fn emergency_write(&self, byte: u8) -> bool;
}

/// Counts of a [`FrameDevice`]'s frames since it was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameCounts {
    /// Frames that were received.
    pub received_frames: u64,
    /// Their bytes, Ethernet headers included.
    pub received_bytes: u64,
    /// Frames that the host was given.
    pub sent_frames: u64,
    /// Their bytes, Ethernet headers included.
    pub sent_bytes: u64,
    /// Frames, received or to be sent, of an impossible length.
    pub dropped: u64,
}

/// Ethernet frames to and from the host, without waiting. Methods are for tasks; see
/// [`platform::Notify`] for when to try again.
pub trait FrameDevice: Send + Sync {
    /// The device's own address.
    fn address(&self) -> [u8; 6];
    /// Bytes of the longest packet after an Ethernet header: 68..=1500.
    fn mtu(&self) -> usize;
    /// Copy a frame into a free buffer and let the host have it. `Ok(false)`: there is no room; the
    /// interrupt comes when there is. A frame that has not 14..=mtu+14 bytes is dropped and
    /// counted.
    ///
    /// # Errors
    /// [`Failed`].
    fn send(&self, frame: &[u8]) -> Result<bool, Failed>;
    /// Copies the next received frame into `frame`, which has room for mtu+14 bytes or more.
    /// Returns its length, or `None` if no frame waits. Frames that are shorter than 14 bytes or
    /// longer than `frame` are dropped and counted.
    ///
    /// # Errors
    /// [`Failed`].
    fn receive(&self, frame: &mut [u8]) -> Result<Option<usize>, Failed>;
    /// Returns the counts so far.
    fn counts(&self) -> FrameCounts;
}

/// The reason why a transfer failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockError {
    /// The device reports an error.
    Io,
    /// The device cannot do this.
    Unsupported,
    /// The device is read-only.
    ReadOnly,
    /// Sectors beyond the end, or not whole sectors.
    OutOfRange,
    /// The device did not answer in time.
    TimedOut,
    /// The task was killed, and the caller allowed that this ends the transfer.
    Killed,
    /// The device broke the protocol.
    Failed,
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io => f.write_str("input/output error"),
            Self::Unsupported => f.write_str("not supported by the device"),
            Self::ReadOnly => f.write_str("the device is read-only"),
            Self::OutOfRange => f.write_str("beyond the end of the device"),
            Self::Killed => f.write_str("the task is to end"),
            Self::TimedOut => f.write_str("the device does not answer"),
            Self::Failed => f.write_str("the device broke the protocol"),
        }
    }
}

impl core::error::Error for BlockError {}

impl From<Failed> for BlockError {
    fn from(_: Failed) -> Self {
        Self::Failed
    }
}

/// Bytes in a sector.
pub const SECTOR_SIZE: usize = 512;

/// A disk. Methods sleep for as long as the device answers requests, this one or those before it.
/// Any number of tasks may call them at once. No request fails for lack of memory.
pub trait BlockDevice: Send + Sync {
    /// How long the device may take for one request, in milliseconds.
    fn timeout_ms(&self) -> u32;
    /// Changes that, for requests to come.
    fn set_timeout_ms(&self, limit: u32);
    /// Its size in sectors of 512 bytes.
    fn sectors(&self) -> u64;
    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;
    /// Fill `to`, whole sectors, from `sector` on.
    ///
    /// # Errors
    /// [`BlockError`]; `to` then holds nothing of use.
    fn read(&self, sector: u64, to: &mut dyn OriginalMut, sleep: Sleep) -> Result<(), BlockError>;
    /// Write `from`, whole sectors, from `sector` on.
    ///
    /// # Errors
    /// [`BlockError`]; any part may be written.
    fn write(&self, sector: u64, from: &dyn Original, sleep: Sleep) -> Result<(), BlockError>;
    /// Makes earlier writes durable.
    ///
    /// # Errors
    /// [`BlockError`].
    fn flush(&self, sleep: Sleep) -> Result<(), BlockError>;
}

/// The reason why a message has no usable answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageError {
    /// The server refuses, with this error number of Linux.
    Refused(u32),
    /// The task was killed, and the caller allowed that this ends the exchange. The server has not
    /// got the message.
    Killed,
    /// The task was killed, and the server has the message.
    Abandoned,
    /// The message is longer than any valid one.
    TooLong,
    /// The device broke the protocol.
    Failed,
}

impl From<Failed> for MessageError {
    fn from(_: Failed) -> Self {
        Self::Failed
    }
}

/// Bytes that go with a message.
pub enum Data<'a> {
    /// The message has no bytes.
    None,
    /// Bytes for the server; it may get fewer.
    Sent(&'a dyn Original),
    /// Room for the server's bytes; there may be less.
    Received(&'a mut dyn OriginalMut),
}

/// A message of 9P, and room for its answer.
pub struct Exchange<'a, 'd> {
    /// The message as [`freehold_ninep::Request::encode`] has it. Its tag is set, and with data its
    /// size and count.
    pub request: &'a mut [u8],
    /// Room for the answer's first bytes: all except the data. At least
    /// [`freehold_ninep::DATA_HEADER`].
    pub reply: &'a mut [u8],
    /// Bytes that go with the message.
    pub data: Data<'d>,
    /// Number that [`MessageDevice::take_ended`] returns if the task was killed first and the
    /// device is done with the message after all.
    pub left: Option<u32>,
}

/// A file server's messages. Methods sleep for as long as the server takes. Any number of tasks may
/// call them at once. No message fails for lack of memory.
pub trait MessageDevice: Send + Sync {
    /// The name of the tree that the server shows.
    fn tag(&self) -> &[u8];
    /// Sends a message and sleeps until it is answered. If the answer carries data, returns the
    /// number of data bytes. Otherwise returns the length of the whole answer; `reply` has as many
    /// of its bytes as there was room for.
    ///
    /// # Errors
    /// [`MessageError`].
    fn exchange(&self, exchange: &mut Exchange<'_, '_>, sleep: Sleep) -> Result<usize, MessageError>;
    /// Returns the [`left`](Exchange::left) of a message whose task was killed, once the device is
    /// done with it. Does not sleep.
    fn take_ended(&self) -> Option<u32>;
}
