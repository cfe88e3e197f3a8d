//! Machines with several nodes: a task runs on the node of its stack, which also has most of the
//! other memory that it uses.
//!
//! - A new task begins on an idle CPU and gets a stack there ([`settle`]). If the creator's node
//!   has no idle CPU, the CPU may be of any node.
//! - A task that wakes stays on its stack's node, even if all CPUs there are busy ([`place`]): most
//!   tasks are woken by a task that is about to sleep or end.
//! - A CPU without work takes a task from CPUs of its own node; from another node's CPU only if two
//!   tasks wait there ([`steal`]).
//! - If a task still waits when its CPU's slice ends, an idle CPU of another node is called, and
//!   may take the task even though it is the only one waiting ([`relieve`]). So no CPU idles for
//!   longer than a slice while a task waits. The task returns to its stack's node when it next
//!   wakes and an idle CPU is there.
//!
//! **Protocol of a call.** The caller sets `helps`, then `wanted` (release), then interrupts the
//! idle CPU. That CPU checks `wanted` (acquire) with interrupts off before it halts, and `helps`
//! before it steals. So a call is never lost: the CPU sees `wanted` and searches for a task once
//! more, or the interrupt ends its halt. The stealing CPU counts and takes tasks under one
//! acquisition of the other CPU's lock, since that CPU may run the task itself. `nodes_model`
//! explores the orders.
//!
//! On a machine with one node each check is a no-op ([`StaticKey::TASK_NODES`]).
//!
//! Linux' relatives are `select_idle_sibling`, which looks at the CPUs that share a cache, and
//! `adjust_numa_imbalance` (kernel/sched/fair.c).

use core::sync::atomic::Ordering;

use freehold_collections::Arc;
use freehold_machine::{CpuId, CpuSet, Cpus, NodeId};

use super::heap::Positioned;
use super::runqueue::LOOKED_AT;
use super::thread::Thread;
use super::{cpu, online, want};
use crate::hw::Hardware;
use crate::hw::static_keys::{self, StaticKey};

/// Whether the machine has several nodes, so that tasks run on the nodes of their stacks.
#[inline(always)]
pub(super) fn are_several() -> bool {
    static_keys::is_on::<{ StaticKey::NODES }>()
}

/// Returns those of `cpus` that are on `node`.
fn on_node(cpus: CpuSet, node: NodeId) -> CpuSet {
    CpuSet(cpus.iter().filter(|&id| Hardware.node_of_cpu(id) == node).fold(0, |set, id| set | 1 << id.0))
}

/// Returns an idle CPU of `cpus`: `home`, if that is idle and in the set.
fn idle_one(cpus: CpuSet, home: CpuId) -> Option<CpuId> {
    let is_idle = |id: &CpuId| cpu(*id).idle.load(Ordering::Relaxed);
    if cpus.contains(home) && is_idle(&home) { Some(home) } else { cpus.iter().find(is_idle) }
}

/// Chooses a CPU for a task that wakes and whose previous CPU is `home`.
#[cold]
#[inline(never)]
pub(super) fn place(task: &Thread, home: CpuId) -> CpuId {
    let allowed = CpuSet(task.schedule.affinity().0 & online().0);
    let near = on_node(allowed, NodeId(task.schedule.node.load(Ordering::Relaxed)));
    if let Some(idle) = idle_one(near, home) {
        return idle;
    }
    let at_home = CpuSet(allowed.0 & CpuSet::single(home).0);
    let else_idle = if near.is_empty() { allowed } else { at_home };
    if let Some(idle) = idle_one(else_idle, home) {
        return idle;
    }
    let good = if near.is_empty() { allowed } else { near };
    if good.contains(home) { home } else { good.iter().next().unwrap_or(home) }
}

/// Chooses the CPU on which a new task will begin, before it has a stack. Returns that CPU's node,
/// on which the stack is to be allocated. Another task may be running there when it begins.
#[cold]
#[inline(never)]
pub(super) fn settle(task: &Thread) -> NodeId {
    let schedule = &task.schedule;
    let home = CpuId(schedule.cpu.load(Ordering::Relaxed));
    let allowed = CpuSet(schedule.affinity().0 & online().0);
    let near = on_node(allowed, Hardware.node_of_cpu(home));
    let idle = idle_one(near, home).or_else(|| idle_one(allowed, home));
    let other = || if allowed.contains(home) { None } else { allowed.iter().next() };
    let begins = idle.or_else(other).unwrap_or(home);
    let node = Hardware.node_of_cpu(begins);
    schedule.cpu.store(begins.0, Ordering::Relaxed);
    schedule.node.store(node.0, Ordering::Relaxed);
    node
}

/// Takes a task that waits on another CPU, for `me`, which has no task.
pub(super) fn steal(me: CpuId) -> Option<Arc<Thread>> {
    let others = online().without(me);
    let near = on_node(others, Hardware.node_of_cpu(me));
    if let Some(task) = near.iter().find_map(|victim| steal_from(victim, me, 1)) {
        return Some(task);
    }
    let least = if cpu(me).helps.swap(false, Ordering::Relaxed) { 1 } else { 2 };
    CpuSet(others.0 & !near.0).iter().find_map(|victim| steal_from(victim, me, least))
}

/// Takes a task that waits on `victim`, for `me`, if at least `least` tasks wait there. The task is
/// then in no queue.
pub(super) fn steal_from(victim: CpuId, me: CpuId, least: usize) -> Option<Arc<Thread>> {
    let mut looked_at = 0;
    loop {
        let mut queue = cpu(victim).queue.lock();
        if queue.waiting() < least {
            return None;
        }
        if let Some(stolen) = queue.steal(me) {
            debug_assert!(stolen.position().is_none());
            stolen.belongs_to(me);
            return Some(stolen);
        }
        // Interrupts are off while a few tasks are looked at. An idle CPU looks at all.
        looked_at += LOOKED_AT;
        if looked_at >= queue.waiting() {
            return None;
        }
    }
}

/// Lets an idle CPU of another node take a task that still waits on `busy` at the end of a slice.
/// Any context.
#[cold]
#[inline(never)]
pub(super) fn relieve(busy: CpuId) {
    let all = online();
    let near = on_node(all, Hardware.node_of_cpu(busy));
    if let Some(idle) = idle_one(CpuSet(all.0 & !near.0), busy) {
        cpu(idle).helps.store(true, Ordering::Relaxed);
        want(idle);
    }
}
