//! The choice of the slot for a CPU's next window.
//!
//! **Protocol.** A CPU has [`Lap`] slots, each of which maps one frame while its window is open. A
//! slot is taken once per lap, upwards, and its entry is cleared when the window closes. The CPU
//! flushes all non-global translations before the next lap begins, so no slot is used while a
//! translation of its last use is cached. A window that is open during the flush can be cached
//! again afterwards: its slot is *held over*, that is, not used in the whole new lap.
//!
//! Windows are opened and closed by their own CPU, and the holder stays on it; they nest, and close
//! in the reverse order. Opening one takes no more than a comparison and a store while a run of
//! free slots lasts ([`Lap::take`]); at its end [`Lap::renew`] finds the next, or begins a lap. A
//! CPU that has flushed everything for another reason, with no window open, reports this in one of
//! two ways. [`Lap::restart`] begins a lap at once: switches of address spaces are frequent, and
//! the next window then costs no more than others. It does not record that nothing is cached.
//! [`Lap::forget`] does: a lap begins at the next window, and its [`Lap::renew`] records that from
//! then on translations may be cached.
//!
//! The model in this file's tests explores every interleaving of two CPUs, three frames and an
//! attacker that makes each CPU cache its tables' entries at any moment.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

/// The slots of one CPU. Only that CPU changes it; other CPUs may read its counts.
///
/// `SLOTS` is at most 64. Each slot has a place, a number: its address, for example. Two slots'
/// places are `STEP` apart.
#[derive(Debug)]
pub struct Lap<const SLOTS: usize, const STEP: u64 = 1> {
    /// The places of the next slot, and of the end of the run of slots that it is in.
    next: AtomicU64,
    limit: AtomicU64,
    /// The place of slot 0.
    start: AtomicU64,
    /// The distance between the places of the first slot of a run and the one after its last.
    longest: AtomicU64,
    /// 1 if no translation is cached: no window was opened since the CPU flushed everything.
    fresh: AtomicU32,
    /// Slots that were in use when this lap began, as bits.
    held: AtomicU64,
    /// `STEP` times the windows taken so far, minus the next slot's place, so that opening a window
    /// updates `next` only.
    base: AtomicU64,
    laps: AtomicU64,
}

/// Result of [`Lap::renew`], and the CPU's duty before it takes a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewal {
    /// More slots of this lap are usable. The CPU has nothing to do.
    SameLap,
    /// A new lap begins: the CPU flushes all non-global translations first.
    NewLap,
    /// The first lap since the CPU flushed everything begins. The CPU has nothing to do, but
    /// translations may be cached from now on.
    Fresh,
}

impl<const SLOTS: usize, const STEP: u64> Lap<SLOTS, STEP> {
    /// Where the next slot's place is, in bytes from the beginning: 64 bits.
    pub const NEXT_OFFSET: usize = core::mem::offset_of!(Self, next);
    /// Where the end of the run of slots is, likewise.
    pub const LIMIT_OFFSET: usize = core::mem::offset_of!(Self, limit);

    /// Makes a lap with no slot in use and nothing cached.
    pub const fn new() -> Self {
        assert!(SLOTS > 0 && SLOTS <= 64 && STEP > 0);
        Self {
            next: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            start: AtomicU64::new(0),
            longest: AtomicU64::new(SLOTS as u64 * STEP),
            fresh: AtomicU32::new(1),
            held: AtomicU64::new(0),
            base: AtomicU64::new(0),
            laps: AtomicU64::new(0),
        }
    }

    /// Says where slot 0 is. Before the first slot is taken.
    pub fn place(&self, start: u64) {
        self.start.store(start, Ordering::Relaxed);
        self.next.store(start, Ordering::Relaxed);
        self.limit.store(start, Ordering::Relaxed);
        self.base.store(start.wrapping_neg(), Ordering::Relaxed);
    }
    /// From the next run on, [`Lap::renew`] finds at most so many slots at once (at least one). Any
    /// CPU may call this.
    pub fn set_longest_run(&self, slots: usize) {
        self.longest.store(slots.clamp(1, SLOTS) as u64 * STEP, Ordering::Relaxed);
    }
    fn longest_run(&self) -> u64 {
        self.longest.load(Ordering::Relaxed)
    }
    fn place_of(&self, slot: usize) -> u64 {
        self.start.load(Ordering::Relaxed) + slot as u64 * STEP
    }
    fn slot_at(&self, place: u64) -> usize {
        ((place - self.start.load(Ordering::Relaxed)) / STEP) as usize
    }
    /// The next slot is that at `place`, and `limit` ends its run. Calls `interrupt` in between.
    #[inline(always)]
    fn go_to(&self, place: u64, limit: u64, mut interrupt: impl FnMut()) {
        let next = self.next.load(Ordering::Relaxed);
        let base = self.base.load(Ordering::Relaxed).wrapping_add(next).wrapping_sub(place);
        self.base.store(base, Ordering::Relaxed);
        self.next.store(place, Ordering::Relaxed);
        interrupt();
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// The next slot. `None` at the end of a run of slots: the caller then calls [`Lap::renew`].
    ///
    /// A kernel may do this itself, in assembly: it takes the 64 bits at [`Lap::NEXT_OFFSET`]; if
    /// they differ from those at [`Lap::LIMIT_OFFSET`], they are the slot's [place](Lap::place),
    /// and it stores that of the slot after it.
    #[inline(always)]
    pub fn take(&self) -> Option<usize> {
        let place = self.next.load(Ordering::Relaxed);
        if place == self.limit.load(Ordering::Relaxed) {
            return None;
        }
        self.next.store(place + STEP, Ordering::Relaxed);
        Some(self.slot_at(place))
    }

    /// Finds the next run of slots, so that [`Lap::take`] can return one. `open` has a bit for each
    /// slot that is in use.
    ///
    /// # Panics
    /// When all slots are in use.
    pub fn renew(&self, open: u64) -> Renewal {
        let (mut held, mut from) =
            (self.held.load(Ordering::Relaxed), self.slot_at(self.limit.load(Ordering::Relaxed)));
        let mut found = Renewal::SameLap;
        if self.fresh.swap(0, Ordering::Relaxed) != 0 {
            (held, from, found) = (open, 0, Renewal::Fresh);
        } else if Self::first_free(held, from).is_none() {
            (held, from, found) = (open, 0, Renewal::NewLap);
        }
        let first = Self::first_free(held, from).expect("all windows of this CPU are in use");
        let end = (held & u64::MAX << first).trailing_zeros().min(SLOTS as u32) as usize;
        self.held.store(held, Ordering::Relaxed);
        let start = self.place_of(first);
        self.go_to(start, self.place_of(end).min(start + self.longest_run()), || {});
        if found != Renewal::SameLap {
            self.laps.store(self.laps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        found
    }

    fn first_free(held: u64, from: usize) -> Option<usize> {
        let free = !held & u64::MAX.checked_shl(from as u32)?;
        let first = free.trailing_zeros() as usize;
        (first < SLOTS).then_some(first)
    }

    /// Notes that the CPU has flushed all non-global translations while no window was open: a lap
    /// begins, if windows were opened since [`Lap::forget`]. [`Lap::may_be_cached`] stays as it is.
    ///
    /// An interrupt in the middle may call [`Lap::forget`].
    #[inline]
    pub fn restart(&self) {
        self.restart_with(|| {});
    }

    /// As [`Lap::restart`], but calls `interrupt` after each step.
    #[inline(always)]
    fn restart_with(&self, mut interrupt: impl FnMut()) {
        if self.may_be_cached() {
            interrupt();
            let start = self.place_of(0);
            self.go_to(start, start + self.longest_run(), &mut interrupt);
            interrupt();
            self.held.store(0, Ordering::Relaxed);
            interrupt();
            self.laps.store(self.laps.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            // An interrupt sees earlier stores, and its own stores are seen after it.
            compiler_fence(Ordering::SeqCst);
            interrupt();
            // Otherwise slots would be taken without a record that they may be cached: they would
            // be used again before the CPU flushes them.
            if !self.may_be_cached() {
                self.forget();
            }
            interrupt();
        }
    }

    /// Notes that the CPU has flushed all non-global translations while no window was open: nothing
    /// is cached.
    #[inline]
    pub fn forget(&self) {
        self.fresh.store(1, Ordering::Relaxed);
        // Ends the run: the next window looks for a new one.
        self.limit.store(self.next.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether a window that is closed may still be cached.
    #[inline]
    pub fn may_be_cached(&self) -> bool {
        self.fresh.load(Ordering::Relaxed) == 0
    }

    /// The slots that were in use since the CPU flushed everything, one bit each: no other slot can
    /// be cached.
    #[inline]
    pub fn maybe_cached(&self) -> u64 {
        if !self.may_be_cached() {
            return 0;
        }
        let next = self.slot_at(self.next.load(Ordering::Relaxed));
        self.held.load(Ordering::Relaxed) | if next < 64 { (1 << next) - 1 } else { u64::MAX }
    }

    /// Windows opened so far.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.base.load(Ordering::Relaxed).wrapping_add(self.next.load(Ordering::Relaxed)) / STEP
    }

    /// Laps begun so far.
    pub fn laps(&self) -> u64 {
        self.laps.load(Ordering::Relaxed)
    }
}

impl<const SLOTS: usize, const STEP: u64> Default for Lap<SLOTS, STEP> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
