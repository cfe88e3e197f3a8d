//! Notes of a scan. See the parent module's head.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound::{Excluded, Unbounded};

use freehold_frame::{Anon, Frame, FrameSource, OutOfMemory};
use freehold_machine::{PAGE_SIZE, PAGEBLOCK_FRAMES, Pfn, VirtAddr};
use freehold_paging::Memory;

use super::MergeRules;
use crate::Commons;

/// Hash of a page's bytes, and the node if nodes are kept apart.
pub(super) type Key = u64;

/// A page by its space and its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PageAddress {
    pub space: u64,
    pub addr: VirtAddr,
}

/// A page whose hash did not change since the last pass.
struct WaitingPage {
    place: PageAddress,
    frame: Pfn,
    pass: u32,
}

/// The last hash of a frame, and how often it was scanned in vain since.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// Half of the hash; 0 if there is none.
    sum: u32,
    age: u8,
    skips: u8,
}

/// The frames of a pageblock, and the last pass that met one.
struct SeenBlock {
    frames: Vec<Seen>,
    pass: u32,
}

/// Result of a note.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Noted {
    /// The page waits for an equal one, or for the next pass.
    Waits,
    /// This page probably equals it.
    Pair(PageAddress),
}

/// Counts of a scan, as Linux' /sys/kernel/mm/ksm has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MergeFigures {
    /// Pages scanned (pages_scanned).
    pub scanned: u64,
    /// Pages that were not scanned by [`MergeRules::SMART`] (pages_skipped).
    pub skipped: u64,
    /// Complete passes that met an area (full_scans).
    pub passes: u64,
    /// In the last pass: pages without an equal one (pages_unshared).
    pub unshared: u64,
    /// In the last pass: pages whose bytes had changed (pages_volatile).
    pub volatile: u64,
}

/// Sums over the merged frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MergeSums {
    /// Merged frames (pages_shared).
    pub shared: u64,
    /// Their mappings, without the first of each (pages_sharing).
    pub sharing: u64,
}

/// Position in the merged frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MergeCursor(Option<Pfn>);

/// Merged frames with the same key that are tried: a bound against equal hashes of different bytes
/// and against frames with too many mappings.
const TRIES: usize = 8;
/// Notes of each kind that a step checks.
const CHECKS: usize = 64;
/// Merged frames that are summed up at a time.
const SUMMED: usize = 1024;

/// State of a scan over all spaces. See the parent module's head. It holds no frame.
#[derive(Default)]
pub struct MergeScan {
    /// The random key of the hash; 0 before the first step.
    secret: u64,
    zeroes: u64,
    /// The last space that the pass has finished, the one that it is in, and the address there.
    pub(super) after: u64,
    pub(super) inside: u64,
    pub(super) addr: VirtAddr,
    pass: u32,
    has_areas: bool,
    /// Merged frames by key, the newest first.
    merged: BTreeMap<(Key, u64), Pfn>,
    /// Their places in `merged`.
    places: BTreeMap<Pfn, (Key, u64)>,
    added: u64,
    waiting: BTreeMap<Key, WaitingPage>,
    seen: BTreeMap<u64, SeenBlock>,
    /// Positions of the check for notes that are out of date.
    checked: (Pfn, Key, u64),
    /// Counts of the present pass.
    waits: u64,
    changed: u64,
    pub(super) figures: MergeFigures,
}

impl core::fmt::Debug for MergeScan {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "MergeScan({} frames, {:?})", self.merged.len(), self.figures)
    }
}

impl MergeScan {
    /// A scan that knows nothing.
    pub const fn new() -> Self {
        Self {
            secret: 0,
            zeroes: 0,
            after: 0,
            inside: 0,
            addr: VirtAddr(0),
            pass: 0,
            has_areas: false,
            merged: BTreeMap::new(),
            places: BTreeMap::new(),
            added: 0,
            waiting: BTreeMap::new(),
            seen: BTreeMap::new(),
            checked: (Pfn(0), 0, 0),
            waits: 0,
            changed: 0,
            figures: MergeFigures { scanned: 0, skipped: 0, passes: 0, unshared: 0, volatile: 0 },
        }
    }
    /// Returns the counts.
    pub const fn figures(&self) -> MergeFigures {
        self.figures
    }
    /// Forgets some notes, after all pages were unmerged. Returns whether there are more.
    pub fn clear_some(&mut self) -> bool {
        for _ in 0..SUMMED {
            let gone = (self.merged.pop_first(), self.places.pop_first());
            let rest = (self.waiting.pop_first(), self.seen.pop_first());
            if matches!((gone, rest), ((None, None), (None, None))) {
                (self.figures.unshared, self.figures.volatile) = (0, 0);
                return false;
            }
        }
        true
    }
    /// Adds some merged frames to `sums`; returns whether there are more.
    pub fn sum_up<S: Memory>(
        &self,
        commons: &Commons<S>,
        cursor: &mut MergeCursor,
        sums: &mut MergeSums,
    ) -> bool {
        let from = cursor.0.map_or(Unbounded, Excluded);
        let mut left = SUMMED;
        for (&frame, _) in self.places.range((from, Unbounded)) {
            cursor.0 = Some(frame);
            if let Some(record) = commons.source.table().get(frame)
                && record.counts().is_merged()
                && let mappings @ 1.. = record.counts().load().mappings
            {
                sums.shared += 1;
                sums.sharing += u64::from(mappings) - 1;
            }
            left -= 1;
            if left == 0 {
                return true;
            }
        }
        false
    }

    pub(super) fn begin(&mut self, secret: u64) {
        if self.secret == 0 {
            self.secret = secret | 1;
            self.zeroes = self.hash(&[0; PAGE_SIZE]);
        }
    }
    pub(super) const fn note_area(&mut self) {
        self.has_areas = true;
    }
    pub(super) fn end_pass(&mut self) {
        (self.figures.unshared, self.figures.volatile) = (self.waits, self.changed);
        self.figures.passes += u64::from(self.has_areas);
        (self.after, self.inside, self.waits, self.changed) = (0, 0, 0, 0);
        self.has_areas = false;
        self.pass = self.pass.wrapping_add(1);
    }

    /// The hash of a page's bytes: four multiplications are under way at a time.
    pub(super) fn hash(&self, bytes: &[u8; PAGE_SIZE]) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut sums = [0, 1, 2, 3].map(|lane: u64| self.secret.rotate_left(lane as u32 * 16) ^ lane);
        for chunk in bytes.as_chunks::<32>().0 {
            for (sum, word) in sums.iter_mut().zip(chunk.as_chunks::<8>().0) {
                *sum = (*sum ^ u64::from_le_bytes(*word)).wrapping_mul(ODD).rotate_left(29);
            }
        }
        let mix = |all: u64, sum: u64| (all ^ sum ^ sum >> 31).wrapping_mul(ODD);
        let all = sums.into_iter().fold(self.secret, mix);
        all ^ all >> 32
    }
    /// The hash of a page of zeroes.
    pub(super) const fn zeroes(&self) -> u64 {
        self.zeroes
    }
    /// The key of a page with this hash in `frame`.
    pub(super) fn key<S: Memory>(
        &self,
        commons: &Commons<S>,
        frame: Pfn,
        hash: u64,
        rules: MergeRules,
    ) -> Key {
        let apart = rules.contains(MergeRules::NODES_APART);
        if apart { hash.wrapping_add(u64::from(commons.node_of(frame).0) + 1) } else { hash }
    }

    /// A reference to a merged frame with this key that has room for one more mapping.
    pub(super) fn find<S: Memory>(&self, source: S, key: Key, sharing: u32) -> Option<Frame<Anon, S>> {
        let mut known = self.merged.range((key, 0)..=(key, u64::MAX)).take(TRIES);
        known.find_map(|(_, &frame)| {
            let held = Frame::<Anon, S>::try_merged(source, frame)?;
            (held.record().counts().load().mappings < sharing).then_some(held)
        })
    }
    /// Notes a merged frame.
    pub(super) fn add<S: FrameSource>(&mut self, source: S, key: Key, frame: Pfn) -> Result<(), OutOfMemory> {
        source.ensure_objects()?;
        self.forget(frame);
        self.added += 1;
        let place = (key, u64::MAX - self.added);
        self.merged.insert(place, frame);
        self.places.insert(frame, place);
        Ok(())
    }
    /// Forgets a frame that is not merged any more.
    pub(super) fn forget(&mut self, frame: Pfn) {
        if let Some(place) = self.places.remove(&frame) {
            self.merged.remove(&place);
        }
    }

    /// Whether a frame that was scanned in vain several times is left out this time (Linux:
    /// `should_skip_rmap_item`, mm/ksm.c).
    pub(super) fn skips(&mut self, frame: Pfn) -> bool {
        let (block, index) = block_of(frame);
        let Some(seen) = self.seen.get_mut(&block).and_then(|block| block.frames.get_mut(index)) else {
            return false;
        };
        let age = seen.age;
        seen.age = age.saturating_add(1);
        if age < 3 {
            return false;
        }
        if seen.skips == 0 {
            seen.skips = match age {
                3 => 1,
                4..=5 => 2,
                6..=8 => 4,
                _ => 8,
            };
            return false;
        }
        seen.skips -= 1;
        self.figures.skipped += 1;
        true
    }
    /// Notes the key of a page that equals no merged frame. A key that is new for its frame is only
    /// remembered.
    pub(super) fn note<S: FrameSource>(
        &mut self,
        source: S,
        key: Key,
        frame: Pfn,
        place: PageAddress,
    ) -> Noted {
        let sum = key as u32 | 1;
        let Some(seen) = self.seen_of(source, frame) else { return Noted::Waits };
        if seen.sum != sum {
            *seen = Seen { sum, ..Seen::default() };
            self.changed += 1;
            return Noted::Waits;
        }
        let pass = self.pass;
        match self.waiting.get(&key) {
            // A page that a fork shares has one frame already.
            Some(other) if other.pass == pass && other.frame == frame => {}
            Some(other) if other.pass == pass => {
                let other = other.place;
                self.waiting.remove(&key);
                self.waits -= 1;
                return Noted::Pair(other);
            }
            _ => self.wait(source, key, frame, place),
        }
        Noted::Waits
    }
    /// Lets a page wait for an equal one until the end of the pass.
    pub(super) fn wait<S: FrameSource>(&mut self, source: S, key: Key, frame: Pfn, place: PageAddress) {
        if source.ensure_objects().is_ok() {
            self.waiting.insert(key, WaitingPage { place, frame, pass: self.pass });
            self.waits += 1;
        }
    }
    fn seen_of<S: FrameSource>(&mut self, source: S, frame: Pfn) -> Option<&mut Seen> {
        let ((block, index), pass) = (block_of(frame), self.pass);
        if !self.seen.contains_key(&block) {
            source.ensure_objects().ok()?;
            let mut frames = Vec::new();
            frames.try_reserve_exact(PAGEBLOCK_FRAMES as usize).ok()?;
            frames.resize(PAGEBLOCK_FRAMES as usize, Seen::default());
            self.seen.insert(block, SeenBlock { frames, pass });
        }
        let block = self.seen.get_mut(&block)?;
        block.pass = pass;
        block.frames.get_mut(index)
    }

    /// Removes notes that are out of date, among the next few of each kind.
    pub(super) fn prune<S: FrameSource>(&mut self, source: S) {
        let is_merged = |frame| source.table().get(frame).is_some_and(|record| record.counts().is_merged());
        let pass = self.pass;
        for _ in 0..CHECKS {
            let next = self.places.range((Excluded(self.checked.0), Unbounded)).next();
            let Some(frame) = next.map(|(&frame, _)| frame) else {
                self.checked.0 = Pfn(0);
                break;
            };
            self.checked.0 = frame;
            if !is_merged(frame) {
                self.forget(frame);
            }
        }
        self.checked.1 = prune(&mut self.waiting, self.checked.1, |waiting| waiting.pass == pass);
        self.checked.2 = prune(&mut self.seen, self.checked.2, |block| pass.wrapping_sub(block.pass) <= 1);
    }
}

/// Removes those of the next few entries after `from` that are not to be kept. Returns the new
/// position.
fn prune<V>(notes: &mut BTreeMap<u64, V>, from: u64, keep: impl Fn(&V) -> bool) -> u64 {
    let mut at = from;
    for _ in 0..CHECKS {
        let Some((&key, note)) = notes.range((Excluded(at), Unbounded)).next() else { return 0 };
        at = key;
        if !keep(note) {
            notes.remove(&key);
        }
    }
    at
}

/// The pageblock of a frame, and its index there.
const fn block_of(frame: Pfn) -> (u64, usize) {
    (frame.0 / PAGEBLOCK_FRAMES, (frame.0 % PAGEBLOCK_FRAMES) as usize)
}
