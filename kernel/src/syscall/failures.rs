//! Counts of the errors that calls returned, if calls are counted.
//!
//! A short sorted list under one lock: only runs with counting pay for it, others for a no-op.
//! Pairs of call and error beyond [`PAIRS`] are counted together.

use crate::Errno;
use crate::hw::static_keys::{self, StaticKey};
use crate::sync::SpinLock;

/// Number of pairs of call and error that are counted separately.
const PAIRS: usize = 256;

#[derive(Clone, Copy)]
struct Pair {
    number: u16,
    error: Errno,
    count: u64,
}

struct FailureList {
    pairs: [Pair; PAIRS],
    used: usize,
    others: u64,
}

static FAILURES: SpinLock<FailureList> = SpinLock::new(FailureList {
    pairs: [Pair { number: 0, error: Errno::EPERM, count: 0 }; PAIRS],
    used: 0,
    others: 0,
});

impl FailureList {
    fn note(&mut self, number: u16, error: Errno) {
        let wanted = (number, error as i32);
        let found =
            self.pairs[..self.used].binary_search_by_key(&wanted, |pair| (pair.number, pair.error as i32));
        match found {
            Ok(at) => self.pairs[at].count += 1,
            Err(_) if self.used == PAIRS => self.others += 1,
            Err(at) => {
                self.pairs.copy_within(at..self.used, at + 1);
                self.pairs[at] = Pair { number, error, count: 1 };
                self.used += 1;
            }
        }
    }
}

/// Records that the call `number` returns `error` to the program.
#[inline(always)]
pub fn note(number: u64, error: Errno) {
    if static_keys::is_on::<{ StaticKey::SYSCALL_COUNTS }>() {
        count(number, error);
    }
}

#[cold]
#[inline(never)]
fn count(number: u64, error: Errno) {
    FAILURES.lock().note(u16::try_from(number).unwrap_or(u16::MAX), error);
}

/// Visits the errors of a call, by number, each with its count.
pub fn each_of(number: u64, mut f: impl FnMut(Errno, u64)) {
    let mut at = 0;
    loop {
        let pair = {
            let list = FAILURES.lock();
            list.pairs[..list.used].get(at).copied()
        };
        let Some(pair) = pair else { return };
        if u64::from(pair.number) == number {
            f(pair.error, pair.count);
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_told_apart_as_long_as_there_is_room() {
        let pair = Pair { number: 0, error: Errno::EPERM, count: 0 };
        let mut list = FailureList { pairs: [pair; PAIRS], used: 0, others: 0 };
        for number in (0..PAIRS as u16 + 10).rev() {
            list.note(number, Errno::ENOENT);
            list.note(number, Errno::ENOENT);
        }
        list.note(300, Errno::EACCES);
        assert_eq!((list.used, list.others), (PAIRS, 21));
        assert!(list.pairs.is_sorted_by_key(|pair| pair.number));
        assert!(list.pairs.iter().all(|pair| pair.count == 2));
    }
}
