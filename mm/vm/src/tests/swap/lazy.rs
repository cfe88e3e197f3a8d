//! Discardable pages (MADV_FREE).

use super::*;

fn lazy_bytes(p: &Process, addr: u64) -> u64 {
    let space = p.space();
    let area = space.area_at(VirtAddr(addr)).unwrap();
    space.smaps(&area).lazy_free
}

#[test]
fn a_page_that_was_given_up_goes_without_a_slot_unless_it_was_written_since() {
    let (s, p, a) = with_filled(64, 4);
    p.advise(a, 4, Advice::Free).unwrap();
    assert_eq!((s.count(Event::LazyFree), lazy_bytes(&p, a)), (4, 4 * PAGE));
    assert_eq!(p.load(a + PAGE), Ok(2), "until memory is short it is there");
    p.store(a + 2 * PAGE, 9).unwrap();
    assert_eq!(lazy_bytes(&p, a), 3 * PAGE);
    let done = s.evict(&p, 4, Age::Ignore);
    assert_eq!((done.freed, done.written, s.count(Event::LazyFreed)), (4, 1, 3));
    let now: Vec<_> = (0..4).map(|n| p.load(a + n * PAGE)).collect();
    assert_eq!(now, [Ok(0), Ok(0), Ok(9), Ok(0)]);
    drop(p);
    s.end();
}

#[test]
fn given_up_pages_go_where_there_is_no_swap_area() {
    let world = World::new();
    let p = world.process(0);
    let a = filled(&p, 4, 1);
    p.advise(a, 2, Advice::Free).unwrap();
    let wish = wish(4, Age::Ignore);
    assert_eq!(p.run(|| world.commons.evict(&wish)).freed, 2);
    let now: Vec<_> = (0..4).map(|n| p.load(a + n * PAGE)).collect();
    assert_eq!(now, [Ok(0), Ok(0), Ok(3), Ok(4)]);
    drop(p);
    world.end();
}

#[test]
fn row_39_what_a_device_writes_into_a_page_that_was_given_up_is_kept() {
    // The pin may be older than the advice, or younger.
    for pin_first in [true, false] {
        let (s, p, a) = with_filled(64, 1);
        let pinned = || p.run(|| p.space().pin::<Transient, ReadWrite>(VirtAddr(a), Rule::Asked)).unwrap();
        let early = pin_first.then(pinned);
        p.advise(a, 1, Advice::Free).unwrap();
        let pin = early.unwrap_or_else(pinned);
        assert_eq!(s.evict(&p, 1, Age::Ignore).freed, 0);
        dma(&s.world, pin.pfn()).store(7);
        drop(pin);
        assert_eq!(s.evict(&p, 1, Age::Ignore).written, 1);
        assert_eq!(p.load(a), Ok(7));
        drop(p);
        s.end();
    }
}

#[test]
fn giving_up_a_page_takes_nothing_from_those_who_share_it() {
    let (s, p, a) = with_filled(64, 2);
    let child = p.fork(1);
    p.advise(a, 2, Advice::Free).unwrap();
    s.evict(&p, 2, Age::Ignore);
    assert_eq!((child.load(a), child.load(a + PAGE)), (Ok(1), Ok(2)));
    drop(child);
    p.store(a, 5).unwrap();
    p.advise(a, 1, Advice::Free).unwrap();
    let child = p.fork(1);
    s.evict(&p, 2, Age::Ignore);
    assert!(matches!(child.load(a), Ok(0 | 5)));
    drop((p, child));
    s.end();
}

#[test]
fn a_large_page_that_was_given_up_goes_unless_a_piece_of_it_was_written() {
    let s = Swapping::new(1024);
    s.world.commons.set_huge_mode(HugeMode::Always);
    let p = s.world.process(0);
    let a = p.map(AreaPlace::Fixed(VirtAddr(0x4000_0000)), 512, RW, Backing::Anonymous).unwrap();
    p.store(a, 1).unwrap();
    p.advise(a, 512, Advice::Free).unwrap();
    assert_eq!(s.count(Event::LazyFree), 512);
    let done = s.evict(&p, 512, Age::Ignore);
    assert_eq!((done.freed, done.written), (512, 0));
    let a = p.map(AreaPlace::Fixed(VirtAddr(0x4020_0000)), 512, RW, Backing::Anonymous).unwrap();
    p.store(a, 2).unwrap();
    p.advise(a, 512, Advice::Free).unwrap();
    p.store(a + PAGE, 3).unwrap();
    let done = s.evict(&p, 512, Age::Ignore);
    assert_eq!((done.freed, done.written), (512, 512), "one mark for all");
    assert_eq!((p.load(a), p.load(a + PAGE)), (Ok(2), Ok(3)));
    drop(p);
    s.end();
}

#[test]
fn cold_pages_go_first() {
    let (s, p, a) = with_filled(64, 4);
    p.advise(a + PAGE, 2, Advice::Cold).unwrap();
    assert_eq!(s.evict(&p, 4, Age::Respect).written, 2);
    assert!(place(&p, a).is_none() && place(&p, a + PAGE).is_some() && place(&p, a + 2 * PAGE).is_some());
    drop(p);
    s.end();
}
