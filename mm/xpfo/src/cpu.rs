//! The windows of one CPU: which slot the next one takes, and when closed ones are forgotten.
//!
//! A kernel brings two things: translations that the CPU can forget ([`Translations`]), and a timer
//! that interrupts it ([`Alarm`]). It stores the entries itself.
//!
//! **Time.** A closed window may be cached until the CPU forgets it. Under [`Policy::On`] that is
//! [`DEADLINE_NS`] at most. The first window since the CPU forgot everything sets the alarm, so the
//! alarm is set while any closed window may be cached. When it comes, the CPU forgets all slots
//! that were in use since. If windows were opened since the last alarm, more will be, and the alarm
//! is set again at once: the first window after it would pay more. It is also set again for a
//! window that is open, which may be cached again. A CPU that idles forgets first, and so does one
//! where a program goes on after kernel tasks.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{DEADLINE_NS, Lap, Policy, Renewal};

/// When the alarm comes that forgets closed windows: a sixteenth of the time is left for its way.
pub const ALARM_NS: u64 = DEADLINE_NS - DEADLINE_NS / 16;

/// From this slot on, forgetting everything that is not global is cheaper than each slot: a lap's
/// end, which a window pays its share of.
const MANY_SLOTS: u32 = 32;

const NOT_LENT: u64 = u64::MAX;

/// Translations that this CPU may have cached.
pub trait Translations {
    /// Forgets the page of `slot` (INVLPG).
    fn forget_slot(&self, slot: usize);
    /// Forgets all that is not global (a load of CR3).
    fn forget_all(&self);
}

/// A timer of this CPU, whose interrupt calls [`CpuWindows::expire`].
pub trait Alarm {
    /// Whether the alarm will come.
    fn is_set(&self) -> bool;
    /// Has the alarm come in so many nanoseconds.
    fn set(&self, after_ns: u64);
}

/// The windows of one CPU, which alone uses them, pinned. Other CPUs may read the counts.
///
/// `SLOTS` is at most 64; their places are `STEP` apart ([`Lap`]).
#[derive(Debug)]
pub struct CpuWindows<const SLOTS: usize, const STEP: u64 = 1> {
    lap: Lap<SLOTS, STEP>,
    /// How many windows there were when a kernel task got this CPU from a program's; [`NOT_LENT`]
    /// while none has it.
    lent: AtomicU64,
    /// How many windows there were at the last alarm.
    alarmed: AtomicU64,
}

impl<const SLOTS: usize, const STEP: u64> CpuWindows<SLOTS, STEP> {
    /// Where [`Lap::NEXT_OFFSET`] is, in bytes from the beginning.
    pub const NEXT_OFFSET: usize = core::mem::offset_of!(Self, lap) + Lap::<SLOTS, STEP>::NEXT_OFFSET;
    /// Where [`Lap::LIMIT_OFFSET`] is, likewise.
    pub const LIMIT_OFFSET: usize = core::mem::offset_of!(Self, lap) + Lap::<SLOTS, STEP>::LIMIT_OFFSET;

    /// Makes windows of which none was opened.
    pub const fn new() -> Self {
        Self { lap: Lap::new(), lent: AtomicU64::new(NOT_LENT), alarmed: AtomicU64::new(0) }
    }

    /// Says where slot 0 is: [`Lap::place`].
    pub fn place(&self, start: u64) {
        self.lap.place(start);
    }

    /// [`Lap::set_longest_run`].
    pub fn set_longest_run(&self, slots: usize) {
        self.lap.set_longest_run(slots);
    }

    /// The slot for the next window: [`Lap::take`]. `None`: [`CpuWindows::renew`] has one.
    #[inline(always)]
    pub fn take(&self) -> Option<usize> {
        self.lap.take()
    }

    /// The slot for the next window, of the next run of slots. `open` has a bit for each slot that
    /// is in use.
    ///
    /// # Panics
    /// When all slots are in use.
    #[cold]
    #[inline(never)]
    pub fn renew(&self, policy: Policy, open: u64, cpu: &(impl Translations + Alarm)) -> usize {
        let cached = self.lap.maybe_cached();
        match self.lap.renew(open) {
            Renewal::SameLap => {}
            Renewal::NewLap => forget_slots(cached, cpu),
            Renewal::Fresh => {
                if policy.bounds_time() && !cpu.is_set() {
                    cpu.set(ALARM_NS);
                }
            }
        }
        self.lap.take().expect("the lap was just renewed")
    }

    /// The CPU has just forgotten all that is not global, and no window is open. Where windows were
    /// opened before, the alarm stays set.
    #[inline]
    pub fn forgotten(&self) {
        self.lap.restart();
    }

    /// Forgets the windows that were closed: before the CPU idles. No window is open, and no alarm
    /// comes meanwhile.
    pub fn forget_closed(&self, cpu: &impl Translations) {
        if self.lap.may_be_cached() {
            forget_slots(self.lap.maybe_cached(), cpu);
            self.lap.forget();
        }
    }

    /// Notes that a kernel task gets this CPU while a program's address space stays loaded. No
    /// alarm comes meanwhile.
    pub fn lend(&self) {
        if self.lent.load(Ordering::Relaxed) == NOT_LENT {
            self.lent.store(self.lap.taken(), Ordering::Relaxed);
        }
    }

    /// Notes that a program's task gets this CPU, with its address space loaded. Returns whether
    /// kernel tasks opened windows meanwhile: under a policy that bounds their time,
    /// [`CpuWindows::forget_closed`] comes before the program runs. No alarm comes meanwhile.
    #[must_use]
    pub fn take_back(&self) -> bool {
        let before = self.lent.swap(NOT_LENT, Ordering::Relaxed);
        before != NOT_LENT && before != self.lap.taken()
    }

    /// The alarm has come: forgets all slots that were in use. `open` counts the windows that are
    /// open below the interrupt. Returns the nanoseconds after which the alarm has to come again.
    #[must_use]
    pub fn expire(&self, open: u32, cpu: &impl Translations) -> Option<u64> {
        if !self.lap.may_be_cached() {
            return None;
        }
        forget_slots(self.lap.maybe_cached(), cpu);
        let taken = self.lap.taken();
        let before = self.alarmed.swap(taken, Ordering::Relaxed);
        if open > 0 || taken != before {
            return Some(ALARM_NS);
        }
        self.lap.forget();
        None
    }

    /// Windows opened, and laps begun, so far.
    pub fn counts(&self) -> [u64; 2] {
        [self.lap.taken(), self.lap.laps()]
    }
}

impl<const SLOTS: usize, const STEP: u64> Default for CpuWindows<SLOTS, STEP> {
    fn default() -> Self {
        Self::new()
    }
}

/// Forgets the windows of these slots, a bit each. The program's translations are left alone where
/// there are few.
fn forget_slots(slots: u64, cpu: &impl Translations) {
    if slots >> MANY_SLOTS != 0 {
        return cpu.forget_all();
    }
    each_of(slots).for_each(|slot| cpu.forget_slot(slot));
}

/// The slots that have a bit in `slots`.
pub fn each_of(mut slots: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let slot = (slots != 0).then(|| slots.trailing_zeros() as usize)?;
        slots &= slots - 1;
        Some(slot)
    })
}

#[cfg(test)]
mod tests;
