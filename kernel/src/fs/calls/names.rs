//! mkdir, unlink, rename, link, chmod, chown, utimensat and their kin.

use freehold_collections::Vec;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{
    AT_EMPTY_PATH, AT_FDCWD, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW, as_caller, file, last_of,
    only, path_at, place_at, place_of, process, walk_from,
};
use crate::fs::FsContext;
use crate::fs::flags::RenameFlags;
use crate::fs::metadata::{self, Times};
use crate::fs::names;
use crate::fs::node::{NodeKind, Timestamp};
use crate::fs::path::Path;
use crate::fs::walk::Final;
use crate::syscall::Args;
use crate::task::{self, Capability, userns::IdKind};
use crate::user::{Sink, UserPtr, UserSlice};
use crate::{Errno, Result};

fn unmasked(mode: u32) -> u32 {
    mode & !process().with_fs(FsContext::umask)
}

fn make_dir(dirfd: i32, path: u64, mode: u32) -> Result<i64> {
    let text = path_at(path)?;
    walk_from(dirfd, &text, |walk| names::make_dir(walk, &text, unmasked(mode))).map(|()| 0)
}

/// mkdir(path, mode)
pub fn sys_mkdir(args: &Args) -> Result<i64> {
    make_dir(AT_FDCWD, args[0], args.uint(1))
}

/// mkdirat(dirfd, path, mode)
pub fn sys_mkdirat(args: &Args) -> Result<i64> {
    make_dir(args.fd(0), args[1], args.uint(2))
}

fn make_node(dirfd: i32, path: u64, mode: u32, device: u32) -> Result<i64> {
    let text = path_at(path)?;
    let kind = match mode & 0o170_000 {
        0 => NodeKind::Regular,
        bits => NodeKind::from_mode(bits).ok_or(Errno::EINVAL)?,
    };
    match kind {
        NodeKind::Directory => return Err(Errno::EPERM),
        NodeKind::Symlink => return Err(Errno::EINVAL),
        _ => {}
    }
    let device = match kind {
        NodeKind::CharDevice | NodeKind::BlockDevice => u64::from(device),
        _ => 0,
    };
    walk_from(dirfd, &text, |walk| names::make_node(walk, &text, kind, unmasked(mode), device)).map(|_| 0)
}

/// mknod(path, mode, device)
pub fn sys_mknod(args: &Args) -> Result<i64> {
    make_node(AT_FDCWD, args[0], args.uint(1), args.uint(2))
}

/// mknodat(dirfd, path, mode, device)
pub fn sys_mknodat(args: &Args) -> Result<i64> {
    make_node(args.fd(0), args[1], args.uint(2), args.uint(3))
}

fn unlink(dirfd: i32, path: u64) -> Result<i64> {
    let text = path_at(path)?;
    walk_from(dirfd, &text, |walk| names::unlink(walk, &text)).map(|()| 0)
}

fn remove_dir(dirfd: i32, path: u64) -> Result<i64> {
    let text = path_at(path)?;
    walk_from(dirfd, &text, |walk| names::remove_dir(walk, &text)).map(|()| 0)
}

/// unlink(path)
pub fn sys_unlink(args: &Args) -> Result<i64> {
    unlink(AT_FDCWD, args[0])
}

/// rmdir(path)
pub fn sys_rmdir(args: &Args) -> Result<i64> {
    remove_dir(AT_FDCWD, args[0])
}

/// unlinkat(dirfd, path, flags)
pub fn sys_unlinkat(args: &Args) -> Result<i64> {
    only(args.uint(2), AT_REMOVEDIR)?;
    if args.uint(2) == 0 { unlink(args.fd(0), args[1]) } else { remove_dir(args.fd(0), args[1]) }
}

fn rename(from: (i32, u64), to: (i32, u64), flags: u32) -> Result<i64> {
    let flags = RenameFlags::from_bits(flags).filter(|&flags| RenameFlags::ASKABLE.contains(flags));
    let flags = flags.ok_or(Errno::EINVAL)?;
    let old = path_at(from.1)?;
    let new = path_at(to.1)?;
    walk_from(from.0, &old, |source| {
        walk_from(to.0, &new, |target| names::rename(source, &old, target, &new, flags))
    })
    .map(|()| 0)
}

/// rename(old, new)
pub fn sys_rename(args: &Args) -> Result<i64> {
    rename((AT_FDCWD, args[0]), (AT_FDCWD, args[1]), 0)
}

/// renameat(old dirfd, old, new dirfd, new)
pub fn sys_renameat(args: &Args) -> Result<i64> {
    rename((args.fd(0), args[1]), (args.fd(2), args[3]), 0)
}

/// renameat2(old dirfd, old, new dirfd, new, flags)
pub fn sys_renameat2(args: &Args) -> Result<i64> {
    rename((args.fd(0), args[1]), (args.fd(2), args[3]), args.uint(4))
}

fn link(old: &Path, dirfd: i32, path: u64) -> Result<i64> {
    let text = path_at(path)?;
    walk_from(dirfd, &text, |walk| names::link(old, walk, &text)).map(|()| 0)
}

/// link(old, new)
pub fn sys_link(args: &Args) -> Result<i64> {
    link(&place_at(AT_FDCWD, args[0], 0, Final::Stop)?, AT_FDCWD, args[1])
}

/// linkat(old dirfd, old, new dirfd, new, flags)
pub fn sys_linkat(args: &Args) -> Result<i64> {
    let flags = args.uint(4);
    only(flags, AT_SYMLINK_FOLLOW | AT_EMPTY_PATH)?;
    let last = if flags & AT_SYMLINK_FOLLOW != 0 { Final::Follow } else { Final::Stop };
    let (text, dirfd) = (path_at(args[1])?, args.fd(0));
    if !text.is_empty() || flags & AT_EMPTY_PATH == 0 || dirfd == AT_FDCWD {
        return link(&walk_from(dirfd, &text, |walk| walk.find(&text, last))?, args.fd(2), args[3]);
    }
    let place = place_of(&*file(dirfd)?);
    // The descriptor may come from a program with more rights, which did not give the file a name.
    let is_own = as_caller(|walk| Ok(walk.caller.owns(&place.node.metadata())))?;
    if !is_own && !task::may(Capability::DacReadSearch) {
        return Err(Errno::ENOENT);
    }
    link(&place, args.fd(2), args[3])
}

fn symlink(target: u64, dirfd: i32, path: u64) -> Result<i64> {
    let target = path_at(target)?;
    let text = path_at(path)?;
    walk_from(dirfd, &text, |walk| names::symlink(walk, &target, &text)).map(|()| 0)
}

/// symlink(target, path)
pub fn sys_symlink(args: &Args) -> Result<i64> {
    symlink(args[0], AT_FDCWD, args[1])
}

/// symlinkat(target, dirfd, path)
pub fn sys_symlinkat(args: &Args) -> Result<i64> {
    symlink(args[0], args.fd(1), args[2])
}

fn read_link(dirfd: i32, path: u64, buffer: u64, size: i32) -> Result<i64> {
    let size = usize::try_from(size).ok().filter(|&size| size > 0).ok_or(Errno::EINVAL)?;
    // With an empty path, an O_PATH descriptor of a symbolic link means the link itself.
    let text = path_at(path)?;
    let place = if text.is_empty() && dirfd != AT_FDCWD {
        let place = place_of(&*file(dirfd)?);
        if place.node.kind() != NodeKind::Symlink {
            return Err(Errno::ENOENT);
        }
        place
    } else {
        walk_from(dirfd, &text, |walk| walk.find(&text, Final::Stop))?
    };
    let target: Vec<u8> = place.node.read_link()?;
    UserSlice::new(buffer, size).put(&target[..target.len().min(size)]).map(|n| n as i64)
}

/// readlink(path, buffer, size)
pub fn sys_readlink(args: &Args) -> Result<i64> {
    read_link(AT_FDCWD, args[0], args[1], args.int(2))
}

/// readlinkat(dirfd, path, buffer, size)
pub fn sys_readlinkat(args: &Args) -> Result<i64> {
    read_link(args.fd(0), args[1], args[2], args.int(3))
}

fn change_mode(place: &Path, mode: u32) -> Result<i64> {
    as_caller(|walk| metadata::change_mode(walk, place, mode)).map(|()| 0)
}

/// chmod(path, mode)
pub fn sys_chmod(args: &Args) -> Result<i64> {
    change_mode(&place_at(AT_FDCWD, args[0], 0, Final::Follow)?, args.uint(1))
}

/// fchmod(fd, mode)
pub fn sys_fchmod(args: &Args) -> Result<i64> {
    let file = file(args.fd(0))?;
    file.check_not_path()?;
    change_mode(&place_of(&file), args.uint(1))
}

/// fchmodat(dirfd, path, mode)
pub fn sys_fchmodat(args: &Args) -> Result<i64> {
    change_mode(&place_at(args.fd(0), args[1], 0, Final::Follow)?, args.uint(2))
}

/// fchmodat2(dirfd, path, mode, flags)
pub fn sys_fchmodat2(args: &Args) -> Result<i64> {
    let flags = args.uint(3);
    only(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)?;
    change_mode(&place_at(args.fd(0), args[1], flags, last_of(flags))?, args.uint(2))
}

/// The kernel's id for the id that the caller passed; `None` for -1, which leaves the id unchanged.
fn id(kind: IdKind, value: u32) -> Result<Option<u32>> {
    if value == u32::MAX { Ok(None) } else { task::kernel_id(kind, value).map(Some) }
}

fn change_owner(place: &Path, uid: u32, gid: u32) -> Result<i64> {
    let (uid, gid) = (id(IdKind::User, uid)?, id(IdKind::Group, gid)?);
    as_caller(|walk| metadata::change_owner(walk, place, uid, gid)).map(|()| 0)
}

/// chown(path, uid, gid)
pub fn sys_chown(args: &Args) -> Result<i64> {
    change_owner(&place_at(AT_FDCWD, args[0], 0, Final::Follow)?, args.uint(1), args.uint(2))
}

/// lchown(path, uid, gid)
pub fn sys_lchown(args: &Args) -> Result<i64> {
    change_owner(&place_at(AT_FDCWD, args[0], 0, Final::Stop)?, args.uint(1), args.uint(2))
}

/// fchown(fd, uid, gid)
pub fn sys_fchown(args: &Args) -> Result<i64> {
    let file = file(args.fd(0))?;
    file.check_not_path()?;
    change_owner(&place_of(&file), args.uint(1), args.uint(2))
}

/// fchownat(dirfd, path, uid, gid, flags)
pub fn sys_fchownat(args: &Args) -> Result<i64> {
    let flags = args.uint(4);
    only(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)?;
    change_owner(&place_at(args.fd(0), args[1], flags, last_of(flags))?, args.uint(2), args.uint(3))
}

/// umask(mask)
pub fn sys_umask(args: &Args) -> Result<i64> {
    Ok(i64::from(process().with_fs(|fs| fs.set_umask(args.uint(0)))))
}

/// `struct timespec`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

const UTIME_NOW: i64 = (1 << 30) - 1;
const UTIME_OMIT: i64 = (1 << 30) - 2;

impl Timespec {
    const NOW: Self = Self { seconds: 0, nanoseconds: UTIME_NOW };

    /// The time to set, if any.
    fn resolve(&self) -> Result<Option<Timestamp>> {
        match self.nanoseconds {
            UTIME_NOW => Ok(Some(crate::fs::clock::now())),
            UTIME_OMIT => Ok(None),
            nanoseconds @ 0..1_000_000_000 => {
                Ok(Some(Timestamp { seconds: self.seconds, nanoseconds: nanoseconds as u32 }))
            }
            _ => Err(Errno::EINVAL),
        }
    }
}

/// Sets access and modification time.
fn change_times(place: &Path, times: [Timespec; 2]) -> Result<i64> {
    let [accessed, modified] = [times[0].resolve()?, times[1].resolve()?];
    if accessed.is_none() && modified.is_none() {
        return Ok(0);
    }
    let is_now = times.iter().all(|time| time.nanoseconds == UTIME_NOW);
    let whose = if is_now { Times::Now } else { Times::Given };
    as_caller(|walk| metadata::change_times(walk, place, [accessed, modified], whose)).map(|()| 0)
}

/// utimensat(dirfd, path, times, flags); a null path means the descriptor itself.
pub fn sys_utimensat(args: &Args) -> Result<i64> {
    let flags = args.uint(3);
    only(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)?;
    let times = UserPtr::<[Timespec; 2]>::new(args[2]).read_optional()?.unwrap_or([Timespec::NOW; 2]);
    let place = if args[1] == 0 {
        if args.fd(0) == AT_FDCWD {
            return Err(Errno::EFAULT);
        }
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        place_of(&*file(args.fd(0))?)
    } else {
        place_at(args.fd(0), args[1], flags, last_of(flags))?
    };
    change_times(&place, times)
}

/// Seconds and microseconds as two timespecs: `EINVAL` for microseconds out of range.
fn from_timevals(address: u64) -> Result<[Timespec; 2]> {
    let Some(values) = UserPtr::<[[i64; 2]; 2]>::new(address).read_optional()? else {
        return Ok([Timespec::NOW; 2]);
    };
    if values.iter().any(|[_, micros]| !(0..1_000_000).contains(micros)) {
        return Err(Errno::EINVAL);
    }
    Ok(values.map(|[seconds, micros]| Timespec { seconds, nanoseconds: micros * 1000 }))
}

/// utimes(path, times)
pub fn sys_utimes(args: &Args) -> Result<i64> {
    let times = from_timevals(args[1])?;
    change_times(&place_at(AT_FDCWD, args[0], 0, Final::Follow)?, times)
}

/// futimesat(dirfd, path, times)
pub fn sys_futimesat(args: &Args) -> Result<i64> {
    let times = from_timevals(args[2])?;
    let place = if args[1] == 0 {
        place_of(&*file(args.fd(0))?)
    } else {
        place_at(args.fd(0), args[1], 0, Final::Follow)?
    };
    change_times(&place, times)
}

/// utime(path, times)
pub fn sys_utime(args: &Args) -> Result<i64> {
    let times = match UserPtr::<[i64; 2]>::new(args[1]).read_optional()? {
        None => [Timespec::NOW; 2],
        Some(seconds) => seconds.map(|seconds| Timespec { seconds, nanoseconds: 0 }),
    };
    change_times(&place_at(AT_FDCWD, args[0], 0, Final::Follow)?, times)
}
