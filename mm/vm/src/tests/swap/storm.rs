//! Everything at once, on several CPUs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use freehold_machine::CpuId;
use freehold_machine::model::Config;

use super::shared::{file, shared};
use super::*;

/// Two parents store to pages of their own and read them again, fork children that check theirs, and pin pages for a device that counts
/// in them, while two others take pages out of memory and one of them the swap area itself, again and again.
#[test]
fn stores_forks_pins_eviction_and_swapoff_at_once_lose_no_byte() {
    const PAGES: u64 = 24;
    let world = World::with(Config { cpus: 4, nodes: 2, frames: 4096, seed: 3 });
    let s = Swapping::in_world(world, 256);
    let over = AtomicBool::new(false);
    let mut parents = [s.world.process(0), s.world.process(1)];
    parents.iter_mut().for_each(|p| p.judge = Judge::AtTheEnd);
    let spare = Disk::new(s.world.model());
    thread::scope(|scope| {
        let workers: Vec<_> = parents
            .iter()
            .map(|p| {
                scope.spawn(|| {
                    let p: &Process = p;
                    let a = p.anonymous(PAGES);
                    let mut last = 0;
                    // Enough of everything has happened by then, if it happens at all.
                    let enough = || s.count(Event::SwapOut) > 400 && s.count(Event::SwapIn) > 200;
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
                        let pin =
                            p.run(|| p.space().pin::<Transient, ReadWrite>(VirtAddr(device), Rule::Asked));
                        let pin = pin.unwrap();
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
                })
            })
            .collect();
        for evictor in 0..2 {
            let (s, over, spare) = (&s, &over, &spare);
            scope.spawn(move || {
                let age = if evictor == 0 { Age::Respect } else { Age::Ignore };
                let wish = EvictWish { pages: 8, age, nodes: NodeSet::ALL, effort: 0 };
                let mut rounds = 0;
                while !over.load(Ordering::Relaxed) {
                    s.world.model().on_cpu(CpuId(2 + evictor), || {
                        s.world.commons.evict(&wish);
                        rounds += 1;
                        if evictor == 0 && rounds % 16 == 0 {
                            let area = s.swap().add(spare.clone(), 64, &[], 1).unwrap();
                            s.world.commons.evict(&EvictWish { age: Age::Ignore, ..wish });
                            let go_on = &mut || core::ops::ControlFlow::Continue(());
                            s.world.commons.swap_off(area, go_on).unwrap();
                        }
                    });
                }
            });
        }
        let ends: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
    });
    assert!(s.count(Event::SwapOut) > 400 && s.count(Event::SwapIn) > 200);
    drop(parents);
    s.end_of_storm();
}

/// Two processes store to every other page of one file in memory and read all, a third cuts and fills its end, and one writes it by calls, while two
/// others take pages out of memory and one of them a swap area, again and again.
#[test]
fn shared_stores_writes_cuts_eviction_and_swapoff_at_once_lose_no_byte() {
    const PAGES: u64 = 24;
    const WRITTEN: u64 = 8;
    let world = World::with(Config { cpus: 4, nodes: 2, frames: 4096, seed: 5 });
    let s = Swapping::in_world(world, 256);
    let over = AtomicBool::new(false);
    // The pages of the two, then those that are written, then those that are cut.
    let cache = file(&s, PAGES + 2 * WRITTEN, 0);
    (0..PAGES).for_each(|n| write(&cache, n * PAGE, &[0; PAGE_SIZE]));
    let mut mappers = [s.world.process(0), s.world.process(1)];
    mappers.iter_mut().for_each(|p| p.judge = Judge::AtTheEnd);
    let spare = Disk::new(s.world.model());
    // Enough of everything has happened by then, if it happens at all.
    let enough = || s.count(Event::SwapOut) > 800 && s.count(Event::SwapIn) > 400;
    thread::scope(|scope| {
        let mut workers: Vec<_> = (0..2)
            .map(|me| {
                let (p, cache, enough) = (&mappers[me as usize], &cache, &enough);
                scope.spawn(move || {
                    let at = p.map(Place::Anywhere, PAGES, RW, shared(cache)).unwrap();
                    for round in (0..250u8).cycle().take(20_000) {
                        if enough() && round == 0 {
                            break;
                        }
                        for n in 0..PAGES {
                            if n % 2 == me {
                                p.store(at + n * PAGE, round).unwrap();
                            } else {
                                p.load(at + n * PAGE).unwrap();
                            }
                        }
                        for n in (me..PAGES).step_by(2) {
                            assert_eq!(p.load(at + n * PAGE), Ok(round), "page {n}");
                        }
                    }
                })
            })
            .collect();
        let (s, over, spare, cache, enough) = (&s, &over, &spare, &cache, &enough);
        workers.push(scope.spawn(move || {
            s.world.model().on_cpu(CpuId(2), || {
                for round in (1..250u8).cycle().take(20_000) {
                    if enough() && round == 1 {
                        break;
                    }
                    for n in PAGES..PAGES + WRITTEN {
                        write(cache, n * PAGE + 1, &[round; 7]);
                        let end = (PAGES + WRITTEN) * PAGE;
                        cache.truncate(end + 1).unwrap();
                        write(cache, end + 1, &[round; PAGE_SIZE]);
                        assert_eq!(
                            read(cache, n * PAGE, 9),
                            [n as u8, round, round, round, round, round, round, round, n as u8]
                        );
                        assert_eq!(read(cache, end, 3), [(PAGES + WRITTEN) as u8, round, round]);
                    }
                }
            });
        }));
        for evictor in 0..2 {
            scope.spawn(move || {
                let age = if evictor == 0 { Age::Respect } else { Age::Ignore };
                let wish = EvictWish { pages: 8, age, nodes: NodeSet::ALL, effort: 0 };
                let mut rounds = 0;
                while !over.load(Ordering::Relaxed) {
                    s.world.model().on_cpu(CpuId(2 + evictor), || {
                        s.world.commons.evict_shared(&wish);
                        rounds += 1;
                        if evictor == 0 && rounds % 16 == 0 {
                            let area = s.swap().add(spare.clone(), 64, &[], 1).unwrap();
                            s.world.commons.evict_shared(&EvictWish { age: Age::Ignore, ..wish });
                            let go_on = &mut || core::ops::ControlFlow::Continue(());
                            s.world.commons.swap_off(area, go_on).unwrap();
                        }
                    });
                }
            });
        }
        let ends: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
    });
    assert!(enough());
    drop((mappers, cache));
    s.end_of_storm();
}
