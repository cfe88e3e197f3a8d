//! The CPU and the concurrency ID of a thread, for programs that use them (rseq(2)).
//!
//! A **concurrency ID** is a number that differs from those of all threads that run in the same
//! address space at the same time. It is below the number of the machine's CPUs and below that of
//! the space's threads, so that programs index their data by it.
//!
//! **Protocol.** The IDs of a space are one word with a bit for each held ID ([`ConcurrencyIds`]).
//! A thread takes the lowest free ID on its way to user mode, by compare-exchange. There is always
//! a free one, since each holder is on a CPU. The next thread on that CPU releases the ID, before
//! its holder may run elsewhere. In a space with one thread neither is necessary: its thread keeps
//! the ID while it sleeps. Only that thread can create a second one, and records that first
//! (`Thread::share_concurrency_id`). On a machine with one CPU the ID is 0, and no thread holds
//! one. The model at the end explores the orders.
//!
//! If a thread moves to another CPU, or its ID was released, it finds `thread::PLACE` in its
//! attention word before its next instruction in user mode. A thread that stays on its CPU, alone
//! in its space, costs nothing.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Bits of `Schedule::leaving`. This one: the task is runnable and in no queue, and the CPU that it
/// leaves sends it to another one.
pub(super) const MOVES: u8 = 1;
/// Its concurrency ID is released as it leaves its CPU.
pub(super) const GIVES_ID: u8 = 2;

/// The held concurrency IDs of an address space.
#[derive(Debug, Default)]
pub struct ConcurrencyIds(AtomicU64);

impl ConcurrencyIds {
    /// Takes the lowest free ID, which the caller then holds.
    pub(super) fn take(&self) -> u8 {
        let mut held = self.0.load(Ordering::Relaxed);
        loop {
            let lowest = (!held).trailing_zeros().min(63);
            let more = held | 1 << lowest;
            match self.0.compare_exchange_weak(held, more, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return lowest as u8,
                Err(now) => held = now,
            }
        }
    }
    /// Releases `id`.
    pub(super) fn give(&self, id: u8) {
        self.0.fetch_and(!(1 << id), Ordering::Release);
    }
}

/// Whether other threads run in the same address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Company {
    /// No other thread runs in the space.
    Alone,
    /// Other threads may run in the space.
    Others,
}

/// A thread's present CPU and ID. Only the thread and its successor on its CPU change this.
#[derive(Debug, Default)]
pub struct Whereabouts {
    /// Whether its program uses them.
    pub(super) watched: AtomicBool,
    /// The ID that it holds + 1; 0 for none.
    pub(super) held: AtomicU8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_id_is_taken() {
        let ids = ConcurrencyIds::default();
        assert_eq!([ids.take(), ids.take(), ids.take()], [0, 1, 2]);
        ids.give(1);
        assert_eq!(ids.take(), 1);
    }

    /// Threads of one space on two CPUs, in steps. `atomically` tells whether an ID is taken by
    /// compare-exchange.
    mod model {
        use shuttle::scheduler::RandomScheduler;
        use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
        use shuttle::sync::{Arc, Condvar, Mutex};
        use shuttle::{Config, Runner, thread};

        const CPUS: usize = 2;
        const THREADS: usize = 3;
        const TURNS: usize = 3;

        #[derive(Clone, Copy, PartialEq)]
        enum Variant {
            Proper,
            /// The word is loaded, and stored in a later step.
            Torn,
            /// The CPU is free for others before the ID is released.
            LateGift,
        }

        struct World {
            variant: Variant,
            free_cpus: Mutex<usize>,
            freed: Condvar,
            word: AtomicU64,
            holders: [AtomicUsize; 64],
        }

        impl World {
            fn take(&self) -> u32 {
                let mut held = self.word.load(Ordering::SeqCst);
                loop {
                    let lowest = (!held).trailing_zeros();
                    let more = held | 1 << lowest;
                    if self.variant == Variant::Torn {
                        self.word.store(more, Ordering::SeqCst);
                        return lowest;
                    }
                    match self.word.compare_exchange(held, more, Ordering::SeqCst, Ordering::SeqCst) {
                        Ok(_) => return lowest,
                        Err(now) => held = now,
                    }
                }
            }
            fn leave_cpu(&self) {
                *self.free_cpus.lock().unwrap() += 1;
                self.freed.notify_one();
            }
            fn turn(&self) {
                let mut free = self.free_cpus.lock().unwrap();
                while *free == 0 {
                    free = self.freed.wait(free).unwrap();
                }
                *free -= 1;
                drop(free);
                let id = self.take() as usize;
                assert!(id < CPUS, "ID {id} with {CPUS} CPUs");
                assert_eq!(self.holders[id].fetch_add(1, Ordering::SeqCst), 0, "ID {id} is held twice");
                thread::yield_now();
                self.holders[id].fetch_sub(1, Ordering::SeqCst);
                if self.variant == Variant::LateGift {
                    self.leave_cpu();
                }
                self.word.fetch_and(!(1 << id), Ordering::SeqCst);
                if self.variant != Variant::LateGift {
                    self.leave_cpu();
                }
            }
        }

        fn explore(variant: Variant) {
            let run = move || {
                let world = Arc::new(World {
                    variant,
                    free_cpus: Mutex::new(CPUS),
                    freed: Condvar::new(),
                    word: AtomicU64::new(0),
                    holders: [const { AtomicUsize::new(0) }; 64],
                });
                let threads: std::vec::Vec<_> = (0..THREADS)
                    .map(|_| {
                        let world = world.clone();
                        thread::spawn(move || (0..TURNS).for_each(|_| world.turn()))
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            };
            Runner::new(RandomScheduler::new_from_seed(5, 20_000), Config::new()).run(run);
        }

        #[test]
        fn no_two_threads_have_one_id_and_all_are_below_the_number_of_cpus() {
            explore(Variant::Proper);
        }

        #[test]
        #[should_panic(expected = "ID ")]
        fn the_model_finds_a_word_that_is_not_changed_at_once() {
            explore(Variant::Torn);
        }

        #[test]
        #[should_panic(expected = "with 2 CPUs")]
        fn the_model_finds_an_id_that_outlives_its_stay_on_a_cpu() {
            explore(Variant::LateGift);
        }
    }
}
