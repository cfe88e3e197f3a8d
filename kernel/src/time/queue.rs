//! Timers: something is to happen at a deadline.
//!
//! Every CPU has a queue under an interrupt-safe lock; a timer is put on the queue of the CPU that arms it, whose
//! one-shot timer is set to the earliest deadline. An expiry runs in interrupt context without the queue's lock.
//! Nothing is allocated or freed there: an expired timer's reference goes to `spent`, which the next task that
//! arms a timer empties.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};

use freehold_collections::Vec;
use freehold_machine::{CpuId, MAX_CPUS};

use crate::Result;
use crate::hw;
use crate::sched::heap::{IndexedHeap, Positioned};
use crate::sync::IrqSpinLock;

/// Something that happens at a deadline.
pub trait Expire: Send + Sync {
    /// The timer's place in its queue.
    fn slot(&self) -> &TimerSlot;
    /// The deadline has passed; `now` is the time. Returns the next deadline of a timer that repeats. Interrupt
    /// context: takes interrupt-safe locks only, allocates and frees nothing.
    fn expire(&self, now: u64) -> Option<u64>;
}

/// Where a timer is; part of every object that [expires](Expire).
#[derive(Debug)]
pub struct TimerSlot {
    /// Position in the heap + 1; 0 where it is in none.
    position: AtomicUsize,
    /// The CPU whose queue it is, or was last, in.
    cpu: AtomicU16,
    /// Counts armings and cancellations, so that a repeating timer is not put back after it was cancelled.
    generation: AtomicU64,
}

impl TimerSlot {
    /// Of a timer that is not armed.
    pub const fn new() -> Self {
        Self { position: AtomicUsize::new(0), cpu: AtomicU16::new(0), generation: AtomicU64::new(0) }
    }
    /// Whether its timer waits for its deadline.
    pub fn is_armed(&self) -> bool {
        self.position.load(Ordering::Acquire) != 0
    }
}

impl Default for TimerSlot {
    fn default() -> Self {
        Self::new()
    }
}

impl Positioned for Arc<dyn Expire> {
    fn set_position(&self, position: Option<usize>) {
        self.slot().position.store(position.map_or(0, |at| at + 1), Ordering::Release);
    }
    fn position(&self) -> Option<usize> {
        self.slot().position.load(Ordering::Acquire).checked_sub(1)
    }
}

struct TimerQueue {
    armed: IndexedHeap<Arc<dyn Expire>>,
    /// Expired timers' references, to be dropped by a task.
    spent: Vec<Arc<dyn Expire>>,
    /// When the running task's slice ends; `u64::MAX` for never.
    slice_end: u64,
    /// What the hardware is set to.
    programmed: u64,
}

#[repr(align(128))]
struct PerCpu(IrqSpinLock<TimerQueue>);

static QUEUES: [PerCpu; MAX_CPUS] = [const {
    PerCpu(IrqSpinLock::new(TimerQueue {
        armed: IndexedHeap::new(),
        spent: Vec::new(),
        slice_end: u64::MAX,
        programmed: u64::MAX,
    }))
}; MAX_CPUS];

impl TimerQueue {
    /// Set the hardware to the earliest deadline; on this queue's CPU.
    fn program(&mut self) {
        let first = self.armed.first().map_or(u64::MAX, |(deadline, _)| deadline);
        let wanted = first.min(self.slice_end);
        // An earlier interrupt than needed is harmless and cheaper than setting the timer back and forth.
        if wanted < self.programmed {
            self.programmed = wanted;
            #[cfg(target_os = "none")]
            hw::time::arm(wanted);
        }
    }
}

/// The CPUs' room for timers when they come up.
const FIRST_ROOM: usize = 64;

/// Arm `timer` for `deadline` (nanoseconds of [`now`](super::now)); one that is armed moves.
///
/// # Errors
/// `ENOMEM`.
pub fn try_arm(timer: &Arc<dyn Expire>, deadline: u64) -> Result<()> {
    cancel(timer);
    let mut spare_armed = Vec::new();
    let mut spare_spent = Vec::new();
    loop {
        let mut leftover: [Option<Arc<dyn Expire>>; 4] = [const { None }; 4];
        let here = hw::current_cpu();
        let wanted = {
            let mut queue = QUEUES[usize::from(here.0)].0.lock();
            for slot in &mut leftover {
                *slot = queue.spent.pop();
            }
            spare_armed = queue.armed.give_room(core::mem::take(&mut spare_armed));
            spare_spent = queue.spent.move_to(core::mem::take(&mut spare_spent));
            let total = queue.armed.len() + queue.spent.len() + 1;
            if total <= queue.armed.room() && total <= queue.spent.capacity() {
                let slot = timer.slot();
                slot.cpu.store(here.0, Ordering::Release);
                slot.generation.fetch_add(1, Ordering::AcqRel);
                let inserted = queue.armed.insert(deadline, timer.clone());
                debug_assert!(inserted.is_ok(), "the room was checked");
                queue.program();
                return Ok(());
            }
            (2 * total).max(FIRST_ROOM)
        };
        // What the queue had before is freed here, without its lock.
        drop((leftover, core::mem::take(&mut spare_armed), core::mem::take(&mut spare_spent)));
        spare_armed.try_reserve_exact(wanted)?;
        spare_spent.try_reserve_exact(wanted)?;
    }
}

/// As [`try_arm`]; where memory is short, the timer expires at once instead of never.
pub fn arm(timer: &Arc<dyn Expire>, deadline: u64) {
    if try_arm(timer, deadline).is_err() {
        timer.expire(super::now());
    }
}

/// Disarm `timer`; an expiry that has begun on another CPU may still be going on. Task context.
pub fn cancel(timer: &Arc<dyn Expire>) {
    let slot = timer.slot();
    slot.generation.fetch_add(1, Ordering::AcqRel);
    while slot.is_armed() {
        let cpu = slot.cpu.load(Ordering::Acquire);
        let removed = {
            let mut queue = QUEUES[usize::from(cpu)].0.lock();
            if slot.cpu.load(Ordering::Acquire) != cpu {
                continue;
            }
            timer.position().and_then(|at| queue.armed.remove(at))
        };
        drop(removed);
    }
}

/// Let the running task's slice end at `deadline`, on this CPU.
pub fn set_slice_end(deadline: u64) {
    let mut queue = QUEUES[usize::from(hw::current_cpu().0)].0.lock();
    queue.slice_end = deadline;
    queue.program();
}

/// Run what has expired on this CPU (interrupt context).
pub fn interrupt() {
    let queue = &QUEUES[usize::from(hw::current_cpu().0)].0;
    let now = super::now();
    let mut sliced = false;
    loop {
        let (timer, generation) = {
            let mut queue = queue.lock();
            if queue.slice_end <= now {
                queue.slice_end = u64::MAX;
                sliced = true;
            }
            let due = queue.armed.first().is_some_and(|(deadline, _)| deadline <= now);
            match if due { queue.armed.pop() } else { None } {
                Some((_, timer)) => {
                    let generation = timer.slot().generation.load(Ordering::Acquire);
                    (timer, generation)
                }
                None => {
                    queue.programmed = u64::MAX;
                    queue.program();
                    break;
                }
            }
        };
        let next = timer.expire(now);
        let mut queue = queue.lock();
        let unchanged = timer.slot().generation.load(Ordering::Acquire) == generation;
        match next {
            Some(next) if unchanged => {
                // It just left a place.
                let _ = queue.armed.insert(next, timer);
            }
            _ => queue.spent.push_reserved(timer),
        }
    }
    #[cfg(target_os = "none")]
    if sliced {
        crate::sched::timer_interrupt(now);
    }
    let _ = sliced;
}

/// Whether `id`'s queue holds nothing (for tests and the closing audit).
pub fn is_quiet(id: CpuId) -> bool {
    QUEUES[usize::from(id.0)].0.lock().armed.is_empty()
}
