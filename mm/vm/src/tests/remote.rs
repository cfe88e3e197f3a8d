//! Bytes reached by the kernel under the space's lock.

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
fn futexes_of_shared_memory_meet_at_different_addresses_and_private_ones_do_not() {
    let world = World::new();
    let file = world.file(&[0; 2 * 4096]);
    let p = world.process(0);
    let backing = |offset| Backing::SharedFile(view(&file, offset), SharedWrite::Allowed);
    let one = p.map(AreaPlace::Anywhere, 2, RW, backing(0)).unwrap();
    let two = p.map(AreaPlace::Anywhere, 1, RW, backing(PAGE)).unwrap();
    let private = p.anonymous(1);
    let key = |at: u64| p.space().shared_key(VirtAddr(at)).unwrap();
    assert_eq!(key(one + PAGE + 4), key(two + 4));
    assert_eq!(key(private), FutexKey::Private(VirtAddr(private)));
    assert_eq!(p.space().shared_key(VirtAddr(0x20_0000)), Err(VmError::Fault));
    drop((p, file));
    world.end();
}
