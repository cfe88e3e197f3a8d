//! io_uring_setup, io_uring_enter, io_uring_register.

use arrayvec::ArrayVec;
use freehold_collections::{Arc, Receiver, Vec, reserve};
use linux_raw_sys::io_uring as c;

use super::memory::{AHEAD, Completion, Parameters, SharedRings, Submission};
use super::request::{self, Start, operation};
use super::work::{self, Asker};
use super::{IoRing, RingFile};
use crate::fs::{OpenFile, OpenFlags};
use crate::mem::{PinnedRun, with_memory_found};
use crate::syscall::Args;
use crate::task;
use crate::time::{self, TimeSpec};
use crate::user::UserPtr;
use crate::{Errno, Result, sched};

/// Features of this io_uring beyond its first version: completions are not lost for lack of room,
/// entries and vectors may change after submission, reads and writes at the current position,
/// 32-bit poll events, waiting with a time-out.
const FEATURES: u32 = c::IORING_FEAT_NODROP
    | c::IORING_FEAT_SUBMIT_STABLE
    | c::IORING_FEAT_RW_CUR_POS
    | c::IORING_FEAT_FAST_POLL
    | c::IORING_FEAT_POLL_32BITS
    | c::IORING_FEAT_EXT_ARG;
/// Supported flags of setup. A failing entry never ends a batch.
const SETUP: u32 = c::IORING_SETUP_CQSIZE | c::IORING_SETUP_CLAMP | c::IORING_SETUP_SUBMIT_ALL;
/// Supported flags of enter.
const ENTER: u32 = c::IORING_ENTER_GETEVENTS | c::IORING_ENTER_EXT_ARG;
/// Largest number of registered buffers, and of bytes of a buffer.
const MAX_BUFFERS: usize = 1 << 14;
const MAX_BUFFER: u64 = 1 << 30;

/// io_uring_setup(entries, parameters)
///
/// # Errors
/// As in the manual; unsupported flags and kernel threads are `EINVAL`.
pub fn sys_io_uring_setup(args: &Args) -> Result<i64> {
    let at = UserPtr::<Parameters>::new(args[1]);
    let mut parameters = at.read()?;
    if parameters.flags & !SETUP != 0 || parameters.reserved != [0; 3] {
        return Err(Errno::EINVAL);
    }
    let (submissions, completions) = parameters.sizes(args.uint(0))?;
    let rings = SharedRings::new(submissions, completions)?;
    parameters.describe(&rings, FEATURES);
    at.write(&parameters)?;
    let file = reserve::arc(RingFile(IoRing::make(rings)?));
    task::install(file, OpenFlags::RDWR | OpenFlags::CLOEXEC).map(i64::from)
}

/// Returns the ring of a descriptor, and the file that keeps it open.
fn ring_of(fd: i32) -> Result<(Arc<OpenFile>, Arc<IoRing>)> {
    let file = task::current().process().files().get(fd)?;
    let ring = RingFile::ring_of(&file).cloned().ok_or(Errno::EOPNOTSUPP)?;
    Ok((file, ring))
}

/// `struct io_uring_getevents_arg`.
#[repr(C)]
#[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::IntoBytes)]
struct WaitArgument {
    mask: u64,
    mask_size: u32,
    padding: u32,
    time: u64,
}

/// io_uring_enter(fd, to_submit, min_complete, flags, argument, size)
///
/// # Errors
/// As in the manual; unsupported flags are `EINVAL`.
pub fn sys_io_uring_enter(args: &Args) -> Result<i64> {
    let flags = args.uint(3);
    if flags & !ENTER != 0 {
        return Err(Errno::EINVAL);
    }
    let (_open, ring) = ring_of(args.fd(0))?;
    let Submitted { count: submitted, available } = ring.submit(args.uint(1));
    ring.flush_backlog();
    if flags & c::IORING_ENTER_GETEVENTS == 0 {
        return Ok(i64::from(submitted));
    }
    let waited = wait(&ring, args.uint(2), available, args);
    match waited {
        // The number of submitted entries must be returned. The program sees by itself that nothing
        // has completed.
        Err(_) if submitted > 0 => Ok(i64::from(submitted)),
        Err(error) => Err(error),
        Ok(()) => Ok(i64::from(submitted)),
    }
}

/// Waits until `wanted` completions are available; `seen` were available before.
fn wait(ring: &IoRing, wanted: u32, seen: u32, args: &Args) -> Result<()> {
    let flags = args.uint(3);
    let (mask, size, deadline) = if flags & c::IORING_ENTER_EXT_ARG == 0 {
        (args[4], args.size(5), None)
    } else if args.size(5) != size_of::<WaitArgument>() {
        return Err(Errno::EINVAL);
    } else {
        let argument = UserPtr::<WaitArgument>::new(args[4]).read()?;
        let time = UserPtr::<TimeSpec>::new(argument.time).read_optional()?;
        let time = time.map(TimeSpec::nanoseconds).transpose()?;
        (argument.mask, argument.mask_size as usize, time.map(|time| time::now().saturating_add(time)))
    };
    let wanted = wanted.min(ring.rings.completions());
    let mask = task::mask_at(mask, size)?;
    if seen >= wanted || ring.available() >= wanted {
        return Ok(());
    }
    let arrived = task::current().with_signals_blocked(mask, || {
        let enough = || (ring.available() >= wanted).then_some(());
        ring.arrived.wait_until_deadline(deadline, enough).map_err(|error| match error {
            Errno::ERESTARTSYS => Errno::EINTR,
            error => error,
        })
    })?;
    arrived.ok_or(Errno::ETIME)
}

/// The entries that io_uring_enter started.
struct Submitted {
    /// Number of entries started.
    count: u32,
    /// Number of completions in the ring after the last one was posted.
    available: u32,
}

impl IoRing {
    /// Starts up to `count` entries.
    ///
    /// Completions of entries that end at once are posted together: before the start of an entry
    /// that depends on completions, and at the end.
    fn submit(self: &Receiver<Self>, count: u32) -> Submitted {
        let mut head = self.submit.lock();
        let count = count.min(self.rings.submissions());
        let mut ended = ArrayVec::<Completion, AHEAD>::new();
        let mut copied = ArrayVec::new();
        let mut begun = 0;
        'all: while begun < count {
            copied.clear();
            self.rings.copy_submissions(*head, count - begun, &mut copied);
            if copied.is_empty() {
                break;
            }
            for entry in &copied {
                // For a task that is being killed, the remaining entries are not started.
                if sched::checkpoint().is_err() {
                    break 'all;
                }
                begun += 1;
                *head = head.wrapping_add(1);
                match entry {
                    None => self.rings.count_dropped(),
                    Some(entry) => self.begin(entry, &mut ended),
                }
            }
        }
        let available = self.post_all(&ended);
        if begun > 0 {
            self.rings.set_submission_head(*head);
        }
        Submitted { count: begun, available }
    }

    /// Starts an entry. If it ends at once, its completion is added to `ended`.
    fn begin(self: &Receiver<Self>, entry: &Submission, ended: &mut ArrayVec<Completion, AHEAD>) {
        if ended.is_full() || request::looks_at_completions(entry) {
            self.post_all(ended);
            ended.clear();
        }
        let started = with_memory_found(|| request::start(self, entry)).and_then(|start| match start {
            Start::Done(result) => Ok(Some(result)),
            Start::Pending(pending) => {
                self.post_all(ended);
                ended.clear();
                self.wait_for(entry.user_data, pending).map(|()| None)
            }
        });
        if let Some(result) = started.transpose() {
            ended.push(Completion {
                user_data: entry.user_data,
                result: work::result_word(result),
                flags: 0,
            });
        }
    }

    /// Pins a program's buffers for as long as they are registered.
    fn register_buffers(&self, vectors: u64, count: usize) -> Result<()> {
        let process = task::current().process().clone();
        let mut buffers = self.buffers.lock();
        if !buffers.is_empty() {
            return Err(Errno::EBUSY);
        }
        if count == 0 || count > MAX_BUFFERS {
            return Err(Errno::EINVAL);
        }
        let space = process.space();
        let owner = (process.credentials().uid, process.memory_limits().memlock);
        let mut pinned = Vec::try_with_capacity(count)?;
        for [address, length] in UserPtr::<[u64; 2]>::new(vectors).read_many(count)? {
            if length == 0 || length > MAX_BUFFER {
                return Err(Errno::EFAULT);
            }
            pinned.push_reserved(reserve::arc(PinnedRun::register(&space, owner, address, length as usize)?));
        }
        *buffers = pinned;
        Ok(())
    }
}

/// io_uring_register(fd, operation, argument, count)
///
/// # Errors
/// As in the manual; unsupported operations are `EINVAL`.
pub fn sys_io_uring_register(args: &Args) -> Result<i64> {
    let (_open, ring) = ring_of(args.fd(0))?;
    let count = args.uint(3) as usize;
    match args.uint(1) {
        register::BUFFERS => ring.register_buffers(args[2], count)?,
        register::UNREGISTER_BUFFERS => {
            let buffers = core::mem::take(&mut *ring.buffers.lock());
            if buffers.is_empty() {
                return Err(Errno::ENXIO);
            }
        }
        register::PROBE => probe(args[2], count)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// Operations of io_uring_register.
mod register {
    pub const BUFFERS: u32 = 0;
    pub const UNREGISTER_BUFFERS: u32 = 1;
    pub const PROBE: u32 = 8;
}

/// Reports the supported operations: `struct io_uring_probe`, 16 bytes, and 8 for each operation.
fn probe(to: u64, count: usize) -> Result<()> {
    const SUPPORTED: u16 = 1;
    if count > 256 || UserPtr::<[u64; 2]>::new(to).read()? != [0; 2] {
        return Err(Errno::EINVAL);
    }
    let last = operation::ALL[operation::ALL.len() - 1];
    let count = count.min(usize::from(last) + 1);
    UserPtr::<[u8; 2]>::new(to).write(&[last, count as u8])?;
    for number in 0..count {
        let flags = if operation::ALL.contains(&(number as u8)) { SUPPORTED } else { 0 };
        let entry = u64::from(number as u8) | u64::from(flags) << 16;
        UserPtr::<u64>::new(to + 16).add(number).write(&entry)?;
    }
    Ok(())
}
