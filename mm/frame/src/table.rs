//! The frame table: one record per frame number, a separate table of reverse keys, and the audit
//! that sums them up.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::{NodeId, PAGEBLOCK_FRAMES, Pfn, PfnRange};

use crate::ready::Ready;
use crate::{AccountId, FrameRecord, FrameState, Holders, Order, Owner, ReverseKey};

/// The records of frames 0 to the end of memory, holes included. A handle that is copied freely.
///
/// Holes have records that stay all zero and are never written, so they may share a read-only page.
/// A table [with bits](Beside::with_ready) has records only where they were
/// [prepared](FrameTable::prepare), and so does every pageblock that was ever handed out.
/// [`FrameTable::get`], [`reverse_key`](FrameTable::reverse_key), [`state`](FrameTable::state) and
/// [`is_owned_by`](FrameTable::is_owned_by) are for frames of such pageblocks; the other methods
/// are for any frame.
#[derive(Clone, Copy, Debug)]
pub struct FrameTable {
    records: &'static [FrameRecord],
    /// One pointer, so that the table is only three words and cheap to pass.
    beside: Option<&'static Beside>,
}

/// Tables in addition to the records.
#[derive(Debug)]
pub struct Beside {
    reverse_keys: &'static [ReverseKey],
    /// `None` if all records exist from the start.
    ready: Option<Ready<'static, AtomicU64>>,
}

impl Beside {
    /// Returns the tables with these reverse keys: number n is frame n's.
    pub const fn new(reverse_keys: &'static [ReverseKey]) -> Self {
        Self { reverse_keys, ready: None }
    }
    /// The same, for records in memory that was not cleared. `words` are zero, and their number is
    /// that of [`ready::words`](crate::ready::words).
    #[must_use]
    pub const fn with_ready(self, words: &'static [AtomicU64]) -> Self {
        Self { ready: Some(Ready::new(words)), ..self }
    }
}

impl FrameTable {
    /// The table whose record number n is frame n's.
    pub const fn new(records: &'static [FrameRecord]) -> Self {
        Self { records, beside: None }
    }
    /// Adds the other tables to this one.
    #[must_use]
    pub const fn with(self, beside: &'static Beside) -> Self {
        Self { beside: Some(beside), ..self }
    }
    fn ready(self) -> Option<Ready<'static, AtomicU64>> {
        self.beside?.ready
    }
    /// Whether `frame`'s record is valid. The frames of a pageblock without records are free, or no
    /// memory.
    #[inline]
    pub fn is_ready(self, frame: Pfn) -> bool {
        self.ready().is_none_or(|ready| ready.has(frame))
    }
    /// Initialises the records of `frame`'s pageblock if it has none: its frames never had an
    /// owner. For the page allocator, which has exclusive access to the pageblock.
    #[inline]
    pub fn prepare(self, frame: Pfn) {
        if let Some(ready) = self.ready()
            && !ready.has(frame)
        {
            self.write_records(frame.pageblock_start());
            ready.set(frame);
        }
    }
    /// The least possible cost is a store per word: three for a frame, once.
    #[cold]
    fn write_records(self, block: Pfn) {
        let start = block.0 as usize;
        let end = start + PAGEBLOCK_FRAMES as usize;
        let (records, reverse_keys) =
            (self.records, self.beside.map_or(&[][..], |beside| beside.reverse_keys));
        records[start.min(records.len())..end.min(records.len())].iter().for_each(FrameRecord::clear);
        reverse_keys[start.min(reverse_keys.len())..end.min(reverse_keys.len())]
            .iter()
            .for_each(ReverseKey::clear);
    }
    /// One past the highest frame number.
    pub const fn end(self) -> Pfn {
        Pfn(self.records.len() as u64)
    }
    /// The record of `frame`, whose pageblock is [ready](FrameTable::is_ready); `None` past the
    /// end.
    #[inline]
    pub fn get(self, frame: Pfn) -> Option<&'static FrameRecord> {
        self.records.get(usize::try_from(frame.0).ok()?)
    }
    /// The reverse key of `frame`. Until the present owner sets it, it has the last owner's value.
    /// `None` past the end, and in a table without reverse keys.
    #[inline]
    pub fn reverse_key(self, frame: Pfn) -> Option<&'static ReverseKey> {
        self.beside?.reverse_keys.get(usize::try_from(frame.0).ok()?)
    }
    /// The account that `frame` is charged to. [`AccountId::ROOT`] past the end, and in a table
    /// without reverse keys.
    pub fn account(self, frame: Pfn) -> AccountId {
        self.reverse_key(frame).map_or(AccountId::ROOT, ReverseKey::account)
    }
    /// Notes that the frames of a block are charged to `account`. For the page allocator, which has
    /// exclusive access to the block.
    pub fn set_account(self, block: Pfn, order: Order, account: AccountId) {
        for frame in 0..order.frames() {
            if let Some(key) = self.reverse_key(block.offset(frame)) {
                key.set_account(account);
            }
        }
    }
    /// Moves the charge for `old` to `new`, for which no account was charged, because a page has
    /// moved. The caller owns both.
    pub fn move_charge(self, old: Pfn, new: Pfn) {
        if let (Some(old), Some(new)) = (self.reverse_key(old), self.reverse_key(new)) {
            debug_assert_eq!(new.account(), AccountId::ROOT);
            new.set_account(old.account());
            old.set_account(AccountId::ROOT);
        }
    }
    /// Read the frames' records ahead of their use.
    #[inline]
    pub fn warm(self, frames: impl Iterator<Item = Pfn>) {
        let records = frames.filter_map(|frame| self.get(frame));
        core::hint::black_box(records.fold(0, |read, record| read ^ record.load(Ordering::Relaxed)));
    }
    /// Returns the state in the frame's own record, or unowned past the end. The frames of a larger
    /// block are owned through its first record: see [`FrameTable::block_of`].
    #[inline]
    pub fn state(self, frame: Pfn) -> FrameState {
        self.get(frame).map_or(FrameState::Unowned(None), FrameRecord::state)
    }
    /// Whether a block of `owner` starts at `frame`: cheaper than [`FrameTable::owner`].
    #[inline]
    pub fn is_owned_by(self, frame: Pfn, owner: Owner) -> bool {
        self.get(frame).is_some_and(|record| record.is_owned_by(owner))
    }
    /// Returns the state in the record of a frame, or unowned if its pageblock was never handed
    /// out.
    pub fn look(self, frame: Pfn) -> FrameState {
        if self.is_ready(frame) { self.state(frame) } else { FrameState::Unowned(None) }
    }
    /// Whether a block starts at one of these frames whose owner has a bit in `owners`.
    pub fn has_owner_of(self, frames: PfnRange, owners: u64) -> bool {
        self.pieces(frames).any(|(_, records)| records.iter().any(|record| record.has_owner_of(owners)))
    }
    /// The first owned block that starts at one of these frames: its frames, and its owner.
    pub fn next_owned(self, frames: PfnRange) -> Option<(PfnRange, Owner)> {
        self.pieces(frames).find_map(|(start, records)| {
            let (skipped, tag) = FrameRecord::first_owned(records)?;
            let first = start.offset(skipped as u64);
            Some((PfnRange::new(first, first.offset(tag.order().frames())), tag.owner()))
        })
    }
    /// The records of these frames, pageblock by pageblock, where there are any: the first frame,
    /// and the records from there on.
    fn pieces(self, frames: PfnRange) -> impl Iterator<Item = (Pfn, &'static [FrameRecord])> {
        let end = frames.end.min(self.end());
        let mut next = frames.start;
        core::iter::from_fn(move || {
            while next < end {
                let start = next;
                next = start.pageblock_start().offset(PAGEBLOCK_FRAMES).min(end);
                if self.is_ready(start) {
                    return Some((start, &self.records[start.0 as usize..next.0 as usize]));
                }
            }
            None
        })
    }
    /// The owned block that `frame` is in: its first frame and its state.
    pub fn block_of(self, frame: Pfn) -> Option<(Pfn, Order, Owner, NodeId)> {
        (0..=Order::MAX.log2()).find_map(|log2| {
            let head = Pfn(frame.0 >> log2 << log2);
            match self.look(head) {
                FrameState::Owned { owner, order, node } if order.log2() >= log2 => {
                    Some((head, order, owner, node))
                }
                _ => None,
            }
        })
    }
    /// Returns the owner of `frame`.
    pub fn owner(self, frame: Pfn) -> Owner {
        self.block_of(frame).map_or(Owner::Free, |(_, _, owner, _)| owner)
    }
    /// The device that can access `frame`, by one load of that frame's record; `None` if no device
    /// can.
    #[inline]
    pub fn device(self, frame: Pfn) -> Option<u8> {
        self.get(frame).filter(|_| self.is_ready(frame))?.device()
    }
    /// Sums the frames of `memory` (sorted runs) by owner and searches for contradictions; `found`
    /// is called for each.
    ///
    /// The result is exact only while no CPU allocates, frees, maps or pins.
    pub fn audit(
        self,
        memory: impl IntoIterator<Item = PfnRange>,
        mut found: impl FnMut(Contradiction),
    ) -> Audit {
        let mut audit = Audit::default();
        let mut note = |audit: &mut Audit, contradiction| {
            audit.contradictions += 1;
            found(contradiction);
        };
        for run in memory {
            let mut next = run.start;
            while next < run.end {
                let Some(record) = self.get(next) else {
                    note(&mut audit, Contradiction::NoRecord(next));
                    break;
                };
                if !self.is_ready(next) {
                    let end = next.pageblock_start().offset(PAGEBLOCK_FRAMES).min(run.end);
                    audit.frames[Owner::Free as usize] += end.0 - next.0;
                    next = end;
                    continue;
                }
                let FrameState::Owned { owner, order, .. } = record.state() else {
                    if record.is_free_but_held() {
                        note(&mut audit, Contradiction::FreeButHeld(next));
                    }
                    audit.frames[Owner::Free as usize] += 1;
                    next = next.offset(1);
                    continue;
                };
                let holders = record.holders(owner);
                let end = next.offset(order.frames());
                if !next.is_aligned(order.log2()) || end > run.end {
                    note(&mut audit, Contradiction::BadBlock(next, order));
                }
                miscounted(next, owner, order, holders).for_each(|found| note(&mut audit, found));
                let end = end.min(run.end);
                for tail in PfnRange::new(next.offset(1), end).iter() {
                    let is_held = self.get(tail).is_some_and(FrameRecord::is_free_but_held);
                    if is_held && !owner.is_seen_by_devices() {
                        note(&mut audit, Contradiction::FreeButHeld(tail));
                    }
                    if let FrameState::Owned { owner: second, .. } = self.state(tail) {
                        note(&mut audit, Contradiction::OwnedTwice(tail, owner, second));
                    }
                }
                audit.frames[owner as usize] += end.0 - next.0;
                audit.mappings += u64::from(holders.mappings);
                audit.references += u64::from(holders.references) * (end.0 - next.0);
                audit.pins += u64::from(holders.pins);
                next = end;
            }
        }
        audit
    }
}

/// Returns the contradictions between a block's counts and its owner.
fn miscounted(
    frame: Pfn,
    owner: Owner,
    order: Order,
    holders: Holders,
) -> impl Iterator<Item = Contradiction> {
    let not_whole = owner != Owner::Anon || order != Order::PAGEBLOCK || holders.pins > 0;
    let shared_pin = owner == Owner::Anon && holders.pins > 0 && !holders.is_exclusive();
    let found = [
        (owner.is_user() && holders.is_none(), Contradiction::Leaked(frame, owner)),
        (!owner.is_user() && !holders.is_none(), Contradiction::KernelButCounted(frame, holders)),
        (holders.is_exclusive() && holders.mappings > 1, Contradiction::ExclusiveButShared(frame, holders)),
        (holders.whole && not_whole, Contradiction::NotWhole(frame, holders)),
        (shared_pin, Contradiction::PinnedButShared(frame, holders)),
    ];
    found.into_iter().filter_map(|(is_so, what)| is_so.then_some(what))
}

/// Memory by owner, in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Audit {
    frames: [u64; Owner::COUNT],
    /// Page-table leaves that map user frames.
    pub mappings: u64,
    /// References to user frames; one to a block counts for each of its frames.
    pub references: u64,
    /// Pins of user frames.
    pub pins: u64,
    /// How many contradictions there were.
    pub contradictions: u64,
}

impl Audit {
    /// Frames that `owner` has.
    pub const fn frames(&self, owner: Owner) -> u64 {
        self.frames[owner as usize]
    }
    /// Frames altogether.
    pub fn total(&self) -> u64 {
        self.frames.iter().sum()
    }
}

/// Two records, or a record and a fact, that cannot both be true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contradiction {
    /// Memory beyond the table's end.
    NoRecord(Pfn),
    /// A frame that starts no block and has references, pins, or so many mappings that its word
    /// cannot be a trace.
    FreeButHeld(Pfn),
    /// A block that is not aligned to its size, or extends beyond memory.
    BadBlock(Pfn, Order),
    /// A user frame that nothing holds.
    Leaked(Pfn, Owner),
    /// A kernel frame with a user frame's counts.
    KernelButCounted(Pfn, Holders),
    /// Exclusive to one address space, and mapped more than once.
    ExclusiveButShared(Pfn, Holders),
    /// An anonymous frame that is pinned and not exclusive.
    PinnedButShared(Pfn, Holders),
    /// Counts with the mark of a whole block, for a frame that starts no block of anonymous frames,
    /// or for a block that is pinned as a whole.
    NotWhole(Pfn, Holders),
    /// A frame inside one owner's block that starts another owner's.
    OwnedTwice(Pfn, Owner, Owner),
}
