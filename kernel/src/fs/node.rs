//! Nodes that names lead to.

use core::any::Any;

use freehold_collections::{Arc, Receiver, Vec};

use super::file::File;
use super::flags::{OpenFlags, RenameFlags};
use super::path::Path;
pub use crate::time::Timestamp;
use crate::{Errno, Result};

/// Identity of a node: two nodes with equal identities are the same inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    /// Device number of the file system.
    pub device: u64,
    /// Inode number, unique there while the node lives.
    pub inode: u64,
}

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

impl NodeKind {
    /// From st_mode's S_IFMT bits.
    pub fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o010_000 => Self::Fifo,
            0o020_000 => Self::CharDevice,
            0o040_000 => Self::Directory,
            0o060_000 => Self::BlockDevice,
            0o100_000 => Self::Regular,
            0o120_000 => Self::Symlink,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }

    /// getdents64's DT_* value.
    pub fn dirent_kind(self) -> u8 {
        (self as u32 >> 12) as u8
    }
}

/// Result of stat(2) for a node.
#[derive(Clone, Copy, Debug)]
pub struct Metadata {
    /// Device number of the file system.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// The kind of node.
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
    /// When it was made, where the file system knows.
    pub born: Option<Timestamp>,
}

/// A change of a mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModeChange {
    /// The mode becomes these permission bits.
    To(u32),
    /// The file no longer runs as its owner or its group ([`rights`](super::rights)).
    WithoutRights,
}

impl ModeChange {
    /// Returns the permission bits after the change of `mode`. File systems call it while no other
    /// change of the node's mode can happen.
    pub const fn of(self, mode: u32) -> u32 {
        match self {
            Self::To(mode) => mode & 0o7777,
            Self::WithoutRights => super::rights::without(mode),
        }
    }
}

/// A change of metadata; absent fields stay.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetMetadata {
    /// Permission bits.
    pub mode: Option<ModeChange>,
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

/// Whether a node that was made without a name can get one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Naming {
    /// link(2) gives it one.
    Later,
    /// It has none for ever (O_EXCL).
    Never,
}

/// Whether a directory's name still leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// The name leads to the directory.
    Linked,
    /// The name was removed; it is the directory's last one.
    Removed,
}

/// Where a directory is.
pub struct DirectoryPlace {
    /// Its parent.
    pub dir: Arc<dyn Node>,
    /// Its name there.
    pub name: Arc<[u8]>,
    /// Whether that still holds.
    pub presence: Presence,
}

/// Where a symbolic link leads.
pub enum LinkTarget {
    /// A path to resolve from the link's directory.
    Text(Vec<u8>),
    /// Straight to a place (/proc's magic links), without a look at the path to it.
    Jump(Path),
}

/// An inode. Names are bytes without NUL and slash, 1 to 255 of them; "." and ".." never arrive
/// here. Permissions were checked by the caller, read-only mounts too.
pub trait Node: Any + Send + Sync {
    /// Which inode this is.
    fn identity(&self) -> Identity;
    /// Returns the kind of node.
    fn kind(&self) -> NodeKind;
    /// Returns the result of stat(2).
    fn metadata(&self) -> Metadata;
    /// Change metadata. Sets the change time; `size` follows truncate(2).
    fn set_metadata(&self, _change: &SetMetadata) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Prepares a change of a file's bytes by the calling process: the file does not run as its
    /// owner any more ([`rights`](super::rights)).
    ///
    /// # Errors
    /// The file system's.
    fn drop_rights(&self) -> Result<()> {
        Ok(())
    }
    /// Returns the count of writers and running programs, where the node keeps one.
    fn text_use(&self) -> Option<&super::text::TextUse> {
        None
    }
    /// Whether there can be leases of it: it keeps [`Node::text_use`], and what it shows changes by
    /// this machine's programs only.
    fn may_be_leased(&self) -> bool {
        false
    }
    /// Returns whether no name leads to it any more.
    fn is_nameless(&self) -> bool {
        self.metadata().links == 0
    }
    /// Open it (creation flags have been dealt with; TRUNC arrives as a size of 0 before this).
    fn open(self: Receiver<Self>, flags: OpenFlags) -> Result<Arc<dyn File>>;
    /// Whether it is about the running process, so that its mode does not bind that one.
    fn is_callers_own(&self) -> bool {
        false
    }
    /// A descriptor's file of the process that an open directory of /proc is about, for which that
    /// stands (Linux: `tgid_pidfd_to_pid`).
    fn pidfd(&self) -> Option<Arc<dyn File>> {
        None
    }
    /// Where a directory is; `None` for the root of a file system and for anything but directories.
    fn parent(&self) -> Option<DirectoryPlace> {
        None
    }
    /// The directory that a directory is in, without the name; `None` as for [`Node::parent`].
    fn parent_dir(&self) -> Option<Arc<dyn Node>> {
        self.parent().map(|place| place.dir)
    }
    /// The node that `name` leads to in this directory.
    fn lookup(&self, _name: &[u8]) -> Result<Arc<dyn Node>> {
        Err(Errno::ENOTDIR)
    }
    /// Make a node of `new.kind` (not a symbolic link) named `name`; `EEXIST` if there is one.
    fn create(&self, _name: &[u8], _new: &NewNode) -> Result<Arc<dyn Node>> {
        Err(Errno::EPERM)
    }
    /// Makes a node without a name: O_TMPFILE makes regular files, the kernel itself directories.
    fn create_unnamed(&self, _new: &NewNode, _naming: Naming) -> Result<Arc<dyn Node>> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Make a symbolic link.
    fn symlink(&self, _name: &[u8], _target: &[u8], _new: &NewNode) -> Result<Arc<dyn Node>> {
        Err(Errno::EPERM)
    }
    /// Give `node` another name here; `EXDEV` if it is of another file system.
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
    /// Move `name` to `new_name` in `new_parent`; `EXDEV` if that is of another file system.
    fn rename(
        &self,
        _name: &[u8],
        _new_parent: &Arc<dyn Node>,
        _new_name: &[u8],
        _flags: RenameFlags,
    ) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Where a symbolic link leads, as text.
    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Errno::EINVAL)
    }
    /// Where following a symbolic link leads.
    fn follow(&self) -> Result<LinkTarget> {
        self.read_link().map(LinkTarget::Text)
    }
    /// An extended attribute's value; `ENODATA` if there is none of that name.
    fn xattr(&self, _name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Set an extended attribute.
    fn set_xattr(&self, _name: &[u8], _value: &[u8], _how: XattrSet) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Remove an extended attribute.
    fn remove_xattr(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    /// The names of all extended attributes, each with a NUL behind it.
    fn list_xattrs(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
}

/// Attributes of a new node.
#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    /// The kind of node.
    pub kind: NodeKind,
    /// Permission bits, the umask already taken off.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group (a setgid directory's own group goes before it).
    pub gid: u32,
    /// Device number of a device node, else 0.
    pub rdev: u64,
}

impl NewNode {
    /// A character device 0/0, which in an overlay's upper tree says that a name is not there.
    pub const WHITEOUT: Self = Self { kind: NodeKind::CharDevice, mode: 0, uid: 0, gid: 0, rdev: 0 };
}

/// The action that setxattr(2) allows: make the attribute, replace it, or either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrSet {
    /// Make or replace the attribute.
    Any,
    /// Make the attribute; `EEXIST` if it exists.
    Create,
    /// Replace the attribute; `ENODATA` if it does not exist.
    Replace,
}

/// Returns the names of a list of extended attributes, each with a NUL behind it, that do not begin
/// with `prefix`.
///
/// # Errors
/// `ENOMEM`.
pub fn xattrs_without(names: &[u8], prefix: &[u8]) -> Result<Vec<u8>> {
    let mut kept = Vec::try_with_capacity(names.len())?;
    for name in names.split_inclusive(|&byte| byte == 0).filter(|name| !name.starts_with(prefix)) {
        kept.try_extend_from_slice(name)?;
    }
    Ok(kept)
}

/// Returns the metadata of a node that only the kernel makes: no bytes, times of `made`.
pub fn made_by_kernel(identity: Identity, kind: NodeKind, mode: u32, made: Timestamp) -> Metadata {
    Metadata {
        device: identity.device,
        inode: identity.inode,
        kind,
        mode,
        links: if kind == NodeKind::Directory { 2 } else { 1 },
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        block_size: 4096,
        blocks: 0,
        accessed: made,
        modified: made,
        changed: made,
        born: None,
    }
}
