//! Addresses of packet sockets (`struct sockaddr_ll`).

use linux_raw_sys::net::AF_PACKET;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::user;
use crate::{Errno, Result};

/// Length of the longest sockaddr (`struct sockaddr_storage`).
const MOST_BYTES: usize = 128;

/// `struct sockaddr_ll`.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
struct LinkName {
    family: u16,
    protocol: [u8; 2],
    interface: u32,
    hardware: u16,
    kind: u8,
    length: u8,
    bytes: [u8; 8],
}

const FAMILY: u16 = AF_PACKET as u16;
/// Bytes before the hardware address.
const HEAD: usize = 12;
const HARDWARE_BYTES: usize = 6;

/// The device and protocol of a packet socket, or the sender or receiver of a frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LinkAddress {
    name: LinkName,
    /// Number of bytes that programs see.
    shown: usize,
}

impl LinkAddress {
    /// Makes the address of a protocol (ETH_P_*) at an interface; 0 means any.
    pub fn new(protocol: u16, interface: u32) -> Self {
        let protocol = protocol.to_be_bytes();
        let name = LinkName { family: FAMILY, protocol, interface, ..LinkName::default() };
        Self { name, shown: HEAD }
    }

    /// Adds the hardware address of a device of kind `hardware` (ARPHRD_*).
    #[must_use]
    pub fn at_device(mut self, hardware: u16, address: [u8; HARDWARE_BYTES]) -> Self {
        self.name.hardware = hardware;
        self.name.length = HARDWARE_BYTES as u8;
        self.name.bytes[..HARDWARE_BYTES].copy_from_slice(&address);
        self.shown = HEAD + HARDWARE_BYTES;
        self
    }

    /// Makes it the address of a frame's sender; `kind` is PACKET_*.
    #[must_use]
    pub fn of_frame(mut self, kind: u8) -> Self {
        self.name.kind = kind;
        self.shown = size_of::<LinkName>();
        self
    }

    /// Returns the protocol (ETH_P_*); 0 for none.
    pub const fn protocol(&self) -> u16 {
        u16::from_be_bytes(self.name.protocol)
    }

    /// Returns the number of the interface; 0 for none.
    pub const fn interface(&self) -> u32 {
        self.name.interface
    }

    /// Returns the hardware address.
    pub const fn hardware_address(&self) -> [u8; HARDWARE_BYTES] {
        let [a, b, c, d, e, f, ..] = self.name.bytes;
        [a, b, c, d, e, f]
    }

    /// Reads the address that a program passes to bind(2) or sendto(2).
    ///
    /// # Errors
    /// `EINVAL` if it is too short or of another family, `EFAULT`.
    pub fn read(address: u64, length: usize) -> Result<Self> {
        if !(size_of::<LinkName>()..=MOST_BYTES).contains(&length) {
            return Err(Errno::EINVAL);
        }
        let mut name = LinkName::default();
        user::read_exact(address, name.as_mut_bytes())?;
        let has_room = HEAD + usize::from(name.length) <= length;
        let is_its = name.family == FAMILY && has_room;
        if is_its { Ok(Self { name, shown: size_of::<LinkName>() }) } else { Err(Errno::EINVAL) }
    }

    /// Returns the bytes that programs see.
    pub fn bytes(&self) -> &[u8] {
        &self.name.as_bytes()[..self.shown]
    }
}
