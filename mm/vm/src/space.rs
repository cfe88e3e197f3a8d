//! An address space as a whole: its parts, creation and destruction.

use alloc::sync::{Arc, Weak};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use freehold_frame::{Frame, Held, HeldFrame, OutOfMemory, PageCache as CacheKind};
use freehold_machine::{Cpus, PAGE_SHIFT, Pfn, Tally, VirtAddr};
use freehold_paging::{KernelRoots, Memory, Roots};

use crate::area::AreaUse;
use crate::areas::Areas;
use crate::cache::{Caches, MirrorControl};
use crate::events::{EVENTS, Event};
use crate::huge::HugeControl;
use crate::huge::LARGE;
use crate::hugetlb::HugePool;
use crate::keys::KeySet;
use crate::promise::Promises;
use crate::registry::{Registry, SpaceHandle};
use crate::request::{AreaFlags, Layout, Limits, SharedWrite};
use crate::resident::Resident;
use crate::swap::Swap;
use crate::turns::Turns;
use crate::{PageCache, Vdso, VmError};

/// The tables that a context switch loads: see [`Roots`].
pub type Translation<S> = Roots<S>;

/// Default for the largest number of areas of one address space (Linux: `vm.max_map_count`).
const DEFAULT_MAX_AREAS: usize = 65_530;

/// State that all address spaces of a system share.
pub struct Commons<S: Memory> {
    pub(crate) source: S,
    pub(crate) kernel: KernelRoots,
    /// The page of zeroes that reads of untouched anonymous memory get.
    zero: Frame<CacheKind, S>,
    pub(crate) huge: HugeControl<S>,
    pub(crate) pool: HugePool<S>,
    events: Tally<EVENTS>,
    pub(crate) spaces: Registry<S>,
    pub(crate) swap: Swap<S>,
    pub(crate) caches: Caches<S>,
    pub(crate) mirrors: MirrorControl,
    pub(crate) turns: Turns,
    pub(crate) vdso: spin::Once<Vdso<S>>,
    pub(crate) promises: Arc<Promises>,
    max_areas: AtomicUsize,
}

impl<S: Memory> Commons<S> {
    /// Made once, at boot.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(source: S, kernel: KernelRoots) -> Result<Arc<Self>, OutOfMemory> {
        let zero = Frame::allocate_zeroed(source)?;
        let (huge, events, spaces) = (HugeControl::new(), Tally::new(), Registry::new());
        let (swap, caches, turns) = (Swap::new(source), Caches::new(), Turns::new());
        let (vdso, promises) = (spin::Once::new(), Arc::new(Promises::new()));
        let max_areas = AtomicUsize::new(DEFAULT_MAX_AREAS);
        Ok(Arc::new(Self {
            source,
            kernel,
            zero,
            huge,
            pool: HugePool::new(),
            events,
            spaces,
            swap,
            caches,
            mirrors: MirrorControl::new(),
            turns,
            vdso,
            promises,
            max_areas,
        }))
    }
    /// Sets the frames for areas with [`Backing::Vdso`](crate::Backing::Vdso); only the first call
    /// has an effect. Returns the frames of the first call.
    pub fn set_vdso(&self, vdso: Vdso<S>) -> &Vdso<S> {
        self.vdso.call_once(|| vdso)
    }
    /// Returns the most areas that an address space has; mmap makes one more, as on Linux.
    pub fn max_areas(&self) -> usize {
        self.max_areas.load(Ordering::Relaxed)
    }
    /// Changes [`max_areas`](Self::max_areas). Existing areas stay.
    pub fn set_max_areas(&self, most: usize) {
        self.max_areas.store(most, Ordering::Relaxed);
    }
    pub(crate) fn zero_page(&self) -> Pfn {
        self.zero.pfn()
    }
    /// `frame`, if it is one that uncounted leaves map: zeroes, or the vDSO's.
    pub(crate) fn uncounted(&self, frame: Pfn) -> Option<HeldFrame<'_>> {
        let zero = self.zero.held();
        if frame == zero.pfn() {
            return Some(zero);
        }
        self.held_zero_block(frame).or_else(|| self.vdso.get()?.held(frame))
    }
    /// Returns how often `event` happened, in all address spaces.
    pub fn count_of(&self, event: Event) -> u64 {
        self.events.sum(event as usize)
    }
    /// Counts `event` once.
    #[inline]
    pub(crate) fn count(&self, event: Event) {
        self.count_many(event, 1);
    }
    /// Counts `event` the given number of times.
    #[inline]
    pub(crate) fn count_many(&self, event: Event, times: u64) {
        self.events.add(self.source.machine().current_cpu(), event as usize, times);
    }
}

impl<S: Memory> core::fmt::Debug for Commons<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Commons(zero page {:?})", self.zero_page())
    }
}

/// The memory of one process. See the crate's head.
pub struct AddressSpace<S: Memory> {
    pub(crate) id: u64,
    pub(crate) areas: Areas<S>,
    pub(crate) resident: Resident<S>,
    pub(crate) layout: Layout,
    pub(crate) brk_base: VirtAddr,
    pub(crate) brk: VirtAddr,
    /// Pages of all areas.
    pub(crate) total: u64,
    pub(crate) peak_total: u64,
    /// Pages that the space has added to the sum of promises.
    pub(crate) promised: AtomicU64,
    /// Flags that new areas get in addition to the requested ones (mlockall's MCL_FUTURE).
    pub(crate) future: AreaFlags,
    /// Whether all areas are [mergeable](AreaFlags::MERGEABLE) that can be.
    pub(crate) merges_all: bool,
    pub(crate) handle: Option<Weak<dyn SpaceHandle<S>>>,
    /// Addresses that the last call promised to make present.
    pub(crate) due: Option<Range<VirtAddr>>,
    /// The protection keys that the program has.
    pub(crate) keys: KeySet,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
}

/// Number of areas of most programs: segments, heap, libraries' beginnings, stack, vDSO.
const USUAL_AREAS: usize = 8;

/// The next address space's number.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl<S: Memory> AddressSpace<S> {
    /// An address space without areas.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(commons: &Arc<Commons<S>>, layout: Layout) -> Result<Self, OutOfMemory> {
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            areas: Areas::new(commons.source),
            resident: Resident::new(commons.clone())?,
            layout,
            brk_base: layout.lowest,
            brk: layout.lowest,
            total: 0,
            peak_total: 0,
            promised: AtomicU64::new(0),
            future: AreaFlags::empty(),
            merges_all: false,
            handle: None,
            due: None,
            keys: KeySet::NEW,
            minor_faults: 0,
            major_faults: 0,
        })
    }

    /// Make room for a program's areas at once: the first sixteen. If room were made step by step,
    /// an exec would allocate three times.
    ///
    /// # Errors
    /// [`VmError::NoMemory`].
    pub fn make_room_for_program(&mut self) -> Result<(), VmError> {
        self.make_room(USUAL_AREAS)
    }
    /// Returns the tables that a CPU loads to run in the space. A CPU that has them loaded keeps
    /// them alive.
    pub const fn translation(&self) -> &Arc<Translation<S>> {
        self.resident.tables.roots()
    }
    /// The address range for areas.
    pub const fn layout(&self) -> Layout {
        self.layout
    }
    /// A number that no other address space ever has.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Sets the handle by which truncation, reclaim and migration access this space. Called once,
    /// as soon as the lock around it exists.
    pub fn set_handle(&mut self, handle: Weak<dyn SpaceHandle<S>>) {
        let mut missed = false;
        for area in self.areas.iter() {
            missed |= area.attached().is_some_and(|at| at.set_handle(&handle));
        }
        self.resident.commons.spaces.add(self.id, handle.clone());
        self.handle = Some(handle);
        if missed {
            // A file lost pages between fork and now, so inherited pages may be gone. Cached pages
            // can be read again; private copies are removed where the file was cut.
            let Self { areas, resident, .. } = self;
            let mut batch = resident.tables.batch();
            for area in areas.iter() {
                let Some(attachment) = area.attached() else { continue };
                resident.zap_cached(area, area.start..area.end, &mut batch);
                let end = attachment.cache().end();
                if let Some(cut) = area.addresses_of(end, u64::MAX) {
                    resident.zap(area, cut, &mut batch);
                }
            }
        }
    }

    /// Unmap `pages` of `cache` in all their mappings here: they have left the cache.
    pub(crate) fn zap_cache(&mut self, cache: &PageCache<S>, pages: Range<u64>) {
        let Self { areas, resident, .. } = self;
        let mut batch = resident.tables.batch();
        let cut = pages.end == u64::MAX;
        areas.for_each_mut(|area| {
            let Some(attachment) = area.attached() else { return };
            if !core::ptr::eq(Arc::as_ptr(attachment.cache()), cache) {
                return;
            }
            if let Some(range) = area.addresses_of(pages.start, pages.end) {
                // If a file is cut, private copies are removed, too (POSIX: SIGBUS past the end); a
                // hole does not remove them.
                if cut {
                    resident.zap(area, range, &mut batch);
                } else {
                    if area.tracks_stores() && resident.has_soft_dirty(&range) {
                        // The page may come back, and its leaf no longer says that it was written.
                        area.flags.insert(AreaFlags::SOFTDIRTY);
                    }
                    resident.zap_cached(area, range, &mut batch);
                }
            }
        });
    }

    /// # Errors
    /// [`VmError::Permission`] where the cache denies `stores`.
    pub(crate) fn attach(
        &self,
        cache: &Arc<PageCache<S>>,
        stores: SharedWrite,
    ) -> Result<crate::cache::Attachment<S>, VmError> {
        let attachment = crate::cache::Attachment::new(cache, self.id, stores)?;
        if let Some(handle) = &self.handle {
            // Nothing of this area is mapped yet, so nothing was missed.
            let _ = attachment.set_handle(handle);
        }
        Ok(attachment)
    }

    /// See [`Areas::make_room`](crate::areas::Areas::make_room).
    pub(crate) fn make_room(&mut self, more: usize) -> Result<(), VmError> {
        let most = self.resident.commons.max_areas();
        self.areas.make_room(more, most)
    }

    pub(crate) fn count_in(&mut self, pages: u64) {
        self.total += pages;
        self.peak_total = self.peak_total.max(self.total);
    }

    pub(crate) const fn data_pages(&self) -> u64 {
        self.areas.sums().of(AreaUse::Data)
    }
    pub(crate) const fn locked_pages(&self) -> u64 {
        self.areas.sums().locked
    }

    /// Whether `pages` more pages are within the limits.
    pub(crate) fn check_limits(&self, pages: u64, area_use: AreaUse, limits: &Limits) -> Result<(), VmError> {
        let over = || self.total.saturating_add(pages) > limits.address_space >> PAGE_SHIFT;
        if limits.address_space != u64::MAX && over() {
            return Err(VmError::NoMemory);
        }
        if area_use == AreaUse::Data { self.check_data(pages, limits.data) } else { Ok(()) }
    }

    /// Whether `pages` more pages of private writable memory are within their limit.
    pub(crate) fn check_data(&self, pages: u64, limit: u64) -> Result<(), VmError> {
        let over = || self.data_pages().saturating_add(pages) > limit >> PAGE_SHIFT;
        if limit != u64::MAX && over() { Err(VmError::NoMemory) } else { Ok(()) }
    }
}

impl<S: Memory> Drop for AddressSpace<S> {
    fn drop(&mut self) {
        self.take_back_promise();
        self.resident.commons.spaces.remove(self.id);
        let Self { areas, resident, .. } = self;
        let mut batch = resident.tables.batch();
        let mut rest = areas.iter().peekable();
        // The first address whose tables still exist.
        let mut standing = None;
        while let Some(area) = rest.next() {
            resident.source().rest();
            resident.zap_area(area, &mut batch);
            let from = *standing.get_or_insert(area.start);
            let ceiling = rest.peek().map_or(VirtAddr(1 << 47), |next| next.start);
            if ceiling.0 < area.end.0.next_multiple_of(LARGE) {
                // The next area's leaves begin in the table where this one's end.
                continue;
            }
            // Everything below has already been removed, so the tables up to the next area can be
            // freed. They are found by these few addresses, without a walk over all possible
            // tables.
            resident.tables.free_tables(from..area.end, VirtAddr(0)..ceiling, &mut batch);
            standing = None;
        }
    }
}

impl<S: Memory> core::fmt::Debug for AddressSpace<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "AddressSpace {} ({} areas, {} pages)", self.id, self.areas.count(), self.total)
    }
}
