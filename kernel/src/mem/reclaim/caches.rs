//! The page caches that reclaim takes from, beside anonymous memory: those of disks.
//!
//! Who has such caches [registers](register) them, once. Until then there are none.

use freehold_vm::{Evicted, Eviction};

/// A set of page caches with something else behind them than memory.
pub trait Caches: Sync {
    /// Pages in memory.
    fn pages(&self) -> u64;
    /// Pages in memory, by their state.
    fn counts(&self) -> Cached;
    /// Gives back frames as `request` says.
    fn evict(&self, request: Eviction) -> Evicted;
    /// Bytes that were read for the caches since boot.
    fn bytes_read(&self) -> u64;
}

/// Pages of caches in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cached {
    /// All of them.
    pub pages: u64,
    /// Those that a disk does not have yet.
    pub dirty: u64,
    /// Those that are on their way to one.
    pub under_way: u64,
    /// Those that were used again and again.
    pub active: u64,
}

static CACHES: spin::Once<&'static dyn Caches> = spin::Once::new();

/// Lets reclaim take from `caches`; once.
pub fn register(caches: &'static dyn Caches) {
    CACHES.call_once(|| caches);
}

/// See [`Caches::pages`].
pub fn pages() -> u64 {
    CACHES.get().map_or(0, |caches| caches.pages())
}

/// See [`Caches::counts`].
pub fn counts() -> Cached {
    CACHES.get().map_or(Cached::default(), |caches| caches.counts())
}

/// See [`Caches::evict`].
pub fn evict(request: Eviction) -> Evicted {
    CACHES.get().map_or(Evicted::default(), |caches| caches.evict(request))
}

/// See [`Caches::bytes_read`].
pub fn bytes_read() -> u64 {
    CACHES.get().map_or(0, |caches| caches.bytes_read())
}
