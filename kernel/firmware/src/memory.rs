//! Memory: SRAT, SLIT and HMAT (ACPI 6.5, 5.2.16, 5.2.17 and 5.2.28) into a [`Topology`].
//!
//! Firmware numbers proximity domains with any 32 bits; the kernel numbers nodes densely, in the
//! order of their domains. A domain without memory and CPUs that could be used is no node.

use freehold_machine::topology::{
    AddressMode, Indexing, MAX_NODES, MAX_RANGES, NearCache, TopologyError, WritePolicy,
};
use freehold_machine::{CpuId, MAX_CPUS, NodeId, PAGE_SHIFT, Pfn, PfnRange, Topology};

use crate::bytes::{array, long_entries, short_entries, u8_at, u16_at, u32_at, u64_at};
use crate::performance::{Performance, PerformanceFigure};
use crate::{Platform, Warning};

/// HMAT's mark for "cannot be reached".
const UNREACHABLE: u16 = 0xffff;

/// Some memory and its domain.
#[derive(Clone, Copy, Default, Debug)]
struct DomainRange {
    frames: PfnRange,
    domain: u32,
}

/// A CPU and its domain.
#[derive(Clone, Copy, Default, Debug)]
struct Processor {
    apic_id: u32,
    domain: u32,
}

/// Contents of SRAT. Without one (or with one that names nothing) there is one node and no range.
#[derive(Clone, Debug)]
pub struct Domains {
    /// Proximity domains in ascending order; index = node.
    nodes: List<u32, MAX_NODES>,
    /// By first frame.
    ranges: List<DomainRange, MAX_RANGES>,
    processors: List<Processor, MAX_CPUS>,
}

/// A vector of at most `N`.
#[derive(Clone, Debug)]
struct List<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    fn new() -> Self {
        Self { items: [T::default(); N], len: 0 }
    }
    fn as_slice(&self) -> &[T] {
        &self.items[..self.len]
    }
    /// Inserts before the first item for which `after` holds; `None` if the vector is full.
    fn insert_before(&mut self, item: T, after: impl Fn(&T) -> bool) -> Option<()> {
        let at = self.as_slice().iter().position(after).unwrap_or(self.len);
        let end = self.items.get_mut(..=self.len)?;
        end.copy_within(at..self.len, at + 1);
        end[at] = item;
        self.len += 1;
        Some(())
    }
}

impl Domains {
    /// Read SRAT, if there is one.
    pub fn read(srat: Option<&[u8]>, warn: &mut dyn FnMut(Warning)) -> Self {
        let mut domains = Self { nodes: List::new(), ranges: List::new(), processors: List::new() };
        let Some(table) = srat else { return domains };
        // Revision 1 knew domains of 8 bits and left the other bytes reserved.
        let mask = if u8_at(table, 8).is_some_and(|revision| revision < 2) { 0xff } else { u32::MAX };
        for (kind, entry) in short_entries(table.get(48..).unwrap_or_default()) {
            let understood = match kind {
                0 => domains.add_local_apic(entry, mask, warn),
                1 => domains.add_memory(entry, mask, warn),
                2 => domains.add_x2apic(entry, warn),
                _ => Some(()),
            };
            if understood.is_none() {
                warn(Warning::BadEntry(*b"SRAT", kind.into()));
            }
        }
        domains
    }

    fn add_local_apic(&mut self, entry: &[u8], mask: u32, warn: &mut dyn FnMut(Warning)) -> Option<()> {
        let (low, apic_id, flags) = (u8_at(entry, 2)?, u8_at(entry, 3)?, u32_at(entry, 4)?);
        let [a, b, c] = array(entry, 9)?;
        let domain = u32::from_le_bytes([low, a, b, c]) & mask;
        if flags & 1 != 0 {
            self.add_processor(Processor { apic_id: apic_id.into(), domain }, warn);
        }
        Some(())
    }

    fn add_x2apic(&mut self, entry: &[u8], warn: &mut dyn FnMut(Warning)) -> Option<()> {
        let (domain, apic_id, flags) = (u32_at(entry, 4)?, u32_at(entry, 8)?, u32_at(entry, 12)?);
        if flags & 1 != 0 {
            self.add_processor(Processor { apic_id, domain }, warn);
        }
        Some(())
    }

    fn add_processor(&mut self, processor: Processor, warn: &mut dyn FnMut(Warning)) {
        if self.add_domain(processor.domain, warn).is_some()
            && self.processors.insert_before(processor, |_| false).is_none()
        {
            warn(Warning::TooMany("CPUs in SRAT"));
        }
    }

    fn add_memory(&mut self, entry: &[u8], mask: u32, warn: &mut dyn FnMut(Warning)) -> Option<()> {
        let domain = u32_at(entry, 2)? & mask;
        let (base, length, flags) = (u64_at(entry, 8)?, u64_at(entry, 16)?, u32_at(entry, 28)?);
        let end = base.checked_add(length)?;
        // A frame that two ranges share goes to the upper one.
        let frames = PfnRange::new(Pfn(base >> PAGE_SHIFT), Pfn(end >> PAGE_SHIFT));
        // Bit 0: in use. Bit 2: non-volatile, which is no memory to hand out.
        if flags & 0b101 != 1 || frames.is_empty() {
            return Some(());
        }
        if self.add_domain(domain, warn).is_some() {
            let range = DomainRange { frames, domain };
            let full = self.ranges.insert_before(range, |r| r.frames.start > frames.start).is_none();
            if full {
                warn(Warning::TooMany("memory ranges in SRAT"));
            }
        }
        Some(())
    }

    fn add_domain(&mut self, domain: u32, warn: &mut dyn FnMut(Warning)) -> Option<()> {
        if self.nodes.as_slice().contains(&domain) {
            return Some(());
        }
        let added = self.nodes.insert_before(domain, |&other| other > domain);
        if added.is_none() {
            warn(Warning::TooMany("proximity domains"));
        }
        added
    }

    /// The node of a proximity domain; `None` where SRAT does not use it.
    fn node_of(&self, domain: u32) -> Option<NodeId> {
        let index = self.nodes.as_slice().iter().position(|&other| other == domain)?;
        u8::try_from(index).ok().map(NodeId)
    }

    /// The node of memory that a device plugs in: by the proximity domain that the device names, if
    /// SRAT uses it; else by the range that SRAT keeps for such memory; else node 0.
    pub fn node_of_plugged(&self, domain: Option<u32>, frames: PfnRange) -> NodeId {
        let by_range = || {
            let range = self.ranges.as_slice().iter().find(|range| range.frames.contains(frames.start))?;
            self.node_of(range.domain)
        };
        domain.and_then(|domain| self.node_of(domain)).or_else(by_range).unwrap_or_default()
    }

    /// Nodes and their memory: `usable` cut at the borders of SRAT's ranges.
    pub fn topology(
        &self,
        usable: impl IntoIterator<Item = PfnRange>,
        warn: &mut dyn FnMut(Warning),
    ) -> Topology {
        let mut topology = Topology::new(self.nodes.len).expect("the list of nodes holds MAX_NODES at most");
        let mut homeless = 0;
        for run in usable {
            let mut rest = run;
            while !rest.is_empty() {
                let (piece, node) = self.first_piece(rest);
                if node.is_none() && self.ranges.len > 0 {
                    homeless += piece.len();
                }
                match topology.add_range(piece, node.unwrap_or_default()) {
                    Ok(()) => {}
                    Err(TopologyError::TooManyRanges) => warn(Warning::TooMany("memory ranges")),
                    Err(_) => warn(Warning::BadEntry(*b"e820", 1)),
                }
                rest.start = piece.end;
            }
        }
        if homeless > 0 {
            warn(Warning::Homeless(homeless));
        }
        topology
    }

    /// Returns the longest start of `run` that belongs to one node, or to none. It is empty only if
    /// `run` is.
    fn first_piece(&self, run: PfnRange) -> (PfnRange, Option<NodeId>) {
        let ranges = self.ranges.as_slice();
        if let Some(range) = ranges.iter().find(|r| r.frames.contains(run.start)) {
            return (run.intersection(range.frames), self.node_of(range.domain));
        }
        let next = ranges.iter().find(|r| r.frames.start > run.start).map_or(run.end, |r| r.frames.start);
        (PfnRange::new(run.start, run.end.min(next)), None)
    }

    /// Tell the topology where the platform's CPUs are.
    pub fn place_cpus(&self, platform: &Platform, topology: &mut Topology) {
        for (cpu, number) in platform.cpus().iter().zip(0u16..) {
            let known = self.processors.as_slice().iter().find(|p| p.apic_id == cpu.apic_id);
            if let Some(node) = known.and_then(|p| self.node_of(p.domain)) {
                topology.set_cpu_node(CpuId(number), node).expect("node and CPU come from bounded lists");
            }
        }
    }

    /// Set the distances. `false` where SLIT contradicts itself: a domain that is not 10 from
    /// itself, or another domain at 10 or less; then no distance is set.
    pub fn read_slit(&self, table: &[u8], topology: &mut Topology) -> bool {
        let matrix = || {
            let domains = usize::try_from(u64_at(table, 36)?).ok()?;
            Some((domains, table.get(44..44usize.checked_add(domains.checked_mul(domains)?)?)?))
        };
        let Some((domains, matrix)) = matrix() else { return false };
        let sound = matrix
            .iter()
            .enumerate()
            .all(|(i, &d)| if i / domains == i % domains { d == 10 } else { d > 10 });
        if !sound {
            return false;
        }
        let nodes = self.nodes.as_slice();
        for (&from_domain, from) in nodes.iter().zip(0u8..) {
            for (&to_domain, to) in nodes.iter().zip(0u8..) {
                let place = (from_domain as usize)
                    .checked_mul(domains)
                    .and_then(|row| row.checked_add(to_domain as usize))
                    .filter(|_| (to_domain as usize) < domains);
                if let Some(&distance) = place.and_then(|place| matrix.get(place)) {
                    topology
                        .set_distance(NodeId(from), NodeId(to), distance)
                        .expect("the topology has the nodes of the list");
                }
            }
        }
        true
    }

    /// Add memory-side caches, latencies and bandwidths.
    pub fn read_hmat(
        &self,
        table: &[u8],
        topology: &mut Topology,
        performance: &mut Performance,
        warn: &mut dyn FnMut(Warning),
    ) {
        let revision = u8_at(table, 8).unwrap_or_default();
        for (kind, entry) in long_entries(table.get(40..).unwrap_or_default()) {
            let understood = match kind {
                1 => self.read_matrix(entry, revision, performance),
                2 => self.read_cache(entry, topology),
                _ => Some(()),
            };
            if understood.is_none() {
                warn(Warning::BadEntry(*b"HMAT", kind));
            }
        }
    }

    /// A memory-side cache structure (type 2). `None` where it makes no sense.
    fn read_cache(&self, entry: &[u8], topology: &mut Topology) -> Option<()> {
        let (domain, size, attributes) = (u32_at(entry, 8)?, u64_at(entry, 16)?, u32_at(entry, 24)?);
        let address_mode = match u16_at(entry, 28)? {
            1 => AddressMode::ExtendedLinear,
            _ => AddressMode::Transparent,
        };
        let level = (attributes >> 4 & 0xf) as u8;
        let line_size = (attributes >> 16) as u16;
        if level == 0 || size == 0 {
            return Some(());
        }
        // A cache whose lines do not fill it, or an extended-linear one that is not direct-mapped,
        // is none.
        let indexing = match attributes >> 8 & 0xf {
            1 => Indexing::Direct,
            2 => Indexing::Complex,
            _ => Indexing::Other,
        };
        if line_size == 0 || size % u64::from(line_size) != 0 {
            return None;
        }
        if address_mode == AddressMode::ExtendedLinear && indexing != Indexing::Direct {
            return None;
        }
        let write_policy = match attributes >> 12 & 0xf {
            1 => WritePolicy::Back,
            2 => WritePolicy::Through,
            _ => WritePolicy::Other,
        };
        let cache = NearCache { size, line_size, level, indexing, write_policy, address_mode };
        topology.add_near_cache(self.node_of_memory(domain)?, cache).ok()
    }

    /// Without SRAT there is one node, and HMAT may still speak of domain 0.
    fn node_of_memory(&self, domain: u32) -> Option<NodeId> {
        if self.nodes.len == 0 && domain == 0 { Some(NodeId(0)) } else { self.node_of(domain) }
    }

    /// A latency or bandwidth structure (type 1). `None` where it makes no sense.
    fn read_matrix(&self, entry: &[u8], revision: u8, performance: &mut Performance) -> Option<()> {
        let (flags, figure) = (u8_at(entry, 8)?, PerformanceFigure::from_code(u8_at(entry, 9)?)?);
        let (initiators, targets) = (u32_at(entry, 12)? as usize, u32_at(entry, 16)? as usize);
        let unit = u64_at(entry, 24)?;
        let target_list = 32usize.checked_add(initiators.checked_mul(4)?)?;
        let matrix = target_list.checked_add(targets.checked_mul(4)?)?;
        let end = initiators.checked_mul(targets)?.checked_mul(2)?.checked_add(matrix)?;
        if end > entry.len() {
            return None;
        }
        // Low four bits 0: the memory itself, not one of the caches in front of it.
        if flags & 0xf != 0 {
            return Some(());
        }
        // Revision 1 counted latency in units of 100 ps, later ones in picoseconds.
        let scale = if matches!(figure, PerformanceFigure::Latency(_)) && revision < 2 { 100 } else { 1 };
        let figures = performance.begin(figure, unit.saturating_mul(scale));
        for i in 0..initiators {
            let Some(from) = self.node_of_memory(u32_at(entry, 32 + i * 4)?) else { continue };
            for t in 0..targets {
                let Some(to) = self.node_of_memory(u32_at(entry, target_list + t * 4)?) else { continue };
                let value = u16_at(entry, matrix + (i * targets + t) * 2)?;
                if value != 0 && value != UNREACHABLE {
                    figures.clone().for_each(|figure| performance.set(from, to, figure, value));
                }
            }
        }
        Some(())
    }
}
