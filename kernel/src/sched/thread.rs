//! Threads: a thread of execution as the scheduler, and all code below POSIX tasks, see it.
//!
//! A [`Thread`] has its scheduling state, a kernel stack, the address space that its CPU loads, and
//! the per-thread state of sleeping, the page allocator and reclaim. A task ([`crate::task`]) owns
//! a thread and adds the state of POSIX. The run queues refer to threads. A thread that was started
//! keeps its task alive until it has ended. Lower layers access the task through [`ThreadOwner`].

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use freehold_bounce::{Original, OriginalMut};
use freehold_collections::{Arc, Box, Weak, reserve};
use freehold_frame::{AccountId, AtomicAccountId};
use freehold_machine::{CpuId, NodeId};
use freehold_tracepoints::{Comm, Pid};
use freehold_vm::TaskPolicy;
use freehold_xpfo::Closing;

use super::whereabouts::{Company, ConcurrencyIds, GIVES_ID, Whereabouts};
use super::{Schedule, Sleep, wake};
use crate::Result;
use crate::fault_inject::TaskFaults;
use crate::sync::{IrqSpinLock, ReleaseList, SpinLock, Wake, Woken};
use crate::task::credentials::Credentials;
use crate::time::{Deadline, Expire, TimerSlot};

/// The roots of an address space, as CPUs load them.
pub type Translation = freehold_vm::Translation<crate::hw::Frames>;

/// A function that writes to pinned bytes of a program.
pub type Fill<'a> = &'a mut dyn FnMut(&mut dyn OriginalMut) -> Result<()>;
/// A function that reads pinned bytes of a program.
pub type Drain<'a> = &'a mut dyn FnMut(&dyn Original) -> Result<()>;

/// A part of a program's memory that is pinned for a transfer.
#[derive(Clone, Copy, Debug)]
pub struct PinnedPart {
    /// The first address.
    pub address: u64,
    /// Largest number of bytes.
    pub length: usize,
    /// The number of bytes must be a multiple of this.
    pub unit: usize,
}

/// Requests of lower layers to the task of a thread.
pub trait ThreadOwner: Send + Sync {
    /// Whether the thread ends before it returns to user mode.
    fn is_ending(&self) -> bool;
    /// Calls `look` with the credentials of the process. For the running thread.
    fn show_credentials(&self, look: &mut dyn FnMut(&Credentials));
    /// Describes the thread for the log: its name and its number.
    fn label(&self) -> ([u8; 16], u32);
    /// The thread's number in its PID namespace.
    fn number(&self) -> i32;
    /// The ID of the process.
    fn process_id(&self) -> u32;
    /// Makes and starts a kernel thread that runs `body`.
    ///
    /// # Errors
    /// `ENOMEM`, `EAGAIN`.
    fn spawn_kernel(&self, name: &'static str, body: Box<dyn FnOnce() + Send>) -> Result<Arc<Thread>>;
    /// Calls `transfer` to fill `part` of the program's memory while it is pinned. Returns the
    /// number of bytes.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`, those of `transfer`.
    fn fill_pinned(&self, part: PinnedPart, transfer: Fill<'_>) -> Result<usize>;
    /// As [`fill_pinned`](Self::fill_pinned), for a `transfer` that reads the bytes.
    ///
    /// # Errors
    /// The same.
    fn take_pinned(&self, part: PinnedPart, transfer: Drain<'_>) -> Result<usize>;
}

/// Whether a thread runs programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunsPrograms {
    /// The thread runs programs.
    Programs,
    /// The thread runs in the kernel only, and so in any address space.
    Kernel,
}

/// The number and the name of a thread for tracepoints, readable in any context. During a change of
/// the name, a reader may see halves of both names.
#[derive(Debug, Default)]
pub struct TraceLabel {
    pid: AtomicU32,
    name: [AtomicU64; 2],
}

impl TraceLabel {
    /// Sets the number. Called by the thread itself, or before it runs.
    pub fn set_pid(&self, pid: u32) {
        self.pid.store(pid, Ordering::Relaxed);
    }
    /// Sets the name.
    pub fn set_name(&self, name: [u8; 16]) {
        let name = u128::from_le_bytes(name);
        self.name[0].store(name as u64, Ordering::Relaxed);
        self.name[1].store((name >> 64) as u64, Ordering::Relaxed);
    }
    /// Returns the number.
    pub fn pid(&self) -> Pid {
        Pid(self.pid.load(Ordering::Relaxed) as i32)
    }
    /// Returns the name.
    pub fn comm(&self) -> Comm {
        let [low, high] = [0, 1].map(|half: usize| u128::from(self.name[half].load(Ordering::Relaxed)));
        Comm((low | high << 64).to_le_bytes())
    }
}

/// One thread of execution.
pub struct Thread {
    me: Weak<Thread>,
    owner: Weak<dyn ThreadOwner>,
    runs: RunsPrograms,
    /// Its scheduling state.
    pub schedule: Schedule,
    /// Its label in tracepoints.
    pub label: TraceLabel,
    stack: spin::Once<crate::hw::thread::Thread>,
    /// The translation that the thread's CPU loads; `None`: the loaded one stays. Changed before
    /// the thread runs, or by the thread itself.
    translation: SpinLock<Option<Arc<Translation>>>,
    /// A reference to the task, held from the thread's start to its end.
    kept: IrqSpinLock<Option<Arc<dyn ThreadOwner>>>,
    /// Flags to check before the return to user mode: [`SIGNAL`], [`PLACE`].
    attention: AtomicU8,
    /// The CPU and node on which the thread runs, if its program uses them (rseq).
    whereabouts: Whereabouts,
    /// The concurrency IDs of its space; `None` with one CPU, or if no program uses them.
    concurrency_ids: SpinLock<Option<Arc<ConcurrencyIds>>>,
    /// See [`Thread::cancel`].
    cancelled: AtomicBool,
    sleep_timer: TimerSlot,
    /// Number of page faults: without and with I/O.
    pub faults: [AtomicU64; 2],
    /// The nodes that provide pages which the thread touches first. Policies of the process' areas
    /// have priority.
    memory_policy: SpinLock<Option<Arc<TaskPolicy>>>,
    /// Whether windows on programs' frames are flushed when they close while it runs, whatever the
    /// policy.
    forgets_windows: AtomicBool,
    /// Whether it is reclaiming memory ([`crate::mem::reclaim`]). Then its allocations may use the
    /// last reserve. Only the thread itself changes this.
    pub(crate) reclaims: AtomicBool,
    /// Whether its charges may exceed accounts' limits. Only the thread itself changes this.
    pub(crate) passes_limits: AtomicBool,
    /// Whether a request for frames has failed since the thread's last check. Only the thread
    /// itself changes this.
    pub(crate) was_denied: AtomicBool,
    /// The account to which the thread's requests are charged.
    account: AtomicAccountId,
    /// The account whose limit the thread has met since its last check. The root, which has no
    /// limit, stands for none. Only the thread itself changes this.
    pub(crate) refused_by: AtomicAccountId,
    /// The account whose limit it exceeded ([`Thread::pass_high`]); the root for none.
    passed_high: AtomicAccountId,
    /// References that the thread has yet to drop ([`crate::sync::deferred`]). Only the thread
    /// itself accesses them.
    pub(crate) releases: ReleaseList,
    /// The fault injection for the thread's allocations.
    pub(crate) injection: TaskFaults,
}

/// A signal has arrived, or the thread is to stop or end: interruptible sleeps end, too.
pub const SIGNAL: u8 = 1;
/// The program must be told its CPU, or that it was interrupted ([`Whereabouts`]).
pub const PLACE: u8 = 2;
/// The thread has exceeded a limit of an account ([`Thread::pass_high`]).
pub const CHARGE: u8 = 8;
/// The thread must charge its CPU time to a quota, or may have one.
pub const QUOTA: u8 = 16;
/// The thread has watchpoints, which are armed while its program runs. The flag stays set.
pub const WATCH: u8 = 4;

/// Number of threads with their own stack.
static STACKS: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of threads with their own stack.
pub fn stacks() -> usize {
    STACKS.load(Ordering::Relaxed)
}

impl Thread {
    /// Makes a thread of `owner`, without a stack.
    #[inline]
    pub fn new(owner: Weak<dyn ThreadOwner>, runs: RunsPrograms, schedule: Schedule) -> Arc<Self> {
        reserve::cyclic(|me| Self {
            me: me.clone(),
            owner,
            runs,
            schedule,
            label: TraceLabel::default(),
            stack: spin::Once::new(),
            translation: SpinLock::new(None),
            kept: IrqSpinLock::new(None),
            attention: AtomicU8::new(0),
            whereabouts: Whereabouts::default(),
            concurrency_ids: SpinLock::new(None),
            cancelled: AtomicBool::new(false),
            sleep_timer: TimerSlot::new(),
            faults: [const { AtomicU64::new(0) }; 2],
            memory_policy: SpinLock::new(None),
            forgets_windows: AtomicBool::new(false),
            reclaims: AtomicBool::new(false),
            passes_limits: AtomicBool::new(false),
            was_denied: AtomicBool::new(false),
            account: AtomicAccountId::new(match runs {
                RunsPrograms::Programs => running::account(),
                RunsPrograms::Kernel => AccountId::ROOT,
            }),
            refused_by: AtomicAccountId::default(),
            passed_high: AtomicAccountId::default(),
            releases: ReleaseList::new(),
            injection: TaskFaults::default(),
        })
    }

    /// Returns a reference to the thread.
    pub fn arc(&self) -> Arc<Self> {
        self.me.upgrade().expect("whoever calls a method of a thread holds a reference to it")
    }
    /// Returns its task; `None` once that has been dropped.
    pub fn owner(&self) -> Option<Arc<dyn ThreadOwner>> {
        self.owner.upgrade()
    }
    /// Whether it runs in the kernel only.
    pub fn is_kernel(&self) -> bool {
        self.runs == RunsPrograms::Kernel
    }
    /// Whether a signal is pending, or the thread is to stop or end: interruptible sleeps return.
    pub fn signal_pending(&self) -> bool {
        self.attention.load(Ordering::Acquire) & SIGNAL != 0
    }
    /// Whether anything must be checked before the return to user mode.
    #[inline]
    pub fn is_called(&self) -> bool {
        self.attention.load(Ordering::Acquire) != 0
    }
    /// Whether any flag of `what` is set.
    #[inline]
    pub fn is_called_for(&self, what: u8) -> bool {
        self.attention.load(Ordering::Acquire) & what != 0
    }
    /// Makes the thread check `what`: [`SIGNAL`], [`PLACE`].
    #[inline]
    pub fn call_attention(&self, what: u8) {
        self.attention.fetch_or(what, Ordering::SeqCst);
    }
    /// Clears the flags `what`, because the thread checks them now. Returns whether any was set.
    /// Call it before the check, so that a later flag is not missed.
    #[inline]
    pub fn answer_call(&self, what: u8) -> bool {
        self.attention.fetch_and(!what, Ordering::SeqCst) & what != 0
    }
    /// Makes a kernel thread stop its work for a program at its next checkpoint, because that
    /// program has ended.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.call_attention(SIGNAL);
        wake(self, &[Sleep::Killable]);
    }
    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
    /// Whether the thread was cancelled, or ends before it returns to user mode.
    pub fn is_dying(&self) -> bool {
        self.is_cancelled() || self.owner().is_none_or(|owner| owner.is_ending())
    }
    /// Returns how windows on programs' frames close while it runs.
    #[inline]
    pub fn closing(&self) -> Closing {
        if self.forgets_windows.load(Ordering::Relaxed) { Closing::Forgets } else { Closing::ByPolicy }
    }
    /// Sets how windows close while it runs, from the next switch to it on.
    pub fn set_closing(&self, closing: Closing) {
        self.forgets_windows.store(closing == Closing::Forgets, Ordering::Relaxed);
    }
    /// Returns its memory policy, if it has one.
    pub fn memory_policy(&self) -> Option<Arc<TaskPolicy>> {
        self.memory_policy.lock().clone()
    }
    /// Returns the account to which its frames are charged.
    #[inline]
    pub fn account(&self) -> AccountId {
        self.account.load(Ordering::Relaxed)
    }
    /// Sets the account for later charges. A concurrent request is charged to either account.
    pub fn set_account(&self, account: AccountId) {
        self.account.store(account, Ordering::Relaxed);
    }
    /// Records that the thread has exceeded the soft limit of `account`, or its hard limit by an
    /// allocation that could not be refused. It reclaims memory before it returns to user mode.
    /// Only the thread itself calls this.
    pub fn pass_high(&self, account: AccountId) {
        self.passed_high.store(account, Ordering::Relaxed);
        self.call_attention(CHARGE);
    }
    /// Takes the account whose limit the thread exceeded since the last call. Only the thread
    /// itself calls this.
    pub fn take_passed_high(&self) -> Option<AccountId> {
        if !self.answer_call(CHARGE) {
            return None;
        }
        self.passed_high.swap(AccountId::ROOT, Ordering::Relaxed).unless_root()
    }
    /// Sets its memory policy, or removes it.
    pub fn set_memory_policy(&self, policy: Option<Arc<TaskPolicy>>) {
        let old = core::mem::replace(&mut *self.memory_policy.lock(), policy);
        drop(old);
    }
}

/// The CPU and the IDs of a thread: the protocol is in the head of [`super::whereabouts`].
impl Thread {
    /// Starts reporting CPU and IDs to the thread's program; `ids` are those of its space. Called
    /// by the thread itself, or before any CPU runs it.
    pub fn watch_place(&self, ids: Option<Arc<ConcurrencyIds>>) {
        *self.concurrency_ids.lock() = ids;
        self.whereabouts.watched.store(true, Ordering::Relaxed);
        self.call_attention(PLACE);
    }
    /// Stops reporting to its program. Only the thread itself calls this.
    pub fn forget_place(&self) {
        self.whereabouts.watched.store(false, Ordering::Relaxed);
        self.give_back_held();
        self.keep_id_at_leaving();
        let ids = self.concurrency_ids.lock().take();
        drop(ids);
    }
    /// Returns the concurrency ID that it holds until it leaves its CPU. Only the thread itself
    /// calls this.
    pub fn concurrency_id(&self, company: impl FnOnce() -> Company) -> u32 {
        let held = &self.whereabouts.held;
        if let Some(id) = held.load(Ordering::Relaxed).checked_sub(1) {
            return u32::from(id);
        }
        let Some(id) = self.concurrency_ids.lock().as_ref().map(|ids| ids.take()) else { return 0 };
        held.store(id + 1, Ordering::Relaxed);
        match company() {
            Company::Alone => self.keep_id_at_leaving(),
            Company::Others => self.share_concurrency_id(),
        }
        u32::from(id)
    }
    /// Prepares for other threads in its space: its ID is released when it leaves its CPU. Only the
    /// thread itself calls this.
    pub fn share_concurrency_id(&self) {
        if self.whereabouts.held.load(Ordering::Relaxed) != 0 {
            let leaving = &self.schedule.leaving;
            leaving.store(leaving.load(Ordering::Relaxed) | GIVES_ID, Ordering::Relaxed);
        }
    }
    fn keep_id_at_leaving(&self) {
        let leaving = &self.schedule.leaving;
        leaving.store(leaving.load(Ordering::Relaxed) & !GIVES_ID, Ordering::Relaxed);
    }
    fn give_back_held(&self) {
        let held = self.whereabouts.held.swap(0, Ordering::Relaxed);
        if let (Some(id), Some(ids)) = (held.checked_sub(1), &*self.concurrency_ids.lock()) {
            ids.give(id);
        }
    }
    /// Releases the thread's concurrency ID. The thread has left its CPU, and no other CPU runs it
    /// yet.
    pub(super) fn give_id_back(&self) {
        self.give_back_held();
        self.call_attention(PLACE);
    }
    /// Assigns the thread to the queue of `cpu`. It is in no queue, and the caller holds the lock
    /// of the queue that it left.
    pub(super) fn belongs_to(&self, cpu: CpuId) {
        self.schedule.cpu.store(cpu.0, Ordering::Relaxed);
        if self.whereabouts.watched.load(Ordering::Relaxed) {
            self.call_attention(PLACE);
        }
    }
}

mod running {
    use crate::hw::panic::MAX_FRAMES;
    use crate::hw::thread as machine;

    use super::*;
    use crate::Errno;
    use crate::sched::{finish_switch, make_room, nodes};

    impl Thread {
        /// Returns the stack and the registers for a switch.
        pub(in crate::sched) fn stack(&self) -> &machine::Thread {
            self.stack.get().expect("a thread is started after it got its stack")
        }
        /// Stores the call stack of a thread that does not run: addresses in the slid image,
        /// innermost first. Returns their number; 0 if it runs.
        pub fn backtrace(&self, into: &mut [u64; MAX_FRAMES]) -> usize {
            self.stack.get().map_or(0, |stack| stack.backtrace(into))
        }
        /// Returns the translation that the thread's CPU loads, locked.
        pub(in crate::sched) fn translation(
            &self,
        ) -> impl core::ops::Deref<Target = Option<Arc<Translation>>> + '_ {
            self.translation.lock()
        }
        /// Sets the translation of its CPU from the next switch on; see
        /// [`crate::sched::activate_current`].
        pub fn set_translation(&self, new: Arc<Translation>) {
            let old = self.translation.lock().replace(new);
            drop(old);
        }
        /// Drops the thread's address space, because it no longer runs a program, even if other
        /// code keeps a reference to the thread.
        pub fn leave_translation(&self) {
            let old = self.translation.lock().take();
            drop(old);
        }
        /// Gives it a stack, on which it will run `body`.
        ///
        /// # Errors
        /// `ENOMEM`.
        pub fn prepare(&self, body: impl FnOnce() + Send + 'static) -> Result<()> {
            make_room(stacks() + 2)?;
            let node = if nodes::are_several() { nodes::settle(self) } else { NodeId(0) };
            let me = self.me.clone();
            let life = move || {
                finish_switch();
                let Some(thread) = me.upgrade() else { return };
                let kept = thread.kept.lock().take();
                machine::show(&thread, || {
                    body();
                    drop(kept);
                });
            };
            let stack = machine::Thread::new(node, reserve::boxed(life)).map_err(|_| Errno::ENOMEM)?;
            self.stack.call_once(|| stack);
            STACKS.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        /// Makes the running code the thread, permanently: a CPU's idle thread.
        pub(in crate::sched) fn adopt(&self) {
            self.stack.call_once(machine::Thread::adopt);
        }
        /// Starts a thread that was [prepared](Self::prepare). It keeps `owner`, its task, alive
        /// until it has ended.
        pub fn start(&self, owner: Arc<dyn ThreadOwner>) {
            *self.kept.lock() = Some(owner);
            wake(self, &[Sleep::Uninterruptible]);
        }
    }

    impl Drop for Thread {
        fn drop(&mut self) {
            if self.stack.is_completed() {
                STACKS.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Calls `look` with the running thread. `None` before this CPU takes part in scheduling.
    #[inline]
    pub fn with_current<R>(look: impl FnOnce(&Arc<Thread>) -> R) -> Option<R> {
        machine::with_current(look)
    }

    /// Returns the account to which the running thread's requests are charged; the root before this
    /// CPU takes part in scheduling.
    #[inline]
    pub fn account() -> AccountId {
        with_current(|thread| thread.account()).unwrap_or(AccountId::ROOT)
    }

    /// Makes and starts a thread that runs `body` in the kernel and then ends.
    ///
    /// # Errors
    /// `ENOMEM`, `EAGAIN`.
    ///
    /// # Panics
    /// Before this CPU takes part in scheduling.
    pub fn spawn_kernel(name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<Arc<Thread>> {
        let owner = current().owner().ok_or(Errno::EAGAIN)?;
        owner.spawn_kernel(name, reserve::boxed(body))
    }
}

pub use running::{account, spawn_kernel, with_current};

/// Returns the running thread, if this CPU takes part in scheduling.
#[inline]
pub fn try_current() -> Option<Arc<Thread>> {
    with_current(|current| current.clone())
}

/// Returns the running thread.
///
/// # Panics
/// Before this CPU takes part in scheduling.
pub fn current() -> Arc<Thread> {
    try_current().expect("a thread runs")
}

/// Whether the running thread ends before it returns to user mode. Cheap: the word that every
/// signal sets is checked first.
#[inline]
pub fn is_current_dying() -> bool {
    with_current(|thread| thread.signal_pending() && thread.is_dying()).unwrap_or(false)
}

/// Whether an allocation of the running thread failed by fault injection since the last call.
pub fn current_was_injected() -> bool {
    with_current(|thread| thread.injection.take_injected()).unwrap_or(false)
}

impl Wake for Thread {
    fn wake(&self) -> Woken {
        wake(self, &[Sleep::Interruptible, Sleep::Uninterruptible, Sleep::Killable])
    }
}

/// The expiry of a sleep's deadline.
impl Expire for Thread {
    fn slot(&self) -> &TimerSlot {
        &self.sleep_timer
    }
    fn expire(&self, _now: u64) -> Option<Deadline> {
        wake(self, &[Sleep::Interruptible, Sleep::Uninterruptible, Sleep::Killable]);
        None
    }
}
