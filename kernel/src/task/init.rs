//! Process 1: the kernel's own init. It starts the program, adopts orphans, and ends when the
//! program has ended.

use super::exec::{ExecRequest, Strings};
use super::process::{Beginnings, ExitStatus, Process};
use super::spawn::{self, FirstProgram, kernel_process};
use super::{Credentials, Limits, SigInfo, Signal, Task, registry, wait};
use crate::dev::stdio::{self, Standard};
use crate::fs::table::OnExec;
use crate::fs::walk::{Final, PathWalk};
use crate::fs::{Caller, FileTable, FsContext, OpenFile, OpenFlags, metadata, names};
use crate::host::spec::{Spec, Stream};
use crate::host::{self, Ending};
use crate::sched::{Idle, Schedule};
use crate::sync::{Completion, SpinLock};
use crate::task::signal::code;
use crate::tty::{console, job};
use crate::{Errno, Result, hw, time};
use freehold_collections::{Arc, reserve};

static INIT: spin::Once<Arc<Process>> = spin::Once::new();
/// The program, once it has been started.
static PROGRAM: SpinLock<Option<Arc<Process>>> = SpinLock::new(None);

/// Returns the program, once it has been started.
pub fn program() -> Option<Arc<Process>> {
    PROGRAM.lock().clone()
}

/// Returns process 1.
///
/// # Panics
/// Before [`run`].
pub fn process() -> Arc<Process> {
    INIT.get().expect("init is made before the first program").clone()
}

/// Returns whether this is the program that the host requested.
pub fn is_program(process: &Process) -> bool {
    PROGRAM.lock().as_ref().is_some_and(|program| program.pid == process.pid)
}

/// Delivers a signal from the host: to the terminal's foreground group, or else to the program's
/// group.
pub fn signal(number: u8) {
    let Some(signal) = Signal::new(i64::from(number)) else { return };
    if console::signal(signal) {
        return;
    }
    let program = program();
    if let Some(program) = program {
        for member in registry::group_members(program.pid) {
            member.signal(SigInfo::user(signal, code::USER, 0, 0));
        }
    }
}

/// Starts the program that the host requested, and sleeps until it has ended and its output is on
/// its way.
#[cold]
pub fn run(spec: Spec) -> Ending {
    let spec = reserve::arc(spec);
    let ending = match start(&spec) {
        Ok(ExitStatus::Exited(status)) => Ending::Exit(status),
        Ok(ExitStatus::Signaled(signal) | ExitStatus::Dumped(signal)) => Ending::Signal(signal.number()),
        Err(error) => {
            let name = core::str::from_utf8(&spec.exec).unwrap_or("?");
            log::error!("{name}: cannot be started: {error:?}");
            host::notice(format_args!("{name}: cannot be started: {error:?}"));
            // As in a shell: not found, or found but not executable.
            Ending::Exit(if error == Errno::ENOENT { 127 } else { 126 })
        }
    };
    stdio::flush();
    ending
}

/// Time in nanoseconds that killed processes have to end.
const PATIENCE: u64 = 10_000_000_000;
/// Interval in nanoseconds between two checks whether they have ended.
const LOOK_AGAIN: u64 = 5_000_000;

/// Kills every process except this one, which adopts their orphans, and waits until all have ended.
///
/// # Errors
/// `EBUSY` if some have not ended within ten seconds.
pub fn end_others() -> Result<()> {
    let deadline = time::now().saturating_add(PATIENCE);
    loop {
        let mut others = registry::processes().filter(|other| other.pid > super::INIT).peekable();
        if others.peek().is_none() {
            return Ok(());
        }
        if time::now() >= deadline {
            return Err(Errno::EBUSY);
        }
        // The next round finds the children of a process that forks meanwhile.
        others.for_each(|other| other.signal(SigInfo::kernel(Signal::KILL)));
        let soon = time::now().saturating_add(LOOK_AGAIN);
        process().child_changed.wait_uninterruptible_until::<()>(soon, || None);
    }
}

/// Gives the host terminal's device files to the program's user, as a login does: a shell opens
/// them again.
fn give_consoles(walk: &PathWalk<'_>, (uid, gid): (u32, u32)) -> Result<()> {
    if uid == 0 {
        return Ok(());
    }
    for name in [&b"/dev/console"[..], b"/dev/tty0", b"/dev/tty1"] {
        let place = walk.find(name, Final::Follow)?;
        metadata::change_owner(walk, &place, Some(uid), Some(gid))?;
    }
    Ok(())
}

fn first_program(spec: &Spec) -> Result<FirstProgram> {
    let root = crate::fs::root::root();
    let caller = Caller::ROOT;
    let walk = PathWalk::new(&root, &root, &caller);
    let fs = FsContext::new(root.clone());
    fs.set_cwd(walk.find(&spec.cwd, Final::Follow)?);
    give_consoles(&walk, spec.user)?;
    let files = FileTable::new();
    let limit = Limits::initial(registry::tasks_max()).get(super::Resource::Files).soft as usize;
    let mut terminal: Option<Arc<OpenFile>> = None;
    for (stream, standard) in spec.streams.iter().zip([Standard::Input, Standard::Output, Standard::Error]) {
        let flags = if standard == Standard::Input { OpenFlags::empty() } else { OpenFlags::WRONLY };
        let file = match stream {
            Stream::Pipe => OpenFile::new(stdio::open(standard, spec.user)?, None, flags)?,
            Stream::Terminal => match &terminal {
                Some(file) => file.clone(),
                None => {
                    let file = names::open(&walk, b"/dev/console", OpenFlags::RDWR, 0)?;
                    terminal.insert(file).clone()
                }
            },
        };
        files.insert(file, OnExec::Keep, limit)?;
    }
    let (mut arguments, mut environment) = (Strings::new(), Strings::new());
    spec.arguments.iter().try_for_each(|text| arguments.push(text))?;
    spec.environment.iter().try_for_each(|text| environment.push(text))?;
    let program = ExecRequest {
        file: None,
        start: None,
        name: spec.exec.try_clone()?,
        arguments,
        environment,
        last: Final::Follow,
    };
    let credentials = reserve::arc(Credentials::of_user(spec.user.0, spec.user.1));
    Ok(FirstProgram { files, fs, program, credentials })
}

fn start(spec: &Arc<Spec>) -> Result<ExitStatus> {
    let numbers = registry::lock().allocate(None, &[])?;
    let pid = numbers.id();
    debug_assert_eq!(pid, super::INIT);
    let with = Beginnings::of_leader(
        pid,
        FileTable::new(),
        kernel_process().fs(),
        reserve::arc(Credentials::default()),
    );
    let init = reserve::arc(Process::new(numbers.clone(), reserve::no_weak(), with));
    INIT.call_once(|| init.clone());
    let done = reserve::arc(Completion::new());
    let outcome = reserve::arc(SpinLock::new(Ok(ExitStatus::Exited(0))));
    let task =
        Task::new(numbers, init.clone(), Schedule::new(Idle::No, hw::current_cpu()), spawn::short(b"init"));
    let (tell, result, spec) = (done.clone(), outcome.clone(), spec.clone());
    task.run_in_kernel(move || {
        *result.lock() = reap_until_end(&spec);
        tell.complete();
        // After the end of the program, orphans still end until the machine is switched off.
        loop {
            if wait::reap_one().is_none() {
                process()
                    .child_changed
                    .wait_uninterruptible(|| registry::has_children(&process()).then_some(()));
            }
        }
    })?;
    spawn::enter(&init, &task, None)?;
    task.start();
    done.wait_killable()?;
    *outcome.lock()
}

fn reap_until_end(spec: &Spec) -> Result<ExitStatus> {
    let (program, task) = spawn::spawn_first(first_program(spec)?, &process())?;
    if let (Some(tty), true) = (console::tty(), spec.streams[0] == Stream::Terminal) {
        job::attach(&tty, &program.session(), program.group());
    }
    *PROGRAM.lock() = Some(program.clone());
    if spec.tells_areas {
        super::exit::keep_memory_of(program.pid);
    }
    task.start();
    drop(task);
    loop {
        wait::reap_one();
        if let Some(status) = program.exit_status() {
            return Ok(status);
        }
    }
}
