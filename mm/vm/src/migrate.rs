//! Moving pages to other frames: to another node (move_pages, mbind, migrate_pages), or so that a
//! range of frames becomes free (unplug, compaction).
//!
//! | page | how it moves | must not happen meanwhile |
//! |---|---|---|
//! | anonymous, exclusive | [`Detach`]: the mark goes, the leaf goes, every TLB forgets it; then the bytes are copied and a new leaf comes | a store, a pin: a frame that is not exclusive cannot be pinned, and the space is locked |
//! | anonymous, shared | copied at once: no leaf of it grants writing. A *forward* old → new lets every space that is visited later share the new frame | a space becomes the exclusive owner of the old frame and writes it: the forward holds a reference |
//! | 2 MiB | as one, where the block is whole and exclusive and there is another; else it is split | as above: a pin exists only on pieces |
//! | page cache | by its cache, with no space locked ([`Commons::migrate_cached`]) | see `cache::moved` |
//!
//! **Pins.** A pinned frame is never moved, nor is a frame with another reference (of a pipe):
//! [`MigrateOutcome::Busy`]. The new leaf has the rights and marks (accessed, dirty, soft-dirty) of
//! the old one.
//!
//! **Failure.** Without a frame a page stays as it is ([`MigrateOutcome::NoMemory`]); each other
//! page is moved or not, independently.
//!
//! **Locks.** Spaces one at a time, in any order; a [`Migration`] is carried from one to the next.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::mem::ManuallyDrop;
use core::ops::Range;

use arrayvec::ArrayVec;
use freehold_frame::{Anon, Frame, Held, LargeMapping, LeafMapping, NodePolicy, Owner, Payer, Request};
use freehold_machine::{NodeId, PAGEBLOCK_FRAMES, Pfn, VirtAddr};
use freehold_paging::{Backing, Entry, EntryAt, FlushBatch, Memory, PageSize};
use freehold_xpfo::Windows;

use crate::area::Area;
use crate::events::Event;
use crate::huge::LARGE;
use crate::new_page::move_charge;
use crate::pin::detach::{Detach, RUN};
use crate::resident::{LeafKind, Resident};
use crate::{AddressSpace, Commons, PageCache};

/// Treatment of pages that several address spaces map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedPages {
    /// The pages stay (MPOL_MF_MOVE).
    Stay,
    /// The pages move (MPOL_MF_MOVE_ALL).
    Move,
}

/// Result of a page's move.
#[derive(Debug)]
pub enum MigrateOutcome<S: Memory> {
    /// The page has another frame.
    Moved,
    /// The page is pinned, or something else refers to its frame.
    Busy,
    /// Other spaces map the page too.
    Shared,
    /// There is no frame for the page where it should go.
    NoMemory,
    /// It is a file's: [`Commons::migrate_cached`] moves it, once the address space is unlocked.
    Cached(CachedPage<S>),
}

/// A page of a file that is to move.
pub struct CachedPage<S: Memory> {
    pub(crate) cache: Arc<PageCache<S>>,
    pub(crate) index: u64,
    pub(crate) frame: Pfn,
}

impl<S: Memory> CachedPage<S> {
    /// The frame that it was in.
    pub const fn frame(&self) -> Pfn {
        self.frame
    }
}

impl<S: Memory> core::fmt::Debug for CachedPage<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "page {} of {:?} at {:?}", self.index, self.cache, self.frame)
    }
}

/// The node of the page at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageNode {
    /// Nothing is mapped at the address.
    Unmapped,
    /// The page has no frame.
    Absent,
    /// The page is the shared page of zeroes, which is on this node.
    Zeroes(NodeId),
    /// The page is on this node.
    On(NodeId),
}

/// One move of many pages, of as many address spaces as share them. See the module's head.
#[derive(Debug)]
pub struct Migration<S: Memory> {
    shared: SharedPages,
    /// For each old frame, its forward.
    forwards: BTreeMap<Pfn, Forward<S>>,
}

#[derive(Debug)]
struct Forward<S: Memory> {
    /// A hold on the old frame, so that no space can become its only holder.
    _old: Frame<Anon, S>,
    new: Frame<Anon, S>,
}

impl<S: Memory> Migration<S> {
    /// Returns a migration that has moved nothing yet.
    pub const fn new(shared: SharedPages) -> Self {
        Self { shared, forwards: BTreeMap::new() }
    }
    /// Whether frames were moved that other address spaces map, too; the caller then visits those.
    pub fn has_forwards(&self) -> bool {
        !self.forwards.is_empty()
    }
    /// Whether a frame of a leaf of `size` at `frame` has moved, and other spaces that map it have
    /// to follow.
    fn forwards(&self, frame: Pfn, size: PageSize) -> bool {
        let frames = size.bytes() / PageSize::Small.bytes();
        self.forwards.range(frame..frame.offset(frames)).next().is_some()
    }
}

/// Pages whose leaves were removed, and their new frames in the same order.
struct Run<S: Memory> {
    pages: Detach<S>,
    new: ArrayVec<Frame<Anon, S>, RUN>,
}

/// A large leaf cannot move as one: split it.
struct InPieces;

impl<S: Memory> AddressSpace<S> {
    /// Moves the pages of `range` to the nodes that `wish` returns for each page (or 2 MiB page)
    /// and its frame; `None`: the page stays. A shared page that has already moved in another
    /// address space follows in any case. `out` gets the result for each page that was to move.
    pub fn migrate(
        &mut self,
        range: Range<VirtAddr>,
        migration: &mut Migration<S>,
        wish: impl FnMut(VirtAddr, Pfn) -> Option<NodePolicy>,
        out: impl FnMut(VirtAddr, MigrateOutcome<S>),
    ) {
        let Self { areas, resident, .. } = self;
        let mut visit = Visit { migration, wish, out };
        for (area, mut part) in areas.parts(range) {
            if area.huge_view().is_some() {
                // Huge pages on request stay where they are.
                continue;
            }
            while let Some(at) = resident.migrate_run(area, part.clone(), &mut visit) {
                let mut batch = resident.tables.batch();
                part.start = match resident.split(at, &mut batch) {
                    Ok(()) => {
                        resident.commons.count(Event::HugeMigrateSplit);
                        at.max(part.start)
                    }
                    Err(_) => {
                        visit.tell(&resident.commons, at, MigrateOutcome::NoMemory, PAGEBLOCK_FRAMES);
                        VirtAddr(at.0 + LARGE)
                    }
                };
            }
        }
    }

    /// Where the page at `addr` is.
    pub fn node_at(&self, addr: VirtAddr) -> PageNode {
        if self.areas.at(addr).is_none() {
            return PageNode::Unmapped;
        }
        match self.resident.present(addr) {
            None => PageNode::Absent,
            Some(entry) => {
                let node = self.resident.commons.node_of(entry.frame());
                match entry.backing() {
                    Backing::Uncounted => PageNode::Zeroes(node),
                    Backing::Counted => PageNode::On(node),
                }
            }
        }
    }
}

impl<S: Memory> Commons<S> {
    /// The node that a frame in use is on.
    pub fn node_of(&self, frame: Pfn) -> NodeId {
        self.source.table().block_of(frame).map_or(NodeId(0), |(_, _, _, node)| node)
    }
    /// Count the move of `pages` pages.
    pub(crate) fn note_move(&self, outcome: &MigrateOutcome<S>, pages: u64) {
        let (one, large) = match outcome {
            MigrateOutcome::Cached(_) => return,
            MigrateOutcome::Moved => (Event::MigrateSuccess, Event::HugeMigrateSuccess),
            _ => (Event::MigrateFail, Event::HugeMigrateFail),
        };
        self.count_many(one, pages);
        if pages > 1 {
            self.count(large);
        }
    }
}

/// A migration's visit to one space: the policy for each page there, and the receiver of results.
struct Visit<'a, S: Memory, W, O> {
    migration: &'a mut Migration<S>,
    wish: W,
    out: O,
}

impl<S: Memory, W, O: FnMut(VirtAddr, MigrateOutcome<S>)> Visit<'_, S, W, O> {
    fn tell(&mut self, commons: &Commons<S>, addr: VirtAddr, outcome: MigrateOutcome<S>, pages: u64) {
        commons.note_move(&outcome, pages);
        (self.out)(addr, outcome);
    }
}

impl<S: Memory> Resident<S> {
    /// Moves pages up to the first large leaf that must be split. Returns that leaf's address.
    fn migrate_run(
        &self,
        area: &Area<S>,
        range: Range<VirtAddr>,
        visit: &mut Visit<
            '_,
            S,
            impl FnMut(VirtAddr, Pfn) -> Option<NodePolicy>,
            impl FnMut(VirtAddr, MigrateOutcome<S>),
        >,
    ) -> Option<VirtAddr> {
        let commons = &self.commons;
        let mut stopped = None;
        let mut run = Run { pages: Detach::new(&self.tables), new: ArrayVec::new() };
        self.tables.visit(range, |addr, slot, entry, size| {
            if stopped.is_some() || entry.backing() == Backing::Uncounted {
                return;
            }
            let place = match (visit.wish)(addr, entry.frame()) {
                Some(place) => place,
                None if visit.migration.forwards(entry.frame(), size) => NodePolicy::Local,
                None => return,
            };
            let (at, shared) = (EntryAt { addr, slot, entry }, visit.migration.shared);
            if size == PageSize::Large {
                match self.migrate_large(at, place, shared, run.pages.batch()) {
                    Ok(outcome) => visit.tell(commons, addr, outcome, PAGEBLOCK_FRAMES),
                    Err(InPieces) => stopped = Some(addr),
                }
                return;
            }
            let outcome = match self.kind_of(entry) {
                LeafKind::Zero => return,
                LeafKind::Cache => self.cached_page(area, addr, entry, shared),
                LeafKind::Anon => {
                    if run.pages.is_full() {
                        self.end_moves(&mut run, visit);
                    }
                    match self.begin_move(at, place, visit.migration, &mut run) {
                        Some(outcome) => outcome,
                        None => return,
                    }
                }
            };
            visit.tell(commons, addr, outcome, 1);
        });
        self.end_moves(&mut run, visit);
        stopped
    }

    fn cached_page(
        &self,
        area: &Area<S>,
        addr: VirtAddr,
        entry: Entry,
        shared: SharedPages,
    ) -> MigrateOutcome<S> {
        let holders = self.source().table().get(entry.frame()).map(|record| record.counts().load());
        if shared == SharedPages::Stay && holders.is_none_or(|holders| holders.mappings > 1) {
            return MigrateOutcome::Shared;
        }
        match area.cache_page(addr) {
            Some((cache, index)) => {
                MigrateOutcome::Cached(CachedPage { cache: cache.clone(), index, frame: entry.frame() })
            }
            None => MigrateOutcome::Busy,
        }
    }

    /// Moves the page `at` if no CPU can store to it, else removes its leaf. Returns the result;
    /// `None`: the page is in `run`.
    fn begin_move(
        &self,
        at: EntryAt<S::Machine>,
        place: NodePolicy,
        migration: &mut Migration<S>,
        run: &mut Run<S>,
    ) -> Option<MigrateOutcome<S>> {
        let EntryAt { addr, slot, entry } = at;
        let Ok(mapping) = LeafMapping::<Anon, S>::borrow_leaf(self.source(), entry.frame()) else {
            return Some(MigrateOutcome::Busy);
        };
        if let Some(forward) = migration.forwards.get(&entry.frame()) {
            return Some(self.follow(forward, at, run.pages.batch()));
        }
        // The only remaining user of a frame that was shared or swapped owns it again.
        let alone = self.reuse(&mapping).is_ok();
        if !alone {
            // The frame is not exclusive, so it has no pins. The other reference may be the swap
            // cache's, which can be dropped.
            let is_held = || mapping.record().counts().load().references > 0;
            if is_held() {
                self.commons.swap.forget(entry.frame());
            }
            if is_held() {
                return Some(MigrateOutcome::Busy);
            }
            if migration.shared == SharedPages::Stay {
                return Some(MigrateOutcome::Shared);
            }
        }
        let request = Request::new(Owner::Anon).policy(place);
        // The old frame of a shared page may stay in use, where others cannot follow, so both
        // frames are charged.
        let payer = if alone { Payer::Nobody } else { Payer::SameAs(entry.frame()) };
        let Ok(new) = Frame::<Anon, S>::allocate_for(self.source(), payer, request) else {
            return Some(MigrateOutcome::NoMemory);
        };
        if alone {
            if run.pages.take(self.source(), addr, slot, entry).is_err() {
                return Some(MigrateOutcome::Busy);
            }
            run.new.push(new);
            return None;
        }
        // There may be any number of forwards.
        if self.source().ensure_objects().is_err() {
            return Some(MigrateOutcome::NoMemory);
        }
        let Ok(old) = mapping.reference() else { return Some(MigrateOutcome::Busy) };
        self.source().machine().copy(&old, &new);
        let forward = Forward { _old: old, new };
        let outcome = self.follow(&forward, at, run.pages.batch());
        migration.forwards.insert(entry.frame(), forward);
        Some(outcome)
    }

    /// Maps the shared new frame, to which the old one's bytes were moved.
    fn follow(
        &self,
        forward: &Forward<S>,
        EntryAt { addr, slot, entry }: EntryAt<S::Machine>,
        batch: &mut FlushBatch<S>,
    ) -> MigrateOutcome<S> {
        let Ok(mapping) = forward.new.share() else { return MigrateOutcome::Busy };
        debug_assert!(!entry.is_writable(), "a shared frame is writable at {addr:?}");
        let new = mapping.into_leaf();
        let old = slot.update_from(entry, |entry| entry.piece(new));
        batch.unmapped(addr, old, self.mapping_of(old));
        MigrateOutcome::Moved
    }

    /// Copies the frames. First all CPUs flush the old leaves, so that no CPU stores to the old
    /// frames any more.
    fn end_moves<W>(
        &self,
        run: &mut Run<S>,
        visit: &mut Visit<'_, S, W, impl FnMut(VirtAddr, MigrateOutcome<S>)>,
    ) {
        for (page, new) in run.pages.settle().zip(run.new.drain(..)) {
            let addr = page.addr();
            let outcome = match new.into_mapping() {
                Ok(new) => {
                    self.source().machine().copy(page.frame(), &new);
                    move_charge(self.source(), page.frame().pfn(), new.pfn());
                    let leaf = page.old().piece(new.into_leaf());
                    drop(page.replace_by(leaf));
                    MigrateOutcome::Moved
                }
                Err(_) => {
                    page.put_back();
                    MigrateOutcome::Busy
                }
            };
            visit.tell(&self.commons, addr, outcome, 1);
        }
    }

    fn migrate_large(
        &self,
        EntryAt { addr, slot, entry }: EntryAt<S::Machine>,
        place: NodePolicy,
        shared: SharedPages,
        batch: &mut FlushBatch<S>,
    ) -> Result<MigrateOutcome<S>, InPieces> {
        let Some(block) = self.block_of(entry) else { return Ok(MigrateOutcome::Busy) };
        if block.is_pinned() {
            return Ok(MigrateOutcome::Busy);
        }
        if block.reuse().is_err() {
            return if shared == SharedPages::Stay { Ok(MigrateOutcome::Shared) } else { Err(InPieces) };
        }
        // A whole block has no pins, and can get none before it is split into pieces, which needs
        // this space's lock.
        if !block.holders(0).whole {
            block.gather().map_err(|_| InPieces)?;
        }
        let request = Request::new(Owner::Anon).policy(place);
        let new = LargeMapping::allocate_for(self.source(), Payer::Nobody, request).map_err(|_| InPieces)?;
        let old = slot.replace(Entry::EMPTY);
        batch.unmapped_large(addr, old, None);
        batch.flush();
        let machine = self.source().machine();
        for index in 0..PAGEBLOCK_FRAMES {
            machine.copy(&block.held_at(index), &new.held_at(index));
            move_charge(self.source(), old.frame().offset(index), new.pfn().offset(index));
        }
        slot.fill(old.piece(new.into_leaf()).large());
        drop(ManuallyDrop::into_inner(block));
        Ok(MigrateOutcome::Moved)
    }
}
