//! A model of the protocol of inotify, in many orders. It takes the same steps as
//! [`super::watches`] and [`super::instance`]. At one watch there are four concurrent operations:
//! an event that is to be reported once, inotify_rm_watch, the inode's end and the instance's
//! close. The model checks that a watch ends once, that nothing is queued after its end, and that
//! nothing is left of it.

use std::vec::Vec;

use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Event,
    Ignored,
}

/// How a task ends a watch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Takes the watch out of the entry, and ends it if it was there.
    Detached,
    /// Wrong: queues the end, then takes the watch out of the entry.
    TooEarly,
    /// Wrong: ends the watch whether it was in the entry or not.
    Unasked,
}

/// One watch of one inode.
struct WatchWorld {
    ending: Ending,
    /// Whether the watch is in the inode's entry.
    entry: Mutex<bool>,
    /// Whether the watch is in the instance's map of numbers.
    by_number: Mutex<bool>,
    queue: Mutex<Vec<Told>>,
    count: Mutex<i32>,
}

impl WatchWorld {
    fn queue(&self, told: Told) {
        self.queue.lock().unwrap().push(told);
    }

    /// `InodeWatch::end`
    fn end(&self) {
        *self.count.lock().unwrap() -= 1;
        *self.by_number.lock().unwrap() = false;
        self.queue(Told::Ignored);
    }

    /// `InodeWatch::detach`
    fn detach(&self) -> bool {
        core::mem::replace(&mut *self.entry.lock().unwrap(), false)
    }

    fn detach_and_end(&self) {
        match self.ending {
            Ending::Detached if self.detach() => self.end(),
            Ending::Detached => {}
            Ending::TooEarly => {
                let is_there = *self.entry.lock().unwrap();
                if is_there {
                    self.end();
                    self.detach();
                }
            }
            Ending::Unasked => {
                self.detach();
                self.end();
            }
        }
    }

    /// `watches::tell`, for a watch that continues.
    fn tell(&self) {
        let entry = self.entry.lock().unwrap();
        if *entry {
            self.queue(Told::Event);
        }
    }

    /// `watches::tell`, for a watch with IN_ONESHOT.
    fn tell_once(&self) {
        let mut entry = self.entry.lock().unwrap();
        if *entry {
            self.queue(Told::Event);
            *entry = false;
            drop(entry);
            self.end();
        }
    }

    /// `Instance::remove`
    fn remove(&self) {
        let is_known = *self.by_number.lock().unwrap();
        if is_known {
            self.detach_and_end();
        }
    }

    /// `watches::inode_ended`
    fn inode_ended(&self) {
        let was_there = core::mem::replace(&mut *self.entry.lock().unwrap(), false);
        if was_there {
            self.queue(Told::Event);
            self.end();
        }
    }

    /// `Instance::close`
    fn close(&self) {
        let was_known = core::mem::replace(&mut *self.by_number.lock().unwrap(), false);
        if was_known && self.detach() {
            *self.count.lock().unwrap() -= 1;
        }
    }
}

type ModelStep = fn(&WatchWorld);

fn run(ending: Ending, steps: &'static [ModelStep]) {
    shuttle::check_random(
        move || {
            let world = Arc::new(WatchWorld {
                ending,
                entry: Mutex::new(true),
                by_number: Mutex::new(true),
                queue: Mutex::new(Vec::new()),
                count: Mutex::new(1),
            });
            let threads = steps.iter().map(|step| {
                let world = world.clone();
                thread::spawn(move || step(&world))
            });
            threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
            let queue = world.queue.lock().unwrap();
            let ends = queue.iter().filter(|told| **told == Told::Ignored).count();
            assert!(ends <= 1, "a watch ends once: {queue:?}");
            if ends == 1 {
                assert_eq!(queue.last(), Some(&Told::Ignored), "nothing comes behind the end");
            }
            assert_eq!(*world.count.lock().unwrap(), 0, "it is counted no more");
            assert!(!*world.entry.lock().unwrap() && !*world.by_number.lock().unwrap(), "nothing is left");
        },
        5000,
    );
}

use WatchWorld as W;

#[test]
fn a_watch_ends_once_and_is_silent_then() {
    run(Ending::Detached, &[W::tell, W::tell, W::remove]);
    run(Ending::Detached, &[W::tell, W::tell_once, W::remove, W::remove]);
    run(Ending::Detached, &[W::tell, W::remove, W::inode_ended]);
    run(Ending::Detached, &[W::tell, W::tell_once, W::inode_ended, W::close]);
}

#[test]
#[should_panic(expected = "nothing comes behind the end")]
fn an_end_that_is_told_before_the_watch_is_out_of_the_entry_has_events_behind_it() {
    run(Ending::TooEarly, &[W::tell, W::tell, W::remove]);
}

#[test]
#[should_panic(expected = "a watch ends once")]
fn an_end_by_whoever_comes_is_told_twice() {
    run(Ending::Unasked, &[W::tell, W::tell_once, W::remove]);
}
