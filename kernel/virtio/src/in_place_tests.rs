//! Transfers of frames in their places. The model checks the device's accesses: one to memory that
//! it was not given panics.

extern crate std;

use std::boxed::Box;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use freehold_bounce::{FrameList, HeldBytes, HeldFrames};
use freehold_frame::{Anon, Frame, Held, HeldFrame};
use freehold_machine::{DeviceAccess, PAGE_SHIFT, PAGE_SIZE, Pfn, PhysicalBytes, WINDOW_PAGES};
use freehold_virtqueue::model::{self, DeviceView, Fake, HostMemory};

use crate::block::{DEPTH, VirtioBlock};
use crate::driver_tests::{Step, fake_disk, serve};
use crate::platform::{Lines, Notify, Sleep, Wait, Waited};
use crate::transport::Features;
use crate::{BlockDevice, BlockError, SECTOR_SIZE};

/// Frames of a program, from here and there; given back when they have no holder.
struct Program {
    frames: Vec<Frame<Anon, HostMemory>>,
    gone: Arc<Mutex<bool>>,
}

impl Program {
    fn new(pages: usize, fill: impl Fn(usize) -> u8) -> (Self, Arc<Mutex<bool>>) {
        let take = || Frame::allocate(HostMemory).unwrap();
        // Every second frame, in descending order: no two are adjacent.
        let (mut frames, mut others) = (Vec::<Frame<Anon, _>>::new(), Vec::<Frame<Anon, _>>::new());
        for _ in 0..pages {
            frames.insert(0, take());
            others.push(take());
        }
        drop(others);
        for (page, frame) in frames.iter().enumerate() {
            HostMemory.with_bytes(frame.pfn(), |bytes| {
                bytes.iter_mut().zip(page * PAGE_SIZE..).for_each(|(byte, at)| *byte = fill(at));
            });
        }
        let gone = Arc::new(Mutex::new(false));
        (Self { frames, gone: gone.clone() }, gone)
    }
}

impl Program {
    fn numbers(&self) -> Vec<Pfn> {
        self.frames.iter().map(|frame| frame.pfn()).collect()
    }
}

fn bytes_of(frames: &[Pfn]) -> Vec<u8> {
    frames.iter().flat_map(|&frame| HostMemory.read_bytes(frame, |bytes| bytes.to_vec())).collect()
}

impl FrameList for Program {
    fn count(&self) -> usize {
        self.frames.len()
    }
    fn frame(&self, index: usize) -> HeldFrame<'_> {
        self.frames[index].held()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        *self.gone.lock().unwrap() = true;
    }
}

const SECTORS: usize = 4096;

fn contents() -> Vec<u8> {
    (0..SECTORS * SECTOR_SIZE).map(|at| (at / SECTOR_SIZE * 3 + at % 241) as u8).collect()
}

/// Data of one request as the device got it: lengths, and whether each is in its place.
type Seen = Arc<Mutex<Vec<Vec<(usize, bool)>>>>;

struct World {
    domain: &'static DeviceView,
    disk: VirtioBlock<HostMemory, Fake>,
    contents: Arc<Mutex<Vec<u8>>>,
    seen: Seen,
}

fn world(limits: Option<(u32, u32)>) -> World {
    let features = limits.map_or(Features::empty(), |_| Features::BLOCK_SIZE_MAX | Features::BLOCK_SEG_MAX);
    let fake = fake_disk(SECTORS as u64, features);
    if let Some((size, most)) = limits {
        let mut config = (SECTORS as u64).to_le_bytes().to_vec();
        config.extend(size.to_le_bytes());
        config.extend(most.to_le_bytes());
        fake.set_config(&config);
    }
    let (contents, seen) = (Arc::new(Mutex::new(contents())), Seen::default());
    let (device, domain) = model::windowed_device();
    let work = {
        let (fake, contents, seen) = (fake.clone(), contents.clone(), seen.clone());
        let act = move || {
            // A look first: taking does not change the driver's descriptors.
            let ring = fake.with_ring(0, |ring| *ring);
            let mut look = ring;
            while let Some((_, parts)) = look.take() {
                let data = &parts[1..parts.len() - 1];
                let is_window = |address: u64| domain.is_window(Pfn(address >> PAGE_SHIFT));
                let part = |part: &model::Descriptor| (part.length as usize, is_window(part.address));
                seen.lock().unwrap().push(data.iter().map(part).collect());
            }
            serve(&fake, &contents);
        };
        move || model::as_device(domain, &act)
    };
    let line = Box::leak(Box::new(Step(Box::new(work))));
    let disk = VirtioBlock::new(fake.clone(), device, Lines { answers: line, turns: line }).unwrap();
    World { domain, disk, contents, seen }
}

#[test]
fn whole_pages_go_in_place_and_heads_and_tails_are_bounced() {
    // First byte, length, and the pieces that the device is to be given: of 4 pages.
    let cases: [(usize, usize, &[(usize, bool)]); 5] = [
        (0, 4 * PAGE_SIZE, &[(4 * PAGE_SIZE, true)]),
        (PAGE_SIZE, PAGE_SIZE, &[(PAGE_SIZE, true)]),
        (512, 3 * PAGE_SIZE, &[(PAGE_SIZE - 512, false), (2 * PAGE_SIZE, true), (512, false)]),
        (0, PAGE_SIZE + 1024, &[(PAGE_SIZE, true), (1024, false)]),
        (1024, 1024, &[(1024, false)]),
    ];
    for (start, length, expected) in cases {
        let world = world(None);
        let (program, gone) = Program::new(4, |_| 7);
        let frames = program.numbers();
        let holder: Arc<dyn HeldFrames> = Arc::new(program);
        let mut bytes = HeldBytes::new(HostMemory, &holder, start, length);
        world.disk.read(5, &mut bytes, Sleep::Uninterruptible).unwrap();
        let seen: Vec<_> = world.seen.lock().unwrap().drain(..).flatten().collect();
        assert_eq!(seen, expected);
        let is = bytes_of(&frames);
        assert!(is[start..start + length] == contents()[5 * SECTOR_SIZE..][..length]);
        let around = is[..start].iter().chain(&is[start + length..]);
        assert!(around.copied().all(|byte| byte == 7), "no byte beside them changed");
        // The other way.
        world.disk.write(100, &HeldBytes::new(HostMemory, &holder, start, length), Sleep::Killable).unwrap();
        let seen: Vec<_> = world.seen.lock().unwrap().drain(..).flatten().collect();
        assert_eq!(seen, expected);
        assert!(world.contents.lock().unwrap()[100 * SECTOR_SIZE..][..length] == is[start..start + length]);
        assert_eq!(world.domain.open_pages(), 0);
        drop(holder);
        assert!(*gone.lock().unwrap(), "nobody holds them any more");
    }
}

#[test]
fn a_long_transfer_takes_windows_in_turn_and_the_devices_limits_are_kept() {
    let pages = WINDOW_PAGES + 3;
    for (limits, most) in
        [(None, WINDOW_PAGES * PAGE_SIZE), (Some((6144, 2)), 3 * PAGE_SIZE), (Some((512, 4)), 0)]
    {
        let world = world(limits);
        let (program, _) = Program::new(pages, |at| (at / 5) as u8);
        let expected = bytes_of(&program.numbers());
        let holder: Arc<dyn HeldFrames> = Arc::new(program);
        let bytes = HeldBytes::new(HostMemory, &holder, 0, pages * PAGE_SIZE);
        world.disk.write(0, &bytes, Sleep::Uninterruptible).unwrap();
        assert!(world.contents.lock().unwrap()[..expected.len()] == expected);
        for parts in world.seen.lock().unwrap().iter() {
            let in_place =
                parts.iter().filter(|(_, in_place)| *in_place).map(|(length, _)| length).sum::<usize>();
            assert!(in_place <= most, "{limits:?}: {parts:?}");
            if let Some((size, count)) = limits {
                assert!(
                    parts.len() <= count as usize && parts.iter().all(|&(length, _)| length <= size as usize)
                );
            }
        }
        let all: usize = world.seen.lock().unwrap().iter().flatten().map(|(length, _)| length).sum();
        assert_eq!(all, expected.len());
    }
}

#[test]
fn where_every_nth_table_finds_no_memory_the_bytes_are_bounced_and_nothing_is_kept() {
    for nth in 1..=7 {
        let world = world(None);
        let (program, gone) = Program::new(6, |at| (at / 3) as u8);
        let frames = program.numbers();
        let holder: Arc<dyn HeldFrames> = Arc::new(program);
        world.domain.fail_every(nth);
        for round in 0..12 {
            let (start, length) = (round % 3 * 512, 5 * PAGE_SIZE - round % 2 * 1024);
            let mut bytes = HeldBytes::new(HostMemory, &holder, start, length);
            world.disk.read(round as u64, &mut bytes, Sleep::Killable).unwrap();
            let is = bytes_of(&frames);
            assert!(
                is[start..start + length] == contents()[round * SECTOR_SIZE..][..length],
                "{nth} {round}"
            );
            world
                .disk
                .write(2000, &HeldBytes::new(HostMemory, &holder, start, length), Sleep::Killable)
                .unwrap();
            assert!(
                world.contents.lock().unwrap()[2000 * SECTOR_SIZE..][..length] == is[start..start + length]
            );
            assert_eq!((world.domain.open_pages(), world.disk.places()), (0, (DEPTH, 0)), "{nth} {round}");
        }
        let seen = world.seen.lock().unwrap();
        let is_in_place = seen.iter().flatten().any(|&(_, in_place)| in_place);
        assert_eq!(is_in_place, nth > 1, "{nth}: windows are used where there is memory");
        world.domain.fail_every(0);
        drop(holder);
        assert!(*gone.lock().unwrap());
    }
}

#[test]
fn a_device_that_looks_again_after_its_answer_is_noticed() {
    let world = world(None);
    // Places are taken in turn, and each has its window.
    let (program, _) = Program::new(2, |_| 7);
    let holder: Arc<dyn HeldFrames> = Arc::new(program);
    let look = |window: usize| world.domain.reach(world.domain.window(window), DeviceAccess::Write);
    for window in 0..DEPTH {
        assert_eq!(look(window).unwrap_err().has, None, "before");
        let mut bytes = HeldBytes::new(HostMemory, &holder, 0, PAGE_SIZE);
        world.disk.read(0, &mut bytes, Sleep::Killable).unwrap();
        assert_eq!(look(window).unwrap_err().has, None, "after");
    }
    assert!(
        holder.count() == 2 && (0..2).all(|page| !world.domain.frames().contains(&holder.frame(page).pfn()))
    );
}

/// A line on which the device acts during a wait, which then times out if that was no answer.
struct Impatient(Box<dyn Fn() + Send + Sync>);

impl Notify for Impatient {
    fn notify(&self) {}
}

impl Wait for Impatient {
    fn wait_until(&self, _: u64, sleep: Sleep, condition: &mut dyn FnMut() -> bool) -> Waited {
        if condition() || condition() {
            return Waited::Held;
        }
        assert_eq!(sleep, Sleep::Uninterruptible, "a killed task waits while the device has its frames");
        (self.0)();
        if condition() { Waited::Held } else { Waited::TimedOut }
    }
    fn notify_one(&self) {}
}

/// The outcome of a read, whether the frame was let go of, and pages that the device still reaches.
type Late = (Result<(), BlockError>, bool, usize);

/// Reads a page in place. The device does `act` while the task waits, and `late` when the task has
/// gone. Returns how things were before `late`, after it, and once the disk is gone.
fn read_late(
    act: impl Fn(&Fake, &'static DeviceView) + Send + Sync + 'static,
    late: impl Fn(&Fake, &'static DeviceView),
) -> [Late; 3] {
    let fake = fake_disk(SECTORS as u64, Features::empty());
    let (device, domain) = model::windowed_device();
    let (program, gone) = Program::new(1, |_| 7);
    let is_gone = || *gone.lock().unwrap();
    let line = Box::leak(Box::new(Impatient(Box::new({
        let fake = fake.clone();
        move || {
            assert_eq!(domain.open_pages(), 1, "the device has the frame");
            model::as_device(domain, || act(&fake, domain));
        }
    }))));
    let disk = VirtioBlock::new(fake.clone(), device, Lines { answers: line, turns: line }).unwrap();
    let holder: Arc<dyn HeldFrames> = Arc::new(program);
    let result = disk.read(0, &mut HeldBytes::new(HostMemory, &holder, 0, PAGE_SIZE), Sleep::Killable);
    drop(holder);
    let state = || (result, is_gone(), domain.open_pages());
    let before = state();
    model::as_device(domain, || late(&fake, domain));
    disk.look();
    let after = state();
    drop(disk);
    // Other tests' devices get this one's memory.
    domain.hear();
    [before, after, state()]
}

fn answer(fake: &Fake, _: &DeviceView) {
    serve(fake, &Mutex::new(contents()));
}
fn nothing(_: &Fake, _: &DeviceView) {}

#[test]
fn a_task_waits_for_the_answer_while_the_device_has_its_frames() {
    assert_eq!(read_late(answer, nothing), [(Ok(()), true, 0); 3]);
}

/// Otherwise a silent disk would stop the flusher, and tasks that reclaim memory, for ever.
#[test]
fn a_task_does_not_wait_longer_than_the_time_out_and_its_frames_stay_with_the_device() {
    let [kept, freed] = [(false, 1), (true, 0)].map(|(gone, open)| (Err(BlockError::TimedOut), gone, open));
    assert_eq!(read_late(nothing, answer), [kept, freed, freed]);
    // It never answers: it loses the frames with its reset, or keeps them.
    assert_eq!(read_late(nothing, nothing), [kept, kept, freed]);
    assert_eq!(read_late(nothing, |fake, _| fake.refuse_resets()), [kept; 3]);
}

#[test]
fn frames_of_a_device_that_does_not_let_go_are_never_given_back() {
    // It breaks the protocol, and confirms a reset or does not.
    let breaks = |fake: &Fake, _: &DeviceView| fake.give(0, 63, 0);
    assert_eq!(read_late(breaks, nothing)[2], (Err(BlockError::Failed), true, 0));
    let refuses = |fake: &Fake, _: &DeviceView| {
        fake.refuse_resets();
        fake.give(0, 63, 0);
    };
    assert_eq!(read_late(refuses, nothing)[2], (Err(BlockError::Failed), false, 1));
    // The IOMMU does not answer.
    let deaf = |fake: &Fake, domain: &DeviceView| {
        domain.go_deaf();
        answer(fake, domain);
    };
    assert_eq!(read_late(deaf, nothing)[2], (Ok(()), false, 1));
}
