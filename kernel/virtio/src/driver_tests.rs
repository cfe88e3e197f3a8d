//! Drivers against devices that tests play. The table of a device's lies is in `tests/lies/`.

extern crate std;

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::boxed::Box;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use freehold_bounce::Original;
use freehold_virtqueue::DeviceStatus;
use freehold_virtqueue::model::{self, Fake, HostMemory};
use proptest::prelude::*;

use crate::block::{DEPTH, VirtioBlock};
use crate::console::{Buffers, Console};
use crate::platform::{Lines, Notify, Registers, Sleep, Wait, Waited};
use crate::transport::Features;
use crate::{BlockDevice, BlockError, ByteStream, Failed, SECTOR_SIZE, SetupError};

pub(crate) fn fake_disk(sectors: u64, features: Features) -> Fake {
    let fake = Fake::new(features.bits());
    fake.set_config(&sectors.to_le_bytes());
    fake
}

/// A register that remembers the last store.
#[derive(Default, Clone)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Registers for Written {
    fn read8(&self, _: usize) -> u8 {
        0xff
    }
    fn read16(&self, _: usize) -> u16 {
        0xffff
    }
    fn read32(&self, _: usize) -> u32 {
        u32::MAX
    }
    fn write8(&self, _: usize, value: u8) {
        self.0.lock().unwrap().push(value);
    }
    fn write16(&self, _: usize, value: u16) {
        self.0.lock().unwrap().push(value as u8);
    }
    fn write32(&self, _: usize, value: u32) {
        self.0.lock().unwrap().push(value as u8);
    }
}

type TestConsole = Console<HostMemory, Fake, Written>;

const SMALL: Buffers = Buffers { receive: 4, transmit: 4, size: 100 };

fn console(fake: &Fake) -> TestConsole {
    Console::new(fake.clone(), model::device(), SMALL, None).unwrap()
}

#[test]
fn bytes_arrive_in_order_whatever_the_pieces() {
    let fake = Fake::new(0);
    let console = console(&fake);
    assert_eq!(console.try_read(&mut [0; 10]), Ok(0));
    fake.send(b"hello ");
    fake.send(b"world");
    assert!(console.is_readable());
    let mut bytes = [0; 8];
    assert_eq!(console.try_read(&mut bytes), Ok(8));
    assert_eq!(&bytes, b"hello wo");
    assert_eq!(console.try_read(&mut bytes), Ok(3));
    assert_eq!(&bytes[..3], b"rld");
    // Both buffers are with the host again: it has never fewer than four to fill.
    for _ in 0..4 {
        fake.send(b"x");
    }
    assert_eq!(console.try_read(&mut bytes), Ok(4));
}

#[test]
fn writes_take_what_there_is_room_for_and_ask_for_an_interrupt_only_when_full() {
    let fake = Fake::new(0);
    let console = console(&fake);
    let bytes: Vec<u8> = (0..500).map(|i| i as u8).collect();
    assert!(!fake.with_ring(1, |ring| ring.wants_interrupt()));
    assert_eq!(console.try_write(&bytes), Ok(400));
    assert!(fake.with_ring(1, |ring| ring.wants_interrupt()));
    assert!(!console.is_writable() && !console.is_drained());
    assert_eq!(console.try_write(&bytes[400..]), Ok(0));
    assert_eq!(fake.receive(), bytes[..400]);
    assert!(console.is_writable() && console.is_drained());
    assert_eq!(console.try_write(&bytes[400..]), Ok(100));
    assert!(!fake.with_ring(1, |ring| ring.wants_interrupt()));
    assert_eq!(fake.receive(), bytes[400..]);
}

#[test]
fn a_console_that_gives_back_what_it_did_not_have_fails_and_corrupts_nothing() {
    for nonsense in [(5u32, 0u32), (15, 10), (1000, 1), (u32::MAX, u32::MAX)] {
        let fake = Fake::new(0);
        let console = console(&fake);
        fake.give(0, nonsense.0, nonsense.1);
        assert_eq!(console.try_read(&mut [0; 10]), Err(Failed));
        assert_eq!(console.try_write(b"x"), Err(Failed));
        assert!(fake.status().contains(DeviceStatus::FAILED));
        assert!(
            console.is_readable() && console.is_writable() && console.is_drained(),
            "nobody waits for it"
        );
    }
}

#[test]
fn a_console_cannot_claim_more_bytes_than_it_was_lent() {
    let fake = Fake::new(0);
    let console = console(&fake);
    let (head, parts) = fake.take(0).unwrap();
    model::write(parts[0].address, &[7; 100]);
    fake.give(0, head.into(), u32::MAX);
    let mut bytes = [0; 4096];
    assert_eq!(console.try_read(&mut bytes), Ok(100));
    assert_eq!(bytes[..100], [7; 100]);
}

#[test]
fn a_buffer_cannot_be_given_back_twice() {
    let fake = Fake::new(0);
    let console = console(&fake);
    let (head, _) = fake.take(0).unwrap();
    fake.give(0, head.into(), 1);
    assert_eq!(console.try_read(&mut []), Ok(0));
    fake.give(0, head.into(), 1);
    assert_eq!(console.try_read(&mut [0; 10]), Err(Failed));
}

#[test]
fn emergency_bytes_need_the_device_to_offer_them() {
    let register = Written::default();
    for (features, able) in [(Features::empty(), false), (Features::CONSOLE_EMERGENCY_WRITE, true)] {
        let (device, emergency) = (model::device(), Some(register.clone()));
        let console: TestConsole =
            Console::new(Fake::new(features.bits()), device, SMALL, emergency).unwrap();
        assert_eq!(console.emergency_write(b'!'), able);
    }
    assert_eq!(*register.0.lock().unwrap(), b"!");
}

#[test]
fn a_legacy_device_is_refused() {
    let fake = Fake::legacy();
    let console: Result<TestConsole, _> = Console::new(fake, model::device(), SMALL, None);
    assert!(matches!(console, Err(SetupError::Legacy)));
}

/// Sleeps by letting the device work; gives up when nothing more can happen.
pub(crate) struct Step(pub(crate) Box<dyn Fn() + Send + Sync>);

impl Notify for Step {
    fn notify(&self) {}
}

impl Wait for Step {
    fn wait_until(&self, _: u64, _: Sleep, condition: &mut dyn FnMut() -> bool) -> Waited {
        let held = (0..100).any(|_| {
            let held = condition();
            if !held {
                (self.0)();
            }
            held
        });
        if held { Waited::Held } else { Waited::TimedOut }
    }
    fn notify_one(&self) {}
}

/// A disk that works: serves every request from `contents`.
pub(crate) fn serve(fake: &Fake, contents: &Mutex<Vec<u8>>) {
    while let Some((head, parts)) = fake.take(0) {
        let mut header = [0; 16];
        model::read(parts[0].address, &mut header);
        let kind = u32::from_le_bytes(header[..4].try_into().unwrap());
        let sector = u64::from_le_bytes(header[8..].try_into().unwrap()) as usize;
        let mut at = sector * SECTOR_SIZE;
        let (status, data) = parts[1..].split_last().unwrap();
        let mut contents = contents.lock().unwrap();
        let mut written = 1;
        for part in data {
            let range = &mut contents[at..at + part.length as usize];
            at += range.len();
            assert_eq!(part.writable, kind == 0);
            if kind == 0 {
                model::write(part.address, range);
                written += part.length;
            } else {
                model::read(part.address, range);
            }
        }
        model::write(status.address, &[0]);
        fake.give(0, head.into(), written);
    }
}

fn disk(fake: &Fake, device: impl Fn() + Send + Sync + 'static) -> VirtioBlock<HostMemory, Fake> {
    let line = Box::leak(Box::new(Step(Box::new(device))));
    VirtioBlock::new(fake.clone(), model::device(), Lines { answers: line, turns: line }).unwrap()
}

#[test]
fn what_is_written_to_a_disk_is_read_back_also_in_many_requests() {
    let sectors = 1024;
    let fake = fake_disk(sectors as u64, Features::BLOCK_FLUSH);
    let contents = Arc::new(Mutex::new(std::vec![0u8; sectors * SECTOR_SIZE]));
    let disk = disk(&fake, {
        let (fake, contents) = (fake.clone(), contents.clone());
        move || serve(&fake, &contents)
    });
    assert_eq!((disk.sectors(), disk.is_read_only()), (1024, false));
    let data: Vec<u8> = (0..600 * SECTOR_SIZE).map(|i| (i / 7) as u8).collect();
    let original: &dyn Original = &Whole(data.clone());
    disk.write(100, original, Sleep::Uninterruptible).unwrap();
    disk.flush(Sleep::Uninterruptible).unwrap();
    assert_eq!(contents.lock().unwrap()[100 * SECTOR_SIZE..][..data.len()], data);
    let mut back = Whole(std::vec![0; data.len()]);
    disk.read(100, &mut back, Sleep::Uninterruptible).unwrap();
    assert!(back.0 == data);
}

#[test]
fn a_flush_is_sent_where_a_write_was_answered_since_the_last_one_that_succeeded() {
    let fake = fake_disk(64, Features::BLOCK_FLUSH);
    let (flushes, status) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU8::new(0)));
    let disk = disk(&fake, {
        let (fake, flushes, status) = (fake.clone(), flushes.clone(), status.clone());
        move || {
            while let Some((head, parts)) = fake.take(0) {
                let mut kind = [0; 4];
                model::read(parts[0].address, &mut kind);
                flushes.fetch_add(u32::from(kind == [4, 0, 0, 0]), Ordering::Relaxed);
                let filled: u32 = parts.iter().filter(|part| part.writable).map(|part| part.length).sum();
                model::write(parts.last().unwrap().address, &[status.load(Ordering::Relaxed)]);
                fake.give(0, head.into(), filled);
            }
        }
    });
    let flush = |expected, sent| {
        assert_eq!(disk.flush(Sleep::Uninterruptible), expected);
        assert_eq!(flushes.load(Ordering::Relaxed), sent);
    };
    flush(Ok(()), 1); // Something else may have written before.
    flush(Ok(()), 1);
    disk.read(0, &mut sector(), Sleep::Uninterruptible).unwrap();
    flush(Ok(()), 1);
    disk.write(0, &sector(), Sleep::Uninterruptible).unwrap();
    flush(Ok(()), 2);
    flush(Ok(()), 2);
    status.store(1, Ordering::Relaxed);
    assert_eq!(disk.write(0, &sector(), Sleep::Uninterruptible), Err(BlockError::Io));
    flush(Err(BlockError::Io), 3); // A write that failed may have stored a part.
    status.store(0, Ordering::Relaxed);
    flush(Ok(()), 4);
    flush(Ok(()), 4);
}

#[test]
fn a_megabyte_is_one_request_and_the_device_s_limits_of_descriptors_are_kept() {
    let limits = (Features::BLOCK_SIZE_MAX | Features::BLOCK_SEG_MAX).bits();
    // (features, size_max, seg_max, requests for 1 MiB)
    let cases = [
        (0, 1, 1, 1),
        (limits, 1 << 20, 8, 1),
        (limits, 8192, 4, 32),
        (limits, 0, 0, 2048),
        (limits, 6000, 126, 12),
    ];
    for (features, size_max, seg_max, expected) in cases {
        let fake = Fake::new(features);
        let mut config = 4096u64.to_le_bytes().to_vec();
        config.extend(u32::to_le_bytes(size_max));
        config.extend(u32::to_le_bytes(seg_max));
        fake.set_config(&config);
        let requests = Arc::new(Mutex::new(0));
        let disk = disk(&fake, {
            let (fake, requests) = (fake.clone(), requests.clone());
            move || {
                while let Some((head, parts)) = fake.take(0) {
                    let data = &parts[1..parts.len() - 1];
                    let limited = features != 0;
                    assert!(!limited || data.len() <= seg_max.max(1) as usize);
                    assert!(!limited || data.iter().all(|part| part.length <= size_max.max(512)));
                    *requests.lock().unwrap() += 1;
                    model::write(parts.last().unwrap().address, &[0]);
                    fake.give(0, head.into(), data.iter().map(|part| part.length).sum::<u32>() + 1);
                }
            }
        });
        disk.read(0, &mut Whole(std::vec![0; 1 << 20]), Sleep::Uninterruptible).unwrap();
        let sent = *requests.lock().unwrap();
        assert!(
            if expected == 12 { (12..=13).contains(&sent) } else { sent == expected },
            "{size_max} {seg_max}: {sent}"
        );
    }
}

/// Bytes as an original that can be a trait object.
pub(crate) struct Whole(pub(crate) Vec<u8>);

impl Original for Whole {
    fn length(&self) -> usize {
        self.0.len()
    }
    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        self.0.as_slice().copy_to(offset, to);
    }
}

impl freehold_bounce::OriginalMut for Whole {
    fn copy_from(&mut self, offset: usize, from: &[u8]) {
        self.0.as_mut_slice().copy_from(offset, from);
    }
}

pub(crate) fn sector() -> Whole {
    Whole(std::vec![0; SECTOR_SIZE])
}

#[test]
fn transfers_outside_the_disk_or_to_a_read_only_one_never_reach_the_device() {
    let fake = fake_disk(8, Features::BLOCK_READ_ONLY);
    let disk = disk(&fake, || panic!("nothing should be sent"));
    assert!(disk.is_read_only());
    for start in [8, 9, u64::MAX, u64::MAX / 512] {
        assert_eq!(disk.read(start, &mut sector(), Sleep::Uninterruptible), Err(BlockError::OutOfRange));
    }
    assert_eq!(
        disk.read(0, &mut Whole(std::vec![0; 100]), Sleep::Uninterruptible),
        Err(BlockError::OutOfRange)
    );
    assert_eq!(disk.write(0, &sector(), Sleep::Uninterruptible), Err(BlockError::ReadOnly));
    assert_eq!(disk.flush(Sleep::Uninterruptible), Ok(()), "nothing to flush without a cache");
}

#[test]
fn a_status_that_is_an_error_and_a_short_answer_are_errors() {
    // (status byte or none, bytes claimed, the reader's result)
    let cases = [
        (Some(0), 513, Ok(())),
        (Some(1), 1, Err(BlockError::Io)),
        (Some(2), 1, Err(BlockError::Unsupported)),
        (Some(77), 513, Err(BlockError::Failed)),
        (Some(0), 400, Err(BlockError::Io)),
        (None, 513, Err(BlockError::Failed)),
    ];
    for (status, written, expected) in cases {
        let fake = fake_disk(8, Features::empty());
        let disk = disk(&fake, {
            let fake = fake.clone();
            move || {
                while let Some((head, parts)) = fake.take(0) {
                    if let Some(status) = status {
                        model::write(parts[2].address, &[status]);
                    }
                    fake.give(0, head.into(), written);
                }
            }
        });
        assert_eq!(
            disk.read(0, &mut sector(), Sleep::Uninterruptible),
            expected,
            "status {status:?}, {written} bytes"
        );
    }
}

#[test]
fn a_late_status_of_one_request_is_no_success_of_the_next() {
    let fake = fake_disk(8, Features::empty());
    let late = Mutex::new(None);
    let disk = disk(&fake, {
        let fake = fake.clone();
        move || {
            while let Some((head, parts)) = fake.take(0) {
                let mut late = late.lock().unwrap();
                match *late {
                    None => {
                        *late = Some(parts[2].address);
                        model::write(parts[2].address, &[1]);
                    }
                    // The status byte of the request before is written now, and this one's is not.
                    Some(before) => model::write(before, &[0]),
                }
                fake.give(0, head.into(), 513);
            }
        }
    });
    assert_eq!(disk.read(0, &mut sector(), Sleep::Uninterruptible), Err(BlockError::Io));
    assert_eq!(disk.read(1, &mut sector(), Sleep::Uninterruptible), Err(BlockError::Failed));
}

/// Answers the next read with zeroes.
pub(crate) fn answer_one(fake: &Fake) -> bool {
    let taken = fake.take(0);
    taken.map(|request| answer(fake, request)).is_some()
}

/// Answers a read that was taken from the ring; its data stay the same.
pub(crate) fn answer(fake: &Fake, (head, parts): (u16, Vec<model::Descriptor>)) {
    model::write(parts[parts.len() - 1].address, &[0]);
    fake.give(0, head.into(), parts[1..].iter().map(|part| part.length).sum());
}

#[test]
fn requests_that_time_out_keep_their_memory_until_their_late_answers() {
    static DISK: std::sync::OnceLock<VirtioBlock<HostMemory, Fake>> = std::sync::OnceLock::new();
    static ANSWERS: Mutex<bool> = Mutex::new(false);
    let fake = fake_disk(8, Features::empty());
    let device = fake.clone();
    let disk = disk(&fake, move || {
        if *ANSWERS.lock().unwrap() {
            answer_one(&device);
        } else {
            // No time runs out before all requests are with the device.
            while DISK.get().unwrap().places().0 > 0 {
                std::thread::yield_now();
            }
        }
    });
    let disk = DISK.get_or_init(|| disk);
    std::thread::scope(|scope| {
        for _ in 0..DEPTH {
            scope.spawn(|| {
                assert_eq!(disk.read(0, &mut sector(), Sleep::Uninterruptible), Err(BlockError::TimedOut))
            });
        }
    });
    assert_eq!(disk.places().0, 0);
    let kept: Vec<_> = core::iter::from_fn(|| fake.take(0)).collect();
    assert_eq!(kept.len(), DEPTH);
    for (number, (_, parts)) in kept.iter().enumerate() {
        for (_, others) in &kept[..number] {
            assert!((0..3).all(|part| parts[part].address != others[part].address));
        }
    }
    for (head, parts) in kept {
        model::write(parts[2].address, &[0]);
        fake.give(0, head.into(), 513);
    }
    *ANSWERS.lock().unwrap() = true;
    assert_eq!(disk.read(2, &mut sector(), Sleep::Uninterruptible), Ok(()));
    assert_eq!(disk.places().0, DEPTH);
}

#[test]
fn a_silent_disk_costs_one_time_out_and_works_again_when_it_answers() {
    let fake = fake_disk(8, Features::empty());
    let waits = Arc::new(Mutex::new(0));
    let disk = disk(&fake, {
        let waits = waits.clone();
        move || *waits.lock().unwrap() += 1
    });
    assert_eq!(disk.read(0, &mut sector(), Sleep::Uninterruptible), Err(BlockError::TimedOut));
    let (waited, notices) = (*waits.lock().unwrap(), fake.notices(0));
    for _ in 0..3 * DEPTH {
        assert_eq!(disk.read(0, &mut sector(), Sleep::Uninterruptible), Err(BlockError::TimedOut));
    }
    assert_eq!(*waits.lock().unwrap(), waited, "later requests fail at once");
    assert!(fake.notices(0) > notices, "the device is reminded");
    assert!(answer_one(&fake) && fake.take(0).is_none(), "it was sent one request");
    assert_eq!(
        disk.read(0, &mut sector(), Sleep::Uninterruptible),
        Err(BlockError::TimedOut),
        "it is asked again, and not silent now"
    );
    assert_eq!(*waits.lock().unwrap(), 2 * waited);
}

/// A wait in which `during` happens once, after the first look, and that ends too early.
struct Late<F>(Mutex<Option<F>>);

impl<F: FnOnce() + Send> Notify for Late<F> {
    fn notify(&self) {}
}

impl<F: FnOnce() + Send> Wait for Late<F> {
    fn wait_until(&self, _: u64, _: Sleep, condition: &mut dyn FnMut() -> bool) -> Waited {
        if condition() {
            return Waited::Held;
        }
        if let Some(during) = self.0.lock().unwrap().take() {
            during();
        }
        Waited::TimedOut
    }
    fn notify_one(&self) {}
}

#[test]
fn a_request_that_is_done_as_its_time_runs_out_is_done_and_frees_its_place() {
    static DISK: std::sync::OnceLock<VirtioBlock<HostMemory, Fake>> = std::sync::OnceLock::new();
    let fake = fake_disk(8, Features::empty());
    // While the first request's time runs out, another task looks, and finds the answer.
    let device = fake.clone();
    let late = Late(Mutex::new(Some(move || {
        assert!(answer_one(&device));
        DISK.get().unwrap().look();
    })));
    let late = Box::leak(Box::new(late));
    let disk = VirtioBlock::new(fake.clone(), model::device(), Lines { answers: late, turns: late }).unwrap();
    let disk = DISK.get_or_init(|| disk);
    assert_eq!(disk.read(0, &mut sector(), Sleep::Uninterruptible), Ok(()));
    assert_eq!(disk.places().0, DEPTH);
}

#[test]
fn a_disk_that_lies_fails_for_good() {
    let fake = fake_disk(8, Features::empty());
    let disk = disk(&fake, {
        let fake = fake.clone();
        move || fake.give(0, 40, 1)
    });
    assert_eq!(disk.read(0, &mut sector(), Sleep::Uninterruptible), Err(BlockError::Failed));
    assert_eq!(disk.read(0, &mut sector(), Sleep::Uninterruptible), Err(BlockError::Failed));
    assert!(fake.status().contains(DeviceStatus::FAILED));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A hostile console may do anything to the used ring. Reads give at most the bytes that were
    /// lent, and nothing panics.
    #[test]
    fn a_hostile_used_ring_never_panics(ops in proptest::collection::vec((any::<u32>(), any::<u32>(), 0usize..4), 1..60)) {
        let fake = Fake::new(0);
        let console = console(&fake);
        for (head, written, action) in ops {
            match action {
                0 => fake.give(0, head % 20, written),
                1 => fake.give(1, head % 20, written),
                2 => fake.give((head % 2) as usize, head, written),
                _ => {
                    if let Some((head, _)) = fake.take(0) {
                        fake.give(0, head.into(), written);
                    }
                }
            }
            let mut bytes = [0; 1000];
            if let Ok(count) = console.try_read(&mut bytes) {
                prop_assert!(count <= 4 * SMALL.size);
            }
            let _ = console.try_write(&bytes[..100]);
        }
    }
}
