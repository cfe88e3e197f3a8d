//! Freezing a process with its control group (cgroup.freeze).
//!
//! The flag `frozen` is in the signal state of a process. It depends on the setting of a group and
//! on the group of the process. Code that changes one of them calls [`Process::look_at_freezer`]
//! afterwards. That call stores the state that it finds, so the last of several calls stores the
//! current state.
//!
//! A thread freezes on its way to user mode. There, and in a stop of job control, it counts as
//! frozen. A thread in a ptrace stop does not, unlike on Linux. While a thread is frozen, only
//! SIGKILL has an effect (Linux: `do_freezer_trap`).

use freehold_collections::Arc;

use super::cgroup_members::for_each_member;
use super::{Process, Task};
use crate::cgroup::Group;
use crate::cgroup::member::FrozenChange;
use crate::sched::{self, Sleep};

impl Process {
    /// Checks whether the threads are to be frozen, and freezes or thaws them.
    pub fn look_at_freezer(&self) {
        loop {
            let freezes = self.cgroup.is_freezing();
            {
                let mut group = self.signals.lock();
                if group.frozen != freezes {
                    group.frozen = freezes;
                    for thread in &group.threads {
                        if freezes {
                            thread.interrupt();
                        }
                        sched::wake(thread, &[Sleep::Stopped, Sleep::Frozen]);
                    }
                }
            }
            if self.cgroup.is_freezing() == freezes {
                return;
            }
        }
    }
}

impl Task {
    /// Waits until the control group is thawed, or the process ends or stops.
    pub(super) fn stand_still(&self) {
        let mut standing = StandsStill::new(self.process());
        loop {
            self.prepare_to_sleep(Sleep::Frozen);
            {
                let group = self.process().signals.lock();
                let ends = group.exit.is_some() || group.exec.is_some_and(|by| by != self.tid());
                if !group.frozen || ends || self.has_finished() {
                    break;
                }
            }
            standing.set(FrozenChange::Stands);
            sched::block(self.thread(), None);
        }
        self.finish_sleep();
    }
}

/// The count of a thread as frozen, which ends when this is dropped.
pub(super) struct StandsStill<'a> {
    process: &'a Arc<Process>,
    is_counted: bool,
}

impl<'a> StandsStill<'a> {
    /// Makes a thread's entry that is not counted yet.
    pub(super) fn new(process: &'a Arc<Process>) -> Self {
        Self { process, is_counted: false }
    }
    /// Counts the thread as frozen, or ends that.
    pub(super) fn set(&mut self, change: FrozenChange) {
        let counts = change == FrozenChange::Stands;
        if self.is_counted != counts {
            self.is_counted = counts;
            self.process.cgroup.count_frozen(change);
        }
    }
}

impl Drop for StandsStill<'_> {
    fn drop(&mut self) {
        self.set(FrozenChange::GoesOn);
    }
}

/// Makes all processes of a group and below check whether they are to be frozen.
pub fn look_at_all(group: &Group) {
    for_each_member(group, |process| process.look_at_freezer());
}
