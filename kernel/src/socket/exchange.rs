//! Send, receive, connect and accept, for the system calls and for io_uring.
//!
//! A call touches the running program's memory. A ring's request may have to wait, and is then
//! finished by another task. So the program's header and address are read first ([`SentMessage`],
//! [`ReceivedMessage`]), and results go to a [`ProgramMemory`].

use freehold_collections::Vec;
use linux_raw_sys::net as c;

use super::SocketFile;
use super::address::Address;
use super::beside::wishes::{Follows, Wishes};
use super::channel::{Ancillary, Manner, Patience, Received, Taking};
use super::endpoint::{SendTarget, Shutdown, SocketKind};
use super::family::Family;
use super::message::{self, Delivery, MessageHeader};
use crate::fs::{Blocking, OnExec, OpenFile, OpenFlags};
use crate::mem::ProgramMemory;
use crate::task;
use crate::user::{Iovecs, Sink, Source, UserPtr};
use crate::{Errno, Result};

/// Address and length of a program's sockaddr; address 0 means none.
pub type NameAt = (u64, usize);

/// Flags of a call, and whether its file may wait.
pub type Flags = (u32, Blocking);

const fn may_wait((flags, file): Flags) -> Blocking {
    if flags & c::MSG_DONTWAIT != 0 { Blocking::Never } else { file }
}

/// A message that a program sends, apart from the bytes.
pub struct SentMessage {
    to: Option<Address>,
    /// Control messages, as the program wrote them.
    control: Vec<u8>,
    flags: u32,
}

impl SentMessage {
    /// Reads the address of a message without control messages.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for urgent data; as [`Address::read`].
    #[inline]
    pub fn to(file: &SocketFile, (name, length): NameAt, flags: u32) -> Result<Self> {
        if flags & c::MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let to = if name == 0 { None } else { Address::read(file.socket.family(), name, length)? };
        Ok(Self { to, control: Vec::new(), flags })
    }

    /// Reads the address and the control messages that `header` names.
    ///
    /// # Errors
    /// As [`to`](Self::to); `ENOBUFS` for too many control messages, `EFAULT`, `ENOMEM`.
    #[inline]
    pub fn read(file: &SocketFile, header: &MessageHeader, flags: u32) -> Result<Self> {
        let mut outgoing = Self::to(file, (header.name, header.name_length as usize), flags)?;
        outgoing.control = header.read_control()?;
        Ok(outgoing)
    }

    /// Sends the bytes of `source`. Returns their number.
    ///
    /// # Errors
    /// As in the manual; `EAGAIN` if the send would have to wait and may not.
    #[inline]
    pub fn send(&self, file: &SocketFile, source: &mut dyn Source, blocking: Blocking) -> Result<usize> {
        let patience = file.send_patience(may_wait((self.flags, blocking)));
        let (ancillary, mut wishes) = self.beside(file)?;
        if self.flags & c::MSG_MORE != 0 && file.socket.is_udp() {
            wishes.get_or_insert_default().follows = Follows::More;
        }
        let target = SendTarget { address: self.to.as_ref(), wishes: wishes.as_ref() };
        let sent = file.socket.send(source, ancillary, target, patience);
        if self.flags & c::MSG_NOSIGNAL == 0 {
            file.signal_broken(&sent);
        }
        sent
    }

    #[inline]
    fn beside(&self, file: &SocketFile) -> Result<(Ancillary, Option<Wishes>)> {
        if self.control.is_empty() {
            return Ok((Ancillary::unsigned(), None));
        }
        message::parse_control(&file.socket, &self.control)
    }
}

/// Handles a request for urgent data or for queued errors. There are never any.
///
/// # Errors
/// As on Linux: `EAGAIN` for the errors of IP sockets, which other sockets do not queue; `EINVAL`
/// for a TCP stream's urgent data, `EOPNOTSUPP` for that of other sockets.
#[cold]
fn check_special(file: &SocketFile, flags: u32) -> Result<()> {
    let is_inet = file.socket.family().is_ip();
    if is_inet && flags & c::MSG_ERRQUEUE != 0 {
        return Err(Errno::EAGAIN);
    }
    match flags & c::MSG_OOB != 0 {
        true if is_inet && file.socket.kind() == SocketKind::Stream => Err(Errno::EINVAL),
        true => Err(Errno::EOPNOTSUPP),
        false => Ok(()),
    }
}

/// Receives, and for MSG_WAITALL repeats that until all bytes have arrived. The result goes to
/// `received`, which is empty before.
///
/// # Errors
/// As in the manual; `EAGAIN` if the receive would have to wait and may not.
#[inline]
pub fn receive(
    file: &SocketFile,
    sink: &mut dyn Sink,
    (flags, blocking): Flags,
    received: &mut Received,
) -> Result<()> {
    if flags & (c::MSG_OOB | c::MSG_ERRQUEUE) != 0 {
        check_special(file, flags)?;
    }
    let taking = if flags & c::MSG_PEEK != 0 { Taking::Peek } else { Taking::Take };
    let patience = file.receive_patience(may_wait((flags, blocking)));
    let mut nowhere = Discard(sink.remaining());
    let drops = flags & c::MSG_TRUNC != 0 && file.socket.is_tcp();
    let sink = if drops { &mut nowhere } else { sink };
    file.socket.receive(sink, Manner { taking, patience }, received)?;
    if flags & c::MSG_WAITALL != 0 && taking == Taking::Take && file.socket.kind() == SocketKind::Stream {
        receive_rest(file, sink, patience, received);
    }
    Ok(())
}

/// Receives more of a stream, up to files, until the sink is full or the next data cannot be added.
#[cold]
fn receive_rest(file: &SocketFile, sink: &mut dyn Sink, patience: Patience, received: &mut Received) {
    while sink.remaining() > 0 && received.ancillary.files.is_empty() {
        let before = received.count;
        if file.socket.receive(sink, Manner::take(patience), received).is_err() || received.count == before {
            break;
        }
    }
}

/// A sink for bytes that a program drops: MSG_TRUNC of TCP. Its field is the number of bytes that
/// still fit.
struct Discard(usize);

impl Sink for Discard {
    fn remaining(&self) -> usize {
        self.0
    }

    fn put_without_fault(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.0);
        self.0 -= count;
        count
    }
}

/// Returns the return value of a receive: with MSG_TRUNC the message's full length.
#[inline]
pub const fn returned(received: &Received, flags: u32) -> usize {
    if flags & c::MSG_TRUNC != 0 { received.length } else { received.count }
}

/// The places of recvmsg(2)'s results, apart from the bytes.
pub struct ReceivedMessage {
    at: UserPtr<MessageHeader>,
    header: MessageHeader,
    flags: u32,
}

impl ReceivedMessage {
    /// Reads the header at `at`.
    ///
    /// # Errors
    /// `EFAULT`.
    #[inline]
    pub fn read(at: UserPtr<MessageHeader>, flags: u32) -> Result<Self> {
        Ok(Self { at, header: at.read()?, flags })
    }

    /// Returns the buffers for the bytes.
    ///
    /// # Errors
    /// As [`Iovecs::read`].
    #[inline]
    pub fn buffers(&self) -> Result<Iovecs> {
        Iovecs::read(self.header.vectors, self.header.vector_count as usize)
    }

    /// Receives bytes into `sink`, and writes the other results to `memory`. Returns the number of
    /// bytes; with MSG_TRUNC the message's length.
    ///
    /// # Errors
    /// As [`receive`]; `EFAULT`.
    #[inline]
    pub fn receive(
        &self,
        file: &SocketFile,
        sink: &mut dyn Sink,
        blocking: Blocking,
        memory: &impl ProgramMemory,
    ) -> Result<usize> {
        let (mut header, flags) = (self.header, self.flags);
        let mut received = Received::default();
        receive(file, sink, (flags, blocking), &mut received)?;
        let delivery = Delivery {
            credentials: file.socket.channel().names_senders(),
            on_exec: if flags & c::MSG_CMSG_CLOEXEC != 0 { OnExec::Close } else { OnExec::Keep },
        };
        let told = file.socket.told_beside();
        let mut controls = told.controls(received.notes.as_ref());
        told.add_left(&mut controls, || file.socket.channel().left());
        let result = returned(&received, flags);
        header.flags = flags & c::MSG_CMSG_CLOEXEC;
        if received.length > received.count {
            header.flags |= c::MSG_TRUNC;
        }
        if header.name != 0 {
            let (room, family) = (header.name_length as usize, file.socket.family());
            header.name_length = match &received.from {
                Some(from) => Address::write_bounded(Some(from), family, (header.name, room), memory)?,
                None => 0,
            };
        }
        let beside = (received.ancillary, controls.as_ref());
        let (length, truncated) = message::write_control(&header, beside, delivery, memory)?;
        header.control_length = length;
        header.flags |= truncated;
        header.write_result(self.at, memory)?;
        Ok(result)
    }
}

/// Reads the address that connect(2) names. `None` stands for AF_UNSPEC.
///
/// # Errors
/// As [`Address::read`]; `EINVAL` for an AF_UNIX address without a name.
pub fn read_peer(file: &SocketFile, (name, length): NameAt) -> Result<Option<Address>> {
    let family = file.socket.family();
    if file.socket.is_unix_datagram() && Address::is_unspecified(name, length)? {
        return Ok(None);
    }
    let address = Address::read(family, name, length)?;
    if family == Family::Unix && address.is_none() { Err(Errno::EINVAL) } else { Ok(address) }
}

/// Connects to `peer`; without one, ends the connection of a datagram socket.
///
/// # Errors
/// As in the manual.
pub fn connect(file: &SocketFile, peer: Option<&Address>, blocking: Blocking) -> Result<()> {
    match peer {
        Some(address) => file.socket.connect(address, file.send_patience(blocking)),
        None => file.socket.disconnect(),
    }
}

/// Ends one or both directions, as `how` of shutdown(2) says.
///
/// # Errors
/// As in the manual.
pub fn shutdown(file: &SocketFile, how: u32) -> Result<()> {
    file.socket.shutdown(Shutdown::from_number(how)?)
}

/// Accepts a connection, and calls `tell` with the peer's address and the family. Returns the
/// descriptor. `flags` contain at most CLOEXEC and NONBLOCK.
///
/// # Errors
/// As in the manual; the error of `tell`, and then the connection is lost.
pub fn accept(
    file: &SocketFile,
    flags: OpenFlags,
    blocking: Blocking,
    tell: impl FnOnce(Option<&Address>, Family) -> Result<()>,
) -> Result<i32> {
    // The descriptor is reserved before the connection, because an accepted connection cannot be
    // returned.
    let process = task::current().process().clone();
    let files = process.files();
    let descriptor = files.promise(process.descriptor_limit())?;
    let accepted = file.socket.accept(file.receive_patience(blocking))?;
    let (peer, family) = (accepted.peer_address().unwrap_or_default(), accepted.family());
    let accepted = OpenFile::new(SocketFile::new(accepted), None, flags | OpenFlags::RDWR)?;
    tell(peer.as_ref(), family)?;
    Ok(descriptor.keep(accepted, OnExec::asked_by(flags)))
}
