//! Estimates of the round-trip time, and of the number of bytes that may be in flight (RFC 6298,
//! RFC 5681, RFC 6582).

use crate::seq::Seq;

const MILLISECOND: u64 = 1_000_000;
/// The time-out before any measurement.
const FIRST_WAIT: u64 = 1_000 * MILLISECOND;
/// As Linux has it (TCP_RTO_MIN, TCP_RTO_MAX).
const LEAST_WAIT: u64 = 200 * MILLISECOND;
const MOST_WAIT: u64 = 120_000 * MILLISECOND;
/// Number of segments that may be in flight at first (RFC 6928).
const FIRST_WINDOW: usize = 10;
/// Number of duplicate acknowledgements after which a segment counts as lost.
const DUPLICATES: u8 = 3;
/// Largest number of bytes in flight.
const MOST_WINDOW: usize = 1 << 20;

/// The round trip, smoothed.
#[derive(Debug)]
pub struct RoundTrip {
    smoothed: u64,
    variation: u64,
    wait: u64,
    /// Number of consecutive time-outs.
    backoff: u8,
    /// The segment that is timed: its acknowledgement, and when it was sent.
    timed: Option<(Seq, u64)>,
}

impl RoundTrip {
    /// Makes an estimate without measurements.
    pub const fn new() -> Self {
        Self { smoothed: 0, variation: 0, wait: FIRST_WAIT, backoff: 0, timed: None }
    }
    /// Returns how long to wait for an answer (nanoseconds).
    pub const fn wait(&self) -> u64 {
        let wait = self.wait << if self.backoff < 16 { self.backoff } else { 16 };
        if wait < MOST_WAIT { wait } else { MOST_WAIT }
    }
    /// Returns the number of consecutive time-outs.
    pub const fn backoff(&self) -> u8 {
        self.backoff
    }
    /// Counts one more time-out. Bytes that were sent twice are not timed (Karn).
    pub const fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
        self.timed = None;
    }
    /// The peer answers again.
    pub const fn is_answered(&mut self) {
        self.backoff = 0;
    }
    /// Notes that a segment whose acknowledgement is `until` was sent for the first time.
    pub const fn sent(&mut self, until: Seq, now: u64) {
        if self.timed.is_none() {
            self.timed = Some((until, now));
        }
    }
    /// Notes that a segment is sent again.
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
    /// Begins a connection.
    pub const fn new(mss: usize) -> Self {
        Self { window: FIRST_WINDOW * mss, threshold: MOST_WINDOW, duplicates: 0, recovers_until: None }
    }
    /// Returns how many bytes may be in flight.
    pub const fn window(&self) -> usize {
        self.window
    }
    /// Notes a time-out with `flight` bytes in flight.
    pub fn timed_out(&mut self, flight: usize, mss: usize) {
        self.threshold = (flight / 2).max(2 * mss);
        self.window = mss;
        (self.duplicates, self.recovers_until) = (0, None);
    }
    /// Notes a duplicate acknowledgement. Returns whether its bytes are to be sent again.
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
