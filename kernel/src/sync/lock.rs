//! Locks.
//!
//! [`SpinLock`] orders tasks only: its holder must not sleep, and an interrupt handler must not
//! take it. [`IrqSpinLock`] is for what an interrupt handler shares with tasks: interrupts are off
//! while it is held, so its holder neither allocates, nor frees, nor waits for another CPU.
//! [`Mutex`], [`RwLock`] and any other [`Sleeping`] lock may be held across sleeping. Lock order:
//! sleeping locks > plain spin locks > interrupt-safe spin locks.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{Ordering, fence};

use freehold_machine::Cpus;

use super::wait::WaitQueue;

pub use crate::hw::sync::{
    ArcSlot, IrqSpinLock, PerCpuRwGuard, PerCpuRwKept, PerCpuRwLock, ReadAttempt, SpinLock, SpinLockGuard,
};
use crate::hw::{Hardware, LOCK_SPINS};

/// A lock that is taken by trying.
pub trait TryLock {
    /// The proof that it is held.
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
/// The proof that a [`Mutex`] is held.
pub type MutexGuard<'a, T> = SleepingGuard<'a, SpinLockGuard<'a, T>>;

impl<T> Mutex<T> {
    /// An open lock around `value`.
    pub const fn new(value: T) -> Self {
        Self::around(SpinLock::new(value))
    }
    /// The value, by exclusive access to the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
    /// The value, at the lock's end.
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
    /// Take the lock; sleeps while another task holds it.
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
    /// Take the lock; sleeps while another task holds it.
    ///
    /// # Errors
    /// `EINTR` where the current task is to end before it has the lock.
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
                    // A wake-up that was meant for one waiter may have come to this one.
                    self.waiters.wake_one();
                    return Err(error);
                }
            },
        };
        Ok(self.guard(held))
    }
    /// Try for as long as a short holder on another CPU may take: sleeping and waking cost far more
    /// than that.
    fn spin(&self) -> Option<L::Guard<'_>> {
        spin_for(|| self.lock.try_lock())
    }
    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<SleepingGuard<'_, L::Guard<'_>>> {
        Some(self.guard(self.lock.try_lock()?))
    }
}

impl<T> Sleeping<PerCpuRwLock<T>> {
    /// Show `f` the value beside others, as soon as no writer has it; `None` where no reader was
    /// let in yet. `f` neither sleeps nor waits for another CPU. This may sleep.
    #[inline]
    pub fn read<R>(&self, f: impl FnOnce(&T) -> R) -> Option<R> {
        if !self.lock.is_readable() {
            return None;
        }
        let mut f = Some(f);
        let mut attempt = || {
            let pinned = Hardware.pin();
            let show = |value: &T| f.take().map(|f| f(value));
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
            // The writer has woken one: the others can read now, too.
            self.waiters.wake_one();
            read
        })
    }
}

/// Attempt it for as long as a short holder on another CPU may have a lock.
fn spin_for<R>(mut attempt: impl FnMut() -> Option<R>) -> Option<R> {
    if crate::sched::online().len() == 1 {
        return None;
    }
    (0..LOCK_SPINS).find_map(|_| {
        core::hint::spin_loop();
        attempt()
    })
}

/// The proof that a [`Sleeping`] lock is held.
#[must_use]
pub struct SleepingGuard<'a, G> {
    held: Option<G>,
    waiters: &'a WaitQueue,
}

const HELD: &str = "a guard holds its lock until it is dropped";

impl<G> SleepingGuard<'_, G> {
    /// The proof that what is taken is held.
    pub fn inner(&self) -> &G {
        self.held.as_ref().expect(HELD)
    }
}

impl<'a, T> SleepingGuard<'a, PerCpuRwGuard<'a, T>> {
    /// Let readers see the value, and no other writer. Readers that sleep already are not woken:
    /// what is left to do is short.
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
        // The release above must be visible before we look for sleepers: a sleeper registers, then
        // tries.
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
    /// Takes the lock alone; sleeps while another task holds it.
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
