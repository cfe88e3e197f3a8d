//! IDs of POSIX timers.

use freehold_collections::Map;

use crate::{Errno, Result};

/// Allocates the IDs of a process' POSIX timers: they increase, as on Linux, and begin again after
/// the largest.
pub(super) struct TimerIds {
    next: i32,
    /// Whether all IDs were used once: from now on a timer may have `next`.
    wrapped: bool,
}

impl TimerIds {
    /// Returns the state of a process without timers.
    pub(super) const fn new() -> Self {
        Self { next: 0, wrapped: false }
    }
    /// Returns an ID that none of `timers` has, and that is not reused soon.
    pub(super) fn fresh<T>(&mut self, timers: &Map<i32, T>) -> Result<i32> {
        // At most one step more than the number of timers.
        for _ in 0..=timers.len() {
            let (id, may_be_used) = (self.next, self.wrapped);
            self.next = id.checked_add(1).unwrap_or_else(|| {
                self.wrapped = true;
                0
            });
            if !may_be_used || !timers.contains_key(&id) {
                return Ok(id);
            }
        }
        Err(Errno::EAGAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_rise_begin_anew_after_the_last_and_skip_those_in_use() {
        let mut ids = TimerIds { next: 0, wrapped: false };
        let mut timers = Map::new();
        for id in 0..3 {
            assert_eq!(ids.fresh(&timers), Ok(id));
            timers.try_insert(id, ()).expect("memory");
        }
        timers.remove(&1);
        assert_eq!(ids.fresh(&timers), Ok(3), "an ID is not given out again soon");
        ids.next = i32::MAX;
        assert_eq!(ids.fresh(&timers), Ok(i32::MAX));
        timers.try_insert(i32::MAX, ()).expect("memory");
        assert_eq!(ids.fresh(&timers), Ok(1), "0 is in use");
        assert_eq!(ids.fresh(&timers), Ok(3), "so is 2");
        ids.next = i32::MAX;
        assert_eq!(ids.fresh(&timers), Ok(1), "so are the last and the first");
    }
}
