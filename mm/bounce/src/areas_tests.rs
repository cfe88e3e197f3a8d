//! CPUs use separate words, as `areas.rs` promises. The tests count; they do not measure time.

extern crate std;

use std::println;
use std::sync::Barrier;
use std::vec::Vec;

use freehold_machine::{CpuId, PAGE_SIZE, Pfn};

use crate::tests::{ANY, LIMITS, SEGMENT, Source, dma, limited, source, source_of};
use crate::*;

const CPUS: u16 = 2;

/// A device of memory with so many segments at first.
fn device(segments: usize) -> (Device<Source>, Source) {
    let source = source(512);
    let slabs = segments * SEGMENT / SLOT_SIZE;
    let dma = limited(source, Limits { slabs, areas: CPUS.into(), ..LIMITS });
    (dma.attach(ANY).unwrap(), source)
}

fn take(device: Device<Source>) -> DmaMapping<Source> {
    device.buffer(PAGE_SIZE, Direction::ToDevice).unwrap()
}
fn segment_of(mapping: &DmaMapping<Source>) -> u64 {
    mapping.address().0 / SEGMENT as u64
}

/// `takes` has a list for each CPU: the segments from which it took. Returns the share of takes
/// from segments that another CPU used, too.
fn shared(takes: &[Vec<u64>]) -> f64 {
    let is_shared = |cpu: usize, segment: u64| {
        takes.iter().enumerate().any(|(other, theirs)| other != cpu && theirs.contains(&segment))
    };
    let counts = takes.iter().enumerate().map(|(cpu, mine)| {
        let both = mine.iter().filter(|&&segment| is_shared(cpu, segment)).count();
        (both, mine.len())
    });
    let (both, all) = counts.fold((0, 0), |sums, one| (sums.0 + one.0, sums.1 + one.1));
    both as f64 / all as f64
}

#[test]
fn two_threads_share_no_segment_s_word_in_any_hit() {
    let (device, source) = device(4);
    let start = Barrier::new(CPUS.into());
    let work = |cpu: u16| {
        source.on_cpu(CpuId(cpu), || {
            start.wait();
            (0..20_000).map(|_| segment_of(&take(device))).collect::<Vec<_>>()
        })
    };
    let takes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CPUS).map(|cpu| scope.spawn(move || work(cpu))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    println!("segments' words shared by two threads per hit: {}", shared(&takes));
    assert_eq!(shared(&takes), 0.0);
    assert_eq!(device.dma().statistics().nslabs, 4 * SEGMENT / SLOT_SIZE, "and no memory was added");
}

/// Pages that one CPU takes and another gives back, as when another CPU handles a completion.
#[test]
fn a_cpu_that_gives_back_what_another_took_stays_where_it_is() {
    let (device, source) = device(2);
    let mut takes: [Vec<u64>; 2] = Default::default();
    for _ in 0..100 {
        for cpu in 0..CPUS {
            let mapping = source.on_cpu(CpuId(cpu), || take(device));
            takes[usize::from(cpu)].push(segment_of(&mapping));
            source.on_cpu(CpuId(1 - cpu), || drop(mapping));
        }
    }
    assert_eq!(shared(&takes), 0.0);
}

/// One segment, and two CPUs that race for its word: the worker adds a segment, and one CPU moves
/// there. The other stays, and no more segments are added.
#[test]
fn cpus_that_race_get_segments_of_their_own_and_no_more_than_that() {
    let (device, source) = device(1);
    let (dma, pool) = (device.dma(), device.pool());
    let race = |cpu: u16| source.on_cpu(CpuId(cpu), || pool.crowd(source));
    let once = |cpu: u16| source.on_cpu(CpuId(cpu), || segment_of(&take(device)));
    let (first, second) = (once(0), once(1));
    assert_eq!((first == second, dma.wants_ticks()), (true, false));
    assert!(!race(0), "the first one stays");
    assert!(race(1) && !race(1), "the worker is told once");
    assert!(dma.wants_ticks());
    dma.tick();
    assert_eq!(dma.statistics().nslabs, 2 * SEGMENT / SLOT_SIZE);
    assert_eq!((once(0), once(1)), (first, first), "nothing moves without a race");
    assert!(!race(1) && !race(0));
    for _ in 0..10 {
        assert_eq!((once(0), once(1) != first), (first, true));
    }
    // More takes add nothing, and without use the memory is freed.
    for _ in 0..10 {
        let _ = (once(0), once(1), race(0), race(1));
        dma.tick();
        assert_eq!(dma.statistics().nslabs, 2 * SEGMENT / SLOT_SIZE);
    }
    (0..10).for_each(|_| _ = dma.tick());
    assert_eq!(dma.statistics().nslabs, SEGMENT / SLOT_SIZE);
    assert!(!dma.wants_ticks());
}

/// Two nodes with a CPU each. Both have free segments, the first node's with the lower numbers.
#[test]
fn a_cpu_takes_pages_of_its_own_node_while_that_has_some() {
    let source = source_of(1024, 0, 2);
    let dma = dma(source);
    let device = dma.attach(ANY).unwrap();
    let node = |mapping: &DmaMapping<Source>| source.node_of(Pfn(mapping.address().0 / PAGE_SIZE as u64)).0;
    let take =
        |cpu: u16, length| source.on_cpu(CpuId(cpu), || device.buffer(length, Direction::ToDevice).unwrap());
    let held = [0, 0, 1, 1].map(|cpu| take(cpu, SEGMENT));
    assert_eq!(held.each_ref().map(node), [0, 0, 1, 1], "growth is near its CPU");
    drop(held);
    // Neither the hints nor the order of the segments decide.
    for _ in 0..10 {
        let mixed = [1, 1, 0, 0].map(|cpu| take(cpu, SEGMENT));
        assert_eq!(mixed.each_ref().map(node), [1, 1, 0, 0]);
        source.on_cpu(CpuId(0), || drop(mixed));
    }
    // Memory of another node is better than more memory.
    let all = [0; 4].map(|cpu| take(cpu, SEGMENT));
    assert_eq!(all.each_ref().map(node), [0, 0, 1, 1]);
    assert_eq!(dma.statistics().nslabs, 4 * SEGMENT / SLOT_SIZE);
    // The CPU's hint is on the other node now; the worker moves it.
    source.on_cpu(CpuId(1), || drop(all));
    assert_eq!(node(&take(0, PAGE_SIZE)), 1);
    dma.tick();
    assert_eq!(node(&take(0, PAGE_SIZE)), 0);
}

/// The worker runs on any CPU; its memory is for the caller that found too little.
#[test]
fn the_worker_adds_memory_on_the_node_where_it_was_short() {
    for cpu in 0..CPUS {
        let source = source_of(1024, 0, 2);
        let device = dma(source).attach(ANY).unwrap();
        let held = source.on_cpu(CpuId(cpu), || device.buffer(SEGMENT, Direction::ToDevice).unwrap());
        source.on_cpu(CpuId(1 - cpu), || device.dma().tick());
        assert_eq!(device.dma().statistics().nslabs, 2 * SEGMENT / SLOT_SIZE);
        let (mine, all) = (u64::from(cpu) * 512, 0..1024);
        let taken = all.filter(|&frame| source.is_taken(Pfn(frame))).collect::<Vec<_>>();
        assert!(taken.len() == 128 && taken.iter().all(|frame| (mine..mine + 512).contains(frame)));
        drop(held);
    }
}
