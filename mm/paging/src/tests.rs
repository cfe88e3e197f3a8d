//! Compares walks with a naive map and roots with each other, and checks flushes on the software
//! machine.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};
use std::vec::Vec;

use freehold_frame::{Anon, Frame, LeafMapping, PageTable, User};
use freehold_machine::model::{AccessFault, Config, Model, Stale, StaleKind};
use freehold_machine::{Access, CpuId, Cpus, NodeId, PAGE_SIZE, Pfn, Tables, Tlb, VirtAddr};
use proptest::prelude::*;

use crate::model::{KERNEL_ROOTS, ModelFrames};
use crate::{Backing, Entry, KernelRoots, Marks, PageSize, Prepared, Rights, Roots, Space};

const RW: Rights = Rights::READ.union(Rights::WRITE);

fn frames(cpus: usize, nodes: usize) -> ModelFrames {
    ModelFrames::new(Config { cpus, nodes, frames: 4096, seed: 7 })
}

fn load(model: Model, cpu: u16, roots: &Roots<ModelFrames>) {
    model.on_cpu(CpuId(cpu), || roots.load(&model.pin(), &mut None));
}

fn unload(model: Model, cpu: u16, roots: &Roots<ModelFrames>) {
    model.on_cpu(CpuId(cpu), || {
        let pinned = model.pin();
        model.load_root(Pfn(0));
        roots.unload(&pinned);
    });
}

fn new_leaf(space: &Space<ModelFrames>, rights: Rights) -> Entry {
    let mapping = Frame::<Anon, _>::allocate_zeroed(space.source()).unwrap().into_mapping().unwrap();
    Entry::leaf(mapping.into_leaf(), rights, Marks::Untouched, Backing::Counted)
}

fn map(space: &mut Space<ModelFrames>, addr: VirtAddr, rights: Rights) -> Pfn {
    let leaf = new_leaf(space, rights);
    space.make(addr, PageSize::Small).unwrap().fill(leaf);
    leaf.frame()
}

/// Gives the page at `addr` another frame.
fn replace(space: &Space<ModelFrames>, addr: VirtAddr, rights: Rights) -> Pfn {
    let leaf = new_leaf(space, rights);
    let old = space.find(addr).unwrap().0.replace(leaf);
    space.forget(addr, old, Some(LeafMapping::<Anon, _>::from_leaf(space.source(), old.frame()).unwrap()));
    leaf.frame()
}

fn unmap(space: &Space<ModelFrames>, addr: VirtAddr, batch: &mut crate::FlushBatch<ModelFrames>) {
    let (slot, _) = space.find(addr).unwrap();
    let old = slot.replace(Entry::EMPTY);
    batch.unmapped(addr, old, Some(LeafMapping::<User, _>::from_leaf(space.source(), old.frame()).unwrap()));
}

#[test]
fn a_cpu_is_alone_while_no_other_has_the_roots_and_others_wait_until_it_is_done() {
    let frames = frames(2, 1);
    let model = frames.model();
    let space = Space::new(frames, KERNEL_ROOTS).unwrap();
    let roots = space.roots();
    let is_alone = |cpu| model.on_cpu(CpuId(cpu), || roots.alone((), |()| ()).is_ok());
    assert!(!is_alone(0), "it has not loaded them");
    load(model, 0, roots);
    assert!(is_alone(0) && !is_alone(1));
    load(model, 1, roots);
    assert!(!is_alone(0) && !is_alone(1));
    model.on_cpu(CpuId(1), || roots.lazy(&model.pin()));
    assert!(!is_alone(0) && !is_alone(1), "a lazy CPU may have old translations");
    unload(model, 1, roots);
    assert!(is_alone(0));
    let (began, is_done) = (Barrier::new(2), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            began.wait();
            load(model, 1, roots);
            assert_eq!(is_done.load(Ordering::SeqCst), 1, "it did not wait");
        });
        let filled = model.on_cpu(CpuId(0), || {
            roots.alone((), |()| {
                began.wait();
                std::thread::sleep(core::time::Duration::from_millis(30));
                is_done.store(1, Ordering::SeqCst);
            })
        });
        assert_eq!(filled, Ok(()));
    });
    [0, 1].into_iter().for_each(|cpu| unload(model, cpu, roots));
    drop(space);
    frames.assert_all_free();
}

#[test]
fn pages_translate_on_every_cpu_and_are_gone_everywhere_after_the_flush() {
    let frames = frames(4, 2);
    let model = frames.model();
    let mut space = Space::new(frames, KERNEL_ROOTS).unwrap();
    let addr = VirtAddr(0x7f00_0000_0000);
    for cpu in 0..4 {
        load(model, cpu, space.roots());
    }
    map(&mut space, addr, RW);
    model.store(addr, 42).unwrap();
    for cpu in 0..4 {
        assert_eq!(model.on_cpu(CpuId(cpu), || model.load(addr)), Ok(42));
    }
    let mut batch = space.batch();
    unmap(&space, addr, &mut batch);
    assert_eq!(frames.owned(freehold_frame::Owner::Anon), 1, "the frame stays owned until the flush");
    drop(batch);
    model.assert_coherent();
    assert_eq!(model.access(addr, Access::Read), Err(AccessFault::NotPresent));
    let roots = space.roots().clone();
    drop(space);
    (0..4).for_each(|cpu| unload(model, cpu, &roots));
    drop(roots);
    frames.assert_all_free();
}

#[test]
fn a_missing_flush_is_caught_by_the_judge() {
    let frames = frames(2, 1);
    let model = frames.model();
    let mut space = Space::new(frames, KERNEL_ROOTS).unwrap();
    load(model, 1, space.roots());
    map(&mut space, VirtAddr(0x1000), RW);
    model.on_cpu(CpuId(1), || model.load(VirtAddr(0x1000))).unwrap();
    space.find(VirtAddr(0x1000)).unwrap().0.replace(Entry::EMPTY);
    assert_eq!(model.stale().len(), 1);
    unload(model, 1, space.roots());
}

#[test]
fn roots_of_all_nodes_agree_in_every_user_slot() {
    let frames = frames(4, 4);
    let model = frames.model();
    let mut space = Space::new(frames, KERNEL_ROOTS).unwrap();
    map(&mut space, VirtAddr(0x1000), RW);
    space.roots().prepare(NodeId(2)).unwrap();
    map(&mut space, VirtAddr(3 << 39), RW);
    space.roots().prepare(NodeId(1)).unwrap();
    space.roots().prepare(NodeId(1)).unwrap();
    map(&mut space, VirtAddr(9 << 39), RW);
    assert_eq!(space.roots().count(), 3);
    let agree = |space: &Space<ModelFrames>| {
        for index in 0..256 {
            let entries: Vec<_> = [0, 1, 2]
                .iter()
                .map(|&n| model.load_entry(space.roots().root_of(NodeId(n)), index))
                .collect();
            assert!(entries.iter().all(|e| *e == entries[0]), "slot {index}: {entries:x?}");
        }
    };
    agree(&space);
    // A node without its own root uses another node's, and sees the same pages.
    load(model, 3, space.roots());
    assert_eq!(model.on_cpu(CpuId(3), || model.load(VirtAddr(9 << 39))), Ok(0));
    let mut batch = space.batch();
    for addr in [0x1000, 3 << 39, 9 << 39] {
        unmap(&space, VirtAddr(addr), &mut batch);
    }
    let span = VirtAddr(0)..VirtAddr(5 << 39);
    space.free_tables(span.clone(), span, &mut batch);
    agree(&space);
    drop(batch);
    model.assert_coherent();
    unload(model, 3, space.roots());
    drop(space);
    frames.assert_all_free();
}

#[test]
fn a_nodes_root_is_made_of_a_spare_when_one_of_its_cpus_first_loads_the_space() {
    let frames = frames(4, 2);
    let model = frames.model();
    static SHARED: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    static TEMPLATE: AtomicU64 = AtomicU64::new(0);
    let shared = |cpu: usize| SHARED[cpu].load(Ordering::Relaxed);
    let template = Frame::<PageTable, _>::allocate(frames).unwrap();
    model.copy_entries(Pfn(0), template.pfn(), 0..512);
    model.store_entry(template.pfn(), 511, 1 << 12 | 1);
    TEMPLATE.store(template.pfn().0, Ordering::Relaxed);
    let root_of = |node: NodeId| Pfn(u64::from(node.0) * TEMPLATE.load(Ordering::Relaxed));
    let templates = KernelRoots::new(root_of).telling(|cpu| {
        SHARED[usize::from(cpu.0)].fetch_add(1, Ordering::Relaxed);
    });
    let mut space = Space::new(frames, templates).unwrap();
    map(&mut space, VirtAddr(0x1000), RW);
    let load = |cpu, spare: &mut Option<_>| {
        model.on_cpu(CpuId(cpu), || space.roots().load(&model.pin(), spare));
    };
    // Without a spare table the node's CPUs share the first root, and report that each time.
    load(1, &mut None);
    unload(model, 1, space.roots());
    load(1, &mut None);
    load(3, &mut None);
    load(2, &mut None);
    assert_eq!([0, 1, 2, 3].map(shared), [0, 2, 0, 1]);
    assert_eq!((space.roots().count(), space.roots().root_of(NodeId(1))), (1, space.roots().first()));
    unload(model, 1, space.roots());
    let mut spare = Some(Frame::<PageTable, _>::allocate(frames).unwrap());
    let table = spare.as_ref().unwrap().pfn();
    load(1, &mut spare);
    assert!(spare.is_none());
    let root_on = |cpu| model.on_cpu(CpuId(cpu), || model.current_root());
    assert_eq!([1, 2, 3].map(root_on), [table, space.roots().first(), space.roots().first()]);
    // CPUs that share stop when memory is available; others do not change.
    for cpu in [0, 1, 2, 3] {
        model.on_cpu(CpuId(cpu), || space.roots().stop_sharing(&model.pin(), &mut None));
    }
    assert_eq!([1, 2, 3].map(root_on), [table, space.roots().first(), table]);
    [2, 3].into_iter().for_each(|cpu| unload(model, cpu, space.roots()));
    assert_eq!([0, 1, 2, 3].map(shared), [0, 2, 0, 1]);
    assert_eq!((space.roots().count(), space.roots().root_of(NodeId(1))), (2, table));
    assert_eq!(model.load_entry(table, 0), model.load_entry(space.roots().first(), 0));
    let of_template = |slot| model.load_entry(template.pfn(), slot);
    assert!((256..512).all(|slot| model.load_entry(table, slot) == of_template(slot)));
    assert_eq!(model.on_cpu(CpuId(1), || model.load(VirtAddr(0x1000))), Ok(0));
    // Once.
    let mut second = Some(Frame::<PageTable, _>::allocate(frames).unwrap());
    load(3, &mut second);
    load(0, &mut second);
    assert!(second.take().is_some() && space.roots().count() == 2);
    [1, 3, 0].into_iter().for_each(|cpu| unload(model, cpu, space.roots()));
    let mut batch = space.batch();
    unmap(&space, VirtAddr(0x1000), &mut batch);
    drop(batch);
    drop(space);
    drop(template);
    frames.assert_all_free();
}

/// One thread links tables at slots of the top level, while two CPUs of another node load the space
/// there for the first time.
#[test]
fn a_root_that_is_made_while_slots_change_agrees_and_is_made_once() {
    const SLOTS: u64 = 48;
    let frames = frames(4, 2);
    let model = frames.model();
    model.shake();
    let templates = KernelRoots::new(|node| Pfn(u64::from(node.0)));
    for _ in 0..100 {
        let mut space = Space::new(frames, templates).unwrap();
        let roots = Arc::clone(space.roots());
        let start = Barrier::new(3);
        let load = |cpu| {
            let mut spare = Some(Frame::<PageTable, _>::allocate(frames).unwrap());
            start.wait();
            model.on_cpu(CpuId(cpu), || roots.load(&model.pin(), &mut spare));
        };
        std::thread::scope(|threads| {
            threads.spawn(|| load(1));
            threads.spawn(|| load(3));
            start.wait();
            for slot in 0..SLOTS {
                space.make(VirtAddr(slot << 39), PageSize::Small).unwrap();
            }
        });
        assert_eq!(roots.count(), 2);
        let [first, second] = [roots.first(), roots.root_of(NodeId(1))];
        for slot in 0..256 {
            let entry = model.load_entry(second, slot);
            assert_eq!(entry, model.load_entry(first, slot), "slot {slot}");
            assert_eq!(entry != 0, slot < SLOTS as usize, "slot {slot}");
        }
        [1, 3].into_iter().for_each(|cpu| unload(model, cpu, &roots));
    }
    frames.assert_all_free();
}

#[test]
fn a_lazy_cpu_is_not_interrupted_for_pages_and_catches_up_when_it_runs_user_code() {
    let frames = frames(2, 1);
    let model = frames.model();
    let mut space = Space::new(frames, KERNEL_ROOTS).unwrap();
    let addr = VirtAddr(0x5000);
    map(&mut space, addr, RW);
    load(model, 1, space.roots());
    model.on_cpu(CpuId(1), || model.load(addr)).unwrap();
    model.on_cpu(CpuId(1), || space.roots().lazy(&model.pin()));
    unmap(&space, addr, &mut space.batch());
    assert_eq!(model.counts().interrupts, 0);
    assert_eq!(model.stale().len(), 1, "the lazy CPU still has it");
    load(model, 1, space.roots());
    model.assert_coherent();
    assert_eq!(model.on_cpu(CpuId(1), || model.load(addr)), Err(AccessFault::NotPresent));
    // For tables a lazy CPU is interrupted: its walker may use them.
    map(&mut space, addr, RW);
    model.on_cpu(CpuId(1), || model.load(addr)).unwrap();
    model.on_cpu(CpuId(1), || space.roots().lazy(&model.pin()));
    let mut batch = space.batch();
    unmap(&space, addr, &mut batch);
    space.free_tables(addr..VirtAddr(addr.0 + 4096), VirtAddr(0)..VirtAddr(1 << 47), &mut batch);
    drop(batch);
    model.assert_coherent();
    unload(model, 1, space.roots());
    drop(space);
    frames.assert_all_free();
}

#[test]
fn a_page_that_was_never_touched_costs_no_flush() {
    let frames = frames(2, 1);
    let model = frames.model();
    let mut space = Space::new(frames, KERNEL_ROOTS).unwrap();
    load(model, 1, space.roots());
    map(&mut space, VirtAddr(0x5000), RW);
    replace(&space, VirtAddr(0x5000), RW);
    unmap(&space, VirtAddr(0x5000), &mut space.batch());
    assert_eq!(model.counts().range_flushes, 0);
    unload(model, 1, space.roots());
    drop(space);
    frames.assert_all_free();
}

#[test]
fn a_large_page_splits_into_pieces_that_lead_to_the_same_bytes() {
    let frames = frames(1, 1);
    let model = frames.model();
    let mut space = Space::new(frames, KERNEL_ROOTS).unwrap();
    load(model, 0, space.roots());
    let addr = VirtAddr(0x4000_0000);
    let slot = space.make(addr, PageSize::Large).unwrap();
    slot.fill(Entry::leaf(Pfn(1024), RW, Marks::Untouched, Backing::Uncounted).large());
    let inside = VirtAddr(addr.0 + 77 * PAGE_SIZE as u64 + 5);
    model.store(inside, 9).unwrap();
    assert_eq!(space.find(inside).unwrap().1, PageSize::Large);
    let mut batch = space.batch();
    space.split(inside, &mut batch).unwrap();
    drop(batch);
    model.assert_coherent();
    assert_eq!(model.load(inside), Ok(9));
    let (slot, size) = space.find(inside).unwrap();
    assert_eq!((slot.load().frame(), size), (Pfn(1024 + 77), PageSize::Small));
    assert!(slot.load().is_dirty(), "what was written stays written");
    let mut batch = space.batch();
    space.visit(addr..VirtAddr(addr.0 + (2 << 20)), |at, slot, _, _| {
        batch.unmapped(at, slot.replace(Entry::EMPTY), None);
    });
    drop(batch);
    unload(model, 0, space.roots());
    drop(space);
    frames.assert_all_free();
}

/// Mappings in 2 MiB of addresses.
#[derive(Clone, Copy, Debug)]
enum Place {
    Nothing,
    Large,
    /// Two pages, with these numbers in the table.
    Small(u8, u8),
}

fn places() -> impl Strategy<Value = Vec<Place>> {
    let place = prop_oneof![
        2 => Just(Place::Nothing),
        4 => Just(Place::Large),
        3 => (any::<u8>(), any::<u8>()).prop_map(|(one, other)| Place::Small(one, other)),
    ];
    prop::collection::vec(place, 1..24)
}

proptest! {
    /// Large leaves in rows, with holes and tables between them, across the border of a table.
    #[test]
    fn all_is_taken_once_upwards_whatever_lies_beside_it(places in places(), skipped in 0..4_usize) {
        const LARGE: u64 = 2 << 20;
        let frames = frames(1, 1);
        let mut space = Space::new(frames, KERNEL_ROOTS).unwrap();
        let first = (4 << 30) - 8 * LARGE;
        let mut expected = BTreeMap::new();
        for (at, place) in places.iter().enumerate() {
            let base = first + at as u64 * LARGE;
            let pages: &[u64] = match *place {
                Place::Nothing => &[],
                Place::Large => &[0],
                Place::Small(one, other) => &[u64::from(one), u64::from(other)],
            };
            for &page in pages {
                let (addr, frame) = (VirtAddr(base + page * PAGE_SIZE as u64), Pfn(512 * (at as u64 + 1) + page));
                let leaf = Entry::leaf(frame, RW, Marks::Untouched, Backing::Uncounted);
                let size = if matches!(place, Place::Large) { PageSize::Large } else { PageSize::Small };
                let leaf = if size == PageSize::Large { leaf.large() } else { leaf };
                if expected.insert(addr, (frame, size)).is_none() {
                    space.make(addr, size).unwrap().fill(leaf);
                }
            }
        }
        let cut = VirtAddr(first + skipped as u64 * LARGE);
        let mut taken = Vec::new();
        space.take_all(cut..VirtAddr(u64::MAX), |addr, entry, size| taken.push((addr, (entry.frame(), size))));
        let wanted: Vec<_> = expected.split_off(&cut).into_iter().collect();
        prop_assert_eq!(taken, wanted);
        taken = Vec::new();
        space.take_all(VirtAddr(0)..VirtAddr(u64::MAX), |addr, entry, size| taken.push((addr, (entry.frame(), size))));
        prop_assert_eq!(taken, expected.into_iter().collect::<Vec<_>>());
        let mut batch = space.batch();
        let all = VirtAddr(0)..VirtAddr(u64::MAX);
        space.free_tables(all.clone(), all, &mut batch);
        drop(batch);
        drop(space);
        frames.assert_all_free();
    }
}

#[test]
fn out_of_memory_on_any_table_is_an_error_and_leaks_nothing() {
    let frames = frames(1, 1);
    for budget in 0..5 {
        frames.fail_after(budget);
        let made = Space::new(frames, KERNEL_ROOTS)
            .map(|mut space| space.make(VirtAddr(0x1000), PageSize::Small).is_ok());
        assert_eq!(made.unwrap_or(false), budget == 4);
        frames.fail_never();
        frames.assert_all_free();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Map(u8, bool),
    Unmap(u8, u8),
    Replace(u8, bool),
    Protect(u8, u8, bool),
    Touch(u8, u8, bool),
    FreeTables(u8, u8),
    /// Moves the mappings around one page to another page's surroundings: 3 pages, 4 MiB or 2 GiB,
    /// at an offset of so many pages.
    Shift(u8, u8, u8, u8),
    Lazy(u8),
    Load(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<u8>(), any::<bool>()).prop_map(|(page, w)| Step::Map(page, w)),
        2 => (any::<u8>(), 1..40u8).prop_map(|(page, n)| Step::Unmap(page, n)),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(page, w)| Step::Replace(page, w)),
        2 => (any::<u8>(), 1..40u8, any::<bool>()).prop_map(|(page, n, w)| Step::Protect(page, n, w)),
        8 => (any::<u8>(), 0..3u8, any::<bool>()).prop_map(|(page, cpu, w)| Step::Touch(page, cpu, w)),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(page, n)| Step::FreeTables(page, n)),
        3 => (any::<u8>(), any::<u8>(), 0..3u8, prop_oneof![3 => Just(0), 1 => 0..3u8])
            .prop_map(|(page, to, size, beside)| Step::Shift(page, to, size, beside)),
        1 => (0..3u8).prop_map(Step::Lazy),
        1 => (0..3u8).prop_map(Step::Load),
    ]
}

/// Pages that spread over several tables of every level.
fn page(number: u8) -> VirtAddr {
    let n = u64::from(number);
    VirtAddr((n / 64) * (1 << 39) + (n / 16 % 4) * (1 << 30) + (n / 4 % 4) * (1 << 21) + (n % 4 + 1) * 4096)
}

/// Moves `from` to `to`; returns the number of steps.
fn move_to(space: &mut Space<ModelFrames>, from: &Range<VirtAddr>, to: VirtAddr) -> usize {
    let distance = to.0.wrapping_sub(from.start.0);
    let mut next = from.start;
    while let Prepared::UpTo(reached) = space.prepare_shift(&(next..from.end), distance).unwrap() {
        next = reached;
    }
    let mut batch = space.batch();
    let (mut next, mut steps) = (from.start, 0);
    while let Some(reached) = space.shift(&(next..from.end), distance, &mut batch) {
        (next, steps) = (reached, steps + 1);
    }
    steps
}

#[test]
fn what_lies_alike_moves_with_its_tables_and_the_rest_leaf_by_leaf() {
    const MIB: u64 = 1 << 20;
    let frames = frames(2, 2);
    let model = frames.model();
    let mut space = Space::new(frames, KERNEL_ROOTS).unwrap();
    (0..2).for_each(|cpu| load(model, cpu, space.roots()));
    let start = VirtAddr(1 << 30);
    let pages: Vec<_> = (0..64).map(|n| n * (32 * MIB) + (n % 3) * 4096).collect();
    for &page in &pages {
        map(&mut space, VirtAddr(start.0 + page), RW);
        model.store(VirtAddr(start.0 + page), (page >> 25) as u8).unwrap();
    }
    let all = |at: VirtAddr| at..VirtAddr(at.0 + 2048 * MIB);
    let tables = space.table_bytes();
    let mut at = start;
    // By GiB, by 2 MiB, leaf by leaf, and back.
    for (to, steps) in
        [((5 << 39) + (7 << 30), 2), ((6 << 39) + 2 * MIB, 64), ((9 << 39) + 4096, 64), (1 << 30, 64)]
    {
        let to = VirtAddr(to);
        assert_eq!(move_to(&mut space, &all(at), to), steps, "{at:?} to {to:?}");
        model.assert_coherent();
        let mut batch = space.batch();
        let span = at.0 & !((1 << 39) - 1);
        space.free_tables(all(at), VirtAddr(span)..VirtAddr(span + (1 << 39)), &mut batch);
        drop(batch);
        for &page in &pages {
            for cpu in 0..2 {
                let there = model.on_cpu(CpuId(cpu), || model.load(VirtAddr(to.0 + page)));
                assert_eq!(there, Ok((page >> 25) as u8), "{page:#x} at {to:?}");
                let gone = model.on_cpu(CpuId(cpu), || model.access(VirtAddr(at.0 + page), Access::Read));
                assert_eq!(gone, Err(AccessFault::NotPresent));
            }
        }
        at = to;
    }
    assert_eq!(space.table_bytes(), tables, "a move leaves no tables behind");
    let mut batch = space.batch();
    for &page in &pages {
        unmap(&space, VirtAddr(at.0 + page), &mut batch);
    }
    drop(batch);
    (0..2).for_each(|cpu| unload(model, cpu, space.roots()));
    drop(space);
    frames.assert_all_free();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn tables_and_tlbs_agree_with_a_naive_map(steps in prop::collection::vec(step(), 1..120)) {
        let frames = frames(3, 2);
        let model = frames.model();
        let mut space = Space::new(frames, KERNEL_ROOTS).unwrap();
        let mut naive: BTreeMap<VirtAddr, (Pfn, bool)> = BTreeMap::new();
        let mut lazy = [false; 3];
        (0..3).for_each(|cpu| load(model, cpu, space.roots()));
        for step in steps {
            let mut batch = space.batch();
            let range = |first: u8, count: u8| page(first)..page(first.saturating_add(count));
            match step {
                Step::Map(n, writable) => {
                    naive.entry(page(n)).or_insert_with(|| {
                        (map(&mut space, page(n), if writable { RW } else { Rights::READ }), writable)
                    });
                }
                Step::Unmap(n, count) => {
                    space.visit(range(n, count), |addr, slot, _, _| {
                        let old = slot.replace(Entry::EMPTY);
                        batch.unmapped(addr, old, Some(LeafMapping::from_leaf(frames, old.frame()).unwrap()));
                    });
                    naive.retain(|addr, _| !range(n, count).contains(addr));
                }
                Step::Replace(n, writable) => {
                    if let Some(page_is) = naive.get_mut(&page(n)) {
                        *page_is = (replace(&space, page(n), if writable { RW } else { Rights::READ }), writable);
                    }
                }
                Step::Protect(n, count, writable) => {
                    space.visit(range(n, count), |addr, slot, _, _| {
                        let rights = if writable { RW } else { Rights::READ };
                        batch.restricted(addr, slot.update(|e| e.with_rights(rights)));
                    });
                    naive.range_mut(range(n, count)).for_each(|(_, v)| v.1 = writable);
                }
                Step::Touch(n, cpu, write) => {
                    let access = if write { Access::Write } else { Access::Read };
                    if !lazy[usize::from(cpu)] {
                        let got = model.on_cpu(CpuId(cpu.into()), || model.access(page(n), access));
                        let expected = match naive.get(&page(n)) {
                            None => Err(AccessFault::NotPresent),
                            Some((_, false)) if write => Err(AccessFault::Protection),
                            Some((pfn, _)) => Ok(pfn.start()),
                        };
                        prop_assert_eq!(got, expected);
                    }
                }
                Step::FreeTables(n, count) => {
                    let span = range(n, count);
                    if naive.range(span.clone()).next().is_none() {
                        space.free_tables(span.clone(), span, &mut batch);
                    }
                }
                Step::Shift(n, to, size, beside) => {
                    let unit = [4096, 2 << 20, 1 << 30][usize::from(size)];
                    let count = [3, 2, 2][usize::from(size)];
                    let around = |n: u8| page(n).0 & !(unit - 1);
                    let from = VirtAddr(around(n))..VirtAddr(around(n) + count * unit);
                    let to = VirtAddr(around(to) + u64::from(beside) * 4096);
                    let place = to..VirtAddr(to.0 + count * unit);
                    let apart = place.end <= from.start || from.end <= place.start;
                    if apart && naive.range(place.clone()).next().is_none() {
                        move_to(&mut space, &from, to);
                        let moved: Vec<_> = naive.range(from.clone()).map(|(&addr, &v)| (addr, v)).collect();
                        for (addr, is) in moved {
                            naive.remove(&addr);
                            naive.insert(VirtAddr(addr.0 - from.start.0 + to.0), is);
                        }
                    }
                }
                Step::Lazy(cpu) => {
                    model.on_cpu(CpuId(cpu.into()), || space.roots().lazy(&model.pin()));
                    lazy[usize::from(cpu)] = true;
                }
                Step::Load(cpu) => {
                    load(model, cpu.into(), space.roots());
                    lazy[usize::from(cpu)] = false;
                }
            }
            drop(batch);
            let excused = |s: &Stale| lazy[usize::from(s.cpu.0)] && s.kind != StaleKind::Walk;
            let stale: Vec<_> = model.stale().into_iter().filter(|s| !excused(s)).collect();
            prop_assert_eq!(stale, Vec::new());
            let mut seen = BTreeMap::new();
            space.visit(VirtAddr(0)..VirtAddr(u64::MAX), |addr, _, entry, _| {
                seen.insert(addr, (entry.frame(), entry.is_writable()));
            });
            prop_assert_eq!(&seen, &naive);
        }
        let mut batch = space.batch();
        space.visit(VirtAddr(0)..VirtAddr(u64::MAX), |addr, slot, _, _| {
            let old = slot.replace(Entry::EMPTY);
            batch.unmapped(addr, old, Some(LeafMapping::from_leaf(frames, old.frame()).unwrap()));
        });
        drop(batch);
        (0..3).for_each(|cpu| unload(model, cpu, space.roots()));
        drop(space);
        frames.assert_all_free();
    }
}
