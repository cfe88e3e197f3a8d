//! The promises in the module's head, on a device in software that keeps mappings as the
//! specification says, refuses, lies, and goes deaf.

extern crate std;

use core::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use freehold_iommu::{Deed, IommuError, Mode};
use freehold_machine::{
    DeviceAccess, DeviceDomain, MAX_WINDOWS, NoTables, Pfn, PfnRange, Unconfirmed, WINDOW_PAGES,
};
use freehold_virtqueue::DeviceStatus;
use freehold_virtqueue::model::{self, DeviceRing, Fake, HostMemory};
use proptest::prelude::*;

use super::*;

const FEATURES: u64 = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 4 | 1 << 6;
const DISK: (u16, u32) = (0x18, 0x118);
pub const NET: (u16, u32) = (0x20, 0x120);
const PROPERTIES: u32 = 64;

/// `struct virtio_iommu_config`: pages of 4 KiB and more, addresses of 39 bits, 100 domains from 7.
fn config() -> [u8; 40] {
    let mut bytes = [0; 40];
    bytes[..8].copy_from_slice(&(!0xfffu64).to_le_bytes());
    bytes[16..24].copy_from_slice(&((1u64 << 39) - 1).to_le_bytes());
    bytes[24..28].copy_from_slice(&7u32.to_le_bytes());
    bytes[28..32].copy_from_slice(&106u32.to_le_bytes());
    bytes[32..36].copy_from_slice(&PROPERTIES.to_le_bytes());
    bytes[36] = 1;
    bytes
}

/// State of the device.
#[derive(Default)]
pub struct Known {
    /// Endpoints' domains.
    endpoints: BTreeMap<u32, u32>,
    /// By domain and first address: the last one, the physical address, flags.
    mappings: BTreeMap<(u32, u64), (u64, u64, u32)>,
    /// Kinds of requests.
    seen: Vec<u8>,
    /// Requests that it obeys before it goes deaf, if it does.
    left: Option<usize>,
    /// Requests that it refuses: of a kind, after so many.
    pub refuses: Option<(u8, usize)>,
    /// The status of all answers, if it lies.
    tail: Option<u8>,
    properties: Vec<u8>,
    /// Bytes that it writes of an answer to Probe, and says that it did, if not all.
    cut: Option<usize>,
    faults: Vec<[u8; FAULT_BYTES]>,
}

#[derive(Clone, Default)]
pub struct Hardware(Arc<Mutex<Known>>);

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}
fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Hardware {
    pub fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap()
    }
    fn serve(&self, queue: usize, ring: &mut DeviceRing) {
        let mut known = self.known();
        if queue == 1 {
            for fault in core::mem::take(&mut known.faults) {
                let (head, parts) = ring.take().expect("a buffer");
                model::write(parts[0].address, &fault);
                ring.give(head.into(), FAULT_BYTES as u32);
            }
            return;
        }
        loop {
            if known.left == Some(0) {
                return;
            }
            let Some((head, parts)) = ring.take() else { return };
            assert_eq!((parts.len(), parts[0].writable, parts[1].writable), (2, false, true));
            let mut request = std::vec![0; parts[0].length as usize];
            model::read(parts[0].address, &mut request);
            let mut answer = known.obey(&request, parts[1].length as usize);
            if let (5, Some(cut)) = (request[0], known.cut) {
                answer.truncate(cut);
            }
            model::write(parts[1].address, &answer);
            known.left = known.left.map(|left| left - 1);
            ring.give(head.into(), answer.len() as u32);
        }
    }
    /// Where a device's access to an address arrives.
    pub fn access(&self, (_, endpoint): (u16, u32), address: u64, flag: u32) -> Option<u64> {
        let known = self.known();
        let domain = *known.endpoints.get(&endpoint)?;
        let below = known.mappings.range((domain, 0)..=(domain, address)).next_back();
        let (&(_, first), &(last, physical, flags)) = below?;
        (address <= last && flags & flag != 0).then(|| physical + (address - first))
    }
    pub fn count(&self, kind: u8) -> usize {
        self.known().seen.iter().filter(|&&seen| seen == kind).count()
    }
}

impl Known {
    fn obey(&mut self, request: &[u8], writable: usize) -> Vec<u8> {
        let kind = request[0];
        self.seen.push(kind);
        let status = match &mut self.refuses {
            Some((refused, 0)) if *refused == kind => 8,
            Some((refused, left)) if *refused == kind => {
                *left -= 1;
                self.done(request)
            }
            _ => self.done(request),
        };
        let mut answer = std::vec![0; writable];
        if kind == 5 {
            assert_eq!(writable, PROPERTIES as usize + TAIL_BYTES);
            let count = self.properties.len().min(PROPERTIES as usize);
            answer[..count].copy_from_slice(&self.properties[..count]);
        }
        answer[writable - TAIL_BYTES] = self.tail.unwrap_or(status);
        answer
    }
    fn done(&mut self, request: &[u8]) -> u8 {
        let (domain, second) = (half(request, 4), half(request, 8));
        match (request[0], request.len()) {
            (1, 20) => {
                assert!((7..=106).contains(&domain));
                self.endpoints.insert(second, domain);
            }
            (2, 20) => {
                assert_eq!(self.endpoints.remove(&second), Some(domain));
                if !self.endpoints.values().any(|&of| of == domain) {
                    self.mappings.retain(|&(of, _), _| of != domain);
                }
            }
            (3, 36) => {
                if !self.endpoints.values().any(|&of| of == domain) {
                    return 6;
                }
                let (first, last) = (word(request, 8), word(request, 16));
                assert!(first.is_multiple_of(4096) && (last + 1).is_multiple_of(4096) && last < 1 << 39);
                let below = self.mappings.range((domain, 0)..=(domain, last)).next_back();
                if below.is_some_and(|(_, &(end, ..))| end >= first) {
                    return 4;
                }
                self.mappings.insert((domain, first), (last, word(request, 24), half(request, 32)));
            }
            (4, 28) => {
                let (first, last) = (word(request, 8), word(request, 16));
                let cut = self.mappings.range((domain, 0)..=(domain, last));
                if cut.clone().any(|(&(_, at), &(end, ..))| end >= first && (at < first || end > last)) {
                    return 5;
                }
                self.mappings.retain(|&(of, at), _| of != domain || !(first..=last).contains(&at));
            }
            (5, 72) => {}
            other => panic!("request {other:?}"),
        }
        0
    }
}

type Iommu = VirtioIommu<HostMemory, Fake>;

/// A device's deed at a look at the clock.
type Moment = std::boxed::Box<dyn FnMut()>;
std::thread_local! {
    static TIME: Cell<u64> = const { Cell::new(0) };
    static MOMENT: RefCell<Option<Moment>> = const { RefCell::new(None) };
}

/// Each look takes three seconds.
fn clock() -> u64 {
    MOMENT.with_borrow_mut(|moment| moment.as_mut().map(|moment| moment()));
    TIME.replace(TIME.get() + 3_000_000_000)
}

pub fn start(mode: Mode) -> (&'static Iommu, Hardware, Fake) {
    start_with(mode, FEATURES)
}
fn start_with(mode: Mode, features: u64) -> (&'static Iommu, Hardware, Fake) {
    let (fake, hardware) = (Fake::new(features), Hardware::default());
    fake.set_config(&config());
    let device = hardware.clone();
    fake.on_notice(move |queue, ring| device.serve(queue, ring));
    let unit = VirtioIommu::start(fake.clone(), model::device(), mode, clock);
    (unit.unwrap_or_else(|error| panic!("{error}")), hardware, fake)
}

fn run(start: u64, end: u64) -> PfnRange {
    PfnRange::new(Pfn(start), Pfn(end))
}

/// A property that reserves addresses.
fn region(first: u64, last: u64) -> Vec<u8> {
    let mut property = std::vec![1, 0, 20, 0, 1, 0, 0, 0];
    property.extend(first.to_le_bytes());
    property.extend(last.to_le_bytes());
    property
}

#[test]
fn pages_are_reached_while_they_are_mapped_and_only_by_their_device() {
    for mode in [Mode::Batched, Mode::Strict] {
        let (unit, hardware, fake) = start(mode);
        assert_eq!(fake.config()[36], 0, "nothing passes it by");
        let disk = unit.attach(DISK, "disk", Occupied::Now).unwrap();
        let net = unit.attach(NET, "net", Occupied::Now).unwrap();
        assert_eq!(unit.attach(DISK, "again", Occupied::Now).err(), Some(IommuError::Taken));
        disk.map(run(0x700, 0x740)).unwrap();
        for page in 0x700..0x740u64 {
            assert_eq!(hardware.access(DISK, page << 12 | 8, READ_FLAG), Some(page << 12 | 8));
            assert_eq!(hardware.access(NET, page << 12, READ_FLAG), None);
        }
        let before = (hardware.count(4), unit.invalidations());
        disk.unmap(run(0x703, 0x70b)).unwrap();
        let sent = if mode == Mode::Strict { 8 } else { 1 };
        assert_eq!((hardware.count(4), unit.invalidations()), (before.0 + sent, before.1 + sent));
        for page in 0x700..0x740u64 {
            let is_mapped = !(0x703..0x70b).contains(&page);
            assert_eq!(hardware.access(DISK, page << 12, WRITE_FLAG).is_some(), is_mapped, "{page:#x}");
        }
        assert_eq!((disk.pages(), net.pages()), (56, 0));
        // 64 requests are two batches.
        assert_eq!(fake.notices(0), 4 + 2 + 1);
    }
}

const READ_FLAG: u32 = 1;
pub const WRITE_FLAG: u32 = 2;

#[test]
fn a_window_shows_frames_for_one_transfer_in_the_way_it_says() {
    let (unit, hardware, _) = start(Mode::Batched);
    let disk = unit.attach(DISK, "disk", Occupied::Now).unwrap();
    let frames = [0x905, 0x17, 0x800, 0x17].map(Pfn);
    assert_eq!(disk.open(0, &mut frames.into_iter(), DeviceAccess::Read), Err(NoTables));
    unit.allow_windows();
    for window in [0, MAX_WINDOWS - 1] {
        for (access, flags) in
            [(DeviceAccess::Read, 1), (DeviceAccess::Write, 2), (DeviceAccess::ReadWrite, 3)]
        {
            let address = disk.open(window, &mut frames.into_iter(), access).unwrap();
            for (page, frame) in (0u64..).zip(frames) {
                for flag in [READ_FLAG, WRITE_FLAG] {
                    let reached = hardware.access(DISK, address + (page << 12) + 8, flag);
                    assert_eq!(reached, (flags & flag != 0).then(|| frame.start().0 + 8));
                }
            }
            assert_eq!((hardware.access(DISK, address + 0x4000, READ_FLAG), disk.pages()), (None, 4));
            assert_eq!(disk.open(window, &mut frames.into_iter(), access), Err(NoTables), "it is open");
            assert_eq!(disk.close(window, 4), Ok(()));
            assert_eq!((hardware.access(DISK, address, READ_FLAG | WRITE_FLAG), disk.pages()), (None, 0));
        }
    }
    assert_eq!(disk.open(MAX_WINDOWS, &mut frames.into_iter(), DeviceAccess::Read), Err(NoTables));
    // Memory does not reach into the windows, which are the last addresses.
    let first = (1 << 27) - (MAX_WINDOWS * WINDOW_PAGES) as u64;
    assert_eq!(
        (disk.map(run(first - 1, first + 1)), disk.map(run(first - 1, first))),
        (Err(NoTables), Ok(()))
    );
}

#[test]
fn addresses_of_messages_and_what_the_device_reserves_are_not_mapped() {
    let (unit, hardware, _) = start(Mode::Batched);
    hardware.known().properties = [&[2, 0, 4, 0, 9, 9, 9, 9], &region(0x80_0000, 0x80_1fff)[..]].concat();
    let disk = unit.attach(DISK, "disk", Occupied::Now).unwrap();
    for refused in [run(0x7ff, 0x801), run(0x801, 0x802), run(0xf_ee00, 0xf_ee01), run(0xf_edff, 0xf_ef01)] {
        assert_eq!(disk.map(refused), Err(NoTables), "{refused:?}");
    }
    assert_eq!((disk.map(run(0x7ff, 0x800)), disk.map(run(0x802, 0x803))), (Ok(()), Ok(())));
    // Regions that make no sense: the function gets no domain.
    let upside_down = region(0x2000, 0x1fff);
    let cut = [1u8, 0, 200, 0].to_vec();
    let short = [1u8, 0, 4, 0, 0, 0, 0, 0].to_vec();
    for properties in [upside_down, cut, short] {
        hardware.known().properties = properties;
        let (endpoint, count) = (hardware.count(1) as u32 + hardware.count(5) as u32, hardware.count(1));
        assert!(matches!(unit.attach((9, endpoint), "bad", Occupied::Now), Err(IommuError::Unsupported(_))));
        assert_eq!(hardware.count(1), count, "it was not attached");
    }
}

#[test]
fn what_is_refused_is_undone_and_what_is_not_answered_is_not_confirmed() {
    let (unit, hardware, fake) = start(Mode::Batched);
    let disk = unit.attach(DISK, "disk", Occupied::Now).unwrap();
    // No memory for the fortieth page: none is mapped.
    hardware.known().refuses = Some((3, 40));
    assert_eq!(disk.map(run(0x700, 0x740)), Err(NoTables));
    assert_eq!((hardware.known().mappings.len(), disk.pages()), (0, 0));
    hardware.known().refuses = None;
    disk.map(run(0x700, 0x702)).unwrap();
    hardware.known().refuses = Some((4, 0));
    assert_eq!(disk.unmap(run(0x700, 0x701)), Err(Unconfirmed));
    // An answer that is none.
    hardware.known().refuses = None;
    hardware.known().tail = Some(77);
    assert_eq!(disk.unmap(run(0x701, 0x702)), Err(Unconfirmed));
    assert!(!fake.status().contains(DeviceStatus::FAILED), "a refusal is no lie");
    // It goes deaf: it is reset, and not asked again.
    (hardware.known().tail, hardware.known().left) = (None, Some(1));
    assert_eq!(disk.map(run(0x800, 0x803)), Err(NoTables));
    assert!(fake.status().contains(DeviceStatus::FAILED) && !fake.has_queue(0));
    let notices = fake.notices(0);
    assert_eq!(
        (disk.map(run(0x900, 0x901)), disk.unmap(run(0x700, 0x701))),
        (Err(NoTables), Err(Unconfirmed))
    );
    assert_eq!((disk.detach(), fake.notices(0)), (Err(Unconfirmed), notices));
    assert!(unit.attach(NET, "net", Occupied::Now).is_err());
}

/// An IOMMU that does not answer when pages are taken away is reset, and not asked again.
#[test]
fn an_iommu_that_goes_deaf_while_pages_leave_is_the_end() {
    let (unit, hardware, fake) = start(Mode::Batched);
    let disk = unit.attach(DISK, "disk", Occupied::Now).unwrap();
    disk.map(run(0x700, 0x702)).unwrap();
    hardware.known().left = Some(0);
    assert_eq!(disk.unmap(run(0x700, 0x702)), Err(Unconfirmed));
    assert!(fake.status().contains(DeviceStatus::FAILED) && !fake.has_queue(0));
}

/// A mapping that fails and cannot be taken back: the IOMMU is not used again.
#[test]
fn an_undoing_that_is_refused_is_the_end() {
    let (unit, hardware, fake) = start(Mode::Batched);
    let disk = unit.attach(DISK, "disk", Occupied::Now).unwrap();
    hardware.known().tail = Some(8);
    assert_eq!(disk.map(run(0x700, 0x702)), Err(NoTables));
    assert!(fake.status().contains(DeviceStatus::FAILED));
    assert_eq!(disk.unmap(run(0x700, 0x702)), Err(Unconfirmed));
}

/// An IOMMU that still has requests to map, or mappings, and does not confirm a reset: the frames
/// are not handed on, but leave as mapped ones do. Those that it was not asked for are free.
#[test]
fn frames_that_an_iommu_may_still_map_are_not_handed_on() {
    let deaf = |known: &mut Known| known.left = Some(1);
    let late = |known: &mut Known| known.left = Some(2 + BATCH);
    let refuses = |known: &mut Known| known.tail = Some(8);
    let lies: [&dyn Fn(&mut Known); 3] = [&deaf, &late, &refuses];
    let frames = [0x905, 0x17, 0x800].map(Pfn);
    for (lie, confirms) in lies.into_iter().flat_map(|lie| [(lie, true), (lie, false)]) {
        for is_window in [false, true] {
            let (unit, hardware, fake) = start(Mode::Batched);
            let disk = unit.attach(DISK, "disk", Occupied::Now).unwrap();
            unit.allow_windows();
            lie(&mut hardware.known());
            if !confirms {
                fake.refuse_resets();
            }
            let all = frames.into_iter().cycle().take(WINDOW_PAGES);
            let (mapped, pages) = if is_window {
                (disk.open(3, &mut all.clone(), DeviceAccess::Read).map(drop), WINDOW_PAGES)
            } else {
                (disk.map(run(0x700, 0x740)), 0x40)
            };
            let expected = if confirms { (Err(NoTables), 0) } else { (Ok(()), pages) };
            assert_eq!((mapped, disk.pages()), expected);
            assert_eq!(disk.map(run(0x900, 0x901)), Err(NoTables), "it was not asked");
            assert_eq!(disk.open(4, &mut all.clone(), DeviceAccess::Read), Err(NoTables));
            if !confirms {
                let left = if is_window { disk.close(3, pages) } else { disk.unmap(run(0x700, 0x740)) };
                assert_eq!((left, disk.pages()), (Err(Unconfirmed), 0));
            }
        }
    }
}

/// A host that is busy for seconds, and for longer than it takes to look many times.
#[test]
fn an_answer_may_take_seconds_of_the_clock() {
    let (unit, hardware, fake) = start(Mode::Batched);
    let disk = unit.attach(DISK, "disk", Occupied::Now).unwrap();
    let answers_at = |look: usize| {
        hardware.known().left = Some(0);
        let (device, ring, mut looks) = (hardware.clone(), fake.clone(), 0);
        MOMENT.set(Some(std::boxed::Box::new(move || {
            looks += 1;
            if looks == look {
                device.known().left = None;
                ring.with_ring(0, |ring| device.serve(0, ring));
            }
        })));
    };
    // The first look is that of the beginning; the third one is six seconds later.
    answers_at(3);
    assert_eq!(disk.map(run(0x700, 0x703)), Ok(()));
    assert!(hardware.access(DISK, 0x70_0000, READ_FLAG).is_some());
    answers_at(usize::MAX);
    let begin = TIME.get();
    assert_eq!(disk.map(run(0x800, 0x803)), Err(NoTables));
    assert_eq!((TIME.get() - begin) / 3_000_000_000, 5, "twelve seconds and the next look");
    MOMENT.set(None);
}

/// The clock goes on while the host stops the machine: time alone ends no wait. Nor does a clock
/// that stands still make it endless.
#[test]
fn a_wait_ends_after_time_and_looks() {
    let mut wait = Wait::new(|| 0);
    (wait.end, wait.looks) = (0, 0);
    assert!((0..3 * LOOKS_PER_TIME).all(|_| !wait.is_over()));
    wait.looks = PATIENCE;
    assert!((0..LOOKS_PER_TIME).any(|_| wait.is_over()));
    let mut still = Wait::new(|| 7);
    still.looks = MOST_LOOKS - LOOKS_PER_TIME - 1;
    assert_eq!((0..).take_while(|_| !still.is_over()).count(), LOOKS_PER_TIME);
}

/// Properties that an endpoint's answer leaves out are not those of the answer before.
#[test]
fn properties_are_those_of_their_endpoint() {
    let (unit, hardware, _) = start(Mode::Batched);
    hardware.known().properties = region(0x80_0000, 0x80_1fff);
    unit.attach(DISK, "disk", Occupied::Now).unwrap();
    // An answer that is cut off is none, though its end would have said that it is done.
    for cut in [0, 8, PROPERTIES as usize, PROPERTIES as usize + TAIL_BYTES - 1] {
        hardware.known().cut = Some(cut);
        let dead = Some(IommuError::Dead("properties of a device"));
        assert_eq!(unit.attach((1, cut as u32), "cut", Occupied::Now).err(), dead, "{cut}");
    }
    // The device says that it has written all, and has not.
    hardware.known().cut = None;
    let mut link = unit.link.lock();
    let (lent, _) = link.lent().unwrap();
    assert!(lent.add(0, IommuRequest::Probe { endpoint: 5 }));
    let mut left = [9; PROPERTIES as usize];
    lent.properties.read(0, &mut left);
    assert_eq!(left, [0; PROPERTIES as usize]);
}

/// The device is told of slots for faults only when there are new ones.
#[test]
fn a_look_that_finds_no_fault_gives_no_notice() {
    let (unit, hardware, fake) = start(Mode::Batched);
    assert!((0..5).all(|_| unit.take_fault(|_| 0).is_none()) && fake.notices(1) == 1);
    hardware.known().faults = std::vec![[0; FAULT_BYTES]];
    fake.clone().notify(1);
    assert!(unit.take_fault(|_| 0).is_some() && unit.take_fault(|_| 0).is_none());
    assert_eq!(fake.notices(1), 3);
}

/// Without the field for it, the device alone decides what functions reach while it has no driver.
#[test]
fn an_iommu_without_a_bypass_may_be_open_without_a_driver() {
    assert!(start(Mode::Batched).0.is_always_closed());
    let (unit, ..) = start_with(Mode::Batched, FEATURES & !(1 << 6));
    assert!(!unit.is_always_closed());
    assert!(unit.attach(DISK, "disk", Occupied::Now).is_ok());
}

#[test]
fn a_domain_whose_device_went_has_nothing_and_the_next_device_begins_with_nothing() {
    let (unit, hardware, _) = start(Mode::Batched);
    let slot = unit.attach((0x100, 0x900), "slot", Occupied::Later).unwrap();
    assert_eq!((hardware.count(1), slot.map(run(0x700, 0x701))), (0, Err(NoTables)));
    assert_eq!(slot.detach(), Ok(()));
    for round in 0..20u64 {
        slot.reattach().unwrap();
        slot.reattach().unwrap();
        let mine = run(0x700 + round, 0x704 + round);
        slot.map(mine).unwrap();
        let mut listed = 0;
        unit.each_domain(|_| listed += 1);
        assert_eq!((listed, hardware.known().mappings.len()), (1, 4));
        slot.detach().unwrap();
        let left = {
            let known = hardware.known();
            (known.mappings.len(), known.endpoints.len())
        };
        assert_eq!(left, (0, 0));
        assert_eq!((slot.map(mine), slot.pages()), (Err(NoTables), 0));
        unit.each_domain(|_| panic!("it is listed"));
    }
}

#[test]
fn faults_are_told_of_with_device_address_and_reason() {
    let (unit, hardware, fake) = start(Mode::Batched);
    let disk = unit.attach(DISK, "disk", Occupied::Now).unwrap();
    let told = |flags: u32, endpoint: u32, reason: u8| {
        let mut bytes = [0; FAULT_BYTES];
        bytes[0] = reason;
        bytes[4..8].copy_from_slice(&flags.to_le_bytes());
        bytes[8..12].copy_from_slice(&endpoint.to_le_bytes());
        bytes[16..24].copy_from_slice(&0x5008u64.to_le_bytes());
        bytes
    };
    let place = |endpoint: u32| (endpoint - 0x100) as u16;
    // More than there are buffers, in many turns.
    for _ in 0..40 {
        hardware.known().faults =
            std::vec![told(0x101, 0x118, 2), told(0x100, 0x120, 1), told(0x102, 0x118, 2)];
        fake.clone().notify(1);
        let taken: Vec<_> = core::iter::from_fn(|| unit.take_fault(place)).collect();
        let told =
            taken.iter().map(|(fault, domain)| (fault.source_id, fault.deed, fault.reason, domain.is_some()));
        let (read, write, reach) = (Deed::Read(0x5000), Deed::Write(0x5000), Deed::Reach(0x5000));
        assert!(told.eq([(0x18, read, 2, true), (0x20, reach, 1, false), (0x18, write, 2, true)]));
    }
    assert_eq!((unit.faults(), disk.faults()), (120, 80));
    // A fault that is cut off.
    fake.with_ring(1, |ring| {
        let (head, _) = ring.take().unwrap();
        ring.give(head.into(), 8);
    });
    assert!(unit.take_fault(place).is_none() && fake.status().contains(DeviceStatus::FAILED));
}

#[test]
fn an_iommu_that_stays_off_lets_all_pass() {
    let fake = Fake::new(FEATURES);
    let mut bytes = config();
    bytes[36] = 0;
    fake.set_config(&bytes);
    assert_eq!(let_pass(fake.clone()), Ok(()));
    assert_eq!((fake.config()[36], fake.status()), (1, DeviceStatus::empty()));
    // Devices without a bypass, with one that does not change, and without the field.
    let fake = Fake::new(FEATURES);
    fake.set_config(&bytes);
    fake.refuse_stores();
    assert_eq!(let_pass(fake), Err(SetupError::Nonsense("bypass")));
    let fake = Fake::new(FEATURES & !(1 << 6));
    fake.set_config(&bytes);
    assert_eq!(let_pass(fake), Err(SetupError::Nonsense("lack of a bypass")));
    let fake = Fake::new(FEATURES);
    fake.set_config(&bytes[..36]);
    assert!(matches!(let_pass(fake), Err(SetupError::Ring(_))));
}

#[test]
fn devices_that_lack_what_is_needed_or_say_nonsense_are_refused() {
    let refused = |features: u64, change: &dyn Fn(&mut [u8; 40])| {
        let fake = Fake::new(features);
        let mut bytes = config();
        change(&mut bytes);
        fake.set_config(&bytes);
        VirtioIommu::start(fake, model::device(), Mode::Batched, clock).err()
    };
    let set = |at: usize, value: u64| {
        move |bytes: &mut [u8; 40]| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes())
    };
    assert_eq!(refused(FEATURES & !(1 << 2), &|_| {}), Some(SetupError::Nonsense("lack of requests")));
    assert_eq!(refused(FEATURES, &set(0, !0x1fff)), Some(SetupError::Nonsense("page size")));
    assert_eq!(refused(FEATURES, &set(0, 0)), Some(SetupError::Nonsense("page size")));
    let range = Some(SetupError::Nonsense("range of addresses or domains"));
    for (at, value) in [(8, u64::MAX), (16, 0), (16, 0x3ff_ffff), (24, 5 << 32 | 6)] {
        assert_eq!(refused(FEATURES, &set(at, value)), range, "{at}");
    }
    let much = |bytes: &mut [u8; 40]| bytes[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(refused(FEATURES, &much), Some(SetupError::Nonsense("size of properties")));
    let fake = Fake::new(FEATURES);
    fake.set_config(&config());
    fake.refuse_stores();
    let started = VirtioIommu::start(fake, model::device(), Mode::Batched, clock);
    assert_eq!(started.err(), Some(SetupError::Nonsense("bypass")));
    let fake = Fake::new(FEATURES);
    fake.set_config(&[0xff; 12]);
    assert!(matches!(
        VirtioIommu::start(fake, model::device(), Mode::Batched, clock).err(),
        Some(SetupError::Ring(_))
    ));
    // As many domains as it has numbers.
    let (unit, ..) = start(Mode::Batched);
    for endpoint in 0..100 {
        unit.attach((endpoint as u16, endpoint), "many", Occupied::Later).unwrap();
    }
    assert_eq!(unit.attach(NET, "more", Occupied::Later).err(), Some(IommuError::TooManyDomains));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// The device reaches what the set says after any sequence of calls.
    #[test]
    fn a_device_reaches_what_a_set_says(
        steps in proptest::collection::vec((any::<bool>(), 0x1e0u64..0x220, 1u64..48), 1..40),
        is_strict in any::<bool>(),
    ) {
        let (unit, hardware, _) = start(if is_strict { Mode::Strict } else { Mode::Batched });
        let disk = unit.attach(DISK, "disk", Occupied::Now).unwrap();
        let mut mapped = BTreeSet::new();
        for (is_map, first, length) in steps {
            let fits = |page: &u64| mapped.contains(page) != is_map;
            let pages: Vec<u64> = (first..first + length).take_while(fits).collect();
            let Some(&last) = pages.last() else { continue };
            if is_map {
                disk.map(run(first, last + 1)).unwrap();
                mapped.extend(pages);
            } else {
                disk.unmap(run(first, last + 1)).unwrap();
                mapped.retain(|page| !(first..=last).contains(page));
            }
            for page in 0x1d0..0x260 {
                prop_assert_eq!(hardware.access(DISK, page << 12, READ_FLAG).is_some(), mapped.contains(&page));
            }
        }
        prop_assert_eq!(disk.pages(), mapped.len());
    }

    /// Properties of any bytes: the list ends, and what is in it is a range.
    #[test]
    fn properties_of_any_bytes_are_ranges_or_nonsense(
        bytes in proptest::collection::vec(prop_oneof![0u8..8, any::<u8>()], 0..400),
    ) {
        let found: Vec<_> = reserved(&bytes).collect();
        prop_assert!(found.len() <= bytes.len() / 4 + 1);
        prop_assert!(found.iter().flatten().all(|range| range.start() <= range.end()));
    }

    /// A configuration of any bytes: the driver starts or does not, and maps nothing outside.
    #[test]
    fn a_configuration_of_any_bytes_does_no_harm(
        bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..44),
        features in any::<u64>(),
    ) {
        let fake = Fake::new(features);
        fake.set_config(&bytes);
        let _ = VirtioIommu::start(fake, model::device(), Mode::Batched, clock);
    }
}
