//! The slots of one swap area: one word each, with all information about the page in the slot.
//!
//! A word has the number of page table entries for the slot, the frame with the same bytes (the
//! swap cache; the slot holds one reference to it), and the location of the bytes:
//!
//! | entries | frame | marks | meaning |
//! |---|---|---|---|
//! | 0 | none | | free |
//! | 1.. | F | writing | its bytes are on their way to the store |
//! | 1.. | F | stored | both have them; the frame may go |
//! | 1.. | F | bad, or none | *dirty*: the store did not take them, only the frame has them; no new entry leads here, and spaces with entries take the page back |
//! | 1.. | none | stored | only the store has them |
//! | 0 | F | writing | every page was taken back before the store was done; the slot is free when it is |
//! | 1 | none | writing | a page cache's bytes on their way to the store; the cache has the frame |
//! | 0 | none | bad | the store fails here: never handed out |
//!
//! Words lie in pages of 512, made when the area is added: eight bytes for each page of swap, and
//! no allocation afterwards. Separate sets of bits ([`Bits`]) tell which clusters have room, are
//! empty, or have frames, and which of their slots do. So no search visits all slots.
//!
//! **Locks.** `&mut` for all changes; the lock is the swap's.

use alloc::boxed::Box;
use alloc::vec::Vec;

use freehold_charge::Accounts;
use freehold_frame::{AccountId, OutOfMemory};
use freehold_machine::Pfn;

/// Slots per cluster: their words fill a page, and they hold 2 MiB, whose neighbourhood is worth
/// keeping.
pub(crate) const CLUSTER: u64 = 512;

const FRAME: u64 = (1 << 40) - 1;
const ENTRY: u64 = 1 << 40;
const ENTRIES: u64 = (1 << 20) - 1;
const WRITING: u64 = 1 << 60;
const STORED: u64 = 1 << 61;
const AHEAD: u64 = 1 << 62;
const BAD: u64 = 1 << 63;

/// State of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotWord(u64);

impl SlotWord {
    /// Entries of page tables that lead here.
    pub const fn entries(self) -> u64 {
        (self.0 / ENTRY) & ENTRIES
    }
    /// The frame with the bytes. Frame 0 is never a user's.
    pub const fn frame(self) -> Option<Pfn> {
        match self.0 & FRAME {
            0 => None,
            number => Some(Pfn(number)),
        }
    }
    /// Whether the bytes are on their way to the store.
    pub const fn is_writing(self) -> bool {
        self.0 & WRITING != 0
    }
    /// Whether the store has the bytes.
    pub const fn is_stored(self) -> bool {
        self.0 & STORED != 0
    }
    /// Whether the frame was read ahead.
    pub const fn is_ahead(self) -> bool {
        self.0 & AHEAD != 0
    }
    /// Whether only the frame has the bytes, and they are not being written: the store did not
    /// accept them.
    pub const fn is_dirty(self) -> bool {
        self.frame().is_some() && self.0 & (WRITING | STORED) == 0
    }
    const fn is_bad(self) -> bool {
        self.0 & BAD != 0
    }
    const fn with_frame(self, frame: Pfn) -> Self {
        Self(self.0 & !FRAME | frame.0 & FRAME)
    }
}

impl core::fmt::Debug for SlotWord {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mark = |is: bool, name: &'static str| if is { name } else { "" };
        let (writing, stored) = (mark(self.is_writing(), " writing"), mark(self.is_stored(), " stored"));
        let (ahead, bad) = (mark(self.is_ahead(), " ahead"), mark(self.is_bad(), " bad"));
        write!(f, "{} entries, {:?}{writing}{stored}{ahead}{bad}", self.entries(), self.frame())
    }
}

/// More entries lead to a slot than can be counted: 1,048,575.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooMany;

/// Fault that read a frame into the swap cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadFor {
    /// A fault of this page.
    Fault,
    /// A fault of a neighbour.
    Ahead,
}

/// Result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrote {
    /// The store has the bytes.
    Stored,
    /// The store does not have the bytes, and will not take other bytes here either.
    Failed,
    /// The store was not asked.
    Abandoned,
}

struct Cluster {
    words: Box<[SlotWord; CLUSTER as usize]>,
    /// The account that pays for a slot in use.
    payers: Box<[AccountId; CLUSTER as usize]>,
    free: u16,
    /// Slots with a frame: one bit each.
    cached: [u64; CLUSTER as usize / 64],
}

/// A set of numbers below a bound: a bit each, and above them a bit for each word that is not 0.
struct Bits {
    words: Vec<u64>,
    used: Vec<u64>,
}

impl Bits {
    fn new(bound: usize) -> Result<Self, OutOfMemory> {
        let zeroes = |count: usize| {
            let mut words = Vec::new();
            words.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
            words.resize(count, 0u64);
            Ok(words)
        };
        let count = bound.div_ceil(64);
        Ok(Self { words: zeroes(count)?, used: zeroes(count.div_ceil(64))? })
    }
    fn set(&mut self, number: usize, is: bool) {
        let word = &mut self.words[number / 64];
        *word = *word & !(1 << (number % 64)) | u64::from(is) << (number % 64);
        let (at, used) = (number / 64, *word != 0);
        self.used[at / 64] = self.used[at / 64] & !(1 << (at % 64)) | u64::from(used) << (at % 64);
    }
    /// The first number of the set from `from` on.
    fn next(&self, from: usize) -> Option<usize> {
        let from_bit = |words: &[u64], from: usize| {
            let word = words.get(from / 64)? & u64::MAX << (from % 64);
            (word != 0).then(|| from / 64 * 64 + word.trailing_zeros() as usize)
        };
        let here = from_bit(&self.words, from);
        here.or_else(|| {
            let from = from / 64 + 1;
            let at = from_bit(&self.used, from).or_else(|| {
                let later = self.used.iter().enumerate().skip(from / 64 + 1);
                let (at, word) = later.into_iter().find(|(_, word)| **word != 0)?;
                Some(at * 64 + word.trailing_zeros() as usize)
            })?;
            from_bit(&self.words, at * 64)
        })
    }
    /// The same, but continues from the beginning if there is none.
    fn next_around(&self, from: usize) -> Option<usize> {
        self.next(from).or_else(|| self.next(0))
    }
}

/// The slots of one area.
pub(crate) struct Slots {
    clusters: Vec<Cluster>,
    /// Slots that can hold pages.
    usable: u64,
    free: u64,
    /// Slots with a frame.
    cached: u64,
    /// The slots among these whose bytes the store did not accept.
    dirty: u64,
    /// Clusters that have only free slots; with a free slot; with a frame.
    empty: Bits,
    roomy: Bits,
    caching: Bits,
    /// The position after the slot that was taken last.
    hand: u64,
    /// The accounts that slots are charged to.
    accounts: Option<&'static Accounts>,
}

/// `CLUSTER` times the same.
fn cluster_of<T: Copy>(entry: T) -> Result<Box<[T; CLUSTER as usize]>, OutOfMemory> {
    let mut entries = Vec::new();
    entries.try_reserve_exact(CLUSTER as usize).map_err(|_| OutOfMemory)?;
    entries.resize(CLUSTER as usize, entry);
    entries.into_boxed_slice().try_into().map_err(|_| OutOfMemory)
}

impl Slots {
    /// The slots `1..end` without the `bad` ones, all free; charged to `accounts`, if there are
    /// any. Slot 0 contains a swap area's header.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(end: u64, bad: &[u64], accounts: Option<&'static Accounts>) -> Result<Self, OutOfMemory> {
        let count = end.div_ceil(CLUSTER) as usize;
        let mut clusters = Vec::new();
        clusters.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
        for _ in 0..count {
            let (words, payers) = (cluster_of(SlotWord(0))?, cluster_of(AccountId::ROOT)?);
            clusters.push(Cluster {
                words,
                payers,
                free: CLUSTER as u16,
                cached: [0; CLUSTER as usize / 64],
            });
        }
        let (mut empty, mut roomy, caching) = (Bits::new(count)?, Bits::new(count)?, Bits::new(count)?);
        (0..count)
            .for_each(|number| [&mut empty, &mut roomy].into_iter().for_each(|bits| bits.set(number, true)));
        let free = count as u64 * CLUSTER;
        let mut slots =
            Self { clusters, usable: 0, free, cached: 0, dirty: 0, empty, roomy, caching, hand: 0, accounts };
        let beyond = end..count as u64 * CLUSTER;
        for slot in bad.iter().copied().filter(|&slot| slot < end).chain(beyond).chain([0]) {
            if slots.word(slot) == SlotWord(0) {
                slots.leave_free(slot, SlotWord(BAD));
            }
        }
        slots.usable = slots.free;
        Ok(slots)
    }

    /// Slots that can hold pages.
    pub const fn usable(&self) -> u64 {
        self.usable
    }
    /// Slots that hold none.
    pub const fn free(&self) -> u64 {
        self.free
    }
    /// Frames in the swap cache.
    pub const fn cached(&self) -> u64 {
        self.cached
    }
    /// Frames whose bytes no store has.
    pub const fn dirty(&self) -> u64 {
        self.dirty
    }
    /// One more than the largest slot.
    #[cfg(test)]
    pub const fn end(&self) -> u64 {
        self.clusters.len() as u64 * CLUSTER
    }

    /// Returns the state of `slot`, or that of a bad slot where there is none.
    pub fn word(&self, slot: u64) -> SlotWord {
        let cluster = self.clusters.get((slot / CLUSTER) as usize);
        cluster.map_or(SlotWord(BAD), |cluster| cluster.words[(slot % CLUSTER) as usize])
    }

    fn set(&mut self, slot: u64, word: SlotWord) {
        if let Some(cluster) = self.clusters.get_mut((slot / CLUSTER) as usize) {
            let before = core::mem::replace(&mut cluster.words[(slot % CLUSTER) as usize], word);
            self.cached += u64::from(word.frame().is_some());
            self.cached -= u64::from(before.frame().is_some());
            self.dirty += u64::from(word.is_dirty());
            self.dirty -= u64::from(before.is_dirty());
            if word.frame().is_some() != before.frame().is_some() {
                cluster.cached[(slot % CLUSTER) as usize / 64] ^= 1 << (slot % 64);
                let caches = cluster.cached.iter().any(|&bits| bits != 0);
                self.caching.set((slot / CLUSTER) as usize, caches);
            }
        }
    }
    fn leave_free(&mut self, slot: u64, word: SlotWord) {
        let cluster = &mut self.clusters[(slot / CLUSTER) as usize];
        cluster.free -= 1;
        let is_roomy = cluster.free > 0;
        self.empty.set((slot / CLUSTER) as usize, false);
        self.roomy.set((slot / CLUSTER) as usize, is_roomy);
        self.free -= 1;
        self.set(slot, word);
    }
    fn become_free(&mut self, slot: u64) {
        self.set(slot, SlotWord(0));
        let cluster = &mut self.clusters[(slot / CLUSTER) as usize];
        cluster.free += 1;
        let is_empty = u64::from(cluster.free) == CLUSTER;
        self.empty.set((slot / CLUSTER) as usize, is_empty);
        self.roomy.set((slot / CLUSTER) as usize, true);
        self.free += 1;
    }

    /// Returns a free slot for the bytes of `frame`, to which the slot gets a reference, or of one
    /// that a page cache keeps: with one entry, and on its way to the store. It is the slot after
    /// the last one if possible, since pages that are evicted together are often needed together.
    /// It is charged to `payer`; `None` if that account's limit is reached.
    pub fn take(&mut self, frame: Option<Pfn>, payer: AccountId) -> Option<u64> {
        let slot = self.find_free()?;
        if let Some(accounts) = self.accounts.filter(|_| payer != AccountId::ROOT) {
            if !accounts.charge_slot(payer) {
                return None;
            }
            self.clusters[(slot / CLUSTER) as usize].payers[(slot % CLUSTER) as usize] = payer;
        }
        let word = SlotWord(ENTRY | WRITING);
        self.leave_free(slot, frame.map_or(word, |frame| word.with_frame(frame)));
        self.hand = slot;
        Some(slot)
    }

    /// Returns the account that pays for a slot in use.
    pub fn payer(&self, slot: u64) -> AccountId {
        self.clusters[(slot / CLUSTER) as usize].payers[(slot % CLUSTER) as usize]
    }

    fn find_free(&self) -> Option<u64> {
        if self.free == 0 {
            return None;
        }
        let in_cluster = |number: usize, from: u64| {
            let words = &self.clusters[number].words;
            let found = words[from as usize..].iter().position(|&word| word == SlotWord(0))?;
            Some(number as u64 * CLUSTER + from + found as u64)
        };
        let here = (self.hand / CLUSTER) as usize;
        if self.clusters[here].free > 0
            && let Some(slot) = in_cluster(here, self.hand % CLUSTER)
        {
            return Some(slot);
        }
        let other = self.empty.next_around(here + 1).or_else(|| self.roomy.next_around(here + 1))?;
        in_cluster(other, 0)
    }

    /// The first slot from `from` on that has a frame.
    pub fn next_cached(&self, from: u64) -> Option<u64> {
        let in_cluster = |number: usize, from: u64| {
            let words = self.clusters.get(number)?.cached.iter().enumerate().skip((from / 64) as usize);
            let found = words.into_iter().find_map(|(at, &bits)| {
                let below = if at as u64 == from / 64 { from % 64 } else { 0 };
                let bits = bits & u64::MAX << below;
                (bits != 0).then(|| at as u64 * 64 + u64::from(bits.trailing_zeros()))
            })?;
            Some(number as u64 * CLUSTER + found)
        };
        let here = (from / CLUSTER) as usize;
        in_cluster(here, from % CLUSTER)
            .or_else(|| self.caching.next(here + 1).and_then(|number| in_cluster(number, 0)))
    }

    /// One more entry leads to `slot`, which has some or a frame.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn enter(&mut self, slot: u64) -> Result<(), TooMany> {
        let word = self.word(slot);
        if word.entries() == ENTRIES {
            return Err(TooMany);
        }
        self.set(slot, SlotWord(word.0 + ENTRY));
        Ok(())
    }

    /// Drops one entry. If the slot is free now and had a frame, returns the frame; the caller
    /// drops its reference.
    #[must_use = "the slot's reference is the caller's"]
    pub fn leave(&mut self, slot: u64) -> Option<Pfn> {
        let word = self.word(slot);
        assert!(word.entries() > 0, "an entry led to slot {slot}, which has none: {word:?}");
        let left = SlotWord(word.0 - ENTRY);
        if left.entries() > 0 || left.is_writing() {
            self.set(slot, left);
            return None;
        }
        self.free_or_retire(slot, left);
        word.frame()
    }

    /// Reports the result of a write of `slot`. If the slot is free now, returns its frame; the
    /// caller drops the reference.
    #[must_use = "the slot's reference is the caller's"]
    pub fn wrote(&mut self, slot: u64, how: Wrote) -> Option<Pfn> {
        let word = SlotWord(self.word(slot).0 & !WRITING);
        let word = match how {
            Wrote::Stored => SlotWord(word.0 | STORED),
            Wrote::Failed => SlotWord(word.0 | BAD),
            Wrote::Abandoned => word,
        };
        if word.entries() > 0 {
            self.set(slot, word);
            return None;
        }
        self.free_or_retire(slot, word);
        word.frame()
    }

    fn free_or_retire(&mut self, slot: u64, word: SlotWord) {
        let payers = &mut self.clusters[(slot / CLUSTER) as usize].payers;
        let payer = core::mem::take(&mut payers[(slot % CLUSTER) as usize]);
        if payer != AccountId::ROOT
            && let Some(accounts) = self.accounts
        {
            accounts.uncharge_slot(payer);
        }
        if word.is_bad() {
            self.set(slot, SlotWord(BAD));
            self.usable -= 1;
        } else {
            self.become_free(slot);
        }
    }

    /// `frame` has the bytes of `slot`, which has none: the slot gets a reference to it.
    pub fn put(&mut self, slot: u64, frame: Pfn, read_for: ReadFor) {
        let ahead = if read_for == ReadFor::Ahead { AHEAD } else { 0 };
        self.set(slot, SlotWord(self.word(slot).0 & !AHEAD | ahead).with_frame(frame));
    }

    /// Notes a use of the frame of `slot`. Returns whether it is the first one since the frame was
    /// read ahead.
    pub fn note_hit(&mut self, slot: u64) -> bool {
        let word = self.word(slot);
        if word.is_ahead() {
            self.set(slot, SlotWord(word.0 & !AHEAD));
        }
        word.is_ahead()
    }

    /// Removes the frame of `slot` if the store has its bytes, too; the caller gets the reference.
    #[must_use = "the slot's reference is the caller's"]
    pub fn forget_frame(&mut self, slot: u64) -> Option<Pfn> {
        let word = self.word(slot);
        let frame = word.frame().filter(|_| word.is_stored() && !word.is_writing())?;
        self.set(slot, SlotWord(word.0 & !(FRAME | AHEAD)));
        Some(frame)
    }

    /// Number of used slots that are charged to an account.
    #[cfg(test)]
    pub fn paid(&self) -> u64 {
        let all = self.clusters.iter().flat_map(|cluster| cluster.words.iter().zip(cluster.payers.iter()));
        let paid = all.filter(|(_, payer)| **payer != AccountId::ROOT);
        paid.inspect(|(word, _)| assert!(word.0 & !BAD != 0, "somebody pays for a free slot")).count() as u64
    }
    /// Count everything again, and searches for invalid words. Returns the number of entries of all
    /// slots.
    ///
    /// # Panics
    /// Where something does not agree.
    #[cfg(test)]
    pub fn validate(&self) -> u64 {
        let (mut free, mut cached, mut bad, mut entries) = (0, 0, 0, 0);
        let mut dirty = 0;
        for (number, cluster) in self.clusters.iter().enumerate() {
            let unused = cluster.words.iter().filter(|&&word| word == SlotWord(0)).count() as u64;
            assert_eq!(u64::from(cluster.free), unused, "free slots of cluster {number}");
            free += unused;
            let is_in = |bits: &Bits| bits.next(number) == Some(number);
            assert_eq!(is_in(&self.empty), unused == CLUSTER, "whether cluster {number} is empty");
            assert_eq!(is_in(&self.roomy), unused > 0, "whether cluster {number} has room");
            let has_frame = cluster.words.iter().any(|word| word.frame().is_some());
            assert_eq!(is_in(&self.caching), has_frame, "whether cluster {number} has a frame");
            for (slot, &word) in (number as u64 * CLUSTER..).zip(cluster.words.iter()) {
                cached += u64::from(word.frame().is_some());
                assert_eq!(self.next_cached(slot) == Some(slot), word.frame().is_some(), "slot {slot}");
                dirty += u64::from(word.is_dirty());
                entries += word.entries();
                let (used, has_frame) = (word.entries() > 0, word.frame().is_some());
                let sound = match (used, has_frame) {
                    (true, true) => !(word.is_writing() && word.is_stored()),
                    (true, false) => word.is_stored() != word.is_writing() && !word.is_ahead(),
                    (false, true) => word.is_writing(),
                    (false, false) => word == SlotWord(0) || word == SlotWord(BAD),
                };
                bad += u64::from(word == SlotWord(BAD));
                assert!(sound, "slot {slot} is {word:?}");
            }
        }
        assert_eq!((free, cached, dirty), (self.free, self.cached, self.dirty));
        assert_eq!(self.usable + bad, self.end(), "slots that are neither usable nor bad");
        entries
    }
}
