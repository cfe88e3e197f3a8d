//! Allocations of this crate that fail on request, for tests on the host.

use core::cell::Cell;

std::thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Lets the `nth` allocation of this thread from now on fail, from 1; 0 lets none.
pub fn fail_nth(nth: u64) {
    LEFT.set(nth);
}

/// Runs `attempt` with each of its allocations failing in turn, until none fails. Returns what
/// the last one returned and the number of failures.
pub fn each_fails<T, E>(mut attempt: impl FnMut() -> Result<T, E>) -> (Result<T, E>, u64) {
    for nth in 1.. {
        fail_nth(nth);
        let result = attempt();
        let is_last = LEFT.replace(0) > 0;
        if is_last {
            return (result, nth - 1);
        }
    }
    unreachable!("an attempt has no more than 2^64 allocations")
}

pub(crate) fn fails() -> bool {
    let left = LEFT.get();
    LEFT.set(left.saturating_sub(1));
    left == 1
}
