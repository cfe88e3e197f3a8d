//! Resources that processes used: getrusage, times, the part for control groups, and CPU time as
//! timers count it.

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, Weak, reserve::ArcMethods};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::clock::Clock;
use super::registry::{find, find_task};
use super::{Process, Task, current};
use crate::cgroup;
use crate::syscall::Args;
use crate::user::UserPtr;
use crate::{Errno, Result, time};

/// CPU time and events, summed up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Nanoseconds in user mode.
    pub user: u64,
    /// Nanoseconds in the kernel.
    pub system: u64,
    /// Number of times a thread gave up the CPU.
    pub voluntary_switches: u64,
    /// Number of times the CPU was taken from a thread.
    pub involuntary_switches: u64,
    /// Page faults that needed no I/O.
    pub minor_faults: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
    /// Bytes read and written, calls to read and write (for /proc/PID/io).
    pub io: [u64; 4],
    /// Largest number of bytes resident at one time.
    pub peak_resident: u64,
}

impl Usage {
    /// Returns the difference from `earlier`, except for the peak, which is that of `self`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            user: self.user - earlier.user,
            system: self.system - earlier.system,
            voluntary_switches: self.voluntary_switches - earlier.voluntary_switches,
            involuntary_switches: self.involuntary_switches - earlier.involuntary_switches,
            minor_faults: self.minor_faults - earlier.minor_faults,
            major_faults: self.major_faults - earlier.major_faults,
            io: core::array::from_fn(|at| self.io[at] - earlier.io[at]),
            peak_resident: self.peak_resident,
        }
    }
    /// Adds `other`.
    pub fn add(&mut self, other: &Self) {
        self.user += other.user;
        self.system += other.system;
        self.voluntary_switches += other.voluntary_switches;
        self.involuntary_switches += other.involuntary_switches;
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
        self.io.iter_mut().zip(other.io).for_each(|(sum, more)| *sum += more);
        self.peak_resident = self.peak_resident.max(other.peak_resident);
    }
}

impl Process {
    /// Returns the time used, in the format of control groups.
    pub fn cgroup_usage(&self) -> cgroup::CpuTime {
        let Usage { user, system, .. } = self.usage();
        cgroup::CpuTime { user, system }
    }
}

/// `struct rusage`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RUsage {
    user: [i64; 2],
    system: [i64; 2],
    max_resident_kib: i64,
    unused: [i64; 3],
    minor_faults: i64,
    major_faults: i64,
    swaps: i64,
    blocks: [i64; 2],
    messages: [i64; 2],
    signals: i64,
    voluntary_switches: i64,
    involuntary_switches: i64,
}

const fn split(nanoseconds: u64) -> [i64; 2] {
    [(nanoseconds / time::SECOND) as i64, (nanoseconds % time::SECOND / 1000) as i64]
}

/// Returns the usage in the format for programs.
pub fn to_abi(usage: &Usage) -> RUsage {
    RUsage {
        user: split(usage.user),
        system: split(usage.system),
        max_resident_kib: (usage.peak_resident / 1024) as i64,
        unused: [0; 3],
        minor_faults: usage.minor_faults as i64,
        major_faults: usage.major_faults as i64,
        swaps: 0,
        blocks: [0; 2],
        messages: [0; 2],
        signals: 0,
        voluntary_switches: usage.voluntary_switches as i64,
        involuntary_switches: usage.involuntary_switches as i64,
    }
}

/// getrusage(who, usage)
pub fn sys_getrusage(args: &Args) -> Result<i64> {
    const SELF: i32 = 0;
    const CHILDREN: i32 = -1;
    const THREAD: i32 = 1;
    let task = current();
    let process = task.process();
    let mut usage = match args.int(0) {
        SELF => process.usage(),
        CHILDREN => process.children_usage(),
        THREAD => task.usage(),
        _ => return Err(crate::Errno::EINVAL),
    };
    if args.int(0) != CHILDREN {
        usage.peak_resident = process.space().lock().footprint().peak * 4096;
    }
    UserPtr::new(args[1]).write(&to_abi(&usage))?;
    Ok(0)
}

/// times(buffer): ticks are 10 ms.
pub fn sys_times(args: &Args) -> Result<i64> {
    const TICK: u64 = 10_000_000;
    let process = current().process().clone();
    let (own, children) = (process.usage(), process.children_usage());
    let ticks = [own.user, own.system, children.user, children.system].map(|time| (time / TICK) as i64);
    UserPtr::new(args[0]).write_optional(&ticks)?;
    Ok((time::now() / TICK) as i64)
}

/// The source of a timer's time.
pub(in crate::task) enum TimeSource {
    /// A clock.
    Clock,
    /// The CPU time of a process.
    Process(Weak<Process>),
    /// The CPU time of a thread.
    Thread(Weak<Task>),
}

/// The threads whose CPU time a timer counts, as long as they exist.
pub(in crate::task) enum CpuTimeOf {
    /// All threads of a process.
    Process(Arc<Process>),
    /// One thread.
    Thread(Arc<Task>),
    /// They have ended: the timer stands still.
    Ended,
}

impl TimeSource {
    /// Returns the source of the time that `clock` shows, for a timer of `owner`.
    ///
    /// # Errors
    /// `EINVAL` for a process that does not exist, and a thread of another process (Linux:
    /// `pid_for_clock`).
    pub(in crate::task) fn of(clock: Clock, owner: &Arc<Process>) -> Result<Self> {
        Ok(match clock {
            Clock::Process(pid) => Self::Process(find(pid).ok_or(Errno::EINVAL)?.downgrade()),
            Clock::Thread(tid) => {
                let task = find_task(tid).filter(|task| task.process().is_same(owner));
                Self::Thread(task.ok_or(Errno::EINVAL)?.downgrade())
            }
            _ => Self::Clock,
        })
    }

    /// Returns the threads that are counted; `None` for a clock.
    pub(in crate::task) fn counted(&self) -> Option<CpuTimeOf> {
        match self {
            Self::Clock => None,
            Self::Process(process) => Some(process.upgrade().map_or(CpuTimeOf::Ended, CpuTimeOf::Process)),
            Self::Thread(task) => Some(task.upgrade().map_or(CpuTimeOf::Ended, CpuTimeOf::Thread)),
        }
    }
}

impl CpuTimeOf {
    /// Returns the CPU time in nanoseconds, with running threads up to now. Any context.
    pub(in crate::task) fn cpu_time(&self) -> u64 {
        match self {
            Self::Process(process) => process.cpu_time(),
            Self::Thread(task) => {
                crate::sched::account(task.thread());
                task.schedule.runtime.load(Ordering::Relaxed)
            }
            Self::Ended => 0,
        }
    }

    /// Returns [`cpu_time`](Self::cpu_time) for interrupts: see [`Process::cpu_time_lately`].
    pub(in crate::task) fn cpu_time_lately(&self, now: u64) -> u64 {
        match self {
            Self::Process(process) => process.cpu_time_lately(now),
            _ => self.cpu_time(),
        }
    }

    /// Returns the earliest time at which the threads can have used `total` nanoseconds, as of
    /// `now`.
    pub(in crate::task) fn when_used(&self, total: u64, now: u64) -> u64 {
        match self {
            Self::Process(process) => process.when_used(total, now),
            Self::Thread(_) => {
                let left = total.saturating_sub(self.cpu_time());
                now.saturating_add(left.max(MIN_INTERVAL))
            }
            Self::Ended => u64::MAX,
        }
    }
}

/// Smallest interval between two counts of a process' CPU time.
pub(in crate::task) const MIN_INTERVAL: u64 = 1_000_000;

impl Process {
    /// Returns the CPU time of all threads, with running ones up to now. Any context.
    pub(in crate::task) fn cpu_time(&self) -> u64 {
        crate::sched::account_running();
        let group = self.signals.lock();
        let living: u64 =
            group.threads.iter().map(|task| task.schedule.runtime.load(Ordering::Relaxed)).sum();
        living + group.past.user + group.past.system
    }

    /// Returns [`cpu_time`](Self::cpu_time) from a count that is no older than [`MIN_INTERVAL`] at
    /// `now`. For interrupts, because there may be many threads.
    pub(in crate::task) fn cpu_time_lately(&self, now: u64) -> u64 {
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
    pub(in crate::task) fn when_used(&self, total: u64, now: u64) -> u64 {
        let left = total.saturating_sub(self.cpu_time_lately(now));
        let threads = self.signals.lock().threads.len().max(1) as u64;
        now.saturating_add((left / threads).max(MIN_INTERVAL))
    }
}
