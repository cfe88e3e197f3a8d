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
    xattrs: Map<Vec<u8>, WipedBytes>,
    /// Bytes of all their names and values.
    xattr_bytes: usize,
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
            xattr_bytes: 0,
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
        let replaced = self.xattrs.get(name).map_or(0, |value| name.len() + value.len());
        let total = self.xattr_bytes - replaced + name.len() + value.len();
        if total > XATTR_TOTAL_MAX {
            return Err(Errno::ENOSPC);
        }
        self.xattrs.try_insert(Vec::try_from_slice(name)?, WipedBytes::try_from_slice(value)?)?;
        self.xattr_bytes = total;
        self.changed = now();
        Ok(())
    }

    pub fn remove_xattr(&mut self, name: &[u8]) -> Result<()> {
        let value = self.xattrs.remove(name).ok_or(Errno::ENODATA)?;
        self.xattr_bytes -= name.len() + value.len();
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

#[cfg(test)]
mod tests {
    use super::*;
    use freehold_collections::inject::each_fails;

    #[test]
    fn attributes_together_have_so_many_bytes_whatever_came_and_went() {
        let mut node =
            Attributes::new(&NewNode { kind: NodeKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 }, 1);
        let value = |size: usize| std::vec![7u8; size];
        let set =
            |node: &mut Attributes, name: &[u8], size| node.set_xattr(name, &value(size), XattrSet::Any);
        // Four names of 8 bytes, and values that leave 8 bytes.
        let size = XATTR_TOTAL_MAX / 4 - 10;
        for name in [b"user.abc", b"user.abd", b"user.abe", b"user.abf"] {
            assert_eq!(each_fails(|| set(&mut node, name, size)).0, Ok(()));
            assert_eq!(set(&mut node, name, size), Ok(()), "a value takes the place of the one before");
        }
        assert_eq!(set(&mut node, b"user.abg", 1), Err(Errno::ENOSPC));
        assert_eq!(set(&mut node, b"user.abg", 0), Ok(()));
        assert_eq!(node.remove_xattr(b"user.abg"), Ok(()));
        assert_eq!(set(&mut node, b"user.abc", size + 8), Ok(()));
        assert_eq!(set(&mut node, b"user.abc", size + 9), Err(Errno::ENOSPC));
        for name in [b"user.abc", b"user.abd", b"user.abe", b"user.abf"] {
            assert_eq!(node.remove_xattr(name), Ok(()));
        }
        assert_eq!(node.xattr_bytes, 0);
    }
}
