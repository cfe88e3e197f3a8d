//! The fault hook: the requests for which it is called, and the effect of its answer.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::{check, model};
use freehold_buddy::Options;
use freehold_frame::{FrameSource, NodePolicy, Order, OutOfMemory, Owner, Request};
use freehold_machine::model::Config;
use freehold_machine::{CpuId, NodeId};

static ASKED: AtomicU64 = AtomicU64::new(0);

/// Every third request fails.
fn every_third(_: Owner, _: Order) -> bool {
    ASKED.fetch_add(1, Ordering::Relaxed) % 3 == 2
}

/// Also requests that lists serve: on all CPUs, with and without blocks in the lists, by any
/// policy.
#[test]
fn each_request_is_asked_about_once_from_the_call_on_and_none_before() {
    let options = Options { fault_hook: Some(every_third), ..Options::default() };
    let config = Config { cpus: 2, frames: 64 * 512, ..Config::default() };
    let source = model(config, &[], options);
    let shapes = [(Owner::Anon, 0), (Owner::PageTable, 0), (Owner::Kernel, 3), (Owner::Anon, 9)];
    let requests = shapes.map(|(owner, order)| Request::new(owner).order(Order::new(order).unwrap()));
    let mut held = Vec::new();
    let ask = |rounds: u64, held: &mut Vec<_>| {
        let mut refused = 0;
        for cpu in [0, 1].map(CpuId) {
            source.machine().on_cpu(cpu, || {
                for _ in 0..rounds {
                    for request in requests {
                        for request in [request, request.policy(NodePolicy::Preferred(NodeId(0)))] {
                            match source.allocate(request) {
                                Ok(block) => held.push((block, request.order)),
                                Err(OutOfMemory) => refused += 1,
                            }
                        }
                    }
                }
            });
        }
        refused
    };
    assert_eq!((ask(9, &mut held), ASKED.load(Ordering::Relaxed)), (0, 0));
    // The blocks are freed into the lists, so that the lists could serve the next requests.
    held.drain(..).for_each(|(block, order)| source.release(block, order));
    source.inject_faults();
    let made = 2 * 12 * requests.len() as u64 * 2;
    assert_eq!((ask(12, &mut held), ASKED.load(Ordering::Relaxed)), (made / 3, made));
    held.drain(..).for_each(|(block, order)| source.release(block, order));
    assert_eq!(check(source), 64 * 512);
}
