//! Allocation and freeing of blocks: promises of the allocator to one caller at a time.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{check, model};
use freehold_buddy::{Buddy, Check, Misuse, Moment, Options, Shuffle, Wipe};
use freehold_frame::{
    Anon, Frame, FrameSource, NodePolicy, NodeSet, Order, OutOfMemory, Owner, PageTable, Request, Side,
};
use freehold_machine::model::{Config, Model};
use freehold_machine::{CpuId, NodeId, Pfn, PfnRange, PhysicalBytes};
use proptest::prelude::*;

type Source = &'static Buddy<Model>;

fn order(log2: u32) -> Order {
    Order::new(log2).unwrap()
}

fn run(start: u64, end: u64) -> PfnRange {
    PfnRange::new(Pfn(start), Pfn(end))
}

fn shuffled() -> Options {
    Options { shuffle: Shuffle::On, ..Options::default() }
}

/// Kernel frames are in the direct map, user frames are not.
fn on_its_side(source: Source, block: Pfn, order: Order, owner: Owner) -> bool {
    let range = PfnRange::new(block, block.offset(order.frames()));
    let inside = source.machine().is_in_direct_map(range.start)
        && source.machine().is_in_direct_map(Pfn(range.end.0 - 1));
    inside == (owner.side() == Side::Kernel)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(Owner, u32, NodePolicy),
    Give(usize),
    Poll(Moment),
    Cpu(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let owner = prop::sample::select(vec![
        Owner::Kernel,
        Owner::PageTable,
        Owner::Bounce,
        Owner::Anon,
        Owner::PageCache,
    ]);
    let policy = prop_oneof![
        6 => Just(NodePolicy::Local),
        1 => (0..3u8).prop_map(|n| NodePolicy::Preferred(NodeId(n))),
        1 => (1..4u16).prop_map(|n| NodePolicy::Bind(NodeSet(n))),
        1 => (0..9u64).prop_map(|n| NodePolicy::Interleave(NodeSet(3), n)),
    ];
    prop_oneof![
        10 => (owner, 0..12u32, policy).prop_map(|(owner, order, policy)| Step::Take(owner, order.saturating_sub(2), policy)),
        10 => any::<usize>().prop_map(Step::Give),
        1 => prop_oneof![Just(Moment::Tick), Just(Moment::Idle)].prop_map(Step::Poll),
        1 => (0..2u16).prop_map(Step::Cpu),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn blocks_are_aligned_disjoint_on_their_side_and_all_come_back(
        steps in prop::collection::vec(step(), 1..400),
        shuffle in prop::sample::select(vec![Shuffle::On, Shuffle::Off]),
        seed: u64,
    ) {
        let reserved = [run(0, 300), run(700, 710), run(8190, 8200)];
        let options = Options { shuffle, ..Options::default() };
        let source = model(Config { cpus: 2, nodes: 2, frames: 16384 + 100, seed }, &reserved, options);
        let all = check(source);
        // The pageblock that the nodes share belongs to the lower node; the other node's frames in
        // it stay unused.
        prop_assert_eq!(all, 16484 - 320 - 462);
        let mut live: BTreeMap<Pfn, (Order, Owner)> = BTreeMap::new();
        let mut cpu = CpuId(0);
        for step in steps {
            match step {
                Step::Cpu(n) => cpu = CpuId(n),
                Step::Poll(moment) => source.machine().on_cpu(cpu, || source.poll(moment)),
                Step::Take(owner, log2, policy) => {
                    let request = Request::new(owner).order(order(log2)).policy(policy);
                    let Ok(block) = source.machine().on_cpu(cpu, || source.allocate(request)) else { continue };
                    prop_assert!(block.is_aligned(log2));
                    prop_assert!(on_its_side(source, block, order(log2), owner));
                    let end = block.offset(1 << log2);
                    prop_assert!(reserved.iter().all(|r| r.intersection(PfnRange::new(block, end)).is_empty()));
                    if let Some((below, (size, _))) = live.range(..=block).next_back() {
                        prop_assert!(below.offset(size.frames()) <= block);
                    }
                    if let Some((above, _)) = live.range(block..).next() {
                        prop_assert!(end <= *above);
                    }
                    if let NodePolicy::Bind(set) = policy {
                        prop_assert!(set.contains(source.machine().topology().node_of(block).unwrap()));
                    }
                    live.insert(block, (order(log2), owner));
                }
                Step::Give(n) => {
                    let Some((&block, &(size, _))) = live.iter().nth(n % live.len().max(1)) else { continue };
                    source.machine().on_cpu(cpu, || source.release(block, size));
                    live.remove(&block);
                }
            }
        }
        let used: u64 = live.values().map(|(size, _)| size.frames()).sum();
        prop_assert_eq!(check(source), all - used);
        live.iter().for_each(|(&block, &(size, _))| source.release(block, size));
        for cpu in 0..2 {
            source.machine().on_cpu(CpuId(cpu), || source.drain_local());
        }
        prop_assert_eq!(check(source), all);
        prop_assert_eq!(source.misuses(), 0);
        // Memory is fragmented only by the reserved frames.
        let free = source.zone_info().map(|zone| source.zone_blocks(zone.node).free_blocks);
        let whole: u64 = free.map(|free| (free[9] + 2 * free[10]) * 512).sum();
        prop_assert_eq!(whole, 512 * (32 - 1 - 1 - 2));
    }
}

/// Frames in the direct map with a byte that a program stored.
fn residue_in_the_direct_map(machine: Model) -> usize {
    let frames = PfnRange::new(Pfn(0), machine.topology().end());
    let shown = frames.iter().filter(|&frame| machine.is_in_direct_map(frame));
    shown.filter(|&frame| machine.with_bytes(frame, |bytes| bytes.contains(&0xee))).count()
}

#[test]
fn no_byte_of_a_program_enters_the_direct_map_with_a_pageblock() {
    for (options, expected_wipes) in [
        (shuffled(), true),
        (Options { init_on_free: Wipe::Always, ..shuffled() }, false),
        (Options { check: Check::Fill, ..shuffled() }, false),
    ] {
        let source = model(Config { frames: 16384, ..Config::default() }, &[run(0, 300)], options);
        let machine = source.machine();
        // Frames one by one, whole pageblocks, and a block that is taken offline with its bytes.
        for log2 in [0, 9] {
            let taken: Vec<_> =
                std::iter::from_fn(|| source.allocate(Request::new(Owner::Anon).order(order(log2))).ok())
                    .collect();
            for &block in &taken {
                let frames = PfnRange::new(block, block.offset(1 << log2));
                frames.iter().for_each(|frame| machine.with_bytes(frame, |bytes| bytes.fill(0xee)));
            }
            taken.into_iter().for_each(|block| source.release(block, order(log2)));
            source.drain_local();
        }
        assert_eq!(source.unplug(run(8192, 9216)), Ok(0));
        assert_eq!(source.plug(run(8192, 9216)), Ok(()));
        for log2 in [0, 3, 9, 10] {
            let request = Request::new(Owner::Kernel).order(order(log2));
            let taken: Vec<_> = std::iter::from_fn(|| source.allocate(request).ok()).collect();
            assert!(!taken.is_empty());
            assert_eq!(residue_in_the_direct_map(machine), 0, "order {log2}");
            taken.into_iter().for_each(|block| source.release(block, order(log2)));
            source.drain_local();
        }
        assert_eq!(source.wiped_pageblocks() > 0, expected_wipes);
        assert_eq!(source.misuses(), 0);
        check(source);
    }
}

#[test]
fn a_pageblock_that_programs_did_not_use_is_not_wiped() {
    let source = model(Config { frames: 16384, ..Config::default() }, &[run(0, 300)], shuffled());
    for _ in 0..3 {
        let request = Request::new(Owner::Kernel).order(order(9));
        let taken: Vec<_> = std::iter::from_fn(|| source.allocate(request).ok()).collect();
        taken.into_iter().for_each(|block| source.release(block, order(9)));
        source.drain_local();
    }
    assert_eq!(source.wiped_pageblocks(), 0);
}

#[test]
fn thirty_two_mebibytes_serve_every_owner_and_fail_with_a_value() {
    for (shuffle, cpus) in [(Shuffle::On, 1), (Shuffle::Off, 1), (Shuffle::On, 2)] {
        let options = Options { shuffle, ..Options::default() };
        let source = model(
            Config { cpus, frames: 8192, ..Config::default() },
            &[run(0, 256), run(4096, 6500)],
            options,
        );
        let all = check(source);
        let owners = [Owner::Kernel, Owner::PageTable, Owner::Bounce, Owner::Anon, Owner::PageCache];
        let mut held: Vec<_> = owners.map(|owner| source.allocate(Request::new(owner)).unwrap()).to_vec();
        while let Ok(frame) = source.allocate(Request::new(Owner::Anon)) {
            held.push(frame);
        }
        let left = source.free_frames();
        assert!(left < 64 + 512, "{left} frames were left when user memory ran out");
        assert_eq!(source.allocate(Request::new(Owner::Anon).order(Order::PAGEBLOCK)), Err(OutOfMemory));
        held.push(
            source.allocate(Request::new(Owner::PageTable)).expect("user memory stops before the kernel's"),
        );
        while let Ok(frame) = source.allocate(Request::new(Owner::Kernel)) {
            held.push(frame);
        }
        held.push(source.allocate(Request::new(Owner::Kernel).from_reserve()).expect("a reserve is left"));
        held.drain(..).for_each(|frame| source.release(frame, Order::FRAME));
        for cpu in 0..cpus {
            source.machine().on_cpu(CpuId(cpu as u16), || source.drain_local());
        }
        assert_eq!(check(source), all);
        // The kernel may take all memory, and then the user again.
        for owner in [Owner::Kernel, Owner::Anon] {
            let blocks: Vec<_> =
                std::iter::from_fn(|| source.allocate(Request::new(owner).order(Order::PAGEBLOCK)).ok())
                    .collect();
            assert_eq!(blocks.len(), 16 - 1 - 5, "{}", owner.name());
            assert!(blocks.iter().all(|b| on_its_side(source, *b, Order::PAGEBLOCK, owner)));
            blocks.into_iter().for_each(|b| source.release(b, Order::PAGEBLOCK));
        }
        assert_eq!(source.misuses(), 0);
    }
}

#[test]
fn typed_frames_come_from_the_allocator_and_go_back_by_themselves() {
    let source = model(Config::default(), &[], shuffled());
    let before = source.free_frames();
    let table: Frame<PageTable, _> = Frame::allocate_zeroed(source).unwrap();
    let anon: Frame<Anon, _> = Frame::allocate(source).unwrap();
    let mapping = anon.into_mapping().unwrap();
    assert!(mapping.is_exclusive());
    assert_eq!(source.table().owner(table.pfn()), Owner::PageTable);
    drop((table, mapping));
    assert_eq!(source.free_frames(), before);
    check(source);
}

#[test]
fn reserved_frames_join_the_rest_when_they_are_released() {
    let source = model(Config::default(), &[run(100, 1500)], Options::default());
    let all = check(source);
    source.release_reserved(run(100, 1500));
    assert_eq!(check(source), all + 1400);
    assert_eq!(source.managed_frames(), 4096);
    assert_eq!(
        source.zone_blocks(NodeId(0)).free_blocks[9..],
        [2, 3],
        "the third pageblock is on the kernel's side, the fourth is not"
    );
}

#[test]
fn blocks_of_up_to_a_gibibyte_are_gathered_and_change_sides() {
    let source = model(Config { frames: 3 << 18, ..Config::default() }, &[run(5, 6)], shuffled());
    let all = check(source);
    let big = source.allocate(Request::new(Owner::Kernel).order(Order::MAX)).unwrap();
    assert!(big.is_aligned(18) && on_its_side(source, big, Order::MAX, Owner::Kernel));
    let small = source.allocate(Request::new(Owner::Anon).order(order(10))).unwrap();
    assert_eq!(check(source), all - (1 << 18) - (1 << 10));
    source.release(big, Order::MAX);
    let again = source.allocate(Request::new(Owner::Anon).order(Order::MAX)).unwrap();
    assert!(on_its_side(source, again, Order::MAX, Owner::Anon));
    source.release(again, Order::MAX);
    source.release(small, order(10));
    assert_eq!(check(source), all);
}

static REPORTS: Mutex<Vec<Misuse>> = Mutex::new(Vec::new());

#[test]
fn every_misuse_is_reported_with_who_had_the_frame_and_changes_nothing() {
    let note = |misuse: &Misuse| REPORTS.lock().unwrap().push(*misuse);
    let options = Options { check: Check::Fill, on_misuse: Some(note), ..shuffled() };
    let source = model(Config { cpus: 2, ..Config::default() }, &[run(0, 10)], options);
    let all = check(source);
    let reported = |expected: fn(&Misuse) -> bool| {
        let reports = std::mem::take(&mut *REPORTS.lock().unwrap());
        assert!(matches!(&reports[..], [report] if expected(report)), "{reports:?}");
        assert!(!reports[0].to_string().is_empty());
    };
    let block = source.allocate(Request::new(Owner::Kernel).order(order(3))).unwrap();
    source.release(block.offset(1), Order::FRAME);
    reported(|m| matches!(m, Misuse::WrongOrder { given: Order::FRAME, owner: Owner::Kernel, .. }));
    source.release(block, order(4));
    reported(|m| matches!(m, Misuse::WrongOrder { .. }));
    source.machine().on_cpu(CpuId(1), || source.release(block, order(3)));
    source.release(block, order(3));
    reported(
        |m| matches!(m, Misuse::NotOwned { before: Some(b), .. } if b.cpu == CpuId(1) && b.owner == Owner::Kernel && b.order.log2() == 3),
    );
    source.release(Pfn(1 << 40), Order::FRAME);
    reported(|m| matches!(m, Misuse::NotMemory(_)));
    source.release(Pfn(3), Order::FRAME);
    reported(|m| matches!(m, Misuse::Reserved(Pfn(3))));
    source.release(Pfn(4000), Order::FRAME);
    reported(|m| matches!(m, Misuse::NotOwned { before: None, .. }));
    let user: Frame<Anon, _> = Frame::allocate(source).unwrap();
    source.release(user.pfn(), Order::FRAME);
    reported(|m| matches!(m, Misuse::StillHeld(_)));
    drop(user);
    // A stray write into a free frame is found when the frame is next handed out.
    source.machine().with_bytes(block, |bytes| bytes[77] = 1);
    let mut held = Vec::new();
    while let Ok(frame) = source.allocate(Request::new(Owner::Kernel).from_reserve()) {
        held.push(frame);
    }
    source.machine().on_cpu(CpuId(1), || source.drain_local());
    while let Ok(frame) = source.allocate(Request::new(Owner::Kernel).from_reserve()) {
        held.push(frame);
    }
    assert_eq!(held.len() as u64, all);
    reported(
        |m| matches!(m, Misuse::WrittenWhileFree { offset: 77, found: 1, before, .. } if before.owner == Owner::Kernel),
    );
    held.into_iter().for_each(|frame| source.release(frame, Order::FRAME));
    assert_eq!(check(source), all);
    assert_eq!(source.misuses(), 8);
}

#[test]
fn a_block_is_taken_back_in_no_other_size_however_often_its_own_was() {
    // Without page_alloc.check=fill, in which a free guesses the list from the caller's size.
    let source = model(Config::default(), &[], shuffled());
    let all = check(source);
    let mut misuses = 0;
    for size in 0..=Order::PAGEBLOCK.log2() {
        let take = || source.allocate(Request::new(Owner::Anon).order(order(size))).unwrap();
        (0..3).for_each(|_| source.release(take(), order(size)));
        let block = take();
        for other in (0..=Order::MAX.log2()).filter(|other| *other != size) {
            source.release(block, order(other));
            misuses += 1;
            assert_eq!(source.misuses(), misuses, "order {size} given back with order {other}");
        }
        source.release(block, order(size));
        source.release(block, order(size));
        misuses += 1;
        assert_eq!(source.misuses(), misuses, "order {size} given back twice");
    }
    assert_eq!(check(source), all);
}

#[test]
fn zeroed_blocks_are_zero_and_init_on_free_leaves_no_old_bytes() {
    let options = Options { init_on_free: Wipe::Always, ..Options::default() };
    let source = model(Config::default(), &[], options);
    for owner in [Owner::Kernel, Owner::Anon] {
        let block = source.allocate(Request::new(owner).order(order(1)).zeroed()).unwrap();
        let last = block.offset(1);
        assert!(source.machine().with_bytes(last, |bytes| bytes.iter().all(|b| *b == 0)));
        source.machine().with_bytes(last, |bytes| bytes.fill(7));
        source.release(block, order(1));
        assert!(source.machine().with_bytes(last, |bytes| bytes.iter().all(|b| *b == 0)));
    }
}

#[test]
fn memory_is_taken_from_the_nearest_node_and_lists_hold_local_frames_only() {
    let source = model(Config { cpus: 2, nodes: 2, frames: 1 << 15, ..Config::default() }, &[], shuffled());
    let node_of = |frame| source.machine().topology().node_of(frame).unwrap();
    for cpu in [CpuId(0), CpuId(1)] {
        let frames: Vec<_> = (0..3000)
            .map(|_| source.machine().on_cpu(cpu, || source.allocate(Request::new(Owner::Anon)).unwrap()))
            .collect();
        assert!(frames.iter().all(|f| node_of(*f) == NodeId(cpu.0 as u8)));
        // Freed by the other CPU, the blocks return to their pageblocks, not into that CPU's lists.
        source
            .machine()
            .on_cpu(CpuId(1 - cpu.0), || frames.iter().for_each(|f| source.release(*f, Order::FRAME)));
        let next =
            source.machine().on_cpu(CpuId(1 - cpu.0), || source.allocate(Request::new(Owner::Anon)).unwrap());
        assert_eq!(node_of(next), NodeId(1 - cpu.0 as u8));
        check(source);
        source.machine().on_cpu(CpuId(1 - cpu.0), || source.release(next, Order::FRAME));
    }
    let far = source.allocate(Request::new(Owner::Anon).policy(NodePolicy::Preferred(NodeId(1)))).unwrap();
    assert_eq!(node_of(far), NodeId(1));
}

/// Numbers of calls of the sinks. They are statics: only one machine of the process has sinks.
static SHORT: AtomicU64 = AtomicU64::new(0);
static DENIED: AtomicU64 = AtomicU64::new(0);

#[test]
fn who_looks_after_memory_hears_of_shortage_before_somebody_is_denied() {
    let options = Options {
        on_pressure: Some(|_| _ = SHORT.fetch_add(1, Ordering::Relaxed)),
        on_denial: Some(|request| _ = DENIED.fetch_add(request.order.frames(), Ordering::Relaxed)),
        ..Options::default()
    };
    let source = model(Config { frames: 256 * 512, ..Config::default() }, &[], options);
    let request = Request::new(Owner::Anon);
    let mut held = vec![source.allocate(request).unwrap()];
    assert_eq!((SHORT.load(Ordering::Relaxed), DENIED.load(Ordering::Relaxed)), (0, 0));
    while SHORT.load(Ordering::Relaxed) == 0 {
        held.push(source.allocate(request).expect("shortage is told while there is some left"));
    }
    assert_eq!(DENIED.load(Ordering::Relaxed), 0);
    held.extend(std::iter::from_fn(|| source.allocate(request).ok()));
    assert_eq!(DENIED.load(Ordering::Relaxed), 1, "one request found nothing");
    assert_eq!(source.allocate(request.order(Order::PAGEBLOCK)), Err(OutOfMemory));
    assert_eq!(DENIED.load(Ordering::Relaxed), 1 + 512, "and one more");
    held.into_iter().for_each(|frame| source.release(frame, Order::FRAME));
    check(source);
}
