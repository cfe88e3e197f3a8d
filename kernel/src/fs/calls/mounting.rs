//! mount, umount2, pivot_root, sync and syncfs.
//!
//! A tree of mounts belongs to its namespace: changing it needs CAP_SYS_ADMIN in the user namespace
//! that owns the mount namespace. Only places in the caller's own tree can be changed. Outside of
//! the initial user namespace only file systems in memory, which begin empty, can be newly mounted:
//! [`may_mount_anew`].

use super::{AT_FDCWD, file, place_at, place_of, process, walk_from};
use crate::fs::mount::{Looseness, Mount, MountFlags};
use crate::fs::namespace::{self, CopyDepth, MountNamespace};
use crate::fs::node::{NodeKind, SetMetadata};
use crate::fs::root::root_mount;
use crate::fs::walk::Final;
use crate::fs::{FileSystem, Path, cgroupfs, notify, overlay, procfs, sysfs, tmpfs, tracefs};
use crate::ipc;
use crate::share;
use crate::syscall::Args;
use crate::task::namespaces::file::NamespaceNode;
use crate::task::userns::{self, NamespaceKind};
use crate::task::{self, Capability, Credentials, registry};
use crate::tty::devpts::DevPts;
use crate::user;
use crate::volumes::{self, VolumeKind};
use crate::{Errno, Result, sched};
use freehold_collections::{Arc, Vec, reserve::ArcMethods};
use freehold_volumes::Flavour;

const MS_REMOUNT: u64 = 0x20;
const MS_BIND: u64 = 0x1000;
const MS_MOVE: u64 = 0x2000;
const MS_REC: u64 = 0x4000;
/// MS_UNBINDABLE, MS_PRIVATE, MS_SLAVE, MS_SHARED: nothing is propagated between namespaces.
const MS_PROPAGATION: u64 = 0xf << 17;
const MS_STRICTATIME: u64 = 1 << 24;
const MS_MAGIC: u64 = 0xc0ed_0000;

/// The caller's mount namespace, if the caller may change it.
pub(super) fn changeable() -> Result<Arc<MountNamespace>> {
    let namespace = process().namespaces().mount.clone();
    if task::may_in(namespace.head().owner(), Capability::SysAdmin) {
        Ok(namespace)
    } else {
        Err(Errno::EPERM)
    }
}

/// mount(source, target, type, flags, data)
pub fn sys_mount(args: &Args) -> Result<i64> {
    let mut flags = args[3];
    if flags & 0xffff_0000 == MS_MAGIC {
        flags &= 0xffff;
    }
    let place = place_at(AT_FDCWD, args[1], 0, Final::Follow)?.topmost()?;
    let namespace = changeable()?;
    // A mount on an unmounted mount would keep both forever: no call could unmount it.
    if !namespace.contains(&place.mount)? {
        return Err(Errno::EINVAL);
    }
    let options = if args[4] == 0 { Vec::new() } else { user::bounded_string(args[4], 4096, Errno::EINVAL)? };
    if flags & MS_REMOUNT != 0 {
        return remount(&place, flags, &options).map(|()| 0);
    }
    if flags & MS_BIND != 0 {
        let depth = if flags & MS_REC != 0 { CopyDepth::All } else { CopyDepth::One };
        return bind(&namespace, &place_at(AT_FDCWD, args[0], 0, Final::Follow)?, place, depth).map(|()| 0);
    }
    if flags & MS_PROPAGATION != 0 {
        return if place.is_mount_root() { Ok(0) } else { Err(Errno::EINVAL) };
    }
    if flags & MS_MOVE != 0 {
        let source = place_at(AT_FDCWD, args[0], 0, Final::Follow)?;
        return hand_over(&namespace, &source, place).map(|()| 0);
    }
    if place.node.kind() != NodeKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    let kind = user::bounded_string(args[2], 4096, Errno::EINVAL)?;
    let source = if args[0] == 0 {
        Vec::try_from_slice(b"none")?
    } else {
        user::bounded_string(args[0], 4096, Errno::EINVAL)?
    };
    let own = process().credentials();
    let kind = FsType::named(&kind)?;
    let flags = MountFlags::from_bits_truncate(flags as u32);
    may_mount_anew(&own, kind)?;
    may_reveal(&namespace, kind, flags)?;
    let mount = new_mount(&own, (kind, &source, &options), flags)?;
    attach(&namespace, &mount, place).map(|()| 0)
}

/// Makes a mount of a new file system, not attached yet.
pub(super) fn new_mount(
    own: &Credentials,
    (kind, source, options): (FsType, &[u8], &[u8]),
    flags: MountFlags,
) -> Result<Arc<Mount>> {
    let mount = Mount::new(new_file_system(own, (kind, source, options), flags)?, source, flags)?;
    if own.user_ns.is_initial() { Ok(mount) } else { mount.owned_by(&own.user_ns) }
}

/// Attaches `mount` at `place`, if that is still in the tree.
fn attach(namespace: &MountNamespace, mount: &Arc<Mount>, place: Path) -> Result<()> {
    let _change = namespace::change()?;
    if !namespace.contains(&place.mount)? {
        return Err(Errno::EINVAL);
    }
    namespace.take_room(1)?;
    place.mount.clone().attach(mount, place)?;
    namespace.tell_change();
    Ok(())
}

/// MS_REMOUNT: changes the options of the file system and the restrictions; with MS_BIND only the
/// restrictions.
fn remount(place: &Path, flags: u64, options: &[u8]) -> Result<()> {
    if !place.is_mount_root() {
        return Err(Errno::EINVAL);
    }
    let mut restrictions = MountFlags::from_bits_truncate(flags as u32);
    let times = MountFlags::NOATIME | MountFlags::NODIRATIME | MountFlags::RELATIME;
    if !restrictions.intersects(times) && flags & MS_STRICTATIME == 0 {
        restrictions |= place.mount.flags() & times;
    }
    if flags & MS_BIND == 0 && !task::may_in(place.mount.fs_owner(), Capability::SysAdmin) {
        return Err(Errno::EPERM);
    }
    let options = if flags & MS_BIND == 0 { Some(options) } else { None };
    reconfigure(&place.mount, restrictions, options)
}

/// Changes the restrictions of a mount, and the options of its file system if there are any.
pub(super) fn reconfigure(mount: &Mount, restrictions: MountFlags, options: Option<&[u8]>) -> Result<()> {
    let _change = namespace::change()?;
    mount.check_flags(restrictions)?;
    let is_refused = mount.file_system().is_read_only() && !restrictions.contains(MountFlags::RDONLY);
    if is_refused && options.is_some() {
        return Err(Errno::EROFS);
    }
    let before = mount.flags();
    mount.set_flags(restrictions)?;
    if let Some(options) = options
        && let Err(error) = mount.file_system().configure(options)
    {
        let _undone = mount.set_flags(before);
        return Err(error);
    }
    process().namespaces().mount.tell_change();
    Ok(())
}

/// MS_BIND: shows the tree at `source` also at `place`; with MS_REC also the mounts below it.
fn bind(namespace: &MountNamespace, source: &Path, place: Path, depth: CopyDepth) -> Result<()> {
    let is_directory = |path: &Path| path.node.kind() == NodeKind::Directory;
    if is_directory(source) != is_directory(&place) {
        return Err(Errno::ENOTDIR);
    }
    let _change = namespace::change()?;
    if !namespace.contains(&place.mount)? {
        return Err(Errno::EINVAL);
    }
    let copy = copy_of(namespace, source, depth)?;
    attach_tree(namespace, &copy, place).inspect_err(|_| copy.cut_off())
}

/// Copies the tree at `source` for a bind mount. Requires the lock of changes.
pub(super) fn copy_of(namespace: &MountNamespace, source: &Path, depth: CopyDepth) -> Result<Arc<Mount>> {
    let any: &dyn core::any::Any = &*source.node;
    let of_namespace = any.downcast_ref::<NamespaceNode>().map(|node| node.0.kind());
    // A mount of a mount namespace's file could make the namespace keep itself alive.
    if of_namespace == Some(NamespaceKind::Mount) {
        return Err(Errno::EINVAL);
    }
    let is_here = namespace.contains(&source.mount)? || of_namespace.is_some();
    if !is_here || (depth == CopyDepth::One && namespace::has_locked_below(source)?) {
        return Err(Errno::EINVAL);
    }
    namespace::copy_tree(source, depth, &mut |_, _| {})
}

/// Attaches a tree at `place`. Requires the lock of changes.
pub(super) fn attach_tree(namespace: &MountNamespace, tree: &Arc<Mount>, place: Path) -> Result<()> {
    namespace.take_room(tree.tree()?.len())?;
    place.mount.make_room()?;
    place.mount.clone().attach_reserved(tree, place);
    namespace.tell_change();
    Ok(())
}

/// Moves the mount at `source` to `place` (MS_MOVE, move_mount).
pub(super) fn hand_over(namespace: &MountNamespace, source: &Path, place: Path) -> Result<()> {
    let is_directory = |path: &Path| path.node.kind() == NodeKind::Directory;
    let _change = namespace::change()?;
    if source.is_mount_root() && source.mount.is_loose() && namespace.contains(&place.mount)? {
        if is_directory(source) != is_directory(&place) {
            return Err(Errno::EINVAL);
        }
        attach_tree(namespace, &source.mount, place)?;
        source.mount.set_loose(Looseness::Attached);
        return Ok(());
    }
    let from = source.mount.mountpoint().filter(|_| source.is_mount_root()).ok_or(Errno::EINVAL)?;
    let are_here = namespace.contains(&source.mount)? && namespace.contains(&place.mount)?;
    if !are_here || source.mount.is_locked() || is_directory(source) != is_directory(&place) {
        return Err(Errno::EINVAL);
    }
    if source.mount.tree()?.iter().any(|mount| mount.is_same(&place.mount)) {
        return Err(Errno::ELOOP);
    }
    from.mount.hand_over(&source.mount, place)?;
    namespace.tell_change();
    Ok(())
}

/// The types of file systems that can be mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FsType {
    Tmpfs,
    Hugetlbfs,
    Devtmpfs,
    Proc,
    Sysfs,
    Debugfs,
    Tracefs,
    NineP,
    Overlay,
    Devpts,
    Mqueue,
    Cgroup2,
    Disk(VolumeKind),
}

impl FsType {
    /// Returns the type with this name.
    ///
    /// # Errors
    /// `ENODEV` if there is none.
    pub(super) fn named(name: &[u8]) -> Result<Self> {
        Ok(match name {
            b"tmpfs" | b"ramfs" => Self::Tmpfs,
            b"hugetlbfs" => Self::Hugetlbfs,
            b"devtmpfs" => Self::Devtmpfs,
            b"proc" => Self::Proc,
            b"sysfs" => Self::Sysfs,
            b"debugfs" => Self::Debugfs,
            b"tracefs" => Self::Tracefs,
            b"9p" => Self::NineP,
            b"overlay" => Self::Overlay,
            b"devpts" => Self::Devpts,
            b"mqueue" => Self::Mqueue,
            b"cgroup2" => Self::Cgroup2,
            b"ext2" => Self::Disk(VolumeKind::Ext(Flavour::Ext2)),
            b"ext3" => Self::Disk(VolumeKind::Ext(Flavour::Ext3)),
            b"erofs" => Self::Disk(VolumeKind::Erofs),
            b"ext4" => Self::Disk(VolumeKind::Ext(Flavour::Ext4)),
            _ => return Err(Errno::ENODEV),
        })
    }
}

/// Whether a caller with these rights may mount a new file system of this type (Linux:
/// `mount_capable`, FS_USERNS_MOUNT). /sys shows devices, which belong to the initial user
/// namespace.
pub(super) fn may_mount_anew(own: &Credentials, kind: FsType) -> Result<()> {
    let may = own.may(Capability::SysAdmin)
        || match kind {
            FsType::Tmpfs => own.may_within(Capability::SysAdmin),
            FsType::Proc => own.may_in(&process().pid_ns().owner(), Capability::SysAdmin),
            FsType::Mqueue => own.may_in(ipc::objects::of_caller().owner(), Capability::SysAdmin),
            FsType::Cgroup2 => own.may_in(process().namespaces().cgroup.head().owner(), Capability::SysAdmin),
            _ => false,
        };
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// Whether a new mount of this type shows no more than the mount namespace shows already: if it is
/// a /proc, no more than a /proc there. A user namespace must not reveal files in a second /proc
/// that its maker has hidden in the first (Linux: `mount_too_revealing`).
pub(super) fn may_reveal(namespace: &MountNamespace, kind: FsType, flags: MountFlags) -> Result<()> {
    if kind != FsType::Proc || namespace.head().owner().is_initial() {
        return Ok(());
    }
    // These flags hide nothing (Linux compares only the locks of read-only and of access times).
    let flags = flags | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    for mount in namespace.root().tree()? {
        let fs = mount.file_system();
        let is_whole = fs.name() == "proc" && mount.root().identity() == fs.root().identity();
        if is_whole
            && mount.check_flags(flags).is_ok()
            && !mount.children()?.iter().any(|child| child.is_locked())
        {
            return Ok(());
        }
    }
    Err(Errno::EPERM)
}

/// Makes a file system to mount.
fn new_file_system(
    own: &Credentials,
    (kind, source, options): (FsType, &[u8], &[u8]),
    flags: MountFlags,
) -> Result<Arc<dyn FileSystem>> {
    match kind {
        FsType::Tmpfs => {
            let owner = SetMetadata { uid: Some(own.fsuid), gid: Some(own.fsgid), ..SetMetadata::default() };
            tmpfs::mount("tmpfs", options, &owner)
        }
        FsType::Hugetlbfs => tmpfs::mount_huge(options, (own.fsuid, own.fsgid)),
        FsType::Devtmpfs => tmpfs::mount("tmpfs", options, &SetMetadata::default()),
        FsType::Proc => Ok(procfs::ProcFs::new(process().pid_ns())?),
        FsType::Sysfs => sysfs::instance(),
        FsType::Debugfs => Ok(sysfs::debugfs()),
        FsType::Tracefs => tracefs::instance(),
        FsType::NineP => share::mount(source, options),
        FsType::Overlay => {
            overlay::mount(options, &|text| walk_from(AT_FDCWD, text, |walk| walk.find(text, Final::Follow)))
        }
        FsType::Devpts => Ok(DevPts::file_system()),
        FsType::Mqueue => {
            let queues = ipc::objects::of_caller().posix_queues.file_system();
            queues.configure(options)?;
            Ok(queues)
        }
        FsType::Cgroup2 => cgroupfs::mount(&process().namespaces().cgroup, options),
        FsType::Disk(kind) => {
            let place = walk_from(AT_FDCWD, source, |walk| walk.find(source, Final::Follow))?;
            // Linux: `may_open_dev`.
            if place.mount.flags().contains(MountFlags::NODEV) {
                return Err(Errno::EACCES);
            }
            volumes::mount(&place.node, kind, options, flags)
        }
    }
}

const MNT_FORCE: u32 = 1;
const MNT_DETACH: u32 = 2;
const MNT_EXPIRE: u32 = 4;
const UMOUNT_NOFOLLOW: u32 = 8;

/// umount2(target, flags). A mount that is in use is unmounted with MNT_DETACH only, which also
/// unmounts the mounts below: open files and working directories keep what they refer to.
pub fn sys_umount2(args: &Args) -> Result<i64> {
    let flags = args.uint(1);
    super::only(flags, MNT_FORCE | MNT_DETACH | MNT_EXPIRE | UMOUNT_NOFOLLOW)?;
    let may_expire = flags & MNT_EXPIRE != 0;
    let last = if flags & UMOUNT_NOFOLLOW != 0 { Final::Stop } else { Final::Follow };
    let place = place_at(AT_FDCWD, args[0], 0, last)?.topmost()?;
    let namespace = changeable()?;
    if flags & MNT_FORCE != 0 && !task::may(Capability::SysAdmin) {
        return Err(Errno::EPERM);
    }
    let change = namespace::change()?;
    if !place.is_mount_root() || !namespace.contains(&place.mount)? || place.mount.is_locked() {
        return Err(Errno::EINVAL);
    }
    if may_expire && flags & (MNT_FORCE | MNT_DETACH) != 0 {
        return Err(Errno::EINVAL);
    }
    let below = place.mount.mountpoint().ok_or(Errno::EBUSY)?;
    if flags & MNT_DETACH != 0 {
        below.mount.detach_tree(&place.mount)?;
    } else {
        if place.mount.is_in_use() {
            return Err(Errno::EBUSY);
        }
        if may_expire && !place.mount.expire() {
            return Err(Errno::EAGAIN);
        }
        below.mount.detach(&place.mount)?;
    }
    drop(change);
    namespace.tell_change();
    tell_unmounted(&place.mount);
    Ok(0)
}

/// Ends the marks of a mount, and the watches of a file system that is no longer mounted. If there
/// are other mount namespaces, it may be mounted in them, so the watches stay.
fn tell_unmounted(gone: &Mount) {
    notify::mount_ended(gone.id());
    let device = gone.file_system().device();
    if userns::count(NamespaceKind::Mount) != 0 || !notify::watches_in(device) {
        return;
    }
    // Without memory for the list of mounts the watches stay.
    let Ok(mounts) = root_mount().tree() else { return };
    if mounts.iter().all(|mount| mount.file_system().device() != device) {
        notify::unmounted(device);
    }
}

/// pivot_root(new_root, put_old): the mount at `new_root` becomes the root, and the old root is
/// attached at `put_old`.
///
/// # Errors
/// As in the manual.
pub fn sys_pivot_root(args: &Args) -> Result<i64> {
    let namespace = changeable()?;
    let new = place_at(AT_FDCWD, args[0], 0, Final::Follow)?;
    let put_old = place_at(AT_FDCWD, args[1], 0, Final::Follow)?.topmost()?;
    if new.node.kind() != NodeKind::Directory || put_old.node.kind() != NodeKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    let old = process().fs().root();
    let change = namespace::change()?;
    for mount in [&new.mount, &put_old.mount, &old.mount] {
        if !namespace.contains(mount)? {
            return Err(Errno::EINVAL);
        }
    }
    if new.mount.is_locked() {
        return Err(Errno::EINVAL);
    }
    if new.mount.is_same(&old.mount) || put_old.mount.is_same(&old.mount) {
        return Err(Errno::EBUSY);
    }
    if !new.is_mount_root() || !old.is_mount_root() || !reaches(&put_old, &new)? || !reaches(&new, &old)? {
        return Err(Errno::EINVAL);
    }
    let above = new.mount.mountpoint().ok_or(Errno::EINVAL)?;
    let base = old.mount.mountpoint();
    put_old.mount.make_room()?;
    if let Some(base) = &base {
        base.mount.make_room()?;
    }
    above.mount.remove(&new.mount)?;
    match base {
        Some(base) => {
            base.mount.remove(&old.mount)?;
            base.mount.clone().attach_reserved(&new.mount, base);
        }
        None => namespace.set_root(new.mount.arc()),
    }
    put_old.mount.clone().attach_reserved(&old.mount, put_old);
    new.mount.take_lock_of(&old.mount);
    drop(change);
    namespace.tell_change();
    // Linux: `chroot_fs_refs`. Each process is visited once; a process that is forked meanwhile
    // copies the place of its parent.
    for other in registry::processes() {
        other.change_places(|fs| fs.replace(&old, &new));
        sched::cond_resched();
    }
    Ok(0)
}

/// Whether the path from `place` upwards passes `above`.
fn reaches(place: &Path, above: &Path) -> Result<bool> {
    let mut here = place.clone();
    while !here.mount.is_same(&above.mount) {
        let Some(below) = here.mount.mountpoint() else { return Ok(false) };
        here = below;
    }
    namespace::is_below(&here, above)
}

/// sync()
pub fn sys_sync(_args: &Args) -> Result<i64> {
    let own = process().namespaces().mount.root();
    for mount in root_mount().tree()?.into_iter().chain(own.tree()?) {
        // sync(2) cannot report errors; fsync can.
        let _ = mount.file_system().sync();
    }
    crate::fs::device::sync_all();
    Ok(0)
}

/// syncfs(fd)
pub fn sys_syncfs(args: &Args) -> Result<i64> {
    let file = file(args.fd(0))?;
    file.check_not_path()?;
    place_of(&file).mount.file_system().sync().map(|()| 0)
}
