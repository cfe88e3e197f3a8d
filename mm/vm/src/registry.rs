//! All address spaces of a system, for operations that visit each in turn: reclaim, swapoff,
//! migration.
//!
//! Anonymous frames have no reverse map. Reclaim walks the page tables of the spaces one after the
//! other, where the accessed bits are adjacent and the space's lock makes every change exact. This
//! costs the fault path nothing.
//!
//! **Locks.** The list has a spin lock that is the last in the lock order: nothing is locked,
//! allocated from the page allocator or dropped under it. A walker holds one space's lock at a
//! time, and none while it waits for a device (a fault may do that).
//!
//! A space is in the list from [`AddressSpace::set_handle`](crate::AddressSpace::set_handle) to its
//! end. Numbers only grow, so a walk upwards also meets the children that are forked while it is
//! under way.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::ops::{Bound, ControlFlow};
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::AccountId;
use freehold_paging::Memory;

use crate::{AddressSpace, Commons};

/// How to take an address space's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Locking {
    /// Wait for it.
    Wait,
    /// Only if its lock is free.
    Try,
}

/// Whether an address space was visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visited {
    /// The space was visited.
    Done,
    /// Another task had the space locked.
    Busy,
}

/// An address space behind its owner's lock.
pub trait SpaceHandle<S: Memory>: Send + Sync {
    /// Lock the space and show it to `f`, once.
    fn with(&self, how: Locking, f: &mut dyn FnMut(&mut AddressSpace<S>)) -> Visited;
    /// The account to which its program is charged now. A hint: earlier charges are not moved.
    fn account(&self) -> AccountId {
        AccountId::ROOT
    }
}

/// The list, by the spaces' numbers.
pub(crate) struct Registry<S: Memory>(spin::Mutex<BTreeMap<u64, Weak<dyn SpaceHandle<S>>>>);

impl<S: Memory> Registry<S> {
    pub(crate) const fn new() -> Self {
        Self(spin::Mutex::new(BTreeMap::new()))
    }
    pub(crate) fn add(&self, id: u64, handle: Weak<dyn SpaceHandle<S>>) {
        let before = self.0.lock().insert(id, handle);
        drop(before);
    }
    pub(crate) fn remove(&self, id: u64) {
        let gone = self.0.lock().remove(&id);
        // The last weak count frees memory, so it is not dropped under the lock.
        drop(gone);
    }
}

/// Calls `visit` with each element that `next` finds, one full cycle from `hand` on, which is
/// advanced; stops when `visit` returns a break.
pub(crate) fn once_around<T>(
    hand: &AtomicU64,
    next: impl Fn(u64) -> Option<(u64, T)>,
    mut visit: impl FnMut(T) -> ControlFlow<()>,
) {
    let began = hand.load(Ordering::Relaxed);
    for (mut last, end) in [(began, u64::MAX), (0, began)] {
        while let Some((id, found)) = next(last).filter(|(id, _)| *id <= end) {
            if visit(found).is_break() {
                return;
            }
            hand.store(id, Ordering::Relaxed);
            last = id;
        }
    }
}

impl<S: Memory> Commons<S> {
    /// The living space with the smallest number above `after`, and that number. Begin with 0.
    pub fn next_space(&self, after: u64) -> Option<(u64, Arc<dyn SpaceHandle<S>>)> {
        let list = self.spaces.0.lock();
        let mut above = list.range((Bound::Excluded(after), Bound::Unbounded));
        above.find_map(|(&id, handle)| Some((id, handle.upgrade()?)))
    }

    /// Calls `f` with every space in turn, each locked, including spaces that are made meanwhile.
    /// The caller holds no space's lock.
    pub fn for_each_space(&self, f: &mut dyn FnMut(&mut AddressSpace<S>)) {
        let mut last = 0;
        while let Some((id, handle)) = self.next_space(last) {
            handle.with(Locking::Wait, f);
            last = id;
        }
    }
}
