//! process_vm_readv, process_vm_writev and process_madvise.

use freehold_collections::{Arc, reserve::ArcMethods};
use freehold_machine::VirtAddr;
use freehold_vm::Rule;

use crate::mem::{ProcessSpace, read_space, write_space};
use crate::syscall::Args;
use crate::task::inspect::{self, Mode};
use crate::task::{self, Capability, pidfd, registry};
use crate::user::Iovecs;
use crate::{Errno, Result, sched};

/// process_vm_readv(pid, local, count, remote, count, flags)
pub fn sys_process_vm_readv(args: &Args) -> Result<i64> {
    remote_runs(args, |space, address, length, local| read_space(space, address, length, Rule::Stated, local))
}

/// process_vm_writev(pid, local, count, remote, count, flags)
pub fn sys_process_vm_writev(args: &Args) -> Result<i64> {
    remote_runs(args, |space, address, length, local| {
        write_space(space, address, length, Rule::Stated, local)
    })
}

/// Calls `transfer` for each run of the other process, until it transfers less than the whole run.
fn remote_runs(
    args: &Args,
    mut transfer: impl FnMut(&ProcessSpace, VirtAddr, usize, &mut Iovecs) -> Result<usize>,
) -> Result<i64> {
    if args[5] != 0 {
        return Err(Errno::EINVAL);
    }
    let mut local = Iovecs::read(args[1], args[2] as usize)?;
    if local.is_empty() {
        return Ok(0);
    }
    let remote = Iovecs::read_remote(args[3], args[4] as usize)?;
    let space = space_of(args.int(0), Mode::ATTACH_REAL, Errno::ESRCH)?;
    let mut done = 0;
    for (address, length) in remote.slices().iter().map(|slice| slice.place()).filter(|place| place.1 > 0) {
        match transfer(&space, VirtAddr(address), length, &mut local) {
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

/// Advice that a process may give about another's memory, because it changes no bytes
/// (MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT, MADV_COLLAPSE).
const REMOTE_ADVICE: [i32; 4] = [3, 20, 21, 25];

/// process_madvise(pidfd, runs, count, advice, flags): returns the number of bytes processed.
pub fn sys_process_madvise(args: &Args) -> Result<i64> {
    if args.uint(4) != 0 {
        return Err(Errno::EINVAL);
    }
    let runs = Iovecs::read(args[1], args[2] as usize)?;
    let process = pidfd::process_of(args.fd(0))?;
    // Linux' mm_access returns EACCES in cases where other inspections are EPERM.
    let denied = |error| if error == Errno::EPERM { Errno::EACCES } else { error };
    let space = inspect::space_of(&process, Mode::READ_FS).map_err(denied)?;
    let number = args.int(3);
    if !space.is_same(&super::current_space()) {
        if !REMOTE_ADVICE.contains(&number) {
            return Err(Errno::EINVAL);
        }
        if !task::may(Capability::SysNice) {
            return Err(Errno::EPERM);
        }
    }
    let mut done = 0;
    for (address, length) in runs.slices().iter().map(|slice| slice.place()) {
        match super::take_advice(&space, address, length as u64, number) {
            Ok(()) => done += length as i64,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
        sched::checkpoint()?;
    }
    Ok(done)
}

/// Returns the memory of the process that has a thread with this number, for a caller that may
/// inspect it in this mode.
///
/// # Errors
/// `ESRCH` if there is none, `EPERM`, and `ended` for a process that no longer has memory.
pub(super) fn space_of(pid: i32, mode: Mode, ended: Errno) -> Result<Arc<ProcessSpace>> {
    let pid = u32::try_from(pid).map_err(|_| Errno::ESRCH)?;
    let process = registry::find_by_number(pid)
        .or_else(|| registry::find_task_by_number(pid).map(|task| task.process().clone()))
        .ok_or(Errno::ESRCH)?;
    inspect::space_of(&process, mode).map_err(|error| if error == Errno::ESRCH { ended } else { error })
}
