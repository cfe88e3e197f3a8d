//! Page faults: of a program, and of the kernel on a program's address.
//!
//! Task context, interrupts on, nothing held that spins and no address space: the space's lock is
//! taken here, where the fault cannot be served beside others, and given back before memory is
//! looked for, which may sleep for a disk or the host.

use core::sync::atomic::Ordering;

use freehold_machine::VirtAddr;
use freehold_vm::{Access, FaultError, FaultKind, SegvCode};

use super::oom::out_of_memory_inside;
use super::out_of_memory;
use crate::hw::traps;
use crate::mem::ProcessSpace;
use crate::mem::user_faults::{FaultBy, Outcome, queue_fault};
use crate::task;

/// Effect of an unresolved fault on the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramFault {
    /// SIGSEGV with this si_code (SEGV_MAPERR 1, SEGV_ACCERR 2).
    Segv(i32),
    /// SIGBUS with BUS_ADRERR.
    Bus,
    /// None yet: the page is a monitor's to provide ([`wait_for_monitor`]).
    Monitored,
}

/// A program faulted at `addr`: make the page present, or say which signal it gets.
///
/// Lack of memory is not the program's fault: a process is killed to make room, and the access is
/// tried again. If the faulting process is the victim, it dies on its way back to user mode.
pub fn handle_user_fault(
    space: &ProcessSpace,
    addr: VirtAddr,
    access: Access,
) -> core::result::Result<(), ProgramFault> {
    serve_fault(space, (addr, access), out_of_memory)
}

fn serve_fault(
    space: &ProcessSpace,
    (addr, access): (VirtAddr, Access),
    out_of_memory: fn(&'static str),
) -> core::result::Result<(), ProgramFault> {
    let outcome = match space.fault_shared(addr, access) {
        Some(kind) => Ok(kind),
        None => {
            let limits = || task::with_current(|task| task.process().memory_limits());
            space.lock().fault_within(addr, access, limits)
        }
    };
    match outcome {
        Ok(kind) => {
            let sort = usize::from(kind == FaultKind::Major);
            task::with_current(|task| {
                task.faults[sort].fetch_add(1, Ordering::Relaxed);
                task.injection.fault_served();
            });
            Ok(())
        }
        Err(FaultError::Segv(SegvCode::MapErr)) => Err(ProgramFault::Segv(1)),
        Err(FaultError::Segv(SegvCode::AccErr)) => Err(ProgramFault::Segv(2)),
        Err(FaultError::Bus) => Err(ProgramFault::Bus),
        Err(FaultError::OutOfMemory) => {
            out_of_memory("page fault");
            Ok(())
        }
        // The caller waits for the monitor: preparing that here would make other faults slower.
        Err(FaultError::Monitored) => Err(ProgramFault::Monitored),
    }
}

/// The page at `addr` is a monitor's to provide: sleep until the access is to be made again, a
/// program's also for a signal. The fault is made again first, since it queues with the space
/// locked and other faults end without a look at monitors.
///
/// # Errors
/// The signal that the program gets.
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
        // The state of the page has changed: the repeated access finds out how.
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

/// The kernel touched a program's address (copying to or from it) and the page was not there.
///
/// # Errors
/// Where the program itself would get a signal, or where it is dying for want of memory: the copy
/// stops there.
pub fn handle_kernel_fault(addr: VirtAddr, access: Access) -> core::result::Result<(), traps::Unresolved> {
    if task::with_current(|task| task.is_dying()) {
        return Err(traps::Unresolved);
    }
    let space = task::with_current(|task| task.process().space());
    let served = match serve_fault(&space, (addr, access), out_of_memory_inside) {
        Err(ProgramFault::Monitored) => wait_for_monitor(&space, (addr, access), FaultBy::Kernel),
        served => served,
    };
    // A call may copy as much as its program wishes, and every page of that may be missing.
    crate::sched::rest();
    served.map_err(|_| traps::Unresolved)
}
