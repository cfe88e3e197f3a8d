//! The system calls on epoll instances.

use freehold_collections::{
    Arc, Short,
    reserve::{self, ArcMethods},
};
use linux_raw_sys::general as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{EPOLLEXCLUSIVE, Epoll, EpollFile, Event, Interest};
use crate::fs::{NodeKind, OpenFile, OpenFlags};
use crate::syscall::Args;
use crate::task::{self, SigSet};
use crate::time::{self, TimeSpec};
use crate::user::UserPtr;
use crate::{Errno, Result};

/// `struct epoll_event`, packed on x86-64: 12 bytes.
#[repr(C, packed)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct EpollEvent {
    events: u32,
    data: u64,
}

/// Largest number of events that a call may request (Linux' EP_MAX_EVENTS).
const MOST_EVENTS: i32 = i32::MAX / size_of::<EpollEvent>() as i32;
/// Largest number of events that a call returns.
const BATCH: usize = 4096;
/// Up to this many events are fetched without a list on the heap.
const FEW: usize = 16;

/// epoll_create1(flags)
///
/// # Errors
/// As in the manual.
pub fn sys_epoll_create1(args: &Args) -> Result<i64> {
    let flags = OpenFlags::from_bits_retain(args.uint(0));
    if !OpenFlags::CLOEXEC.contains(flags) {
        return Err(Errno::EINVAL);
    }
    create(flags)
}

/// epoll_create(size)
///
/// # Errors
/// As in the manual.
pub fn sys_epoll_create(args: &Args) -> Result<i64> {
    if args.int(0) <= 0 { Err(Errno::EINVAL) } else { create(OpenFlags::empty()) }
}

fn create(flags: OpenFlags) -> Result<i64> {
    let epoll = Epoll::new(task::current().process().uid())?;
    task::install(reserve::arc(EpollFile(epoll)), flags | OpenFlags::RDWR).map(i64::from)
}

fn epoll_of(file: &OpenFile) -> Result<&Arc<Epoll>> {
    Epoll::of(file).ok_or_else(|| file.check_not_path().err().unwrap_or(Errno::EINVAL))
}

/// Checks that a file can be watched. Most regular files, all directories and some devices are
/// always ready: there is nothing to watch.
///
/// # Errors
/// `EPERM` for such files, `EBADF` for an O_PATH descriptor.
#[inline(never)]
fn check_watchable(file: &OpenFile) -> Result<()> {
    let always_ready = match file.node().kind() {
        NodeKind::Regular | NodeKind::Directory => {
            Epoll::of(file).is_none() && !file.file().changes_readiness()
        }
        _ => file.file().is_always_ready(),
    };
    if !always_ready {
        return Ok(());
    }
    file.check_not_path()?;
    Err(Errno::EPERM)
}

/// Checks EPOLLEXCLUSIVE. It is allowed only when a file is added that is no epoll instance, and
/// only with plain events.
///
/// # Errors
/// `EINVAL` otherwise.
#[cold]
fn check_exclusive(operation: u32, events: u32, file: &OpenFile) -> Result<()> {
    const GO_WITH: u32 =
        EPOLLEXCLUSIVE | c::EPOLLIN | c::EPOLLOUT | c::EPOLLERR | c::EPOLLHUP | c::EPOLLWAKEUP | c::EPOLLET;
    let is_fit = operation == c::EPOLL_CTL_ADD && events & !GO_WITH == 0 && Epoll::of(file).is_none();
    if is_fit { Ok(()) } else { Err(Errno::EINVAL) }
}

/// epoll_ctl(epfd, operation, fd, event)
///
/// # Errors
/// As in the manual.
pub fn sys_epoll_ctl(args: &Args) -> Result<i64> {
    let (operation, fd) = (args.uint(1), args.fd(2));
    let interest = if operation == c::EPOLL_CTL_DEL {
        Interest { events: 0, data: 0 }
    } else {
        let event: EpollEvent = UserPtr::new(args[3]).read()?;
        Interest { events: event.events, data: event.data }
    };
    let files = task::current().process().files();
    let (instance, file) = {
        let table = files.look();
        (table.get(args.fd(0))?.clone(), table.get(fd)?.clone())
    };
    if file.path().is_some() {
        check_watchable(&file)?;
    }
    let epoll = epoll_of(&instance)?;
    if instance.is_same(&file) {
        return Err(Errno::EINVAL);
    }
    if interest.events & EPOLLEXCLUSIVE != 0 {
        check_exclusive(operation, interest.events, &file)?;
    }
    match operation {
        c::EPOLL_CTL_ADD => epoll.add(fd, &file, interest),
        c::EPOLL_CTL_MOD => epoll.modify(fd, &file, interest),
        c::EPOLL_CTL_DEL => epoll.remove(fd, &file),
        _ => Err(Errno::EINVAL),
    }
    .map(|()| 0)
}

fn wait(args: &Args, deadline: Option<u64>) -> Result<i64> {
    let most = args.int(2);
    if most <= 0 || most > MOST_EVENTS {
        return Err(Errno::EINVAL);
    }
    let file = task::current().process().files().get(args.fd(0))?;
    let epoll = epoll_of(&file)?;
    let target = UserPtr::<EpollEvent>::new(args[1]);
    let most = BATCH.min(most as usize);
    loop {
        // A list on the heap is as long as needed: files that become ready later are left for the
        // next call.
        let most = if most > FEW { most.min(epoll.shared.ready.lock().len()) } else { most };
        let mut batch = Short::<EpollEvent, FEW>::try_with_capacity(most)?;
        let count =
            epoll.harvest(most, |Event { events, data }| batch.push_reserved(EpollEvent { events, data }));
        if count > 0 {
            target.write_slice(&batch)?;
            return Ok(count as i64);
        }
        if deadline.is_some_and(|deadline| deadline <= time::now()) {
            return Ok(0);
        }
        let woken =
            epoll.shared.waiters.wait_until_deadline(deadline, || epoll.may_have_ready().then_some(()));
        match woken {
            Ok(_) => {}
            // A signal handler ends the wait even with SA_RESTART.
            Err(_) => return Err(Errno::EINTR),
        }
    }
}

fn wait_masked(args: &Args, deadline: Option<u64>, mask: Option<SigSet>) -> Result<i64> {
    task::current().with_signals_blocked(mask, || wait(args, deadline))
}

fn milliseconds(timeout: i32) -> Option<u64> {
    u64::try_from(timeout).ok().map(|ms| time::now().saturating_add(ms * 1_000_000))
}

/// epoll_wait(epfd, events, most, milliseconds)
///
/// # Errors
/// As in the manual.
pub fn sys_epoll_wait(args: &Args) -> Result<i64> {
    wait(args, milliseconds(args.int(3)))
}

/// epoll_pwait(epfd, events, most, milliseconds, mask, size)
///
/// # Errors
/// As in the manual.
pub fn sys_epoll_pwait(args: &Args) -> Result<i64> {
    wait_masked(args, milliseconds(args.int(3)), task::mask_at(args[4], args.size(5))?)
}

/// epoll_pwait2(epfd, events, most, timeout, mask, size)
///
/// # Errors
/// As in the manual.
pub fn sys_epoll_pwait2(args: &Args) -> Result<i64> {
    let timeout =
        UserPtr::<TimeSpec>::new(args[3]).read_optional()?.map(TimeSpec::nanoseconds).transpose()?;
    let deadline = timeout.map(|timeout| time::now().saturating_add(timeout));
    wait_masked(args, deadline, task::mask_at(args[4], args.size(5))?)
}
