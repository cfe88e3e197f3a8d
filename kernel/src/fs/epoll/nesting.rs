//! Limits of epoll instances that watch each other.
//!
//! A wake-up of a watched instance wakes the instances that watch it, and a poll of an instance
//! polls those that it watches. Both recurse, and wake-ups do so with interrupts off. So the graph
//! of instances has no cycles. Its longest path has at most [`MOST_NESTED`] instances, and
//! [`MOST_PATHS`] limits the paths that lead up from one instance. Both directions count: a chain
//! can be built from its top as well as from its bottom. (Linux: `ep_loop_check` and
//! `ep_get_upwards_depth_proc` in fs/eventpoll.c, the latter since commit f2e467a48287. The paths
//! are those of `reverse_path_check`, which counts them per watched file; this module counts them
//! per watched instance.)
//!
//! **Protocol.** [`NESTING`] serialises all changes of the graph and all visits. An instance has a
//! list of weak references to the instances that watch it, one per watch. An edge is listed before
//! the watch exists ([`enter`]) and unlisted after the watch has ended ([`leave`]). So the list may
//! have too many entries, never too few. A visit marks the instances with its number, so it visits
//! each of them once. [`NESTING`] is taken before any instance's `items`.

use freehold_collections::{Arc, Vec, Weak, reserve::ArcMethods};

use super::Epoll;
use super::items::rest_at;
use crate::sync::{Mutex, MutexGuard, SpinLock};
use crate::{Errno, Result};

/// Number of instances on the longest path; the last one watches no other. This is Linux'
/// EP_MAX_NESTS, plus the instance that the path starts with.
const MOST_NESTED: usize = 5;
/// Limits of the paths that lead up from one instance, by length from 2 instances on (Linux'
/// path_limits).
const MOST_PATHS: [usize; MOST_NESTED - 1] = [500, 100, 50, 10];

/// The number of the latest visit.
static NESTING: Mutex<u64> = Mutex::new(0);

/// An instance's place in the graph; changed and read under [`NESTING`].
#[derive(Default)]
pub(super) struct Nest {
    above: SpinLock<Vec<Weak<Epoll>>>,
    /// The number of the last visit to this instance, and the longest path that it found from here.
    visited: SpinLock<(u64, usize)>,
}

/// A new edge. It is unlisted when this is dropped, unless it is kept.
pub(super) struct Entering<'a> {
    outer: &'a Arc<Epoll>,
    inner: &'a Arc<Epoll>,
    kept: bool,
    _nesting: MutexGuard<'static, u64>,
}

impl Entering<'_> {
    /// Keeps the edge: the watch exists.
    pub(super) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        if !self.kept {
            unlist(self.outer, self.inner);
        }
    }
}

/// Adds the edge of a watch of `inner` by `outer`, which is about to be made.
///
/// # Errors
/// `ELOOP` if the edge closes a cycle or makes a path too long, `EINVAL` if too many paths lead up,
/// `ENOMEM`.
pub(super) fn enter<'a>(outer: &'a Arc<Epoll>, inner: &'a Arc<Epoll>) -> Result<Entering<'a>> {
    let mut nesting = NESTING.lock();
    *nesting += 1;
    let below = depth_below(inner, outer, *nesting, MOST_NESTED)?;
    *nesting += 1;
    let above = depth_above(outer, *nesting);
    if above + below > MOST_NESTED {
        return Err(Errno::ELOOP);
    }
    let mut watchers = inner.nest.above.lock();
    watchers.retain(|watcher| watcher.strong_count() > 0);
    watchers.try_push(outer.downgrade())?;
    drop(watchers);
    let entering = Entering { outer, inner, kept: false, _nesting: nesting };
    let mut counts = [0; MOST_PATHS.len()];
    count_paths(inner, 0, &mut counts)?;
    Ok(entering)
}

/// Removes the edge of one watch of `inner` by `outer`.
pub(super) fn leave(outer: &Arc<Epoll>, inner: &Arc<Epoll>) {
    let _nesting = NESTING.lock();
    unlist(outer, inner);
}

fn unlist(outer: &Arc<Epoll>, inner: &Arc<Epoll>) {
    let mut watchers = inner.nest.above.lock();
    let at = watchers.iter().position(|watcher| core::ptr::eq(watcher.as_ptr(), outer.address()));
    if let Some(at) = at {
        watchers.swap_remove(at);
    }
}

/// Returns the number of instances on the longest path from `from` down, including `from`.
fn depth_below(from: &Arc<Epoll>, forbidden: &Arc<Epoll>, visit: u64, most: usize) -> Result<usize> {
    if from.is_same(forbidden) || most == 0 {
        return Err(Errno::ELOOP);
    }
    let (visited, known) = *from.nest.visited.lock();
    if visited == visit {
        return Ok(known);
    }
    let mut depth = 1;
    // The walk goes only downwards, so all tasks lock instances in the same order.
    let slots = from.items.lock().slots();
    for slot in 0..slots {
        rest_at(slot);
        // Dropping this reference may close the file, so `items` must not be locked then.
        let file = from.items.lock().at(slot).and_then(|item| item.file.upgrade());
        if let Some(inner) = file.as_ref().and_then(|file| Epoll::of(file)) {
            depth = depth.max(1 + depth_below(inner, forbidden, visit, most - 1)?);
        }
    }
    *from.nest.visited.lock() = (visit, depth);
    Ok(depth)
}

/// Returns the number of instances on the longest path from `from` up, including `from`. No path is
/// longer than [`MOST_NESTED`].
fn depth_above(from: &Arc<Epoll>, visit: u64) -> usize {
    let (visited, known) = *from.nest.visited.lock();
    if visited == visit {
        return known;
    }
    let depth = 1 + highest(from, |watcher| depth_above(watcher, visit));
    *from.nest.visited.lock() = (visit, depth);
    depth
}

/// Returns the maximum of `f` over the instances that watch `from`; 0 if there are none.
fn highest(from: &Arc<Epoll>, mut f: impl FnMut(&Arc<Epoll>) -> usize) -> usize {
    let mut most = 0;
    let mut at = 0;
    loop {
        // Not under the lock: the reference that is dropped here may be the last one to an
        // instance.
        let Some(watcher) = from.nest.above.lock().get(at).cloned() else { return most };
        if let Some(watcher) = watcher.upgrade() {
            most = most.max(f(&watcher));
        }
        at += 1;
    }
}

/// Counts the paths that lead up from `from`, which is `above` levels above the watched instance.
fn count_paths(from: &Arc<Epoll>, above: usize, counts: &mut [usize; MOST_PATHS.len()]) -> Result<()> {
    let mut outcome = Ok(());
    highest(from, |watcher| {
        if outcome.is_ok() {
            outcome = match counts.get_mut(above) {
                Some(count) if *count < MOST_PATHS[above] => {
                    *count += 1;
                    count_paths(watcher, above + 1, counts)
                }
                _ => Err(Errno::EINVAL),
            };
        }
        0
    });
    outcome
}
