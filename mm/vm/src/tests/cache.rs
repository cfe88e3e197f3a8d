//! The page cache by itself: bytes, holes, stores, and races between them.

use std::sync::Arc;
use std::vec;
use std::vec::Vec;

use freehold_frame::FrameSource;
use freehold_machine::VirtAddr;
use freehold_machine::model::Config;

use super::stored::disk;
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

/// Takes as many references to one page as can be counted.
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

#[test]
fn an_allocation_that_is_taken_back_leaves_pages_that_others_were_given_meanwhile() {
    let world = World::new();
    let file = world.file(b"");
    let cache = file.cache();
    cache.truncate(8 * PAGE).unwrap();
    let p = world.process(0);
    let at = p.map(AreaPlace::Anywhere, 8, RW, shared(cache)).unwrap();
    let mut allocation = Allocation::new(0..8 * PAGE);
    assert_eq!(cache.allocate_some(&mut allocation, 6), Ok(Batch::More));
    // A store through a mapping that is gone again, a write, and a reader that holds the page.
    p.store(at + PAGE, 11).unwrap();
    p.unmap(at, 8).unwrap();
    write(cache, 40 * PAGE, &[1]);
    write(cache, 20 * PAGE, &[1]);
    let mut second = Allocation::new(20 * PAGE..23 * PAGE);
    assert_eq!(cache.allocate_some(&mut second, 9), Ok(Batch::Last));
    write(cache, 21 * PAGE, &[21; 4096]);
    let held = cache.hold(22).unwrap();
    held.with_bytes(|bytes| bytes[0] = 22);
    drop(held);
    // A page that was cut out and made again is not the allocation's.
    cache.punch_hole(5 * PAGE..6 * PAGE).unwrap();
    write(cache, 5 * PAGE, &[5; 4096]);
    for allocation in [&mut allocation, &mut second] {
        assert_eq!(cache.take_back_some(allocation, u64::MAX), Batch::Last);
    }
    let said = [1, 5, 20, 21, 22].map(|page| read(cache, page * PAGE, 1)[0]);
    assert_eq!(said, [11, 5, 1, 21, 22]);
    let here: Vec<u64> = (0..48).filter(|&page| cache.is_resident(page)).collect();
    assert_eq!(here, [1, 5, 20, 21, 22, 40], "the others had been given to none");
    drop((p, file));
    world.end();
}

#[test]
fn a_hole_behind_many_pages_is_looked_for_a_few_at_a_time() {
    let world = World::with(Config { cpus: 1, nodes: 1, frames: 16384, seed: 3 });
    let cache = Cache::new(world.frames);
    cache.set_size_grow(1 << 40);
    const PAGES: u64 = 64 * 64 + 70;
    cache.allocate(0..PAGES * PAGE).unwrap();
    let before = world.frames.rests();
    assert_eq!(cache.seek_hole(5 * PAGE + 1), PAGES * PAGE);
    assert_eq!(world.frames.rests() - before, 1, "the lock is let go of after 64 chunks");
    cache.punch_hole(70 * PAGE..71 * PAGE).unwrap();
    assert_eq!((cache.seek_hole(0), cache.seek_hole(70 * PAGE + 9)), (70 * PAGE, 70 * PAGE + 9));
    assert_eq!(cache.seek_hole(71 * PAGE), PAGES * PAGE);
    cache.truncate(4096 * PAGE).unwrap();
    assert_eq!(cache.seek_hole(71 * PAGE), 4096 * PAGE, "the end is a hole");
    cache.validate();
    drop(cache);
    world.end();
}

#[test]
fn other_pages_of_shared_memory_are_shown_in_its_place() {
    let world = World::new();
    let p = world.process(0);
    let at = p.map(AreaPlace::Anywhere, 4, RW, Backing::SharedAnonymous).unwrap();
    (0..4).for_each(|page| p.store(at + page * PAGE, page as u8 + 1).unwrap());
    let show_at = |addr: u64, pages: u64, from: u64| {
        p.run(|| p.space().show_pages(VirtAddr(addr), pages * PAGE, from * PAGE, AreaFlags::empty()))
    };
    let show = |page: u64, pages, from| show_at(at + page * PAGE, pages, from);
    let shown = || [0, 1, 2, 3].map(|page| p.load(at + page * PAGE).unwrap());
    assert_eq!(show(0, 2, 2), Ok(()));
    assert_eq!((shown(), p.usage().areas), ([3, 4, 3, 4], 2));
    p.store(at, 9).unwrap();
    assert_eq!(shown(), [9, 4, 9, 4], "one page at two addresses");
    assert_eq!(show(0, 4, 0), Ok(()));
    assert_eq!((shown(), p.usage().areas), ([1, 2, 9, 4], 1));
    assert_eq!(show(0, 1, u64::MAX / PAGE), Err(VmError::Overflow));
    p.protect(at + PAGE, 1, Protection::READ).unwrap();
    assert_eq!(show(0, 4, 0), Err(VmError::Invalid), "two protections");
    assert_eq!(show(1, 1, 3), Ok(()));
    assert_eq!(p.store(at + PAGE, 0), Err(ACCERR));
    p.unmap(at + 3 * PAGE, 1).unwrap();
    assert_eq!(show(2, 2, 0), Err(VmError::Invalid), "a hole");
    assert_eq!(show_at(p.anonymous(1), 1, 0), Err(VmError::Invalid), "private memory");
    drop(p);
    world.end();
}
