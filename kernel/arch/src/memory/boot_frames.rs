//! Frames for start-up, before the page allocator exists.
//!
//! A bump allocator over whole pageblocks: first the second half of the first pageblock, then the
//! image's last pageblock, then the lowest pageblocks that are wholly free memory. Pageblocks where
//! the loader put the image are left out: until the final tables are loaded, the image runs there.
//! Each block that the allocator opens enters the direct map. The frames that it took are reserved
//! for ever. [`seal`] ends it, except for [`RESERVE`] frames that the heap may still take.
//!
//! Frames that belong to a node come from a run of pageblocks of its memory ([`take_near`]).

use freehold_machine::topology::{MAX_NODES, MemoryRange};
use freehold_machine::{DirectMap, PAGEBLOCK_FRAMES, Pfn, PfnRange};

use super::tables;
use crate::X86;
use crate::boot;
use crate::sync::SpinLock;

/// Frames that stay available between [`seal`] and the page allocator, and later for emergencies.
pub(crate) const RESERVE: u64 = 64;
pub(super) const MAX_RUNS: usize = 48;
const LOW_END: Pfn = Pfn(0x100);

/// Memory of which start-up takes, as it is at this moment.
struct StartMemory<'a> {
    is_usable: &'a dyn Fn(PfnRange) -> bool,
    end: Pfn,
    image: PfnRange,
    /// Frames that are memory and have another use: pageblocks of the image, the image as it was
    /// loaded, the initial RAM disk.
    in_use: [PfnRange; 3],
    /// Lets a pageblock enter the direct map; `None` before there is one.
    enter: Option<fn(PfnRange)>,
}

impl StartMemory<'_> {
    fn with<R>(f: impl FnOnce(&StartMemory<'_>) -> R) -> R {
        let boot = boot::info();
        f(&StartMemory {
            is_usable: &|block| boot.is_usable(block),
            end: boot.memory_end(),
            image: boot.image(),
            in_use: [boot.image_blocks(), boot.loaded_image(), boot.initrd_frames()],
            enter: (tables::direct_base() != 0).then_some(|block| X86.enter(block)),
        })
    }

    /// The lowest pageblock from `start` on that is memory throughout and free.
    fn free_block(&self, start: Pfn) -> Option<PfnRange> {
        let mut block = PfnRange::new(start, start.offset(PAGEBLOCK_FRAMES));
        while block.start < self.end {
            let is_free = self.in_use.iter().all(|used| used.intersection(block).is_empty());
            if is_free && (self.is_usable)(block) {
                return Some(block);
            }
            block = PfnRange::new(block.end, block.end.offset(PAGEBLOCK_FRAMES));
        }
        None
    }
}

struct BootFrames {
    /// Frames that were taken: one run per opened block, or per sequence of used up blocks. The
    /// last run is still growing.
    runs: [PfnRange; MAX_RUNS],
    count: usize,
    /// The free rest of the last run's block.
    limit: Pfn,
    sealed: bool,
    /// By node: the frames that were taken there on request, and the end of the blocks that were
    /// opened for that.
    near: [(PfnRange, Pfn); MAX_NODES],
}

const NONE: PfnRange = PfnRange { start: Pfn(0), end: Pfn(0) };
static FRAMES: SpinLock<BootFrames> = SpinLock::new(BootFrames::new());

impl BootFrames {
    const fn new() -> Self {
        let near = [(NONE, Pfn(0)); MAX_NODES];
        Self { runs: [NONE; MAX_RUNS], count: 0, limit: Pfn(0), sealed: false, near }
    }

    fn take(&mut self, memory: &StartMemory<'_>, order: u32) -> Option<Pfn> {
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
            self.open(memory)?;
        }
    }

    /// Start taking from another pageblock. `None` where there is none, or no room for its run.
    fn open(&mut self, memory: &StartMemory<'_>) -> Option<()> {
        let (image, last) = (memory.image, self.limit);
        let next = match self.count {
            0 => PfnRange::new(LOW_END, Pfn(PAGEBLOCK_FRAMES)),
            1 => PfnRange::new(image.end, Pfn(image.end.0.next_multiple_of(PAGEBLOCK_FRAMES))),
            // The image's last block is one of the first two, wherever it lies.
            2 => self.free_block(memory, Pfn(PAGEBLOCK_FRAMES))?,
            _ => self.free_block(memory, last)?,
        };
        // The first two are in small pages. Before the direct map exists the identity map serves;
        // the blocks enter when it is made, which is a block for each run. From then on a block
        // that follows a used up one makes its run longer: a large machine's frame table is many
        // pageblocks and few runs.
        let enter = memory.enter.filter(|_| self.count >= 2);
        let follows = self.count > 2 && self.runs[self.count - 1].end == next.start;
        let is_longer = enter.is_some() && follows;
        if !is_longer {
            let run = self.runs.get_mut(self.count)?;
            *run = PfnRange::new(next.start, next.start);
            self.count += 1;
        }
        self.limit = if (memory.is_usable)(next) { next.end } else { next.start };
        if let Some(enter) = enter {
            enter(next);
        }
        Some(())
    }

    /// The lowest pageblock from `start` on that is free and not in a node's run.
    fn free_block(&self, memory: &StartMemory<'_>, start: Pfn) -> Option<PfnRange> {
        let mut block = memory.free_block(start)?;
        while self.near.iter().any(|(run, limit)| run.start < block.end && block.start < *limit) {
            block = memory.free_block(block.end)?;
        }
        Some(block)
    }

    /// As [`take_near`].
    fn take_near(&mut self, memory: &StartMemory<'_>, range: &MemoryRange, order: u32) -> Option<Pfn> {
        let enter = memory.enter.filter(|_| !self.sealed)?;
        loop {
            let (run, limit) = self.near[usize::from(range.node.0)];
            let start = Pfn(run.end.0.next_multiple_of(1 << order));
            if start.0 + (1 << order) <= limit.0 {
                let run = PfnRange::new(run.start, start.offset(1 << order));
                self.near[usize::from(range.node.0)] = (run, limit);
                return Some(start);
            }
            let is_first = limit == Pfn(0);
            let from =
                if is_first { range.frames.start.0.next_multiple_of(PAGEBLOCK_FRAMES) } else { limit.0 };
            let block = memory.free_block(Pfn(from)).filter(|block| block.end <= range.frames.end)?;
            let is_taken = self.runs[..self.count].iter().any(|run| !run.intersection(block).is_empty());
            // A node's run has no gap. The last block of the other runs may still be empty.
            if is_taken || block.end == self.limit || !is_first && block.start != limit {
                return None;
            }
            let run = if is_first { PfnRange::new(block.start, block.start) } else { run };
            self.near[usize::from(range.node.0)] = (run, block.end);
            enter(block);
        }
    }

    /// As [`seal`].
    fn seal(&mut self, memory: &StartMemory<'_>) {
        while self.count == 0 || self.limit.0 - self.runs[self.count - 1].end.0 < RESERVE {
            if self.open(memory).is_none() {
                break;
            }
        }
        let end = self.runs[self.count - 1].end;
        self.limit = self.limit.min(end.offset(RESERVE));
        self.sealed = true;
    }

    /// Runs that are taken, the reserve included.
    fn taken(&self) -> impl Iterator<Item = PfnRange> {
        let runs = self.runs[..self.count].iter().enumerate();
        let runs = runs.map(|(index, run)| {
            let end = if self.sealed && index + 1 == self.count { self.limit } else { run.end };
            PfnRange::new(run.start, end)
        });
        runs.chain(self.near.iter().map(|(run, _)| *run).filter(|run| !run.is_empty()))
    }
}

/// Takes 2^`order` frames, aligned to their size; their content is undefined.
pub(crate) fn take(order: u32) -> Option<Pfn> {
    StartMemory::with(|memory| FRAMES.lock().take(memory, order))
}

/// Takes 2^`order` frames as [`take`], from the memory `range` of a node, in blocks that no other
/// frames are taken from. `None` if there is no direct map yet, after [`seal`], or if the node's
/// blocks do not follow each other: then [`take`] serves.
pub(crate) fn take_near(range: &MemoryRange, order: u32) -> Option<Pfn> {
    StartMemory::with(|memory| FRAMES.lock().take_near(memory, range, order))
}

/// Ends start-up's allocations except for [`RESERVE`] frames.
pub(crate) fn seal() {
    let mut frames = FRAMES.lock();
    if !frames.sealed {
        StartMemory::with(|memory| frames.seal(memory));
    }
}

/// Call `f` with each run that is taken, the reserve included.
pub(crate) fn for_each_run(f: impl FnMut(PfnRange)) {
    FRAMES.lock().taken().for_each(f);
}

/// The run number `index`, counted from 0 in the order in which they were opened.
pub(crate) fn run(index: usize) -> Option<PfnRange> {
    let frames = FRAMES.lock();
    frames.runs[..frames.count].get(index).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use core::sync::atomic::{AtomicU64, Ordering};

    use freehold_machine::NodeId;
    use freehold_machine::topology::Presence;

    const BLOCK: u64 = PAGEBLOCK_FRAMES;

    /// Memory of which each second pageblock is a hole, from the second on.
    fn with_holes(f: impl FnOnce(&mut StartMemory<'_>)) {
        let block = |number: u64| PfnRange::new(Pfn(number * BLOCK), Pfn((number + 1) * BLOCK));
        let is_usable = |frames: PfnRange| {
            let number = frames.start.0 / BLOCK;
            frames.end <= block(number).end && (number % 2 == 0 || number == 1)
        };
        let image = PfnRange::new(Pfn(2 * BLOCK), Pfn(2 * BLOCK + 300));
        let in_use = [block(2), block(1), block(6)];
        f(&mut StartMemory { is_usable: &is_usable, end: Pfn(400 * BLOCK), image, in_use, enter: None });
    }

    #[test]
    fn each_frame_that_start_up_takes_is_in_a_run_however_many_runs_there_are() {
        with_holes(|memory| {
            let mut frames = BootFrames::new();
            let mut all = BTreeSet::new();
            while let Some(first) = frames.take(memory, 4) {
                for frame in PfnRange::new(first, first.offset(16)).iter() {
                    let one = PfnRange::new(frame, frame.offset(1));
                    assert!((memory.is_usable)(one) && !memory.image.contains(frame), "{frame:?}");
                    assert!(all.insert(frame), "{frame:?} is taken twice");
                    assert!(memory.in_use[1..].iter().all(|used| !used.contains(frame)), "{frame:?}");
                }
            }
            // Its runs were used up before memory was.
            assert_eq!((frames.count, frames.limit < memory.end), (MAX_RUNS, true));
            assert_eq!(frames.taken().count(), MAX_RUNS);
            for &frame in &all {
                assert!(frames.taken().any(|run| run.contains(frame)), "{frame:?} is in no run");
            }
        });
    }

    #[test]
    fn frames_of_a_node_are_in_a_run_of_its_memory_and_are_taken_once() {
        with_holes(|memory| {
            memory.is_usable = &|_| true;
            memory.enter = Some(|_| ());
            let [first, second] = [(0, 20), (20, 30)].map(|(start, end)| MemoryRange {
                frames: PfnRange::new(Pfn(start * BLOCK), Pfn(end * BLOCK)),
                node: NodeId((start / 20) as u8),
                presence: Presence::Always,
            });
            let mut frames = BootFrames::new();
            let mut all = BTreeSet::new();
            (0..2000).for_each(|_| assert!(all.insert(frames.take(memory, 0).unwrap())));
            // Blocks of the first node follow those that are in use already: it has no run.
            assert_eq!(frames.take_near(memory, &first, 0), None);
            for order in [0, 9, 0, 9] {
                let start = frames.take_near(memory, &second, order).unwrap();
                assert!(start.is_aligned(order) && second.frames.contains(start));
                assert!((0..1 << order).all(|frame| all.insert(start.offset(frame))));
            }
            let before = all.len();
            while let Some(frame) = frames.take(memory, 0) {
                assert!(all.insert(frame), "{frame:?} is taken twice");
                if all.len() > before + 30 * BLOCK as usize {
                    break;
                }
            }
            let near = frames.near[1].0;
            assert_eq!((near.start, near.len()), (Pfn(20 * BLOCK), 4 * BLOCK));
            assert_eq!(frames.taken().filter(|&run| run == near).count(), 1);
            // The node's last block is used up; what follows is another node's.
            while frames.take_near(memory, &second, 9).is_some() {}
            assert!(frames.near[1].1 <= second.frames.end);
            frames.sealed = true;
            assert_eq!(frames.take_near(memory, &second, 0), None);
        });
    }

    #[test]
    fn the_reserve_is_taken_and_nothing_behind_it() {
        with_holes(|memory| {
            let mut frames = BootFrames::new();
            // A rest that is smaller than the reserve.
            let few = (BLOCK - LOW_END.0) / 2 + 16;
            (0..few).for_each(|_| assert!(frames.take(memory, 0).is_some()));
            frames.limit = frames.runs[0].end.offset(RESERVE - 1);
            frames.seal(memory);
            let last = (0..).map_while(|_| frames.take(memory, 0)).collect::<Vec<_>>();
            assert_eq!(last.len() as u64, RESERVE);
            assert!(last.iter().all(|&frame| frames.taken().any(|run| run.contains(frame))));
        });
    }

    #[test]
    fn blocks_that_follow_each_other_are_one_run_and_each_enters_the_direct_map() {
        static ENTERED: AtomicU64 = AtomicU64::new(0);
        with_holes(|memory| {
            memory.is_usable = &|_| true;
            memory.enter = Some(|block| {
                ENTERED.fetch_add(block.len(), Ordering::Relaxed);
            });
            let mut frames = BootFrames::new();
            (0..200).for_each(|_| assert!(frames.take(memory, 9).is_some()));
            // Two in small pages, one between blocks in use, and one to the end.
            assert_eq!(frames.count, 4);
            let large = frames.taken().skip(2).map(PfnRange::len).sum::<u64>();
            assert_eq!((large, ENTERED.load(Ordering::Relaxed)), (200 * BLOCK, 200 * BLOCK));
        });
    }
}
