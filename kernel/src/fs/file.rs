//! Operations of an open file.

use core::any::Any;
use core::ops::Range;

use bitflags::bitflags;
use freehold_collections::Arc;

use super::content::FileContent;
use super::node::Node;
use crate::hw::PAGE;
use crate::sync::WaitQueue;
use crate::user::{Sink, Source};
use crate::{Errno, Result};

/// Whether a call may sleep for data or room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocking {
    /// Sleep until some progress is possible.
    Wait,
    /// Return `EAGAIN` instead (O_NONBLOCK, MSG_DONTWAIT, RWF_NOWAIT).
    Never,
}

impl Blocking {
    /// Returns the result of `attempt`. If there is none, waits for `changed` and tries again.
    ///
    /// # Errors
    /// `EAGAIN` if the call would have to wait and must not; `ERESTARTSYS`.
    #[inline]
    pub fn until<T>(self, changed: &WaitQueue, mut attempt: impl FnMut() -> Option<T>) -> Result<T> {
        match (attempt(), self) {
            (Some(done), _) => Ok(done),
            (None, Self::Never) => Err(Errno::EAGAIN),
            (None, Self::Wait) => changed.wait_until(attempt),
        }
    }
}

bitflags! {
    /// Readiness, with poll(2)'s values.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Ready: u32 {
        /// A read would not block.
        const IN = 0x001;
        /// Priority data.
        const PRI = 0x002;
        /// A write would not block.
        const OUT = 0x004;
        /// An error is pending, or a pipe has no reader.
        const ERR = 0x008;
        /// The other side is gone.
        const HUP = 0x010;
        /// The peer of a stream has closed its writing half.
        const RDHUP = 0x2000;
        /// Data of any priority can be written: Linux reports it for sockets that are not TCP's.
        const WRBAND = 0x200;
        /// Not reported to programs: [`IN`](Self::IN) and [`OUT`](Self::OUT) come without their
        /// synonyms (eventfd, timerfd, signalfd, userfaultfd).
        const ALONE = 1 << 30;
        /// Not reported to programs: the other bits apply to a description with `O_NONBLOCK`; any
        /// other has an error.
        const IF_NONBLOCKING = 1 << 31;
    }
}

/// Normal data can be read or written: Linux reports these beside POLLIN and POLLOUT.
pub const POLLRDNORM: u32 = 0x40;
/// See [`POLLRDNORM`].
pub const POLLWRNORM: u32 = 0x100;

impl Ready {
    /// Returns what poll(2) reports of `wanted`, with synonyms filled in. Most files have nothing.
    #[inline]
    pub fn reported(self, wanted: u32) -> u32 {
        // Each is as far above its synonym.
        const DISTANCE: u32 = POLLRDNORM / Ready::IN.bits();
        const { assert!(DISTANCE == POLLWRNORM / Ready::OUT.bits()) };
        let synonyms = self.intersection(Self::IN | Self::OUT).bits() * DISTANCE;
        match (self.bits() | synonyms) & wanted {
            0 => 0,
            _ if self.contains(Self::ALONE) => self.difference(Self::ALONE).bits() & wanted,
            found => found,
        }
    }
}

/// The default owner of a file's signals, if no program has chosen one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewsOwner {
    /// No owner: no signal is sent.
    None,
    /// A process group, by ID.
    Group(u32),
    /// The process that turns signals on.
    Caller,
}

/// Queues whose events signal-driven I/O reports.
pub struct NewsQueues<'a> {
    /// The queues; [`WaitQueue::announce`] reports their events.
    pub queues: [Option<&'a Arc<WaitQueue>>; 2],
    /// The default owner.
    pub owner: NewsOwner,
}

/// Whether a file has offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seekable {
    /// The description keeps an offset; `read_at` and `write_at` use it.
    Offset,
    /// The offset is meaningless (pipes, terminals, sockets): `ESPIPE`.
    Stream,
}

/// A directory entry for getdents64.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The entry's name, without NUL or slash.
    pub name: &'a [u8],
    /// Inode number.
    pub inode: u64,
    /// DT_* value.
    pub kind: u8,
    /// The position to continue after this entry.
    pub next: u64,
}

/// The content of a file for mmap(2).
pub enum MmapContent {
    /// The file's bytes.
    Content(Arc<dyn FileContent>),
    /// The file's bytes, for private mappings and shared ones that cannot store (others are
    /// `EINVAL`).
    Unstorable(Arc<dyn FileContent>),
    /// Zeroes: a private mapping of /dev/zero is anonymous memory, a shared mapping is shared
    /// anonymous memory.
    Zeroes,
}

/// The change that fallocate(2) makes to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Allocates memory for the range, and grows the file if the range ends after its end.
    Extend,
    /// Allocates memory for the range; the size stays.
    KeepSize,
    /// Makes the range a hole; the size stays.
    PunchHole,
    /// Makes the range zeroes with memory allocated for them; the size stays.
    ZeroKeepSize,
}

/// Receives a line of text.
pub type Line<'a> = &'a mut dyn FnMut(core::fmt::Arguments<'_>);

/// Operations of an open file description. The default of each operation is Linux' answer for a
/// file that lacks it. Methods may sleep.
pub trait File: Any + Send + Sync {
    /// The node of the file.
    fn node(&self) -> Arc<dyn Node>;
    /// Whether the file has offsets.
    fn seekable(&self) -> Seekable {
        Seekable::Stream
    }
    /// Reads at `offset` (ignored by streams); 0 is the end of the file.
    fn read_at(&self, _offset: u64, _sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        Err(Errno::EINVAL)
    }
    /// Writes at `offset` (ignored by streams).
    fn write_at(&self, _offset: u64, _source: &mut dyn Source, _blocking: Blocking) -> Result<usize> {
        Err(Errno::EINVAL)
    }
    /// The time at which a read that begins now gives up, in nanoseconds of [`crate::time::now`]
    /// (SO_RCVTIMEO).
    fn read_deadline(&self) -> Option<u64> {
        None
    }
    /// The same for a write (SO_SNDTIMEO).
    fn write_deadline(&self) -> Option<u64> {
        None
    }
    /// Returns the events that are ready now. With a waiter, also arranges that it is woken when
    /// they change. The waiter is registered before the check, so that no change is missed.
    fn poll(&self, _waiter: Option<&mut crate::sync::PollWaiter>) -> Ready {
        Ready::IN | Ready::OUT
    }
    /// Returns the queues of signal-driven I/O; `None` for a file that has none (Linux: `fasync`).
    fn news(&self) -> Option<NewsQueues<'_>> {
        None
    }
    /// Calls `line` with each line of /proc/PID/fdinfo that only files of this kind have.
    ///
    /// # Errors
    /// `EINTR` if the task must end.
    fn describe(&self, _line: Line<'_>) -> Result<()> {
        Ok(())
    }
    /// Calls `line` with the lines that follow those, of which a program can make any number: with
    /// the one of number `from`, or with none if that is gone. Returns the next number.
    ///
    /// # Errors
    /// `EINTR` if the task must end.
    fn describe_from(&self, _from: u64, _line: Line<'_>) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Whether a regular file's readiness changes, so that epoll watches it.
    fn changes_readiness(&self) -> bool {
        false
    }
    /// Whether a device is always ready, so that epoll does not watch it.
    fn is_always_ready(&self) -> bool {
        false
    }
    /// Device control.
    fn ioctl(&self, _request: u32, _argument: u64) -> Result<i64> {
        Err(Errno::ENOTTY)
    }
    /// Emits directory entries from position `from` on, until `emit` returns `false`. `emit` may be
    /// called with the directory locked, so it does not sleep.
    fn read_dir(&self, _from: u64, _emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        Err(Errno::ENOTDIR)
    }
    /// Writes cached data to the device.
    fn sync(&self) -> Result<()> {
        Err(Errno::EINVAL)
    }
    /// Returns the content for mmap; `ENODEV` for a file that cannot be mapped.
    fn mapping(&self) -> Result<MmapContent> {
        Err(Errno::ENODEV)
    }
    /// Bytes of the pages that mmap shows.
    fn unit(&self) -> u64 {
        PAGE
    }
    /// Checks the part of the file that mmap maps, in bytes: the length in whole pages.
    ///
    /// # Errors
    /// `EINVAL` if this file cannot be mapped so.
    fn check_mapping(&self, _offset: u64, _length: u64) -> Result<()> {
        Ok(())
    }
    /// Appends at the current end of the file. Returns how many bytes were written, and where they
    /// begin.
    fn append(&self, source: &mut dyn Source, blocking: Blocking) -> Result<(usize, u64)> {
        let offset = self.node().metadata().size;
        self.write_at(offset, source, blocking).map(|n| (n, offset))
    }
    /// The size that SEEK_END counts from.
    fn end(&self) -> Result<u64> {
        Ok(self.node().metadata().size)
    }
    /// The content of a regular file or block device, for SEEK_DATA, fallocate and in-kernel
    /// copies.
    fn content(&self) -> Option<Arc<dyn FileContent>> {
        None
    }
    /// Whether a message can carry the file (SCM_RIGHTS).
    fn may_travel(&self) -> bool {
        true
    }
    /// Whether messages to this file can carry open files (SCM_RIGHTS).
    fn receives_files(&self) -> bool {
        false
    }
    /// Whether the kernel itself reads and writes the file's mapped pages at any time.
    fn shares_pages_with_kernel(&self) -> bool {
        false
    }
    /// Prepares a change of the file's bytes by the calling process: removes the set-user-ID and
    /// similar rights ([`rights`](super::rights)).
    ///
    /// # Errors
    /// The file system's.
    fn drop_rights(&self) -> Result<()> {
        Ok(())
    }
    /// fallocate(2).
    fn allocate(&self, _range: Range<u64>, _how: Allocate) -> Result<()> {
        Err(Errno::ENODEV)
    }
    /// F_ADD_SEALS; `EINVAL` for a file without seals.
    fn add_seals(&self, _bits: u32) -> Result<()> {
        Err(Errno::EINVAL)
    }
    /// F_GET_SEALS; `None` for a file without seals.
    fn seals(&self) -> Option<u32> {
        None
    }
    /// Notes new O_APPEND, O_NONBLOCK and similar flags after F_SETFL.
    fn flags_changed(&self, _flags: super::OpenFlags) {}
    /// Notes that a descriptor was closed, not necessarily the last.
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    /// Notes that the last descriptor of this description was closed (flush, hang up).
    fn release(&self) {}
}

impl dyn File {
    /// Returns the file as a `T`, if it is one: a pipe's end, a socket, an epoll instance.
    #[inline]
    pub fn downcast<T: File>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}
