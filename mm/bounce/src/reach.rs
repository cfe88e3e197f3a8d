//! Checks the memory that devices behind an IOMMU can access during random actions of drivers. The
//! software machine checks the rule in the crate's head.

extern crate std;
use alloc::sync::Arc;
use std::boxed::Box;
use std::collections::BTreeSet;
use std::vec::Vec;

use freehold_frame::{Anon, Frame, Held, HeldFrame};
use freehold_machine::model::DeviceView;
use freehold_machine::{DeviceAccess, PAGE_SIZE, Pfn};
use proptest::prelude::*;

use crate::tests::{ANY, LIMITS, Source, limited, source};
use crate::*;

const NAMES: [&str; 2] = ["one", "two"];

/// Frames of a program, freed when there is no holder left.
struct Program(Vec<Frame<Anon, Source>>);

impl FrameList for Program {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn frame(&self, index: usize) -> HeldFrame<'_> {
        self.0[index].held()
    }
}

/// Action of a driver.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// Takes so many bytes for a device.
    Take(usize, usize),
    /// Takes frames that both sides use.
    Ring(usize, usize),
    /// Gives a device access to so many frames of a program.
    InPlace(usize, usize, Direction),
    /// Frees one piece of memory.
    Give(usize),
    /// The device confirms no reset: one piece of memory is lost.
    Lose(usize),
    Tick,
    Shrink,
    /// Every nth mapping finds no memory for a device's tables.
    FailEvery(usize, usize),
}

fn deed() -> impl Strategy<Value = Deed> {
    let device = 0..NAMES.len();
    let direction = prop_oneof![Just(Direction::ToDevice), Just(Direction::FromDevice)];
    prop_oneof![
        6 => (device.clone(), 1usize..200_000).prop_map(|(device, bytes)| Deed::Take(device, bytes)),
        1 => (device.clone(), 1usize..20_000).prop_map(|(device, bytes)| Deed::Ring(device, bytes)),
        4 => (device.clone(), 1usize..9, direction).prop_map(|(device, pages, way)| Deed::InPlace(device, pages, way)),
        8 => any::<usize>().prop_map(Deed::Give),
        1 => any::<usize>().prop_map(Deed::Lose),
        1 => Just(Deed::Tick),
        1 => Just(Deed::Shrink),
        1 => (device, 0usize..5).prop_map(|(device, nth)| Deed::FailEvery(device, nth)),
    ]
}

/// Memory that a device has.
enum Thing {
    Mapping(DmaMapping<Source>),
    Ring(Coherent<Source>),
    InPlace(InPlace<Source>, Arc<dyn HeldFrames>, Direction),
}

struct World {
    source: Source,
    dma: &'static Dma<Source>,
    views: [&'static DeviceView; 2],
    devices: [Device<Source>; 2],
    things: Vec<(usize, Thing)>,
    /// For each device, the lost frames that it keeps.
    lost: [BTreeSet<Pfn>; 2],
}

impl World {
    fn new() -> Self {
        let source = source(300);
        let dma = limited(source, LIMITS);
        let views = [(); 2].map(|()| &*Box::leak(Box::new(DeviceView::new(Pfn(1 << 32)))));
        let device = |number: usize| {
            let rules = DeviceRules { name: NAMES[number], domain: Some(views[number]), ..ANY };
            dma.attach(rules).unwrap()
        };
        let devices = [device(0), device(1)];
        Self { source, dma, views, devices, things: Vec::new(), lost: Default::default() }
    }

    fn open(&self, device: usize, pages: usize, direction: Direction) -> Option<Thing> {
        let mut frames = Vec::new();
        for _ in 0..pages {
            frames.extend(Frame::allocate(self.source).ok());
        }
        let pages = frames.len();
        let holder: Arc<dyn HeldFrames> = Arc::new(Program(frames));
        let windows = (0..8).filter(|&window| {
            let first = self.views[device].window(window);
            self.views[device]
                .reach(first, DeviceAccess::Read)
                .is_err_and(|violation| violation.has.is_none())
        });
        let window = windows.min()?;
        let in_place = self.devices[device].in_place(window, holder.clone(), 0..pages, direction)?;
        Some(Thing::InPlace(in_place, holder, direction))
    }

    fn act(&mut self, deed: Deed) {
        match deed {
            Deed::Take(device, bytes) => {
                let taken = self.devices[device].buffer_up_to(bytes, Direction::Bidirectional).ok();
                self.things.extend(taken.map(|mapping| (device, Thing::Mapping(mapping))));
            }
            Deed::Ring(device, bytes) => {
                let taken = self.devices[device].coherent(bytes).ok();
                self.things.extend(taken.map(|ring| (device, Thing::Ring(ring))));
            }
            Deed::InPlace(device, pages, direction) => {
                let opened = self.open(device, pages, direction);
                self.things.extend(opened.map(|thing| (device, thing)));
            }
            Deed::Give(which) if !self.things.is_empty() => {
                drop(self.things.swap_remove(which % self.things.len()));
            }
            Deed::Lose(which) if !self.things.is_empty() => {
                let (device, thing) = self.things.swap_remove(which % self.things.len());
                self.lost[device].extend(frames_of(&thing));
                match thing {
                    Thing::Mapping(mapping) => _ = mapping.lose(),
                    Thing::Ring(ring) => _ = ring.lose(),
                    Thing::InPlace(in_place, ..) => _ = in_place.lose(),
                }
            }
            Deed::Tick => _ = self.dma.tick(),
            Deed::Shrink => _ = self.dma.shrink(),
            Deed::FailEvery(device, nth) => self.views[device].fail_every(nth),
            Deed::Give(_) | Deed::Lose(_) => {}
        }
    }

    /// Checks that each device can access its memory, and its former memory unless another device
    /// got it. Only one device can access each frame.
    fn judge(&self) {
        let mut all = BTreeSet::new();
        for (number, view) in self.views.iter().enumerate() {
            let has = |frame: &Pfn| {
                let is_its =
                    |(device, thing): &(usize, Thing)| *device == number && frames_of(thing).contains(frame);
                self.lost[number].contains(frame)
                    || self.dma.owner(DmaAddr(frame.start().0)) == Some(NAMES[number])
                    || self.things.iter().any(is_its)
            };
            for frame in view.frames() {
                assert!(has(&frame), "{} reaches {frame:?}, which it was not given", NAMES[number]);
                assert!(self.source.is_taken(frame), "{frame:?} is free, and {} reaches it", NAMES[number]);
                assert!(all.insert(frame), "{frame:?} is reached by two devices");
            }
            for (_, thing) in self.things.iter().filter(|(device, _)| *device == number) {
                self.judge_one(view, thing);
            }
            assert!(self.lost[number].iter().all(|frame| view.frames().contains(frame)));
        }
    }

    fn judge_one(&self, view: &DeviceView, thing: &Thing) {
        let Thing::InPlace(in_place, holder, direction) = thing else {
            let reached = |frame: Pfn| view.reach(frame, DeviceAccess::ReadWrite) == Ok(frame);
            return assert!(frames_of(thing).into_iter().all(reached), "it reaches what it has");
        };
        let (allowed, refused) = match direction {
            Direction::ToDevice => (DeviceAccess::Read, DeviceAccess::Write),
            _ => (DeviceAccess::Write, DeviceAccess::Read),
        };
        for index in 0..holder.count() {
            let page = Pfn(in_place.address().0 / PAGE_SIZE as u64 + index as u64);
            assert_eq!(view.reach(page, allowed), Ok(holder.frame(index).pfn()));
            assert!(view.reach(page, refused).is_err());
        }
    }
}

fn frames_of(thing: &Thing) -> BTreeSet<Pfn> {
    match thing {
        Thing::Mapping(mapping) => {
            let pieces = mapping.pieces(0..mapping.len());
            let pages = |piece: Piece| {
                let last = (piece.offset + piece.length - 1) / PAGE_SIZE;
                (0..=last as u64).map(move |page| piece.frame.offset(page))
            };
            pieces.flat_map(pages).collect()
        }
        Thing::Ring(ring) => (0..ring.order().frames()).map(|frame| ring.pfn().offset(frame)).collect(),
        Thing::InPlace(_, holder, _) => (0..holder.count()).map(|index| holder.frame(index).pfn()).collect(),
    }
}

proptest! {
    #[test]
    fn a_device_reaches_what_it_was_given_and_nothing_else_whatever_drivers_do(
        deeds in proptest::collection::vec(deed(), 1..80)
    ) {
        let mut world = World::new();
        for deed in deeds {
            world.act(deed);
            world.judge();
        }
    }
}

#[test]
fn frames_that_the_iommu_does_not_take_back_stay_the_devices() {
    let mut world = World::new();
    [Deed::Take(0, 9000), Deed::Ring(0, 5000), Deed::InPlace(0, 2, Direction::FromDevice)]
        .into_iter()
        .for_each(|deed| world.act(deed));
    let frames: BTreeSet<Pfn> = world.things.iter().flat_map(|(_, thing)| frames_of(thing)).collect();
    assert_eq!(frames.len(), 3 + 2 + 2);
    world.views[0].go_deaf();
    world.things.clear();
    world.dma.shrink();
    world.views[0].hear();
    let is_kept = |frame: &Pfn| world.source.is_taken(*frame) && world.views[0].frames().contains(frame);
    assert!(frames.iter().all(is_kept));
    assert_eq!(world.devices[0].lost(), 4 * PAGE_SIZE, "the ring and the program's frames");
    assert_eq!(world.dma.statistics().lost, 4 * PAGE_SIZE + crate::tests::SEGMENT);
}
