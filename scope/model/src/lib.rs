//! Models of what an emulator does not show.
//!
//! An emulator that is told to count every access of a guest knows addresses and nothing else. These models
//! turn addresses into what hardware would have done with them:
//!
//! - [`SetAssociative`]: the processor's last-level cache, which filters what reaches memory;
//! - [`NearCache`]: a direct-mapped memory-side cache, with every miss classified as cold, capacity or conflict by a
//!   fully associative shadow ([`LruShadow`]);
//! - [`Tlb`]: a translation cache that remembers how long each entry lived and what ended it;
//! - [`Locality`]: which node's memory each CPU reads, writes and executes;
//! - [`Heat`]: how often each page was touched, over time.
//!
//! Plain single-threaded structures: whoever feeds them from many CPUs keeps one per CPU or locks.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cache;
mod heat;
mod locality;
mod near;
mod shadow;
mod tlb;

pub use cache::{Geometry, GeometryError, Lookup, SetAssociative};
pub use heat::Heat;
pub use locality::{Kind, Locality, Mode};
pub use near::{Miss, NearCache, NearStatistics, Outcome};
pub use shadow::LruShadow;
pub use tlb::{Death, Lifetimes, PageSize, Tlb, TlbGeometry, Translation};

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A load or an instruction fetch.
    Read,
    /// A store.
    Write,
}
