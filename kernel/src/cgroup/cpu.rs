//! The controller `cpu`: how much CPU time a group and the groups below it may use in each period
//! (cpu.max).
//!
//! The time of a thread is [charged](Group::use_cpu) to its group and to all above. If a quota is
//! used up, the charge returns the time until which the thread must wait. The thread itself waits
//! (`crate::task::quota`), on its way to user mode, where it holds no lock. Time used beyond a
//! quota is taken from the quotas of the following periods, so that over time no group has more
//! than its share, however late its threads charge.
//!
//! **Protocol.** Each [`Bandwidth`] has its own spin lock. No timer ends a period: the next charge
//! or read notices that it has ended. A change of the quota that a thread waits for advances the
//! [generation](CpuQuota::generation) of its group first and then wakes the thread. A thread reads
//! the generation before it charges, and waits only while the generation is unchanged.
//!
//! Linux' relative: `cfs_bandwidth` in kernel/sched/fair.c, which hands quotas out to CPUs in
//! slices. Not here: cpu.weight, cpu.max.burst, cpu.idle, cpu.uclamp.*.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_collections::Arc;

use super::control::{ControlFile, Controller, OnRoot};
use super::group::Group;
use super::tree;
use crate::sync::{SpinLock, WaitQueue};
use crate::{Errno, Result, time};

const MICROSECOND: u64 = 1000;
/// The default period of cpu.max, and the shortest and the longest (microseconds).
const PERIOD: u64 = 100_000;
const PERIOD_LEAST: u64 = 1000;
const PERIOD_MOST: u64 = 1_000_000;
/// The smallest quota and the largest, as on Linux (microseconds).
const QUOTA_LEAST: u64 = 1000;
const QUOTA_MOST: u64 = (1 << 44) / MICROSECOND;
/// No quota.
const NO_QUOTA: u64 = u64::MAX;

/// A quota, and the time used of it. Times in nanoseconds.
#[derive(Debug)]
pub(super) struct Bandwidth {
    /// The time per period, or [`NO_QUOTA`].
    quota: u64,
    period: u64,
    /// The end of the current period; 0 before the first charge.
    end: u64,
    /// Time used in the current period, including the excess of earlier periods.
    used: u64,
    /// The latest time until which threads were told to wait.
    waits_until: u64,
    statistics: CpuStatistics,
}

/// The lines of cpu.stat about a quota.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CpuStatistics {
    /// Ended periods in which the group ran, or paid for earlier use.
    pub periods: u64,
    /// Those of these periods in which the group used the whole quota.
    pub throttled: u64,
    /// Nanoseconds for which the group's threads had to wait; threads that wait at the same time
    /// count once.
    pub throttled_time: u64,
}

impl Bandwidth {
    pub(super) const fn new() -> Self {
        Self {
            quota: NO_QUOTA,
            period: PERIOD * MICROSECOND,
            end: 0,
            used: 0,
            waits_until: 0,
            statistics: CpuStatistics { periods: 0, throttled: 0, throttled_time: 0 },
        }
    }
    /// Ends the periods that are over at `now`.
    fn advance(&mut self, now: u64) {
        if self.quota == NO_QUOTA || now < self.end {
            return;
        }
        if self.end == 0 {
            self.end = now + self.period;
            return;
        }
        let ended = (now - self.end) / self.period + 1;
        self.statistics.periods += ended.min(self.used.div_ceil(self.quota));
        self.statistics.throttled += ended.min(self.used / self.quota);
        self.used = self.used.saturating_sub(ended.saturating_mul(self.quota));
        self.end += ended * self.period;
    }
    /// Charges `ran` nanoseconds. Returns the time that is left, or the time at which some is
    /// available again.
    fn charge(&mut self, now: u64, ran: u64) -> CpuUse {
        if self.quota == NO_QUOTA {
            return CpuUse::Runs { left: u64::MAX };
        }
        self.advance(now);
        self.used = self.used.saturating_add(ran);
        if self.used < self.quota {
            return CpuUse::Runs { left: self.quota - self.used };
        }
        let more = (self.used - self.quota) / self.quota;
        let until = self.end.saturating_add(more.saturating_mul(self.period));
        self.statistics.throttled_time += until.saturating_sub(self.waits_until.max(now));
        self.waits_until = self.waits_until.max(until);
        CpuUse::Waits { until }
    }
    fn set(&mut self, now: u64, quota: u64, period: u64) {
        self.advance(now);
        // The waits were counted in advance, and now end earlier.
        self.statistics.throttled_time -=
            self.waits_until.saturating_sub(now).min(self.statistics.throttled_time);
        (self.waits_until, self.used) = (0, 0);
        (self.quota, self.period) = (quota, period);
        self.end = now + period;
    }
}

/// Result of a charge of CPU time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuUse {
    /// So many nanoseconds are left; `u64::MAX` if there is no quota.
    Runs {
        /// Time until the first quota is used up.
        left: u64,
    },
    /// No time is left until the clock of [`time::now`] shows this time.
    Waits {
        /// Begin of the first period in which all quotas have time left.
        until: u64,
    },
}

impl CpuUse {
    /// Combines the results of two groups.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Runs { left }, Self::Runs { left: other }) => Self::Runs { left: left.min(other) },
            (Self::Waits { until }, Self::Waits { until: other }) => Self::Waits { until: until.max(other) },
            (waits @ Self::Waits { .. }, _) | (_, waits) => waits,
        }
    }
}

/// The controller's state in a group.
pub struct CpuQuota {
    bandwidth: SpinLock<Bandwidth>,
    /// Whether there is a quota.
    is_set: AtomicBool,
    /// Advanced before waiting threads are woken because of a change.
    generation: AtomicU64,
    /// Threads of the group that wait for a later period.
    waiting: WaitQueue,
}

impl CpuQuota {
    pub(super) const fn new() -> Self {
        Self {
            bandwidth: SpinLock::new(Bandwidth::new()),
            is_set: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            waiting: WaitQueue::new(),
        }
    }
    /// The generation. It advances with each change that a waiting thread may wait for.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }
    /// Wakes the waiting threads, which check the quota again.
    pub fn wake(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.waiting.wake_all();
    }
    /// Waits until the clock shows `until`, or the generation is no longer `seen`.
    ///
    /// # Errors
    /// `EINTR` if the thread must end.
    pub fn wait(&self, seen: u64, until: u64) -> Result<()> {
        self.waiting.wait_killable_until(until, || (self.generation() != seen).then_some(())).map(drop)
    }
    fn set(&self, quota: u64, period: u64) {
        self.bandwidth.lock().set(time::now(), quota, period);
        self.is_set.store(quota != NO_QUOTA, Ordering::SeqCst);
    }
}

impl Group {
    /// Whether the group or a group above it has a quota.
    pub fn has_cpu_quota(&self) -> bool {
        self.counted().any(|group| group.cpu.is_set.load(Ordering::SeqCst))
    }
    /// Charges a member's CPU time to the group and to all groups above it; `now` is the time of
    /// [`time::now`].
    pub fn use_cpu(&self, now: u64, ran: u64) -> CpuUse {
        let none = CpuUse::Runs { left: u64::MAX };
        self.counted().fold(none, |use_, group| match group.cpu.is_set.load(Ordering::Relaxed) {
            true => use_.and(group.cpu.bandwidth.lock().charge(now, ran)),
            false => use_,
        })
    }
    /// Returns the quota's figures for cpu.stat; `None` if the controller does not act.
    pub fn cpu_statistics(&self) -> Option<CpuStatistics> {
        let acts = !self.is_root() && self.controllers().contains(super::ControllerSet::CPU);
        acts.then(|| {
            let mut bandwidth = self.cpu.bandwidth.lock();
            bandwidth.advance(time::now());
            bandwidth.statistics
        })
    }
}

/// The controller.
pub struct CpuController;

impl Controller for CpuController {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn files(&self) -> &'static [ControlFile] {
        &FILES
    }

    fn begin(&self, group: &Arc<Group>) -> Result<()> {
        *group.cpu.bandwidth.lock() = Bandwidth::new();
        Ok(())
    }

    fn end(&self, group: &Group) {
        group.cpu.set(NO_QUOTA, PERIOD * MICROSECOND);
        group.cpu.wake();
    }
}

static FILES: [ControlFile; 1] = [ControlFile {
    name: "cpu.max",
    mode: 0o644,
    on_root: OnRoot::No,
    notice: None,
    show: |group, out| {
        let Bandwidth { quota, period, .. } = *group.cpu.bandwidth.lock();
        let period = period / MICROSECOND;
        match quota {
            NO_QUOTA => writeln!(out, "max {period}"),
            quota => writeln!(out, "{} {period}", quota / MICROSECOND),
        }
    },
    store: Some(store_max),
}];

/// Reads "QUOTA", "max", "QUOTA PERIOD" or "max PERIOD", in microseconds. Returns the quota, and
/// the period if the text has one.
///
/// # Errors
/// `EINVAL` for anything else, for a quota below 1 ms, and for a period outside 1 ms to 1 s.
fn parse(text: &[u8]) -> Result<(u64, Option<u64>)> {
    let mut words = text.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let number = |word: &[u8]| -> Result<u64> {
        let text = core::str::from_utf8(word).map_err(|_| Errno::EINVAL)?;
        text.parse().map_err(|_| Errno::EINVAL)
    };
    let quota = match words.next().ok_or(Errno::EINVAL)? {
        b"max" => NO_QUOTA,
        word => number(word)?,
    };
    let period = words.next().map(number).transpose()?;
    let fits = quota == NO_QUOTA || (QUOTA_LEAST..=QUOTA_MOST).contains(&quota);
    if !fits || period.is_some_and(|period| !(PERIOD_LEAST..=PERIOD_MOST).contains(&period)) {
        return Err(Errno::EINVAL);
    }
    Ok((quota, period))
}

fn store_max(group: &Group, text: &[u8]) -> Result<()> {
    let (quota, period) = parse(text)?;
    tree::begin_quotas()?;
    let period = period.map_or_else(|| group.cpu.bandwidth.lock().period, |period| period * MICROSECOND);
    let quota = if quota == NO_QUOTA { NO_QUOTA } else { quota * MICROSECOND };
    group.cpu.set(quota, period);
    tree::tell_quota(group);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn of(quota: u64, period: u64) -> Bandwidth {
        let mut bandwidth = Bandwidth::new();
        bandwidth.set(0, quota, period);
        bandwidth
    }

    #[test]
    fn a_quota_is_refilled_each_period_and_a_debt_is_paid_first() {
        let mut group = of(10 * MS, 100 * MS);
        assert_eq!(group.charge(MS, 4 * MS), CpuUse::Runs { left: 6 * MS });
        assert_eq!(group.charge(20 * MS, 6 * MS), CpuUse::Waits { until: 100 * MS });
        assert_eq!(group.charge(100 * MS, 0), CpuUse::Runs { left: 10 * MS });
        // One charge uses three and a half quotas: the rest of this period's, and those of the next
        // three.
        assert_eq!(group.charge(150 * MS, 35 * MS), CpuUse::Waits { until: 400 * MS });
        assert_eq!(group.charge(400 * MS, 0), CpuUse::Runs { left: 5 * MS });
        let CpuStatistics { periods, throttled, throttled_time } = group.statistics;
        assert_eq!((periods, throttled, throttled_time), (4, 4, 330 * MS));
        group.advance(2000 * MS);
        assert_eq!(group.statistics.periods, 5, "periods in which nothing ran do not count");
    }

    #[test]
    fn a_new_quota_forgives_what_was_used() {
        let mut group = of(10 * MS, 100 * MS);
        assert_eq!(group.charge(MS, 60 * MS), CpuUse::Waits { until: 600 * MS });
        group.set(2 * MS, 20 * MS, 40 * MS);
        assert_eq!(group.charge(3 * MS, 0), CpuUse::Runs { left: 20 * MS });
        assert_eq!(group.statistics.throttled_time, MS, "only what was waited");
        group.set(3 * MS, NO_QUOTA, 40 * MS);
        assert_eq!(group.charge(4 * MS, 900 * MS), CpuUse::Runs { left: u64::MAX });
    }

    #[test]
    fn a_limit_is_one_or_two_numbers() {
        assert_eq!(parse(b"max"), Ok((NO_QUOTA, None)));
        assert_eq!(parse(b"50000"), Ok((50_000, None)));
        assert_eq!(parse(b"50000  200000"), Ok((50_000, Some(200_000))));
        assert_eq!(parse(b"max 1000"), Ok((NO_QUOTA, Some(1000))));
        for text in ["", "x", "-1", "0", "999", "50000 999", "50000 1000001", "max x", "50000 x"] {
            assert_eq!(parse(text.as_bytes()), Err(Errno::EINVAL), "{text:?}");
        }
    }

    proptest! {
        /// A thread that charges late, and waits as told, never uses more than its share plus the
        /// time that it ran at once.
        #[test]
        fn no_more_than_the_share_is_used(
            quota in 1..20_u64, period in 20..100_u64,
            steps in prop::collection::vec((0..40_u64, 0..30_u64), 1..200),
        ) {
            let mut group = of(quota, period);
            let (mut now, mut ran) = (0, 0);
            let mut most = 0;
            for (runs, sleeps) in steps {
                now += runs;
                ran += runs;
                most = most.max(runs);
                if let CpuUse::Waits { until } = group.charge(now, runs) {
                    prop_assert!(until > now);
                    now = until;
                    prop_assert!(matches!(group.charge(now, 0), CpuUse::Runs { .. }), "the wait was long enough");
                }
                now += sleeps;
                prop_assert!(ran <= (now / period + 1) * quota + most, "{ran} in {now}");
            }
        }
    }
}
