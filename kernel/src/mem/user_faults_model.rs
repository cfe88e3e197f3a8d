//! Model of the protocol of [`super::user_faults`], in many orders: one thread faults, and another
//! provides the page, unregisters the area, or closes the monitor. The model checks that the
//! faulting thread ends: a sleeper that no thread wakes is a deadlock, which shuttle finds.

use std::vec::Vec;

use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

/// A step that is taken in a wrong order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// No step: the protocol itself.
    Right,
    /// The fault queues after it has released the space.
    QueuedLate,
    /// Waiters are woken before the page is provided.
    WokenEarly,
    /// The monitor is marked as closed only after it has woken all waiters.
    OverLate,
}

#[derive(Default)]
struct Done(Mutex<bool>, Condvar);

impl Done {
    fn complete(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
    fn wait(&self) {
        let mut done = self.0.lock().unwrap();
        while !*done {
            done = self.1.wait(done).unwrap();
        }
    }
}

/// The state that the space's lock protects.
struct Space {
    is_there: bool,
    is_monitored: bool,
}

#[derive(Default)]
struct Waiting {
    faults: Vec<Arc<Done>>,
    is_over: bool,
}

struct FaultWorld {
    order: Order,
    space: Mutex<Space>,
    queue: Mutex<Waiting>,
}

impl FaultWorld {
    /// `UserFaults::enqueue`
    fn enqueue(&self) -> Option<Arc<Done>> {
        let mut queue = self.queue.lock().unwrap();
        if queue.is_over {
            return None;
        }
        let done = Arc::new(Done::default());
        queue.faults.push(done.clone());
        Some(done)
    }

    /// `UserFaults::wake`
    fn wake(&self) {
        loop {
            let next = self.queue.lock().unwrap().faults.pop();
            let Some(done) = next else { return };
            done.complete();
        }
    }

    /// `task::fault`, until the access succeeds.
    fn fault(&self) {
        loop {
            let mut space = self.space.lock().unwrap();
            if space.is_there || !space.is_monitored {
                return;
            }
            let queued = if self.order == Order::QueuedLate {
                drop(space);
                self.enqueue()
            } else {
                let queued = self.enqueue();
                // `AddressSpace::forget_monitor`
                space.is_monitored = queued.is_some();
                drop(space);
                queued
            };
            if let Some(done) = queued {
                done.wait();
            }
        }
    }

    fn change(&self, change: impl Fn(&mut Space)) {
        if self.order == Order::WokenEarly {
            self.wake();
            change(&mut self.space.lock().unwrap());
        } else {
            change(&mut self.space.lock().unwrap());
            self.wake();
        }
    }

    /// UFFDIO_COPY
    fn provide(&self) {
        self.change(|space| space.is_there = true);
    }

    /// UFFDIO_UNREGISTER
    fn give_back(&self) {
        self.change(|space| space.is_monitored = false);
    }

    /// `UserFaults::close`
    fn close(&self) {
        if self.order != Order::OverLate {
            self.queue.lock().unwrap().is_over = true;
        }
        self.wake();
        if let Ok(mut space) = self.space.try_lock() {
            space.is_monitored = false;
        }
        self.queue.lock().unwrap().is_over = true;
    }
}

type FaultStep = fn(&FaultWorld);

fn run(order: Order, steps: &'static [FaultStep]) {
    shuttle::check_random(
        move || {
            let world = Arc::new(FaultWorld {
                order,
                space: Mutex::new(Space { is_there: false, is_monitored: true }),
                queue: Mutex::new(Waiting::default()),
            });
            let begin = |step: &FaultStep| {
                let (step, world) = (*step, world.clone());
                thread::spawn(move || step(&world))
            };
            let threads: Vec<_> = steps.iter().map(begin).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(world.queue.lock().unwrap().faults.is_empty(), "nobody waits");
        },
        5000,
    );
}

use FaultWorld as W;

#[test]
fn a_fault_ends_whoever_comes_first() {
    run(Order::Right, &[W::fault, W::fault, W::provide]);
    run(Order::Right, &[W::fault, W::give_back, W::provide]);
    run(Order::Right, &[W::fault, W::fault, W::close]);
    run(Order::Right, &[W::fault, W::close, W::provide]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_fault_that_queues_without_the_space_sleeps_beside_its_page() {
    run(Order::QueuedLate, &[W::fault, W::provide]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_wakes_before_the_page_is_there_leaves_a_sleeper() {
    run(Order::WokenEarly, &[W::fault, W::provide]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_monitor_that_is_over_too_late_leaves_a_sleeper() {
    run(Order::OverLate, &[W::fault, W::close]);
}
