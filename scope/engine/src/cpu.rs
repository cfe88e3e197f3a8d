//! One CPU: what happens at each block, each access, each instruction about translations.
//!
//! The way of an access is made of comparisons that nearly always succeed. A CPU keeps the last translations it has seen, by
//! page (*pages*), in front of the emulator's slow answer. An entry carries what the checks of an access need: where
//! the page is, how to find it in the modelled TLB, and the frame's mark at the time. Entries are emptied, all at once, by
//! every instruction that lets a CPU forget a translation: a kernel that changes one has to run such an instruction
//! on each CPU before it may rely on the change, so an entry is never older than a real TLB's could be. Accesses are
//! counted in the entry and settled when it leaves, when a slice of time ends, or at a new phase.
//!
//! A CPU is used by its own thread alone; what it shares is in [`Watch`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use freehold_scope_model::{
    Access, Geometry, Hint, Key, LevelShape, Lookup, Missed, PageSize, Scope, SetAssociative, Side, Slices,
    Tlb, TlbShape, Walked,
};
use freehold_scope_record::{Checks, CpuPhase, Rule, SettingsError};

use crate::frames::{Mark, Suspect, User};
use crate::guest::{NOWHERE, walk};
use crate::tally::{KERNEL, SliceTally, Tally};
use crate::watch::{Block, FIRMWARE, Ring, Watch};

/// Entries of a CPU's pages: a power of two.
const PAGES: usize = 1024;
/// The same for pages of code.
const CODE_PAGES: usize = 256;
/// Instructions after which a CPU looks at the machine's clock.
const LOOK: u64 = 4096;
/// Page counters are settled before they could overflow.
const SETTLE: u64 = 1 << 30;
/// The first slices of time, in instructions.
const FIRST_SLICE: u64 = 1 << 16;
const PAGE_BITS: u32 = 52;
const LAST_GENERATION: u64 = (0xffe) << PAGE_BITS;
/// No tag: its generation is none.
const NO_TAG: u64 = u64::MAX;
/// No line, and no line × 2 either.
pub(crate) const NO_LINE: u64 = u64::MAX >> 1;

/// Stores to the page are looked at closely.
const WATCHED: u8 = 1;
/// It is in the direct map.
const DIRECT: u8 = 2;

/// A translation that was seen.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Page number and generation.
    tag: u64,
    /// Guest-physical address of the page; [`NO_TAG`]: it is no memory.
    base: u64,
    key: Key,
    hint: Hint,
    mark: Mark,
    /// Accesses since the last settlement, by mode.
    counts: [u32; 2],
    node: u8,
    flags: u8,
}

const NO_PAGE: Page = Page {
    tag: NO_TAG,
    base: NO_TAG,
    key: Key::new(0, PageSize::Small, Scope::Global),
    hint: Hint::NONE,
    mark: Mark::NOWHERE,
    counts: [0; 2],
    node: NOWHERE as u8,
    flags: 0,
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

/// The models that a CPU's accesses go through, chosen at the start: compiled for each choice.
pub trait Choice {
    /// Caches are modelled.
    const CACHE: bool;
    /// Translation caches are modelled.
    const TLB: bool;
}

/// One CPU.
pub struct Cpu {
    watch: Arc<Watch>,
    number: usize,
    home: usize,
    /// Own instructions so far.
    clock: u64,
    /// Of these, told to the machine's clock.
    told: u64,
    look_at: u64,
    settle_at: u64,
    phase: usize,
    generation: u64,
    code_tag: u64,
    last_line: u64,
    pages: Box<[Page; PAGES]>,
    codes: Box<[Page; CODE_PAGES]>,
    line_shift: u32,
    /// Line × 2, + 1 where it is dirty; direct-mapped.
    first_data: Vec<u64>,
    first_fetch: Vec<u64>,
    last: SetAssociative,
    pub(crate) tlb: Tlb,
    /// The value of CR3, where the kernel tells it.
    root: Option<u64>,
    tally: Tally,
    phases: Vec<CpuPhase>,
    slices: Slices<SliceTally>,
    heat: Vec<u64>,
    slice_time: u64,
    slice_end: u64,
    checks: Checks,
    /// Runs of each block.
    pub(crate) runs: Vec<u64>,
    pub(crate) fills: u64,
    pub(crate) unknown_flushes: u64,
    /// Translations that were compared with the tables, and those that were others.
    pub(crate) compared: u64,
    pub(crate) differed: u64,
}

impl Cpu {
    /// A CPU that has not run.
    ///
    /// # Errors
    /// The setting that makes no sense.
    pub fn new(watch: Arc<Watch>, number: usize) -> Result<Self, SettingsError> {
        let settings = watch.settings();
        let bad = |setting, problem: String| SettingsError { setting, problem };
        let home =
            *settings.cpus.get(number).ok_or_else(|| bad("CPUs", format!("there is no number {number}")))?;
        let cache = settings.models.cache;
        let line = cache.map_or(64, |cache| cache.line);
        let first = cache.map_or(1, |cache| (cache.first.size / line) as usize);
        let geometry = cache.map_or(Geometry { size: line, ways: 1, line }, |cache| Geometry {
            size: cache.last.size,
            ways: cache.last.ways,
            line,
        });
        let last =
            SetAssociative::new(geometry).map_err(|error| bad("last-level cache", error.to_string()))?;
        let level = |entries, ways| LevelShape { entries, ways };
        let shape = settings.models.tlb.as_ref().map_or(
            TlbShape { data: level(1, 1), fetch: level(1, 1), second: level(1, 1) },
            |tlb| TlbShape {
                data: level(tlb.data_entries, tlb.data_ways),
                fetch: level(tlb.fetch_entries, tlb.fetch_ways),
                second: level(tlb.second_entries, tlb.second_ways),
            },
        );
        let slices = Slices::new(FIRST_SLICE, settings.slices);
        Ok(Self {
            number,
            home,
            clock: 0,
            told: 0,
            look_at: LOOK,
            settle_at: SETTLE,
            phase: FIRMWARE,
            generation: 0,
            code_tag: NO_TAG,
            last_line: NO_LINE,
            pages: Box::new([NO_PAGE; PAGES]),
            codes: Box::new([NO_PAGE; CODE_PAGES]),
            line_shift: line.trailing_zeros(),
            first_data: vec![NO_LINE; first],
            first_fetch: vec![NO_LINE; first],
            last,
            tlb: Tlb::new(shape),
            root: None,
            tally: Tally::default(),
            phases: Vec::new(),
            slice_end: slices.end_of(0),
            slices,
            heat: vec![0; watch.region_count()],
            slice_time: 0,
            checks: Checks::default(),
            runs: Vec::new(),
            fills: 0,
            unknown_flushes: 0,
            compared: 0,
            differed: 0,
            watch,
        })
    }

    /// A block is about to run.
    #[inline]
    pub fn block<C: Choice>(&mut self, block: &Block) {
        self.clock += block.instructions;
        match self.runs.get_mut(block.number) {
            Some(runs) => *runs += 1,
            None => self.first_run(block.number),
        }
        if block.page | self.generation != self.code_tag {
            self.other_code::<C>(block);
        }
        if self.clock >= self.look_at || self.watch.phase.load(Ordering::Relaxed) != self.phase {
            self.look();
        }
        self.tally.fetches[block.mode & 1][block.node.min(NOWHERE)] += block.instructions;
        if C::CACHE && block.only_line != self.last_line {
            self.fetch_lines(block);
        }
    }

    #[cold]
    fn first_run(&mut self, number: usize) {
        self.runs.resize((number + 1).next_power_of_two().max(1 << 14), 0);
        self.runs[number] += 1;
    }

    /// Code of another page than before runs, or the same after a flush.
    #[inline(never)]
    fn other_code<C: Choice>(&mut self, block: &Block) {
        if self.phase == FIRMWARE && block.mode == KERNEL {
            self.watch.end_of_firmware();
            self.look();
        }
        let tag = block.page | self.generation;
        self.code_tag = tag;
        let slot = block.page as usize & (CODE_PAGES - 1);
        let base = block.frame.unwrap_or(NO_TAG);
        if self.codes[slot].tag != tag || self.codes[slot].base != base {
            let key = self.key_of(block.pc, base);
            let mark = self.watch.frames.mark(base >> 12).unwrap_or(Mark::NOWHERE);
            self.codes[slot] = Page { tag, base, key, mark, node: block.node as u8, ..NO_PAGE };
            self.check_cached::<C>(key, base, block.pc, block.pc);
        }
        if C::TLB {
            let Page { key, mut hint, .. } = self.codes[slot];
            if !self.tlb.touch(Side::Fetch, key, hint) {
                self.tally.tlb_fetch_misses[block.mode & 1] +=
                    self.look_up(Side::Fetch, key, &mut hint, base, block.mode);
                self.codes[slot].hint = hint;
            }
        }
    }

    #[inline]
    fn fetch_lines(&mut self, block: &Block) {
        for line in block.lines.0..=block.lines.1 {
            self.fetch_line(line, block.mode);
        }
        if let Some((first, last)) = block.further {
            for line in first..=last {
                self.fetch_line(line, block.mode);
            }
        }
    }

    #[inline]
    fn fetch_line(&mut self, line: u64, mode: usize) {
        self.last_line = line;
        let slot = line as usize & (self.first_fetch.len() - 1);
        if self.first_fetch[slot] != line {
            self.first_fetch[slot] = line;
            self.first_fetch_missed(line, mode);
        }
    }

    #[inline(never)]
    fn first_fetch_missed(&mut self, line: u64, mode: usize) {
        self.tally.first_fetch_misses[mode & 1] += 1;
        if let Some(node) = self.last_level(line << self.line_shift, Access::Read) {
            self.tally.fetch_misses[mode & 1][node] += 1;
        }
    }

    /// The instruction at `pc` has accessed `address`; `physical` asks the emulator where that is.
    #[inline]
    pub fn access<C: Choice>(
        &mut self,
        pc: u64,
        address: u64,
        access: Access,
        physical: impl FnOnce() -> Option<u64>,
    ) {
        let mode = (pc >> 63) as usize;
        let number = address >> 12;
        let slot = number as usize & (PAGES - 1);
        if self.pages[slot].tag != number | self.generation {
            self.fill::<C>(slot, pc, address, physical);
        }
        let page = &mut self.pages[slot];
        page.counts[mode] += 1;
        let Page { base, key, mark, flags, node, mut hint, .. } = *page;
        if C::TLB && !self.tlb.touch(Side::Data, key, hint) {
            self.tally.tlb_data_misses[mode] += self.look_up(Side::Data, key, &mut hint, base, mode);
            self.pages[slot].hint = hint;
        }
        let store = access == Access::Write;
        self.tally.stores[mode] += u64::from(store);
        let Some(now) = self.watch.frames.mark(base >> 12) else { return };
        if now != mark || (store && flags & WATCHED != 0) {
            self.look_closely(slot, pc, address, access);
        }
        if C::CACHE {
            let line = (base | address & 0xfff) >> self.line_shift;
            let slot = line as usize & (self.first_data.len() - 1);
            let cached = self.first_data[slot];
            let wanted = line << 1 | 1;
            if cached != wanted && (store || cached != line << 1) {
                self.first_level_missed(slot, line, access, mode, node);
            }
        }
    }

    #[inline(never)]
    fn first_level_missed(&mut self, slot: usize, line: u64, access: Access, mode: usize, node: u8) {
        let known = self.first_data[slot] >> 1 == line;
        self.tally.first_misses[mode] += u64::from(!known);
        // The first store to a clean line goes on to the last level too, to make it dirty there.
        if self.last_level(line << self.line_shift, access).is_some() {
            self.tally.data_misses[mode][usize::from(node).min(NOWHERE)] += 1;
        }
        self.first_data[slot] = line << 1 | u64::from(access == Access::Write);
    }

    /// Ask the last-level cache; the node that has to bring the line, if it is not there.
    fn last_level(&mut self, physical: u64, access: Access) -> Option<usize> {
        let Lookup::Miss { written_back } = self.last.access(physical, access) else { return None };
        let watch = &*self.watch;
        let class = |address| watch.frames.class(address);
        let node = watch.nodes.of(physical);
        watch.near.access(node, physical, Access::Read, class);
        if let Some(left) = written_back {
            watch.near.access(watch.nodes.of(left), left, Access::Write, class);
        }
        Some(node)
    }

    /// The modelled TLB's first level missed at the hint: 1 if it missed altogether.
    #[inline(never)]
    fn look_up(&mut self, side: Side, key: Key, hint: &mut Hint, base: u64, mode: usize) -> u64 {
        let mark = self.watch.frames.mark(base >> 12).unwrap_or(Mark::NOWHERE);
        let walked = Walked { frame: base >> 12, note: mark.0, moment: self.now() };
        match self.tlb.look_up(side, key, hint, self.clock, || walked) {
            None => 0,
            Some(Missed::First(_)) => 1,
            Some(Missed::Both) => {
                self.tally.tlb_walks[mode] += 1;
                1
            }
        }
    }

    /// The page, its scope and its size, as the tables say or (where the kernel does not tell its tables) as it looks.
    fn key_of(&mut self, address: u64, base: u64) -> Key {
        let upper = address >> 63 != 0;
        let watch = Arc::clone(&self.watch);
        if let Some(publication) = watch.frames.published() {
            let root = if upper { Some(publication.root) } else { self.root };
            let walked = root.and_then(|root| walk(&*watch.memory, root, address));
            let leaf = walked.filter(|leaf| leaf.page == base);
            // Devices, and memory that was plugged in, are nothing that QEMU was asked to place.
            let known = walked.is_some_and(|leaf| watch.nodes.of(leaf.page) != NOWHERE);
            self.compared += u64::from(known);
            self.differed += u64::from(known && leaf.is_none());
            let in_windows = address.wrapping_sub(publication.windows) < publication.windows_span;
            return match leaf {
                Some(leaf) if leaf.global => Key::new(address, leaf.size, Scope::Global),
                Some(leaf) => Key::new(address, leaf.size, Scope::Space(0)),
                None if upper && !in_windows => Key::new(address, PageSize::Small, Scope::Global),
                None => Key::new(address, PageSize::Small, Scope::Space(0)),
            };
        }
        // Linux maps its text and its direct map in pages of 2 MiB, whose addresses agree with the frames' modulo that.
        let large = upper && base != NO_TAG && (address & !0xfff ^ base) & 0x1f_ffff == 0;
        let size = if large { PageSize::Large } else { PageSize::Small };
        Key::new(address, size, if upper { Scope::Global } else { Scope::Space(0) })
    }

    #[inline(never)]
    fn fill<C: Choice>(
        &mut self,
        slot: usize,
        pc: u64,
        address: u64,
        physical: impl FnOnce() -> Option<u64>,
    ) {
        self.settle_page(slot);
        self.fills += 1;
        let base = physical().map_or(NO_TAG, |physical| physical & !0xfff);
        let key = self.key_of(address, base);
        let watch = &*self.watch;
        let user = if pc >> 63 != 0 { User::Kernel } else { User::Program };
        watch.frames.used(base >> 12, user);
        let mark = watch.frames.mark(base >> 12).unwrap_or(Mark::NOWHERE);
        let direct = watch.frames.is_direct(address);
        let watched = watch.frames.is_table(address) || watch.frames.is_read_only(mark);
        let flags = if direct { DIRECT } else { 0 } | if watched { WATCHED } else { 0 };
        let node = if base == NO_TAG { NOWHERE } else { watch.nodes.of(base) };
        let tag = address >> 12 | self.generation;
        self.pages[slot] = Page { tag, base, key, mark, flags, node: node as u8, ..NO_PAGE };
        if !direct {
            self.check_cached::<C>(key, base, pc, address);
        } else if watch.frames.is_users(mark) {
            // A mark that equals none: every access is looked at.
            self.pages[slot].mark = Mark(!mark.0);
        }
    }

    /// The machine's clock, as well as this CPU can tell.
    fn now(&self) -> u64 {
        self.watch.total.load(Ordering::Relaxed) + (self.clock - self.told)
    }

    fn suspect(&self, pc: u64, address: u64, frame: u64) -> Suspect {
        Suspect { time: self.now(), cpu: self.number, pc, address, frame }
    }

    /// The tables say that `key` is at `base`: does the modelled TLB hold something else, or from before the frame
    /// changed hands?
    fn check_cached<C: Choice>(&mut self, key: Key, base: u64, pc: u64, address: u64) {
        if !C::TLB || base == NO_TAG {
            return;
        }
        for other in Key::all_of(address) {
            let Some(&cached) = self.tlb.peek(other) else { continue };
            let then = Mark(cached.note);
            let now = self.watch.frames.mark(cached.frame).unwrap_or(Mark::NOWHERE);
            let frame = key_frame(other, cached.frame, address);
            if now.generation() == then.generation() && other == key && frame == base >> 12 {
                continue;
            }
            // The frame of a large page is told by its first use; its other frames have marks of their own.
            if now.generation() != then.generation() && self.watch.frames.published().is_some() {
                self.watch.frames.report(
                    Rule::Stale,
                    self.suspect(pc, address, cached.frame),
                    Some((cached.moment, then)),
                );
            }
            self.tlb.flush_key(other, self.clock);
        }
    }

    /// Something about the page is not as it was when its entry was made, or it is stored to and watched.
    #[inline(never)]
    fn look_closely(&mut self, slot: usize, pc: u64, address: u64, access: Access) {
        let Page { base, mark, flags, key, .. } = self.pages[slot];
        let watch = Arc::clone(&self.watch);
        let frames = &watch.frames;
        let suspect = self.suspect(pc, address, base >> 12);
        let now = frames.mark(base >> 12).unwrap_or(Mark::NOWHERE);
        if flags & DIRECT != 0 {
            let users = frames.is_users(now);
            if users && pc >> 63 != 0 {
                frames.report(Rule::DirectMap, suspect, None);
            }
            self.pages[slot].mark = if users { Mark(!now.0) } else { now };
        } else if now != mark {
            if now.generation() != mark.generation() {
                let filled = self.tlb.peek(key).map_or(suspect.time, |cached| cached.moment);
                frames.report(Rule::Stale, suspect, Some((filled, mark)));
            }
            self.pages[slot].mark = now;
            self.pages[slot].flags =
                if frames.is_table(address) || frames.is_read_only(now) { WATCHED } else { 0 };
            self.tlb.note(key, now.0);
        }
        if access == Access::Write {
            if frames.is_table(address) {
                let physical = base | address & 0xfff;
                frames.table_store(&*watch.memory, address, physical, suspect.time);
            }
            if frames.is_read_only(now) && frames.published().is_some() {
                frames.report(Rule::Text, suspect, None);
            }
        }
    }

    /// An instruction about translations runs.
    pub fn flush(&mut self, flush: Flush) {
        match flush {
            Flush::Page(Some(address)) => {
                self.tally.page_flushes += 1;
                self.tlb.flush_page(address, 0, self.clock);
            }
            Flush::Page(None) => {
                self.tally.page_flushes += 1;
                self.unknown_flushes += 1;
            }
            Flush::Space(root) => {
                self.tally.space_flushes += 1;
                self.root = root;
                self.tlb.flush_non_global(self.clock);
            }
            Flush::All => {
                self.tally.full_flushes += 1;
                self.tlb.flush_all(self.clock);
            }
        }
        self.forget_pages();
    }

    /// Empty the pages. What was counted in them stays there until it is settled.
    fn forget_pages(&mut self) {
        self.code_tag = NO_TAG;
        if self.generation == LAST_GENERATION {
            self.generation = 0;
            self.pages.iter_mut().chain(self.codes.iter_mut()).for_each(|page| page.tag = NO_TAG);
        } else {
            self.generation += 1 << PAGE_BITS;
        }
    }

    /// The doorbell rings: the message is at `physical`.
    pub fn ring(&mut self, pc: u64, physical: Option<u64>) -> Ring {
        // What this CPU did before belongs to the old phase.
        self.look();
        let now = self.watch.total.load(Ordering::Relaxed);
        let ring = match physical {
            Some(physical) => self.watch.read_message(pc, physical, now),
            None => Ring::Refused("a message is not in memory"),
        };
        if ring == Ring::Published {
            // What is remembered says nothing of direct maps and owners.
            self.forget_pages();
            self.tlb.flush_all(self.clock);
        }
        self.look();
        ring
    }

    /// The guest's bytes at a place that an instruction has accessed: a value that was told.
    pub fn told(&self, physical: Option<u64>) -> Option<u64> {
        self.watch.memory.load(physical.filter(|physical| physical % 8 == 0)?)
    }

    /// Tell the machine's clock; begin a slice or a phase where one has begun.
    #[inline(never)]
    fn look(&mut self) {
        self.look_at = self.clock + LOOK;
        let more = self.clock - self.told;
        self.told = self.clock;
        let total = self.watch.total.fetch_add(more, Ordering::Relaxed) + more;
        let phase = self.watch.phase.load(Ordering::Acquire);
        if total >= self.slice_end || phase != self.phase || self.clock >= self.settle_at {
            self.settle();
            self.settle_at = self.clock + SETTLE;
            self.slice_time = total;
            self.slice_end = self.slices.end_of(total);
            self.phase = phase;
        }
    }

    /// Put what was counted where it belongs: into the running phase and slice.
    fn settle(&mut self) {
        self.settle_pages();
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
        if page.flags & DIRECT != 0 {
            self.checks.direct_map += u64::from(counts[KERNEL]);
        }
        if page.base != NO_TAG
            && let Some(region) = self.heat.get_mut((page.base >> self.watch.region_shift) as usize)
        {
            *region += counts.iter().map(|&count| u64::from(count)).sum::<u64>();
        }
    }

    /// The end: what this CPU has counted.
    pub(crate) fn finish(&mut self) -> Finished {
        self.look();
        self.settle();
        let slices = core::mem::replace(&mut self.slices, Slices::new(FIRST_SLICE, 2));
        let phases = core::mem::take(&mut self.phases);
        Finished { number: self.number, phases, slices, checks: self.checks, clock: self.clock }
    }
}

/// The frame that a cached translation says for `address`.
fn key_frame(key: Key, frame: u64, address: u64) -> u64 {
    let within = (1u64 << (key.size().shift() - 12)) - 1;
    frame & !within | (address >> 12) & within
}

/// What one CPU has counted.
pub(crate) struct Finished {
    pub number: usize,
    pub phases: Vec<CpuPhase>,
    pub slices: Slices<SliceTally>,
    pub checks: Checks,
    pub clock: u64,
}
