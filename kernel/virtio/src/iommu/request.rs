//! Requests, answers, reserved regions and faults as bytes (virtio 1.2, 5.13.6). Bytes from the
//! device can be any.

use core::ops::RangeInclusive;

use freehold_iommu::{Deed, DeviceFault};

/// Bytes of the longest request that the device reads.
pub const REQUEST_BYTES: usize = 72;
/// Bytes of an answer's end.
pub const TAIL_BYTES: usize = 4;
/// Bytes of a fault that the device writes.
pub const FAULT_BYTES: usize = 24;

/// A mapping allows reading.
pub const READ: u32 = 1;
/// It allows writing.
pub const WRITE: u32 = 2;

/// A request to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IommuRequest {
    /// Give an endpoint a domain. The domain begins with its first endpoint.
    Attach {
        /// The domain's number.
        domain: u32,
        /// The endpoint's.
        endpoint: u32,
    },
    /// Take the domain away from the endpoint. A domain without endpoints ends, and its mappings
    /// with it.
    Detach {
        /// The domain's number.
        domain: u32,
        /// The endpoint's.
        endpoint: u32,
    },
    /// Let a domain reach what is at a physical address.
    Map {
        /// The domain's number.
        domain: u32,
        /// The first address, of a page.
        first: u64,
        /// The last one, of a page's last byte.
        last: u64,
        /// The physical address of the first one.
        physical: u64,
        /// [`READ`], [`WRITE`].
        flags: u32,
    },
    /// Take away all mappings between these addresses.
    Unmap {
        /// The domain's number.
        domain: u32,
        /// The first address.
        first: u64,
        /// The last one.
        last: u64,
    },
    /// Describe an endpoint's reserved regions.
    Probe {
        /// The endpoint's number.
        endpoint: u32,
    },
}

impl IommuRequest {
    /// Returns the bytes that the device reads, and their number.
    pub fn encode(self) -> ([u8; REQUEST_BYTES], usize) {
        let mut bytes = [0; REQUEST_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let length = match self {
            Self::Attach { domain, endpoint } | Self::Detach { domain, endpoint } => {
                put(0, &[if matches!(self, Self::Attach { .. }) { 1 } else { 2 }]);
                put(4, &domain.to_le_bytes());
                put(8, &endpoint.to_le_bytes());
                20
            }
            Self::Map { domain, first, last, physical, flags } => {
                put(0, &[3]);
                put(4, &domain.to_le_bytes());
                put(8, &first.to_le_bytes());
                put(16, &last.to_le_bytes());
                put(24, &physical.to_le_bytes());
                put(32, &flags.to_le_bytes());
                36
            }
            Self::Unmap { domain, first, last } => {
                put(0, &[4]);
                put(4, &domain.to_le_bytes());
                put(8, &first.to_le_bytes());
                put(16, &last.to_le_bytes());
                28
            }
            Self::Probe { endpoint } => {
                put(0, &[5]);
                put(4, &endpoint.to_le_bytes());
                REQUEST_BYTES
            }
        };
        (bytes, length)
    }
}

/// Returns the little-endian field at `at`; 0 past the end.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

/// Returns the regions that an endpoint's properties reserve (5.13.6.7.1). Other kinds of
/// properties are skipped. `None` stands for a region that ends before it begins or is cut off.
pub fn reserved(properties: &[u8]) -> impl Iterator<Item = Option<RangeInclusive<u64>>> + '_ {
    let mut rest = properties;
    core::iter::from_fn(move || {
        loop {
            let kind = u16::from_le_bytes(field(rest, 0)) & 0xfff;
            if kind == 0 {
                return None;
            }
            let length = usize::from(u16::from_le_bytes(field(rest, 2))) + 4;
            let Some((property, after)) = rest.split_at_checked(length) else {
                rest = &[];
                return Some(None);
            };
            rest = after;
            if kind == 1 {
                let (first, last) =
                    (u64::from_le_bytes(field(property, 8)), u64::from_le_bytes(field(property, 16)));
                return Some((length >= 24 && first <= last).then_some(first..=last));
            }
        }
    })
}

/// Reads a fault (5.13.6.9). `place` returns the function of an endpoint. Reason 1: no domain;
/// 2: no such mapping; others: unknown.
pub fn fault(bytes: &[u8; FAULT_BYTES], place: impl Fn(u32) -> u16) -> DeviceFault {
    let (flags, endpoint) = (u32::from_le_bytes(field(bytes, 4)), u32::from_le_bytes(field(bytes, 8)));
    let address = u64::from_le_bytes(field(bytes, 16)) & !0xfff;
    let deed = match flags & (READ | WRITE) {
        READ => Deed::Read(address),
        WRITE => Deed::Write(address),
        // QEMU 7.2 says neither where there is no domain.
        _ => Deed::Reach(address),
    };
    DeviceFault { source_id: place(endpoint), deed, reason: bytes[0] }
}
