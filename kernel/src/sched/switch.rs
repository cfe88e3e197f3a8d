//! The context switch, sleeping with a deadline, idling, and the first task of every CPU.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{Arc, reserve::ArcMethods};
use freehold_frame::{Frame, PageTable};
use freehold_machine::{CpuId, Cpus, MAX_CPUS, Tlb};
use freehold_tracepoints::TraceEvent;
use freehold_tracepoints::table::SchedSwitch;

use super::runqueue::SLICE;
use super::thread::{self, Thread, Translation};
use super::whereabouts::{GIVES_ID, MOVES};
use super::{DEAD, ONLINE, PerCpu, RUNNABLE, cpu, nodes};
use crate::Result;
use crate::hw::irq::InterruptsOff;
use crate::hw::speculation;
use crate::hw::sync::lock_with;
use crate::hw::{self, irq, thread as machine};
use crate::time::{self, Deadline};

/// The idle tasks. They never end, so a dying task can switch to its CPU's one without holding a
/// reference.
static IDLE: [spin::Once<Arc<Thread>>; MAX_CPUS] = [const { spin::Once::new() }; MAX_CPUS];

/// Sleeps, after an [announcement](Thread::prepare_to_sleep), until woken or until `deadline`.
/// Returns at once if a wake-up came after the announcement.
pub fn block(thread: &Arc<Thread>, deadline: Option<Deadline>) {
    match deadline {
        None => reschedule(),
        Some(deadline) => {
            let timer: Arc<dyn time::Expire> = thread.clone();
            time::arm(&timer, deadline);
            reschedule();
            time::cancel(&timer);
        }
    }
}

/// Gives the CPU to the task with the highest precedence. The current task stays in the queue if it
/// is runnable. Interrupts are on and no spin lock is held.
pub fn reschedule() {
    let interrupts = irq::disable();
    let id = hw::current_cpu();
    let this = cpu(id);
    let now = time::now();
    let next = {
        let mut queue = lock_with(&this.queue, &interrupts);
        this.wanted.store(false, Ordering::Relaxed);
        this.latency.given();
        queue.account(now);
        let Some(current) = &queue.current else { return };
        let schedule = &current.schedule;
        if !schedule.is_idle && schedule.state.load(Ordering::SeqCst) == RUNNABLE {
            schedule.involuntary_switches.fetch_add(1, Ordering::Relaxed);
            // The task's affinity may change at any moment, so it is read once. The task is in a
            // queue, or on its way to one.
            if schedule.affinity().contains(id) {
                let current = current.clone();
                queue.enqueue(current);
            } else {
                let leaving = schedule.leaving.load(Ordering::Relaxed);
                schedule.leaving.store(leaving | MOVES, Ordering::Relaxed);
            }
        } else {
            schedule.voluntary_switches.fetch_add(1, Ordering::Relaxed);
        }
        let next = match queue.dequeue() {
            Some(task) => task,
            None => IDLE[usize::from(id.0)].get().expect("a CPU that runs tasks has an idle task").clone(),
        };
        let slice = if queue.waiting() > 0 { now + SLICE } else { u64::MAX };
        time::set_slice_end(slice, &interrupts);
        if queue.current.as_ref().is_some_and(|current| next.is_same(current)) {
            return;
        }
        this.idle.store(next.schedule.is_idle, Ordering::Relaxed);
        // If the task's affinity was changed while it was on its way here, it continues in the
        // kernel, and leaves this CPU before it returns to user mode.
        if !next.schedule.affinity().contains(id) {
            this.wanted.store(true, Ordering::Relaxed);
        }
        next.schedule.on_cpu.store(true, Ordering::Relaxed);
        queue.switches += 1;
        queue.previous = queue.current.replace(next.clone());
        next
    };
    trace_switch(&next);
    activate(this, &next, &interrupts);
    machine::switch(next.stack());
    drop(interrupts);
    finish_switch();
    // Not earlier: this may be the last reference, and nothing may be freed while interrupts are
    // off.
    drop(next);
}

/// Emits the tracepoint of a switch to `next`. Interrupts are off.
#[inline(always)]
fn trace_switch(next: &Thread) {
    if hw::Hardware.is_traced::<{ SchedSwitch::NUMBER }>() {
        record_switch(next);
    }
}

#[cold]
#[inline(never)]
fn record_switch(next: &Thread) {
    thread::with_current(|previous| {
        let event = SchedSwitch {
            prev_comm: previous.label.comm(),
            prev_pid: previous.label.pid(),
            prev_prio: previous.schedule.shown_priority(),
            prev_state: previous.schedule.traced_state(),
            next_comm: next.label.comm(),
            next_pid: next.label.pid(),
            next_prio: next.schedule.shown_priority(),
        };
        hw::Hardware.record_event(SchedSwitch::NUMBER, &event.words());
    });
}

/// Loads the address space of `thread`. For a kernel thread the loaded one stays. `this` is the
/// running CPU.
fn activate(this: &PerCpu, thread: &Thread, interrupts: &InterruptsOff) {
    let pinned = hw::Hardware.pin();
    let mut loaded = lock_with(&this.loaded, interrupts);
    hw::windows::close_as(thread.closing());
    let translation = thread.translation();
    let Some(new) = &*translation else {
        if let Some(loaded) = &loaded.now {
            loaded.lazy(&pinned);
        }
        hw::windows::lend();
        return;
    };
    new.load(&pinned, &mut loaded.spare);
    hw::windows::take_back();
    if loaded.now.as_ref().is_none_or(|old| !old.is_same(new)) {
        if let Some(old) = loaded.now.replace(new.clone()) {
            old.unload(&pinned);
            loaded.retired = Some(old);
            this.has_retired.store(true, Ordering::Relaxed);
        } else if loaded.spare.is_none() && hw::replicas::are_used() {
            this.has_retired.store(true, Ordering::Relaxed);
        }
    }
}

/// Real and effective user of the program that each CPU ran last. Used if the CPU must forget
/// predictions that another user's program trained. The array is separate from [`cpu`]'s data,
/// whose size affects every switch.
static LAST_USERS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// Makes this CPU's predictors forget the last program, if it belonged to another user than the
/// current task. Kernel tasks run no program. Interrupts are on: the credentials may be dropped
/// here.
#[cold]
#[inline(never)]
fn separate_users() {
    let owner = thread::with_current(|thread| if thread.is_kernel() { None } else { thread.owner() });
    let Some(owner) = owner.flatten() else { return };
    let mut user = 0;
    owner.show_credentials(&mut |own| user = u64::from(own.uid) << 32 | u64::from(own.euid));
    let last = &LAST_USERS[usize::from(hw::current_cpu().0)];
    if last.swap(user, Ordering::Relaxed) != user {
        speculation::forget_predictions();
    }
}

/// The translations to which a CPU holds references.
pub(super) struct LoadedSpaces {
    /// The loaded one, which must exist as long as it is loaded.
    now: Option<Arc<Translation>>,
    /// A previously loaded one; dropped when interrupts are on.
    retired: Option<Arc<Translation>>,
    /// A spare root for an address space that has none yet on this CPU's node. It is allocated when
    /// interrupts are on, and used when they are off. `None` if all nodes share roots.
    spare: Option<Frame<PageTable, hw::Frames>>,
}

impl LoadedSpaces {
    /// No translation and no spare root.
    pub(super) const NONE: Self = Self { now: None, retired: None, spare: None };
}

/// Drops the translation that this CPU had loaded before, and provides a spare root. Interrupts are
/// on. Called at every switch between processes.
#[inline(always)]
fn settle_loaded(this: &PerCpu) {
    if !this.has_retired.load(Ordering::Relaxed) {
        return;
    }
    let mut loaded = this.loaded.lock();
    this.has_retired.store(false, Ordering::Relaxed);
    let retired = loaded.retired.take();
    let wants_spare = hw::replicas::are_used() && loaded.spare.is_none();
    drop(loaded);
    drop(retired);
    if wants_spare {
        provide_spare(this);
    }
}

/// Allocates a spare root for this CPU. If there is no memory, the next address space that needs a
/// root shares another node's.
#[cold]
fn provide_spare(this: &PerCpu) {
    match Frame::allocate(hw::frames()) {
        Ok(spare) => stop_sharing(this, spare),
        Err(_) if SPARES_MISSED.fetch_add(1, Ordering::Relaxed) == 0 => {
            log::warn!("no memory for a root of a node's own: an address space may share another node's");
        }
        Err(_) => {}
    }
}

/// Gives this CPU a spare root. If the CPU shares another node's root because it had none, it
/// changes to its own.
fn stop_sharing(this: &PerCpu, spare: Frame<PageTable, hw::Frames>) {
    let interrupts = irq::disable();
    let pinned = hw::Hardware.pin();
    let mut loaded = this.loaded.lock();
    let loaded = &mut *loaded;
    loaded.spare = Some(spare);
    if let Some(now) = &loaded.now {
        now.stop_sharing(&pinned, &mut loaded.spare);
    }
    hw::replicas::forget_shared_text(pinned.cpu());
    drop(pinned);
    drop(interrupts);
}

/// Number of times there was no memory for a spare root.
static SPARES_MISSED: AtomicU64 = AtomicU64::new(0);

/// Returns how often there was no memory for a spare root.
pub fn spares_missed() -> u64 {
    SPARES_MISSED.load(Ordering::Relaxed)
}

/// Returns the number of spare roots of all CPUs: page tables that belong to no process.
pub fn spare_roots() -> u64 {
    super::online().iter().map(|id| u64::from(cpu(id).loaded.lock().spare.is_some())).sum()
}

/// Loads the current task's address space, after that has changed.
pub fn activate_current() {
    let interrupts = irq::disable();
    let this = cpu(hw::current_cpu());
    thread::with_current(|thread| activate(this, thread, &interrupts));
    drop(interrupts);
    settle_loaded(this);
}

/// The second half of a switch, on the new task's stack: releases the old task.
pub fn finish_switch() {
    let here = hw::current_cpu();
    let previous = cpu(here).queue.lock().previous.take();
    if let Some(task) = &previous {
        let schedule = &task.schedule;
        schedule.left.store(true, Ordering::Relaxed);
        match schedule.leaving.load(Ordering::Relaxed) {
            0 => schedule.on_cpu.store(false, Ordering::Release),
            leaving => settle_left(task, here, leaving),
        }
    }
    settle_loaded(cpu(here));
    if speculation::separates_users() {
        separate_users();
    }
    // This may be a dead task's last reference: its stack is freed here, with interrupts on.
    drop(previous);
}

/// Handles the state `leaving` of `task`, which has left this CPU, `here`.
#[cold]
fn settle_left(task: &Arc<Thread>, here: CpuId, leaving: u8) {
    // Before another CPU can run the task.
    if leaving & GIVES_ID != 0 {
        task.give_id_back();
    }
    task.schedule.leaving.store(0, Ordering::Relaxed);
    task.schedule.on_cpu.store(false, Ordering::Release);
    if leaving & MOVES != 0 {
        let target = super::place(task, here);
        // Under the lock of the queue that it leaves, as everywhere: a holder of that lock that has
        // read `cpu` relies on it.
        let left = cpu(here).queue.lock();
        task.belongs_to(target);
        drop(left);
        super::enqueue_on(task.clone(), target);
    }
}

/// Ends the current task: it never runs again. The caller has dropped everything on this stack.
pub fn exit_current() -> ! {
    let interrupts = irq::disable();
    let id = hw::current_cpu();
    let idle = IDLE[usize::from(id.0)].get().expect("a CPU that runs tasks has an idle task");
    let this = cpu(id);
    {
        let mut queue = this.queue.lock();
        queue.account(time::now());
        queue.switches += 1;
        let current = queue.current.replace(idle.clone());
        if let Some(current) = &current {
            current.schedule.state.store(DEAD, Ordering::SeqCst);
        }
        queue.previous = current;
        idle.schedule.on_cpu.store(true, Ordering::Relaxed);
        this.wanted.store(true, Ordering::Relaxed);
    }
    this.idle.store(true, Ordering::Relaxed);
    trace_switch(idle);
    activate(this, idle, &interrupts);
    core::mem::forget(interrupts);
    machine::switch(idle.stack());
    unreachable!("a dead task was switched to");
}

/// Makes this CPU take part in scheduling: the running context becomes `idle`, the CPU's idle
/// thread.
///
/// # Errors
/// `ENOMEM`.
pub fn start(id: CpuId, idle: Arc<Thread>) -> Result<()> {
    idle.adopt();
    let mut name = *b"swapper/\0\0\0\0\0\0\0\0";
    (name[8], name[9]) = match id.0 {
        number @ 0..10 => (b'0' + number as u8, 0),
        number => (b'0' + (number / 10) as u8, b'0' + (number % 10) as u8),
    };
    idle.label.set_name(name);
    idle.schedule.state.store(RUNNABLE, Ordering::Relaxed);
    idle.schedule.on_cpu.store(true, Ordering::Relaxed);
    machine::show_for_ever(IDLE[usize::from(id.0)].call_once(|| idle.clone()));
    let this = cpu(id);
    {
        let mut queue = this.queue.lock();
        queue.current = Some(idle);
        queue.since = time::now();
    }
    this.idle.store(true, Ordering::Relaxed);
    if hw::replicas::are_used() {
        provide_spare(this);
    }
    ONLINE.fetch_or(1 << id.0, Ordering::AcqRel);
    super::make_room(thread::stacks() + 16)
}

/// The main loop of the idle task: runs waiting tasks, takes tasks from busier CPUs, else halts.
pub fn idle_forever() -> ! {
    loop {
        let this = cpu(hw::current_cpu());
        if this.queue.lock().waiting() > 0 || steal() {
            reschedule();
            continue;
        }
        leave_dead_space();
        // Another CPU may need frames in this CPU's lists that no task here needs.
        hw::frames().poll(freehold_buddy::Moment::Idle);
        let interrupts = irq::disable();
        if this.wanted.load(Ordering::Acquire) || this.queue.lock().waiting() > 0 {
            this.wanted.store(false, Ordering::Relaxed);
            this.latency.given();
            drop(interrupts);
            continue;
        }
        core::mem::forget(interrupts);
        hw::cpu::idle();
    }
}

/// Drops the root of an address space that only CPUs still use; the last CPU frees the tables.
/// Otherwise an idle CPU keeps the root of the last program that it ran, since that is usually also
/// the next one.
fn leave_dead_space() {
    let interrupts = irq::disable();
    let pinned = hw::Hardware.pin();
    let mut loaded = cpu(pinned.cpu()).loaded.lock();
    let dead = loaded.now.take_if(|roots| roots.references() <= roots.users().len());
    if let Some(roots) = &dead {
        let node = hw::Hardware.node_of_cpu(pinned.cpu());
        hw::Hardware.load_root(hw::Hardware.kernel_root(node));
        roots.unload(&pinned);
    }
    drop(loaded);
    drop(pinned);
    drop(interrupts);
    drop(dead);
}

/// Wakes every idle CPU, so that it does its work before a halt.
pub fn wake_idle() {
    for id in super::online().iter() {
        hw::cpu::send_reschedule(id);
    }
}

/// Moves a task that waits on another CPU to this one.
fn steal() -> bool {
    let me = hw::current_cpu();
    let task = if nodes::are_several() {
        nodes::steal(me)
    } else {
        super::online().without(me).iter().find_map(|victim| nodes::steal_from(victim, me, 1))
    };
    let Some(task) = task else { return false };
    super::enqueue_on(task, me);
    true
}

/// Handles a timer interrupt: the current slice may have ended.
pub fn timer_interrupt(now: u64) {
    let me = hw::current_cpu();
    let this = cpu(me);
    let mut queue = this.queue.lock();
    queue.account(now);
    queue.end_period();
    if queue.waiting() > 0 {
        this.wanted.store(true, Ordering::Relaxed);
        drop(queue);
        if nodes::are_several() {
            nodes::relieve(me);
        }
    }
}
