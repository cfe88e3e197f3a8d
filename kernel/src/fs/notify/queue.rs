//! The unread events of one instance: `struct inotify_event`s as read(2) returns them, in chunks of
//! a page.
//!
//! - An event that equals the last one in the queue is dropped. Cookies are not compared.
//! - Beyond the limit, or without memory, an event is lost and IN_Q_OVERFLOW takes its place. The
//!   queue holds one overflow at most. The overflow is stored as the number of events before it, so
//!   it needs no memory.
//!
//! The queue grows fallibly. An empty queue keeps one page.

use freehold_collections::{Vec, VecDeque};

use super::Events;

/// Bytes of a chunk.
const PIECE: usize = 4096;
/// Bytes before the name: watch, mask, cookie, length of the name.
const HEADER: usize = 16;
/// Size of the largest event: a name of 255 bytes with its NUL, rounded up.
const LARGEST: usize = HEADER + 256;

/// One event.
#[derive(Clone)]
pub(super) struct EventRecord {
    bytes: [u8; LARGEST],
    length: usize,
}

impl EventRecord {
    /// Makes an event of the watch `number`. The name is padded with NULs, at least one, to a
    /// multiple of the header's size.
    pub fn new(number: i32, events: Events, cookie: u32, name: &[u8]) -> Self {
        let mut bytes = [0; LARGEST];
        let name = &name[..name.len().min(LARGEST - HEADER - 1)];
        let room = if name.is_empty() { 0 } else { (name.len() + 1).next_multiple_of(HEADER) };
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes[4..8].copy_from_slice(&events.bits().to_le_bytes());
        bytes[8..12].copy_from_slice(&cookie.to_le_bytes());
        bytes[12..16].copy_from_slice(&(room as u32).to_le_bytes());
        bytes[HEADER..HEADER + name.len()].copy_from_slice(name);
        Self { bytes, length: HEADER + room }
    }

    /// Returns the bytes as a program reads them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns whether the event equals the previous event `last`. IN_IGNORED is never dropped.
    fn repeats(&self, last: &[u8]) -> bool {
        let ended = Events::IGNORED.bits().to_le_bytes();
        let all = self.bytes();
        last.len() == all.len() && last[..8] == all[..8] && last[12..] == all[12..] && all[4..8] != ended
    }
}

/// The result of adding an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queued {
    /// The event, or the overflow in its place, was queued: readers must be woken.
    Added,
    /// The event repeats the last one, or it was lost while an overflow is already queued.
    Dropped,
}

/// The result of taking an event.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "it lives for a moment; a box could fail")]
pub(super) enum Taken {
    Event(EventRecord),
    /// The next event is larger than the reader's buffer.
    NoRoom,
}

/// The unread events of an instance; see the module's documentation.
pub(super) struct Queue {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that were read.
    read: usize,
    /// Offset of the last event in the last chunk.
    last: usize,
    events: usize,
    bytes: usize,
    /// Number of events before the overflow, if an overflow is queued.
    overflow: Option<usize>,
    limit: usize,
}

impl Queue {
    /// Makes an empty queue of at most `limit` events.
    pub const fn new(limit: usize) -> Self {
        Self { pieces: VecDeque::new(), read: 0, last: 0, events: 0, bytes: 0, overflow: None, limit }
    }

    /// Whether there is nothing to read.
    pub const fn is_empty(&self) -> bool {
        self.events == 0 && self.overflow.is_none()
    }

    /// Bytes of all events (FIONREAD).
    pub const fn bytes(&self) -> usize {
        self.bytes + if self.overflow.is_some() { HEADER } else { 0 }
    }

    /// Adds an event.
    pub fn add(&mut self, event: &EventRecord) -> Queued {
        let waiting = self.events + usize::from(self.overflow.is_some());
        if waiting >= self.limit {
            return self.overflow();
        }
        if self.last_event().is_some_and(|last| event.repeats(last)) {
            return Queued::Dropped;
        }
        if self.append(event.bytes()).is_none() { self.overflow() } else { Queued::Added }
    }

    /// Returns the last event, unless the overflow follows it.
    fn last_event(&self) -> Option<&[u8]> {
        if self.events == 0 || self.overflow == Some(self.events) {
            return None;
        }
        self.pieces.back().map(|piece| &piece[self.last..])
    }

    fn overflow(&mut self) -> Queued {
        if self.overflow.is_some() {
            return Queued::Dropped;
        }
        self.overflow = Some(self.events);
        Queued::Added
    }

    fn append(&mut self, bytes: &[u8]) -> Option<()> {
        if self.pieces.back().is_none_or(|piece| piece.len() + bytes.len() > PIECE) {
            let piece = Vec::try_with_capacity(PIECE).ok()?;
            self.pieces.try_push_back(piece).ok()?;
        }
        let piece = self.pieces.back_mut()?;
        self.last = piece.len();
        piece.try_extend_from_slice(bytes).ok()?;
        self.events += 1;
        self.bytes += bytes.len();
        Some(())
    }

    /// Takes the first event if it fits into `room` bytes. Returns `None` if the queue is empty.
    pub fn take(&mut self, room: usize) -> Option<Taken> {
        let (overflow, length) = match (self.overflow, self.events) {
            (Some(0), _) => (true, HEADER),
            (_, 0) => return None,
            _ => (false, self.first_length()?),
        };
        if length > room {
            return Some(Taken::NoRoom);
        }
        if overflow {
            self.overflow = None;
            return Some(Taken::Event(EventRecord::new(-1, Events::Q_OVERFLOW, 0, b"")));
        }
        let mut event = EventRecord { bytes: [0; LARGEST], length };
        let piece = self.pieces.front_mut()?;
        event.bytes[..length].copy_from_slice(&piece[self.read..self.read + length]);
        self.read += length;
        self.events -= 1;
        self.bytes -= length;
        self.overflow = self.overflow.map(|before| before - 1);
        if self.read == piece.len() {
            self.read = 0;
            piece.clear();
            if self.pieces.len() > 1 {
                self.pieces.pop_front();
            }
        }
        Some(Taken::Event(event))
    }

    fn first_length(&self) -> Option<usize> {
        let first = &self.pieces.front()?[self.read..];
        let name = first.get(12..16)?.first_chunk::<4>()?;
        Some(HEADER + u32::from_le_bytes(*name) as usize)
    }
}

#[cfg(test)]
mod tests {
    use freehold_collections::inject::fail_nth;
    use std::vec::Vec;

    use super::*;

    fn event(number: i32, name: &[u8]) -> EventRecord {
        EventRecord::new(number, Events::MODIFY, 0, name)
    }

    /// Takes all events: watch, mask, bytes.
    fn drain(queue: &mut Queue) -> Vec<(i32, u32, usize)> {
        let mut all = Vec::new();
        while let Some(Taken::Event(event)) = queue.take(LARGEST) {
            let word = |at: usize| u32::from_le_bytes(*event.bytes()[at..].first_chunk().unwrap());
            all.push((word(0) as i32, word(4), event.bytes().len()));
        }
        assert!(queue.is_empty() && queue.bytes() == 0);
        all
    }

    #[test]
    fn names_are_padded_to_whole_headers() {
        let lengths =
            [0, 1, 15, 16, 31, 32, 255].map(|length| event(1, &std::vec![b'x'; length]).bytes().len());
        assert_eq!(lengths, [16, 32, 32, 48, 48, 64, 272]);
        let record = event(7, b"ab");
        assert_eq!(record.bytes()[16..], *b"ab\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(record.bytes()[..16], [7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0]);
    }

    #[test]
    fn only_an_event_that_repeats_the_last_is_dropped() {
        let mut queue = Queue::new(100);
        assert_eq!(queue.add(&event(1, b"a")), Queued::Added);
        assert_eq!(queue.add(&event(1, b"a")), Queued::Dropped);
        let other_cookie = EventRecord::new(1, Events::MODIFY, 9, b"a");
        assert_eq!(queue.add(&other_cookie), Queued::Dropped, "cookies are not compared");
        for other in
            [event(2, b"a"), event(1, b"b"), event(1, b""), EventRecord::new(1, Events::OPEN, 0, b"")]
        {
            assert_eq!(queue.add(&other), Queued::Added);
        }
        let ended = EventRecord::new(1, Events::IGNORED, 0, b"");
        assert_eq!([queue.add(&ended), queue.add(&ended)], [Queued::Added; 2]);
        assert_eq!(drain(&mut queue).len(), 7);
        assert_eq!(queue.add(&event(1, b"a")), Queued::Added, "what was read is not repeated");
    }

    #[test]
    fn beyond_the_limit_one_overflow_takes_the_place_of_what_is_lost() {
        let mut queue = Queue::new(3);
        for number in 1..=3 {
            assert_eq!(queue.add(&event(number, b"name")), Queued::Added);
        }
        assert_eq!(queue.add(&event(4, b"")), Queued::Added, "the overflow");
        assert_eq!(queue.add(&event(5, b"")), Queued::Dropped);
        assert_eq!(queue.bytes(), 3 * 32 + 16);
        let Some(Taken::Event(_)) = queue.take(32) else { panic!("the first") };
        assert_eq!(queue.add(&event(6, b"")), Queued::Dropped, "the overflow counts");
        let Some(Taken::Event(_)) = queue.take(32) else { panic!("the second") };
        assert_eq!(queue.add(&event(3, b"name")), Queued::Added, "the overflow was the last");
        let overflow = Events::Q_OVERFLOW.bits();
        assert_eq!(drain(&mut queue), [(3, 2, 32), (-1, overflow, 16), (3, 2, 32)]);
    }

    #[test]
    fn an_event_that_does_not_fit_stays() {
        let mut queue = Queue::new(10);
        assert!(queue.take(100).is_none());
        queue.add(&event(1, b"name"));
        assert!(matches!(queue.take(31), Some(Taken::NoRoom)));
        assert_eq!(drain(&mut queue).len(), 1);
    }

    #[test]
    fn an_event_without_memory_is_an_overflow() {
        let mut queue = Queue::new(10);
        for nth in 1..=2 {
            fail_nth(nth);
            assert_eq!(queue.add(&event(1, b"name")), Queued::Added);
            fail_nth(0);
            assert_eq!(drain(&mut queue), [(-1, Events::Q_OVERFLOW.bits(), 16)]);
        }
        assert_eq!(queue.add(&event(1, b"name")), Queued::Added);
        assert_eq!(drain(&mut queue), [(1, 2, 32)]);
    }

    /// Many events of all sizes are added and taken alternately. They come out in order, and the
    /// memory of read events is freed.
    #[test]
    fn events_come_out_in_order() {
        let mut queue = Queue::new(usize::MAX);
        let (mut next_in, mut next_out) = (0, 0);
        for round in 0..200 {
            for _ in 0..round % 7 * 40 {
                queue.add(&event(next_in, &std::vec![b'n'; next_in as usize % 256]));
                next_in += 1;
            }
            for _ in 0..round % 11 * 25 {
                let Some(Taken::Event(taken)) = queue.take(LARGEST) else { break };
                assert_eq!(taken.bytes(), event(next_out, &std::vec![b'n'; next_out as usize % 256]).bytes());
                next_out += 1;
            }
            assert!(queue.pieces.len() <= queue.bytes() / (PIECE - LARGEST) + 2);
        }
        assert_eq!(drain(&mut queue).len() as i32, next_in - next_out);
        assert!(next_in > 10_000 && queue.pieces.len() == 1);
    }
}
