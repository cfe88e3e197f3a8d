//! Frames that nobody should have sent.

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
    node.stack.send_datagram(&mut node.machine, ends, b"hello", 0);
    let mut frames = Vec::new();
    for _ in 0..40 {
        frames.extend(world.nodes[0].machine.out.iter().cloned());
        world.step(SECOND);
    }
    frames
}

/// What is done to a frame: bytes stored, and how many are left. Checksums are set right afterwards, so that it is read to its end.
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

/// Sets the checksums of IPv4 and of what it carries right.
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever frames come: nothing panics, every invariant holds, memory stays bounded, and a call is still answered.
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
