//! open, close, and other calls that make descriptors.

use freehold_collections::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{AT_FDCWD, only, path_at, process, walk_from, with_files, with_process};
use crate::fs::context::FsContext;
use crate::fs::flags::{OpenFlags, ResolveFlags};
use crate::fs::open_file::OpenFile;
use crate::fs::table::{FileTable, OnExec};
use crate::fs::walk::PathWalk;
use crate::fs::{names, root, tmpfs};
use crate::mem::hugetlb;
use crate::syscall::Args;
use crate::task::Process;
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// `struct open_how` of openat2(2).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

const RESOLVE_KNOWN: u64 = 0x1f;
/// openat2's RESOLVE_CACHED: only lookups that need no waiting. Accepted without effect: lookups
/// here need none.
const RESOLVE_CACHED: u64 = 0x20;

/// Gives `file` the caller's lowest free descriptor.
pub(super) fn install(file: Arc<OpenFile>, on_exec: OnExec) -> Result<i64> {
    let limit = with_process(Process::descriptor_limit);
    with_files(|files| files.insert(file, on_exec, limit)).map(i64::from)
}

fn open(dirfd: i32, path: u64, flags: u32, mode: u32, resolve: ResolveFlags) -> Result<i64> {
    let flags = (OpenFlags::from_bits_retain(flags) & OpenFlags::KNOWN) | OpenFlags::LARGEFILE;
    with_files(|files| open_into(files, (dirfd, path), flags, mode, resolve))
}

fn open_into(
    files: &Arc<FileTable>,
    (dirfd, path): (i32, u64),
    flags: OpenFlags,
    mode: u32,
    resolve: ResolveFlags,
) -> Result<i64> {
    // The descriptor is reserved before the file is made.
    let descriptor = files.promise(with_process(Process::descriptor_limit))?;
    let text = path_at(path)?;
    let makes = flags.contains(OpenFlags::CREAT) || flags.is_tmpfile();
    let mode =
        if makes { mode & 0o7777 & !with_process(|process| process.with_fs(FsContext::umask)) } else { 0 };
    let file = walk_from(dirfd, &text, |walk| {
        let scope;
        let start = if resolve.contains(ResolveFlags::IN_ROOT) {
            scope = with_process(|process| super::start_of(process, dirfd))?;
            &scope
        } else {
            walk.start
        };
        names::open(&PathWalk { resolve, start, ..*walk }, &text, flags, mode)
    })?;
    Ok(i64::from(descriptor.keep(file, OnExec::asked_by(flags))))
}

/// open(path, flags, mode)
pub fn sys_open(args: &Args) -> Result<i64> {
    open(AT_FDCWD, args[0], args.uint(1), args.uint(2), ResolveFlags::empty())
}

/// openat(dirfd, path, flags, mode)
pub fn sys_openat(args: &Args) -> Result<i64> {
    open(args.fd(0), args[1], args.uint(2), args.uint(3), ResolveFlags::empty())
}

/// creat(path, mode)
pub fn sys_creat(args: &Args) -> Result<i64> {
    let flags = OpenFlags::CREAT | OpenFlags::WRONLY | OpenFlags::TRUNC;
    open(AT_FDCWD, args[0], flags.bits(), args.uint(1), ResolveFlags::empty())
}

/// openat2(dirfd, path, how, size): unknown flags are errors, unlike openat's.
pub fn sys_openat2(args: &Args) -> Result<i64> {
    let size = args.size(3);
    if size < size_of::<OpenHow>() {
        return Err(Errno::EINVAL);
    }
    if size > 4096 {
        return Err(Errno::E2BIG);
    }
    let how = UserPtr::<OpenHow>::new(args[2]).read()?;
    let extra = user::read_vec(args[2] + size_of::<OpenHow>() as u64, size - size_of::<OpenHow>())?;
    if extra.iter().any(|&byte| byte != 0) {
        return Err(Errno::E2BIG);
    }
    let flags = u32::try_from(how.flags).map_err(|_| Errno::EINVAL)?;
    let known = OpenFlags::KNOWN.bits();
    let makes = OpenFlags::from_bits_retain(flags);
    let may_make = makes.contains(OpenFlags::CREAT) || makes.is_tmpfile();
    if flags & !known != 0
        || how.resolve & !(RESOLVE_KNOWN | RESOLVE_CACHED) != 0
        || how.mode & !0o7777 != 0
        || (how.mode != 0 && !may_make)
    {
        return Err(Errno::EINVAL);
    }
    let resolve = ResolveFlags::from_bits_truncate(how.resolve);
    if resolve.contains(ResolveFlags::BENEATH | ResolveFlags::IN_ROOT) {
        return Err(Errno::EINVAL);
    }
    open(args.fd(0), args[1], flags, how.mode as u32, resolve)
}

/// close(fd)
pub fn sys_close(args: &Args) -> Result<i64> {
    with_files(|files| files.close(args.fd(0))).map(|()| 0)
}

const CLOSE_RANGE_UNSHARE: u32 = 2;
const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// close_range(first, last, flags)
pub fn sys_close_range(args: &Args) -> Result<i64> {
    let (first, last, flags) = (args.uint(0), args.uint(1), args.uint(2));
    only(flags, CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC)?;
    if first > last {
        return Err(Errno::EINVAL);
    }
    let process = process();
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        // Descriptors belong to the process: a single thread of several cannot have its own.
        if process.thread_count() > 1 {
            return Err(Errno::EINVAL);
        }
        process.unshare_files()?;
    }
    let files = process.files();
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        files.set_on_exec_range(first..=last, OnExec::Close);
    } else {
        files.close_range(first..=last);
    }
    Ok(0)
}

const MFD_CLOEXEC: u32 = 1;
const MFD_ALLOW_SEALING: u32 = 2;
const MFD_HUGETLB: u32 = 4;
/// The bits with log2 of the size of huge pages.
const MFD_HUGE_SHIFT: u32 = 26;
const MFD_HUGE_MASK: u32 = 0x3f;
const MFD_NOEXEC_SEAL: u32 = 8;
const MFD_EXEC: u32 = 16;

/// memfd_create(name, flags)
pub fn sys_memfd_create(args: &Args) -> Result<i64> {
    let flags = args.uint(1);
    let is_huge = flags & MFD_HUGETLB != 0;
    let sizes = if is_huge { MFD_HUGETLB | MFD_HUGE_MASK << MFD_HUGE_SHIFT } else { 0 };
    only(flags, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL | MFD_EXEC | sizes)?;
    if flags & MFD_EXEC != 0 && flags & MFD_NOEXEC_SEAL != 0 {
        return Err(Errno::EINVAL);
    }
    // At most 249 bytes, so that "memfd:" and the name fit into NAME_MAX; the limit includes the
    // NUL.
    let name = user::bounded_string(args[0], 250, Errno::EINVAL)?;
    let process = process();
    let credentials = process.credentials();
    let mode = if flags & MFD_NOEXEC_SEAL != 0 { 0o666 } else { 0o777 };
    let node = if is_huge {
        // Linux has another error here than for mmap and shmget.
        hugetlb::check_size(u64::from(flags >> MFD_HUGE_SHIFT)).map_err(|_| Errno::ENODEV)?;
        tmpfs::unnamed_huge_file(mode, credentials.fsuid, credentials.fsgid)?
    } else {
        tmpfs::unnamed_file(mode, credentials.fsuid, credentials.fsgid)?
    };
    if flags & MFD_NOEXEC_SEAL != 0 {
        node.allow_sealing(tmpfs::F_SEAL_EXEC);
    } else if flags & MFD_ALLOW_SEALING != 0 {
        node.allow_sealing(0);
    }
    let place = root::unnamed_place_named(node.clone(), b"memfd:", &name)?;
    let open_flags = OpenFlags::RDWR | OpenFlags::LARGEFILE;
    let file = OpenFile::new(node, Some(place), open_flags)?;
    install(file, if flags & MFD_CLOEXEC != 0 { OnExec::Close } else { OnExec::Keep })
}
