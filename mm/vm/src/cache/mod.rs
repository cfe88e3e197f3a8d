//! The page cache: the frames of one file, of shared anonymous memory, or of a block device.
//!
//! Without a [`BackingStore`] the cache is the store (tmpfs): an absent page is a hole of zeroes,
//! or in the swap (`swapped.rs`). With a store, an absent page is read from it, and pages that
//! changed are written back.
//!
//! **Locks.** One spin lock around the index and the list of mappers. Under it: no sleeping, no
//! user bytes, no store. Frames are allocated before the lock is taken, and are inserted unless
//! another CPU was faster. Bytes are reached through windows with a reference held and the lock
//! released, so truncation never pulls a frame from under a copy.
//!
//! **Reverse map.** Areas are attached: the cache knows which address spaces map it, and unmaps
//! pages there by [`SpaceHandle`](crate::SpaceHandle). Truncation first removes the pages (size,
//! index) and then makes every mapper unmap them. So a fault that read the old state is undone, and
//! a later one finds the new state. Then the frames are released.

mod attach;
mod errors;
mod evict;
mod fills;
mod held;
mod index;
mod io;
mod mirrors;
mod moved;
mod promised;
mod refault;
mod resize;
mod swapped;
mod writeback;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use freehold_frame::{Frame, NodePolicy, Owner, PageCache as CacheKind, Request};
use freehold_machine::{PAGE, Pfn};
use freehold_paging::Memory;

use crate::error::{FaultError, FaultKind, VmError};
use crate::hugetlb::HugePages;
pub(crate) use attach::Attachment;
pub(crate) use attach::PageSet;
use attach::{Mapper, Writers};
pub use errors::ErrorsTold;
use errors::WriteErrors;
pub use evict::{Evicted, Eviction, Laundry};
use fills::{FillGuard, Fills};
pub use held::HeldPage;
use index::{Index, Mark};
pub(crate) use mirrors::MirrorControl;
#[cfg(test)]
pub(crate) use mirrors::MirrorDefect;
pub use mirrors::{CacheChange, MirrorText};
pub(crate) use moved::Caches;
pub use moved::Evacuated;
use moved::ListedAt;
use promised::CachePromise;
pub use refault::refaults;
pub use resize::{Allocation, Batch};

/// The store from which a cache's pages are read and to which they are written: a block device.
/// Pages are read in runs, so that there is one request for adjacent pages.
///
/// Called without any lock of this crate that spins; may sleep. When memory is short, storing is
/// what frees it, so storing must succeed without new frames for user memory.
pub trait BackingStore<S: Memory>: Send + Sync {
    /// Fill the whole frames with the pages from `first` on; bytes past the store's end are zeroes.
    ///
    /// # Errors
    /// [`VmError::Io`], [`VmError::NoMemory`].
    fn fill(&self, first: u64, frames: &[Frame<CacheKind, S>]) -> Result<(), VmError>;
    /// Runs `pass`, which takes changed pages, stores them, and records refusals. Taken pages count
    /// as clean although they are not stored yet, so a store whose users wait for that counts the
    /// passes. Called once for each pass.
    fn write_pass(&self, pass: &mut dyn FnMut()) {
        pass();
    }
    /// Waits until all passes that have begun, by other threads, have ended. A store that is not
    /// shared has nothing to do. The caller is in no pass.
    ///
    /// # Errors
    /// [`VmError::Interrupted`] if the caller has to end.
    fn wait_for_passes(&self) -> Result<(), VmError> {
        Ok(())
    }
    /// Called when a page has changed in the store while it was read, before it is read again.
    ///
    /// # Errors
    /// [`VmError::Interrupted`] where the caller is to end.
    fn may_retry(&self) -> Result<(), VmError> {
        Ok(())
    }
    /// Store the frames as the pages from `first` on.
    ///
    /// # Errors
    /// As [`BackingStore::fill`]. After [`VmError::Io`] the pages count as clean, and the cache
    /// [remembers](PageCache::tell_errors) the loss; after any other error they stay dirty.
    fn write_back(&self, first: u64, frames: &[Frame<CacheKind, S>]) -> Result<(), VmError>;
}

/// The account to which pages of secret memory are charged.
pub trait PageAccount: Send + Sync {
    /// Charges one page for the running program; returns whether the limit allows it.
    fn charge(&self) -> bool;
    /// Removes the charge of so many pages.
    fn give_back(&self, pages: u64);
}

/// A page's frame, and the effort of finding it.
type FoundFrame<S> = (Frame<CacheKind, S>, FaultKind);

/// Largest number of pages in one request to a store: 128 KiB.
pub const MAX_RUN: usize = 32;

/// The frames of one file. See the module's head.
pub struct PageCache<S: Memory> {
    id: u64,
    pub(crate) source: S,
    store: Option<Arc<dyn BackingStore<S>>>,
    /// In bytes. Changes under the lock only.
    size: AtomicU64,
    ahead: ReadAhead,
    /// The list in which the cache is found by its number. Once it is set, the cache's pages may be
    /// swapped out.
    listed: spin::Once<ListedAt<S>>,
    promised: CachePromise,
    /// The cache's pages are never swapped out.
    stays: AtomicBool,
    /// Set for secret memory, whose bytes only programs that map it can access: the account of its
    /// pages.
    secret: Option<Arc<dyn PageAccount>>,
    /// The pages of a file of huge pages: it has no others.
    pub(crate) huge: Option<Arc<HugePages<S>>>,
    errors: WriteErrors,
    /// Pages that could not be stored for now, and stay dirty.
    left_dirty: AtomicU64,
    inner: spin::Mutex<CacheInner<S>>,
}

struct CacheInner<S: Memory> {
    index: Index<S>,
    /// By address space.
    mappers: BTreeMap<u64, Mapper<S>>,
    writers: Writers,
    fills: Fills,
    /// Where the clock that ages pages goes on ([`evict`]).
    hand: u64,
}

/// The pages that will probably be needed together with one that is read from a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Guess {
    /// The pages after it; the number grows while a reader continues there.
    Ahead,
    /// The pages around it.
    Around,
}

/// State of read-ahead: guesses, which two concurrent readers may disturb for each other.
#[derive(Default)]
struct ReadAhead {
    /// The page after the last run that was read.
    next: AtomicU64,
    /// Pages in that run.
    run: AtomicUsize,
    /// The last requested page: a reader that continues in the same page does not count as using it
    /// again.
    last: AtomicU64,
}

impl ReadAhead {
    /// Number of pages to read at `index`, which is absent: twice as many as before if the reader
    /// continues there.
    fn run_at(&self, index: u64) -> usize {
        let goes_on = self.next.load(Ordering::Relaxed) == index;
        if goes_on { (self.run.load(Ordering::Relaxed) * 2).clamp(1, MAX_RUN) } else { 1 }
    }
    fn note(&self, index: u64, run: usize) {
        self.next.store(index + run as u64, Ordering::Relaxed);
        self.run.store(run, Ordering::Relaxed);
    }
}

/// The next cache's number; 0 is none.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl<S: Memory> PageCache<S> {
    /// An empty file whose store is memory.
    pub fn new(source: S) -> Arc<Self> {
        Self::build(source, None, None, None)
    }
    /// An empty file in memory whose bytes only the programs that map it can access
    /// (memfd_secret(2)). New pages are zeroed. From then on no window shows them to the kernel:
    /// they are not pinned, read, written, moved, cut or swapped out. Each page is charged to
    /// `account` when it is made, and uncharged with the file.
    pub fn secret(source: S, account: Arc<dyn PageAccount>) -> Arc<Self> {
        let cache = Self::build(source, None, Some(account), None);
        cache.keep_in_memory();
        cache
    }
    /// A cache of `store`; give it a size with [`PageCache::set_size_grow`].
    pub fn with_store(source: S, store: Arc<dyn BackingStore<S>>) -> Arc<Self> {
        Self::build(source, Some(store), None, None)
    }
    pub(crate) fn build(
        source: S,
        store: Option<Arc<dyn BackingStore<S>>>,
        secret: Option<Arc<dyn PageAccount>>,
        huge: Option<Arc<HugePages<S>>>,
    ) -> Arc<Self> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let inner = CacheInner {
            index: Index::new(source, id),
            mappers: BTreeMap::new(),
            writers: Writers::Areas(0),
            fills: Fills::default(),
            hand: 0,
        };
        let (size, ahead) = (AtomicU64::new(0), ReadAhead::default());
        let (listed, stays) = (spin::Once::new(), AtomicBool::new(false));
        let promised = CachePromise::default();
        let errors = WriteErrors::default();
        Arc::new(Self {
            id,
            source,
            store,
            size,
            ahead,
            listed,
            promised,
            stays,
            secret,
            huge,
            errors,
            left_dirty: AtomicU64::new(0),
            inner: spin::Mutex::new(inner),
        })
    }

    /// Returns a number that no other cache ever has.
    pub const fn id(&self) -> u64 {
        self.id
    }
    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }
    /// Makes the cache at least `size` bytes long; new bytes are a hole.
    pub fn set_size_grow(&self, size: u64) {
        let _inner = self.inner.lock();
        self.size.fetch_max(size, Ordering::AcqRel);
    }
    /// Frames that it holds.
    pub fn pages(&self) -> u64 {
        self.inner.lock().index.pages()
    }
    /// Pages that its store has not seen; 0 without a store.
    pub fn dirty_pages(&self) -> u64 {
        if self.store.is_some() { self.inner.lock().index.dirty_pages() } else { 0 }
    }
    /// Pages that were read or written again since the clock's hand passed: those it will spare.
    pub fn active_pages(&self) -> u64 {
        self.inner.lock().index.active_pages()
    }
    /// Whether the file is only in memory (tmpfs, shared anonymous memory).
    pub fn is_memory(&self) -> bool {
        self.store.is_none()
    }
    /// Pages of it that are in the swap.
    pub fn swapped_pages(&self) -> u64 {
        self.inner.lock().index.swapped()
    }
    /// From now on its pages are never swapped out: code that cannot wait for a device uses them.
    pub fn keep_in_memory(&self) {
        self.stays.store(true, Ordering::Release);
    }
    /// Undoes [`keep_in_memory`](Self::keep_in_memory).
    pub fn release_to_swap(&self) {
        self.stays.store(false, Ordering::Release);
    }
    /// Whether only the programs that map it can access its bytes ([`PageCache::secret`]).
    pub fn is_secret(&self) -> bool {
        self.secret.is_some()
    }
    /// Whether page `index` has a frame.
    pub fn is_resident(&self, index: u64) -> bool {
        self.inner.lock().index.with(index, |_| ()).is_some()
    }

    /// From now on a step is left out.
    #[cfg(test)]
    pub(crate) fn break_mirrors(&self, defect: MirrorDefect) {
        self.inner.lock().index.mirrors.defect = Some(defect);
    }
    /// Check the sets and counts of its pages.
    #[cfg(test)]
    pub(crate) fn validate(&self) {
        self.inner.lock().index.validate();
    }

    /// Sets the entries of the pages from `first` on that have a frame; the other entries do not
    /// change.
    pub(crate) fn residency(&self, first: u64, pages: &mut [bool]) {
        let inner = self.inner.lock();
        for page in inner.index.present(first..first + pages.len() as u64) {
            pages[(page - first) as usize] = true;
        }
    }

    /// The frame of page `index`, if it has one.
    ///
    /// # Errors
    /// [`VmError::TooManyHolders`].
    #[inline]
    pub(crate) fn get(&self, index: u64) -> Result<Option<Frame<CacheKind, S>>, VmError> {
        let mut inner = self.inner.lock();
        let frame = inner.index.hand_out(index)?;
        if frame.is_some() && self.ahead.last.swap(index, Ordering::Relaxed) != index {
            inner.index.touch(index);
        }
        Ok(frame)
    }

    /// Returns the frame of page `index`: a new one for a hole, or one read from the store or the
    /// swap, if that has the page. New frames come from `place`.
    pub(crate) fn get_or_fill(&self, index: u64, place: NodePolicy) -> Result<FoundFrame<S>, VmError> {
        self.get_or_read(index, place, Guess::Ahead)
    }

    /// Does the same; `guess` names the other pages that are read if the page is read from a store.
    fn get_or_read(&self, index: u64, place: NodePolicy, guess: Guess) -> Result<FoundFrame<S>, VmError> {
        if let Some(frame) = self.get(index)? {
            return Ok((frame, FaultKind::Minor));
        }
        let Some(store) = &self.store else { return self.get_or_make(index, place) };
        loop {
            let (fill, mut run) = self.gap(index, guess)?;
            let mut frames = self.fresh_frames((run.end - run.start) as usize, place)?;
            if (frames.len() as u64) < run.end - run.start {
                run = index..run.end.min(index + frames.len() as u64);
                frames.truncate((run.end - run.start) as usize);
            }
            if store.fill(run.start, &frames).is_err() {
                // The unreadable page may be one of those that were read ahead.
                run = index..index + 1;
                frames.truncate(1);
                store.fill(index, &frames)?;
            }
            if guess == Guess::Ahead {
                self.ahead.note(index, frames.len());
            }
            let mut wanted = None;
            for (page, frame) in run.zip(frames) {
                // Only the page that was asked for matters; the others are there or not.
                let inserted = self.insert_read(page, frame, fill.number());
                refault::note_read(self.id, page);
                if page == index {
                    wanted = inserted?;
                    self.ahead.last.store(index, Ordering::Relaxed);
                    self.inner.lock().index.touch(index);
                }
            }
            if let Some(frame) = wanted {
                return Ok((frame, FaultKind::Major));
            }
            store.may_retry()?;
        }
    }

    /// Begins a read of pages that are not there and not past the end, side by side, `index` among
    /// them.
    fn gap(&self, index: u64, guess: Guess) -> Result<(FillGuard<'_, S>, Range<u64>), VmError> {
        let most = MAX_RUN as u64;
        let (start, run) = match guess {
            Guess::Ahead => (index, self.ahead.run_at(index) as u64),
            Guess::Around => (index - index % most, most),
        };
        let end = self.size().div_ceil(PAGE).min(start.saturating_add(run)).max(index + 1);
        let mut inner = self.inner.lock();
        let end = inner.index.next(index + 1..end).unwrap_or(end);
        let start = inner.index.present(start..index).last().map_or(start, |page| page + 1);
        Ok((FillGuard::new(self, &mut inner, start)?, start..end))
    }

    /// Up to `count` frames, at least one.
    fn fresh_frames(&self, count: usize, place: NodePolicy) -> Result<Vec<Frame<CacheKind, S>>, VmError> {
        let mut frames = Vec::new();
        frames.try_reserve_exact(count).map_err(|_| VmError::NoMemory)?;
        let request = Request::new(Owner::PageCache).policy(place);
        frames.push(Frame::allocate_with(self.source, request)?);
        frames.extend((1..count).map_while(|_| Frame::allocate_with(self.source, request).ok()));
        Ok(frames)
    }

    /// As [`PageCache::get_or_fill`] without a store.
    fn get_or_make(&self, index: u64, place: NodePolicy) -> Result<FoundFrame<S>, VmError> {
        loop {
            if let Some(found) = self.find(index, place)? {
                return Ok(found);
            }
            if let Some(frame) = self.make(index, place)? {
                return Ok((frame, FaultKind::Minor));
            }
        }
    }

    /// A page of zeroes; as [`PageCache::insert`].
    fn make(&self, index: u64, place: NodePolicy) -> Result<Option<Frame<CacheKind, S>>, VmError> {
        let request = Request::new(Owner::PageCache).zeroed().policy(place);
        let Some(account) = &self.secret else {
            return self.insert(index, Frame::allocate_with(self.source, request)?);
        };
        if !account.charge() {
            return Err(VmError::Io);
        }
        let made = Frame::allocate_with(self.source, request).map_err(VmError::from).and_then(|frame| {
            let own = frame.pfn();
            Ok((own, self.insert(index, frame)?))
        });
        match made {
            Ok((own, Some(frame))) if frame.pfn() == own => Ok(Some(frame)),
            // Another CPU was faster, or there is no memory.
            made => {
                account.give_back(1);
                made.map(|(_, frame)| frame)
            }
        }
    }

    /// Inserts `frame` unless another task was faster. Returns a reference to the page's frame.
    /// `None` if the page is in the swap by now.
    fn insert(&self, index: u64, frame: Frame<CacheKind, S>) -> Result<Option<Frame<CacheKind, S>>, VmError> {
        let mut inner = self.inner.lock();
        if !inner.index.has(index) {
            self.add_page(&mut inner, index, frame)?;
        } else if inner.index.swap_place(index).is_some() {
            return Ok(None);
        }
        inner.index.hand_out(index)
    }

    /// As [`PageCache::insert`], of a page that `fill` has read; `None` where it may be older than
    /// the store.
    fn insert_read(
        &self,
        index: u64,
        frame: Frame<CacheKind, S>,
        fill: u64,
    ) -> Result<Option<Frame<CacheKind, S>>, VmError> {
        let mut inner = self.inner.lock();
        if inner.index.with(index, |_| ()).is_none() {
            if inner.fills.is_stale(fill, index) {
                return Ok(None);
            }
            inner.index.insert(index, frame)?;
        }
        inner.index.hand_out(index)
    }

    /// For a page fault: as [`PageCache::get_or_fill`], a bus error past the end. Programs run and
    /// access data at scattered addresses, so the surrounding pages are read too, as Linux does
    /// (do_sync_mmap_readahead, mm/filemap.c).
    pub(crate) fn fault(&self, index: u64, place: NodePolicy) -> Result<FoundFrame<S>, FaultError> {
        if self.is_past_end(index) {
            return Err(FaultError::Bus);
        }
        let found = self.get_or_read(index, place, Guess::Around)?;
        if self.is_past_end(index) {
            // The file was truncated meanwhile, perhaps before the page was inserted. The page must
            // not reappear when the file grows again.
            self.drop_page(index);
            return Err(FaultError::Bus);
        }
        Ok(found)
    }

    /// As [`PageCache::fault`], for a cache that [is memory](Self::is_memory) and whose holes an
    /// area's monitor fills: [`FaultError::Monitored`] for a hole.
    #[cold]
    #[inline(never)]
    pub(crate) fn fault_on_monitored(
        &self,
        index: u64,
        place: NodePolicy,
    ) -> Result<FoundFrame<S>, FaultError> {
        if self.is_past_end(index) {
            return Err(FaultError::Bus);
        }
        self.find(index, place)?.ok_or(FaultError::Monitored)
    }

    /// Whether page `index` is a hole that a page can be put into.
    ///
    /// # Errors
    /// [`VmError::Exists`]; [`VmError::Fault`] past the end.
    pub(crate) fn check_hole(&self, index: u64) -> Result<(), VmError> {
        if self.is_past_end(index) {
            return Err(VmError::Fault);
        }
        if self.inner.lock().index.has(index) { Err(VmError::Exists) } else { Ok(()) }
    }

    /// Inserts `frame` for page `index`, which is a hole; returns a reference to it.
    ///
    /// # Errors
    /// As [`PageCache::check_hole`]; [`VmError::NoMemory`].
    pub(crate) fn insert_in_hole(
        &self,
        index: u64,
        frame: Frame<CacheKind, S>,
    ) -> Result<Frame<CacheKind, S>, VmError> {
        let mut inner = self.inner.lock();
        // The size changes under the lock, and a truncation removes pages after it.
        if self.is_past_end(index) {
            return Err(VmError::Fault);
        }
        if inner.index.has(index) {
            return Err(VmError::Exists);
        }
        self.add_page(&mut inner, index, frame)?;
        inner.index.hand_out(index)?.ok_or(VmError::Fault)
    }

    pub(crate) fn is_past_end(&self, index: u64) -> bool {
        index >= self.size().div_ceil(PAGE)
    }

    /// Calls `f` with the present frames of `range` before the end of the file. `f` must not sleep
    /// or call the cache.
    #[inline]
    pub(crate) fn visit_resident(
        &self,
        range: core::ops::Range<u64>,
        f: impl FnMut(u64, &Frame<CacheKind, S>),
    ) {
        let mut inner = self.inner.lock();
        inner.index.visit(range.start..range.end.min(self.size().div_ceil(PAGE)), f);
    }

    /// Whether leaves may grant writing before the first store through them: the cache has no
    /// backing store that must know which pages changed.
    pub(crate) fn maps_writable_at_once(&self) -> bool {
        self.is_memory()
    }

    /// A leaf is about to grant writing to `frame` as page `index`. The leaf's mapping holds the
    /// frame already, so that the mark stays until the mapping is dropped. Returns whether it is
    /// the page's frame; if not, stores to it would be lost.
    #[must_use]
    pub(crate) fn note_writable(&self, index: u64, frame: Pfn) -> bool {
        self.store.is_none() || self.mark_frame(index, frame, Mark::Writable)
    }

    /// Marks page `index` of a cache with a store, if it is in `frame`. Returns whether it is.
    fn mark_frame(&self, index: u64, frame: Pfn, mark: Mark) -> bool {
        let mut inner = self.inner.lock();
        let mapped =
            |now: &Frame<_, S>| (now.pfn() == frame).then(|| now.record().counts().load().mappings > 0);
        let Some(Some(is_mapped)) = inner.index.with(index, mapped) else { return false };
        debug_assert!(mark != Mark::Writable || is_mapped, "a leaf's mapping is counted before its rights");
        inner.index.mark(index, mark);
        true
    }
}

impl<S: Memory> core::fmt::Debug for PageCache<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PageCache {} ({} bytes)", self.id, self.size())
    }
}
