//! A system call's use of the keys: the caller's keyrings, special numbers, rights.

use arrayvec::ArrayString;
use freehold_collections::{Arc, Vec, reserve};

use super::held::{KEYS, KeyHandle, Reaper, RingSlot};
use super::kind::{Description, KeyKind, Payload};
use super::store::{
    Caller, Key, KeyRef, KeyTarget, NO_GROUP, NewKey, OWNER, POSSESSOR, Quota, Rights, Serial, Store,
};
use crate::sync::MutexGuard;
use crate::task::userns::OVERFLOW_ID;
use crate::task::{self, Task};
use crate::{Errno, Result, hw};

/// Names of keyrings without a number: `KEY_SPEC_*`.
const THREAD: i32 = -1;
const PROCESS: i32 = -2;
const SESSION: i32 = -3;
const USER: i32 = -4;
const USER_SESSION: i32 = -5;
const AUTHORITY: i32 = -7;
const REQUESTOR: i32 = -8;

/// Whether a keyring that does not exist is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Make {
    Yes,
    No,
}

const ALL: u32 = Rights::all().bits();
/// The rights to a keyring of a thread or process.
const RING: u32 = ALL << POSSESSOR | Rights::VIEW.bits() << OWNER;
/// The rights to a session's keyring.
const SESSION_RING: u32 = RING | Rights::READ.bits() << OWNER;
/// The rights to one that has a name.
const NAMED_RING: u32 = SESSION_RING | Rights::LINK.bits() << OWNER;
/// The rights to a user's keyrings.
const USER_RING: u32 = (ALL & !Rights::SETATTR.bits()) << POSSESSOR | ALL << OWNER;

/// A system call's use of the keys. Holds the lock.
pub struct Call {
    // The lock is let go first: a handle takes it.
    /// All keys.
    pub keys: MutexGuard<'static, Store>,
    retired: [Option<Arc<KeyHandle>>; 2],
    pub(super) task: Arc<Task>,
    /// On whose behalf it is.
    pub caller: Caller,
    /// Seconds since 1970.
    pub now: i64,
    uid: u32,
    gid: u32,
    _reaper: Reaper,
}

impl Call {
    /// Begins to use the keys on behalf of the running thread.
    ///
    /// # Errors
    /// `EINTR` if the caller is killed while it waits.
    pub fn begin() -> Result<Self> {
        let task = task::current();
        let (caller, uid, gid) = task.with_credentials(|own| {
            let caller =
                Caller { uid: own.fsuid, gid: own.fsgid, groups: own.groups.clone(), rings: [None; 3] };
            (caller, own.uid, own.gid)
        });
        let now = crate::time::wall().seconds;
        let mut call = Self {
            keys: KEYS.lock_killable()?,
            retired: [None, None],
            task,
            caller,
            now,
            uid,
            gid,
            _reaper: Reaper,
        };
        call.find_rings();
        Ok(call)
    }
    /// Notes which keyrings the caller has.
    fn find_rings(&mut self) {
        let rings = &self.task.keyrings;
        let of_user = || self.keys.user_rings(self.uid).map(|[_, session]| session);
        let session = rings.session.serial().or_else(of_user);
        self.caller.rings = [rings.thread.serial(), self.task.process().key_ring.serial(), session];
    }
    /// Makes a keyring of the user and `gid` with one holder.
    fn make_ring(&mut self, name: &[u8], gid: u32, permissions: u32, quota: Quota) -> Result<Serial> {
        let ring = NewKey {
            kind: KeyKind::Keyring,
            description: reserve::arc(Vec::try_from_slice(name)?),
            uid: self.uid,
            gid,
            permissions,
            payload: Payload::no_links(),
        };
        self.keys.create(ring, quota, random)
    }
    /// Puts a keyring, one hold of which is the caller's, into a slot.
    fn install(&mut self, choose: impl Fn(&Task) -> &RingSlot, ring: Serial) {
        let before = choose(&self.task).install(ring);
        let place = self.retired.iter_mut().find(|place| place.is_none());
        // A call installs a session's keyring twice at most.
        *place.expect("there is room for two") = before;
        self.find_rings();
    }
    /// Makes the user's own keyrings if they do not exist. Returns them: the user's, and the one
    /// for sessions without their own.
    fn user_rings(&mut self) -> Result<[Serial; 2]> {
        if let Some(rings) = self.keys.user_rings(self.uid) {
            return Ok(rings);
        }
        let uid = self.uid;
        let own = self.make_ring(name_of("_uid.", uid).as_bytes(), NO_GROUP, USER_RING, Quota::Exceeded)?;
        let linked = self
            .make_ring(name_of("_uid_ses.", uid).as_bytes(), NO_GROUP, USER_RING, Quota::Exceeded)
            .and_then(|session| match self.keys.link(session, own) {
                Ok(()) => Ok(session),
                Err(error) => {
                    self.keys.release(session);
                    Err(error)
                }
            });
        let session = linked.inspect_err(|_| self.keys.release(own))?;
        self.keys.set_user_rings(uid, [own, session]);
        self.find_rings();
        Ok([own, session])
    }
    /// Gives the thread a new session's keyring, or the one with this name. Returns it; 0 if the
    /// thread has it already, as Linux does.
    ///
    /// # Errors
    /// `EDQUOT`, `ENOMEM`.
    #[cold]
    pub(super) fn join(&mut self, name: Option<&Description>) -> Result<Serial> {
        let ring = match name {
            None => {
                let has_one = self.task.keyrings.session.serial().is_some();
                let quota = if has_one { Quota::Kept } else { Quota::Exceeded };
                self.make_ring(b"_ses", self.gid, SESSION_RING, quota)?
            }
            Some(name) => match self.keys.find_ring(name, &self.caller) {
                Some(ring) if self.task.keyrings.session.serial() == Some(ring) => return Ok(0),
                Some(ring) => {
                    self.keys.hold(ring)?;
                    ring
                }
                None => self.make_ring(name, self.gid, NAMED_RING, Quota::Kept)?,
            },
        };
        self.install(|task| &task.keyrings.session, ring);
        Ok(ring)
    }
    fn session(&mut self, make: Make) -> Result<Serial> {
        let own = self.task.keyrings.session.serial();
        let of_user = self.user_rings()?[1];
        match own {
            Some(ring) if ring != of_user || make == Make::No => Ok(ring),
            _ if make == Make::Yes => self.join(None),
            _ => {
                self.keys.hold(of_user)?;
                self.install(|task| &task.keyrings.session, of_user);
                Ok(of_user)
            }
        }
    }
    /// Returns the keyring of the thread or process, which is made if asked for.
    fn own_ring(&mut self, choose: impl Fn(&Task) -> &RingSlot, name: &[u8], make: Make) -> Result<Serial> {
        if let Some(ring) = choose(&self.task).serial() {
            return Ok(ring);
        }
        if make == Make::No && !self.task.keyrings.has_unused(choose(&self.task)) {
            return Err(Errno::ENOKEY);
        }
        let ring = self.make_ring(name, self.gid, RING, Quota::Exceeded)?;
        self.install(choose, ring);
        Ok(ring)
    }

    /// Returns the key with this number, or the keyring with this special one. It may be unusable.
    ///
    /// # Errors
    /// `ENOKEY`, `EINVAL`; `EDQUOT`, `ENOMEM` where a keyring is made.
    pub(super) fn resolve(&mut self, id: i32, make: Make) -> Result<KeyRef> {
        let serial = match id {
            THREAD => self.own_ring(|task| &task.keyrings.thread, b"_tid", make)?,
            PROCESS => self.own_ring(|task| &task.process().key_ring, b"_pid", make)?,
            SESSION => self.session(make)?,
            USER => self.user_rings()?[0],
            USER_SESSION => self.user_rings()?[1],
            AUTHORITY | REQUESTOR => return Err(Errno::ENOKEY),
            ..=0 => return Err(Errno::EINVAL),
            serial => {
                self.keys.get(serial)?;
                let possessed = self.search_own(KeyTarget::Key(serial)).is_ok();
                return Ok(KeyRef { serial, possessed });
            }
        };
        Ok(KeyRef { serial, possessed: true })
    }
    /// Returns a usable key to which the caller has these rights.
    ///
    /// # Errors
    /// `EACCES`, `EKEYREVOKED`, `EKEYEXPIRED`, and those of [`resolve`](Self::resolve).
    pub(super) fn usable(&mut self, id: i32, make: Make, rights: Rights) -> Result<KeyRef> {
        let key = self.resolve(id, make)?;
        self.keys.validate(key.serial, self.now)?;
        self.keys.check(key, &self.caller, rights)?;
        Ok(key)
    }
    /// Searches a keyring.
    ///
    /// # Errors
    /// As [`Store::search`].
    pub(super) fn search_in(&mut self, ring: KeyRef, wanted: KeyTarget<'_>) -> Result<KeyRef> {
        self.keys.search(ring, wanted, &self.caller, self.now)
    }
    /// Searches the caller's keyrings, one after the other.
    ///
    /// # Errors
    /// `ENOKEY` if one of them has a negative key, `EAGAIN` if one has no such key, else as
    /// [`Store::search`].
    pub fn search_own(&mut self, wanted: KeyTarget<'_>) -> Result<KeyRef> {
        let (mut none, mut failure) = (None, None);
        for serial in self.caller.rings.into_iter().flatten() {
            match self.search_in(KeyRef { serial, possessed: true }, wanted) {
                Err(Errno::ENOKEY) => none = Some(Errno::ENOKEY),
                Err(Errno::EAGAIN) => none = none.or(Some(Errno::EAGAIN)),
                Err(error) => failure = Some(error),
                found => return found,
            }
        }
        Err(none.or(failure).unwrap_or(Errno::EAGAIN))
    }
}

/// Returns the name of a user's keyring.
fn name_of(prefix: &str, uid: u32) -> ArrayString<24> {
    let mut name = ArrayString::new();
    // A prefix and ten digits fit.
    let _ = core::fmt::Write::write_fmt(&mut name, format_args!("{prefix}{uid}"));
    name
}

/// Returns the numbers of a key's owner and group in the caller's user namespace.
pub fn shown_owner(key: &Key) -> (u32, u32) {
    let (uid, gid) = task::shown_ids(key.uid, key.gid);
    (uid, if key.gid == NO_GROUP { OVERFLOW_ID } else { gid })
}

/// Returns a random number for a key.
pub(super) fn random() -> u32 {
    let mut bytes = [0; 4];
    hw::fill_random(&mut bytes);
    u32::from_ne_bytes(bytes)
}
