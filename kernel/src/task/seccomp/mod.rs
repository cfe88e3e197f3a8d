//! seccomp(2): a thread restricts the system calls of itself and its descendants.
//!
//! A thread is *confined* to four calls (strict), or *filtered*: all programs ([`Filter`]) that it
//! or its ancestors installed check each of its calls, and the strictest verdict counts. Filters
//! form a chain, the newest first. Threads share the common tail of their chains, and a filter is
//! never removed. fork, clone and execve keep the chain.
//!
//! **Permission.** Installing needs no_new_privs or CAP_SYS_ADMIN, so that no set-id program runs
//! under a filter of its caller.
//!
//! **Entry.** A call that is watched ([`Traced`](super::trace::Traced)) is passed to
//! [`Task::judge_call`] after the tracer's stop at its entry. So the filters see the call as the
//! tracer has changed it. Other threads' calls pay nothing.
//!
//! **Order.** `signals` of the process > a thread's chain, a leaf. A task that installs a filter
//! holds both locks, so that no filter is lost that a thread got meanwhile. A new thread copies its
//! creator's chain a second time, under `signals`, when it is in the process' list
//! ([`Task::inherit_seccomp`]), because a task that gives all threads a filter (TSYNC) holds that
//! lock. `signals` and the leaf are interrupt-safe: under them no filter is made or freed.
//!
//! A filter may have a [`listener`]: a process that decides on calls.
//!
//! Source: seccomp(2), seccomp_unotify(2), prctl(2); Linux kernel/seccomp.c.

mod chain;
mod listener;
mod listener_file;

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_bpf::{CallData, Filter, Instruction, MOST, Refusal};
use freehold_collections::reserve::{self, ArcMethods as _};
use freehold_collections::{Arc, Vec};

pub(super) use self::chain::Seccomp;
use self::chain::{Action, Ancestors, ChainedFilter, Confinement};
use self::listener::{Answer, Asking, Listener, NO_LISTENER, OnceReceived};
use self::listener_file::{ListenerFile, SIZES};
use super::process::ExitStatus;
use super::signal::{SigInfo, Signal, end_group};
use super::trace::Event;
use super::{Capability, Pid, Task, current};
use crate::fs::OnExec;
use crate::hw::user::UserContext;
use crate::syscall::Args;
use crate::user::{self, UserPtr};
use crate::{Errno, Result, time};

/// AUDIT_ARCH_X86_64.
const ARCHITECTURE: u32 = 0xc000_003e;
/// The calls of a strict thread: read, write, exit, rt_sigreturn.
const STRICT: [u64; 4] = [0, 1, 60, 15];
/// Limit for the instructions of a chain. Each filter except the newest counts [`OVERHEAD`] more
/// (Linux: MAX_INSNS_PER_PATH).
const MOST_OF_CHAIN: usize = 32768;
const OVERHEAD: usize = 4;
/// MAX_ERRNO.
const LAST_ERROR: u32 = 4095;
/// Minimum interval between two log messages about actions, in nanoseconds.
const LOG_INTERVAL: u64 = 100 * time::SECOND / 1000;

/// Operations of seccomp(2).
mod operation {
    pub const STRICT: u32 = 0;
    pub const FILTER: u32 = 1;
    pub const ACTION_AVAILABLE: u32 = 2;
    pub const LISTENER_SIZES: u32 = 3;
}

/// Flags of seccomp(2).
mod flag {
    pub const ALL_THREADS: u64 = 1;
    pub const LOG: u64 = 2;
    pub const SPECULATION: u64 = 4;
    pub const LISTENER: u64 = 8;
    pub const NO_THREAD_IS_AN_ERROR: u64 = 16;
    pub const KILLABLE_ONCE_RECEIVED: u64 = 32;
}

/// Verdict on a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Judgement {
    /// The call is made.
    Make,
    /// The call is not made; the registers have its result.
    Done,
}

impl Task {
    /// Returns the mode and the number of filters, for /proc/PID/status.
    pub fn seccomp(&self) -> (u8, u64) {
        let confinement = self.seccomp.get();
        (confinement.mode(), confinement.chain().map_or(0, |chain| chain.count))
    }

    fn confine(&self, confinement: Confinement) {
        self.seccomp.set(confinement);
        self.traced.judge_calls();
    }

    /// Copies the confinement of `parent`. This is done for a thread that cannot be found yet, and
    /// again under its process' `signals` once it can.
    pub(super) fn inherit_seccomp(&self, parent: &Task) {
        let confinement = parent.seccomp.get();
        if !matches!(confinement, Confinement::Free) {
            self.confine(confinement);
        }
    }

    /// Gives up the filters of a thread that has ended.
    pub(super) fn leave_seccomp(&self) {
        self.seccomp.set(Confinement::Free);
    }

    /// Checks the system call that the current thread is about to make. An error says how the call
    /// must be restarted.
    pub(crate) fn judge_call(&self, context: &mut UserContext) -> Result<Judgement> {
        let confinement = self.seccomp.get();
        match confinement {
            Confinement::Free => Ok(Judgement::Make),
            Confinement::Strict if STRICT.contains(&context.syscall_number()) => Ok(Judgement::Make),
            Confinement::Strict => {
                self.end_by(Signal::KILL);
                Ok(Judgement::Done)
            }
            Confinement::Filtered(chain) if chain.allowed_by_all.contain(context.syscall_number()) => {
                Ok(Judgement::Make)
            }
            Confinement::Filtered(chain) => self.filter_call(context, &chain),
        }
    }

    fn filter_call(&self, context: &mut UserContext, chain: &Arc<ChainedFilter>) -> Result<Judgement> {
        let judge = |context: &UserContext| ChainedFilter::judge(chain, &data_of(context));
        let (mut action, mut data, mut filter) = judge(context);
        if action == Action::Trace {
            context.set_return(Errno::ENOSYS.to_return_value() as u64);
            let is_told = self.stop_for_event(context, Event::Seccomp, data.into());
            // No tracer handles this event, or the tracer cancelled the call: the result is the
            // tracer's.
            if !is_told || self.is_dying() || context.syscall_number() as i32 == -1 {
                return Ok(Judgement::Done);
            }
            (action, data, filter) = judge(context);
        }
        if !matches!(action, Action::Allow | Action::Trace | Action::Notify) {
            self.log(context, action, chain);
        }
        match action {
            // The tracer has decided above.
            Action::Allow | Action::Log | Action::Trace => return Ok(Judgement::Make),
            Action::Errno => context.set_return(0u64.wrapping_sub(data.min(LAST_ERROR).into())),
            Action::Trap => {
                let number = context.syscall_number();
                context.set_return(number);
                self.force_signal(told(context, data));
            }
            Action::Notify => match self.ask(context, filter)? {
                Answer::Continue => return Ok(Judgement::Make),
                Answer::Result(value) => context.set_return(value as u64),
            },
            Action::KillThread => self.end_by(Signal::SYS),
            Action::KillProcess => self.end_process_by(Signal::SYS),
        }
        Ok(Judgement::Done)
    }

    /// Asks the listener of `filter` to decide on a call. An error says how the call must be
    /// restarted.
    fn ask(&self, context: &UserContext, filter: &ChainedFilter) -> Result<Answer> {
        let Some(listener) = &filter.listener else { return Ok(NO_LISTENER) };
        let process = self.process();
        let ask = || {
            let (files, limit) = (process.files(), process.descriptor_limit());
            listener.ask(Asking { tid: self.tid(), data: data_of(context), files, limit })
        };
        let Ok(asked) = super::reserve::with(&self.drawn, ask) else {
            super::out_of_memory("system call");
            return Err(Errno::ERESTARTNOINTR);
        };
        match asked {
            Err(error @ Errno::ENOMEM) => Ok(Answer::Result(error.to_return_value())),
            answer => answer,
        }
    }

    /// Ends the thread by `signal`. The last thread's signal ends the process.
    fn end_by(&self, signal: Signal) {
        if self.process().thread_count() > 1 {
            self.finish(signal.number());
        } else {
            self.end_process_by(signal);
        }
    }

    fn end_process_by(&self, signal: Signal) {
        end_group(&mut self.process().signals.lock(), ExitStatus::Signaled(signal));
    }

    /// Logs kills, and calls that a filter permits with logging. Other refusals are logged if a
    /// filter was installed with SECCOMP_FILTER_FLAG_LOG.
    fn log(&self, context: &UserContext, action: Action, chain: &Arc<ChainedFilter>) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let is_wanted = matches!(action, Action::KillProcess | Action::KillThread | Action::Log)
            || ChainedFilter::chain(chain).any(|filter| filter.logs);
        let now = time::now();
        let due = NEXT.load(Ordering::Relaxed);
        let turn = || NEXT.compare_exchange(due, now + LOG_INTERVAL, Ordering::Relaxed, Ordering::Relaxed);
        if is_wanted && now >= due && turn().is_ok() {
            let (name, number) = (self.name(), context.syscall_number());
            let name = core::str::from_utf8(&name).unwrap_or("?").trim_end_matches('\0');
            log::warn!("seccomp: {name}[{}]: {action:?}: system call {number}", self.process().pid);
        }
    }
}

fn data_of(context: &UserContext) -> CallData {
    let number = context.syscall_number() as u32;
    CallData::new(number, ARCHITECTURE, context.regs().rip, context.syscall_args())
}

fn told(context: &UserContext, data: u32) -> SigInfo {
    SigInfo::refused_call(context.regs().rip, (context.syscall_number() as u32, ARCHITECTURE), data)
}

/// seccomp(operation, flags, args)
pub fn sys_seccomp(args: &Args) -> Result<i64> {
    match args.uint(0) {
        operation::STRICT if args[1] == 0 && args[2] == 0 => set_strict(),
        operation::FILTER => set_filter(args[1], args[2]),
        operation::ACTION_AVAILABLE if args[1] == 0 => {
            let action: u32 = UserPtr::new(args[2]).read()?;
            let is_known = Action::of(action) != Action::KillProcess || action == 0x8000_0000;
            if is_known && action & 0xffff == 0 { Ok(0) } else { Err(Errno::EOPNOTSUPP) }
        }
        operation::LISTENER_SIZES if args[1] == 0 => {
            UserPtr::new(args[2]).write(&SIZES)?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// prctl(PR_SET_SECCOMP, mode, program)
pub(super) fn set_mode(args: &Args) -> Result<i64> {
    match args[1] {
        1 => set_strict(),
        2 => set_filter(0, args[2]),
        _ => Err(Errno::EINVAL),
    }
}

fn set_strict() -> Result<i64> {
    let task = current();
    // Another thread may be about to confine all threads: the lock orders the two.
    let _group = task.process().signals.lock();
    if matches!(task.seccomp.get(), Confinement::Filtered(_)) {
        return Err(Errno::EINVAL);
    }
    task.confine(Confinement::Strict);
    Ok(0)
}

/// Reads struct sock_fprog and the instructions to which it points.
fn read_program(address: u64) -> Result<Vec<Instruction>> {
    let header: [u64; 2] = UserPtr::new(address).read()?;
    let (length, instructions) = (usize::from(header[0] as u16), header[1]);
    if !(1..=MOST).contains(&length) {
        return Err(Errno::EINVAL);
    }
    let process = current().process().clone();
    let is_bound = process.no_new_privileges.load(Ordering::Relaxed);
    if !is_bound && !process.with_credentials(|own| own.may_within(Capability::SysAdmin)) {
        return Err(Errno::EACCES);
    }
    read_instructions(instructions, length)
}

/// Reads a program of `count` instructions, at most [`MOST`].
///
/// # Errors
/// `EINVAL` for no instructions or too many, `EFAULT`, `ENOMEM`.
pub fn read_instructions(address: u64, count: usize) -> Result<Vec<Instruction>> {
    if !(1..=MOST).contains(&count) {
        return Err(Errno::EINVAL);
    }
    let bytes = user::read_vec(address, count * Instruction::BYTES)?;
    let mut program = Vec::try_with_capacity(count)?;
    for bytes in bytes.chunks_exact(Instruction::BYTES) {
        let bytes = bytes.try_into().map_err(|_| Errno::EINVAL)?;
        program.push_reserved(Instruction::from_bytes(bytes));
    }
    Ok(program)
}

#[cold]
fn set_filter(flags: u64, address: u64) -> Result<i64> {
    check_flags(flags)?;
    let filter = Filter::new(read_program(address)?).map_err(|refusal| match refusal {
        Refusal::NoMemory => Errno::ENOMEM,
        Refusal::Length | Refusal::Instruction(_) => Errno::EINVAL,
    })?;
    let task = current();
    let mut filter = ChainedFilter::alone(filter, ARCHITECTURE);
    filter.logs = flags & flag::LOG != 0;
    let whom = if flags & flag::ALL_THREADS == 0 { Whom::Oneself } else { Whom::AllThreads };
    let files = task.process().files();
    let mut descriptor = None;
    if flags & flag::LISTENER != 0 {
        let is_killable = flags & flag::KILLABLE_ONCE_RECEIVED != 0;
        let listener =
            Listener::new(if is_killable { OnceReceived::Killable } else { OnceReceived::Interruptible });
        descriptor =
            Some((files.promise(task.process().descriptor_limit())?, ListenerFile::open(&listener)?));
        filter.listener = Some(listener);
    }
    match install(&task, filter, whom) {
        Ok(()) => Ok(descriptor.map_or(0, |(promise, file)| promise.keep(file, OnExec::Close)).into()),
        Err(Refused::By(error)) => Err(error),
        Err(Refused::Thread(_)) if flags & flag::NO_THREAD_IS_AN_ERROR != 0 => Err(Errno::ESRCH),
        Err(Refused::Thread(other)) => Ok(other.into()),
    }
}

/// Refuses unknown flags, and those that would make a result ambiguous: a descriptor and the ID of
/// a thread are both positive.
fn check_flags(flags: u64) -> Result<()> {
    let all = flag::ALL_THREADS | flag::LOG | flag::SPECULATION | flag::NO_THREAD_IS_AN_ERROR;
    let has = |flag: u64| flags & flag != 0;
    let is_ambiguous = has(flag::ALL_THREADS) && has(flag::LISTENER) && !has(flag::NO_THREAD_IS_AN_ERROR);
    let lacks_listener = has(flag::KILLABLE_ONCE_RECEIVED) && !has(flag::LISTENER);
    let is_known = flags & !(all | flag::LISTENER | flag::KILLABLE_ONCE_RECEIVED) == 0;
    if is_known && !is_ambiguous && !lacks_listener { Ok(()) } else { Err(Errno::EINVAL) }
}

/// The threads that get a filter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whom {
    Oneself,
    AllThreads,
}

type Installed = core::result::Result<(), Refused>;

/// The reason why a filter is not installed.
enum Refused {
    By(Errno),
    /// The filters of this thread are not part of the caller's.
    Thread(Pid),
}

/// Installs a filter in `task`, the current one. For all threads of its process, installs the
/// task's filters and this one. Filters that other threads install meanwhile are kept.
///
/// Everything that needs the heap, or as many steps as the chain has filters, is done before
/// `signals` is taken. If another thread gave the task a filter meanwhile, that is done again.
fn install(task: &Task, mut filter: ChainedFilter, whom: Whom) -> Installed {
    loop {
        let before = task.seccomp.get();
        let listed = if whom == Whom::AllThreads { before.chain() } else { None };
        let ancestors = Ancestors::of(listed).map_err(Refused::By)?;
        link(&mut filter, &before).map_err(Refused::By)?;
        let chain = reserve::arc(filter);
        if let Some(installed) = install_linked(task, &chain, (&before, &ancestors), whom) {
            return installed;
        }
        filter = chain.into_last().expect("no thread has the filter");
    }
}

/// Puts `filter` in front of the filters of `before`.
///
/// # Errors
/// `EINVAL` for a strict thread, `EBUSY` for a second listener, `ENOMEM` for too many instructions.
fn link(filter: &mut ChainedFilter, before: &Confinement) -> Result<()> {
    let before = match before {
        Confinement::Strict => return Err(Errno::EINVAL),
        confinement => confinement.chain(),
    };
    if filter.listener.is_some() && before.is_some_and(ChainedFilter::has_listener) {
        return Err(Errno::EBUSY);
    }
    let (count, counted) = before.map_or((0, 0), |newest| (newest.count, newest.instructions));
    let instructions = counted + filter.program.instructions();
    if instructions > MOST_OF_CHAIN {
        return Err(Errno::ENOMEM);
    }
    filter.before = before.cloned();
    filter.allowed_by_all = before.map_or(filter.allowed, |before| before.allowed_by_all.and(filter.allowed));
    filter.count = count + 1;
    filter.instructions = instructions + OVERHEAD;
    Ok(())
}

/// Installs `chain`, whose older filters are those of `before`; `None` if the task has others by
/// now.
fn install_linked(
    task: &Task,
    chain: &Arc<ChainedFilter>,
    (before, ancestors): (&Confinement, &Ancestors<'_>),
    whom: Whom,
) -> Option<Installed> {
    let group = task.process().signals.lock();
    if !task.seccomp.get().is_same(before) {
        return None;
    }
    if whom == Whom::Oneself {
        task.confine(Confinement::Filtered(chain.clone()));
        return Some(Ok(()));
    }
    if let Some(apart) = group.threads.iter().find(|thread| !ancestors.include(&thread.seccomp.get())) {
        return Some(Err(Refused::Thread(apart.number())));
    }
    for thread in &group.threads {
        // The old filters of each thread are part of the new chain, so no filter is dropped here.
        thread.confine(Confinement::Filtered(chain.clone()));
    }
    Some(Ok(()))
}
