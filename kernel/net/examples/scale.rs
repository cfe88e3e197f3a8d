//! The cost of a segment with few connections and with many: two stacks in one process, and no
//! wire.
//!
//! `cargo run --release -p freehold-net --example scale` prints a row for each number of
//! connections: nanoseconds per segment, made, read and answered, with connections taken in a
//! random order.
#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use freehold_net::{Config, Ends, Failure, Host, Id, Marks, Owner, Refusal, Stack};

/// Bytes that are sent back and forth in each measurement.
const BYTES: usize = 200_000;
/// Connections to one port of the server, so that there are ports for all of the caller's.
const PER_PORT: usize = 30_000;

/// A machine's programs: each connection has a byte to send, or none.
#[derive(Default)]
struct Programs {
    out: Vec<Vec<u8>>,
    to_send: Vec<bool>,
    ids: Vec<Id>,
    echoes: bool,
    received: usize,
}

impl Host for Programs {
    type Socket = usize;
    fn transmit(&mut self, frame: &[u8]) {
        self.out.push(frame.to_vec());
    }
    fn listens(&mut self, _: Ends) -> bool {
        self.echoes
    }
    fn accept(&mut self, _: Ends, id: Id) -> Result<usize, Refusal> {
        self.ids.push(id);
        self.to_send.push(false);
        Ok(self.ids.len() - 1)
    }
    fn connected(&mut self, _: &usize) {}
    fn has_bytes(&mut self, socket: &usize) -> bool {
        self.to_send[*socket]
    }
    fn fetch(&mut self, socket: &usize, room: &mut [u8]) -> usize {
        room[0] = 1;
        usize::from(std::mem::take(&mut self.to_send[*socket]))
    }
    fn has_ended(&mut self, _: &usize) -> bool {
        false
    }
    fn deliver(&mut self, socket: &usize, bytes: &[u8]) -> usize {
        self.to_send[*socket] = self.echoes;
        self.received += bytes.len();
        bytes.len()
    }
    fn owner(&mut self, _: &usize) -> Owner {
        Owner::Program
    }
    fn ended(&mut self, _: &usize) {}
    fn failed(&mut self, _: &usize, failure: Failure) {
        panic!("{failure:?}");
    }
    fn datagram(&mut self, _: Ends, _: Marks, _: &[u8]) -> bool {
        false
    }
    fn refused(&mut self, _: Ends) {}
}

type Machine = (Stack<Programs>, Programs);

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number)
}

fn machine(number: u8) -> Machine {
    let config = Config {
        hardware: [2, 0, 0, 0, 0, number],
        address: address(number),
        prefix: 24,
        gateway: address(9),
        mtu: 1500,
        budget: 1 << 30,
    };
    (Stack::new(config, [number.into(), 3], 0), Programs { echoes: number == 2, ..Programs::default() })
}

/// Delivers frames until there are no more; how many.
fn exchange(machines: &mut [Machine; 2], now: u64) -> usize {
    let mut count = 0;
    while machines.iter().any(|machine| !machine.1.out.is_empty()) {
        for from in 0..2 {
            for frame in std::mem::take(&mut machines[from].1.out) {
                let (stack, programs) = &mut machines[1 - from];
                stack.receive(programs, &frame, now);
                count += 1;
            }
        }
    }
    count
}

fn measure(connections: usize) -> f64 {
    let mut machines = [machine(1), machine(2)];
    for number in 0..connections {
        let port = |base: usize, number: usize| (base + number) as u16;
        let local = SocketAddrV4::new(address(1), port(1024, number % PER_PORT));
        let remote = SocketAddrV4::new(address(2), port(80, number / PER_PORT));
        let (stack, programs) = &mut machines[0];
        programs.to_send.push(false);
        let id = stack.connect(programs, Ends { local, remote }, number, 1).unwrap().unwrap();
        programs.ids.push(id);
        exchange(&mut machines, 1);
    }
    let (mut frames, mut random) = (0, 1_u64);
    let before = machines[0].1.received;
    let start = Instant::now();
    for step in 0..BYTES {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (random >> 33) as usize % connections;
        let (stack, programs) = &mut machines[0];
        programs.to_send[number] = true;
        stack.pump(programs, programs.ids[number], 2 + step as u64 * 1000);
        frames += exchange(&mut machines, 2 + step as u64 * 1000);
    }
    let taken = start.elapsed();
    assert_eq!(machines[0].1.received - before, BYTES, "each byte came back");
    taken.as_nanos() as f64 / frames as f64
}

fn main() {
    println!("connections   ns a segment");
    for connections in [10, 1_000, 10_000, 50_000] {
        let best = (0..3).map(|_| measure(connections)).fold(f64::INFINITY, f64::min);
        println!("{connections:11}   {best:12.0}");
    }
}
