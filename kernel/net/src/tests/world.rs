//! Two machines and the wire between them.

use core::net::{Ipv4Addr, SocketAddrV4};
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use crate::{Config, Ends, Failure, Host, Id, Marks, Owner, Refusal, Stack};

pub const MILLISECOND: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MILLISECOND;
/// Memory of a machine's connections.
pub const BUDGET: usize = 4 << 20;

/// A program's end of a connection.
#[derive(Debug)]
pub struct Socket {
    pub id: Option<Id>,
    pub to_send: VecDeque<u8>,
    pub ended: bool,
    pub received: Vec<u8>,
    /// Bytes that it still takes.
    pub room: usize,
    pub owner: Owner,
    pub connected: bool,
    pub peer_ended: bool,
    pub failure: Option<Failure>,
}

/// A machine without its stack.
#[derive(Default)]
pub struct Machine {
    pub out: Vec<Vec<u8>>,
    pub sockets: Vec<Socket>,
    /// The port that is listened at, and how many calls its queue still takes.
    pub listener: Option<(u16, usize)>,
    pub datagrams: Vec<(Ends, Vec<u8>)>,
    pub marks: Vec<Marks>,
    pub refused: usize,
    /// Bytes that sockets of calls take at first, if not all.
    pub first_room: Option<usize>,
    /// Sockets of calls that came.
    pub accepted: Vec<usize>,
    /// Packets that were shown, by their protocol.
    pub packets: Vec<u8>,
}

impl Machine {
    pub fn socket(&mut self, bytes: &[u8], room: usize) -> usize {
        self.sockets.push(Socket {
            id: None,
            to_send: bytes.iter().copied().collect(),
            ended: true,
            received: Vec::new(),
            room,
            owner: Owner::Program,
            connected: false,
            peer_ended: false,
            failure: None,
        });
        self.sockets.len() - 1
    }
}

impl Host for Machine {
    type Socket = usize;
    fn transmit(&mut self, frame: &[u8]) {
        self.out.push(frame.to_vec());
    }
    fn listens(&mut self, ends: Ends) -> bool {
        self.listener.is_some_and(|(port, _)| port == ends.local.port())
    }
    fn accept(&mut self, _ends: Ends, id: Id) -> Result<usize, Refusal> {
        let (_, room) = self.listener.as_mut().ok_or(Refusal::Gone)?;
        *room = room.checked_sub(1).ok_or(Refusal::Later)?;
        let socket = self.socket(b"", self.first_room.unwrap_or(usize::MAX));
        (self.sockets[socket].id, self.sockets[socket].ended) = (Some(id), false);
        self.accepted.push(socket);
        Ok(socket)
    }
    fn connected(&mut self, socket: &usize) {
        self.sockets[*socket].connected = true;
    }
    fn has_bytes(&mut self, socket: &usize) -> bool {
        !self.sockets[*socket].to_send.is_empty()
    }
    fn fetch(&mut self, socket: &usize, room: &mut [u8]) -> usize {
        let queue = &mut self.sockets[*socket].to_send;
        let count = queue.len().min(room.len());
        room.iter_mut().zip(queue.drain(..count)).for_each(|(to, byte)| *to = byte);
        count
    }
    fn has_ended(&mut self, socket: &usize) -> bool {
        let socket = &self.sockets[*socket];
        socket.ended && socket.to_send.is_empty()
    }
    fn deliver(&mut self, socket: &usize, bytes: &[u8]) -> usize {
        let socket = &mut self.sockets[*socket];
        let count = bytes.len().min(socket.room);
        socket.room -= count;
        socket.received.extend(&bytes[..count]);
        count
    }
    fn owner(&mut self, socket: &usize) -> Owner {
        self.sockets[*socket].owner
    }
    fn ended(&mut self, socket: &usize) {
        assert!(!self.sockets[*socket].peer_ended, "the end is told once");
        self.sockets[*socket].peer_ended = true;
    }
    fn failed(&mut self, socket: &usize, failure: Failure) {
        self.sockets[*socket].failure = Some(failure);
    }
    fn datagram(&mut self, ends: Ends, marks: Marks, payload: &[u8]) -> bool {
        self.marks.push(marks);
        self.datagrams.push((ends, payload.to_vec()));
        ends.local.port() != 1
    }
    fn refused(&mut self, _ends: Ends) {
        self.refused += 1;
    }
    fn hears_packets(&self) -> bool {
        true
    }
    fn packet(&mut self, packet: &[u8]) {
        let length = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
        assert_eq!((packet[0] >> 4, packet.len()), (4, length), "a packet is shown whole");
        self.packets.push(packet[9]);
    }
}

/// A machine.
pub struct Node {
    pub stack: Stack<Machine>,
    pub machine: Machine,
}

pub fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number)
}

pub fn at(number: u8, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(address(number), port)
}

impl Node {
    pub fn new(number: u8) -> Self {
        let config = Config {
            hardware: [2, 0, 0, 0, 0, number],
            address: address(number),
            prefix: 24,
            gateway: address(254),
            mtu: 1500,
            budget: BUDGET,
        };
        Self { stack: Stack::new(config, [number.into(), 7], 0), machine: Machine::default() }
    }
    /// Calls `remote` from `port`, to send `bytes`; the socket.
    pub fn connect(&mut self, port: u16, remote: SocketAddrV4, bytes: &[u8], now: u64) -> usize {
        let socket = self.machine.socket(bytes, usize::MAX);
        let ends = Ends { local: at(self.number(), port), remote };
        let id = self.stack.connect(&mut self.machine, ends, socket, now).unwrap();
        self.machine.sockets[socket].id = id;
        socket
    }
    fn number(&self) -> u8 {
        self.stack.address().octets()[3]
    }
    pub fn pump(&mut self, socket: usize, now: u64) {
        if let Some(id) = self.machine.sockets[socket].id {
            self.stack.pump(&mut self.machine, id, now);
        }
    }
    pub fn receive(&mut self, frame: &[u8], now: u64) {
        self.stack.receive(&mut self.machine, frame, now);
    }
}

/// Faults of the wire for frames, in 256ths, and the longest delay in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub lost: u8,
    pub doubled: u8,
    pub damaged: u8,
    pub delay: u8,
}

/// Two machines on one wire.
pub struct World {
    pub nodes: [Node; 2],
    pub now: u64,
    faults: Faults,
    random: u64,
    /// By the time of arrival: to whom, and the frame.
    flight: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    sent: u64,
    last: [Vec<u8>; 2],
}

impl World {
    pub fn new(faults: Faults, seed: u64) -> Self {
        let nodes = [Node::new(1), Node::new(2)];
        Self {
            nodes,
            now: 0,
            faults,
            random: seed | 1,
            flight: BTreeMap::new(),
            sent: 0,
            last: Default::default(),
        }
    }

    /// The last frame that came to a machine.
    pub fn last_frame_to(&self, node: usize) -> &[u8] {
        &self.last[node]
    }

    /// xorshift64*.
    pub fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn happens(&mut self, chance: u8) -> bool {
        self.random() % 256 < u64::from(chance)
    }

    /// Puts the machines' frames onto the wire.
    fn collect(&mut self) {
        for from in 0..2 {
            for mut frame in core::mem::take(&mut self.nodes[from].machine.out) {
                if self.happens(self.faults.lost) {
                    continue;
                }
                // Frames that no checksum of ours covers are covered by the wire's own.
                let is_covered = frame[12..14] == [8, 0];
                if self.happens(self.faults.damaged) && is_covered {
                    let at = 14 + self.random() as usize % (frame.len() - 14);
                    frame[at] ^= 1 << (self.random() % 8);
                }
                let copies = 1 + usize::from(self.happens(self.faults.doubled));
                for _ in 0..copies {
                    let delay = 100_000 + self.random() % (u64::from(self.faults.delay) * MILLISECOND + 1);
                    self.flight.insert((self.now + delay, self.sent), (1 - from, frame.clone()));
                    self.sent += 1;
                }
            }
        }
    }

    /// Lets the next thing happen before `until`, if there is one.
    pub fn step(&mut self, until: u64) -> bool {
        self.collect();
        let arrival = self.flight.keys().next().map(|key| key.0);
        let deadline = self.nodes.iter().filter_map(|node| node.stack.deadline()).min();
        let next = [arrival, deadline].into_iter().flatten().min().filter(|&next| next <= until);
        let Some(next) = next else {
            self.now = until;
            return false;
        };
        self.now = self.now.max(next);
        while let Some(entry) = self.flight.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, frame) = entry.remove();
            self.nodes[to].receive(&frame, self.now);
            self.last[to] = frame;
        }
        for Node { stack, machine } in &mut self.nodes {
            stack.expire(machine, self.now);
            stack.validate();
        }
        true
    }

    /// Lets everything happen until this time has passed.
    pub fn run(&mut self, time: u64) {
        let until = self.now + time;
        while self.step(until) {}
    }

    /// Lets time pass until `holds`, for so long at most. Returns whether it does.
    pub fn run_until(&mut self, most: u64, mut holds: impl FnMut(&Self) -> bool) -> bool {
        let until = self.now + most;
        while !holds(self) {
            if !self.step(until) {
                return holds(self);
            }
        }
        true
    }
}
