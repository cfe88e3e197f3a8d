//! /proc/buddyinfo, zoneinfo and pagetypeinfo: the page allocator's state in Linux' shapes.
//!
//! There is one zone per node, "Normal"; migratetypes are the owner classes whose frames a pageblock holds.

use alloc::string::String;
use alloc::sync::Arc;

use freehold_buddy::ORDERS;
use freehold_frame::Owner;

use crate::fs::generated::Text;
use crate::fs::pseudo::PseudoDir;
use crate::{Result, mem, sched};

/// Put the three files into `root`.
pub(super) fn fill(root: &Arc<PseudoDir>) {
    root.file("buddyinfo", buddyinfo);
    root.file("zoneinfo", zoneinfo);
    root.file("pagetypeinfo", pagetypeinfo);
}

fn counts(values: &[u64]) -> String {
    values.iter().map(|value| alloc::format!("{value:>6} ")).collect()
}

fn buddyinfo(out: &mut Text) -> Result<()> {
    for zone in mem::frames().zone_info() {
        writeln!(out, "Node {}, zone {:>8} {}", zone.node.0, "Normal", counts(&zone.free_blocks));
    }
    Ok(())
}

fn zoneinfo(out: &mut Text) -> Result<()> {
    for zone in mem::frames().zone_info() {
        let marks = zone.watermarks;
        writeln!(out, "Node {}, zone {:>8}\n  pages free     {}", zone.node.0, "Normal", zone.free);
        writeln!(
            out,
            "        boost    0\n        min      {}\n        low      {}\n        high     {}",
            marks.min, marks.low, marks.high
        );
        writeln!(
            out,
            "        spanned  {0}\n        present  {0}\n        managed  {1}\n        cma      0",
            zone.present, zone.managed
        );
        writeln!(out, "        protection: (0, 0, 0, 0, 0)\n      nr_free_pages {}\n  pagesets", zone.free);
        for cpu in sched::online().iter() {
            if let Some(lane) = mem::frames().lane_info(cpu) {
                writeln!(
                    out,
                    "    cpu: {}\n              count: {}\n              high:  {}\n              batch: {}",
                    cpu.0, lane.frames, lane.high, lane.batch
                );
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
    out.push(b"Page block order: 9\nPages per block:  512\n\n");
    out.push(b"Free pages count per migrate type at order ");
    for order in 0..ORDERS {
        write!(out, "{order:>6} ");
    }
    out.push(b"\n");
    for zone in mem::frames().zone_info() {
        for owner in Owner::ALL {
            let free = &zone.free_by_class[owner as usize];
            let (node, name) = (zone.node.0, alloc::format!("{owner:?}"));
            writeln!(out, "Node {node:>4}, zone {:>8}, type {name:>12} {}", "Normal", counts(free));
        }
    }
    out.push(b"\nNumber of blocks type ");
    for owner in Owner::ALL {
        write!(out, "{:>12} ", alloc::format!("{owner:?}"));
    }
    out.push(b"\n");
    for zone in mem::frames().zone_info() {
        write!(out, "Node {}, zone {:>8} ", zone.node.0, "Normal");
        for count in zone.pageblocks {
            write!(out, "{count:>12} ");
        }
        out.push(b"\n");
    }
    Ok(())
}
