//! Tasks: threads of processes, and the kernel's own.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[cfg(target_os = "none")]
use freehold_arch::heap::Watch;
use freehold_vm::TaskPolicy;

use super::Pid;
use super::process::{Process, Usage};
#[cfg(target_os = "none")]
use super::reserve::Drawn;
use super::signal::{AlternateStack, Pending, SigSet, Signal};
use crate::fault_inject::TaskFaults;
use crate::sched::{self, Schedule, Sleep};
use crate::sync::{IrqSpinLock, ReleaseList, SpinLock, Wake, Woken};
use crate::time::{Expire, TimerSlot};
use crate::{Errno, Result, hw};

/// What restart_syscall does for a call that a stop or an ignored signal interrupted.
pub type Restart = Box<dyn FnOnce() -> Result<i64> + Send>;

/// One thread of execution.
pub struct Task {
    /// The thread ID.
    pub tid: Pid,
    me: Weak<Task>,
    process: Arc<Process>,
    /// Its share in scheduling.
    pub schedule: Schedule,
    #[cfg(target_os = "none")]
    thread: spin::Once<freehold_arch::thread::Thread>,
    /// Something is to be looked at before the return to user mode; interruptible sleeps end.
    pub(super) attention: AtomicBool,
    /// Blocked signals.
    pub(super) blocked: AtomicU64,
    /// The mask to return to after the next handler (sigsuspend, ppoll…).
    pub(super) saved_mask: SpinLock<Option<SigSet>>,
    /// Signals to this thread alone; locked after the process' signals.
    pub(super) pending: IrqSpinLock<Pending>,
    pub(super) alternate_stack: SpinLock<AlternateStack>,
    /// Where to write 0 and wake a futex at the end (CLONE_CHILD_CLEARTID); 0 for nowhere.
    pub(super) clear_child_tid: AtomicU64,
    /// The robust futex list's head; 0 for none.
    pub(super) robust_list: AtomicU64,
    pub(super) restart: SpinLock<Option<Restart>>,
    sleep_timer: TimerSlot,
    name: SpinLock<[u8; 16]>,
    /// Ticks of the time-stamp counter in user mode; the rest of the CPU time is the kernel's. Only the task itself adds to it.
    user_ticks: AtomicU64,
    /// Page faults: without and with I/O.
    pub faults: [AtomicU64; 2],
    /// Releases the parent of a vfork child, at the child's execve or end.
    pub(super) vfork: SpinLock<Option<Arc<crate::sync::Completion>>>,
    /// From which nodes the pages come that it touches first; the process' areas may say otherwise.
    memory_policy: SpinLock<Option<Arc<TaskPolicy>>>,
    /// How far the timer may be late (PR_SET_TIMERSLACK), nanoseconds.
    pub(super) timer_slack: AtomicU64,
    /// It is finding memory for others ([`crate::mem::reclaim`]): what it allocates may come from the last reserve. Only the task itself
    /// changes it.
    pub(crate) reclaims: AtomicBool,
    /// It asked for frames and there were none, since somebody looked last. Only the task itself changes it.
    pub(crate) was_denied: AtomicBool,
    /// What it is still to let go of ([`crate::sync::deferred`]). Only the task itself looks at it.
    pub(crate) releases: ReleaseList,
    /// Which of its allocations are to fail.
    pub(crate) injection: TaskFaults,
    /// What the system call that it is in drew from the heap's reserve.
    #[cfg(target_os = "none")]
    pub(super) drawn: Drawn,
    /// See [`Task::cancel`].
    cancelled: AtomicBool,
    /// The status that the thread ended itself with, and [`FINISHED`].
    exit_code: AtomicU32,
}

/// Set in `exit_code` once the thread has called exit.
const FINISHED: u32 = 1 << 31;

impl Task {
    /// A task of `process` that nothing runs yet.
    pub(super) fn new(tid: Pid, process: Arc<Process>, schedule: Schedule, name: [u8; 16]) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            tid,
            me: me.clone(),
            process,
            schedule,
            #[cfg(target_os = "none")]
            thread: spin::Once::new(),
            attention: AtomicBool::new(false),
            blocked: AtomicU64::new(0),
            saved_mask: SpinLock::new(None),
            pending: IrqSpinLock::new(Pending::new()),
            alternate_stack: SpinLock::new(AlternateStack::NONE),
            clear_child_tid: AtomicU64::new(0),
            robust_list: AtomicU64::new(0),
            restart: SpinLock::new(None),
            sleep_timer: TimerSlot::new(),
            name: SpinLock::new(name),
            user_ticks: AtomicU64::new(0),
            faults: [const { AtomicU64::new(0) }; 2],
            vfork: SpinLock::new(None),
            memory_policy: SpinLock::new(None),
            timer_slack: AtomicU64::new(50_000),
            reclaims: AtomicBool::new(false),
            was_denied: AtomicBool::new(false),
            releases: ReleaseList::new(),
            injection: TaskFaults::default(),
            #[cfg(target_os = "none")]
            drawn: Drawn::default(),
            cancelled: AtomicBool::new(false),
            exit_code: AtomicU32::new(0),
        })
    }

    /// Have the heap count what programs' tasks draw from its reserve, where it is checked.
    #[cfg(target_os = "none")]
    pub(crate) fn watch_reserve() {
        fn with_sum(f: impl FnOnce(&Drawn)) {
            hw::thread::with_current(|task: &Arc<Task>| {
                if !task.process().is_kernel() {
                    f(&task.drawn);
                }
            });
        }
        let drawn = |bytes| with_sum(|sum| sum.add(bytes));
        freehold_arch::heap::watch(Watch { drawn, ensured: || with_sum(Drawn::settle) });
    }

    /// A reference to be kept.
    pub fn arc(&self) -> Arc<Self> {
        self.me.upgrade().expect("whoever calls a method of a task holds a reference to it")
    }

    /// The process it belongs to.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }
    /// Its name: at most 15 bytes and a NUL.
    pub fn name(&self) -> [u8; 16] {
        *self.name.lock()
    }
    /// Give it a name; more than 15 bytes are cut.
    pub fn set_name(&self, name: &[u8]) {
        let mut bytes = [0; 16];
        let length = name.len().min(15);
        bytes[..length].copy_from_slice(&name[..length]);
        *self.name.lock() = bytes;
        if self.tid == self.process.pid {
            *self.process.name.lock() = bytes;
        }
    }
    /// Its memory policy, if it has one.
    pub fn memory_policy(&self) -> Option<Arc<TaskPolicy>> {
        self.memory_policy.lock().clone()
    }
    /// Give it a memory policy, or none.
    pub fn set_memory_policy(&self, policy: Option<Arc<TaskPolicy>>) {
        let old = core::mem::replace(&mut *self.memory_policy.lock(), policy);
        drop(old);
    }
    /// The blocked signals.
    pub fn blocked(&self) -> SigSet {
        SigSet(self.blocked.load(Ordering::Relaxed))
    }
    /// Whether a signal waits to be delivered, or the thread is to stop or end: interruptible sleeps return.
    pub fn signal_pending(&self) -> bool {
        self.attention.load(Ordering::Acquire)
    }
    /// Let a task of the kernel's stop what it does for a program at its next checkpoint: that program has ended.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.attention.store(true, Ordering::SeqCst);
        sched::wake(self, &[Sleep::Killable]);
    }
    /// Whether the thread ends before it sees user mode again, or was cancelled.
    pub fn is_dying(&self) -> bool {
        if self.cancelled.load(Ordering::Relaxed) {
            return true;
        }
        let group = self.process.signals.lock();
        group.exit.is_some() || group.exec.is_some_and(|by| by != self.tid)
    }
    /// Whether sending `signal` to this thread would do nothing now (for SIGTTIN and SIGTTOU).
    pub fn is_blocked_or_ignored(&self, signal: Signal) -> bool {
        self.blocked().contains(signal) || self.process.ignores(signal)
    }
    /// Make it look at its signals: end its interruptible sleep, or its stay in user mode. Any context.
    pub fn interrupt(&self) {
        self.attention.store(true, Ordering::SeqCst);
        if sched::wake(self, &[Sleep::Interruptible]) == Woken::Nobody {
            sched::kick(self);
        }
    }
    /// Let restart_syscall go on with `restart`, and interrupt the call.
    pub fn restart_with(&self, restart: Restart) -> Errno {
        *self.restart.lock() = Some(restart);
        Errno::ERESTARTBLOCK
    }
    /// What [`restart_with`](Self::restart_with) left.
    pub(crate) fn take_restart(&self) -> Option<Restart> {
        self.restart.lock().take()
    }
    /// Let this, the current, thread end on its way to user mode, alone.
    pub(super) fn finish(&self, code: u8) {
        self.exit_code.store(u32::from(code) | FINISHED, Ordering::SeqCst);
        self.attention.store(true, Ordering::SeqCst);
    }
    /// Whether [`finish`](Self::finish) was called.
    pub(super) fn has_finished(&self) -> bool {
        self.exit_code.load(Ordering::Relaxed) & FINISHED != 0
    }
    /// What [`finish`](Self::finish) was called with; 0 before.
    pub(super) fn exit_code(&self) -> u8 {
        self.exit_code.load(Ordering::Relaxed) as u8
    }
    /// The kernel thread that runs it.
    #[cfg(target_os = "none")]
    pub(crate) fn thread(&self) -> &freehold_arch::thread::Thread {
        self.thread.get().expect("a task is started after it got its thread")
    }
    #[cfg(target_os = "none")]
    pub(super) fn set_thread(&self, thread: freehold_arch::thread::Thread) {
        self.thread.call_once(|| thread);
    }
    /// This, the current, task was in user mode for `ticks` of the time-stamp counter.
    #[inline]
    pub(super) fn add_user_ticks(&self, ticks: u64) {
        self.user_ticks.store(self.user_ticks.load(Ordering::Relaxed).wrapping_add(ticks), Ordering::Relaxed);
    }
    /// CPU time, up to now, and events.
    pub fn usage(&self) -> Usage {
        sched::account(self);
        let total = self.schedule.runtime.load(Ordering::Relaxed);
        let user = hw::time::nanoseconds(self.user_ticks.load(Ordering::Relaxed)).min(total);
        Usage {
            user,
            system: total - user,
            voluntary_switches: self.schedule.voluntary_switches.load(Ordering::Relaxed),
            involuntary_switches: self.schedule.involuntary_switches.load(Ordering::Relaxed),
            minor_faults: self.faults[0].load(Ordering::Relaxed),
            major_faults: self.faults[1].load(Ordering::Relaxed),
            peak_resident: 0,
        }
    }
}

impl Wake for Task {
    fn wake(&self) -> Woken {
        sched::wake(self, &[Sleep::Interruptible, Sleep::Uninterruptible, Sleep::Killable])
    }
}

/// The deadline of a sleep.
impl Expire for Task {
    fn slot(&self) -> &TimerSlot {
        &self.sleep_timer
    }
    fn expire(&self, _now: u64) -> Option<u64> {
        sched::wake(self, &[Sleep::Interruptible, Sleep::Uninterruptible, Sleep::Killable]);
        None
    }
}

impl core::fmt::Debug for Task {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "task {}", self.tid)
    }
}
