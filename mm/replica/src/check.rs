//! Checks that replicas are unchanged.
//!
//! **Before the first check** of a page it is only known that all its copies were equal when they
//! were made. The first check takes the hash that most copies have; if there is no majority, the
//! image's. From then on the page has this hash, and only a patch changes it. So a change of one
//! copy is always found. But with a single replica, a change of the image before the first check is
//! reported as a change of the replica. A change of all copies to the same bytes is found only
//! after the first check, unless it is a change of a page that was never patched: if the port knows
//! the page as it was built, each check compares the image with that, too.

use core::fmt;
use core::num::NonZeroU64;

use freehold_frame::{FrameState, Owner};
use freehold_machine::topology::MAX_NODES;
use freehold_machine::{NodeId, Pfn, PhysicalBytes, TABLE_ENTRIES, Tables, VirtAddr};

use crate::copy::{NodeReplica, hash};
use crate::tables::{MARKS, UPPER, WRITABLE, frame_of, index_at, leaf};
use crate::{Port, ReplicaMemory, Replicas};

/// Fault of a replica, or of the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplicaFault {
    /// A page of a replica has other bytes than the image had.
    Replica {
        /// The replica's node.
        node: NodeId,
        /// The page's number in the image, from 0.
        page: u64,
    },
    /// A page of the image itself has changed.
    Image {
        /// The page's number, from 0.
        page: u64,
    },
    /// A page of the image differs from the one that was built, and was never patched.
    Build {
        /// The page's number, from 0.
        page: u64,
    },
    /// A node's tables do not map its replica, or map it with other rights than the image's.
    Leaf {
        /// The tables' node.
        node: NodeId,
        /// The address.
        address: VirtAddr,
    },
    /// A slot of a node's root, other than the image's slot, differs from the image's root.
    Root {
        /// The root's node.
        node: NodeId,
        /// The slot's number.
        slot: usize,
    },
    /// The frame table says that a block of a replica is no replica memory, or is another node's.
    Owner {
        /// The replica's node.
        node: NodeId,
        /// Its first frame.
        block: Pfn,
    },
    /// The direct map shows a block of a replica.
    DirectMap {
        /// The replica's node.
        node: NodeId,
        /// Its first frame.
        block: Pfn,
    },
}

impl fmt::Display for ReplicaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica { node, page } => write!(f, "page {page} of node {}'s replica has changed", node.0),
            Self::Image { page } => write!(f, "page {page} of the image has changed"),
            Self::Build { page } => write!(f, "page {page} of the image is not as it was built"),
            Self::Leaf { node, address } => {
                write!(f, "node {}'s tables are wrong at {:#x}", node.0, address.0)
            }
            Self::Root { node, slot } => write!(f, "slot {slot} of node {}'s root is wrong", node.0),
            Self::Owner { node, block } => {
                write!(f, "the block {:#x} of node {}'s replica has another owner", block.0, node.0)
            }
            Self::DirectMap { node, block } => {
                write!(f, "the block {:#x} of node {}'s replica is in the direct map", block.0, node.0)
            }
        }
    }
}

/// The hash that most copies have; of two equally frequent ones, the first. The image always has a
/// hash.
fn most_common(seen: &[Option<NonZeroU64>]) -> NonZeroU64 {
    if let Some(all) = seen[0].filter(|first| seen.iter().flatten().all(|other| other == first)) {
        return all;
    }
    let votes = |hash: NonZeroU64| seen.iter().flatten().filter(|&&other| other == hash).count();
    let best = seen.iter().flatten().copied().rev().max_by_key(|&hash| votes(hash));
    best.unwrap_or(NonZeroU64::MAX)
}

impl<S: ReplicaMemory, P: Port> Replicas<S, P> {
    /// Compares every page of the image and of each replica with its hash, and pages without
    /// patches with the build's; `found` is called for each difference.
    pub fn verify(&mut self, found: &mut dyn FnMut(ReplicaFault)) {
        (0..self.image.pages).for_each(|page| self.verify_page(page, found));
    }

    /// The same for one page.
    pub(crate) fn verify_page(&mut self, page: u64, found: &mut dyn FnMut(ReplicaFault)) {
        let machine = self.source.machine();
        let (port, frame) = (self.port, self.image.first.offset(page));
        if !self.was_patched(page) && !machine.read_bytes(frame, |bytes| port.is_as_built(page, bytes)) {
            found(ReplicaFault::Build { page });
        }
        if self.is_empty() {
            return;
        }
        let mut seen = [None; MAX_NODES + 1];
        for (seen, (_, frame)) in seen.iter_mut().zip(self.copies(page)) {
            *seen = Some(machine.read_bytes(frame, hash));
        }
        let seen = &seen[..1 + self.each().count()];
        let Some(known) = self.hashes.get_mut(page as usize) else { return };
        let expected = *known.get_or_insert_with(|| most_common(seen));
        for (place, (node, _)) in self.copies(page).enumerate() {
            if seen[place] != Some(expected) {
                let image = ReplicaFault::Image { page };
                found(if place == 0 { image } else { ReplicaFault::Replica { node, page } });
            }
        }
    }

    /// Whether a page was patched, or may have been.
    fn was_patched(&self, page: u64) -> bool {
        self.patched.get(page as usize / 64).is_none_or(|word| word >> (page % 64) & 1 != 0)
    }

    /// Checks the tables and the owners of every replica; `found` gets each fault.
    pub fn validate(&self, found: &mut dyn FnMut(ReplicaFault)) {
        for (node, replica) in self.each() {
            self.validate_blocks(node, replica, found);
            self.validate_tables(node, replica.tables.root, &|page| replica.frame(page), found);
        }
        for (node, sharer) in self.each_sharer() {
            let frame = |page| self.frame_at(sharer.place, page);
            self.validate_tables(node, sharer.tables.root, &frame, found);
        }
    }

    fn validate_blocks(&self, node: NodeId, replica: &NodeReplica<S>, found: &mut dyn FnMut(ReplicaFault)) {
        let table = self.source.table();
        for (block, frames) in replica.blocks.iter().map(|block| (block.pfn(), block.frames())) {
            match table.state(block) {
                FrameState::Owned { owner: Owner::Replica, node: its, .. } if its == node => {}
                _ => found(ReplicaFault::Owner { node, block }),
            }
            if self.port.is_in_direct_map(frames) {
                found(ReplicaFault::DirectMap { node, block });
            }
        }
    }

    /// Checks that `node`'s tables, below `root`, map `frame`'s frames as the image is mapped.
    fn validate_tables(
        &self,
        node: NodeId,
        root: Pfn,
        frame: &dyn Fn(u64) -> Pfn,
        found: &mut dyn FnMut(ReplicaFault),
    ) {
        let (machine, image) = (self.source.machine(), &self.image);
        for page in 0..image.pages {
            let address = image.address(page);
            let [own, original] = [root, image.root].map(|root| leaf(machine, root, address));
            let differs = (own ^ original) & !MARKS;
            let frames = frame_of(own) == frame(page)
                && frame_of(original) == image.first.offset(page)
                && differs == ((frame_of(own).0 ^ frame_of(original).0) << 12);
            if !frames || own & WRITABLE != 0 {
                found(ReplicaFault::Leaf { node, address });
            }
        }
        let top = index_at(image.start, 4);
        for slot in (UPPER..TABLE_ENTRIES).filter(|&slot| slot != top) {
            let [own, original] = [root, image.root].map(|root| machine.load_entry(root, slot));
            if (own ^ original) & !MARKS != 0 {
                found(ReplicaFault::Root { node, slot });
            }
        }
    }
}
