//! Frames for start-up, before the page allocator exists.
//!
//! A bump allocator over whole pageblocks: first the second half of the first pageblock, then the
//! image's last pageblock, then the lowest pageblocks that are wholly free memory. Pageblocks where
//! the loader put the image are left out: until the final tables are loaded, the image runs there.
//! Each block that the allocator opens enters the direct map. The frames that it took are reserved
//! for ever. [`seal`] ends it, except for [`RESERVE`] frames that the heap may still take.

use freehold_machine::{DirectMap, PAGEBLOCK_FRAMES, Pfn, PfnRange};

use super::tables;
use crate::X86;
use crate::boot::{self, BootInfo};
use crate::sync::SpinLock;

/// Frames that stay available between [`seal`] and the page allocator, and later for emergencies.
pub(crate) const RESERVE: u64 = 64;
const MAX_RUNS: usize = 48;
const LOW_END: Pfn = Pfn(0x100);

struct BootFrames {
    /// Frames that were taken: one run per opened block, or per sequence of used up blocks. The
    /// last run is still growing.
    runs: [PfnRange; MAX_RUNS],
    count: usize,
    /// The free rest of the last run's block.
    limit: Pfn,
    sealed: bool,
}

const NONE: PfnRange = PfnRange { start: Pfn(0), end: Pfn(0) };
static FRAMES: SpinLock<BootFrames> =
    SpinLock::new(BootFrames { runs: [NONE; MAX_RUNS], count: 0, limit: Pfn(0), sealed: false });

impl BootFrames {
    fn take(&mut self, boot: &BootInfo, order: u32) -> Option<Pfn> {
        loop {
            if self.count > 0 {
                let run = &mut self.runs[self.count - 1];
                let start = Pfn(run.end.0.next_multiple_of(1 << order));
                if start.0 + (1 << order) <= self.limit.0 {
                    run.end = start.offset(1 << order);
                    return Some(start);
                }
            }
            if self.sealed {
                return None;
            }
            self.open(boot)?;
        }
    }

    /// Adds `block` to the last run, if that run is used up and ends there: a large machine's frame
    /// table has many pageblocks and few runs. Not before the direct map exists: it is made with
    /// one block per run.
    fn lengthen(&mut self, block: PfnRange) -> bool {
        let follows = self.count > 2 && self.runs[self.count - 1].end == block.start;
        let can = follows && tables::direct_base() != 0;
        if can {
            self.limit = block.end;
            X86.enter(block);
        }
        can
    }

    /// Opens another pageblock.
    fn open(&mut self, boot: &BootInfo) -> Option<()> {
        let next = match self.count {
            0 => PfnRange::new(LOW_END, Pfn(PAGEBLOCK_FRAMES)),
            1 => PfnRange::new(boot.image().end, Pfn(boot.image().end.0.next_multiple_of(PAGEBLOCK_FRAMES))),
            n => {
                let in_use = [boot.image_blocks(), boot.loaded_image(), boot.initrd_frames()];
                // The image's last block is one of the first two, at any place of the image.
                let mut start = Pfn(PAGEBLOCK_FRAMES);
                if n > 2 {
                    start = self.limit;
                }
                let block = loop {
                    let block = PfnRange::new(start, start.offset(PAGEBLOCK_FRAMES));
                    if boot.is_usable(block) && in_use.iter().all(|used| used.intersection(block).is_empty())
                    {
                        break block;
                    }
                    start = block.end;
                    if start >= boot.memory_end() {
                        return None;
                    }
                };
                if self.lengthen(block) {
                    return Some(());
                }
                if n == MAX_RUNS {
                    return None;
                }
                block
            }
        };
        self.limit = if boot.is_usable(next) { next.end } else { next.start };
        self.runs[self.count] = PfnRange::new(next.start, next.start);
        self.count += 1;
        // Before the direct map exists the identity map is used; the blocks enter the direct map
        // when it is made.
        if tables::direct_base() != 0 && self.count > 2 {
            X86.enter(next);
        }
        Some(())
    }
}

/// Takes 2^`order` frames, aligned to their size; their content is undefined.
pub(crate) fn take(order: u32) -> Option<Pfn> {
    FRAMES.lock().take(boot::info(), order)
}

/// Ends start-up's allocations except for [`RESERVE`] frames.
pub(crate) fn seal() {
    let mut frames = FRAMES.lock();
    if frames.sealed {
        return;
    }
    let boot = boot::info();
    while frames.count == 0 || frames.limit.0 - frames.runs[frames.count - 1].end.0 < RESERVE {
        if frames.open(boot).is_none() {
            break;
        }
    }
    let end = frames.runs[frames.count - 1].end;
    frames.limit = frames.limit.min(end.offset(RESERVE));
    frames.sealed = true;
}

/// Calls `f` with each run that is taken, the reserve included.
pub(crate) fn for_each_run(mut f: impl FnMut(PfnRange)) {
    let frames = FRAMES.lock();
    for (index, run) in frames.runs[..frames.count].iter().enumerate() {
        let end = if frames.sealed && index + 1 == frames.count { frames.limit } else { run.end };
        f(PfnRange::new(run.start, end));
    }
}

/// The run number `index`, counted from 0 in the order in which they were opened.
pub(crate) fn run(index: usize) -> Option<PfnRange> {
    let frames = FRAMES.lock();
    frames.runs[..frames.count].get(index).copied()
}

/// Whether start-up took this frame.
pub(crate) fn owns(frame: Pfn) -> bool {
    let frames = FRAMES.lock();
    frames.runs[..frames.count].iter().any(|run| run.contains(frame))
}
