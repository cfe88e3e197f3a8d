//! Names of processes, threads and groups that stay the same: an ID that is used again does not
//! mean what it meant before (Linux: a reference to `struct pid`).
//!
//! A handle keeps nothing alive. Task context; each look takes the registry's lock.

use freehold_collections::Arc;

use super::{IdSlot, ProcessWalk, REGISTRY, Registry, group_members, pid_by_number};
use crate::task::process::Process;
use crate::task::{Pid, Task};

/// Kind of thing that an ID stands for, where the ID can stand for more than one.
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
    /// The use of an ID now.
    pub fn of(id: Pid) -> Option<Self> {
        let registry = REGISTRY.lock();
        registry.slots.get(&id).filter(|slot| slot.serial != 0).map(|slot| Self { id, serial: slot.serial })
    }

    /// The use now of the ID with this number in the caller's namespace.
    pub fn by_number(number: Pid) -> Option<Self> {
        Self::of(pid_by_number(number)?)
    }

    /// The ID.
    pub const fn id(self) -> Pid {
        self.id
    }

    fn slot(self, registry: &Registry) -> Option<&IdSlot> {
        registry.slots.get(&self.id).filter(|slot| slot.serial == self.serial)
    }

    /// Whether there is such a thread, process or group.
    pub fn is_in_use(self, role: IdRole) -> bool {
        let registry = REGISTRY.lock();
        self.slot(&registry).is_some_and(|slot| match role {
            IdRole::Thread => slot.task.strong_count() > 0,
            IdRole::Process => slot.process.is_some(),
            IdRole::Group => slot.members > 0,
        })
    }

    /// The thread.
    pub fn task(self) -> Option<Arc<Task>> {
        self.slot(&REGISTRY.lock())?.task.upgrade()
    }

    /// The process, or that of the thread.
    pub fn process(self) -> Option<Arc<Process>> {
        let own = self.slot(&REGISTRY.lock())?.process.clone();
        own.or_else(|| Some(self.task()?.process().clone()))
    }

    /// Visits the processes in the group.
    pub fn members(self) -> Option<ProcessWalk> {
        self.is_in_use(IdRole::Group).then(|| group_members(self.id))
    }
}
