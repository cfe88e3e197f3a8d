//! Locks, and values that are set once.
//!
//! [`SpinLock`] holds preemption off (its owner does not block) with interrupts as they were: for what no
//! interrupt handler touches. [`IrqSpinLock`] holds interrupts off: for what handlers touch too. Both are
//! taken in the order that their owners document; neither is re-entrant.

use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use freehold_machine::{Cpus, Pinned};

use crate::X86;
use crate::irq::{self, InterruptsOff};

/// A spin lock for data that no interrupt handler touches.
pub struct SpinLock<T: ?Sized> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one `&mut T` at a time, on whichever CPU holds it.
unsafe impl<T: ?Sized + Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Wait for the lock. The holder must not block.
    pub fn lock(&self) -> SpinGuard<'_, T> {
        let pinned = X86.pin();
        acquire(&self.locked);
        SpinGuard { lock: self, _pinned: pinned }
    }
    /// Take the lock if it is free.
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        let pinned = X86.pin();
        let free = self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        free.then_some(SpinGuard { lock: self, _pinned: pinned })
    }
    /// The value of a lock that nobody else can see.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

fn acquire(locked: &AtomicBool) {
    while locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        while locked.load(Ordering::Relaxed) {
            X86.relax();
        }
    }
}

/// The right to a [`SpinLock`]'s value.
#[must_use]
pub struct SpinGuard<'a, T: ?Sized> {
    lock: &'a SpinLock<T>,
    _pinned: Pinned<X86>,
}

impl<T: ?Sized> Deref for SpinGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so nobody has a `&mut` to the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed mutably: the only way to the value.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.locked.store(false, Ordering::Release);
    }
}

/// A spin lock for data that interrupt handlers touch: interrupts are off on this CPU while it is held.
pub struct IrqSpinLock<T: ?Sized> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one `&mut T` at a time, on whichever CPU holds it.
unsafe impl<T: ?Sized + Send> Sync for IrqSpinLock<T> {}

impl<T> IrqSpinLock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> IrqSpinLock<T> {
    /// Wait for the lock with interrupts off.
    pub fn lock(&self) -> IrqSpinGuard<'_, T> {
        let off = irq::disable();
        acquire(&self.locked);
        IrqSpinGuard { lock: self, _off: off }
    }
    /// Take the lock if it is free.
    pub fn try_lock(&self) -> Option<IrqSpinGuard<'_, T>> {
        let off = irq::disable();
        let free = self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        free.then_some(IrqSpinGuard { lock: self, _off: off })
    }
}

/// The right to an [`IrqSpinLock`]'s value. Guards are dropped in the reverse order of their making.
#[must_use]
pub struct IrqSpinGuard<'a, T: ?Sized> {
    lock: &'a IrqSpinLock<T>,
    _off: InterruptsOff,
}

impl<T: ?Sized> Deref for IrqSpinGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so nobody has a `&mut` to the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for IrqSpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock and is borrowed mutably: the only way to the value.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for IrqSpinGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.locked.store(false, Ordering::Release);
    }
}

impl<T: ?Sized> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpinLock")
    }
}

impl<T: ?Sized> fmt::Debug for IrqSpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IrqSpinLock")
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

// SAFETY: written once before any reader sees SET (release, acquire), then only shared references exist.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }
    /// Set the value and return it.
    ///
    /// # Panics
    /// When it is set already.
    pub fn set(&self, value: T) -> &T {
        let first = self.state.compare_exchange(EMPTY, SETTING, Ordering::Acquire, Ordering::Relaxed).is_ok();
        assert!(first, "a value that is set once was set again");
        // SAFETY: the state is SETTING and only this call can have made it so: no other access exists.
        unsafe { (*self.value.get()).write(value) };
        self.state.store(SET, Ordering::Release);
        self.get().expect("set just now")
    }
    /// The value, if it is set.
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
