//! Memory that is plugged and unplugged.
#![allow(clippy::unwrap_used)]

mod common;

use common::{buddy, check, model};
use freehold_buddy::{Options, PlugError, Shuffle};
use freehold_frame::{FrameSource, NodePolicy, Order, Owner, Request};
use freehold_machine::model::{Config, Model};
use freehold_machine::{CpuId, NodeId, Pfn, PfnRange, Topology};

fn run(start: u64, end: u64) -> PfnRange {
    PfnRange::new(Pfn(start), Pfn(end))
}

fn options() -> Options {
    Options { shuffle: Shuffle::On, ..Options::default() }
}

#[test]
fn free_memory_leaves_at_once_and_comes_back_shuffled() {
    let source = model(Config { frames: 64 * 512, ..Config::default() }, &[run(0, 10)], options());
    let all = check(source);
    // Some of the memory belonged to the kernel: it must leave the direct map as well.
    let kernel: Vec<_> = (0..50)
        .map(|_| source.allocate(Request::new(Owner::Kernel).order(Order::PAGEBLOCK)).unwrap())
        .collect();
    kernel.into_iter().for_each(|block| source.release(block, Order::PAGEBLOCK));
    let upper = run(32 * 512, 64 * 512);
    assert_eq!(source.unplug(upper), Ok(0));
    assert_eq!(source.managed_frames(), all - 32 * 512);
    assert_eq!(source.free_frames(), all - 32 * 512);
    check(source);
    assert!(upper.iter().all(|frame| !source.machine().is_in_direct_map(frame)));
    let held: Vec<_> =
        std::iter::from_fn(|| source.allocate(Request::new(Owner::Anon).from_reserve()).ok()).collect();
    assert!(held.iter().all(|frame| !upper.contains(*frame)), "an unplugged frame was handed out");
    held.into_iter().for_each(|frame| source.release(frame, Order::FRAME));
    source.plug(upper).unwrap();
    assert_eq!(check(source), all);
    let whole = Request::new(Owner::Anon).order(Order::PAGEBLOCK);
    let blocks: Vec<_> = (0..20).map(|_| source.allocate(whole).unwrap()).collect();
    let plugged = blocks.iter().filter(|block| upper.contains(**block)).count();
    assert!((3..=17).contains(&plugged), "{plugged} of 20 blocks come from the plugged half");
    assert!(
        blocks.windows(2).filter(|pair| pair[1].0 == pair[0].0 + 512).count() < 5,
        "in order: {blocks:?}"
    );
}

#[test]
fn used_memory_leaves_when_its_last_frame_comes_back_and_may_stay_after_all() {
    let source = model(Config { cpus: 2, frames: 16 * 512, ..Config::default() }, &[], options());
    let all = check(source);
    let mut held: Vec<_> =
        (0..3000).map(|_| (source.allocate(Request::new(Owner::Anon)).unwrap(), Order::FRAME)).collect();
    held.push((
        source.allocate(Request::new(Owner::PageCache).order(Order::PAGEBLOCK)).unwrap(),
        Order::PAGEBLOCK,
    ));
    let everything = run(0, 16 * 512);
    let used = source.unplug(everything).unwrap();
    assert_eq!(used, 3000 + 512);
    assert_eq!(source.still_used(everything), used);
    assert!(source.allocate(Request::new(Owner::Anon).from_reserve()).is_err(), "all memory is leaving");
    let (gone, stays) = held.split_at(1500);
    gone.iter().for_each(|(block, order)| source.release(*block, *order));
    source.drain_local();
    assert_eq!(source.still_used(everything), 1500 + 512);
    check(source);
    source.plug(everything).unwrap();
    assert_eq!(check(source), all - 1500 - 512);
    // In the reverse order: in the end all memory is free and unplugged.
    source.unplug(everything).unwrap();
    source
        .machine()
        .on_cpu(CpuId(1), || stays.iter().for_each(|(block, order)| source.release(*block, *order)));
    source.machine().on_cpu(CpuId(1), || source.drain_local());
    assert_eq!(source.still_used(everything), 0);
    assert_eq!((source.managed_frames(), source.free_frames()), (0, 0));
    check(source);
    source.plug(everything).unwrap();
    assert_eq!(check(source), all);
    assert_eq!(source.misuses(), 0);
}

/// Two nodes of 16 pageblocks, of which the second has no CPU, and 32 pluggable ones of node 0 and
/// 16 of a node that has no memory before.
fn growing() -> &'static Topology {
    let mut topology = Topology::new(3).unwrap();
    topology.add_range(run(0, 16 * 512), NodeId(0)).unwrap();
    topology.add_range(run(16 * 512, 32 * 512), NodeId(1)).unwrap();
    topology.add_pluggable_range(run(64 * 512, 96 * 512), NodeId(0)).unwrap();
    topology.add_pluggable_range(run(96 * 512, 112 * 512), NodeId(2)).unwrap();
    topology.set_cpu_node(CpuId(1), NodeId(2)).unwrap();
    Box::leak(Box::new(topology))
}

#[test]
fn programs_leave_as_much_free_as_was_asked() {
    let topology = growing();
    let source = buddy(Model::with_topology(topology.clone(), 2, 7), topology, &[run(0, 10)], options());
    let computed = source.watermarks().min;
    let most = source.total_frames() / 2;
    assert_eq!(source.set_min_free(computed - 1), Err(computed..=most));
    assert_eq!(source.set_min_free(most + 1), Err(computed..=most));
    assert_eq!(source.watermarks().min, computed);
    for wish in [computed, computed + 1, 1234, most, 2345] {
        source.set_min_free(wish).unwrap();
        assert_eq!(source.watermarks().min, wish);
    }
    let held: Vec<_> = std::iter::from_fn(|| source.allocate(Request::new(Owner::Anon)).ok()).collect();
    assert!((2345..2345 + 64).contains(&source.free_frames()), "{} are free", source.free_frames());
    assert!(source.allocate(Request::new(Owner::Kernel)).is_ok(), "the kernel has half of them");
    held.into_iter().for_each(|frame| source.release(frame, Order::FRAME));
}

#[test]
fn memory_that_is_not_there_yet_is_neither_counted_nor_handed_out() {
    let topology = growing();
    let source = buddy(Model::with_topology(topology.clone(), 2, 7), topology, &[run(0, 10)], options());
    let all = check(source);
    assert_eq!((all, source.total_frames()), (32 * 512 - 10, 32 * 512));
    let held: Vec<_> =
        std::iter::from_fn(|| source.allocate(Request::new(Owner::Anon).from_reserve()).ok()).collect();
    assert_eq!(held.len() as u64 + source.free_frames(), all);
    assert!(held.iter().all(|frame| *frame < Pfn(32 * 512)));
    // The node without memory gets some. Its CPU uses that memory first; the kernel uses it last.
    let marks = || source.zone_info().map(|zone| zone.watermarks.min).collect::<Vec<_>>();
    let before = marks();
    source.plug(run(96 * 512, 112 * 512)).unwrap();
    assert!(before[2] == 0 && marks()[2] > 0, "watermarks follow: {before:?} {:?}", marks());
    source.machine().on_cpu(CpuId(1), || {
        let frame = source.allocate(Request::new(Owner::Anon)).unwrap();
        assert!(run(96 * 512, 112 * 512).contains(frame), "{frame:?}");
        source.release(frame, Order::FRAME);
        source.drain_local();
    });
    held.into_iter().for_each(|frame| source.release(frame, Order::FRAME));
    source.drain_local();
    assert_eq!(check(source), all + 16 * 512);
    assert_eq!(source.unplug(run(96 * 512, 112 * 512)), Ok(0));
    assert_eq!((check(source), marks()[2]), (all, 0));
}

#[test]
fn the_kernel_takes_what_stays_before_what_can_leave() {
    let topology = growing();
    let source = buddy(Model::with_topology(topology.clone(), 1, 7), topology, &[], options());
    let (all, plugged) = (check(source), run(64 * 512, 96 * 512));
    source.plug(plugged).unwrap();
    let whole = Request::new(Owner::Kernel).order(Order::PAGEBLOCK).policy(NodePolicy::Preferred(NodeId(0)));
    let first: Vec<_> = (0..16).map(|_| source.allocate(whole).unwrap()).collect();
    assert!(first.iter().all(|block| !plugged.contains(*block)), "{first:?}");
    assert!(source.is_free(plugged));
    let more = source.allocate(whole).unwrap();
    assert!(plugged.contains(more), "when nothing else is left");
    assert!(!source.is_free(plugged));
    assert_eq!(source.unplug(plugged), Err(PlugError::KernelMemory));
    first.into_iter().chain([more]).for_each(|block| source.release(block, Order::PAGEBLOCK));
    source.drain_local();
    assert_eq!(source.unplug(plugged), Ok(0));
    assert_eq!(check(source), all);
}

#[test]
fn the_kernels_memory_and_odd_ranges_are_refused_without_effect() {
    let source = model(Config { frames: 16 * 512, ..Config::default() }, &[run(0, 10)], options());
    let all = check(source);
    assert_eq!(source.unplug(run(0, 1024)), Err(PlugError::KernelMemory));
    let kernel = source.allocate(Request::new(Owner::Kernel).order(Order::PAGEBLOCK)).unwrap();
    assert_eq!(source.unplug(run(kernel.0, kernel.0 + 512)), Err(PlugError::KernelMemory));
    for odd in [run(1, 513), run(512, 512), run(512, 1 << 30)] {
        assert_eq!(source.unplug(odd), Err(PlugError::NotPageblocks));
    }
    source.release(kernel, Order::PAGEBLOCK);
    assert_eq!(check(source), all);
}

/// Scattered free frames in programs' pageblocks do not help the kernel, and the allocator reports
/// this shortage. One whole pageblock ends it.
#[test]
fn a_kernel_without_a_pageblock_is_short_whatever_programs_leave_free() {
    let source = model(Config { frames: 16 * 512, ..Config::default() }, &[], options());
    let node = NodeId(0);
    assert!(!source.is_kernel_short(node) && source.free_pageblocks(node) == 16);
    let take = |owner| std::iter::from_fn(move || source.allocate(Request::new(owner)).ok());
    let mut held: Vec<_> = take(Owner::Anon).collect();
    let mut kernel: Vec<_> = take(Owner::Kernel).collect();
    // Every second one.
    let mut odd = false;
    held.retain(|frame| {
        odd = !odd;
        if odd {
            source.release(*frame, Order::FRAME);
        }
        !odd
    });
    source.drain_local();
    kernel.extend(take(Owner::Kernel));
    assert!(source.free_frames() > 3 * 512, "{} frames are free", source.free_frames());
    assert!(source.is_kernel_short(node) && source.free_pageblocks(node) == 0);
    assert!(source.allocate(Request::new(Owner::Kernel)).is_err());
    // Blocks that are moved out of a pageblock get other frames.
    let block = held[0].0 & !511;
    held.retain(|frame| {
        let goes = (block..block + 512).contains(&frame.0);
        if goes {
            source.release(*frame, Order::FRAME);
        }
        !goes
    });
    source.drain_local();
    assert!(!source.is_kernel_short(node) && source.free_pageblocks(node) == 1);
    kernel.push(source.allocate(Request::new(Owner::Kernel)).expect("there is a pageblock for it"));
    held.into_iter().chain(kernel).for_each(|frame| source.release(frame, Order::FRAME));
    source.drain_local();
    check(source);
}

/// A kernel stack cannot be moved, so a pageblock with one cannot be emptied. Programs' frames and
/// stacks use separate pageblocks while there are free ones. Unplugging a pageblock with a stack
/// fails at once.
#[test]
fn a_pageblock_with_a_kernel_stack_stays_and_is_shared_with_programs_only_in_need() {
    let source = model(Config { frames: 16 * 512, ..Config::default() }, &[], options());
    let all = check(source);
    let block_of = |frame: Pfn| run(frame.0 & !511, (frame.0 & !511) + 512);
    let take = |owner| source.allocate(Request::new(owner).from_reserve()).unwrap();
    let stack = take(Owner::Stack);
    assert!(!source.machine().is_in_direct_map(stack));
    assert_eq!(source.unplug(block_of(stack)), Err(PlugError::KernelMemory));
    let mut held: Vec<_> = (0..15 * 512).map(|_| take(Owner::Anon)).collect();
    assert!(held.iter().all(|frame| !block_of(stack).contains(*frame)), "a program's frame beside a stack");
    let stacks: Vec<_> = (0..100).map(|_| take(Owner::Stack)).collect();
    assert!(stacks.iter().all(|frame| block_of(stack).contains(*frame)));
    // When memory is short, programs get free frames there, and stacks get frames that programs
    // free.
    held.extend((0..512 - 101).map(|_| take(Owner::Anon)));
    let back = held.swap_remove(700);
    source.release(back, Order::FRAME);
    source.drain_local();
    let last = take(Owner::Stack);
    assert_eq!(last, back);
    assert_eq!(source.unplug(block_of(last)), Err(PlugError::KernelMemory));
    source.release(last, Order::FRAME);
    source.drain_local();
    assert_eq!(source.unplug(block_of(last)), Ok(511));
    source.plug(block_of(last)).unwrap();
    held.into_iter().chain(stacks).chain([stack]).for_each(|frame| source.release(frame, Order::FRAME));
    source.drain_local();
    assert_eq!(check(source), all);
    assert_eq!(source.misuses(), 0);
}

#[test]
fn kernel_stacks_are_taken_from_memory_that_stays() {
    let topology = growing();
    let source = buddy(Model::with_topology(topology.clone(), 2, 7), topology, &[], options());
    source.plug(run(64 * 512, 96 * 512)).unwrap();
    let stacks: Vec<_> = (0..3000).map(|_| source.allocate(Request::new(Owner::Stack)).unwrap()).collect();
    assert!(stacks.iter().all(|frame| *frame < Pfn(32 * 512)), "a stack in memory that may go");
    stacks.into_iter().for_each(|frame| source.release(frame, Order::FRAME));
    source.drain_local();
    check(source);
}
