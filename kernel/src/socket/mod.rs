//! Sockets. There is one family, AF_UNIX; any other is `EAFNOSUPPORT`, as on a kernel built without it.
//!
//! | module | concept |
//! |---|---|
//! | [`unix`] | a socket: binding, connecting, accepting |
//! | [`channel`] | what is on its way to one |
//! | [`address`] | names, and who has which |
//! | [`flight`] | the files that a message carries |
//! | [`garbage`] | sockets that nobody can ever receive from |
//! | [`options`] | setsockopt and getsockopt |
//! | [`message`] | sendmsg's header and what travels beside the bytes |
//! | [`calls`] | the system calls |

pub mod address;
pub mod calls;
pub mod channel;
pub mod flight;
pub mod garbage;
pub mod message;
pub mod options;
pub mod unix;

use freehold_collections::{Arc, reserve};
use linux_raw_sys::ioctl::{FIONREAD, TIOCOUTQ};

use self::channel::{Ancillary, Patience, Taking};
use self::options::{Credentials, deadline};
use self::unix::UnixSocket;
use crate::fs::anonymous::AnonymousNode;
use crate::fs::{Blocking, File, Node, NodeKind, Ready};
use crate::sync::PollWaiter;
use crate::user::{Sink, Source, UserPtr};
use crate::{Errno, Result};

/// A socket, opened.
pub struct SocketFile {
    socket: Arc<UnixSocket>,
    node: Arc<dyn Node>,
}

impl SocketFile {
    /// An open file on `socket`.
    pub fn new(socket: Arc<UnixSocket>) -> Arc<Self> {
        reserve::arc(Self { socket, node: AnonymousNode::plain(NodeKind::Socket, "socket") })
    }

    /// What it is the open file of.
    fn unix(&self) -> &UnixSocket {
        &self.socket
    }

    /// How long a send may wait.
    fn send_patience(&self, blocking: Blocking) -> Patience {
        match blocking {
            Blocking::Never => Patience::Never,
            Blocking::Wait => Patience::Until(deadline(self.socket.options.lock().send_timeout)),
        }
    }

    /// How long a receive may wait.
    fn receive_patience(&self, blocking: Blocking) -> Patience {
        match blocking {
            Blocking::Never => Patience::Never,
            Blocking::Wait => Patience::Until(deadline(self.socket.options.lock().receive_timeout)),
        }
    }
}

impl File for SocketFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        let received = self.socket.receive(sink, Taking::Take, self.receive_patience(blocking))?;
        Ok(received.count)
    }

    fn write_at(&self, _offset: u64, source: &mut dyn Source, blocking: Blocking) -> Result<usize> {
        let ancillary = Ancillary { credentials: Credentials::current(), ..Ancillary::default() };
        let sent = self.socket.send(source, ancillary, None, self.send_patience(blocking));
        if sent == Err(Errno::EPIPE) {
            crate::task::signal_broken_pipe();
        }
        sent
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        self.socket.poll(waiter)
    }

    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        let bytes = match request {
            FIONREAD if self.socket.is_listening() => return Err(Errno::EINVAL),
            FIONREAD => self.socket.channel().bytes(self.socket.boundary()),
            TIOCOUTQ => 0,
            _ => return Err(Errno::ENOTTY),
        };
        UserPtr::new(argument).write(&(bytes as i32))?;
        Ok(0)
    }

    fn receives_files(&self) -> bool {
        true
    }
}
