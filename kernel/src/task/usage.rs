//! Resources that processes used: getrusage, times, and the part for control groups.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Process;
use super::current;
use crate::cgroup;
use crate::syscall::Args;
use crate::user::UserPtr;
use crate::{Result, time};

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
