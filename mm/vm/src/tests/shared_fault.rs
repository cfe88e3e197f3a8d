//! Faults that several CPUs serve at once in one address space.

use std::thread;
use std::vec::Vec;

use freehold_machine::model::Config;
use freehold_machine::{CpuId, VirtAddr};

use super::world::*;
use crate::*;

fn at(process: &Process, addr: u64, access: Access) -> Option<FaultKind> {
    process.run(|| process.locked.fault_shared(VirtAddr(addr), access))
}

#[test]
fn first_touches_and_stores_to_own_pages_need_no_lock_and_all_else_does() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(8);
    let served = Some(FaultKind::Minor);
    assert_eq!(at(&p, a, Access::Write), None, "no table yet");
    p.store(a, 1).unwrap();
    let before = p.usage();
    // First touches.
    assert_eq!((at(&p, a + PAGE, Access::Read), at(&p, a + 2 * PAGE + 9, Access::Write)), (served, served));
    assert_eq!(p.usage().rss_anon, before.rss_anon + 1, "zeroes are nobody's");
    assert_eq!(p.usage().minor_faults, before.minor_faults + 2);
    assert_eq!((p.load(a + PAGE), p.load(a + 2 * PAGE)), (Ok(0), Ok(0)));
    // Pages that are present already.
    assert_eq!((at(&p, a, Access::Write), at(&p, a, Access::Read)), (served, served));
    // A page of zeroes gets another frame, and a leaf goes: not here.
    assert_eq!(at(&p, a + PAGE, Access::Write), None);
    assert_eq!(at(&p, a, Access::Execute), None, "not allowed");
    assert_eq!(at(&p, a + 64 * PAGE, Access::Read), None, "nothing is mapped");
    // A frame that is shared is copied, one that has become the page's own is granted.
    let child = p.fork(1);
    assert_eq!(at(&p, a, Access::Write), None);
    drop(child);
    assert_eq!(at(&p, a, Access::Write), served);
    p.store(a, 3).unwrap();
    assert_eq!(p.load(a), Ok(3));
    // Files are not filled here.
    let file = world.file(&[5; 64]);
    let f = p.map(AreaPlace::Anywhere, 1, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    assert_eq!((at(&p, f, Access::Read), at(&p, f, Access::Write)), (None, None));
    p.protect(a, 8, Protection::READ).unwrap();
    assert_eq!(at(&p, a + 3 * PAGE, Access::Write), None);
    drop((p, file));
    world.end();
}

#[test]
fn where_memory_is_short_the_lock_is_asked() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(2);
    p.store(a, 1).unwrap();
    world.frames.fail_after(0);
    assert_eq!(at(&p, a + PAGE, Access::Write), None);
    world.frames.fail_never();
    assert_eq!(p.usage().rss_anon, 1);
    p.store(a + PAGE, 2).unwrap();
    drop(p);
    world.end();
}

/// Pages that the threads touch, all of them all pages.
const PAGES: u64 = 400;

#[test]
fn threads_fill_the_same_pages_at_once_while_another_changes_the_space() {
    const THREADS: u16 = 3;
    let world = World::with(Config { cpus: 4, nodes: 1, frames: 4096, seed: 5 });
    let mut p = world.process(0);
    p.judge = Judge::AtTheEnd;
    for round in 0..8_u64 {
        let a = p.anonymous(PAGES);
        thread::scope(|scope| {
            for cpu in 1..=THREADS {
                let thread = p.thread(cpu);
                scope.spawn(move || {
                    let place = |step: u64| a + step * (2 * u64::from(cpu) + round * 6 + 1) % PAGES * PAGE;
                    for step in 0..PAGES {
                        let mine = place(step) + u64::from(cpu);
                        thread.store(mine, step as u8 | 1).unwrap();
                        assert_eq!(thread.load(mine), Ok(step as u8 | 1));
                    }
                    let ours =
                        (0..PAGES).map(place).filter(|page| thread.load(page + u64::from(cpu)) == Ok(0));
                    assert_eq!(ours.count(), 0, "a page was filled twice");
                });
            }
            // Each round of these takes pages' rights or makes them shared for a while.
            for _ in 0..6 {
                drop(p.fork(0));
                p.protect(a, PAGES, RW).unwrap();
                let other = p.anonymous(3);
                p.store(other, 1).unwrap();
                p.unmap(other, 3).unwrap();
            }
        });
        let touched = Vec::from_iter(
            (0..PAGES)
                .filter(|page| (1..=THREADS).any(|cpu| p.load(a + page * PAGE + u64::from(cpu)) != Ok(0))),
        );
        assert_eq!(p.usage().rss_anon, touched.len() as u64, "pages are counted once");
        p.unmap(a, PAGES).unwrap();
        assert_eq!(p.usage().rss(), 0);
    }
    assert_eq!(p.roots.users().iter().filter(|cpu| *cpu != CpuId(0)).count(), 0);
    drop(p);
    world.end();
}

#[test]
fn of_two_that_touch_a_page_at_the_same_time_one_page_stays_whichever_is_first() {
    // Where the other one was faster with zeroes, they stay until the next store.
    for (second, pages) in [(Access::Write, 1), (Access::Read, 0)] {
        let world = World::new();
        let mut p = world.process(0);
        p.judge = Judge::AtTheEnd;
        let a = p.anonymous(2);
        p.store(a + PAGE, 1).unwrap();
        let (before, other) = (p.usage(), p.thread(1));
        world.frames.during_next_allocation(move || {
            assert_eq!(at(&other, a, second), Some(FaultKind::Minor));
            if second == Access::Write {
                other.store(a, 7).unwrap();
            }
        });
        assert_eq!(at(&p, a, Access::Write), Some(FaultKind::Minor));
        let after = p.usage();
        assert_eq!((after.rss_anon - before.rss_anon, after.minor_faults - before.minor_faults), (pages, 2));
        assert_eq!(p.load(a), Ok(if second == Access::Write { 7 } else { 0 }));
        p.store(a, 8).unwrap();
        assert_eq!((p.load(a), p.usage().rss_anon), (Ok(8), before.rss_anon + 1));
        drop(p);
        world.end();
    }
}

#[test]
fn while_cpus_forget_what_was_unmapped_pages_are_filled_elsewhere_and_no_frame_is_given_away() {
    let world = World::new();
    let p = world.process(0);
    let (a, b) = (p.anonymous(4), p.map(AreaPlace::Anywhere, 2, RW, Backing::Anonymous).unwrap());
    for page in 0..4 {
        p.store(a + page * PAGE, 1).unwrap();
    }
    p.store(b, 1).unwrap();
    let mut unmapped = Unmapped::new(&p.roots);
    let free = world.frames.free();
    p.model.on_cpu(p.cpu, || p.space().unmap_first(VirtAddr(a), 4 * PAGE, &mut unmapped)).unwrap();
    assert_eq!(world.frames.free(), free, "CPUs may still store there");
    let fault = |addr, access| p.model.on_cpu(p.cpu, || p.locked.fault_shared(VirtAddr(addr), access));
    assert_eq!(fault(a, Access::Write), None);
    assert_eq!(fault(b + PAGE, Access::Write), Some(FaultKind::Minor));
    p.model.on_cpu(p.cpu, || drop(unmapped));
    assert!(world.frames.free() >= free + 3);
    assert_eq!((p.load(a), p.load(b + PAGE)), (Err(MAPERR), Ok(0)));
    drop(p);
    world.end();
}
