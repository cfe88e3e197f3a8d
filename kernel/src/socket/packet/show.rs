//! The sockets that frames are shown to.
//!
//! A socket of all protocols is shown each frame, also those that this machine sends; one of a
//! single protocol is shown those that arrive (Linux: `dev_queue_xmit_nit`, `packet_rcv`). On the
//! loopback device each packet is sent and arrives.

use freehold_collections::Arc;

use super::frame::{Bound, LOOPBACK, LinkDevice, LinkFrame, framed};
use super::{HEARERS, PacketSocket};
use crate::Errno;
use crate::fs::bytes::SliceSource;
use crate::socket::address::Address;
use crate::socket::address::link::LinkAddress;
use crate::socket::beside::FrameFacts;
use crate::socket::channel::{Ancillary, Channel, MessageOrigin, Patience};
use crate::socket::registry::{self, Hears};
use crate::task::namespaces::network::NetworkNamespace;

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
        if !self.count(self.channel.has_room()) {
            return self.channel.note_loss();
        }
        let LinkDevice { index, hardware, .. } = frame.device;
        let name = LinkAddress::new(data.protocol, index).at_device(hardware, frame.sender());
        let facts = FrameFacts {
            length: data.bytes.len() as u32,
            shown: shown.len() as u32,
            network_at: (data.bytes.len() - data.network.len()) as u16,
        };
        let origin = MessageOrigin {
            name: Some(Address::Link(name.of_frame(frame.bound as u8))),
            notes: self.channel.notes(|| Some(facts.into())),
        };
        deliver(&self.channel, shown, origin);
    }
}
