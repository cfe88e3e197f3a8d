//! Bytes that arrive, and the ends of connections.

use proptest::prelude::*;
use std::vec::Vec;

use super::world::{Faults, MILLISECOND, SECOND, World, at};
use crate::stack::EMBRYOS;
use crate::{Failure, Marks, Owner, State};

const QUIET: Faults = Faults { lost: 0, doubled: 0, damaged: 0, delay: 0 };

fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 7 + at / 251 + seed) as u8).collect()
}

fn faults() -> impl Strategy<Value = Faults> {
    (0..45_u8, 0..60_u8, 0..20_u8, 0..30_u8).prop_map(|(lost, doubled, damaged, delay)| Faults {
        lost,
        doubled,
        damaged,
        delay,
    })
}

/// One call from machine 0 to machine 1, with these bytes each way; the caller's socket.
fn call(world: &mut World, there: &[u8]) -> usize {
    world.nodes[1].machine.listener = Some((80, 8));
    let now = world.now;
    world.nodes[0].connect(4000, at(2, 80), there, now)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The wire may lose, double, damage and delay frames. Each byte comes once and in order, both
    /// ends learn that the other has ended, and nothing is left of the connection.
    #[test]
    fn a_stream_arrives(
        faults in faults(), seed: u64,
        (there, back) in (0..150_000_usize, 0..150_000_usize),
        rooms in prop::collection::vec(1..90_000_usize, 1..6),
    ) {
        let mut world = World::new(faults, seed);
        // A call may fail where the answers about addresses are lost.
        let caller = (0..10).find_map(|_| {
            let caller = call(&mut world, &bytes(there, 1));
            world.run_until(600 * SECOND, |world| {
                !world.nodes[1].machine.accepted.is_empty() || world.nodes[0].machine.sockets[caller].failure.is_some()
            });
            (!world.nodes[1].machine.accepted.is_empty()).then_some(caller)
        });
        let caller = caller.expect("ten calls do not fail");
        let served = world.nodes[1].machine.accepted[0];
        let socket = &mut world.nodes[1].machine.sockets[served];
        (socket.to_send, socket.ended) = (bytes(back, 2).into(), true);
        // The server takes some bytes now and some later.
        socket.room = 0;
        for room in rooms.iter().chain([&usize::MAX]) {
            world.nodes[1].machine.sockets[served].room = *room;
            let now = world.now;
            world.nodes[1].pump(served, now);
            world.run(1_500 * MILLISECOND);
        }
        let over = |world: &World| {
            world.nodes[0].machine.sockets[caller].peer_ended && world.nodes[1].machine.sockets[served].peer_ended
        };
        let done = world.run_until(3600 * SECOND, over);
        let looks = [(0, caller), (1, served)].map(|(node, socket)| {
            let node = &world.nodes[node];
            let socket = &node.machine.sockets[socket];
            (socket.failure, socket.peer_ended, socket.received.len(), socket.id.and_then(|id| node.stack.state(id)))
        });
        prop_assert!(done, "it hangs: {looks:?}");
        prop_assert!(world.nodes[1].machine.sockets[served].received == bytes(there, 1));
        prop_assert!(world.nodes[0].machine.sockets[caller].received == bytes(back, 2));
        // The last bytes may be sent again some times, two minutes apart.
        world.run(3600 * SECOND);
        for node in &world.nodes {
            prop_assert_eq!((node.stack.connections(), node.stack.memory()), (0, 0));
        }
    }
}

#[test]
fn bytes_flow_as_fast_as_the_wire() {
    let mut world = World::new(QUIET, 1);
    call(&mut world, &bytes(4_000_000, 0));
    assert!(world.run_until(60 * SECOND, |world| {
        world.nodes[1]
            .machine
            .accepted
            .first()
            .is_some_and(|&at| world.nodes[1].machine.sockets[at].received.len() == 4_000_000)
    }));
    // 0.1 ms one way, 256 KiB a round trip: 16 round trips, and some more at first.
    assert!(world.now < 10 * MILLISECOND, "{} ns", world.now);
}

#[test]
fn nobody_listens_and_nobody_is_there() {
    let mut world = World::new(QUIET, 1);
    let refused = world.nodes[0].connect(1, at(2, 81), b"", 0);
    let nowhere = world.nodes[0].connect(2, at(9, 81), b"", 0);
    world.run(SECOND);
    assert_eq!(world.nodes[0].machine.sockets[refused].failure, Some(Failure::Refused));
    world.run(3 * SECOND);
    assert_eq!(world.nodes[0].machine.sockets[nowhere].failure, Some(Failure::Unreachable));
    let mut world = World::new(Faults { lost: 255, ..QUIET }, 1);
    world.nodes[1].machine.listener = Some((80, 8));
    let mute = world.nodes[0].connect(1, at(2, 80), b"", 0);
    world.run(300 * SECOND);
    assert!(world.nodes[0].machine.sockets[mute].failure.is_some());
    assert_eq!(world.nodes[0].stack.connections(), 0);
}

#[test]
fn a_full_queue_makes_callers_wait() {
    let mut world = World::new(QUIET, 1);
    let caller = call(&mut world, b"hello");
    world.nodes[1].machine.listener = Some((80, 0));
    world.run(2 * SECOND);
    assert!(world.nodes[0].machine.sockets[caller].connected && world.nodes[1].machine.accepted.is_empty());
    world.nodes[1].machine.listener = Some((80, 1));
    assert!(world.run_until(10 * SECOND, |world| !world.nodes[1].machine.accepted.is_empty()));
    world.run(SECOND);
    assert_eq!(world.nodes[1].machine.sockets[0].received, b"hello");
}

#[test]
fn a_socket_that_is_broken_off_resets_its_peer() {
    for owner in [Owner::Reset, Owner::Deaf] {
        let mut world = World::new(QUIET, 1);
        let caller = call(&mut world, b"");
        world.nodes[0].machine.sockets[caller].ended = false;
        world.run(SECOND);
        world.nodes[1].machine.sockets[0].owner = owner;
        if owner == Owner::Deaf {
            // It hears of it where it sends.
            world.nodes[0].machine.sockets[caller].to_send = b"x".iter().copied().collect();
        }
        let now = world.now;
        world.nodes[0].pump(caller, now);
        world.nodes[1].pump(0, now);
        world.run(SECOND);
        assert_eq!(world.nodes[0].machine.sockets[caller].failure, Some(Failure::Reset));
        assert_eq!((world.nodes[0].stack.connections(), world.nodes[1].stack.connections()), (0, 0));
    }
}

#[test]
fn a_call_that_nobody_waits_for_is_given_up() {
    let mut world = World::new(Faults { lost: 255, ..QUIET }, 1);
    let caller = call(&mut world, b"");
    world.nodes[0].machine.sockets[caller].owner = Owner::Deaf;
    world.nodes[0].pump(caller, 1);
    assert_eq!(world.nodes[0].stack.connections(), 0);
}

#[test]
fn half_a_connection_goes_on() {
    let mut world = World::new(QUIET, 1);
    let caller = call(&mut world, b"question");
    world.run(SECOND);
    assert!(world.nodes[1].machine.sockets[0].peer_ended);
    let id = world.nodes[1].machine.sockets[0].id.unwrap();
    assert_eq!(world.nodes[1].stack.state(id), Some(State::CloseWait));
    let socket = &mut world.nodes[1].machine.sockets[0];
    (socket.to_send, socket.ended) = (bytes(100_000, 3).into(), true);
    let now = world.now;
    world.nodes[1].pump(0, now);
    world.run(SECOND);
    assert_eq!(world.nodes[0].machine.sockets[caller].received, bytes(100_000, 3));
    // The end that closed first waits for old segments.
    assert_eq!((world.nodes[0].stack.connections(), world.nodes[1].stack.connections()), (1, 0));
    world.run(61 * SECOND);
    assert_eq!(world.nodes[0].stack.connections(), 0);
}

#[test]
fn an_old_connection_makes_place_for_a_new_one() {
    let mut world = World::new(QUIET, 1);
    for _ in 0..3 {
        // Both ends the same: the first is in TIME-WAIT when the next calls.
        call(&mut world, b"x");
        world.run(SECOND);
        let socket = *world.nodes[1].machine.accepted.last().unwrap();
        world.nodes[1].machine.sockets[socket].ended = true;
        let now = world.now;
        world.nodes[1].pump(socket, now);
        world.run(SECOND);
    }
    assert_eq!(world.nodes[1].machine.accepted.len(), 3);
    assert!(
        world.nodes[1]
            .machine
            .sockets
            .iter()
            .all(|socket| socket.received == b"x" && socket.failure.is_none())
    );
}

#[test]
fn a_peer_that_never_reads_holds_no_more_than_two_buffers() {
    let mut world = World::new(QUIET, 1);
    let caller = call(&mut world, &bytes(3_000_000, 0));
    world.run_until(SECOND, |world| !world.nodes[1].machine.accepted.is_empty());
    world.nodes[1].machine.sockets[0].room = 0;
    world.run(3600 * SECOND);
    assert!(
        world.nodes.iter().all(|node| node.stack.memory() <= 512 << 10),
        "{}",
        world.nodes[1].stack.memory()
    );
    assert_eq!(world.nodes[0].machine.sockets[caller].failure, None, "the peer answers");
    // Its program gives up: the peer's program never will, and the rest does not stay for ever.
    world.nodes[0].machine.sockets[caller].owner = Owner::Deaf;
    let now = world.now;
    world.nodes[0].machine.sockets[caller].to_send.clear();
    world.nodes[0].pump(caller, now);
    world.run(3600 * SECOND);
    assert_eq!((world.nodes[0].stack.connections(), world.nodes[0].stack.memory()), (0, 0));
}

#[test]
fn a_window_that_opens_is_used_at_once() {
    let mut world = World::new(QUIET, 1);
    call(&mut world, &bytes(1_000_000, 0));
    world.run_until(SECOND, |world| !world.nodes[1].machine.accepted.is_empty());
    world.nodes[1].machine.sockets[0].room = 0;
    // By now the caller asks once in two minutes.
    world.run(1000 * SECOND);
    world.nodes[1].machine.sockets[0].room = usize::MAX;
    let now = world.now;
    world.nodes[1].pump(0, now);
    world.run(SECOND);
    assert_eq!(world.nodes[1].machine.sockets[0].received, bytes(1_000_000, 0));
}

#[test]
fn bytes_that_came_before_the_end_wait_for_their_program() {
    let mut world = World::new(QUIET, 1);
    world.nodes[1].machine.first_room = Some(0);
    let caller = call(&mut world, &bytes(5000, 0));
    world.run_until(SECOND, |world| !world.nodes[1].machine.accepted.is_empty());
    world.nodes[1].machine.sockets[0].ended = true;
    world.run(3600 * SECOND);
    assert!(world.nodes[0].machine.sockets[caller].peer_ended && world.nodes[0].stack.connections() == 0);
    assert!(!world.nodes[1].machine.sockets[0].peer_ended, "the end comes after the bytes");
    world.nodes[1].machine.sockets[0].room = usize::MAX;
    world.run(2 * SECOND);
    assert_eq!(world.nodes[1].machine.sockets[0].received, bytes(5000, 0));
    assert!(world.nodes[1].machine.sockets[0].peer_ended);
    assert_eq!((world.nodes[1].stack.connections(), world.nodes[1].stack.memory()), (0, 0));
}

#[test]
fn a_flood_of_calls_costs_no_memory_and_keeps_nobody_out() {
    let mut world = World::new(QUIET, 1);
    world.nodes[1].machine.listener = Some((80, 100));
    let first = world.nodes[0].connect(1, at(2, 80), b"", 0);
    // The address is known now: calls that follow do not wait for it.
    world.run(SECOND);
    let now = world.now;
    for port in 2..5000 {
        world.nodes[0].connect(port, at(2, 80), b"", now);
    }
    // Their calls arrive, and no answer does.
    let calls = core::mem::take(&mut world.nodes[0].machine.out);
    calls.iter().for_each(|frame| world.nodes[1].receive(frame, now));
    world.nodes[1].stack.validate();
    assert_eq!(
        world.nodes[1].stack.connections(),
        EMBRYOS + usize::from(world.nodes[0].machine.sockets[first].connected)
    );
    assert_eq!(world.nodes[1].stack.counters().cookies, 4998 - EMBRYOS as u64);
    assert_eq!(world.nodes[1].stack.memory(), 0);
    // Now the answers do: the queue takes a hundred, each of which works, and most by cookies.
    world.run(SECOND);
    assert_eq!(world.nodes[1].machine.accepted.len(), 100);
    assert!(world.nodes[1].machine.sockets.iter().all(|socket| socket.peer_ended));
}

#[test]
fn datagrams_arrive_or_are_refused() {
    let mut world = World::new(QUIET, 1);
    for (port, payload) in [(53, &b"question"[..]), (1, b"nobody"), (53, &[7; 1472])] {
        let node = &mut world.nodes[0];
        let ends = crate::Ends { local: at(1, 999), remote: at(2, port) };
        let marks = Marks { ttl: 7, tos: 0x2a };
        assert!(node.stack.send_datagram(&mut node.machine, (ends, marks), payload, 0));
        assert!(!node.stack.send_datagram(&mut node.machine, (ends, marks), &[0; 1473], 0));
    }
    world.run(SECOND);
    assert_eq!(world.nodes[1].machine.datagrams.len(), 3);
    assert_eq!(world.nodes[1].machine.datagrams[0].1, b"question");
    assert_eq!(world.nodes[1].machine.marks, [Marks { ttl: 7, tos: 0x2a }; 3]);
    assert_eq!(world.nodes[0].machine.refused, 1);
}

#[test]
fn each_allocation_may_fail() {
    let (_, count) = freehold_collections::inject::each_fails(|| -> Result<(), ()> {
        let mut world = World::new(QUIET, 1);
        world.nodes[1].machine.listener = Some((80, 8));
        let socket = world.nodes[0].machine.socket(&bytes(20_000, 0), usize::MAX);
        let ends = crate::Ends { local: at(1, 9), remote: at(2, 80) };
        let node = &mut world.nodes[0];
        let id = node.stack.connect(&mut node.machine, ends, socket, 0).map_err(|_| ())?;
        node.machine.sockets[socket].id = id;
        // Any other failure is a loss, which the next try makes good.
        assert!(world.run_until(100 * SECOND, |world| {
            world.nodes[1].machine.sockets.first().is_some_and(|socket| socket.received.len() == 20_000)
        }));
        Ok(())
    });
    assert!(count > 0);
}

/// Packets that a program made are sent as they are, and shown whole; of those of others none.
#[test]
fn packets_are_shown_to_the_machine_that_they_are_for() {
    let mut world = World::new(QUIET, 1);
    let mut packet = [0; 28];
    packet[..10].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 201]);
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum =
        packet[..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
    packet[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    let now = world.now;
    let node = &mut world.nodes[0];
    assert!(node.stack.send_packet(&mut node.machine, *at(2, 0).ip(), &packet, now));
    assert!(!node.stack.send_packet(&mut node.machine, *at(2, 0).ip(), &[0; 1501], now));
    world.run(SECOND);
    assert_eq!((&world.nodes[1].machine.packets[..], world.nodes[0].machine.packets.len()), (&[201][..], 0));
    // Its sums are wrong, it is a fragment, or it is another machine's.
    for (byte, value) in [(10, packet[10] ^ 1), (6, 0x20), (19, 3)] {
        let mut other = packet;
        other[byte] = value;
        let node = &mut world.nodes[0];
        assert!(node.stack.send_packet(&mut node.machine, *at(2, 0).ip(), &other, world.now));
        world.run(SECOND);
        assert_eq!(world.nodes[1].machine.packets.len(), 1);
    }
}
