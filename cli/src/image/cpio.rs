//! The initramfs format: cpio "newc" (Linux
//! Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use super::{ImageEntry, ImageNode};
use crate::Result;
use crate::failure::Failure;
use crate::user::User;

/// Bytes of a member before its name.
pub const HEADER: u64 = 110;

const S_IFIFO: u32 = 0o010000;
const S_IFCHR: u32 = 0o020000;
const S_IFBLK: u32 = 0o060000;
const S_IFDIR: u32 = 0o040000;
const S_IFREG: u32 = 0o100000;
const S_IFLNK: u32 = 0o120000;

/// Writes entries one after the other; a folder must come before its contents.
pub struct Writer<'a, W> {
    out: &'a mut W,
    inode: u32,
    /// Inode numbers of files with several names.
    several: BTreeMap<&'a Path, u32>,
}

/// The header of a member.
struct Member<'a> {
    name: &'a [u8],
    inode: u32,
    mode: u32,
    owner: User,
    links: u32,
    size: u32,
    modified: u32,
    device: (u32, u32),
}

impl<'a, W: Write> Writer<'a, W> {
    /// Begins a new archive on `out`; `several` are the paths of files that have other names, too.
    pub fn new(out: &'a mut W, several: impl Iterator<Item = &'a Path>) -> Self {
        let mut writer = Writer { out, inode: 0, several: BTreeMap::new() };
        for path in several {
            if !writer.several.contains_key(path) {
                writer.inode += 1;
                writer.several.insert(path, writer.inode);
            }
        }
        writer
    }

    /// Adds one entry. If a host file changed its size since it was gathered, that is an error.
    pub fn entry(&mut self, path: &Path, entry: &ImageEntry) -> Result<()> {
        let name = path.strip_prefix("/").unwrap_or(path).as_os_str().as_bytes();
        let (kind, size) = match &entry.node {
            ImageNode::Folder => (S_IFDIR, 0),
            ImageNode::Fifo => (S_IFIFO, 0),
            ImageNode::Device { is_block: false, .. } => (S_IFCHR, 0),
            ImageNode::Device { is_block: true, .. } => (S_IFBLK, 0),
            ImageNode::Symlink(target) => (S_IFLNK, target.as_os_str().len() as u64),
            ImageNode::Name(_) => (S_IFREG, 0),
            ImageNode::Bytes(bytes) => (S_IFREG, bytes.len() as u64),
            ImageNode::HostFile(_, size) => (S_IFREG, *size),
        };
        let size = u32::try_from(size).map_err(|_| {
            Failure::new(format!("{} is too big for an initramfs", path.display()), "give it as a --disk")
        })?;
        let first = if let ImageNode::Name(other) = &entry.node { other } else { path };
        let (inode, links) = match self.several.get(first) {
            Some(&inode) => (inode, 2),
            None => (self.next_inode(), if kind == S_IFDIR { 2 } else { 1 }),
        };
        let device = if let ImageNode::Device { number, .. } = entry.node { number } else { (0, 0) };
        let (mode, owner, modified) = (kind | entry.permissions, entry.owner, entry.modified);
        self.header(&Member { name, inode, mode, owner, links, size, modified, device })
            .map_err(|e| write_failed(&e))?;
        match &entry.node {
            ImageNode::Symlink(target) => self.out.write_all(target.as_os_str().as_bytes()),
            ImageNode::Bytes(bytes) => self.out.write_all(bytes),
            ImageNode::HostFile(host, _) => self.copy(host, size)?,
            ImageNode::Folder | ImageNode::Fifo | ImageNode::Device { .. } | ImageNode::Name(_) => Ok(()),
        }
        .and_then(|()| self.pad(size as usize))
        .map_err(|e| write_failed(&e))
    }

    fn next_inode(&mut self) -> u32 {
        self.inode += 1;
        self.inode
    }

    fn copy(&mut self, host: &Path, size: u32) -> Result<std::io::Result<()>> {
        // It was a regular file a moment ago: neither follow nor wait for what it may be now.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let opened = File::options().read(true).custom_flags(flags).open(host);
        let file = opened.map_err(|e| Failure::io("read", host, &e))?;
        Ok(match std::io::copy(&mut file.take(size.into()), self.out) {
            Ok(copied) if copied == u64::from(size) => Ok(()),
            Ok(_) => return Err(Failure::new(format!("{} changed while it was read", host.display()), "")),
            Err(error) => Err(error),
        })
    }

    fn header(&mut self, member: &Member<'_>) -> std::io::Result<()> {
        let Member { name, inode, mode, owner, links, size, modified, device } = *member;
        let fields = [
            inode,
            mode,
            owner.uid,
            owner.gid,
            links,
            modified,
            size,
            0, // device
            0,
            device.0, // device that it stands for
            device.1,
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

    /// Pads to a multiple of four bytes, on which header and contents must end.
    fn pad(&mut self, size: usize) -> std::io::Result<()> {
        self.out.write_all(&[0; 3][..size.wrapping_neg() % 4])
    }

    /// Writes the trailer.
    pub fn finish(mut self) -> Result<()> {
        let (name, owner) = (&b"TRAILER!!!"[..], User::ROOT);
        let last = Member { name, inode: 0, mode: 0, owner, links: 1, size: 0, modified: 0, device: (0, 0) };
        self.header(&last).and_then(|()| self.out.flush()).map_err(|e| write_failed(&e))
    }
}

fn write_failed(error: &std::io::Error) -> Failure {
    Failure::new(
        format!("cannot write the initramfs: {error}"),
        "is the temporary folder full? TMPDIR names another",
    )
}
