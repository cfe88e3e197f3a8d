//! Files whose content is written when they are read, as in /proc and /sys.
//!
//! A description makes the text when it is read from the beginning, and again when it is read from offset 0
//! later; reads further on see the same text, so a reader in pieces sees one moment. A text whose
//! length a program chooses comes in [`Parts`] instead: only one of them is in memory (Linux'
//! nearest relative is seq_file).

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::file::{Blocking, File, Seekable};
use super::node::Node;
use crate::fallible::Grow as _;
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
        if self.bytes.make_room(bytes.len()).is_err() {
            self.failed = true;
            return;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Add formatted text. (The name that `write!` looks for; it cannot fail here.)
    pub fn write_fmt(&mut self, arguments: fmt::Arguments<'_>) {
        // The only error is the one that is remembered.
        let _ = fmt::Write::write_fmt(self, arguments);
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
        Arc::new(Self { node, source, reading: Mutex::new(None) })
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
