//! Pages that get other frames: a range of one process, or all pages in a pageblock, wherever they
//! are mapped.

use std::collections::BTreeMap;
use std::vec::Vec;

use freehold_frame::{NodePolicy, Owner};
use freehold_machine::{CpuId, PAGEBLOCK_FRAMES, Pfn, PfnRange, VirtAddr};
use freehold_paging::USER_END;
use freehold_paging::model::ModelFrames;
use proptest::prelude::*;

use super::{PROCESSES, Run, address};
use crate::*;

const ALL: core::ops::Range<VirtAddr> = VirtAddr(0)..USER_END;

/// An outcome without its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Moved,
    Busy,
    Shared,
    NoMemory,
}

impl Told {
    fn of(outcome: &MigrateOutcome<ModelFrames>) -> Option<Self> {
        Some(match outcome {
            MigrateOutcome::Moved => Self::Moved,
            MigrateOutcome::Busy => Self::Busy,
            MigrateOutcome::Shared => Self::Shared,
            MigrateOutcome::NoMemory => Self::NoMemory,
            MigrateOutcome::Cached(_) => return None,
        })
    }
}

impl Run {
    /// Whether the frame, or one of the block whose first it may be, is pinned.
    fn is_pinned(&self, frame: Pfn) -> bool {
        self.pins.iter().any(|held| {
            held.pin.pfn() == frame || held.pin.pfn().pageblock_start() == frame.pageblock_start()
        })
    }

    fn frames_of(&self, p: usize) -> BTreeMap<VirtAddr, Pfn> {
        let mut frames = BTreeMap::new();
        self.processes[p].space().pages(ALL.start, ALL.end, |page| {
            if let PageAt::Frame(frame) = page.at {
                frames.insert(page.addr, frame);
            }
        });
        frames
    }

    /// Every other process takes the new frames of its shared pages, too.
    fn follow(&mut self, but: usize, migration: &mut Migration<ModelFrames>) {
        for q in (0..PROCESSES).filter(|&q| q != but) {
            self.on(q, |space, _| space.migrate(ALL, migration, |_, _| None, |_, _| {}));
        }
    }

    pub(super) fn move_pages(
        &mut self,
        p: usize,
        at: u64,
        count: u64,
        shared: SharedPages,
    ) -> Result<(), TestCaseError> {
        let before = self.frames_of(p);
        let mut migration = Migration::new(shared);
        let mut told = Vec::new();
        let mut cached = Vec::new();
        self.on(p, |space, _| {
            let wish = |_, _| Some(NodePolicy::Local);
            space.migrate(address(at)..address(at + count), &mut migration, wish, |addr, outcome| {
                told.extend(Told::of(&outcome).map(|told| (addr, told)));
                if let MigrateOutcome::Cached(page) = outcome {
                    cached.push((addr, page));
                }
            });
        });
        self.follow(p, &mut migration);
        drop(migration);
        let after = self.frames_of(p);
        for (addr, what) in told {
            let old = before[&addr];
            prop_assert_eq!(what == Told::Moved, after.get(&addr) != Some(&old), "{:?} {:?}", addr, what);
            match what {
                // A page that no store takes stays in the swap cache.
                Told::Busy => {
                    let held = self.is_pinned(old) || self.world.commons.swap().is_cache_frame(old);
                    prop_assert!(held, "{:?} is busy and not pinned", addr);
                }
                Told::NoMemory => prop_assert!(self.failing),
                Told::Shared => prop_assert_eq!(shared, SharedPages::Stay),
                Told::Moved => {}
            }
        }
        let commons = self.world.commons.clone();
        for (addr, page) in cached {
            let outcome = self
                .world
                .model()
                .on_cpu(CpuId(2 * p as u16), || commons.migrate_cached(&page, NodePolicy::Local));
            let pinned = self.is_pinned(before[&addr]);
            match Told::of(&outcome) {
                Some(Told::Moved) => prop_assert!(!self.pins.iter().any(|held| held.pin.pfn() == page.frame)),
                Some(Told::NoMemory) => prop_assert!(self.failing),
                // Also where it is mapped a second time and has just moved.
                Some(Told::Busy) => {
                    let moved = page.cache.get(page.index).unwrap().is_none_or(|now| now.pfn() != page.frame);
                    prop_assert!(pinned || moved);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        Ok(())
    }

    /// Empty the pageblock that the page is in.
    pub(super) fn evacuate(&mut self, p: usize, page: u64) -> Result<(), TestCaseError> {
        let frame = self.processes[p].space_entry(page).frame();
        let head = frame.pageblock_start();
        let block = PfnRange::new(head, head.offset(PAGEBLOCK_FRAMES));
        let commons = self.world.commons.clone();
        if block.iter().any(|frame| commons.is_zeroes(frame)) || frame == Pfn(0) {
            return Ok(());
        }
        self.world.frames.withhold(block);
        let mut migration = Migration::new(SharedPages::Move);
        for q in 0..PROCESSES {
            self.on(q, |space, _| {
                let wish = |_, frame| block.contains(frame).then_some(NodePolicy::Local);
                space.migrate(ALL, &mut migration, wish, |_, _| {});
            });
        }
        self.follow(PROCESSES, &mut migration);
        drop(migration);
        let place = NodePolicy::Local;
        self.world.model().on_cpu(CpuId(2 * p as u16), || commons.evacuate_caches(block, place));
        let table = freehold_frame::FrameSource::table(self.world.frames);
        let stays = |frame| commons.swap().is_cache_frame(frame) || table.owner(frame) == Owner::Free;
        let left = block.iter().filter(|&frame| !stays(frame)).count();
        self.world.frames.hand_out_all();
        if !self.failing && !self.is_pinned(head) {
            prop_assert_eq!(left, 0, "frames of {:?} are still in use", block);
        }
        Ok(())
    }
}
