//! The pages of a mapping: runs of adjacent pages.

use alloc::vec::Vec;
use core::ops::Range;
use core::slice;

use freehold_machine::{PAGE_SIZE, Pfn};

use crate::constraint::Boundary;

/// Largest number of runs of a mapping. If memory lies in more pieces, a mapping is shorter.
pub const MAX_RUNS: usize = 16;

/// Adjacent pages of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub pfn: Pfn,
    pub segment: u16,
    pub first: u8,
    pub count: u8,
}

/// Contiguous bytes: whole pages or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The frame of the first byte.
    pub frame: Pfn,
    /// That byte's offset in the frame.
    pub offset: usize,
    /// Length in bytes; bytes that do not fit in the first frame are in the following ones.
    pub length: usize,
}

/// A list of runs, in the order of the mapping's bytes. The first run is stored in the list itself,
/// since most mappings have only one, and the list is moved often. The others are on the heap.
#[derive(Debug)]
pub(crate) struct FrameRuns {
    /// Has no pages if the list is empty.
    first: Run,
    others: Vec<Run>,
}

impl FrameRuns {
    pub const fn new() -> Self {
        Self { first: Run { pfn: Pfn(0), segment: 0, first: 0, count: 0 }, others: Vec::new() }
    }
    /// A list of one run.
    pub const fn one(run: Run) -> Self {
        Self { first: run, others: Vec::new() }
    }
    /// Makes room for one more run; returns whether that succeeded: there are fewer than
    /// [`MAX_RUNS`] runs, and memory for the entry.
    pub fn make_room(&mut self) -> bool {
        let others = self.others.len();
        self.first.count == 0
            || others < self.others.capacity()
            || others < MAX_RUNS - 1 && self.others.try_reserve_exact(MAX_RUNS - 1 - others).is_ok()
    }
    /// Returns the number of pages that each further run must have on average, so that the list can
    /// take `pages` more.
    pub fn average_of(&self, pages: usize) -> usize {
        let runs = usize::from(self.first.count > 0) + self.others.len();
        pages.div_ceil(MAX_RUNS.saturating_sub(runs).max(1))
    }
    /// Adds a run. The caller has made room.
    pub fn push(&mut self, run: Run) {
        if self.first.count == 0 {
            self.first = run;
        } else {
            self.others.push(run);
        }
    }
    /// The first run; it has no pages if the list is empty.
    pub const fn first(&self) -> &Run {
        &self.first
    }
    pub fn last(&self) -> &Run {
        self.others.last().unwrap_or(&self.first)
    }
    pub fn iter(&self) -> impl Iterator<Item = &Run> {
        let first = (self.first.count > 0).then_some(&self.first);
        first.into_iter().chain(&self.others)
    }
    pub fn pages(&self) -> usize {
        let others = self.others.iter().map(|run| usize::from(run.count)).sum::<usize>();
        usize::from(self.first.count) + others
    }

    /// The bytes of `range` as one piece, if all of them are in the first run.
    #[inline]
    pub fn in_first(&self, range: Range<usize>) -> Option<Piece> {
        let is_in = range.start <= range.end && range.end <= usize::from(self.first.count) * PAGE_SIZE;
        is_in.then(|| {
            let frame = self.first.pfn.offset((range.start / PAGE_SIZE) as u64);
            Piece { frame, offset: range.start % PAGE_SIZE, length: range.end - range.start }
        })
    }

    /// The bytes of `range`, counted from `start` bytes into the first page, as pieces that cross
    /// no multiple of `boundary`. Runs that touch are one.
    #[inline]
    pub fn pieces(&self, start: usize, range: Range<usize>, boundary: Option<Boundary>) -> Pieces<'_> {
        let left = range.end.saturating_sub(range.start);
        let (skip, others) = (start + range.start, self.others.iter());
        // Usually all bytes are in the first run.
        match self.in_first(skip..skip + left) {
            None => Pieces { next: Some(&self.first), others, skip, left, boundary, rest: None },
            Some(piece) => {
                let rest = (left > 0).then_some(piece);
                Pieces { next: None, others, skip: 0, left: 0, boundary, rest }
            }
        }
    }
}

/// Walks over some bytes of a list of runs.
pub(crate) struct Pieces<'a> {
    next: Option<&'a Run>,
    /// The runs after `next`.
    others: slice::Iter<'a, Run>,
    /// Number of bytes to skip at the beginning of `next` and the later runs.
    skip: usize,
    /// Number of bytes to return after them.
    left: usize,
    boundary: Option<Boundary>,
    /// A piece that was found but not returned yet, for example the part of the last one after a
    /// boundary.
    rest: Option<Piece>,
}

impl Pieces<'_> {
    /// Returns the next bytes that are contiguous, across any boundary.
    #[inline(never)]
    fn stretch(&mut self) -> Option<Piece> {
        while self.left > 0 {
            let run = self.next?;
            let mut pages = u64::from(run.count);
            self.next = self.others.next();
            while let Some(next) = self.next
                && next.pfn == run.pfn.offset(pages)
            {
                pages += u64::from(next.count);
                self.next = self.others.next();
            }
            let bytes = pages as usize * PAGE_SIZE;
            if self.skip >= bytes {
                self.skip -= bytes;
                continue;
            }
            let offset = core::mem::take(&mut self.skip);
            let length = (bytes - offset).min(self.left);
            self.left -= length;
            let frame = run.pfn.offset((offset / PAGE_SIZE) as u64);
            return Some(Piece { frame, offset: offset % PAGE_SIZE, length });
        }
        None
    }

    /// The part of `piece` before the boundary; the rest comes next.
    fn cut(&mut self, piece: Piece, boundary: Boundary) -> Piece {
        let room = boundary.room(piece.frame.start().0 + piece.offset as u64);
        if piece.length as u64 <= room {
            return piece;
        }
        let end = piece.offset + room as usize;
        let frame = piece.frame.offset((end / PAGE_SIZE) as u64);
        self.rest = Some(Piece { frame, offset: end % PAGE_SIZE, length: piece.length - room as usize });
        Piece { length: room as usize, ..piece }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        let piece = match self.rest.take() {
            Some(piece) => piece,
            None if self.left == 0 => return None,
            None => self.stretch()?,
        };
        match self.boundary {
            None => Some(piece),
            Some(boundary) => Some(self.cut(piece, boundary)),
        }
    }
}
