//! Disks that fail, are full, are read ahead, and are removed.

use super::*;

#[test]
fn a_page_that_cannot_be_read_is_a_bus_error_and_harms_no_other() {
    let (s, p, a) = with_filled(64, 8);
    s.page_out(&p, a, 8);
    let bad = place(&p, a + 3 * PAGE).unwrap().slot;
    s.disk.bad_reads.lock().unwrap().insert(bad);
    for n in 0..8 {
        let expected = if n == 3 { Err(FaultError::Bus) } else { Ok(1 + n as u8) };
        assert_eq!(p.load(a + n * PAGE), expected, "page {n}");
    }
    assert_eq!(p.store(a + 3 * PAGE, 9), Err(FaultError::Bus));
    s.disk.bad_reads.lock().unwrap().clear();
    assert_eq!(p.load(a + 3 * PAGE), Ok(4), "it is where it was");
    drop(p);
    s.end();
}

#[test]
fn pages_that_cannot_be_written_stay_and_their_slots_are_never_used_again() {
    let (s, p, a) = with_filled(64, 4);
    s.disk.bad_writes.lock().unwrap().insert(2);
    let out = s.page_out(&p, a, 4);
    assert_eq!((out.written, out.freed, out.failed), (3, 3, 1));
    s.check();
    let frames: Vec<_> = (0..4).map(|n| (p.load(a + n * PAGE), is_exclusive(&p, a + n * PAGE))).collect();
    assert_eq!(frames, [(Ok(1), true), (Ok(2), true), (Ok(3), true), (Ok(4), true)]);
    assert_eq!((s.used(), s.swap().usage().slots), (0, 63));
    assert_eq!(s.page_out(&p, a, 4).written, 4);
    let slots: BTreeSet<u64> = (0..4).map(|n| place(&p, a + n * PAGE).unwrap().slot).collect();
    assert!(slots.len() == 4 && !slots.contains(&2), "{slots:?}");
    assert_eq!(p.load(a), Ok(1));
    drop(p);
    s.end();
}

/// No process touches the page: the eviction itself tries again, also for a shared page.
#[test]
fn a_page_that_could_not_be_written_goes_to_another_slot_when_the_clock_comes_by() {
    let (s, p, a) = with_filled(64, 4);
    let child = p.fork(1);
    s.disk.bad_writes.lock().unwrap().insert(2);
    assert_eq!(s.evict(&p, 100, Age::Ignore).failed, 1);
    assert_eq!(place(&p, a + PAGE).unwrap().slot, 2);
    s.check();
    // The child's leaf must not lead to a slot that will not be written.
    let out = s.page_out(&child, a, 4);
    assert_eq!((out.failed, place(&child, a + PAGE)), (0, None));
    let out = s.evict(&p, 100, Age::Ignore);
    assert_eq!((out.failed, out.written), (0, 1));
    s.evict(&p, 100, Age::Ignore);
    assert_eq!((p.usage().rss_anon, child.usage().rss_anon, s.swap().usage().cached), (0, 0, 0));
    assert_eq!(s.swap().usage().slots, 63);
    for n in 0..4 {
        assert_eq!(place(&p, a + n * PAGE), place(&child, a + n * PAGE));
        assert_ne!(place(&p, a + n * PAGE).unwrap().slot, 2);
        assert_eq!((p.load(a + n * PAGE), child.load(a + n * PAGE)), (Ok(1 + n as u8), Ok(1 + n as u8)));
    }
    drop((p, child));
    s.end();
}

/// A write that fails because memory was short does not make its slot a bad one.
#[test]
fn a_write_that_found_no_memory_is_tried_again_and_costs_no_slot() {
    let (s, p, a) = with_filled(64, 4);
    s.disk.set_health(Health::Starved);
    let out = s.evict(&p, 4, Age::Ignore);
    assert_eq!((out.freed, out.failed), (0, 4));
    s.check();
    assert_eq!(s.disk.writes.lock().unwrap().len(), 1, "it is not asked for each page");
    s.disk.set_health(Health::Sound);
    assert_eq!(s.evict(&p, 4, Age::Ignore).freed, 4);
    assert_eq!((s.swap().usage().slots, s.used()), (64, 4));
    assert_filled(&p, a, 4, 1);
    drop(p);
    s.end();
}

#[test]
fn a_disk_that_takes_no_page_loses_no_more_slots_than_one_try_takes() {
    let (s, p, a) = with_filled(1000, 200);
    s.disk.set_health(Health::Unwritable);
    let out = s.evict(&p, 200, Age::Ignore);
    assert_eq!((out.freed, out.failed), (0, SWAP_RUN as u64));
    assert_filled(&p, a, 200, 1);
    assert_eq!(s.swap().usage().slots, 1000 - SWAP_RUN as u64);
    // In the end there is none left of it, and another disk has them all.
    while s.evict(&p, 200, Age::Ignore).failed > 0 {
        s.check();
    }
    assert_eq!(s.swap().usage().slots, s.swap().usage().cached);
    assert_filled(&p, a, 200, 1);
    assert_eq!(s.swap().usage().slots, 0);
    s.swap().add(Disk::new(s.world.model()), 201, &[], -1).unwrap();
    // From where the clock's hand is, and from the front.
    assert_eq!((0..2).map(|_| s.evict(&p, 200, Age::Ignore).freed).sum::<u64>(), 200);
    assert_filled(&p, a, 200, 1);
    drop(p);
    s.end();
}

#[test]
fn a_full_area_takes_what_it_can_and_the_rest_stays() {
    let (s, p, a) = with_filled(6, 40);
    assert_eq!(s.evict(&p, 40, Age::Ignore).freed, 6);
    assert_eq!((p.usage().swapped, p.usage().rss_anon), (6, 34));
    s.check();
    assert_filled(&p, a, 40, 1);
    drop(p);
    s.end();
}

#[test]
fn without_an_area_nothing_is_lost() {
    let world = World::new();
    let p = world.process(0);
    let a = filled(&p, 4, 1);
    let wish = wish(4, Age::Ignore);
    assert_eq!(p.run(|| world.commons.evict(&wish)).freed, 0);
    assert_filled(&p, a, 4, 1);
    drop(p);
    world.end();
}

#[test]
fn no_frame_for_a_page_that_comes_back_changes_nothing() {
    let (s, p, a) = with_filled(64, 8);
    s.page_out(&p, a, 8);
    s.world.frames.fail_after(0);
    assert_eq!(p.load(a), Err(FaultError::OutOfMemory));
    s.check();
    s.world.frames.fail_after(1);
    assert_eq!(p.load(a), Ok(1), "one frame is enough for one page");
    s.world.frames.fail_never();
    assert_filled(&p, a, 8, 1);
    drop(p);
    s.end();
}

#[test]
fn an_area_of_higher_priority_fills_first_and_bad_pages_are_left_out() {
    let s = Swapping::new(64);
    let fast = Disk::new(s.world.model());
    s.swap().add(fast.clone(), 6, &[2, 3, 99], 5).unwrap();
    let p = s.world.process(0);
    let a = filled(&p, 8, 1);
    s.page_out(&p, a, 8);
    assert_eq!(*fast.writes.lock().unwrap(), [(1, 1), (4, 2)]);
    assert_eq!(*s.disk.writes.lock().unwrap(), [(1, 5)]);
    let areas: Vec<_> = s.swap().areas().map(|area| (area.slots, area.used, area.priority)).collect();
    assert_eq!(areas, [(64, 5, 0), (3, 3, 5)]);
    assert_filled(&p, a, 8, 1);
    assert_eq!(s.swap().add(fast.clone(), 1, &[], 0), Err(VmError::Invalid), "a header only");
    assert_eq!(s.swap().add(fast, 3, &[1, 2], 0), Err(VmError::Invalid), "bad pages only");
    drop(p);
    s.end();
}

#[test]
fn read_ahead_grows_where_it_is_of_use_and_shrinks_where_it_is_not() {
    let s = Swapping::new(600);
    let p = s.world.process(0);
    let a = filled(&p, 256, 0);
    s.page_out(&p, a, 256);
    assert_filled(&p, a, 256, 0);
    let (ahead, hits) = (s.count(Event::SwapAhead), s.count(Event::SwapAheadHit));
    assert!(ahead >= 7 * 256 / 8 && hits == ahead, "{ahead} {hits}");
    assert_eq!((s.count(Event::SwapIn), s.count(Event::SwapOut)), (256, 256));
    s.page_out(&p, a, 256);
    s.disk.reads.lock().unwrap().clear();
    (0..8).for_each(|n| assert_eq!(p.load(a + n * 31 * PAGE), Ok(n as u8 * 31)));
    assert_eq!(s.disk.reads.lock().unwrap().last().unwrap().1, 1);
    s.swap().set_ahead(0);
    let ahead = s.count(Event::SwapAhead);
    (0..16).for_each(|n| assert!(p.load(a + n * PAGE).is_ok()));
    assert_eq!(s.count(Event::SwapAhead), ahead, "page-cluster 0 reads no page that nobody asked for");
    drop(p);
    s.end();
}

#[test]
fn pages_that_were_read_ahead_in_vain_are_the_first_to_go() {
    let (s, p, a) = with_filled(64, 8);
    s.page_out(&p, a, 8);
    p.load(a).unwrap();
    assert_eq!(s.swap().usage().cached, 7);
    let done = s.evict(&p, 4, Age::Ignore);
    assert_eq!((done.freed, done.written), (4, 0));
    assert_eq!(p.run(|| s.swap().shrink_cache(100)), 3);
    assert_filled(&p, a, 8, 1);
    drop(p);
    s.end();
}

#[test]
fn advice_that_pages_will_be_needed_reads_them_and_maps_none() {
    let (s, p, a) = with_filled(64, 40);
    s.page_out(&p, a, 40);
    p.advise(a, 40, Advice::WillNeed).unwrap();
    assert_eq!((p.usage().rss_anon, s.swap().usage().cached), (0, 40));
    assert_eq!(s.disk.reads.lock().unwrap().iter().map(|&(_, count)| count).sum::<usize>(), 40);
    let majors = p.usage().major_faults;
    assert_filled(&p, a, 40, 1);
    assert_eq!(p.usage().major_faults, majors);
    drop(p);
    s.end();
}

#[test]
fn swapoff_brings_everything_back_as_it_was() {
    let (s, p, a) = with_filled(64, 40);
    s.page_out(&p, a, 40);
    let child = p.fork(1);
    let alone = filled(&child, 2, 7);
    s.page_out(&child, alone, 2);
    child.store(a, 9).unwrap();
    assert_eq!(s.swap_off(&p), Ok(()));
    assert_eq!(s.swap().usage(), SwapUsage::default());
    assert_eq!((p.usage().swapped, child.usage().swapped), (0, 0));
    assert_eq!(p.frame(a + PAGE), child.frame(a + PAGE), "what was shared is");
    assert!(is_exclusive(&child, alone) && !is_exclusive(&p, a + PAGE));
    assert_eq!((p.load(a), child.load(a), child.load(alone)), (Ok(1), Ok(9), Ok(7)));
    assert_filled(&p, a + PAGE, 39, 2);
    assert_eq!(s.swap_off(&p), Err(VmError::Invalid), "once");
    drop((p, child));
    s.end();
}

#[test]
fn swapoff_with_an_unreadable_page_loses_that_page_only() {
    let (s, p, a) = with_filled(64, 8);
    s.page_out(&p, a, 8);
    let child = p.fork(1);
    s.disk.bad_reads.lock().unwrap().insert(place(&p, a + 2 * PAGE).unwrap().slot);
    assert_eq!(s.swap_off(&p), Ok(()));
    for n in 0..8 {
        let expected = if n == 2 { Err(FaultError::Bus) } else { Ok(1 + n as u8) };
        assert_eq!((p.load(a + n * PAGE), child.load(a + n * PAGE)), (expected, expected), "page {n}");
    }
    drop(child.fork(2));
    p.advise(a + 2 * PAGE, 1, Advice::DontNeed).unwrap();
    assert_eq!(p.load(a + 2 * PAGE), Ok(0));
    drop((p, child));
    s.end();
}

#[test]
fn an_area_that_is_leaving_takes_no_page() {
    let (s, p, a) = with_filled(64, 40);
    s.page_out(&p, a, 40);
    let wish = wish(100, Age::Ignore);
    let mut written = 0;
    let outcome = p.run(|| {
        s.world.commons.swap_off(
            s.area,
            &mut || {
                written += s.world.commons.evict(&wish).written;
                if written == 0 {
                    core::ops::ControlFlow::Continue(())
                } else {
                    core::ops::ControlFlow::Break(())
                }
            },
            &mut find_none,
        )
    });
    assert_eq!((outcome, written), (Ok(()), 0));
    assert_filled(&p, a, 40, 1);
    drop(p);
    s.end();
}

/// Pages that go to the area itself to make room would come back for ever.
#[test]
fn swapoff_that_looks_for_memory_puts_nothing_into_the_area_meanwhile() {
    let (s, p, a) = with_filled(64, 40);
    s.page_out(&p, a, 40);
    let frames = s.world.frames;
    let more = filled(&p, 40, 100);
    let wish = wish(100, Age::Ignore);
    let mut rounds = 0;
    // Only freed memory is available: first none, since there is no other area, then a few frames.
    frames.fail_after(4);
    let mut find = || {
        rounds += 1;
        assert_eq!(s.world.commons.evict(&wish).freed, 0, "there is no room elsewhere");
        if rounds == 3 {
            return core::ops::ControlFlow::Break(());
        }
        frames.fail_after(8);
        core::ops::ControlFlow::Continue(())
    };
    let mut go_on = || core::ops::ControlFlow::Continue(());
    let outcome = p.run(|| s.world.commons.swap_off(s.area, &mut go_on, &mut find));
    assert_eq!((outcome, rounds), (Err(VmError::NoMemory), 3));
    assert!((1..40).contains(&p.usage().swapped), "{} have come back", 40 - p.usage().swapped);
    frames.fail_never();
    // Another area has room for the evicted pages.
    let other = s.swap().add(Disk::new(frames.model()), 65, &[], 1).unwrap();
    frames.fail_after(2);
    let mut find = || {
        let found = s.world.commons.evict(&EvictWish { pages: 8, ..wish }).freed;
        frames.fail_never();
        if found > 0 { core::ops::ControlFlow::Continue(()) } else { core::ops::ControlFlow::Break(()) }
    };
    assert_eq!(p.run(|| s.world.commons.swap_off(s.area, &mut go_on, &mut find)), Ok(()));
    frames.fail_never();
    assert_eq!(p.run(|| s.world.commons.swap_off(other, &mut go_on, &mut find_none)), Ok(()));
    assert_filled(&p, a, 40, 1);
    assert_filled(&p, more, 40, 100);
    drop(p);
    s.end();
}

#[test]
fn swapoff_without_memory_or_stopped_leaves_the_area_in_use() {
    let (s, p, a) = with_filled(64, 40);
    s.page_out(&p, a, 40);
    s.world.frames.fail_after(9);
    assert_eq!(s.swap_off(&p), Err(VmError::NoMemory));
    s.world.frames.fail_never();
    s.check();
    let stop = &mut || core::ops::ControlFlow::Break(());
    assert_eq!(p.run(|| s.world.commons.swap_off(s.area, stop, &mut find_none)), Err(VmError::Again));
    assert!(s.evict(&p, 1, Age::Ignore).freed > 0);
    assert_filled(&p, a, 40, 1);
    drop(p);
    s.end();
}
