//! unshare and setns, and clone's handling of namespaces.
//!
//! All objects are made first, and then the process gets all of them: a failed call changes
//! nothing. Making a namespace needs CAP_SYS_ADMIN in the caller's user namespace, or in the new
//! user namespace if the same call makes one. Entering a namespace needs CAP_SYS_ADMIN in the user
//! namespace that owns it, and in the caller's own.
//!
//! Callers: the table of system calls, [`super::super::clone`]. Task context.

use freehold_collections::{
    Arc,
    reserve::{self, ArcMethods},
};

use super::file::{NamespaceFile, NamespaceRef};
use super::{Namespaces, SEPARATE};
use crate::fs::{FsContext, Path};
use crate::syscall::Args;
use crate::task::capabilities::Capabilities;
use crate::task::clone::CloneFlags;
use crate::task::inspect::{self, Mode};
use crate::task::pidfd::PidFile;
use crate::task::pidns::PidNs;
use crate::task::userns::{NamespaceKind, UserNs};
use crate::task::{Capability, Credentials, Process, current, registry};
use crate::{Errno, Result, sched};

/// The credentials and namespaces that replace a process' own.
pub(in crate::task) struct Separated {
    pub credentials: Option<Credentials>,
    pub namespaces: Option<Namespaces>,
}

/// Whether `flags` request a namespace of this kind.
fn wants(flags: CloneFlags, kind: NamespaceKind) -> bool {
    flags.bits() & u64::from(kind.clone_flag()) != 0
}

/// Makes the namespaces that `flags` request, for a process with the root and working directory of
/// `fs`.
///
/// # Errors
/// `EPERM` without the right, and for a user namespace in a chroot, or of a user without a mapping;
/// `ENOSPC` for too many; `ENOMEM`.
pub(in crate::task) fn separate(process: &Process, flags: CloneFlags, fs: &FsContext) -> Result<Separated> {
    let own = process.credentials();
    let mut credentials = None;
    if wants(flags, NamespaceKind::User) {
        // Linux: `current_chrooted`. Otherwise CAP_SYS_CHROOT in the new namespace would permit an
        // escape from the chroot.
        if !process.namespaces().mount.entrance()?.same_place(&fs.root()) {
            return Err(Errno::EPERM);
        }
        let user_ns = UserNs::new(&own)?;
        credentials =
            Some(Credentials { user_ns, capabilities: Capabilities::WHOLE, ..Credentials::clone(&own) });
    }
    let maker = credentials.as_ref().unwrap_or(&own);
    // A process whose children are in another PID namespace cannot make a third one (Linux:
    // `copy_pid_ns`).
    let has_other = || process.namespaces().pid_for_children != *process.pid_ns();
    if wants(flags, NamespaceKind::Pid) && maker.may_within(Capability::SysAdmin) && has_other() {
        return Err(Errno::EINVAL);
    }
    let is_new = |kind| wants(flags, kind);
    let namespaces = if SEPARATE.into_iter().any(is_new) {
        if !maker.may_within(Capability::SysAdmin) {
            return Err(Errno::EPERM);
        }
        Some(process.namespaces().with_new(is_new, maker, (fs, &process.cgroup))?)
    } else {
        None
    };
    Ok(Separated { credentials, namespaces })
}

/// Undoes the process' semaphore operations before it leaves their namespace.
fn settle_undo(process: &Process) {
    let undo = process.undo.lock().take();
    drop(undo);
}

/// unshare(flags)
///
/// # Errors
/// As in the manual; `EINVAL` for a process of several threads that requests a namespace, or
/// requests separate descriptors or paths for one thread: these belong to the process.
pub fn sys_unshare(args: &Args) -> Result<i64> {
    let mut flags = CloneFlags::from_bits(args[0]).ok_or(Errno::EINVAL)?;
    let alone = CloneFlags::THREAD | CloneFlags::SIGHAND | CloneFlags::VM;
    let known = CloneFlags::FS
        | CloneFlags::FILES
        | CloneFlags::SYSVSEM
        | CloneFlags::NEW_NAMESPACES
        | CloneFlags::NEWNS;
    let process = current().process().clone();
    if !(known | alone).contains(flags) {
        return Err(Errno::EINVAL);
    }
    if flags.intersects(CloneFlags::NEW_NAMESPACES | CloneFlags::NEWNS) {
        flags |= CloneFlags::THREAD;
    }
    if wants(flags, NamespaceKind::User) || wants(flags, NamespaceKind::Mount) {
        flags |= CloneFlags::FS;
    }
    let of_processes = alone | CloneFlags::FS | CloneFlags::FILES;
    if flags.intersects(of_processes) && process.signals.lock().threads.len() > 1 {
        return Err(Errno::EINVAL);
    }
    let fs = process.fs();
    let fs = if flags.contains(CloneFlags::FS) { fs.duplicate() } else { fs };
    let files = if flags.contains(CloneFlags::FILES) { Some(process.files().duplicate()?) } else { None };
    let separated = separate(&process, flags, &fs)?;
    // Nothing fails from here on.
    let leaves_ipc = wants(flags, NamespaceKind::Ipc) || flags.contains(CloneFlags::SYSVSEM);
    if leaves_ipc && process.thread_count() == 1 {
        settle_undo(&process);
    }
    if flags.contains(CloneFlags::FS) {
        drop(process.replace_fs(fs));
    }
    if let Some(files) = files {
        drop(process.replace_files(files));
    }
    if let Some(credentials) = separated.credentials {
        process.change_credentials(|own| {
            *own = credentials;
            Ok(())
        })?;
    }
    if let Some(namespaces) = separated.namespaces {
        drop(process.replace_namespaces(reserve::arc(namespaces)));
    }
    Ok(0)
}

/// The credentials and namespaces of a process after it has entered all requested ones.
struct Entering {
    credentials: Credentials,
    namespaces: Namespaces,
    /// The process' own PID namespace, which may differ from that of its children.
    own_pid: PidNs,
    changes_user: bool,
    /// The new root and working directory.
    entrance: Option<Path>,
}

impl Entering {
    fn enter(&mut self, namespace: &NamespaceRef) -> Result<()> {
        if let NamespaceRef::User(user) = namespace {
            if *user == self.credentials.user_ns {
                return Err(Errno::EINVAL);
            }
            if !self.credentials.may_in(user, Capability::SysAdmin) {
                return Err(Errno::EPERM);
            }
            self.credentials.user_ns = user.clone();
            self.credentials.capabilities = Capabilities::WHOLE;
            self.changes_user = true;
            return Ok(());
        }
        let owner = namespace.owner().unwrap_or_default();
        let may = self.credentials.may_in(&owner, Capability::SysAdmin)
            && self.credentials.may_within(Capability::SysAdmin);
        if !may {
            return Err(Errno::EPERM);
        }
        match namespace {
            NamespaceRef::Network(network) => self.namespaces.network = network.clone(),
            NamespaceRef::Uts(uts) => self.namespaces.uts = uts.clone(),
            NamespaceRef::Ipc(ipc) => self.namespaces.ipc = ipc.clone(),
            NamespaceRef::Mount(mount) => {
                if !self.credentials.may_within(Capability::SysChroot) {
                    return Err(Errno::EPERM);
                }
                self.namespaces.mount = mount.clone();
                self.entrance = Some(mount.entrance()?);
            }
            NamespaceRef::Cgroup(cgroup) => self.namespaces.cgroup = cgroup.clone(),
            NamespaceRef::Pid(pid) => {
                if !self.own_pid.contains(pid) {
                    return Err(Errno::EINVAL);
                }
                self.namespaces.pid_for_children = pid.clone();
            }
            NamespaceRef::Time(time) => {
                self.namespaces.time = time.clone();
                self.namespaces.time_for_children = time.clone();
            }
            // It was entered above.
            NamespaceRef::User(_) => {}
        }
        Ok(())
    }

    /// Enters the namespace of a file for `process`. It must be among `kinds`, unless these are 0.
    fn enter_file(&mut self, process: &Process, namespace: &NamespaceRef, kinds: u32) -> Result<()> {
        let kind = namespace.kind();
        if kinds != 0 && kinds != kind.clone_flag() {
            return Err(Errno::EINVAL);
        }
        if kind == NamespaceKind::Time {
            may_enter_time(process)?;
        }
        if process.thread_count() != 1 {
            return Err(Errno::EINVAL);
        }
        self.enter(namespace)
    }

    /// Enters those namespaces of `target` for `process` that are among `kinds`.
    fn enter_all_of(&mut self, process: &Process, target: &Process, kinds: u32) -> Result<()> {
        let known = NamespaceKind::ALL.iter().fold(0, |flags, kind| flags | kind.clone_flag());
        if kinds == 0 || kinds & !known != 0 || process.thread_count() != 1 {
            return Err(Errno::EINVAL);
        }
        inspect::may_inspect(target, Mode::READ_REAL)?;
        if target.exit_status().is_some() {
            return Err(Errno::ESRCH);
        }
        for kind in ORDER.into_iter().filter(|kind| kinds & kind.clone_flag() != 0) {
            if kind == NamespaceKind::Time {
                may_enter_time(process)?;
            }
            self.enter(&NamespaceRef::of(target, kind))?;
        }
        Ok(())
    }
}

/// The order in which the namespaces of another process are entered. The user namespace comes
/// first, because it gives the rights for the rest.
const ORDER: [NamespaceKind; 8] = [
    NamespaceKind::User,
    NamespaceKind::Mount,
    NamespaceKind::Uts,
    NamespaceKind::Ipc,
    NamespaceKind::Pid,
    NamespaceKind::Cgroup,
    NamespaceKind::Network,
    NamespaceKind::Time,
];

/// Checks that no other task has the memory of `process`: its page of time is another one after it
/// has entered a time namespace.
///
/// # Errors
/// `EUSERS` if one has; `EINTR` if the caller is killed.
fn may_enter_time(process: &Process) -> Result<()> {
    let space = process.space().id();
    if process.thread_count() != 1 {
        return Err(Errno::EUSERS);
    }
    for other in registry::processes() {
        if other.pid != process.pid && other.space().id() == space {
            return Err(Errno::EUSERS);
        }
        sched::checkpoint()?;
    }
    Ok(())
}

/// setns(fd, kinds): enters the namespace of a file, or some namespaces of a pidfd's process.
///
/// # Errors
/// As in the manual; `EINVAL` for a process of several threads; `EUSERS` if other tasks share the
/// memory and a time namespace is entered.
pub fn sys_setns(args: &Args) -> Result<i64> {
    let process = current().process().clone();
    let file = process.file(args.fd(0))?;
    let kinds = args.uint(1);
    let mut entering = Entering {
        credentials: Credentials::clone(&process.credentials()),
        namespaces: Namespaces::clone(&process.namespaces()),
        own_pid: process.pid_ns().clone(),
        changes_user: false,
        entrance: None,
    };
    if let Some(file) = file.file().downcast::<NamespaceFile>() {
        entering.enter_file(&process, file.namespace(), kinds)?;
    } else if let Some(file) = file.file().downcast::<PidFile>() {
        entering.enter_all_of(&process, &*file.process()?, kinds)?;
    } else {
        return Err(Errno::EINVAL);
    }
    // Nothing fails from here on.
    let old = process.namespaces();
    if !entering.namespaces.ipc.is_same(&old.ipc) {
        settle_undo(&process);
    }
    if entering.changes_user || entering.entrance.is_some() {
        // A process in another namespace must not be able to change this process' root.
        let fs = process.fs().duplicate();
        if let Some(entrance) = entering.entrance {
            fs.set_root(entrance.clone());
            fs.set_cwd(entrance);
        }
        drop(process.replace_fs(fs));
    }
    if entering.changes_user {
        process.change_credentials(|own| {
            *own = entering.credentials;
            Ok(())
        })?;
    }
    if !entering.namespaces.time.is_same(&old.time) {
        process.enter_time(&entering.namespaces.time);
    }
    drop(process.replace_namespaces(reserve::arc(entering.namespaces)));
    Ok(0)
}

/// Returns the namespaces of a new process: its creator's, or those that `flags` request. It enters
/// the time namespace for its creator's children.
///
/// # Errors
/// As [`separate`]; `EINVAL` for a process in another time namespace that shares the memory.
pub(in crate::task) fn of_child(
    maker: &Process,
    flags: CloneFlags,
    fs: &FsContext,
) -> Result<(Arc<Credentials>, Arc<Namespaces>)> {
    let Separated { credentials, namespaces } = separate(maker, flags, fs)?;
    let credentials = credentials.map_or_else(|| maker.credentials(), reserve::arc);
    let mut namespaces = namespaces.map_or_else(|| maker.namespaces(), reserve::arc);
    if !namespaces.keeps_time() {
        // A process that shares the memory finds the same page of time: it has to tell the same.
        let has_same_offsets = || wants(flags, NamespaceKind::Time) && maker.namespaces().keeps_time();
        if flags.contains(CloneFlags::VM) && !has_same_offsets() {
            return Err(Errno::EINVAL);
        }
        let time = namespaces.time_for_children.clone();
        time.freeze();
        namespaces = reserve::arc(Namespaces { time, ..Namespaces::clone(&namespaces) });
    }
    Ok((credentials, namespaces))
}
