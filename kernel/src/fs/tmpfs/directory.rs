//! The names in a directory.
//!
//! Each entry has a position that no other entry of the directory ever had, and listing goes by
//! position: what stays while a program lists is seen exactly once, whatever comes and goes meanwhile.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use super::node::TmpNode;
use crate::{Errno, Result};

/// Positions of "." and ".." come first.
const FIRST_POSITION: u64 = 2;

struct Entry {
    node: Arc<TmpNode>,
    position: u64,
}

/// The names in a directory.
pub(super) struct Directory {
    by_name: BTreeMap<Arc<[u8]>, Entry>,
    by_position: BTreeMap<u64, Arc<[u8]>>,
    next_position: u64,
    /// It was removed: nothing can be made in it any more.
    removed: bool,
}

impl Directory {
    pub fn new() -> Self {
        Self {
            by_name: BTreeMap::new(),
            by_position: BTreeMap::new(),
            next_position: FIRST_POSITION,
            removed: false,
        }
    }

    pub fn get(&self, name: &[u8]) -> Result<&Arc<TmpNode>> {
        self.by_name.get(name).map(|entry| &entry.node).ok_or(Errno::ENOENT)
    }

    pub fn contains(&self, name: &[u8]) -> bool {
        self.by_name.contains_key(name)
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
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

    /// Add a name that is free.
    pub fn insert(&mut self, name: &[u8], node: Arc<TmpNode>) {
        let name: Arc<[u8]> = Arc::from(name);
        let position = self.next_position;
        self.next_position += 1;
        self.by_position.insert(position, name.clone());
        self.by_name.insert(name, Entry { node, position });
    }

    /// Take a name away.
    pub fn remove(&mut self, name: &[u8]) -> Result<Arc<TmpNode>> {
        let entry = self.by_name.remove(name).ok_or(Errno::ENOENT)?;
        self.by_position.remove(&entry.position);
        Ok(entry.node)
    }

    /// Let a name lead to another node, at the same position.
    pub fn replace(&mut self, name: &[u8], node: Arc<TmpNode>) -> Result<Arc<TmpNode>> {
        let entry = self.by_name.get_mut(name).ok_or(Errno::ENOENT)?;
        Ok(core::mem::replace(&mut entry.node, node))
    }

    /// The first entry at `position` or later: its position, name and node.
    pub fn next(&self, position: u64) -> Option<(u64, Arc<[u8]>, Arc<TmpNode>)> {
        let (&at, name) = self.by_position.range(position..).next()?;
        let entry = self.by_name.get(name)?;
        Some((at, name.clone(), entry.node.clone()))
    }
}
