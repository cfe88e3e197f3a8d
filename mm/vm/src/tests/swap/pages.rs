//! Pages that are swapped out and in.

use freehold_machine::CpuId;

use super::*;

#[test]
fn pages_go_out_together_and_come_back_with_their_bytes() {
    let (s, p, a) = with_filled(64, 8);
    let free = s.world.frames.free();
    let done = s.page_out(&p, a, 8);
    assert_eq!((done.written, done.freed, done.failed), (8, 8, 0));
    assert_eq!(s.world.frames.free(), free + 8);
    assert_eq!(*s.disk.writes.lock().unwrap(), [(1, 8)], "one run, after the header");
    assert_eq!((p.usage().rss_anon, p.usage().swapped, s.used()), (0, 8, 8));
    s.check();
    assert_filled(&p, a, 8, 1);
    assert_eq!((p.usage().rss_anon, p.usage().swapped, s.used()), (8, 0, 0));
    assert_eq!(p.usage().major_faults, 1, "the others were read with the first");
    drop(p);
    s.end();
}

/// The child's leaf of the frame that both had is gone, and its page has no slot yet, while the
/// parent takes its own page back from the swap cache.
#[test]
fn a_page_is_not_its_processs_alone_while_anothers_is_on_its_way_out() {
    let s = Swapping::new(64);
    let (mut p, model) = (s.world.process(0), s.world.model());
    let a = p.anonymous(1);
    p.store(a, 1).unwrap();
    let child = p.fork(1);
    assert_eq!(child.load(a), Ok(1));
    p.judge = Judge::AtTheEnd;
    p.run(|| {});
    let p = Arc::new(p);
    let parent = p.clone();
    model.before_flush(move || parent.store(a, 2).unwrap());
    model.on_cpu(CpuId(2), || s.world.commons.evict(&wish(2, Age::Ignore)));
    assert_eq!(Arc::strong_count(&p), 1, "the parent stored before the child's page was flushed");
    assert_eq!((child.load(a), p.load(a)), (Ok(1), Ok(2)));
    drop((child, p));
    s.end_of_storm();
}

/// The program's CPU has cached the page's translation since the kernel filled it, and has not
/// flushed it yet although the leaf is removed.
#[test]
fn a_store_between_the_end_of_a_pages_leaf_and_its_flush_goes_with_the_page() {
    let s = Swapping::new(64);
    let (p, model) = (s.world.process(0), s.world.model());
    let a = p.anonymous(1);
    p.store(a, 1).unwrap();
    model.let_flushes_be_late();
    let storing = Arc::new(Mutex::new(None));
    let started = storing.clone();
    model.before_flush(move || {
        let store = move || model.on_cpu(CpuId(0), || model.store(VirtAddr(a), 2));
        *started.lock().unwrap() = Some(std::thread::spawn(store));
        while model.counts().late == 0 {
            std::thread::yield_now();
        }
    });
    let done = model.on_cpu(CpuId(2), || s.world.commons.evict(&wish(1, Age::Ignore)));
    assert_eq!((done.written, done.freed, p.usage().swapped), (1, 1, 1));
    let storing = storing.lock().unwrap().take().expect("the page was flushed");
    assert_eq!(storing.join().unwrap(), Ok(()));
    assert_eq!(p.load(a), Ok(2));
    drop(p);
    s.end();
}

#[test]
fn what_was_never_written_is_not_swapped() {
    let s = Swapping::new(64);
    let p = s.world.process(0);
    let file = s.world.file(&[7; 4096]);
    let zero = p.anonymous(1);
    let of_file = p.map(AreaPlace::Anywhere, 1, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    p.load(zero).unwrap();
    p.load(of_file).unwrap();
    for at in [zero, of_file] {
        assert_eq!(s.page_out(&p, at, 1).written, 0);
        assert_eq!(place(&p, at), None);
    }
    p.store(of_file, 8).unwrap();
    assert_eq!(s.page_out(&p, of_file, 1).written, 1, "a private copy is");
    assert_eq!(p.load(of_file), Ok(8));
    drop((p, file));
    s.end();
}

#[test]
fn unmapping_dropping_or_ending_a_space_frees_its_slots() {
    let (s, p, a) = with_filled(64, 8);
    s.page_out(&p, a, 8);
    p.unmap(a, 2).unwrap();
    assert_eq!(s.used(), 6);
    p.advise(a + 2 * PAGE, 2, Advice::DontNeed).unwrap();
    p.advise(a + 4 * PAGE, 1, Advice::Free).unwrap();
    assert_eq!(s.used(), 3);
    s.check();
    assert_eq!(p.load(a + 2 * PAGE), Ok(0));
    assert_eq!(p.load(a + 4 * PAGE), Ok(0));
    drop(p);
    s.end();
}

#[test]
fn a_truncated_file_takes_private_copies_from_the_swap_too_and_a_hole_leaves_them() {
    let s = Swapping::new(64);
    let p = s.world.process(0);
    let file = s.world.file(&[7; 3 * 4096]);
    let a = p.map(AreaPlace::Anywhere, 3, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    (0..3).for_each(|n| p.store(a + n * PAGE, 9).unwrap());
    s.page_out(&p, a, 3);
    p.run(|| file.cache().punch_hole(0..4096)).unwrap();
    assert_eq!((s.used(), p.load(a)), (3, Ok(9)));
    p.run(|| file.cache().truncate(2 * 4096)).unwrap();
    assert_eq!(p.load(a + 2 * PAGE), Err(FaultError::Bus));
    assert_eq!(p.load(a + PAGE), Ok(9));
    drop((p, file));
    s.end();
}

#[test]
fn a_moved_page_is_moved_where_it_is_and_a_protected_one_stays_there() {
    let (s, p, a) = with_filled(64, 4);
    s.page_out(&p, a, 4);
    let places: Vec<_> = (0..4).map(|n| place(&p, a + n * PAGE)).collect();
    let to = 0x5000_0000;
    let wish = Remap {
        old: VirtAddr(a),
        old_len: 4 * PAGE,
        new_len: 4 * PAGE,
        place: RemapPlace::Fixed(VirtAddr(to)),
        source: RemapSource::Unmap,
    };
    p.run(|| p.space().remap(wish, &Limits::NONE, &mut || Ok(()))).unwrap();
    p.protect(to, 4, Protection::READ).unwrap();
    let now: Vec<_> = (0..4).map(|n| place(&p, to + n * PAGE)).collect();
    assert_eq!(now, places);
    assert!(s.disk.reads.lock().unwrap().is_empty());
    assert_eq!((p.store(to, 5), p.load(to + PAGE)), (Err(ACCERR), Ok(2)));
    p.protect(to, 4, RW).unwrap();
    let frame = p.frame(to + PAGE);
    p.store(to + PAGE, 6).unwrap();
    assert_eq!(p.frame(to + PAGE), frame);
    drop(p);
    s.end();
}

#[test]
fn soft_dirty_marks_go_out_and_in_and_are_cleared_outside() {
    let (s, p, a) = with_filled(64, 3);
    let written = |addr: u64| p.space().resident.tables.entry(VirtAddr(addr)).is_soft_dirty();
    let clear = || p.run(|| p.space().clear_references(ClearRefs::SoftDirty));
    s.page_out(&p, a, 1);
    assert!(written(a), "as it was");
    clear();
    assert!(!written(a), "cleared where it is");
    p.store(a + PAGE, 7).unwrap();
    s.page_out(&p, a + PAGE, 2);
    assert!(written(a + PAGE) && !written(a + 2 * PAGE));
    for n in 0..3 {
        p.load(a + n * PAGE).unwrap();
        assert_eq!(written(a + n * PAGE), n == 1, "reading page {n} back is no store");
    }
    p.store(a, 9).unwrap();
    assert!(written(a), "the first store after the clearing is noticed");
    s.page_out(&p, a + 2 * PAGE, 1);
    p.store(a + 2 * PAGE, 9).unwrap();
    assert!(written(a + 2 * PAGE));
    drop(p);
    s.end();
}

#[test]
fn a_used_page_stays_for_one_round_of_the_clock_and_an_unused_one_goes() {
    let (s, p, a) = with_filled(64, 8);
    let first = s.evict(&p, 8, Age::Respect);
    assert_eq!((first.scanned, first.written), (8, 0), "all were used");
    p.load(a + 3 * PAGE).unwrap();
    let second = s.evict(&p, 8, Age::Respect);
    assert_eq!((second.written, second.freed), (7, 7));
    assert!(place(&p, a + 3 * PAGE).is_none() && place(&p, a).is_some());
    assert_eq!(s.evict(&p, 1, Age::Ignore).freed, 1, "in need, use does not protect");
    drop(p);
    s.end();
}

#[test]
fn the_clock_goes_through_all_spaces_in_turn_and_takes_what_is_wanted() {
    let s = Swapping::new(1000);
    let processes: Vec<_> = (0..3).map(|cpu| s.world.process(cpu)).collect();
    processes.iter().for_each(|p| assert!(filled(p, 100, 1) > 0));
    let done = s.evict(&processes[0], 150, Age::Ignore);
    assert!((150..182).contains(&done.freed), "{done:?}");
    let rest = s.evict(&processes[0], 1000, Age::Ignore);
    assert_eq!(done.freed + rest.freed, 300);
    s.check();
    drop(processes);
    s.end();
}

#[test]
fn frames_of_other_nodes_than_the_one_in_need_stay() {
    const PAGES: u64 = 1600;
    let s = Swapping::new(PAGES);
    let p = s.world.process(0);
    let a = filled(&p, PAGES, 1);
    let nodes: Vec<_> = (0..PAGES).map(|n| s.world.commons.node_of(p.frame(a + n * PAGE))).collect();
    let here = nodes[0];
    let of_here = nodes.iter().filter(|&&node| node == here).count() as u64;
    assert!(of_here < PAGES, "the test needs frames of both");
    let wish = EvictWish {
        pages: PAGES,
        age: Age::Ignore,
        frames: FrameChoice::on(NodeSet::single(here)),
        effort: 0,
    };
    assert_eq!(p.run(|| s.world.commons.evict(&wish)).freed, of_here);
    for (n, node) in nodes.iter().enumerate() {
        assert_eq!(place(&p, a + n as u64 * PAGE).is_some(), *node == here);
    }
    drop(p);
    s.end();
}

#[test]
fn locked_pages_stay_in_memory() {
    let (s, p, a) = with_filled(64, 4);
    s.page_out(&p, a, 4);
    p.lock(a, 4, &Limits::NONE).unwrap();
    assert_eq!(p.usage().rss_anon, 4, "locking brings them back");
    assert_eq!(s.evict(&p, 4, Age::Ignore), SwapEvicted::default());
    assert_eq!(p.advise(a, 4, Advice::PageOut), Err(VmError::Invalid));
    p.run(|| p.space().unlock(VirtAddr(a), 2 * PAGE)).unwrap();
    assert_eq!(s.evict(&p, 4, Age::Ignore).freed, 2);
    drop(p);
    s.end();
}

#[test]
fn a_large_page_goes_in_pieces() {
    let s = Swapping::new(1024);
    s.world.commons.set_huge_mode(HugeMode::Always);
    let p = s.world.process(0);
    let a = p.map(AreaPlace::Fixed(VirtAddr(0x4000_0000)), 512, RW, Backing::Anonymous).unwrap();
    (0..512).for_each(|n| p.store(a + n * PAGE, n as u8).unwrap());
    assert_eq!(p.space().resident.large, 1);
    let pin = p.space().pin::<LongTerm, ReadWrite>(VirtAddr(a + 5 * PAGE), Rule::Asked).unwrap();
    let done = s.page_out(&p, a, 512);
    assert_eq!((done.written, done.freed), (511, 511), "all but the pinned piece");
    assert_eq!(p.space().resident.large, 0);
    assert!(s.disk.writes.lock().unwrap().iter().all(|&(_, count)| count >= 31), "in long runs");
    assert_filled(&p, a, 512, 0);
    assert_eq!(p.frame(a + 5 * PAGE), pin.pfn());
    drop(pin);
    s.page_out(&p, a, 512);
    p.advise(a, 512, Advice::Collapse).unwrap();
    assert_eq!(p.usage().swapped, 0, "collapsing brings them back");
    assert_eq!(p.space().resident.large, 1);
    assert_filled(&p, a, 512, 0);
    drop(p);
    s.end();
}

#[test]
fn what_proc_shows_of_a_swapped_page() {
    let (s, p, a) = with_filled(64, 4);
    s.page_out(&p, a, 3);
    let child = p.fork(1);
    p.unmap(a, 1).unwrap();
    let mut seen = Vec::new();
    p.space().pages(VirtAddr(a), VirtAddr(a + 4 * PAGE), |page| seen.push(page));
    let at: Vec<_> = seen.iter().map(|page| page.at).collect();
    let swapped = |slot| PageAt::Swapped(SwapPlace { area: 0, slot });
    assert_eq!(at, [swapped(2), swapped(3), PageAt::Frame(p.frame(a + 3 * PAGE))]);
    let smaps = |p: &Process| {
        let space = p.space();
        let area = space.area_at(VirtAddr(a + PAGE)).unwrap();
        let smaps = space.smaps(&area);
        (smaps.rss, smaps.swap, smaps.swap_pss)
    };
    assert_eq!(smaps(&p), (PAGE, 2 * PAGE, PAGE));
    assert_eq!(smaps(&child), (PAGE, 3 * PAGE, 2 * PAGE));
    let resident = |p: &Process| {
        let mut seen = [false; 3];
        assert_eq!(p.space().residency(VirtAddr(a + PAGE), &mut seen), Ok(3));
        seen
    };
    assert_eq!(resident(&p), [false, false, true]);
    child.load(a + PAGE).unwrap();
    assert_eq!(resident(&p), [true, true, true], "the child's fault has brought them into the swap cache");
    drop((p, child));
    s.end();
}
