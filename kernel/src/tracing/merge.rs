//! The records of several rings, in the order of their times.

use freehold_collections::{Arc, Vec};
use freehold_tracepoints::ring::{Found, RingPlace};
use freehold_tracepoints::{Line, MOST_WORDS, RecordView, Stamp};

use super::Ring;
use crate::{Result, hw};

/// A reader of one ring.
pub struct RingReader {
    cpu: usize,
    ring: Arc<Ring>,
    place: RingPlace,
    end: Option<u64>,
    /// The next record; `None` at the end.
    next: Option<Found>,
    words: Vec<u64>,
}

impl RingReader {
    /// Makes a reader that begins at `place` and stops at `end`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn new(cpu: usize, ring: Arc<Ring>, place: RingPlace, end: Option<u64>) -> Result<Self> {
        let words = Vec::try_filled(0, MOST_WORDS)?;
        let mut cursor = Self { cpu, ring, place, end, next: None, words };
        cursor.fetch();
        Ok(cursor)
    }
    fn fetch(&mut self) {
        self.next = self.ring.ends.read(&*self.ring, self.place, self.end, &mut self.words);
    }
}

/// Readers of several rings.
pub struct Merge(Vec<RingReader>);

/// The next record of all rings.
pub struct TraceLine<'a> {
    /// The record's CPU.
    pub cpu: usize,
    /// Number of records of that CPU that were overwritten before this one.
    pub missed: u64,
    /// The record's words.
    pub words: &'a [u64],
    pub(super) next: RingPlace,
}

impl TraceLine<'_> {
    /// Returns the record as a line of text.
    pub fn line(&self) -> Option<Line<'_>> {
        let record = RecordView::parse(self.words)?;
        let time = Stamp(hw::time::nanoseconds(record.head.time));
        Some(Line { record, cpu: self.cpu, time })
    }
}

impl Merge {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }
    pub(super) fn add(&mut self, cursor: RingReader) -> Result<()> {
        Ok(self.0.try_push(cursor)?)
    }
    /// Returns the index of the reader with the oldest record.
    fn first(&self) -> Option<usize> {
        let with = self.0.iter().enumerate().filter(|(_, cursor)| cursor.next.is_some());
        with.min_by_key(|(_, cursor)| cursor.words[1]).map(|(at, _)| at)
    }
    /// Returns the next record.
    pub fn peek(&self) -> Option<TraceLine<'_>> {
        let cursor = &self.0[self.first()?];
        let found = cursor.next?;
        let (cpu, missed, next) = (cursor.cpu, found.missed, found.next);
        Some(TraceLine { cpu, missed, words: &cursor.words[..found.length], next })
    }
    /// Skips the next record.
    pub fn advance(&mut self) {
        let Some(at) = self.first() else { return };
        let cursor = &mut self.0[at];
        if let Some(found) = cursor.next {
            cursor.place = found.next;
            cursor.fetch();
        }
    }
}
