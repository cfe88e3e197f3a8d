//! The header of virtio_net before a frame (PACKET_VNET_HDR), by which the two ends of a device
//! tell each other what is left to do for a frame.
//!
//! Received frames are complete: their headers are 0. A program may leave a checksum of a frame to
//! the kernel. Frames that are to be cut into segments are refused.
//!
//! Source: `struct virtio_net_hdr` of linux/virtio_net.h; `packet_snd_vnet_parse` of
//! net/packet/af_packet.c.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::socket::raw;
use crate::user::{self, Source};
use crate::{Errno, Result};

/// Bytes of the header.
pub(super) const OFFLOAD_BYTES: usize = size_of::<OffloadHeader>();

/// VIRTIO_NET_HDR_F_NEEDS_CSUM.
const NEEDS_CHECKSUM: u8 = 1;
/// VIRTIO_NET_HDR_GSO_NONE.
const ONE_SEGMENT: u8 = 0;

/// `struct virtio_net_hdr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct OffloadHeader {
    flags: u8,
    segmentation: u8,
    header_bytes: u16,
    segment_bytes: u16,
    /// Where in the frame the checksum begins, and where after that it is stored.
    checksum_from: u16,
    checksum_at: u16,
}

impl OffloadHeader {
    /// Takes the header from the front of `source`.
    ///
    /// # Errors
    /// `EINVAL` if there are too few bytes, or for segments; `EFAULT`.
    pub(super) fn take(source: &mut dyn Source) -> Result<Self> {
        if source.remaining() < OFFLOAD_BYTES {
            return Err(Errno::EINVAL);
        }
        let mut header = Self::default();
        user::fill(source, header.as_mut_bytes())?;
        if header.segmentation == ONE_SEGMENT { Ok(header) } else { Err(Errno::EINVAL) }
    }

    /// Puts the checksum into `frame`, if it was left to the kernel.
    ///
    /// # Errors
    /// `EINVAL` if its place is outside of the frame.
    pub(super) fn complete(&self, frame: &mut [u8]) -> Result<()> {
        if usize::from(self.header_bytes) > frame.len() {
            return Err(Errno::EINVAL);
        }
        if self.flags & NEEDS_CHECKSUM == 0 {
            return Ok(());
        }
        let part = frame.get_mut(usize::from(self.checksum_from)..).ok_or(Errno::EINVAL)?;
        let at = usize::from(self.checksum_at);
        if part.len() < at + size_of::<u16>() {
            return Err(Errno::EINVAL);
        }
        let sum = raw::checksum(0, part);
        part[at..at + size_of::<u16>()].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::bytes::SliceSource;

    #[test]
    fn a_header_is_checked_and_a_checksum_made() {
        let take = |bytes: &[u8]| OffloadHeader::take(&mut SliceSource::new(bytes));
        assert_eq!(take(&[0; OFFLOAD_BYTES - 1]), Err(Errno::EINVAL));
        assert_eq!(take(&[0; OFFLOAD_BYTES]), Ok(OffloadHeader::default()));
        assert_eq!(take(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0]), Err(Errno::EINVAL), "segments");
        let complete = |checksum_from, checksum_at, header_bytes| {
            let header = OffloadHeader {
                flags: NEEDS_CHECKSUM,
                checksum_from,
                checksum_at,
                header_bytes,
                ..OffloadHeader::default()
            };
            let mut frame = [9, 9, 1, 2, 3, 4, 0, 0];
            header.complete(&mut frame).map(|()| frame)
        };
        // 0x0102 + 0x0304 = 0x0406.
        assert_eq!(complete(2, 4, 8), Ok([9, 9, 1, 2, 3, 4, 0xfb, 0xf9]));
        assert_eq!(complete(2, 5, 0), Err(Errno::EINVAL));
        assert_eq!(complete(9, 0, 0), Err(Errno::EINVAL));
        assert_eq!(complete(u16::MAX, u16::MAX, 0), Err(Errno::EINVAL));
        assert_eq!(complete(2, 4, 9), Err(Errno::EINVAL));
    }
}
