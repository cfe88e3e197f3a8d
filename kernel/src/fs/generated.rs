//! Files whose content is written when they are read, as in /proc and /sys.
//!
//! A description makes the text when it is read from the beginning, and again when it is read from offset 0
//! later; reads further on see the same text, so a reader in pieces sees one moment.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

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
        if self.bytes.try_reserve(bytes.len()).is_err() {
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
    /// Take what a program wrote in one call (at most 4096 bytes); `EACCES` where nothing can be changed.
    fn store(&self, _bytes: &[u8]) -> Result<()> {
        Err(Errno::EACCES)
    }
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
    text: Mutex<Option<Vec<u8>>>,
}

impl<G: Generate> GeneratedFile<G> {
    /// An open description of `node`, whose content `source` writes.
    pub fn new(node: Arc<dyn Node>, source: G) -> Arc<Self> {
        Arc::new(Self { node, source, text: Mutex::new(None) })
    }
}

impl<G: Generate> File for GeneratedFile<G> {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        let mut text = self.text.lock();
        if offset == 0 || text.is_none() {
            let mut fresh = Text::new();
            self.source.show(&mut fresh)?;
            *text = Some(fresh.finish()?);
        }
        let bytes = text.as_deref().unwrap_or_default();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        if from == bytes.len() { Ok(0) } else { sink.put(&bytes[from..]) }
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
