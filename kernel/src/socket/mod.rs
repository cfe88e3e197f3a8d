//! Sockets: AF_UNIX, TCP and UDP, AF_NETLINK and AF_PACKET; any other family is `EAFNOSUPPORT`, as
//! on a kernel built without it.
//!
//! | module | concept |
//! |---|---|
//! | [`endpoint`] | a socket: binding, connecting, accepting |
//! | [`channel`] | messages on their way to a socket, and tasks that wait for them |
//! | [`queue`] | the messages in a channel |
//! | [`memory`] | the pages of all messages that wait, and their limits |
//! | [`inet`], [`ports`] | the differences of TCP and UDP; the owners of ports |
//! | [`datagrams`] | datagrams of UDP that programs send |
//! | [`raw`] | raw and ping sockets: packets of IP and ICMP |
//! | [`packet`] | AF_PACKET: the frames of network devices |
//! | [`registry`], [`filter`] | the sockets that receive copies of packets, and their filters |
//! | [`attachment`], [`wire`] | how the machine is connected; connections and datagrams to other machines |
//! | [`family`] | address families |
//! | [`address`] | addresses |
//! | [`names`] | the owners of AF_UNIX addresses |
//! | [`flight`] | the files that a message carries |
//! | [`garbage`] | sockets that no process can ever receive from |
//! | [`netlink`] | AF_NETLINK: requests to the kernel |
//! | [`interface`] | the network devices, and the ioctls about them |
//! | [`table`], [`view`] | all sockets, and the view of one in /proc/net |
//! | [`tcp_info`] | TCP_INFO |
//! | [`buffers`] | SO_SNDBUF and SO_RCVBUF |
//! | [`least`] | SO_RCVLOWAT |
//! | [`facts`] | facts about a socket that getsockopt reports |
//! | [`options`], [`remembered`] | setsockopt and getsockopt; options that are stored and have no other effect |
//! | [`beside`] | ancillary data: facts about a packet for its receiver, and its sender's requests |
//! | [`bound_device`] | the network device that a socket is bound to |
//! | [`message`] | sendmsg's header and ancillary data |
//! | [`calls`] | the system calls |

pub mod address;
pub mod attachment;
pub mod beside;
mod bound_device;
mod buffers;
pub mod calls;
pub mod channel;
mod cork;
mod corked;
mod datagrams;
pub mod endpoint;
pub mod exchange;
mod facts;
pub mod family;
mod filter;
pub mod flight;
pub mod garbage;
mod inet;
pub mod interface;
mod least;
pub mod memory;
pub mod message;
mod names;
pub mod netlink;
pub mod options;
pub mod packet;
pub mod ports;
mod queue;
pub mod raw;
mod registry;
mod remembered;
pub mod table;
mod tcp_info;
pub mod view;
pub mod wire;

use freehold_collections::{Arc, reserve};
use linux_raw_sys::ioctl::{FIONREAD, SIOCATMARK, TIOCOUTQ};

use self::channel::{Ancillary, Manner, Patience, Received};
use self::endpoint::{SendTarget, Socket, SocketKind};
use self::family::Family;
use self::options::deadline;
use crate::fs::anonymous::AnonymousNode;
use crate::fs::file::{NewsOwner, NewsQueues};
use crate::fs::{Blocking, File, MmapContent, Node, NodeKind, OpenFile, Ready};
use crate::sync::PollWaiter;
use crate::user::{Sink, Source, UserPtr};
use crate::{Errno, Result};

/// SIOCOUTQNSD: number of TCP bytes that were never sent.
const SIOCOUTQNSD: u32 = 0x894b;

/// An open socket file.
pub struct SocketFile {
    socket: Arc<Socket>,
    node: Arc<dyn Node>,
}

impl SocketFile {
    /// Makes an open file for `socket`.
    pub fn new(socket: Arc<Socket>) -> Arc<Self> {
        let node = AnonymousNode::plain(NodeKind::Socket, "socket");
        socket.note_file(node.identity().inode, node.metadata().uid);
        reserve::arc(Self { socket, node })
    }

    /// Returns the socket file of an open file.
    ///
    /// # Errors
    /// `ENOTSOCK`; `EBADF` for a descriptor that was opened with O_PATH.
    #[inline]
    pub fn of(file: &OpenFile) -> Result<&Self> {
        match file.file().downcast::<Self>() {
            Some(socket) => Ok(socket),
            None => file.check_not_path().and(Err(Errno::ENOTSOCK)),
        }
    }

    /// Returns the file's socket.
    fn unix(&self) -> &Socket {
        &self.socket
    }

    /// Whether the socket is a stream.
    pub fn is_stream(&self) -> bool {
        self.socket.kind() == SocketKind::Stream
    }

    /// Sends the caller SIGPIPE if a send failed because its stream is broken.
    fn signal_broken(&self, sent: &Result<usize>) {
        if *sent == Err(Errno::EPIPE) && self.socket.kind() == SocketKind::Stream {
            crate::task::signal_broken_pipe();
        }
    }

    /// How long a send may wait.
    fn send_patience(&self, blocking: Blocking) -> Patience {
        match blocking {
            Blocking::Never => Patience::Never,
            Blocking::Wait => Patience::Until(self.write_deadline()),
        }
    }

    /// How long a receive may wait.
    fn receive_patience(&self, blocking: Blocking) -> Patience {
        match blocking {
            Blocking::Never => Patience::Never,
            Blocking::Wait => Patience::Until(self.read_deadline()),
        }
    }
}

impl File for SocketFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        let mut received = Received::default();
        self.socket.receive(sink, Manner::take(self.receive_patience(blocking)), &mut received)?;
        Ok(received.count)
    }

    fn write_at(&self, _offset: u64, source: &mut dyn Source, blocking: Blocking) -> Result<usize> {
        let sent = self.socket.send(
            source,
            Ancillary::unsigned(),
            SendTarget::default(),
            self.send_patience(blocking),
        );
        self.signal_broken(&sent);
        sent
    }

    fn read_deadline(&self) -> Option<u64> {
        deadline(self.socket.options.lock().receive_timeout)
    }

    fn write_deadline(&self) -> Option<u64> {
        deadline(self.socket.options.lock().send_timeout)
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        self.socket.poll(waiter)
    }

    fn news(&self) -> Option<NewsQueues<'_>> {
        Some(NewsQueues { queues: self.socket.news(), owner: NewsOwner::None })
    }

    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        let bytes = match request {
            FIONREAD if self.socket.is_listening() => return Err(Errno::EINVAL),
            FIONREAD if self.socket.kind() == SocketKind::Stream => self.socket.channel().bytes(),
            FIONREAD => self.socket.channel().first_bytes(),
            TIOCOUTQ if self.socket.is_listening() => return Err(Errno::EINVAL),
            TIOCOUTQ => self.socket.unreceived(),
            SIOCOUTQNSD if self.socket.is_tcp() && !self.socket.is_listening() => 0,
            // There is never urgent data.
            SIOCATMARK if self.socket.is_tcp() => 0,
            SIOCATMARK if self.socket.family() == Family::Unix => return Err(Errno::EOPNOTSUPP),
            _ => {
                return interface::ioctl(self.socket.network(), self.socket.family(), request, argument)
                    .map(|()| 0);
            }
        };
        UserPtr::new(argument).write(&(bytes as i32))?;
        Ok(0)
    }

    fn receives_files(&self) -> bool {
        true
    }

    fn mapping(&self) -> Result<MmapContent> {
        let packet = self.socket.packet.as_ref().ok_or(Errno::ENODEV)?;
        Ok(MmapContent::Content(packet.mapping()?))
    }

    fn check_mapping(&self, offset: u64, length: u64) -> Result<()> {
        self.socket.packet.as_ref().map_or(Ok(()), |packet| packet.check_mapping(offset, length))
    }

    /// The rings of a packet socket.
    fn shares_pages_with_kernel(&self) -> bool {
        self.socket.packet.is_some()
    }
}
