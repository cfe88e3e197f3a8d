//! Firmware's description of memory: nodes, ranges, distances, memory-side caches.
//!
//! Filled from ACPI's SRAT, SLIT and HMAT (ACPI 6.5, sections 5.2.16, 5.2.17, 5.2.28) before the
//! first frame is handed out. Fixed-size, so that it needs no allocator. Invariants, kept by
//! [`Topology::validate`]: ranges are sorted and disjoint, every range's node exists, the distance
//! of a node to itself is 10.

mod emulate;

use crate::{CpuId, MAX_CPUS, NodeId, Pfn, PfnRange};

pub use self::emulate::{Emulation, EmulationError, LEAST_PART};

/// Largest number of nodes.
pub const MAX_NODES: usize = 16;
/// Largest number of separate memory ranges.
pub const MAX_RANGES: usize = 64;
/// Largest number of levels of memory-side cache in front of one node.
pub const MAX_CACHE_LEVELS: usize = 3;

/// SLIT's distance of a node to itself.
pub const LOCAL_DISTANCE: u8 = 10;
/// The distance assumed between two nodes where firmware gives none.
pub const REMOTE_DISTANCE: u8 = 20;

/// When memory is present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// From the start, and for ever.
    Always,
    /// After it has been plugged in, until it is unplugged (virtio-mem).
    Pluggable,
}

/// A run of usable memory of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRange {
    /// The frames.
    pub frames: PfnRange,
    /// Node of the frames.
    pub node: NodeId,
    /// When the frames are present.
    pub presence: Presence,
}

/// How addresses map to lines of a memory-side cache (HMAT cache attributes, bits 8–11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Indexing {
    /// One possible slot per address: slot = physical address mod size.
    Direct,
    /// Complex indexing: conflicts do not follow from the address.
    Complex,
    /// Anything else, or unknown.
    Other,
}

/// Treatment of stores by the cache (HMAT cache attributes, bits 12–15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WritePolicy {
    /// Write-back.
    Back,
    /// Write-through.
    Through,
    /// Anything else, or unknown.
    Other,
}

/// Whether the cache is invisible or a part of the memory (HMAT address mode).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressMode {
    /// The cache has no addresses of its own.
    Transparent,
    /// The node's range covers cache and backing memory, which alias modulo the cache's size.
    ExtendedLinear,
}

/// One memory-side cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NearCache {
    /// Bytes; not always a power of two.
    pub size: u64,
    /// Bytes in a line.
    pub line_size: u16,
    /// Which level, 1 nearest to the memory.
    pub level: u8,
    /// How addresses find their line.
    pub indexing: Indexing,
    /// Treatment of stores.
    pub write_policy: WritePolicy,
    /// Whether the cache's memory is addressable too.
    pub address_mode: AddressMode,
}

/// The machine's memory, nodes and CPUs.
#[derive(Clone, Debug)]
pub struct Topology {
    node_count: usize,
    range_count: usize,
    ranges: [MemoryRange; MAX_RANGES],
    distances: [[u8; MAX_NODES]; MAX_NODES],
    caches: [[Option<NearCache>; MAX_CACHE_LEVELS]; MAX_NODES],
    cpu_nodes: [NodeId; MAX_CPUS],
}

/// Why a description of memory is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopologyError {
    /// More than [`MAX_NODES`] nodes.
    TooManyNodes,
    /// More than [`MAX_RANGES`] ranges.
    TooManyRanges,
    /// More than [`MAX_CACHE_LEVELS`] caches for one node.
    TooManyCaches,
    /// Two ranges share frames.
    Overlap(PfnRange, PfnRange),
    /// A node that does not exist is named.
    NoSuchNode(NodeId),
    /// A CPU beyond [`MAX_CPUS`] is named.
    NoSuchCpu(CpuId),
}

impl Topology {
    /// A machine of `nodes` nodes without memory, all [`REMOTE_DISTANCE`] apart.
    ///
    /// # Errors
    /// [`TopologyError::TooManyNodes`] above [`MAX_NODES`] nodes.
    pub const fn new(nodes: usize) -> Result<Self, TopologyError> {
        if nodes > MAX_NODES {
            return Err(TopologyError::TooManyNodes);
        }
        let frames = PfnRange { start: Pfn(0), end: Pfn(0) };
        let none = MemoryRange { frames, node: NodeId(0), presence: Presence::Always };
        let mut distances = [[REMOTE_DISTANCE; MAX_NODES]; MAX_NODES];
        let mut node = 0;
        while node < MAX_NODES {
            distances[node][node] = LOCAL_DISTANCE;
            node += 1;
        }
        Ok(Self {
            node_count: if nodes == 0 { 1 } else { nodes },
            range_count: 0,
            ranges: [none; MAX_RANGES],
            distances,
            caches: [[None; MAX_CACHE_LEVELS]; MAX_NODES],
            cpu_nodes: [NodeId(0); MAX_CPUS],
        })
    }

    /// Add a run of memory; adjacent runs of one node are joined.
    ///
    /// # Errors
    /// If the node does not exist, the run overlaps another, or there are too many runs.
    pub fn add_range(&mut self, frames: PfnRange, node: NodeId) -> Result<(), TopologyError> {
        self.add(MemoryRange { frames, node, presence: Presence::Always })
    }

    /// Adds a run of frames where memory can be plugged in later.
    ///
    /// # Errors
    /// As [`Topology::add_range`].
    pub fn add_pluggable_range(&mut self, frames: PfnRange, node: NodeId) -> Result<(), TopologyError> {
        self.add(MemoryRange { frames, node, presence: Presence::Pluggable })
    }

    fn add(&mut self, new: MemoryRange) -> Result<(), TopologyError> {
        let MemoryRange { frames, node, presence } = new;
        self.check_node(node)?;
        if frames.is_empty() {
            return Ok(());
        }
        if let Some(other) = self.ranges().iter().find(|r| !r.frames.intersection(frames).is_empty()) {
            return Err(TopologyError::Overlap(other.frames, frames));
        }
        let at = self.ranges().partition_point(|r| r.frames.start < frames.start);
        if at > 0 {
            let below = &mut self.ranges[at - 1];
            if below.node == node && below.presence == presence && below.frames.end == frames.start {
                below.frames.end = frames.end;
                return Ok(());
            }
        }
        if self.range_count == MAX_RANGES {
            return Err(TopologyError::TooManyRanges);
        }
        self.ranges.copy_within(at..self.range_count, at + 1);
        self.ranges[at] = new;
        self.range_count += 1;
        Ok(())
    }

    /// Set the distance from `from` to `to` (SLIT: 10 is local, 255 unreachable).
    ///
    /// # Errors
    /// [`TopologyError::NoSuchNode`].
    pub fn set_distance(&mut self, from: NodeId, to: NodeId, distance: u8) -> Result<(), TopologyError> {
        self.check_node(from)?;
        self.check_node(to)?;
        if from != to {
            self.distances[usize::from(from.0)][usize::from(to.0)] = distance;
        }
        Ok(())
    }

    /// Put `cpu` on `node`.
    ///
    /// # Errors
    /// [`TopologyError::NoSuchNode`], [`TopologyError::NoSuchCpu`].
    pub fn set_cpu_node(&mut self, cpu: CpuId, node: NodeId) -> Result<(), TopologyError> {
        self.check_node(node)?;
        *self.cpu_nodes.get_mut(usize::from(cpu.0)).ok_or(TopologyError::NoSuchCpu(cpu))? = node;
        Ok(())
    }

    /// Put a memory-side cache in front of `node`; kept sorted by level.
    ///
    /// # Errors
    /// [`TopologyError::NoSuchNode`], [`TopologyError::TooManyCaches`].
    pub fn add_near_cache(&mut self, node: NodeId, cache: NearCache) -> Result<(), TopologyError> {
        self.check_node(node)?;
        let caches = &mut self.caches[usize::from(node.0)];
        let free = caches.iter().position(Option::is_none).ok_or(TopologyError::TooManyCaches)?;
        caches[free] = Some(cache);
        caches[..=free].sort_unstable_by_key(|c| c.map(|c| c.level));
        Ok(())
    }

    /// The number of nodes, at least 1.
    pub const fn node_count(&self) -> usize {
        self.node_count
    }
    /// The runs of memory, sorted by address.
    pub fn ranges(&self) -> &[MemoryRange] {
        &self.ranges[..self.range_count]
    }
    /// The distance from `from` to `to`; 255 where either does not exist.
    pub fn distance(&self, from: NodeId, to: NodeId) -> u8 {
        let row = self.distances.get(usize::from(from.0));
        row.and_then(|row| row.get(usize::from(to.0))).copied().unwrap_or(u8::MAX)
    }
    /// The node of `cpu`; node 0 where firmware does not say.
    pub fn node_of_cpu(&self, cpu: CpuId) -> NodeId {
        self.cpu_nodes.get(usize::from(cpu.0)).copied().unwrap_or_default()
    }
    /// The memory-side caches in front of `node`, by level.
    pub fn near_caches(&self, node: NodeId) -> impl Iterator<Item = &NearCache> {
        self.caches.get(usize::from(node.0)).into_iter().flatten().flatten()
    }
    /// The node that `pfn` belongs to.
    pub fn node_of(&self, pfn: Pfn) -> Option<NodeId> {
        let after = self.ranges().partition_point(|r| r.frames.start <= pfn);
        let range = self.ranges().get(after.checked_sub(1)?)?;
        range.frames.contains(pfn).then_some(range.node)
    }
    /// One past the highest frame of memory.
    pub fn end(&self) -> Pfn {
        self.ranges().last().map_or(Pfn(0), |r| r.frames.end)
    }
    /// Total number of frames, including memory that can be plugged in.
    pub fn frames(&self) -> u64 {
        self.ranges().iter().map(|r| r.frames.len()).sum()
    }
    /// The runs of memory that is present from the start.
    pub fn boot_ranges(&self) -> impl Iterator<Item = &MemoryRange> {
        self.ranges().iter().filter(|range| range.presence == Presence::Always)
    }
    /// The runs where memory can be plugged in.
    pub fn pluggable_ranges(&self) -> impl Iterator<Item = &MemoryRange> {
        self.ranges().iter().filter(|range| range.presence == Presence::Pluggable)
    }

    /// Check the invariants in the module's head.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn validate(&self) -> Result<(), TopologyError> {
        for pair in self.ranges().windows(2) {
            if pair[0].frames.end > pair[1].frames.start {
                return Err(TopologyError::Overlap(pair[0].frames, pair[1].frames));
            }
        }
        self.ranges().iter().try_for_each(|r| self.check_node(r.node))
    }

    fn check_node(&self, node: NodeId) -> Result<(), TopologyError> {
        if usize::from(node.0) < self.node_count { Ok(()) } else { Err(TopologyError::NoSuchNode(node)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, end: u64) -> PfnRange {
        PfnRange::new(Pfn(start), Pfn(end))
    }

    #[test]
    fn ranges_are_sorted_joined_and_never_overlap() {
        let mut topology = Topology::new(2).unwrap();
        topology.add_range(run(100, 200), NodeId(1)).unwrap();
        topology.add_range(run(0, 50), NodeId(0)).unwrap();
        topology.add_range(run(50, 100), NodeId(0)).unwrap();
        assert_eq!(topology.ranges().len(), 2);
        assert_eq!(topology.ranges()[0].frames, run(0, 100));
        assert!(matches!(topology.add_range(run(99, 101), NodeId(0)), Err(TopologyError::Overlap(..))));
        assert!(matches!(topology.add_range(run(300, 301), NodeId(2)), Err(TopologyError::NoSuchNode(_))));
        topology.validate().unwrap();
        assert_eq!(topology.node_of(Pfn(99)), Some(NodeId(0)));
        assert_eq!(topology.node_of(Pfn(200)), None);
    }

    #[test]
    fn what_can_be_plugged_in_is_known_apart_from_what_is_there() {
        let mut topology = Topology::new(2).unwrap();
        topology.add_range(run(0, 100), NodeId(0)).unwrap();
        topology.add_pluggable_range(run(100, 300), NodeId(0)).unwrap();
        topology.add_pluggable_range(run(300, 400), NodeId(1)).unwrap();
        assert_eq!(topology.ranges().len(), 3);
        assert_eq!(topology.boot_ranges().map(|range| range.frames.len()).sum::<u64>(), 100);
        assert_eq!(topology.pluggable_ranges().map(|range| range.frames.len()).sum::<u64>(), 300);
        assert_eq!((topology.frames(), topology.end()), (400, Pfn(400)));
        assert_eq!(topology.node_of(Pfn(399)), Some(NodeId(1)));
        assert!(matches!(topology.add_range(run(399, 500), NodeId(1)), Err(TopologyError::Overlap(..))));
    }

    #[test]
    fn caches_are_sorted_by_level_and_bounded() {
        let mut topology = Topology::new(1).unwrap();
        let cache = |level| NearCache {
            size: 1 << 27,
            line_size: 64,
            level,
            indexing: Indexing::Direct,
            write_policy: WritePolicy::Back,
            address_mode: AddressMode::Transparent,
        };
        for level in [3, 1, 2] {
            topology.add_near_cache(NodeId(0), cache(level)).unwrap();
        }
        let levels: [u8; 3] = core::array::from_fn(|i| topology.near_caches(NodeId(0)).nth(i).unwrap().level);
        assert_eq!(levels, [1, 2, 3]);
        assert_eq!(topology.add_near_cache(NodeId(0), cache(4)), Err(TopologyError::TooManyCaches));
    }
}
