//! A user thread's life: out to the program, back in for a system call, a fault or an interrupt, and out again.

use alloc::sync::Arc;

use freehold_arch::user::{UserContext, UserEvent};
use freehold_arch::{heap, time};

use super::Task;
use super::signal::{
    SigInfo, Signal, code,
    deliver::{Interrupted, Trap},
};
use crate::mem::{self, Fault};
use crate::syscall;
use crate::{Errno, sched};

/// Heap that is set aside before each system call, so that small allocations in it cannot fail (bytes).
const RESERVE: usize = 16 << 10;

/// Run `task`'s program from `context` until the thread ends.
pub fn run(task: &Arc<Task>, context: &mut UserContext) {
    let mut interrupted: Option<Interrupted> = None;
    let mut trap = Trap::default();
    loop {
        let left = time::ticks();
        let urgent = || task.signal_pending() || interrupted.is_some() || sched::is_wanted();
        let Some(event) = context.run_unless(urgent) else {
            if sched::is_wanted() {
                sched::reschedule();
            }
            if (task.signal_pending() || interrupted.is_some())
                && task.attend(context, interrupted.take(), trap).is_break()
            {
                return;
            }
            continue;
        };
        task.add_user_ticks(time::ticks().wrapping_sub(left));
        match event {
            UserEvent::Syscall => {
                let number = context.syscall_number();
                let outcome = mem::with_memory_found(|| match heap::ensure(RESERVE) {
                    Ok(()) => syscall::dispatch(context),
                    Err(_) => {
                        mem::out_of_memory("system call");
                        Err(Errno::ERESTARTNOINTR)
                    }
                });
                match outcome {
                    Ok(value) => context.set_return(value as u64),
                    Err(
                        error @ (Errno::ERESTARTSYS
                        | Errno::ERESTARTNOINTR
                        | Errno::ERESTARTNOHAND
                        | Errno::ERESTARTBLOCK),
                    ) => interrupted = Some((number, error)),
                    Err(error) => context.set_return(error.to_return_value() as u64),
                }
            }
            UserEvent::PageFault { addr, access, present: _ } => {
                let space = task.process().space();
                let result = mem::handle_user_fault(&space, addr, access);
                if let Err(fault) = result {
                    trap = Trap { vector: 14, error: 4, address: addr.0 };
                    task.force_signal(match fault {
                        Fault::Segv(code) => SigInfo::fault(Signal::SEGV, code, addr.0),
                        Fault::Bus => SigInfo::fault(Signal::BUS, code::BUS_ADRERR, addr.0),
                    });
                }
            }
            UserEvent::Exception { vector, code } => {
                trap = Trap { vector: u64::from(vector), error: u64::from(code), address: 0 };
                task.force_signal(exception_signal(vector, context.regs().rip));
            }
            // A program that makes no system calls still gives up free frames that another CPU asks for.
            UserEvent::Interrupt => {
                crate::mem::frames().poll(freehold_buddy::Moment::Tick);
                crate::mem::hotplug::tick();
            }
        }
    }
}

/// The signal for an exception in user mode (Intel SDM volume 3, table 6-1; signal(7)).
fn exception_signal(vector: u8, rip: u64) -> SigInfo {
    match vector {
        0 => SigInfo::fault(Signal::FPE, code::FPE_INTDIV, rip),
        1 => SigInfo::fault(Signal::TRAP, code::TRAP_TRACE, rip),
        3 => SigInfo::kernel(Signal::TRAP),
        4 => SigInfo::kernel(Signal::SEGV),
        5 => SigInfo::kernel(Signal::SEGV),
        6 => SigInfo::fault(Signal::ILL, code::ILL_ILLOPN, rip),
        11 | 12 => SigInfo::kernel(Signal::BUS),
        16 | 19 => SigInfo::fault(Signal::FPE, code::FPE_FLTINV, rip),
        17 => SigInfo::fault(Signal::BUS, code::BUS_ADRALN, 0),
        _ => SigInfo::kernel(Signal::SEGV),
    }
}
