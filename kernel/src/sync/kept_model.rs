//! Model of a value that is replaced while threads keep references between their calls. It takes
//! the steps of [`super::kept`].

use shuttle::scheduler::RandomScheduler;
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Arc, Mutex};
use std::vec::Vec;

use shuttle::{Config, Runner, thread};

/// Number of threads that make calls, and number of calls of each.
const CALLERS: usize = 2;
const CALLS: usize = 3;
const REPLACEMENTS: u32 = 2;
const SCHEDULES: usize = 20_000;
const SEED: u64 = 11;

/// The order of the steps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Properly,
    /// The version is checked before the value is put back, not after.
    JudgedEarly,
    /// The slots are emptied before the version is incremented.
    CountedLate,
}

struct KeptWorld {
    keeps: Keeps,
    /// The value, represented by its number.
    value: Mutex<Arc<u32>>,
    version: AtomicU32,
    /// An exchange is one step, so the lock is held only for it.
    slots: [Mutex<Option<Arc<u32>>>; CALLERS],
    /// The versions of the values in the slots.
    versions: [AtomicU32; CALLERS],
}

impl KeptWorld {
    fn exchange(&self, caller: usize, new: Option<Arc<u32>>) -> Option<Arc<u32>> {
        core::mem::replace(&mut *self.slots[caller].lock().unwrap(), new)
    }

    fn call(&self, caller: usize, least: u32) {
        let (version, value) = match self.exchange(caller, None) {
            Some(value) => (self.versions[caller].load(Ordering::SeqCst), value),
            None => {
                let version = self.version.load(Ordering::SeqCst);
                self.versions[caller].store(version, Ordering::SeqCst);
                (version, self.value.lock().unwrap().clone())
            }
        };
        assert!(*value >= least, "a call used a value that had been replaced before it began");
        let is_same = || self.version.load(Ordering::SeqCst) == version;
        if self.keeps == Keeps::JudgedEarly {
            if is_same() {
                self.exchange(caller, Some(value));
            }
            return;
        }
        self.exchange(caller, Some(value));
        if !is_same() {
            self.exchange(caller, None);
        }
    }

    fn forget_all(&self) {
        for caller in 0..CALLERS {
            self.exchange(caller, None);
        }
    }

    fn replace(&self, new: u32) {
        if self.keeps == Keeps::CountedLate {
            let old = core::mem::replace(&mut *self.value.lock().unwrap(), Arc::new(new));
            self.forget_all();
            self.version.fetch_add(1, Ordering::SeqCst);
            drop(old);
            return;
        }
        let old = {
            let mut place = self.value.lock().unwrap();
            self.version.fetch_add(1, Ordering::SeqCst);
            core::mem::replace(&mut *place, Arc::new(new))
        };
        self.forget_all();
        drop(old);
    }
}

fn explore(keeps: Keeps) {
    let mut config = Config::new();
    config.failure_persistence = shuttle::FailurePersistence::None;
    let scheduler = RandomScheduler::new_from_seed(SEED, SCHEDULES);
    Runner::new(scheduler, config).run(move || {
        let world = Arc::new(KeptWorld {
            keeps,
            value: Mutex::new(Arc::new(0)),
            version: AtomicU32::new(0),
            slots: [const { Mutex::new(None) }; CALLERS],
            versions: [const { AtomicU32::new(0) }; CALLERS],
        });
        let done = Arc::new(AtomicU32::new(0));
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (world, done) = (world.clone(), done.clone());
                thread::spawn(move || {
                    for _ in 0..CALLS {
                        let least = done.load(Ordering::SeqCst);
                        world.call(caller, least);
                    }
                })
            })
            .collect();
        for new in 1..=REPLACEMENTS {
            world.replace(new);
            done.store(new, Ordering::SeqCst);
        }
        for caller in callers {
            caller.join().unwrap();
        }
        for caller in 0..CALLERS {
            let kept = world.exchange(caller, None);
            assert!(kept.is_none_or(|kept| *kept == REPLACEMENTS), "a replaced value is kept");
        }
    });
}

#[test]
fn nobody_keeps_or_uses_a_value_after_its_replacement() {
    explore(Keeps::Properly);
}

#[test]
#[should_panic(expected = "replaced")]
fn judging_before_it_is_put_back_keeps_an_old_value() {
    explore(Keeps::JudgedEarly);
}

#[test]
#[should_panic(expected = "value")]
fn counting_after_the_slots_keeps_an_old_value() {
    explore(Keeps::CountedLate);
}
