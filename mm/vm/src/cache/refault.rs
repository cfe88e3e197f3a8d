//! Pages that are read again soon after they were evicted.
//!
//! If most evicted pages are read again soon, the pages in use do not fit into memory, and evicting
//! more of them does not help for long. Pages that are read only once are not counted, however many
//! there are. Linux keeps the same knowledge in the page cache's own index (mm/workingset.c).
//!
//! A page that is evicted leaves a mark in a table of fixed size, where a later mark may replace
//! it. So a page that is found there was evicted at most a few thousand evictions ago.

use core::sync::atomic::{AtomicU64, Ordering};

/// Marks: the working sets that are recognised are up to 16 MiB larger than the memory left for
/// them.
const MARKS: usize = 4096;

/// Pages that were evicted lately, as marks of their cache and index; 0: none.
static EVICTED: [AtomicU64; MARKS] = [const { AtomicU64::new(0) }; MARKS];
static REFAULTS: AtomicU64 = AtomicU64::new(0);

/// Pages of all caches that were read again soon after they were evicted, since boot.
pub fn refaults() -> u64 {
    REFAULTS.load(Ordering::Relaxed)
}

/// A page's mark, and its position in the table.
fn mark_of(cache: u64, page: u64) -> (u64, &'static AtomicU64) {
    let spread = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mark = spread(spread(cache) ^ page) | 1;
    (mark, &EVICTED[(mark >> 52) as usize])
}

/// A page of a cache was evicted.
pub(super) fn note_evicted(cache: u64, page: u64) {
    let (mark, place) = mark_of(cache, page);
    place.store(mark, Ordering::Relaxed);
}

/// A page was read.
pub(super) fn note_read(cache: u64, page: u64) {
    let (mark, place) = mark_of(cache, page);
    if place.load(Ordering::Relaxed) == mark {
        place.store(0, Ordering::Relaxed);
        REFAULTS.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that no cache of another test has.
    const CACHE: u64 = 1 << 60;

    fn is_refault(cache: u64, page: u64) -> bool {
        let (mark, place) = mark_of(cache, page);
        place.load(Ordering::Relaxed) == mark
    }

    #[test]
    fn a_page_that_was_evicted_lately_is_known_once() {
        note_evicted(CACHE, 7);
        assert!(is_refault(CACHE, 7) && !is_refault(CACHE, 8) && !is_refault(CACHE + 1, 7));
        let before = refaults();
        note_read(CACHE, 7);
        assert!(refaults() > before && !is_refault(CACHE, 7));
    }

    #[test]
    fn most_of_as_many_pages_as_there_are_marks_are_known_and_few_of_ten_times_as_many() {
        let known = |cache: u64, pages: u64| {
            (0..pages).for_each(|page| note_evicted(cache, page));
            (0..pages).filter(|&page| is_refault(cache, page)).count()
        };
        assert!(known(CACHE + 2, MARKS as u64 / 2) > MARKS / 3);
        assert!(known(CACHE + 3, 10 * MARKS as u64) <= MARKS);
    }
}
