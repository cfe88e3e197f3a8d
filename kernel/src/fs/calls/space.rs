//! truncate and fallocate.

use super::{AT_FDCWD, as_caller, file, place_at, place_of};
use crate::fs::file::Allocate;
use crate::fs::node::{NodeKind, SetMetadata};
use crate::fs::walk::Final;
use crate::fs::{metadata, names};
use crate::syscall::Args;
use crate::{Errno, Result};

/// Checks a length for truncate: it must not be negative.
fn length(value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|_| Errno::EINVAL)
}

/// truncate(path, length)
pub fn sys_truncate(args: &Args) -> Result<i64> {
    let length = length(args.long(1))?;
    let place = place_at(AT_FDCWD, args[0], 0, Final::Follow)?;
    as_caller(|walk| names::truncate(walk, &place, length)).map(|()| 0)
}

/// ftruncate(fd, length)
pub fn sys_ftruncate(args: &Args) -> Result<i64> {
    let length = length(args.long(1))?;
    let file = file(args.fd(0))?;
    file.check_not_path()?;
    if !file.flags().writes() || file.node().kind() != NodeKind::Regular {
        return Err(Errno::EINVAL);
    }
    let change = SetMetadata { size: Some(length), ..SetMetadata::default() };
    metadata::change(&place_of(&file), &change).map(|()| 0)
}

const FALLOC_FL_KEEP_SIZE: u32 = 0x01;
const FALLOC_FL_PUNCH_HOLE: u32 = 0x02;
const FALLOC_FL_ZERO_RANGE: u32 = 0x10;

/// fallocate(fd, mode, offset, length)
pub fn sys_fallocate(args: &Args) -> Result<i64> {
    const PUNCH: u32 = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: u32 = FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE;
    let file = file(args.fd(0))?;
    let offset = u64::try_from(args.long(2)).map_err(|_| Errno::EINVAL)?;
    let len = u64::try_from(args.long(3)).ok().filter(|&len| len > 0).ok_or(Errno::EINVAL)?;
    let end = offset.checked_add(len).filter(|&end| i64::try_from(end).is_ok()).ok_or(Errno::EFBIG)?;
    file.check_writable()?;
    match file.node().kind() {
        NodeKind::Regular | NodeKind::BlockDevice => {}
        NodeKind::Directory => return Err(Errno::EISDIR),
        NodeKind::Fifo => return Err(Errno::ESPIPE),
        _ => return Err(Errno::ENODEV),
    }
    let range = offset..end;
    match args.uint(1) {
        0 => file.allocate(range, Allocate::Extend),
        FALLOC_FL_KEEP_SIZE => file.allocate(range, Allocate::KeepSize),
        PUNCH => file.allocate(range, Allocate::PunchHole),
        ZERO_KEEP => file.allocate(range, Allocate::ZeroKeepSize),
        FALLOC_FL_ZERO_RANGE => {
            file.allocate(range.clone(), Allocate::ZeroKeepSize)?;
            file.allocate(range, Allocate::Extend)
        }
        _ => Err(Errno::EOPNOTSUPP),
    }
    .map(|()| 0)
}
