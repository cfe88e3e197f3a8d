//! Sending signals.
//!
//! All of a process' signal state changes under its `signals` lock, an interrupt-safe one. POSIX
//! timers send from interrupt context. If a signal finds no room there, only its number is kept;
//! other senders make room first. Under that lock these locks are taken, in this order: a thread's
//! `pending`, the `actions`, run queues.

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, Receiver, VecDeque};

use freehold_machine::Cpus;
use freehold_tracepoints::TraceEvent;
use freehold_tracepoints::table::SignalGenerate;

use super::pending::{Action, KeptSignal, Queued};
use super::set::{DefaultAction, SigInfo, SigSet, Signal};
use crate::hw::Hardware;
use crate::sched::{self, Sleep};
use crate::task::process::{ExitStatus, Group, Process, WaitReport};
use crate::task::users::Payer;
use crate::task::{INIT, Pid, Task, registry, with_current};
use crate::{Errno, Result, tracing};

/// Emits the tracepoint of a signal that is sent to one of these threads, or to all.
#[cold]
#[inline(never)]
fn trace_sent(target: Target<'_>, threads: &[Arc<Task>], info: SigInfo) {
    let (group, thread) = match target {
        Target::Thread(thread) => (0, Some(thread)),
        Target::Process => (1, threads.first().map(|first| &**first)),
    };
    let Some(thread) = thread else { return };
    let (comm, pid) = (thread.label.comm(), thread.label.pid());
    let event = SignalGenerate { sig: info.number, errno: info.errno, code: info.code, comm, pid, group };
    tracing::record(SignalGenerate::NUMBER, &event.words());
}

/// The receiver of a signal.
#[derive(Clone, Copy)]
enum Target<'a> {
    Process,
    Thread(&'a Task),
}

impl Process {
    /// Sends a signal of the kernel to the process. Any thread that does not block it may take it.
    /// Task context.
    pub fn signal(self: &Receiver<Self>, info: SigInfo) {
        // A signal without a payer is never refused.
        let _: Result<()> = self.send(info, None);
    }

    /// Sends a program's signal to the process, charged to the receiver's user.
    ///
    /// # Errors
    /// `EAGAIN` if that user has as many real-time signals queued as RLIMIT_SIGPENDING permits.
    pub fn queue_signal(self: &Receiver<Self>, info: SigInfo) -> Result<()> {
        self.send(info, Some(Payer::of(self)))
    }

    fn send(self: &Receiver<Self>, info: SigInfo, payer: Option<Payer>) -> Result<()> {
        self.make_signal_room();
        if self.post(Target::Process, self.seen(info), payer)?.parent == Parent::Tell {
            crate::task::wait::tell_parent_of_continue(self);
        }
        Ok(())
    }

    /// Returns a signal in which the ID of a user is translated for this process.
    fn seen(&self, info: SigInfo) -> SigInfo {
        if !info.names_user() {
            return info;
        }
        info.with_user(self.with_credentials(|own| own.user_ns.shown_user(info.user_id())))
    }

    /// As [`signal`](Self::signal), for interrupt context; SIGCONT is not sent from there. Returns
    /// how much of the signal is kept.
    pub fn signal_from_interrupt(&self, info: SigInfo) -> KeptSignal {
        self.post(Target::Process, info, None).map_or(KeptSignal::Nothing, |posted| posted.kept)
    }

    /// Ends the process with `status`, whatever its threads do. The first call determines the
    /// status.
    pub(crate) fn end(&self, status: ExitStatus) {
        let mut group = self.signals.lock();
        end_group(&mut group, status);
    }

    /// Returns the process' reaction to `signal`.
    pub fn action(&self, signal: Signal) -> Action {
        let shared = self.actions.lock();
        shared.lock().get(signal)
    }
    /// Returns the ignored signals, and those with a handler.
    pub fn dispositions(&self) -> (SigSet, SigSet) {
        let shared = self.actions.lock();
        shared.lock().dispositions()
    }
    /// Sets the reaction to `signal`. Returns the previous one.
    #[inline]
    pub(in crate::task) fn set_action(&self, signal: Signal, action: Action) -> Action {
        let shared = self.actions.lock();
        let mut actions = shared.lock();
        let old = actions.get(signal);
        actions.set(signal, action);
        old
    }
    /// Whether sending `signal` would have no effect.
    pub fn ignores(&self, signal: Signal) -> bool {
        let shared = self.actions.lock();
        shared.lock().ignores(signal)
    }

    /// Keeps room for the signal of a timer.
    ///
    /// # Errors
    /// `EAGAIN` without memory.
    pub(in crate::task) fn reserve_for_timer(&self) -> Result<()> {
        let reserve = || self.signals.lock().pending.reserve_for_timer();
        reserve_with(reserve, |buffer| self.signals.lock().pending.give_room(buffer))
    }

    /// Makes room for a few signals. Task context.
    pub(in crate::task) fn make_signal_room(&self) {
        let wanted = self.signals.lock().pending.room_wanted();
        if let Some(buffer) = wanted.and_then(buffer_for) {
            let old = self.signals.lock().pending.give_room(buffer);
            drop(old);
        }
    }

    fn post(&self, target: Target<'_>, info: SigInfo, payer: Option<Payer>) -> Result<Posted> {
        let Some(signal) = info.signal() else { return Ok(Posted::DROPPED) };
        if self.pid == INIT {
            // The process handles no signals, and programs must not be able to end or stop it.
            return Ok(Posted::DROPPED);
        }
        let shield = self.shield_against(signal, info, payer.as_ref());
        let mut group = self.signals.lock();
        let group = &mut *group;
        // A tracer is notified even of ignored signals, except SIGKILL.
        let is_traced = || group.threads.iter().any(|thread| thread.traced.is_traced());
        if shield == Shield::Whole && (signal == Signal::KILL || !is_traced()) {
            return Ok(Posted::DROPPED);
        }
        if group.threads.is_empty() || group.exit.is_some() {
            return Ok(Posted::DROPPED);
        }
        if Hardware.is_traced::<{ SignalGenerate::NUMBER }>() {
            trace_sent(target, &group.threads, info);
        }
        let parent = stop_or_go_on(group, signal);
        if signal == Signal::KILL || (group.frozen && self.ends_frozen(group, target, signal)) {
            end_group(group, ExitStatus::Signaled(signal));
            return Ok(Posted::DROPPED);
        }
        let blocks = |thread: &Task| thread.blocked().contains(signal);
        let blocked = match target {
            Target::Thread(thread) => blocks(thread),
            Target::Process => group.threads.iter().all(|thread| blocks(thread)),
        };
        // A blocked signal is kept even if it is ignored now: that may change before it is
        // unblocked.
        if !blocked && (self.ignores(signal) || self.holds(shield, signal)) {
            let keeps = match target {
                Target::Thread(thread) => thread.keeps_ignored(signal),
                Target::Process => group.threads.first().is_some_and(|thread| thread.keeps_ignored(signal)),
            };
            if !keeps {
                return Ok(Posted { parent, kept: KeptSignal::Nothing });
            }
        }
        let kept = match target {
            Target::Thread(thread) => {
                let kept = thread.pending.lock().add(signal, info, payer)?;
                if !blocked {
                    thread.interrupt();
                }
                kept
            }
            Target::Process => {
                let kept = group.pending.add(signal, info, payer)?;
                if let Some(thread) = group.threads.iter().find(|thread| !blocks(thread)) {
                    thread.interrupt();
                }
                kept
            }
        };
        self.signal_arrival.wake_all();
        Ok(Posted { parent, kept })
    }
}

/// Protection of the first process of a PID namespace from a signal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shield {
    /// No protection.
    None,
    /// The default action is suppressed.
    Default,
    /// The signal is not delivered.
    Whole,
}

impl Process {
    /// Returns the process' protection from a signal. `payer` is given if a program sent the
    /// signal, or chose it for a file.
    #[inline]
    fn shield_against(&self, signal: Signal, info: SigInfo, payer: Option<&Payer>) -> Shield {
        if !self.is_shielded() {
            return Shield::None;
        }
        if !SigSet::UNSTOPPABLE.contains(signal) {
            return Shield::Default;
        }
        // A kernel task may cause the event of a file.
        let is_forceless =
            || info.file_news().is_some() || with_current(|task| task.process().number_for(self)) != 0;
        if payer.is_some() && is_forceless() { Shield::Whole } else { Shield::None }
    }

    /// Returns whether `signal` ends a frozen target. A frozen thread takes no signals, but as on
    /// Linux a fatal signal ends it at once (`complete_signal`).
    #[cold]
    fn ends_frozen(&self, group: &Group, target: Target<'_>, signal: Signal) -> bool {
        let takes = |thread: &Task| !thread.blocked().contains(signal);
        let is_taken = match target {
            Target::Thread(thread) => takes(thread),
            Target::Process => group.threads.iter().any(|thread| takes(thread)),
        };
        is_taken
            && !self.is_shielded()
            && signal.default_action() == DefaultAction::Terminate
            && self.action(signal).handler == super::SIG_DFL
            && !group.threads.iter().any(|thread| thread.traced.is_traced())
    }

    fn holds(&self, shield: Shield, signal: Signal) -> bool {
        shield == Shield::Default && self.action(signal).handler == super::SIG_DFL
    }
}

/// The receiver of a pending signal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::task) enum Whose {
    Process,
    Thread,
}

/// Whether the parent is to be notified that the process continues.
#[derive(PartialEq, Eq)]
enum Parent {
    Tell,
    Leave,
}

/// The result of sending a signal.
struct Posted {
    parent: Parent,
    kept: KeptSignal,
}

impl Posted {
    const DROPPED: Self = Self { parent: Parent::Leave, kept: KeptSignal::Nothing };
}

/// Makes all threads end with `status`, unless they already end with another status.
pub(crate) fn end_group(group: &mut Group, status: ExitStatus) {
    group.exit.get_or_insert(status);
    group.set_stop(None);
    for thread in &group.threads {
        thread.interrupt();
        sched::wake(thread, &Sleep::UNTIL_KILLED);
    }
}

/// A signal that stops or continues processes removes pending signals with the opposite effect.
/// SIGCONT and SIGKILL wake a stopped process.
fn stop_or_go_on(group: &mut Group, signal: Signal) -> Parent {
    if SigSet::STOPPING.contains(signal) {
        forget(group, SigSet::of(&[Signal::CONT]));
        return Parent::Leave;
    }
    if signal != Signal::CONT && signal != Signal::KILL {
        return Parent::Leave;
    }
    if signal == Signal::CONT {
        forget(group, SigSet::STOPPING);
    }
    let was_stopped = group.set_stop(None).is_some();
    for thread in &group.threads {
        // A tracee may wait for the end of the stop (PTRACE_LISTEN).
        sched::wake(thread, &[Sleep::Stopped, Sleep::Traced]);
    }
    if was_stopped && signal == Signal::CONT {
        group.report = Some(WaitReport::Continued);
        return Parent::Tell;
    }
    Parent::Leave
}

/// Removes pending `signals` of the process and all its threads. Returns whether there were any.
fn forget(group: &mut Group, signals: SigSet) -> bool {
    let mut had_any = group.pending.remove(signals);
    for thread in &group.threads {
        had_any |= thread.pending.lock().remove(signals);
    }
    had_any
}

impl Process {
    /// Removes a pending signal that is ignored from now on (sigaction).
    pub(super) fn forget_pending(&self, signal: Signal) {
        let had_any = forget(&mut self.signals.lock(), SigSet::EMPTY.with(signal));
        if had_any {
            self.restart_timers(signal);
        }
    }
}

/// Allocates a buffer for `signals` queued signals. `None` without memory: then only their numbers
/// are kept.
fn buffer_for(signals: usize) -> Option<VecDeque<Queued>> {
    VecDeque::try_with_capacity(signals).ok()
}

/// Calls `reserve` until it has room. As long as it wants a buffer, `give` gets one and returns the
/// old one, which is freed without a lock.
///
/// # Errors
/// `EAGAIN` without memory.
fn reserve_with(
    reserve: impl Fn() -> Option<usize>,
    give: impl Fn(VecDeque<Queued>) -> VecDeque<Queued>,
) -> Result<()> {
    while let Some(wanted) = reserve() {
        let old = give(buffer_for(wanted).ok_or(Errno::EAGAIN)?);
        drop(old);
    }
    Ok(())
}

impl Task {
    /// Sends a signal of the kernel to this thread alone. Task context.
    pub fn signal(&self, info: SigInfo) {
        let _: Result<()> = self.send(info, None);
    }

    /// Sends a program's signal to this thread alone; see [`Process::queue_signal`].
    ///
    /// # Errors
    /// As there.
    pub fn queue_signal(&self, info: SigInfo) -> Result<()> {
        self.send(info, Some(Payer::of(self.process())))
    }

    /// As [`Process::reserve_for_timer`], for a signal to this thread.
    ///
    /// # Errors
    /// As there.
    pub(in crate::task) fn reserve_for_timer(&self) -> Result<()> {
        let reserve = || self.pending.lock().reserve_for_timer();
        reserve_with(reserve, |buffer| self.pending.lock().give_room(buffer))
    }

    #[inline]
    fn send(&self, info: SigInfo, payer: Option<Payer>) -> Result<()> {
        let wanted = self.pending.lock().room_wanted();
        if let Some(buffer) = wanted.and_then(buffer_for) {
            let old = self.pending.lock().give_room(buffer);
            drop(old);
        }
        let posted = self.process().post(Target::Thread(self), self.process().seen(info), payer)?;
        if posted.parent == Parent::Tell {
            crate::task::wait::tell_parent_of_continue(self.process());
        }
        Ok(())
    }

    /// As [`signal`](Self::signal), for interrupt context. Returns how much of the signal is kept.
    pub fn signal_from_interrupt(&self, info: SigInfo) -> KeptSignal {
        let posted = self.process().post(Target::Thread(self), info, None);
        posted.map_or(KeptSignal::Nothing, |posted| posted.kept)
    }

    /// Sends a signal that an instruction of the current thread, `self`, caused. It cannot be
    /// blocked or ignored: a program that does so gets the default action.
    pub fn force_signal(&self, info: SigInfo) {
        if let Some(signal) = info.signal() {
            let action = self.process().action(signal);
            if self.blocked().contains(signal) || action.handler == super::SIG_IGN {
                self.process().set_action(signal, Action::default());
                self.set_blocked(self.blocked().without(signal));
            }
            if self.process().action(signal).handler == super::SIG_DFL && !self.traced.is_traced() {
                self.process().drop_shield();
            }
        }
        self.signal(info);
    }

    /// Removes and returns a pending signal of `wanted`, of this thread before those of the process
    /// (signalfd, sigtimedwait). The caller then [restarts](Process::restart_timer) its timer.
    pub fn take_signal(&self, wanted: SigSet) -> Option<SigInfo> {
        let mut group = self.process().signals.lock();
        let own = self.pending.lock().take(wanted);
        own.or_else(|| group.pending.take(wanted))
    }

    /// Returns the pending signal with index `index`, of this thread or of its process. It stays
    /// pending.
    pub(in crate::task) fn pending_at(&self, index: usize, whose: Whose) -> Option<SigInfo> {
        let group = self.process().signals.lock();
        match whose {
            Whose::Process => group.pending.at(index),
            Whose::Thread => self.pending.lock().at(index),
        }
    }

    /// Returns the signals that are pending for this thread or its process.
    pub fn pending_signals(&self) -> SigSet {
        let group = self.process().signals.lock();
        let own = self.pending.lock().set();
        own.union(group.pending.set())
    }

    /// Makes `signals` pending when they are sent, even though they are ignored: sigtimedwait waits
    /// for them. Except for that, they are blocked (Linux: real_blocked).
    pub(super) fn keep_even_ignored(&self, signals: SigSet) {
        self.kept.store(signals.0, Ordering::SeqCst);
    }
    /// A tracer is notified of all signals. Of a signal to the process, the first thread decides
    /// (Linux: `sig_ignored`).
    fn keeps_ignored(&self, signal: Signal) -> bool {
        self.traced.is_traced() || SigSet(self.kept.load(Ordering::SeqCst)).contains(signal)
    }

    /// Blocks exactly `signals` (except SIGKILL and SIGSTOP). Marks the thread if signals became
    /// deliverable.
    pub fn set_blocked(&self, signals: SigSet) {
        let signals = signals.minus(SigSet::UNSTOPPABLE);
        self.blocked.store(signals.0, core::sync::atomic::Ordering::SeqCst);
        if !self.pending_signals().minus(signals).is_empty() {
            self.call_attention(crate::sched::thread::SIGNAL);
        }
    }
}

/// Sends SIGPIPE to the current thread, which wrote to a pipe or socket without a reader.
pub fn signal_broken_pipe() {
    if let Some(task) = crate::task::try_current() {
        task.signal(SigInfo::kernel(Signal::PIPE));
    }
}

/// Sends a signal of the kernel to `process`.
pub fn signal_kernel(process: &Arc<Process>, signal: Signal) {
    process.signal(SigInfo::kernel(signal));
}

/// Sends a signal of the kernel to all processes of a group. Returns their number.
///
/// # Errors
/// `ESRCH` if the group has no process.
pub fn signal_group(group: Pid, signal: Signal) -> Result<usize> {
    let told = registry::group_members(group).map(|member| member.signal(SigInfo::kernel(signal))).count();
    if told == 0 { Err(Errno::ESRCH) } else { Ok(told) }
}

/// Sends a signal of the kernel to the leader of a session, if it still exists.
pub fn signal_session_leader(session: Pid, signal: Signal) {
    if let Some(leader) = registry::find(session) {
        leader.signal(SigInfo::kernel(signal));
    }
}
