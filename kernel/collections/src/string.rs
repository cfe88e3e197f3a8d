//! Text that grows fallibly.

use alloc::string;
use core::fmt;
use core::ops::Deref;

use crate::heap_use::fallibly;
use crate::{AllocError, Vec};

/// Text in UTF-8. It is a `str` in all that does not grow it.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct String(string::String);

impl String {
    /// Creates an empty text, which needs no memory.
    pub const fn new() -> Self {
        Self(string::String::new())
    }
    /// Copies `text`.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn try_from_str(text: &str) -> Result<Self, AllocError> {
        let mut copy = Self::new();
        copy.try_push_str(text)?;
        Ok(copy)
    }
    /// Copies `bytes`, with U+FFFD for bytes that are no UTF-8.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn try_from_utf8_lossy(bytes: &[u8]) -> Result<Self, AllocError> {
        let mut text = Self::new();
        for chunk in bytes.utf8_chunks() {
            text.try_push_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                text.try_push_str("\u{fffd}")?;
            }
        }
        Ok(text)
    }
    /// Adds `text` at the end.
    ///
    /// # Errors
    /// [`AllocError`].
    #[inline]
    pub fn try_push_str(&mut self, text: &str) -> Result<(), AllocError> {
        if self.0.capacity() - self.0.len() < text.len() {
            fallibly(|| self.0.try_reserve(text.len()))?;
        }
        self.0.push_str(text);
        Ok(())
    }
    /// Adds one character at the end.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn try_push(&mut self, character: char) -> Result<(), AllocError> {
        self.try_push_str(character.encode_utf8(&mut [0; 4]))
    }
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// The bytes of the text, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        Vec::adopt(self.0.into_bytes())
    }
}

impl Default for String {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for String {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<[u8]> for String {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl AsRef<str> for String {
    fn as_ref(&self) -> &str {
        self
    }
}

impl fmt::Debug for String {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for String {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Every error means lack of memory.
impl fmt::Write for String {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.try_push_str(text).map_err(|_| fmt::Error)
    }
}

impl PartialEq<str> for String {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for String {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

/// Formats into a new text; see [`crate::try_format!`].
///
/// # Errors
/// [`AllocError`].
pub fn try_format(arguments: fmt::Arguments<'_>) -> Result<String, AllocError> {
    let mut text = String::new();
    fmt::Write::write_fmt(&mut text, arguments).map_err(|_| AllocError)?;
    Ok(text)
}
