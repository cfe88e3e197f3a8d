//! The first page of a swap area, in the format of mkswap(8) (linux/swap.h). It is hostile input.
//!
//! Bytes 0 to 1023 belong to boot loaders; from 1024 on: version, number of the last page, number
//! of bad pages, UUID, label; from 1536 on the bad pages' numbers; the signature in the page's last
//! 10 bytes. Numbers have the writer's byte order, which may be either.

use freehold_collections::Vec;
use freehold_machine::PAGE_SIZE;

const SIGNATURE: &[u8; 10] = b"SWAPSPACE2";
const VERSION: usize = 1024;
const LAST: usize = 1028;
const BAD_COUNT: usize = 1032;
const BAD: usize = 1536;
/// Largest number of bad pages for which there is room before the signature.
const MOST_BAD: usize = (PAGE_SIZE - SIGNATURE.len() - BAD) / 4;

/// Pages of a swap area.
#[derive(PartialEq, Eq, Debug)]
pub struct SwapHeader {
    /// Number of pages, including the header. Pages 1 to `end` - 1 are usable, except for `bad`.
    pub end: u64,
    /// The bad pages, all of which are in that range.
    pub bad: Vec<u64>,
}

/// The reason why a page is not a usable header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotSwap {
    /// There is no signature.
    Unsigned,
    /// The version is not 1.
    Version(u32),
    /// The area has no page besides the header.
    Empty,
    /// The header claims more pages than the disk has.
    Short {
        /// Number of pages that it claims.
        says: u64,
        /// Number of pages of the disk.
        has: u64,
    },
    /// There are more bad pages than room for their numbers, or one is outside the area.
    BadPages,
    /// There is no memory for the list.
    Memory,
}

impl core::fmt::Display for NotSwap {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Unsigned => f.write_str("no swap signature"),
            Self::Version(version) => write!(f, "a header of version {version}, which nobody knows"),
            Self::Empty => f.write_str("no page to swap to"),
            Self::Short { says, has } => write!(f, "the header speaks of {says} pages and there are {has}"),
            Self::BadPages => f.write_str("a list of bad pages that makes no sense"),
            Self::Memory => f.write_str("no memory"),
        }
    }
}

/// Reads the first page of an area with `pages` whole pages.
///
/// # Errors
/// [`NotSwap`].
pub fn parse(page: &[u8; PAGE_SIZE], pages: u64) -> Result<SwapHeader, NotSwap> {
    if !page.ends_with(SIGNATURE) {
        return Err(NotSwap::Unsigned);
    }
    let number = |at: usize| u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
    let is_foreign = number(VERSION).swap_bytes() == 1;
    let number = |at| if is_foreign { number(at).swap_bytes() } else { number(at) };
    if number(VERSION) != 1 {
        return Err(NotSwap::Version(number(VERSION)));
    }
    let (last, count) = (u64::from(number(LAST)), number(BAD_COUNT) as usize);
    if last == 0 {
        return Err(NotSwap::Empty);
    }
    if last >= pages {
        return Err(NotSwap::Short { says: last + 1, has: pages });
    }
    if count > MOST_BAD {
        return Err(NotSwap::BadPages);
    }
    let mut bad = Vec::new();
    let pages = (0..count).map(|index| u64::from(number(BAD + 4 * index)));
    bad.try_extend(pages).map_err(|_| NotSwap::Memory)?;
    if bad.iter().any(|page| !(1..=last).contains(page)) {
        return Err(NotSwap::BadPages);
    }
    bad.sort_unstable();
    bad.dedup();
    if bad.len() as u64 == last {
        return Err(NotSwap::Empty);
    }
    Ok(SwapHeader { end: last + 1, bad })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(last: u32, bad: &[u32]) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        let words = [(VERSION, 1), (LAST, last), (BAD_COUNT, bad.len() as u32)];
        let all = words.into_iter().chain(bad.iter().enumerate().map(|(n, &page)| (BAD + 4 * n, page)));
        all.for_each(|(at, word)| page[at..at + 4].copy_from_slice(&word.to_le_bytes()));
        page[4086..].copy_from_slice(SIGNATURE);
        page
    }

    #[test]
    fn what_mkswap_writes_is_read_in_either_byte_order() {
        let page = header(9, &[7, 3, 7]);
        let read = SwapHeader { end: 10, bad: Vec::try_from_slice(&[3, 7]).unwrap() };
        assert_eq!(parse(&page, 10).as_ref(), Ok(&read));
        let mut foreign = page;
        foreign[VERSION..4084].chunks_exact_mut(4).for_each(<[u8]>::reverse);
        assert_eq!(parse(&foreign, 1 << 40), Ok(read));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(parse(&[0; PAGE_SIZE], 10), Err(NotSwap::Unsigned));
        assert_eq!(parse(&header(0, &[]), 10), Err(NotSwap::Empty));
        assert_eq!(parse(&header(10, &[]), 10), Err(NotSwap::Short { says: 11, has: 10 }));
        assert_eq!(parse(&header(u32::MAX, &[]), 10), Err(NotSwap::Short { says: 1 << 32, has: 10 }));
        assert_eq!(parse(&header(3, &[1, 2, 3]), 10), Err(NotSwap::Empty));
        for bad in [&[0][..], &[10], &[u32::MAX]] {
            assert_eq!(parse(&header(9, bad), 10), Err(NotSwap::BadPages), "{bad:?}");
        }
        let mut page = header(9, &[]);
        page[BAD_COUNT..BAD_COUNT + 4].fill(0xff);
        assert_eq!(parse(&page, 10), Err(NotSwap::BadPages));
        page[VERSION] = 2;
        assert_eq!(parse(&page, 10), Err(NotSwap::Version(2)));
    }

    /// Parsing any page gives an error or a value that fulfils the guarantees of `SwapHeader`.
    #[test]
    fn random_pages_are_read_to_an_end() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u32
        };
        for _ in 0..2000 {
            let mut page = header(random() % 700, &[]);
            let count = random() % 640;
            page[BAD_COUNT..BAD_COUNT + 4].copy_from_slice(&count.to_le_bytes());
            for at in (BAD..BAD + 4 * 637).step_by(4) {
                page[at..at + 4].copy_from_slice(&(random() % 800).to_le_bytes());
            }
            if let Ok(header) = parse(&page, 650) {
                assert!(header.end <= 650 && header.bad.iter().all(|bad| (1..header.end).contains(bad)));
            }
        }
    }
}
