//! Model of a call to an idle CPU of another node. It takes the steps of [`super::nodes::relieve`],
//! [`super::nodes::steal_from`] and [`super::idle_forever`]. One task waits on a busy CPU, whose
//! slice ends once while the other CPU idles. A lost call leaves the task waiting forever, which
//! the model reports as a deadlock. A task that two CPUs run fails an assertion.

use shuttle::scheduler::RandomScheduler;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::{Config, Runner, thread};

/// Number of schedules that are tried.
const SCHEDULES: usize = 20_000;
const SEED: u64 = 6;

/// Order of the steps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Calls {
    /// Like the kernel.
    Properly,
    /// The CPU is called before it may help.
    CalledFirst,
    /// The CPU halts without checking `wanted`.
    HaltsAtOnce,
    /// The stealing CPU counts the tasks, releases the lock, and takes one later.
    CountedBefore,
}

/// Behaviour of the busy CPU's task after its slice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Busy {
    /// The task continues in the kernel until the waiting task has run.
    RunsOn,
    /// The task gives up the CPU, which takes the waiting task.
    GivesWay,
}

struct CallWorld {
    calls: Calls,
    /// Number of tasks that wait on the busy CPU: 1 or 0.
    queue: Mutex<usize>,
    helps: AtomicBool,
    wanted: AtomicBool,
    /// An interrupt that the idle CPU has not taken yet.
    interrupt: Mutex<bool>,
    interrupted: Condvar,
    /// Number of times the waiting task was taken to run.
    runs: AtomicUsize,
    has_run: Mutex<bool>,
    ran: Condvar,
}

impl CallWorld {
    fn run_task(&self) {
        assert_eq!(self.runs.fetch_add(1, Ordering::SeqCst), 0, "a task is taken from a queue twice");
        *self.has_run.lock().unwrap() = true;
        self.ran.notify_all();
        // Lets the thread of the other CPU end, too.
        self.send_interrupt();
    }

    fn send_interrupt(&self) {
        *self.interrupt.lock().unwrap() = true;
        self.interrupted.notify_one();
    }

    /// The end of the busy CPU's slice: `relieve`.
    fn end_slice(&self) {
        if *self.queue.lock().unwrap() == 0 {
            return;
        }
        let helps = || self.helps.store(true, Ordering::Relaxed);
        if self.calls != Calls::CalledFirst {
            helps();
        }
        self.wanted.store(true, Ordering::Release);
        self.send_interrupt();
        if self.calls == Calls::CalledFirst {
            helps();
        }
    }

    fn run_busy(&self, busy: Busy) {
        self.end_slice();
        if busy == Busy::GivesWay {
            let taken = core::mem::take(&mut *self.queue.lock().unwrap());
            if taken == 1 {
                self.run_task();
            }
        }
        let mut has_run = self.has_run.lock().unwrap();
        while !*has_run {
            has_run = self.ran.wait(has_run).unwrap();
        }
    }

    /// `nodes::steal`: returns whether the task was taken.
    fn steal(&self) -> bool {
        let least = if self.helps.swap(false, Ordering::Relaxed) { 1 } else { 2 };
        let mut queue = self.queue.lock().unwrap();
        if *queue < least {
            return false;
        }
        if self.calls == Calls::CountedBefore {
            drop(queue);
            queue = self.queue.lock().unwrap();
        }
        *queue = 0;
        true
    }

    /// `idle_forever`, until the task has run.
    fn run_idle(&self) {
        loop {
            if self.steal() {
                return self.run_task();
            }
            // Interrupts were on until now: an earlier interrupt was handled, without effect.
            *self.interrupt.lock().unwrap() = false;
            if *self.has_run.lock().unwrap() {
                return;
            }
            // Interrupts are off from here on: an interrupt ends the halt.
            let looks = self.calls != Calls::HaltsAtOnce;
            if looks && self.wanted.load(Ordering::Acquire) {
                self.wanted.store(false, Ordering::Relaxed);
                continue;
            }
            let mut interrupt = self.interrupt.lock().unwrap();
            while !*interrupt {
                interrupt = self.interrupted.wait(interrupt).unwrap();
            }
        }
    }
}

fn run(calls: Calls, busy: Busy) {
    let story = move || {
        let world = Arc::new(CallWorld {
            calls,
            queue: Mutex::new(1),
            helps: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            interrupt: Mutex::new(false),
            interrupted: Condvar::new(),
            runs: AtomicUsize::new(0),
            has_run: Mutex::new(false),
            ran: Condvar::new(),
        });
        let other = world.clone();
        let idle = thread::spawn(move || other.run_idle());
        world.run_busy(busy);
        idle.join().unwrap();
        assert_eq!(world.runs.load(Ordering::SeqCst), 1);
    };
    // With a fixed seed a broken variant is found either each time or never.
    Runner::new(RandomScheduler::new_from_seed(SEED, SCHEDULES), Config::default()).run(story);
}

#[test]
fn a_call_to_an_idle_cpu_is_never_lost() {
    run(Calls::Properly, Busy::RunsOn);
}

#[test]
fn a_task_that_waits_alone_runs_on_one_of_two_cpus() {
    run(Calls::Properly, Busy::GivesWay);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_cpu_that_is_called_before_it_may_help_halts() {
    run(Calls::CalledFirst, Busy::RunsOn);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_cpu_that_halts_without_a_look_misses_a_call() {
    run(Calls::HaltsAtOnce, Busy::RunsOn);
}

#[test]
#[should_panic(expected = "taken from a queue twice")]
fn a_thief_that_counts_before_it_takes_runs_a_task_twice() {
    run(Calls::CountedBefore, Busy::GivesWay);
}
