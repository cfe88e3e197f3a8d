//! process_mrelease(2): waits until a process that was killed has released its memory.
//!
//! Linux unmaps the memory of such a process for it (`__oom_reap_task_mm`), because its threads may
//! sleep for long. Here a killed thread leaves each wait, and its process releases the memory
//! before its files. So the caller waits for that.

use freehold_collections::reserve::ArcMethods;

use super::pidfd::process_of;
use super::process::Process;
use super::registry;
use super::spawn::kernel_process;
use crate::syscall::Args;
use crate::{Errno, Result, sched};

/// Whether all threads of `process` will end.
fn ends(process: &Process) -> bool {
    process.signals.lock().exit.is_some()
}

/// process_mrelease(pidfd, flags)
///
/// # Errors
/// `EINVAL` for flags, for a process that was not killed, and for memory that is also another
/// process'; `ESRCH` if the process has no memory any more; `EBADF`; `EINTR` if the caller is
/// killed.
pub fn sys_process_mrelease(args: &Args) -> Result<i64> {
    if args.uint(1) != 0 {
        return Err(Errno::EINVAL);
    }
    let process = process_of(args.fd(0))?;
    // The memory of the kernel's own tasks, which a process has at its end.
    let none = kernel_process().space().id();
    let space = process.space();
    if process.exit_status().is_some() || space.id() == none {
        return Err(Errno::ESRCH);
    }
    if !ends(&process) {
        return Err(Errno::EINVAL);
    }
    process.forget_spaces();
    // One reference is the process', one the caller's.
    if space.references() > 2 {
        for other in registry::processes() {
            if other.space().id() == space.id() && !ends(&other) {
                return Err(Errno::EINVAL);
            }
            sched::checkpoint()?;
        }
    }
    drop(space);
    let has_released = || process.exit_status().is_some() || process.space().id() == none;
    process.ended.wait_killable(|| has_released().then_some(()))?;
    Ok(0)
}
