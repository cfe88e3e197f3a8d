//! sendfile and copy_file_range: bytes from file to file through one kernel buffer.

use freehold_collections::Vec;

use super::file;
use crate::fs::bytes::{SliceSource, VecSink};
use crate::fs::file::Seekable;
use crate::fs::node::NodeKind;
use crate::fs::open_file::{MAX_COUNT, OpenFile};
use crate::syscall::Args;
use crate::user::UserPtr;
use crate::{Errno, Result};

const BUFFER: usize = 64 * 1024;

/// The position of one side of a copy: an offset from the caller, or the offset of the description.
#[derive(Clone, Copy)]
enum At {
    Own(u64),
    Description,
}

impl At {
    fn new(offset: Option<i64>) -> Result<Self> {
        match offset {
            None => Ok(Self::Description),
            Some(offset) => u64::try_from(offset).map(Self::Own).map_err(|_| Errno::EINVAL),
        }
    }

    /// Fills `buffer`, up to `most` bytes or its capacity.
    fn read(&mut self, file: &OpenFile, buffer: &mut Vec<u8>, most: usize) -> Result<usize> {
        buffer.truncate(0);
        let mut sink = VecSink::new(buffer, most);
        match self {
            Self::Description => file.read(&mut sink),
            Self::Own(offset) => {
                let n = file.read_at(*offset, &mut sink)?;
                *offset += n as u64;
                Ok(n)
            }
        }
    }

    /// Moves the offset back by `n` bytes that the other side did not take.
    fn back(&mut self, file: &OpenFile, n: usize) {
        match self {
            Self::Own(offset) => *offset -= n as u64,
            Self::Description => file.with_offset(|offset| *offset = offset.saturating_sub(n as u64)),
        }
    }

    fn write(&mut self, file: &OpenFile, bytes: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let mut source = SliceSource::new(&bytes[done..]);
            let step = match self {
                Self::Description => file.write(&mut source),
                Self::Own(offset) => file.write_at(*offset, &mut source).inspect(|&n| *offset += n as u64),
            };
            match step {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

/// Copies up to `count` bytes; an error only if nothing was copied.
fn copy(from: &OpenFile, source: &mut At, to: &OpenFile, target: &mut At, count: usize) -> Result<usize> {
    let count = count.min(MAX_COUNT);
    let len = count.min(BUFFER);
    let mut buffer = Vec::try_with_capacity(len)?;
    let mut done = 0;
    while done < count {
        let want = (count - done).min(len);
        let step = source.read(from, &mut buffer, want).and_then(|read| {
            let written = target.write(to, &buffer[..read]);
            let taken = written.as_ref().copied().unwrap_or(0);
            if taken < read {
                source.back(from, read - taken);
            }
            written.map(|written| (read, written))
        });
        match step {
            Ok((read, written)) => {
                done += written;
                if read == 0 || written < read {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
        if crate::sched::checkpoint().is_err() {
            break;
        }
    }
    Ok(done)
}

fn write_back(pointer: UserPtr<i64>, at: At) -> Result<()> {
    match at {
        At::Own(offset) => pointer.write(&(offset as i64)),
        At::Description => Ok(()),
    }
}

/// sendfile(out, in, offset, count)
pub fn sys_sendfile(args: &Args) -> Result<i64> {
    let (to, from) = (file(args.fd(0))?, file(args.fd(1))?);
    let pointer = UserPtr::<i64>::new(args[2]);
    let mut source = At::new(pointer.read_optional()?)?;
    from.check_readable()?;
    to.check_writable()?;
    if from.file().seekable() == Seekable::Stream || from.node().kind() == NodeKind::Directory {
        return Err(if pointer.is_null() { Errno::EINVAL } else { Errno::ESPIPE });
    }
    let copied = copy(&from, &mut source, &to, &mut At::Description, args.size(3))?;
    write_back(pointer, source)?;
    Ok(copied as i64)
}

/// copy_file_range(in, in offset, out, out offset, count, flags)
pub fn sys_copy_file_range(args: &Args) -> Result<i64> {
    if args.uint(5) != 0 {
        return Err(Errno::EINVAL);
    }
    let (from, to) = (file(args.fd(0))?, file(args.fd(2))?);
    let (source_pointer, target_pointer) = (UserPtr::<i64>::new(args[1]), UserPtr::<i64>::new(args[3]));
    let mut source = At::new(source_pointer.read_optional()?)?;
    let mut target = At::new(target_pointer.read_optional()?)?;
    from.check_readable()?;
    to.check_writable()?;
    for node in [from.node(), to.node()] {
        match node.kind() {
            NodeKind::Regular => {}
            NodeKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
    }
    if to.flags().contains(crate::fs::OpenFlags::APPEND) {
        return Err(Errno::EBADF);
    }
    if from.node().identity() == to.node().identity() {
        let start =
            |at: &At, file: &OpenFile| if let At::Own(offset) = at { Ok(*offset) } else { file.position() };
        let (a, b, len) = (start(&source, &from)?, start(&target, &to)?, args[4]);
        if a < b.saturating_add(len) && b < a.saturating_add(len) {
            return Err(Errno::EINVAL);
        }
    }
    let copied = copy(&from, &mut source, &to, &mut target, args.size(4))?;
    write_back(source_pointer, source)?;
    write_back(target_pointer, target)?;
    Ok(copied as i64)
}
