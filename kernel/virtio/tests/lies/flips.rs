//! Devices that change any shared byte between any two looks of a driver.

use freehold_virtio::mem::{Domain, Region};
use freehold_virtio::platform::Lines;
use freehold_virtio::{BlockDevice, ByteStream, FrameDevice, MessageDevice, SECTOR_SIZE, Sleep};
use freehold_virtqueue::model::{self, Fake};
use proptest::prelude::*;

use super::console::{BUFFERS, Port};
use super::disk::{self, Bytes};
use super::memory::{self, Memory};
use super::net::{self, Network};
use super::p9::{self, Folder};
use super::{Canary, Step, turn};

/// Changes a byte of the rings or of the buffers in flight before a look, as `choices` say; `None`
/// leaves all as it is. Only bytes that the driver lent are touched.
fn meddler(fake: &Fake, choices: Vec<Option<(u16, u8)>>) -> Box<dyn FnMut()> {
    let fake = fake.clone();
    let mut choices = choices.into_iter().cycle();
    Box::new(move || {
        // The device runs while the driver sets it up, too: then its registers are in use.
        let Some(Some((place, value))) = choices.next() else { return };
        for queue in 0..2 {
            if !fake.has_queue(queue) {
                continue;
            }
            let ring = fake.with_ring(queue, |ring| *ring);
            let size = u64::from(ring.size);
            let place = u64::from(place);
            let used = (ring.used, 4 + 8 * size);
            let available = (ring.available, 4 + 2 * size);
            // Mostly where the driver looks.
            let (start, length) = [used, used, used, available][place as usize % 4];
            model::write(start + place / 4 % length, &[value]);
            // Lengths, flags and links of descriptors; an address that changed is only the device's
            // own loss.
            let at = place % size * 16 + 8 + place / size % 8;
            model::write(ring.descriptors + at, &[value]);
        }
    })
}

/// Stops the meddling at the end of a case, also of one that fails.
struct Meddling;

impl Meddling {
    fn begin(fake: &Fake, choices: Vec<Option<(u16, u8)>>) -> Self {
        model::meddle(Some(meddler(fake, choices)));
        Self
    }
}

impl Drop for Meddling {
    fn drop(&mut self) {
        model::meddle(None);
    }
}

fn choices() -> impl Strategy<Value = Vec<Option<(u16, u8)>>> {
    // Few at a time, so that drivers come far before they give up.
    let choice = prop_oneof![12 => Just(None), 1 => any::<(u16, u8)>().prop_map(Some)];
    proptest::collection::vec(choice, 1..200)
}

/// The accounts balance: what `case` took is back, nothing is lost, no other device's byte changed.
fn balanced(case: impl FnOnce()) {
    let _turn = turn();
    let canary = Canary::new();
    let device = model::device();
    let before = (device.held(), device.lost());
    case();
    assert_eq!((device.held(), device.lost()), before);
    assert!(canary.sings());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_disk_that_changes_shared_bytes_at_any_time_breaks_nothing(choices in choices(), sectors in proptest::collection::vec(0..disk::SECTORS, 1..30)) {
        balanced(|| {
            let fake = Fake::new(disk::FEATURES);
            fake.set_config(&disk::config(disk::SECTORS, 0, 0, 0));
            let device = fake.clone();
            // The device itself reads the changed bytes: its own read is cut short where a chain
            // makes no sense.
            let step = Step::leak(move || {
                while let Some((head, parts)) = device.take_checked(0) {
                    if let Some(status) = parts.last() {
                        model::write(status.address, &[0]);
                    }
                    device.give(0, head.into(), parts.iter().fold(0u32, |sum, part| sum.wrapping_add(part.length)));
                }
            });
            let disk = disk::start(&fake, step).unwrap();
            let meddling = Meddling::begin(&fake, choices);
            for sector in sectors {
                let _ = disk.read(sector, &mut Bytes(vec![0; SECTOR_SIZE]), Sleep::Uninterruptible);
                let _ = disk.write(sector, &Bytes(vec![1; SECTOR_SIZE]), Sleep::Uninterruptible);
                let _ = disk.flush(Sleep::Uninterruptible);
            }
            drop(meddling);
        });
    }

    #[test]
    fn a_console_that_changes_shared_bytes_at_any_time_breaks_nothing(choices in choices(), lengths in proptest::collection::vec(0usize..300, 1..60)) {
        balanced(|| {
            let fake = Fake::new(0);
            let port = Port::new(fake.clone(), model::device(), BUFFERS, None).unwrap();
            let meddling = Meddling::begin(&fake, choices);
            for length in lengths {
                let mut bytes = vec![0; 1000];
                if let Ok(count) = port.try_read(&mut bytes) {
                    prop_assert_count(count);
                }
                let _ = port.try_write(&bytes[..length]);
                for queue in 0..2 {
                    if let Some((head, parts)) = fake.take_checked(queue) {
                        fake.give(queue, head.into(), parts.iter().fold(0u32, |sum, part| sum.wrapping_add(part.length)));
                    }
                }
                let _ = (port.is_drained(), port.is_writable(), port.is_readable());
            }
            drop(meddling);
        });
    }

    #[test]
    fn a_network_device_that_changes_shared_bytes_at_any_time_breaks_nothing(choices in choices(), headers in proptest::collection::vec((0u8..4, 0usize..2100), 1..60)) {
        balanced(|| {
            let fake = Fake::new(net::FEATURES);
            fake.set_config(&net::CONFIG);
            let network = Network::new(fake.clone(), model::device()).unwrap();
            let meddling = Meddling::begin(&fake, choices);
            for (buffers, length) in headers {
                let mut frame = [0; 1514];
                if let Some((head, parts)) = fake.take_checked(0) {
                    let mut header = [0; net::HEADER];
                    header[10] = buffers;
                    model::write(parts[0].address, &header);
                    fake.give(0, head.into(), length as u32);
                }
                if let Ok(Some(count)) = network.receive(&mut frame) {
                    assert!((14..=frame.len()).contains(&count), "{count} bytes");
                }
                let _ = network.send(&frame[..length.min(frame.len())]);
                if let Some((head, parts)) = fake.take_checked(1) {
                    fake.give(1, head.into(), parts.iter().fold(0u32, |sum, part| sum.wrapping_add(part.length)));
                }
            }
            drop(meddling);
        });
    }

    #[test]
    fn a_memory_device_that_changes_shared_bytes_at_any_time_breaks_nothing(choices in choices(), requests in 1usize..40) {
        balanced(|| {
            let fake = Fake::new(0);
            fake.set_config(&memory::honest());
            let device = fake.clone();
            let step = Step::leak(move || {
                while let Some((head, parts)) = device.take_checked(0) {
                    if let Some(part) = parts.iter().find(|part| part.writable) {
                        model::write(part.address, &[0; 10]);
                    }
                    device.give(0, head.into(), 10);
                }
            });
            let found = Region::check(&memory::honest(), Domain::Unsaid).unwrap();
            let memory = Memory::new(fake.clone(), model::device(), step, found).unwrap();
            let meddling = Meddling::begin(&fake, choices);
            for unit in 0..requests as u64 {
                let unit = memory.region().frames_of(unit % memory.region().units());
                let _ = (memory.sizes(), memory.plug(unit), memory.unplug(unit));
            }
            drop(meddling);
        });
    }

    #[test]
    fn a_device_of_messages_that_changes_shared_bytes_at_any_time_breaks_nothing(choices in choices(), requests in 1usize..40) {
        balanced(|| {
            let fake = Fake::new(p9::FEATURES);
            fake.set_config(&p9::CONFIG);
            let device = fake.clone();
            let step = Step::leak_killed(move || {
                while let Some((head, parts)) = device.take_checked(0) {
                    // The changed bytes may be the place or length of the answer: an answer is only
                    // written to short parts.
                    let fits = parts.iter().all(|part| part.length <= 4096 || !part.writable && part.length < 1 << 16);
                    let size = if fits { p9::answer(&parts) } else { 0 };
                    device.give(0, head.into(), size);
                }
            });
            let folder = Folder::new(fake.clone(), model::device(), Lines { answers: step, turns: step }, step).unwrap();
            let meddling = Meddling::begin(&fake, choices);
            for _ in 0..requests {
                let _ = (p9::read_any(&folder), p9::clunk(&folder), folder.take_ended());
            }
            drop(meddling);
        });
    }
}

fn prop_assert_count(count: usize) {
    assert!(count <= BUFFERS.receive * BUFFERS.size, "{count} bytes of what was lent");
}
