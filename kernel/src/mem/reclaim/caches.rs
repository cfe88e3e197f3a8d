//! The page caches that reclaim takes from, beside anonymous memory: those of disks, and of the
//! host's folders.
//!
//! The layer that has such caches [registers](register) them, once. Until then there are none.

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
    /// All pages of caches.
    pub pages: u64,
    /// Pages that a disk does not have yet.
    pub dirty: u64,
    /// Pages that are on their way to a disk.
    pub under_way: u64,
    /// Pages that were used again and again.
    pub active: u64,
}

impl Cached {
    fn and(self, other: Self) -> Self {
        Self {
            pages: self.pages + other.pages,
            dirty: self.dirty + other.dirty,
            under_way: self.under_way + other.under_way,
            active: self.active + other.active,
        }
    }
}

/// How many kinds there are.
const KINDS: usize = 2;
static CACHES: [spin::Once<&'static dyn Caches>; KINDS] = [const { spin::Once::new() }; KINDS];

/// Lets reclaim take from `caches`; once for each kind.
pub fn register(caches: &'static dyn Caches) {
    // At start-up, one after the other.
    if let Some(free) = CACHES.iter().find(|kind| !kind.is_completed()) {
        free.call_once(|| caches);
    }
}

fn all() -> impl Iterator<Item = &'static dyn Caches> {
    CACHES.iter().filter_map(|kind| kind.get().copied())
}

/// See [`Caches::pages`].
pub fn pages() -> u64 {
    all().map(Caches::pages).sum()
}

/// See [`Caches::counts`].
pub fn counts() -> Cached {
    all().map(Caches::counts).fold(Cached::default(), Cached::and)
}

/// See [`Caches::evict`].
pub fn evict(request: Eviction) -> Evicted {
    let mut done = Evicted::default();
    for caches in all() {
        done += caches.evict(request.after(done));
    }
    done
}

/// See [`Caches::bytes_read`].
pub fn bytes_read() -> u64 {
    all().map(Caches::bytes_read).sum()
}
