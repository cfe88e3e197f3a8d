//! The main loop of a user thread: into the program, back for a system call, a fault or an
//! interrupt, and into the program again.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering::Relaxed;

use freehold_collections::Arc;
use freehold_machine::{Cpus, KeyRights, ProtectionKey, VirtAddr};
use freehold_tracepoints::TraceEvent;
use freehold_tracepoints::table::{PageFaultUser, SysEnter, SysExit, SyscallText};
use freehold_vm::Access;

use super::{dispatch, failures, texts};
use crate::hw::user::{PROTECTION_KEY, USER_END, UserContext, UserEvent, key_rights};
use crate::hw::{Hardware, time};
use crate::mem;
use crate::mem::user_faults::FaultBy;
use crate::sched::Thread;
use crate::sched::thread::{PLACE, QUOTA, WATCH};

use crate::task::seccomp::Judgement;
use crate::task::signal::{SigInfo, Signal, code, deliver::Trap, exception};
use crate::task::{
    ExitStatus, ProgramFault, Task, handle_user_fault, out_of_memory, reserve, wait_for_monitor,
};
use crate::{Errno, Result, sched, tracing};

/// Runs the program of `task` from `context` until the thread ends.
///
/// Rare events are handled in separate functions, so that the path of a system call and of a page
/// fault stays short.
pub fn run(task: &Arc<Task>, context: &mut UserContext) {
    // Stored in a variable: otherwise each access through the task needs an additional load.
    let thread: &Thread = task.thread();
    let mut trap = Trap::default();
    loop {
        let entered = time::ticks();
        thread.schedule.user.enter(entered);
        let urgent = || thread.is_called() || sched::is_wanted();
        let Some(event) = context.run_unless(urgent) else {
            thread.schedule.user.leave(entered);
            if sched::is_wanted() {
                give_way(task, context);
            }
            if thread.is_called() && answer(task, context, trap).is_break() {
                return;
            }
            if thread.is_called_for(WATCH) {
                match run_watched(task, context, trap) {
                    ControlFlow::Continue(last) => trap = last,
                    ControlFlow::Break(()) => return,
                }
            }
            continue;
        };
        thread.schedule.user.leave(time::ticks());
        if serve(task, context, event, &mut trap).is_break() {
            return;
        }
    }
}

/// Handles an event of the program. Breaks if the thread ends.
// Inlined in both callers, because it is on the path of each system call.
#[inline(always)]
fn serve(task: &Arc<Task>, context: &mut UserContext, event: UserEvent, trap: &mut Trap) -> ControlFlow<()> {
    let thread: &Thread = task.thread();
    match event {
        UserEvent::Syscall => {
            let number = context.syscall_number();
            let made = if task.traced.watches_calls() {
                watched_call(task, context)
            } else {
                system_call(task, context)
            };
            let Err(error) = made else { return ControlFlow::Continue(()) };
            if sched::is_wanted() {
                sched::reschedule();
            }
            task.attend(context, Some((number, error)), *trap)?;
        }
        UserEvent::PageFault { addr, access, code } => {
            thread.schedule.left.store(false, Relaxed);
            trace_fault(context, addr, code);
            let served = if code & PROTECTION_KEY == 0 {
                handle_user_fault(task, addr, access)
            } else {
                // The page is present, and stays so.
                Err(ProgramFault::Key)
            };
            if let Err(fault) = served {
                *trap = unserved(task, fault, (addr, access, code)).unwrap_or(*trap);
            }
            if thread.schedule.left.load(Relaxed) {
                task.note_preemption();
            }
        }
        UserEvent::Exception { vector, code } => *trap = exception(task, context, (vector, code), *trap),
        // A program that makes no system calls must still release free frames that another CPU
        // needs.
        UserEvent::Interrupt => {
            mem::frames().poll(freehold_buddy::Moment::Tick);
            mem::hotplug::tick();
        }
        UserEvent::Alarm => {}
    }
    ControlFlow::Continue(())
}

/// Gives the CPU to another thread that needs it.
fn give_way(task: &Task, context: &UserContext) {
    task.schedule.left.store(false, Relaxed);
    sched::reschedule();
    if context.was_interrupted() {
        task.note_preemption();
    }
}

/// Handles the flags that are set in the thread's attention word. Breaks if it ends.
// Not inlined, because it would make every system call save more registers.
#[inline(never)]
fn answer(task: &Arc<Task>, context: &mut UserContext, trap: Trap) -> ControlFlow<()> {
    let thread = task.thread();
    if thread.signal_pending() {
        thread.schedule.left.store(false, Relaxed);
        task.attend(context, None, trap)?;
        // The thread may have been stopped for a while.
        if context.was_interrupted() {
            task.note_preemption();
        }
    }
    if let Some(account) = thread.take_passed_high() {
        mem::charge::attend(account);
    }
    if thread.is_called_for(QUOTA) {
        task.attend_quota();
    }
    if thread.is_called_for(PLACE) {
        task.attend_place(context);
    }
    ControlFlow::Continue(())
}

/// Runs the program of a thread with watchpoints, unless there is other work. `trap` and the result
/// describe the program's last exception. Breaks if the thread ends.
#[cold]
#[inline(never)]
fn run_watched(task: &Arc<Task>, context: &mut UserContext, mut trap: Trap) -> ControlFlow<(), Trap> {
    let thread = task.thread();
    let (addresses, control) = task.watch.armed();
    let entered = time::ticks();
    thread.schedule.user.enter(entered);
    let urgent = || thread.is_called_for(!WATCH) || sched::is_wanted();
    match context.run_watched_unless((&addresses, control), urgent) {
        Some(event) => {
            thread.schedule.user.leave(time::ticks());
            serve(task, context, event, &mut trap)?;
        }
        None => thread.schedule.user.leave(entered),
    }
    ControlFlow::Continue(trap)
}

/// As [`system_call`], for a thread whose tracer watches its calls, or that has seccomp filters.
#[cold]
#[inline(never)]
fn watched_call(task: &Task, context: &mut UserContext) -> Result<()> {
    task.call_for_tracer(context, |context| {
        if task.traced.are_calls_judged() && task.judge_call(context)? == Judgement::Done {
            return Ok(());
        }
        system_call(task, context)
    })
}

/// Makes the system call in `context`, and sets its result. An error says how the call must be
/// restarted.
// Inlined in both callers: a function call would cost each system call nine instructions.
#[inline(always)]
fn system_call(task: &Task, context: &mut UserContext) -> Result<()> {
    if Hardware.is_traced::<{ SysEnter::NUMBER }>() {
        trace_enter(task, context);
    }
    let outcome = mem::with_memory_found(|| match reserve::with(&task.drawn, || dispatch(context)) {
        Ok(outcome) => outcome,
        Err(_) => {
            out_of_memory("system call");
            Err(Errno::ERESTARTNOINTR)
        }
    });
    if Hardware.is_traced::<{ SysExit::NUMBER }>() {
        trace_exit(task, context, outcome);
    }
    match outcome {
        Ok(value) => context.set_return(value as u64),
        Err(
            error @ (Errno::ERESTARTSYS
            | Errno::ERESTARTNOINTR
            | Errno::ERESTARTNOHAND
            | Errno::ERESTARTBLOCK),
        ) => return Err(error),
        Err(error) => {
            failures::note(context.syscall_number(), error);
            context.set_return(error.to_return_value() as u64);
        }
    }
    Ok(())
}

// The functions of the tracepoints. Their arguments are available at the call sites, so a
// tracepoint that is off costs only its no-op and no register.

#[cold]
#[inline(never)]
fn trace_enter(task: &Task, context: &UserContext) {
    let event = SysEnter { id: context.syscall_number() as i64, args: context.syscall_args() };
    tracing::record_by(&task.label, SysEnter::NUMBER, &event.words());
    if Hardware.is_traced::<{ SyscallText::NUMBER }>() {
        texts::entered(context.syscall_number(), context.syscall_args());
    }
}

#[cold]
#[inline(never)]
fn trace_exit(task: &Task, context: &UserContext, outcome: Result<i64>) {
    let ret = outcome.unwrap_or_else(|error| error.to_return_value());
    if Hardware.is_traced::<{ SyscallText::NUMBER }>() {
        texts::left(context.syscall_number(), context.syscall_args(), ret);
    }
    let event = SysExit { id: context.syscall_number() as i64, ret };
    tracing::record_by(&task.label, SysExit::NUMBER, &event.words());
}

#[inline(always)]
fn trace_fault(context: &UserContext, addr: VirtAddr, code: u64) {
    if Hardware.is_traced::<{ PageFaultUser::NUMBER }>() {
        record_fault(context, addr, code);
    }
}

#[cold]
#[inline(never)]
fn record_fault(context: &UserContext, addr: VirtAddr, code: u64) {
    let event = PageFaultUser { address: addr.0, ip: context.regs().rip, error_code: code };
    tracing::record(PageFaultUser::NUMBER, &event.words());
}

#[cold]
fn page_fault_trap(addr: VirtAddr, code: u64) -> Trap {
    let error = exception::shown_page_fault_code(code, addr.0, USER_END);
    Trap { vector: u64::from(exception::PAGE_FAULT), error, address: addr.0 }
}

/// Handles a failed fault: sleeps if a monitor must provide the page, else sends the signal.
/// Returns the description of the exception, if there was a signal.
#[cold]
#[inline(never)]
fn unserved(task: &Task, fault: ProgramFault, (addr, access, code): (VirtAddr, Access, u64)) -> Option<Trap> {
    let fault = match fault {
        // The key comes first, as on Linux.
        _ if is_denied_by_key(task, addr, access) => ProgramFault::Key,
        ProgramFault::Monitored => {
            wait_for_monitor(&task.process().space(), (addr, access), FaultBy::Program).err()?
        }
        fault => fault,
    };
    force_fault(task, fault, addr);
    Some(page_fault_trap(addr, code))
}

/// Whether the area's protection key denies the access, to a page that may be absent.
fn is_denied_by_key(task: &Task, addr: VirtAddr, access: Access) -> bool {
    let rights = key_rights();
    let may_be = rights != KeyRights::INITIAL || task.with_space(|space| space.has_keys());
    may_be && rights.denies(key_at(task, addr), access)
}

#[cold]
fn key_at(task: &Task, addr: VirtAddr) -> ProtectionKey {
    task.with_space(|space| space.lock().key_at(addr))
}

#[cold]
fn force_fault(task: &Task, fault: ProgramFault, addr: VirtAddr) {
    task.force_signal(match fault {
        ProgramFault::Segv(code) => SigInfo::fault(Signal::SEGV, code, addr.0),
        ProgramFault::Key => SigInfo::denied_by_key(addr.0, key_at(task, addr)),
        ProgramFault::Bus | ProgramFault::Monitored => SigInfo::fault(Signal::BUS, code::BUS_ADRERR, addr.0),
    });
}

/// Sends the signal for an exception. Returns the description of the program's last exception;
/// `last` is that of the previous one.
#[cold]
fn exception(task: &Task, context: &mut UserContext, (vector, code): (u8, u64), last: Trap) -> Trap {
    if vector == exception::MACHINE_CHECK {
        // The program did not cause this, so the description of its last exception is kept.
        log::error!("machine check in user mode, bank status {code:#x}, process {}", task.process().pid);
        task.force_signal(SigInfo::kernel(Signal::BUS));
        return last;
    }
    let status = if vector == exception::DEBUG { task.watch.hit(context, code) } else { code };
    if vector == exception::LOST {
        let pid = task.process().pid;
        log::error!(
            "a debug exception inside of another: where process {pid} was is not known, it is killed"
        );
        task.process().end(ExitStatus::Signaled(Signal::KILL));
        return last;
    }
    let rip = context.regs().rip;
    match exception::signal(vector, status, rip, || context.fpu()) {
        Some(info) => task.force_signal(info),
        // There is no error to report, but the summary bit may still be set.
        None if vector == exception::X87 => context.clear_x87_summary(),
        None => {}
    }
    let error = if vector == exception::DEBUG { 0 } else { code };
    Trap { vector: u64::from(vector), error, address: last.address }
}
