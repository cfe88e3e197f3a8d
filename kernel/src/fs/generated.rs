//! Files whose content is written when they are read, as in /proc and /sys.
//!
//! A description makes the text at each read from offset 0. Reads at other offsets see the same
//! text, so a text that is read in pieces is consistent. A text whose length depends on a program
//! is made in [`Parts`] instead, of which only one is in memory (Linux' nearest relative is
//! seq_file).

use core::{fmt, iter};

use arrayvec::ArrayVec;
use freehold_collections::{Arc, Box, Vec, reserve};

use super::file::{Blocking, File, Ready, Seekable};
use super::node::Node;
use crate::sync::{Mutex, PollWaiter};
use crate::user::{self, Sink, Source};
use crate::{Errno, Result};

/// Longest text that may be written to a generated file at once.
const MAX_STORE: usize = 4096;

/// Largest number of digits of a decimal number.
const MOST_DIGITS: usize = 20;
/// Initial capacity of a text, in bytes.
const FIRST_ROOM: usize = 1024;

/// A growing text. A lack of memory is remembered, and [`Text::finish`] returns `ENOMEM`.
#[derive(Debug, Default)]
pub struct Text {
    bytes: Vec<u8>,
    failed: bool,
}

impl Text {
    /// Makes an empty text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes as they are.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.bytes.capacity() == 0 {
            self.failed |= self.bytes.try_reserve(FIRST_ROOM).is_err();
        }
        self.failed |= self.bytes.try_extend_from_slice(bytes).is_err();
    }

    /// Adds formatted text. (`write!` requires this name; the call cannot fail here.)
    pub fn write_fmt(&mut self, arguments: fmt::Arguments<'_>) {
        // The only possible error is remembered.
        let _ = fmt::Write::write_fmt(self, arguments);
    }

    /// Adds `name`, padded to 16 columns, and `kib` as " kB", as /proc/meminfo and smaps have it.
    /// Such lines are most of the text read from /proc, so they do not use the formatter of `core`.
    pub fn kib(&mut self, name: &str, kib: u64) {
        const NAME: usize = 16;
        let mut line = ShortLine::new();
        line.push(name.as_bytes());
        line.pad(NAME);
        line.decimal(kib, 8);
        line.push(b" kB\n");
        self.push(line.bytes());
    }

    /// Adds numbers, each with a blank before it.
    pub fn numbers(&mut self, values: &[u64]) {
        for some in values.chunks(ShortLine::MOST / (MOST_DIGITS + 1)) {
            let mut line = ShortLine::new();
            for &value in some {
                line.push(b" ");
                line.decimal(value, 0);
            }
            self.push(line.bytes());
        }
    }

    /// Adds a number that may be negative, with a blank before it.
    pub fn signed_number(&mut self, value: i64) {
        let mut line = ShortLine::of(if value < 0 { b" -" } else { b" " });
        line.decimal(value.unsigned_abs(), 0);
        self.push(line.bytes());
    }

    /// Adds a line of `name` and a few numbers, as /proc/PID/status has it.
    pub fn row(&mut self, name: &str, values: &[u64]) {
        let mut line = ShortLine::of(name.as_bytes());
        line.push(b":");
        for &value in values {
            line.push(b"\t");
            line.decimal(value, 0);
        }
        line.push(b"\n");
        self.push(line.bytes());
    }

    /// Adds a line of `name` and 64 bits in hexadecimal, as /proc/PID/status has it.
    pub fn mask_row(&mut self, name: &str, bits: u64) {
        let mut line = ShortLine::of(name.as_bytes());
        line.push(b":\t");
        line.hex(bits, 16);
        line.push(b"\n");
        self.push(line.bytes());
    }

    /// Returns the text's length in bytes.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Returns all bytes, or `ENOMEM`.
    pub fn finish(self) -> Result<Vec<u8>> {
        if self.failed { Err(Errno::ENOMEM) } else { Ok(self.bytes) }
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// A short line that is being composed. Bytes past its capacity are left out.
#[derive(Default)]
pub struct ShortLine(ArrayVec<u8, { ShortLine::MOST }>);

impl ShortLine {
    /// Largest number of bytes of a line.
    pub const MOST: usize = 128;

    /// Makes an empty line.
    pub const fn new() -> Self {
        Self(ArrayVec::new_const())
    }

    /// Makes a line with these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut line = Self::new();
        line.push(bytes);
        line
    }

    /// Makes a line with this number.
    pub fn of_number(value: u64) -> Self {
        let mut line = Self::new();
        line.decimal(value, 0);
        line
    }

    /// Makes a line with the text that `text` displays.
    pub fn displaying(text: impl fmt::Display) -> Self {
        let mut line = Self::new();
        // Bytes past the end are left out, which is no error.
        let _ = fmt::Write::write_fmt(&mut line, format_args!("{text}"));
        line
    }

    /// Returns the bytes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds bytes as they are.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(self.0.remaining_capacity());
        // The bytes fit.
        let _ = self.0.try_extend_from_slice(&bytes[..count]);
    }

    /// Adds blanks up to `column`.
    pub fn pad(&mut self, column: usize) {
        let count = column.min(Self::MOST).saturating_sub(self.0.len());
        self.0.extend(iter::repeat_n(b' ', count));
    }

    /// Adds a number, padded with blanks to at least `width` columns. A number that does not fit is
    /// left out.
    pub fn decimal(&mut self, mut value: u64, width: usize) {
        let digits = value.checked_ilog10().map_or(1, |log| log as usize + 1);
        let (start, count) = (self.0.len(), digits.max(width));
        if count > self.0.remaining_capacity() {
            return;
        }
        self.0.extend(iter::repeat_n(b' ', count));
        for place in self.0[start..].iter_mut().rev().take(digits) {
            *place = b'0' + (value % 10) as u8;
            value /= 10;
        }
    }

    /// Adds a hexadecimal number, padded with zeroes to at least `width` columns.
    pub fn hex(&mut self, value: u64, width: usize) {
        self.digits_of_bits::<4>(value, width, b"0123456789abcdef");
    }

    /// Like [`hex`](Self::hex), with capitals.
    pub fn hex_upper(&mut self, value: u64, width: usize) {
        self.digits_of_bits::<4>(value, width, b"0123456789ABCDEF");
    }

    /// Adds an octal number, padded with zeroes to at least `width` columns.
    pub fn octal(&mut self, value: u64, width: usize) {
        self.digits_of_bits::<3>(value, width, b"0123456789abcdef");
    }

    /// Adds a number whose digits have `BITS` bits. A number that does not fit is left out.
    #[inline(always)]
    fn digits_of_bits<const BITS: usize>(&mut self, value: u64, width: usize, digits: &[u8; 16]) {
        let used = (u64::BITS - (value | 1).leading_zeros()) as usize;
        let count = used.div_ceil(BITS).max(width).min((u64::BITS as usize).div_ceil(BITS));
        if count > self.0.remaining_capacity() {
            return;
        }
        let digit = |place: usize| (value >> (place * BITS)) as usize & ((1 << BITS) - 1);
        self.0.extend((0..count).rev().map(|place| digits[digit(place)]));
    }
}

impl fmt::Write for ShortLine {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Content of a generated file, and the effect of writing to it.
pub trait Generate: Send + Sync {
    /// Writes the content.
    fn show(&self, text: &mut Text) -> Result<()>;
    /// Returns the parts of a content that is too long to write at once; `None` if
    /// [`show`](Self::show) writes all of it.
    fn parts(&self) -> Option<Box<dyn Parts>> {
        None
    }
    /// Whether the running task may open the file for writing, if its mode permits that; `EACCES`
    /// if not.
    fn may_write(&self) -> Result<()> {
        Ok(())
    }
    /// Handles O_TRUNC, or a truncation to length 0.
    fn truncate(&self) -> Result<()> {
        Ok(())
    }
    /// Handles the bytes that a program wrote in one call (at most 4096); `EACCES` for a read-only
    /// file.
    fn store(&self, _bytes: &[u8]) -> Result<()> {
        Err(Errno::EACCES)
    }
    /// As [`store`](Self::store), for bytes at `offset` of the file: most files ignore it.
    fn store_at(&self, _offset: u64, bytes: &[u8]) -> Result<()> {
        self.store(bytes)
    }
    /// Returns the events that are ready; see [`File::poll`].
    fn poll(&self, _waiter: Option<&mut PollWaiter>) -> Ready {
        Ready::IN | Ready::OUT
    }
    /// Whether the readiness changes; see [`File::changes_readiness`].
    fn changes_readiness(&self) -> bool {
        false
    }
}

/// Approximate size of a part, in bytes.
pub const PART: usize = 4096;

/// Whether more parts follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum More {
    /// At least one more part follows, perhaps an empty one.
    Yes,
    /// This part was the last.
    No,
}

/// The parts of a long content, made one after the other.
pub trait Parts: Send {
    /// Writes the next part.
    ///
    /// # Errors
    /// The file's, for the read that needs the part.
    fn next(&mut self, text: &mut Text) -> Result<More>;
}

impl<F: Fn(&mut Text) -> Result<()> + Send + Sync> Generate for F {
    fn show(&self, text: &mut Text) -> Result<()> {
        self(text)
    }
}

/// An open generated file.
pub struct GeneratedFile<G> {
    node: Arc<dyn Node>,
    source: G,
    reading: Mutex<Option<Reading>>,
}

/// The part of the content that is in memory.
struct Reading {
    /// The part's offset in the file.
    start: u64,
    text: Vec<u8>,
    /// The parts after it; `None` after the last.
    rest: Option<Box<dyn Parts>>,
}

impl Reading {
    fn first(source: &impl Generate) -> Result<Self> {
        let mut text = Text::new();
        let rest = source.parts();
        if rest.is_none() {
            source.show(&mut text)?;
        }
        Ok(Self { start: 0, text: text.finish()?, rest })
    }

    /// Makes the next part. If that fails, the present one stays.
    fn advance(&mut self) -> Result<More> {
        let Some(rest) = &mut self.rest else { return Ok(More::No) };
        let mut text = Text::new();
        let more = rest.next(&mut text)?;
        let text = core::mem::replace(&mut self.text, text.finish()?);
        self.start += text.len() as u64;
        if more == More::No {
            self.rest = None;
        }
        Ok(More::Yes)
    }
}

impl<G: Generate> GeneratedFile<G> {
    /// Makes an open description of `node`, whose content `source` writes.
    pub fn new(node: Arc<dyn Node>, source: G) -> Arc<Self> {
        reserve::arc(Self { node, source, reading: Mutex::new(None) })
    }
}

impl<G: Generate + 'static> File for GeneratedFile<G> {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        let mut reading = self.reading.lock();
        if offset == 0 || reading.as_ref().is_none_or(|reading| offset < reading.start) {
            *reading = Some(Reading::first(&self.source)?);
        }
        let Some(reading) = &mut *reading else { return Ok(0) };
        loop {
            let from = usize::try_from(offset - reading.start).unwrap_or(usize::MAX);
            if let Some(bytes) = reading.text.get(from..).filter(|bytes| !bytes.is_empty()) {
                return sink.put(bytes);
            }
            if reading.advance()? == More::No {
                return Ok(0);
            }
        }
    }

    fn write_at(&self, offset: u64, source: &mut dyn Source, _blocking: Blocking) -> Result<usize> {
        let len = source.remaining().min(MAX_STORE);
        let mut bytes = user::zeroed(len)?;
        let taken = source.take(&mut bytes)?;
        self.source.store_at(offset, &bytes[..taken])?;
        Ok(taken)
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        self.source.poll(waiter)
    }

    fn changes_readiness(&self) -> bool {
        self.source.changes_readiness()
    }

    fn end(&self) -> Result<u64> {
        Err(Errno::EINVAL)
    }
}

#[cfg(test)]
mod tests {
    use freehold_collections::try_format;

    use super::*;

    #[test]
    fn lines_are_what_the_formatter_would_make_of_them() {
        for value in [0, 7, 10, 4095, 4096, 99_999_999, 123_456_789, u64::MAX] {
            let mut text = Text::new();
            text.kib("Rss:", value);
            let wanted = try_format!("{:<16}{value:>8} kB\n", "Rss:").unwrap();
            assert_eq!(text.finish().unwrap(), wanted.as_bytes());
            let mut line = ShortLine::new();
            line.hex(value, 8);
            line.push(b"-");
            line.decimal(value, 0);
            line.pad(50);
            line.push(b"|");
            let wanted =
                try_format!("{:<50}|", try_format!("{value:08x}-{value}").unwrap().as_str()).unwrap();
            assert_eq!(line.bytes(), wanted.as_bytes());
            let mut line = ShortLine::new();
            line.hex_upper(value, 8);
            assert_eq!(line.bytes(), try_format!("{value:08X}").unwrap().as_bytes());
            let mut line = ShortLine::new();
            line.octal(value, 4);
            assert_eq!(line.bytes(), try_format!("{value:04o}").unwrap().as_bytes());
            let mut text = Text::new();
            text.numbers(&[value; 7]);
            text.signed_number(-(value as i64 / 2));
            text.row("Uid", &[value, 1]);
            text.mask_row("SigCgt", value);
            let half = -(value as i64 / 2);
            let seven = try_format!(" {value} {value} {value} {value} {value} {value} {value}").unwrap();
            let wanted =
                try_format!("{} {half}Uid:\t{value}\t1\nSigCgt:\t{value:016x}\n", seven.as_str()).unwrap();
            assert_eq!(text.finish().unwrap(), wanted.as_bytes());
        }
        let mut line = ShortLine::new();
        (0..3).for_each(|_| line.push(&[b'x'; 100]));
        assert_eq!(line.bytes().len(), ShortLine::MOST);
        line.decimal(7, 0);
        assert_eq!(line.bytes(), [b'x'; ShortLine::MOST], "what is past its end is left out");
        assert_eq!(ShortLine::displaying(format_args!("cpu{}", 7)).bytes(), b"cpu7");
    }
}
