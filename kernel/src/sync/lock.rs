//! Locks.
//!
//! [`SpinLock`] orders tasks only: its holder must not sleep, and an interrupt handler must not
//! take it. [`IrqSpinLock`] is for what an interrupt handler shares with tasks: interrupts are off
//! while it is held, so its holder neither allocates, nor frees, nor waits for another CPU.
//! [`Mutex`] and [`RwLock`] may be held across sleeping. Lock order: sleeping locks > plain spin
//! locks > interrupt-safe spin locks.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{Ordering, fence};

use super::wait::WaitQueue;

use crate::hw::LOCK_SPINS;
pub use crate::hw::sync::{ArcSlot, IrqSpinLock, SpinLock, SpinLockGuard};

/// A lock that may be held across sleeping. Waiting for it is not interruptible.
#[derive(Debug, Default)]
pub struct Mutex<T> {
    data: SpinLock<T>,
    waiters: WaitQueue,
}

impl<T> Mutex<T> {
    /// An open lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { data: SpinLock::new(value), waiters: WaitQueue::new() }
    }
    /// Take the lock; sleeps while another task holds it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let data = self.data.try_lock().unwrap_or_else(|| self.wait());
        MutexGuard { data: Some(data), waiters: &self.waiters }
    }
    #[cold]
    fn wait(&self) -> SpinLockGuard<'_, T> {
        self.spin().unwrap_or_else(|| self.waiters.wait_uninterruptible(|| self.data.try_lock()))
    }
    /// Take the lock; sleeps while another task holds it.
    ///
    /// # Errors
    /// `EINTR` where the current task is to end before it has the lock.
    #[inline]
    pub fn lock_killable(&self) -> crate::Result<MutexGuard<'_, T>> {
        match self.data.try_lock() {
            Some(data) => Ok(MutexGuard { data: Some(data), waiters: &self.waiters }),
            None => self.wait_killable(),
        }
    }
    #[cold]
    fn wait_killable(&self) -> crate::Result<MutexGuard<'_, T>> {
        let data = match self.spin() {
            Some(data) => data,
            None => match self.waiters.wait_killable(|| self.data.try_lock()) {
                Ok(data) => data,
                Err(error) => {
                    // A wake-up that was meant for one waiter may have come to this one.
                    self.waiters.wake_one();
                    return Err(error);
                }
            },
        };
        Ok(MutexGuard { data: Some(data), waiters: &self.waiters })
    }
    /// Try for as long as a short holder on another CPU may take: sleeping and waking cost far more
    /// than that.
    fn spin(&self) -> Option<SpinLockGuard<'_, T>> {
        if crate::sched::online().len() == 1 {
            return None;
        }
        (0..LOCK_SPINS).find_map(|_| {
            core::hint::spin_loop();
            self.data.try_lock()
        })
    }
    /// Take the lock if nobody holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let data = self.data.try_lock()?;
        Some(MutexGuard { data: Some(data), waiters: &self.waiters })
    }
    /// The value, by exclusive access to the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }
    /// The value, at the lock's end.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

/// The proof that a [`Mutex`] is held.
#[must_use]
pub struct MutexGuard<'a, T> {
    data: Option<SpinLockGuard<'a, T>>,
    waiters: &'a WaitQueue,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.data.as_ref().expect("a guard holds its data until it is dropped")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.data.as_mut().expect("a guard holds its data until it is dropped")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        drop(self.data.take());
        // The release above must be visible before we look for sleepers: a sleeper registers, then
        // tries.
        fence(Ordering::SeqCst);
        self.waiters.wake_one();
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

type SharedLock<T> = spin::RwLock<T>;

/// A lock for many readers or one writer that may be held across sleeping. Waiting is not
/// interruptible.
#[derive(Debug, Default)]
pub struct RwLock<T> {
    data: SharedLock<T>,
    waiters: WaitQueue,
}

impl<T> RwLock<T> {
    /// An open lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { data: SharedLock::new(value), waiters: WaitQueue::new() }
    }
    /// Share the lock; sleeps while a writer holds it.
    pub fn read(&self) -> ReadGuard<'_, T> {
        let data = match self.data.try_read() {
            Some(data) => data,
            None => self.waiters.wait_uninterruptible(|| self.data.try_read()),
        };
        ReadGuard { data: Some(data), waiters: &self.waiters }
    }
    /// Take the lock alone; sleeps while anyone holds it.
    pub fn write(&self) -> WriteGuard<'_, T> {
        let data = match self.data.try_write() {
            Some(data) => data,
            None => self.waiters.wait_uninterruptible(|| self.data.try_write()),
        };
        WriteGuard { data: Some(data), waiters: &self.waiters }
    }
}

/// The proof that a [`RwLock`] is shared.
#[must_use]
#[derive(Debug)]
pub struct ReadGuard<'a, T> {
    data: Option<spin::RwLockReadGuard<'a, T>>,
    waiters: &'a WaitQueue,
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.data.as_ref().expect("a guard holds its data until it is dropped")
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.data.take());
        fence(Ordering::SeqCst);
        self.waiters.wake_all();
    }
}

/// The proof that a [`RwLock`] is held alone.
#[must_use]
#[derive(Debug)]
pub struct WriteGuard<'a, T> {
    data: Option<spin::RwLockWriteGuard<'a, T>>,
    waiters: &'a WaitQueue,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.data.as_ref().expect("a guard holds its data until it is dropped")
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.data.as_mut().expect("a guard holds its data until it is dropped")
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.data.take());
        fence(Ordering::SeqCst);
        self.waiters.wake_all();
    }
}
