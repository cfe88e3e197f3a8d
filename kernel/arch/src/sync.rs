//! Locks, and values that are set once.
//!
//! [`SpinLock`] orders tasks only: its holder does not block, and no interrupt handler takes it.
//! [`IrqSpinLock`] is for data that interrupt handlers touch, too: interrupts are off on this CPU
//! while it is held. Both are taken in the order that their owners document; neither is re-entrant.
//! No plain lock is taken under an interrupt-safe one (`sync/order.rs` asserts it).

mod delay;
pub(crate) mod order;
mod per_cpu_rw;

use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use alloc::sync::Arc;

use self::order::IrqLockHeld;
pub use self::per_cpu_rw::{PerCpuRwGuard, PerCpuRwKept, PerCpuRwLock, ReadAttempt};
use crate::irq::{self, InterruptsOff};

/// A spin lock for data that no interrupt handler touches.
#[derive(Default)]
pub struct SpinLock<T: ?Sized>(spin::mutex::SpinMutex<T>);
/// The right to a [`SpinLock`]'s value.
pub type SpinLockGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;

impl<T: ?Sized + fmt::Debug> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> SpinLock<T> {
    /// Returns a free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(spin::mutex::SpinMutex::new(value))
    }
    /// Returns the value and consumes the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> SpinLockGuard<'_, T> {
        order::assert_no_irq_lock("a plain lock is taken");
        delay::before_lock();
        self.0.lock()
    }
    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinLockGuard<'_, T>> {
        order::assert_no_irq_lock("a plain or sleeping lock is taken");
        delay::before_lock();
        self.0.try_lock()
    }
    /// Returns the value: the caller has the only reference to the lock.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// A spin lock for data that interrupt handlers touch: interrupts are off on this CPU while it is
/// held.
pub struct IrqSpinLock<T: ?Sized>(spin::mutex::SpinMutex<T>);

impl<T> IrqSpinLock<T> {
    /// Returns a free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(spin::mutex::SpinMutex::new(value))
    }
}

impl<T: ?Sized> IrqSpinLock<T> {
    /// Waits for the lock with interrupts off.
    pub fn lock(&self) -> IrqSpinGuard<'_, T> {
        delay::before_lock();
        let off = irq::disable();
        IrqSpinGuard { value: self.0.lock(), _held: IrqLockHeld::count(), _off: off }
    }
    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<IrqSpinGuard<'_, T>> {
        let off = irq::disable();
        self.0.try_lock().map(|value| IrqSpinGuard { value, _held: IrqLockHeld::count(), _off: off })
    }
}

/// Waits for `lock` with interrupts off already: they need not be turned off again.
#[inline]
pub fn lock_with<'a, T: ?Sized>(lock: &'a IrqSpinLock<T>, _off: &'a InterruptsOff) -> SpinLockGuard<'a, T> {
    lock.0.lock()
}

/// The right to an [`IrqSpinLock`]'s value. Guards are dropped in the reverse order of their
/// making.
#[must_use]
pub struct IrqSpinGuard<'a, T: ?Sized> {
    // The lock is released before interrupts come back: fields are dropped in the order of their
    // declaration.
    value: SpinLockGuard<'a, T>,
    _held: IrqLockHeld,
    _off: InterruptsOff,
}

impl<T: ?Sized> Deref for IrqSpinGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for IrqSpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: ?Sized> fmt::Debug for IrqSpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IrqSpinLock")
    }
}

/// A place for one [`Arc`], which is stored and taken by exchange: only one taker gets it. There is
/// no lock, and no reference count changes.
pub struct ArcSlot<T>(AtomicPtr<T>);

// SAFETY: as for `Mutex<Option<Arc<T>>>`: CPUs share only the exchanges.
unsafe impl<T: Send + Sync> Sync for ArcSlot<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for ArcSlot<T> {}

impl<T> ArcSlot<T> {
    /// Makes an empty slot.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
    /// Takes the [`Arc`] out, if there is one.
    #[inline]
    pub fn take(&self) -> Option<Arc<T>> {
        Self::owned(self.0.swap(ptr::null_mut(), Ordering::SeqCst))
    }
    /// Stores `value`. Returns the previous one.
    #[inline]
    pub fn put(&self, value: Arc<T>) -> Option<Arc<T>> {
        Self::owned(self.0.swap(Arc::into_raw(value).cast_mut(), Ordering::SeqCst))
    }
    #[inline]
    fn owned(taken: *mut T) -> Option<Arc<T>> {
        // SAFETY: a pointer that is not null came from `into_raw` in `put`, and each exchange takes
        // it out once.
        (!taken.is_null()).then(|| unsafe { Arc::from_raw(taken) })
    }
}

impl<T> Default for ArcSlot<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for ArcSlot<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<T> fmt::Debug for ArcSlot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArcSlot")
    }
}

const EMPTY: u8 = 0;
const SETTING: u8 = 1;
const SET: u8 = 2;

/// A value that is set once, during start-up, and read for ever.
pub struct Once<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: written once before any reader sees SET (release, acquire), then only shared references
// exist.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    /// Makes one without a value.
    pub const fn new() -> Self {
        Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }
    /// Sets the value and returns it.
    ///
    /// # Panics
    /// If it is set already.
    pub fn set(&self, value: T) -> &T {
        let first = self.state.compare_exchange(EMPTY, SETTING, Ordering::Acquire, Ordering::Relaxed).is_ok();
        assert!(first, "a value that is set once was set again");
        // SAFETY: the state is SETTING and only this call can have made it so: no other access
        // exists.
        unsafe { (*self.value.get()).write(value) };
        self.state.store(SET, Ordering::Release);
        self.get().expect("set just now")
    }
    /// Returns the value, if it is set.
    pub fn get(&self) -> Option<&T> {
        if self.state.load(Ordering::Acquire) != SET {
            return None;
        }
        // SAFETY: nothing writes it again once it is SET.
        let value = unsafe { &*self.value.get() };
        // SAFETY: SET means initialised.
        Some(unsafe { value.assume_init_ref() })
    }
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Once<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Once")
    }
}
