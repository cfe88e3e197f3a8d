//! Shared memory, and files that are in memory only: their pages are swapped out and in, under any
//! access.

use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

use freehold_frame::NodePolicy;
use freehold_machine::{PAGE_SIZE, PhysicalBytes, VirtAddr};

use super::super::world::*;
use super::{Disk, Health, Swapping, assert_filled, wish};
use crate::cache::PageSet;
use crate::*;

/// Use of the page at an address of a process. The page is the first of a file.
type Use = fn(&Process, u64, &Cache);

/// A file in memory whose page `n` is full of `first + n`.
pub fn file(swapping: &Swapping, pages: u64, first: u8) -> Arc<Cache> {
    let cache = Cache::new(swapping.world.frames);
    swapping.world.commons.list(&cache);
    (0..pages).for_each(|n| write(&cache, n * PAGE, &[first.wrapping_add(n as u8); PAGE_SIZE]));
    cache
}

impl Swapping {
    pub fn evict_shared(&self, p: &Process) -> SwapEvicted {
        p.run(|| self.world.commons.evict_shared(&wish(u64::MAX, Age::Ignore)))
    }
    /// Another area, of a disk of its own.
    fn second_area(&self, slots: u64) -> Arc<Disk> {
        let disk = Disk::new(self.world.model());
        self.swap().add(disk.clone(), slots + 1, &[], -1).unwrap();
        disk
    }
}

#[test]
fn a_file_in_memory_goes_to_the_swap_and_is_read_written_cut_and_punched_there() {
    let swapping = Swapping::new(256);
    let p = swapping.world.process(0);
    let cache = file(&swapping, 100, 1);
    let done = swapping.evict_shared(&p);
    assert_eq!((done.freed, done.written, done.failed), (100, 100, 0));
    assert_eq!((cache.pages(), cache.swapped_pages(), swapping.used()), (0, 100, 100));
    assert!(swapping.disk.writes.lock().unwrap().iter().all(|&(_, count)| count > 1), "in runs");
    assert_eq!((cache.seek_data(0), cache.seek_hole(0)), (Some(0), 100 * PAGE), "it is no hole");
    assert!(!cache.is_resident(3));
    swapping.check();
    assert_eq!(read(&cache, 5 * PAGE + 17, 3), [6; 3]);
    assert_eq!((cache.is_resident(5), cache.swapped_pages()), (true, 99));
    // A part of a page, and a whole one.
    write(&cache, 7 * PAGE + 100, &[200; 50]);
    write(&cache, 8 * PAGE, &[201; PAGE_SIZE]);
    let page = read(&cache, 7 * PAGE, PAGE_SIZE);
    assert!(page[..100].iter().chain(&page[150..]).all(|&byte| byte == 8) && page[100..150] == [200; 50]);
    assert_eq!(read(&cache, 8 * PAGE, PAGE_SIZE), [201; PAGE_SIZE]);
    // The slots of pages that are cut off or punched are freed; the rest of a page keeps its bytes.
    cache.truncate(50 * PAGE + 10).unwrap();
    cache.punch_hole(20 * PAGE + 5..30 * PAGE).unwrap();
    cache.truncate(60 * PAGE).unwrap();
    let mut expected = std::vec![51; 10];
    expected.resize(PAGE_SIZE, 0);
    assert_eq!(read(&cache, 50 * PAGE, PAGE_SIZE), expected);
    assert_eq!(read(&cache, 20 * PAGE, 10), [21, 21, 21, 21, 21, 0, 0, 0, 0, 0]);
    assert!(read(&cache, 21 * PAGE, 9 * PAGE_SIZE).iter().all(|&byte| byte == 0));
    assert_eq!(cache.pages() + cache.swapped_pages(), 51 - 9);
    // Pages that exist count as allocated.
    cache.allocate(0..60 * PAGE).unwrap();
    assert_eq!((0..20).find(|&n| ![7, 8].contains(&n) && read(&cache, n * PAGE, 1) != [n as u8 + 1]), None);
    swapping.check();
    swapping.evict_shared(&p);
    drop((p, cache));
    swapping.end();
}

#[test]
fn who_maps_shared_memory_finds_the_others_bytes_after_it_was_out() {
    let swapping = Swapping::new(64);
    let (p, q) = (swapping.world.process(0), swapping.world.process(1));
    let cache = file(&swapping, 8, 1);
    let at = p.map(AreaPlace::Anywhere, 8, RW, shared(&cache)).unwrap();
    let also = q.map(AreaPlace::Anywhere, 8, RW, shared(&cache)).unwrap();
    let own = p.map(AreaPlace::Anywhere, 4, RW, Backing::SharedAnonymous).unwrap();
    (0..8).for_each(|n| p.store(at + n * PAGE, 100 + n as u8).unwrap());
    (0..4).for_each(|n| p.store(own + n * PAGE, 50 + n as u8).unwrap());
    assert_filled(&q, also, 8, 100);
    let child = p.fork(2);
    let done = swapping.evict_shared(&p);
    assert_eq!(done.freed, 12);
    assert_eq!((p.usage().rss(), q.usage().rss(), child.usage().rss()), (0, 0, 0));
    child.store(own + PAGE, 99).unwrap();
    q.store(also + 3 * PAGE, 77).unwrap();
    assert_eq!((p.load(own + PAGE), p.load(at + 3 * PAGE)), (Ok(99), Ok(77)));
    assert_eq!((child.load(at + 4 * PAGE), child.load(own + 2 * PAGE)), (Ok(104), Ok(52)));
    drop(p);
    // When the last mapper ends, its slots are freed.
    drop(child);
    assert_eq!(swapping.used(), cache.swapped_pages());
    drop((q, cache));
    swapping.end();
}

/// Pages in the swap are found by a tree of marks, each only in the requested range.
#[test]
fn pages_in_the_swap_are_counted_and_brought_in_within_a_range() {
    let swapping = Swapping::new(512);
    let p = swapping.world.process(0);
    let cache = file(&swapping, 300, 1);
    swapping.evict_shared(&p);
    assert_eq!((cache.pages(), cache.swapped_pages()), (0, 300));
    cache.validate();
    let counts = |pages| cache.count_swapped(pages, |_| true);
    assert_eq!([counts(0..300), counts(63..65), counts(299..900), counts(5..5)], [300, 2, 1, 0]);
    cache.bring_in(100..103, NodePolicy::Local);
    let here: Vec<u64> = (0..300).filter(|&page| cache.is_resident(page)).collect();
    assert!(here.starts_with(&[100, 101, 102]), "{here:?}");
    cache.validate();
    cache.bring_in(64..192, NodePolicy::Local);
    assert_eq!((counts(64..192), (64..192).all(|page| cache.is_resident(page))), (0, true));
    cache.validate();
    // A chunk without swapped pages, between two others that have some.
    cache.punch_hole(10 * PAGE..12 * PAGE).unwrap();
    assert_eq!(counts(0..64), 62);
    cache.validate();
    drop((p, cache));
    swapping.end();
}

#[test]
fn pinned_and_locked_pages_of_shared_memory_stay() {
    let swapping = Swapping::new(64);
    let p = swapping.world.process(0);
    let cache = file(&swapping, 8, 1);
    let at = p.map(AreaPlace::Anywhere, 8, RW, shared(&cache)).unwrap();
    (0..8).for_each(|n| p.store(at + n * PAGE, n as u8).unwrap());
    let pin = p.space().pin::<LongTerm, ReadWrite>(VirtAddr(at + 2 * PAGE), Rule::Asked).unwrap();
    p.lock(at + 5 * PAGE, 1, &p.limits).unwrap();
    swapping.evict_shared(&p);
    let here: Vec<u64> = (0..8).filter(|&n| cache.is_resident(n)).collect();
    assert_eq!(here, [2, 5]);
    // The page stays although nothing maps it any more.
    p.space().unmap_idle(&cache, PageSet { first: 0, mask: 4 }, Age::Ignore);
    assert!(cache.begin_leaving(2).is_none());
    // A device's bytes are the file's.
    super::dma(&swapping.world, pin.pfn()).store(88);
    drop(pin);
    p.space().unlock(VirtAddr(at), 8 * PAGE).unwrap();
    swapping.evict_shared(&p);
    assert_eq!((cache.pages(), p.load(at + 2 * PAGE), p.load(at + 5 * PAGE)), (0, Ok(88), Ok(5)));
    // A cache whose pages are used where no caller can wait.
    cache.keep_in_memory();
    let before = cache.pages();
    swapping.evict_shared(&p);
    assert_eq!(cache.pages(), before);
    drop((p, cache));
    swapping.end();
}

/// A page has its last bytes after any use while it is being written.
#[test]
fn a_page_that_is_used_while_it_is_written_stays() {
    let uses: [(&str, u64, Use); 6] = [
        ("a store through a mapping", 3, |p, at, _| p.store(at, 42).unwrap()),
        ("a store through a mapping that is gone again", 3, |p, at, cache| {
            p.store(at, 42).unwrap();
            assert_eq!(p.space().unmap_idle(cache, PageSet { first: 0, mask: 1 }, Age::Ignore), 0);
        }),
        ("a write", 3, |_, _, cache| write(cache, 0, &[42; PAGE_SIZE])),
        ("a part of it", 3, |_, _, cache| write(cache, 0, &[42])),
        ("a pin", 3, |p, at, _| {
            let pin = p.space().pin::<LongTerm, ReadWrite>(VirtAddr(at), Rule::Asked).unwrap();
            p.model.with_bytes(pin.pfn(), |bytes: &mut [u8; PAGE_SIZE]| bytes[0] = 42);
        }),
        // A read fault maps what lies around its page, too.
        ("a store through a mapping that a neighbour brought about", 0, |p, at, _| {
            p.load(at + PAGE).unwrap();
            p.store(at, 42).unwrap();
        }),
    ];
    for (name, freed, used) in uses {
        let swapping = Swapping::new(64);
        let p = Arc::new(swapping.world.process(0));
        let cache = file(&swapping, 4, 1);
        let at = p.map(AreaPlace::Anywhere, 4, RW, shared(&cache)).unwrap();
        p.store(at, 41).unwrap();
        let (there, then) = (p.clone(), cache.clone());
        *swapping.disk.during_write.lock().unwrap() = Some(Box::new(move || used(&there, at, &then)));
        let done = swapping.evict_shared(&p);
        assert_eq!((done.freed, done.written), (freed, 4), "{name}");
        assert_eq!((cache.is_resident(0), read(&cache, 0, 1)), (true, std::vec![42]), "{name}");
        swapping.check();
        swapping.evict_shared(&p);
        assert_eq!((cache.pages(), p.load(at)), (0, Ok(42)), "{name}");
        drop((p, cache));
        swapping.end();
    }
}

#[test]
fn what_is_cut_off_while_it_is_written_or_read_does_not_come_back() {
    let swapping = Swapping::new(64);
    let p = swapping.world.process(0);
    let cache = file(&swapping, 4, 1);
    let cut = |cache: &Arc<Cache>| {
        let cache = cache.clone();
        Some(Box::new(move || {
            cache.truncate(PAGE).unwrap();
            cache.truncate(4 * PAGE).unwrap();
        }) as super::During)
    };
    *swapping.disk.during_write.lock().unwrap() = cut(&cache);
    assert_eq!(swapping.evict_shared(&p).freed, 1);
    assert_eq!((swapping.used(), read(&cache, 2 * PAGE, 1)), (1, std::vec![0]));
    write(&cache, 2 * PAGE, &[9; PAGE_SIZE]);
    swapping.evict_shared(&p);
    *swapping.disk.during_read.lock().unwrap() = cut(&cache);
    assert_eq!(read(&cache, 2 * PAGE, 1), [0], "a hole by the time it was read");
    assert_eq!(swapping.used(), cache.swapped_pages());
    // Two tasks access the same page: both get the same frame.
    swapping.evict_shared(&p);
    let (other, seen) = (cache.clone(), Arc::new(std::sync::Mutex::new(0)));
    let also = seen.clone();
    *swapping.disk.during_read.lock().unwrap() = Some(Box::new(move || {
        *also.lock().unwrap() = read(&other, 0, 1)[0];
        write(&other, 0, &[33]);
    }));
    assert_eq!((read(&cache, 0, 1), *seen.lock().unwrap()), (std::vec![33], 1));
    drop((p, cache));
    swapping.end();
}

/// A slot that is being read is not used for other bytes, so the bytes from it are the page's.
#[test]
fn a_page_that_changes_and_goes_again_while_it_is_read_is_not_found_as_it_was() {
    let swapping = Swapping::new(4);
    let p = Arc::new(swapping.world.process(0));
    let cache = file(&swapping, 4, 1);
    swapping.evict_shared(&p);
    assert_eq!(cache.swapped_pages(), 4);
    let (there, other, commons) = (p.clone(), cache.clone(), swapping.world.commons.clone());
    *swapping.disk.during_read.lock().unwrap() = Some(Box::new(move || {
        write(&other, 0, &[77; PAGE_SIZE]);
        there.run(|| commons.evict_shared(&wish(u64::MAX, Age::Ignore)));
    }));
    assert_eq!(read(&cache, 0, 1), [77]);
    drop((p, cache));
    swapping.end();
}

#[test]
fn disks_that_fail_lose_the_page_that_they_lost() {
    let swapping = Swapping::new(64);
    let p = swapping.world.process(0);
    let cache = file(&swapping, 8, 1);
    let at = p.map(AreaPlace::Anywhere, 8, RW, shared(&cache)).unwrap();
    swapping.disk.set_health(Health::Unwritable);
    let done = swapping.evict_shared(&p);
    assert_eq!((done.freed, done.written, cache.pages()), (0, 0, 8), "they stay");
    assert!(done.failed > 0);
    swapping.disk.set_health(Health::Sound);
    assert_eq!(swapping.evict_shared(&p).freed, 8, "other slots take them");
    let lost = swapping.disk.writes.lock().unwrap().last().unwrap().0 + 3;
    swapping.disk.bad_reads.lock().unwrap().insert(lost);
    for n in 0..8 {
        let expected = if n == 3 { Err(FaultError::Bus) } else { Ok(1 + n as u8) };
        assert_eq!(p.load(at + n * PAGE), expected, "page {n}");
    }
    let refused = cache.read_at(3 * PAGE, 1, |_| 1);
    assert_eq!(refused, Err(VmError::Io));
    // When its area is removed, this page is lost for good, and no other page is.
    swapping.second_area(64);
    assert_eq!(swapping.swap_off(&p), Ok(()));
    assert_eq!((p.load(at + 3 * PAGE), p.load(at + 4 * PAGE)), (Err(FaultError::Bus), Ok(5)));
    assert_eq!(cache.read_at(3 * PAGE, 1, |_| 1), Err(VmError::Io));
    cache.punch_hole(3 * PAGE..4 * PAGE).unwrap();
    assert_eq!(p.load(at + 3 * PAGE), Ok(0), "a hole is a new page");
    drop((p, cache));
    swapping.end();
}

#[test]
fn what_is_used_stays_and_what_one_process_alone_maps_can_be_sent_out() {
    let swapping = Swapping::new(256);
    let (p, q) = (swapping.world.process(0), swapping.world.process(1));
    let cache = file(&swapping, 64, 1);
    let at = p.map(AreaPlace::Anywhere, 64, RW, shared(&cache)).unwrap();
    let also = q.map(AreaPlace::Anywhere, 64, RW, shared(&cache)).unwrap();
    let lap =
        || p.run(|| swapping.world.commons.evict_shared(&EvictWish { effort: 20, ..wish(64, Age::Respect) }));
    p.load(at + 3 * PAGE).unwrap();
    lap();
    lap();
    p.load(at + 3 * PAGE).unwrap();
    (0..2).for_each(|_| _ = lap());
    p.load(at + 3 * PAGE).unwrap();
    lap();
    let here: Vec<u64> = (0..64).filter(|&n| cache.is_resident(n)).collect();
    assert_eq!(here, [3]);
    assert_filled(&p, at, 8, 1);
    q.advise(also, 64, Advice::Random).unwrap();
    q.load(also + 5 * PAGE).unwrap();
    let of: File = Arc::new(TestFile(cache.clone()));
    let private = p.map(AreaPlace::Anywhere, 64, RW, Backing::PrivateFile(view(&of, 0))).unwrap();
    let smaps = |p: &Process, at| {
        let space = p.space();
        let area = space.areas().find(|area| area.start.0 == at).unwrap();
        let smaps = space.smaps(&area);
        (smaps.swap, smaps.swap_pss)
    };
    let done = swapping.page_out(&p, at, 64);
    assert_eq!(cache.pages(), 1, "{done:?}: what the other maps, too");
    assert_eq!((smaps(&p, at), p.usage().swapped), ((63 * PAGE, 0), 0));
    // A process with a page of its own does not see the file's.
    p.store(private + 9 * PAGE, 1).unwrap();
    swapping.evict_shared(&p);
    assert_eq!((smaps(&p, private), smaps(&p, at)), ((63 * PAGE, 0), (64 * PAGE, 0)));
    p.unmap(private, 64).unwrap();
    drop((p, q, cache, of));
    swapping.end();
}

#[test]
fn advice_that_shared_memory_will_be_needed_reads_it_and_maps_none() {
    let swapping = Swapping::new(64);
    let p = swapping.world.process(0);
    let cache = file(&swapping, 40, 1);
    let at = p.map(AreaPlace::Anywhere, 40, RW, shared(&cache)).unwrap();
    swapping.evict_shared(&p);
    let lost = cache.swap_place(5).unwrap().slot;
    swapping.disk.bad_reads.lock().unwrap().insert(lost);
    p.advise(at + PAGE, 10, Advice::WillNeed).unwrap();
    // A few of the following pages were read ahead.
    let away: Vec<u64> = (0..40).filter(|&n| !cache.is_resident(n) && !(11..=35).contains(&n)).collect();
    assert_eq!((away, p.usage().rss()), (Vec::from([0, 5, 36, 37, 38, 39]), 0));
    swapping.evict_shared(&p);
    swapping.world.frames.fail_after(3);
    p.advise(at, 4, Advice::WillNeed).unwrap();
    swapping.world.frames.fail_never();
    assert!((1..4).contains(&cache.pages()), "as long as there is memory");
    swapping.disk.bad_reads.lock().unwrap().clear();
    assert_filled(&p, at, 40, 1);
    drop((p, cache));
    swapping.end();
}

/// A file, shared memory and their mappings against a list of bytes, with evictions, failing disks
/// and removed areas in between.
#[test]
fn random_use_finds_the_bytes_that_a_plain_list_has() {
    const PAGES: u64 = 150;
    for seed in 0..24u64 {
        let swapping = Swapping::new(400);
        swapping.second_area(400);
        let (p, q) = (swapping.world.process(0), swapping.world.process(1));
        let cache = file(&swapping, 0, 0);
        cache.set_size_grow(PAGES * PAGE);
        let at = p.map(AreaPlace::Anywhere, PAGES, RW, shared(&cache)).unwrap();
        let also = q.map(AreaPlace::Anywhere, PAGES, RW, shared(&cache)).unwrap();
        // The first and the last byte of each page.
        let mut plain = std::vec![[0u8; 2]; PAGES as usize];
        let mut size = PAGES;
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
        let mut off = false;
        for step in 0..600 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (what, page, byte) = (state >> 60, (state >> 40) % PAGES, (state >> 33) as u8);
            let (process, start) = if byte % 2 == 0 { (&p, at) } else { (&q, also) };
            let (addr, inside) = (start + page * PAGE, page < size);
            let bytes = &mut plain[page as usize];
            match what {
                0..=2 if inside => {
                    process.store(addr, byte).unwrap();
                    bytes[0] = byte;
                }
                3..=5 if inside => assert_eq!(process.load(addr + PAGE - 1), Ok(bytes[1]), "{seed}, {step}"),
                6 if inside => {
                    write(&cache, page * PAGE, &[byte; PAGE_SIZE]);
                    *bytes = [byte; 2];
                }
                7 if inside => {
                    write(&cache, page * PAGE + PAGE - 1, &[byte]);
                    bytes[1] = byte;
                }
                8 if inside => {
                    let mut page = read(&cache, page * PAGE, PAGE_SIZE);
                    // The last page may have been cut after its first byte.
                    page.resize(PAGE_SIZE, 0);
                    assert_eq!([page[0], page[PAGE_SIZE - 1]], *bytes, "{seed}, {step}");
                }
                9 => {
                    let end = (page + 20).min(PAGES);
                    cache.punch_hole(page * PAGE + 1..end * PAGE).unwrap();
                    plain[page as usize][1] = 0;
                    plain[page as usize + 1..end as usize].fill([0; 2]);
                }
                10 if byte < 64 => {
                    cache.truncate(page * PAGE + 1).unwrap();
                    plain[page as usize][1] = 0;
                    plain[page as usize + 1..].fill([0; 2]);
                    size = page + 1;
                }
                10 => {
                    cache.truncate(PAGES * PAGE).unwrap();
                    size = PAGES;
                }
                11 | 12 => {
                    let age = if byte < 128 { Age::Respect } else { Age::Ignore };
                    let wish = wish(byte.into(), age);
                    p.run(|| swapping.world.commons.evict_shared(&wish));
                }
                13 => _ = swapping.page_out(process, start, PAGES),
                14 if byte < 64 => swapping.disk.set_health(Health::Unwritable),
                14 => swapping.disk.set_health(Health::Sound),
                15 if byte < 20 && !off => {
                    off = true;
                    assert_eq!(swapping.swap_off(&p), Ok(()));
                }
                _ => {}
            }
            if step % 50 == 0 {
                swapping.check();
            }
        }
        drop((p, q, cache));
        swapping.end();
    }
}
