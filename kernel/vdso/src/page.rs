//! The page of time, as the kernel writes it and the image reads it.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | the time-stamp counter when the kernel was entered; [`SHIFTED`] in a time namespace, [`SLEWED_BASE`] once the wall clock was slewed |
//! | 8 | 8 | nanoseconds per tick of the counter, << 32 |
//! | 16 | 8 | seconds per [`UNIT`] ticks, << 64 |
//! | 24 | 8 | nanoseconds since 1970 when the kernel was entered: CLOCK_REALTIME minus CLOCK_MONOTONIC (signed); [`SLEWED_WALL`] while the wall clock is slewed |
//! | 32 | 8 | the counter's value in 1970, had it run then, in units of [`UNIT`] ticks (modulo 2^64) |
//! | 40 | 8 | the time-stamp counter when the kernel was entered |
//!
//! The rest is zeroes. Nothing else is ever put here: the page is in every program.
//!
//! **Time namespaces** cost a program outside of them nothing. Programs in a time namespace have
//! another page, the same for all of them, whose first word is later than the counter ever is. So
//! the subtraction that each reading begins with fails, and the reading goes another way: it takes
//! the counter's start from the last word, and adds an offset of [`TimeOffsets`], the page before
//! this one. Offsets do not change once a program is in the namespace. (Linux' nearest relative is
//! `VDSO_CLOCKMODE_TIMENS`.)
//!
//! **No reading is torn, without a sequence count.** The first three words are written before the
//! first program runs, and never again: ticks times the factor is a product of 128 bits, so the
//! counter need not be based anew as long as the machine runs. Setting the wall clock is a store of
//! one aligned word for each of the last two, and every function of the image uses one of them. So
//! a reader sees the clock from before or from after, never parts of both, and does not wait (Linux
//! counts sequences because NTP changes several words at each tick).
//!
//! A reader could still join the counter of one moment with a clock that was set at a later one,
//! and tell a time shortly before the one that was set, which no clock ever showed. So
//! [`TimePage::wall`] loads its word again after the counter, and starts anew where it has changed.
//! A word that changed and changed back is the right one. [`TimePage::seconds`] loads its word
//! before the counter: it may go on by the clock that was right when it was called.
//!
//! **A slewed wall clock** (adjtimex(2)) has another rate than the counter: programs then ask the
//! kernel. First the first word changes, for ever, so that every reading goes the other way as in a
//! namespace, and then the word of the wall clock. That one may change back: only the other way
//! reads it from now on, and looks for it in the same word that it adds.
//!
//! **time(2)** has words of its own, so that it is one multiplication and no division. Both are
//! rounded down: its result is never later than the second that CLOCK_REALTIME is in, and lags by
//! less than a microsecond, and 0.2 ms more for each year of the machine's life (at 1 GHz; on
//! Linux, by up to a tick of 4 ms).

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering, compiler_fence};

/// See the module's head.
#[repr(C)]
#[derive(Debug)]
pub struct TimePage {
    /// The time-stamp counter when the kernel was entered; [`SHIFTED`] in a time namespace.
    pub base: AtomicU64,
    /// Nanoseconds per tick, << [`SHIFT`].
    pub factor: AtomicU64,
    /// Seconds per [`UNIT`] ticks, << 64.
    pub seconds_factor: AtomicU64,
    /// Nanoseconds since 1970 when the kernel was entered.
    pub wall: AtomicI64,
    /// The counter in 1970, in units of [`UNIT`] ticks.
    pub seconds_base: AtomicU64,
    /// The time-stamp counter when the kernel was entered.
    pub start: AtomicU64,
}

/// [`TimePage::base`] of programs in a time namespace.
pub const SHIFTED: u64 = u64::MAX;

/// [`TimePage::base`] once the wall clock was slewed.
pub const SLEWED_BASE: u64 = u64::MAX - 1;
/// [`TimePage::wall`] while the wall clock is slewed.
pub const SLEWED_WALL: i64 = i64::MIN;

/// The page of a time namespace: nanoseconds to add to the machine's clocks.
#[repr(C)]
#[derive(Debug)]
pub struct TimeOffsets {
    /// For CLOCK_MONOTONIC and its kin.
    pub monotonic: AtomicI64,
    /// For CLOCK_BOOTTIME.
    pub boottime: AtomicI64,
}

/// How far [`TimePage::factor`] is shifted.
pub const SHIFT: u32 = 32;
/// How many ticks [`TimePage::seconds_base`] counts as one: so it reaches further than 1,800 years,
/// at 5 GHz.
pub const UNIT: u64 = 16;
/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// The selector of the segment whose limit is the CPU's number, and its node above [`NODE_SHIFT`]
/// (Linux' `__CPUNODE_SEG`).
pub const CPU_SELECTOR: u16 = 0x7b;
/// Where in that limit the node is.
pub const NODE_SHIFT: u32 = 12;

impl TimePage {
    #[inline(always)]
    fn scaled(&self, since: u64) -> u64 {
        ((u128::from(since) * u128::from(self.factor.load(Ordering::Relaxed))) >> SHIFT) as u64
    }

    /// CLOCK_MONOTONIC when the time-stamp counter is `ticks`, in nanoseconds. `None` in a time
    /// namespace, and before the start of the clock.
    #[inline(always)]
    pub fn monotonic(&self, ticks: u64) -> Option<u64> {
        ticks.checked_sub(self.base.load(Ordering::Relaxed)).map(|since| self.scaled(since))
    }

    /// The machine's CLOCK_MONOTONIC when the time-stamp counter is `ticks`, in nanoseconds.
    #[inline(always)]
    pub fn machine_monotonic(&self, ticks: u64) -> u64 {
        self.scaled(ticks.saturating_sub(self.start.load(Ordering::Relaxed)))
    }

    /// CLOCK_REALTIME when the time-stamp counter is what `ticks` reads, in nanoseconds since 1970.
    /// `None` in a time namespace, before the start of the clock, and once the clock was slewed.
    #[inline(always)]
    pub fn wall(&self, ticks: impl Fn() -> u64) -> Option<u64> {
        self.wall_by(ticks, |page, ticks, _| page.monotonic(ticks))
    }

    /// [`TimePage::wall`] in any namespace; `None` while the clock is slewed.
    #[inline(always)]
    pub fn machine_wall(&self, ticks: impl Fn() -> u64) -> Option<u64> {
        self.wall_by(ticks, |page, ticks, wall| (wall != SLEWED_WALL).then(|| page.machine_monotonic(ticks)))
    }

    #[inline(always)]
    fn wall_by(
        &self,
        ticks: impl Fn() -> u64,
        monotonic: impl Fn(&Self, u64, i64) -> Option<u64>,
    ) -> Option<u64> {
        loop {
            let wall = self.wall.load(Ordering::Acquire);
            let ticks = ticks();
            // The compiler keeps both loads; the counter is read after the first.
            compiler_fence(Ordering::SeqCst);
            if self.wall.load(Ordering::Acquire) == wall {
                return monotonic(self, ticks, wall).map(|since| since.wrapping_add(wall as u64));
            }
        }
    }

    /// The second that [`TimePage::wall`] is in, or has just left.
    #[inline(always)]
    pub fn seconds(&self, ticks: impl FnOnce() -> u64) -> i64 {
        let base = self.seconds_base.load(Ordering::Acquire);
        compiler_fence(Ordering::SeqCst);
        let units = (ticks() / UNIT).wrapping_sub(base);
        ((u128::from(units) * u128::from(self.seconds_factor.load(Ordering::Relaxed))) >> 64) as i64
    }

    /// Returns the value of [`TimePage::seconds_factor`] for a [`TimePage::factor`].
    pub fn seconds_factor(factor: u64) -> u64 {
        (((u128::from(factor) * u128::from(UNIT)) << SHIFT) / u128::from(SECOND)) as u64
    }

    /// Returns the value of [`TimePage::seconds_base`] for the other words; `wall` is not negative.
    pub fn seconds_base(base: u64, seconds_factor: u64, wall: i64) -> u64 {
        let since_1970 =
            ((wall.max(0) as u128) << 64) / (u128::from(SECOND) * u128::from(seconds_factor.max(1)));
        // The division rounds down. One unit is added, so that the base is never too early.
        (base / UNIT + 1).wrapping_sub(since_1970 as u64)
    }
}
