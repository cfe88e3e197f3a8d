//! Windows: short-lived mappings of one frame, private to a CPU.
//!
//! Each CPU has [`SLOTS`] pages of its own. A slot is used once per lap: taken upwards, cleared after use,
//! and used again only after the CPU forgot all non-global translations at the end of the lap. So a window
//! costs one entry store on each side and 1/64 of a local flush, and no other CPU ever caches one.
//!
//! The holder is pinned; nesting takes further slots, which a lap steps over. Interrupt handlers never use
//! windows. A window that is open while its CPU forgets translations can be cached again after that: its slot is
//! left out for the whole new lap. Frames that the direct map holds are reached through it: they are the kernel's own.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use freehold_machine::{
    Cpus, Flush, PAGE_SIZE, Pfn, PfnRange, PhysicalBytes, Pinned, TABLE_ENTRIES, Tlb, VirtAddr,
};

use super::tables::{self, ACCESSED, DIRTY, NO_EXECUTE, PRESENT, WRITABLE};
use super::{OutOfMemory, direct, layout, pluggable};
use crate::X86;
use crate::boot;
use crate::cpu::{self, PerCpu};

/// Windows of one CPU.
pub(crate) const SLOTS: usize = 64;
const WINDOW: u64 = PRESENT | WRITABLE | ACCESSED | DIRTY | NO_EXECUTE;

/// A CPU's windows. Only its own CPU uses it, pinned.
pub(crate) struct Windows {
    /// The [`SLOTS`] translation entries, in the direct map; null until [`attach`].
    entries: AtomicPtr<AtomicU64>,
    lap: Lap,
}

impl Windows {
    pub(crate) const fn new() -> Self {
        Self { entries: AtomicPtr::new(core::ptr::null_mut()), lap: Lap::new() }
    }
}

/// Which slot is next, and which are in use. All accesses are by the owning CPU; the atomics are never
/// contended and only make the type shareable.
pub(crate) struct Lap {
    next: AtomicU64,
    in_use: AtomicU64,
    /// Slots that were in use when this lap began.
    held_over: AtomicU64,
}

/// Whether a flush is due before the slot may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    SameLap,
    NewLap,
}

impl Lap {
    pub(crate) const fn new() -> Self {
        Self { next: AtomicU64::new(0), in_use: AtomicU64::new(0), held_over: AtomicU64::new(0) }
    }
    /// The next free slot of this lap or, behind its end, of a new one.
    ///
    /// # Panics
    /// When all slots are in use at once.
    pub(crate) fn take(&self) -> (usize, Turn) {
        let in_use = self.in_use.load(Ordering::Relaxed);
        assert!(in_use != u64::MAX, "all windows of this CPU are in use");
        let mut turn = Turn::SameLap;
        let mut slot = self.next.load(Ordering::Relaxed);
        loop {
            if slot >= SLOTS as u64 {
                slot = 0;
                turn = Turn::NewLap;
                self.held_over.store(in_use, Ordering::Relaxed);
            }
            if (in_use | self.held_over.load(Ordering::Relaxed)) >> slot & 1 == 0 {
                break;
            }
            slot += 1;
        }
        self.in_use.store(in_use | 1 << slot, Ordering::Relaxed);
        self.next.store(slot + 1, Ordering::Relaxed);
        (slot as usize, turn)
    }
    /// All slots at once, at the beginning of a lap of their own; `false`, and none, where one is in use.
    pub(crate) fn take_all(&self) -> bool {
        let free = self.in_use.load(Ordering::Relaxed) == 0;
        if free {
            self.in_use.store(u64::MAX, Ordering::Relaxed);
        }
        free
    }
    /// Give all back: the next one begins a new lap.
    pub(crate) fn give_all_back(&self) {
        self.in_use.store(0, Ordering::Relaxed);
        self.held_over.store(0, Ordering::Relaxed);
        self.next.store(SLOTS as u64, Ordering::Relaxed);
    }
    pub(crate) fn give_back(&self, slot: usize) {
        let in_use = self.in_use.load(Ordering::Relaxed);
        self.in_use.store(in_use & !(1 << slot), Ordering::Relaxed);
    }
    fn used(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }
}

fn cpu_base(cpu: usize) -> VirtAddr {
    VirtAddr(layout().windows + (cpu * SLOTS * PAGE_SIZE) as u64)
}

/// Make the tables above the windows of all CPUs, at start-up.
pub(crate) fn prepare(alloc: &mut dyn FnMut() -> Option<Pfn>) -> Result<(), OutOfMemory> {
    tables::table_at(cpu_base(0), 2, alloc).map(|_| ())
}

/// Give `cpu` its windows before it runs.
pub(crate) fn attach(per_cpu: &PerCpu, cpu: usize) -> Result<(), OutOfMemory> {
    let table = tables::table_at(cpu_base(cpu), 1, &mut || super::alloc_frames(0))?;
    let first = tables::entry(table, cpu * SLOTS % TABLE_ENTRIES);
    per_cpu.windows.entries.store(core::ptr::from_ref(first).cast_mut(), Ordering::Release);
    Ok(())
}

/// A frame's bytes within reach of this CPU, which is held; a window is given back when this is dropped.
struct Reached {
    bytes: *mut [u8; PAGE_SIZE],
    /// The slot and its entry; `None` for what the direct map holds.
    window: Option<(usize, &'static AtomicU64)>,
    _pinned: Pinned<X86>,
}

impl Drop for Reached {
    fn drop(&mut self) {
        if let Some((slot, entry)) = self.window {
            entry.store(0, Ordering::Relaxed);
            cpu::this().windows.lap.give_back(slot);
        }
    }
}

/// Bring a frame's bytes within reach.
///
/// # Panics
/// When it is no memory, the kernel's image, or in a window of this CPU already.
fn reach(frame: Pfn) -> Reached {
    let is_memory = boot::info().is_plain_memory(frame) || pluggable::is_plugged(frame);
    assert!(is_memory, "{frame:?} is not memory that may be touched");
    let pinned = X86.pin();
    if direct::contains(frame) {
        return Reached { bytes: tables::frame_ptr(frame).cast(), window: None, _pinned: pinned };
    }
    let windows = &cpu::this().windows;
    let entries = windows.entries.load(Ordering::Relaxed);
    assert!(!entries.is_null(), "no windows on this CPU yet");
    let mut used = windows.lap.used();
    while used != 0 {
        let slot = used.trailing_zeros() as usize;
        // SAFETY: `entries` points to the SLOTS entries of this CPU and `slot` is below that.
        let other = unsafe { &*entries.wrapping_add(slot) };
        assert!(tables::frame_of(other.load(Ordering::Relaxed)) != frame, "{frame:?} is in a window already");
        used &= used - 1;
    }
    let (slot, turn) = windows.lap.take();
    if turn == Turn::NewLap {
        X86.flush_local(Flush::NonGlobal);
    }
    // SAFETY: as above.
    let entry: &'static AtomicU64 = unsafe { &*entries.wrapping_add(slot) };
    entry.store(tables::leaf(frame, WINDOW), Ordering::Release);
    let address = cpu_base(usize::from(pinned.cpu().0)).0 + (slot * PAGE_SIZE) as u64;
    Reached { bytes: address as *mut _, window: Some((slot, entry)), _pinned: pinned }
}

/// Zero up to [`SLOTS`] frames through windows that lie side by side, as one stretch of memory. `false`, and nothing done, where a
/// window of this CPU is in use, or a frame is the kernel's or no memory.
fn zero_side_by_side(frames: PfnRange) -> bool {
    if !boot::info().is_plain_run(frames) || direct::touches(frames) {
        return false;
    }
    let pinned = X86.pin();
    let windows = &cpu::this().windows;
    let entries = windows.entries.load(Ordering::Relaxed);
    if entries.is_null() || !windows.lap.take_all() {
        return false;
    }
    X86.flush_local(Flush::NonGlobal);
    let entry = |slot: usize| -> &'static AtomicU64 {
        // SAFETY: `entries` points to the SLOTS entries of this CPU and `slot` is below that: there are at most SLOTS frames.
        unsafe { &*entries.wrapping_add(slot) }
    };
    for (slot, frame) in frames.iter().take(SLOTS).enumerate() {
        entry(slot).store(tables::leaf(frame, WINDOW), Ordering::Release);
    }
    let bytes = cpu_base(usize::from(pinned.cpu().0)).0 as *mut u8;
    let count = frames.iter().len().min(SLOTS);
    // SAFETY: the CPU's first `count` windows were just opened on frames that the caller owns, with nothing stale: no other
    // window of this CPU was in use.
    unsafe { core::ptr::write_bytes(bytes, 0, count * PAGE_SIZE) };
    (0..count).for_each(|slot| entry(slot).store(0, Ordering::Relaxed));
    windows.lap.give_all_back();
    drop(pinned);
    true
}

impl PhysicalBytes for X86 {
    fn zero_run(self, first: Pfn, count: u64) {
        for start in (0..count).step_by(SLOTS) {
            let frames = PfnRange::new(first.offset(start), first.offset(count.min(start + SLOTS as u64)));
            if frames.iter().len() == 1 || !zero_side_by_side(frames) {
                frames.iter().for_each(|frame| self.zero(frame));
            }
        }
    }
    fn with_bytes<R>(self, frame: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        let reached = reach(frame);
        // SAFETY: while `reached` lives, its pointer leads to the frame on this CPU, with no stale translation of the
        // slot's last lap and no other window of this CPU on it. What the direct map holds is the kernel's: the
        // callers of this trait own the frames that they name.
        f(unsafe { &mut *reached.bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_never_used_twice_in_one_lap() {
        let lap = Lap::new();
        let mut seen = 0u64;
        for _ in 0..1000 {
            let (slot, turn) = lap.take();
            if turn == Turn::NewLap {
                seen = 0;
            }
            assert_eq!(seen >> slot & 1, 0);
            seen |= 1 << slot;
            lap.give_back(slot);
        }
    }

    #[test]
    fn a_slot_open_over_a_flush_rests_until_the_next() {
        let lap = Lap::new();
        for _ in 0..SLOTS - 1 {
            lap.give_back(lap.take().0);
        }
        let (outer, _) = lap.take();
        let (inner, turn) = lap.take();
        assert_eq!((outer, turn), (SLOTS - 1, Turn::NewLap));
        lap.give_back(inner);
        // Its translation may have been cached since the flush.
        lap.give_back(outer);
        loop {
            let (slot, turn) = lap.take();
            if turn == Turn::NewLap {
                break;
            }
            assert_ne!(slot, outer);
            lap.give_back(slot);
        }
    }

    #[test]
    fn all_slots_are_had_together_only_while_none_is_open_and_a_new_lap_follows() {
        let lap = Lap::new();
        let (slot, _) = lap.take();
        assert!(!lap.take_all());
        lap.give_back(slot);
        assert!(lap.take_all() && !lap.take_all());
        lap.give_all_back();
        assert_eq!(lap.take().1, Turn::NewLap);
    }

    #[test]
    fn a_lap_steps_over_slots_that_are_still_in_use() {
        let lap = Lap::new();
        let (outer, _) = lap.take();
        for _ in 0..1000 {
            let (slot, _) = lap.take();
            assert_ne!(slot, outer);
            lap.give_back(slot);
        }
        lap.give_back(outer);
    }
}
