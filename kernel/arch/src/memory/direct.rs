//! The direct map: kernel-owned pageblocks, and nothing else, in 2 MiB pages without execute permission.
//!
//! Whoever owns a pageblock (the page allocator) lets it enter before its first kernel frame is handed out
//! and makes it leave before its first user frame is. Two kinds of block are mapped in 4 KiB pages and stay
//! for ever: the first (memory below 1 MiB is full of holes) and those that hold the image, whose own pages
//! are left out, since text must have no writable alias.

use core::sync::atomic::Ordering;

use freehold_machine::{
    CpuSet, Cpus, DirectMap, Flush, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, PfnRange, Tlb, VirtAddr,
};

use super::tables::{self, DATA, LARGE, PRESENT};
use super::{OutOfMemory, boot_frames, pluggable};
use crate::X86;
use crate::boot::{self, BootInfo};

fn address_of(frame: Pfn) -> VirtAddr {
    VirtAddr(super::layout().direct_map + frame.start().0)
}

/// Whether the kernel reaches this frame's bytes through the direct map.
pub(crate) fn contains(frame: Pfn) -> bool {
    let address = address_of(frame);
    match tables::find_entry::<2>(address).map(|entry| entry.load(Ordering::Acquire)) {
        None | Some(0) => false,
        Some(large) if large & LARGE != 0 => true,
        Some(_) => tables::find_entry::<1>(address).is_some_and(|e| e.load(Ordering::Acquire) & PRESENT != 0),
    }
}

/// Whether the kernel reaches any of these frames' bytes through the direct map. One look, where they lie in a pageblock that is
/// of one side as a whole.
pub(crate) fn touches(frames: PfnRange) -> bool {
    let in_one_block = frames.end <= frames.start.pageblock_start().offset(PAGEBLOCK_FRAMES);
    let whole =
        tables::find_entry::<2>(address_of(frames.start)).map_or(0, |entry| entry.load(Ordering::Acquire));
    match whole {
        0 if in_one_block => false,
        large if in_one_block && large & LARGE != 0 => true,
        _ => frames.iter().any(contains),
    }
}

/// Make the tables for every GiB that has memory, and map the blocks that start-up uses.
///
/// # Errors
/// When start-up's memory does not suffice.
pub(crate) fn prepare(boot: &BootInfo, base: u64) -> Result<(), OutOfMemory> {
    let mut alloc = || boot_frames::take(0);
    let at = |frame: Pfn| VirtAddr(base + frame.start().0);
    let mut gib = Pfn(0);
    while gib < boot.memory_end() {
        let next = gib.offset(1 << 18);
        if boot.usable_ranges().any(|range| !range.intersection(PfnRange::new(gib, next)).is_empty()) {
            tables::table_at(at(gib), 2, &mut alloc)?;
        }
        gib = next;
    }
    let image_blocks = boot.image_blocks();
    let first = PfnRange::new(Pfn(0), Pfn(PAGEBLOCK_FRAMES));
    for frame in first.iter().chain(image_blocks.iter()) {
        // The table itself keeps a block of nothing but the image from entering as a large page
        // later.
        tables::table_at(at(frame), 1, &mut alloc)?;
        let usable = boot.is_usable(PfnRange::new(frame, frame.offset(1)));
        if usable && !boot.image().contains(frame) {
            tables::map_page(at(frame), tables::leaf(frame, DATA), &mut alloc)?;
        }
    }
    // The first two runs lie in the blocks above. Making a table may open another block: the others
    // are looked at one by one until there is none more.
    for run in (2..).map_while(boot_frames::run) {
        let block = run.start.pageblock_start();
        let table = tables::table_at(at(block), 2, &mut alloc)?;
        let value = tables::leaf(block, DATA | LARGE);
        tables::entry(table, tables::index_at(at(block), 2)).store(value, Ordering::Release);
    }
    Ok(())
}

fn check(blocks: PfnRange) {
    let aligned = blocks.start.is_aligned(PAGEBLOCK_ORDER) && blocks.end.is_aligned(PAGEBLOCK_ORDER);
    assert!(aligned, "{blocks:?} is not whole pageblocks");
}

impl DirectMap for X86 {
    fn enter(self, blocks: PfnRange) {
        let start = blocks.start.pageblock_start();
        let mut block = start;
        while block < blocks.end {
            let usable = boot::info().is_partly_usable(PfnRange::new(block, block.offset(PAGEBLOCK_FRAMES)))
                || pluggable::is_plugged(block);
            assert!(usable, "{block:?} is no memory and cannot enter the direct map");
            let entry =
                tables::find_entry::<2>(address_of(block)).expect("every GiB of memory has its table");
            let value = tables::leaf(block, DATA | LARGE);
            // A block that is in already, whole or in small pages, stays as it is.
            let _ = entry.compare_exchange(0, value, Ordering::AcqRel, Ordering::Relaxed);
            block = block.offset(PAGEBLOCK_FRAMES);
        }
    }

    fn leave(self, blocks: PfnRange) {
        check(blocks);
        let mut block = blocks.start;
        while block < blocks.end {
            let entry =
                tables::find_entry::<2>(address_of(block)).expect("every GiB of memory has its table");
            let before = entry.load(Ordering::Acquire);
            assert!(before == 0 || before & LARGE != 0, "{block:?} holds the image or start-up's memory");
            entry.store(0, Ordering::Release);
            block = block.offset(PAGEBLOCK_FRAMES);
        }
        let everyone = CpuSet::first(self.cpu_count());
        let blocks =
            Flush::Blocks { start: address_of(blocks.start), blocks: blocks.len() / PAGEBLOCK_FRAMES };
        self.flush_on(everyone, blocks);
    }
}
