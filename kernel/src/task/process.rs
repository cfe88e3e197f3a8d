//! Processes: the state that the threads of a program share.

use core::any::Any;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use freehold_collections::{
    Arc, Vec, Weak,
    reserve::{self, ArcMethods},
};

use super::audit::AuditIds;
use super::capabilities::Capability;
use super::credentials::Credentials;
use super::dump::meeting::Meeting;
use super::inspect;
use super::keys::held::RingSlot;
use super::limits::{Limit, Limits, Resource};
use super::namespaces::Namespaces;
use super::namespaces::time::{Offsets, TimeNamespace};
use super::pidns::{FIRST, Numbers, PidNs, PidView};
use super::registry::Family;
use super::session::Session;
use super::signal::{Actions, Pending, Signal};
use super::trace::{Tracee, Tracees};
pub use super::usage::Usage;
use super::users::{self, CountedThreads};
use super::{Pid, Task};
use crate::cgroup::{CgroupMember, Fork};
use crate::fs::{FileTable, FsContext, FsMember};
use crate::mem::ProcessSpace;
use crate::sync::{IrqSpinLock, Mutex, Shared, SpinLock, WaitQueue};

pub(super) use super::exit_status::{Collector, Zombie};
pub use super::exit_status::{ExitStatus, WaitReport};

/// State that the threads of a process share about running, stopping and ending. Its lock is
/// interrupt-safe, since timers send signals.
#[derive(Debug, Default)]
pub struct Group {
    /// The threads that have not ended, by ID.
    pub threads: Vec<Arc<Task>>,
    /// Signals to the process as a whole.
    pub pending: Pending,
    /// The process is ending: every thread ends on its way to user mode.
    pub exit: Option<ExitStatus>,
    /// The thread that replaces the program, or writes a core file: all others end.
    pub exec: Option<Pid>,
    /// The meeting of these threads before they end, for a core file.
    pub dump: Option<Arc<Meeting>>,
    /// Job control stopped the process: threads park on their way to user mode.
    stop: Option<Signal>,
    /// How often job control stopped the process.
    stops: u64,
    /// The control group is frozen: threads wait on their way to user mode.
    pub frozen: bool,
    /// Threads that are parked.
    pub parked: usize,
    /// The state change that was not reported to the parent yet.
    pub report: Option<WaitReport>,
    /// Resources that ended threads used. A thread is either counted here or listed in `threads`.
    pub past: Usage,
    /// How many threads have ended or changed their ID.
    pub ended: u64,
}

/// Processes whose `stop` is set.
static STOPPED: AtomicUsize = AtomicUsize::new(0);

/// Whether job control has stopped any process. Otherwise most ends of processes need no search.
pub(super) fn is_any_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed) != 0
}

impl Group {
    /// Returns the signal by which job control stopped the process.
    pub fn stop(&self) -> Option<Signal> {
        self.stop
    }
    /// Returns the number of the current or last stop of the process; 0 for none.
    pub fn stops(&self) -> u64 {
        self.stops
    }
    /// Counts a thread as parked. Returns whether all are.
    pub fn park(&mut self) -> bool {
        self.parked += 1;
        self.parked == self.threads.len()
    }
    /// Stops the process by a signal, or lets it continue. Returns the previous state.
    pub fn set_stop(&mut self, stop: Option<Signal>) -> Option<Signal> {
        self.stops += u64::from(stop.is_some());
        let old = core::mem::replace(&mut self.stop, stop);
        STOPPED.fetch_add(usize::from(stop.is_some()), Ordering::Relaxed);
        STOPPED.fetch_sub(usize::from(old.is_some()), Ordering::Relaxed);
        old
    }
}

/// Semaphore operations to undo when a process ends. Processes made with CLONE_SYSVSEM share them.
/// Dropping the slot undoes them.
#[derive(Default)]
pub struct UndoSlot(pub SpinLock<Option<Arc<dyn Any + Send + Sync>>>);

/// A process' limits, shared by its threads. The soft limits are read without the lock.
struct SharedLimits {
    all: SpinLock<Limits>,
    /// The soft limits of `all`, stored under its lock.
    soft: [AtomicU64; 16],
}

impl SharedLimits {
    /// Makes shared limits with these values.
    fn new(limits: Limits) -> Self {
        Self {
            all: SpinLock::new(limits),
            soft: Resource::ALL.map(|resource| AtomicU64::new(limits.get(resource).soft)),
        }
    }
    /// Returns the soft limit of `resource`.
    #[inline]
    fn soft(&self, resource: Resource) -> u64 {
        self.soft[resource as usize].load(Ordering::Relaxed)
    }
    /// Returns all limits.
    fn all(&self) -> Limits {
        *self.all.lock()
    }
    /// Calls `judge` with the limit of `resource`, then changes it. Returns the old one.
    fn set(
        &self,
        resource: Resource,
        limit: Limit,
        judge: impl FnOnce(Limit) -> crate::Result<()>,
    ) -> crate::Result<Limit> {
        let mut all = self.all.lock();
        let old = all.get(resource);
        judge(old)?;
        all.set(resource, limit);
        self.soft[resource as usize].store(limit.soft, Ordering::Relaxed);
        Ok(old)
    }
}

/// Bits of [`Process::incarnation`].
pub const INCARNATION_BITS: u32 = 14;
/// Number of processes that were made (modulo 2^16).
static MADE: AtomicU16 = AtomicU16::new(0);

/// A process. Its relations (parent, children) and its membership in groups and sessions change
/// only under the registry's lock.
pub struct Process {
    /// The process ID (thread group ID), also of its first thread.
    pub pid: Pid,
    /// The ID with its numbers in PID namespaces.
    numbers: Numbers,
    /// Whether it is the first process of a PID namespace below the initial one. A fault of its own
    /// ends this protection (Linux: SIGNAL_UNKILLABLE).
    is_shielded: AtomicBool,
    /// A number that differs from that of the process which had the ID before, unless exactly 2^14
    /// processes were made in between.
    pub incarnation: u16,
    /// Time of its creation (nanoseconds of [`crate::time::now`]).
    pub started: u64,
    pub(super) parent: SpinLock<Weak<Process>>,
    pub(super) family: Family,
    pub(super) group_id: AtomicU32,
    pub(super) session: SpinLock<Arc<Session>>,
    /// The signal that its end sends to the parent; 0 for none.
    pub(super) exit_signal: AtomicU32,
    /// Number of programs that the process has executed since fork (setpgid's EACCES).
    pub(super) executed: AtomicU64,
    /// The parent's `executed` when this process was made: the exit signal is for that program.
    pub(super) maker_executed: AtomicU64,
    /// Whether orphans below the process become its children (PR_SET_CHILD_SUBREAPER).
    pub(super) is_subreaper: AtomicBool,
    pub(super) space: Shared<ProcessSpace>,
    pub(super) files: Shared<FileTable>,
    pub(super) fs: SpinLock<FsMember>,
    /// Number of changes of root and working directory, and of how many processes share them.
    pub(super) places_version: AtomicU32,
    pub(super) credentials: Shared<Credentials>,
    /// Its part of its user's threads.
    pub(super) counted: CountedThreads,
    /// Held while its rights change, and while others act on a check of these: see [`inspect`].
    pub(super) rights: Mutex<()>,
    /// Whether the credentials are in a user namespace whose IDs differ from the kernel's. Code
    /// that shows IDs checks this first.
    has_other_ids: AtomicBool,
    namespaces: SpinLock<Arc<Namespaces>>,
    /// The offsets of its time namespace: of CLOCK_MONOTONIC and CLOCK_BOOTTIME, in nanoseconds.
    time_offsets: [AtomicI64; 2],
    limits: SharedLimits,
    pub(super) actions: IrqSpinLock<Arc<IrqSpinLock<Actions>>>,
    pub(super) signals: IrqSpinLock<Group>,
    /// Woken when a signal comes, for signalfd and sigtimedwait.
    pub signal_arrival: Arc<WaitQueue>,
    /// Woken when a child changes state.
    pub(super) child_changed: WaitQueue,
    /// Woken when a thread has ended.
    pub(super) thread_ended: WaitQueue,
    /// Woken when this process has ended, for pidfds.
    pub ended: Arc<WaitQueue>,
    /// How the process ended; set once all threads have ended. Status and collector are set in one
    /// step: a process that is visibly a zombie can be waited for at once.
    pub(super) zombie: SpinLock<Option<Zombie>>,
    /// Resources that waited-for children have used.
    pub(super) children_usage: SpinLock<Usage>,
    pub(super) timers: super::timers::Timers,
    /// The name of its program, for the time after its threads have ended.
    pub(super) name: SpinLock<[u8; 16]>,
    /// Preference of the OOM killer, -1000..=1000.
    pub oom_score_adj: AtomicI32,
    /// The lowest value that may be set without CAP_SYS_RESOURCE: the value last set with it.
    pub oom_score_adj_least: AtomicI32,
    /// /proc/PID/fail-nth as set by its first thread.
    pub(super) fail_nth: AtomicU32,
    /// PR_SET_NO_NEW_PRIVS: execve gives no new IDs to the process or its children.
    pub no_new_privileges: AtomicBool,
    /// Whether this program has submitted a request to an io_uring instance that waited.
    pub asked_rings: AtomicBool,
    /// /proc/PID/loginuid and sessionid.
    pub audit: AuditIds,
    /// The commands that the process registered for by membarrier(2), as bits.
    pub barriers: AtomicU32,
    /// The keyring of the process.
    pub(super) key_ring: RingSlot,
    /// The value that personality(2) set.
    pub personality: AtomicU32,
    /// PR_SET_PDEATHSIG.
    pub(super) parent_death_signal: AtomicU32,
    /// The threads that the process traces.
    pub(super) tracees: SpinLock<Tracees>,
    /// State that the first thread and its tracer share, until the process has ended.
    pub(super) leader_tracee: SpinLock<Option<Arc<Tracee>>>,
    /// `None` while there is nothing to undo.
    pub(super) undo: SpinLock<Option<Arc<UndoSlot>>>,
    /// The process' membership in control groups.
    pub cgroup: CgroupMember,
}

/// Initial state of a new process.
pub struct Beginnings {
    /// Its memory.
    pub space: Arc<ProcessSpace>,
    /// Its descriptors.
    pub files: Arc<FileTable>,
    /// Its root, working directory and umask.
    pub fs: Arc<FsContext>,
    /// The process' credentials.
    pub credentials: Arc<Credentials>,
    /// Its namespaces.
    pub namespaces: Arc<Namespaces>,
    /// Its limits.
    pub limits: Limits,
    /// The process' signal handlers.
    pub actions: Arc<IrqSpinLock<Actions>>,
    /// Its session.
    pub session: Arc<Session>,
    /// Its process group.
    pub group_id: Pid,
    /// Its membership in control groups.
    pub cgroup: CgroupMember,
}

impl Beginnings {
    /// Returns those of a process that leads a new session and group, `pid`, and has no program
    /// yet.
    pub(super) fn of_leader(
        pid: Pid,
        files: Arc<FileTable>,
        fs: Arc<FsContext>,
        credentials: Arc<Credentials>,
    ) -> Self {
        Self {
            space: super::spawn::kernel_process().space(),
            files,
            fs,
            credentials,
            namespaces: super::spawn::kernel_process().namespaces(),
            limits: Limits::initial(super::registry::tasks_max()),
            actions: reserve::arc(IrqSpinLock::new(Actions::new())),
            session: reserve::arc(Session::new(pid)),
            group_id: pid,
            cgroup: Fork::ROOT.place(),
        }
    }
}

impl Process {
    /// Makes a process without a thread that is not in the registry yet.
    pub(super) fn new(numbers: Numbers, parent: Weak<Process>, with: Beginnings) -> Self {
        Self {
            pid: numbers.id(),
            is_shielded: AtomicBool::new(!numbers.is_initial() && numbers.own() == FIRST),
            numbers,
            incarnation: MADE.fetch_add(1, Ordering::Relaxed) % (1 << INCARNATION_BITS),
            started: crate::time::now(),
            parent: SpinLock::new(parent),
            family: Family::default(),
            group_id: AtomicU32::new(with.group_id),
            session: SpinLock::new(with.session),
            exit_signal: AtomicU32::new(u32::from(Signal::CHLD.number())),
            executed: AtomicU64::new(0),
            maker_executed: AtomicU64::new(0),
            is_subreaper: AtomicBool::new(false),
            space: Shared::new(with.space),
            files: Shared::new(with.files),
            fs: SpinLock::new(FsMember::new(with.fs)),
            places_version: AtomicU32::new(0),
            has_other_ids: AtomicBool::new(!with.credentials.user_ns.is_initial()),
            credentials: Shared::new(with.credentials),
            counted: CountedThreads::default(),
            rights: Mutex::new(()),
            time_offsets: {
                let offsets = with.namespaces.time.offsets();
                [offsets.monotonic, offsets.boottime].map(AtomicI64::new)
            },
            namespaces: SpinLock::new(with.namespaces),
            limits: SharedLimits::new(with.limits),
            actions: IrqSpinLock::new(with.actions),
            signals: IrqSpinLock::new(Group::default()),
            signal_arrival: reserve::arc(WaitQueue::new()),
            key_ring: RingSlot::default(),
            child_changed: WaitQueue::new(),
            thread_ended: WaitQueue::new(),
            ended: reserve::arc(WaitQueue::new()),
            zombie: SpinLock::new(None),
            children_usage: SpinLock::new(Usage::default()),
            timers: super::timers::Timers::new(),
            name: SpinLock::new([0; 16]),
            oom_score_adj: AtomicI32::new(0),
            oom_score_adj_least: AtomicI32::new(0),
            fail_nth: AtomicU32::new(0),
            no_new_privileges: AtomicBool::new(false),
            asked_rings: AtomicBool::new(false),
            audit: AuditIds::default(),
            barriers: AtomicU32::new(0),
            personality: AtomicU32::new(0),
            parent_death_signal: AtomicU32::new(0),
            tracees: SpinLock::new(Tracees::default()),
            leader_tracee: SpinLock::new(None),
            undo: SpinLock::new(None),
            cgroup: with.cgroup,
        }
    }

    /// Whether its tasks run only in the kernel, and so in any address space.
    pub fn is_kernel(&self) -> bool {
        self.pid <= 1
    }
    /// Returns its number in its own PID namespace, by which it knows itself.
    #[inline]
    pub const fn number(&self) -> Pid {
        self.numbers.own()
    }
    /// Returns its number in a PID namespace; 0 if it has none there.
    #[inline]
    pub fn number_in(&self, view: PidView) -> Pid {
        self.numbers.in_view(view)
    }
    /// Returns its number in the PID namespace of `reader`.
    #[inline]
    pub fn number_for(&self, reader: &Process) -> Pid {
        if reader.numbers.is_initial() { self.pid } else { self.numbers.in_view(reader.pid_view()) }
    }
    /// Returns its ID with all its numbers.
    pub const fn numbers(&self) -> &Numbers {
        &self.numbers
    }
    /// Returns its PID namespace, which never changes.
    pub fn pid_ns(&self) -> &PidNs {
        self.numbers.namespace()
    }
    /// Returns the identity of its PID namespace.
    #[inline]
    pub fn pid_view(&self) -> PidView {
        if self.numbers.is_initial() { PidView::INITIAL } else { self.pid_ns().view() }
    }
    /// Whether it is the first process of a PID namespace below the initial one.
    pub fn is_namespace_init(&self) -> bool {
        !self.numbers.is_initial() && self.numbers.own() == FIRST
    }
    /// Whether signals without a handler have no effect on it, except SIGKILL and SIGSTOP from
    /// outside of its PID namespace.
    #[inline]
    pub(super) fn is_shielded(&self) -> bool {
        self.is_shielded.load(Ordering::Relaxed)
    }
    /// Removes the protection of a namespace's first process, because a fault of its own ends it.
    pub(super) fn drop_shield(&self) {
        self.is_shielded.store(false, Ordering::Relaxed);
    }
    /// Returns the semaphore operations that are undone when the process ends.
    pub fn undo_slot(&self) -> Arc<UndoSlot> {
        self.undo.lock().get_or_insert_default().clone()
    }
    /// Returns the address of those (kcmp); 0 while there is nothing to undo.
    pub fn undo_address(&self) -> usize {
        self.undo.lock().as_ref().map_or(0, |slot| slot.address().addr())
    }
    /// Returns the address of its signal handlers (kcmp).
    pub fn actions_address(&self) -> usize {
        self.actions.lock().address().addr()
    }
    /// Returns its namespaces; those of the kernel once it has ended.
    pub fn namespaces(&self) -> Arc<Namespaces> {
        self.namespaces.lock().clone()
    }
    /// Returns the offsets of its time namespace.
    #[inline]
    pub fn time_offsets(&self) -> Offsets {
        let [monotonic, boottime] = self.time_offsets.each_ref().map(|offset| offset.load(Ordering::Relaxed));
        Offsets { monotonic, boottime }
    }
    /// Makes the clocks of the process show the times of `namespace`. It has one thread, which is
    /// the caller, and no other process has its memory.
    pub(super) fn enter_time(&self, namespace: &TimeNamespace) {
        namespace.freeze();
        let offsets = namespace.offsets();
        self.time_offsets[0].store(offsets.monotonic, Ordering::Relaxed);
        self.time_offsets[1].store(offsets.boottime, Ordering::Relaxed);
        self.space().lock().set_time_offsets(namespace.page());
    }
    /// Sets other namespaces (unshare, setns, exit). Returns the old ones.
    pub(super) fn replace_namespaces(&self, namespaces: Arc<Namespaces>) -> Arc<Namespaces> {
        core::mem::replace(&mut *self.namespaces.lock(), namespaces)
    }
    /// Returns the process' credentials.
    #[inline]
    pub fn credentials(&self) -> Arc<Credentials> {
        self.credentials.get()
    }
    /// Calls `f` with its credentials, under a spin lock: dropping must not sleep there.
    #[inline]
    pub fn with_credentials<R>(&self, f: impl FnOnce(&Credentials) -> R) -> R {
        self.credentials.with(f)
    }
    /// Returns its real user.
    #[inline]
    pub fn uid(&self) -> u32 {
        self.credentials.with(|own| own.uid)
    }
    /// Returns its effective user and group.
    #[inline]
    pub fn effective_ids(&self) -> (u32, u32) {
        self.credentials.with(|own| (own.euid, own.egid))
    }
    /// Changes the credentials for a call of the process. Inspectors with the new IDs do not see
    /// what the old ones left in memory. `change` gets a copy. Changes by several threads run one
    /// after the other.
    ///
    /// # Errors
    /// Those of `change`; nothing has changed.
    pub(super) fn change_credentials(
        &self,
        change: impl FnOnce(&mut Credentials) -> crate::Result<()>,
    ) -> crate::Result<()> {
        let _rights = self.rights.lock();
        let old = self.credentials();
        let mut new = Credentials::clone(&old);
        change(&mut new)?;
        // A C library makes each thread repeat such a call. Only the first one changes anything.
        if new == *old {
            return Ok(());
        }
        if inspect::changes(&old, &new) {
            self.space().set_dumpable(inspect::after_change());
            self.parent_death_signal.store(0, Ordering::Relaxed);
        }
        self.set_credentials(new);
        Ok(())
    }
    /// Whether the program sees other user and group IDs than the kernel.
    #[inline]
    pub fn has_other_ids(&self) -> bool {
        self.has_other_ids.load(Ordering::Relaxed)
    }
    /// Changes the credentials.
    pub(in crate::task) fn set_credentials(&self, credentials: Credentials) {
        self.has_other_ids.store(!credentials.user_ns.is_initial(), Ordering::Relaxed);
        drop(self.credentials.replace(reserve::arc(credentials)));
        self.threads().for_each(|thread| thread.kept_credentials.forget());
        users::count_threads(self);
    }
    /// Returns the limit of `resource`.
    pub fn limit(&self, resource: Resource) -> Limit {
        self.limits.all().get(resource)
    }
    /// Returns the soft limit of `resource`.
    #[inline]
    pub fn soft_limit(&self, resource: Resource) -> u64 {
        self.limits.soft(resource)
    }
    /// Returns the bound of descriptors (RLIMIT_NOFILE).
    pub fn descriptor_limit(&self) -> usize {
        usize::try_from(self.soft_limit(Resource::Files)).unwrap_or(usize::MAX)
    }
    /// Returns all limits.
    pub fn limits(&self) -> Limits {
        self.limits.all()
    }
    /// Changes the limit of `resource` if `judge`, called under a spin lock with the previous one,
    /// permits it. Returns the previous one.
    ///
    /// # Errors
    /// Those of `judge`.
    pub(super) fn set_limit(
        &self,
        resource: Resource,
        limit: Limit,
        judge: impl FnOnce(Limit) -> crate::Result<()>,
    ) -> crate::Result<Limit> {
        self.limits.set(resource, limit, judge)
    }
    /// Returns the limits that memory calls check.
    pub fn memory_limits(&self) -> freehold_vm::Limits {
        let privileged = self.credentials.with(|own| own.may(Capability::IpcLock));
        freehold_vm::Limits {
            address_space: self.soft_limit(Resource::AddressSpace),
            data: self.soft_limit(Resource::Data),
            stack: self.soft_limit(Resource::Stack),
            memlock: if privileged { u64::MAX } else { self.soft_limit(Resource::Memlock) },
        }
    }
    /// Returns the parent, unless that is the kernel.
    pub fn parent(&self) -> Option<Arc<Self>> {
        self.parent.lock().upgrade()
    }
    /// Returns the parent's ID; 0 if that is the kernel.
    pub fn parent_pid(&self) -> Pid {
        self.parent().map_or(0, |parent| parent.pid)
    }
    /// Returns the parent's number in this process' PID namespace; 0 if it is outside.
    pub fn parent_number(&self) -> Pid {
        let parent = self.parent();
        if self.numbers.is_initial() {
            return parent.map_or(0, |parent| parent.pid);
        }
        parent.map_or(0, |parent| parent.number_for(self))
    }
    /// Returns the process group.
    pub fn group(&self) -> Pid {
        self.group_id.load(Ordering::Acquire)
    }
    /// Returns the session.
    pub fn session(&self) -> Arc<Session> {
        self.session.lock().clone()
    }
    /// Returns how it ended, if it has.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.zombie().map(|zombie| zombie.status)
    }
    /// Returns how it ended, and the process that it awaits, if it has ended.
    pub(super) fn zombie(&self) -> Option<Zombie> {
        *self.zombie.lock()
    }
    /// Visits the threads that have not ended, by ID. Allocates nothing. No lock is held between
    /// two threads.
    pub fn threads(&self) -> impl Iterator<Item = Arc<Task>> {
        self.threads_from(0)
    }
    /// As [`threads`](Self::threads), for threads with an ID of `least` or more.
    pub fn threads_from(&self, mut least: Pid) -> impl Iterator<Item = Arc<Task>> {
        core::iter::from_fn(move || {
            let group = self.signals.lock();
            let at = group.threads.partition_point(|thread| thread.tid() < least);
            let thread = group.threads.get(at)?.clone();
            least = thread.tid() + 1;
            Some(thread)
        })
    }
    /// Whether a core file of it is being written.
    pub fn is_dumping(&self) -> bool {
        self.signals.lock().dump.is_some()
    }
    /// Returns the number of threads that have not ended.
    pub fn thread_count(&self) -> usize {
        self.signals.lock().threads.len()
    }
    /// Returns its first thread, or any remaining one.
    pub fn leader(&self) -> Option<Arc<Task>> {
        let group = self.signals.lock();
        let first = group.threads.binary_search_by_key(&self.pid, |thread| thread.tid()).unwrap_or(0);
        group.threads.get(first).cloned()
    }
    /// Returns its first thread's [count](crate::fault_inject::TaskFaults::nth) of allocations
    /// until one fails. Readable until the process is waited for.
    pub fn fail_nth(&self) -> u32 {
        self.leader().map_or_else(|| self.fail_nth.load(Ordering::Relaxed), |task| task.injection.nth())
    }
    /// Returns the name of its program, at most 15 bytes.
    pub fn name(&self) -> [u8; 16] {
        *self.name.lock()
    }
    /// Returns the resources that the process' threads used, ended ones included.
    ///
    /// The result never decreases. If a thread ends during the count, the count is repeated, the
    /// third time under the lock. A few threads are counted under it at once.
    pub fn usage(&self) -> Usage {
        /// Threads that are counted under the lock at once.
        const FEW: usize = 8;
        let mut tries = 0;
        loop {
            let group = self.signals.lock();
            let (mut usage, ended) = (group.past, group.ended);
            if group.threads.len() <= FEW || tries == 2 {
                group.threads.iter().for_each(|thread| usage.add(&thread.usage()));
                return usage;
            }
            drop(group);
            self.threads().for_each(|thread| usage.add(&thread.usage()));
            if self.signals.lock().ended == ended {
                return usage;
            }
            tries += 1;
        }
    }
    /// Returns the resources that waited-for children used.
    pub fn children_usage(&self) -> Usage {
        *self.children_usage.lock()
    }
}

impl core::fmt::Debug for Process {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "process {}", self.pid)
    }
}
