//! A transport that notes where a ring is set up: the crate `virtio-drivers` does not tell.

use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{PhysAddr, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Addresses of a ring's two blocks of frames, as the device was told them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RingPlace {
    /// Descriptors and the available ring.
    pub driver: PhysAddr,
    /// The used ring.
    pub device: PhysAddr,
}

/// Passes everything on, and notes the addresses of the last queue.
pub(crate) struct Noting<'a, T> {
    pub transport: &'a mut T,
    pub place: RingPlace,
}

impl<T: Transport> Transport for Noting<'_, T> {
    fn device_type(&self) -> DeviceType {
        self.transport.device_type()
    }
    fn read_device_features(&mut self) -> u64 {
        self.transport.read_device_features()
    }
    fn write_driver_features(&mut self, features: u64) {
        self.transport.write_driver_features(features);
    }
    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.transport.max_queue_size(queue)
    }
    fn notify(&mut self, queue: u16) {
        self.transport.notify(queue);
    }
    fn get_status(&self) -> DeviceStatus {
        self.transport.get_status()
    }
    fn set_status(&mut self, status: DeviceStatus) {
        self.transport.set_status(status);
    }
    fn set_guest_page_size(&mut self, size: u32) {
        self.transport.set_guest_page_size(size);
    }
    fn requires_legacy_layout(&self) -> bool {
        self.transport.requires_legacy_layout()
    }
    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: PhysAddr,
        driver: PhysAddr,
        device: PhysAddr,
    ) {
        self.place = RingPlace { driver: descriptors, device };
        self.transport.queue_set(queue, size, descriptors, driver, device);
    }
    fn queue_unset(&mut self, queue: u16) {
        self.transport.queue_unset(queue);
    }
    fn queue_used(&mut self, queue: u16) -> bool {
        self.transport.queue_used(queue)
    }
    fn ack_interrupt(&mut self) -> InterruptStatus {
        self.transport.ack_interrupt()
    }
    fn read_config_generation(&self) -> u32 {
        self.transport.read_config_generation()
    }
    fn read_config_space<V: FromBytes + IntoBytes>(&self, offset: usize) -> Result<V> {
        self.transport.read_config_space(offset)
    }
    fn write_config_space<V: IntoBytes + Immutable>(&mut self, offset: usize, value: V) -> Result<()> {
        self.transport.write_config_space(offset, value)
    }
}
