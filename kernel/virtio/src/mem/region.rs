//! The device's configuration, checked once; and the sizes that change.

use core::fmt;

use freehold_machine::{PAGE_SHIFT, PAGEBLOCK_FRAMES, Pfn, PfnRange};
use freehold_virtqueue::{DeviceType, Transport, TransportResult};

use crate::SetupError;
use crate::platform::{Function, Platform};
use crate::transport::{Features, PciTransport, read_consistent};

/// Bytes of `struct virtio_mem_config`.
pub const CONFIG_BYTES: usize = 56;

/// Read `struct virtio_mem_config`, all of it at one moment.
pub(super) fn read<T: Transport>(transport: &T) -> TransportResult<[u8; CONFIG_BYTES]> {
    read_consistent(transport, |transport| {
        let words = transport.read_config_space::<[u32; CONFIG_BYTES / 4]>(0)?;
        let mut bytes = [0; CONFIG_BYTES];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Ok(bytes)
    })
}

/// Whether the configuration names the proximity domain of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Domain {
    /// The configuration names it.
    Said,
    /// The configuration does not name it: the field means nothing.
    Unsaid,
}

impl Domain {
    pub(super) const fn of(features: Features) -> Self {
        if features.contains(Features::MEM_ACPI_PXM) { Self::Said } else { Self::Unsaid }
    }
}

/// Why a region cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadRegion {
    /// A block size of 0, that is no power of two, or less than a page.
    BlockSize(u64),
    /// An address or a size that is not whole blocks.
    NotBlocks,
    /// The region goes beyond the addressable memory.
    Beyond,
    /// No whole unit is in it.
    Empty,
}

impl fmt::Display for BadRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockSize(size) => write!(f, "a block size of {size:#x}"),
            Self::NotBlocks => f.write_str("a region that is not whole blocks"),
            Self::Beyond => f.write_str("a region beyond all addresses"),
            Self::Empty => f.write_str("a region without a whole 2 MiB"),
        }
    }
}

impl From<BadRegion> for SetupError {
    fn from(bad: BadRegion) -> Self {
        Self::Nonsense(match bad {
            BadRegion::BlockSize(_) => "block size",
            BadRegion::NotBlocks | BadRegion::Beyond | BadRegion::Empty => "region",
        })
    }
}

/// Where a device can plug memory in. Its *units*, which are plugged and unplugged as a whole, are
/// blocks of the device, or pageblocks where those are larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Bytes of a block of the device: a power of two, a page or more.
    block: u64,
    /// Frames of a unit: a power of two, a pageblock or more.
    unit: u64,
    /// Whole units.
    frames: PfnRange,
    domain: Option<u32>,
}

/// How much of a region there is, in bytes; each at most the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// May be plugged in now, from the region's start on.
    pub usable: u64,
    /// Is plugged in, as the device counts.
    pub plugged: u64,
    /// Should be plugged in, as the host wants.
    pub requested: u64,
}

fn word(config: &[u8; CONFIG_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|i| config[at + i]))
}

impl Region {
    /// Understand `struct virtio_mem_config`.
    ///
    /// # Errors
    /// [`BadRegion`].
    pub fn check(config: &[u8; CONFIG_BYTES], said: Domain) -> Result<Self, BadRegion> {
        let (block, address, size) = (word(config, 0), word(config, 16), word(config, 24));
        if !block.is_power_of_two() || block < 1 << PAGE_SHIFT {
            return Err(BadRegion::BlockSize(block));
        }
        if address % block != 0 || size % block != 0 {
            return Err(BadRegion::NotBlocks);
        }
        // x86 has physical addresses of at most 52 bits.
        let end = address.checked_add(size).filter(|&end| end <= 1 << 52).ok_or(BadRegion::Beyond)?;
        let unit = (block >> PAGE_SHIFT).max(PAGEBLOCK_FRAMES);
        let first = (address >> PAGE_SHIFT).next_multiple_of(unit);
        let last = (end >> PAGE_SHIFT) / unit * unit;
        if first >= last {
            return Err(BadRegion::Empty);
        }
        let domain = u16::from_le_bytes([config[8], config[9]]);
        let frames = PfnRange::new(Pfn(first), Pfn(last));
        Ok(Self { block, unit, frames, domain: (said == Domain::Said).then_some(domain.into()) })
    }

    /// Looks at a device without a driver: for start-up, which has to know where memory may come
    /// before it hands out the first frame.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn find<P: Platform>(platform: &P, function: Function) -> Result<Self, SetupError> {
        let mut transport = PciTransport::look(platform, function, DeviceType::Memory)?;
        let features = Features::from_bits_truncate(transport.read_device_features());
        Ok(Self::check(&read(&transport)?, Domain::of(features))?)
    }

    /// The sizes in a configuration that is read later.
    pub fn sizes(&self, config: &[u8; CONFIG_BYTES]) -> Sizes {
        let all = self.frames.len() << PAGE_SHIFT;
        let [usable, plugged, requested] = [32, 40, 48].map(|at| word(config, at).min(all));
        Sizes { usable, plugged, requested: requested.min(usable) }
    }

    /// All frames that can be plugged in: whole units.
    pub const fn frames(&self) -> PfnRange {
        self.frames
    }
    /// Frames of a unit.
    pub const fn unit(&self) -> u64 {
        self.unit
    }
    /// How many units there are.
    pub const fn units(&self) -> u64 {
        self.frames.len() / self.unit
    }
    /// The frames of a unit.
    pub fn frames_of(&self, unit: u64) -> PfnRange {
        let start = self.frames.start.offset(unit * self.unit);
        PfnRange::new(start, start.offset(self.unit))
    }
    /// The proximity domain of its memory, where the device says it.
    pub const fn domain(&self) -> Option<u32> {
        self.domain
    }
    /// Bytes of a block of the device.
    pub(super) const fn block(&self) -> u64 {
        self.block
    }
}
