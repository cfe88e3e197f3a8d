//! The system calls on inotify instances.

use super::{Events, InotifyFile};
use crate::fs::caller::Access;
use crate::fs::calls::{AT_FDCWD, place_at};
use crate::fs::walk::Final;
use crate::fs::{NodeKind, OpenFlags};
use crate::syscall::Args;
use crate::task;
use crate::{Errno, Result};

fn init(flags: OpenFlags) -> Result<i64> {
    if !(OpenFlags::CLOEXEC | OpenFlags::NONBLOCK).contains(flags) {
        return Err(Errno::EINVAL);
    }
    let user = task::current().process().credentials().euid;
    task::install(InotifyFile::open(user)?, flags).map(i64::from)
}

/// inotify_init()
///
/// # Errors
/// As in the manual.
pub fn sys_inotify_init(_args: &Args) -> Result<i64> {
    init(OpenFlags::empty())
}

/// inotify_init1(flags)
///
/// # Errors
/// As in the manual.
pub fn sys_inotify_init1(args: &Args) -> Result<i64> {
    init(OpenFlags::from_bits_retain(args.uint(0)))
}

/// inotify_add_watch(fd, path, mask)
///
/// # Errors
/// As in the manual.
pub fn sys_inotify_add_watch(args: &Args) -> Result<i64> {
    let is_valid =
        |mask: &Events| !mask.is_empty() && !mask.intersects(Events::RENAMED_WITHIN | Events::OPENED_TO_RUN);
    let mask = Events::from_bits(args.uint(2)).filter(is_valid).ok_or(Errno::EINVAL)?;
    let process = task::current().process().clone();
    let file = process.file(args.fd(0))?;
    file.check_not_path()?;
    if mask.contains(Events::MASK_ADD | Events::MASK_CREATE) {
        return Err(Errno::EINVAL);
    }
    let instance = file.file().downcast::<InotifyFile>().ok_or(Errno::EINVAL)?;
    let last = if mask.contains(Events::DONT_FOLLOW) { Final::Stop } else { Final::Follow };
    let place = place_at(AT_FDCWD, args[1], 0, last)?;
    if mask.contains(Events::ONLYDIR) && place.node.kind() != NodeKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    process.credentials().caller().may_use(&*place.node, Access::READ)?;
    instance.add(&place.node, mask).map(i64::from)
}

/// inotify_rm_watch(fd, number)
///
/// # Errors
/// As in the manual.
pub fn sys_inotify_rm_watch(args: &Args) -> Result<i64> {
    let file = task::with_current(|task| task.process().file(args.fd(0)))?;
    file.check_not_path()?;
    let instance = file.file().downcast::<InotifyFile>().ok_or(Errno::EINVAL)?;
    instance.remove(args.int(1)).map(|()| 0)
}
