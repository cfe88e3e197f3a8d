//! Devices that tests play: a transport whose other side is in the test's hands, and drivers against it.

extern crate std;

use std::boxed::Box;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use freehold_bounce::Original;
use freehold_virtqueue::model::{self, Descriptor, DeviceRing, HostMemory};
use freehold_virtqueue::{DeviceStatus, DeviceType, InterruptStatus, RingAddr, Transport};
use freehold_virtqueue::{TransportError, TransportResult};
use proptest::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::block::{Block, DEPTH};
use crate::console::{Buffers, Console};
use crate::platform::{Notify, Registers, Wait};
use crate::transport::Features;
use crate::{BlockDevice, BlockError, ByteStream, Failed, SECTOR_SIZE, SetupError};

/// What both sides see.
#[derive(Default)]
struct State {
    features: u64,
    accepted: u64,
    status: DeviceStatus,
    config: Vec<u8>,
    rings: [Option<DeviceRing>; 2],
    notices: [usize; 2],
}

/// The driver's side; the test keeps a clone.
#[derive(Clone, Default)]
pub(crate) struct Fake(Arc<Mutex<State>>);

impl Fake {
    pub(crate) fn new(features: Features) -> Self {
        let fake = Self::default();
        fake.0.lock().unwrap().features = (features | Features::VERSION_1).bits();
        fake
    }
    fn disk(sectors: u64, features: Features) -> Self {
        let fake = Self::new(features);
        fake.set_config(&sectors.to_le_bytes());
        fake
    }
    pub(crate) fn set_config(&self, bytes: &[u8]) {
        self.0.lock().unwrap().config = bytes.to_vec();
    }
    pub(crate) fn status(&self) -> DeviceStatus {
        self.0.lock().unwrap().status
    }
    fn with_ring<R>(&self, queue: usize, f: impl FnOnce(&mut DeviceRing) -> R) -> R {
        f(self.0.lock().unwrap().rings[queue].as_mut().unwrap())
    }
    pub(crate) fn take(&self, queue: usize) -> Option<(u16, Vec<Descriptor>)> {
        self.with_ring(queue, DeviceRing::take)
    }
    pub(crate) fn give(&self, queue: usize, head: u32, written: u32) {
        self.with_ring(queue, |ring| ring.give(head, written));
    }
    /// Fill the next receive buffer.
    fn send(&self, bytes: &[u8]) {
        let (head, parts) = self.take(0).expect("the driver lent no buffer");
        assert!(parts[0].writable && parts[0].length as usize >= bytes.len());
        model::write(parts[0].address, bytes);
        self.give(0, head.into(), bytes.len() as u32);
    }
    /// Empty all transmit buffers that are there.
    fn receive(&self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some((head, parts)) = self.take(1) {
            for part in parts {
                assert!(!part.writable);
                let mut bytes = std::vec![0; part.length as usize];
                model::read(part.address, &mut bytes);
                all.extend(bytes);
            }
            self.give(1, head.into(), 0);
        }
        all
    }
}

impl Transport for Fake {
    fn device_type(&self) -> DeviceType {
        DeviceType::Console
    }
    fn read_device_features(&mut self) -> u64 {
        self.0.lock().unwrap().features
    }
    fn write_driver_features(&mut self, features: u64) {
        self.0.lock().unwrap().accepted = features;
    }
    fn max_queue_size(&mut self, _: u16) -> u32 {
        128
    }
    fn notify(&mut self, queue: u16) {
        self.0.lock().unwrap().notices[usize::from(queue)] += 1;
    }
    fn get_status(&self) -> DeviceStatus {
        self.status()
    }
    fn set_status(&mut self, status: DeviceStatus) {
        self.0.lock().unwrap().status = status;
    }
    fn set_guest_page_size(&mut self, _: u32) {}
    fn requires_legacy_layout(&self) -> bool {
        false
    }
    fn queue_set(
        &mut self,
        queue: u16,
        size: u32,
        descriptors: RingAddr,
        driver: RingAddr,
        device: RingAddr,
    ) {
        let size = size as u16;
        let ring = DeviceRing { size, descriptors, available: driver, used: device, seen: 0, given: 0 };
        self.0.lock().unwrap().rings[usize::from(queue)] = Some(ring);
    }
    fn queue_unset(&mut self, _: u16) {}
    fn queue_used(&mut self, queue: u16) -> bool {
        self.0.lock().unwrap().rings[usize::from(queue)].is_some()
    }
    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }
    fn read_config_generation(&self) -> u32 {
        0
    }
    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> TransportResult<T> {
        let state = self.0.lock().unwrap();
        let bytes = state.config.get(offset..offset + size_of::<T>());
        T::read_from_bytes(bytes.ok_or(TransportError::ConfigSpaceTooSmall)?)
            .map_err(|_| TransportError::InvalidParam)
    }
    fn write_config_space<T: IntoBytes + Immutable>(&mut self, _: usize, _: T) -> TransportResult<()> {
        Err(TransportError::Unsupported)
    }
}

/// A register that remembers what was written.
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
    let fake = Fake::new(Features::empty());
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
    let fake = Fake::new(Features::empty());
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
        let fake = Fake::new(Features::empty());
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
    let fake = Fake::new(Features::empty());
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
    let fake = Fake::new(Features::empty());
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
        let console: TestConsole = Console::new(Fake::new(features), device, SMALL, emergency).unwrap();
        assert_eq!(console.emergency_write(b'!'), able);
    }
    assert_eq!(*register.0.lock().unwrap(), b"!");
}

#[test]
fn a_legacy_device_is_refused() {
    let fake = Fake::default();
    let console: Result<TestConsole, _> = Console::new(fake, model::device(), SMALL, None);
    assert!(matches!(console, Err(SetupError::Legacy)));
}

/// Sleeps by letting the device work; gives up when nothing more can happen.
pub(crate) struct Step(pub(crate) Box<dyn Fn() + Send + Sync>);

impl Notify for Step {
    fn notify(&self) {}
}

impl Wait for Step {
    fn wait_until(&self, _: u64, condition: &mut dyn FnMut() -> bool) -> bool {
        (0..100).any(|_| {
            let held = condition();
            if !held {
                (self.0)();
            }
            held
        })
    }
}

/// A disk that works: serves every request from `contents`.
fn serve(fake: &Fake, contents: &Mutex<Vec<u8>>) {
    while let Some((head, parts)) = fake.take(0) {
        let mut header = [0; 16];
        model::read(parts[0].address, &mut header);
        let kind = u32::from_le_bytes(header[..4].try_into().unwrap());
        let sector = u64::from_le_bytes(header[8..].try_into().unwrap()) as usize;
        let at = sector * SECTOR_SIZE;
        let (data, status) = if parts.len() == 3 { (Some(parts[1]), parts[2]) } else { (None, parts[1]) };
        let mut contents = contents.lock().unwrap();
        let mut written = 1;
        if let Some(data) = data {
            let range = &mut contents[at..at + data.length as usize];
            if kind == 0 {
                assert!(data.writable);
                model::write(data.address, range);
                written += data.length;
            } else {
                assert!(!data.writable);
                model::read(data.address, range);
            }
        }
        model::write(status.address, &[0]);
        fake.give(0, head.into(), written);
    }
}

fn disk(fake: &Fake, device: impl Fn() + Send + Sync + 'static) -> Block<HostMemory, Fake> {
    Block::new(fake.clone(), model::device(), Box::leak(Box::new(Step(Box::new(device))))).unwrap()
}

#[test]
fn what_is_written_to_a_disk_is_read_back_also_in_many_requests() {
    let sectors = 1024;
    let fake = Fake::disk(sectors as u64, Features::BLOCK_FLUSH);
    let contents = Arc::new(Mutex::new(std::vec![0u8; sectors * SECTOR_SIZE]));
    let disk = disk(&fake, {
        let (fake, contents) = (fake.clone(), contents.clone());
        move || serve(&fake, &contents)
    });
    assert_eq!((disk.sectors(), disk.is_read_only()), (1024, false));
    let data: Vec<u8> = (0..600 * SECTOR_SIZE).map(|i| (i / 7) as u8).collect();
    let original: &dyn Original = &Whole(data.clone());
    disk.write(100, original).unwrap();
    disk.flush().unwrap();
    assert_eq!(contents.lock().unwrap()[100 * SECTOR_SIZE..][..data.len()], data);
    let mut back = Whole(std::vec![0; data.len()]);
    disk.read(100, &mut back).unwrap();
    assert!(back.0 == data);
}

/// Bytes as an original that can be a trait object.
struct Whole(Vec<u8>);

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

fn sector() -> Whole {
    Whole(std::vec![0; SECTOR_SIZE])
}

#[test]
fn transfers_outside_the_disk_or_to_a_read_only_one_never_reach_the_device() {
    let fake = Fake::disk(8, Features::BLOCK_READ_ONLY);
    let disk = disk(&fake, || panic!("nothing should be sent"));
    assert!(disk.is_read_only());
    for start in [8, 9, u64::MAX, u64::MAX / 512] {
        assert_eq!(disk.read(start, &mut sector()), Err(BlockError::OutOfRange));
    }
    assert_eq!(disk.read(0, &mut Whole(std::vec![0; 100])), Err(BlockError::OutOfRange));
    assert_eq!(disk.write(0, &sector()), Err(BlockError::ReadOnly));
    assert_eq!(disk.flush(), Ok(()), "nothing to flush without a cache");
}

#[test]
fn a_status_that_is_an_error_and_a_short_answer_are_errors() {
    // (status byte or none, bytes claimed, what the reader sees)
    let cases = [
        (Some(0), 513, Ok(())),
        (Some(1), 1, Err(BlockError::Io)),
        (Some(2), 1, Err(BlockError::Unsupported)),
        (Some(77), 513, Err(BlockError::Io)),
        (Some(0), 400, Err(BlockError::Io)),
        (None, 513, Err(BlockError::Io)),
    ];
    for (status, written, expected) in cases {
        let fake = Fake::disk(8, Features::empty());
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
        assert_eq!(disk.read(0, &mut sector()), expected, "status {status:?}, {written} bytes");
    }
}

#[test]
fn a_silent_disk_times_out_keeps_its_memory_and_its_late_answer_is_harmless() {
    let fake = Fake::disk(8, Features::empty());
    let disk = disk(&fake, || {});
    assert_eq!(disk.read(0, &mut sector()), Err(BlockError::TimedOut));
    let (head, parts) = fake.take(0).unwrap();
    // Another request must get neither the same slots nor the same header: the device may still use them.
    assert_eq!(disk.read(1, &mut sector()), Err(BlockError::TimedOut));
    let (other, others) = fake.take(0).unwrap();
    for part in 0..3 {
        assert_ne!(parts[part].address, others[part].address);
    }
    fake.give(0, head.into(), 513);
    fake.give(0, other.into(), 513);
    for _ in 0..DEPTH {
        assert_eq!(disk.read(2, &mut sector()), Err(BlockError::TimedOut));
    }
    assert_eq!(disk.read(3, &mut sector()), Err(BlockError::TimedOut), "no place is left, and no panic");
}

#[test]
fn a_disk_that_lies_fails_for_good() {
    let fake = Fake::disk(8, Features::empty());
    let disk = disk(&fake, {
        let fake = fake.clone();
        move || fake.give(0, 40, 1)
    });
    assert_eq!(disk.read(0, &mut sector()), Err(BlockError::Failed));
    assert_eq!(disk.read(0, &mut sector()), Err(BlockError::Failed));
    assert!(fake.status().contains(DeviceStatus::FAILED));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever a hostile console does to the used ring, reads give at most what was lent and nothing panics.
    #[test]
    fn a_hostile_used_ring_never_panics(ops in proptest::collection::vec((any::<u32>(), any::<u32>(), 0usize..4), 1..60)) {
        let fake = Fake::new(Features::empty());
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
