//! Permanent names of processes, threads and groups. An ID that is used again has another handle
//! (Linux: a reference to `struct pid`).
//!
//! A handle keeps nothing alive. Task context; each use takes the registry's lock.

use freehold_collections::Arc;

use super::{IdSlot, ProcessWalk, REGISTRY, Registry, group_members, pid_by_number};
use crate::task::process::Process;
use crate::task::{Pid, Task};

/// The kinds of objects that an ID can name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdRole {
    /// A thread.
    Thread,
    /// A process.
    Process,
    /// A process group.
    Group,
}

/// One use of an ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdHandle {
    id: Pid,
    serial: usize,
}

impl IdHandle {
    /// Returns the present use of an ID.
    pub fn of(id: Pid) -> Option<Self> {
        let registry = REGISTRY.lock();
        registry.slots.get(&id).filter(|slot| slot.serial != 0).map(|slot| Self { id, serial: slot.serial })
    }

    /// Returns the present use of the ID with this number in the caller's namespace.
    pub fn by_number(number: Pid) -> Option<Self> {
        Self::of(pid_by_number(number)?)
    }

    /// Returns the ID.
    pub const fn id(self) -> Pid {
        self.id
    }

    fn slot(self, registry: &Registry) -> Option<&IdSlot> {
        registry.slots.get(&self.id).filter(|slot| slot.serial == self.serial)
    }

    /// Whether the thread, process or group still exists.
    pub fn is_in_use(self, role: IdRole) -> bool {
        let registry = REGISTRY.lock();
        self.slot(&registry).is_some_and(|slot| match role {
            IdRole::Thread => slot.task.strong_count() > 0,
            IdRole::Process => slot.process.is_some(),
            IdRole::Group => slot.members > 0,
        })
    }

    /// Returns the thread.
    pub fn task(self) -> Option<Arc<Task>> {
        self.slot(&REGISTRY.lock())?.task.upgrade()
    }

    /// Returns the process. For a thread's handle it is the process of the thread.
    pub fn process(self) -> Option<Arc<Process>> {
        let own = self.slot(&REGISTRY.lock())?.process.clone();
        own.or_else(|| Some(self.task()?.process().clone()))
    }

    /// Visits the processes in the group.
    pub fn members(self) -> Option<ProcessWalk> {
        self.is_in_use(IdRole::Group).then(|| group_members(self.id))
    }
}
