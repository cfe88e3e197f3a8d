//! Choosing pages, taking them out of memory, writing them.
//!
//! **Which.** A clock over the page tables: each space has a hand that goes through its leaves; a page used since the hand was there last loses its
//! mark of use and stays, one that was not goes. Spaces are visited in turn, each for a share of what it has in memory. Pinned pages, those that the
//! kernel holds a reference to (one that was taken back before its write was done, among them), and those of locked areas
//! stay. A 2 MiB page is split first: it is one page for the clock, and 512 for the swap.
//!
//! **How.** A batch of [`SWAP_RUN`] pages at a time: under the space's lock they lose their leaves, are forgotten by all TLBs, and get slots; then,
//! without any lock, they are written, neighbours in one go. Who faults on one meanwhile takes it back from the swap cache.
//!
//! **Given up pages** (MADV_FREE) go without a slot, unless they were written since. The hardware's mark in the old leaf says so exactly: a CPU sets it in a
//! present leaf before it stores, and a pin that writes keeps it set.

use arrayvec::ArrayVec;
use core::ops::Range;

use freehold_frame::{NodeSet, State};
use freehold_machine::{Pfn, VirtAddr};
use freehold_paging::{Entry, FlushBatch, Memory, PageSize, SwapPlace};

use super::{SWAP_RUN, Stowed, Swap, Wrote};
use crate::events::Event;
use crate::pin::detach::Detach;
use crate::registry::{Locking, SpaceHandle, Visited};
use crate::request::AreaFlags;
use crate::resident::{Kind, Resident};
use crate::{AddressSpace, Commons};

/// Whether use protects a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Age {
    /// A page that was used since the last look stays, for once.
    Respect,
    /// It goes; spaces that others have locked are waited for.
    Ignore,
}

/// Pages that one wants back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EvictWish {
    /// How many frames shall become free.
    pub pages: u64,
    /// Whether use protects them.
    pub age: Age,
    /// Frames of these nodes only.
    pub nodes: NodeSet,
    /// How far each space is gone through: its present pages divided by 2 to the power of this, and a few more. 0 is all.
    pub effort: u32,
}

/// What came of it, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapEvicted {
    /// Leaves that were looked at.
    pub scanned: u64,
    /// Frames that are free now.
    pub freed: u64,
    /// Pages that were written.
    pub written: u64,
    /// Pages that could not be.
    pub failed: u64,
}

/// What becomes of a page that other spaces map too.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OfOthers {
    /// It goes, here; its frame goes with the last leaf.
    Goes,
    /// It stays: this process alone has no say in it.
    Stays,
}

/// Whether the swap has slots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Left,
    Full,
}

impl Room {
    /// Whether the page of `entry` finds a place, or needs none.
    fn takes(self, entry: Entry) -> bool {
        self == Self::Left || entry.is_lazy()
    }
}

/// Which leaves go.
#[derive(Clone, Copy)]
struct Pick {
    age: Age,
    nodes: NodeSet,
    of_others: OfOthers,
}

/// Pages whose slots wait for their bytes. Each slot holds its frame until it is told how that went.
struct Outgoing<'a, S: Memory> {
    swap: &'a Swap<S>,
    pages: ArrayVec<(SwapPlace, Pfn), SWAP_RUN>,
}

impl<'a, S: Memory> Outgoing<'a, S> {
    const fn new(swap: &'a Swap<S>) -> Self {
        Self { swap, pages: ArrayVec::new_const() }
    }

    /// Write them, as many at a time as lie together. The caller has no lock.
    fn write(mut self, commons: &Commons<S>, done: &mut SwapEvicted) {
        while let Some(&(first, _)) = self.pages.first() {
            let places = (first.slot..).map(|slot| SwapPlace { slot, ..first });
            let count = self.pages.iter().zip(places).take_while(|(page, place)| page.0 == *place).count();
            let frames: ArrayVec<Pfn, SWAP_RUN> =
                self.pages[..count].iter().map(|&(_, frame)| frame).collect();
            let stored =
                self.swap.store_of(first).is_some_and(|store| store.write(first.slot, &frames).is_ok());
            let how = if stored { Wrote::Stored } else { Wrote::Failed };
            for (place, _) in self.pages.drain(..count) {
                done.freed += u64::from(self.swap.finish(place, how));
            }
            let pages = if stored { &mut done.written } else { &mut done.failed };
            *pages += count as u64;
            commons.count_many(Event::SwapOut, if stored { count as u64 } else { 0 });
        }
    }
}

impl<S: Memory> Drop for Outgoing<'_, S> {
    fn drop(&mut self) {
        for (place, _) in self.pages.drain(..) {
            self.swap.finish(place, Wrote::Abandoned);
        }
    }
}

impl<S: Memory> Commons<S> {
    /// Make frames free by taking pages out of memory: first what only the swap cache holds, then those that spaces have not used lately.
    /// Several may do this at once. The caller has no space locked; spaces that others have locked are passed by,
    /// unless use protects nothing. Pages that cannot be written end it: their frames stay, and so would the next ones'.
    pub fn evict(&self, wish: &EvictWish) -> SwapEvicted {
        let mut done = SwapEvicted {
            freed: self.swap.shrink_cache(wish.pages as usize) as u64,
            ..SwapEvicted::default()
        };
        let began = self.swap.hand.load(core::sync::atomic::Ordering::Relaxed);
        let (mut last, mut around) = (began, Lap::First);
        while done.freed < wish.pages && done.failed == 0 {
            match (self.next_space(last), around) {
                (Some((id, _)), Lap::Second) if id > began => break,
                (Some((id, handle)), _) => {
                    self.evict_from(&*handle, wish, &mut done);
                    self.swap.hand.store(id, core::sync::atomic::Ordering::Relaxed);
                    last = id;
                }
                (None, Lap::First) => (last, around) = (0, Lap::Second),
                (None, Lap::Second) => break,
            }
        }
        done
    }

    /// As [`Commons::evict`], from one space.
    fn evict_from(&self, handle: &dyn SpaceHandle<S>, wish: &EvictWish, done: &mut SwapEvicted) {
        let pick = Pick { age: wish.age, nodes: wish.nodes, of_others: OfOthers::Goes };
        // Not known before the space is locked for the first time.
        let mut looks = None;
        // A process that swaps all the time is locked most of the time. In the end it is waited for: its holder waits for a device at most, never for memory.
        let how = match wish.age {
            Age::Respect => Locking::Try,
            Age::Ignore => Locking::Wait,
        };
        while done.freed < wish.pages && done.failed == 0 {
            let mut out = Outgoing::new(&self.swap);
            let mut end = Sweep::Over;
            let visited = handle.with(how, &mut |space| {
                let share = (space.resident.rss.anon >> wish.effort.min(63)) + SWAP_RUN as u64;
                let looks = looks.get_or_insert(share);
                end = space.sweep(pick, looks, &mut out, done);
            });
            out.write(self, done);
            if visited == Visited::Busy || end == Sweep::Over || looks == Some(0) {
                return;
            }
        }
    }

    /// Take the pages of `range` out of memory that the space maps alone (MADV_PAGEOUT). The caller has no space locked.
    pub fn page_out(&self, handle: &dyn SpaceHandle<S>, range: Range<VirtAddr>) -> SwapEvicted {
        let pick = Pick { age: Age::Ignore, nodes: NodeSet::ALL, of_others: OfOthers::Stays };
        let mut done = SwapEvicted::default();
        let (mut next, mut looks) = (range.start, u64::MAX);
        while next < range.end {
            let mut out = Outgoing::new(&self.swap);
            handle.with(Locking::Wait, &mut |space| {
                next = space.sweep_range(next..range.end, pick, &mut looks, &mut out, &mut done);
            });
            out.write(self, &mut done);
        }
        done
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lap {
    First,
    Second,
}

/// Whether the clock's hand has come to the end of the space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sweep {
    More,
    Over,
}

impl<S: Memory> AddressSpace<S> {
    /// Move the hand on, until `out` is full, no `looks` are left, or the space is at its end.
    fn sweep(
        &mut self,
        pick: Pick,
        looks: &mut u64,
        out: &mut Outgoing<'_, S>,
        done: &mut SwapEvicted,
    ) -> Sweep {
        let end = self.layout.end;
        let hand = self.resident.hand;
        let next = self.sweep_range(hand..end, pick, looks, out, done);
        let over = next >= end;
        self.resident.hand = if over { VirtAddr(0) } else { next };
        if over { Sweep::Over } else { Sweep::More }
    }

    /// As [`AddressSpace::sweep`], in `range`; where to go on.
    fn sweep_range(
        &mut self,
        range: Range<VirtAddr>,
        pick: Pick,
        looks: &mut u64,
        out: &mut Outgoing<'_, S>,
        done: &mut SwapEvicted,
    ) -> VirtAddr {
        let Self { areas, resident, .. } = self;
        for area in areas.overlapping(range.clone()) {
            if area.flags.contains(AreaFlags::LOCKED) || !area.may_have_own_frames() {
                continue;
            }
            let mut next = area.start.max(range.start);
            let end = area.end.min(range.end);
            while let Some(at) = resident.tables.next_populated(next..end) {
                if *looks == 0 || out.pages.is_full() {
                    return at;
                }
                let region = VirtAddr((at.0 | (PageSize::Large.bytes() - 1)) + 1).min(end);
                next = resident.sweep_table(at..region, pick, looks, out, done);
            }
        }
        range.end
    }
}

impl<S: Memory> Resident<S> {
    /// As [`AddressSpace::sweep_range`], of addresses of one table, or one large page.
    fn sweep_table(
        &mut self,
        range: Range<VirtAddr>,
        pick: Pick,
        looks: &mut u64,
        out: &mut Outgoing<'_, S>,
        done: &mut SwapEvicted,
    ) -> VirtAddr {
        let slots = if out.swap.usage().free > 0 { Room::Left } else { Room::Full };
        let mut run = Detach::new(&self.tables);
        if let Some((_, PageSize::Large)) = self.tables.find(range.start) {
            done.scanned += 1;
            return self.sweep_large(range, pick, slots, looks, run.batch());
        }
        let mut next = range.end;
        let room = out.pages.remaining_capacity();
        let mut taken = 0;
        self.tables.visit(range.clone(), |addr, slot, entry, _| {
            if next < range.end {
                return;
            }
            if *looks == 0 || taken == room || run.is_full() {
                next = addr;
                return;
            }
            *looks -= 1;
            done.scanned += 1;
            if self.kind_of(entry) != Kind::Anon || !self.may_go(entry, pick) {
                return;
            }
            if entry.is_accessed() && pick.age == Age::Respect {
                run.batch().restricted(addr, slot.update_from(entry, Entry::marked_old));
                return;
            }
            // A pinned page stays, and one of which the kernel holds a reference.
            if slots.takes(entry) && run.take(self.source(), addr, slot, entry).is_ok() {
                taken += 1;
            }
        });
        for page in run.settle() {
            let old = page.old();
            let mappings = out.swap.mappings(page.frame().pfn());
            if old.is_lazy() {
                drop(page.replace_by(Entry::EMPTY));
                self.rss.anon -= 1;
                done.freed += u64::from(mappings == 0);
                self.commons.count(Event::LazyFreed);
                continue;
            }
            let Some((place, stowed)) = out.swap.stow(page.frame()) else {
                page.put_back();
                continue;
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
                    out.pages.push((place, frame));
                }
                Stowed::Cached => drop(reference),
                Stowed::Freed => {
                    drop(reference);
                    done.freed += 1;
                }
            }
        }
        next
    }

    /// As [`Resident::sweep_table`] of a large page, which is split if it is to go; then it is the pieces' turn.
    fn sweep_large(
        &mut self,
        range: Range<VirtAddr>,
        pick: Pick,
        slots: Room,
        looks: &mut u64,
        batch: &mut FlushBatch<S>,
    ) -> VirtAddr {
        *looks -= 1;
        let Some((slot, _)) = self.tables.find(range.start) else { return range.end };
        let entry = slot.load();
        if self.kind_of(entry) != Kind::Anon || !self.may_go(entry, pick) {
            return range.end;
        }
        if entry.is_accessed() && pick.age == Age::Respect {
            batch.restricted(range.start, slot.update_from(entry, Entry::marked_old));
            return range.end;
        }
        if !slots.takes(entry) || self.split(range.start, batch).is_err() {
            return range.end;
        }
        if !entry.is_lazy() {
            self.commons.count(Event::HugeSwapFallback);
        }
        range.start
    }

    /// Whether the frame of `entry` is one of those wanted.
    fn may_go(&self, entry: Entry, pick: Pick) -> bool {
        let Some(record) = self.source().table().get(entry.frame()) else { return false };
        let State::Owned { node, .. } = record.state() else { return false };
        let alone = pick.of_others == OfOthers::Goes || record.counts().load().mappings == 1;
        pick.nodes.contains(node) && alone
    }
}
