//! Tasks that wait for a disk, with the driver itself in every order of sleeping and waking that
//! shuttle tries: tasks that read, some that are killed, a device that answers requests of living
//! and of ended tasks, and its interrupt. No wait has a limit here, so a wake-up that is lost
//! leaves a task asleep for ever, which shuttle reports as a deadlock.

extern crate std;

use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;

use freehold_bounce::Device;
use freehold_virtqueue::model::{self, Fake, HostMemory};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use crate::block::{DEPTH, VirtioBlock};
use crate::driver_tests::{Whole, answer, answer_one, fake_disk};
use crate::platform::{Lines, Notify, Sleep, Wait, Waited};
use crate::transport::Features;
use crate::{BlockDevice, BlockError, SECTOR_SIZE};

/// A fault of the machine around the driver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A sleeper looks at its condition before it announces its sleep, and not after.
    LooksTooEarly,
    /// The interrupt tells only the tasks whose request is with the device.
    TellsAnswersOnly,
    /// News for all tasks in a line reaches the first of them only.
    TellsOne,
}

/// A task in a line, as the kernel's wait queues have it: who wakes it does not take it out.
struct Sleeper {
    number: u64,
    sleep: Sleep,
    is_asleep: bool,
    is_killed: bool,
    /// Its time has run out.
    is_late: bool,
}

/// A line of tasks.
pub(crate) struct Line {
    fault: Fault,
    sleepers: Mutex<(u64, Vec<Sleeper>)>,
    woken: Condvar,
    /// Told before a task sleeps here: it may have sent something.
    bell: Option<Arc<Bell>>,
}

/// The condition that the device waits for.
#[derive(Default)]
pub(crate) struct Bell {
    /// Whether it was rung, and whether the device shall end.
    state: Mutex<(bool, bool)>,
    rung: Condvar,
}

impl Bell {
    /// Calls the device.
    pub(crate) fn ring(&self) {
        self.state.lock().unwrap().0 = true;
        self.rung.notify_all();
    }
    /// Calls the device to end.
    pub(crate) fn end(&self) {
        *self.state.lock().unwrap() = (true, true);
        self.rung.notify_all();
    }
    /// Waits until the bell is rung. Returns whether the device goes on.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        while !state.0 {
            state = self.rung.wait(state).unwrap();
        }
        state.0 = false;
        !state.1
    }
}

impl Line {
    pub(crate) fn new(fault: Fault, bell: Option<Arc<Bell>>) -> &'static Line {
        Box::leak(Box::new(Line { fault, sleepers: Mutex::default(), woken: Condvar::new(), bell }))
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.sleepers.lock().unwrap().1.is_empty()
    }
    /// Kills the task that came first, where one waits that can be killed.
    pub(crate) fn kill_first(&self) {
        let mut sleepers = self.sleepers.lock().unwrap();
        if let Some(first) = sleepers.1.iter_mut().find(|sleeper| sleeper.sleep == Sleep::Killable) {
            (first.is_killed, first.is_asleep) = (true, false);
        }
        self.woken.notify_all();
    }
    /// The clock goes on: the time of the task that came first runs out.
    pub(crate) fn expire_first(&self) {
        let mut sleepers = self.sleepers.lock().unwrap();
        if let Some(first) = sleepers.1.iter_mut().find(|sleeper| !sleeper.is_late) {
            (first.is_late, first.is_asleep) = (true, false);
        }
        self.woken.notify_all();
    }
}

impl Notify for Line {
    fn notify(&self) {
        if self.fault == Fault::TellsOne {
            return self.notify_one();
        }
        self.sleepers.lock().unwrap().1.iter_mut().for_each(|sleeper| sleeper.is_asleep = false);
        self.woken.notify_all();
    }
}

impl Wait for Line {
    fn wait_until(&self, _: u64, sleep: Sleep, condition: &mut dyn FnMut() -> bool) -> Waited {
        if condition() {
            return Waited::Held;
        }
        if let Some(bell) = &self.bell {
            bell.ring();
        }
        let mut sleepers = self.sleepers.lock().unwrap();
        let number = sleepers.0;
        sleepers.0 += 1;
        sleepers.1.push(Sleeper { number, sleep, is_asleep: false, is_killed: false, is_late: false });
        drop(sleepers);
        let of = |sleepers: &mut (u64, Vec<Sleeper>)| {
            sleepers.1.iter().position(|sleeper| sleeper.number == number).expect("it takes itself out")
        };
        let outcome = loop {
            let holds_early = self.fault == Fault::LooksTooEarly && condition();
            let mut sleepers = self.sleepers.lock().unwrap();
            let at = of(&mut sleepers);
            sleepers.1[at].is_asleep = !(sleepers.1[at].is_killed || sleepers.1[at].is_late);
            drop(sleepers);
            if holds_early || (self.fault != Fault::LooksTooEarly && condition()) {
                break Waited::Held;
            }
            let mut sleepers = self.sleepers.lock().unwrap();
            let at = of(&mut sleepers);
            // A task that is to end looked once more: what it was woken for may have been another's
            // news.
            if sleepers.1[at].is_killed {
                break Waited::Killed;
            }
            if sleepers.1[at].is_late {
                break Waited::TimedOut;
            }
            while {
                let at = of(&mut sleepers);
                sleepers.1[at].is_asleep
            } {
                sleepers = self.woken.wait(sleepers).unwrap();
            }
        };
        let mut sleepers = self.sleepers.lock().unwrap();
        let at = of(&mut sleepers);
        sleepers.1.remove(at);
        outcome
    }
    fn notify_one(&self) {
        let mut sleepers = self.sleepers.lock().unwrap();
        if let Some(first) = sleepers.1.iter_mut().find(|sleeper| sleeper.is_asleep) {
            first.is_asleep = false;
        }
        self.woken.notify_all();
    }
}

/// The line that a disk knows for all of its life, and the one of this exploration.
#[derive(Default)]
struct CurrentLine(std::sync::Mutex<Option<&'static Line>>);

impl CurrentLine {
    fn new() -> &'static CurrentLine {
        Box::leak(Box::default())
    }
    fn set(&self, line: &'static Line) {
        *self.0.lock().unwrap() = Some(line);
    }
    fn get(&self) -> &'static Line {
        self.0.lock().unwrap().expect("an exploration has begun")
    }
}

impl Notify for CurrentLine {
    fn notify(&self) {
        self.get().notify();
    }
}

impl Wait for CurrentLine {
    fn wait_until(&self, limit_ns: u64, sleep: Sleep, condition: &mut dyn FnMut() -> bool) -> Waited {
        self.get().wait_until(limit_ns, sleep, condition)
    }
    fn notify_one(&self) {
        self.get().notify_one();
    }
}

/// The disk's interrupt, as `kernel/src/host/devices.rs` has it.
pub(crate) fn interrupt(fault: Fault, answers: &Line, turns: &Line) {
    if fault != Fault::TellsAnswersOnly && answers.is_empty() {
        turns.notify_one();
    } else {
        answers.notify();
    }
}

/// The beginning of one exploration.
#[derive(Clone, Copy)]
struct Scene {
    fault: Fault,
    /// Places whose requests are with the device for tasks that have ended.
    abandoned: usize,
    /// Whether the device answers those at the end only.
    keeps: bool,
    /// Bytes that the disk may hold.
    memory: usize,
    /// Sectors that each of three tasks reads.
    sectors: usize,
}

/// A read by a task that is killed while the device has its request.
pub(crate) fn abandon(disk: &VirtioBlock<HostMemory, Fake>, answers: &'static Line) {
    let killer = thread::spawn(move || {
        while answers.is_empty() {
            thread::yield_now();
        }
        answers.kill_first();
    });
    let ended = disk.read(0, &mut Whole(std::vec![0; SECTOR_SIZE]), Sleep::Killable);
    assert_eq!(ended, Err(BlockError::Killed));
    killer.join().unwrap();
}

/// The disk of a test, which is at rest between explorations.
struct World {
    fake: Fake,
    device: Device<HostMemory>,
    answers: &'static CurrentLine,
    turns: &'static CurrentLine,
    disk: VirtioBlock<HostMemory, Fake>,
    held_at_rest: usize,
}

impl World {
    fn new(memory: usize) -> Arc<World> {
        let (fake, device) = (fake_disk(64, Features::empty()), model::limited_device(memory));
        let (answers, turns) = (CurrentLine::new(), CurrentLine::new());
        let disk = VirtioBlock::new(fake.clone(), device, Lines { answers, turns }).unwrap();
        Arc::new(World { fake, device, answers, turns, disk, held_at_rest: device.held() })
    }

    fn explore(self: &Arc<World>, Scene { fault, abandoned, keeps, sectors, .. }: Scene) {
        let bell = Arc::new(Bell::default());
        let (answers, turns) = (Line::new(fault, Some(bell.clone())), Line::new(fault, None));
        self.answers.set(answers);
        self.turns.set(turns);
        (0..abandoned).for_each(|_| abandon(&self.disk, self.answers.get()));
        let kept: Vec<_> = core::iter::from_fn(|| if keeps { self.fake.take(0) } else { None }).collect();
        let readers = [Sleep::Uninterruptible, Sleep::Killable, Sleep::Killable].map(|sleep| {
            let world = self.clone();
            thread::spawn(move || world.disk.read(0, &mut Whole(std::vec![0; sectors * SECTOR_SIZE]), sleep))
        });
        let killers = [turns, answers].map(|line| thread::spawn(move || line.kill_first()));
        let server = {
            let (world, bell) = (self.clone(), bell.clone());
            thread::spawn(move || {
                while bell.wait() {
                    while answer_one(&world.fake) {
                        interrupt(fault, answers, turns);
                    }
                }
            })
        };
        let outcomes = readers.map(|reader| reader.join().unwrap());
        killers.into_iter().for_each(|killer| killer.join().unwrap());
        bell.end();
        server.join().unwrap();
        assert_eq!(outcomes[0], Ok(()));
        assert!(outcomes[1..].iter().all(|outcome| matches!(outcome, Ok(()) | Err(BlockError::Killed))));
        while answer_one(&self.fake) {}
        kept.into_iter().for_each(|request| answer(&self.fake, request));
        self.disk.look();
        assert_eq!((self.disk.places(), self.device.held()), ((DEPTH, 0), self.held_at_rest));
    }
}

/// Some thousand schedules; more where properties are tested with more inputs than proptest's 256.
fn check(scene: Scene) {
    let world = World::new(scene.memory);
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    shuttle::check_random(move || world.explore(scene), 4000 * cases.unwrap_or(256usize).max(256) / 256);
}

const NO_PLACE: Scene =
    Scene { fault: Fault::None, abandoned: DEPTH, keeps: false, memory: 1 << 20, sectors: 1 };
const NO_MEMORY: Scene =
    Scene { fault: Fault::None, abandoned: 0, keeps: false, memory: 20 << 10, sectors: 24 };

#[test]
fn who_waits_for_a_place_gets_one_in_every_order() {
    check(NO_PLACE);
    for keeps in [false, true] {
        check(Scene { abandoned: DEPTH - 1, keeps, ..NO_PLACE });
    }
}

#[test]
fn who_waits_for_memory_gets_some_in_every_order() {
    check(NO_MEMORY);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_late_answer_that_tells_nobody_in_the_line_for_places_is_found() {
    check(Scene { fault: Fault::TellsAnswersOnly, ..NO_PLACE });
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_sleeper_that_looks_too_early_is_found() {
    check(Scene { fault: Fault::LooksTooEarly, ..NO_PLACE });
}
