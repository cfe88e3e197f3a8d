//! When a device stops using memory.
//!
//! A device owns memory that it was lent until it gives it back, confirms a reset, or is cut off.
//! It confirms a reset when the driver writes 0 to the status and the device shows 0 there (virtio
//! 1.2, 2.4.1 and 4.1.4.3.1); it is cut off when its slot is empty or has no power. Only [`reset`]
//! and [`unplugged`] make a [`DeviceReset`], and only with one does a [`Queue`](crate::Queue) free
//! the memory that its device has. Linux' nearest relative is `vp_reset` in
//! drivers/virtio/virtio_pci_modern.c, which waits for ever.

use virtio_drivers::transport::{DeviceStatus, Transport};

/// Number of checks whether a reset is done. They take a tenth of a second to a second, since each
/// exits to the host.
const RESET_LOOKS: usize = 100_000;

/// The slot that a device is plugged into.
pub trait PowerSlot {
    /// Whether no device in the slot can access memory: it is empty, or has no power.
    fn is_off(&self) -> bool;
}

/// Proof that a device has confirmed a reset, or is cut off: it uses no memory until it is set up
/// again.
#[derive(Debug)]
pub struct DeviceReset(());

/// Resets the device and waits for its confirmation, without sleeping and for a bounded time.
/// `None`: the device does not confirm, and may still write to everything that it was lent.
pub fn reset<T: Transport>(transport: &mut T) -> Option<DeviceReset> {
    transport.set_status(DeviceStatus::empty());
    let confirmed = (0..RESET_LOOKS).any(|look| {
        if look > 0 {
            core::hint::spin_loop();
        }
        transport.get_status().is_empty()
    });
    confirmed.then_some(DeviceReset(()))
}

/// Returns the slot's proof; `None` while its device has power.
pub fn unplugged(slot: &dyn PowerSlot) -> Option<DeviceReset> {
    slot.is_off().then_some(DeviceReset(()))
}
