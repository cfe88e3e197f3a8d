//! The memory that each device can access, if there is an IOMMU.
//!
//! A page joins a device's domain when the device gets it from another owner, and stays as long as
//! the device was its last owner, so a transfer in such pages maps nothing. The page leaves the
//! domain before another device, or the page allocator, gets it.

use freehold_machine::{DeviceDomain, NoTables, PfnRange, Unconfirmed};
use spin::Once;

use crate::MAX_DEVICES;

/// The domains, by the devices' numbers. A device without one is not behind an IOMMU.
pub(crate) struct Domains([Once<&'static dyn DeviceDomain>; MAX_DEVICES]);

impl Domains {
    pub const fn new() -> Self {
        Self([const { Once::new() }; MAX_DEVICES])
    }
    /// Sets the domain of a new device.
    pub fn set(&self, device: u8, domain: Option<&'static dyn DeviceDomain>) {
        if let (Some(place), Some(domain)) = (self.0.get(usize::from(device)), domain) {
            place.call_once(|| domain);
        }
    }
    fn get(&self, device: u8) -> Option<&'static dyn DeviceDomain> {
        self.0.get(usize::from(device))?.get().copied()
    }
    /// Lets the device access `frames`.
    pub fn join(&self, device: u8, frames: PfnRange) -> Result<(), NoTables> {
        self.get(device).map_or(Ok(()), |domain| domain.map(frames))
    }
    /// Ends all access of the device at once. After an error all its memory must stay out of use.
    pub fn detach(&self, device: u8) -> Result<(), Unconfirmed> {
        self.get(device).map_or(Ok(()), DeviceDomain::detach)
    }
    /// Gives the device's slot an empty domain again.
    pub fn reattach(&self, device: u8) -> Result<(), NoTables> {
        self.get(device).map_or(Ok(()), DeviceDomain::reattach)
    }
    /// Ends the device's access to `frames`. After an error they must stay out of use.
    pub fn leave(&self, device: u8, frames: PfnRange) -> Result<(), Unconfirmed> {
        self.get(device).map_or(Ok(()), |domain| domain.unmap(frames))
    }
}
