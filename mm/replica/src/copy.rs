//! Makes replicas; also the types of their parts.

use alloc::vec::Vec;
use core::num::NonZeroU64;

use freehold_frame::{Frame, FrameSource, NodePolicy, NodeSet, Order, OutOfMemory, Replica};
use freehold_machine::topology::MAX_NODES;
use freehold_machine::{
    Cpus, Flush, NodeId, PAGE_SIZE, PAGEBLOCK_FRAMES, Pfn, PfnRange, PhysicalBytes, Tables, Tlb, Topology,
    VirtAddr,
};

use crate::late::Sharer;
use crate::patch::PatchError;
use crate::plan::{nearest, nodes};
use crate::tables::{NodeTables, on_node};

/// The memory below replicas: a source of frames, with tables, windows and a TLB.
pub trait ReplicaMemory: FrameSource<Machine: Tables + PhysicalBytes + Tlb> {}

impl<S: FrameSource<Machine: Tables + PhysicalBytes + Tlb>> ReplicaMemory for S {}

/// The kernel's image as loaded.
#[derive(Clone, Copy, Debug)]
pub struct KernelImage {
    /// The address of text's first page.
    pub start: VirtAddr,
    /// Number of pages of text and read-only data, which are contiguous.
    pub pages: u64,
    /// Number of text pages, which come first.
    pub text_pages: u64,
    /// The frame of the first page; the others follow. CPUs of nodes with a replica have other
    /// frames at these addresses.
    pub first: Pfn,
    /// The node of these frames.
    pub node: NodeId,
    /// The root that maps them, and the rest of the kernel half.
    pub root: Pfn,
}

impl KernelImage {
    /// The page of text or read-only data at an address.
    pub(crate) fn page_at(&self, address: u64) -> Option<u64> {
        let page = address.checked_sub(self.start.0)? / PAGE_SIZE as u64;
        (page < self.pages).then_some(page)
    }
    /// The address of a page.
    pub(crate) fn address(&self, page: u64) -> VirtAddr {
        VirtAddr(self.start.0 + page * PAGE_SIZE as u64)
    }
}

/// How the pages at the image's end that fill no pageblock are allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// In blocks of as many frames as there are pages, the largest first.
    Frames,
    /// As a pageblock: if all memory is in the direct map, nothing smaller can be removed from it.
    Pageblock,
}

/// Services of the kernel: the actual direct map, and the root that each CPU uses. The kernel's
/// windows show the image's frames for reading.
pub trait Port: Copy + Send + Sync + 'static {
    /// Copies pages of the image, from number `page` on, to `frames`, which are in one pageblock.
    /// Called before a second CPU runs.
    fn copy_image(self, page: u64, frames: PfnRange);
    /// Returns how the image's last pages can be allocated under the policy about programs' frames.
    fn rest(self) -> Rest;
    /// Whether the direct map shows one of these frames.
    fn is_in_direct_map(self, frames: PfnRange) -> bool;
    /// Removes a pageblock from the direct map, whatever the policy about programs' frames is.
    /// Smaller blocks are already outside.
    fn leave_direct_map(self, frames: PfnRange);
    /// Makes the patching window, if it was not made before.
    ///
    /// # Errors
    /// [`PatchError::OutOfMemory`], when there is no memory for its table. Nothing has changed
    /// then.
    fn prepare_patching(self) -> Result<(), PatchError>;
    /// Stores `bytes` to a frame of text, from `offset` on, through the patching window, which is
    /// closed before this returns.
    fn store_text(self, frame: Pfn, offset: usize, bytes: &[u8]);
    /// Waits until every CPU has executed a serialising instruction after this was called, and has
    /// flushed the patching window.
    fn synchronise(self);
    /// Makes every CPU forget its translations of the image: a node's tables lead to other frames
    /// now.
    fn forget_text(self);
    /// From now on roots for CPUs of `node` have `root`'s kernel half.
    fn set_root(self, node: NodeId, root: Pfn);
    /// Whether a page of the image with these bytes is as it was built. True if that is not known,
    /// and for a page that start-up changes. Not asked for a page that was patched.
    fn is_as_built(self, _page: u64, _bytes: &[u8; PAGE_SIZE]) -> bool {
        true
    }
}

/// A node's replica. Its frames are freed when it is dropped, which must not happen once its root
/// is in use.
pub(crate) struct NodeReplica<S: ReplicaMemory> {
    /// Pageblocks, and after them smaller blocks, in the order of the image's pages.
    pub blocks: Vec<Frame<Replica, S>>,
    pub tables: NodeTables<S>,
}

impl<S: ReplicaMemory> NodeReplica<S> {
    /// The frame of a page of the image.
    pub(crate) fn frame(&self, page: u64) -> Pfn {
        frame_in(&self.blocks, page)
    }
}

pub(crate) fn frame_in<S: ReplicaMemory>(blocks: &[Frame<Replica, S>], page: u64) -> Pfn {
    let mut left = page;
    for block in blocks {
        let frames = block.order().frames();
        if left < frames {
            return block.pfn().offset(left);
        }
        left -= frames;
    }
    unreachable!("page {page} is in no block of the replica")
}

/// The memory of a node's replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeFigures {
    /// The node.
    pub node: NodeId,
    /// Frames of text and read-only data, including those that pad a pageblock.
    pub frames: u64,
    /// Frames of translation tables, the root included.
    pub tables: u64,
}

/// All replicas of the kernel's image. Once made, they stay for ever.
pub struct Replicas<S: ReplicaMemory, P: Port> {
    pub(crate) source: S,
    pub(crate) port: P,
    pub(crate) image: KernelImage,
    /// For each page of the image, its hash after the first check; empty if there is no replica.
    pub(crate) hashes: Vec<Option<NonZeroU64>>,
    /// For each page, whether it was patched, 64 to a word; empty if there was no memory.
    pub(crate) patched: Vec<u64>,
    /// By node.
    pub(crate) nodes: [Option<NodeReplica<S>>; MAX_NODES],
    /// By node: the nodes that wait for memory.
    pub(crate) sharers: [Option<Sharer<S>>; MAX_NODES],
}

impl<S: ReplicaMemory, P: Port> core::fmt::Debug for Replicas<S, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.figures()).finish()
    }
}

impl<S: ReplicaMemory, P: Port> Replicas<S, P> {
    /// Makes a replica of `image` on each of `wanted` and sets each node's root in the port. If
    /// memory does not suffice for a node, nothing of its replica stays, `without` is called, and
    /// the node shares the nearest replica until [`Replicas::catch_up`]. Called before a second CPU
    /// runs and before an address space exists, with interrupts on or without any.
    pub fn new(
        (source, port): (S, P),
        image: KernelImage,
        wanted: NodeSet,
        topology: &Topology,
        without: &mut dyn FnMut(NodeId),
    ) -> Self {
        let mut patched = Vec::new();
        if patched.try_reserve_exact(image.pages.div_ceil(64) as usize).is_ok() {
            patched.resize(image.pages.div_ceil(64) as usize, 0);
        }
        let (nodes_without, sharers) = ([const { None }; MAX_NODES], [const { None }; MAX_NODES]);
        let hashes = Vec::new();
        let mut replicas = Self { source, port, image, hashes, patched, nodes: nodes_without, sharers };
        if wanted.0 == 0 {
            return replicas;
        }
        // Start-up waits for this function, so pages are not hashed here but at their first check.
        let has_hashes = replicas.hashes.try_reserve_exact(image.pages as usize).is_ok();
        replicas.hashes.resize(if has_hashes { image.pages as usize } else { 0 }, None);
        let (mut places, mut short) = (1 << image.node.0, 0);
        for node in nodes(wanted.0) {
            if has_hashes && let Ok(made) = replicas.make(node) {
                replicas.nodes[usize::from(node.0)] = Some(made);
                places |= 1 << node.0;
            } else {
                without(node);
                short |= u16::from(has_hashes) << node.0;
            }
        }
        for node in nodes(short) {
            let place = nearest(topology, node, NodeSet(places), image.node);
            replicas.sharers[usize::from(node.0)] = replicas.share(node, place).ok();
        }
        // The bytes are final. Windows of this CPU that are still cached would allow writes, so
        // they are flushed.
        let machine = source.machine();
        let pinned = machine.pin();
        machine.flush_local(Flush::NonGlobal);
        drop(pinned);
        for node in nodes(((1u32 << topology.node_count()) - 1) as u16) {
            let shared = || replicas.root_of(nearest(topology, node, NodeSet(places), image.node));
            let own = replicas.sharers[usize::from(node.0)].as_ref().map(|sharer| sharer.tables.root);
            port.set_root(node, own.unwrap_or_else(shared));
        }
        replicas
    }

    /// Whether no node has a replica.
    pub fn is_empty(&self) -> bool {
        self.nodes.iter().all(Option::is_none)
    }

    /// Returns the memory of each replica, by node.
    pub fn figures(&self) -> impl Iterator<Item = NodeFigures> {
        self.each().map(|(node, replica)| NodeFigures {
            node,
            frames: replica.blocks.iter().map(|block| block.order().frames()).sum(),
            tables: replica.tables.frames.len() as u64,
        })
    }

    /// The image of which they are copies.
    pub fn image(&self) -> &KernelImage {
        &self.image
    }

    /// Flips the last bit of the last page of the first replica, to test the check. Returns the
    /// node and the page.
    pub fn flip(&self) -> Option<(NodeId, u64)> {
        let (node, replica) = self.each().next()?;
        let page = self.image.pages - 1;
        let machine = self.source.machine();
        machine.with_bytes(replica.frame(page), |bytes| bytes[PAGE_SIZE - 1] ^= 0x80);
        Some((node, page))
    }

    /// Flips the last bit of the image's last page and of all its copies, as if it had been flipped
    /// before they were made, to test the check. Returns the page.
    ///
    /// # Errors
    /// If there is no memory for the patching window.
    pub fn flip_everywhere(&self) -> Result<u64, PatchError> {
        self.port.prepare_patching()?;
        let page = self.image.pages - 1;
        let machine = self.source.machine();
        let last = machine.read_bytes(self.image.first.offset(page), |bytes| bytes[PAGE_SIZE - 1]);
        for (_, frame) in self.copies(page) {
            self.port.store_text(frame, PAGE_SIZE - 1, &[last ^ 0x80]);
        }
        self.port.synchronise();
        Ok(page)
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = (NodeId, &NodeReplica<S>)> {
        let by_node = self.nodes.iter().enumerate();
        by_node.filter_map(|(node, replica)| Some((NodeId(node as u8), replica.as_ref()?)))
    }

    fn root_of(&self, node: NodeId) -> Pfn {
        self.nodes[usize::from(node.0)].as_ref().map_or(self.image.root, |replica| replica.tables.root)
    }

    fn make(&self, node: NodeId) -> Result<NodeReplica<S>, OutOfMemory> {
        let blocks = self.blocks_on(node)?;
        self.copy_to(&blocks);
        let policy = NodePolicy::Bind(NodeSet(1 << node.0));
        let frame = |page| frame_in(&blocks, page);
        let tables = NodeTables::new(self.source, policy, &self.image, &frame)?;
        // Not earlier: a pageblock that is freed after a failure must still be where the policy
        // requires.
        for block in &blocks {
            self.port.leave_direct_map(block.frames());
        }
        Ok(NodeReplica { blocks, tables })
    }

    /// Takes frames of `node` for text and read-only data.
    pub(crate) fn blocks_on(&self, node: NodeId) -> Result<Vec<Frame<Replica, S>>, OutOfMemory> {
        let whole = match self.port.rest() {
            Rest::Frames => self.image.pages / PAGEBLOCK_FRAMES,
            Rest::Pageblock => self.image.pages.div_ceil(PAGEBLOCK_FRAMES),
        };
        let mut rest = self.image.pages.saturating_sub(whole * PAGEBLOCK_FRAMES);
        let mut blocks = Vec::new();
        let count = whole as usize + rest.count_ones() as usize;
        blocks.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
        for _ in 0..whole {
            blocks.push(on_node::<Replica, S>(self.source, node, Order::PAGEBLOCK)?);
        }
        while let Some(order) = rest.checked_ilog2().and_then(Order::new) {
            blocks.push(on_node::<Replica, S>(self.source, node, order)?);
            rest -= order.frames();
        }
        Ok(blocks)
    }

    /// Fills frames with the bytes of text and read-only data, followed by zeroes.
    fn copy_to(&self, blocks: &[Frame<Replica, S>]) {
        let (machine, mut page) = (self.source.machine(), 0);
        for block in blocks.iter().map(|block| block.frames()) {
            let filled = block.len().min(self.image.pages - page);
            self.port.copy_image(page, PfnRange::new(block.start, block.start.offset(filled)));
            (filled..block.len()).for_each(|frame| machine.zero(block.start.offset(frame)));
            page += filled;
        }
    }
}

/// A page's hash: four lanes, each a bijection of every word that enters it. So pages that differ
/// in one word never have the same hash, except for one hash in 2^64. The hash finds faults, but an
/// attacker who chooses the bytes can forge it. One multiplication covers four words, because each
/// check reads every page.
///
/// `word` returns the page's words by number, 0 to 511.
pub fn page_hash(word: impl Fn(usize) -> u64) -> NonZeroU64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [1u64, 2, 3, 4];
    for first in (0..PAGE_SIZE / 8).step_by(16) {
        for (at, lane) in lanes.iter_mut().enumerate() {
            let word = |nth: usize| word(first + at + 4 * nth);
            let mixed = ((*lane ^ word(0)).wrapping_add(word(1)) ^ word(2)).wrapping_add(word(3));
            *lane = mixed.wrapping_mul(ODD);
        }
    }
    let hash = lanes.into_iter().fold(0, |hash: u64, lane| (hash.rotate_left(29) ^ lane).wrapping_mul(ODD));
    NonZeroU64::new(hash).unwrap_or(NonZeroU64::MAX)
}

/// The hash of a page with these bytes.
pub(crate) fn hash(bytes: &[u8; PAGE_SIZE]) -> NonZeroU64 {
    let words = bytes.as_chunks::<8>().0;
    page_hash(|nth| u64::from_le_bytes(words[nth]))
}
