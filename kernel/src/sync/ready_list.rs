//! A list of slots that an interrupt handler may add to. It never grows by itself.

use freehold_collections::Vec;

use super::IrqSpinLock;
use crate::Result;

/// Means that there is no slot.
const NONE: usize = usize::MAX;

#[derive(Clone, Copy)]
struct Link {
    previous: usize,
    next: usize,
    is_listed: bool,
}

/// Slots in the order in which they were listed, each at most once.
pub struct ReadyList {
    /// Links by slot.
    links: Vec<Link>,
    first: usize,
    last: usize,
    count: usize,
}

impl ReadyList {
    /// Makes an empty list without room.
    pub const fn new() -> Self {
        Self { links: Vec::new(), first: NONE, last: NONE, count: 0 }
    }

    /// Number of listed slots.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Makes room for the slots below `slots`, and for some more, so that slots may be added one by
    /// one.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn make_room(list: &IrqSpinLock<Self>, slots: usize) -> Result<()> {
        if slots > list.lock().links.len() {
            let mut roomier = Self::new();
            let empty = Link { previous: NONE, next: NONE, is_listed: false };
            roomier.links.try_resize((slots * 2).max(4), empty)?;
            // The old list is freed after the lock is released.
            list.lock().move_to(&mut roomier);
        }
        Ok(())
    }

    /// Moves the listed slots to `roomier`, which takes this list's place; the caller drops the old
    /// list.
    fn move_to(&mut self, roomier: &mut Self) {
        if roomier.links.len() > self.links.len() {
            roomier.links[..self.links.len()].copy_from_slice(&self.links);
            (roomier.first, roomier.last, roomier.count) = (self.first, self.last, self.count);
            core::mem::swap(self, roomier);
        }
    }

    /// Lists `slot` last, unless it is listed.
    pub fn push(&mut self, slot: usize) {
        let last = self.last;
        let Some(link) = self.links.get_mut(slot).filter(|link| !link.is_listed) else { return };
        *link = Link { previous: last, next: NONE, is_listed: true };
        match self.links.get_mut(last) {
            Some(before) => before.next = slot,
            None => self.first = slot,
        }
        self.last = slot;
        self.count += 1;
    }

    /// Unlists `slot`, if it is listed.
    pub fn remove(&mut self, slot: usize) {
        let Some(link) = self.links.get_mut(slot).filter(|link| link.is_listed) else { return };
        let Link { previous, next, .. } = *link;
        link.is_listed = false;
        match self.links.get_mut(previous) {
            Some(before) => before.next = next,
            None => self.first = next,
        }
        match self.links.get_mut(next) {
            Some(after) => after.previous = previous,
            None => self.last = previous,
        }
        self.count -= 1;
    }

    /// Unlists the first slot.
    pub fn pop(&mut self) -> Option<usize> {
        let first = self.first;
        self.links.get(first)?;
        self.remove(first);
        Some(first)
    }
}
