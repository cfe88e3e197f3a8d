//! Devices that break the protocol: the outcome of each violation (a *lie*), for each kind of
//! device and each moment.
//!
//! The table is [`table::ROWS`]. Every cell is played against the real driver over the software
//! transport. After each cell the accounts of the DMA API must balance: the driver's memory is
//! back, or counted as lost if the cell says so, and another device's bytes are untouched. The
//! flips (`flips.rs`) change any shared byte between any two accesses of a driver.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

mod console;
mod disk;
mod flips;
mod memory;
mod net;
mod p9;
mod table;

use std::sync::{Mutex, MutexGuard, PoisonError};

use freehold_bounce::{Direction, DmaMapping};
use freehold_virtio::platform::{Notify, Sleep, Wait, Waited};
use freehold_virtqueue::model::{self, DeviceRing, Fake, HostMemory};
use table::{End, FRAME_ROWS, Lie, Moment, ROWS};

/// One cell at a time: the accounts are shared.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the device work while a driver sleeps; time runs out after a few steps.
pub struct Step {
    device: Box<dyn Fn() + Send + Sync>,
    /// Result of a wait that is over before its time.
    late: Waited,
}

impl Step {
    pub fn leak(device: impl Fn() + Send + Sync + 'static) -> &'static Self {
        Box::leak(Box::new(Self { device: Box::new(device), late: Waited::TimedOut }))
    }
    /// Of tasks that are killed instead: where nothing has a time-out.
    pub fn leak_killed(device: impl Fn() + Send + Sync + 'static) -> &'static Self {
        Box::leak(Box::new(Self { device: Box::new(device), late: Waited::Killed }))
    }
}

impl Notify for Step {
    fn notify(&self) {}
}

impl Wait for Step {
    fn wait_until(&self, _: u64, _: Sleep, condition: &mut dyn FnMut() -> bool) -> Waited {
        let held = (0..4).any(|_| {
            let held = condition();
            if !held {
                (self.device)();
            }
            held
        });
        if held { Waited::Held } else { self.late }
    }
    fn notify_one(&self) {}
}

/// Tells a lie about the chain that starts at `head`, if it is one that is told in a used ring;
/// `written` is the true length. Returns whether it is such a lie.
pub fn tell(ring: &mut DeviceRing, lie: Lie, head: u32, written: u32) -> bool {
    let index = |ring: &DeviceRing, value: u16| model::write(ring.used + 2, &value.to_le_bytes());
    match lie {
        Lie::IdBeyondRing => ring.give(u32::from(ring.size), written),
        Lie::IdOfAllOnes => ring.give(u32::MAX, written),
        Lie::IdInUpperBits => ring.give(head + 0x1_0000, written),
        Lie::IdNotInFlight => ring.give(u32::from(ring.size) - 1, written),
        Lie::IdTwice => {
            ring.give(head, written);
            ring.give(head, written);
        }
        Lie::LengthZero => ring.give(head, 0),
        Lie::LengthTooLong => ring.give(head, written + 1),
        Lie::LengthHuge => ring.give(head, u32::MAX),
        Lie::IndexBack => index(ring, ring.given.wrapping_sub(1)),
        Lie::IndexForward => index(ring, ring.given.wrapping_add(40)),
        Lie::IndexJump => index(ring, ring.given.wrapping_add(0x8000)),
        Lie::UsedFlags => {
            model::write(ring.used, &u16::MAX.to_le_bytes());
            ring.give(head, written);
        }
        _ => return false,
    }
    true
}

/// Sets up a lie in the device's registers. Returns whether `lie` is such a lie.
pub fn misreport(fake: &Fake, lie: Lie) -> bool {
    match lie {
        Lie::ConfigShort => fake.set_config(&[0; 3]),
        Lie::ConfigNeverSettles => fake.never_settle(),
        Lie::QueueSizeZero => fake.set_queue_size(0),
        Lie::QueueSizeSmall => fake.set_queue_size(3),
        Lie::QueueSizeOdd => fake.set_queue_size(1000),
        Lie::QueueSizeHuge => fake.set_queue_size(u32::MAX),
        Lie::NoVersion1 => fake.set_features(0b110_0011),
        Lie::FeaturesOfAllOnes => fake.set_features(u64::MAX),
        Lie::FeaturesRefused => fake.refuse_features(),
        Lie::ResetRefused => fake.refuse_resets(),
        _ => return false,
    }
    true
}

/// Bytes that no device may touch.
struct Canary(DmaMapping<HostMemory>);

impl Canary {
    fn new() -> Self {
        let canary = model::device().buffer(4096, Direction::Bidirectional).unwrap();
        canary.write(0, &[0x5a; 4096]);
        Self(canary)
    }
    fn sings(&self) -> bool {
        let mut bytes = [0; 4096];
        self.0.read(0, &mut bytes);
        bytes == [0x5a; 4096]
    }
}

/// Plays one cell; the accounts are checked around it.
fn play(name: &str, lie: Lie, moment: Moment, expected: End, cell: fn(Lie, Moment) -> End) {
    let device = model::device();
    let canary = Canary::new();
    let before = (device.held(), device.lost());
    let end = cell(lie, moment);
    assert_eq!(end, expected, "{name}, {lie:?}, {moment:?}");
    let (held, lost) = (device.held() - before.0, device.lost() - before.1);
    assert_eq!(held, lost, "{name}, {lie:?}, {moment:?}: what is held and not lost is a leak");
    assert_eq!(lost > 0, end == End::Lost, "{name}, {lie:?}, {moment:?}: {lost} bytes are lost");
    assert!(canary.sings(), "{name}, {lie:?}, {moment:?}: another device's bytes changed");
}

type Column = (&'static str, fn(&table::Row) -> [End; 3], fn(Lie, Moment) -> End);

fn play_row(name: &str, lie: Lie, expected: [End; 3], cell: fn(Lie, Moment) -> End) {
    for (moment, end) in [Moment::Attach, Moment::Load, Moment::Detach].into_iter().zip(expected) {
        play(name, lie, moment, end, cell);
    }
}

fn play_column((name, expected, cell): Column) {
    let _turn = turn();
    for row in &ROWS {
        play_row(name, row.lie, expected(row), cell);
    }
}

#[test]
fn every_lie_of_a_disk_ends_as_the_table_says() {
    play_column(("disk", |row| row.disk, disk::cell));
}

#[test]
fn every_lie_of_a_console_ends_as_the_table_says() {
    play_column(("console", |row| row.console, console::cell));
}

#[test]
fn every_lie_of_a_memory_device_ends_as_the_table_says() {
    play_column(("memory", |row| row.memory, memory::cell));
}

#[test]
fn every_lie_of_a_device_of_messages_ends_as_the_table_says() {
    play_column(("messages", |row| row.p9, p9::cell));
}

#[test]
fn every_lie_of_a_network_device_ends_as_the_table_says() {
    play_column(("network", |row| row.net, net::cell));
}

#[test]
fn every_lie_about_a_frame_ends_as_the_table_says() {
    let _turn = turn();
    for (lie, expected) in FRAME_ROWS {
        play_row("network", lie, expected, net::cell);
    }
}
