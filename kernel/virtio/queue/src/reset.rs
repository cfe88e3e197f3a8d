//! When a device lets go of memory.
//!
//! A device owns what it was lent until it gives it back or confirms a reset: the driver writes 0
//! to the status and the device shows 0 there once the reset is done (virtio 1.2, 2.4.1 and
//! 4.1.4.3.1). Only [`reset`] makes a [`DeviceReset`], and only with one does a
//! [`Queue`](crate::Queue) free what its device has. Linux' nearest relative is `vp_reset` in
//! drivers/virtio/virtio_pci_modern.c, which waits for ever.

use virtio_drivers::transport::{DeviceStatus, Transport};

/// How often to look whether a reset is done: a tenth of a second to a second, since each look
/// leaves the guest.
const RESET_LOOKS: usize = 100_000;

/// Proof that a device has confirmed a reset: it uses no memory until it is set up again.
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
