//! Promises of each memory call that the random steps do not cover: limits, addresses, errors,
//! figures.

use std::sync::Arc;
use std::vec;
use std::vec::Vec;

use freehold_machine::VirtAddr;

use super::world::*;
use crate::*;

#[test]
fn places_are_kept_hints_are_hints_and_holes_are_found_from_the_top() {
    let world = World::new();
    let p = world.process(0);
    let first = p.anonymous(2);
    let second = p.anonymous(3);
    assert_eq!(first + 2 * PAGE, layout().mmap_base.0);
    assert_eq!(second + 3 * PAGE, first, "top-down");
    assert_eq!(p.usage().areas, 1, "neighbours are one");
    let fixed = |place| p.map(place, 1, RW, Backing::Anonymous);
    assert_eq!(fixed(AreaPlace::FixedNoReplace(VirtAddr(first))), Err(VmError::Exists));
    assert_eq!(fixed(AreaPlace::Hint(VirtAddr(0x1234_5678))), Ok(0x1234_5000));
    assert_eq!(fixed(AreaPlace::Hint(VirtAddr(first))), Ok(second - PAGE), "a taken hint is ignored");
    assert_eq!(
        fixed(AreaPlace::Hint(VirtAddr(0x1000))),
        Ok(second - 2 * PAGE),
        "as is one below the lowest address"
    );
    assert_eq!(fixed(AreaPlace::Fixed(VirtAddr(0x1000))), Err(VmError::Permission));
    assert_eq!(fixed(AreaPlace::Fixed(VirtAddr(first + 1))), Err(VmError::Invalid));
    assert_eq!(fixed(AreaPlace::Fixed(layout().end)), Err(VmError::NoMemory));
    assert_eq!(p.map(AreaPlace::Anywhere, 1 << 36, RW, Backing::Anonymous), Err(VmError::NoMemory));
    p.unmap(second, 3).unwrap();
    assert_eq!(p.anonymous(2), second + PAGE, "the highest hole");
    assert_eq!(p.unmap(first + 1, 1), Err(VmError::Invalid));
    assert_eq!(p.unmap(first, 0), Err(VmError::Invalid));
    assert_eq!(p.unmap(0x7fff_ffff_f000, 1), Err(VmError::Invalid));
    drop(p);
    world.end();
}

#[test]
fn when_nothing_is_left_below_the_base_holes_above_it_are_used() {
    let world = World::new();
    let p = world.process(0);
    let base = layout().mmap_base.0;
    p.map(AreaPlace::Fixed(layout().lowest), (base - layout().lowest.0) / PAGE, RW, Backing::Anonymous)
        .unwrap();
    assert_eq!(p.anonymous(4), base);
    assert_eq!(p.anonymous(4), base + 4 * PAGE);
    drop(p);
    world.end();
}

#[test]
fn low_areas_fill_the_second_gib_from_below_and_end_there() {
    let world = World::new();
    let p = world.process(0);
    let low = |hint: Option<u64>, pages| {
        p.map(AreaPlace::Low(hint.map(VirtAddr)), pages, Protection::NONE, Backing::Anonymous)
    };
    let first = LOW.start.0;
    assert_eq!(low(None, 2), Ok(first));
    assert_eq!(low(None, 1), Ok(first + 2 * PAGE));
    assert_eq!(low(Some(0x2000_0123), 1), Ok(0x2000_0000), "a hint may lie below");
    assert_eq!(
        low(Some(LOW.end.0 - PAGE), 2),
        Ok(first + 3 * PAGE),
        "and is ignored where the end would not"
    );
    assert_eq!(p.unmap(first, 1), Ok(()));
    assert_eq!((low(None, 2), low(None, 1)), (Ok(first + 5 * PAGE), Ok(first)));
    let left = (LOW.end.0 - first) / PAGE - 7;
    assert_eq!(low(None, left + 1), Err(VmError::NoMemory));
    assert_eq!(low(None, left), Ok(first + 7 * PAGE));
    assert_eq!(low(None, 1), Err(VmError::NoMemory));
    drop(p);
    world.end();
}

/// Maps and unmaps just below the base, where every hole matters; after each step a walk over all
/// areas finds the holes. With an area above that grows down, the highest of these holes is in the
/// gap that this area keeps from its neighbour.
fn holes_are_where_a_walk_finds_them(grows_down: bool) {
    const PAGES: u64 = 40;
    let highest = if grows_down { 11 } else { 1 };
    let world = World::new();
    let p = world.process(0);
    let base = layout().mmap_base.0;
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    if grows_down {
        let place = AreaPlace::Fixed(VirtAddr(base - 8 * PAGE));
        let (backing, flags) = (Backing::Anonymous, AreaFlags::GROWSDOWN);
        let request = MapRequest { place, len: PAGE, protection: RW, backing, flags };
        p.space().map(request, &p.limits).unwrap();
    }
    for _ in 0..3000 {
        let (at, pages) = (base - (highest + random(PAGES)) * PAGE, 1 + random(3));
        let protection = if random(2) == 0 { RW } else { Protection::READ };
        match random(6) {
            4 => drop(p.lock(at, pages, &p.limits)),
            5 => drop(p.protect(at, pages, protection)),
            0 => drop(p.map(AreaPlace::Fixed(VirtAddr(at)), pages, protection, Backing::Anonymous)),
            1 => drop(p.map(AreaPlace::Anywhere, pages, protection, Backing::Anonymous)),
            _ => drop(p.unmap(at, pages)),
        }
        if random(3) == 0 {
            p.space().areas.validate(&layout());
        } else {
            let (mut space, pages) = (p.space(), 1 + random(4));
            let walked = space.areas.walk_to_hole(pages * PAGE, &layout());
            assert_eq!(space.areas.find_hole(pages * PAGE, &layout()), walked, "{pages} pages");
        }
    }
    drop(p);
    world.end();
}

#[test]
fn what_is_remembered_of_holes_is_true() {
    holes_are_where_a_walk_finds_them(false);
}

#[test]
fn an_area_that_grows_down_keeps_its_gap_from_what_is_remembered() {
    holes_are_where_a_walk_finds_them(true);
}

#[test]
fn limits_are_kept_to_the_page() {
    let world = World::new();
    let mut p = world.process(0);
    p.limits.address_space = 10 * PAGE;
    let at = p.anonymous(8);
    assert_eq!(p.map(AreaPlace::Anywhere, 3, RW, Backing::Anonymous), Err(VmError::NoMemory));
    assert_eq!(
        p.map(AreaPlace::Fixed(VirtAddr(at)), 10, RW, Backing::Anonymous),
        Ok(at),
        "what is replaced counts once"
    );
    p.unmap(at, 10).unwrap();
    p.limits = Limits { data: 4 * PAGE, ..Limits::NONE };
    let at = p.anonymous(4);
    assert_eq!(p.map(AreaPlace::Anywhere, 1, RW, Backing::Anonymous), Err(VmError::NoMemory));
    p.map(AreaPlace::Anywhere, 9, Protection::READ, Backing::Anonymous).unwrap();
    p.map(AreaPlace::Anywhere, 9, RW, Backing::SharedAnonymous).unwrap();
    p.limits = Limits { memlock: 2 * PAGE, ..Limits::NONE };
    let lock = |at: u64, pages: u64| p.lock(at, pages, &p.limits);
    assert_eq!(lock(at, 3), Err(VmError::NoMemory));
    assert_eq!(lock(at, 2), Ok(()));
    assert_eq!(lock(at, 2), Ok(()), "locked already");
    assert_eq!(lock(at + PAGE, 2), Err(VmError::NoMemory));
    assert_eq!((p.usage().locked_pages, p.usage().rss_anon), (2, 2));
    let request = MapRequest {
        place: AreaPlace::Anywhere,
        len: PAGE,
        protection: RW,
        backing: Backing::Anonymous,
        flags: AreaFlags::LOCKED,
    };
    assert_eq!(p.space().map(request.clone(), &p.limits), Err(VmError::Again));
    p.space().unlock(VirtAddr(at), PAGE).unwrap();
    p.space().map(request, &p.limits).unwrap();
    assert_eq!(
        p.space().lock(VirtAddr(at), PAGE, LockMode::Now, &Limits { memlock: 0, ..p.limits }),
        Err(VmError::Permission)
    );
    drop(p);
    world.end();
}

#[test]
fn what_can_never_be_there_is_refused_to_who_asks_for_it_in_whatever_way() {
    let world = World::new();
    let mut p = world.process(0);
    world.commons.set_promise_limit(PromiseLimit::Request(100 * PAGE));
    let map = |pages, protection, backing| p.map(AreaPlace::Anywhere, pages, protection, backing);
    assert_eq!(map(101, RW, Backing::Anonymous), Err(VmError::NoMemory));
    assert_eq!(map(101, Protection::NONE, Backing::SharedAnonymous), Err(VmError::NoMemory));
    let large = map(101, Protection::READ, Backing::Anonymous).unwrap();
    assert_eq!(p.protect(large, 101, RW), Err(VmError::NoMemory));
    p.protect(large, 100, RW).unwrap();
    p.protect(large + 100 * PAGE, 1, RW).unwrap();
    p.protect(large, 101, Protection::READ).unwrap();
    assert_eq!(p.protect(large, 101, RW), Ok(()), "what was asked for once is not asked for again");
    let small = p.anonymous(4);
    let remap = |pages: u64, place| {
        let (old, source) = (VirtAddr(small), RemapSource::Unmap);
        let wish = Remap { old, old_len: 4 * PAGE, new_len: pages * PAGE, place, source };
        p.run(|| p.space().remap(wish, &p.limits, &mut || Ok(()))).map(|addr| addr.0)
    };
    let far = VirtAddr(0x5000_0000);
    assert_eq!(remap(105, RemapPlace::MayMove), Err(VmError::NoMemory));
    assert_eq!(remap(105, RemapPlace::Fixed(far)), Err(VmError::NoMemory));
    assert_eq!(remap(104, RemapPlace::Fixed(far)), Ok(far.0), "only the growth counts");
    let break_at = VirtAddr(0x7000_0000);
    p.space().set_brk_base(break_at);
    assert_eq!(p.space().brk(VirtAddr(break_at.0 + 101 * PAGE), &p.limits), break_at);
    p.limits = Limits { data: (p.usage().data_pages + 2) * PAGE, ..Limits::NONE };
    let plain = p.map(AreaPlace::Anywhere, 3, Protection::READ, Backing::Anonymous).unwrap();
    assert_eq!(p.protect(plain, 3, RW), Err(VmError::NoMemory), "RLIMIT_DATA is of what becomes data, too");
    p.protect(plain, 2, RW).unwrap();
    drop(p);
    world.end();
}

#[test]
fn mlockall_locks_what_there_is_and_what_comes_and_a_child_inherits_neither() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(2);
    p.space().lock_all(LockAll::CURRENT | LockAll::FUTURE, &p.limits).unwrap();
    populate_due(&mut p.space(), Populate::AsAllowed).unwrap();
    p.anonymous(3);
    assert_eq!((p.usage().locked_pages, p.usage().rss_anon), (5, 5));
    p.space().areas.validate(&layout());
    assert_eq!(p.advise(a, 1, Advice::DontNeed), Err(VmError::Invalid), "locked pages stay");
    let child = p.fork(1);
    assert_eq!(child.usage().locked_pages, 0);
    child.space().areas.validate(&layout());
    p.space().unlock_all();
    p.space().areas.validate(&layout());
    p.anonymous(1);
    assert_eq!(p.usage().locked_pages, 0);
    drop((p, child));
    world.end();
}

#[test]
fn protection_is_exact_to_the_page_and_splits_and_joins_areas() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(5);
    (0..5).for_each(|n| p.store(a + n * PAGE, n as u8 + 1).unwrap());
    p.protect(a + PAGE, 2, Protection::READ).unwrap();
    assert_eq!(p.store(a + PAGE, 9), Err(ACCERR));
    assert_eq!(p.load(a + 2 * PAGE), Ok(3));
    p.protect(a + 2 * PAGE, 1, Protection::NONE).unwrap();
    assert_eq!(p.load(a + 2 * PAGE), Err(ACCERR));
    assert_eq!(p.usage().areas, 4);
    let frame = p.frame(a + 2 * PAGE);
    p.protect(a, 5, RW).unwrap();
    assert_eq!(p.usage().areas, 1);
    assert_eq!(p.load(a + 2 * PAGE), Ok(3));
    p.store(a + 2 * PAGE, 7).unwrap();
    assert_eq!(p.frame(a + 2 * PAGE), frame, "row 02: nothing was copied");
    p.unmap(a + 3 * PAGE, 1).unwrap();
    assert_eq!(p.protect(a, 5, Protection::READ), Err(VmError::NoMemory));
    assert_eq!(p.store(a, 1), Err(ACCERR), "what lies before the hole has changed");
    p.store(a + 4 * PAGE, 1).unwrap();
    drop(p);
    world.end();
}

#[test]
fn a_file_opened_for_reading_never_becomes_writable_through_shared_memory() {
    let world = World::new();
    let file = world.file(&[1]);
    let p = world.process(0);
    let backing = || Backing::SharedFile(view(&file, 0), SharedWrite::Denied);
    assert_eq!(p.map(AreaPlace::Anywhere, 1, RW, backing()), Err(VmError::Access));
    let at = p.map(AreaPlace::Anywhere, 1, Protection::READ, backing()).unwrap();
    assert_eq!(p.protect(at, 1, RW), Err(VmError::Access));
    let at = p.map(AreaPlace::Anywhere, 1, Protection::READ, Backing::PrivateFile(view(&file, 0))).unwrap();
    p.protect(at, 1, RW).unwrap();
    p.store(at, 5).unwrap();
    assert_eq!(read(file.cache(), 0, 1), [1]);
    assert_eq!(
        p.map(AreaPlace::Anywhere, 1, RW, Backing::PrivateFile(view(&file, 100))),
        Err(VmError::Invalid)
    );
    let far = i64::MAX as u64 & !(PAGE - 1);
    assert_eq!(
        p.map(AreaPlace::Anywhere, 2, RW, Backing::PrivateFile(view(&file, far))),
        Err(VmError::Overflow)
    );
    drop((p, file));
    world.end();
}

#[test]
fn calls_of_any_size_let_others_run() {
    const BLOCK: u64 = 512 * PAGE;
    // A page in each of 256 tables of one area; 600 areas lie behind it.
    const BLOCKS: u64 = 256;
    let world = World::new();
    let p = world.process(0);
    let at = p.map(AreaPlace::Fixed(VirtAddr(0x1000_3000)), BLOCKS * 512, RW, Backing::Anonymous).unwrap();
    (0..BLOCKS).for_each(|n| p.store(at + n * BLOCK, 1).unwrap());
    let areas = p.map(AreaPlace::Fixed(VirtAddr(0x80_0000_0000)), 600, RW, Backing::Anonymous).unwrap();
    (0..300).for_each(|n| p.protect(areas + 2 * n * PAGE, 1, Protection::READ).unwrap());
    let rests = |work: &dyn Fn()| {
        let before = world.frames.rests();
        work();
        world.frames.rests() - before
    };
    let child = core::cell::RefCell::new(None);
    // Once for each table and area that a call visits, for each pass.
    let counts = [
        ("fork", 1457, rests(&|| *child.borrow_mut() = Some(p.fork(0)))),
        ("the child's end", 1113, rests(&|| drop(child.borrow_mut().take()))),
        ("mprotect", 257, rests(&|| p.protect(at, BLOCKS * 512, Protection::READ).unwrap())),
        ("mprotect of areas", 1800, rests(&|| p.protect(areas, 600, RW).unwrap())),
        ("MADV_DONTNEED", 129, rests(&|| p.advise(at, BLOCKS / 2 * 512, Advice::DontNeed).unwrap())),
        ("munmap", 513, rests(&|| p.unmap(at, BLOCKS * 512).unwrap())),
    ];
    for (call, least, counted) in counts {
        assert!(counted >= least, "{call} let others run {counted} times, not {least}");
    }
    drop(p);
    world.end();
}

#[test]
fn a_cache_that_ends_lets_others_run() {
    let world = World::new();
    let file = world.file(&[1; 300 * PAGE as usize]);
    let before = world.frames.rests();
    drop(file);
    let rests = world.frames.rests() - before;
    assert!(rests >= 300, "it did {rests} times");
    // Pages that are cut off or out of a file go in batches of 32.
    let file = world.file(&[1; 300 * PAGE as usize]);
    let rests = |work: &dyn Fn()| {
        let before = world.frames.rests();
        work();
        world.frames.rests() - before
    };
    let holes = rests(&|| file.cache().punch_hole(0..96 * PAGE).unwrap());
    let cut = rests(&|| file.cache().truncate(100 * PAGE).unwrap());
    assert!(holes >= 3 && cut >= 6, "a hole {holes} times, a cut {cut}");
    drop(file);
    world.end();
}

#[test]
fn a_move_that_is_interrupted_has_moved_what_it_reached_and_left_the_rest() {
    const BLOCK: u64 = 512 * PAGE;
    let world = World::new();
    for (to, source) in [
        (0x80_0000_0000, RemapSource::Unmap),
        (0x80_0000_3000, RemapSource::Unmap),
        (0x80_0000_0000, RemapSource::Keep),
    ] {
        let p = world.process(0);
        let at = p.map(AreaPlace::Fixed(VirtAddr(0x1000_0000)), 4 * 512, RW, Backing::Anonymous).unwrap();
        (0..4).for_each(|n| p.store(at + n * BLOCK + 5 * PAGE, n as u8 + 1).unwrap());
        let frames: Vec<_> = (0..4).map(|n| p.frame(at + n * BLOCK + 5 * PAGE)).collect();
        let place = RemapPlace::Fixed(VirtAddr(to));
        let wish = Remap { old: VirtAddr(at), old_len: 4 * BLOCK, new_len: 4 * BLOCK, place, source };
        let mut pauses = 0;
        let mut until = |last: u32| {
            pauses = 0;
            p.run(|| {
                p.space().remap(wish, &p.limits, &mut || {
                    pauses += 1;
                    if pauses > last { Err(VmError::Interrupted) } else { Ok(()) }
                })
            })
        };
        // While the tables are made nothing has moved; then there are three pauses between four
        // steps.
        assert_eq!(until(2), Err(VmError::Interrupted));
        assert!((0..4).all(|n| p.load(to + n * BLOCK + 5 * PAGE) == Err(MAPERR)));
        assert!((0..4).all(|n| p.frame(at + n * BLOCK + 5 * PAGE) == frames[n as usize]));
        assert_eq!(until(4), Err(VmError::Interrupted));
        for n in 0..4 {
            let (here, there) = (at + n * BLOCK + 5 * PAGE, to + n * BLOCK + 5 * PAGE);
            if n < 2 {
                let left = if source == RemapSource::Keep { Ok(0) } else { Err(MAPERR) };
                assert_eq!((p.load(here), p.load(there)), (left, Ok(n as u8 + 1)));
                assert_eq!(p.frame(there), frames[n as usize]);
            } else {
                assert_eq!((p.load(here), p.load(there)), (Ok(n as u8 + 1), Err(MAPERR)));
            }
        }
        drop(p);
    }
    world.end();
}

#[test]
fn mremap_moves_frames_without_copying_and_grows_in_place_where_it_can() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(4);
    p.store(a + PAGE, 7).unwrap();
    let frame = p.frame(a + PAGE);
    let remap = |old: u64, old_len: u64, new_len: u64, place, source| {
        let wish =
            Remap { old: VirtAddr(old), old_len: old_len * PAGE, new_len: new_len * PAGE, place, source };
        p.run(|| p.space().remap(wish, &p.limits, &mut || Ok(()))).map(|addr| addr.0)
    };
    let to = 0x5000_0000;
    let moved = remap(a, 4, 6, RemapPlace::Fixed(VirtAddr(to)), RemapSource::Unmap);
    assert_eq!(moved, Ok(to));
    assert_eq!((p.frame(to + PAGE), p.load(to + PAGE), p.load(a + PAGE)), (frame, Ok(7), Err(MAPERR)));
    assert_eq!(remap(to, 6, 9, RemapPlace::InPlace, RemapSource::Unmap), Ok(to));
    p.map(AreaPlace::Fixed(VirtAddr(to + 9 * PAGE)), 1, RW, Backing::SharedAnonymous).unwrap();
    assert_eq!(remap(to, 9, 10, RemapPlace::InPlace, RemapSource::Unmap), Err(VmError::NoMemory));
    let away = remap(to, 9, 10, RemapPlace::MayMove, RemapSource::Unmap).unwrap();
    assert_eq!((p.frame(away + PAGE), p.load(away + 9 * PAGE)), (frame, Ok(0)));
    let kept = remap(away, 10, 10, RemapPlace::MayMove, RemapSource::Keep).unwrap();
    assert_eq!(
        (p.load(kept + PAGE), p.load(away + PAGE)),
        (Ok(7), Ok(0)),
        "the old range is empty and stays"
    );
    assert_eq!(remap(kept, 10, 2, RemapPlace::InPlace, RemapSource::Unmap), Ok(kept));
    assert_eq!(p.load(kept + 2 * PAGE), Err(MAPERR));
    assert_eq!(remap(0x1234_0000, 1, 2, RemapPlace::MayMove, RemapSource::Unmap), Err(VmError::Fault));
    assert_eq!(remap(kept, 1, 0, RemapPlace::MayMove, RemapSource::Unmap), Err(VmError::Invalid));
    assert_eq!(
        remap(kept, 2, 2, RemapPlace::Fixed(VirtAddr(kept + PAGE)), RemapSource::Unmap),
        Err(VmError::Invalid)
    );
    let shared = p.map(AreaPlace::Anywhere, 2, RW, Backing::SharedAnonymous).unwrap();
    p.store(shared, 3).unwrap();
    let twin = remap(shared, 0, 2, RemapPlace::MayMove, RemapSource::Unmap).unwrap();
    assert_eq!((p.load(twin), p.load(shared)), (Ok(3), Ok(3)), "a length of 0 maps shared memory again");
    drop(p);
    world.end();
}

#[test]
fn a_move_that_finds_no_memory_has_not_begun() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(3);
    p.store(a, 1).unwrap();
    for budget in 0..3 {
        world.frames.fail_after(budget);
        let wish = Remap {
            old: VirtAddr(a),
            old_len: 3 * PAGE,
            new_len: 3 * PAGE,
            place: RemapPlace::Fixed(VirtAddr((budget + 1) << 39)),
            source: RemapSource::Unmap,
        };
        assert_eq!(p.run(|| p.space().remap(wish, &p.limits, &mut || Ok(()))), Err(VmError::NoMemory));
        world.frames.fail_never();
        assert_eq!(p.load(a), Ok(1));
    }
    drop(p);
    world.end();
}

#[test]
fn advice_does_what_it_says_and_unknown_advice_is_refused() {
    let world = World::new();
    let file = world.file(&[5; 4096]);
    let p = world.process(0);
    let a = p.anonymous(4);
    let f = p.map(AreaPlace::Anywhere, 1, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    p.advise(a, 2, Advice::PopulateWrite).unwrap();
    assert_eq!(p.usage().rss_anon, 2);
    p.store(f, 6).unwrap();
    p.advise(f, 1, Advice::DontNeed).unwrap();
    assert_eq!(p.load(f), Ok(5), "the file's bytes again");
    p.store(a, 1).unwrap();
    p.advise(a, 1, Advice::Free).unwrap();
    assert_eq!(p.advise(f, 1, Advice::Free), Err(VmError::Invalid), "anonymous memory only");
    p.store(a, 1).unwrap();
    p.store(a + PAGE, 2).unwrap();
    p.advise(a, 1, Advice::WipeOnFork).unwrap();
    p.advise(a + PAGE, 1, Advice::DontFork).unwrap();
    let child = p.fork(1);
    assert_eq!((child.load(a), child.load(a + PAGE)), (Ok(0), Err(MAPERR)));
    p.unmap(a + 2 * PAGE, 1).unwrap();
    assert_eq!(p.advise(a, 4, Advice::DontNeed), Err(VmError::NoMemory), "a hole is reported");
    assert_eq!(p.load(a), Ok(0), "after the rest was done");
    assert_eq!(p.advise(f, 1, Advice::PopulateRead), Ok(()));
    p.protect(f, 1, Protection::READ).unwrap();
    assert_eq!(p.advise(f, 1, Advice::PopulateWrite), Err(VmError::Invalid));
    let known: Vec<i32> = (-1..200).filter(|&n| Advice::from_linux(n).is_some()).collect();
    assert_eq!(known, [0, 1, 2, 3, 4, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25]);
    drop((p, child, file));
    world.end();
}

#[test]
fn mincore_tells_present_from_absent_and_holes_are_errors() {
    let world = World::new();
    let file = world.file(&[5; 4096]);
    let p = world.process(0);
    let a = p.anonymous(3);
    let f =
        p.map(AreaPlace::Fixed(VirtAddr(a + 3 * PAGE)), 2, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    p.store(a + PAGE, 1).unwrap();
    let mut seen = [false; 5];
    assert_eq!(p.space().residency(VirtAddr(a), &mut seen), Ok(3), "as far as one area goes");
    assert_eq!(p.space().residency(VirtAddr(f), &mut seen[3..]), Ok(2));
    assert_eq!(seen, [false, true, false, true, false], "a cached page counts before it is touched");
    assert_eq!(p.space().residency(VirtAddr(f + 2 * PAGE), &mut seen), Err(VmError::NoMemory));
    drop((p, file));
    world.end();
}

#[test]
fn msync_names_each_shared_file_and_tells_of_holes_after_them() {
    let world = World::new();
    let (first, second) = (world.file(&[5; 8192]), world.file(&[6; 4096]));
    let p = world.process(0);
    let a = p.anonymous(10);
    let map = |at: u64, pages: u64, file: &File| {
        let backing = Backing::SharedFile(view(file, 0), SharedWrite::Allowed);
        p.map(AreaPlace::Fixed(VirtAddr(a + at * PAGE)), pages, RW, backing).unwrap();
    };
    map(2, 2, &first);
    map(5, 1, &second);
    p.map(AreaPlace::Fixed(VirtAddr(a + 7 * PAGE)), 1, RW, Backing::PrivateFile(view(&first, 0))).unwrap();
    let named = |pages: core::ops::Range<u64>, mode, others| {
        let (start, len) = (VirtAddr(a + pages.start * PAGE), (pages.end - pages.start) * PAGE);
        let mut call = SyncCall::new(start, len, mode, others).unwrap();
        let mut files = Vec::new();
        loop {
            match p.space().next_to_sync(&mut call) {
                Ok(Some(file)) => files.push(Arc::ptr_eq(&file, &first)),
                Ok(None) => return (files, Ok(())),
                Err(error) => return (files, Err(error)),
            }
        }
    };
    let good = OtherCopies::Good;
    assert_eq!(
        named(0..10, SyncMode::Wait, good),
        (vec![true, false], Ok(())),
        "private memory has no store"
    );
    assert_eq!(named(3..5, SyncMode::Wait, good), (vec![true], Ok(())));
    assert_eq!(named(0..0, SyncMode::Wait, good), (vec![], Ok(())));
    assert_eq!(named(0..10, SyncMode::Start, good), (vec![], Ok(())));
    assert_eq!(named(0..11, SyncMode::Check, good), (vec![], Err(VmError::NoMemory)), "a hole at the end");
    p.space().unmap(VirtAddr(a + 4 * PAGE), PAGE).unwrap();
    assert_eq!(named(0..10, SyncMode::Wait, good), (vec![true, false], Err(VmError::NoMemory)));
    p.space().lock(VirtAddr(a + 5 * PAGE), PAGE, LockMode::OnFault, &Limits::NONE).unwrap();
    assert_eq!(named(5..10, SyncMode::Wait, OtherCopies::Invalid), (vec![], Err(VmError::Busy)));
    let unaligned = SyncCall::new(VirtAddr(a + 1), PAGE, SyncMode::Check, good);
    assert_eq!(unaligned.unwrap_err(), VmError::Invalid);
    drop((p, first, second));
    world.end();
}

#[test]
fn neighbours_of_a_file_page_are_mapped_in_passing_unless_advised_against() {
    let world = World::new();
    let file = world.file(&[5; 40 * 4096]);
    let p = world.process(0);
    let place = AreaPlace::Fixed(VirtAddr(0x4000_0000));
    let f = p.map(place, 40, Protection::READ, Backing::PrivateFile(view(&file, 0))).unwrap();
    p.load(f + 17 * PAGE).unwrap();
    assert_eq!(p.usage().rss_file, 16);
    p.load(f + 33 * PAGE).unwrap();
    assert_eq!(p.usage().rss_file, 16 + 8, "as far as the area goes");
    p.advise(f, 16, Advice::Random).unwrap();
    p.load(f).unwrap();
    assert_eq!(p.usage().rss_file, 16 + 8 + 1);
    let faults = p.usage().minor_faults;
    (16..40).for_each(|n| assert_eq!(p.load(f + n * PAGE), Ok(5)));
    assert_eq!(p.usage().minor_faults, faults);
    drop((p, file));
    world.end();
}

#[test]
fn smaps_divides_what_is_shared_and_usage_remembers_its_peaks() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(4);
    (0..4).for_each(|n| p.store(a + n * PAGE, 1).unwrap());
    let child = p.fork(1);
    p.store(a, 2).unwrap();
    let smaps = {
        let space = p.space();
        let area = space.area_at(VirtAddr(a)).unwrap();
        space.smaps(&area)
    };
    assert_eq!((smaps.rss, smaps.pss, smaps.anonymous), (4 * PAGE, PAGE + 3 * PAGE / 2, 4 * PAGE));
    assert_eq!((smaps.private_dirty, smaps.shared_dirty), (PAGE, 3 * PAGE));
    p.unmap(a, 4).unwrap();
    let usage = p.usage();
    assert_eq!((usage.total_pages, usage.peak_total, usage.rss(), usage.peak_rss), (0, 4, 0, 4));
    let footprint = p.space().footprint();
    assert_eq!((footprint.resident, footprint.peak, footprint.table_bytes), (0, 4, usage.page_table_bytes));
    drop((p, child));
    world.end();
}

#[test]
fn tables_of_what_was_unmapped_are_given_back() {
    let world = World::new();
    let p = world.process(0);
    let empty = p.usage().page_table_bytes;
    let a = p.map(AreaPlace::Fixed(VirtAddr(0x4000_0000 - PAGE)), 2, RW, Backing::Anonymous).unwrap();
    p.store(a, 1).unwrap();
    p.store(a + PAGE, 1).unwrap();
    assert_eq!(
        p.usage().page_table_bytes,
        empty + 5 * PAGE,
        "one of level 3, two of level 2, two of level 1"
    );
    p.unmap(a, 1).unwrap();
    assert_eq!(p.usage().page_table_bytes, empty + 3 * PAGE);
    p.unmap(a + PAGE, 1).unwrap();
    assert_eq!(p.usage().page_table_bytes, empty);
    drop(p);
    world.end();
}
