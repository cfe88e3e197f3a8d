//! Address spaces of processes: areas, page faults, exact copy-on-write; and the page cache that
//! they map.
//!
//! An [`AddressSpace`] is a sorted set of areas (the process' requests) and page tables, which are
//! filled on demand. A [`PageCache`] holds the frames of one file, of shared anonymous memory, or
//! of a block device.
//!
//! **Exact copy-on-write.** An anonymous frame is *exclusive* to one address space or *shared*; the
//! frame's record tells which, and has an exact count of pins. From this follows everything else:
//! - a leaf of private memory grants writing only while its frame is anonymous and exclusive;
//! - a write fault on an exclusive frame keeps it, even with other references;
//! - fork shares unpinned frames, and copies pinned ones at once for the child;
//! - the last remaining user of a shared frame becomes its exclusive owner again instead of
//!   copying;
//! - only an exclusive frame, or one of truly shared memory, can be pinned ([`AddressSpace::pin`]
//!   unshares first; [`pin_fast`] takes no lock).
//!
//! **Locks.** Methods of `AddressSpace` take `&mut self`: its owner wraps it in a lock that may
//! sleep, since a fault may read from a device. First accesses to anonymous memory, which many
//! threads may make at once, need only `&self` ([`AddressSpace::fault_shared`]). Order: a file's
//! own locks > address space > the turn to copy a frame (`turns`) > page cache and swap (spin locks
//! inside, never held over sleeping or user bytes) > page allocator. Truncation needs the address
//! spaces that map the file, in any order and one at a time, so its caller holds none
//! ([`SpaceHandle`]).
//!
//! **Failure.** Running out of memory is [`VmError::NoMemory`] or [`FaultError::OutOfMemory`], and
//! the space stays valid: pages may have become read-only or absent, but their contents are
//! unchanged. Nodes of the area tree and of the cache's index come from the global allocator and
//! are small; a caller for which that may fail makes sure of a few KiB first.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod advise;
mod area;
mod areas;
mod around;
mod cache;
mod choice;
mod collapse;
mod error;
mod events;
mod fault;
mod fork;
mod grow;
mod huge;
mod hugetlb;
mod idle;
mod keys;
mod leaf_hold;
mod lock;
mod map;
mod merge;
mod migrate;
mod monitor;
mod new_page;
mod pin;
mod policy;
mod promise;
mod refs;
mod registry;
mod remap;
mod remote;
mod remove;
mod request;
mod resident;
mod scan;
mod shared_fault;
mod space;
mod swap;
mod turns;
mod vdso;
mod view;

pub use advise::{Advice, OtherCopies, SyncCall, SyncMode};
pub use cache::{
    Allocation, BackingStore, Batch, CacheChange, ErrorsTold, Evacuated, Evicted, Eviction, HeldPage,
    Laundry, MAX_RUN, MirrorText, PageAccount, PageCache, refaults,
};
pub use choice::FrameChoice;
pub use collapse::{CollapseLimits, CollapseStep};
pub use error::{FaultError, FaultKind, SegvCode, VmError};
pub use events::Event;
pub use fault::Populate;
pub use freehold_machine::{Access, KeyRights, ProtectionKey};
pub use freehold_paging::{KernelRoots, Memory, PageSize, SwapPlace};
pub use huge::{BlockWish, HugeMode, HugeUse, HugeZero};
pub use hugetlb::{HugeBudget, HugePoolFigures};
pub use keys::{KeyChange, KeySet};
pub use lock::{LockAll, LockMode};
pub use map::{Unmapped, whole_pages};
pub use merge::{MergeCursor, MergeFigures, MergeRules, MergeScan, MergeSums, MergeWish, MergedPages};
pub use migrate::{CachedPage, MigrateOutcome, Migration, PageNode, SharedPages};
pub use monitor::{Lack, Monitor, NewPage, Wanted, Watching};
pub use pin::{
    LongTerm, PinnedPage, Purpose, ReadOnly, ReadWrite, Rule, Term, Transient, pin_fast, pin_fast_run,
};
pub use policy::{Policy, PolicyMode, TaskPolicy};
pub use promise::PromiseLimit;
pub use refs::ClearRefs;
pub use registry::{Locking, SpaceHandle, Visited};
pub use remap::{Pause, Remap, RemapPlace, RemapSource};
pub use remote::{FutexKey, RemoteAccess};
pub use remove::Removal;
pub use request::{
    AreaFlags, AreaPlace, Backing, FileView, LOW, Layout, Limits, MapRequest, MappedFile, Protect,
    ProtectExtent, Protection, SharedWrite,
};
pub use space::{AddressSpace, Commons, Translation};
pub use swap::{Age, EvictWish, SWAP_RUN, Swap, SwapArea, SwapAreaInfo, SwapEvicted, SwapStore, SwapUsage};
pub use vdso::{TIME_PAGES, Vdso, VdsoPart};
pub use view::{AreaName, AreaView, Footprint, OfFile, PageAt, PageView, Sharing, Smaps, Usage, Written};

#[cfg(test)]
mod tests;
