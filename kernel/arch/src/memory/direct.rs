//! The direct map: kernel-owned pageblocks, and nothing else, in 2 MiB pages without execute
//! permission.
//!
//! The owner of a pageblock (the page allocator) lets the block enter before it hands out the first
//! kernel frame there, and makes it leave before the first user frame. Two kinds of block are
//! mapped in 4 KiB pages and stay for ever: the first (memory below 1 MiB is full of holes) and
//! those that hold the image, whose own pages are left out, since text must have no writable alias.
//!
//! Under `xpfo=off` every block of memory is in the map for ever ([`enter_all`]), except the
//! image's own frames, as always.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::{
    CpuSet, Cpus, DirectMap, Flush, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, PfnRange, Tlb, VirtAddr,
};

use super::tables::{self, DATA, LARGE, PRESENT};
use super::{OutOfMemory, boot_frames, pluggable, windows};
use crate::X86;
use crate::boot::{self, BootInfo};
use crate::cpu;

fn address_of(frame: Pfn) -> VirtAddr {
    VirtAddr(super::layout().direct_map + frame.start().0)
}

/// Whether the direct map maps this frame.
pub(crate) fn contains(frame: Pfn) -> bool {
    let address = address_of(frame);
    match tables::find_entry::<2>(address).map(|entry| entry.load(Ordering::Acquire)) {
        None | Some(0) => false,
        Some(large) if large & LARGE != 0 => true,
        Some(_) => tables::find_entry::<1>(address).is_some_and(|e| e.load(Ordering::Acquire) & PRESENT != 0),
    }
}

/// Whether the direct map maps any of these frames. One check suffices if all are in a pageblock
/// that is wholly in the map or wholly outside.
pub(crate) fn touches(frames: PfnRange) -> bool {
    whole_block(frames).unwrap_or_else(|| frames.iter().any(contains))
}

/// Whether the direct map maps all of these frames. One check, as above.
pub(crate) fn holds(frames: PfnRange) -> bool {
    whole_block(frames).unwrap_or_else(|| frames.iter().all(contains))
}

/// Whether the frames are in the direct map; `None` if each has to be checked.
fn whole_block(frames: PfnRange) -> Option<bool> {
    if frames.end > frames.start.pageblock_start().offset(PAGEBLOCK_FRAMES) {
        return None;
    }
    match tables::find_entry::<2>(address_of(frames.start)).map(|entry| entry.load(Ordering::Acquire)) {
        None | Some(0) => Some(false),
        Some(large) if large & LARGE != 0 => Some(true),
        Some(_) => None,
    }
}

/// Makes the tables for every GiB that has memory, and maps the blocks that start-up uses.
///
/// # Errors
/// If start-up's memory does not suffice.
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
    let (image, image_blocks) = (boot.image(), boot.image_blocks());
    let blocks = (0..image_blocks.end.0).step_by(PAGEBLOCK_FRAMES as usize).map(Pfn);
    for block in blocks.filter(|&block| block == Pfn(0) || image_blocks.contains(block)) {
        // The table itself keeps a block that holds only the image from entering as a large page
        // later.
        tables::table_at(at(block), 1, &mut alloc)?;
        let frames = PfnRange::new(block, block.offset(PAGEBLOCK_FRAMES));
        if image.intersection(frames) == frames {
            continue;
        }
        for frame in frames.iter() {
            let usable = boot.is_usable(PfnRange::new(frame, frame.offset(1)));
            if usable && !image.contains(frame) {
                tables::map_page(at(frame), tables::leaf(frame, DATA), &mut alloc)?;
                FIGURES.small.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    // The first two runs are in the blocks above. Making a table may open another block, so the
    // others are visited one by one until there are no more.
    for run in (2..).map_while(boot_frames::run) {
        let block = run.start.pageblock_start();
        let table = tables::table_at(at(block), 2, &mut alloc)?;
        let value = tables::leaf(block, DATA | LARGE);
        tables::entry(table, tables::index_at(at(block), 2)).store(value, Ordering::Release);
        FIGURES.large.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Figures of the map's pages and of its changes.
struct Figures {
    /// Pages of 4 KiB, and of 2 MiB, in the map.
    small: AtomicU64,
    large: AtomicU64,
    /// Pageblocks that entered, and that left; and CPUs that were interrupted because pageblocks
    /// left.
    entered: AtomicU64,
    left: AtomicU64,
    interrupted: AtomicU64,
}

static FIGURES: Figures = Figures {
    small: AtomicU64::new(0),
    large: AtomicU64::new(0),
    entered: AtomicU64::new(0),
    left: AtomicU64::new(0),
    interrupted: AtomicU64::new(0),
};

/// [`Figures`] as they are now.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapFigures {
    /// Pages of 4 KiB in the map.
    pub small: u64,
    /// Pages of 2 MiB in the map.
    pub large: u64,
    /// Pageblocks that entered since start-up.
    pub entered: u64,
    /// Pageblocks that left since start-up.
    pub left: u64,
    /// CPUs that were interrupted because pageblocks left.
    pub interrupted: u64,
}

/// Returns figures of the map's pages and of its changes.
pub fn figures() -> MapFigures {
    let load = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
    MapFigures {
        small: load(&FIGURES.small),
        large: load(&FIGURES.large),
        entered: load(&FIGURES.entered),
        left: load(&FIGURES.left),
        interrupted: load(&FIGURES.interrupted),
    }
}

/// Maps every block of start-up's memory that is not in the map yet, for `xpfo=off`.
pub(crate) fn enter_all() {
    let boot = boot::info();
    for usable in boot.usable_ranges() {
        let mut block = usable.start.pageblock_start();
        while block < usable.end {
            X86.enter(PfnRange::new(block, block.offset(PAGEBLOCK_FRAMES)));
            block = block.offset(PAGEBLOCK_FRAMES);
        }
    }
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
            // A block that is in the map already, whole or in small pages, stays as it is.
            if entry.compare_exchange(0, value, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                FIGURES.large.fetch_add(1, Ordering::Relaxed);
                FIGURES.entered.fetch_add(1, Ordering::Relaxed);
            }
            block = block.offset(PAGEBLOCK_FRAMES);
        }
    }

    fn leave(self, blocks: PfnRange) {
        check(blocks);
        if windows::policy().is_exclusive() {
            take_out(blocks);
        }
    }
}

/// Unmaps `blocks`, whatever the policy. When this returns, no CPU can access them through the map.
pub(super) fn take_out(blocks: PfnRange) {
    let mut block = blocks.start;
    while block < blocks.end {
        let entry = tables::find_entry::<2>(address_of(block)).expect("every GiB of memory has its table");
        let before = entry.load(Ordering::Acquire);
        assert!(before == 0 || before & LARGE != 0, "{block:?} holds the image or start-up's memory");
        entry.store(0, Ordering::Release);
        if before != 0 {
            FIGURES.large.fetch_sub(1, Ordering::Relaxed);
            FIGURES.left.fetch_add(1, Ordering::Relaxed);
        }
        block = block.offset(PAGEBLOCK_FRAMES);
    }
    let everyone = CpuSet::first(X86.cpu_count());
    let others = u64::from(cpu::online().0.count_ones()).saturating_sub(1);
    FIGURES.interrupted.fetch_add(others, Ordering::Relaxed);
    let blocks = Flush::Blocks { start: address_of(blocks.start), blocks: blocks.len() / PAGEBLOCK_FRAMES };
    X86.flush_on(everyone, blocks);
}
