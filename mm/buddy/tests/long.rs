//! A long random test against a model that knows only the owner of each frame.
//!
//! Ten million operations, a third of them in front of a memory-side cache; `FREEHOLD_OPERATIONS`
//! sets another number. Also a short test with threads that run in parallel.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Mutex;
use std::thread;

use common::{behind_caches, buddy, check, model};
use freehold_buddy::{Buddy, Moment, Options, Shuffle};
use freehold_frame::{FrameSource, NodePolicy, NodeSet, Order, Owner, Request};
use freehold_machine::model::{Config, Model};
use freehold_machine::{CpuId, Entropy, NodeId, Pfn, PfnRange};

const FRAMES: u64 = 40_000;
const OWNERS: [Owner; 5] = [Owner::Kernel, Owner::PageTable, Owner::Bounce, Owner::Anon, Owner::PageCache];

struct Life {
    source: &'static Buddy<Model>,
    random: Model,
    /// The owner of each frame, as far as the test knows.
    owners: Vec<Owner>,
    held: Vec<(Pfn, Order)>,
    all: u64,
    misuses: u64,
    refused: u64,
}

impl Life {
    fn below(&self, bound: u64) -> u64 {
        ((u128::from(self.random.random_u64()) * u128::from(bound)) >> 64) as u64
    }
    fn mark(&mut self, block: Pfn, order: Order, from: Owner, to: Owner) {
        for frame in &mut self.owners[block.0 as usize..][..order.frames() as usize] {
            assert_eq!(
                std::mem::replace(frame, to),
                from,
                "{block:?} order {} goes to {}",
                order.log2(),
                to.name()
            );
        }
    }
    fn take(&mut self) {
        let owner = OWNERS[self.below(OWNERS.len() as u64) as usize];
        // Mostly small, sometimes up to 4 MiB.
        let order = Order::new(self.below(12).saturating_sub(self.below(10)) as u32).unwrap();
        let mut request = Request::new(owner).order(order);
        request = match self.below(12) {
            0 => request.policy(NodePolicy::Preferred(NodeId(self.below(3) as u8))),
            1 => request.policy(NodePolicy::Bind(NodeSet::single(NodeId(self.below(2) as u8)))),
            2 => request.policy(NodePolicy::Interleave(NodeSet(3), self.random.random_u64())),
            3 => request.from_reserve(),
            _ => request,
        };
        let Ok(block) = self.source.allocate(request) else {
            self.refused += 1;
            // A single frame is refused only if almost none are free.
            assert!(
                order > Order::FRAME || !matches!(request.policy, NodePolicy::Local) || self.free() < 2000
            );
            return;
        };
        self.mark(block, order, Owner::Free, owner);
        self.held.push((block, order));
    }
    fn free(&self) -> u64 {
        self.owners.iter().filter(|owner| **owner == Owner::Free).count() as u64
    }
    fn give(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (block, order) = self.held.swap_remove(self.below(self.held.len() as u64) as usize);
        self.mark(block, order, self.owners[block.0 as usize], Owner::Free);
        self.source.release(block, order);
    }
    /// Frees a block that the test does not own: this is noticed, and nothing changes.
    fn misuse(&mut self) {
        let frame = Pfn(self.below(FRAMES + 100));
        let order = Order::new(self.below(19) as u32).unwrap();
        if self.held.contains(&(frame, order)) {
            return;
        }
        self.source.release(frame, order);
        self.misuses += 1;
        assert_eq!(self.source.misuses(), self.misuses, "{frame:?} order {}", order.log2());
    }
    fn audit(&self) {
        assert_eq!(check(self.source), self.free());
    }
}

#[test]
fn a_long_life_never_diverges_from_a_list_of_owners() {
    let operations: u64 = std::env::var("FREEHOLD_OPERATIONS").map_or(10_000_000, |n| n.parse().unwrap());
    for (shuffle, cache) in [(Shuffle::On, None), (Shuffle::Off, None), (Shuffle::On, Some(4096))] {
        let reserved = [PfnRange::new(Pfn(0), Pfn(700)), PfnRange::new(Pfn(30_000), Pfn(30_001))];
        let options = Options { shuffle, ..Options::default() };
        let source = match cache {
            None => model(Config { cpus: 3, nodes: 2, frames: FRAMES, seed: 3 }, &reserved, options),
            Some(cache) => {
                let machine = Model::with_topology(behind_caches(2, FRAMES / 2, cache, 3), 3, 3);
                buddy(machine, machine.topology(), &reserved, options)
            }
        };
        let mut owners = vec![Owner::Free; FRAMES as usize];
        // The zones' border is not pageblock-aligned: the second node's part of the shared
        // pageblock stays unused.
        owners[20_000..20_480].fill(Owner::Reserved);
        reserved
            .iter()
            .for_each(|run| owners[run.start.0 as usize..run.end.0 as usize].fill(Owner::Reserved));
        let mut life = Life {
            source,
            random: Model::new(Config::default()),
            owners,
            held: Vec::new(),
            all: 0,
            misuses: 0,
            refused: 0,
        };
        life.all = life.free();
        life.audit();
        for step in 0..operations / 3 {
            let cpu = CpuId(life.below(64) as u16 % 3);
            source.machine().on_cpu(cpu, || match life.below(1000) {
                0..=3 => life.misuse(),
                4..=5 => source.poll(Moment::Tick),
                6 => source.poll(Moment::Idle),
                7 => source.request_drain(),
                // The probability of allocation varies, so that memory becomes full and empty now
                // and then.
                n if n % 100 < 50 + 15 * u64::from(step / 4000 % 2 == 0) - 7 => life.take(),
                _ => life.give(),
            });
            if step.is_multiple_of(20_000) {
                life.audit();
            }
        }
        assert!(life.refused > 100 && life.misuses > 100, "memory never ran out, or nothing was misused");
        while !life.held.is_empty() {
            life.give();
        }
        (0..3).for_each(|cpu| source.machine().on_cpu(CpuId(cpu), || source.drain_local()));
        life.audit();
        assert_eq!(life.free(), life.all);
    }
}

#[test]
fn threads_that_run_at_once_and_free_for_each_other_keep_the_books() {
    const ROUNDS: usize = 300;
    let options = Options { shuffle: Shuffle::On, ..Options::default() };
    let source = model(Config { cpus: 3, frames: FRAMES, ..Config::default() }, &[], options);
    let all = check(source);
    // Each thread frees blocks that another took. All are short of memory now and then, so that
    // they adopt and steal from each other.
    let shared = Mutex::new(Vec::new());
    let work = |cpu: u16| {
        let random = Model::new(Config { seed: cpu.into(), ..Config::default() });
        let below = |bound: u64| ((u128::from(random.random_u64()) * u128::from(bound)) >> 64) as usize;
        for round in 0..ROUNDS {
            let (owner, order) = (OWNERS[below(5)], [0, 0, 0, 0, 1, 3, 9][below(7)]);
            let order = Order::new(order).unwrap();
            let want = (1 + below(3000)) >> order.log2();
            let request = Request::new(owner).order(order).from_reserve();
            let mut mine: Vec<_> =
                (0..want).map_while(|_| source.allocate(request).ok()).map(|block| (block, order)).collect();
            let mut theirs: Vec<_> = {
                let mut shared = shared.lock().unwrap();
                let keep = below(shared.len() as u64 + 1);
                let theirs = shared.split_off(keep);
                shared.append(&mut mine);
                theirs
            };
            while !theirs.is_empty() {
                let (block, order) = theirs.swap_remove(below(theirs.len() as u64));
                source.release(block, order);
            }
            if round % 16 == 0 {
                source.poll(Moment::Idle);
            }
        }
        source.drain_local();
    };
    thread::scope(|scope| {
        (0..3).for_each(|cpu| _ = scope.spawn(move || source.machine().on_cpu(CpuId(cpu), || work(cpu))));
    });
    let left = shared.into_inner().unwrap();
    let used: u64 = left.iter().map(|(_, order)| order.frames()).sum();
    assert_eq!((check(source), source.misuses()), (all - used, 0));
    left.into_iter().for_each(|(block, order)| source.release(block, order));
    source.drain_local();
    assert_eq!(check(source), all);
}
