//! The tables of IDs and keys: one table per kind of object.
//!
//! The low bits of an ID are a place in the table. The bits above count how often places were used
//! again, so that an old ID does not name a new object. Places are given out in a circle, which is
//! small while there are few objects (Linux: `ipc_idr_alloc`). Each kind of object has a table, a
//! [`Head`], and a mark for removed objects; a removed object is in no table.

use core::sync::atomic::{AtomicI32, Ordering};

use freehold_collections::{Arc, Map, Vec, Weak, reserve::ArcMethods};

use super::objects::IpcObjects;
use super::permission::{Permission, UserPermission};
use crate::sync::{Mutex, SpinLock};
use crate::task::Credentials;
use crate::{Errno, Result};

/// The key of objects that cannot be found by key (IPC_PRIVATE).
pub const PRIVATE: i32 = 0;
/// Create the object if it does not exist (IPC_CREAT).
pub const CREATE: u32 = 0o1000;
/// Fail if the object exists (IPC_EXCL).
pub const EXCLUSIVE: u32 = 0o2000;
/// Do not wait (IPC_NOWAIT).
pub const NOWAIT: u32 = 0o4000;

/// Number of low bits of an ID that hold the place.
const PLACE_BITS: u32 = 15;
/// Largest number of objects of a kind (IPCMNI).
pub const MOST: usize = 1 << PLACE_BITS;
/// Smallest number of other places that are used before a place is used again.
const LEAST_CIRCLE: usize = 64;
/// Sequence numbers are below this, so that an ID is not negative.
const SEQUENCES: u32 = i32::MAX as u32 >> PLACE_BITS;

/// The part that is common to objects of every kind.
pub struct Head {
    /// The ID; 0 until the object is in the table.
    id: AtomicI32,
    /// The key; [`PRIVATE`] once the object cannot be found by key.
    key: AtomicI32,
    permission: SpinLock<Permission>,
    home: Weak<IpcObjects>,
}

impl Head {
    /// Makes the head of an object that is in no table yet.
    pub fn new(wanted: &WantedObject<'_>) -> Self {
        Self {
            id: AtomicI32::new(0),
            key: AtomicI32::new(wanted.key),
            permission: SpinLock::new(Permission::new(wanted.caller, wanted.flags)),
            home: wanted.home.downgrade(),
        }
    }
    /// Returns the tables of the object's namespace, unless that has ended.
    pub fn home(&self) -> Option<Arc<IpcObjects>> {
        self.home.upgrade()
    }
    /// Returns the object's ID.
    pub fn id(&self) -> i32 {
        self.id.load(Ordering::Relaxed)
    }
    /// Returns the object's key.
    pub fn key(&self) -> i32 {
        self.key.load(Ordering::Relaxed)
    }
    /// Returns owner, creator and mode.
    pub fn permission(&self) -> Permission {
        *self.permission.lock()
    }
    /// Changes owner, creator and mode.
    pub fn change<R>(&self, change: impl FnOnce(&mut Permission) -> R) -> R {
        change(&mut self.permission.lock())
    }
    /// Returns the permission that IPC_STAT shows.
    pub fn told(&self) -> UserPermission {
        UserPermission::new(self.key(), &self.permission(), (self.id() >> PLACE_BITS) as u16)
    }
}

/// An object that a table can hold.
pub trait Object {
    /// Returns the object's head.
    fn head(&self) -> &Head;
}

/// A request to find an object by its key, or to create it.
pub struct WantedObject<'a> {
    /// The key. [`PRIVATE`] always creates an object.
    pub key: i32,
    /// [`CREATE`], [`EXCLUSIVE`] and nine bits of a mode.
    pub flags: u32,
    /// The caller.
    pub caller: &'a Credentials,
    /// The namespace's tables.
    pub home: &'a Arc<IpcObjects>,
}

struct IdTable<T> {
    slots: Vec<Option<Arc<T>>>,
    keys: Map<i32, usize>,
    used: usize,
    sequence: u32,
    last: Option<usize>,
    /// The ID that the next object gets, if it is free; negative for any.
    next_id: i32,
}

/// The objects of one kind.
pub struct IpcIds<T>(Mutex<IdTable<T>>);

impl<T: Object> IdTable<T> {
    /// Returns the next free place, in a circle of at most `most`.
    fn find_place(&self, most: usize) -> Option<usize> {
        let circle = (self.used * 3 / 2).max(LEAST_CIRCLE).min(most);
        let next = self.last.map_or(0, |last| last + 1).min(circle);
        (next..circle).chain(0..next).find(|&place| self.is_free(place))
    }

    fn is_free(&self, place: usize) -> bool {
        self.slots.get(place).is_none_or(Option::is_none)
    }

    /// Adds an object, and returns its ID. `ENOSPC` if there are `most` objects already.
    fn add(&mut self, object: Arc<T>, most: usize) -> Result<i32> {
        let chosen = u32::try_from(core::mem::replace(&mut self.next_id, -1)).ok();
        let place = match chosen {
            Some(id) => (id as usize % MOST..MOST).find(|&place| self.is_free(place)),
            None => self.find_place(most.min(MOST)),
        };
        let place = place.ok_or(Errno::ENOSPC)?;
        let more = (place + 1).saturating_sub(self.slots.len());
        self.slots.try_reserve(more)?;
        let key = object.head().key();
        if key != PRIVATE {
            self.keys.try_insert(key, place)?;
        }
        (0..more).for_each(|_| self.slots.push_reserved(None));
        let sequence = match chosen {
            Some(id) => id >> PLACE_BITS,
            None => {
                if self.last.is_some_and(|last| place <= last) {
                    self.sequence = (self.sequence + 1) % SEQUENCES;
                }
                self.last = Some(place);
                self.sequence
            }
        };
        let id = (sequence << PLACE_BITS) as i32 | place as i32;
        object.head().id.store(id, Ordering::Relaxed);
        self.slots[place] = Some(object);
        self.used += 1;
        Ok(id)
    }

    /// Removes the key of `object`, so that it cannot be found by key.
    fn hide(&mut self, object: &T) {
        let key = object.head().key.swap(PRIVATE, Ordering::Relaxed);
        if key != PRIVATE {
            self.keys.remove(&key);
        }
    }

    #[cfg(test)]
    fn validate(&self) {
        let objects = || self.slots.iter().enumerate().filter_map(|(at, slot)| Some((at, slot.as_ref()?)));
        assert_eq!(objects().count(), self.used);
        for (place, object) in objects() {
            assert_eq!(object.head().id() as usize % MOST, place);
            let key = object.head().key();
            assert!(key == PRIVATE || self.keys.get(&key) == Some(&place));
        }
        let named = objects().filter(|(_, object)| object.head().key() != PRIVATE).count();
        assert_eq!(named, self.keys.len());
    }
}

impl<T: Object> IpcIds<T> {
    /// A table without objects.
    pub const fn new() -> Self {
        Self(Mutex::new(IdTable {
            slots: Vec::new(),
            keys: Map::new(),
            used: 0,
            sequence: 0,
            last: None,
            next_id: -1,
        }))
    }

    /// Returns the ID of the object with the key of `wanted`, which `suits` checks, or of a new
    /// object. The table holds at most `most`.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, the errors of `suits` and `make`, `EACCES`, `ENOSPC`, `ENOMEM`; `EINTR`
    /// if the task is being killed.
    pub fn get(
        &self,
        wanted: &WantedObject<'_>,
        most: usize,
        suits: impl FnOnce(&T) -> Result<()>,
        make: impl FnOnce() -> Result<Arc<T>>,
    ) -> Result<i32> {
        let mut places = self.0.lock_killable()?;
        let place = if wanted.key == PRIVATE { None } else { places.keys.get(&wanted.key) };
        let Some(object) = place.and_then(|&place| places.slots[place].as_ref()) else {
            if wanted.key != PRIVATE && wanted.flags & CREATE == 0 {
                return Err(Errno::ENOENT);
            }
            if places.used >= most {
                return Err(Errno::ENOSPC);
            }
            return places.add(make()?, most);
        };
        if wanted.flags & CREATE != 0 && wanted.flags & EXCLUSIVE != 0 {
            return Err(Errno::EEXIST);
        }
        suits(object)?;
        object.head().permission().check(wanted.caller, wanted.home.owner(), wanted.flags)?;
        Ok(object.head().id())
    }

    /// Returns the ID that the next object gets, or a negative number if none was chosen, and
    /// chooses `new` instead. If another object has the place of that ID, the next object gets the
    /// next free place (/proc/sys/kernel/msg_next_id and its relatives).
    ///
    /// # Errors
    /// `EINTR` if the task is being killed.
    pub fn next_id(&self, new: Option<i32>) -> Result<i32> {
        let mut places = self.0.lock_killable()?;
        let old = places.next_id;
        places.next_id = new.unwrap_or(old);
        Ok(old)
    }

    /// Returns the object with this ID.
    ///
    /// # Errors
    /// `EINVAL` if there is none; `EINTR` if the task is being killed.
    pub fn find(&self, id: i32) -> Result<Arc<T>> {
        let places = self.0.lock_killable()?;
        let place = usize::try_from(id).map_err(|_| Errno::EINVAL)? % MOST;
        let object = places.slots.get(place).and_then(Option::as_ref).ok_or(Errno::EINVAL)?;
        if object.head().id() == id { Ok(object.clone()) } else { Err(Errno::EINVAL) }
    }

    /// Returns the object at a place in the table, for SHM_STAT and similar commands.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn find_at(&self, place: i32) -> Result<Arc<T>> {
        let place = usize::try_from(place).map_err(|_| Errno::EINVAL)?;
        let places = self.0.lock_killable()?;
        places.slots.get(place % MOST).and_then(Option::clone).ok_or(Errno::EINVAL)
    }

    /// Returns the first object at `place` or after it, and its place.
    pub fn next(&self, place: usize) -> Option<(usize, Arc<T>)> {
        let places = self.0.lock();
        let behind = places.slots.get(place..)?.iter();
        behind.zip(place..).find_map(|(slot, at)| Some((at, slot.clone()?)))
    }

    /// Removes `object` from the table if `is_due` returns true. `is_due` is called under the
    /// table's lock.
    pub fn remove_if(&self, object: &T, is_due: impl FnOnce() -> bool) {
        let mut places = self.0.lock();
        let place = object.head().id() as usize % MOST;
        let is_there = places
            .slots
            .get(place)
            .and_then(Option::as_ref)
            .is_some_and(|there| core::ptr::eq(&**there, object));
        if !is_there || !is_due() {
            return;
        }
        places.hide(object);
        let removed = places.slots[place].take();
        places.used -= 1;
        drop(places);
        // The last reference may free much memory.
        drop(removed);
    }

    /// Removes all objects, because their namespace ends. From now on no call finds one.
    pub fn clear(&self) {
        loop {
            let object = {
                let mut places = self.0.lock();
                places.used = 0;
                places.keys = Map::new();
                places.slots.pop()
            };
            let Some(object) = object else { return };
            drop(object);
            crate::sched::cond_resched();
        }
    }

    /// Removes the key of `object`, so that it cannot be found by key.
    pub fn hide(&self, object: &T) {
        self.0.lock().hide(object);
    }

    /// Returns the number of objects, and the highest place in use, or 0.
    pub fn used(&self) -> (usize, usize) {
        let places = self.0.lock();
        (places.used, places.slots.iter().rposition(Option::is_some).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::userns::UserNs;
    use freehold_collections::reserve;

    struct Thing(Head);
    impl Object for Thing {
        fn head(&self) -> &Head {
            &self.0
        }
    }

    fn get(ids: &IpcIds<Thing>, key: i32, flags: u32, most: usize) -> Result<i32> {
        let (caller, home) = (Credentials::of_user(0, 0), IpcObjects::new(UserNs::INITIAL));
        let wanted = WantedObject { key, flags, caller: &caller, home: &home };
        let make = || Ok(reserve::arc(Thing(Head::new(&wanted))));
        let id = ids.get(&wanted, most, |_| Ok(()), make);
        ids.0.lock().validate();
        id
    }

    fn remove(ids: &IpcIds<Thing>, id: i32) {
        ids.remove_if(&ids.find(id).unwrap(), || true);
        ids.0.lock().validate();
    }

    #[test]
    fn a_key_finds_one_object_and_private_none() {
        let ids = IpcIds::new();
        assert_eq!(get(&ids, 7, 0o600, 10), Err(Errno::ENOENT));
        let id = get(&ids, 7, CREATE | 0o600, 10).unwrap();
        assert_eq!(get(&ids, 7, 0o600, 10), Ok(id));
        assert_eq!(get(&ids, 7, CREATE | EXCLUSIVE, 10), Err(Errno::EEXIST));
        let first = get(&ids, PRIVATE, 0, 10).unwrap();
        assert_ne!(get(&ids, PRIVATE, 0, 10).unwrap(), first);
        ids.hide(&ids.find(id).unwrap());
        assert_eq!(get(&ids, 7, 0o600, 10), Err(Errno::ENOENT), "hidden");
        assert!(ids.find(id).is_ok());
    }

    #[test]
    fn an_old_id_names_no_new_object() {
        let ids = IpcIds::new();
        let old = get(&ids, PRIVATE, 0, 1).unwrap();
        remove(&ids, old);
        let new = get(&ids, PRIVATE, 0, 1).unwrap();
        assert_eq!(new as usize % MOST, old as usize % MOST, "the only place");
        assert_ne!(new, old);
        assert!(matches!(ids.find(old), Err(Errno::EINVAL)));
        assert_eq!(ids.find_at(0).unwrap().head().id(), new);
    }

    #[test]
    fn an_object_gets_the_chosen_id_or_the_next_place() {
        let ids = IpcIds::new();
        let wanted = 7 << PLACE_BITS | 100;
        assert_eq!(ids.next_id(Some(wanted)), Ok(-1));
        assert_eq!(get(&ids, 7, CREATE, 10), Ok(wanted));
        assert_eq!(get(&ids, PRIVATE, 0, 10), Ok(0), "one object only");
        assert_eq!(ids.next_id(Some(wanted)), Ok(-1));
        assert_eq!(get(&ids, PRIVATE, 0, 10), Ok(wanted + 1));
        assert_eq!(ids.next_id(Some(i32::MAX)), Ok(-1));
        assert_eq!(get(&ids, PRIVATE, 0, 10), Ok(i32::MAX));
        assert_eq!(ids.next_id(Some(i32::MAX)), Ok(-1));
        assert_eq!(get(&ids, PRIVATE, 0, 10), Err(Errno::ENOSPC), "no place is above");
        remove(&ids, wanted);
        assert_eq!(ids.next_id(None), Ok(-1));
    }

    #[test]
    fn there_are_never_more_than_the_most() {
        let ids = IpcIds::new();
        let all = [(); 100].map(|()| get(&ids, PRIVATE, 0, 100).unwrap());
        assert_eq!(get(&ids, PRIVATE, 0, 100), Err(Errno::ENOSPC));
        assert_eq!(ids.used(), (100, 99));
        remove(&ids, all[50]);
        assert!(get(&ids, PRIVATE, 0, 100).is_ok());
        assert_eq!(get(&ids, PRIVATE, 0, 50), Err(Errno::ENOSPC), "a limit that was lowered");
    }
}
