//! Items of an epoll instance, by slot and by file.
//!
//! Adding, finding and removing an item takes O(log n) steps, and listing one takes one step,
//! however many are watched (Linux: `eventpoll.rbr` and `rdllist`). A
//! [`ReadyList`](crate::sync::ReadyList) links the slots of items that may be ready.

use core::ops::Bound;

use freehold_collections::reserve::ArcMethods as _;
use freehold_collections::{Arc, Map, Vec};

use crate::{Errno, Result, sched};

/// A loop over items yields the CPU after this many.
const LOOKS_AT_ONCE: usize = 1024;

/// Yields the CPU now and then in a loop over items.
pub(super) fn rest_at(at: usize) {
    if at % LOOKS_AT_ONCE == LOOKS_AT_ONCE - 1 {
        sched::rest();
    }
}

/// A descriptor, and the address of its description. The item's weak reference keeps the address
/// from being reused.
pub(super) type WatchKey = (i32, usize);

/// The items of an instance.
pub(super) struct Items<T> {
    /// Items by slot.
    slots: Vec<Option<Arc<T>>>,
    /// Slots without an item. The list has capacity for all slots.
    free: Vec<usize>,
    /// The slot of each descriptor and description.
    by_file: Map<WatchKey, usize>,
}

impl<T> Items<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), by_file: Map::new() }
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.slots.iter().flatten()
    }

    /// The item in `slot`.
    pub(super) fn at(&self, slot: usize) -> Option<&Arc<T>> {
        self.slots.get(slot)?.as_ref()
    }

    /// Whether `item` is in `slot`.
    pub(super) fn has(&self, slot: usize, item: &T) -> bool {
        self.at(slot).is_some_and(|there| core::ptr::eq(there.address(), item))
    }

    /// The item that watches the file with `key`.
    pub(super) fn find(&self, key: WatchKey) -> Result<&Arc<T>> {
        let slot = self.by_file.get(&key).ok_or(Errno::ENOENT)?;
        self.at(*slot).ok_or(Errno::ENOENT)
    }

    /// Item number `nth` of those that watch a file as `fd`, ordered by file.
    pub(super) fn nth_of(&self, fd: i32, nth: u32) -> Option<&Arc<T>> {
        let of_fd =
            self.by_file.iter_from(Bound::Included(&(fd, 0))).take_while(|((number, _), _)| *number == fd);
        for (at, (_, &slot)) in (0..=nth).zip(of_fd) {
            if at == nth {
                return self.at(slot);
            }
            rest_at(at as usize);
        }
        None
    }

    /// Reserves a free slot for the file with `key`.
    ///
    /// # Errors
    /// `EEXIST` if an item watches that file already, `ENOMEM`.
    pub(super) fn claim(&mut self, key: WatchKey) -> Result<usize> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let all = self.slots.len() + 1;
                self.free.try_reserve(all - self.free.len())?;
                self.slots.try_push(None)?;
                all - 1
            }
        };
        let error = match self.by_file.try_insert(key, slot) {
            Ok(None) => return Ok(slot),
            Ok(Some(watching)) => {
                if let Some(there) = self.by_file.get_mut(&key) {
                    *there = watching;
                }
                Errno::EEXIST
            }
            Err(_) => Errno::ENOMEM,
        };
        self.free.push_reserved(slot);
        Err(error)
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns a slot that was reserved for `key`.
    pub(super) fn give_back(&mut self, slot: usize, key: WatchKey) {
        self.by_file.remove(&key);
        self.free.push_reserved(slot);
    }

    /// Puts `item` into a reserved slot.
    pub(super) fn put(&mut self, slot: usize, item: Arc<T>) {
        self.slots[slot] = Some(item);
    }

    /// Takes `item` out of the slot that was reserved for `key`, if the item is still there.
    pub(super) fn take(&mut self, slot: usize, key: WatchKey, item: &T) -> Option<Arc<T>> {
        if !self.has(slot, item) {
            return None;
        }
        self.give_back(slot, key);
        self.slots[slot].take()
    }

    /// Takes all items out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Arc<T>> {
        self.slots.drain(..).flatten()
    }
}
