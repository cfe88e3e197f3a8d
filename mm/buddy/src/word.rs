//! Words of the allocator's own memory, and the lock that orders access to them.
//!
//! All of the allocator's variable state is `AtomicU64`s that are read and written with relaxed plain loads and
//! stores: each has one user at a time, either the holder of a zone's [`Lock`] or the CPU whose lane it is. The lock's
//! acquire and release order everything else, so no word needs an ordering of its own.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_machine::{Cpus, Pinned};

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

/// A zone's spin lock. Taken with the CPU pinned and interrupts on; interrupt handlers never take it.
/// Ordered before nothing: the holder takes no other lock, allocates nothing, draws no random bits.
#[derive(Debug, Default)]
pub(crate) struct Lock(AtomicBool);

/// Proof that a zone's lock is held.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a AtomicBool);

impl Lock {
    pub(crate) fn lock<'a, C: Cpus>(&'a self, _pinned: &'a Pinned<C>, cpus: C) -> Held<'a> {
        while self.0.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.0.load(Ordering::Relaxed) {
                cpus.relax();
            }
        }
        Held(&self.0)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
