//! getdents, chdir, getcwd, chroot.

use freehold_collections::Vec;

use super::{AT_FDCWD, as_caller, file, place_at, process};
use crate::fs::caller::Access;
use crate::fs::file::DirEntry;
use crate::fs::node::{NodeKind, Presence};
use crate::fs::path::{Path, Reach};
use crate::fs::walk::Final;
use crate::syscall::Args;
use crate::task::Capability;
use crate::user::{self, Sink, UserSlice};
use crate::{Errno, Result};

/// Size limit of the kernel buffer in which entries are gathered before they are copied at once.
const MAX_BUFFER: usize = 64 * 1024;

/// The place of d_type: after the name in getdents, before it in getdents64.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DirentLayout {
    Old,
    New,
}

fn list(fd: i32, buffer: u64, size: usize, layout: DirentLayout) -> Result<i64> {
    let file = file(fd)?;
    let size = size.min(MAX_BUFFER);
    let mut bytes = Vec::try_with_capacity(size)?;
    let mut no_room = false;
    let result = file.read_dir(&mut |entry| {
        let len = (8 + 8 + 2 + 1 + entry.name.len() + 1).next_multiple_of(8);
        if bytes.len() + len > size {
            no_room = true;
            return false;
        }
        // The check above has shown that there is room.
        add(&mut bytes, &entry, len, layout).is_ok()
    });
    if bytes.is_empty() {
        result?;
        return if no_room { Err(Errno::EINVAL) } else { Ok(0) };
    }
    user::write_exact(buffer, &bytes)?;
    Ok(bytes.len() as i64)
}

/// Adds a record of `len` bytes: inode, next position, record length, then type and name with its
/// NUL, in the order of `layout`.
fn add(bytes: &mut Vec<u8>, entry: &DirEntry<'_>, len: usize, layout: DirentLayout) -> Result<()> {
    let end = bytes.len() + len;
    let mut head = [0; 19];
    head[..8].copy_from_slice(&entry.inode.to_le_bytes());
    head[8..16].copy_from_slice(&entry.next.to_le_bytes());
    head[16..18].copy_from_slice(&(len as u16).to_le_bytes());
    head[18] = entry.kind;
    let used = if layout == DirentLayout::New { 19 } else { 18 };
    bytes.try_extend_from_slice(&head[..used])?;
    bytes.try_extend_from_slice(entry.name)?;
    bytes.try_resize(end, 0)?;
    if layout == DirentLayout::Old {
        bytes[end - 1] = entry.kind;
    }
    Ok(())
}

/// getdents(fd, buffer, size)
pub fn sys_getdents(args: &Args) -> Result<i64> {
    list(args.fd(0), args[1], args.uint(2) as usize, DirentLayout::Old)
}

/// getdents64(fd, buffer, size)
pub fn sys_getdents64(args: &Args) -> Result<i64> {
    list(args.fd(0), args[1], args.uint(2) as usize, DirentLayout::New)
}

/// Returns `place` if it is a directory that the caller may search.
fn searchable(place: Path) -> Result<Path> {
    if place.node.kind() != NodeKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    as_caller(|walk| walk.caller.may_use(&*place.node, Access::EXECUTE))?;
    Ok(place)
}

/// chdir(path)
pub fn sys_chdir(args: &Args) -> Result<i64> {
    let place = searchable(place_at(AT_FDCWD, args[0], 0, Final::Follow)?)?;
    process().change_places(|fs| fs.set_cwd(place));
    Ok(0)
}

/// fchdir(fd)
pub fn sys_fchdir(args: &Args) -> Result<i64> {
    let file = file(args.fd(0))?;
    let place = searchable(file.path().cloned().ok_or(Errno::ENOTDIR)?)?;
    process().change_places(|fs| fs.set_cwd(place));
    Ok(0)
}

/// chroot(path)
pub fn sys_chroot(args: &Args) -> Result<i64> {
    let place = searchable(place_at(AT_FDCWD, args[0], 0, Final::Follow)?)?;
    if !process().credentials().may_within(Capability::SysChroot) {
        return Err(Errno::EPERM);
    }
    process().change_places(|fs| fs.set_root(place));
    Ok(0)
}

/// getcwd(buffer, size): returns the length with the NUL.
pub fn sys_getcwd(args: &Args) -> Result<i64> {
    let context = process().fs();
    let path = context.cwd().describe(&context.root())?;
    if path.presence == Presence::Removed {
        return Err(Errno::ENOENT);
    }
    let mut text = path.text;
    if path.reach == Reach::Outside {
        let mut outside = Vec::try_from_slice(b"(unreachable)")?;
        outside.try_extend_from_slice(&text)?;
        text = outside;
    }
    text.try_push(0)?;
    if text.len() > args.size(1) {
        return Err(Errno::ERANGE);
    }
    UserSlice::new(args[0], text.len()).put(&text)?;
    Ok(text.len() as i64)
}
