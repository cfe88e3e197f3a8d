//! Merging of equal pages (Linux: KSM, mm/ksm.c): pages of areas that are marked
//! [`MERGEABLE`](AreaFlags::MERGEABLE) and have equal bytes get one frame.
//!
//! **A merged frame** is an anonymous frame with a mark in its word (`freehold_frame`, `counts`).
//! It is never exclusive, so no leaf of it grants writing and it is never pinned. Each store copies
//! it, also the store of its last user. For fork, swap, migration and unmapping it is a frame that
//! a fork shared. It is freed with its last holder, at once: the scan has its number only, and
//! takes a reference by a compare-exchange that requires the mark.
//!
//! | page | how it is merged | must not happen meanwhile |
//! |---|---|---|
//! | equal to a merged frame | [`Detach`], which flushes every TLB; then both frames are compared; then a leaf of the merged frame comes | a store, a pin: a frame that is not exclusive cannot be pinned, and the space is locked |
//! | equal to another page | the other page's frame is marked as merged in its place: `Detach`, mark, flush, hash again; then as above | another space becomes the exclusive owner of the frame: the mark forbids it |
//! | of zeroes, if the rules say so | `Detach`; then the bytes are read; then a leaf of the page of zeroes comes | as above |
//! | unmerged | the page gets a copy, and its leaf stays read-only | |
//!
//! A merged frame that comes back from swap to its last user becomes exclusive and loses the mark
//! in one step. A scan that has just compared it then fails to map it ([`Frame::map_merged`]), so
//! the comparison needs no lock of other spaces.
//!
//! **What the scan knows** ([`MergeScan`]) are notes only, never holds: the numbers of merged
//! frames by the hash of their bytes (Linux: the stable tree), addresses of pages with a hash that
//! did not change since the last pass (the unstable tree, valid for one pass), and the last hash of
//! each frame. Any note may be out of date. The hash has a random key, and only the comparison of
//! all bytes decides.
//!
//! **Pins.** A pinned frame is not merged, nor is an exclusive frame with a reference (a pipe's):
//! [`Detach`] refuses it.
//!
//! **Failure.** Without memory a note is not made, and the page waits for the next pass. Unmerging
//! needs a frame per page; it stops at the first page without one.
//!
//! **Locks.** The caller has the scan; then spaces, one at a time.

mod notes;
mod unmerge;

use arrayvec::ArrayVec;
use bitflags::bitflags;
use core::ops::Range;

use freehold_frame::{Anon, Frame, Held, LeafMapping};
use freehold_machine::{Entropy, PAGE, PAGE_SIZE, Pfn, VirtAddr};
use freehold_paging::{Backing, Entry, Marks, Memory, PageSize};
use freehold_xpfo::Windows;

use crate::area::{Area, AreaContent};
use crate::pin::detach::{Detach, RUN, Settled};
use crate::registry::{Locking, SpaceHandle};
use crate::request::AreaFlags;
use crate::resident::{LeafKind, Resident};
use crate::{AddressSpace, Commons};

use notes::{Key, Noted, PageAddress};
pub use notes::{MergeCursor, MergeFigures, MergeScan, MergeSums};
pub use unmerge::MergedPages;

bitflags! {
    /// Rules of merging.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MergeRules: u32 {
        /// Pages of zeroes get the page of zeroes (Linux: use_zero_pages).
        const ZEROES = 1;
        /// Only pages on one node are merged (Linux: merge_across_nodes is 0).
        const NODES_APART = 1 << 1;
        /// Pages that were scanned several times in vain are scanned less often (Linux:
        /// smart_scan).
        const SMART = 1 << 2;
    }
}

/// A step of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergeWish {
    /// Most pages to scan. The space's lock is held for at most 32 of them at a time.
    pub pages: u64,
    /// Most mappings of a merged frame.
    pub sharing: u32,
    /// The rules.
    pub rules: MergeRules,
}

/// Most addresses that a step looks at, present or not.
const LOOKS: u32 = 4096;

/// Frames that take the place of settled pages.
enum MergeTarget<S: Memory> {
    Zeroes,
    Merged(Frame<Anon, S>),
}

/// Pages on their way to other frames, in the order of their targets.
struct MergeRun<S: Memory> {
    pages: Detach<S>,
    targets: ArrayVec<MergeTarget<S>, RUN>,
}

/// Two pages that are probably equal.
struct MergePair {
    at: PageAddress,
    /// The frame of the page at `at`.
    frame: Pfn,
    key: Key,
    other: PageAddress,
}

/// Result of a visit to a space.
#[derive(Default)]
struct Visit {
    pages: u64,
    looks: u32,
    /// Address at which to continue.
    next: Option<VirtAddr>,
    pair: Option<MergePair>,
}

/// A page of anonymous memory.
enum MergeablePage {
    /// Its frame is merged already.
    Merged,
    /// Its leaf, or piece of a large one.
    Anonymous(Entry, PageSize),
}

impl<S: Memory> Commons<S> {
    /// Scans some pages of the space that is next in turn, and merges those that it can. Returns
    /// how many pages it scanned; `None` at the end of a pass over all spaces. The caller has no
    /// space locked.
    pub fn merge_step(&self, scan: &mut MergeScan, wish: &MergeWish) -> Option<u64> {
        scan.begin(self.source.machine().random_u64());
        scan.prune(self.source);
        let Some((id, space)) = self.next_space(scan.after) else {
            scan.end_pass();
            return None;
        };
        let from = if id == scan.inside { scan.addr } else { VirtAddr(0) };
        let mut visit = Visit::default();
        space.with(Locking::Wait, &mut |space| visit = space.merge_some(from, scan, wish));
        match visit.next {
            Some(next) => (scan.inside, scan.addr) = (id, next),
            None => scan.after = id,
        }
        if let Some(pair) = visit.pair
            && !self.merge_pair(scan, wish, &*space, &pair)
        {
            // The other page has changed, or is pinned: the next equal page meets this one.
            scan.wait(self.source, pair.key, pair.frame, pair.at);
        }
        Some(visit.pages)
    }

    /// Merges the two pages, the first of which is in the space of this handle. Both had the key a
    /// moment ago. Returns whether the other page could be merged.
    fn merge_pair(
        &self,
        scan: &mut MergeScan,
        wish: &MergeWish,
        handle: &dyn SpaceHandle<S>,
        &MergePair { at, key, other, .. }: &MergePair,
    ) -> bool {
        let mut made = None;
        if let Some((id, theirs)) = self.next_space(other.space - 1)
            && id == other.space
        {
            theirs.with(Locking::Wait, &mut |space| made = space.make_merged(other.addr, key, scan, wish));
        }
        let Some(made) = made else { return false };
        let once = MergeWish { pages: 1, rules: wish.rules.difference(MergeRules::SMART), ..*wish };
        handle.with(Locking::Wait, &mut |space| {
            space.merge_in(at.addr..VirtAddr(at.addr.0 + PAGE), scan, &once);
        });
        if made.record().counts().load().mappings <= 1 {
            // The second page has changed. The first one's frame is its own again with its next
            // store.
            made.record().counts().unmerge();
            scan.forget(made.pfn());
        }
        true
    }
}

impl<S: Memory> AddressSpace<S> {
    /// Scans pages from `from` on.
    fn merge_some(&mut self, from: VirtAddr, scan: &mut MergeScan, wish: &MergeWish) -> Visit {
        self.merge_in(from..self.layout.end, scan, wish)
    }

    fn merge_in(&mut self, range: Range<VirtAddr>, scan: &mut MergeScan, wish: &MergeWish) -> Visit {
        let id = self.id;
        let Self { areas, resident, .. } = self;
        let mut run = MergeRun { pages: Detach::new(&resident.tables), targets: ArrayVec::new() };
        let mut visit = Visit::default();
        'areas: for (area, Range { start: mut next, end }) in areas.parts(range) {
            if !area.flags.contains(AreaFlags::MERGEABLE) {
                continue;
            }
            scan.note_area();
            while let Some(at) = resident.tables.next_populated(next..end) {
                next = VirtAddr((at.0 | (PageSize::Large.bytes() - 1)) + 1).min(end);
                for addr in (at.0..next.0).step_by(PAGE_SIZE).map(VirtAddr) {
                    let is_over = visit.pages >= wish.pages.min(RUN as u64) || visit.looks >= LOOKS;
                    if is_over || visit.pair.is_some() {
                        visit.next = Some(addr);
                        break 'areas;
                    }
                    visit.looks += 1;
                    let at = PageAddress { space: id, addr };
                    resident.scan_page(area, at, (&mut *scan, wish), (&mut run, &mut visit));
                }
            }
        }
        resident.end_merges(&mut run);
        visit
    }

    /// Marks the frame of the page at `addr` as merged, if the page still has `key`. Returns a
    /// reference to it.
    fn make_merged(
        &mut self,
        addr: VirtAddr,
        key: Key,
        scan: &mut MergeScan,
        wish: &MergeWish,
    ) -> Option<Frame<Anon, S>> {
        let Self { areas, resident, .. } = self;
        areas.at(addr).filter(|area| area.flags.contains(AreaFlags::MERGEABLE))?;
        let MergeablePage::Anonymous(entry, _) = resident.mergeable_page(addr)? else { return None };
        let mut pages = Detach::new(&resident.tables);
        resident.detach(addr, &mut pages)?;
        // Before the flush: from now on no space that shares the frame becomes its only owner.
        let held = Frame::<Anon, S>::borrow_raw(resident.source(), entry.frame()).ok();
        let is_marked = held.is_some_and(|frame| frame.record().counts().merge().is_ok());
        let page = pages.settle().next()?;
        let is_same = |frame: &Frame<Anon, S>| {
            let hash = resident.source().machine().read_bytes(frame, |bytes| scan.hash(bytes));
            scan.key(&resident.commons, frame.pfn(), hash, wish.rules) == key
        };
        if is_marked && is_same(page.frame()) && scan.add(resident.source(), key, entry.frame()).is_ok() {
            return page.replace_by_merged().ok();
        }
        page.frame().record().counts().unmerge();
        page.put_back();
        None
    }
}

impl<S: Memory> Settled<S> {
    /// Maps the page's own frame again, which is merged now. Returns a reference to it.
    ///
    /// # Errors
    /// The page is back as it was.
    fn replace_by_merged(self) -> Result<Frame<Anon, S>, ()> {
        match self.frame().map_merged() {
            Ok(mapping) => {
                let entry = self.old().piece(mapping.into_leaf()).write_protected();
                Ok(self.replace_by(entry))
            }
            Err(_) => {
                self.frame().record().counts().unmerge();
                self.put_back();
                Err(())
            }
        }
    }
}

impl<S: Memory> Resident<S> {
    /// The page at `addr`, if it is anonymous memory with bytes that are kept.
    fn mergeable_page(&self, addr: VirtAddr) -> Option<MergeablePage> {
        let (slot, size) = self.tables.find(addr)?;
        let entry = slot.load();
        if !entry.is_leaf() || self.kind_of(entry) != LeafKind::Anon || entry.is_lazy() {
            return None;
        }
        let entry = if size == PageSize::Large { entry.piece_at(addr) } else { entry };
        // A piece of a large page, too: another space may have split it, and merged that piece.
        Some(if self.is_merged(entry) {
            MergeablePage::Merged
        } else {
            MergeablePage::Anonymous(entry, size)
        })
    }

    /// Whether the frame of a counted leaf is merged.
    pub(crate) fn is_merged(&self, entry: Entry) -> bool {
        self.source().table().get(entry.frame()).is_some_and(|record| record.counts().is_merged())
    }

    /// Hashes the bytes of a page, which may change meanwhile.
    fn hash(&self, addr: VirtAddr, entry: Entry, size: PageSize, scan: &MergeScan) -> Option<u64> {
        let machine = self.source().machine();
        if size == PageSize::Large {
            let (slot, _) = self.tables.find(addr)?;
            let large = slot.load();
            let block = self.block_of(large)?;
            let piece = block.held_at(entry.frame().0 - large.frame().0);
            return Some(machine.read_bytes(&piece, |bytes| scan.hash(bytes)));
        }
        let mapping = LeafMapping::<Anon, S>::borrow_leaf(self.source(), entry.frame()).ok()?;
        Some(machine.read_bytes(&*mapping, |bytes| scan.hash(bytes)))
    }

    /// Removes the leaf of the page at `addr`; a large page is split first.
    fn detach(&mut self, addr: VirtAddr, pages: &mut Detach<S>) -> Option<()> {
        self.split(addr, pages.batch()).ok()?;
        let (slot, _) = self.tables.find(addr)?;
        pages.take(self.source(), addr, slot, slot.load()).ok()
    }

    /// Looks at the page `at`: merges it, notes it, or finds one that it probably equals.
    fn scan_page(
        &mut self,
        area: &Area<S>,
        at: PageAddress,
        (scan, wish): (&mut MergeScan, &MergeWish),
        (run, visit): (&mut MergeRun<S>, &mut Visit),
    ) {
        let Some(found) = self.mergeable_page(at.addr) else { return };
        visit.pages += 1;
        scan.figures.scanned += 1;
        let MergeablePage::Anonymous(entry, size) = found else { return };
        let frame = entry.frame();
        if wish.rules.contains(MergeRules::SMART) && scan.skips(frame) {
            return;
        }
        let Some(hash) = self.hash(at.addr, entry, size, scan) else { return };
        let key = scan.key(&self.commons, frame, hash, wish.rules);
        let takes_zeroes = wish.rules.contains(MergeRules::ZEROES);
        let target = if takes_zeroes && hash == scan.zeroes() && is_anonymous(area) {
            MergeTarget::Zeroes
        } else if let Some(merged) = scan.find(self.source(), key, wish.sharing) {
            MergeTarget::Merged(merged)
        } else {
            if let Noted::Pair(other) = scan.note(self.source(), key, frame, at) {
                visit.pair = Some(MergePair { at, frame, key, other });
            }
            return;
        };
        if self.detach(at.addr, &mut run.pages).is_some() {
            run.targets.push(target);
        }
    }

    /// Compares the pages of a run with their targets, once no CPU can store to them, and gives
    /// them the targets' frames.
    fn end_merges(&mut self, run: &mut MergeRun<S>) {
        let machine = self.source().machine();
        let mut zeroes = 0;
        for (page, target) in run.pages.settle().zip(run.targets.drain(..)) {
            let entry = match &target {
                MergeTarget::Zeroes => {
                    let is_zero = |bytes: &[u8; PAGE_SIZE]| bytes.iter().all(|&byte| byte == 0);
                    let rights = page.old().write_protected().rights();
                    machine.read_bytes(page.frame(), is_zero).then(|| {
                        zeroes += 1;
                        // The dirty mark tells it from a page that was never written.
                        Entry::leaf(self.commons.zero_page(), rights, Marks::Dirty, Backing::Uncounted)
                            .with_soft_dirty_of(page.old())
                    })
                }
                MergeTarget::Merged(frame) if machine.with_two(page.frame(), frame, |a, b| *a == *b) => frame
                    .map_merged()
                    .ok()
                    .map(|mapping| page.old().piece(mapping.into_leaf()).write_protected()),
                MergeTarget::Merged(_) => None,
            };
            match entry {
                Some(entry) => drop(page.replace_by(entry)),
                None => page.put_back(),
            }
        }
        self.rss.anon -= zeroes;
    }
}

/// Whether the area shows zeroes where nothing is mapped. A private file's area would show the
/// file's bytes there.
fn is_anonymous<S: Memory>(area: &Area<S>) -> bool {
    matches!(area.content, AreaContent::Anonymous)
}
