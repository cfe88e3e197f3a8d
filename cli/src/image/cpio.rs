//! The initramfs format: cpio "newc" (Linux Documentation/driver-api/early-userspace/buffer-format.rst).

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{ImageEntry, ImageNode};
use crate::Result;
use crate::failure::Failure;
use crate::user::User;

/// Bytes of a member before its name.
pub const HEADER: u64 = 110;

const S_IFIFO: u32 = 0o010000;
const S_IFDIR: u32 = 0o040000;
const S_IFREG: u32 = 0o100000;
const S_IFLNK: u32 = 0o120000;

/// Writes entries one after the other; parents must come before what is in them.
pub struct Writer<'a, W> {
    out: &'a mut W,
    inode: u32,
}

impl<'a, W: Write> Writer<'a, W> {
    /// A new archive on `out`.
    pub fn new(out: &'a mut W) -> Self {
        Writer { out, inode: 0 }
    }

    /// Adds one entry. A host file that changed its size since it was gathered is an error.
    pub fn entry(&mut self, path: &Path, entry: &ImageEntry) -> Result<()> {
        let name = path.strip_prefix("/").unwrap_or(path).as_os_str().as_bytes();
        let (kind, size) = match &entry.node {
            ImageNode::Folder => (S_IFDIR, 0),
            ImageNode::Fifo => (S_IFIFO, 0),
            ImageNode::Symlink(target) => (S_IFLNK, target.as_os_str().len() as u64),
            ImageNode::Bytes(bytes) => (S_IFREG, bytes.len() as u64),
            ImageNode::HostFile(_, size) => (S_IFREG, *size),
        };
        let size = u32::try_from(size).map_err(|_| {
            Failure::new(format!("{} is too big for an initramfs", path.display()), "give it as a --disk")
        })?;
        self.header(name, (kind | entry.permissions, entry.owner), size, entry.modified)
            .map_err(|e| write_failed(&e))?;
        match &entry.node {
            ImageNode::Symlink(target) => self.out.write_all(target.as_os_str().as_bytes()),
            ImageNode::Bytes(bytes) => self.out.write_all(bytes),
            ImageNode::HostFile(host, _) => self.copy(host, size)?,
            ImageNode::Folder | ImageNode::Fifo => Ok(()),
        }
        .and_then(|()| self.pad(size as usize))
        .map_err(|e| write_failed(&e))
    }

    fn copy(&mut self, host: &Path, size: u32) -> Result<std::io::Result<()>> {
        let file = File::open(host).map_err(|e| Failure::io("read", host, &e))?;
        Ok(match std::io::copy(&mut file.take(size.into()), self.out) {
            Ok(copied) if copied == u64::from(size) => Ok(()),
            Ok(_) => return Err(Failure::new(format!("{} changed while it was read", host.display()), "")),
            Err(error) => Err(error),
        })
    }

    fn header(
        &mut self,
        name: &[u8],
        (mode, owner): (u32, User),
        size: u32,
        modified: u32,
    ) -> std::io::Result<()> {
        self.inode += 1;
        let links = if mode & S_IFDIR == S_IFDIR { 2 } else { 1 };
        let fields = [
            self.inode,
            mode,
            owner.uid,
            owner.gid,
            links,
            modified,
            size,
            0, // device
            0,
            0, // device that it stands for
            0,
            name.len() as u32 + 1,
            0, // checksum, unused in this format
        ];
        self.out.write_all(b"070701")?;
        for field in fields {
            write!(self.out, "{field:08x}")?;
        }
        self.out.write_all(name)?;
        self.out.write_all(&[0])?;
        self.pad(HEADER as usize + name.len() + 1)
    }

    /// Both header and contents end on a multiple of four bytes.
    fn pad(&mut self, size: usize) -> std::io::Result<()> {
        self.out.write_all(&[0; 3][..size.wrapping_neg() % 4])
    }

    /// Writes the trailer.
    pub fn finish(mut self) -> Result<()> {
        self.header(b"TRAILER!!!", (0, User::ROOT), 0, 0)
            .and_then(|()| self.out.flush())
            .map_err(|e| write_failed(&e))
    }
}

fn write_failed(error: &std::io::Error) -> Failure {
    Failure::new(
        format!("cannot write the initramfs: {error}"),
        "is the temporary folder full? TMPDIR names another",
    )
}
