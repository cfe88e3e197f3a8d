//! splice, tee and vmsplice.
//!
//! Between two pipes whole pages are moved; to and from any other file bytes are copied once. A
//! pipe stays locked while its bytes are moved, so that no byte is lost if the other side takes
//! fewer. So the call must not wait for the other side meanwhile: it tries a stream without
//! blocking, and waits for the stream with no lock held.

use core::cmp::Ordering as Compare;

use freehold_collections::{Arc, reserve::ArcMethods};
use linux_raw_sys::general as c;

use super::ring::PipeRing;
use super::{Blocking, Pipe, PipeEnd};
use crate::fs::{NodeKind, OpenFile, Ready, Seekable, anonymous};
use crate::sync::{MutexGuard, News, PollWaiter, Slept};
use crate::syscall::Args;
use crate::user::{Iovecs, UserPtr, so_far};
use crate::{Errno, Result, sched};

const KNOWN_FLAGS: u32 = c::SPLICE_F_MOVE | c::SPLICE_F_NONBLOCK | c::SPLICE_F_MORE | c::SPLICE_F_GIFT;

fn blocking(file: &OpenFile, flags: u32) -> Blocking {
    if flags & c::SPLICE_F_NONBLOCK != 0 { Blocking::Never } else { file.blocking() }
}

/// Waits until there are bytes to take. Returns `Ok(false)` at the end of the file.
fn wait_for_bytes(pipe: &Pipe, blocking: Blocking) -> Result<bool> {
    loop {
        let writers = pipe.has_writers();
        if !pipe.is_empty() {
            return Ok(true);
        }
        if !writers {
            return Ok(false);
        }
        if blocking == Blocking::Never {
            return Err(Errno::EAGAIN);
        }
        pipe.readable.wait_until(|| (!pipe.is_empty() || !pipe.has_writers()).then_some(()))?;
    }
}

fn wait_for_room(pipe: &Pipe, blocking: Blocking) -> Result<()> {
    loop {
        if !pipe.has_readers() {
            crate::task::signal_broken_pipe();
            return Err(Errno::EPIPE);
        }
        if pipe.has_room() {
            return Ok(());
        }
        if blocking == Blocking::Never {
            return Err(Errno::EAGAIN);
        }
        pipe.writable.wait_until(|| (pipe.has_room() || !pipe.has_readers()).then_some(()))?;
    }
}

/// Waits until a file that is no pipe is ready for `events`. Otherwise returns the reason.
fn wait_for_file(file: &OpenFile, events: Ready, deadline: Option<u64>) -> Result<()> {
    let awaited = (events | Ready::ERR | Ready::HUP | Ready::RDHUP).reported(u32::MAX);
    loop {
        sched::rest();
        let mut waiter = PollWaiter::new();
        if file.file().poll(Some(&mut waiter)).reported(awaited) != 0 {
            return if crate::task::current().signal_pending() { Err(Errno::ERESTARTSYS) } else { Ok(()) };
        }
        if waiter.sleep(deadline)? == Slept::TimedOut {
            return Err(Errno::EAGAIN);
        }
    }
}

/// Returns how a step accesses the other side while the pipe is locked.
fn patience_of(file: &OpenFile) -> Blocking {
    // A file that is no stream waits at most for a disk.
    if stream_of(file) { Blocking::Never } else { file.blocking() }
}

/// Whether a call waits for the other side after a step found it not ready.
fn waits_for(file: &OpenFile) -> bool {
    stream_of(file) && file.blocking() == Blocking::Wait
}

/// Locks both pipes, always in the same order.
fn lock_pair<'a>(
    from: &'a Arc<Pipe>,
    to: &'a Arc<Pipe>,
) -> Result<(MutexGuard<'a, PipeRing>, MutexGuard<'a, PipeRing>)> {
    Ok(match from.address().cast::<u8>().cmp(&to.address().cast::<u8>()) {
        Compare::Less => {
            let from = from.ring.lock_killable()?;
            (from, to.ring.lock_killable()?)
        }
        _ => {
            let to = to.ring.lock_killable()?;
            (from.ring.lock_killable()?, to)
        }
    })
}

/// How bytes are transferred from one pipe to another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transfer {
    Move,
    Copy,
}

fn between(
    from: &Arc<Pipe>,
    to: &Arc<Pipe>,
    length: usize,
    transfer: Transfer,
    blocking: Blocking,
) -> Result<usize> {
    if from.is_same(to) {
        return Err(Errno::EINVAL);
    }
    loop {
        if !wait_for_bytes(from, blocking)? {
            return Ok(0);
        }
        wait_for_room(to, blocking)?;
        let (mut source, mut sink) = lock_pair(from, to)?;
        let mut done = 0;
        let mut index = 0;
        let mut result = Ok(0);
        while done < length && sink.has_room() && index < source.pages() {
            result = match transfer {
                Transfer::Move => source.give(&mut sink, length - done),
                Transfer::Copy => source.copy(index, &mut sink, length - done),
            };
            match result {
                Ok(count) => done += count,
                Err(_) => break,
            }
            index += usize::from(transfer == Transfer::Copy);
        }
        from.publish(&source);
        to.publish(&sink);
        drop((source, sink));
        if transfer == Transfer::Move {
            from.writable.announce(News::Room);
        }
        to.readable.announce(News::Input);
        match result {
            Err(error) if done == 0 => return Err(error),
            _ if done == 0 => {}
            _ => return Ok(done),
        }
    }
}

/// Takes up to `length` bytes out of the pipe, to `to` at `offset`. Returns `None` if another
/// reader took all bytes before.
fn drain(pipe: &Pipe, length: usize, (to, offset): (&OpenFile, &mut u64)) -> Result<Option<usize>> {
    let (mut done, deadline) = (0, to.file().write_deadline());
    while done < length && !pipe.is_empty() {
        let mut ring = pipe.ring.lock_killable()?;
        let was_empty = ring.pages() == 0;
        let result = ring.pop_with(length - done, &mut |bytes| {
            let count = to.file().write_at(*offset, bytes, patience_of(to))?;
            *offset += count as u64;
            Ok(count)
        });
        pipe.publish(&ring);
        drop(ring);
        // Edge-triggered observers are notified of room even if there was room before.
        pipe.writable.announce(News::Room);
        match result {
            Ok(0) if was_empty => break,
            Ok(0) => return Ok(Some(done)),
            Ok(count) => done += count,
            Err(Errno::EAGAIN) if waits_for(to) => {
                if let Err(error) = wait_for_file(to, Ready::OUT, deadline) {
                    return so_far(done, error).map(Some);
                }
            }
            Err(error) => return so_far(done, error).map(Some),
        }
    }
    Ok((done > 0).then_some(done))
}

/// Puts up to `length` bytes of `from`, at `offset`, into the pipe, as far as there is room.
/// Returns `None` if there is none.
fn fill(pipe: &Pipe, length: usize, (from, offset): (&OpenFile, &mut u64)) -> Result<Option<usize>> {
    let mut done = 0;
    while done < length {
        let mut ring = pipe.ring.lock_killable()?;
        if !ring.has_room() {
            return Ok((done > 0).then_some(done));
        }
        let result = ring.push_with(length - done, &mut |bytes| {
            let count = from.file().read_at(*offset, bytes, patience_of(from))?;
            *offset += count as u64;
            Ok(count)
        });
        pipe.publish(&ring);
        drop(ring);
        pipe.readable.announce(News::Input);
        match result {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) => return so_far(done, error).map(Some),
        }
    }
    Ok(Some(done))
}

fn stream_of(file: &OpenFile) -> bool {
    file.file().seekable() == Seekable::Stream
}

/// Checks that the file can be spliced: no directory, and none without a name that is neither pipe
/// nor socket (Linux: without `splice_read` and `splice_write`).
fn check_kind(file: &OpenFile) -> Result<()> {
    let node = file.node();
    let is_nameless = || node.identity().device == anonymous::DEVICE;
    match node.kind() {
        NodeKind::Directory => Err(Errno::EINVAL),
        NodeKind::Regular if is_nameless() => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// Checks that no offset is given for a stream.
fn check_offset(file: &OpenFile, own: UserPtr<u64>) -> Result<()> {
    if stream_of(file) && !own.is_null() { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Runs `move_bytes` with the offset of the call's argument or, without one, the description's
/// offset.
fn with_offset<R>(
    file: &OpenFile,
    own: UserPtr<u64>,
    move_bytes: impl FnOnce(&mut u64) -> Result<R>,
) -> Result<R> {
    if stream_of(file) {
        return move_bytes(&mut 0);
    }
    if own.is_null() {
        return file.with_offset(move_bytes);
    }
    let mut offset = own.read()?;
    if i64::try_from(offset).is_err() {
        return Err(Errno::EINVAL);
    }
    let moved = move_bytes(&mut offset)?;
    own.write(&offset)?;
    Ok(moved)
}

/// Notifies watches that `count` bytes were moved from one file to the other.
fn told(from: &OpenFile, to: &OpenFile, count: usize) -> i64 {
    from.has_read(count);
    to.has_written(count);
    count as i64
}

/// Moves bytes from a pipe to a file that is no pipe.
fn into_file(
    source: &Pipe,
    (to, to_offset): (&OpenFile, UserPtr<u64>),
    length: usize,
    wait: Blocking,
) -> Result<usize> {
    check_offset(to, to_offset)?;
    check_kind(to)?;
    to.file().drop_rights()?;
    // While the offset is locked nothing waits. The call waits for bytes before that, and again.
    loop {
        if !wait_for_bytes(source, wait)? {
            return Ok(0);
        }
        if let Some(count) = with_offset(to, to_offset, |offset| drain(source, length, (to, offset)))? {
            return Ok(count);
        }
    }
}

/// Moves bytes from a file that is no pipe to a pipe.
fn from_file(
    (from, from_offset): (&OpenFile, UserPtr<u64>),
    sink: &Pipe,
    length: usize,
    wait: Blocking,
) -> Result<usize> {
    check_offset(from, from_offset)?;
    check_kind(from)?;
    let deadline = from.file().read_deadline();
    loop {
        wait_for_room(sink, wait)?;
        match with_offset(from, from_offset, |offset| fill(sink, length, (from, offset))) {
            Ok(Some(count)) => return Ok(count),
            // Another writer took the room that was there.
            Ok(None) => {}
            // A stream gives the bytes that it has. The call waits only for the first ones.
            Err(Errno::EAGAIN) if waits_for(from) => wait_for_file(from, Ready::IN, deadline)?,
            Err(error) => return Err(error),
        }
    }
}

/// splice(2).
///
/// # Errors
/// As in the manual.
pub fn sys_splice(args: &Args) -> Result<i64> {
    let (length, flags) = (args[4] as usize, args[5] as u32);
    if flags & !KNOWN_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let files = crate::task::current().process().files();
    let (from, to) = (files.get(args.fd(0))?, files.get(args.fd(2))?);
    from.check_readable()?;
    from.will_read()?;
    to.check_writable()?;
    let (from_offset, to_offset) = (UserPtr::<u64>::new(args[1]), UserPtr::<u64>::new(args[3]));
    if length == 0 {
        return Ok(0);
    }
    let length = length.min(crate::user::MAX_COUNT);
    let count = match (PipeEnd::pipe_of(&from), PipeEnd::pipe_of(&to)) {
        (Some(source), Some(sink)) => {
            if !from_offset.is_null() || !to_offset.is_null() {
                return Err(Errno::ESPIPE);
            }
            let wait = match blocking(&from, flags) {
                Blocking::Wait => blocking(&to, flags),
                Blocking::Never => Blocking::Never,
            };
            between(source, sink, length, Transfer::Move, wait)
        }
        (Some(source), None) => {
            if !from_offset.is_null() {
                return Err(Errno::ESPIPE);
            }
            if to.flags().contains(crate::fs::OpenFlags::APPEND) {
                return Err(Errno::EINVAL);
            }
            into_file(source, (&to, to_offset), length, blocking(&from, flags))
        }
        (None, Some(sink)) => {
            if !to_offset.is_null() {
                return Err(Errno::ESPIPE);
            }
            from_file((&from, from_offset), sink, length, blocking(&to, flags))
        }
        (None, None) => Err(Errno::EINVAL),
    }?;
    Ok(told(&from, &to, count))
}

/// tee(2).
///
/// # Errors
/// As in the manual.
pub fn sys_tee(args: &Args) -> Result<i64> {
    let (length, flags) = (args[2] as usize, args[3] as u32);
    if flags & !KNOWN_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let files = crate::task::current().process().files();
    let (from, to) = (files.get(args.fd(0))?, files.get(args.fd(1))?);
    from.check_readable()?;
    from.will_read()?;
    to.check_writable()?;
    let (Some(source), Some(sink)) = (PipeEnd::pipe_of(&from), PipeEnd::pipe_of(&to)) else {
        return Err(Errno::EINVAL);
    };
    if length == 0 {
        return Ok(0);
    }
    let wait = match blocking(&from, flags) {
        Blocking::Wait => blocking(&to, flags),
        Blocking::Never => Blocking::Never,
    };
    between(source, sink, length, Transfer::Copy, wait).map(|count| count as i64)
}

/// vmsplice(2). Into a pipe: the program's pages themselves, pinned until they are read. Out of a
/// pipe: copies.
///
/// # Errors
/// As in the manual.
pub fn sys_vmsplice(args: &Args) -> Result<i64> {
    let flags = args[3] as u32;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let file = crate::task::current().process().files().get(args.fd(0))?;
    let pipe = PipeEnd::pipe_of(&file).ok_or(Errno::EBADF)?;
    let mut memory = Iovecs::read(args[1], args[2] as usize)?;
    let wait = blocking(&file, flags);
    let count =
        if file.flags().writes() { lend(pipe, &mut memory, wait)? } else { pipe.read(&mut memory, wait)? };
    Ok(count as i64)
}

fn lend(pipe: &Pipe, memory: &mut Iovecs, wait: Blocking) -> Result<usize> {
    pipe.take(&mut super::Offer::Lent(super::lend::Lender::new(memory)), wait)
}
