//! Promises of swap: with a disk in memory that can fail, and that can run actions while it writes.

mod charged;
mod device;
mod interleavings;
mod lazy;
mod pages;
mod rows;
mod shared;
mod slots;
mod steps;
mod storm;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

use freehold_frame::{HeldFrame, NodeSet};
use freehold_machine::model::Model;
use freehold_machine::{PAGE_SIZE, Pfn, PhysicalBytes, VirtAddr};
use freehold_paging::model::ModelFrames;

use super::world::*;
use crate::*;

/// The `find` function of swapoff that never finds memory.
pub fn find_none() -> core::ops::ControlFlow<()> {
    core::ops::ControlFlow::Break(())
}

/// An action that runs just before the disk writes or reads.
type During = std::boxed::Box<dyn FnOnce() + Send>;

/// Operations that a disk still serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Health {
    #[default]
    Sound,
    Unreadable,
    Unwritable,
    Dead,
    /// It has no memory for a request to write.
    Starved,
}

/// A disk of pages.
pub struct Disk {
    model: Model,
    pages: Mutex<BTreeMap<u64, Vec<u8>>>,
    /// Pages that cannot be read, or written.
    pub bad_reads: Mutex<BTreeSet<u64>>,
    pub bad_writes: Mutex<BTreeSet<u64>>,
    health: Mutex<Health>,
    pub during_write: Mutex<Option<During>>,
    pub during_read: Mutex<Option<During>>,
    /// Requests: first page and how many.
    pub reads: Mutex<Vec<(u64, usize)>>,
    pub writes: Mutex<Vec<(u64, usize)>>,
}

impl Disk {
    pub fn new(model: Model) -> Arc<Self> {
        Arc::new(Self {
            model,
            pages: Mutex::default(),
            bad_reads: Mutex::default(),
            bad_writes: Mutex::default(),
            health: Mutex::default(),
            during_write: Mutex::default(),
            during_read: Mutex::default(),
            reads: Mutex::default(),
            writes: Mutex::default(),
        })
    }
    pub fn set_health(&self, health: Health) {
        *self.health.lock().unwrap() = health;
    }
    pub fn fails_reads(&self) -> bool {
        matches!(*self.health.lock().unwrap(), Health::Unreadable | Health::Dead)
    }
    fn fails_writes(&self) -> bool {
        matches!(*self.health.lock().unwrap(), Health::Unwritable | Health::Dead)
    }
    fn is_bad(bad: &Mutex<BTreeSet<u64>>, first: u64, count: usize) -> bool {
        bad.lock().unwrap().range(first..first + count as u64).next().is_some()
    }
}

impl SwapStore for Disk {
    fn read(&self, first: u64, frames: &[HeldFrame<'_>]) -> Result<(), VmError> {
        self.reads.lock().unwrap().push((first, frames.len()));
        // The device has read the request's bytes before anything else happens.
        let fails = self.fails_reads() || Self::is_bad(&self.bad_reads, first, frames.len());
        let bytes: Vec<Option<Vec<u8>>> = {
            let pages = self.pages.lock().unwrap();
            (first..first + frames.len() as u64).map(|page| pages.get(&page).cloned()).collect()
        };
        let during = self.during_read.lock().unwrap().take();
        if let Some(during) = during {
            during();
        }
        if fails {
            return Err(VmError::Io);
        }
        for (bytes, &frame) in bytes.iter().zip(frames) {
            let bytes = bytes.as_ref().expect("nothing is read that was not written");
            self.model.with_bytes(frame.pfn(), |to| to.copy_from_slice(bytes));
        }
        Ok(())
    }
    fn write(&self, first: u64, frames: &[HeldFrame<'_>]) -> Result<(), VmError> {
        self.writes.lock().unwrap().push((first, frames.len()));
        // The device has the bytes before anything else happens.
        let bytes: Vec<_> =
            frames.iter().map(|&frame| self.model.with_bytes(frame.pfn(), |from| from.to_vec())).collect();
        let during = self.during_write.lock().unwrap().take();
        if let Some(during) = during {
            during();
        }
        if self.fails_writes() || Self::is_bad(&self.bad_writes, first, frames.len()) {
            return Err(VmError::Io);
        }
        if *self.health.lock().unwrap() == Health::Starved {
            return Err(VmError::NoMemory);
        }
        self.pages.lock().unwrap().extend((first..).zip(bytes));
        Ok(())
    }
}

/// A world with one swap area of `slots` pages.
pub struct Swapping {
    pub world: World,
    pub disk: Arc<Disk>,
    pub area: SwapArea,
}

impl Swapping {
    pub fn new(slots: u64) -> Self {
        Self::in_world(World::new(), slots)
    }
    pub fn in_world(world: World, slots: u64) -> Self {
        let disk = Disk::new(world.model());
        let area = world.commons.swap().add(disk.clone(), slots + 1, &[], 0).unwrap();
        Self { world, disk, area }
    }
    pub fn swap(&self) -> &Swap<ModelFrames> {
        self.world.commons.swap()
    }
    pub fn used(&self) -> u64 {
        let usage = self.swap().usage();
        usage.slots - usage.free
    }
    /// Advises that `pages` from `addr` on are not needed, and evicts them.
    pub fn page_out(&self, p: &Process, addr: u64, pages: u64) -> SwapEvicted {
        let range = VirtAddr(addr)..VirtAddr(addr + pages * PAGE);
        p.advise(addr, pages, Advice::PageOut).unwrap();
        p.run(|| self.world.commons.page_out(&*p.locked, range))
    }
    pub fn evict(&self, p: &Process, pages: u64, age: Age) -> SwapEvicted {
        p.run(|| self.world.commons.evict(&wish(pages, age)))
    }
    /// Checks that no copy was unnecessary and that entries in page tables and slots agree. Then
    /// everything is freed.
    pub fn end(self) {
        assert_eq!(self.count(Event::CowUnneeded), 0);
        self.end_of_storm();
    }
    /// As [`Swapping::end`], but allows copies whose original was swapped out by the other space at
    /// the same moment.
    pub fn end_of_storm(self) {
        self.check();
        assert_eq!(self.used(), 0, "slots that nobody leads to");
        self.world.end();
    }
    pub fn check(&self) {
        let mut entries = 0;
        self.world.commons.for_each_space(&mut |space| {
            let mut here = 0;
            space.resident.tables.visit_all(VirtAddr(0)..VirtAddr(u64::MAX), |_, _, entry, _| {
                let place = entry.swap_place();
                here += u64::from(place.is_some());
                entries += u64::from(place.is_some_and(|place| place != SwapPlace::LOST));
            });
            assert_eq!(space.usage().swapped, here);
        });
        self.world.commons.for_each_cache(|cache| entries += cache.slots());
        assert_eq!(self.swap().validate(), entries, "entries that slots count, and entries there are");
    }
    pub fn count(&self, event: Event) -> u64 {
        self.world.commons.count_of(event)
    }
    pub fn swap_off(&self, p: &Process) -> Result<(), VmError> {
        let mut rounds = 0;
        p.run(|| {
            self.world.commons.swap_off(
                self.area,
                &mut || {
                    rounds += 1;
                    if rounds < 1000 {
                        core::ops::ControlFlow::Continue(())
                    } else {
                        core::ops::ControlFlow::Break(())
                    }
                },
                &mut find_none,
            )
        })
    }
}

/// Returns a request for `pages` pages of any node.
pub const fn wish(pages: u64, age: Age) -> EvictWish {
    EvictWish { pages, age, frames: FrameChoice::ALL, effort: 0 }
}

/// Pages with the bytes `first`, `first + 1` and so on.
pub fn filled(p: &Process, pages: u64, first: u8) -> u64 {
    let addr = p.anonymous(pages);
    (0..pages).for_each(|n| p.store(addr + n * PAGE, first.wrapping_add(n as u8)).unwrap());
    addr
}

/// Checks that the pages still have these bytes.
#[track_caller]
pub fn assert_filled(p: &Process, addr: u64, pages: u64, first: u8) {
    let found: Vec<_> = (0..pages).map(|n| p.load(addr + n * PAGE)).collect();
    let expected: Vec<_> = (0..pages).map(|n| Ok(first.wrapping_add(n as u8))).collect();
    assert_eq!(found, expected);
}

/// Makes one area of `slots` pages, and a process with `pages` pages of the bytes 1, 2 and so on;
/// returns their address last.
pub fn with_filled(slots: u64, pages: u64) -> (Swapping, Process, u64) {
    let s = Swapping::new(slots);
    let p = s.world.process(0);
    let addr = filled(&p, pages, 1);
    (s, p, addr)
}

pub fn place(p: &Process, addr: u64) -> Option<SwapPlace> {
    p.space().resident.tables.entry(VirtAddr(addr)).swap_place()
}

pub fn is_exclusive(p: &Process, addr: u64) -> bool {
    let space = p.space();
    let entry = space.resident.present(VirtAddr(addr)).unwrap();
    space.resident.is_exclusive(entry)
}

/// A byte that a device stores or reads.
pub fn dma(world: &World, frame: Pfn) -> DmaByte {
    DmaByte(world.model(), frame)
}

pub struct DmaByte(Model, Pfn);

impl DmaByte {
    pub fn store(&self, value: u8) {
        self.0.with_bytes(self.1, |bytes| bytes[0] = value);
    }
    pub fn load(&self) -> u8 {
        self.0.with_bytes(self.1, |bytes: &mut [u8; PAGE_SIZE]| bytes[0])
    }
}
