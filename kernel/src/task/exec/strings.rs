//! Arguments and environment on their way from one program to the next.

use freehold_collections::WipedBytes;

use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// Largest length of a string, with its NUL (MAX_ARG_STRLEN).
pub const MAX_STRING: usize = 131_072;
/// Largest number of strings.
const MAX_COUNT: usize = 0x7fff_ffff;

/// A list of strings, one after the other, each with its NUL. They are wiped when the list is
/// dropped, since an environment may contain secrets.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Strings {
    bytes: WipedBytes,
    count: usize,
}

impl Strings {
    /// Makes an empty list.
    pub const fn new() -> Self {
        Self { bytes: WipedBytes::new(), count: 0 }
    }
    /// Appends `text`, which has no NUL.
    ///
    /// # Errors
    /// `E2BIG` if it is too long, `ENOMEM`.
    pub fn push(&mut self, text: &[u8]) -> Result<()> {
        if text.len() >= MAX_STRING {
            return Err(Errno::E2BIG);
        }
        self.bytes.try_reserve(text.len() + 1)?;
        self.bytes.try_extend(text)?;
        self.bytes.try_extend(&[0])?;
        self.count += 1;
        Ok(())
    }
    /// Reads a program's NULL-terminated array at `address`. NULL is an empty array.
    ///
    /// # Errors
    /// `E2BIG` if the bytes and pointers exceed `limit`; `EFAULT`, `ENOMEM`; `EINTR` if the task is
    /// being killed.
    pub fn read(address: u64, limit: usize) -> Result<Self> {
        let mut strings = Self::new();
        if address == 0 {
            return Ok(strings);
        }
        let array = UserPtr::<u64>::new(address);
        while strings.count < MAX_COUNT {
            crate::sched::checkpoint()?;
            let pointer = array.add(strings.count).read()?;
            if pointer == 0 {
                return Ok(strings);
            }
            user::visit_string(pointer, MAX_STRING, Errno::E2BIG, |part| {
                Ok(strings.bytes.try_extend(part)?)
            })?;
            strings.bytes.try_extend(&[0])?;
            strings.count += 1;
            if strings.size() > limit {
                return Err(Errno::E2BIG);
            }
        }
        Err(Errno::E2BIG)
    }
    /// Returns the number of strings.
    pub const fn len(&self) -> usize {
        self.count
    }
    /// Whether there are no strings.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
    /// Returns all bytes, NULs included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// Returns the size of the bytes with NULs and of the pointers to them.
    pub fn size(&self) -> usize {
        self.bytes.len() + 8 * self.count
    }
    /// Returns the strings, without their NULs.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.bytes;
        core::iter::from_fn(move || {
            let text = user::up_to_nul(rest)?;
            rest = &rest[text.len() + 1..];
            Some(text)
        })
    }
    /// Returns the offset of each string in the bytes.
    pub fn offsets(&self) -> impl Iterator<Item = usize> {
        let mut at = 0;
        self.iter().map(move |text| {
            let offset = at;
            at += text.len() + 1;
            offset
        })
    }
}
