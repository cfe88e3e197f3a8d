//! The times at which a timer expires.

use crate::time::Base;

/// The times at which a timer expires. If the timer is set again while an expiry runs, the expiry
/// finds another setting and does not change it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Setting {
    /// Nanoseconds between expiries; 0 for once.
    pub(super) interval: u64,
    /// The clock of `deadline`, unless that is CPU time.
    pub(super) base: Base,
    /// The next expiry, or the last one if the signal is awaited; 0 if the timer is not armed.
    pub(super) deadline: u64,
    /// Number of additional expiries when the last signal was taken.
    pub(super) overruns: u64,
    /// Whether the timer has expired and is armed again once its signal is taken.
    pub(super) is_awaited: bool,
}

impl Setting {
    /// Returns the setting after the deadline has passed, when the clock shows `now`.
    pub(super) fn expired(self, now: u64) -> Self {
        let overruns = now.saturating_sub(self.deadline).checked_div(self.interval).unwrap_or(0);
        // A program chooses the interval, so the sum may overflow.
        let step = (overruns + 1).saturating_mul(self.interval);
        let deadline = if self.interval == 0 { 0 } else { self.deadline.saturating_add(step) };
        Self { overruns, deadline, is_awaited: false, ..self }
    }
}

/// The clock shows no deadline of a timer whose signal is not kept before this many nanoseconds
/// have passed (Linux: a tick).
pub(super) const IGNORED_INTERVAL: u64 = 4_000_000;
