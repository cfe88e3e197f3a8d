//! The ring of one CPU's records: one writer that never waits, and any number of readers.
//!
//! **Words.** The ring is a number of pages of words. Positions count all words written since the
//! start; a position's word is at the position modulo the ring's size. No record crosses the end of
//! a page: if one does not fit, the rest of the page is padding, and the record begins the next
//! page. So the oldest records are dropped a page at a time, without a walk over them.
//!
//! **The writer** is the ring's CPU with interrupts off, so there is one at a time and none is
//! interrupted by another. It
//! 1. if it begins a page, moves `tail` to the page after the one that it begins,
//! 2. fence (release): a reader that sees a word of step 3 also sees `tail` as step 1 moved it,
//! 3. stores the record's words,
//! 4. stores in `head` the position after them (release): a reader that sees it sees the words.
//!
//! **A reader** has a position. It
//! 1. loads `head` (acquire): records before it are complete, or overwritten,
//! 2. loads `tail`: if its position is before `tail`, it continues at `tail`,
//! 3. loads the record's words,
//! 4. fence (acquire), and loads `tail` again. If its position is now before `tail`, words of step
//!    3 may belong to another record: the reader discards them and begins anew.
//!
//! A reader never makes the writer wait. A faster writer can overtake it repeatedly; each time it
//! continues at the oldest record. So it makes progress whenever it reads one record while the
//! writer fills the ring less than once.
//!
//! **Counting.** Each record has its number on its CPU. So a reader knows exactly how many records
//! it missed: the difference between the number that it expected and the one that it found. The
//! writer counts nothing else.
//!
//! `tests/loom.rs` tries the interleavings, and two broken variants. Linux' relative is
//! kernel/trace/ring_buffer.c, whose writers interrupt each other and whose readers exchange
//! pages.

use super::atomic::{AtomicU64, Ordering, fence};
use super::record::{HEAD_WORDS, RecordHead, is_padding, length_of, number_in, padding};

/// Storage of a ring's words.
pub trait Words {
    /// Words of a page: a power of two, and enough for the longest record.
    const PAGE: u64;
    /// How many pages there are, at least 2.
    fn pages(&self) -> u64;
    /// The words of the page that has a position modulo the ring's size.
    fn page(&self, position: u64) -> &[AtomicU64];
    /// The word at a position modulo the ring's size.
    fn word(&self, position: u64) -> &AtomicU64 {
        &self.page(position)[(position % Self::PAGE) as usize]
    }
}

/// Room for `length` words from position `start` on, in the page that has the word before `start`;
/// `None` if that page has too few left. So a new page is never entered this way.
#[inline(always)]
fn room<W: Words>(words: &W, start: u64, length: usize) -> Option<&[AtomicU64]> {
    let before = start.wrapping_sub(1);
    let used = (before % W::PAGE) as usize + 1;
    words.page(before).get(used..used + length)
}

/// Stores a record's words, of which `places` has as many.
#[inline(always)]
fn store(places: &[AtomicU64], first: &[u64; HEAD_WORDS], payload: &[u64]) {
    let Some((head, rest)) = places.split_first_chunk::<HEAD_WORDS>() else { return };
    (0..HEAD_WORDS).for_each(|at| head[at].store(first[at], Ordering::Relaxed));
    // By length: a loop costs three instructions more for each word.
    match payload.len() {
        1 => store_all::<1>(rest, payload),
        2 => store_all::<2>(rest, payload),
        3 => store_all::<3>(rest, payload),
        4 => store_all::<4>(rest, payload),
        5 => store_all::<5>(rest, payload),
        6 => store_all::<6>(rest, payload),
        7 => store_all::<7>(rest, payload),
        8 => store_all::<8>(rest, payload),
        _ => rest.iter().zip(payload).for_each(|(place, &value)| place.store(value, Ordering::Relaxed)),
    }
}

#[inline(always)]
fn store_all<const N: usize>(places: &[AtomicU64], values: &[u64]) {
    if let (Some(places), Some(values)) = (places.first_chunk::<N>(), values.first_chunk::<N>()) {
        (0..N).for_each(|at| places[at].store(values[at], Ordering::Relaxed));
    }
}

/// The positions of a ring; only the writer stores here.
#[derive(Debug)]
pub struct Ends {
    /// The position after the newest record.
    head: AtomicU64,
    /// The position where the oldest record begins.
    tail: AtomicU64,
    /// Number of records written since the start.
    written: AtomicU64,
}

/// A reader's position in the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingPlace {
    /// The position of the next record, unless that was overwritten.
    pub position: u64,
    /// The next record's number.
    pub number: u64,
}

/// Record that a reader found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// How many records were overwritten before this one could be read.
    pub missed: u64,
    /// The record's length in words.
    pub length: usize,
    /// Behind it.
    pub next: RingPlace,
}

impl Ends {
    /// Returns the ends of an empty ring.
    pub fn new() -> Self {
        Self { head: AtomicU64::new(0), tail: AtomicU64::new(0), written: AtomicU64::new(0) }
    }

    /// Number of records written since the start.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Returns the place of the next record. It is exact where no record is written meanwhile.
    pub fn end(&self) -> RingPlace {
        loop {
            let number = self.written.load(Ordering::Acquire);
            let position = self.head.load(Ordering::Acquire);
            if self.written.load(Ordering::Acquire) == number {
                return RingPlace { position, number };
            }
        }
    }

    /// Writes a record: `payload` has no more than [`MOST_PAYLOAD`](crate::MOST_PAYLOAD) words. The
    /// head is made when there is room for the record: until then it takes no register. The ring's
    /// writer only.
    #[inline]
    pub fn write<W: Words>(&self, words: &W, head: impl FnOnce() -> RecordHead, payload: &[u64]) {
        let start = self.head.load(Ordering::Relaxed);
        match room(words, start, HEAD_WORDS + payload.len()) {
            Some(places) => self.put(places, start, &head(), payload),
            None => self.write_to_next_page(words, start, head, payload),
        }
    }

    /// Does the same on another page. Separate, so that it costs the usual case no register.
    #[cold]
    #[inline(never)]
    fn write_to_next_page<W: Words>(
        &self,
        words: &W,
        at: u64,
        head: impl FnOnce() -> RecordHead,
        payload: &[u64],
    ) {
        let start = self.begin_page(words, at);
        let places = &words.page(start)[..HEAD_WORDS + payload.len()];
        self.put(places, start, &head(), payload);
    }

    /// Stores a record at position `start`, whose place is `places`.
    #[inline(always)]
    fn put(&self, places: &[AtomicU64], start: u64, head: &RecordHead, payload: &[u64]) {
        let number = self.written.load(Ordering::Relaxed);
        store(places, &head.words(number, payload.len()), payload);
        // The number first: a reader that sees the new head finds a count that is at least as new.
        self.written.store(number + 1, Ordering::Release);
        self.head.store(start + places.len() as u64, Ordering::Release);
    }

    /// Continues at the first beginning of a page from `at` on. The page's old records are dropped.
    fn begin_page<W: Words>(&self, words: &W, at: u64) -> u64 {
        let start = at.next_multiple_of(W::PAGE);
        if start > at {
            words.word(at).store(padding(start - at), Ordering::Relaxed);
        }
        let end = start + W::PAGE;
        let all = words.pages() * W::PAGE;
        if end > all {
            self.tail.store(end - all, Ordering::Relaxed);
        }
        fence(Ordering::Release);
        start
    }

    /// Reads the record at `place`, or the oldest one, where that was overwritten. `None` at `end`
    /// or at the end of the ring, whichever comes first. Of a record that is longer than `into`,
    /// only the beginning is read. Any number of readers may call this.
    pub fn read(
        &self,
        words: &impl Words,
        place: RingPlace,
        end: Option<u64>,
        into: &mut [u64],
    ) -> Option<Found> {
        let mut from = place.position;
        loop {
            let head = self.head.load(Ordering::Acquire);
            let tail = self.tail.load(Ordering::Acquire);
            let position = from.max(tail);
            if position >= end.map_or(head, |end| end.min(head)) {
                return None;
            }
            let first = words.word(position).load(Ordering::Relaxed);
            let length = length_of(first);
            if !is_padding(first) {
                for (at, into) in into.iter_mut().enumerate().take(length as usize) {
                    *into = words.word(position + at as u64).load(Ordering::Relaxed);
                }
            }
            fence(Ordering::Acquire);
            if self.tail.load(Ordering::Relaxed) > position {
                continue;
            }
            if is_padding(first) {
                from = position + length;
                continue;
            }
            let number = number_in(first);
            let next = RingPlace { position: position + length, number: number + 1 };
            return Some(Found {
                missed: number.saturating_sub(place.number),
                length: length as usize,
                next,
            });
        }
    }

    /// Whether there is a record at `place` or after it.
    pub fn has_more(&self, place: RingPlace) -> bool {
        self.head.load(Ordering::Acquire) > place.position
    }
}
