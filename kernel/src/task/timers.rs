//! A process' timers: setitimer, alarm, and POSIX timers.
//!
//! A timer is a separate object, to which the timer queue holds a reference while it is armed. It
//! expires in interrupt context. There it sends its signal and returns the time of its next expiry.
//!
//! A timer that counts CPU time, and the limit of CPU time, are armed for the earliest time at
//! which they could expire: the remaining time divided by the number of threads. At that time they
//! check again. A process may have as many threads as timers, so all timers that expire within a
//! millisecond share one count of the threads' CPU time.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{
    Arc, Map, Receiver, Weak,
    reserve::{self, ArcMethods},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::clock::Clock;
use super::limits::{INFINITY, Limit};
use super::process::Process;
use super::registry::find_task_by_number;
use super::signal::{SigInfo, Signal, code};
use super::users::{Payer, QueuedSignal};
use super::{Task, current};
use crate::sync::{IrqSpinLock, SpinLock};
use crate::syscall::Args;
use crate::time::{self, Expire, TimeSpec, TimeVal, TimerSlot};
use crate::user::UserPtr;
use crate::{Errno, Result};

/// The receiver of an expiry.
enum Notify {
    /// No process.
    None,
    /// The process.
    Process(Weak<Process>, SigInfo),
    /// One thread.
    Thread(Weak<Task>, SigInfo),
}

/// One timer.
pub struct Timer {
    slot: TimerSlot,
    notify: Notify,
    clock: Clock,
    setting: IrqSpinLock<Setting>,
}

/// The times at which a timer expires. If the timer is set again while an expiry runs, the expiry
/// finds another setting and does not change it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Setting {
    /// Nanoseconds between expiries; 0 for once.
    interval: u64,
    /// The next expiry, by the monotonic clock, or by the process' CPU time; 0 if the timer is not
    /// armed.
    deadline: u64,
    /// Number of additional expiries since the last reported one.
    overruns: u64,
}

impl Setting {
    /// Returns the setting after the deadline has passed at `now`.
    fn expired(self, now: u64) -> Self {
        let overruns = now.saturating_sub(self.deadline).checked_div(self.interval).unwrap_or(0);
        // A program chooses the interval, so the sum may overflow.
        let step = (overruns + 1).saturating_mul(self.interval);
        let deadline = if self.interval == 0 { 0 } else { self.deadline.saturating_add(step) };
        Self { overruns, deadline, ..self }
    }
}

impl Timer {
    fn new(notify: Notify, clock: Clock) -> Arc<Self> {
        reserve::arc(Self {
            slot: TimerSlot::new(),
            notify,
            clock,
            setting: IrqSpinLock::new(Setting::default()),
        })
    }
    /// Returns the process whose CPU time the timer counts, if any.
    fn counted(&self) -> Option<Arc<Process>> {
        match (&self.notify, self.clock) {
            (Notify::Process(process, _), Clock::Process(_)) => process.upgrade(),
            _ => None,
        }
    }
    /// Returns the nanoseconds until the next expiry, and the interval.
    fn state(&self) -> (u64, u64) {
        let now = self.counted().map_or_else(time::now, |process| process.cpu_time());
        let Setting { deadline, interval, .. } = *self.setting.lock();
        let left = if deadline == 0 { 0 } else { deadline.saturating_sub(now).max(1) };
        (left, interval)
    }
    /// Makes the timer expire when its clock shows `deadline` (0: never) and then every `interval`.
    fn set(self: &Receiver<Self>, deadline: u64, interval: u64) -> Result<()> {
        let timer: Arc<dyn Expire> = self.clone();
        time::cancel(&timer);
        *self.setting.lock() = Setting { interval, deadline, overruns: 0 };
        if deadline == 0 {
            return Ok(());
        }
        let first = self.counted().map_or(deadline, |process| process.when_used(deadline, time::now()));
        time::try_arm(&timer, first)
    }
    /// Makes the timer expire after `value` nanoseconds (0: never) and then every `interval`.
    fn set_relative(self: &Receiver<Self>, value: u64, interval: u64) -> Result<()> {
        let now = self.counted().map_or_else(time::now, |process| process.cpu_time());
        self.set(if value == 0 { 0 } else { now.saturating_add(value) }, interval)
    }
    fn cancel(self: &Receiver<Self>) {
        self.setting.lock().deadline = 0;
        let timer: Arc<dyn Expire> = self.clone();
        time::cancel(&timer);
    }
}

impl Expire for Timer {
    fn slot(&self) -> &TimerSlot {
        &self.slot
    }
    fn expire(&self, now: u64) -> Option<u64> {
        let counted = self.counted();
        let wall = now;
        let now = counted.as_ref().map_or(now, |process| process.cpu_time_lately(wall));
        let set = {
            let mut setting = self.setting.lock();
            if setting.deadline == 0 || setting.deadline > now {
                let due = setting.deadline;
                drop(setting);
                // It was set again meanwhile, or its process has not used that much time yet.
                return counted.filter(|_| due != 0).map(|process| process.when_used(due, wall));
            }
            *setting = setting.expired(now);
            *setting
        };
        // No last reference is dropped here: the registry keeps processes, and they keep their
        // threads. Only if the process is ending this may fail; then the upgrade fails, or the
        // reaper, a task, holds another reference.
        match &self.notify {
            Notify::None => {}
            Notify::Process(process, info) => {
                if let Some(process) = process.upgrade() {
                    process.signal_from_interrupt(with_overrun(*info, set.overruns));
                }
            }
            Notify::Thread(task, info) => {
                if let Some(task) = task.upgrade() {
                    task.signal_from_interrupt(with_overrun(*info, set.overruns));
                }
            }
        }
        let next = (set.deadline != 0).then_some(set.deadline)?;
        Some(counted.map_or(next, |process| process.when_used(next, wall)))
    }
}

/// Smallest interval between two counts of a process' CPU time.
const MIN_INTERVAL: u64 = 1_000_000;

impl Process {
    /// Returns the CPU time of all threads, with running ones up to now. Any context.
    fn cpu_time(&self) -> u64 {
        crate::sched::account_running();
        let group = self.signals.lock();
        let living: u64 =
            group.threads.iter().map(|task| task.schedule.runtime.load(Ordering::Relaxed)).sum();
        living + group.past.user + group.past.system
    }

    /// Returns [`cpu_time`](Self::cpu_time) from a count that is no older than [`MIN_INTERVAL`] at
    /// `now`. For interrupts, because there may be many threads.
    fn cpu_time_lately(&self, now: u64) -> u64 {
        let (at, used) = *self.timers.seen.lock();
        if at != 0 && now < at.saturating_add(MIN_INTERVAL) {
            return used;
        }
        let used = self.cpu_time();
        *self.timers.seen.lock() = (now, used);
        used
    }

    /// Returns the earliest time at which the process can have used `total` nanoseconds, as of
    /// `now`.
    fn when_used(&self, total: u64, now: u64) -> u64 {
        let left = total.saturating_sub(self.cpu_time_lately(now));
        let threads = self.signals.lock().threads.len().max(1) as u64;
        now.saturating_add((left / threads).max(MIN_INTERVAL))
    }

    /// Sets RLIMIT_CPU to `limit` from now on.
    pub(super) fn watch_cpu_limit(self: &Receiver<Self>, limit: Limit) {
        let mut slot = self.timers.limit.lock();
        if slot.is_none() && limit.soft == INFINITY && limit.hard == INFINITY {
            return;
        }
        let watch = slot.get_or_insert_with(|| {
            reserve::arc(CpuLimit {
                slot: TimerSlot::new(),
                process: self.downgrade(),
                soft: AtomicU64::new(0),
                hard: AtomicU64::new(0),
            })
        });
        watch.soft.store(limit.soft.saturating_mul(time::SECOND), Ordering::Relaxed);
        watch.hard.store(limit.hard.saturating_mul(time::SECOND), Ordering::Relaxed);
        let timer: Arc<dyn Expire> = watch.clone();
        time::arm(&timer, time::now() + MIN_INTERVAL);
    }
}

/// Enforces RLIMIT_CPU: SIGXCPU at the soft limit and each second after it, SIGKILL at the hard
/// limit.
struct CpuLimit {
    slot: TimerSlot,
    process: Weak<Process>,
    /// Nanoseconds; increased by a second with each SIGXCPU.
    soft: AtomicU64,
    /// Nanoseconds.
    hard: AtomicU64,
}

impl Expire for CpuLimit {
    fn slot(&self) -> &TimerSlot {
        &self.slot
    }
    fn expire(&self, now: u64) -> Option<u64> {
        let process = self.process.upgrade()?;
        let used = process.cpu_time_lately(now);
        let (soft, hard) = (self.soft.load(Ordering::Relaxed), self.hard.load(Ordering::Relaxed));
        if used >= hard {
            process.signal_from_interrupt(SigInfo::kernel(Signal::KILL));
            return None;
        }
        if used >= soft {
            process.signal_from_interrupt(SigInfo::kernel(Signal::XCPU));
            self.soft.store(used + time::SECOND, Ordering::Relaxed);
        }
        let next = self.soft.load(Ordering::Relaxed).min(hard);
        (next != u64::MAX).then(|| process.when_used(next, now))
    }
}

fn with_overrun(mut info: SigInfo, missed: u64) -> SigInfo {
    if info.code == code::TIMER {
        info.fields[0] |= missed.min(i32::MAX as u64) << 32;
    }
    info
}

/// Allocates the IDs of a process' POSIX timers: they increase, as on Linux, and begin again after
/// the largest.
struct TimerIds {
    next: i32,
    /// Whether all IDs were used once: from now on a timer may have `next`.
    wrapped: bool,
}

impl TimerIds {
    /// Returns an ID that none of `timers` has, and that is not reused soon.
    fn fresh<T>(&mut self, timers: &Map<i32, T>) -> Result<i32> {
        // At most one step more than the number of timers.
        for _ in 0..=timers.len() {
            let (id, may_be_used) = (self.next, self.wrapped);
            self.next = id.checked_add(1).unwrap_or_else(|| {
                self.wrapped = true;
                0
            });
            if !may_be_used || !timers.contains_key(&id) {
                return Ok(id);
            }
        }
        Err(Errno::EAGAIN)
    }
}

/// The POSIX timers of a process. RLIMIT_SIGPENDING limits their number.
struct Posix {
    timers: Map<i32, (Arc<Timer>, QueuedSignal)>,
    ids: TimerIds,
}

impl Posix {
    const fn new() -> Self {
        Self { timers: Map::new(), ids: TimerIds { next: 0, wrapped: false } }
    }
    fn fresh_id(&mut self) -> Result<i32> {
        self.ids.fresh(&self.timers)
    }
}

/// All timers of a process.
pub struct Timers {
    /// ITIMER_REAL, made at first use.
    real: SpinLock<Option<Arc<Timer>>>,
    /// ITIMER_VIRTUAL and ITIMER_PROF.
    cpu: SpinLock<[Option<Arc<Timer>>; 2]>,
    /// POSIX timers. Each is charged to its user's account for its signal (RLIMIT_SIGPENDING), as
    /// long as it exists.
    posix: SpinLock<Posix>,
    limit: SpinLock<Option<Arc<CpuLimit>>>,
    /// The last count of the CPU time of all threads: its time, and its result.
    seen: IrqSpinLock<(u64, u64)>,
}

impl Timers {
    /// Makes a set without timers.
    pub(super) const fn new() -> Self {
        Self {
            real: SpinLock::new(None),
            cpu: SpinLock::new([const { None }; 2]),
            posix: SpinLock::new(Posix::new()),
            limit: SpinLock::new(None),
            seen: IrqSpinLock::new((0, 0)),
        }
    }
    /// Cancels all timers at the end of the process.
    pub(super) fn cancel_all(&self) {
        let real = self.real.lock().take();
        let cpu = core::mem::take(&mut *self.cpu.lock());
        real.iter().chain(cpu.iter().flatten()).for_each(|timer| timer.cancel());
        if let Some(limit) = self.limit.lock().take() {
            let timer: Arc<dyn Expire> = limit;
            time::cancel(&timer);
        }
        self.delete_posix();
    }
    /// Deletes the POSIX timers at execve.
    pub(super) fn delete_posix(&self) {
        let posix = core::mem::take(&mut self.posix.lock().timers);
        posix.values().for_each(|(timer, _)| timer.cancel());
    }
}

impl Process {
    /// Returns the timer with setitimer's number `which`. Makes it if necessary.
    fn interval_timer(self: &Receiver<Self>, which: i32) -> Result<Arc<Timer>> {
        let make =
            |signal, clock| Timer::new(Notify::Process(self.downgrade(), SigInfo::kernel(signal)), clock);
        match which {
            0 => {
                let mut slot = self.timers.real.lock();
                Ok(slot.get_or_insert_with(|| make(Signal::ALRM, Clock::Monotonic)).clone())
            }
            1 | 2 => {
                let signal = if which == 1 { Signal::VTALRM } else { Signal::PROF };
                let mut slots = self.timers.cpu.lock();
                let slot = &mut slots[which as usize - 1];
                Ok(slot.get_or_insert_with(|| make(signal, Clock::Process(self.pid))).clone())
            }
            _ => Err(Errno::EINVAL),
        }
    }
}

/// `struct itimerval`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct IntervalVal {
    interval: TimeVal,
    value: TimeVal,
}

/// `struct itimerspec`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IntervalSpec {
    /// Interval between expiries; 0 for a single expiry.
    pub interval: TimeSpec,
    /// Time until the next expiry; 0 for a disarmed timer.
    pub value: TimeSpec,
}

/// getitimer(which, value)
pub fn sys_getitimer(args: &Args) -> Result<i64> {
    let (left, interval) = current().process().interval_timer(args.int(0))?.state();
    let value = IntervalVal {
        interval: TimeVal::from_nanoseconds(interval),
        value: TimeVal::from_nanoseconds(left.next_multiple_of(1000)),
    };
    UserPtr::new(args[1]).write(&value)?;
    Ok(0)
}

/// setitimer(which, new, old)
pub fn sys_setitimer(args: &Args) -> Result<i64> {
    let timer = current().process().interval_timer(args.int(0))?;
    let (left, interval) = timer.state();
    let new = UserPtr::<IntervalVal>::new(args[1]).read_optional()?;
    let (value, period) = match new {
        Some(new) => (new.value.nanoseconds()?, new.interval.nanoseconds()?),
        None => (0, 0),
    };
    timer.set_relative(value, period)?;
    let old = IntervalVal {
        interval: TimeVal::from_nanoseconds(interval),
        value: TimeVal::from_nanoseconds(left.next_multiple_of(1000)),
    };
    UserPtr::new(args[2]).write_optional(&old)?;
    Ok(0)
}

/// alarm(seconds)
pub fn sys_alarm(args: &Args) -> Result<i64> {
    let timer = current().process().interval_timer(0)?;
    let (left, _) = timer.state();
    let seconds = u64::from(args.uint(0));
    timer.set_relative(seconds * time::SECOND, 0)?;
    // Rounded to the nearest second, but never to 0.
    let rounded = (left + time::SECOND / 2) / time::SECOND;
    Ok(if left > 0 { rounded.max(1) as i64 } else { 0 })
}

/// First fields of `struct sigevent`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SigEvent {
    value: u64,
    signal: i32,
    notify: i32,
    tid: i32,
    pad: [i32; 11],
}

/// timer_create(clock, event, id)
pub fn sys_timer_create(args: &Args) -> Result<i64> {
    const SIGEV_SIGNAL: i32 = 0;
    const SIGEV_NONE: i32 = 1;
    const SIGEV_THREAD: i32 = 2;
    const SIGEV_THREAD_ID: i32 = 4;
    let clock = Clock::new(args.int(0))?;
    let event = UserPtr::<SigEvent>::new(args[1]).read_optional()?;
    let process = current().process().clone();
    let id = process.timers.posix.lock().fresh_id()?;
    let info = |signal: i32, value: u64| {
        let signal = Signal::new(i64::from(signal)).ok_or(Errno::EINVAL)?;
        Ok::<_, Errno>(SigInfo::timer(signal, id, 0, value))
    };
    let whole = |info| Notify::Process(process.downgrade(), info);
    let notify = match event {
        None => whole(info(i32::from(Signal::ALRM.number()), id as u64)?),
        Some(event) => match event.notify {
            SIGEV_SIGNAL | SIGEV_THREAD => whole(info(event.signal, event.value)?),
            SIGEV_NONE => Notify::None,
            SIGEV_THREAD_ID => {
                let task = find_task_by_number(event.tid.unsigned_abs()).ok_or(Errno::EINVAL)?;
                if !task.process().is_same(&process) {
                    return Err(Errno::EINVAL);
                }
                Notify::Thread(task.downgrade(), info(event.signal, event.value)?)
            }
            _ => return Err(Errno::EINVAL),
        },
    };
    let place = QueuedSignal::charge(Payer::of(&process)).ok_or(Errno::EAGAIN)?;
    UserPtr::<i32>::new(args[2]).write(&id)?;
    let timer = Timer::new(notify, clock);
    // Without memory: the ID was written, but no timer has it.
    process.timers.posix.lock().timers.try_insert(id, (timer, place)).map_err(|_| Errno::EAGAIN)?;
    Ok(0)
}

fn posix_timer(id: i32) -> Result<Arc<Timer>> {
    let task = current();
    let posix = task.process().timers.posix.lock();
    posix.timers.get(&id).map(|(timer, _)| timer.clone()).ok_or(Errno::EINVAL)
}

fn show(left: u64, interval: u64) -> IntervalSpec {
    IntervalSpec { interval: TimeSpec::from_nanoseconds(interval), value: TimeSpec::from_nanoseconds(left) }
}

/// timer_settime(id, flags, new, old)
pub fn sys_timer_settime(args: &Args) -> Result<i64> {
    const ABSOLUTE: u32 = 1;
    let timer = posix_timer(args.int(0))?;
    // Of the two errors of an address, Linux reports this one separately.
    if args[2] == 0 {
        return Err(Errno::EINVAL);
    }
    let new = UserPtr::<IntervalSpec>::new(args[2]).read()?;
    let (value, interval) = (new.value.nanoseconds()?, new.interval.nanoseconds()?);
    let (left, old_interval) = timer.state();
    if value != 0 && args.uint(1) & ABSOLUTE != 0 {
        let deadline = if timer.counted().is_some() { value } else { timer.clock.deadline(value)? };
        timer.set(deadline.max(1), interval)?;
    } else {
        timer.set_relative(value, interval)?;
    }
    UserPtr::new(args[3]).write_optional(&show(left, old_interval))?;
    Ok(0)
}

/// timer_gettime(id, value)
pub fn sys_timer_gettime(args: &Args) -> Result<i64> {
    let (left, interval) = posix_timer(args.int(0))?.state();
    UserPtr::new(args[1]).write(&show(left, interval))?;
    Ok(0)
}

/// timer_getoverrun(id)
pub fn sys_timer_getoverrun(args: &Args) -> Result<i64> {
    Ok(posix_timer(args.int(0))?.setting.lock().overruns.min(i32::MAX as u64) as i64)
}

/// timer_delete(id)
pub fn sys_timer_delete(args: &Args) -> Result<i64> {
    let removed = current().process().timers.posix.lock().timers.remove(&args.int(0));
    let (timer, _place) = removed.ok_or(Errno::EINVAL)?;
    timer.cancel();
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_rise_begin_anew_after_the_last_and_skip_those_in_use() {
        let mut ids = TimerIds { next: 0, wrapped: false };
        let mut timers = Map::new();
        for id in 0..3 {
            assert_eq!(ids.fresh(&timers), Ok(id));
            timers.try_insert(id, ()).expect("memory");
        }
        timers.remove(&1);
        assert_eq!(ids.fresh(&timers), Ok(3), "an ID is not given out again soon");
        ids.next = i32::MAX;
        assert_eq!(ids.fresh(&timers), Ok(i32::MAX));
        timers.try_insert(i32::MAX, ()).expect("memory");
        assert_eq!(ids.fresh(&timers), Ok(1), "0 is in use");
        assert_eq!(ids.fresh(&timers), Ok(3), "so is 2");
        ids.next = i32::MAX;
        assert_eq!(ids.fresh(&timers), Ok(1), "so are the last and the first");
    }
}
