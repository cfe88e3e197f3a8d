//! The end of threads and processes.
//!
//! The last thread of a process releases its memory and files, and gives its children to the next
//! reaper. It leaves a zombie for its parent, unless the parent ignores the ends of its children.

use core::sync::atomic::{AtomicU32, Ordering};

use freehold_collections::{Arc, reserve::ArcMethods};

use freehold_machine::Cpus;
use freehold_tracepoints::{Pid, trace};

use super::pidns::FIRST;
use super::process::{Collector, ExitStatus, Process, Usage, Zombie, is_any_stopped};
use super::signal::{SigInfo, Signal, code, end_group};
use super::spawn::kernel_process;
use super::thread::Departure;
use super::{Task, above, current, futex, registry, users, wait};
use crate::cgroup::member::EndedThread;
use crate::mem::ProcessSpace;
use crate::sync::SpinLock;
use crate::syscall::Args;
use crate::user::UserPtr;
use crate::{Result, hw};

/// exit(status): the thread ends.
pub fn sys_exit(args: &Args) -> Result<i64> {
    let task = current();
    task.finish(args[0] as u8);
    Ok(0)
}

/// exit_group(status): all threads end.
pub fn sys_exit_group(args: &Args) -> Result<i64> {
    let task = current();
    let mut group = task.process().signals.lock();
    end_group(&mut group, ExitStatus::Exited(args[0] as u8));
    Ok(0)
}

/// Ends the current user thread. The caller does not return to the program.
pub(super) fn end_thread(task: &Arc<Task>) {
    let process = task.process();
    leave_program(task, Departure::End);
    task.end_meter();
    task.forget_kept();
    // Before the end of the process becomes visible: by then its memory must be released.
    task.leave_translation();
    let (last, counted, removed, ended, status) = {
        let mut group = process.signals.lock();
        let at = group.threads.binary_search_by_key(&task.tid(), |thread| thread.tid());
        let removed = at.ok().map(|at| group.threads.remove(at));
        let counted = task.usage();
        group.past.add(&counted);
        group.ended += 1;
        // If another thread replaces the program, that thread gets the ID.
        let keeps_id = task.tid() == process.pid && group.exec.is_none();
        let ended = if keeps_id { EndedThread::Leader } else { EndedThread::Other };
        let status = group.exit.unwrap_or(ExitStatus::Exited(task.exit_code()));
        (group.threads.is_empty(), counted, removed, ended, status)
    };
    drop(removed);
    // No other thread gives it filters any more.
    task.leave_seccomp();
    users::count_threads(process);
    trace!(
        hw::Hardware,
        SchedExit {
            comm: task.label.comm(),
            pid: task.label.pid(),
            prio: task.schedule.shown_priority(),
            group_dead: last,
        }
    );
    trace!(hw::Hardware, ThreadEnd { tgid: Pid(process.pid as i32), status: status.wait_status() as u32 });
    task.ended_for_tracer();
    if task.is_leader() {
        process.fail_nth.store(task.injection.nth(), Ordering::Relaxed);
    }
    // The registry keeps the ID through the process' own entry until the process is waited for.
    registry::lock().remove_task(task.tid());
    if !last {
        process.cgroup.thread_ended(ended);
    }
    process.thread_ended.wake_all();
    if last {
        end_process(task, status, &counted);
    }
}

/// Releases the robust list and the locks with priority inheritance, and clears the thread ID in
/// the program's memory. Called before the thread leaves that memory: at its end, and at execve.
pub(super) fn leave_program(task: &Task, departure: Departure) {
    task.leave_rseq();
    let robust = task.robust_list.swap(0, Ordering::Relaxed);
    if robust != 0 {
        futex::release_robust_list(robust, task.number());
    }
    task.abandon_locks(departure);
    match departure {
        Departure::End => task.keyrings.clear(),
        Departure::Exec => {
            task.keyrings.end_program();
            task.process().key_ring.clear();
        }
    }
    let clear = task.clear_child_tid.swap(0, Ordering::Relaxed);
    if clear != 0 && UserPtr::<u32>::new(clear).write(&0).is_ok() {
        futex::wake_address(clear, 1);
    }
    if let Some(released) = task.vfork.lock().take() {
        released.complete();
    }
}

/// The number of the process whose memory is kept after its end, or 0.
static KEEPS: AtomicU32 = AtomicU32::new(0);
/// The kept memory.
static KEPT: SpinLock<Option<Arc<ProcessSpace>>> = SpinLock::new(None);

/// Keeps the memory of this process after its end.
pub fn keep_memory_of(pid: super::Pid) {
    KEEPS.store(pid, Ordering::Relaxed);
}

/// Returns the memory that was kept.
pub fn take_kept_memory() -> Option<Arc<ProcessSpace>> {
    KEPT.lock().take()
}

/// The last thread ends the process. `counted` is the part of its usage that the process' account
/// has already.
fn end_process(task: &Task, status: ExitStatus, counted: &Usage) {
    let process = task.process();
    above().process_ends(process);
    process.timers.cancel_all();
    process.key_ring.clear();
    let kernel = kernel_process();
    let space = process.replace_space(kernel.space());
    task.set_translation(kernel.space().translation().clone());
    crate::sched::activate_current();
    let mut peak = 0;
    if space.references() == 1 {
        peak = space.lock().footprint().peak * 4096;
    }
    if process.pid == KEEPS.load(Ordering::Relaxed) {
        *KEPT.lock() = Some(space);
    } else {
        drop(space);
    }
    // For process_mrelease(2).
    process.ended.wake_all();
    let undo = process.undo.lock().take();
    drop(undo);
    above().cancel_operations(process.pid);
    // The kernel's own table has no files, so the end of a process needs no memory.
    let files = process.replace_files(kernel.files());
    if let Some(files) = files.into_last() {
        above().close_files(&files);
    }
    drop(process.replace_fs(kernel.fs()));
    drop(process.replace_namespaces(kernel.namespaces()));
    let leads_session = process.session().id == process.pid;
    if leads_session {
        above().leave_terminal(&process.session());
    }
    process.release_tracees();
    if process.is_namespace_init() {
        end_namespace(process);
    }
    hand_over_children(process);
    // The process' own group is orphaned if only its relation to its parent prevented that.
    hang_up_if_orphaned(process, process.parent().as_ref(), Some(process.pid));
    process.cgroup.thread_ended(EndedThread::Last);
    let late = Usage { peak_resident: peak, ..task.usage().since(counted) };
    process.signals.lock().past.add(&late);
    match process.hold_end(status) {
        Some(tracer) => tracer.tell_of_end(process, status),
        None => wait::tell_parent_of_end(process, status),
    }
}

/// Ends every other process of the namespace whose first process has ended, including those in
/// namespaces below. Waits until all have been removed (Linux: `zap_pid_ns_processes`).
///
/// Each was killed, and no new processes are added. Those with a parent outside remain until it
/// waits for them. The task no longer runs a program, so signals have no effect on it.
fn end_namespace(process: &Arc<Process>) {
    let view = process.pid_view();
    // The first process has the number 1.
    let next = |least| {
        let pids = registry::pids_from(view, least);
        let last = pids.last().map(|&(number, _)| number);
        last.map(|last| (pids, last + 1))
    };
    registry::lock().end_namespace(process.pid_ns());
    let mut least = FIRST + 1;
    while let Some((pids, after)) = next(least) {
        for (_, pid) in pids {
            if let Some(other) = registry::find(pid).filter(|other| other.number_in(view) != 0) {
                other.signal(SigInfo::kernel(Signal::KILL));
            }
        }
        crate::sched::rest();
        least = after;
    }
    process.child_changed.wait_uninterruptible(|| {
        wait::reap_ended(process);
        next(FIRST + 1).is_none().then_some(())
    });
}

/// Gives the children to the next reaper, one by one: there may be many, and no memory for a list.
fn hand_over_children(process: &Arc<Process>) {
    // Consecutive children mostly belong to the same group.
    let mut settled = None;
    loop {
        // A separate statement, so that the code below runs without the registry's lock.
        let next = registry::lock().hand_over_child(process);
        let Some(child) = next else { return };
        crate::sched::rest();
        // The exit signal that the old parent chose is unknown to the new one.
        child.exit_signal.store(u32::from(Signal::CHLD.number()), Ordering::Relaxed);
        let signal = child.parent_death_signal.load(Ordering::Relaxed);
        if let Some(signal) = Signal::new(i64::from(signal)) {
            child.signal(SigInfo::user(signal, code::USER, process.number_for(&child), 0));
        }
        if let Some(Zombie { status, awaits: Collector::Parent }) = child.zombie() {
            wait::tell_parent_of_end(&child, status);
        }
        if settled.replace(child.group()) != Some(child.group()) {
            hang_up_if_orphaned(&child, Some(process), None);
        }
    }
}

/// Sends SIGHUP to a stopped group that no process can continue any more (POSIX, _exit). It is the
/// group of `member`, which loses `parent`; that process may have connected the group to its
/// session. `leaver` is about to end and does not count.
fn hang_up_if_orphaned(member: &Process, parent: Option<&Arc<Process>>, leaver: Option<super::Pid>) {
    if !is_any_stopped() {
        return;
    }
    let group = member.group();
    let was_tied =
        |parent: &Arc<Process>| parent.group() != group && parent.session().id == member.session().id;
    if !parent.is_some_and(was_tied) {
        return;
    }
    let living = || registry::group_members(group).filter(|member| member.exit_status().is_none());
    let stopped = living().any(|member| member.signals.lock().stop().is_some());
    if stopped && registry::lock().is_orphaned(group, leaver) {
        for member in living() {
            member.signal(SigInfo::kernel(Signal::HUP));
            member.signal(SigInfo::kernel(Signal::CONT));
        }
    }
}
