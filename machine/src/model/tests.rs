//! Tests of the model itself: it detects the defects for which it was made.

use super::*;
use crate::{DeviceAccess, DeviceDomain, NoTables, PAGE_SHIFT, Unconfirmed, VirtAddr};

const PRESENT_WRITE_USER: u64 = 7;

/// A machine with frames 1..=4 as the tables that map page 0 to frame 600.
fn mapped() -> (Model, VirtAddr) {
    let model = Model::new(Config { cpus: 2, frames: 1024, ..Config::default() });
    model.enter(PfnRange::new(Pfn(0), Pfn(512)));
    for table in 1..=4u64 {
        model.clear_table(Pfn(table));
        let next = if table == 4 { 600 } else { table + 1 };
        model.store_entry(Pfn(table), 0, next << PAGE_SHIFT | PRESENT_WRITE_USER);
    }
    for cpu in 0..2 {
        model.on_cpu(CpuId(cpu), || {
            let pinned = model.pin();
            assert_eq!(pinned.cpu(), CpuId(cpu));
            model.load_root(Pfn(1));
        });
    }
    (model, VirtAddr(0))
}

#[test]
fn a_store_is_seen_by_a_load_on_another_cpu_and_sets_the_dirty_bit() {
    let (model, addr) = mapped();
    assert_eq!(model.load(addr), Ok(0));
    assert_eq!(model.load_entry(Pfn(4), 0) & 0x60, 0x20);
    model.store(VirtAddr(5), 9).unwrap();
    assert_eq!(model.load_entry(Pfn(4), 0) & 0x60, 0x60);
    assert_eq!(model.on_cpu(CpuId(1), || model.load(VirtAddr(5))), Ok(9));
    model.with_bytes(Pfn(600), |bytes| assert_eq!(bytes[5], 9));
    model.assert_coherent();
}

#[test]
fn a_missing_flush_is_seen_on_the_cpu_that_cached_and_a_flush_cures_it() {
    let (model, addr) = mapped();
    model.on_cpu(CpuId(1), || model.store(addr, 1)).unwrap();
    model.swap_entry(Pfn(4), 0, 0);
    let stale = model.stale();
    assert_eq!(stale, [Stale { cpu: CpuId(1), addr, leads_to: Pfn(600), kind: StaleKind::Gone }]);
    let flush = Flush::Range { start: addr, pages: 1 };
    model.flush_on(CpuSet::first(2), flush);
    model.assert_coherent();
    assert_eq!(model.load(addr), Err(AccessFault::NotPresent));
}

#[test]
fn a_store_before_a_late_flush_is_done_and_waits_for_it() {
    let (model, addr) = mapped();
    model.store(addr, 1).unwrap();
    model.swap_entry(Pfn(4), 0, 0);
    let early = std::panic::catch_unwind(|| model.store(addr, 2));
    assert!(early.is_err(), "no flush may be late unless that is said");
    model.let_flushes_be_late();
    std::thread::scope(|scope| {
        let store = scope.spawn(|| model.store(VirtAddr(5), 9));
        while model.counts().late == 0 {
            std::thread::yield_now();
        }
        model.with_bytes(Pfn(600), |bytes| assert_eq!((bytes[0], bytes[5]), (1, 9)));
        assert!(!store.is_finished(), "it did not wait");
        model.on_cpu(CpuId(1), || model.flush_on(CpuSet::first(1), Flush::Range { start: addr, pages: 1 }));
        assert_eq!(store.join().unwrap(), Ok(()));
    });
    assert_eq!(model.load(addr), Err(AccessFault::NotPresent));
}

#[test]
fn less_rights_a_moved_frame_a_cleared_dirty_bit_another_key_and_a_freed_table_are_told_apart() {
    let cases: [(u64, u64, StaleKind); 4] = [
        (4, 600 << PAGE_SHIFT | 0x65, StaleKind::Weaker),
        (4, 601 << PAGE_SHIFT | 0x67, StaleKind::Moved),
        (4, 600 << PAGE_SHIFT | 0x27, StaleKind::Clean),
        (4, 600 << PAGE_SHIFT | 0x67 | 5 << 59, StaleKind::OtherKey),
    ];
    for (table, entry, kind) in cases {
        let (model, addr) = mapped();
        model.store(addr, 1).unwrap();
        model.store_entry(Pfn(table), 0, entry);
        assert_eq!(model.stale()[0].kind, kind);
    }
    let (model, addr) = mapped();
    model.load(addr).unwrap();
    model.store_entry(Pfn(3), 0, 5 << PAGE_SHIFT | PRESENT_WRITE_USER);
    assert!(model.stale().iter().any(|s| s.kind == StaleKind::Walk));
}

#[test]
#[should_panic(expected = "stale TLB entry was used")]
fn using_a_stale_entry_stops_the_test() {
    let (model, addr) = mapped();
    model.load(addr).unwrap();
    model.store_entry(Pfn(4), 0, 601 << PAGE_SHIFT | PRESENT_WRITE_USER);
    let _ = model.load(addr);
}

#[test]
#[should_panic(expected = "its pageblock is not in it")]
fn a_user_frame_reached_through_the_direct_map_stops_the_test() {
    let (model, _) = mapped();
    model.load_entry(Pfn(600), 0);
}

#[test]
fn windows_keep_what_others_wrote_to_other_words() {
    let (model, _) = mapped();
    model.with_bytes(Pfn(7), |outer| {
        outer[0] = 1;
        model.with_bytes(Pfn(7), |inner| inner[8] = 2);
    });
    model.with_bytes(Pfn(7), |bytes| assert_eq!((bytes[0], bytes[8]), (1, 2)));
}

#[test]
fn a_device_reaches_what_it_was_given_in_the_way_it_was_given_and_nothing_after_it_was_taken() {
    let view = DeviceView::new(Pfn(1 << 20));
    let run = PfnRange::new(Pfn(5), Pfn(7));
    view.map(run).unwrap();
    let address = view.open(3, &mut [Pfn(9), Pfn(2)].into_iter(), DeviceAccess::Read).unwrap();
    assert_eq!((Pfn(address >> PAGE_SHIFT), view.open_pages()), (view.window(3), 2));
    let second = view.window(3).offset(1);
    assert_eq!(view.reach(Pfn(6), DeviceAccess::Write), Ok(Pfn(6)));
    assert_eq!(view.reach(second, DeviceAccess::Read), Ok(Pfn(2)));
    let wider = DeviceViolation {
        page: second,
        wanted: DeviceAccess::Write,
        has: Some((Pfn(2), DeviceAccess::Read)),
    };
    assert_eq!(view.reach(second, DeviceAccess::Write), Err(wider));
    assert_eq!(view.reach(Pfn(9), DeviceAccess::Read).unwrap_err().has, None, "a window is the only way");
    assert_eq!(view.frames().len(), 4);
    assert_eq!(view.open(3, &mut [Pfn(1)].into_iter(), DeviceAccess::Read), Err(NoTables));
    view.go_deaf();
    assert_eq!((view.close(3, 2), view.unmap(run)), (Err(Unconfirmed), Err(Unconfirmed)));
    assert_eq!(view.frames().len(), 4, "it still reaches them");
    view.hear();
    view.fail_every(2);
    assert_eq!((view.close(3, 2), view.unmap(run), view.frames().len()), (Ok(()), Ok(()), 0));
    assert_eq!((view.map(run), view.map(PfnRange::new(Pfn(8), Pfn(9)))), (Ok(()), Err(NoTables)));
}

#[test]
#[should_panic(expected = "is given to a device that has it")]
fn a_page_that_is_given_twice_is_noticed() {
    let view = DeviceView::new(Pfn(1 << 20));
    let _ = view.map(PfnRange::new(Pfn(5), Pfn(7)));
    let _ = view.map(PfnRange::new(Pfn(6), Pfn(8)));
}

#[test]
#[should_panic(expected = "is taken from a device without it")]
fn a_page_that_is_taken_twice_is_noticed() {
    let view = DeviceView::new(Pfn(1 << 20));
    let _ = view.unmap(PfnRange::new(Pfn(5), Pfn(6)));
}
