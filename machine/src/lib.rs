//! The hardware that a memory manager needs, as traits.
//!
//! Every mm crate is written against these traits and nothing else: no kernel, no registers, no
//! emulator. So each runs under plain `cargo test` on the software machine (the module `model`,
//! feature `model`), whose TLBs remember entries that a missing flush leaves behind.
#![cfg_attr(all(doctest, feature = "model"), doc = include_str!("../README.md"))]
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(feature = "model")]
extern crate std;

mod address;
mod cpu;
mod domain;
pub mod entry;
mod hardware;
mod keys;
#[cfg(feature = "model")]
pub mod model;
mod publish;
mod tally;
pub mod topology;

pub use address::{
    Access, BLOCK_ORDER_MASK, BLOCK_ORDER_SHIFT, BOUNCE_ORDER, BOUNCE_OWNER, KERNEL_OWNERS, PAGE, PAGE_SHIFT,
    PAGE_SIZE, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, PROGRAM_OWNER, PROGRAM_OWNER_MASK, Pfn, PfnRange, PhysAddr,
    VirtAddr,
};
pub use cpu::{AtomicCpuSet, CpuId, CpuSet, Cpus, MAX_CPUS, NodeId, Pinned};
pub use domain::{DeviceAccess, DeviceDomain, MAX_WINDOWS, NoTables, Unconfirmed, WINDOW_PAGES};
pub use hardware::{
    DirectMap, Entropy, Flush, Machine, PhysicalBytes, TABLE_ENTRIES, Tables, Tlb, page_by_page,
};
pub use keys::{KeyRights, ProtectionKey};
pub use publish::{NotPublished, NotWithdrawn, Publish};
pub use tally::Tally;
pub use topology::Topology;
