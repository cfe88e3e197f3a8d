//! The segments in which CPUs begin to search: a hint for each *area*, which is one CPU or a few.
//!
//! **Apart.** Two CPUs that take from one segment store to one word, so its cache line moves
//! between them. So hints begin in different segments if there are enough. A segment remembers the
//! area that used it first since the worker's last scan, its *user*. If a CPU's compare-exchange
//! fails in a segment of another user, the CPU moves to a segment without a user. If there is none,
//! the worker adds segments, until there are as many as areas (`Pool::leave_crowd`). A CPU that
//! frees pages of another user's segment, because another CPU took them, keeps its hint.
//!
//! A hint is read and stored by its area's CPUs only, except that the worker moves it to the CPU's
//! node, at most once a second. A user is stored when the first page is taken
//! after a scan. It is in the same cache line as the segment's word, so reading it costs nothing
//! extra.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use freehold_machine::Cpus;

use crate::word::SEGMENT_PAGES;

/// Largest number of areas.
pub(crate) const MAX_AREAS: usize = 64;
/// The user of a segment that no area has used since the worker's last scan.
pub(crate) const NO_AREA: u8 = u8::MAX;
/// The user of a segment that the worker has not scanned yet, and that no area has used. It counts
/// as used.
pub(crate) const NEW: u8 = NO_AREA - 1;

/// State of the last use by one area's CPUs, in a cache line of its own.
#[repr(align(128))]
pub(crate) struct PoolArea {
    /// The segment.
    pub hint: AtomicU32,
    /// Pages taken minus pages freed since the high-water mark was last updated; not below 0.
    net: AtomicI32,
}

impl PoolArea {
    /// Returns whether the net use has grown by a segment since this last returned true.
    pub fn note_taken(&self, pages: usize) -> bool {
        let net = self.net.load(Ordering::Relaxed) + pages as i32;
        let is_more = net >= SEGMENT_PAGES as i32;
        self.net.store(if is_more { 0 } else { net }, Ordering::Relaxed);
        is_more
    }
    pub fn note_given(&self, pages: i32) {
        let net = self.net.load(Ordering::Relaxed);
        self.net.store((net - pages).max(0), Ordering::Relaxed);
    }
}

/// All areas.
pub(crate) struct Areas {
    areas: [PoolArea; MAX_AREAS],
    count: AtomicUsize,
}

impl Areas {
    pub const fn new() -> Self {
        Self {
            areas: [const { PoolArea { hint: AtomicU32::new(0), net: AtomicI32::new(0) } }; MAX_AREAS],
            count: AtomicUsize::new(1),
        }
    }
    /// Sets the number of areas, and distributes their hints over so many segments.
    pub fn start(&self, areas: usize, segments: usize) {
        let count = areas.clamp(1, MAX_AREAS);
        for (number, area) in self.areas.iter().enumerate().take(count) {
            area.hint.store((number * segments / count) as u32, Ordering::Relaxed);
        }
        self.count.store(count, Ordering::Relaxed);
    }
    /// The hint of area `number`, which is below the count.
    pub fn hint(&self, number: usize) -> &AtomicU32 {
        &self.areas[number].hint
    }
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
    /// The area of this CPU, and its number.
    pub fn of(&self, cpus: impl Cpus) -> (u8, &PoolArea) {
        let number = usize::from(cpus.current_cpu().0) % self.count();
        (number as u8, &self.areas[number])
    }
}
