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
//! | in use | large leaves, and the [`HugePages`] of shared memory |
//! | lingering | the pool: the last leaf is gone, but a frame is pinned or referenced |
//!
//! A leaf that goes is flushed first. Then the pool takes its hold under the pool's lock
//! ([`Commons::put_huge`]): the last hold becomes a free or lingering page, any other is dropped.
//! Only large leaves and shared memory count mappings, and only a holder can add one. So the hold
//! that finds a count of one is the last. No frame of the pool gets back to the page allocator
//! unless the pool shrinks.
//!
//! **Reservations.** A mapping reserves its pages when it is made, unless it has MAP_NORESERVE. An
//! absent page of a private area that [reserves](Reserve::Own) stands for one reservation, a
//! present one for none. So the numbers follow from areas and leaves. A child inherits no
//! reservation. MADV_DONTNEED reserves the page again (Linux since 6.8).
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

mod pages;
mod pool;

use core::mem::ManuallyDrop;
use core::ops::Range;

use alloc::sync::Arc;

use freehold_frame::{Held, LargeMapping, NodePolicy};
use freehold_machine::{PAGEBLOCK_FRAMES, Pfn, VirtAddr};
use freehold_paging::{Entry, EntryAt, FlushBatch, Marks, Memory, PageSize, Slot};
use freehold_xpfo::Windows;

use crate::area::{Area, AreaContent};
use crate::error::{FaultError, FaultKind, VmError};
use crate::events::CowDecision;
use crate::huge::{LARGE, block_start, large_leaf};
use crate::registry::{Locking, Visited};
use crate::request::AreaFlags;
use crate::resident::{Resident, Want};
use crate::{AddressSpace, Advice, Commons, Sharing, Smaps};

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
    /// The number that tells the mapping from others, and from page caches.
    pub id: u64,
    /// Offset of the area's first byte in the mapping.
    pub offset: u64,
    pub reserve: Reserve,
    /// The pages of a shared mapping.
    pub shared: Option<Arc<HugePages<S>>>,
}

impl<S: Memory> Clone for HugeView<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), ..*self }
    }
}

impl<S: Memory> HugeView<S> {
    /// As a child gets it.
    pub(crate) fn inherited(&self) -> Self {
        let reserve = if self.reserve == Reserve::Own { Reserve::None } else { self.reserve };
        Self { reserve, ..self.clone() }
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
        let shared = (sharing == Sharing::Shared).then(|| HugePages::new(&self.resident.commons));
        AreaContent::Huge(HugeView {
            id: self.resident.commons.pool.new_id(),
            offset,
            reserve: if reserves && shared.is_none() { Reserve::Own } else { Reserve::None },
            shared,
        })
    }

    /// Reserves the pages of a new area, if it is one of huge pages.
    ///
    /// # Errors
    /// [`VmError::NoHugePage`].
    pub(crate) fn reserve_huge(&self, area: &Area<S>) -> Result<(), VmError> {
        let Some(view) = area.huge_view() else { return Ok(()) };
        let count = blocks(area.len());
        match &view.shared {
            Some(pages) if !area.flags.contains(AreaFlags::NORESERVE) => pages.reserve(count),
            None if view.reserve == Reserve::Own => self.resident.commons.reserve_huge(count),
            _ => Ok(()),
        }
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
        let rights = area.protection.rights();
        if entry.is_empty() {
            let place = self.place_large(area, addr);
            let block = match &view.shared {
                _ if view.reserve == Reserve::Lost => None,
                Some(pages) => pages.page(blocks(view.offset + (addr.0 - area.start.0)), place),
                None => self.commons.new_huge(place, Claim::of(view.reserve)),
            };
            let marks = if want == Want::Write { Marks::Dirty } else { Marks::Accessed };
            slot.fill(large_leaf(block.ok_or(FaultError::Bus)?, rights, marks));
            self.requested += PAGEBLOCK_FRAMES;
            return Ok(FaultKind::Minor);
        }
        if want == Want::Read || entry.is_writable() {
            return Ok(FaultKind::Minor);
        }
        let at = EntryAt { addr, slot, entry };
        let block = self.block_of(entry).ok_or(FaultError::Bus)?;
        if view.shared.is_some() || block.reuse().is_ok() {
            return Ok(self.grant(at, rights));
        }
        let copy = match self.copy_huge(area, addr, &block) {
            Some(copy) => copy,
            None if view.reserve == Reserve::Own => {
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

    /// A new page with the bytes of `from`; `None` without a free page.
    fn copy_huge(&self, area: &Area<S>, addr: VirtAddr, from: &LargeMapping<S>) -> Option<LargeMapping<S>> {
        let copy = self.commons.take_huge(self.place_large(area, addr), Claim::Free)?;
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
                    let copy = parent.copy_huge(area, addr, &block).ok_or(VmError::NoHugePage)?;
                    to.fill(large_leaf(copy, area.protection.rights(), Marks::Dirty));
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
        // The list of shared memory holds each of its pages, too.
        let most = 1 + u32::from(area.is_shared());
        self.tables.visit(area.start..area.end, |_, _, entry, size| {
            let mappings = self.block_of(entry).map_or(0, |block| block.holders(0).mappings);
            let sum = if mappings > most { &mut smaps.shared_huge } else { &mut smaps.private_huge };
            *sum += size.bytes();
        });
        smaps
    }

    /// Removes the huge pages of `range`, and reserves them again if `reserve` says so. Returns
    /// their number.
    pub(crate) fn zap_huge(
        &mut self,
        range: Range<VirtAddr>,
        reserve: Reserve,
        batch: &mut FlushBatch<S>,
    ) -> u64 {
        let mut gone = 0;
        self.tables.take_all(range, |addr, old, _| {
            gone += 1;
            batch.unmapped_large(addr, old, None);
            // The next holder may write the page at once.
            batch.flush();
            if let Some(block) = self.block_of(old) {
                self.commons.put_huge(ManuallyDrop::into_inner(block), reserve);
            }
        });
        self.requested -= gone * PAGEBLOCK_FRAMES;
        gone
    }

    /// Removes all pages of `area`, which is no longer in the space, with its reservations.
    pub(crate) fn zap_area(&mut self, area: &Area<S>, batch: &mut FlushBatch<S>) {
        let Some(view) = area.huge_view() else { return self.zap(area, area.start..area.end, batch) };
        let present = self.zap_huge(area.start..area.end, Reserve::None, batch);
        if view.reserve == Reserve::Own {
            self.commons.unreserve_huge(blocks(area.len()) - present);
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
        self.resident.zap_huge(addr..VirtAddr(addr.0 + LARGE), Reserve::None, &mut batch);
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
