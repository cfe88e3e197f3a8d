//! The keyrings of threads and processes.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use freehold_collections::{Arc, reserve};

use super::store::{CollectPlace, Serial, Store};
use crate::Result;
use crate::sync::{Mutex, SpinLock};

/// All keys.
pub(super) static KEYS: Mutex<Store> = Mutex::new(Store::new());

/// Number of steps of a long operation with the lock held.
const AT_ONCE: usize = 64;

/// A hold of a key by a thread, a process or a call.
pub(super) struct KeyHandle(Serial);

impl Drop for KeyHandle {
    fn drop(&mut self) {
        KEYS.lock().release(self.0);
        reap();
    }
}

/// Removes all keys that end, even if the caller is killed; other calls go on meanwhile. The caller
/// does not have the lock.
fn reap() {
    while KEYS.lock().reap(AT_ONCE) {
        crate::sched::rest();
    }
}

/// Removes all keys that end when it is dropped, which is not under the lock.
pub(super) struct Reaper;

impl Drop for Reaper {
    fn drop(&mut self) {
        reap();
    }
}

/// Removes the keys from a keyring that it links now; other calls go on meanwhile. One hold of the
/// keyring is the caller's, and is released.
///
/// # Errors
/// `EINTR` if the caller is killed, `ENOMEM`: then some keys are left. `ENOTDIR`.
pub(super) fn clear(ring: Serial) -> Result<()> {
    let _held = KeyHandle(ring);
    let links = KEYS.lock_killable()?.count(ring)?;
    for _ in (0..links).step_by(AT_ONCE) {
        KEYS.lock_killable()?.clear_some(ring, AT_ONCE)?;
        crate::sched::checkpoint()?;
    }
    Ok(())
}

/// Removes invalidated keys from all keyrings; other calls go on meanwhile.
///
/// # Errors
/// `EINTR` if the caller is killed, `ENOMEM`: then the next call removes those that are left.
pub(super) fn collect() -> Result<()> {
    let mut place = CollectPlace::default();
    while KEYS.lock_killable()?.collect_some(&mut place, AT_ONCE) {
        crate::sched::checkpoint()?;
    }
    Ok(())
}

/// A place for a keyring.
#[derive(Default)]
pub struct RingSlot(SpinLock<Option<Arc<KeyHandle>>>);

impl RingSlot {
    pub(super) fn serial(&self) -> Option<Serial> {
        self.0.lock().as_ref().map(|handle| handle.0)
    }
    /// Puts a key, one hold of which is the caller's, into the place. Returns the one before, which
    /// is not dropped under the lock of the keys.
    #[must_use]
    pub(super) fn install(&self, serial: Serial) -> Option<Arc<KeyHandle>> {
        self.replace(Some(reserve::arc(KeyHandle(serial))))
    }
    fn replace(&self, handle: Option<Arc<KeyHandle>>) -> Option<Arc<KeyHandle>> {
        core::mem::replace(&mut *self.0.lock(), handle)
    }
    /// Makes it empty. May sleep.
    pub fn clear(&self) {
        let before = self.replace(None);
        drop(before);
    }
}

/// The keyrings of a thread.
#[derive(Default)]
pub struct Keyrings {
    /// The thread's own.
    pub thread: RingSlot,
    /// Whether it has one of its own that nothing has used yet: its creator has one.
    has_unused: AtomicBool,
    /// The session's, which processes inherit.
    pub(super) session: RingSlot,
    /// The keyring for new keys of request_key (`KEY_REQKEY_DEFL_*`).
    destination: AtomicI32,
}

impl Keyrings {
    /// Gives a further thread of a process its creator's session, and a keyring of its own if its
    /// creator has one.
    pub fn join(&self, creator: &Self) {
        let has_one = creator.has_unused.load(Ordering::Relaxed) || creator.thread.serial().is_some();
        self.has_unused.store(has_one, Ordering::Relaxed);
        self.inherit(creator);
    }
    /// Gives a new thread its creator's session.
    pub fn inherit(&self, creator: &Self) {
        let session = creator.session.0.lock().clone();
        let before = self.session.replace(session);
        drop(before);
        self.destination.store(creator.destination.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    /// Whether `slot` is that of the thread's keyring, which exists though nothing has used it.
    pub(super) fn has_unused(&self, slot: &RingSlot) -> bool {
        core::ptr::eq(slot, &self.thread) && self.has_unused.load(Ordering::Relaxed)
    }
    /// The thread executes a program. May sleep.
    pub fn end_program(&self) {
        self.has_unused.store(false, Ordering::Relaxed);
        self.thread.clear();
    }
    /// Lets all go: the thread ends. May sleep.
    pub fn clear(&self) {
        self.thread.clear();
        self.session.clear();
    }
    /// Sets the keyring for new keys of request_key. Returns the one before.
    pub(super) fn set_destination(&self, number: i32) -> i32 {
        self.destination.swap(number, Ordering::Relaxed)
    }
    /// Returns the keyring for new keys of request_key.
    pub(super) fn destination(&self) -> i32 {
        self.destination.load(Ordering::Relaxed)
    }
}
