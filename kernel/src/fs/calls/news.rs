//! fcntl and ioctl for signal-driven I/O: the signal and the owner that a file's events are sent
//! to.

use crate::fs::leases::{self, LeaseKind};
use crate::fs::node::NodeKind;
use crate::fs::notify::dnotify;
use crate::fs::{FileTable, OpenFile, OpenFlags, Signalling};
use crate::task::registry::{self, IdHandle, IdRole};
use crate::task::signal::file_news::{FileOwner, FileSignals};
use crate::task::{Capability, Signal, may, shown_ids, with_current};
use crate::user::UserPtr;
use crate::{Errno, Result};
use freehold_collections::Arc;

pub(super) const F_SETOWN: u32 = 8;
const F_GETOWN: u32 = 9;
const F_SETSIG: u32 = 10;
pub(super) const F_GETSIG: u32 = 11;
pub(super) const F_SETOWN_EX: u32 = 15;
pub(super) const F_GETOWN_EX: u32 = 16;
pub(super) const F_GETOWNER_UIDS: u32 = 17;

pub(super) const FIOSETOWN: u32 = 0x8901;
pub(super) const SIOCSPGRP: u32 = 0x8902;
pub(super) const FIOGETOWN: u32 = 0x8903;
pub(super) const SIOCGPGRP: u32 = 0x8904;

/// Turns O_ASYNC on or off, if it differs.
///
/// # Errors
/// As [`FileSignals::set`].
pub(super) fn set(file: &OpenFile, fd: i32, signalling: Signalling) -> Result<()> {
    let is_on = file.flags().contains(OpenFlags::ASYNC);
    if is_on == (signalling == Signalling::On) { Ok(()) } else { FileSignals::set(file, fd, signalling) }
}

/// F_SETFL.
///
/// # Errors
/// `EPERM` for O_NOATIME on a file of another user; `ENOMEM`.
pub(super) fn set_status(file: &OpenFile, fd: i32, flags: OpenFlags) -> Result<i64> {
    let newly = flags & !file.flags();
    if newly.contains(OpenFlags::NOATIME)
        && !super::as_caller(|walk| Ok(walk.caller.owns(&file.node().metadata())))?
    {
        return Err(Errno::EPERM);
    }
    let signalling = if flags.contains(OpenFlags::ASYNC) { Signalling::On } else { Signalling::Off };
    match set(file, fd, signalling) {
        // A file without signal-driven I/O does not keep the flag, without an error, as on Linux.
        Ok(()) | Err(Errno::ENOTTY) => {}
        Err(error) => return Err(error),
    }
    file.set_status(flags);
    Ok(0)
}

/// Makes the thread, process or group with this number in the caller's namespace the owner; 0 means
/// no owner.
///
/// # Errors
/// `ESRCH` for an unused number.
fn set_owner(file: &OpenFile, number: u32, role: IdRole) -> Result<()> {
    let handle = match number {
        0 => None,
        number => Some(IdHandle::by_number(number).ok_or(Errno::ESRCH)?),
    };
    FileSignals::made_for(file).set_owner(handle.map(|handle| FileOwner { handle, role }), role);
    Ok(())
}

/// F_SETOWN: a process, or a group if the number is negative.
fn set_owner_by_sign(file: &OpenFile, owner: i32) -> Result<()> {
    if owner == i32::MIN {
        return Err(Errno::EINVAL);
    }
    set_owner(file, owner.unsigned_abs(), if owner < 0 { IdRole::Group } else { IdRole::Process })
}

/// Returns the number of the owner in the caller's namespace, 0 for none, and the role in which it
/// was chosen.
fn owner(file: &OpenFile) -> (i32, IdRole) {
    let (owner, role) = FileSignals::of(file).map_or((None, IdRole::Thread), |state| state.owner());
    (owner.map_or(0, |owner| registry::shown(owner.handle.id()) as i32), role)
}

/// F_GETOWN: the number is negative for a group.
fn owner_by_sign(file: &OpenFile) -> i32 {
    match owner(file) {
        (number, IdRole::Group) => -number,
        (number, _) => number,
    }
}

const F_RDLCK: i32 = 0;
const F_WRLCK: i32 = 1;
const F_UNLCK: i32 = 2;

/// F_GETLEASE.
pub(super) fn lease(file: &OpenFile) -> i32 {
    match leases::get(file) {
        Some(LeaseKind::Read) => F_RDLCK,
        Some(LeaseKind::Write) => F_WRLCK,
        None => F_UNLCK,
    }
}

/// F_SETLEASE.
///
/// # Errors
/// `EACCES` for another user's file without CAP_LEASE; `EINVAL`, `EAGAIN`, `ENOMEM`.
pub(super) fn set_lease(file: &OpenFile, fd: i32, kind: i32) -> Result<i64> {
    let kind = match kind {
        F_UNLCK => None,
        F_RDLCK => Some(LeaseKind::Read),
        F_WRLCK => Some(LeaseKind::Write),
        _ => return Err(Errno::EINVAL),
    };
    let metadata = file.node().metadata();
    let is_own = with_current(|task| task.with_credentials(|own| own.fsuid == metadata.uid));
    if !is_own && !may(Capability::Lease) {
        return Err(Errno::EACCES);
    }
    if metadata.kind != NodeKind::Regular {
        return Err(Errno::EINVAL);
    }
    match kind {
        Some(kind) => FileSignals::set_lease(file, fd, kind)?,
        None => FileSignals::end_lease(file)?,
    }
    Ok(0)
}

/// F_NOTIFY, through the descriptor `fd` of `files`.
///
/// # Errors
/// `ENOTDIR` for a file that is no directory; `EBADF` if the descriptor was closed meanwhile;
/// `ENOMEM`.
pub(super) fn set_notify(files: &FileTable, file: &Arc<OpenFile>, fd: i32, requested: u32) -> Result<i64> {
    let Some(mask) = dnotify::mask(requested) else {
        dnotify::end(file, files.owner());
        return Ok(0);
    };
    if file.node().kind() != NodeKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    FileSignals::watch_directory(file, fd, files.owner(), mask)?;
    files.check_still_open(fd, file)
}

/// The owner ioctls of sockets.
///
/// # Errors
/// `EFAULT`, and those of F_SETOWN.
pub(super) fn socket_owner(file: &OpenFile, request: u32, argument: u64) -> Result<i64> {
    let at = UserPtr::<i32>::new(argument);
    match request {
        FIOSETOWN | SIOCSPGRP => set_owner_by_sign(file, at.read()?)?,
        _ => at.write(&owner_by_sign(file))?,
    }
    Ok(0)
}

/// fcntl's commands.
///
/// # Errors
/// As in the manual.
pub(super) fn control(file: &OpenFile, command: u32, argument: u64) -> Result<i64> {
    match command {
        F_SETOWN => set_owner_by_sign(file, argument as i32)?,
        F_GETOWN => return Ok(i64::from(owner_by_sign(file))),
        F_SETOWN_EX => {
            let [kind, number] = UserPtr::<[i32; 2]>::new(argument).read()?;
            let role = match kind {
                0 => IdRole::Thread,
                1 => IdRole::Process,
                2 => IdRole::Group,
                _ => return Err(Errno::EINVAL),
            };
            set_owner(file, u32::try_from(number).map_err(|_| Errno::ESRCH)?, role)?;
        }
        F_GETOWN_EX => {
            let (number, role) = owner(file);
            UserPtr::new(argument).write(&[role as i32, number])?;
        }
        F_SETSIG => {
            let signal = match argument {
                0 => None,
                number => {
                    let number = i64::try_from(number).map_err(|_| Errno::EINVAL)?;
                    Some(Signal::new(number).ok_or(Errno::EINVAL)?)
                }
            };
            FileSignals::made_for(file).set_signal(signal);
        }
        F_GETSIG => {
            let signal = FileSignals::of(file).and_then(|state| state.signal());
            return Ok(signal.map_or(0, |signal| i64::from(signal.number())));
        }
        F_GETOWNER_UIDS => {
            let (uid, euid) = FileSignals::of(file).map_or((0, 0), |state| state.choosers());
            let (uid, euid) = (shown_ids(uid, 0).0, shown_ids(euid, 0).0);
            UserPtr::new(argument).write(&[uid, euid])?;
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
