//! Arguments and environment on their way from one program to the next.

use freehold_collections::WipedBytes;

use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// The longest single string, with its NUL (MAX_ARG_STRLEN).
pub const MAX_STRING: usize = 131_072;
/// The most strings.
const MAX_COUNT: usize = 0x7fff_ffff;

/// A list of strings, one after the other, each with its NUL. They are wiped at the end, since an
/// environment may contain secrets.
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
    /// Append `text`, which has no NUL.
    ///
    /// # Errors
    /// `E2BIG` for one that is too long, `ENOMEM`.
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
    /// The program's NULL-terminated array at `address`; NULL is an empty one.
    ///
    /// # Errors
    /// `E2BIG` where the bytes and pointers are more than `limit`; `EFAULT`, `ENOMEM`; `EINTR`
    /// where the task is to end.
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
            let text = WipedBytes::from(user::bounded_string(pointer, MAX_STRING, Errno::E2BIG)?);
            strings.push(&text)?;
            if strings.size() > limit {
                return Err(Errno::E2BIG);
            }
        }
        Err(Errno::E2BIG)
    }
    /// How many there are.
    pub const fn len(&self) -> usize {
        self.count
    }
    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
    /// All bytes, NULs included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// Bytes with NULs and the pointers to them.
    pub fn size(&self) -> usize {
        self.bytes.len() + 8 * self.count
    }
    /// The strings, without their NULs.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.split(|&byte| byte == 0).take(self.count)
    }
    /// The offset of each string among the bytes.
    pub fn offsets(&self) -> impl Iterator<Item = usize> {
        let mut at = 0;
        self.iter().map(move |text| {
            let offset = at;
            at += text.len() + 1;
            offset
        })
    }
}
