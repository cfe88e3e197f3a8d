//! The escape from a program that takes every key: Ctrl-] three times within a second, as in
//! systemd-nspawn.

use std::time::{Duration, Instant};

/// Ctrl-].
const KEY: u8 = 0x1d;
const TIMES: usize = 3;
const WITHIN: Duration = Duration::from_secs(1);

/// Looks for the key in what the user types.
#[derive(Default)]
pub struct Escape {
    /// Times of the keys in the present row; any other key ends the row.
    row: Vec<Instant>,
}

impl Escape {
    /// Checks `bytes` that came at `now`. Returns whether the row is complete.
    pub fn typed(&mut self, bytes: &[u8], now: Instant) -> bool {
        for &byte in bytes {
            if byte != KEY {
                self.row.clear();
                continue;
            }
            self.row.retain(|&at| now.duration_since(at) < WITHIN);
            self.row.push(now);
            if self.row.len() >= TIMES {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_in_a_row_within_a_second_and_nothing_else() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut escape = Escape::default();
        assert!(!escape.typed(b"a\x1d", at(0)));
        assert!(!escape.typed(b"\x1d", at(400)));
        assert!(escape.typed(b"\x1d", at(999)));
        let mut slow = Escape::default();
        assert_eq!([0, 600, 1200, 1800].map(|ms| slow.typed(b"\x1d", at(ms))), [false; 4]);
        let mut broken = Escape::default();
        assert!(!broken.typed(b"\x1d\x1dx\x1d", at(0)));
        assert!(Escape::default().typed(b"text\x1d\x1d\x1dmore", at(0)));
    }
}
