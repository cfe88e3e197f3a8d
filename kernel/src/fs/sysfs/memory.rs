//! /sys/devices/system/memory: physical memory in blocks of 128 MiB, as lsmem shows it.
//!
//! Blocks of memory that can be plugged in are always listed; a block is `offline` while no part of
//! it is plugged in. Memory is plugged in and unplugged in smaller steps, which Linux' files do not
//! show. New memory is online at once.
//!
//! A block of memory that cannot be unplugged can be set offline and online by hand (`state`). It
//! must consist of whole pageblocks of one node, and all its content must be movable.

use freehold_collections::Arc;
use freehold_machine::topology::Presence;
use freehold_machine::{NodeId, PAGEBLOCK_FRAMES, Pfn, PfnRange, Topology};

use crate::fs::generated::{Generate, Text};
use crate::fs::pseudo::PseudoDir;
use crate::mem::evacuate::{Use, set_block};
use crate::{Errno, Result, mem};

const BLOCK: u64 = 128 << 20;
const BLOCK_FRAMES: u64 = BLOCK / 4096;

/// The numbers of the blocks that hold memory, of one node or of all, in order.
pub(super) fn blocks_of(topology: &Topology, node: Option<NodeId>) -> impl Iterator<Item = u64> {
    let mine = topology.ranges().iter().filter(move |range| node.is_none_or(|node| range.node == node));
    let blocks =
        mine.flat_map(|range| range.frames.start.0 / BLOCK_FRAMES..range.frames.end.0.div_ceil(BLOCK_FRAMES));
    // Ranges are sorted, and several may share a block.
    let mut next = 0;
    blocks.filter(move |&block| {
        let is_new = block >= next;
        next = next.max(block + 1);
        is_new
    })
}

/// Whether any part of a block is present.
fn is_online(topology: &Topology, block: u64) -> bool {
    let frames = PfnRange::new(Pfn(block * BLOCK_FRAMES), Pfn((block + 1) * BLOCK_FRAMES));
    topology.ranges().iter().map(|range| (range.presence, range.frames.intersection(frames))).any(
        |(presence, part)| {
            // Memory is added and removed in whole pageblocks.
            let can_go = presence == Presence::Pluggable || part.len() >= PAGEBLOCK_FRAMES;
            !(part.is_empty() || can_go && mem::frames().is_out(part))
        },
    )
}

/// The file `state` of a block.
struct BlockState(&'static Topology, u64);

impl Generate for BlockState {
    fn show(&self, text: &mut Text) -> Result<()> {
        writeln!(text, "{}", if is_online(self.0, self.1) { "online" } else { "offline" });
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let to = match bytes.trim_ascii() {
            b"offline" => Use::Offline,
            b"online" | b"online_movable" | b"online_kernel" => Use::Online,
            _ => return Err(Errno::EINVAL),
        };
        let block = PfnRange::new(Pfn(self.1 * BLOCK_FRAMES), Pfn((self.1 + 1) * BLOCK_FRAMES));
        let mut parts = self.0.ranges().iter().filter(|range| !range.frames.intersection(block).is_empty());
        match (parts.next(), parts.next()) {
            // Memory that the host plugs in is removed only on the host's request.
            (Some(range), None) if range.presence == Presence::Always => {
                set_block(range.frames.intersection(block), to)
            }
            _ => Err(Errno::EBUSY),
        }
    }
}

pub(super) fn fill(root: &Arc<PseudoDir>, topology: &'static Topology) {
    const { assert!(BLOCK_FRAMES.is_multiple_of(PAGEBLOCK_FRAMES)) };
    let memory = root.dirs("devices/system/memory");
    memory.file("block_size_bytes", |out| {
        writeln!(out, "{BLOCK:x}");
        Ok(())
    });
    memory.constant("auto_online_blocks", "online");
    for block in blocks_of(topology, None) {
        let dir = memory.dirs(format_args!("memory{block}"));
        dir.file("phys_index", move |out| {
            writeln!(out, "{block:08x}");
            Ok(())
        });
        dir.constant("phys_device", "0");
        dir.file("online", move |out| {
            writeln!(out, "{}", u8::from(is_online(topology, block)));
            Ok(())
        });
        dir.generated("state", 0o644, BlockState(topology, block));
        let holds_boot_memory = topology.boot_ranges().any(|range| {
            (range.frames.start.0 / BLOCK_FRAMES..range.frames.end.0.div_ceil(BLOCK_FRAMES)).contains(&block)
        });
        dir.constant("removable", if holds_boot_memory { "0" } else { "1" });
        dir.constant("valid_zones", "Normal");
        for range in topology.ranges() {
            let first = range.frames.start.0 / BLOCK_FRAMES;
            if (first..range.frames.end.0.div_ceil(BLOCK_FRAMES)).contains(&block) {
                let node = range.node.0;
                dir.link(format_args!("node{node}"), format_args!("../../node/node{node}"));
            }
        }
    }
}
