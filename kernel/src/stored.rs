//! Inodes of file systems whose pages are all clean and can be read again: folders of the host, and
//! disks that are mounted.
//!
//! Each such file system has a [`NodeTable`], which finds a node by its number while the node is in
//! use. The table also keeps nodes with pages for a while after their last use, so that the next
//! open finds the pages. Reclaim takes pages of all nodes of all tables.
//!
//! **Locks.** Each table has two spin locks, under which nothing sleeps and no node is dropped.

use core::ops::Bound;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_collections::reserve::{self, ArcMethods};
use freehold_collections::{Arc, Map, Vec, VecDeque, Weak};
use freehold_vm::{Evicted, Eviction, VmError};
use spin::Once;

use crate::mem::PageCache;
use crate::mem::reclaim::caches::{self, Cached, Caches};
use crate::sync::SpinLock;
use crate::{Errno, Result};

/// Number of nodes of a table whose pages are kept although no program has them open.
const RECENT: usize = 1024;

/// Bytes that were read into the pages of nodes since boot.
pub static BYTES_READ: AtomicU64 = AtomicU64::new(0);
/// Every table that is still in use.
static TABLES: SpinLock<Vec<Weak<dyn CachedTable>>> = SpinLock::new(Vec::new());

/// Returns the error of a fault whose page could not be read.
pub fn vm_error(error: Errno) -> VmError {
    match error {
        Errno::EINTR => VmError::Interrupted,
        Errno::ENOMEM => VmError::NoMemory,
        _ => VmError::Io,
    }
}

/// An inode of a table.
pub trait CachedNode: Send + Sync {
    /// Returns the page cache of a regular file.
    fn cache(&self) -> Option<&Arc<PageCache>>;
    /// Returns whether the node was used since the last call.
    fn take_used(&self) -> bool;
}

/// The nodes of a file system, by their keys.
pub struct NodeTable<K, N> {
    nodes: SpinLock<Map<K, Weak<N>>>,
    /// Nodes that are kept for the sake of their pages, oldest first.
    recent: SpinLock<VecDeque<Arc<N>>>,
    /// Whether the file system is mounted. After the unmount no node is kept any more.
    is_open: AtomicBool,
}

impl<K: Ord + Copy + Send + Sync + 'static, N: CachedNode + 'static> NodeTable<K, N> {
    /// Makes an empty table, from whose nodes reclaim takes pages from now on.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>> {
        static STARTED: Once<()> = Once::new();
        STARTED.call_once(|| caches::register(&NodeCaches));
        let table = reserve::arc(Self {
            nodes: SpinLock::new(Map::new()),
            recent: SpinLock::new(VecDeque::new()),
            is_open: AtomicBool::new(true),
        });
        let listed: Weak<dyn CachedTable> = table.downgrade();
        let mut tables = TABLES.lock();
        let free = tables.iter().position(|table| table.strong_count() == 0);
        match free {
            Some(at) => tables[at] = listed,
            None => tables.try_push(listed)?,
        }
        drop(tables);
        Ok(table)
    }

    /// Returns the first key from `from` on, and its node if that is in use.
    pub fn next(&self, from: Bound<&K>) -> Option<(K, Option<Arc<N>>)> {
        let nodes = self.nodes.lock();
        nodes.first_from(from).map(|(&key, node)| (key, node.upgrade()))
    }

    /// Returns the node with this key, if it is in use.
    pub fn get(&self, key: K) -> Option<Arc<N>> {
        self.nodes.lock().get(&key)?.upgrade()
    }

    /// Puts a node into the table, unless there is one with this key: then returns that.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&self, key: K, node: &Arc<N>) -> Result<Option<Arc<N>>> {
        let mut nodes = self.nodes.lock();
        if let Some(known) = nodes.get(&key).and_then(|known| known.upgrade()) {
            return Ok(Some(known));
        }
        let before = nodes.try_insert(key, node.downgrade());
        drop(nodes);
        drop(before?);
        Ok(None)
    }

    /// Forgets a node that has ended.
    pub fn forget(&self, key: K) {
        let mut nodes = self.nodes.lock();
        // Another node may have the key by now.
        let is_over = nodes.get(&key).is_some_and(|node| node.strong_count() == 0);
        let gone = if is_over { nodes.remove(&key) } else { None };
        drop(nodes);
        drop(gone);
    }

    /// Keeps a node with pages for a while, and releases a node that was not used for long.
    pub fn keep(&self, node: &Arc<N>) {
        if node.cache().is_none() || !self.is_open.load(Ordering::Acquire) {
            return;
        }
        let mut gone = None;
        {
            let mut recent = self.recent.lock();
            let has_room = recent.len() < RECENT && recent.try_push_back(node.clone()).is_ok();
            // A node that was used since the last pass is spared once.
            for _ in 0..if has_room { 0 } else { recent.len().min(8) } {
                let Some(oldest) = recent.pop_front() else { break };
                if oldest.take_used() {
                    recent.push_back_reserved(oldest);
                } else {
                    recent.push_back_reserved(node.clone());
                    gone = Some(oldest);
                    break;
                }
            }
        }
        drop(gone);
    }

    /// Stops keeping a node for the sake of its pages.
    pub fn let_go_of(&self, node: &Arc<N>) {
        let mut kept = None;
        {
            let mut recent = self.recent.lock();
            // One full rotation: the remaining nodes keep their order.
            for _ in 0..recent.len() {
                let Some(oldest) = recent.pop_front() else { break };
                if oldest.is_same(node) {
                    kept = Some(oldest);
                } else {
                    recent.push_back_reserved(oldest);
                }
            }
        }
        drop(kept);
    }

    /// Stops keeping nodes, since the file system is no longer mounted. Nodes keep their file
    /// system, so this ends the cycle.
    pub fn close(&self) {
        self.is_open.store(false, Ordering::Release);
        let recent = core::mem::take(&mut *self.recent.lock());
        drop(recent);
    }
}

/// A table, whatever its nodes are.
trait CachedTable: Send + Sync {
    /// Calls `f` with each page cache until it returns `false`. Returns whether it never did.
    fn each(&self, f: &mut dyn FnMut(&PageCache) -> bool) -> bool;
}

impl<K: Ord + Copy + Send + Sync + 'static, N: CachedNode + 'static> CachedTable for NodeTable<K, N> {
    fn each(&self, f: &mut dyn FnMut(&PageCache) -> bool) -> bool {
        let mut last = None;
        while let Some((key, node)) = self.next(last.as_ref().map_or(Bound::Unbounded, Bound::Excluded)) {
            if node.as_deref().and_then(CachedNode::cache).is_some_and(|cache| !f(cache)) {
                return false;
            }
            last = Some(key);
        }
        true
    }
}

/// Calls `f` with each page cache until it returns `false`.
fn each(mut f: impl FnMut(&PageCache) -> bool) {
    let table_at = |at: usize| TABLES.lock().get(at).map(|table| table.upgrade());
    let _ended_early = !(0..).map_while(table_at).flatten().all(|table| table.each(&mut f));
}

/// Gives back all clean pages without mappings.
pub fn drop_clean() {
    each(|cache| {
        cache.shrink(u64::MAX);
        true
    });
}

struct NodeCaches;

impl Caches for NodeCaches {
    fn pages(&self) -> u64 {
        self.counts().pages
    }
    fn counts(&self) -> Cached {
        let mut sum = Cached::default();
        each(|cache| {
            sum.pages += cache.pages();
            sum.dirty += cache.dirty_pages();
            sum.active += cache.active_pages();
            true
        });
        sum
    }
    fn evict(&self, request: Eviction) -> Evicted {
        let mut done = Evicted::default();
        each(|cache| {
            done += cache.evict(request.after(done));
            done.freed < request.want && done.scanned < request.most
        });
        done
    }
    fn bytes_read(&self) -> u64 {
        BYTES_READ.load(Ordering::Relaxed)
    }
}
