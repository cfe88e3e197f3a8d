//! The order in which pages of a store are evicted, and that no bytes are lost.

use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

use freehold_frame::NodeSet;
use freehold_machine::{NodeId, VirtAddr};

use super::stored::disk;
use super::world::*;
use crate::*;

fn wish(want: u64) -> Eviction {
    Eviction { want, most: u64::MAX, frames: FrameChoice::ALL, laundry: Laundry::Store, age: Age::Respect }
}

fn resident(cache: &Cache, pages: u64) -> Vec<u64> {
    (0..pages).filter(|&page| cache.is_resident(page)).collect()
}

#[test]
fn a_file_that_is_read_once_drives_out_nothing_that_is_read_again_and_again() {
    let world = World::new();
    let (disk, cache) = disk(&world, 600);
    let often = [3, 70, 200];
    for page in often.iter().chain(&often) {
        read(&cache, page * PAGE, 1);
    }
    for page in 256..600 {
        read(&cache, page * PAGE, 100);
        read(&cache, page * PAGE + 100, 100);
    }
    let before = cache.pages();
    assert_eq!(cache.evict(Eviction { most: before, ..wish(u64::MAX) }).freed, before - 3);
    assert_eq!(resident(&cache, 600), often);
    // A page that is used again after the hand has passed is spared again. An unused page is
    // evicted.
    read(&cache, 70 * PAGE, 1);
    assert_eq!(
        cache.evict(Eviction { most: 3, ..wish(u64::MAX) }),
        Evicted { scanned: 3, freed: 2, written: 0 }
    );
    assert_eq!(resident(&cache, 600), [70]);
    drop((cache, disk));
    world.end();
}

#[test]
fn pages_that_are_read_again_after_they_were_evicted_are_counted() {
    let world = World::new();
    let (disk, cache) = disk(&world, 600);
    let read_all = || (0..600).for_each(|page| _ = read(&cache, page * PAGE, 1));
    read_all();
    assert_eq!(cache.evict(wish(u64::MAX)).freed, 600);
    let before = refaults();
    read_all();
    // Marks may have taken the places of a few.
    assert!(refaults() - before > 500, "{}", refaults() - before);
    drop((cache, disk));
    world.end();
}

#[test]
fn mapped_pages_stay_while_they_are_used_and_are_stored_before_they_go() {
    let world = World::new();
    let (disk, cache) = disk(&world, 8);
    let (p, q) = (world.process(0), world.process(1));
    let at = p.map(AreaPlace::Anywhere, 8, RW, shared(&cache)).unwrap();
    let also = q.map(AreaPlace::Anywhere, 8, RW, shared(&cache)).unwrap();
    p.store(at + PAGE, 41).unwrap();
    p.load(at + 2 * PAGE).unwrap();
    q.load(also + 3 * PAGE).unwrap();
    // All pages are in one chunk: a scan of it is a lap.
    let lap = || cache.evict(Eviction { most: 1, ..wish(u64::MAX) }).freed;
    lap();
    assert_eq!(resident(&cache, 4), [1, 2, 3], "all were used since they came");
    p.load(at + 2 * PAGE).unwrap();
    disk.log();
    assert!(lap() >= 2);
    assert_eq!(resident(&cache, 8), [2]);
    assert_eq!((disk.log(), disk.pages.lock().unwrap()[&1][0]), (std::vec![('w', 1)], 41));
    assert_eq!((p.load(at + PAGE), q.load(also + PAGE)), (Ok(41), Ok(41)), "read anew");
    // Neither a locked nor a pinned page is evicted, however long it is unused.
    p.lock(at + PAGE, 1, &p.limits).unwrap();
    let pin = q.space().pin::<LongTerm, ReadOnly>(VirtAddr(also + 5 * PAGE), Rule::Asked).unwrap();
    (0..4).for_each(|_| _ = lap());
    assert_eq!(resident(&cache, 8), [1, 5]);
    drop(pin);
    p.space().unlock(VirtAddr(at), 8 * PAGE).unwrap();
    (0..2).for_each(|_| _ = lap());
    assert_eq!((resident(&cache, 8), p.usage().rss_file, q.usage().rss_file), (Vec::new(), 0, 0));
    drop((p, q, cache, disk));
    world.end();
}

#[test]
fn pages_in_use_and_those_of_a_busy_space_go_where_age_is_ignored() {
    let world = World::new();
    let (disk, cache) = disk(&world, 8);
    let p = world.process(0);
    let at = p.map(AreaPlace::Anywhere, 8, RW, shared(&cache)).unwrap();
    let lap = |age| cache.evict(Eviction { most: 1, age, ..wish(u64::MAX) }).freed;
    let use_all = || (0..8).for_each(|page| p.store(at + page * PAGE, page as u8).unwrap());
    use_all();
    assert_eq!((lap(Age::Respect), lap(Age::Ignore)), (0, 8), "all were used since they came");
    use_all();
    lap(Age::Respect);
    // Another thread has the space, and goes on only after this thread has begun to wait.
    let (space, began) = (p.locked.clone(), Arc::new(std::sync::Barrier::new(2)));
    let holder = std::thread::spawn({
        let began = began.clone();
        move || {
            let held = space.lock();
            began.wait();
            began.wait();
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(held);
        }
    });
    began.wait();
    let tried = lap(Age::Respect);
    began.wait();
    assert_eq!((tried, lap(Age::Ignore)), (0, 8), "busy for who tries, and waited for by who must");
    holder.join().unwrap();
    drop((p, cache, disk));
    world.end();
}

#[test]
fn what_is_not_wished_for_stays() {
    let world = World::new();
    let (disk, cache) = disk(&world, 64);
    for page in (0..64).rev() {
        read(&cache, page * PAGE, 1);
    }
    write(&cache, 5 * PAGE, b"x");
    disk.log();
    let clean = Eviction { laundry: Laundry::Leave, ..wish(u64::MAX) };
    assert_eq!(
        cache
            .evict(Eviction { frames: FrameChoice::on(NodeSet::single(NodeId(9))), most: 64, ..clean })
            .freed,
        0
    );
    assert_eq!(cache.evict(Eviction { most: 64, ..clean }).freed, 63);
    assert_eq!((disk.log(), resident(&cache, 64)), (std::vec![], std::vec![5]));
    assert_eq!(cache.evict(wish(1)), Evicted { scanned: 1, freed: 1, written: 1 });
    assert_eq!(read(&cache, 5 * PAGE, 2), [b'x', 5]);
    let memory = Cache::new(world.frames);
    write(&memory, 0, &[1; 4096]);
    assert_eq!(memory.evict(wish(1)), Evicted::default(), "without a store the page is all there is");
    drop((memory, cache, disk));
    world.end();
}

#[test]
fn a_read_that_a_clean_page_left_behind_is_good_and_one_that_a_change_overtook_is_not() {
    let world = World::new();
    let (disk, cache) = disk(&world, 64);
    read(&cache, 40 * PAGE, 1);
    let other = cache.clone();
    *disk.meanwhile.lock().unwrap() = Some(Box::new(move || assert_eq!(other.evict(wish(1)).freed, 1)));
    disk.log();
    read(&cache, 3 * PAGE, 1);
    assert_eq!(disk.log(), [('r', 3)], "page 40 never differed from the store");
    // The store changes behind the cache's back, as O_DIRECT does it, after the bytes were read.
    let (other, store) = (cache.clone(), disk.clone());
    *disk.meanwhile.lock().unwrap() = Some(Box::new(move || {
        store.pages.lock().unwrap().insert(9, std::vec![77; 4096]);
        assert_eq!(other.forget(9 * PAGE..10 * PAGE), Ok(true));
    }));
    assert_eq!(read(&cache, 9 * PAGE, 1), [77]);
    assert_eq!(disk.log(), [('r', 9), ('r', 9)]);
    drop((cache, disk));
    world.end();
}
