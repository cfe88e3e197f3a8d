//! Another process' memory: process_vm_readv, process_vm_writev, /proc/PID/mem.

use alloc::sync::Arc;

use freehold_machine::VirtAddr;
use freehold_vm::RemoteAccess;

use super::Space;
use crate::syscall::Args;
use crate::task::{self, registry};
use crate::user::{Iovecs, Sink, Source};
use crate::{Errno, Result};

/// Copied per step: small enough for a kernel stack, large enough to amortise the lock.
const STEP: usize = 1024;

/// Copy `len` bytes at `addr` of `space` to `sink`; returns how many could be read. `EFAULT` if none.
pub fn read_space(
    space: &Space,
    addr: VirtAddr,
    len: usize,
    access: RemoteAccess,
    sink: &mut dyn Sink,
) -> Result<usize> {
    let mut buffer = [0; STEP];
    let mut done = 0;
    while done < len && sink.remaining() > 0 {
        let want = STEP.min(len - done).min(sink.remaining());
        let from = addr.checked_add(done as u64).ok_or(Errno::EFAULT)?;
        let mut filled = 0;
        // Our own lock must not be held while the sink faults, so bytes rest in the buffer between the two.
        let outcome = space.lock().access_remote(from, want, access, |bytes| {
            buffer[filled..filled + bytes.len()].copy_from_slice(bytes);
            filled += bytes.len();
            bytes.len()
        });
        if filled == 0 {
            return if done > 0 {
                Ok(done)
            } else {
                Err(outcome.map_or_else(Errno::from, |_| Errno::EFAULT))
            };
        }
        let put = sink.put(&buffer[..filled]);
        match put {
            Ok(n) => done += n,
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
        if outcome.is_err() {
            return Ok(done);
        }
    }
    Ok(done)
}

/// Copy `len` bytes of `source` to `addr` of `space`; returns how many could be written. `EFAULT` if none.
pub fn write_space(
    space: &Space,
    addr: VirtAddr,
    len: usize,
    access: RemoteAccess,
    source: &mut dyn Source,
) -> Result<usize> {
    let mut buffer = [0; STEP];
    let mut done = 0;
    while done < len && source.remaining() > 0 {
        let want = STEP.min(len - done).min(source.remaining());
        let taken = match source.take(&mut buffer[..want]) {
            Ok(n) => n,
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        };
        let to = addr.checked_add(done as u64).ok_or(Errno::EFAULT)?;
        let mut copied = 0;
        let outcome = space.lock().access_remote(to, taken, access, |bytes| {
            bytes.copy_from_slice(&buffer[copied..copied + bytes.len()]);
            copied += bytes.len();
            bytes.len()
        });
        done += copied;
        if copied < taken {
            return if done > 0 {
                Ok(done)
            } else {
                Err(outcome.map_or_else(Errno::from, |_| Errno::EFAULT))
            };
        }
    }
    Ok(done)
}

/// process_vm_readv(pid, local, count, remote, count, flags)
pub fn sys_process_vm_readv(args: &Args) -> Result<i64> {
    let mut local = Iovecs::read(args[1], args[2] as usize)?;
    remote_runs(args, |space, address, length| {
        read_space(space, address, length, RemoteAccess::Read, &mut local)
    })
}

/// process_vm_writev(pid, local, count, remote, count, flags)
pub fn sys_process_vm_writev(args: &Args) -> Result<i64> {
    let mut local = Iovecs::read(args[1], args[2] as usize)?;
    remote_runs(args, |space, address, length| {
        write_space(space, address, length, RemoteAccess::Write, &mut local)
    })
}

/// Have `transfer` deal with each run of the other process, until it does less than it was asked for.
fn remote_runs(
    args: &Args,
    mut transfer: impl FnMut(&Space, VirtAddr, usize) -> Result<usize>,
) -> Result<i64> {
    if args[5] != 0 {
        return Err(Errno::EINVAL);
    }
    let remote = Iovecs::read(args[3], args[4] as usize)?;
    let space = space_of(args.int(0))?;
    let mut done = 0;
    for (address, length) in remote.slices().iter().map(|slice| slice.place()).filter(|place| place.1 > 0) {
        match transfer(&space, VirtAddr(address), length) {
            Ok(count) => {
                done += count;
                if count < length {
                    break;
                }
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done as i64)
}

/// The memory of the process with a thread of this number, for one who may look into it.
fn space_of(pid: i32) -> Result<Arc<Space>> {
    let pid = u32::try_from(pid).map_err(|_| Errno::ESRCH)?;
    let process = registry::find(pid)
        .or_else(|| registry::find_task(pid).map(|task| task.process().clone()))
        .filter(|process| process.exit_status().is_none())
        .ok_or(Errno::ESRCH)?;
    let own = task::current().process().clone();
    let (mine, theirs) = (own.credentials(), process.credentials());
    let same = [theirs.uid, theirs.euid, theirs.suid].iter().all(|&uid| uid == mine.uid);
    if own.pid == process.pid || mine.is_privileged() || same {
        Ok(process.space())
    } else {
        Err(Errno::EPERM)
    }
}
