//! Words of the allocator's own memory, and the locks that order access to them.
//!
//! All of the allocator's variable state is `AtomicU64`s that are read and written with relaxed
//! plain loads and stores: each word has one user at a time: the holder of a [`Lock`], or the CPU
//! to whose pcp the word belongs. A lock's acquire and release order everything else, so no word
//! needs an ordering of its own.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::{Cpus, Pinned};

/// Words in a cache line.
pub(crate) const LINE: usize = 8;

/// Plain access to a word that has one user at a time.
pub(crate) trait Plain {
    fn get(&self) -> u64;
    fn set(&self, value: u64);
    fn add(&self, more: u64);
    fn sub(&self, less: u64);
}

impl Plain for AtomicU64 {
    #[inline(always)]
    fn get(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }
    #[inline(always)]
    fn set(&self, value: u64) {
        self.store(value, Ordering::Relaxed);
    }
    #[inline(always)]
    fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }
    #[inline(always)]
    fn sub(&self, less: u64) {
        self.set(self.get().wrapping_sub(less));
    }
}

/// A spin lock: a word in a separate cache line, 0 while the lock is free. Taken with the CPU
/// pinned and interrupts on; interrupt handlers never take it. The holder allocates nothing and
/// draws no random bits.
///
/// **Order.** An arena's lock, then its zone's. The second of two arenas' locks is only taken if it
/// is free. [`Zone::lock_all`](crate::zone::Zone::lock_all) takes all arenas' locks by number, then
/// the zone's. Zones are never locked together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lock(&'static AtomicU64);

/// Proof that a lock is held.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    lock: Lock,
    pinned: PhantomData<&'a ()>,
}

impl Lock {
    pub(crate) const fn new(word: &'static AtomicU64) -> Self {
        Self(word)
    }
    pub(crate) fn lock<'a, C: Cpus>(self, _pinned: &'a Pinned<C>, cpus: C) -> Held<'a> {
        self.acquire(cpus);
        Held { lock: self, pinned: PhantomData }
    }
    /// Returns `None` if the lock is held.
    pub(crate) fn try_lock<C: Cpus>(self, _pinned: &Pinned<C>) -> Option<Held<'_>> {
        let free = self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // The guard is made only if the lock was taken: dropping a guard releases the lock.
        free.then(|| Held { lock: self, pinned: PhantomData })
    }
    /// Takes the lock. The CPU is pinned; the caller calls [`Lock::release`] later.
    pub(crate) fn acquire<C: Cpus>(self, cpus: C) {
        while self.0.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.0.get() != 0 {
                cpus.relax();
            }
        }
    }
    pub(crate) fn release(self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lock.release();
    }
}
