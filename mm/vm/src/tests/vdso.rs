//! The kernel's pages in address spaces.

use std::sync::Arc;

use freehold_frame::{Frame, Time};
use freehold_machine::{PhysicalBytes, VirtAddr};

use super::world::*;
use crate::*;

const RX: Protection = Protection::READ.union(Protection::EXEC);

/// A world whose vDSO has an image of two pages, full of 1 and 2, and pages of time full of 3 and
/// 4.
fn world() -> World {
    let world = World::new();
    let fill = |frame, byte: u8| world.model().with_bytes(frame, |bytes| bytes.fill(byte));
    let time = [3, 4].map(|byte| {
        let time: Frame<Time, _> = Frame::allocate(world.frames).unwrap();
        fill(time.pfn(), byte);
        time
    });
    let mut vdso = Vdso::new(time);
    for byte in [1, 2] {
        let frame = Frame::allocate(world.frames).unwrap();
        fill(frame.pfn(), byte);
        vdso.push(frame);
    }
    world.commons.set_vdso(vdso);
    world
}

fn parts(p: &Process) -> (u64, u64) {
    let image = p.map(AreaPlace::Anywhere, 2, RX, Backing::Vdso(VdsoPart::Image)).unwrap();
    let time = p.map(AreaPlace::Anywhere, 1, Protection::READ, Backing::Vdso(VdsoPart::Time)).unwrap();
    (image, time)
}

#[test]
fn all_programs_see_the_same_frames_and_none_is_counted() {
    let world = world();
    let (p, q) = (world.process(0), world.process(1));
    let ((image, time), (other, other_time)) = (parts(&p), parts(&q));
    assert_eq!([image, image + PAGE, time].map(|at| p.load(at)), [Ok(1), Ok(2), Ok(3)]);
    assert_eq!(q.load(other), Ok(1));
    assert_eq!(
        (p.frame(image), p.frame(time)),
        (q.frame(other), {
            q.load(other_time).unwrap();
            q.frame(other_time)
        })
    );
    p.execute(image).unwrap();
    assert_eq!(p.execute(time), Err(ACCERR));
    assert_eq!(p.usage().rss_anon + p.usage().rss_file, 0);
    let child = p.fork(2);
    assert_eq!([image, time].map(|at| child.load(at)), [Ok(1), Ok(3)]);
    drop((p, q, child));
    world.end();
}

#[test]
fn a_store_to_the_image_is_the_programs_own() {
    let world = world();
    let (p, q) = (world.process(0), world.process(1));
    let ((image, _), (other, _)) = (parts(&p), parts(&q));
    assert_eq!(p.store(image, 9), Err(ACCERR));
    assert_eq!(p.load(image), Ok(1));
    p.protect(image, 2, RW).unwrap();
    // One page was present, the other was not.
    p.store(image, 9).unwrap();
    p.store(image + PAGE + 1, 8).unwrap();
    assert_eq!(
        [image, image + 1, image + PAGE, image + PAGE + 1].map(|at| p.load(at)),
        [Ok(9), Ok(1), Ok(2), Ok(8)]
    );
    assert_eq!(q.load(other), Ok(1), "others do not see it");
    let child = p.fork(2);
    assert_eq!([image, image + PAGE + 1].map(|at| child.load(at)), [Ok(9), Ok(8)], "children do");
    // A debugger writes where the program may not.
    q.space().pin::<Transient, ReadWrite>(VirtAddr(other + PAGE), Rule::Forced).unwrap();
    assert_ne!(q.frame(other + PAGE), {
        let r = world.process(0);
        let (third, _) = parts(&r);
        r.load(third + PAGE).unwrap();
        r.frame(third + PAGE)
    });
    drop((p, q, child));
    world.end();
}

#[test]
fn the_page_of_time_is_read_by_the_program_alone_and_never_written() {
    let world = world();
    let p = world.process(0);
    let (_, time) = parts(&p);
    assert_eq!(p.load(time), Ok(3));
    assert_eq!(p.store(time, 9), Err(ACCERR));
    assert_eq!(p.protect(time, 1, RW), Err(VmError::Access));
    let writable = p.map(AreaPlace::Anywhere, 1, RW, Backing::Vdso(VdsoPart::Time));
    assert_eq!(writable, Err(VmError::Access));
    for rule in [Rule::Asked, Rule::Stated, Rule::Forced] {
        assert!(p.space().pin::<Transient, ReadOnly>(VirtAddr(time), rule).is_err());
        assert!(p.space().pin::<LongTerm, ReadOnly>(VirtAddr(time), rule).is_err());
        assert!(p.space().pin::<Transient, ReadWrite>(VirtAddr(time), rule).is_err());
    }
    assert_eq!(p.space().read_remote(VirtAddr(time), &mut [0; 4]), Err(VmError::Fault));
    drop(p);
    world.end();
}

#[test]
fn offsets_are_the_spaces_own_and_its_childs_and_their_frame_goes_with_the_last() {
    let world = world();
    let p = world.process(0);
    let time =
        p.map(AreaPlace::Anywhere, TIME_PAGES, Protection::READ, Backing::Vdso(VdsoPart::Time)).unwrap();
    let seen = |p: &Process| [time, time + PAGE].map(|at| p.load(at).unwrap());
    assert_eq!(seen(&p), [3, 3]);
    let offsets: Frame<Time, _> = Frame::allocate(world.frames).unwrap();
    world.model().with_bytes(offsets.pfn(), |bytes| bytes.fill(5));
    p.space().set_time_offsets(Some(Arc::new(offsets)));
    assert_eq!(seen(&p), [5, 4]);
    let child = p.fork(2);
    p.space().set_time_offsets(None);
    assert_eq!((seen(&p), seen(&child)), ([3, 3], [5, 4]));
    let late = p.map(AreaPlace::Anywhere, TIME_PAGES + 1, Protection::READ, Backing::Vdso(VdsoPart::Time));
    assert_eq!(p.load(late.unwrap() + TIME_PAGES * PAGE), Err(FaultError::Bus));
    drop(p);
    assert_eq!(seen(&child), [5, 4]);
    drop(child);
    world.end();
}

#[test]
fn past_its_end_there_is_no_page() {
    let world = world();
    let p = world.process(0);
    let image = p.map(AreaPlace::Anywhere, 3, RX, Backing::Vdso(VdsoPart::Image)).unwrap();
    assert_eq!((p.load(image + PAGE), p.load(image + 2 * PAGE)), (Ok(2), Err(FaultError::Bus)));
    p.unmap(image, 1).unwrap();
    assert_eq!((p.load(image), p.load(image + PAGE)), (Err(MAPERR), Ok(2)));
    drop(p);
    world.end();
}
