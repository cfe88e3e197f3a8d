//! One CPU's translation caches: a set-associative TLB and a cache of upper-level walks.

use std::vec::Vec;

use crate::{Flush, PAGE_SHIFT, Pfn, VirtAddr};

const SETS: usize = 64;
const WAYS: usize = 8;
const WALKS: usize = 32;
/// Pages of 4 KiB under one entry of a level-2 table.
const LARGE_PAGES: u64 = 512;

/// A translation as it was when it was cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TlbEntry {
    /// First page number that the entry covers.
    pub page: u64,
    /// 1, or [`LARGE_PAGES`].
    pub pages: u64,
    pub pfn: Pfn,
    pub write: bool,
    pub execute: bool,
    /// Protection key.
    pub key: u64,
    pub dirty: bool,
    pub global: bool,
}

/// A walk down to a leaf table as it was when it was cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Upper {
    /// Page number / [`LARGE_PAGES`].
    pub region: u64,
    pub table: Pfn,
    pub write: bool,
    pub execute: bool,
}

pub(super) struct TlbState {
    pub root: Option<Pfn>,
    sets: Vec<Vec<TlbEntry>>,
    uppers: Vec<Upper>,
    victim: usize,
}

impl TlbState {
    pub(super) fn new() -> Self {
        Self { root: None, sets: (0..SETS).map(|_| Vec::new()).collect(), uppers: Vec::new(), victim: 0 }
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &TlbEntry> {
        self.sets.iter().flatten()
    }

    pub(super) fn uppers(&self) -> &[Upper] {
        &self.uppers
    }

    fn set_of(page: u64, pages: u64) -> usize {
        (page / pages) as usize % SETS
    }

    pub(super) fn find(&self, addr: VirtAddr) -> Option<TlbEntry> {
        let page = addr.0 >> PAGE_SHIFT;
        [1, LARGE_PAGES].iter().find_map(|&pages| {
            let start = page / pages * pages;
            self.sets[Self::set_of(start, pages)]
                .iter()
                .find(|l| l.page == start && l.pages == pages)
                .copied()
        })
    }

    pub(super) fn find_upper(&self, addr: VirtAddr) -> Option<Upper> {
        let region = (addr.0 >> PAGE_SHIFT) / LARGE_PAGES;
        self.uppers.iter().find(|u| u.region == region).copied()
    }

    pub(super) fn insert(&mut self, line: TlbEntry) {
        let set = &mut self.sets[Self::set_of(line.page, line.pages)];
        set.retain(|l| l.page != line.page || l.pages != line.pages);
        if set.len() == WAYS {
            self.victim = (self.victim + 1) % WAYS;
            set.swap_remove(self.victim);
        }
        set.push(line);
    }

    pub(super) fn insert_upper(&mut self, upper: Upper) {
        self.uppers.retain(|u| u.region != upper.region);
        if self.uppers.len() == WALKS {
            self.uppers.remove(0);
        }
        self.uppers.push(upper);
    }

    /// Drops the entries of the address, as the CPU itself does on a fault (SDM 4.10.4.1).
    pub(super) fn forget_page(&mut self, addr: VirtAddr) {
        let page = addr.0 >> PAGE_SHIFT;
        self.sets.iter_mut().for_each(|set| set.retain(|l| !(l.page <= page && page < l.page + l.pages)));
        self.uppers.retain(|u| u.region != page / LARGE_PAGES);
    }

    /// A range flush drops all cached walks, as INVLPG does (SDM 4.10.4.1).
    pub(super) fn flush(&mut self, what: Flush) {
        let keep = |line: &TlbEntry| match what {
            Flush::Range { start, pages } => {
                let first = start.0 >> PAGE_SHIFT;
                line.page + line.pages <= first || first + pages <= line.page
            }
            // One INVLPG for each leaf: it drops translations of the leaf's first address, of any
            // size, and nothing else. A cached small page further inside the leaf stays.
            Flush::Blocks { start, blocks } => {
                let first = start.0 >> PAGE_SHIFT;
                let covers = |page| line.page <= page && page < line.page + line.pages;
                !(0..blocks).any(|block| covers(first + block * LARGE_PAGES))
            }
            Flush::NonGlobal => line.global,
            Flush::All => false,
        };
        self.sets.iter_mut().for_each(|set| set.retain(keep));
        self.uppers.clear();
    }

    pub(super) fn load_root(&mut self, root: Pfn) {
        self.flush(Flush::NonGlobal);
        self.root = Some(root);
    }
}
