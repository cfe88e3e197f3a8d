//! The pool of huge pages (Linux: `struct hstate`): free pages by node, and the sums.
//!
//! Persistent pages are those that were asked for by number. Surplus pages are added when a mapping
//! or a fault finds too few, up to a number of their own, and leave the pool when they are free.
//!
//! The lists have room for all pages of the pool, so a page can be given back without memory.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{LargeMapping, NodePolicy, NodeSet, Owner, Payer, Request};
use freehold_machine::{Cpus as _, Machine as _, NodeId};
use freehold_paging::Memory;

use super::Reserve;
use crate::remap::Pause;
use crate::{Commons, VmError};

/// Largest number of nodes.
const NODES: usize = 16;

/// The claim of a fault on a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// The page was reserved.
    Reserved,
    /// It was not: only a page that is not reserved will do.
    Free,
}

impl Claim {
    pub(super) const fn of(reserve: Reserve) -> Self {
        match reserve {
            Reserve::Own => Self::Reserved,
            Reserve::None | Reserve::Lost => Self::Free,
        }
    }
}

/// Figures of the pool, in huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HugePoolFigures {
    /// Pages of the pool, surplus ones too.
    pub total: u64,
    /// Free pages.
    pub free: u64,
    /// Reserved pages: free ones that were promised to mappings. Of all nodes.
    pub reserved: u64,
    /// Surplus pages.
    pub surplus: u64,
    /// Largest number of surplus pages. Of all nodes.
    pub overcommit: u64,
}

/// Pages of one node.
struct NodePages<S: Memory> {
    free: Vec<LargeMapping<S>>,
    total: u64,
    surplus: u64,
}

struct Inner<S: Memory> {
    nodes: [NodePages<S>; NODES],
    lingering: Vec<LargeMapping<S>>,
    reserved: u64,
    /// Surplus pages that are being allocated.
    pending: u64,
    overcommit: u64,
    /// The node whose turn it is to get or lose a page.
    turn: usize,
}

/// The pool. See the module's head.
pub(crate) struct HugePool<S: Memory> {
    inner: spin::Mutex<Inner<S>>,
    next_id: AtomicU64,
}

impl<S: Memory> HugePool<S> {
    pub(crate) const fn new() -> Self {
        let nodes = [const { NodePages { free: Vec::new(), total: 0, surplus: 0 } }; NODES];
        let lingering = Vec::new();
        let inner = Inner { nodes, lingering, reserved: 0, pending: 0, overcommit: 0, turn: 0 };
        // Numbers of page caches are smaller.
        Self { inner: spin::Mutex::new(inner), next_id: AtomicU64::new(1 << 48) }
    }
    pub(super) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

impl<S: Memory> Inner<S> {
    fn sum(&self, of: impl Fn(&NodePages<S>) -> u64) -> u64 {
        self.nodes.iter().map(of).sum()
    }
    fn free(&self) -> u64 {
        self.sum(|node| node.free.len() as u64)
    }
    fn total(&self) -> u64 {
        self.sum(|node| node.total)
    }
    fn surplus(&self) -> u64 {
        self.sum(|node| node.surplus)
    }
    fn persistent(&self) -> u64 {
        self.total() - self.surplus()
    }
    /// The next node in turn, of those in `nodes`, for which `fits` holds.
    fn in_turn(&mut self, nodes: NodeSet, fits: impl Fn(&NodePages<S>) -> bool) -> Option<usize> {
        let next = (self.turn..self.turn + NODES)
            .map(|node| node % NODES)
            .find(|&node| nodes.contains(NodeId(node as u8)) && self.nodes.get(node).is_some_and(&fits))?;
        self.turn = next + 1;
        Some(next)
    }
    /// Takes back the last hold of a page.
    fn keep(&mut self, node: NodeId, block: LargeMapping<S>) {
        // A block with a pin or a reference stays in pieces.
        let is_idle = block.reuse().is_ok() && block.holders(0).whole;
        match self.nodes.get_mut(usize::from(node.0)) {
            Some(pages) if is_idle => pages.free.push(block),
            _ => self.lingering.push(block),
        }
    }
    /// A free page, as near as `place` asks for, from `near` on.
    fn pop(&mut self, place: NodePolicy, near: NodeId) -> Option<LargeMapping<S>> {
        let (first, nodes) = match place {
            NodePolicy::Local => (near, NodeSet::ALL),
            NodePolicy::Preferred(node) => (node, NodeSet::ALL),
            NodePolicy::Bind(nodes) => (near, nodes),
            NodePolicy::BindNear(nodes, node) => (node, nodes),
            NodePolicy::Interleave(nodes, turn) => (nodes.nth(turn)?, NodeSet::ALL),
        };
        let first = usize::from(first.0);
        (first..first + NODES)
            .map(|node| node % NODES)
            .filter(|&node| nodes.contains(NodeId(node as u8)))
            .find_map(|node| self.nodes.get_mut(node)?.free.pop())
    }
    /// A free page that the pool loses: on a node with surplus pages, if no reservation needs it.
    fn pop_surplus(&mut self) -> Option<LargeMapping<S>> {
        if self.free() <= self.reserved {
            return None;
        }
        let node = self.nodes.iter_mut().find(|node| node.surplus > 0 && !node.free.is_empty())?;
        node.surplus -= 1;
        node.total -= 1;
        node.free.pop()
    }
}

impl<S: Memory> Commons<S> {
    /// Returns the figures of the pool of huge pages, of `node` only if it is given.
    pub fn huge_pool(&self, node: Option<NodeId>) -> HugePoolFigures {
        self.collect_huge();
        let inner = self.pool.inner.lock();
        let (reserved, overcommit) = (inner.reserved, inner.overcommit);
        match node {
            None => {
                let (total, free, surplus) = (inner.total(), inner.free(), inner.surplus());
                HugePoolFigures { total, free, reserved, surplus, overcommit }
            }
            Some(node) => inner.nodes.get(usize::from(node.0)).map_or_else(Default::default, |node| {
                let (total, free, surplus) = (node.total, node.free.len() as u64, node.surplus);
                HugePoolFigures { total, free, reserved, surplus, overcommit }
            }),
        }
    }

    /// Sets the largest number of surplus pages. Present ones stay.
    pub fn set_huge_overcommit(&self, most: u64) {
        self.pool.inner.lock().overcommit = most;
    }

    /// Makes the pool have `count` persistent pages, by pages of `nodes` in turn. Without memory it
    /// has fewer. Pages in use become surplus pages, and reserved ones stay. `pause` is called
    /// after each new page.
    ///
    /// # Errors
    /// The error of `pause`.
    pub fn resize_huge_pool(&self, count: u64, nodes: NodeSet, pause: &mut Pause<'_>) -> Result<(), VmError> {
        self.collect_huge();
        while self.grow_huge_pool(count, nodes) {
            pause()?;
        }
        loop {
            let mut inner = self.pool.inner.lock();
            if inner.persistent() <= count || inner.free() <= inner.reserved + inner.surplus() {
                break;
            }
            let Some(node) = inner.in_turn(nodes, |node| !node.free.is_empty()) else { break };
            let Some(pages) = inner.nodes.get_mut(node) else { break };
            pages.total -= 1;
            let gone = pages.free.pop();
            drop(inner);
            // Freed without the lock.
            drop(gone);
        }
        let mut inner = self.pool.inner.lock();
        while inner.persistent() > count {
            let Some(node) = inner.in_turn(nodes, |node| node.surplus < node.total) else { break };
            inner.nodes[node].surplus += 1;
        }
        Ok(())
    }

    /// Adds a persistent page if there are fewer than `count`; returns whether it did.
    fn grow_huge_pool(&self, count: u64, nodes: NodeSet) -> bool {
        let mut inner = self.pool.inner.lock();
        if inner.persistent() >= count {
            return false;
        }
        if let Some(node) = inner.in_turn(nodes, |node| node.surplus > 0) {
            inner.nodes[node].surplus -= 1;
            return true;
        }
        let present = self.source.machine().node_count();
        for _ in 0..present {
            let Some(node) = inner.in_turn(NodeSet(nodes.0 & ((1u32 << present) - 1) as u16), |_| true)
            else {
                return false;
            };
            drop(inner);
            let policy = NodePolicy::Bind(NodeSet::single(NodeId(node as u8)));
            if self.add_huge(policy, |_| {}).is_some() {
                return true;
            }
            inner = self.pool.inner.lock();
        }
        false
    }

    /// Allocates a page and adds it to the free ones; `note` changes its node's sums.
    fn add_huge(&self, policy: NodePolicy, note: impl FnOnce(&mut NodePages<S>)) -> Option<()> {
        // No account is charged for pages of the pool.
        let payer = Payer::SameAs(self.zero_page());
        let request = Request::new(Owner::Anon).policy(policy);
        let block = LargeMapping::allocate_for(self.source, payer, request).ok()?;
        let node = self.node_of(block.pfn());
        let mut inner = self.room_for(node)?;
        let pages = inner.nodes.get_mut(usize::from(node.0))?;
        pages.total += 1;
        pages.free.push(block);
        note(pages);
        Some(())
    }

    /// Locks the pool with room for one more page of `node` in its lists.
    fn room_for(&self, node: NodeId) -> Option<spin::MutexGuard<'_, Inner<S>>> {
        let node = usize::from(node.0);
        loop {
            let inner = self.pool.inner.lock();
            let (own, all) = (inner.nodes.get(node)?.total as usize, inner.total() as usize);
            if inner.nodes.get(node)?.free.capacity() > own && inner.lingering.capacity() > all {
                return Some(inner);
            }
            drop(inner);
            let (mut free, mut lingering) = (Vec::new(), Vec::new());
            free.try_reserve_exact((own + 1).next_power_of_two()).ok()?;
            lingering.try_reserve_exact((all + 1).next_power_of_two()).ok()?;
            let mut inner = self.pool.inner.lock();
            if inner.nodes.get(node)?.free.capacity() < free.capacity() {
                free.append(&mut inner.nodes.get_mut(node)?.free);
                core::mem::swap(&mut free, &mut inner.nodes.get_mut(node)?.free);
            }
            if inner.lingering.capacity() < lingering.capacity() {
                lingering.append(&mut inner.lingering);
                core::mem::swap(&mut lingering, &mut inner.lingering);
            }
        }
    }

    /// Adds a surplus page to the free ones, if the pool may have one more; returns whether it did.
    fn add_surplus(&self, policy: NodePolicy) -> bool {
        {
            let mut inner = self.pool.inner.lock();
            if inner.surplus() + inner.pending >= inner.overcommit {
                return false;
            }
            inner.pending += 1;
        }
        let added = self.add_huge(policy, |node| node.surplus += 1).is_some();
        self.pool.inner.lock().pending -= 1;
        added
    }

    /// Reserves `count` pages.
    ///
    /// # Errors
    /// [`VmError::NoHugePage`].
    pub(crate) fn reserve_huge(&self, count: u64) -> Result<(), VmError> {
        self.collect_huge();
        loop {
            {
                let mut inner = self.pool.inner.lock();
                let needed = inner.reserved.saturating_add(count);
                if needed <= inner.free() {
                    inner.reserved = needed;
                    return Ok(());
                }
                let possible = inner.overcommit.saturating_sub(inner.surplus() + inner.pending);
                if needed - inner.free() > possible {
                    break;
                }
            }
            self.source.rest();
            if !self.add_surplus(NodePolicy::Local) {
                break;
            }
        }
        self.trim_huge();
        Err(VmError::NoHugePage)
    }

    /// Takes back `count` reservations.
    pub(crate) fn unreserve_huge(&self, count: u64) {
        if count > 0 {
            let mut inner = self.pool.inner.lock();
            inner.reserved = inner.reserved.saturating_sub(count);
            drop(inner);
            self.trim_huge();
        }
    }

    /// Takes back all reservations: nothing will use them.
    pub(super) fn forget_reservations(&self) {
        self.pool.inner.lock().reserved = 0;
        self.trim_huge();
    }

    /// Takes a page with undefined bytes; `None` without one.
    pub(crate) fn take_huge(&self, place: NodePolicy, claim: Claim) -> Option<LargeMapping<S>> {
        self.collect_huge();
        let machine = self.source.machine();
        let near = machine.node_of_cpu(machine.current_cpu());
        loop {
            {
                let mut inner = self.pool.inner.lock();
                let may_take = claim == Claim::Reserved || inner.free() > inner.reserved;
                if let Some(block) = may_take.then(|| inner.pop(place, near)).flatten() {
                    let taken = u64::from(claim == Claim::Reserved);
                    inner.reserved = inner.reserved.saturating_sub(taken);
                    return Some(block);
                }
            }
            if !self.add_surplus(place) {
                return None;
            }
        }
    }

    /// Takes back the hold of a leaf, or of shared memory, that no CPU knows any more. `reserve`
    /// says whether a page is reserved in its place.
    pub(crate) fn put_huge(&self, block: LargeMapping<S>, reserve: Reserve) {
        let node = self.node_of(block.pfn());
        {
            let mut inner = self.pool.inner.lock();
            inner.reserved += u64::from(reserve == Reserve::Own);
            if block.holders(0).mappings > 1 {
                // Under the lock, so that of two holders the second one finds that it is the last.
                drop(block);
                return;
            }
            inner.keep(node, block);
        }
        self.trim_huge();
    }

    /// Frees surplus pages that are free and not reserved.
    fn trim_huge(&self) {
        loop {
            let gone = self.pool.inner.lock().pop_surplus();
            if gone.is_none() {
                return;
            }
        }
    }

    /// Makes pages free that were pinned when their last leaf went.
    fn collect_huge(&self) {
        let mut inner = self.pool.inner.lock();
        let mut at = 0;
        while at < inner.lingering.len() {
            let block = inner.lingering.swap_remove(at);
            let (node, count) = (self.node_of(block.pfn()), inner.lingering.len());
            inner.keep(node, block);
            if inner.lingering.len() > count {
                // It still has a holder and is the last element now.
                let last = inner.lingering.len() - 1;
                inner.lingering.swap(at, last);
                at += 1;
            }
        }
        if at == 0 {
            return;
        }
        drop(inner);
        self.trim_huge();
    }
}
