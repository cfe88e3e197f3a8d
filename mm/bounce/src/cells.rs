//! Small pieces of a device's own pages: headers, status bytes, short messages.
//!
//! A page of cells has cells of one size and one bitmap word, as a segment has for its pages
//! ([`FreePages`]). Each page of cells belongs to one device, so no two devices share a page. The
//! first page of a size stays; others are freed when all their cells are free.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::{PAGE_SIZE, Pfn};
use spin::Mutex;

use crate::runs::Run;
use crate::word::{Fit, FreePages, Span};

/// Bytes in a cell.
const SIZES: [usize; 3] = [64, 512, 2048];
/// Pages of cells of each size that a device can have. An allocation that does not fit gets a page
/// of its own.
const PAGES: usize = 4;

/// A cell that is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    size: u8,
    page: u8,
    number: u8,
}

impl Cell {
    /// Its bytes.
    pub const fn bytes(self) -> usize {
        SIZES[self.size as usize]
    }
    /// The cell's offset in its page.
    pub const fn offset(self) -> usize {
        self.number as usize * self.bytes()
    }
}

/// A page of cells. `frame` and `place` are written while the writer holds all cells.
struct CellPage {
    free: FreePages,
    frame: AtomicU64,
    /// The page's segment and its index there, each stored plus one in a bit field; 0: there is no
    /// page.
    place: AtomicU64,
}

/// The cells of a device.
pub(crate) struct Cells {
    pages: [[CellPage; PAGES]; SIZES.len()],
    /// Held while a page is added or removed.
    change: Mutex<()>,
}

impl Cells {
    pub fn new() -> Self {
        let page = || CellPage { free: FreePages::new(), frame: AtomicU64::new(0), place: AtomicU64::new(0) };
        Self { pages: core::array::from_fn(|_| core::array::from_fn(|_| page())), change: Mutex::new(()) }
    }

    /// Whether `length` bytes fit in a cell.
    pub fn fits(length: usize) -> bool {
        length <= SIZES[SIZES.len() - 1]
    }

    fn size_for(length: usize) -> usize {
        SIZES.iter().position(|&size| length <= size).unwrap_or(SIZES.len() - 1)
    }

    /// Takes a free cell for `length` bytes; returns it and its page.
    pub fn take(&self, length: usize) -> Option<(Cell, Run)> {
        let size = Self::size_for(length);
        self.pages[size].iter().enumerate().find_map(|(number, page)| {
            let span = page.free.take(1, 1, Fit::Whole)?;
            let cell = Cell { size: size as u8, page: number as u8, number: span.first as u8 };
            Some((cell, page.run()))
        })
    }

    /// Whether the device can have one more page of cells for `length` bytes. The answer may be out
    /// of date.
    pub fn has_vacancy(&self, length: usize) -> bool {
        let pages = &self.pages[Self::size_for(length)];
        pages.iter().any(|page| page.place.load(Ordering::Relaxed) == 0)
    }

    /// Divides a page into cells for `length` bytes. Returns the page as an error if the device has
    /// the largest number of pages already.
    pub fn add(&self, length: usize, run: Run) -> Result<(), Run> {
        let size = Self::size_for(length);
        let _change = self.change.lock();
        let vacant = self.pages[size].iter().find(|page| page.place.load(Ordering::Relaxed) == 0);
        let Some(page) = vacant else { return Err(run) };
        page.frame.store(run.pfn.0, Ordering::Relaxed);
        page.place.store(u64::from(run.segment) << 16 | u64::from(run.first) << 8 | 1, Ordering::Relaxed);
        page.free.install((PAGE_SIZE / SIZES[size]) as u32);
        Ok(())
    }

    /// Removes a page of cells that has no cell in use; `None`: there is no such page.
    pub fn remove_idle(&self) -> Option<Run> {
        let _change = self.change.lock();
        self.pages.iter().zip(SIZES).find_map(|(pages, size)| {
            let count = (PAGE_SIZE / size) as u32;
            let page = pages.iter().find(|page| page.free.retire(count))?;
            let run = page.run();
            page.place.store(0, Ordering::Relaxed);
            Some(run)
        })
    }

    /// Gives a cell back. Returns a page that has no cells in use any more and is not needed.
    pub fn give(&self, cell: Cell) -> Option<Run> {
        let page = &self.pages[usize::from(cell.size)][usize::from(cell.page)];
        page.free.give(Span { first: cell.number.into(), count: 1 });
        if cell.page == 0 {
            return None;
        }
        let _change = self.change.lock();
        page.free.retire((PAGE_SIZE / cell.bytes()) as u32).then(|| {
            let run = page.run();
            page.place.store(0, Ordering::Relaxed);
            run
        })
    }
}

impl CellPage {
    fn run(&self) -> Run {
        let place = self.place.load(Ordering::Relaxed);
        Run {
            pfn: Pfn(self.frame.load(Ordering::Relaxed)),
            segment: (place >> 16) as u16,
            first: (place >> 8) as u8,
            count: 1,
        }
    }
}
