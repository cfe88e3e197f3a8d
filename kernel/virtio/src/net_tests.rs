//! The network driver against hosts that tests play. The table of a device's lies is in
//! `tests/lies/`.

extern crate std;

use std::vec::Vec;

use freehold_bounce::Device;
use freehold_virtqueue::DeviceStatus;
use freehold_virtqueue::model::{self, Fake, HostMemory};
use proptest::prelude::*;

use crate::net::Net;
use crate::transport::Features;
use crate::{Failed, FrameCounts, FrameDevice, SetupError};

type TestNet = Net<HostMemory, Fake>;

/// As many buffers of each kind as the driver has, and bytes of one.
const BUFFERS: usize = 64;
const SIZE: usize = 2048;
const HEADER: usize = 12;
/// Room for the longest frame.
const ROOM: usize = 1514;
const ALL: Features = Features::NET_MAC.union(Features::NET_MTU).union(Features::NET_MERGEABLE);
const ADDRESS: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];

/// `struct virtio_net_config` up to `mtu`.
fn config(address: [u8; 6], mtu: u16) -> Vec<u8> {
    let mut bytes = address.to_vec();
    bytes.extend([1, 0, 1, 0]);
    bytes.extend(mtu.to_le_bytes());
    bytes
}

fn fake(features: Features) -> Fake {
    let fake = Fake::new(features.bits());
    fake.set_config(&config(ADDRESS, 1500));
    fake
}

fn net_of(fake: &Fake, device: Device<HostMemory>) -> TestNet {
    Net::new(fake.clone(), device).unwrap()
}

fn net(fake: &Fake) -> TestNet {
    net_of(fake, model::device())
}

/// A device whose memory is counted alone. Memory that it still has at the end goes back to the
/// memory that all tests share.
struct Counted(Device<HostMemory>);

impl Counted {
    fn new(quota: usize) -> Self {
        Self(model::limited_device(quota))
    }
    /// Bytes that it holds, and of those the ones that never come back.
    fn figures(&self) -> (usize, usize) {
        (self.0.held(), self.0.lost())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dma().shrink();
    }
}

/// A frame of `length` bytes that looks like no other with another `seed`.
fn frame(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + seed * 31 + at / 256) as u8).collect()
}

/// A header that says that its frame is in `buffers` buffers.
fn header(buffers: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[10..].copy_from_slice(&buffers.to_le_bytes());
    header
}

/// Writes `bytes` into the next receive buffers, as many bytes in each as `pieces` say; then gives
/// them back together.
fn fill(fake: &Fake, bytes: &[u8], pieces: &[usize]) {
    let (mut given, mut at) = (Vec::new(), 0);
    for &length in pieces {
        let (head, parts) = fake.take(0).expect("the driver lent a buffer");
        assert!(parts.len() == 1 && parts[0].writable && parts[0].length as usize == SIZE);
        model::write(parts[0].address, &bytes[at..at + length]);
        at += length;
        given.push((head, length));
    }
    assert_eq!(at, bytes.len());
    given.iter().for_each(|&(head, length)| fake.give(0, head.into(), length as u32));
}

/// A frame comes, in one buffer.
fn deliver(fake: &Fake, frame: &[u8]) {
    let bytes = [&header(1), frame].concat();
    fill(fake, &bytes, &[bytes.len()]);
}

/// A frame comes in pieces, header included.
fn deliver_in(fake: &Fake, frame: &[u8], pieces: &[usize]) {
    fill(fake, &[&header(pieces.len() as u16), frame].concat(), pieces);
}

/// A frame comes in as many buffers as it needs, all but the last full.
fn deliver_long(fake: &Fake, frame: &[u8]) -> usize {
    let bytes = HEADER + frame.len();
    let count = bytes.div_ceil(SIZE);
    let mut pieces = std::vec![SIZE; count];
    pieces[count - 1] = bytes - (count - 1) * SIZE;
    deliver_in(fake, frame, &pieces);
    count
}

/// Takes the next frame that was sent. The driver knows that it has gone once it is given back.
fn sent(fake: &Fake) -> Option<(u16, Vec<u8>)> {
    let (head, parts) = fake.take(1)?;
    assert!(parts.len() == 1 && !parts[0].writable);
    let mut bytes = std::vec![0; parts[0].length as usize];
    model::read(parts[0].address, &mut bytes);
    assert_eq!(bytes[..HEADER], [0; HEADER], "nothing is left to the device to compute");
    Some((head, bytes.split_off(HEADER)))
}

/// Takes all frames that were sent and gives them back.
fn drain(fake: &Fake) -> Vec<Vec<u8>> {
    let taken = core::iter::from_fn(|| sent(fake));
    taken
        .map(|(head, bytes)| {
            fake.give(1, head.into(), 0);
            bytes
        })
        .collect()
}

/// The next frame that came.
fn received(net: &TestNet) -> Option<Vec<u8>> {
    let mut room = [0; ROOM];
    net.receive(&mut room).unwrap().map(|length| room[..length].to_vec())
}

fn wants_interrupt(fake: &Fake, queue: usize) -> bool {
    fake.with_ring(queue, |ring| ring.wants_interrupt())
}

#[test]
fn frames_go_both_ways_whole_and_are_counted() {
    let fake = fake(ALL);
    let net = net(&fake);
    assert_eq!(received(&net), None);
    for (seed, length) in [14, 60, 999, 1514].into_iter().enumerate() {
        let frame = frame(seed, length);
        assert_eq!(net.send(&frame), Ok(true));
        assert_eq!(drain(&fake), std::slice::from_ref(&frame));
        deliver(&fake, &frame);
        assert_eq!(received(&net), Some(frame));
    }
    assert_eq!(received(&net), None);
    let (frames, bytes) = (4, 14 + 60 + 999 + 1514);
    let expected = FrameCounts {
        received_frames: frames,
        received_bytes: bytes,
        sent_frames: frames,
        sent_bytes: bytes,
        dropped: 0,
    };
    assert_eq!(net.counts(), expected);
    assert!(fake.notices(0) > 0 && fake.notices(1) >= 4);
}

#[test]
fn what_the_device_says_of_itself_is_believed_where_it_can_be() {
    let longest = |features, mtu| {
        let fake = Fake::new(features);
        fake.set_config(&config(ADDRESS, mtu));
        let net = net(&fake);
        (net.address(), net.mtu())
    };
    for (mtu, expected) in [(0, 68), (68, 68), (576, 576), (1500, 1500), (9000, 1500), (u16::MAX, 1500)] {
        assert_eq!(longest(ALL.bits(), mtu), (ADDRESS, expected));
    }
    let default = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
    assert_eq!(longest(0, 576), (default, 1500), "the device did not offer to say");
    for address in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
        let fake = fake(ALL);
        fake.set_config(&config(address, 1500));
        let net = Net::new(fake, model::device());
        assert!(matches!(net, Err(SetupError::Nonsense("address"))));
    }
}

#[test]
fn a_frame_in_many_buffers_is_put_together() {
    let fake = fake(ALL);
    let net = net(&fake);
    let mut room = std::vec![0; BUFFERS * SIZE];
    for buffers in 1..=BUFFERS {
        // As many bytes as fit, and one byte in the last.
        for length in [buffers * SIZE - HEADER, (buffers - 1) * SIZE + 14] {
            let frame = frame(buffers, length);
            assert_eq!(deliver_long(&fake, &frame), (HEADER + length).div_ceil(SIZE));
            room.fill(0);
            assert_eq!(net.receive(&mut room), Ok(Some(length)));
            assert!(room[..length] == frame);
            assert_eq!(net.receive(&mut room), Ok(None));
        }
    }
    assert_eq!(net.counts().dropped, 0);
}

#[test]
fn a_frame_may_be_cut_anywhere_also_right_behind_its_header() {
    let fake = fake(ALL);
    let net = net(&fake);
    let frame = frame(3, 300);
    for pieces in [&[12, 300][..], &[13, 1, 298], &[112, 0, 100, 100], &[12, 0, 0, 300]] {
        deliver_in(&fake, &frame, pieces);
        assert_eq!(received(&net), Some(frame.clone()), "{pieces:?}");
    }
}

#[test]
fn frames_too_short_or_too_long_are_dropped_counted_and_no_loss_to_the_next() {
    let fake = fake(ALL);
    let net = net(&fake);
    for length in [0, 13, 1515, 2036, 5000, SIZE * 60] {
        let before = net.counts();
        deliver_long(&fake, &frame(1, length));
        deliver(&fake, &frame(2, 100));
        let mut room = [0xaa; ROOM];
        assert_eq!(net.receive(&mut room), Ok(Some(100)), "{length}");
        assert!(room[..100] == frame(2, 100) && room[100..] == [0xaa; ROOM - 100]);
        let counts = net.counts();
        assert_eq!(
            (counts.dropped, counts.received_frames),
            (before.dropped + 1, before.received_frames + 1)
        );
    }
    for length in [0, 13, 1515] {
        let before = net.counts().dropped;
        assert_eq!(net.send(&frame(1, length)), Ok(true));
        assert_eq!(net.counts().dropped, before + 1);
        assert!(drain(&fake).is_empty());
    }
    assert_eq!(net.counts().sent_frames, 0);
}

#[test]
fn the_host_has_every_buffer_but_those_whose_frames_wait() {
    let fake = fake(ALL);
    let net = net(&fake);
    for _ in 0..3 {
        (0..BUFFERS).for_each(|seed| deliver(&fake, &frame(seed, 80)));
        assert!(fake.take(0).is_none(), "the driver has not looked");
        for seed in 0..BUFFERS {
            assert_eq!(received(&net), Some(frame(seed, 80)));
        }
        assert_eq!(received(&net), None);
    }
    deliver(&fake, &frame(1, 80));
    let notices = fake.notices(0);
    assert!(received(&net).is_some());
    assert_eq!(fake.notices(0), notices + 1, "the host hears of the buffer");
    assert_eq!(received(&net), None);
    assert_eq!(fake.notices(0), notices + 1, "and of nothing else");
}

#[test]
fn interrupts_for_what_was_sent_are_asked_for_only_when_there_is_no_room() {
    let fake = fake(ALL);
    let net = net(&fake);
    assert!(wants_interrupt(&fake, 0) && !wants_interrupt(&fake, 1));
    let frames: Vec<_> = (0..BUFFERS).map(|seed| frame(seed, 60 + seed)).collect();
    for frame in &frames {
        assert_eq!(net.send(frame), Ok(true));
    }
    assert!(!wants_interrupt(&fake, 1), "nobody was refused");
    assert_eq!(net.send(&frames[0]), Ok(false));
    assert_eq!(net.counts().sent_frames, BUFFERS as u64, "what was refused is not counted");
    assert!(wants_interrupt(&fake, 1));
    // One buffer comes back, and another sender has it at once: the one that was refused still gets
    // an interrupt.
    let (head, bytes) = sent(&fake).unwrap();
    assert_eq!(bytes, frames[0]);
    fake.give(1, head.into(), 0);
    assert_eq!(net.send(&frames[0]), Ok(true));
    assert!(wants_interrupt(&fake, 1));
    assert_eq!(net.send(&frames[0]), Ok(false));
    assert_eq!(drain(&fake), [&frames[1..], &frames[..1]].concat());
    assert_eq!(net.send(&frames[0]), Ok(true));
    assert!(!wants_interrupt(&fake, 1), "there is room in plenty");
}

/// The last look before `send` says that there is no room finds buffers that came after the one
/// before.
#[test]
fn room_that_is_made_while_an_interrupt_is_asked_for_is_found() {
    let fake = fake(ALL);
    let net = net(&fake);
    for seed in 0..BUFFERS {
        assert_eq!(net.send(&frame(seed, 60)), Ok(true));
    }
    let host = fake.clone();
    // Gives a buffer back as soon as interrupts are on, which is too late for one.
    model::meddle(Some(std::boxed::Box::new(move || {
        if wants_interrupt(&host, 1)
            && let Some((head, _)) = host.take(1)
        {
            host.give(1, head.into(), 0);
        }
    })));
    let result = net.send(&frame(1, 60));
    model::meddle(None);
    assert_eq!(result, Ok(true));
}

#[test]
fn thousands_of_frames_wrap_every_index() {
    let fake = fake(ALL);
    let net = net(&fake);
    let mut room = [0; 5000];
    for round in 0..1500 {
        // In pieces that do not divide the rings; more than 2^16 buffers of each kind in the end.
        let batch: Vec<_> = (0..47).map(|seed| frame(round * 47 + seed, 14 + (round + seed) % 50)).collect();
        for frame in &batch {
            assert_eq!(net.send(frame), Ok(true));
        }
        assert!(drain(&fake) == batch);
        for frame in &batch[..40] {
            deliver(&fake, frame);
        }
        let long = frame(round, 4100 + round % 700);
        assert_eq!(deliver_long(&fake, &long), 3);
        for frame in batch[..40].iter().chain([&long]) {
            assert_eq!(net.receive(&mut room), Ok(Some(frame.len())));
            assert!(room[..frame.len()] == **frame);
        }
    }
    assert_eq!(net.receive(&mut room), Ok(None));
    let counts = net.counts();
    assert_eq!((counts.sent_frames, counts.received_frames, counts.dropped), (1500 * 47, 1500 * 41, 0));
}

#[test]
fn one_buffer_is_one_frame_where_buffers_are_not_merged() {
    let of = |buffers: u16| {
        let fake = fake(Features::NET_MAC);
        let net = net(&fake);
        let bytes = [&header(buffers)[..], &frame(1, 60)].concat();
        (0..2).for_each(|_| fill(&fake, &bytes, &[bytes.len()]));
        let results = [(); 2].map(|()| net.receive(&mut [0; ROOM]));
        (results, fake.status().contains(DeviceStatus::FAILED))
    };
    assert_eq!(of(1), ([Ok(Some(60)); 2], false));
    assert_eq!(of(0), ([Ok(Some(60)); 2], false), "as old hosts have it");
    assert_eq!(of(2), ([Err(Failed); 2], true));
}

#[test]
fn a_host_may_have_looked_at_the_checksum() {
    let fake = fake(ALL);
    let net = net(&fake);
    let mut bytes = [&header(1)[..], &frame(1, 60)].concat();
    bytes[0] = 2;
    fill(&fake, &bytes, &[bytes.len()]);
    assert_eq!(received(&net), Some(frame(1, 60)));
}

/// Returns protocol violations of a device: bytes of the buffer, and the length that it claims.
fn lies() -> Vec<(Vec<u8>, u32)> {
    let honest = [&header(1)[..], &frame(1, 60)].concat();
    let with = |at: usize, byte: u8| {
        let mut bytes = honest.clone();
        bytes[at] = byte;
        (bytes, 72)
    };
    let mut lies: Vec<_> = [0, 1, 11, 2049, u32::MAX].map(|length| (honest.clone(), length)).into();
    // Flags, kinds of segments, numbers of buffers: none, more than came, more than there are.
    lies.extend([1, 3, 4, 0x82].map(|flags| with(0, flags)));
    lies.extend([1, 3, 4, 5, 0x80].map(|segments| with(1, segments)));
    lies.extend([with(10, 0), with(10, 2), with(10, 64), with(10, 65), with(11, 0xff)]);
    lies
}

#[test]
fn a_device_that_lies_is_reset_and_fails_from_then_on() {
    let device = Counted::new(1 << 20);
    for (bytes, claimed) in lies() {
        let fake = fake(ALL);
        let net = net_of(&fake, device.0);
        deliver(&fake, &frame(1, 60));
        assert!(received(&net).is_some() && net.send(&frame(1, 60)) == Ok(true));
        let (head, parts) = fake.take(0).unwrap();
        model::write(parts[0].address, &bytes);
        fake.give(0, head.into(), claimed);
        for _ in 0..2 {
            assert_eq!(net.receive(&mut [0; ROOM]), Err(Failed), "{claimed} {:?}", &bytes[..HEADER]);
        }
        assert_eq!(net.send(&frame(1, 60)), Err(Failed));
        assert!(fake.status().contains(DeviceStatus::FAILED) && !fake.has_queue(0));
        assert_eq!(device.figures(), (0, 0), "all memory is back while the driver lives");
        assert_eq!(net.counts().received_frames, 1);
    }
}

#[test]
fn a_device_that_gives_back_what_it_did_not_have_fails() {
    for (queue, head) in [(0, 64), (0, u32::MAX), (0, 0x1_0000), (1, 0), (1, 63), (1, 64)] {
        let fake = fake(ALL);
        let net = net(&fake);
        fake.give(queue, head, 72);
        // Each side looks at its own ring.
        let results = (net.receive(&mut [0; ROOM]), net.send(&frame(1, 60)));
        assert_eq!(results.1, Err(Failed), "{queue} {head}");
        assert_eq!(results.0, if queue == 0 { Err(Failed) } else { Ok(None) });
        assert_eq!(net.receive(&mut [0; ROOM]), Err(Failed));
    }
}

#[test]
fn whatever_ends_the_driver_its_memory_is_back() {
    let device = Counted::new(1 << 20);
    let with = |play: &dyn Fn(&Fake, &TestNet)| {
        let fake = fake(ALL);
        let net = net_of(&fake, device.0);
        let held = device.0.held();
        assert!(held >= 2 * BUFFERS * SIZE);
        play(&fake, &net);
        assert!(device.0.held() == held || device.0.held() == 0, "nothing is taken after start-up");
        drop(net);
        assert!(!fake.has_queue(0) && !fake.has_queue(1), "the device was reset");
        assert_eq!(device.figures(), (0, 0));
    };
    with(&|_, _| {});
    with(&|fake, net| {
        (0..BUFFERS).for_each(|seed| assert_eq!(net.send(&frame(seed, 100)), Ok(true)));
        (0..10).for_each(|_| deliver(fake, &frame(1, 100)));
        assert!(received(net).is_some());
    });
    with(&|fake, net| {
        fake.give(1, 77, 0);
        assert_eq!(net.send(&frame(1, 100)), Err(Failed));
    });
    // One that does not start takes nothing: too small a queue, too little memory.
    let small = fake(ALL);
    small.set_queue_size(63);
    assert!(Net::new(small, device.0).is_err());
    assert_eq!(device.figures(), (0, 0));
    // No memory for the last buffer; for the first ring; for the second, when the device knows the
    // first.
    let whole = {
        let _net = net_of(&fake(ALL), device.0);
        device.0.held()
    };
    for (missing, of_buffers) in [(5, true), (4, false), (3, false), (2, false), (1, false)] {
        let poor = Counted::new(whole - missing * 4096);
        let (fake, of) = (fake(ALL), |error| matches!(error, SetupError::Memory(_)));
        assert_eq!(Net::new(fake.clone(), poor.0).err().map(of), Some(of_buffers), "{missing} pages");
        assert!(!fake.has_queue(0), "the device was reset");
        assert_eq!(poor.figures(), (0, 0), "{missing} pages");
    }
}

#[test]
fn a_device_that_does_not_confirm_its_reset_keeps_what_it_has_and_no_more() {
    let device = Counted::new(1 << 20);
    let fake = fake(ALL);
    let net = net_of(&fake, device.0);
    assert_eq!(net.send(&frame(1, 60)), Ok(true));
    fake.refuse_resets();
    fake.give(1, 77, 0);
    assert_eq!(net.send(&frame(1, 100)), Err(Failed));
    drop(net);
    let (held, lost) = device.figures();
    assert!(held == lost && lost >= (BUFFERS + 1) * SIZE, "{held} bytes are held, {lost} lost");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A host may do anything to used rings and headers. A received frame is no longer than its
    /// room, and nothing panics.
    #[test]
    fn a_hostile_network_never_panics(
        ops in proptest::collection::vec((0usize..6, any::<u32>(), 0u32..2100, any::<[u8; 3]>()), 1..80),
    ) {
        let fake = fake(ALL);
        let net = net(&fake);
        for (action, head, written, bytes) in ops {
            match action {
                0 => fake.give((head % 2) as usize, head % 70, written),
                1 => fake.give((head % 2) as usize, head, head),
                // Mostly nearly right, so that the driver comes far.
                2..=4 => if let Some((head, parts)) = fake.take(0) {
                    let mut header = header(u16::from(bytes[0] % 4));
                    header[usize::from(bytes[1] % 2)] = bytes[2] & 2;
                    model::write(parts[0].address, &header);
                    fake.give(0, head.into(), written);
                },
                _ => if let Some((head, _)) = fake.take(1) {
                    fake.give(1, head.into(), written);
                },
            }
            let mut room = [0; ROOM];
            if let Ok(Some(length)) = net.receive(&mut room) {
                prop_assert!((14..=ROOM).contains(&length));
            }
            let _ = net.send(&room[..100]);
        }
    }
}
