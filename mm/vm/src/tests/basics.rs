//! mmap, faults, fork, files: the first promises.

use super::world::*;
use crate::*;
use freehold_machine::{CpuId, Cpus, Pfn, Tlb, VirtAddr};

#[test]
fn anonymous_memory_reads_zero_keeps_what_is_stored_and_is_gone_after_munmap() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(4);
    assert_eq!(p.load(a + 5), Ok(0));
    assert_eq!(p.usage().rss(), 0, "the zero page is nobody's");
    p.store(a + 5, 7).unwrap();
    assert_eq!((p.load(a + 5), p.load(a + 6)), (Ok(7), Ok(0)));
    assert_eq!(p.usage().rss_anon, 1);
    assert_eq!(p.execute(a), Err(ACCERR));
    p.unmap(a, 4).unwrap();
    assert_eq!(p.load(a), Err(MAPERR));
    assert_eq!(p.usage().rss(), 0);
    drop(p);
    world.end();
}

#[test]
fn a_new_page_is_written_through_the_programs_address_where_no_other_cpu_can_look() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(4);
    // How often the program's own access finds its page cached.
    let hits = |f: &dyn Fn()| {
        let before = world.model().counts().hits;
        f();
        world.model().counts().hits - before
    };
    assert_eq!(hits(&|| p.store(a + 9, 1).unwrap()), 1);
    assert_eq!((p.load(a + 8), p.load(a + 9)), (Ok(0), Ok(1)));
    let other = |f: &dyn Fn()| world.model().on_cpu(CpuId(1), f);
    other(&|| p.roots.load(&world.model().pin(), &mut None));
    assert_eq!(hits(&|| p.store(a + PAGE + 9, 1).unwrap()), 0, "another CPU could look");
    assert_eq!(p.load(a + PAGE + 8), Ok(0));
    other(&|| {
        let pinned = world.model().pin();
        world.model().load_root(Pfn(0));
        p.roots.unload(&pinned);
    });
    let child = p.fork(1);
    assert_eq!(p.load(a + 9), Ok(1), "the old leaf is cached");
    assert_eq!(hits(&|| p.store(a + 8, 2).unwrap()), 1);
    assert_eq!((p.load(a + 8), p.load(a + 9), child.load(a + 8)), (Ok(2), Ok(1), Ok(0)));
    drop((p, child));
    world.end();
}

#[test]
fn after_fork_neither_side_sees_what_the_other_stores() {
    let world = World::new();
    let parent = world.process(0);
    let a = parent.anonymous(3);
    parent.store(a, 1).unwrap();
    parent.store(a + PAGE, 2).unwrap();
    let child = parent.fork(1);
    parent.store(a, 10).unwrap();
    child.store(a + PAGE, 20).unwrap();
    assert_eq!((parent.load(a), parent.load(a + PAGE)), (Ok(10), Ok(2)));
    assert_eq!((child.load(a), child.load(a + PAGE)), (Ok(1), Ok(20)));
    assert_eq!(child.load(a + 2 * PAGE), Ok(0));
    drop(parent);
    assert_eq!(child.load(a), Ok(1));
    drop(child);
    world.end();
}

#[test]
fn the_last_owner_of_a_shared_frame_keeps_it_when_it_writes() {
    let world = World::new();
    let parent = world.process(0);
    let a = parent.anonymous(1);
    parent.store(a, 1).unwrap();
    let frame = parent.frame(a);
    drop(parent.fork(1));
    parent.store(a, 2).unwrap();
    assert_eq!(parent.frame(a), frame, "row 04: the child is gone, so nothing is copied");
    let child = parent.fork(1);
    drop(parent);
    child.store(a, 3).unwrap();
    assert_eq!(child.frame(a), frame, "row 05");
    drop(child);
    world.end();
}

#[test]
fn a_pinned_frame_is_never_copied_under_its_pin_and_the_child_gets_a_copy() {
    let world = World::new();
    let parent = world.process(0);
    let a = parent.anonymous(2);
    parent.store(a, 1).unwrap();
    let pin = parent.space().pin::<Transient, ReadWrite>(VirtAddr(a), Rule::Asked).unwrap();
    let child = parent.fork(1);
    parent.store(a, 2).unwrap();
    assert_eq!(parent.frame(a), pin.pfn());
    assert_ne!(child.frame(a), pin.pfn());
    assert_eq!(child.load(a), Ok(1));
    // A page that is shared is unshared before it is pinned, for reading too.
    parent.store(a + PAGE, 5).unwrap();
    let second = parent.fork(2);
    let read_pin = parent.space().pin::<LongTerm, ReadOnly>(VirtAddr(a + PAGE), Rule::Asked).unwrap();
    parent.store(a + PAGE, 6).unwrap();
    assert_eq!(parent.frame(a + PAGE), read_pin.pfn());
    assert_eq!(second.load(a + PAGE), Ok(5));
    drop((child, second, parent));
    world.frames.assert_consistent();
    drop((pin, read_pin));
    world.end();
}

#[test]
fn private_file_memory_shows_the_file_until_it_is_written() {
    let world = World::new();
    let file = world.file(&[b'a'; 2 * 4096]);
    let p = world.process(0);
    let a = p.map(AreaPlace::Anywhere, 2, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    assert_eq!(p.load(a), Ok(b'a'));
    p.store(a, b'x').unwrap();
    p.store(a + PAGE, b'y').unwrap();
    write(file.cache(), 1, b"z");
    assert_eq!((p.load(a), p.load(a + 1)), (Ok(b'x'), Ok(b'a')));
    assert_eq!(read(file.cache(), 0, 2), b"az");
    let child = p.fork(1);
    assert_eq!(child.load(a), Ok(b'x'));
    drop((p, child));
    drop(file);
    world.end();
}

#[test]
fn a_child_has_the_copies_of_file_pages_that_were_made_in_a_part_of_what_is_now_one_area() {
    let world = World::new();
    let file = world.file(&[b'a'; 3 * 4096]);
    let p = world.process(0);
    let a = p.map(AreaPlace::Anywhere, 3, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    p.protect(a, 2, Protection::READ).unwrap();
    p.store(a + 2 * PAGE, b'x').unwrap();
    p.protect(a + 2 * PAGE, 1, Protection::READ).unwrap();
    assert_eq!(p.usage().areas, 1);
    let child = p.fork(1);
    assert_eq!((child.load(a), child.load(a + 2 * PAGE)), (Ok(b'a'), Ok(b'x')));
    drop((p, child));
    drop(file);
    world.end();
}

#[test]
fn shared_memory_is_the_same_for_parent_child_and_file() {
    let world = World::new();
    let file = world.file(&[0; 4096]);
    let p = world.process(0);
    let f =
        p.map(AreaPlace::Anywhere, 1, RW, Backing::SharedFile(view(&file, 0), SharedWrite::Allowed)).unwrap();
    let s = p.map(AreaPlace::Anywhere, 2, RW, Backing::SharedAnonymous).unwrap();
    p.store(s, 1).unwrap();
    let child = p.fork(1);
    child.store(s + PAGE, 2).unwrap();
    child.store(f, 3).unwrap();
    assert_eq!((p.load(s), p.load(s + PAGE), child.load(s)), (Ok(1), Ok(2), Ok(1)));
    assert_eq!(read(file.cache(), 0, 1), [3]);
    let key = |p: &Process| p.space().shared_key(VirtAddr(s + PAGE)).unwrap();
    assert_eq!(key(&p), key(&child));
    drop((p, child, file));
    world.end();
}

#[test]
fn past_the_end_of_a_file_is_a_bus_error_and_truncation_takes_pages_away() {
    let world = World::new();
    let file = world.file(&[7; 3 * 4096]);
    let p = world.process(0);
    let shared =
        p.map(AreaPlace::Anywhere, 4, RW, Backing::SharedFile(view(&file, 0), SharedWrite::Allowed)).unwrap();
    let private = p.map(AreaPlace::Anywhere, 4, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    assert_eq!(p.load(shared + 3 * PAGE), Err(FaultError::Bus));
    for at in [shared, private] {
        p.store(at + 2 * PAGE, 8).unwrap();
        assert_eq!(p.load(at + PAGE), Ok(7));
    }
    let child = p.fork(1);
    child.load(shared + PAGE).unwrap();
    file.cache().truncate(PAGE + 100).unwrap();
    world.model().assert_coherent();
    for process in [&p, &child] {
        assert_eq!(process.load(shared + 2 * PAGE), Err(FaultError::Bus));
        assert_eq!(process.load(private + 2 * PAGE), Err(FaultError::Bus), "private copies go too");
        assert_eq!((process.load(shared + PAGE + 99), process.load(shared + PAGE + 100)), (Ok(7), Ok(0)));
    }
    drop((p, child, file));
    world.end();
}

#[test]
fn a_file_of_many_pages_that_is_cut_takes_every_private_copy_with_it() {
    let world = World::new();
    let file = world.file(&[7; 100 * 4096]);
    let p = world.process(0);
    let at = p.map(AreaPlace::Anywhere, 100, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    [3, 50, 99].iter().for_each(|n| p.store(at + n * PAGE, 8).unwrap());
    file.cache().truncate(2 * PAGE).unwrap();
    assert_eq!([3, 50, 99].map(|n| p.load(at + n * PAGE)), [Err(FaultError::Bus); 3]);
    drop((p, file));
    world.end();
}

#[test]
fn the_stack_grows_within_its_limit_and_keeps_its_gap() {
    let world = World::new();
    let mut p = world.process(0);
    p.limits.stack = 16 * PAGE;
    let top = 0x7ff0_0000_0000;
    let request = MapRequest {
        place: AreaPlace::Fixed(VirtAddr(top)),
        len: PAGE,
        protection: RW,
        backing: Backing::Anonymous,
        flags: AreaFlags::GROWSDOWN | AreaFlags::STACK,
    };
    p.space().map(request, &p.limits).unwrap();
    p.store(top - 3 * PAGE + 8, 1).unwrap();
    assert_eq!(p.usage().stack_pages, 4);
    assert_eq!(p.store(top - 16 * PAGE, 1), Err(MAPERR));
    let below = p.map(AreaPlace::Fixed(VirtAddr(top - 8 * PAGE)), 1, RW, Backing::Anonymous).unwrap();
    assert_eq!(p.store(top - 5 * PAGE, 1), Err(MAPERR), "the gap");
    p.unmap(below, 1).unwrap();
    p.store(top - 5 * PAGE, 1).unwrap();
    drop(p);
    world.end();
}

#[test]
fn the_break_moves_within_its_limit_and_not_into_others() {
    let world = World::new();
    let p = world.process(0);
    let base = 0x40_0123u64;
    p.space().set_brk_base(VirtAddr(base));
    let brk = |to: u64| p.run(|| p.space().brk(VirtAddr(to), &p.limits).0);
    assert_eq!(brk(0), base);
    assert_eq!(brk(base + 10_000), base + 10_000);
    p.store(base + 9_999, 1).unwrap();
    assert_eq!(brk(base + 20_000), base + 20_000);
    assert_eq!(p.usage().areas, 1);
    let other = p.map(AreaPlace::Fixed(VirtAddr(0x41_0000)), 1, RW, Backing::Anonymous).unwrap();
    assert_eq!(brk(other + 1), base + 20_000);
    assert_eq!(brk(base), base);
    assert_eq!(p.load(0x40_1000), Err(MAPERR));
    drop(p);
    world.end();
}

#[test]
fn a_file_that_is_cut_while_a_child_is_being_made_is_cut_for_the_child_too() {
    let world = World::new();
    let file = world.file(&[7; 3 * 4096]);
    let p = world.process(0);
    let at = p.map(AreaPlace::Anywhere, 3, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    (0..3).for_each(|n| p.store(at + n * PAGE, 8).unwrap());
    let unfinished = p.run(|| p.space().fork().unwrap());
    file.cache().truncate(PAGE).unwrap();
    let child = Process::around(world.model(), unfinished, 1);
    for process in [&p, &child] {
        assert_eq!((process.load(at), process.load(at + PAGE)), (Ok(8), Err(FaultError::Bus)));
    }
    drop((p, child, file));
    world.end();
}
