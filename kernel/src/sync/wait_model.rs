//! Model of sleeping and waking on two CPUs, in every order. It takes the steps of [`super::wait`]
//! and the scheduler. A lost wake-up leaves the sleeper asleep, which the model reports as a
//! deadlock.

use shuttle::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

const RUNNABLE: u8 = 0;
const SLEEPING: u8 = 1;

/// Whether the sleeper checks its condition after it announced its sleep, as required.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LookOrder {
    AfterAnnouncing,
    BeforeOnly,
}

/// A task, its run queue, and the wait queue that it may be on.
struct WaitWorld {
    condition: AtomicBool,
    queued: Mutex<bool>,
    state: AtomicU8,
    /// Whether the CPU runs the task. Stands for the run queue's lock, and for the idle CPU that
    /// waits for work.
    running: Mutex<bool>,
    work: Condvar,
}

impl WaitWorld {
    /// `sched::block`: leaves the CPU if the task is still asleep under the run queue's lock.
    /// Continues when the task becomes runnable.
    fn block(&self) {
        let mut running = self.running.lock().unwrap();
        if self.state.load(Ordering::SeqCst) == SLEEPING {
            *running = false;
            while !*running {
                running = self.work.wait(running).unwrap();
            }
        }
    }

    /// `sched::wake`: under the run queue's lock, makes a sleeping task runnable. If it has left
    /// the CPU, it is put back into the queue.
    fn wake(&self) {
        let mut running = self.running.lock().unwrap();
        let asleep = self.state.compare_exchange(SLEEPING, RUNNABLE, Ordering::SeqCst, Ordering::SeqCst);
        if asleep.is_ok() && !*running {
            *running = true;
            self.work.notify_one();
        }
    }

    fn sleeper(&self, look: LookOrder) {
        *self.queued.lock().unwrap() = true;
        loop {
            if look == LookOrder::BeforeOnly && self.condition.load(Ordering::SeqCst) {
                break;
            }
            self.state.store(SLEEPING, Ordering::SeqCst);
            if look == LookOrder::AfterAnnouncing && self.condition.load(Ordering::SeqCst) {
                break;
            }
            self.block();
        }
        self.state.store(RUNNABLE, Ordering::SeqCst);
        *self.queued.lock().unwrap() = false;
    }

    fn waker(&self) {
        self.condition.store(true, Ordering::SeqCst);
        if *self.queued.lock().unwrap() {
            self.wake();
        }
    }
}

fn run(look: LookOrder) {
    shuttle::check_dfs(
        move || {
            let world = Arc::new(WaitWorld {
                condition: AtomicBool::new(false),
                queued: Mutex::new(false),
                state: AtomicU8::new(RUNNABLE),
                running: Mutex::new(true),
                work: Condvar::new(),
            });
            let waker = thread::spawn({
                let world = world.clone();
                move || world.waker()
            });
            world.sleeper(look);
            waker.join().unwrap();
        },
        Some(20_000),
    );
}

#[test]
fn no_wake_up_is_lost() {
    run(LookOrder::AfterAnnouncing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_sleeper_that_does_not_look_again_loses_one() {
    run(LookOrder::BeforeOnly);
}
