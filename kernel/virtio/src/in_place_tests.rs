//! Transfers of frames in their places. The device's side looks through windows that panic where they are closed.

extern crate std;

use std::boxed::Box;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use freehold_bounce::{FrameList, HeldBytes, HeldFrames};
use freehold_frame::{FrameSource, Order, Owner, Request};
use freehold_machine::{PAGE_SIZE, Pfn, PhysicalBytes, WINDOW_PAGES};
use freehold_virtqueue::model::{self, Fake, HostMemory, WindowDomain};

use crate::block::{Block, Lines};
use crate::driver_tests::{Step, fake_disk, serve};
use crate::platform::{Notify, Sleep, Wait, Waited};
use crate::transport::Features;
use crate::{BlockDevice, BlockError, SECTOR_SIZE};

/// Frames of a program, from here and there; given back when nobody holds them.
struct Program {
    frames: Vec<Pfn>,
    gone: Arc<Mutex<bool>>,
}

impl Program {
    fn new(pages: usize, fill: impl Fn(usize) -> u8) -> (Self, Arc<Mutex<bool>>) {
        let take = || HostMemory.allocate(Request::new(Owner::Anon)).unwrap();
        // Every other one, and the last first.
        let (mut frames, mut others) = (Vec::new(), Vec::new());
        for _ in 0..pages {
            frames.insert(0, take());
            others.push(take());
        }
        others.into_iter().for_each(|frame| HostMemory.release(frame, Order::FRAME));
        for (page, &frame) in frames.iter().enumerate() {
            HostMemory.with_bytes(frame, |bytes| {
                bytes.iter_mut().zip(page * PAGE_SIZE..).for_each(|(byte, at)| *byte = fill(at));
            });
        }
        let gone = Arc::new(Mutex::new(false));
        (Self { frames, gone: gone.clone() }, gone)
    }
}

fn bytes_of(frames: &[Pfn]) -> Vec<u8> {
    frames.iter().flat_map(|&frame| HostMemory.read_bytes(frame, |bytes| bytes.to_vec())).collect()
}

impl FrameList for Program {
    fn count(&self) -> usize {
        self.frames.len()
    }
    fn frame(&self, index: usize) -> Pfn {
        self.frames[index]
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        *self.gone.lock().unwrap() = true;
        self.frames.iter().for_each(|&frame| HostMemory.release(frame, Order::FRAME));
    }
}

const SECTORS: usize = 4096;

fn contents() -> Vec<u8> {
    (0..SECTORS * SECTOR_SIZE).map(|at| (at / SECTOR_SIZE * 3 + at % 241) as u8).collect()
}

/// What the device was given of one request's data: lengths, and whether each is in its place.
type Seen = Arc<Mutex<Vec<Vec<(usize, bool)>>>>;

struct World {
    domain: &'static WindowDomain,
    disk: Block<HostMemory, Fake>,
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
    let work = {
        let (fake, contents, seen) = (fake.clone(), contents.clone(), seen.clone());
        move || {
            // A look first: taking does not change what the driver gave.
            let ring = fake.with_ring(0, |ring| *ring);
            let mut look = ring;
            while let Some((_, parts)) = look.take() {
                let data = &parts[1..parts.len() - 1];
                let part = |part: &model::Descriptor| (part.length as usize, part.address >> 44 != 0);
                seen.lock().unwrap().push(data.iter().map(part).collect());
            }
            serve(&fake, &contents);
        }
    };
    let line = Box::leak(Box::new(Step(Box::new(work))));
    let (device, domain) = model::windowed_device();
    let disk = Block::new(fake.clone(), device, Lines { answers: line, turns: line }).unwrap();
    World { domain, disk, contents, seen }
}

#[test]
fn whole_pages_go_in_place_and_heads_and_tails_are_bounced() {
    // First byte, length, and what the device is to be given: of 4 pages.
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
        let frames = program.frames.clone();
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
        let expected = bytes_of(&program.frames);
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

/// A line on which waits end early, killed or late, until the device does what it does at last.
struct Impatient {
    waits: Mutex<usize>,
    at_last: Box<dyn Fn() + Send + Sync>,
    in_between: Box<dyn Fn() + Send + Sync>,
}

impl Notify for Impatient {
    fn notify(&self) {}
}

impl Wait for Impatient {
    fn wait_until(&self, _: u64, sleep: Sleep, condition: &mut dyn FnMut() -> bool) -> Waited {
        if condition() || condition() {
            return Waited::Held;
        }
        let waits = {
            let mut waits = self.waits.lock().unwrap();
            *waits += 1;
            *waits
        };
        if waits == 3 {
            (self.at_last)();
            assert!(condition());
            return Waited::Held;
        }
        assert_eq!(sleep, Sleep::Uninterruptible, "whoever the device has frames of waits");
        (self.in_between)();
        Waited::TimedOut
    }
    fn notify_one(&self) {}
}

/// Reads a page in place on a disk that is late, and at last does `at_last`. The outcome, whether the frame was let go of, and
/// pages that the device still reaches.
fn read_late(
    at_last: impl Fn(&Fake, &'static WindowDomain) + Send + Sync + 'static,
) -> (Result<(), BlockError>, bool, usize) {
    let fake = fake_disk(SECTORS as u64, Features::empty());
    let (device, domain) = model::windowed_device();
    let (program, gone) = Program::new(1, |_| 7);
    let line = Box::leak(Box::new(Impatient {
        waits: Mutex::new(0),
        at_last: Box::new({
            let fake = fake.clone();
            move || at_last(&fake, domain)
        }),
        in_between: Box::new(move || assert_eq!(domain.open_pages(), 1, "the device has the frame")),
    }));
    let disk = Block::new(fake, device, Lines { answers: line, turns: line }).unwrap();
    let holder: Arc<dyn HeldFrames> = Arc::new(program);
    let result = disk.read(0, &mut HeldBytes::new(HostMemory, &holder, 0, PAGE_SIZE), Sleep::Killable);
    drop(holder);
    drop(disk);
    let gone = *gone.lock().unwrap();
    (result, gone, domain.open_pages())
}

#[test]
fn a_task_waits_for_the_answer_while_the_device_has_its_frames() {
    let serve = |fake: &Fake, _: &WindowDomain| serve(fake, &Mutex::new(contents()));
    assert_eq!(read_late(serve), (Ok(()), true, 0));
}

#[test]
fn frames_of_a_device_that_does_not_let_go_are_never_given_back() {
    // It breaks the protocol, and confirms a reset or does not.
    let breaks = |fake: &Fake, _: &WindowDomain| fake.give(0, 63, 0);
    assert_eq!(read_late(breaks), (Err(BlockError::Failed), true, 0));
    let refuses = |fake: &Fake, _: &WindowDomain| {
        fake.refuse_resets();
        fake.give(0, 63, 0);
    };
    assert_eq!(read_late(refuses), (Err(BlockError::Failed), false, 1));
    // The IOMMU does not answer.
    let deaf = |fake: &Fake, domain: &WindowDomain| {
        domain.go_deaf();
        serve(fake, &Mutex::new(contents()));
    };
    assert_eq!(read_late(deaf), (Ok(()), false, 1));
}
