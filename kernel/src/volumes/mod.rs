//! File systems on disks, for reading: ext2, ext3, ext4, EROFS.
//!
//! | module | concept |
//! |---|---|
//! | [`node`] | inodes, open files |
//! | [`store`] | the disk as the source of metadata, and as the store of files' page caches |
//!
//! The crate `freehold-volumes` reads the disk's bytes, as hostile input. A wrong byte is `EUCLEAN`
//! for the program, and a line of the log that names the structure.
//!
//! **Caches.** Superblock, inodes, directories and maps of blocks are read through the disk's own
//! page cache, so what is used often stays in memory. Files have page caches of their own, which
//! are filled from the disk directly. A mounted disk cannot be written ([`HeldDisk::for_mount`]),
//! so nothing changes below a cache. There is one node for each inode number while it is in use
//! ([`NodeTable`]).
//!
//! **Places.** A directory has one name, so the place where it was found first never changes. A
//! directory that is found at a second place is a wrong disk. So no place is below itself.
//!
//! **Locks.** Looking up takes none but those of the table of nodes and of page caches. A mutex
//! orders mounts.

mod node;
mod store;

use core::fmt;

use freehold_collections::{Arc, Vec, Weak, reserve, reserve::ArcMethods};
use freehold_volumes::{Erofs, Ext4, Flavour, JournalUse, Volume, VolumeError};

use node::DiskNode;
use store::DiskBytes;

use crate::block::HeldDisk;
use crate::fs::mount::MountFlags;
use crate::fs::{FileSystem, FsStats, Node, NodeKind};
use crate::stored::NodeTable;
use crate::sync::Mutex;
use crate::{Errno, Result};

/// A kind of file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VolumeKind {
    /// ext2, ext3 or ext4.
    Ext(Flavour),
    /// EROFS.
    Erofs,
}

impl VolumeKind {
    /// Returns the name by which it is mounted.
    const fn name(self) -> &'static str {
        match self {
            Self::Ext(Flavour::Ext2) => "ext2",
            Self::Ext(Flavour::Ext3) => "ext3",
            Self::Ext(Flavour::Ext4) => "ext4",
            Self::Erofs => "erofs",
        }
    }
    /// Returns the magic number of statfs(2) (linux/magic.h).
    const fn magic(self) -> u64 {
        match self {
            Self::Ext(_) => 0xef53,
            Self::Erofs => 0xe0f5_e1e2,
        }
    }
}

/// How a disk is mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mounting {
    kind: VolumeKind,
    journal: JournalUse,
}

/// A disk that was mounted.
struct Mounted {
    device: u64,
    mounting: Mounting,
    fs: Weak<dyn FileSystem>,
}

/// The file systems that were mounted, so that a disk that is mounted again is the same.
static MOUNTED: Mutex<Vec<Mounted>> = Mutex::new(Vec::new());

/// Mounts the disk with the node `source`, with mount(2)'s flags and options.
///
/// # Errors
/// `EROFS` without `MS_RDONLY` (but for EROFS itself), and for a disk whose journal must be applied
/// first; `ENOTBLK`; `ENXIO` if there is no such disk; `EBUSY` if it is in use for something else;
/// `EINVAL` for invalid options, and if the disk has no such file system; `EUCLEAN`, `EIO`.
pub fn mount(
    source: &Arc<dyn Node>,
    kind: VolumeKind,
    options: &[u8],
    flags: MountFlags,
) -> Result<Arc<dyn FileSystem>> {
    if source.kind() != NodeKind::BlockDevice {
        return Err(Errno::ENOTBLK);
    }
    // EROFS is never written, so it is mounted without being asked for it, as on Linux.
    if !flags.contains(MountFlags::RDONLY) && kind != VolumeKind::Erofs {
        return Err(Errno::EROFS);
    }
    let mounting = Mounting { kind, journal: journal_use(kind, options)? };
    let device = source.metadata().rdev;
    let mut mounted = MOUNTED.lock_killable()?;
    mounted.retain(|known| known.fs.strong_count() > 0);
    for known in mounted.iter().filter(|known| known.device == device) {
        if let Some(fs) = known.fs.upgrade() {
            return if known.mounting == mounting { Ok(fs) } else { Err(Errno::EBUSY) };
        }
    }
    let disk = DiskBytes(HeldDisk::for_mount(device)?);
    let failed = |error| failed(kind, device, error);
    let fs = match kind {
        VolumeKind::Ext(flavour) => {
            let volume = Ext4::open(disk, mounting.journal).map_err(failed)?;
            if !volume.fits(flavour) {
                return Err(failed(VolumeError::Unsupported("a feature of ext4")));
            }
            DiskFs::new(volume, device, mounting)?
        }
        VolumeKind::Erofs => DiskFs::new(Erofs::open(disk).map_err(failed)?, device, mounting)?,
    };
    mounted.try_push(Mounted { device, mounting, fs: fs.downgrade() })?;
    Ok(fs)
}

/// Reads the options. Those that are about writing, or about compressed files, have no effect.
fn journal_use(kind: VolumeKind, options: &[u8]) -> Result<JournalUse> {
    let mut journal = JournalUse::Required;
    for option in options.split(|&byte| byte == b',').filter(|option| !option.is_empty()) {
        match (kind, option) {
            (VolumeKind::Ext(_), b"noload" | b"norecovery") => journal = JournalUse::Ignored,
            (VolumeKind::Ext(_), b"barrier" | b"nobarrier" | b"delalloc" | b"nodelalloc" | b"nodiscard") => {}
            (VolumeKind::Ext(_), _) if option.starts_with(b"errors=") || option.starts_with(b"data=") => {}
            (VolumeKind::Erofs, _) if option.starts_with(b"cache_strategy=") => {}
            _ => return Err(Errno::EINVAL),
        }
    }
    Ok(journal)
}

/// Logs why a disk cannot be read, and returns the error for the program.
fn failed(kind: VolumeKind, device: u64, error: VolumeError<Errno>) -> Errno {
    let (problem, what, errno) = match error {
        VolumeError::Device(error) => return error,
        VolumeError::Other => ("not such a file system", "no magic number", Errno::EINVAL),
        VolumeError::Corrupt(what) => ("wrong bytes", what, Errno::EUCLEAN),
        VolumeError::Unsupported(what) => ("not supported", what, Errno::EINVAL),
        VolumeError::NeedsRecovery => {
            ("the journal must be applied", "run e2fsck on the host, or mount with -o noload", Errno::EROFS)
        }
    };
    let (major, minor) = crate::fs::device::split_device(device);
    log::error!("{}: disk {major}:{minor}: {problem}: {what}", kind.name());
    errno
}

/// A disk that is mounted, and its inodes that are in use.
struct MountedDisk<V: DiskVolume> {
    volume: V,
    /// The disk's device number.
    device: u64,
    mounting: Mounting,
    nodes: Arc<NodeTable<u64, DiskNode<V>>>,
}

/// A file system of the crate, on a disk of this machine.
trait DiskVolume: Volume<Source = DiskBytes, Inode: Send + Sync> + Send + Sync + 'static {}
impl<V: Volume<Source = DiskBytes, Inode: Send + Sync> + Send + Sync + 'static> DiskVolume for V {}

impl<V: DiskVolume> MountedDisk<V> {
    fn failed(&self, error: VolumeError<Errno>) -> Errno {
        failed(self.mounting.kind, self.device, error)
    }

    /// Returns the inode with this number, which was found in a directory by a name.
    ///
    /// # Errors
    /// `ENOMEM`, `EINTR`, `EIO`; `EUCLEAN` for wrong bytes.
    fn node(
        self: &Arc<Self>,
        number: u64,
        found: Option<(&Arc<DiskNode<V>>, &[u8])>,
    ) -> Result<Arc<DiskNode<V>>> {
        let node = match self.nodes.get(number) {
            Some(node) => node,
            None => {
                let inode = self.volume.inode(number).map_err(|error| self.failed(error))?;
                let node = DiskNode::new(self, inode, found)?;
                // Another task may have found it at the same time.
                self.nodes.add(number, &node)?.unwrap_or(node)
            }
        };
        if !node.is_at(found) {
            return Err(self.failed(VolumeError::Corrupt("a directory with two names")));
        }
        self.nodes.keep(&node);
        Ok(node)
    }
}

/// A mounted file system.
struct DiskFs<V: DiskVolume> {
    disk: Arc<MountedDisk<V>>,
    root: Arc<DiskNode<V>>,
}

impl<V: DiskVolume> DiskFs<V> {
    fn new(volume: V, device: u64, mounting: Mounting) -> Result<Arc<dyn FileSystem>> {
        let number = volume.root();
        let disk = reserve::arc(MountedDisk { volume, device, mounting, nodes: NodeTable::new()? });
        let root = disk.node(number, None)?;
        if root.kind() != NodeKind::Directory {
            return Err(disk.failed(VolumeError::Corrupt("root directory")));
        }
        Ok(reserve::arc(Self { disk, root }))
    }
}

impl<V: DiskVolume> Drop for DiskFs<V> {
    fn drop(&mut self) {
        self.disk.nodes.close();
    }
}

impl<V: DiskVolume> FileSystem for DiskFs<V> {
    fn name(&self) -> &'static str {
        self.disk.mounting.kind.name()
    }
    fn device(&self) -> u64 {
        self.disk.device
    }
    fn root(&self) -> Arc<dyn Node> {
        self.root.clone()
    }
    fn stats(&self) -> FsStats {
        let told = self.disk.volume.stats();
        FsStats {
            magic: self.disk.mounting.kind.magic(),
            block_size: self.disk.volume.block_size().into(),
            blocks: told.blocks,
            free_blocks: told.free_blocks,
            inodes: told.inodes,
            free_inodes: told.free_inodes,
        }
    }
    fn show_options(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let is_ignored = self.disk.mounting.journal == JournalUse::Ignored;
        if is_ignored { out.write_str(",norecovery") } else { Ok(()) }
    }
    fn is_read_only(&self) -> bool {
        true
    }
    fn configure(&self, options: &[u8]) -> Result<()> {
        journal_use(self.disk.mounting.kind, options).map(drop)
    }
}
