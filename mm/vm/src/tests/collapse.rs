//! Collapse: pages that become one large page without a request, and pages that do not.

use core::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use freehold_frame::{Anon, LeafMapping, Owner};
use freehold_machine::model::Config;
use freehold_machine::{CpuId, PhysicalBytes, VirtAddr};
use freehold_paging::PageSize;

use super::world::*;
use crate::*;

const BLOCK: u64 = 512 * PAGE;
const AT: u64 = 0x4000_0000;
const ALL: CollapseLimits = CollapseLimits { none: 511, shared: 512, swapped: 0 };

fn world() -> World {
    World::with(Config { cpus: 4, nodes: 2, frames: 16 * 512, seed: 7 })
}

/// A process with `blocks` blocks of which page n of each has the byte n + 1, for `n < pages`; in
/// small pages.
fn with_pages(world: &World, blocks: u64, pages: u64) -> Process {
    let p = world.process(0);
    p.map(AreaPlace::Fixed(VirtAddr(AT)), blocks * 512, RW, Backing::Anonymous).unwrap();
    for block in 0..blocks {
        (0..pages).for_each(|n| p.store(AT + block * BLOCK + n * PAGE, n as u8 + 1).unwrap());
    }
    p
}

fn is_large(p: &Process, addr: u64) -> bool {
    matches!(p.space().resident.tables.find(VirtAddr(addr)), Some((_, PageSize::Large)))
}

/// Scans all of `p` as khugepaged does; returns the number of new large pages.
fn scan(p: &Process, limits: CollapseLimits) -> usize {
    let (mut from, mut made) = (VirtAddr(0), 0);
    loop {
        let step = p.run(|| p.space().collapse_step(from, 4096, &limits));
        made += usize::from(step.tried == Some(Ok(())));
        match step.next {
            Some(next) => from = next,
            None => return made,
        }
    }
}

#[test]
fn a_scan_makes_large_pages_where_they_are_wanted_and_keeps_every_byte() {
    let world = world();
    let p = with_pages(&world, 3, 5);
    assert_eq!(scan(&p, ALL), 0, "not wanted");
    world.commons.set_huge_mode(HugeMode::Advised);
    assert_eq!(scan(&p, ALL), 0, "not advised");
    p.advise(AT + BLOCK, 1024, Advice::HugePage).unwrap();
    assert_eq!(scan(&p, ALL), 2);
    assert!(!is_large(&p, AT) && is_large(&p, AT + BLOCK) && is_large(&p, AT + 2 * BLOCK));
    for n in 0..512 {
        let value = if n < 5 { n as u8 + 1 } else { 0 };
        assert_eq!(p.load(AT + BLOCK + n * PAGE), Ok(value));
    }
    assert_eq!((p.usage().rss_anon, world.frames.owned(Owner::Anon)), (1029, 1029), "small ones went back");
    assert_eq!(world.commons.count_of(Event::HugeCollapseAlloc), 2);
    drop(p);
    world.end();
}

#[test]
fn a_step_ends_after_its_budget_and_after_one_large_page() {
    let world = world();
    let p = with_pages(&world, 4, 1);
    world.commons.set_huge_mode(HugeMode::Always);
    p.advise(AT, 512, Advice::NoHugePage).unwrap();
    let step = |from, budget, limits| p.run(|| p.space().collapse_step(VirtAddr(from), budget, limits));
    let one = step(0, 4096, &ALL);
    assert_eq!(one, CollapseStep { next: Some(VirtAddr(AT + 2 * BLOCK)), pages: 512, tried: Some(Ok(())) });
    let none = CollapseLimits { none: 510, ..ALL };
    assert_eq!(
        step(AT + 2 * BLOCK, 512, &none),
        CollapseStep { next: Some(VirtAddr(AT + 3 * BLOCK)), pages: 512, tried: None }
    );
    assert_eq!(step(AT + 3 * BLOCK, 512, &none), CollapseStep { next: None, pages: 512, tried: None });
    drop(p);
    world.end();
}

#[test]
fn too_many_empty_or_shared_pages_are_left_as_they_are() {
    let world = world();
    let p = with_pages(&world, 1, 10);
    world.commons.set_huge_mode(HugeMode::Always);
    let child = p.fork(1);
    (4..10).for_each(|n| child.store(AT + n * PAGE, 77).unwrap());
    let limits = |none, shared| CollapseLimits { none, shared, ..ALL };
    assert_eq!(scan(&child, limits(501, 4)), 0, "502 are empty");
    assert_eq!(scan(&child, limits(502, 3)), 0, "4 are shared");
    assert_eq!(scan(&child, limits(502, 4)), 1);
    assert_eq!((child.load(AT), child.load(AT + 9 * PAGE)), (Ok(1), Ok(77)));
    assert!(!is_large(&p, AT) && p.load(AT + 9 * PAGE) == Ok(10));
    drop((p, child));
    world.end();
}

#[test]
fn what_is_pinned_unused_or_not_there_is_left_as_it_is() {
    let world = world();
    let p = with_pages(&world, 1, 10);
    world.commons.set_huge_mode(HugeMode::Always);
    let pin = p.space().pin::<LongTerm, ReadWrite>(VirtAddr(AT + PAGE), Rule::Asked).unwrap();
    let frame = p.frame(AT + PAGE);
    assert_eq!(scan(&p, ALL), 0, "a pinned frame stays where it is");
    assert_eq!(p.advise(AT, 512, Advice::Collapse), Err(VmError::Again));
    assert_eq!(p.frame(AT + PAGE), frame);
    drop(pin);
    p.run(|| p.space().clear_references(ClearRefs::All));
    assert_eq!(scan(&p, ALL), 0, "nobody used it since");
    p.load(AT).unwrap();
    assert_eq!(scan(&p, ALL), 1);
    p.advise(AT, 512, Advice::DontNeed).unwrap();
    assert_eq!(scan(&p, CollapseLimits { none: 512, shared: 0, swapped: 0 }), 0, "nothing is there");
    drop(p);
    world.end();
}

#[test]
fn a_frame_that_is_held_keeps_all_small_pages_as_they_are() {
    let world = world();
    let p = with_pages(&world, 1, 10);
    p.load(AT + 20 * PAGE).unwrap();
    let frames: std::vec::Vec<_> = (0..21).map(|n| p.frame(AT + n * PAGE)).collect();
    let mapping = LeafMapping::<Anon, _>::borrow_leaf(world.frames, frames[7]).unwrap();
    let held = mapping.reference().unwrap();
    assert_eq!(p.advise(AT, 512, Advice::Collapse), Err(VmError::Again));
    assert!((0..21).all(|n| p.frame(AT + n * PAGE) == frames[n as usize]));
    assert_eq!(p.usage().rss_anon, 10);
    let reused = world.commons.count_of(Event::Reuse);
    (0..10).for_each(|n| p.store(AT + n * PAGE, n as u8 + 2).unwrap());
    assert_eq!(world.commons.count_of(Event::Reuse), reused, "they were writable all the time");
    drop(held);
    assert_eq!(p.advise(AT, 512, Advice::Collapse), Ok(()));
    assert!(is_large(&p, AT) && p.load(AT + 7 * PAGE) == Ok(9));
    drop(p);
    world.end();
}

/// A program stores, reads and splits its page again. A device counts in pages that are pinned
/// without a lock. All the while another thread makes the page large.
#[test]
fn stores_pins_splits_and_collapse_at_once_lose_no_byte() {
    const PAGES: u64 = 40;
    let world = world();
    let mut p = with_pages(&world, 1, PAGES);
    p.judge = Judge::AtTheEnd;
    p.advise(AT, 512, Advice::HugePage).unwrap();
    world.commons.set_huge_mode(HugeMode::Always);
    let made = || world.commons.count_of(Event::HugeCollapseAlloc);
    let over = AtomicBool::new(false);
    let fast = thread::scope(|scope| {
        let program = scope.spawn(|| {
            let mut fast = 0;
            for round in (1..=250u8).cycle().take(5_000) {
                let spare = AT + 500 * PAGE;
                p.advise(spare, 1, Advice::NoHugePage).unwrap();
                p.advise(spare, 1, Advice::HugePage).unwrap();
                // So that the frames lie apart, and have to be copied.
                p.advise(spare - PAGE, 1, Advice::DontNeed).unwrap();
                thread::yield_now();
                for n in 0..PAGES {
                    p.store(AT + n * PAGE, round).unwrap();
                    let at = AT + (n * 7 % PAGES) * PAGE;
                    let mut pins = std::vec::Vec::new();
                    let count = (PAGES - n * 7 % PAGES).min(1 + n % 5) as usize;
                    let each = |pin: PinnedPage<_, ReadWrite>| pins.push(pin);
                    fast += p.run(|| pin_fast_run(&p.roots, VirtAddr(at), count, each));
                    for (pin, at) in pins.iter().zip((at..).step_by(PAGE as usize)) {
                        world.model().with_bytes(pin.pfn(), |bytes| bytes[9] = round);
                        assert_eq!(p.load(at + 9), Ok(round), "the device and the program see one frame");
                    }
                }
                (0..PAGES).for_each(|n| assert_eq!(p.load(AT + n * PAGE), Ok(round)));
                if made() > 30 && fast > 300 {
                    break;
                }
            }
            fast
        });
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                world.model().on_cpu(CpuId(2), || p.space().collapse_step(VirtAddr(AT), 512, &ALL));
            }
        });
        let fast = program.join();
        over.store(true, Ordering::Relaxed);
        fast.unwrap()
    });
    assert!(made() > 30 && fast > 300, "{} made, {fast} pins", made());
    drop(p);
    world.end();
}

#[test]
fn a_move_that_runs_out_of_tables_leaves_none_behind() {
    let world = world();
    let to = RemapPlace::Fixed(VirtAddr(AT + 2 * BLOCK - 100 * PAGE));
    let mut outcomes = std::vec::Vec::new();
    for budget in 0..4 {
        let p = with_pages(&world, 1, 200);
        world.frames.fail_after(budget);
        let wish = Remap {
            old: VirtAddr(AT),
            old_len: 200 * PAGE,
            new_len: 200 * PAGE,
            place: to,
            source: RemapSource::Unmap,
        };
        outcomes.push(p.run(|| p.space().remap(wish, &Limits::NONE, &mut || Ok(()))).is_ok());
        world.frames.fail_after(u64::MAX);
        let at = if outcomes[budget as usize] { AT + 2 * BLOCK - 100 * PAGE } else { AT };
        assert_eq!(p.load(at + 199 * PAGE), Ok(200));
        drop(p);
    }
    assert_eq!(outcomes, [false, false, true, true], "two tables are needed");
    world.end();
}

#[test]
fn without_a_free_pageblock_the_small_pages_stay_and_who_wanted_one_is_known() {
    let world = world();
    let p = with_pages(&world, 1, 2);
    world.commons.set_huge_mode(HugeMode::Always);
    let blocks = world.frames.free_blocks() as u64;
    let hog = world.process(1);
    let at = AT + 64 * BLOCK;
    hog.map(AreaPlace::Fixed(VirtAddr(at)), (blocks + 1) * 512, RW, Backing::Anonymous).unwrap();
    (0..blocks).for_each(|n| hog.store(at + n * BLOCK, 1).unwrap());
    assert_eq!(world.commons.take_block_wish(), BlockWish::None);
    hog.store(at + blocks * BLOCK, 1).unwrap();
    assert_eq!(world.commons.take_block_wish(), BlockWish::Ordinary);
    hog.advise(at + blocks * BLOCK, 512, Advice::DontNeed).unwrap();
    hog.unmap(at + blocks * BLOCK, 512).unwrap();
    let step = p.run(|| p.space().collapse_step(VirtAddr(AT), 512, &ALL));
    assert_eq!(step.tried, Some(Err(VmError::NoMemory)));
    assert_eq!(world.commons.count_of(Event::HugeCollapseFailed), 1);
    assert_eq!((p.load(AT + PAGE), p.usage().rss_anon), (Ok(2), 2));
    drop((p, hog));
    world.end();
}
