//! Kernel tasks that work for a process' requests (io_uring, io_submit).
//!
//! A program decides how many there are and what they do, so a helper counts as a thread of the
//! process that asked for it, as on Linux: for its user (RLIMIT_NPROC), for the limit of tasks of
//! the machine, and in the process' control group, where its stack and the pages that it allocates
//! are charged (memory), the number of tasks is limited (pids), and its CPU time is limited and
//! shown (cpu). A helper stays in the group where it was made. It waits for CPU time between two
//! pieces of work, where it holds no lock.

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, reserve};

use super::users::UserHelper;
use super::{Process, registry, spawn};
use crate::cgroup::cpu::CpuUse;
use crate::cgroup::{CpuTime, GroupHelper};
use crate::hw::user;
use crate::sched::{self, Thread, thread};
use crate::{Errno, Result, time};

/// Nanoseconds after which a helper without CPU time looks again whether its work was cancelled.
const LOOK: u64 = 10_000_000;

/// The kind of a helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HelperKind {
    /// Counts as a thread of its process.
    Thread,
    /// A process has at most one, which is no thread of its own on Linux: it counts with the
    /// process.
    OfProcess,
}

/// The counts and charges of a running helper, until this is dropped.
pub struct Helper {
    _user: Option<UserHelper>,
    group: GroupHelper,
    /// CPU time that was charged, in nanoseconds.
    charged: u64,
}

/// Starts a helper for the running process. `body` calls [`Helper::charge_time`] after each piece
/// of work.
///
/// # Errors
/// `EAGAIN` at a limit of tasks; `ENOMEM`.
pub fn spawn_helper(
    name: &'static str,
    kind: HelperKind,
    body: impl FnOnce(&mut Helper) + Send + 'static,
) -> Result<Arc<Thread>> {
    if registry::count() >= registry::tasks_max() {
        return Err(Errno::EAGAIN);
    }
    let mut helper = Helper::count(super::current().process(), kind)?;
    // It reaches the process' memory with the rights of the thread that made it.
    let rights = user::key_rights();
    spawn::spawn_charged(
        name,
        reserve::boxed(move || {
            user::set_key_rights(rights);
            body(&mut helper);
            helper.charge_used();
        }),
    )
}

impl Helper {
    fn count(process: &Process, kind: HelperKind) -> Result<Self> {
        let (user, group) = match kind {
            HelperKind::Thread => (Some(UserHelper::count(process)?), GroupHelper::task(&process.cgroup)?),
            HelperKind::OfProcess => (None, GroupHelper::uncounted(&process.cgroup)),
        };
        Ok(Self { _user: user, group, charged: 0 })
    }

    /// Charges the CPU time that the running helper used since the last call to its control group,
    /// and waits while the group has none left, but no longer once `is_cancelled`.
    #[inline]
    pub fn charge_time(&mut self, is_cancelled: impl FnMut() -> bool) {
        if super::quota::are_used() {
            self.wait_for_quota(is_cancelled);
        }
    }

    #[cold]
    fn wait_for_quota(&mut self, mut is_cancelled: impl FnMut() -> bool) {
        let mut used = self.charge_used();
        let Some(group) = self.group.group() else { return };
        loop {
            let seen = group.cpu.generation();
            match group.use_cpu(time::now(), core::mem::take(&mut used)) {
                CpuUse::Waits { until } if group.has_cpu_quota() && !is_cancelled() => {
                    // A kernel task gets no signals.
                    let _ = group.cpu.wait(seen, until.min(time::now() + LOOK));
                }
                _ => return,
            }
        }
    }

    /// Adds the time since the last call to the group's statistics. Returns it.
    fn charge_used(&mut self) -> u64 {
        let Some(group) = self.group.group() else { return 0 };
        let own = thread::current();
        sched::account(&own);
        let used = own.schedule.runtime.load(Ordering::Relaxed);
        let since = used.saturating_sub(core::mem::replace(&mut self.charged, used));
        group.add_past(CpuTime { user: 0, system: since });
        since
    }
}
