//! Access to another process' memory, through pins: for process_vm_readv, process_vm_writev,
//! /proc/PID/mem, and results of requests that another task finishes.

use freehold_machine::VirtAddr;
use freehold_vm::{Purpose, ReadOnly, ReadWrite, Rule, Transient};
use zerocopy::{Immutable, IntoBytes};

use super::{ForeignWindows, PinnedRun, ProcessSpace};
use crate::fs::bytes::SliceSource;
use crate::user::{self, Sink, Source, UserPtr, so_far};
use crate::{Errno, Result, sched};

/// Number of bytes that are pinned at a time.
const BATCH: usize = 64 << 10;

/// Copies `len` bytes at `address` of `space` to `sink`. Returns the number of bytes read; `EFAULT`
/// if none.
pub fn read_space(
    space: &ProcessSpace,
    address: VirtAddr,
    len: usize,
    rule: Rule,
    sink: &mut dyn Sink,
) -> Result<usize> {
    let len = len.min(sink.remaining());
    in_batches(space, address, len, rule, |pinned: &PinnedRun<ReadOnly>| pinned.give(sink))
}

/// Copies `len` bytes of `source` to `address` of `space`. Returns the number of bytes written;
/// `EFAULT` if none.
pub fn write_space(
    space: &ProcessSpace,
    address: VirtAddr,
    len: usize,
    rule: Rule,
    source: &mut dyn Source,
) -> Result<usize> {
    let len = len.min(source.remaining());
    in_batches(space, address, len, rule, |pinned: &PinnedRun<ReadWrite>| pinned.take(source))
}

/// A program's memory, for results: the running program's, or that of a program whose request
/// another task finishes.
pub trait ProgramMemory {
    /// Writes all of `bytes` to `address`; may sleep.
    ///
    /// # Errors
    /// `EFAULT`.
    fn write_exact(&self, address: u64, bytes: &[u8]) -> Result<()>;

    /// Writes `value` to `address`; may sleep.
    ///
    /// # Errors
    /// `EFAULT`.
    #[inline]
    fn write<T: IntoBytes + Immutable>(&self, address: u64, value: &T) -> Result<()> {
        self.write_exact(address, value.as_bytes())
    }
}

/// The memory of the running program.
pub struct OwnMemory;

impl ProgramMemory for OwnMemory {
    #[inline]
    fn write_exact(&self, address: u64, bytes: &[u8]) -> Result<()> {
        user::write_exact(address, bytes)
    }

    #[inline]
    fn write<T: IntoBytes + Immutable>(&self, address: u64, value: &T) -> Result<()> {
        UserPtr::new(address).write(value)
    }
}

impl ProgramMemory for ProcessSpace {
    fn write_exact(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let mut source = SliceSource::new(bytes);
        let written = write_space(self, VirtAddr(address), bytes.len(), Rule::Asked, &mut source)?;
        if written == bytes.len() { Ok(()) } else { Err(Errno::EFAULT) }
    }
}

/// Pins `len` bytes at `address` of `space`, a batch at a time, and calls `transfer` for each batch
/// without the lock, until it moves less. An error is reported only before the first byte.
fn in_batches<P: Purpose>(
    space: &ProcessSpace,
    address: VirtAddr,
    len: usize,
    rule: Rule,
    mut transfer: impl FnMut(&PinnedRun<P>) -> Result<usize>,
) -> Result<usize> {
    let _foreign = ForeignWindows::begin();
    let mut done = 0;
    while done < len {
        if let Err(error) = sched::checkpoint() {
            return so_far(done, error);
        }
        let at = address.0.checked_add(done as u64).ok_or(Errno::EFAULT);
        let run = at.and_then(|at| PinnedRun::new::<Transient>(space, at, BATCH.min(len - done), rule));
        let moved = run.and_then(|run| transfer(&run).map(|moved| (moved, run.len())));
        match moved {
            Ok((moved, pinned)) if moved < pinned => return Ok(done + moved),
            Ok((moved, _)) => done += moved,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}
