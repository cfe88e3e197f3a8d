//! Sending signals.
//!
//! All of a process' signal state changes under its `signals` lock, an interrupt-safe one. POSIX
//! timers send from interrupt context, where a signal that finds no room is kept by its number
//! only; other senders make room first. Under that lock these are taken, in this order: a thread's
//! `pending`, the `actions`, run queues.

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, Receiver, VecDeque};

use freehold_machine::Cpus;
use freehold_tracepoints::TraceEvent;
use freehold_tracepoints::table::SignalGenerate;

use super::pending::{Action, Queued};
use super::set::{DefaultAction, SigInfo, SigSet, Signal};
use crate::hw::Hardware;
use crate::sched::{self, Sleep};
use crate::task::process::{ExitStatus, Group, Process, WaitReport};
use crate::task::users::Payer;
use crate::task::{INIT, Pid, Task, registry, with_current};
use crate::{Errno, Result};

/// The tracepoint of a signal that is sent to one of these threads, or to all.
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
    Hardware.record_event(SignalGenerate::NUMBER, &event.words());
}

/// The receiver of a signal.
#[derive(Clone, Copy)]
enum Target<'a> {
    Process,
    Thread(&'a Task),
}

impl Process {
    /// Send a signal of the kernel's to the process: any thread that does not block it takes it.
    /// Task context.
    pub fn signal(self: &Receiver<Self>, info: SigInfo) {
        // A signal without a payer is never refused.
        let _: Result<()> = self.send(info, None);
    }

    /// Send a program's signal to the process, queued in the name of the receiver's user.
    ///
    /// # Errors
    /// `EAGAIN` where that user has as many real-time signals queued as RLIMIT_SIGPENDING says.
    pub fn queue_signal(self: &Receiver<Self>, info: SigInfo) -> Result<()> {
        self.send(info, Some(Payer::of(self)))
    }

    fn send(self: &Receiver<Self>, info: SigInfo, payer: Option<Payer>) -> Result<()> {
        self.make_signal_room();
        if self.post(Target::Process, self.seen(info), payer)? == Parent::Tell {
            crate::task::wait::tell_parent_of_continue(self);
        }
        Ok(())
    }

    /// A signal that names a user by the kernel's id, with that id as this process sees it.
    fn seen(&self, info: SigInfo) -> SigInfo {
        if !info.names_user() {
            return info;
        }
        info.with_user(self.with_credentials(|own| own.user_ns.shown_user(info.user_id())))
    }

    /// As [`signal`](Self::signal), for interrupt context; SIGCONT is not sent from there.
    pub fn signal_from_interrupt(&self, info: SigInfo) {
        let _: Result<Parent> = self.post(Target::Process, info, None);
    }

    /// End the process with `status` whatever its threads do; the first call decides.
    pub(crate) fn end(&self, status: ExitStatus) {
        let mut group = self.signals.lock();
        end_group(&mut group, status);
    }

    /// Returns the process' reaction to `signal`.
    pub fn action(&self, signal: Signal) -> Action {
        let shared = self.actions.lock();
        shared.lock().get(signal)
    }
    /// The signals that are ignored, and those that are caught by a handler.
    pub fn dispositions(&self) -> (SigSet, SigSet) {
        let shared = self.actions.lock();
        shared.lock().dispositions()
    }
    /// Change it; returns what it was.
    #[inline]
    pub(in crate::task) fn set_action(&self, signal: Signal, action: Action) -> Action {
        let shared = self.actions.lock();
        let mut actions = shared.lock();
        let old = actions.get(signal);
        actions.set(signal, action);
        old
    }
    /// Whether sending `signal` would do nothing.
    pub fn ignores(&self, signal: Signal) -> bool {
        let shared = self.actions.lock();
        shared.lock().ignores(signal)
    }

    /// Make room for a few signals, in task context.
    fn make_signal_room(&self) {
        let wanted = self.signals.lock().pending.room_wanted();
        if let Some(buffer) = wanted.and_then(buffer_for) {
            let old = self.signals.lock().pending.give_room(buffer);
            drop(old);
        }
    }

    fn post(&self, target: Target<'_>, info: SigInfo, payer: Option<Payer>) -> Result<Parent> {
        let Some(signal) = info.signal() else { return Ok(Parent::Leave) };
        if self.pid == INIT {
            // It handles none, and nothing a program does may end or stop it.
            return Ok(Parent::Leave);
        }
        let shield = self.shield_against(signal, info, payer.as_ref());
        let mut group = self.signals.lock();
        let group = &mut *group;
        // A tracer is told of what it would not get without one, but for SIGKILL.
        let is_traced = || group.threads.iter().any(|thread| thread.traced.is_traced());
        if shield == Shield::Whole && (signal == Signal::KILL || !is_traced()) {
            return Ok(Parent::Leave);
        }
        if group.threads.is_empty() || group.exit.is_some() {
            return Ok(Parent::Leave);
        }
        if Hardware.is_traced::<{ SignalGenerate::NUMBER }>() {
            trace_sent(target, &group.threads, info);
        }
        let parent = stop_or_go_on(group, signal);
        if signal == Signal::KILL || (group.frozen && self.ends_frozen(group, target, signal)) {
            end_group(group, ExitStatus::Signaled(signal));
            return Ok(Parent::Leave);
        }
        let blocks = |thread: &Task| thread.blocked().contains(signal);
        let blocked = match target {
            Target::Thread(thread) => blocks(thread),
            Target::Process => group.threads.iter().all(|thread| blocks(thread)),
        };
        // A blocked signal is kept even where it is ignored now: that may change before it is
        // unblocked.
        if !blocked && (self.ignores(signal) || self.holds(shield, signal)) {
            let keeps = match target {
                Target::Thread(thread) => thread.keeps_ignored(signal),
                Target::Process => group.threads.iter().any(|thread| thread.keeps_ignored(signal)),
            };
            if !keeps {
                return Ok(parent);
            }
        }
        match target {
            Target::Thread(thread) => {
                thread.pending.lock().add(signal, info, payer)?;
                if !blocked {
                    thread.interrupt();
                }
            }
            Target::Process => {
                group.pending.add(signal, info, payer)?;
                if let Some(thread) = group.threads.iter().find(|thread| !blocks(thread)) {
                    thread.interrupt();
                }
            }
        }
        self.signal_arrival.wake_all();
        Ok(parent)
    }
}

/// Protection of the first process of a PID namespace from a signal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shield {
    /// No protection.
    None,
    /// The default action does not happen.
    Default,
    /// The signal is not delivered.
    Whole,
}

impl Process {
    /// How much of a signal is kept from this process. A program sent it, or chose it as a file's,
    /// where `payer` is given.
    #[inline]
    fn shield_against(&self, signal: Signal, info: SigInfo, payer: Option<&Payer>) -> Shield {
        if !self.is_shielded() {
            return Shield::None;
        }
        if !SigSet::UNSTOPPABLE.contains(signal) {
            return Shield::Default;
        }
        // The news of a file may come about in a task of the kernel's.
        let is_forceless =
            || info.file_news().is_some() || with_current(|task| task.process().number_for(self)) != 0;
        if payer.is_some() && is_forceless() { Shield::Whole } else { Shield::None }
    }

    /// Returns whether `signal` ends a frozen target. A frozen thread takes no signal, but one that
    /// ends it anyway does so at once, as on Linux (`complete_signal`).
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

/// Whether the parent is to be told that the process goes on.
#[derive(PartialEq, Eq)]
enum Parent {
    Tell,
    Leave,
}

/// Let all threads end with `status`, unless they already do with another.
pub(crate) fn end_group(group: &mut Group, status: ExitStatus) {
    group.exit.get_or_insert(status);
    group.set_stop(None);
    for thread in &group.threads {
        thread.interrupt();
        sched::wake(thread, &Sleep::UNTIL_KILLED);
    }
}

/// A signal that stops processes, or has one go on, takes back those that do the opposite; SIGCONT
/// and SIGKILL wake a stopped one.
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
        // A tracee may listen for the end of the stop.
        sched::wake(thread, &[Sleep::Stopped, Sleep::Traced]);
    }
    if was_stopped && signal == Signal::CONT {
        group.report = Some(WaitReport::Continued);
        return Parent::Tell;
    }
    Parent::Leave
}

/// Forget pending `signals` of the process and all its threads.
fn forget(group: &mut Group, signals: SigSet) {
    group.pending.remove(signals);
    for thread in &group.threads {
        thread.pending.lock().remove(signals);
    }
}

impl Process {
    /// Forget a pending signal that is ignored from now on (sigaction).
    pub(super) fn forget_pending(&self, signal: Signal) {
        forget(&mut self.signals.lock(), SigSet::EMPTY.with(signal));
    }
}

/// Memory for so many queued signals; `None` where there is none, and they are known by number
/// only.
fn buffer_for(signals: usize) -> Option<VecDeque<Queued>> {
    VecDeque::try_with_capacity(signals).ok()
}

impl Task {
    /// Send a signal of the kernel's to this thread alone. Task context.
    pub fn signal(&self, info: SigInfo) {
        let _: Result<()> = self.send(info, None);
    }

    /// Send a program's signal to this thread alone; see [`Process::queue_signal`].
    ///
    /// # Errors
    /// As there.
    pub fn queue_signal(&self, info: SigInfo) -> Result<()> {
        self.send(info, Some(Payer::of(self.process())))
    }

    #[inline]
    fn send(&self, info: SigInfo, payer: Option<Payer>) -> Result<()> {
        let wanted = self.pending.lock().room_wanted();
        if let Some(buffer) = wanted.and_then(buffer_for) {
            let old = self.pending.lock().give_room(buffer);
            drop(old);
        }
        if self.process().post(Target::Thread(self), self.process().seen(info), payer)? == Parent::Tell {
            crate::task::wait::tell_parent_of_continue(self.process());
        }
        Ok(())
    }

    /// As [`signal`](Self::signal), for interrupt context.
    pub fn signal_from_interrupt(&self, info: SigInfo) {
        let _: Result<Parent> = self.process().post(Target::Thread(self), info, None);
    }

    /// Send a signal that an instruction of this, the current, thread caused. It cannot be blocked
    /// or ignored: a program that does so gets the default action.
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

    /// Take a pending signal of `wanted`, this thread's before the process' (signalfd,
    /// sigtimedwait).
    pub fn take_signal(&self, wanted: SigSet) -> Option<SigInfo> {
        let mut group = self.process().signals.lock();
        let own = self.pending.lock().take(wanted);
        own.or_else(|| group.pending.take(wanted))
    }

    /// The pending signal number `index` of this thread, or of its process, which stays pending.
    pub(in crate::task) fn pending_at(&self, index: usize, whose: Whose) -> Option<SigInfo> {
        let group = self.process().signals.lock();
        match whose {
            Whose::Process => group.pending.at(index),
            Whose::Thread => self.pending.lock().at(index),
        }
    }

    /// The signals that are pending for this thread or its process.
    pub fn pending_signals(&self) -> SigSet {
        let group = self.process().signals.lock();
        let own = self.pending.lock().set();
        own.union(group.pending.set())
    }

    /// Keep `signals` where they are sent though they are ignored: sigtimedwait waits for them, and
    /// they are blocked but for that (Linux: real_blocked).
    pub(super) fn keep_even_ignored(&self, signals: SigSet) {
        self.kept.store(signals.0, Ordering::SeqCst);
    }
    /// A tracer is told of all signals.
    fn keeps_ignored(&self, signal: Signal) -> bool {
        self.traced.is_traced() || SigSet(self.kept.load(Ordering::SeqCst)).contains(signal)
    }

    /// Blocks exactly `signals` (SIGKILL and SIGSTOP excepted); signals that became deliverable are
    /// looked at.
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

/// Send a signal from the kernel to `process`.
pub fn signal_kernel(process: &Arc<Process>, signal: Signal) {
    process.signal(SigInfo::kernel(signal));
}

/// Send a signal from the kernel to all processes of a group; how many there are.
///
/// # Errors
/// `ESRCH` where the group has no process.
pub fn signal_group(group: Pid, signal: Signal) -> Result<usize> {
    let told = registry::group_members(group).map(|member| member.signal(SigInfo::kernel(signal))).count();
    if told == 0 { Err(Errno::ESRCH) } else { Ok(told) }
}

/// Send a signal from the kernel to the leader of a session, if it is still there.
pub fn signal_session_leader(session: Pid, signal: Signal) {
    if let Some(leader) = registry::find(session) {
        leader.signal(SigInfo::kernel(signal));
    }
}
