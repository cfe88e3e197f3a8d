//! A program's bytes in its own frames, for devices and other tasks: pinned, page by page.
//!
//! Invariant: while a [`PinnedRun`] lives, the frames under it are the pages' frames. Forks copy,
//! reclaim and the write-protecting calls pass by, and an unmapped page's frame lives on until the
//! pins are gone. (A short look may hold the page's previous frame instead: see `freehold_vm`'s
//! module `pin`.)
//!
//! Each page is tried without the space's lock first. The lock is taken once for the pages that
//! need it, and not held over a search for memory. A task that pins holds no other lock of the
//! space.

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

/// Pages pinned and unpinned, in this order.
static TOTALS: Tally<2> = Tally::new();
const ACQUIRED: usize = 0;
const RELEASED: usize = 1;

/// Pages that were pinned and unpinned since boot: `nr_foll_pin_acquired` and
/// `nr_foll_pin_released`.
pub fn pin_totals() -> [u64; 2] {
    [ACQUIRED, RELEASED].map(|which| TOTALS.sum(which))
}

/// Whether devices are offered frames in their places.
static IN_PLACE: AtomicBool = AtomicBool::new(false);

/// From now on devices are offered pinned frames and frames of the page cache in their places.
pub fn offer_frames() {
    IN_PLACE.store(true, Ordering::Relaxed);
}

/// Returns whether frames are offered to devices in their places; otherwise holding them is
/// useless.
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
    /// Pins the first of `count` pages without the lock; returns how many, at the end of `pages`.
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

/// One page, pinned for as long as its holder likes, and not written.
pub struct PinnedOne(PinnedPage<Frames, ReadOnly>);

impl PinnedOne {
    /// Pin the page at `address`. Faults it in and may sleep; the caller holds no lock of
    /// `space`'s.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn new(space: &ProcessSpace, address: VirtAddr) -> Result<Self> {
        let pinned = match pin_fast(space.translation(), address) {
            Some(pinned) => pinned,
            None => with_memory(|| pin_locked::<LongTerm, _>(space, &mut None, address, Rule::Asked))?,
        };
        TOTALS.add(hw::current_cpu(), ACQUIRED, 1);
        Ok(Self(pinned))
    }
    /// Whether it is of truly shared memory.
    pub const fn of_file(&self) -> OfFile {
        self.0.of_file()
    }
    /// The frame.
    pub fn held(&self) -> HeldFrame<'_> {
        self.0.held()
    }
}

impl Drop for PinnedOne {
    fn drop(&mut self) {
        TOTALS.add(hw::current_cpu(), RELEASED, 1);
    }
}

/// Pages that are pinned with the space locked, before others may run and a task that is to end
/// stops.
const PIN_STEP: usize = 512;

/// Do `attempt` until it does not fail for want of memory, or no more can be found.
fn with_memory<R>(mut attempt: impl FnMut() -> core::result::Result<R, FaultError>) -> Result<R> {
    loop {
        match attempt() {
            Err(FaultError::OutOfMemory) if find_more() == GrowthOutcome::Grown => {}
            outcome => return outcome.map_err(Errno::from),
        }
    }
}

/// Pin the page at `at` with `areas` locked, which is given back while the page is a monitor's to
/// provide.
fn pin_locked<'a, T: Term, P: Purpose>(
    space: &'a ProcessSpace,
    areas: &mut Option<SpaceGuard<'a>>,
    at: VirtAddr,
    rule: Rule,
) -> core::result::Result<PinnedPage<Frames, P>, FaultError> {
    loop {
        match areas.get_or_insert_with(|| space.lock()).pin::<T, P>(at, rule) {
            // A debugger does not wait for it (Linux: no FOLL_UNLOCKABLE).
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

/// Pages that are locked in a user's name (RLIMIT_MEMLOCK).
static LOCKED: UserCounts = UserCounts::new();

/// Counts `pages` for a user with a limit in bytes; none for a privileged one.
///
/// # Errors
/// `ENOMEM`.
fn charge_locked((user, limit): (u32, u64), pages: u64) -> Result<UserCharge> {
    let pages = if limit == u64::MAX { 0 } else { pages };
    LOCKED.charge(user, pages, limit / PAGE_SIZE as u64, Errno::ENOMEM)
}

/// Pinned bytes of a program.
pub struct PinnedRun<P: Purpose> {
    /// Transfers of one page are frequent: those need no list on the heap.
    pages: Short<PinnedPage<Frames, P>, 1>,
    address: u64,
    /// The first byte's place in the first frame.
    start: usize,
    length: usize,
    /// Held for its count.
    _locked: Option<UserCharge>,
}

impl<P: Purpose> PinnedRun<P> {
    /// Pin the bytes from `address` on: `length` of them, or fewer where something ends before.
    /// Faults pages in and may sleep; the caller holds no lock of `space`'s.
    ///
    /// # Errors
    /// `EFAULT` if not the first page can be pinned, `ENOMEM`.
    pub fn new<T: Term>(space: &ProcessSpace, address: u64, length: usize, rule: Rule) -> Result<Self> {
        let way = match rule {
            // A leaf may grant more than its area says.
            Rule::Stated => PinWay::Locked,
            Rule::Asked | Rule::Forced => PinWay::FastFirst,
        };
        Self::by::<T>(space, address, length, rule, way)
    }

    /// As [`PinnedRun::new`], by the way that is said.
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
        let length = length.min((pages.len() * PAGE_SIZE).saturating_sub(start));
        let run = Self { pages, address, start, length, _locked: None };
        // The pages that were pinned before an error are good.
        if run.pages.is_empty() { outcome.map(|()| run) } else { Ok(run) }
    }

    /// Pin all of the bytes for as long as they are registered somewhere, in the name of the
    /// process, which is the current one.
    ///
    /// # Errors
    /// As [`PinnedRun::new`]; `EFAULT` where not all can be pinned; `ENOMEM` above RLIMIT_MEMLOCK;
    /// `EOPNOTSUPP` for a disk's pages, which would have to be written back under the pin, and for
    /// what a ring shares with its program.
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

    /// Whether the areas that the pinned pages are of may be registered. An area and its pages are
    /// looked at under one hold of the lock: another thread may map other memory there meanwhile,
    /// and then the pages are no longer what is mapped.
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

    /// Where the bytes were when they were pinned.
    pub const fn address(&self) -> u64 {
        self.address
    }
    /// How many bytes are pinned.
    #[expect(clippy::len_without_is_empty, reason = "a run of no bytes is none")]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// The frames.
    pub fn places(&self) -> impl Iterator<Item = Pfn> {
        self.pages.iter().map(PinnedPage::pfn)
    }

    /// `length` of the bytes from `offset` on, for a device to read.
    pub fn bytes(&self, offset: usize, length: usize) -> impl Original + '_ {
        self.frames(offset, length)
    }
    /// Copy the bytes to `sink`, from the windows that they are reached through. Returns how many;
    /// fewer where not all find a place.
    ///
    /// # Errors
    /// Those of `sink`, where not one byte finds a place.
    pub fn give<S: Sink + ?Sized>(&self, sink: &mut S) -> Result<usize> {
        let count = self.length.min(sink.remaining());
        let give = |sink: &mut S, frame: HeldFrame<'_>, part: Range<usize>| {
            Hardware.read_bytes(&frame, |page| sink.put_without_fault(&page[part]))
        };
        self.in_pages(count, sink, give, S::fault_in)
    }
    /// Have `transfer` move the first `count` bytes to or from `end`, page by page: it is told the
    /// frame and which of its bytes. Where it moves fewer, `fault_in` makes the other end present,
    /// which may sleep.
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
    /// Have `transfer` take the first `count` bytes. A device that has them in their places keeps
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
    /// Fill the bytes from `source`, in the windows that they are reached through. Returns how
    /// many; fewer where the source ends or is not there.
    ///
    /// # Errors
    /// Those of `source`, where not one byte can be taken.
    pub fn take<S: Source + ?Sized>(&self, source: &mut S) -> Result<usize> {
        let count = self.length.min(source.remaining());
        let take = |source: &mut S, frame: HeldFrame<'_>, part: Range<usize>| {
            Hardware.with_bytes(&frame, |page| source.take_without_fault(&mut page[part]))
        };
        self.in_pages(count, source, take, S::fault_in)
    }
    /// Have `transfer` fill the first `count` bytes. A device that has them in their places keeps
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
    /// `length` of the bytes from `offset` on, for a device to write.
    pub fn bytes_mut(&self, offset: usize, length: usize) -> impl OriginalMut + '_ {
        self.frames(offset, length)
    }
}

impl<P: Purpose> Drop for PinnedRun<P> {
    fn drop(&mut self) {
        TOTALS.add(hw::current_cpu(), RELEASED, self.pages.len() as u64);
    }
}

/// Pinned bytes that any task can take from, in any address space, and fill where they were pinned
/// for that: a [`Source`] and a [`Sink`].
pub struct PinnedBytes<P: Purpose> {
    /// The rest: a range of each run's bytes, none empty.
    parts: Vec<(Arc<PinnedRun<P>>, Range<usize>)>,
    /// The first part that is not used up.
    current: usize,
    left: usize,
}

impl<P: Purpose> PinnedBytes<P> {
    const EMPTY: Self = Self { parts: Vec::new(), current: 0, left: 0 };

    /// The same bytes, to be moved independently; they are pinned once.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(Self { parts: self.parts.try_clone()?, ..*self })
    }

    /// The bytes `range` of `run`.
    ///
    /// # Errors
    /// `EFAULT` where the run has fewer, `ENOMEM`.
    pub fn part(run: Arc<PinnedRun<P>>, range: Range<usize>) -> Result<Self> {
        let mut bytes = Self::EMPTY;
        bytes.push(run, range)?;
        Ok(bytes)
    }

    /// Pin the first `most` bytes of a program's runs for one request. Where a page cannot be
    /// pinned the bytes end.
    ///
    /// # Errors
    /// As [`PinnedRun::new`]; `EINTR` where the task is to end.
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

    /// Have `transfer` move bytes of the first part, at most `most`; it is told which.
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

    /// Have `transfer` move bytes of part after part until `wanted` are moved; it is told how many
    /// were before.
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
