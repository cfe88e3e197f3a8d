//! The column of network devices, and what only they can lie about: the header before a frame.

use freehold_virtio::FrameDevice;
use freehold_virtio::net::Net;
use freehold_virtqueue::DeviceStatus;
use freehold_virtqueue::model::{self, Fake, HostMemory};

use super::table::{End, Lie, Moment};
use super::{misreport, tell};

pub type Network = Net<HostMemory, Fake>;

/// VIRTIO_NET_F_MTU, VIRTIO_NET_F_MAC, VIRTIO_NET_F_MRG_RXBUF.
pub const FEATURES: u64 = 1 << 3 | 1 << 5 | 1 << 15;
/// `struct virtio_net_config`: mac, status, max_virtqueue_pairs, mtu.
pub const CONFIG: [u8; 12] = [0x52, 0x54, 0, 1, 2, 3, 1, 0, 1, 0, 0xdc, 5];
/// Bytes of `struct virtio_net_hdr`, and of a frame here with one.
pub const HEADER: usize = 12;
const LENGTH: usize = HEADER + 60;
/// Number of buffers of each kind.
const BUFFERS: usize = 64;
/// Bytes of a buffer.
const SIZE: u32 = 2048;

/// A frame of these bytes with the header of one that is in one buffer.
fn packet(byte: u8) -> [u8; LENGTH] {
    let mut packet = [byte; LENGTH];
    packet[..HEADER].fill(0);
    packet[10] = 1;
    packet
}

/// Returns the place of the false byte in the header, and its value.
fn header_lie(lie: Lie) -> Option<(usize, u8)> {
    match lie {
        Lie::HeaderFlags => Some((0, 1)),
        Lie::HeaderSegments => Some((1, 1)),
        Lie::HeaderNoBuffer => Some((10, 0)),
        Lie::HeaderBufferMissing => Some((10, 2)),
        Lie::HeaderTooManyBuffers => Some((10, BUFFERS as u8 + 1)),
        _ => None,
    }
}

/// The host takes every frame that was sent. Returns the last one.
fn take_all(fake: &Fake) -> Vec<u8> {
    let mut last = Vec::new();
    while let Some((head, parts)) = fake.take(1) {
        last = vec![0; parts[0].length as usize];
        model::read(parts[0].address, &mut last);
        fake.give(1, head.into(), 0);
    }
    last
}

/// Both ways once, with a host that answers. `None`: the device has failed.
fn talk(net: &Network, fake: &Fake, byte: u8) -> Option<()> {
    let mut room = [0; 1514];
    // Frames that a lie has put there come first.
    while net.receive(&mut room).ok()?.is_some() {}
    assert!(net.send(&[byte; 60]).ok()?, "there is room");
    assert_eq!(take_all(fake)[HEADER..], [byte; 60], "the host gets what was sent");
    if let Some((head, parts)) = fake.take(0) {
        model::write(parts[0].address, &packet(byte));
        fake.give(0, head.into(), LENGTH as u32);
        let count = net.receive(&mut room).ok()?;
        assert_eq!(count.map(|count| &room[..count]), Some(&[byte; 60][..]), "and its frame comes");
    }
    Some(())
}

pub fn cell(lie: Lie, moment: Moment) -> End {
    let fake = Fake::new(FEATURES);
    fake.set_config(&CONFIG);
    if moment == Moment::Attach {
        begin(&fake, lie);
        fake.on_queue(move |ring| {
            _ = tell(ring, lie, 0, 5) || lie == Lie::DoubleAnswer && tell(ring, Lie::IdTwice, 0, 5)
        });
    }
    let Ok(net) = Network::new(fake.clone(), model::device()) else { return End::Refused };
    if moment == Moment::Attach && (header_lie(lie).is_some() || lie == Lie::LengthBelowHeader) {
        // The first frame of all.
        told(&fake, lie);
    }
    if moment != Moment::Attach {
        assert_eq!(talk(&net, &fake, 1), Some(()));
        begin(&fake, lie);
        told(&fake, lie);
    }
    if moment == Moment::Detach {
        drop(net);
        let refused = lie == Lie::ResetRefused;
        assert_eq!(refused, fake.has_queue(0), "the device was reset");
        return if refused { End::Lost } else { End::Back };
    }
    if matches!(lie, Lie::NoAnswer | Lie::LateAnswer) {
        return unanswered(&net, &fake, lie);
    }
    let held = model::device().held();
    // A few times: the index of a ring meets every place of it.
    if (0..2 * BUFFERS).try_for_each(|byte| talk(&net, &fake, byte as u8)).is_some() {
        return End::Fine;
    }
    assert!(net.receive(&mut [0; 1514]).is_err() && net.send(&[1; 60]).is_err());
    assert!(fake.status().contains(DeviceStatus::FAILED));
    if fake.has_queue(0) {
        return End::Lost;
    }
    assert!(model::device().held() < held, "memory is back while the driver lives");
    End::Dead
}

/// The host takes nothing: all that there is room for is sent, and no more.
fn unanswered(net: &Network, fake: &Fake, lie: Lie) -> End {
    (0..BUFFERS).for_each(|_| assert_eq!(net.send(&[7; 60]), Ok(true)));
    assert_eq!((net.send(&[7; 60]), net.receive(&mut [0; 1514])), (Ok(false), Ok(None)));
    if lie == Lie::LateAnswer {
        assert_eq!(take_all(fake)[HEADER..], [7; 60]);
        assert_eq!(talk(net, fake, 8), Some(()));
    }
    End::Waits
}

/// The lie begins.
fn begin(fake: &Fake, lie: Lie) {
    match lie {
        // An address of many stations.
        Lie::ConfigImpossible => fake.set_config(&[0xff; 12]),
        // All but the address.
        Lie::ConfigNonsense => fake.set_config(&[&CONFIG[..6], &[0xff; 100]].concat()),
        Lie::ResetRefused => {
            misreport(fake, Lie::ResetRefused);
            // A used element that makes the driver want a reset.
            fake.give(1, 63, 0);
        }
        lie => _ = misreport(fake, lie),
    }
}

/// The lie is told in the ring of filled buffers, or in the buffer.
fn told(fake: &Fake, lie: Lie) {
    match lie {
        Lie::NoAnswer | Lie::LateAnswer | Lie::SpuriousInterrupts | Lie::ResetRefused => return,
        // The host has all receive buffers, and none to send.
        Lie::IdNotInFlight => return fake.with_ring(1, |ring| _ = tell(ring, lie, 0, 0)),
        _ => {}
    }
    let Some((head, parts)) = fake.take(0) else { return };
    let mut bytes = packet(3);
    if let Some((at, byte)) = header_lie(lie) {
        bytes[at] = byte;
    }
    model::write(parts[0].address, &bytes);
    // The truth that is one byte too short for the lie is all that was lent.
    let written = if lie == Lie::LengthTooLong { SIZE } else { LENGTH as u32 };
    let is_told = match lie {
        Lie::DoubleAnswer => fake.with_ring(0, |ring| tell(ring, Lie::IdTwice, head.into(), written)),
        Lie::LengthBelowHeader => {
            fake.give(0, head.into(), HEADER as u32 - 1);
            true
        }
        lie => fake.with_ring(0, |ring| tell(ring, lie, head.into(), written)),
    };
    if !is_told {
        fake.give(0, head.into(), written);
    }
}
