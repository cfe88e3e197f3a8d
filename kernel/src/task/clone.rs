//! fork, vfork, clone, clone3.

use core::sync::atomic::Ordering;

use bitflags::bitflags;
use freehold_collections::{
    Arc, Vec,
    reserve::{self, ArcMethods},
};
use freehold_machine::Cpus;
use freehold_tracepoints::trace;
use freehold_vm::TaskPolicy;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::io_context::IoSharing;
use super::namespaces::Namespaces;
use super::namespaces::calls::of_child;
use super::pidfd::Given;
use super::pidns::{FIRST, Levels, MOST_LEVELS, Numbers, PidNs};
use super::process::{Beginnings, Process};
use super::signal::{AlternateStack, SigInfo, Signal};
use super::trace::Event;
use super::{Capability, Credentials, Pid, Resource, Task, above, current, registry, spawn, users};
use crate::cgroup::member::ThreadFork;
use crate::cgroup::{CgroupMember, Fork};
use crate::fs::FsContext;
use crate::hw::user::{USER_END, UserContext};
use crate::mem::ProcessSpace;
use crate::sched::{Idle, Schedule};
use crate::sync::{Completion, IrqSpinLock};
use crate::syscall::Args;
use crate::user::{self, UserPtr};
use crate::{Errno, Result, hw};

bitflags! {
    /// CLONE_*.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct CloneFlags: u64 {
        /// The child gets a new time namespace (clone3; unshare: future children).
        const NEW_TIME = 0x80;
        /// The child shares the memory.
        const VM = 0x100;
        /// The child shares root, working directory and umask.
        const FS = 0x200;
        /// The child shares the descriptors.
        const FILES = 0x400;
        /// The child shares the signal handlers.
        const SIGHAND = 0x800;
        /// The caller requests a pidfd.
        const PIDFD = 0x1000;
        /// The child is also traced by the caller's tracer.
        const PTRACE = 0x2000;
        /// The parent sleeps until the child executes a program or ends.
        const VFORK = 0x4000;
        /// The child's parent is the caller's parent.
        const PARENT = 0x8000;
        /// The child is a thread of the same process.
        const THREAD = 0x1_0000;
        /// The child gets a new mount namespace.
        const NEWNS = 0x2_0000;
        /// The child shares the semaphore adjustments.
        const SYSVSEM = 0x4_0000;
        /// The thread pointer is passed.
        const SETTLS = 0x8_0000;
        /// The child's ID is written to the parent's memory.
        const PARENT_SETTID = 0x10_0000;
        /// When the child ends, 0 is written to memory and the futex there is woken.
        const CHILD_CLEARTID = 0x20_0000;
        /// Obsolete, ignored.
        const DETACHED = 0x40_0000;
        /// The tracer cannot force tracing on the child.
        const UNTRACED = 0x80_0000;
        /// The child's ID is written to the child's memory.
        const CHILD_SETTID = 0x100_0000;
        /// All flags for new namespaces, except NEWNS.
        const NEW_NAMESPACES = 0x7e00_0080;
        /// The child gets a new IPC namespace.
        const NEW_IPC = 0x800_0000;
        /// The child gets a new user namespace.
        const NEW_USER = 0x1000_0000;
        /// The child gets a new PID namespace.
        const NEW_PID = 0x2000_0000;
        /// The child shares the I/O context.
        const IO = 0x8000_0000;
        /// Signal handlers are reset to the default (clone3).
        const CLEAR_SIGHAND = 0x1_0000_0000;
        /// The child is put into another control group (clone3).
        const INTO_CGROUP = 0x2_0000_0000;
    }
}

/// The task that clone(2) is to make.
struct CloneRequest {
    flags: CloneFlags,
    exit_signal: Option<Signal>,
    stack: u64,
    parent_tid: u64,
    child_tid: u64,
    tls: u64,
    /// The address for the number of the pidfd.
    pidfd: Option<u64>,
    /// The requested IDs of the child, beginning with that in its own PID namespace.
    set_tid: Vec<Pid>,
    /// The descriptor of the control group for the child.
    cgroup: Option<i32>,
}

/// The argument of clone3, as far as this kernel knows it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Smallest size of clone3's argument.
const CLONE_ARGS_SIZE_VER0: usize = 64;
/// Size of an argument that names a control group.
const CLONE_ARGS_SIZE_VER2: usize = 88;

/// fork()
pub fn sys_fork(context: &mut UserContext, _args: &Args) -> Result<i64> {
    make(context, &CloneRequest::plain(CloneFlags::empty()))
}

/// vfork()
pub fn sys_vfork(context: &mut UserContext, _args: &Args) -> Result<i64> {
    make(context, &CloneRequest::plain(CloneFlags::VFORK | CloneFlags::VM))
}

/// clone(flags, stack, parent_tid, child_tid, tls)
pub fn sys_clone(context: &mut UserContext, args: &Args) -> Result<i64> {
    let flags = CloneFlags::from_bits_retain(args[0] & 0xffff_ff00);
    let request = CloneRequest {
        flags,
        exit_signal: Signal::new(args.long(0) & 0xff),
        stack: args[1],
        parent_tid: args[2],
        child_tid: args[3],
        tls: args[4],
        pidfd: flags.contains(CloneFlags::PIDFD).then_some(args[2]),
        set_tid: Vec::new(),
        cgroup: None,
    };
    make(context, &request)
}

/// clone3(args, size)
pub fn sys_clone3(context: &mut UserContext, args: &Args) -> Result<i64> {
    let size = args.size(1);
    if size > 4096 {
        return Err(Errno::E2BIG);
    }
    if size < CLONE_ARGS_SIZE_VER0 {
        return Err(Errno::EINVAL);
    }
    let bytes = user::read_vec(args[0], size)?;
    let known = size.min(size_of::<CloneArgs>());
    let mut given = [0; size_of::<CloneArgs>()];
    given[..known].copy_from_slice(&bytes[..known]);
    if bytes[known..].iter().any(|&byte| byte != 0) {
        return Err(Errno::E2BIG);
    }
    let given = CloneArgs::read_from_bytes(&given).map_err(|_| Errno::EINVAL)?;
    let flags = CloneFlags::from_bits(given.flags).ok_or(Errno::EINVAL)?;
    let cgroup = into_cgroup(flags, &given, size)?;
    if flags.intersects(CloneFlags::DETACHED)
        || given.exit_signal > 64
        || (given.stack == 0) != (given.stack_size == 0)
    {
        return Err(Errno::EINVAL);
    }
    if flags.intersects(CloneFlags::THREAD | CloneFlags::PARENT) && given.exit_signal != 0 {
        return Err(Errno::EINVAL);
    }
    if given.set_tid_size > MOST_LEVELS as u64 || (given.set_tid == 0) != (given.set_tid_size == 0) {
        return Err(Errno::EINVAL);
    }
    let request = CloneRequest {
        flags,
        exit_signal: Signal::new(given.exit_signal as i64),
        stack: given.stack.wrapping_add(given.stack_size),
        parent_tid: given.parent_tid,
        child_tid: given.child_tid,
        tls: given.tls,
        pidfd: flags.contains(CloneFlags::PIDFD).then_some(given.pidfd),
        set_tid: UserPtr::new(given.set_tid).read_many(given.set_tid_size as usize)?,
        cgroup,
    };
    make(context, &request)
}

/// Returns the descriptor of the control group that CLONE_INTO_CGROUP names.
fn into_cgroup(flags: CloneFlags, given: &CloneArgs, size: usize) -> Result<Option<i32>> {
    if !flags.contains(CloneFlags::INTO_CGROUP) {
        return Ok(None);
    }
    let fd = i32::try_from(given.cgroup).map_err(|_| Errno::EINVAL)?;
    if size < CLONE_ARGS_SIZE_VER2 { Err(Errno::EINVAL) } else { Ok(Some(fd)) }
}

impl CloneRequest {
    const fn plain(flags: CloneFlags) -> Self {
        Self {
            flags,
            exit_signal: Some(Signal::CHLD),
            stack: 0,
            parent_tid: 0,
            child_tid: 0,
            tls: 0,
            pidfd: None,
            set_tid: Vec::new(),
            cgroup: None,
        }
    }

    /// Returns the event that is reported to a tracer.
    fn event(&self) -> Event {
        if self.flags.contains(CloneFlags::VFORK) {
            Event::Vfork
        } else if self.exit_signal == Some(Signal::CHLD) && !self.flags.contains(CloneFlags::THREAD) {
            Event::Fork
        } else {
            Event::Clone
        }
    }

    /// Rejects invalid combinations, in Linux' order.
    fn check(&self) -> Result<()> {
        let has = |flags| self.flags.contains(flags);
        if has(CloneFlags::NEWNS | CloneFlags::FS)
            || has(CloneFlags::NEW_USER | CloneFlags::FS)
            || has(CloneFlags::NEW_IPC | CloneFlags::SYSVSEM)
            || (has(CloneFlags::THREAD) && !has(CloneFlags::SIGHAND))
            || (has(CloneFlags::SIGHAND) && !has(CloneFlags::VM))
            || has(CloneFlags::SIGHAND | CloneFlags::CLEAR_SIGHAND)
        {
            return Err(Errno::EINVAL);
        }
        let shares_place = has(CloneFlags::PARENT_SETTID) && self.pidfd == Some(self.parent_tid);
        let has_none = self.flags.intersects(CloneFlags::DETACHED | CloneFlags::THREAD);
        if self.pidfd.is_some() && (shares_place || has_none) {
            return Err(Errno::EINVAL);
        }
        // Threads of one process must share descriptors and paths here. No known program separates
        // them.
        if has(CloneFlags::THREAD) && !has(CloneFlags::FILES | CloneFlags::FS) {
            return Err(Errno::EINVAL);
        }
        let namespaces = CloneFlags::NEW_NAMESPACES | CloneFlags::NEWNS;
        // Threads must share namespaces, too: these belong to the process.
        if has(CloneFlags::THREAD) && self.flags.intersects(namespaces) {
            return Err(Errno::EINVAL);
        }
        if has(CloneFlags::SETTLS) && self.tls >= USER_END {
            return Err(Errno::EPERM);
        }
        Ok(())
    }
}

/// Returns the registers that the child begins with: the call's result is 0.
fn child_context(context: &mut UserContext, request: &CloneRequest) -> Result<UserContext> {
    let mut child = context.try_clone().map_err(|_| Errno::ENOMEM)?;
    child.set_return(0);
    if request.stack != 0 {
        child.regs_mut().rsp = request.stack;
    }
    if request.flags.contains(CloneFlags::SETTLS) {
        child.set_fs_base(request.tls).map_err(|_| Errno::EPERM)?;
    }
    Ok(child)
}

/// Makes a thread or a process that continues like the caller, with 0 as the call's result.
fn make(context: &mut UserContext, request: &CloneRequest) -> Result<i64> {
    request.check()?;
    let parent = current();
    if parent.signal_pending() {
        // The sender of a signal to a group addressed its present members. A child must not be
        // added before the signal is handled.
        return Err(Errno::ERESTARTNOINTR);
    }
    users::check_threads(parent.process())?;
    let flags = request.flags;
    let child_context = child_context(context, request)?;
    if flags.contains(CloneFlags::VM) && !flags.contains(CloneFlags::VFORK) {
        parent.process().space().share();
    }
    let place = ChildPlace::of_child(parent.process(), request)?;
    let surroundings = Surroundings::of_child(&parent, request)?;
    let numbers = give_numbers(&parent, surroundings.as_ref(), request)?;
    let tid = numbers.id();
    let made = match surroundings {
        None => Ok(parent.process().clone()),
        Some(surroundings) => new_process(&parent, numbers.clone(), request, (surroundings, place.member())),
    };
    let made = made.and_then(|process| {
        let task = new_task(&parent, numbers.clone(), process, flags);
        with_context(&task, request, child_context).map(|()| task)
    });
    let made = made.and_then(|task| make_known(&parent, &task, request).map(|()| task));
    let task = match made {
        Ok(task) => task,
        Err(error) => {
            registry::lock().release(tid);
            return Err(error);
        }
    };
    // Nothing fails from here on. The child does not run yet.
    place.keep(task.process());
    if parent.is_dying() && !flags.contains(CloneFlags::THREAD) {
        // A sender that killed a whole group may have missed the child: it ends with its parent.
        task.process().signal(SigInfo::kernel(Signal::KILL));
    }
    let told = numbers.in_view(parent.process().pid_view());
    if flags.contains(CloneFlags::PARENT_SETTID) {
        let _ = UserPtr::<u32>::new(request.parent_tid).write(&told);
    }
    start(context, &parent, task, request);
    Ok(i64::from(told))
}

/// Gives a new task its initial registers.
fn with_context(task: &Arc<Task>, request: &CloneRequest, context: UserContext) -> Result<()> {
    if request.flags.contains(CloneFlags::CHILD_CLEARTID) {
        task.clear_child_tid.store(request.child_tid, Ordering::Relaxed);
    }
    let set_tid = request.flags.contains(CloneFlags::CHILD_SETTID).then_some(request.child_tid);
    task.make_user_thread(context, move |task| {
        if let Some(address) = set_tid {
            // As on Linux, a bad address is not reported.
            let _ = UserPtr::<u32>::new(address).write(&task.number());
        }
    })
}

/// The charge of a new thread or process to its control group. It counts from now on; dropping it
/// removes the charge.
enum ChildPlace<'a> {
    Thread(ThreadFork<'a>),
    Process(Fork),
}

impl<'a> ChildPlace<'a> {
    /// # Errors
    /// `EAGAIN` for a limit; for a chosen group the errors of
    /// [`cgroup_for_child`](super::Above::cgroup_for_child) and [`Fork::into`]; `EOPNOTSUPP` for a
    /// thread in another group than its process.
    fn of_child(parent: &'a Process, request: &CloneRequest) -> Result<Self> {
        let chosen = match request.cgroup {
            None => None,
            Some(fd) => Some(above().cgroup_for_child(&*parent.file(fd)?)?),
        };
        if request.flags.contains(CloneFlags::THREAD) {
            if chosen.is_some_and(|chosen| chosen.id() != parent.cgroup.group().id()) {
                return Err(Errno::EOPNOTSUPP);
            }
            return parent.cgroup.fork_thread().map(Self::Thread);
        }
        let fork = match chosen {
            None => parent.cgroup.fork(),
            Some(chosen) => Fork::into(&chosen),
        };
        fork.map(Self::Process)
    }

    fn member(&self) -> CgroupMember {
        match self {
            Self::Thread(_) => Fork::ROOT.place(),
            Self::Process(fork) => fork.place(),
        }
    }

    /// Keeps the charge: from now on the child can be found.
    fn keep(self, process: &Arc<Process>) {
        match self {
            Self::Thread(thread) => thread.keep(),
            Self::Process(fork) => {
                let meanwhile = fork.keep();
                if meanwhile.was_killed {
                    process.signal(SigInfo::kernel(Signal::KILL));
                }
                if meanwhile.is_freezing {
                    process.look_at_freezer();
                }
            }
        }
        process.look_at_payer();
        process.look_at_quota();
    }
}

/// The namespaces and other surroundings of a new process.
struct Surroundings {
    fs: Arc<FsContext>,
    credentials: Arc<Credentials>,
    namespaces: Arc<Namespaces>,
}

impl Surroundings {
    /// Returns those of a child of `parent`; `None` for a thread.
    ///
    /// # Errors
    /// `EINVAL` for a thread of a process whose children are in another PID or time namespace, and
    /// for a sibling of the first process of a PID namespace (Linux: `copy_process`); the errors of
    /// making namespaces.
    fn of_child(parent: &Task, request: &CloneRequest) -> Result<Option<Self>> {
        let (flags, old) = (request.flags, parent.process());
        if flags.contains(CloneFlags::PARENT) && old.is_namespace_init() {
            return Err(Errno::EINVAL);
        }
        if flags.contains(CloneFlags::THREAD) {
            let own = old.namespaces();
            let stays = own.pid_for_children == *old.pid_ns() && own.keeps_time();
            return if stays { Ok(None) } else { Err(Errno::EINVAL) };
        }
        let fs = if flags.contains(CloneFlags::FS) { old.fs() } else { old.fs().duplicate() };
        let (credentials, namespaces) = of_child(old, flags, &fs)?;
        Ok(Some(Self { fs, credentials, namespaces }))
    }
}

/// Assigns the IDs of a new thread or process. They are in use from now on.
fn give_numbers(
    parent: &Task,
    surroundings: Option<&Surroundings>,
    request: &CloneRequest,
) -> Result<Numbers> {
    let own = parent.process().pid_ns();
    let namespace = surroundings.map_or(own, |new| &new.namespaces.pid_for_children);
    if !request.set_tid.is_empty() {
        check_set_tid(parent, namespace, &request.set_tid)?;
    }
    let levels = Levels::new(namespace)?;
    registry::lock().allocate(levels, &request.set_tid)
}

/// Checks that a task may choose the IDs of a child in `namespace` and those above, in Linux' order
/// (`alloc_pid`).
fn check_set_tid(parent: &Task, namespace: &PidNs, wanted: &[Pid]) -> Result<()> {
    if wanted.len() > namespace.level() + 1 {
        return Err(Errno::EINVAL);
    }
    let own = parent.process().credentials();
    let mut here = Some(namespace);
    for &number in wanted {
        let Some(at) = here else { return Err(Errno::EINVAL) };
        if !(1..registry::pid_limit()).contains(&number) || (number != FIRST && !at.has_init()) {
            return Err(Errno::EINVAL);
        }
        let may = |capability| own.may_in(&at.owner(), capability);
        if !may(Capability::CheckpointRestore) && !may(Capability::SysAdmin) {
            return Err(Errno::EPERM);
        }
        here = at.parent();
    }
    Ok(())
}

/// Enters the new thread in the lists of threads, processes and tracees.
fn make_known(parent: &Arc<Task>, task: &Arc<Task>, request: &CloneRequest) -> Result<()> {
    let given = Given::open(task.process(), request.pidfd)?;
    let is_followed = parent.follows(request.flags, request.event());
    let traced = if is_followed { parent.followed_by(task)? } else { None };
    if request.flags.contains(CloneFlags::THREAD) {
        spawn::add_thread(task.process(), task)?;
        let group = task.process().signals.lock();
        // A filter may have been set for all threads since the task was made.
        task.inherit_seccomp(parent);
        drop(group);
        registry::lock().add_task(task);
        users::count_threads(task.process());
    } else {
        task.set_name(&parent.name());
        spawn::enter(task.process(), task, Some(parent.process()))?;
    }
    given.keep();
    if let Some(traced) = traced {
        traced.keep_from_start();
    }
    Ok(())
}

/// Starts the new thread, notifies the parent's tracer, and waits for the child of a vfork.
fn start(context: &mut UserContext, parent: &Arc<Task>, task: Arc<Task>, request: &CloneRequest) {
    let flags = request.flags;
    let tid = parent.traced.view().map_or(0, |view| task.numbers().in_view(view).into());
    let released = flags.contains(CloneFlags::VFORK).then(|| reserve::arc(Completion::new()));
    *task.vfork.lock() = released.clone();
    trace!(
        hw::Hardware,
        SchedFork {
            parent_comm: parent.label.comm(),
            parent_pid: parent.label.pid(),
            child_comm: task.label.comm(),
            child_pid: task.label.pid(),
        }
    );
    task.start();
    drop(task);
    let untraced = flags.contains(CloneFlags::UNTRACED);
    if parent.traced.is_traced() && !untraced {
        parent.stop_for_event(context, request.event(), tid);
    }
    if let Some(released) = released {
        // The child runs on the parent's stack: only a fatal signal ends the wait.
        let done = released.wait_killable();
        if parent.traced.is_traced() && !untraced && done.is_ok() {
            parent.stop_for_event(context, Event::VforkDone, tid);
        }
    }
}

/// Makes a task of `process` with the state inherited from its parent.
fn new_task(parent: &Arc<Task>, numbers: Numbers, process: Arc<Process>, flags: CloneFlags) -> Arc<Task> {
    let schedule = Schedule::new(Idle::No, hw::current_cpu());
    schedule.inherit(&parent.schedule);
    let task = Task::new(numbers, process, schedule, parent.name());
    task.blocked.store(parent.blocked().0, Ordering::Relaxed);
    // The same policy, but a separate interleaving position.
    let policy = parent.memory_policy().map(|policy| reserve::arc(TaskPolicy::new(policy.policy())));
    task.set_memory_policy(policy);
    task.injection.inherit(&parent.injection);
    task.set_closing(parent.closing());
    task.inherit_seccomp(parent);
    let sharing = if flags.contains(CloneFlags::IO) { IoSharing::Shared } else { IoSharing::Copied };
    task.io_context.inherit(&parent.io_context, sharing);
    if flags.contains(CloneFlags::FILES) {
        task.process().files().share();
    }
    if flags.contains(CloneFlags::THREAD) {
        task.keyrings.join(&parent.keyrings);
    } else {
        task.keyrings.inherit(&parent.keyrings);
    }
    if flags.contains(CloneFlags::VM) {
        parent.share_concurrency_id();
    } else {
        task.inherit_rseq(parent);
    }
    let slack = parent.timer_slack.load(Ordering::Relaxed);
    task.timer_slack.store(slack, Ordering::Relaxed);
    task.default_timer_slack.store(slack, Ordering::Relaxed);
    if !flags.contains(CloneFlags::VM) || flags.contains(CloneFlags::VFORK) {
        *task.alternate_stack.lock() = *parent.alternate_stack.lock();
    } else {
        *task.alternate_stack.lock() = AlternateStack::NONE;
    }
    task
}

/// Sets the signal that the child's end sends. With CLONE_PARENT it is the signal of the creating
/// process.
fn set_exit_signal(child: &Process, maker: &Process, request: &CloneRequest) {
    let (signal, executed) = if request.flags.contains(CloneFlags::PARENT) {
        (maker.exit_signal.load(Ordering::Relaxed), &maker.maker_executed)
    } else {
        (request.exit_signal.map_or(0, |signal| u32::from(signal.number())), &maker.executed)
    };
    child.exit_signal.store(signal, Ordering::Relaxed);
    child.maker_executed.store(executed.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Makes a copy of the memory of `old`, for a child in `namespaces`.
fn forked_space(old: &Process, namespaces: &Namespaces) -> Result<Arc<ProcessSpace>> {
    let space = old.space().fork()?;
    // A process in the initial time namespace is a child of one that is there.
    if !namespaces.time.head().is_initial() {
        space.lock().set_time_offsets(namespaces.time.page());
    }
    Ok(space)
}

fn new_process(
    parent: &Arc<Task>,
    numbers: Numbers,
    request: &CloneRequest,
    (Surroundings { fs, credentials, namespaces }, cgroup): (Surroundings, CgroupMember),
) -> Result<Arc<Process>> {
    let flags = request.flags;
    let old = parent.process();
    let space = if flags.contains(CloneFlags::VM) { old.space() } else { forked_space(old, &namespaces)? };
    let files = if flags.contains(CloneFlags::FILES) { old.files() } else { old.files().duplicate()? };
    let actions = {
        let shared = old.actions.lock().clone();
        if flags.contains(CloneFlags::SIGHAND) {
            shared
        } else {
            let mut copy = *shared.lock();
            if flags.contains(CloneFlags::CLEAR_SIGHAND) {
                copy.reset_for_exec();
            }
            reserve::arc(IrqSpinLock::new(copy))
        }
    };
    let mother = if flags.contains(CloneFlags::PARENT) { old.parent() } else { None };
    let mother = mother.unwrap_or_else(|| old.clone());
    let process = Process::new(
        numbers,
        mother.downgrade(),
        Beginnings {
            space,
            files,
            fs,
            credentials,
            namespaces,
            limits: old.limits(),
            actions,
            session: old.session(),
            group_id: old.group(),
            cgroup,
        },
    );
    if flags.contains(CloneFlags::FS) {
        old.forget_places();
    }
    set_exit_signal(&process, old, request);
    process.oom_score_adj.store(old.oom_score_adj.load(Ordering::Relaxed), Ordering::Relaxed);
    process.oom_score_adj_least.store(old.oom_score_adj_least.load(Ordering::Relaxed), Ordering::Relaxed);
    let bound = old.no_new_privileges.load(Ordering::Relaxed);
    process.no_new_privileges.store(bound, Ordering::Relaxed);
    process.barriers.store(old.barriers.load(Ordering::Relaxed), Ordering::Relaxed);
    process.audit.copy(&old.audit);
    process.personality.store(old.personality.load(Ordering::Relaxed), Ordering::Relaxed);
    if flags.contains(CloneFlags::SYSVSEM) {
        *process.undo.lock() = Some(old.undo_slot());
    }
    let process = reserve::arc(process);
    process.watch_cpu_limit(process.limit(Resource::Cpu));
    Ok(process)
}
