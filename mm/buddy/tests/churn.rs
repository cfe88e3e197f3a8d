//! Churn in front of a memory-side cache: areas of random size are made and freed, and all counts
//! must agree after every round.
//!
//! A frame is drawn by bin only in front of such a cache. The random test (`long.rs`) and the
//! interleavings have no such cache, so they do not run that code. The tests of placement have one,
//! but check the counts only after whole processes have ended: then all bins hold about the same
//! number of frames, and an opened pageblock has a suitable frame. Freeing random halves of random
//! areas leaves full and empty bins. In that state a pageblock without a suitable frame was once
//! opened, and stayed split with no frame in use.
#![allow(clippy::unwrap_used)]

mod common;

use common::{behind_caches, buddy, check};
use freehold_buddy::{Buddy, Options, Placement};
use freehold_frame::{Order, Owner, Request};
use freehold_machine::model::Model;
use freehold_machine::{Pfn, PfnRange};

/// 16 MiB of cache in front of 128 MiB.
const CACHE: u64 = 4096;
const MEMORY: u64 = 8 * CACHE;

type Source = &'static Buddy<Model>;

fn machine(placement: Placement, seed: u64) -> Source {
    let topology = behind_caches(1, MEMORY, CACHE, 1);
    let machine = Model::with_topology(topology, 1, seed);
    let options = Options { placement, ..Options::default() };
    buddy(machine, machine.topology(), &[PfnRange::new(Pfn(0), Pfn(1000))], options)
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A process: allocates areas of random size until it has `pages`, then frees a random half; six
/// times. `step` is called in between.
fn churn(source: Source, dice: &mut Dice, owner: Owner, pages: usize, mut step: impl FnMut(&mut Dice)) {
    let mut areas: Vec<Vec<Pfn>> = Vec::new();
    let mut used = 0;
    for _ in 0..6 {
        while used < pages {
            let length = 1 + dice.below(64) * if dice.below(4) == 0 { 8 } else { 1 };
            let area: Vec<_> = (0..length).map_while(|_| source.allocate(Request::new(owner)).ok()).collect();
            if area.is_empty() {
                break;
            }
            used += area.len();
            areas.push(area);
            step(dice);
        }
        let mut at = 0;
        while at < areas.len() {
            if dice.below(2) == 1 {
                let area = areas.swap_remove(at);
                used -= area.len();
                area.into_iter().for_each(|frame| source.release(frame, Order::FRAME));
            } else {
                at += 1;
            }
        }
        step(dice);
    }
    areas.into_iter().flatten().for_each(|frame| source.release(frame, Order::FRAME));
}

#[test]
fn areas_that_come_and_go_leave_no_pageblock_split_that_is_wholly_free() {
    for (placement, rounds) in [(Placement::Auto, 12), (Placement::Random, 2), (Placement::Linear, 2)] {
        for seed in 1..=2 {
            let source = machine(placement, seed);
            let all = check(source);
            let mut dice = Dice(88172645463325252 ^ seed.wrapping_mul(0x9e3779b97f4a7c15));
            for round in 0..rounds {
                let owner = if round % 4 == 3 { Owner::PageCache } else { Owner::Anon };
                churn(source, &mut dice, owner, MEMORY as usize / 2, |_| ());
                check(source);
                source.drain_local();
                assert_eq!((check(source), source.misuses()), (all, 0), "{placement:?}, {seed}, {round}");
            }
        }
    }
}

#[test]
fn no_frame_of_a_pageblock_that_is_leaving_is_handed_out_by_bin() {
    let source = machine(Placement::Balanced, 7);
    let all = check(source);
    let mut dice = Dice(3);
    for _ in 0..8 {
        churn(source, &mut dice, Owner::Anon, MEMORY as usize / 2, |dice| {
            if dice.below(16) > 0 {
                return;
            }
            // The pageblock that was opened last may be unplugged, too.
            let first = Pfn((2 + dice.below(MEMORY / 512 - 2)) * 512);
            let frame = source.allocate(Request::new(Owner::Anon)).unwrap();
            source.release(frame, Order::FRAME);
            let last = frame.pageblock_start();
            for first in [first, last] {
                let leaving = PfnRange::new(first, first.offset(512));
                let used = source.unplug(leaving).unwrap();
                let frames: Vec<_> =
                    (0..200).map(|_| source.allocate(Request::new(Owner::Anon)).unwrap()).collect();
                assert!(frames.iter().all(|frame| !leaving.contains(*frame)), "{used} were in use");
                frames.into_iter().for_each(|frame| source.release(frame, Order::FRAME));
                check(source);
                source.plug(leaving).unwrap();
            }
        });
        source.drain_local();
        assert_eq!((check(source), source.misuses()), (all, 0));
    }
}
