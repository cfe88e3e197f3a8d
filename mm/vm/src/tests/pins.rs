//! Pins: the pages that they hold, without a lock and with it, and pages that are detached.

use freehold_frame::{Belongs, CountError, Frame, FrameSource, Owner};
use freehold_machine::model::Config;
use freehold_machine::{CpuId, PAGEBLOCK_FRAMES, PhysicalBytes, VirtAddr};
use freehold_paging::PageSize;
use freehold_paging::model::ModelFrames;

use super::world::*;
use crate::pin::detach::{Detach, RUN};
use crate::*;

#[test]
fn pins_of_the_zero_page_and_of_private_files_see_what_the_process_writes_later() {
    let world = World::new();
    let file = world.file(&[4; 4096]);
    let p = world.process(0);
    let zero = p.anonymous(1);
    let private = p.map(AreaPlace::Anywhere, 1, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    for (at, first) in [(zero, 0), (private, 4)] {
        assert_eq!(p.load(at), Ok(first));
        let pin = p.run(|| p.space().pin::<LongTerm, ReadOnly>(VirtAddr(at), Rule::Asked)).unwrap();
        p.store(at, 8).unwrap();
        assert_eq!(p.frame(at), pin.pfn(), "rows 17, 18, G3");
    }
    assert!(matches!(p.space().pin::<LongTerm, ReadOnly>(VirtAddr(0x10_0000), Rule::Asked), Err(MAPERR)));
    p.protect(zero, 1, Protection::READ).unwrap();
    assert!(matches!(p.space().pin::<Transient, ReadWrite>(VirtAddr(zero), Rule::Asked), Err(ACCERR)));
    let read_only = p.space().pin::<LongTerm, ReadOnly>(VirtAddr(zero), Rule::Asked).unwrap();
    drop((p, file, read_only));
    world.end();
}

#[test]
fn a_pin_on_one_page_costs_no_copy_of_another() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(8);
    (0..8).for_each(|n| p.store(a + n * PAGE, 1).unwrap());
    let pin = p.space().pin::<Transient, ReadWrite>(VirtAddr(a + 3 * PAGE), Rule::Asked).unwrap();
    let frame = p.frame(a + 7 * PAGE);
    drop(p.fork(1));
    p.store(a + 7 * PAGE, 2).unwrap();
    assert_eq!(p.frame(a + 7 * PAGE), frame, "row 72");
    assert_eq!(p.frame(a + 3 * PAGE), pin.pfn());
    drop((p, pin));
    world.end();
}

#[test]
fn a_look_at_zeroes_keeps_them_when_all_spaces_are_gone() {
    let world = World::new();
    let (frames, p) = (world.frames, world.process(0));
    let at = p.anonymous(1);
    assert_eq!(p.load(at), Ok(0));
    let look = pin::<Transient, ReadOnly>(&p, at).unwrap();
    drop(p);
    drop(world);
    assert_eq!(frames.table().owner(look.pfn()), Owner::PageCache);
    drop(look);
    frames.assert_all_free();
}

#[test]
fn pages_that_no_leaf_counts_are_held_for_who_looks_at_them() {
    let world = World::with(Config { cpus: 2, nodes: 1, frames: 4096, seed: 3 });
    world.commons.set_huge_mode(HugeMode::Always);
    let mut vdso = Vdso::new([(); 2].map(|()| Frame::allocate_zeroed(world.frames).unwrap()));
    vdso.push(Frame::allocate_zeroed(world.frames).unwrap());
    world.commons.set_vdso(vdso);
    let p = world.process(0);
    let (large, small) = (p.anonymous(2 * PAGEBLOCK_FRAMES), p.anonymous(1));
    let large = large.next_multiple_of(PAGEBLOCK_FRAMES * PAGE) + 5 * PAGE;
    let image = p.map(AreaPlace::Anywhere, 1, Protection::READ, Backing::Vdso(VdsoPart::Image)).unwrap();
    for at in [large, small, image] {
        assert_eq!(p.load(at), Ok(0));
        let look = pin::<Transient, ReadOnly>(&p, at).unwrap();
        assert_eq!(look.pfn(), p.frame(at));
        let mut byte = [9];
        p.space().read_remote(VirtAddr(at), &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }
    drop(p);
    world.end();
}

fn pin<T: Term, P: Purpose>(p: &Process, at: u64) -> Result<PinnedPage<ModelFrames, P>, FaultError> {
    p.run(|| p.space().pin::<T, P>(VirtAddr(at), Rule::Asked))
}

fn fast<P: Purpose>(p: &Process, at: u64) -> Option<PinnedPage<ModelFrames, P>> {
    p.run(|| pin_fast(&p.roots, VirtAddr(at)))
}

/// Pins a run; each pin is of its page's frame.
fn fast_run(p: &Process, first: u64, count: usize) -> std::vec::Vec<PinnedPage<ModelFrames, ReadWrite>> {
    let mut pins = std::vec::Vec::new();
    let given = p.run(|| pin_fast_run(&p.roots, VirtAddr(first), count, |pin| pins.push(pin)));
    assert_eq!(given, pins.len());
    let frames = (first..).step_by(PAGE as usize).map(|at| p.frame(at));
    assert!(pins.iter().map(PinnedPage::pfn).eq(frames.take(given)));
    pins
}

fn copies(p: &Process, at: u64, other: u64) -> bool {
    p.frame(at) != p.frame(other)
}

#[test]
fn forced_pins_read_anything_and_write_only_what_is_private() {
    let world = World::new();
    let file = world.file(&[1; 4096]);
    let p = world.process(0);
    let none = p.map(AreaPlace::Anywhere, 1, Protection::NONE, Backing::Anonymous).unwrap();
    let private =
        p.map(AreaPlace::Anywhere, 1, Protection::READ, Backing::PrivateFile(view(&file, 0))).unwrap();
    let backing = Backing::SharedFile(view(&file, 0), SharedWrite::Denied);
    let shared = p.map(AreaPlace::Anywhere, 1, Protection::READ, backing).unwrap();
    fn force<P: Purpose>(p: &Process, at: u64) -> Result<PinnedPage<ModelFrames, P>, FaultError> {
        p.run(|| p.space().pin::<Transient, P>(VirtAddr(at), Rule::Forced))
    }
    assert_eq!(pin::<Transient, ReadOnly>(&p, none).err(), Some(ACCERR));
    assert!(force::<ReadOnly>(&p, none).is_ok());
    assert_eq!(pin::<Transient, ReadWrite>(&p, private).err(), Some(ACCERR));
    let forced = force::<ReadWrite>(&p, private).unwrap();
    world.model().with_bytes(forced.pfn(), |bytes| bytes[0] = 9);
    assert_eq!(
        (p.load(private), read(file.cache(), 0, 1)),
        (Ok(9), std::vec![1]),
        "row 80: the file is untouched"
    );
    assert_eq!(p.store(private, 2), Err(ACCERR), "and the leaf still read-only");
    assert_eq!(force::<ReadWrite>(&p, shared).err(), Some(ACCERR), "row 81");
    assert!(force::<ReadOnly>(&p, shared).is_ok());
    drop((p, file, forced));
    world.end();
}

#[test]
fn a_forced_write_after_fork_reaches_one_side_only() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(1);
    p.store(a, 1).unwrap();
    p.protect(a, 1, Protection::READ).unwrap();
    let child = p.fork(1);
    let forced = child.run(|| child.space().pin::<Transient, ReadWrite>(VirtAddr(a), Rule::Forced)).unwrap();
    world.model().with_bytes(forced.pfn(), |bytes| bytes[0] = 9);
    assert_eq!((p.load(a), child.load(a)), (Ok(1), Ok(9)), "row 82");
    drop((p, child, forced));
    world.end();
}

#[test]
fn who_looks_for_a_moment_costs_no_copy_and_sees_what_was_there() {
    let world = World::new();
    let file = world.file(&[4; 4096]);
    let p = world.process(0);
    let (a, zero) = (p.anonymous(1), p.anonymous(1));
    let private = p.map(AreaPlace::Anywhere, 1, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    p.store(a, 1).unwrap();
    let child = p.fork(1);
    let before = world.frames.owned(Owner::Anon);
    let looks = [a, zero, private].map(|at| pin::<Transient, ReadOnly>(&p, at).unwrap());
    assert_eq!(world.frames.owned(Owner::Anon), before);
    assert_eq!(p.frame(a), child.frame(a), "row 84");
    // A store of either process does not change the bytes that the look sees.
    child.store(a, 2).unwrap();
    p.store(a, 3).unwrap();
    p.store(private, 5).unwrap();
    p.store(zero, 6).unwrap();
    let seen = looks.each_ref().map(|look| world.model().with_bytes(look.pfn(), |bytes| bytes[0]));
    assert_eq!(seen, [1, 0, 4]);
    drop(looks);
    let own = p.frame(a);
    drop(child);
    p.store(a, 7).unwrap();
    assert_eq!(p.frame(a), own);
    drop((p, file));
    world.end();
}

#[test]
fn a_long_pin_of_a_shared_page_is_of_its_own_copy() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(1);
    p.store(a, 1).unwrap();
    let child = p.fork(1);
    let held = pin::<LongTerm, ReadOnly>(&p, a).unwrap();
    assert_ne!(held.pfn(), child.frame(a), "row G1");
    p.store(a, 2).unwrap();
    assert_eq!(p.frame(a), held.pfn());
    assert_eq!(child.load(a), Ok(1));
    drop((held, child));
    // Shared before, alone now: nothing is copied.
    let child = p.fork(1);
    let before = p.frame(a);
    drop(child);
    p.protect(a, 1, Protection::READ).unwrap();
    let held = pin::<LongTerm, ReadOnly>(&p, a).unwrap();
    assert_eq!(held.pfn(), before, "row G2");
    drop((held, p));
    world.end();
}

#[test]
fn without_a_lock_only_what_is_the_pages_own_is_pinned() {
    let world = World::new();
    let file = world.file(&[4; 2 * 4096]);
    let p = world.process(0);
    let (a, zero, none) = (p.anonymous(1), p.anonymous(1), p.anonymous(1));
    let private = p.map(AreaPlace::Anywhere, 1, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    let shared = p
        .map(AreaPlace::Anywhere, 1, RW, Backing::SharedFile(view(&file, PAGE), SharedWrite::Allowed))
        .unwrap();
    assert!(fast::<ReadOnly>(&p, a).is_none(), "absent");
    p.store(a, 1).unwrap();
    p.store(shared, 1).unwrap();
    p.store(none, 1).unwrap();
    p.protect(none, 1, Protection::NONE).unwrap();
    assert_eq!((p.load(zero), p.load(private)), (Ok(0), Ok(4)));
    for at in [zero, private, none, a + 64 * PAGE, 0, 1 << 63] {
        assert!(fast::<ReadOnly>(&p, at).is_none(), "{at:#x}");
        assert!(fast::<ReadWrite>(&p, at).is_none(), "{at:#x}");
    }
    let (writes, reads) = (fast::<ReadWrite>(&p, a + 7).unwrap(), fast::<ReadOnly>(&p, a).unwrap());
    assert_eq!((writes.pfn(), reads.pfn()), (p.frame(a), p.frame(a)));
    assert_eq!(fast::<ReadWrite>(&p, shared).unwrap().pfn(), p.frame(shared));
    drop(writes);
    // Read-only for the process: it may be read, but not written.
    p.protect(a, 1, Protection::READ).unwrap();
    assert!(fast::<ReadOnly>(&p, a).is_some() && fast::<ReadWrite>(&p, a).is_none());
    drop(reads);
    let child = p.fork(1);
    assert!(fast::<ReadOnly>(&p, a).is_none(), "shared");
    drop(child);
    // A CPU on which the tables are not loaded cannot pin: a table is freed without waiting for it.
    assert!(world.model().on_cpu(CpuId(2), || pin_fast::<_, ReadOnly>(&p.roots, VirtAddr(shared))).is_none());
    drop((p, file));
    world.end();
}

#[test]
fn pieces_of_a_large_page_are_pinned_without_a_lock_once_they_are_counted() {
    let world = World::with(freehold_machine::model::Config { cpus: 2, nodes: 1, frames: 16 * 512, seed: 5 });
    world.commons.set_huge_mode(HugeMode::Always);
    let p = world.process(0);
    let a = p.anonymous(512);
    p.store(a, 1).unwrap();
    assert!(matches!(p.space().resident.tables.find(VirtAddr(a)), Some((_, PageSize::Large))));
    assert!(fast::<ReadWrite>(&p, a + 3 * PAGE).is_none(), "one word speaks for all");
    assert!(fast::<ReadWrite>(&p, a).is_none(), "the head's too");
    let held = pin::<Transient, ReadWrite>(&p, a + 3 * PAGE).unwrap();
    let second = fast::<ReadWrite>(&p, a + 5 * PAGE).unwrap();
    assert_eq!((held.pfn(), second.pfn()), (p.frame(a + 3 * PAGE), p.frame(a + 5 * PAGE)));
    assert_eq!([(3, 4), (505, 9)].map(|(n, count)| fast_run(&p, a + n * PAGE, count).len()), [4, 7]);
    drop((held, second, p));
    world.end();
}

#[test]
fn a_run_is_pinned_page_by_page_up_to_the_first_that_needs_the_lock() {
    let world = World::new();
    let p = world.process(0);
    // The last 20 pages of one table and the first 20 of the next.
    let a = 0x4000_0000 + 492 * PAGE;
    p.map(AreaPlace::Fixed(VirtAddr(a)), 40, RW, Backing::Anonymous).unwrap();
    (0..40).filter(|n| *n != 25).for_each(|n| p.store(a + n * PAGE, 1).unwrap());
    let run = |first: u64, count: usize| fast_run(&p, a + first * PAGE, count);
    let lengths = [(0, 1), (0, 7), (0, 40), (10, 40), (20, 40), (25, 3), (26, 14), (26, 40)];
    let given = lengths.map(|(first, count)| run(first, count).len());
    assert_eq!(given, [1, 7, 16, 10, 5, 0, 14, 14], "to the end of 16, of the table, of what is there");
    let held = run(3, 5);
    drop(p.fork(1));
    p.protect(a + 5 * PAGE, 1, Protection::READ).unwrap();
    let pinned = p.frame(a + 4 * PAGE);
    assert_eq!((held[1].pfn(), run(3, 5).len()), (pinned, 2));
    drop((held, p));
    world.end();
}

#[test]
fn a_run_of_pages_leaves_its_place_with_one_flush_and_the_pinned_ones_stay() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(6);
    (0..6).for_each(|n| p.store(a + n * PAGE, n as u8).unwrap());
    let pinned = fast::<ReadWrite>(&p, a + PAGE).unwrap();
    let child = p.fork(1);
    p.store(a + 2 * PAGE, 9).unwrap();
    assert!(copies(&p, a + 2 * PAGE, a + 3 * PAGE));
    let flushes = world.model().counts().range_flushes;
    p.run(|| {
        let mut space = p.space();
        let resident = &mut space.resident;
        let mut run = Detach::new(&resident.tables);
        let mut outcomes = std::vec::Vec::new();
        for n in 0..6 {
            let (slot, _) = resident.tables.find(VirtAddr(a + n * PAGE)).unwrap();
            outcomes.push(run.take(world.frames, VirtAddr(a + n * PAGE), slot, slot.load()));
        }
        assert!(!run.is_full() && RUN > 6);
        assert_eq!(outcomes, [Ok(()), Err(CountError::Pinned), Ok(()), Ok(()), Ok(()), Ok(())]);
        assert!(pin_fast::<_, ReadOnly>(&p.roots, VirtAddr(a)).is_none());
        let settled: std::vec::Vec<_> = run.settle().collect();
        let belongs: std::vec::Vec<_> = settled.iter().map(|page| page.belongs()).collect();
        assert_eq!(belongs[..2], [Belongs::Shared, Belongs::Exclusive]);
        for (index, page) in settled.into_iter().enumerate() {
            assert!(world.model().store(page.addr(), 1).is_err(), "nobody stores to it");
            if index == 4 {
                // The page moves: its frame is released, and another one is mapped.
                let (old, last) = (page.frame().pfn(), page.old());
                let frame = page.replace_by(freehold_paging::Entry::EMPTY);
                assert_eq!((frame.pfn(), last.frame()), (old, old));
                resident.rss.anon -= 1;
            } else {
                page.put_back();
            }
        }
    });
    assert_eq!(world.model().counts().range_flushes - flushes, 1, "one flush for all");
    let now: std::vec::Vec<_> = (0..6).map(|n| p.load(a + n * PAGE).unwrap()).collect();
    assert_eq!(now, [0, 1, 9, 3, 4, 0]);
    assert_eq!(child.load(a + 5 * PAGE), Ok(5));
    p.store(a + 2 * PAGE, 10).unwrap();
    drop((p, child, pinned));
    world.end();
}

/// Number of flushes of any kind while `f` runs.
fn flushes(world: &World, f: impl FnOnce()) -> u64 {
    let all = || {
        let counts = world.model().counts();
        counts.range_flushes + counts.full_flushes
    };
    let before = all();
    f();
    all() - before
}

#[test]
fn a_flush_waits_for_the_end_of_its_call_and_what_hides_nothing_needs_none() {
    let world = World::new();
    let p = world.process(0);
    let areas = [p.anonymous(4), p.anonymous(4), p.anonymous(4)];
    // Apart from each other, so that they stay three.
    p.protect(areas[1], 4, Protection::READ | Protection::WRITE | Protection::EXEC).unwrap();
    let pages = || areas.iter().flat_map(|&area| (0..4).map(move |n| area + n * PAGE));
    let store_all = |value| pages().for_each(|at| p.store(at, value).unwrap());
    store_all(1);
    let clear = |what| p.run(|| p.space().clear_references(what));
    assert_eq!(flushes(&world, || clear(ClearRefs::SoftDirty)), 1, "marks of three areas");
    assert_eq!(flushes(&world, || store_all(2)), 0, "stores that keep their frames");
    assert_eq!(flushes(&world, || clear(ClearRefs::All)), 1, "marks of use");
    store_all(3);
    assert_eq!(flushes(&world, || p.protect(areas[0], 4, Protection::READ).unwrap()), 1, "less rights");
    assert_eq!(flushes(&world, || p.protect(areas[0], 4, RW).unwrap()), 0, "more rights");
    store_all(4);
    let mut child = None;
    assert_eq!(flushes(&world, || child = Some(p.fork(1))), 1, "all that is shared by a fork");
    assert_eq!(
        flushes(&world, || child.take().unwrap().unmap(areas[0], 4).unwrap()),
        0,
        "what a child never used"
    );
    store_all(5);
    assert_eq!(flushes(&world, || p.unmap(areas[0], 4).unwrap()), 1);
    drop(p);
    world.end();
}
