//! Counts of nodes and figures of zones.
#![allow(clippy::unwrap_used)]

mod common;

use common::{buddy, check, model};
use freehold_buddy::{NumaStats, Options, Traffic};
use freehold_frame::{FrameSource, NodePolicy, NodeSet, Order, Owner, Request};
use freehold_machine::model::{Config, Model};
use freehold_machine::{CpuId, NodeId, Pfn, PfnRange, Topology};

#[test]
fn allocations_are_counted_as_they_met_what_was_wanted() {
    // CPU 0 is on node 0, CPU 1 on node 1.
    let source =
        model(Config { cpus: 2, nodes: 2, frames: 64 * 512, ..Config::default() }, &[], Options::default());
    let frame = Request::new(Owner::Anon);
    let times = |count: usize, request: Request| {
        (0..count).map(|_| source.allocate(request).unwrap()).collect::<Vec<_>>()
    };
    let mut held = times(1000, frame);
    held.extend(source.machine().on_cpu(CpuId(1), || times(10, frame)));
    held.extend(times(5, frame.policy(NodePolicy::Preferred(NodeId(1)))));
    held.extend(times(3, Request::new(Owner::Anon).policy(NodePolicy::Interleave(NodeSet::ALL, 1))));
    let whole = times(2, Request::new(Owner::Anon).order(Order::new(5).unwrap()));
    let [zero, one] = [0, 1].map(|node| source.numa_stats(NodeId(node)));
    assert_eq!(zero, NumaStats { hit: 1002, local: 1002, ..NumaStats::default() });
    assert_eq!(one, NumaStats { hit: 18, interleave_hit: 3, local: 10, other: 8, ..NumaStats::default() });
    assert_eq!(source.traffic(), Traffic { taken: 1018 + 64, given: 0 });
    whole.into_iter().for_each(|block| source.release(block, Order::new(5).unwrap()));
    held.into_iter().for_each(|block| source.release(block, Order::FRAME));
    assert_eq!(source.traffic(), Traffic { taken: 1018 + 64, given: 1018 + 64 });
    check(source);
}

#[test]
fn a_full_node_misses_and_is_missed() {
    let source =
        model(Config { cpus: 1, nodes: 2, frames: 16 * 512, ..Config::default() }, &[], Options::default());
    let frame = Request::new(Owner::Anon).from_reserve();
    let held: Vec<_> = (0..8 * 512 + 100).map(|_| source.allocate(frame).unwrap()).collect();
    let (zero, one) = (source.numa_stats(NodeId(0)), source.numa_stats(NodeId(1)));
    assert_eq!(zero, NumaStats { hit: 8 * 512, local: 8 * 512, foreign: 100, ..NumaStats::default() });
    assert_eq!(one, NumaStats { miss: 100, other: 100, ..NumaStats::default() });
    held.into_iter().for_each(|block| source.release(block, Order::FRAME));
}

#[test]
fn a_zone_tells_its_span_its_free_blocks_by_class_and_who_owns_its_frames() {
    let run = |start, end| PfnRange::new(Pfn(start), Pfn(end));
    let mut topology = Topology::new(2).unwrap();
    topology.add_range(run(0, 4096), NodeId(0)).unwrap();
    topology.add_range(run(4096, 8192), NodeId(1)).unwrap();
    topology.add_range(run(16384, 20480), NodeId(0)).unwrap();
    topology.add_pluggable_range(run(32768, 40960), NodeId(0)).unwrap();
    let topology: &'static Topology = Box::leak(Box::new(topology));
    let source =
        buddy(Model::with_topology(topology.clone(), 1, 3), topology, &[run(0, 100)], Options::default());
    let held: Vec<_> = (0..700).map(|_| source.allocate(Request::new(Owner::PageCache)).unwrap()).collect();
    let zone = || source.zone_info().next().unwrap();
    assert_eq!(
        (zone().spanned, zone().present),
        (20480, 8192),
        "a hole and another node's memory are spanned"
    );
    source.plug(run(36864, 38912)).unwrap();
    assert_eq!((zone().spanned, zone().present), (38912, 10240));
    let info = source.zone_blocks(NodeId(0));
    for order in 0..freehold_buddy::ORDERS {
        let by_owner: u64 = info.free_by_owner.iter().map(|owner| owner[order]).sum();
        assert_eq!(by_owner, info.free_blocks[order], "order {order}");
    }
    assert!(info.free_by_owner[Owner::Free as usize][10] > 0);
    let owned = source.owned_on(NodeId(0));
    assert_eq!((owned[Owner::PageCache as usize], owned[Owner::Reserved as usize]), (700, 100));
    assert_eq!(owned.iter().sum::<u64>(), 10240);
    assert_eq!(source.owned_on(NodeId(1))[Owner::PageCache as usize], 0);
    held.into_iter().for_each(|block| source.release(block, Order::FRAME));
}

#[test]
fn blocks_of_every_size_and_of_both_nodes_go_home_together() {
    let source =
        model(Config { cpus: 1, nodes: 2, frames: 64 * 512, ..Config::default() }, &[], Options::default());
    let free = check(source);
    let order = |log2| Order::new(log2).unwrap();
    let sizes = [9, 0, 3, 9, 9, 8, 0, 6, 9];
    let held = [1, 0].map(|node| {
        let local = NodePolicy::Preferred(NodeId(node));
        sizes.map(|log2| {
            (source.allocate(Request::new(Owner::Anon).order(order(log2)).policy(local)).unwrap(), log2)
        })
    });
    // Freed blocks wait to be returned in this order: the CPU's lists hold the other node's blocks.
    held.into_iter().flatten().for_each(|(block, log2)| source.release(block, order(log2)));
    source.drain_local();
    assert_eq!((check(source), source.misuses()), (free, 0));
}
