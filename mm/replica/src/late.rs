//! Replicas that are made while CPUs run, on nodes that had too little memory at first.
//!
//! Such a node, a *sharer*, has a root and tables of its own from the start, which lead to the
//! frames of the nearest replica or of the image. Every address space that runs on the node links
//! these tables. So its copy is made in three steps, and no address space and no CPU changes its
//! root:
//! 1. The new frames get the bytes that all copies have. They are written as patches are, through
//!    the patching window: no CPU uses them yet.
//! 2. The leaves of the node's tables change from the old frames to the new ones, one by one. A CPU
//!    may use leaves of both kinds: their bytes are equal.
//! 3. Every CPU forgets its translations of the image.
//!
//! **Patches.** `&mut` orders all of this with patches and checks. A patch before step 1 is in the
//! copied bytes, breakpoints included; a patch after step 3 stores to the new frames, too. In
//! between there is none: it would change frames that some CPU of the node does not use, or miss
//! those that it uses.
//!
//! **All or nothing.** Step 1 begins when nothing can fail any more. Nothing is copied from a
//! machine on which a copy has changed.

use freehold_frame::NodePolicy;
use freehold_machine::{NodeId, PAGE_SIZE, Pfn, PhysicalBytes};

use crate::copy::{NodeReplica, frame_in};
use crate::tables::NodeTables;
use crate::{PatchError, Port, ReplicaMemory, Replicas};

/// A node that waits for memory.
pub(crate) struct Sharer<S: ReplicaMemory> {
    /// The node whose frames it uses.
    pub place: NodeId,
    pub tables: NodeTables<S>,
}

impl<S: ReplicaMemory, P: Port> Replicas<S, P> {
    /// Returns the nodes that wait for memory, each with the node whose frames it uses.
    pub fn waiting(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        self.each_sharer().map(|(node, sharer)| (node, sharer.place))
    }

    pub(crate) fn each_sharer(&self) -> impl Iterator<Item = (NodeId, &Sharer<S>)> {
        let by_node = self.sharers.iter().enumerate();
        by_node.filter_map(|(node, sharer)| Some((NodeId(node as u8), sharer.as_ref()?)))
    }

    /// The frame of a page of the image in the replica of `place`, or in the image.
    pub(crate) fn frame_at(&self, place: NodeId, page: u64) -> Pfn {
        let replica = self.nodes[usize::from(place.0)].as_ref();
        replica.map_or_else(|| self.image.first.offset(page), |replica| replica.frame(page))
    }

    /// Makes tables for `node`, on it if possible, that lead to the frames of `place`.
    pub(crate) fn share(
        &self,
        node: NodeId,
        place: NodeId,
    ) -> Result<Sharer<S>, freehold_frame::OutOfMemory> {
        let frame = |page| self.frame_at(place, page);
        let tables = NodeTables::new(self.source, NodePolicy::Preferred(node), &self.image, &frame)?;
        Ok(Sharer { place, tables })
    }

    /// Makes the replica of a node that waits for memory, while CPUs run. Does nothing for any
    /// other node. Interrupts are on, and no lock is held for which another CPU waits with
    /// interrupts off. See the module's head.
    ///
    /// # Errors
    /// [`PatchError::OutOfMemory`]: the node still has too little memory. [`PatchError::Changed`]:
    /// a copy has changed. The node then waits as before.
    pub fn catch_up(&mut self, node: NodeId) -> Result<(), PatchError> {
        if !self.waiting().any(|(waiting, _)| waiting == node) {
            return Ok(());
        }
        let blocks = self.blocks_on(node).map_err(|_| PatchError::OutOfMemory)?;
        let mut fault = None;
        self.verify(&mut |found| {
            fault.get_or_insert(found);
        });
        fault.map_or(Ok(()), |fault| Err(PatchError::Changed(fault)))?;
        self.port.prepare_patching()?;
        for block in &blocks {
            self.port.leave_direct_map(block.frames());
        }
        let (machine, frame) = (self.source.machine(), |page| frame_in(&blocks, page));
        for page in 0..self.image.pages {
            let from = self.image.first.offset(page);
            machine.read_bytes(from, |bytes| self.port.store_text(frame(page), 0, bytes));
        }
        let frames: u64 = blocks.iter().map(|block| block.order().frames()).sum();
        for padding in self.image.pages..frames {
            self.port.store_text(frame(padding), 0, &[0; PAGE_SIZE]);
        }
        self.port.synchronise();
        let Some(sharer) = self.sharers[usize::from(node.0)].take() else { return Ok(()) };
        sharer.tables.lead_to(machine, &self.image, &frame);
        self.port.forget_text();
        self.nodes[usize::from(node.0)] = Some(NodeReplica { blocks, tables: sharer.tables });
        Ok(())
    }
}
