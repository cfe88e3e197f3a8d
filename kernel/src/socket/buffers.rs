//! SO_SNDBUF and SO_RCVBUF: how much may wait between two sockets.
//!
//! A queue has room for the sum of two parts: its sender's and its receiver's. A connection of
//! AF_UNIX counts in its sender's part only, as on Linux; so do the datagrams of socketpair(2).
//! Other datagrams count in their receiver's part, and both ends of a TCP connection have a half
//! each. A part is changed by the socket that it belongs to, and by connect(2), which publishes the
//! settings that were made before. Each change stores the present value, so the last one wins.
//!
//! Linux counts bytes and its own overhead, which is why it doubles the value that a program sets.
//! Here a queue has whole pages, as many as the doubled value has.
//!
//! Source: socket(7), tcp(7), unix(7); `sk_setsockopt` in net/core/sock.c.

use freehold_machine::PAGE_SIZE;

use super::endpoint::{Socket, SocketKind};
use super::family::Family;
use super::memory::{BUFFER_BYTES, Ceiling, MOST_PAGES, PAGES, QueueEnd};

/// Bytes that Linux adds to each message of AF_UNIX before it compares the sum with SO_SNDBUF.
const OVERHEAD: usize = 32;
/// The initial values of TCP (net.ipv4.tcp_wmem, tcp_rmem).
const TCP_INITIAL: [u32; 2] = [16_384, 131_072];
impl Socket {
    /// Returns the pages of the sender and of the receiver in a queue between two sockets of this
    /// kind, before a program sets any.
    fn initial_pages(&self) -> [usize; 2] {
        match (self.family(), self.kind()) {
            (Family::Unix, _) => [PAGES, 0],
            (_, SocketKind::Stream) => [PAGES / 2, PAGES / 2],
            _ => [0, PAGES],
        }
    }

    /// Sets SO_SNDBUF or SO_RCVBUF.
    pub(super) fn set_buffer(&self, end: QueueEnd, value: i32, ceiling: Ceiling) {
        self.options.lock().buffers.set(end, value, ceiling);
        self.publish_buffers();
    }

    /// Returns SO_SNDBUF or SO_RCVBUF, in bytes.
    pub(super) fn buffer_bytes(&self, end: QueueEnd) -> u32 {
        match self.options.lock().buffers.bytes(end) {
            0 if self.is_tcp() => TCP_INITIAL[end as usize],
            0 => BUFFER_BYTES as u32,
            set => set,
        }
    }

    /// Returns the length of the longest message that an AF_UNIX socket sends.
    pub(super) fn most_sent(&self) -> usize {
        let bytes = self.buffer_bytes(QueueEnd::Sender) as usize;
        bytes.min(MOST_PAGES * PAGE_SIZE) - OVERHEAD
    }

    /// Gives the queues that the socket receives from and sends into the parts of their room that
    /// its settings are. The caller holds no lock.
    pub(super) fn publish_buffers(&self) {
        if !self.options.lock().buffers.are_set() {
            return;
        }
        let peer = self.state.lock().peer.as_ref().map(|peer| peer.channel.clone());
        let options = self.options.lock();
        let [sender, receiver] = self.initial_pages();
        let received = options.buffers.pages(QueueEnd::Receiver, receiver);
        self.channel().set_part(QueueEnd::Receiver, received, receiver);
        // Other sockets may send into the queue of a datagram socket that has a name.
        let out = peer.filter(|out| self.kind() != SocketKind::Datagram || out.has_one_sender());
        if let Some(out) = &out {
            out.set_part(QueueEnd::Sender, options.buffers.pages(QueueEnd::Sender, sender), sender);
        }
        drop(options);
        out.iter().for_each(|out| out.made_room());
    }
}
