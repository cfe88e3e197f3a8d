//! Two and three CPUs at once: every interleaving at small bounds, as far as time allows, then
//! random ones at larger bounds.
//!
//! The scheduler switches threads wherever one CPU can notice another. These points are: before a
//! CPU that holds no lock takes one, while a pageblock moves between the sides of the direct map,
//! and when a CPU waits. If CPUs send requests to each other, the begin of an operation is also
//! such a point. Between these points a CPU works under a lock, on its own words, or on a hint that
//! it checks under the next lock, so no switch is needed there. A zone's lock that is taken inside
//! an arena's orders words that no CPU reads without one of the two.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{behind_caches, buddy, check};
use freehold_buddy::{AllocatorFault, Buddy, Moment, Options, Placement, Shuffle};
use freehold_frame::{Contradiction, Order, Owner, Request};
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
struct Switching(Model, Starts);

/// Whether threads also switch when an operation begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Starts {
    Switch,
    GoOn,
}

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
        if self.1 == Starts::Switch {
            thread::yield_now();
        }
    }
    fn enable_preemption(self) {}
    fn relax(self) {
        thread::yield_now();
    }
    fn about_to_lock(self) {
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
fn machine(cpus: usize, blocks: u64, starts: Starts) -> Source {
    let model = Model::new(Config { cpus, frames: blocks * 512, ..Config::default() });
    let options = Options { shuffle: Shuffle::On, ..Options::default() };
    buddy(Switching(model, starts), model.topology(), &[], options)
}

/// A machine whose memory of `blocks` pageblocks is behind a direct-mapped cache of `cache`
/// pageblocks.
fn machine_behind_cache(cpus: usize, blocks: u64, cache: u64, seed: u64) -> Source {
    let topology = behind_caches(1, blocks * 512, cache * 512, cpus as u64);
    let model = Model::with_topology(topology, cpus, seed);
    let options = Options { placement: Placement::Balanced, ..Options::default() };
    buddy(Switching(model, Starts::Switch), model.topology(), &[], options)
}

type Work = Box<dyn Fn(Source) + Send + Sync>;

fn on(work: impl Fn(Source) + Send + Sync + 'static) -> Work {
    Box::new(work)
}

/// Frees a frame, and then returns all blocks of the CPU's lists.
fn give(frame: Pfn) -> Work {
    on(move |source| {
        source.release(frame, Order::FRAME);
        source.drain_local();
    })
}

/// From now on the thread acts as another CPU.
fn become_cpu(cpu: u16) {
    CPU.with(|c| c.set(cpu));
}

/// Runs each of `work` on a separate CPU. When all are done, empties their lists and checks all
/// counts: `held` frames are not free.
fn together(source: Source, held: u64, work: Vec<Work>) {
    let cpus = work.len() as u16;
    let threads: Vec<_> = (0..)
        .zip(work)
        .map(|(cpu, work)| {
            thread::spawn(move || {
                become_cpu(cpu);
                work(source);
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    for cpu in 0..cpus {
        become_cpu(cpu);
        source.drain_local();
    }
    assert_eq!(check(source), source.managed_frames() - held);
    assert_eq!(source.misuses(), 0);
}

/// Largest number of interleavings that are tried.
const BOUND: u64 = 20_000;

/// Every interleaving of up to `steps` switches, depth first, up to [`BOUND`]; returns their
/// number.
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
    // One pageblock is free on the kernel's side; both CPUs request user memory, and there is
    // enough for both once that pageblock has moved.
    let count = interleavings(200, || {
        let source = machine(2, 2, Starts::GoOn);
        let blocks = [0, 1].map(|_| take(source, Owner::Kernel, Order::PAGEBLOCK).unwrap());
        blocks.into_iter().for_each(|b| source.release(b, Order::PAGEBLOCK));
        let want = |source: Source| {
            let block =
                take(source, Owner::Anon, Order::PAGEBLOCK).expect("there are two blocks for two CPUs");
            source.release(block, Order::PAGEBLOCK);
        };
        together(source, 0, vec![on(want), on(want)]);
    });
    // Waiting makes more interleavings than there is time for; the first ones already contain every
    // order of the two moves.
    assert_eq!(count, BOUND);
}

/// Checks that all interleavings were tried, and that there were at least `least`.
#[track_caller]
fn assert_exhausted(count: u64, least: u64) {
    assert!(
        (least..BOUND).contains(&count),
        "{count} interleavings: too few to mean anything, or not all of them"
    );
}

#[test]
fn frames_freed_on_another_cpu_and_drained_by_request_are_never_lost_or_doubled() {
    let count = interleavings(400, || {
        let source = machine(2, 2, Starts::Switch);
        let frame = take(source, Owner::Anon, Order::FRAME).unwrap();
        let first = on(move |source| {
            source.release(frame, Order::FRAME);
            source.poll(Moment::Tick);
        });
        let second = on(|source| {
            let frame = take(source, Owner::Kernel, Order::FRAME).unwrap();
            source.request_drain();
            source.release(frame, Order::FRAME);
        });
        together(source, 0, vec![first, second]);
    });
    assert_exhausted(count, 50);
}

#[test]
fn of_three_cpus_one_drains_while_the_others_free_into_the_same_pageblock() {
    let count = interleavings(400, || {
        let source = machine(3, 1, Starts::GoOn);
        let frames = [0, 1].map(|_| take(source, Owner::Anon, Order::FRAME).unwrap());
        // The first CPU's list still has the rest of the refills for the two frames. One of the
        // other CPUs' frames is the last that makes the pageblock whole.
        let drain = on(|source| source.drain_local());
        together(source, 0, vec![drain, give(frames[0]), give(frames[1])]);
    });
    assert_exhausted(count, 500);
}

/// A machine of two pageblocks: one is held as a whole, the other belongs to the first CPU's arena,
/// with all frames free except `HELD`.
fn one_pageblock_left<const HELD: usize>(cpus: usize) -> (Source, [Pfn; HELD]) {
    let source = machine(cpus, 2, Starts::GoOn);
    take(source, Owner::Anon, Order::PAGEBLOCK).unwrap();
    let frames = [(); HELD].map(|()| take(source, Owner::Anon, Order::FRAME).unwrap());
    source.drain_local();
    (source, frames)
}

#[test]
fn a_pageblock_is_adopted_by_another_cpu_while_two_free_into_it() {
    let count = interleavings(400, || {
        let (source, [a, b]) = one_pageblock_left(3);
        let adopt = on(|source| {
            // The second CPU's arena is empty: it adopts the first CPU's pageblock, or finds that
            // arena busy and takes frames out of the pageblock.
            let frame = take(source, Owner::Anon, Order::FRAME).expect("there are frames enough");
            assert!(frame.0 < 1024);
        });
        together(source, 512 + 1, vec![give(a), adopt, give(b)]);
    });
    assert_exhausted(count, 500);
}

#[test]
fn a_pageblock_is_stolen_for_another_class_while_its_cpu_takes_and_frees() {
    let count = interleavings(400, || {
        let (source, [frame]) = one_pageblock_left(2);
        let own = on(move |source| {
            source.release(frame, Order::FRAME);
            source.drain_local();
            let frame = take(source, Owner::Anon, Order::FRAME).expect("half of the pageblock is free");
            source.release(frame, Order::FRAME);
        });
        let steal = on(|source| {
            let run = take(source, Owner::PageCache, Order::new(2).unwrap()).expect("there are runs enough");
            source.release(run, Order::new(2).unwrap());
        });
        together(source, 512, vec![own, steal]);
    });
    assert_exhausted(count, 200);
}

#[test]
fn two_cpus_that_adopt_from_each_other_never_wait_for_each_other() {
    // Each CPU has a pageblock of the owner for which the other CPU needs frames.
    let count = interleavings(400, || {
        let source = machine(2, 2, Starts::Switch);
        take(source, Owner::Anon, Order::FRAME).unwrap();
        source.drain_local();
        become_cpu(1);
        take(source, Owner::PageCache, Order::FRAME).unwrap();
        source.drain_local();
        let want = |owner| {
            on(move |source| {
                let frame = take(source, owner, Order::FRAME).expect("there are frames enough");
                source.release(frame, Order::FRAME);
            })
        };
        together(source, 2, vec![want(Owner::PageCache), want(Owner::Anon)]);
    });
    assert_exhausted(count, 50);
}

#[test]
fn of_three_cpus_one_unplugs_what_the_others_take_and_free_and_it_leaves_with_the_last_frame() {
    let leaving = PfnRange::new(Pfn(0), Pfn(1024));
    let get = || {
        on(|source| {
            if let Some(frame) = take(source, Owner::Anon, Order::FRAME) {
                source.release(frame, Order::FRAME);
            }
        })
    };
    let count = interleavings(400, move || {
        let (source, [frame]) = one_pageblock_left(3);
        let out = on(move |source| _ = source.unplug(leaving).unwrap());
        together(source, 0, vec![out, give(frame), get()]);
        // Everything except the pageblock that is held as a whole has been unplugged.
        assert_eq!((source.still_used(leaving), source.free_frames()), (512, 0));
        assert!(take(source, Owner::Anon, Order::FRAME).is_none());
    });
    assert_exhausted(count, 500);
    for get_too in [false, true] {
        let count = interleavings(400, move || {
            let (source, [frame]) = one_pageblock_left(2);
            let out_and_in = on(move |source| {
                source.unplug(leaving).unwrap();
                source.plug(leaving).unwrap();
            });
            let other = if get_too { get() } else { give(frame) };
            together(source, 512 + u64::from(get_too), vec![out_and_in, other]);
            assert_eq!(source.managed_frames(), 1024);
        });
        assert_exhausted(count, 15);
    }
}

#[test]
fn three_cpus_at_random_keep_the_books() {
    let mut config = ShuttleConfig::new();
    config.stack_size = 0x40000;
    let runner = Runner::new(RandomScheduler::new_from_seed(1, 150), config);
    runner.run(|| {
        let source = machine(3, 4, Starts::Switch);
        let work = |seed: u64| {
            on(move |source| {
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
        together(source, 0, vec![work(1), work(2), work(3)]);
    });
}

#[test]
fn a_pageblock_that_leaves_and_comes_back_under_frames_that_come_and_go_keeps_the_books() {
    let count = interleavings(400, || {
        let source = machine(2, 2, Starts::Switch);
        let frame = take(source, Owner::Anon, Order::FRAME).unwrap();
        let head = frame.pageblock_start();
        let block = PfnRange::new(head, head.offset(512));
        // From the moment when no frame is in use until the memory may be used again.
        let out = Arc::new(AtomicU64::new(0));
        let seen = out.clone();
        together(
            source,
            0,
            vec![
                Box::new(move |source| {
                    if source.unplug(block) == Ok(0) {
                        out.store(1, Ordering::SeqCst);
                        thread::yield_now();
                        assert!(source.is_out(block));
                        out.store(0, Ordering::SeqCst);
                    }
                    source.plug(block).unwrap();
                }),
                Box::new(move |source| {
                    source.release(frame, Order::FRAME);
                    source.drain_local();
                    let before = seen.load(Ordering::SeqCst);
                    let other = take(source, Owner::Anon, Order::FRAME);
                    let is_out = before + seen.load(Ordering::SeqCst) == 2;
                    assert!(!is_out || other.is_none_or(|frame| !block.contains(frame)), "{other:?} is gone");
                    other.into_iter().for_each(|frame| source.release(frame, Order::FRAME));
                }),
            ],
        );
    });
    assert!(count > 10, "{count} interleavings: too few to mean anything");
}

/// Three CPUs allocate frames and small runs of programs' memory in one zone, more than the bins
/// can hold evenly. Now and then pageblocks are unplugged and plugged again. In the end, after any
/// order, the counts of lists and of bins have to agree.
#[test]
fn three_cpus_at_random_behind_a_cache_keep_the_books_while_pageblocks_leave_and_come() {
    let mut config = ShuttleConfig::new();
    config.stack_size = 0x40000;
    let runner = Runner::new(RandomScheduler::new_from_seed(2, 60), config);
    runner.run(|| {
        let source = machine_behind_cache(3, 8, 2, 5);
        let work = |seed: u64| {
            on(move |source| {
                let mut held = Vec::new();
                let mut random = seed;
                for step in 0..60 {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    let owner = [Owner::Anon, Owner::Anon, Owner::PageCache][(random >> 60) as usize % 3];
                    if step % 20 == 19 {
                        let first = Pfn((random >> 40) % 8 * 512);
                        let leaving = PfnRange::new(first, first.offset(512));
                        if source.unplug(leaving).is_ok() {
                            let frame = take(source, owner, Order::FRAME);
                            assert!(frame.is_none_or(|frame| !leaving.contains(frame)), "{frame:?} leaves");
                            held.extend(frame.map(|frame| (frame, Order::FRAME)));
                            source.plug(leaving).unwrap();
                        }
                    } else if random >> 40 & 3 != 0 {
                        let count = 1 + (random >> 50) % 64;
                        held.extend(
                            (0..count)
                                .map_while(|_| take(source, owner, Order::FRAME))
                                .map(|f| (f, Order::FRAME)),
                        );
                    } else {
                        let at = (random >> 20) as usize % (held.len() + 1);
                        held.split_off(at)
                            .into_iter()
                            .for_each(|(block, order)| source.release(block, order));
                    }
                }
                held.into_iter().for_each(|(block, order)| source.release(block, order));
            })
        };
        together(source, 0, vec![work(1), work(2), work(3)]);
    });
}

/// The walk reads the frame table first and the zones and lists afterwards. A block that is handed
/// out or freed in between makes it report a leak that does not exist. The caller detects this by
/// the allocator's activity in between.
#[test]
fn a_walk_that_finds_a_fault_which_is_none_was_not_at_rest() {
    static WRONG: AtomicU64 = AtomicU64::new(0);
    let count = interleavings(400, || {
        let source = machine(2, 4, Starts::Switch);
        let frames = [(); 3].map(|()| take(source, Owner::Anon, Order::FRAME).unwrap());
        let busy = on(move |source| {
            source.release(frames[0], Order::FRAME);
            let frame = take(source, Owner::PageCache, Order::FRAME).unwrap();
            source.release(frames[1], Order::FRAME);
            source.release(frame, Order::FRAME);
            source.drain_local();
            source.release(frames[2], Order::FRAME);
        });
        let look = on(|source| {
            let before = source.activity();
            let mut faults = Vec::new();
            let real =
                |fault: &AllocatorFault| !matches!(fault, AllocatorFault::Table(Contradiction::Leaked(..)));
            source.validate(|fault| faults.extend(Some(fault).filter(real)));
            if !faults.is_empty() {
                WRONG.fetch_add(1, Ordering::Relaxed);
                assert_ne!(before, source.activity(), "{faults:?}");
            }
        });
        together(source, 0, vec![busy, look]);
    });
    assert!(count > 20 && WRONG.load(Ordering::Relaxed) > 5, "{count}: no walk was ever wrong");
}
