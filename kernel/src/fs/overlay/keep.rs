//! Saves an upper tree.
//!
//! [`keep`] copies an upper tree into a directory of any file system that stores names, bytes and
//! times, for example of an unprivileged user of the host. There `files` has the tree's
//! directories, files and symbolic links at their paths. They have permission bits but never set-ID
//! bits, and their owner can read all of them. `changes` has a line for each inode, with the
//! properties that such a file system cannot store. The fields of a line are separated by tabs. In
//! paths, names and values backslashes, quotes and all bytes that are not printable ASCII are
//! escaped as `\xNN` or as in C.
//!
//! | line | meaning |
//! |---|---|
//! | `freehold changes 1` | the first line |
//! | `directory`, `file` or `symlink`, MODE, UID:GID, PATH | an inode; the mode is octal |
//! | `fifo`, MODE, UID:GID, PATH | a FIFO, which is not in `files`: QEMU makes none |
//! | `char` or `block`, MODE, UID:GID, MAJOR:MINOR, PATH | a device node, not in `files` either |
//! | `name`, PATH, OTHER | another name of the file at OTHER, which has an earlier line |
//! | `removed`, PATH | a whiteout: files of lower trees there are not seen |
//! | `attribute`, NAME, VALUE, PATH | an extended attribute of a file that has an earlier line |
//! | `end`, COUNT | the last line; COUNT is the number of lines between the first and this one |
//!
//! Names are sorted, so two texts can be compared. Sockets are left out: no process listens on them
//! any more. Further names of a file that is not regular become separate files.

use core::fmt::{self, Write};

use freehold_collections::{Arc, Map, Vec, try_format};

use super::copy_up::{copy_bytes, set_times, write_all};
use super::listing::Listing;
use super::{OPAQUE, ORIGIN, PRIVATE, is_whiteout};
use crate::fs::device;
use crate::fs::file::File;
use crate::fs::flags::OpenFlags;
use crate::fs::node::{Identity, Metadata, NewNode, Node, NodeKind};
use crate::{Errno, Result, sched};

/// Bytes of lines that are written at once.
const ENOUGH: usize = 32 << 10;

/// The reason why a tree was not saved.
#[derive(Debug)]
pub struct NotKept {
    /// The path that was being written.
    pub path: Vec<u8>,
    /// The error.
    pub error: Errno,
}

impl fmt::Display for NotKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.path.escape_ascii(), self.error)
    }
}

/// Saves the upper tree with the root `upper` in the empty directory `into`. An empty directory
/// whose path is in `places` is left out: other trees are mounted there.
///
/// # Errors
/// The first failure. Files that were written before stay, without the last line.
pub fn keep(
    upper: &Arc<dyn Node>,
    into: &Arc<dyn Node>,
    places: &[Vec<u8>],
) -> core::result::Result<(), NotKept> {
    let mut path = Vec::new();
    keep_all((upper, into), places, &mut path).map_err(|error| NotKept { path, error })
}

fn keep_all(
    (upper, into): (&Arc<dyn Node>, &Arc<dyn Node>),
    places: &[Vec<u8>],
    path: &mut Vec<u8>,
) -> Result<()> {
    let mut keeper = Keeper { list: LineWriter::new(into)?, names: Map::new(), places, path };
    let told = upper.metadata();
    let files = into.create(b"files", &NewNode { mode: 0o755, ..new_like(&told) })?;
    keeper.path.try_push(b'/')?;
    keeper.describe(upper, &told)?;
    keeper.path.pop();
    let mut levels = Vec::new();
    let listing = Listing::of_tree_sorted(upper)?;
    levels.try_push(Level { from: upper.clone(), to: files, listing, next: 0 })?;
    while let Some(level) = levels.as_mut_slice().last_mut() {
        sched::checkpoint()?;
        let length = keeper.path.len();
        let Some(name) = level.listing.at(level.next) else {
            set_times(&level.to, &level.from.metadata())?;
            levels.pop();
            let parent = keeper.path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
            keeper.path.truncate(parent);
            continue;
        };
        keeper.path.try_push(b'/')?;
        keeper.path.try_extend_from_slice(name)?;
        let deeper = keeper.keep_name((&level.from, &level.to), name)?;
        level.next += 1;
        match deeper {
            Some(deeper) => levels.try_push(deeper)?,
            None => keeper.path.truncate(length),
        }
    }
    keeper.list.end()
}

/// A directory that is being copied.
struct Level {
    from: Arc<dyn Node>,
    to: Arc<dyn Node>,
    listing: Listing,
    next: usize,
}

struct Keeper<'a> {
    list: LineWriter,
    /// For files with several names: the path and the copy of the first name.
    names: Map<Identity, (Vec<u8>, Arc<dyn Node>)>,
    places: &'a [Vec<u8>],
    /// Path of the node that is being copied; empty for the root.
    path: &'a mut Vec<u8>,
}

impl Keeper<'_> {
    /// Copies the node at `name` in a directory. A directory's contents are left for later.
    fn keep_name(
        &mut self,
        (from, to): (&Arc<dyn Node>, &Arc<dyn Node>),
        name: &[u8],
    ) -> Result<Option<Level>> {
        let node = from.lookup(name)?;
        if is_whiteout(&*node) {
            self.list.line(format_args!("removed\t{}", self.path.escape_ascii()))?;
            return Ok(None);
        }
        let told = node.metadata();
        let new = new_like(&told);
        match told.kind {
            NodeKind::Directory => {
                let listing = Listing::of_tree_sorted(&node)?;
                if listing.is_empty() && self.places.contains(self.path) {
                    return Ok(None);
                }
                let copy = to.create(name, &new)?;
                self.describe(&node, &told)?;
                return Ok(Some(Level { from: node, to: copy, listing, next: 0 }));
            }
            NodeKind::Regular => {
                if let Some((other, copy)) = self.names.get(&node.identity()) {
                    to.link(name, copy)?;
                    let (path, other) = (self.path.escape_ascii(), other.escape_ascii());
                    self.list.line(format_args!("name\t{path}\t{other}"))?;
                    return Ok(None);
                }
                let copy = to.create(name, &new)?;
                copy_bytes(&node, &copy, told.size)?;
                set_times(&copy, &told)?;
                if told.links > 1 {
                    self.names.try_insert(node.identity(), (self.path.try_clone()?, copy))?;
                }
            }
            NodeKind::Symlink => drop(to.symlink(name, &node.read_link()?, &new)?),
            NodeKind::Fifo | NodeKind::CharDevice | NodeKind::BlockDevice => {}
            NodeKind::Socket => return Ok(None),
        }
        self.describe(&node, &told)?;
        Ok(None)
    }

    /// Adds the lines of the node at the path.
    fn describe(&mut self, node: &Arc<dyn Node>, told: &Metadata) -> Result<()> {
        let &Metadata { kind, mode, uid, gid, rdev, .. } = told;
        let path = self.path.escape_ascii();
        let device = match kind {
            NodeKind::CharDevice | NodeKind::BlockDevice => {
                let (major, minor) = device::split_device(rdev);
                try_format!("\t{major}:{minor}")?
            }
            _ => try_format!("")?,
        };
        let word = match kind {
            NodeKind::Directory => "directory",
            NodeKind::Symlink => "symlink",
            NodeKind::Fifo => "fifo",
            NodeKind::CharDevice => "char",
            NodeKind::BlockDevice => "block",
            NodeKind::Regular | NodeKind::Socket => "file",
        };
        self.list.line(format_args!("{word}\t{mode:04o}\t{uid}:{gid}{device}\t{path}"))?;
        let names = match node.list_xattrs() {
            Err(Errno::EOPNOTSUPP) => return Ok(()),
            names => names?,
        };
        for name in names.split(|&byte| byte == 0).filter(|&name| is_kept(name)) {
            sched::checkpoint()?;
            let value = node.xattr(name)?;
            let (name, value) = (name.escape_ascii(), value.escape_ascii());
            self.list.line(format_args!("attribute\t{name}\t{value}\t{path}"))?;
        }
        Ok(())
    }
}

/// Whether an attribute has a meaning in another boot. Numbers of inodes do not.
fn is_kept(name: &[u8]) -> bool {
    !name.is_empty() && name != ORIGIN && (name == OPAQUE || !name.starts_with(PRIVATE))
}

/// Returns the attributes in `told`, except that the owner on the host can read the file, and the
/// set-ID bits are cleared.
fn new_like(told: &Metadata) -> NewNode {
    let needed = if told.kind == NodeKind::Directory { 0o700 } else { 0o600 };
    NewNode { kind: told.kind, mode: told.mode & 0o777 | needed, uid: 0, gid: 0, rdev: 0 }
}

/// Writer of the lines.
struct LineWriter {
    file: Arc<dyn File>,
    at: u64,
    text: Vec<u8>,
    lines: u64,
}

impl LineWriter {
    fn new(into: &Arc<dyn Node>) -> Result<Self> {
        let new = NewNode { kind: NodeKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
        let file = into.create(b"changes", &new)?.open(OpenFlags::LARGEFILE | OpenFlags::WRONLY)?;
        let mut text = Vec::new();
        text.try_extend_from_slice(b"freehold changes 1\n")?;
        Ok(Self { file, at: 0, text, lines: 0 })
    }

    fn line(&mut self, line: fmt::Arguments<'_>) -> Result<()> {
        writeln!(self.text, "{line}").map_err(|_| Errno::ENOMEM)?;
        self.lines += 1;
        if self.text.len() < ENOUGH { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<()> {
        write_all(&*self.file, self.at, &self.text)?;
        self.at += self.text.len() as u64;
        self.text.truncate(0);
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        let lines = self.lines;
        self.line(format_args!("end\t{lines}"))?;
        self.flush()?;
        self.file.sync()
    }
}
