//! Models of the protocol of inotify, in many orders.
//!
//! The first takes the same steps as [`super::watches`] and [`super::instance`]. At one watch there
//! are four concurrent operations: an event that is to be reported once, inotify_rm_watch, the
//! inode's end and the instance's close. The model checks that a watch ends once, that nothing is
//! queued after its end, and that nothing is left of it.
//!
//! The second takes the steps of [`names`](crate::fs::names) with one name: threads make a file,
//! remove it, and watch it. It checks that no entry keeps a file without a name, and that the
//! directory's events are in the order of its changes.

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

fn no_entry_keeps_a_nameless_file(world: &NameWorld) {
    let named = world.lookup();
    let held = world.held.lock().unwrap();
    assert!(held.iter().all(|held| Some(*held) == named), "an entry keeps a file without a name");
}

fn events_are_in_order(world: &NameWorld) {
    let told = world.told.lock().unwrap();
    assert!(told.iter().enumerate().all(|(at, made)| *made == (at % 2 == 0)), "{told:?} is in order");
}

/// Whether a change of a name and its report are one step for others (`metadata::keep_names`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum DirectoryLock {
    Kept,
    /// Wrong: the name may be another file's after the lookup.
    Free,
}

/// A directory with one name, files by number.
struct NameWorld {
    names: DirectoryLock,
    kept: Mutex<()>,
    /// The file with that name, and the number of files made.
    file: Mutex<(Option<usize>, usize)>,
    /// The files that entries hold.
    held: Mutex<Vec<usize>>,
    /// Whether each event is about a new file.
    told: Mutex<Vec<bool>>,
}

impl NameWorld {
    fn keep(&self) -> Option<shuttle::sync::MutexGuard<'_, ()>> {
        (self.names == DirectoryLock::Kept).then(|| self.kept.lock().unwrap())
    }

    fn lookup(&self) -> Option<usize> {
        self.file.lock().unwrap().0
    }

    /// `watches::let_go_if_nameless`
    fn let_go_if_nameless(&self, file: usize) {
        if self.lookup() != Some(file) {
            self.held.lock().unwrap().retain(|held| *held != file);
        }
    }

    /// `names::report_new`
    fn make(&self) {
        let _kept = self.keep();
        let made = {
            let mut file = self.file.lock().unwrap();
            let is_free = file.0.is_none();
            if is_free {
                *file = (Some(file.1), file.1 + 1);
            }
            is_free
        };
        if made {
            self.told.lock().unwrap().push(true);
        }
    }

    /// `names::unlink`
    fn unlink(&self) {
        let _kept = self.keep();
        let Some(victim) = self.lookup() else { return };
        let gone = self.file.lock().unwrap().0.take();
        if gone.is_some() {
            self.let_go_if_nameless(victim);
            self.told.lock().unwrap().push(false);
        }
    }

    /// `InodeWatch::attach`
    fn watch(&self) {
        let Some(file) = self.lookup() else { return };
        self.held.lock().unwrap().push(file);
        self.let_go_if_nameless(file);
    }
}

fn change_names(names: DirectoryLock, check: fn(&NameWorld)) {
    let steps: [&[fn(&NameWorld)]; 3] = [
        &[NameWorld::make, NameWorld::unlink, NameWorld::make, NameWorld::unlink],
        &[NameWorld::unlink, NameWorld::make],
        &[NameWorld::watch, NameWorld::watch],
    ];
    shuttle::check_pct(
        move || {
            let world = Arc::new(NameWorld {
                names,
                kept: Mutex::new(()),
                file: Mutex::new((None, 0)),
                held: Mutex::new(Vec::new()),
                told: Mutex::new(Vec::new()),
            });
            let threads = steps.map(|steps| {
                let world = world.clone();
                thread::spawn(move || steps.iter().for_each(|step| step(&world)))
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            check(&world);
        },
        20_000,
        4,
    );
}

#[test]
fn watches_and_events_follow_the_changes_of_a_name() {
    change_names(DirectoryLock::Kept, |world| {
        no_entry_keeps_a_nameless_file(world);
        events_are_in_order(world);
    });
}

#[test]
#[should_panic(expected = "an entry keeps a file without a name")]
fn a_name_that_changes_between_lookup_and_removal_leaves_a_watch() {
    change_names(DirectoryLock::Free, no_entry_keeps_a_nameless_file);
}

#[test]
#[should_panic(expected = "is in order")]
fn changes_that_are_reported_late_are_reported_out_of_order() {
    change_names(DirectoryLock::Free, events_are_in_order);
}
