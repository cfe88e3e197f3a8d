//! Frames that no peer should have sent.

use proptest::prelude::*;
use std::vec::Vec;

use super::world::{BUDGET, Faults, MILLISECOND, Node, SECOND, World, at};

/// Frames of an honest exchange: calls, bytes, ends, ARP, UDP.
fn recorded() -> Vec<Vec<u8>> {
    let mut world = World::new(Faults::default(), 3);
    world.nodes[1].machine.listener = Some((80, 8));
    world.nodes[0].connect(4000, at(2, 80), &[5; 4000], 0);
    let node = &mut world.nodes[0];
    let ends = crate::Ends { local: at(1, 999), remote: at(2, 1) };
    node.stack.send_datagram(&mut node.machine, (ends, crate::Marks::USUAL), b"hello", 0);
    let mut frames = Vec::new();
    for _ in 0..40 {
        frames.extend(world.nodes[0].machine.out.iter().cloned());
        world.step(SECOND);
    }
    frames
}

/// Change of a frame: bytes stored, and how many are left. Checksums are set right afterwards, so
/// that the frame is read to its end.
#[derive(Clone, Debug)]
struct Change {
    frame: usize,
    stores: Vec<(usize, u8)>,
    length: usize,
    mends: bool,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let store = (0..120_usize, any::<u8>());
    let change = (
        0..40_usize,
        prop::collection::vec(store, 0..5),
        prop_oneof![Just(usize::MAX), 0..120_usize],
        any::<bool>(),
    );
    prop::collection::vec(
        change.prop_map(|(frame, stores, length, mends)| Change { frame, stores, length, mends }),
        1..60,
    )
}

fn sum(bytes: &[u8], mut sum: u32) -> u16 {
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Sets the checksums of IPv4 and of its payload right.
fn mend(frame: &mut [u8]) {
    let header = frame.get(14).map_or(0, |byte| usize::from(byte & 15) * 4);
    if frame.len() < 14 + header || header < 20 {
        return;
    }
    let (ip, payload) = frame[14..].split_at_mut(header);
    ip[10..12].fill(0);
    let value = sum(ip, 0);
    ip[10..12].copy_from_slice(&value.to_be_bytes());
    let (at, pseudo) = match ip[9] {
        6 => (16, 6),
        17 => (6, 17),
        1 => (2, 0),
        _ => return,
    };
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]])).saturating_sub(header).min(payload.len());
    let payload = &mut payload[..total];
    if payload.len() < at + 2 {
        return;
    }
    payload[at..at + 2].fill(0);
    let start = if pseudo == 0 { 0 } else { pseudo + total as u32 + u32::from(!sum(&ip[12..20], 0)) };
    let value = sum(payload, start);
    payload[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[test]
fn a_cookie_that_was_not_given_opens_nothing() {
    let mut world = World::new(Faults::default(), 1);
    world.nodes[1].machine.listener = Some((80, 1000));
    world.nodes[0].connect(1, at(2, 80), b"", 0);
    world.run(SECOND);
    let (now, accepted) = (world.now, world.nodes[1].machine.accepted.len());
    for port in 2..500 {
        world.nodes[0].connect(port, at(2, 80), b"", now);
    }
    let calls = core::mem::take(&mut world.nodes[0].machine.out);
    calls.iter().for_each(|frame| world.nodes[1].receive(frame, now));
    // The last answer is a cookie; what completes it is changed on its way.
    let answer = core::mem::take(&mut world.nodes[1].machine.out).pop().unwrap();
    world.nodes[0].receive(&answer, now);
    let honest = world.nodes[0].machine.out[0].clone();
    let resets = world.nodes[1].stack.counters().resets;
    for (at, bit) in [(42, 1), (43, 8), (45, 4), (45, 1), (38, 1), (41, 1)] {
        let mut forged = honest.clone();
        forged[at] ^= bit;
        mend(&mut forged);
        world.nodes[1].receive(&forged, now);
    }
    assert_eq!(world.nodes[1].machine.accepted.len(), accepted);
    assert_eq!(world.nodes[1].stack.counters().resets, resets + 6);
    // Nor does it open anything once it is too old.
    let mut late = Node::new(2);
    core::mem::swap(&mut late, &mut world.nodes[1]);
    late.receive(&honest, now + 130 * SECOND);
    assert_eq!(late.machine.accepted.len(), accepted);
    late.receive(&honest, now + 60 * SECOND);
    assert_eq!(late.machine.accepted.len(), accepted + 1, "in time it does");
}

/// Offsets in a frame of TCP: the sequence number, and the flags with those of FIN and RST.
const SEQ: usize = 38;
const FLAGS: usize = 47;
const FIN: u8 = 1;
const RST: u8 = 4;

/// `frame`, `offset` further on in the stream and with these flags besides; cut after `length`
/// bytes of its payload.
fn forged(frame: &[u8], offset: u32, flags: u8, length: usize) -> Vec<u8> {
    let mut forged = frame[..(54 + length).min(frame.len())].to_vec();
    let seq = u32::from_be_bytes(forged[SEQ..SEQ + 4].try_into().unwrap()).wrapping_add(offset);
    forged[SEQ..SEQ + 4].copy_from_slice(&seq.to_be_bytes());
    forged[FLAGS] |= flags;
    let total = (forged.len() - 14) as u16;
    forged[16..18].copy_from_slice(&total.to_be_bytes());
    mend(&mut forged);
    forged
}

/// A connection to node 1 whose caller has sent `count` bytes, each 7, in frames that are held
/// back; those.
fn held_back(count: usize) -> (World, usize, Vec<Vec<u8>>) {
    let mut world = World::new(Faults::default(), 1);
    world.nodes[1].machine.listener = Some((80, 8));
    let caller = world.nodes[0].connect(4000, at(2, 80), b"", 0);
    world.nodes[0].machine.sockets[caller].ended = false;
    world.run(SECOND);
    let socket = &mut world.nodes[0].machine.sockets[caller];
    (socket.to_send, socket.ended) = (core::iter::repeat_n(7, count).collect(), true);
    let now = world.now;
    world.nodes[0].pump(caller, now);
    let frames = core::mem::take(&mut world.nodes[0].machine.out);
    (world, caller, frames)
}

#[test]
fn who_guesses_numbers_breaks_nothing_off_and_ends_nothing() {
    let (mut world, caller, frames) = held_back(3000);
    let now = world.now;
    for (offset, flags) in [
        (1, RST),
        (1000, RST),
        (u32::MAX, RST),
        (1 << 20, RST),
        (1 << 20, FIN),
        (1 << 30, FIN),
        (u32::MAX - 5000, FIN),
        (1 << 31, FIN),
    ] {
        world.nodes[1].receive(&forged(&frames[0], offset, flags, 0), now);
        world.nodes[1].stack.validate();
    }
    assert_eq!(world.nodes[1].machine.sockets[0].failure, None);
    frames.iter().for_each(|frame| world.nodes[1].receive(frame, now));
    world.run(10 * SECOND);
    assert_eq!(world.nodes[1].machine.sockets[0].received, [7; 3000]);
    assert!(world.nodes[1].machine.sockets[0].peer_ended, "its own end is heard");
    assert_eq!(world.nodes[0].machine.sockets[caller].failure, None);
}

#[test]
fn nobody_speaks_for_this_machine_or_for_all() {
    let (mut world, _, frames) = held_back(100);
    let (now, ignored) = (world.now, world.nodes[1].stack.counters().ignored);
    let sources = [[10, 0, 0, 2], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4], [0; 4]];
    for source in sources {
        let mut forged = frames[0].clone();
        forged[26..30].copy_from_slice(&source);
        mend(&mut forged);
        world.nodes[1].receive(&forged, now);
    }
    assert_eq!(world.nodes[1].stack.counters().ignored, ignored + sources.len() as u64);
    assert!(world.nodes[1].machine.out.is_empty(), "nobody is answered");
}

#[test]
fn the_next_bytes_are_taken_however_many_gaps_there_are() {
    let (mut world, _, mut frames) = held_back(1400);
    let now = world.now;
    frames[0][FLAGS] &= !FIN;
    // Every other ten bytes come too early, more of them than are kept track of.
    let piece = |offset: u32| forged(&frames[0], offset, 0, 10);
    for number in 1..30 {
        world.nodes[1].receive(&piece(number * 20), now);
        world.nodes[1].stack.validate();
    }
    assert_eq!(world.nodes[1].machine.sockets[0].received.len(), 0);
    for number in 0..3 {
        world.nodes[1].receive(&piece(number * 5), now);
        world.nodes[1].stack.validate();
    }
    assert_eq!(world.nodes[1].machine.sockets[0].received.len(), 30);
    world.run(10 * SECOND);
    assert!(world.nodes[1].machine.sockets[0].received == [7; 1400]);
}

#[test]
fn bytes_that_wait_for_missing_ones_leave_memory_for_other_connections() {
    const STREAM: usize = 100_000;
    let mut world = World::new(Faults::default(), 1);
    world.nodes[1].machine.listener = Some((80, 1000));
    for port in 4000..4000 + 2 * (BUDGET / 65_536) as u16 {
        let caller = world.nodes[0].connect(port, at(2, 80), b"", 0);
        world.nodes[0].machine.sockets[caller].ended = false;
        world.run(SECOND);
        world.nodes[0].machine.sockets[caller].to_send = core::iter::repeat_n(7, 1400).collect();
        let now = world.now;
        world.nodes[0].pump(caller, now);
        let frames = core::mem::take(&mut world.nodes[0].machine.out);
        // All but the first bytes of the window.
        for offset in (1400..64_000).step_by(1400) {
            world.nodes[1].receive(&forged(&frames[0], offset, 0, 1400), now);
        }
        world.nodes[1].stack.validate();
        world.nodes[1].machine.out.clear();
    }
    let kept = world.nodes[1].stack.memory();
    assert!(kept <= BUDGET / 2 + 65_536, "{kept}");
    let sent: Vec<u8> = (0..STREAM).map(|at| at as u8).collect();
    let mut honest = Node::new(3);
    core::mem::swap(&mut honest, &mut world.nodes[0]);
    let now = world.now;
    world.nodes[0].connect(5000, at(2, 80), &sent, now);
    world.run(20 * SECOND);
    assert!(world.nodes[1].machine.sockets.last().is_some_and(|socket| socket.received == sent));
}

#[test]
fn who_breaks_off_is_heard_though_no_acknowledgement_came() {
    let (mut world, caller, frames) = held_back(3000);
    let now = world.now;
    frames.iter().for_each(|frame| world.nodes[1].receive(frame, now));
    // All arrived, no acknowledgement came back, and the time for one is over.
    world.nodes[1].machine.out.clear();
    let Node { stack, machine } = &mut world.nodes[0];
    stack.expire(machine, now + 2 * SECOND);
    machine.out.clear();
    machine.sockets[caller].owner = crate::Owner::Reset;
    world.nodes[0].pump(caller, now + 2 * SECOND);
    let reset = core::mem::take(&mut world.nodes[0].machine.out);
    reset.iter().for_each(|frame| world.nodes[1].receive(frame, now + 3 * SECOND));
    assert_eq!(world.nodes[1].machine.sockets[0].failure, Some(crate::Failure::Reset));
}

#[test]
fn a_late_reset_ends_no_wait_for_old_segments() {
    let (mut world, caller, _) = held_back(0);
    world.nodes[1].machine.sockets[0].ended = true;
    world.run(SECOND);
    let now = world.now;
    world.nodes[0].pump(caller, now);
    world.nodes[1].pump(0, now);
    world.run(SECOND);
    let waits = |world: &World| world.nodes.iter().position(|node| node.stack.connections() == 1);
    let node = waits(&world).expect("one of both waits");
    let id = world.nodes[node].machine.sockets[0].id.unwrap();
    assert_eq!(world.nodes[node].stack.state(id), Some(crate::State::TimeWait));
    // The last segment that the other one sent, as a reset that comes next.
    let last = world.last_frame_to(node).to_vec();
    let fin_length = u32::from(last[FLAGS] & FIN);
    let mut reset = forged(&last, fin_length, RST, 0);
    reset[FLAGS] &= !FIN;
    mend(&mut reset);
    let now = world.now;
    world.nodes[node].receive(&reset, now);
    assert_eq!(world.nodes[node].stack.state(id), Some(crate::State::TimeWait));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// After any frames: nothing panics, every invariant holds, memory stays bounded, and a call is
    /// still answered.
    #[test]
    fn no_frame_does_harm(changes in changes(), noise in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..10)) {
        let frames = recorded();
        let mut node = Node::new(2);
        node.machine.listener = Some((80, 1000));
        let mut now = 1;
        for change in &changes {
            let mut frame = frames[change.frame % frames.len()].clone();
            for &(at, byte) in &change.stores {
                let at = at % frame.len();
                frame[at] = byte;
            }
            frame.truncate(change.length);
            if change.mends {
                mend(&mut frame);
            }
            node.receive(&frame, now);
            node.stack.validate();
            now += MILLISECOND;
        }
        noise.iter().for_each(|frame| node.receive(frame, now));
        node.stack.expire(&mut node.machine, now + 100 * SECOND);
        node.stack.validate();
        prop_assert!(node.stack.memory() <= BUDGET);
        let mut world = World::new(Faults::default(), 5);
        world.now = now + 200 * SECOND;
        world.nodes[1] = node;
        let now = world.now;
        let caller = world.nodes[0].connect(5000, at(2, 80), b"after all", now);
        world.run(20 * SECOND);
        prop_assert!(world.nodes[0].machine.sockets[caller].connected);
    }
}
