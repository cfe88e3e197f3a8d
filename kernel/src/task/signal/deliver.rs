//! Delivery of a thread's signals before it returns to user mode.

use core::mem::offset_of;
use core::ops::ControlFlow;

use freehold_collections::{Arc, Receiver};
use freehold_machine::Cpus;
use freehold_tracepoints::TraceEvent;
use freehold_tracepoints::table::SignalDeliver;
use zerocopy::{FromBytes, IntoBytes};

use super::frame::{
    self, DESCRIPTION, Description, FRAME_SIZE, Frame, FrameContext, LEGACY, MAGIC2, SigContext, Wants,
};
use super::{
    Action, AlternateStack, DefaultAction, SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTART, SA_RESTORER,
    SIG_DFL, SIG_IGN, SS_AUTODISARM, SS_DISABLE, SS_ONSTACK, SigInfo, SigSet, Signal, code, end_group,
};
use crate::cgroup::member::FrozenChange;
use crate::hw::traps::Registers;
use crate::hw::user::{self, FpuImage, USER_CODE, USER_DATA, UserContext};
use crate::hw::{self, Faults, Hardware};
use crate::sched::thread::SIGNAL;
use crate::sched::{self, Sleep};
use crate::syscall::Args;
use crate::task::dump::meeting::Meeting;
use crate::task::freeze::StandsStill;
use crate::task::process::{ExitStatus, WaitReport};
use crate::task::{Task, registry, wait};
use crate::user as bytes;
use crate::{Errno, Result, tracing};

/// The number of restart_syscall.
const RESTART_SYSCALL: u64 = 219;
/// The length of the SYSCALL instruction.
const SYSCALL_LENGTH: u64 = 2;
/// The privilege level of programs, as in selectors.
const USER_LEVEL: u16 = 3;
/// Flags that are cleared when a handler begins: direction, trap, resume.
const CLEARED_FLAGS: u64 = 1 << 10 | 1 << 8 | 1 << 16;

/// The exception that caused a signal, for the handler's context.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trap {
    /// The vector.
    pub vector: u64,
    /// The error code.
    pub error: u64,
    /// The address of a page fault.
    pub address: u64,
}

/// An interrupted system call: its number, and the error that says how to restart it.
pub type Interrupted = (u64, Errno);

/// Sets the result of a system call that the handler of `action` interrupts.
#[inline(always)]
fn answer_for_handler(context: &mut UserContext, error: Errno, action: &Action) {
    let restarts = match error {
        Errno::ERESTARTNOINTR => true,
        Errno::ERESTARTSYS => action.flags & SA_RESTART != 0,
        _ => false,
    };
    if restarts {
        rewind(context, None);
    } else {
        context.set_return(Errno::EINTR.to_return_value() as u64);
    }
}

enum Delivery {
    Nothing,
    /// Check again.
    Again,
    End,
    Park,
    Stop(Signal),
    Terminate(Signal),
    /// The process ends, with a core file.
    Dump(SigInfo, Signal),
    /// Another thread writes a core file.
    Meet(Arc<Meeting>),
    Handle(SigInfo, Signal, Action),
}

/// Stores the vector state, whose image has this size, in the frame, with the markers by which
/// programs find it.
#[inline(always)]
fn save_fpu(context: &mut UserContext, image: usize, to: u64) -> Result<()> {
    if image <= LEGACY {
        return bytes::write_exact(to, context.fpu());
    }
    let description = Description::new(image, user::xfeatures());
    let state = context.noted_fpu(description.as_bytes());
    // The bytes between the parts are no component's, and stay what they were.
    for part in user::state_parts() {
        bytes::write_exact(to + part.start as u64, &state[part])?;
    }
    bytes::UserPtr::new(to + image as u64).write(&MAGIC2)
}

impl Task {
    /// Handles all pending events: stops, ends, or enters a handler. `interrupted` is the system
    /// call whose result this return would otherwise give. Breaks if the thread ends.
    // Not inlined, because it would make every system call save more registers.
    #[inline(never)]
    pub fn attend(
        self: &Receiver<Self>,
        context: &mut UserContext,
        mut interrupted: Option<Interrupted>,
        trap: Trap,
    ) -> ControlFlow<()> {
        let mut entered = false;
        loop {
            // Before the checks: a sender, or a tracer that requests a stop, after them marks the
            // thread again.
            self.answer_call(SIGNAL);
            if self.traced.is_traced() {
                self.stop_if_asked(context, &mut interrupted);
            }
            match self.next_signal(context, &mut interrupted) {
                Delivery::Nothing => break,
                Delivery::End => return ControlFlow::Break(()),
                Delivery::Again => {}
                Delivery::Meet(meeting) => {
                    self.meet(context, &meeting);
                    return ControlFlow::Break(());
                }
                Delivery::Dump(info, signal) => self.end_with_core(context, &info, signal),
                Delivery::Park if self.traced.is_traced() => self.stop_with_group(context, &mut interrupted),
                Delivery::Park => self.park(),
                Delivery::Stop(signal) => self.begin_stop(signal),
                Delivery::Terminate(signal) => {
                    let mut group = self.process().signals.lock();
                    end_group(&mut group, ExitStatus::Signaled(signal));
                }
                Delivery::Handle(info, signal, action) => {
                    if let Some((_, error)) = interrupted.take() {
                        answer_for_handler(context, error, &action);
                    }
                    self.end_section_for(context, signal);
                    match self.enter_handler(context, &info, &action, trap) {
                        Ok(()) => {
                            entered = true;
                            if self.traced.steps() {
                                self.stop_before_handler(context);
                            }
                        }
                        Err(_) => self.fail_delivery(Some(signal)),
                    }
                }
            }
        }
        if let Some((_, error)) = interrupted {
            rewind(context, (error == Errno::ERESTARTBLOCK).then_some(RESTART_SYSCALL));
        }
        // No handler has restored the mask that sigsuspend saved.
        if !entered && let Some(mask) = self.saved_mask.lock().take() {
            self.set_blocked(mask);
        }
        ControlFlow::Continue(())
    }

    fn next_signal(&self, context: &mut UserContext, interrupted: &mut Option<Interrupted>) -> Delivery {
        let mut group = self.process().signals.lock();
        if group.exit.is_some() || group.exec.is_some_and(|by| by != self.tid()) || self.has_finished() {
            return group.dump.as_ref().map_or(Delivery::End, |meeting| Delivery::Meet(meeting.clone()));
        }
        if group.stop().is_some() && !self.passes(&group) {
            return Delivery::Park;
        }
        if group.frozen {
            drop(group);
            self.stand_still();
            return Delivery::Again;
        }
        let deliverable = SigSet(!self.blocked().0);
        loop {
            let own = self.pending.lock().take(deliverable);
            let Some(info) = own.or_else(|| group.pending.take(deliverable)) else {
                return Delivery::Nothing;
            };
            if info.may_be_timer() {
                drop(group);
                return self.act_on_timer(context, info, interrupted);
            }
            if self.traced.is_traced() {
                drop(group);
                return self.ask_tracer(context, info, interrupted);
            }
            if let Some(next) = self.act_on(info) {
                return next;
            }
        }
    }

    /// Returns the delivery of a signal that a timer may have sent, which is armed again.
    #[inline(never)]
    fn act_on_timer(
        &self,
        context: &mut UserContext,
        info: SigInfo,
        interrupted: &mut Option<Interrupted>,
    ) -> Delivery {
        let info = self.process().restart_timer(info);
        if self.traced.is_traced() {
            return self.ask_tracer(context, info, interrupted);
        }
        self.act_on(info).unwrap_or(Delivery::Again)
    }

    /// Returns the delivery of a signal that was taken; `None` if nothing is to be done.
    #[inline(always)]
    fn act_on(&self, info: SigInfo) -> Option<Delivery> {
        let signal = info.signal()?;
        let action = self.process().action(signal);
        if Hardware.is_traced::<{ SignalDeliver::NUMBER }>() {
            trace_delivery(&info, &action);
        }
        match action.handler {
            SIG_IGN => None,
            // SIGKILL and SIGSTOP have come from outside.
            SIG_DFL if self.process().is_shielded() && !SigSet::UNSTOPPABLE.contains(signal) => None,
            SIG_DFL => match signal.default_action() {
                DefaultAction::Ignore | DefaultAction::Continue => None,
                DefaultAction::Stop => Some(Delivery::Stop(signal)),
                DefaultAction::Terminate => Some(Delivery::Terminate(signal)),
                DefaultAction::Core => Some(Delivery::Dump(info, signal)),
            },
            _ => {
                if action.flags & SA_RESETHAND != 0 {
                    self.process().set_action(signal, Action { handler: SIG_DFL, ..action });
                }
                Some(Delivery::Handle(info, signal, action))
            }
        }
    }

    /// Asks the tracer about `info`. Returns the delivery of the signal that the tracer passes on.
    #[cold]
    fn ask_tracer(
        &self,
        context: &mut UserContext,
        info: SigInfo,
        interrupted: &mut Option<Interrupted>,
    ) -> Delivery {
        let Some(info) = self.stop_for_delivery(context, info, interrupted) else { return Delivery::Again };
        if info.signal().is_some_and(|signal| self.blocked().contains(signal)) {
            // Another signal than the original one: it stays pending if it is blocked.
            self.signal(info);
            return Delivery::Again;
        }
        self.act_on(info).unwrap_or(Delivery::Again)
    }

    /// Parks all threads, the default action of a stop signal. Does nothing if no process could
    /// continue them.
    fn begin_stop(&self, signal: Signal) {
        if signal != Signal::STOP && registry::group_is_orphaned(self.process().group()) {
            return;
        }
        let mut group = self.process().signals.lock();
        if group.exit.is_none() {
            group.set_stop(Some(signal));
            for thread in &group.threads {
                thread.interrupt();
            }
        }
    }

    /// Waits until the process continues or ends. The last thread to arrive notifies the parent.
    fn park(self: &Receiver<Self>) {
        let stopped_by = {
            let mut group = self.process().signals.lock();
            let Some(signal) = group.stop() else { return };
            let all = group.park();
            if all {
                group.report = Some(WaitReport::Stopped(signal));
            }
            all.then_some(signal)
        };
        if let Some(signal) = stopped_by {
            wait::tell_parent_of_stop(self.process(), signal);
        }
        let mut standing = StandsStill::new(self.process());
        loop {
            self.prepare_to_sleep(Sleep::Stopped);
            let frozen = {
                let group = self.process().signals.lock();
                // A tracer that has attached meanwhile makes the thread stop again, for that
                // tracer.
                if group.stop().is_none() || group.exit.is_some() || self.traced.is_traced() {
                    break;
                }
                group.frozen
            };
            standing.set(if frozen { FrozenChange::Stands } else { FrozenChange::GoesOn });
            sched::block(self.thread(), None);
        }
        self.finish_sleep();
        drop(standing);
        self.process().signals.lock().parked -= 1;
    }

    /// Delivers SIGSEGV because the frame for `signal` does not fit, or because the memory
    /// registered by rseq(2) is wrong (with or without a signal). The handler of SIGSEGV may run on
    /// another stack. If SIGSEGV itself cannot be delivered, the program ends (Linux'
    /// `force_sigsegv`).
    pub(in crate::task) fn fail_delivery(&self, signal: Option<Signal>) {
        if signal == Some(Signal::SEGV) {
            self.process().set_action(Signal::SEGV, Action::default());
        }
        self.force_signal(SigInfo::kernel(Signal::SEGV));
    }

    /// Changes the registers and the stack so that the handler runs next. After an error neither
    /// has changed, nor has the mask.
    fn enter_handler(
        &self,
        context: &mut UserContext,
        info: &SigInfo,
        action: &Action,
        trap: Trap,
    ) -> Result<()> {
        // Linux requires the same of 64-bit programs.
        if action.flags & SA_RESTORER == 0 {
            return Err(Errno::EFAULT);
        }
        let saved_mask = *self.saved_mask.lock();
        let mask = saved_mask.unwrap_or_else(|| self.blocked());
        let alternate = *self.alternate_stack.lock();
        let wants = if action.flags & SA_ONSTACK != 0 { Wants::AlternateStack } else { Wants::AnyStack };
        let image = user::xsave_size();
        let size = frame::fpstate_size(image);
        let at = frame::place(context.regs().rsp, wants, &alternate, size).ok_or(Errno::EFAULT)?;
        let old_stack = reported(&alternate, context.regs().rsp);
        save_fpu(context, image, at.fpstate)?;
        let strict = if context.regs().cs == USER_CODE { frame::UC_STRICT_RESTORE_SS } else { 0 };
        let frame = Frame {
            return_address: action.restorer,
            context: FrameContext {
                flags: frame::context_flags(image) | strict,
                link: 0,
                stack: old_stack,
                registers: save(context.regs(), at.fpstate, mask, trap),
                mask: mask.0,
            },
            info: *info,
            padding: [0; 10],
        };
        bytes::write_exact(at.frame, frame.as_bytes())?;
        let registers = context.regs_mut();
        registers.rdi = info.number as u64;
        registers.rsi = at.frame + offset_of!(Frame, info) as u64;
        registers.rdx = at.frame + offset_of!(Frame, context) as u64;
        registers.rax = 0;
        registers.rip = action.handler;
        registers.rsp = at.frame;
        registers.cs = USER_CODE;
        registers.ss = USER_DATA;
        registers.rflags &= !CLEARED_FLAGS;
        context.reset_fpu();
        if saved_mask.is_some() {
            *self.saved_mask.lock() = None;
        }
        if alternate.flags & SS_AUTODISARM != 0 {
            *self.alternate_stack.lock() = AlternateStack::NONE;
        }
        let mut blocked = self.blocked().union(action.mask);
        if action.flags & SA_NODEFER == 0
            && let Some(signal) = info.signal()
        {
            blocked = blocked.with(signal);
        }
        self.set_blocked(blocked);
        Ok(())
    }

    /// Restores registers, mask and stack from the frame below the stack pointer of `context`.
    /// After an error the program gets SIGSEGV, with the parts that could be restored: if the
    /// vector state is invalid, these are the mask and all other registers (Linux' `rt_sigreturn`
    /// and `restore_sigcontext`).
    fn leave_handler(&self, context: &mut UserContext) -> Result<i64> {
        // The stack pointer is after the return address.
        let frame = bytes::UserPtr::<FrameContext>::new(context.regs().rsp).read()?;
        let saved = &frame.registers;
        self.set_blocked(SigSet(frame.mask));
        restore(context.regs_mut(), saved);
        if frame.flags & frame::UC_STRICT_RESTORE_SS == 0 && context.regs().cs == USER_CODE {
            context.regs_mut().ss = USER_DATA;
        }
        if saved.fpstate == 0 {
            context.reset_fpu();
        } else {
            restore_vectors(context, saved.fpstate)?;
        }
        // The program may have unmapped the stack, which is not checked. An invalid stack is
        // refused, and the old one stays.
        let _ = self.set_alternate_stack(frame.stack, saved.rsp);
        Ok(context.regs().rax as i64)
    }

    /// Sets the alternate stack. `sp` is the stack pointer.
    pub(super) fn set_alternate_stack(&self, stack: AlternateStack, sp: u64) -> Result<()> {
        let mut current = self.alternate_stack.lock();
        if current.contains(sp) && current.flags & SS_AUTODISARM == 0 {
            return Err(Errno::EPERM);
        }
        match stack.flags & !SS_AUTODISARM {
            SS_DISABLE => *current = AlternateStack::NONE,
            0 | SS_ONSTACK if stack.size < MINSIGSTKSZ => return Err(Errno::ENOMEM),
            0 | SS_ONSTACK => *current = AlternateStack { flags: stack.flags & SS_AUTODISARM, ..stack },
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }
}

/// Smallest size of an alternate stack.
const MINSIGSTKSZ: u64 = 2048;

/// Returns the alternate stack for sigaltstack.
pub(super) fn reported(stack: &AlternateStack, sp: u64) -> AlternateStack {
    let on = if stack.contains(sp) { SS_ONSTACK } else { 0 };
    AlternateStack { flags: stack.flags | on, pad: 0, ..*stack }
}

/// Moves the program back to the SYSCALL instruction, for the same call or for `number`.
fn rewind(context: &mut UserContext, number: Option<u64>) {
    let number = number.unwrap_or_else(|| context.syscall_number());
    let registers = context.regs_mut();
    registers.rax = number;
    registers.rip = registers.rip.wrapping_sub(SYSCALL_LENGTH);
}

fn save(registers: &Registers, fpstate: u64, mask: SigSet, trap: Trap) -> SigContext {
    SigContext {
        r8: registers.r8,
        r9: registers.r9,
        r10: registers.r10,
        r11: registers.r11,
        r12: registers.r12,
        r13: registers.r13,
        r14: registers.r14,
        r15: registers.r15,
        rdi: registers.rdi,
        rsi: registers.rsi,
        rbp: registers.rbp,
        rbx: registers.rbx,
        rdx: registers.rdx,
        rax: registers.rax,
        rcx: registers.rcx,
        rsp: registers.rsp,
        rip: registers.rip,
        rflags: registers.rflags,
        cs: registers.cs as u16,
        gs: 0,
        fs: 0,
        ss: registers.ss as u16,
        error: trap.error,
        trap: trap.vector,
        old_mask: mask.0,
        cr2: trap.address,
        fpstate,
        reserved: [0; 8],
    }
}

/// Flags that are restored from a frame: CF PF AF ZF SF TF DF OF RF AC, Linux' FIX_EFLAGS. NT and
/// ID do not change.
const FLAGS_OF_FRAMES: u64 = 0x0005_0dd5;

fn restore(registers: &mut Registers, saved: &SigContext) {
    registers.r8 = saved.r8;
    registers.r9 = saved.r9;
    registers.r10 = saved.r10;
    registers.r11 = saved.r11;
    registers.r12 = saved.r12;
    registers.r13 = saved.r13;
    registers.r14 = saved.r14;
    registers.r15 = saved.r15;
    registers.rdi = saved.rdi;
    registers.rsi = saved.rsi;
    registers.rbp = saved.rbp;
    registers.rbx = saved.rbx;
    registers.rdx = saved.rdx;
    registers.rax = saved.rax;
    registers.rcx = saved.rcx;
    registers.rsp = saved.rsp;
    registers.rip = saved.rip;
    // The code before the return to user mode checks the descriptors of these selectors.
    registers.cs = u64::from(saved.cs | USER_LEVEL);
    registers.ss = u64::from(saved.ss | USER_LEVEL);
    registers.rflags = registers.rflags & !FLAGS_OF_FRAMES | saved.rflags & FLAGS_OF_FRAMES;
}

/// Loads the vector state at `address`. Without valid magic numbers only the legacy area is used.
/// XRSTOR and FXRSTOR, by which Linux loads it, need it aligned.
fn restore_vectors(context: &mut UserContext, address: u64) -> Result<()> {
    let loaded = context.load_fpu(|area| {
        let whole = area.len();
        let mut had = 0;
        for part in user::state_parts() {
            let read = hw::read_user(
                address.wrapping_add(part.start as u64),
                &mut area[part.clone()],
                Faults::Sleep,
            );
            had = part.start + read;
            if had != part.end || had == whole {
                break;
            }
        }
        if had < LEGACY {
            return FpuImage::UNREADABLE;
        }
        let description = Description::read_from_prefix(&area[DESCRIPTION..]).map(|(it, _)| it).ok();
        // The description is for software. The hardware requires zeros there.
        area[DESCRIPTION..LEGACY].fill(0);
        let legacy = if address.is_multiple_of(16) { FpuImage::LEGACY } else { FpuImage::UNREADABLE };
        let Some(description) = description.filter(|it| it.is_extended(whole)) else { return legacy };
        let end = bytes::UserPtr::<u32>::new(address.wrapping_add(u64::from(description.size)));
        match end.read() {
            Ok(MAGIC2) if had == whole && address.is_multiple_of(64) => {
                FpuImage { bytes: whole, components: description.features }
            }
            Ok(MAGIC2) | Err(_) => FpuImage::UNREADABLE,
            Ok(_) => legacy,
        }
    });
    loaded.map_err(|_| Errno::EFAULT)
}

/// rt_sigreturn()
pub fn sys_rt_sigreturn(context: &mut UserContext, _args: &Args) -> Result<i64> {
    let task = crate::task::current();
    match task.leave_handler(context) {
        Ok(value) => Ok(value),
        Err(_) => {
            task.force_signal(SigInfo::fault(Signal::SEGV, code::KERNEL, 0));
            Ok(0)
        }
    }
}

/// sigaltstack(new, old)
pub fn sys_sigaltstack(context: &mut UserContext, args: &Args) -> Result<i64> {
    let task = crate::task::current();
    let sp = context.regs().rsp;
    let old = reported(&task.alternate_stack.lock(), sp);
    if let Some(new) = bytes::UserPtr::<AlternateStack>::new(args[0]).read_optional()? {
        task.set_alternate_stack(new, sp)?;
    }
    bytes::UserPtr::new(args[1]).write_optional(&old)?;
    Ok(0)
}

const _: () = assert!(FRAME_SIZE == 440);

/// Emits the tracepoint of a signal's action.
#[cold]
#[inline(never)]
fn trace_delivery(info: &SigInfo, action: &Action) {
    let (sig, errno, code) = (info.number, info.errno, info.code);
    let event = SignalDeliver { sig, errno, code, sa_handler: action.handler, sa_flags: action.flags };
    tracing::record(SignalDeliver::NUMBER, &event.words());
}
