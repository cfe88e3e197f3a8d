//! Inspection of other processes. There is one rule for every call and file that reads or changes
//! another process' memory, descriptors or paths. It is modelled on Linux' `__ptrace_may_access`
//! (kernel/ptrace.c) and `cap_ptrace_access_check` (security/commoncap.c):
//!
//! 1. A process may inspect itself.
//! 2. The target's real, effective and saved users must all equal one user of the caller, and its
//!    groups one group of the caller. For files of /proc these are the file system's IDs, for
//!    system calls the real ones ([`CallerIds`]). Otherwise the caller needs CAP_SYS_PTRACE in the
//!    target's user namespace.
//! 3. If the target is not dumpable, the caller needs CAP_SYS_PTRACE in the initial user namespace,
//!    whatever the IDs are: the target's memory may still hold data that it read as another user.
//! 4. The caller's capabilities must include all permitted capabilities of the target: the
//!    effective ones for files of /proc, the permitted ones for system calls. Otherwise the caller
//!    needs CAP_SYS_PTRACE there. Capabilities of different user namespaces are never comparable.
//!
//! **Dumpable** is a property of an address space ([`Dumpable`]), as on Linux: processes that share
//! the space share it, and fork copies it. A change of users, groups or capabilities ([`changes`])
//! clears it, and so does execve of a set-id program or of a program that the caller may not read.
//! prctl(PR_SET_DUMPABLE) and execve of any other program set it.
//!
//! **Order.** A process that changes its IDs marks its space first; an inspector reads the IDs
//! first. execve changes the IDs before it changes the space; an inspector takes the space before
//! it reads the IDs ([`space_of`]). So an inspector never gets a space that belongs to IDs which it
//! did not check.
//!
//! **Acting on the answer.** A process' `rights` lock is held while its credentials change, also at
//! the switch to another program. Code of other processes holds it from the permission check to the
//! end of the permitted action ([`act_on`]): attaching of a tracer, pidfd_getfd,
//! /proc/PID/fail-nth. execve takes it when its other threads have ended. It then checks again for
//! everything that withholds rights from a program (tracers, no_new_privs, CLONE_FS). So the switch
//! comes entirely before an attachment or entirely after it. No code waits for another process
//! while it holds the lock. (Linux holds `cred_guard_mutex` from the beginning of execve on, across
//! the wait for the other threads, and a tracer that attaches meanwhile can wait for a thread that
//! waits for the tracer.) `inspect_model` explores this.
//!
//! Lock order: `rights` > the registry > `signals`.

use core::sync::atomic::{AtomicU32, Ordering};

pub use super::credentials::Dumpable;
use super::{Capability, Credentials, Process, current};
use crate::mem::ProcessSpace;
use crate::{Errno, Result};
use freehold_collections::Arc;

/// The IDs of the caller that are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallerIds {
    /// fsuid, fsgid and the effective capabilities (PTRACE_MODE_FSCREDS).
    FileSystem,
    /// The real IDs and the permitted capabilities (PTRACE_MODE_REALCREDS).
    Real,
}

/// The purpose of an inspection. No security module distinguishes the two: both follow the same
/// rule, as on a Linux without Yama.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// To read information (PTRACE_MODE_READ).
    Read,
    /// To read or change memory or registers (PTRACE_MODE_ATTACH).
    Attach,
}

/// The kind of an inspection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode {
    /// The IDs of the caller that are checked.
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

/// Checks rules 2 to 4, for a process with credentials `theirs` and a space that is `dumpable`
/// (`None`: it no longer has a space).
fn permits(mine: &Credentials, theirs: &Credentials, dumpable: Option<Dumpable>, mode: Mode) -> bool {
    let is_open = dumpable.is_none_or(|dumpable| dumpable == Dumpable::Yes);
    // Memory may still hold bytes that a program read before it entered a namespace. So the
    // capability in that namespace is not sufficient.
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

/// Returns the dumpable state of a process after its IDs or rights have changed
/// (/proc/sys/fs/suid_dumpable).
pub fn after_change() -> Dumpable {
    Dumpable::from_number(AFTER_CHANGE.load(Ordering::Relaxed).into()).unwrap_or(Dumpable::No)
}

/// Sets the dumpable state of a process after its IDs or rights have changed.
///
/// # Errors
/// `EINVAL` for an invalid number.
pub fn set_after_change(number: u64) -> Result<()> {
    let dumpable = Dumpable::from_number(number).ok_or(Errno::EINVAL)?;
    AFTER_CHANGE.store(dumpable.number(), Ordering::Relaxed);
    Ok(())
}

/// Whether a change from `old` to `new` leaves data in memory that the new IDs must not see (Linux:
/// `commit_creds`).
pub fn changes(old: &Credentials, new: &Credentials) -> bool {
    let ids = |of: &Credentials| (of.euid, of.egid, of.fsuid, of.fsgid);
    let is_subset = if old.user_ns == new.user_ns {
        new.capabilities.permitted & !old.capabilities.permitted == 0
    } else {
        // The user that created a namespace has all capabilities in it already (Linux:
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

/// Runs `act` on `target`, if the running process may inspect it. The rights of `target` do not
/// change meanwhile.
///
/// # Errors
/// `EPERM`; those of `act`; `EINTR` if the caller is to end.
pub fn act_on<R>(target: &Process, mode: Mode, act: impl FnOnce() -> Result<R>) -> Result<R> {
    // A caller without permission must not take the lock, because `target` itself waits for it.
    may_inspect(target, mode)?;
    let _rights = target.rights.lock_killable()?;
    may_inspect(target, mode)?;
    act()
}

/// Whether a process with `parent` may become the tracer of its child at the child's request
/// (PTRACE_TRACEME; Linux: `cap_ptrace_traceme`).
pub fn may_be_invited(parent: &Credentials, child: &Credentials) -> bool {
    let no_stronger =
        parent.user_ns == child.user_ns && child.capabilities.permitted & !parent.capabilities.permitted == 0;
    no_stronger || parent.may_in(&child.user_ns, Capability::SysPtrace)
}

/// Returns the memory of `target`, if the running process may inspect it.
///
/// # Errors
/// `EPERM`; `ESRCH` if `target` has ended.
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
        // Without the capability, root has the same rights as any other user.
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
