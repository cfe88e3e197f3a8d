//! Eviction of pages that can be read again: the choice of pages and the order of steps. Pages
//! without a backing store are swapped out by the same clock (`swapped.rs`).
//!
//! **A clock.** A hand moves cyclically over the chunks of 64 pages. A page has two marks: *once*
//! (it was read, written or requested) and *again* (it was read or written after that). The hand
//! spares pages that were used again, and clears that mark. A page of a file that is read once from
//! front to back never gets it, so a long file passes through without evicting pages in use. Pages
//! that are mapped have the CPU's marks of use instead: their spaces unmap pages that were not used
//! since the hand last passed (`idle.rs`).
//!
//! **Order.** Unmap, store changed pages, then remove idle and clean pages under the lock: a page
//! that is used in between stays. The hand is protected by the cache's lock, so several tasks may
//! evict at once, each from the common position.
//!
//! The caller holds no address space and no spin lock; storing may sleep. A device must be able to
//! store without new user memory: [`BackingStore`](super::BackingStore) describes how the kernel
//! guarantees that.

use freehold_paging::Memory;

use super::attach::PageSet;
use super::index::ChunkPages;
use super::refault::note_evicted;
use super::{PAGE, PageCache};
use crate::FrameChoice;
use crate::swap::Age;

/// Treatment of pages that the store does not have yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Laundry {
    /// Such pages are stored first; may sleep for a device.
    Store,
    /// Such pages stay.
    Leave,
}

/// A request for frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Eviction {
    /// How many frames.
    pub want: u64,
    /// How many pages to look at for them.
    pub most: u64,
    /// The frames that count towards `want`.
    pub frames: FrameChoice,
    /// Treatment of changed pages.
    pub laundry: Laundry,
    /// Whether pages in use, and pages of busy spaces, stay. Else they are evicted, too, and the
    /// eviction waits for busy spaces.
    pub age: Age,
}

impl Eviction {
    /// Returns the rest of the request after `done`.
    #[must_use]
    pub fn after(self, done: Evicted) -> Self {
        let want = self.want.saturating_sub(done.freed);
        Self { want, most: self.most.saturating_sub(done.scanned), ..self }
    }
}

/// Result of an eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evicted {
    /// Pages that were looked at.
    pub scanned: u64,
    /// Frames that were freed.
    pub freed: u64,
    /// Pages that were stored, whether their frames were freed or are in use again.
    pub written: u64,
}

impl core::ops::AddAssign for Evicted {
    fn add_assign(&mut self, other: Self) {
        self.scanned += other.scanned;
        self.freed += other.freed;
        self.written += other.written;
    }
}

impl<S: Memory> PageCache<S> {
    /// Frees frames as `wish` requests. Does nothing without a store, because then the pages are
    /// the only copy.
    pub fn evict(&self, wish: Eviction) -> Evicted {
        let mut done = Evicted::default();
        if self.store.is_none() {
            return done;
        }
        while done.freed < wish.want && done.scanned < wish.most {
            let Some(look) = self.advance() else { break };
            done.scanned += u64::from(look.present.count_ones());
            self.evict_of(look, wish, &mut done);
        }
        done
    }

    /// Advances the hand and returns its pages. `None` if there is no page at all.
    pub(super) fn advance(&self) -> Option<ChunkPages> {
        let mut inner = self.inner.lock();
        let from = inner.hand;
        let look = inner.index.look(from).or_else(|| inner.index.look(0));
        inner.hand = look.map_or(0, |look| look.first + 1);
        look
    }

    fn evict_of(&self, look: ChunkPages, wish: Eviction, done: &mut Evicted) {
        let look = match wish.age {
            Age::Respect => look,
            Age::Ignore => ChunkPages { cold: look.present, ..look },
        };
        let (mut cold, mapped, dirty) = self.judge(look, wish.frames);
        if wish.laundry == Laundry::Leave {
            cold &= !dirty;
        }
        cold = self.unmap_cold(look.first, cold, mapped, wish.age);
        // A mapping may have made a page dirty since it was checked: such a page stays this time.
        let mut unwritten = cold & dirty;
        while unwritten != 0 {
            let from = unwritten.trailing_zeros();
            let count = (unwritten >> from).trailing_ones();
            let start = (look.first + u64::from(from)) * PAGE;
            // A page that cannot be stored now stays dirty, and so it stays in memory. A page that
            // can never be stored is lost, and the loss is reported to the file's holders.
            if self.write_back(start..start + u64::from(count) * PAGE).is_ok() {
                done.written += u64::from(count);
            }
            unwritten &= u64::MAX.checked_shl(from + count).unwrap_or(0);
        }
        let pages = (0..64).filter(|page| cold & 1 << page != 0).map(|page| look.first + page);
        let taken = pages.filter(|&page| self.take_idle(page).is_some());
        done.freed += taken.inspect(|&page| note_evicted(self.id, page)).count() as u64;
    }

    /// Unmaps those of the pages `mapped` that are cold by `age`. Returns the pages `first + n`, of
    /// the bits `n` of `cold`, that have no mapping (any more).
    pub(super) fn unmap_cold(&self, first: u64, cold: u64, mapped: u64, age: Age) -> u64 {
        let mask = cold & mapped;
        if mask == 0 { cold } else { cold & !self.unmap_idle_everywhere(PageSet { first, mask }, age) }
    }

    /// Returns the cold pages of `look` in `frames` without a pin; also returns the mapped ones and
    /// the dirty ones.
    pub(super) fn judge(&self, look: ChunkPages, frames: FrameChoice) -> (u64, u64, u64) {
        let inner = self.inner.lock();
        let (mut cold, mut mapped, mut dirty) = (0, 0, 0);
        for bit in (0..64).filter(|bit| look.cold & 1 << bit != 0) {
            let page = look.first + bit;
            let seen = inner.index.with(page, |frame| {
                let here = frames.contains(self.source.table(), frame.pfn());
                let holders = frame.record().counts().load();
                (here && holders.pins == 0, holders.mappings > 0)
            });
            let Some((true, is_mapped)) = seen else { continue };
            let is_mapped = is_mapped || inner.index.mirrors.has(page);
            cold |= 1 << bit;
            mapped |= u64::from(is_mapped) << bit;
            dirty |= u64::from(inner.index.is_dirty(page)) << bit;
        }
        (cold, mapped, dirty)
    }
}
