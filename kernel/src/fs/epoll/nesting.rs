//! Which epoll instances watch each other, and how far that may go.
//!
//! A wake-up of a watched instance wakes those that watch it, and a poll of an instance polls those
//! that it watches: both by recursion, wake-ups with interrupts off. So the graph of instances is
//! kept without circles, its longest path at [`MOST_NESTED`] instances, and the paths that lead up
//! from one instance at [`MOST_PATHS`]. Both ways count: a chain can be built from its top as well
//! as from its bottom (Linux: `ep_loop_check` and `ep_get_upwards_depth_proc` in fs/eventpoll.c,
//! the latter since commit f2e467a48287; the paths are those of `reverse_path_check`, which counts
//! them for each watched file, this one for each watched instance).
//!
//! **Protocol.** [`NESTING`] orders all changes of the graph and all visits. An instance lists
//! weakly the instances that watch it, once per watch. An edge is listed before the watch is there
//! ([`enter`]) and unlisted after it is gone ([`leave`]): the list may hold more than there is,
//! never less. A visit marks the instances with its number, so it sees each of them once.
//! [`NESTING`] is taken before any instance's `items`.

use freehold_collections::{Arc, Vec, Weak, reserve::ArcMethods};

use super::Epoll;
use super::items::rest_at;
use crate::sync::{Mutex, MutexGuard, SpinLock};
use crate::{Errno, Result};

/// Instances on the longest path, the last one watching no other: Linux' EP_MAX_NESTS and the one
/// that it starts with.
const MOST_NESTED: usize = 5;
/// Paths that lead up from one instance, by their length from 2 instances on (Linux' path_limits).
const MOST_PATHS: [usize; MOST_NESTED - 1] = [500, 100, 50, 10];

/// The number of the last visit.
static NESTING: Mutex<u64> = Mutex::new(0);

/// An instance's place in the graph; changed and read under [`NESTING`].
#[derive(Default)]
pub(super) struct Nest {
    above: SpinLock<Vec<Weak<Epoll>>>,
    /// The last visit that came here, and the longest path that it found from here.
    visited: SpinLock<(u64, usize)>,
}

/// An edge that is to be; unlisted again unless it is kept.
pub(super) struct Entering<'a> {
    outer: &'a Arc<Epoll>,
    inner: &'a Arc<Epoll>,
    kept: bool,
    _nesting: MutexGuard<'static, u64>,
}

impl Entering<'_> {
    /// The watch is there.
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

/// `outer` is about to watch `inner`.
///
/// # Errors
/// `ELOOP` where that closes a circle or makes a path too long, `EINVAL` where too many paths lead
/// up, `ENOMEM`.
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

/// `outer` no longer watches `inner`, under one descriptor.
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

/// The instances on the longest path from `from` down, itself included.
fn depth_below(from: &Arc<Epoll>, forbidden: &Arc<Epoll>, visit: u64, most: usize) -> Result<usize> {
    if from.is_same(forbidden) || most == 0 {
        return Err(Errno::ELOOP);
    }
    let (visited, known) = *from.nest.visited.lock();
    if visited == visit {
        return Ok(known);
    }
    let mut depth = 1;
    // Down the graph only, so that all tasks lock instances in the same order.
    let slots = from.items.lock().slots();
    for slot in 0..slots {
        rest_at(slot);
        // The file may be closed for good by the end of this look: not with the items locked.
        let file = from.items.lock().at(slot).and_then(|item| item.file.upgrade());
        if let Some(inner) = file.as_ref().and_then(|file| Epoll::of(file)) {
            depth = depth.max(1 + depth_below(inner, forbidden, visit, most - 1)?);
        }
    }
    *from.nest.visited.lock() = (visit, depth);
    Ok(depth)
}

/// The instances on the longest path from `from` up, itself included. No path is longer than
/// [`MOST_NESTED`].
fn depth_above(from: &Arc<Epoll>, visit: u64) -> usize {
    let (visited, known) = *from.nest.visited.lock();
    if visited == visit {
        return known;
    }
    let depth = 1 + highest(from, |watcher| depth_above(watcher, visit));
    *from.nest.visited.lock() = (visit, depth);
    depth
}

/// The most that `f` says of those that watch `from`; 0 where there are none.
fn highest(from: &Arc<Epoll>, mut f: impl FnMut(&Arc<Epoll>) -> usize) -> usize {
    let mut most = 0;
    let mut at = 0;
    loop {
        // Not under the lock: the last reference to an instance may be the one that is dropped
        // here.
        let Some(watcher) = from.nest.above.lock().get(at).cloned() else { return most };
        if let Some(watcher) = watcher.upgrade() {
            most = most.max(f(&watcher));
        }
        at += 1;
    }
}

/// Counts the paths that lead up from `from`, `above` levels above the instance that matters.
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
