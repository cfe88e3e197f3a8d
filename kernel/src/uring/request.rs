//! Requests of entries.
//!
//! The check comes first. It takes references to everything that the request needs: its file, and
//! its buffers if it cannot end at once. After that, neither the entry nor the program's
//! descriptors are read again.

use freehold_collections::{Arc, Box};
use freehold_vm::{ReadOnly, ReadWrite};
use linux_raw_sys::io_uring as c;

use super::memory::Submission;
use super::pins;
use super::sockets::{self, SocketRequest};
use super::work::Asker;
use super::{IoRing, RingFile};
use crate::fs::{Blocking, NodeKind, OpenFile, Ready, Seekable};
use crate::mem::PinnedBytes;
use crate::sync::UserCharge;
use crate::task::{self, clock::Clock};
use crate::time::{self, TimeSpec};
use crate::user::{Iovecs, Sink, Source, UserPtr};
use crate::{Errno, Result};

/// Operations, with the interface's numbers.
pub mod operation {
    pub const NOP: u8 = 0;
    pub const READV: u8 = 1;
    pub const WRITEV: u8 = 2;
    pub const FSYNC: u8 = 3;
    pub const READ_FIXED: u8 = 4;
    pub const WRITE_FIXED: u8 = 5;
    pub const POLL_ADD: u8 = 6;
    pub const POLL_REMOVE: u8 = 7;
    pub const SENDMSG: u8 = 9;
    pub const RECVMSG: u8 = 10;
    pub const TIMEOUT: u8 = 11;
    pub const TIMEOUT_REMOVE: u8 = 12;
    pub const ACCEPT: u8 = 13;
    pub const ASYNC_CANCEL: u8 = 14;
    pub const CONNECT: u8 = 16;
    pub const CLOSE: u8 = 19;
    pub const READ: u8 = 22;
    pub const WRITE: u8 = 23;
    pub const SEND: u8 = 26;
    pub const RECV: u8 = 27;
    pub const SHUTDOWN: u8 = 34;
    /// All supported operations.
    pub const ALL: [u8; 21] = [
        NOP,
        READV,
        WRITEV,
        FSYNC,
        READ_FIXED,
        WRITE_FIXED,
        POLL_ADD,
        POLL_REMOVE,
        SENDMSG,
        RECVMSG,
        TIMEOUT,
        TIMEOUT_REMOVE,
        ACCEPT,
        ASYNC_CANCEL,
        CONNECT,
        CLOSE,
        READ,
        WRITE,
        SEND,
        RECV,
        SHUTDOWN,
    ];
}

/// The only supported flag of an entry: do not try the operation at once.
pub const ASYNC: u8 = 1 << c::io_uring_sqe_flags_bit::IOSQE_ASYNC_BIT as u8;
/// The value that stands for the description's own offset.
const CURRENT: u64 = u64::MAX;
/// Events that are always reported.
pub const ALWAYS: u32 = Ready::ERR.bits() | Ready::HUP.bits();

/// Direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the file to memory.
    Read,
    /// From memory to the file.
    Write,
}

impl Way {
    /// Checks that `file` is open for this direction.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn check(self, file: &OpenFile) -> Result<()> {
        match self {
            Self::Read => file.check_readable(),
            Self::Write => file.check_writable(),
        }
    }
    /// Returns the events to wait for.
    pub const fn readiness(self) -> u32 {
        match self {
            Self::Read => Ready::IN.bits() | ALWAYS,
            Self::Write => Ready::OUT.bits() | ALWAYS,
        }
    }
}

/// A read or write whose buffers are pinned.
pub struct Transfer {
    file: Arc<OpenFile>,
    offset: u64,
    moving: Moving,
    /// The charge for the pages, if the request itself pinned them.
    _pins: Option<UserCharge>,
}

/// The direction, and the place of the bytes.
enum Moving {
    Read(PinnedBytes<ReadWrite>),
    Write(PinnedBytes<ReadOnly>),
    /// From a registered buffer, which is usable in both directions.
    WriteFixed(PinnedBytes<ReadWrite>),
}

impl Transfer {
    /// Returns the file.
    pub const fn file(&self) -> &Arc<OpenFile> {
        &self.file
    }
    /// Returns the events after which the transfer can continue.
    pub const fn readiness(&self) -> u32 {
        match self.moving {
            Moving::Read(_) => Way::Read.readiness(),
            Moving::Write(_) | Moving::WriteFixed(_) => Way::Write.readiness(),
        }
    }
    /// Transfers the bytes. A new attempt begins with all of them.
    pub fn run(&self, blocking: Blocking) -> Result<usize> {
        match &self.moving {
            Moving::Read(to) => read(&self.file, self.offset, &mut to.try_clone()?, blocking),
            Moving::Write(from) => write(&self.file, self.offset, &mut from.try_clone()?, blocking),
            Moving::WriteFixed(from) => write(&self.file, self.offset, &mut from.try_clone()?, blocking),
        }
    }
}

/// A request that does not end at once.
pub enum Pending {
    /// Waits until the file is ready for the transfer.
    Stream(Transfer),
    /// Waits until the socket is ready.
    Socket(Box<SocketRequest>),
    /// Waits for the disk's answer.
    Disk(Transfer),
    /// Waits until all data is on the disk.
    Sync(Arc<OpenFile>),
    /// Waits for one of these events of the file.
    Poll(Arc<OpenFile>, u32),
    /// Waits until the clock shows `deadline` nanoseconds, or until that many completions were
    /// posted.
    Timeout { deadline: u64, completions: Option<u64> },
}

/// The state of an entry after its start.
pub enum Start {
    /// The operation ended with this result.
    Done(i64),
    /// The operation has to wait.
    Pending(Pending),
}

/// The place of a transfer's bytes.
pub enum Buffers {
    /// At a program's addresses.
    Program(Iovecs),
    /// In a registered buffer.
    Fixed(PinnedBytes<ReadWrite>),
}

fn read(file: &OpenFile, offset: u64, to: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
    match offset {
        _ if file.file().seekable() == Seekable::Stream => {
            file.will_read()?;
            file.file().read_at(0, to, blocking).inspect(|&count| file.has_read(count))
        }
        CURRENT => file.read(to),
        offset => file.read_at(offset, to),
    }
}

fn write(file: &OpenFile, offset: u64, from: &mut dyn Source, blocking: Blocking) -> Result<usize> {
    match offset {
        _ if file.file().seekable() == Seekable::Stream => {
            file.file().write_at(0, from, blocking).inspect(|&count| file.has_written(count))
        }
        CURRENT => file.write(from),
        offset => file.write_at(offset, from),
    }
}

/// Whether `entry` counts completions, or posts one for another request: the completions before it
/// must be visible first.
pub const fn looks_at_completions(entry: &Submission) -> bool {
    use operation as op;
    matches!(entry.opcode, op::TIMEOUT | op::TIMEOUT_REMOVE | op::POLL_REMOVE | op::ASYNC_CANCEL)
}

/// Starts the operation of `entry`.
///
/// # Errors
/// The completion's result.
pub fn start(ring: &Arc<IoRing>, entry: &Submission) -> Result<Start> {
    use operation as op;
    if entry.flags & !ASYNC != 0 {
        return Err(Errno::EINVAL);
    }
    match entry.opcode {
        op::NOP => Ok(Start::Done(0)),
        op::READV | op::READ => transfer(entry, Way::Read, program_buffers(entry)?),
        op::WRITEV | op::WRITE => transfer(entry, Way::Write, program_buffers(entry)?),
        op::READ_FIXED => transfer(entry, Way::Read, fixed_buffer(ring, entry)?),
        op::WRITE_FIXED => transfer(entry, Way::Write, fixed_buffer(ring, entry)?),
        op::FSYNC => sync(entry),
        op::POLL_ADD => poll(entry),
        op::TIMEOUT => timeout(ring, entry),
        op::SEND | op::SENDMSG => sockets::send(entry),
        op::RECV | op::RECVMSG => sockets::receive(entry),
        op::ACCEPT => sockets::accept(entry),
        op::CONNECT => sockets::connect(entry),
        op::SHUTDOWN => sockets::shutdown(entry),
        op::CLOSE => close(entry),
        op::POLL_REMOVE | op::TIMEOUT_REMOVE | op::ASYNC_CANCEL => {
            if entry.operation_flags != 0 {
                return Err(Errno::EINVAL);
            }
            ring.cancel(entry.address).map(|()| Start::Done(0))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the file of `entry`, which must not be a ring: a ring that waits for itself would never
/// end.
pub fn file_of(entry: &Submission) -> Result<Arc<OpenFile>> {
    let file = task::current().process().files().get(entry.fd)?;
    if RingFile::ring_of(&file).is_some() { Err(Errno::EOPNOTSUPP) } else { Ok(file) }
}

fn program_buffers(entry: &Submission) -> Result<Buffers> {
    let length = entry.length as usize;
    Ok(Buffers::Program(match entry.opcode {
        operation::READV | operation::WRITEV => Iovecs::read(entry.address, length)?,
        _ => Iovecs::one(entry.address, length),
    }))
}

fn fixed_buffer(ring: &IoRing, entry: &Submission) -> Result<Buffers> {
    let run = ring.buffers.lock().get(usize::from(entry.buffer)).cloned().ok_or(Errno::EFAULT)?;
    let start = entry.address.checked_sub(run.address()).ok_or(Errno::EFAULT)?;
    let start = usize::try_from(start).map_err(|_| Errno::EFAULT)?;
    let end = start.checked_add(entry.length as usize).ok_or(Errno::EFAULT)?;
    PinnedBytes::part(run, start..end).map(Buffers::Fixed)
}

fn transfer(entry: &Submission, way: Way, buffers: Buffers) -> Result<Start> {
    if entry.operation_flags != 0 || entry.priority != 0 {
        return Err(Errno::EINVAL); // RWF_* and I/O priorities: not supported.
    }
    let file = file_of(entry)?;
    way.check(&file)?;
    let attempt = if entry.flags & ASYNC != 0 { FirstAttempt::Later } else { FirstAttempt::Now };
    begin_transfer(file, way, entry.offset, buffers, attempt)
}

/// Whether a stream is tried at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstAttempt {
    /// The stream is tried at once.
    Now,
    /// The stream is tried only when a task waits for it.
    Later,
}

/// Transfers bytes between `file`, at `offset`, and `buffers`. If that would block, pins the
/// buffers.
///
/// # Errors
/// The error of the transfer; `EFAULT`, `ENOMEM` if the buffers cannot be pinned.
pub fn begin_transfer(
    file: Arc<OpenFile>,
    way: Way,
    offset: u64,
    mut buffers: Buffers,
    attempt: FirstAttempt,
) -> Result<Start> {
    let stream = file.file().seekable() == Seekable::Stream;
    let disk = file.node().kind() == NodeKind::BlockDevice;
    let later = disk || (stream && attempt == FirstAttempt::Later);
    if !later {
        // Files in memory end at once. Streams may report that they would wait.
        let moved = match (way, &mut buffers) {
            (Way::Read, Buffers::Program(to)) => read(&file, offset, to, Blocking::Never),
            (Way::Read, Buffers::Fixed(to)) => read(&file, offset, to, Blocking::Never),
            (Way::Write, Buffers::Program(from)) => write(&file, offset, from, Blocking::Never),
            (Way::Write, Buffers::Fixed(from)) => write(&file, offset, from, Blocking::Never),
        };
        match moved {
            Err(Errno::EAGAIN) if stream && file.blocking() == Blocking::Wait => {}
            result => return result.map(|count| Start::Done(count as i64)),
        }
    }
    let space = task::current().process().space();
    // A stream takes no more at once: the rest is left to another request.
    let most = if stream { pins::MOST_BYTES } else { usize::MAX };
    let pins = match &buffers {
        Buffers::Program(memory) => Some(pins::charge(memory, most)?),
        Buffers::Fixed(_) => None,
    };
    let moving = match (way, buffers) {
        (Way::Read, Buffers::Program(to)) => Moving::Read(PinnedBytes::pin(&space, &to, most)?),
        (Way::Read, Buffers::Fixed(to)) => Moving::Read(to),
        (Way::Write, Buffers::Program(from)) => Moving::Write(PinnedBytes::pin(&space, &from, most)?),
        (Way::Write, Buffers::Fixed(from)) => Moving::WriteFixed(from),
    };
    let transfer = Transfer { file, offset, moving, _pins: pins };
    Ok(Start::Pending(if disk { Pending::Disk(transfer) } else { Pending::Stream(transfer) }))
}

fn close(entry: &Submission) -> Result<Start> {
    let unused = (entry.offset, entry.address, entry.length, entry.operation_flags, entry.buffer);
    if unused != (0, 0, 0, 0, 0) || entry.splice_fd != 0 {
        return Err(Errno::EINVAL);
    }
    let files = task::current().process().files();
    if RingFile::ring_of(&*files.get(entry.fd)?).is_some() {
        return Err(Errno::EBADF);
    }
    files.close(entry.fd).map(|()| Start::Done(0))
}

fn sync(entry: &Submission) -> Result<Start> {
    if entry.operation_flags & !c::IORING_FSYNC_DATASYNC != 0 || entry.offset != 0 || entry.length != 0 {
        // Sync of a part of a file: not supported.
        return Err(Errno::EINVAL);
    }
    file_of(entry).map(|file| Start::Pending(Pending::Sync(file)))
}

fn poll(entry: &Submission) -> Result<Start> {
    if entry.length != 0 {
        return Err(Errno::EINVAL); // Multishot polls and changes of a poll: not supported.
    }
    file_of(entry).map(|file| Start::Pending(Pending::Poll(file, entry.operation_flags | ALWAYS)))
}

fn timeout(ring: &IoRing, entry: &Submission) -> Result<Start> {
    if entry.operation_flags & !c::IORING_TIMEOUT_ABS != 0 || entry.length != 1 {
        return Err(Errno::EINVAL);
    }
    let time = UserPtr::<TimeSpec>::new(entry.address).read()?.nanoseconds()?;
    let absolute = entry.operation_flags & c::IORING_TIMEOUT_ABS != 0;
    let deadline = if absolute {
        Clock::Monotonic.deadline(time)?.since_boot()
    } else {
        time::now().saturating_add(time)
    };
    let completions = (entry.offset != 0).then(|| ring.completed().saturating_add(entry.offset));
    Ok(Start::Pending(Pending::Timeout { deadline, completions }))
}
