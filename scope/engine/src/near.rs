//! The memory-side caches, which all CPUs share: each behind a lock.
//!
//! Only lines that a CPU's own last-level cache misses come here, a few percent of all accesses, so
//! the locks are rarely contended. A CPU that finds a lock taken spins: a sleeping thread of the
//! emulator would look idle.

use std::sync::{Mutex, MutexGuard, TryLockError};

use freehold_scope_model::{AccessKind, AccessOutcome, Miss, NearCache};
use freehold_scope_record::{
    Bucket, Collision, MemoryBackends, NearCounts, NearResult, Settings, SettingsError,
};

/// Largest number of owner classes.
pub const CLASSES: usize = 16;
/// Number of pairs of frames that are named in the results.
const PAIRS: usize = 64;

struct NearNode {
    cache: NearCache,
    /// The memory behind it, from the first address to one past the last. Memory that is plugged in
    /// later is not modelled: its addresses are far away, and the model pays for each line between.
    span: (u64, u64),
    size: u64,
    collisions: [[u64; CLASSES]; CLASSES],
    hits: u64,
}

/// One cache per node; empty if no caches are modelled.
pub struct NearCaches {
    nodes: Vec<Mutex<NearNode>>,
}

/// Spins until the lock is free.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

impl NearCaches {
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let Some((model, near)) =
            settings.models.cache.and_then(|cache| cache.near.map(|near| (cache, near)))
        else {
            return Ok(Self { nodes: Vec::new() });
        };
        let span = |memory: &MemoryBackends, node| {
            let own = memory.ranges.iter().filter(move |range| range.backend == node);
            let start = own.clone().map(|range| range.start).min();
            // The model needs at least one line of memory: for a node that begins without memory,
            // the model has a line that is never used.
            let end = own.map(|range| range.start + range.bytes).max().unwrap_or(model.line);
            (start.unwrap_or(0), end)
        };
        let node = |number| {
            let (start, end) = span(&settings.memory, number);
            let cache = NearCache::new(start, end, near.size, model.line)
                .map_err(|error| SettingsError { setting: "near cache", problem: error.to_string() })?;
            Ok(Mutex::new(NearNode {
                cache,
                span: (start, end),
                size: near.size,
                collisions: [[0; CLASSES]; CLASSES],
                hits: 0,
            }))
        };
        let nodes = (0..settings.memory.backends.len()).map(node).collect::<Result<_, _>>()?;
        Ok(Self { nodes })
    }

    /// Notes a line that moved from or to memory of `node`. `class` returns the owner class of a
    /// guest-physical address.
    pub fn access(&self, node: usize, address: u64, access: AccessKind, class: impl Fn(u64) -> usize) {
        let Some(node) = self.nodes.get(node) else { return };
        let mut node = lock(node);
        if !(node.span.0..node.span.1).contains(&address) {
            return;
        }
        match node.cache.access(address, access) {
            AccessOutcome::Hit => node.hits += 1,
            AccessOutcome::Miss(Miss::Conflict { evicted }) => {
                let (left, came) = (class(evicted) % CLASSES, class(address) % CLASSES);
                node.collisions[left][came] += 1;
            }
            AccessOutcome::Miss(_) => {}
        }
    }

    /// Returns the counts since the last call, by node.
    pub fn take_counts(&self) -> Vec<NearCounts> {
        let take = |node: &Mutex<NearNode>| {
            let mut node = lock(node);
            let counts = node.cache.take_statistics();
            NearCounts {
                accesses: counts.accesses,
                hits: core::mem::take(&mut node.hits),
                cold: counts.cold,
                capacity: counts.capacity,
                conflict: counts.conflict,
                written_back: counts.written_back,
            }
        };
        self.nodes.iter().map(take).collect()
    }

    /// Returns the frames of the worst pairs, more of them than the results have: pairs may follow.
    pub fn frames_of_pairs(&self) -> impl Iterator<Item = u64> {
        let pairs = self.nodes.iter().flat_map(|node| lock(node).cache.worst_pairs(4 * PAIRS));
        pairs.flat_map(|((evicted, arrived), _)| [evicted, arrived])
    }

    /// Returns the results of the whole run, for `classes` owner classes.
    pub fn results(&self, classes: usize) -> Vec<NearResult> {
        let result = |node: &Mutex<NearNode>| {
            let node = lock(node);
            let bucket = |(accesses, conflicts, occupied)| Bucket { accesses, conflicts, occupied };
            let buckets: Vec<Bucket> = node.cache.buckets().map(bucket).collect();
            let pair = |((evicted, arrived), count)| Collision { evicted, arrived, count };
            NearResult {
                size: node.size,
                sets: node.cache.lines(),
                sets_per_bucket: node.cache.lines() / buckets.len() as u64,
                buckets,
                collisions: node.collisions[..classes].iter().map(|row| row[..classes].to_vec()).collect(),
                pairs: node.cache.worst_pairs(PAIRS).into_iter().map(pair).collect(),
            }
        };
        self.nodes.iter().map(result).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freehold_scope_record::{CacheModel, CacheShape, HwAddress, NearShape, PluggableMemory};

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_that_is_plugged_in_is_beside_the_caches_of_its_node() {
        let growth = vec![PluggableMemory { node: 1, bytes: 64 * MIB }];
        let memory = MemoryBackends::q35(&[64 * MIB, 0], HwAddress::GuestPhysical).with_growth(growth);
        let start = memory.growth_starts()[0];
        let mut settings = Settings::new("results".into(), memory, vec![0, 1]);
        let shape = CacheShape { size: 4096, ways: 2 };
        let near = Some(NearShape { size: MIB });
        settings.models.cache = Some(CacheModel { line: 64, first: shape, last: shape, near });
        let near = NearCaches::new(&settings).expect("a power of two");
        near.access(0, 4096, AccessKind::Read, |_| 0);
        near.access(1, start, AccessKind::Read, |_| 0);
        let accesses: Vec<u64> = near.take_counts().iter().map(|counts| counts.accesses).collect();
        assert_eq!(accesses, [1, 0]);
    }
}
