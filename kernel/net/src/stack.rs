//! All connections of one address, and packets for no connection.
//!
//! The stack acts only when it is called: [`Stack::receive`] for each frame that came,
//! [`Stack::pump`] if a socket may have something new, [`Stack::expire`] when [`Stack::deadline`]
//! is over. During a call it uses the [`Host`].
//!
//! **Calls.** If a listener exists, a call becomes a connection without a socket, of which there
//! are at most [`EMBRYOS`]. Above that, calls are answered by cookies (RFC 4987, section 3.6): the
//! answer's sequence number encodes all of the call's state, so that a flood costs no memory. A
//! socket is made when the caller has answered.
//!
//! **Memory.** Rings of all connections share one [`Budget`]; a segment that finds none counts as
//! lost on its way, and its sender sends it again.

use core::net::Ipv4Addr;

use freehold_collections::AllocError;
use smoltcp::wire::{EthernetAddress, IpProtocol};

use crate::connection::Connection;
use crate::host::{Host, Owner, Refusal};
use crate::neighbours::{Neighbours, Route};
use crate::ring::Budget;
use crate::seq::Seq;
use crate::state::{Failure, Offer, State};
use crate::table::{Ends, Id, Secret, Table};
use crate::wheel::Wheel;
use crate::wire::{self, Control, Marks, Outgoing, Own, Packet, Resolution, TcpSegment};

/// Number of calls that are remembered before they are complete.
pub const EMBRYOS: usize = 256;
/// A cookie is valid in the period of this length (nanoseconds) in which it was made, and in the
/// next.
const COOKIE_PERIOD: u64 = 64_000_000_000;
/// Segment sizes that a cookie can encode (bytes).
const COOKIE_MSS: [u16; 4] = [536, 1200, 1400, 1460];
/// Number of connections that only wait for old segments.
const MOST_WAITING: usize = 4096;
/// First sequence numbers advance by one in this time (nanoseconds; RFC 6528).
const TICK: u64 = 4_000;
/// Bytes of IPv4's and TCP's headers.
const HEADERS: u16 = 40;
/// Number of bytes that are fetched from one socket at a time.
const QUANTUM: usize = 64 << 10;
/// Delay until bytes that found no memory are tried again (nanoseconds).
const STALL: u64 = 1_000_000_000;

/// How this machine is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The device's address.
    pub hardware: [u8; 6],
    /// The machine's.
    pub address: Ipv4Addr,
    /// Number of address bits that name the network.
    pub prefix: u8,
    /// Address of the router to all other networks.
    pub gateway: Ipv4Addr,
    /// Bytes of the longest packet, 576..=1500.
    pub mtu: u16,
    /// Memory of all connections' bytes together.
    pub budget: usize,
}

/// Counts since the stack began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Frames with nothing for this machine, or damaged ones.
    pub ignored: u64,
    /// Segments that came, and that were sent.
    pub segments: [u64; 2],
    /// Resets that were sent.
    pub resets: u64,
    /// Calls that were answered by cookies.
    pub cookies: u64,
    /// Calls that found no memory.
    pub dropped: u64,
}

/// Class of a connection, for the limits of embryos and of waiting connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Embryo,
    Open,
    /// The connection only waits for old segments.
    Waiting,
}

struct Tracked<S> {
    connection: Connection,
    /// None for a call that is not complete.
    socket: Option<S>,
    class: Class,
    /// The socket was told of the peer's end.
    told_end: bool,
    /// Bytes or an end could not be moved, and no segment and no socket will ask for that again.
    stalled: bool,
    /// The failure that the socket is told once it has all bytes that came before.
    failure: Option<Failure>,
}

impl<S> Tracked<S> {
    const fn new(connection: Connection, socket: Option<S>) -> Self {
        Self { connection, socket, class: Class::Open, told_end: false, stalled: false, failure: None }
    }
}

/// The connection of a stack to the wire.
struct Outlet {
    config: Config,
    own: Own,
    neighbours: Neighbours,
    frame: Outgoing,
    counters: Counters,
}

impl Outlet {
    fn is_near(&self, ip: Ipv4Addr) -> bool {
        let shift = 32 - u32::from(self.config.prefix.min(32));
        let network = |ip: Ipv4Addr| u64::from(u32::from(ip)) >> shift;
        network(ip) == network(self.config.address)
    }

    /// Sends the frame that was built, or keeps it until its route is known.
    fn send(&mut self, host: &mut impl Host, to: Ipv4Addr, ends: Option<Ends>, now: u64) {
        let hop = if self.is_near(to) { to } else { self.config.gateway };
        match self.neighbours.route(hop, self.frame.bytes(), ends, now) {
            Route::To(hardware) => {
                self.frame.address_to(hardware);
                host.transmit(self.frame.bytes());
            }
            Route::Ask => {
                self.frame.arp(self.own, hop, None);
                host.transmit(self.frame.bytes());
            }
            Route::Wait => {}
        }
    }

    fn segment(&mut self, host: &mut impl Host, ends: Ends, segment: &TcpSegment<'_>, now: u64) {
        self.counters.segments[1] += 1;
        self.frame.tcp(self.own, ends, segment);
        self.send(host, *ends.remote.ip(), Some(ends), now);
    }

    fn reset(&mut self, host: &mut impl Host, ends: Ends, (seq, ack): (Seq, Option<Seq>), now: u64) {
        self.counters.resets += 1;
        let control = Control::Reset;
        let reset = TcpSegment { seq, ack, control, window: 0, mss: None, scale: None, payload: (&[], &[]) };
        self.segment(host, ends, &reset, now);
    }

    /// Answers a segment that belongs to no connection (RFC 9293, section 3.10.7.1).
    fn refuse(&mut self, host: &mut impl Host, ends: Ends, segment: &TcpSegment<'_>, now: u64) {
        if segment.control == Control::Reset {
            return;
        }
        let numbers = match segment.ack {
            Some(ack) => (ack, None),
            None => (Seq(0), Some(segment.seq.plus(segment.len()))),
        };
        self.reset(host, ends, numbers, now);
    }

    fn resolve(&mut self, host: &mut impl Host, resolution: Resolution, now: u64) {
        let Resolution { ip, hardware, asks_for } = resolution;
        if !self.is_near(ip) {
            return;
        }
        if asks_for.is_some() {
            self.neighbours.welcome(ip, now);
            self.frame.arp(self.own, ip, Some(hardware));
            host.transmit(self.frame.bytes());
        }
        let frame = &mut self.frame;
        self.neighbours.learn(ip, hardware, now, |waiting| {
            frame.copy(waiting);
            frame.address_to(hardware);
            host.transmit(frame.bytes());
        });
    }
}

/// See the module's head.
pub struct Stack<H: Host> {
    link: Outlet,
    secret: Secret,
    table: Table<Tracked<H::Socket>>,
    wheel: Wheel,
    budget: Budget,
    embryos: usize,
    waiting: usize,
    /// Time when the last cookie was given.
    cookie_at: Option<u64>,
}

impl<H: Host> Stack<H> {
    /// Makes a stack without connections, which needs no memory. `secret` is random.
    pub const fn new(config: Config, secret: [u64; 2], now: u64) -> Self {
        let own = Own { hardware: EthernetAddress(config.hardware), ip: config.address };
        let counters = Counters { ignored: 0, segments: [0; 2], resets: 0, cookies: 0, dropped: 0 };
        let neighbours = Neighbours::new(config.gateway);
        Self {
            link: Outlet { config, own, neighbours, frame: Outgoing::new(), counters },
            secret: Secret(secret),
            table: Table::new(Secret(secret)),
            wheel: Wheel::new(now),
            budget: Budget::new(config.budget),
            embryos: 0,
            waiting: 0,
            cookie_at: None,
        }
    }
    /// The machine's address.
    pub const fn address(&self) -> Ipv4Addr {
        self.link.own.ip
    }
    /// Connections, calls that are not complete among them.
    pub const fn connections(&self) -> usize {
        self.table.len()
    }
    /// Returns the counts since the stack began.
    pub const fn counters(&self) -> Counters {
        self.link.counters
    }
    /// Bytes that wait in all connections (memory).
    pub const fn memory(&self) -> usize {
        self.budget.used()
    }
    /// The state of a connection, unless it is gone.
    pub fn state(&self, id: Id) -> Option<State> {
        self.table.get(id).map(|tracked| tracked.connection.state())
    }

    const fn mss(&self) -> u16 {
        self.link.config.mtu - HEADERS
    }

    fn first_number(&self, ends: Ends, now: u64) -> Seq {
        Seq(self.secret.hash(ends, 1) as u32).plus((now / TICK) as usize)
    }

    /// Calls the other end. `None` if a connection with these ends exists.
    ///
    /// # Errors
    /// No memory.
    pub fn connect(
        &mut self,
        host: &mut H,
        ends: Ends,
        socket: H::Socket,
        now: u64,
    ) -> Result<Option<Id>, AllocError> {
        if let Some(old) = self.table.find(ends) {
            // The new connection begins at a number that is later than all numbers of the old one.
            if self.table.get(old).is_none_or(|entry| entry.class != Class::Waiting) {
                return Ok(None);
            }
            self.remove(old);
        }
        let connection = Connection::calling((self.first_number(ends, now), self.mss()));
        let id = self.enter(ends, Tracked::new(connection, Some(socket)))?;
        self.settle(host, id, now);
        Ok(Some(id))
    }

    fn enter(&mut self, ends: Ends, entry: Tracked<H::Socket>) -> Result<Id, AllocError> {
        let id = self.table.insert(ends, entry)?;
        if let Err(error) = self.wheel.reserve(self.table.numbers()) {
            self.table.remove(id);
            return Err(error);
        }
        self.classify(id);
        Ok(id)
    }

    /// Removes a connection, and frees its memory.
    fn remove(&mut self, id: Id) -> Option<H::Socket> {
        self.wheel.stop(id.number());
        let mut entry = self.table.remove(id)?;
        entry.connection.free(&mut self.budget);
        self.uncount(entry.class);
        entry.socket
    }

    const fn uncount(&mut self, class: Class) {
        match class {
            Class::Embryo => self.embryos -= 1,
            Class::Waiting => self.waiting -= 1,
            Class::Open => {}
        }
    }

    /// Counts the connection in its present class.
    fn classify(&mut self, id: Id) {
        let Some(entry) = self.table.get_mut(id) else { return };
        let class = match entry.connection.state() {
            State::SynReceived => Class::Embryo,
            State::TimeWait => Class::Waiting,
            _ => Class::Open,
        };
        let old = core::mem::replace(&mut entry.class, class);
        self.uncount(old);
        match class {
            Class::Embryo => self.embryos += 1,
            Class::Waiting => self.waiting += 1,
            Class::Open => {}
        }
    }

    /// Handles a received frame.
    pub fn receive(&mut self, host: &mut H, frame: &[u8], now: u64) {
        let link = &mut self.link;
        if host.hears_packets()
            && let Some(packet) = wire::packet(frame, link.own)
        {
            host.packet(packet);
        }
        match wire::parse(frame, link.own) {
            None => link.counters.ignored += 1,
            Some(Packet::Arp(resolution)) => link.resolve(host, resolution, now),
            Some(Packet::Tcp(ends, segment)) => {
                link.counters.segments[0] += 1;
                self.segment(host, ends, &segment, now);
            }
            Some(Packet::Udp(ends, payload, whole)) => {
                if !host.datagram(ends, Marks::of(whole), payload) {
                    link.frame.no_port(link.own, *ends.remote.ip(), whole);
                    link.send(host, *ends.remote.ip(), None, now);
                }
            }
            Some(Packet::Echo(from, request)) => {
                link.frame.echo(link.own, from, request);
                link.send(host, from, None, now);
            }
            Some(Packet::Unreachable(IpProtocol::Udp, ends)) => host.refused(ends),
            Some(Packet::Unreachable(IpProtocol::Tcp, ends)) => self.unreachable(host, ends),
            Some(Packet::Unreachable(..)) => {}
        }
    }

    /// A call that is not answered yet fails. A connection continues, since the error may be
    /// forged.
    fn unreachable(&mut self, host: &mut H, ends: Ends) {
        let Some(id) = self.table.find(ends) else { return };
        let is_call = self.table.get(id).is_some_and(|entry| entry.connection.state() == State::SynSent);
        if is_call && let Some(socket) = self.remove(id) {
            host.failed(&socket, Failure::Unreachable);
        }
    }

    /// Sends a datagram. Returns whether it fits into a packet.
    pub fn send_datagram(
        &mut self,
        host: &mut H,
        (ends, marks): (Ends, Marks),
        payload: &[u8],
        now: u64,
    ) -> bool {
        let link = &mut self.link;
        let fits = payload.len() + wire::DATAGRAM_HEADERS <= usize::from(link.config.mtu);
        if fits {
            link.frame.udp(link.own, ends, marks, payload);
            link.send(host, *ends.remote.ip(), None, now);
        }
        fits
    }

    /// Sends a packet, header included, by way of `to`. Returns whether it fits into a frame.
    pub fn send_packet(&mut self, host: &mut H, to: Ipv4Addr, packet: &[u8], now: u64) -> bool {
        let link = &mut self.link;
        let fits = packet.len() <= usize::from(link.config.mtu);
        if fits {
            link.frame.packet(link.own, packet);
            link.send(host, to, None, now);
        }
        fits
    }

    fn segment(&mut self, host: &mut H, ends: Ends, segment: &TcpSegment<'_>, now: u64) {
        let mut found = self.table.find(ends);
        if let Some(id) = found
            && self.table.get(id).is_some_and(|entry| entry.connection.yields_to(segment))
        {
            self.remove(id);
            found = None;
        }
        let Some(id) = found else { return self.call(host, ends, segment, now) };
        let Some(entry) = self.table.get_mut(id) else { return };
        if entry.connection.state() == State::Closed {
            return self.link.refuse(host, ends, segment, now);
        }
        if entry.socket.is_none() && entry.connection.completes(segment) {
            match host.accept(ends, id) {
                Ok(socket) => entry.socket = Some(socket),
                Err(Refusal::Later) => return,
                Err(Refusal::Gone) => {
                    self.remove(id);
                    return self.link.refuse(host, ends, segment, now);
                }
            }
        }
        let called = entry.connection.state() == State::SynSent;
        let arrival = entry.connection.arrive(segment, now, &mut self.budget);
        if arrival.established
            && called
            && let Some(socket) = &entry.socket
        {
            host.connected(socket);
        }
        if let Some(seq) = arrival.reset {
            self.link.reset(host, ends, (seq, None), now);
        }
        entry.failure = arrival.failed;
        self.pump(host, id, now);
    }

    /// A segment that belongs to no connection.
    fn call(&mut self, host: &mut H, ends: Ends, segment: &TcpSegment<'_>, now: u64) {
        if segment.control == Control::Reset {
            return;
        }
        if !host.listens(ends) || segment.control == Control::Syn && segment.ack.is_some() {
            return self.link.refuse(host, ends, segment, now);
        }
        if segment.control != Control::Syn {
            return self.check_cookie(host, ends, segment, now);
        }
        if self.embryos >= EMBRYOS {
            return self.give_cookie(host, ends, segment, now);
        }
        let offer = Offer::of(segment, self.mss());
        let connection = Connection::answering((self.first_number(ends, now), self.mss()), offer);
        match self.enter(ends, Tracked::new(connection, None)) {
            Ok(id) => self.settle(host, id, now),
            Err(AllocError) => self.link.counters.dropped += 1,
        }
    }

    /// The number that stands for a call: a part of a hash, and which of [`COOKIE_MSS`] the peer
    /// takes.
    fn cookie(&self, ends: Ends, peer: Seq, kind: usize, period: u64) -> Seq {
        // The first numbers of connections are hashes, too: of 1.
        let hash =
            self.secret.hash(ends, u64::from(peer.0) << 32 | (period << 3 & 0xffff_ffff) | 4 | kind as u64);
        Seq((hash as u32 & !3) | kind as u32)
    }

    fn give_cookie(&mut self, host: &mut H, ends: Ends, segment: &TcpSegment<'_>, now: u64) {
        let mss = Offer::of(segment, self.mss()).mss;
        let kind = COOKIE_MSS.iter().rposition(|&known| known <= mss).unwrap_or(0);
        self.link.counters.cookies += 1;
        self.cookie_at = Some(now);
        let answer = TcpSegment {
            seq: self.cookie(ends, segment.seq, kind, now / COOKIE_PERIOD),
            ack: Some(segment.seq.plus(1)),
            control: Control::Syn,
            window: u16::MAX,
            mss: Some(self.mss()),
            scale: None,
            payload: (&[], &[]),
        };
        self.link.segment(host, ends, &answer, now);
    }

    /// A call is complete if it has the number that it was answered with.
    fn check_cookie(&mut self, host: &mut H, ends: Ends, segment: &TcpSegment<'_>, now: u64) {
        let period = now / COOKIE_PERIOD;
        let is_given = self.cookie_at.is_some_and(|at| period - at / COOKIE_PERIOD <= 1);
        let Some(ack) = segment.ack.filter(|_| is_given) else {
            return self.link.refuse(host, ends, segment, now);
        };
        let (own, peer) = (ack.before(1), segment.seq.before(1));
        let kind = (own.0 & 3) as usize;
        let is_own = |period| self.cookie(ends, peer, kind, period) == own;
        if !is_own(period) && !is_own(period.saturating_sub(1)) {
            return self.link.refuse(host, ends, segment, now);
        }
        let mss = COOKIE_MSS[kind].min(self.mss());
        let offer = Offer { seq: peer, mss, scale: None, window: segment.window };
        let connection = Connection::from_cookie((own, self.mss()), offer);
        let Ok(id) = self.enter(ends, Tracked::new(connection, None)) else {
            self.link.counters.dropped += 1;
            return;
        };
        self.segment(host, ends, segment, now);
        // The listener's queue is full: the peer's next segment brings the cookie again.
        if self.table.get(id).is_some_and(|entry| entry.class == Class::Embryo) {
            self.remove(id);
        }
    }

    /// As [`pump`](Self::pump), for the connection that has this number now, if one does.
    pub fn pump_numbered(&mut self, host: &mut H, number: usize, now: u64) {
        if let Some(id) = self.table.id(number) {
            self.pump(host, id, now);
            host.rest();
        }
    }

    /// Moves bytes between a connection, its socket and the wire, as far as possible.
    pub fn pump(&mut self, host: &mut H, id: Id, now: u64) {
        let Some(entry) = self.table.get_mut(id) else { return };
        let Some(socket) = &entry.socket else { return self.settle(host, id, now) };
        let (connection, budget) = (&mut entry.connection, &mut self.budget);
        let owner = host.owner(socket);
        let is_call = connection.state() == State::SynSent;
        let unheard = owner == Owner::Deaf && (connection.has_ordered() || is_call);
        if unheard || owner == Owner::Reset {
            return self.abort(host, id, now);
        }
        let (first, second) = connection.ordered();
        let mut taken = if first.is_empty() { 0 } else { host.deliver(socket, first) };
        if taken == first.len() && !second.is_empty() {
            taken += host.deliver(socket, second);
        }
        connection.take(taken, budget);
        entry.stalled = connection.has_ordered();
        let room = connection.room(budget).min(QUANTUM);
        if room > 0 && host.has_bytes(socket) {
            let queued = connection.queue(room, budget, |bytes| host.fetch(socket, bytes));
            entry.stalled |= queued.is_err();
        }
        if connection.room(budget) > 0 && host.has_ended(socket) {
            connection.end();
        }
        if connection.has_peer_ended() && !connection.has_ordered() && !entry.told_end {
            entry.told_end = true;
            host.ended(socket);
        }
        if owner == Owner::Deaf {
            connection.abandon(now);
        }
        self.settle(host, id, now);
    }

    /// Breaks a connection off.
    fn abort(&mut self, host: &mut H, id: Id, now: u64) {
        let (ends, entry) = (self.table.ends(id), self.table.get_mut(id));
        let Some((ends, entry)) = ends.zip(entry) else { return };
        let numbers = entry.connection.abort();
        self.remove(id);
        if let Some((seq, ack)) = numbers {
            self.link.reset(host, ends, (seq, Some(ack)), now);
        }
    }

    /// Sends the connection's pending segments, and handles its end.
    fn settle(&mut self, host: &mut H, id: Id, now: u64) {
        self.classify(id);
        let (ends, entry) = (self.table.ends(id), self.table.get_mut(id));
        let Some((ends, entry)) = ends.zip(entry) else { return };
        while let Some(segment) = entry.connection.next_segment(now, &self.budget) {
            self.link.segment(host, ends, &segment, now);
        }
        let is_over = match entry.class {
            Class::Waiting => self.waiting > MOST_WAITING,
            _ => entry.connection.state() == State::Closed,
        };
        if is_over && !entry.stalled {
            let failure = entry.failure;
            if let Some((socket, failure)) = self.remove(id).zip(failure) {
                host.failed(&socket, failure);
            }
            return;
        }
        let stalled = entry.stalled.then_some(now + STALL);
        // Where nothing is due, a timer that is set does no harm.
        if let Some(deadline) = [stalled, entry.connection.deadline()].into_iter().flatten().min() {
            self.wheel.set_by(id.number(), deadline);
        }
    }

    /// When [`expire`](Self::expire) is to be called, if at all (nanoseconds).
    pub fn deadline(&self) -> Option<u64> {
        [self.wheel.next(), self.link.neighbours.deadline()].into_iter().flatten().min()
    }

    /// Handles timers that are due at `now`.
    pub fn expire(&mut self, host: &mut H, now: u64) {
        while let Some(number) = self.wheel.pop(now) {
            let Some(id) = self.table.id(number) else { continue };
            let Some(entry) = self.table.get_mut(id) else { continue };
            if let Some(failure) = entry.connection.expire(now) {
                entry.failure = Some(failure);
            }
            self.pump(host, id, now);
            host.rest();
        }
        self.expire_neighbours(host, now);
    }

    fn expire_neighbours(&mut self, host: &mut H, now: u64) {
        if self.link.neighbours.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        let Outlet { own, neighbours, frame, .. } = &mut self.link;
        let ask = |ip| {
            frame.arp(*own, ip, None);
            host.transmit(frame.bytes());
        };
        let lost = neighbours.expire(now, ask);
        for frame in lost.iter() {
            frame.iter().for_each(|&ends| self.unreachable(host, ends));
        }
    }

    /// The invariants of all parts.
    #[cfg(test)]
    pub fn validate(&self) {
        let count = |class| self.table.iter().filter(|(_, entry)| entry.class == class).count();
        assert_eq!((self.embryos, self.waiting), (count(Class::Embryo), count(Class::Waiting)));
        let memory: usize = self.table.iter().map(|(_, entry)| entry.connection.memory()).sum();
        assert_eq!(memory, self.budget.used());
        self.table.iter().for_each(|(_, entry)| entry.connection.validate());
    }
}
