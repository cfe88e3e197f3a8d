//! System calls about signals.

use super::set::code;
use super::{Action, DefaultAction, SIG_DFL, SIG_IGN, SigInfo, SigSet, Signal, write_whole};
use crate::sync::WaitQueue;
use crate::syscall::Args;
use crate::task::pidns::FIRST;
use crate::task::registry::{ProcessWalk, find_by_number, find_task_by_number};
use crate::task::userns::{IdKind, OVERFLOW_ID};
use crate::task::{Pid, Process, Task, current, kernel_id, pidfd, registry, with_current};
use crate::time::{self, TimeSpec};
use crate::user::UserPtr;
use crate::{Errno, Result};
use freehold_collections::Arc;

fn check_size(size: usize) -> Result<()> {
    if size == size_of::<SigSet>() { Ok(()) } else { Err(Errno::EINVAL) }
}

/// rt_sigaction(signal, new, old, size)
pub fn sys_rt_sigaction(args: &Args) -> Result<i64> {
    check_size(args.size(3))?;
    let signal = Signal::new(i64::from(args.int(0))).ok_or(Errno::EINVAL)?;
    let task = current();
    let process = task.process();
    let new = UserPtr::<Action>::new(args[1]).read_optional()?;
    let old = if let Some(mut new) = new {
        if SigSet::UNSTOPPABLE.contains(signal) {
            return Err(Errno::EINVAL);
        }
        new.mask = new.mask.minus(SigSet::UNSTOPPABLE);
        let old = process.set_action(signal, new);
        let ignored = new.handler == SIG_IGN
            || (new.handler == SIG_DFL && signal.default_action() == DefaultAction::Ignore);
        if ignored {
            process.forget_pending(signal);
        }
        old
    } else {
        process.action(signal)
    };
    UserPtr::new(args[2]).write_optional(&old)?;
    Ok(0)
}

/// rt_sigprocmask(how, new, old, size)
pub fn sys_rt_sigprocmask(args: &Args) -> Result<i64> {
    const BLOCK: i32 = 0;
    const UNBLOCK: i32 = 1;
    const SETMASK: i32 = 2;
    check_size(args.size(3))?;
    let task = current();
    let old = task.blocked();
    if let Some(set) = UserPtr::<SigSet>::new(args[1]).read_optional()? {
        task.set_blocked(match args.int(0) {
            BLOCK => old.union(set),
            UNBLOCK => old.minus(set),
            SETMASK => set,
            _ => return Err(Errno::EINVAL),
        });
    }
    UserPtr::new(args[2]).write_optional(&old)?;
    Ok(0)
}

/// rt_sigpending(set, size)
pub fn sys_rt_sigpending(args: &Args) -> Result<i64> {
    if args.size(1) > size_of::<SigSet>() {
        return Err(Errno::EINVAL);
    }
    let task = current();
    let set = task.pending_signals().intersection(task.blocked());
    crate::user::write_exact(args[0], &set.0.to_le_bytes()[..args.size(1)])?;
    Ok(0)
}

/// rt_sigsuspend(mask, size)
pub fn sys_rt_sigsuspend(args: &Args) -> Result<i64> {
    check_size(args.size(1))?;
    let mask = UserPtr::<SigSet>::new(args[0]).read()?;
    current().swap_mask(mask);
    sleep_for_signal()
}

/// pause()
pub fn sys_pause(_args: &Args) -> Result<i64> {
    sleep_for_signal()
}

fn sleep_for_signal() -> Result<i64> {
    let nobody = WaitQueue::new();
    let _: Result<()> = nobody.wait_until(|| None);
    Err(Errno::ERESTARTNOHAND)
}

impl Task {
    /// Blocks `mask` until the call returns to user mode. If a handler runs first, until it has
    /// returned. Then the present mask is restored.
    pub fn swap_mask(&self, mask: SigSet) {
        let mut saved = self.saved_mask.lock();
        if saved.is_none() {
            *saved = Some(self.blocked());
        }
        drop(saved);
        self.set_blocked(mask);
    }
}

/// rt_sigtimedwait(set, info, timeout, size)
pub fn sys_rt_sigtimedwait(args: &Args) -> Result<i64> {
    check_size(args.size(3))?;
    let wanted = UserPtr::<SigSet>::new(args[0]).read()?.minus(SigSet::UNSTOPPABLE);
    let deadline = match UserPtr::<TimeSpec>::new(args[2]).read_optional()? {
        None => None,
        Some(time) => Some(time::now().saturating_add(time.nanoseconds()?)),
    };
    let task = current();
    let blocked = task.blocked();
    // The signals are unblocked meanwhile, so that a sender selects and wakes this thread.
    let arrival = task.process().signal_arrival.clone();
    let info = match task.take_signal(wanted) {
        Some(info) => Some(info),
        None => {
            task.keep_even_ignored(blocked);
            task.set_blocked(blocked.minus(wanted));
            let waited = arrival.wait_until_deadline(deadline, || task.take_signal(wanted));
            task.set_blocked(blocked);
            task.keep_even_ignored(SigSet::EMPTY);
            match waited {
                Ok(info) => info,
                Err(_) => match task.take_signal(wanted) {
                    Some(info) => Some(info),
                    None => return Err(Errno::EINTR),
                },
            }
        }
    };
    let info = task.process().restart_timer(info.ok_or(Errno::EAGAIN)?);
    if args[1] != 0 {
        write_whole(&info, args[1])?;
    }
    Ok(i64::from(info.number))
}

fn may_signal(sender: &Process, target: &Process, signal: Option<Signal>) -> Result<()> {
    let continues = signal == Some(Signal::CONT) && sender.session().id == target.session().id;
    if continues || sender.pid == target.pid || sender.credentials().may_signal(&target.credentials()) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

fn signal_argument(number: i32) -> Result<Option<Signal>> {
    if number == 0 { Ok(None) } else { Signal::new(i64::from(number)).map(Some).ok_or(Errno::EINVAL) }
}

/// kill(pid, signal)
pub fn sys_kill(args: &Args) -> Result<i64> {
    let signal = signal_argument(args.int(1))?;
    let sender = current().process().clone();
    let uid = sender.credentials().uid;
    let send = |target: &Arc<Process>| -> Result<()> {
        may_signal(&sender, target, signal)?;
        if let Some(signal) = signal {
            target.queue_signal(SigInfo::user(signal, code::USER, sender.number_for(target), uid))?;
        }
        Ok(())
    };
    let (targets, whom): (fn(Pid) -> ProcessWalk, Pid) = match args.int(0) {
        i32::MIN => return Err(Errno::ESRCH),
        pid if pid > 0 => {
            send(&process_named(pid.unsigned_abs())?)?;
            return Ok(0);
        }
        0 => (registry::group_members, sender.group()),
        -1 => (|_| registry::processes(), EVERYBODY),
        group => {
            let group = registry::pid_by_number(group.unsigned_abs()).ok_or(Errno::ESRCH)?;
            (registry::group_members, group)
        }
    };
    let view = sender.pid_view();
    let mut outcome = Err(Errno::ESRCH);
    loop {
        let mut is_new = false;
        for target in targets(whom) {
            let is_spared = target.number_in(view) <= FIRST || target.pid == sender.pid;
            if whom == EVERYBODY && is_spared {
                continue;
            }
            let ends = || signal == Some(Signal::KILL) && target.signals.lock().exit.is_some();
            let ended = ends();
            match send(&target) {
                Ok(()) => outcome = Ok(0),
                Err(error) if outcome != Ok(0) => outcome = Err(error),
                Err(_) => {}
            }
            is_new |= !ended && ends();
        }
        // The next pass finds children that were forked meanwhile. A child of a killed process is
        // killed, too.
        if !is_new {
            return outcome;
        }
        crate::sched::checkpoint()?;
    }
}

/// Not the ID of any group.
const EVERYBODY: Pid = 0;

fn signal_thread(process: Option<Pid>, tid: i32, number: i32) -> Result<i64> {
    if tid <= 0 {
        return Err(Errno::EINVAL);
    }
    let signal = signal_argument(number)?;
    let task = find_task_by_number(tid.unsigned_abs()).ok_or(Errno::ESRCH)?;
    if process.is_some_and(|pid| registry::pid_by_number(pid) != Some(task.process().pid)) {
        return Err(Errno::ESRCH);
    }
    let sender = current();
    let sender = sender.process();
    may_signal(sender, task.process(), signal)?;
    if let Some(signal) = signal {
        let number = sender.number_for(task.process());
        task.queue_signal(SigInfo::user(signal, code::TKILL, number, sender.uid()))?;
    }
    Ok(0)
}

/// tkill(tid, signal)
pub fn sys_tkill(args: &Args) -> Result<i64> {
    signal_thread(None, args.int(0), args.int(1))
}

/// tgkill(pid, tid, signal)
pub fn sys_tgkill(args: &Args) -> Result<i64> {
    if args.int(0) <= 0 {
        return Err(Errno::EINVAL);
    }
    signal_thread(Some(args.uint(0)), args.int(1), args.int(2))
}

/// Returns the process with this number, or the process of the thread with this number. As on
/// Linux, a signal for either goes to the process.
///
/// # Errors
/// `ESRCH`.
fn process_named(number: u32) -> Result<Arc<Process>> {
    let of_thread = || find_task_by_number(number).map(|task| task.process().clone());
    find_by_number(number).or_else(of_thread).ok_or(Errno::ESRCH)
}

/// Reads the siginfo that a program passes. It must not claim to come from the kernel.
fn queued_info(address: u64, number: i32, target: Pid) -> Result<(SigInfo, Option<Signal>)> {
    let signal = signal_argument(number)?;
    let mut info = UserPtr::<SigInfo>::new(address).read()?;
    if (info.code >= 0 || info.code == code::TKILL) && target != current().process().number() {
        return Err(Errno::EPERM);
    }
    info.number = number;
    info.pad = 0;
    Ok((of_kernel(info), signal))
}

/// Returns the siginfo that a program passes, with the kernel's ID of the user that it names.
fn of_kernel(info: SigInfo) -> SigInfo {
    if !info.names_user() {
        return info;
    }
    info.with_user(kernel_id(IdKind::User, info.user_id()).unwrap_or(OVERFLOW_ID))
}

/// Returns the siginfo that a program passes, for `target`: a sender that is invisible to the
/// target has no number. Otherwise the program's claim is kept (Linux: `send_signal_locked`).
fn from_sender(info: SigInfo, target: &Process) -> SigInfo {
    let sees = with_current(|task| task.process().number_for(target)) != 0;
    if sees || !info.names_user() { info } else { info.about(0) }
}

/// rt_sigqueueinfo(pid, signal, info)
pub fn sys_rt_sigqueueinfo(args: &Args) -> Result<i64> {
    let (info, signal) = queued_info(args[2], args.int(1), args.uint(0))?;
    let target = process_named(args.uint(0))?;
    may_signal(current().process(), &target, signal)?;
    if signal.is_some() {
        target.queue_signal(from_sender(info, &target))?;
    }
    Ok(0)
}

/// pidfd_send_signal(pidfd, signal, info, flags)
pub fn sys_pidfd_send_signal(args: &Args) -> Result<i64> {
    if args.uint(3) != 0 {
        return Err(Errno::EINVAL);
    }
    let (pid, target) = pidfd::meant_by(args.fd(0))?;
    let sender = current().process().clone();
    let given = UserPtr::<SigInfo>::new(args[2]).read_optional()?;
    if let Some(info) = &given {
        if info.number != args.int(1) {
            return Err(Errno::EINVAL);
        }
        if (info.code >= 0 || info.code == code::TKILL) && pid != sender.pid {
            return Err(Errno::EPERM);
        }
    }
    let target = target?;
    // A pidfd may come from a process in an outer PID namespace (Linux: `access_pidfd_pidns`).
    if !sender.pid_ns().contains(target.pid_ns()) {
        return Err(Errno::EINVAL);
    }
    let signal = signal_argument(args.int(1))?;
    may_signal(&sender, &target, signal)?;
    if let Some(signal) = signal {
        let own = SigInfo::user(signal, code::USER, sender.number_for(&target), sender.uid());
        let given = given.map(|info| from_sender(of_kernel(SigInfo { pad: 0, ..info }), &target));
        target.queue_signal(given.unwrap_or(own))?;
    }
    Ok(0)
}

/// rt_tgsigqueueinfo(pid, tid, signal, info)
pub fn sys_rt_tgsigqueueinfo(args: &Args) -> Result<i64> {
    let (info, signal) = queued_info(args[3], args.int(2), args.uint(0))?;
    let task = find_task_by_number(args.uint(1)).ok_or(Errno::ESRCH)?;
    if registry::pid_by_number(args.uint(0)) != Some(task.process().pid) {
        return Err(Errno::ESRCH);
    }
    may_signal(current().process(), task.process(), signal)?;
    if signal.is_some() {
        task.queue_signal(from_sender(info, task.process()))?;
    }
    Ok(0)
}
