//! Sending the frames of a ring (`tpacket_snd`).

use freehold_collections::Receiver;

use super::header::{ALIGNMENT, Version};
use super::slots::SlotRing;
use super::{RingSettings, RingState};
use crate::fs::bytes::SliceSource;
use crate::socket::address::link::LinkAddress;
use crate::socket::packet::frame::HEADER;
use crate::socket::packet::offload::OFFLOAD_BYTES;
use crate::socket::packet::send::TAG;
use crate::socket::packet::{PacketKind, PacketSocket};
use zerocopy::IntoBytes;

use crate::{Errno, Result, sched, user};

/// Status of a slot that may be filled, that shall be sent, that is being sent, and that cannot be
/// (TP_STATUS_AVAILABLE, _SEND_REQUEST, _SENDING, _WRONG_FORMAT).
const AVAILABLE: u32 = 0;
const REQUESTED: u64 = 1;
const SENDING: u32 = 1 << 1;
const WRONG: u32 = 1 << 2;

impl PacketSocket {
    /// Sends the frames that the program has put into its ring. Returns their bytes; `None` if
    /// there is no ring.
    ///
    /// # Errors
    /// Those of [`PacketSocket::send`], and `EINVAL` for a wrong header: for the first frame that
    /// cannot be sent, at which the ring stops, unless PACKET_LOSS is set. `EINTR`.
    pub(in crate::socket::packet) fn send_ring(
        self: &Receiver<Self>,
        to: Option<LinkAddress>,
    ) -> Result<Option<usize>> {
        if self.rings.state.lock().sending.is_none() {
            return Ok(None);
        }
        let _one_at_a_time = self.rings.setting.lock();
        let device = self.destination(to)?;
        let own = if self.kind == PacketKind::Raw { HEADER } else { 0 };
        let mut buffer = user::zeroed(device.mtu as usize + own + TAG + OFFLOAD_BYTES)?;
        let mut sent = 0;
        while let Some(length) = self.take_requested(&mut buffer) {
            let outcome =
                length.and_then(|length| self.send_one(&mut SliceSource::new(&buffer[..length]), to));
            let mut state = self.rings.state.lock();
            let RingSettings { version, skips_wrong, .. } = state.settings;
            let Some(ring) = &mut state.sending else { break };
            match outcome {
                Ok(length) => sent += length,
                Err(_) if skips_wrong => {}
                Err(error) => {
                    ring.set_status(version, ring.next_at(), WRONG);
                    return Err(error);
                }
            }
            ring.set_status(version, ring.next_at(), AVAILABLE);
            ring.advance();
            drop(state);
            sched::checkpoint()?;
        }
        Ok(Some(sent))
    }

    /// Copies the next frame into `buffer`. Returns its length, or why it cannot be sent; `None` if
    /// the next slot has none.
    fn take_requested(&self, buffer: &mut [u8]) -> Option<Result<usize>> {
        let state = self.rings.state.lock();
        let RingState { settings, sending: Some(ring), .. } = &*state else { return None };
        let at = ring.next_at();
        if ring.status(settings.version, at) != REQUESTED {
            return None;
        }
        Some(ring.requested(*settings, self.kind, buffer.len()).map(|(start, length)| {
            ring.get(at + start, &mut buffer[..length]);
            ring.set_status(settings.version, at, SENDING);
            length
        }))
    }
}

impl SlotRing {
    /// Returns where in the next slot the frame begins, and its length.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is longer than `most` or its slot; `EINVAL` for a wrong header.
    fn requested(&self, settings: RingSettings, kind: PacketKind, most: usize) -> Result<(usize, usize)> {
        let version = settings.version;
        let mut words = [0_u32; 12];
        self.get(self.next_at(), words.as_mut_bytes());
        let (length, places) = match version {
            Version::V1 => (words[2], words[4]),
            Version::V2 => (words[1], words[3]),
            Version::V3 if words[0] != 0 => return Err(Errno::EINVAL),
            Version::V3 => (words[4], words[6]),
        };
        let first = version.header_bytes().next_multiple_of(ALIGNMENT);
        let (length, whole) = (length as usize, self.layout.frame_bytes);
        if length > most.min(whole - first) {
            return Err(Errno::EMSGSIZE);
        }
        if !settings.has_offsets {
            return Ok((first, length));
        }
        let start = if kind == PacketKind::Raw { places & 0xffff } else { places >> 16 } as usize;
        if (first..=whole - length).contains(&start) { Ok((start, length)) } else { Err(Errno::EINVAL) }
    }
}
