//! flock and the locks of fcntl.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::file;
use crate::fs::file::Blocking;
use crate::fs::locks::{self, Lock, LockSharing, LockSpace, Owner};
use crate::fs::open_file::OpenFile;
use crate::syscall::Args;
use crate::task::registry;
use crate::user::UserPtr;
use crate::{Errno, Result};

/// `struct flock` of x86-64.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    padding: u32,
    start: i64,
    len: i64,
    pid: i32,
    padding_behind: u32,
}

const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

/// Returns the byte range of a `struct flock`. A negative length counts backwards, 0 means to the
/// end.
fn range(file: &OpenFile, flock: &Flock) -> Result<(u64, u64)> {
    let base = match flock.whence {
        0 => 0,
        1 => file.position()?,
        2 => file.file().end()?,
        _ => return Err(Errno::EINVAL),
    };
    let start = i64::try_from(base).ok().and_then(|b| b.checked_add(flock.start)).ok_or(Errno::EOVERFLOW)?;
    let (start, last) = match flock.len {
        0 => (start, i64::MAX),
        length @ 1.. => (start, start.checked_add(length - 1).ok_or(Errno::EOVERFLOW)?),
        length => (start.checked_add(length).ok_or(Errno::EINVAL)?, start.wrapping_sub(1)),
    };
    let start = u64::try_from(start).map_err(|_| Errno::EINVAL)?;
    // A lock up to the last byte that a file can have has no end.
    Ok((start, if last == i64::MAX { u64::MAX } else { last as u64 + 1 }))
}

fn sharing(kind: i16) -> Result<LockSharing> {
    match kind {
        F_RDLCK => Ok(LockSharing::Shared),
        F_WRLCK => Ok(LockSharing::Exclusive),
        _ => Err(Errno::EINVAL),
    }
}

/// Reads the `struct flock` of a lock for `owner`.
///
/// # Errors
/// `EFAULT`; `EINVAL` if it names a process although the lock belongs to a description.
fn read(pointer: UserPtr<Flock>, owner: Owner) -> Result<Flock> {
    let flock = pointer.read()?;
    if flock.pid != 0 && matches!(owner, Owner::Description(_)) { Err(Errno::EINVAL) } else { Ok(flock) }
}

/// F_GETLK: stores the lock that conflicts with the lock at `address`, or F_UNLCK if there is none.
pub(super) fn get_lock(file: &OpenFile, owner: Owner, address: u64) -> Result<i64> {
    let pointer = UserPtr::<Flock>::new(address);
    let mut flock = read(pointer, owner)?;
    let (start, end) = range(file, &flock)?;
    let wanted = Lock { space: LockSpace::Record, start, end, sharing: sharing(flock.kind)?, owner, pid: 0 };
    match locks::conflict(file.node().identity(), &wanted)? {
        None => flock.kind = F_UNLCK,
        Some(held) => {
            flock.kind = if held.sharing == LockSharing::Shared { F_RDLCK } else { F_WRLCK };
            flock.whence = 0;
            flock.start = held.start as i64;
            flock.len = if held.end == u64::MAX { 0 } else { (held.end - held.start) as i64 };
            flock.pid =
                if let Owner::Process(_) = held.owner { registry::shown(held.pid) as i32 } else { -1 };
        }
    }
    pointer.write(&flock).map(|()| 0)
}

/// Change that a call made to record locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LockChange {
    /// A lock was set.
    Set,
    /// A range was unlocked.
    Unset,
}

/// F_SETLK and F_SETLKW.
pub(super) fn set_lock(
    file: &OpenFile,
    owner: Owner,
    pid: u32,
    address: u64,
    blocking: Blocking,
) -> Result<LockChange> {
    let flock = read(UserPtr::new(address), owner)?;
    let (start, end) = range(file, &flock)?;
    let identity = file.node().identity();
    if flock.kind == F_UNLCK {
        return locks::unset(identity, LockSpace::Record, owner, start, end).map(|()| LockChange::Unset);
    }
    let sharing = sharing(flock.kind)?;
    match sharing {
        LockSharing::Shared => file.check_readable()?,
        LockSharing::Exclusive => file.check_writable()?,
    }
    let wanted = Lock { space: LockSpace::Record, start, end, sharing, owner, pid };
    match blocking {
        Blocking::Wait => locks::set(identity, &wanted),
        Blocking::Never => locks::try_set(identity, &wanted),
    }
    .map(|()| LockChange::Set)
}

const LOCK_SH: u32 = 1;
const LOCK_EX: u32 = 2;
const LOCK_NB: u32 = 4;
const LOCK_UN: u32 = 8;

/// flock(fd, operation)
pub fn sys_flock(args: &Args) -> Result<i64> {
    let file = file(args.fd(0))?;
    file.check_not_path()?;
    let identity = file.node().identity();
    let owner = file.lock_owner();
    let sharing = match args.uint(1) & !LOCK_NB {
        LOCK_SH => LockSharing::Shared,
        LOCK_EX => LockSharing::Exclusive,
        LOCK_UN => {
            return locks::unset(identity, LockSpace::Flock, owner, 0, u64::MAX).map(|()| 0);
        }
        _ => return Err(Errno::EINVAL),
    };
    let wanted = Lock { space: LockSpace::Flock, start: 0, end: u64::MAX, sharing, owner, pid: 0 };
    if args.uint(1) & LOCK_NB != 0 {
        return locks::try_set(identity, &wanted).map(|()| 0);
    }
    // A change from shared to exclusive releases the lock first. Otherwise two tasks that change at
    // once would wait for each other forever.
    if locks::try_set(identity, &wanted) == Err(Errno::EAGAIN) {
        locks::unset(identity, LockSpace::Flock, owner, 0, u64::MAX)?;
        locks::set(identity, &wanted)?;
    }
    Ok(0)
}
