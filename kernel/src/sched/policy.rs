//! Scheduling policies, as far as this scheduler tells them apart: all share CPU time by weight.

use core::sync::atomic::Ordering;

use super::{Schedule, runqueue};

/// Part of a thread's policy and nice value that its children inherit (SCHED_RESET_ON_FORK).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFork {
    /// Children inherit both.
    Inherit,
    /// Children inherit no negative nice value.
    Reset,
}

/// A policy, with Linux' SCHED_* number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SchedPolicy {
    /// SCHED_OTHER: the nice value says the weight.
    Other = 0,
    /// SCHED_BATCH: the same here. Linux lets such a thread's wake-ups preempt less.
    Batch = 3,
    /// SCHED_IDLE: less weight than any nice value has.
    Idle = 5,
}

/// The weight of SCHED_IDLE, which is Linux' WEIGHT_IDLEPRIO.
const IDLE_WEIGHT: u64 = 3;

impl SchedPolicy {
    /// Returns the policy with this number, if the scheduler has it.
    pub const fn new(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Other),
            3 => Some(Self::Batch),
            5 => Some(Self::Idle),
            _ => None,
        }
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
    /// Sets the nice value; clamped to -20..=19.
    pub fn set_nice(&self, nice: i32) {
        self.set_policy(self.policy(), nice);
    }
    /// Sets policy and nice value, which is clamped to -20..=19.
    pub fn set_policy(&self, policy: SchedPolicy, nice: i32) {
        let nice = nice.clamp(-20, 19);
        self.policy.store(policy as u8, Ordering::Relaxed);
        self.nice.store((nice + 20) as u8, Ordering::Relaxed);
        let weight = if policy == SchedPolicy::Idle { IDLE_WEIGHT } else { runqueue::weight_of_nice(nice) };
        self.weight.store(weight, Ordering::Relaxed);
    }
    /// Whether what the thread makes does not inherit its privileges in scheduling
    /// (SCHED_RESET_ON_FORK).
    pub fn resets_on_fork(&self) -> bool {
        self.resets_on_fork.load(Ordering::Relaxed)
    }
    /// Says what children get; see [`resets_on_fork`](Self::resets_on_fork).
    pub fn set_on_fork(&self, on_fork: OnFork) {
        self.resets_on_fork.store(on_fork == OnFork::Reset, Ordering::Relaxed);
    }
    /// Takes over the share of the thread's maker. A maker that resets passes on no negative nice
    /// value, and not that it resets (Linux: `sched_fork`).
    pub fn inherit(&self, maker: &Self) {
        let nice = if maker.resets_on_fork() { maker.nice().max(0) } else { maker.nice() };
        self.set_policy(maker.policy(), nice);
        self.affinity.store(maker.affinity.load(Ordering::Relaxed), Ordering::Relaxed);
        self.virtual_runtime.store(maker.virtual_runtime.load(Ordering::Relaxed), Ordering::Relaxed);
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
        share.set_policy(SchedPolicy::Idle, -20);
        assert!(share.weight.load(Ordering::Relaxed) < runqueue::weight_of_nice(19));
        share.set_nice(-5);
        assert_eq!((share.policy(), share.nice()), (SchedPolicy::Idle, -5));
        assert!(share.weight.load(Ordering::Relaxed) < runqueue::weight_of_nice(19));
        share.set_policy(SchedPolicy::Batch, share.nice());
        assert_eq!(share.weight.load(Ordering::Relaxed), runqueue::weight_of_nice(-5));
    }

    #[test]
    fn a_policy_is_inherited_and_a_negative_nice_value_may_be_reset() {
        let (maker, child, grandchild) = (schedule(), schedule(), schedule());
        maker.set_policy(SchedPolicy::Batch, -7);
        child.inherit(&maker);
        assert_eq!((child.policy(), child.nice()), (SchedPolicy::Batch, -7));
        maker.set_on_fork(OnFork::Reset);
        child.inherit(&maker);
        assert_eq!((child.policy(), child.nice(), child.resets_on_fork()), (SchedPolicy::Batch, 0, false));
        maker.set_nice(4);
        grandchild.inherit(&maker);
        assert_eq!(grandchild.nice(), 4);
    }
}
