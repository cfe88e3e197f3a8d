//! What a name leads to.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::file::File;
use crate::{Errno, Result};

/// The kind of a node, with st_mode's S_IFMT values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum NodeKind {
    /// FIFO.
    Fifo = 0o010_000,
    /// Character device.
    CharDevice = 0o020_000,
    /// Directory.
    Directory = 0o040_000,
    /// Block device.
    BlockDevice = 0o060_000,
    /// Regular file.
    Regular = 0o100_000,
    /// Symbolic link.
    Symlink = 0o120_000,
    /// Socket.
    Socket = 0o140_000,
}

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Seconds.
    pub seconds: i64,
    /// 0..1_000_000_000.
    pub nanoseconds: u32,
}

/// What stat(2) tells of a node.
#[derive(Clone, Copy, Debug)]
pub struct Metadata {
    /// Device number of the file system.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// What it is.
    pub kind: NodeKind,
    /// Permission bits with setuid, setgid and sticky: 0..=0o7777.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, else 0.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Preferred I/O size.
    pub block_size: u32,
    /// 512-byte blocks held.
    pub blocks: u64,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of content.
    pub modified: Timestamp,
    /// Last change of metadata.
    pub changed: Timestamp,
}

/// A change of metadata; absent fields stay.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetMetadata {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes (truncate).
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<Timestamp>,
    /// Last change of content.
    pub modified: Option<Timestamp>,
}

/// An inode. Names are bytes without NUL and slash; "." and ".." never arrive here.
pub trait Node: Send + Sync {
    /// What stat(2) tells.
    fn metadata(&self) -> Metadata;
    /// Change metadata.
    fn set_metadata(&self, _change: &SetMetadata) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Open it with O_* flags (creation flags have been dealt with).
    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn File>>;
    /// The node that `name` leads to in this directory.
    fn lookup(&self, _name: &[u8]) -> Result<Arc<dyn Node>> {
        Err(Errno::ENOTDIR)
    }
    /// Make a node named `name`; `EEXIST` if there is one.
    fn create(&self, _name: &[u8], _kind: NodeKind, _mode: u32, _rdev: u64) -> Result<Arc<dyn Node>> {
        Err(Errno::EPERM)
    }
    /// Make a symbolic link.
    fn symlink(&self, _name: &[u8], _target: &[u8]) -> Result<Arc<dyn Node>> {
        Err(Errno::EPERM)
    }
    /// Give `node` another name here.
    fn link(&self, _name: &[u8], _node: &Arc<dyn Node>) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Remove a name that is not a directory's.
    fn unlink(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Remove an empty directory.
    fn remove_dir(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Move `name` to `new_name` in `new_parent` of the same file system.
    fn rename(&self, _name: &[u8], _new_parent: &Arc<dyn Node>, _new_name: &[u8], _flags: u32) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Where a symbolic link leads.
    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Errno::EINVAL)
    }
}
