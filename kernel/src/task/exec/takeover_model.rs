//! Model of a thread that takes over its process' ID, while the first thread ends and a tracer
//! attaches to that ID. The model takes the steps of [`super`], of the end of a thread
//! (`task::exit`) and of the tracer, in many orders.

use shuttle::scheduler::RandomScheduler;
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::{Config, Runner, thread};
use std::vec::Vec;

const SCHEDULES: usize = 10_000;
const SEED: u64 = 7;

/// The protocol, and wrong variants of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TakeoverSteps {
    Properly,
    /// The thread that stays checks the list of threads only.
    TrustsTheList,
    /// The first thread wakes the other before it releases its ID.
    WokenEarly,
    /// The tracer does not check the ID again once it has the lock.
    AttachesUnchecked,
}

/// The two threads of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    First,
    Stays,
}

/// The state that the registry's lock protects.
struct ModelRegistry {
    /// The thread that has the process' ID.
    task: Option<Who>,
    /// The thread that the tracer knows by that ID.
    tracee: Option<Who>,
}

struct TakeoverWorld {
    steps: TakeoverSteps,
    threads: Mutex<Vec<Who>>,
    registry: Mutex<ModelRegistry>,
    /// Set when a thread has ended.
    rung: Mutex<bool>,
    work: Condvar,
}

impl TakeoverWorld {
    fn wake(&self) {
        *self.rung.lock().unwrap() = true;
        self.work.notify_all();
    }

    /// The first thread ends.
    fn end_first(&self) {
        self.threads.lock().unwrap().retain(|&who| who != Who::First);
        if self.steps == TakeoverSteps::WokenEarly {
            self.wake();
        }
        self.registry.lock().unwrap().task = None;
        if self.steps != TakeoverSteps::WokenEarly {
            self.wake();
        }
    }

    fn is_alone(&self) -> bool {
        let trusts = self.steps == TakeoverSteps::TrustsTheList;
        self.threads.lock().unwrap().len() == 1 && (trusts || self.registry.lock().unwrap().task.is_none())
    }

    fn take_over(&self) {
        loop {
            *self.rung.lock().unwrap() = false;
            if self.is_alone() {
                break;
            }
            let mut rung = self.rung.lock().unwrap();
            while !*rung {
                rung = self.work.wait(rung).unwrap();
            }
        }
        let mut registry = self.registry.lock().unwrap();
        // Only the remaining thread could be a tracee with this ID, and it is not traced.
        registry.tracee = None;
        registry.task = Some(Who::Stays);
    }

    /// Finds a thread by the process' ID, and attaches to it.
    fn attach(&self) {
        let Some(found) = self.registry.lock().unwrap().task else { return };
        let mut registry = self.registry.lock().unwrap();
        let is_another = registry.task.is_some_and(|now| now != found);
        if !is_another || self.steps == TakeoverSteps::AttachesUnchecked {
            registry.tracee = Some(found);
        }
    }
}

fn explore(steps: TakeoverSteps) {
    let mut config = Config::new();
    config.failure_persistence = shuttle::FailurePersistence::None;
    let scheduler = RandomScheduler::new_from_seed(SEED, SCHEDULES);
    Runner::new(scheduler, config).run(move || {
        let world = Arc::new(TakeoverWorld {
            steps,
            threads: Mutex::new([Who::First, Who::Stays].into()),
            registry: Mutex::new(ModelRegistry { task: Some(Who::First), tracee: None }),
            rung: Mutex::new(false),
            work: Condvar::new(),
        });
        let (ending, attaching) = (world.clone(), world.clone());
        let others = [thread::spawn(move || ending.end_first()), thread::spawn(move || attaching.attach())];
        world.take_over();
        others.into_iter().for_each(|other| other.join().unwrap());
        let registry = world.registry.lock().unwrap();
        assert_eq!(registry.task, Some(Who::Stays), "the ID is lost");
        assert_ne!(registry.tracee, Some(Who::First), "a tracee that is no more");
    });
}

#[test]
fn the_thread_that_stays_has_the_id_and_no_tracer_knows_another_by_it() {
    explore(TakeoverSteps::Properly);
}

#[test]
#[should_panic(expected = "the ID is lost")]
fn an_id_that_is_taken_before_it_is_given_back_is_lost() {
    explore(TakeoverSteps::TrustsTheList);
}

#[test]
#[should_panic(expected = "deadlock")]
fn one_that_is_woken_early_waits_for_ever() {
    explore(TakeoverSteps::WokenEarly);
}

#[test]
#[should_panic(expected = "a tracee that is no more")]
fn who_attaches_without_a_second_look_traces_a_thread_that_is_gone() {
    explore(TakeoverSteps::AttachesUnchecked);
}
