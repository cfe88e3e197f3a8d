//! Files of huge pages: their reservations, their size, and what private mappings show of them.

use freehold_frame::{NodeSet, Owner};
use freehold_machine::model::Config;
use freehold_paging::model::ModelFrames;

use super::world::*;
use crate::*;

const BLOCK: u64 = 512 * PAGE;

fn world(pages: u64) -> World {
    let world = World::with(Config { cpus: 4, nodes: 2, frames: 24 * 512, seed: 9 });
    world.commons.resize_huge_pool(pages, NodeSet::ALL, &mut || Ok(())).unwrap();
    world
}

/// Total, free and reserved pages.
fn pool(world: &World) -> [u64; 3] {
    let HugePoolFigures { total, free, reserved, .. } = world.commons.huge_pool(None);
    assert_eq!(world.frames.owned(Owner::Anon) as u64, total * 512);
    [total, free, reserved]
}

fn file(world: &World, pages: u64) -> File {
    let cache = PageCache::huge(&world.commons, None);
    cache.resize_huge(pages * BLOCK);
    std::sync::Arc::new(TestFile(cache))
}

fn view(file: &File, first: u64) -> FileView<ModelFrames> {
    FileView { file: file.clone(), offset: first * BLOCK }
}

fn map_shared(p: &Process, file: &File, first: u64, pages: u64) -> Result<u64, VmError> {
    let backing = Backing::SharedFile(view(file, first), SharedWrite::Allowed);
    p.map(AreaPlace::Anywhere, pages * 512, RW, backing)
}

fn map_private(p: &Process, file: &File, pages: u64) -> Result<u64, VmError> {
    p.map(AreaPlace::Anywhere, pages * 512, RW, Backing::PrivateFile(view(file, 0)))
}

fn bytes(file: &File, offset: u64, len: usize) -> std::vec::Vec<u8> {
    let mut out = std::vec::Vec::new();
    let read = file.cache().read_huge(offset, len, |from| {
        out.extend_from_slice(from);
        from.len()
    });
    assert_eq!(read, out.len());
    out
}

#[test]
fn reservations_of_shared_mappings_belong_to_the_file() {
    let world = world(4);
    let p = world.process(0);
    let shown = file(&world, 0);
    assert_eq!(map_shared(&p, &shown, 0, 5), Err(VmError::NoHugePage));
    assert_eq!((pool(&world), shown.cache().size()), ([4, 4, 0], 0));
    let at = map_shared(&p, &shown, 1, 2).unwrap();
    assert_eq!((pool(&world), shown.cache().size()), ([4, 4, 2], 3 * BLOCK));
    let all = map_shared(&p, &shown, 0, 3).unwrap();
    assert_eq!(pool(&world), [4, 4, 3]);
    p.store(at, 7).unwrap();
    assert_eq!((p.load(all + BLOCK), pool(&world)), (Ok(7), [4, 3, 2]));
    p.unmap(at, 2 * 512).unwrap();
    p.unmap(all, 3 * 512).unwrap();
    assert_eq!((pool(&world), bytes(&shown, BLOCK, 2)), ([4, 3, 2], std::vec![7, 0]));
    // A hole gives its page and the page's account back, and leaves reservations.
    shown.cache().punch_huge(0..3 * BLOCK);
    assert_eq!((pool(&world), bytes(&shown, BLOCK, 2)), ([4, 4, 2], std::vec![0, 0]));
    shown.cache().resize_huge(BLOCK);
    assert_eq!(pool(&world), [4, 4, 1]);
    shown.cache().fill_huge(0).unwrap();
    assert_eq!(pool(&world), [4, 3, 0]);
    drop(shown);
    assert_eq!(pool(&world), [4, 4, 0]);
    drop(p);
    world.end();
}

#[test]
fn a_private_mapping_shows_the_files_pages_until_it_stores() {
    let world = world(5);
    let p = world.process(0);
    let shown = file(&world, 3);
    let shared = map_shared(&p, &shown, 0, 1).unwrap();
    p.store(shared, 3).unwrap();
    let at = map_private(&p, &shown, 3).unwrap();
    assert_eq!(pool(&world), [5, 4, 3]);
    assert_eq!((p.load(at), pool(&world)), (Ok(3), [5, 4, 3]));
    p.store(shared + 1, 4).unwrap();
    assert_eq!(p.load(at + 1), Ok(4));
    // A child has no reservation, and the file's page is not the area's own.
    let child = p.fork(1);
    p.store(at, 5).unwrap();
    assert_eq!((pool(&world), p.load(shared), child.load(at)), ([5, 3, 2], Ok(3), Ok(3)));
    assert_eq!(child.usage().huge_pages, 512);
    assert_eq!(child.store(at, 6), Ok(()));
    assert_eq!((pool(&world), p.load(at), p.load(shared)), ([5, 2, 2], Ok(5), Ok(3)));
    drop(child);
    // A hole of the file is a page of the mapping.
    p.store(at + BLOCK, 8).unwrap();
    assert_eq!((pool(&world), bytes(&shown, BLOCK, 1)), ([5, 2, 1], std::vec![0]));
    // Its copies stay where the file gets a hole, and go where it is cut.
    shown.cache().punch_huge(0..3 * BLOCK);
    assert_eq!((p.load(at), p.load(shared), p.load(at + BLOCK)), (Ok(5), Ok(0), Ok(8)));
    shown.cache().resize_huge(0);
    assert_eq!((p.load(at), p.load(shared)), (Err(FaultError::Bus), Err(FaultError::Bus)));
    assert_eq!(pool(&world), [5, 5, 3]);
    p.unmap(at, 3 * 512).unwrap();
    assert_eq!(pool(&world), [5, 5, 0]);
    drop(p);
    drop(shown);
    world.end();
}

#[test]
fn a_file_that_is_cut_takes_its_pages_from_all_spaces() {
    let world = world(4);
    let p = world.process(0);
    let shown = file(&world, 3);
    let at = map_private(&p, &shown, 3).unwrap();
    let shared = map_shared(&p, &shown, 0, 1).unwrap();
    p.store(shared, 1).unwrap();
    assert_eq!((p.load(at), p.load(at + 3 * BLOCK - 1)), (Ok(1), Ok(0)));
    let child = p.fork(1);
    shown.cache().punch_huge(0..BLOCK);
    assert_eq!((child.load(at), pool(&world)), (Ok(0), [4, 2, 2]));
    shown.cache().resize_huge(BLOCK);
    assert_eq!(child.load(at + 2 * BLOCK), Err(FaultError::Bus));
    assert_eq!(p.load(at + 2 * BLOCK), Err(FaultError::Bus));
    drop(child);
    // Zeroes in a part of a page.
    p.store(shared + 2 * PAGE - 1, 2).unwrap();
    p.store(shared + 2 * PAGE, 3).unwrap();
    shown.cache().punch_huge(5..2 * PAGE);
    assert_eq!(bytes(&shown, 2 * PAGE - 1, 2), [0, 3]);
    // Mappings that may store are refused from then on.
    assert_eq!(shown.cache().deny_writers(), Err(VmError::Busy));
    p.unmap(shared, 512).unwrap();
    shown.cache().deny_writers().unwrap();
    assert_eq!(map_shared(&p, &shown, 0, 1), Err(VmError::Permission));
    drop((p, shown));
    assert_eq!(pool(&world), [4, 4, 0]);
    world.end();
}

#[test]
fn a_budget_limits_the_files_of_a_mount_and_keeps_pages_for_them() {
    let world = world(6);
    assert_eq!(HugeBudget::new(&world.commons, 9, 7).err(), Some(VmError::NoHugePage));
    let budget = HugeBudget::new(&world.commons, 4, 2).unwrap();
    assert_eq!(pool(&world), [6, 6, 2]);
    let cache = PageCache::huge(&world.commons, Some(budget.clone()));
    let shown: File = std::sync::Arc::new(TestFile(cache));
    let p = world.process(0);
    assert_eq!(map_shared(&p, &shown, 0, 5), Err(VmError::NoHugePage));
    assert_eq!((pool(&world), budget.used()), ([6, 6, 2], 0));
    let at = map_shared(&p, &shown, 0, 3).unwrap();
    assert_eq!((pool(&world), budget.used()), ([6, 6, 3], 3));
    // Beyond the limit there is no page, whatever the pool has.
    shown.cache().fill_huge(7).unwrap();
    assert_eq!((pool(&world), budget.used()), ([6, 5, 3], 4));
    assert_eq!(shown.cache().fill_huge(8), Err(VmError::NoSpace));
    assert_eq!(map_private(&p, &shown, 1), Err(VmError::NoHugePage));
    p.store(at, 1).unwrap();
    assert_eq!((pool(&world), budget.used()), ([6, 4, 2], 4));
    // The last pages stay the mount's, reserved or not.
    p.unmap(at, 3 * 512).unwrap();
    shown.cache().resize_huge(BLOCK);
    assert_eq!((pool(&world), budget.used()), ([6, 5, 2], 1));
    shown.cache().punch_huge(0..BLOCK);
    assert_eq!((pool(&world), budget.used()), ([6, 6, 2], 0));
    shown.cache().fill_huge(0).unwrap();
    assert_eq!((pool(&world), budget.used()), ([6, 5, 1], 1));
    let own = map_private(&p, &shown, 2).unwrap();
    p.store(own, 2).unwrap();
    assert_eq!((pool(&world), budget.used()), ([6, 4, 1], 3));
    p.unmap(own, 512).unwrap();
    assert_eq!((pool(&world), budget.used()), ([6, 5, 1], 2));
    drop((p, shown));
    assert_eq!((pool(&world), budget.used()), ([6, 6, 2], 0));
    drop(budget);
    assert_eq!(pool(&world), [6, 6, 0]);
    world.end();
}

#[test]
fn a_file_that_is_left_is_emptied() {
    let world = world(2);
    let shown = file(&world, 2);
    shown.cache().fill_huge(1).unwrap();
    shown.cache().fill_huge(0).unwrap();
    assert_eq!(shown.cache().fill_huge(2), Err(VmError::NoSpace));
    assert_eq!((shown.cache().huge_count(), pool(&world)), (2, [2, 0, 0]));
    assert_eq!(shown.cache().check_huge_unpinned(0), Ok(Some(1)));
    assert_eq!(shown.cache().check_huge_unpinned(2), Ok(None));
    shown.cache().resize_huge(BLOCK);
    let budget = HugeBudget::new(&world.commons, 1, 1).unwrap();
    assert_eq!(pool(&world), [2, 1, 1]);
    world.commons.empty_huge_files();
    assert_eq!((shown.cache().huge_count(), pool(&world)), (0, [2, 2, 0]));
    drop((shown, budget));
    assert_eq!(pool(&world), [2, 2, 0]);
    world.end();
}
