//! Hostile configurations, requests to the byte, and a modelled device that says no in every way it
//! can.

extern crate std;

use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use freehold_machine::{Pfn, PfnRange};
use freehold_virtqueue::DeviceStatus;
use freehold_virtqueue::model::{self, Fake, HostMemory};
use proptest::prelude::*;

use super::region::CONFIG_BYTES;
use super::resize::Device;
use super::*;
use crate::driver_tests::Step;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// `struct virtio_mem_config`.
#[derive(Clone, Copy)]
struct Config {
    block: u64,
    node: u16,
    address: u64,
    region: u64,
    usable: u64,
    plugged: u64,
    requested: u64,
}

/// 512 MiB at 4 GiB in blocks of 2 MiB, of domain 3; nothing is plugged in or wanted.
const PLAIN: Config = Config {
    block: 2 * MIB,
    node: 3,
    address: 4 * GIB,
    region: 512 * MIB,
    usable: 512 * MIB,
    plugged: 0,
    requested: 0,
};

impl Config {
    fn bytes(self) -> [u8; CONFIG_BYTES] {
        let mut bytes = [0xee; CONFIG_BYTES]; // padding means nothing
        bytes[8..10].copy_from_slice(&self.node.to_le_bytes());
        let words = [
            (0, self.block),
            (16, self.address),
            (24, self.region),
            (32, self.usable),
            (40, self.plugged),
            (48, self.requested),
        ];
        for (at, word) in words {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
    fn check(self) -> Result<Region, BadRegion> {
        Region::check(&self.bytes(), Domain::Said)
    }
}

#[test]
fn a_region_is_understood() {
    let region = PLAIN.check().unwrap();
    assert_eq!(region.frames(), PfnRange::new(Pfn(0x10_0000), Pfn(0x12_0000)));
    assert_eq!((region.unit(), region.units(), region.domain()), (512, 256, Some(3)));
    assert_eq!(region.frames_of(255), PfnRange::new(Pfn(0x11_fe00), Pfn(0x12_0000)));
    assert_eq!(Region::check(&PLAIN.bytes(), Domain::Unsaid).unwrap().domain(), None);
    // Small blocks make units of a pageblock, large ones are units; a region that begins or ends
    // between units loses the parts outside.
    let small = Config { block: 4096, address: 4 * GIB + MIB, region: 8 * MIB, ..PLAIN }.check().unwrap();
    assert_eq!((small.frames(), small.units()), (PfnRange::new(Pfn(0x10_0200), Pfn(0x10_0800)), 3));
    let large = Config { block: 128 * MIB, ..PLAIN }.check().unwrap();
    assert_eq!((large.unit(), large.units()), (32768, 4));
}

#[test]
fn a_region_that_cannot_be_is_refused() {
    for block in [0, 1, 512, 3 * MIB, 2 * MIB + 4096, u64::MAX] {
        assert_eq!(Config { block, ..PLAIN }.check(), Err(BadRegion::BlockSize(block)));
    }
    let cases = [
        (Config { address: 4 * GIB + 4096, ..PLAIN }, BadRegion::NotBlocks),
        (Config { region: 512 * MIB + 4096, ..PLAIN }, BadRegion::NotBlocks),
        (Config { address: u64::MAX - 2 * MIB + 1, region: 4 * MIB, ..PLAIN }, BadRegion::Beyond),
        (Config { address: 1 << 52, ..PLAIN }, BadRegion::Beyond),
        (Config { region: 0, ..PLAIN }, BadRegion::Empty),
        (Config { block: 4096, address: 4 * GIB + 4096, region: 2 * MIB, ..PLAIN }, BadRegion::Empty),
    ];
    for (config, expected) in cases {
        assert_eq!(config.check(), Err(expected));
    }
}

#[test]
fn sizes_beyond_the_region_or_what_is_usable_are_cut() {
    let region = PLAIN.check().unwrap();
    let all = 512 * MIB;
    let greedy = Config { usable: u64::MAX, plugged: u64::MAX, requested: u64::MAX, ..PLAIN };
    assert_eq!(region.sizes(&greedy.bytes()), Sizes { usable: all, plugged: all, requested: all });
    let odd = Config { usable: 6 * MIB, plugged: 8 * MIB, requested: 7 * MIB, ..PLAIN };
    assert_eq!(region.sizes(&odd.bytes()), Sizes { usable: 6 * MIB, plugged: 8 * MIB, requested: 6 * MIB });
}

#[test]
fn requests_are_as_the_specification_has_them() {
    let region = Config { block: MIB, ..PLAIN }.check().unwrap();
    let unit = region.frames_of(1);
    let mut expected = [0; 24];
    expected[8..16].copy_from_slice(&0x1_0020_0000u64.to_le_bytes());
    expected[16] = 2; // two blocks
    assert_eq!(ResizeRequest::Plug(unit).encode(&region), expected);
    expected[0] = 1;
    assert_eq!(ResizeRequest::Unplug(unit).encode(&region), expected);
    assert_eq!(ResizeRequest::UnplugAll.encode(&region)[..2], [2, 0]);
    assert_eq!(ResizeRequest::UnplugAll.encode(&region)[2..], [0; 22]);
    let answer = |kind: u8, written| Answer::decode(&[kind, 0, 0, 0, 0, 0, 0, 0, 0, 0], written);
    assert_eq!(
        [0, 1, 2, 3].map(|kind| answer(kind, 10)),
        [Answer::Done, Answer::Refused, Answer::Busy, Answer::Error].map(Some)
    );
    assert_eq!((answer(4, 10), answer(0, 1)), (None, None));
}

const FEATURES: Features = Features::MEM_ACPI_PXM.union(Features::MEM_UNPLUGGED_INACCESSIBLE);

/// The driver on a device that answers each request with what `respond` makes of it: the bytes, and
/// how many it says.
fn driver(
    config: Config,
    respond: impl Fn(&[u8]) -> Option<(Vec<u8>, u32)> + Send + Sync + 'static,
) -> (Fake, Result<Mem<HostMemory, Fake>, SetupError>) {
    let fake = Fake::new(FEATURES.bits());
    fake.set_config(&config.bytes());
    let device = fake.clone();
    let step = Step(Box::new(move || {
        while let Some((head, parts)) = device.take(0) {
            assert_eq!((parts.len(), parts[0].writable, parts[1].writable), (2, false, true));
            let mut request = [0; 24];
            assert_eq!(parts[0].length, 24);
            model::read(parts[0].address, &mut request);
            let Some((response, written)) = respond(&request) else { return };
            model::write(parts[1].address, &response);
            device.give(0, head.into(), written);
        }
    }));
    let mem = Mem::new(fake.clone(), model::device(), Box::leak(Box::new(step)), PLAIN.check().unwrap());
    (fake, mem)
}

fn ok(bytes: &[u8]) -> Option<(Vec<u8>, u32)> {
    let mut response = bytes.to_vec();
    response.resize(RESPONSE_BYTES, 0);
    Some((response, RESPONSE_BYTES as u32))
}

#[test]
fn the_driver_asks_and_hears_the_answer() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (fake, mem) = driver(PLAIN, {
        let seen = seen.clone();
        move |request| {
            seen.lock().unwrap().push(request.to_vec());
            ok(&[seen.lock().unwrap().len() as u8 - 1])
        }
    });
    let mem = mem.unwrap();
    let (region, unit) = (*mem.region(), mem.region().frames_of(7));
    assert_eq!(mem.plug(unit), Ok(Answer::Done));
    assert_eq!(mem.unplug(unit), Ok(Answer::Refused));
    assert_eq!(mem.unplug_all(), Ok(Answer::Busy));
    let expected = [ResizeRequest::Plug(unit), ResizeRequest::Unplug(unit), ResizeRequest::UnplugAll]
        .map(|r| r.encode(&region).to_vec());
    assert_eq!(*seen.lock().unwrap(), expected);
    fake.set_config(&Config { requested: 64 * MIB, plugged: 2 * MIB, ..PLAIN }.bytes());
    assert_eq!(mem.sizes(), Ok(Sizes { usable: 512 * MIB, plugged: 2 * MIB, requested: 64 * MIB }));
}

#[test]
fn a_device_that_answers_nonsense_or_nothing_has_failed() {
    type Respond = fn(&[u8]) -> Option<(Vec<u8>, u32)>;
    let cases: [Respond; 3] = [|_| ok(&[9]), |_| Some((std::vec![0; 2], 1)), |_| None];
    for respond in cases {
        let (fake, mem) = driver(PLAIN, respond);
        let mem = mem.unwrap();
        let unit = mem.region().frames_of(0);
        assert_eq!(mem.plug(unit), Err(Failed));
        assert_eq!(mem.plug(unit), Err(Failed), "for good");
        assert!(fake.status().contains(DeviceStatus::FAILED));
    }
}

#[test]
fn a_device_that_is_not_what_it_was_at_start_up_is_refused() {
    let moved = Config { address: 8 * GIB, ..PLAIN };
    assert_eq!(driver(moved, |_| None).1.err(), Some(SetupError::Nonsense("region")));
    let broken = Config { block: 0, ..PLAIN };
    assert_eq!(driver(broken, |_| None).1.err(), Some(SetupError::Nonsense("block size")));
    let fake = Fake::new(FEATURES.bits());
    fake.set_config(&[0; 40]);
    let nobody = Box::leak(Box::new(Step(Box::new(|| {}))));
    let short = Mem::new(fake, model::device(), nobody, PLAIN.check().unwrap());
    assert!(matches!(short.err(), Some(SetupError::Ring(_))), "a configuration that is too short");
}

/// A device and a kernel, each of which knows its memory; the device answers by `moods`, one per
/// request.
struct World {
    region: Region,
    requested: Cell<u64>,
    usable: Cell<u64>,
    plugged: RefCell<BTreeSet<u64>>,
    moods: RefCell<VecDeque<Answer>>,
    fails: Cell<bool>,
}

impl World {
    fn new() -> Self {
        Self {
            region: Config { region: 64 * MIB, ..PLAIN }.check().unwrap(),
            requested: Cell::new(0),
            usable: Cell::new(64 * MIB),
            plugged: RefCell::default(),
            moods: RefCell::default(),
            fails: Cell::new(false),
        }
    }
    fn mood(&self) -> Answer {
        self.moods.borrow_mut().pop_front().unwrap_or(Answer::Done)
    }
}

impl Device for World {
    fn region(&self) -> Region {
        self.region
    }
    fn sizes(&self) -> Result<Sizes, Failed> {
        let plugged = self.plugged.borrow().len() as u64 * 2 * MIB;
        let (usable, requested) = (self.usable.get(), self.requested.get().min(self.usable.get()));
        if self.fails.get() { Err(Failed) } else { Ok(Sizes { usable, plugged, requested }) }
    }
    fn plug(&self, frames: PfnRange) -> Result<Answer, Failed> {
        let mut plugged = self.plugged.borrow_mut();
        assert!((plugged.len() as u64) < self.requested.get() / (2 * MIB), "more than the host wants");
        let answer = self.mood();
        if answer == Answer::Done {
            assert!(plugged.insert(frames.start.0), "{frames:?} is plugged in already");
        }
        Ok(answer)
    }
    fn unplug(&self, frames: PfnRange) -> Result<Answer, Failed> {
        let answer = self.mood();
        if answer == Answer::Done {
            assert!(self.plugged.borrow_mut().remove(&frames.start.0), "{frames:?} is not plugged in");
        }
        Ok(answer)
    }
}

/// The kernel's memory. The kernel keeps units in `used`, and has no room for those in
/// `unmanageable`.
#[derive(Default)]
struct Kernel {
    online: BTreeSet<u64>,
    used: BTreeSet<u64>,
    unmanageable: BTreeSet<u64>,
}

impl Onliner for Kernel {
    fn online(&mut self, frames: PfnRange) -> bool {
        !self.unmanageable.contains(&frames.start.0) && {
            assert!(self.online.insert(frames.start.0), "online twice");
            true
        }
    }
    fn offline(&mut self, frames: PfnRange) -> bool {
        !self.used.contains(&frames.start.0) && {
            assert!(self.online.remove(&frames.start.0), "offline twice");
            true
        }
    }
}

#[test]
fn what_is_plugged_in_follows_what_the_host_wants() {
    let (world, mut kernel) = (World::new(), Kernel::default());
    let mut resizer = Resizer::new(world.region).unwrap();
    let mut pauses = 0;
    for (requested, expected) in [(10, 10), (64, 64), (63, 62), (20, 20), (1000, 64), (0, 0)] {
        world.requested.set(requested * MIB);
        assert_eq!(resizer.follow(&world, &mut kernel, || pauses += 1), Ok(ResizeOutcome::Reached));
        assert_eq!((resizer.plugged(), kernel.online.len() as u64 * 2), (expected * MIB, expected));
        assert_eq!(*world.plugged.borrow(), kernel.online);
    }
    assert_eq!(pauses, 5 + 27 + 1 + 21 + 22 + 32, "others may run between units");
}

#[test]
fn a_unit_in_use_stays_and_the_others_go() {
    let (world, mut kernel) = (World::new(), Kernel::default());
    let mut resizer = Resizer::new(world.region).unwrap();
    world.requested.set(64 * MIB);
    resizer.follow(&world, &mut kernel, || {}).unwrap();
    kernel.used.extend([3, 17].map(|unit| world.region.frames_of(unit).start.0));
    world.requested.set(0);
    assert_eq!(resizer.follow(&world, &mut kernel, || {}), Ok(ResizeOutcome::Later));
    assert_eq!((resizer.plugged(), &kernel.online), (4 * MIB, &kernel.used));
    kernel.used.clear();
    assert_eq!(resizer.follow(&world, &mut kernel, || {}), Ok(ResizeOutcome::Reached));
    assert!(kernel.online.is_empty() && world.plugged.borrow().is_empty());
}

#[test]
fn a_device_that_says_no_keeps_and_gives_nothing_halfway() {
    for (mood, outcome) in [
        (Answer::Busy, ResizeOutcome::Later),
        (Answer::Refused, ResizeOutcome::Refused),
        (Answer::Error, ResizeOutcome::Refused),
    ] {
        let (world, mut kernel) = (World::new(), Kernel::default());
        let mut resizer = Resizer::new(world.region).unwrap();
        world.requested.set(8 * MIB);
        *world.moods.borrow_mut() = [Answer::Done, mood].into();
        assert_eq!(resizer.follow(&world, &mut kernel, || {}), Ok(outcome));
        assert_eq!((resizer.plugged(), *world.plugged.borrow() == kernel.online), (2 * MIB, true));
        assert_eq!(resizer.follow(&world, &mut kernel, || {}), Ok(ResizeOutcome::Reached));
        world.requested.set(0);
        *world.moods.borrow_mut() = [Answer::Done, mood].into();
        assert_eq!(resizer.follow(&world, &mut kernel, || {}), Ok(outcome));
        assert_eq!(
            (resizer.plugged(), *world.plugged.borrow() == kernel.online),
            (6 * MIB, true),
            "the unit is memory again"
        );
    }
}

#[test]
fn memory_that_the_kernel_cannot_manage_goes_back_and_a_failed_device_ends_it() {
    let (world, mut kernel) = (World::new(), Kernel::default());
    let mut resizer = Resizer::new(world.region).unwrap();
    world.requested.set(8 * MIB);
    kernel.unmanageable.insert(world.region.frames_of(1).start.0);
    assert_eq!(resizer.follow(&world, &mut kernel, || {}), Ok(ResizeOutcome::Later));
    assert_eq!((resizer.plugged(), *world.plugged.borrow() == kernel.online), (2 * MIB, true));
    world.fails.set(true);
    assert_eq!(resizer.follow(&world, &mut kernel, || {}), Err(Failed));
    assert_eq!(kernel.online.len(), 1, "what is plugged in stays in use");
}

#[test]
fn a_device_that_wants_something_else_at_each_look_does_not_keep_the_task() {
    /// Wants 8 MiB and 16 MiB by turns.
    struct Fickle(World);
    impl Device for Fickle {
        fn region(&self) -> Region {
            self.0.region
        }
        fn sizes(&self) -> Result<Sizes, Failed> {
            self.0.requested.set(24 * MIB - self.0.requested.get());
            self.0.sizes()
        }
        fn plug(&self, frames: PfnRange) -> Result<Answer, Failed> {
            self.0.plug(frames)
        }
        fn unplug(&self, frames: PfnRange) -> Result<Answer, Failed> {
            self.0.unplug(frames)
        }
    }
    let (world, mut kernel) = (World::new(), Kernel::default());
    world.requested.set(8 * MIB);
    let mut resizer = Resizer::new(world.region).unwrap();
    assert_eq!(resizer.follow(&Fickle(world), &mut kernel, || {}), Ok(ResizeOutcome::Later));
    assert!(kernel.online.len() <= 8, "and what it does is never more than was wanted");
}

#[test]
fn nothing_is_plugged_in_beyond_what_is_usable() {
    let (world, mut kernel) = (World::new(), Kernel::default());
    let mut resizer = Resizer::new(world.region).unwrap();
    world.usable.set(16 * MIB);
    world.requested.set(64 * MIB);
    assert_eq!(resizer.follow(&world, &mut kernel, || {}), Ok(ResizeOutcome::Reached));
    assert_eq!(kernel.online.len(), 8);
    assert!(kernel.online.iter().all(|start| *start < world.region.frames_of(8).start.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any configuration at all: a region within all addresses, or an error.
    #[test]
    fn hostile_configurations_never_panic(words in proptest::array::uniform7(any::<u64>()), shift in 0u32..64, masks in any::<[bool; 3]>()) {
        let plain = |index: usize, word, sane| if masks[index] { sane } else { word };
        let config = Config {
            block: plain(0, words[0], 1 << shift),
            node: words[1] as u16,
            address: plain(1, words[2], words[2] >> shift << shift),
            region: plain(2, words[3], ((words[3] % (1 << 40)) >> shift) << shift),
            usable: words[4],
            plugged: words[5],
            requested: words[6],
        };
        if let Ok(region) = config.check() {
            prop_assert!(region.units() > 0 && region.frames_of(region.units() - 1).end == region.frames().end);
            prop_assert!(region.frames().end.0 <= 1 << 40);
            let sizes = region.sizes(&config.bytes());
            prop_assert!(sizes.requested <= sizes.usable && sizes.usable <= region.frames().len() << 12);
        }
    }

    /// The device may give any answers, and the kernel may keep any units. Both agree on the
    /// plugged units, but for those that the kernel cannot manage again.
    #[test]
    fn device_and_kernel_agree_after_any_history(steps in proptest::collection::vec((0u64..80, 0u8..5, 0u64..32, 0usize..12), 1..40)) {
        let (world, mut kernel) = (World::new(), Kernel::default());
        let mut resizer = Resizer::new(world.region).unwrap();
        for (requested, mood, unit, place) in steps {
            world.requested.set(requested * MIB);
            let mood = [Answer::Done, Answer::Refused, Answer::Busy, Answer::Error, Answer::Done][usize::from(mood)];
            *world.moods.borrow_mut() = (0..=place).map(|at| if at == place { mood } else { Answer::Done }).collect();
            let frame = world.region.frames_of(unit).start.0;
            if !kernel.used.remove(&frame) && kernel.online.contains(&frame) {
                kernel.used.insert(frame);
            }
            let outcome = resizer.follow(&world, &mut kernel, || {}).unwrap();
            prop_assert_eq!(&*world.plugged.borrow(), &kernel.online);
            prop_assert_eq!(resizer.plugged(), kernel.online.len() as u64 * 2 * MIB);
            prop_assert!(outcome != ResizeOutcome::Reached || resizer.plugged() == requested.min(64) / 2 * 2 * MIB);
        }
    }
}
