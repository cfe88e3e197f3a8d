//! /proc/buddyinfo, zoneinfo and pagetypeinfo, and debugfs' extfrag: the page allocator's state in
//! Linux' formats.
//!
//! There is one zone per node, "Normal", which is shown while it has memory. The migratetype of a
//! pageblock is the owner of its frames.

use core::fmt::{self, Display, Formatter};

use freehold_buddy::{ORDERS, ZoneBlocks, ZoneInfo};
use freehold_collections::Arc;
use freehold_frame::Owner;

use super::vmstat;
use crate::fs::generated::{ShortLine, Text};
use crate::fs::pseudo::PseudoDir;
use crate::{Result, mem, sched};

/// Adds these files, and vmstat, to `root`.
pub(super) fn fill(root: &Arc<PseudoDir>) {
    root.file("buddyinfo", buddyinfo);
    root.file("zoneinfo", zoneinfo);
    root.file("pagetypeinfo", pagetypeinfo);
    root.file("vmstat", vmstat::vmstat);
}

/// Adds extfrag's two files to `dir`.
pub fn fill_extfrag(dir: &Arc<PseudoDir>) {
    dir.file("unusable_index", |out| by_order(out, 0, |blocks, order| blocks.unusable_index(order) as i64));
    dir.file("extfrag_index", |out| by_order(out, 7, ZoneBlocks::fragmentation_index));
}

/// Writes a line for each zone. For each order it has a number of thousandths in at least `width`
/// columns.
fn by_order(out: &mut Text, width: usize, value: impl Fn(&ZoneBlocks, usize) -> i64) -> Result<()> {
    for zone in zones() {
        let blocks = blocks_of(&zone);
        write!(out, "Node {}, zone {:>8} ", zone.node.0, "Normal");
        for value in (0..ORDERS).map(|order| value(&blocks, order)) {
            let thousandths = format_args!("{}.{:03} ", value / 1000, (value % 1000).abs());
            out.push(right(thousandths, width).bytes());
        }
        out.push(b"\n");
    }
    Ok(())
}

/// The zones of nodes that have memory now.
fn zones() -> impl Iterator<Item = ZoneInfo> {
    mem::frames().allocator().zone_info().filter(|zone| zone.present > 0)
}

fn blocks_of(zone: &ZoneInfo) -> ZoneBlocks {
    mem::frames().allocator().zone_blocks(zone.node)
}

/// Returns the text that `text` displays, padded with blanks on the left to at least `width`
/// columns.
fn right(text: impl Display, width: usize) -> ShortLine {
    let text = ShortLine::displaying(text);
    let mut line = ShortLine::new();
    line.pad(width.saturating_sub(text.bytes().len()));
    line.push(text.bytes());
    line
}

/// Displays each value in six columns, followed by a blank.
struct CountColumns<'a>(&'a [u64]);

impl Display for CountColumns<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|value| write!(f, "{value:>6} "))
    }
}

fn buddyinfo(out: &mut Text) -> Result<()> {
    for zone in zones() {
        writeln!(
            out,
            "Node {}, zone {:>8} {}",
            zone.node.0,
            "Normal",
            CountColumns(&blocks_of(&zone).free_blocks)
        );
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
        stat("nr_bounce", mem::stats::seen_by_devices(|owner| owned[owner as usize]));
        vmstat::numa(zone.node).into_iter().for_each(|(name, value)| stat(name, value));
        writeln!(out, "  pagesets");
        for cpu in sched::online().iter() {
            if let Some(pcp) = mem::frames().pcp_info(cpu) {
                // A CPU's lists have only frames of its own node.
                let count = if pcp.node == zone.node { pcp.frames } else { 0 };
                writeln!(out, "    cpu: {}\n              count: {count}", cpu.0);
                writeln!(out, "              high:  {}\n              batch: {}", pcp.high, pcp.batch);
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
    let orders: [u64; ORDERS] = core::array::from_fn(|order| order as u64);
    for zone in zones() {
        let (node, blocks) = (zone.node.0, blocks_of(&zone));
        writeln!(out, "Page block order: 9\nPages per block:  512\n");
        writeln!(out, "{:<43} {}", "Free pages count per migrate type at order", CountColumns(&orders));
        for owner in Owner::ALL {
            write!(out, "Node {node:>4}, zone {:>8}, type ", "Normal");
            out.push(right(format_args!("{owner:?}"), 12).bytes());
            writeln!(out, " {}", CountColumns(&blocks.free_by_owner[owner as usize]));
        }
        write!(out, "\n{:<23}", "Number of blocks type ");
        for owner in Owner::ALL {
            out.push(right(format_args!("{owner:?}"), 12).bytes());
            out.push(b" ");
        }
        write!(out, "\nNode {node}, zone {:>8} ", "Normal");
        blocks.pageblocks.iter().for_each(|count| write!(out, "{count:>12} "));
        writeln!(out, "\n");
    }
    Ok(())
}
