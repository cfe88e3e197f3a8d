//! name_to_handle_at and open_by_handle_at (Linux: fs/fhandle.c).

use super::{
    AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_FOLLOW, as_caller, file, only, place_at, with_files, with_process,
};
use crate::fs::flags::OpenFlags;
use crate::fs::mount::FileHandle;
use crate::fs::path::Path;
use crate::fs::table::OnExec;
use crate::fs::walk::Final;
use crate::fs::{FsContext, names};
use crate::syscall::Args;
use crate::task::{self, Capability, Process};
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// Largest handle in bytes (MAX_HANDLE_SZ).
const MOST_BYTES: u32 = 128;
/// Bytes of `struct file_handle` before the handle: its length and its type, of four bytes each.
const HEAD: u64 = 8;
/// The type that a program gets with the needed length (FILEID_INVALID).
const NO_TYPE: u32 = 0xff;

/// name_to_handle_at(dirfd, path, handle, mount ID, flags)
pub fn sys_name_to_handle_at(args: &Args) -> Result<i64> {
    let flags = args.uint(4);
    only(flags, AT_SYMLINK_FOLLOW | AT_EMPTY_PATH)?;
    let last = if flags & AT_SYMLINK_FOLLOW != 0 { Final::Follow } else { Final::Stop };
    let place = place_at(args.fd(0), args[1], flags, last)?;
    let handle = place.mount.file_system().handle(&place.node, place.entry.as_deref())?;
    let bytes = 4 * handle.count as u32;
    let [room, _] = UserPtr::<[u32; 2]>::new(args[2]).read()?;
    if room > MOST_BYTES {
        return Err(Errno::EINVAL);
    }
    UserPtr::new(args[3]).write(&(place.mount.id() as i32))?;
    if room < bytes {
        UserPtr::new(args[2]).write(&[bytes, NO_TYPE])?;
        return Err(Errno::EOVERFLOW);
    }
    UserPtr::new(args[2]).write(&[bytes, FileHandle::TYPE])?;
    UserPtr::new(args[2] + HEAD).write_slice(&handle.words[..handle.count]).map(|()| 0)
}

/// open_by_handle_at(mount fd, handle, flags)
pub fn sys_open_by_handle_at(args: &Args) -> Result<i64> {
    // A path's directories are not checked, so the caller must be permitted to search any.
    if !task::may(Capability::DacReadSearch) {
        return Err(Errno::EPERM);
    }
    let [length, kind] = UserPtr::<[u32; 2]>::new(args[1]).read()?;
    if length == 0 || length > MOST_BYTES {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; MOST_BYTES as usize];
    user::read_exact(args[1] + HEAD, &mut bytes[..length as usize])?;
    let mount = if args.fd(0) == AT_FDCWD {
        with_process(|process| process.with_fs(FsContext::cwd)).mount
    } else {
        let file = file(args.fd(0))?;
        file.check_not_path()?;
        // Files without a place have no handles, nor have others of their kind.
        file.path().ok_or(Errno::ESTALE)?.mount.clone()
    };
    let mut words = [0; MOST_BYTES as usize / 4];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let (node, entry) = mount.file_system().by_handle(kind, &words[..length as usize / 4])?;
    let flags = (OpenFlags::from_bits_retain(args.uint(2)) & OpenFlags::KNOWN) | OpenFlags::LARGEFILE;
    let limit = with_process(Process::descriptor_limit);
    with_files(|files| {
        let descriptor = files.promise(limit)?;
        let opened = as_caller(|walk| names::open_found(walk, Path { mount, node, entry }, flags))?;
        Ok(i64::from(descriptor.keep(opened, OnExec::asked_by(flags))))
    })
}
