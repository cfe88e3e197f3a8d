//! Memory policies (mempolicy(7)): their numbers and names, and the running task's policy.
//!
//! An address space stores the policies of its areas (`freehold_vm::Policy`), and a thread its own
//! ([`acting`]). The calls are in `mem::calls`.

use core::fmt::{self, Display, Formatter};
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::{Arc, reserve};
use freehold_frame::NodeSet;
use freehold_vm::{Policy, PolicyMode, TaskPolicy};

use super::frames;
use crate::sched::thread::{self, Thread};

pub(super) const MPOL_DEFAULT: u32 = 0;
pub(super) const MPOL_PREFERRED: u32 = 1;
pub(super) const MPOL_BIND: u32 = 2;
pub(super) const MPOL_INTERLEAVE: u32 = 3;
pub(super) const MPOL_LOCAL: u32 = 4;
/// The nodes are numbers of nodes, and not indices into the permitted ones. (All nodes are
/// permitted here, so the two are equal until memory is removed.)
pub(super) const MPOL_F_STATIC_NODES: u32 = 1 << 15;
/// The nodes are indices into the permitted nodes.
pub(super) const MPOL_F_RELATIVE_NODES: u32 = 1 << 14;
pub(super) const MPOL_MODE_FLAGS: u32 = MPOL_F_STATIC_NODES | MPOL_F_RELATIVE_NODES;

/// Whether any task ever had a policy. Before that, no fault searches for one.
static POLICIES: AtomicBool = AtomicBool::new(false);

/// Returns the policy that the running task's faults obey, if it has one. `None` outside a task:
/// then the address space gets no policy.
#[inline]
pub(super) fn acting() -> Option<Option<Arc<TaskPolicy>>> {
    POLICIES.load(Ordering::Relaxed).then(|| thread::with_current(|thread| thread.memory_policy()).flatten())
}

/// Returns the nodes that have memory.
pub(super) fn nodes_with_memory() -> NodeSet {
    let zones = frames().allocator().zone_info().filter(|zone| zone.present > 0);
    NodeSet(zones.fold(0, |set, zone| set | 1 << zone.node.0))
}

/// Returns mode with flags, and nodes, as programs get them for a policy.
pub(super) fn told(policy: Option<Policy>) -> (u32, NodeSet) {
    let Some(policy) = policy else { return (MPOL_DEFAULT, NodeSet(0)) };
    let mode = match policy.mode {
        PolicyMode::Local => MPOL_LOCAL,
        PolicyMode::Preferred => MPOL_PREFERRED,
        PolicyMode::Bind => MPOL_BIND,
        PolicyMode::Interleave => MPOL_INTERLEAVE,
    };
    let flags = policy.label >> 16;
    let nodes = match (policy.mode, flags) {
        (PolicyMode::Local, _) => NodeSet(0),
        (_, 0) => policy.nodes,
        _ => NodeSet(policy.label as u16),
    };
    (mode | flags, nodes)
}

/// A policy in the format of /proc/PID/numa_maps (Documentation/filesystems/proc.rst:
/// `mode[=flags][:nodes]`).
pub struct PolicyName(pub Option<Policy>);

impl Display for PolicyName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (mode, nodes) = told(self.0);
        let name = match mode & !MPOL_MODE_FLAGS {
            MPOL_PREFERRED => "prefer",
            MPOL_BIND => "bind",
            MPOL_INTERLEAVE => "interleave",
            MPOL_LOCAL => "local",
            _ => "default",
        };
        let flags = match mode & MPOL_MODE_FLAGS {
            MPOL_F_STATIC_NODES => "=static",
            MPOL_F_RELATIVE_NODES => "=relative",
            _ => "",
        };
        write!(f, "{name}{flags}")?;
        if nodes.0 == 0 { Ok(()) } else { write!(f, ":{}", crate::fs::masks::list(nodes.0.into())) }
    }
}

/// Sets the memory policy of `thread`, or removes it.
pub(super) fn set_own(thread: &Thread, policy: Option<Policy>) {
    POLICIES.fetch_or(policy.is_some(), Ordering::Relaxed);
    thread.set_memory_policy(policy.map(|policy| reserve::arc(TaskPolicy::new(policy))));
}
