//! The stops of a traced thread. All of this runs on the thread itself, on its way to or from user
//! mode.

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, Receiver};

use super::{Attached, Event, Options, Resume, Stop, StopKind, Tracee, UserRegisters, transfer};
use crate::hw::user::UserContext;
use crate::sched::{self, Sleep};
use crate::task::clone::CloneFlags;
use crate::task::pidns::Numbers;
use crate::task::process::{ExitStatus, Group, WaitReport};
use crate::task::signal::deliver::Interrupted;
use crate::task::signal::{SA_NOCLDSTOP, SigInfo, Signal, code};
use crate::task::{Task, registry, wait};
use crate::{Errno, Result};

/// Added to SIGTRAP at system calls with PTRACE_O_TRACESYSGOOD.
const GOOD: i32 = 0x80;
/// orig_rax of a thread that is not in a system call.
const NO_CALL: u64 = u64::MAX;

/// The facts about a system call that the tracer sees and the context does not have.
#[derive(Clone, Copy)]
struct Call {
    number: u64,
    /// The value of rax at the stop.
    result: Option<u64>,
}

impl Call {
    /// Returns the call that entered the kernel, if any.
    fn of(context: &UserContext) -> Self {
        Self { number: context.called().unwrap_or(NO_CALL), result: None }
    }
    /// Returns a call without a result so far.
    fn unfinished(number: u64) -> Self {
        Self { number, result: Some(Errno::ENOSYS.to_return_value() as u64) }
    }
    /// Returns an interrupted call that will be restarted.
    fn interrupted((number, error): Interrupted) -> Self {
        Self { number, result: Some(error.to_return_value() as u64) }
    }
}

/// Notifies the tracer that `tracee` is in a stop. The times are those of this thread alone, as on
/// Linux (`do_notify_parent_cldstop`).
fn tell(thread: &Task, tracee: &Tracee, stop: Stop) {
    let (Some(tracer), Some(process)) = (registry::find(tracee.tracer), registry::find(tracee.pid)) else {
        return;
    };
    if tracer.action(Signal::CHLD).flags & SA_NOCLDSTOP == 0 {
        let info =
            wait::child_info(&process, &tracer, (code::CLD_TRAPPED, stop.code & 0x7f), &thread.usage());
        tracer.signal(info.about(tracee.shown()));
    }
    tracer.child_changed.wake_all();
}

impl Task {
    /// Stays in a stop until the tracer resumes or releases the thread, or the thread is to end.
    /// Returns the registers that the tracer saw.
    fn stop_for_tracer(
        &self,
        context: &mut UserContext,
        tracee: &Tracee,
        stop: Stop,
        call: Call,
    ) -> UserRegisters {
        let shown = {
            let mut state = tracee.state.lock();
            transfer::show(context, &mut state, call.number, call.result);
            (state.stop, state.news) = (Some(stop), true);
            (state.resume, state.listens) = (None, false);
            state.image
        };
        tell(self, tracee, stop);
        while !self.wait_for_tracer(tracee, stop.kind) {
            // The group stop for whose end the tracer waited is over.
            let stop = Stop::event(StopKind::Event, Signal::TRAP, Event::Stop);
            {
                let mut state = tracee.state.lock();
                (state.stop, state.news, state.listens) = (Some(stop), true, false);
            }
            tell(self, tracee, stop);
        }
        let how = {
            let mut state = tracee.state.lock();
            (state.stop, state.news, state.listens) = (None, false, false);
            transfer::take_back(context, &mut state, &shown);
            let how = state.resume.take().unwrap_or(Resume::Run);
            if how == Resume::Step && !state.released {
                state.forced_trap_flag = transfer::set_trap_flag(context);
            }
            how
        };
        self.traced.go_on(how);
        shown
    }

    /// Sleeps until there is something to do. Returns false if the end of a group stop must be
    /// reported.
    fn wait_for_tracer(&self, tracee: &Tracee, kind: StopKind) -> bool {
        let outcome = loop {
            self.prepare_to_sleep(Sleep::Traced);
            let (free, listens) = {
                let state = tracee.state.lock();
                (state.resume.is_some() || state.released, state.listens)
            };
            if free || self.leaves_stop(kind) {
                break true;
            }
            if listens && self.process().signals.lock().stop().is_none() {
                break false;
            }
            sched::block(self.thread(), None);
        };
        self.finish_sleep();
        outcome
    }

    /// Whether the thread is to end without asking its tracer. If the stop reports the thread's
    /// end, the tracer is asked, unless the thread was killed.
    fn leaves_stop(&self, kind: StopKind) -> bool {
        let group = self.process().signals.lock();
        match (kind, group.exit) {
            (_, Some(ExitStatus::Signaled(Signal::KILL))) => true,
            (StopKind::Event, _) if self.has_finished() => false,
            (_, exit) => exit.is_some() || group.exec.is_some_and(|by| by != self.tid()),
        }
    }

    /// Whether the tracer has resumed this thread during the process' current group stop.
    pub(in crate::task) fn passes(&self, group: &Group) -> bool {
        self.traced.is_traced() && self.traced.passed.load(Ordering::Relaxed) == group.stops()
    }

    /// Stops for PTRACE_INTERRUPT, or for the first stop of a child that is traced from its start.
    #[cold]
    pub(in crate::task) fn stop_if_asked(
        &self,
        context: &mut UserContext,
        interrupted: &mut Option<Interrupted>,
    ) {
        if self.traced.take_trap()
            && let Some(tracee) = self.traced.tracee()
        {
            let stop = Stop::event(StopKind::Event, Signal::TRAP, Event::Stop);
            self.stop_in_call(context, &tracee, stop, interrupted);
        }
    }

    /// Stops where a system call may be about to be restarted. It is not restarted if the tracer
    /// has changed rax or orig_rax, for example to call a function in the program.
    fn stop_in_call(
        &self,
        context: &mut UserContext,
        tracee: &Tracee,
        stop: Stop,
        interrupted: &mut Option<Interrupted>,
    ) {
        let call = interrupted.map_or_else(|| Call::of(context), Call::interrupted);
        let shown = self.stop_for_tracer(context, tracee, stop, call);
        let now = tracee.state.lock().image;
        if (now.orig_rax, now.rax) != (shown.orig_rax, shown.rax) {
            *interrupted = None;
        }
    }

    /// Stops before the signal `info` is delivered. Returns the signal that the tracer passes on.
    pub(in crate::task) fn stop_for_delivery(
        &self,
        context: &mut UserContext,
        info: SigInfo,
        interrupted: &mut Option<Interrupted>,
    ) -> Option<SigInfo> {
        let (Some(tracee), Some(signal)) = (self.traced.tracee(), info.signal()) else { return Some(info) };
        {
            let mut state = tracee.state.lock();
            (state.info, state.inject) = (info, signal.number());
        }
        self.stop_in_call(context, &tracee, Stop::signal(StopKind::Delivery, signal), interrupted);
        let (inject, info) = {
            let state = tracee.state.lock();
            (Signal::new(state.inject.into())?, state.info)
        };
        if info.signal() == Some(inject) {
            return Some(info);
        }
        let tracer = registry::find(tracee.tracer);
        let (pid, uid) = tracer.map_or((0, 0), |tracer| (tracer.number_for(self.process()), tracer.uid()));
        Some(SigInfo::user(inject, code::USER, pid, uid))
    }

    /// Stops a traced thread whose process was stopped by job control.
    #[cold]
    pub(in crate::task) fn stop_with_group(
        self: &Receiver<Self>,
        context: &mut UserContext,
        interrupted: &mut Option<Interrupted>,
    ) {
        let Some(tracee) = self.traced.tracee() else { return };
        let (signal, told) = {
            let mut group = self.process().signals.lock();
            let Some(signal) = group.stop() else { return };
            self.traced.passed.store(group.stops(), Ordering::Relaxed);
            (signal, group.park())
        };
        // If the parent is the tracer, the stop itself notifies it.
        if told && self.process().parent_pid() != tracee.tracer {
            self.process().signals.lock().report = Some(WaitReport::Stopped(signal));
            wait::tell_parent_of_stop(self.process(), signal);
        }
        let stop = match tracee.attached {
            Attached::Seized => Stop::event(StopKind::Group, signal, Event::Stop),
            Attached::Classic => Stop::signal(StopKind::Group, signal),
        };
        self.stop_in_call(context, &tracee, stop, interrupted);
        self.process().signals.lock().parked -= 1;
    }

    /// Stops before a handler begins in a single-stepped thread.
    #[cold]
    pub(in crate::task) fn stop_before_handler(&self, context: &mut UserContext) {
        if let Some(tracee) = self.traced.tracee() {
            let call = Call::of(context);
            self.stop_for_tracer(context, &tracee, Stop::signal(StopKind::Event, Signal::TRAP), call);
        }
    }

    /// Makes a system call of a thread whose tracer watches calls, between two stops, or as one
    /// step.
    pub(crate) fn call_for_tracer(
        &self,
        context: &mut UserContext,
        call: impl FnOnce(&mut UserContext) -> Result<()>,
    ) -> Result<()> {
        if let Some(tracee) = self.tracee_at_calls() {
            context.set_return(Errno::ENOSYS.to_return_value() as u64);
            self.stop_for_tracer(
                context,
                &tracee,
                Self::at_call(&tracee, StopKind::Entry),
                Call::of(context),
            );
            if self.is_dying() {
                return Ok(());
            }
        }
        let number = context.syscall_number();
        // -1 means no call: the result is the tracer's.
        let outcome = if number == NO_CALL { Ok(()) } else { call(context) };
        if let Some(tracee) = self.tracee_at_calls() {
            let seen = match outcome {
                Ok(()) => Call { number, result: None },
                Err(error) => Call::interrupted((number, error)),
            };
            let shown = self.stop_for_tracer(context, &tracee, Self::at_call(&tracee, StopKind::Exit), seen);
            if outcome.is_err() && tracee.state.lock().image.rax != shown.rax {
                return Ok(());
            }
        } else if self.traced.steps() {
            let (pid, uid) = (self.process().number(), self.process().uid());
            self.force_signal(SigInfo::user(Signal::TRAP, code::TRAP_BRKPT, pid, uid));
        }
        outcome
    }

    fn tracee_at_calls(&self) -> Option<Arc<Tracee>> {
        if self.traced.stops_at_calls() { self.traced.tracee() } else { None }
    }

    fn at_call(tracee: &Tracee, kind: StopKind) -> Stop {
        let mut stop = Stop::signal(kind, Signal::TRAP);
        if tracee.wants(Options::TRACESYSGOOD) {
            stop.code |= GOOD;
        }
        stop
    }

    /// Whether a child of this thread is also traced.
    pub(in crate::task) fn follows(&self, flags: CloneFlags, event: Event) -> bool {
        let asked = || self.traced.tracee().is_some_and(|tracee| tracee.wants(event.option()));
        !flags.contains(CloneFlags::UNTRACED) && (flags.contains(CloneFlags::PTRACE) || asked())
    }

    /// Stops if the tracer requested `event`, with `message` for PTRACE_GETEVENTMSG. Returns
    /// whether it stopped.
    pub(in crate::task) fn stop_for_event(
        &self,
        context: &mut UserContext,
        event: Event,
        message: u64,
    ) -> bool {
        let call = match event {
            Event::Exit | Event::Stop => Call::of(context),
            _ => Call::unfinished(context.syscall_number()),
        };
        self.stop_for(context, event, (message, call))
    }

    fn stop_for(&self, context: &mut UserContext, event: Event, (message, call): (u64, Call)) -> bool {
        let Some(tracee) = self.traced.tracee() else { return false };
        if !tracee.wants(event.option()) {
            return false;
        }
        tracee.state.lock().message = message;
        self.stop_for_tracer(context, &tracee, Stop::event(StopKind::Event, Signal::TRAP, event), call);
        true
    }

    /// Reports that a program was executed by the system call `number`. `former` are the previous
    /// numbers of the calling thread.
    pub(in crate::task) fn executed(&self, context: &mut UserContext, number: u64, former: &Numbers) {
        let Some(tracee) = self.traced.tracee() else { return };
        let told = (former.in_view(tracee.view).into(), Call::unfinished(number));
        if !self.stop_for(context, Event::Exec, told) && tracee.attached == Attached::Classic {
            let (pid, uid) = (self.process().number(), self.process().uid());
            self.signal(SigInfo::user(Signal::TRAP, code::USER, pid, uid));
        }
    }

    /// Reports that the thread ends, with its status in the format of wait4.
    pub(in crate::task) fn ending(&self, context: &mut UserContext) {
        if !self.traced.is_traced() {
            return;
        }
        let status = self.process().signals.lock().exit;
        let status = status.unwrap_or(ExitStatus::Exited(self.exit_code()));
        // The stop reports the thread's end, so only SIGKILL ends the stop.
        self.finish(self.exit_code());
        self.stop_for_event(context, Event::Exit, status.wait_status() as u64);
    }
}
