//! ext2, ext3 and ext4 on disks, for reading.
//!
//! | module | concept |
//! |---|---|
//! | [`node`] | inodes, open files |
//! | [`store`] | the disk as the source of metadata, and as the store of files' page caches |
//!
//! The crate `freehold-ext4` reads the disk's bytes, as hostile input. A wrong byte is `EUCLEAN`
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
use freehold_ext4::{Ext4Error, Flavour, JournalUse, ROOT, Volume};

use node::DiskNode;
use store::DiskBytes;

use crate::block::HeldDisk;
use crate::fs::mount::MountFlags;
use crate::fs::{FileSystem, FsStats, Node, NodeKind};
use crate::stored::NodeTable;
use crate::sync::Mutex;
use crate::{Errno, Result};

/// The magic number of statfs(2) (linux/magic.h).
const MAGIC: u64 = 0xef53;

/// The file systems that were mounted, so that a disk that is mounted again is the same.
static MOUNTED: Mutex<Vec<Weak<DiskFs>>> = Mutex::new(Vec::new());

/// Mounts the disk with the node `source`, with mount(2)'s flags and options.
///
/// # Errors
/// `EROFS` without `MS_RDONLY`, and for a disk whose journal must be applied first; `ENOTBLK`;
/// `ENXIO` if there is no such disk; `EBUSY` if it is in use for something else; `EINVAL` for
/// invalid options, and if the disk has no such file system; `EUCLEAN`, `EIO`.
pub fn mount(
    source: &Arc<dyn Node>,
    flavour: Flavour,
    options: &[u8],
    flags: MountFlags,
) -> Result<Arc<dyn FileSystem>> {
    if source.kind() != NodeKind::BlockDevice {
        return Err(Errno::ENOTBLK);
    }
    if !flags.contains(MountFlags::RDONLY) {
        return Err(Errno::EROFS);
    }
    let journal = journal_use(options)?;
    let device = source.metadata().rdev;
    let mut mounted = MOUNTED.lock_killable()?;
    mounted.retain(|fs| fs.strong_count() > 0);
    let known = mounted.iter().filter_map(|fs| fs.upgrade()).find(|fs| fs.disk.device == device);
    if let Some(fs) = known {
        let is_alike = fs.flavour == flavour && fs.journal == journal;
        return if is_alike { Ok(fs) } else { Err(Errno::EBUSY) };
    }
    let opened = Volume::open(DiskBytes(HeldDisk::for_mount(device)?), journal);
    let volume = opened.map_err(|error| failed(device, error))?;
    if !volume.fits(flavour) {
        return Err(failed(device, Ext4Error::Unsupported("a feature of ext4")));
    }
    let disk = reserve::arc(MountedDisk { volume, device, nodes: NodeTable::new()? });
    let root = disk.node(ROOT, None)?;
    if root.kind() != NodeKind::Directory {
        return Err(failed(device, Ext4Error::Corrupt("root directory")));
    }
    let fs = reserve::arc(DiskFs { disk, root, flavour, journal });
    mounted.try_push(fs.downgrade())?;
    Ok(fs)
}

/// Reads the options. Those that are about writing have no effect.
fn journal_use(options: &[u8]) -> Result<JournalUse> {
    let mut journal = JournalUse::Required;
    for option in options.split(|&byte| byte == b',') {
        match option {
            b"noload" | b"norecovery" => journal = JournalUse::Ignored,
            b"" | b"barrier" | b"nobarrier" | b"delalloc" | b"nodelalloc" | b"nodiscard" => {}
            _ if option.starts_with(b"errors=") || option.starts_with(b"data=") => {}
            _ => return Err(Errno::EINVAL),
        }
    }
    Ok(journal)
}

/// Logs why a disk cannot be read, and returns the error for the program.
fn failed(device: u64, error: Ext4Error<Errno>) -> Errno {
    let (problem, what, errno) = match error {
        Ext4Error::Device(error) => return error,
        Ext4Error::NotExt4 => ("not such a file system", "no magic number", Errno::EINVAL),
        Ext4Error::Corrupt(what) => ("wrong bytes", what, Errno::EUCLEAN),
        Ext4Error::Unsupported(what) => ("not supported", what, Errno::EINVAL),
        Ext4Error::NeedsRecovery => {
            ("the journal must be applied", "run e2fsck on the host, or mount with -o noload", Errno::EROFS)
        }
    };
    let (major, minor) = crate::fs::device::split_device(device);
    log::error!("ext4: disk {major}:{minor}: {problem}: {what}");
    errno
}

/// A disk that is mounted, and its inodes that are in use.
struct MountedDisk {
    volume: Volume<DiskBytes>,
    /// The disk's device number.
    device: u64,
    nodes: Arc<NodeTable<u32, DiskNode>>,
}

impl MountedDisk {
    /// Returns the inode with this number, which was found in a directory by a name.
    ///
    /// # Errors
    /// `ENOMEM`, `EINTR`, `EIO`; `EUCLEAN` for wrong bytes.
    fn node(self: &Arc<Self>, number: u32, found: Option<(&Arc<DiskNode>, &[u8])>) -> Result<Arc<DiskNode>> {
        let node = match self.nodes.get(number) {
            Some(node) => node,
            None => {
                let inode = self.volume.inode(number).map_err(|error| failed(self.device, error))?;
                let node = DiskNode::new(self, inode, found)?;
                // Another task may have found it at the same time.
                self.nodes.add(number, &node)?.unwrap_or(node)
            }
        };
        if !node.is_at(found) {
            return Err(failed(self.device, Ext4Error::Corrupt("a directory with two names")));
        }
        self.nodes.keep(&node);
        Ok(node)
    }
}

/// A mounted file system.
struct DiskFs {
    disk: Arc<MountedDisk>,
    root: Arc<DiskNode>,
    flavour: Flavour,
    journal: JournalUse,
}

impl Drop for DiskFs {
    fn drop(&mut self) {
        self.disk.nodes.close();
    }
}

impl FileSystem for DiskFs {
    fn name(&self) -> &'static str {
        match self.flavour {
            Flavour::Ext2 => "ext2",
            Flavour::Ext3 => "ext3",
            Flavour::Ext4 => "ext4",
        }
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
            magic: MAGIC,
            block_size: self.disk.volume.block_size().into(),
            blocks: told.blocks,
            free_blocks: told.free_blocks,
            inodes: told.inodes,
            free_inodes: told.free_inodes,
        }
    }
    fn show_options(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        if self.journal == JournalUse::Ignored { out.write_str(",norecovery") } else { Ok(()) }
    }
    fn is_read_only(&self) -> bool {
        true
    }
    fn configure(&self, options: &[u8]) -> Result<()> {
        journal_use(options).map(drop)
    }
}
