//! Pipes and FIFOs.
//!
//! A [`Pipe`] has the bytes and the counts of its ends; a [`PipeEnd`] is an open file of it. A
//! sleeping lock protects the bytes, since user memory may fault while they are copied. The values
//! that waiters check (pages in use, open ends) are mirrored in atomics, which change before the
//! waiters are woken. So no task waits while it holds the lock, and none needs the lock to wait.
//!
//! Semantics: pipe(7), fifo(7).

mod lend;
mod page;
mod ring;
pub mod share;
mod splice;
#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use freehold_collections::{Arc, Receiver, reserve};
use freehold_machine::PAGE_SIZE;
use linux_raw_sys::ioctl::FIONREAD;

pub use page::BytePage;
pub use ring::{Boundary, Gathered, PipeRing};
use share::{Privilege, Share};
pub use splice::{sys_splice, sys_tee, sys_vmsplice};

use super::anonymous::AnonymousNode;
use super::file::{NewsOwner, NewsQueues};
use super::{Blocking, File, Identity, Node, NodeKind, OpenFile, OpenFlags, Ready};
use crate::sync::{Mutex, News, PollWaiter, SpinLock, WaitQueue, WeakMap};
use crate::syscall::Args;
use crate::task::Capability;
use crate::user::{Sink, Source, UserPtr, so_far};
use crate::{Errno, Result};

/// Number of pages of a new pipe: 64 KiB.
const DEFAULT_PAGES: usize = 16;
/// Largest size that F_SETPIPE_SZ can set, in bytes.
const MOST_BYTES: usize = 1 << 31;
/// Largest size, in pages, that F_SETPIPE_SZ can set for a caller without CAP_SYS_RESOURCE
/// (/proc/sys/fs/pipe-max-size, whose default is 1 MiB). A new pipe of such a caller is no larger.
static USER_PAGES: AtomicUsize = AtomicUsize::new((1 << 20) / PAGE_SIZE);

/// Returns the number of pages for a pipe of so many bytes: a power of two, at least one (Linux:
/// `round_pipe_size`).
///
/// # Errors
/// `EINVAL` above 2 GiB.
fn pages_for(bytes: usize) -> Result<usize> {
    if bytes > MOST_BYTES { Err(Errno::EINVAL) } else { Ok(bytes.div_ceil(PAGE_SIZE).next_power_of_two()) }
}

/// Size limit of pipes of programs without CAP_SYS_RESOURCE, in bytes.
pub fn max_size() -> u64 {
    (USER_PAGES.load(Ordering::Relaxed) * PAGE_SIZE) as u64
}

/// Sets [`max_size`], rounded up to a power of two of pages, at least one.
///
/// # Errors
/// `EINVAL` above 2 GiB.
pub fn set_max_size(bytes: u64) -> Result<()> {
    let bytes = usize::try_from(bytes).map_err(|_| Errno::EINVAL)?;
    USER_PAGES.store(pages_for(bytes)?, Ordering::Relaxed);
    Ok(())
}

/// Whether the caller may have a pipe of so many pages.
fn may_have(pages: usize) -> bool {
    pages <= USER_PAGES.load(Ordering::Relaxed) || crate::task::may(Capability::SysResource)
}

/// A pipe or a FIFO.
pub struct Pipe {
    ring: Mutex<PipeRing>,
    /// The pipe's share of its maker's page limit.
    share: SpinLock<Share>,
    /// Mirrors of the ring's state, and the numbers of open ends.
    used: AtomicUsize,
    limit: AtomicUsize,
    readers: AtomicU32,
    writers: AtomicU32,
    /// How often each end was opened. A FIFO's open waits for a change of the count: the other end
    /// may already be closed again.
    reader_opens: AtomicU32,
    writer_opens: AtomicU32,
    /// The queue that is woken when there are bytes to read, or the last writer has closed.
    readable: Arc<WaitQueue>,
    /// The queue that is woken when there is room, or the last reader has closed.
    writable: Arc<WaitQueue>,
}

/// The ends that an open file has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    Read,
    Write,
    /// A FIFO opened for both.
    Both,
}

impl Ends {
    /// Returns the ends that an open with these flags requests.
    fn of(flags: OpenFlags) -> Result<Self> {
        match (flags.reads(), flags.writes()) {
            (true, true) => Ok(Self::Both),
            (true, false) => Ok(Self::Read),
            (false, true) => Ok(Self::Write),
            (false, false) => Err(Errno::EINVAL),
        }
    }
    fn reads(self) -> bool {
        self != Self::Write
    }
    fn writes(self) -> bool {
        self != Self::Read
    }
}

/// An open file of a pipe.
pub struct PipeEnd {
    pipe: Arc<Pipe>,
    node: Arc<dyn Node>,
    ends: Ends,
    /// The count of writers' opens when this end was opened. Until the first writer opens the pipe,
    /// there is no hang-up to report.
    writers_then: u32,
    /// O_DIRECT: 1 while writes are packets.
    packets: AtomicU32,
}

impl Pipe {
    /// Makes a pipe without open ends.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>> {
        let pages = if may_have(DEFAULT_PAGES) { DEFAULT_PAGES } else { USER_PAGES.load(Ordering::Relaxed) };
        let (share, pages) = Share::new(pages)?;
        Ok(reserve::arc(Self {
            share: SpinLock::new(share),
            ring: Mutex::new(PipeRing::new(pages)),
            used: AtomicUsize::new(0),
            limit: AtomicUsize::new(pages),
            readers: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            reader_opens: AtomicU32::new(0),
            writer_opens: AtomicU32::new(0),
            readable: reserve::arc(WaitQueue::new()),
            writable: reserve::arc(WaitQueue::new()),
        }))
    }

    /// pipe2(2): makes the reading and the writing end.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn pair(flags: OpenFlags) -> Result<(Arc<PipeEnd>, Arc<PipeEnd>)> {
        let pipe = Self::new()?;
        let opener = pipe.clone();
        // Opening a pipe again through /proc/PID/fd does not wait for the other end, unlike a FIFO.
        let node = AnonymousNode::with_open(NodeKind::Fifo, "pipe", move |node, flags| {
            Ok(opener.end(node, Ends::of(flags)?, flags))
        });
        let reader = pipe.end(node.clone(), Ends::Read, flags);
        let writer = pipe.end(node, Ends::Write, flags);
        Ok((reader, writer))
    }

    fn end(self: &Receiver<Self>, node: Arc<dyn Node>, ends: Ends, flags: OpenFlags) -> Arc<PipeEnd> {
        let writers_then = self.writer_opens.load(Ordering::SeqCst);
        if ends.reads() {
            self.readers.fetch_add(1, Ordering::SeqCst);
            self.reader_opens.fetch_add(1, Ordering::SeqCst);
        }
        if ends.writes() {
            self.writers.fetch_add(1, Ordering::SeqCst);
            self.writer_opens.fetch_add(1, Ordering::SeqCst);
        }
        self.wake_all();
        let packets = AtomicU32::new(u32::from(flags.contains(OpenFlags::DIRECT)));
        reserve::arc(PipeEnd { pipe: self.clone(), node, ends, writers_then, packets })
    }

    fn wake_all(&self) {
        self.readable.wake_all();
        self.writable.wake_all();
    }

    /// Wakes all waiters if one end's last file was closed.
    fn end_closed(&self) {
        if self.has_readers() == self.has_writers() {
            return self.wake_all();
        }
        // All watchers see an end: it is no input, which one of them takes.
        self.wake_all();
        self.readable.tell(News::Input);
        self.writable.tell(News::Room);
    }

    fn has_readers(&self) -> bool {
        self.readers.load(Ordering::SeqCst) > 0
    }

    fn has_writers(&self) -> bool {
        self.writers.load(Ordering::SeqCst) > 0
    }

    fn is_empty(&self) -> bool {
        self.used.load(Ordering::SeqCst) == 0
    }

    fn has_room(&self) -> bool {
        self.used.load(Ordering::SeqCst) < self.limit.load(Ordering::SeqCst)
    }

    /// Publishes the ring's state; called with the ring locked.
    fn publish(&self, ring: &PipeRing) {
        self.used.store(ring.pages(), Ordering::SeqCst);
    }

    /// The pipe's capacity in bytes (F_GETPIPE_SZ).
    pub fn capacity(&self) -> usize {
        self.limit.load(Ordering::SeqCst) * PAGE_SIZE
    }

    /// Changes the capacity (F_SETPIPE_SZ), rounded up to a power of two of pages. Returns the new
    /// capacity.
    ///
    /// # Errors
    /// `EINVAL` above 2 GiB; `EBUSY` if the pipe has more bytes. `EPERM` if the caller lacks
    /// CAP_SYS_RESOURCE, and the new size is above [`max_size`] or the maker has too many pages.
    pub fn set_capacity(&self, bytes: usize) -> Result<usize> {
        let pages = pages_for(bytes)?;
        if pages > self.limit.load(Ordering::SeqCst) && !may_have(pages) {
            return Err(Errno::EPERM);
        }
        let mut ring = self.ring.lock_killable()?;
        let privilege = Privilege::of_caller();
        self.share.lock().resize(pages, privilege, || ring.set_limit(pages))?;
        self.limit.store(pages, Ordering::SeqCst);
        drop(ring);
        self.writable.wake_all();
        Ok(pages * PAGE_SIZE)
    }

    /// Number of bytes that wait to be read.
    ///
    /// # Errors
    /// `EINTR` if the task must end.
    pub fn bytes(&self) -> Result<usize> {
        Ok(self.ring.lock_killable()?.bytes())
    }

    fn read(&self, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        if sink.remaining() == 0 {
            return Ok(0);
        }
        let mut has_slept = false;
        loop {
            // A writer that closes now may have written before: check for writers first, then for
            // bytes.
            let writers = self.has_writers();
            if !self.is_empty() {
                let mut ring = self.ring.lock_killable()?;
                let was_full = !ring.has_room();
                let result = ring.pop(sink);
                let left = ring.pages();
                self.publish(&ring);
                drop(ring);
                // As on Linux, observers are notified of the rest only by a reader that slept.
                if left > 0 && has_slept {
                    self.readable.wake_all();
                }
                match result {
                    Ok(0) => continue,
                    result => {
                        // As on Linux, signals report every read, and edge-triggered observers only
                        // the first one of a full pipe.
                        match was_full {
                            true => self.writable.announce(News::Room),
                            false => self.writable.tell(News::Room),
                        }
                        return result;
                    }
                }
            }
            if !writers {
                return Ok(0);
            }
            if blocking == Blocking::Never {
                return Err(Errno::EAGAIN);
            }
            self.readable.wait_until(|| (!self.is_empty() || !self.has_writers()).then_some(()))?;
            has_slept = true;
        }
    }

    fn write(&self, source: &mut dyn Source, boundary: Boundary, blocking: Blocking) -> Result<usize> {
        self.take(&mut Offer::Copied(source, boundary), blocking)
    }

    fn take(&self, offer: &mut Offer<'_>, blocking: Blocking) -> Result<usize> {
        if offer.remaining() == 0 {
            return Ok(0);
        }
        let mut done = 0;
        let Err(error) = self.write_all(offer, blocking, &mut done) else { return Ok(done) };
        if error == Errno::EPIPE {
            crate::task::signal_broken_pipe();
        }
        so_far(done, error)
    }

    fn write_all(&self, offer: &mut Offer<'_>, blocking: Blocking, done: &mut usize) -> Result<()> {
        if !self.has_readers() {
            return Err(Errno::EPIPE);
        }
        let mut ring = self.ring.lock_killable()?;
        *done += offer.merge(&mut ring)?;
        while offer.remaining() > 0 {
            if ring.has_room() {
                let result = offer.push(&mut ring);
                self.publish(&ring);
                match result {
                    Ok(count) => *done += count,
                    Err(error) => {
                        // Readers that sleep must be notified of the bytes that were written before
                        // the error.
                        drop(ring);
                        self.readable.announce(News::Input);
                        return Err(error);
                    }
                }
                continue;
            }
            drop(ring);
            self.readable.announce(News::Input);
            if *done > 0 && offer.is_content_with_part() {
                // vmsplice waits only for the first room. The result tells the program how many
                // bytes were lent, and so which of its pages it must not change.
                return Ok(());
            }
            if blocking == Blocking::Never {
                return Err(Errno::EAGAIN);
            }
            self.writable.wait_until(|| (self.has_room() || !self.has_readers()).then_some(()))?;
            if !self.has_readers() {
                return Err(Errno::EPIPE);
            }
            ring = self.ring.lock();
        }
        drop(ring);
        // Edge-triggered observers are notified of bytes that were appended to others, too.
        self.readable.announce(News::Input);
        Ok(())
    }
}

/// The bytes of a write to a pipe.
enum Offer<'a> {
    /// Bytes to be copied.
    Copied(&'a mut dyn Source, Boundary),
    /// A program's pages, to be lent.
    Lent(lend::Lender<'a>),
}

impl Offer<'_> {
    fn remaining(&self) -> usize {
        match self {
            Self::Copied(source, _) => source.remaining(),
            Self::Lent(lender) => lender.remaining(),
        }
    }
    /// Whether the write may be partial.
    fn is_content_with_part(&self) -> bool {
        match self {
            Self::Copied(..) => false,
            Self::Lent(_) => true,
        }
    }
    fn merge(&mut self, ring: &mut PipeRing) -> Result<usize> {
        match self {
            Self::Copied(source, Boundary::Stream) => ring.merge(*source),
            _ => Ok(0),
        }
    }
    fn push(&mut self, ring: &mut PipeRing) -> Result<usize> {
        match self {
            Self::Copied(source, boundary) => ring.push(*source, *boundary),
            Self::Lent(lender) => lender.push(ring),
        }
    }
}

impl PipeEnd {
    /// Returns the pipe of `file`, if `file` is one.
    pub fn pipe_of(file: &OpenFile) -> Option<&Arc<Pipe>> {
        file.file().downcast::<Self>().map(|end| &end.pipe)
    }
    /// The end's pipe.
    pub fn pipe(&self) -> &Arc<Pipe> {
        &self.pipe
    }
}

impl File for PipeEnd {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        self.pipe.read(sink, blocking)
    }

    fn write_at(&self, _offset: u64, source: &mut dyn Source, blocking: Blocking) -> Result<usize> {
        let packets = self.packets.load(Ordering::Relaxed) != 0;
        self.pipe.write(source, if packets { Boundary::Packet } else { Boundary::Stream }, blocking)
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        let pipe = &self.pipe;
        if let Some(waiter) = waiter {
            if self.ends.reads() {
                waiter.register(&pipe.readable);
            }
            if self.ends.writes() {
                waiter.register(&pipe.writable);
            }
        }
        let mut ready = Ready::empty();
        if self.ends.reads() {
            let had_writer = pipe.writer_opens.load(Ordering::SeqCst) != self.writers_then;
            ready.set(Ready::HUP, !pipe.has_writers() && had_writer);
            ready.set(Ready::IN, !pipe.is_empty());
        }
        if self.ends.writes() {
            ready.set(Ready::OUT, pipe.has_room());
            ready.set(Ready::ERR, !pipe.has_readers());
        }
        ready
    }

    fn news(&self) -> Option<NewsQueues<'_>> {
        let readable = self.ends.reads().then_some(&self.pipe.readable);
        let writable = self.ends.writes().then_some(&self.pipe.writable);
        Some(NewsQueues { queues: [readable, writable], owner: NewsOwner::None })
    }

    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        match request {
            FIONREAD => {
                UserPtr::<i32>::new(argument).write(&(self.pipe.bytes()? as i32))?;
                Ok(0)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn flags_changed(&self, flags: OpenFlags) {
        self.packets.store(u32::from(flags.contains(OpenFlags::DIRECT)), Ordering::Relaxed);
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let pipe = &self.pipe;
        if self.ends.reads() {
            pipe.readers.fetch_sub(1, Ordering::SeqCst);
        }
        if self.ends.writes() {
            pipe.writers.fetch_sub(1, Ordering::SeqCst);
        }
        if !pipe.has_readers() && !pipe.has_writers() {
            // A FIFO keeps no bytes without users. A task that opens it now waits for the lock, and
            // then finds it empty.
            let mut ring = pipe.ring.lock();
            if !pipe.has_readers() && !pipe.has_writers() {
                ring.clear();
                pipe.publish(&ring);
            }
        }
        pipe.end_closed();
    }
}

/// Open FIFOs, by their inodes.
static FIFOS: SpinLock<WeakMap<Identity, Pipe>> = SpinLock::new(WeakMap::new());

/// Opens the FIFO `node`, which has a name.
///
/// # Errors
/// As [`open_fifo`]; `ENOMEM`.
pub fn open_named(node: Arc<dyn Node>, flags: OpenFlags) -> Result<Arc<dyn File>> {
    let identity = node.identity();
    let there = FIFOS.lock().get(&identity);
    let pipe = match there {
        Some(pipe) => pipe,
        None => {
            let fresh = Pipe::new()?;
            let mut fifos = FIFOS.lock();
            match fifos.get(&identity) {
                Some(pipe) => pipe,
                None => {
                    fifos.try_insert(identity, &fresh)?;
                    fresh
                }
            }
        }
    };
    open_fifo(&pipe, node, flags)
}

/// Opens a FIFO with these flags. Waits until the other end is opened, unless the flags forbid
/// waiting.
///
/// # Errors
/// `ENXIO` for a writer that may not wait if there is no reader; `ERESTARTSYS` on a signal.
pub fn open_fifo(pipe: &Arc<Pipe>, node: Arc<dyn Node>, flags: OpenFlags) -> Result<Arc<dyn File>> {
    let wait = !flags.contains(OpenFlags::NONBLOCK);
    match Ends::of(flags)? {
        Ends::Both => Ok(pipe.end(node, Ends::Both, flags)),
        Ends::Read => {
            let before = pipe.writer_opens.load(Ordering::SeqCst);
            let end = pipe.end(node, Ends::Read, flags);
            if wait && !pipe.has_writers() {
                pipe.readable
                    .wait_until(|| (pipe.writer_opens.load(Ordering::SeqCst) != before).then_some(()))?;
            }
            Ok(end)
        }
        Ends::Write => {
            if !wait && !pipe.has_readers() {
                return Err(Errno::ENXIO);
            }
            let before = pipe.reader_opens.load(Ordering::SeqCst);
            let end = pipe.end(node, Ends::Write, flags);
            if wait && !pipe.has_readers() {
                pipe.writable
                    .wait_until(|| (pipe.reader_opens.load(Ordering::SeqCst) != before).then_some(()))?;
            }
            Ok(end)
        }
    }
}

/// pipe2(ends, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_pipe2(args: &Args) -> Result<i64> {
    let flags = OpenFlags::from_bits_retain(args.uint(1));
    let known = OpenFlags::CLOEXEC | OpenFlags::NONBLOCK | OpenFlags::DIRECT;
    if known.contains(flags) { install_pair(UserPtr::new(args[0]), flags) } else { Err(Errno::EINVAL) }
}

/// pipe(ends)
///
/// # Errors
/// As in the manual.
pub fn sys_pipe(args: &Args) -> Result<i64> {
    install_pair(UserPtr::new(args[0]), OpenFlags::empty())
}

fn install_pair(to: UserPtr<[i32; 2]>, flags: OpenFlags) -> Result<i64> {
    let (reader, writer) = Pipe::pair(flags)?;
    crate::task::install_pair(to, (reader, flags), (writer, flags | OpenFlags::WRONLY))
}
