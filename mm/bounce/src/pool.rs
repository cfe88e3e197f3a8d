//! The segments that all devices of a [`Dma`](crate::Dma) share, and how many there are.
//!
//! A take searches the segment that its CPU used last, then others that the index names; it may
//! consist of several runs. CPUs use separate segments if possible (`areas.rs`). A page remembers
//! the device that had it last. Before another device gets the page, it leaves the old device's
//! domain, is zeroed, and joins the new one's (`owners.rs`).
//!
//! **Nodes.** Each node has an index of its segments. A search follows the index of its CPU's node
//! first. So a CPU uses another node's memory only if its own node has none that fits.
//!
//! **Growth.** A caller that finds too little, or runs of which [`MAX_RUNS`](crate::MAX_RUNS) are
//! not enough, adds memory itself, and wakes the worker. It takes such short runs only if there is
//! no better memory to add. The worker adds more while the free memory is less than a quarter of
//! the used memory (`growth.rs`: how much at once, and from where). A segment that a caller added
//! is *transient* until the worker's next scan.
//!
//! **Shrinking.** The worker scans every second ([`Pool::tick`]): a segment that was idle for
//! [`IDLE_TICKS`] scans is returned to the page allocator. If memory is short, all idle segments
//! are ([`Pool::shrink`]).

mod growth;

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use freehold_frame::{Bounce, Frame, FrameRecord};
use freehold_machine::topology::MAX_NODES;
use freehold_machine::{BOUNCE_ORDER, Cpus, Pfn, PfnRange, PhysicalBytes, Unconfirmed};
use spin::{Mutex, Once};

use crate::areas::{Areas, NEW, NO_AREA, PoolArea};
use crate::domains::Domains;
use crate::owners::{LOST, NOBODY, Owners};
use crate::published::Published;
use crate::runs::{FrameRuns, Run};
use crate::word::{Fit, FreePages, Index, MAX_SEGMENTS, SEGMENT_PAGES, Span};
use crate::{DmaAddr, DmaError, DmaSource, MAX_DEVICES};

pub(crate) use growth::Growth;

// A device's number does not contain the mark for lost pages, and fits into a frame's record.
const _: () = assert!(MAX_DEVICES <= LOST as usize && MAX_DEVICES <= FrameRecord::LAST_DEVICE as usize);
// To find a segment's block, the kernel's windows try all orders up to this one.
const _: () = assert!(SEGMENT_PAGES == 1 << BOUNCE_ORDER);
/// Segments whose records are allocated together.
const CHUNK: usize = 64;
/// Number of segments that a search for one whole run tries before it takes pieces.
const LOOKS: usize = 8;
/// Number of segments that a search for long runs tries before it takes short ones.
const LONG_LOOKS: usize = 64;
/// Number of segments that are tried in the search for one that no other area uses.
const CROWD_LOOKS: usize = 64;
/// Number of the worker's scans after which an idle segment is freed.
const IDLE_TICKS: u8 = 5;

/// 256 KiB of memory, or less if memory is short.
#[repr(align(128))]
struct Segment<S: DmaSource> {
    free: FreePages,
    /// The first page and the number of pages. Written only while the writer holds all pages.
    first: AtomicU64,
    pages: AtomicU32,
    /// The area that used it first since the worker's last scan; [`NO_AREA`], or [`NEW`].
    user: AtomicU8,
    /// Added by a caller; the worker has not scanned it yet.
    is_transient: AtomicBool,
    /// Number of the worker's scans since the last use.
    idle: AtomicU8,
    /// The node of the memory. Written as `first` is.
    node: AtomicU8,
    /// The device that had each page last.
    owners: Owners<{ SEGMENT_PAGES as usize }>,
    /// The segment's memory. Its lock is taken to add or remove memory.
    block: Mutex<Option<Frame<Bounce, S>>>,
}

impl<S: DmaSource> Segment<S> {
    fn new() -> Self {
        Self {
            free: FreePages::new(),
            first: AtomicU64::new(0),
            pages: AtomicU32::new(0),
            user: AtomicU8::new(NO_AREA),
            is_transient: AtomicBool::new(false),
            idle: AtomicU8::new(0),
            node: AtomicU8::new(0),
            owners: Owners::new(),
            block: Mutex::new(None),
        }
    }
    /// Makes the segment the area's if no area uses it. Returns whether it did.
    fn adopt(&self, area: u8) -> bool {
        let adopt = |user| (user >= NEW).then_some(area);
        self.user.fetch_update(Ordering::Relaxed, Ordering::Relaxed, adopt).is_ok()
    }
    /// The frames of pages that the caller has taken.
    fn frames(&self, span: Span) -> PfnRange {
        let first = Pfn(self.first.load(Ordering::Relaxed) + u64::from(span.first));
        PfnRange::new(first, first.offset(span.count.into()))
    }
}

/// The runs that a take accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Runs {
    /// Runs so long that [`MAX_RUNS`](crate::MAX_RUNS) of them hold the transfer.
    Long,
    /// Any, long ones first.
    Any,
}

/// A taker of pages, and the pages that it accepts.
#[derive(Clone, Copy)]
pub(crate) struct Taker {
    /// The device's number.
    pub device: u8,
    /// The highest address that it can use.
    pub reach: DmaAddr,
    /// Number of pages, a power of two up to 64: each run's start and length are multiples of it.
    pub step: u32,
}

impl Taker {
    /// A taker that accepts any page.
    pub const ANYONE: Self = Self { device: NOBODY, reach: DmaAddr(u64::MAX), step: 1 };
}

/// The source of memory, and the devices' domains.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a, S> {
    pub source: S,
    pub domains: &'a Domains,
    pub published: &'a Published,
}

impl<S: DmaSource> Means<'_, S> {
    /// The node of this CPU.
    fn node(&self) -> u8 {
        let machine = self.source.machine();
        machine.node_of_cpu(machine.current_cpu()).0
    }
    /// Records in the records of frames, which the caller has taken, the device that can access
    /// them.
    pub fn name(&self, frames: PfnRange, device: Option<u8>) {
        let table = self.source.table();
        frames.iter().filter_map(|frame| table.get(frame)).for_each(|record| record.set_device(device));
    }
}

/// Pages cannot become a device's: there is no memory for tables, or the previous device may still
/// have access.
struct Refused;

/// See the module's head.
pub(crate) struct Pool<S: DmaSource> {
    chunks: [Once<Box<[Segment<S>]>>; MAX_SEGMENTS / CHUNK],
    /// The segments of each node.
    indices: [Once<Index>; MAX_NODES],
    /// The nodes that have, or had, segments: a bit each.
    nodes: AtomicU16,
    /// The node of the last caller that found too little.
    short_node: AtomicU8,
    areas: Areas,
    /// Pages of all segments, including those that are being added.
    pages: AtomicUsize,
    /// The pages among them that are never freed: those requested at start-up.
    base: AtomicUsize,
    /// Largest allowed number of pages.
    cap: AtomicUsize,
    /// See [`Pool::is_crowded`].
    is_crowded: AtomicBool,
    /// Largest number of pages that were needed when memory came in pieces below a segment; 0: see
    /// [`Pool::is_fragmented`].
    fragmented: AtomicUsize,
    /// Number of pages that are being removed. The lock is held while a segment's memory is added
    /// or removed, but not while frames are allocated or freed.
    change: Mutex<usize>,
    grows: AtomicUsize,
    shrinks: AtomicUsize,
    /// Pages that the IOMMU did not confirm as unmapped: out of use for ever.
    lost: AtomicUsize,
}

impl<S: DmaSource> Pool<S> {
    pub const fn new() -> Self {
        Self {
            chunks: [const { Once::new() }; MAX_SEGMENTS / CHUNK],
            indices: [const { Once::new() }; MAX_NODES],
            nodes: AtomicU16::new(0),
            short_node: AtomicU8::new(0),
            areas: Areas::new(),
            pages: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            cap: AtomicUsize::new(0),
            is_crowded: AtomicBool::new(false),
            fragmented: AtomicUsize::new(0),
            change: Mutex::new(0),
            grows: AtomicUsize::new(0),
            shrinks: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
        }
    }

    /// Sets the number of `areas` and the largest number of pages, `cap`. Adds `base` pages that
    /// stay, within the taker's address limit. Returns how many of these could be allocated.
    pub fn start(
        &self,
        means: Means<'_, S>,
        taker: Taker,
        areas: usize,
        (base, cap): (usize, usize),
    ) -> usize {
        self.short_node.store(means.node(), Ordering::Relaxed);
        self.cap.store(cap.max(base).min(MAX_SEGMENTS * SEGMENT_PAGES as usize), Ordering::Relaxed);
        while self.pages() < base && self.grow(means, taker, base - self.pages(), Growth::Lasting).is_ok() {}
        self.base.store(self.pages(), Ordering::Relaxed);
        self.areas.start(areas, self.pages().div_ceil(SEGMENT_PAGES as usize));
        self.pages()
    }

    /// Pages of all segments.
    pub fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }
    /// Largest allowed number of pages.
    pub fn cap(&self) -> usize {
        self.cap.load(Ordering::Relaxed)
    }
    /// Pages of segments that callers added and that the worker has not scanned yet.
    pub fn transient(&self) -> usize {
        let new = self.segments().filter(|(_, segment)| segment.is_transient.load(Ordering::Relaxed));
        new.map(|(_, segment)| segment.pages.load(Ordering::Relaxed) as usize).sum()
    }
    /// Pages that devices have, counted segment by segment, so not at one moment.
    pub fn used(&self) -> usize {
        let used = |segment: &Segment<S>| {
            let pages = segment.pages.load(Ordering::Relaxed) as usize;
            pages.saturating_sub(segment.free.bits().count_ones() as usize)
        };
        self.segments().map(|(_, segment)| used(segment)).sum()
    }
    /// Pages that are out of use for ever.
    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }
    /// Pieces added and segments removed so far.
    pub fn changes(&self) -> (usize, usize) {
        (self.grows.load(Ordering::Relaxed), self.shrinks.load(Ordering::Relaxed))
    }

    /// The segments of a node.
    fn index(&self, node: u8) -> &Index {
        self.indices[usize::from(node) % MAX_NODES].call_once(Index::new)
    }
    /// A page of the segment has become free.
    fn note_free(&self, number: usize, segment: &Segment<S>) {
        self.index(segment.node.load(Ordering::Relaxed)).note_free(number);
    }
    /// The indices of all nodes that have segments, that of node `near` first.
    fn indices(&self, near: u8) -> impl Iterator<Item = &Index> {
        let mut others = self.nodes.load(Ordering::Relaxed) & !(1 << near);
        let others = core::iter::from_fn(move || {
            let node = others.trailing_zeros() as u8;
            others &= others.wrapping_sub(1);
            (usize::from(node) < MAX_NODES).then_some(node)
        });
        core::iter::once(near).chain(others).map(|node| self.index(node))
    }
    fn segment(&self, number: usize) -> Option<&Segment<S>> {
        self.chunks.get(number / CHUNK)?.get()?.get(number % CHUNK)
    }
    fn segments(&self) -> impl Iterator<Item = (usize, &Segment<S>)> {
        let chunks = self.chunks.iter().map_while(Once::get);
        chunks.flat_map(|chunk| chunk.iter()).enumerate()
    }

    /// Takes `wanted` pages, a multiple of the taker's step, or fewer if there are not enough or
    /// they are in too many pieces, or in short ones if it accepts only long runs. Returns whether
    /// the worker has something to do: the area's net use has grown by a segment, or its CPUs need
    /// a segment of their own.
    ///
    /// # Errors
    /// [`DmaError::OutOfMemory`]: some pages could not become the device's. Those in `runs` are its
    /// own.
    pub fn take(
        &self,
        means: Means<'_, S>,
        taker: Taker,
        wanted: usize,
        (accepted, runs): (Runs, &mut FrameRuns),
    ) -> Result<bool, DmaError> {
        let (number, area) = self.areas.of(means.source.machine());
        let hint = area.hint.load(Ordering::Relaxed) as usize;
        let mut take =
            Take { pool: self, means, taker, area: number, left: wanted, runs, is_refused: false, races: 0 };
        if let Some(segment) = self.segment(hint) {
            take.from(hint, segment, Fit::Whole);
        }
        if take.left > 0 {
            let near = means.node();
            self.indices(near).for_each(|index| take.search(index, hint, Fit::Whole));
            let least = take.runs.average_of(take.left) as u32;
            if least > taker.step {
                self.indices(near).for_each(|index| take.search(index, hint, Fit::AtLeast(least)));
            }
            if accepted == Runs::Any || least <= taker.step {
                self.indices(near).for_each(|index| take.search(index, hint, Fit::Longest));
            }
        }
        let (taken, is_refused, races) = (wanted - take.left, take.is_refused, take.races);
        if taken > 0 && runs.last().segment as usize != hint {
            area.hint.store(runs.last().segment.into(), Ordering::Relaxed);
        }
        let is_crowded = races > 0 && self.leave_crowd(means.node(), number, area);
        let is_more = area.note_taken(taken) || is_crowded;
        if is_refused { Err(DmaError::OutOfMemory) } else { Ok(is_more) }
    }

    /// Other CPUs changed the word at the same time: the area's next take begins in a segment that
    /// no other area uses. Returns whether there is no such segment; then the worker is woken.
    #[cold]
    fn leave_crowd(&self, near: u8, number: u8, area: &PoolArea) -> bool {
        let hint = area.hint.load(Ordering::Relaxed) as usize;
        let is_mine = |segment: &Segment<S>| segment.user.load(Ordering::Relaxed) == number;
        // If this CPU is the segment's user, it stays: the other CPUs move, or wait for the worker.
        if self.segment(hint).is_some_and(is_mine) || self.is_crowded() {
            return false;
        }
        let named = self.indices(near).flat_map(|index| {
            let mut at = 0;
            core::iter::from_fn(move || {
                let found = index.next(at)?;
                at = found + 1;
                Some(found)
            })
        });
        let mut free = named.take(CROWD_LOOKS).filter_map(|number| Some((number, self.segment(number)?)));
        if let Some((found, _)) = free.find(|(_, segment)| is_mine(segment) || segment.adopt(number)) {
            area.hint.store(found as u32, Ordering::Relaxed);
            return false;
        }
        !self.is_crowded.swap(true, Ordering::Relaxed)
    }

    /// As a take of this CPU whose compare-exchange failed.
    #[cfg(test)]
    pub fn crowd(&self, source: S) -> bool {
        let (number, area) = self.areas.of(source.machine());
        self.leave_crowd(source.machine().node_of_cpu(source.machine().current_cpu()).0, number, area)
    }

    /// Whether CPUs use the words of segments together for want of more segments.
    pub fn is_crowded(&self) -> bool {
        self.is_crowded.load(Ordering::Relaxed)
    }

    /// Frees pages. The CPU's next take begins with them if no other area uses their segment.
    pub fn give(&self, source: S, runs: &FrameRuns) {
        let (number, area) = self.areas.of(source.machine());
        let mut pages = 0;
        for run in runs.iter() {
            let Some(segment) = self.segment(run.segment.into()) else { continue };
            segment.free.give(Span { first: run.first.into(), count: run.count.into() });
            self.note_free(run.segment.into(), segment);
            pages += i32::from(run.count);
        }
        let first = u32::from(runs.first().segment);
        if pages > 0 && area.hint.load(Ordering::Relaxed) != first {
            let user = self.segment(first as usize).map(|segment| segment.user.load(Ordering::Relaxed));
            if user.is_some_and(|user| user == number || user >= NEW) {
                area.hint.store(first, Ordering::Relaxed);
            }
        }
        area.note_given(pages);
    }

    /// Removes the pages that `device` had last from it: they leave its domain, are zeroed and get
    /// no owner. Pages that the IOMMU does not confirm are lost. Returns the number of pages that
    /// are still its own because other threads have taken them. No thread may take pages for the
    /// device meanwhile.
    pub fn disown(&self, means: Means<'_, S>, device: u8) -> usize {
        let mut others = 0;
        for (number, segment) in self.segments() {
            let (claimed, taken) = segment.owners.claim(&segment.free, device);
            others += taken as usize;
            for span in Span::runs(claimed) {
                if self.free_of(means, device, segment, span).is_ok() {
                    segment.free.give(span);
                    self.note_free(number, segment);
                }
            }
        }
        others
    }

    /// Removes pages, which the caller has taken, from `device`, which had them last. They get no
    /// owner, or are lost.
    fn free_of(
        &self,
        means: Means<'_, S>,
        device: u8,
        segment: &Segment<S>,
        span: Span,
    ) -> Result<(), Unconfirmed> {
        let frames = segment.frames(span);
        if let Err(unconfirmed) = means.domains.leave(device, frames) {
            segment.owners.lose(span);
            self.lost.fetch_add(span.count as usize, Ordering::Relaxed);
            return Err(unconfirmed);
        }
        means.source.machine().zero_run(frames.start, frames.len());
        means.name(frames, None);
        segment.owners.set(span, NOBODY);
        Ok(())
    }
}

/// The state of one take.
struct Take<'a, S: DmaSource> {
    pool: &'a Pool<S>,
    means: Means<'a, S>,
    taker: Taker,
    /// The area of this CPU.
    area: u8,
    /// Number of pages still to be taken.
    left: usize,
    runs: &'a mut FrameRuns,
    /// Pages could not become the device's: no more are taken.
    is_refused: bool,
    /// How often another CPU changed a word first.
    races: u32,
}

impl<S: DmaSource> Take<'_, S> {
    /// Takes pages of the segments that `index` names, from `start` on, with wrap-around.
    fn search(&mut self, index: &Index, start: usize, fit: Fit) {
        let (pool, mut at, mut wraps, mut looks) = (self.pool, start, false, 0);
        while self.left > 0 && !self.is_refused && self.runs.make_room() {
            let Some(number) = index.next(at).filter(|&number| !wraps || number < start) else {
                if wraps {
                    return;
                }
                (at, wraps) = (0, true);
                continue;
            };
            at = number + 1;
            let Some(segment) = pool.segment(number) else { return };
            let before = self.left;
            self.from(number, segment, fit);
            if self.left == before {
                if segment.free.bits() == 0 {
                    index.note_full(number, &segment.free);
                } else {
                    looks += 1;
                    if fit == Fit::Whole && looks == LOOKS || fit != Fit::Longest && looks == LONG_LOOKS {
                        return;
                    }
                }
            }
        }
    }

    /// Takes free pages of a segment, in runs that are as long as possible: up to a segment, or the
    /// rest of the request.
    fn from(&mut self, number: usize, segment: &Segment<S>, fit: Fit) {
        while self.left > 0 && !self.is_refused && self.runs.make_room() {
            let wanted = self.left.min(SEGMENT_PAGES as usize) as u32;
            let (span, races) = segment.free.race(wanted, self.taker.step, fit);
            self.races += races;
            let Some(span) = span else { return };
            let first = Pfn(segment.first.load(Ordering::Relaxed) + u64::from(span.first));
            if first.offset(span.count.into()).start().0 - 1 > self.taker.reach.0 {
                segment.free.give(span);
                self.pool.note_free(number, segment);
                return;
            }
            if segment.user.load(Ordering::Relaxed) >= NEW {
                segment.user.store(self.area, Ordering::Relaxed);
            }
            if self.own(segment, span).is_err() {
                self.is_refused = true;
                let is_whole = |page: &u32| !segment.owners.is_lost(*page);
                for first in (span.first..span.first + span.count).filter(is_whole) {
                    segment.free.give(Span { first, count: 1 });
                }
                self.pool.note_free(number, segment);
                return;
            }
            let (start, count) = (span.first as u8, span.count as u8);
            self.runs.push(Run { pfn: first, segment: number as u16, first: start, count });
            self.left -= span.count as usize;
        }
    }

    /// Makes the pages the device's, run by run: all pages of a run have the same previous owner.
    /// After an error each page has the owner that its domain has, or is lost.
    fn own(&self, segment: &Segment<S>, span: Span) -> Result<(), Refused> {
        let mut left = span;
        while left.count > 0 {
            let (before, same) = segment.owners.first_run(left);
            if before != self.taker.device {
                self.hand_over(before, segment, same)?;
            }
            left = left.after(same);
        }
        Ok(())
    }

    /// Moves pages from device `before` to the device. They are zeroed in between.
    #[cold]
    fn hand_over(&self, before: u8, segment: &Segment<S>, span: Span) -> Result<(), Refused> {
        if before != NOBODY {
            self.pool.free_of(self.means, before, segment, span).map_err(|_| Refused)?;
        }
        self.means.domains.join(self.taker.device, segment.frames(span)).map_err(|_| Refused)?;
        self.means.name(segment.frames(span), Some(self.taker.device));
        segment.owners.set(span, self.taker.device);
        Ok(())
    }
}
