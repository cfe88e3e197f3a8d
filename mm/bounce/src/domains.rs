//! The memory that each device can reach, where there is an IOMMU.
//!
//! A page joins a device's domain when the device gets it from another owner, and stays for as long
//! as the device was the last to have it: a transfer in such pages maps nothing. It leaves the
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
    /// Lets the device reach `frames`.
    pub fn join(&self, device: u8, frames: PfnRange) -> Result<(), NoTables> {
        self.get(device).map_or(Ok(()), |domain| domain.map(frames))
    }
    /// Takes all from the device at once. After an error all that it has must stay out of use.
    pub fn detach(&self, device: u8) -> Result<(), Unconfirmed> {
        self.get(device).map_or(Ok(()), DeviceDomain::detach)
    }
    /// Lets the device's place have a domain again, with nothing in it.
    pub fn reattach(&self, device: u8) -> Result<(), NoTables> {
        self.get(device).map_or(Ok(()), DeviceDomain::reattach)
    }
    /// Takes `frames` from the device. After an error they must stay out of use.
    pub fn leave(&self, device: u8, frames: PfnRange) -> Result<(), Unconfirmed> {
        self.get(device).map_or(Ok(()), |domain| domain.unmap(frames))
    }
}
