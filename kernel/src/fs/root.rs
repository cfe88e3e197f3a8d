//! The root of the tree of names, and the kernel's own way into it.
//!
//! [`set`] runs once at boot, before the first process.

use freehold_collections::{Arc, Vec, reserve};

use super::caller::Caller;
use super::mount::{FileSystem, Mount, MountFlags};
use super::namespace::MountNamespace;
use super::node::{Node, NodeKind};
use super::path::{Path, PathEntry};
use super::walk::{Final, PathWalk};
use super::{OpenFile, OpenFlags, names};
use crate::sync::SpinLock;
use crate::{Errno, Result, user};

struct Roots {
    namespace: Arc<MountNamespace>,
    /// Where files without a name live (memfd; the inodes of pipes are their own).
    unnamed: Arc<Mount>,
    /// As `unnamed`, for files that no program may execute (memfd_secret).
    inert: Arc<Mount>,
}

static ROOTS: SpinLock<Option<Roots>> = SpinLock::new(None);

fn with_roots<R>(f: impl FnOnce(&Roots) -> R) -> R {
    f(ROOTS.lock().as_ref().expect("the root is mounted at boot"))
}

/// Sets the mount that everything hangs in, and those of files without a name: of the second,
/// nothing is executed.
pub fn set(root: Arc<Mount>, unnamed: Arc<Mount>, inert: Arc<Mount>) {
    *ROOTS.lock() = Some(Roots { namespace: MountNamespace::initial(root), unnamed, inert });
}

/// Has everything hang in another mount from now on. Before the first process has looked for a
/// name.
pub fn replace(root: Arc<Mount>) {
    namespace().set_root(root);
}

/// The mount that everything hangs in, in the initial namespace.
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

/// The mount of files without a name.
pub fn unnamed_mount() -> Arc<Mount> {
    with_roots(|roots| roots.unnamed.clone())
}

/// Make the directory `path` and those above it where they are not there yet, as root.
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

/// Mount `fs` at `path`, making the directory.
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
/// `ENOENT`: there is no such node any more. `ENOMEM`.
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

/// The place of a node without a name.
pub fn unnamed_place(node: Arc<dyn Node>) -> Path {
    Path { mount: unnamed_mount(), node, entry: None }
}

/// The place of a node without a name that /proc shows as "/", `prefix`, `name` and " (deleted)".
///
/// # Errors
/// `ENOMEM`.
pub fn unnamed_place_named(node: Arc<dyn Node>, prefix: &[u8], name: &[u8]) -> Result<Path> {
    place_named(unnamed_mount(), node, prefix, name)
}

/// As [`unnamed_place_named`], of a node that no program may execute.
///
/// # Errors
/// `ENOMEM`.
pub fn inert_place_named(node: Arc<dyn Node>, name: &[u8]) -> Result<Path> {
    place_named(with_roots(|roots| roots.inert.clone()), node, b"", name)
}

fn place_named(mount: Arc<Mount>, node: Arc<dyn Node>, prefix: &[u8], name: &[u8]) -> Result<Path> {
    let entry = PathEntry::new(mount.root().clone(), joined(prefix, name)?);
    Ok(Path { mount, node, entry: Some(reserve::arc(entry)) })
}

fn joined(prefix: &[u8], name: &[u8]) -> Result<Vec<u8>> {
    let mut whole = Vec::try_with_capacity(prefix.len() + name.len())?;
    whole.try_extend_from_slice(prefix)?;
    whole.try_extend_from_slice(name)?;
    Ok(whole)
}

/// Open a file by its path, as root.
///
/// # Errors
/// As open(2).
pub fn open_file(path: &[u8], flags: OpenFlags) -> Result<Arc<OpenFile>> {
    let root = root();
    let place = PathWalk::new(&root, &root, &Caller::ROOT).find(path, Final::Follow)?;
    OpenFile::new(place.node.clone().open(flags)?, Some(place), flags)
}

/// The bytes of the file at `path`, read by the kernel itself.
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
