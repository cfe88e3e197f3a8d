//! A lock whose readers share no cache line that they store to.
//!
//! **Protocol.** A writer sets the state to *written*, then waits until the reader counts of all
//! CPUs are 0. A reader adds itself to the count of its CPU, then reads the state: if it is
//! *written*, the reader subtracts itself and does not read the value. All four steps are
//! sequentially consistent, so either the reader sees the state, or the writer sees the reader and
//! waits for it.
//!
//! A writer that needs no more access to the value, but must keep other writers out, sets the state
//! to *kept* ([`PerCpuRwGuard::downgrade`]): readers are let in, writers are not.
//!
//! Writers wait without sleeping, so readers are short and do not sleep. The choice of a reader's
//! count matters only for cache lines: a reader that moves to another CPU still subtracts itself
//! from the count that it was added to.
//!
//! Beside its count each CPU has a *note*, a number to which readers add what they have done, while
//! they are counted. A writer takes all notes, when there is no reader
//! ([`PerCpuRwGuard::take_notes`]). So readers can count events without a shared line.
//!
//! Counts take memory, and a writer reads all of them. So there are no counts, and no readers,
//! until a writer [lets readers in](PerCpuRwGuard::let_read).
//!
//! The model `per_cpu_rw_model.rs` in the kernel's `sync` explores the orders.
//!
//! Linux' relative is `percpu_rw_semaphore` (kernel/locking/percpu-rwsem.c).

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use alloc::vec::Vec;

use crate::memory::OutOfMemory;

const FREE: u8 = 0;
const WRITTEN: u8 = 1;
const KEPT: u8 = 2;

/// One value, for one writer or many readers. See the module's head.
pub struct PerCpuRwLock<T> {
    /// [`FREE`], [`WRITTEN`] (the writer may still wait for readers) or [`KEPT`].
    state: AtomicU8,
    /// By CPU; empty if no reader was let in yet.
    readers: spin::Once<Vec<Readers>>,
    value: UnsafeCell<T>,
}

/// The readers of a CPU, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Readers {
    count: AtomicUsize,
    note: AtomicU64,
}

// SAFETY: as for `RwLock`: CPUs share one `&mut T` or several `&T`, and `T` may go from the writer
// on one CPU to that on another.
unsafe impl<T: Send + Sync> Sync for PerCpuRwLock<T> {}

/// Result of an attempt to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadAttempt<R> {
    /// The reader's result.
    Done(R),
    /// There is a writer.
    Written,
    /// No reader was let in yet.
    Closed,
}

impl<T> PerCpuRwLock<T> {
    /// Makes a free lock around `value`, which lets no readers in.
    pub const fn new(value: T) -> Self {
        Self { state: AtomicU8::new(FREE), readers: spin::Once::new(), value: UnsafeCell::new(value) }
    }

    /// Take the lock for writing, unless another writer has it. Waits for readers.
    #[inline]
    pub fn try_write(&self) -> Option<PerCpuRwGuard<'_, T>> {
        self.state.compare_exchange(FREE, WRITTEN, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        if let Some(readers) = self.readers.get() {
            Self::wait_for(readers);
        }
        Some(PerCpuRwGuard { lock: self })
    }

    #[cold]
    #[inline(never)]
    fn wait_for(readers: &[Readers]) {
        for Readers { count, .. } in readers {
            while count.load(Ordering::SeqCst) != 0 {
                core::hint::spin_loop();
            }
        }
    }

    /// Calls `f` with the value and the note of CPU `cpu`, on which it runs, if there is no writer.
    /// `f` is short and does not sleep; the caller keeps its CPU.
    #[inline]
    pub fn read<R>(&self, cpu: usize, f: impl FnOnce(&T, &AtomicU64) -> R) -> ReadAttempt<R> {
        let Some(readers) = self.readers.get() else { return ReadAttempt::Closed };
        let readers = &readers[cpu % readers.len()];
        let _counted = Counted::new(&readers.count);
        if self.state.load(Ordering::SeqCst) == WRITTEN {
            return ReadAttempt::Written;
        }
        // SAFETY: a writer sets the state, then waits until each count is 0, and only then makes a
        // reference; it drops that before it resets the state. This reader was counted before it
        // read that there is no writer, and stays counted until it is done with the reference. So
        // no writer has a reference meanwhile.
        ReadAttempt::Done(f(unsafe { &*self.value.get() }, &readers.note))
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

impl<'a, T> PerCpuRwGuard<'a, T> {
    /// Lets readers see the value, but no other writer.
    pub fn downgrade(self) -> PerCpuRwKept<'a, T> {
        let lock = self.lock;
        core::mem::forget(self);
        lock.state.store(KEPT, Ordering::Release);
        PerCpuRwKept { lock }
    }

    /// Returns the sum of the notes of all CPUs, and makes them 0.
    #[inline]
    pub fn take_notes(&self) -> u64 {
        let take = |note: &AtomicU64| match note.load(Ordering::Relaxed) {
            0 => 0,
            // There are no readers, which would add to it now.
            sum => {
                note.store(0, Ordering::Relaxed);
                sum
            }
        };
        self.lock.readers.get().map_or(0, |readers| readers.iter().map(|readers| take(&readers.note)).sum())
    }

    /// Lets readers in from now on, on `cpus` CPUs. Changes nothing if they are let in already.
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
        // SAFETY: only the writer has the value until the guard is dropped: see `read`.
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
        self.lock.state.store(FREE, Ordering::Release);
    }
}

/// Readers may be let in, but no CPU writes the value of a [`PerCpuRwLock`] while this exists.
#[must_use]
pub struct PerCpuRwKept<'a, T> {
    lock: &'a PerCpuRwLock<T>,
}

impl<T> Drop for PerCpuRwKept<'_, T> {
    fn drop(&mut self) {
        self.lock.state.store(FREE, Ordering::Release);
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
        assert_eq!(lock.read(0, |value, _| *value), ReadAttempt::Closed);
        let mut guard = lock.try_write().unwrap();
        guard.let_read(2).unwrap();
        guard.let_read(3).unwrap();
        *guard = 8;
        assert_eq!(lock.read(1, |value, _| *value), ReadAttempt::Written);
        assert!(lock.try_write().is_none());
        drop(guard);
        assert_eq!(lock.read(5, |value, _| *value), ReadAttempt::Done(8));
        let kept = lock.try_write().unwrap().downgrade();
        assert_eq!(lock.read(0, |value, _| *value), ReadAttempt::Done(8));
        assert!(lock.try_write().is_none());
        drop(kept);
        assert!(lock.try_write().is_some());
        assert_eq!(
            lock.read(0, |_, _| lock.read(1, |value, _| *value)),
            ReadAttempt::Done(ReadAttempt::Done(8))
        );
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
                    let (mut seen, mut reads) = (0, 0);
                    while seen < ROUNDS {
                        if let ReadAttempt::Done(now) = lock.read(cpu, |value, note| {
                            note.fetch_add(1, Ordering::Relaxed);
                            assert!(value.iter().all(|word| *word == value[0]), "{value:?}");
                            value[0]
                        }) {
                            assert!(now >= seen);
                            seen = now;
                            reads += 1;
                        }
                        std::hint::spin_loop();
                    }
                    reads
                })
            }));
            let mut noted = 0;
            for round in 1..=ROUNDS {
                let mut value = lock.try_write().unwrap();
                noted += value.take_notes();
                value.iter_mut().for_each(|word| *word = round);
                drop(value);
                if round % 64 == 0 {
                    thread::yield_now();
                }
            }
            let reads: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
            assert_eq!(noted + lock.try_write().unwrap().take_notes(), reads, "each note is taken once");
        });
    }
}
