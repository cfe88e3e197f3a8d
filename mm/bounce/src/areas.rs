//! The segments in which CPUs begin to search: a hint for each *area*, which is one CPU or a few.
//!
//! **Apart.** Two CPUs that take from one segment store to one word, whose line goes to and fro. So
//! hints begin apart, as far as there are segments, and a segment remembers the area that used it
//! first since the worker's last look, its *user*. A CPU whose compare-exchange fails in a segment
//! of another user goes to one that has none; where there is none, the worker adds one, until there
//! are as many as areas (`Pool::leave_crowd`). A CPU that gives
//! back pages of a segment with another user, since another CPU took them, stays where it is.
//!
//! A hint is read and stored by its area's CPUs only. A user is stored when the first page is taken
//! after a look. It lies in the line of the segment's word: to look at it costs nothing beside
//! that.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use freehold_machine::Cpus;

use crate::word::SEGMENT_PAGES;

/// The most areas.
pub(crate) const MAX_AREAS: usize = 64;
/// The user of a segment that no area has used since the worker's last look.
pub(crate) const NO_AREA: u8 = u8::MAX;
/// The user of a segment that the worker has not looked at, and that no area has used. It counts as
/// used.
pub(crate) const NEW: u8 = NO_AREA - 1;

/// State of the last use by one area's CPUs, in a cache line of its own.
#[repr(align(128))]
pub(crate) struct PoolArea {
    /// The segment.
    pub hint: AtomicU32,
    /// Pages taken less those given back since the high-water mark was looked at; not below 0.
    net: AtomicI32,
}

impl PoolArea {
    /// Returns whether the net use has grown by a segment since the last time this was said.
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
    /// Sets how many areas there are, and their hints apart in so many segments.
    pub fn start(&self, areas: usize, segments: usize) {
        let count = areas.clamp(1, MAX_AREAS);
        for (number, area) in self.areas.iter().enumerate().take(count) {
            area.hint.store((number * segments / count) as u32, Ordering::Relaxed);
        }
        self.count.store(count, Ordering::Relaxed);
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
