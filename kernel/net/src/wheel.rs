//! Timers, one per connection, in a wheel of slots.
//!
//! The cost of setting or stopping a timer does not depend on the number of timers. A slot is
//! [`STEP`] wide. A timer beyond the wheel's reach is in the farthest slot, and moves on when that
//! slot comes up. A timer fires up to a step late, never early.

use freehold_collections::{AllocError, Vec};

/// Nanoseconds per slot.
pub const STEP: u64 = 4_000_000;
const SLOTS: usize = 1024;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Timer {
    slot: u32,
    before: u32,
    after: u32,
    deadline: u64,
}

const UNSET: Timer = Timer { slot: NONE, before: NONE, after: NONE, deadline: 0 };

/// Timers with the numbers from 0 on.
#[derive(Debug)]
pub struct Wheel {
    heads: [u32; SLOTS],
    occupied: [u64; SLOTS / 64],
    links: Vec<Timer>,
    /// The step that was handled last.
    step: u64,
}

impl Wheel {
    /// Makes a wheel without timers, at the time `now`.
    pub const fn new(now: u64) -> Self {
        Self { heads: [NONE; SLOTS], occupied: [0; SLOTS / 64], links: Vec::new(), step: now / STEP }
    }

    /// Makes room for the timers `0..count`.
    ///
    /// # Errors
    /// No memory.
    pub fn reserve(&mut self, count: usize) -> Result<(), AllocError> {
        if count > self.links.len() { self.links.try_resize(count, UNSET) } else { Ok(()) }
    }

    /// Sets timer `number` to `deadline` (nanoseconds), instead of its former deadline.
    pub fn set(&mut self, number: usize, deadline: u64) {
        let link = self.links[number];
        if link.slot != NONE && link.deadline == deadline {
            return;
        }
        self.stop(number);
        let step = deadline.div_ceil(STEP).clamp(self.step + 1, self.step + SLOTS as u64 - 1);
        let slot = step as usize % SLOTS;
        let first = self.heads[slot];
        if first != NONE {
            self.links[first as usize].before = number as u32;
        }
        self.links[number] = Timer { slot: slot as u32, before: NONE, after: first, deadline };
        self.heads[slot] = number as u32;
        self.occupied[slot / 64] |= 1 << (slot % 64);
    }

    /// Makes timer `number` fire at `deadline` or before. A timer that is set for an earlier time
    /// stays as it is, and its user sets it again when it fires too early. So a deadline that each
    /// segment postpones costs nothing each time.
    pub fn set_by(&mut self, number: usize, deadline: u64) {
        let link = self.links[number];
        if link.slot == NONE || link.deadline > deadline {
            self.set(number, deadline);
        }
    }

    /// Timer `number` is not due any more.
    pub fn stop(&mut self, number: usize) {
        let Timer { slot, before, after, .. } = self.links[number];
        if slot == NONE {
            return;
        }
        match before {
            NONE => self.heads[slot as usize] = after,
            before => self.links[before as usize].after = after,
        }
        if after != NONE {
            self.links[after as usize].before = before;
        }
        if self.heads[slot as usize] == NONE {
            self.occupied[slot as usize / 64] &= !(1 << (slot % 64));
        }
        self.links[number] = UNSET;
    }

    /// Removes one timer that is due at `now`.
    pub fn pop(&mut self, now: u64) -> Option<usize> {
        let end = now / STEP;
        loop {
            let slot = self.step as usize % SLOTS;
            while self.heads[slot] != NONE {
                let number = self.heads[slot] as usize;
                let deadline = self.links[number].deadline;
                if deadline <= now {
                    self.stop(number);
                    return Some(number);
                }
                // The deadline was beyond the wheel's range.
                self.stop(number);
                self.set(number, deadline);
            }
            if self.step >= end {
                return None;
            }
            self.step = self.first_occupied().map_or(end, |step| step.min(end));
        }
    }

    /// Returns when [`pop`](Self::pop) is to be called next, if at all.
    pub fn next(&self) -> Option<u64> {
        self.first_occupied().map(|step| step * STEP)
    }

    /// The first step after this one that has a timer.
    fn first_occupied(&self) -> Option<u64> {
        let from = self.step + 1;
        let (word, bit) = (from as usize % SLOTS / 64, from % 64);
        (0..=SLOTS / 64).find_map(|ahead| {
            let at = (word + ahead) % (SLOTS / 64);
            let bits = match ahead {
                0 => self.occupied[at] & (u64::MAX << bit),
                _ => self.occupied[at],
            };
            // Back in the first word: the slots before the start.
            let bits = if ahead == SLOTS / 64 { bits & !(u64::MAX << bit) } else { bits };
            (bits != 0).then(|| from - bit + ahead as u64 * 64 + u64::from(bits.trailing_zeros()))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    use super::*;

    proptest! {
        /// Against a map: each timer comes once, not before its time and at most a step after it.
        #[test]
        fn timers_come_in_time(steps in prop::collection::vec((0..3_u8, 0..20_usize, 0..12_000_000_000_u64), 1..80)) {
            let (mut wheel, mut now, mut model) = (Wheel::new(0), 0, BTreeMap::new());
            wheel.reserve(20).unwrap();
            for (kind, number, time) in steps {
                match kind {
                    0 => { wheel.set(number, now + time); model.insert(number, now + time); }
                    1 => { wheel.stop(number); model.remove(&number); }
                    _ => now += time / 3,
                }
                while let Some(number) = wheel.pop(now) {
                    let deadline = model.remove(&number).expect("it was set");
                    prop_assert!(deadline <= now);
                }
                let first = model.values().min().copied();
                prop_assert!(first.is_none_or(|first| first + STEP > now), "a timer is late: {:?} at {}", first, now);
                prop_assert_eq!(wheel.next().is_some(), first.is_some());
                prop_assert!(wheel.next().zip(first).is_none_or(|(next, first)| next <= first + STEP));
            }
        }
    }
}
