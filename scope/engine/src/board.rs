//! A CPU's board: the words that change at every block of code.
//!
//! What a block does to the counts is said once, by [`Watch::steps`](crate::Watch::steps): words to
//! add to, and calls that are due only where a word says so. Whoever runs the guest chooses one of
//! two ways, which count the same:
//! - it calls [`Cpu::block`](crate::Cpu::block) at every block, which takes the steps itself;
//! - it takes them without a call, as code that it makes for the block (QEMU 9.1 and later can),
//!   and makes the call that a step names where its condition holds.
//!
//! Runs of each block are counted beside the board: by [`Cpu::block`](crate::Cpu::block), or by
//! whoever takes the steps.
//!
//! A board begins as zeroes. It is its CPU's thread's. Another thread may store [`NONE`] as the
//! page of code, and nothing else: the CPU then looks up at its next block. Should that store be
//! lost to one of the CPU's own, it looks up after [`LOOK`] instructions all the same. At the end,
//! when no CPU runs, another thread reads everything.

use std::sync::atomic::{AtomicU64, Ordering};

use freehold_scope_record::Settings;

use crate::guest::{MAX_NODES, NOWHERE};
use crate::tally::KERNEL;
use crate::watch::WatchedBlock;

/// The words of one CPU. They are anybody's memory, and stay where they are.
pub type Board = &'static [AtomicU64];

/// Instructions after which a CPU looks at the machine's clock.
pub(crate) const LOOK: u64 = 4096;
/// No page of code, no line: they are told by their number and 1.
const NONE: u64 = 0;

/// Instructions since the CPU looked at the machine's clock.
const RECENT: usize = 0;
/// The page number of the code that runs.
const PAGE: usize = 1;
/// Not 0 while the kernel runs with RFLAGS.AC set; what programs do with it is not followed.
const AC: usize = 2;
/// Instructions by mode and node, since they were settled.
const FETCHES: usize = 3;
/// The first level of instruction caches, direct-mapped: the line in each place.
const LINES: usize = FETCHES + 2 * (MAX_NODES + 1);

/// One thing to do when a block runs. Words are told by their index in the board.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Add to a word.
    Add {
        /// Which.
        word: usize,
        /// How much.
        amount: u64,
    },
    /// Call, unless the word has the value.
    Unless {
        /// Which.
        word: usize,
        /// The value.
        equals: u64,
        /// What is due.
        due: Due,
    },
    /// Call, once the word has come so far.
    From {
        /// Which.
        word: usize,
        /// Unsigned.
        least: u64,
        /// What is due.
        due: Due,
    },
}

/// Which call is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// [`Cpu::page`](crate::Cpu::page) with the block: the code of another page than before runs.
    Page,
    /// [`Cpu::look`](crate::Cpu::look): the machine's clock has to be told.
    Look,
    /// [`Cpu::line`](crate::Cpu::line): a line is not in the first level.
    Line {
        /// Its number among lines.
        line: u64,
        /// The block's mode.
        mode: usize,
    },
    /// [`Cpu::smap`](crate::Cpu::smap) with the block: the kernel runs it with SMAP off.
    Smap,
}

/// How many words a board needs: a power of two, which the emulator multiplies by.
pub fn board_words(settings: &Settings) -> usize {
    (LINES + lines(settings)).next_power_of_two()
}

/// Lines of the first level: a power of two.
pub(crate) fn lines(settings: &Settings) -> usize {
    settings.models.cache.map_or(1, |cache| (cache.first.size / cache.line) as usize)
}

/// The steps of a block, in their order, for a first level of `lines` lines.
pub(crate) fn steps(block: &WatchedBlock, lines: usize) -> impl Iterator<Item = Step> + use<> {
    let amount = block.instructions;
    let place = move |line: u64| LINES + (line as usize & (lines - 1));
    let before = [
        Step::Add { word: RECENT, amount },
        Step::Unless { word: PAGE, equals: block.page + 1, due: Due::Page },
        Step::From { word: RECENT, least: LOOK, due: Due::Look },
        Step::Add { word: fetches(block.mode, block.node), amount },
    ];
    let mode = block.mode;
    let line =
        move |line| Step::Unless { word: place(line), equals: line + 1, due: Due::Line { line, mode } };
    let [own, further] = block.lines.map(|(first, end)| first..end);
    let smap = (block.mode == KERNEL).then_some(Step::Unless { word: AC, equals: 0, due: Due::Smap });
    before.into_iter().chain(smap).chain(own.chain(further).map(line))
}

const fn fetches(mode: usize, node: usize) -> usize {
    FETCHES + (mode & 1) * (MAX_NODES + 1) + if node < NOWHERE { node } else { NOWHERE }
}

/// A board in its CPU's hands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    words: Board,
    /// Lines of the first level, less one.
    mask: usize,
}

impl Own {
    pub(crate) fn new(words: Board, lines: usize) -> Self {
        Self { words, mask: lines - 1 }
    }
    #[inline]
    fn get(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }
    #[inline]
    fn set(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Relaxed);
    }
    fn take(&self, word: usize) -> u64 {
        let value = self.get(word);
        self.set(word, 0);
        value
    }

    /// Instructions since the last look.
    #[inline]
    pub(crate) fn recent(&self) -> u64 {
        self.get(RECENT)
    }
    pub(crate) fn take_recent(&self) -> u64 {
        self.take(RECENT)
    }
    /// A block of so many instructions runs.
    #[inline]
    pub(crate) fn add_recent(&self, instructions: u64) -> u64 {
        let recent = self.recent() + instructions;
        self.set(RECENT, recent);
        recent
    }
    #[inline]
    pub(crate) fn add_fetches(&self, mode: usize, node: usize, instructions: u64) {
        let word = fetches(mode, node);
        self.set(word, self.get(word) + instructions);
    }
    pub(crate) fn take_fetches(&self, mode: usize, node: usize) -> u64 {
        self.take(fetches(mode, node))
    }
    /// Whether the kernel runs with RFLAGS.AC set.
    #[inline]
    pub(crate) fn has_ac(&self) -> bool {
        self.get(AC) != 0
    }
    /// RFLAGS.AC is set where it was clear, or the other way round.
    pub(crate) fn flip_ac(&self) {
        self.set(AC, u64::from(!self.has_ac()));
    }
    /// Whether the code that runs is in this page.
    #[inline]
    pub(crate) fn is_in(&self, page: u64) -> bool {
        self.get(PAGE) == page + 1
    }
    pub(crate) fn enter(&self, page: u64) {
        self.set(PAGE, page + 1);
    }
    /// The next block is in no page that is known.
    pub(crate) fn forget_page(&self) {
        self.set(PAGE, NONE);
    }
    /// Put a line into the first level; whether it was there.
    #[inline]
    pub(crate) fn put_line(&self, line: u64) -> bool {
        let place = LINES + (line as usize & self.mask);
        let there = self.get(place) == line + 1;
        if !there {
            self.set(place, line + 1);
        }
        there
    }
}

/// Have a CPU look up at its next block. From any thread.
pub(crate) fn nudge(board: Board) {
    board[PAGE].store(NONE, Ordering::Relaxed);
}
