//! CPU time, as timers count it.

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, Weak, reserve::ArcMethods};

use super::super::Task;
use super::super::clock::Clock;
use super::super::process::Process;
use super::super::registry::{find, find_task};
use crate::{Errno, Result};

/// The source of a timer's time.
pub(super) enum TimeSource {
    /// A clock.
    Clock,
    /// The CPU time of a process.
    Process(Weak<Process>),
    /// The CPU time of a thread.
    Thread(Weak<Task>),
}

/// The threads whose CPU time a timer counts, as long as they exist.
pub(super) enum Counted {
    /// All threads of a process.
    Process(Arc<Process>),
    /// One thread.
    Thread(Arc<Task>),
    /// They have ended: the timer stands still.
    Ended,
}

impl TimeSource {
    /// Returns the source of the time that `clock` shows, for a timer of `owner`.
    ///
    /// # Errors
    /// `EINVAL` for a process that does not exist, and a thread of another process (Linux:
    /// `pid_for_clock`).
    pub(super) fn of(clock: Clock, owner: &Arc<Process>) -> Result<Self> {
        Ok(match clock {
            Clock::Process(pid) => Self::Process(find(pid).ok_or(Errno::EINVAL)?.downgrade()),
            Clock::Thread(tid) => {
                let task = find_task(tid).filter(|task| task.process().is_same(owner));
                Self::Thread(task.ok_or(Errno::EINVAL)?.downgrade())
            }
            _ => Self::Clock,
        })
    }

    /// Returns the threads that are counted; `None` for a clock.
    pub(super) fn counted(&self) -> Option<Counted> {
        match self {
            Self::Clock => None,
            Self::Process(process) => Some(process.upgrade().map_or(Counted::Ended, Counted::Process)),
            Self::Thread(task) => Some(task.upgrade().map_or(Counted::Ended, Counted::Thread)),
        }
    }
}

impl Counted {
    /// Returns the CPU time in nanoseconds, with running threads up to now. Any context.
    pub(super) fn cpu_time(&self) -> u64 {
        match self {
            Self::Process(process) => process.cpu_time(),
            Self::Thread(task) => {
                crate::sched::account(task.thread());
                task.schedule.runtime.load(Ordering::Relaxed)
            }
            Self::Ended => 0,
        }
    }

    /// Returns [`cpu_time`](Self::cpu_time) for interrupts: see [`Process::cpu_time_lately`].
    pub(super) fn cpu_time_lately(&self, now: u64) -> u64 {
        match self {
            Self::Process(process) => process.cpu_time_lately(now),
            _ => self.cpu_time(),
        }
    }

    /// Returns the earliest time at which the threads can have used `total` nanoseconds, as of
    /// `now`.
    pub(super) fn when_used(&self, total: u64, now: u64) -> u64 {
        match self {
            Self::Process(process) => process.when_used(total, now),
            Self::Thread(_) => {
                let left = total.saturating_sub(self.cpu_time());
                now.saturating_add(left.max(MIN_INTERVAL))
            }
            Self::Ended => u64::MAX,
        }
    }
}

/// Smallest interval between two counts of a process' CPU time.
pub(super) const MIN_INTERVAL: u64 = 1_000_000;

impl Process {
    /// Returns the CPU time of all threads, with running ones up to now. Any context.
    pub(super) fn cpu_time(&self) -> u64 {
        crate::sched::account_running();
        let group = self.signals.lock();
        let living: u64 =
            group.threads.iter().map(|task| task.schedule.runtime.load(Ordering::Relaxed)).sum();
        living + group.past.user + group.past.system
    }

    /// Returns [`cpu_time`](Self::cpu_time) from a count that is no older than [`MIN_INTERVAL`] at
    /// `now`. For interrupts, because there may be many threads.
    pub(super) fn cpu_time_lately(&self, now: u64) -> u64 {
        let (at, used) = *self.timers.seen.lock();
        if at != 0 && now < at.saturating_add(MIN_INTERVAL) {
            return used;
        }
        let used = self.cpu_time();
        *self.timers.seen.lock() = (now, used);
        used
    }

    /// Returns the earliest time at which the process can have used `total` nanoseconds, as of
    /// `now`.
    pub(super) fn when_used(&self, total: u64, now: u64) -> u64 {
        let left = total.saturating_sub(self.cpu_time_lately(now));
        let threads = self.signals.lock().threads.len().max(1) as u64;
        now.saturating_add((left / threads).max(MIN_INTERVAL))
    }
}
