//! The pages of a mapping: runs of pages in a row.

use core::ops::Range;

use freehold_machine::{PAGE_SIZE, Pfn};

/// The most runs of a mapping. Where memory lies in more pieces a mapping is shorter.
pub const MAX_RUNS: usize = 16;

/// Pages in a row of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub pfn: Pfn,
    pub segment: u16,
    pub first: u8,
    pub count: u8,
}

/// Some bytes in a row, in whole pages or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The frame of the first byte.
    pub frame: Pfn,
    /// The byte's offset in it.
    pub offset: usize,
    /// Bytes; the following frames hold what does not fit in the first.
    pub length: usize,
}

/// A list of runs, in the order of the mapping's bytes.
#[derive(Clone, Debug)]
pub(crate) struct Runs {
    list: [Run; MAX_RUNS],
    count: u8,
}

impl Runs {
    pub const fn new() -> Self {
        Self { list: [Run { pfn: Pfn(0), segment: 0, first: 0, count: 0 }; MAX_RUNS], count: 0 }
    }
    pub const fn is_full(&self) -> bool {
        self.count as usize == MAX_RUNS
    }
    /// Adds a run; there is room.
    pub fn push(&mut self, run: Run) {
        self.list[self.count as usize] = run;
        self.count += 1;
    }
    pub fn iter(&self) -> impl Iterator<Item = &Run> {
        self.list[..self.count as usize].iter()
    }
    pub fn last(&self) -> Option<&Run> {
        self.list[..self.count as usize].last()
    }
    pub fn pages(&self) -> usize {
        self.iter().map(|run| usize::from(run.count)).sum()
    }

    /// The bytes of `range`, counted from `start` bytes into the first page, as pieces; runs that touch are one.
    pub fn pieces(&self, start: usize, range: Range<usize>) -> impl Iterator<Item = Piece> {
        let (mut at, end) = (start + range.start, start + range.end);
        let mut runs = self.iter().peekable();
        let mut base = 0;
        core::iter::from_fn(move || {
            while at < end {
                let run = runs.next()?;
                let mut pages = usize::from(run.count);
                while runs.peek().is_some_and(|next| next.pfn.0 == run.pfn.0 + pages as u64) {
                    pages += runs.next().map_or(0, |next| usize::from(next.count));
                }
                let (first, bytes) = (base, pages * PAGE_SIZE);
                base += bytes;
                if at >= base {
                    continue;
                }
                let offset = at - first;
                let length = (bytes - offset).min(end - at);
                at += length;
                let frame = run.pfn.offset((offset / PAGE_SIZE) as u64);
                return Some(Piece { frame, offset: offset % PAGE_SIZE, length });
            }
            None
        })
    }
}
