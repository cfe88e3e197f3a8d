//! The column of consoles.

use freehold_virtio::ByteStream;
use freehold_virtio::console::{Buffers, Console};
use freehold_virtio::platform::Registers;
use freehold_virtqueue::DeviceStatus;
use freehold_virtqueue::model::{self, Fake, HostMemory};

use super::table::{End, Lie, Moment};
use super::{misreport, tell};

pub type Port = Console<HostMemory, Fake, NoRegisters>;

/// Registers that are not there.
pub struct NoRegisters;

impl Registers for NoRegisters {
    fn read8(&self, _: usize) -> u8 {
        0xff
    }
    fn read16(&self, _: usize) -> u16 {
        0xffff
    }
    fn read32(&self, _: usize) -> u32 {
        u32::MAX
    }
    fn write8(&self, _: usize, _: u8) {}
    fn write16(&self, _: usize, _: u16) {}
    fn write32(&self, _: usize, _: u32) {}
}

pub const BUFFERS: Buffers = Buffers { receive: 4, transmit: 4, size: 100 };

/// Both ways once, with a host that answers. `None`: the console has failed.
fn talk(port: &Port, fake: &Fake, text: &[u8]) -> Option<()> {
    // Bytes that a lie has put there come first.
    while port.try_read(&mut [0; 500]).ok()? > 0 {}
    if port.try_write(text).ok()? < text.len() {
        return None;
    }
    assert!(fake.receive().ends_with(text), "the host gets what was written");
    fake.send(text);
    let mut bytes = [0; 100];
    let count = port.try_read(&mut bytes).ok()?;
    assert_eq!(&bytes[..count], text, "the program gets what the host sent");
    Some(())
}

pub fn cell(lie: Lie, moment: Moment) -> End {
    let fake = Fake::new(0);
    // struct virtio_console_config: columns, rows, max_nr_ports, emerg_wr.
    fake.set_config(&[80, 0, 25, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    if moment == Moment::Attach {
        begin(&fake, lie);
        fake.on_queue(move |ring| {
            _ = tell(ring, lie, 0, 5) || lie == Lie::DoubleAnswer && tell(ring, Lie::IdTwice, 0, 5)
        });
    }
    let Ok(port) = Port::new(fake.clone(), model::device(), BUFFERS, None) else { return End::Refused };
    if moment != Moment::Attach {
        assert_eq!(talk(&port, &fake, b"hello"), Some(()));
        begin(&fake, lie);
        told(&fake, lie);
    }
    if moment == Moment::Detach {
        drop(port);
        let refused = lie == Lie::ResetRefused;
        assert_eq!(refused, fake.has_queue(0), "the device was reset");
        return if refused { End::Lost } else { End::Back };
    }
    if matches!(lie, Lie::NoAnswer | Lie::LateAnswer) {
        // The host receives nothing, so the port accepts as many bytes as the queue has room for.
        assert_eq!((port.try_write(&[7; 500]), port.try_write(&[7; 500])), (Ok(400), Ok(0)));
        assert_eq!(
            (port.try_read(&mut [0; 10]), port.is_drained(), port.is_writable()),
            (Ok(0), false, false)
        );
        if lie == Lie::LateAnswer {
            assert_eq!(fake.receive(), [7; 400]);
            assert!(port.is_drained() && port.is_writable());
            assert_eq!(talk(&port, &fake, b"late"), Some(()));
        }
        return End::Waits;
    }
    let held = model::device().held();
    // A few times: the index of a ring meets every place of it.
    let fine = (0..40).try_for_each(|_| talk(&port, &fake, b"world"));
    if fine.is_some() {
        return End::Fine;
    }
    assert!(port.try_read(&mut [0; 10]).is_err() && port.try_write(b"x").is_err());
    assert!(port.is_readable() && port.is_writable() && port.is_drained(), "nothing waits for it");
    assert!(fake.status().contains(DeviceStatus::FAILED));
    if fake.has_queue(0) {
        return End::Lost;
    }
    assert!(
        model::device().held() < held || moment == Moment::Attach,
        "memory is back while the driver lives"
    );
    End::Dead
}

/// The lie begins.
fn begin(fake: &Fake, lie: Lie) {
    match lie {
        Lie::ConfigImpossible | Lie::ConfigNonsense => fake.set_config(&[0xff; 12]),
        Lie::ResetRefused => {
            misreport(fake, Lie::ResetRefused);
            // A used element that makes the driver want a reset.
            fake.give(1, 15, 0);
        }
        lie => _ = misreport(fake, lie),
    }
}

/// The lie is told in the ring of filled buffers.
fn told(fake: &Fake, lie: Lie) {
    let double = lie == Lie::DoubleAnswer;
    let ring_lie =
        !matches!(lie, Lie::NoAnswer | Lie::LateAnswer | Lie::SpuriousInterrupts | Lie::ResetRefused);
    if !ring_lie {
        return;
    }
    let Some((head, _)) = fake.take(0) else { return };
    if double {
        fake.give(0, head.into(), 5);
        fake.give(0, head.into(), 5);
    } else if !fake.with_ring(0, |ring| tell(ring, lie, head.into(), 5)) {
        fake.give(0, head.into(), 5);
    }
}
