//! How long an answer takes, and how much may be under way (RFC 6298, RFC 5681, RFC 6582).

use crate::seq::Seq;

const MILLISECOND: u64 = 1_000_000;
/// Before anything was measured.
const FIRST_WAIT: u64 = 1_000 * MILLISECOND;
/// As Linux has it (TCP_RTO_MIN, TCP_RTO_MAX).
const LEAST_WAIT: u64 = 200 * MILLISECOND;
const MOST_WAIT: u64 = 120_000 * MILLISECOND;
/// Segments that may be under way at first (RFC 6928).
const FIRST_WINDOW: usize = 10;
/// Answers to a later segment that say that one is missing.
const DUPLICATES: u8 = 3;
/// More than this is never under way (bytes).
const MOST_WINDOW: usize = 1 << 20;

/// The round trip, smoothed.
#[derive(Debug)]
pub struct RoundTrip {
    smoothed: u64,
    variation: u64,
    wait: u64,
    /// Times in a row that nothing new was acknowledged in time.
    backoff: u8,
    /// The segment that is timed: what acknowledges it, and when it was sent.
    timed: Option<(Seq, u64)>,
}

impl RoundTrip {
    /// Nothing is known.
    pub const fn new() -> Self {
        Self { smoothed: 0, variation: 0, wait: FIRST_WAIT, backoff: 0, timed: None }
    }
    /// How long to wait for an answer (nanoseconds).
    pub const fn wait(&self) -> u64 {
        let wait = self.wait << if self.backoff < 16 { self.backoff } else { 16 };
        if wait < MOST_WAIT { wait } else { MOST_WAIT }
    }
    /// Waits in vain.
    pub const fn backoff(&self) -> u8 {
        self.backoff
    }
    /// Counts one more attempt in vain. Bytes that were sent twice are not timed (Karn).
    pub const fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
        self.timed = None;
    }
    /// The peer answers again.
    pub const fn is_answered(&mut self) {
        self.backoff = 0;
    }
    /// A segment that `until` acknowledges was sent for the first time.
    pub const fn sent(&mut self, until: Seq, now: u64) {
        if self.timed.is_none() {
            self.timed = Some((until, now));
        }
    }
    /// A segment is sent again.
    pub const fn sent_again(&mut self) {
        self.timed = None;
    }
    /// Everything before `ack` has arrived.
    pub fn acknowledged(&mut self, ack: Seq, now: u64) {
        let Some((_, sent)) = self.timed.filter(|timed| ack.after(timed.0) >= 0) else { return };
        self.timed = None;
        let sample = now.saturating_sub(sent).max(1);
        if self.smoothed == 0 {
            (self.smoothed, self.variation) = (sample, sample / 2);
        } else {
            self.variation = (self.variation * 3 + self.smoothed.abs_diff(sample)) / 4;
            self.smoothed = (self.smoothed * 7 + sample) / 8;
        }
        self.wait = (self.smoothed + (self.variation * 4).max(LEAST_WAIT)).min(MOST_WAIT);
    }
}

/// The congestion window: Reno with NewReno's recovery.
#[derive(Debug)]
pub struct Congestion {
    window: usize,
    threshold: usize,
    duplicates: u8,
    /// Until this is acknowledged, lost bytes are sent again, one segment per round trip.
    recovers_until: Option<Seq>,
}

impl Congestion {
    /// A connection begins.
    pub const fn new(mss: usize) -> Self {
        Self { window: FIRST_WINDOW * mss, threshold: MOST_WINDOW, duplicates: 0, recovers_until: None }
    }
    /// Bytes that may be under way.
    pub const fn window(&self) -> usize {
        self.window
    }
    /// Nothing came back of `flight` bytes for too long.
    pub fn timed_out(&mut self, flight: usize, mss: usize) {
        self.threshold = (flight / 2).max(2 * mss);
        self.window = mss;
        (self.duplicates, self.recovers_until) = (0, None);
    }
    /// The peer asks for the same bytes as before. Returns whether they are to be sent again.
    pub fn asked_again(&mut self, flight: usize, mss: usize, highest: Seq) -> bool {
        self.duplicates = self.duplicates.saturating_add(1);
        if self.recovers_until.is_some() {
            self.window = (self.window + mss).min(MOST_WINDOW);
            return false;
        }
        if self.duplicates != DUPLICATES {
            return false;
        }
        self.threshold = (flight / 2).max(2 * mss);
        self.window = self.threshold + usize::from(DUPLICATES) * mss;
        self.recovers_until = Some(highest);
        true
    }
    /// `acked` more bytes have arrived, all before `ack`. Returns whether the next ones are to be
    /// sent again.
    pub fn acknowledged(&mut self, ack: Seq, acked: usize, mss: usize) -> bool {
        self.duplicates = 0;
        if let Some(until) = self.recovers_until {
            if ack.after(until) < 0 {
                self.window = self.window.saturating_sub(acked).max(mss) + mss;
                return true;
            }
            self.recovers_until = None;
            self.window = self.threshold;
            return false;
        }
        let more =
            if self.window < self.threshold { acked.min(2 * mss) } else { (mss * mss / self.window).max(1) };
        self.window = (self.window + more).min(MOST_WINDOW);
        false
    }
}
