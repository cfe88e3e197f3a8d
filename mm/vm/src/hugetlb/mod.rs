//! 2 MiB pages on request (Linux: hugetlb, mm/hugetlb.c): mappings made with MAP_HUGETLB.
//!
//! **Pages.** A page is a pageblock of anonymous frames, mapped by one large leaf as in
//! [`huge`](crate::huge), but its leaf is never split. So all of its frames have the same number of
//! mappings. Fork, pins and copy-on-write use the counts of `freehold_frame`: a pin shatters the
//! counts and leaves the leaf as it is.
//!
//! **Owners.** Each page of the [pool](pool) has a holder at every moment, which is one mapping of
//! all its frames ([`LargeMapping`]):
//!
//! | state | holder |
//! |---|---|
//! | free | the pool's list of the node; exclusive and whole |
//! | in use | large leaves, and the [`HugePages`] of a file or of shared memory |
//! | lingering | the pool: the last leaf is gone, but a frame is pinned or referenced |
//!
//! A leaf that goes is flushed first. Then the pool takes its hold under the pool's lock
//! ([`Commons::put_huge`]): the last hold becomes a free or lingering page, any other is dropped.
//! Only large leaves and lists count mappings, and only a holder can add one. So the hold
//! that finds a count of one is the last. No frame of the pool gets back to the page allocator
//! unless the pool shrinks.
//!
//! **Reservations.** A mapping reserves its pages when it is made, unless it has MAP_NORESERVE. An
//! absent page of a private area that [reserves](Reserve::Own) stands for one reservation, a
//! present one for none, and becomes one again when its leaf goes. So the numbers follow from
//! areas and leaves. A child inherits no
//! reservation. MADV_DONTNEED reserves the page again (Linux since 6.8). Reservations of shared
//! mappings belong to the [list](pages).
//!
//! **Files.** A [file](file) has a list of pages like shared memory. A private mapping shows a
//! file's page read-only until the first store, by a leaf with a mark
//! ([`Entry::marked_of_file`]). Such a page counts as absent, since its copy is still to come. The
//! holes are the mapping's own pages from the start.
//!
//! **Copy-on-write.** Fork shares a page as a whole. A page with a pinned frame is copied at once,
//! and without a free page the fork fails. The first store copies the whole page, unless no other
//! holder is left. A store without a free page is SIGBUS, but not for the area that reserved it:
//! its children lose the page ([`Commons::unmap_copies`]; Linux: `unmap_ref_private`). In an area
//! that lost a page, each access to an absent page is SIGBUS. A child that has moved its mapping
//! keeps the page, and then the store is SIGBUS.
//!
//! **Locks.** The owner has its space locked while its children lose a page: their locks are only
//! tried. Address space > the pages of shared memory > the pool. The last two are spin locks,
//! under which nothing is allocated from the page allocator and no byte is copied.

mod budget;
mod file;
mod pages;
mod pool;
mod runs;

use core::mem::ManuallyDrop;
use core::ops::Range;

use alloc::sync::Arc;

use freehold_frame::{Held, LargeMapping, NodePolicy};
use freehold_machine::{PAGEBLOCK_FRAMES, Pfn, VirtAddr};
use freehold_paging::{Entry, EntryAt, FlushBatch, Marks, Memory, PageSize, Rights, Slot};
use freehold_xpfo::Windows;

use crate::area::{Area, AreaContent};
use crate::cache::Attachment;
use crate::error::{FaultError, FaultKind, VmError};
use crate::events::CowDecision;
use crate::huge::{LARGE, block_start, large_leaf};
use crate::registry::{Locking, Visited};
use crate::request::{AreaFlags, FileView, MappedFile, Protection, SharedWrite};
use crate::resident::{Resident, Want};
use crate::{AddressSpace, Advice, Commons, Sharing, Smaps};

pub use budget::HugeBudget;
pub(crate) use pages::HugePages;
pub use pool::HugePoolFigures;
pub(crate) use pool::{Claim, HugePool};

/// Whether the absent pages of a private area are reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reserve {
    /// Each stands for a reservation.
    Own,
    /// They take what is free when they are touched.
    None,
    /// There are none: the owner of the reservation has taken a page away.
    Lost,
}

/// The content of an area of huge pages.
pub(crate) struct HugeView<S: Memory> {
    /// The number of the file's cache; without a file, one that tells the mapping from others, and
    /// from caches.
    pub id: u64,
    /// Offset of the area's first byte in the file or mapping.
    pub offset: u64,
    pub reserve: Reserve,
    /// The pages of a shared mapping.
    pub shared: Option<Arc<HugePages<S>>>,
    pub file: Option<HugeFile<S>>,
}

/// The file that an area of huge pages maps.
pub(crate) struct HugeFile<S: Memory> {
    pub file: Arc<dyn MappedFile<S>>,
    pub pages: Arc<HugePages<S>>,
    pub attachment: Attachment<S>,
}

impl<S: Memory> HugeFile<S> {
    fn with(&self, attachment: Attachment<S>) -> Self {
        Self { file: self.file.clone(), pages: self.pages.clone(), attachment }
    }
}

impl<S: Memory> Clone for HugeFile<S> {
    fn clone(&self) -> Self {
        self.with(self.attachment.clone())
    }
}

impl<S: Memory> Clone for HugeView<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), file: self.file.clone(), ..*self }
    }
}

/// The leaves of an area that are removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HugeLeaves {
    All,
    /// Those of a file's pages.
    OfFile,
}

impl<S: Memory> HugeView<S> {
    /// As a child gets it, whose space has the number `space`.
    pub(crate) fn inherited(&self, space: u64) -> Self {
        let reserve = if self.reserve == Reserve::Own { Reserve::None } else { self.reserve };
        let file = self.file.as_ref().map(|file| file.with(file.attachment.for_space(space)));
        Self { reserve, shared: self.shared.clone(), file, ..*self }
    }
    /// Whether it shows what follows after `len` bytes of this one.
    pub(crate) fn continues(&self, next: &Self, len: u64) -> bool {
        let file = |view: &Self| view.file.as_ref().map(|file| Arc::as_ptr(&file.file).cast::<()>());
        self.id == next.id
            && self.reserve == next.reserve
            && self.offset + len == next.offset
            && file(self) == file(next)
    }
    /// Whether stores through this shared mapping are refused.
    pub(crate) fn denies_stores(&self) -> bool {
        let denies = |file: &HugeFile<S>| file.attachment.stores() == SharedWrite::Denied;
        self.shared.is_some() && self.file.as_ref().is_some_and(denies)
    }
    /// Reserves `count` pages of a private mapping.
    fn promise(&self, commons: &Commons<S>, count: u64) -> Result<(), VmError> {
        match &self.file {
            Some(file) => file.pages.promise(count),
            None => commons.reserve_huge(count),
        }
    }
    /// Takes back `count` reserved pages of a private mapping.
    fn release(&self, commons: &Commons<S>, count: u64) {
        match &self.file {
            Some(file) => file.pages.release(count, count),
            None => commons.unreserve_huge(count),
        }
    }
    /// The leaves that are to go when the file's pages go.
    pub(crate) const fn leaves_of_file(&self) -> HugeLeaves {
        if self.shared.is_some() { HugeLeaves::All } else { HugeLeaves::OfFile }
    }
}

impl<S: Memory> Area<S> {
    /// The area's view of huge pages, if it is made of them.
    pub(crate) const fn huge_view(&self) -> Option<&HugeView<S>> {
        match &self.content {
            AreaContent::Huge(view) => Some(view),
            _ => None,
        }
    }
    /// Whether a border of areas may not be at `at`, which is inside.
    fn forbids_border(&self, at: VirtAddr) -> bool {
        self.huge_view().is_some() && at != block_start(at)
    }
}

/// The number of huge pages of `bytes` bytes.
const fn blocks(bytes: u64) -> u64 {
    bytes / LARGE
}

impl<S: Memory> AddressSpace<S> {
    /// Returns the content of a new area of `len` bytes. Its pages are reserved by
    /// [`AddressSpace::reserve_huge`].
    pub(crate) fn huge_content(&self, sharing: Sharing, flags: AreaFlags, offset: u64) -> AreaContent<S> {
        let reserves = !flags.contains(AreaFlags::NORESERVE);
        let shared = (sharing == Sharing::Shared).then(|| HugePages::new(&self.resident.commons, None));
        AreaContent::Huge(HugeView {
            id: self.resident.commons.pool.new_id(),
            offset,
            reserve: if reserves && shared.is_none() { Reserve::Own } else { Reserve::None },
            shared,
            file: None,
        })
    }

    /// Returns the content of a new area that maps a file of huge pages.
    ///
    /// # Errors
    /// [`VmError::Invalid`] for an offset inside a page; the errors of attaching.
    pub(crate) fn huge_file_content(
        &self,
        view: FileView<S>,
        sharing: Sharing,
        write: SharedWrite,
        flags: AreaFlags,
    ) -> Result<AreaContent<S>, VmError> {
        let FileView { file, offset } = view;
        let pages = file.cache().huge_pages().ok_or(VmError::Invalid)?.clone();
        if !offset.is_multiple_of(LARGE) {
            return Err(VmError::Invalid);
        }
        let is_shared = sharing == Sharing::Shared;
        let reserves = !is_shared && !flags.contains(AreaFlags::NORESERVE);
        let attachment = self.attach(file.cache(), if is_shared { write } else { SharedWrite::Denied })?;
        Ok(AreaContent::Huge(HugeView {
            id: file.cache().id(),
            offset,
            reserve: if reserves { Reserve::Own } else { Reserve::None },
            shared: is_shared.then(|| pages.clone()),
            file: Some(HugeFile { file, pages, attachment }),
        }))
    }

    /// Reserves the pages of a new area, if it is one of huge pages. A file that is mapped for
    /// writing grows (Linux: `hugetlbfs_file_mmap`).
    ///
    /// # Errors
    /// [`VmError::NoHugePage`], [`VmError::NoMemory`].
    pub(crate) fn reserve_huge(&self, area: &Area<S>) -> Result<(), VmError> {
        let Some(view) = area.huge_view() else { return Ok(()) };
        let (first, count) = (blocks(view.offset), blocks(area.len()));
        match &view.shared {
            // The offset of memory without a file has no meaning, but is where its numbers begin.
            Some(pages) if !area.flags.contains(AreaFlags::NORESERVE) => {
                pages.reserve(first..first + count)?
            }
            None if view.reserve == Reserve::Own => view.promise(&self.resident.commons, count)?,
            _ => {}
        }
        if let Some(file) = view.file.as_ref().filter(|_| area.protection.contains(Protection::WRITE)) {
            file.file.cache().set_size_grow(view.offset + area.len());
        }
        Ok(())
    }

    /// Checks whether a border of areas may be at `at`.
    ///
    /// # Errors
    /// [`VmError::Invalid`] inside a huge page.
    pub(crate) fn check_border(&self, at: VirtAddr) -> Result<(), VmError> {
        let forbids = self.areas.at(at).is_some_and(|area| area.forbids_border(at));
        if forbids { Err(VmError::Invalid) } else { Ok(()) }
    }

    /// Returns `at`, or the start of the huge page around it.
    pub(crate) fn outside_huge(&self, at: VirtAddr) -> VirtAddr {
        if self.check_border(at).is_ok() { at } else { block_start(at) }
    }

    /// Returns the part of `range` that `advice` applies to. MADV_DONTNEED discards no huge page in
    /// part: the end is rounded down.
    ///
    /// # Errors
    /// [`VmError::Invalid`] if MADV_DONTNEED is to start inside a huge page.
    pub(crate) fn fitted(&self, range: Range<VirtAddr>, advice: Advice) -> Result<Range<VirtAddr>, VmError> {
        if !matches!(advice, Advice::DontNeed | Advice::DontNeedLocked) {
            return Ok(range);
        }
        self.check_border(range.start)?;
        Ok(range.start..self.outside_huge(range.end))
    }

    /// Moves the reservations of `range`, whose area has been copied, to the copy.
    pub(crate) fn leave_reservations(&mut self, range: Range<VirtAddr>) {
        self.areas.change(range, |area| {
            if let AreaContent::Huge(view) = &mut area.content {
                view.reserve = Reserve::None;
            }
        });
    }
}

impl<S: Memory> Resident<S> {
    /// Handles a fault at `addr` in `area`, which shows huge pages. See [`Resident::fault`].
    #[cold]
    pub(crate) fn fault_huge(
        &mut self,
        area: &Area<S>,
        view: &HugeView<S>,
        addr: VirtAddr,
        want: Want,
    ) -> Result<FaultKind, FaultError> {
        let addr = block_start(addr);
        let slot = self.tables.make(addr, PageSize::Large)?;
        let entry = slot.load();
        let rights = area.rights();
        if entry.is_empty() {
            slot.fill(self.absent_huge(area, view, addr, want).ok_or(FaultError::Bus)?);
            self.requested += PAGEBLOCK_FRAMES;
            return Ok(FaultKind::Minor);
        }
        if want == Want::Read || entry.is_writable() {
            return Ok(FaultKind::Minor);
        }
        let at = EntryAt { addr, slot, entry };
        let block = self.block_of(entry).ok_or(FaultError::Bus)?;
        let is_of_file = entry.is_of_file();
        if !is_of_file && (view.shared.is_some() || block.reuse().is_ok()) {
            return Ok(self.grant(at, rights));
        }
        let claim = if is_of_file { Claim::of(view.reserve) } else { Claim::Free };
        let copy = match self.copy_huge(area, addr, &block, claim) {
            Some(copy) => copy,
            None if view.reserve == Reserve::Own && !is_of_file => {
                let locked = self.commons.unmap_copies(addr, entry.frame());
                return match block.reuse() {
                    Ok(()) => Ok(self.grant(at, rights)),
                    // One of the locked spaces is this one. The access is repeated for the others.
                    Err(_) if locked > 1 => Ok(FaultKind::Minor),
                    Err(_) => Err(FaultError::Bus),
                };
            }
            None => return Err(FaultError::Bus),
        };
        let mut batch = self.tables.batch();
        batch.unmapped_large(addr, slot.replace(large_leaf(copy, rights, Marks::Dirty)), None);
        drop(batch);
        self.trace_decision(at, CowDecision::Copied);
        self.commons.put_huge(ManuallyDrop::into_inner(block), Reserve::None);
        Ok(FaultKind::Minor)
    }

    /// The leaf of an absent page; `None` without a free page, and past the end of the file, if the
    /// file has no page there (Linux: `hugetlb_no_page`).
    fn absent_huge(&self, area: &Area<S>, view: &HugeView<S>, addr: VirtAddr, want: Want) -> Option<Entry> {
        let (place, rights) = (self.place_large(area, addr), area.rights());
        let marks = if want == Want::Write { Marks::Dirty } else { Marks::Accessed };
        let number = blocks(view.offset + (addr.0 - area.start.0));
        if view.reserve == Reserve::Lost {
            return None;
        }
        let present = view.file.as_ref().and_then(|file| file.pages.present(number));
        let is_past = |file: &HugeFile<S>| number >= file.file.cache().huge_end();
        if present.is_none() && view.file.as_ref().is_some_and(is_past) {
            return None;
        }
        let block = match (&view.shared, present) {
            (Some(_), Some(page)) => Some(page),
            (Some(pages), None) => pages.page(number, place),
            (None, Some(page)) if want == Want::Read => {
                let leaf = large_leaf(page, rights.without(Rights::WRITE), marks);
                return Some(leaf.marked_of_file());
            }
            (None, Some(page)) => {
                let copy = self.copy_huge(area, addr, &page, Claim::of(view.reserve));
                self.commons.put_huge(page, Reserve::None);
                copy
            }
            (None, None) => self.commons.new_huge(place, Claim::of(view.reserve)),
        };
        Some(large_leaf(block?, rights, marks))
    }

    /// A new page with the bytes of `from`; `None` without a free page.
    fn copy_huge(
        &self,
        area: &Area<S>,
        addr: VirtAddr,
        from: &LargeMapping<S>,
        claim: Claim,
    ) -> Option<LargeMapping<S>> {
        let copy = self.commons.take_huge(self.place_large(area, addr), claim)?;
        let machine = self.source().machine();
        (0..PAGEBLOCK_FRAMES).for_each(|index| machine.copy(&from.held_at(index), &copy.held_at(index)));
        Some(copy)
    }

    /// Gives the child the private pages of `area`.
    ///
    /// # Errors
    /// [`VmError::NoMemory`]; [`VmError::NoHugePage`] if a page is pinned and none is free for its
    /// copy.
    pub(crate) fn fork_huge(
        &mut self,
        area: &Area<S>,
        child: &mut Self,
        batch: &mut FlushBatch<S>,
    ) -> Result<(), VmError> {
        let mut outcome = Ok(());
        let parent = &*self;
        parent.tables.visit(area.start..area.end, |addr, slot, entry, _| {
            let Some(block) = parent.block_of(entry).filter(|_| outcome.is_ok()) else { return };
            let made = child.tables.make(addr, PageSize::Large).map_err(VmError::from).and_then(|to| {
                let Ok(twin) = block.share() else {
                    let copy = parent.copy_huge(area, addr, &block, Claim::Free);
                    let copy = copy.ok_or(VmError::NoHugePage)?;
                    to.fill(large_leaf(copy, area.rights(), Marks::Dirty));
                    return Ok(());
                };
                if entry.is_writable() {
                    batch.restricted(addr, slot.update_from(entry, Entry::write_protected));
                }
                twin.into_leaf();
                to.fill(entry.inherited());
                Ok(())
            });
            match made {
                Ok(()) => child.requested += PAGEBLOCK_FRAMES,
                Err(error) => outcome = Err(error),
            }
        });
        outcome
    }

    /// Counts the pages of `area`, which shows huge pages, for /proc/PID/smaps.
    pub(crate) fn huge_smaps(&self, area: &Area<S>) -> Smaps {
        let mut smaps = Smaps::default();
        self.tables.visit(area.start..area.end, |_, _, entry, size| {
            // The list of a file or of shared memory holds each of its pages, too.
            let most = 1 + u32::from(area.is_shared() || entry.is_of_file());
            let mappings = self.block_of(entry).map_or(0, |block| block.holders(0).mappings);
            let sum = if mappings > most { &mut smaps.shared_huge } else { &mut smaps.private_huge };
            *sum += size.bytes();
        });
        smaps
    }

    /// Removes huge pages of `range`, and reserves the area's own again if `reserve` says so.
    pub(crate) fn zap_huge(
        &mut self,
        range: Range<VirtAddr>,
        leaves: HugeLeaves,
        reserve: Reserve,
        batch: &mut FlushBatch<S>,
    ) {
        let mut gone = 0;
        let mut take = |addr, old: Entry| {
            batch.unmapped_large(addr, old, None);
            // The next holder may write the page at once.
            batch.flush();
            let reserve = if old.is_of_file() { Reserve::None } else { reserve };
            gone += 1;
            if let Some(block) = self.block_of(old) {
                self.commons.put_huge(ManuallyDrop::into_inner(block), reserve);
            }
        };
        match leaves {
            HugeLeaves::All => self.tables.take_all(range, |addr, old, _| take(addr, old)),
            HugeLeaves::OfFile => self.tables.visit(range, |addr, slot, entry, _| {
                if entry.is_of_file() {
                    take(addr, slot.replace(Entry::EMPTY));
                }
            }),
        }
        self.requested -= gone * PAGEBLOCK_FRAMES;
    }

    /// Removes all pages of `area`, which is no longer in the space, with its reservations.
    pub(crate) fn zap_area(&mut self, area: &Area<S>, batch: &mut FlushBatch<S>) {
        let Some(view) = area.huge_view() else { return self.zap(area, area.start..area.end, batch) };
        self.zap_huge(area.start..area.end, HugeLeaves::All, view.reserve, batch);
        if view.reserve == Reserve::Own {
            view.release(&self.commons, blocks(area.len()));
        }
    }
}

impl<S: Memory> AddressSpace<S> {
    /// Removes the page at `addr` if it is the block at `head`, in an area that reserved nothing.
    fn lose_huge(&mut self, addr: VirtAddr, head: Pfn) {
        let is_copy = |view: &HugeView<S>| view.shared.is_none() && view.reserve != Reserve::Own;
        let maps = |slot: Slot<S::Machine>| slot.load().is_large() && slot.load().frame() == head;
        if !self.areas.at(addr).and_then(Area::huge_view).is_some_and(is_copy)
            || !self.resident.tables.find_large(addr).is_some_and(maps)
        {
            return;
        }
        let mut batch = self.resident.tables.batch();
        let page = addr..VirtAddr(addr.0 + LARGE);
        self.resident.zap_huge(page, HugeLeaves::All, Reserve::None, &mut batch);
        self.areas.update_at(addr, |area| {
            if let AreaContent::Huge(view) = &mut area.content {
                view.reserve = Reserve::Lost;
            }
        });
    }
}

impl<S: Memory> Commons<S> {
    /// Removes the block at `head` from the address `addr` of all spaces whose areas have not
    /// reserved it. Returns the number of spaces that could not be locked.
    fn unmap_copies(&self, addr: VirtAddr, head: Pfn) -> u64 {
        let (mut last, mut locked) = (0, 0);
        while let Some((id, space)) = self.next_space(last) {
            last = id;
            let visited = space.with(Locking::Try, &mut |space| space.lose_huge(addr, head));
            locked += u64::from(visited == Visited::Busy);
        }
        locked
    }

    /// A page of zeroes from the pool; `None` without one.
    pub(crate) fn new_huge(&self, place: NodePolicy, claim: Claim) -> Option<LargeMapping<S>> {
        let block = self.take_huge(place, claim)?;
        self.source.machine().zero_run(block.held_run());
        Some(block)
    }
}
