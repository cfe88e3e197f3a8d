//! Memory that comes and goes.
#![allow(clippy::unwrap_used)]

mod common;

use common::{check, model};
use freehold_buddy::{Options, PlugError, Shuffle};
use freehold_frame::{FrameSource, Order, Owner, Request};
use freehold_machine::model::Config;
use freehold_machine::{CpuId, Pfn, PfnRange};

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
    // Some of it has been the kernel's: it leaves the direct map as well.
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
    // The other way round: it is all free at last, and out.
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
