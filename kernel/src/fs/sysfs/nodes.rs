//! /sys/devices/system/node: memory and CPUs of each node, distances, memory-side caches.

use freehold_collections::Arc;
use freehold_firmware::{AccessCost, Performance};
use freehold_machine::topology::{AddressMode, Indexing, NearCache, WritePolicy};
use freehold_machine::{NodeId, Topology};

use super::memory::blocks_of;
use crate::fs::machine;
use crate::fs::masks::{list, mask};
use crate::fs::procfs::system::node_meminfo;
use crate::fs::procfs::vmstat::{node_vmstat, numastat};
use crate::fs::pseudo::PseudoDir;
use crate::{mem, sched};

pub(super) fn fill(root: &Arc<PseudoDir>, topology: &'static Topology) {
    let count = topology.node_count();
    let all = (1u64 << count) - 1;
    let nodes = root.dirs("devices/system/node");
    let with = |test: &dyn Fn(NodeId) -> bool| {
        list((0..count).filter(|&node| test(NodeId(node as u8))).fold(0, |set, node| set | 1 << node))
    };
    nodes.constant("possible", list(all));
    nodes.constant("online", list(all));
    nodes.constant("has_cpu", with(&|node| cpus_of(topology, node) != 0));
    for name in ["has_memory", "has_normal_memory"] {
        nodes.file(name, |out| {
            let with_memory = mem::frames().allocator().zone_info().filter(|zone| zone.present > 0);
            writeln!(out, "{}", list(with_memory.fold(0, |set, zone| set | 1 << zone.node.0)));
            Ok(())
        });
    }
    for node in (0..count).map(|node| NodeId(node as u8)) {
        let dir = nodes.dirs(format_args!("node{}", node.0));
        let cpus = cpus_of(topology, node);
        let cpu_count = sched::online().len();
        dir.constant("cpumap", mask(cpus, cpu_count));
        dir.constant("cpulist", list(cpus));
        dir.file("distance", move |out| {
            for other in 0..count {
                let blank = if other == 0 { "" } else { " " };
                write!(out, "{blank}{}", topology.distance(node, NodeId(other as u8)));
            }
            out.push(b"\n");
            Ok(())
        });
        super::huge::pool_files(&dir.dirs("hugepages/hugepages-2048kB"), Some(node));
        dir.file("meminfo", move |out| node_meminfo(out, node));
        dir.file("vmstat", move |out| node_vmstat(out, node));
        dir.file("numastat", move |out| numastat(out, node));
        for cache in topology.near_caches(node) {
            near_cache(&dir.dirs(format_args!("memory_side_cache/index{}", cache.level)), cache);
        }
        if let Some(machine) = machine::get() {
            access(&dir, topology, &machine.firmware.performance, node);
        }
        for cpu in (0..64).filter(|cpu| cpus >> cpu & 1 != 0) {
            dir.link(format_args!("cpu{cpu}"), format_args!("../../cpu/cpu{cpu}"));
        }
        for block in blocks_of(topology, Some(node)) {
            dir.link(format_args!("memory{block}"), format_args!("../../memory/memory{block}"));
        }
    }
}

fn cpus_of(topology: &Topology, node: NodeId) -> u64 {
    let cpus = sched::online().iter().filter(|&cpu| topology.node_of_cpu(cpu) == node);
    cpus.fold(0, |set, cpu| set | 1 << cpu.0)
}

/// Shows the latency and bandwidth of this node's memory for the nearest CPUs, in nanoseconds and
/// MB/s, if firmware reports them (Documentation/admin-guide/mm/numaperf.rst, access class 0).
fn access(dir: &Arc<PseudoDir>, topology: &Topology, performance: &Performance, node: NodeId) {
    let initiators = (0..topology.node_count()).map(|from| NodeId(from as u8)).filter(|&from| {
        cpus_of(topology, from) != 0 && performance.cost(from, node) != AccessCost::default()
    });
    let Some(best) = initiators.min_by_key(|&from| topology.distance(from, node)) else { return };
    let cost = performance.cost(best, node);
    let dir = dir.dirs("access0/initiators");
    dir.link(format_args!("node{}", best.0), format_args!("../../../node{}", best.0));
    for (name, value) in [
        ("read_latency", cost.read_latency.div_ceil(1000)),
        ("write_latency", cost.write_latency.div_ceil(1000)),
        ("read_bandwidth", cost.read_bandwidth),
        ("write_bandwidth", cost.write_bandwidth),
    ] {
        dir.constant(name, value);
    }
}

/// Adds the files of a memory-side cache. Their numbers are those of Linux'
/// Documentation/admin-guide/mm/numaperf: indexing 0 direct, 1 indexed, 2 other; write_policy 0
/// back, 1 through, 2 other.
fn near_cache(dir: &Arc<PseudoDir>, cache: &NearCache) {
    let indexing = match cache.indexing {
        Indexing::Direct => 0,
        Indexing::Complex => 1,
        Indexing::Other => 2,
    };
    let policy = match cache.write_policy {
        WritePolicy::Back => 0,
        WritePolicy::Through => 1,
        WritePolicy::Other => 2,
    };
    let mode = match cache.address_mode {
        AddressMode::Transparent => 0,
        AddressMode::ExtendedLinear => 1,
    };
    dir.constant("size", cache.size);
    dir.constant("line_size", cache.line_size);
    dir.constant("indexing", indexing);
    dir.constant("write_policy", policy);
    dir.constant("address_mode", mode);
}
