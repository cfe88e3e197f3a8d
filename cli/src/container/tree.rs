//! A tree of an image on the host, in the form of QEMU's security model `mapped-xattr`.
//!
//! Owner, group, mode (with the kind of file) and device number are extended attributes of a
//! regular file or a directory, little-endian. A symbolic link is a regular file that holds its
//! target.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Timespec, Timestamps, XattrFlags};

use crate::Result;
use crate::failure::Failure;
use crate::image::{in_tree, walk};

const UID: &str = "user.virtfs.uid";
const GID: &str = "user.virtfs.gid";
const MODE: &str = "user.virtfs.mode";
const RDEV: &str = "user.virtfs.rdev";
/// The longest target of a symbolic link.
pub const MAX_TARGET: usize = 4095;
/// The longest account file that is read.
const MAX_TEXT: u64 = 16 << 20;

/// Attributes of a file, besides its bytes, that the guest sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileAttributes {
    /// Kind and permission bits, as in st_mode.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The device that a device node stands for.
    pub rdev: Option<u64>,
    /// Time of the last change, in seconds.
    pub modified: i64,
}

impl FileAttributes {
    /// A directory of root's.
    pub const FOLDER: FileAttributes =
        FileAttributes { mode: 0o40_755, uid: 0, gid: 0, rdev: None, modified: 0 };

    /// Sets the attributes on an open file or directory.
    ///
    /// # Errors
    /// The file system does not support them.
    pub fn put_on(&self, file: &File) -> io::Result<()> {
        let put =
            |name: &str, value: &[u8]| rustix::fs::fsetxattr(file.as_fd(), name, value, XattrFlags::empty());
        put(UID, &self.uid.to_le_bytes())?;
        put(GID, &self.gid.to_le_bytes())?;
        put(MODE, &self.mode.to_le_bytes())?;
        if let Some(rdev) = self.rdev {
            put(RDEV, &rdev.to_le_bytes())?;
        }
        let time = Timespec { tv_sec: self.modified, tv_nsec: 0 };
        Ok(rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time })?)
    }

    fn of(path: &Path) -> Option<FileAttributes> {
        let modified = std::os::unix::fs::MetadataExt::mtime(&fs::symlink_metadata(path).ok()?);
        let get = |name: &str| {
            let mut value = [0; 4];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
            (length == 4).then_some(u32::from_le_bytes(value))
        };
        Some(FileAttributes { mode: get(MODE)?, uid: get(UID)?, gid: get(GID)?, rdev: None, modified })
    }

    /// Returns the kind of file.
    pub const fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}

/// An unpacked tree. Paths are those of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedTree {
    root: PathBuf,
}

impl MappedTree {
    /// Returns the tree whose root is this folder.
    pub fn at(root: PathBuf) -> MappedTree {
        MappedTree { root }
    }

    /// Returns the tree's path on the host.
    pub fn host(&self) -> &Path {
        &self.root
    }

    fn on_host(&self, guest: &Path) -> PathBuf {
        in_tree(&self.root, guest)
    }

    /// Returns the attributes of the file at `guest`, without following links.
    pub fn attributes(&self, guest: &Path) -> Option<FileAttributes> {
        FileAttributes::of(&self.on_host(guest))
    }

    /// Returns the target of the link at `guest`; `None` if there is no link.
    pub fn link(&self, guest: &Path) -> Option<PathBuf> {
        if self.attributes(guest)?.kind() != FileType::Symlink {
            return None;
        }
        let mut target = Vec::new();
        let file = File::open(self.on_host(guest)).ok()?;
        file.take(MAX_TARGET as u64).read_to_end(&mut target).ok()?;
        Some(PathBuf::from(OsString::from_vec(target)))
    }

    /// Follows `guest` within the tree, its last name included.
    ///
    /// # Errors
    /// There are too many links.
    pub fn end_of(&self, guest: &Path) -> Result<PathBuf> {
        walk(guest, |at, _| Ok(self.link(at)))
    }

    /// Reads the text at `guest`; empty if there is no file.
    pub fn text(&self, guest: &Path) -> String {
        let mut bytes = Vec::new();
        if let Ok(end) = self.end_of(guest)
            && self.attributes(&end).is_some_and(|found| found.kind() == FileType::RegularFile)
            && let Ok(file) = File::open(self.on_host(&end))
        {
            // An unreadable file counts as one without accounts.
            let _ = file.take(MAX_TEXT).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Checks that the file system of `folder` can store owners and modes.
pub fn check_holds_attributes(folder: &Path) -> Result<()> {
    let probe = tempfile::tempfile_in(folder).map_err(|e| Failure::io("write in", folder, &e))?;
    FileAttributes::FOLDER.put_on(&probe).map_err(|error| {
        Failure::new(
            format!(
                "the file system of {} takes no extended attributes, which an image's owners and modes are kept in: {}",
                folder.display(),
                crate::failure::words(&error)
            ),
            "XDG_CACHE_HOME names another folder",
        )
    })
}
