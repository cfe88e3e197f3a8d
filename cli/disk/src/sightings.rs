//! Records which pages disks see, to find pages that two disks see at the same time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::ring::ChainPart;

const PAGE: u64 = 4096;

/// Pages that hold data while a request is served, and pages with small objects that a device
/// always sees: headers, status bytes.
#[derive(Debug, Default)]
struct Seen {
    /// The disk that sees a page now, and the number of its requests with the page.
    now: BTreeMap<u64, (u8, usize)>,
    for_good: BTreeMap<u64, u8>,
    looks: u64,
    by_two: u64,
}

/// A record of the guest's pages that several disks see. A disk sees whole pages, as behind an
/// IOMMU, even if a request names only a part.
#[derive(Debug, Default)]
pub struct Sightings(Mutex<Seen>);

impl Sightings {
    /// Number of pages that disks have seen, and of those that another disk saw at the same time.
    pub fn looks(&self) -> (u64, u64) {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.looks, seen.by_two)
    }
    /// A disk begins to serve a request.
    pub(crate) fn begin(&self, disk: u8, parts: &[ChainPart]) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for page in pages(parts) {
            let is_other = |&owner: &u8| owner != disk;
            let others = seen.for_good.get(&page).is_some_and(is_other)
                || seen.now.get(&page).is_some_and(|(owner, _)| is_other(owner));
            seen.looks += 1;
            seen.by_two += u64::from(others);
            seen.now.entry(page).or_insert((disk, 0)).1 += 1;
        }
        for page in parts.iter().filter(|part| u64::from(part.length) < 512).flat_map(pages_of) {
            seen.for_good.insert(page, disk);
        }
    }
    /// The disk has served the request.
    pub(crate) fn end(&self, parts: &[ChainPart]) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for page in pages(parts) {
            if let Some((_, requests)) = seen.now.get_mut(&page) {
                *requests -= 1;
                if *requests == 0 {
                    seen.now.remove(&page);
                }
            }
        }
    }
}

fn pages_of(part: &ChainPart) -> impl Iterator<Item = u64> + use<> {
    let end = part.address.saturating_add(part.length.into());
    part.address / PAGE..end.div_ceil(PAGE)
}

/// The pages of a request, each once.
fn pages(parts: &[ChainPart]) -> Vec<u64> {
    let mut pages: Vec<u64> = parts.iter().flat_map(pages_of).collect();
    pages.sort_unstable();
    pages.dedup();
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_seen_by_two_while_both_see_it_and_one_with_a_header_for_good() {
        let part = |address, length| ChainPart { address, length, writable: false };
        let (one, two) = ([part(0x1000, 16), part(0x2800, 0x1000)], [part(0x3000, 0x1000)]);
        let sightings = Sightings::default();
        sightings.begin(0, &one);
        assert_eq!(sightings.looks(), (3, 0), "pages 1, 2 and 3");
        sightings.begin(1, &two);
        assert_eq!(sightings.looks(), (4, 1), "page 3");
        sightings.end(&one);
        sightings.end(&two);
        sightings.begin(1, &two);
        assert_eq!(sightings.looks(), (5, 1));
        sightings.begin(1, &[part(0x1fff, 1)]);
        assert_eq!(sightings.looks(), (6, 2), "the header's page");
        sightings.begin(0, &one[..1]);
        assert_eq!(sightings.looks(), (7, 3), "it has both disks' now");
    }
}
