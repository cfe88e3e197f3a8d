//! Strings of a program.

use freehold_collections::{Vec, WipedChunk};
use freehold_machine::PAGE_SIZE;

use super::PATH_MAX;
use crate::hw::{self, Faults};
use crate::{Errno, Result};

/// Reads the path at `address`, without its NUL; may sleep.
///
/// # Errors
/// `EFAULT`, `ENOMEM`; `ENAMETOOLONG` if there is no NUL within [`PATH_MAX`] bytes.
pub fn string(address: u64) -> Result<Vec<u8>> {
    bounded_string(address, PATH_MAX, Errno::ENAMETOOLONG)
}

/// Reads the string at `address`, without its NUL; may sleep.
///
/// # Errors
/// `EFAULT`, `ENOMEM`; `too_long` if there is no NUL within `max` bytes.
pub fn bounded_string(address: u64, max: usize, too_long: Errno) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    visit_string(address, max, too_long, |part| Ok(bytes.try_extend_from_slice(part)?))?;
    Ok(bytes)
}

/// Passes the string at `address` to `take` in parts, without its NUL; may sleep. Each byte is read
/// once, so a string that changes meanwhile ends at one place.
///
/// # Errors
/// `EFAULT`; `too_long` if there is no NUL within `max` bytes; the errors of `take`.
pub fn visit_string(
    address: u64,
    max: usize,
    too_long: Errno,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    /// Bytes of the first part: most paths and most arguments are shorter.
    const FIRST: usize = 64;
    /// Bytes of each other part.
    const OTHER: usize = 512;
    let take: &mut dyn FnMut(&[u8]) -> Result<()> = &mut take;
    let mut part = WipedChunk::<FIRST>::new();
    let mut done = match string_part(address, part.part(max), take)? {
        StringPart::Last => return Ok(()),
        StringPart::More(count) => count,
    };
    let mut part = WipedChunk::<OTHER>::new();
    while done < max {
        let at = address.checked_add(done as u64).ok_or(Errno::EFAULT)?;
        match string_part(at, part.part(max - done), take)? {
            StringPart::Last => return Ok(()),
            StringPart::More(count) => done += count,
        }
    }
    Err(too_long)
}

/// The end of a string, or a part before it.
enum StringPart {
    /// The string's end.
    Last,
    /// So many bytes, and not the end.
    More(usize),
}

/// Reads a part of a string, at most to the end of its page: what follows need not be readable.
fn string_part(
    address: u64,
    room: &mut [u8],
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<StringPart> {
    let in_page = PAGE_SIZE - address as usize % PAGE_SIZE;
    let count = room.len().min(in_page);
    let bytes = &mut room[..count];
    if hw::read_user(address, bytes, Faults::Sleep) != count {
        return Err(Errno::EFAULT);
    }
    if let Some(text) = up_to_nul(bytes) {
        take(text)?;
        return Ok(StringPart::Last);
    }
    take(bytes)?;
    Ok(StringPart::More(count))
}

/// Returns the bytes before the first NUL, if there is one. The search takes a word at a time.
pub fn up_to_nul(bytes: &[u8]) -> Option<&[u8]> {
    const ONES: u64 = u64::MAX / 255;
    // A byte of 0 is the lowest byte in which this borrows (Bit Twiddling Hacks, "Determine if a
    // word has a zero byte").
    let has_nul = |word: u64| word.wrapping_sub(ONES) & !word & (ONES << 7) != 0;
    let (words, rest) = bytes.as_chunks::<8>();
    let from = match words.iter().position(|&word| has_nul(u64::from_ne_bytes(word))) {
        Some(word) => word * 8,
        None => bytes.len() - rest.len(),
    };
    let more = bytes[from..].iter().position(|&byte| byte == 0)?;
    Some(&bytes[..from + more])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_nul_is_found_at_each_place() {
        for length in 0..40 {
            let mut bytes: Vec<u8> = Vec::try_filled(0x80, length).unwrap();
            assert_eq!(up_to_nul(&bytes), None);
            for at in (0..length).rev() {
                bytes[at] = 0;
                assert_eq!(up_to_nul(&bytes).map(<[u8]>::len), Some(at), "{length}");
                // A byte above the NUL, in which a subtraction borrows.
                if at + 1 < length {
                    bytes[at + 1] = 1;
                }
            }
        }
    }
}
