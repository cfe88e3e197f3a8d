//! Waiting for CPU time when a control group's quota is used up (cpu.max).
//!
//! A thread has a [`Meter`] if its group, or a group above, has a quota. The meter is a timer that
//! every few milliseconds makes the running thread pass the code before the return to user mode.
//! There it charges the CPU time that it used since the last charge
//! ([`Group::use_cpu`](crate::cgroup::Group::use_cpu)), and waits until some quota is left. So no
//! thread waits for CPU time in the kernel, with locks that others need, and a killed thread
//! continues at once. A thread that ends charges the remaining time, and a new thread checks the
//! quota first. So short-lived processes cannot evade a quota.
//!
//! A call that changes a group's quota, or the group of a process, calls [`Process::look_at_quota`]
//! afterwards, and wakes the threads that wait. Until the first group gets a quota, this costs a
//! no-op at a fork and one at a thread's end ([`StaticKey::CPU_QUOTAS`]).

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, reserve};

use super::cgroup_members::for_each_member;
use super::meter::{Meter, UNMETERED};
use super::{Process, Task};
use crate::cgroup::Group;
use crate::cgroup::cpu::CpuUse;
use crate::hw::heap;
use crate::hw::static_keys::{self, KeyState, StaticKey};
use crate::sched;
use crate::sched::thread::QUOTA;
use crate::time::{self, Expire};
use crate::{Result, mem};

/// The shortest and the longest time between two charges of a running thread (nanoseconds).
const OFTEN: u64 = 250_000;
const SELDOM: u64 = 4_000_000;

/// Whether a group ever had a quota.
pub(super) fn are_used() -> bool {
    static_keys::is_on::<{ StaticKey::QUOTAS }>()
}

/// Enables quotas: threads check for them from now on.
///
/// # Errors
/// `ENOMEM`.
pub fn begin() -> Result<()> {
    mem::turn_key(StaticKey::CPU_QUOTAS, KeyState::On)
}

/// Makes all processes of a group and below check whether they have a quota.
pub fn look_at_all(group: &Group) {
    for_each_member(group, |process| process.look_at_quota());
}

impl Process {
    /// Makes the process' threads check whether they have a quota.
    #[inline]
    pub fn look_at_quota(&self) {
        if are_used() {
            self.call_for_quota();
        }
    }
    #[cold]
    #[inline(never)]
    fn call_for_quota(&self) {
        for thread in &self.signals.lock().threads {
            thread.call_attention(QUOTA);
            sched::kick(thread);
        }
    }
}

impl Task {
    /// Charges the time that the thread used, and waits until its groups have quota left. Called
    /// before the return to user mode.
    #[cold]
    #[inline(never)]
    pub fn attend_quota(&self) {
        while self.answer_call(QUOTA) {
            let group = self.process().cgroup.group();
            let seen = group.cpu.generation();
            if !group.has_cpu_quota() {
                if let Some(meter) = self.meter.get() {
                    meter.charged.store(UNMETERED, Ordering::Relaxed);
                }
                return;
            }
            // Without memory for a meter the thread checks repeatedly.
            let used = self.own_meter().map(|meter| {
                let used = group.use_cpu(time::now(), self.take_uncharged(meter));
                match used {
                    CpuUse::Runs { left } => arm(meter, left).map(|()| used),
                    CpuUse::Waits { .. } => Ok(used),
                }
            });
            let until = match used.flatten() {
                Ok(CpuUse::Runs { .. }) => return,
                Ok(CpuUse::Waits { until }) => until,
                Err(_) => time::now() + OFTEN,
            };
            if group.cpu.wait(seen, until).is_err() {
                return;
            }
            self.call_attention(QUOTA);
        }
    }
    /// Returns the thread's meter. Makes one if there is none.
    fn own_meter(&self) -> Result<&Arc<Meter>> {
        if !self.meter.is_completed() {
            heap::ensure(heap::CALL_RESERVE)?;
        }
        Ok(self.meter.call_once(|| reserve::arc(Meter::of(self.thread()))))
    }
    /// Returns the CPU time that the thread used since its last charge; 0 the first time.
    fn take_uncharged(&self, meter: &Meter) -> u64 {
        sched::account(self.thread());
        let used = self.thread().schedule.runtime.load(Ordering::Relaxed);
        match meter.charged.swap(used, Ordering::Relaxed) {
            UNMETERED => 0,
            before => used.saturating_sub(before),
        }
    }
    /// Charges the remaining time of a thread that ends. Called before it leaves its group.
    #[inline]
    pub(super) fn end_meter(&self) {
        if are_used() {
            self.charge_last();
        }
    }
    #[cold]
    #[inline(never)]
    fn charge_last(&self) {
        let Some(meter) = self.meter.get() else { return };
        let timer: Arc<dyn Expire> = meter.clone();
        time::cancel(&timer);
        if meter.charged.load(Ordering::Relaxed) != UNMETERED {
            self.process().cgroup.group().use_cpu(time::now(), self.take_uncharged(meter));
        }
    }
}

/// Arms the meter, so that its thread charges again soon: there are `left` nanoseconds of quota,
/// and each CPU may use a part.
fn arm(meter: &Arc<Meter>, left: u64) -> Result<()> {
    let timer: Arc<dyn Expire> = meter.clone();
    let cpus = sched::online().iter().count() as u64;
    time::try_arm(&timer, time::now() + (left / cpus.max(1)).clamp(OFTEN, SELDOM))
}
