//! Page tables of address spaces: typed entries, walks, one root per node, and the TLB flush
//! protocol.
//!
//! An address space has two sides here:
//! - [`Space`] is its only editor. The editor's owner (an address space under its lock) maps,
//!   unmaps and walks.
//! - [`Roots`] is loaded by CPUs. It is shared, and outlives the `Space` as long as a CPU has it
//!   loaded.
//!
//! **Every root is per node.** `Roots` has one top-level table for each node whose CPUs have run
//! the space. They agree in every user slot: all changes go through one function under one lock.
//! The kernel half is copied from the node's template when a root is made and never changes
//! afterwards.
//!
//! **Nothing is freed before it is flushed.** Frames and tables that are removed from a table move
//! into a [`FlushBatch`]. The batch releases them only when no CPU's translation caches contain
//! them any more.
//!
//! **Locks.** An editor is exclusive by `&mut`. `Roots` has a spin lock for top-level entries. No
//! other lock is taken and nothing is allocated under it. Flushing interrupts other CPUs and waits
//! for them, so it is called with interrupts on and without a lock that an interrupt handler takes.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;
#[cfg(feature = "model")]
extern crate std;

#[cfg(test)]
mod alone_model;
mod entry;
mod flush;
#[cfg(feature = "model")]
pub mod model;
mod roots;
mod shift;
mod space;

use freehold_frame::FrameSource;
use freehold_machine::{CpuId, Machine, NodeId, Pfn, VirtAddr};
use freehold_xpfo::Windows;

pub use entry::{Backing, Entry, Marks, Rights, SwapPlace};
pub use flush::{FULL_FLUSH_PAGES, FlushBatch};
pub use roots::{Roots, TableWalk};
pub use shift::Prepared;
pub use space::{Cursor, EntryAt, Leaves, PageSize, Reached, Slot, Space};

/// One past the last user address: the page below the non-canonical hole is never mapped, so that
/// no instruction can run into the hole (SYSRET to a non-canonical address faults in ring 0 on
/// Intel CPUs).
pub const USER_END: VirtAddr = VirtAddr(0x7fff_ffff_f000);

/// Memory under page tables: a source of frames on a complete machine, which opens windows on
/// frames that are held.
pub trait Memory: FrameSource<Machine: Machine + Windows> {}

impl<S: FrameSource<Machine: Machine + Windows>> Memory for S {}

/// The origin of the kernel's half of every root.
#[derive(Clone, Copy, Debug)]
pub struct KernelRoots {
    root_of: fn(NodeId) -> Pfn,
    shares: fn(CpuId),
}

impl KernelRoots {
    /// Makes the roots from `root_of`, which returns a node's top-level table. Every root of the
    /// node copies that table's upper half, which never changes.
    pub const fn new(root_of: fn(NodeId) -> Pfn) -> Self {
        Self { root_of, shares: |_| {} }
    }
    /// Sets a function that is called when no memory was left for a root of a CPU's node: each time
    /// before the CPU loads a root with another node's upper half, with interrupts off.
    #[must_use]
    pub const fn telling(self, shares: fn(CpuId)) -> Self {
        Self { shares, ..self }
    }
    pub(crate) fn of(self, node: NodeId) -> Pfn {
        (self.root_of)(node)
    }
    pub(crate) fn note_sharing(self, cpu: CpuId) {
        (self.shares)(cpu);
    }
}

#[cfg(test)]
mod tests;
