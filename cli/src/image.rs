//! The guest's file system: gathered in memory as a map of paths, written as an initramfs.
//!
//! Host paths keep their form: if `/lib` is a symlink on the host, it is one in the guest. So a
//! program and its loader find all files by their usual names.

pub mod cpio;
pub mod spec;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use crate::Result;
use crate::container::{FileAttributes, MappedTree};
use crate::failure::Failure;
use crate::user::{self, User};

const GUEST_PAGE: u64 = 4096;
/// Largest amount of memory that a kernel needs for a file besides its bytes.
const GUEST_NODE: u64 = 2048;
/// Major number of devices that are the same on each machine: /dev/null, /dev/zero…
const MEMORY_DEVICES: u32 = 1;
/// Largest number of symlinks that Linux follows in one path.
const MAX_SYMLINKS: usize = 40;

/// First bytes of an ELF file.
const ELF: &[u8] = b"\x7fELF";

/// Returns the bytes of a file of the host if it is an ELF file.
fn read_elf(host: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let mut file = fs::File::open(host)?;
    let mut bytes = Vec::new();
    (&mut file).take(ELF.len() as u64).read_to_end(&mut bytes)?;
    if bytes != ELF {
        return Ok(None);
    }
    file.read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Returns whether an image can have the file: all but sockets and the host's own devices.
pub fn can_hold(meta: &fs::Metadata) -> bool {
    let kind = meta.file_type();
    let is_host_device = kind.is_char_device() && rustix::fs::major(meta.rdev()) != MEMORY_DEVICES;
    !(kind.is_socket() || kind.is_block_device() || is_host_device)
}

/// Files that hold the guest's host name.
const HOST_NAMES: [(&str, &str); 2] =
    [("/etc/hostname", "freehold\n"), ("/etc/hosts", "127.0.0.1 localhost freehold\n")];

/// The file at a path of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageNode {
    /// A folder.
    Folder,
    /// The bytes of a host file of this size.
    HostFile(PathBuf, u64),
    /// A file of the given bytes.
    Bytes(Vec<u8>),
    /// A symlink and its target.
    Symlink(PathBuf),
    /// A named pipe.
    Fifo,
    /// A device node.
    Device {
        /// Whether it is a block device; else a character device.
        is_block: bool,
        /// Major and minor number.
        number: (u32, u32),
    },
    /// Another name of the regular file at this path.
    Name(PathBuf),
}

/// A node with its permission bits, its owner and its time (seconds since 1970).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageEntry {
    node: ImageNode,
    permissions: u32,
    owner: User,
    modified: u32,
}

impl ImageEntry {
    /// A directory that belongs to root.
    const FOLDER: ImageEntry =
        ImageEntry { node: ImageNode::Folder, permissions: 0o755, owner: User::ROOT, modified: 0 };

    /// Returns the number of its bytes.
    fn contents(&self) -> u64 {
        match &self.node {
            ImageNode::HostFile(_, size) => *size,
            ImageNode::Bytes(bytes) => bytes.len() as u64,
            ImageNode::Folder
            | ImageNode::Symlink(_)
            | ImageNode::Fifo
            | ImageNode::Device { .. }
            | ImageNode::Name(_) => 0,
        }
    }

    fn folder_like(attributes: FileAttributes) -> ImageEntry {
        let FileAttributes { mode, uid, gid, modified, .. } = attributes;
        let modified = u32::try_from(modified).unwrap_or(0);
        ImageEntry { permissions: mode & 0o7777, owner: User { uid, gid }, modified, ..ImageEntry::FOLDER }
    }
}

/// Place of a name in a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PathPart {
    /// More names follow.
    Parent,
    /// The name is the last one.
    Last,
}

/// Returns the place of the guest's path `guest` in a tree of the host with the root `root`.
/// Follows no link.
pub fn in_tree(root: &Path, guest: &Path) -> PathBuf {
    match guest.strip_prefix("/") {
        Ok(rest) if rest.as_os_str().is_empty() => root.to_path_buf(),
        Ok(rest) => root.join(rest),
        Err(_) => root.join(guest),
    }
}

/// Follows `path` from the root, name by name. `link` returns the target if a place on the way is a
/// symlink. Returns the path's end.
pub fn walk(
    path: &Path,
    mut link: impl FnMut(&Path, PathPart) -> Result<Option<PathBuf>>,
) -> Result<PathBuf> {
    let names = |path: &Path| path.components().rev().map(|c| c.as_os_str().to_owned()).collect::<Vec<_>>();
    let mut todo = names(path);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = todo.pop() {
        match Path::new(&name).components().next() {
            Some(Component::RootDir) => at = PathBuf::from("/"),
            Some(Component::ParentDir) => {
                at.pop();
            }
            Some(Component::Normal(_)) => {
                at.push(&name);
                let place = if todo.is_empty() { PathPart::Last } else { PathPart::Parent };
                if let Some(target) = link(&at, place)? {
                    links += 1;
                    if links > MAX_SYMLINKS {
                        return Err(Failure::new(
                            format!("cannot add {}: too many symlinks", path.display()),
                            "",
                        ));
                    }
                    todo.extend(names(&target));
                    at.pop();
                }
            }
            _ => {}
        }
    }
    Ok(at)
}

/// The origin of an entry of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin<'a> {
    /// A copy of this file of the host.
    File(&'a Path),
    /// A folder.
    Folder,
    /// A symlink with this target.
    Symlink(&'a Path),
    /// Made by this command.
    Made,
}

/// The action for a file that we may not read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unreadable {
    /// The image is not made.
    Refused,
    /// The image is made without the file.
    Skipped,
}

/// A file system that is being built. Paths are absolute guest paths.
#[derive(Debug)]
pub struct Image {
    entries: BTreeMap<PathBuf, ImageEntry>,
    /// A tree over which the guest sees this one.
    below: Option<MappedTree>,
}

impl Image {
    /// Makes an image with the folders and files that every program may expect, also one that runs
    /// as `user`. All of them belong to root.
    pub fn new(user: User) -> Image {
        // Programs and files below the home directory of the host's root have the same path in the
        // guest: `user` must be able to pass.
        let root_home = if user.uid == 0 { 0o700 } else { 0o711 };
        let mut image = Image::empty();
        for (path, permissions) in [
            ("/dev", 0o755),
            ("/proc", 0o555),
            ("/sys", 0o555),
            ("/tmp", 0o1777),
            ("/root", root_home),
            ("/etc", 0o755),
            ("/run", 0o755),
            ("/var", 0o755),
            ("/var/tmp", 0o1777),
        ] {
            image.put(Path::new(path), ImageNode::Folder, permissions, 0);
        }
        let mut users =
            String::from("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n");
        let mut groups = String::from("root:x:0:\ntty:x:5:\nnogroup:x:65534:\n");
        let User { uid, gid } = user;
        if ![0, user::NOBODY].contains(&uid) {
            users.push_str(&format!("{}:x:{uid}:{gid}:{0}:{1}:/bin/sh\n", user::NAME, user::HOME));
        }
        if ![0, 5, user::NOBODY].contains(&gid) {
            groups.push_str(&format!("{}:x:{gid}:\n", user::NAME));
        }
        for (path, text) in
            [("/etc/passwd", &users[..]), ("/etc/group", &groups)].into_iter().chain(HOST_NAMES)
        {
            image.put(Path::new(path), ImageNode::Bytes(text.into()), 0o644, 0);
        }
        image
    }

    /// Makes an empty image, for a user's whole tree.
    pub fn empty() -> Image {
        Image { entries: BTreeMap::new(), below: None }
    }

    /// Makes an image over the tree of a container. Accounts come from the tree; host names are
    /// ours.
    pub fn over(tree: &MappedTree) -> Image {
        let mut image = Image { below: Some(tree.clone()), ..Image::empty() };
        for (path, text) in HOST_NAMES {
            image.add_bytes(Path::new(path), 0o644, text.into());
        }
        image
    }

    /// Makes the image independent of the times of its files: a guest parses times digit by digit,
    /// and the number of instructions depends on them.
    pub fn forget_times(&mut self) {
        for entry in self.entries.values_mut() {
            entry.modified = 0;
        }
    }

    fn put(&mut self, path: &Path, node: ImageNode, permissions: u32, modified: u32) {
        let entry = ImageEntry { node, permissions, owner: User::ROOT, modified };
        self.entries.insert(path.to_path_buf(), entry);
    }

    /// Places a node with its mode and its owner.
    pub fn put_owned(&mut self, guest: &Path, node: ImageNode, (mode, owner): (u32, User), modified: u32) {
        self.add_parents(guest);
        self.entries.insert(guest.to_path_buf(), ImageEntry { node, permissions: mode, owner, modified });
    }

    /// Returns whether a guest path exists.
    pub fn has(&self, guest: &Path) -> bool {
        self.entries.contains_key(guest)
    }

    /// Returns the origin of the entry at a guest path.
    pub fn origin(&self, guest: &Path) -> Option<Origin<'_>> {
        Some(match &self.entries.get(guest)?.node {
            ImageNode::HostFile(host, _) => Origin::File(host),
            ImageNode::Folder => Origin::Folder,
            ImageNode::Symlink(target) => Origin::Symlink(target),
            ImageNode::Bytes(_) | ImageNode::Fifo | ImageNode::Device { .. } | ImageNode::Name(_) => {
                Origin::Made
            }
        })
    }

    /// Returns guest path and bytes of each ELF file, in order of paths. A file that cannot be read
    /// any more is left out.
    pub fn elf_files(&self) -> impl Iterator<Item = (&Path, Cow<'_, [u8]>)> {
        self.entries.iter().filter_map(|(guest, entry)| {
            let bytes = match &entry.node {
                ImageNode::HostFile(host, _) => Cow::Owned(read_elf(host).ok().flatten()?),
                ImageNode::Bytes(bytes) if bytes.starts_with(ELF) => Cow::Borrowed(&bytes[..]),
                _ => return None,
            };
            Some((guest.as_path(), bytes))
        })
    }

    /// Places bytes at a guest path.
    pub fn add_bytes(&mut self, guest: &Path, permissions: u32, bytes: Vec<u8>) {
        self.add_parents(guest);
        self.put(guest, ImageNode::Bytes(bytes), permissions, 0);
    }

    /// Makes sure that a folder exists, parents included.
    pub fn add_folder(&mut self, guest: &Path) {
        self.add_parents(&guest.join("x"));
    }

    /// Adds a symlink.
    pub fn add_link(&mut self, guest: &Path, target: &Path) {
        self.add_parents(guest);
        self.put(guest, ImageNode::Symlink(target.to_path_buf()), 0o777, 0);
    }

    /// Adds a host file or folder at the same path, as far as we may read it; symlinks stay
    /// symlinks.
    pub fn add_readable(&mut self, host: &Path) -> Result<()> {
        self.add_parents(host);
        self.add_tree((host, Unreadable::Skipped), host)
    }

    fn add_parents(&mut self, guest: &Path) {
        for parent in guest.ancestors().skip(1) {
            if parent != Path::new("/") && !self.entries.contains_key(parent) {
                // A directory that the tree below also has hides that directory's attributes.
                let below = self.below.as_ref().and_then(|tree| tree.attributes(parent));
                let entry = below.map_or(ImageEntry::FOLDER, ImageEntry::folder_like);
                self.entries.insert(parent.to_path_buf(), entry);
            }
        }
    }

    /// Adds a host file or folder (with its whole contents) at the same path, with the symlinks on
    /// the way.
    pub fn add_host(&mut self, host: &Path) -> Result<()> {
        let host = crate::program::absolute(host)?;
        let end = walk(&host, |at, _| {
            let meta = fs::symlink_metadata(at).map_err(|e| Failure::io("add", &host, &e))?;
            if meta.is_symlink() {
                let target = fs::read_link(at).map_err(|e| Failure::io("add", at, &e))?;
                self.add_link(at, &target);
                return Ok(Some(target));
            }
            // Linux requires that a folder of an initramfs comes before its contents.
            self.add_parents(at);
            Ok(None)
        })?;
        self.add_tree((&end, Unreadable::Refused), &end)
    }

    /// Adds a host file or folder (with its whole contents) at `guest`; symlinks inside stay
    /// symlinks.
    pub fn add_host_at(&mut self, host: &Path, guest: &Path) -> Result<()> {
        let real = fs::canonicalize(host).map_err(|e| Failure::io("add", host, &e))?;
        let guest = self.resolve(guest)?;
        self.add_parents(&guest);
        self.add_tree((&real, Unreadable::Refused), &guest)
    }

    /// Adds a host file, a symlink itself or a folder without its contents at `guest`.
    pub fn add_alone(&mut self, host: &Path, guest: &Path) -> Result<()> {
        let guest = self.resolve(guest)?;
        self.add_parents(&guest);
        self.add_node((host, Unreadable::Refused), &guest).map(drop)
    }

    /// Returns `guest` with the image's own symlinks followed in its parent folders.
    fn resolve(&self, guest: &Path) -> Result<PathBuf> {
        walk(guest, |at, place| {
            Ok(match (self.entries.get(at).map(|entry| &entry.node), place) {
                (Some(ImageNode::Symlink(target)), PathPart::Parent) => Some(target.clone()),
                (None, PathPart::Parent) => self.below.as_ref().and_then(|tree| tree.link(at)),
                _ => None,
            })
        })
    }

    /// Checks that `user` may pass all folders on the way to `program` and run it. All files in the
    /// image belong to root.
    pub fn check_runs(&self, program: &Path, user: User) -> Result<()> {
        if user.uid == 0 {
            return Ok(());
        }
        let real = walk(program, |at, _| {
            Ok(match self.entries.get(at).map(|entry| &entry.node) {
                Some(ImageNode::Symlink(target)) => Some(target.clone()),
                _ => None,
            })
        })?;
        let bit = if user.gid == 0 { 0o010 } else { 0o001 };
        let closed = |at: &&Path| self.entries.get(*at).is_some_and(|entry| entry.permissions & bit == 0);
        match real.ancestors().find(closed) {
            None => Ok(()),
            Some(at) => Err(Failure::not_executable(
                format!(
                    "user {} may not run {}: {} has mode {:04o} and is root's in the VM",
                    user.uid,
                    program.display(),
                    at.display(),
                    self.entries[at].permissions
                ),
                format!("chmod go+rx {}", at.display()),
            )),
        }
    }

    fn add_tree(&mut self, (host, unreadable): (&Path, Unreadable), guest: &Path) -> Result<()> {
        let failed = |error: &std::io::Error| Failure::io("add", host, error);
        if self.add_node((host, unreadable), guest)? == Some(ImageNode::Folder) {
            for entry in fs::read_dir(host).map_err(|e| failed(&e))? {
                let entry = entry.map_err(|e| failed(&e))?;
                self.add_tree((&entry.path(), unreadable), &guest.join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    /// Adds a file, a symlink or an empty folder, and returns the entry; none for what the guest
    /// cannot have.
    fn add_node(
        &mut self,
        (host, unreadable): (&Path, Unreadable),
        guest: &Path,
    ) -> Result<Option<ImageNode>> {
        let failed = |error: &std::io::Error| Failure::io("add", host, error);
        let meta = fs::symlink_metadata(host).map_err(|e| failed(&e))?;
        let kind = meta.file_type();
        let has_contents = kind.is_file() || kind.is_dir();
        if unreadable == Unreadable::Skipped && has_contents && fs::File::open(host).is_err() {
            return Ok(None);
        }
        let node = if kind.is_dir() {
            ImageNode::Folder
        } else if kind.is_symlink() {
            ImageNode::Symlink(fs::read_link(host).map_err(|e| failed(&e))?)
        } else if kind.is_file() {
            ImageNode::HostFile(host.to_path_buf(), meta.len())
        } else if kind.is_fifo() {
            ImageNode::Fifo
        } else if kind.is_char_device() && rustix::fs::major(meta.rdev()) == MEMORY_DEVICES {
            let number = (MEMORY_DEVICES, rustix::fs::minor(meta.rdev()));
            ImageNode::Device { is_block: false, number }
        } else {
            return Ok(None); // Sockets and other devices mean nothing in another kernel.
        };
        let modified = u32::try_from(meta.mtime()).unwrap_or(0);
        if guest != Path::new("/") {
            self.put(guest, node.clone(), meta.mode() & 0o7777, modified);
        }
        Ok(Some(node))
    }

    /// Returns the bytes of all files at and below `folder`.
    pub fn contents_below(&self, folder: &Path) -> u64 {
        let below = self.entries.iter().filter(|(path, _)| path.starts_with(folder));
        below.map(|(_, entry)| entry.contents()).sum()
    }

    /// Returns the bytes of memory that the guest needs while it unpacks the image: the archive, as
    /// QEMU loaded it, and its files, each of which takes whole pages and a node.
    pub fn unpacking_bytes(&self) -> u64 {
        let of_one = |(path, entry): (&PathBuf, &ImageEntry)| {
            let archived = entry.contents() + cpio::HEADER + path.as_os_str().len() as u64;
            archived + entry.contents().next_multiple_of(GUEST_PAGE) + GUEST_NODE
        };
        self.entries.iter().map(of_one).sum()
    }

    /// Writes the image as an initramfs.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        let names = self.entries.values().filter_map(|entry| match &entry.node {
            ImageNode::Name(other) => Some(other.as_path()),
            _ => None,
        });
        let mut archive = cpio::Writer::new(out, names);
        for (path, entry) in &self.entries {
            archive.entry(path, entry)?;
        }
        archive.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_without_times_is_the_same_whenever_its_files_were_written() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("file");
        fs::write(&file, "text").expect("written");
        let written = |seconds: u64, forget: bool| {
            let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            fs::File::options().write(true).open(&file).and_then(|f| f.set_modified(time)).expect("set");
            let mut image = Image::new(User::ROOT);
            image.add_host_at(&file, Path::new("/file")).expect("added");
            if forget {
                image.forget_times();
            }
            let mut bytes = Vec::new();
            image.write(&mut bytes).expect("written");
            bytes
        };
        assert_ne!(written(1, false), written(2, false));
        assert_eq!(written(1, true), written(2, true));
    }

    fn nodes(image: &Image) -> Vec<String> {
        image.entries.keys().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn symlinks_on_the_way_are_kept_and_their_targets_and_folders_packed() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let base = dir.path();
        let link =
            |target: &str, name: &str| std::os::unix::fs::symlink(target, base.join(name)).expect("symlink");
        for folder in ["real", "other"] {
            fs::create_dir(base.join(folder)).expect("mkdir");
        }
        fs::write(base.join("real/file"), "x").expect("write");
        link("other", "link");
        link("../real/file", "other/file");
        let mut image = Image::empty();
        image.add_host(&base.join("link/file")).expect("add");
        for name in ["link", "other", "other/file", "real", "real/file"] {
            assert!(image.entries.contains_key(&base.join(name)), "{name} of {:?}", nodes(&image));
        }
        assert!(!image.entries.contains_key(&base.join("link/file")), "{:?}", nodes(&image));
    }

    #[test]
    fn a_volume_lands_behind_the_images_own_symlinks() {
        let mut image = Image::empty();
        image.put(Path::new("/lib"), ImageNode::Symlink("usr/lib".into()), 0o777, 0);
        image.add_host_at(Path::new("/etc/hostname"), Path::new("/lib/name")).expect("add");
        assert_eq!(nodes(&image), ["/lib", "/usr", "/usr/lib", "/usr/lib/name"]);
    }
}
