//! The promises in the crate's head, on a unit in software.

extern crate std;

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::boxed::Box;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use freehold_bounce::{DeviceRules, Direction, Dma, DmaAddr, FrameList, HeldFrames, Limits};
use freehold_buddy::{Buddy, Managed, Options, Pcp};
use freehold_frame::{Anon, Frame, FrameRecord, FrameTable, Held, HeldFrame, Owner};
use freehold_machine::model::{Config, Model};
use freehold_machine::{
    Access, DeviceAccess, DeviceDomain, MAX_WINDOWS, NoTables, Pfn, PfnRange, Unconfirmed, WINDOW_PAGES,
};
use proptest::prelude::*;

use crate::model::{CAPABILITY, EXTENDED, SoftwareUnit, UnitKind};
use crate::unit::{IOTLB_DOMAIN, IOTLB_PAGES};
use crate::{Deed, DeviceFault, Interrupts, IommuError, Mode, Unit};

pub type Frames = &'static Buddy<Model>;

pub const DISK: u16 = 0x18;
pub const NET: u16 = 0x20;

pub fn frames() -> Frames {
    let machine = Model::new(Config { frames: 8192, ..Config::default() });
    let records = (0..8192).map(|_| zerocopy::FromZeros::new_zeroed()).collect::<Box<[FrameRecord]>>();
    let options = Options::default();
    let words = Buddy::<Model>::metadata_words(machine.topology(), 1, &options);
    let metadata = (0..words).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>();
    let table = FrameTable::new(Box::leak(records));
    let metadata = Box::leak(metadata);
    let pcps = Box::leak(Box::new([Pcp::new()]));
    let managed = Managed { topology: machine.topology(), reserved: &[], table, metadata, pcps };
    let buddy = Buddy::new(machine, managed, options);
    Box::leak(Box::new(buddy.ok().unwrap()))
}

pub fn start(kind: UnitKind, mode: Mode) -> (&'static Unit<SoftwareUnit, Frames>, SoftwareUnit, Frames) {
    let frames = frames();
    let hardware = SoftwareUnit::new(freehold_frame::FrameSource::machine(frames), kind);
    let unit = Unit::start(hardware.clone(), frames, mode, Interrupts::Passed);
    (unit.unwrap(), hardware, frames)
}

pub fn run(start: u64, end: u64) -> PfnRange {
    PfnRange::new(Pfn(start), Pfn(end))
}

#[test]
fn a_function_without_a_domain_reaches_nothing_and_its_fault_says_so() {
    let (unit, hardware, _) = start(UnitKind::default(), Mode::Batched);
    assert_eq!(hardware.access(DISK, 0x5000, Access::Write), Err(1));
    let disk = unit.attach(DISK, "disk").unwrap();
    assert_eq!(hardware.access(NET, 0x5008, Access::Write), Err(2));
    assert_eq!(hardware.access(DISK, 0x5000, Access::Read), Err(6));
    let fault =
        |source_id, reason, deed: fn(u64) -> Deed| DeviceFault { source_id, deed: deed(0x5000), reason };
    let taken: Vec<_> = std::iter::from_fn(|| unit.take_fault()).collect();
    let told = taken.iter().map(|(fault, domain)| (*fault, domain.is_some()));
    let expected = [
        (fault(DISK, 1, Deed::Write), true),
        (fault(NET, 2, Deed::Write), false),
        (fault(DISK, 6, Deed::Read), true),
    ];
    assert!(told.eq(expected));
    assert_eq!((unit.faults(), disk.faults()), (3, 2));
}

#[test]
fn pages_are_reached_while_they_are_mapped_and_the_unit_forgets_what_it_remembered() {
    for mode in [Mode::Batched, Mode::Strict] {
        let (unit, hardware, _) = start(UnitKind::default(), mode);
        let (disk, net) = (unit.attach(DISK, "disk").unwrap(), unit.attach(NET, "net").unwrap());
        disk.map(run(0x700, 0x740)).unwrap();
        for page in 0x700..0x740u64 {
            assert_eq!(hardware.access(DISK, page << 12 | 8, Access::Write), Ok(page << 12 | 8));
            assert_eq!(hardware.access(NET, page << 12, Access::Read), Err(6));
        }
        let before = hardware.sent(IOTLB_PAGES);
        disk.unmap(run(0x703, 0x70b)).unwrap();
        assert_eq!(hardware.sent(IOTLB_PAGES) - before, if mode == Mode::Strict { 8 } else { 1 });
        for page in 0x700..0x740u64 {
            let is_mapped = !(0x703..0x70b).contains(&page);
            assert_eq!(hardware.access(DISK, page << 12, Access::Read).is_ok(), is_mapped, "{page:#x}");
        }
        assert_eq!((disk.pages(), net.pages()), (56, 0));
    }
}

#[test]
fn without_an_answer_nothing_is_confirmed() {
    // The start's two invalidations with their wait, and no more.
    let (unit, hardware, _) = start(UnitKind { obeys: 3, ..UnitKind::default() }, Mode::Batched);
    let disk = unit.attach(DISK, "disk").unwrap();
    disk.map(run(0x700, 0x701)).unwrap();
    assert_eq!(hardware.access(DISK, 0x70_0000, Access::Write), Ok(0x70_0000));
    assert_eq!(disk.unmap(run(0x700, 0x701)), Err(Unconfirmed));
    assert_eq!(hardware.access(DISK, 0x70_0000, Access::Write), Ok(0x70_0000), "the device still reaches it");
    // No later call waits for the unit again.
    let sent = unit.invalidations();
    disk.map(run(0x701, 0x702)).unwrap();
    assert_eq!((disk.unmap(run(0x701, 0x702)), unit.invalidations()), (Err(Unconfirmed), sent));
}

/// Each of several callers that wait at once gets its own answer, more often than there are words
/// for answers and places in the queue.
#[test]
fn threads_that_unmap_at_a_time_are_all_answered() {
    let (unit, hardware, _) = start(UnitKind::default(), Mode::Batched);
    let disk = unit.attach(DISK, "disk").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let hardware = hardware.clone();
            scope.spawn(move || {
                for page in (0x1000 * thread..).take(300) {
                    disk.map(run(page, page + 1)).unwrap();
                    assert!(hardware.access(DISK, page << 12, Access::Write).is_ok());
                    assert_eq!(disk.unmap(run(page, page + 1)), Ok(()));
                    assert_eq!(hardware.access(DISK, page << 12, Access::Write), Err(5));
                }
            });
        }
    });
    assert_eq!(disk.pages(), 0);
}

#[test]
fn a_unit_that_forgets_whole_domains_only_is_told_so() {
    let kind = UnitKind { capability: CAPABILITY & !(1 << 39), ..UnitKind::default() };
    let (unit, hardware, _) = start(kind, Mode::Batched);
    let disk = unit.attach(DISK, "disk").unwrap();
    disk.map(run(0x700, 0x702)).unwrap();
    hardware.access(DISK, 0x70_1000, Access::Write).unwrap();
    disk.unmap(run(0x701, 0x702)).unwrap();
    assert_eq!(hardware.sent(IOTLB_DOMAIN), 1);
    assert_eq!(hardware.access(DISK, 0x70_1000, Access::Write), Err(5));
}

#[test]
fn units_that_lack_what_is_needed_are_refused_and_tables_are_counted() {
    let refused = |kind: UnitKind| {
        let frames = frames();
        let hardware = SoftwareUnit::new(freehold_frame::FrameSource::machine(frames), kind);
        Unit::start(hardware, frames, Mode::Batched, Interrupts::Passed).err().unwrap()
    };
    let kind = UnitKind::default();
    assert!(matches!(refused(UnitKind { extended: 0, ..kind }), IommuError::Unsupported(_)));
    assert!(matches!(
        refused(UnitKind { capability: CAPABILITY & !(1 << 10), ..kind }),
        IommuError::Unsupported(_)
    ));
    let far = CAPABILITY | 0x3ff << 24;
    assert!(matches!(refused(UnitKind { capability: far, ..kind }), IommuError::Unsupported(_)));
    assert_eq!(EXTENDED, 2);

    let (unit, _, frames) = start(UnitKind { capability: CAPABILITY & !7, ..kind }, Mode::Batched);
    let disk = unit.attach(DISK, "disk").unwrap();
    assert_eq!(unit.attach(DISK, "again").err(), Some(IommuError::Taken));
    // Two leaf tables under one chain of two; then a leaf beyond what four levels reach.
    disk.map(run(0x1fe, 0x202)).unwrap();
    assert_eq!(disk.tables(), 5);
    assert_eq!(disk.map(run(1 << 36, (1 << 36) + 1)), Err(NoTables));
    let (audit, faults) = frames.validate(|fault| panic!("{fault:?}"));
    assert_eq!((audit.frames(Owner::DeviceTable), faults), (unit.tables() as u64, 0));
    for function in 1..15 {
        unit.attach(function << 8, "more").unwrap();
    }
    assert_eq!(unit.attach(0x1000, "too many").err(), Some(IommuError::TooManyDomains));
}

/// The DMA API over the unit: a page is one device's at a time, for the unit, too.
#[test]
fn bounce_pages_follow_their_device_and_leave_with_it() {
    let (unit, hardware, frames) = start(UnitKind::default(), Mode::Batched);
    let (disk, net) = (unit.attach(DISK, "disk").unwrap(), unit.attach(NET, "net").unwrap());
    let dma: &'static Dma<Frames> = Box::leak(Box::new(Dma::new()));
    dma.start(frames, Limits { slabs: 8, cap: 4 * 4096, ..Limits::default() });
    let attach = |name, domain| {
        let rules = DeviceRules { name, reach: DmaAddr(u64::MAX), quota: usize::MAX, domain: Some(domain) };
        dma.attach(rules).unwrap()
    };
    let (disk_dma, net_dma) = (attach("disk", disk as _), attach("net", net as _));
    let reaches = |device: u16, page: u64| hardware.access(device, page << 12, Access::Write).is_ok();

    let first = disk_dma.buffer(4 * 4096, Direction::FromDevice).unwrap();
    let page = first.address().0 >> 12;
    assert!((page..page + 4).all(|page| reaches(DISK, page) && !reaches(NET, page)));
    drop(first);
    // The next transfer of the same device maps nothing.
    let sent = unit.invalidations();
    drop(disk_dma.buffer(4 * 4096, Direction::FromDevice).unwrap());
    assert_eq!((unit.invalidations(), disk.pages()), (sent, 4));
    let second = net_dma.buffer(2 * 4096, Direction::FromDevice).unwrap();
    let taken = second.address().0 >> 12;
    assert!((taken..taken + 2).all(|page| reaches(NET, page) && !reaches(DISK, page)));
    assert_eq!((disk.pages(), net.pages()), (2, 2));
    drop(second);

    let rings = disk_dma.coherent(8192).unwrap();
    let ring = rings.address().0 >> 12;
    assert!(reaches(DISK, ring) && reaches(DISK, ring + 1) && !reaches(NET, ring));
    drop(rings);
    assert!(!reaches(DISK, ring));
}

/// A segment that goes back to the page allocator has left every device.
#[test]
fn memory_that_goes_back_to_the_page_allocator_is_reached_by_no_device() {
    for (obeys, lost) in [(usize::MAX, 0), (3, 256 << 10)] {
        let (unit, hardware, frames) = start(UnitKind { obeys, ..UnitKind::default() }, Mode::Batched);
        let disk = unit.attach(DISK, "disk").unwrap();
        let dma: &'static Dma<Frames> = Box::leak(Box::new(Dma::new()));
        dma.start(frames, Limits { slabs: 0, ..Limits::default() });
        let rules =
            DeviceRules { name: "disk", reach: DmaAddr(u64::MAX), quota: usize::MAX, domain: Some(disk) };
        let mapping = dma.attach(rules).unwrap().buffer(64 << 10, Direction::FromDevice).unwrap();
        let address = mapping.address().0;
        hardware.access(DISK, address, Access::Write).unwrap();
        drop(mapping);
        assert!(hardware.access(DISK, address, Access::Write).is_ok(), "the page stays the device's");
        assert_eq!(dma.shrink(), 256 << 10);
        // A unit that does not answer: the memory stays out of use.
        assert_eq!(dma.statistics().lost, lost);
        assert_eq!(hardware.access(DISK, address, Access::Write).is_ok(), lost > 0);
        let (audit, _) = frames.validate(|fault| panic!("{fault:?}"));
        assert_eq!(audit.frames(Owner::Bounce), lost as u64 / 4096);
    }
}

/// A window shows frames of any order at addresses side by side, as the direction allows, and
/// nothing once it is closed: the unit's cache has forgotten them.
#[test]
fn a_window_shows_frames_for_one_transfer_and_closes_after_the_answer() {
    for mode in [Mode::Batched, Mode::Strict] {
        let (unit, hardware, _) = start(UnitKind::default(), mode);
        let (disk, net) = (unit.attach(DISK, "disk").unwrap(), unit.attach(NET, "net").unwrap());
        let frames = [0x905, 0x17, 0x800, 0x17].map(Pfn);
        assert_eq!(disk.windows(), 0);
        assert_eq!(disk.open(0, &mut frames.into_iter(), DeviceAccess::Read), Err(NoTables));
        unit.allow_windows();
        for window in [0, 1, MAX_WINDOWS - 1] {
            for access in [DeviceAccess::Read, DeviceAccess::Write, DeviceAccess::ReadWrite] {
                let address = disk.open(window, &mut frames.into_iter(), access).unwrap();
                let at = |page: usize| address + (page << 12) as u64 + 8;
                for (page, frame) in frames.iter().enumerate() {
                    let reached = Ok(frame.start().0 + 8);
                    let (may_read, may_write) = (access != DeviceAccess::Write, access != DeviceAccess::Read);
                    assert_eq!(
                        hardware.access(DISK, at(page), Access::Read),
                        if may_read { reached } else { Err(6) }
                    );
                    assert_eq!(
                        hardware.access(DISK, at(page), Access::Write),
                        if may_write { reached } else { Err(5) }
                    );
                    assert_eq!(hardware.access(NET, at(page), Access::Read), Err(6));
                    assert_eq!(
                        hardware.access(DISK, frame.start().0, Access::Read),
                        Err(6),
                        "in its window only"
                    );
                }
                assert_eq!(hardware.access(DISK, at(4), Access::Read), Err(6));
                assert_eq!(disk.pages(), 4);
                assert_eq!(disk.open(window, &mut frames.into_iter(), access), Err(NoTables), "it is open");
                assert_eq!(disk.close(window, 4), Ok(()));
                for page in 0..4 {
                    assert!(hardware.access(DISK, at(page), Access::Read).is_err(), "{mode:?} {page}");
                    assert!(hardware.access(DISK, at(page), Access::Write).is_err(), "{mode:?} {page}");
                }
                assert_eq!((disk.pages(), net.pages()), (0, 0));
            }
        }
        assert_eq!(disk.open(MAX_WINDOWS, &mut frames.into_iter(), DeviceAccess::Read), Err(NoTables));
        // Memory does not reach into the windows.
        let first = disk.first_window();
        assert_eq!(disk.map(run(first - 1, first + 1)), Err(NoTables));
        assert_eq!(disk.map(run(first - 1, first)), Ok(()));
        // A window is one invalidation; strict, one for each page.
        let pages = (0x400..0x400 + WINDOW_PAGES as u64).map(Pfn);
        disk.open(3, &mut pages.clone(), DeviceAccess::Write).unwrap();
        let sent = hardware.sent(IOTLB_PAGES);
        disk.close(3, WINDOW_PAGES).unwrap();
        let expected = if mode == Mode::Strict { WINDOW_PAGES } else { 1 };
        assert_eq!(hardware.sent(IOTLB_PAGES) - sent, expected);
    }
}

/// Frames that record, when they are released, whether the device can still access them.
struct Watched {
    frames: Vec<Frame<Anon, Frames>>,
    hardware: SoftwareUnit,
    address: Arc<AtomicU64>,
    reached: Arc<Mutex<Option<bool>>>,
}

impl FrameList for Watched {
    fn count(&self) -> usize {
        self.frames.len()
    }
    fn frame(&self, index: usize) -> HeldFrame<'_> {
        self.frames[index].held()
    }
}

fn held(frames: Frames, count: usize) -> Vec<Frame<Anon, Frames>> {
    (0..count).map(|_| Frame::allocate(frames).unwrap()).collect()
}

impl Drop for Watched {
    fn drop(&mut self) {
        let address = self.address.load(Relaxed);
        let pages = 0..self.frames.len() as u64;
        let is_reached = pages
            .into_iter()
            .any(|page| self.hardware.access(DISK, address + (page << 12), Access::Write).is_ok());
        *self.reached.lock().unwrap() = Some(is_reached);
    }
}

/// The DMA API over the unit: a holder releases frames once no device can access them any more, or
/// never.
#[test]
fn frames_in_place_are_let_go_of_after_the_answer_or_never() {
    for obeys in [usize::MAX, 3] {
        let (unit, hardware, frames) = start(UnitKind { obeys, ..UnitKind::default() }, Mode::Batched);
        let disk = unit.attach(DISK, "disk").unwrap();
        unit.allow_windows();
        let dma: &'static Dma<Frames> = Box::leak(Box::new(Dma::new()));
        dma.start(frames, Limits { slabs: 0, ..Limits::default() });
        let rules =
            DeviceRules { name: "disk", reach: DmaAddr(u64::MAX), quota: usize::MAX, domain: Some(disk) };
        let device = dma.attach(rules).unwrap();
        assert_eq!(device.pages_in_place(), WINDOW_PAGES);
        let (address, reached) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(None)));
        let watched = Watched {
            frames: held(frames, 3),
            hardware: hardware.clone(),
            address: address.clone(),
            reached: reached.clone(),
        };
        let second = watched.frames[1].pfn().start().0;
        let holder: Arc<dyn HeldFrames> = Arc::new(watched);
        assert!(device.in_place(0, holder.clone(), 0..0, Direction::FromDevice).is_none());
        assert!(device.in_place(0, holder.clone(), 2..4, Direction::FromDevice).is_none());
        let in_place = device.in_place(0, holder, 0..3, Direction::FromDevice).unwrap();
        assert_eq!(in_place.len(), 3 * 4096);
        address.store(in_place.address().0, Relaxed);
        assert_eq!(hardware.access(DISK, in_place.address().0 + 0x1008, Access::Write), Ok(second + 8));
        assert_eq!(hardware.access(DISK, in_place.address().0, Access::Read), Err(6), "it only writes");
        drop(in_place);
        // If the unit does not answer, no other owner gets the frames, and no device the window.
        let is_answered = obeys == usize::MAX;
        assert_eq!(*reached.lock().unwrap(), is_answered.then_some(false));
        assert_eq!(device.lost(), if is_answered { 0 } else { 3 * 4096 });
        let other: Arc<dyn HeldFrames> = Arc::new(Watched {
            frames: held(frames, 1),
            hardware: hardware.clone(),
            address: Arc::default(),
            reached: Arc::default(),
        });
        assert_eq!(device.in_place(0, other.clone(), 0..1, Direction::ToDevice).is_some(), is_answered);
        // A device that does not confirm a reset keeps what it has.
        let first = other.frame(0).pfn().start().0;
        let kept = device.in_place(1, other, 0..1, Direction::ToDevice).unwrap();
        let lost = device.lost();
        assert_eq!((kept.lose(), kept.lose(), device.lost() - lost), (4096, 0, 4096));
        let place = kept.address().0;
        drop(kept);
        assert_eq!(hardware.access(DISK, place, Access::Read), Ok(first));
        assert_eq!(hardware.access(DISK, place, Access::Write), Err(5), "it only reads");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// After any maps and unmaps, a device with a cache reaches exactly the pages of the model's
    /// set.
    #[test]
    fn a_device_reaches_what_a_set_says(
        steps in proptest::collection::vec((any::<bool>(), 0x1e0u64..0x220, 1u64..24), 1..60),
    ) {
        let (unit, hardware, _) = start(UnitKind::default(), Mode::Batched);
        let disk = unit.attach(DISK, "disk").unwrap();
        let mut mapped = BTreeSet::new();
        for (is_map, first, length) in steps {
            // As the contract says: what is mapped is mapped nowhere yet, what is unmapped
            // everywhere.
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
            for page in 0x1d0..0x240 {
                prop_assert_eq!(hardware.access(DISK, page << 12, Access::Read).is_ok(), mapped.contains(&page));
            }
        }
        prop_assert_eq!(disk.pages(), mapped.len());
    }
}

/// Forty devices, one after the other, in a slot: what one reached, the next does not, and no table
/// stays behind.
#[test]
fn a_domain_whose_device_went_has_no_tables_and_the_next_device_begins_with_nothing() {
    let (unit, hardware, frames) = start(UnitKind::default(), Mode::Batched);
    let slot = unit.attach(0x100, "slot").unwrap();
    assert_eq!(unit.attach(0x100, "again").unwrap_err(), IommuError::Taken);
    slot.detach().unwrap();
    let (free, tables) = (frames.free_frames(), unit.tables());
    for round in 0..40u64 {
        slot.reattach().unwrap();
        slot.reattach().unwrap();
        let mine = run(0x700 + round, 0x704 + round);
        slot.map(mine).unwrap();
        assert!(hardware.access(0x100, mine.start.start().0, Access::Write).is_ok());
        let mut listed = 0;
        unit.each_domain(|_| listed += 1);
        assert_eq!(listed, 1);
        slot.detach().unwrap();
        assert_eq!(hardware.access(0x100, mine.start.start().0, Access::Write), Err(2), "no domain");
        assert_eq!(slot.map(mine), Err(NoTables));
        unit.each_domain(|_| panic!("it is listed"));
        assert_eq!((frames.free_frames(), unit.tables(), slot.pages()), (free, tables, 0));
    }
    slot.reattach().unwrap();
    assert_eq!(hardware.access(0x100, 0x700 << 12, Access::Write), Err(5), "a domain with nothing in it");
}

/// A unit that goes deaf: the tables stay, since it may still walk them.
#[test]
fn a_domain_that_the_unit_does_not_confirm_as_gone_keeps_its_tables() {
    let (unit, _, frames) = start(UnitKind { obeys: 3, ..UnitKind::default() }, Mode::Batched);
    let slot = unit.attach(0x100, "slot").unwrap();
    slot.map(run(0x700, 0x704)).unwrap();
    let (free, tables) = (frames.free_frames(), unit.tables());
    assert_eq!(slot.detach(), Err(Unconfirmed));
    assert_eq!((frames.free_frames(), unit.tables()), (free, tables));
}
