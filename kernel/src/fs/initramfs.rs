//! Unpacking the initramfs: a cpio archive ("newc", magic 070701 or 070702) in memory.
//!
//! The archive is hostile input, so nothing in it is trusted. Every length is checked against the
//! bytes that are left, and names are split before files are made. A "..", which would leave the
//! root, ends the unpacking. Later members replace earlier ones of the same name, as on Linux;
//! several archives may follow one another, with zeroes between.

use core::fmt;

use freehold_collections::{Arc, Map, Vec};

use super::bytes::SliceSource;
use super::caller::Caller;
use super::file::Blocking;
use super::flags::OpenFlags;
use super::node::{ModeChange, NewNode, Node, NodeKind, SetMetadata, Timestamp};
use super::path::Path;
use super::walk::{NAME_MAX, PATH_MAX};
use super::{device, names, walk::Final, walk::PathWalk};
use crate::Errno;

const HEADER: usize = 110;
const TRAILER: &[u8] = b"TRAILER!!!";
/// Limit of a symbolic link's target: it must fit into a path.
const MAX_TARGET: usize = PATH_MAX - 1;

/// Error in an archive, or in making its files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// There is neither a header nor padding at the expected start of a member.
    Magic {
        /// Bytes from the beginning of the archive.
        at: usize,
    },
    /// The archive ends in the middle of a member.
    Short {
        /// Offset of the member.
        at: usize,
    },
    /// A number in a header is malformed, or a name or target.
    Malformed {
        /// Offset of the member.
        at: usize,
    },
    /// A member could not be made.
    Make {
        /// Offset of the member.
        at: usize,
        /// The reason.
        error: Errno,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic { at } => write!(f, "no cpio member at byte {at}"),
            Self::Short { at } => write!(f, "the archive ends inside the member at byte {at}"),
            Self::Malformed { at } => write!(f, "the member at byte {at} is malformed"),
            Self::Make { at, error } => write!(f, "the member at byte {at} cannot be made: {error:?}"),
        }
    }
}

/// Counts of an archive's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Number of members, without the trailers.
    pub members: usize,
    /// Bytes of file content.
    pub bytes: u64,
}

/// One member of an archive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member<'a> {
    /// Offset of the member's header.
    pub at: usize,
    /// Inode number in the archive; members with the same number are one file.
    pub inode: (u32, u32, u32),
    /// st_mode.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub links: u32,
    /// Seconds since 1970.
    pub modified: u32,
    /// Major and minor number of a device node.
    pub device: (u32, u32),
    /// The member's name, without leading "/" and "./".
    pub name: &'a [u8],
    /// Content, or a link's target.
    pub data: &'a [u8],
}

/// The members of an archive in order; ends after the first error.
#[derive(Clone, Debug)]
pub struct Members<'a> {
    archive: &'a [u8],
    at: usize,
}

impl<'a> Members<'a> {
    /// Iterates over the members of `archive`.
    pub fn new(archive: &'a [u8]) -> Self {
        Self { archive, at: 0 }
    }

    fn parse(&mut self) -> Result<Option<Member<'a>>, Error> {
        loop {
            let at = self.at;
            let rest = &self.archive[at..];
            if rest.len() < HEADER {
                return if rest.iter().all(|&byte| byte == 0) { Ok(None) } else { Err(Error::Short { at }) };
            }
            if !rest.starts_with(b"070701") && !rest.starts_with(b"070702") {
                // Padding between archives consists of whole words.
                if rest[..4] == [0; 4] {
                    self.at += 4;
                    continue;
                }
                return Err(Error::Magic { at });
            }
            let mut fields = [0u32; 13];
            for (field, digits) in fields.iter_mut().zip(rest[6..HEADER].chunks_exact(8)) {
                *field = hexadecimal(digits).ok_or(Error::Malformed { at })?;
            }
            let [inode, mode, uid, gid, links, modified, size, major, minor, rmajor, rminor, name_size, _] =
                fields;
            let name_end = HEADER.checked_add(name_size as usize).ok_or(Error::Short { at })?;
            let data_start = aligned(at, name_end).ok_or(Error::Short { at })?;
            let data_end = data_start.checked_add(size as usize).ok_or(Error::Short { at })?;
            let name = rest.get(HEADER..name_end).ok_or(Error::Short { at })?;
            let data = rest.get(data_start..data_end).ok_or(Error::Short { at })?;
            // The last padding may be missing.
            self.at =
                aligned(at, data_end).map_or(self.archive.len(), |end| (at + end).min(self.archive.len()));
            let [name @ .., 0] = name else { return Err(Error::Malformed { at }) };
            if name.contains(&0) || name.len() >= PATH_MAX {
                return Err(Error::Malformed { at });
            }
            if name == TRAILER {
                continue;
            }
            let name = without_lead(name);
            return Ok(Some(Member {
                at,
                inode: (major, minor, inode),
                mode,
                uid,
                gid,
                links,
                modified,
                device: (rmajor, rminor),
                name,
                data,
            }));
        }
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Result<Member<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.parse();
        if result.is_err() {
            self.at = self.archive.len();
        }
        result.transpose()
    }
}

/// Returns `offset` from `base`, raised so that the sum is a multiple of 4.
fn aligned(base: usize, offset: usize) -> Option<usize> {
    Some(base.checked_add(offset)?.checked_next_multiple_of(4)? - base)
}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0u32, |value, &digit| {
        let digit = char::from(digit).to_digit(16)?;
        Some(value << 4 | digit)
    })
}

fn without_lead(mut name: &[u8]) -> &[u8] {
    loop {
        name = match name {
            [b'/', rest @ ..] | [b'.', b'/', rest @ ..] => rest,
            [b'.'] => &[],
            _ => return name,
        };
    }
}

/// Unpacks `archive` below `root`, as root. Files that were made before an error stay.
///
/// # Errors
/// The first error; see [`Error`].
pub fn unpack(archive: &[u8], root: &Path) -> Result<Summary, Error> {
    let mut unpacker = Unpacker { root, links: Map::new(), summary: Summary::default() };
    for member in Members::new(archive) {
        let member = member?;
        unpacker.member(&member).map_err(|error| Error::Make { at: member.at, error })?;
    }
    Ok(unpacker.summary)
}

struct Unpacker<'a> {
    root: &'a Path,
    /// Files with several names, by their number in the archive.
    links: Map<(u32, u32, u32), Arc<dyn Node>>,
    summary: Summary,
}

impl Unpacker<'_> {
    fn member(&mut self, member: &Member<'_>) -> Result<(), Errno> {
        self.summary.members += 1;
        let Some(kind) = NodeKind::from_mode(member.mode) else { return Err(Errno::EINVAL) };
        let new = NewNode {
            kind,
            mode: member.mode & 0o7777,
            uid: member.uid,
            gid: member.gid,
            rdev: device::make_device(member.device.0, member.device.1),
        };
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in member.name.split(|&byte| byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => return Err(Errno::EINVAL),
                part if part.len() > NAME_MAX => return Err(Errno::ENAMETOOLONG),
                part => parts.try_push(part)?,
            }
        }
        let Some((last, above)) = parts.split_last() else {
            // The member is the root itself.
            return self.root.node.set_metadata(&change(member));
        };
        let dir = self.directory(above)?;
        let node = match self.place(&dir, last, member, &new)? {
            Some(node) => node,
            None => return Ok(()),
        };
        if kind == NodeKind::Regular && !member.data.is_empty() {
            self.summary.bytes += member.data.len() as u64;
            let file = node.clone().open(OpenFlags::WRONLY)?;
            let mut source = SliceSource::new(member.data);
            let written = file.write_at(0, &mut source, Blocking::Wait)?;
            if written < member.data.len() {
                return Err(Errno::ENOSPC);
            }
        }
        if kind == NodeKind::Symlink { Ok(()) } else { node.set_metadata(&change(member)) }
    }

    /// Returns the directory with the names in `path`; makes it if it does not exist. Links on the
    /// way are followed, within the root.
    fn directory(&self, path: &[&[u8]]) -> Result<Arc<dyn Node>, Errno> {
        let mut here = self.root.clone();
        for part in path {
            let walk = PathWalk::new(self.root, &here, &Caller::ROOT);
            let next = match walk.find(part, Final::Follow) {
                Err(Errno::ENOENT) => {
                    names::make_dir(&walk, part, 0o755)?;
                    walk.find(part, Final::Follow)
                }
                found => found,
            };
            here = next?;
            if here.node.kind() != NodeKind::Directory {
                return Err(Errno::ENOTDIR);
            }
        }
        Ok(here.node)
    }

    /// Makes the member's node; `None` for another name of an existing file.
    fn place(
        &mut self,
        dir: &Arc<dyn Node>,
        name: &[u8],
        member: &Member<'_>,
        new: &NewNode,
    ) -> Result<Option<Arc<dyn Node>>, Errno> {
        let several = member.links > 1 && new.kind == NodeKind::Regular;
        match dir.lookup(name) {
            Ok(there) if new.kind == NodeKind::Directory && there.kind() == NodeKind::Directory => {
                return Ok(Some(there));
            }
            // A member with several names that appears again with its content.
            Ok(there) if several && self.links.get(&member.inode).is_some_and(|n| same(n, &there)) => {
                return Ok(Some(there));
            }
            Ok(there) if there.kind() == NodeKind::Directory => dir.remove_dir(name)?,
            Ok(_) => dir.unlink(name)?,
            Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
        if several && let Some(first) = self.links.get(&member.inode) {
            let first = first.clone();
            dir.link(name, &first)?;
            // GNU cpio stores the content with the last name.
            return Ok((!member.data.is_empty()).then_some(first));
        }
        let node = if new.kind == NodeKind::Symlink {
            if member.data.is_empty() || member.data.len() > MAX_TARGET || member.data.contains(&0) {
                return Err(Errno::EINVAL);
            }
            dir.symlink(name, member.data, new)?
        } else {
            dir.create(name, new)?
        };
        if several {
            self.links.try_insert(member.inode, node.clone())?;
        }
        Ok(Some(node))
    }
}

fn same(one: &Arc<dyn Node>, other: &Arc<dyn Node>) -> bool {
    one.identity() == other.identity()
}

fn change(member: &Member<'_>) -> SetMetadata {
    let modified = Timestamp { seconds: i64::from(member.modified), nanoseconds: 0 };
    SetMetadata {
        mode: Some(ModeChange::To(member.mode)),
        uid: Some(member.uid),
        gid: Some(member.gid),
        size: None,
        accessed: Some(modified),
        modified: Some(modified),
    }
}
