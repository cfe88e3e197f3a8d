//! Mirrors: copies of a file's pages on the nodes whose CPUs execute them.
//!
//! A page of a file has one frame, on one node, and CPUs of every other node fetch its instructions
//! from there. So a node whose programs execute the page gets a copy of its own, a *mirror*.
//! Linux' nearest relative is the series that replicated page-cache pages, which was not merged.
//!
//! **Owner.** The index owns mirrors as it owns frames: one reference each, under the cache's lock,
//! by page and node. A mirror is a frame of the page cache with the reverse key of its page, is
//! charged as the page's frame is, and exists only while the page has a frame: a page that leaves
//! the index takes its mirrors along ([`Index::remove`](super::index::Index)). Leaves hold a mirror
//! by its count of mappings, as they hold any frame.
//!
//! **Making.** A fault maps a page of a private area that may be executed and not written. The
//! first leaf that a node gets of a page on another node leads to the page's frame, and is noted.
//! With the second one the node gets a mirror: a frame is allocated without a lock; then, in one
//! hold of the cache's lock, the page's frame is copied and the mirror enters the index. That is
//! refused while
//! - a change of the cache is under way ([`CacheChange`]);
//! - an area may store to the cache through a shared mapping ([`Writers`]);
//! - the page's frame is pinned: a device may write it, and a pin may outlive the mapping;
//! - the cache is held in memory for the kernel's own stores, or is secret;
//! - mirrors have a sixteenth of the node's free memory, or there is no frame.
//!
//! Without a mirror the fault maps the page's frame, so that a refusal is never an error. Pins and
//! references for reading take the page's frame, never a mirror.
//!
//! **Fall.** Bytes of a page change only within a [`CacheChange`] (write, zeroed parts) or through
//! a shared mapping, and such a mapping is made within a [`CacheChange`] of the whole cache. Its
//! beginning lets the mirrors of its pages fall:
//! 1. under the cache's lock, making is refused, and the mirrors leave the index;
//! 2. every address space that maps the cache unmaps these pages, in its tables and all TLBs, as
//!    for truncation ([`PageCache::zap_everywhere`]: areas are attached before they have pages, so
//!    every leaf is found).
//!
//! A fault that found a mirror before step 1 holds its space's lock until the leaf is there, so
//! step 2 finds the leaf. A fault after step 1 finds no mirror. So when the change begins, no leaf
//! and no TLB entry of a mirror of these pages is left, and there is none until the change is over:
//! all nodes see the old bytes, then all see the new ones. A change whose mirrors another one has
//! taken out of the index, and not yet unmapped, does step 2 itself.
//!
//! Removed pages (truncation, holes, direct I/O) leave the index first, and their leaves after it.
//! Eviction and moves take a page only when its mirrors have no other holder than the index either.
//!
//! **Locks.** An address space's lock may be held around making, none around a fall. The cache's
//! lock is held for the copy of a page, as for a page that moves.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::{ControlFlow, Range};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use freehold_frame::{
    Frame, FrameRecord, NodePolicy, NodeSet, Owner, PageCache as CacheKind, Payer, Request,
};
use freehold_machine::topology::MAX_NODES;
use freehold_machine::{Cpus, Machine, NodeId, PAGE, Pfn};
use freehold_paging::Memory;
use freehold_xpfo::Windows;

use super::attach::{Unready, Writers};
use super::{CacheInner, PageCache};
use crate::registry::{Locking, once_around};
use crate::{Commons, FrameChoice};

/// Mirrors that leave the index in one hold of the lock.
const AT_ONCE: usize = 32;
/// Pages that share a word of notes, and that one step of [`PageCache::shed`] visits.
const CHUNK: u64 = 64;
/// The part of a node's free memory that mirrors may have: one in so many frames.
const SHARE: u64 = 16;

/// Whether mirrors are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MirrorText {
    /// Mirrors are made where several nodes execute a page.
    On,
    /// None is made, and there is none.
    Off,
}

/// Counts of a system's mirrors.
#[derive(Debug)]
struct MirrorTotals {
    /// Mirrors that were made since boot.
    made: AtomicU64,
    /// Mirrors that exist, by node.
    pages: [AtomicU64; MAX_NODES],
}

impl MirrorTotals {
    fn of(&self, node: NodeId) -> &AtomicU64 {
        &self.pages[usize::from(node.0) % MAX_NODES]
    }
    fn pages(&self) -> u64 {
        self.pages.iter().map(|pages| pages.load(Ordering::Relaxed)).sum()
    }
}

/// State of mirrors that all caches of a system share.
pub(crate) struct MirrorControl {
    is_on: AtomicBool,
    free_on: spin::Once<fn(NodeId) -> u64>,
    totals: Arc<MirrorTotals>,
    /// The number of the cache that reclaim visited last.
    hand: AtomicU64,
}

impl MirrorControl {
    pub(crate) fn new() -> Self {
        let pages = [const { AtomicU64::new(0) }; MAX_NODES];
        let totals = Arc::new(MirrorTotals { made: AtomicU64::new(0), pages });
        Self { is_on: AtomicBool::new(true), free_on: spin::Once::new(), totals, hand: AtomicU64::new(0) }
    }
    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }
    /// Whether `node` may have one more mirror. A hint: CPUs that ask at once may all get one.
    fn has_room(&self, node: NodeId) -> bool {
        let free = self.free_on.get().map_or(u64::MAX, |free_on| free_on(node));
        self.totals.of(node).load(Ordering::Relaxed) < free / SHARE
    }
}

/// A copy of a page on a node, with the index' reference to it.
struct Mirror<S: Memory> {
    frame: Frame<CacheKind, S>,
    node: NodeId,
    totals: Arc<MirrorTotals>,
}

impl<S: Memory> Mirror<S> {
    fn new(frame: Frame<CacheKind, S>, node: NodeId, totals: &Arc<MirrorTotals>) -> Self {
        totals.made.fetch_add(1, Ordering::Relaxed);
        totals.of(node).fetch_add(1, Ordering::Relaxed);
        Self { frame, node, totals: totals.clone() }
    }
    /// Whether only the index holds it.
    fn is_idle(&self) -> bool {
        is_idle(self.frame.record())
    }
}

impl<S: Memory> Drop for Mirror<S> {
    fn drop(&mut self) {
        self.totals.of(self.node).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the index is the only holder of a frame.
pub(super) fn is_idle(record: &FrameRecord) -> bool {
    let holders = record.counts().load();
    holders.mappings == 0 && holders.references == 1 && holders.pins == 0
}

/// The mirrors of one cache, and the notes of pages that may get one.
pub(super) struct Mirrors<S: Memory> {
    frames: BTreeMap<(u64, NodeId), Mirror<S>>,
    /// For each chunk of pages and node: the pages of which the node has had a leaf.
    noted: BTreeMap<(u64, NodeId), u64>,
    /// Changes that are under way, during which no mirror is made.
    changes: u64,
    /// Falls that have taken mirrors out of the index, and not yet unmapped all of them.
    falls: u64,
    #[cfg(test)]
    pub(super) defect: Option<MirrorDefect>,
}

/// A step that is left out, for tests that notice it.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MirrorDefect {
    /// Mirrors do not fall before a change.
    NoFall,
    /// Mirrors are made while a change is under way.
    MadeMeanwhile,
    /// A change relies on the fall of another one that has not unmapped the pages yet.
    NotBesideOthers,
}

impl<S: Memory> Mirrors<S> {
    pub(super) const fn new() -> Self {
        Self {
            frames: BTreeMap::new(),
            noted: BTreeMap::new(),
            changes: 0,
            falls: 0,
            #[cfg(test)]
            defect: None,
        }
    }
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
    /// The mirrors of `pages`.
    fn of(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, &Mirror<S>)> {
        let all = self.frames.range((pages.start, NodeId(0))..(pages.end, NodeId(0)));
        all.map(|(&(page, _), mirror)| (page, mirror))
    }
    /// Whether `page` has a mirror.
    pub(super) fn has(&self, page: u64) -> bool {
        self.of(page..page + 1).next().is_some()
    }
    /// Whether no leaf and no other holder has a mirror of `page`.
    pub(super) fn are_idle(&self, page: u64) -> bool {
        self.of(page..page + 1).all(|(_, mirror)| mirror.is_idle())
    }
    /// Removes the mirrors of `page`, which leaves the index, and its notes.
    pub(super) fn forget(&mut self, page: u64) {
        while let Some((&key, _)) = self.frames.range((page, NodeId(0))..(page + 1, NodeId(0))).next() {
            self.frames.remove(&key);
        }
        self.forget_notes(&(page..page + 1));
    }
    /// Forgets which nodes have had leaves of `pages`: the next two make a mirror again.
    fn forget_notes(&mut self, pages: &Range<u64>) {
        let chunks = pages.start / CHUNK..pages.end.div_ceil(CHUNK);
        for (&(chunk, _), noted) in self.noted.range_mut((chunks.start, NodeId(0))..(chunks.end, NodeId(0))) {
            let first = chunk * CHUNK;
            let from = pages.start.saturating_sub(first).min(CHUNK) as u32;
            let to = (pages.end - first).min(CHUNK) as u32;
            let mask = u64::MAX.checked_shl(from).unwrap_or(0) & !u64::MAX.checked_shl(to).unwrap_or(0);
            *noted &= !mask;
        }
    }
    /// Notes that `node` gets a leaf of `page`. Returns whether it is the first one.
    fn note(&mut self, page: u64, node: NodeId) -> bool {
        let noted = self.noted.entry((page / CHUNK, node)).or_insert(0);
        let was = *noted;
        *noted |= bit(page);
        was & bit(page) == 0
    }
    /// Takes up to [`AT_ONCE`] mirrors of `pages` out, of those that `chosen` accepts.
    fn take_some(
        &mut self,
        pages: &Range<u64>,
        chosen: impl Fn(&Mirror<S>) -> bool,
    ) -> ArrayVec<Mirror<S>, AT_ONCE> {
        let found = self.of(pages.clone()).filter(|(_, mirror)| chosen(mirror));
        let keys = found.map(|(page, mirror)| (page, mirror.node)).take(AT_ONCE);
        let keys: ArrayVec<(u64, NodeId), AT_ONCE> = keys.collect();
        keys.iter().for_each(|&(page, _)| self.forget_notes(&(page..page + 1)));
        keys.iter().filter_map(|key| self.frames.remove(key)).collect()
    }
}

const fn bit(page: u64) -> u64 {
    1 << (page % CHUNK)
}

/// A change of a cache's bytes that is under way. Its pages have no mirror, and no page of the
/// cache gets one, until this is dropped.
#[must_use = "mirrors may be made again when this is dropped"]
pub struct CacheChange<'a, S: Memory>(&'a PageCache<S>);

impl<S: Memory> Drop for CacheChange<'_, S> {
    fn drop(&mut self) {
        self.0.inner.lock().index.mirrors.changes -= 1;
    }
}

impl<S: Memory> core::fmt::Debug for CacheChange<'_, S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Change of {:?}", self.0)
    }
}

impl<S: Memory> PageCache<S> {
    /// Lets all mirrors fall, and allows none while the result exists. The caller then makes a
    /// shared mapping that may store; from then on the mapping prevents mirrors. The caller holds
    /// no address space. `None` on a machine without mirrors.
    pub fn expect_stores(&self) -> Option<CacheChange<'_, S>> {
        self.change(0..u64::MAX - 1)
    }

    /// Bytes of `pages` are about to change: see the module's head. The caller holds no address
    /// space.
    #[inline]
    pub(super) fn change(&self, pages: Range<u64>) -> Option<CacheChange<'_, S>> {
        // One no-op where no mirrors are made.
        if self.source.machine().mirrors_text() { Some(self.begin_change(&pages)) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn begin_change(&self, pages: &Range<u64>) -> CacheChange<'_, S> {
        self.inner.lock().index.mirrors.changes += 1;
        let change = CacheChange(self);
        self.fall(pages);
        change
    }

    /// Takes the mirrors of `pages` out of the index, and then out of all tables and TLBs.
    fn fall(&self, pages: &Range<u64>) {
        let mut inner = self.inner.lock();
        let mirrors = &mut inner.index.mirrors;
        #[cfg(test)]
        if mirrors.defect == Some(MirrorDefect::NoFall) {
            return;
        }
        let others_fall = mirrors.falls > 0;
        #[cfg(test)]
        let others_fall = others_fall && mirrors.defect != Some(MirrorDefect::NotBesideOthers);
        let mut taken = mirrors.take_some(pages, |_| true);
        if taken.is_empty() && !others_fall {
            return;
        }
        mirrors.falls += 1;
        while !taken.is_empty() {
            drop(inner);
            // Leaves still hold their mirrors.
            taken.clear();
            inner = self.inner.lock();
            taken = inner.index.mirrors.take_some(pages, |_| true);
        }
        drop(inner);
        self.zap_everywhere(pages);
        self.inner.lock().index.mirrors.falls -= 1;
    }

    /// Returns the frame for a leaf of page `index` on this CPU's node: `frame`, which is the
    /// page's, or a mirror of it. See the module's head.
    #[cold]
    #[inline(never)]
    pub(crate) fn near(
        &self,
        index: u64,
        frame: Frame<CacheKind, S>,
        commons: &Commons<S>,
    ) -> Frame<CacheKind, S> {
        let node = self.source.machine().current_node();
        if commons.node_of(frame.pfn()) == node || !self.may_have_mirrors(commons) {
            return frame;
        }
        match self.mirror_or_note(index, node) {
            Noted::Mirror(mirror) => mirror,
            Noted::First => frame,
            Noted::Again => self.make_mirror(index, node, &frame, commons).unwrap_or(frame),
        }
    }

    /// As [`PageCache::visit_resident`], but calls `f` with the frame for a leaf on `node`, if it
    /// exists: the page's own on that node, or a mirror. Returns the other pages that have a frame,
    /// as bits: the first page's is the lowest. `range` has at most 64 pages.
    pub(crate) fn visit_near(
        &self,
        range: Range<u64>,
        node: NodeId,
        commons: &Commons<S>,
        mut f: impl FnMut(u64, &Frame<CacheKind, S>),
    ) -> u64 {
        let (mut inner, mut far) = (self.inner.lock(), 0);
        let bit = |page: u64| 1 << (page - range.start);
        inner.index.visit(range.start..range.end.min(self.size().div_ceil(PAGE)), |page, frame| {
            if commons.node_of(frame.pfn()) == node { f(page, frame) } else { far |= bit(page) }
        });
        for (page, mirror) in inner.index.mirrors.of(range.clone()) {
            if mirror.node == node && far & bit(page) != 0 {
                f(page, &mirror.frame);
                far &= !bit(page);
            }
        }
        far
    }

    /// As [`PageCache::near`], of a page that may have left the cache: `None` then.
    pub(crate) fn resident_near(&self, index: u64, commons: &Commons<S>) -> Option<Frame<CacheKind, S>> {
        let frame = self.inner.lock().index.hand_out(index).ok().flatten()?;
        Some(self.near(index, frame, commons))
    }

    fn may_have_mirrors(&self, commons: &Commons<S>) -> bool {
        let stays = self.stays.load(Ordering::Acquire);
        commons.mirrors.is_on() && self.listed.get().is_some() && !self.is_secret() && !stays
    }

    fn mirror_or_note(&self, index: u64, node: NodeId) -> Noted<S> {
        let mut inner = self.inner.lock();
        // A page that has left the cache, or is being swapped out, keeps no mirror.
        if !matches!(inner.index.hand_out(index), Ok(Some(_))) {
            return Noted::First;
        }
        let mirrors = &mut inner.index.mirrors;
        if let Some(mirror) = mirrors.frames.get(&(index, node)) {
            return mirror.frame.try_clone().map_or(Noted::First, Noted::Mirror);
        }
        if self.source.ensure_objects().is_err() || mirrors.note(index, node) {
            return Noted::First;
        }
        Noted::Again
    }

    fn make_mirror(
        &self,
        index: u64,
        node: NodeId,
        page: &Frame<CacheKind, S>,
        commons: &Commons<S>,
    ) -> Option<Frame<CacheKind, S>> {
        if !commons.mirrors.has_room(node) {
            return None;
        }
        let request = Request::new(Owner::PageCache).policy(NodePolicy::Bind(NodeSet::single(node)));
        let new = Frame::allocate_for(self.source, Payer::SameAs(page.pfn()), request).ok()?;
        self.source.ensure_objects().ok()?;
        let shown = new.try_clone().ok()?;
        let mut inner = self.inner.lock();
        if !commons.mirrors.is_on() || !inner.allows_mirrors() {
            return None;
        }
        let now = inner.index.hand_out(index).ok().flatten()?;
        if let Some(mirror) = inner.index.mirrors.frames.get(&(index, node)) {
            // Another CPU was faster.
            return mirror.frame.try_clone().ok();
        }
        if now.record().counts().load().pins > 0 {
            return None;
        }
        self.source.machine().copy(&now, &new);
        new.set_reverse_key(self.id, index);
        let mirror = Mirror::new(new, node, &commons.mirrors.totals);
        inner.index.mirrors.frames.insert((index, node), mirror);
        Some(shown)
    }

    /// Returns the frame that page `index` has in place of `frame`, if that is a mirror of it; the
    /// page's mirrors have fallen then. The caller holds no address space.
    pub(super) fn without_mirror(&self, index: u64, frame: Pfn) -> Option<Pfn> {
        let inner = self.inner.lock();
        inner.index.mirrors.of(index..index + 1).find(|(_, mirror)| mirror.frame.pfn() == frame)?;
        let now = inner.index.with(index, |now| now.pfn());
        drop(inner);
        self.fall(&(index..index + 1));
        now
    }

    /// Frees up to `want` mirrors of `frames`; busy address spaces keep theirs. Returns the number.
    fn shed(&self, want: u64, frames: FrameChoice) -> u64 {
        let (mut freed, mut next) = (0, 0);
        while freed < want {
            let Some(pages) = self.next_mirrored(next, frames) else { break };
            next = pages.end;
            self.for_each_mapper(Unready::Waits, |space| {
                space.with(Locking::Try, &mut |space| space.zap_cache(self, pages.clone()));
            });
            let mut inner = self.inner.lock();
            let gone = inner
                .index
                .mirrors
                .take_some(&pages, |mirror| mirror.is_idle() && self.is_among(frames, mirror));
            drop(inner);
            freed += gone.len() as u64;
        }
        freed
    }

    /// The next pages from `from` on, up to [`AT_ONCE`], the first with a mirror among `frames`.
    fn next_mirrored(&self, from: u64, frames: FrameChoice) -> Option<Range<u64>> {
        let inner = self.inner.lock();
        let mut all = inner.index.mirrors.of(from..u64::MAX);
        let (first, _) = all.find(|(_, mirror)| self.is_among(frames, mirror))?;
        Some(first..(first / AT_ONCE as u64 + 1) * AT_ONCE as u64)
    }
    fn is_among(&self, frames: FrameChoice, mirror: &Mirror<S>) -> bool {
        frames.contains(self.source.table(), mirror.frame.pfn())
    }
}

impl<S: Memory> CacheInner<S> {
    /// Whether mirrors may be made: no byte of the cache may change now.
    fn allows_mirrors(&self) -> bool {
        #[cfg(test)]
        if self.index.mirrors.defect == Some(MirrorDefect::MadeMeanwhile) {
            return true;
        }
        self.index.mirrors.changes == 0 && !matches!(self.writers, Writers::Areas(1..))
    }
}

/// Result of looking for a mirror.
enum Noted<S: Memory> {
    Mirror(Frame<CacheKind, S>),
    /// There is none, and none is made for this leaf.
    First,
    /// There is none, and this is not the node's first leaf.
    Again,
}

impl<S: Memory> Commons<S> {
    /// Sets the function that returns a node's free frames, of which mirrors may have a sixteenth.
    /// Only the first call has an effect; without one there is no limit.
    pub fn limit_mirrors(&self, free_on: fn(NodeId) -> u64) {
        self.mirrors.free_on.call_once(|| free_on);
    }
    /// Returns whether mirrors are made.
    pub fn mirror_text(&self) -> MirrorText {
        if self.mirrors.is_on() { MirrorText::On } else { MirrorText::Off }
    }
    /// Sets whether mirrors are made. When this returns after [`MirrorText::Off`], there is none.
    /// The caller holds no address space.
    pub fn set_mirror_text(&self, to: MirrorText) {
        self.mirrors.is_on.store(to == MirrorText::On, Ordering::Release);
        let mut last = 0;
        while to == MirrorText::Off
            && let Some((id, cache)) = self.caches.next(last)
        {
            last = id;
            cache.fall(&(0..u64::MAX - 1));
        }
    }
    /// Returns the number of mirrors that were made since boot.
    pub fn mirrors_made(&self) -> u64 {
        self.mirrors.totals.made.load(Ordering::Relaxed)
    }
    /// Returns the number of mirrors that exist.
    pub fn mirror_pages(&self) -> u64 {
        self.mirrors.totals.pages()
    }
    /// Frees up to `want` mirrors of `frames`, used or not, and returns their number: the first
    /// step of reclaim, since the pages stay. Address spaces that other tasks have locked keep
    /// theirs. The caller holds no address space.
    pub fn shed_mirrors(&self, want: u64, frames: FrameChoice) -> u64 {
        let mut freed = 0;
        let visit = |cache: Arc<PageCache<S>>| {
            if freed >= want || self.mirror_pages() == 0 {
                return ControlFlow::Break(());
            }
            freed += cache.shed(want - freed, frames);
            ControlFlow::Continue(())
        };
        once_around(&self.mirrors.hand, |after| self.caches.next(after), visit);
        freed
    }
}
