//! The system calls on files and names.
//!
//! A handler reads its arguments, resolves descriptors and paths for the calling thread, and calls
//! the functions that do the work. Checks have Linux' order wherever a program can observe it.

mod descriptors;
mod directory;
mod handles;
mod locking;
mod mount_fds;
mod mounting;
mod names;
mod news;
mod open;
mod read_write;
mod space;
mod stat;
mod transfer;
mod types;
mod xattr;

pub use descriptors::*;
pub use directory::*;
pub use handles::*;
pub use locking::*;
pub use mount_fds::*;
pub use mounting::*;
pub use names::*;
pub use open::*;
pub use read_write::*;
pub use space::*;
pub use stat::*;
pub use transfer::*;
pub use types::*;
pub use xattr::*;

use freehold_collections::{Arc, Vec};

use super::caller::Caller;
use super::context::{FsContext, Places};
use super::node::{Node, NodeKind};
use super::open_file::OpenFile;
use super::path::Path;
use super::root;
use super::table::FileTable;
use super::walk::{Final, PathWalk};
use crate::task::{self, Credentials, Process, Task};
use crate::{Errno, Result, user};

/// Stands for the working directory in place of a descriptor.
pub(in crate::fs) const AT_FDCWD: i32 = -100;
const AT_SYMLINK_NOFOLLOW: u32 = 0x100;
const AT_REMOVEDIR: u32 = 0x200;
const AT_EACCESS: u32 = 0x200;
const AT_SYMLINK_FOLLOW: u32 = 0x400;
const AT_NO_AUTOMOUNT: u32 = 0x800;
const AT_EMPTY_PATH: u32 = 0x1000;

fn process() -> Arc<Process> {
    task::with_current(|task| task.process().clone())
}

/// Runs `look` with [`process`], without taking a reference.
fn with_process<R>(look: impl FnOnce(&Process) -> R) -> R {
    task::with_current(|task| look(task.process()))
}

/// Runs `look` with the caller's descriptor table.
fn with_files<R>(look: impl FnOnce(&Arc<FileTable>) -> R) -> R {
    task::with_current(|task| task.with_files(look))
}

/// The open file behind a descriptor of the caller.
fn file(fd: i32) -> Result<Arc<OpenFile>> {
    task::with_current(|task| task.process().file(fd))
}

/// Returns the directory at which a relative path begins: the working directory, or the directory
/// of `dirfd`.
fn start_of(process: &Process, dirfd: i32) -> Result<Path> {
    if dirfd == AT_FDCWD {
        return Ok(process.with_fs(FsContext::cwd));
    }
    let file = process.file(dirfd)?;
    match file.path() {
        Some(path) if path.node.kind() == NodeKind::Directory => Ok(path.clone()),
        _ => Err(Errno::ENOTDIR),
    }
}

/// Returns the error for an invalid `dirfd`. An empty path is refused first, with `ENOENT`.
#[cold]
fn named_by(text: &[u8], error: Errno) -> Errno {
    if text.is_empty() { Errno::ENOENT } else { error }
}

/// Runs `f` with the running task, its root, and the place at which `text` begins.
///
/// # Errors
/// `ENOENT` for an empty text, whatever `dirfd` is; those of the descriptor.
// A function of its own, and not a part of each call on a path.
#[inline(never)]
fn with_start(dirfd: i32, text: &[u8], f: &mut dyn FnMut(&Task, &Path, &Path)) -> Result<()> {
    task::with_current(|task| {
        task.with_places(|Places { root, cwd }| {
            let named;
            let start = if text.first() == Some(&b'/') {
                root
            } else if dirfd == AT_FDCWD {
                cwd
            } else {
                named = start_of(task.process(), dirfd).map_err(|error| named_by(text, error))?;
                &named
            };
            f(task, root, start);
            Ok(())
        })
    })
}

/// Runs `f` with the walk that resolves `text` from `dirfd` for the caller.
///
/// # Errors
/// As [`with_start`]; those of `f`.
fn walk_from<R>(dirfd: i32, text: &[u8], f: impl FnOnce(&PathWalk<'_>) -> Result<R>) -> Result<R> {
    walk_as(Credentials::caller, dirfd, text, f)
}

/// Like [`walk_from`], with the rights that `rights` makes of the caller's credentials.
fn walk_as<R>(
    rights: impl FnOnce(&Credentials) -> Caller<'_>,
    dirfd: i32,
    text: &[u8],
    f: impl FnOnce(&PathWalk<'_>) -> Result<R>,
) -> Result<R> {
    let (mut once, mut outcome) = (Some((rights, f)), Err(Errno::ENOENT));
    with_start(dirfd, text, &mut |task, root, start| {
        if let Some((rights, f)) = once.take() {
            outcome =
                task.with_credentials(|credentials| f(&PathWalk::new(root, start, &rights(credentials))));
        }
    })?;
    outcome
}

/// Runs `f` with a walk that is used only for checks: the place is already known.
fn as_caller<R>(f: impl FnOnce(&PathWalk<'_>) -> Result<R>) -> Result<R> {
    walk_from(AT_FDCWD, b"/", f)
}

/// The rights of the real instead of the effective user (access(2)). As root the caller has what it
/// could have, as another user nothing (Linux: `access_override_creds`).
fn rights_of_real_user(credentials: &Credentials) -> Caller<'_> {
    let is_root = Some(credentials.uid) == credentials.user_ns.root();
    let capabilities = if is_root { credentials.capabilities.permitted } else { 0 };
    credentials.caller_as((credentials.uid, credentials.gid), capabilities)
}

fn path_at(address: u64) -> Result<Vec<u8>> {
    user::string(address)
}

/// Opens the file whose path is at `address` for the kernel's own use, without a descriptor.
pub fn open_path(address: u64, flags: super::OpenFlags) -> Result<Arc<OpenFile>> {
    let text = path_at(address)?;
    walk_from(AT_FDCWD, &text, |walk| super::names::open(walk, &text, flags | super::OpenFlags::LARGEFILE, 0))
}

/// The place of an open file. Nameless files are in a mount of their own.
pub(in crate::fs) fn place_of(file: &OpenFile) -> Path {
    file.path().cloned().unwrap_or_else(|| root::unnamed_place(file.node()))
}

/// Returns the place of `dirfd` and the path at `address`. With AT_EMPTY_PATH in `flags` and an
/// empty path, it is the place of `dirfd` itself.
pub(in crate::fs) fn place_at(dirfd: i32, address: u64, flags: u32, last: Final) -> Result<Path> {
    let text = if address == 0 && flags & AT_EMPTY_PATH != 0 { Vec::new() } else { path_at(address)? };
    if text.is_empty() && flags & AT_EMPTY_PATH != 0 {
        return if dirfd == AT_FDCWD { Ok(process().fs().cwd()) } else { Ok(place_of(&*file(dirfd)?)) };
    }
    walk_from(dirfd, &text, |walk| walk.find(&text, last))
}

fn last_of(flags: u32) -> Final {
    if flags & AT_SYMLINK_NOFOLLOW != 0 { Final::Stop } else { Final::Follow }
}

/// The node of a descriptor.
fn node_of(fd: i32) -> Result<Arc<dyn Node>> {
    file(fd).map(|file| file.node())
}

fn only(flags: u32, known: u32) -> Result<()> {
    if flags & !known != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}
