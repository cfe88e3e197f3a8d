//! The mounts that hang in one: by the order in which they came, and by the places that they cover.
//!
//! A program decides how many there are, and each name that is looked up in the mount asks for one.
//! So the topmost mount of a place is found in logarithmic time (Linux: `mount_hashtable`).

use core::ops::Bound;

use freehold_collections::{AllocError, Arc, Map, reserve::ArcMethods as _};

use super::Mount;
use crate::fs::node::Identity;
use crate::sched;
use crate::sync::LetGo;

/// A child's place, and the number of its arrival.
pub(super) type ChildKey = (Identity, u64);

/// Bits of a [summary](Children::covered) of places.
const BITS: usize = 64;

/// Returns the bit of a place in a summary.
pub(super) fn place_bit(place: Identity) -> u64 {
    1 << bit_of(place)
}

fn bit_of(place: Identity) -> usize {
    (place.inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize
}

/// See the module.
pub(super) struct Children {
    by_order: Map<u64, Arc<Mount>>,
    by_place: Map<ChildKey, Arc<Mount>>,
    /// How many children have each bit.
    bits: [u32; BITS],
    covered: u64,
    next: u64,
}

impl Default for Children {
    fn default() -> Self {
        Self { by_order: Map::new(), by_place: Map::new(), bits: [0; BITS], covered: 0, next: 0 }
    }
}

impl LetGo for Children {
    fn let_go(&mut self) {
        // The last reference to a child goes with the second list.
        while let Some(child) = self.by_place.pop_last() {
            drop(child);
            sched::cond_resched();
        }
        while let Some(child) = self.by_order.pop_last() {
            drop(child);
            sched::cond_resched();
        }
    }
}

/// References that the lists have to each mount.
pub(super) const REFERENCES: usize = 2;

impl Children {
    /// Makes room for one more.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn make_room(&mut self) -> Result<(), AllocError> {
        self.by_order.try_reserve(1)?;
        self.by_place.try_reserve(1)
    }

    /// Frees memory that [`make_room`](Self::make_room) set aside.
    pub fn give_room_back(&mut self) {
        self.by_order.release_room();
        self.by_place.release_room();
    }

    /// Adds `child` on top of those at `place`.
    ///
    /// # Errors
    /// [`AllocError`]; not where room was made. No child is added.
    pub fn add(&mut self, place: Identity, child: &Arc<Mount>) -> Result<ChildKey, AllocError> {
        let key = (place, self.next);
        self.by_order.try_insert(self.next, child.clone())?;
        if let Err(error) = self.by_place.try_insert(key, child.clone()) {
            self.by_order.remove(&self.next);
            return Err(error);
        }
        self.next += 1;
        self.bits[bit_of(place)] += 1;
        self.covered |= place_bit(place);
        Ok(key)
    }

    /// Takes `child` out, which has this key, if it is here. Returns the list's references to it.
    pub fn remove(&mut self, key: ChildKey, child: &Arc<Mount>) -> Option<[Arc<Mount>; REFERENCES]> {
        let is_here = self.by_place.get(&key).is_some_and(|there| there.is_same(child));
        if !is_here {
            return None;
        }
        let count = &mut self.bits[bit_of(key.0)];
        *count -= 1;
        if *count == 0 {
            self.covered &= !place_bit(key.0);
        }
        Some([self.by_place.remove(&key)?, self.by_order.remove(&key.1)?])
    }

    /// Returns the last of the children that cover `place`.
    pub fn topmost(&self, place: Identity) -> Option<Arc<Mount>> {
        let (key, child) = self.by_place.last_until(Bound::Included(&(place, u64::MAX)))?;
        (key.0 == place).then(|| child.clone())
    }

    /// Returns the first child with the number `from` or a later one, and its number.
    pub fn next(&self, from: u64) -> Option<(u64, Arc<Mount>)> {
        let (&order, child) = self.by_order.first_from(Bound::Included(&from))?;
        Some((order, child.clone()))
    }

    /// Visits the children in the order of their arrival.
    pub fn by_order(&self) -> impl Iterator<Item = &Arc<Mount>> {
        self.by_order.values()
    }

    pub fn is_empty(&self) -> bool {
        self.by_order.is_empty()
    }

    /// Returns the bits of all places ([`place_bit`]).
    pub fn covered(&self) -> u64 {
        self.covered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::mount::MountFlags;
    use crate::fs::tests::World;
    use std::vec::Vec;

    /// One list does the same, in which the last child of a place is on top.
    #[test]
    fn the_topmost_of_a_place_is_as_in_one_list() {
        let fs = World::new().fs;
        let mounts: Vec<Arc<Mount>> =
            (0..50).map(|_| Mount::new(fs.clone(), b"none", MountFlags::empty()).unwrap()).collect();
        let place = |inode: usize| Identity { device: 1, inode: inode as u64 };
        let (mut children, mut list) = (Children::default(), Vec::<(ChildKey, Arc<Mount>)>::new());
        let mut seed = 1u64;
        let mut draw = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for _ in 0..5000 {
            let mount = &mounts[draw(mounts.len())];
            match list.iter().position(|(_, there)| there.is_same(mount)) {
                Some(index) => {
                    let (key, there) = list.remove(index);
                    assert!(children.remove((key.0, key.1 + 1), mount).is_none());
                    assert!(children.remove(key, &there).is_some_and(|[one, two]| one.is_same(&two)));
                    assert!(children.remove(key, &there).is_none());
                }
                None => list.push((children.add(place(draw(9)), mount).unwrap(), mount.clone())),
            }
            let ids = |all: &mut dyn Iterator<Item = &Arc<Mount>>| all.map(|m| m.id()).collect::<Vec<_>>();
            assert_eq!(ids(&mut children.by_order()), ids(&mut list.iter().map(|(_, mount)| mount)));
            for inode in 0..10 {
                let last = list.iter().rev().find(|(key, _)| key.0 == place(inode));
                assert_eq!(children.topmost(place(inode)).map(|m| m.id()), last.map(|(_, m)| m.id()));
            }
            let covered = list.iter().fold(0, |bits, (key, _)| bits | place_bit(key.0));
            assert_eq!((children.covered(), children.is_empty()), (covered, list.is_empty()));
        }
    }
}
