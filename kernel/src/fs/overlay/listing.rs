//! Listing of a merged directory.
//!
//! A listing is made when an open directory is read from its beginning, and is used until the
//! directory is read from its beginning again. Positions are indices into the listing. So an entry
//! that stays in the directory meanwhile is listed exactly once, and no name twice. The listing
//! takes memory for all names of the directory; a lack of memory is returned as an error. A
//! directory without an end gives `EIO`.

use core::ops::Range;

use freehold_collections::{Arc, Vec};

use super::node::OverlayNode;
use super::{LIST, is_whiteout, looked_up};
use crate::fs::file::DirEntry;
use crate::fs::node::{Node, NodeKind};
use crate::{Errno, Result, sched};

struct ListedName {
    /// Range in the text of all names.
    name: Range<usize>,
    inode: u64,
    kind: u8,
    is_seen: bool,
}

/// From this number of names on, a directory is checked for names that it lists twice.
const SUSPICIOUS: usize = 4096;

/// The names of a directory.
#[derive(Default)]
pub(super) struct Listing {
    text: Vec<u8>,
    entries: Vec<ListedName>,
}

const CHAR_DEVICE: u8 = (NodeKind::CharDevice as u32 >> 12) as u8;
/// The tree does not report the kind (DT_UNKNOWN): the name may be a whiteout.
const UNTOLD: u8 = 0;

impl Listing {
    /// Lists all names in a directory of one of the trees, including whiteouts.
    pub fn of_tree(dir: &Arc<dyn Node>) -> Result<Self> {
        let mut listing = Self::default();
        listing.gather(dir, 0)?;
        Ok(listing)
    }

    /// Like [`Self::of_tree`], sorted by name.
    pub fn of_tree_sorted(dir: &Arc<dyn Node>) -> Result<Self> {
        let mut listing = Self::of_tree(dir)?;
        listing.order(0);
        Ok(listing)
    }

    /// Lists a directory of the merged tree.
    pub fn of_merged(dir: &OverlayNode) -> Result<Self> {
        let mut listing = Self::default();
        if dir.is_removed() {
            return Ok(listing);
        }
        if let Some(upper) = dir.upper() {
            listing.gather(&upper, 0)?;
            listing.order(0);
            for entry in listing.entries.iter_mut() {
                sched::checkpoint()?;
                match looked_up(&*upper, &listing.text[entry.name.clone()])? {
                    Some(node) if !is_whiteout(&*node) => entry.inode = dir.shared.shown_of_upper(&*node)?,
                    // A whiteout, or removed: in both cases the name is not visible.
                    _ => entry.is_seen = false,
                }
            }
        }
        for (place, below) in dir.all_lower().iter().enumerate() {
            if place > 0 {
                listing.order(0);
            }
            let first = listing.entries.len();
            listing.gather(&below.node, first)?;
            for entry in listing.entries[first..].iter_mut() {
                entry.inode = dir.shared.shown_of_lower(below.tree, entry.inode);
                if matches!(entry.kind, CHAR_DEVICE | UNTOLD) {
                    sched::checkpoint()?;
                    let found = looked_up(&*below.node, &listing.text[entry.name.clone()])?;
                    let seen = found.filter(|node| !is_whiteout(&**node));
                    entry.is_seen = seen.is_some();
                    entry.kind = seen.map_or(UNTOLD, |node| node.kind().dirent_kind());
                }
            }
        }
        Ok(listing)
    }

    /// Adds the names in `dir` that are not among the first `sorted` names, which are sorted.
    fn gather(&mut self, dir: &Arc<dyn Node>, sorted: usize) -> Result<()> {
        let file = dir.clone().open(LIST)?;
        let mut from = 0;
        loop {
            let (mut outcome, mut next) = (Ok(()), None);
            file.read_dir(from, &mut |entry| {
                outcome = self.add(&entry, sorted);
                next = Some(entry.next).filter(|_| outcome.is_ok() && self.has_doubled(sorted));
                outcome.is_ok() && next.is_none()
            })?;
            outcome?;
            let Some(next) = next else { return Ok(()) };
            self.check_goes_on(sorted)?;
            from = next;
        }
    }

    fn add(&mut self, entry: &DirEntry<'_>, sorted: usize) -> Result<()> {
        if matches!(entry.name, b"." | b"..") {
            return Ok(());
        }
        let text = &self.text;
        let named = |listed: &ListedName| text[listed.name.clone()].cmp(entry.name);
        if self.entries[..sorted].binary_search_by(named).is_ok() {
            return Ok(());
        }
        let start = self.text.len();
        self.text.try_extend_from_slice(entry.name)?;
        let name = start..self.text.len();
        self.entries.try_push(ListedName { name, inode: entry.inode, kind: entry.kind, is_seen: true })?;
        Ok(())
    }

    /// Whether to check for names that are listed twice: at each doubling of the number, with
    /// nothing locked.
    fn has_doubled(&self, first: usize) -> bool {
        let count = self.entries.len() - first;
        count >= SUSPICIOUS && count.is_power_of_two()
    }

    /// `EIO` for a server that lists the same names endlessly.
    fn check_goes_on(&mut self, first: usize) -> Result<()> {
        self.order(first);
        let name = |entry: &ListedName| &self.text[entry.name.clone()];
        let repeats = self.entries[first..].windows(2).any(|pair| name(&pair[0]) == name(&pair[1]));
        if repeats { Err(Errno::EIO) } else { Ok(()) }
    }

    fn order(&mut self, first: usize) {
        let text = &self.text;
        self.entries[first..].sort_unstable_by(|a, b| text[a.name.clone()].cmp(&text[b.name.clone()]));
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.iter().filter(|entry| entry.is_seen).map(|entry| &self.text[entry.name.clone()])
    }

    /// Name number `place` of a tree's listing.
    pub fn at(&self, place: usize) -> Option<&[u8]> {
        self.entries.get(place).map(|entry| &self.text[entry.name.clone()])
    }

    /// Whether no name is visible.
    pub fn is_empty(&self) -> bool {
        self.names().next().is_none()
    }

    /// Calls `emit` with the entries from place `from` on, until it returns `false`. The position
    /// after entry `n` is `base + n + 1`.
    pub fn emit(&self, from: u64, base: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let from = usize::try_from(from).map_err(|_| Errno::EINVAL)?.min(self.entries.len());
        for (index, entry) in self.entries.iter().enumerate().skip(from).filter(|(_, entry)| entry.is_seen) {
            let (name, next) = (&self.text[entry.name.clone()], base + index as u64 + 1);
            if !emit(DirEntry { name, inode: entry.inode, kind: entry.kind, next }) {
                break;
            }
        }
        Ok(())
    }
}
