//! Model of the protocol of [`super::handover`], in many orders: two sockets get frames, and the
//! task hands blocks over. The model checks that each block is handed over: a block that the task
//! never learns of leaves it asleep for ever, which shuttle finds as a deadlock.

use std::vec::Vec;

use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

/// A step that is taken in a wrong order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// No step: the protocol itself.
    Right,
    /// A socket lowers the next time before its block has one.
    LoweredEarly,
    /// The task resets the next time after it has asked the sockets.
    ResetLate,
}

const NEVER: u64 = u64::MAX;
const DUE: u64 = 1;

struct HandoverWorld {
    order: Order,
    next: AtomicU64,
    /// When each socket's block is due.
    sockets: [Mutex<u64>; 2],
    handed_over: AtomicU64,
    /// The queue in which the task waits.
    queue: Mutex<()>,
    changed: Condvar,
}

impl HandoverWorld {
    /// `handover::expect`
    fn expect(&self, due: u64) {
        if self.next.fetch_min(due, Ordering::SeqCst) > due {
            let _queue = self.queue.lock().unwrap();
            self.changed.notify_all();
        }
    }

    /// `PacketSocket::put_into_ring`
    fn put(&self, socket: usize) {
        if self.order == Order::LoweredEarly {
            self.expect(DUE);
        }
        *self.sockets[socket].lock().unwrap() = DUE;
        if self.order != Order::LoweredEarly {
            self.expect(DUE);
        }
    }

    /// `handover::run`, until both blocks are handed over. Every time has come.
    fn run(&self) {
        while self.handed_over.load(Ordering::SeqCst) < 2 {
            if self.next.load(Ordering::SeqCst) == NEVER {
                let mut queue = self.queue.lock().unwrap();
                while self.next.load(Ordering::SeqCst) == NEVER {
                    queue = self.changed.wait(queue).unwrap();
                }
                continue;
            }
            if self.order != Order::ResetLate {
                self.next.store(NEVER, Ordering::SeqCst);
            }
            for socket in &self.sockets {
                if core::mem::replace(&mut *socket.lock().unwrap(), NEVER) == DUE {
                    self.handed_over.fetch_add(1, Ordering::SeqCst);
                }
            }
            if self.order == Order::ResetLate {
                self.next.store(NEVER, Ordering::SeqCst);
            }
        }
    }
}

fn explore(order: Order) {
    shuttle::check_random(
        move || {
            let world = Arc::new(HandoverWorld {
                order,
                next: AtomicU64::new(NEVER),
                sockets: [const { NEVER }; 2].map(Mutex::new),
                handed_over: AtomicU64::new(0),
                queue: Mutex::new(()),
                changed: Condvar::new(),
            });
            let threads: Vec<_> = (0..2)
                .map(|socket| {
                    let world = world.clone();
                    thread::spawn(move || world.put(socket))
                })
                .collect();
            world.run();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        },
        2000,
    );
}

#[test]
fn each_block_is_handed_over() {
    explore(Order::Right);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_time_that_is_told_before_it_is_set_is_missed() {
    explore(Order::LoweredEarly);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_late_reset_forgets_a_time() {
    explore(Order::ResetLate);
}
