//! Applies the layers of an image to a tree, in order.
//!
//! The whole tree is known in memory while it is made, so no name is looked up on the host. Parents
//! of a name are followed through the image's own symbolic links, within the tree; on the host
//! there are none. A file is never changed in place: a later layer replaces it, and other names of
//! the file keep the old contents.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use tar::EntryType;

use super::tree::{FileAttributes, MAX_TARGET};
use crate::Result;
use crate::failure::{self, Failure};
use crate::image::{PathPart, in_tree, walk};

/// Prefix of a name that removes the rest of the name from the layers below.
const WHITEOUT: &[u8] = b".wh.";
/// A name that removes everything that the layers below have in this directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Prefix of notes of the file system AUFS, which have no meaning elsewhere.
const NOTES: &[u8] = b".wh..wh.";
/// Files below this size are written without a check of the free space.
const SMALL: u64 = 1 << 20;

/// A name of the tree.
#[derive(Debug)]
struct KnownName {
    what: NameKind,
    /// The last layer that has the name.
    layer: usize,
}

#[derive(Debug)]
enum NameKind {
    /// A directory and the time of its last change.
    Folder(i64),
    Link(PathBuf),
    File,
}

/// A tree in the making.
pub struct TreeBuilder<'a> {
    root: &'a Path,
    names: BTreeMap<PathBuf, KnownName>,
    layer: usize,
}

/// The allowed beginnings of a name in an archive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lead {
    /// Relative names only.
    Relative,
    /// Relative names, or with a slash: some builders name the targets of hard links so.
    Any,
}

impl<'a> TreeBuilder<'a> {
    /// Makes a tree in `root`, an empty folder.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn new(root: &'a Path) -> Result<TreeBuilder<'a>> {
        let mut tree = TreeBuilder { root, names: BTreeMap::new(), layer: 0 };
        tree.names.insert("/".into(), KnownName { what: NameKind::Folder(0), layer: 0 });
        tree.dress(Path::new("/"), &FileAttributes::FOLDER)?;
        Ok(tree)
    }

    /// Applies the next layer, an archive that messages call `what`.
    ///
    /// # Errors
    /// The archive is damaged, leads out of the tree or has an impossible member; the host's file
    /// system is full.
    pub fn apply(&mut self, archive: &mut dyn Read, what: &str) -> Result<()> {
        self.layer += 1;
        let unreadable = |error: &io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Failure::new(format!("{what} is cut short"), ""),
            _ => Failure::new(format!("cannot read {what}: {}", failure::words(error)), ""),
        };
        let mut archive = tar::Archive::new(archive);
        for entry in archive.entries().map_err(|e| unreadable(&e))? {
            let mut entry = entry.map_err(|e| unreadable(&e))?;
            let shown = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            self.add(&mut entry).map_err(|problem| match problem {
                Problem::Read(error) => unreadable(&error),
                Problem::Member(why) => Failure::new(format!("{what} has {shown:?}, {why}"), ""),
                Problem::Write(error) => Failure::new(
                    format!("cannot unpack {shown:?}: {}", failure::words(&error)),
                    "XDG_CACHE_HOME names another folder",
                ),
                Problem::Other(failure) => failure,
            })?;
        }
        Ok(())
    }

    /// Makes the directory if it does not exist, with owner root, and gives all directories their
    /// times.
    ///
    /// # Errors
    /// The path exists and is no directory; the host's file system is full.
    pub fn finish(mut self, working_folder: &Path) -> Result<()> {
        let failed = |problem: Problem| match problem {
            Problem::Other(failure) => failure,
            Problem::Write(error) => Failure::io("make", working_folder, &error),
            _ => Failure::new(
                format!("the image's working directory {} is no directory", working_folder.display()),
                "",
            ),
        };
        self.layer += 1;
        let folder = self.follow(working_folder).map_err(failed)?;
        self.make_parents(&folder.join("x")).map_err(failed)?;
        for (path, name) in self.names.iter().rev() {
            if let NameKind::Folder(modified) = name.what {
                let time = rustix::fs::Timespec { tv_sec: modified, tv_nsec: 0 };
                let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
                let set = File::open(self.on_host(path))
                    .and_then(|folder| Ok(rustix::fs::futimens(&folder, &times)?));
                set.map_err(|error| Failure::io("set the time of", path, &error))?;
            }
        }
        Ok(())
    }

    fn on_host(&self, path: &Path) -> PathBuf {
        in_tree(self.root, path)
    }

    fn dress(&self, path: &Path, attributes: &FileAttributes) -> Result<()> {
        let host = self.on_host(path);
        File::open(&host)
            .and_then(|folder| attributes.put_on(&folder))
            .map_err(|error| Failure::io("set the owner of", &host, &error))
    }

    fn add(&mut self, entry: &mut tar::Entry<'_, impl Read>) -> Outcome {
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            return Ok(());
        }
        let path = name_in_tree(&entry.path_bytes(), Lead::Relative)?;
        let Some(name) = path.file_name().map(|name| name.as_bytes().to_vec()) else {
            return self.add_root(entry);
        };
        let parent = self.follow(path.parent().unwrap_or(Path::new("/")))?;
        if name.starts_with(WHITEOUT) {
            return self.white_out(&parent, &name);
        }
        let path = parent.join(std::ffi::OsStr::from_bytes(&name));
        let attributes = attributes(entry)?;
        self.make_parents(&path)?;
        let is_folder = self.names.get(&path).is_some_and(|known| matches!(known.what, NameKind::Folder(_)));
        if kind == EntryType::Directory && is_folder {
            return self.note_folder(&path, &attributes);
        }
        if kind == EntryType::Link {
            return self.add_hard_link(entry, path);
        }
        if kind == EntryType::Directory {
            self.remove(&path)?;
            DirBuilder::new().mode(0o700).create(self.on_host(&path)).map_err(Problem::Write)?;
            return self.note_folder(&path, &attributes);
        }
        // For the file system overlay, a character device 0/0 means that the name does not exist.
        if kind == EntryType::Char && device(entry)? == 0 {
            return self.remove(&path);
        }
        let what = self.make_file(entry, &path, attributes)?;
        self.names.insert(path, KnownName { what, layer: self.layer });
        Ok(())
    }

    /// Makes a file that is neither a directory nor another name of a file.
    fn make_file(
        &mut self,
        entry: &mut tar::Entry<'_, impl Read>,
        path: &Path,
        mut attributes: FileAttributes,
    ) -> Outcome<NameKind> {
        let kind = entry.header().entry_type();
        Ok(match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                attributes.mode |= libc_mode::REGULAR;
                self.check_room(entry.size())?;
                let file = self.new_file(path)?;
                copy(entry, &file)?;
                attributes.put_on(&file).map_err(Problem::Write)?;
                NameKind::File
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                if target.is_empty() || target.len() > MAX_TARGET || target.contains(&0) {
                    return Err(Problem::Member("a link whose target cannot be one"));
                }
                attributes.mode = libc_mode::SYMLINK | 0o777;
                let file = self.new_file(path)?;
                io::Write::write_all(&mut &file, &target).map_err(Problem::Write)?;
                attributes.put_on(&file).map_err(Problem::Write)?;
                NameKind::Link(PathBuf::from(std::ffi::OsString::from_vec(target)))
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                attributes.mode |= match kind {
                    EntryType::Char => libc_mode::CHAR_DEVICE,
                    EntryType::Block => libc_mode::BLOCK_DEVICE,
                    _ => libc_mode::FIFO,
                };
                if kind != EntryType::Fifo {
                    attributes.rdev = Some(device(entry)?);
                }
                let file = self.new_file(path)?;
                attributes.put_on(&file).map_err(Problem::Write)?;
                NameKind::File
            }
            _ => return Err(Problem::Member("of a kind that is not known")),
        })
    }

    /// Adds the root itself, from which only the attributes are taken.
    fn add_root(&mut self, entry: &tar::Entry<'_, impl Read>) -> Outcome {
        if entry.header().entry_type() != EntryType::Directory {
            return Err(Problem::Member("which is no directory, as the root"));
        }
        self.note_folder(Path::new("/"), &attributes(entry)?)
    }

    fn note_folder(&mut self, path: &Path, attributes: &FileAttributes) -> Outcome {
        let attributes = FileAttributes { mode: attributes.mode | libc_mode::FOLDER, ..*attributes };
        self.dress(path, &attributes)?;
        let what = NameKind::Folder(attributes.modified);
        self.names.insert(path.to_path_buf(), KnownName { what, layer: self.layer });
        Ok(())
    }

    fn new_file(&mut self, path: &Path) -> Outcome<File> {
        self.remove(path)?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(self.on_host(path)).map_err(Problem::Write)
    }

    fn add_hard_link(&mut self, entry: &tar::Entry<'_, impl Read>, path: PathBuf) -> Outcome {
        let target = entry.link_name_bytes().unwrap_or_default().into_owned();
        let target = name_in_tree(&target, Lead::Any)?;
        let Some(name) = target.file_name() else {
            return Err(Problem::Member("a hard link to the root"));
        };
        let target = self.follow(target.parent().unwrap_or(Path::new("/")))?.join(name);
        let what = match self.names.get(&target).map(|known| &known.what) {
            Some(NameKind::File) => NameKind::File,
            Some(NameKind::Link(leads_to)) => NameKind::Link(leads_to.clone()),
            Some(NameKind::Folder(_)) => return Err(Problem::Member("a hard link to a directory")),
            None => return Err(Problem::Member("a hard link to what is not there")),
        };
        if target != path {
            self.remove(&path)?;
            if !self.names.contains_key(&target) {
                return Err(Problem::Member("a hard link to what it replaces"));
            }
            fs::hard_link(self.on_host(&target), self.on_host(&path)).map_err(Problem::Write)?;
        }
        self.names.insert(path, KnownName { what, layer: self.layer });
        Ok(())
    }

    /// Follows `folder` through the links of the tree. Parts that do not exist are kept as they are
    /// named.
    fn follow(&self, folder: &Path) -> Outcome<PathBuf> {
        let follow = walk(folder, |at, _: PathPart| {
            Ok(match self.names.get(at).map(|known| &known.what) {
                Some(NameKind::Link(target)) => Some(target.clone()),
                _ => None,
            })
        });
        follow.map_err(|_| Problem::Member("below links that lead in a circle"))
    }

    /// Makes the missing directories above `path`, with owner root; all of them belong to this
    /// layer now.
    fn make_parents(&mut self, path: &Path) -> Outcome {
        let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
        parents.reverse();
        for parent in parents {
            match self.names.get_mut(parent) {
                Some(KnownName { what: NameKind::Folder(_), layer }) => *layer = self.layer,
                Some(_) => return Err(Problem::Member("below what is no directory")),
                None => {
                    DirBuilder::new().mode(0o700).create(self.on_host(parent)).map_err(Problem::Write)?;
                    self.note_folder(parent, &FileAttributes { mode: 0o755, ..FileAttributes::FOLDER })?;
                }
            }
        }
        Ok(())
    }

    fn white_out(&mut self, parent: &Path, name: &[u8]) -> Outcome {
        if name == OPAQUE {
            return self.remove_if(parent, |path, known, layer| path != parent && known.layer < layer);
        }
        if name.starts_with(NOTES) {
            return Ok(());
        }
        match &name[WHITEOUT.len()..] {
            b"" | b"." | b".." => Err(Problem::Member("which removes no name")),
            name => {
                let path = parent.join(std::ffi::OsStr::from_bytes(name));
                self.remove_if(&path, |_, known, layer| known.layer < layer)
            }
        }
    }

    /// Removes `path` with everything below it.
    fn remove(&mut self, path: &Path) -> Outcome {
        self.remove_if(path, |_, _, _| true)
    }

    /// Removes `path`, and names below it, as `is_gone` says. A name that stays keeps its
    /// directories: those are of its layer, or of a later one.
    fn remove_if(&mut self, path: &Path, is_gone: impl Fn(&Path, &KnownName, usize) -> bool) -> Outcome {
        // Names below a directory follow it in the map, since paths are compared name by name.
        let below = self.names.range(path.to_path_buf()..).take_while(|(at, _)| at.starts_with(path));
        let gone: Vec<PathBuf> =
            below.filter(|(at, known)| is_gone(at, known, self.layer)).map(|(at, _)| at.clone()).collect();
        for path in gone.iter().rev() {
            let Some(known) = self.names.remove(path) else { continue };
            let host = self.on_host(path);
            let removed = match known.what {
                NameKind::Folder(_) => fs::remove_dir(host),
                _ => fs::remove_file(host),
            };
            removed.map_err(Problem::Write)?;
        }
        Ok(())
    }

    fn check_room(&self, size: u64) -> Outcome {
        if size < SMALL {
            return Ok(());
        }
        let room = rustix::fs::statvfs(self.root).map_err(|error| Problem::Write(error.into()))?;
        if size > room.f_bavail.saturating_mul(room.f_frsize) {
            return Err(Problem::Other(Failure::new(
                format!("a file of {size} bytes is more than the cache folder has room for"),
                "XDG_CACHE_HOME names another folder",
            )));
        }
        Ok(())
    }
}

/// Kinds of files in st_mode.
mod libc_mode {
    pub const FIFO: u32 = 0o010_000;
    pub const CHAR_DEVICE: u32 = 0o020_000;
    pub const FOLDER: u32 = 0o040_000;
    pub const BLOCK_DEVICE: u32 = 0o060_000;
    pub const REGULAR: u32 = 0o100_000;
    pub const SYMLINK: u32 = 0o120_000;
}

/// Reasons why a member cannot be added.
enum Problem {
    /// The archive cannot be read.
    Read(io::Error),
    /// The member is impossible; why.
    Member(&'static str),
    /// The host refuses.
    Write(io::Error),
    Other(Failure),
}

type Outcome<T = ()> = std::result::Result<T, Problem>;

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Problem {
        Problem::Other(failure)
    }
}

/// Returns the path in the tree for a name in an archive.
fn name_in_tree(name: &[u8], lead: Lead) -> Outcome<PathBuf> {
    let given = Path::new(std::ffi::OsStr::from_bytes(name));
    if name.contains(&0) {
        return Err(Problem::Member("a name with a zero byte"));
    }
    let mut path = PathBuf::from("/");
    for part in given.components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            // The root itself may have this name.
            Component::RootDir if lead == Lead::Any || name == b"/" => {}
            Component::RootDir => return Err(Problem::Member("an absolute name")),
            _ => return Err(Problem::Member("which leads out of the image")),
        }
    }
    Ok(path)
}

/// Returns the attributes of a member, without its kind.
fn attributes(entry: &tar::Entry<'_, impl Read>) -> Outcome<FileAttributes> {
    let header = entry.header();
    let malformed = |_| Problem::Member("whose header is damaged");
    let id = |id: u64| u32::try_from(id).ok().filter(|&id| id != u32::MAX);
    let (uid, gid) = (header.uid().map_err(malformed)?, header.gid().map_err(malformed)?);
    let (Some(uid), Some(gid)) = (id(uid), id(gid)) else {
        return Err(Problem::Member("whose owner cannot be one"));
    };
    let mode = header.mode().map_err(malformed)? & 0o7777;
    let modified = i64::try_from(header.mtime().map_err(malformed)?).unwrap_or(0);
    Ok(FileAttributes { mode, uid, gid, rdev: None, modified })
}

fn device(entry: &tar::Entry<'_, impl Read>) -> Outcome<u64> {
    let malformed = |_| Problem::Member("whose header is damaged");
    let major = entry.header().device_major().map_err(malformed)?.unwrap_or(0);
    let minor = entry.header().device_minor().map_err(malformed)?.unwrap_or(0);
    Ok(rustix::fs::makedev(major, minor))
}

/// Copies a member's bytes, as many as its header says.
fn copy(entry: &mut tar::Entry<'_, impl Read>, file: &File) -> Outcome {
    let mut left = entry.size();
    let mut room = vec![0; usize::try_from(left.clamp(1, 1 << 18)).unwrap_or(1 << 18)];
    while left > 0 {
        let count = entry.read(&mut room).map_err(Problem::Read)?;
        if count == 0 {
            return Err(Problem::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        io::Write::write_all(&mut &*file, &room[..count]).map_err(Problem::Write)?;
        left = left.saturating_sub(count as u64);
    }
    Ok(())
}
