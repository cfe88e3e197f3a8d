//! A CPU's own lists of free blocks: array stacks that only that CPU touches.
//!
//! A hit costs no lock, no atomic read-modify-write, and only this CPU's cache lines (and the block's record). With shuffle on, a hit
//! takes the block at a random place of the list instead of the top, so that neither the order in which blocks were put in nor the last
//! free says what comes out; without, the same code runs with a range of one.
//!
//! **Who may call.** The CPU itself, pinned; interrupt handlers never do. Other CPUs may read the lengths, as hints, and raise
//! the drain flag, which the owner serves when it next passes [`Buddy::poll`](crate::Buddy::poll) or runs out.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{Order, Owner, Side};
use freehold_machine::Pfn;

use crate::word::Plain;

/// Lists of one CPU.
pub(crate) const LISTS: usize = 12;
/// Lists for single frames, which come first.
const SINGLES: usize = 4;
/// Blocks of other nodes that wait to go home.
pub(crate) const FOREIGN: usize = 64;
/// Most single frames that one refill gets: a whole pageblock.
const MOST: u64 = 512;

const KEY: usize = 0;
const TAKEN: usize = 1;
const GIVEN: usize = 2;
const DRAIN: usize = 3;
const FOREIGN_LEN: usize = 4;
const REFILLS: usize = 5;
const LENS: usize = 8;
const BATCHES: usize = LENS + LISTS;
const FOREIGN_AT: usize = 32;
const STACKS: usize = FOREIGN_AT + FOREIGN;

/// What a list holds and where it is in a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) class: Owner,
    pub(crate) order: u32,
    offset: usize,
    /// Most blocks in one refill.
    pub(crate) batch: u64,
    /// Room; twice the batch. 0: not used on this machine.
    pub(crate) room: u64,
}

/// Which list serves an order and an owner; 255: none.
const SERVES: [[u8; Owner::COUNT]; 10] = {
    let mut table = [[u8::MAX; Owner::COUNT]; 10];
    table[0][Owner::Kernel as usize] = 0;
    table[0][Owner::PageTable as usize] = 1;
    table[0][Owner::Anon as usize] = 2;
    table[0][Owner::PageCache as usize] = 3;
    let orders = [1, 2, 3, 9];
    let mut index = 0;
    while index < orders.len() {
        let (kernel, user) = ((SINGLES + 2 * index) as u8, (SINGLES + 2 * index + 1) as u8);
        table[orders[index]][Owner::Kernel as usize] = kernel;
        table[orders[index]][Owner::PageTable as usize] = kernel;
        table[orders[index]][Owner::Anon as usize] = user;
        table[orders[index]][Owner::PageCache as usize] = user;
        index += 1;
    }
    table
};

/// The shapes of all lanes of a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shapes {
    shapes: [Shape; LISTS],
    /// Words in a lane.
    pub(crate) words: usize,
}

impl Shapes {
    /// Lists for a machine with `frames` of memory and `cpus`: at most 1/128 of a CPU's share in a batch of single frames.
    pub(crate) fn of(frames: u64, cpus: usize) -> Self {
        let share = frames / cpus.max(1) as u64;
        let singles = (share / 128).clamp(8, MOST);
        let mut offset = STACKS;
        let shapes = core::array::from_fn(|index| {
            let (class, order) = match index {
                0 => (Owner::Kernel, 0),
                1 => (Owner::PageTable, 0),
                2 => (Owner::Anon, 0),
                3 => (Owner::PageCache, 0),
                _ => (
                    if index % 2 == 0 { Owner::Kernel } else { Owner::Anon },
                    [1, 2, 3, 9][(index - SINGLES) / 2],
                ),
            };
            let batch = match order {
                0 => singles,
                9 => (share / MOST / 64).min(8),
                _ => singles >> (order + 1),
            };
            let shape = Shape { class, order, offset, batch, room: 2 * batch };
            offset += shape.room as usize;
            shape
        });
        Self { shapes, words: offset.next_multiple_of(8) }
    }
    /// The list for blocks of `order` of `owner`.
    #[inline]
    pub(crate) fn serving(&self, order: Order, owner: Owner) -> Option<usize> {
        let list = usize::from(SERVES.get(order.log2() as usize)?[owner as usize]);
        (list < LISTS && self.shapes[list].room > 0).then_some(list)
    }
    #[inline]
    pub(crate) fn shape(&self, list: usize) -> &Shape {
        &self.shapes[list]
    }
}

/// One CPU's lists. See the module's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane<'a> {
    words: &'a [AtomicU64],
    shapes: &'a Shapes,
    /// All ones: take at random. 0: take the top.
    spread: u64,
}

impl<'a> Lane<'a> {
    pub(crate) const fn new(words: &'a [AtomicU64], shapes: &'a Shapes, spread: u64) -> Self {
        Self { words, shapes, spread }
    }
    pub(crate) fn len(&self, list: usize) -> u64 {
        self.words[LENS + list].get()
    }
    fn slot(&self, list: usize, index: u64) -> &AtomicU64 {
        &self.words[self.shapes.shape(list).offset + index as usize]
    }
    /// Take a block.
    #[inline]
    pub(crate) fn pop(&self, list: usize) -> Option<Pfn> {
        let len = self.words[LENS + list].get();
        let last = len.checked_sub(1)?;
        let taken = self.words[TAKEN].get();
        self.words[TAKEN].set(taken + 1);
        // A counter, keyed anew at every refill; the multiply-high leaves a bias below 2^-53 for lists of at most 1,024.
        let mut mix = (taken ^ self.words[KEY].get()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mix = (mix ^ (mix >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let back = (u128::from(mix & self.spread) * u128::from(len)) >> 64;
        let slot = self.slot(list, last - back as u64);
        let block = slot.get();
        slot.set(self.slot(list, last).get());
        self.words[LENS + list].set(last);
        Some(Pfn(block))
    }
    /// Put a block in. `false` if there is no room.
    #[inline]
    #[must_use]
    pub(crate) fn push(&self, list: usize, block: Pfn) -> bool {
        let len = self.words[LENS + list].get();
        if len >= self.shapes.shape(list).room {
            return false;
        }
        self.slot(list, len).set(block.0);
        self.words[LENS + list].set(len + 1);
        true
    }
    /// Take the block that has been in longest, or any with shuffle on: for what leaves the list without being used.
    pub(crate) fn evict(&self, list: usize, count: u64, mut out: impl FnMut(Pfn)) {
        let count = count.min(self.len(list));
        if self.spread == u64::MAX {
            for _ in 0..count {
                self.pop(list).into_iter().for_each(&mut out);
            }
            return;
        }
        let rest = self.len(list) - count;
        (0..count).for_each(|index| out(Pfn(self.slot(list, index).get())));
        (0..rest).for_each(|index| self.slot(list, index).set(self.slot(list, index + count).get()));
        self.words[LENS + list].set(rest);
    }
    pub(crate) fn count_given(&self) {
        self.words[GIVEN].add(1);
    }
    pub(crate) fn count_taken(&self) {
        self.words[TAKEN].add(1);
    }
    /// Blocks taken and given back through this lane, ever.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.words[TAKEN].get(), self.words[GIVEN].get())
    }
    pub(crate) fn set_key(&self, key: u64) {
        self.words[KEY].set(key);
    }
    /// How many blocks to get now: doubles with each refill that no drain came before.
    pub(crate) fn grow(&self, list: usize) -> u64 {
        self.words[REFILLS].add(1);
        let most = self.shapes.shape(list).batch;
        let word = &self.words[BATCHES + list];
        let now = word.get().clamp(most.min(8), most);
        word.set((now * 2).min(most));
        now
    }
    /// Ask for less next time.
    pub(crate) fn shrink(&self, list: usize) {
        let word = &self.words[BATCHES + list];
        word.set(word.get() / 2);
    }
    /// Refills since the last call.
    pub(crate) fn refills(&self) -> u64 {
        let count = self.words[REFILLS].get();
        self.words[REFILLS].set(0);
        count
    }
    /// Put away a block of another node. `false` if there is no room.
    #[must_use]
    pub(crate) fn push_foreign(&self, block: Pfn, order: u32) -> bool {
        let len = self.words[FOREIGN_LEN].get();
        if len >= FOREIGN as u64 {
            return false;
        }
        self.words[FOREIGN_AT + len as usize].set(block.0 << 5 | u64::from(order));
        self.words[FOREIGN_LEN].set(len + 1);
        true
    }
    /// Take all blocks of other nodes.
    pub(crate) fn take_foreign(&self, mut out: impl FnMut(Pfn, u32)) {
        for index in 0..self.words[FOREIGN_LEN].get() as usize {
            let entry = self.words[FOREIGN_AT + index].get();
            out(Pfn(entry >> 5), (entry & 31) as u32);
        }
        self.words[FOREIGN_LEN].set(0);
    }
    pub(crate) fn foreign(&self) -> impl Iterator<Item = (Pfn, u32)> + use<'a> {
        let entries = &self.words[FOREIGN_AT..][..self.words[FOREIGN_LEN].get() as usize];
        entries.iter().map(|entry| (Pfn(entry.get() >> 5), (entry.get() & 31) as u32))
    }
    /// The blocks of a list.
    pub(crate) fn iter(&self, list: usize) -> impl Iterator<Item = Pfn> {
        (0..self.len(list)).map(move |index| Pfn(self.slot(list, index).get()))
    }
    /// Frames in this lane.
    pub(crate) fn frames(&self) -> u64 {
        let lists: u64 = (0..LISTS).map(|list| self.len(list) << self.shapes.shape(list).order).sum();
        lists + self.foreign().map(|(_, order)| 1 << order).sum::<u64>()
    }
    /// Ask the CPU to give its blocks back. Any CPU calls this.
    pub(crate) fn request_drain(&self) {
        self.words[DRAIN].store(1, Ordering::Relaxed);
    }
    /// Whether it was asked, since the last call.
    pub(crate) fn drain_requested(&self) -> bool {
        self.words[DRAIN].get() != 0 && self.words[DRAIN].swap(0, Ordering::Relaxed) != 0
    }
    pub(crate) const fn side(&self, list: usize) -> Side {
        self.shapes.shapes[list].class.side()
    }
}
