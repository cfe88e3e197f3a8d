//! mount, umount2, sync and syncfs.

use super::{AT_FDCWD, file, place_at, place_of, walk_from};
use crate::fs::mount::{Mount, MountFlags};
use crate::fs::node::NodeKind;
use crate::fs::root::root_mount;
use crate::fs::walk::Final;
use crate::fs::{FileSystem, Path, notify, overlay, procfs, sysfs, tmpfs};
use crate::share;
use crate::syscall::Args;
use crate::task::{self, Capability};
use crate::tty::devpts::DevPts;
use crate::user;
use crate::{Errno, Result};
use freehold_collections::{Arc, Vec, reserve::ArcMethods};

const MS_REMOUNT: u64 = 0x20;
const MS_BIND: u64 = 0x1000;
const MS_MOVE: u64 = 0x2000;
/// MS_UNBINDABLE, MS_PRIVATE, MS_SLAVE, MS_SHARED: with one mount namespace there is nobody to propagate to.
const MS_PROPAGATION: u64 = 0xf << 17;
const MS_MAGIC: u64 = 0xc0ed_0000;

fn privileged() -> Result<()> {
    if task::may(Capability::SysAdmin) { Ok(()) } else { Err(Errno::EPERM) }
}

/// mount(source, target, type, flags, data)
pub fn sys_mount(args: &Args) -> Result<i64> {
    privileged()?;
    let mut flags = args[3];
    if flags & 0xffff_0000 == MS_MAGIC {
        flags &= 0xffff;
    }
    let place = place_at(AT_FDCWD, args[1], 0, Final::Follow)?;
    // A mount in one that was taken away would keep both for ever: nobody could take it away again.
    if !place.mount.hangs_in(&root_mount()) {
        return Err(Errno::EINVAL);
    }
    let restrictions = MountFlags::from_bits_truncate(flags as u32);
    let options = if args[4] == 0 { Vec::new() } else { user::bounded_string(args[4], 4096, Errno::EINVAL)? };
    if flags & MS_REMOUNT != 0 {
        if !place.is_mount_root() {
            return Err(Errno::EINVAL);
        }
        if flags & MS_BIND == 0 {
            place.mount.file_system().configure(&options)?;
        }
        place.mount.set_flags(restrictions);
        return Ok(0);
    }
    if flags & MS_BIND != 0 {
        return bind(place_at(AT_FDCWD, args[0], 0, Final::Follow)?, place).map(|()| 0);
    }
    if flags & MS_PROPAGATION != 0 {
        return if place.is_mount_root() { Ok(0) } else { Err(Errno::EINVAL) };
    }
    if flags & MS_MOVE != 0 {
        return hand_over(place_at(AT_FDCWD, args[0], 0, Final::Follow)?, place).map(|()| 0);
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
    let fs = new_file_system(&kind, &source, &options)?;
    let mount = Mount::new(fs, &source, restrictions)?;
    place.mount.clone().attach(&mount, place)?;
    Ok(0)
}

/// MS_BIND: what is at `source` is at `place` too.
fn bind(source: Path, place: Path) -> Result<()> {
    let is_directory = |path: &Path| path.node.kind() == NodeKind::Directory;
    if is_directory(&source) != is_directory(&place) {
        return Err(Errno::ENOTDIR);
    }
    let below = &source.mount;
    let mount =
        Mount::of_part(below.file_system().clone(), source.node.clone(), below.source(), below.flags())?;
    place.mount.clone().attach(&mount, place)
}

/// MS_MOVE: the mount at `source` goes to `place`.
fn hand_over(source: Path, place: Path) -> Result<()> {
    let from = source.mount.mountpoint().filter(|_| source.is_mount_root()).ok_or(Errno::EINVAL)?;
    if source.mount.tree()?.iter().any(|mount| mount.is_same(&place.mount)) {
        return Err(Errno::ELOOP);
    }
    from.mount.hand_over(&source.mount, place)
}

/// A file system to mount: `ENODEV` for types that there are none of.
fn new_file_system(kind: &[u8], source: &[u8], options: &[u8]) -> Result<Arc<dyn FileSystem>> {
    match kind {
        b"tmpfs" | b"ramfs" | b"devtmpfs" => tmpfs::mount("tmpfs", options),
        b"proc" => Ok(procfs::ProcFs::new()?),
        b"sysfs" => sysfs::instance(),
        b"debugfs" => Ok(sysfs::debugfs()),
        b"9p" => share::mount(source, options),
        b"overlay" => {
            overlay::mount(options, &|text| walk_from(AT_FDCWD, text, |walk| walk.find(text, Final::Follow)))
        }
        b"devpts" => Ok(DevPts::file_system()),
        _ => Err(Errno::ENODEV),
    }
}

const MNT_FORCE: u32 = 1;
const MNT_DETACH: u32 = 2;
const MNT_EXPIRE: u32 = 4;
const UMOUNT_NOFOLLOW: u32 = 8;

/// umount2(target, flags). Open files and working directories keep what they refer to, so every unmount is lazy.
pub fn sys_umount2(args: &Args) -> Result<i64> {
    let flags = args.uint(1);
    super::only(flags, MNT_FORCE | MNT_DETACH | MNT_EXPIRE | UMOUNT_NOFOLLOW)?;
    privileged()?;
    let last = if flags & UMOUNT_NOFOLLOW != 0 { Final::Stop } else { Final::Follow };
    let place = place_at(AT_FDCWD, args[0], 0, last)?;
    if !place.is_mount_root() {
        return Err(Errno::EINVAL);
    }
    let below = place.mount.mountpoint().ok_or(Errno::EBUSY)?;
    below.mount.detach(&place.mount)?;
    tell_unmounted(&place.mount);
    Ok(0)
}

/// Ends the watches of a file system that is not mounted any more.
fn tell_unmounted(gone: &Mount) {
    let device = gone.file_system().device();
    // Without memory for the list of mounts the watches stay.
    let Ok(mounts) = root_mount().tree() else { return };
    if mounts.iter().all(|mount| mount.file_system().device() != device) {
        notify::unmounted(device);
    }
}

/// sync()
pub fn sys_sync(_args: &Args) -> Result<i64> {
    for mount in root_mount().tree()? {
        // sync(2) has no way to tell of errors; fsync has.
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
