//! PAGEMAP_SCAN, the ioctl of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst): finds
//! regions of pages by their categories.
//!
//! The scan checks 2 MiB of memory at a time, with the space locked; in between, complete regions
//! are written to the program. So the report on each piece is consistent, and a scan of a whole
//! address space delays no other task for long. Write-protection needs the asynchronous mode of
//! userfaultfd, which is not offered. So no page is "wp-allowed", a request for only such pages is
//! EPERM, and there is nothing to protect.

use freehold_collections::Vec;
/// The request's number: `_IOWR('f', 16, struct pm_scan_arg)`.
pub(super) const PAGEMAP_SCAN: u32 = 0xc060_6610;

/// Categories of a page (`PAGE_IS_`). Bit 0 is missing: it stands for pages that userfaultfd
/// protects asynchronously.
pub(super) mod category {
    pub const WRITTEN: u64 = 1 << 1;
    pub const FILE: u64 = 1 << 2;
    pub const PRESENT: u64 = 1 << 3;
    pub const SWAPPED: u64 = 1 << 4;
    pub const PFNZERO: u64 = 1 << 5;
    pub const HUGE: u64 = 1 << 6;
    pub const SOFT_DIRTY: u64 = 1 << 7;
    /// All categories.
    pub const ALL: u64 = (1 << 8) - 1;
}

/// Consecutive pages with the same categories, as reported to the program: `struct page_region`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PageRegion {
    pub start: u64,
    pub end: u64,
    pub categories: u64,
}

/// The requested pages, and the categories to report for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Filter {
    pub inverted: u64,
    pub all_of: u64,
    pub any_of: u64,
    pub told: u64,
}

impl Filter {
    fn wants(&self, categories: u64) -> bool {
        let seen = categories ^ self.inverted;
        seen & self.all_of == self.all_of && (self.any_of == 0 || seen & self.any_of != 0)
    }
}

/// Whether there is room for more regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// There is room for more.
    More,
    /// The scan ends at this address.
    FullAt(u64),
}

/// Receives regions; the number is that of the first region.
pub(super) type Deliver<'a, E> = &'a dyn Fn(u64, &[PageRegion]) -> Result<(), E>;

/// The regions found so far.
pub(super) struct Regions {
    filter: Filter,
    /// Number of regions that the program has room for; `None` if it requests no report.
    room: Option<u64>,
    /// Number of pages that may still be reported.
    pages: u64,
    /// Number of regions that were delivered to the program.
    delivered: u64,
    /// Other regions; the last one may grow.
    waiting: Vec<PageRegion>,
    /// Whether a region had to be left out.
    out_of_memory: bool,
}

impl Regions {
    pub fn new(filter: Filter, room: Option<u64>, pages: u64) -> Self {
        Self { filter, room, pages, delivered: 0, waiting: Vec::new(), out_of_memory: false }
    }

    /// Adds the pages of `start..end`, which follow the previous pages and have these categories.
    pub fn add(&mut self, start: u64, mut end: u64, categories: u64) -> Room {
        let Some(room) = self.room else { return Room::More };
        if start == end || !self.filter.wants(categories) {
            return Room::More;
        }
        let told = categories & self.filter.told;
        let whole = end;
        end = end.min(start.saturating_add(self.pages.saturating_mul(4096)));
        let found = self.found();
        match self.waiting.last_mut() {
            Some(last) if last.end == start && last.categories == told => last.end = end,
            _ if start == end || found == room => return Room::FullAt(start),
            _ => {
                self.out_of_memory =
                    self.waiting.try_push(PageRegion { start, end, categories: told }).is_err();
                if self.out_of_memory {
                    return Room::FullAt(start);
                }
            }
        }
        self.pages -= (end - start) / 4096;
        if end < whole { Room::FullAt(end) } else { Room::More }
    }

    /// Number of regions.
    pub fn found(&self) -> u64 {
        self.delivered + self.waiting.len() as u64
    }

    /// Delivers the regions that are complete while the scan continues, with the number of the
    /// first.
    pub fn deliver_complete<E>(&mut self, deliver: Deliver<'_, E>) -> Result<(), E> {
        self.deliver(self.waiting.len().saturating_sub(1), deliver)
    }

    /// Delivers all remaining regions, with the number of the first. Returns whether a region after
    /// these had to be left out because memory was short.
    pub fn deliver_all<E>(&mut self, deliver: Deliver<'_, E>) -> Result<bool, E> {
        self.deliver(self.waiting.len(), deliver)?;
        Ok(self.out_of_memory)
    }

    fn deliver<E>(&mut self, count: usize, deliver: Deliver<'_, E>) -> Result<(), E> {
        deliver(self.delivered, &self.waiting[..count])?;
        self.delivered += count as u64;
        self.waiting.drain(..count);
        Ok(())
    }
}

pub(super) use call::scan;

mod call {
    use freehold_collections::Arc;
    use freehold_machine::VirtAddr;
    use freehold_vm::{AreaFlags, OfFile, PageAt, PageSize, PageView, Written};

    use super::{Filter, Regions, Room, category};
    use crate::hw::PAGE;
    use crate::mem::ProcessSpace;
    use crate::user::UserPtr;
    use crate::{Errno, Result, sched, task};

    const LARGE: u64 = 2 << 20;
    /// One past the last address that a program can name.
    const END: u64 = (1 << 47) - PAGE;

    /// Fail if userfaultfd does not protect an area asynchronously (`PM_SCAN_CHECK_WPASYNC`): here
    /// always.
    const CHECK_WPASYNC: u64 = 2;
    /// Known flags: `CHECK_WPASYNC`, and the protection of matching pages (`PM_SCAN_WP_MATCHING`),
    /// which does nothing: no page is protected asynchronously.
    const FLAGS: u64 = 1 | CHECK_WPASYNC;

    /// `struct pm_scan_arg`, by field.
    const SIZE: u64 = 96;
    const WALK_END: usize = 4;

    /// PAGEMAP_SCAN(argument): returns how many regions were found.
    pub fn scan(space: &Arc<ProcessSpace>, argument: u64) -> Result<i64> {
        let given = UserPtr::<[u64; 12]>::new(argument).read()?;
        let [size, flags, start, end, _, out, room, most, inverted, all_of, any_of, told] = given;
        let known = (inverted | all_of | any_of | told) & !category::ALL == 0;
        if size != SIZE || flags & !FLAGS != 0 || !known || start % PAGE != 0 {
            return Err(Errno::EINVAL);
        }
        if start > end || end > END {
            return Err(Errno::EFAULT);
        }
        if out == 0 && room != 0 {
            return Err(Errno::EINVAL);
        }
        if out != 0 && room.checked_mul(24).and_then(|len| out.checked_add(len)).is_none_or(|last| last > END)
        {
            return Err(Errno::EFAULT);
        }
        let filter = Filter { inverted, all_of, any_of, told };
        let most = if most == 0 { u64::MAX } else { most };
        let mut regions = Regions::new(filter, (room > 0).then_some(room), most);
        let mut at = start;
        let end = end.next_multiple_of(PAGE);
        let mut outcome = Ok(());
        while at < end && outcome.is_ok() {
            let step = look(space, at, end, flags, &mut regions);
            regions.deliver_complete(&|first, complete| deliver(out, first, complete))?;
            match step {
                Ok((next, Room::More)) => at = next,
                Ok((_, Room::FullAt(full))) => {
                    at = full;
                    break;
                }
                Err(error) => outcome = Err(error),
            }
            if task::current().is_dying() {
                outcome = Err(Errno::EINTR);
            }
            sched::cond_resched();
        }
        if regions.deliver_all(&|first, rest| deliver(out, first, rest))? {
            outcome = outcome.and(Err(Errno::ENOMEM));
        }
        UserPtr::<u64>::new(argument).add(WALK_END).write(&at.min(end))?;
        outcome.map(|()| regions.found() as i64)
    }

    fn deliver(out: u64, first: u64, regions: &[super::PageRegion]) -> Result<()> {
        let out = UserPtr::<[u64; 3]>::new(out);
        let write = |(index, region): (usize, &super::PageRegion)| {
            out.add(first as usize + index).write(&[region.start, region.end, region.categories])
        };
        regions.iter().enumerate().try_for_each(write)
    }

    /// Checks the memory from `at` on: to the end of its 2 MiB, or farther if nothing is mapped.
    /// Returns where to continue.
    fn look(
        space: &Arc<ProcessSpace>,
        at: u64,
        end: u64,
        flags: u64,
        regions: &mut Regions,
    ) -> Result<(u64, Room)> {
        let space = space.lock();
        let Some(area) = space.areas_in(VirtAddr(at), VirtAddr(end)).next() else {
            return Ok((end, Room::More));
        };
        if flags & CHECK_WPASYNC != 0 {
            return Err(Errno::EPERM);
        }
        let from = area.start.0.max(at);
        let last = area.end.0.min(end);
        let of_area = if area.flags.contains(AreaFlags::SOFTDIRTY) { category::SOFT_DIRTY } else { 0 };
        let populated = space.next_populated(VirtAddr(from)..VirtAddr(last)).map_or(last, |next| next.0);
        if populated > from {
            return Ok((populated, regions.add(from, populated, of_area)));
        }
        let to = last.min((from & !(LARGE - 1)) + LARGE);
        let huge = if space.leaf_size(VirtAddr(from)) == PageSize::Large { category::HUGE } else { 0 };
        let (mut next, mut left) = (from, Room::More);
        space.pages(VirtAddr(from), VirtAddr(to), |page| {
            if left == Room::More {
                left = regions.add(next, page.addr.0, of_area);
            }
            if left == Room::More {
                left = regions.add(page.addr.0, page.addr.0 + PAGE, of_area | huge | of_page(&page));
            }
            next = page.addr.0 + PAGE;
        });
        if left == Room::More {
            left = regions.add(next, to, of_area);
        }
        Ok((to, left))
    }

    fn of_page(page: &PageView) -> u64 {
        let when = |holds: bool, what: u64| if holds { what } else { 0 };
        let place = match page.at {
            PageAt::Swapped(_) => category::SWAPPED,
            PageAt::Frame(_) if page.mappings == 0 => category::PRESENT | category::PFNZERO,
            PageAt::Frame(_) => category::PRESENT,
        };
        place
            | category::WRITTEN
            | when(page.of_file == OfFile::Yes, category::FILE)
            | when(page.written == Written::Since, category::SOFT_DIRTY)
    }
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;
    use std::vec::Vec;

    use freehold_collections::inject;

    use super::*;
    use crate::Errno;
    use crate::hw::PAGE;

    const ALL: Filter = Filter { inverted: 0, all_of: 0, any_of: category::ALL, told: category::ALL };

    /// Takes the complete regions, and returns them with the number of the first.
    fn take_complete(found: &mut Regions) -> (u64, Vec<PageRegion>) {
        let taken = RefCell::new((0, Vec::new()));
        let take = |first, regions: &[PageRegion]| *taken.borrow_mut() = (first, regions.to_vec());
        found
            .deliver_complete(&|first, regions| {
                take(first, regions);
                Ok::<_, Errno>(())
            })
            .unwrap();
        taken.into_inner()
    }

    /// Takes all regions, and returns them with the number of the first.
    fn take_all(found: &mut Regions) -> (u64, Vec<PageRegion>) {
        let taken = RefCell::new((0, Vec::new()));
        let take = |first, regions: &[PageRegion]| *taken.borrow_mut() = (first, regions.to_vec());
        let outcome = found.deliver_all(&|first, regions| {
            take(first, regions);
            Ok::<_, Errno>(())
        });
        assert_eq!(outcome, Ok(false));
        taken.into_inner()
    }

    fn regions(filter: Filter, room: u64, pages: u64) -> Regions {
        Regions::new(filter, Some(room), pages)
    }

    fn region(pages: core::ops::Range<u64>, categories: u64) -> PageRegion {
        PageRegion { start: pages.start * PAGE, end: pages.end * PAGE, categories }
    }

    fn add(regions: &mut Regions, pages: core::ops::Range<u64>, categories: u64) -> Room {
        regions.add(pages.start * PAGE, pages.end * PAGE, categories)
    }

    /// Adjacent pages with the same reported categories are one region, also over several
    /// deliveries.
    #[test]
    fn neighbours_that_are_alike_are_one_region() {
        let mut found = regions(Filter { told: category::PRESENT, ..ALL }, 9, 100);
        assert_eq!(add(&mut found, 0..1, category::PRESENT), Room::More);
        assert_eq!(add(&mut found, 1..3, category::PRESENT | category::HUGE), Room::More);
        assert_eq!(take_complete(&mut found), (0, Vec::new()), "it may grow yet");
        assert_eq!(add(&mut found, 3..4, category::PRESENT), Room::More);
        assert_eq!(add(&mut found, 5..6, category::PRESENT), Room::More, "not a neighbour");
        assert_eq!(add(&mut found, 6..7, 0), Room::More, "not wanted");
        assert_eq!(add(&mut found, 7..8, category::SWAPPED), Room::More);
        assert_eq!(take_complete(&mut found), (0, std::vec![region(0..4, 8), region(5..6, 8)]));
        assert_eq!(take_all(&mut found), (2, std::vec![region(7..8, 0)]));
        assert_eq!(found.found(), 3);
    }

    /// Inversion precedes both masks; the reported categories are not inverted.
    #[test]
    fn masks_see_inverted_categories() {
        let filter = Filter { inverted: category::FILE, all_of: category::FILE | category::PRESENT, ..ALL };
        let mut found = regions(filter, 9, 100);
        add(&mut found, 0..1, category::PRESENT);
        add(&mut found, 1..2, category::PRESENT | category::FILE);
        add(&mut found, 2..3, 0);
        assert_eq!(take_all(&mut found).1, [region(0..1, category::PRESENT)]);
        let none = Filter { any_of: 0, ..ALL };
        let mut found = regions(none, 9, 100);
        add(&mut found, 0..1, 0);
        assert_eq!(found.found(), 1, "without masks all pages are wanted");
    }

    /// A scan ends at the first page for which there is no room, and returns its address.
    #[test]
    fn a_scan_ends_where_there_is_no_more_room() {
        let mut found = regions(ALL, 2, 100);
        add(&mut found, 0..1, category::PRESENT);
        add(&mut found, 2..3, category::PRESENT);
        assert_eq!(add(&mut found, 3..4, category::PRESENT), Room::More, "part of the second");
        assert_eq!(add(&mut found, 5..6, category::PRESENT), Room::FullAt(5 * PAGE));
        let mut found = regions(ALL, 9, 3);
        add(&mut found, 0..2, category::PRESENT);
        assert_eq!(add(&mut found, 4..9, category::PRESENT), Room::FullAt(5 * PAGE));
        assert_eq!(add(&mut found, 9..10, category::SWAPPED), Room::FullAt(9 * PAGE));
        assert_eq!(
            take_all(&mut found).1,
            [region(0..2, category::PRESENT), region(4..5, category::PRESENT)]
        );
    }

    /// A scan ends before a region for which there is no memory. The program gets the regions
    /// before it, and may continue.
    #[test]
    fn a_scan_without_memory_ends_before_the_region() {
        let mut found = regions(ALL, 9, 100);
        inject::fail_nth(1);
        assert_eq!(add(&mut found, 2..3, category::PRESENT), Room::FullAt(2 * PAGE));
        inject::fail_nth(0);
        let outcome = found.deliver_all(&|_, regions| if regions.is_empty() { Ok(()) } else { Err(()) });
        assert_eq!((outcome, found.found(), found.pages), (Ok(true), 0, 100));
    }

    /// A scan without room for regions reports none.
    #[test]
    fn without_room_nothing_is_told() {
        let mut found = Regions::new(ALL, None, 5);
        assert_eq!(add(&mut found, 0..9, category::PRESENT), Room::More);
        assert_eq!(found.found(), 0);
    }
}
