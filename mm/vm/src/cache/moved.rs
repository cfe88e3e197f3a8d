//! Page-cache pages that get another frame, and the search for a frame's page.
//!
//! **Protocol.** A page moves while its frame has no other holder: first every address space unmaps
//! it. Then, under the cache's lock, its counts are checked: one reference (the index'), no
//! mapping, no pin. New holders get the frame from the index, under that lock, or from mappings,
//! and there are none. So in one hold of the lock the bytes are copied and the index is changed. A
//! page that got a holder meanwhile stays ([`MigrateOutcome::Busy`]). The page keeps its dirty
//! mark; its mappers fault again. A window neither sleeps nor takes a lock, so this copy under a
//! spin lock is safe.
//!
//! **Reverse key.** The [`ReverseKey`] of a frame in an index names its cache and page; a frame
//! that was removed keeps its key. So the key is a hint that the cache's index confirms: it finds
//! the pages of a range of frames without a walk through all files.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::ops::Bound;
use core::sync::atomic::AtomicU64;

use freehold_frame::{
    Frame, FrameState, NodePolicy, Owner, PageCache as CacheKind, Payer, Request, ReverseKey,
};
use freehold_machine::{Pfn, PfnRange};
use freehold_paging::Memory;
use freehold_xpfo::Windows;

use super::PageCache;
use super::mirrors::is_idle;
use crate::Commons;
use crate::migrate::{CachedPage, MigrateOutcome};
use crate::new_page::move_charge;
use crate::promise::Promises;

/// The caches of a system by number, for code that knows only a frame.
pub(crate) struct Caches<S: Memory> {
    list: spin::Mutex<BTreeMap<u64, Weak<PageCache<S>>>>,
    /// The number of the cache that reclaim visited last.
    pub(super) hand: AtomicU64,
}

impl<S: Memory> Caches<S> {
    pub(crate) const fn new() -> Self {
        Self { list: spin::Mutex::new(BTreeMap::new()), hand: AtomicU64::new(0) }
    }
    pub(crate) fn find(&self, id: u64) -> Option<Arc<PageCache<S>>> {
        self.list.lock().get(&id).and_then(Weak::upgrade)
    }
    /// The existing cache with the smallest number above `after`, and that number.
    pub(crate) fn next(&self, after: u64) -> Option<(u64, Arc<PageCache<S>>)> {
        let list = self.list.lock();
        let mut above = list.range((Bound::Excluded(after), Bound::Unbounded));
        above.find_map(|(&id, cache)| Some((id, cache.upgrade()?)))
    }
    /// Removes a cache that no longer exists.
    pub(super) fn forget(&self, id: u64) {
        // Its last weak count frees memory: not under the lock.
        let gone = self.list.lock().remove(&id);
        drop(gone);
    }
}

/// Numbers of frames of a range that were evacuated, and that were not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evacuated {
    /// Pages that got another frame.
    pub moved: u64,
    /// Pages that did not.
    pub left: u64,
}

impl<S: Memory> Commons<S> {
    /// Makes the pages of `cache` findable by their frames, as long as the cache exists. From then
    /// on its pages may be swapped out, if they are in memory only.
    pub fn list(self: &Arc<Self>, cache: &Arc<PageCache<S>>) {
        let promises = self.promises.clone();
        cache.listed.call_once(|| ListedAt { commons: Arc::downgrade(self), promises });
        let before = self.caches.list.lock().insert(cache.id(), Arc::downgrade(cache));
        drop(before);
    }

    /// Moves a file's page to `place`. The caller holds no address space. Returns
    /// [`MigrateOutcome::Busy`] also where the page has another frame by now.
    pub fn migrate_cached(&self, page: &CachedPage<S>, place: NodePolicy) -> MigrateOutcome<S> {
        let outcome = page.cache.migrate(page.index, page.frame, place);
        self.note_move(&outcome, 1);
        outcome
    }

    /// Move the pages of all files out of `frames`, to `place`, and makes the swap cache drop those
    /// that it can read again. The caller holds no address space.
    pub fn evacuate_caches(&self, frames: PfnRange, place: NodePolicy) -> Evacuated {
        let table = self.source.table();
        let mut done = Evacuated::default();
        for frame in frames.iter() {
            match table.look(frame) {
                FrameState::Owned { owner: Owner::PageCache, .. } => {}
                FrameState::Owned { owner: Owner::Anon, .. } if self.swap.is_cache_frame(frame) => {
                    // A fault that needs the page reads it again.
                    self.swap.forget(frame);
                    continue;
                }
                _ => continue,
            }
            let (id, index) = table.reverse_key(frame).map_or((0, 0), ReverseKey::get);
            let moved = self.caches.find(id).is_some_and(|cache| {
                // A mirror need not be anywhere else.
                cache.without_mirror(index, frame).is_some()
                    || matches!(
                        self.migrate_cached(&CachedPage { cache, index, frame }, place),
                        MigrateOutcome::Moved
                    )
            });
            done.moved += u64::from(moved);
            done.left += u64::from(!moved);
        }
        done
    }
}

impl<S: Memory> PageCache<S> {
    /// Give page `index`, which is in `frame`, another frame from `place`.
    fn migrate(&self, index: u64, frame: Pfn, place: NodePolicy) -> MigrateOutcome<S> {
        let frame = self.without_mirror(index, frame).unwrap_or(frame);
        let holders = {
            let inner = self.inner.lock();
            let holders = |now: &Frame<_, S>| (now.pfn() == frame).then(|| now.record().counts().load());
            let is_mirrored = inner.index.mirrors.has(index);
            inner.index.with(index, holders).map(|holders| holders.map(|holders| (holders, is_mirrored)))
        };
        let Some(Some((holders, is_mirrored))) = holders else { return MigrateOutcome::Busy };
        // Moving a page means copying its bytes, which is not allowed for secret memory.
        if self.is_secret() || holders.references > 1 || holders.pins > 0 {
            return MigrateOutcome::Busy;
        }
        let request = Request::new(Owner::PageCache).policy(place);
        let Ok(new) = Frame::<CacheKind, S>::allocate_for(self.source, Payer::Nobody, request) else {
            return MigrateOutcome::NoMemory;
        };
        if holders.mappings > 0 || is_mirrored {
            self.zap_everywhere(&(index..index + 1));
        }
        let mut inner = self.inner.lock();
        let mirrors_are_idle = inner.index.mirrors.are_idle(index);
        let idle = inner.index.with(index, |now| {
            let is_idle = now.pfn() == frame && mirrors_are_idle && is_idle(now.record());
            if is_idle {
                self.source.machine().copy(now, &new);
            }
            is_idle
        });
        if idle != Some(true) {
            drop(inner);
            return MigrateOutcome::Busy;
        }
        move_charge(self.source, frame, new.pfn());
        let old = inner.index.exchange(index, new);
        drop(inner);
        drop(old);
        MigrateOutcome::Moved
    }
}

/// A listed cache's references to the system's state.
pub(super) struct ListedAt<S: Memory> {
    commons: Weak<Commons<S>>,
    /// Apart, since pages are made and removed often: no count of references changes.
    pub(super) promises: Arc<Promises>,
}

impl<S: Memory> PageCache<S> {
    /// Returns the system's state, if the cache is listed there.
    pub(super) fn commons(&self) -> Option<Arc<Commons<S>>> {
        self.listed.get()?.commons.upgrade()
    }
}

impl<S: Memory> Drop for PageCache<S> {
    fn drop(&mut self) {
        self.take_back_promise();
        if let Some(account) = &self.secret {
            account.give_back(self.pages());
        }
        if let Some(commons) = self.commons() {
            commons.caches.forget(self.id);
            let (index, mut next) = (&mut self.inner.get_mut().index, 0);
            while let Some((page, _)) = index.next_swapped(next..u64::MAX) {
                next = page + 1;
                commons.source.rest();
                index.remove_swapped(page).into_iter().for_each(|place| commons.swap.leave(place));
            }
        }
    }
}
