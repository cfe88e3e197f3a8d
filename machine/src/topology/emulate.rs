//! Emulated nodes: presents a machine's memory as if it were on more nodes, or on one.
//!
//! As with Linux' `numa=` (mm/numa_emulation.c), parts of a node have its distances to other nodes,
//! and the local distance to each other. Unlike on Linux, a CPU belongs to one part: the CPUs of a
//! node are divided among its parts. Ranges for memory that can be plugged in belong to the node's
//! last part. The node's memory-side cache is reported in front of each part.

use core::fmt;

use super::{MAX_NODES, NodeId, Presence, Topology, TopologyError};
use crate::{CpuId, PAGE_SIZE, PAGEBLOCK_FRAMES, Pfn, PfnRange};

/// The least memory of a part (Linux: `FAKE_NODE_MIN_SIZE`), in bytes.
pub const LEAST_PART: u64 = 32 << 20;

/// Emulated nodes to make of a machine's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Emulation {
    /// One node for all.
    One,
    /// So many in total, distributed in turn among the nodes that have memory.
    Total(usize),
    /// So many parts of each node.
    Each(usize),
    /// The number of equal parts of each node whose size is nearest to so many bytes.
    Size(u64),
}

impl Emulation {
    /// Reads the value of Linux' parameter `numa`: `off`, `fake=N`, `fake=NU` or `fake=SIZE` with M
    /// or G. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "off" {
            return Some(Self::One);
        }
        let value = text.strip_prefix("fake=")?;
        let number = |digits: &str| digits.parse().ok().filter(|number| *number > 0);
        let size = |digits: &str, unit: u64| Some(Self::Size((number(digits)? as u64).checked_mul(unit)?));
        let last = value.chars().next_back()?;
        let digits = value.strip_suffix(last)?;
        match last {
            'U' | 'u' => Some(Self::Each(number(digits)?)),
            'M' | 'm' => size(digits, 1 << 20),
            'G' | 'g' => size(digits, 1 << 30),
            _ => Some(Self::Total(number(value)?)),
        }
    }
}

/// Why a machine's nodes stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EmulationError {
    /// The result would have more than [`MAX_NODES`] nodes.
    TooMany,
    /// Fewer than the nodes that have memory; contains their number.
    TooFew(usize),
    /// A part would have less than [`LEAST_PART`].
    TooSmall,
    /// The parts cannot be described.
    Topology(TopologyError),
}

impl fmt::Display for EmulationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => write!(f, "there can be {MAX_NODES} nodes at most"),
            Self::TooFew(nodes) => write!(f, "the machine has {nodes} nodes with memory already"),
            Self::TooSmall => write!(f, "a node has {} MiB at least", LEAST_PART >> 20),
            Self::Topology(error) => write!(f, "{error:?}"),
        }
    }
}

impl From<TopologyError> for EmulationError {
    fn from(error: TopologyError) -> Self {
        Self::Topology(error)
    }
}

/// The parts that become nodes: for each new node's number, the old node and the index of its part.
struct Parts {
    parts: [(NodeId, usize); MAX_NODES],
    len: usize,
    /// The number of parts of each old node.
    counts: [usize; MAX_NODES],
}

impl Parts {
    fn add(&mut self, node: NodeId) -> Result<(), EmulationError> {
        let count = &mut self.counts[usize::from(node.0)];
        *self.parts.get_mut(self.len).ok_or(EmulationError::TooMany)? = (node, *count);
        (self.len, *count) = (self.len + 1, *count + 1);
        Ok(())
    }
    fn all(&self) -> &[(NodeId, usize)] {
        &self.parts[..self.len]
    }
    /// The new number of a part.
    fn number(&self, node: NodeId, part: usize) -> NodeId {
        let at = self.all().iter().position(|known| *known == (node, part));
        NodeId(at.expect("each part was given a number") as u8)
    }
}

impl Topology {
    /// Returns this machine with other nodes. `cpus` is the number of its CPUs.
    ///
    /// # Errors
    /// See [`EmulationError`].
    pub fn emulate(&self, emulation: Emulation, cpus: usize) -> Result<Self, EmulationError> {
        if emulation == Emulation::One {
            return self.on_one_node();
        }
        let parts = self.plan(emulation)?;
        let mut new = Self::new(parts.len)?;
        for (from, (old_from, _)) in parts.all().iter().enumerate() {
            for (to, (old_to, _)) in parts.all().iter().enumerate() {
                let distance = self.distance(*old_from, *old_to);
                new.set_distance(NodeId(from as u8), NodeId(to as u8), distance)?;
            }
            for cache in self.near_caches(*old_from) {
                new.add_near_cache(NodeId(from as u8), *cache)?;
            }
        }
        for node in self.nodes() {
            self.share_memory(node, &parts, &mut new)?;
            let count = parts.counts[usize::from(node.0)];
            let mine = || (0..cpus).map(|cpu| CpuId(cpu as u16)).filter(|cpu| self.node_of_cpu(*cpu) == node);
            let all = mine().count();
            for (nth, cpu) in mine().enumerate() {
                new.set_cpu_node(cpu, parts.number(node, nth * count / all))?;
            }
        }
        Ok(new)
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.node_count()).map(|node| NodeId(node as u8))
    }

    fn on_one_node(&self) -> Result<Self, EmulationError> {
        let mut new = Self::new(1)?;
        for range in self.ranges() {
            new.add(super::MemoryRange { node: NodeId(0), ..*range })?;
        }
        for cache in self.near_caches(NodeId(0)) {
            new.add_near_cache(NodeId(0), *cache)?;
        }
        Ok(new)
    }

    /// Frames of a node that are present from the start.
    fn frames_of(&self, node: NodeId) -> u64 {
        self.boot_ranges().filter(|range| range.node == node).map(|range| range.frames.len()).sum()
    }

    fn plan(&self, emulation: Emulation) -> Result<Parts, EmulationError> {
        let with_memory = || self.nodes().filter(|node| self.frames_of(*node) > 0);
        let nodes = with_memory().count().max(1);
        // Largest number of parts of a node.
        let wanted = |node: NodeId| match emulation {
            Emulation::One => 1,
            Emulation::Total(total) => total.div_ceil(nodes),
            Emulation::Each(each) => each,
            Emulation::Size(bytes) => {
                // Rounded to the nearest number, so that memory used by the image and firmware does
                // not cost a node.
                let all = (self.frames_of(node) * PAGE_SIZE as u64).saturating_add(bytes / 2);
                (all / bytes).clamp(1, MAX_NODES as u64 + 1) as usize
            }
        };
        let mut parts = Parts { parts: [(NodeId(0), 0); MAX_NODES], len: 0, counts: [0; MAX_NODES] };
        match emulation {
            Emulation::Total(total) if total < nodes => return Err(EmulationError::TooFew(nodes)),
            Emulation::Each(each) => {
                for node in with_memory() {
                    (0..each.min(MAX_NODES + 1)).try_for_each(|_| parts.add(node))?;
                }
            }
            _ => {
                let total = if let Emulation::Total(total) = emulation { total } else { usize::MAX };
                let most = with_memory().map(wanted).max().unwrap_or(1).min(MAX_NODES + 1);
                let in_turn =
                    (0..most).flat_map(|round| with_memory().filter(move |node| round < wanted(*node)));
                in_turn.take(total).try_for_each(|node| parts.add(node))?;
            }
        }
        for node in with_memory() {
            let part = self.frames_of(node) / parts.counts[usize::from(node.0)] as u64;
            if parts.counts[usize::from(node.0)] > 1 && part * (PAGE_SIZE as u64) < LEAST_PART {
                return Err(EmulationError::TooSmall);
            }
        }
        // Nodes that have only CPUs stay.
        self.nodes().filter(|node| self.frames_of(*node) == 0).try_for_each(|node| parts.add(node))?;
        Ok(parts)
    }

    /// Give the parts of `node` their memory: runs of addresses that end at pageblocks.
    fn share_memory(&self, node: NodeId, parts: &Parts, new: &mut Self) -> Result<(), EmulationError> {
        let count = parts.counts[usize::from(node.0)];
        let all = self.frames_of(node);
        let (mut part, mut given) = (0, 0);
        for range in self.ranges().iter().filter(|range| range.node == node) {
            if range.presence == Presence::Pluggable {
                new.add_pluggable_range(range.frames, parts.number(node, count - 1))?;
                continue;
            }
            let mut rest = range.frames;
            while !rest.is_empty() {
                // Computed from the number of all frames, so that rounding errors do not add up.
                let due = all * (part as u64 + 1) / count as u64 - given;
                let is_last = part + 1 == count;
                let end = Pfn((rest.start.0 + due).next_multiple_of(PAGEBLOCK_FRAMES));
                let cut = if is_last { rest.end } else { end.min(rest.end) };
                let piece = PfnRange::new(rest.start, cut);
                new.add_range(piece, parts.number(node, part))?;
                given += piece.len();
                rest.start = cut;
                if piece.len() >= due && !is_last {
                    part += 1;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::super::{LOCAL_DISTANCE, REMOTE_DISTANCE};
    use super::*;

    const MIB: u64 = 256;

    /// Two nodes of 128 and 256 MiB, the second in two runs, with four CPUs.
    fn machine() -> Topology {
        let mut topology = Topology::new(2).unwrap();
        let run = |from: u64, to: u64| PfnRange::new(Pfn(from * MIB), Pfn(to * MIB));
        topology.add_range(PfnRange::new(Pfn(1), Pfn(160)), NodeId(0)).unwrap();
        topology.add_range(run(1, 128), NodeId(0)).unwrap();
        topology.add_range(run(128, 228), NodeId(1)).unwrap();
        topology.add_range(run(1024, 1180), NodeId(1)).unwrap();
        topology.add_pluggable_range(run(2048, 4096), NodeId(1)).unwrap();
        (0..4).for_each(|cpu| topology.set_cpu_node(CpuId(cpu), NodeId((cpu / 2) as u8)).unwrap());
        topology
    }

    fn mib(topology: &Topology) -> Vec<u64> {
        topology.nodes().map(|node| topology.frames_of(node) / MIB).collect()
    }
    fn nodes_of_cpus(topology: &Topology) -> Vec<u8> {
        (0..4).map(|cpu| topology.node_of_cpu(CpuId(cpu)).0).collect()
    }

    #[test]
    fn the_parameter_is_read_as_linux_reads_it() {
        let read = [
            ("off", Some(Emulation::One)),
            ("fake=4", Some(Emulation::Total(4))),
            ("fake=2U", Some(Emulation::Each(2))),
            ("fake=64M", Some(Emulation::Size(64 << 20))),
            ("fake=1G", Some(Emulation::Size(1 << 30))),
        ];
        for (text, expected) in read {
            assert_eq!(Emulation::parse(text), expected, "{text}");
        }
        let bad = [
            "",
            "on",
            "fake",
            "fake=",
            "fake=0",
            "fake=0U",
            "fake=U",
            "fake=x",
            "fake=-1",
            "fake=99999999999G",
        ];
        for text in bad {
            assert_eq!(Emulation::parse(text), None, "{text}");
        }
    }

    #[test]
    fn parts_are_dealt_out_with_memory_cpus_and_distances() {
        let four = machine().emulate(Emulation::Total(4), 4).unwrap();
        assert_eq!(mib(&four), [65, 128, 62, 128]);
        assert_eq!(nodes_of_cpus(&four), [0, 2, 1, 3]);
        let near = |a, b| four.distance(NodeId(a), NodeId(b));
        assert_eq!(
            [near(0, 2), near(0, 0), near(0, 1), near(3, 2)],
            [LOCAL_DISTANCE, 10, REMOTE_DISTANCE, 20]
        );
        assert_eq!(four.pluggable_ranges().map(|range| range.node).collect::<Vec<_>>(), [NodeId(3)]);

        let each = machine().emulate(Emulation::Each(2), 4).unwrap();
        assert_eq!(
            (mib(&each), nodes_of_cpus(&each)),
            (Vec::from([65, 62, 128, 128]), Vec::from([0, 1, 2, 3]))
        );

        let sized = machine().emulate(Emulation::Size(100 << 20), 4).unwrap();
        assert_eq!(
            (mib(&sized), nodes_of_cpus(&sized)),
            (Vec::from([127, 86, 86, 84]), Vec::from([0, 0, 1, 2]))
        );

        let one = machine().emulate(Emulation::One, 4).unwrap();
        assert_eq!((mib(&one), nodes_of_cpus(&one)), (Vec::from([383]), Vec::from([0, 0, 0, 0])));
    }

    #[test]
    fn whatever_is_split_nothing_is_lost_and_borders_are_those_of_pageblocks() {
        let before = machine();
        let sizes = (1..40).map(|size| Emulation::Size((size * 13) << 20));
        for emulation in (0..20).map(Emulation::Total).chain((1..20).map(Emulation::Each)).chain(sizes) {
            let Ok(after) = before.emulate(emulation, 4) else { continue };
            after.validate().unwrap();
            assert_eq!((after.frames(), after.end()), (before.frames(), before.end()), "{emulation:?}");
            assert!(mib(&after).iter().all(|mib| *mib >= 30), "{emulation:?}: {:?}", mib(&after));
            for range in after.boot_ranges() {
                let begins = before.boot_ranges().any(|old| old.frames.start == range.frames.start);
                assert!(begins || range.frames.start.0.is_multiple_of(PAGEBLOCK_FRAMES), "{emulation:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |emulation| machine().emulate(emulation, 4).err();
        assert_eq!(refused(Emulation::Total(1)), Some(EmulationError::TooFew(2)));
        assert_eq!(refused(Emulation::Total(17)), Some(EmulationError::TooMany));
        assert_eq!(refused(Emulation::Each(usize::MAX)), Some(EmulationError::TooMany));
        assert_eq!(refused(Emulation::Size(1)), Some(EmulationError::TooMany));
        assert_eq!(refused(Emulation::Each(5)), Some(EmulationError::TooSmall));
        assert_eq!(refused(Emulation::Total(usize::MAX)), Some(EmulationError::TooMany));
    }
}
