//! State that the threads of a process share and that nearly every call uses: [`Shared`]. Each
//! thread keeps a reference from one call to the next ([`Kept`]). So a call takes no lock and
//! changes no reference count on a cache line that other CPUs write to. (On Linux each task has its
//! own pointers `mm`, `files`, `fs` and `cred`.)
//!
//! **Protocol.** A call takes the reference from its thread's slot; if the slot is empty, it reads
//! the version and takes a new reference from the shared value. The call uses the reference and
//! puts it back. Then it compares versions, to see whether the value was replaced since the
//! reference was made. If so, the call removes the reference again. A thread that replaces the
//! value increments the version, under the value's lock or after the replacement, then empties the
//! slots of all threads ([`Kept::forget`]). Both sides store before they load, in one order for all
//! CPUs, so one of the two sees the other. When the replacement returns, only calls under way hold
//! the old value. A thread empties its own slot at its end and at execve. `kept_model` explores
//! this.
//!
//! Processes replace their memory at execve and at their end, in both cases by the only thread that
//! is left; descriptors also at unshare and close_range; credentials in calls such as setuid; root
//! and working directory at chdir, chroot, pivot_root and unshare. Several processes can share root
//! and working directory (CLONE_FS). Then no thread keeps them, because a process that replaces
//! them cannot reach the slots of the others. They become shared as if they were replaced.
//!
//! Task context; nothing is dropped under a lock.

use core::sync::atomic::{AtomicU32, Ordering};

use freehold_collections::Arc;

use super::{ArcSlot, SpinLock};

/// A value that is replaced as a whole.
pub struct Shared<T> {
    value: SpinLock<Arc<T>>,
    /// Number of replacements of the value.
    version: AtomicU32,
}

impl<T> Shared<T> {
    /// Makes a shared value with the initial value `value`.
    pub const fn new(value: Arc<T>) -> Self {
        Self { value: SpinLock::new(value), version: AtomicU32::new(0) }
    }
    /// Returns the value.
    #[inline]
    pub fn get(&self) -> Arc<T> {
        self.value.lock().clone()
    }
    /// Calls `look` with the value under a spin lock. Dropping must not sleep there.
    #[inline]
    pub fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.value.lock())
    }
    /// Replaces the value. Returns the old one. The caller then makes all threads' slots forget it.
    pub fn replace(&self, value: Arc<T>) -> Arc<T> {
        let mut place = self.value.lock();
        self.version.fetch_add(1, Ordering::SeqCst);
        core::mem::replace(&mut *place, value)
    }
}

/// One thread's slot for a [`Shared`] value.
pub struct Kept<T> {
    slot: ArcSlot<T>,
    /// The version of the slot's value; only the slot's own thread uses it.
    version: AtomicU32,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { slot: ArcSlot::new(), version: AtomicU32::new(0) }
    }
}

impl<T> Kept<T> {
    /// Calls `look` with the value; `look` may run for a whole call. Only for the slot's own
    /// thread, which may call this again inside of `look`.
    #[inline]
    pub fn with<R>(&self, shared: &Shared<T>, look: impl FnOnce(&Arc<T>) -> R) -> R {
        self.with_by(&shared.version, || (shared.get(), Keeps::Yes), look)
    }
    /// As [`with`](Self::with), for a value that `get` returns and `current` is the version of.
    #[inline]
    pub fn with_by<R>(
        &self,
        current: &AtomicU32,
        get: impl FnOnce() -> (Arc<T>, Keeps),
        look: impl FnOnce(&Arc<T>) -> R,
    ) -> R {
        let (version, value, keeps) = match self.slot.take() {
            Some(value) => (self.version.load(Ordering::Relaxed), value, Keeps::Yes),
            None => {
                let version = current.load(Ordering::SeqCst);
                let (value, keeps) = get();
                self.version.store(version, Ordering::Relaxed);
                (version, value, keeps)
            }
        };
        let result = look(&value);
        // The slot is not empty if `look` used the value, too. Then the slot's version may be a
        // later one than that of this value, which is removed below.
        drop(self.slot.put(value));
        if current.load(Ordering::SeqCst) != version || keeps == Keeps::No {
            self.forget();
        }
        result
    }
    /// Empties the slot. Any thread.
    pub fn forget(&self) {
        drop(self.slot.take());
    }
}

/// Whether a thread may keep a value after its call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keeps {
    /// It may.
    Yes,
    /// It may not, since it would not be told of a replacement.
    No,
}
