//! All keys, by serial number, with the links between them and the quotas of their owners.
//!
//! A key counts its *holders*: links from keyrings and [handles](super::held) of threads and
//! processes. It ends with the last one. Links form no cycle ([`Store::link`]), so no key holds
//! itself. A keyring that ends releases the keys in it one after the other, through a list in the
//! keys themselves: it needs neither memory nor stack, however long the chain is. A key in this
//! list is no longer found.
//!
//! One lock is held for each operation. So operations on any number of keys go in steps
//! ([`Store::reap`], [`Store::clear_some`], [`Store::collect_some`]), and the caller lets the lock
//! go between two steps. A search cannot: its list is in the keys. It stops if its task is killed.
//!
//! A search visits each keyring once, breadth first, through another list in the keys. Linux visits
//! a keyring once for each path to it.

mod search;

use core::ops::Bound;

use bitflags::bitflags;
use freehold_collections::{Map, Vec};

use super::kind::{Description, KeyKind, KeyName, Payload};
use super::limits;
use crate::task::credentials::Groups;
use crate::{Errno, Result};

pub use search::KeyTarget;

/// A key's number: positive.
pub type Serial = i32;

bitflags! {
    /// Rights to a key: six bits, as keyctl_setperm(3) has them for the possessor, the owner, the
    /// group and all others.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Rights: u32 {
        /// See its attributes.
        const VIEW = 1;
        /// Read its payload, or list the keyring.
        const READ = 2;
        /// Change its payload, or the keyring's links.
        const WRITE = 4;
        /// Find it, or search the keyring.
        const SEARCH = 8;
        /// Link it.
        const LINK = 0x10;
        /// Change its attributes.
        const SETATTR = 0x20;
    }
}

/// Shifts of the possessor's, the owner's, the group's and the others' rights.
pub const POSSESSOR: u32 = 24;
/// See [`POSSESSOR`].
pub const OWNER: u32 = 16;
/// See [`POSSESSOR`].
pub const GROUP: u32 = 8;
/// All rights of all four.
pub const ALL_RIGHTS: u32 = 0x3f3f_3f3f;

/// The group of a user's keyrings: none.
pub const NO_GROUP: u32 = u32::MAX;
/// Number of links that a release removes at once; further ones are left to [`Store::reap`].
const REAPED: usize = 8;
/// Bytes of quota for a link.
const LINK_BYTES: u64 = 4;

/// Whether a key may exceed the quota of its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quota {
    /// It may not.
    Kept,
    /// It may: keyrings that the kernel makes for a user or a session.
    Exceeded,
}

/// The user on whose behalf an operation is done.
pub struct Caller {
    /// The user and group for file access.
    pub uid: u32,
    /// See `uid`.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
    /// The keyrings whose keys the caller possesses.
    pub rings: [Option<Serial>; 3],
}

impl Caller {
    /// Whether the caller is in a group.
    pub fn is_in(&self, group: u32) -> bool {
        group == self.gid || self.groups.binary_search(&group).is_ok()
    }
}

/// A key and whether the caller possesses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRef {
    /// The key.
    pub serial: Serial,
    /// Whether it was found through the caller's keyrings.
    pub possessed: bool,
}

/// The attributes of a new key.
pub struct NewKey {
    /// Its kind.
    pub kind: KeyKind,
    /// Its name, without a final NUL.
    pub description: Description,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The rights of all.
    pub permissions: u32,
    /// Its content.
    pub payload: Payload,
}

/// A key.
pub struct Key {
    /// Its kind.
    pub kind: KeyKind,
    /// Its name.
    pub description: Description,
    /// Its owner, whose quota it uses.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The rights of all.
    pub permissions: u32,
    /// The end of its life, in seconds since 1970.
    pub expiry: Option<i64>,
    /// Its content.
    pub payload: Payload,
    /// Whether its owner revoked it.
    pub revoked: bool,
    invalid: bool,
    /// Bytes of its owner's quota.
    pub charged: u64,
    holders: usize,
    /// The search that visited it last, and the depth at which it did.
    visited: (u64, u32),
    /// The next key in the list of a search or of ending keys; 0 for none.
    next: Serial,
}

impl Key {
    /// Whether it only says that there is no such key (Linux: a negative key). All others have
    /// bytes.
    pub fn is_negative(&self) -> bool {
        matches!(&self.payload, Payload::Bytes(bytes) if bytes.is_empty()) && !self.revoked
    }
    /// Its kind and description.
    pub fn name(&self) -> KeyName {
        (self.kind, self.description.clone())
    }
    /// Whether it was invalidated.
    pub const fn is_invalid(&self) -> bool {
        self.invalid
    }
    /// The number of its holders.
    pub const fn holders(&self) -> usize {
        self.holders
    }
}

/// The keys of a user.
#[derive(Default)]
pub struct UserKeys {
    /// Keys.
    pub keys: u64,
    /// Bytes of descriptions and payloads.
    pub bytes: u64,
    /// The user's keyring, and the one for sessions without their own.
    pub rings: Option<[Serial; 2]>,
}

/// See the module's head.
pub struct Store {
    keys: Map<Serial, Key>,
    users: Map<u32, UserKeys>,
    /// Keyrings by description.
    names: Map<(Description, Serial), ()>,
    searches: u64,
    /// The first of the keys that end; 0 for none.
    ending: Serial,
}

/// The place that [`Store::collect_some`] has reached; starts before all keys.
#[derive(Default)]
pub struct CollectPlace {
    ring: Serial,
    after: Option<KeyName>,
}

impl Store {
    /// Makes a store without keys.
    pub const fn new() -> Self {
        Self { keys: Map::new(), users: Map::new(), names: Map::new(), searches: 0, ending: 0 }
    }

    /// Returns the key.
    ///
    /// # Errors
    /// `ENOKEY`.
    pub fn get(&self, serial: Serial) -> Result<&Key> {
        self.keys.get(&serial).filter(|key| key.holders > 0).ok_or(Errno::ENOKEY)
    }
    fn get_mut(&mut self, serial: Serial) -> Result<&mut Key> {
        self.keys.get_mut(&serial).filter(|key| key.holders > 0).ok_or(Errno::ENOKEY)
    }
    /// Returns the first key from number `from` on.
    pub fn first_from(&self, from: Serial) -> Option<(Serial, &Key)> {
        let mut keys = self.keys.iter_from(Bound::Included(&from));
        let found = keys.find(|(_, key)| {
            crate::sched::rest();
            key.holders > 0
        });
        found.map(|(&serial, key)| (serial, key))
    }
    /// Returns the keys of the first user from `from` on.
    pub fn first_user_from(&self, from: u32) -> Option<(u32, &UserKeys)> {
        self.users.first_from(Bound::Included(&from)).map(|(&user, keys)| (user, keys))
    }
    /// Returns the user's own keyrings, if they exist.
    pub fn user_rings(&self, user: u32) -> Option<[Serial; 2]> {
        self.users.get(&user)?.rings
    }
    /// Notes the user's own keyrings, which the caller holds for ever.
    pub fn set_user_rings(&mut self, user: u32, rings: [Serial; 2]) {
        if let Some(keys) = self.users.get_mut(&user) {
            keys.rings = Some(rings);
        }
    }

    /// Makes a key with one holder, the caller.
    ///
    /// # Errors
    /// `EDQUOT`, `ENOMEM`.
    #[cold]
    pub fn create(&mut self, new: NewKey, quota: Quota, random: impl Fn() -> u32) -> Result<Serial> {
        let bytes = new.description.len() as u64 + 1 + new.payload.bytes();
        self.charge(new.uid, (1, bytes), quota)?;
        let serial = loop {
            let serial = (random() >> 1) as Serial;
            // /proc/keys goes on with the next number.
            if (3..Serial::MAX).contains(&serial) && !self.keys.contains_key(&serial) {
                break serial;
            }
        };
        let NewKey { kind, description, uid, gid, permissions, payload } = new;
        let key = Key {
            kind,
            description: description.clone(),
            uid,
            gid,
            permissions,
            expiry: None,
            payload,
            revoked: false,
            invalid: false,
            charged: bytes,
            holders: 1,
            visited: (0, 0),
            next: 0,
        };
        let named = match kind {
            KeyKind::Keyring => self.names.try_insert((description.clone(), serial), ()).map(drop),
            _ => Ok(()),
        };
        let made = named.and_then(|()| self.keys.try_insert(serial, key).map(drop));
        if let Err(error) = made {
            self.names.remove(&(description, serial));
            self.uncharge(uid, (1, bytes));
            return Err(error.into());
        }
        Ok(serial)
    }

    fn charge(&mut self, user: u32, (keys, bytes): (u64, u64), quota: Quota) -> Result<()> {
        if !self.users.contains_key(&user) {
            self.users.try_insert(user, UserKeys::default())?;
        }
        let Some(now) = self.users.get_mut(&user) else { return Err(Errno::ENOMEM) };
        let (most_keys, most_bytes) = limits::of(user);
        let is_full = now.keys + keys > most_keys || now.bytes.saturating_add(bytes) > most_bytes;
        if quota == Quota::Kept && is_full {
            self.uncharge(user, (0, 0));
            return Err(Errno::EDQUOT);
        }
        now.keys += keys;
        now.bytes += bytes;
        Ok(())
    }
    fn uncharge(&mut self, user: u32, (keys, bytes): (u64, u64)) {
        let is_last = self.users.get_mut(&user).is_some_and(|now| {
            now.keys -= keys;
            now.bytes -= bytes;
            now.keys == 0 && now.rings.is_none()
        });
        if is_last {
            self.users.remove(&user);
        }
    }
    /// Changes the bytes that a key uses of its owner's quota.
    fn recharge(&mut self, serial: Serial, bytes: u64) -> Result<()> {
        let key = self.get(serial)?;
        let (user, before) = (key.uid, key.charged);
        if bytes > before {
            self.charge(user, (0, bytes - before), Quota::Kept)?;
        } else {
            self.uncharge(user, (0, before - bytes));
        }
        self.get_mut(serial)?.charged = bytes;
        Ok(())
    }

    /// Adds a holder.
    ///
    /// # Errors
    /// `ENOKEY`.
    pub fn hold(&mut self, serial: Serial) -> Result<()> {
        self.get_mut(serial)?.holders += 1;
        Ok(())
    }
    /// Removes a holder. The last one's key ends, and so do keys that only it held: the first few
    /// at once, the others in [`Store::reap`].
    pub fn release(&mut self, serial: Serial) {
        self.let_go(serial);
        self.reap(REAPED);
    }
    /// Removes a holder; the last one's key is put at the head of the list of ending keys.
    fn let_go(&mut self, serial: Serial) {
        let Some(key) = self.keys.get_mut(&serial) else { return };
        key.holders -= 1;
        if key.holders == 0 {
            key.next = self.ending;
            self.ending = serial;
        }
    }
    /// Removes keys that end, or links in them, in at most `most` steps. Returns whether there are
    /// more.
    #[cold]
    pub fn reap(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(key) = self.keys.get_mut(&self.ending) else { return false };
            if let Some(link) = key.payload.pop_link() {
                self.let_go(link);
            } else {
                let (gone, next) = (self.ending, key.next);
                self.ending = next;
                self.remove(gone);
            }
        }
        self.ending != 0
    }
    fn remove(&mut self, serial: Serial) {
        let Some(key) = self.keys.remove(&serial) else { return };
        self.uncharge(key.uid, (1, key.charged));
        if key.kind == KeyKind::Keyring {
            self.names.remove(&(key.description, serial));
        }
    }

    /// Returns the caller's rights to a key.
    ///
    /// # Errors
    /// `ENOKEY`.
    pub fn rights(&self, key: KeyRef, caller: &Caller) -> Result<Rights> {
        let KeyRef { serial, possessed } = key;
        let key = self.get(serial)?;
        let group = key.permissions >> GROUP;
        let mut bits = if key.uid == caller.uid {
            key.permissions >> OWNER
        } else if group & Rights::all().bits() != 0 && caller.is_in(key.gid) {
            group
        } else {
            key.permissions
        };
        if possessed {
            bits |= key.permissions >> POSSESSOR;
        }
        Ok(Rights::from_bits_truncate(bits))
    }
    /// Checks that the caller has all of these rights.
    ///
    /// # Errors
    /// `EACCES`, `ENOKEY`.
    pub fn check(&self, key: KeyRef, caller: &Caller, needed: Rights) -> Result<()> {
        if self.rights(key, caller)?.contains(needed) { Ok(()) } else { Err(Errno::EACCES) }
    }
    /// Checks that a key can be used at `now`, in seconds since 1970.
    ///
    /// # Errors
    /// `EKEYREVOKED`, `EKEYEXPIRED`; `ENOKEY` if there is none, or it was invalidated.
    pub fn validate(&self, serial: Serial, now: i64) -> Result<()> {
        let key = self.get(serial)?;
        if key.invalid {
            Err(Errno::ENOKEY)
        } else if key.revoked {
            Err(Errno::EKEYREVOKED)
        } else if key.expiry.is_some_and(|expiry| expiry <= now) {
            Err(Errno::EKEYEXPIRED)
        } else {
            Ok(())
        }
    }

    /// Links a key in a keyring, instead of a key of the same kind and description there.
    ///
    /// # Errors
    /// `ENOTDIR` if `ring` is no keyring; `EDEADLK` for a cycle, `ELOOP` for too much nesting;
    /// `EDQUOT`, `ENOMEM`, `ENOKEY`.
    pub fn link(&mut self, ring: Serial, serial: Serial) -> Result<()> {
        let key = self.get(serial)?;
        let (kind, name) = (key.kind, key.name());
        let links = self.ring_links(ring)?;
        if links.get(&name) == Some(&serial) {
            return Ok(());
        }
        let is_new = !links.contains_key(&name);
        if kind == KeyKind::Keyring {
            self.check_nesting(ring, serial)?;
        }
        let before = self.get(ring)?.charged;
        if is_new {
            self.recharge(ring, before + LINK_BYTES)?;
        }
        let linked = self.get_mut(ring)?.payload.links_mut().try_insert(name, serial);
        match linked {
            Err(error) => {
                if is_new {
                    self.recharge(ring, before)?;
                }
                Err(error.into())
            }
            Ok(replaced) => {
                self.hold(serial)?;
                if let Some(replaced) = replaced {
                    self.release(replaced);
                }
                Ok(())
            }
        }
    }
    /// Returns the link of a keyring that follows `after`, or the first.
    fn link_after(&self, ring: Serial, after: Option<&KeyName>) -> Option<(KeyName, Serial)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (name, &serial) = self.ring_links(ring).ok()?.first_from(from)?;
        Some((name.clone(), serial))
    }
    fn ring_links(&self, ring: Serial) -> Result<&Map<KeyName, Serial>> {
        let ring = self.get(ring)?;
        if ring.kind == KeyKind::Keyring { Ok(ring.payload.links()) } else { Err(Errno::ENOTDIR) }
    }
    /// Removes a key from a keyring.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` if it is not linked there; `ENOKEY`.
    pub fn unlink(&mut self, ring: Serial, serial: Serial) -> Result<()> {
        let key = self.get(serial)?;
        let name = key.name();
        if self.ring_links(ring)?.get(&name) != Some(&serial) {
            return Err(Errno::ENOENT);
        }
        let ring_key = self.get_mut(ring)?;
        ring_key.payload.links_mut().remove(&name);
        let bytes = ring_key.charged - LINK_BYTES;
        self.recharge(ring, bytes)?;
        self.release(serial);
        Ok(())
    }
    /// Returns whether `ring` links `serial`.
    pub fn is_linked(&self, ring: Serial, serial: Serial) -> bool {
        let Ok(key) = self.get(serial) else { return false };
        let name = key.name();
        self.ring_links(ring).is_ok_and(|links| links.get(&name) == Some(&serial))
    }
    /// Returns the key of this name in a keyring.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENOKEY`.
    pub fn find_in(&self, ring: Serial, name: &KeyName) -> Result<Option<Serial>> {
        Ok(self.ring_links(ring)?.get(name).copied())
    }
    /// Returns how many keys a keyring links.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENOKEY`.
    pub fn count(&self, ring: Serial) -> Result<usize> {
        Ok(self.ring_links(ring)?.len())
    }
    /// Removes up to `most` keys from a keyring.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENOKEY`.
    pub fn clear_some(&mut self, ring: Serial, most: usize) -> Result<()> {
        for _ in 0..most {
            let Some((_, &serial)) = self.ring_links(ring)?.iter().next() else { break };
            self.unlink(ring, serial)?;
        }
        Ok(())
    }
    /// Returns the keys that a keyring links.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOTDIR`, `ENOKEY`.
    pub fn list(&self, ring: Serial) -> Result<Vec<Serial>> {
        let links = self.ring_links(ring)?;
        let mut all = Vec::new();
        all.try_extend(links.values().copied().inspect(|_| crate::sched::rest()))?;
        Ok(all)
    }

    /// Replaces a key's payload. Its life has no end any more.
    ///
    /// # Errors
    /// `EDQUOT`, `ENOKEY`.
    pub fn update(&mut self, serial: Serial, payload: Payload) -> Result<()> {
        let key = self.get(serial)?;
        let bytes = key.description.len() as u64 + 1 + payload.bytes();
        self.recharge(serial, bytes)?;
        let key = self.get_mut(serial)?;
        (key.payload, key.expiry) = (payload, None);
        Ok(())
    }
    /// Revokes a key: it loses its payload. The caller clears a keyring.
    ///
    /// # Errors
    /// `ENOKEY`.
    pub fn revoke(&mut self, serial: Serial) -> Result<()> {
        if self.get(serial)?.kind != KeyKind::Keyring {
            self.update(serial, Payload::empty())?;
        }
        self.get_mut(serial)?.revoked = true;
        Ok(())
    }
    /// Invalidates a key: no search finds it. The caller collects it.
    ///
    /// # Errors
    /// `ENOKEY`.
    pub fn invalidate(&mut self, serial: Serial) -> Result<()> {
        self.get_mut(serial)?.invalid = true;
        Ok(())
    }
    /// Removes invalidated keys from all keyrings, in at most `most` steps from `place` on. Returns
    /// whether there are more.
    pub fn collect_some(&mut self, place: &mut CollectPlace, most: usize) -> bool {
        for _ in 0..most {
            let Some((serial, key)) = self.first_from(place.ring) else { return false };
            let is_ring = key.kind == KeyKind::Keyring;
            let after = place.after.take().filter(|_| serial == place.ring);
            let next = if is_ring { self.link_after(serial, after.as_ref()) } else { None };
            let Some((name, link)) = next else {
                let Some(ring) = serial.checked_add(1) else { return false };
                place.ring = ring;
                continue;
            };
            if self.get(link).is_ok_and(|key| key.invalid) {
                let _ = self.unlink(serial, link);
            }
            *place = CollectPlace { ring: serial, after: Some(name) };
        }
        true
    }
    /// Changes a key's owner and group, and moves its charge.
    ///
    /// # Errors
    /// `EDQUOT`, `ENOMEM`, `ENOKEY`.
    pub fn give(&mut self, serial: Serial, (uid, gid): (u32, u32)) -> Result<()> {
        let key = self.get(serial)?;
        let (before, bytes) = (key.uid, key.charged);
        if before != uid {
            self.charge(uid, (1, bytes), Quota::Kept)?;
            self.uncharge(before, (1, bytes));
        }
        let key = self.get_mut(serial)?;
        (key.uid, key.gid) = (uid, gid);
        Ok(())
    }
    /// Sets the rights of all to a key.
    ///
    /// # Errors
    /// `ENOKEY`.
    pub fn set_permissions(&mut self, serial: Serial, permissions: u32) -> Result<()> {
        self.get_mut(serial)?.permissions = permissions;
        Ok(())
    }
    /// Sets the end of a key's life.
    ///
    /// # Errors
    /// `ENOKEY`.
    pub fn set_expiry(&mut self, serial: Serial, expiry: Option<i64>) -> Result<()> {
        self.get_mut(serial)?.expiry = expiry;
        Ok(())
    }
    /// Returns a keyring of this name that the caller may search without possessing it.
    pub fn find_ring(&self, name: &Description, caller: &Caller) -> Option<Serial> {
        let named = self.names.iter_from(Bound::Included(&(name.clone(), 0)));
        let mut found =
            named.map(|((found, serial), ())| (found, *serial)).take_while(|(found, _)| *found == name);
        found.find_map(|(_, serial)| {
            let key = self.get(serial).ok()?;
            self.check(KeyRef { serial, possessed: false }, caller, Rights::SEARCH).ok()?;
            (!key.revoked && !key.invalid).then_some(serial)
        })
    }

    /// Checks the counts of holders and of quotas.
    ///
    /// # Panics
    /// If one is wrong.
    #[cfg(test)]
    pub fn check_counts(&self, handles: &[Serial]) {
        for (&serial, key) in self.keys.iter() {
            let rings = self.keys.iter().filter(|&(&ring, _)| self.is_linked(ring, serial)).count();
            let held = handles.iter().filter(|&&held| held == serial).count();
            assert_eq!(key.holders, rings + held, "holders of {serial}");
        }
        for (user, keys) in self.users.iter() {
            let of_user = || self.keys.iter().filter(|(_, key)| key.uid == *user);
            assert_eq!(keys.keys, of_user().count() as u64);
            assert_eq!(keys.bytes, of_user().map(|(_, key)| key.charged).sum::<u64>());
        }
    }
}
