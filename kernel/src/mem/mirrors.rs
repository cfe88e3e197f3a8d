//! Copies of files' pages on the nodes that execute them: the machines that make them, their
//! limit, and the switch. How they are made and fall is described in `mm/vm/src/cache/mirrors.rs`.

use freehold_collections::Arc;
use freehold_machine::topology::MAX_NODES;
use freehold_machine::{CpuId, Cpus as _, NodeId, Topology};
use freehold_vm::{Backing, MappedFile, MirrorText, SharedWrite};

use super::{Frames, commons, frames, turn_key};
use crate::hw::Hardware;
use crate::hw::static_keys::{KeyState, StaticKey};
use crate::{Errno, Result};

/// Allows mirrors on a machine that runs the first `cpus` CPUs, if more than one node has CPUs and
/// memory. Once, before a program runs: until then files are changed without a look at mirrors.
pub fn init(topology: &Topology, cpus: usize) {
    let mut with_memory = [false; MAX_NODES];
    topology.boot_ranges().for_each(|range| with_memory[usize::from(range.node.0)] = true);
    let runs = |node: NodeId| (0..cpus).any(|cpu| topology.node_of_cpu(CpuId(cpu as u16)) == node);
    let nodes = (0..topology.node_count() as u8).map(NodeId);
    if nodes.filter(|&node| with_memory[usize::from(node.0)] && runs(node)).count() < 2 {
        return;
    }
    commons().limit_mirrors(|node| frames().level(node).map_or(0, |(free, _)| free));
    if let Err(error) = turn_key(StaticKey::TEXT_MIRRORS, KeyState::On) {
        log::warn!("text_mirrors: {error:?}, no node gets a copy of programs' text");
    }
}

/// Returns whether mirrors are made: vm.numa_mirror_text.
pub fn is_on() -> bool {
    Hardware.mirrors_text() && commons().mirror_text() == MirrorText::On
}

/// Sets whether mirrors are made. When this returns after 0, there is none.
///
/// # Errors
/// `EINVAL` for a number other than 0 and 1, and for 1 on a machine that makes none.
pub fn set(value: u64) -> Result<()> {
    let to = match value {
        0 => MirrorText::Off,
        1 if Hardware.mirrors_text() => MirrorText::On,
        _ => return Err(Errno::EINVAL),
    };
    commons().set_mirror_text(to);
    Ok(())
}

/// Returns the file that a mapping of `backing` may change, if it may have mirrors. They fall
/// before the mapping is made ([`freehold_vm::PageCache::expect_stores`]).
pub(super) fn file_to_change(backing: &Backing<Frames>) -> Option<Arc<dyn MappedFile<Frames>>> {
    let Backing::SharedFile(view, SharedWrite::Allowed) = backing else { return None };
    Hardware.mirrors_text().then(|| view.file.clone())
}
