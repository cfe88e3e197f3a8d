//! getdents, chdir, getcwd, chroot.

use alloc::vec::Vec;

use super::{AT_FDCWD, as_caller, file, place_at, process};
use crate::fallible::Grow as _;
use crate::fs::caller::{Access, Power};
use crate::fs::node::{NodeKind, Presence};
use crate::fs::path::{Path, Reach};
use crate::fs::walk::Final;
use crate::syscall::Args;
use crate::user::{self, Sink, UserSlice};
use crate::{Errno, Result};

/// Entries are gathered in kernel memory and copied at once: at most so many bytes.
const MAX_BUFFER: usize = 64 * 1024;

/// Where d_type stands: behind the name in getdents, before it in getdents64.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Old,
    New,
}

fn list(fd: i32, buffer: u64, size: usize, layout: Layout) -> Result<i64> {
    let file = file(fd)?;
    let size = size.min(MAX_BUFFER);
    let mut bytes: Vec<u8> = Vec::new();
    bytes.make_room(size)?;
    let mut no_room = false;
    let result = file.read_dir(&mut |entry| {
        // inode, next position, record length, and type and name with its NUL in either order.
        let len = (8 + 8 + 2 + 1 + entry.name.len() + 1).next_multiple_of(8);
        if bytes.len() + len > size {
            no_room = true;
            return false;
        }
        let end = bytes.len() + len;
        bytes.extend_from_slice(&entry.inode.to_le_bytes());
        bytes.extend_from_slice(&entry.next.to_le_bytes());
        bytes.extend_from_slice(&(len as u16).to_le_bytes());
        if layout == Layout::New {
            bytes.push(entry.kind);
        }
        bytes.extend_from_slice(entry.name);
        bytes.resize(end, 0);
        if layout == Layout::Old {
            bytes[end - 1] = entry.kind;
        }
        true
    });
    if bytes.is_empty() {
        result?;
        return if no_room { Err(Errno::EINVAL) } else { Ok(0) };
    }
    user::write_exact(buffer, &bytes)?;
    Ok(bytes.len() as i64)
}

/// getdents(fd, buffer, size)
pub fn sys_getdents(args: &Args) -> Result<i64> {
    list(args.fd(0), args[1], args.uint(2) as usize, Layout::Old)
}

/// getdents64(fd, buffer, size)
pub fn sys_getdents64(args: &Args) -> Result<i64> {
    list(args.fd(0), args[1], args.uint(2) as usize, Layout::New)
}

/// `place` if it is a directory that the caller may search.
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
    process().fs().set_cwd(place);
    Ok(0)
}

/// fchdir(fd)
pub fn sys_fchdir(args: &Args) -> Result<i64> {
    let file = file(args.fd(0))?;
    let place = searchable(file.path().cloned().ok_or(Errno::ENOTDIR)?)?;
    process().fs().set_cwd(place);
    Ok(0)
}

/// chroot(path)
pub fn sys_chroot(args: &Args) -> Result<i64> {
    let place = searchable(place_at(AT_FDCWD, args[0], 0, Final::Follow)?)?;
    as_caller(|walk| if walk.caller.power == Power::Override { Ok(()) } else { Err(Errno::EPERM) })?;
    process().fs().set_root(place);
    Ok(0)
}

/// getcwd(buffer, size): the length with the NUL.
pub fn sys_getcwd(args: &Args) -> Result<i64> {
    let context = process().fs();
    let path = context.cwd().describe(&context.root())?;
    if path.presence == Presence::Removed {
        return Err(Errno::ENOENT);
    }
    let mut text = path.text;
    if path.reach == Reach::Outside {
        text.splice(0..0, b"(unreachable)".iter().copied());
    }
    text.push(0);
    if text.len() > args.size(1) {
        return Err(Errno::ERANGE);
    }
    UserSlice::new(args[0], text.len()).put(&text)?;
    Ok(text.len() as i64)
}
