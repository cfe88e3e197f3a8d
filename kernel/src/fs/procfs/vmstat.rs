//! /proc/vmstat and the nodes' part of it, by Linux' names (mm/vmstat.c). Counters of mechanisms
//! that do not exist here are zero: there is no list of inactive anonymous pages, and compaction
//! does not search for free frames itself. Events that are not counted are not shown.

use freehold_frame::Owner;
use freehold_machine::NodeId;
use freehold_vm::Event;

use crate::fs::generated::Text;
use crate::hw::memory as arch_memory;
use crate::mem::reclaim::{self, PageKind, ReclaimCounts, Who};
use crate::mem::{self, stats};
use crate::task::registry;
use crate::{Result, fs::machine};

/// Events on pages of processes, by Linux' names, except for `cow_unneeded`: copies that an exact
/// reference count would have avoided.
const EVENTS: [(&str, Event); 27] = [
    ("pswpin", Event::SwapIn),
    ("pswpout", Event::SwapOut),
    ("swap_ra", Event::SwapAhead),
    ("swap_ra_hit", Event::SwapAheadHit),
    ("pglazyfree", Event::LazyFree),
    ("pglazyfreed", Event::LazyFreed),
    ("cow_unneeded", Event::CowUnneeded),
    ("cow_ksm", Event::CowKsm),
    ("pgreuse", Event::Reuse),
    ("thp_fault_alloc", Event::HugeFaultAlloc),
    ("thp_fault_fallback", Event::HugeFaultFallback),
    ("thp_collapse_alloc", Event::HugeCollapseAlloc),
    ("thp_collapse_alloc_failed", Event::HugeCollapseFailed),
    ("thp_split_page", Event::HugeSplitPage),
    ("thp_split_page_failed", Event::HugeSplitFailed),
    ("thp_split_pmd", Event::HugeSplitLeaf),
    ("thp_swpout_fallback", Event::HugeSwapFallback),
    ("thp_zero_page_alloc", Event::HugeZeroAlloc),
    ("thp_zero_page_alloc_failed", Event::HugeZeroFailed),
    ("pgmigrate_success", Event::MigrateSuccess),
    ("pgmigrate_fail", Event::MigrateFail),
    ("thp_migration_success", Event::HugeMigrateSuccess),
    ("thp_migration_fail", Event::HugeMigrateFail),
    ("thp_migration_split", Event::HugeMigrateSplit),
    ("thp_scan_exceed_none_pte", Event::HugeScanNone),
    ("thp_scan_exceed_swap_pte", Event::HugeScanSwapped),
    ("thp_scan_exceed_share_pte", Event::HugeScanShared),
];

/// Large pages of files, large pages of 1 GiB, large pages swapped as a whole or waiting to be
/// split; charges of control groups.
const NOTHING_OF: [&str; 8] = [
    "thp_fault_fallback_charge",
    "thp_file_alloc",
    "thp_file_fallback",
    "thp_file_fallback_charge",
    "thp_file_mapped",
    "thp_deferred_split_page",
    "thp_split_pud",
    "thp_swpout",
];

/// Writes the figures of all nodes.
pub(super) fn vmstat(out: &mut Text) -> Result<()> {
    let memory = stats::memory();
    let traffic = mem::frames().traffic();
    let mut faults = [0; 2];
    registry::for_each(|process| {
        let usage = process.usage();
        faults[0] += usage.minor_faults + process.children_usage().minor_faults;
        faults[1] += usage.major_faults + process.children_usage().major_faults;
    });
    let mut line = |name: &str, value: u64| writeln!(out, "{name} {value}");
    line("nr_free_pages", memory.free);
    line("nr_zone_inactive_anon", 0);
    line("nr_zone_active_anon", memory.anonymous + memory.shared());
    line("nr_zone_write_pending", memory.disks.dirty + memory.disks.under_way);
    line("nr_bounce", memory.bounce);
    let nodes = machine::get().map_or(1, |machine| machine.firmware.topology.node_count());
    let numa = (0..nodes)
        .map(|node| numa(NodeId(node as u8)))
        .reduce(|sum, one| core::array::from_fn(|which| (sum[which].0, sum[which].1 + one[which].1)));
    numa.into_iter().flatten().for_each(|(name, value)| line(name, value));
    line("nr_inactive_anon", 0);
    line("nr_active_anon", memory.anonymous + memory.shared());
    line("nr_inactive_file", memory.disks.pages - memory.disks.active);
    line("nr_active_file", memory.disks.active);
    line("nr_slab_reclaimable", 0);
    line("nr_slab_unreclaimable", stats::heap_bytes() / 4096);
    line("nr_anon_pages", memory.anonymous);
    line("nr_file_pages", memory.page_cache);
    line("nr_dirty", memory.disks.dirty);
    line("nr_writeback", memory.disks.under_way);
    line("nr_shmem", memory.shared());
    line("nr_anon_transparent_hugepages", mem::commons().huge_pages() / 512);
    let [acquired, released] = mem::pin_totals();
    line("nr_foll_pin_acquired", acquired);
    line("nr_foll_pin_released", released);
    line("nr_kernel_stack", memory.stacks * 4);
    line("nr_page_table_pages", memory.page_tables);
    let [read, written] = crate::block::traffic();
    line("pgpgin", read / 1024);
    line("pgpgout", written / 1024);
    line("pgalloc_normal", traffic.taken);
    line("allocstall_normal", stats::stalls());
    line("pgfree", traffic.given);
    line("pgfault", faults[0] + faults[1]);
    line("pgmajfault", faults[1]);
    reclaim_and_compaction(&mut line);
    for (name, event) in EVENTS {
        line(name, mem::commons().count_of(event));
    }
    let (made, pages) = (mem::commons().mirrors_made(), mem::commons().mirror_pages());
    line("numa_mirror_made", made);
    line("numa_mirror_fallen", made - pages.min(made));
    line("numa_mirror_pages", pages);
    kernel_map(&mut line);
    NOTHING_OF.into_iter().for_each(|name| line(name, 0));
    Ok(())
}

/// Writes the numbers of pages that were scanned, reclaimed and moved to get free ones.
fn reclaim_and_compaction(line: &mut impl FnMut(&str, u64)) {
    let [kswapd, direct] = [Who::Kswapd, Who::Direct]
        .map(|who| [PageKind::Anonymous, PageKind::File].map(|kind| reclaim::counts(who, kind)));
    let sum = |counts: [ReclaimCounts; 2], of: fn(&ReclaimCounts) -> u64| counts.iter().map(of).sum();
    line("pgsteal_kswapd", sum(kswapd, |counts| counts.stolen));
    line("pgsteal_direct", sum(direct, |counts| counts.stolen));
    line("pgscan_kswapd", sum(kswapd, |counts| counts.scanned));
    line("pgscan_direct", sum(direct, |counts| counts.scanned));
    line("pgscan_anon", sum([kswapd[0], direct[0]], |counts| counts.scanned));
    line("pgscan_file", sum([kswapd[1], direct[1]], |counts| counts.scanned));
    line("pgsteal_anon", sum([kswapd[0], direct[0]], |counts| counts.stolen));
    line("pgsteal_file", sum([kswapd[1], direct[1]], |counts| counts.stolen));
    line("workingset_refault_file", freehold_vm::refaults());
    line("pageoutrun", reclaim::runs());
    line("oom_kill", crate::task::oom_kills());
    let compaction = mem::evacuate::compaction();
    line("compact_migrate_scanned", compaction.scanned);
    line("compact_isolated", compaction.moved);
    line("compact_success", compaction.succeeded);
    line("compact_fail", compaction.failed);
    line("compact_free_scanned", 0);
    line("compact_stall", reclaim::compact_stalls());
}

/// Writes the cost of keeping programs' frames out of the kernel's map.
fn kernel_map(line: &mut impl FnMut(&str, u64)) {
    let ([windows, laps], map) = (arch_memory::window_totals(), arch_memory::map_figures());
    line("xpfo_windows", windows);
    line("xpfo_laps", laps);
    line("xpfo_refused", arch_memory::refused_windows());
    line("xpfo_enter", map.entered);
    line("xpfo_leave", map.left);
    line("xpfo_leave_ipi", map.interrupted);
    line("xpfo_wiped", mem::frames().wiped_pageblocks());
}

/// Returns a node's counters, by the names of /proc/vmstat.
pub fn numa(node: NodeId) -> [(&'static str, u64); 6] {
    let stats = mem::frames().numa_stats(node);
    [
        ("numa_hit", stats.hit),
        ("numa_miss", stats.miss),
        ("numa_foreign", stats.foreign),
        ("numa_interleave", stats.interleave_hit),
        ("numa_local", stats.local),
        ("numa_other", stats.other),
    ]
}

/// Writes one node's figures: /sys/devices/system/node/nodeN/vmstat.
pub fn node_vmstat(out: &mut Text, node: NodeId) -> Result<()> {
    let owned = mem::frames().owned_on(node);
    let mut line = |name: &str, value: u64| writeln!(out, "{name} {value}");
    line("nr_free_pages", owned[Owner::Free as usize]);
    line("nr_bounce", mem::stats::seen_by_devices(|owner| owned[owner as usize]));
    numa(node).into_iter().for_each(|(name, value)| line(name, value));
    line("nr_slab_unreclaimable", owned[Owner::Kernel as usize]);
    line("nr_anon_pages", owned[Owner::Anon as usize]);
    line("nr_file_pages", owned[Owner::PageCache as usize]);
    line("nr_page_table_pages", owned[Owner::PageTable as usize]);
    Ok(())
}

/// Writes one node's numastat, whose names are older (Documentation/admin-guide/numastat.rst).
pub fn numastat(out: &mut Text, node: NodeId) -> Result<()> {
    let names = ["numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node"];
    for (name, (_, value)) in names.into_iter().zip(numa(node)) {
        writeln!(out, "{name} {value}");
    }
    Ok(())
}
