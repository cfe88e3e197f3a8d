//! /sys/devices/system/cpu: the CPUs, their topology, and their caches.

use core::arch::x86_64::__cpuid_count;

use freehold_collections::Arc;
use freehold_machine::{CpuSet, Topology};

use crate::fs::masks::{list, mask};
use crate::fs::pseudo::PseudoDir;
use crate::sched;

/// The highest number that a CPU can have (kernel_max).
const KERNEL_MAX: usize = 63;

pub(super) fn fill(root: &Arc<PseudoDir>, topology: &Topology) {
    let online = sched::online();
    let count = online.len();
    let all = CpuSet::first(count).0;
    let cpus = root.dirs("devices/system/cpu");
    for name in ["possible", "present"] {
        cpus.constant(name, list(all));
    }
    cpus.constant("online", list(online.0));
    cpus.constant("offline", "");
    cpus.constant("isolated", "");
    cpus.constant("kernel_max", KERNEL_MAX);
    let weaknesses = cpus.dirs("vulnerabilities");
    for (name, text) in crate::hw::speculation::files() {
        weaknesses.constant(name, text);
    }
    for cpu in online.iter() {
        let number = usize::from(cpu.0);
        let own = 1 << number;
        let dir = cpus.dirs(format_args!("cpu{number}"));
        let place = dir.dirs("topology");
        place.constant("core_id", number);
        place.constant("cluster_id", "-1");
        place.constant("die_id", "0");
        place.constant("physical_package_id", "0");
        for (name, set) in [
            ("core_cpus", own),
            ("thread_siblings", own),
            ("core_siblings", all),
            ("package_cpus", all),
            ("die_cpus", all),
        ] {
            place.constant(name, mask(set, count));
            place.constant(format_args!("{name}_list"), list(set));
        }
        caches(&dir, own, all, count);
        let node = topology.node_of_cpu(cpu).0;
        dir.link(format_args!("node{node}"), format_args!("../../node/node{node}"));
        dir.constant("crash_notes_size", "0");
    }
}

/// Makes cpuN/cache/indexN from CPUID's description of caches: leaf 0x8000001d on AMD, 4 elsewhere
/// (Intel SDM volume 2, CPUID leaf 04H; AMD APM volume 3, Fn8000_001D).
fn caches(cpu: &Arc<PseudoDir>, own: u64, all: u64, count: usize) {
    let extended =
        __cpuid_count(0x8000_0000, 0).eax >= 0x8000_001d && __cpuid_count(0x8000_0001, 0).ecx & 1 << 22 != 0;
    let leaf = if extended { 0x8000_001d } else { 4 };
    if !extended && __cpuid_count(0, 0).eax < 4 {
        return;
    }
    for index in 0..8 {
        let found = __cpuid_count(leaf, index);
        let kind = match found.eax & 0x1f {
            1 => "Data",
            2 => "Instruction",
            3 => "Unified",
            _ => return,
        };
        let line = u64::from(found.ebx & 0xfff) + 1;
        let partitions = u64::from(found.ebx >> 12 & 0x3ff) + 1;
        let ways = u64::from(found.ebx >> 22 & 0x3ff) + 1;
        let sets = u64::from(found.ecx) + 1;
        let is_shared = found.eax >> 14 & 0xfff != 0;
        let sharers = if is_shared { all } else { own };
        let dir = cpu.dirs(format_args!("cache/index{index}"));
        dir.constant("level", found.eax >> 5 & 7);
        dir.constant("type", kind);
        dir.file("size", move |out| {
            writeln!(out, "{}K", line * partitions * ways * sets / 1024);
            Ok(())
        });
        dir.constant("coherency_line_size", line);
        dir.constant("physical_line_partition", partitions);
        dir.constant("ways_of_associativity", ways);
        dir.constant("number_of_sets", sets);
        dir.constant("shared_cpu_map", mask(sharers, count));
        dir.constant("shared_cpu_list", list(sharers));
        dir.constant("id", if is_shared { 0 } else { own.trailing_zeros() });
    }
}
