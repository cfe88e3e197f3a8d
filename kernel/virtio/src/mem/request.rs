//! Requests and answers as bytes (virtio 1.2, 5.15.6).

use freehold_machine::{PAGE_SHIFT, PfnRange};

use super::Region;

/// Bytes of `struct virtio_mem_req`.
pub const REQUEST_BYTES: usize = 24;
/// Bytes of `struct virtio_mem_resp`.
pub const RESPONSE_BYTES: usize = 10;

/// Request of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResizeRequest {
    /// Make these frames memory.
    Plug(PfnRange),
    /// Take these frames away.
    Unplug(PfnRange),
    /// Take all memory of the device away.
    UnplugAll,
}

impl ResizeRequest {
    /// `struct virtio_mem_req`: type, padding, address, number of blocks. A unit has at most 65,535
    /// blocks: those are 4 KiB or more, and a unit of more than one is 2 MiB.
    pub fn encode(self, region: &Region) -> [u8; REQUEST_BYTES] {
        let (kind, frames) = match self {
            Self::Plug(frames) => (0u16, frames),
            Self::Unplug(frames) => (1, frames),
            Self::UnplugAll => (2, PfnRange::default()),
        };
        let blocks = (frames.len() << PAGE_SHIFT) / region.block();
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..2].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&frames.start.start().0.to_le_bytes());
        bytes[16..18].copy_from_slice(&(blocks as u16).to_le_bytes());
        bytes
    }
}

/// Answer of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The device has done so.
    Done,
    /// Refused in the present state: the host wants another size by now.
    Refused,
    /// Not possible now: try again later.
    Busy,
    /// The request is invalid.
    Error,
}

impl Answer {
    /// Decodes an answer; `None` where the device wrote less than one, or a value that is no
    /// answer.
    pub fn decode(response: &[u8; RESPONSE_BYTES], written: usize) -> Option<Self> {
        if written < 2 {
            return None;
        }
        Some(match u16::from_le_bytes([response[0], response[1]]) {
            0 => Self::Done,
            1 => Self::Refused,
            2 => Self::Busy,
            3 => Self::Error,
            _ => return None,
        })
    }
}
