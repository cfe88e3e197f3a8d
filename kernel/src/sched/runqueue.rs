//! One CPU's run queue: the choice of its next task.
//!
//! Every runnable task has a virtual runtime, which is its CPU time divided by its weight. The task
//! with the smallest value runs next, so that over time all get shares in proportion to their
//! weights. A task that slept is placed at most [`WAKE_BONUS`] behind the others, so that it runs
//! soon but does not get the time back for which it slept. Threads with a real-time priority come
//! before all others ([`real_time`]).

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, Vec};
use freehold_machine::CpuId;

use super::Thread;
use super::heap::IndexedHeap;
use super::real_time::{self, Throttle};

/// Nanoseconds that a task runs before another one with the same precedence does.
pub const SLICE: u64 = 4_000_000;
/// How far behind the others a woken task may be placed (nanoseconds of virtual runtime).
pub const WAKE_BONUS: u64 = 3_000_000;
/// How much less virtual runtime than the running task a woken one needs to take its place at once.
pub const WAKE_GRANULARITY: u64 = 1_000_000;
/// The weight of nice 0.
pub const UNIT_WEIGHT: u64 = 1024;
/// The weight of threads with a real-time priority, whose virtual runtime does not change.
pub const REAL_TIME_WEIGHT: u64 = u64::MAX;

/// Returns the weight of a nice value, -20..=19: each step is a factor of about 1.25.
pub fn weight_of_nice(nice: i32) -> u64 {
    const STEPS: [u64; 40] = weights();
    STEPS[(nice.clamp(-20, 19) + 20) as usize]
}

const fn weights() -> [u64; 40] {
    let mut weights = [UNIT_WEIGHT; 40];
    let mut up = 19;
    while up > 0 {
        weights[up] = weights[up + 1] * 5 / 4;
        up -= 1;
    }
    weights[0] = weights[1] * 5 / 4;
    let mut down = 21;
    while down < 40 {
        let weight = weights[down - 1] * 4 / 5;
        weights[down] = if weight == 0 { 1 } else { weight };
        down += 1;
    }
    weights
}

/// The most tasks that an idle CPU looks at in another one's queue, with interrupts off (Linux:
/// `sched_nr_migrate`).
pub(super) const LOOKED_AT: usize = 32;

/// The state behind a CPU's run-queue lock.
#[derive(Default)]
pub struct RunQueue {
    pub(super) waiting: IndexedHeap<Arc<Thread>>,
    /// The running task; `None` before this CPU takes part in scheduling.
    pub current: Option<Arc<Thread>>,
    /// The task that ran before `current`, which has not released it yet.
    pub previous: Option<Arc<Thread>>,
    /// Lower bound of the virtual runtimes here; never decreases.
    floor: u64,
    /// Tasks that thieves looked at in vain; see [`steal`](Self::steal).
    looked_at: usize,
    /// When `current` got the CPU, or when its time was last accounted.
    pub since: u64,
    /// Number of switches so far.
    pub switches: u64,
    /// Nanoseconds spent idle.
    pub idle: u64,
    /// Ticks of the time-stamp counter in user mode.
    pub user_ticks: u64,
    pub(super) throttle: Throttle,
}

impl RunQueue {
    /// Makes an empty queue.
    pub const fn new() -> Self {
        Self {
            waiting: IndexedHeap::new(),
            current: None,
            previous: None,
            floor: real_time::FAIR_START,
            looked_at: 0,
            since: 0,
            switches: 0,
            idle: 0,
            user_ticks: 0,
            throttle: Throttle::new(),
        }
    }
    /// Returns the number of tasks that wait for the CPU.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
    /// Returns how many tasks can wait.
    pub fn room(&self) -> usize {
        self.waiting.room()
    }
    /// See [`IndexedHeap::give_room`].
    #[must_use]
    pub fn give_room(&mut self, buffer: Vec<(u64, u64, Arc<Thread>)>) -> Vec<(u64, u64, Arc<Thread>)> {
        self.waiting.give_room(buffer)
    }
    /// Adds a task that slept, or comes from another CPU.
    pub fn enqueue_woken(&mut self, task: Arc<Thread>) {
        let runtime = &task.schedule.virtual_runtime;
        let least = self.floor.saturating_sub(WAKE_BONUS);
        // A runtime far above this queue's comes from another, older queue: the task starts at the
        // floor.
        let own = runtime.load(Ordering::Relaxed);
        if own < real_time::END {
            return self.enqueue_real_time(task, real_time::AmongEquals::Last);
        }
        let placed = if own > self.floor + SLICE { self.floor + SLICE } else { own.max(least) };
        runtime.store(placed, Ordering::Relaxed);
        self.insert(placed, task);
    }
    /// Adds a task that could continue to run.
    pub fn enqueue(&mut self, task: Arc<Thread>) {
        let key = task.schedule.virtual_runtime.load(Ordering::Relaxed);
        if key < real_time::END {
            return self.requeue_real_time(task);
        }
        self.insert(key, task);
    }
    #[inline]
    fn insert(&mut self, key: u64, task: Arc<Thread>) {
        // Room for every task is made when it is created, before it can be here.
        assert!(self.waiting.insert(key, task).is_ok(), "a run queue has room for every task");
    }
    /// Removes and returns the next task.
    pub fn dequeue(&mut self) -> Option<Arc<Thread>> {
        let (_, task) = self.waiting.pop()?;
        self.floor = self.floor.max(task.schedule.virtual_runtime.load(Ordering::Relaxed));
        Some(task)
    }
    /// Returns the lower bound of the virtual runtimes of tasks without a real-time priority.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }
    /// Removes and returns a task that may run on `cpu` and is not in the middle of leaving this
    /// CPU. Looks at [`LOOKED_AT`] tasks only; the next call continues after them.
    pub fn steal(&mut self, cpu: CpuId) -> Option<Arc<Thread>> {
        let stealable = |task: &Arc<Thread>| {
            task.schedule.affinity().contains(cpu) && !task.schedule.on_cpu.load(Ordering::Acquire)
        };
        let from = self.looked_at;
        if let Some(at) = self.waiting.find_some(from, LOOKED_AT, stealable) {
            return self.waiting.remove(at).map(|(_, task)| task);
        }
        self.looked_at = from.wrapping_add(LOOKED_AT);
        None
    }
    /// Removes `task`, if it waits here and is not in the middle of leaving this CPU.
    pub fn take(&mut self, task: &Thread) -> Option<Arc<Thread>> {
        let at = task.schedule.position.load(Ordering::Relaxed).checked_sub(1)?;
        if task.schedule.on_cpu.load(Ordering::Acquire) {
            return None;
        }
        self.waiting.remove(at).map(|(_, task)| task)
    }
    /// Returns how many tasks that wait here, on `cpu`, are not at their stored position, or not
    /// runnable. Unless a rule was broken, it is 0.
    pub fn misplaced(&self, cpu: CpuId) -> usize {
        let wrong = |(at, task): &(usize, &Arc<Thread>)| {
            let schedule = &task.schedule;
            let says = (schedule.position.load(Ordering::Relaxed), schedule.cpu.load(Ordering::Relaxed));
            says != (at + 1, cpu.0) || schedule.state.load(Ordering::Relaxed) != super::RUNNABLE
        };
        self.waiting.iter().enumerate().filter(wrong).count()
    }
    /// Charges `current` with the time until `now`.
    pub fn account(&mut self, now: u64) {
        // The caller may have read the clock before it had the lock, or another CPU's: no time is
        // counted twice.
        let ran = now.saturating_sub(self.since);
        self.since += ran;
        if let Some(task) = &self.current {
            if task.schedule.is_idle {
                self.idle += ran;
            } else {
                let schedule = &task.schedule;
                schedule.runtime.fetch_add(ran, Ordering::Relaxed);
                self.user_ticks += schedule.user.count();
                match schedule.weight.load(Ordering::Relaxed) {
                    0 | REAL_TIME_WEIGHT => self.account_real_time(ran),
                    weight => {
                        let share = ran * UNIT_WEIGHT / weight;
                        schedule.virtual_runtime.fetch_add(share, Ordering::Relaxed);
                    }
                }
            }
        }
    }
    /// Whether `current` should give up the CPU to the first waiting task.
    pub fn should_preempt(&self, granularity: u64) -> bool {
        let Some((first, _)) = self.waiting.first() else { return false };
        self.current.as_ref().is_none_or(|current| {
            current.schedule.is_idle
                || first + granularity < current.schedule.virtual_runtime.load(Ordering::Relaxed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nice_step_is_worth_a_quarter() {
        assert_eq!(weight_of_nice(0), 1024);
        assert_eq!(weight_of_nice(-1), 1280);
        assert!(weight_of_nice(-20) > 80_000);
        assert!((10..20).contains(&weight_of_nice(19)));
        assert!((-20..19).all(|nice| weight_of_nice(nice) > weight_of_nice(nice + 1)));
    }
}
