//! Two and three CPUs at once: every interleaving at small bounds, as far as time allows, then random ones at larger.
//!
//! The scheduler switches threads wherever one CPU can notice another: when it is about to take a zone's lock (the draw
//! of random bits, a pin), while a pageblock is between the sides of the direct map, and when it waits. Between those points a CPU works under
//! a lock or on words of its own, so nothing is missed by not switching there.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{buddy, check};
use freehold_buddy::{Buddy, Moment, Options, Shuffle};
use freehold_frame::{Order, Owner, Request};
use freehold_machine::model::{Config, Model};
use freehold_machine::{
    CpuId, CpuSet, Cpus, DirectMap, Entropy, Flush, Machine, NodeId, PAGE_SIZE, Pfn, PfnRange, PhysicalBytes,
    Tables, Tlb,
};
use shuttle::scheduler::{DfsScheduler, RandomScheduler};
use shuttle::{Config as ShuttleConfig, MaxSteps, Runner, thread};

shuttle::thread_local! {
    static CPU: std::cell::Cell<u16> = std::cell::Cell::new(0);
}

/// The software machine, with a switch of threads wherever another CPU's work can be noticed.
#[derive(Clone, Copy, Debug)]
struct Switching(Model);

impl Cpus for Switching {
    fn current_cpu(self) -> CpuId {
        CPU.with(|cpu| CpuId(cpu.get()))
    }
    fn cpu_count(self) -> usize {
        self.0.cpu_count()
    }
    fn node_of_cpu(self, cpu: CpuId) -> NodeId {
        self.0.node_of_cpu(cpu)
    }
    fn disable_preemption(self) {
        thread::yield_now();
    }
    fn enable_preemption(self) {}
    fn relax(self) {
        thread::yield_now();
    }
}

impl Tables for Switching {
    fn load_entry(self, table: Pfn, index: usize) -> u64 {
        self.0.load_entry(table, index)
    }
    fn store_entry(self, table: Pfn, index: usize, value: u64) {
        self.0.store_entry(table, index, value);
    }
    fn swap_entry(self, table: Pfn, index: usize, value: u64) -> u64 {
        self.0.swap_entry(table, index, value)
    }
    fn compare_exchange_entry(self, table: Pfn, index: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.0.compare_exchange_entry(table, index, current, new)
    }
    fn clear_table(self, table: Pfn) {
        self.0.clear_table(table);
    }
}

impl Tlb for Switching {
    fn flush_local(self, what: Flush) {
        self.0.flush_local(what);
    }
    fn flush_on(self, cpus: CpuSet, what: Flush) {
        self.0.flush_on(cpus, what);
    }
    fn hold_flushes<R>(self, f: impl FnOnce() -> R) -> R {
        self.0.hold_flushes(f)
    }
    fn load_root(self, root: Pfn) {
        self.0.load_root(root);
    }
    fn current_root(self) -> Pfn {
        self.0.current_root()
    }
}

impl PhysicalBytes for Switching {
    fn with_bytes<R>(self, frame: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        self.0.with_bytes(frame, f)
    }
}

impl DirectMap for Switching {
    fn enter(self, blocks: PfnRange) {
        thread::yield_now();
        self.0.enter(blocks);
        thread::yield_now();
    }
    fn leave(self, blocks: PfnRange) {
        thread::yield_now();
        self.0.leave(blocks);
        thread::yield_now();
    }
}

impl Entropy for Switching {
    fn random_u64(self) -> u64 {
        thread::yield_now();
        self.0.random_u64()
    }
    fn is_seeded(self) -> bool {
        true
    }
}

impl Machine for Switching {
    fn node_count(self) -> usize {
        self.0.node_count()
    }
}

type Source = &'static Buddy<Switching>;

/// A machine of `blocks` pageblocks whose frames are all free.
fn machine(cpus: usize, blocks: u64) -> Source {
    let model = Model::new(Config { cpus, frames: blocks * 512, ..Config::default() });
    let options = Options { shuffle: Shuffle::On, ..Options::default() };
    buddy(Switching(model), model.topology(), &[], options)
}

/// Run each of `work` on a CPU of its own and check the books when all are done.
fn together(source: Source, work: Vec<Box<dyn Fn(Source) + Send + Sync>>) {
    let all = source.managed_frames();
    let threads: Vec<_> = (0..)
        .zip(work)
        .map(|(cpu, work)| {
            thread::spawn(move || {
                CPU.with(|c| c.set(cpu));
                work(source);
                source.drain_local();
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(check(source), all);
    assert_eq!(source.misuses(), 0);
}

/// The most interleavings that are tried.
const BOUND: u64 = 20_000;

/// Every interleaving of up to `steps` switches, depth first, up to [`BOUND`]; how many there were.
fn interleavings(steps: usize, test: impl Fn() + Send + Sync + 'static) -> u64 {
    let mut config = ShuttleConfig::new();
    config.stack_size = 0x40000;
    // A CPU that waits for another may be left waiting for ever; such schedules end here.
    config.max_steps = MaxSteps::ContinueAfter(steps);
    let count = Arc::new(AtomicU64::new(0));
    let counter = count.clone();
    Runner::new(DfsScheduler::new(Some(BOUND as usize), false), config).run(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        test();
    });
    count.load(Ordering::Relaxed)
}

fn take(source: Source, owner: Owner, order: Order) -> Option<Pfn> {
    let block = source.allocate(Request::new(owner).order(order).from_reserve()).ok()?;
    let inside = common_side(source, block);
    assert_eq!(inside, owner.side() == freehold_frame::Side::Kernel, "{block:?} of {}", owner.name());
    Some(block)
}

fn common_side(source: Source, block: Pfn) -> bool {
    freehold_frame::FrameSource::machine(source).0.is_in_direct_map(block)
}

#[test]
fn the_last_free_pageblock_changes_sides_under_one_cpu_and_the_other_waits_for_it() {
    // One pageblock is free on the kernel's side; both CPUs want user memory, of which there is enough for both once it has moved.
    let count = interleavings(200, || {
        let source = machine(2, 2);
        let blocks = [0, 1].map(|_| take(source, Owner::Kernel, Order::PAGEBLOCK).unwrap());
        blocks.into_iter().for_each(|b| source.release(b, Order::PAGEBLOCK));
        let want = |source: Source| {
            let block =
                take(source, Owner::Anon, Order::PAGEBLOCK).expect("there are two blocks for two CPUs");
            source.release(block, Order::PAGEBLOCK);
        };
        together(source, vec![Box::new(want), Box::new(want)]);
    });
    // Waiting makes more interleavings than there is time for; the first ones already hold every order of the two moves.
    assert_eq!(count, BOUND);
}

#[test]
fn frames_freed_on_another_cpu_and_drained_by_request_are_never_lost_or_doubled() {
    let count = interleavings(400, || {
        let source = machine(2, 2);
        let frame = take(source, Owner::Anon, Order::FRAME).unwrap();
        together(
            source,
            vec![
                Box::new(move |source| {
                    source.release(frame, Order::FRAME);
                    source.poll(Moment::Tick);
                }),
                Box::new(|source| {
                    let frame = take(source, Owner::Kernel, Order::FRAME).unwrap();
                    source.request_drain();
                    source.release(frame, Order::FRAME);
                }),
            ],
        );
    });
    assert!(
        (10..BOUND).contains(&count),
        "{count} interleavings: too few to mean anything, or not all of them"
    );
}

#[test]
fn of_three_cpus_one_drains_while_the_others_free_into_the_same_pageblock() {
    let count = interleavings(400, || {
        let source = machine(3, 1);
        let frames = [0, 1].map(|_| take(source, Owner::Anon, Order::FRAME).unwrap());
        let free = |frame| -> Box<dyn Fn(Source) + Send + Sync> {
            Box::new(move |source: Source| source.release(frame, Order::FRAME))
        };
        // The first CPU's list holds the rest of what the two frames came with.
        let drain: Box<dyn Fn(Source) + Send + Sync> = Box::new(|source| source.request_drain());
        together(source, vec![drain, free(frames[0]), free(frames[1])]);
    });
    assert!(
        (50..BOUND).contains(&count),
        "{count} interleavings: too few to mean anything, or not all of them"
    );
}

#[test]
fn three_cpus_at_random_keep_the_books() {
    let mut config = ShuttleConfig::new();
    config.stack_size = 0x40000;
    let runner = Runner::new(RandomScheduler::new_from_seed(1, 150), config);
    runner.run(|| {
        let source = machine(3, 4);
        let work = |seed: u64| -> Box<dyn Fn(Source) + Send + Sync> {
            Box::new(move |source| {
                let mut held = Vec::new();
                let mut random = seed;
                for _ in 0..40 {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    let owner = [Owner::Kernel, Owner::PageTable, Owner::Anon, Owner::PageCache]
                        [(random >> 60) as usize % 4];
                    let order = Order::new([0, 0, 0, 1, 3, 6, 9, 10][(random >> 50) as usize % 8]).unwrap();
                    if random >> 40 & 1 == 0 {
                        held.extend(take(source, owner, order).map(|block| (block, order)));
                    } else if let Some((block, order)) = held.pop() {
                        source.release(block, order);
                    }
                }
                held.into_iter().for_each(|(block, order)| source.release(block, order));
            })
        };
        together(source, vec![work(1), work(2), work(3)]);
    });
}
