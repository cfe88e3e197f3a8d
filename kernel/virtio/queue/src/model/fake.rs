//! A device whose registers a test controls.

extern crate std;

use core::cell::Cell;
use std::boxed::Box;
use std::sync::{Arc, Mutex, MutexGuard};
use std::vec::Vec;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Descriptor, DeviceRing, read, write};
use crate::{
    DeviceStatus, DeviceType, InterruptStatus, RingAddr, Transport, TransportError, TransportResult,
};

/// VIRTIO_F_VERSION_1.
const VERSION_1: u64 = 1 << 32;
/// The queue size that an honest device here shows.
const QUEUE_SIZE: u32 = 128;

/// Whether a device obeys a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Obeys {
    #[default]
    Yes,
    No,
}

type QueueHook = Box<dyn FnMut(&mut DeviceRing) + Send>;
type NoticeHook = Box<dyn FnMut(usize, &mut DeviceRing) + Send>;

/// State that both sides share, and the protocol violations of the device.
struct DeviceState {
    features: u64,
    accepted: u64,
    status: DeviceStatus,
    config: Vec<u8>,
    generation: Cell<u32>,
    /// Growth of the generation with each read.
    unrest: u32,
    rings: [Option<DeviceRing>; 2],
    notices: [usize; 2],
    queue_size: u32,
    resets: Obeys,
    negotiates: Obeys,
    stores: Obeys,
    on_queue: Option<QueueHook>,
    on_notice: Option<NoticeHook>,
}

/// The driver's side is its [`Transport`]; the test keeps a clone and plays the device.
#[derive(Clone)]
pub struct Fake(Arc<Mutex<DeviceState>>);

impl Fake {
    /// A device that offers these features and VIRTIO_F_VERSION_1.
    pub fn new(features: u64) -> Self {
        let fake = Self::legacy();
        fake.set_features(features | VERSION_1);
        fake
    }
    /// A device that offers nothing.
    pub fn legacy() -> Self {
        Self(Arc::new(Mutex::new(DeviceState {
            features: 0,
            accepted: 0,
            status: DeviceStatus::empty(),
            config: Vec::new(),
            generation: Cell::new(0),
            unrest: 0,
            rings: [None; 2],
            notices: [0; 2],
            queue_size: QUEUE_SIZE,
            resets: Obeys::Yes,
            negotiates: Obeys::Yes,
            stores: Obeys::Yes,
            on_queue: None,
            on_notice: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, DeviceState> {
        self.0.lock().expect("no holder panics")
    }

    /// All features that it offers.
    pub fn set_features(&self, features: u64) {
        self.state().features = features;
    }
    /// The bytes of its configuration.
    pub fn set_config(&self, bytes: &[u8]) {
        self.state().config = bytes.to_vec();
    }
    /// Its queues' size.
    pub fn set_queue_size(&self, size: u32) {
        self.state().queue_size = size;
    }
    /// Makes the device change its configuration all the time.
    pub fn never_settle(&self) {
        self.state().unrest = 1;
    }
    /// Makes the device's status never read 0 again.
    pub fn refuse_resets(&self) {
        self.state().resets = Obeys::No;
    }
    /// Makes the device never show FEATURES_OK.
    pub fn refuse_features(&self) {
        self.state().negotiates = Obeys::No;
    }
    /// Makes the device's configuration stay as it is, whatever the driver writes.
    pub fn refuse_stores(&self) {
        self.state().stores = Obeys::No;
    }
    /// Sets the function that is called when a queue is set up, with the device's side of it.
    pub fn on_queue(&self, hook: impl FnMut(&mut DeviceRing) + Send + 'static) {
        self.state().on_queue = Some(Box::new(hook));
    }
    /// Sets the function that is called when the driver gives notice, with the queue's number and
    /// the device's side of the queue. With it a device can finish before the driver continues.
    pub fn on_notice(&self, hook: impl FnMut(usize, &mut DeviceRing) + Send + 'static) {
        self.state().on_notice = Some(Box::new(hook));
    }
    /// The bytes of its configuration as they are now.
    pub fn config(&self) -> Vec<u8> {
        self.state().config.clone()
    }

    /// Returns the status: the driver's last store, or the status that the device shows instead.
    pub fn status(&self) -> DeviceStatus {
        self.state().status
    }
    /// Whether the driver has set this queue up, and not reset the device since.
    pub fn has_queue(&self, queue: usize) -> bool {
        self.state().rings[queue].is_some()
    }
    /// How often the driver gave notice.
    pub fn notices(&self, queue: usize) -> usize {
        self.state().notices[queue]
    }
    /// Returns the device's side of a queue.
    ///
    /// # Panics
    /// If there is none.
    pub fn with_ring<R>(&self, queue: usize, f: impl FnOnce(&mut DeviceRing) -> R) -> R {
        f(self.state().rings[queue].as_mut().expect("the queue is set up"))
    }
    /// See [`DeviceRing::take`].
    pub fn take(&self, queue: usize) -> Option<(u16, Vec<Descriptor>)> {
        self.state().rings[queue].as_mut().and_then(DeviceRing::take)
    }
    /// See [`DeviceRing::take_checked`].
    pub fn take_checked(&self, queue: usize) -> Option<(u16, Vec<Descriptor>)> {
        self.state().rings[queue].as_mut().and_then(DeviceRing::take_checked)
    }
    /// See [`DeviceRing::give`]. Nothing happens after a reset: the device has no queue then.
    pub fn give(&self, queue: usize, head: u32, written: u32) {
        if let Some(ring) = &mut self.state().rings[queue] {
            ring.give(head, written);
        }
    }
    /// Fill the next receive buffer of a console.
    ///
    /// # Panics
    /// If there is none.
    pub fn send(&self, bytes: &[u8]) {
        let (head, parts) = self.take(0).expect("the driver lent no buffer");
        assert!(parts[0].writable && parts[0].length as usize >= bytes.len());
        write(parts[0].address, bytes);
        self.give(0, head.into(), bytes.len() as u32);
    }
    /// Empties all transmit buffers of a console that are available.
    ///
    /// # Panics
    /// If one of them is writable for the device.
    pub fn receive(&self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some((head, parts)) = self.take(1) {
            for part in parts {
                assert!(!part.writable);
                let mut bytes = std::vec![0; part.length as usize];
                read(part.address, &mut bytes);
                all.extend(bytes);
            }
            self.give(1, head.into(), 0);
        }
        all
    }
}

impl Transport for Fake {
    fn device_type(&self) -> DeviceType {
        DeviceType::Console
    }
    fn read_device_features(&mut self) -> u64 {
        self.state().features
    }
    fn write_driver_features(&mut self, features: u64) {
        self.state().accepted = features;
    }
    fn max_queue_size(&mut self, _: u16) -> u32 {
        self.state().queue_size
    }
    fn notify(&mut self, queue: u16) {
        let queue = usize::from(queue);
        let mut state = self.state();
        state.notices[queue] += 1;
        let Some(mut ring) = state.rings[queue] else { return };
        let Some(mut hook) = state.on_notice.take() else { return };
        drop(state);
        hook(queue, &mut ring);
        let mut state = self.state();
        (state.on_notice, state.rings[queue]) = (Some(hook), Some(ring));
    }
    fn get_status(&self) -> DeviceStatus {
        self.status()
    }
    fn set_status(&mut self, status: DeviceStatus) {
        let mut state = self.state();
        if !status.is_empty() {
            state.status = status;
            if state.negotiates == Obeys::No {
                state.status.remove(DeviceStatus::FEATURES_OK);
            }
        } else if state.resets == Obeys::Yes {
            state.status = status;
            state.rings = [None; 2];
        } else {
            // A bit without a meaning counts as not 0, too.
            state.status = DeviceStatus::from_bits_retain(0x10);
        }
    }
    fn set_guest_page_size(&mut self, _: u32) {}
    fn requires_legacy_layout(&self) -> bool {
        false
    }
    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: RingAddr,
        driver: RingAddr,
        device: RingAddr,
    ) {
        let size = size as u16;
        let mut ring = DeviceRing { size, descriptors, available: driver, used: device, seen: 0, given: 0 };
        let mut state = self.state();
        if let Some(hook) = &mut state.on_queue {
            hook(&mut ring);
        }
        state.rings[usize::from(queue)] = Some(ring);
    }
    fn queue_unset(&mut self, _: u16) {}
    fn queue_used(&mut self, queue: u16) -> bool {
        self.has_queue(queue.into())
    }
    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }
    fn read_config_generation(&self) -> u32 {
        let state = self.state();
        state.generation.replace(state.generation.get().wrapping_add(state.unrest))
    }
    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> TransportResult<T> {
        let state = self.state();
        let bytes = state.config.get(offset..offset + size_of::<T>());
        T::read_from_bytes(bytes.ok_or(TransportError::ConfigSpaceTooSmall)?)
            .map_err(|_| TransportError::InvalidParam)
    }
    fn write_config_space<T: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: T,
    ) -> TransportResult<()> {
        let mut state = self.state();
        let stores = state.stores;
        let bytes = state.config.get_mut(offset..offset + size_of::<T>());
        let bytes = bytes.ok_or(TransportError::ConfigSpaceTooSmall)?;
        if stores == Obeys::Yes {
            bytes.copy_from_slice(value.as_bytes());
        }
        Ok(())
    }
}
