//! Nodes: the inodes that names lead to.

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
    /// Inode number, unique in the file system while the node exists.
    pub inode: u64,
}

impl Identity {
    /// Number of stripes of all nodes: locks and tables that many nodes share.
    pub const STRIPES: usize = 64;

    /// Returns the node's stripe, below [`Identity::STRIPES`].
    pub const fn stripe(self) -> usize {
        let spread = (self.inode ^ self.device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread >> 58) as usize
    }
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
    /// Converts st_mode's S_IFMT bits.
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

    /// Returns getdents64's DT_* value.
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
    /// The time of creation, if the file system records it.
    pub born: Option<Timestamp>,
}

/// A change of a mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModeChange {
    /// The mode becomes these permission bits.
    To(u32),
    /// Removes the set-user-ID and similar rights ([`rights`](super::rights)).
    WithoutRights,
}

impl ModeChange {
    /// Returns the permission bits after the change of `mode`. File systems call this while no
    /// other change of the node's mode can occur.
    pub const fn of(self, mode: u32) -> u32 {
        match self {
            Self::To(mode) => mode & 0o7777,
            Self::WithoutRights => super::rights::without(mode),
        }
    }
}

/// A change of metadata; fields that are `None` stay.
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
    /// link(2) can give it a name.
    Later,
    /// It never gets a name (O_EXCL).
    Never,
}

/// Whether a directory's last known name still leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// The name leads to the directory.
    Linked,
    /// The name was removed; it is the directory's last one.
    Removed,
}

/// The place of a directory.
pub struct DirectoryPlace {
    /// The parent directory.
    pub dir: Arc<dyn Node>,
    /// The directory's name in the parent.
    pub name: Arc<[u8]>,
    /// Whether the name still leads to the directory.
    pub presence: Presence,
}

/// The target of a symbolic link.
pub enum LinkTarget {
    /// A path to resolve from the link's directory.
    Text(Vec<u8>),
    /// A place (/proc's magic links). The path to it is not resolved.
    Jump(Path),
}

/// An inode. Names are 1 to 255 bytes without NUL and slash; "." and ".." are never passed here.
/// The caller has checked permissions and read-only mounts.
pub trait Node: Any + Send + Sync {
    /// Returns the inode's identity.
    fn identity(&self) -> Identity;
    /// Returns the kind of node.
    fn kind(&self) -> NodeKind;
    /// Returns the result of stat(2).
    fn metadata(&self) -> Metadata;
    /// Changes metadata, and sets the change time; `size` follows truncate(2).
    fn set_metadata(&self, _change: &SetMetadata) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Prepares a change of a file's bytes by the calling process: removes the set-user-ID and
    /// similar rights ([`rights`](super::rights)).
    ///
    /// # Errors
    /// The file system's.
    fn drop_rights(&self) -> Result<()> {
        Ok(())
    }
    /// Returns the counter of writers and running programs, if the node has one.
    fn text_use(&self) -> Option<&super::text::TextUse> {
        None
    }
    /// Whether the file can have leases. It must have [`Node::text_use`], and only programs of this
    /// machine may change its content.
    fn may_be_leased(&self) -> bool {
        false
    }
    /// Returns whether the node has no name any more.
    fn is_nameless(&self) -> bool {
        self.metadata().links == 0
    }
    /// Opens the node. The caller has handled creation flags, and TRUNC by setting the size to 0.
    fn open(self: Receiver<Self>, flags: OpenFlags) -> Result<Arc<dyn File>>;
    /// Whether the node describes the running process, which may then use it regardless of its
    /// mode.
    fn is_callers_own(&self) -> bool {
        false
    }
    /// Returns a pidfd for the process of an open directory of /proc, which stands for the process
    /// (Linux: `tgid_pidfd_to_pid`).
    fn pidfd(&self) -> Option<Arc<dyn File>> {
        None
    }
    /// The place of a directory; `None` for the root of a file system and for nodes other than
    /// directories.
    fn parent(&self) -> Option<DirectoryPlace> {
        None
    }
    /// The parent of a directory, without the name; `None` as for [`Node::parent`].
    fn parent_dir(&self) -> Option<Arc<dyn Node>> {
        self.parent().map(|place| place.dir)
    }
    /// Returns the node with the name `name` in this directory.
    fn lookup(&self, _name: &[u8]) -> Result<Arc<dyn Node>> {
        Err(Errno::ENOTDIR)
    }
    /// Makes a node of `new.kind` (not a symbolic link) named `name`; `EEXIST` if the name exists.
    fn create(&self, _name: &[u8], _new: &NewNode) -> Result<Arc<dyn Node>> {
        Err(Errno::EPERM)
    }
    /// Makes a node without a name: O_TMPFILE makes regular files, the kernel itself directories.
    fn create_unnamed(&self, _new: &NewNode, _naming: Naming) -> Result<Arc<dyn Node>> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Makes a symbolic link.
    fn symlink(&self, _name: &[u8], _target: &[u8], _new: &NewNode) -> Result<Arc<dyn Node>> {
        Err(Errno::EPERM)
    }
    /// Gives `node` another name in this directory; `EXDEV` if it belongs to another file system.
    fn link(&self, _name: &[u8], _node: &Arc<dyn Node>) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Removes a name of a node that is no directory.
    fn unlink(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Removes an empty directory.
    fn remove_dir(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Moves `name` to `new_name` in `new_parent`; `EXDEV` if that belongs to another file system.
    fn rename(
        &self,
        _name: &[u8],
        _new_parent: &Arc<dyn Node>,
        _new_name: &[u8],
        _flags: RenameFlags,
    ) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Returns the target of a symbolic link as text.
    fn read_link(&self) -> Result<Vec<u8>> {
        Err(Errno::EINVAL)
    }
    /// Returns the target for following a symbolic link.
    fn follow(&self) -> Result<LinkTarget> {
        self.read_link().map(LinkTarget::Text)
    }
    /// Returns an extended attribute's value; `ENODATA` if there is no attribute of that name.
    fn xattr(&self, _name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Sets an extended attribute.
    fn set_xattr(&self, _name: &[u8], _value: &[u8], _how: XattrSet) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Removes an extended attribute.
    fn remove_xattr(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Returns the names of all extended attributes, each followed by a NUL.
    fn list_xattrs(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
}

/// Attributes of a new node.
#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    /// The kind of node.
    pub kind: NodeKind,
    /// Permission bits, after the umask.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group; in a setgid directory the directory's group is used instead.
    pub gid: u32,
    /// Device number of a device node, else 0.
    pub rdev: u64,
}

impl NewNode {
    /// A character device 0/0. In an overlay's upper tree it marks a removed name.
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

/// Returns the names that do not begin with `prefix`. `names` is a list of names of extended
/// attributes, each followed by a NUL; so is the result.
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

/// Returns the metadata of a node that only the kernel makes: no bytes, and all times are `made`.
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
