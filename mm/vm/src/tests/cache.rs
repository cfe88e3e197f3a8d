//! The page cache by itself: bytes, holes, stores, and races between them.

use std::boxed::Box;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::vec;
use std::vec::Vec;

use freehold_frame::{Frame, FrameSource, PageCache as CacheKind};
use freehold_machine::{PhysicalBytes, VirtAddr};
use freehold_paging::model::ModelFrames;

use super::world::*;
use crate::*;

#[test]
fn a_visitor_that_takes_less_ends_the_call_and_the_rest_comes_later() {
    let world = World::new();
    let cache = Cache::new(world.frames);
    let text: Vec<u8> = (0..10_000).map(|n| (n / 7) as u8).collect();
    let mut done = 0;
    while done < text.len() {
        let mut at = done;
        let n = cache.write_at(done as u64, text.len() - done, |to| {
            let part = to.len().min(1500);
            to[..part].copy_from_slice(&text[at..at + part]);
            at += part;
            part
        });
        let n = n.unwrap();
        assert!(n > 0 && n == at - done, "what the visitor took, and no more");
        done += n;
        assert_eq!(cache.size(), done as u64, "the file grows as far as bytes came");
    }
    assert_eq!(read(&cache, 0, 20_000), text);
    assert_eq!(cache.read_at(5, 100, |_| 0), Ok(0));
    assert_eq!(cache.read_at(10_000, 5, |_| panic!("past the end")), Ok(0));
    assert_eq!(
        cache.write_at(i64::MAX as u64, 1, |_| panic!("past the largest offset")),
        Err(VmError::Overflow)
    );
    assert_eq!(cache.write_at(50_000, 4096, |_| 0), Ok(0));
    assert_eq!(cache.size(), 10_000, "nothing came, so nothing grew");
    drop(cache);
    world.end();
}

#[test]
fn holes_read_as_zeroes_take_no_frames_and_are_found() {
    let world = World::new();
    let cache = Cache::new(world.frames);
    write(&cache, 100 * PAGE + 5, b"x");
    write(&cache, 300 * PAGE, b"y");
    assert_eq!(cache.pages(), 2);
    assert_eq!(read(&cache, 50 * PAGE, 3), [0; 3]);
    assert_eq!(read(&cache, 100 * PAGE + 4, 3), [0, b'x', 0]);
    assert_eq!(cache.pages(), 2);
    assert_eq!((cache.seek_data(0), cache.seek_hole(0)), (Some(100 * PAGE), 0));
    assert_eq!(
        (cache.seek_data(100 * PAGE + 9), cache.seek_hole(100 * PAGE)),
        (Some(100 * PAGE + 9), 101 * PAGE)
    );
    assert_eq!(
        (cache.seek_data(101 * PAGE), cache.seek_hole(300 * PAGE)),
        (Some(300 * PAGE), 300 * PAGE + 1)
    );
    assert_eq!((cache.seek_data(300 * PAGE + 1), cache.seek_hole(1 << 40)), (None, 300 * PAGE + 1));
    cache.allocate(0..3 * PAGE).unwrap();
    assert_eq!((cache.pages(), cache.size(), cache.seek_hole(0)), (5, 300 * PAGE + 1, 3 * PAGE));
    cache.punch_hole(10..2 * PAGE + 5).unwrap();
    assert_eq!(cache.pages(), 4, "only whole pages go");
    cache.truncate(0).unwrap();
    assert_eq!((cache.pages(), cache.size()), (0, 0));
    cache.truncate(1 << 40).unwrap();
    assert_eq!(read(&cache, 100 * PAGE + 5, 1), [0]);
    assert_eq!(cache.truncate(u64::MAX), Err(VmError::Overflow));
    assert_eq!(cache.punch_hole(5..5), Err(VmError::Invalid));
    drop(cache);
    world.end();
}

#[test]
fn what_a_page_of_as_many_leaves_as_can_be_counted_lacks_is_not_memory() {
    let world = World::new();
    let file = world.file(&[7; 4096]);
    let p = world.process(0);
    let map = |backing| p.map(AreaPlace::Anywhere, 1, RW, backing).unwrap();
    let first = map(Backing::PrivateFile(view(&file, 0)));
    assert_eq!(p.load(first), Ok(7));
    let counts = world.frames.table().get(p.frame(first)).unwrap().counts();
    let leaves = (0..).take_while(|_| counts.map().is_ok()).count();
    let second = map(Backing::PrivateFile(view(&file, 0)));
    assert_eq!(p.load(second), Ok(7), "a page of its own does as well");
    assert_ne!(p.frame(second), p.frame(first));
    p.store(second, 9).unwrap();
    let child = p.fork(1);
    assert_eq!(
        (p.load(second), child.load(second)),
        (Ok(9), Ok(9)),
        "and is no less its own than one that was stored to"
    );
    assert_eq!(p.load(map(Backing::SharedFile(view(&file, 0), SharedWrite::Allowed))), Err(FaultError::Bus));
    (0..leaves).for_each(|_| assert!(!counts.unmap()));
    drop((p, child, file));
    world.end();
}

#[test]
fn what_a_cut_took_away_is_zero_when_the_file_grows_again() {
    let world = World::new();
    let cache = Cache::new(world.frames);
    write(&cache, 0, &[7; 5000]);
    cache.truncate(4100).unwrap();
    cache.truncate(6000).unwrap();
    assert_eq!(read(&cache, 4096, 10), [7, 7, 7, 7, 0, 0, 0, 0, 0, 0]);
    write(&cache, 0, &[9; 8192]);
    cache.punch_hole(100..5000).unwrap();
    assert_eq!((read(&cache, 98, 4), read(&cache, 4998, 4)), (vec![9, 9, 0, 0], vec![0, 0, 9, 9]));
    drop(cache);
    world.end();
}

#[test]
fn running_out_of_memory_in_a_write_keeps_what_came_before() {
    let world = World::new();
    let cache = Cache::new(world.frames);
    world.frames.fail_after(2);
    assert_eq!(cache.write_at(0, 5 * 4096, |to| to.len()), Ok(2 * 4096));
    assert_eq!(cache.write_at(2 * PAGE, 10, |to| to.len()), Err(VmError::NoMemory));
    assert_eq!(cache.allocate(2 * PAGE..3 * PAGE), Err(VmError::NoMemory));
    world.frames.fail_never();
    assert_eq!(cache.size(), 2 * PAGE);
    drop(cache);
    world.end();
}

#[test]
fn an_allocation_of_more_than_there_is_takes_nothing() {
    let world = World::new();
    let cache = Cache::new(world.frames);
    write(&cache, 2 * PAGE, &[5; 4096]);
    world.frames.fail_after(4);
    assert_eq!(cache.allocate(0..9 * PAGE), Err(VmError::NoMemory));
    world.frames.fail_never();
    assert_eq!((cache.pages(), read(&cache, 2 * PAGE, 1)), (1, vec![5]), "what was there stays");
    cache.allocate(0..9 * PAGE).unwrap();
    assert_eq!(cache.pages(), 9);
    drop(cache);
    world.end();
}

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
    /// What happens between a read's bytes and its end.
    pub meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
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
            meanwhile: Mutex::default(),
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
        for (index, frame) in (first..).zip(frames) {
            self.check('w', index)?;
            let page = self.frames.model().with_bytes(frame.pfn(), |bytes| bytes.to_vec());
            self.pages.lock().unwrap().insert(index, page);
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
fn a_failing_store_damages_only_the_page_that_is_lost() {
    let world = World::new();
    let (disk, cache) = disk(&world, 4);
    *disk.broken.lock().unwrap() = Some(1);
    assert_eq!(cache.read_at(PAGE, 1, |_| 1), Err(VmError::Io));
    assert_eq!(cache.read_at(0, 3 * 4096, |from| from.len()), Ok(4096));
    let file: File = Arc::new(TestFile(cache.clone()));
    let p = world.process(0);
    let at =
        p.map(AreaPlace::Anywhere, 4, RW, Backing::SharedFile(view(&file, 0), SharedWrite::Allowed)).unwrap();
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
    drop((p, file, cache, disk));
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
    // Opened after somebody was told: it is none of its concern.
    let late = cache.errors_told();
    assert_eq!(cache.tell_errors(&late), Ok(()));
    assert_eq!([cache.tell_errors(&second), cache.tell_errors(&second)], [Err(VmError::Io), Ok(())]);
    // Two more, of which nobody is told before the next is opened: all are told of both at once.
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

#[test]
fn pages_that_are_mapped_for_writing_are_written_back_each_time() {
    let world = World::new();
    let (disk, cache) = disk(&world, 2);
    let file: File = Arc::new(TestFile(cache.clone()));
    let p = world.process(0);
    let at =
        p.map(AreaPlace::Anywhere, 2, RW, Backing::SharedFile(view(&file, 0), SharedWrite::Allowed)).unwrap();
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
    assert_eq!((cache.dirty_pages(), cache.shrink(10), cache.pages()), (0, 1, 0));
    drop((p, file, cache, disk));
    world.end();
}

#[test]
fn what_is_forgotten_is_stored_unmapped_and_read_anew_unless_it_is_pinned() {
    let world = World::new();
    let (disk, cache) = disk(&world, 4);
    let file: File = Arc::new(TestFile(cache.clone()));
    let p = world.process(0);
    let at =
        p.map(AreaPlace::Anywhere, 3, RW, Backing::SharedFile(view(&file, 0), SharedWrite::Allowed)).unwrap();
    for page in 0..3 {
        p.store(at + page * PAGE, 50 + page as u8).unwrap();
    }
    assert_eq!(cache.forget(0..2 * 4096), Ok(true));
    assert_eq!((cache.is_resident(0), cache.is_resident(1), cache.is_resident(2)), (false, false, true));
    assert_eq!(disk.pages.lock().unwrap()[&1][0], 51);
    // What the store holds by now is what a mapping and a reader see.
    disk.pages.lock().unwrap().get_mut(&1).unwrap()[0] = 9;
    assert_eq!((p.load(at + PAGE), read(&cache, PAGE, 1)), (Ok(9), vec![9]));
    let pin = p.space().pin::<Transient, ReadWrite>(VirtAddr(at + 2 * PAGE), Rule::Asked).unwrap();
    assert_eq!(cache.forget(2 * PAGE..2 * PAGE + 1), Ok(false));
    drop(pin);
    assert_eq!((cache.forget(2 * PAGE..2 * PAGE + 1), cache.is_resident(2)), (Ok(true), false));
    drop((p, file, cache, disk));
    world.end();
}

#[test]
fn threads_that_write_cut_map_and_evict_lose_no_frame_and_no_flush() {
    let world = World::new();
    let (_disk, cache) = disk(&world, 16);
    let file: File = Arc::new(TestFile(cache.clone()));
    let memory = world.file(&[1; 16 * 4096]);
    let mut processes: Vec<_> = (0..3).map(|cpu| world.process(cpu)).collect();
    processes.iter_mut().for_each(|p| p.judge = Judge::AtTheEnd);
    let at: Vec<_> = processes
        .iter()
        .map(|p| {
            let a = p
                .map(AreaPlace::Anywhere, 16, RW, Backing::SharedFile(view(&file, 0), SharedWrite::Allowed))
                .unwrap();
            let b = p.map(AreaPlace::Anywhere, 16, RW, Backing::PrivateFile(view(&memory, 0))).unwrap();
            (a, b)
        })
        .collect();
    std::thread::scope(|scope| {
        for (p, &(a, b)) in processes.iter().zip(&at) {
            scope.spawn(move || {
                for n in 0..600u64 {
                    let page = n * 7 % 16;
                    p.store(a + page * PAGE, n as u8).unwrap();
                    match p.load(b + page * PAGE) {
                        Ok(0 | 1) | Err(FaultError::Bus) => {}
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
        scope.spawn(|| {
            for n in 0..200u64 {
                memory.cache().truncate((n * 5 % 17) * PAGE).unwrap();
                write(memory.cache(), (n * 3 % 16) * PAGE, &[1; 100]);
            }
        });
        scope.spawn(|| {
            for _ in 0..200 {
                cache.write_back(0..u64::MAX).unwrap();
                cache.shrink(4);
            }
        });
    });
    world.model().assert_coherent();
    cache.validate();
    drop((processes, file, memory, cache, _disk));
    world.end();
}

/// A file of one page, and a process that has read it, at this address.
fn with_a_page_of_sevens(world: &World) -> (File, Process, u64) {
    let file = world.file(&[7; 4096]);
    let p = world.process(0);
    let at = p.map(AreaPlace::Anywhere, 1, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    assert_eq!(p.load(at), Ok(7));
    (file, p, at)
}

/// Of one page as many references as can be counted.
fn use_up(world: &World, frame: freehold_machine::Pfn) -> impl Fn() + use<> {
    let counts = world.frames.table().get(frame).unwrap().counts();
    let many = (0..).take_while(|_| counts.reference().is_ok()).count();
    move || (0..many).for_each(|_| assert!(!counts.unreference()))
}

#[test]
fn a_page_of_as_many_references_as_can_be_counted_is_no_hole() {
    let world = World::new();
    let (file, p, at) = with_a_page_of_sevens(&world);
    let give_back = use_up(&world, p.frame(at));
    let mut seen = Vec::new();
    let outcome = file.cache().read_at(0, 4, |bytes| {
        seen.extend_from_slice(bytes);
        bytes.len()
    });
    give_back();
    assert_eq!((outcome, seen), (Err(VmError::TooManyHolders), Vec::new()));
    drop((p, file));
    world.end();
}

#[test]
fn a_page_of_too_many_references_is_not_waited_for_where_pages_may_be_in_the_swap() {
    let world = World::new();
    let (file, p, at) = with_a_page_of_sevens(&world);
    world.commons.list(file.cache());
    let give_back = use_up(&world, p.frame(at));
    let (tell, told) = std::sync::mpsc::channel();
    let cache = file.cache().clone();
    let reader = std::thread::spawn(move || {
        let outcome = cache.read_at(0, 4, |bytes| bytes.len());
        tell.send(outcome).unwrap();
    });
    let outcome = told.recv_timeout(std::time::Duration::from_secs(60));
    give_back();
    reader.join().unwrap();
    assert_eq!(outcome, Ok(Err(VmError::TooManyHolders)), "it went round and round");
    drop((p, file));
    world.end();
}

#[test]
fn however_many_look_at_a_files_page_the_file_is_what_it_was() {
    let world = World::new();
    let (file, p, at) = with_a_page_of_sevens(&world);
    let look = || p.run(|| p.space().pin::<Transient, ReadOnly>(VirtAddr(at), Rule::Asked));
    let mut looks: Vec<_> = std::iter::from_fn(|| look().ok()).collect();
    assert_eq!(look().err(), Some(FaultError::Bus));
    assert_eq!(read(file.cache(), 0, 4), [7; 4], "of {} looks", looks.len());
    looks.clear();
    drop((p, file));
    world.end();
}

#[test]
fn stores_through_mappings_are_denied_only_where_no_mapping_may_store() {
    let world = World::new();
    let p = world.process(0);
    let file = world.file(&[1; 3 * PAGE as usize]);
    let map = |protection, write| {
        p.map(AreaPlace::Anywhere, 3, protection, Backing::SharedFile(view(&file, 0), write))
    };
    let at = map(Protection::READ, SharedWrite::Allowed).unwrap();
    assert_eq!(file.cache().deny_writers(), Err(VmError::Busy), "it may become writable");
    // Two pieces of one area count as two, and a child's count too.
    p.protect(at + PAGE, 1, RW).unwrap();
    let child = p.fork(1);
    p.unmap(at, 3).unwrap();
    assert_eq!(file.cache().deny_writers(), Err(VmError::Busy), "a child has it");
    drop(child);
    let other = map(Protection::READ, SharedWrite::Denied).unwrap();
    p.map(AreaPlace::Anywhere, 3, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    assert_eq!(file.cache().deny_writers(), Ok(()));
    assert_eq!(map(RW, SharedWrite::Allowed), Err(VmError::Permission));
    assert_eq!(map(Protection::READ, SharedWrite::Denied).map(|_| ()), Ok(()));
    assert_eq!(p.protect(other, 1, RW), Err(VmError::Access));
    assert_eq!(file.cache().deny_writers(), Ok(()), "twice is once");
    file.cache().admit_writers();
    map(RW, SharedWrite::Allowed).unwrap();
    drop(p);
    drop(file);
    world.end();
}

#[test]
fn an_allocation_goes_on_where_it_stopped_and_can_be_taken_back() {
    let world = World::new();
    let file = world.file(b"");
    let cache = file.cache();
    cache.allocate(3 * PAGE..4 * PAGE).unwrap();
    let mut allocation = Allocation::new(PAGE..7 * PAGE - 5);
    assert_eq!(cache.allocate_some(&mut allocation, 4), Ok(Batch::More));
    assert_eq!((cache.pages(), cache.size()), (4, 0));
    assert_eq!(cache.allocate_some(&mut allocation, 4), Ok(Batch::Last));
    assert_eq!(cache.pages(), 6);
    assert_eq!(cache.take_back_some(&mut allocation, 2), Batch::More);
    assert_eq!(cache.pages(), 4);
    assert_eq!(cache.take_back_some(&mut allocation, 9), Batch::Last);
    assert_eq!(cache.pages(), 1, "what was there before stays");
    drop(file);
    world.end();
}
