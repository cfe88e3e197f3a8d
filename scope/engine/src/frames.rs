//! The current owner of each frame, according to the guest's stores to its frame table, and the
//! violations that the oracle has found.
//!
//! A frame's *mark* is a word: the owner, how often the frame has changed hands (its generation),
//! and whether its bytes are kernel text. A remembered translation carries the frame's mark. While
//! both are equal, no rule can be broken, so the check of an access is one comparison.
//!
//! The CPU that changes the owner changes the mark, in the callback of its store, before it goes
//! on. A correct kernel lets no CPU reach a frame whose owner is about to change. A mark that
//! differs from the mark of an access is therefore one of two things. Either the kernel made the
//! CPU forget the translation (then the mark is read anew), or a rule is broken.
//!
//! The word with the owner also counts the holders of the frame, so most stores to it change no
//! mark. A word of zero says only that no block begins there. Such a frame is inside another block,
//! for example after many small blocks became a large one, or it never had an owner. The word of a
//! freed frame names its last owner.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use freehold_scope_doorbell::{Publication, Records};
use freehold_scope_record::{
    Checks, DataKind, KernelLayout, MemoryBackends, Oracle, Rule, SmapChecks, Stale, Violation, log2_bucket,
};

use crate::guest::{FRAME, GuestMemory, walk};
use crate::kernel_half::{Change, KernelHalf, Mapped};
use crate::linux::{self, LinuxMap};
use crate::patching::Patching;
use crate::smap::Rules;
use crate::texts::Texts;
use crate::uses::PageUses;

/// The known state of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark(pub u32);

const OWNER: u32 = 15;
const GENERATION_SHIFT: u32 = 4;
const GENERATION: u32 = 0x00ff_ffff;
/// The frame holds kernel text or read-only data.
const TEXT: u32 = 1 << 28;
/// The frame is a translation table of the kernel half.
const TABLE: u32 = 1 << 29;

impl Mark {
    /// The mark of an address without memory.
    pub const NOWHERE: Self = Self(0);

    pub const fn owner(self) -> usize {
        (self.0 & OWNER) as usize
    }
    pub const fn generation(self) -> u32 {
        self.0 >> GENERATION_SHIFT & GENERATION
    }
    pub const fn is_text(self) -> bool {
        self.0 & TEXT != 0
    }
    pub const fn is_table(self) -> bool {
        self.0 & TABLE != 0
    }
    fn with_owner(self, owner: u32) -> Self {
        let next = (self.generation() + u32::from(owner == 0)) & GENERATION;
        Self(self.0 & (TEXT | TABLE) | next << GENERATION_SHIFT | owner & OWNER)
    }
}

/// An access that the oracle looks at closely.
#[derive(Clone, Copy, Debug)]
pub struct Suspect {
    /// Time on the machine's clock.
    pub time: u64,
    /// The CPU that made the access.
    pub cpu: usize,
    /// Address of the instruction.
    pub pc: u64,
    /// The address that it used.
    pub address: u64,
    /// The frame that it reached.
    pub frame: u64,
}

struct Log {
    violations: Vec<Violation>,
    /// Index of each (rule, instruction) in `violations`; violations beyond the bound are only
    /// counted.
    known: HashMap<(Rule, u64), usize>,
    total: u64,
    stale_windows: Vec<u64>,
    bound: usize,
}

/// All frames.
pub struct Frames {
    marks: Vec<AtomicU32>,
    orders: Vec<AtomicU8>,
    changed: Vec<AtomicU64>,
    /// The kind of code that last touched the page of a frame, for kernels that publish nothing.
    users: Vec<AtomicU8>,
    /// The last users of pages.
    pub uses: PageUses,
    published: OnceLock<(Publication, u64)>,
    /// The frames of text that each node's CPUs fetch.
    pub texts: Texts,
    /// Rules for kernel code with RFLAGS.AC set.
    rules: OnceLock<Rules>,
    /// Rules for changes of the kernel's text.
    patching: OnceLock<Patching>,
    /// Leaves of the kernel half, windows left out, that map the frame.
    mapped: Vec<AtomicU16>,
    /// The direct map of a kernel that publishes none.
    pub linux: LinuxMap,
    changes: AtomicU64,
    leaves: AtomicU64,
    /// Held while a store changes marks or the kernel half.
    changing: Mutex<KernelHalf>,
    log: Mutex<Log>,
}

/// Returns whether the mark's owner has a bit in `owners`.
fn is_among(owners: u64, mark: Mark) -> bool {
    owners >> mark.owner() & 1 != 0
}

/// Returns whether text or read-only data is at an address.
fn is_read_only_part(p: &Publication, address: u64) -> bool {
    (p.text & !0xfff..p.text_end).contains(&address) || (p.rodata & !0xfff..p.rodata_end).contains(&address)
}

/// Returns the owner and log2 of the frames of a block whose record says `state`.
fn owner_and_order(p: &Publication, state: u32) -> (u32, u8) {
    let order = u64::from(state) >> p.records.order_shift & p.records.order_mask;
    (state & p.records.owner_mask as u32, order as u8)
}

/// The name of the owner of translation tables.
const TABLES: &str = "pagetable";

fn zeroes<T: Default>(count: usize) -> Vec<T> {
    (0..count).map(|_| T::default()).collect()
}

impl Frames {
    /// Makes the frames of a kernel that has published nothing yet. At most `bound` violations are
    /// kept one by one.
    pub fn new(memory: &MemoryBackends, bound: usize) -> Self {
        let count = (memory.end() >> 12) as usize;
        let log = Log {
            violations: Vec::new(),
            known: HashMap::new(),
            total: 0,
            stale_windows: vec![0; 64],
            bound,
        };
        Self {
            marks: zeroes(count),
            orders: zeroes(count),
            changed: zeroes(count),
            users: zeroes(count),
            uses: PageUses::new(count),
            published: OnceLock::new(),
            rules: OnceLock::new(),
            patching: OnceLock::new(),
            mapped: zeroes(count),
            linux: LinuxMap::default(),
            texts: Texts::default(),
            changes: AtomicU64::new(0),
            leaves: AtomicU64::new(0),
            changing: Mutex::default(),
            log: Mutex::new(log),
        }
    }

    /// Returns the mark of a frame; `None` outside memory.
    #[inline]
    pub fn mark(&self, frame: u64) -> Option<Mark> {
        self.marks.get(frame as usize).map(|mark| Mark(mark.load(Ordering::Relaxed)))
    }
    /// Returns the publication of our kernel.
    #[inline]
    pub fn published(&self) -> Option<&Publication> {
        self.published.get().map(|(publication, _)| publication)
    }

    /// Returns the rules for RFLAGS.AC, once our kernel has published itself.
    #[inline]
    pub fn rules(&self) -> Option<&Rules> {
        self.rules.get()
    }

    /// Returns the rules for changes of text, once our kernel has published itself.
    #[inline]
    pub fn patching(&self) -> Option<&Patching> {
        self.patching.get()
    }

    /// Takes the frame table over, after our kernel has published its layout. Only the first
    /// publication counts.
    ///
    /// # Errors
    /// The layout describes something that is not in memory; the text names it.
    pub fn publish(
        &self,
        memory: &dyn GuestMemory,
        publication: Publication,
        by: Suspect,
    ) -> Result<(), &'static str> {
        let p = &publication;
        let Records { bytes, state_offset, .. } = p.records;
        if bytes == 0 || 4096 % bytes != 0 || !state_offset.is_multiple_of(4) || state_offset >= bytes {
            return Err("records of that size are none");
        }
        for (start, end) in [(p.text, p.text_end), (p.rodata, p.rodata_end)] {
            for address in (start & !0xfff..end).step_by(4096) {
                self.mark_text(memory, p, address).ok_or("a page that it names is not mapped")?;
            }
        }
        let rules = Rules::read(memory, p)?;
        let patching = Patching::read(memory, p)?;
        let frames = p.frames.min(self.marks.len() as u64);
        let mut frame = 0;
        while frame < frames {
            let state = self.read_state(memory, p, frame).ok_or("the frame table is not mapped")?;
            frame += self.take(p, frame, state, by.time);
        }
        self.published.set((publication, by.time)).map_err(|_| "it was published before")?;
        self.rules.set(rules).map_err(|_| "it was published before")?;
        self.patching.set(patching).map_err(|_| "it was published before")?;
        self.texts.read(memory, &publication);
        let mut half = self.changing();
        for root in publication.roots.into_iter().filter(|&root| root != 0) {
            half.adopt(memory, root, &mut |change| self.judge(&publication, change, by));
        }
        Ok(())
    }

    /// Returns whether `frame`, which holds the code at `pc`, is text for which CPUs of `node` have
    /// another frame in all versions of text from number `since` on.
    pub fn is_anothers_text(&self, node: usize, pc: u64, frame: u64, since: usize) -> bool {
        let Some(p) = self.published() else { return false };
        if !self.mark(frame).is_some_and(|mark| self.is_read_only(mark)) {
            return false;
        }
        let page = (pc >> 12).wrapping_sub(p.text >> 12) as usize;
        self.texts.is_anothers(node, page, frame, since)
    }

    /// Returns whether the image's slot of `root` is that of `node`'s published root; `None` before
    /// the publication and for an address without a root.
    pub fn has_own_image(&self, memory: &dyn GuestMemory, node: usize, root: u64) -> Option<bool> {
        let p = self.published()?;
        let slot = (p.text >> 39 & 511) * 8;
        let image = |root: u64| Some(memory.load((root & FRAME) + slot)? & FRAME);
        Some(image(root)? == image(p.root(node))?)
    }

    /// Returns how often the kernel has announced that `cpu` is about to load a root with another
    /// node's image; 0 if it never publishes that.
    pub fn shared_loads(&self, memory: &dyn GuestMemory, cpu: usize) -> u64 {
        let word = |p: &Publication| {
            let address = p.shared_loads + 8 * cpu as u64;
            let leaf = walk(memory, p.root(0), address)?;
            memory.load(leaf.page | address & 0xfff)
        };
        self.published().filter(|p| p.shared_loads != 0).and_then(word).unwrap_or(0)
    }

    /// Marks the frames that all nodes have at an address of the image as text. `None` if a node
    /// has none there.
    fn mark_text(&self, memory: &dyn GuestMemory, p: &Publication, address: u64) -> Option<()> {
        for &root in p.roots.iter().filter(|&&root| root != 0) {
            let leaf = walk(memory, root, address)?;
            if let Some(mark) = self.marks.get((leaf.page >> 12) as usize) {
                mark.fetch_or(TEXT, Ordering::Relaxed);
            }
        }
        Some(())
    }

    fn changing(&self) -> MutexGuard<'_, KernelHalf> {
        self.changing.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Handles a store to a translation table of the kernel half, at this guest-physical address.
    /// Returns the number of windows that it opened, and the addresses of those that it closed.
    pub fn half_store(&self, memory: &dyn GuestMemory, physical: u64, by: Suspect) -> (u64, Vec<u64>) {
        let (mut opened, mut closed, mut is_text) = (0, Vec::new(), false);
        let Some(p) = self.published() else { return (opened, closed) };
        self.changing().stored(memory, physical, &mut |change| {
            match change {
                Change::Came(leaf) if in_windows(p, leaf.address) => opened += 1,
                Change::Went(leaf) if in_windows(p, leaf.address) => closed.push(leaf.address),
                _ => {}
            }
            is_text |= matches!(change, Change::Came(leaf) if is_read_only_part(p, leaf.address));
            self.judge(p, change, by);
        });
        if is_text {
            self.texts.read(memory, p);
        }
        (opened, closed)
    }

    /// Notes a change of the kernel half, and reports it if it is forbidden. Called with the lock
    /// held.
    fn judge(&self, p: &Publication, change: Change, by: Suspect) {
        match change {
            Change::Linked(frame) => {
                if let Some(mark) = self.marks.get(frame as usize) {
                    mark.fetch_or(TABLE, Ordering::Relaxed);
                }
                if self.mark(frame).is_some_and(|mark| self.is_outside(mark)) {
                    self.report(Rule::Mapped, Suspect { frame, ..by }, None);
                }
            }
            Change::Unlinked(frame) => {
                if let Some(mark) = self.marks.get(frame as usize) {
                    mark.fetch_and(!TABLE, Ordering::Relaxed);
                }
            }
            Change::Twice(frame, address) => {
                self.report(Rule::SharedTable, Suspect { address, frame, ..by }, None);
            }
            Change::Came(leaf) => self.came(p, leaf, by),
            Change::Went(leaf) if !in_windows(p, leaf.address) => {
                for mapped in self.mapped.iter().skip(leaf.frame as usize).take(leaf.frames as usize) {
                    mapped.fetch_sub(1, Ordering::Relaxed);
                }
            }
            Change::Went(_) => {}
        }
    }

    fn came(&self, p: &Publication, leaf: Mapped, by: Suspect) {
        self.leaves.fetch_add(1, Ordering::Relaxed);
        let is_window = in_windows(p, leaf.address);
        for frame in leaf.frame..leaf.frame + leaf.frames {
            let Some(mark) = self.mark(frame) else { return };
            let suspect = Suspect { address: leaf.address + ((frame - leaf.frame) << 12), frame, ..by };
            if !is_window {
                self.mapped[frame as usize].fetch_add(1, Ordering::Relaxed);
                let is_at_home = is_among(p.records.replica_owners, mark)
                    && is_read_only_part(p, suspect.address)
                    || is_among(p.records.stack_owners, mark) && !self.is_direct(suspect.address);
                if !is_at_home && (self.is_outside(mark) || is_among(p.records.replica_owners, mark)) {
                    self.report(Rule::Mapped, suspect, None);
                }
            }
            let is_patched = || self.patching().is_some_and(|patching| patching.is_window(leaf.address));
            if leaf.writable && self.is_read_only(mark) && !is_patched() {
                self.report(Rule::WritableImage, suspect, None);
            }
        }
    }

    /// Checks that frames whose new owner has to stay outside are not mapped. Called with the lock
    /// held.
    fn stays_outside(&self, half: &KernelHalf, p: &Publication, frames: Range<u64>, by: Suspect) {
        for frame in frames {
            let is_mapped = self.mapped.get(frame as usize).is_some_and(|n| n.load(Ordering::Relaxed) > 0);
            if is_mapped && self.mark(frame).is_some_and(|mark| self.is_outside(mark)) {
                let address = half.find(frame, p.windows..p.windows + p.windows_span).unwrap_or(0);
                self.report(Rule::Mapped, Suspect { address, frame, ..by }, None);
            }
        }
    }

    /// Returns the state word of a frame's record in the guest's memory.
    fn read_state(&self, memory: &dyn GuestMemory, p: &Publication, frame: u64) -> Option<u32> {
        let address = p.frame_table + frame * p.records.bytes + p.records.state_offset;
        let leaf = walk(memory, p.root(0), address)?;
        load_u32(memory, leaf.page | address & 0xfff)
    }

    /// Handles the new `state` of a frame's record; returns the number of frames that change.
    fn take(&self, p: &Publication, frame: u64, state: u32, now: u64) -> u64 {
        if state == 0 {
            return 1;
        }
        let (owner, log2) = owner_and_order(p, state);
        let order = &self.orders[frame as usize];
        let size = if owner != 0 {
            order.store(log2, Ordering::Relaxed);
            log2
        } else {
            // A freed block is as large as the block that was allocated.
            order.swap(0, Ordering::Relaxed)
        };
        let end = (frame + (1u64 << size.min(40))).min(self.marks.len() as u64);
        for index in frame as usize..end as usize {
            let old = Mark(self.marks[index].load(Ordering::Relaxed));
            if old.owner() as u32 == owner {
                continue;
            }
            self.marks[index].store(old.with_owner(owner).0, Ordering::Relaxed);
            if owner == 0 {
                self.changed[index].store(now, Ordering::Relaxed);
            }
        }
        end - frame
    }

    /// Handles a store to the frame table, at `address` (physical: `physical`). Returns the frames
    /// that transfers passed through until then.
    pub fn table_store(&self, memory: &dyn GuestMemory, physical: u64, by: Suspect) -> Range<u64> {
        let Suspect { address, time, .. } = by;
        let Some(p) = self.published() else { return 0..0 };
        let offset = address.wrapping_sub(p.frame_table);
        let (frame, inside) = (offset / p.records.bytes, offset % p.records.bytes);
        if frame >= (self.marks.len() as u64).min(p.frames) || inside != p.records.state_offset {
            return 0..0;
        }
        let differs = || load_u32(memory, physical).filter(|&state| !self.is_marked(p, frame, state));
        if differs().is_none() {
            return 0..0;
        }
        // Every holder of a frame stores here, not only the one that may change its owner. By now
        // the frames may have other owners, and marks that say so. Read again while no other CPU
        // changes marks, so that the final mark is the state that was read last.
        let half = self.changing();
        let mut left = 0..0;
        while let Some(state) = differs() {
            self.changes.fetch_add(1, Ordering::Relaxed);
            let was_transfers = self.is_transfers(frame);
            let frames = frame..frame + self.take(p, frame, state, time);
            if was_transfers && !self.is_transfers(frame) {
                left = frames.clone();
            }
            self.stays_outside(&half, p, frames, by);
        }
        left
    }
    /// Returns whether the marks agree with a record.
    fn is_marked(&self, p: &Publication, frame: u64, state: u32) -> bool {
        let (owner, order) = owner_and_order(p, state);
        let marked = Mark(self.marks[frame as usize].load(Ordering::Relaxed)).owner() as u32;
        state == 0
            || marked == owner && (owner == 0 || self.orders[frame as usize].load(Ordering::Relaxed) == order)
    }

    /// Returns whether the address is in the direct map.
    pub fn is_direct(&self, address: u64) -> bool {
        self.published().is_some_and(|p| address.wrapping_sub(p.direct_map) < p.direct_span)
    }
    /// Returns whether the address is in the frame table. The check is by address and not by frame,
    /// because records of memory that is plugged in later are mapped later.
    pub fn is_table(&self, address: u64) -> bool {
        self.published().is_some_and(|p| address.wrapping_sub(p.frame_table) < p.frames * p.records.bytes)
    }
    /// Returns what the kernel has at an address in a frame with this mark, if it has published its
    /// map. Each area of it has a top-level slot of its own, and the image is behind all others.
    pub fn kind(&self, address: u64, mark: Mark) -> Option<DataKind> {
        let p = self.published()?;
        let is_programs = is_among(p.records.user_owners, mark);
        Some(if address >> 63 == 0 || in_windows(p, address) || is_programs {
            DataKind::Programs
        } else if address >= p.text {
            DataKind::Image
        } else if address >> 39 == p.frame_table >> 39 {
            DataKind::FrameTable
        } else if !self.is_direct(address) {
            DataKind::Stacks
        } else if self.owner_name(mark) == TABLES {
            DataKind::Tables
        } else {
            DataKind::Heap
        })
    }
    /// Returns whether a frame with this mark has to stay out of the kernel half.
    pub fn is_outside(&self, mark: Mark) -> bool {
        self.published().is_some_and(|p| is_among(p.records.outside_owners, mark))
    }
    /// Returns whether the address is in a CPU's windows.
    pub fn is_window(&self, address: u64) -> bool {
        self.published().is_some_and(|p| in_windows(p, address))
    }
    /// Returns the direct map's address, real or hypothetical, of a guest-physical address.
    pub fn direct_address(&self, physical: u64) -> u64 {
        self.published().map_or(linux::DIRECT_MAP, |p| p.direct_map) + physical
    }
    /// Returns whether a translation of this address may lead the kernel to programs' frames: a
    /// window, or the direct map.
    pub fn is_exposing(&self, address: u64) -> bool {
        match self.published() {
            Some(p) => address.wrapping_sub(p.direct_map) < p.direct_span || in_windows(p, address),
            None => address.wrapping_sub(linux::DIRECT_MAP) < (self.marks.len() as u64) << 12,
        }
    }
    /// Returns whether programs' bytes pass through a frame on their way to and from devices.
    pub fn is_transfers(&self, frame: u64) -> bool {
        self.published().is_some_and(|p| self.is_of(frame, p.records.transfer_owners))
    }
    /// Returns whether a frame's owner is one of those with a bit in `owners`.
    fn is_of(&self, frame: u64, owners: u64) -> bool {
        self.mark(frame).is_some_and(|mark| is_among(owners, mark))
    }
    /// Returns whether a frame is for programs' bytes: its owner says so, or, if the kernel does
    /// not publish owners, a program last used its page.
    pub fn is_programs(&self, frame: u64) -> bool {
        match self.published() {
            Some(p) => self.is_of(frame, p.records.user_owners | p.records.transfer_owners),
            None => self
                .users
                .get(frame as usize)
                .is_some_and(|user| user.load(Ordering::Relaxed) == User::Program as u8),
        }
    }
    /// Returns whether the kernel half maps a frame outside windows; where the kernel does not
    /// publish its map, whether the direct map below `root` does. True without a root.
    pub fn is_reachable(&self, memory: &dyn GuestMemory, root: Option<u64>, frame: u64) -> bool {
        match self.published() {
            Some(_) => self.mapped.get(frame as usize).is_some_and(|n| n.load(Ordering::Relaxed) > 0),
            None => root.is_none_or(|root| walk(memory, root, self.direct_address(frame << 12)).is_some()),
        }
    }
    /// Returns whether a frame had an owner and has none now, as far as the kernel tells.
    pub fn was_given_back(&self, frame: u64) -> bool {
        let is_free = |mark: Mark| mark.owner() == 0 && mark.generation() > 0;
        self.published().is_some() && self.mark(frame).is_some_and(is_free)
    }
    /// Returns whether the instruction is one that wipes free frames.
    pub fn is_wiping(&self, pc: u64) -> bool {
        self.published().is_some_and(|p| (p.wiping..p.wiping_end).contains(&pc))
    }
    /// Returns whether stores must not reach a frame with this mark.
    pub fn is_read_only(&self, mark: Mark) -> bool {
        mark.is_text() || self.published().is_some_and(|p| is_among(p.records.replica_owners, mark))
    }

    /// Reports a broken rule. For [`Rule::Stale`], `filled` has the time when the translation was
    /// filled, and its mark then.
    pub fn report(&self, rule: Rule, suspect: Suspect, filled: Option<(u64, Mark)>) {
        let Suspect { time, cpu, pc, address, frame } = suspect;
        let mark = self.mark(frame).unwrap_or(Mark::NOWHERE);
        let stale = filled.map(|(filled, mark)| Stale {
            filled,
            owner: self.owner_name(mark),
            changed: self.changed.get(frame as usize).map_or(0, |changed| changed.load(Ordering::Relaxed)),
        });
        let Ok(mut log) = self.log.lock() else { return };
        let log = &mut *log;
        log.total += 1;
        if let Some(stale) = &stale {
            log.stale_windows[log2_bucket(time.saturating_sub(stale.changed))] += 1;
        }
        if let Some(&index) = log.known.get(&(rule, pc)) {
            log.violations[index].count += 1;
        } else if log.violations.len() < log.bound {
            log.known.insert((rule, pc), log.violations.len());
            let owner = self.owner_name(mark);
            log.violations.push(Violation { rule, time, cpu, pc, address, frame, owner, stale, count: 1 });
        }
    }

    fn owner_name(&self, mark: Mark) -> String {
        self.published().map_or_else(String::new, |p| name_of(p, mark.owner()))
    }

    /// Notes that code of this kind has used the page of a frame.
    pub fn used(&self, frame: u64, by: User) {
        if let Some(user) = self.users.get(frame as usize)
            && user.load(Ordering::Relaxed) != by as u8
        {
            user.store(by as u8, Ordering::Relaxed);
        }
    }
    /// Returns the owner class of a guest-physical address: the owner, if the kernel publishes it;
    /// else the last user of its page.
    pub fn class(&self, address: u64) -> usize {
        let frame = address >> 12;
        match self.published() {
            Some(_) => self.mark(frame).map_or(0, Mark::owner),
            None => self.users.get(frame as usize).map_or(0, |user| user.load(Ordering::Relaxed).into()),
        }
    }
    /// Returns the names of the owner classes.
    pub fn classes(&self) -> Vec<String> {
        match self.published() {
            Some(p) => (0..p.owners.len())
                .map(|owner| name_of(p, owner))
                .take_while(|name| !name.is_empty())
                .collect(),
            None => User::NAMES.map(String::from).to_vec(),
        }
    }

    /// Returns the oracle's results; `checks` as the CPUs counted them.
    pub fn results(&self, checks: Checks, smap: SmapChecks) -> Oracle {
        let layout = self.published().map(|p| KernelLayout {
            policy: p.policy.name().into(),
            direct_map: (p.direct_map, p.direct_map + p.direct_span),
            windows: (p.windows, p.windows + p.windows_span),
            frame_table: (p.frame_table, p.frame_table + p.frames * p.records.bytes),
            text: (p.text, p.text_end),
            rodata: (p.rodata, p.rodata_end),
            slide: p.slide,
        });
        let log = self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Oracle {
            layout,
            since: self.published.get().map_or(0, |(_, since)| *since),
            checks: Checks {
                changes: self.changes.load(Ordering::Relaxed),
                leaves: self.leaves.load(Ordering::Relaxed),
                tables: self.changing().tables(),
                ..checks
            },
            smap,
            violations: log.violations.clone(),
            total: log.total,
            stale_windows: log.stale_windows.clone(),
        }
    }
}

/// The user of a page, as far as an observer can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum User {
    /// A program's loads and stores.
    Program = 1,
    /// The kernel's loads and stores.
    Kernel = 2,
    /// Instruction fetches.
    Code = 3,
}

impl User {
    const NAMES: [&'static str; 4] = ["untouched", "program", "kernel", "code"];
}

fn in_windows(p: &Publication, address: u64) -> bool {
    address.wrapping_sub(p.windows) < p.windows_span
}

fn name_of(p: &Publication, owner: usize) -> String {
    let bytes = p.owners.get(owner).map_or(&[][..], |name| &name[..]);
    let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

/// Loads 4 bytes at a multiple of 4.
pub fn load_u32(memory: &dyn GuestMemory, address: u64) -> Option<u32> {
    memory.load(address & !7).map(|word| (word >> (8 * (address & 4))) as u32)
}
