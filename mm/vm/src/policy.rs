//! The nodes whose memory pages come from (mempolicy(7)).
//!
//! The policy of the area takes precedence over that of the faulting task. If neither has one, a
//! page comes from the node of the CPU that accesses it first. An area's policy belongs to the
//! address space and is inherited with the area; a caller that takes the space's lock sets the
//! task's policy ([`AddressSpace::act_for`]), since tasks that share the memory may differ.
//!
//! A policy decides where *new* frames come from; [`AddressSpace::migrate`] moves existing pages.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{AccountId, NodePolicy, NodeSet};
use freehold_machine::{NodeId, VirtAddr};
use freehold_paging::{Memory, PageSize};

use crate::area::Area;
use crate::error::VmError;
use crate::resident::Resident;
use crate::{AddressSpace, map};

/// How nodes are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyMode {
    /// The node of the CPU, then the others by distance (MPOL_LOCAL).
    Local,
    /// One node, then the others by distance from it (MPOL_PREFERRED).
    Preferred,
    /// Only these nodes (MPOL_BIND).
    Bind,
    /// These nodes in turn, page by page (MPOL_INTERLEAVE).
    Interleave,
}

/// A memory policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// How nodes are chosen.
    pub mode: PolicyMode,
    /// The allowed nodes; without meaning for [`PolicyMode::Local`], not empty for the others.
    pub nodes: NodeSet,
    /// The node near which [`PolicyMode::Bind`] looks first; `None` means that of the CPU.
    pub home: Option<NodeId>,
    /// The caller's note of how the policy was set. Areas whose policies differ in it stay apart.
    pub label: u32,
}

impl Policy {
    /// Returns the placement of page number `turn`.
    pub fn place(self, turn: u64) -> NodePolicy {
        match (self.mode, self.nodes.nth(0)) {
            (PolicyMode::Local, _) | (_, None) => NodePolicy::Local,
            (PolicyMode::Preferred, Some(node)) => NodePolicy::Preferred(node),
            (PolicyMode::Bind, _) => match self.home {
                Some(home) => NodePolicy::BindNear(self.nodes, home),
                None => NodePolicy::Bind(self.nodes),
            },
            (PolicyMode::Interleave, _) => NodePolicy::Interleave(self.nodes, turn),
        }
    }
}

/// The policy of a task, and the next node for interleaving.
#[derive(Debug)]
pub struct TaskPolicy {
    policy: Policy,
    turn: AtomicU64,
}

impl TaskPolicy {
    /// A task's policy; the lowest node is next.
    pub const fn new(policy: Policy) -> Self {
        Self { policy, turn: AtomicU64::new(0) }
    }
    /// The policy.
    pub const fn policy(&self) -> Policy {
        self.policy
    }
    /// The node for the next page under interleaving.
    pub fn next_in_turn(&self) -> Option<NodeId> {
        let interleaves = self.policy.mode == PolicyMode::Interleave;
        self.policy.nodes.nth(self.turn.load(Ordering::Relaxed)).filter(|_| interleaves)
    }
    fn place(&self) -> NodePolicy {
        match self.policy.mode {
            PolicyMode::Interleave => self.policy.place(self.turn.fetch_add(1, Ordering::Relaxed)),
            _ => self.policy.place(0),
        }
    }
}

impl<S: Memory> Area<S> {
    /// Returns the placement of the page of `size` at `addr` under `policy`. Interleaving uses the
    /// page's address, or its offset in the mapped object.
    fn place_of(&self, policy: Policy, addr: VirtAddr, size: PageSize) -> NodePolicy {
        let from = self.attachment().map_or(0, |_| self.start.0.wrapping_sub(self.content.offset()));
        policy.place(addr.0.wrapping_sub(from) / size.bytes())
    }
}

impl<S: Memory> Resident<S> {
    /// The placement of a new frame for the 4 KiB page at `addr`.
    #[inline]
    pub(crate) fn place(&self, area: &Area<S>, addr: VirtAddr) -> NodePolicy {
        self.place_sized(area, addr, PageSize::Small)
    }
    /// The placement of a new block for the 2 MiB page at `addr`.
    pub(crate) fn place_large(&self, area: &Area<S>, addr: VirtAddr) -> NodePolicy {
        self.place_sized(area, addr, PageSize::Large)
    }
    #[inline]
    fn place_sized(&self, area: &Area<S>, addr: VirtAddr, size: PageSize) -> NodePolicy {
        Self::place_by(area, (addr, size), self.acting.as_deref())
    }
    /// As [`Resident::place`], for a task with the policy `acting`.
    pub(crate) fn place_for(
        &self,
        area: &Area<S>,
        addr: VirtAddr,
        acting: Option<&TaskPolicy>,
    ) -> NodePolicy {
        Self::place_by(area, (addr, PageSize::Small), acting)
    }
    #[inline]
    fn place_by(
        area: &Area<S>,
        (addr, size): (VirtAddr, PageSize),
        acting: Option<&TaskPolicy>,
    ) -> NodePolicy {
        match (area.policy, acting) {
            (None, None) => NodePolicy::Local,
            (Some(policy), _) => area.place_of(policy, addr, size),
            (None, Some(acting)) => acting.place(),
        }
    }
}

impl<S: Memory> AddressSpace<S> {
    /// From now on the faulting task has this policy; `None`: it has none.
    pub fn act_for(&mut self, policy: Option<Arc<TaskPolicy>>) {
        self.resident.acting = policy;
    }
    /// From now on `payer` is charged for new private pages; `None`: the running task's account.
    #[inline]
    pub const fn pay_by(&mut self, payer: Option<AccountId>) {
        self.resident.payer = payer;
    }

    /// Give the areas of `start..start + len` a policy, or none (mbind). Existing pages do not
    /// move.
    ///
    /// # Errors
    /// [`VmError::Invalid`]; [`VmError::Fault`] where something is not mapped, with nothing
    /// changed; [`VmError::NoMemory`].
    pub fn set_policy(&mut self, start: VirtAddr, len: u64, policy: Option<Policy>) -> Result<(), VmError> {
        let range = map::page_range(start, len).map_err(|_| VmError::Invalid)?;
        if range.is_empty() {
            return Ok(());
        }
        // Removing a policy does not require that the whole range is mapped.
        let fits = match policy {
            Some(_) => self.areas.covers(range.clone()),
            None => !self.areas.is_free(range.clone()),
        };
        if !fits {
            return Err(VmError::Fault);
        }
        self.make_room(2)?;
        self.split_borders(&range)?;
        self.areas.change(range, |area| area.policy = policy);
        Ok(())
    }

    /// The policy of the area at `addr`; `None` where it has none.
    ///
    /// # Errors
    /// [`VmError::Fault`] where nothing is mapped.
    pub fn policy_at(&self, addr: VirtAddr) -> Result<Option<Policy>, VmError> {
        self.areas.at(addr).map(|area| area.policy).ok_or(VmError::Fault)
    }
}
