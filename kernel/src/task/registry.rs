//! All processes and threads by ID, their families, groups and sessions.
//!
//! One plain spin lock orders every change of the family tree, of groups and of sessions. It may be taken before
//! a process' own spin locks, never after.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::process::Process;
use super::session::Session;
use super::{Pid, Task};
use crate::sync::{SpinLock, SpinLockGuard};
use crate::{Errno, Result};

/// IDs are below this (/proc/sys/kernel/pid_max).
pub const PID_MAX: Pid = 32_768;
/// After a wrap, IDs begin again here.
const RESERVED: Pid = 300;

/// The most threads at one time.
pub const TASKS_MAX: usize = 16_384;

/// Who uses an ID.
#[derive(Default)]
struct Slot {
    process: Option<Arc<Process>>,
    task: Weak<Task>,
    /// Reserved for a task that is being made.
    reserved: bool,
    /// Processes whose group has this ID.
    members: usize,
    /// Processes whose session has this ID.
    session_members: usize,
}

impl Slot {
    fn is_free(&self) -> bool {
        self.process.is_none()
            && self.task.strong_count() == 0
            && !self.reserved
            && self.members == 0
            && self.session_members == 0
    }
}

/// What the registry's lock protects.
pub struct Registry {
    slots: BTreeMap<Pid, Slot>,
    last: Pid,
}

static REGISTRY: SpinLock<Registry> = SpinLock::new(Registry { slots: BTreeMap::new(), last: 0 });
static TASKS: AtomicUsize = AtomicUsize::new(0);
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// Take the lock.
pub(super) fn lock() -> SpinLockGuard<'static, Registry> {
    REGISTRY.lock()
}

/// Threads that exist.
pub fn count() -> usize {
    TASKS.load(Ordering::Relaxed)
}

/// A task of the kernel's own comes; it has no ID.
pub(super) fn count_kernel_task() {
    TASKS.fetch_add(1, Ordering::Relaxed);
}

/// A task of the kernel's own goes.
pub(super) fn forget_kernel_task() {
    TASKS.fetch_sub(1, Ordering::Relaxed);
}

/// Threads ever made.
pub fn forks() -> usize {
    FORKS.load(Ordering::Relaxed)
}

/// The last ID that was given out.
pub fn last_pid() -> Pid {
    REGISTRY.lock().last
}

/// The process with this ID, ended ones that were not waited for included.
pub fn find(pid: Pid) -> Option<Arc<Process>> {
    REGISTRY.lock().slots.get(&pid)?.process.clone()
}

/// The thread with this ID.
pub fn find_task(tid: Pid) -> Option<Arc<Task>> {
    REGISTRY.lock().slots.get(&tid)?.task.upgrade()
}

/// All processes, by ID.
pub fn processes() -> Vec<Arc<Process>> {
    let registry = REGISTRY.lock();
    registry.slots.values().filter_map(|slot| slot.process.clone()).collect()
}

/// Call `f` for all processes, by ID.
pub fn for_each(f: impl FnMut(&Arc<Process>)) {
    processes().iter().for_each(f);
}

impl Registry {
    /// An ID that nobody uses; `EAGAIN` where there is none.
    pub fn allocate(&mut self) -> Result<Pid> {
        if TASKS.load(Ordering::Relaxed) >= TASKS_MAX {
            return Err(Errno::EAGAIN);
        }
        for _ in 0..PID_MAX {
            self.last += 1;
            if self.last >= PID_MAX {
                self.last = RESERVED;
            }
            let slot = self.slots.entry(self.last).or_default();
            if slot.is_free() {
                slot.reserved = true;
                return Ok(self.last);
            }
        }
        Err(Errno::EAGAIN)
    }
    /// Give an ID back that no task came to use.
    pub fn release(&mut self, pid: Pid) {
        self.change(pid, |slot| slot.reserved = false);
    }
    /// Enter a task under its ID.
    pub fn add_task(&mut self, task: &Arc<Task>) {
        TASKS.fetch_add(1, Ordering::Relaxed);
        FORKS.fetch_add(1, Ordering::Relaxed);
        self.change(task.tid, |slot| {
            slot.task = Arc::downgrade(task);
            slot.reserved = false;
        });
    }
    /// A task has ended.
    pub fn remove_task(&mut self, tid: Pid) {
        TASKS.fetch_sub(1, Ordering::Relaxed);
        self.change(tid, |slot| slot.task = Weak::new());
    }
    /// The thread `task` takes over the ID of the process' first one (execve).
    pub fn rename_task(&mut self, task: &Arc<Task>, tid: Pid) {
        self.change(tid, |slot| slot.task = Arc::downgrade(task));
    }
    /// Enter a process, its group and its session, and make it its parent's child.
    pub fn add_process(&mut self, process: &Arc<Process>) {
        self.change(process.pid, |slot| slot.process = Some(process.clone()));
        self.change(process.group(), |slot| slot.members += 1);
        self.change(process.session().id, |slot| slot.session_members += 1);
        if let Some(parent) = process.parent() {
            parent.children.lock().push(process.clone());
        }
    }
    /// Forget a process that was waited for. The caller drops what comes back without the lock.
    #[must_use]
    pub fn remove_process(&mut self, process: &Arc<Process>) -> Option<Arc<Process>> {
        let mut removed = None;
        if let Some(parent) = process.parent() {
            parent.children.lock().retain(|child| !Arc::ptr_eq(child, process));
        }
        self.change(process.group(), |slot| slot.members -= 1);
        self.change(process.session().id, |slot| slot.session_members -= 1);
        self.change(process.pid, |slot| removed = slot.process.take());
        removed
    }
    /// The process with this ID.
    pub fn process(&self, pid: Pid) -> Option<&Arc<Process>> {
        self.slots.get(&pid)?.process.as_ref()
    }
    /// The processes in a group.
    pub fn members(&self, group: Pid) -> impl Iterator<Item = &Arc<Process>> {
        let any = self.slots.get(&group).is_some_and(|slot| slot.members > 0);
        let all = any.then(|| self.slots.values().filter_map(|slot| slot.process.as_ref()));
        all.into_iter().flatten().filter(move |process| process.group() == group)
    }
    /// Move a process to another group.
    pub fn set_group(&mut self, process: &Process, group: Pid) {
        self.change(process.group(), |slot| slot.members -= 1);
        process.group_id.store(group, Ordering::Release);
        self.change(group, |slot| slot.members += 1);
    }
    /// Move a process to a session of its own.
    pub fn set_session(&mut self, process: &Process, session: Arc<Session>) -> Arc<Session> {
        let id = session.id;
        let old = core::mem::replace(&mut *process.session.lock(), session);
        self.change(old.id, |slot| slot.session_members -= 1);
        self.change(id, |slot| slot.session_members += 1);
        old
    }
    /// Whether the group has a member with a parent outside of it in the same session, that is, somebody who
    /// could continue it.
    pub fn is_orphaned(&self, group: Pid) -> bool {
        !self.members(group).any(|member| {
            member.exit_status().is_none()
                && member.parent().is_some_and(|parent| {
                    parent.group() != group && parent.session().id == member.session().id
                })
        })
    }

    fn change(&mut self, pid: Pid, f: impl FnOnce(&mut Slot)) {
        let slot = self.slots.entry(pid).or_default();
        f(slot);
        if slot.is_free() {
            self.slots.remove(&pid);
        }
    }
}

/// The session of a group, if the group has members.
pub fn group_session(group: Pid) -> Option<Pid> {
    let registry = REGISTRY.lock();
    registry.members(group).next().map(|member| member.session().id)
}

/// See [`Registry::is_orphaned`].
pub fn group_is_orphaned(group: Pid) -> bool {
    REGISTRY.lock().is_orphaned(group)
}

/// Threads of a (real) user's processes; one that has ended and was not waited for counts as one.
pub fn threads_of(user: u32) -> u64 {
    let registry = REGISTRY.lock();
    let all = registry.slots.values().filter_map(|slot| slot.process.as_ref());
    let own = all.filter(|process| process.credentials().uid == user);
    own.map(|process| process.signals.lock().threads.len().max(1) as u64).sum()
}

/// The processes in a group.
pub fn group_members(group: Pid) -> Vec<Arc<Process>> {
    let registry = REGISTRY.lock();
    registry.members(group).cloned().collect()
}

/// The processes in a session.
pub fn session_members(session: Pid) -> Vec<Arc<Process>> {
    let registry = REGISTRY.lock();
    let all = registry.slots.values().filter_map(|slot| slot.process.as_ref());
    all.filter(|process| process.session().id == session).cloned().collect()
}
