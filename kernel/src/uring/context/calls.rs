//! io_setup, io_submit, io_getevents, io_pgetevents, io_cancel, io_destroy.

use freehold_collections::{Arc, Receiver};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::RingFile;
use super::super::request::{self, Buffers, FirstAttempt, Pending, Start, Way};
use super::super::work::{Asker, result_word};
use super::{ControlTag, IoContext, IoEvent};
use crate::fs::{NodeKind, OpenFile, Seekable, eventfd};
use crate::mem::with_memory_found;
use crate::syscall::Args;
use crate::time::{self, TimeSpec};
use crate::user::{Iovecs, UserPtr};
use crate::{Errno, Result, sched, task};

/// Largest number of requests of a context.
const MAX_REQUESTS: u32 = 0x40_0000;

/// `struct iocb`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct ControlBlock {
    data: u64,
    key: u32,
    transfer_flags: u32,
    operation: u16,
    priority: i16,
    fd: i32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    counter: i32,
}

/// Offset of the key in a [`ControlBlock`]: the kernel writes 0 there.
const KEY_OFFSET: u64 = 8;

/// Operations, with the interface's numbers (`include/uapi/linux/aio_abi.h`).
mod operation {
    pub const PREAD: u16 = 0;
    pub const PWRITE: u16 = 1;
    pub const FSYNC: u16 = 2;
    pub const FDSYNC: u16 = 3;
    pub const POLL: u16 = 5;
    pub const PREADV: u16 = 7;
    pub const PWRITEV: u16 = 8;
}

/// Flags of a [`ControlBlock`]: an event counter is notified of the end; the priority is valid.
const TELLS_COUNTER: u32 = 1 << 0;
const HAS_PRIORITY: u32 = 1 << 1;

impl ControlBlock {
    /// Starts the request. `Ok` of an error is a request that started, and failed.
    ///
    /// # Errors
    /// If it did not start: `EINVAL`, `EBADF`, `EFAULT`, `EOPNOTSUPP`.
    fn start(&self, file: Arc<OpenFile>) -> Result<Result<Start>> {
        use operation as op;
        match self.operation {
            op::PREAD | op::PREADV => self.transfer(file, Way::Read),
            op::PWRITE | op::PWRITEV => self.transfer(file, Way::Write),
            op::FSYNC | op::FDSYNC => {
                let is_plain = [self.buffer, self.length, self.offset as u64, self.transfer_flags.into()];
                if is_plain != [0; 4] || file.file().seekable() == Seekable::Stream {
                    return Err(Errno::EINVAL);
                }
                Ok(Ok(Start::Pending(Pending::Sync(file))))
            }
            op::POLL => {
                let wanted = u16::try_from(self.buffer).map_err(|_| Errno::EINVAL)?;
                if [self.length, self.offset as u64, self.transfer_flags.into()] != [0; 3] {
                    return Err(Errno::EINVAL);
                }
                Ok(Ok(Start::Pending(Pending::Poll(file, u32::from(wanted) | request::ALWAYS))))
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn transfer(&self, file: Arc<OpenFile>, way: Way) -> Result<Result<Start>> {
        if self.transfer_flags != 0 {
            return Err(Errno::EOPNOTSUPP); // RWF_* are not supported.
        }
        if self.flags & HAS_PRIORITY != 0 && self.priority != 0 {
            return Err(Errno::EINVAL); // I/O priorities are not supported.
        }
        way.check(&file)?;
        let kind = file.node().kind();
        if kind == NodeKind::Directory || RingFile::ring_of(&file).is_some() {
            return Err(Errno::EINVAL);
        }
        let offset = if file.file().seekable() == Seekable::Stream { 0 } else { self.offset };
        let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let length = usize::try_from(self.length).map_err(|_| Errno::EINVAL)?;
        let vectors = matches!(self.operation, operation::PREADV | operation::PWRITEV);
        let buffers =
            if vectors { Iovecs::read(self.buffer, length)? } else { Iovecs::one(self.buffer, length) };
        let buffers = Buffers::Program(buffers);
        Ok(request::begin_transfer(file, way, offset, buffers, FirstAttempt::Now))
    }
}

impl IoContext {
    /// Starts the request of the control block at `at`.
    fn submit(self: &Receiver<Self>, at: u64) -> Result<()> {
        let block = UserPtr::<ControlBlock>::new(at).read()?;
        if block.reserved != 0 || i64::try_from(block.length).is_err() {
            return Err(Errno::EINVAL);
        }
        self.begin()?;
        let posted = self.submit_begun(at, &block);
        posted.inspect_err(|_| self.give_up(1))
    }

    /// Starts a request that has its place in the context.
    fn submit_begun(self: &Receiver<Self>, at: u64, block: &ControlBlock) -> Result<()> {
        let files = task::current().process().files();
        let file = files.get(block.fd)?;
        let counter = match block.flags & TELLS_COUNTER {
            0 => None,
            _ => Some(files.get(block.counter).and_then(eventfd::checked)?),
        };
        UserPtr::<u32>::new(at + KEY_OFFSET).write(&0)?;
        let tag = ControlTag { control: at, data: block.data, counter };
        match block.start(file)? {
            Ok(Start::Pending(pending)) => self.wait_for(tag, pending),
            Ok(Start::Done(result)) => {
                self.post(tag, result_word(Ok(result)));
                Ok(())
            }
            Err(error) => {
                self.post(tag, result_word(Err(error)));
                Ok(())
            }
        }
    }
}

/// io_setup(requests, context)
///
/// # Errors
/// As in the manual.
pub fn sys_io_setup(args: &Args) -> Result<i64> {
    let (requests, at) = (args.uint(0), UserPtr::<u64>::new(args[1]));
    if at.read()? != 0 || requests == 0 || requests > MAX_REQUESTS {
        return Err(Errno::EINVAL);
    }
    let id = super::enter(requests)?;
    if let Err(error) = at.write(&id) {
        super::end(id)?;
        return Err(error);
    }
    Ok(0)
}

/// io_destroy(context)
///
/// # Errors
/// `EINVAL`.
pub fn sys_io_destroy(args: &Args) -> Result<i64> {
    super::end(args[0]).map(|()| 0)
}

/// io_submit(context, count, control blocks): returns how many requests started.
///
/// # Errors
/// As in the manual, if none started.
pub fn sys_io_submit(args: &Args) -> Result<i64> {
    let count = usize::try_from(args[1] as i64).map_err(|_| Errno::EINVAL)?;
    let context = IoContext::find(args[0])?;
    let blocks = UserPtr::<u64>::new(args[2]);
    for begun in 0..count.min(context.room.requests() as usize) {
        let began = sched::checkpoint()
            .and_then(|()| blocks.add(begun).read())
            .and_then(|at| with_memory_found(|| context.submit(at)));
        match began {
            Ok(()) => {}
            Err(error) if begun == 0 => return Err(error),
            Err(_) => return Ok(begun as i64),
        }
    }
    Ok(count.min(context.room.requests() as usize) as i64)
}

/// io_cancel(context, control block, event): a cancelled request's event is queued like any other.
///
/// # Errors
/// `EINPROGRESS` if it was cancelled; `EINVAL` if it cannot be, or if there is no such context or
/// request; `EFAULT`.
pub fn sys_io_cancel(args: &Args) -> Result<i64> {
    if UserPtr::<u32>::new(args[1].wrapping_add(KEY_OFFSET)).read()? != 0 {
        return Err(Errno::EINVAL);
    }
    IoContext::find(args[0])?.cancel(args[1]).map_err(|_| Errno::EINVAL)?;
    Err(Errno::EINPROGRESS)
}

/// Returns the time-out at `at` as a deadline. A time in the past, or an invalid one, counts as
/// expired.
fn deadline(at: u64) -> Result<Option<u64>> {
    let time = UserPtr::<TimeSpec>::new(at).read_optional()?;
    Ok(time.map(|time| time::now().saturating_add(time.nanoseconds().unwrap_or(0))))
}

fn take_events(args: &Args, deadline: Option<u64>) -> Result<i64> {
    let context = IoContext::find(args[0])?;
    let [least, most] = [args[1], args[2]].map(|count| usize::try_from(count as i64));
    let (Ok(least), Ok(most)) = (least, most) else { return Err(Errno::EINVAL) };
    if least > most {
        return Err(Errno::EINVAL);
    }
    let to = UserPtr::<IoEvent>::new(args[3]);
    context.wait_for_events(to, least, most, deadline).map(|count| count as i64)
}

/// io_getevents(context, least, most, events, time-out): returns the number of events.
///
/// # Errors
/// As in the manual.
pub fn sys_io_getevents(args: &Args) -> Result<i64> {
    take_events(args, deadline(args[4])?)
}

/// io_pgetevents(context, least, most, events, time-out, signal mask): as [`sys_io_getevents`],
/// with other signals blocked.
///
/// # Errors
/// As in the manual.
pub fn sys_io_pgetevents(args: &Args) -> Result<i64> {
    let deadline = deadline(args[4])?;
    let [mask, size] = UserPtr::<[u64; 2]>::new(args[5]).read_optional()?.unwrap_or_default();
    let mask = task::mask_at(mask, size as usize)?;
    task::current().with_signals_blocked(mask, || take_events(args, deadline))
}
