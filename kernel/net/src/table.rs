//! Connections by number and by their two ends.
//!
//! A chained hash table whose links are in the entries. Its hash is keyed (SipHash-1-3): a peer
//! that chooses ports cannot choose a chain. The table has at least as many chains as entries, so
//! the cost of a look-up does not grow with their number. Growing the table is one pass over all
//! entries.

use core::hash::Hasher;
use core::net::SocketAddrV4;

use freehold_collections::{AllocError, Vec};
use siphasher::sip::SipHasher13;

const NONE: u32 = u32::MAX;

/// The two ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The address and port of this machine.
    pub local: SocketAddrV4,
    /// The address and port of the peer.
    pub remote: SocketAddrV4,
}

/// A connection's name: its number, and a generation, since a later connection may reuse the
/// number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id {
    pub(crate) index: u32,
    generation: u32,
}

impl Id {
    /// The number.
    pub const fn number(self) -> usize {
        self.index as usize
    }
}

/// A secret that hashes and first sequence numbers depend on.
#[derive(Clone, Copy)]
pub struct Secret(pub [u64; 2]);

impl Secret {
    /// A hash of the ends and of `more`, which cannot be predicted without the secret.
    pub fn hash(&self, ends: Ends, more: u64) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        for end in [ends.local, ends.remote] {
            hasher.write_u32(u32::from(*end.ip()));
            hasher.write_u16(end.port());
        }
        hasher.write_u64(more);
        hasher.finish()
    }
}

struct Slot<T> {
    generation: u32,
    /// The next entry in its chain, or in the list of free ones.
    next: u32,
    entry: Option<(Ends, T)>,
}

/// See the module's head.
pub struct Table<T> {
    secret: Secret,
    chains: Vec<u32>,
    slots: Vec<Slot<T>>,
    free: u32,
    count: usize,
}

impl<T> Table<T> {
    /// Makes an empty table, which needs no memory.
    pub const fn new(secret: Secret) -> Self {
        Self { secret, chains: Vec::new(), slots: Vec::new(), free: NONE, count: 0 }
    }
    /// Entries.
    pub const fn len(&self) -> usize {
        self.count
    }
    /// Number of numbers given so far: each entry's number is below.
    pub fn numbers(&self) -> usize {
        self.slots.len()
    }

    fn chain(&self, ends: Ends) -> usize {
        self.secret.hash(ends, 0) as usize & (self.chains.len() - 1)
    }

    /// Returns the connection with these ends.
    pub fn find(&self, ends: Ends) -> Option<Id> {
        if self.chains.is_empty() {
            return None;
        }
        let mut at = self.chains[self.chain(ends)];
        while at != NONE {
            let slot = &self.slots[at as usize];
            if slot.entry.as_ref().is_some_and(|entry| entry.0 == ends) {
                return Some(Id { index: at, generation: slot.generation });
            }
            at = slot.next;
        }
        None
    }

    /// Returns the connection that has this number now.
    pub fn id(&self, index: usize) -> Option<Id> {
        let slot = self.slots.get(index)?;
        slot.entry.as_ref().map(|_| Id { index: index as u32, generation: slot.generation })
    }

    /// Returns the connection with this name, unless it is gone.
    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.index as usize)?;
        slot.entry.as_mut().filter(|_| slot.generation == id.generation).map(|entry| &mut entry.1)
    }

    /// Its ends.
    pub fn ends(&self, id: Id) -> Option<Ends> {
        let slot = self.slots.get(id.index as usize)?;
        slot.entry.as_ref().filter(|_| slot.generation == id.generation).map(|entry| entry.0)
    }

    /// As [`get_mut`](Self::get_mut), to read only.
    pub fn get(&self, id: Id) -> Option<&T> {
        let slot = self.slots.get(id.index as usize)?;
        slot.entry.as_ref().filter(|_| slot.generation == id.generation).map(|entry| &entry.1)
    }

    /// All.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (Ends, &T)> {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref().map(|(ends, entry)| (*ends, entry)))
    }

    /// Adds a connection. No other connection in the table has the same two ends.
    ///
    /// # Errors
    /// No memory.
    pub fn insert(&mut self, ends: Ends, entry: T) -> Result<Id, AllocError> {
        if self.count == self.chains.len() {
            self.grow()?;
        }
        let chain = self.chain(ends);
        if self.free == NONE {
            self.slots.try_push(Slot { generation: 0, next: NONE, entry: None })?;
            self.free = self.slots.len() as u32 - 1;
        }
        let index = self.free;
        let slot = &mut self.slots[index as usize];
        self.free = slot.next;
        slot.next = core::mem::replace(&mut self.chains[chain], index);
        slot.entry = Some((ends, entry));
        self.count += 1;
        Ok(Id { index, generation: slot.generation })
    }

    /// Removes a connection.
    pub fn remove(&mut self, id: Id) -> Option<T> {
        self.get(id)?;
        let (ends, entry) = self.slots[id.index as usize].entry.take()?;
        let chain = self.chain(ends);
        let next = self.slots[id.index as usize].next;
        let mut at = self.chains[chain];
        if at == id.index {
            self.chains[chain] = next;
        } else {
            while self.slots[at as usize].next != id.index {
                at = self.slots[at as usize].next;
            }
            self.slots[at as usize].next = next;
        }
        let slot = &mut self.slots[id.index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.next = core::mem::replace(&mut self.free, id.index);
        self.count -= 1;
        Some(entry)
    }

    fn grow(&mut self) -> Result<(), AllocError> {
        let chains = Vec::try_filled(NONE, (self.chains.len() * 2).max(64))?;
        self.chains = chains;
        for index in 0..self.slots.len() {
            let Some((ends, _)) = self.slots[index].entry else { continue };
            let chain = self.chain(ends);
            self.slots[index].next = core::mem::replace(&mut self.chains[chain], index as u32);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    use super::*;

    fn ends(number: u16) -> Ends {
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        Ends { local: at(number % 3), remote: at(number) }
    }

    proptest! {
        /// Against a map; names of entries that are gone lead nowhere.
        #[test]
        fn a_table_is_a_map(steps in prop::collection::vec((any::<bool>(), 0..300_u16), 1..600)) {
            let (mut table, mut model, mut gone) = (Table::new(Secret([1, 2])), BTreeMap::new(), std::vec::Vec::new());
            for (inserts, number) in steps {
                match model.get(&number).copied() {
                    None if inserts => { model.insert(number, table.insert(ends(number), number).unwrap()); }
                    Some(id) if !inserts => {
                        prop_assert_eq!(table.remove(id), Some(number));
                        model.remove(&number);
                        gone.push(id);
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), model.len());
            }
            for number in 0..300 {
                prop_assert_eq!(table.find(ends(number)), model.get(&number).copied());
            }
            prop_assert!(model.iter().all(|(number, &id)| table.get(id) == Some(number)));
            prop_assert!(gone.iter().all(|&id| table.get(id).is_none()));
            prop_assert_eq!(table.iter().count(), model.len());
        }
    }

    #[test]
    fn an_insertion_that_finds_no_memory_changes_nothing() {
        let (mut table, mut failures) = (Table::new(Secret([1, 2])), 0);
        for number in 0..200 {
            let (id, failed) =
                freehold_collections::inject::each_fails(|| table.insert(ends(number), number));
            failures += failed;
            assert_eq!((table.find(ends(number)), table.len()), (id.ok(), number as usize + 1));
        }
        assert!(failures > 3);
    }
}
