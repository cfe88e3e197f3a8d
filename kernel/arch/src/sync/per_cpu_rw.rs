//! A lock whose readers store to no line in common.
//!
//! **Protocol.** A writer sets a flag, then waits until the reader counts of all CPUs are 0. A
//! reader adds itself to the count of its CPU, then looks at the flag: where it is set, it subtracts
//! itself and reads nothing. All four steps are sequentially consistent, so either the reader sees
//! the flag, or the writer sees the reader and waits for it.
//!
//! Writers wait without sleeping, so readers are short and do not sleep. Which count a reader uses
//! is nobody's concern but the cache lines': a reader that moves to another CPU still subtracts
//! itself where it has added itself.
//!
//! Counts take room, and a writer looks at all of them. So there are none, and no reader, until a
//! writer [lets them in](PerCpuRwGuard::let_read).
//!
//! The model `per_cpu_rw_model.rs` in the kernel's `sync` explores the orders.
//!
//! Linux' relative is `percpu_rw_semaphore` (kernel/locking/percpu-rwsem.c).

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use alloc::vec::Vec;

use crate::memory::OutOfMemory;

/// One value, for one writer or many readers. See the module's head.
pub struct PerCpuRwLock<T> {
    /// There is a writer, which may still wait for readers.
    is_written: AtomicBool,
    /// By CPU; none where no reader was let in yet.
    readers: spin::Once<Vec<Readers>>,
    value: UnsafeCell<T>,
}

/// How many readers a CPU has, on lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Readers(AtomicUsize);

// SAFETY: as for `RwLock`: what is shared is one `&mut T` or several `&T`, and `T` may go from the
// writer on one CPU to that on another.
unsafe impl<T: Send + Sync> Sync for PerCpuRwLock<T> {}

/// What came of an attempt to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadAttempt<R> {
    /// What the reader returned.
    Done(R),
    /// There is a writer.
    Written,
    /// No reader was let in yet.
    Closed,
}

impl<T> PerCpuRwLock<T> {
    /// A free lock around `value`, which lets no readers in.
    pub const fn new(value: T) -> Self {
        Self { is_written: AtomicBool::new(false), readers: spin::Once::new(), value: UnsafeCell::new(value) }
    }

    /// Take the lock for writing, unless another writer has it. Waits for readers.
    #[inline]
    pub fn try_write(&self) -> Option<PerCpuRwGuard<'_, T>> {
        self.is_written.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        if let Some(readers) = self.readers.get() {
            Self::wait_for(readers);
        }
        Some(PerCpuRwGuard { lock: self })
    }

    #[cold]
    #[inline(never)]
    fn wait_for(readers: &[Readers]) {
        for Readers(count) in readers {
            while count.load(Ordering::SeqCst) != 0 {
                core::hint::spin_loop();
            }
        }
    }

    /// Show `f` the value, on CPU `cpu`, if there is no writer. `f` is short and does not sleep; the
    /// caller keeps its CPU.
    #[inline]
    pub fn read<R>(&self, cpu: usize, f: impl FnOnce(&T) -> R) -> ReadAttempt<R> {
        let Some(readers) = self.readers.get() else { return ReadAttempt::Closed };
        let _counted = Counted::new(&readers[cpu % readers.len()].0);
        if self.is_written.load(Ordering::SeqCst) {
            return ReadAttempt::Written;
        }
        // SAFETY: a writer makes a reference when it has seen each count at 0 after it had set the
        // flag. This reader was counted before it found the flag not set, and is until it is done
        // with the reference, so no writer has one meanwhile.
        ReadAttempt::Done(f(unsafe { &*self.value.get() }))
    }

    /// Whether readers are let in.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.readers.get().is_some()
    }
}

impl<T> fmt::Debug for PerCpuRwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerCpuRwLock")
    }
}

/// A reader, as long as it is counted.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The right to write a [`PerCpuRwLock`]'s value.
#[must_use]
pub struct PerCpuRwGuard<'a, T> {
    lock: &'a PerCpuRwLock<T>,
}

impl<T> PerCpuRwGuard<'_, T> {
    /// Let readers in from now on, on `cpus` CPUs. Changes nothing where they are.
    ///
    /// # Errors
    /// [`OutOfMemory`]: nothing changed.
    pub fn let_read(&self, cpus: usize) -> Result<(), OutOfMemory> {
        if self.lock.is_readable() {
            return Ok(());
        }
        let mut readers = Vec::new();
        readers.try_reserve_exact(cpus.max(1)).map_err(|_| OutOfMemory)?;
        readers.resize_with(cpus.max(1), Readers::default);
        self.lock.readers.call_once(|| readers);
        Ok(())
    }
}

impl<T> Deref for PerCpuRwGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the writer has the value alone until the guard is dropped: see `read`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for PerCpuRwGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed alone.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for PerCpuRwGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.is_written.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::thread;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn readers_come_in_when_they_are_let_in_and_nobody_writes() {
        let lock = PerCpuRwLock::new(7);
        assert_eq!(lock.read(0, |value| *value), ReadAttempt::Closed);
        let mut guard = lock.try_write().unwrap();
        guard.let_read(2).unwrap();
        guard.let_read(3).unwrap();
        *guard = 8;
        assert_eq!(lock.read(1, |value| *value), ReadAttempt::Written);
        assert!(lock.try_write().is_none());
        drop(guard);
        assert_eq!(lock.read(5, |value| *value), ReadAttempt::Done(8));
        assert_eq!(lock.read(0, |_| lock.read(1, |value| *value)), ReadAttempt::Done(ReadAttempt::Done(8)));
    }

    #[test]
    fn a_reader_sees_all_of_a_write_or_nothing() {
        const ROUNDS: u64 = 20_000;
        let lock = PerCpuRwLock::new([0_u64; 8]);
        lock.try_write().unwrap().let_read(2).unwrap();
        thread::scope(|scope| {
            let readers = Vec::from_iter((0..2).map(|cpu| {
                let lock = &lock;
                scope.spawn(move || {
                    let mut seen = 0;
                    while seen < ROUNDS {
                        if let ReadAttempt::Done(now) = lock.read(cpu, |value| {
                            assert!(value.iter().all(|word| *word == value[0]), "{value:?}");
                            value[0]
                        }) {
                            assert!(now >= seen);
                            seen = now;
                        }
                        std::hint::spin_loop();
                    }
                })
            }));
            for round in 1..=ROUNDS {
                let mut value = lock.try_write().unwrap();
                value.iter_mut().for_each(|word| *word = round);
                drop(value);
                if round % 64 == 0 {
                    thread::yield_now();
                }
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    }
}
