//! Attributes of a node in memory, except its bytes or names. The node belongs to a tmpfs, is a
//! secret file, or is a message queue.

use freehold_collections::{Map, Vec, WipedBytes};

use super::PAGE;
use crate::fs::clock::now;
use crate::fs::node::{Identity, Metadata, NewNode, NodeKind, SetMetadata, Timestamp, XattrSet};
use crate::{Errno, Result};

/// Largest value of one extended attribute (linux/limits.h XATTR_SIZE_MAX).
const XATTR_SIZE_MAX: usize = 65536;
/// Limit for all extended attributes of a node together.
const XATTR_TOTAL_MAX: usize = 128 * 1024;
/// Access times are updated by reads at least once a day.
const DAY: i64 = 24 * 60 * 60;

/// Owner, times and similar attributes.
pub(crate) struct Attributes {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub changed: Timestamp,
    born: Timestamp,
    pub xattrs: Map<Vec<u8>, WipedBytes>,
}

impl Attributes {
    pub fn new(new: &NewNode, links: u32) -> Self {
        let now = now();
        Self {
            mode: new.mode & 0o7777,
            uid: new.uid,
            gid: new.gid,
            links,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            xattrs: Map::new(),
        }
    }

    /// Returns the metadata of node `identity`. The caller adds the size.
    #[inline]
    pub fn metadata(&self, identity: Identity, kind: NodeKind) -> Metadata {
        Metadata {
            device: identity.device,
            inode: identity.inode,
            kind,
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            size: 0,
            block_size: PAGE as u32,
            blocks: 0,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            born: Some(self.born),
        }
    }

    /// Applies all of `change` except the size.
    pub fn change(&mut self, change: &SetMetadata) {
        self.mode = change.mode.map_or(self.mode, |change| change.of(self.mode));
        self.uid = change.uid.unwrap_or(self.uid);
        self.gid = change.gid.unwrap_or(self.gid);
        self.accessed = change.accessed.unwrap_or(self.accessed);
        self.modified = change.modified.unwrap_or(self.modified);
        self.changed = now();
    }

    /// Notes a change of the content.
    pub fn touch(&mut self) {
        self.modified = now();
        self.changed = self.modified;
    }

    /// Notes a read of the content: the access time is updated as with "relatime".
    pub fn was_read(&mut self) {
        let stale = self.accessed <= self.modified || self.accessed <= self.changed;
        let now = now();
        if stale || now.seconds - self.accessed.seconds >= DAY {
            self.accessed = now;
        }
    }

    pub fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        Ok(Vec::try_from_slice(self.xattrs.get(name).ok_or(Errno::ENODATA)?)?)
    }

    pub fn set_xattr(&mut self, name: &[u8], value: &[u8], how: XattrSet) -> Result<()> {
        match (how, self.xattrs.contains_key(name)) {
            (XattrSet::Create, true) => return Err(Errno::EEXIST),
            (XattrSet::Replace, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        if value.len() > XATTR_SIZE_MAX {
            return Err(Errno::E2BIG);
        }
        let others = self.xattrs.iter().filter(|&(other, _)| other[..] != *name);
        let total: usize = others.map(|(k, v)| k.len() + v.len()).sum();
        if total + name.len() + value.len() > XATTR_TOTAL_MAX {
            return Err(Errno::ENOSPC);
        }
        self.xattrs.try_insert(Vec::try_from_slice(name)?, WipedBytes::try_from_slice(value)?)?;
        self.changed = now();
        Ok(())
    }

    pub fn remove_xattr(&mut self, name: &[u8]) -> Result<()> {
        self.xattrs.remove(name).ok_or(Errno::ENODATA)?;
        self.changed = now();
        Ok(())
    }

    pub fn xattr_names(&self) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        for name in self.xattrs.keys() {
            names.try_extend_from_slice(name)?;
            names.try_push(0)?;
        }
        Ok(names)
    }
}
