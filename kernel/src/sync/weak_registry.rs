//! A registry of weak references that is cheap to query when it is empty. Every process' end
//! queries registries that few processes use.
//!
//! An object is entered once and leaves when it ends, because the registry has a weak reference. A
//! query of an empty registry loads its length, without the lock, for which all process ends in the
//! system would otherwise queue.
//!
//! **A stale length is never 0** if the caller is responsible for an object in the registry. The
//! object was entered before the caller, or the task that gave it to the caller, could refer to it.
//! Its entry stays as long as the object exists, so the length is not 0 from then on. The entry
//! happens before the query, because the object was passed on by an ordering operation: the
//! caller's own steps, a fork, or a lock. A reference count (release) also orders them, together
//! with the fence here.
//!
//! **Locks.** A registry's lock is a sleeping lock, taken before those of its entries. The end of
//! an entry must not take it, because a reader's strong reference may be the last.

use core::ops::Deref;
use core::sync::atomic::{AtomicUsize, Ordering, fence};

use freehold_collections::{Arc, Vec, Weak, reserve::ArcMethods};

use super::{Mutex, MutexGuard};
use crate::Result;

/// Weak references; see the module's head.
pub struct WeakRegistry<T> {
    entries: Mutex<Vec<Weak<T>>>,
    /// The length of `entries`, changed with their lock held.
    length: AtomicUsize,
}

/// The locked entries: no other task changes them meanwhile.
pub struct WeakRegistryGuard<'a, T: 'static>(MutexGuard<'a, Vec<Weak<T>>>);

impl<T: 'static> Deref for WeakRegistryGuard<'_, T> {
    type Target = [Weak<T>];
    fn deref(&self) -> &[Weak<T>] {
        &self.0
    }
}

impl<T: 'static> WeakRegistry<T> {
    /// Returns an empty registry.
    pub(crate) const fn new() -> Self {
        Self { entries: Mutex::new(Vec::new()), length: AtomicUsize::new(0) }
    }

    /// Enters `thing`, before any task can query it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn enter(&self, thing: &Arc<T>) -> Result<()> {
        let mut entries = self.lock();
        entries.0.try_push(thing.downgrade())?;
        self.length.store(entries.0.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the entries, if there may be any. May sleep.
    pub fn entries(&self) -> Option<WeakRegistryGuard<'_, T>> {
        fence(Ordering::Acquire);
        (self.length.load(Ordering::Relaxed) > 0).then(|| self.lock())
    }

    /// Returns the locked entries, after removing those that have ended.
    fn lock(&self) -> WeakRegistryGuard<'_, T> {
        let mut entries = self.entries.lock();
        entries.retain(|entry| entry.strong_count() > 0);
        self.length.store(entries.len(), Ordering::Relaxed);
        WeakRegistryGuard(entries)
    }
}

#[cfg(test)]
mod tests {
    use freehold_collections::{TryCollect as _, reserve};

    use super::*;

    #[test]
    fn a_registry_shows_what_lives_and_is_empty_again_after_it() {
        let registry = WeakRegistry::new();
        assert!(registry.entries().is_none());
        let (one, other) = (reserve::arc(1), reserve::arc(2));
        registry.enter(&one).unwrap();
        registry.enter(&other).unwrap();
        let list = |entries| Vec::try_from_slice(entries).unwrap();
        let shown = |guard: WeakRegistryGuard<'_, i32>| -> Vec<i32> {
            guard.iter().filter_map(|entry| entry.upgrade()).map(|entry| *entry).try_collect_vec().unwrap()
        };
        assert_eq!(registry.entries().map(shown), Some(list(&[1, 2])));
        drop(one);
        assert_eq!(registry.entries().map(shown), Some(list(&[2])));
        drop(other);
        assert_eq!(registry.entries().map(shown), Some(list(&[])));
        assert!(registry.entries().is_none(), "nobody asks for the lock of an empty one");
    }
}
