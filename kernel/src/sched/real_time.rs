//! Real-time threads: SCHED_FIFO and SCHED_RR, priorities that a lock's owner inherits, and the
//! limit for their CPU time.
//!
//! The virtual runtime of a thread with a real-time priority depends only on the priority, and is
//! below that of all other threads ([`key`]). So a run queue, which takes the thread with the
//! smallest value, needs no other rule. Adjacent priorities differ by more than a woken thread must
//! be ahead to take the CPU at once. Among equals the first to arrive runs. A preempted thread
//! stays before its equals. A thread that yields, or whose turn is over (SCHED_RR), moves behind
//! them.
//!
//! On each CPU they may run for `sched_rt_runtime_us` of every `sched_rt_period_us`, if others
//! wait. Once that is used up, [`BEHIND`] is added to the keys of the waiting ones. That puts them
//! behind all others until the period is over. While any thread waits, the timer ends a slice, so a
//! CPU checks the limit every few milliseconds.

use core::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};

use freehold_collections::Arc;
use freehold_machine::CpuId;

use super::runqueue::RunQueue;
use super::{SchedPolicy, Schedule, Thread, cpu, enqueue_on, online, want};
use crate::{Errno, Result};

/// The highest priority; 1 is the lowest.
pub const MOST_PRIORITY: u8 = 99;
/// Virtual runtimes of threads with a priority are below this.
pub(super) const END: u64 = 1 << 28;
/// Virtual runtimes of all other threads begin here.
pub(super) const FAIR_START: u64 = 1 << 32;
/// Added to the keys of real-time threads that have used up their time.
const BEHIND: u64 = 1 << 62;

/// Microseconds of each period in which real-time threads may run; negative: no limit.
static RUNTIME: AtomicI64 = AtomicI64::new(950_000);
/// The period in microseconds.
static PERIOD: AtomicU64 = AtomicU64::new(1_000_000);
/// Length of a turn of SCHED_RR (nanoseconds).
pub const TURN: u64 = 100_000_000;

/// Returns the virtual runtime of a priority, in steps of 2 ms.
pub(super) const fn key(priority: u8) -> u64 {
    (MOST_PRIORITY.saturating_sub(priority) as u64) << 21
}

/// A thread's real-time scheduling state.
#[derive(Debug, Default)]
pub(super) struct RealTime {
    /// The priority that belongs to its policy; 0 for none.
    own: AtomicU8,
    /// The priority that it inherits from waiters for its locks; 0 for none.
    inherited: AtomicU8,
    /// Nanoseconds left of its turn. 0: it moves behind its equals.
    turn: AtomicU64,
}

/// The time that real-time threads of a CPU have used.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Start of the period.
    since: u64,
    used: u64,
    /// [`BEHIND`], or 0.
    behind: u64,
}

impl Throttle {
    pub(super) const fn new() -> Self {
        Self { since: 0, used: 0, behind: 0 }
    }
    /// Adds `ran` up to `now`. Returns whether the threads are behind the others from now on, or no
    /// longer.
    fn count(&mut self, now: u64, ran: u64) -> bool {
        let before = self.behind;
        if now.saturating_sub(self.since) >= PERIOD.load(Ordering::Relaxed) * 1000 {
            // Time before the period does not count, because perhaps no other thread waited.
            (self.since, self.used, self.behind) = (now, 0, 0);
        } else {
            self.used += ran;
        }
        let limit = RUNTIME.load(Ordering::Relaxed);
        if u64::try_from(limit).is_ok_and(|limit| self.used > limit * 1000) {
            self.behind = BEHIND;
        }
        self.behind != before
    }
}

/// The position of a thread among its equals.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AmongEquals {
    First,
    Last,
}

impl RunQueue {
    /// Adds a thread with a priority to the queue.
    #[cold]
    #[inline(never)]
    pub(super) fn enqueue_real_time(&mut self, task: Arc<Thread>, place: AmongEquals) {
        let key = task.schedule.virtual_runtime.load(Ordering::Relaxed) + self.throttle.behind;
        let inserted = match place {
            AmongEquals::First => self.waiting.insert_first(key, task),
            AmongEquals::Last => self.waiting.insert(key, task),
        };
        assert!(inserted.is_ok(), "a run queue has room for every task");
    }
    /// Adds a thread with a priority that had the CPU and can continue.
    #[cold]
    #[inline(never)]
    pub(super) fn requeue_real_time(&mut self, task: Arc<Thread>) {
        let turn = &task.schedule.real_time.turn;
        let place = if turn.load(Ordering::Relaxed) == 0 { AmongEquals::Last } else { AmongEquals::First };
        if place == AmongEquals::Last {
            turn.store(task.schedule.full_turn(), Ordering::Relaxed);
        }
        self.enqueue_real_time(task, place);
    }
    /// Charges the running thread, which has a priority.
    #[cold]
    #[inline(never)]
    pub(super) fn account_real_time(&mut self, ran: u64) {
        if let Some(task) = &self.current {
            let turn = &task.schedule.real_time.turn;
            turn.store(turn.load(Ordering::Relaxed).saturating_sub(ran), Ordering::Relaxed);
        }
        self.throttle(ran);
    }
    /// Checks whether a period is over.
    pub(super) fn end_period(&mut self) {
        if self.throttle.behind != 0 {
            self.throttle(0);
        }
    }

    fn throttle(&mut self, ran: u64) {
        if self.throttle.count(self.since, ran) {
            let behind = self.throttle.behind;
            self.waiting.change_keys(|key, task| {
                let own = task.schedule.virtual_runtime.load(Ordering::Relaxed);
                if own < END { own + behind } else { key }
            });
        }
    }
}

impl Schedule {
    /// Returns the real-time priority of its policy; 0 for none.
    pub fn priority(&self) -> u8 {
        self.real_time.own.load(Ordering::Relaxed)
    }
    /// Returns the priority that it runs with: its own or an inherited one; 0 for none.
    pub fn effective_priority(&self) -> u8 {
        self.priority().max(self.real_time.inherited.load(Ordering::Relaxed))
    }
    pub(super) fn set_priority(&self, priority: u8) {
        self.real_time.own.store(priority, Ordering::Relaxed);
    }
    fn full_turn(&self) -> u64 {
        if self.policy() == SchedPolicy::RoundRobin { TURN } else { u64::MAX }
    }
    /// Ends the thread's turn.
    pub(super) fn end_turn(&self) {
        self.real_time.turn.store(0, Ordering::Relaxed);
    }
    /// Sets the values by which the queues order threads. A thread without priority begins at
    /// `floor`.
    pub(super) fn settle(&self, floor: u64) {
        let priority = self.effective_priority();
        let runtime = &self.virtual_runtime;
        if priority > 0 {
            runtime.store(key(priority), Ordering::Relaxed);
            self.real_time.turn.store(self.full_turn(), Ordering::Relaxed);
        } else if runtime.load(Ordering::Relaxed) < FAIR_START {
            runtime.store(floor.max(FAIR_START), Ordering::Relaxed);
        }
        self.settle_weight();
    }
}

/// Changes policy, nice value (clamped to -20..=19) and real-time priority of `task`. The priority
/// is 1 to [`MOST_PRIORITY`] for SCHED_FIFO and SCHED_RR, and 0 for the others.
pub fn set_policy(task: &Thread, policy: SchedPolicy, nice: i32, priority: u8) {
    apply(task, &|schedule| schedule.set_policy(policy, nice, priority));
}

/// Changes the nice value of `task`, clamped to -20..=19.
pub fn set_nice(task: &Thread, nice: i32) {
    apply(task, &|schedule| schedule.set_nice(nice));
}

/// Sets the priority that `task` inherits; 0 for none. Returns whether its effective priority
/// changes.
pub fn inherit_priority(task: &Thread, priority: u8) -> bool {
    let before = task.schedule.effective_priority();
    if task.schedule.real_time.inherited.swap(priority, Ordering::Relaxed) == priority {
        return false;
    }
    let is_other = task.schedule.effective_priority() != before;
    if is_other {
        apply(task, &|_| {});
    }
    is_other
}

/// Makes `change`, moves `task` to its new position, and makes its CPU check that. This happens
/// under the lock of its run queue, so that weight and virtual runtime match the same policy and
/// priority.
fn apply(task: &Thread, change: &dyn Fn(&Schedule)) {
    loop {
        let home = CpuId(task.schedule.cpu.load(Ordering::Relaxed));
        let mut queue = cpu(home).queue.lock();
        if task.schedule.cpu.load(Ordering::Relaxed) != home.0 {
            continue;
        }
        let at = task.schedule.position.load(Ordering::Relaxed).checked_sub(1);
        let waiting = at.and_then(|at| queue.waiting.remove(at));
        let before = task.schedule.virtual_runtime.load(Ordering::Relaxed);
        let floor = queue.floor();
        change(&task.schedule);
        task.schedule.settle(floor);
        if let Some((_, waiting)) = waiting {
            queue.enqueue(waiting);
        }
        let falls = before < END && task.schedule.virtual_runtime.load(Ordering::Relaxed) > before;
        let preempts = falls || queue.should_preempt(0);
        drop(queue);
        if preempts {
            want(home);
        }
        return;
    }
}

/// Called when `task`, which has a priority, was woken and waits on `home`. Another CPU that it may
/// run on may be running a thread with a lower priority.
#[cold]
#[inline(never)]
pub(super) fn push(task: &Thread, home: CpuId) {
    let schedule = &task.schedule;
    let own = schedule.virtual_runtime.load(Ordering::Relaxed);
    for target in online().without(home).iter().filter(|&id| schedule.affinity().contains(id)) {
        let runs_less = {
            let queue = cpu(target).queue.lock();
            queue
                .current
                .as_ref()
                .is_some_and(|current| current.schedule.virtual_runtime.load(Ordering::Relaxed) > own)
        };
        if !runs_less {
            continue;
        }
        let mut queue = cpu(home).queue.lock();
        if schedule.cpu.load(Ordering::Relaxed) != home.0 {
            return;
        }
        let Some(waiting) = queue.take(task) else { return };
        task.belongs_to(target);
        drop(queue);
        return enqueue_on(waiting, target);
    }
}

/// Returns the microseconds of each period in which real-time threads may run; -1: no limit.
pub fn runtime_limit() -> i64 {
    RUNTIME.load(Ordering::Relaxed)
}
/// Returns the period in microseconds.
pub fn period() -> u64 {
    PERIOD.load(Ordering::Relaxed)
}
/// Sets the time that real-time threads may run in each period.
///
/// # Errors
/// `EINVAL` for more than a period, or less than -1.
pub fn set_runtime_limit(microseconds: i64) -> Result<()> {
    if microseconds < -1 || microseconds > period() as i64 {
        return Err(Errno::EINVAL);
    }
    RUNTIME.store(microseconds, Ordering::Relaxed);
    Ok(())
}
/// Sets the period: 1 to 2^31 - 1 microseconds.
///
/// # Errors
/// `EINVAL`.
pub fn set_period(microseconds: u64) -> Result<()> {
    let shortest = runtime_limit().max(1) as u64;
    if !(shortest..=i32::MAX as u64).contains(&microseconds) {
        return Err(Errno::EINVAL);
    }
    PERIOD.store(microseconds, Ordering::Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::runqueue::WAKE_GRANULARITY;
    use super::*;

    #[test]
    fn a_higher_priority_is_ahead_by_more_than_a_wake_up_needs() {
        assert!((1..MOST_PRIORITY).all(|priority| key(priority) > key(priority + 1) + WAKE_GRANULARITY));
        assert!(key(1) < END && key(MOST_PRIORITY) == 0);
    }

    #[test]
    fn real_time_threads_leave_a_part_of_each_period_to_others() {
        let mut throttle = Throttle::new();
        let start = 5_000_000_000;
        assert!(!throttle.count(start, 900_000_000), "before the period");
        assert!(!throttle.count(start + 900_000_000, 900_000_000));
        assert!(throttle.count(start + 960_000_000, 60_000_000));
        assert_eq!(throttle.behind, BEHIND);
        assert!(!throttle.count(start + 990_000_000, 0));
        assert!(throttle.count(start + 1_000_000_000, 0));
        // Ten seconds in which no thread waited.
        assert!(!throttle.count(start + 12_000_000_000, 10_000_000_000));
        assert_eq!(throttle.behind, 0);
    }
}
