//! The scheduler: which task runs on which CPU, and when.
//!
//! Every CPU has a [run queue](runqueue) under its own interrupt-safe lock; at most one such lock
//! is held at a time. A task belongs to the queue of `schedule.cpu`, whose lock protects its
//! changes between running, waiting for the CPU and sleeping.
//!
//! A switch has two halves. [`reschedule`] makes another task the queue's `current` under the lock,
//! and releases the lock. The new task then [finishes the switch](finish_switch). In between, the
//! old task's registers are not saved yet. `on_cpu` marks this, and no other CPU takes a task while
//! it is set.
//!
//! A runnable task is in exactly one queue, is running, or is on its way to another CPU. In the
//! last case the first half left it out of the queue, because its mask changed, and the second half
//! sends it to the other CPU ([`whereabouts`]). One check under the queue's lock decides whether it
//! is on its way, since its state, mask and position change meanwhile (`affinity_model` shows the
//! error of a second check). If a mask changes while a task is on its way to a queue, the task may
//! arrive on a CPU where it must not run. Then it continues in the kernel only, and leaves before
//! its next instruction in user mode.
//!
//! The kernel is not preemptible: `reschedule` is called where a task blocks, in [`cond_resched`],
//! and before a return to user mode. Interrupt handlers only set `wanted`.

#[cfg(test)]
mod affinity_model;
pub mod heap;
pub mod latency;
mod nodes;
#[cfg(test)]
mod nodes_model;
mod policy;
pub mod real_time;
pub mod runqueue;
mod switch;
pub mod thread;
pub mod user_time;
pub mod whereabouts;

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};

use freehold_collections::{Arc, Vec};
use freehold_machine::{CpuId, CpuSet, Cpus, MAX_CPUS};
use freehold_tracepoints::TraceEvent;
use freehold_tracepoints::table::SchedWakeup;

use crate::hw::Hardware;
use crate::sync::{IrqSpinLock, Woken};
use runqueue::{RunQueue, UNIT_WEIGHT, WAKE_GRANULARITY};
use user_time::UserTime;

pub use policy::{OnFork, SchedPolicy};
pub use real_time::{inherit_priority, set_nice, set_policy};
pub use switch::{
    activate_current, block, exit_current, finish_switch, idle_forever, reschedule, spare_roots,
    spares_missed, start, timer_interrupt, wake_idle,
};
pub use thread::{RunsPrograms, Thread, ThreadOwner, is_current_dying};
pub use thread::{Translation, spawn_kernel};

/// The way in which a task sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Sleep {
    /// Until it is woken, or a signal comes.
    Interruptible = 1,
    /// Until it is woken.
    Uninterruptible = 2,
    /// Stopped by job control, until it continues or is killed.
    Stopped = 3,
    /// Until it is woken, or the process is killed.
    Killable = 5,
    /// In a stop of ptrace, until its tracer resumes it or it is killed.
    Traced = 6,
    /// In a frozen control group, until it is thawed or killed.
    Frozen = 7,
}

impl Sleep {
    /// The kinds of sleep that only a kill ends, not any signal.
    pub const UNTIL_KILLED: [Self; 4] = [Self::Stopped, Self::Traced, Self::Killable, Self::Frozen];
}

const RUNNABLE: u8 = 0;
const DEAD: u8 = 4;

/// A task's scheduling state. Changed under the run-queue lock of `cpu`, except for the fields that
/// the task itself stores.
#[derive(Debug)]
pub struct Schedule {
    /// Runnable, a [`Sleep`], or dead.
    state: AtomicU8,
    /// The CPU whose queue the task belongs to.
    pub cpu: AtomicU16,
    /// The node of its stack, on which it runs if possible.
    node: AtomicU8,
    /// Whether a CPU runs the task, or has not saved its registers yet.
    pub on_cpu: AtomicBool,
    /// Work to do once the task has left its CPU: bits of [`whereabouts`]. Only the task and its
    /// successor on that CPU store here.
    leaving: AtomicU8,
    /// Whether the task has left a CPU since it last cleared this; only the task clears it.
    pub left: AtomicBool,
    /// CPU time in nanoseconds, scaled by the inverse of the weight.
    pub virtual_runtime: AtomicU64,
    /// Nanoseconds of CPU time.
    pub runtime: AtomicU64,
    /// The part of it in user mode.
    pub user: UserTime,
    /// The weight of its [`SchedPolicy`] and nice value.
    pub weight: AtomicU64,
    /// A [`SchedPolicy`].
    policy: AtomicU8,
    /// Nice value + 20.
    nice: AtomicU8,
    real_time: real_time::RealTime,
    /// See [`Schedule::resets_on_fork`].
    resets_on_fork: AtomicBool,
    /// The CPUs that it may run on, as the bits of a [`CpuSet`].
    affinity: AtomicU64,
    /// Position in the run queue + 1; 0 if it is in none.
    position: AtomicUsize,
    /// Whether it is the task that a CPU runs when there is no other.
    pub is_idle: bool,
    /// Number of times it gave up the CPU by sleeping.
    pub voluntary_switches: AtomicU64,
    /// Number of times the CPU was taken from it.
    pub involuntary_switches: AtomicU64,
}

impl Schedule {
    /// Makes the state of a new task: runnable, in no queue yet.
    pub fn new(is_idle: Idle, cpu: CpuId) -> Self {
        Self {
            state: AtomicU8::new(Sleep::Uninterruptible as u8),
            cpu: AtomicU16::new(cpu.0),
            node: AtomicU8::new(0),
            on_cpu: AtomicBool::new(false),
            leaving: AtomicU8::new(0),
            left: AtomicBool::new(false),
            virtual_runtime: AtomicU64::new(real_time::FAIR_START),
            runtime: AtomicU64::new(0),
            user: UserTime::default(),
            weight: AtomicU64::new(UNIT_WEIGHT),
            policy: AtomicU8::new(SchedPolicy::Other as u8),
            nice: AtomicU8::new(20),
            real_time: real_time::RealTime::default(),
            resets_on_fork: AtomicBool::new(false),
            affinity: AtomicU64::new(u64::MAX),
            position: AtomicUsize::new(0),
            is_idle: is_idle == Idle::Yes,
            voluntary_switches: AtomicU64::new(0),
            involuntary_switches: AtomicU64::new(0),
        }
    }
    /// Returns the CPUs that it may run on.
    pub fn affinity(&self) -> CpuSet {
        CpuSet(self.affinity.load(Ordering::Relaxed))
    }
    /// Restricts a task that was not started yet to `cpus`, which is not empty. For other tasks:
    /// [`set_affinity`].
    pub fn begin_on(&self, cpus: CpuSet) {
        self.affinity.store(cpus.0, Ordering::Relaxed);
    }
    /// Returns the priority that tracepoints show: 120 plus the nice value, or 99 minus the
    /// real-time priority.
    pub fn shown_priority(&self) -> i32 {
        match self.effective_priority() {
            0 => 120 + self.nice(),
            priority => i32::from(real_time::MOST_PRIORITY) - i32::from(priority),
        }
    }
    /// Returns the state of a thread that leaves its CPU, in Linux' bits of `prev_state`.
    fn traced_state(&self) -> i64 {
        match self.state.load(Ordering::Relaxed) {
            RUNNABLE => 0,
            1 | 7 => 1,
            2 | 5 => 2,
            3 => 4,
            6 => 8,
            _ => 16,
        }
    }
    /// Returns the letter that /proc shows.
    pub fn state_letter(&self) -> u8 {
        match self.state.load(Ordering::Relaxed) {
            RUNNABLE => b'R',
            1 | 7 => b'S',
            2 | 5 => b'D',
            3 => b'T',
            6 => b't',
            _ => b'X',
        }
    }
}

/// Whether a task is a CPU's idle task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// The task is an idle task.
    Yes,
    /// The task is not an idle task.
    No,
}

impl heap::Positioned for Arc<Thread> {
    fn set_position(&self, position: Option<usize>) {
        self.schedule.position.store(position.map_or(0, |at| at + 1), Ordering::Relaxed);
    }
    fn position(&self) -> Option<usize> {
        self.schedule.position.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// One CPU's data, aligned so that CPUs do not share cache lines.
#[repr(align(128))]
struct PerCpu {
    queue: IrqSpinLock<RunQueue>,
    loaded: IrqSpinLock<switch::LoadedSpaces>,
    /// Whether there is a retired translation: checked at each switch, without the lock.
    has_retired: AtomicBool,
    /// Whether a task with higher precedence waits here: `reschedule` is called as soon as
    /// possible.
    wanted: AtomicBool,
    /// Whether the idle task runs (a hint for placement).
    idle: AtomicBool,
    /// Whether an idle CPU may take a lone task of another node's CPU: see [`nodes`].
    helps: AtomicBool,
    latency: latency::CpuLatency,
}

static CPUS: [PerCpu; MAX_CPUS] = [const {
    PerCpu {
        queue: IrqSpinLock::new(RunQueue::new()),
        loaded: IrqSpinLock::new(switch::LoadedSpaces::NONE),
        has_retired: AtomicBool::new(false),
        wanted: AtomicBool::new(false),
        idle: AtomicBool::new(false),
        helps: AtomicBool::new(false),
        latency: latency::CpuLatency::new(),
    }
}; MAX_CPUS];

/// The CPUs that take part, as the bits of a [`CpuSet`].
static ONLINE: AtomicU64 = AtomicU64::new(0);

/// Returns the CPUs that run tasks.
pub fn online() -> CpuSet {
    CpuSet(ONLINE.load(Ordering::Acquire))
}

fn cpu(id: CpuId) -> &'static PerCpu {
    &CPUS[usize::from(id.0)]
}

/// Whether this CPU should call [`reschedule`] soon.
pub fn is_wanted() -> bool {
    cpu(crate::hw::current_cpu()).wanted.load(Ordering::Relaxed)
}

impl Thread {
    /// Announces that the current task, `self`, is going to sleep: a wake-up from now on is not
    /// lost.
    pub fn prepare_to_sleep(&self, sleep: Sleep) {
        self.schedule.state.store(sleep as u8, Ordering::SeqCst);
    }
    /// Takes the announcement back.
    pub fn finish_sleep(&self) {
        self.schedule.state.store(RUNNABLE, Ordering::SeqCst);
    }
}

/// Wakes `task` if it sleeps in one of the `kinds`. Any context; takes a run queue's lock.
pub fn wake(task: &Thread, kinds: &[Sleep]) -> Woken {
    let schedule = &task.schedule;
    // The sleeper stores its state before it checks its condition, and the caller has changed the
    // condition before this load: one of the two sees the other.
    core::sync::atomic::fence(Ordering::SeqCst);
    loop {
        let state = schedule.state.load(Ordering::SeqCst);
        if !kinds.iter().any(|&kind| kind as u8 == state) {
            return Woken::Nobody;
        }
        let home = CpuId(schedule.cpu.load(Ordering::Relaxed));
        let mut queue = cpu(home).queue.lock();
        if schedule.cpu.load(Ordering::Relaxed) != home.0 {
            continue;
        }
        if schedule.state.compare_exchange(state, RUNNABLE, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            continue;
        }
        if queue.current.as_ref().is_some_and(|current| core::ptr::eq(&raw const **current, task)) {
            // It has not left the CPU yet, and will not.
            return Woken::Sleeper;
        }
        let leaving = schedule.on_cpu.load(Ordering::Acquire);
        let target = if leaving { home } else { place(task, home) };
        if Hardware.is_traced::<{ SchedWakeup::NUMBER }>() {
            trace_wakeup(task, target);
        }
        if target == home {
            queue.enqueue_woken(task.arc());
            let is_ahead = queue.should_preempt(WAKE_GRANULARITY);
            let preempt = is_ahead || queue.waiting() == 1;
            drop(queue);
            if preempt {
                want(home);
            }
            if !is_ahead && schedule.virtual_runtime.load(Ordering::Relaxed) < real_time::END {
                real_time::push(task, home);
            }
        } else {
            task.belongs_to(target);
            drop(queue);
            enqueue_on(task.arc(), target);
        }
        return Woken::Sleeper;
    }
}

/// Emits the tracepoint of a wake-up. A run queue's lock is held.
#[cold]
#[inline(never)]
fn trace_wakeup(task: &Thread, target: CpuId) {
    let event = SchedWakeup {
        comm: task.label.comm(),
        pid: task.label.pid(),
        prio: task.schedule.shown_priority(),
        target_cpu: i32::from(target.0),
    };
    Hardware.record_event(SchedWakeup::NUMBER, &event.words());
}

/// Puts a task into the run queue of `target`. Its `cpu` is `target`, and it is in no queue yet.
fn enqueue_on(task: Arc<Thread>, target: CpuId) {
    let preempt = {
        let mut queue = cpu(target).queue.lock();
        queue.enqueue_woken(task);
        // The first waiting task also ends a slice that had no end, because no task waited before.
        queue.should_preempt(WAKE_GRANULARITY) || queue.waiting() == 1
    };
    if preempt {
        want(target);
    }
}

/// Chooses a CPU for a task that wakes: its previous CPU if that is idle, else an idle one, else
/// its previous one.
fn place(task: &Thread, home: CpuId) -> CpuId {
    if nodes::are_several() {
        return nodes::place(task, home);
    }
    let allowed = CpuSet(task.schedule.affinity().0 & online().0);
    let is_idle = |id: CpuId| cpu(id).idle.load(Ordering::Relaxed);
    if allowed.contains(home) {
        if is_idle(home) {
            return home;
        }
        return allowed.iter().find(|&id| is_idle(id)).unwrap_or(home);
    }
    allowed.iter().find(|&id| is_idle(id)).or_else(|| allowed.iter().next()).unwrap_or(home)
}

/// Restricts `task` to `cpus`, which is not empty. If it waits for another CPU, it is moved at
/// once. If it runs on another CPU, it leaves that before its next instruction in user mode. If it
/// sleeps, it wakes on a permitted CPU.
pub fn set_affinity(task: &Thread, cpus: CpuSet) {
    let schedule = &task.schedule;
    schedule.affinity.store(cpus.0, Ordering::SeqCst);
    loop {
        let home = CpuId(schedule.cpu.load(Ordering::Relaxed));
        if cpus.contains(home) {
            return;
        }
        let mut queue = cpu(home).queue.lock();
        if schedule.cpu.load(Ordering::Relaxed) != home.0 {
            continue;
        }
        let Some(waiting) = queue.take(task) else {
            drop(queue);
            return want(home);
        };
        let target = place(task, home);
        task.belongs_to(target);
        drop(queue);
        return enqueue_on(waiting, target);
    }
}

/// Makes `target` reschedule soon.
fn want(target: CpuId) {
    cpu(target).wanted.store(true, Ordering::Release);
    if target != crate::hw::current_cpu() {
        crate::hw::cpu::send_reschedule(target);
    }
}

/// Makes the CPU that `task` may be running on check the task before it returns to user mode.
pub fn kick(task: &Thread) {
    let home = CpuId(task.schedule.cpu.load(Ordering::Relaxed));
    if task.schedule.on_cpu.load(Ordering::Relaxed) && home != crate::hw::current_cpu() {
        crate::hw::cpu::send_reschedule(home);
    }
}

/// Gives up the CPU if a task with higher precedence waits; for long loops in the kernel. This is
/// no sleep: a task that has announced a sleep stays runnable, and checks its condition once more.
#[inline]
pub fn cond_resched() {
    if is_wanted() {
        give_way();
    }
}

#[cold]
#[inline(never)]
fn give_way() {
    thread::with_current(|thread| thread.finish_sleep());
    reschedule();
}

/// Lets a waiting task run, refills the reserve of small objects, and checks whether the current
/// task may continue. Called between two steps of work whose length a program chose. The caller
/// holds no spin lock.
///
/// # Errors
/// `EINTR` if the task is being killed. Its program does not see this: completed steps of the call
/// stay done. `ENOMEM` if the reserve could not be filled.
#[inline(always)]
pub fn checkpoint() -> crate::Result<()> {
    cond_resched();
    if is_current_dying() {
        return Err(crate::Errno::EINTR);
    }
    crate::hw::heap::ensure(crate::hw::heap::CALL_RESERVE).map_err(|_| crate::Errno::ENOMEM)?;
    Ok(())
}

/// As [`checkpoint`], for work that continues even if the task is being killed. If the reserve
/// could not be filled, the next step does without it, or fails. Other tasks first wait for
/// [`latency::PATIENCE`]: most such work is shorter, and a task that was woken by its beginning
/// mostly waits for its end.
#[inline]
pub fn rest() {
    if is_wanted() {
        rest_if_due();
    }
}

/// As [`rest`], for work that stops if the task is being killed.
///
/// # Errors
/// `EINTR` if it is.
#[inline]
pub fn rest_killable() -> crate::Result<()> {
    rest();
    if is_current_dying() { Err(crate::Errno::EINTR) } else { Ok(()) }
}

#[cold]
#[inline(never)]
fn rest_if_due() {
    if cpu(crate::hw::current_cpu()).latency.is_due() {
        give_way();
        let _ = crate::hw::heap::ensure(crate::hw::heap::CALL_RESERVE);
    }
}

/// Lets others run first (sched_yield).
pub fn yield_now() {
    {
        // Behind all tasks that wait now, by the runtime of a slice; or behind those of the same
        // priority.
        thread::with_current(|thread| {
            let runtime = &thread.schedule.virtual_runtime;
            if runtime.load(Ordering::Relaxed) < real_time::END {
                thread.schedule.end_turn();
            } else {
                runtime.fetch_add(runqueue::SLICE, Ordering::Relaxed);
            }
        });
        reschedule();
    }
}

/// Smallest room of all queues at the last check, and the number of CPUs then ([`room_word`]). Room
/// only grows. So most new tasks need not access the queues, whose cache lines belong to other
/// CPUs.
static ROOM: AtomicU64 = AtomicU64::new(0);

/// Returns the word for `cpus` whose queues have room for `tasks` tasks each.
const fn room_word(cpus: CpuSet, tasks: usize) -> u64 {
    (cpus.0.count_ones() as u64) << 32 | if tasks < 1 << 32 { tasks as u64 } else { 0 }
}

/// Makes room for `tasks` tasks in every queue.
///
/// # Errors
/// `ENOMEM`.
pub fn make_room(tasks: usize) -> crate::Result<()> {
    let (word, wanted) = (ROOM.load(Ordering::Acquire), room_word(online(), tasks));
    if word >> 32 == wanted >> 32 && word as u32 >= wanted as u32 && wanted as u32 != 0 {
        return Ok(());
    }
    grow_queues(tasks)
}

#[cold]
#[inline(never)]
fn grow_queues(tasks: usize) -> crate::Result<()> {
    let cpus = online();
    let mut least = usize::MAX;
    for id in cpus.iter() {
        loop {
            let room = cpu(id).queue.lock().room();
            if room >= tasks {
                least = least.min(room);
                break;
            }
            let buffer = Vec::try_with_capacity((tasks + 1).max(2 * room).max(16))?;
            let old = cpu(id).queue.lock().give_room(buffer);
            drop(old);
        }
    }
    ROOM.store(room_word(cpus, least), Ordering::Release);
    Ok(())
}

/// Returns how many waiting tasks are not at their stored position, or not runnable. Unless a rule
/// of this module was broken, it is 0.
pub fn misplaced() -> usize {
    online().iter().map(|id| cpu(id).queue.lock().misplaced(id)).sum()
}

/// Charges the running task with its time so far. Any context.
pub fn account_running() {
    online().iter().for_each(account_on);
}

/// Charges `task`, if it is running now, with its time so far. Any context.
pub fn account(task: &Thread) {
    if task.schedule.on_cpu.load(Ordering::Acquire) {
        account_on(CpuId(task.schedule.cpu.load(Ordering::Relaxed)));
    }
}

fn account_on(id: CpuId) {
    let mut queue = cpu(id).queue.lock();
    queue.account(crate::hw::time::now());
}

/// Sums over all CPUs, for /proc.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuStatistics {
    /// Nanoseconds idle.
    pub idle: u64,
    /// Nanoseconds in user mode.
    pub user: u64,
    /// Number of switches.
    pub switches: u64,
    /// Number of tasks that wait for the CPU or run.
    pub runnable: usize,
}

/// Returns the statistics of `id` so far.
pub fn statistics(id: CpuId) -> CpuStatistics {
    let mut queue = cpu(id).queue.lock();
    queue.account(crate::hw::time::now());
    let running = queue.current.as_ref().is_some_and(|task| !task.schedule.is_idle);
    CpuStatistics {
        idle: queue.idle,
        user: crate::hw::time::nanoseconds(queue.user_ticks),
        switches: queue.switches,
        runnable: queue.waiting() + usize::from(running),
    }
}
