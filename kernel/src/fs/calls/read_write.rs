//! read, write and their kin.

use core::ops::Deref;
use core::sync::atomic::Ordering;

use freehold_collections::Arc;

use crate::fs::anonymous::AnonymousNode;
use crate::fs::node::NodeKind;
use crate::fs::open_file::{OpenFile, Whence};
use crate::syscall::Args;
use crate::task::{self, Task};
use crate::user::{Iovecs, Sink, Source, UserSlice};
use crate::{Errno, Result};

/// RWF_HIPRI, RWF_DSYNC, RWF_SYNC: hints, or guarantees that files in memory give anyway.
const RWF_IGNORED: u32 = 0x1 | 0x2 | 0x4;
const RWF_NOWAIT: u32 = 0x8;
const RWF_APPEND: u32 = 0x10;

/// An open file and the thread that uses it, both looked up once.
struct Open {
    task: Arc<Task>,
    file: Arc<OpenFile>,
}

impl Deref for Open {
    type Target = OpenFile;
    fn deref(&self) -> &OpenFile {
        &self.file
    }
}

/// Direction of a transfer that /proc/PID/io counts.
#[derive(Clone, Copy)]
enum IoDirection {
    Read = 0,
    Write = 1,
}

// Inlined in all callers: each read and write passes here.
#[inline(always)]
fn open(fd: i32) -> Result<Open> {
    let task = task::current();
    let file = task.with_files(|files| files.get(fd))?;
    Ok(Open { task, file })
}

impl Open {
    fn counted(&self, direction: IoDirection, result: Result<usize>) -> Result<i64> {
        let n = result?;
        let io = &self.task.io;
        io[direction as usize].fetch_add(n as u64, Ordering::Relaxed);
        io[direction as usize + 2].fetch_add(1, Ordering::Relaxed);
        Ok(n as i64)
    }
}

fn read(file: &Open, sink: &mut dyn Sink) -> Result<i64> {
    file.counted(IoDirection::Read, file.read(sink))
}

fn write(file: &Open, source: &mut dyn Source) -> Result<i64> {
    file.check_writable()?;
    file.counted(IoDirection::Write, file.write(source))
}

fn read_from(file: &Open, offset: i64, sink: &mut dyn Sink) -> Result<i64> {
    let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
    file.counted(IoDirection::Read, file.read_at(offset, sink).map_err(|error| offset_error(file, error)))
}

/// Returns the error of a transfer at an offset that met `error`. A stream has no offsets,
/// whichever end it is, and that error comes first (Linux: FMODE_PREAD before FMODE_READ).
#[cold]
fn offset_error(file: &Open, error: Errno) -> Errno {
    if error == Errno::EBADF { file.check_seekable().err().unwrap_or(error) } else { error }
}

fn write_to(file: &Open, offset: i64, source: &mut dyn Source) -> Result<i64> {
    let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
    file.check_writable().map_err(|error| offset_error(file, error))?;
    file.counted(IoDirection::Write, file.write_at(offset, source))
}

/// read(fd, buffer, count)
pub fn sys_read(args: &Args) -> Result<i64> {
    read(&open(args.fd(0))?, &mut UserSlice::new(args[1], args.size(2)))
}

/// write(fd, buffer, count)
pub fn sys_write(args: &Args) -> Result<i64> {
    write(&open(args.fd(0))?, &mut UserSlice::new(args[1], args.size(2)))
}

/// pread64(fd, buffer, count, offset)
pub fn sys_pread64(args: &Args) -> Result<i64> {
    read_from(&open(args.fd(0))?, args.long(3), &mut UserSlice::new(args[1], args.size(2)))
}

/// pwrite64(fd, buffer, count, offset)
pub fn sys_pwrite64(args: &Args) -> Result<i64> {
    write_to(&open(args.fd(0))?, args.long(3), &mut UserSlice::new(args[1], args.size(2)))
}

/// readv(fd, iovecs, count)
pub fn sys_readv(args: &Args) -> Result<i64> {
    let file = open(args.fd(0))?;
    read(&file, &mut Iovecs::read(args[1], args.size(2))?)
}

/// writev(fd, iovecs, count)
pub fn sys_writev(args: &Args) -> Result<i64> {
    let file = open(args.fd(0))?;
    write(&file, &mut Iovecs::read(args[1], args.size(2))?)
}

/// preadv(fd, iovecs, count, offset low, offset high)
pub fn sys_preadv(args: &Args) -> Result<i64> {
    let file = open(args.fd(0))?;
    read_from(&file, args.long(3), &mut Iovecs::read(args[1], args.size(2))?)
}

/// pwritev(fd, iovecs, count, offset low, offset high)
pub fn sys_pwritev(args: &Args) -> Result<i64> {
    let file = open(args.fd(0))?;
    write_to(&file, args.long(3), &mut Iovecs::read(args[1], args.size(2))?)
}

/// preadv2(fd, iovecs, count, offset low, offset high, flags); offset -1 means the offset of the
/// description.
pub fn sys_preadv2(args: &Args) -> Result<i64> {
    if args.uint(5) & !(RWF_IGNORED | RWF_NOWAIT) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if args.long(3) == -1 { sys_readv(args) } else { sys_preadv(args) }
}

/// pwritev2(fd, iovecs, count, offset low, offset high, flags); offset -1 means the offset of the
/// description.
pub fn sys_pwritev2(args: &Args) -> Result<i64> {
    let flags = args.uint(5);
    if flags & !(RWF_IGNORED | RWF_NOWAIT | RWF_APPEND) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if flags & RWF_APPEND != 0 {
        let file = open(args.fd(0))?;
        file.check_writable()?;
        let mut source = Iovecs::read(args[1], args.size(2))?;
        return file.counted(IoDirection::Write, file.append(&mut source));
    }
    if args.long(3) == -1 { sys_writev(args) } else { sys_pwritev(args) }
}

/// lseek(fd, offset, whence)
pub fn sys_lseek(args: &Args) -> Result<i64> {
    let file = open(args.fd(0))?;
    let whence = match args.uint(2) {
        0 => Whence::Set,
        1 => Whence::Current,
        2 => Whence::End,
        3 => Whence::Data,
        4 => Whence::Hole,
        _ => return Err(Errno::EINVAL),
    };
    file.seek(args.long(1), whence).map(|offset| offset as i64)
}

/// fsync(fd)
pub fn sys_fsync(args: &Args) -> Result<i64> {
    let file = open(args.fd(0))?;
    file.check_not_path()?;
    file.file.file().sync().map(|()| 0)
}

/// fdatasync(fd)
pub fn sys_fdatasync(args: &Args) -> Result<i64> {
    sys_fsync(args)
}

/// sync_file_range(fd, offset, bytes, flags)
pub fn sys_sync_file_range(args: &Args) -> Result<i64> {
    if args.uint(3) & !7 != 0 || args.long(1) < 0 || args.long(2) < 0 {
        return Err(Errno::EINVAL);
    }
    let file = open(args.fd(0))?;
    if !matches!(file.node().kind(), NodeKind::Regular | NodeKind::Directory | NodeKind::BlockDevice) {
        return Err(Errno::ESPIPE);
    }
    file.file.file().sync().map(|()| 0)
}

/// readahead(fd, offset, count) and fadvise64(fd, offset, length, advice): hints.
pub fn sys_readahead(args: &Args) -> Result<i64> {
    let file = open(args.fd(0))?;
    file.check_readable()?;
    let node = file.node();
    let any: &dyn core::any::Any = &*node;
    // A nameless file without pages, such as an eventfd, is not a regular file on Linux.
    if node.kind() == NodeKind::Regular && !any.is::<AnonymousNode>() { Ok(0) } else { Err(Errno::EINVAL) }
}

/// fadvise64(fd, offset, length, advice)
pub fn sys_fadvise64(args: &Args) -> Result<i64> {
    let file = open(args.fd(0))?;
    if file.node().kind() == NodeKind::Fifo {
        return Err(Errno::ESPIPE);
    }
    if args.long(2) < 0 || args.uint(3) > 5 { Err(Errno::EINVAL) } else { Ok(0) }
}
