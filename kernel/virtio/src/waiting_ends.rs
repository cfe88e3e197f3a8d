//! The ends of waiting, in every order that shuttle tries, beside `waiting_model.rs`: a disk that
//! is plugged out while tasks wait for it, time that runs out, and two disks that share little
//! memory, which is taken back while they wait.

extern crate std;

use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

use freehold_bounce::Device;
use freehold_virtqueue::PowerSlot;
use freehold_virtqueue::model::{self, Fake, HostMemory};
use shuttle::thread;

use crate::block::{DEPTH, VirtioBlock};
use crate::driver_tests::{Whole, answer_one, fake_disk};
use crate::platform::{Lines, Sleep};
use crate::transport::Features;
use crate::waiting_model::{Bell, Fault, Line, abandon, interrupt};
use crate::{BlockDevice, BlockError, SECTOR_SIZE};

/// A slot that is empty.
struct Empty;

impl PowerSlot for Empty {
    fn is_off(&self) -> bool {
        true
    }
}

/// A disk and its lines.
struct Waited {
    fake: Fake,
    disk: Arc<VirtioBlock<HostMemory, Fake>>,
    bell: Arc<Bell>,
    answers: &'static Line,
    turns: &'static Line,
}

impl Waited {
    fn new(device: Device<HostMemory>, fault: Fault) -> Self {
        let bell = Arc::new(Bell::default());
        let (answers, turns) = (Line::new(fault, Some(bell.clone())), Line::new(fault, None));
        let fake = fake_disk(64, Features::empty());
        let disk = VirtioBlock::new(fake.clone(), device, Lines { answers, turns }).unwrap();
        Self { fake, disk: Arc::new(disk), bell, answers, turns }
    }
    /// A task that reads so many sectors.
    fn reader(&self, sectors: usize) -> thread::JoinHandle<Result<(), BlockError>> {
        let disk = self.disk.clone();
        thread::spawn(move || {
            disk.read(0, &mut Whole(std::vec![0; sectors * SECTOR_SIZE]), Sleep::Uninterruptible)
        })
    }
    /// So many requests of tasks that have ended, which the device keeps.
    fn fill(&self, places: usize) {
        (0..places).for_each(|_| abandon(&self.disk, self.answers));
    }
    /// The device, which answers until it is told to end.
    fn server(&self) -> thread::JoinHandle<()> {
        let (fake, bell, answers, turns) = (self.fake.clone(), self.bell.clone(), self.answers, self.turns);
        thread::spawn(move || {
            while bell.wait() {
                while answer_one(&fake) {
                    interrupt(Fault::None, answers, turns);
                }
            }
        })
    }
}

fn schedules() -> usize {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    1000 * cases.unwrap_or(256usize).max(256) / 256
}

/// Three tasks, two or all of which wait for a place, and the slot's task, which takes the disk
/// away.
fn unplug(device: Device<HostMemory>, filled: usize, fault: Fault) {
    device.reattach().unwrap();
    let waited = Waited::new(device, fault);
    waited.fill(filled);
    let readers = [(); 3].map(|()| waited.reader(1));
    let disk = waited.disk.clone();
    let slot = thread::spawn(move || {
        disk.remove(&Empty).unwrap();
        while !disk.is_quiet() {
            thread::yield_now();
        }
        device.detach().expect("no task holds anything any more");
    });
    for reader in readers {
        assert_eq!(reader.join().unwrap(), Err(BlockError::Failed));
    }
    slot.join().unwrap();
    assert_eq!((waited.disk.is_quiet(), device.held(), device.is_detached()), (true, 0, true));
}

/// Three tasks on a device that never answers, and the clock.
fn expire(device: Device<HostMemory>, fault: Fault) {
    device.reattach().unwrap();
    let waited = Waited::new(device, fault);
    waited.fill(DEPTH - 1);
    let readers = [(); 3].map(|()| waited.reader(1));
    let (answers, turns) = (waited.answers, waited.turns);
    let clock = thread::spawn(move || {
        // The time of one task runs out: the silence concerns all.
        while answers.is_empty() {
            thread::yield_now();
        }
        answers.expire_first();
        turns.is_empty()
    });
    for reader in readers {
        assert_eq!(reader.join().unwrap(), Err(BlockError::TimedOut));
    }
    clock.join().unwrap();
    waited.disk.remove(&Empty).unwrap();
    assert!(waited.disk.is_quiet());
    device.detach().unwrap();
}

/// Two disks of one memory that has a few pages for both, a task each that wants more than that,
/// and the worker that takes memory back.
fn share(devices: [Device<HostMemory>; 2]) {
    let disks = devices.map(|device| Waited::new(device, Fault::None));
    let servers: Vec<_> = disks.iter().map(Waited::server).collect();
    let readers: Vec<_> = disks.iter().flat_map(|disk| [disk.reader(40), disk.reader(8)]).collect();
    let worker = thread::spawn(move || {
        for _ in 0..3 {
            devices[0].dma().shrink();
            thread::yield_now();
        }
    });
    for reader in readers {
        assert_eq!(reader.join().unwrap(), Ok(()), "neither starves the other");
    }
    worker.join().unwrap();
    disks.iter().for_each(|disk| disk.bell.end());
    servers.into_iter().for_each(|server| server.join().unwrap());
    for (disk, device) in disks.iter().zip(devices) {
        assert_eq!(disk.disk.places(), (DEPTH, 0));
        disk.disk.remove(&Empty).unwrap();
        assert_eq!(device.held(), 0);
    }
}

fn check(scene: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(scene, schedules());
}

#[test]
fn who_waits_when_the_disk_is_plugged_out_ends_in_every_order() {
    let device = model::limited_device(1 << 20);
    for filled in [DEPTH - 1, DEPTH] {
        check(move || unplug(device, filled, Fault::None));
    }
}

#[test]
#[should_panic(expected = "deadlock")]
fn an_end_that_is_told_to_one_task_only_is_found() {
    let device = model::limited_device(1 << 20);
    check(move || unplug(device, DEPTH, Fault::TellsOne));
}

#[test]
fn a_silence_that_one_task_finds_ends_the_wait_of_all_in_every_order() {
    let device = model::limited_device(1 << 20);
    check(move || expire(device, Fault::None));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_silence_that_is_told_to_one_task_only_is_found() {
    let device = model::limited_device(1 << 20);
    check(move || expire(device, Fault::TellsOne));
}

#[test]
fn two_disks_that_share_little_memory_go_on_while_it_is_taken_back() {
    let devices: &'static [Device<HostMemory>; 2] = Box::leak(Box::new(model::devices_sharing(9 << 12)));
    check(move || share(*devices));
}
