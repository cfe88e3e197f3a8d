//! Bytes reached by others, and pins.

use std::vec;

use freehold_machine::VirtAddr;

use super::world::*;
use crate::*;

#[test]
fn remote_access_crosses_pages_and_stops_where_the_process_could_not_go() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(2);
    let text: std::vec::Vec<u8> = (0..6000).map(|n| n as u8).collect();
    p.space().write_remote(VirtAddr(a + 1000), &text).unwrap();
    let mut back = vec![0; 6000];
    p.space().read_remote(VirtAddr(a + 1000), &mut back).unwrap();
    assert_eq!(back, text);
    assert_eq!(p.load(a + 1000 + 300), Ok(300 % 256).map(|n: i32| n as u8));
    let got = p
        .space()
        .access_remote(VirtAddr(a + PAGE), 2 * PAGE as usize, RemoteAccess::Read, |bytes| bytes.len());
    assert_eq!(got, Ok(PAGE as usize), "as far as it goes");
    assert_eq!(p.space().write_remote(VirtAddr(a + 2 * PAGE - 1), &[1, 2]), Err(VmError::Fault));
    let got = p.space().access_remote(VirtAddr(a), 100, RemoteAccess::Read, |_| 7);
    assert_eq!(got, Ok(7), "a visitor that takes less ends the call");
    drop(p);
    world.end();
}

#[test]
fn forced_access_reads_anything_and_writes_only_what_is_private() {
    let world = World::new();
    let file = world.file(&[1; 4096]);
    let p = world.process(0);
    let none = p.map(Place::Anywhere, 1, Protection::NONE, Backing::Anonymous).unwrap();
    let private = p.map(Place::Anywhere, 1, Protection::READ, Backing::PrivateFile(view(&file, 0))).unwrap();
    let backing = Backing::SharedFile(view(&file, 0), SharedWrite::Denied);
    let shared = p.map(Place::Anywhere, 1, Protection::READ, backing).unwrap();
    let force = |at: u64, access, value: u8| {
        p.space().access_remote(VirtAddr(at), 1, access, |bytes| {
            if access == RemoteAccess::ForceWrite {
                bytes[0] = value;
            }
            1
        })
    };
    assert_eq!(force(none, RemoteAccess::Read, 0), Err(VmError::Fault));
    assert_eq!(force(none, RemoteAccess::ForceRead, 0), Ok(1));
    assert_eq!(force(private, RemoteAccess::Write, 9), Err(VmError::Fault));
    assert_eq!(force(private, RemoteAccess::ForceWrite, 9), Ok(1));
    assert_eq!(
        (p.load(private), read(file.cache(), 0, 1)),
        (Ok(9), vec![1]),
        "row 80: the file is untouched"
    );
    assert_eq!(p.store(private, 2), Err(ACCERR), "and the leaf still read-only");
    assert_eq!(force(shared, RemoteAccess::ForceWrite, 9), Err(VmError::Fault), "row 81");
    drop((p, file));
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
    let force = |bytes: &mut [u8]| {
        bytes[0] = 9;
        1
    };
    child.space().access_remote(VirtAddr(a), 1, RemoteAccess::ForceWrite, force).unwrap();
    assert_eq!((p.load(a), child.load(a)), (Ok(1), Ok(9)), "row 82");
    drop((p, child));
    world.end();
}

#[test]
fn pins_of_the_zero_page_and_of_private_files_see_what_the_process_writes_later() {
    let world = World::new();
    let file = world.file(&[4; 4096]);
    let p = world.process(0);
    let zero = p.anonymous(1);
    let private = p.map(Place::Anywhere, 1, RW, Backing::PrivateFile(view(&file, 0))).unwrap();
    for (at, first) in [(zero, 0), (private, 4)] {
        assert_eq!(p.load(at), Ok(first));
        let pin = p.run(|| p.space().pin(VirtAddr(at), PinAccess::Read)).unwrap();
        p.store(at, 8).unwrap();
        assert_eq!(p.frame(at), pin.pfn(), "rows 17, 18, G3");
    }
    assert!(matches!(p.space().pin(VirtAddr(0x10_0000), PinAccess::Read), Err(MAPERR)));
    p.protect(zero, 1, Protection::READ).unwrap();
    assert!(matches!(p.space().pin(VirtAddr(zero), PinAccess::Write), Err(ACCERR)));
    let read_only = p.space().pin(VirtAddr(zero), PinAccess::Read).unwrap();
    drop((p, file, read_only));
    world.end();
}

#[test]
fn a_pin_on_one_page_costs_no_copy_of_another() {
    let world = World::new();
    let p = world.process(0);
    let a = p.anonymous(8);
    (0..8).for_each(|n| p.store(a + n * PAGE, 1).unwrap());
    let pin = p.space().pin(VirtAddr(a + 3 * PAGE), PinAccess::Write).unwrap();
    let frame = p.frame(a + 7 * PAGE);
    drop(p.fork(1));
    p.store(a + 7 * PAGE, 2).unwrap();
    assert_eq!(p.frame(a + 7 * PAGE), frame, "row 72");
    assert_eq!(p.frame(a + 3 * PAGE), pin.pfn());
    drop((p, pin));
    world.end();
}

#[test]
fn futexes_of_shared_memory_meet_at_different_addresses_and_private_ones_do_not() {
    let world = World::new();
    let file = world.file(&[0; 2 * 4096]);
    let p = world.process(0);
    let backing = |offset| Backing::SharedFile(view(&file, offset), SharedWrite::Allowed);
    let one = p.map(Place::Anywhere, 2, RW, backing(0)).unwrap();
    let two = p.map(Place::Anywhere, 1, RW, backing(PAGE)).unwrap();
    let private = p.anonymous(1);
    let key = |at: u64| p.space().shared_key(VirtAddr(at)).unwrap();
    assert_eq!(key(one + PAGE + 4), key(two + 4));
    assert_eq!(key(private), FutexKey::Private(VirtAddr(private)));
    assert_eq!(p.space().shared_key(VirtAddr(0x20_0000)), Err(VmError::Fault));
    drop((p, file));
    world.end();
}
