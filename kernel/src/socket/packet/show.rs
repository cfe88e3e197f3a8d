//! The sockets that frames are shown to.
//!
//! A socket of all protocols is shown each frame, also those that this machine sends; one of a
//! single protocol is shown those that arrive (Linux: `dev_queue_xmit_nit`, `packet_rcv`). On the
//! loopback device each packet is sent and arrives.

use freehold_collections::{Arc, Vec};

use super::frame::{Bound, LOOPBACK, LinkDevice, LinkFrame, framed};
use super::offload::OFFLOAD_BYTES;
use super::ring::{LOSING, Put, Shown, handover};
use super::{HEARERS, PacketSocket};
use crate::fs::bytes::SliceSource;
use crate::socket::address::Address;
use crate::socket::address::link::LinkAddress;
use crate::socket::beside::FrameFacts;
use crate::socket::channel::{Ancillary, Channel, MessageOrigin, Patience};
use crate::socket::registry::{self, Hears};
use crate::sync::News;
use crate::task::namespaces::network::NetworkNamespace;
use crate::{Errno, Result, time};

/// Delivers a message to a channel. Without room the message is lost.
pub(in crate::socket) type Deliver<'a> = &'a mut dyn FnMut(&Arc<Channel>, &[u8], MessageOrigin);

/// Shows a frame of `network` to the sockets that receive such frames, except to its sender.
pub(in crate::socket) fn show(
    network: u64,
    frame: &LinkFrame<'_>,
    sender: Option<&PacketSocket>,
    deliver: Deliver<'_>,
) {
    let mut offer = |socket: &Arc<PacketSocket>| {
        if !sender.is_some_and(|sender| core::ptr::eq(sender, &raw const **socket)) {
            socket.take(frame, deliver);
        }
    };
    HEARERS.each(network, Hears::AllFrames, &mut offer);
    if frame.bound != Bound::Outgoing {
        HEARERS.each(network, Hears::Frames(frame.protocol()), &mut offer);
    }
}

/// Shows a packet that goes through the loopback device: sent, then arrived.
pub(in crate::socket) fn show_on_loopback(network: &NetworkNamespace, packet: &[u8]) {
    if !registry::any() || HEARERS.is_empty() {
        return;
    }
    // Without memory nothing is shown.
    if let Ok(bytes) = framed(packet)
        && let Some(frame) = LinkFrame::arrived(&bytes, LOOPBACK)
    {
        show(network.number(), &LinkFrame { bound: Bound::Outgoing, ..frame }, None, &mut put);
        show(network.number(), &frame, None, &mut put);
    }
}

/// Delivers a message, which is lost without room or receiver.
pub(in crate::socket) fn put(channel: &Arc<Channel>, bytes: &[u8], origin: MessageOrigin) {
    let (source, ancillary) = (&mut SliceSource::new(bytes), Ancillary::default());
    if channel.send_message(source, ancillary, origin, Patience::Never) == Err(Errno::EAGAIN) {
        channel.note_loss();
    }
}

fn with_offload_header(frame: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::try_with_capacity(OFFLOAD_BYTES + frame.len())?;
    bytes.try_extend_from_slice(&[0; OFFLOAD_BYTES])?;
    bytes.try_extend_from_slice(frame)?;
    Ok(bytes)
}

impl PacketSocket {
    /// Takes the part of a frame that the socket's filter passes, if the socket hears its device.
    fn take(&self, frame: &LinkFrame<'_>, deliver: Deliver<'_>) {
        if !self.hears(frame) {
            return;
        }
        let data = frame.data(self.kind);
        let part = self.filter.part(|| data);
        if part == 0 {
            return;
        }
        let shown = &data.bytes[..data.bytes.len().min(part)];
        let LinkDevice { index, hardware, .. } = frame.device;
        let name = LinkAddress::new(data.protocol, index).at_device(hardware, frame.sender());
        let name = name.of_frame(frame.bound as u8);
        let link_bytes = data.bytes.len() - data.network.len();
        let has_room = self.channel.has_room();
        let frame = Shown {
            bytes: shown,
            length: data.bytes.len() as u32,
            link_bytes,
            name,
            time: time::wall_nanoseconds() as u64,
            status: if self.has_lost() { LOSING } else { 0 },
            has_room,
        };
        match self.put_into_ring(&frame) {
            None if !self.count(has_room) => return self.channel.note_loss(),
            None | Some(Put::Cut) => {}
            Some(_) => return,
        }
        let facts = FrameFacts {
            length: data.bytes.len() as u32,
            shown: shown.len() as u32,
            network_at: link_bytes as u16,
        };
        let origin = MessageOrigin {
            name: Some(Address::Link(name)),
            notes: self.channel.notes(|| Some(facts.into())),
        };
        if !self.rings.state.lock().settings.has_offload_header {
            return deliver(&self.channel, shown, origin);
        }
        // Without memory the frame is lost.
        match with_offload_header(shown) {
            Ok(bytes) => deliver(&self.channel, &bytes, origin),
            Err(_) => self.channel.note_loss(),
        }
    }

    /// Puts a frame into the ring of received frames, if there is one.
    fn put_into_ring(&self, frame: &Shown<'_>) -> Option<Put> {
        let (put, due) = {
            let mut state = self.rings.state.lock();
            let before = state.due();
            let put = state.put(frame, self.kind, time::now())?;
            (put, state.due().filter(|_| before.is_none()))
        };
        let ready = match put {
            Put::Stored { ready } | Put::Full { ready } => ready,
            Put::Cut => true,
        };
        self.count(!matches!(put, Put::Full { .. }));
        if ready {
            self.channel.readable.announce(News::Input);
        }
        if let Some(due) = due {
            handover::expect(due);
        }
        Some(put)
    }
}
