//! Page faults: of a program, and of the kernel on a program's address.
//!
//! Context: a task with interrupts on, with no spin lock and no address space's lock held. The
//! space's lock is taken here if the fault cannot run concurrently with others. It is released
//! before memory is reclaimed, because that may sleep for a disk or the host.

use core::sync::atomic::Ordering;

use freehold_machine::VirtAddr;
use freehold_vm::{Access, FaultError, FaultKind, SegvCode};

use super::oom::out_of_memory_inside;
use super::{Task, out_of_memory};
use crate::hw::traps;
use crate::mem::ProcessSpace;
use crate::mem::user_faults::{FaultBy, Outcome, queue_fault};
use crate::task;

/// Effect of an unresolved fault on the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramFault {
    /// SIGSEGV with this si_code (SEGV_MAPERR 1, SEGV_ACCERR 2).
    Segv(i32),
    /// SIGSEGV with SEGV_PKUERR: the thread has no right to the page's protection key.
    Key,
    /// SIGBUS with BUS_ADRERR.
    Bus,
    /// None yet: a monitor (userfaultfd) must provide the page ([`wait_for_monitor`]).
    Monitored,
}

/// Handles a program's fault at `addr`: makes the page present, or returns the signal for the
/// program.
///
/// Lack of memory is not the program's fault: a process is killed to free memory, and the access is
/// repeated. If the faulting process is the victim, it ends on its way back to user mode.
pub fn handle_user_fault(
    task: &Task,
    addr: VirtAddr,
    access: Access,
) -> core::result::Result<(), ProgramFault> {
    serve_fault(task, (addr, access), out_of_memory)
}

/// `task` is the running one.
fn serve_fault(
    task: &Task,
    (addr, access): (VirtAddr, Access),
    out_of_memory: fn(&'static str),
) -> core::result::Result<(), ProgramFault> {
    let outcome = task.with_space(|space| match space.fault_shared(addr, access) {
        Some(kind) => Ok(kind),
        None => space.lock().fault_within(addr, access, || task.process().memory_limits()),
    });
    match outcome {
        Ok(kind) => {
            let sort = usize::from(kind == FaultKind::Major);
            task.faults[sort].fetch_add(1, Ordering::Relaxed);
            task.injection.fault_served();
            Ok(())
        }
        Err(FaultError::Segv(SegvCode::MapErr)) => Err(ProgramFault::Segv(1)),
        Err(FaultError::Segv(SegvCode::AccErr)) => Err(ProgramFault::Segv(2)),
        Err(FaultError::Bus) => Err(ProgramFault::Bus),
        Err(FaultError::OutOfMemory) => {
            out_of_memory("page fault");
            Ok(())
        }
        // The caller waits for the monitor. Doing that here would make other faults slower.
        Err(FaultError::Monitored) => Err(ProgramFault::Monitored),
    }
}

/// Waits for a monitor (userfaultfd) to provide the page at `addr`. Sleeps until the access is to
/// be repeated; for a program's access a signal also ends the sleep. The fault is repeated first,
/// since registering for the wait needs the space's lock, which other faults do not take for the
/// sake of monitors.
///
/// # Errors
/// The signal for the program.
#[cold]
#[inline(never)]
pub fn wait_for_monitor(
    space: &ProcessSpace,
    (addr, access): (VirtAddr, Access),
    by: FaultBy,
) -> core::result::Result<(), ProgramFault> {
    let limits = || task::with_current(|task| task.process().memory_limits());
    let mut areas = space.lock();
    if areas.fault_within(addr, access, limits) != Err(FaultError::Monitored) {
        // The state of the page has changed: the repeated access handles the new state.
        return Ok(());
    }
    let outcome = queue_fault(&mut areas, addr, by);
    drop(areas);
    match outcome {
        Outcome::Again => Ok(()),
        Outcome::Refused => Err(ProgramFault::Bus),
        Outcome::OutOfMemory => {
            match by {
                FaultBy::Program => out_of_memory("page fault"),
                FaultBy::Kernel => out_of_memory_inside("page fault"),
            }
            Ok(())
        }
        Outcome::Queued(sleeper) => {
            let woken = sleeper.sleep(by);
            if by == FaultBy::Kernel { woken.map_err(|_| ProgramFault::Bus) } else { Ok(()) }
        }
    }
}

/// Handles a kernel access to a program's address (a copy to or from it) whose page was not
/// present.
///
/// # Errors
/// If the program itself would get a signal, or if it is being killed by the OOM killer: the copy
/// stops there.
pub fn handle_kernel_fault(addr: VirtAddr, access: Access) -> core::result::Result<(), traps::Unresolved> {
    let served = task::with_current(|task| {
        if task.is_dying() {
            return Err(ProgramFault::Bus);
        }
        match serve_fault(task, (addr, access), out_of_memory_inside) {
            Err(ProgramFault::Monitored) => {
                task.with_space(|space| wait_for_monitor(space, (addr, access), FaultBy::Kernel))
            }
            served => served,
        }
    });
    // A call may copy any amount of memory, and each of its pages may be missing.
    crate::sched::rest();
    served.map_err(|_| traps::Unresolved)
}
