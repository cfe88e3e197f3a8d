//! A program's bytes in its own frames, for devices and other tasks: pinned, page by page.
//!
//! Invariant: while a [`PinnedRun`] exists, its frames are the pages' frames. Forks copy pinned
//! pages, and reclaim and the write-protecting calls skip them. An unmapped page's frame exists
//! until the pins are dropped. (A short access may hold the page's previous frame instead: see
//! `freehold_vm`'s module `pin`.)
//!
//! Each page is first tried without the space's lock. The lock is taken once for the pages that
//! need it, and it is not held during a search for memory. A task that pins holds no other lock of
//! the space.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_bounce::{FrameBytes, FrameList, HeldBytes, HeldFrames, Original, OriginalMut};
use freehold_collections::{Arc, Short, Vec, reserve};
use freehold_frame::HeldFrame;
use freehold_machine::{PAGE_SIZE, Pfn, Tally, VirtAddr};
use freehold_vm::{
    FaultError, LongTerm, MappedFile, OfFile, PageAt, PinnedPage, Purpose, ReadOnly, ReadWrite, Rule, Term,
    Transient, pin_fast, pin_fast_run,
};
use freehold_xpfo::Windows;

use super::hotplug::GrowthOutcome;
use super::space::SpaceGuard;
use super::user_faults::wait_for_monitor;
use super::{FileMapping, Frames, ProcessSpace, find_more};
use crate::hw;
use crate::hw::Hardware;
use crate::sched::thread::{Drain, Fill};
use crate::sync::{UserCharge, UserCounts};
use crate::user::{Direct, Iovecs, Sink, Source, so_far};
use crate::{Errno, Result, sched};

/// Numbers of pages pinned and unpinned, in this order.
static TOTALS: Tally<2> = Tally::new();
const ACQUIRED: usize = 0;
const RELEASED: usize = 1;

/// Returns the numbers of pages that were pinned and unpinned since boot: `nr_foll_pin_acquired`
/// and `nr_foll_pin_released`.
pub fn pin_totals() -> [u64; 2] {
    [ACQUIRED, RELEASED].map(|which| TOTALS.sum(which))
}

/// Whether devices may access pinned frames directly, without a copy.
static IN_PLACE: AtomicBool = AtomicBool::new(false);

/// From now on devices may access pinned frames and frames of the page cache directly.
pub fn offer_frames() {
    IN_PLACE.store(true, Ordering::Relaxed);
}

/// Returns whether devices may access frames directly. Otherwise there is no use in holding them.
#[inline]
pub fn are_frames_offered() -> bool {
    IN_PLACE.load(Ordering::Relaxed)
}

/// Whether a page is tried without the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PinWay {
    /// The page is first tried without the lock.
    FastFirst,
    /// The page is pinned with the lock only.
    Locked,
}

impl PinWay {
    /// Pins the first of `count` pages without the lock. Appends them to `pages` and returns their
    /// number.
    #[inline]
    fn try_fast<P: Purpose>(
        self,
        space: &ProcessSpace,
        (address, count): (VirtAddr, usize),
        pages: &mut Short<PinnedPage<Frames, P>, 1>,
    ) -> usize {
        match self {
            Self::FastFirst => {
                pin_fast_run(space.translation(), address, count, |page| pages.push_reserved(page))
            }
            Self::Locked => 0,
        }
    }
}

/// One page, pinned without a time limit, and not written.
pub struct PinnedOne(PinnedPage<Frames, ReadOnly>);

impl PinnedOne {
    /// Pins the page at `address`. Faults it in and may sleep; the caller holds no lock of `space`.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn new(space: &ProcessSpace, address: VirtAddr) -> Result<Self> {
        if space.has_keys() && allowed_by_keys::<ReadOnly>(space, address.0, 1) == 0 {
            return Err(Errno::EFAULT);
        }
        let pinned = match pin_fast(space.translation(), address) {
            Some(pinned) => pinned,
            None => with_memory(|| pin_locked::<LongTerm, _>(space, &mut None, address, Rule::Asked))?,
        };
        TOTALS.add(hw::current_cpu(), ACQUIRED, 1);
        Ok(Self(pinned))
    }
    /// Returns whether it is a page of shared memory.
    pub const fn of_file(&self) -> OfFile {
        self.0.of_file()
    }
    /// Returns the frame.
    pub fn held(&self) -> HeldFrame<'_> {
        self.0.held()
    }
}

impl Drop for PinnedOne {
    fn drop(&mut self) {
        TOTALS.add(hw::current_cpu(), RELEASED, 1);
    }
}

/// Returns how many of `length` bytes from `address` on the running thread's rights to protection
/// keys permit to be pinned (Linux: `arch_vma_access_permitted`).
#[cold]
fn allowed_by_keys<P: Purpose>(space: &ProcessSpace, address: u64, length: usize) -> usize {
    let rights = hw::user::key_rights();
    let end = VirtAddr(address.saturating_add(length as u64));
    let areas = space.lock();
    let denied = areas.areas_in(VirtAddr(address), end).find(|area| rights.denies(area.key, P::ACCESS));
    denied.map_or(length, |area| area.start.0.saturating_sub(address) as usize)
}

/// Number of pages that are pinned per acquisition of the space's lock. In between, other tasks may
/// run, and a task that is being killed stops.
const PIN_STEP: usize = 512;

/// Repeats `attempt` until it does not fail for lack of memory, or no more can be found.
fn with_memory<R>(mut attempt: impl FnMut() -> core::result::Result<R, FaultError>) -> Result<R> {
    loop {
        match attempt() {
            Err(FaultError::OutOfMemory) if find_more() == GrowthOutcome::Grown => {}
            outcome => return outcome.map_err(Errno::from),
        }
    }
}

/// Pins the page at `at` with `areas` locked. The lock is released while a monitor must provide the
/// page.
fn pin_locked<'a, T: Term, P: Purpose>(
    space: &'a ProcessSpace,
    areas: &mut Option<SpaceGuard<'a>>,
    at: VirtAddr,
    rule: Rule,
) -> core::result::Result<PinnedPage<Frames, P>, FaultError> {
    loop {
        match areas.get_or_insert_with(|| space.lock()).pin::<T, P>(at, rule) {
            // A debugger does not wait for the monitor (Linux: no FOLL_UNLOCKABLE).
            Err(FaultError::Monitored) if rule != Rule::Forced => {}
            outcome => return outcome,
        }
        let Some(locked) = areas.take() else { continue };
        wait_for_monitor(locked, at).map_err(|error| match error {
            Errno::ENOMEM => FaultError::OutOfMemory,
            _ => FaultError::Bus,
        })?;
    }
}

/// Number of pinned pages that are charged to each user (RLIMIT_MEMLOCK).
static LOCKED: UserCounts = UserCounts::new();

/// Charges `pages` to a user with a limit in bytes. A privileged user has no limit.
///
/// # Errors
/// `ENOMEM`.
fn charge_locked((user, limit): (u32, u64), pages: u64) -> Result<UserCharge> {
    let pages = if limit == u64::MAX { 0 } else { pages };
    LOCKED.charge(user, pages, limit / PAGE_SIZE as u64, Errno::ENOMEM)
}

/// Pinned bytes of a program.
pub struct PinnedRun<P: Purpose> {
    /// Transfers of one page are frequent, and need no list on the heap.
    pages: Short<PinnedPage<Frames, P>, 1>,
    address: u64,
    /// Offset of the first byte in the first frame.
    start: usize,
    length: usize,
    /// The charge for the pages.
    _locked: Option<UserCharge>,
}

impl<P: Purpose> PinnedRun<P> {
    /// Pins `length` bytes from `address` on; fewer if the mapping ends earlier. Faults pages in
    /// and may sleep; the caller holds no lock of `space`.
    ///
    /// # Errors
    /// `EFAULT` if the first page cannot be pinned, `ENOMEM`.
    pub fn new<T: Term>(space: &ProcessSpace, address: u64, length: usize, rule: Rule) -> Result<Self> {
        let way = match rule {
            // A leaf may permit more than its area.
            Rule::Stated => PinWay::Locked,
            Rule::Asked | Rule::Forced => PinWay::FastFirst,
        };
        Self::by::<T>(space, address, length, rule, way)
    }

    /// As [`PinnedRun::new`], in the way `way`.
    ///
    /// # Errors
    /// As there.
    pub fn by<T: Term>(
        space: &ProcessSpace,
        address: u64,
        length: usize,
        rule: Rule,
        way: PinWay,
    ) -> Result<Self> {
        // Others may reach memory that the process itself may not (Linux: FOLL_REMOTE).
        let length = match rule {
            Rule::Asked if space.has_keys() => allowed_by_keys::<P>(space, address, length),
            _ => length,
        };
        if length == 0 {
            return Err(Errno::EFAULT);
        }
        let start = address as usize % PAGE_SIZE;
        let count = (start + length).div_ceil(PAGE_SIZE);
        let mut pages = Short::try_with_capacity(count)?;
        let first = VirtAddr(address).page_start();
        let outcome = with_memory(|| {
            let (mut areas, mut pause) = (None, pages.len() + PIN_STEP);
            while pages.len() < count {
                if pages.len() >= pause {
                    (areas, pause) = (None, pages.len() + PIN_STEP);
                    if sched::checkpoint().is_err() {
                        return Ok(());
                    }
                }
                let outside = FaultError::Segv(freehold_vm::SegvCode::MapErr);
                let at = first.checked_add((pages.len() * PAGE_SIZE) as u64).ok_or(outside)?;
                if way.try_fast(space, (at, count - pages.len()), &mut pages) == 0 {
                    pages.push_reserved(pin_locked::<T, P>(space, &mut areas, at, rule)?);
                }
            }
            Ok(())
        });
        TOTALS.add(hw::current_cpu(), ACQUIRED, pages.len() as u64);
        // Pages that were pinned before an error are usable.
        if pages.is_empty() {
            outcome?;
        }
        let length = length.min((pages.len() * PAGE_SIZE).saturating_sub(start));
        Ok(Self { pages, address, start, length, _locked: None })
    }

    /// Pins all of the bytes for as long as they are registered somewhere. The charged process is
    /// the current one.
    ///
    /// # Errors
    /// As [`PinnedRun::new`]; `EFAULT` if not all can be pinned; `ENOMEM` above RLIMIT_MEMLOCK;
    /// `EOPNOTSUPP` for a disk's pages, which would have to be written back while pinned, and for
    /// memory that a ring shares with its program.
    pub fn register(space: &ProcessSpace, owner: (u32, u64), address: u64, length: usize) -> Result<Self> {
        let pages = (address as usize % PAGE_SIZE + length).div_ceil(PAGE_SIZE);
        let mut run = Self::new::<LongTerm>(space, address, length, Rule::Asked)?;
        if run.length < length {
            return Err(Errno::EFAULT);
        }
        run._locked = Some(charge_locked(owner, pages as u64)?);
        run.check_areas(space)?;
        Ok(run)
    }

    /// Checks that the areas of the pinned pages may be registered. An area and its pages are
    /// checked under one acquisition of the lock. Otherwise another thread could map other memory
    /// there, and the pinned pages would no longer be the mapped ones.
    fn check_areas(&self, space: &ProcessSpace) -> Result<()> {
        let is_refused = |shown: &FileMapping| {
            !shown.cache().is_memory() || shown.file().file().shares_pages_with_kernel()
        };
        let mut at = VirtAddr(self.address).page_start();
        for pinned in self.pages.chunks(PIN_STEP) {
            sched::checkpoint()?;
            let end = at.checked_add((pinned.len() * PAGE_SIZE) as u64).ok_or(Errno::EFAULT)?;
            let areas = space.lock();
            if areas.areas_in(at, end).any(|area| FileMapping::of(area.name).is_some_and(is_refused)) {
                return Err(Errno::EOPNOTSUPP);
            }
            let mut rest = pinned.iter();
            let mut is_same = true;
            areas.pages(at, end, |page| {
                let pinned = rest.next().map(|page| PageAt::Frame(page.pfn()));
                is_same &= pinned == Some(page.at);
            });
            if !is_same || rest.next().is_some() {
                return Err(Errno::EFAULT);
            }
            at = end;
        }
        Ok(())
    }

    /// Returns the address of the bytes when they were pinned.
    pub const fn address(&self) -> u64 {
        self.address
    }
    /// Returns the number of pinned bytes.
    #[expect(clippy::len_without_is_empty, reason = "a run of no bytes is none")]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns the frames.
    pub fn places(&self) -> impl Iterator<Item = Pfn> {
        self.pages.iter().map(PinnedPage::pfn)
    }

    /// Returns `length` bytes from `offset` on, for a device to read.
    pub fn bytes(&self, offset: usize, length: usize) -> impl Original + '_ {
        self.frames(offset, length)
    }
    /// Copies the bytes to `sink`, through windows. Returns their number, which is smaller if not
    /// all could be stored.
    ///
    /// # Errors
    /// Those of `sink`, if no byte could be stored.
    pub fn give<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<usize> {
        let count = self.length.min(sink.remaining());
        let give = |sink: &mut S, frame: HeldFrame<'_>, part: Range<usize>| {
            Hardware.read_bytes(&frame, |page| sink.put_without_fault(&page[part]))
        };
        self.in_pages(count, sink, give, S::fault_in)
    }
    /// Calls `transfer` to move the first `count` bytes to or from `end`, page by page, with the
    /// frame and the range of bytes in it. If `transfer` moves fewer, `fault_in` makes the other
    /// end present, which may sleep.
    fn in_pages<E: ?Sized>(
        &self,
        count: usize,
        end: &mut E,
        transfer: impl Fn(&mut E, HeldFrame<'_>, Range<usize>) -> usize,
        fault_in: impl Fn(&mut E) -> Result<()>,
    ) -> Result<usize> {
        let mut done = 0;
        while done < count {
            let at = self.start + done;
            let first = at % PAGE_SIZE;
            let part = first..PAGE_SIZE.min(first + (count - done));
            let wanted = part.len();
            let moved = transfer(end, self.frame(at / PAGE_SIZE), part);
            done += moved;
            if moved < wanted
                && let Err(error) = fault_in(end)
            {
                return so_far(done, error);
            }
        }
        Ok(done)
    }
    /// Calls `transfer` to read the first `count` bytes. A device that accesses them directly keeps
    /// them pinned.
    ///
    /// # Errors
    /// Those of `transfer`.
    pub fn drain_by(self, count: usize, transfer: Drain<'_>) -> Result<()> {
        if !are_frames_offered() {
            return transfer(&self.bytes(0, count));
        }
        let start = self.start;
        let holder: Arc<dyn HeldFrames> = reserve::arc(self);
        transfer(&HeldBytes::new(Hardware, &holder, start, count))
    }
    fn frames(&self, offset: usize, length: usize) -> FrameBytes<'_, Hardware, Self> {
        let first = self.start + offset;
        FrameBytes::new(Hardware, self).starting_at(first).truncated(length.min(self.length - offset))
    }
}

impl<P: Purpose> FrameList for PinnedRun<P> {
    fn count(&self) -> usize {
        self.pages.len()
    }
    fn frame(&self, index: usize) -> HeldFrame<'_> {
        self.pages[index].held()
    }
}

impl PinnedRun<ReadWrite> {
    /// Fills the bytes from `source`, through windows. Returns their number, which is smaller if
    /// the source ends or is not present.
    ///
    /// # Errors
    /// Those of `source`, if no byte could be read.
    pub fn take<S: Source + ?Sized>(&self, source: &mut S) -> Result<usize> {
        let count = self.length.min(source.remaining());
        let take = |source: &mut S, frame: HeldFrame<'_>, part: Range<usize>| {
            Hardware.with_bytes(&frame, |page| source.take_without_fault(&mut page[part]))
        };
        self.in_pages(count, source, take, S::fault_in)
    }
    /// Calls `transfer` to fill the first `count` bytes. A device that accesses them directly keeps
    /// them pinned.
    ///
    /// # Errors
    /// Those of `transfer`.
    pub fn fill_by(self, count: usize, transfer: Fill<'_>) -> Result<()> {
        if !are_frames_offered() {
            return transfer(&mut self.bytes_mut(0, count));
        }
        let start = self.start;
        let holder: Arc<dyn HeldFrames> = reserve::arc(self);
        transfer(&mut HeldBytes::new(Hardware, &holder, start, count))
    }
    /// Returns `length` bytes from `offset` on, for a device to write.
    pub fn bytes_mut(&self, offset: usize, length: usize) -> impl OriginalMut + '_ {
        self.frames(offset, length)
    }
}

impl<P: Purpose> Drop for PinnedRun<P> {
    fn drop(&mut self) {
        TOTALS.add(hw::current_cpu(), RELEASED, self.pages.len() as u64);
    }
}

/// Pinned bytes that any task can read, in any address space. It can also write them if they were
/// pinned for that: a [`Source`] and a [`Sink`].
pub struct PinnedBytes<P: Purpose> {
    /// The remaining bytes: a range of each run's bytes, none empty.
    parts: Vec<(Arc<PinnedRun<P>>, Range<usize>)>,
    /// Index of the first part that is not used up.
    current: usize,
    left: usize,
}

impl<P: Purpose> PinnedBytes<P> {
    const EMPTY: Self = Self { parts: Vec::new(), current: 0, left: 0 };

    /// Returns the same bytes, for an independent transfer. They stay pinned once.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(Self { parts: self.parts.try_clone()?, ..*self })
    }

    /// Returns the bytes `range` of `run`.
    ///
    /// # Errors
    /// `EFAULT` if the run has fewer, `ENOMEM`.
    pub fn part(run: Arc<PinnedRun<P>>, range: Range<usize>) -> Result<Self> {
        let mut bytes = Self::EMPTY;
        bytes.push(run, range)?;
        Ok(bytes)
    }

    /// Pins the first `most` bytes of a program's runs for one request. The bytes end at a page
    /// that cannot be pinned.
    ///
    /// # Errors
    /// As [`PinnedRun::new`]; `EINTR` if the task is being killed.
    pub fn pin(space: &ProcessSpace, runs: &Iovecs, most: usize) -> Result<Self> {
        let mut bytes = Self::EMPTY;
        for (address, length) in runs.slices().iter().map(|slice| slice.place()) {
            let length = length.min(most - bytes.left);
            if length == 0 {
                continue;
            }
            sched::checkpoint()?;
            match PinnedRun::new::<Transient>(space, address, length, Rule::Asked) {
                Ok(run) => {
                    let count = run.len();
                    bytes.push(reserve::arc(run), 0..count)?;
                    if count < length {
                        break;
                    }
                }
                Err(error) if bytes.left == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(bytes)
    }

    fn push(&mut self, run: Arc<PinnedRun<P>>, range: Range<usize>) -> Result<()> {
        if range.end > run.len() {
            return Err(Errno::EFAULT);
        }
        if !range.is_empty() {
            let count = range.len();
            self.parts.try_push((run, range))?;
            self.left += count;
        }
        Ok(())
    }

    fn direct(&self, unit: usize) -> Direct {
        let place = |(run, range): &(Arc<PinnedRun<P>>, Range<usize>)| {
            ((run.start + range.start) as u64, range.len())
        };
        Direct::of(self.parts[self.current..].iter().map(place), unit)
    }

    /// Calls `transfer` to move at most `most` bytes of the first part, with their range.
    fn use_next(
        &mut self,
        most: usize,
        transfer: impl FnOnce(&Arc<PinnedRun<P>>, Range<usize>) -> Result<()>,
    ) -> Result<usize> {
        let Some((run, range)) = self.parts.get_mut(self.current) else { return Ok(0) };
        let count = most.min(range.len());
        transfer(run, range.start..range.start + count)?;
        range.start += count;
        self.left -= count;
        self.current += usize::from(range.start == range.end);
        Ok(count)
    }

    /// Calls `transfer` for one part after the other until `wanted` bytes are moved. It gets the
    /// number of bytes moved before.
    fn use_up(
        &mut self,
        wanted: usize,
        mut transfer: impl FnMut(&PinnedRun<P>, Range<usize>, usize),
    ) -> usize {
        let mut done = 0;
        while done < wanted {
            let step = |run: &Arc<PinnedRun<P>>, range: Range<usize>| {
                transfer(run, range, done);
                Ok(())
            };
            match self.use_next(wanted - done, step) {
                Ok(count) if count > 0 => done += count,
                _ => break,
            }
        }
        done
    }
}

impl Sink for PinnedBytes<ReadWrite> {
    fn remaining(&self) -> usize {
        self.left
    }
    fn put_without_fault(&mut self, bytes: &[u8]) -> usize {
        self.use_up(bytes.len(), |run, range, done| {
            let count = range.len();
            run.bytes_mut(range.start, count).copy_from(0, &bytes[done..done + count]);
        })
    }
    fn direct(&self, unit: usize) -> Direct {
        self.direct(unit)
    }
    fn fill_direct(&mut self, most: usize, _unit: usize, transfer: Fill<'_>) -> Result<usize> {
        self.use_next(most, |run, range| {
            if !are_frames_offered() {
                return transfer(&mut run.bytes_mut(range.start, range.len()));
            }
            let holder: Arc<dyn HeldFrames> = run.clone();
            transfer(&mut HeldBytes::new(Hardware, &holder, run.start + range.start, range.len()))
        })
    }
}

impl<P: Purpose> Source for PinnedBytes<P> {
    fn remaining(&self) -> usize {
        self.left
    }
    fn take(&mut self, bytes: &mut [u8]) -> Result<usize> {
        Ok(self.take_without_fault(bytes))
    }
    fn take_without_fault(&mut self, bytes: &mut [u8]) -> usize {
        self.use_up(bytes.len(), |run, range, done| {
            let count = range.len();
            run.bytes(range.start, count).copy_to(0, &mut bytes[done..done + count]);
        })
    }
    fn fault_in(&mut self) -> Result<()> {
        Ok(())
    }
    fn direct(&self, unit: usize) -> Direct {
        self.direct(unit)
    }
    fn drain_direct(&mut self, most: usize, _unit: usize, transfer: Drain<'_>) -> Result<usize> {
        self.use_next(most, |run, range| {
            if !are_frames_offered() {
                return transfer(&run.bytes(range.start, range.len()));
            }
            let holder: Arc<dyn HeldFrames> = run.clone();
            transfer(&HeldBytes::new(Hardware, &holder, run.start + range.start, range.len()))
        })
    }
}

impl From<FaultError> for Errno {
    fn from(error: FaultError) -> Self {
        match error {
            FaultError::Segv(_) | FaultError::Bus | FaultError::Monitored => Self::EFAULT,
            FaultError::OutOfMemory => Self::ENOMEM,
        }
    }
}
