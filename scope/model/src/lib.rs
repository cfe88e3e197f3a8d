//! Models of hardware that an emulator does not have.
//!
//! An emulator that counts every access of a guest knows only addresses. These models compute the
//! effects of the addresses on hardware:
//!
//! - [`SetAssociative`]: the processor's last-level cache, which filters what reaches memory;
//! - [`NearCache`]: a direct-mapped memory-side cache, with every miss classified as cold, capacity
//!   or conflict by a fully associative shadow ([`LruShadow`]);
//! - [`Tlb`]: translation caches that remember how long each entry lived and what ended it;
//! - [`Slices`]: anything counted over time, in a bounded number of slices.
//!
//! The models are plain single-threaded structures: a caller with many CPUs keeps one per CPU or
//! locks.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cache;
mod near;
mod shadow;
mod slices;
mod tlb;

pub use cache::{Geometry, GeometryError, Lookup, SetAssociative};
pub use near::{AccessOutcome, Miss, NearCache, NearStatistics};
pub use shadow::LruShadow;
pub use slices::{Join, Slices};
pub use tlb::{
    Cached, Death, Ended, FirstLevel, Hint, LevelShape, Lifetimes, Missed, PageSize, Replacement, Scope,
    TOLD, Tlb, TlbKey, TlbShape, Walked,
};

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// A load or an instruction fetch.
    Read,
    /// A store.
    Write,
}
