//! A check whether evicting pages of files still helps.
//!
//! If nearly all memory cannot be reclaimed, the remaining pages of files are in use, including
//! programs' text. Each evicted page is read again at once, and evicts another. All tasks are busy,
//! and none makes progress. Evicting such pages frees no memory. Then the largest program is killed
//! (`task::oom`), as if its text could not be evicted.
//!
//! Reading a large file once, with little memory, does not count: its pages are read only once
//! ([`freehold_vm::refaults`]). Nor does a working set that does not fit into a cache of some size,
//! nor the sum over several minutes: such programs make progress.

use super::{PageKind, Who, caches, counts};
use crate::mem::frames;
use crate::sync::SpinLock;
use crate::time;

/// If more than 1/16 of memory is in caches, that is enough.
const LITTLE: u64 = 16;
/// This many evictions are significant.
const ENOUGH: u64 = 1024;
/// Only evictions within this time count.
const SOON: u64 = 10 * time::SECOND;

/// Totals since boot, and the time of the count.
#[derive(Clone, Copy)]
struct Totals {
    anonymous: u64,
    files: u64,
    refaults: u64,
    time: u64,
}

static SINCE: SpinLock<Totals> = SpinLock::new(Totals { anonymous: 0, files: 0, refaults: 0, time: 0 });

impl Totals {
    fn now() -> Self {
        let stolen = |kind| [Who::Kswapd, Who::Direct].map(|who| counts(who, kind).stolen).iter().sum();
        Self {
            anonymous: stolen(PageKind::Anonymous),
            files: stolen(PageKind::File),
            refaults: freehold_vm::refaults(),
            time: time::now(),
        }
    }

    /// Returns whether the evictions since `before` had no lasting effect; `None`: too few to tell.
    fn since(self, before: Self) -> Option<Verdict> {
        if self.anonymous != before.anonymous || self.time - before.time > SOON {
            return Some(Verdict::GetsOn);
        }
        let files = self.files - before.files;
        if files < ENOUGH {
            return None;
        }
        Some(if (self.refaults - before.refaults) * 2 > files { Verdict::InVain } else { Verdict::GetsOn })
    }
}

/// Whether evictions freed memory for more than a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    GetsOn,
    InVain,
}

/// Returns whether the last evictions were of pages that were read again at once. Called whenever
/// memory is short.
pub fn is_in_vain() -> bool {
    let now = Totals::now();
    let is_little = caches::pages() < frames().managed_frames() / LITTLE;
    let mut since = SINCE.lock();
    let verdict = if is_little { now.since(*since) } else { Some(Verdict::GetsOn) };
    if verdict.is_some() {
        *since = now;
    }
    verdict == Some(Verdict::InVain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(anonymous: u64, files: u64, refaults: u64, seconds: u64) -> Option<Verdict> {
        let before = Totals { anonymous: 5, files: 70, refaults: 9, time: time::SECOND };
        let now = Totals {
            anonymous: before.anonymous + anonymous,
            files: before.files + files,
            refaults: before.refaults + refaults,
            time: before.time + seconds * time::SECOND,
        };
        now.since(before)
    }

    #[test]
    fn evictions_are_in_vain_where_most_pages_come_back_soon_and_nothing_else_is_freed() {
        assert_eq!(after(0, ENOUGH, ENOUGH, 1), Some(Verdict::InVain));
        assert_eq!(after(0, ENOUGH, ENOUGH / 2 + 1, 1), Some(Verdict::InVain));
        assert_eq!(after(0, ENOUGH, ENOUGH / 2, 1), Some(Verdict::GetsOn), "a file passes through");
        assert_eq!(after(1, ENOUGH, ENOUGH, 1), Some(Verdict::GetsOn), "the swap takes some");
        assert_eq!(after(0, ENOUGH, ENOUGH, 11), Some(Verdict::GetsOn), "slowly");
        assert_eq!(after(0, ENOUGH - 1, ENOUGH - 1, 1), None);
    }
}
