//! The page allocator: which frame is handed out next?
//!
//! - **Pageblocks** of 2 MiB are free on one side of the direct map, handed out as a whole, or
//!   split up for one owner ([`Owner`]) with a bitmap of their free frames.
//! - **Shuffle by construction**: a free pageblock is drawn with equal probability from all free
//!   ones, at boot and after any number of frees (`set`). A frame is drawn with equal probability
//!   from those in the CPU's list (`pcp`). This needs no pass over memory.
//! - **Placement** (`place`): behind a direct-mapped memory-side cache, user frames come from the
//!   bins that have the fewest.
//! - **Sides**: a pageblock is in the kernel's direct map as a whole or not at all. It changes
//!   sides only when it is wholly free, never under a lock; many pageblocks change with one flush.
//! - **Per-CPU lists** for orders 0–9: a hit takes no lock and no atomic read-modify-write.
//! - **Per-CPU pageblocks** (`arena`): each CPU takes frames out of its own split pageblocks, and a
//!   freed frame returns to the CPU that has its pageblock. So CPUs share a lock only when a
//!   pageblock is added or removed.
//! - **Misuse** is always detected, by the frame's own record, and reported with the frame's last
//!   owner.
//!
//! Locks: an arena's lock, and inside it its node's; no others.
//!
//! [`Owner`]: freehold_frame::Owner
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arena;
mod block;
mod buddy;
mod charge;
mod drain;
mod fill;
mod find;
mod gather;
mod hotplug;
mod info;
mod init;
mod misuse;
mod numa;
mod options;
mod output;
mod pcp;
mod place;
mod rng;
mod runs;
mod set;
mod shape;
mod sides;
mod take;
mod validate;
mod word;
mod zone;

pub use buddy::Buddy;
pub use drain::Moment;
pub use hotplug::PlugError;
pub use info::{Activity, ORDERS, PcpInfo, ZoneBlocks, ZoneInfo};
pub use init::{InitError, Managed};
pub use misuse::Misuse;
pub use numa::{NumaStats, Traffic};
pub use options::{
    BadParameter, Bill, Check, DenialSink, FaultHook, Ledger, MisuseSink, ObjectReserve, Options, Placement,
    PressureSink, Shuffle, Wipe,
};
pub use pcp::Pcp;
pub use validate::{AllocatorFault, Disagreement};
pub use zone::Watermarks;
