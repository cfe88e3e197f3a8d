//! Files whose content is written when they are read, as in /proc and /sys.
//!
//! A description makes the text when it is read from the beginning, and again when it is read from offset 0
//! later; reads further on see the same text, so a reader in pieces sees one moment. A text whose
//! length a program chooses comes in [`Parts`] instead: only one of them is in memory (Linux'
//! nearest relative is seq_file).

use core::fmt;

use freehold_collections::{Arc, Box, Vec, reserve};

use super::file::{Blocking, File, Seekable};
use super::node::Node;
use crate::sync::Mutex;
use crate::user::{self, Sink, Source};
use crate::{Errno, Result};

/// Longest text that may be written to a generated file at once.
const MAX_STORE: usize = 4096;

/// A growing text; memory that runs out is remembered and ends as `ENOMEM`.
#[derive(Debug, Default)]
pub struct Text {
    bytes: Vec<u8>,
    failed: bool,
}

impl Text {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Add bytes as they are.
    pub fn push(&mut self, bytes: &[u8]) {
        self.failed |= self.bytes.try_extend_from_slice(bytes).is_err();
    }

    /// Add formatted text. (The name that `write!` looks for; it cannot fail here.)
    pub fn write_fmt(&mut self, arguments: fmt::Arguments<'_>) {
        // The only error is the one that is remembered.
        let _ = fmt::Write::write_fmt(self, arguments);
    }

    /// Adds `name`, padded to 16 columns, and `kib` as " kB", as /proc/meminfo and smaps have it. Such
    /// lines are most of what is read of /proc: they do without the formatter of `core`.
    pub fn kib(&mut self, name: &str, kib: u64) {
        const NAME: usize = 16;
        let mut line = Line::new();
        line.push(name.as_bytes());
        line.pad(NAME);
        line.decimal(kib, 8);
        line.push(b" kB\n");
        self.push(line.bytes());
    }

    /// Its length in bytes.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// All of it, or `ENOMEM`.
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

/// A short line in the making. What is past its end is left out.
pub struct Line {
    bytes: [u8; Self::MOST],
    length: usize,
}

impl Line {
    /// The most bytes of a line.
    pub const MOST: usize = 128;

    /// An empty line.
    pub const fn new() -> Self {
        Self { bytes: [b' '; Self::MOST], length: 0 }
    }

    /// A line with these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut line = Self::new();
        line.push(bytes);
        line
    }

    /// A line with this number.
    pub fn of_number(value: u64) -> Self {
        let mut line = Self::new();
        line.decimal(value, 0);
        line
    }

    /// A line with what `text` displays.
    pub fn displaying(text: impl fmt::Display) -> Self {
        let mut line = Self::new();
        // What is past the end is left out, which is no error.
        let _ = fmt::Write::write_fmt(&mut line, format_args!("{text}"));
        line
    }

    /// What it has so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Adds bytes as they are.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        let end = (self.length + bytes.len()).min(Self::MOST);
        let count = end - self.length;
        self.bytes[self.length..end].copy_from_slice(&bytes[..count]);
        self.length = end;
    }

    /// Adds blanks up to `column`.
    pub fn pad(&mut self, column: usize) {
        self.length = self.length.max(column.min(Self::MOST));
    }

    /// Adds a number, with blanks before it in at least `width` columns.
    pub fn decimal(&mut self, value: u64, width: usize) {
        self.number(value, 10, width, b' ');
    }

    /// Adds a hexadecimal number, with zeroes before it in at least `width` columns.
    pub fn hex(&mut self, value: u64, width: usize) {
        self.number(value, 16, width, b'0');
    }

    #[inline(always)]
    fn number(&mut self, mut value: u64, base: u64, width: usize, fill: u8) {
        let mut digits = [fill; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b"0123456789abcdef"[(value % base) as usize];
            value /= base;
            if value == 0 {
                break;
            }
        }
        self.push(&digits[at.min(digits.len() - width.min(digits.len()))..]);
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

/// What a generated file says, and what writing to it does.
pub trait Generate: Send + Sync {
    /// Write the content.
    fn show(&self, text: &mut Text) -> Result<()>;
    /// The parts of a content that is too long to write at once; `None` where [`show`](Self::show)
    /// writes it all.
    fn parts(&self) -> Option<Box<dyn Parts>> {
        None
    }
    /// Take what a program wrote in one call (at most 4096 bytes); `EACCES` where nothing can be changed.
    fn store(&self, _bytes: &[u8]) -> Result<()> {
        Err(Errno::EACCES)
    }
}

/// About how many bytes a part has.
pub const PART: usize = 4096;

/// Whether more parts follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum More {
    /// At least one does, perhaps empty.
    Yes,
    /// This was the last.
    No,
}

/// The parts of a long content, written one after the other.
pub trait Parts: Send {
    /// Writes the next part.
    ///
    /// # Errors
    /// As the file's, for the read that asked for the part.
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

/// The part of the content that is read.
struct Reading {
    /// Its offset in the file.
    start: u64,
    text: Vec<u8>,
    /// The parts behind it; `None` behind the last.
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

    /// Goes on to the next part. Where that fails, this one stays.
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
    /// An open description of `node`, whose content `source` writes.
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

    fn write_at(&self, _offset: u64, source: &mut dyn Source, _blocking: Blocking) -> Result<usize> {
        let len = source.remaining().min(MAX_STORE);
        let mut bytes = user::zeroed(len)?;
        let taken = source.take(&mut bytes)?;
        self.source.store(&bytes[..taken])?;
        Ok(taken)
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
            let mut line = Line::new();
            line.hex(value, 8);
            line.push(b"-");
            line.decimal(value, 0);
            line.pad(50);
            line.push(b"|");
            let wanted =
                try_format!("{:<50}|", try_format!("{value:08x}-{value}").unwrap().as_str()).unwrap();
            assert_eq!(line.bytes(), wanted.as_bytes());
        }
        let mut line = Line::new();
        (0..3).for_each(|_| line.push(&[b'x'; 100]));
        assert_eq!(line.bytes().len(), Line::MOST);
        assert_eq!(Line::displaying(format_args!("cpu{}", 7)).bytes(), b"cpu7");
    }
}
