//! /sys/kernel/debug/page_tables: mappings of each node's root in the kernel half, in Linux' form.

use freehold_collections::Arc;
use freehold_machine::{Machine as _, NodeId};

use crate::Result;
use crate::fs::generated::Text;
use crate::fs::pseudo::PseudoDir;
use crate::hw::Hardware;

/// Adds the directory to debugfs. Only root can read its files, since they reveal the kernel's
/// addresses.
pub(super) fn fill(debug: &Arc<PseudoDir>) {
    let dir = debug.dir(b"page_tables");
    for node in (0..Hardware.node_count() as u8).map(NodeId) {
        let show = move |out: &mut Text| show(node, out);
        dir.generated(format_args!("node{}", node.0), 0o400, show);
    }
}

/// Writes a line for each run of addresses with equal access rights.
fn show(node: NodeId, out: &mut Text) -> Result<()> {
    writeln!(out, "---[ Kernel Space ]---");
    freehold_replica::dump(Hardware, Hardware.kernel_root(node), &mut |run| writeln!(out, "{run}"));
    Ok(())
}
