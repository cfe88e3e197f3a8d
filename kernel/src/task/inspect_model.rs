//! Model of a tracer that attaches while execve gives rights, in many orders. It takes the steps of
//! `inspect::act_on`, of the end of `exec::run` and of pidfd_getfd.

use shuttle::scheduler::RandomScheduler;
use shuttle::sync::{Arc, Mutex};
use shuttle::{Config, Runner, thread};

const SCHEDULES: usize = 10_000;
const SEED: u64 = 11;

/// The protocol, and wrong variants of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExecSteps {
    Properly,
    /// execve relies on the check that it made when it loaded the program.
    LooksOnce,
    /// The tracer checks the rights before it has the lock.
    AsksUnlocked,
    /// execve releases the lock between the check and the change.
    LetsGoBetween,
}

struct ExecWorld {
    steps: ExecSteps,
    rights: Mutex<()>,
    is_root: Mutex<bool>,
    is_traced: Mutex<bool>,
    /// The file that the program has open. The root user's program opens a secret one.
    file: Mutex<&'static str>,
}

impl ExecWorld {
    fn execute(&self) {
        let first = *self.is_traced.lock().unwrap();
        thread::yield_now();
        let held = self.rights.lock().unwrap();
        let now = *self.is_traced.lock().unwrap();
        if self.steps == ExecSteps::LetsGoBetween {
            drop(held);
        }
        let withheld = first || now && self.steps != ExecSteps::LooksOnce;
        *self.is_root.lock().unwrap() = !withheld;
        if !withheld {
            *self.file.lock().unwrap() = "secret";
        }
    }

    /// Returns the lock that preserves the permission, if the tracer has it.
    fn ask(&self) -> Option<shuttle::sync::MutexGuard<'_, ()>> {
        let early = self.steps == ExecSteps::AsksUnlocked && !*self.is_root.lock().unwrap();
        let held = self.rights.lock().unwrap();
        (early || !*self.is_root.lock().unwrap()).then_some(held)
    }

    fn attach(&self) {
        if let Some(_rights) = self.ask() {
            *self.is_traced.lock().unwrap() = true;
        }
    }

    fn take_file(&self) -> Option<&'static str> {
        let _rights = self.ask()?;
        Some(*self.file.lock().unwrap())
    }
}

fn explore(steps: ExecSteps) {
    let mut config = Config::new();
    config.failure_persistence = shuttle::FailurePersistence::None;
    let scheduler = RandomScheduler::new_from_seed(SEED, SCHEDULES);
    Runner::new(scheduler, config).run(move || {
        let world = Arc::new(ExecWorld {
            steps,
            rights: Mutex::new(()),
            is_root: Mutex::new(false),
            is_traced: Mutex::new(false),
            file: Mutex::new("own"),
        });
        let (tracer, taker) = (world.clone(), world.clone());
        let tracer = thread::spawn(move || tracer.attach());
        let taker = thread::spawn(move || taker.take_file());
        world.execute();
        tracer.join().unwrap();
        assert_ne!(taker.join().unwrap(), Some("secret"), "a file of the program with rights");
        let traced_root = *world.is_root.lock().unwrap() && *world.is_traced.lock().unwrap();
        assert!(!traced_root, "a program with rights has a tracer without");
    });
}

#[test]
fn a_tracer_comes_before_the_look_of_execve_or_after_the_rights() {
    explore(ExecSteps::Properly);
}

#[test]
#[should_panic(expected = "a program with rights has a tracer without")]
fn one_look_when_the_program_is_loaded_misses_a_tracer() {
    explore(ExecSteps::LooksOnce);
}

#[test]
#[should_panic(expected = "with rights")]
fn a_tracer_that_asks_without_the_lock_keeps_an_old_answer() {
    explore(ExecSteps::AsksUnlocked);
}

#[test]
#[should_panic(expected = "with rights")]
fn execve_that_lets_go_between_look_and_change_misses_a_tracer() {
    explore(ExecSteps::LetsGoBetween);
}
