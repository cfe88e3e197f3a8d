//! Tasks: threads of processes, and the kernel's own.
//!
//! A task owns a [`Thread`], the scheduler's object, and dereferences to it.

use core::ops::Deref;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use freehold_collections::{Arc, Box, Weak, reserve};

use freehold_vm::{ReadOnly, ReadWrite, Rule, Transient};

use super::Pid;
use super::credentials::Credentials;
use super::futex::PiTask;
use super::io_context::IoContext;
use super::keys::held::Keyrings;
use super::meter::Meter;
use super::pidns::Numbers;
use super::process::{Process, Usage};
use super::reserve::Drawn;
use super::rseq::Registration;
use super::seccomp::Seccomp;
use super::signal::{AlternateStack, Pending, SigSet, Signal};
use super::trace::{Traced, Watchpoints};
use crate::fs::{FileTable, Places};
use crate::hw::heap::Watch;
use crate::mem::charge::StackCharge;
use crate::mem::{PinnedRun, ProcessSpace};
use crate::sched::thread::{Drain, Fill, PinnedPart, SIGNAL};
use crate::sched::{self, Idle, RunsPrograms, Schedule, Sleep, Thread, ThreadOwner};
use crate::sync::{IrqSpinLock, Kept, SpinLock, Woken};
use crate::{Errno, Result, hw};

/// The continuation of a call that a stop or an ignored signal interrupted, for restart_syscall.
pub type Restart = Box<dyn FnOnce() -> Result<i64> + Send>;

/// One thread of execution.
pub struct Task {
    /// The thread ID; see [`Task::tid`].
    tid: AtomicU32,
    /// The thread's number in its process' PID namespace.
    number: AtomicU32,
    /// The thread's original ID, and its numbers in PID namespaces.
    numbers: Numbers,
    me: Weak<Task>,
    process: Arc<Process>,
    thread: Arc<Thread>,
    /// Blocked signals.
    pub(super) blocked: AtomicU64,
    /// Signals that are kept pending even though they are ignored (sigtimedwait).
    pub(super) kept: AtomicU64,
    /// The mask that is restored after the next handler (sigsuspend, ppoll…).
    pub(super) saved_mask: SpinLock<Option<SigSet>>,
    /// Signals to this thread alone; locked after the process' signals.
    pub(super) pending: IrqSpinLock<Pending>,
    pub(super) alternate_stack: SpinLock<AlternateStack>,
    /// Address where 0 is written and a futex woken at the end (CLONE_CHILD_CLEARTID); 0 for none.
    pub(super) clear_child_tid: AtomicU64,
    /// The registration by rseq(2).
    pub(super) rseq: Registration,
    /// The robust futex list's head; 0 for none.
    pub(super) robust_list: AtomicU64,
    /// The thread's part of the table of locks with priority inheritance.
    pi: spin::Once<Arc<PiTask>>,
    pub(super) restart: SpinLock<Option<Restart>>,
    name: SpinLock<[u8; 16]>,
    /// Releases the parent of a vfork child, at the child's execve or end.
    pub(super) vfork: SpinLock<Option<Arc<crate::sync::Completion>>>,
    /// Permitted delay of the thread's timers (PR_SET_TIMERSLACK), nanoseconds.
    pub(super) timer_slack: AtomicU64,
    /// The slack that PR_SET_TIMERSLACK of 0 sets: the creator's slack at clone.
    pub(super) default_timer_slack: AtomicU64,
    /// The process' state, kept from one call to the next.
    pub(super) kept_space: Kept<ProcessSpace>,
    pub(super) kept_files: Kept<FileTable>,
    pub(super) kept_places: Kept<Places>,
    pub(super) kept_credentials: Kept<Credentials>,
    /// See [`Usage::io`].
    pub io: [AtomicU64; 4],
    /// Its I/O priority, which threads may share.
    pub io_context: IoContext,
    /// Its keyrings.
    pub(super) keyrings: Keyrings,
    /// The tracing of the thread.
    pub traced: Traced,
    /// Its hardware breakpoints and watchpoints.
    pub watch: Watchpoints,
    /// The filters of system calls on the thread.
    pub(super) seccomp: Seccomp,
    /// Makes the thread charge its CPU time, once a quota exists.
    pub(super) meter: spin::Once<Arc<Meter>>,
    /// The charge for its stack.
    pub(super) stack: StackCharge,
    /// Bytes that the current system call has allocated from the heap's reserve.
    pub(crate) drawn: Drawn,
    /// The status with which the thread ended itself, [`FINISHED`] and [`LEFT`].
    exit_code: AtomicU32,
}

/// Set in `exit_code` once the thread has called exit.
const FINISHED: u32 = 1 << 31;
/// Set in `exit_code` once the ending thread has abandoned its locks.
const LEFT: u32 = 1 << 30;

/// The way in which a thread leaves its program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    /// The thread ends.
    End,
    /// The thread executes another program.
    Exec,
}

impl Task {
    /// Makes a task of `process` that is not running yet.
    pub(super) fn new(
        numbers: Numbers,
        process: Arc<Process>,
        schedule: Schedule,
        name: [u8; 16],
    ) -> Arc<Self> {
        let runs = if process.is_kernel() { RunsPrograms::Kernel } else { RunsPrograms::Programs };
        Self::make(numbers, process, runs, schedule, name)
    }

    fn make(
        numbers: Numbers,
        process: Arc<Process>,
        runs: RunsPrograms,
        schedule: Schedule,
        name: [u8; 16],
    ) -> Arc<Self> {
        reserve::cyclic(|me: &Weak<Self>| {
            let thread = Thread::new(me.clone(), runs, schedule);
            thread.label.set_pid(numbers.id());
            thread.label.set_name(name);
            if runs == RunsPrograms::Programs {
                thread.set_translation(process.space().translation().clone());
            }
            Self {
                tid: AtomicU32::new(numbers.id()),
                number: AtomicU32::new(numbers.own()),
                numbers,
                me: me.clone(),
                process,
                thread,
                blocked: AtomicU64::new(0),
                kept: AtomicU64::new(0),
                saved_mask: SpinLock::new(None),
                pending: IrqSpinLock::new(Pending::new()),
                alternate_stack: SpinLock::new(AlternateStack::NONE),
                clear_child_tid: AtomicU64::new(0),
                rseq: Registration::default(),
                robust_list: AtomicU64::new(0),
                pi: spin::Once::new(),
                restart: SpinLock::new(None),
                name: SpinLock::new(name),
                vfork: SpinLock::new(None),
                timer_slack: AtomicU64::new(50_000),
                default_timer_slack: AtomicU64::new(50_000),
                kept_space: Kept::default(),
                kept_files: Kept::default(),
                kept_places: Kept::default(),
                kept_credentials: Kept::default(),
                io: [const { AtomicU64::new(0) }; 4],
                io_context: IoContext::default(),
                keyrings: Keyrings::default(),
                traced: Traced::new(),
                watch: Watchpoints::default(),
                seccomp: Seccomp::default(),
                meter: spin::Once::new(),
                stack: StackCharge::default(),
                drawn: Drawn::default(),
                exit_code: AtomicU32::new(0),
            }
        })
    }

    /// Makes a task that never runs. A kernel task acts on its behalf, with the credentials,
    /// session and limits of `process` ([`lend_name`](Self::lend_name)). It blocks all signals, as
    /// Linux' io_uring workers do. The caller drops it before the process ends.
    pub fn stand_in(process: Arc<Process>) -> Arc<Self> {
        let schedule = Schedule::new(Idle::No, hw::current_cpu());
        let name = *process.name.lock();
        let task = Self::make(Numbers::initial(0), process, RunsPrograms::Kernel, schedule, name);
        task.blocked.store(u64::MAX, Ordering::Relaxed);
        task
    }
    /// Runs `body` on the running thread, a kernel task. [`current`](super::current) returns this
    /// stand-in meanwhile. One thread at a time.
    pub fn lend_name<R>(self: &Arc<Self>, body: impl FnOnce() -> R) -> R {
        let result = hw::thread::show(self, body);
        // Only the process' own threads are notified when a kept value is replaced.
        self.forget_kept();
        result
    }

    /// Makes the heap count the allocations of programs' tasks from its reserve, if the heap is
    /// checked.
    pub(crate) fn watch_reserve() {
        fn with_sum(f: impl FnOnce(&Drawn)) {
            hw::thread::with_current(|task: &Arc<Task>| {
                if !task.process().is_kernel() {
                    f(&task.drawn);
                }
            });
        }
        let drawn = |bytes| with_sum(|sum| sum.add(bytes));
        crate::hw::heap::watch(Watch { drawn, ensured: || with_sum(Drawn::settle) });
    }

    /// Returns a reference to the task.
    pub fn arc(&self) -> Arc<Self> {
        self.me.upgrade().expect("whoever calls a method of a task holds a reference to it")
    }

    /// Returns the thread ID. It changes once at most: if the thread executes a program and is not
    /// the first of its process, it becomes the first (see `exec::takeover`).
    #[inline]
    pub fn tid(&self) -> Pid {
        self.tid.load(Ordering::Relaxed)
    }
    /// Returns its number in its process' PID namespace.
    #[inline]
    pub fn number(&self) -> Pid {
        self.number.load(Ordering::Relaxed)
    }
    /// Returns its ID with all its numbers.
    pub fn numbers(&self) -> &Numbers {
        if self.is_leader() { self.process.numbers() } else { &self.numbers }
    }
    /// Whether it is its process' first thread.
    pub fn is_leader(&self) -> bool {
        self.tid() == self.process.pid
    }
    /// Makes it its process' first thread. Under the registry's lock, by which its ID is found.
    pub(super) fn set_leader(&self) {
        let numbers = self.process.numbers();
        self.number.store(numbers.own(), Ordering::Relaxed);
        self.thread.label.set_pid(numbers.id());
        // A walk over threads follows their IDs under this lock. This change of an ID makes the
        // sums of an earlier walk invalid.
        let mut group = self.process.signals.lock();
        self.tid.store(numbers.id(), Ordering::Relaxed);
        group.ended += 1;
    }
    /// Returns the process that the task belongs to.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }
    /// Returns its name: at most 15 bytes and a NUL.
    pub fn name(&self) -> [u8; 16] {
        *self.name.lock()
    }
    /// Sets its name, cut to 15 bytes.
    pub fn set_name(&self, name: &[u8]) {
        let mut bytes = [0; 16];
        let length = name.len().min(15);
        bytes[..length].copy_from_slice(&name[..length]);
        *self.name.lock() = bytes;
        self.thread.label.set_name(bytes);
        if self.is_leader() {
            *self.process.name.lock() = bytes;
        }
    }
    /// Returns the blocked signals.
    pub fn blocked(&self) -> SigSet {
        SigSet(self.blocked.load(Ordering::Relaxed))
    }
    /// Whether the thread was cancelled, or will end before it returns to user mode.
    pub fn is_dying(&self) -> bool {
        self.is_cancelled() || self.is_ending()
    }
    /// Whether sending `signal` to this thread would have no effect now (for SIGTTIN and SIGTTOU).
    pub fn is_blocked_or_ignored(&self, signal: Signal) -> bool {
        self.blocked().contains(signal) || self.process.ignores(signal)
    }
    /// Makes the thread check its signals: ends its interruptible sleep, or brings it out of user
    /// mode. Any context.
    pub fn interrupt(&self) {
        self.call_attention(SIGNAL);
        if sched::wake(self, &[Sleep::Interruptible]) == Woken::Nobody {
            sched::kick(self);
        }
    }
    /// Makes restart_syscall continue with `restart`, and interrupts the call.
    pub fn restart_with(&self, restart: Restart) -> Errno {
        *self.restart.lock() = Some(restart);
        Errno::ERESTARTBLOCK
    }
    /// Takes the continuation that [`restart_with`](Self::restart_with) left.
    pub(crate) fn take_restart(&self) -> Option<Restart> {
        self.restart.lock().take()
    }
    /// Makes the current thread, `self`, end before it returns to user mode. Other threads
    /// continue.
    pub(super) fn finish(&self, code: u8) {
        self.exit_code.store(u32::from(code) | FINISHED, Ordering::SeqCst);
        self.call_attention(SIGNAL);
    }
    /// Whether [`finish`](Self::finish) was called.
    pub(super) fn has_finished(&self) -> bool {
        self.exit_code.load(Ordering::Relaxed) & FINISHED != 0
    }
    /// Abandons the locks with priority inheritance, because the thread leaves its program. The
    /// robust list has been processed.
    pub(super) fn abandon_locks(&self, departure: Departure) {
        if departure == Departure::End {
            self.exit_code.fetch_or(LEFT, Ordering::SeqCst);
            // The counterpart of the fence in `NamedOwner::owner`.
            fence(Ordering::SeqCst);
        }
        if let Some(part) = self.pi.get() {
            part.abandon();
        }
    }
    /// Whether the ending thread has abandoned its locks.
    pub(super) fn has_left(&self) -> bool {
        self.exit_code.load(Ordering::SeqCst) & LEFT != 0
    }
    /// Updates the table of locks after a change of the thread's own priority, which may be
    /// inherited and determines the order of waiters.
    pub(crate) fn rank_anew(&self) {
        if let Some(part) = self.pi.get() {
            part.rank_anew();
        }
    }
    /// Returns the part of the thread in the table of locks. It has the thread's present number.
    pub(super) fn pi_part(&self) -> &Arc<PiTask> {
        let part = self.pi.call_once(|| PiTask::new(&self.thread));
        part.set_number(self.number());
        part
    }
    /// Returns the code that [`finish`](Self::finish) was called with; 0 before.
    pub(super) fn exit_code(&self) -> u8 {
        self.exit_code.load(Ordering::Relaxed) as u8
    }
    /// Returns the scheduler's thread.
    pub fn thread(&self) -> &Arc<Thread> {
        &self.thread
    }
    /// Returns CPU time, up to now, and events.
    pub fn usage(&self) -> Usage {
        sched::account(self);
        let total = self.schedule.runtime.load(Ordering::Relaxed);
        let user = hw::time::nanoseconds(self.schedule.user.ticks()).min(total);
        Usage {
            user,
            system: total - user,
            voluntary_switches: self.schedule.voluntary_switches.load(Ordering::Relaxed),
            involuntary_switches: self.schedule.involuntary_switches.load(Ordering::Relaxed),
            minor_faults: self.faults[0].load(Ordering::Relaxed),
            major_faults: self.faults[1].load(Ordering::Relaxed),
            io: self.io.each_ref().map(|n| n.load(Ordering::Relaxed)),
            peak_resident: 0,
        }
    }
}

impl Deref for Task {
    type Target = Thread;
    #[inline]
    fn deref(&self) -> &Thread {
        &self.thread
    }
}

impl ThreadOwner for Task {
    fn is_ending(&self) -> bool {
        let group = self.process.signals.lock();
        group.exit.is_some() || group.exec.is_some_and(|by| by != self.tid())
    }
    fn show_credentials(&self, look: &mut dyn FnMut(&Credentials)) {
        self.with_credentials(|own| look(own));
    }
    fn label(&self) -> ([u8; 16], u32) {
        (self.name(), self.tid())
    }
    fn number(&self) -> i32 {
        self.number() as i32
    }
    fn process_id(&self) -> u32 {
        self.process.pid
    }
    fn spawn_kernel(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> Result<Arc<Thread>> {
        super::spawn::spawn_kernel(name, body)
    }
    fn fill_pinned(&self, part: PinnedPart, transfer: Fill<'_>) -> Result<usize> {
        let PinnedPart { address, length, unit } = part;
        let pinned = self.with_space(|space| {
            PinnedRun::<ReadWrite>::new::<Transient>(space, address, length, Rule::Asked)
        })?;
        let count = pinned.len() / unit * unit;
        pinned.fill_by(count, transfer)?;
        Ok(count)
    }
    fn take_pinned(&self, part: PinnedPart, transfer: Drain<'_>) -> Result<usize> {
        let PinnedPart { address, length, unit } = part;
        let pinned = self.with_space(|space| {
            PinnedRun::<ReadOnly>::new::<Transient>(space, address, length, Rule::Asked)
        })?;
        let count = pinned.len() / unit * unit;
        pinned.drain_by(count, transfer)?;
        Ok(count)
    }
}

impl core::fmt::Debug for Task {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "task {}", self.tid())
    }
}
