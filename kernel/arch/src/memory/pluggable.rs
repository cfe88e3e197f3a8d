//! Memory that is plugged in and unplugged while the machine runs: which memory is present, and the
//! memory of its frame records.
//!
//! Regions are [declared](declare) at start-up, before the frame table is made, and get their
//! places in the direct map's and the frame table's areas: tables only. The records of an absent
//! pageblock are one page of zeroes, shared and read-only, as those of holes are. [`plug`] replaces
//! it with memory of their own (12 KiB for 2 MiB) and [`unplug`] removes that memory again. So a
//! machine pays 4 KiB per GiB for memory that it may get, and 1/170 of the memory that it has.
//!
//! **Invariant.** A pageblock's bit is set exactly while its records have memory of their own.
//! Windows and the direct map accept only frames of such pageblocks.
//!
//! **Protocol.** The device gives a pageblock, then [`plug`] is called, then the page allocator
//! gets the pageblock. In the other direction the page allocator has released it before [`unplug`].
//! [`PLUGGING`] is held while entries change, never while frames are allocated or freed, or
//! translations flushed.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::{
    CpuSet, Cpus, DirectMap, Flush, PAGE_SIZE, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, PfnRange, Tlb,
    VirtAddr,
};

use super::layout::FRAME_TABLE_PART;
use super::tables::{self, DATA, READ_ONLY, leaf};
use super::{FRAME_TABLE, FrameTableBase, MEMORY_END, OutOfMemory, TablePart, direct, layout, windows};
use crate::X86;
use crate::boot;
use crate::sync::{Once, SpinLock};

/// The longest record that a region is checked for.
const RECORD: u64 = 32;

struct PluggableRegion {
    blocks: PfnRange,
    /// A bit for each pageblock that is plugged in.
    plugged: Box<[AtomicU64]>,
}

impl PluggableRegion {
    fn bit(&self, frame: Pfn) -> (&AtomicU64, u64) {
        let block = (frame.0 - self.blocks.start.0) / PAGEBLOCK_FRAMES;
        (&self.plugged[(block / 64) as usize], 1 << (block % 64))
    }
}

static REGIONS: Once<Vec<PluggableRegion>> = Once::new();
/// Taken while entries of the frame table's area change.
static PLUGGING: SpinLock<()> = SpinLock::new(());

fn region_of(frame: Pfn) -> Option<&'static PluggableRegion> {
    REGIONS.get()?.iter().find(|region| region.blocks.contains(frame))
}

/// Whether the frame is in a pageblock that is plugged in.
pub fn is_plugged(frame: Pfn) -> bool {
    region_of(frame).is_some_and(|region| {
        let (word, bit) = region.bit(frame);
        word.load(Ordering::Acquire) & bit != 0
    })
}

/// Whether any of these frames may be plugged in later.
pub(super) fn is_possible_in(frames: PfnRange) -> bool {
    let regions = REGIONS.get().map_or(&[][..], Vec::as_slice);
    regions.iter().any(|region| !region.blocks.intersection(frames).is_empty())
}

/// One past the highest frame that may ever be present.
pub(super) fn end() -> Pfn {
    let regions = REGIONS.get().map_or(&[][..], Vec::as_slice);
    regions.iter().map(|region| region.blocks.end).max().unwrap_or_default()
}

/// Whether memory can be plugged in there: the range must consist of whole pageblocks that the
/// kernel has addresses for and that hold none of start-up's memory.
pub fn is_possible(blocks: PfnRange) -> bool {
    let whole = blocks.start.is_aligned(PAGEBLOCK_ORDER) && blocks.end.is_aligned(PAGEBLOCK_ORDER);
    let within = blocks.end.0 <= (layout().direct_span / PAGE_SIZE as u64).min(FRAME_TABLE_PART / RECORD);
    whole && !blocks.is_empty() && within && !boot::info().is_partly_usable(blocks)
}

/// Declares where memory may be plugged in: disjoint runs, each [possible](is_possible). Called
/// before the frame table is made.
///
/// # Errors
/// If there is no memory for the tables.
///
/// # Panics
/// When called twice, or for a run that is not possible.
pub fn declare(runs: &[PfnRange]) -> Result<(), OutOfMemory> {
    let mut regions = Vec::new();
    for &blocks in runs {
        assert!(is_possible(blocks), "no memory can be plugged in at {blocks:?}");
        let mut gib = Pfn(blocks.start.0 >> 18 << 18);
        while gib < blocks.end {
            let address = VirtAddr(layout().direct_map + gib.start().0);
            tables::table_at(address, 2, &mut || super::alloc_frames(0))?;
            gib = gib.offset(1 << 18);
        }
        let words = (blocks.len() / PAGEBLOCK_FRAMES).div_ceil(64);
        regions.push(PluggableRegion { blocks, plugged: (0..words).map(|_| AtomicU64::new(0)).collect() });
    }
    REGIONS.set(regions);
    MEMORY_END.set(MEMORY_END.get().max(end().0))
}

/// The addresses of a pageblock's records in a part of the table: the first, and the number of
/// pages.
fn records_of(block: Pfn, part: TablePart) -> (VirtAddr, u64) {
    let address = VirtAddr(part.base + block.0 * part.record);
    (address, part.record * PAGEBLOCK_FRAMES / PAGE_SIZE as u64)
}

fn page_of(records: VirtAddr, page: u64) -> &'static AtomicU64 {
    tables::find_entry::<1>(VirtAddr(records.0 + page * PAGE_SIZE as u64))
        .expect("the frame table has its tables")
}

fn forget(start: VirtAddr, pages: u64) {
    X86.flush_on(CpuSet::first(X86.cpu_count()), Flush::Range { start, pages });
}

fn check(block: Pfn) -> &'static PluggableRegion {
    assert!(block.is_aligned(PAGEBLOCK_ORDER), "{block:?} does not begin a pageblock");
    region_of(block).unwrap_or_else(|| panic!("{block:?} was not declared"))
}

/// Memory for the records of a pageblock in a part of the table, all zeroes. Unused memory is
/// freed.
struct Fresh {
    records: VirtAddr,
    pages: u64,
    frames: Option<Pfn>,
    /// Memory for a table of its own, if all of the pageblock's neighbours are without memory.
    table: Option<Pfn>,
}

impl Fresh {
    fn get(
        base: &FrameTableBase,
        part: TablePart,
        block: Pfn,
        alloc: &mut dyn FnMut(u32) -> Option<Pfn>,
    ) -> Result<Self, OutOfMemory> {
        let (records, pages) = records_of(block, part);
        let mut fresh = Self { records, pages, frames: None, table: None };
        let first = alloc(pages.trailing_zeros()).ok_or(OutOfMemory)?;
        fresh.frames = Some(first);
        PfnRange::new(first, first.offset(pages)).iter().for_each(tables::clear);
        if fresh.is_shared(base) {
            let table = alloc(0).ok_or(OutOfMemory)?;
            fresh.table = Some(table);
            tables::entries(table)
                .iter()
                .for_each(|entry| entry.store(leaf(base.zero_page, READ_ONLY), Ordering::Relaxed));
        }
        Ok(fresh)
    }
    fn slot(&self) -> &'static AtomicU64 {
        tables::find_entry::<2>(self.records).expect("the frame table has its tables")
    }
    fn is_shared(&self, base: &FrameTableBase) -> bool {
        let value = self.slot().load(Ordering::Acquire);
        base.zero_table.is_some_and(|table| tables::frame_of(value) == table)
    }
    /// Installs the memory in place of the zeroes; with [`PLUGGING`] held.
    fn install(&mut self, base: &FrameTableBase) {
        if self.is_shared(base)
            && let Some(table) = self.table.take()
        {
            self.slot().store(tables::link(table), Ordering::Release);
        }
        let first = self.frames.take().expect("it is used once");
        for page in 0..self.pages {
            let before = page_of(self.records, page).swap(leaf(first.offset(page), DATA), Ordering::AcqRel);
            assert!(tables::frame_of(before) == base.zero_page, "{:?} has records", self.records);
        }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(first) = self.frames {
            super::free_frames(first, self.pages.trailing_zeros());
        }
        if let Some(table) = self.table {
            super::free_frames(table, 0);
        }
    }
}

/// Gives the records of the pageblock from `block` on, which is present now, memory of zeroes.
/// `alloc` returns 2^order kernel-side frames.
///
/// # Errors
/// If `alloc` returns none; nothing has changed then.
///
/// # Panics
/// For a pageblock that was not declared or is plugged in.
pub fn plug(block: Pfn, alloc: &mut dyn FnMut(u32) -> Option<Pfn>) -> Result<(), OutOfMemory> {
    let (word, bit) = check(block).bit(block);
    let base = FRAME_TABLE.get().expect("the frame table comes first");
    let [first, second] = base.parts;
    let mut fresh = [Fresh::get(base, first, block, alloc)?, Fresh::get(base, second, block, alloc)?];
    let held = PLUGGING.lock();
    assert!(word.load(Ordering::Relaxed) & bit == 0, "{block:?} is plugged in twice");
    fresh.iter_mut().for_each(|part| part.install(base));
    word.fetch_or(bit, Ordering::AcqRel);
    drop(held);
    fresh.iter().for_each(|part| forget(part.records, part.pages));
    if !windows::policy().is_exclusive() {
        X86.enter(PfnRange::new(block, block.offset(PAGEBLOCK_FRAMES)));
    }
    Ok(())
}

/// Takes back the memory of the records of the unused pageblock from `block` on, which is about to
/// be unplugged.
///
/// # Panics
/// For a pageblock that is not plugged in.
pub fn unplug(block: Pfn) {
    let (word, bit) = check(block).bit(block);
    let base = FRAME_TABLE.get().expect("the frame table comes first");
    let parts = base.parts.map(|part| records_of(block, part));
    if !windows::policy().is_exclusive() {
        direct::take_out(PfnRange::new(block, block.offset(PAGEBLOCK_FRAMES)));
    }
    let held = PLUGGING.lock();
    assert!(word.fetch_and(!bit, Ordering::AcqRel) & bit != 0, "{block:?} is not plugged in");
    let firsts = parts.map(|(records, pages)| {
        let first = tables::frame_of(page_of(records, 0).load(Ordering::Acquire));
        for page in 0..pages {
            page_of(records, page).store(leaf(base.zero_page, READ_ONLY), Ordering::Release);
        }
        first
    });
    drop(held);
    for ((records, pages), first) in parts.into_iter().zip(firsts) {
        forget(records, pages);
        super::free_frames(first, pages.trailing_zeros());
    }
}
