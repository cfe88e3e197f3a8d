//! A network whose other end is a TCP/IP stack in the test's memory.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::sync::atomic::{AtomicBool, Ordering};
use std::boxed::Box;
use std::collections::VecDeque;
use std::string::String;
use std::sync::Mutex;
use std::vec::Vec;

use freehold_collections::{Arc, reserve};
use freehold_net::{Config, Ends, Failure, Host, Id, Marks, Owner, Refusal, Stack};
use freehold_virtio::{Failed, FrameCounts, FrameDevice};
use syscalls::Sysno;

use super::machine::{Setup, on_machine};
use super::program::Program;
use crate::socket::attachment::Attachment;
use crate::sync::WaitQueue;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Ports of the peer: an echo server, a port without a listener, and a port at which a datagram
/// makes the peer call port 80.
const ECHO: u16 = 7;
const CLOSED: u16 = 9;
const CALLS: u16 = 8;
const TCP: u64 = 1;
const UDP: u64 = 2;
const INET: u64 = 2;
const NONBLOCK: u64 = 0o4000;

/// The machine at the other end, which returns the bytes that it gets.
#[derive(Default)]
struct Peer {
    out: VecDeque<Vec<u8>>,
    echoes: Vec<VecDeque<u8>>,
    ended: Vec<bool>,
    ids: Vec<Id>,
    /// Whether a test requested a call from the peer.
    calls: bool,
    datagrams: Vec<(Ends, Vec<u8>)>,
}

impl Peer {
    fn socket(&mut self) -> usize {
        self.echoes.push(VecDeque::new());
        self.ended.push(false);
        self.echoes.len() - 1
    }
}

impl Host for Peer {
    type Socket = usize;
    fn transmit(&mut self, frame: &[u8]) {
        self.out.push_back(frame.to_vec());
    }
    fn listens(&mut self, ends: Ends) -> bool {
        ends.local.port() == ECHO
    }
    fn accept(&mut self, _: Ends, id: Id) -> Result<usize, Refusal> {
        self.ids.push(id);
        Ok(self.socket())
    }
    fn connected(&mut self, _: &usize) {}
    fn has_bytes(&mut self, socket: &usize) -> bool {
        !self.echoes[*socket].is_empty()
    }
    fn fetch(&mut self, socket: &usize, room: &mut [u8]) -> usize {
        let count = room.len().min(self.echoes[*socket].len());
        room.iter_mut().zip(self.echoes[*socket].drain(..count)).for_each(|(to, byte)| *to = byte);
        count
    }
    fn has_ended(&mut self, socket: &usize) -> bool {
        self.ended[*socket] && self.echoes[*socket].is_empty()
    }
    fn deliver(&mut self, socket: &usize, bytes: &[u8]) -> usize {
        self.echoes[*socket].extend(bytes);
        bytes.len()
    }
    fn owner(&mut self, _: &usize) -> Owner {
        Owner::Program
    }
    fn ended(&mut self, socket: &usize) {
        self.ended[*socket] = true;
    }
    fn failed(&mut self, _: &usize, _: Failure) {}
    fn datagram(&mut self, ends: Ends, _: Marks, payload: &[u8]) -> bool {
        self.calls |= ends.local.port() == CALLS;
        if ends.local.port() == ECHO {
            self.datagrams.push((ends, payload.to_vec()));
        }
        ends.local.port() != CLOSED
    }
    fn refused(&mut self, _: Ends) {}
}

/// The connection: a device for the kernel, and the peer.
struct Cable {
    end: Mutex<(Stack<Peer>, Peer)>,
    changed: Arc<WaitQueue>,
    interrupted: &'static AtomicBool,
}

impl Cable {
    fn new() -> &'static Self {
        let config = Config {
            hardware: [2, 0, 0, 0, 0, 2],
            address: PEER,
            prefix: 24,
            gateway: OWN,
            mtu: 1500,
            budget: 1 << 20,
        };
        Box::leak(Box::new(Self {
            end: Mutex::new((Stack::new(config, [3, 4], 0), Peer::default())),
            changed: reserve::arc(WaitQueue::new()),
            interrupted: Box::leak(Box::new(AtomicBool::new(false))),
        }))
    }
}

impl FrameDevice for &'static Cable {
    fn address(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, 1]
    }
    fn mtu(&self) -> usize {
        1500
    }
    fn send(&self, frame: &[u8]) -> Result<bool, Failed> {
        let now = crate::time::now();
        let (stack, peer) = &mut *self.end.lock().unwrap();
        stack.receive(peer, frame, now);
        for id in peer.ids.clone() {
            stack.pump(peer, id, now);
        }
        for (ends, payload) in core::mem::take(&mut peer.datagrams) {
            stack.send_datagram(peer, (ends, Marks::USUAL), &payload, now);
        }
        if core::mem::take(&mut peer.calls) {
            let ends = Ends { local: SocketAddrV4::new(PEER, 5000), remote: SocketAddrV4::new(OWN, 80) };
            let socket = peer.socket();
            let id = stack.connect(peer, ends, socket, now).unwrap().unwrap();
            peer.ids.push(id);
        }
        self.interrupted.store(true, Ordering::SeqCst);
        self.changed.wake_all();
        Ok(true)
    }
    fn receive(&self, frame: &mut [u8]) -> Result<Option<usize>, Failed> {
        let (_, peer) = &mut *self.end.lock().unwrap();
        let Some(next) = peer.out.pop_front() else { return Ok(None) };
        frame[..next.len()].copy_from_slice(&next);
        Ok(Some(next.len()))
    }
    fn counts(&self) -> FrameCounts {
        FrameCounts { received_frames: 5, ..FrameCounts::default() }
    }
}

fn attached() -> Attachment {
    let cable = Cable::new();
    Attachment {
        device: reserve::arc(cable),
        changed: cable.changed.clone(),
        interrupted: cable.interrupted,
        address: OWN,
        prefix: 24,
        gateway: PEER,
    }
}

fn on_a_network() -> Setup {
    Setup { network: Some(attached), ..Setup::default() }
}

/// struct sockaddr_in.
fn name(p: &mut Program, ip: Ipv4Addr, port: u16) -> u64 {
    let mut bytes = [0; 16];
    bytes[0] = INET as u8;
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&ip.octets());
    p.put(&bytes)
}

fn send(p: &mut Program, fd: u64, bytes: &[u8]) -> i64 {
    let room = p.put(bytes);
    p.call(Sysno::write, &[fd, room, bytes.len() as u64])
}

/// Receives exactly `count` bytes.
fn receive(p: &mut Program, fd: u64, count: usize) -> Vec<u8> {
    const WAITALL: u64 = 0x100;
    let room = p.room(count);
    let got = p.must(Sysno::recvfrom, &[fd, room, count as u64, WAITALL, 0, 0]);
    p.load(room, got as usize)
}

/// Returns SO_ERROR.
fn error_of(p: &mut Program, fd: u64) -> u32 {
    let (value, length) = (p.room(4), p.put(&4_u32.to_ne_bytes()));
    p.must(Sysno::getsockopt, &[fd, 1, 4, value, length]);
    p.load_u32(value)
}

on_machine! {
    /// A program connects: bytes are transferred in both directions, and each direction ends.
    a_connection_carries_bytes_both_ways, on_a_network(), |p| {
        let fd = p.must(Sysno::socket, &[INET, TCP, 0]);
        let to = name(p, PEER, ECHO);
        p.must(Sysno::connect, &[fd, to, 16]);
        assert_eq!(p.call(Sysno::connect, &[fd, to, 16]), -106);
        assert_eq!(send(p, fd, b"hello"), 5);
        assert_eq!(receive(p, fd, 5), b"hello");
        let (own, length) = (p.room(16), p.put(&16_u32.to_ne_bytes()));
        p.must(Sysno::getsockname, &[fd, own, length]);
        assert_eq!(p.load(own, 16)[4..8], OWN.octets());
        let many = (0..100_000).map(|at| ((at / 256) ^ at) as u8).collect::<Vec<_>>();
        for part in many.chunks(10_000) {
            assert_eq!(send(p, fd, part), 10_000);
            assert!(receive(p, fd, 10_000) == part);
        }
        let state = p.read_file("/proc/net/tcp").unwrap();
        assert!(String::from_utf8(state).unwrap().contains("0200000A:0007 01"));
        p.must(Sysno::shutdown, &[fd, 1]);
        assert_eq!(receive(p, fd, 1), b"", "the peer ends where we have");
        p.must(Sysno::close, &[fd]);
        0
    }
}

on_machine! {
    /// The peer connects: the connection waits in the listener's queue.
    a_listener_is_called, on_a_network(), |p| {
        let listener = p.must(Sysno::socket, &[INET, TCP, 0]);
        let (any, calls) = (name(p, Ipv4Addr::UNSPECIFIED, 80), name(p, PEER, CALLS));
        p.must(Sysno::bind, &[listener, any, 16]);
        p.must(Sysno::listen, &[listener, 5]);
        let datagram = p.must(Sysno::socket, &[INET, UDP, 0]);
        let room = p.put(b"call");
        p.must(Sysno::sendto, &[datagram, room, 4, 0, calls, 16]);
        let (from, length) = (p.room(16), p.put(&16_u32.to_ne_bytes()));
        let fd = p.must(Sysno::accept, &[listener, from, length]);
        assert_eq!(p.load(from, 16)[2..8], [5000_u16.to_be_bytes().as_slice(), &PEER.octets()].concat());
        assert_eq!(send(p, fd, b"who"), 3);
        assert_eq!(receive(p, fd, 3), b"who");
        // Nothing remains of it: the peer gets the reset, and the end.
        p.must(Sysno::close, &[fd]);
        p.must(Sysno::close, &[listener]);
        0
    }
}

on_machine! {
    /// A refused connection is reported, whether or not the program waits. The next connect(2) is a
    /// new call.
    a_call_is_refused, on_a_network(), |p| {
        let (closed, echo) = (name(p, PEER, CLOSED), name(p, PEER, ECHO));
        let fd = p.must(Sysno::socket, &[INET, TCP, 0]);
        assert_eq!(p.call(Sysno::connect, &[fd, closed, 16]), -111);
        p.must(Sysno::connect, &[fd, echo, 16]);
        let fd = p.must(Sysno::socket, &[INET, TCP | NONBLOCK, 0]);
        assert_eq!(p.call(Sysno::connect, &[fd, closed, 16]), -115);
        let wait = p.put(&[fd.to_ne_bytes()[..4].to_vec(), std::vec![4, 0, 0, 0]].concat());
        assert_eq!(p.must(Sysno::poll, &[wait, 1, u64::MAX]), 1);
        assert_eq!(p.load(wait, 8)[6], 4 | 8 | 16, "POLLOUT, POLLERR, POLLHUP");
        assert_eq!([error_of(p, fd), error_of(p, fd)], [111, 0]);
        assert_eq!(p.call(Sysno::connect, &[fd, echo, 16]), -103);
        assert_eq!(p.call(Sysno::connect, &[fd, echo, 16]), -115);
        // Both ends are those of another connection.
        let own = name(p, Ipv4Addr::UNSPECIFIED, 4444);
        for expected in [0, -99] {
            let (fd, on) = (p.must(Sysno::socket, &[INET, TCP, 0]), p.put(&1_u32.to_ne_bytes()));
            p.must(Sysno::setsockopt, &[fd, 1, 2, on, 4]);
            p.must(Sysno::bind, &[fd, own, 16]);
            assert_eq!(p.call(Sysno::connect, &[fd, echo, 16]), expected);
        }
        let nowhere = name(p, Ipv4Addr::new(224, 0, 0, 1), 1);
        let fd = p.must(Sysno::socket, &[INET, TCP, 0]);
        assert_eq!(p.call(Sysno::connect, &[fd, nowhere, 16]), -101);
        0
    }
}

on_machine! {
    /// Datagrams return from their target. If the port has no listener, the error is reported.
    datagrams_come_back, on_a_network(), |p| {
        let fd = p.must(Sysno::socket, &[INET, UDP, 0]);
        let (echo, closed) = (name(p, PEER, ECHO), name(p, PEER, CLOSED));
        let room = p.put(&[5; 1473]);
        assert_eq!(p.call(Sysno::sendto, &[fd, room, 1473, 0, echo, 16]), -90, "it does not fit into a packet");
        p.must(Sysno::sendto, &[fd, room, 1472, 0, echo, 16]);
        let (from, length, back) = (p.room(16), p.put(&16_u32.to_ne_bytes()), p.room(2000));
        assert_eq!(p.must(Sysno::recvfrom, &[fd, back, 2000, 0, from, length]), 1472);
        assert_eq!(p.load(from, 8), [&[2, 0, 0, 7][..], &PEER.octets()].concat());
        p.must(Sysno::connect, &[fd, closed, 16]);
        assert_eq!(send(p, fd, b"x"), 1);
        assert_eq!(p.call(Sysno::recvfrom, &[fd, back, 2000, 0, 0, 0]), -111);
        0
    }
}

on_machine! {
    /// Lists and files describe the device.
    the_device_is_listed, on_a_network(), |p| {
        let text = |p: &mut Program, file: &str| String::from_utf8(p.read_file(file).unwrap()).unwrap();
        assert!(text(p, "/proc/net/dev").contains("  eth0:       0       5 "));
        assert!(text(p, "/proc/net/route").contains("eth0\t00000000\t0200000A\t0003"));
        assert_eq!(text(p, "/sys/class/net/eth0/address"), "02:00:00:00:00:01\n");
        assert_eq!(text(p, "/sys/class/net/eth0/statistics/rx_packets"), "5\n");
        let fd = p.must(Sysno::socket, &[INET, UDP, 0]);
        let mut request = [0; 40];
        request[..4].copy_from_slice(b"eth0");
        for (code, at, expected) in [
            (0x8933, 0, &[2, 0, 0, 0][..]),
            (0x8915, 4, &OWN.octets()),
            (0x891b, 4, &[255, 255, 255, 0]),
            (0x8919, 4, &[10, 0, 0, 255]),
            (0x8927, 2, &[2, 0, 0, 0, 0, 1]),
        ] {
            let asked = p.put(&request);
            p.must(Sysno::ioctl, &[fd, code, asked]);
            assert_eq!(&p.load(asked, 40)[16 + at..][..expected.len()], expected, "{code:x}");
        }
        0
    }
}
