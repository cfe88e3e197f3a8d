//! Model of readers with a writer, and of wake-ups that are passed on. It takes the steps of
//! `freehold_arch::sync::PerCpuRwLock` and [`super::lock::Sleeping::read`].

use std::vec::Vec;

use shuttle::scheduler::RandomScheduler;
use shuttle::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::{Config, Runner, thread};

const CPUS: usize = 2;
const ROUNDS: usize = 2;
const WRITERS: usize = 2;
const SCHEDULES: usize = 10_000;
const SEED: u64 = 23;

/// The protocol, and wrong variants of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Steps {
    Right,
    /// A reader checks the flag before it is counted.
    LookedEarly,
    /// The writer checks the counts before it sets the flag.
    CountedEarly,
    /// A reader that was woken does not pass the wake-up on.
    KeptWakeUp,
    /// A writer that permits readers permits writers, too.
    LetAllIn,
    /// A reader adds to its CPU's note when it is no longer counted.
    NotedLate,
}

/// Sleepers. A wake-up wakes the first.
#[derive(Default)]
struct Sleepers {
    /// The number of wake-ups that were given and not taken yet, and the number of sleepers.
    state: Mutex<(usize, usize)>,
    woken: Condvar,
}

impl Sleepers {
    fn wait_until<R>(&self, mut condition: impl FnMut() -> Option<R>) -> R {
        loop {
            let mut state = self.state.lock().unwrap();
            if let Some(value) = condition() {
                return value;
            }
            state.1 += 1;
            while state.0 == 0 {
                state = self.woken.wait(state).unwrap();
            }
            state.0 -= 1;
        }
    }
    fn wake_one(&self) {
        let mut state = self.state.lock().unwrap();
        if state.1 > 0 {
            *state = (state.0 + 1, state.1 - 1);
            self.woken.notify_one();
        }
    }
}

const FREE: u8 = 0;
const WRITTEN: u8 = 1;
const KEPT: u8 = 2;

struct RwWorld {
    steps: Steps,
    state: AtomicU8,
    counts: [AtomicUsize; CPUS],
    /// By CPU, a number to which each reader adds 1, and the sum of what writers took of them.
    notes: [AtomicUsize; CPUS],
    taken: AtomicUsize,
    /// Number of readers that use the value now, for the assertions.
    reading: AtomicUsize,
    writing: AtomicUsize,
    keeping: AtomicUsize,
    sleepers: Sleepers,
}

impl RwWorld {
    fn try_write(&self) -> Option<()> {
        let wait = || {
            for count in &self.counts {
                while count.load(Ordering::SeqCst) != 0 {
                    thread::yield_now();
                }
            }
        };
        if self.steps == Steps::CountedEarly {
            wait();
        }
        self.state.compare_exchange(FREE, WRITTEN, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        if self.steps != Steps::CountedEarly {
            wait();
        }
        Some(())
    }
    fn try_read(&self, cpu: usize) -> Option<()> {
        let is_written = || self.state.load(Ordering::SeqCst) == WRITTEN;
        let looked = self.steps == Steps::LookedEarly && !is_written();
        if self.steps == Steps::LookedEarly && !looked {
            return None;
        }
        self.counts[cpu].fetch_add(1, Ordering::SeqCst);
        let may_read = looked || !is_written();
        if may_read {
            self.reading.fetch_add(1, Ordering::SeqCst);
            assert_eq!(self.writing.load(Ordering::SeqCst), 0, "a reader beside a writer");
            self.reading.fetch_sub(1, Ordering::SeqCst);
            if self.steps != Steps::NotedLate {
                self.notes[cpu].fetch_add(1, Ordering::Relaxed);
            }
        }
        self.counts[cpu].fetch_sub(1, Ordering::SeqCst);
        if may_read && self.steps == Steps::NotedLate {
            self.notes[cpu].fetch_add(1, Ordering::Relaxed);
        }
        may_read.then_some(())
    }
    fn read(&self, cpu: usize) {
        if self.try_read(cpu).is_none() {
            self.sleepers.wait_until(|| self.try_read(cpu));
            if self.steps != Steps::KeptWakeUp {
                self.sleepers.wake_one();
            }
        }
    }
    fn take_notes(&self) {
        for note in &self.notes {
            let noted = note.load(Ordering::Relaxed);
            note.store(0, Ordering::Relaxed);
            self.taken.fetch_add(noted, Ordering::Relaxed);
        }
    }
    fn write(&self) {
        self.try_write().unwrap_or_else(|| self.sleepers.wait_until(|| self.try_write()));
        assert_eq!(self.writing.fetch_add(1, Ordering::SeqCst), 0, "two writers");
        assert_eq!(self.keeping.load(Ordering::SeqCst), 0, "a writer beside one that keeps others out");
        assert_eq!(self.reading.load(Ordering::SeqCst), 0, "a writer beside a reader");
        self.take_notes();
        self.writing.fetch_sub(1, Ordering::SeqCst);
        // From here on readers may run, but still no other writer.
        self.state.store(if self.steps == Steps::LetAllIn { FREE } else { KEPT }, Ordering::SeqCst);
        assert_eq!(
            self.keeping.fetch_add(1, Ordering::SeqCst),
            0,
            "a writer beside one that keeps others out"
        );
        thread::yield_now();
        self.keeping.fetch_sub(1, Ordering::SeqCst);
        self.state.store(FREE, Ordering::SeqCst);
        self.sleepers.wake_one();
    }
}

fn explore(steps: Steps) {
    let mut config = Config::new();
    config.failure_persistence = shuttle::FailurePersistence::None;
    let scheduler = RandomScheduler::new_from_seed(SEED, SCHEDULES);
    Runner::new(scheduler, config).run(move || {
        let world = Arc::new(RwWorld {
            steps,
            state: AtomicU8::new(FREE),
            counts: [const { AtomicUsize::new(0) }; CPUS],
            notes: [const { AtomicUsize::new(0) }; CPUS],
            taken: AtomicUsize::new(0),
            reading: AtomicUsize::new(0),
            writing: AtomicUsize::new(0),
            keeping: AtomicUsize::new(0),
            sleepers: Sleepers::default(),
        });
        let readers = (0..CPUS).map(|cpu| {
            let world = world.clone();
            thread::spawn(move || (0..ROUNDS).for_each(|_| world.read(cpu)))
        });
        let writers = (0..WRITERS).map(|_| {
            let world = world.clone();
            thread::spawn(move || (0..ROUNDS).for_each(|_| world.write()))
        });
        let all: Vec<_> = readers.chain(writers).collect();
        all.into_iter().for_each(|one| one.join().unwrap());
        world.take_notes();
        assert_eq!(world.taken.load(Ordering::Relaxed), CPUS * ROUNDS, "a note was lost");
    });
}

#[test]
fn nobody_reads_while_somebody_writes_and_nobody_sleeps_for_ever() {
    explore(Steps::Right);
}

#[test]
#[should_panic(expected = "beside a")]
fn a_reader_that_looks_before_it_is_counted_meets_a_writer() {
    explore(Steps::LookedEarly);
}

#[test]
#[should_panic(expected = "beside a")]
fn a_writer_that_looks_before_it_is_announced_meets_a_reader() {
    explore(Steps::CountedEarly);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_wake_up_that_is_not_passed_on_is_missed() {
    explore(Steps::KeptWakeUp);
}

#[test]
#[should_panic(expected = "a writer beside")]
fn a_writer_that_lets_all_in_meets_another() {
    explore(Steps::LetAllIn);
}

#[test]
#[should_panic(expected = "a note was lost")]
fn a_note_of_a_reader_that_is_no_longer_counted_is_lost() {
    explore(Steps::NotedLate);
}
