//! The services that this kernel provides to the network stack.

use core::net::SocketAddrV4;

use freehold_collections::{Arc, Vec, VecDeque};
use freehold_net::{Ends, Failure, Host, Id, Marks, Owner, Refusal};
use freehold_virtio::FrameDevice;

use super::far::Far;
use super::{Wire, due};
use crate::socket::address::Address;
use crate::socket::address::inet::InetAddress;
use crate::socket::beside::PacketFacts;
use crate::socket::channel::{Channel, MessageOrigin};
use crate::socket::interface;
use crate::socket::packet::PacketSocket;
use crate::socket::packet::frame::{LinkDevice, LinkFrame};
use crate::socket::packet::show;
use crate::socket::ports::{self, Protocol};
use crate::socket::{raw, registry};
use crate::task::namespaces::network::NetworkNamespace;
use crate::{Errno, sched};

/// The namespace in which packets from the network arrive, and their device.
const HERE: (u64, u32) = (NetworkNamespace::INITIAL_NUMBER, interface::ETHERNET_INDEX);
/// Largest number of frames that wait for room in the device.
const UNSENT: usize = 1024;
/// Largest number of datagrams that wait for a queue that another task holds; nanoseconds until the
/// next attempt.
const MOST_LATE: usize = 64;
pub(super) const LATE: u64 = 1_000_000;

/// A datagram whose receiver's queue was held by another task.
struct Late {
    channel: Arc<Channel>,
    origin: MessageOrigin,
    bytes: Vec<u8>,
}

/// See the module's head.
pub(super) struct Machine {
    pub(super) wire: Option<&'static Wire>,
    device: Arc<dyn FrameDevice>,
    unsent: VecDeque<Vec<u8>>,
    late: VecDeque<Late>,
    /// Numbers of connections whose queues other tasks held.
    busy: Vec<usize>,
    broken: bool,
}

fn address(end: SocketAddrV4) -> InetAddress {
    InetAddress { ip: end.ip().to_ipv6_mapped(), port: end.port() }
}

impl Machine {
    pub(super) const fn new(device: Arc<dyn FrameDevice>) -> Self {
        Self {
            wire: None,
            device,
            unsent: VecDeque::new(),
            late: VecDeque::new(),
            busy: Vec::new(),
            broken: false,
        }
    }

    /// Receives the next frame. Returns its length.
    pub(super) fn receive(&mut self, frame: &mut [u8]) -> Option<usize> {
        if self.broken {
            return None;
        }
        let received = self.device.receive(frame).unwrap_or_else(|_| {
            log::error!("eth0: the device broke the protocol and is out of use");
            self.broken = true;
            None
        });
        if let Some(length) = received
            && registry::any()
        {
            self.show(LinkFrame::arrived(&frame[..length], self.link()), None);
        }
        received
    }

    /// Returns the device, for frames.
    fn link(&self) -> LinkDevice {
        LinkDevice {
            index: interface::ETHERNET_INDEX,
            hardware: interface::ETHERNET,
            addresses: [self.device.address(), interface::ALL_MACHINES],
        }
    }

    /// Shows a frame to packet sockets, except to its sender.
    #[cold]
    fn show(&mut self, frame: Option<LinkFrame<'_>>, sender: Option<&PacketSocket>) {
        let mut deliver = |channel: &Arc<Channel>, bytes: &[u8], origin| self.offer(channel, origin, bytes);
        if let Some(frame) = frame {
            show::show(HERE.0, &frame, sender, &mut deliver);
        }
    }

    /// Sends a frame. Without room in the device it waits; it is lost if too many do.
    pub(super) fn send_frame(&mut self, frame: &[u8], sender: Option<&PacketSocket>) {
        if registry::any() {
            self.show(LinkFrame::sent(frame, self.link()), sender);
        }
        if self.unsent.is_empty() && self.device.send(frame) != Ok(false) {
            return;
        }
        if self.unsent.len() < UNSENT
            && let Ok(frame) = Vec::try_from_slice(frame)
        {
            // Without memory the frame is lost.
            let _ = self.unsent.try_push_back(frame);
        }
    }

    /// Sends the waiting frames, as far as there is room now.
    pub(super) fn send_waiting(&mut self) {
        while let Some(frame) = self.unsent.front()
            && self.device.send(frame) != Ok(false)
        {
            self.unsent.pop_front();
        }
    }

    /// Records that nothing was moved because another task holds the queue. Another attempt follows
    /// soon, or later if there is no memory for the record.
    fn is_busy(&mut self, socket: &Far) -> usize {
        let _ = self.busy.try_push(socket.number());
        0
    }

    /// Takes the connections whose queues were held at the last attempt.
    pub(super) fn take_busy(&mut self) -> Vec<usize> {
        core::mem::take(&mut self.busy)
    }

    /// Whether an attempt for a held queue is pending.
    pub(super) fn waits_for_queues(&self) -> bool {
        !self.busy.is_empty() || !self.late.is_empty()
    }

    /// Gives a message to `channel`. If another task holds its queue, it follows later.
    fn offer(&mut self, channel: &Arc<Channel>, origin: MessageOrigin, bytes: &[u8]) {
        let offered = channel.offer_message(bytes, origin.clone());
        if offered == Err(Errno::EAGAIN) {
            channel.note_loss();
        }
        if offered == Err(Errno::EBUSY)
            && self.late.len() < MOST_LATE
            && let Ok(bytes) = Vec::try_from_slice(bytes)
        {
            // Without memory the datagram is lost.
            let _ = self.late.try_push_back(Late { channel: channel.clone(), origin, bytes });
        }
    }

    /// Delivers datagrams whose receivers' queues were held.
    pub(super) fn deliver_late(&mut self) {
        for _ in 0..self.late.len() {
            let Some(late) = self.late.pop_front() else { break };
            if late.channel.offer_message(&late.bytes, late.origin.clone()) == Err(Errno::EBUSY) {
                self.late.push_back_reserved(late);
            }
        }
    }
}

impl Host for Machine {
    type Socket = Far;

    fn rest(&mut self) {
        sched::cond_resched();
    }

    fn transmit(&mut self, frame: &[u8]) {
        self.send_frame(frame, None);
    }

    fn listens(&mut self, ends: Ends) -> bool {
        ports::find(HERE, Protocol::Tcp, address(ends.local), None).is_some()
    }

    fn accept(&mut self, ends: Ends, id: Id) -> Result<Far, Refusal> {
        let (local, remote) = (address(ends.local), address(ends.remote));
        let listener = ports::find(HERE, Protocol::Tcp, local, Some(remote)).ok_or(Refusal::Gone)?;
        let wire = self.wire.filter(|_| id.number() < due::MOST).ok_or(Refusal::Later)?;
        let answered = listener.answer_call((local, remote), |own, out| Far::new(wire, own, out));
        let far =
            answered.map_err(|error| if error == Errno::EINVAL { Refusal::Gone } else { Refusal::Later })?;
        far.tie.bind(id.number());
        Ok(far)
    }

    fn connected(&mut self, socket: &Far) {
        socket.connected();
    }

    fn has_bytes(&mut self, socket: &Far) -> bool {
        socket.has_bytes()
    }

    fn fetch(&mut self, socket: &Far, room: &mut [u8]) -> usize {
        socket.fetch(room).unwrap_or_else(|| self.is_busy(socket))
    }

    fn has_ended(&mut self, socket: &Far) -> bool {
        socket.has_ended()
    }

    fn deliver(&mut self, socket: &Far, bytes: &[u8]) -> usize {
        socket.deliver(bytes).unwrap_or_else(|| self.is_busy(socket))
    }

    fn owner(&mut self, socket: &Far) -> Owner {
        socket.owner()
    }

    fn ended(&mut self, socket: &Far) {
        socket.ended();
    }

    fn failed(&mut self, socket: &Far, failure: Failure) {
        socket.failed(match failure {
            Failure::Refused => Errno::ECONNREFUSED,
            Failure::Reset => Errno::ECONNRESET,
            Failure::TimedOut => Errno::ETIMEDOUT,
            Failure::Unreachable => Errno::EHOSTUNREACH,
        });
    }

    fn datagram(&mut self, ends: Ends, marks: Marks, payload: &[u8]) -> bool {
        let (local, from) = (address(ends.local), address(ends.remote));
        let Some(socket) = ports::find(HERE, Protocol::Udp, local, Some(from)) else {
            return false;
        };
        let interface = interface::ETHERNET_INDEX;
        let facts = PacketFacts { to: (local.ip, local.port), interface, ttl: marks.ttl, tos: marks.tos };
        let notes = socket.channel().notes(|| Some(facts.into()));
        self.offer(socket.channel(), MessageOrigin { name: Some(Address::Inet(from)), notes }, payload);
        true
    }

    fn hears_packets(&self) -> bool {
        registry::any()
    }

    fn packet(&mut self, packet: &[u8]) {
        raw::arrive::show_from_wire(packet, &mut |channel, bytes, origin| self.offer(channel, origin, bytes));
    }

    fn refused(&mut self, ends: Ends) {
        let (local, remote) = (address(ends.local), address(ends.remote));
        if let Some(socket) = ports::find(HERE, Protocol::Udp, local, Some(remote))
            && socket.is_connected_to(remote)
        {
            socket.channel().fail(Errno::ECONNREFUSED);
        }
    }
}
