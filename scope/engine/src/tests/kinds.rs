//! Counts of the kernel's loads and stores by kind of data.

use freehold_scope_record::{DataKind, KindCounts};

use super::*;

const TABLE_OWNER: u64 = 3;

#[test]
fn the_kernels_data_is_counted_by_kind_for_the_accesses_near_and_far() {
    let mut machine = Machine::new();
    machine.kernel(0);
    machine.kernel(1);
    // Before the kernel has published its map, no data has a kind.
    machine.access(0, DIRECT, 0x5000, AccessKind::Read);
    machine.publish(&[(0x1000, KERNEL_OWNER), (0x1001, TABLE_OWNER), (0x1002, ANON)]);
    let own = |frame: u64| (DIRECT + (frame << 12), frame << 12);
    let places = [
        (DataKind::Programs, (0x7000, 0x1002 << 12)),
        (DataKind::Programs, (WINDOWS, 0x1002 << 12)),
        (DataKind::Image, (TEXT + 0x5000, IMAGE + 0x5000)),
        (DataKind::FrameTable, (TABLE, RECORDS)),
        // The other part of the frame table, which nobody publishes.
        (DataKind::FrameTable, (TABLE + (64 << 30), RECORDS + 0x5000)),
        (DataKind::Stacks, (DYNAMIC, 0x6000)),
        (DataKind::Tables, own(0x1001)),
        (DataKind::Heap, own(0x1000)),
    ];
    for (address, physical) in places.map(|(_, place)| place) {
        machine.access(0, address, physical, AccessKind::Write);
        machine.access(1, address, physical, AccessKind::Read);
        machine.access(1, address, physical, AccessKind::Read);
        // A program's accesses are nobody's data.
        machine.cpus[1].access::<Everything>(0x40_0000, address, (AccessKind::Read, 8), || Some(physical));
    }
    let results = machine.results();
    let [near, far] = [0, 1].map(|cpu| results.phases[1].cpus[cpu].kernel_data);
    for kind in DataKind::OWN.into_iter().chain([DataKind::Programs]) {
        let places = places.iter().filter(|place| place.0 == kind).count() as u64;
        assert_eq!(near.of(kind), KindCounts { local: places, remote: 0 }, "{kind:?}");
        assert_eq!(far.of(kind), KindCounts { local: 0, remote: 2 * places }, "{kind:?}");
    }
    assert_eq!(far.own(), KindCounts { local: 0, remote: 12 });
}
