//! The load average: the number of runnable tasks, averaged over 1, 5 and 15 minutes.
//!
//! Every five seconds a timer counts the tasks, and each average moves towards the count by a fixed
//! share. The averages are fixed-point numbers with 11 fractional bits. (getloadavg(3) reads text.)

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{Arc, reserve};

use crate::fs::pseudo::PseudoDir;
use crate::sched;
use crate::task::registry;
use crate::time::{self, Deadline, Expire, SECOND, TimerSlot};

const PERIOD: u64 = 5 * SECOND;
const ONE: u64 = 1 << 11;
/// Per average: ONE · e^(-5 s / 1, 5, 15 min).
const DECAYS: [u64; 3] = [1884, 2014, 2037];

static AVERAGES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

struct Sampler {
    slot: TimerSlot,
}

/// Returns the average after one step towards `count` tasks.
const fn step(average: u64, count: u64, decay: u64) -> u64 {
    let sum = average * decay + count * ONE * (ONE - decay);
    // Rounded up while the average grows, so that it reaches the count.
    let up = if count * ONE > average { ONE - 1 } else { 0 };
    (sum + up) / ONE
}

impl Expire for Sampler {
    fn slot(&self) -> &TimerSlot {
        &self.slot
    }

    fn expire(&self, now: u64) -> Option<Deadline> {
        let count = runnable() as u64;
        for (average, decay) in AVERAGES.iter().zip(DECAYS) {
            average.store(step(average.load(Ordering::Relaxed), count, decay), Ordering::Relaxed);
        }
        Some((now + PERIOD).into())
    }
}

/// The averages as fixed-point numbers with 16 fractional bits, for sysinfo(2).
pub fn averages() -> [u64; 3] {
    AVERAGES.each_ref().map(|average| average.load(Ordering::Relaxed) << 5)
}

/// Number of runnable tasks.
pub(super) fn runnable() -> usize {
    sched::online().iter().map(|cpu| sched::statistics(cpu).runnable).sum()
}

/// Adds loadavg to `root`. Sampling begins with the first /proc.
pub(super) fn fill(root: &Arc<PseudoDir>) {
    static SAMPLER: spin::Once<Arc<dyn Expire>> = spin::Once::new();
    let mut fresh = false;
    let sampler = SAMPLER.call_once(|| {
        fresh = true;
        reserve::arc(Sampler { slot: TimerSlot::new() })
    });
    if fresh {
        time::arm(sampler, time::now() + PERIOD);
    }
    root.file("loadavg", |out| {
        for average in &AVERAGES {
            let average = average.load(Ordering::Relaxed) + ONE / 200;
            write!(out, "{}.{:02} ", average / ONE, average % ONE * 100 / ONE);
        }
        writeln!(out, "{}/{} {}", runnable(), registry::count(), registry::last_pid());
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a minute the one-minute average has moved 63% of the way to a new count. It rises to a
    /// count and falls back.
    #[test]
    fn averages_follow_the_count() {
        let mut average = 0;
        for _ in 0..12 {
            average = step(average, 2, DECAYS[0]);
        }
        assert!((126..=130).contains(&(average * 100 / ONE)), "{average}");
        for _ in 0..200 {
            average = step(average, 2, DECAYS[0]);
        }
        assert_eq!(average, 2 * ONE);
        for _ in 0..200 {
            average = step(average, 0, DECAYS[0]);
        }
        assert!(average < ONE / 100);
    }
}
