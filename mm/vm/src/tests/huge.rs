//! Large pages: one leaf for 512 pieces, and each piece's counts stay exact.

use freehold_frame::Owner;
use freehold_machine::VirtAddr;
use freehold_machine::model::Config;
use freehold_paging::PageSize;

use super::world::*;
use crate::*;

const BLOCK: u64 = 512 * PAGE;
const AT: u64 = 0x4000_0000;

fn world() -> World {
    let world = World::with(Config { cpus: 4, nodes: 2, frames: 16 * 512, seed: 5 });
    world.commons.set_huge_mode(HugeMode::Always);
    world
}

/// A process with `blocks` large pages from `AT` on, of which every piece 0, 3 and 7 holds its
/// number plus 1.
fn with_blocks(world: &World, blocks: u64) -> Process {
    let p = world.process(0);
    p.map(AreaPlace::Fixed(VirtAddr(AT)), blocks * 512, RW, Backing::Anonymous).unwrap();
    for block in 0..blocks {
        [0, 3, 7].iter().for_each(|n| p.store(AT + block * BLOCK + n * PAGE, *n as u8 + 1).unwrap());
    }
    p
}

fn is_large(p: &Process, addr: u64) -> bool {
    matches!(p.space().resident.tables.find(VirtAddr(addr)), Some((_, PageSize::Large)))
}

fn count(world: &World, event: Event) -> u64 {
    world.commons.count_of(event)
}

#[test]
fn a_first_store_maps_two_mebibytes_where_they_are_wanted_and_fit() {
    let world = world();
    let p = with_blocks(&world, 2);
    assert_eq!((p.usage().rss_anon, p.usage().minor_faults), (1024, 2));
    assert!(is_large(&p, AT) && is_large(&p, AT + BLOCK));
    assert_eq!(world.frames.owned(Owner::Anon), 1024);
    assert_eq!(p.load(AT + 511 * PAGE), Ok(0));
    // Not where the area is too small for it, where it was advised against, or without the setting.
    let small =
        p.map(AreaPlace::Fixed(VirtAddr(AT + 4 * BLOCK + PAGE)), 512, RW, Backing::Anonymous).unwrap();
    p.store(small, 1).unwrap();
    let advised = p.map(AreaPlace::Fixed(VirtAddr(AT + 8 * BLOCK)), 1024, RW, Backing::Anonymous).unwrap();
    p.advise(advised, 512, Advice::NoHugePage).unwrap();
    p.store(advised, 1).unwrap();
    world.commons.set_huge_mode(HugeMode::Advised);
    p.store(advised + BLOCK, 1).unwrap();
    assert!(![small, advised, advised + BLOCK].iter().any(|&at| is_large(&p, at)));
    p.advise(advised, 1024, Advice::HugePage).unwrap();
    p.advise(advised, 1024, Advice::DontNeed).unwrap();
    p.unmap(advised, 1).unwrap();
    p.space().set_huge_use(HugeUse::Disabled);
    let space = p.space();
    assert!(!space.is_huge_eligible(&space.area_at(VirtAddr(AT)).unwrap()));
    drop(space);
    drop(p);
    world.end();
}

#[test]
fn without_a_free_pageblock_a_fault_is_served_with_one_page() {
    let world = world();
    let p = world.process(0);
    let blocks = world.frames.free_blocks() as u64;
    p.map(AreaPlace::Fixed(VirtAddr(AT)), (blocks + 1) * 512, RW, Backing::Anonymous).unwrap();
    (0..=blocks).for_each(|n| p.store(AT + n * BLOCK, 1).unwrap());
    assert_eq!((count(&world, Event::HugeFaultAlloc), count(&world, Event::HugeFaultFallback)), (blocks, 1));
    assert_eq!(p.usage().rss_anon, blocks * 512 + 1);
    assert!(!is_large(&p, AT + blocks * BLOCK));
    drop(p);
    world.end();
}

#[test]
fn fork_shares_a_large_page_as_one_and_a_store_copies_its_piece_only() {
    let world = world();
    let p = with_blocks(&world, 2);
    let child = p.fork(1);
    assert!(is_large(&child, AT) && child.usage().rss_anon == 1024);
    assert_eq!(child.usage().page_table_bytes, p.usage().page_table_bytes, "no table below a large leaf");
    let frames = world.frames.owned(Owner::Anon);
    child.store(AT + 3 * PAGE, 90).unwrap();
    assert_eq!(world.frames.owned(Owner::Anon), frames + 1);
    assert!(!is_large(&child, AT) && is_large(&p, AT) && is_large(&child, AT + BLOCK));
    assert_eq!((p.load(AT + 3 * PAGE), child.load(AT + 3 * PAGE)), (Ok(4), Ok(90)));
    // Row 71: when the other process is gone, the pieces that it shared are written in place.
    let kept = p.frame(AT + 7 * PAGE);
    drop(child);
    p.store(AT + 7 * PAGE, 8).unwrap();
    assert_eq!(p.frame(AT + 7 * PAGE), kept);
    assert!(is_large(&p, AT), "and the page is one again");
    assert_eq!(world.frames.owned(Owner::Anon), frames);
    drop(p);
    world.end();
}

#[test]
fn the_last_owner_of_a_large_page_keeps_all_of_it() {
    let world = world();
    let p = with_blocks(&world, 1);
    let child = p.fork(1);
    let frame = p.frame(AT);
    drop(p);
    child.store(AT + 9 * PAGE, 1).unwrap();
    assert!(is_large(&child, AT) && child.frame(AT) == frame);
    assert_eq!(count(&world, Event::Reuse), 1);
    drop(child);
    world.end();
}

#[test]
fn a_pin_on_one_piece_costs_no_copy_of_another_and_survives_fork_and_store() {
    let world = world();
    let p = with_blocks(&world, 1);
    let pin = p.space().pin::<Transient, ReadWrite>(VirtAddr(AT + 3 * PAGE), Rule::Asked).unwrap();
    assert!(is_large(&p, AT), "a pin takes nothing apart");
    let (three, seven) = (p.frame(AT + 3 * PAGE), p.frame(AT + 7 * PAGE));
    assert_eq!(pin.pfn(), three);
    let child = p.fork(1);
    assert_ne!(child.frame(AT + 3 * PAGE), three, "the child has a copy of what is pinned");
    assert_eq!(child.frame(AT + 7 * PAGE), seven, "and of nothing else");
    p.store(AT + 3 * PAGE, 40).unwrap();
    assert_eq!((p.frame(AT + 3 * PAGE), child.load(AT + 3 * PAGE)), (three, Ok(4)));
    drop(child);
    p.store(AT + 7 * PAGE, 41).unwrap();
    assert_eq!(p.frame(AT + 7 * PAGE), seven, "row 72");
    drop(p);
    assert_eq!(world.frames.owned(Owner::Anon), 1, "the pinned frame stays, by itself");
    drop(pin);
    world.end();
}

#[test]
fn a_pin_in_a_shared_large_page_is_of_a_copy_that_the_partner_never_sees() {
    let world = world();
    let p = with_blocks(&world, 1);
    let child = p.fork(1);
    let pin =
        child.run(|| child.space().pin::<LongTerm, ReadOnly>(VirtAddr(AT + 3 * PAGE), Rule::Asked)).unwrap();
    child.unmap(AT, 512).unwrap();
    p.store(AT + 3 * PAGE, 99).unwrap();
    let seen = freehold_machine::PhysicalBytes::with_bytes(world.model(), pin.pfn(), |bytes| bytes[0]);
    assert_eq!(seen, 4, "row 19");
    drop((p, child, pin));
    world.end();
}

#[test]
fn a_part_is_unmapped_protected_or_dropped_by_itself_and_given_back_at_once() {
    let world = world();
    let p = with_blocks(&world, 3);
    p.unmap(AT + 4 * PAGE, 508).unwrap();
    assert_eq!(world.frames.owned(Owner::Anon), 4 + 1024);
    assert_eq!((p.load(AT + 3 * PAGE), p.load(AT + 4 * PAGE)), (Ok(4), Err(MAPERR)));
    p.protect(AT + BLOCK + 3 * PAGE, 1, Protection::READ).unwrap();
    assert_eq!(p.store(AT + BLOCK + 3 * PAGE, 1), Err(ACCERR));
    p.store(AT + BLOCK + 4 * PAGE, 1).unwrap();
    p.advise(AT + 2 * BLOCK, 100, Advice::DontNeed).unwrap();
    assert_eq!(p.load(AT + 2 * BLOCK + 7 * PAGE), Ok(0));
    assert_eq!(p.usage().rss_anon, 4 + 512 + 412);
    assert_eq!(count(&world, Event::HugeSplitLeaf), 3);
    // Protected as a whole it stays one, and forbidden accesses are refused.
    let q = with_blocks(&world, 1);
    q.protect(AT, 512, Protection::READ).unwrap();
    assert_eq!(q.store(AT, 1), Err(ACCERR));
    q.protect(AT, 512, RW).unwrap();
    q.store(AT, 5).unwrap();
    assert!(is_large(&q, AT) && q.usage().minor_faults == 1, "exclusive: writable again without a fault");
    drop((p, q));
    world.end();
}

#[test]
fn a_large_page_moves_as_one_between_places_that_are_alike_and_in_pieces_elsewhere() {
    let world = world();
    let p = with_blocks(&world, 1);
    let frame = p.frame(AT + 3 * PAGE);
    let to = |addr: u64| Remap {
        old: VirtAddr(AT),
        old_len: BLOCK,
        new_len: BLOCK,
        place: RemapPlace::Fixed(VirtAddr(addr)),
        source: RemapSource::Unmap,
    };
    let pin = p.space().pin::<LongTerm, ReadOnly>(VirtAddr(AT + 3 * PAGE), Rule::Asked).unwrap();
    p.run(|| p.space().remap(to(AT + 8 * BLOCK), &p.limits, &mut || Ok(()))).unwrap();
    assert!(is_large(&p, AT + 8 * BLOCK) && p.load(AT) == Err(MAPERR));
    let back = Remap { old: VirtAddr(AT + 8 * BLOCK), ..to(AT + PAGE) };
    p.run(|| p.space().remap(back, &p.limits, &mut || Ok(()))).unwrap();
    assert!(!is_large(&p, AT + PAGE));
    assert_eq!((p.load(AT + 4 * PAGE), p.frame(AT + 4 * PAGE)), (Ok(4), frame), "row 43");
    drop((p, pin));
    world.end();
}

#[test]
fn collapse_makes_one_page_of_small_ones_in_place_where_it_can_and_never_moves_a_pinned_frame() {
    let world = world();
    world.commons.set_huge_mode(HugeMode::Never);
    let p = world.process(0);
    p.map(AreaPlace::Fixed(VirtAddr(AT)), 1024, RW, Backing::Anonymous).unwrap();
    assert_eq!(p.advise(AT, 512, Advice::Collapse), Err(VmError::Invalid), "nothing there");
    [0, 3, 511].iter().for_each(|n| p.store(AT + n * PAGE, 9).unwrap());
    let pin = p.space().pin::<LongTerm, ReadOnly>(VirtAddr(AT + 3 * PAGE), Rule::Asked).unwrap();
    assert_eq!(p.advise(AT, 512, Advice::Collapse), Err(VmError::Again));
    drop(pin);
    let child = p.fork(1);
    p.advise(AT, 512, Advice::Collapse).unwrap();
    assert!(is_large(&p, AT) && p.usage().rss_anon == 512);
    let loads = [0, 1, 3, 511].map(|n| p.load(AT + n * PAGE));
    assert_eq!(loads, [Ok(9), Ok(0), Ok(9), Ok(9)]);
    assert_eq!(child.load(AT + 3 * PAGE), Ok(9), "the child keeps the old frames");
    // A page that was split but not changed is joined in place.
    let frame = p.frame(AT + 3 * PAGE);
    p.protect(AT, 1, Protection::READ).unwrap();
    p.protect(AT, 1, RW).unwrap();
    assert!(!is_large(&p, AT));
    let pin = p.space().pin::<LongTerm, ReadOnly>(VirtAddr(AT + 3 * PAGE), Rule::Asked).unwrap();
    p.advise(AT, 512, Advice::Collapse).unwrap();
    assert!(is_large(&p, AT) && p.frame(AT + 3 * PAGE) == frame, "under a pin too: nothing moves");
    p.store(AT + 3 * PAGE, 10).unwrap();
    drop((p, child, pin));
    world.end();
}

#[test]
fn reads_of_untouched_memory_share_one_block_of_zeroes() {
    let world = world();
    let p = world.process(0);
    p.map(AreaPlace::Fixed(VirtAddr(AT)), 1024, RW, Backing::Anonymous).unwrap();
    assert_eq!((p.load(AT), p.load(AT + BLOCK), p.usage().rss()), (Ok(0), Ok(0), 0));
    assert_eq!(count(&world, Event::HugeZeroAlloc), 1);
    let pin = p.run(|| p.space().pin::<LongTerm, ReadOnly>(VirtAddr(AT + 5 * PAGE), Rule::Asked)).unwrap();
    p.store(AT + 5 * PAGE, 7).unwrap();
    assert_eq!(p.frame(AT + 5 * PAGE), pin.pfn(), "row 17");
    assert!(is_large(&p, AT), "the first store, or pin, gives a large page of its own");
    let child = p.fork(1);
    child.unmap(AT + BLOCK, 100).unwrap();
    assert_eq!((child.load(AT + BLOCK + 100 * PAGE), p.load(AT + BLOCK)), (Ok(0), Ok(0)));
    drop((p, child, pin));
    world.end();
}

#[test]
fn smaps_and_the_page_map_see_every_piece() {
    let world = world();
    let p = with_blocks(&world, 2);
    let child = p.fork(1);
    child.store(AT, 50).unwrap();
    let smaps = |p: &Process| {
        let space = p.space();
        let area = space.area_at(VirtAddr(AT)).unwrap();
        space.smaps(&area)
    };
    let (of_parent, of_child) = (smaps(&p), smaps(&child));
    assert_eq!((of_parent.rss, of_parent.huge), (2 * BLOCK, 2 * BLOCK));
    assert_eq!((of_child.rss, of_child.huge, of_child.private_dirty), (2 * BLOCK, BLOCK, PAGE));
    assert_eq!((of_parent.private_dirty, of_parent.shared_dirty), (PAGE, 2 * BLOCK - PAGE));
    let mut seen = std::vec::Vec::new();
    p.space().pages(VirtAddr(AT + BLOCK - PAGE), VirtAddr(AT + BLOCK + PAGE), |page| seen.push(page));
    let expected = [AT + BLOCK - PAGE, AT + BLOCK].map(|at| (VirtAddr(at), PageAt::Frame(p.frame(at)), 2));
    assert_eq!(
        seen.iter().map(|page| (page.addr, page.at, page.mappings)).collect::<std::vec::Vec<_>>(),
        expected
    );
    assert_eq!(world.commons.huge_pages(), 3 * 512);
    drop((p, child));
    assert_eq!(world.commons.huge_pages(), 0);
    world.end();
}

#[test]
fn forks_and_stores_on_all_cpus_keep_every_piece_to_its_process() {
    let world = world();
    let mut parent = with_blocks(&world, 2);
    parent.judge = Judge::AtTheEnd;
    std::thread::scope(|scope| {
        for cpu in 1..4u16 {
            let mut child = parent.fork(cpu);
            child.judge = Judge::AtTheEnd;
            scope.spawn(move || {
                for round in 0..40u64 {
                    let at = AT + (round % 2) * BLOCK + (u64::from(cpu) * 7 + round * 13) % 512 * PAGE;
                    child.store(at, cpu as u8).unwrap();
                    assert_eq!(child.load(at), Ok(cpu as u8));
                    if round % 8 == 7 {
                        let grandchild = child.run(|| child.space().fork().unwrap());
                        drop(grandchild);
                    }
                    if round == 20 {
                        child.unmap(AT + BLOCK + 256 * PAGE, 128).unwrap();
                        child
                            .map(AreaPlace::Fixed(VirtAddr(AT + BLOCK)), 512, RW, Backing::Anonymous)
                            .unwrap();
                    }
                }
                child.model.assert_may_sleep();
            });
        }
        for round in 0..60u64 {
            parent.store(AT + (round * 29) % 1024 * PAGE + 1, 200).unwrap();
        }
    });
    assert_eq!([0, 3, 7].map(|n| parent.load(AT + n * PAGE)), [Ok(1), Ok(4), Ok(8)]);
    let bytes = (0..1024u64).filter(|n| ![0, 3, 7, 512, 515, 519].contains(n));
    assert!(
        bytes.clone().all(|n| parent.load(AT + n * PAGE) == Ok(0)),
        "a child's store is seen by its parent"
    );
    drop(parent);
    world.end();
}
