//! A user thread's life: out to the program, back in for a system call, a fault or an interrupt, and out again.

use alloc::sync::Arc;

use freehold_arch::time;
use freehold_arch::user::{USER_END, UserContext, UserEvent};

use super::dispatch;
use crate::mem;
use crate::sched::Thread;
use crate::task::signal::{
    SigInfo, Signal, code,
    deliver::{Interrupted, Trap},
    exception,
};
use crate::task::{Fault, Task, handle_user_fault, out_of_memory, reserve};
use crate::{Errno, sched};

/// Run `task`'s program from `context` until the thread ends.
pub fn run(task: &Arc<Task>, context: &mut UserContext) {
    // Kept at hand: the way from the task to its thread is a load more for each look.
    let thread: &Thread = task.thread();
    let mut interrupted: Option<Interrupted> = None;
    let mut trap = Trap::default();
    loop {
        let left = time::ticks();
        let urgent = || thread.signal_pending() || interrupted.is_some() || sched::is_wanted();
        let Some(event) = context.run_unless(urgent) else {
            if sched::is_wanted() {
                sched::reschedule();
            }
            if (thread.signal_pending() || interrupted.is_some())
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
                let outcome =
                    mem::with_memory_found(|| match reserve::with(&task.drawn, || dispatch(context)) {
                        Ok(outcome) => outcome,
                        Err(_) => {
                            out_of_memory("system call");
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
            UserEvent::PageFault { addr, access, code } => {
                let space = task.process().space();
                let result = handle_user_fault(&space, addr, access);
                if let Err(fault) = result {
                    let error = exception::shown_page_fault_code(code, addr.0, USER_END);
                    trap = Trap { vector: u64::from(exception::PAGE_FAULT), error, address: addr.0 };
                    task.force_signal(match fault {
                        Fault::Segv(code) => SigInfo::fault(Signal::SEGV, code, addr.0),
                        Fault::Bus => SigInfo::fault(Signal::BUS, code::BUS_ADRERR, addr.0),
                    });
                }
            }
            UserEvent::Exception { vector: exception::MACHINE_CHECK, code } => {
                // What the program did is not the reason: the description of its last exception stays.
                log::error!(
                    "machine check in user mode, bank status {code:#x}, process {}",
                    task.process().pid
                );
                task.force_signal(SigInfo::kernel(Signal::BUS));
            }
            UserEvent::Exception { vector, code } => {
                let error = if vector == exception::DEBUG { 0 } else { code };
                trap = Trap { vector: u64::from(vector), error, address: trap.address };
                let rip = context.regs().rip;
                if let Some(info) = exception::signal(vector, code, rip, || context.fpu()) {
                    task.force_signal(info);
                }
            }
            // A program that makes no system calls still gives up free frames that another CPU asks for.
            UserEvent::Interrupt => {
                crate::mem::frames().poll(freehold_buddy::Moment::Tick);
                crate::mem::hotplug::tick();
            }
        }
    }
}
