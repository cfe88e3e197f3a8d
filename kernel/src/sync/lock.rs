//! Locks.
//!
//! [`SpinLock`] is for tasks only: its holder must not sleep, and an interrupt handler must not
//! take it. [`IrqSpinLock`] protects data that an interrupt handler shares with tasks. Interrupts
//! are off while it is held, so its holder must not allocate, free, or wait for another CPU.
//! [`Mutex`], [`RwLock`] and any other [`Sleeping`] lock may be held across sleeping. Lock order:
//! sleeping locks > plain spin locks > interrupt-safe spin locks.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering, fence};

use freehold_machine::Cpus;

use super::wait::WaitQueue;

pub use crate::hw::sync::{
    ArcSlot, IrqSpinLock, PerCpuRwGuard, PerCpuRwKept, PerCpuRwLock, ReadAttempt, SpinLock, SpinLockGuard,
};
use crate::hw::{Hardware, LOCK_SPINS};

/// A lock with a non-blocking attempt to take it.
pub trait TryLock {
    /// The guard, which proves that the lock is held.
    type Guard<'a>
    where
        Self: 'a;
    /// Takes the lock if it is free.
    fn try_lock(&self) -> Option<Self::Guard<'_>>;
}

impl<T> TryLock for SpinLock<T> {
    type Guard<'a>
        = SpinLockGuard<'a, T>
    where
        T: 'a;
    #[inline]
    fn try_lock(&self) -> Option<SpinLockGuard<'_, T>> {
        Self::try_lock(self)
    }
}

impl<T> TryLock for PerCpuRwLock<T> {
    type Guard<'a>
        = PerCpuRwGuard<'a, T>
    where
        T: 'a;
    #[inline]
    fn try_lock(&self) -> Option<PerCpuRwGuard<'_, T>> {
        self.try_write()
    }
}

/// A lock that may be held across sleeping. Waiting for it is not interruptible.
#[derive(Debug, Default)]
pub struct Sleeping<L> {
    lock: L,
    waiters: WaitQueue,
}

/// A value behind a lock that may be held across sleeping.
pub type Mutex<T> = Sleeping<SpinLock<T>>;
/// The guard of a [`Mutex`].
pub type MutexGuard<'a, T> = SleepingGuard<'a, SpinLockGuard<'a, T>>;

impl<T> Mutex<T> {
    /// Makes an unlocked lock with `value`.
    pub const fn new(value: T) -> Self {
        Self::around(SpinLock::new(value))
    }
    /// Returns the value, by exclusive access to the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
    /// Consumes the lock and returns the value.
    pub fn into_inner(self) -> T {
        self.lock.into_inner()
    }
}

impl<L> Sleeping<L> {
    /// Returns a lock around `lock` whose waiters sleep.
    pub const fn around(lock: L) -> Self {
        Self { lock, waiters: WaitQueue::new() }
    }
    /// Returns the lock inside.
    #[inline]
    pub const fn inner(&self) -> &L {
        &self.lock
    }
}

impl<L: TryLock> Sleeping<L> {
    /// Takes the lock; sleeps while another task holds it.
    #[inline]
    pub fn lock(&self) -> SleepingGuard<'_, L::Guard<'_>> {
        self.guard(self.lock.try_lock().unwrap_or_else(|| self.wait()))
    }
    #[inline]
    const fn guard<'a>(&'a self, held: L::Guard<'a>) -> SleepingGuard<'a, L::Guard<'a>> {
        SleepingGuard { held: Some(held), waiters: &self.waiters }
    }
    #[cold]
    fn wait(&self) -> L::Guard<'_> {
        self.spin().unwrap_or_else(|| self.waiters.wait_uninterruptible(|| self.lock.try_lock()))
    }
    /// Takes the lock; sleeps while another task holds it.
    ///
    /// # Errors
    /// `EINTR` if the current task is killed before it has the lock.
    #[inline]
    pub fn lock_killable(&self) -> crate::Result<SleepingGuard<'_, L::Guard<'_>>> {
        match self.lock.try_lock() {
            Some(held) => Ok(self.guard(held)),
            None => self.wait_killable(),
        }
    }
    #[cold]
    fn wait_killable(&self) -> crate::Result<SleepingGuard<'_, L::Guard<'_>>> {
        let held = match self.spin() {
            Some(held) => held,
            None => match self.waiters.wait_killable(|| self.lock.try_lock()) {
                Ok(held) => held,
                Err(error) => {
                    // This waiter may have received a wake-up that was meant for one waiter. Pass
                    // it on.
                    self.waiters.wake_one();
                    return Err(error);
                }
            },
        };
        Ok(self.guard(held))
    }
    /// Spins for about as long as a short holder on another CPU needs: sleeping and waking cost far
    /// more.
    fn spin(&self) -> Option<L::Guard<'_>> {
        spin_for(|| self.lock.try_lock())
    }
    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<SleepingGuard<'_, L::Guard<'_>>> {
        Some(self.guard(self.lock.try_lock()?))
    }
}

impl<T> Sleeping<PerCpuRwLock<T>> {
    /// Calls `f` with the value and this CPU's note, concurrently with other readers, as soon as no
    /// writer has the lock; `None` if no reader was permitted yet. `f` neither sleeps nor waits for
    /// another CPU. This may sleep.
    #[inline]
    pub fn read<R>(&self, f: impl FnOnce(&T, &AtomicU64) -> R) -> Option<R> {
        if !self.lock.is_readable() {
            return None;
        }
        let mut f = Some(f);
        let mut attempt = || {
            let pinned = Hardware.pin();
            let show = |value: &T, note: &AtomicU64| f.take().map(|f| f(value, note));
            match self.lock.read(usize::from(pinned.cpu().0), show) {
                ReadAttempt::Done(shown) => Some(shown),
                ReadAttempt::Written => None,
                ReadAttempt::Closed => Some(None),
            }
        };
        match attempt() {
            Some(shown) => shown,
            None => self.wait_to_read(attempt),
        }
    }
    #[cold]
    fn wait_to_read<R>(&self, mut attempt: impl FnMut() -> Option<R>) -> R {
        spin_for(&mut attempt).unwrap_or_else(|| {
            let read = self.waiters.wait_uninterruptible(attempt);
            // The writer has woken one reader: the others can read now, too.
            self.waiters.wake_one();
            read
        })
    }
}

/// Repeats `attempt` for as long as a short holder on another CPU may have a lock.
fn spin_for<R>(mut attempt: impl FnMut() -> Option<R>) -> Option<R> {
    if crate::sched::online().len() == 1 {
        return None;
    }
    (0..LOCK_SPINS).find_map(|_| {
        core::hint::spin_loop();
        attempt()
    })
}

/// The guard of a [`Sleeping`] lock.
#[must_use]
pub struct SleepingGuard<'a, G> {
    held: Option<G>,
    waiters: &'a WaitQueue,
}

const HELD: &str = "a guard holds its lock until it is dropped";

impl<G> SleepingGuard<'_, G> {
    /// Returns the guard of the lock inside.
    pub fn inner(&self) -> &G {
        self.held.as_ref().expect(HELD)
    }
}

impl<'a, T> SleepingGuard<'a, PerCpuRwGuard<'a, T>> {
    /// Permits readers, but no other writer. Sleeping readers are not woken, because the remaining
    /// work is short.
    pub fn downgrade(mut self) -> SleepingGuard<'a, PerCpuRwKept<'a, T>> {
        let (held, waiters) = (self.held.take().expect(HELD), self.waiters);
        core::mem::forget(self);
        SleepingGuard { held: Some(held.downgrade()), waiters }
    }
}

impl<G: Deref> Deref for SleepingGuard<'_, G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        self.held.as_ref().expect(HELD)
    }
}

impl<G: DerefMut> DerefMut for SleepingGuard<'_, G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        self.held.as_mut().expect(HELD)
    }
}

impl<G> Drop for SleepingGuard<'_, G> {
    #[inline]
    fn drop(&mut self) {
        drop(self.held.take());
        // The release above must be visible before the check for sleepers: a sleeper registers,
        // then tries to take the lock.
        fence(Ordering::SeqCst);
        self.waiters.wake_one();
    }
}

impl<G: Deref<Target: fmt::Debug>> fmt::Debug for SleepingGuard<'_, G> {
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
    /// Makes an unlocked lock with `value`.
    pub const fn new(value: T) -> Self {
        Self { data: SharedLock::new(value), waiters: WaitQueue::new() }
    }
    /// Takes the lock for reading; sleeps while a writer holds it.
    pub fn read(&self) -> ReadGuard<'_, T> {
        let data = match self.data.try_read() {
            Some(data) => data,
            None => self.waiters.wait_uninterruptible(|| self.data.try_read()),
        };
        ReadGuard { data: Some(data), waiters: &self.waiters }
    }
    /// Takes the lock for writing; sleeps while another task holds it.
    pub fn write(&self) -> WriteGuard<'_, T> {
        let data = match self.data.try_write() {
            Some(data) => data,
            None => self.waiters.wait_uninterruptible(|| self.data.try_write()),
        };
        WriteGuard { data: Some(data), waiters: &self.waiters }
    }
}

/// The guard of a [`RwLock`] held for reading.
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

/// The guard of a [`RwLock`] held for writing.
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
