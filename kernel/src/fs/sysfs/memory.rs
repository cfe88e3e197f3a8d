//! /sys/devices/system/memory: physical memory in blocks of 128 MiB, as lsmem shows it.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::sync::Arc;

use freehold_machine::{NodeId, Topology};

use crate::fs::pseudo::PseudoDir;

const BLOCK: u64 = 128 << 20;
const BLOCK_FRAMES: u64 = BLOCK / 4096;

/// The numbers of the blocks that hold memory, of one node or of all.
pub(super) fn blocks_of(topology: &Topology, node: Option<NodeId>) -> BTreeSet<u64> {
    let mine = topology.ranges().iter().filter(|range| node.is_none_or(|node| range.node == node));
    mine.flat_map(|range| range.frames.start.0 / BLOCK_FRAMES..range.frames.end.0.div_ceil(BLOCK_FRAMES))
        .collect()
}

pub(super) fn fill(root: &Arc<PseudoDir>, topology: &Topology) {
    let memory = root.dirs("devices/system/memory");
    memory.constant("block_size_bytes", format!("{BLOCK:x}"));
    memory.constant("auto_online_blocks", "offline");
    for block in blocks_of(topology, None) {
        let dir = memory.dirs(&format!("memory{block}"));
        dir.constant("phys_index", format!("{block:08x}"));
        dir.constant("phys_device", "0");
        dir.constant("online", "1");
        dir.constant("state", "online");
        dir.constant("removable", "0");
        dir.constant("valid_zones", "Normal");
        for range in topology.ranges() {
            let first = range.frames.start.0 / BLOCK_FRAMES;
            if (first..range.frames.end.0.div_ceil(BLOCK_FRAMES)).contains(&block) {
                let node = range.node.0;
                dir.link(&format!("node{node}"), &format!("../../node/node{node}"));
            }
        }
    }
}
