//! The root of the tree of names, and the kernel's own access to it.
//!
//! [`set`] runs once at boot, before the first process.

use freehold_collections::{Arc, Vec, reserve};

use super::caller::Caller;
use super::mount::{FileSystem, Mount, MountFlags, MountRef};
use super::namespace::MountNamespace;
use super::node::{Node, NodeKind};
use super::path::{Path, PathEntry};
use super::walk::{Final, PathWalk};
use super::{OpenFile, OpenFlags, names};
use crate::sync::SpinLock;
use crate::{Errno, Result, user};

struct Roots {
    namespace: Arc<MountNamespace>,
    /// The mount of nameless files (memfd). The inodes of pipes are outside of it.
    unnamed: MountRef,
    /// Like `unnamed`, for files that no program may execute (memfd_secret).
    inert: MountRef,
}

static ROOTS: SpinLock<Option<Roots>> = SpinLock::new(None);

fn with_roots<R>(f: impl FnOnce(&Roots) -> R) -> R {
    f(ROOTS.lock().as_ref().expect("the root is mounted at boot"))
}

/// Sets the root mount and the two mounts of nameless files. Files in the second cannot be
/// executed.
pub fn set(root: Arc<Mount>, unnamed: Arc<Mount>, inert: Arc<Mount>) {
    let [unnamed, inert] = [unnamed, inert].map(MountRef::new);
    *ROOTS.lock() = Some(Roots { namespace: MountNamespace::initial(root), unnamed, inert });
}

/// Replaces the root mount. Called before the first process has looked up a name.
pub fn replace(root: Arc<Mount>) {
    namespace().set_root(root);
}

/// The root mount of the initial namespace.
pub fn root_mount() -> Arc<Mount> {
    namespace().root()
}

/// The root directory.
pub fn root() -> Path {
    Path::root_of(root_mount())
}

/// The initial mount namespace.
pub fn namespace() -> Arc<MountNamespace> {
    with_roots(|roots| roots.namespace.clone())
}

/// The mount of nameless files.
pub fn unnamed_mount() -> MountRef {
    with_roots(|roots| roots.unnamed.clone())
}

/// Makes the directory `path` and its parents, as far as they do not exist yet, as root.
pub fn make_dirs(path: &[u8]) -> Result<()> {
    let root = root();
    let walk = PathWalk::new(&root, &root, &Caller::ROOT);
    let ends = path.iter().enumerate().filter(|&(at, &byte)| byte == b'/' && at > 0).map(|(at, _)| at);
    for end in ends.chain([path.len()]) {
        match names::make_dir(&walk, &path[..end], 0o755) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Mounts `fs` at `path`; makes the directory.
pub fn mount_at(fs: Arc<dyn FileSystem>, source: &[u8], path: &[u8], flags: MountFlags) -> Result<()> {
    make_dirs(path)?;
    let root = root();
    let place = PathWalk::new(&root, &root, &Caller::ROOT).find(path, Final::Follow)?;
    let mount = Mount::new(fs, source, flags)?;
    place.mount.clone().attach(&mount, place)
}

/// Makes a node in /dev.
pub fn add_device(name: &[u8], kind: NodeKind, mode: u32, number: (u32, u32)) -> Result<()> {
    let root = root();
    let walk = PathWalk::new(&root, &root, &Caller::ROOT);
    let path = joined(b"/dev/", name)?;
    let rdev = super::device::make_device(number.0, number.1);
    names::make_node(&walk, &path, kind, mode, rdev).map(|_| ())
}

/// Removes a node of [`add_device`] from /dev. Any other node of that name stays.
///
/// # Errors
/// `ENOENT` if the node does not exist any more; `ENOMEM`.
pub fn remove_device(name: &[u8], kind: NodeKind, number: (u32, u32)) -> Result<()> {
    let root = root();
    let walk = PathWalk::new(&root, &root, &Caller::ROOT);
    let path = joined(b"/dev/", name)?;
    let node = walk.find(&path, Final::Stop)?.node;
    if node.kind() != kind || node.metadata().rdev != super::device::make_device(number.0, number.1) {
        return Err(Errno::ENOENT);
    }
    names::unlink(&walk, &path)
}

/// Returns the place of a nameless node.
pub fn unnamed_place(node: Arc<dyn Node>) -> Path {
    Path { mount: unnamed_mount(), node, entry: None }
}

/// Returns the place of a nameless node that /proc shows as "/", `prefix`, `name` and " (deleted)".
///
/// # Errors
/// `ENOMEM`.
pub fn unnamed_place_named(node: Arc<dyn Node>, prefix: &[u8], name: &[u8]) -> Result<Path> {
    place_named(unnamed_mount(), node, prefix, name)
}

/// Like [`unnamed_place_named`], for a node that no program may execute.
///
/// # Errors
/// `ENOMEM`.
pub fn inert_place_named(node: Arc<dyn Node>, name: &[u8]) -> Result<Path> {
    place_named(with_roots(|roots| roots.inert.clone()), node, b"", name)
}

fn place_named(mount: MountRef, node: Arc<dyn Node>, prefix: &[u8], name: &[u8]) -> Result<Path> {
    let entry = PathEntry::new(mount.root().clone(), joined(prefix, name)?);
    Ok(Path { mount, node, entry: Some(reserve::arc(entry)) })
}

fn joined(prefix: &[u8], name: &[u8]) -> Result<Vec<u8>> {
    let mut whole = Vec::try_with_capacity(prefix.len() + name.len())?;
    whole.try_extend_from_slice(prefix)?;
    whole.try_extend_from_slice(name)?;
    Ok(whole)
}

/// Opens a file by its path, as root.
///
/// # Errors
/// As open(2).
pub fn open_file(path: &[u8], flags: OpenFlags) -> Result<Arc<OpenFile>> {
    let root = root();
    let place = PathWalk::new(&root, &root, &Caller::ROOT).find(path, Final::Follow)?;
    OpenFile::new(place.node.clone().open(flags)?, Some(place), flags)
}

/// Reads all bytes of the file at `path` for the kernel itself.
///
/// # Errors
/// The errors of opening and reading; `ENOMEM`.
pub fn read_file(path: &[u8]) -> Result<Vec<u8>> {
    let file = open_file(path, OpenFlags::empty())?;
    let size = usize::try_from(file.node().metadata().size).map_err(|_| Errno::ENOMEM)?;
    let mut bytes = user::zeroed(size)?;
    let read = file.read_kernel(0, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}
