//! One connection of TCP (RFC 9293), without I/O: segments come in by [`Connection::arrive`] and
//! are fetched with [`Connection::next_segment`]; [`Connection::deadline`] says when to call
//! [`Connection::expire`].
//!
//! **Sequence space.** `una <= nxt <= max`: the end of acknowledged bytes, the next byte to send,
//! and the end of bytes that were ever sent. The first byte of `queue` is `una`, once the SYN is
//! acknowledged. After a time-out `nxt` goes back to `una`. On the receiving side `arrived` holds
//! `ordered` bytes that the socket has not taken, which end before `next`, and after them bytes
//! that came too early. `edge` is the end of the window that the peer was told of; it never moves
//! back.
//!
//! **A state shows the program's request**: a connection is in FIN-WAIT-1 or LAST-ACK once its
//! program has ended the stream, although bytes may still wait before the FIN.
//!
//! Left out: selective acknowledgements, timestamps, urgent data, keepalive; and Nagle's gathering
//! of small segments, since small writes of a program are gathered in its socket's queue already.

use freehold_collections::AllocError;
use smoltcp::storage::Assembler;

use crate::bounds::{
    ACK_DELAY, ANSWERS, BUFFER, CALLS, CHALLENGES, ORPHAN_RETRIES, RETRIES, SCALE, TIGHT_BUFFER, TIME_WAIT,
};
use crate::estimate::{Congestion, RoundTrip};
use crate::ring::{Budget, Ring};
use crate::seq::Seq;
use crate::state::{Ack, Arrival, Failure, Offer, State};
use crate::wire::{Control, TcpSegment};

/// See the module's head.
#[derive(Debug)]
pub struct Connection {
    state: State,
    /// Length of the longest segment to the peer, and the length that this machine announced
    /// (bytes).
    mss: usize,
    own_mss: u16,
    una: Seq,
    nxt: Seq,
    max: Seq,
    queue: Ring,
    /// The peer's window (bytes), and the segment that announced it.
    window: usize,
    window_from: (Seq, Seq),
    peer_scale: u8,
    /// The stream ends after `queue`; a FIN was sent.
    ends: bool,
    fin_sent: bool,
    /// The bytes from `una` on are to be sent again.
    resends: bool,
    /// One byte is to be sent although the peer has no room.
    probes: bool,
    congestion: Congestion,
    trip: RoundTrip,
    /// Number of time-outs since the peer's last segment.
    silent: u8,
    resend_at: Option<u64>,
    next: Seq,
    edge: Seq,
    own_scale: u8,
    arrived: Ring,
    ordered: usize,
    early: Assembler,
    fin_at: Option<Seq>,
    peer_ended: bool,
    ack: Ack,
    /// Bytes since the last acknowledgement.
    unacked: usize,
    challenged_at: u64,
    /// No program uses the connection any more.
    orphan: bool,
    quit_at: Option<u64>,
}

impl Connection {
    /// A connection whose first segment has the number `iss`. Received segments have at most
    /// `own_mss` bytes.
    fn new(state: State, (iss, own_mss): (Seq, u16)) -> Self {
        Self {
            state,
            mss: usize::from(own_mss),
            own_mss,
            una: iss,
            nxt: iss,
            max: iss,
            queue: Ring::default(),
            window: 0,
            window_from: (Seq(0), iss),
            peer_scale: 0,
            ends: false,
            fin_sent: false,
            resends: false,
            probes: false,
            congestion: Congestion::new(usize::from(own_mss)),
            trip: RoundTrip::new(),
            silent: 0,
            resend_at: None,
            next: Seq(0),
            edge: Seq(0),
            own_scale: SCALE,
            arrived: Ring::default(),
            ordered: 0,
            early: Assembler::new(),
            fin_at: None,
            peer_ended: false,
            ack: Ack::None,
            unacked: 0,
            challenged_at: 0,
            orphan: false,
            quit_at: None,
        }
    }

    /// Takes the terms with which the peer's stream begins.
    fn meet(&mut self, offer: Offer) {
        self.mss = usize::from(offer.mss);
        self.congestion = Congestion::new(self.mss);
        self.window = usize::from(offer.window);
        self.window_from = (offer.seq, self.una);
        // Windows are shifted if both sides announce that.
        self.peer_scale = offer.scale.unwrap_or(0);
        self.own_scale = if offer.scale.is_some() { SCALE } else { 0 };
        self.next = offer.seq.plus(1);
        self.edge = self.next.plus(usize::from(u16::MAX));
    }

    /// Makes a connection that calls: its first sequence number, and the longest segment that this
    /// machine takes.
    pub fn calling(own: (Seq, u16)) -> Self {
        Self::new(State::SynSent, own)
    }
    /// Makes a connection that answers a call.
    pub fn answering(own: (Seq, u16), offer: Offer) -> Self {
        let mut made = Self::new(State::SynReceived, own);
        made.meet(offer);
        made
    }
    /// Makes a connection for a call that was answered by a cookie: `own` is the number in that
    /// answer.
    pub fn from_cookie(own: (Seq, u16), offer: Offer) -> Self {
        let mut made = Self::answering(own, offer);
        (made.nxt, made.max) = (made.una.plus(1), made.una.plus(1));
        made
    }

    /// Its state.
    pub const fn state(&self) -> State {
        self.state
    }
    /// Whether a segment with this acknowledgement completes an answered call.
    pub fn completes(&self, segment: &TcpSegment<'_>) -> bool {
        self.state == State::SynReceived
            && segment.control != Control::Reset
            && segment.control != Control::Syn
            && segment.ack == Some(self.una.plus(1))
            && self.is_acceptable(segment)
    }

    /// Whether a call with this segment may replace this connection: the connection only waits for
    /// old segments, and the segment is not an old one (RFC 9293, section 3.6.1).
    pub fn yields_to(&self, segment: &TcpSegment<'_>) -> bool {
        self.state == State::TimeWait && segment.control == Control::Syn && segment.seq.after(self.next) > 0
    }

    /// How many bytes may wait in one direction.
    const fn most(budget: &Budget) -> usize {
        if budget.is_tight() { TIGHT_BUFFER } else { BUFFER }
    }

    /// Returns how many bytes of the program's stream the connection takes now.
    pub fn room(&self, budget: &Budget) -> usize {
        let open = matches!(self.state, State::Established | State::CloseWait) && !self.ends;
        if open { Self::most(budget).saturating_sub(self.queue.len()) } else { 0 }
    }
    /// Takes up to `count` bytes of the stream from `fetch`, which returns how many it supplied.
    ///
    /// # Errors
    /// No memory.
    pub fn queue(
        &mut self,
        count: usize,
        budget: &mut Budget,
        fetch: impl FnMut(&mut [u8]) -> usize,
    ) -> Result<usize, AllocError> {
        self.queue.append(count, budget, fetch)
    }
    /// Notes that the stream ends after the queued bytes.
    pub fn end(&mut self) {
        self.ends = true;
        self.state = match self.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            other => other,
        };
    }
    /// Notes that no program uses the connection any more.
    pub fn abandon(&mut self, now: u64) {
        self.orphan = true;
        if self.state == State::FinWait2 && self.quit_at.is_none() {
            self.quit_at = Some(now + TIME_WAIT);
        }
    }
    /// Ends the connection. Returns the numbers of the reset that tells the peer, if the peer knows
    /// of the connection.
    pub fn abort(&mut self) -> Option<(Seq, Seq)> {
        let known = !matches!(self.state, State::SynSent | State::TimeWait | State::Closed);
        self.state = State::Closed;
        known.then_some((self.max, self.next))
    }
    /// Gives all memory back.
    pub fn free(&mut self, budget: &mut Budget) {
        self.queue.free(budget);
        self.arrived.free(budget);
    }
    /// Returns its memory (bytes).
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        self.queue.memory() + self.arrived.memory()
    }

    /// Whether the peer has ended its stream.
    pub const fn has_peer_ended(&self) -> bool {
        self.peer_ended
    }
    /// Whether bytes arrived that the program has not taken.
    pub const fn has_ordered(&self) -> bool {
        self.ordered > 0
    }
    /// Returns the arrived bytes, in order.
    pub fn ordered(&self) -> (&[u8], &[u8]) {
        self.arrived.parts(0, self.ordered)
    }
    /// Removes the first `count` of them, which were taken.
    pub fn take(&mut self, count: usize, budget: &mut Budget) {
        if count == 0 {
            return;
        }
        self.arrived.advance(count, budget);
        self.ordered -= count;
        if self.ordered == 0 && self.early.is_empty() {
            self.arrived.free(budget);
        }
        let grown = self.new_edge(budget).past(self.edge);
        let window = self.edge.past(self.next);
        if grown >= BUFFER / 4 || window < self.mss && grown >= self.mss {
            self.ack = Ack::Now;
        }
    }

    fn new_edge(&self, budget: &Budget) -> Seq {
        self.next.plus(Self::most(budget).saturating_sub(self.ordered))
    }

    /// Handles a segment for this connection.
    pub fn arrive(&mut self, segment: &TcpSegment<'_>, now: u64, budget: &mut Budget) -> Arrival {
        if self.state == State::SynSent {
            return self.answered(segment, now);
        }
        let mut arrival = Arrival::default();
        if !self.is_acceptable(segment) {
            if segment.control != Control::Reset {
                self.challenge(segment, now);
            }
            return arrival;
        }
        match segment.control {
            // The segment is only a late one, and must not end the state that guards against late
            // segments (RFC 1337).
            Control::Reset if self.state == State::TimeWait => return arrival,
            Control::Reset if segment.seq == self.next => {
                arrival.failed = Some(Failure::Reset);
                self.state = State::Closed;
                return arrival;
            }
            Control::Syn if self.state == State::SynReceived => {
                // The answer was lost, or is late.
                self.nxt = self.una;
                self.resend_at = None;
                return arrival;
            }
            Control::Reset | Control::Syn => {
                self.challenge(segment, now);
                return arrival;
            }
            Control::None | Control::Fin => {}
        }
        let Some(ack) = segment.ack else { return arrival };
        if self.state == State::SynReceived {
            if ack != self.una.plus(1) {
                arrival.reset = Some(ack);
                return arrival;
            }
            self.establish(ack, now);
            arrival.established = true;
        }
        if !self.acknowledge(segment, ack, now, budget) {
            self.challenge(segment, now);
            return arrival;
        }
        if matches!(self.state, State::Established | State::FinWait1 | State::FinWait2) {
            self.accept(segment, now, budget);
            self.take_end(now);
        } else if segment.len() > 0 {
            // Sent again, since our acknowledgement was lost.
            self.ack = Ack::Now;
            if self.state == State::TimeWait {
                self.quit_at = Some(now + TIME_WAIT);
            }
        }
        arrival
    }

    /// The answer to a call (RFC 9293, section 3.10.7.3).
    fn answered(&mut self, segment: &TcpSegment<'_>, now: u64) -> Arrival {
        let mut arrival = Arrival::default();
        let is_answer = segment.ack.map(|ack| ack.after(self.una) > 0 && ack.after(self.max) <= 0);
        match (segment.control, is_answer) {
            (Control::Reset, Some(true)) => {
                arrival.failed = Some(Failure::Refused);
                self.state = State::Closed;
            }
            (Control::Reset, _) => {}
            (_, Some(false)) => arrival.reset = segment.ack,
            (Control::Syn, _) => {
                self.meet(Offer::of(segment, self.own_mss));
                self.state = State::SynReceived;
                self.nxt = self.una;
                if let Some(ack) = segment.ack {
                    self.establish(ack, now);
                    self.ack = Ack::Now;
                    arrival.established = true;
                }
            }
            (Control::None | Control::Fin, _) => {}
        }
        arrival
    }

    fn establish(&mut self, ack: Seq, now: u64) {
        self.una = ack;
        self.nxt = self.nxt.latest(ack);
        self.max = self.max.latest(ack);
        self.trip.acknowledged(ack, now);
        self.trip.is_answered();
        (self.resend_at, self.silent) = (None, 0);
        self.window_from.1 = ack;
        self.state = if self.ends { State::FinWait1 } else { State::Established };
    }

    /// Whether the segment is in the window (Linux: tcp_sequence).
    fn is_acceptable(&self, segment: &TcpSegment<'_>) -> bool {
        segment.seq.plus(segment.len()).after(self.next) >= 0 && segment.seq.after(self.edge) <= 0
    }

    /// Answers an invalid segment, so that an honest peer learns our numbers; not each time.
    fn challenge(&mut self, segment: &TcpSegment<'_>, now: u64) {
        if segment.bytes() > 0
            || now.saturating_sub(self.challenged_at) >= CHALLENGES
            || self.challenged_at == 0
        {
            self.challenged_at = now;
            self.ack = Ack::Now;
        }
    }

    /// Returns whether the acknowledgement makes sense.
    fn acknowledge(&mut self, segment: &TcpSegment<'_>, ack: Seq, now: u64, budget: &mut Budget) -> bool {
        if ack.after(self.max) > 0 || ack.after(self.una) < -(1 << 30) {
            return false;
        }
        self.silent = 0;
        let (acked, flight) = (ack.past(self.una), self.max.past(self.una));
        let window = usize::from(segment.window) << self.peer_scale;
        let is_newer = segment.seq.after(self.window_from.0) > 0
            || segment.seq == self.window_from.0 && ack.after(self.window_from.1) >= 0;
        let before = self.window;
        if is_newer {
            (self.window, self.window_from) = (window, (segment.seq, ack));
        }
        if acked == 0 {
            let repeats = ack == self.una && segment.len() == 0 && window == before && flight > 0;
            self.resends |= repeats && self.congestion.asked_again(flight, self.mss, self.max);
        } else {
            self.resends |= self.congestion.acknowledged(ack, acked, self.mss);
            self.queue.advance(acked.min(self.queue.len()), budget);
            self.una = ack;
            self.nxt = self.nxt.latest(ack);
            self.trip.acknowledged(ack, now);
            self.trip.is_answered();
            self.resend_at = (self.una != self.max).then(|| now + self.trip.wait());
            self.end_is_known(now);
        }
        if before == 0 && self.window > 0 {
            // There is room again: the bytes that were sent to probe for room may have been
            // discarded.
            self.nxt = self.una;
            self.trip.is_answered();
            (self.resend_at, self.probes) = (None, false);
        }
        true
    }

    /// Notes that everything that was sent is acknowledged, perhaps the end, too.
    fn end_is_known(&mut self, now: u64) {
        if !self.fin_sent || self.una != self.max {
            return;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                self.quit_at = self.orphan.then_some(now + TIME_WAIT);
            }
            State::Closing => self.wait_for_old_segments(now),
            State::LastAck => self.state = State::Closed,
            _ => {}
        }
    }

    fn wait_for_old_segments(&mut self, now: u64) {
        self.state = State::TimeWait;
        self.resend_at = None;
        self.quit_at = Some(now + TIME_WAIT);
    }

    /// Keeps the bytes that are in the window.
    fn accept(&mut self, segment: &TcpSegment<'_>, now: u64, budget: &mut Budget) {
        let bytes = segment.payload.0;
        let skipped = self.next.past(segment.seq).min(bytes.len());
        let at = segment.seq.past(self.next);
        let room = self.edge.past(self.next).saturating_sub(at);
        // Bytes before which others are missing stay for as long as the peer likes, whatever the
        // program reads. So they are kept only while the connections together have memory to spare.
        let room = if at > 0 && budget.is_tight() { 0 } else { room };
        let bytes = &bytes[skipped..][..room.min(bytes.len() - skipped)];
        if segment.control == Control::Fin && self.fin_at.is_none() {
            self.fin_at = Some(segment.seq.plus(segment.bytes()));
        }
        if bytes.is_empty() {
            if segment.len() > 0 {
                self.ack = Ack::Now;
            }
            return;
        }
        // Bytes that find no memory, or would make one gap too many, count as lost on their way.
        let kept = self.arrived.write(self.ordered + at, bytes, budget).is_ok();
        let Some(count) = kept.then(|| self.early.add_then_remove_front(at, bytes.len()).ok()).flatten()
        else {
            self.ack = Ack::Now;
            return;
        };
        self.ordered += count;
        self.next = self.next.plus(count);
        self.unacked += count;
        let in_order = count > 0 && self.early.is_empty();
        self.ack = match self.ack {
            Ack::Now => Ack::Now,
            _ if !in_order || self.unacked >= 2 * usize::from(self.own_mss) => Ack::Now,
            Ack::At(time) => Ack::At(time),
            Ack::None => Ack::At(now + ACK_DELAY),
        };
    }

    /// Takes the end of the peer's stream, if it has arrived.
    fn take_end(&mut self, now: u64) {
        if self.fin_at != Some(self.next) {
            return;
        }
        self.next = self.next.plus(1);
        self.edge = self.edge.latest(self.next);
        self.ack = Ack::Now;
        self.peer_ended = true;
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.wait_for_old_segments(now),
            _ => {}
        }
    }

    /// Returns the next segment to send. Called until there is none.
    pub fn next_segment(&mut self, now: u64, budget: &Budget) -> Option<TcpSegment<'_>> {
        match self.state {
            State::SynSent | State::SynReceived => self.first_segment(now),
            State::Closed => None,
            _ => self.later_segment(now, budget),
        }
    }

    fn first_segment(&mut self, now: u64) -> Option<TcpSegment<'_>> {
        if self.nxt != self.una {
            return None;
        }
        self.nxt = self.una.plus(1);
        if self.max == self.una {
            self.trip.sent(self.nxt, now);
        }
        self.max = self.nxt;
        self.resend_at = Some(now + self.trip.wait());
        self.ack = Ack::None;
        let answers = self.state == State::SynReceived;
        let scale = if !answers || self.own_scale > 0 { Some(SCALE) } else { None };
        Some(TcpSegment {
            seq: self.una,
            ack: answers.then_some(self.next),
            control: Control::Syn,
            window: u16::MAX,
            mss: Some(self.own_mss),
            scale,
            payload: (&[], &[]),
        })
    }

    /// Returns the part of the stream to send now: its start, its number of bytes, and whether it
    /// includes the end.
    fn portion(&mut self, now: u64) -> Option<(Seq, usize, Control)> {
        let waiting = self.queue.len();
        if core::mem::take(&mut self.resends) {
            let length = waiting.min(self.mss);
            let control = if self.fin_sent && length == waiting { Control::Fin } else { Control::None };
            self.trip.sent_again();
            self.resend_at = Some(now + self.trip.wait());
            return (length > 0 || control == Control::Fin).then_some((self.una, length, control));
        }
        let flight = self.nxt.past(self.una);
        if flight > waiting {
            return None;
        }
        let unsent = waiting - flight;
        if core::mem::take(&mut self.probes) && unsent > 0 {
            return Some((self.nxt, 1, Control::None));
        }
        let allowed = self.window.min(self.congestion.window()).saturating_sub(flight);
        let length = unsent.min(self.mss).min(allowed);
        let ends = self.ends && length == unsent;
        let is_small = length < self.mss && !ends && flight > 0;
        // No small segment where a larger one will be possible (RFC 9293, section 3.8.6.2.1).
        if length == 0 && !ends || is_small && length < unsent {
            if flight == 0 && unsent > 0 && self.resend_at.is_none() {
                self.resend_at = Some(now + self.trip.wait());
            }
            return None;
        }
        Some((self.nxt, length, if ends { Control::Fin } else { Control::None }))
    }

    fn later_segment(&mut self, now: u64, budget: &Budget) -> Option<TcpSegment<'_>> {
        let sends = !matches!(self.state, State::FinWait2 | State::TimeWait);
        let portion = if sends { self.portion(now) } else { None };
        if portion.is_none() && self.ack != Ack::Now {
            return None;
        }
        // A pure acknowledgement has a number after all bytes that were sent, and in the window, so
        // that the peer does not take it for an old one while `nxt` is back at the start (Linux:
        // tcp_acceptable_seq).
        let limit = self.una.plus(self.window.min(self.max.past(self.una)));
        let (seq, length, control) = portion.unwrap_or((limit, 0, Control::None));
        let end = seq.plus(length + usize::from(control == Control::Fin));
        if end.after(self.max) > 0 {
            self.trip.sent(end, now);
            self.max = end;
        }
        if portion.is_some() {
            self.fin_sent |= control == Control::Fin;
            self.nxt = self.nxt.latest(end);
            if self.resend_at.is_none() {
                self.resend_at = Some(now + self.trip.wait());
            }
        }
        let new_edge = self.new_edge(budget);
        if new_edge.past(self.edge) >= self.mss.min(BUFFER / 4) {
            self.edge = new_edge;
        }
        (self.ack, self.unacked) = (Ack::None, 0);
        let window = (self.edge.past(self.next) >> self.own_scale).min(usize::from(u16::MAX)) as u16;
        Some(TcpSegment {
            seq,
            ack: Some(self.next),
            control,
            window,
            mss: None,
            scale: None,
            payload: self.queue.parts(seq.past(self.una).min(self.queue.len()), length),
        })
    }

    /// Returns when [`expire`](Self::expire) is to be called, if at all.
    pub fn deadline(&self) -> Option<u64> {
        if self.state == State::Closed {
            return None;
        }
        let ack = if let Ack::At(time) = self.ack { Some(time) } else { None };
        [self.resend_at, ack, self.quit_at].into_iter().flatten().min()
    }

    /// Handles deadlines that are over.
    pub fn expire(&mut self, now: u64) -> Option<Failure> {
        if self.state == State::Closed {
            return None;
        }
        if self.quit_at.is_some_and(|time| time <= now) {
            self.state = State::Closed;
            return None;
        }
        if matches!(self.ack, Ack::At(time) if time <= now) {
            self.ack = Ack::Now;
        }
        if self.resend_at.is_none_or(|time| time > now) {
            return None;
        }
        self.resend_at = None;
        self.silent = self.silent.saturating_add(1);
        self.trip.back_off();
        let most = match self.state {
            State::SynSent => CALLS,
            State::SynReceived => ANSWERS,
            _ => RETRIES,
        };
        if self.silent > most || self.orphan && self.trip.backoff() > ORPHAN_RETRIES {
            self.state = State::Closed;
            return Some(Failure::TimedOut);
        }
        let flight = self.max.past(self.una);
        if flight > 0 && (self.window > 0 || self.queue.len() == 0) {
            self.congestion.timed_out(flight, self.mss);
        } else {
            self.probes = true;
        }
        self.nxt = self.una;
        None
    }

    /// The invariants of the module's head.
    #[cfg(test)]
    pub fn validate(&self) {
        assert!(self.nxt.after(self.una) >= 0 && self.max.after(self.nxt) >= 0, "{self:?}");
        assert!(self.edge.after(self.next) >= 0 && self.ordered <= self.arrived.len(), "{self:?}");
        assert!(self.ordered <= BUFFER && self.queue.len() <= BUFFER && self.arrived.len() <= 2 * BUFFER);
        let in_flight = self.una != self.nxt && self.state != State::Closed;
        assert!(
            !in_flight || self.resend_at.is_some() || self.state == State::TimeWait,
            "nothing would be sent again: {self:?}"
        );
    }
}
