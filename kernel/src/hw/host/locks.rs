//! Spin locks that know their holder: a task must hold none when it sleeps or may sleep.

use core::cell::Cell;
use core::fmt;
use core::ops::{Deref, DerefMut};

use super::std::thread_local;

thread_local! {
    /// Number of spin locks that this thread has taken by waiting for them.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Checks that the current thread holds no spin lock.
///
/// # Panics
/// If the thread holds one.
pub fn assert_none_held() {
    let held = HELD.get();
    assert_eq!(held, 0, "spin locks are held where a task may sleep");
}

/// A spin lock for data that no interrupt handler touches.
#[derive(Default)]
pub struct SpinLock<T: ?Sized>(freehold_arch::sync::SpinLock<T>);

impl<T> SpinLock<T> {
    /// Makes a free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(freehold_arch::sync::SpinLock::new(value))
    }
    /// Returns the value and consumes the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> SpinLockGuard<'_, T> {
        let value = self.0.lock();
        HELD.set(HELD.get() + 1);
        SpinLockGuard { value, counts: 1 }
    }
    /// Takes the lock if it is free. A lock whose waiters sleep instead of spin (`sync::Mutex`) may
    /// be held across sleeping.
    pub fn try_lock(&self) -> Option<SpinLockGuard<'_, T>> {
        self.0.try_lock().map(|value| SpinLockGuard { value, counts: 0 })
    }
    /// Returns the value; the exclusive reference proves that no other thread uses the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Access to a [`SpinLock`]'s value while the lock is held.
#[must_use]
pub struct SpinLockGuard<'a, T: ?Sized> {
    value: freehold_arch::sync::SpinLockGuard<'a, T>,
    /// This guard's share of [`HELD`].
    counts: usize,
}

impl<T: ?Sized> Deref for SpinLockGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for SpinLockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: ?Sized> Drop for SpinLockGuard<'_, T> {
    fn drop(&mut self) {
        let counts = self.counts;
        // A thread that is ending has no counter any more.
        let _ = HELD.try_with(|held| held.set(held.get() - counts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_spin_lock_must_not_sleep() {
        let lock = SpinLock::new(1);
        drop(lock.lock());
        let _as_a_mutex_does = lock.try_lock();
        assert_none_held();
    }

    #[test]
    #[should_panic(expected = "spin locks are held")]
    fn a_temporary_holds_its_lock_until_its_statement_ends() {
        let lock = SpinLock::new(1);
        let after = |_: i32| assert_none_held();
        after(*lock.lock());
    }
}
