//! Everything at once, on several CPUs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};

use freehold_machine::CpuId;
use freehold_machine::model::Config;

use super::shared::file;
use super::*;
use crate::tests::merge::{WISH, pass};

/// Runs the threads that `start` starts. Meanwhile two others repeatedly evict pages by `evict`,
/// and one of them also removes a swap area.
fn storm<'env>(
    s: &'env Swapping,
    evict: fn(&Commons<ModelFrames>, &EvictWish) -> SwapEvicted,
    start: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Vec<ScopedJoinHandle<'scope, ()>>,
) {
    thread::scope(|scope| {
        let workers = start(scope);
        let over = Arc::new(AtomicBool::new(false));
        for evictor in 0..2 {
            let (over, spare) = (over.clone(), Disk::new(s.world.model()));
            scope.spawn(move || {
                let age = if evictor == 0 { Age::Respect } else { Age::Ignore };
                let wish = wish(8, age);
                let mut rounds = 0;
                while !over.load(Ordering::Relaxed) {
                    s.world.model().on_cpu(CpuId(2 + evictor), || {
                        evict(&s.world.commons, &wish);
                        rounds += 1;
                        if evictor == 0 && rounds % 16 == 0 {
                            let area = s.swap().add(spare.clone(), 64, &[], 1).unwrap();
                            evict(&s.world.commons, &EvictWish { age: Age::Ignore, ..wish });
                            let go_on = &mut || core::ops::ControlFlow::Continue(());
                            s.world.commons.swap_off(area, go_on, &mut find_none).unwrap();
                        }
                    });
                }
            });
        }
        let ends: Vec<_> = workers.into_iter().map(ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
    });
}

/// Stores to pages of its own and reads them again, forks children that check theirs, and pins
/// pages for a device that counts in them.
fn store_fork_and_pin(s: &Swapping, p: &Process, enough: impl Fn() -> bool) {
    const PAGES: u64 = 24;
    let a = p.anonymous(PAGES);
    let mut last = 0;
    for round in (0..=250u8).cycle().take(20_000) {
        if enough() && round == 0 {
            break;
        }
        for n in 0..PAGES {
            let at = a + n * PAGE;
            assert_eq!(p.load(at), Ok(round.checked_sub(1).unwrap_or(last)), "page {n}");
            p.store(at, round).unwrap();
        }
        let device = a + u64::from(round) % PAGES * PAGE;
        let pin = p.run(|| p.space().pin::<Transient, ReadWrite>(VirtAddr(device), Rule::Asked)).unwrap();
        let counter = dma(&s.world, pin.pfn());
        counter.store(77);
        assert_eq!(p.load(device), Ok(77));
        counter.store(round);
        drop(pin);
        if round % 8 == 3 {
            let mut child = p.fork(p.cpu.0);
            child.judge = Judge::AtTheEnd;
            p.store(a, round).unwrap();
            (0..PAGES).for_each(|n| assert_eq!(child.load(a + n * PAGE), Ok(round)));
            child.store(a, 99).unwrap();
        }
        last = round;
    }
}

#[test]
fn stores_forks_pins_eviction_and_swapoff_at_once_lose_no_byte() {
    let world = World::with(Config { cpus: 4, nodes: 2, frames: 4096, seed: 3 });
    world.model().shake();
    let s = Swapping::in_world(world, 256);
    let mut parents = [s.world.process(0), s.world.process(1)];
    parents.iter_mut().for_each(|p| p.judge = Judge::AtTheEnd);
    // By then each kind of event has happened often enough.
    let enough = || s.count(Event::SwapOut) > 400 && s.count(Event::SwapIn) > 200;
    storm(&s, Commons::evict, |scope| {
        parents.iter().map(|p| scope.spawn(|| store_fork_and_pin(&s, p, enough))).collect()
    });
    assert!(enough());
    drop(parents);
    s.end_of_storm();
}

#[test]
fn stores_forks_pins_eviction_and_merging_at_once_lose_no_byte() {
    static SCAN: std::sync::Mutex<MergeScan> = std::sync::Mutex::new(MergeScan::new());
    fn evict_and_merge(commons: &Commons<ModelFrames>, wish: &EvictWish) -> SwapEvicted {
        let rules = MergeWish { rules: MergeRules::ZEROES, ..WISH };
        pass(commons, &mut SCAN.lock().unwrap(), &rules, 4);
        commons.evict(wish)
    }
    let world = World::with(Config { cpus: 4, nodes: 2, frames: 4096, seed: 7 });
    world.model().shake();
    let s = Swapping::in_world(world, 256);
    let mut parents = [s.world.process(0), s.world.process(1)];
    parents.iter_mut().for_each(|p| {
        p.judge = Judge::AtTheEnd;
        p.space().merge_all();
    });
    let enough = || s.count(Event::CowKsm) > 400 && s.count(Event::SwapIn) > 100;
    storm(&s, evict_and_merge, |scope| {
        parents.iter().map(|p| scope.spawn(|| store_fork_and_pin(&s, p, enough))).collect()
    });
    assert!(enough());
    drop(parents);
    s.end_of_storm();
}

/// Pages of a file in memory that two processes map, then those that are written by calls, then one
/// that is cut.
const MAPPED: u64 = 24;
const WRITTEN: u64 = 8;

/// Stores to every other page, from `first` on, and reads all.
fn map_and_store(p: &Process, cache: &Arc<Cache>, first: u64, enough: impl Fn() -> bool) {
    let at = p.map(AreaPlace::Anywhere, MAPPED, RW, shared(cache)).unwrap();
    for round in (0..250u8).cycle().take(20_000) {
        if enough() && round == 0 {
            break;
        }
        for n in 0..MAPPED {
            if n % 2 == first {
                p.store(at + n * PAGE, round).unwrap();
            } else {
                p.load(at + n * PAGE).unwrap();
            }
        }
        for n in (first..MAPPED).step_by(2) {
            assert_eq!(p.load(at + n * PAGE), Ok(round), "page {n}");
        }
    }
}

/// Writes parts of pages, and cuts and fills the last one.
fn write_and_cut(cache: &Cache, enough: impl Fn() -> bool) {
    let (last, end) = (MAPPED + WRITTEN, (MAPPED + WRITTEN) * PAGE);
    for round in (1..250u8).cycle().take(20_000) {
        if enough() && round == 1 {
            break;
        }
        for n in MAPPED..last {
            write(cache, n * PAGE + 1, &[round; 7]);
            cache.truncate(end + 1).unwrap();
            write(cache, end + 1, &[round; PAGE_SIZE]);
            let mut expected = [round; 9];
            (expected[0], expected[8]) = (n as u8, n as u8);
            assert_eq!(read(cache, n * PAGE, 9), expected);
            assert_eq!(read(cache, end, 3), [last as u8, round, round]);
        }
    }
}

#[test]
fn shared_stores_writes_cuts_eviction_and_swapoff_at_once_lose_no_byte() {
    let world = World::with(Config { cpus: 4, nodes: 2, frames: 4096, seed: 5 });
    world.model().shake();
    let s = Swapping::in_world(world, 256);
    let cache = file(&s, MAPPED + 2 * WRITTEN, 0);
    (0..MAPPED).for_each(|n| write(&cache, n * PAGE, &[0; PAGE_SIZE]));
    let mut mappers = [s.world.process(0), s.world.process(1)];
    mappers.iter_mut().for_each(|p| p.judge = Judge::AtTheEnd);
    // By then each kind of event has happened often enough.
    let enough = || s.count(Event::SwapOut) > 800 && s.count(Event::SwapIn) > 400;
    storm(&s, Commons::evict_shared, |scope| {
        let writer = scope.spawn(|| s.world.model().on_cpu(CpuId(2), || write_and_cut(&cache, enough)));
        let mappers = mappers.iter().zip(0..);
        let storing = mappers.map(|(p, first)| {
            let cache = &cache;
            scope.spawn(move || map_and_store(p, cache, first, enough))
        });
        storing.chain([writer]).collect()
    });
    assert!(enough());
    drop((mappers, cache));
    s.end_of_storm();
}
