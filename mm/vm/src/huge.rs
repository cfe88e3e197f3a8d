//! 2 MiB pages of anonymous memory.
//!
//! **Large leaves.** A leaf of 2 MiB maps a pageblock of anonymous frames, or the block of zeroes.
//! It is within one area: a call that splits an area inside a large leaf splits the leaf first
//! ([`Resident::split_at`]). All of its pieces have the same rights. Their holders are counted
//! exactly for each frame (`freehold_frame`, module `whole`). It grants writing only while every
//! piece is exclusive.
//!
//! | event | large leaf, all pieces exclusive | some piece shared |
//! |---|---|---|
//! | write fault | made writable | if this is the last holder of all, exclusive again; else split, then the piece alone is decided |
//! | pin of a piece | stays; the block is in pieces, one of them pinned | split, the piece copied, the copy pinned |
//! | fork | shared as one where nothing is pinned; else split, pieces shared or copied | shared as one |
//! | unmap, protect, move of a part | split | split |
//! | unmap of all | one block is given back | one mapping of each piece |
//!
//! So a pin, another holder or a hole affects only its own piece; no other piece is copied.
//!
//! **Failure.** No free pageblock: the fault is served with 4 KiB. No frame for the table of a
//! split: the call that needed it fails before it has changed anything, or the fault reports that
//! memory is out.

use core::mem::ManuallyDrop;
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use freehold_frame::{
    Frame, FrameSource, Held, HeldFrame, LargeMapping, Order, OutOfMemory, Owner, PageCache as CacheKind,
    Payer, Request, Shattered,
};
use freehold_machine::{PAGEBLOCK_FRAMES, Pfn, VirtAddr};
use freehold_paging::{Backing, Entry, EntryAt, FlushBatch, Marks, Memory, PageSize, Rights};

use crate::area::{Area, AreaContent};
use crate::error::{FaultError, FaultKind};
use crate::events::{CowDecision, Event};
use crate::request::AreaFlags;
use crate::resident::{Resident, Want};
use crate::{AddressSpace, Commons, VmError};

/// Bytes of a large page.
pub(crate) const LARGE: u64 = PageSize::Large.bytes();

/// The anonymous memory that gets large pages (Linux: /sys/kernel/mm/transparent_hugepage/enabled).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum HugeMode {
    /// All anonymous memory without advice against it.
    Always,
    /// Areas that are advised for large pages (MADV_HUGEPAGE).
    Advised,
    /// No memory.
    Never,
}

/// The zeroes that reads of untouched memory get where a large page would be possible (Linux:
/// use_zero_page).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum HugeZero {
    /// A shared block of zeroes, made when it is first needed.
    Shared,
    /// The zero page of 4 KiB.
    Small,
}

/// Whether a process uses large pages at all (PR_SET_THP_DISABLE).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugeUse {
    /// The process uses them as its areas say.
    ByArea,
    /// The process does not use them.
    Disabled,
}

/// The kind of faults that found no pageblock for a large page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum BlockWish {
    /// No fault.
    None,
    /// Faults in an area without advice.
    Ordinary,
    /// Faults in an area with advice for large pages.
    Advised,
}

/// The settings, and the block of zeroes.
pub(crate) struct HugeControl<S: Memory> {
    mode: AtomicU8,
    zero_use: AtomicU8,
    /// The block of zeroes.
    zero: spin::Once<Frame<CacheKind, S>>,
    /// Large leaves of anonymous memory in all address spaces.
    leaves: AtomicU64,
    /// The greatest [`BlockWish`] since the last query.
    wish: AtomicU8,
}

impl<S: Memory> HugeControl<S> {
    pub(crate) const fn new() -> Self {
        Self {
            mode: AtomicU8::new(HugeMode::Never as u8),
            zero_use: AtomicU8::new(HugeZero::Shared as u8),
            zero: spin::Once::new(),
            leaves: AtomicU64::new(0),
            wish: AtomicU8::new(BlockWish::None as u8),
        }
    }
}

impl<S: Memory> Commons<S> {
    /// Which anonymous memory gets large pages; none until this is set.
    pub fn huge_mode(&self) -> HugeMode {
        let modes = [HugeMode::Always, HugeMode::Advised, HugeMode::Never];
        let now = self.huge.mode.load(Ordering::Relaxed);
        modes.into_iter().find(|&mode| mode as u8 == now).unwrap_or(HugeMode::Never)
    }
    /// Sets the mode. Existing mappings stay as they are.
    pub fn set_huge_mode(&self, mode: HugeMode) {
        self.huge.mode.store(mode as u8, Ordering::Relaxed);
    }
    /// Returns the zeroes that reads of untouched memory see.
    pub fn huge_zero(&self) -> HugeZero {
        if self.huge.zero_use.load(Ordering::Relaxed) == HugeZero::Shared as u8 {
            HugeZero::Shared
        } else {
            HugeZero::Small
        }
    }
    /// Set it.
    pub fn set_huge_zero(&self, zero: HugeZero) {
        self.huge.zero_use.store(zero as u8, Ordering::Relaxed);
    }

    /// Pages that are mapped as parts of large ones, in all address spaces; the block of zeroes
    /// does not count.
    pub fn huge_pages(&self) -> u64 {
        self.huge.leaves.load(Ordering::Relaxed) * PAGEBLOCK_FRAMES
    }

    /// Returns which faults found no pageblock since the last call.
    pub fn take_block_wish(&self) -> BlockWish {
        let last = self.huge.wish.swap(BlockWish::None as u8, Ordering::Relaxed);
        let wishes = [BlockWish::Ordinary, BlockWish::Advised];
        wishes.into_iter().find(|&wish| wish as u8 == last).unwrap_or(BlockWish::None)
    }

    /// Whether `frame` is the zero page, or of the block of zeroes.
    pub fn is_zeroes(&self, frame: Pfn) -> bool {
        frame == self.zero_page() || self.held_zero_block(frame).is_some()
    }
    /// `frame`, if it is of the block of zeroes.
    pub(crate) fn held_zero_block(&self, frame: Pfn) -> Option<HeldFrame<'_>> {
        let block = self.huge.zero.get()?;
        let head = block.pfn();
        (frame.pageblock_start() == head).then(|| block.held_at(frame.0 - head.0))
    }

    /// The block of zeroes, if it may be used and there is memory for it.
    fn zero_block(&self) -> Option<Pfn> {
        if self.huge_zero() == HugeZero::Small {
            return None;
        }
        if let Some(there) = self.huge.zero.get() {
            return Some(there.pfn());
        }
        // All share it, like the small zero page, and no account is charged for it.
        let payer = Payer::SameAs(self.zero_page());
        let request = Request::new(Owner::PageCache).order(Order::PAGEBLOCK).zeroed();
        let Ok(new) = Frame::<CacheKind, S>::allocate_for(self.source, payer, request) else {
            self.count(Event::HugeZeroFailed);
            return None;
        };
        // Another CPU may be faster; then the new block is freed.
        let kept = self.huge.zero.call_once(|| {
            self.count(Event::HugeZeroAlloc);
            new
        });
        Some(kept.pfn())
    }
}

/// The leaf that becomes the holder of `block`.
pub(crate) fn large_leaf<S: FrameSource>(block: LargeMapping<S>, rights: Rights, marks: Marks) -> Entry {
    Entry::leaf(block.into_leaf(), rights, marks, Backing::Counted).large()
}

/// The first address of the large page around `addr`.
pub(crate) const fn block_start(addr: VirtAddr) -> VirtAddr {
    VirtAddr(addr.0 & !(LARGE - 1))
}

/// The large pages that lie in `range` whole, by their first addresses.
pub(crate) fn blocks_in(range: &Range<VirtAddr>) -> impl Iterator<Item = VirtAddr> + use<> {
    let first = range.start.0.div_ceil(LARGE);
    (first..(range.end.0 / LARGE).max(first)).map(|block| VirtAddr(block * LARGE))
}

impl<S: Memory> Resident<S> {
    /// Whether `area` may have large pages at all, of any size, as if `mode` were set.
    pub(crate) fn may_be_large(&self, area: &Area<S>, mode: HugeMode) -> bool {
        // A stack grows on demand.
        const AGAINST: AreaFlags = AreaFlags::NOHUGEPAGE.union(AreaFlags::GROWSDOWN);
        let wanted = match mode {
            HugeMode::Always => true,
            HugeMode::Advised => area.flags.contains(AreaFlags::HUGEPAGE),
            HugeMode::Never => false,
        };
        wanted
            && self.huge == HugeUse::ByArea
            && !area.flags.intersects(AGAINST)
            && matches!(area.content, AreaContent::Anonymous)
    }

    /// Where the large page around `addr` would start, if `area` may have one there.
    pub(crate) fn block_for(&self, area: &Area<S>, addr: VirtAddr) -> Option<VirtAddr> {
        let start = block_start(addr);
        let fits = area.start <= start && start.0 + LARGE <= area.end.0;
        (fits && self.may_be_large(area, self.commons.huge_mode())).then_some(start)
    }

    /// Whether a page of `area` can be large as things are set.
    pub(crate) fn is_huge_eligible(&self, area: &Area<S>) -> bool {
        blocks_in(&(area.start..area.end)).next().is_some_and(|at| self.block_for(area, at).is_some())
    }

    /// The block that the large leaf `entry` holds; `None` of the block of zeroes.
    pub(crate) fn block_of(&self, entry: Entry) -> Option<ManuallyDrop<LargeMapping<S>>> {
        debug_assert!(entry.is_large());
        match entry.backing() {
            Backing::Uncounted => None,
            Backing::Counted => LargeMapping::borrow_leaf(self.source(), entry.frame()),
        }
    }

    /// Adds `change` to the number of large leaves of anonymous memory.
    pub(crate) fn count_leaves(&self, change: i64) {
        // Wraps if the change is negative. Each removed leaf was counted before, so the sum is
        // right.
        self.commons.huge.leaves.fetch_add(change as u64, Ordering::Relaxed);
    }

    fn new_block(&self, area: &Area<S>, start: VirtAddr) -> Option<LargeMapping<S>> {
        let request = Request::new(Owner::Anon).zeroed().policy(self.place_large(area, start));
        let block = LargeMapping::allocate_for(self.source(), self.payer(), request).ok();
        let event = if block.is_some() { Event::HugeFaultAlloc } else { Event::HugeFaultFallback };
        self.commons.count(event);
        if block.is_none() {
            let advised = area.flags.contains(AreaFlags::HUGEPAGE);
            let wish = if advised { BlockWish::Advised } else { BlockWish::Ordinary };
            self.commons.huge.wish.fetch_max(wish as u8, Ordering::Relaxed);
        }
        block
    }

    /// Fill the absent 2 MiB around `addr` with one page. `None`: it is to be filled with 4 KiB.
    pub(crate) fn fill_large(
        &mut self,
        area: &Area<S>,
        addr: VirtAddr,
        want: Want,
    ) -> Result<Option<FaultKind>, OutOfMemory> {
        let Some(start) = self.block_for(area, addr) else { return Ok(None) };
        let slot = self.tables.make(start, PageSize::Large)?;
        if !slot.load().is_empty() {
            return Ok(None);
        }
        let leaf = match want {
            Want::Read => self.commons.zero_block().map(|head| {
                Entry::leaf(head, area.shared_frame_rights(), Marks::Accessed, Backing::Uncounted).large()
            }),
            Want::Write => {
                self.new_block(area, start).map(|block| large_leaf(block, area.rights(), Marks::Dirty))
            }
        };
        Ok(leaf.map(|leaf| {
            slot.fill(leaf);
            self.large += 1;
            if leaf.backing() == Backing::Counted {
                self.rss.anon += PAGEBLOCK_FRAMES;
                self.count_leaves(1);
            }
            FaultKind::Minor
        }))
    }

    /// Handles a store to a present large page. `None`: the page has been split, and the caller
    /// handles the piece.
    pub(crate) fn fault_write_large(
        &mut self,
        area: &Area<S>,
        EntryAt { addr, slot, entry }: EntryAt<S::Machine>,
    ) -> Result<Option<FaultKind>, FaultError> {
        if entry.is_writable() {
            return Ok(Some(FaultKind::Minor));
        }
        let rights = area.rights();
        let mut batch = self.tables.batch();
        match self.block_of(entry) {
            Some(block) if block.reuse().is_ok() => {
                slot.update(|entry| entry.with_rights(rights).marked_dirty());
                self.commons.count(Event::Reuse);
                self.trace_decision(EntryAt { addr, slot, entry }, CowDecision::Reused);
                return Ok(Some(FaultKind::Minor));
            }
            None if self.block_for(area, addr).is_some() => {
                if let Some(block) = self.new_block(area, block_start(addr)) {
                    let old = slot.replace(large_leaf(block, rights, Marks::Dirty));
                    batch.unmapped_large(block_start(addr), old, None);
                    self.rss.anon += PAGEBLOCK_FRAMES;
                    self.count_leaves(1);
                    return Ok(Some(FaultKind::Minor));
                }
            }
            _ => {}
        }
        self.split(addr, &mut batch)?;
        Ok(None)
    }

    /// Make 512 leaves of the large one around `addr`, if there is one.
    pub(crate) fn split(&mut self, addr: VirtAddr, batch: &mut FlushBatch<S>) -> Result<(), OutOfMemory> {
        let Some((slot, PageSize::Large)) = self.tables.find(addr) else { return Ok(()) };
        // Before any piece has a leaf: a leaf's hold needs the counts of its own frame.
        let entry = slot.load();
        self.shatter(entry);
        if let Err(error) = self.tables.split(addr, batch) {
            self.commons.count(Event::HugeSplitFailed);
            return Err(error);
        }
        self.large -= 1;
        self.count_leaves(if entry.backing() == Backing::Counted { -1 } else { 0 });
        self.commons.count(Event::HugeSplitLeaf);
        Ok(())
    }

    fn shatter(&self, entry: Entry) {
        if let Some(block) = self.block_of(entry)
            && block.shatter() == Shattered::Now
        {
            self.commons.count(Event::HugeSplitPage);
        }
    }

    /// Give the pieces of the large page around `addr`, if there is one, counts of their own: one
    /// of them is to be pinned.
    pub(crate) fn count_pieces(&self, addr: VirtAddr) {
        if let Some((slot, PageSize::Large)) = self.tables.find(addr) {
            self.shatter(slot.load());
        }
    }

    /// Splits the large page that has `at` in its interior. `at` is a border, for example an
    /// area's.
    pub(crate) fn split_at(&mut self, at: VirtAddr) -> Result<(), OutOfMemory> {
        if self.large == 0 || at == block_start(at) {
            return Ok(());
        }
        let mut batch = self.tables.batch();
        self.split(at, &mut batch)
    }
}

impl<S: Memory> AddressSpace<S> {
    /// Whether this process wants large pages.
    pub const fn huge_use(&self) -> HugeUse {
        self.resident.huge
    }
    /// Sets whether this process uses large pages; children inherit it.
    pub fn set_huge_use(&mut self, huge: HugeUse) {
        self.resident.huge = huge;
    }

    /// Splits large pages at the borders of `range`.
    ///
    /// # Errors
    /// [`VmError::NoMemory`]; [`VmError::Invalid`] inside a huge page on request.
    pub(crate) fn split_borders(&mut self, range: &Range<VirtAddr>) -> Result<(), VmError> {
        for at in [range.start, range.end] {
            self.check_border(at)?;
            self.resident.split_at(at)?;
        }
        Ok(())
    }
}
