//! Page caches of a disk: reading ahead, writing back, errors, and changes of pages while the
//! device has them.

use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::vec;
use std::vec::Vec;

use freehold_frame::{Frame, PageCache as CacheKind};
use freehold_machine::{PhysicalBytes, VirtAddr};
use freehold_paging::model::ModelFrames;

use super::world::*;
use crate::*;

/// A disk of bytes that counts and fails on demand.
pub struct Disk {
    frames: ModelFrames,
    pub pages: Mutex<BTreeMap<u64, Vec<u8>>>,
    log: Mutex<Vec<(char, u64)>>,
    broken: Mutex<Option<u64>>,
    /// No request finds memory.
    starved: Mutex<bool>,
    /// Write-backs under way.
    passes: AtomicUsize,
    /// Pages of them that the device has: no two writes of one page at once, since it may end them
    /// in any order.
    with_device: Mutex<BTreeSet<u64>>,
    /// Number of waits for them.
    waits: AtomicUsize,
    /// Action between a read's bytes and its end.
    pub meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Action between the moment when the device sees a write's bytes and that when the disk has
    /// them.
    under_way: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Disk {
    fn new(frames: ModelFrames) -> Arc<Self> {
        let (pages, log) = Default::default();
        Arc::new(Self {
            frames,
            pages,
            log,
            broken: Mutex::default(),
            starved: Mutex::default(),
            passes: AtomicUsize::new(0),
            with_device: Mutex::default(),
            waits: AtomicUsize::new(0),
            meanwhile: Mutex::default(),
            under_way: Mutex::default(),
        })
    }
    fn check(&self, what: char, index: u64) -> Result<(), VmError> {
        self.frames.model().assert_may_sleep();
        self.log.lock().unwrap().push((what, index));
        if *self.starved.lock().unwrap() {
            return Err(VmError::NoMemory);
        }
        if *self.broken.lock().unwrap() == Some(index) { Err(VmError::Io) } else { Ok(()) }
    }
    pub fn log(&self) -> Vec<(char, u64)> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

impl BackingStore<ModelFrames> for Disk {
    fn fill(&self, first: u64, frames: &[Frame<CacheKind, ModelFrames>]) -> Result<(), VmError> {
        for (index, frame) in (first..).zip(frames) {
            self.check('r', index)?;
            let page = self.pages.lock().unwrap().get(&index).cloned().unwrap_or(vec![index as u8; 4096]);
            self.frames.model().with_bytes(frame.pfn(), |bytes| bytes.copy_from_slice(&page));
        }
        let meanwhile = self.meanwhile.lock().unwrap().take();
        meanwhile.into_iter().for_each(|happens| happens());
        Ok(())
    }
    fn write_pass(&self, pass: &mut dyn FnMut()) {
        self.passes.fetch_add(1, Ordering::Relaxed);
        pass();
        self.passes.fetch_sub(1, Ordering::Relaxed);
    }
    fn write_back(&self, first: u64, frames: &[Frame<CacheKind, ModelFrames>]) -> Result<(), VmError> {
        assert!(self.passes.load(Ordering::Relaxed) > 0, "pages are stored in a pass that is counted");
        let bytes = |frame: &Frame<_, _>| self.frames.model().with_bytes(frame.pfn(), |bytes| bytes.to_vec());
        let pages: BTreeMap<_, _> = (first..).zip(frames.iter().map(bytes)).collect();
        for &index in pages.keys() {
            assert!(self.with_device.lock().unwrap().insert(index), "page {index} is written twice at once");
        }
        let meanwhile = self.under_way.lock().unwrap().take();
        meanwhile.into_iter().for_each(|happens| happens());
        self.with_device.lock().unwrap().retain(|index| !pages.contains_key(index));
        pages.into_iter().try_for_each(|(index, page)| {
            self.check('w', index)?;
            self.pages.lock().unwrap().insert(index, page);
            Ok(())
        })
    }
    fn wait_for_passes(&self) -> Result<(), VmError> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        while self.passes.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        Ok(())
    }
}

pub fn disk(world: &World, pages: u64) -> (Arc<Disk>, Arc<Cache>) {
    let disk = Disk::new(world.frames);
    let cache = Cache::with_store(world.frames, disk.clone());
    cache.set_size_grow(pages * PAGE);
    (disk, cache)
}

#[test]
fn what_changed_is_found_among_many_pages_in_order_and_within_the_range() {
    let world = World::new();
    let (disk, cache) = disk(&world, 400);
    (0..400).for_each(|page| drop(read(&cache, page * PAGE, 1)));
    for page in [300, 0, 63, 64, 190] {
        write(&cache, page * PAGE, &[1; 10]);
    }
    cache.validate();
    disk.log();
    cache.write_back(64 * PAGE..300 * PAGE).unwrap();
    assert_eq!(disk.log(), [('w', 64), ('w', 190)]);
    cache.validate();
    cache.write_back(0..u64::MAX).unwrap();
    assert_eq!((disk.log(), cache.dirty_pages()), (vec![('w', 0), ('w', 63), ('w', 300)], 0));
    cache.validate();
    assert_eq!(cache.shrink(u64::MAX), 400);
    drop((cache, disk));
    world.end();
}

#[test]
fn a_store_is_read_once_written_when_asked_and_not_for_whole_pages() {
    let world = World::new();
    let (disk, cache) = disk(&world, 8);
    assert_eq!(read(&cache, 3 * PAGE, 1), [3]);
    assert_eq!(read(&cache, 3 * PAGE + 9, 1), [3]);
    assert_eq!(disk.log(), [('r', 3)]);
    write(&cache, 4 * PAGE, &[9; 4096]);
    assert_eq!(disk.log(), [], "a page that is overwritten whole is not read");
    write(&cache, 5 * PAGE + 1, &[9]);
    assert_eq!((disk.log(), cache.dirty_pages()), (vec![('r', 5)], 2));
    assert_eq!(
        cache.write_at(6 * PAGE, 4096, |to| {
            to[..10].fill(1);
            10
        }),
        Ok(10)
    );
    assert_eq!(read(&cache, 6 * PAGE + 9, 2), [1, 6], "a visitor that fell short leaves the store's bytes");
    disk.log();
    cache.write_back(0..u64::MAX).unwrap();
    assert_eq!((disk.log(), cache.dirty_pages()), (vec![('w', 4), ('w', 5), ('w', 6)], 0));
    assert_eq!(cache.shrink(2), 2);
    assert_eq!(cache.shrink(100), 3, "page 7 was read ahead");
    assert_eq!((cache.pages(), read(&cache, 5 * PAGE, 3)), (0, vec![5, 9, 5]));
    drop((cache, disk));
    world.end();
}

#[test]
fn sequential_readers_find_more_and_more_read_ahead_and_others_nothing() {
    let world = World::new();
    let (disk, cache) = disk(&world, 20);
    let mut runs = Vec::new();
    for page in 0..20 {
        assert_eq!(read(&cache, page * PAGE, 1), [page as u8]);
        runs.extend(Some(disk.log().len()).filter(|&read| read > 0));
    }
    assert_eq!(runs, [1, 2, 4, 8, 5], "the end of the file ends a run");
    assert_eq!(cache.shrink(100), 20);
    for page in [9, 3, 15, 7] {
        read(&cache, page * PAGE, 1);
        assert_eq!(disk.log(), [('r', page)]);
    }
    read(&cache, 8 * PAGE, 1);
    assert_eq!(disk.log(), [('r', 8)], "a run ends where a page is there already");
    drop((cache, disk));
    world.end();
}

#[test]
fn a_fault_reads_what_lies_around_and_not_what_is_there() {
    let world = World::new();
    let (disk, cache) = disk(&world, 80);
    let p = world.process(0);
    let at = p.map(AreaPlace::Anywhere, 80, RW, shared(&cache)).unwrap();
    read(&cache, 40 * PAGE, 1);
    read(&cache, 50 * PAGE, 1);
    disk.log();
    let reads = |page: u64| {
        assert_eq!(p.load(at + page * PAGE), Ok(page as u8));
        disk.log().iter().map(|&(_, page)| page).collect::<Vec<_>>()
    };
    assert_eq!(reads(44), (41..50).collect::<Vec<_>>(), "between pages that are there");
    assert_eq!(reads(45), []);
    assert_eq!(reads(51), (51..64).collect::<Vec<_>>(), "to the end of 128 KiB");
    assert_eq!(reads(79), (64..80).collect::<Vec<_>>(), "to the end of the file");
    assert_eq!(p.usage().major_faults, 3);
    drop((p, cache, disk));
    world.end();
}

#[test]
fn a_failing_store_damages_only_the_page_that_is_lost() {
    let world = World::new();
    let (disk, cache) = disk(&world, 4);
    *disk.broken.lock().unwrap() = Some(1);
    assert_eq!(cache.read_at(PAGE, 1, |_| 1), Err(VmError::Io));
    assert_eq!(cache.read_at(0, 3 * 4096, |from| from.len()), Ok(4096));
    let p = world.process(0);
    let at = p.map(AreaPlace::Anywhere, 4, RW, shared(&cache)).unwrap();
    assert_eq!((p.load(at + PAGE), p.load(at + 2 * PAGE)), (Err(FaultError::Bus), Ok(2)));
    assert_eq!(p.usage().major_faults, 1);
    *disk.broken.lock().unwrap() = Some(2);
    p.store(at + 2 * PAGE, 7).unwrap();
    p.store(at + 3 * PAGE, 8).unwrap();
    assert_eq!(cache.write_back(0..4 * PAGE), Err(VmError::Io));
    *disk.broken.lock().unwrap() = None;
    assert_eq!(disk.pages.lock().unwrap()[&3][0], 8, "the others were written");
    cache.write_back(0..4 * PAGE).unwrap();
    assert_eq!(disk.pages.lock().unwrap()[&2][0], 7, "what a mapping may change is tried again");
    drop((p, cache, disk));
    world.end();
}

#[test]
fn a_page_that_its_store_refuses_is_clean_and_each_open_file_is_told_once() {
    let world = World::new();
    let (disk, cache) = disk(&world, 4);
    let [first, second] = [cache.errors_told(), cache.errors_told()];
    *disk.broken.lock().unwrap() = Some(1);
    for page in 0..3 {
        write(&cache, page * PAGE, &[9; 4096]);
    }
    assert_eq!(cache.write_back(0..u64::MAX), Err(VmError::Io));
    assert_eq!(cache.dirty_pages(), 0, "nobody is held up for a page that cannot be stored");
    assert_eq!(
        disk.pages.lock().unwrap().keys().copied().collect::<Vec<_>>(),
        [0, 2],
        "the others are stored"
    );
    assert_eq!((cache.write_back(0..u64::MAX), read(&cache, PAGE, 1)), (Ok(()), vec![9]));
    assert_eq!([cache.tell_errors(&first), cache.tell_errors(&first)], [Err(VmError::Io), Ok(())]);
    // A file that was opened after the error was reported to another gets no report.
    let late = cache.errors_told();
    assert_eq!(cache.tell_errors(&late), Ok(()));
    assert_eq!([cache.tell_errors(&second), cache.tell_errors(&second)], [Err(VmError::Io), Ok(())]);
    // Two more errors, which were reported to no file before the next is opened: all files get one
    // report for both.
    for _ in 0..2 {
        write(&cache, PAGE, &[8; 4096]);
        assert_eq!(cache.launder(), Err(VmError::Io));
    }
    let next = cache.errors_told();
    for told in [&first, &second, &late, &next] {
        assert_eq!([cache.tell_errors(told), cache.tell_errors(told)], [Err(VmError::Io), Ok(())]);
    }
    // No memory for the request is no loss.
    *disk.broken.lock().unwrap() = None;
    *disk.starved.lock().unwrap() = true;
    write(&cache, PAGE, &[7; 4096]);
    assert_eq!((cache.write_back(0..u64::MAX), cache.dirty_pages()), (Err(VmError::NoMemory), 1));
    *disk.starved.lock().unwrap() = false;
    assert_eq!(
        (cache.write_back(0..u64::MAX), cache.dirty_pages(), cache.tell_errors(&next)),
        (Ok(()), 0, Ok(()))
    );
    assert_eq!(disk.pages.lock().unwrap()[&1][0], 7);
    drop((cache, disk));
    world.end();
}

/// Another store of page 1 of a cache while the device has its older bytes.
type Second = fn(&Cache);

#[test]
fn a_page_that_changes_while_it_is_being_stored_is_not_overtaken_by_its_older_bytes() {
    let by_eviction: Second = |cache| {
        let all = Eviction {
            want: 9,
            most: 99,
            frames: FrameChoice::ALL,
            laundry: Laundry::Store,
            age: Age::Respect,
        };
        assert_eq!(cache.evict(all).freed, 0, "a page that is being stored stays");
    };
    let by_direct_io: Second = |cache| assert_eq!(cache.forget(PAGE..2 * PAGE), Ok(false));
    let seconds: [Second; 4] = [
        |cache| cache.write_back(0..u64::MAX).unwrap(),
        |cache| cache.launder().unwrap(),
        by_eviction,
        by_direct_io,
    ];
    for second in seconds {
        let world = World::new();
        let (disk, cache) = disk(&world, 4);
        write(&cache, PAGE, &[1; 4096]);
        let again = cache.clone();
        *disk.under_way.lock().unwrap() = Some(Box::new(move || {
            write(&again, PAGE, &[2; 4096]);
            second(&again);
            again.validate();
        }));
        cache.write_back(0..u64::MAX).unwrap();
        assert_eq!((disk.pages.lock().unwrap()[&1][0], cache.dirty_pages()), (1, 1), "it is stored later");
        cache.validate();
        cache.sync(0..u64::MAX).unwrap();
        assert_eq!((disk.pages.lock().unwrap()[&1][0], cache.dirty_pages()), (2, 0));
        assert_eq!((cache.shrink(9), read(&cache, PAGE, 1)), (1, vec![2]));
        drop((cache, disk));
        world.end();
    }
}

#[test]
fn a_sync_is_over_when_what_others_store_is_stored_and_its_own_bytes_after_that() {
    // Whether the page changes while another task stores it, and whether that fails for want of
    // memory.
    for (changes, starves) in [(false, false), (true, false), (false, true), (true, true)] {
        let world = World::new();
        let (disk, cache) = disk(&world, 4);
        write(&cache, PAGE, &[1; 4096]);
        let (begun, begins) = std::sync::mpsc::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel();
        *disk.under_way.lock().unwrap() = Some(Box::new(move || {
            begun.send(()).unwrap();
            goes_on.recv().unwrap();
        }));
        let other = std::thread::spawn({
            let cache = cache.clone();
            move || cache.write_back(0..u64::MAX)
        });
        begins.recv().unwrap();
        if changes {
            write(&cache, PAGE, &[2; 4096]);
        }
        *disk.starved.lock().unwrap() = starves;
        let sync = std::thread::spawn({
            let (cache, disk) = (cache.clone(), disk.clone());
            move || {
                let outcome = cache.sync(0..u64::MAX);
                (outcome, disk.pages.lock().unwrap().get(&1).map(|page| page[0]))
            }
        });
        while disk.waits.load(Ordering::Relaxed) == 0 && !sync.is_finished() {
            std::thread::yield_now();
        }
        go_on.send(()).unwrap();
        let failed = if starves { Err(VmError::NoMemory) } else { Ok(()) };
        assert_eq!(other.join().unwrap(), failed);
        let stored = (!starves).then_some(if changes { 2 } else { 1 });
        assert_eq!(sync.join().unwrap(), (failed, stored), "changes {changes}, starves {starves}");
        cache.validate();
        drop((cache, disk));
        world.end();
    }
}

#[test]
fn pages_that_are_mapped_for_writing_are_written_back_each_time() {
    let world = World::new();
    let (disk, cache) = disk(&world, 2);
    let p = world.process(0);
    let at = p.map(AreaPlace::Anywhere, 2, RW, shared(&cache)).unwrap();
    p.load(at).unwrap();
    assert_eq!(cache.dirty_pages(), 0, "a read makes nothing dirty");
    for value in [3, 4] {
        p.store(at, value).unwrap();
        cache.write_back(0..u64::MAX).unwrap();
        assert_eq!(disk.pages.lock().unwrap()[&0][0], value);
    }
    assert_eq!(cache.shrink(10), 0, "what is mapped stays");
    disk.log();
    for value in [5, 6] {
        p.store(at, value).unwrap();
        assert_eq!((cache.launder(), cache.dirty_pages()), (Ok(()), 0));
        assert_eq!((disk.log(), p.load(at)), (vec![('w', 0)], Ok(value)));
        cache.launder().unwrap();
        assert_eq!(disk.log(), [], "nothing was stored to it since");
    }
    p.store(at, 7).unwrap();
    p.unmap(at, 2).unwrap();
    cache.write_back(0..u64::MAX).unwrap();
    assert_eq!((cache.dirty_pages(), cache.shrink(10), cache.pages()), (0, 2, 0), "the page beside it, too");
    drop((p, cache, disk));
    world.end();
}

#[test]
fn what_is_forgotten_is_stored_unmapped_and_read_anew_unless_it_is_pinned() {
    let world = World::new();
    let (disk, cache) = disk(&world, 4);
    let p = world.process(0);
    let at = p.map(AreaPlace::Anywhere, 3, RW, shared(&cache)).unwrap();
    for page in 0..3 {
        p.store(at + page * PAGE, 50 + page as u8).unwrap();
    }
    assert_eq!(cache.forget(0..2 * 4096), Ok(true));
    assert_eq!((cache.is_resident(0), cache.is_resident(1), cache.is_resident(2)), (false, false, true));
    assert_eq!(disk.pages.lock().unwrap()[&1][0], 51);
    // A mapping and a reader see the bytes that the store holds by now.
    disk.pages.lock().unwrap().get_mut(&1).unwrap()[0] = 9;
    assert_eq!((p.load(at + PAGE), read(&cache, PAGE, 1)), (Ok(9), vec![9]));
    let pin = p.space().pin::<Transient, ReadWrite>(VirtAddr(at + 2 * PAGE), Rule::Asked).unwrap();
    assert_eq!(cache.forget(2 * PAGE..2 * PAGE + 1), Ok(false));
    drop(pin);
    assert_eq!((cache.forget(2 * PAGE..2 * PAGE + 1), cache.is_resident(2)), (Ok(true), false));
    drop((p, cache, disk));
    world.end();
}

/// Writes `value` to the disk's page without the cache's knowledge, as direct I/O does.
fn write_past(disk: &Disk, page: u64, value: u8) {
    disk.pages.lock().unwrap().insert(page, vec![value; 4096]);
}

#[test]
fn what_is_forgotten_is_read_anew_though_readers_mappings_and_pins_still_have_its_old_frame() {
    let world = World::new();
    let (disk, cache) = disk(&world, 8);
    let p = world.process(0);
    let at = p.map(AreaPlace::Anywhere, 3, RW, shared(&cache)).unwrap();
    (0..3).for_each(|page| assert_eq!(p.load(at + page * PAGE), Ok(page as u8)));
    let held = cache.hold(1).unwrap();
    let pin = p.space().pin::<Transient, ReadOnly>(VirtAddr(at + 2 * PAGE), Rule::Asked).unwrap();
    write(&cache, 7 * PAGE, &[7; 4096]);
    let (maps, writes) = (p.thread(0), disk.clone());
    // This happens after the first visit of the mappers, before the search for pages to drop.
    *disk.under_way.lock().unwrap() = Some(Box::new(move || {
        assert_eq!(maps.load(at), Ok(0), "mapped again");
        (0..3).for_each(|page| write_past(&writes, page, 90 + page as u8));
    }));
    assert_eq!(cache.forget(0..u64::MAX), Ok(true));
    assert_eq!(cache.pages(), 0);
    for page in 0..3 {
        assert_eq!(read(&cache, page * PAGE, 1), [90 + page as u8], "page {page}");
        assert_eq!(p.load(at + page * PAGE), Ok(90 + page as u8), "page {page}");
    }
    assert_eq!(held.read_bytes(|bytes| bytes[0]), 1, "its holder keeps the old one");
    assert_eq!(world.model().with_bytes(pin.pfn(), |bytes| bytes[0]), 2);
    cache.validate();
    drop((held, pin, p, cache, disk));
    world.end();
}

#[test]
fn bytes_that_are_written_while_their_page_leaves_the_cache_are_stored() {
    // All of a page or a part, of one that is there or that is not.
    for (len, is_there) in [(4096, true), (10, true), (10, false)] {
        let world = World::new();
        let (disk, cache) = disk(&world, 4);
        if is_there {
            read(&cache, PAGE, 1);
        }
        let mut forgotten = false;
        let wrote = cache.write_at(PAGE, len, |to| {
            forgotten = cache.forget(PAGE..2 * PAGE).unwrap();
            to.fill(8);
            to.len()
        });
        assert_eq!((wrote, forgotten), (Ok(len), true));
        assert_eq!((cache.dirty_pages(), read(&cache, PAGE, len)), (1, vec![8; len]));
        cache.sync(0..u64::MAX).unwrap();
        assert_eq!(disk.pages.lock().unwrap()[&1][..len], vec![8; len]);
        assert_eq!(read(&cache, PAGE + 4095, 1), [if len == 4096 { 8 } else { 1 }]);
        cache.validate();
        drop((cache, disk));
        world.end();
    }
}

#[test]
fn a_page_is_read_again_if_the_store_changed_it_meanwhile_and_not_for_other_pages() {
    for (changed, reads, value) in [(1, 2, 90), (2, 1, 1), (7, 1, 1)] {
        let world = World::new();
        let (disk, cache) = disk(&world, 8);
        let (writes, forgets) = (disk.clone(), cache.clone());
        *disk.meanwhile.lock().unwrap() = Some(Box::new(move || {
            write_past(&writes, changed, 90);
            assert_eq!(forgets.forget(changed * PAGE..changed * PAGE + 10), Ok(true));
        }));
        assert_eq!(read(&cache, PAGE, 1), [value], "page {changed} changes");
        let read_times = disk.log().iter().filter(|&&entry| entry == ('r', 1)).count();
        assert_eq!(read_times, reads, "page {changed} changes");
        // Pages that came with it are not older than the store either.
        assert_eq!(read(&cache, changed * PAGE, 1), [90]);
        cache.validate();
        drop((cache, disk));
        world.end();
    }
}

/// A space where a visit begins with something else.
struct Visits {
    space: Mutex<AddressSpace<ModelFrames>>,
    /// The actions; the last one is for the next visit.
    first: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl SpaceHandle<ModelFrames> for Visits {
    fn with(&self, _: Locking, f: &mut dyn FnMut(&mut AddressSpace<ModelFrames>)) -> Visited {
        let happens = self.first.lock().unwrap().pop();
        happens.into_iter().for_each(|happens| happens());
        f(&mut self.space.lock().unwrap());
        Visited::Done
    }
}

#[test]
fn a_store_through_a_mapping_of_a_page_that_has_just_left_the_cache_is_not_lost() {
    let world = World::new();
    let (disk, cache) = disk(&world, 4);
    let visited = Arc::new(Visits { space: Mutex::new(world.space()), first: Mutex::default() });
    let handle = Arc::downgrade(&(visited.clone() as Arc<dyn SpaceHandle<ModelFrames>>));
    {
        let mut space = visited.space.lock().unwrap();
        let (place, backing) = (AreaPlace::Anywhere, shared(&cache));
        let request = MapRequest { place, len: 4 * PAGE, protection: RW, backing, flags: AreaFlags::empty() };
        space.map(request, &Limits::NONE).unwrap();
        space.set_handle(handle);
    }
    let p = world.process(1);
    let at = p.map(AreaPlace::Anywhere, 4, RW, shared(&cache)).unwrap();
    write(&cache, 3 * PAGE, &[3; 4096]);
    let (maps, stores) = (p.thread(1), p.thread(1));
    // The page is mapped again after both spaces were visited. When the page has left the cache,
    // the other space is visited first.
    *disk.under_way.lock().unwrap() = Some(Box::new(move || assert_eq!(maps.load(at + PAGE), Ok(1))));
    *visited.first.lock().unwrap() =
        vec![Box::new(move || stores.store(at + PAGE, 77).unwrap()), Box::new(|| {})];
    assert_eq!(cache.forget(0..3 * PAGE + 1), Ok(false), "the page is there, and newer than the disk's");
    assert_eq!((p.load(at + PAGE), cache.dirty_pages()), (Ok(77), 1));
    cache.sync(0..u64::MAX).unwrap();
    assert_eq!(disk.pages.lock().unwrap()[&1][..2], [77, 1]);
    cache.validate();
    drop((visited, p));
    drop((cache, disk));
    world.end();
}

#[test]
fn a_sync_tries_pages_again_that_another_task_took_after_it_began_and_could_not_store() {
    let world = World::new();
    let (disk, cache) = disk(&world, 100);
    write(&cache, 0, &[1; 4096]);
    write(&cache, 40 * PAGE, &[2; 4096]);
    let (then, stores) = (cache.clone(), disk.clone());
    let (ended, ends) = std::sync::mpsc::channel();
    // While the sync stores page 0, another task takes page 40, and finds no memory for it.
    *disk.under_way.lock().unwrap() = Some(Box::new(move || {
        let (begun, begins) = std::sync::mpsc::channel();
        let waits = stores.clone();
        *stores.under_way.lock().unwrap() = Some(Box::new(move || {
            begun.send(()).unwrap();
            while waits.waits.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            *waits.starved.lock().unwrap() = true;
        }));
        std::thread::spawn(move || {
            let outcome = then.write_back(40 * PAGE..41 * PAGE);
            *stores.starved.lock().unwrap() = false;
            drop((then, stores));
            ended.send(outcome).unwrap();
        });
        begins.recv().unwrap();
    }));
    let outcome = cache.sync(0..u64::MAX);
    assert_eq!(ends.recv().unwrap(), Err(VmError::NoMemory));
    // If its own attempt found no memory either, it returns that error.
    let is_stored = disk.pages.lock().unwrap().contains_key(&40);
    assert!(is_stored == outcome.is_ok(), "stored: {is_stored}, {outcome:?}");
    cache.sync(0..u64::MAX).unwrap();
    assert_eq!((disk.pages.lock().unwrap()[&40][0], cache.dirty_pages()), (2, 0));
    drop((cache, disk));
    world.end();
}
