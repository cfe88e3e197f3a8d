//! Model of a wait for two words with two wakers, in many orders. It takes the steps of
//! [`super::futex2`]. A lost wake-up leaves the sleeper asleep, which the model reports as a
//! deadlock. A wake-up that its waker counted must be reported.

use shuttle::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

/// How the sleeper begins to wait for a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    /// The sleeper compares the word and queues under one lock, as required.
    UnderLock,
    /// The sleeper compares first, without the lock.
    BeforeLock,
}

/// Reaction of the sleeper when a later word has changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnMismatch {
    /// The sleeper checks whether an earlier word was woken meanwhile, as required.
    LookBack,
    /// The wait fails.
    Fail,
}

#[derive(Clone, Copy)]
struct Steps {
    comparison: Comparison,
    on_mismatch: OnMismatch,
}

/// Two words, each with a bucket that may contain the waiter, and the sleeping task.
struct FutexWorld {
    words: [AtomicU32; 2],
    buckets: [Mutex<bool>; 2],
    woken: [AtomicBool; 2],
    /// Whether the task was notified since its last check.
    called: Mutex<bool>,
    work: Condvar,
}

impl FutexWorld {
    fn enqueue(&self, at: usize, comparison: Comparison) -> bool {
        let is_as_expected = || self.words[at].load(Ordering::SeqCst) == 0;
        let early = comparison == Comparison::UnderLock || is_as_expected();
        let mut bucket = self.buckets[at].lock().unwrap();
        let goes_on = early && (comparison == Comparison::BeforeLock || is_as_expected());
        *bucket = goes_on;
        goes_on
    }

    /// Removes the waiter. Returns whether a waker has removed it before.
    fn leave(&self, at: usize) -> bool {
        let mut bucket = self.buckets[at].lock().unwrap();
        *bucket = false;
        self.woken[at].load(Ordering::SeqCst)
    }

    fn leave_all(&self, queued: usize) -> Option<usize> {
        (0..queued).filter(|&at| self.leave(at)).last()
    }

    /// Returns the index of a word that was woken; `None` for EAGAIN.
    fn sleeper(&self, steps: Steps) -> Option<usize> {
        for at in 0..2 {
            if !self.enqueue(at, steps.comparison) {
                let woken = self.leave_all(at);
                return if steps.on_mismatch == OnMismatch::LookBack { woken } else { None };
            }
        }
        let mut called = self.called.lock().unwrap();
        while !(0..2).any(|at| self.woken[at].load(Ordering::SeqCst)) {
            while !*called {
                called = self.work.wait(called).unwrap();
            }
            *called = false;
        }
        drop(called);
        self.leave_all(2)
    }

    /// Changes a word and wakes its waiter. Returns whether there was one.
    fn waker(&self, at: usize) -> bool {
        self.words[at].store(1, Ordering::SeqCst);
        let mut bucket = self.buckets[at].lock().unwrap();
        let woke = core::mem::take(&mut *bucket);
        if woke {
            self.woken[at].store(true, Ordering::SeqCst);
            *self.called.lock().unwrap() = true;
            self.work.notify_one();
        }
        woke
    }
}

fn explore(steps: Steps) {
    let world = Arc::new(FutexWorld {
        words: [AtomicU32::new(0), AtomicU32::new(0)],
        buckets: [Mutex::new(false), Mutex::new(false)],
        woken: [AtomicBool::new(false), AtomicBool::new(false)],
        called: Mutex::new(false),
        work: Condvar::new(),
    });
    let wakers = [0, 1].map(|at| {
        let world = world.clone();
        thread::spawn(move || world.waker(at))
    });
    let told = world.sleeper(steps);
    let woke = wakers.map(|waker| waker.join().unwrap());
    match told {
        Some(at) => assert!(woke[at], "a word is told that nobody woke"),
        None => assert_eq!(woke, [false; 2], "a wake-up was counted and is not told"),
    }
}

fn run(steps: Steps) {
    shuttle::check_random(move || explore(steps), 20_000);
}

#[test]
fn a_wake_up_of_either_word_is_told() {
    run(Steps { comparison: Comparison::UnderLock, on_mismatch: OnMismatch::LookBack });
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_comparison_before_the_lock_loses_a_wake_up() {
    run(Steps { comparison: Comparison::BeforeLock, on_mismatch: OnMismatch::LookBack });
}

#[test]
#[should_panic(expected = "is not told")]
fn a_wait_that_fails_without_looking_back_loses_one() {
    run(Steps { comparison: Comparison::UnderLock, on_mismatch: OnMismatch::Fail });
}
