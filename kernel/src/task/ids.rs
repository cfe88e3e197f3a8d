//! System calls about identities: processes, groups, sessions, users.

use super::capabilities::{Capabilities, Capability};
use super::credentials::Groups;
use super::userns::IdKind;
use super::{Credentials, Pid, Process, Session, current, registry, with_current};
use crate::syscall::Args;
use crate::user::UserPtr;
use crate::{Errno, Result};
use freehold_collections::{
    Arc, Vec,
    reserve::{self, ArcMethods},
};

/// getpid()
pub fn sys_getpid(_args: &Args) -> Result<i64> {
    Ok(with_current(|task| i64::from(task.process().number())))
}

/// gettid()
pub fn sys_gettid(_args: &Args) -> Result<i64> {
    Ok(with_current(|task| i64::from(task.number())))
}

/// getppid()
pub fn sys_getppid(_args: &Args) -> Result<i64> {
    Ok(with_current(|task| i64::from(task.process().parent_number())))
}

/// Returns the process that `pid` names; 0 names the caller's.
pub(super) fn named(pid: i32) -> Result<Arc<Process>> {
    match pid {
        0 => Ok(current().process().clone()),
        pid if pid < 0 => Err(Errno::ESRCH),
        pid => registry::find_by_number(pid.unsigned_abs()).ok_or(Errno::ESRCH),
    }
}

/// getpgrp()
pub fn sys_getpgrp(_args: &Args) -> Result<i64> {
    Ok(i64::from(registry::shown(current().process().group())))
}

/// getpgid(pid)
pub fn sys_getpgid(args: &Args) -> Result<i64> {
    Ok(i64::from(registry::shown(named(args.int(0))?.group())))
}

/// getsid(pid)
pub fn sys_getsid(args: &Args) -> Result<i64> {
    Ok(i64::from(registry::shown(named(args.int(0))?.session().id)))
}

/// setpgid(pid, group)
pub fn sys_setpgid(args: &Args) -> Result<i64> {
    let caller = current().process().clone();
    if args.int(1) < 0 {
        return Err(Errno::EINVAL);
    }
    let process = named(args.int(0))?;
    // 0 is the number of no group, so it stands for a number that names nothing.
    let group: Pid = match args.uint(1) {
        0 => process.pid,
        number => registry::pid_by_number(number).unwrap_or(0),
    };
    let mut registry = registry::lock();
    if !registry.knows(&process) {
        return Err(Errno::ESRCH);
    }
    if !process.is_same(&caller) {
        if process.parent_pid() != caller.pid {
            return Err(Errno::ESRCH);
        }
        if process.session().id != caller.session().id {
            return Err(Errno::EPERM);
        }
        if process.executed.load(core::sync::atomic::Ordering::Relaxed) > 0 {
            return Err(Errno::EACCES);
        }
    }
    let session = process.session().id;
    if session == process.pid {
        return Err(Errno::EPERM);
    }
    if group != process.pid {
        let same_session =
            registry.members(group).next().is_some_and(|member| member.session().id == session);
        if !same_session {
            return Err(Errno::EPERM);
        }
    }
    registry.set_group(&process, group)?;
    Ok(0)
}

/// setsid()
pub fn sys_setsid(_args: &Args) -> Result<i64> {
    let process = current().process().clone();
    // Checked twice: a refused call must not make a session, and none can be made under the lock.
    if registry::lock().has_group(process.pid) {
        return Err(Errno::EPERM);
    }
    let session = reserve::arc(Session::new(process.pid));
    let old = {
        let mut registry = registry::lock();
        if registry.has_group(process.pid) {
            return Err(Errno::EPERM);
        }
        registry.set_group(&process, process.pid)?;
        registry.set_session(&process, session)
    };
    drop(old);
    Ok(i64::from(process.number()))
}

fn credentials() -> Arc<Credentials> {
    with_current(|task| task.process().credentials())
}

/// getuid()
pub fn sys_getuid(_args: &Args) -> Result<i64> {
    let own = credentials();
    Ok(i64::from(own.user_ns.shown_user(own.uid)))
}

/// geteuid()
pub fn sys_geteuid(_args: &Args) -> Result<i64> {
    let own = credentials();
    Ok(i64::from(own.user_ns.shown_user(own.euid)))
}

/// getgid()
pub fn sys_getgid(_args: &Args) -> Result<i64> {
    let own = credentials();
    Ok(i64::from(own.user_ns.shown_group(own.gid)))
}

/// getegid()
pub fn sys_getegid(_args: &Args) -> Result<i64> {
    let own = credentials();
    Ok(i64::from(own.user_ns.shown_group(own.egid)))
}

/// getresuid(real, effective, saved)
pub fn sys_getresuid(args: &Args) -> Result<i64> {
    let own = credentials();
    for (at, id) in [own.uid, own.euid, own.suid].into_iter().enumerate() {
        UserPtr::<u32>::new(args[at]).write(&own.user_ns.shown_user(id))?;
    }
    Ok(0)
}

/// getresgid(real, effective, saved)
pub fn sys_getresgid(args: &Args) -> Result<i64> {
    let own = credentials();
    for (at, id) in [own.gid, own.egid, own.sgid].into_iter().enumerate() {
        UserPtr::<u32>::new(args[at]).write(&own.user_ns.shown_group(id))?;
    }
    Ok(0)
}

/// Changes a copy of the credentials by `change`, and installs it.
fn replace(change: impl FnOnce(&mut Credentials) -> Result<()>) -> Result<i64> {
    let process = current().process().clone();
    process.change_credentials(|new| {
        let old = new.clone();
        change(new)?;
        new.capabilities = Capabilities::after_ids(&old, new);
        Ok(())
    })?;
    Ok(0)
}

/// Returns the kernel's ID for the one that a program passed; -1 means none.
fn id(args: &Args, at: usize, kind: IdKind) -> Result<Option<u32>> {
    let id = args.uint(at);
    if id == u32::MAX { Ok(None) } else { super::kernel_id(kind, id).map(Some) }
}

fn required(args: &Args, kind: IdKind) -> Result<u32> {
    id(args, 0, kind)?.ok_or(Errno::EINVAL)
}

/// setuid(uid)
pub fn sys_setuid(args: &Args) -> Result<i64> {
    let uid = required(args, IdKind::User)?;
    replace(|own| {
        if own.may_within(Capability::SetUid) {
            (own.uid, own.suid) = (uid, uid);
        } else if uid != own.uid && uid != own.suid {
            return Err(Errno::EPERM);
        }
        (own.euid, own.fsuid) = (uid, uid);
        Ok(())
    })
}

/// setgid(gid)
pub fn sys_setgid(args: &Args) -> Result<i64> {
    let gid = required(args, IdKind::Group)?;
    replace(|own| {
        if own.may_within(Capability::SetGid) {
            (own.gid, own.sgid) = (gid, gid);
        } else if gid != own.gid && gid != own.sgid {
            return Err(Errno::EPERM);
        }
        (own.egid, own.fsgid) = (gid, gid);
        Ok(())
    })
}

/// setreuid(real, effective)
pub fn sys_setreuid(args: &Args) -> Result<i64> {
    let (real, effective) = (id(args, 0, IdKind::User)?, id(args, 1, IdKind::User)?);
    replace(|own| {
        let old = own.clone();
        if !own.may_within(Capability::SetUid) {
            let may_real = real.is_none_or(|uid| uid == old.uid || uid == old.euid);
            let may_effective = effective.is_none_or(|uid| [old.uid, old.euid, old.suid].contains(&uid));
            if !may_real || !may_effective {
                return Err(Errno::EPERM);
            }
        }
        own.uid = real.unwrap_or(old.uid);
        own.euid = effective.unwrap_or(old.euid);
        if real.is_some() || effective.is_some_and(|uid| uid != old.uid) {
            own.suid = own.euid;
        }
        own.fsuid = own.euid;
        Ok(())
    })
}

/// setregid(real, effective)
pub fn sys_setregid(args: &Args) -> Result<i64> {
    let (real, effective) = (id(args, 0, IdKind::Group)?, id(args, 1, IdKind::Group)?);
    replace(|own| {
        let old = own.clone();
        if !own.may_within(Capability::SetGid) {
            let may_real = real.is_none_or(|gid| gid == old.gid || gid == old.egid);
            let may_effective = effective.is_none_or(|gid| [old.gid, old.egid, old.sgid].contains(&gid));
            if !may_real || !may_effective {
                return Err(Errno::EPERM);
            }
        }
        own.gid = real.unwrap_or(old.gid);
        own.egid = effective.unwrap_or(old.egid);
        if real.is_some() || effective.is_some_and(|gid| gid != old.gid) {
            own.sgid = own.egid;
        }
        own.fsgid = own.egid;
        Ok(())
    })
}

/// setresuid(real, effective, saved)
pub fn sys_setresuid(args: &Args) -> Result<i64> {
    let wanted = [id(args, 0, IdKind::User)?, id(args, 1, IdKind::User)?, id(args, 2, IdKind::User)?];
    replace(|own| {
        let old = [own.uid, own.euid, own.suid];
        if !own.may_within(Capability::SetUid) && wanted.iter().flatten().any(|uid| !old.contains(uid)) {
            return Err(Errno::EPERM);
        }
        own.uid = wanted[0].unwrap_or(old[0]);
        own.euid = wanted[1].unwrap_or(old[1]);
        own.suid = wanted[2].unwrap_or(old[2]);
        own.fsuid = own.euid;
        Ok(())
    })
}

/// setresgid(real, effective, saved)
pub fn sys_setresgid(args: &Args) -> Result<i64> {
    let wanted = [id(args, 0, IdKind::Group)?, id(args, 1, IdKind::Group)?, id(args, 2, IdKind::Group)?];
    replace(|own| {
        let old = [own.gid, own.egid, own.sgid];
        if !own.may_within(Capability::SetGid) && wanted.iter().flatten().any(|gid| !old.contains(gid)) {
            return Err(Errno::EPERM);
        }
        own.gid = wanted[0].unwrap_or(old[0]);
        own.egid = wanted[1].unwrap_or(old[1]);
        own.sgid = wanted[2].unwrap_or(old[2]);
        own.fsgid = own.egid;
        Ok(())
    })
}

/// setfsuid(uid): returns the previous ID, whether or not it changed.
pub fn sys_setfsuid(args: &Args) -> Result<i64> {
    let old = credentials();
    let mut before = old.fsuid;
    if let Ok(Some(uid)) = id(args, 0, IdKind::User) {
        replace(|own| {
            before = own.fsuid;
            if own.may_within(Capability::SetUid) || [own.uid, own.euid, own.suid, own.fsuid].contains(&uid) {
                own.fsuid = uid;
            }
            Ok(())
        })?;
    }
    Ok(i64::from(old.user_ns.shown_user(before)))
}

/// setfsgid(gid): returns the previous ID, whether or not it changed.
pub fn sys_setfsgid(args: &Args) -> Result<i64> {
    let old = credentials();
    let mut before = old.fsgid;
    if let Ok(Some(gid)) = id(args, 0, IdKind::Group) {
        replace(|own| {
            before = own.fsgid;
            if own.may_within(Capability::SetGid) || [own.gid, own.egid, own.sgid, own.fsgid].contains(&gid) {
                own.fsgid = gid;
            }
            Ok(())
        })?;
    }
    Ok(i64::from(old.user_ns.shown_group(before)))
}

/// Largest number of supplementary groups (NGROUPS_MAX).
const MAX_GROUPS: usize = 65_536;

/// getgroups(size, list)
pub fn sys_getgroups(args: &Args) -> Result<i64> {
    let own = credentials();
    let size = usize::try_from(args.int(0)).map_err(|_| Errno::EINVAL)?;
    if size != 0 {
        if size < own.groups.len() {
            return Err(Errno::EINVAL);
        }
        let mut shown = Vec::try_from_slice(&own.groups)?;
        shown.iter_mut().for_each(|group| *group = own.user_ns.shown_group(*group));
        UserPtr::<u32>::new(args[1]).write_slice(&shown)?;
    }
    Ok(own.groups.len() as i64)
}

/// setgroups(size, list)
pub fn sys_setgroups(args: &Args) -> Result<i64> {
    let own = credentials();
    if !own.may_within(Capability::SetGid) || !own.user_ns.may_set_groups() {
        return Err(Errno::EPERM);
    }
    let size = args.size(0);
    if size > MAX_GROUPS {
        return Err(Errno::EINVAL);
    }
    let mut groups: Vec<u32> = UserPtr::new(args[1]).read_many(size)?;
    for group in groups.iter_mut() {
        *group = own.user_ns.kernel_id(IdKind::Group, *group).ok_or(Errno::EINVAL)?;
    }
    let groups = Groups::new(groups);
    replace(|own| {
        // Another thread may have dropped the right since.
        if !own.may_within(Capability::SetGid) || !own.user_ns.may_set_groups() {
            return Err(Errno::EPERM);
        }
        own.groups = groups;
        Ok(())
    })
}
