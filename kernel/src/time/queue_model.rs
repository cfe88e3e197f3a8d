//! Model of [`super::queue`] with three CPUs, in every order. It takes the steps of arming,
//! cancelling and expiring. A timer is in one queue at most, its place names that queue, and the
//! last CPU that armed it finds it armed.

use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

const NOWHERE: u64 = 0;

/// The place of a timer while its expiry runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expiring {
    /// In the queue from which it was removed, as required.
    InItsQueue,
    Nowhere,
}

/// How a CPU that arms the timer claims it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    CompareExchange,
    Store,
}

/// One timer, and how often each CPU's queue contains it.
struct TimerWorld {
    expiring: Expiring,
    claim: Claim,
    queues: [Mutex<u32>; 3],
    /// The number of the CPU + 1, plus 16 if the timer was removed from its heap.
    place: AtomicU64,
    generation: AtomicU64,
}

const TAKEN: u64 = 16;

fn place_on(cpu: usize) -> u64 {
    cpu as u64 + 1
}

impl TimerWorld {
    fn try_arm(&self, cpu: usize) {
        loop {
            self.cancel();
            let mut queue = self.queues[cpu].lock().unwrap();
            let new = place_on(cpu);
            let is_claimed = match self.claim {
                Claim::CompareExchange => {
                    self.place.compare_exchange(NOWHERE, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
                }
                Claim::Store => {
                    self.place.store(new, Ordering::SeqCst);
                    true
                }
            };
            if is_claimed {
                *queue += 1;
                return;
            }
        }
    }

    fn cancel(&self) {
        loop {
            let place = self.place.load(Ordering::SeqCst);
            if place == NOWHERE {
                return;
            }
            let mut queue = self.queues[(place % TAKEN) as usize - 1].lock().unwrap();
            let now = self.place.load(Ordering::SeqCst);
            if now % TAKEN != place % TAKEN {
                continue;
            }
            if now >= TAKEN {
                self.generation.fetch_add(1, Ordering::SeqCst);
            } else {
                *queue = queue.checked_sub(1).expect("a timer that says it is in this queue");
            }
            self.place.store(NOWHERE, Ordering::SeqCst);
        }
    }

    /// The timer repeats: the CPU that expires it puts it back.
    fn interrupt(&self, cpu: usize) {
        let generation = {
            let mut queue = self.queues[cpu].lock().unwrap();
            if *queue == 0 {
                return;
            }
            *queue -= 1;
            let place = match self.expiring {
                Expiring::InItsQueue => TAKEN + place_on(cpu),
                Expiring::Nowhere => NOWHERE,
            };
            self.place.store(place, Ordering::SeqCst);
            self.generation.load(Ordering::SeqCst)
        };
        thread::yield_now();
        let mut queue = self.queues[cpu].lock().unwrap();
        if self.generation.load(Ordering::SeqCst) == generation {
            *queue += 1;
            self.place.store(place_on(cpu), Ordering::SeqCst);
        }
    }
}

fn run(expiring: Expiring, claim: Claim) {
    shuttle::check_dfs(
        move || {
            let world = Arc::new(TimerWorld {
                expiring,
                claim,
                queues: [Mutex::new(1), Mutex::new(0), Mutex::new(0)],
                place: AtomicU64::new(place_on(0)),
                generation: AtomicU64::new(0),
            });
            let steps: [fn(&TimerWorld); 3] = [
                |world| world.interrupt(0),
                |world| {
                    world.try_arm(1);
                    world.interrupt(1);
                },
                |world| world.try_arm(2),
            ];
            let cpus = steps.map(|steps| {
                let world = world.clone();
                thread::spawn(move || steps(&world))
            });
            cpus.into_iter().for_each(|cpu| cpu.join().unwrap());
            let held = [0, 1, 2].map(|cpu| *world.queues[cpu].lock().unwrap());
            assert_eq!(held.iter().sum::<u32>(), 1, "in one queue: {held:?}");
            let place = world.place.load(Ordering::SeqCst);
            assert!(place < TAKEN && held[place as usize - 1] == 1, "place {place} of {held:?}");
        },
        Some(200_000),
    );
}

#[test]
fn a_timer_is_in_one_queue() {
    run(Expiring::InItsQueue, Claim::CompareExchange);
}

#[test]
#[should_panic(expected = "queue")]
fn a_timer_that_is_nowhere_while_it_expires_is_armed_twice() {
    run(Expiring::Nowhere, Claim::CompareExchange);
}

#[test]
#[should_panic(expected = "queue")]
fn a_timer_that_two_arm_at_once_without_asking_is_armed_twice() {
    run(Expiring::InItsQueue, Claim::Store);
}
