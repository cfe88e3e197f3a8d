//! Pages that were used and written since the marks were last cleared.

use freehold_machine::VirtAddr;

use super::world::*;
use crate::*;

fn written(p: &Process, at: u64) -> bool {
    let space = p.space();
    let newer = space.area_at(VirtAddr(at)).unwrap().flags.contains(AreaFlags::SOFTDIRTY);
    newer || space.resident.tables.entry(VirtAddr(at)).is_soft_dirty()
}

fn clear(p: &Process, what: ClearRefs) {
    p.run(|| p.space().clear_references(what));
}

#[test]
fn after_clearing_only_what_is_stored_to_counts_as_written_and_no_frame_is_copied() {
    let world = World::new();
    let file = world.file(&[5; 4 * 4096]);
    let p = world.process(0);
    let a = p.anonymous(4);
    let shared = Backing::SharedFile(view(&file, 0), SharedWrite::Allowed);
    let s = p.map(AreaPlace::Anywhere, 4, RW, shared).unwrap();
    let all = [a, a + PAGE, s, s + PAGE];
    all.iter().for_each(|&at| p.store(at, 1).unwrap());
    assert!(written(&p, a + 3 * PAGE), "an area that is newer counts as a whole");
    let frames = all.map(|at| p.frame(at));
    clear(&p, ClearRefs::SoftDirty);
    assert_eq!(all.map(|at| written(&p, at)), [false; 4]);
    assert_eq!(p.load(a), Ok(1));
    [a, s, a + 2 * PAGE].iter().for_each(|&at| p.store(at, 2).unwrap());
    assert_eq!(all.map(|at| written(&p, at)), [true, false, true, false]);
    assert_eq!(all.map(|at| p.frame(at)), frames, "row 01");
    // Through a change of protection, which may grant writing again, and a fork the marks stay what
    // they are.
    p.protect(a, 2, Protection::READ).unwrap();
    p.protect(a, 2, RW).unwrap();
    let child = p.fork(1);
    assert!(written(&child, a) && !written(&child, a + PAGE));
    drop(child);
    p.store(a + PAGE, 3).unwrap();
    assert!(written(&p, a + PAGE) && p.frame(a + PAGE) == frames[1]);
    clear(&p, ClearRefs::SoftDirty);
    p.protect(a, 2, Protection::READ).unwrap();
    p.protect(a, 2, RW).unwrap();
    p.store(a + PAGE, 4).unwrap();
    assert!(written(&p, a + PAGE) && !written(&p, a), "writable again, and still noticed");
    // New memory beside the old is newer.
    p.map(AreaPlace::Fixed(VirtAddr(a + 4 * PAGE)), 1, RW, Backing::Anonymous).unwrap();
    assert!(written(&p, a + 4 * PAGE));
    drop((p, file));
    world.end();
}

#[test]
fn what_a_device_may_be_writing_stays_written_and_what_it_only_reads_does_not() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(2);
    p.store(a, 1).unwrap();
    p.store(a + PAGE, 1).unwrap();
    let writes = p.space().pin::<Transient, ReadWrite>(VirtAddr(a), Rule::Asked).unwrap();
    let reads = p.space().pin::<LongTerm, ReadOnly>(VirtAddr(a + PAGE), Rule::Asked).unwrap();
    clear(&p, ClearRefs::SoftDirty);
    assert_eq!((written(&p, a), written(&p, a + PAGE)), (true, false), "row 50");
    p.store(a + PAGE, 2).unwrap();
    assert_eq!(p.frame(a + PAGE), reads.pfn());
    drop((writes, reads));
    clear(&p, ClearRefs::SoftDirty);
    assert!(!written(&p, a));
    drop(p);
    world.end();
}

#[test]
fn a_large_page_is_written_as_one_until_it_is_split() {
    let world = World::new();
    world.commons.set_huge_mode(HugeMode::Always);
    let p = world.process(0);
    let a = p.map(AreaPlace::Fixed(VirtAddr(0x4000_0000)), 512, RW, Backing::Anonymous).unwrap();
    p.store(a, 1).unwrap();
    clear(&p, ClearRefs::SoftDirty);
    assert!(!written(&p, a));
    let frame = p.frame(a);
    p.store(a + 9 * PAGE, 1).unwrap();
    assert!(written(&p, a) && p.frame(a) == frame);
    clear(&p, ClearRefs::SoftDirty);
    p.protect(a, 1, Protection::READ).unwrap();
    p.store(a + 9 * PAGE, 1).unwrap();
    assert!(written(&p, a + 9 * PAGE) && !written(&p, a + 10 * PAGE));
    drop(p);
    world.end();
}

#[test]
fn marks_of_use_and_the_peak_are_cleared_by_themselves() {
    let world = World::new();
    let file = world.file(&[5; 4096]);
    let p = world.process(0);
    let a = p.anonymous(3);
    let f = p.map(AreaPlace::Anywhere, 1, Protection::READ, Backing::PrivateFile(view(&file, 0))).unwrap();
    (0..3).for_each(|n| p.store(a + n * PAGE, 1).unwrap());
    p.load(f).unwrap();
    let referenced = |at: u64| {
        let space = p.space();
        let area = space.area_at(VirtAddr(at)).unwrap();
        space.smaps(&area).referenced
    };
    clear(&p, ClearRefs::Anonymous);
    assert_eq!((referenced(a), referenced(f)), (0, PAGE));
    p.load(a).unwrap();
    clear(&p, ClearRefs::File);
    assert_eq!((referenced(a), referenced(f)), (PAGE, 0));
    clear(&p, ClearRefs::All);
    assert_eq!(referenced(a), 0);
    p.unmap(a + PAGE, 2).unwrap();
    assert_eq!(p.usage().peak_rss, 4);
    clear(&p, ClearRefs::Peak);
    assert_eq!(p.usage().peak_rss, 2);
    assert!([0, 6, 7].iter().all(|&n| ClearRefs::from_linux(n).is_none()));
    drop((p, file));
    world.end();
}
