//! NUMA nodes, their distances and their memory-side caches, in the user's form and in QEMU's form.

use std::collections::{BTreeMap, BTreeSet};

use super::{CommandLine, Watcher};
use crate::Result;
use crate::args::RunOptions;
use crate::failure::Failure;
use crate::size::{self, MIB, show_size};

/// Default distance between two nodes (ACPI: 10 is local).
const DEFAULT_DISTANCE: u8 = 20;
const LOCAL_DISTANCE: u8 = 10;
/// Granularity of nodes: pageblocks, the unit in which memory is plugged in and out.
const GRAIN: u64 = 2 * MIB;
/// Memory devices are in slots 2 and 3, up to eight each.
const FIRST_GROWTH_SLOT: usize = 2;

/// One node.
#[derive(Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Bytes that the node has at boot; 0 if it gets memory only later.
    pub memory: u64,
    /// Bytes that can be plugged in later.
    pub growth: u64,
    /// Its CPUs; none for a node of memory only.
    pub cpus: BTreeSet<u32>,
}

/// All nodes. One node without a near cache is a machine without NUMA tables.
#[derive(Debug)]
pub struct Topology {
    nodes: Vec<NumaNode>,
    distances: BTreeMap<(usize, usize), u8>,
    /// Each node's memory-side cache.
    pub near_cache: Option<NearCache>,
}

/// A direct-mapped memory-side cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NearCache {
    /// Bytes.
    pub size: u64,
    /// Bytes in a line.
    pub line: u16,
}

impl NearCache {
    fn parse(text: &str) -> Result<NearCache> {
        let (size, line) = match text.split_once(',') {
            Some((size, part)) => {
                let line = part.strip_prefix("line=").ok_or_else(|| {
                    Failure::new(format!("--near-cache {text}: {part} means nothing here"), "64M,line=64")
                })?;
                (size, line.parse().ok().filter(|line: &u16| line.is_power_of_two()))
            }
            None => (text, Some(64)),
        };
        let size = size::parse_size("--near-cache", size)?;
        match line {
            Some(line) if size.is_multiple_of(u64::from(line)) => Ok(NearCache { size, line }),
            _ => Err(Failure::new(
                format!("--near-cache {text}: its lines do not divide it into powers of two of bytes"),
                "64M,line=64",
            )),
        }
    }
}

/// The host memory that holds the guest's memory.
#[derive(Debug, Clone, Copy)]
pub enum Backing<'a> {
    /// QEMU's own memory.
    Anonymous,
    /// Memory that QEMU shares with the processes that serve its disks.
    Shared,
    /// A file for each node, in order, which other processes may read.
    Files(&'a [String]),
}

impl Topology {
    /// Checks `--numa`, `--node`, `--distance` and `--near-cache` against each other.
    pub fn from_options(options: &RunOptions, memory: u64, cpus: u32) -> Result<Topology> {
        let mut nodes = if !options.node.is_empty() {
            described(&options.node, cpus)?
        } else {
            even(options.numa.as_deref().unwrap_or("1"), memory, cpus)?
        };
        if let Some(text) = &options.memory_max {
            share_growth(&mut nodes, text)?;
        }
        let distances = distances(&options.distance, nodes.len())?;
        let near_cache = match &options.near_cache {
            Some(text) => Some(NearCache::parse(text)?),
            None => None,
        };
        if let Some(NearCache { size: cache, .. }) = near_cache
            && let Some(node) = nodes.iter().find(|node| node.memory + node.growth < cache)
        {
            let size = show_size(node.memory + node.growth);
            return Err(Failure::new(
                format!("--near-cache {} is more than a node's {size}", show_size(cache)),
                "a memory-side cache holds a part of its node",
            ));
        }
        Ok(Topology { nodes, distances, near_cache })
    }

    /// Makes one node with CPU 0.
    pub fn one(memory: u64) -> Topology {
        Topology {
            nodes: vec![NumaNode { memory, growth: 0, cpus: BTreeSet::from([0]) }],
            distances: BTreeMap::new(),
            near_cache: None,
        }
    }

    /// Returns the bytes of all nodes.
    pub fn memory(&self) -> u64 {
        self.nodes.iter().map(|node| node.memory).sum()
    }

    /// Returns the nodes and the bytes that can be plugged in there, by memory device.
    pub fn growth(&self) -> impl Iterator<Item = (usize, u64)> {
        let growth = self.nodes.iter().map(|node| node.growth).enumerate();
        growth.filter(|&(_, bytes)| bytes > 0)
    }

    /// Adds the memory devices to QEMU's arguments, in the order of their slots. The guest numbers
    /// the devices in this order. `watcher` reads their memory.
    pub fn growth_arguments(&self, line: &mut CommandLine, watcher: Option<&Watcher>, backing: Backing<'_>) {
        for (number, (node, growth)) in self.growth().enumerate() {
            let size = show_size(growth);
            // The host reserves none of this memory before it is plugged in.
            let (backend, place) = match watcher {
                None => {
                    let kind = if matches!(backing, Backing::Shared) { "memfd,share=on" } else { "ram" };
                    let backend = format!("memory-backend-{kind},id=growth{number},size={size},reserve=off");
                    (backend, String::new())
                }
                Some(watcher) => {
                    let path = watcher.memory.get(self.nodes.len() + number).map_or("", String::as_str);
                    let start = watcher.growth_starts.get(number).copied().unwrap_or(0);
                    let file = format!("mem-path={path},share=on");
                    (
                        format!("memory-backend-file,id=growth{number},size={size},reserve=off,{file}"),
                        format!("memaddr={start:#x},"),
                    )
                }
            };
            line.option("-object", backend);
            let (slot, function) = (FIRST_GROWTH_SLOT + number / 8, number % 8);
            line.option(
                "-device",
                format!(
                    "virtio-mem-pci,id={},memdev=growth{number},{place}node={node},block-size=2M,requested-size=0,\
                     addr={slot:#x}.{function},multifunction=on,disable-legacy=on",
                    growth_device(number)
                ),
            );
        }
    }

    fn distance(&self, from: usize, to: usize) -> u8 {
        if from == to {
            return LOCAL_DISTANCE;
        }
        let given = self.distances.get(&(from, to)).or(self.distances.get(&(to, from)));
        given.copied().unwrap_or(DEFAULT_DISTANCE)
    }

    /// Returns the bytes of each node.
    pub fn sizes(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| node.memory).collect()
    }

    /// Returns the node of each of `cpus` CPUs.
    pub fn nodes_of_cpus(&self, cpus: u32) -> Vec<usize> {
        let of = |cpu| self.nodes.iter().position(|node| node.cpus.contains(&cpu)).unwrap_or(0);
        (0..cpus).map(of).collect()
    }

    /// Returns whether the machine has no NUMA tables.
    pub fn is_plain(&self) -> bool {
        self.nodes.len() == 1 && self.near_cache.is_none()
    }

    /// Adds the topology to QEMU's arguments; nothing for a plain machine with anonymous memory.
    pub fn arguments(&self, line: &mut CommandLine, backing: Backing<'_>) {
        if self.is_plain() && matches!(backing, Backing::Anonymous) {
            return;
        }
        // A node without CPUs is reached from the first node with CPUs.
        let first = self.nodes.iter().position(|node| !node.cpus.is_empty()).unwrap_or(0);
        for (number, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.memory > 0) {
            let size = show_size(node.memory);
            let value = match backing {
                Backing::Anonymous => format!("memory-backend-ram,size={size},id=m{number}"),
                Backing::Shared => format!("memory-backend-memfd,size={size},id=m{number},share=on"),
                Backing::Files(paths) => {
                    let path = paths.get(number).map_or("", String::as_str);
                    format!("memory-backend-file,size={size},id=m{number},mem-path={path},share=on")
                }
            };
            line.option("-object", value);
        }
        if self.is_plain() {
            return;
        }
        for (number, node) in self.nodes.iter().enumerate() {
            let initiator = match self.near_cache {
                Some(_) if node.cpus.is_empty() => format!(",initiator={first}"),
                Some(_) => format!(",initiator={number}"),
                None => String::new(),
            };
            let memory = if node.memory > 0 { format!(",memdev=m{number}") } else { String::new() };
            line.option("-numa", format!("node,nodeid={number}{memory}{initiator}"));
        }
        for (number, node) in self.nodes.iter().enumerate() {
            for cpu in &node.cpus {
                line.option("-numa", format!("cpu,node-id={number},socket-id={cpu}"));
            }
        }
        self.distance_arguments(line);
        if let Some(cache) = self.near_cache {
            self.cache_arguments(line, cache);
        }
    }

    fn distance_arguments(&self, line: &mut CommandLine) {
        if self.distances.is_empty() {
            return;
        }
        let count = self.nodes.len();
        for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
            if from != to {
                let value = self.distance(from, to);
                line.option("-numa", format!("dist,src={from},dst={to},val={value}"));
            }
        }
    }

    /// Adds HMAT: latencies in proportion to the distances. Both kinds of figure must precede the
    /// caches.
    fn cache_arguments(&self, line: &mut CommandLine, cache: NearCache) {
        for (from, node) in self.nodes.iter().enumerate() {
            if node.cpus.is_empty() {
                continue;
            }
            for to in 0..self.nodes.len() {
                let distance = u32::from(self.distance(from, to));
                let common = format!("hmat-lb,initiator={from},target={to},hierarchy=memory");
                line.option("-numa", format!("{common},data-type=access-latency,latency={}", 10 * distance));
                line.option(
                    "-numa",
                    format!("{common},data-type=access-bandwidth,bandwidth={}G", 1000 / distance),
                );
            }
        }
        let size = show_size(cache.size);
        let bytes = cache.line;
        for number in 0..self.nodes.len() {
            line.option(
                "-numa",
                format!("hmat-cache,node-id={number},size={size},level=1,associativity=direct,policy=write-back,line={bytes}"),
            );
        }
    }
}

fn even(text: &str, memory: u64, cpus: u32) -> Result<Vec<NumaNode>> {
    let count: u32 = text
        .parse()
        .ok()
        .filter(|n| (1..=16).contains(n))
        .ok_or_else(|| Failure::new(format!("--numa {text}: not a number of nodes"), "1 to 16"))?;
    let share = memory / u64::from(count) / GRAIN * GRAIN;
    if share == 0 && count > 1 {
        return Err(Failure::new(
            format!("{} is too little memory for {count} nodes", show_size(memory)),
            "give more with -m",
        ));
    }
    let mut nodes: Vec<NumaNode> = (0..count)
        .map(|number| NumaNode {
            memory: share,
            growth: 0,
            // Neighbouring CPUs share a node.
            cpus: (0..cpus).filter(|cpu| cpu * count / cpus == number).collect(),
        })
        .collect();
    nodes[0].memory += memory - share * u64::from(count);
    Ok(nodes)
}

/// Splits the pluggable memory, up to `text` in all, evenly over the nodes.
fn share_growth(nodes: &mut [NumaNode], text: &str) -> Result<()> {
    let most = size::parse_size("--memory-max", text)?;
    let now: u64 = nodes.iter().map(|node| node.memory).sum();
    if nodes.iter().any(|node| node.growth > 0) {
        return Err(Failure::new(
            "--memory-max and max= in --node say the same thing twice",
            "use one of them",
        ));
    }
    let Some(growth) = most.checked_sub(now) else {
        return Err(Failure::new(
            format!("--memory-max {} is less than the {} at the start", show_size(most), show_size(now)),
            "it is what the VM can grow to; -m is what it starts with",
        ));
    };
    if !growth.is_multiple_of(GRAIN) {
        return Err(Failure::new(
            format!("--memory-max {}: memory comes in steps of {}", show_size(most), show_size(GRAIN)),
            format!("--memory-max {}", show_size(now + growth / GRAIN * GRAIN)),
        ));
    }
    let count = nodes.len() as u64;
    let share = growth / count / GRAIN * GRAIN;
    nodes.iter_mut().for_each(|node| node.growth = share);
    nodes[0].growth += growth - share * count;
    Ok(())
}

/// Returns QEMU's name of memory device `number`.
pub fn growth_device(number: usize) -> String {
    format!("vmem{number}")
}

/// Parses the node that a `--node` describes.
fn one_described(spec: &str, cpus: u32) -> Result<NumaNode> {
    let mut node = NumaNode { memory: 0, growth: 0, cpus: BTreeSet::new() };
    let mut most = None;
    let mut seen = BTreeSet::new();
    // A CPU list may have commas: a part without `=` continues the list before it.
    let mut list = String::new();
    for part in spec.split(',') {
        let named = part.split_once('=');
        if let Some((name, _)) = named
            && !seen.insert(name)
        {
            let message = format!("--node {spec}: {name} is given twice");
            return Err(Failure::new(message, "a node of its own has a --node of its own"));
        }
        match named {
            Some(("mem", value)) => node.memory = size::parse_size("--node mem=", value)?,
            Some(("max", value)) => most = Some(size::parse_size("--node max=", value)?),
            Some(("cpus", value)) => list = value.to_owned(),
            None if !list.is_empty() => list = format!("{list},{part}"),
            _ => {
                return Err(Failure::new(
                    format!("--node {spec}: {part} means nothing here"),
                    "mem=256M,cpus=0-1",
                ));
            }
        }
    }
    node.cpus = size::parse_cpus(&list, cpus)?;
    node.growth = match most {
        Some(most) => most.checked_sub(node.memory).ok_or_else(|| {
            Failure::new(format!("--node {spec}: max is less than mem"), "max is what the node can grow to")
        })?,
        None => 0,
    };
    if node.memory + node.growth == 0 && node.cpus.is_empty() {
        return Err(Failure::new(
            format!("--node {spec}: it has neither memory nor CPUs"),
            "mem=256M,cpus=0-1",
        ));
    }
    if !node.memory.is_multiple_of(GRAIN) || !node.growth.is_multiple_of(GRAIN) {
        return Err(Failure::new(
            format!("--node {spec}: memory is not a multiple of {}", show_size(GRAIN)),
            "",
        ));
    }
    Ok(node)
}

fn described(specs: &[String], cpus: u32) -> Result<Vec<NumaNode>> {
    let mut nodes = Vec::new();
    let mut taken = BTreeSet::new();
    for spec in specs {
        let node = one_described(spec, cpus)?;
        if let Some(cpu) = node.cpus.iter().find(|&&cpu| !taken.insert(cpu)) {
            return Err(Failure::new(format!("--node {spec}: CPU {cpu} is in two nodes"), ""));
        }
        nodes.push(node);
    }
    if nodes.iter().all(|node| node.cpus.is_empty()) {
        nodes[0].cpus = (0..cpus).collect();
        return Ok(nodes);
    }
    if nodes.iter().all(|node| node.memory + node.growth == 0) {
        return Err(Failure::new("no --node has memory", "mem=256M,cpus=0-1"));
    }
    match (0..cpus).find(|cpu| !taken.contains(cpu)) {
        Some(cpu) => {
            Err(Failure::new(format!("CPU {cpu} is in no --node"), "name every CPU once with cpus="))
        }
        None => Ok(nodes),
    }
}

fn distances(specs: &[String], count: usize) -> Result<BTreeMap<(usize, usize), u8>> {
    let mut distances = BTreeMap::new();
    for spec in specs {
        let numbers: Vec<usize> = spec.split(',').filter_map(|part| part.trim().parse().ok()).collect();
        match numbers[..] {
            [from, to, value] if from < count && to < count && from != to && (10..=254).contains(&value) => {
                distances.insert((from, to), value as u8);
            }
            _ => {
                return Err(Failure::new(
                    format!("--distance {spec}: not two of the {count} nodes and a distance"),
                    "A,B,D, for example 0,1,21; D is 10 to 254",
                ));
            }
        }
    }
    Ok(distances)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_split_gives_every_byte_and_every_cpu_to_one_node() {
        for (count, memory, cpus) in
            [("1", 33 * MIB, 1), ("2", 257 * MIB, 3), ("4", 512 * MIB, 2), ("3", 64 * MIB, 16)]
        {
            let nodes = even(count, memory, cpus).expect("a split");
            assert_eq!(nodes.iter().map(|node| node.memory).sum::<u64>(), memory);
            let all: Vec<u32> = nodes.iter().flat_map(|node| node.cpus.iter().copied()).collect();
            assert_eq!(all, (0..cpus).collect::<Vec<_>>());
        }
    }

    #[test]
    fn described_nodes_name_every_cpu_once() {
        let specs = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let nodes =
            described(&specs(&["mem=64M,cpus=0,2", "cpus=1,3,mem=32M", "mem=32M"]), 4).expect("nodes");
        assert_eq!(nodes[0].cpus, BTreeSet::from([0, 2]));
        assert!(nodes[2].cpus.is_empty());
        assert!(described(&specs(&["mem=64M,cpus=0", "mem=64M,cpus=0"]), 1).is_err());
        assert!(described(&specs(&["mem=64M,cpus=0"]), 2).is_err());
        let nodes = described(&specs(&["mem=64M,cpus=0", "cpus=1"]), 2).expect("CPUs without memory");
        assert_eq!((nodes[1].memory, nodes[1].cpus.len()), (0, 1));
        assert!(described(&specs(&["mem=64M,cpus=0", "mem=0"]), 1).is_err());
        assert!(described(&specs(&["cpus=0"]), 1).is_err());
        let nodes = described(&specs(&["mem=64M,max=128M,cpus=0", "max=32M"]), 1).expect("nodes that grow");
        assert_eq!(
            nodes.iter().map(|node| (node.memory, node.growth)).collect::<Vec<_>>(),
            [(64 * MIB, 64 * MIB), (0, 32 * MIB)]
        );
        assert!(described(&specs(&["mem=64M,max=32M"]), 1).is_err());
        assert!(described(&specs(&["mem=64M,colour=red"]), 1).is_err());
    }

    #[test]
    fn growth_is_shared_to_the_last_step_and_never_negative() {
        for (count, memory, most) in
            [("1", 128, "1G"), ("3", 96, "1000M"), ("2", 64, "66M"), ("2", 64, "64M")]
        {
            let mut nodes = even(count, memory * MIB, 4).expect("a split");
            share_growth(&mut nodes, most).expect("growth");
            let all: u64 = nodes.iter().map(|node| node.memory + node.growth).sum();
            assert_eq!(all, size::parse_size("", most).expect("a size"));
            assert!(nodes.iter().all(|node| node.growth.is_multiple_of(GRAIN)));
        }
        for wrong in ["32M", "65M", "lots"] {
            assert!(share_growth(&mut even("1", 64 * MIB, 1).expect("a split"), wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn distances_are_between_two_nodes_that_exist() {
        assert!(distances(&["0,1,21".into()], 2).is_ok());
        for bad in ["0,2,21", "0,0,21", "0,1,5", "0,1", "a,b,c"] {
            assert!(distances(&[bad.into()], 2).is_err(), "{bad}");
        }
    }
}
