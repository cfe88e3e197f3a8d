//! Making tasks: kernel tasks, and user threads with a saved program state.

use freehold_collections::{
    Arc, Box, Receiver, Vec,
    reserve::{self, ArcMethods},
};
use freehold_machine::{CpuId, CpuSet};

use super::namespaces::Namespaces;
use super::pidns::Numbers;
use super::process::{Beginnings, Process};
use super::{Credentials, Limits, Session, Task, above, registry, users};
use crate::cgroup::Fork;
use crate::fs::{FileTable, FsContext};
use crate::hw::thread;
use crate::hw::user::UserContext;
use crate::mem::ProcessSpace;
use crate::sched::thread::SIGNAL;
use crate::sched::{self, Idle, Schedule, Thread};
use crate::sync::IrqSpinLock;
use crate::task::signal::Actions;
use crate::{Errno, Result, hw};

/// The process of all kernel tasks. It is not in the registry and never ends.
static KERNEL: spin::Once<Arc<Process>> = spin::Once::new();

/// Makes the process of kernel tasks. Called once, before any task exists.
pub fn init(space: Arc<ProcessSpace>, fs: Arc<FsContext>) {
    let files = FileTable::new();
    KERNEL.call_once(|| {
        reserve::arc(Process::new(
            Numbers::initial(0),
            reserve::no_weak(),
            Beginnings {
                space,
                files,
                fs,
                credentials: reserve::arc(Credentials::default()),
                namespaces: Namespaces::initial(),
                limits: Limits::initial(registry::tasks_max()),
                actions: reserve::arc(IrqSpinLock::new(Actions::new())),
                session: reserve::arc(Session::new(0)),
                group_id: 0,
                cgroup: Fork::ROOT.place(),
            },
        ))
    });
}

/// Returns the process of kernel tasks.
///
/// # Panics
/// Before [`init`].
pub fn kernel_process() -> &'static Arc<Process> {
    KERNEL.get().expect("the kernel's process is made before any task")
}

/// Returns a name in the form that tasks store.
pub(super) fn short(name: &[u8]) -> [u8; 16] {
    let mut bytes = [0; 16];
    let length = name.len().min(15);
    bytes[..length].copy_from_slice(&name[..length]);
    bytes
}

/// Makes `cpu` take part in scheduling: the code that runs now becomes its idle task.
///
/// # Errors
/// `ENOMEM`.
pub fn start_cpu(cpu: CpuId) -> Result<()> {
    let idle = Task::new(
        Numbers::initial(0),
        kernel_process().clone(),
        Schedule::new(Idle::Yes, cpu),
        short(b"idle"),
    );
    sched::start(cpu, idle.thread().clone())?;
    // It never ends.
    thread::show_for_ever(reserve::leaked(idle));
    Ok(())
}

impl Task {
    /// Gives a new task its kernel thread, which will run `body`.
    pub(super) fn run_in_kernel(self: &Receiver<Self>, body: impl FnOnce() + Send + 'static) -> Result<()> {
        self.make_thread(|_| body())
    }

    fn make_thread(self: &Receiver<Self>, body: impl FnOnce(&Arc<Task>) + Send + 'static) -> Result<()> {
        // A weak reference, because the task owns the thread.
        let owner = self.downgrade();
        self.thread().prepare(move || {
            if let Some(task) = owner.upgrade() {
                thread::show(&task, || body(&task));
            }
        })
    }

    /// Gives a new user task its kernel thread, which will run the program from `context`. `first`
    /// runs before that, on the new thread.
    pub(super) fn make_user_thread(
        self: &Receiver<Self>,
        mut context: UserContext,
        first: impl FnOnce(&Arc<Task>) + Send + 'static,
    ) -> Result<()> {
        self.stack.take()?;
        self.make_thread(move |task| {
            context.take_first_rights();
            first(task);
            above().run_program(task, &mut context);
            task.ending(&mut context);
            super::exit::end_thread(task);
        })
    }

    /// Starts a new task.
    pub(super) fn start(self: &Receiver<Self>) {
        self.thread().start(self.clone());
    }
}

/// Starts a task that runs `body` in the kernel and then ends.
///
/// # Errors
/// `ENOMEM`, `EAGAIN`.
pub(super) fn spawn_kernel(name: &'static str, body: Box<dyn FnOnce() + Send>) -> Result<Arc<Thread>> {
    spawn(name, Schedule::new(Idle::No, hw::current_cpu()), MemoryCharge::Nothing, body)
}

/// As [`spawn_kernel`], for a task whose stack and pages are charged to the running thread's
/// account.
///
/// # Errors
/// `ENOMEM`, `EAGAIN`.
pub(super) fn spawn_charged(name: &'static str, body: Box<dyn FnOnce() + Send>) -> Result<Arc<Thread>> {
    spawn(name, Schedule::new(Idle::No, hw::current_cpu()), MemoryCharge::Running, body)
}

/// As [`spawn_kernel`], for a task that stays on `cpu`.
///
/// # Errors
/// `ENOMEM`.
pub fn spawn_kernel_on(cpu: CpuId, body: Box<dyn FnOnce() + Send>) -> Result<Arc<Thread>> {
    let schedule = Schedule::new(Idle::No, cpu);
    schedule.begin_on(CpuSet::single(cpu));
    spawn("on-one-cpu", schedule, MemoryCharge::Nothing, body)
}

/// The memory of a kernel task that is charged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemoryCharge {
    Nothing,
    /// Its stack and its pages, to the account of the running thread.
    Running,
}

fn spawn(
    name: &'static str,
    schedule: Schedule,
    charge: MemoryCharge,
    body: Box<dyn FnOnce() + Send>,
) -> Result<Arc<Thread>> {
    let task = Task::new(Numbers::initial(0), kernel_process().clone(), schedule, short(name.as_bytes()));
    if charge == MemoryCharge::Running {
        task.stack.take()?;
        task.thread().set_account(sched::thread::account());
    }
    registry::count_kernel_task();
    let body = move || {
        body();
        registry::forget_kernel_task();
    };
    task.run_in_kernel(body).inspect_err(|_| registry::forget_kernel_task())?;
    task.start();
    Ok(task.thread().clone())
}

/// State that a first program starts with.
pub struct FirstProgram {
    /// Its descriptors: the three standard streams.
    pub files: Arc<FileTable>,
    /// Its root and working directory.
    pub fs: Arc<FsContext>,
    /// The credentials that it runs with.
    pub credentials: Arc<Credentials>,
    /// The executable's path, arguments and environment.
    pub program: super::exec::ExecRequest,
}

/// Makes the first program: a child of `parent`, leader of a new session. The caller starts its
/// task.
///
/// # Errors
/// Those of execve; `ENOMEM`.
pub fn spawn_first(first: FirstProgram, parent: &Arc<Process>) -> Result<(Arc<Process>, Arc<Task>)> {
    let numbers = registry::lock().allocate(None, &[])?;
    let pid = numbers.id();
    let with = Beginnings::of_leader(pid, first.files, first.fs, first.credentials);
    let process = reserve::arc(Process::new(numbers.clone(), parent.downgrade(), with));
    let task =
        Task::new(numbers, process.clone(), Schedule::new(Idle::No, hw::current_cpu()), short(b"init"));
    let mut context = UserContext::new().map_err(|_| Errno::ENOMEM)?;
    let loaded = super::exec::load(&process, first.program)?;
    loaded.begin(&task, &mut context, pid);
    task.make_user_thread(context, |_| {})?;
    enter(&process, &task, None)?;
    Ok((process, task))
}

/// Enters a new process and its first task. The process inherits the group and session of `maker`:
/// [`registry`]'s `add_process`.
///
/// # Errors
/// `ENOMEM`; then neither is entered.
pub(super) fn enter(process: &Arc<Process>, task: &Arc<Task>, maker: Option<&Process>) -> Result<()> {
    add_thread(process, task)?;
    let added = {
        let mut registry = registry::lock();
        let added = registry.add_process(process, maker);
        if added.is_ok() {
            registry.add_task(task);
        }
        added
    };
    if added.is_err() {
        // Otherwise the two would keep each other alive.
        let threads = process.signals.lock().threads.move_to(Vec::new());
        let last = process.signals.lock().threads.pop();
        drop((threads, last));
    }
    drop(added?);
    users::count_threads(process);
    Ok(())
}

/// Adds a thread to its process. Memory is allocated without the lock.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn add_thread(process: &Process, task: &Arc<Task>) -> Result<()> {
    let mut buffer = Vec::new();
    loop {
        let (outdated, wanted) = {
            let mut group = process.signals.lock();
            let outdated = group.threads.move_to(buffer);
            if group.threads.len() < group.threads.capacity() {
                let at = group.threads.partition_point(|thread| thread.tid() < task.tid());
                group.threads.insert_reserved(at, task.clone());
                if group.exit.is_some() || group.stop().is_some() {
                    task.call_attention(SIGNAL);
                }
                // The old buffer is freed without the lock.
                drop(group);
                drop(outdated);
                return Ok(());
            }
            (outdated, (2 * group.threads.len()).max(1))
        };
        drop(outdated);
        buffer = Vec::try_with_capacity(wanted)?;
    }
}
