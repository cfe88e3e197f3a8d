//! A CPU's board: the words that change at every block of code.
//!
//! [`Watch::steps`](crate::Watch::steps) alone defines the effect of a block on the counts: words
//! to add to, and calls that are due only if a word has a certain value. The caller that runs the
//! guest chooses one of two ways, which count the same:
//! - it calls [`Cpu::block`](crate::Cpu::block) at every block, which takes the steps itself;
//! - it takes them without a call, as code that it makes for the block (QEMU 9.1 and later can),
//!   and makes the call that a step names where its condition holds.
//!
//! Runs of each block are counted outside the board: by [`Cpu::block`](crate::Cpu::block), or by
//! the caller that takes the steps.
//!
//! A board begins as zeroes. A board belongs to its CPU's thread. Another thread may store only
//! [`NONE`] as the page of code: the CPU then looks up at its next block. If a store of the CPU
//! itself overwrites that value, the CPU still looks up after [`LOOK`] instructions. At the end,
//! when no CPU runs, another thread reads everything.

use std::sync::atomic::{AtomicU64, Ordering};

use freehold_scope_record::Settings;

use crate::guest::{MAX_NODES, NOWHERE};
use crate::tally::KERNEL;
use crate::watch::WatchedBlock;

/// The words of one CPU, in memory that outlives the run and does not move.
pub type Board = &'static [AtomicU64];

/// Instructions after which a CPU looks at the machine's clock.
pub(crate) const LOOK: u64 = 4096;
/// No page of code, no line. Pages and lines are stored as their number plus one.
const NONE: u64 = 0;

/// Index of the count of instructions since the CPU looked at the machine's clock.
const RECENT: usize = 0;
/// Index of the page number of the code that runs.
const PAGE: usize = 1;
/// Index of RFLAGS.AC: not 0 while the kernel runs with AC set; AC of programs is not followed.
const AC: usize = 2;
/// First index of the instructions by mode and node, since they were settled.
const FETCHES: usize = 3;
/// First index of the first level of instruction caches, direct-mapped: the line in each place.
const LINES: usize = FETCHES + 2 * (MAX_NODES + 1);

/// One action when a block runs. Words are named by their index in the board.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Add to a word.
    Add {
        /// Index of the word.
        word: usize,
        /// The addend.
        amount: u64,
    },
    /// Call, unless the word has the value.
    Unless {
        /// Index of the word.
        word: usize,
        /// The value.
        equals: u64,
        /// The call that is due.
        due: Due,
    },
    /// Call, once the word is at least this large.
    From {
        /// Index of the word.
        word: usize,
        /// The least value, unsigned.
        least: u64,
        /// The call that is due.
        due: Due,
    },
}

/// Kinds of calls that may be due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// [`Cpu::page`](crate::Cpu::page) with the block: the code of another page than before runs.
    Page,
    /// [`Cpu::look`](crate::Cpu::look): the CPU has to report to the machine's clock.
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

/// Returns the number of words of a board: a power of two, which the emulator multiplies by.
pub fn board_words(settings: &Settings) -> usize {
    (LINES + lines(settings)).next_power_of_two()
}

/// Returns the number of lines of the first level: a power of two.
pub(crate) fn lines(settings: &Settings) -> usize {
    settings.models.cache.map_or(1, |cache| (cache.first.size / cache.line) as usize)
}

/// Returns the steps of a block, in their order, for a first level of `lines` lines.
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

/// A board that its CPU uses.
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

    /// Returns the instructions since the last look.
    #[inline]
    pub(crate) fn recent(&self) -> u64 {
        self.get(RECENT)
    }
    pub(crate) fn take_recent(&self) -> u64 {
        self.take(RECENT)
    }
    /// Counts a block of so many instructions; returns the instructions since the last look.
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
    /// Returns whether the kernel runs with RFLAGS.AC set.
    #[inline]
    pub(crate) fn has_ac(&self) -> bool {
        self.get(AC) != 0
    }
    /// Inverts RFLAGS.AC.
    pub(crate) fn flip_ac(&self) {
        self.set(AC, u64::from(!self.has_ac()));
    }
    /// Returns whether the running code is in this page.
    #[inline]
    pub(crate) fn is_in(&self, page: u64) -> bool {
        self.get(PAGE) == page + 1
    }
    pub(crate) fn enter(&self, page: u64) {
        self.set(PAGE, page + 1);
    }
    /// Forgets the page of code, so that the next block is in no known page.
    pub(crate) fn forget_page(&self) {
        self.set(PAGE, NONE);
    }
    /// Puts a line into the first level; returns whether it was there.
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

/// Makes a CPU look up at its next block. Callable from any thread.
pub(crate) fn nudge(board: Board) {
    board[PAGE].store(NONE, Ordering::Relaxed);
}
