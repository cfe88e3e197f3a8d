//! Latency of a CPU: the longest time without an interrupt, and the longest time for which the
//! kernel continued although another task should have had the CPU. For each, the code address where
//! it was detected.
//!
//! The kernel is not preemptible, so a call that works long without
//! [`cond_resched`](super::cond_resched) keeps all other tasks on its CPU waiting. The holder of a
//! spin lock never calls that function, so no lock is held for longer than the second figure.
//!
//! Measurements are made only at interrupts, and when long work calls [`rest`](super::rest). If
//! interrupts were off, the timer's interrupt is late. It interrupts the code that turned them on,
//! and that is the recorded place. An interrupt that returns to the kernel while another task waits
//! begins a wait, which ends at the next [`reschedule`](super::reschedule). The recorded place is
//! where the kernel continued. A wait that no interrupt saw was shorter than the time between two
//! interrupts. While a task waits, a timer ends the running one's slice, so a figure is too small
//! by a slice at most.
//!
//! A CPU writes its own figures, with interrupts off. Long work and an interrupt may begin a wait
//! at the same time: then one of the two times and places is kept. A CPU that records a figure may
//! overwrite a concurrent reset of it. No other update is lost.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::CpuId;

use super::{cpu, is_wanted, online};
use crate::hw::traps::{ImageOffset, Interrupted};
use crate::{hw, time};

/// Nanoseconds that others wait before long work lets them run.
pub const PATIENCE: u64 = 500_000;

/// The longest time of one kind on one CPU.
struct Longest {
    nanoseconds: AtomicU64,
    /// Offset in the image. 0: the kernel returned to a program, or was between two steps of long
    /// work.
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

/// A CPU's figures, and the present wait.
pub(super) struct CpuLatency {
    interrupts_off: Longest,
    waited: Longest,
    /// Time since which a task waits, as far as an interrupt saw; 0: none waits.
    since: AtomicU64,
    /// Where the kernel continued then.
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

    /// Ends the wait: the CPU switches to the task with the highest precedence. Interrupts are off.
    #[inline]
    pub(super) fn given(&self) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.end_wait();
        }
    }

    /// Returns whether a task has waited for [`PATIENCE`]. The caller knows that one is waiting.
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
    /// The time; 0: nothing was measured.
    pub nanoseconds: u64,
    /// The place where it ended, or was detected: an offset in the kernel's image. 0: the kernel
    /// returned to a program, or was between two steps of long work.
    pub place: u64,
}

/// The figures of one CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuLateness {
    /// The CPU.
    pub cpu: CpuId,
    /// The longest time for which it took no interrupt.
    pub interrupts_off: Lateness,
    /// The longest time for which the kernel continued while another task should have had the CPU.
    pub waited: Lateness,
}

/// Returns the figures of all CPUs since the last reset.
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

/// Resets all figures.
pub fn forget() {
    for id in online().iter() {
        cpu(id).latency.interrupts_off.forget();
        cpu(id).latency.waited.forget();
    }
}

/// Records that this CPU's timer fired `late` nanoseconds after its deadline. Interrupts are off. A
/// halted CPU is not delayed by the kernel, but by its wake-up.
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

/// Records that the kernel continues at `place` after an interrupt. Interrupts are off.
pub fn kernel_goes_on(ImageOffset(place): ImageOffset) {
    let latency = &cpu(hw::current_cpu()).latency;
    if is_wanted() && latency.since.load(Ordering::Relaxed) == 0 {
        latency.place.store(place, Ordering::Relaxed);
        latency.since.store(time::now(), Ordering::Relaxed);
    }
}
