//! Requests on sockets: send, receive, accept, connect. They are calls of their own, and boxed, so
//! that shorter requests do not pay for their size.
//!
//! Each is tried at once, with the program's own addresses. Where it would block, the buffers of
//! its bytes are pinned, and it waits until the socket is ready. Then the process' watcher tries it
//! again, as the process: descriptors go into the process' table, and other results through its
//! address space ([`ProgramMemory`]).

use freehold_collections::{Arc, reserve};
use freehold_vm::{ReadOnly, ReadWrite};
use linux_raw_sys::io_uring as c;
use linux_raw_sys::net::{MSG_DONTWAIT, MSG_NOSIGNAL, MSG_WAITALL};

use super::memory::Submission;
use super::pins;
use super::request::{self, ASYNC, FirstAttempt, Pending, Start, Way, operation};
use crate::fs::{Blocking, OpenFile, OpenFlags};
use crate::mem::{OwnMemory, PinnedBytes, ProcessSpace, ProgramMemory};
use crate::socket::SocketFile;
use crate::socket::address::Address;
use crate::socket::channel::Received;
use crate::socket::exchange::{self, ReceivedMessage, SentMessage};
use crate::socket::message::MessageHeader;
use crate::sync::{Mutex, UserCharge};
use crate::task;
use crate::user::{Iovecs, Sink, UserPtr};
use crate::{Errno, Result};

/// The flag of a send or receive, in its priority: wait until the socket is ready, and then try.
const POLL_FIRST: u16 = c::IORING_RECVSEND_POLL_FIRST as u16;

/// A request on a socket that waits.
pub struct SocketRequest {
    file: Arc<OpenFile>,
    action: SocketAction,
    /// The charge for the pages of the bytes.
    _pins: Option<UserCharge>,
}

enum SocketAction {
    Send(SentMessage, PinnedBytes<ReadOnly>),
    Receive(Reception, Mutex<Progress>),
    Accept(Accept),
    /// The connection to this address was started.
    Connect(Address),
}

/// The bytes that a receive has got so far: with MSG_WAITALL they may arrive in parts.
struct Progress {
    room: PinnedBytes<ReadWrite>,
    done: usize,
}

/// A receive.
enum Reception {
    /// recv(2), with these flags.
    Plain(u32),
    /// recvmsg(2), with these flags.
    Message(ReceivedMessage, u32),
}

impl Reception {
    const fn flags(&self) -> u32 {
        match self {
            Self::Plain(flags) | Self::Message(_, flags) => *flags,
        }
    }

    fn receive(&self, file: &SocketFile, sink: &mut dyn Sink, memory: &impl ProgramMemory) -> Result<usize> {
        match self {
            Self::Plain(flags) => {
                let mut received = Received::default();
                exchange::receive(file, sink, (*flags, Blocking::Never), &mut received)?;
                Ok(exchange::returned(&received, *flags))
            }
            Self::Message(message, _) => message.receive(file, sink, Blocking::Never, memory),
        }
    }
}

/// An accept: flags of the descriptor, and where the peer's name goes.
struct Accept {
    flags: OpenFlags,
    name: u64,
    length: u64,
    /// Bytes for the name.
    room: usize,
}

impl Accept {
    fn accept(&self, file: &SocketFile, memory: &impl ProgramMemory) -> Result<i64> {
        let tell = |peer: Option<&Address>, family| {
            if self.name == 0 {
                return Ok(());
            }
            let full = Address::write_bounded(peer, family, (self.name, self.room), memory)?;
            memory.write(self.length, &full)
        };
        exchange::accept(file, self.flags, Blocking::Never, tell).map(i64::from)
    }
}

impl SocketRequest {
    /// Returns the file.
    pub const fn file(&self) -> &Arc<OpenFile> {
        &self.file
    }

    /// Returns the events after which the request can continue.
    pub const fn readiness(&self) -> u32 {
        match self.action {
            SocketAction::Receive(..) | SocketAction::Accept(_) => Way::Read.readiness(),
            SocketAction::Send(..) | SocketAction::Connect(_) => Way::Write.readiness(),
        }
    }

    /// Tries the request. Returns its result.
    ///
    /// # Errors
    /// The error of the request; `EAGAIN` if it has to wait on.
    pub fn run(&self) -> Result<i64> {
        let socket = SocketFile::of(&self.file)?;
        let space = task::current().process().space();
        match &self.action {
            SocketAction::Send(message, bytes) => {
                message.send(socket, &mut bytes.try_clone()?, Blocking::Never).map(|count| count as i64)
            }
            SocketAction::Receive(reception, progress) => {
                progress.lock().receive(socket, reception, &space).map(|count| count as i64)
            }
            SocketAction::Accept(accept) => accept.accept(socket, &*space),
            SocketAction::Connect(address) => connect_again(socket, address),
        }
    }
}

/// Asks for the result of a connection that was started, as a second connect(2) does.
fn connect_again(socket: &SocketFile, address: &Address) -> Result<i64> {
    match exchange::connect(socket, Some(address), Blocking::Never) {
        Err(Errno::EINPROGRESS | Errno::EALREADY) => Err(Errno::EAGAIN),
        result => result.map(|()| 0),
    }
}

impl Progress {
    fn receive(&mut self, socket: &SocketFile, reception: &Reception, space: &ProcessSpace) -> Result<usize> {
        let collects = reception.flags() & MSG_WAITALL != 0 && socket.is_stream();
        match reception.receive(socket, &mut self.room, space) {
            Ok(count) if collects => {
                self.done += count;
                if count > 0 && self.room.remaining() > 0 { Err(Errno::EAGAIN) } else { Ok(self.done) }
            }
            Err(error) if self.done > 0 && error != Errno::EAGAIN => Ok(self.done),
            result => result,
        }
    }
}

/// Whether a request is tried before it waits, and whether it may wait. As on Linux, O_NONBLOCK of
/// the socket does not matter.
struct Manner {
    attempt: FirstAttempt,
    blocking: Blocking,
}

impl Manner {
    fn of(entry: &Submission, flags: u32) -> Self {
        let blocking = if flags & MSG_DONTWAIT != 0 { Blocking::Never } else { Blocking::Wait };
        let later = entry.flags & ASYNC != 0 || entry.priority & POLL_FIRST != 0;
        let attempt =
            if later && blocking == Blocking::Wait { FirstAttempt::Later } else { FirstAttempt::Now };
        Self { attempt, blocking }
    }

    /// Tries the request with `attempt`, if that is wanted. `None` if it has to wait.
    fn attempt(&self, attempt: impl FnOnce() -> Result<i64>) -> Result<Option<i64>> {
        if self.attempt == FirstAttempt::Later {
            return Ok(None);
        }
        match attempt() {
            Err(Errno::EAGAIN) if self.blocking == Blocking::Wait => Ok(None),
            result => result.map(Some),
        }
    }
}

fn waits(file: Arc<OpenFile>, action: SocketAction, pins: Option<UserCharge>) -> Start {
    Start::Pending(Pending::Socket(reserve::boxed(SocketRequest { file, action, _pins: pins })))
}

/// Checks the fields that neither a send nor a receive uses.
fn check_unused(entry: &Submission) -> Result<()> {
    let is_plain = entry.offset == 0 && entry.splice_fd == 0 && entry.priority & !POLL_FIRST == 0;
    if is_plain { Ok(()) } else { Err(Errno::EINVAL) }
}

/// IORING_OP_SEND and IORING_OP_SENDMSG.
///
/// # Errors
/// As send(2); `EINVAL` for fields that are not supported. There is no SIGPIPE, as on Linux.
#[inline(never)]
pub fn send(entry: &Submission) -> Result<Start> {
    check_unused(entry)?;
    let flags = entry.operation_flags | MSG_NOSIGNAL;
    let file = request::file_of(entry)?;
    let socket = SocketFile::of(&file)?;
    let (message, mut source) = if entry.opcode == operation::SENDMSG {
        let header = UserPtr::<MessageHeader>::new(entry.address).read()?;
        let source = Iovecs::read(header.vectors, header.vector_count as usize)?;
        (SentMessage::read(socket, &header, flags)?, source)
    } else {
        let source = Iovecs::one(entry.address, entry.length as usize);
        (SentMessage::to(socket, (0, 0), flags)?, source)
    };
    let first = || message.send(socket, &mut source, Blocking::Never).map(|count| count as i64);
    if let Some(sent) = Manner::of(entry, flags).attempt(first)? {
        return Ok(Start::Done(sent));
    }
    let charge = pins::charge(&source, pins::MOST_BYTES)?;
    let bytes = PinnedBytes::pin(&task::current().process().space(), &source, pins::MOST_BYTES)?;
    Ok(waits(file, SocketAction::Send(message, bytes), Some(charge)))
}

/// IORING_OP_RECV and IORING_OP_RECVMSG.
///
/// # Errors
/// As recv(2); `EINVAL` for fields that are not supported.
#[inline(never)]
pub fn receive(entry: &Submission) -> Result<Start> {
    check_unused(entry)?;
    let flags = entry.operation_flags;
    let file = request::file_of(entry)?;
    let socket = SocketFile::of(&file)?;
    let (reception, mut sink) = if entry.opcode == operation::RECVMSG {
        let message = ReceivedMessage::read(UserPtr::new(entry.address), flags)?;
        let sink = message.buffers()?;
        (Reception::Message(message, flags), sink)
    } else {
        (Reception::Plain(flags), Iovecs::one(entry.address, entry.length as usize))
    };
    let mut manner = Manner::of(entry, flags);
    // All of it is awaited by one task: the part that is here already is left to that.
    if flags & MSG_WAITALL != 0 && socket.is_stream() && manner.blocking == Blocking::Wait {
        manner.attempt = FirstAttempt::Later;
    }
    let first = || reception.receive(socket, &mut sink, &OwnMemory).map(|count| count as i64);
    if let Some(received) = manner.attempt(first)? {
        return Ok(Start::Done(received));
    }
    let charge = pins::charge(&sink, pins::MOST_BYTES)?;
    let room = PinnedBytes::pin(&task::current().process().space(), &sink, pins::MOST_BYTES)?;
    let progress = Mutex::new(Progress { room, done: 0 });
    Ok(waits(file, SocketAction::Receive(reception, progress), Some(charge)))
}

/// IORING_OP_ACCEPT.
///
/// # Errors
/// As accept4(2); `EINVAL` for fields that are not supported.
#[inline(never)]
pub fn accept(entry: &Submission) -> Result<Start> {
    let flags = OpenFlags::from_bits_retain(entry.operation_flags);
    let is_plain = (entry.length, entry.buffer, entry.priority, entry.splice_fd) == (0, 0, 0, 0);
    if !is_plain || !(OpenFlags::CLOEXEC | OpenFlags::NONBLOCK).contains(flags) {
        return Err(Errno::EINVAL);
    }
    let file = request::file_of(entry)?;
    let socket = SocketFile::of(&file)?;
    let room = if entry.address == 0 { 0 } else { UserPtr::<i32>::new(entry.offset).read()? };
    let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
    let accept = Accept { flags, name: entry.address, length: entry.offset, room };
    let first = || accept.accept(socket, &OwnMemory);
    Ok(match Manner::of(entry, 0).attempt(first)? {
        Some(descriptor) => Start::Done(descriptor),
        None => waits(file, SocketAction::Accept(accept), None),
    })
}

/// IORING_OP_CONNECT.
///
/// # Errors
/// As connect(2); `EINVAL` for fields that are not supported.
#[inline(never)]
pub fn connect(entry: &Submission) -> Result<Start> {
    let unused = (entry.length, entry.buffer, entry.priority, entry.operation_flags, entry.splice_fd);
    if unused != (0, 0, 0, 0, 0) {
        return Err(Errno::EINVAL);
    }
    let file = request::file_of(entry)?;
    let socket = SocketFile::of(&file)?;
    let length = usize::try_from(entry.offset as i32).map_err(|_| Errno::EINVAL)?;
    let address = exchange::read_peer(socket, (entry.address, length))?;
    match (exchange::connect(socket, address.as_ref(), Blocking::Never), address) {
        (Err(Errno::EINPROGRESS), Some(address)) => Ok(waits(file, SocketAction::Connect(address), None)),
        (result, _) => result.map(|()| Start::Done(0)),
    }
}

/// IORING_OP_SHUTDOWN.
///
/// # Errors
/// As shutdown(2); `EINVAL` for fields that are not supported.
#[inline(never)]
pub fn shutdown(entry: &Submission) -> Result<Start> {
    let unused = (entry.offset, entry.address, entry.operation_flags, entry.buffer, entry.splice_fd);
    if unused != (0, 0, 0, 0, 0) {
        return Err(Errno::EINVAL);
    }
    let file = request::file_of(entry)?;
    exchange::shutdown(SocketFile::of(&file)?, entry.length).map(|()| Start::Done(0))
}
