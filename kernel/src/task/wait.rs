//! Waiting for children: wait4, the core of waitid, and the notifications of a parent.

use core::sync::atomic::Ordering;

use bitflags::bitflags;
use freehold_collections::Arc;

use super::process::{Collector, ExitStatus, Process, Usage, WaitReport, Zombie};
use super::signal::{SA_NOCLDSTOP, SA_NOCLDWAIT, SIG_IGN, SigInfo, Signal, code};
use super::usage::to_abi;
use super::{Pid, current, registry};
use crate::syscall::Args;
use crate::user::UserPtr;
use crate::{Errno, Result};

bitflags! {
    /// WNOHANG and its family.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct WaitFlags: u32 {
        /// Do not sleep.
        const NOHANG = 1;
        /// Report stopped children, too (WUNTRACED).
        const STOPPED = 2;
        /// Report ended children.
        const EXITED = 4;
        /// Report continued children, too.
        const CONTINUED = 8;
        /// Leave the child's state unchanged.
        const NOWAIT = 0x0100_0000;
        /// Only children of this thread.
        const NOTHREAD = 0x2000_0000;
        /// Report children with any exit signal.
        const ALL = 0x4000_0000;
        /// Report only children with another exit signal than SIGCHLD.
        const CLONE = 0x8000_0000;
    }
}

/// The children that are waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Selector {
    Any,
    One(Pid),
    Group(Pid),
    /// The process with this ID and this time of creation.
    Opened(Pid, u64),
}

/// State change of a child.
pub(super) struct ChildChange {
    /// The child's number in its parent's or tracer's PID namespace.
    pub pid: Pid,
    pub uid: u32,
    /// The status in the format of wait4.
    status: i32,
    /// CLD_*.
    pub code: i32,
    /// si_status.
    pub value: i32,
    child: Arc<Process>,
}

impl ChildChange {
    /// Writes the resources that the child and its own waited-for children used, unless `to` is
    /// null: they are the sum of as many threads as the child has.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn write_usage(&self, to: u64) -> Result<()> {
        if to == 0 { Ok(()) } else { UserPtr::new(to).write(&to_abi(&usage_of(&self.child))) }
    }
}

/// Returns the resources that a process and its waited-for children used (RUSAGE_BOTH).
fn usage_of(process: &Process) -> Usage {
    let has_ended = process.exit_status().is_some();
    let mut usage = if has_ended { process.signals.lock().past } else { process.usage() };
    usage.add(&process.children_usage());
    usage
}

impl Selector {
    fn chooses(self, child: &Process) -> bool {
        match self {
            Self::Any => true,
            Self::One(pid) => child.pid == pid,
            Self::Group(group) => child.group() == group,
            Self::Opened(pid, started) => child.pid == pid && child.started == started,
        }
    }
}

fn is_eligible(child: &Process, flags: WaitFlags) -> bool {
    let usual = child.exit_signal.load(Ordering::Relaxed) == u32::from(Signal::CHLD.number());
    flags.contains(WaitFlags::ALL) || usual != flags.contains(WaitFlags::CLONE)
}

/// Returns CLD_* and si_status for the end of a process.
pub(super) fn code_of(status: ExitStatus) -> (i32, i32) {
    match status {
        ExitStatus::Exited(value) => (code::CLD_EXITED, i32::from(value)),
        ExitStatus::Signaled(signal) => (code::CLD_KILLED, i32::from(signal.number())),
        ExitStatus::Dumped(signal) => (code::CLD_DUMPED, i32::from(signal.number())),
    }
}

/// The reason why no tracee is reported.
#[derive(PartialEq, Eq)]
enum News {
    /// No tracee is waited for.
    Nobody,
    /// The awaited tasks exist, but none of them has changed its state yet.
    None,
}

/// Returns a change of a tracee that `tracer` waits for: the tracee is in a stop, or has ended and
/// is no child of the tracer.
fn look_at_tracees(
    tracer: &Process,
    selector: Selector,
    flags: WaitFlags,
) -> core::result::Result<ChildChange, News> {
    let (mut least, mut news) = match selector {
        Selector::One(tid) | Selector::Opened(tid, _) => (tid, News::Nobody),
        Selector::Any | Selector::Group(_) => (0, News::Nobody),
    };
    loop {
        let next = tracer.tracees.lock().next(least).cloned();
        let Some(tracee) = next else { return Err(news) };
        if matches!(selector, Selector::One(tid) | Selector::Opened(tid, _) if tid != tracee.tid()) {
            return Err(news);
        }
        least = tracee.tid() + 1;
        let Some(process) = registry::find(tracee.pid) else { continue };
        if matches!(selector, Selector::Group(group) if process.group() != group) {
            continue;
        }
        news = News::None;
        let keeps = flags.contains(WaitFlags::NOWAIT);
        let (status, ended) = {
            let mut state = tracee.state.lock();
            match (state.ended, state.stop) {
                (Some(status), _) if flags.contains(WaitFlags::EXITED) => {
                    if !keeps {
                        state.ended = None;
                    }
                    (status, true)
                }
                (None, Some(stop)) if state.news => {
                    state.news = keeps;
                    (stop.wait_status(), false)
                }
                _ => continue,
            }
        };
        let (code, value) = match (ended, status & 0x7f) {
            (false, _) => (code::CLD_TRAPPED, status >> 8),
            (true, 0) => (code::CLD_EXITED, status >> 8),
            (true, signal) if status & 0x80 != 0 => (code::CLD_DUMPED, signal),
            (true, signal) => (code::CLD_KILLED, signal),
        };
        let uid = process.credentials().uid;
        if ended && !keeps {
            let removed = tracer.tracees.lock().remove(tracee.tid());
            drop(removed);
            process.tell_held_end(&tracee);
        }
        return Ok(ChildChange { pid: tracee.shown(), uid, status, code, value, child: process });
    }
}

/// Takes the report of a living child: the child was stopped, or continues.
fn take_report(child: &Arc<Process>, flags: WaitFlags) -> Option<ChildChange> {
    let mut group = child.signals.lock();
    let (status, code, value) = match group.report {
        Some(WaitReport::Stopped(signal)) if flags.contains(WaitFlags::STOPPED) => {
            let number = i32::from(signal.number());
            (number << 8 | 0x7f, code::CLD_STOPPED, number)
        }
        Some(WaitReport::Continued) if flags.contains(WaitFlags::CONTINUED) => {
            (0xffff, code::CLD_CONTINUED, i32::from(Signal::CONT.number()))
        }
        _ => return None,
    };
    if !flags.contains(WaitFlags::NOWAIT) {
        group.report = None;
    }
    drop(group);
    let uid = child.credentials().uid;
    Some(ChildChange { pid: child.pid, uid, status, code, value, child: child.clone() })
}

/// Returns a change of a child or a tracee, or `None` if there is none yet.
fn look(parent: &Arc<Process>, selector: Selector, flags: WaitFlags) -> Result<Option<ChildChange>> {
    if parent.tracees.lock().is_empty() {
        return look_at_children(parent, selector, flags);
    }
    match look_at_tracees(parent, selector, flags) {
        Ok(outcome) => Ok(Some(outcome)),
        Err(News::None) => match look_at_children(parent, selector, flags) {
            Err(Errno::ECHILD) => Ok(None),
            other => other,
        },
        Err(News::Nobody) => look_at_children(parent, selector, flags),
    }
}

/// Returns a change of a child, or `None` if there is none yet.
fn look_at_children(
    parent: &Arc<Process>,
    selector: Selector,
    flags: WaitFlags,
) -> Result<Option<ChildChange>> {
    let mut registry = registry::lock();
    let mut any = false;
    let mut zombie = None;
    let one = match selector {
        Selector::One(pid) | Selector::Opened(pid, _) => {
            registry.process(pid).filter(|child| child.parent_pid() == parent.pid)
        }
        _ => None,
    };
    let all = matches!(selector, Selector::Any | Selector::Group(_)).then(|| registry.children(parent));
    for child in one.into_iter().chain(all.into_iter().flatten()) {
        if !selector.chooses(child) || !is_eligible(child, flags) {
            continue;
        }
        match child.zombie() {
            // A child that has ended is none for a caller that does not wait for ends.
            Some(_) if !flags.contains(WaitFlags::EXITED) => {}
            Some(Zombie { awaits: Collector::None, .. }) => {}
            Some(Zombie { awaits: Collector::Tracer, .. }) => any = true,
            Some(Zombie { awaits: Collector::Parent, status }) => {
                zombie = Some((child.clone(), status));
                break;
            }
            None => {
                any = true;
                if let Some(outcome) = take_report(child, flags) {
                    return Ok(Some(ChildChange { pid: child.number_for(parent), ..outcome }));
                }
            }
        }
    }
    let Some((child, status)) = zombie else {
        return if any { Ok(None) } else { Err(Errno::ECHILD) };
    };
    let (code, value) = code_of(status);
    let outcome = ChildChange {
        pid: child.number_for(parent),
        uid: child.credentials().uid,
        status: status.wait_status(),
        code,
        value,
        child: child.clone(),
    };
    if !flags.contains(WaitFlags::NOWAIT) {
        let removed = registry.remove_process(&child);
        drop(registry);
        let usage = usage_of(&child);
        parent.children_usage.lock().add(&usage);
        drop(removed);
        tell_ending_namespaces(&child);
    }
    Ok(Some(outcome))
}

/// Waits for a change of a child of the caller. Returns `None` with `NOHANG` if there is none yet.
///
/// # Errors
/// `ECHILD`; `ERESTARTSYS` if a signal comes.
pub(super) fn wait_for(selector: Selector, flags: WaitFlags) -> Result<Option<ChildChange>> {
    let process = current().process().clone();
    if flags.contains(WaitFlags::NOHANG) {
        return look(&process, selector, flags);
    }
    let found = process.child_changed.wait_until(|| look(&process, selector, flags).transpose())??;
    Ok(Some(found))
}

/// Waits until any child has ended; for the kernel's init. `None` if there is no child.
pub(super) fn reap_one() -> Option<(Pid, i32)> {
    let flags = WaitFlags::EXITED | WaitFlags::ALL;
    wait_for(Selector::Any, flags).ok().flatten().map(|outcome| (outcome.pid, outcome.status))
}

/// Removes the ended children of a process that has itself ended.
pub(super) fn reap_ended(process: &Arc<Process>) {
    let flags = WaitFlags::EXITED | WaitFlags::ALL;
    while let Ok(Some(_)) = look_at_children(process, Selector::Any, flags) {}
}

/// Called after a process was removed. If its PID namespace, or one above, is ending, the first
/// process of that namespace checks whether it was the last.
fn tell_ending_namespaces(gone: &Process) {
    let mut namespace = gone.pid_ns();
    while let Some(parent) = namespace.parent() {
        if namespace.is_ending()
            && let Some(init) = registry::find(namespace.init())
        {
            init.child_changed.wake_all();
        }
        namespace = parent;
    }
}

/// Returns the ID that the caller names by a number or its negative. For an unknown number, returns
/// an ID that no child or group has.
pub(super) fn meant(number: i32) -> Result<Pid> {
    registry::pid_by_number(number.unsigned_abs()).ok_or(Errno::ECHILD)
}

/// wait4(pid, status, options, rusage)
pub fn sys_wait4(args: &Args) -> Result<i64> {
    let flags = WaitFlags::from_bits_retain(args.uint(2));
    let allowed = WaitFlags::NOHANG
        | WaitFlags::STOPPED
        | WaitFlags::CONTINUED
        | WaitFlags::NOTHREAD
        | WaitFlags::ALL
        | WaitFlags::CLONE;
    if !allowed.contains(flags) {
        return Err(Errno::EINVAL);
    }
    let selector = match args.int(0) {
        i32::MIN => return Err(Errno::ESRCH),
        -1 => Selector::Any,
        0 => Selector::Group(current().process().group()),
        pid if pid < 0 => Selector::Group(meant(pid)?),
        pid => Selector::One(meant(pid)?),
    };
    let Some(outcome) = wait_for(selector, flags | WaitFlags::EXITED)? else { return Ok(0) };
    UserPtr::<i32>::new(args[1]).write_optional(&outcome.status)?;
    outcome.write_usage(args[3])?;
    Ok(i64::from(outcome.pid))
}

/// Returns the signal that reports a process' end. The parent may have executed a more powerful
/// program since it chose that signal. That program gets only SIGCHLD (Linux: `do_notify_parent`).
fn exit_signal(process: &Process, parent: &Process) -> Option<Signal> {
    let is_chosen_by_it =
        process.maker_executed.load(Ordering::Relaxed) == parent.executed.load(Ordering::Relaxed);
    if !is_chosen_by_it {
        return Some(Signal::CHLD);
    }
    Signal::new(i64::from(process.exit_signal.load(Ordering::Relaxed)))
}

/// Makes `process` a zombie that its parent may collect. Returns the parent and the signal for it.
fn become_zombie(
    process: &Process,
    status: ExitStatus,
    parent: Option<Arc<Process>>,
) -> Option<(Arc<Process>, Option<Signal>)> {
    let mut awaits = Collector::None;
    let told = parent.map(|parent| {
        let signal = exit_signal(process, &parent);
        let action = parent.action(Signal::CHLD);
        let ignores = action.handler == SIG_IGN;
        let of_children = signal == Some(Signal::CHLD);
        if !(of_children && (ignores || action.flags & SA_NOCLDWAIT != 0)) {
            awaits = Collector::Parent;
        }
        (parent, signal.filter(|_| !(of_children && ignores)))
    });
    *process.zombie.lock() = Some(Zombie { status, awaits });
    told
}

/// Makes `process` a zombie and notifies the parent. If the parent ignores that, the process is
/// removed at once.
pub(super) fn tell_parent_of_end(process: &Arc<Process>, status: ExitStatus) {
    let told = loop {
        let parent = process.parent();
        let chosen = parent.as_ref().map(|parent| parent.pid);
        let told = become_zombie(process, status, parent);
        // A parent that ended meanwhile may not have seen the zombie that it handed over.
        if process.parent().map(|parent| parent.pid) == chosen {
            break told;
        }
    };
    process.ended.wake_all();
    let Some((parent, signal)) = told else { return };
    // After the zombie, since a handler may wait for the child.
    if let Some(signal) = signal {
        let (code, value) = code_of(status);
        let mut info = child_info(process, &parent, (code, value), &process.usage());
        info.number = i32::from(signal.number());
        parent.signal(info);
    }
    if process.zombie().is_some_and(|zombie| zombie.awaits == Collector::None) {
        let removed = registry::lock().remove_process(process);
        drop(removed);
        tell_ending_namespaces(process);
    }
    parent.child_changed.wake_all();
}

/// Notifies the parent that `process` continues after a stop.
pub(crate) fn tell_parent_of_continue(process: &Arc<Process>) {
    tell_parent(process, code::CLD_CONTINUED, i32::from(Signal::CONT.number()));
}

/// Notifies the parent that `process` was stopped by `signal`.
pub(crate) fn tell_parent_of_stop(process: &Arc<Process>, signal: Signal) {
    tell_parent(process, code::CLD_STOPPED, i32::from(signal.number()));
}

fn tell_parent(process: &Arc<Process>, code: i32, status: i32) {
    let Some(parent) = process.parent() else { return };
    if parent.action(Signal::CHLD).flags & SA_NOCLDSTOP == 0 {
        // Linux tells the times of the first thread alone (`do_notify_parent_cldstop`).
        let usage = process.leader().map_or_else(Usage::default, |thread| thread.usage());
        parent.signal(child_info(process, &parent, (code, status), &usage));
    }
    parent.child_changed.wake_all();
}

/// Makes the siginfo of a SIGCHLD about `child` for `reader`, with the times of `usage` in ticks of
/// 10 ms.
pub(crate) fn child_info(
    child: &Process,
    reader: &Process,
    (code, status): (i32, i32),
    usage: &Usage,
) -> SigInfo {
    const TICK: u64 = 10_000_000;
    let uid = child.credentials().uid;
    SigInfo::child(code, child.number_for(reader), uid, status)
        .with_ticks(usage.user / TICK, usage.system / TICK)
}
