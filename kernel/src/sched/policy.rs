//! Scheduling policies, as far as this scheduler distinguishes them: those without a real-time
//! priority share CPU time by weight.

use core::sync::atomic::Ordering;

use super::{Schedule, real_time, runqueue};

/// Part of a thread's policy and nice value that its children inherit (SCHED_RESET_ON_FORK).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFork {
    /// Children inherit both.
    Inherit,
    /// Children inherit no real-time policy, and no negative nice value.
    Reset,
}

/// A policy, with Linux' SCHED_* number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SchedPolicy {
    /// SCHED_OTHER: the nice value determines the weight.
    Other = 0,
    /// SCHED_FIFO: has a priority, and keeps the CPU until it sleeps, yields, or a higher priority
    /// needs it.
    Fifo = 1,
    /// SCHED_RR: like SCHED_FIFO, but threads of equal priority take turns.
    RoundRobin = 2,
    /// SCHED_BATCH: like SCHED_OTHER here. On Linux such a thread's wake-ups preempt less.
    Batch = 3,
    /// SCHED_IDLE: less weight than with any nice value.
    Idle = 5,
}

/// The weight of SCHED_IDLE, which is Linux' WEIGHT_IDLEPRIO.
const IDLE_WEIGHT: u64 = 3;

impl SchedPolicy {
    /// Returns the policy with this number, if the scheduler has it.
    pub const fn new(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Other),
            1 => Some(Self::Fifo),
            2 => Some(Self::RoundRobin),
            3 => Some(Self::Batch),
            5 => Some(Self::Idle),
            _ => None,
        }
    }
    /// Whether its threads have a real-time priority.
    pub const fn is_real_time(self) -> bool {
        matches!(self, Self::Fifo | Self::RoundRobin)
    }
}

impl Schedule {
    /// Returns the policy.
    pub fn policy(&self) -> SchedPolicy {
        SchedPolicy::new(self.policy.load(Ordering::Relaxed).into()).unwrap_or(SchedPolicy::Other)
    }
    /// Returns the nice value, -20..=19.
    pub fn nice(&self) -> i32 {
        i32::from(self.nice.load(Ordering::Relaxed)) - 20
    }
    /// Sets the nice value, clamped to -20..=19. The caller updates the run queue:
    /// [`super::set_nice`].
    pub(super) fn set_nice(&self, nice: i32) {
        self.nice.store((nice.clamp(-20, 19) + 20) as u8, Ordering::Relaxed);
        self.settle_weight();
    }
    /// Sets policy, nice value (clamped to -20..=19) and real-time priority. The caller updates the
    /// run queue: [`super::set_policy`].
    pub(super) fn set_policy(&self, policy: SchedPolicy, nice: i32, priority: u8) {
        self.policy.store(policy as u8, Ordering::Relaxed);
        self.set_priority(priority);
        self.set_nice(nice);
    }
    /// Derives the weight from policy, nice value and priority.
    pub(super) fn settle_weight(&self) {
        let weight = if self.effective_priority() > 0 {
            runqueue::REAL_TIME_WEIGHT
        } else if self.policy() == SchedPolicy::Idle {
            IDLE_WEIGHT
        } else {
            runqueue::weight_of_nice(self.nice())
        };
        self.weight.store(weight, Ordering::Relaxed);
    }
    /// Whether the thread's children do not inherit its scheduling privileges
    /// (SCHED_RESET_ON_FORK).
    pub fn resets_on_fork(&self) -> bool {
        self.resets_on_fork.load(Ordering::Relaxed)
    }
    /// Sets what children inherit; see [`resets_on_fork`](Self::resets_on_fork).
    pub fn set_on_fork(&self, on_fork: OnFork) {
        self.resets_on_fork.store(on_fork == OnFork::Reset, Ordering::Relaxed);
    }
    /// Copies policy and priority from the thread's creator. A creator with reset-on-fork passes on
    /// no negative nice value, and not the flag itself (Linux: `sched_fork`).
    pub fn inherit(&self, maker: &Self) {
        let (policy, priority) = (maker.policy(), maker.priority());
        // Another thread may be changing the creator's fields.
        let is_between = policy.is_real_time() != (priority > 0);
        match policy {
            _ if is_between => self.set_policy(SchedPolicy::Other, maker.nice().max(0), 0),
            policy if !maker.resets_on_fork() => self.set_policy(policy, maker.nice(), priority),
            policy if policy.is_real_time() => self.set_policy(SchedPolicy::Other, 0, 0),
            policy => self.set_policy(policy, maker.nice().max(0), 0),
        }
        self.affinity.store(maker.affinity.load(Ordering::Relaxed), Ordering::Relaxed);
        self.virtual_runtime.store(maker.virtual_runtime.load(Ordering::Relaxed), Ordering::Relaxed);
        self.settle(real_time::FAIR_START);
    }
}

#[cfg(test)]
mod tests {
    use freehold_machine::CpuId;

    use super::super::Idle;
    use super::*;

    fn schedule() -> Schedule {
        Schedule::new(Idle::No, CpuId(0))
    }

    #[test]
    fn sched_idle_weighs_less_than_any_nice_value_and_keeps_that_value() {
        let share = schedule();
        share.set_policy(SchedPolicy::Idle, -20, 0);
        assert!(share.weight.load(Ordering::Relaxed) < runqueue::weight_of_nice(19));
        share.set_nice(-5);
        assert_eq!((share.policy(), share.nice()), (SchedPolicy::Idle, -5));
        assert!(share.weight.load(Ordering::Relaxed) < runqueue::weight_of_nice(19));
        share.set_policy(SchedPolicy::Batch, share.nice(), 0);
        assert_eq!(share.weight.load(Ordering::Relaxed), runqueue::weight_of_nice(-5));
    }

    #[test]
    fn a_policy_is_inherited_and_a_negative_nice_value_may_be_reset() {
        let (maker, child, grandchild) = (schedule(), schedule(), schedule());
        maker.set_policy(SchedPolicy::Batch, -7, 0);
        child.inherit(&maker);
        assert_eq!((child.policy(), child.nice()), (SchedPolicy::Batch, -7));
        maker.set_on_fork(OnFork::Reset);
        child.inherit(&maker);
        assert_eq!((child.policy(), child.nice(), child.resets_on_fork()), (SchedPolicy::Batch, 0, false));
        maker.set_nice(4);
        grandchild.inherit(&maker);
        assert_eq!(grandchild.nice(), 4);
    }

    #[test]
    fn a_priority_is_inherited_unless_a_fork_resets() {
        let (maker, child, other) = (schedule(), schedule(), schedule());
        maker.set_policy(SchedPolicy::Fifo, 0, 7);
        maker.settle(0);
        child.inherit(&maker);
        assert_eq!((child.policy(), child.effective_priority()), (SchedPolicy::Fifo, 7));
        assert_eq!(child.virtual_runtime.load(Ordering::Relaxed), real_time::key(7));
        maker.set_on_fork(OnFork::Reset);
        other.inherit(&maker);
        assert_eq!((other.policy(), other.effective_priority()), (SchedPolicy::Other, 0));
        assert!(other.virtual_runtime.load(Ordering::Relaxed) >= real_time::FAIR_START);
    }
}
