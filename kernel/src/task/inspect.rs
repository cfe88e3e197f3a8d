//! Inspection of other processes. There is one rule for every call and file that reads or changes
//! what belongs to another process' memory, descriptors or places, modelled on Linux'
//! `__ptrace_may_access` (kernel/ptrace.c) and `cap_ptrace_access_check` (security/commoncap.c):
//!
//! 1. A process may inspect itself.
//! 2. Another's real, effective and saved users and groups must all be the caller's one user and
//!    group: the file system's for files of /proc, the real ones for system calls ([`CallerIds`]).
//!    Else the caller needs CAP_SYS_PTRACE in the target's user namespace.
//! 3. A process that is not dumpable needs CAP_SYS_PTRACE from its inspector, in the initial user
//!    namespace, whatever its ids are: its memory may still hold what it read as another user.
//! 4. The caller's capabilities must include all that the process is permitted: the effective ones
//!    for files of /proc, the permitted ones for system calls. Else the caller needs CAP_SYS_PTRACE
//!    there. Two user namespaces are never equal in this.
//!
//! **Dumpable** is a fact of an address space ([`Dumpable`]), as on Linux: processes that share one
//! share it, fork copies it. It is lost by a change of users, groups or capabilities ([`changes`])
//! and by execve of a set-id program or of one that the caller may not read; prctl(PR_SET_DUMPABLE)
//! and execve of any other program bring it back.
//!
//! **Order.** A process that changes its ids marks its space first; an inspector looks at the ids
//! first. execve changes the ids before it changes the space; an inspector takes the space before
//! it looks at the ids ([`space_of`]). So an inspector never gets a space that belongs to ids which
//! it did not check.
//!
//! **Acting on the answer.** A process' `rights` lock is held where its credentials change, the
//! change over to another program included, and by code of other processes from the question
//! whether it may to the end of what the answer allowed ([`act_on`]): attaching of a tracer,
//! pidfd_getfd, /proc/PID/fail-nth. execve takes it when its other threads are gone and looks once
//! more at all that keeps rights from a program (tracers, no_new_privs, CLONE_FS): it comes
//! before all of an attachment or after all of it. Nothing waits for another process while it
//! holds the lock. (Linux holds `cred_guard_mutex` from the beginning of execve on, across the wait
//! for the other threads, and a tracer that attaches meanwhile can wait for a thread that waits for
//! the tracer.) `inspect_model` explores this.
//!
//! Lock order: `rights` > the registry > `signals`.

use core::sync::atomic::{AtomicU32, Ordering};

pub use super::credentials::Dumpable;
use super::{Capability, Credentials, Process, current};
use crate::mem::ProcessSpace;
use crate::{Errno, Result};
use freehold_collections::Arc;

/// Which of the caller's ids count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallerIds {
    /// fsuid, fsgid and the effective capabilities (PTRACE_MODE_FSCREDS).
    FileSystem,
    /// The real ones and the permitted capabilities (PTRACE_MODE_REALCREDS).
    Real,
}

/// The purpose of an inspection. There is no security module that tells the two apart: both follow
/// the same rule, as on a Linux without Yama.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// To learn something (PTRACE_MODE_READ).
    Read,
    /// To read or change memory or registers (PTRACE_MODE_ATTACH).
    Attach,
}

/// How a process is to be inspected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode {
    /// Which of the caller's ids count.
    pub ids: CallerIds,
    /// The purpose.
    pub intent: Intent,
}

impl Mode {
    /// PTRACE_MODE_READ_FSCREDS.
    pub const READ_FS: Self = Self { ids: CallerIds::FileSystem, intent: Intent::Read };
    /// PTRACE_MODE_ATTACH_FSCREDS.
    pub const ATTACH_FS: Self = Self { ids: CallerIds::FileSystem, intent: Intent::Attach };
    /// PTRACE_MODE_READ_REALCREDS.
    pub const READ_REAL: Self = Self { ids: CallerIds::Real, intent: Intent::Read };
    /// PTRACE_MODE_ATTACH_REALCREDS.
    pub const ATTACH_REAL: Self = Self { ids: CallerIds::Real, intent: Intent::Attach };
}

/// Rules 2 to 4, for a process with credentials `theirs` and a space that is `dumpable` (`None`: it
/// has no space any more).
fn permits(mine: &Credentials, theirs: &Credentials, dumpable: Option<Dumpable>, mode: Mode) -> bool {
    let is_open = dumpable.is_none_or(|dumpable| dumpable == Dumpable::Yes);
    // Memory may still hold bytes that a program read before it came to a namespace: the capability
    // of that namespace does not uncover it.
    if mine.may(Capability::SysPtrace) || (is_open && mine.may_in(&theirs.user_ns, Capability::SysPtrace)) {
        return true;
    }
    let (uid, gid, allowed) = match mode.ids {
        CallerIds::FileSystem => (mine.fsuid, mine.fsgid, mine.capabilities.effective),
        CallerIds::Real => (mine.uid, mine.gid, mine.capabilities.permitted),
    };
    let same_user = [theirs.uid, theirs.euid, theirs.suid].iter().all(|&theirs| theirs == uid);
    let same_group = [theirs.gid, theirs.egid, theirs.sgid].iter().all(|&theirs| theirs == gid);
    let no_stronger = mine.user_ns == theirs.user_ns && theirs.capabilities.permitted & !allowed == 0;
    same_user && same_group && is_open && no_stronger
}

static AFTER_CHANGE: AtomicU32 = AtomicU32::new(Dumpable::No.number());

/// Returns the state of a process whose ids or rights have changed (/proc/sys/fs/suid_dumpable).
pub fn after_change() -> Dumpable {
    Dumpable::from_number(AFTER_CHANGE.load(Ordering::Relaxed).into()).unwrap_or(Dumpable::No)
}

/// Sets that.
///
/// # Errors
/// `EINVAL` for what is none.
pub fn set_after_change(number: u64) -> Result<()> {
    let dumpable = Dumpable::from_number(number).ok_or(Errno::EINVAL)?;
    AFTER_CHANGE.store(dumpable.number(), Ordering::Relaxed);
    Ok(())
}

/// Whether a change from `old` to `new` leaves memory behind that the new ids must not see (Linux:
/// `commit_creds`).
pub fn changes(old: &Credentials, new: &Credentials) -> bool {
    let ids = |of: &Credentials| (of.euid, of.egid, of.fsuid, of.fsgid);
    let is_subset = if old.user_ns == new.user_ns {
        new.capabilities.permitted & !old.capabilities.permitted == 0
    } else {
        // The user that made a namespace has all capabilities in it already (Linux:
        // `cred_cap_issubset`).
        let inner = &new.user_ns;
        inner.parent().is_some_and(|parent| *parent == old.user_ns) && inner.owner() == old.euid
    };
    ids(old) != ids(new) || !is_subset
}

/// Whether the running process may inspect `target`.
///
/// # Errors
/// `EPERM`; some callers answer with `EACCES` instead.
pub fn may_inspect(target: &Process, mode: Mode) -> Result<()> {
    check(target, &target.space(), mode)
}

/// Has the running process, if it may inspect `target`, do so by `act`: the rights of `target` stay
/// as they are meanwhile.
///
/// # Errors
/// `EPERM`; those of `act`; `EINTR` where the caller is to end.
pub fn act_on<R>(target: &Process, mode: Mode, act: impl FnOnce() -> Result<R>) -> Result<R> {
    // A caller that may not gets no hold on the lock: `target` itself waits for it.
    may_inspect(target, mode)?;
    let _rights = target.rights.lock_killable()?;
    may_inspect(target, mode)?;
    act()
}

/// Whether a process with `parent` may become the tracer of its child by the child's wish
/// (PTRACE_TRACEME; Linux: `cap_ptrace_traceme`).
pub fn may_be_invited(parent: &Credentials, child: &Credentials) -> bool {
    let no_stronger =
        parent.user_ns == child.user_ns && child.capabilities.permitted & !parent.capabilities.permitted == 0;
    no_stronger || parent.may_in(&child.user_ns, Capability::SysPtrace)
}

/// The memory of `target`, for a running process that may inspect it.
///
/// # Errors
/// `EPERM`; `ESRCH` where `target` has ended.
pub fn space_of(target: &Process, mode: Mode) -> Result<Arc<ProcessSpace>> {
    let space = target.space();
    check(target, &space, mode)?;
    if target.exit_status().is_some() { Err(Errno::ESRCH) } else { Ok(space) }
}

fn check(target: &Process, space: &ProcessSpace, mode: Mode) -> Result<()> {
    let caller = current().process().clone();
    if caller.pid == target.pid {
        return Ok(());
    }
    let (mine, theirs) = (caller.credentials(), target.credentials());
    let dumpable = target.exit_status().is_none().then(|| space.dumpable());
    if permits(&mine, &theirs, dumpable, mode) { Ok(()) } else { Err(Errno::EPERM) }
}

#[cfg(test)]
#[path = "inspect_model.rs"]
mod model;

#[cfg(test)]
mod tests {
    use super::super::capabilities::Capabilities;
    use super::*;

    fn user(id: u32) -> Credentials {
        Credentials {
            uid: id,
            euid: id,
            suid: id,
            fsuid: id,
            gid: id,
            egid: id,
            sgid: id,
            fsgid: id,
            capabilities: Capabilities::NONE,
            ..Credentials::default()
        }
    }

    fn may(mine: &Credentials, theirs: &Credentials) -> [bool; 2] {
        [Mode::READ_FS, Mode::ATTACH_REAL].map(|mode| permits(mine, theirs, Some(Dumpable::Yes), mode))
    }

    #[test]
    fn every_id_of_the_target_has_to_be_the_callers() {
        assert_eq!(may(&user(5), &user(5)), [true; 2]);
        assert_eq!(may(&user(5), &user(6)), [false; 2]);
        let others: [fn(&mut Credentials); 6] =
            [|c| c.uid = 0, |c| c.euid = 0, |c| c.suid = 0, |c| c.gid = 0, |c| c.egid = 0, |c| c.sgid = 0];
        for change in others {
            let mut target = user(5);
            change(&mut target);
            assert_eq!(may(&user(5), &target), [false; 2], "{target:?}");
        }
        let mut mixed = user(5);
        (mixed.uid, mixed.gid) = (6, 6);
        assert_eq!(may(&mixed, &user(5)), [true, false], "files go by fsuid, calls by the real user");
        assert_eq!(may(&mixed, &user(6)), [false, true]);
    }

    #[test]
    fn a_process_that_is_not_dumpable_or_is_stronger_needs_the_capability() {
        let look = |mine: &Credentials, theirs: &Credentials, dumpable| {
            permits(mine, theirs, dumpable, Mode::READ_FS)
        };
        assert!(!look(&user(5), &user(5), Some(Dumpable::No)));
        assert!(look(&user(5), &user(5), None), "a process without memory");
        let mut strong = user(5);
        strong.capabilities.permitted = 1 << Capability::Kill as u8;
        assert!(!look(&user(5), &strong, Some(Dumpable::Yes)));
        let mut inspector = user(7);
        inspector.capabilities.effective = 1 << Capability::SysPtrace as u8;
        assert!(look(&inspector, &strong, Some(Dumpable::No)));
        // Root without the capability is a user like any other, and no stronger.
        let mut root = user(0);
        assert!(!look(&root, &user(5), Some(Dumpable::Yes)));
        root.capabilities.effective = super::super::capabilities::ALL & !(1 << Capability::SysPtrace as u8);
        assert!(!look(&root, &user(5), Some(Dumpable::Yes)));
    }

    #[test]
    fn a_child_invites_no_weaker_tracer() {
        let strong = Credentials { capabilities: Capabilities::default(), ..user(5) };
        assert!(may_be_invited(&user(5), &user(6)), "IDs do not count");
        assert!(may_be_invited(&strong, &strong));
        assert!(may_be_invited(&strong, &user(5)));
        assert!(!may_be_invited(&user(5), &strong));
        let mut inspector = user(7);
        inspector.capabilities.effective = 1 << Capability::SysPtrace as u8;
        assert!(may_be_invited(&inspector, &strong));
    }

    #[test]
    fn a_change_of_users_or_more_rights_hides_the_memory_of_before() {
        let five = user(5);
        assert!(!changes(&five, &five));
        assert!(!changes(&five, &Credentials { suid: 6, uid: 6, ..five.clone() }), "these give no rights");
        assert!(changes(&five, &Credentials { euid: 6, ..five.clone() }));
        assert!(changes(&five, &Credentials { fsgid: 6, ..five.clone() }));
        let strong = Credentials { capabilities: Capabilities::default(), ..five.clone() };
        assert!(changes(&five, &strong));
        assert!(!changes(&strong, &five), "less is no danger");
    }
}
