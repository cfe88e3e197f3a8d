//! stat, statx, access and their kin.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{
    AT_EACCESS, AT_EMPTY_PATH, AT_FDCWD, AT_NO_AUTOMOUNT, AT_SYMLINK_NOFOLLOW, last_of, node_of, only,
    path_at, place_at, rights_of_real_user, walk_as, walk_from,
};
use crate::fs::anonymous;
use crate::fs::caller::Access;
use crate::fs::device::split_device;
use crate::fs::mount::{FsStats, MountFlags};
use crate::fs::node::{Metadata, Node, NodeKind, Timestamp};
use crate::fs::path::Path;
use crate::fs::walk::Final;
use crate::syscall::Args;
use crate::task::namespaces;
use crate::user::UserPtr;
use crate::{Errno, Result, task};

/// `struct stat` of x86-64.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Stat {
    device: u64,
    inode: u64,
    links: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    reserved: u32,
    rdev: u64,
    size: i64,
    block_size: i64,
    blocks: i64,
    accessed: [u64; 2],
    modified: [u64; 2],
    changed: [u64; 2],
    unused: [i64; 3],
}

const fn pair(time: Timestamp) -> [u64; 2] {
    [time.seconds as u64, time.nanoseconds as u64]
}

impl From<&Metadata> for Stat {
    fn from(meta: &Metadata) -> Self {
        let (uid, gid) = task::shown_ids(meta.uid, meta.gid);
        Self {
            device: meta.device,
            inode: meta.inode,
            links: u64::from(meta.links),
            mode: meta.kind as u32 | meta.mode,
            uid,
            gid,
            reserved: 0,
            rdev: meta.rdev,
            size: meta.size as i64,
            block_size: i64::from(meta.block_size),
            blocks: meta.blocks as i64,
            accessed: pair(meta.accessed),
            modified: pair(meta.modified),
            changed: pair(meta.changed),
            unused: [0; 3],
        }
    }
}

fn write_stat(address: u64, meta: &Metadata) -> Result<i64> {
    UserPtr::new(address).write(&Stat::from(meta)).map(|()| 0)
}

/// stat(path, buffer)
pub fn sys_stat(args: &Args) -> Result<i64> {
    write_stat(args[1], &place_at(AT_FDCWD, args[0], 0, Final::Follow)?.node.metadata())
}

/// lstat(path, buffer)
pub fn sys_lstat(args: &Args) -> Result<i64> {
    write_stat(args[1], &place_at(AT_FDCWD, args[0], 0, Final::Stop)?.node.metadata())
}

/// fstat(fd, buffer)
pub fn sys_fstat(args: &Args) -> Result<i64> {
    write_stat(args[1], &node_of(args.fd(0))?.metadata())
}

/// newfstatat(dirfd, path, buffer, flags)
pub fn sys_newfstatat(args: &Args) -> Result<i64> {
    let flags = args.uint(3);
    only(flags, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH)?;
    write_stat(args[2], &place_at(args.fd(0), args[1], flags, last_of(flags))?.node.metadata())
}

/// `struct statx_timestamp`.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct StatxTime {
    seconds: i64,
    nanoseconds: u32,
    reserved: i32,
}

impl From<Timestamp> for StatxTime {
    fn from(time: Timestamp) -> Self {
        Self { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 }
    }
}

/// `struct statx`.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Statx {
    mask: u32,
    block_size: u32,
    attributes: u64,
    links: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    reserved: u16,
    inode: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    accessed: StatxTime,
    born: StatxTime,
    changed: StatxTime,
    modified: StatxTime,
    rdev: [u32; 2],
    device: [u32; 2],
    mount_id: u64,
    direct_io: [u32; 2],
    unused: [u64; 12],
}

const STATX_BASIC_STATS: u32 = 0x7ff;
const STATX_MNT_ID: u32 = 0x1000;
const STATX_BTIME: u32 = 0x800;
const STATX_RESERVED: u32 = 0x8000_0000;
const STATX_ATTR_MOUNT_ROOT: u64 = 0x2000;
/// AT_STATX_FORCE_SYNC and AT_STATX_DONT_SYNC: both together are invalid.
const AT_STATX_SYNC_TYPE: u32 = 0x6000;

/// statx(dirfd, path, flags, mask, buffer)
pub fn sys_statx(args: &Args) -> Result<i64> {
    let (flags, mask) = (args.uint(2), args.uint(3));
    only(flags, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH | AT_STATX_SYNC_TYPE)?;
    if mask & STATX_RESERVED != 0 || flags & AT_STATX_SYNC_TYPE == AT_STATX_SYNC_TYPE {
        return Err(Errno::EINVAL);
    }
    let place = place_at(args.fd(0), args[1], flags, last_of(flags))?;
    let meta = place.node.metadata();
    let (rdev, device) = (split_device(meta.rdev), split_device(meta.device));
    let (uid, gid) = task::shown_ids(meta.uid, meta.gid);
    let statx = Statx {
        mask: STATX_BASIC_STATS | STATX_MNT_ID | if meta.born.is_some() { STATX_BTIME } else { 0 },
        block_size: meta.block_size,
        attributes: if place.is_mount_root() { STATX_ATTR_MOUNT_ROOT } else { 0 },
        links: meta.links,
        uid,
        gid,
        mode: (meta.kind as u32 | meta.mode) as u16,
        reserved: 0,
        inode: meta.inode,
        size: meta.size,
        blocks: meta.blocks,
        attributes_mask: STATX_ATTR_MOUNT_ROOT,
        accessed: meta.accessed.into(),
        born: meta.born.unwrap_or_default().into(),
        changed: meta.changed.into(),
        modified: meta.modified.into(),
        rdev: [rdev.0, rdev.1],
        device: [device.0, device.1],
        mount_id: place.mount.id(),
        direct_io: [0; 2],
        unused: [0; 12],
    };
    UserPtr::new(args[4]).write(&statx).map(|()| 0)
}

fn access(dirfd: i32, path: u64, mode: u32, flags: u32) -> Result<i64> {
    only(flags, AT_EACCESS | AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)?;
    let want = Access::from_bits(mode).ok_or(Errno::EINVAL)?;
    let text = path_at(path)?;
    let check = |walk: &crate::fs::PathWalk<'_>| {
        let place = if text.is_empty() && flags & AT_EMPTY_PATH != 0 {
            place_at(dirfd, path, flags, Final::Follow)?
        } else {
            walk.find(&text, last_of(flags))?
        };
        let meta = place.node.metadata();
        let on_disk = matches!(meta.kind, NodeKind::Regular | NodeKind::Directory | NodeKind::Symlink);
        if want.contains(Access::WRITE) && on_disk {
            place.mount.writable()?;
        }
        if want.contains(Access::EXECUTE)
            && meta.kind == NodeKind::Regular
            && place.mount.flags().contains(MountFlags::NOEXEC)
        {
            return Err(Errno::EACCES);
        }
        walk.caller.may(&meta, want).map(|()| 0)
    };
    if flags & AT_EACCESS != 0 {
        walk_from(dirfd, &text, check)
    } else {
        walk_as(rights_of_real_user, dirfd, &text, check)
    }
}

/// access(path, mode)
pub fn sys_access(args: &Args) -> Result<i64> {
    access(AT_FDCWD, args[0], args.uint(1), 0)
}

/// faccessat(dirfd, path, mode)
pub fn sys_faccessat(args: &Args) -> Result<i64> {
    access(args.fd(0), args[1], args.uint(2), 0)
}

/// faccessat2(dirfd, path, mode, flags)
pub fn sys_faccessat2(args: &Args) -> Result<i64> {
    access(args.fd(0), args[1], args.uint(2), args.uint(3))
}

/// `struct statfs` of x86-64.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct StatFs {
    kind: i64,
    block_size: i64,
    blocks: u64,
    free: u64,
    available: u64,
    files: u64,
    free_files: u64,
    id: [u32; 2],
    name_length: i64,
    fragment_size: i64,
    flags: i64,
    spare: [i64; 4],
}

/// statfs' flag that says that its flags field is valid.
const ST_VALID: i64 = 0x20;
const ST_RELATIME: i64 = 0x1000;
/// Flags to which statfs and mount give the same numbers: read-only, no set-user-ID, no devices, no
/// execution, no access times, no access times of directories.
const ST_SAME: u32 = 0xf | 0x400 | 0x800;

/// The types of the file systems of nodes without a name (linux/magic.h).
const PIPEFS: u64 = 0x5049_5045;
const SOCKFS: u64 = 0x534f_434b;
const ANON_INODE_FS: u64 = 0x0904_1934;
const NSFS: u64 = 0x6e73_6673;

/// Returns the type of the file system of a node that is on no mount.
fn magic_of_nameless(node: &dyn Node) -> Option<u64> {
    match (node.identity().device, node.kind()) {
        (namespaces::file::DEVICE, _) => Some(NSFS),
        (anonymous::DEVICE, NodeKind::Fifo) => Some(PIPEFS),
        (anonymous::DEVICE, NodeKind::Socket) => Some(SOCKFS),
        (anonymous::DEVICE, _) => Some(ANON_INODE_FS),
        _ => None,
    }
}

fn write_statfs(address: u64, place: &Path) -> Result<i64> {
    let mount = &place.mount;
    let fs = mount.file_system();
    let relative = if mount.flags().contains(MountFlags::NOATIME) { 0 } else { ST_RELATIME };
    let FsStats { magic, block_size, blocks, free_blocks, inodes, free_inodes } = fs.stats();
    let statfs = StatFs {
        kind: magic_of_nameless(&*place.node).unwrap_or(magic) as i64,
        block_size: block_size as i64,
        blocks,
        free: free_blocks,
        available: free_blocks,
        files: inodes,
        free_files: free_inodes,
        id: [fs.device() as u32, (fs.device() >> 32) as u32],
        name_length: crate::fs::walk::NAME_MAX as i64,
        fragment_size: block_size as i64,
        flags: i64::from(mount.flags().bits() & ST_SAME) | relative | ST_VALID,
        spare: [0; 4],
    };
    UserPtr::new(address).write(&statfs).map(|()| 0)
}

/// statfs(path, buffer)
pub fn sys_statfs(args: &Args) -> Result<i64> {
    write_statfs(args[1], &place_at(AT_FDCWD, args[0], 0, Final::Follow)?)
}

/// fstatfs(fd, buffer)
pub fn sys_fstatfs(args: &Args) -> Result<i64> {
    write_statfs(args[1], &super::place_of(&*super::file(args.fd(0))?))
}
