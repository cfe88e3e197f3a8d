//! Resident pages: leaves, their frames, and the counts of both.
//!
//! Every change of a leaf is a method of [`Resident`], here or in the module of its subject (fork,
//! huge, migrate, swap …), and the counts change with it. A leaf's rights follow from its area and
//! from whether its frame is anonymous and exclusive, by the rules of the crate's head.

use alloc::sync::Arc;
use core::mem::ManuallyDrop;
use core::ops::Range;

use freehold_frame::transition::CopyFrom;
use freehold_frame::{
    AccountId, Anon, Belongs, Frame, FrameSource, LargeMapping, LeafMapping, OutOfMemory, Owner,
    PageCache as CacheKind, Time, User, UserKind,
};
use freehold_machine::{Cpus, PAGEBLOCK_FRAMES, Pfn, VirtAddr};
use freehold_paging::{Backing, Entry, EntryAt, FlushBatch, Marks, Memory, PageSize, Rights, Slot, Space};
use freehold_tracepoints::TraceEvent;
use freehold_tracepoints::table::CopyOnWrite;

use crate::Commons;
use crate::area::{Area, AreaContent};
use crate::error::{FaultError, FaultKind};
use crate::events::{CowDecision, Event};
use crate::huge::HugeUse;
use crate::hugetlb::HugeLeaves;
use crate::monitor::Wanted;
use crate::new_page::{Bytes, Zeroes};
use crate::policy::TaskPolicy;
use crate::request::AreaFlags;

const COUNTED: &str = "a counted leaf leads to a frame of its kind";

/// Areas whose faults map no neighbours.
const NOT_AROUND: AreaFlags = AreaFlags::RANDOM.union(AreaFlags::MONITOR_MINOR);

/// Purpose of a page. The caller has checked that the area allows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    /// Load or fetch.
    Read,
    /// Store: a private page gets a frame of its own.
    Write,
}

/// Target of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeafKind {
    Zero,
    Anon,
    Cache,
}

/// Resident pages by type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rss {
    pub anon: u64,
    pub file: u64,
    pub shmem: u64,
}

impl Rss {
    pub(crate) const fn total(self) -> u64 {
        self.anon + self.file + self.shmem
    }
    pub(crate) fn of<S: Memory>(&mut self, area: &Area<S>, kind: LeafKind) -> Option<&mut u64> {
        match (kind, &area.content) {
            (LeafKind::Zero, _) => None,
            (LeafKind::Anon, _) => Some(&mut self.anon),
            (_, AreaContent::SharedAnonymous(..)) => Some(&mut self.shmem),
            _ => Some(&mut self.file),
        }
    }
}

pub(crate) struct Resident<S: Memory> {
    pub commons: Arc<Commons<S>>,
    pub tables: Space<S>,
    pub rss: Rss,
    pub peak: u64,
    /// Pages in swap areas.
    pub swapped: u64,
    /// The position of the eviction clock's hand.
    pub hand: VirtAddr,
    /// Large leaves.
    pub large: u64,
    /// Pages of 4 KiB in 2 MiB pages on request, which count nowhere else.
    pub requested: u64,
    pub huge: HugeUse,
    /// The policy of the task that acts here.
    pub acting: Option<Arc<TaskPolicy>>,
    /// The account for new pages; `None`: the running task's.
    pub payer: Option<AccountId>,
    /// The last fault's request to a monitor.
    pub wanted: Option<Wanted>,
    /// The offsets of the program's time namespace, if any: the first page of time. The frame is
    /// given back after its leaves, which are not counted, are gone.
    pub offsets: Option<Arc<Frame<Time, S>>>,
}

impl<S: Memory> Resident<S> {
    pub(crate) fn new(commons: Arc<Commons<S>>) -> Result<Self, OutOfMemory> {
        let tables = Space::new(commons.source, commons.kernel)?;
        Ok(Self {
            commons,
            tables,
            rss: Rss::default(),
            peak: 0,
            swapped: 0,
            hand: VirtAddr(0),
            large: 0,
            requested: 0,
            huge: HugeUse::ByArea,
            acting: None,
            payer: None,
            wanted: None,
            offsets: None,
        })
    }

    pub(crate) fn source(&self) -> S {
        self.commons.source
    }

    /// Returns the kind of page that the leaf `entry` leads to.
    pub(crate) fn kind_of(&self, entry: Entry) -> LeafKind {
        debug_assert!(entry.is_leaf());
        match entry.backing() {
            Backing::Uncounted => LeafKind::Zero,
            Backing::Counted if self.source().table().is_owned_by(entry.frame(), Owner::Anon) => {
                LeafKind::Anon
            }
            Backing::Counted => LeafKind::Cache,
        }
    }

    pub(crate) fn count(&mut self, area: &Area<S>, kind: LeafKind) {
        if let Some(count) = self.rss.of(area, kind) {
            *count += 1;
        }
    }

    fn uncount(&mut self, area: &Area<S>, kind: LeafKind) {
        self.uncount_pages(area, kind, 1);
    }

    pub(crate) fn uncount_pages(&mut self, area: &Area<S>, kind: LeafKind, pages: u64) {
        if let Some(count) = self.rss.of(area, kind) {
            *count -= pages;
        }
    }

    pub(crate) fn note_peak(&mut self) {
        self.peak = self.peak.max(self.rss.total());
    }

    /// Make the page at `addr` present for `want`. The access itself is allowed (or forced), and no
    /// monitor has to serve it ([`Resident::fault_or_ask`]).
    pub(crate) fn fault(
        &mut self,
        area: &Area<S>,
        addr: VirtAddr,
        want: Want,
    ) -> Result<FaultKind, FaultError> {
        if let AreaContent::Huge(view) = &area.content {
            return self.fault_huge(area, view, addr, want);
        }
        let (mut slot, size) = match self.tables.find(addr) {
            Some(found) => found,
            None => {
                if let Some(kind) = self.fill_large(area, addr, want)? {
                    return Ok(kind);
                }
                (self.tables.make(addr, PageSize::Small)?, PageSize::Small)
            }
        };
        let mut entry = slot.load();
        if want == Want::Write {
            area.copied.set();
        }
        if size == PageSize::Large && want == Want::Write {
            if let Some(kind) = self.fault_write_large(area, EntryAt { addr, slot, entry })? {
                return Ok(kind);
            }
            slot = self.tables.make(addr, PageSize::Small)?;
            entry = slot.load();
        }
        match want {
            _ if entry.is_empty() => self.fill(area, addr, slot, want),
            _ if !entry.is_leaf() => self.swap_in(area, EntryAt { addr, slot, entry }, want),
            Want::Write => self.fault_write(area, EntryAt { addr, slot, entry }),
            // Another CPU was faster, or this CPU's TLB granted less than the tables.
            Want::Read => Ok(FaultKind::Minor),
        }
    }

    /// The leaf of the page at `addr`, which may be a piece of a large one.
    pub(crate) fn present(&self, addr: VirtAddr) -> Option<Entry> {
        Some(self.tables.entry(addr)).filter(|entry| entry.is_leaf())
    }

    /// Where the leaf of the present page at `addr` ends.
    pub(crate) fn leaf_end(&self, addr: VirtAddr) -> VirtAddr {
        let size = self.tables.find(addr).map_or(PageSize::Small, |(_, size)| size);
        VirtAddr((addr.0 & !(size.bytes() - 1)) + size.bytes())
    }

    /// Fill an absent page.
    fn fill(
        &mut self,
        area: &Area<S>,
        addr: VirtAddr,
        slot: Slot<S::Machine>,
        want: Want,
    ) -> Result<FaultKind, FaultError> {
        let Some((cache, index)) = area.cache_page(addr) else {
            return match area.content {
                AreaContent::Vdso(..) => self.fill_vdso(area, addr, slot, want),
                _ => self.fill_anonymous(area, addr, slot, want),
            };
        };
        let place = self.place(area, addr);
        let (kind, mapping, rights) = loop {
            let (frame, kind) = if area.has_monitored_holes() {
                cache.fault_on_monitored(index, place)?
            } else {
                cache.fault(index, place)?
            };
            if want == Want::Write && !area.is_shared() {
                // The first store to a private file page: a copy from the start.
                self.fill_with_copy(area, addr, slot, &frame)?;
                return Ok(kind);
            }
            let frame =
                if self.takes_mirrors(area) { cache.near(index, frame, &self.commons) } else { frame };
            let Ok(mapping) = frame.map() else {
                // The frame's count of mappings is at its maximum. A private page gets a copy
                // instead; more memory would not help.
                if area.is_shared() {
                    return Err(FaultError::Bus);
                }
                self.fill_with_copy(area, addr, slot, &frame)?;
                return Ok(kind);
            };
            // Done after the mapping is counted: otherwise a write-back in between could clear the
            // mark.
            if let Some(rights) = self.filled_rights(area, index, frame.pfn(), want) {
                break (kind, mapping, rights);
            }
        };
        let marks = if want == Want::Write { Marks::Dirty } else { Marks::Accessed };
        let (entry, is_secret) = (leaf(mapping, rights, marks), cache.is_secret());
        slot.fill(if is_secret { entry.marked_secret() } else { entry });
        self.count(area, LeafKind::Cache);
        if want == Want::Read && !is_secret && !area.flags.intersects(NOT_AROUND) {
            self.fill_around(area, addr);
        }
        Ok(kind)
    }

    /// Returns the rights of a new leaf for `frame`, held by its mapping, as page `index` of the
    /// area's cache. If the leaf grants writing, this is noted in the cache. `None` if the page has
    /// another frame by now, or none.
    #[inline]
    fn filled_rights(&self, area: &Area<S>, index: u64, frame: Pfn, want: Want) -> Option<Rights> {
        if !area.is_shared() {
            return Some(area.shared_frame_rights());
        }
        let (rights, cache) = (area.rights(), area.attachment()?.cache());
        if !rights.contains(Rights::WRITE) {
            return Some(rights);
        }
        if want == Want::Read && (!cache.maps_writable_at_once() || area.tracks_stores()) {
            return Some(rights.without(Rights::WRITE));
        }
        cache.note_writable(index, frame).then_some(rights)
    }

    fn fill_with_copy(
        &mut self,
        area: &Area<S>,
        addr: VirtAddr,
        slot: Slot<S::Machine>,
        frame: &Frame<CacheKind, S>,
    ) -> Result<(), OutOfMemory> {
        let at = EntryAt { addr, slot, entry: Entry::EMPTY };
        let page = self.new_page(self.place(area, addr))?;
        area.copied.set();
        self.put(at, page, area.rights(), CopyFrom::from(frame));
        self.count(area, LeafKind::Anon);
        Ok(())
    }

    fn fill_anonymous(
        &mut self,
        area: &Area<S>,
        addr: VirtAddr,
        slot: Slot<S::Machine>,
        want: Want,
    ) -> Result<FaultKind, FaultError> {
        if want == Want::Read {
            let zero = self.commons.zero_page();
            slot.fill(Entry::leaf(zero, area.shared_frame_rights(), Marks::Accessed, Backing::Uncounted));
            return Ok(FaultKind::Minor);
        }
        let page = self.new_page(self.place(area, addr))?;
        self.put(EntryAt { addr, slot, entry: Entry::EMPTY }, page, area.rights(), Zeroes);
        self.count(area, LeafKind::Anon);
        Ok(FaultKind::Minor)
    }

    /// A store to a page that is there.
    pub(crate) fn fault_write(
        &mut self,
        area: &Area<S>,
        at: EntryAt<S::Machine>,
    ) -> Result<FaultKind, FaultError> {
        let EntryAt { addr, slot, entry } = at;
        let rights = area.rights();
        if area.is_shared() {
            if !entry.is_writable()
                && let Some((cache, index)) = area.cache_page(addr)
            {
                if !cache.note_writable(index, entry.frame()) {
                    // The page has left the cache, and its mappers will be visited soon: stores to
                    // this frame now would be lost.
                    return self.fill_again(area, at);
                }
                slot.update(|entry| entry.with_rights(rights).marked_dirty());
            }
            return Ok(FaultKind::Minor);
        }
        let kind = self.kind_of(entry);
        let place = self.place(area, addr);
        let old = match kind {
            LeafKind::Anon => return self.write_anonymous(area, at),
            LeafKind::Zero if area.vdso_page(addr).is_some() => {
                let old = slot.replace(leaf(self.copy_of_vdso(area, addr)?, rights, Marks::Dirty));
                self.tables.forget::<Anon>(addr, old, None);
                old
            }
            LeafKind::Zero => self.put(at, self.new_page(place)?, rights, Zeroes),
            LeafKind::Cache => {
                let cached =
                    LeafMapping::<CacheKind, S>::borrow_leaf(self.source(), entry.frame()).expect(COUNTED);
                self.put(at, self.new_page(place)?, rights, CopyFrom::from(&*cached))
            }
        };
        drop(self.mapping_of(old));
        self.uncount(area, kind);
        self.count(area, LeafKind::Anon);
        Ok(FaultKind::Minor)
    }

    /// Handles a shared page for which the cache has another frame, or none. Removes the leaf and
    /// maps the page anew for a store.
    #[cold]
    #[inline(never)]
    fn fill_again(&mut self, area: &Area<S>, at: EntryAt<S::Machine>) -> Result<FaultKind, FaultError> {
        let old = at.slot.replace(Entry::EMPTY);
        self.tables.forget::<CacheKind>(at.addr, old, None);
        drop(self.mapping_of(old));
        self.uncount(area, LeafKind::Cache);
        self.fill(area, at.addr, at.slot, Want::Write)
    }

    /// Handles a store to an anonymous page: it keeps a frame that is its own (again). If others
    /// have the frame, too, it gets a copy, unless it is the last one when its turn comes.
    fn write_anonymous(&self, area: &Area<S>, at: EntryAt<S::Machine>) -> Result<FaultKind, FaultError> {
        let EntryAt { addr, slot, entry } = at;
        let rights = area.rights();
        let held = LeafMapping::<Anon, S>::borrow_leaf(self.source(), entry.frame()).expect(COUNTED);
        let shared = match self.reuse(&held) {
            Ok(()) => return Ok(self.grant(at, rights)),
            Err(shared) => shared,
        };
        // Checked before each decision: it may become true after the last check, during the copy.
        let mut was_nobody_elses = false;
        // Held until the old leaf is flushed and its mapping dropped, below.
        let _turn = self.commons.turns.take(entry.frame());
        if self.has_become_own(&held, &mut was_nobody_elses) {
            return Ok(self.grant(at, rights));
        }
        let page = self.new_page(self.place(area, addr))?;
        // Another holder that ends, or whose page is swapped out, takes no turn.
        if self.has_become_own(&held, &mut was_nobody_elses) {
            return Ok(self.grant(at, rights));
        }
        if let Err(page) = self.put_in_place(at, page, rights, &shared) {
            shared.write(self.source().machine(), &page);
            if self.has_become_own(&held, &mut was_nobody_elses) {
                return Ok(self.grant(at, rights));
            }
            let old = slot.replace(leaf(page, rights, Marks::Dirty));
            self.tables.forget::<Anon>(addr, old, None);
        }
        if held.record().counts().is_merged() {
            self.commons.count(Event::CowKsm);
        } else if was_nobody_elses && is_last(&held) && self.is_nobody_elses(&held) {
            self.commons.count(Event::CowUnneeded);
        }
        self.trace_decision(at, CowDecision::Copied);
        drop(ManuallyDrop::into_inner(held));
        Ok(FaultKind::Minor)
    }

    /// The tracepoint of a decision about the page that `at` leads to.
    #[inline(always)]
    pub(crate) fn trace_decision(&self, at: EntryAt<S::Machine>, decision: CowDecision) {
        let machine = self.source().machine();
        if machine.is_traced::<{ CopyOnWrite::NUMBER }>() {
            record_decision(machine, at, decision);
        }
    }

    /// Whether the frame of the leaf's hold `held` is this space's own by now. Sets `nobodys` to
    /// whether no other holder needs its bytes.
    // Not a closure, because closures are not inlined here.
    #[inline(always)]
    fn has_become_own(&self, held: &LeafMapping<Anon, S>, nobodys: &mut bool) -> bool {
        *nobodys = false;
        is_last(held) && self.look_again(held, nobodys)
    }
    #[cold]
    #[inline(never)]
    fn look_again(&self, held: &LeafMapping<Anon, S>, nobodys: &mut bool) -> bool {
        *nobodys = self.is_nobody_elses(held);
        is_last(held) && self.reuse(held).is_ok()
    }

    /// Let the page in `slot`, whose frame is its own, be written.
    pub(crate) fn grant(&self, at: EntryAt<S::Machine>, rights: Rights) -> FaultKind {
        let EntryAt { slot, .. } = at;
        self.trace_decision(at, CowDecision::Reused);
        slot.update(|entry| entry.with_rights(rights).marked_dirty());
        self.commons.count(Event::Reuse);
        FaultKind::Minor
    }

    /// Whether only the leaf with the hold `held` needs the bytes of the frame.
    #[cold]
    #[inline(never)]
    fn is_nobody_elses(&self, held: &LeafMapping<Anon, S>) -> bool {
        let alone = |references| {
            let now = held.record().counts().load();
            now.mappings == 1 && now.pins == 0 && now.references == references
        };
        self.commons.swap.spares(held.pfn(), alone)
    }

    /// Makes this space the only user of a leaf's frame (again), if no other holder needs the
    /// frame's bytes.
    ///
    /// # Errors
    /// Another holder needs them: the page needs a copy.
    #[inline]
    pub(crate) fn reuse<'a>(&self, held: &'a LeafMapping<Anon, S>) -> Result<(), CopyFrom<'a>> {
        held.reuse().or_else(|shared| if self.reuse_swap_cached(held) { Ok(()) } else { Err(shared) })
    }

    /// Whether the only other holder of the frame is the swap, which does not need its bytes.
    #[inline]
    fn reuse_swap_cached(&self, mapping: &LeafMapping<Anon, S>) -> bool {
        let swap = &self.commons.swap;
        if swap.is_off() || mapping.record().counts().load().mappings != 1 {
            return false;
        }
        swap.spares(mapping.pfn(), |references| mapping.reuse_beside(references).is_ok())
    }

    /// Whether the frame of `entry`, or all of a large leaf's, is anonymous and exclusive.
    pub(crate) fn is_exclusive(&self, entry: Entry) -> bool {
        if entry.is_large() {
            return !entry.is_of_file()
                && self.block_of(entry).is_some_and(|block| block.belongs() == Belongs::Exclusive);
        }
        let mapping = LeafMapping::<Anon, S>::borrow_leaf(self.source(), entry.frame());
        entry.backing() == Backing::Counted && mapping.is_ok_and(|mapping| mapping.is_exclusive())
    }

    /// The hold of a leaf that has left its table.
    pub(crate) fn mapping_of(&self, old: Entry) -> Option<LeafMapping<User, S>> {
        let take = || {
            LeafMapping::from_leaf(self.source(), old.frame()).expect("counted leaves lead to user frames")
        };
        (old.backing() == Backing::Counted).then(take)
    }

    /// The hold of a large leaf that has left its table.
    fn held_block(&self, old: Entry) -> Option<LargeMapping<S>> {
        let take = || {
            LargeMapping::from_leaf(self.source(), old.frame())
                .expect("large leaves lead to anonymous blocks")
        };
        (old.backing() == Backing::Counted).then(take)
    }

    /// Removes all pages of `range`, which is part of `area` and splits no large page.
    pub(crate) fn zap(&mut self, area: &Area<S>, range: Range<VirtAddr>, batch: &mut FlushBatch<S>) {
        if let AreaContent::Huge(view) = &area.content {
            self.zap_huge(range, HugeLeaves::All, view.reserve, batch);
            return;
        }
        self.note_peak();
        let mut zap = Zap { resident: self, batch, gone: Gone::default() };
        self.tables.take_all(range, |addr, old, size| zap.take(addr, old, size));
        let gone = zap.gone;
        self.count_gone(area, &gone);
    }

    /// As [`Resident::zap`], without private copies, in memory or not.
    pub(crate) fn zap_cached(&mut self, area: &Area<S>, range: Range<VirtAddr>, batch: &mut FlushBatch<S>) {
        if let AreaContent::Huge(view) = &area.content {
            self.zap_huge(range, view.leaves_of_file(), view.reserve, batch);
            return;
        }
        self.note_peak();
        let mut zap = Zap { resident: self, batch, gone: Gone::default() };
        self.tables.visit(range, |addr, slot, entry, size| {
            if self.kind_of(entry) != LeafKind::Anon {
                zap.take(addr, slot.replace(Entry::EMPTY), size);
            }
        });
        let gone = zap.gone;
        self.count_gone(area, &gone);
    }

    fn count_gone(&mut self, area: &Area<S>, gone: &Gone) {
        self.rss.anon -= gone.anon;
        if let Some(count) = self.rss.of(area, LeafKind::Cache) {
            *count -= gone.cached;
        }
        self.large -= gone.large;
        self.swapped -= gone.swapped;
    }

    /// Give the pages of `range` the rights that `area`, which it is part of, has now.
    pub(crate) fn protect(&mut self, area: &Area<S>, range: Range<VirtAddr>, batch: &mut FlushBatch<S>) {
        let full = area.rights();
        let allows_writing = full.contains(Rights::WRITE);
        self.tables.visit(range, |addr, slot, entry, _| {
            // The next store is first reported to the monitor.
            let is_told = entry.is_watched() || !entry.is_soft_dirty() && area.tracks_stores();
            let may_write = allows_writing
                && !is_told
                && if area.is_shared() {
                    // Where stores are noted page by page, the next one faults.
                    area.cache_page(addr).is_some_and(|(cache, _)| cache.maps_writable_at_once())
                } else {
                    self.is_exclusive(entry)
                };
            let rights = if may_write { full } else { full.without(Rights::WRITE) };
            let old = slot.update(|entry| entry.with_rights(rights));
            if rights.restrict(old.rights()) {
                batch.restricted(addr, old);
            }
        });
    }
}

/// Pages, and large leaves, that were taken away.
#[derive(Default)]
struct Gone {
    anon: u64,
    cached: u64,
    large: u64,
    swapped: u64,
}

/// Pages that are being removed from tables: their frames go to `batch`, their numbers to `gone`.
struct Zap<'a, S: Memory> {
    resident: &'a Resident<S>,
    batch: &'a mut FlushBatch<S>,
    gone: Gone,
}

impl<S: Memory> Zap<'_, S> {
    /// Passes everything that `old` held to the batch. `old` has left its table.
    #[inline(always)]
    fn take(&mut self, addr: VirtAddr, old: Entry, size: PageSize) {
        let resident = self.resident;
        if !old.is_leaf() {
            if let Some(place) = old.swap_place() {
                resident.commons.swap.leave(place);
                self.gone.swapped += 1;
            }
        } else if size == PageSize::Large {
            self.gone.large += 1;
            if old.backing() == Backing::Counted {
                self.gone.anon += PAGEBLOCK_FRAMES;
                resident.count_leaves(-1);
            }
            self.batch.unmapped_large(addr, old, resident.held_block(old));
        } else {
            // Only one call, so that the batch's part is inlined.
            let held = (old.backing() == Backing::Counted).then(|| self.take_held(old));
            self.batch.unmapped(addr, old, held);
        }
    }

    /// Returns the hold of the counted leaf `old` of a 4 KiB page.
    #[inline]
    fn take_held(&mut self, old: Entry) -> LeafMapping<User, S> {
        let taken = LeafMapping::<User, S>::from_leaf_of(self.resident.source(), old.frame());
        let (mapping, owner) = taken.expect("counted leaves lead to user frames");
        if owner == Owner::Anon {
            self.gone.anon += 1;
        } else {
            self.gone.cached += 1;
        }
        mapping
    }
}

/// The leaf that becomes the holder of `mapping`.
pub(crate) fn leaf<K: UserKind, S: FrameSource>(
    mapping: LeafMapping<K, S>,
    rights: Rights,
    marks: Marks,
) -> Entry {
    Entry::leaf(mapping.into_leaf(), rights, marks, Backing::Counted)
}

/// Records a decision of copy-on-write. Not inlined, so that the fault path stays short.
#[cold]
#[inline(never)]
fn record_decision<M: Cpus>(machine: M, at: EntryAt<M>, decision: CowDecision) {
    let event = CopyOnWrite { address: at.addr.0, pfn: at.entry.frame().0, decision: decision as u32 };
    machine.record_event(CopyOnWrite::NUMBER, &event.words());
}

/// Quick check: whether no other leaf maps the frame.
#[inline(always)]
fn is_last<S: Memory>(held: &LeafMapping<Anon, S>) -> bool {
    held.record().counts().load().mappings == 1
}
