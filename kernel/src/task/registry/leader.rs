//! Changes of the thread that has its process' ID: see [`exec::takeover`].
//!
//! [`exec::takeover`]: crate::task::exec

use freehold_collections::{
    Arc,
    reserve::{self, ArcMethods},
};

use super::Registry;
use crate::task::{Pid, Task, trace::Tracee};

impl Registry {
    fn task(&self, tid: Pid) -> Option<Arc<Task>> {
        self.slots.get(&tid)?.task.upgrade()
    }
    /// Whether no thread has this ID.
    pub fn is_without_task(&self, tid: Pid) -> bool {
        self.task(tid).is_none()
    }
    /// Whether another thread has the ID of `task` now.
    pub fn is_another(&self, task: &Arc<Task>) -> bool {
        self.task(task.tid()).is_some_and(|known| !known.is_same(task))
    }
    /// Returns the thread that a tracer knows as `tracee`.
    pub fn traced_task(&self, tracee: &Tracee) -> Option<Arc<Task>> {
        self.task(tracee.tid()).filter(|task| task.process().pid == tracee.pid)
    }
    /// Gives a thread its process' ID, which no thread has, and releases the thread's own ID.
    pub fn take_over(&mut self, task: &Arc<Task>) {
        let former = task.tid();
        self.change(task.process().pid, |slot| slot.task = task.downgrade());
        task.set_leader();
        self.change(former, |slot| slot.task = reserve::no_weak());
    }
}
