//! The first file systems, and the few that every part of the kernel may ask for.
//!
//! [`init`] runs once at boot, before the first process. The root is a tmpfs; what programs write there may take half of memory, what the
//! machine came with does not count. /dev and /dev/shm are tmpfs too, /proc and /sys are generated.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::caller::Caller;
use super::content::ContentSource;
use super::context::FsContext;
use super::mount::{FileSystem, Mount, MountFlags};
use super::names;
use super::node::{Node, NodeKind};
use super::path::{Entry, Path};
use super::tmpfs::{TmpFs, TmpNode};
use super::walk::{Final, Walk};
use crate::sync::SpinLock;
use crate::{Errno, Result, user};

struct State {
    root: Arc<Mount>,
    rootfs: Arc<TmpFs>,
    /// Where files without a name live (memfd, pipes' inodes are their own).
    unnamed: Arc<TmpFs>,
    unnamed_mount: Arc<Mount>,
    contents: Arc<dyn ContentSource>,
    devpts: Option<Arc<dyn FileSystem>>,
}

static STATE: SpinLock<Option<State>> = SpinLock::new(None);

fn with_state<R>(f: impl FnOnce(&State) -> R) -> R {
    f(STATE.lock().as_ref().expect("fs::init ran at boot"))
}

/// The mount that everything hangs in.
pub fn root_mount() -> Arc<Mount> {
    with_state(|state| state.root.clone())
}

/// The root directory.
pub fn root() -> Path {
    Path::root_of(root_mount())
}

/// The mount of files without a name.
pub fn unnamed_mount() -> Arc<Mount> {
    with_state(|state| state.unnamed_mount.clone())
}

/// A regular file without a name.
pub fn unnamed_file(mode: u32, uid: u32, gid: u32) -> Result<Arc<TmpNode>> {
    with_state(|state| state.unnamed.clone()).unnamed_file(mode, uid, gid)
}

/// A new, empty tmpfs (mount(2)).
pub fn new_tmpfs(options: &[u8]) -> Result<Arc<dyn FileSystem>> {
    let contents = with_state(|state| state.contents.clone());
    let fs = TmpFs::new("tmpfs", contents, 0o1777)?;
    fs.configure(options)?;
    Ok(fs)
}

/// A file system to mount: `ENODEV` for types that there are none of.
pub fn new_file_system(kind: &[u8], options: &[u8]) -> Result<Arc<dyn FileSystem>> {
    match kind {
        b"tmpfs" | b"ramfs" | b"devtmpfs" => new_tmpfs(options),
        b"proc" => Ok(super::procfs::ProcFs::new()?),
        b"sysfs" => super::sysfs::instance(),
        b"debugfs" => Ok(super::sysfs::debugfs()),
        b"devpts" => with_state(|state| state.devpts.clone()).ok_or(Errno::ENODEV),
        _ => Err(Errno::ENODEV),
    }
}

/// Make the root file system, empty, and give a context at its root. `contents` makes the files' contents.
pub fn init(contents: Arc<dyn ContentSource>) -> Result<Arc<FsContext>> {
    let rootfs = TmpFs::new("tmpfs", contents.clone(), 0o755)?;
    rootfs.begin_boot();
    let root = Mount::new(rootfs.clone(), b"tmpfs", MountFlags::empty())?;
    let unnamed = TmpFs::new("tmpfs", contents.clone(), 0o777)?;
    unnamed.unlimited();
    let unnamed_mount = Mount::new(unnamed.clone(), b"none", MountFlags::empty())?;
    let place = Path::root_of(root.clone());
    *STATE.lock() = Some(State { root, rootfs, unnamed, unnamed_mount, contents, devpts: None });
    Ok(FsContext::new(place))
}

/// Make the directory `path` and those above it where they are not there yet, as root.
pub fn make_dirs(path: &[u8]) -> Result<()> {
    let root = root();
    let walk = Walk::new(&root, &root, &Caller::ROOT);
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
    let place = Walk::new(&root, &root, &Caller::ROOT).find(path, Final::Follow)?;
    let mount = Mount::new(fs, source, flags)?;
    place.mount.clone().attach(&mount, place)
}

/// One node of /dev: name below it, kind, mode, major and minor number.
pub struct DeviceNode {
    /// Path below /dev.
    pub name: &'static [u8],
    /// Character or block device.
    pub kind: NodeKind,
    /// Permission bits.
    pub mode: u32,
    /// Major and minor number.
    pub number: (u32, u32),
}

const fn char_device(name: &'static [u8], mode: u32, major: u32, minor: u32) -> DeviceNode {
    DeviceNode { name, kind: NodeKind::CharDevice, mode, number: (major, minor) }
}

/// The devices that programs expect to be there; who serves them registers the numbers.
const STANDARD: &[DeviceNode] = &[
    char_device(b"null", 0o666, 1, 3),
    char_device(b"zero", 0o666, 1, 5),
    char_device(b"full", 0o666, 1, 7),
    char_device(b"random", 0o666, 1, 8),
    char_device(b"urandom", 0o666, 1, 9),
    char_device(b"kmsg", 0o600, 1, 11),
    char_device(b"tty", 0o666, 5, 0),
    char_device(b"console", 0o600, 5, 1),
    char_device(b"ptmx", 0o666, 5, 2),
    char_device(b"tty0", 0o620, 4, 0),
    char_device(b"tty1", 0o620, 4, 1),
];

const LINKS: &[(&[u8], &[u8])] = &[
    (b"/proc/self/fd", b"/dev/fd"),
    (b"/proc/self/fd/0", b"/dev/stdin"),
    (b"/proc/self/fd/1", b"/dev/stdout"),
    (b"/proc/self/fd/2", b"/dev/stderr"),
];

/// Make a node in /dev.
pub fn add_device(name: &[u8], kind: NodeKind, mode: u32, number: (u32, u32)) -> Result<()> {
    let root = root();
    let walk = Walk::new(&root, &root, &Caller::ROOT);
    let mut path = Vec::from(b"/dev/".as_slice());
    path.extend_from_slice(name);
    let rdev = super::device::make_device(number.0, number.1);
    names::make_node(&walk, &path, kind, mode, rdev).map(|_| ())
}

/// Mount /dev with its standard nodes, /dev/shm, /tmp, /proc and /sys. After the initramfs was unpacked, whose
/// files below these directories they cover. `devpts` is the directory of pseudo terminals, where there is one.
pub fn mount_standard(devpts: Option<Arc<dyn FileSystem>>) -> Result<()> {
    let contents = with_state(|state| state.contents.clone());
    mount_at(TmpFs::new("devtmpfs", contents.clone(), 0o755)?, b"devtmpfs", b"/dev", MountFlags::NOSUID)?;
    for node in STANDARD {
        add_device(node.name, node.kind, node.mode, node.number)?;
    }
    let root = root();
    let walk = Walk::new(&root, &root, &Caller::ROOT);
    for (target, path) in LINKS {
        names::symlink(&walk, target, path)?;
    }
    let quiet = MountFlags::NOSUID | MountFlags::NODEV;
    mount_at(TmpFs::new("tmpfs", contents, 0o1777)?, b"tmpfs", b"/dev/shm", quiet)?;
    if let Some(devpts) = devpts {
        if let Some(state) = STATE.lock().as_mut() {
            state.devpts = Some(devpts.clone());
        }
        mount_at(devpts, b"devpts", b"/dev/pts", MountFlags::NOSUID | MountFlags::NOEXEC)?;
    }
    make_dirs(b"/tmp")?;
    let tmp = walk.find(b"/tmp", Final::Follow)?;
    names::change_mode(&walk, &tmp, 0o1777)?;
    let generated = quiet | MountFlags::NOEXEC;
    mount_at(super::procfs::ProcFs::new()?, b"proc", b"/proc", generated)?;
    #[cfg(target_os = "none")]
    super::sysfs::fill();
    mount_at(super::sysfs::instance()?, b"sysfs", b"/sys", generated)?;
    with_state(|state| state.rootfs.end_boot());
    Ok(())
}

/// The place of a node without a name.
pub fn unnamed_place(node: Arc<dyn Node>) -> Path {
    Path { mount: unnamed_mount(), node, entry: None }
}

/// The place of a node without a name that /proc shows as "/", `prefix`, `name` and " (deleted)".
pub fn unnamed_place_named(node: Arc<dyn Node>, prefix: &[u8], name: &[u8]) -> Path {
    let mount = unnamed_mount();
    let entry = Entry { dir: mount.root().clone(), name: [prefix, name].concat() };
    Path { mount, node, entry: Some(Arc::new(entry)) }
}

/// Open a file by its path, as root.
///
/// # Errors
/// As open(2).
pub fn open_file(path: &[u8], flags: super::OpenFlags) -> Result<Arc<super::OpenFile>> {
    let root = root();
    let place = Walk::new(&root, &root, &Caller::ROOT).find(path, Final::Follow)?;
    super::OpenFile::new(place.node.clone().open(flags)?, Some(place), flags)
}

/// The bytes of the file at `path`, read by the kernel itself.
///
/// # Errors
/// What opening and reading give; `ENOMEM`.
pub fn read_file(path: &[u8]) -> Result<Vec<u8>> {
    let file = open_file(path, super::OpenFlags::empty())?;
    let size = usize::try_from(file.node().metadata().size).map_err(|_| Errno::ENOMEM)?;
    let mut bytes = user::zeroed(size)?;
    let read = file.read_kernel(0, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}
