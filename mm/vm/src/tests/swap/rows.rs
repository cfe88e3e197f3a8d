//! The rows of the conformance table that mention swap, and the rules behind them.

use super::*;

#[test]
fn row_13_a_page_whose_bytes_a_pipe_holds_stays_and_is_written_in_place() {
    let (s, p, a) = with_filled(64, 1);
    let pin = p.space().pin::<LongTerm, ReadOnly>(VirtAddr(a), Rule::Asked).unwrap();
    assert_eq!(s.page_out(&p, a, 1).written, 0);
    p.store(a, 2).unwrap();
    assert_eq!(dma(&s.world, pin.pfn()).load(), 2, "the pipe sees it");
    drop((p, pin));
    s.end();
}

#[test]
fn row_14s_a_child_that_pinned_a_swapped_page_never_sees_what_its_parent_writes() {
    for read_first in [false, true] {
        let (s, p, a) = with_filled(64, 1);
        s.page_out(&p, a, 1);
        let child = p.fork(1);
        if read_first {
            assert_eq!((child.load(a), p.load(a)), (Ok(1), Ok(1)));
        }
        let pin = child.run(|| child.space().pin::<LongTerm, ReadOnly>(VirtAddr(a), Rule::Asked)).unwrap();
        child.unmap(a, 1).unwrap();
        p.store(a, 2).unwrap();
        assert_eq!(dma(&s.world, pin.pfn()).load(), 1);
        assert_eq!(p.load(a), Ok(2));
        drop((p, child, pin));
        s.end();
    }
}

#[test]
fn rows_32_and_33_a_page_under_a_device_stays_and_the_next_store_meets_the_device() {
    for read_first in [false, true] {
        let (s, p, a) = with_filled(64, 1);
        let pin = p.space().pin::<Transient, ReadWrite>(VirtAddr(a), Rule::Asked).unwrap();
        assert_eq!(s.page_out(&p, a, 1).written, 0);
        assert_eq!(s.evict(&p, 1, Age::Ignore).freed, 0);
        if read_first {
            p.load(a).unwrap();
        }
        p.store(a + 1, 2).unwrap();
        dma(&s.world, pin.pfn()).store(9);
        assert_eq!((p.load(a), p.load(a + 1), p.frame(a)), (Ok(9), Ok(2), pin.pfn()));
        drop((p, pin));
        s.end();
    }
}

#[test]
fn row_52_a_fixed_buffer_is_kept() {
    let (s, p, a) = with_filled(64, 4);
    let pin = p.space().pin::<LongTerm, ReadWrite>(VirtAddr(a + PAGE), Rule::Asked).unwrap();
    assert_eq!(s.page_out(&p, a, 4).written, 3);
    p.store(a + PAGE, 7).unwrap();
    assert_eq!((p.frame(a + PAGE), place(&p, a + PAGE)), (pin.pfn(), None));
    drop(pin);
    assert_eq!(s.page_out(&p, a, 4).written, 1, "once let go of, it goes like any other");
    drop(p);
    s.end();
}

#[test]
fn row_60_a_page_that_was_swapped_and_read_is_written_in_place() {
    let (s, p, a) = with_filled(64, 64);
    let out = s.page_out(&p, a, 64);
    assert_eq!(out.freed, 64);
    for n in 0..64 {
        p.load(a + n * PAGE).unwrap();
        let frame = p.frame(a + n * PAGE);
        assert!(is_exclusive(&p, a + n * PAGE));
        p.store(a + n * PAGE, 5).unwrap();
        assert_eq!(p.frame(a + n * PAGE), frame);
    }
    drop(p);
    s.end();
}

#[test]
fn row_63_after_a_fork_of_a_swapped_page_neither_sees_the_others_stores() {
    for first in 0..2 {
        let (s, p, a) = with_filled(64, 1);
        s.page_out(&p, a, 1);
        let child = p.fork(1);
        assert_eq!(s.used(), 1, "one slot for both");
        let both = [&p, &child];
        both[first].store(a, 2).unwrap();
        assert_eq!(both[1 - first].load(a), Ok(1));
        both[1 - first].store(a, 3).unwrap();
        assert_eq!(both[first].load(a), Ok(2));
        drop((p, child));
        s.end();
    }
}

#[test]
fn a_page_taken_back_while_it_is_written_is_written_in_place_and_its_slot_freed() {
    let (s, p, a) = with_filled(64, 1);
    let frame = p.frame(a);
    let (locked, model) = (p.locked.clone(), s.world.model());
    *s.disk.during_write.lock().unwrap() = Some(std::boxed::Box::new(move || {
        let mut space = locked.lock();
        space.fault(VirtAddr(a), Access::Read, &Limits::NONE).unwrap();
        space.fault(VirtAddr(a), Access::Write, &Limits::NONE).unwrap();
        drop(space);
        model.store(VirtAddr(a), 2).unwrap();
    }));
    let out = s.page_out(&p, a, 1);
    assert_eq!((out.written, out.freed), (1, 0));
    assert_eq!((p.load(a), p.frame(a), s.used()), (Ok(2), frame, 0));
    assert_eq!(s.page_out(&p, a, 1).freed, 1);
    assert_eq!(p.load(a), Ok(2), "and its next write has the new bytes");
    drop(p);
    s.end();
}

#[test]
fn a_page_taken_back_while_it_is_written_stays_until_that_is_over() {
    let (s, p, a) = with_filled(64, 1);
    let (locked, commons) = (p.locked.clone(), s.world.commons.clone());
    *s.disk.during_write.lock().unwrap() = Some(std::boxed::Box::new(move || {
        locked.lock().fault(VirtAddr(a), Access::Write, &Limits::NONE).unwrap();
        assert_eq!(commons.page_out(&*locked, VirtAddr(a)..VirtAddr(a + PAGE)).written, 0);
        assert_eq!(commons.swap().validate(), 0);
    }));
    s.page_out(&p, a, 1);
    assert_eq!(p.load(a), Ok(1));
    drop(p);
    s.end();
}

#[test]
fn a_page_taken_back_stored_to_and_shared_while_it_is_written_does_not_go_where_its_old_bytes_go() {
    let (s, p, a) = with_filled(64, 1);
    let (parent, model, commons) = (p.locked.clone(), s.world.model(), s.world.commons.clone());
    let born: Arc<Mutex<Option<AddressSpace<ModelFrames>>>> = Arc::default();
    let cradle = born.clone();
    *s.disk.during_write.lock().unwrap() = Some(std::boxed::Box::new(move || {
        let mut space = parent.lock();
        space.fault(VirtAddr(a), Access::Write, &Limits::NONE).unwrap();
        model.store(VirtAddr(a), 2).unwrap();
        *cradle.lock().unwrap() = Some(space.fork().unwrap());
        drop(space);
        let wish = wish(1, Age::Ignore);
        assert_eq!(commons.evict(&wish).written, 0);
    }));
    s.page_out(&p, a, 1);
    let child = Process::around(s.world.model(), born.lock().unwrap().take().unwrap(), 1);
    assert_eq!(s.evict(&p, 1, Age::Ignore).freed, 1);
    assert_eq!((p.load(a), child.load(a)), (Ok(2), Ok(2)));
    drop((p, child));
    s.end();
}

#[test]
fn a_page_dropped_while_it_is_written_is_freed_when_that_is_over() {
    let (s, p, a) = with_filled(64, 1);
    let locked = p.locked.clone();
    *s.disk.during_write.lock().unwrap() =
        Some(std::boxed::Box::new(move || locked.lock().unmap(VirtAddr(a), PAGE).unwrap()));
    let free = s.world.frames.free();
    assert_eq!(s.page_out(&p, a, 1).freed, 1);
    assert_eq!((s.used(), s.world.frames.free() > free), (0, true));
    drop(p);
    s.end();
}

#[test]
fn a_page_of_two_spaces_gets_one_slot_is_written_once_and_freed_with_its_last_leaf() {
    let (s, p, a) = with_filled(64, 1);
    let child = p.fork(1);
    let out = s.evict(&p, 1, Age::Ignore);
    assert_eq!((out.written, out.freed), (1, 1));
    assert_eq!((place(&p, a), s.used()), (place(&child, a), 1));
    assert_eq!(s.disk.writes.lock().unwrap().len(), 1);
    s.check();
    // Both processes read the page: they share one frame again, and no slot is used.
    assert_eq!((p.load(a), child.load(a)), (Ok(1), Ok(1)));
    assert_eq!((p.frame(a), s.used()), (child.frame(a), 0));
    assert!(!is_exclusive(&p, a));
    p.store(a, 2).unwrap();
    assert_eq!(child.load(a), Ok(1));
    drop((p, child));
    s.end();
}

#[test]
fn two_who_read_a_page_at_once_share_what_they_shared_before() {
    let (s, p, a) = with_filled(64, 1);
    s.page_out(&p, a, 1);
    let (child, third) = (p.fork(1), p.fork(2));
    let other = child.locked.clone();
    *s.disk.during_read.lock().unwrap() = Some(std::boxed::Box::new(move || {
        other.lock().fault(VirtAddr(a), Access::Read, &Limits::NONE).unwrap();
    }));
    assert_eq!((p.load(a), child.load(a), third.load(a)), (Ok(1), Ok(1), Ok(1)));
    assert_eq!((p.frame(a), child.frame(a)), (third.frame(a), third.frame(a)));
    assert_eq!(s.disk.reads.lock().unwrap().len(), 2);
    drop((p, child, third));
    s.end();
}

#[test]
fn advice_to_page_out_leaves_what_others_map_too() {
    let (s, p, a) = with_filled(64, 1);
    let child = p.fork(1);
    assert_eq!(s.page_out(&p, a, 1).written, 0);
    drop(child);
    assert_eq!(s.page_out(&p, a, 1).written, 1);
    drop(p);
    s.end();
}

#[test]
fn the_last_one_to_come_back_has_the_frame_to_itself() {
    let (s, p, a) = with_filled(64, 1);
    s.page_out(&p, a, 1);
    drop(p.fork(1));
    let reused = s.count(Event::Reuse);
    p.load(a).unwrap();
    assert!(is_exclusive(&p, a));
    let frame = p.frame(a);
    p.store(a, 2).unwrap();
    assert_eq!((p.frame(a), s.count(Event::Reuse)), (frame, reused), "not even a fault");
    drop(p);
    s.end();
}

#[test]
fn a_store_takes_the_frame_from_the_swap_cache_where_others_have_their_bytes_in_the_store() {
    let (s, p, a) = with_filled(64, 1);
    s.page_out(&p, a, 1);
    let child = p.fork(1);
    p.load(a).unwrap();
    let frame = p.frame(a);
    assert_eq!(s.swap().usage().cached, 1);
    p.store(a, 2).unwrap();
    assert_eq!((p.frame(a), s.swap().usage().cached), (frame, 0), "no copy");
    assert_eq!((child.load(a), p.load(a)), (Ok(1), Ok(2)));
    drop((p, child));
    s.end();
}

#[test]
fn a_child_that_is_forked_while_the_page_is_written_has_the_bytes_of_then() {
    let (s, p, a) = with_filled(64, 1);
    let frame = p.frame(a);
    let (parent, model) = (p.locked.clone(), s.world.model());
    let born: Arc<Mutex<Option<AddressSpace<ModelFrames>>>> = Arc::default();
    let cradle = born.clone();
    *s.disk.during_write.lock().unwrap() = Some(std::boxed::Box::new(move || {
        let mut space = parent.lock();
        *cradle.lock().unwrap() = Some(space.fork().unwrap());
        space.fault(VirtAddr(a), Access::Write, &Limits::NONE).unwrap();
        drop(space);
        model.store(VirtAddr(a), 2).unwrap();
    }));
    s.page_out(&p, a, 1);
    let child = Process::around(s.world.model(), born.lock().unwrap().take().unwrap(), 1);
    s.check();
    assert_ne!(p.frame(a), frame, "the child's bytes were nowhere else");
    assert_eq!((p.load(a), child.load(a)), (Ok(2), Ok(1)));
    drop((p, child));
    s.end();
}

#[test]
fn however_many_look_at_a_shared_page_its_partner_finds_it_again() {
    let (s, p, a) = with_filled(64, 1);
    let child = p.fork(1);
    // Requests that wait. When one is finished, there is room for one more reference.
    let look = || p.space().pin::<Transient, ReadOnly>(VirtAddr(a), Rule::Asked).ok();
    let mut looks: Vec<_> = std::iter::from_fn(look).collect();
    looks.pop();
    s.evict(&p, 1, Age::Ignore);
    let gone = if place(&p, a).is_some() { &p } else { &child };
    assert!(place(gone, a).is_some());
    // An out-of-memory error here would make the kernel kill processes repeatedly.
    assert_eq!(gone.load(a), Ok(1), "of {} looks", looks.len());
    looks.clear();
    drop((p, child));
    s.end();
}
