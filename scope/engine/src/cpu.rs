//! One CPU: its translations, its counts and when they are settled. `access` handles its accesses,
//! `code` its blocks.
//!
//! A CPU keeps the last translations it has seen, by page (*pages*), in front of the emulator's
//! slow answer. An entry carries the data for the checks of an access: the page's address, the
//! place in the modelled TLB, and the frame's mark at the time. Every instruction that lets a CPU
//! forget a translation empties all entries at once. A kernel that changes a translation has to run
//! such an instruction on each CPU before it may rely on the change. An entry is therefore never
//! older than a real TLB's could be. Accesses are counted in the entry and settled when it leaves,
//! when a slice of time ends, or at a new phase.
//!
//! A CPU is used by its own thread alone; [`Watch`] has the shared state.

mod access;
mod code;
mod exposure;
mod flags;
mod residue;
mod runs;
mod sharing;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use freehold_scope_model::{
    AccessKind, FirstLevel, Geometry, Hint, LevelShape, Lookup, Missed, PageSize, Replacement, Scope,
    SetAssociative, Slices, TOLD, Tlb, TlbKey, TlbShape, Walked,
};
use freehold_scope_record::{Checks, CpuPhase, DataKind, KindCounts, Rule, Settings, SettingsError};

use self::exposure::Exposed;
pub(crate) use self::exposure::sum;
pub use self::runs::Counted;
use self::runs::CpuRuns;
use crate::board::{self, Board, Own};
use crate::frames::{Mark, Suspect};
use crate::guest::{NOWHERE, walk};
use crate::patching::AtSite;
use crate::sharing::Visits;
use crate::smap::Smap;
use crate::tally::{KERNEL, SliceTally, Tally};
use crate::watch::{DoorbellRing, FIRMWARE, Watch};

/// Entries of a CPU's pages: a power of two.
const PAGES: usize = 1024;
/// The same for pages of code.
const CODE_PAGES: usize = 256;
/// Page counters are settled before they could overflow.
const SETTLE: u64 = 1 << 30;
/// The first slices of time, in instructions.
const FIRST_SLICE: u64 = 1 << 16;
const PAGE_BITS: u32 = 52;
const LAST_GENERATION: u64 = (0xffe) << PAGE_BITS;
/// A tag without a valid generation.
const NO_TAG: u64 = u64::MAX;
/// No line number, and not twice a line number either.
const NO_LINE: u64 = u64::MAX >> 1;

/// Stores to the page are checked closely.
const WATCHED: u8 = 1;
/// The page is in the direct map.
const DIRECT: u8 = 2;

/// A translation that the CPU has used.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Page number and generation.
    tag: u64,
    /// Guest-physical address of the page; [`NO_TAG`]: the page is no memory.
    base: u64,
    key: TlbKey,
    hint: Hint,
    mark: Mark,
    /// Accesses since the last settlement, by mode.
    counts: [u32; 2],
    node: u8,
    flags: u8,
    /// Kind of data that the kernel has in the page, if the kernel has published its map.
    kind: Option<DataKind>,
}

const NO_PAGE: Page = Page {
    tag: NO_TAG,
    base: NO_TAG,
    key: TlbKey::new(0, PageSize::Small, Scope::Global),
    hint: Hint::NONE,
    mark: Mark::NOWHERE,
    counts: [0; 2],
    node: NOWHERE as u8,
    flags: 0,
    kind: None,
};

/// An instruction that lets the CPU forget translations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// INVLPG, of this address if it is known.
    Page(Option<u64>),
    /// A write to CR3, of this value if it is known.
    Space(Option<u64>),
    /// Everything.
    All,
}

/// The models that a CPU's accesses go through, chosen at the start. The code is compiled for each
/// choice.
pub trait Choice {
    /// Caches are modelled.
    const CACHE: bool;
    /// Translation caches are modelled.
    const TLB: bool;
    /// Stores are followed: the bytes of programs, and the CPUs that store to a line.
    const STORES: bool;
}

/// One CPU.
pub struct Cpu {
    watch: Arc<Watch>,
    number: usize,
    home: usize,
    board: Own,
    /// Instructions of this CPU that the machine's clock has; the board has later ones.
    told: u64,
    settle_at: u64,
    /// Where blocks are counted by calls: the line that was fetched last.
    last_line: u64,
    phase: usize,
    generation: u64,
    pages: Box<[Page; PAGES]>,
    codes: Box<[Page; CODE_PAGES]>,
    line_shift: u32,
    /// Line × 2, + 1 where it is dirty; direct-mapped.
    first_data: Vec<u64>,
    last: SetAssociative,
    pub(crate) tlb: Tlb,
    pub(crate) exposed: Exposed,
    /// The value of CR3, if the kernel tells it.
    root: Option<u64>,
    /// Whether the CPU has loaded a root of its node since the publication, or published itself: a
    /// CPU starts on the first node's root.
    is_home: bool,
    /// Whether the loaded root has another node's image, as the kernel announced before the load.
    is_sharing: bool,
    /// Number of announcements at the last such load.
    shared_loads: u64,
    /// The version of the nodes' text at the last flush of all translations.
    text_version: usize,
    tally: Tally,
    phases: Vec<CpuPhase>,
    slices: Slices<SliceTally>,
    heat: Vec<u64>,
    slice_time: u64,
    slice_end: u64,
    checks: Checks,
    pub(crate) smap: Smap,
    /// Runs of each block.
    pub(crate) runs: CpuRuns,
    /// The CPU's visits to lines of the kernel, if the run asks for them.
    pub(crate) visits: Option<Visits>,
    pub(crate) fills: u64,
    pub(crate) unknown_flushes: u64,
    /// Translations that were compared with the tables, and those that differed.
    pub(crate) compared: u64,
    pub(crate) differed: u64,
}

/// Returns the shape of the modelled TLB; one of single entries if none is modelled.
fn tlb_shape(settings: &Settings) -> TlbShape {
    let level = |entries, ways| LevelShape { entries, ways };
    let least = level(1, 1);
    let Some(tlb) = &settings.models.tlb else {
        return TlbShape { data: least, fetch: least, second: least, replacement: Replacement::Lru };
    };
    TlbShape {
        replacement: if tlb.pseudo_lru { Replacement::PseudoLru } else { Replacement::Lru },
        data: level(tlb.data_entries, tlb.data_ways),
        fetch: level(tlb.fetch_entries, tlb.fetch_ways),
        second: level(tlb.second_entries, tlb.second_ways),
    }
}

impl Cpu {
    /// Makes a CPU that has not run, with a board of [`board_words`](crate::board_words) words.
    ///
    /// # Errors
    /// A setting makes no sense; the error names it.
    pub fn new(watch: Arc<Watch>, number: usize, board: Board) -> Result<Self, SettingsError> {
        let settings = watch.settings();
        let bad = |setting, problem: String| SettingsError { setting, problem };
        let home =
            *settings.cpus.get(number).ok_or_else(|| bad("CPUs", format!("there is no number {number}")))?;
        let cache = settings.models.cache;
        let line = cache.map_or(64, |cache| cache.line);
        let first = board::lines(settings);
        if board.len() < board::board_words(settings) {
            return Err(bad("board", format!("{} words are too few", board.len())));
        }
        watch.boards[number].get_or_init(|| board);
        let geometry = cache.map_or(Geometry { size: line, ways: 1, line }, |cache| Geometry {
            size: cache.last.size,
            ways: cache.last.ways,
            line,
        });
        let last =
            SetAssociative::new(geometry).map_err(|error| bad("last-level cache", error.to_string()))?;
        let shape = tlb_shape(settings);
        let slices = Slices::new(FIRST_SLICE, settings.slices);
        Ok(Self {
            number,
            home,
            board: Own::new(board, first),
            told: 0,
            settle_at: SETTLE,
            last_line: NO_LINE,
            phase: FIRMWARE,
            generation: 0,
            pages: Box::new([NO_PAGE; PAGES]),
            codes: Box::new([NO_PAGE; CODE_PAGES]),
            line_shift: line.trailing_zeros(),
            first_data: vec![NO_LINE; first],
            last,
            tlb: Tlb::new(shape),
            exposed: Exposed::default(),
            root: None,
            is_home: false,
            is_sharing: false,
            shared_loads: 0,
            text_version: 0,
            tally: Tally::default(),
            phases: Vec::new(),
            slice_end: slices.end_of(0),
            slices,
            heat: vec![0; watch.region_count()],
            slice_time: 0,
            checks: Checks::default(),
            smap: Smap::default(),
            runs: CpuRuns::default(),
            visits: settings.models.sharing.then(Visits::default),
            fills: 0,
            unknown_flushes: 0,
            compared: 0,
            differed: 0,
            watch,
        })
    }

    /// Returns the CPU's own instructions so far.
    #[inline]
    fn clock(&self) -> u64 {
        self.told + self.board.recent()
    }

    /// Returns the machine's clock, as precisely as this CPU knows it.
    fn now(&self) -> u64 {
        self.watch.total.load(Ordering::Relaxed) + self.board.recent()
    }

    fn suspect(&self, pc: u64, address: u64, frame: u64) -> Suspect {
        Suspect { time: self.now(), cpu: self.number, pc, address, frame }
    }

    /// Looks a line up in the last-level cache; on a miss, returns the node that has to bring it.
    fn last_level(&mut self, physical: u64, access: AccessKind) -> Option<usize> {
        let Lookup::Miss { written_back } = self.last.access(physical, access) else { return None };
        let watch = &*self.watch;
        let class = |address| watch.frames.class(address);
        let node = watch.nodes.of(physical);
        watch.near.access(node, physical, AccessKind::Read, class);
        if let Some(left) = written_back {
            watch.near.access(watch.nodes.of(left), left, AccessKind::Write, class);
        }
        Some(node)
    }

    /// Looks up a translation after the hint of the first level missed: 1 if that level missed
    /// altogether.
    #[inline(never)]
    fn look_up(&mut self, side: FirstLevel, key: TlbKey, hint: &mut Hint, base: u64, mode: usize) -> u64 {
        let mark = self.watch.frames.mark(base >> 12).unwrap_or(Mark::NOWHERE);
        let told = if self.watch.frames.is_exposing(key.address()) { TOLD } else { 0 };
        let walked = Walked { frame: base >> 12, note: mark.0 | told, moment: self.now() };
        match self.tlb.look_up(side, key, hint, self.clock(), || walked) {
            None => 0,
            Some(Missed::First(_)) => 1,
            Some(Missed::Both) => {
                self.tally.tlb_walks[mode] += 1;
                self.settle_exposure();
                1
            }
        }
    }

    /// Notes that the instruction at `pc` is about to load `root`.
    pub fn loads_root(&mut self, pc: u64, root: u64) {
        let watch = Arc::clone(&self.watch);
        let Some(is_own) = watch.frames.has_own_image(&*watch.memory, self.home, root) else { return };
        let said = watch.frames.shared_loads(&*watch.memory, self.number);
        self.is_sharing = !is_own && said != self.shared_loads;
        self.shared_loads = said;
        self.is_home |= is_own;
        if !is_own && !self.is_sharing && self.is_home {
            watch.frames.report(Rule::Root, self.suspect(pc, pc, root >> 12), None);
        }
    }

    /// Notes that an instruction at a place that the kernel patches is about to run.
    pub fn ran_at_site(&mut self, pc: u64, what: AtSite) {
        match what {
            AtSite::Whole => {}
            AtSite::Breakpoint => self.checks.breakpoints += 1,
            AtSite::Torn => {
                let watch = &*self.watch;
                let walked =
                    watch.frames.published().and_then(|p| walk(&*watch.memory, p.root(self.home), pc));
                let frame = walked.map_or(0, |leaf| leaf.page >> 12);
                watch.frames.report(Rule::Patch, self.suspect(pc, pc, frame), None);
            }
        }
    }

    /// Notes that an instruction about translations runs.
    pub fn flush(&mut self, flush: Flush) {
        match flush {
            Flush::Page(Some(address)) => {
                self.tally.page_flushes += 1;
                self.tlb.flush_page(address, 0, self.clock());
            }
            Flush::Page(None) => {
                self.tally.page_flushes += 1;
                self.unknown_flushes += 1;
            }
            Flush::Space(root) => {
                self.tally.space_flushes += 1;
                self.root = root;
                self.tlb.flush_non_global(self.clock());
                self.exposed.switched(self.clock());
            }
            Flush::All => {
                self.tally.full_flushes += 1;
                self.text_version = self.watch.frames.texts.newest();
                self.tlb.flush_all(self.clock());
            }
        }
        self.settle_exposure();
        self.forget_pages();
    }

    /// Empties the pages. Their counts stay there until they are settled.
    fn forget_pages(&mut self) {
        self.board.forget_page();
        if self.generation == LAST_GENERATION {
            self.generation = 0;
            self.pages.iter_mut().chain(self.codes.iter_mut()).for_each(|page| page.tag = NO_TAG);
        } else {
            self.generation += 1 << PAGE_BITS;
        }
    }

    /// Handles a ring of the doorbell: the message is at `physical`.
    pub fn ring(&mut self, pc: u64, physical: Option<u64>) -> DoorbellRing {
        // Earlier work of this CPU belongs to the old phase.
        self.look();
        let ring = match physical {
            Some(physical) => self.watch.read_message(self.suspect(pc, 0, physical >> 12), physical),
            None => DoorbellRing::Refused("a message is not in memory"),
        };
        if ring == DoorbellRing::Published {
            self.is_home = true;
            // Remembered translations have no data about direct maps and owners.
            self.forget_pages();
            self.tlb.flush_all(self.clock());
            self.exposed = Exposed::default();
            self.tlb.take_told();
            self.watch.forget_residue();
        }
        self.look();
        ring
    }

    /// Returns the guest's bytes at the place of an access: a value that the guest told.
    pub fn told(&self, physical: Option<u64>) -> Option<u64> {
        self.watch.memory.load(physical.filter(|physical| physical % 8 == 0)?)
    }

    /// Reports to the machine's clock, and begins a slice or a phase if one has begun.
    #[inline(never)]
    pub fn look(&mut self) {
        let more = self.board.take_recent();
        self.told += more;
        let total = self.watch.total.fetch_add(more, Ordering::Relaxed) + more;
        self.watch.sample(total);
        let phase = self.watch.phase();
        if total >= self.slice_end || phase != self.phase || self.told >= self.settle_at {
            self.settle();
            self.settle_at = self.told + SETTLE;
            self.slice_time = total;
            self.slice_end = self.slices.end_of(total);
            if phase != self.phase {
                self.leave_phase();
            }
            self.phase = phase;
        }
    }

    /// Settles the counts: adds them to the running phase and slice.
    fn settle(&mut self) {
        self.settle_pages();
        for (mode, by_node) in self.tally.fetches.iter_mut().enumerate() {
            by_node
                .iter_mut()
                .enumerate()
                .for_each(|(node, count)| *count += self.board.take_fetches(mode, node));
        }
        let nodes = self.watch.settings.memory.backends.len();
        if self.phases.len() <= self.phase {
            self.phases.resize(self.phase + 1, CpuPhase::default());
        }
        self.tally.add_to(&mut self.phases[self.phase], nodes);
        let (cpus, regions) = (self.watch.settings.cpus.len(), self.heat.len());
        let slice = self.slices.at(self.slice_time, || SliceTally::new(cpus, regions));
        let mut own =
            SliceTally { cpus: vec![Default::default(); cpus], heat: core::mem::take(&mut self.heat) };
        own.cpus[self.number] = self.tally.locality(self.home);
        freehold_scope_model::Join::join(slice, own);
        self.heat = vec![0; regions];
        if self.watch.frames.published().is_some() {
            let stores: u64 = self.tally.stores.iter().sum();
            self.checks.stores += stores;
            self.checks.translations += self.tally.data.iter().flatten().sum::<u64>();
        }
        self.tally = Tally::default();
    }

    /// Settles the runs of blocks at the end of a phase.
    fn leave_phase(&mut self) {
        let Self { watch, runs, number, phase, .. } = self;
        if let Some(counted) = watch.counted() {
            counted.take(*number, &mut |first, more| runs.add(first, more));
        }
        runs.leave(*phase, watch.program_time());
    }

    fn settle_pages(&mut self) {
        for slot in 0..PAGES {
            self.settle_page(slot);
        }
    }

    fn settle_page(&mut self, slot: usize) {
        let page = &mut self.pages[slot];
        let counts = core::mem::take(&mut page.counts);
        if counts == [0; 2] {
            return;
        }
        for (mode, &count) in counts.iter().enumerate() {
            self.tally.data[mode][usize::from(page.node).min(NOWHERE)] += u64::from(count);
        }
        let more = u64::from(counts[KERNEL]);
        if let Some(kind) = page.kind.filter(|_| more > 0 && usize::from(page.node) < NOWHERE) {
            let remote = if usize::from(page.node) == self.home { 0 } else { more };
            self.tally.kernel_data.add(kind, KindCounts { local: more - remote, remote });
        }
        if page.flags & DIRECT != 0 {
            self.checks.direct_map += u64::from(counts[KERNEL]);
        }
        if page.base != NO_TAG
            && let Some(region) = self.heat.get_mut((page.base >> self.watch.region_shift) as usize)
        {
            *region += counts.iter().map(|&count| u64::from(count)).sum::<u64>();
        }
    }

    /// Ends the run; returns the counts of this CPU.
    pub(crate) fn finish(&mut self) -> Finished {
        self.look();
        self.settle();
        self.leave_phase();
        let slices = core::mem::replace(&mut self.slices, Slices::new(FIRST_SLICE, 2));
        let phases = core::mem::take(&mut self.phases);
        Finished { number: self.number, phases, slices, checks: self.checks, clock: self.told }
    }
}

/// Final counts of one CPU.
pub(crate) struct Finished {
    pub number: usize,
    pub phases: Vec<CpuPhase>,
    pub slices: Slices<SliceTally>,
    pub checks: Checks,
    pub clock: u64,
}
