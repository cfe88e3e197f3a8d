//! The names in a directory.
//!
//! Each entry has a position that no other entry of the directory ever had, and listings are in the
//! order of positions. So an entry that stays during a listing is seen exactly once, even if others
//! are added and removed.

use core::borrow::Borrow;
use core::cmp::Ordering;
use core::ops::Bound;

use freehold_collections::{Arc, Box, Map, reserve};

use super::node::TmpNode;
use crate::fs::node::NodeKind;
use crate::sync::{Deferred, LetGo, release};
use crate::{Errno, Result, sched};

/// Positions of "." and ".." come first.
const FIRST_POSITION: u64 = 2;

struct TmpEntry {
    node: Arc<TmpNode>,
    position: u64,
}

/// A name that is compared by its hash first: a step of a search is a comparison of two words.
/// Names with equal hashes are compared by their bytes, so there is nothing to gain by choosing
/// names.
struct NameKey<'a> {
    hash: u64,
    name: NameBytes<'a>,
}

enum NameBytes<'a> {
    Stored(Arc<[u8]>),
    Asked(&'a [u8]),
}

impl<'a> NameKey<'a> {
    fn asked(name: &'a [u8]) -> Self {
        Self { hash: hash(name), name: NameBytes::Asked(name) }
    }
    fn bytes(&self) -> &[u8] {
        match &self.name {
            NameBytes::Stored(name) => name,
            NameBytes::Asked(name) => name,
        }
    }
}

impl Ord for NameKey<'_> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.hash.cmp(&other.hash).then_with(|| self.bytes().cmp(other.bytes()))
    }
}
impl PartialOrd for NameKey<'_> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for NameKey<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for NameKey<'_> {}

/// The key of a name in a directory.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct StoredName(NameKey<'static>);

impl StoredName {
    fn new(name: Arc<[u8]>) -> Self {
        Self(NameKey { hash: hash(&name), name: NameBytes::Stored(name) })
    }
}

impl<'a> Borrow<NameKey<'a>> for StoredName {
    #[inline]
    fn borrow(&self) -> &NameKey<'a> {
        &self.0
    }
}

/// Spreads names by their length, their first and their last eight bytes.
#[inline]
fn hash(name: &[u8]) -> u64 {
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let mixed = match (name.first_chunk(), name.last_chunk()) {
        (Some(first), Some(last)) => word(first).rotate_left(29) ^ word(last),
        _ => name.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    (mixed ^ (name.len() as u64) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// An entry as shown in a listing.
pub(super) struct Listed {
    pub name: Arc<[u8]>,
    pub inode: u64,
    pub kind: NodeKind,
}

/// The names in a directory.
pub(super) struct Directory {
    /// The names. A directory owns its subdirectories, to any depth. Dropping such a tree does not
    /// recurse.
    names: Option<Box<Deferred<Names>>>,
    next_position: u64,
    /// Whether the directory was removed: nothing can be made in it any more.
    removed: bool,
}

#[derive(Default)]
struct Names {
    by_name: Map<StoredName, TmpEntry>,
    by_position: Map<u64, Listed>,
}

impl LetGo for Names {
    fn let_go(&mut self) {
        self.by_position = Map::new();
        while let Some(entry) = self.by_name.pop_first() {
            drop(entry);
            sched::cond_resched();
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(names) = self.names.take().filter(|names| !names.by_name.is_empty()) {
            release(names);
        }
    }
}

impl Directory {
    pub fn new() -> Self {
        Self { names: None, next_position: FIRST_POSITION, removed: false }
    }

    fn entry(&self, name: &[u8]) -> Option<&TmpEntry> {
        self.names.as_deref()?.by_name.get(&NameKey::asked(name))
    }

    fn names(&mut self) -> &mut Names {
        self.names.get_or_insert_with(|| Deferred::new(Names::default()))
    }

    pub fn get(&self, name: &[u8]) -> Result<&Arc<TmpNode>> {
        self.entry(name).map(|entry| &entry.node).ok_or(Errno::ENOENT)
    }

    pub fn contains(&self, name: &[u8]) -> bool {
        self.entry(name).is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.names.as_deref().map_or(0, |names| names.by_name.len())
    }

    pub fn is_removed(&self) -> bool {
        self.removed
    }

    pub fn set_removed(&mut self) {
        self.removed = true;
    }

    /// `EEXIST` if the name is taken, `ENOENT` if the directory was removed.
    pub fn check_free(&self, name: &[u8]) -> Result<()> {
        if self.removed {
            return Err(Errno::ENOENT);
        }
        if self.contains(name) { Err(Errno::EEXIST) } else { Ok(()) }
    }

    /// Adds a free name. Returns the stored name.
    ///
    /// # Errors
    /// `ENOMEM`; the directory does not change.
    pub fn insert(&mut self, name: &[u8], node: Arc<TmpNode>) -> Result<Arc<[u8]>> {
        let name: Arc<[u8]> = reserve::slice(name);
        let position = self.next_position;
        self.next_position += 1;
        let names = self.names();
        let listed = Listed { name: name.clone(), inode: node.inode, kind: node.kind };
        names.by_position.try_insert(position, listed)?;
        if names.by_name.try_insert(StoredName::new(name.clone()), TmpEntry { node, position }).is_err() {
            names.by_position.remove(&position);
            return Err(Errno::ENOMEM);
        }
        Ok(name)
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &[u8]) -> Result<Arc<TmpNode>> {
        let names = self.names();
        let entry = names.by_name.remove(&NameKey::asked(name)).ok_or(Errno::ENOENT)?;
        names.by_position.remove(&entry.position);
        Ok(entry.node)
    }

    /// Makes a name lead to another node, at the same position. Returns the stored name.
    pub fn replace(&mut self, name: &[u8], node: Arc<TmpNode>) -> Result<Arc<[u8]>> {
        let names = self.names();
        let entry = names.by_name.get_mut(&NameKey::asked(name)).ok_or(Errno::ENOENT)?;
        let listed = names.by_position.get_mut(&entry.position).ok_or(Errno::ENOENT)?;
        (listed.inode, listed.kind) = (node.inode, node.kind);
        entry.node = node;
        Ok(listed.name.clone())
    }

    /// Calls `emit` with up to `most` entries from `position` on, each with its position, until it
    /// returns `false`. Returns the position after the last accepted entry; `None` if there are no
    /// more entries, or `emit` returned `false`.
    pub fn list(
        &self,
        position: u64,
        most: usize,
        mut emit: impl FnMut(u64, &Listed) -> bool,
    ) -> Option<u64> {
        let mut entries = self.names.as_deref()?.by_position.iter_from(Bound::Included(&position));
        let mut next = None;
        for _ in 0..most {
            let (&at, listed) = entries.next()?;
            if !emit(at, listed) {
                return None;
            }
            next = Some(at + 1);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use freehold_collections::inject::each_fails;

    use crate::Errno;
    use crate::fs::mount::FileSystem;
    use crate::fs::node::{NewNode, NodeKind};
    use crate::fs::tests::PlainSource;
    use crate::fs::tmpfs::TmpFs;

    /// If memory is short, at each allocation in turn, the name is in neither index.
    #[test]
    fn a_name_without_memory_is_not_there() {
        let fs = TmpFs::new("tmpfs", PlainSource::new(1 << 40), 0o755).unwrap();
        let dir = fs.root();
        let mut failures = 0;
        for number in 0..500u16 {
            let name = [number >> 7, number & 0x7f].map(|bits| bits as u8 | 0x80);
            let new = NewNode { kind: NodeKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
            let (free, links) = (fs.stats().free_inodes, dir.metadata().links);
            let (made, failed) = each_fails(|| {
                let result = dir.create(&name, &new);
                if result.is_err() {
                    assert_eq!(dir.lookup(&name).err(), Some(Errno::ENOENT));
                    assert_eq!((fs.stats().free_inodes, dir.metadata().links), (free, links));
                }
                result
            });
            assert!(made.is_ok() && dir.lookup(&name).is_ok());
            failures += failed;
        }
        assert!(failures > 50, "{failures}");
    }

    #[test]
    fn a_tree_of_any_depth_goes_with_its_file_system() {
        const DEPTH: u64 = 50_000;
        let fs = TmpFs::new("tmpfs", PlainSource::new(1 << 40), 0o755).unwrap();
        let before = fs.stats().free_inodes;
        let mut dir = fs.root();
        let deepest = {
            for _ in 0..DEPTH {
                let new = NewNode { kind: NodeKind::Directory, mode: 0o755, uid: 0, gid: 0, rdev: 0 };
                dir = dir.create(b"d", &new).unwrap();
            }
            Arc::downgrade(&dir)
        };
        assert!(before >= fs.stats().free_inodes);
        drop(dir);
        assert_eq!(deepest.strong_count(), 1, "its parent holds it");
        drop(fs);
        assert_eq!(deepest.strong_count(), 0);
    }
}
