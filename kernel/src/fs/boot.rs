//! The first file systems.
//!
//! [`init`] runs once at boot, before the first process. The root is a tmpfs; files that programs
//! write there may take half of memory; files of the image do not count. If a folder of the host is
//! shown at a place, that place (the root or a directory) is an overlay. /dev and /dev/shm are
//! tmpfs too, /proc and /sys are generated.

use super::caller::Caller;
use super::content::ContentSource;
use super::context::FsContext;
use super::flags::RenameFlags;
use super::metadata;
use super::mount::{FileSystem, Mount, MountFlags};
use super::names;
use super::node::{Naming, NewNode, NodeKind, SetMetadata};
use super::overlay::{Layers, OverlayFs, UpperTree};
use super::path::Path;
use super::root::{self, add_device, make_dirs, mount_at};
use super::tmpfs::{self, TmpFs};
use super::walk::{Final, PathWalk};
use crate::sync::SpinLock;
use crate::task::pidns::PidNs;
use crate::{Errno, Result};
use freehold_collections::{Arc, TryCollect, Vec, try_format};

/// The first root file system.
static ROOTFS: SpinLock<Option<Arc<TmpFs>>> = SpinLock::new(None);

/// Makes the root file system, empty, and returns a context at its root. `contents` makes the
/// files' contents.
pub fn init(contents: Arc<dyn ContentSource>) -> Result<Arc<FsContext>> {
    let rootfs = TmpFs::new("tmpfs", contents.clone(), 0o755)?;
    rootfs.begin_boot();
    let root = Mount::new(rootfs.clone(), b"tmpfs", MountFlags::empty())?;
    let memory = tmpfs::init(contents)?;
    let unnamed = Mount::new(memory.clone(), b"none", MountFlags::empty())?;
    let inert = Mount::new(memory, b"none", MountFlags::NOEXEC)?;
    root::set(root, unnamed, inert);
    *ROOTFS.lock() = Some(rootfs);
    Ok(FsContext::new(root::root()))
}

/// A tree of the host that is shown at a path, below the image's files and programs' changes there.
pub struct BelowTree<'a> {
    /// The tree's file system.
    pub tree: Arc<dyn FileSystem>,
    /// The tree's name in /proc/mounts.
    pub source: &'a [u8],
    /// The path at which the tree is shown.
    pub path: &'a [u8],
}

impl BelowTree<'_> {
    /// Returns the tree's root in a read-only mount.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn root(&self) -> Result<Path> {
        let flags = MountFlags::RDONLY | MountFlags::NODEV;
        Ok(Path::root_of(Mount::new(self.tree.clone(), self.source, flags)?))
    }
}

/// Shows the files that were unpacked at the path of `below`, and all that programs write there,
/// over that tree.
///
/// # Errors
/// `ENOMEM`; the trees' errors.
pub fn show_over(below: &BelowTree<'_>) -> Result<()> {
    if below.path != b"/" {
        root::make_dirs(below.path)?;
    }
    let root = root::root();
    let upper = PathWalk::new(&root, &root, &Caller::ROOT).find(below.path, Final::Follow)?;
    show_overlay([below.root()?].into_iter().try_collect_vec()?, upper, below.path)
}

/// Mounts an overlay, `upper` over `lower`, at `path`. If `path` is the root, the overlay becomes
/// the root. The overlay's work directory has no name; /proc/mounts names the lowest tree.
///
/// # Errors
/// `ENOMEM`; the trees' errors.
pub fn show_overlay(lower: Vec<Path>, upper: Path, path: &[u8]) -> Result<()> {
    let source = lower.last().map_or(&b""[..], |lowest| lowest.mount.source());
    let shown = try_format!(",lowerdir={}", source.escape_ascii())?;
    let work = unnamed_directory(&upper)?;
    let layers = Layers { lower, upper: Some(UpperTree { root: upper, work }) };
    let overlay = OverlayFs::new(&layers, shown.as_bytes())?;
    if path == b"/" {
        root::replace(Mount::new(overlay, b"overlay", MountFlags::empty())?);
        return Ok(());
    }
    mount_at(overlay, b"overlay", path, MountFlags::empty())
}

const HIDDEN: NewNode = NewNode { kind: NodeKind::Directory, mode: 0o700, uid: 0, gid: 0, rdev: 0 };
/// The path in the image of the changes that an earlier run kept. This run begins with them.
const CHANGES: (&[u8], &[u8]) = (b"/.freehold", b"changes");

fn unnamed_directory(beside: &Path) -> Result<Path> {
    Ok(Path { node: beside.node.create_unnamed(&HIDDEN, Naming::Never)?, ..beside.clone() })
}

/// Makes a nameless directory for programs' changes. Initially it has the changes in the image.
///
/// # Errors
/// `ENOMEM`.
pub fn upper_of_changes() -> Result<Path> {
    let root = root::root();
    let hidden = unnamed_directory(&root)?;
    let walk = PathWalk::new(&root, &root, &Caller::ROOT);
    let (above, name) = CHANGES;
    let moved = walk.find(above, Final::Stop).and_then(|above| {
        above.node.rename(name, &hidden.node, name, RenameFlags::NOREPLACE)?;
        hidden.node.lookup(name)
    });
    let node = match moved {
        Err(Errno::ENOENT) => {
            let mode = root.node.metadata().mode;
            hidden.node.create(name, &NewNode { mode, ..HIDDEN })?
        }
        moved => moved?,
    };
    Ok(Path { node, ..root })
}

/// A node of /dev.
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

/// The devices that programs expect. Their drivers register the numbers.
const STANDARD: &[DeviceNode] = &[
    char_device(b"null", 0o666, 1, 3),
    char_device(b"zero", 0o666, 1, 5),
    char_device(b"full", 0o666, 1, 7),
    char_device(b"random", 0o666, 1, 8),
    char_device(b"urandom", 0o666, 1, 9),
    char_device(b"kmsg", 0o600, 1, 11),
    char_device(b"tty", 0o666, 5, 0),
    char_device(b"userfaultfd", 0o600, 10, 126),
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

/// Mounts /dev with its standard nodes, /dev/shm, /tmp, /proc and /sys. Called after the initramfs
/// was unpacked: the mounts cover its files below these directories. `devpts` is the directory of
/// pseudo terminals, if there is one.
#[cold]
pub fn mount_standard(devpts: Option<Arc<dyn FileSystem>>) -> Result<()> {
    mount_at(
        tmpfs::mount("devtmpfs", b"mode=755", &SetMetadata::default())?,
        b"devtmpfs",
        b"/dev",
        MountFlags::NOSUID,
    )?;
    for node in STANDARD {
        add_device(node.name, node.kind, node.mode, node.number)?;
    }
    let root = root::root();
    let walk = PathWalk::new(&root, &root, &Caller::ROOT);
    for (target, path) in LINKS {
        names::symlink(&walk, target, path)?;
    }
    let quiet = MountFlags::NOSUID | MountFlags::NODEV;
    mount_at(tmpfs::mount("tmpfs", b"", &SetMetadata::default())?, b"tmpfs", b"/dev/shm", quiet)?;
    if let Some(devpts) = devpts {
        mount_at(devpts, b"devpts", b"/dev/pts", MountFlags::NOSUID | MountFlags::NOEXEC)?;
    }
    make_dirs(b"/tmp")?;
    let tmp = walk.find(b"/tmp", Final::Follow)?;
    if tmp.node.metadata().mode != 0o1777 {
        metadata::change_mode(&walk, &tmp, 0o1777)?;
    }
    let generated = quiet | MountFlags::NOEXEC;
    mount_at(super::procfs::ProcFs::new(&PidNs::INITIAL)?, b"proc", b"/proc", generated)?;
    super::sysfs::fill();
    super::sysfs::root().dirs("kernel/tracing");
    super::sysfs::root().dirs("kernel/debug").link("tracing", "/sys/kernel/tracing");
    mount_at(super::sysfs::instance()?, b"sysfs", b"/sys", generated)?;
    mount_at(super::tracefs::instance()?, b"tracefs", b"/sys/kernel/tracing", generated)?;
    mount_at(super::cgroupfs::initial()?, b"cgroup2", b"/sys/fs/cgroup", generated)?;
    if let Some(rootfs) = ROOTFS.lock().take() {
        rootfs.end_boot();
    }
    Ok(())
}
