//! Model of the end of a namespace while processes fork in it, in many orders. It takes the steps
//! of [`super::super::exit`] and the registry. A process that is missed, and never killed, leaves
//! the first one waiting, which the model reports as a deadlock.

use shuttle::scheduler::RandomScheduler;
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::{Config, Runner, thread};
use std::vec::Vec;

/// Number of processes in the namespace, without the first; each forks once.
const FORKERS: usize = 2;
const SCHEDULES: usize = 20_000;
const SEED: u64 = 5;

/// The protocol, and wrong variants of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EndSteps {
    Properly,
    /// A new process is entered without checking whether the namespace is ending.
    EntersUnchecked,
    /// The first process is notified of an end before the other process is removed.
    ToldEarly,
}

/// A condition that is announced, and checked by one thread.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    work: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.work.notify_all();
    }
    fn answer(&self) {
        *self.rung.lock().unwrap() = false;
    }
    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.work.wait(rung).unwrap();
        }
    }
}

/// State that the registry's lock protects.
#[derive(Default)]
struct ModelRegistry {
    is_ending: bool,
    /// The processes, each by the event that kills it.
    processes: Vec<Arc<Bell>>,
}

struct NamespaceWorld {
    ending: EndSteps,
    registry: Mutex<ModelRegistry>,
    /// Rung when a process has been removed.
    changed: Bell,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl NamespaceWorld {
    /// Makes a process that forks `forks` times, and exists until it is killed.
    fn fork(self: &Arc<Self>, forks: usize) {
        // The check when a number is allocated.
        if self.registry.lock().unwrap().is_ending {
            return;
        }
        let killed = Arc::new(Bell::default());
        {
            let mut known = self.registry.lock().unwrap();
            if known.is_ending && self.ending != EndSteps::EntersUnchecked {
                return;
            }
            known.processes.push(killed.clone());
        }
        let world = self.clone();
        let body = move || {
            (0..forks).for_each(|_| world.fork(0));
            killed.sleep();
            if world.ending == EndSteps::ToldEarly {
                world.changed.ring();
            }
            world.registry.lock().unwrap().processes.retain(|other| !Arc::ptr_eq(other, &killed));
            if world.ending != EndSteps::ToldEarly {
                world.changed.ring();
            }
        };
        let thread = thread::spawn(body);
        self.threads.lock().unwrap().push(thread);
    }

    /// The first process ends.
    fn end(&self) {
        self.registry.lock().unwrap().is_ending = true;
        let all = self.registry.lock().unwrap().processes.clone();
        all.iter().for_each(|process| process.ring());
        loop {
            self.changed.answer();
            if self.registry.lock().unwrap().processes.is_empty() {
                return;
            }
            self.changed.sleep();
        }
    }
}

fn explore(ending: EndSteps) {
    let mut config = Config::new();
    config.failure_persistence = shuttle::FailurePersistence::None;
    let scheduler = RandomScheduler::new_from_seed(SEED, SCHEDULES);
    Runner::new(scheduler, config).run(move || {
        let world = Arc::new(NamespaceWorld {
            ending,
            registry: Mutex::new(ModelRegistry::default()),
            changed: Bell::default(),
            threads: Mutex::new(Vec::new()),
        });
        (0..FORKERS).for_each(|_| world.fork(1));
        world.end();
        assert!(world.registry.lock().unwrap().processes.is_empty(), "one was left");
        loop {
            let Some(thread) = world.threads.lock().unwrap().pop() else { break };
            thread.join().unwrap();
        }
        assert!(world.registry.lock().unwrap().processes.is_empty(), "one came after the end");
    });
}

#[test]
fn all_are_gone_when_the_first_has_ended_and_none_comes_after() {
    explore(EndSteps::Properly);
}

#[test]
#[should_panic(expected = "deadlock")]
fn one_that_comes_in_unchecked_is_never_killed() {
    explore(EndSteps::EntersUnchecked);
}

#[test]
#[should_panic(expected = "deadlock")]
fn one_that_is_told_early_waits_for_ever() {
    explore(EndSteps::ToldEarly);
}
