//! Another process' memory: process_vm_readv, process_vm_writev, /proc/PID/mem.

use freehold_machine::VirtAddr;
use freehold_vm::RemoteAccess;

use super::Space;
use crate::user::{Sink, Source};
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
