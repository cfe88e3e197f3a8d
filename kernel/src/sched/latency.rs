//! How late a CPU is: the longest time for which it took no interrupt, and the longest for which
//! the kernel went on although another task was to have the CPU, each with the place where that was
//! seen.
//!
//! The kernel is not preemptible, so a call that works long without
//! [`cond_resched`](super::cond_resched) keeps all other tasks on its CPU waiting. A spin lock's
//! holder never calls it: no lock is held for longer than the second figure says.
//!
//! Nothing is measured but at interrupts, and where long work asks whether it should
//! [rest](super::rest). The timer's comes late where interrupts were off; it interrupts what turned
//! them on, and that is the place. An interrupt that returns to the kernel while another task waits
//! begins a wait, which ends at the next [`reschedule`](super::reschedule); the place is where the
//! kernel went on. A wait that no interrupt saw was shorter than the time between two of them:
//! while a task waits a timer ends the running one's slice, so a figure is too small by a slice at
//! most.
//!
//! A CPU writes its own figures, with interrupts off. A wait that long work begins may be begun by
//! an interrupt at the same time: then one of the two moments and places stays. A CPU that records
//! a figure may overwrite a concurrent reset of it. No other update is lost.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::CpuId;

use super::{cpu, is_wanted, online};
use crate::hw::traps::{ImageOffset, Interrupted};
use crate::{hw, time};

/// How long others wait before long work lets them run (nanoseconds).
pub const PATIENCE: u64 = 500_000;

/// The longest time of one kind on one CPU.
struct Longest {
    nanoseconds: AtomicU64,
    /// Offset in the image; 0: where a program goes on, or between two steps of long work.
    place: AtomicU64,
}

impl Longest {
    const fn new() -> Self {
        Self { nanoseconds: AtomicU64::new(0), place: AtomicU64::new(0) }
    }

    fn note(&self, nanoseconds: u64, place: u64) {
        if nanoseconds > self.nanoseconds.load(Ordering::Relaxed) {
            self.nanoseconds.store(nanoseconds, Ordering::Relaxed);
            self.place.store(place, Ordering::Relaxed);
        }
    }

    fn figure(&self) -> Lateness {
        Lateness {
            nanoseconds: self.nanoseconds.load(Ordering::Relaxed),
            place: self.place.load(Ordering::Relaxed),
        }
    }

    fn forget(&self) {
        self.nanoseconds.store(0, Ordering::Relaxed);
        self.place.store(0, Ordering::Relaxed);
    }
}

/// A CPU's figures, and the wait that goes on.
pub(super) struct CpuLatency {
    interrupts_off: Longest,
    waited: Longest,
    /// Time since which a task waits, as far as an interrupt saw; 0: none waits.
    since: AtomicU64,
    /// Where the kernel went on then.
    place: AtomicU64,
}

impl CpuLatency {
    pub(super) const fn new() -> Self {
        Self {
            interrupts_off: Longest::new(),
            waited: Longest::new(),
            since: AtomicU64::new(0),
            place: AtomicU64::new(0),
        }
    }

    /// Ends the wait: the CPU goes to the task with the best claim. Interrupts are off.
    #[inline]
    pub(super) fn given(&self) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.end_wait();
        }
    }

    /// Returns whether a task has waited for [`PATIENCE`]. The caller knows that one waits.
    pub(super) fn is_due(&self) -> bool {
        let now = time::now();
        match self.since.load(Ordering::Relaxed) {
            0 => {
                self.place.store(0, Ordering::Relaxed);
                self.since.store(now, Ordering::Relaxed);
                false
            }
            since => now.saturating_sub(since) >= PATIENCE,
        }
    }

    #[cold]
    fn end_wait(&self) {
        let since = self.since.load(Ordering::Relaxed);
        self.waited.note(time::now().saturating_sub(since), self.place.load(Ordering::Relaxed));
        self.since.store(0, Ordering::Relaxed);
    }
}

/// The longest time of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lateness {
    /// How long; 0: nothing was seen.
    pub nanoseconds: u64,
    /// Where that ended, or where it was seen: an offset in the kernel's image; 0 where a program
    /// goes on, or between two steps of long work.
    pub place: u64,
}

/// The figures of one CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuLateness {
    /// The CPU.
    pub cpu: CpuId,
    /// The longest for which it took no interrupt.
    pub interrupts_off: Lateness,
    /// The longest for which the kernel went on while another task was to have the CPU.
    pub waited: Lateness,
}

/// The figures of all CPUs since they were set back.
pub fn figures() -> impl Iterator<Item = CpuLateness> {
    online().iter().map(|id| {
        let latency = &cpu(id).latency;
        CpuLateness {
            cpu: id,
            interrupts_off: latency.interrupts_off.figure(),
            waited: latency.waited.figure(),
        }
    })
}

/// Sets all figures back.
pub fn forget() {
    for id in online().iter() {
        cpu(id).latency.interrupts_off.forget();
        cpu(id).latency.waited.forget();
    }
}

/// This CPU's timer fired `late` nanoseconds after it was to. Interrupts are off. One that halts is
/// not kept from its interrupts by the kernel, but by what wakes it.
pub fn timer_was_late(late: u64, interrupted: Interrupted) {
    let this = cpu(hw::current_cpu());
    if this.idle.load(Ordering::Relaxed) {
        return;
    }
    let place = match interrupted {
        Interrupted::Program => 0,
        Interrupted::Kernel(ImageOffset(place)) => place,
    };
    this.latency.interrupts_off.note(late, place);
}

/// The kernel goes on at `place` after an interrupt. Interrupts are off.
pub fn kernel_goes_on(ImageOffset(place): ImageOffset) {
    let latency = &cpu(hw::current_cpu()).latency;
    if is_wanted() && latency.since.load(Ordering::Relaxed) == 0 {
        latency.place.store(place, Ordering::Relaxed);
        latency.since.store(time::now(), Ordering::Relaxed);
    }
}
