//! A model of a group's process that forks, concurrently with its move, a removal and a kill. It
//! takes the same steps as the tree, [`member`](super::member) and the registry of processes, in
//! many orders.

use shuttle::scheduler::RandomScheduler;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::{Config, Runner, thread};
use std::vec::Vec;

const SCHEDULES: usize = 20_000;
const SEED: u64 = 7;
const FORKS: usize = 2;
/// Numbers of groups.
const ROOT: usize = 0;
const GROUP: usize = 1;

/// The order of steps of a fork.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ForkSteps {
    Properly,
    /// Wrong: the child is counted after it was made.
    CountedLate,
    /// Wrong: the kills are compared before the child can be found.
    ComparedEarly,
}

struct ModelChild {
    group: usize,
    /// The number of kills when the fork began.
    kills: usize,
    is_killed: AtomicUsize,
}

/// The state that the tree's lock protects.
#[derive(Default)]
struct ModelTree {
    members: usize,
    is_removed: bool,
}

struct GroupWorld {
    steps: ForkSteps,
    tree: Mutex<ModelTree>,
    /// The group of the process that forks.
    word: AtomicUsize,
    kills: AtomicUsize,
    registry: Mutex<Vec<Arc<ModelChild>>>,
}

impl GroupWorld {
    /// Counts a child. Returns its group and the number of kills so far.
    fn count(&self) -> (usize, usize) {
        let mut tree = self.tree.lock().unwrap();
        let group = self.word.load(Ordering::SeqCst);
        tree.members += group;
        (group, self.kills.load(Ordering::SeqCst))
    }

    fn fork(&self) {
        let late = self.steps == ForkSteps::CountedLate;
        let (group, kills) = if late {
            (self.word.load(Ordering::SeqCst), self.kills.load(Ordering::SeqCst))
        } else {
            self.count()
        };
        let child = Arc::new(ModelChild { group, kills, is_killed: AtomicUsize::new(0) });
        let compare = || {
            if group == GROUP && self.kills.load(Ordering::SeqCst) != kills {
                child.is_killed.store(1, Ordering::SeqCst);
            }
        };
        if self.steps == ForkSteps::ComparedEarly {
            compare();
        }
        self.registry.lock().unwrap().push(child.clone());
        if late {
            self.tree.lock().unwrap().members += group;
        }
        if self.steps != ForkSteps::ComparedEarly {
            compare();
        }
    }

    /// Removes a process whose word says `GROUP` from the group.
    fn leave(&self) {
        let mut tree = self.tree.lock().unwrap();
        if self.word.compare_exchange(GROUP, ROOT, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            tree.members -= 1;
        }
    }

    fn remove(&self) {
        let mut tree = self.tree.lock().unwrap();
        tree.is_removed |= tree.members == 0;
    }

    fn kill(&self) {
        self.kills.fetch_add(1, Ordering::SeqCst);
        let all: Vec<_> = self.registry.lock().unwrap().clone();
        for child in all.iter().filter(|child| child.group == GROUP) {
            child.is_killed.store(1, Ordering::SeqCst);
        }
    }

    fn check(&self) {
        let tree = self.tree.lock().unwrap();
        let children = self.registry.lock().unwrap();
        let own: Vec<_> = children.iter().filter(|child| child.group == GROUP).collect();
        assert!(own.is_empty() || !tree.is_removed, "a process is in a group that was removed");
        let before = own.iter().filter(|child| child.kills == 0);
        let survivors = before.filter(|child| child.is_killed.load(Ordering::SeqCst) == 0).count();
        assert_eq!(survivors, 0, "a child that was being made outlived the kill");
        assert_eq!(tree.members, own.len() + self.word.load(Ordering::SeqCst));
    }
}

fn explore(steps: ForkSteps) {
    let mut config = Config::new();
    config.failure_persistence = shuttle::FailurePersistence::None;
    let scheduler = RandomScheduler::new_from_seed(SEED, SCHEDULES);
    Runner::new(scheduler, config).run(move || {
        let world = Arc::new(GroupWorld {
            steps,
            tree: Mutex::new(ModelTree { members: 1, is_removed: false }),
            word: AtomicUsize::new(GROUP),
            kills: AtomicUsize::new(0),
            registry: Mutex::new(Vec::new()),
        });
        let beside = |act: fn(&GroupWorld)| {
            let world = world.clone();
            thread::spawn(move || act(&world))
        };
        let threads = [
            beside(|world| (0..FORKS).for_each(|_| world.fork())),
            beside(GroupWorld::leave),
            beside(GroupWorld::remove),
            beside(GroupWorld::kill),
        ];
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.check();
    });
}

#[test]
fn no_child_is_in_a_removed_group_and_none_outlives_a_kill() {
    explore(ForkSteps::Properly);
}

#[test]
#[should_panic(expected = "in a group that was removed")]
fn a_child_that_is_counted_late_is_in_a_removed_group() {
    explore(ForkSteps::CountedLate);
}

#[test]
#[should_panic(expected = "outlived the kill")]
fn a_child_whose_kills_are_compared_early_outlives_one() {
    explore(ForkSteps::ComparedEarly);
}
