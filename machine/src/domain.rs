//! The memory that devices behind an IOMMU can reach.

use core::fmt;

use crate::{Pfn, PfnRange};

/// The most pages that a device reaches through one window: 1 MiB.
pub const WINDOW_PAGES: usize = 256;

/// The most windows of a domain: one for each request that a disk may have at once, and as many
/// again.
pub const MAX_WINDOWS: usize = 32;

/// Access of a device to memory that it reaches for one transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceAccess {
    /// Read the memory.
    Read,
    /// Write the memory, and not read its bytes.
    Write,
    /// Read and write the memory.
    ReadWrite,
}

/// There is no memory for the tables of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoTables;

/// The IOMMU does not confirm that a device can no longer reach memory. The memory must stay out of
/// use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unconfirmed;

/// The memory that one device can reach: none at first. A device's addresses equal physical ones,
/// except those of *windows*: places, side by side, where the device reaches frames of any order
/// for one transfer.
///
/// Tasks and start-up call this, with interrupts on. Frames in the arguments are the caller's; no
/// two calls at a time name the same frame.
pub trait DeviceDomain: fmt::Debug + Send + Sync {
    /// Lets the device read and write `frames`, none of which it can reach yet.
    ///
    /// # Errors
    /// [`NoTables`]; the device then reaches none of them.
    fn map(&self, frames: PfnRange) -> Result<(), NoTables>;
    /// Takes `frames`, all of which are mapped, from the device. Returns when the device and its
    /// translation caches have forgotten them.
    ///
    /// # Errors
    /// [`Unconfirmed`]; the device may reach them for ever.
    fn unmap(&self, frames: PfnRange) -> Result<(), Unconfirmed>;

    /// The device is gone: takes all from it at once, and gives the tables' memory back. Returns
    /// when the device and its translation caches have forgotten all. No other call is under way,
    /// and none but [`DeviceDomain::reattach`] comes next; a mapping fails until then.
    ///
    /// # Errors
    /// [`Unconfirmed`]: a device in its place may reach for ever what it reached.
    fn detach(&self) -> Result<(), Unconfirmed> {
        Err(Unconfirmed)
    }
    /// Another device is in the place of the one that went: it reaches nothing at first.
    ///
    /// # Errors
    /// [`NoTables`]; it then has no domain.
    fn reattach(&self) -> Result<(), NoTables> {
        Err(NoTables)
    }

    /// How many windows the domain has, [`MAX_WINDOWS`] at most.
    fn windows(&self) -> usize {
        0
    }
    /// Lets the device reach `frames`, [`WINDOW_PAGES`] at most, through a window that is closed.
    /// Returns the first one's address for the device; the others follow it. The caller holds the
    /// frames until the window was closed. A frame can be in several windows.
    ///
    /// # Errors
    /// [`NoTables`]: no memory for tables, no such window, or one that is not closed; the device
    /// then reaches none of them.
    fn open(
        &self,
        _window: usize,
        _frames: &mut dyn Iterator<Item = Pfn>,
        _access: DeviceAccess,
    ) -> Result<u64, NoTables> {
        Err(NoTables)
    }
    /// Closes a window with so many frames in it, as [`DeviceDomain::unmap`] takes frames.
    ///
    /// # Errors
    /// [`Unconfirmed`]; the device may reach the frames for ever, and the window is never opened
    /// again.
    fn close(&self, _window: usize, _pages: usize) -> Result<(), Unconfirmed> {
        Err(Unconfirmed)
    }
}
