//! Promises: what is counted, what a limit refuses, and that all is taken back.

use freehold_machine::VirtAddr;

use super::world::*;
use crate::*;

const NONE: Protection = Protection::NONE;

fn world_of(pages: u64) -> World {
    let world = World::new();
    world.commons.set_promise_limit(PromiseLimit::Sum(pages));
    world
}

fn mapped(
    p: &Process,
    pages: u64,
    protection: Protection,
    backing: Backing<freehold_paging::model::ModelFrames>,
) -> Result<u64, VmError> {
    p.map(AreaPlace::Anywhere, pages, protection, backing)
}

#[test]
fn the_sum_of_all_promises_has_a_limit_whatever_makes_them() {
    let world = world_of(100);
    let p = world.process(0);
    let sum = || world.commons.promised_pages();
    let most = mapped(&p, 101, RW, Backing::Anonymous);
    assert_eq!((most, sum()), (Err(VmError::NoMemory), 0), "a refusal promises nothing");
    let private = mapped(&p, 60, RW, Backing::Anonymous).unwrap();
    assert_eq!(mapped(&p, 41, RW, Backing::Anonymous), Err(VmError::NoMemory));
    assert_eq!(mapped(&p, 41, NONE, Backing::SharedAnonymous), Err(VmError::NoMemory));
    // Memory that nobody may store to promises nothing until somebody may.
    let read_only = mapped(&p, 1000, Protection::READ, Backing::Anonymous).unwrap();
    assert_eq!(sum(), 60);
    assert_eq!(p.protect(read_only, 41, RW), Err(VmError::NoMemory));
    p.protect(read_only, 40, RW).unwrap();
    p.protect(read_only, 40, NONE).unwrap();
    assert_eq!(sum(), 100, "what was promised stays so");
    p.unmap(read_only + 10 * PAGE, 20).unwrap();
    assert_eq!(sum(), 80);
    // A fork asks for all of it once more.
    assert!(matches!(p.run(|| p.space().fork()), Err(VmError::NoMemory)));
    assert_eq!(sum(), 80);
    p.unmap(private + 20 * PAGE, 40).unwrap();
    assert_eq!(sum(), 40);
    let child = p.fork(1);
    assert_eq!(sum(), 80);
    // Shared memory promises its size once, for all that map it.
    let shared = mapped(&child, 20, RW, Backing::SharedAnonymous).unwrap();
    assert_eq!(sum(), 100);
    child.store(shared, 1).unwrap();
    assert_eq!(sum(), 100, "its pages are no further promise");
    p.unmap(private, 20).unwrap();
    assert_eq!(sum(), 80);
    drop(child);
    assert_eq!(sum(), 20);
    drop(p);
    world.end();
}

#[test]
fn areas_that_grow_ask_for_the_growth() {
    let world = world_of(20);
    let p = world.process(0);
    let sum = || world.commons.promised_pages();
    p.space().set_brk_base(VirtAddr(0x10_0000));
    let brk = |pages: u64| p.run(|| p.space().brk(VirtAddr(0x10_0000 + pages * PAGE), &p.limits)).0;
    assert_eq!(brk(21), 0x10_0000);
    assert_eq!((brk(4), sum()), (0x10_0000 + 4 * PAGE, 4));
    let area = p.anonymous(4);
    let remap = |new: u64, place| {
        let wish = Remap {
            old: VirtAddr(area),
            old_len: 4 * PAGE,
            new_len: new * PAGE,
            place,
            source: RemapSource::Unmap,
        };
        p.run(|| p.space().remap(wish, &p.limits, &mut || Ok(()))).map(|addr| addr.0)
    };
    assert_eq!(remap(17, RemapPlace::MayMove), Err(VmError::NoMemory));
    assert_eq!(sum(), 8);
    let far = remap(10, RemapPlace::Fixed(VirtAddr(0x5000_0000))).unwrap();
    assert_eq!((far, sum()), (0x5000_0000, 14));
    let request = MapRequest {
        place: AreaPlace::Fixed(VirtAddr(0x6000_0000)),
        len: PAGE,
        protection: RW,
        backing: Backing::Anonymous,
        flags: AreaFlags::GROWSDOWN | AreaFlags::NORESERVE,
    };
    p.space().map(request, &p.limits).unwrap();
    assert_eq!(sum(), 15, "with a limit nothing is exempt");
    assert_eq!(p.store(0x6000_0000 - 6 * PAGE, 1), Err(MAPERR));
    p.store(0x6000_0000 - 5 * PAGE, 1).unwrap();
    assert_eq!(sum(), 20);
    assert_eq!((brk(1), sum()), (0x10_0000 + PAGE, 17));
    drop(p);
    world.end();
}

#[test]
fn a_file_in_memory_promises_each_page_that_it_has() {
    let world = world_of(10);
    let sum = || world.commons.promised_pages();
    let file = world.file(&[1; 2 * PAGE as usize]);
    world.commons.list(file.cache());
    let cache = file.cache();
    let fill = |from: u64, pages: u64| {
        let bytes = std::vec![7; (pages * PAGE) as usize];
        cache.write_at(from * PAGE, bytes.len(), |to| {
            to.fill(7);
            to.len()
        })
    };
    assert_eq!(fill(2, 4), Ok(4 * PAGE as usize));
    assert_eq!(sum(), 6, "with those from before it was listed");
    let mut allocation = Allocation::new(8 * PAGE..20 * PAGE);
    assert_eq!(cache.allocate_some(&mut allocation, 64), Err(VmError::NoSpace));
    while cache.take_back_some(&mut allocation, 64) == Batch::More {}
    assert_eq!(sum(), 6, "all or nothing");
    assert_eq!(fill(6, 8), Ok(4 * PAGE as usize));
    assert_eq!(fill(30, 1), Err(VmError::NoSpace));
    assert_eq!(sum(), 10);
    let p = world.process(0);
    let backing = shared(cache);
    let at = mapped(&p, 10, RW, backing).unwrap();
    p.store(at, 1).unwrap();
    cache.punch_hole(0..PAGE).unwrap();
    assert_eq!(sum(), 9);
    p.store(at, 1).unwrap();
    cache.set_size_grow(100 * PAGE);
    let beyond = mapped(&p, 100, RW, shared(cache)).unwrap();
    assert_eq!(p.store(beyond + 50 * PAGE, 1), Err(FaultError::Bus));
    cache.truncate(3 * PAGE).unwrap();
    assert_eq!(sum(), 3);
    drop((p, file));
    world.end();
}

#[test]
fn cpus_that_ask_at_the_same_time_are_not_promised_the_same_memory() {
    use std::sync::atomic::{AtomicU64, Ordering};
    const MOST: u64 = 5;
    let world = world_of(MOST);
    let had = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for cpu in 0..3 {
            let (model, commons, had) = (world.model(), world.commons.clone(), &had);
            scope.spawn(move || {
                model.on_cpu(freehold_machine::CpuId(cpu), || {
                    for round in 0..2000 {
                        let pages = 1 + round % 3;
                        let mut space = AddressSpace::new(&commons, layout()).unwrap();
                        if space.promise(pages).is_ok() {
                            assert!(had.fetch_add(pages, Ordering::SeqCst) + pages <= MOST);
                            had.fetch_sub(pages, Ordering::SeqCst);
                        }
                        space.settle();
                    }
                });
            });
        }
    });
    assert_eq!(world.commons.promised_pages(), 0);
    world.end();
}

#[test]
fn without_a_limit_memory_without_reserve_is_no_promise() {
    let world = World::new();
    let p = world.process(0);
    let map = |flags, backing| {
        let request =
            MapRequest { place: AreaPlace::Anywhere, len: 4 * PAGE, protection: RW, backing, flags };
        p.space().map(request, &p.limits).unwrap().0
    };
    map(AreaFlags::NORESERVE, Backing::Anonymous);
    let shared = map(AreaFlags::NORESERVE, Backing::SharedAnonymous);
    assert_eq!(world.commons.promised_pages(), 0);
    p.store(shared, 1).unwrap();
    assert_eq!(world.commons.promised_pages(), 1, "a page of shared memory is there, so it counts");
    map(AreaFlags::empty(), Backing::Anonymous);
    assert_eq!(world.commons.promised_pages(), 5);
    // A limit below the sum takes nothing back, and allows no more.
    world.commons.set_promise_limit(PromiseLimit::Sum(2));
    assert_eq!(mapped(&p, 1, RW, Backing::Anonymous), Err(VmError::NoMemory));
    p.unmap(shared, 4).unwrap();
    assert_eq!(world.commons.promised_pages(), 4);
    drop(p);
    world.end();
}
