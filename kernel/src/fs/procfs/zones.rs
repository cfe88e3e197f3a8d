//! /proc/buddyinfo, zoneinfo and pagetypeinfo, and debugfs' extfrag: the page allocator's state in Linux' shapes.
//!
//! There is one zone per node, "Normal", shown while it has memory; migratetypes are the owner classes whose frames a pageblock holds.

use alloc::string::String;
use alloc::vec::Vec;

use freehold_buddy::{ORDERS, ZoneInfo};
use freehold_collections::Arc;
use freehold_frame::Owner;

use super::vmstat;
use crate::fs::generated::Text;
use crate::fs::pseudo::PseudoDir;
use crate::{Result, mem, sched};

/// Put them, and vmstat, into `root`.
pub(super) fn fill(root: &Arc<PseudoDir>) {
    root.file("buddyinfo", buddyinfo);
    root.file("zoneinfo", zoneinfo);
    root.file("pagetypeinfo", pagetypeinfo);
    root.file("vmstat", vmstat::vmstat);
}

/// Put extfrag's two files into `dir`.
pub fn fill_extfrag(dir: &Arc<PseudoDir>) {
    let thousandths = |value: i64| alloc::format!("{}.{:03} ", value / 1000, (value % 1000).abs());
    dir.file("unusable_index", move |out| {
        by_order(out, |zone, order| thousandths(zone.unusable_index(order) as i64))
    });
    dir.file("extfrag_index", move |out| {
        by_order(out, |zone, order| alloc::format!("{:>7}", thousandths(zone.fragmentation_index(order))))
    });
}

fn by_order(out: &mut Text, show: impl Fn(&ZoneInfo, usize) -> String) -> Result<()> {
    for zone in zones() {
        write!(out, "Node {}, zone {:>8} ", zone.node.0, "Normal");
        (0..ORDERS).for_each(|order| write!(out, "{}", show(&zone, order)));
        out.push(b"\n");
    }
    Ok(())
}

/// The nodes that have memory now.
fn zones() -> impl Iterator<Item = ZoneInfo> {
    mem::frames().zone_info().filter(|zone| zone.present > 0)
}

fn counts(values: &[u64]) -> String {
    values.iter().map(|value| alloc::format!("{value:>6} ")).collect()
}

fn buddyinfo(out: &mut Text) -> Result<()> {
    for zone in zones() {
        writeln!(out, "Node {}, zone {:>8} {}", zone.node.0, "Normal", counts(&zone.free_blocks));
    }
    Ok(())
}

fn zoneinfo(out: &mut Text) -> Result<()> {
    for zone in zones() {
        let marks = zone.watermarks;
        let owned = mem::frames().owned_on(zone.node);
        writeln!(out, "Node {}, zone {:>8}\n  per-node stats", zone.node.0, "Normal");
        let mut stat = |name: &str, value: u64| writeln!(out, "      {name:<12} {value}");
        stat("nr_slab_unreclaimable", owned[Owner::Kernel as usize]);
        stat("nr_anon_pages", owned[Owner::Anon as usize]);
        stat("nr_file_pages", owned[Owner::PageCache as usize]);
        stat("nr_page_table_pages", owned[Owner::PageTable as usize]);
        writeln!(out, "  pages free     {}\n        boost    0", zone.free);
        writeln!(out, "        min      {}\n        low      {}", marks.min, marks.low);
        writeln!(out, "        high     {}\n        spanned  {}", marks.high, zone.spanned);
        writeln!(out, "        present  {}\n        managed  {}", zone.present, zone.managed);
        writeln!(out, "        cma      0\n        protection: (0, 0, 0, 0, 0)");
        let mut stat = |name: &str, value: u64| writeln!(out, "      {name:<12} {value}");
        stat("nr_free_pages", zone.free);
        stat("nr_bounce", owned[Owner::Bounce as usize]);
        vmstat::numa(zone.node).into_iter().for_each(|(name, value)| stat(name, value));
        writeln!(out, "  pagesets");
        for cpu in sched::online().iter() {
            if let Some(lane) = mem::frames().lane_info(cpu) {
                // A CPU's lists hold frames of its own node only.
                let count = if lane.node == zone.node { lane.frames } else { 0 };
                writeln!(out, "    cpu: {}\n              count: {count}", cpu.0);
                writeln!(out, "              high:  {}\n              batch: {}", lane.high, lane.batch);
            }
        }
        writeln!(out, "  node_unreclaimable:  0\n  start_pfn:           {}", first_frame(zone.node));
    }
    Ok(())
}

fn first_frame(node: freehold_machine::NodeId) -> u64 {
    let topology = crate::fs::machine::get().map(|machine| &machine.firmware.topology);
    let ranges = topology.map_or(&[][..], |topology| topology.ranges());
    ranges.iter().filter(|range| range.node == node).map(|range| range.frames.start.0).min().unwrap_or(0)
}

fn pagetypeinfo(out: &mut Text) -> Result<()> {
    let orders = (0..ORDERS as u64).collect::<Vec<_>>();
    for zone in zones() {
        let node = zone.node.0;
        writeln!(out, "Page block order: 9\nPages per block:  512\n");
        writeln!(out, "{:<43} {}", "Free pages count per migrate type at order", counts(&orders));
        for owner in Owner::ALL {
            let (free, name) = (&zone.free_by_class[owner as usize], alloc::format!("{owner:?}"));
            writeln!(out, "Node {node:>4}, zone {:>8}, type {name:>12} {}", "Normal", counts(free));
        }
        write!(out, "\n{:<23}", "Number of blocks type ");
        Owner::ALL.iter().for_each(|owner| write!(out, "{:>12} ", alloc::format!("{owner:?}")));
        write!(out, "\nNode {node}, zone {:>8} ", "Normal");
        zone.pageblocks.iter().for_each(|count| write!(out, "{count:>12} "));
        writeln!(out, "\n");
    }
    Ok(())
}
