//! Model of a lock with three threads, in many orders. It takes the steps of [`super`] and
//! [`super::table`]. The first thread owns the lock and unlocks it, or ends. The second stops
//! waiting at any moment. The third waits until it has the lock. A lost lock leaves the third
//! asleep, which the model reports as a deadlock.

use std::vec::Vec;

use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

const WAITERS: u32 = 0x8000_0000;
const NUMBER: u32 = 0xff;

/// The moment at which a thread that stops waiting checks whether it has the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastLook {
    /// Under the table's lock, as required.
    UnderLock,
    /// Before it takes the table's lock.
    BeforeLock,
}

/// Action of a waiter that is to claim the lock, but stops waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnusedClaim {
    /// The next waiter claims the lock, as required.
    PassedOn,
    /// The claim is lost.
    Dropped,
}

/// The moment at which a new waiter writes the word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Announcement {
    /// Under the table's lock, as required.
    UnderLock,
    /// Before it takes the table's lock.
    BeforeLock,
}

/// How the first owner gives up the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Going {
    Unlocks,
    Ends,
}

#[derive(Clone, Copy)]
struct PiSteps {
    last_look: LastLook,
    claim: UnusedClaim,
    announcement: Announcement,
}

const RIGHT: PiSteps = PiSteps {
    last_look: LastLook::UnderLock,
    claim: UnusedClaim::PassedOn,
    announcement: Announcement::UnderLock,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Apart,
    Waits,
    Claims,
    Owns,
}

/// The part of the table for the lock: empty while no thread waits.
struct ModelTable {
    owner: Option<u32>,
    waiters: Vec<u32>,
    standing: [Standing; 4],
}

struct LockWorld {
    word: AtomicU32,
    table: Mutex<ModelTable>,
    called: [Mutex<bool>; 4],
    work: [Condvar; 4],
}

impl LockWorld {
    fn exchange(&self, value: u32, new: u32) -> bool {
        self.word.compare_exchange(value, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn call(&self, table: &mut ModelTable, whom: u32, standing: Standing) {
        table.standing[whom as usize] = standing;
        *self.called[whom as usize].lock().unwrap() = true;
        self.work[whom as usize].notify_one();
    }

    fn give(&self, table: &mut ModelTable, next: u32) {
        table.waiters.retain(|&waiter| waiter != next);
        table.owner = if table.waiters.is_empty() { None } else { Some(next) };
        self.call(table, next, Standing::Owns);
    }

    /// Tries to take the lock. Returns whether it was free.
    fn ask(&self, own: u32, steps: PiSteps) -> bool {
        loop {
            let early = self.word.load(Ordering::SeqCst);
            if steps.announcement == Announcement::BeforeLock
                && early & NUMBER != 0
                && !self.exchange(early, early | WAITERS)
            {
                continue;
            }
            let mut table = self.table.lock().unwrap();
            let value = match steps.announcement {
                Announcement::UnderLock => self.word.load(Ordering::SeqCst),
                Announcement::BeforeLock => early,
            };
            if value & NUMBER == 0 && table.waiters.is_empty() {
                if self.exchange(value, own) {
                    return true;
                }
                continue;
            }
            if steps.announcement == Announcement::UnderLock && !self.exchange(value, value | WAITERS) {
                continue;
            }
            if table.waiters.is_empty() {
                table.owner = Some(value & NUMBER);
            }
            table.waiters.push(own);
            table.standing[own as usize] = Standing::Waits;
            return false;
        }
    }

    fn standing(&self, own: u32) -> Standing {
        self.table.lock().unwrap().standing[own as usize]
    }

    fn sleep(&self, own: u32) {
        let mut called = self.called[own as usize].lock().unwrap();
        while !*called {
            called = self.work[own as usize].wait(called).unwrap();
        }
        *called = false;
    }

    fn claim(&self, own: u32) {
        let mut table = self.table.lock().unwrap();
        self.word.store(own | WAITERS, Ordering::SeqCst);
        self.give(&mut table, own);
    }

    /// Stops waiting. Returns whether the thread has the lock nevertheless.
    fn leave(&self, own: u32, steps: PiSteps) -> bool {
        let early = self.standing(own);
        let mut table = self.table.lock().unwrap();
        let standing = match steps.last_look {
            LastLook::UnderLock => table.standing[own as usize],
            LastLook::BeforeLock => early,
        };
        if standing == Standing::Owns {
            return true;
        }
        table.waiters.retain(|&waiter| waiter != own);
        table.standing[own as usize] = Standing::Apart;
        match table.waiters.first().copied() {
            None => table.owner = None,
            Some(next) if standing == Standing::Claims && steps.claim == UnusedClaim::PassedOn => {
                self.call(&mut table, next, Standing::Claims);
            }
            Some(_) => {}
        }
        false
    }

    fn unlock(&self, own: u32) {
        if self.exchange(own, 0) {
            return;
        }
        let mut table = self.table.lock().unwrap();
        match table.waiters.first().copied() {
            None => self.word.store(0, Ordering::SeqCst),
            Some(next) => {
                assert_eq!(table.owner, Some(own), "the table has another owner than the word");
                self.word.store(next | WAITERS, Ordering::SeqCst);
                self.give(&mut table, next);
            }
        }
    }

    /// Ends as the owner: first the robust list is processed, then the table.
    fn end(&self, own: u32) {
        let value = self.word.load(Ordering::SeqCst);
        if !self.exchange(value, value & WAITERS) {
            self.word.store(WAITERS, Ordering::SeqCst);
        }
        let mut table = self.table.lock().unwrap();
        if let Some(next) = table.waiters.first().copied()
            && table.owner == Some(own)
        {
            table.owner = None;
            self.call(&mut table, next, Standing::Claims);
        }
    }

    /// Waits for the lock, and unlocks it.
    fn patient(&self, own: u32, steps: PiSteps) {
        if !self.ask(own, steps) {
            loop {
                match self.standing(own) {
                    Standing::Owns => break,
                    Standing::Claims => self.claim(own),
                    _ => self.sleep(own),
                }
            }
        }
        self.unlock(own);
    }

    fn impatient(&self, own: u32, steps: PiSteps) {
        if self.ask(own, steps) || self.leave(own, steps) {
            self.unlock(own);
        }
    }
}

fn explore(steps: PiSteps, going: Going) {
    let table = ModelTable { owner: None, waiters: Vec::new(), standing: [Standing::Apart; 4] };
    let world = Arc::new(LockWorld {
        word: AtomicU32::new(1),
        table: Mutex::new(table),
        called: [const { Mutex::new(false) }; 4],
        work: [const { Condvar::new() }; 4],
    });
    let start = |work: fn(&LockWorld, PiSteps)| {
        let world = world.clone();
        thread::spawn(move || work(&world, steps))
    };
    let others =
        [start(|world, steps| world.impatient(2, steps)), start(|world, steps| world.patient(3, steps))];
    match going {
        Going::Unlocks => world.unlock(1),
        Going::Ends => world.end(1),
    }
    for other in others {
        other.join().unwrap();
    }
    assert_eq!(world.word.load(Ordering::SeqCst) & NUMBER, 0, "the lock is not free at the end");
}

fn run(steps: PiSteps, going: Going) {
    shuttle::check_random(move || explore(steps, going), 20_000);
}

#[test]
fn a_lock_is_handed_on_until_it_is_free() {
    run(RIGHT, Going::Unlocks);
}

#[test]
fn the_lock_of_one_that_ended_is_claimed() {
    run(RIGHT, Going::Ends);
}

/// Either the third thread sleeps forever, or no thread is left that has the lock.
#[test]
#[should_panic(expected = "lock")]
fn a_look_before_the_lock_loses_the_lock() {
    run(PiSteps { last_look: LastLook::BeforeLock, ..RIGHT }, Going::Unlocks);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_claim_that_is_not_passed_on_is_lost() {
    run(PiSteps { claim: UnusedClaim::Dropped, ..RIGHT }, Going::Ends);
}

#[test]
#[should_panic]
fn a_word_that_changes_without_the_table_has_another_owner() {
    run(PiSteps { announcement: Announcement::BeforeLock, ..RIGHT }, Going::Unlocks);
}
