//! The memory that devices behind an IOMMU can access.

use core::fmt;

use crate::{Pfn, PfnRange};

/// Largest number of pages that a device accesses through one window: 1 MiB.
pub const WINDOW_PAGES: usize = 256;

/// Largest number of windows of a domain: twice the number of requests that a disk may have at
/// once.
pub const MAX_WINDOWS: usize = 32;

/// Access of a device to memory during one transfer.
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

/// The IOMMU does not confirm that a device can no longer access memory. The memory must stay out
/// of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unconfirmed;

/// The memory that one device can access: none at first. A device's addresses equal physical ones,
/// except those of *windows*: adjacent address ranges through which the device accesses any frames,
/// in any order, for one transfer.
///
/// Tasks and start-up call this, with interrupts on. Frames in the arguments are the caller's; no
/// two calls at a time name the same frame.
pub trait DeviceDomain: fmt::Debug + Send + Sync {
    /// Lets the device read and write `frames`, none of which it can access yet.
    ///
    /// # Errors
    /// [`NoTables`]; the device then can access none of them.
    fn map(&self, frames: PfnRange) -> Result<(), NoTables>;
    /// Removes the device's access to `frames`, all of which are mapped. Returns when the device
    /// and its translation caches have forgotten them.
    ///
    /// # Errors
    /// [`Unconfirmed`]; the device may have access to them for ever.
    fn unmap(&self, frames: PfnRange) -> Result<(), Unconfirmed>;

    /// Ends the domain of a removed device: unmaps everything at once, and frees the tables.
    /// Returns when the device and its translation caches have forgotten all mappings. No other
    /// call runs meanwhile, and the next one is [`DeviceDomain::reattach`]; a mapping fails until
    /// then.
    ///
    /// # Errors
    /// [`Unconfirmed`]: a device in the same slot may for ever access the same memory.
    fn detach(&self) -> Result<(), Unconfirmed> {
        Err(Unconfirmed)
    }
    /// Another device is in the slot of the removed one: it can access nothing at first.
    ///
    /// # Errors
    /// [`NoTables`]; the device then has no domain.
    fn reattach(&self) -> Result<(), NoTables> {
        Err(NoTables)
    }

    /// How many windows the domain has, [`MAX_WINDOWS`] at most.
    fn windows(&self) -> usize {
        0
    }
    /// Opens a closed window through which the device can access `frames`, [`WINDOW_PAGES`] at
    /// most. Returns the device's address of the first frame; the others follow it. The caller
    /// holds the frames until the window is closed again. A frame can be in several windows.
    ///
    /// # Errors
    /// [`NoTables`]: no memory for tables, no such window, or the window is not closed. The device
    /// then can access none of the frames.
    fn open(
        &self,
        _window: usize,
        _frames: &mut dyn Iterator<Item = Pfn>,
        _access: DeviceAccess,
    ) -> Result<u64, NoTables> {
        Err(NoTables)
    }
    /// Closes a window that has `pages` frames, as [`DeviceDomain::unmap`] does.
    ///
    /// # Errors
    /// [`Unconfirmed`]; the device may have access to the frames for ever, and the window is never
    /// opened again.
    fn close(&self, _window: usize, _pages: usize) -> Result<(), Unconfirmed> {
        Err(Unconfirmed)
    }
}
