//! Timers: actions at a deadline.
//!
//! Every CPU has a queue under an interrupt-safe lock; a timer is added to the queue of the CPU
//! that arms it. A queue has a heap per clock, so that no timer moves when the wall clock is set:
//! then each CPU for which a deadline comes earlier is interrupted ([`clock_was_set`]). The CPU's
//! one-shot hardware timer is set to the earliest deadline. An expiry runs
//! in interrupt context without the queue's lock. Nothing is allocated or freed there: an expired
//! timer's reference is moved to `spent`, which tasks that arm timers empty.
//!
//! **Protocol.** A timer is in one queue at most, even if several CPUs arm, cancel and expire it at
//! the same time: its [`TimerSlot`] has one word with its place.
//!
//! - *Nowhere* (0) becomes a place by compare-exchange only, under the lock of the queue that the
//!   place names. If two CPUs arm a timer at once, one has to cancel the other's place first.
//! - A place changes under the lock of the queue that it names. A timer whose expiry runs keeps its
//!   place in the queue that it was taken from ([`TAKEN`]): so no CPU arms it elsewhere while it
//!   may be put back there.
//! - A CPU that cancels a running expiry sets the timer's place to nowhere and changes its
//!   generation. The expiry checks the generation under the lock before it puts the timer back. If
//!   it differs, the place no longer belongs to the expiry.
//!
//! `queue_model.rs` explores the orders.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{Arc, Vec};
use freehold_machine::{CpuId, Cpus as _, MAX_CPUS};

use super::{Base, Deadline};
use crate::Result;
use crate::hw;
use crate::hw::irq::InterruptsOff;
use crate::hw::sync::lock_with;
use crate::sched::heap::{IndexedHeap, Positioned};
use crate::sync::IrqSpinLock;

/// An object with an action at a deadline.
pub trait Expire: Send + Sync {
    /// Returns the timer's slot.
    fn slot(&self) -> &TimerSlot;
    /// Called when the deadline has passed; `now` is the time since boot. Returns the next deadline
    /// of a repeating timer. Interrupt context: takes interrupt-safe locks only, allocates and
    /// frees nothing.
    fn expire(&self, now: u64) -> Option<Deadline>;
}

/// The place of a timer; part of every object that [expires](Expire).
#[derive(Debug)]
pub struct TimerSlot {
    /// 0 for nowhere. Otherwise the upper bits are the CPU of the queue, one is [`BY_WALL`], and
    /// the lower ones are the position in the heap + 1, or [`TAKEN`].
    place: AtomicU64,
    /// Counts the expiries that were cancelled while they ran.
    generation: AtomicU64,
}

/// The CPU's number is in the bits of a place from this one on.
const CPU_SHIFT: u32 = 48;
/// The bit of a place in the heap of the wall clock.
const BY_WALL: u64 = 1 << 47;
/// The position of a timer that was removed from its heap; the bits of positions.
const TAKEN: u64 = BY_WALL - 1;

impl TimerSlot {
    /// Makes the slot of a timer that is not armed.
    pub const fn new() -> Self {
        Self { place: AtomicU64::new(0), generation: AtomicU64::new(0) }
    }
    /// Claims a timer that is nowhere for the queue of `cpu`, whose lock the caller holds. Returns
    /// whether it was nowhere.
    fn claim(&self, cpu: CpuId, base: Base) -> bool {
        let place = Self::taken_from(cpu, base);
        self.place.compare_exchange(0, place, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
    /// Chooses the heap for a timer whose expiry ran on `cpu`, and which was not cancelled
    /// meanwhile. The caller holds the queue's lock.
    fn choose(&self, cpu: CpuId, base: Base) {
        self.place.store(Self::taken_from(cpu, base), Ordering::Release);
    }
    /// Returns the place of a timer that is in no heap, but belongs to one.
    fn taken_from(cpu: CpuId, base: Base) -> u64 {
        let heap = if base == Base::Wall { BY_WALL } else { 0 };
        u64::from(cpu.0) << CPU_SHIFT | heap | TAKEN
    }
    /// Sets the timer's place to nowhere. The caller holds the lock of the queue in its place.
    fn release(&self) {
        self.place.store(0, Ordering::Release);
    }
    /// Returns where the timer is; `None` if it is nowhere.
    fn place(&self) -> Option<TimerPlace> {
        match self.place.load(Ordering::Acquire) {
            0 => None,
            place => Some(TimerPlace {
                cpu: CpuId((place >> CPU_SHIFT) as u16),
                base: if place & BY_WALL != 0 { Base::Wall } else { Base::Boot },
                position: place & TAKEN,
            }),
        }
    }
}

/// The place of a timer.
struct TimerPlace {
    /// The CPU of its queue.
    cpu: CpuId,
    /// The clock of its heap.
    base: Base,
    /// Its position + 1, or [`TAKEN`].
    position: u64,
}

impl Default for TimerSlot {
    fn default() -> Self {
        Self::new()
    }
}

impl Positioned for Arc<dyn Expire> {
    fn set_position(&self, position: Option<usize>) {
        let place = &self.slot().place;
        let position = position.map_or(TAKEN, |at| at as u64 + 1);
        place.store(place.load(Ordering::Relaxed) & !TAKEN | position, Ordering::Release);
    }
    fn position(&self) -> Option<usize> {
        let position = self.slot().place()?.position;
        if position == TAKEN { None } else { usize::try_from(position - 1).ok() }
    }
}

struct TimerQueue {
    /// The armed timers by [`Base`]. Each heap has room for all timers of the queue.
    armed: [IndexedHeap<Arc<dyn Expire>>; 2],
    /// References of expired timers, to be dropped by a task.
    spent: Vec<Arc<dyn Expire>>,
    /// End of the running task's slice; `u64::MAX` for never.
    slice_end: u64,
    /// The time to which the hardware timer is set.
    programmed: u64,
    /// No timer interrupt is requested before this time.
    quiet_until: u64,
}

/// After a timer interrupt a CPU takes no further one for this many times its duration, and for
/// [`LEAST_QUIET`] at least. So however many timers programs have, and however short their
/// intervals are, they get only a part of the CPU (Linux: `hrtimer_interrupt`, `hang_detected`).
const QUIET: u64 = 3;
/// In nanoseconds. The measured duration does not include entering and leaving the interrupt. Linux
/// permits sleeps to be 50,000 late (`timer_slack_ns`).
const LEAST_QUIET: u64 = 25_000;

#[repr(align(128))]
struct PerCpu(IrqSpinLock<TimerQueue>);

static QUEUES: [PerCpu; MAX_CPUS] = [const {
    PerCpu(IrqSpinLock::new(TimerQueue {
        armed: [const { IndexedHeap::new() }; 2],
        spent: Vec::new(),
        slice_end: u64::MAX,
        programmed: u64::MAX,
        quiet_until: 0,
    }))
}; MAX_CPUS];

impl TimerQueue {
    /// Returns the heap of a clock.
    fn heap(&mut self, base: Base) -> &mut IndexedHeap<Arc<dyn Expire>> {
        &mut self.armed[base as usize]
    }
    /// Returns the number of armed timers and spent references.
    fn total(&self) -> usize {
        self.armed.iter().map(IndexedHeap::len).sum::<usize>() + self.spent.len()
    }
    /// Returns the [total](Self::total) for which each buffer has room: each may get all of it.
    fn room(&self) -> usize {
        self.armed.iter().map(IndexedHeap::room).fold(self.spent.capacity(), usize::min)
    }
    /// Returns the time since boot at which the hardware timer must interrupt.
    fn wanted(&self) -> u64 {
        let first = |base: Base| {
            let heap = &self.armed[base as usize];
            heap.first().map_or(u64::MAX, |(at, _)| Deadline { base, at }.since_boot())
        };
        first(Base::Boot).min(first(Base::Wall)).min(self.slice_end).max(self.quiet_until)
    }
    /// Removes a timer whose deadline has passed at `now`, if there is one.
    fn pop_due(&mut self, now: u64) -> Option<Arc<dyn Expire>> {
        let is_due =
            |base: Base, heap: &IndexedHeap<_>| heap.first().is_some_and(|(at, _)| at <= base.at(now));
        let base =
            [Base::Boot, Base::Wall].into_iter().find(|&base| is_due(base, &self.armed[base as usize]))?;
        self.heap(base).pop().map(|(_, timer)| timer)
    }
    /// Sets the hardware timer to the earliest deadline. Runs on this queue's CPU.
    fn program(&mut self) {
        let wanted = self.wanted();
        // An unnecessarily early interrupt is harmless, and cheaper than setting the timer
        // repeatedly.
        if wanted < self.programmed {
            self.programmed = wanted;
            hw::time::arm(wanted);
        }
    }
}

/// Number of timers for which each CPU has room when it starts.
const FIRST_ROOM: usize = 64;

/// Arms `timer` for `deadline`; a number is a time since boot ([`now`](super::now)). An armed timer
/// is moved.
///
/// # Errors
/// `ENOMEM`.
pub fn try_arm(timer: &Arc<dyn Expire>, deadline: impl Into<Deadline>) -> Result<()> {
    try_arm_for(timer, deadline.into())
}

fn try_arm_for(timer: &Arc<dyn Expire>, deadline: Deadline) -> Result<()> {
    loop {
        cancel(timer);
        match insert(timer, deadline) {
            Inserted::Yes => return Ok(()),
            Inserted::ElsewhereAlready => {}
            Inserted::Full => make_room()?,
        }
    }
}

/// The outcome of an [`insert`].
enum Inserted {
    Yes,
    /// Another thread has armed the timer meanwhile.
    ElsewhereAlready,
    /// The queue has no room.
    Full,
}

/// Adds a timer, which was nowhere, to the queue of this CPU.
#[inline]
fn insert(timer: &Arc<dyn Expire>, deadline: Deadline) -> Inserted {
    let here = hw::current_cpu();
    let mut queue = QUEUES[usize::from(here.0)].0.lock();
    if queue.total() >= queue.room() {
        return Inserted::Full;
    }
    if !timer.slot().claim(here, deadline.base) {
        return Inserted::ElsewhereAlready;
    }
    let inserted = queue.heap(deadline.base).insert(deadline.at, timer.clone());
    debug_assert!(inserted.is_ok(), "the room was checked");
    queue.program();
    let has_spent = !queue.spent.is_empty();
    drop(queue);
    if has_spent {
        drop_spent(here);
    }
    Inserted::Yes
}

/// Drops some references of expired timers: more than expire between two timers that are armed.
#[cold]
fn drop_spent(cpu: CpuId) {
    let mut some: [Option<Arc<dyn Expire>>; 4] = [const { None }; 4];
    let mut queue = QUEUES[usize::from(cpu.0)].0.lock();
    for slot in &mut some {
        *slot = queue.spent.pop();
    }
    drop(queue);
    drop(some);
}

/// Makes room for twice the timers of this CPU's queue.
///
/// # Errors
/// `ENOMEM`.
#[cold]
fn make_room() -> Result<()> {
    let queue = &QUEUES[usize::from(hw::current_cpu().0)].0;
    let wanted = (2 * (queue.lock().total() + 1)).max(FIRST_ROOM);
    let (mut armed, mut spent) = ([const { Vec::new() }; 2], Vec::new());
    for buffer in &mut armed {
        buffer.try_reserve_exact(wanted)?;
    }
    spent.try_reserve_exact(wanted)?;
    let mut queue = queue.lock();
    for (heap, buffer) in queue.armed.iter_mut().zip(&mut armed) {
        *buffer = heap.give_room(core::mem::take(buffer));
    }
    spent = queue.spent.move_to(spent);
    drop(queue);
    // The old buffers are freed here, without the lock.
    drop((armed, spent));
    Ok(())
}

/// As [`try_arm`], but if memory is short, the timer expires at once instead of never.
pub fn arm(timer: &Arc<dyn Expire>, deadline: impl Into<Deadline>) {
    if try_arm(timer, deadline).is_err() {
        timer.expire(super::now());
    }
}

/// Disarms `timer`. An expiry that has begun on another CPU may still be running, and is the last.
/// Task context.
pub fn cancel(timer: &Arc<dyn Expire>) {
    let slot = timer.slot();
    while let Some(TimerPlace { cpu, .. }) = slot.place() {
        let removed = {
            let mut queue = QUEUES[usize::from(cpu.0)].0.lock();
            let Some(place) = slot.place().filter(|place| place.cpu == cpu) else { continue };
            let removed = match place.position {
                TAKEN => {
                    slot.generation.fetch_add(1, Ordering::Relaxed);
                    None
                }
                position => queue.heap(place.base).remove((position - 1) as usize),
            };
            slot.release();
            removed
        };
        drop(removed);
    }
}

/// Sets the end of the running task's slice to `deadline`, on this CPU.
pub fn set_slice_end(deadline: u64, interrupts: &InterruptsOff) {
    let mut queue = lock_with(&QUEUES[usize::from(hw::current_cpu().0)].0, interrupts);
    queue.slice_end = deadline;
    queue.program();
}

/// Interrupts each CPU that has a deadline which comes earlier now: the wall clock was set.
pub(super) fn clock_was_set() {
    let is_late = |cpu: usize| {
        let queue = QUEUES[cpu].0.lock();
        queue.wanted() < queue.programmed
    };
    for cpu in (0..hw::Hardware.cpu_count()).filter(|&cpu| is_late(cpu)) {
        hw::time::interrupt_now(CpuId(cpu as u16));
    }
}

/// Runs the expired timers of this CPU (interrupt context).
pub fn interrupt() {
    let here = hw::current_cpu();
    let queue = &QUEUES[usize::from(here.0)].0;
    let now = super::now();
    let mut sliced = false;
    loop {
        let (timer, generation) = {
            let mut queue = queue.lock();
            if queue.slice_end <= now {
                queue.slice_end = u64::MAX;
                sliced = true;
            }
            match queue.pop_due(now) {
                Some(timer) => {
                    let generation = timer.slot().generation.load(Ordering::Relaxed);
                    (timer, generation)
                }
                None => {
                    let end = super::now();
                    let quiet = end.saturating_sub(now).saturating_mul(QUIET).max(LEAST_QUIET);
                    queue.quiet_until = end.saturating_add(quiet);
                    queue.programmed = u64::MAX;
                    queue.program();
                    break;
                }
            }
        };
        let next = timer.expire(now);
        let mut queue = queue.lock();
        let slot = timer.slot();
        let was_cancelled = slot.generation.load(Ordering::Relaxed) != generation;
        match next {
            Some(next) if !was_cancelled => {
                slot.choose(here, next.base);
                // There is room in both heaps, because it has just been removed from one.
                let _ = queue.heap(next.base).insert(next.at, timer);
            }
            _ => {
                if !was_cancelled {
                    slot.release();
                }
                queue.spent.push_reserved(timer);
            }
        }
    }
    if sliced {
        crate::sched::timer_interrupt(now);
    }
}

/// Returns how many armed timers are not at their stored place. Unless the protocol was violated,
/// it is 0.
pub fn misplaced() -> usize {
    let of = |cpu: usize| {
        let queue = QUEUES[cpu].0.lock();
        let wrong = |base: Base| {
            let is_at = move |at: usize, place: TimerPlace| {
                place.cpu == CpuId(cpu as u16) && place.base == base && place.position == at as u64 + 1
            };
            let entries = queue.armed[base as usize].iter().enumerate();
            entries.filter(|(at, timer)| !timer.slot().place().is_some_and(|place| is_at(*at, place))).count()
        };
        wrong(Base::Boot) + wrong(Base::Wall)
    };
    (0..MAX_CPUS).map(of).sum()
}
