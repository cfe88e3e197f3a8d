//! The record that the build leaves in the image: the functions, by offset, and a hash of each page
//! of text and read-only data.
//!
//! Words of 64 bits: [`MAGIC`]; the number of functions (low half) and of pages (high half); two
//! words for each function; a word for each page. A function's first word has its offset from the
//! beginning of text (low half, bit 31: not to be probed) and a hash of its last name; the second
//! one has the hash of its path (low half) and its size in bytes. Names are not stored: a probe's
//! definition has the name. The build makes sure that different names have different hashes.
//!
//! A page's hash counts words that a relocation writes with their addend, so it does not depend on
//! where the image lies. Zeroed memory is a record without functions and pages: a kernel that
//! `tools/build-kernel` did not finish has it.

use core::num::NonZeroU64;

/// The first word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FHbuild1");
/// Words before the first function.
const HEAD_WORDS: usize = 2;
const NOT_PROBED: u32 = 1 << 31;

/// Whether a function may be probed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probing {
    /// Yes.
    Allowed,
    /// No: a probe's handler may run it, or it is not called as functions are.
    Refused,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Function {
    /// Offset from the beginning of text.
    pub offset: u32,
    /// Number of bytes to the next function.
    pub size: u32,
    /// Whether it may be probed.
    pub probing: Probing,
    /// The hash of its path.
    pub path: u32,
    /// The hash of its last name.
    pub last: u32,
}

impl Function {
    /// Returns its words in the record.
    pub const fn words(&self) -> [u64; 2] {
        let mark = match self.probing {
            Probing::Allowed => 0,
            Probing::Refused => NOT_PROBED,
        };
        [(self.offset | mark) as u64 | (self.last as u64) << 32, self.path as u64 | (self.size as u64) << 32]
    }
    const fn from_words([first, second]: [u64; 2]) -> Self {
        let probing = if first as u32 & NOT_PROBED == 0 { Probing::Allowed } else { Probing::Refused };
        Self {
            offset: first as u32 & !NOT_PROBED,
            size: (second >> 32) as u32,
            probing,
            path: second as u32,
            last: (first >> 32) as u32,
        }
    }
}

/// Result of a search for a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameSearch {
    /// No function has it.
    None,
    /// One function has it.
    One(Function),
    /// Several functions have it.
    Several,
}

/// The hash of a name (FNV-1a, Fowler, Noll and Vo).
pub const fn name_hash(name: &[u8]) -> u32 {
    let (mut hash, mut at) = (0x811c_9dc5_u32, 0);
    while at < name.len() {
        hash = (hash ^ name[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}

/// The record, in the image.
#[derive(Clone, Copy, Debug)]
pub struct BuildRecord<'a> {
    functions: &'a [[u64; 2]],
    pages: &'a [u64],
}

impl<'a> BuildRecord<'a> {
    /// A record without functions and pages.
    pub const EMPTY: Self = Self { functions: &[], pages: &[] };

    /// Reads a record; one that is not there is empty.
    pub fn read(words: &'a [u64]) -> Self {
        let Some(([MAGIC, counts], rest)) = words.split_first_chunk::<HEAD_WORDS>() else {
            return Self::EMPTY;
        };
        let (functions, pages) = (2 * (*counts as u32 as usize), (counts >> 32) as usize);
        let Some((functions, rest)) = rest.split_at_checked(functions) else { return Self::EMPTY };
        Self { functions: functions.as_chunks().0, pages: rest.get(..pages).unwrap_or(&[]) }
    }
    /// Returns the hash of a page of the image; `None` for pages that the build does not know, and
    /// for the record's own.
    pub fn page(&self, page: u64) -> Option<NonZeroU64> {
        NonZeroU64::new(*self.pages.get(page as usize)?)
    }
    /// Returns the function that has the byte at an offset of text.
    pub fn at(&self, offset: u64) -> Option<Function> {
        let all = self.functions;
        let next = all.partition_point(|&words| u64::from(Function::from_words(words).offset) <= offset);
        let function = Function::from_words(*all.get(next.checked_sub(1)?)?);
        (offset - u64::from(function.offset) < u64::from(function.size)).then_some(function)
    }
    /// Finds the function with this path, or else the one with this last name.
    pub fn named(&self, name: &str) -> NameSearch {
        let hash = name_hash(name.as_bytes());
        match self.only(|function| function.path == hash) {
            NameSearch::None => self.only(|function| function.last == hash),
            found => found,
        }
    }
    fn only(&self, is_it: impl Fn(&Function) -> bool) -> NameSearch {
        let mut found = self.functions.iter().map(|&words| Function::from_words(words)).filter(is_it);
        match (found.next(), found.next()) {
            (None, _) => NameSearch::None,
            (Some(one), None) => NameSearch::One(one),
            _ => NameSearch::Several,
        }
    }
}
