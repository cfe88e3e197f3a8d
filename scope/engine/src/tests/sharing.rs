//! Lines that several CPUs store to.

use super::*;

#[test]
fn the_kernels_stores_to_lines_of_its_own_are_counted_where_several_cpus_store() {
    let mut machine = Machine::with(true);
    machine.kernel(0);
    machine.publish(&[(0x1000, KERNEL_OWNER), (0x1001, ANON)]);
    machine.kernel(1);
    let (own, programs) = (0x1000u64 << 12, 0x1001u64 << 12);
    for cpu in [0, 0, 1] {
        machine.access(cpu, DIRECT + own, own, AccessKind::Write);
        // A program's frame, and a line of which the other CPU only loads.
        machine.access(cpu, 0x7000, programs, AccessKind::Write);
        machine.access(1 - cpu, DIRECT + own + 128, own + 128, AccessKind::Read);
        machine.run(cpu, TEXT, IMAGE, 300);
    }
    machine.access(1, DIRECT + own + 128, own + 128, AccessKind::Write);
    let sharing = machine.results().sharing.unwrap();
    let stores: Vec<_> = sharing.stores.iter().map(|store| (store.by, store.address, store.moves)).collect();
    assert_eq!((sharing.lines, sharing.moves, stores), (1, 2, vec![(TEXT + 4, DIRECT + own, 2)]));
}

#[test]
fn what_is_not_asked_for_is_not_followed() {
    let mut machine = Machine::new();
    machine.kernel(0);
    machine.access(0, DIRECT, 0x1000, AccessKind::Write);
    machine.access(1, DIRECT, 0x1000, AccessKind::Write);
    assert_eq!(machine.results().sharing, None);
}
