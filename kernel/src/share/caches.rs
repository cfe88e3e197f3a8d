//! Reclaim of the pages of shares.

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, Vec, Weak, reserve::ArcMethods};
use freehold_vm::{Evicted, Eviction};

use super::Share;
use super::store::READ;
use crate::Result;
use crate::mem::reclaim::caches::{self, Cached, Caches};
use crate::mem::{PageCache, reclaim};
use crate::sync::SpinLock;

/// Every share that is still in use.
static SHARES: SpinLock<Vec<Weak<Share>>> = SpinLock::new(Vec::new());

struct ShareCaches;

/// Registers the page caches of shares with reclaim.
pub(super) fn init() -> Result<()> {
    caches::register(&ShareCaches);
    reclaim::start()
}

/// Adds `share` to the shares that reclaim takes pages from.
pub(super) fn list(share: &Arc<Share>) -> Result<()> {
    let mut shares = SHARES.lock();
    let free = shares.iter().position(|share| share.strong_count() == 0);
    match free {
        Some(at) => shares[at] = share.downgrade(),
        None => shares.try_push(share.downgrade())?,
    }
    Ok(())
}

/// Calls `f` with each page cache until it returns `false`.
fn each(mut f: impl FnMut(&PageCache) -> bool) {
    let share_at = |at: usize| SHARES.lock().get(at).map(|share| share.upgrade());
    for share in (0..).map_while(share_at).flatten() {
        let mut from = (0, 0);
        while let Some((key, node)) = share.next_node(from) {
            if node.as_deref().and_then(|node| node.cache()).is_some_and(|cache| !f(cache)) {
                return;
            }
            from = match (key.0.checked_add(1), key.1.checked_add(1)) {
                (_, Some(serial)) => (key.0, serial),
                (Some(path), None) => (path, 0),
                (None, None) => break,
            };
        }
    }
}

/// Gives back all clean pages without mappings.
pub fn drop_clean() {
    each(|cache| {
        cache.shrink(u64::MAX);
        true
    });
}

impl Caches for ShareCaches {
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
        READ.load(Ordering::Relaxed)
    }
}
