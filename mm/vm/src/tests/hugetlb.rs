//! Huge pages on request: each page of the pool has a holder, and each promise is counted once.

use freehold_frame::{NodeSet, Owner};
use freehold_machine::model::Config;
use freehold_machine::{NodeId, VirtAddr};

use super::world::*;
use crate::*;

const BLOCK: u64 = 512 * PAGE;

fn world(pages: u64) -> World {
    let world = World::with(Config { cpus: 4, nodes: 2, frames: 24 * 512, seed: 5 });
    resize(&world, pages);
    world
}

fn resize(world: &World, pages: u64) {
    world.commons.resize_huge_pool(pages, NodeSet::ALL, &mut || Ok(())).unwrap();
}

/// Total, free, reserved and surplus pages.
fn pool(world: &World) -> [u64; 4] {
    let HugePoolFigures { total, free, reserved, surplus, .. } = world.commons.huge_pool(None);
    assert_eq!(world.frames.owned(Owner::Anon) as u64, total * 512);
    [total, free, reserved, surplus]
}

fn map(p: &Process, pages: u64) -> Result<u64, VmError> {
    p.map(AreaPlace::Anywhere, pages * 512, RW, Backing::Huge(0))
}

fn map_shared(p: &Process, pages: u64) -> u64 {
    p.map(AreaPlace::Anywhere, pages * 512, RW, Backing::SharedHuge(0)).unwrap()
}

#[test]
fn the_pool_takes_the_pages_that_there_are_and_gives_them_back() {
    let world = world(6);
    assert_eq!(pool(&world), [6, 6, 0, 0]);
    let of_nodes = || [0, 1].map(|node| world.commons.huge_pool(Some(NodeId(node))).free).iter().sum::<u64>();
    assert_eq!(of_nodes(), 6);
    resize(&world, 1000);
    let [most, free, ..] = pool(&world);
    assert!(most == free && (10..24).contains(&most), "{most} pages");
    resize(&world, 2);
    assert_eq!(of_nodes(), 2);
    resize(&world, 0);
    assert_eq!(pool(&world), [0; 4]);
    world.end();
}

#[test]
fn a_mapping_reserves_takes_and_returns() {
    let world = world(4);
    let p = world.process(0);
    assert_eq!(map(&p, 5), Err(VmError::NoHugePage));
    let at = map(&p, 3).unwrap();
    assert_eq!(pool(&world), [4, 4, 3, 0]);
    assert_eq!((p.load(at + BLOCK - 1), p.store(at + BLOCK, 7), p.load(at + BLOCK)), (Ok(0), Ok(()), Ok(7)));
    assert_eq!((pool(&world), p.usage().huge_pages, p.usage().rss()), ([4, 2, 1, 0], 1024, 0));
    assert_eq!(p.unmap(at, 1), Err(VmError::Invalid));
    assert_eq!(p.unmap(at + PAGE, 512), Err(VmError::Invalid));
    assert_eq!(p.protect(at + BLOCK + PAGE, 512, Protection::READ), Err(VmError::Invalid));
    p.protect(at + BLOCK, 512, Protection::READ).unwrap();
    assert_eq!((p.store(at + BLOCK, 1), p.load(at + BLOCK)), (Err(ACCERR), Ok(7)));
    p.protect(at + BLOCK, 512, RW).unwrap();
    p.store(at + BLOCK, 8).unwrap();
    p.advise(at + BLOCK, 600, Advice::DontNeed).unwrap();
    assert_eq!((pool(&world), p.load(at + BLOCK)), ([4, 3, 2, 0], Ok(0)));
    p.unmap(at, 512).unwrap();
    assert_eq!(pool(&world), [4, 3, 1, 0]);
    drop(p);
    assert_eq!(pool(&world), [4, 4, 0, 0]);
    world.end();
}

#[test]
fn a_page_keeps_its_reservation_where_it_moves() {
    let world = world(4);
    let p = world.process(0);
    let (at, to) = (map(&p, 3).unwrap(), 0x5000_0000);
    p.store(at, 5).unwrap();
    let limits = p.limits;
    let wish = |new_len, place| Remap {
        old: VirtAddr(at),
        old_len: 3 * BLOCK,
        new_len,
        place,
        source: RemapSource::Unmap,
    };
    let remap = |wish| p.run(|| p.space().remap(wish, &limits, &mut || Err(VmError::Interrupted)));
    assert_eq!(remap(wish(4 * BLOCK, RemapPlace::MayMove)), Err(VmError::Invalid));
    assert_eq!(remap(wish(3 * BLOCK, RemapPlace::Fixed(VirtAddr(to + PAGE)))), Err(VmError::Invalid));
    assert_eq!(remap(wish(2 * BLOCK, RemapPlace::Fixed(VirtAddr(to)))), Ok(VirtAddr(to)));
    assert_eq!((pool(&world), p.load(to), p.load(at)), ([4, 3, 1, 0], Ok(5), Err(MAPERR)));
    drop(p);
    assert_eq!(pool(&world), [4, 4, 0, 0]);
    world.end();
}

#[test]
fn a_child_copies_whole_pages_and_loses_them_to_the_owner_of_the_reservation() {
    let world = world(3);
    let p = world.process(0);
    let at = map(&p, 2).unwrap();
    p.store(at, 1).unwrap();
    p.store(at + BLOCK, 2).unwrap();
    let child = p.fork(1);
    assert_eq!((pool(&world), child.load(at), child.load(at + BLOCK)), ([3, 1, 0, 0], Ok(1), Ok(2)));
    child.store(at + PAGE, 9).unwrap();
    assert_eq!((pool(&world)[1], p.load(at + PAGE), child.load(at)), (0, Ok(0), Ok(1)));
    let before = p.frame(at);
    p.store(at, 3).unwrap();
    assert_eq!((p.frame(at), child.load(at)), (before, Ok(1)));
    // No page is free for a copy: the child gets SIGBUS, and the parent the page.
    assert_eq!(child.store(at + BLOCK, 4), Err(FaultError::Bus));
    let grandchild = child.fork(2);
    assert_eq!(grandchild.store(at + BLOCK, 4), Err(FaultError::Bus));
    let before = p.frame(at + BLOCK);
    p.store(at + BLOCK, 5).unwrap();
    assert_eq!(p.frame(at + BLOCK), before);
    drop(grandchild);
    assert_eq!(
        (child.load(at + BLOCK), child.load(at), p.load(at + BLOCK)),
        (Err(FaultError::Bus), Ok(1), Ok(5))
    );
    drop(p);
    assert_eq!(pool(&world), [3, 2, 0, 0]);
    drop(child);
    assert_eq!(pool(&world), [3, 3, 0, 0]);
    world.end();
}

#[test]
fn a_pinned_page_is_copied_at_fork_and_lingers_until_it_is_unpinned() {
    let world = world(3);
    let p = world.process(0);
    let at = map(&p, 1).unwrap();
    p.store(at, 1).unwrap();
    let pin = |at| p.run(|| p.space().pin::<LongTerm, ReadWrite>(VirtAddr(at), Rule::Asked).unwrap());
    let pinned = pin(at + 5 * PAGE);
    let child = p.fork(1);
    assert_eq!((pool(&world)[1], child.load(at)), (1, Ok(1)));
    let before = p.frame(at);
    p.store(at, 2).unwrap();
    assert_eq!((p.frame(at), child.load(at)), (before, Ok(1)));
    let second = child.fork(2);
    let rest = map(&p, 1).unwrap();
    p.store(rest, 1).unwrap();
    assert_eq!(p.run(|| p.space().fork()).err(), Some(VmError::NoHugePage));
    drop((child, second));
    p.unmap(rest, 512).unwrap();
    p.unmap(at, 512).unwrap();
    assert_eq!(pool(&world), [3, 2, 0, 0]);
    drop(pinned);
    assert_eq!(pool(&world), [3, 3, 0, 0]);
    drop(p);
    world.end();
}

#[test]
fn shared_pages_are_seen_pinned_and_freed_with_their_last_holder() {
    let world = world(3);
    let p = world.process(0);
    let at = map_shared(&p, 2);
    assert_eq!(pool(&world), [3, 3, 2, 0]);
    let child = p.fork(1);
    child.store(at, 4).unwrap();
    assert_eq!(
        (pool(&world), p.load(at), p.store(at, 5), child.load(at)),
        ([3, 2, 1, 0], Ok(4), Ok(()), Ok(5))
    );
    let pinned = p.run(|| p.space().pin::<LongTerm, ReadWrite>(VirtAddr(at), Rule::Asked).unwrap());
    p.advise(at, 512, Advice::DontNeed).unwrap();
    assert_eq!(p.load(at), Ok(5));
    drop((p, child));
    assert_eq!(pool(&world), [3, 2, 0, 0]);
    drop(pinned);
    assert_eq!(pool(&world), [3, 3, 0, 0]);
    world.end();
}

#[test]
fn surplus_pages_come_when_they_are_needed_and_go_when_they_are_free() {
    let world = world(2);
    world.commons.set_huge_overcommit(2);
    let p = world.process(0);
    assert_eq!(map(&p, 5), Err(VmError::NoHugePage));
    assert_eq!(pool(&world), [2, 2, 0, 0]);
    let at = map(&p, 3).unwrap();
    assert_eq!(pool(&world), [3, 3, 3, 1]);
    p.store(at, 1).unwrap();
    resize(&world, 0);
    assert_eq!(pool(&world), [3, 2, 2, 3]);
    resize(&world, 1);
    assert_eq!(pool(&world), [3, 2, 2, 2]);
    p.unmap(at, 3 * 512).unwrap();
    assert_eq!(pool(&world), [1, 1, 0, 0]);
    drop(p);
    world.end();
}
