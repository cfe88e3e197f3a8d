//! Frames that programs send.

use freehold_collections::{Receiver, Vec};

use super::frame::{Bound, HEADER, LOOPBACK, LinkFrame, PROTOCOL_V4, PROTOCOL_V6};
use super::offload::OffloadHeader;
use super::{PacketKind, PacketSocket, show};
use crate::socket::address::link::LinkAddress;
use crate::socket::interface::{self, Interface};
use crate::socket::{raw, wire};
use crate::user::{self, Source};
use crate::{Errno, Result};

/// Bytes of a tag of a virtual network, for which a frame has room.
pub(super) const TAG: usize = 4;

impl PacketSocket {
    /// sendmsg(2) to the device of `to`, or to the one that the socket is bound to. A cooked socket
    /// gets its header here. With a ring (PACKET_TX_RING) its frames are sent instead.
    ///
    /// # Errors
    /// `ENXIO` without a device, `ENETDOWN` if it is down, `EMSGSIZE`, `EINVAL` if the frame is
    /// shorter than its header, `EFAULT`, `ENOMEM`.
    pub(in crate::socket) fn send(
        self: &Receiver<Self>,
        source: &mut dyn Source,
        to: Option<LinkAddress>,
    ) -> Result<usize> {
        match self.send_ring(to)? {
            Some(sent) => Ok(sent),
            None => self.send_one(source, to),
        }
    }

    /// Returns the device that a frame for `to` goes to.
    ///
    /// # Errors
    /// `ENXIO`, `ENETDOWN`.
    pub(super) fn destination(&self, to: Option<LinkAddress>) -> Result<Interface> {
        let index = to.map_or_else(|| self.bound().1, |to| to.interface());
        let device = self.device(index).ok_or(Errno::ENXIO)?;
        if device.is_up() { Ok(device) } else { Err(Errno::ENETDOWN) }
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub(super) fn send_one(
        self: &Receiver<Self>,
        source: &mut dyn Source,
        to: Option<LinkAddress>,
    ) -> Result<usize> {
        let device = self.destination(to)?;
        let sent = source.remaining();
        let has_offload_header = self.rings.state.lock().settings.has_offload_header;
        let offload =
            if has_offload_header { OffloadHeader::take(source)? } else { OffloadHeader::default() };
        let length = source.remaining();
        let own = if self.kind == PacketKind::Raw { 0 } else { HEADER };
        if own + length > device.mtu as usize + HEADER + TAG {
            return Err(Errno::EMSGSIZE);
        }
        if own + length < HEADER {
            return Err(Errno::EINVAL);
        }
        let mut bytes: Vec<u8> = user::zeroed(own + length)?;
        user::fill(source, &mut bytes[own..])?;
        if own != 0 {
            let protocol = to.map_or_else(|| self.bound().0, |to| to.protocol());
            let receiver = to.map_or([0; 6], |to| to.hardware_address());
            bytes[..6].copy_from_slice(&receiver);
            bytes[6..12].copy_from_slice(&device.hardware_addresses[0]);
            bytes[12..14].copy_from_slice(&protocol.to_be_bytes());
        }
        // A frame with a tag may be longer than a packet.
        let has_tag = bytes[12..14] == [0x81, 0];
        if bytes.len() > device.mtu as usize + HEADER + if has_tag { TAG } else { 0 } {
            return Err(Errno::EMSGSIZE);
        }
        offload.complete(&mut bytes)?;
        self.put(&device, &bytes)?;
        Ok(sent)
    }

    fn put(self: &Receiver<Self>, device: &Interface, bytes: &[u8]) -> Result<()> {
        if device.index != interface::LO.index {
            let wire = wire::wire().ok_or(Errno::ENETDOWN)?;
            wire.send_frame(bytes, self);
            return Ok(());
        }
        let network = self.network.number();
        let Some(frame) = LinkFrame::arrived(bytes, LOOPBACK) else { return Ok(()) };
        let outgoing = LinkFrame { bound: Bound::Outgoing, ..frame };
        show::show(network, &outgoing, Some(&**self), &mut show::put);
        show::show(network, &frame, None, &mut show::put);
        // As on Linux, a packet for another hardware address is none for this machine, and neither
        // is one of 127.0.0.0/8 in a program's frame (`ip_route_input_slow`).
        let packet = frame.packet();
        let is_processed = match frame.protocol() {
            PROTOCOL_V4 => packet.len() > 16 && packet[12] != 127 && packet[16] != 127,
            PROTOCOL_V6 => true,
            _ => false,
        };
        if frame.bound != Bound::Other && is_processed {
            raw::arrive::process(&self.network, Vec::try_from_slice(packet)?);
        }
        Ok(())
    }
}
