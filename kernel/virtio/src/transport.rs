//! The registers of a virtio function (virtio 1.2, 4.1.4), with an MSI-X vector for every queue.
//!
//! Everything the device says about itself is checked once, in [`PciTransport::new`] and when a
//! queue is set up; afterwards a notice is one write to a place that is known.

use freehold_virtqueue::{DeviceStatus, DeviceType, InterruptStatus, RingAddr, Transport};
use freehold_virtqueue::{TransportError, TransportResult, reset};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::SetupError;
use crate::pci::{capabilities, disable, enable, enable_registers, map_bar, route_interrupt};
use crate::platform::{Function, Notify, Platform, Registers};

/// The vendor of all virtio devices.
pub const VENDOR: u16 = 0x1af4;
/// Capability id "vendor-specific".
const VENDOR_SPECIFIC: u8 = 0x09;
/// Largest number of queues that a driver here uses.
const MAX_QUEUES: usize = 4;
/// Largest number of bytes of notify registers that are mapped.
const MAX_NOTIFY: u32 = 1 << 16;
/// How often to read a configuration that changes under the reader.
const CONSISTENT_LOOKS: usize = 100;
/// "No vector".
const NO_VECTOR: u16 = 0xffff;

/// Offsets in the common configuration.
mod common {
    pub const DEVICE_FEATURE_SELECT: usize = 0;
    pub const DEVICE_FEATURE: usize = 4;
    pub const DRIVER_FEATURE_SELECT: usize = 8;
    pub const DRIVER_FEATURE: usize = 12;
    pub const CONFIG_VECTOR: usize = 16;
    pub const DEVICE_STATUS: usize = 20;
    pub const CONFIG_GENERATION: usize = 21;
    pub const QUEUE_SELECT: usize = 22;
    pub const QUEUE_SIZE: usize = 24;
    pub const QUEUE_VECTOR: usize = 26;
    pub const QUEUE_ENABLE: usize = 28;
    pub const QUEUE_NOTIFY_OFFSET: usize = 30;
    pub const QUEUE_DESCRIPTORS: usize = 32;
    pub const QUEUE_DRIVER: usize = 40;
    pub const QUEUE_DEVICE: usize = 48;
    pub const LENGTH: u32 = 56;
}

/// A virtio device on PCI. Dropping it resets the device.
pub struct PciTransport<R: Registers> {
    kind: DeviceType,
    common: R,
    notify: R,
    notify_length: usize,
    notify_multiplier: u32,
    config: Option<(R, usize)>,
    /// The vectors of the queues, and for changes of the device's configuration.
    vectors: (u16, u16),
    /// Where to write a queue's notice.
    notice: [Option<usize>; MAX_QUEUES],
}

/// A `virtio_pci_cap`: the kind of structure that it describes, and its place.
#[derive(Clone, Copy)]
struct PciCapability {
    bar: u8,
    offset: u32,
    length: u32,
}

/// Returns the device type of a function; `None` if it is unknown.
pub fn device_type(vendor: u16, device: u16) -> Option<DeviceType> {
    match (vendor, device) {
        (VENDOR, 0x1000) => Some(DeviceType::Network),
        (VENDOR, 0x1001) => Some(DeviceType::Block),
        (VENDOR, 0x1003) => Some(DeviceType::Console),
        (VENDOR, 0x1040..=0x107f) => DeviceType::try_from(device as u8 - 0x40).ok(),
        _ => None,
    }
}

impl<R: Registers> PciTransport<R> {
    /// Find and map the device's registers, make it a bus master and send its interrupts to
    /// `handler`.
    ///
    /// # Errors
    /// [`SetupError`]; the device can then not reach memory.
    pub fn new<P: Platform<Registers = R>>(
        platform: &P,
        function: Function,
        kind: DeviceType,
        handler: &'static dyn Notify,
    ) -> Result<Self, SetupError> {
        let transport = Self::find(platform, function, kind)?;
        enable(platform, function);
        if let Err(error) = route_interrupt(platform, function, handler) {
            disable(platform, function);
            return Err(error);
        }
        Ok(transport)
    }

    /// As [`Self::new`], but the device tells `handler` of changes of its configuration too; and a
    /// device that can send no messages is used all the same: a task that waits for it has to poll.
    /// (QEMU's memory devices are such ones.)
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn watched<P: Platform<Registers = R>>(
        platform: &P,
        function: Function,
        kind: DeviceType,
        handler: &'static dyn Notify,
    ) -> Result<Self, SetupError> {
        let mut transport = Self::find(platform, function, kind)?;
        enable(platform, function);
        transport.vectors = match route_interrupt(platform, function, handler) {
            Ok(()) => (0, 0),
            Err(_) => (NO_VECTOR, NO_VECTOR),
        };
        Ok(transport)
    }

    /// Find and map the device's registers and no more: it cannot reach memory. Dropping the result
    /// resets the device.
    ///
    /// # Errors
    /// [`SetupError`].
    pub(crate) fn look<P: Platform<Registers = R>>(
        platform: &P,
        function: Function,
        kind: DeviceType,
    ) -> Result<Self, SetupError> {
        let transport = Self::find(platform, function, kind)?;
        enable_registers(platform, function);
        Ok(transport)
    }

    fn find<P: Platform<Registers = R>>(
        platform: &P,
        function: Function,
        kind: DeviceType,
    ) -> Result<Self, SetupError> {
        let (mut common, mut notify, mut config, mut multiplier) = (None, None, None, 0);
        for (at, word) in capabilities(platform, function) {
            let (id, length, cfg_type) = (word as u8, (word >> 16) as u8, (word >> 24) as u8);
            // 20 bytes hold the longest structure that is read.
            if id != VENDOR_SPECIFIC || length < 16 || at > u8::MAX - 20 {
                continue;
            }
            let place = PciCapability {
                bar: platform.read_config(function, at + 4) as u8,
                offset: platform.read_config(function, at + 8),
                length: platform.read_config(function, at + 12),
            };
            match cfg_type {
                1 if common.is_none() => common = Some(place),
                2 if notify.is_none() && length >= 20 => {
                    notify = Some(place);
                    multiplier = platform.read_config(function, at + 16);
                }
                4 if config.is_none() => config = Some(place),
                _ => {}
            }
        }
        let map = |place: PciCapability| {
            map_bar(platform, function, place.bar, place.offset, place.length as usize)
        };
        let common = common.ok_or(SetupError::Legacy)?;
        let notify = notify.ok_or(SetupError::NoRegisters("notify registers"))?;
        if common.length < common::LENGTH || !common.offset.is_multiple_of(4) {
            return Err(SetupError::NoRegisters("whole common registers"));
        }
        if multiplier % 2 != 0 || !notify.offset.is_multiple_of(2) {
            return Err(SetupError::Nonsense("notify offset"));
        }
        let common = PciCapability { length: common::LENGTH, ..common };
        let notify = PciCapability { length: notify.length.min(MAX_NOTIFY), ..notify };
        let config = config.filter(|place| place.offset.is_multiple_of(4) && place.length > 0);
        let config = config.map(|place| PciCapability { length: place.length.min(4096), ..place });
        Ok(Self {
            kind,
            common: map(common).ok_or(SetupError::NoRegisters("common registers"))?,
            notify: map(notify).ok_or(SetupError::NoRegisters("notify registers"))?,
            notify_length: notify.length as usize,
            notify_multiplier: multiplier,
            config: config.and_then(|place| Some((map(place)?, place.length as usize))),
            vectors: (0, NO_VECTOR),
            notice: [None; MAX_QUEUES],
        })
    }

    /// A second mapping of `length` bytes at `offset` of the device's own configuration, for
    /// writers that must not wait for the driver's lock.
    pub fn map_config<P: Platform<Registers = R>>(
        platform: &P,
        function: Function,
        offset: u32,
        length: usize,
    ) -> Option<R> {
        let (at, _) = capabilities(platform, function)
            .find(|&(at, word)| word as u8 == VENDOR_SPECIFIC && word >> 24 == 4 && at <= u8::MAX - 20)?;
        let start = platform.read_config(function, at + 8);
        let end = offset.checked_add(u32::try_from(length).ok()?)?;
        if end > platform.read_config(function, at + 12) || !start.is_multiple_of(4) {
            return None;
        }
        let bar = platform.read_config(function, at + 4) as u8;
        map_bar(platform, function, bar, start.checked_add(offset)?, length)
    }

    fn select(&self, queue: u16) {
        self.common.write16(common::QUEUE_SELECT, queue);
    }

    fn write64(&self, offset: usize, value: u64) {
        self.common.write32(offset, value as u32);
        self.common.write32(offset + 4, (value >> 32) as u32);
    }

    /// The place in the configuration, where the field is inside it.
    fn field<T>(&self, offset: usize) -> TransportResult<&R> {
        let (registers, length) = self.config.as_ref().ok_or(TransportError::ConfigSpaceMissing)?;
        let end = offset.checked_add(size_of::<T>()).ok_or(TransportError::ConfigSpaceTooSmall)?;
        if end > *length || !offset.is_multiple_of(align_of::<T>().min(4)) {
            return Err(TransportError::ConfigSpaceTooSmall);
        }
        Ok(registers)
    }
}

impl<R: Registers> Transport for PciTransport<R> {
    fn device_type(&self) -> DeviceType {
        self.kind
    }
    fn read_device_features(&mut self) -> u64 {
        self.common.write32(common::DEVICE_FEATURE_SELECT, 0);
        let low = self.common.read32(common::DEVICE_FEATURE);
        self.common.write32(common::DEVICE_FEATURE_SELECT, 1);
        u64::from(self.common.read32(common::DEVICE_FEATURE)) << 32 | u64::from(low)
    }
    fn write_driver_features(&mut self, features: u64) {
        self.common.write32(common::DRIVER_FEATURE_SELECT, 0);
        self.common.write32(common::DRIVER_FEATURE, features as u32);
        self.common.write32(common::DRIVER_FEATURE_SELECT, 1);
        self.common.write32(common::DRIVER_FEATURE, (features >> 32) as u32);
    }
    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.select(queue);
        self.common.read16(common::QUEUE_SIZE).into()
    }
    fn notify(&mut self, queue: u16) {
        if let Some(offset) = self.notice.get(usize::from(queue)).copied().flatten() {
            self.notify.write16(offset, queue);
        }
    }
    fn get_status(&self) -> DeviceStatus {
        // Bits that mean nothing stay: a status that has them is not 0, and a reset not confirmed.
        DeviceStatus::from_bits_retain(self.common.read8(common::DEVICE_STATUS).into())
    }
    fn set_status(&mut self, status: DeviceStatus) {
        self.common.write8(common::DEVICE_STATUS, status.bits() as u8);
    }
    fn set_guest_page_size(&mut self, _: u32) {
        // Legacy devices only.
    }
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
        self.select(queue);
        self.common.write16(common::QUEUE_SIZE, size as u16);
        self.write64(common::QUEUE_DESCRIPTORS, descriptors);
        self.write64(common::QUEUE_DRIVER, driver);
        self.write64(common::QUEUE_DEVICE, device);
        self.common.write16(common::CONFIG_VECTOR, self.vectors.1);
        self.common.write16(common::QUEUE_VECTOR, self.vectors.0);
        let offset = usize::from(self.common.read16(common::QUEUE_NOTIFY_OFFSET))
            .checked_mul(self.notify_multiplier as usize)
            .filter(|offset| offset.checked_add(2).is_some_and(|end| end <= self.notify_length));
        if let Some(place) = self.notice.get_mut(usize::from(queue)) {
            *place = offset;
        }
        self.common.write16(common::QUEUE_ENABLE, 1);
    }
    fn queue_unset(&mut self, _: u16) {
        // On PCI a queue stays until the device is reset.
    }
    fn queue_used(&mut self, queue: u16) -> bool {
        self.select(queue);
        self.common.read16(common::QUEUE_ENABLE) == 1
    }
    fn ack_interrupt(&mut self) -> InterruptStatus {
        // Messages need no acknowledgement.
        InterruptStatus::empty()
    }
    fn read_config_generation(&self) -> u32 {
        self.common.read8(common::CONFIG_GENERATION).into()
    }
    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> TransportResult<T> {
        let registers = self.field::<T>(offset)?;
        let mut value = T::new_zeroed();
        // Each field is read in its own width, up to 32 bits (virtio 1.2, 4.1.3.1).
        let width = align_of::<T>().min(4);
        for (at, bytes) in (offset..).step_by(width).zip(value.as_mut_bytes().chunks_mut(width)) {
            match bytes {
                [byte] => *byte = registers.read8(at),
                [a, b] => [*a, *b] = registers.read16(at).to_le_bytes(),
                [a, b, c, d] => [*a, *b, *c, *d] = registers.read32(at).to_le_bytes(),
                _ => return Err(TransportError::InvalidParam),
            }
        }
        Ok(value)
    }
    fn write_config_space<T: IntoBytes + Immutable>(
        &mut self,
        offset: usize,
        value: T,
    ) -> TransportResult<()> {
        let registers = self.field::<T>(offset)?;
        let width = align_of::<T>().min(4);
        for (at, bytes) in (offset..).step_by(width).zip(value.as_bytes().chunks(width)) {
            match *bytes {
                [byte] => registers.write8(at, byte),
                [a, b] => registers.write16(at, u16::from_le_bytes([a, b])),
                [a, b, c, d] => registers.write32(at, u32::from_le_bytes([a, b, c, d])),
                _ => return Err(TransportError::InvalidParam),
            }
        }
        Ok(())
    }
}

impl<R: Registers> Drop for PciTransport<R> {
    fn drop(&mut self) {
        self.set_status(DeviceStatus::empty());
    }
}

/// Begins to initialise a device: reset, features, checked (virtio 1.2, 3.1.1). The device is lent
/// nothing before it has confirmed the reset: an earlier kernel may have left it at work.
pub(crate) fn negotiate<T: Transport>(transport: &mut T, wanted: Features) -> Result<Features, SetupError> {
    reset(transport).ok_or(SetupError::NoReset)?;
    let started = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER;
    transport.set_status(DeviceStatus::ACKNOWLEDGE);
    transport.set_status(started);
    let offered = Features::from_bits_truncate(transport.read_device_features());
    if !offered.contains(Features::VERSION_1) {
        return Err(SetupError::Legacy);
    }
    let features = offered & (wanted | Features::VERSION_1 | Features::ACCESS_PLATFORM);
    transport.write_driver_features(features.bits());
    transport.set_status(started | DeviceStatus::FEATURES_OK);
    if !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
        return Err(SetupError::Features);
    }
    Ok(features)
}

/// Calls `read` until the configuration did not change during the call (virtio 1.2, 2.5.1).
///
/// # Errors
/// `NotReady` from a device whose configuration always changes, and the errors of `read`.
pub(crate) fn read_consistent<T, V>(
    transport: &T,
    read: impl Fn(&T) -> TransportResult<V>,
) -> TransportResult<V>
where
    T: Transport,
{
    for _ in 0..CONSISTENT_LOOKS {
        let before = transport.read_config_generation();
        let result = read(transport);
        if before == transport.read_config_generation() {
            return result;
        }
    }
    Err(TransportError::NotReady)
}

bitflags::bitflags! {
    /// The features that the drivers here use. The low bits mean something else for each kind of
    /// device.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Features: u64 {
        /// Console: a byte can be written without a ring.
        const CONSOLE_EMERGENCY_WRITE = 1 << 2;
        /// Block: the device says how many bytes a descriptor may have.
        const BLOCK_SIZE_MAX = 1 << 1;
        /// Block: the device says how many descriptors the data of a request may have.
        const BLOCK_SEG_MAX = 1 << 2;
        /// Block: read-only.
        const BLOCK_READ_ONLY = 1 << 5;
        /// Block: the device has a volatile cache and a command to flush it.
        const BLOCK_FLUSH = 1 << 9;
        /// Network: the device says how long a packet may be.
        const NET_MTU = 1 << 3;
        /// Network: the device has an address.
        const NET_MAC = 1 << 5;
        /// Network: a frame that comes may span several buffers.
        const NET_MERGEABLE = 1 << 15;
        /// 9P: the device says what its tree is called.
        const P9_TAG = 1 << 0;
        /// Memory: the device says which proximity domain its memory is of.
        const MEM_ACPI_PXM = 1 << 0;
        /// Memory: blocks that are not plugged in must not be touched.
        const MEM_UNPLUGGED_INACCESSIBLE = 1 << 1;
        /// IOMMU: the device says which addresses devices may use.
        const IOMMU_INPUT_RANGE = 1 << 0;
        /// IOMMU: it says which numbers domains may have.
        const IOMMU_DOMAIN_RANGE = 1 << 1;
        /// IOMMU: mappings are requests.
        const IOMMU_MAP_UNMAP = 1 << 2;
        /// IOMMU: it tells of reserved regions.
        const IOMMU_PROBE = 1 << 4;
        /// IOMMU: a field says what reaches memory without a domain.
        const IOMMU_BYPASS_CONFIG = 1 << 6;
        /// Not a legacy device.
        const VERSION_1 = 1 << 32;
        /// The device goes through the platform's translation of addresses.
        const ACCESS_PLATFORM = 1 << 33;
    }
}
