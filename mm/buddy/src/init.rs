//! Sets the allocator up: lays out its own memory and marks reserved frames, nothing else.
//!
//! The cost does not grow with memory. Zeroed metadata already means that every pageblock is free
//! on the user's side. A free set that starts full computes its members, and a pageblock gets its
//! frames' records when it is first handed out. So there is no pass over memory to defer, on this
//! CPU or others. The cost is proportional to the reserved frames, and to the pageblocks that are
//! split by them and by the edges of memory.

use core::sync::atomic::{AtomicBool, AtomicU64};

use freehold_frame::{FrameState, FrameTable, Order, Owner};
use freehold_machine::topology::{MAX_NODES, Presence};
use freehold_machine::{
    CpuId, MAX_CPUS, Machine, NodeId, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, PfnRange, PhysicalBytes,
    Topology,
};

use crate::arena::ARENA_WORDS;
use crate::block::{BITMAP_WORDS, BLOCK_WORDS, BlockId, BlockState, Blocks, Fill};
use crate::buddy::{Buddy, Bytes, NONE};
use crate::options::{Check, Options, Wipe};
use crate::pcp::{Hits, Pcp, Plan};
use crate::place::Bins;
use crate::runs::BlockRuns;
use crate::shape::{Draws, MOST_SINGLES, Shapes};
use crate::word::Plain;
use crate::zone::{Parts, ZONE_WORDS, Zone};

/// Largest number of runs of whole free pageblocks of a node; further pageblocks are added one by
/// one.
const RUNS: usize = 64;
/// Words in two cache lines, which many CPUs fetch together.
const LINES: usize = 16;

/// Reasons why the allocator cannot be set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InitError {
    /// The metadata has fewer words than [`Buddy::metadata_words`] returns; contains the needed
    /// number.
    MetadataTooSmall(usize),
    /// Fewer per-CPU lists than CPUs; contains the needed number.
    TooFewPcps(usize),
    /// The frame table ends before memory does.
    TableTooSmall,
    /// There is no memory.
    NoMemory,
    /// More CPUs than [`MAX_CPUS`].
    TooManyCpus,
}

/// Layout of the metadata, in words.
struct MetadataLayout {
    blocks: usize,
    total: usize,
}

impl MetadataLayout {
    fn of(topology: &Topology, cpus: usize, options: &Options) -> Self {
        let blocks = topology.end().0.div_ceil(PAGEBLOCK_FRAMES) as usize;
        // An arena for each CPU, in the zone of its node; one for a zone without CPUs.
        let zones = topology.node_count() * (ZONE_WORDS + ARENA_WORDS + 2 * RUNS) + cpus * ARENA_WORDS;
        // Sets: a position on each side for each block a zone touches; at most two zones touch one
        // block at each range's edge.
        let sets = 2 * (blocks + 2 * topology.ranges().len());
        let nodes = (0..topology.node_count() as u8).map(NodeId);
        let bins: usize = nodes.map(|node| Bins::words(Bins::cache_blocks(topology, node, options))).sum();
        // Each zone's sets and bins may end in the middle of a line, and the next structure begins
        // at a new line.
        let gaps = (1 + 3 * topology.node_count()) * LINES;
        Self { blocks, total: bins + gaps + blocks * BLOCK_WORDS + zones + sets }
    }
}

/// Memory that [`Buddy::new`] manages, and the words of its metadata.
#[derive(Clone, Copy)]
pub struct Managed<'a> {
    /// All memory.
    pub topology: &'static Topology,
    /// Frames that are never handed out: sorted, disjoint runs.
    pub reserved: &'a [PfnRange],
    /// A record for each frame, all of them zero or not [ready](FrameTable::is_ready).
    pub table: FrameTable,
    /// Zeroed words, as many as [`Buddy::metadata_words`] returns.
    pub metadata: &'static [AtomicU64],
    /// One per CPU. Their contents are overwritten.
    pub pcps: &'static [Pcp],
}

impl Managed<'_> {
    fn check(&self, cpus: usize) -> Result<(), InitError> {
        if cpus > MAX_CPUS {
            return Err(InitError::TooManyCpus);
        }
        if self.pcps.len() < cpus.max(1) {
            return Err(InitError::TooFewPcps(cpus.max(1)));
        }
        if self.topology.boot_ranges().next().is_none() {
            return Err(InitError::NoMemory);
        }
        if self.table.end() < self.topology.end() {
            return Err(InitError::TableTooSmall);
        }
        Ok(())
    }
}

/// Metadata that is not in use yet.
struct Supply(&'static [AtomicU64]);

impl Supply {
    /// Takes words that begin at the next pair of lines.
    fn take(&mut self, words: usize) -> Result<&'static [AtomicU64], InitError> {
        let whole = words.next_multiple_of(LINES);
        let (taken, rest) = self.0.split_at_checked(whole).ok_or(InitError::MetadataTooSmall(words))?;
        self.0 = rest;
        Ok(&taken[..words])
    }
}

impl<M: Machine + PhysicalBytes> Buddy<M> {
    /// Number of zeroed words that [`Buddy::new`] needs: about 0.28 bytes per frame up to the end
    /// of memory.
    pub fn metadata_words(topology: &Topology, cpus: usize, options: &Options) -> usize {
        MetadataLayout::of(topology, cpus, options).total
    }

    /// The allocator of memory. Pageblocks with reserved frames enter the direct map; all others
    /// start outside.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn new(machine: M, managed: Managed<'_>, options: Options) -> Result<Self, InitError> {
        let cpus = machine.cpu_count();
        managed.check(cpus)?;
        let Managed { topology, reserved, table, metadata, pcps } = managed;
        let shapes = shapes(topology, cpus, &options);
        let layout = MetadataLayout::of(topology, cpus, &options);
        if metadata.len() < layout.total {
            return Err(InitError::MetadataTooSmall(layout.total));
        }
        let skew = (metadata.as_ptr().addr() / size_of::<u64>()).wrapping_neg() % LINES;
        let mut supply = Supply(&metadata[skew..]);
        let (blocks, _) = supply.take(layout.blocks * BLOCK_WORDS)?.as_chunks();
        let wipes = [options.init_on_alloc, options.init_on_free].contains(&Wipe::Always);
        let bytes = if wipes || options.check == Check::Fill { Bytes::Looked } else { Bytes::Left };
        let mut buddy = Self {
            machine,
            table,
            options,
            shuffled: options.shuffles(topology),
            bytes,
            blocks: Blocks::new(blocks),
            zones: [const { None }; MAX_NODES],
            nearest: nearest(topology),
            cpu_lists: [&pcps[0]; MAX_CPUS],
            pcps,
            slots: [0; MAX_CPUS],
            shapes,
            cpus,
            topology,
            misuses: AtomicU64::new(0),
            wiped: AtomicU64::new(0),
            injecting: AtomicBool::new(false),
        };
        buddy.lay_out_pcps();
        let grain = if buddy.shuffled { options.shuffle_order } else { PAGEBLOCK_ORDER };
        buddy.reserve(reserved);
        buddy.leave_out_what_is_not_there();
        for node in 0..topology.node_count() {
            let node = NodeId(node as u8);
            if topology.ranges().iter().any(|range| range.node == node) {
                let zone = buddy.make_zone(node, reserved, &mut supply, grain)?;
                buddy.zones[usize::from(node.0)] = Some(zone);
            }
        }
        buddy.adopt_fragments(reserved);
        Ok(buddy)
    }

    /// Sets up each CPU's lists.
    fn lay_out_pcps(&mut self) {
        for (cpu, pcp) in self.pcps.iter().enumerate().take(self.cpus) {
            let node = self.machine.node_of_cpu(CpuId(cpu as u16));
            let home = NodeId(self.nearest[usize::from(node.0) % MAX_NODES][0]);
            self.cpu_lists[cpu] = pcp;
            let before = (0..cpu).filter(|other| self.pcp(CpuId(*other as u16)).node() == home);
            self.slots[cpu] = before.count() as u8;
            let cpu = CpuId(cpu as u16);
            let draws = if self.shuffled { Draws::From(self.options.shuffle_order) } else { Draws::None };
            let hits = if self.bytes == Bytes::Left { Hits::Served } else { Hits::Refused };
            let plan = Plan { cpu, node: home, draws, hits };
            pcp.lay_out(&self.shapes, plan, self.machine.random_u64());
        }
    }

    /// Marks reserved frames, and the pageblocks that are not wholly free memory.
    fn reserve(&self, reserved: &[PfnRange]) {
        let mut entered = 0;
        for range in self.topology.ranges() {
            for run in reserved.iter().map(|run| run.intersection(range.frames)).filter(|run| !run.is_empty())
            {
                for id in BlockId::of(run.start).0..run.end.0.div_ceil(PAGEBLOCK_FRAMES) {
                    self.table.prepare(BlockId(id).start());
                }
                for frame in run.iter() {
                    self.mark_reserved(frame, range.node);
                }
                // Two reserved runs may share a pageblock.
                let first = BlockId::of(run.start).0.max(entered);
                let end = run.end.0.div_ceil(PAGEBLOCK_FRAMES);
                if first < end {
                    self.machine.enter(PfnRange::new(BlockId(first).start(), BlockId(end).start()));
                }
                for id in first..end {
                    self.blocks.set_state(BlockId(id), BlockState::split(Owner::Kernel, 0));
                }
                entered = entered.max(end);
            }
        }
    }

    /// Marks pluggable memory as if it had been unplugged. The parts of pageblocks at the ends of a
    /// range are never used.
    fn leave_out_what_is_not_there(&self) {
        for range in self.topology.pluggable_ranges() {
            let (first, end) =
                (BlockId::of(range.frames.start).0, range.frames.end.0.div_ceil(PAGEBLOCK_FRAMES));
            (first..end).for_each(|id| self.blocks.set_state(BlockId(id), BlockState::plain(Fill::Offline)));
        }
    }

    fn mark_reserved(&self, frame: Pfn, node: NodeId) {
        let state = FrameState::Owned { owner: Owner::Reserved, order: Order::FRAME, node };
        self.table.get(frame).expect("the table reaches to the end of memory").set_state(state);
    }

    /// Runs of present free frames of `node`, upwards.
    fn free_runs(topology: &Topology, node: NodeId, reserved: &[PfnRange], mut found: impl FnMut(PfnRange)) {
        for range in topology.boot_ranges().filter(|range| range.node == node) {
            let mut start = range.frames.start;
            for run in reserved.iter().map(|run| run.intersection(range.frames)).filter(|run| !run.is_empty())
            {
                found(PfnRange::new(start, run.start));
                start = run.end;
            }
            found(PfnRange::new(start, range.frames.end));
        }
    }

    fn make_zone(
        &self,
        node: NodeId,
        reserved: &[PfnRange],
        supply: &mut Supply,
        grain: u32,
    ) -> Result<Zone, InitError> {
        let words = supply.take(ZONE_WORDS)?.first_chunk().expect("as many as were asked for");
        let cache_blocks = Bins::cache_blocks(self.topology, node, &self.options);
        let at_home = (0..self.cpus).filter(|cpu| self.pcp(CpuId(*cpu as u16)).node() == node).count();
        // The counts of bins are shared by all CPUs, so with bins the pageblocks are shared, too.
        let arenas = if cache_blocks > 0 { 1 } else { at_home.max(1) };
        let (arenas, _) = supply.take(arenas * ARENA_WORDS)?.as_chunks();
        let runs = supply.take(2 * RUNS)?;
        let ranges = || self.topology.ranges().iter().filter(|range| range.node == node);
        let frames = |presence| {
            ranges().filter(move |range| range.presence == presence).map(|range| range.frames.len()).sum()
        };
        let pluggable = ranges().filter(|range| range.presence == Presence::Pluggable);
        let pluggable_from = pluggable.map(|range| BlockId::of(range.frames.start)).min();
        let touched: u64 =
            ranges().map(|r| r.frames.end.0.div_ceil(PAGEBLOCK_FRAMES) - BlockId::of(r.frames.start).0).sum();
        let sets = (supply.take(touched as usize)?, supply.take(touched as usize)?);
        let (mut used, mut total) = (0, 0);
        Self::free_runs(self.topology, node, reserved, |run| {
            let whole = whole_blocks(run);
            if whole.0 < whole.1 && used < RUNS {
                runs[2 * used].set(whole.0);
                runs[2 * used + 1].set(total);
                total += whole.1 - whole.0;
                used += 1;
            }
        });
        let runs = BlockRuns::new(&runs[..2 * used], total);
        let bins = Bins::new(cache_blocks, supply.take(Bins::words(cache_blocks))?);
        let parts = Parts {
            blocks: self.blocks,
            table: self.table,
            runs,
            words,
            arenas,
            bins,
            sets,
            frames: frames(Presence::Always),
            absent: frames(Presence::Pluggable),
            pluggable_from,
        };
        Ok(Zone::new(node, parts, grain))
    }

    /// Adds the free frames of pageblocks that are not wholly free, and whole blocks for which
    /// there was no run.
    fn adopt_fragments(&self, reserved: &[PfnRange]) {
        let pinned = self.machine.pin();
        for zone in self.zones.iter().flatten() {
            let held = zone.lock_arena(zone.arena(0), &pinned, self.machine);
            let mut open: Option<(BlockId, [u64; BITMAP_WORDS])> = None;
            let close = |open: &mut Option<(BlockId, [u64; BITMAP_WORDS])>| {
                let Some((block, bits)) = open.take() else { return };
                let first = self.topology.ranges().iter().find(|range| range.frames.end > block.start());
                if first.is_none_or(|range| range.node != zone.node) {
                    // The pageblock begins with another node's memory, so it belongs to that zone,
                    // and these frames stay unused.
                    self.table.prepare(block.start());
                    let frames =
                        (0..PAGEBLOCK_FRAMES).filter(|n| bits[*n as usize / 64] & 1 << (n % 64) != 0);
                    frames.for_each(|n| self.mark_reserved(block.start().offset(n), zone.node));
                    return;
                }
                // A block that is split by reserved frames belongs to the kernel. One that is split
                // by the edge of memory need not be mapped.
                let owner = if self.blocks.state(block).is_split() { Owner::Kernel } else { Owner::Anon };
                zone.adopt(&held, block, owner, bits);
            };
            let mut seen = 0;
            Self::free_runs(self.topology, zone.node, reserved, |run| {
                let whole = whole_blocks(run);
                let in_runs = whole.0 < whole.1 && seen < RUNS;
                seen += usize::from(in_runs);
                for part in [
                    PfnRange::new(run.start, run.end.min(BlockId(whole.0).start())),
                    PfnRange::new(BlockId(whole.1).start().max(run.start), run.end),
                ] {
                    if part.is_empty() {
                        continue;
                    }
                    let block = BlockId::of(part.start);
                    if open.is_none_or(|(id, _)| id != block) {
                        close(&mut open);
                        open = Some((block, [0; BITMAP_WORDS]));
                    }
                    let (_, bits) = open.as_mut().expect("just opened");
                    for frame in part.iter() {
                        let index = (frame.0 - block.start().0) as usize;
                        bits[index / 64] |= 1 << (index % 64);
                    }
                    if whole.0 > whole.1 {
                        break;
                    }
                }
                if !in_runs {
                    for id in whole.0..whole.1 {
                        zone.adopt_whole(&held, BlockId(id));
                    }
                }
            });
            close(&mut open);
        }
    }
}

/// The pageblocks that lie wholly in `run`: the first, and one past the last (less than the first
/// if there is none).
fn whole_blocks(run: PfnRange) -> (u64, u64) {
    (run.start.0.div_ceil(PAGEBLOCK_FRAMES), run.end.0 / PAGEBLOCK_FRAMES)
}

/// Per-CPU lists for this machine: small ones where frames are placed by near-cache bin, since a
/// frame in a list occupies its bin without being used.
fn shapes(topology: &Topology, cpus: usize, options: &Options) -> Shapes {
    let nodes = (0..topology.node_count() as u8).map(NodeId);
    let caches = nodes.map(|node| Bins::cache_blocks(topology, node, options)).filter(|blocks| *blocks > 0);
    let frames = topology.boot_ranges().map(|range| range.frames.len()).sum();
    // A batch is 1/512 of the smallest cache, so that the frames in lists are less than half a
    // percent of it.
    Shapes::of(frames, cpus, caches.min().map_or(MOST_SINGLES, |blocks| blocks.clamp(8, 64)))
}

/// For each node, the nodes with memory by distance.
fn nearest(topology: &Topology) -> [[u8; MAX_NODES]; MAX_NODES] {
    let mut table = [[NONE; MAX_NODES]; MAX_NODES];
    for (from, row) in table.iter_mut().enumerate().take(topology.node_count()) {
        let mut len = 0;
        for to in 0..topology.node_count() as u8 {
            if topology.ranges().iter().any(|range| range.node == NodeId(to)) {
                row[len] = to;
                len += 1;
            }
        }
        // Nodes at the same distance are ordered from this node's number on, so that not all nodes
        // fall back on node 0.
        row[..len].sort_unstable_by_key(|to| {
            let turn = (usize::from(*to) + MAX_NODES - from) % MAX_NODES;
            (*to as usize != from, topology.distance(NodeId(from as u8), NodeId(*to)), turn)
        });
    }
    table
}
