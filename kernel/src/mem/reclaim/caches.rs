//! The page caches that reclaim evicts from, in addition to anonymous memory: those of disks, and
//! of inodes that are stored elsewhere (`crate::stored`).
//!
//! The layer that has such caches [registers](register) them, once. Until then there are none.

use freehold_vm::{Evicted, Eviction};

/// A set of page caches whose content is stored elsewhere than in memory.
pub trait Caches: Sync {
    /// Returns the number of pages in memory.
    fn pages(&self) -> u64;
    /// Returns the numbers of pages in memory, by their state.
    fn counts(&self) -> Cached;
    /// Evicts pages as described by `request`.
    fn evict(&self, request: Eviction) -> Evicted;
    /// Returns the number of bytes that were read into the caches since boot.
    fn bytes_read(&self) -> u64;
}

/// Pages of caches in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cached {
    /// All pages of caches.
    pub pages: u64,
    /// Pages that were not written to a disk yet.
    pub dirty: u64,
    /// Pages that are being written to a disk.
    pub under_way: u64,
    /// Pages that were used repeatedly.
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

/// Number of kinds of caches.
const KINDS: usize = 2;
static CACHES: [spin::Once<&'static dyn Caches>; KINDS] = [const { spin::Once::new() }; KINDS];

/// Registers `caches` for reclaim; once for each kind.
pub fn register(caches: &'static dyn Caches) {
    // Called only at start-up, so there is no race.
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
