//! Fault injection: makes allocations fail on request, to test how callers handle the failure.
//!
//! The names and the rules are Linux' (Documentation/fault-injection, lib/fault-inject.c): the
//! capabilities `failslab` (the kernel heap) and `fail_page_alloc` (the page allocator) as kernel
//! parameters and below /sys/kernel/debug, and /proc/PID/fail-nth and make-it-fail for one task.
//! The heap ([`crate::hw::heap`]) and the page allocator ([`freehold_buddy`]) have one hook each.
//! Both call this module once any failure was requested since boot.
//!
//! **Effect of a failure.** An injected failure is reported to the program at once: the kernel does
//! not reclaim memory, no other process is killed, and
//! [`with_memory_found`](crate::mem::with_memory_found) does not try again, because no memory was
//! missing. Two places cannot report a failure, and absorb it. A page fault is tried again, as on
//! Linux, and ends the process after [`FAULTS_IN_A_ROW`] failures in a row. A small object that the
//! kernel cannot do without comes from the heap's reserve.
//!
//! **Allocations that never fail** (Linux: `__GFP_NOFAIL`, PF_MEMALLOC):
//! - allocations of the kernel's own tasks, which have no program to report to;
//! - allocations of a task that reclaims memory for others: writing out must not wait for memory;
//! - the heap's reserve while a system call fills it: nothing has happened yet that could fail.

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::cmdline::FaultNumbers;
use crate::{Errno, Result};

/// A process ends after this many consecutive page faults with injected failures.
pub const FAULTS_IN_A_ROW: u8 = 16;

/// The state of fault injection for one task.
#[derive(Debug, Default)]
pub struct TaskFaults {
    /// The next allocation to fail, counted from 1; 0 for none (/proc/PID/fail-nth).
    nth: AtomicU32,
    /// Whether failures with a task filter apply to the task (/proc/PID/make-it-fail).
    filtered: AtomicBool,
    /// Whether an allocation failed by injection since [`TaskFaults::take_injected`] was last
    /// called.
    injected: AtomicBool,
    /// Consecutive page faults that failed by injection.
    in_a_row: AtomicU8,
}

impl TaskFaults {
    /// Copies the settings of `parent`, the task that made the new task.
    pub fn inherit(&self, parent: &Self) {
        self.filtered.store(parent.filtered.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    /// Returns the number of the next allocation to fail, counted from 1; 0 for none.
    pub fn nth(&self) -> u32 {
        self.nth.load(Ordering::Relaxed)
    }
    /// Makes the `nth` allocation from now on fail; 0 makes none fail.
    pub fn set_nth(&self, nth: u32) {
        self.nth.store(nth, Ordering::Relaxed);
    }
    /// Returns whether failures with a task filter apply to the task.
    pub fn is_filtered(&self) -> bool {
        self.filtered.load(Ordering::Relaxed)
    }
    /// Subjects the task to capabilities with a task filter if `value` is 1.
    ///
    /// # Errors
    /// `EINVAL` for other values than 0 and 1.
    pub fn set_filtered(&self, value: i64) -> Result<()> {
        let filtered = match value {
            0 => false,
            1 => true,
            _ => return Err(Errno::EINVAL),
        };
        self.filtered.store(filtered, Ordering::Relaxed);
        Ok(())
    }
    /// Notes that the page allocator had no memory: the next failure is not an injected one.
    pub fn note_denial(&self) {
        self.injected.store(false, Ordering::Relaxed);
    }
    /// Whether an allocation failed by injection since the last call.
    pub fn take_injected(&self) -> bool {
        self.injected.load(Ordering::Relaxed) && self.injected.swap(false, Ordering::Relaxed)
    }
    /// Notes that a page fault was served.
    #[inline]
    pub fn fault_served(&self) {
        self.in_a_row.store(0, Ordering::Relaxed);
    }
    /// Notes that a page fault failed by injection. Returns whether the process must end.
    pub fn fault_failed(&self) -> bool {
        let before = self.in_a_row.load(Ordering::Relaxed);
        self.in_a_row.store(before.saturating_add(1), Ordering::Relaxed);
        before + 1 >= FAULTS_IN_A_ROW
    }
}

/// The allocations of one kind that fail: Linux' `struct fault_attr`.
#[derive(Debug)]
pub struct FaultAttr {
    /// "failslab" or "fail_page_alloc".
    pub name: &'static str,
    /// Of the allocations that pass all other conditions, each `interval`-th may fail; 0 and 1:
    /// every one.
    pub interval: AtomicU64,
    /// Probability of a failure, in percent; 0 turns the capability off, except for fail-nth.
    pub probability: AtomicU64,
    /// Number of bytes that are allocated before the first failure.
    pub space: AtomicI64,
    /// Largest number of failures; -1 for any number.
    pub times: AtomicI64,
    /// If above 0, each failure is logged.
    pub verbose: AtomicU64,
    /// Whether only tasks with make-it-fail are affected.
    pub task_filter: AtomicBool,
    count: AtomicU64,
}

/// The capability of the kernel heap.
pub static FAILSLAB: FaultAttr = FaultAttr::new("failslab");
/// The capability of the page allocator.
pub static FAIL_PAGE_ALLOC: FaultAttr = FaultAttr::new("fail_page_alloc");
/// Smallest order of blocks whose allocation can fail (fail_page_alloc/min-order).
pub static MIN_ORDER: AtomicU64 = AtomicU64::new(1);
/// Whether requests for frames of programs never fail (fail_page_alloc/ignore-gfp-highmem). These
/// frames are not in the direct map, which Linux calls highmem.
pub static IGNORE_HIGHMEM: AtomicBool = AtomicBool::new(true);

impl FaultAttr {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            interval: AtomicU64::new(1),
            probability: AtomicU64::new(0),
            space: AtomicI64::new(0),
            times: AtomicI64::new(1),
            verbose: AtomicU64::new(2),
            task_filter: AtomicBool::new(false),
            count: AtomicU64::new(0),
        }
    }

    /// Takes over the four numbers of a kernel parameter.
    pub fn set(&self, numbers: FaultNumbers) {
        let FaultNumbers { interval, probability, space, times } = numbers;
        self.interval.store(interval, Ordering::Relaxed);
        self.probability.store(probability, Ordering::Relaxed);
        self.space.store(space, Ordering::Relaxed);
        self.times.store(times, Ordering::Relaxed);
    }

    /// Whether an allocation of `bytes` by a task must fail. `draw` returns a random number below
    /// 100. Follows Linux' `should_fail`, in its order.
    pub fn should_fail(&self, bytes: u64, task: &TaskFaults, draw: impl FnOnce() -> u64) -> bool {
        let load = |number: &AtomicI64| number.load(Ordering::Relaxed);
        let nth = task.nth();
        if nth > 0 {
            task.set_nth(nth - 1);
            if nth > 1 {
                return false;
            }
        } else {
            let probability = self.probability.load(Ordering::Relaxed);
            let unfiltered = !self.task_filter.load(Ordering::Relaxed) || task.is_filtered();
            if probability == 0 || !unfiltered || load(&self.times) == 0 {
                return false;
            }
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            if load(&self.space) > bytes {
                self.space.fetch_sub(bytes, Ordering::Relaxed);
                return false;
            }
            let interval = self.interval.load(Ordering::Relaxed);
            let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
            if (interval > 1 && !count.is_multiple_of(interval)) || probability <= draw() {
                return false;
            }
        }
        let less = |times| if times > 0 { Some(times - 1) } else { None };
        let _ = self.times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        task.injected.store(true, Ordering::Relaxed);
        true
    }
}

mod hooks {
    use freehold_frame::{Order, Owner};

    use super::*;
    use crate::hw;
    use crate::sched::thread::{self, Thread};

    /// Makes the heap and the page allocator call their hooks from now on. Called before any
    /// failure is requested.
    pub fn arm() {
        crate::hw::heap::inject_faults(slab);
        hw::frames().inject_faults();
    }

    /// Takes over the settings of both capabilities from the kernel's command line.
    pub fn configure(slab: Option<FaultNumbers>, page: Option<FaultNumbers>) {
        for (attr, numbers) in [(&FAILSLAB, slab), (&FAIL_PAGE_ALLOC, page)] {
            if let Some(numbers) = numbers {
                attr.set(numbers);
                arm();
            }
        }
    }

    /// Draws a number below 100.
    fn percentile() -> u64 {
        let mut bytes = [0; 8];
        hw::fill_random(&mut bytes);
        u64::from_ne_bytes(bytes) % 100
    }

    fn should_fail(attr: &FaultAttr, bytes: u64) -> bool {
        let fails = |task: &Thread| {
            let exempt = task.is_kernel() || task.reclaims.load(Ordering::Relaxed);
            let fails = !exempt && attr.should_fail(bytes, &task.injection, percentile);
            if fails && attr.verbose.load(Ordering::Relaxed) > 0 {
                report(attr, bytes, task);
            }
            fails
        };
        thread::with_current(|thread| fails(thread)).unwrap_or(false)
    }

    fn report(attr: &FaultAttr, bytes: u64, thread: &Thread) {
        let (name, tid) = thread.owner().map_or(([0; 16], 0), |owner| owner.label());
        let name = core::str::from_utf8(&name).unwrap_or("?").trim_end_matches('\0');
        log::warn!(
            "FAULT_INJECTION: forcing a failure. name {}, interval {}, probability {}, space {}, times {}: {bytes} bytes, {name}[{}]",
            attr.name,
            attr.interval.load(Ordering::Relaxed),
            attr.probability.load(Ordering::Relaxed),
            attr.space.load(Ordering::Relaxed),
            attr.times.load(Ordering::Relaxed),
            tid
        );
    }

    fn slab(bytes: usize) -> bool {
        should_fail(&FAILSLAB, bytes as u64)
    }

    /// The page allocator's hook.
    pub fn page(owner: Owner, order: Order) -> bool {
        let passes = u64::from(order.log2()) < MIN_ORDER.load(Ordering::Relaxed)
            || (owner.is_user() && IGNORE_HIGHMEM.load(Ordering::Relaxed))
            || crate::hw::heap::is_refilling();
        !passes && should_fail(&FAIL_PAGE_ALLOC, order.frames() << 12)
    }
}

pub use hooks::{arm, configure, page};

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: fn() -> u64 = || 99;

    /// fail-nth fails only the n-th allocation from then on, whatever the settings of the
    /// capability.
    #[test]
    fn the_nth_allocation_fails_once() {
        let (attr, task) = (FaultAttr::new("x"), TaskFaults::default());
        attr.times.store(0, Ordering::Relaxed);
        task.set_nth(3);
        let failed: [bool; 6] = core::array::from_fn(|_| attr.should_fail(16, &task, NEVER));
        assert_eq!(failed, [false, false, true, false, false, false]);
        assert_eq!(task.nth(), 0);
        assert!(task.take_injected() && !task.take_injected());
    }

    /// interval, probability, space and times have Linux' meanings.
    #[test]
    fn a_capability_fails_what_its_numbers_say() {
        let (attr, task) = (FaultAttr::new("x"), TaskFaults::default());
        assert!(!attr.should_fail(16, &task, || 0), "off at first");
        attr.set(FaultNumbers::parse("2,50,40,3").unwrap());
        let failed: [bool; 12] = core::array::from_fn(|_| attr.should_fail(16, &task, || 49));
        // The first 32 bytes never fail. Of the later allocations every second fails, three times
        // in all.
        let expected = [0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0].map(|fails| fails == 1);
        assert_eq!(failed, expected);
        attr.set(FaultNumbers::parse("1,50,0,-1").unwrap());
        assert!(!attr.should_fail(16, &task, || 50) && attr.should_fail(16, &task, || 49));
        attr.task_filter.store(true, Ordering::Relaxed);
        assert!(!attr.should_fail(16, &task, || 0));
        task.set_filtered(1).unwrap();
        assert!(attr.should_fail(16, &task, || 0));
        assert_eq!(task.set_filtered(2), Err(Errno::EINVAL));
        for bad in ["", "1,2,3", "1,2,3,4,5", "-1,2,3,4", "a,b,c,d"] {
            assert_eq!(FaultNumbers::parse(bad), None, "{bad}");
        }
    }
}
