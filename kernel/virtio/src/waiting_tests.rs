//! Tasks that wait for a disk: for a place, for memory, for an answer.

extern crate std;

use std::boxed::Box;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use freehold_virtqueue::model::{self, Fake};

use crate::block::{DEPTH, VirtioBlock};
use crate::driver_tests::{Whole, answer_one, fake_disk, sector, serve};
use crate::platform::{Lines, Notify, Sleep, Wait, Waited};
use crate::transport::Features;
use crate::{BlockDevice, BlockError, Failed, SECTOR_SIZE};

/// Sleeps as the kernel does: until it is notified, in the order of the queue.
#[derive(Default)]
struct Sleeper {
    /// Notices so far; those for one task each that no task has had; tasks that are to end.
    state: Mutex<(u64, Vec<u64>)>,
    changed: std::sync::Condvar,
    /// Whether a wait returns as killed when the time runs out.
    kills: std::sync::atomic::AtomicBool,
}

impl Notify for Sleeper {
    fn notify(&self) {
        self.state.lock().unwrap().0 += 1;
        self.changed.notify_all();
    }
}

impl Sleeper {
    /// Ends the wait of every task that sleeps and may be killed.
    fn kill(&self) {
        self.kills.store(true, std::sync::atomic::Ordering::SeqCst);
        self.notify();
    }
    /// Tasks that sleep.
    fn sleeping(&self) -> usize {
        self.state.lock().unwrap().1.len()
    }
}

impl Wait for Sleeper {
    fn wait_until(&self, _: u64, sleep: Sleep, condition: &mut dyn FnMut() -> bool) -> Waited {
        let limit = std::time::Duration::from_secs(60);
        let mut state = self.state.lock().unwrap();
        loop {
            let before = state.0;
            drop(state);
            if condition() {
                return Waited::Held;
            }
            if sleep == Sleep::Killable && self.kills.load(std::sync::atomic::Ordering::SeqCst) {
                return Waited::Killed;
            }
            state = self.state.lock().unwrap();
            if state.0 != before {
                continue;
            }
            static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
            let me = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            state.1.push(me);
            let asleep = |state: &mut (u64, Vec<u64>)| state.0 == before && state.1.contains(&me);
            let (guard, timeout) = self.changed.wait_timeout_while(state, limit, asleep).unwrap();
            state = guard;
            state.1.retain(|&other| other != me);
            if timeout.timed_out() {
                return Waited::TimedOut;
            }
        }
    }
    fn notify_one(&self) {
        let mut state = self.state.lock().unwrap();
        if state.1.is_empty() {
            // A task that is about to sleep looks again first.
            state.0 += 1;
        } else {
            state.1.remove(0);
        }
        self.changed.notify_all();
    }
}

fn sleeper() -> &'static Sleeper {
    Box::leak(Box::<Sleeper>::default())
}

fn sleepers() -> Lines {
    Lines { answers: sleeper(), turns: sleeper() }
}

/// Serves `fake` from `contents` until the result is dropped; `lines` is told as an interrupt
/// would.
fn serve_in_background(fake: &Fake, contents: Vec<u8>, line: &'static Sleeper) -> impl Drop + use<> {
    struct Server(Arc<std::sync::atomic::AtomicBool>, Option<std::thread::JoinHandle<()>>);
    impl Drop for Server {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
            self.1.take().unwrap().join().unwrap();
        }
    }
    let (fake, contents, ends) = (fake.clone(), Mutex::new(contents), Arc::default());
    let over: Arc<std::sync::atomic::AtomicBool> = Arc::clone(&ends);
    let task = std::thread::spawn(move || {
        while !over.load(std::sync::atomic::Ordering::SeqCst) {
            serve(&fake, &contents);
            line.notify();
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    });
    Server(ends, Some(task))
}

#[test]
fn many_tasks_on_a_disk_that_may_hold_little_wait_and_none_fails() {
    let sectors = 512;
    // Headers, the spare buffer, and 12 KiB more: a transfer of 128 KiB goes in parts, and often
    // the spare is all there is.
    let device = model::limited_device(20 << 10);
    let fake = fake_disk(sectors as u64, Features::empty());
    let (answers, turns) = (sleeper(), sleeper());
    let disk = VirtioBlock::new(fake.clone(), device, Lines { answers, turns }).unwrap();
    let contents: Vec<u8> = (0..sectors * SECTOR_SIZE).map(|at| (at / SECTOR_SIZE) as u8).collect();
    let server = serve_in_background(&fake, contents, answers);
    std::thread::scope(|scope| {
        for task in 0..48u64 {
            let disk = &disk;
            scope.spawn(move || {
                let mut bytes = Whole(std::vec![0; 256 * SECTOR_SIZE]);
                disk.read(task, &mut bytes, Sleep::Killable).unwrap();
                let right = |(at, &byte): (usize, &u8)| byte == (task as usize + at / SECTOR_SIZE) as u8;
                assert!(bytes.0.iter().enumerate().all(right));
            });
        }
    });
    drop(server);
    assert_eq!(disk.places(), (DEPTH, 0));
    assert!(device.held() <= 20 << 10);
}

#[test]
fn a_task_that_waits_holds_no_memory_and_one_that_is_killed_hands_its_turn_on() {
    let fake = fake_disk(8, Features::empty());
    let (answers, turns) = (sleeper(), sleeper());
    let device = model::limited_device(1 << 20);
    let disk = VirtioBlock::new(fake.clone(), device, Lines { answers, turns }).unwrap();
    let empty = device.held();
    std::thread::scope(|scope| {
        let busy: Vec<_> =
            (0..DEPTH).map(|_| scope.spawn(|| disk.read(0, &mut sector(), Sleep::Killable))).collect();
        while disk.places() != (0, 0) || answers.sleeping() < DEPTH {
            std::thread::yield_now();
        }
        let full = device.held();
        assert!(full > empty);
        let waiting: Vec<_> =
            (0..30).map(|_| scope.spawn(|| disk.read(0, &mut sector(), Sleep::Killable))).collect();
        let patient = scope.spawn(|| disk.read(0, &mut sector(), Sleep::Uninterruptible));
        while turns.sleeping() < 31 {
            std::thread::yield_now();
        }
        assert_eq!((disk.places(), device.held()), ((0, 31), full));
        turns.kill();
        assert!(waiting.into_iter().all(|task| task.join().unwrap() == Err(BlockError::Killed)));
        assert_eq!(disk.places(), (0, 1));
        let server = serve_in_background(&fake, std::vec![0; 8 * SECTOR_SIZE], answers);
        assert_eq!(patient.join().unwrap(), Ok(()));
        assert!(busy.into_iter().all(|task| task.join().unwrap() == Ok(())));
        drop(server);
    });
    assert_eq!((disk.places(), device.held()), ((DEPTH, 0), empty));
}

#[test]
fn a_killed_task_leaves_its_request_to_the_device_which_keeps_place_and_memory_until_it_answers() {
    let fake = fake_disk(16, Features::empty());
    let (answers, turns) = (sleeper(), sleeper());
    let device = model::limited_device(1 << 20);
    let disk = VirtioBlock::new(fake.clone(), device, Lines { answers, turns }).unwrap();
    let empty = device.held();
    std::thread::scope(|scope| {
        let task = scope.spawn(|| disk.read(0, &mut Whole(std::vec![0; 16 * SECTOR_SIZE]), Sleep::Killable));
        while answers.sleeping() == 0 {
            std::thread::yield_now();
        }
        answers.kill();
        assert_eq!(task.join().unwrap(), Err(BlockError::Killed));
    });
    assert!(disk.places() == (DEPTH - 1, 0) && device.held() > empty);
    assert!(answer_one(&fake));
    disk.look();
    assert!(disk.places() == (DEPTH, 0) && device.held() == empty);
}

/// Notes whether the disk's lock was taken when memory was short.
#[derive(Default)]
struct LockWatch {
    disk: std::sync::OnceLock<&'static VirtioBlock<model::HostMemory, Fake>>,
    calls: std::sync::atomic::AtomicUsize,
    was_locked: std::sync::atomic::AtomicBool,
}

impl freehold_bounce::Worker for LockWatch {
    fn wake(&self) {
        let Some(disk) = self.disk.get() else { return };
        self.calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if !disk.is_unlocked() {
            self.was_locked.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
}

/// Therefore the kernel needs no reserve of device memory for tasks with a spin lock (Linux'
/// `coherent_pool=`).
#[test]
fn no_task_takes_memory_with_the_lock_of_its_disk() {
    let [device, other] = model::devices_sharing(64 << 10);
    let watch: &LockWatch = Box::leak(Box::default());
    device.dma().set_worker(watch);
    let fake = fake_disk(64, Features::empty());
    let (answers, turns) = (sleeper(), sleeper());
    let disk = VirtioBlock::new(fake.clone(), device, Lines { answers, turns }).unwrap();
    let disk: &VirtioBlock<_, _> = Box::leak(Box::new(disk));
    let all: Vec<_> =
        std::iter::from_fn(|| other.buffer(4096, freehold_bounce::Direction::ToDevice).ok()).collect();
    watch.disk.set(disk).ok().unwrap();
    std::thread::scope(|scope| {
        let tasks = [1, 2].map(|waiting| {
            let task = scope.spawn(|| disk.read(0, &mut Whole(std::vec![0; 4096]), Sleep::Uninterruptible));
            while answers.sleeping() < waiting {
                std::thread::yield_now();
            }
            task
        });
        drop(all);
        let server = serve_in_background(&fake, std::vec![0; 64 * SECTOR_SIZE], answers);
        assert!(tasks.into_iter().all(|task| task.join().unwrap() == Ok(())));
        drop(server);
    });
    assert!(watch.calls.load(std::sync::atomic::Ordering::SeqCst) > 1, "the second task found none, twice");
    assert!(!watch.was_locked.load(std::sync::atomic::Ordering::SeqCst));
}

/// Tasks wait for `length` bytes each until the disk begins to work; what they hold in between,
/// beyond what it has at rest.
fn held_by(tasks: usize, length: usize) -> usize {
    let fake = fake_disk(64, Features::empty());
    let (answers, turns) = (sleeper(), sleeper());
    let device = model::limited_device(1 << 20);
    let disk = VirtioBlock::new(fake.clone(), device, Lines { answers, turns }).unwrap();
    let empty = device.held();
    let contents: Vec<u8> = (0..64 * SECTOR_SIZE).map(|at| (at / 7) as u8).collect();
    let held = std::thread::scope(|scope| {
        for _ in 0..tasks {
            scope.spawn(|| {
                let mut bytes = Whole(std::vec![0; length]);
                disk.read(1, &mut bytes, Sleep::Killable).unwrap();
                assert_eq!(bytes.0, contents[SECTOR_SIZE..SECTOR_SIZE + length]);
            });
        }
        while answers.sleeping() < tasks {
            std::thread::yield_now();
        }
        let held = device.held() - empty;
        let server = serve_in_background(&fake, contents.clone(), answers);
        while disk.places().0 < DEPTH {
            std::thread::yield_now();
        }
        drop(server);
        held
    });
    assert_eq!(device.held(), empty);
    held
}

#[test]
fn a_short_request_begins_with_the_spare_buffer_and_one_beside_it_takes_memory_of_its_own() {
    assert_eq!(held_by(1, 4096), 0);
    assert_eq!(held_by(3, 4096), 2 * 4096);
    assert_eq!(held_by(1, 4096 + SECTOR_SIZE), 2 * 4096);
}

#[test]
fn a_disk_that_fails_wakes_every_task_that_waits_for_it() {
    let fake = fake_disk(8, Features::empty());
    let disk = VirtioBlock::new(fake.clone(), model::device(), sleepers()).unwrap();
    let errors: Vec<_> = std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..DEPTH + 4)
            .map(|_| scope.spawn(|| disk.read(0, &mut sector(), Sleep::Uninterruptible)))
            .collect();
        while disk.places().0 > 0 {
            std::thread::yield_now();
        }
        fake.give(0, 63, 1);
        // No interrupt: the next request finds the lie.
        assert_eq!(disk.read(0, &mut sector(), Sleep::Uninterruptible), Err(BlockError::Failed));
        waiting.into_iter().map(|task| task.join().unwrap()).collect()
    });
    assert!(errors.iter().all(|error| *error == Err(BlockError::Failed)), "{errors:?}");
}

/// A slot, with whether it is off.
struct TestSlot(std::sync::atomic::AtomicBool);

impl freehold_virtqueue::PowerSlot for TestSlot {
    fn is_off(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// Forty tasks, of which none is to be killed, with and without a place: the disk is plugged out,
/// with its confirmation of a reset or without, and each fails at once. Then nothing is held, by
/// requests of tasks that had been killed before either.
#[test]
fn a_disk_that_is_plugged_out_fails_every_request_and_holds_nothing() {
    for confirms in [true, false] {
        let fake = fake_disk(64, Features::BLOCK_FLUSH);
        let device = model::limited_device(1 << 20);
        let lines = sleepers();
        let disk = Arc::new(VirtioBlock::new(fake.clone(), device, lines).unwrap());
        let tasks: Vec<_> = (0..40)
            .map(|number| {
                let disk = disk.clone();
                std::thread::spawn(move || match number % 3 {
                    0 => disk.read(0, &mut sector(), Sleep::Uninterruptible),
                    1 => disk.write(0, &Whole(std::vec![1; 8 * SECTOR_SIZE]), Sleep::Uninterruptible),
                    _ => disk.flush(Sleep::Uninterruptible),
                })
            })
            .collect();
        while disk.places().1 + DEPTH < 40 {
            std::thread::yield_now();
        }
        assert!(!disk.is_quiet());
        let slot = TestSlot(false.into());
        if !confirms {
            fake.refuse_resets();
            assert_eq!(disk.remove(&slot), Err(Failed), "it may still write");
            slot.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
        disk.remove(&slot).unwrap();
        for task in tasks {
            assert_eq!(task.join().unwrap(), Err(BlockError::Failed));
        }
        assert!(disk.is_quiet());
        assert_eq!((device.held(), device.lost()), (0, 0));
        disk.remove(&slot).unwrap();
        assert_eq!(disk.read(0, &mut sector(), Sleep::Uninterruptible), Err(BlockError::Failed));
        device.detach().unwrap();
    }
}

/// Requests of a disk that breaks the protocol fail, and none keeps its place: the disk can be
/// plugged out, whether it confirmed the reset or not.
#[test]
fn a_disk_that_failed_with_requests_under_way_can_be_plugged_out() {
    for confirms in [true, false] {
        let fake = fake_disk(8, Features::empty());
        let device = model::limited_device(1 << 20);
        let disk = VirtioBlock::new(fake.clone(), device, sleepers()).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| disk.read(0, &mut sector(), Sleep::Uninterruptible));
            while fake.notices(0) == 0 {
                std::thread::yield_now();
            }
            if !confirms {
                fake.refuse_resets();
            }
            fake.give(0, 63, 1);
            assert_eq!(disk.read(0, &mut sector(), Sleep::Uninterruptible), Err(BlockError::Failed));
            assert_eq!(waits.join().unwrap(), Err(BlockError::Failed));
        });
        disk.remove(&TestSlot(true.into())).unwrap();
        assert!(disk.is_quiet(), "{:?}", disk.places());
        assert_eq!(device.held(), device.lost());
        assert_eq!(device.lost() > 0, !confirms, "what the device may write to stays out of use");
    }
}
