//! What devices behind an IOMMU can reach.

use core::fmt;

use crate::PfnRange;

/// There is no memory for the tables of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoTables;

/// The IOMMU does not confirm that a device can no longer reach memory. The memory must stay out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unconfirmed;

/// What one device can reach of memory: nothing at first. A device's addresses equal physical ones.
///
/// Tasks and start-up call this, with interrupts on. Frames in the arguments are the caller's; no two calls at a time
/// name the same frame.
pub trait DeviceDomain: fmt::Debug + Send + Sync {
    /// Lets the device read and write `frames`, none of which it can reach yet.
    ///
    /// # Errors
    /// [`NoTables`]; the device then reaches none of them.
    fn map(&self, frames: PfnRange) -> Result<(), NoTables>;
    /// Takes `frames`, all of which are mapped, from the device. Returns when the device and its translation caches have
    /// forgotten them.
    ///
    /// # Errors
    /// [`Unconfirmed`]; the device may reach them for ever.
    fn unmap(&self, frames: PfnRange) -> Result<(), Unconfirmed>;
}
