//! A process' timers: setitimer, alarm, and POSIX timers.
//!
//! A timer is a separate object, to which the timer queue holds a reference while it is armed. It
//! expires in interrupt context, where it sends its signal. A repeating timer is armed again by the
//! thread that takes the signal ([`Process::restart_timer`]), as on Linux. So timers cost nothing
//! while their signals are blocked, however short their intervals are. Intervals that passed
//! meanwhile are counted then. A timer whose signal nothing will take, because it is ignored or
//! found no room, goes on by itself, at least a tick of Linux later. A timer without a signal
//! is never armed: its state is calculated.
//!
//! A timer that counts CPU time, and the limit of CPU time, are armed for the earliest time at
//! which they could expire: the remaining time divided by the number of threads. At that time they
//! check again. A process may have as many threads as timers, so all timers that expire within a
//! millisecond share one count of the threads' CPU time.

mod ids;
mod setting;

use core::ops::Bound;
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
use super::signal::{KeptSignal, SigInfo, Signal, code};
use super::usage::{CpuTimeOf, MIN_INTERVAL, TimeSource};
use super::users::{Payer, QueuedSignal};
use super::{Task, current};
use crate::sync::{IrqSpinLock, Mutex, SpinLock};
use crate::syscall::Args;
use crate::time::{self, Base, Deadline, Expire, TimeSpec, TimeVal, TimerSlot};
use crate::user::UserPtr;
use crate::{Errno, Result};
use ids::TimerIds;
use setting::{IGNORED_INTERVAL, Setting};

/// The receiver of an expiry.
enum Notify {
    /// No process.
    None,
    /// The process.
    Process(Weak<Process>, SigInfo),
    /// One thread.
    Thread(Weak<Task>, SigInfo),
}

impl Notify {
    /// Keeps room for the signal, which is sent in interrupts.
    fn reserve(&self) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Process(process, _) => process.upgrade().map_or(Ok(()), |to| to.reserve_for_timer()),
            Self::Thread(task, _) => task.upgrade().map_or(Ok(()), |to| to.reserve_for_timer()),
        }
    }
    /// Gives up the room.
    fn release(&self) {
        match self {
            Self::None => {}
            Self::Process(process, _) => {
                if let Some(to) = process.upgrade() {
                    to.signals.lock().pending.release_for_timer();
                }
            }
            Self::Thread(task, _) => {
                if let Some(to) = task.upgrade() {
                    to.pending.lock().release_for_timer();
                }
            }
        }
    }
}

/// One timer.
pub struct Timer {
    slot: TimerSlot,
    notify: Notify,
    clock: Clock,
    /// The threads whose CPU time the timer counts, if it does.
    source: TimeSource,
    setting: IrqSpinLock<Setting>,
    /// Held while the timer is armed, so that it is armed for the last setting.
    arming: Mutex<()>,
}

impl Timer {
    fn new(notify: Notify, clock: Clock, source: TimeSource) -> Arc<Self> {
        reserve::arc(Self {
            slot: TimerSlot::new(),
            notify,
            clock,
            source,
            setting: IrqSpinLock::new(Setting::default()),
            arming: Mutex::new(()),
        })
    }
    /// Returns the signal that an expiry sends, if any.
    fn signal(&self) -> Option<&SigInfo> {
        match &self.notify {
            Notify::None => None,
            Notify::Process(_, info) | Notify::Thread(_, info) => Some(info),
        }
    }
    /// Returns the number of expiries that the last signal stands for, beyond the first.
    fn overruns(&self) -> u64 {
        self.setting.lock().overruns
    }
    /// Returns the nanoseconds until the next expiry, and the interval.
    fn state(&self) -> (u64, u64) {
        let used = self.source.counted().map(|of| of.cpu_time());
        let setting = *self.setting.lock();
        let now = used.unwrap_or_else(|| setting.base.at(time::now()));
        let is_posix = self.signal().is_none_or(|info| info.code == code::TIMER);
        let left = match setting.deadline.saturating_sub(now) {
            _ if setting.deadline == 0 => 0,
            0 if setting.is_awaited || self.signal().is_none() => {
                if is_posix {
                    setting.expired(now).deadline.saturating_sub(now)
                } else {
                    0
                }
            }
            left => left.max(1),
        };
        (left, setting.interval)
    }
    /// Makes the timer expire at `deadline` (`None`: never), and then every `interval`. For a timer
    /// that counts CPU time the deadline is one of that.
    fn set(self: &Receiver<Self>, deadline: Option<Deadline>, interval: u64) -> Result<()> {
        let at = deadline.map_or(0, |deadline| deadline.at.max(1));
        let base = deadline.map_or(Base::Boot, |deadline| deadline.base);
        *self.setting.lock() = Setting { interval, base, deadline: at, ..Setting::default() };
        self.arm()
    }
    /// Arms the timer for its setting.
    fn arm(self: &Receiver<Self>) -> Result<()> {
        let _one_at_a_time = self.arming.lock();
        let timer: Arc<dyn Expire> = self.clone();
        time::cancel(&timer);
        let setting = *self.setting.lock();
        if setting.deadline == 0 || setting.is_awaited || self.signal().is_none() {
            return Ok(());
        }
        time::try_arm(&timer, self.next_check(self.source.counted(), setting, time::now()))
    }
    /// Returns the time at which the timer may be due.
    fn next_check(&self, counted: Option<CpuTimeOf>, setting: Setting, now: u64) -> Deadline {
        match counted {
            Some(of) => of.when_used(setting.deadline, now).into(),
            None => Deadline { base: setting.base, at: setting.deadline },
        }
    }
    /// Makes the timer expire after `value` nanoseconds (0: never) and then every `interval`.
    fn set_relative(self: &Receiver<Self>, value: u64, interval: u64) -> Result<()> {
        let now = self.source.counted().map_or_else(time::now, |of| of.cpu_time());
        self.set((value != 0).then(|| now.saturating_add(value).into()), interval)
    }
    fn cancel(self: &Receiver<Self>) {
        *self.setting.lock() = Setting::default();
        let timer: Arc<dyn Expire> = self.clone();
        time::cancel(&timer);
    }
    /// Ends a POSIX timer.
    fn delete(self: &Receiver<Self>) {
        self.cancel();
        self.notify.release();
    }
    /// Arms a repeating timer whose signal was taken. Returns how often it has expired meanwhile.
    fn restart(self: &Receiver<Self>) -> u64 {
        let used = self.source.counted().map(|of| of.cpu_time());
        let overruns = {
            let mut setting = self.setting.lock();
            if !setting.is_awaited {
                return setting.overruns;
            }
            *setting = setting.expired(used.unwrap_or_else(|| setting.base.at(time::now())));
            setting.overruns
        };
        if self.arm().is_err() {
            // The next check comes with the next signal.
            self.setting.lock().is_awaited = true;
        }
        overruns
    }
    /// Sends the signal of an expiry. Returns whether a thread will take it from this timer.
    fn send(&self) -> bool {
        // The reference that is dropped here is never the last one. The registry keeps processes,
        // and they keep their threads. If the process is ending, the upgrade fails, or the task
        // that reaps it holds another reference.
        let kept = match &self.notify {
            Notify::None => return false,
            Notify::Process(process, info) => {
                process.upgrade().map(|process| process.signal_from_interrupt(*info))
            }
            Notify::Thread(task, info) => task.upgrade().map(|task| task.signal_from_interrupt(*info)),
        };
        let is_posix = self.signal().is_some_and(|info| info.code == code::TIMER);
        match kept {
            // Without a receiver the timer ends.
            None | Some(KeptSignal::Siginfo) => true,
            // The number alone tells that it is the alarm's.
            Some(KeptSignal::Number) => !is_posix,
            Some(KeptSignal::Nothing) => false,
        }
    }
    /// Whether the thread that takes a signal arms the timer again. ITIMER_VIRTUAL and ITIMER_PROF
    /// count CPU time in steps of [`MIN_INTERVAL`], as long as threads run.
    fn waits_for_taker(&self) -> bool {
        self.signal().is_some_and(SigInfo::may_be_timer)
    }
}

impl Expire for Timer {
    fn slot(&self) -> &TimerSlot {
        &self.slot
    }
    fn expire(&self, now: u64) -> Option<Deadline> {
        let counted = self.source.counted();
        let used = counted.as_ref().map(|of| of.cpu_time_lately(now));
        {
            let mut setting = self.setting.lock();
            if setting.deadline == 0 || setting.is_awaited {
                return None;
            }
            let shown = used.unwrap_or_else(|| setting.base.at(now));
            if setting.deadline > shown {
                let due = *setting;
                drop(setting);
                // It was set again meanwhile, its clock was set, or its process has not used that
                // much time yet.
                return Some(self.next_check(counted, due, now));
            }
            // A thread on another CPU may take the signal as soon as it is sent.
            let repeats = setting.interval != 0;
            *setting =
                if repeats { Setting { is_awaited: true, ..*setting } } else { setting.expired(shown) };
        }
        let is_awaited = self.send() && self.waits_for_taker();
        let next = {
            let mut setting = self.setting.lock();
            if is_awaited || !setting.is_awaited {
                return None;
            }
            let pause = if self.waits_for_taker() { IGNORED_INTERVAL } else { 0 };
            let shown = used.unwrap_or_else(|| setting.base.at(now));
            let least = pause.saturating_sub(setting.interval);
            *setting = setting.expired(shown.saturating_add(least));
            *setting
        };
        Some(self.next_check(counted, next, now))
    }
}

impl Process {
    /// Arms the timer again that sent `info`, which a thread has taken. Returns the signal, with
    /// the number of expiries that it stands for.
    pub fn restart_timer(&self, info: SigInfo) -> SigInfo {
        let timer = if info.code == code::TIMER {
            let posix = self.timers.posix.lock();
            posix.timers.get(&info.timer_id()).map(|(timer, _)| timer.clone())
        } else if info.may_be_timer() {
            self.timers.real.lock().clone()
        } else {
            None
        };
        timer.map_or(info, |timer| with_overrun(info, timer.restart()))
    }

    /// Arms the timers again that await that `signal` is taken: pending ones were removed.
    pub(super) fn restart_timers(&self, signal: Signal) {
        let sends = |timer: &Timer| timer.signal().is_some_and(|info| info.signal() == Some(signal));
        let real = self.timers.real.lock().clone();
        if let Some(real) = real.filter(|timer| sends(timer)) {
            real.restart();
        }
        let mut seen = Bound::Unbounded;
        loop {
            let found = {
                let posix = self.timers.posix.lock();
                let found = posix.timers.first_from(seen.as_ref());
                found.map(|(id, (timer, _))| (*id, timer.clone()))
            };
            let Some((id, timer)) = found else { return };
            if sends(&timer) {
                timer.restart();
            }
            seen = Bound::Excluded(id);
            crate::sched::rest();
        }
    }
}

impl Process {
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
    fn expire(&self, now: u64) -> Option<Deadline> {
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
        (next != u64::MAX).then(|| process.when_used(next, now).into())
    }
}

fn with_overrun(mut info: SigInfo, missed: u64) -> SigInfo {
    if info.code == code::TIMER {
        info.fields[0] |= missed.min(i32::MAX as u64) << 32;
    }
    info
}

/// The POSIX timers of a process. RLIMIT_SIGPENDING limits their number.
struct Posix {
    timers: Map<i32, (Arc<Timer>, QueuedSignal)>,
    ids: TimerIds,
}

impl Posix {
    const fn new() -> Self {
        Self { timers: Map::new(), ids: TimerIds::new() }
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
    pub(super) seen: IrqSpinLock<(u64, u64)>,
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
        posix.values().for_each(|(timer, _)| timer.delete());
    }
}

impl Process {
    /// Returns the timer with setitimer's number `which`. Makes it if necessary.
    fn interval_timer(self: &Receiver<Self>, which: i32) -> Result<Arc<Timer>> {
        let make = |signal, clock, source| {
            Timer::new(Notify::Process(self.downgrade(), SigInfo::kernel(signal)), clock, source)
        };
        self.make_signal_room();
        match which {
            0 => {
                let mut slot = self.timers.real.lock();
                Ok(slot
                    .get_or_insert_with(|| make(Signal::ALRM, Clock::Monotonic, TimeSource::Clock))
                    .clone())
            }
            1 | 2 => {
                let signal = if which == 1 { Signal::VTALRM } else { Signal::PROF };
                let mut slots = self.timers.cpu.lock();
                let slot = &mut slots[which as usize - 1];
                let source = || TimeSource::Process(self.downgrade());
                Ok(slot.get_or_insert_with(|| make(signal, Clock::Process(self.pid), source())).clone())
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
    let source = TimeSource::of(clock, &process)?;
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
    notify.reserve()?;
    let timer = Timer::new(notify, clock, source);
    let inserted = process.timers.posix.lock().timers.try_insert(id, (timer.clone(), place));
    if inserted.is_err() {
        // Without memory: the ID was written, but no timer has it.
        timer.delete();
        return Err(Errno::EAGAIN);
    }
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
        let deadline =
            if timer.source.counted().is_some() { value.into() } else { timer.clock.deadline(value)? };
        timer.set(Some(deadline), interval)?;
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
    Ok(posix_timer(args.int(0))?.overruns().min(i32::MAX as u64) as i64)
}

/// timer_delete(id)
pub fn sys_timer_delete(args: &Args) -> Result<i64> {
    let removed = current().process().timers.posix.lock().timers.remove(&args.int(0));
    let (timer, _place) = removed.ok_or(Errno::EINVAL)?;
    timer.delete();
    Ok(0)
}
