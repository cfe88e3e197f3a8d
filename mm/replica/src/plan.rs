//! The choice of nodes that get a replica, and of the replica that other nodes use.

use freehold_frame::NodeSet;
use freehold_machine::topology::MAX_NODES;
use freehold_machine::{CpuId, NodeId, Topology};

/// `numa_replica=`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Setting {
    /// As [`Setting::On`] if more than one node has CPUs; else as [`Setting::Off`].
    #[default]
    Auto,
    /// Replicas on every node with CPUs and memory, except the image's.
    On,
    /// No replicas.
    Off,
    /// As [`Setting::On`], on so many nodes at most: those with the lowest numbers.
    AtMost(usize),
}

impl Setting {
    /// Reads `auto`, `on`, `off` or a number; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "on" => Some(Self::On),
            "off" => Some(Self::Off),
            number => number.parse().ok().map(Self::AtMost),
        }
    }
}

/// Returns the nodes that get a replica, now or when memory is plugged in. The machine runs the
/// first `cpus` CPUs; the image lies on the node `image`.
pub fn plan(topology: &Topology, cpus: usize, image: NodeId, setting: Setting) -> NodeSet {
    let with_cpus = (0..cpus).fold(0, |set, cpu| set | bit(topology.node_of_cpu(CpuId(cpu as u16))));
    let with_memory = topology.ranges().iter().fold(0, |set, range| set | bit(range.node));
    let most = match setting {
        Setting::Off => 0,
        Setting::Auto if with_cpus.count_ones() < 2 => 0,
        Setting::Auto | Setting::On => MAX_NODES,
        Setting::AtMost(most) => most,
    };
    let wanted = with_cpus & with_memory & !bit(image);
    if wanted == 0 {
        return NodeSet(0);
    }
    NodeSet(nodes(wanted).take(most).fold(0, |set, node| set | bit(node)))
}

/// Returns the member of `places` that is nearest to `node`: `node` itself if it is a member, else
/// the lowest number among those at the least distance. `image` if `places` is empty.
pub fn nearest(topology: &Topology, node: NodeId, places: NodeSet, image: NodeId) -> NodeId {
    if places.0 & bit(node) != 0 {
        return node;
    }
    nodes(places.0).min_by_key(|&place| topology.distance(node, place)).unwrap_or(image)
}

const fn bit(node: NodeId) -> u16 {
    1 << node.0
}

/// The members of a set, upwards.
pub(crate) fn nodes(set: u16) -> impl Iterator<Item = NodeId> {
    (0..MAX_NODES as u8).filter(move |node| set >> node & 1 != 0).map(NodeId)
}
