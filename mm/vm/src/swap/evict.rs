//! Choosing pages, evicting them from memory, and writing them.
//!
//! **Choice.** A clock runs over the page tables: each space has a hand that goes through its
//! leaves. A page that was used since the hand last passed loses its mark of use and stays; any
//! other page is evicted. Spaces are visited in turn, each for a share of its pages in memory.
//! Pinned pages stay, and so do pages of locked areas and pages to which the kernel holds a
//! reference (among them a page that was taken back before its write was done). A 2 MiB page is
//! split first: it is one page for the clock, and 512 for the swap.
//!
//! **Steps.** Pages are evicted in batches of [`SWAP_RUN`]. Under the space's lock they lose their
//! leaves, all TLBs forget them, and they get slots. Then they are written without any lock,
//! neighbours in one request. A task that faults on one meanwhile takes it back from the swap
//! cache. The next walk takes back a page that could not be written, so that it goes to another
//! slot.
//!
//! **Discardable pages** (MADV_FREE) are freed without a slot, unless they were written since. The
//! hardware's mark in the old leaf tells this exactly: a CPU sets it in a present leaf before it
//! stores, and a pin that writes keeps it set.

use arrayvec::ArrayVec;
use core::ops::{ControlFlow, Range};

use freehold_frame::{Frame, Held, HeldFrame, User};
use freehold_machine::{Pfn, VirtAddr};
use freehold_paging::{Entry, FlushBatch, Memory, PageSize, SwapPlace};

use super::{SWAP_RUN, Stowed, Wrote};
use crate::events::Event;
use crate::pin::detach::{Detach, Settled};
use crate::registry::{Locking, SpaceHandle, Visited, once_around};
use crate::request::AreaFlags;
use crate::resident::{LeafKind, Resident};
use crate::{AddressSpace, Commons, FrameChoice, VmError};

/// Whether use protects a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Age {
    /// A page that was used since the hand last passed stays this time.
    Respect,
    /// Pages that were used recently are evicted, too. The eviction waits for spaces that other
    /// tasks have locked.
    Ignore,
}

/// A request to evict pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EvictWish {
    /// Frames that shall become free.
    pub pages: u64,
    /// Whether recent use protects a page.
    pub age: Age,
    /// The frames that may be evicted.
    pub frames: FrameChoice,
    /// How far each space is scanned: its present pages divided by 2 to the power of `effort`, and
    /// a few more. 0 is all.
    pub effort: u32,
}

/// Result of an eviction, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapEvicted {
    /// Leaves that were looked at.
    pub scanned: u64,
    /// Frames that are free now.
    pub freed: u64,
    /// Pages that were written.
    pub written: u64,
    /// Pages that could not be written.
    pub failed: u64,
}

/// Treatment of a page that other spaces map too.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OfOthers {
    /// Its leaf is removed here; its frame is freed with the last leaf.
    Goes,
    /// The page stays: this process alone may not evict it.
    Stays,
}

/// Whether the swap has free slots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Left,
    Full,
}

/// Selection of the leaves to evict.
#[derive(Clone, Copy)]
struct Pick {
    age: Age,
    frames: FrameChoice,
    of_others: OfOthers,
}

const IN_SLOT: &str = "a slot holds its frame until it hears how writing went";

/// A walk over pages: the selection, the number of pages that may still be scanned, and the counts
/// so far.
struct EvictionWalk<'a, S: Memory> {
    commons: &'a Commons<S>,
    pick: Pick,
    /// How many pages may still be looked at in this space.
    looks: u64,
    room: Room,
    /// Whether there are pages that no store has taken.
    retries: bool,
    /// Pages whose slots wait for their bytes. Each slot holds its frame until the result of the
    /// write is reported to it.
    out: ArrayVec<(SwapPlace, Pfn), SWAP_RUN>,
    done: SwapEvicted,
}

impl<'a, S: Memory> EvictionWalk<'a, S> {
    fn new(commons: &'a Commons<S>, pick: Pick) -> Self {
        let (looks, done) = (u64::MAX, SwapEvicted::default());
        Self { commons, pick, looks, room: Room::Full, retries: false, out: ArrayVec::new(), done }
    }

    /// Reads the state of the swap after a space was locked.
    fn begin(&mut self) {
        self.look_for_room();
        self.retries = self.commons.swap.dirty_pages() > 0;
    }
    fn look_for_room(&mut self) {
        self.room = if self.commons.swap.usage().free > 0 { Room::Left } else { Room::Full };
    }
    /// Whether there is a slot for the page of `entry`, or it needs none.
    fn takes(&self, entry: Entry) -> bool {
        self.room == Room::Left || entry.is_lazy()
    }
    /// Whether `entry` was used lately, which protects it.
    fn spares(&self, entry: Entry) -> bool {
        entry.is_accessed() && self.pick.age == Age::Respect
    }

    /// Writes the pages, as many at a time as lie together. The caller has no lock.
    fn write(&mut self) {
        while !self.out.is_empty() {
            let wrote = self.commons.write_front(&self.out);
            for ((place, _), how) in self.out.drain(..wrote.len()).zip(wrote) {
                self.done.freed += u64::from(self.commons.swap.finish(place, how));
                self.done.note(how);
            }
        }
    }
}

impl<S: Memory> Drop for EvictionWalk<'_, S> {
    fn drop(&mut self) {
        for (place, _) in self.out.drain(..) {
            self.commons.swap.finish(place, Wrote::Abandoned);
        }
    }
}

impl SwapEvicted {
    /// Whether more pages are requested, and all writes have succeeded so far.
    pub(crate) const fn falls_short(&self, wish: &EvictWish) -> bool {
        self.freed < wish.pages && self.failed == 0
    }
    /// A page was written, or not.
    pub(crate) fn note(&mut self, how: Wrote) {
        let pages = if how == Wrote::Stored { &mut self.written } else { &mut self.failed };
        *pages += 1;
    }
}

impl<S: Memory> Commons<S> {
    /// Writes the first of `pages` and those with adjacent slots, or one by one if that fails;
    /// returns the result for each.
    pub(crate) fn write_front(&self, pages: &[(SwapPlace, Pfn)]) -> ArrayVec<Wrote, SWAP_RUN> {
        let mut wrote = ArrayVec::new();
        let Some(&(first, _)) = pages.first() else { return wrote };
        let places = (first.slot..).map(|slot| SwapPlace { slot, ..first });
        let together = pages.iter().zip(places).take_while(|(page, place)| page.0 == *place);
        // Their slots hold them until they hear how this went.
        let held: ArrayVec<_, SWAP_RUN> = together
            .map(|(&(_, frame), _)| Frame::<User, S>::borrow_raw(self.source, frame).expect(IN_SLOT))
            .take(SWAP_RUN)
            .collect();
        let frames: ArrayVec<HeldFrame<'_>, SWAP_RUN> = held.iter().map(|frame| frame.held()).collect();
        let write = |slot, frames: &[HeldFrame<'_>]| {
            let store = self.swap.store_of(first).ok_or(VmError::Io);
            match store.and_then(|store| store.write(slot, frames)) {
                Ok(()) => Wrote::Stored,
                Err(VmError::Io) => Wrote::Failed,
                Err(_) => Wrote::Abandoned,
            }
        };
        let all = write(first.slot, &frames);
        if all == Wrote::Failed && frames.len() > 1 {
            // Retried one by one, so that no more slots than necessary become bad.
            wrote.extend((first.slot..).zip(&frames).map(|(slot, &frame)| write(slot, &[frame])));
        } else {
            wrote.extend(frames.iter().map(|_| all));
        }
        let stored = wrote.iter().filter(|&&how| how == Wrote::Stored).count();
        self.count_many(Event::SwapOut, stored as u64);
        wrote
    }

    /// Frees frames by evicting pages: first those that only the swap cache holds, then those that
    /// spaces have not used lately. Several tasks may do this at once. The caller has no space
    /// locked. Spaces that others have locked, or whose programs are charged to other accounts than
    /// the chosen ones, are skipped, unless use protects nothing. A failed write ends the eviction,
    /// since the next ones would probably fail, too.
    pub fn evict(&self, wish: &EvictWish) -> SwapEvicted {
        let pick = Pick { age: wish.age, frames: wish.frames, of_others: OfOthers::Goes };
        let mut walk = EvictionWalk::new(self, pick);
        if wish.frames.charged.is_none() {
            walk.done.freed = self.swap.shrink_cache(wish.pages as usize) as u64;
        }
        once_around(
            &self.swap.hand,
            |after| self.next_space(after),
            |handle| {
                if !walk.done.falls_short(wish) {
                    return ControlFlow::Break(());
                }
                if wish.age == Age::Ignore
                    || wish.frames.charged.is_none_or(|below| below.contains(handle.account()))
                {
                    Self::evict_from(&*handle, wish, &mut walk);
                }
                ControlFlow::Continue(())
            },
        );
        walk.done
    }

    /// As [`Commons::evict`], from one space.
    fn evict_from(handle: &dyn SpaceHandle<S>, wish: &EvictWish, walk: &mut EvictionWalk<'_, S>) {
        // The share is only known once the space is locked for the first time.
        let mut share = None;
        // A process that swaps all the time is locked most of the time. In the end it is waited
        // for: its holder waits for a device at most, never for memory.
        let how = match wish.age {
            Age::Respect => Locking::Try,
            Age::Ignore => Locking::Wait,
        };
        while walk.done.falls_short(wish) {
            let mut end = Sweep::Over;
            let visited = handle.with(how, &mut |space| {
                if share.is_none() {
                    walk.looks = (space.resident.rss.anon >> wish.effort.min(63)) + SWAP_RUN as u64;
                    share = Some(walk.looks);
                }
                end = space.sweep(walk);
            });
            walk.write();
            if visited == Visited::Busy || end == Sweep::Over || walk.looks == 0 {
                return;
            }
        }
    }

    /// Swaps out the pages of `range` that only this space maps (MADV_PAGEOUT), also those of
    /// shared memory. The caller has no space locked.
    pub fn page_out(&self, handle: &dyn SpaceHandle<S>, range: Range<VirtAddr>) -> SwapEvicted {
        let pick = Pick { age: Age::Ignore, frames: FrameChoice::ALL, of_others: OfOthers::Stays };
        let mut walk = EvictionWalk::new(self, pick);
        self.page_out_shared(handle, range.clone(), &mut walk.done);
        let mut next = range.start;
        while next < range.end {
            handle.with(Locking::Wait, &mut |space| next = space.sweep_range(next..range.end, &mut walk));
            walk.write();
        }
        walk.done
    }
}

/// Whether the clock's hand has come to the end of the space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sweep {
    More,
    Over,
}

impl<S: Memory> AddressSpace<S> {
    /// Move the hand on, until the walk has as many pages as can be written at a time, has scanned
    /// enough, or is at the end of the space.
    fn sweep(&mut self, walk: &mut EvictionWalk<'_, S>) -> Sweep {
        let end = self.layout.end;
        let next = self.sweep_range(self.resident.hand..end, walk);
        let over = next >= end;
        self.resident.hand = if over { VirtAddr(0) } else { next };
        if over { Sweep::Over } else { Sweep::More }
    }

    /// As [`AddressSpace::sweep`], in `range`; returns the address at which to continue.
    fn sweep_range(&mut self, range: Range<VirtAddr>, walk: &mut EvictionWalk<'_, S>) -> VirtAddr {
        let Self { areas, resident, .. } = self;
        walk.begin();
        for (area, part) in areas.parts(range.clone()) {
            if area.flags.contains(AreaFlags::LOCKED) || !area.may_have_own_frames() {
                continue;
            }
            let Range { start: mut next, end } = part;
            while let Some(at) = resident.tables.next_populated(next..end) {
                if walk.looks == 0 || walk.out.is_full() {
                    return at;
                }
                let region = VirtAddr((at.0 | (PageSize::Large.bytes() - 1)) + 1).min(end);
                if walk.retries {
                    resident.take_dirty_back(area, at..region);
                }
                next = resident.sweep_table(at..region, walk);
            }
        }
        range.end
    }
}

impl<S: Memory> Resident<S> {
    /// As [`AddressSpace::sweep_range`], of addresses of one table, or one large page.
    fn sweep_table(&mut self, range: Range<VirtAddr>, walk: &mut EvictionWalk<'_, S>) -> VirtAddr {
        let mut run = Detach::new(&self.tables);
        if let Some((_, PageSize::Large)) = self.tables.find(range.start) {
            walk.done.scanned += 1;
            return self.sweep_large(range, walk, run.batch());
        }
        let mut next = range.end;
        let room = walk.out.remaining_capacity();
        let mut taken = 0;
        self.tables.visit(range.clone(), |addr, slot, entry, _| {
            if next < range.end {
                return;
            }
            if walk.looks == 0 || taken == room || run.is_full() {
                next = addr;
                return;
            }
            walk.looks -= 1;
            walk.done.scanned += 1;
            if self.kind_of(entry) != LeafKind::Anon || !self.may_go(entry, walk.pick) {
                return;
            }
            if walk.spares(entry) {
                run.batch().restricted(addr, slot.update_from(entry, Entry::marked_old));
                return;
            }
            // A pinned page stays, and so does one to which the kernel holds a reference.
            if walk.takes(entry) && run.take(self.source(), addr, slot, entry).is_ok() {
                taken += 1;
            }
        });
        for page in run.settle() {
            self.evict(page, walk);
        }
        next
    }

    /// Gives the removed page a slot in a swap area, or frees it if it is discardable; without a
    /// free slot it stays.
    fn evict(&mut self, page: Settled<S>, walk: &mut EvictionWalk<'_, S>) {
        let old = page.old();
        let swap = &walk.commons.swap;
        let mappings = swap.mappings(page.frame().pfn());
        if old.is_lazy() {
            drop(page.replace_by(Entry::EMPTY));
            self.rss.anon -= 1;
            walk.done.freed += u64::from(mappings == 0);
            self.commons.count(Event::LazyFreed);
            return;
        }
        let Some((place, stowed)) = swap.stow(page.frame()) else {
            page.put_back();
            walk.look_for_room();
            return;
        };
        let frame = page.frame().pfn();
        let entry = Entry::swapped(place).with_soft_dirty_of(old);
        let reference = page.replace_by(entry);
        self.rss.anon -= 1;
        self.swapped += 1;
        match stowed {
            Stowed::ToWrite => {
                // It is the slot's now.
                let _: Pfn = reference.into_raw();
                walk.out.push((place, frame));
            }
            Stowed::Cached => drop(reference),
            Stowed::Freed => {
                drop(reference);
                walk.done.freed += 1;
            }
        }
    }

    /// As [`Resident::sweep_table`] of a large page, which is split if it is to be evicted; then
    /// its pieces are visited.
    fn sweep_large(
        &mut self,
        range: Range<VirtAddr>,
        walk: &mut EvictionWalk<'_, S>,
        batch: &mut FlushBatch<S>,
    ) -> VirtAddr {
        walk.looks -= 1;
        let Some((slot, _)) = self.tables.find(range.start) else { return range.end };
        let entry = slot.load();
        if self.kind_of(entry) != LeafKind::Anon || !self.may_go(entry, walk.pick) {
            return range.end;
        }
        if walk.spares(entry) {
            batch.restricted(range.start, slot.update_from(entry, Entry::marked_old));
            return range.end;
        }
        if !walk.takes(entry) || self.split(range.start, batch).is_err() {
            return range.end;
        }
        if !entry.is_lazy() {
            self.commons.count(Event::HugeSwapFallback);
        }
        range.start
    }

    /// Whether the frame of `entry` is one of the selected ones.
    fn may_go(&self, entry: Entry, pick: Pick) -> bool {
        let Some(record) = self.source().table().get(entry.frame()) else { return false };
        let alone = pick.of_others == OfOthers::Goes || record.counts().load().mappings == 1;
        alone && pick.frames.contains(self.source().table(), entry.frame())
    }
}
