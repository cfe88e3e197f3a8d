//! Model of a task whose mask changes while it goes to sleep and is woken, on two CPUs. It takes
//! the steps of [`super::set_affinity`], [`super::wake`] and the two halves of a switch. A task
//! that enters a queue twice, or while it runs, fails an assertion. A task that is in no queue
//! never ends, which the model reports as a deadlock.

use shuttle::scheduler::RandomScheduler;
use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
use shuttle::{Config, Runner, thread};

const RUNNABLE: u8 = 0;
const SLEEPING: u8 = 1;
/// Number of wake-ups, each by a separate thread.
const EVENTS: usize = 2;
/// Number of schedules that are tried.
const SCHEDULES: usize = 100_000;
const SEED: u64 = 4;

/// How a task that leaves a CPU gets to another CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaves {
    /// Like the kernel.
    Properly,
    /// The decision to move the task uses its state at the time of its release. It should use the
    /// state at the time when the CPU did not put it back into the queue.
    JudgedLate,
    /// The task is assigned to the other CPU without the lock of the queue that it leaves.
    Unlocked,
}

/// State of the task in a run queue.
#[derive(Default)]
struct ModelQueue {
    waits: bool,
    is_current: bool,
}

/// One task and two CPUs.
struct AffinityWorld {
    leaves: Leaves,
    queues: [Mutex<ModelQueue>; 2],
    work: [Condvar; 2],
    /// The task's state, the CPU whose queue it belongs to, whether a CPU has not left it yet, the
    /// CPU that it may run on, and whether it is in a queue.
    state: AtomicU8,
    cpu: AtomicUsize,
    on_cpu: AtomicBool,
    allowed: AtomicUsize,
    position: AtomicBool,
    /// Whether it is the current task of some queue.
    runs: AtomicBool,
    /// Number of events that the task waits for: it ends when it has taken [`EVENTS`] of them.
    events: AtomicUsize,
    taken: AtomicUsize,
    ended: AtomicBool,
}

impl AffinityWorld {
    fn enqueue(&self, queue: &mut MutexGuard<'_, ModelQueue>, cpu: usize) {
        assert!(!self.position.swap(true, Ordering::SeqCst), "a task entered a queue twice");
        assert!(!self.runs.load(Ordering::SeqCst), "a task that runs entered a queue");
        queue.waits = true;
        self.work[cpu].notify_one();
    }
    fn enqueue_on(&self, cpu: usize) {
        self.enqueue(&mut self.queues[cpu].lock().unwrap(), cpu);
    }
    fn take(&self, queue: &mut MutexGuard<'_, ModelQueue>) {
        queue.waits = false;
        self.position.store(false, Ordering::SeqCst);
    }
    /// Returns the locked queue that the task belongs to, and its CPU.
    fn home(&self) -> (usize, MutexGuard<'_, ModelQueue>) {
        loop {
            let home = self.cpu.load(Ordering::SeqCst);
            let queue = self.queues[home].lock().unwrap();
            if self.cpu.load(Ordering::SeqCst) == home {
                return (home, queue);
            }
        }
    }

    fn set_affinity(&self, allowed: usize) {
        self.allowed.store(allowed, Ordering::SeqCst);
        let (home, mut queue) = self.home();
        if home == allowed || !queue.waits || self.on_cpu.load(Ordering::SeqCst) {
            return;
        }
        self.take(&mut queue);
        self.cpu.store(allowed, Ordering::SeqCst);
        drop(queue);
        self.enqueue_on(allowed);
    }

    fn wake(&self) {
        self.events.fetch_add(1, Ordering::SeqCst);
        let (home, mut queue) = self.home();
        let woken = self.state.compare_exchange(SLEEPING, RUNNABLE, Ordering::SeqCst, Ordering::SeqCst);
        if woken.is_err() || queue.is_current {
            return;
        }
        if self.on_cpu.load(Ordering::SeqCst) {
            return self.enqueue(&mut queue, home);
        }
        let target = self.allowed.load(Ordering::SeqCst);
        self.cpu.store(target, Ordering::SeqCst);
        drop(queue);
        self.enqueue_on(target);
    }

    /// Runs CPU `here` until the task has ended.
    fn run(&self, here: usize) {
        loop {
            let mut queue = self.queues[here].lock().unwrap();
            while !queue.waits && !self.ended.load(Ordering::SeqCst) {
                queue = self.work[here].wait(queue).unwrap();
            }
            if !queue.waits {
                return;
            }
            self.take(&mut queue);
            queue.is_current = true;
            assert!(!self.runs.swap(true, Ordering::SeqCst), "a task runs on two CPUs");
            self.on_cpu.store(true, Ordering::SeqCst);
            drop(queue);

            // The task ends when it has taken all events and runs on a permitted CPU.
            self.state.store(SLEEPING, Ordering::SeqCst);
            if self.events.load(Ordering::SeqCst) > self.taken.load(Ordering::SeqCst) {
                self.taken.fetch_add(1, Ordering::SeqCst);
                self.state.store(RUNNABLE, Ordering::SeqCst);
            }
            let done = self.taken.load(Ordering::SeqCst) == EVENTS;
            if done {
                self.state.store(RUNNABLE, Ordering::SeqCst);
            }

            let mut queue = self.queues[here].lock().unwrap();
            queue.is_current = false;
            self.runs.store(false, Ordering::SeqCst);
            let mut moves = false;
            if self.state.load(Ordering::SeqCst) == RUNNABLE {
                moves = self.allowed.load(Ordering::SeqCst) != here;
                if !moves && done {
                    self.ended.store(true, Ordering::SeqCst);
                } else if !moves {
                    self.enqueue(&mut queue, here);
                }
            }
            drop(queue);
            self.release(here, moves);
            if self.ended.load(Ordering::SeqCst) {
                // Under its lock, so that the other CPU cannot miss it between its check and its
                // wait.
                let _queue = self.queues[1 - here].lock().unwrap();
                self.work[1 - here].notify_one();
            }
        }
    }

    /// The second half of the switch from the task to another.
    fn release(&self, here: usize, left_out: bool) {
        let moves = match self.leaves {
            Leaves::Properly | Leaves::Unlocked => left_out,
            Leaves::JudgedLate => {
                self.state.load(Ordering::SeqCst) == RUNNABLE
                    && !self.position.load(Ordering::SeqCst)
                    && self.allowed.load(Ordering::SeqCst) != here
            }
        };
        self.on_cpu.store(false, Ordering::SeqCst);
        if moves {
            let target = self.allowed.load(Ordering::SeqCst);
            let left = (self.leaves != Leaves::Unlocked).then(|| self.queues[here].lock().unwrap());
            self.cpu.store(target, Ordering::SeqCst);
            drop(left);
            self.enqueue_on(target);
        }
    }
}

fn run(leaves: Leaves) {
    let story = move || {
        let world = Arc::new(AffinityWorld {
            leaves,
            queues: [Mutex::new(ModelQueue { waits: true, is_current: false }), Mutex::default()],
            work: [Condvar::new(), Condvar::new()],
            state: AtomicU8::new(RUNNABLE),
            cpu: AtomicUsize::new(0),
            on_cpu: AtomicBool::new(false),
            allowed: AtomicUsize::new(0),
            position: AtomicBool::new(true),
            runs: AtomicBool::new(false),
            events: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let spawn = |body: fn(&AffinityWorld)| {
            let world = world.clone();
            thread::spawn(move || body(&world))
        };
        let others: [fn(&AffinityWorld); EVENTS + 2] = [
            |world| world.run(1),
            |world| world.wake(),
            |world| world.wake(),
            |world| {
                [1, 0, 1].into_iter().for_each(|cpu| world.set_affinity(cpu));
            },
        ];
        let others = others.map(spawn);
        world.run(0);
        others.into_iter().for_each(|other| other.join().unwrap());
    };
    // With a fixed seed a broken variant is found either each time or never.
    let schedules = RandomScheduler::new_from_seed(SEED, SCHEDULES);
    Runner::new(schedules, Config::default()).run(story);
}

#[test]
fn a_task_is_in_one_queue_whatever_its_mask() {
    run(Leaves::Properly);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_task_that_is_judged_when_it_is_released_can_be_lost() {
    run(Leaves::JudgedLate);
}

#[test]
#[should_panic(expected = "a task that runs entered a queue")]
fn a_task_that_changes_its_cpu_without_the_lock_can_be_in_two_queues() {
    run(Leaves::Unlocked);
}
