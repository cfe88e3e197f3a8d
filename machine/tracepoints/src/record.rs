//! A record: the ring's data of one event, in words of 8 bytes.
//!
//! | word | content |
//! |---|---|
//! | 0 | the record's length in words (8 bits), its number on its CPU (56 bits; all set: padding) |
//! | 1 | time stamp, in ticks |
//! | 2 | as Linux' common fields, with the event's number for the type (2 bytes), flags, preempt count (0 both), pid (4 bytes) |
//! | 3, 4 | the thread's name |
//! | 5… | the fields, as `format` says; offsets there count from word 2, without the name |
//!
//! The name is in each record so that a reader does not need to look up the name of a thread that
//! may have ended.

use crate::field::{Comm, FieldType};
use crate::format::FieldText;
use crate::table::{EVENTS, EventDescription};

/// Words before the fields.
pub const HEAD_WORDS: usize = 5;
/// Largest number of words of a record: the length has 8 bits.
pub const MOST_WORDS: usize = 255;
/// Largest number of words of fields.
pub const MOST_PAYLOAD: usize = MOST_WORDS - HEAD_WORDS;
/// Bits of a record's number.
const NUMBER_BITS: u32 = 56;

const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

/// The first word of `length` words that are no record.
pub(crate) const fn padding(length: u64) -> u64 {
    length << NUMBER_BITS | NUMBER_MASK
}

/// Whether the first word says that there is no record.
pub(crate) const fn is_padding(first: u64) -> bool {
    number_in(first) == NUMBER_MASK
}

/// The number of the record whose first word this is.
pub(crate) const fn number_in(first: u64) -> u64 {
    first & NUMBER_MASK
}

/// The length in words that a record's first word contains; at least 1, so that a walk makes
/// progress.
pub(crate) const fn length_of(first: u64) -> u64 {
    let length = first >> NUMBER_BITS;
    if length == 0 { 1 } else { length }
}

/// Part of a record before its fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHead {
    /// Time in ticks of the machine's counter.
    pub time: u64,
    /// Number of the event.
    pub event: usize,
    /// Number of the thread.
    pub pid: i32,
    /// Its name.
    pub comm: Comm,
}

impl RecordHead {
    /// The first words of record `number`, which has `payload` words of fields.
    #[inline(always)]
    pub(crate) fn words(&self, number: u64, payload: usize) -> [u64; HEAD_WORDS] {
        let length = (HEAD_WORDS + payload) as u64;
        let common = self.event as u64 | u64::from(self.pid as u32) << 32;
        let name = u128::from_le_bytes(self.comm.0);
        // No ring gets as many records as its number's bits can count.
        [length << NUMBER_BITS | number, self.time, common, name as u64, (name >> 64) as u64]
    }
}

/// A whole record, as it was read.
#[derive(Clone, Copy, Debug)]
pub struct RecordView<'a> {
    /// Its head.
    pub head: RecordHead,
    /// The record's number on its CPU.
    pub number: u64,
    /// The words of its fields.
    pub payload: &'a [u64],
}

impl<'a> RecordView<'a> {
    /// Reads words of unknown origin; `None` if they are no record of an event of the table.
    pub fn parse(words: &'a [u64]) -> Option<Self> {
        let (head, payload) = words.split_at_checked(HEAD_WORDS)?;
        if length_of(head[0]) != words.len() as u64 || is_padding(head[0]) {
            return None;
        }
        let event = usize::from(head[2] as u16);
        if payload.len() * 8 < EVENTS.get(event)?.bytes() {
            return None;
        }
        let name = u128::from(head[3]) | u128::from(head[4]) << 64;
        Some(Self {
            head: RecordHead {
                time: head[1],
                event,
                pid: (head[2] >> 32) as i32,
                comm: Comm(name.to_le_bytes()),
            },
            number: number_in(head[0]),
            payload,
        })
    }

    /// Returns the description of its event.
    pub fn event(&self) -> &'static EventDescription {
        &EVENTS[self.head.event]
    }

    /// The byte at `offset` of the fields.
    pub(crate) fn byte(&self, offset: usize) -> u8 {
        self.payload.get(offset / 8).map_or(0, |word| word.to_le_bytes()[offset % 8])
    }

    /// The word of `size` bytes, at most 8, at `offset` of the fields.
    pub(crate) fn word_at(&self, offset: usize, size: usize) -> u64 {
        (0..size.min(8)).fold(0, |value, at| value | u64::from(self.byte(offset + at)) << (8 * at))
    }

    /// The number of this `kind` at `offset` of the fields, its sign extended if it has one.
    pub(crate) fn number_at(&self, offset: usize, kind: &FieldType) -> u64 {
        let value = self.word_at(offset, kind.size);
        let spare = 64 - 8 * kind.size.clamp(1, 8) as u32;
        if kind.signed { ((value << spare) as i64 >> spare) as u64 } else { value }
    }

    /// The field `name` as text, where there is one.
    pub fn shown<'b>(&'b self, name: &'b str) -> Option<FieldText<'b>> {
        self.event().fields().any(|field| field.name == name).then_some(FieldText { record: self, name })
    }

    /// The value of the field `name`, where it is a number.
    pub fn value(&self, name: &str) -> Option<i64> {
        let field = self.event().fields().find(|field| field.name == name)?;
        let known = field.kind;
        (known.after.is_empty() && known.conversion != "%s")
            .then(|| self.number_at(field.offset, &known) as i64)
    }
}
