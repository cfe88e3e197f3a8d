//! dup, fcntl, ioctl.

use super::locking::LockChange;
use super::news::{self, F_GETOWN_EX, F_GETOWNER_UIDS, F_GETSIG, F_SETOWN, F_SETOWN_EX};
use super::news::{FIOGETOWN, FIOSETOWN, SIOCGPGRP, SIOCSPGRP};
use super::{file, only, process, with_files};
use crate::fs::Signalling;
use crate::fs::file::Blocking;
use crate::fs::flags::OpenFlags;
use crate::fs::node::NodeKind;
use crate::fs::pipe::PipeEnd;
use crate::fs::table::OnExec;
use crate::syscall::Args;
use crate::user::UserPtr;
use crate::{Errno, Result};

/// dup(fd)
pub fn sys_dup(args: &Args) -> Result<i64> {
    let process = process();
    let file = process.file(args.fd(0))?;
    process.files().insert(file, OnExec::Keep, process.descriptor_limit()).map(i64::from)
}

fn duplicate_to(old: i32, new: i32, on_exec: OnExec) -> Result<i64> {
    let process = process();
    let files = process.files();
    let file = files.get(old)?;
    let replaced = files.replace(new, file, on_exec, process.descriptor_limit())?;
    if let Some(replaced) = replaced {
        files.closed(&replaced);
    }
    Ok(i64::from(new))
}

/// dup2(old, new)
pub fn sys_dup2(args: &Args) -> Result<i64> {
    let (old, new) = (args.fd(0), args.fd(1));
    if old == new {
        return file(old).map(|_| i64::from(new));
    }
    duplicate_to(old, new, OnExec::Keep)
}

/// dup3(old, new, flags)
pub fn sys_dup3(args: &Args) -> Result<i64> {
    only(args.uint(2), OpenFlags::CLOEXEC.bits())?;
    if args.fd(0) == args.fd(1) {
        return Err(Errno::EINVAL);
    }
    duplicate_to(args.fd(0), args.fd(1), OnExec::asked_by(OpenFlags::from_bits_retain(args.uint(2))))
}

const FD_CLOEXEC: u64 = 1;

const F_DUPFD: u32 = 0;
const F_GETFD: u32 = 1;
const F_SETFD: u32 = 2;
const F_GETFL: u32 = 3;
const F_SETFL: u32 = 4;
const F_GETLK: u32 = 5;
const F_SETLK: u32 = 6;
const F_SETLKW: u32 = 7;
const F_OFD_GETLK: u32 = 36;
const F_OFD_SETLK: u32 = 37;
const F_OFD_SETLKW: u32 = 38;
const F_SETLEASE: u32 = 1024;
const F_GETLEASE: u32 = 1025;
const F_NOTIFY: u32 = 1026;
const F_DUPFD_CLOEXEC: u32 = 1030;
const F_SETPIPE_SZ: u32 = 1031;
const F_GETPIPE_SZ: u32 = 1032;
const F_ADD_SEALS: u32 = 1033;
const F_GET_SEALS: u32 = 1034;

/// fcntl(fd, command, argument)
pub fn sys_fcntl(args: &Args) -> Result<i64> {
    let (fd, command, argument) = (args.fd(0), args.uint(1), args[2]);
    let process = process();
    let files = process.files();
    let file = files.get(fd)?;
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => {
            let limit = process.descriptor_limit();
            let least = usize::try_from(argument as i32).map_err(|_| Errno::EINVAL)?;
            if least >= limit {
                return Err(Errno::EINVAL);
            }
            let on_exec = if command == F_DUPFD { OnExec::Keep } else { OnExec::Close };
            return files.insert_from(least, file, on_exec, limit).map(i64::from);
        }
        F_GETFD => return files.on_exec(fd).map(|on_exec| i64::from(on_exec == OnExec::Close)),
        F_SETFD => {
            let on_exec = if argument & FD_CLOEXEC != 0 { OnExec::Close } else { OnExec::Keep };
            return files.set_on_exec(fd, on_exec).map(|()| 0);
        }
        F_GETFL => return Ok(i64::from(file.flags().bits())),
        _ => file.check_not_path()?,
    }
    match command {
        F_SETFL => news::set_status(&file, fd, OpenFlags::from_bits_retain(argument as u32)),
        F_GETLK => super::locking::get_lock(&file, files.lock_owner(), argument),
        F_SETLK | F_SETLKW => {
            let wait = if command == F_SETLKW { Blocking::Wait } else { Blocking::Never };
            let owner = files.lock_owner();
            match super::locking::set_lock(&file, owner, process.pid, argument, wait)? {
                LockChange::Set => files.check_still_open(fd, &file),
                LockChange::Unset => Ok(0),
            }
        }
        F_OFD_GETLK => super::locking::get_lock(&file, file.lock_owner(), argument),
        F_OFD_SETLK | F_OFD_SETLKW => {
            let wait = if command == F_OFD_SETLKW { Blocking::Wait } else { Blocking::Never };
            super::locking::set_lock(&file, file.lock_owner(), 0, argument, wait).map(|_| 0)
        }
        F_SETOWN..=F_GETSIG | F_SETOWN_EX | F_GETOWN_EX | F_GETOWNER_UIDS => {
            news::control(&file, command, argument)
        }
        F_SETLEASE => news::set_lease(&file, fd, argument as i32),
        F_NOTIFY => news::set_notify(&files, &file, fd, argument as u32),
        F_GETLEASE => Ok(i64::from(news::lease(&file))),
        F_SETPIPE_SZ => {
            PipeEnd::pipe_of(&file).ok_or(Errno::EBADF)?.set_capacity(argument as usize).map(|n| n as i64)
        }
        F_GETPIPE_SZ => Ok(PipeEnd::pipe_of(&file).ok_or(Errno::EBADF)?.capacity() as i64),
        F_ADD_SEALS => {
            let seals = u32::try_from(argument).map_err(|_| Errno::EINVAL)?;
            if !file.flags().writes() {
                return Err(Errno::EPERM);
            }
            file.file().add_seals(seals).map(|()| 0)
        }
        F_GET_SEALS => file.file().seals().map(i64::from).ok_or(Errno::EINVAL),
        _ => Err(Errno::EINVAL),
    }
}

const FIONREAD: u32 = 0x541b;
const FIONBIO: u32 = 0x5421;
const FIONCLEX: u32 = 0x5450;
const FIOCLEX: u32 = 0x5451;
const FIOASYNC: u32 = 0x5452;
const FIGETBSZ: u32 = 2;

/// ioctl(fd, request, argument): handles the requests that every file supports, and passes others
/// to the file.
pub fn sys_ioctl(args: &Args) -> Result<i64> {
    let (fd, request, argument) = (args.fd(0), args.uint(1), args[2]);
    let file = file(fd)?;
    file.check_not_path()?;
    match request {
        FIOCLEX => with_files(|files| files.set_on_exec(fd, OnExec::Close)).map(|()| 0),
        FIONCLEX => with_files(|files| files.set_on_exec(fd, OnExec::Keep)).map(|()| 0),
        FIONBIO => {
            let on = UserPtr::<i32>::new(argument).read()? != 0;
            file.set_blocking(if on { Blocking::Never } else { Blocking::Wait });
            Ok(0)
        }
        FIOASYNC => {
            let on = UserPtr::<i32>::new(argument).read()? != 0;
            news::set(&file, fd, if on { Signalling::On } else { Signalling::Off }).map(|()| 0)
        }
        FIOSETOWN | SIOCSPGRP | FIOGETOWN | SIOCGPGRP if file.node().kind() == NodeKind::Socket => {
            news::socket_owner(&file, request, argument)
        }
        FIONREAD if file.path().is_some() && file.node().kind() == NodeKind::Regular => {
            let left = file.node().metadata().size.saturating_sub(file.position()?);
            UserPtr::new(argument).write(&(left.min(i32::MAX as u64) as i32)).map(|()| 0)
        }
        FIGETBSZ if file.node().kind() == NodeKind::Regular => {
            UserPtr::new(argument).write(&(file.node().metadata().block_size as i32)).map(|()| 0)
        }
        _ => file.file().ioctl(request, argument),
    }
}
