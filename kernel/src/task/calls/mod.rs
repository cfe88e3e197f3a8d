//! System calls about limits, scheduling, the system, and various settings of the current thread.

mod compare;
mod io_priority;
mod scheduling;

pub use compare::sys_kcmp;
pub use io_priority::{sys_ioprio_get, sys_ioprio_set};
pub use scheduling::*;

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, reserve::ArcMethods};
use freehold_vm::HugeUse;
use freehold_xpfo::Closing;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::inspect::Dumpable;
use super::userns::IdKind;
use super::{Capability, Limit, Pid, Process, Resource, Signal, Task, current, may, registry, seccomp};
use crate::hw::user::{CounterAccess, UserContext};
use crate::syscall::Args;
use crate::task::clock::Clock;
use crate::task::registry::{find_by_number, find_task_by_number};
use crate::time;
use crate::user::{self, UserPtr};
use crate::{Errno, Result, hw, mem, sched};

fn named_process(pid: i32) -> Result<Arc<Process>> {
    match pid {
        0 => Ok(current().process().clone()),
        pid => find_by_number(u32::try_from(pid).map_err(|_| Errno::ESRCH)?).ok_or(Errno::ESRCH),
    }
}

fn named_task(tid: i32) -> Result<Arc<Task>> {
    match tid {
        0 => Ok(current()),
        tid => find_task_by_number(u32::try_from(tid).map_err(|_| Errno::EINVAL)?).ok_or(Errno::ESRCH),
    }
}

/// Checks that the caller may see and change the limits of `process` (Linux:
/// `check_prlimit_permission`, kernel/sys.c).
fn check_limits_of(process: &Arc<Process>) -> Result<()> {
    let caller = current().process().clone();
    let (own, other) = (caller.credentials(), process.credentials());
    let same_user = [other.uid, other.euid, other.suid].iter().all(|&uid| uid == own.uid);
    let same_group = [other.gid, other.egid, other.sgid].iter().all(|&gid| gid == own.gid);
    if caller.is_same(process) || (same_user && same_group) || own.may(Capability::SysResource) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Changes a limit, and returns the previous one.
fn change_limit(process: &Arc<Process>, resource: Resource, new: Limit) -> Result<Limit> {
    if new.soft > new.hard {
        return Err(Errno::EINVAL);
    }
    if resource == Resource::Files && new.hard > crate::fs::table::most() {
        return Err(Errno::EPERM);
    }
    let may_raise = may(Capability::SysResource);
    let old = process.set_limit(resource, new, |old| {
        if new.hard > old.hard && !may_raise { Err(Errno::EPERM) } else { Ok(()) }
    })?;
    if resource == Resource::Cpu {
        process.watch_cpu_limit(new);
    }
    Ok(old)
}

/// prlimit64(pid, resource, new, old)
pub fn sys_prlimit64(args: &Args) -> Result<i64> {
    let resource = Resource::new(u64::from(args.uint(1))).ok_or(Errno::EINVAL)?;
    let process = named_process(args.int(0))?;
    check_limits_of(&process)?;
    let new = UserPtr::<Limit>::new(args[2]).read_optional()?;
    let old = match new {
        Some(new) => change_limit(&process, resource, new)?,
        None => process.limit(resource),
    };
    UserPtr::new(args[3]).write_optional(&old)?;
    Ok(0)
}

/// getrlimit(resource, limit)
pub fn sys_getrlimit(args: &Args) -> Result<i64> {
    let resource = Resource::new(u64::from(args.uint(0))).ok_or(Errno::EINVAL)?;
    UserPtr::new(args[1]).write(&current().process().limit(resource))?;
    Ok(0)
}

/// setrlimit(resource, limit)
pub fn sys_setrlimit(args: &Args) -> Result<i64> {
    let resource = Resource::new(u64::from(args.uint(0))).ok_or(Errno::EINVAL)?;
    let new = UserPtr::<Limit>::new(args[1]).read()?;
    change_limit(current().process(), resource, new)?;
    Ok(0)
}

/// The kinds of targets of a call about priorities, as given by PRIO_* and IOPRIO_WHO_*.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Among {
    /// One thread.
    Thread,
    /// The threads of a process group.
    Group,
    /// The threads of a real user.
    User,
}

impl Among {
    /// Makes the kind from its number. `first` means a thread, the next number a group and the one
    /// after it a user.
    fn new(which: i32, first: i32) -> Result<Self> {
        match which.wrapping_sub(first) {
            0 => Ok(Self::Thread),
            1 => Ok(Self::Group),
            2 => Ok(Self::User),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// Calls `f` for each thread that `among` and `who` select, until it fails; 0 selects the caller's
/// own. There may be many threads, so no list is made.
fn for_each_thread(among: Among, who: Pid, mut f: impl FnMut(&Arc<Task>) -> Result<()>) -> Result<()> {
    let caller = current();
    let (processes, uid) = match among {
        Among::Thread if who == 0 => return f(&caller),
        Among::Thread => return f(&find_task_by_number(who).ok_or(Errno::ESRCH)?),
        Among::Group => {
            let group = match who {
                0 => caller.process().group(),
                number => registry::pid_by_number(number).ok_or(Errno::ESRCH)?,
            };
            (registry::group_members(group), None)
        }
        Among::User => {
            let uid = if who == 0 {
                caller.process().uid()
            } else {
                super::kernel_id(IdKind::User, who).map_err(|_| Errno::ESRCH)?
            };
            (registry::processes(), Some(uid))
        }
    };
    let mut any = false;
    let view = caller.process().pid_view();
    // Of a user's threads, only those that are visible to the caller.
    let is_meant = |process: &Process, uid| process.credentials().uid == uid && process.number_in(view) != 0;
    for process in processes.filter(|process| uid.is_none_or(|uid| is_meant(process, uid))) {
        for task in process.threads() {
            any = true;
            f(&task)?;
        }
    }
    if any { Ok(()) } else { Err(Errno::ESRCH) }
}

/// getcpu(cpu, node)
pub fn sys_getcpu(args: &Args) -> Result<i64> {
    let cpu = hw::current_cpu();
    UserPtr::<u32>::new(args[0]).write_optional(&u32::from(cpu.0))?;
    UserPtr::<u32>::new(args[1]).write_optional(&u32::from(hw::node_of(cpu).0))?;
    Ok(0)
}

/// membarrier(command, flags, cpu). Every return to user mode and every switch orders memory
/// accesses already. The expedited commands make the other CPUs enter the kernel once.
pub fn sys_membarrier(args: &Args) -> Result<i64> {
    const QUERY: i32 = 0;
    const GLOBAL: i32 = 1;
    const GLOBAL_EXPEDITED: i32 = 2;
    const REGISTER_GLOBAL_EXPEDITED: i32 = 4;
    const PRIVATE_EXPEDITED: i32 = 8;
    const REGISTER_PRIVATE_EXPEDITED: i32 = 16;
    const ALL: i32 = GLOBAL
        | GLOBAL_EXPEDITED
        | REGISTER_GLOBAL_EXPEDITED
        | PRIVATE_EXPEDITED
        | REGISTER_PRIVATE_EXPEDITED;
    if args.uint(1) != 0 {
        return Err(Errno::EINVAL);
    }
    let task = current();
    let registered = &task.process().barriers;
    match args.int(0) {
        QUERY => Ok(i64::from(ALL)),
        REGISTER_GLOBAL_EXPEDITED | REGISTER_PRIVATE_EXPEDITED => {
            registered.fetch_or(args.uint(0), Ordering::Relaxed);
            Ok(0)
        }
        PRIVATE_EXPEDITED if registered.load(Ordering::Relaxed) & REGISTER_PRIVATE_EXPEDITED as u32 == 0 => {
            Err(Errno::EPERM)
        }
        GLOBAL | GLOBAL_EXPEDITED | PRIVATE_EXPEDITED => {
            hw::interrupt_all();
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// `struct sysinfo`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SysInfo {
    uptime: i64,
    loads: [u64; 3],
    total: u64,
    free: u64,
    shared: u64,
    buffers: u64,
    total_swap: u64,
    free_swap: u64,
    processes: u16,
    pad: [u16; 3],
    total_high: u64,
    free_high: u64,
    unit: u32,
    end: u32,
}

/// sysinfo(info)
pub fn sys_sysinfo(args: &Args) -> Result<i64> {
    let frames = crate::mem::frames();
    let (total, free) = (frames.total_frames() * 4096, frames.free_frames() * 4096);
    let (memory, swap) = (crate::mem::stats::memory(), crate::mem::commons().swap().usage());
    let info = SysInfo {
        // Rounded up, as on Linux.
        uptime: Clock::Boottime.shown(time::now()).div_ceil(time::SECOND) as i64,
        loads: crate::fs::procfs::loads::averages(),
        total,
        free,
        shared: memory.shared() * 4096,
        buffers: memory.disks.pages * 4096,
        total_swap: swap.slots * 4096,
        free_swap: swap.free * 4096,
        processes: registry::count().min(usize::from(u16::MAX)) as u16,
        pad: [0; 3],
        total_high: 0,
        free_high: 0,
        unit: 1,
        end: 0,
    };
    UserPtr::new(args[0]).write(&info)?;
    Ok(0)
}

/// getrandom(buffer, length, flags)
pub fn sys_getrandom(args: &Args) -> Result<i64> {
    const FLAGS: u32 = 7;
    const BOTH_SOURCES: u32 = 6;
    if args.uint(2) & !FLAGS != 0 || args.uint(2) & BOTH_SOURCES == BOTH_SOURCES {
        return Err(Errno::EINVAL);
    }
    let length = args.size(1).min(user::MAX_COUNT);
    let mut done = 0;
    while done < length {
        let mut bytes = [0; 1024];
        let count = bytes.len().min(length - done);
        hw::fill_random(&mut bytes[..count]);
        if let Err(error) = user::write_exact(args[0].wrapping_add(done as u64), &bytes[..count]) {
            return if done == 0 { Err(error) } else { Ok(done as i64) };
        }
        done += count;
        if done % 65_536 == 0 && current().signal_pending() {
            break;
        }
        sched::cond_resched();
    }
    Ok(done as i64)
}

/// prctl(SET_XPFO, 1 or 0, 0, 0, 0): sets whether windows for the calling thread, and for threads
/// that it creates from now on, are flushed when they close (1), or by the policy (0). Windows that
/// kernel tasks open for it follow the policy.
fn set_closing(args: &Args) -> Result<()> {
    let closing = match args[1] {
        0 => Closing::ByPolicy,
        1 => Closing::Forgets,
        _ => return Err(Errno::EINVAL),
    };
    if args[2] | args[3] | args[4] != 0 {
        return Err(Errno::EINVAL);
    }
    if !hw::windows::policy().is_exclusive() {
        return Err(Errno::EOPNOTSUPP);
    }
    current().set_closing(closing);
    sched::activate_current();
    Ok(())
}

/// prctl's options.
mod prctl {
    pub const SET_PDEATHSIG: i32 = 1;
    pub const GET_PDEATHSIG: i32 = 2;
    pub const GET_DUMPABLE: i32 = 3;
    pub const SET_DUMPABLE: i32 = 4;
    pub const GET_TIMING: i32 = 13;
    pub const SET_NAME: i32 = 15;
    pub const GET_NAME: i32 = 16;
    pub const GET_SECCOMP: i32 = 21;
    pub const SET_SECCOMP: i32 = 22;
    pub const GET_TSC: i32 = 25;
    pub const SET_TSC: i32 = 26;
    pub const SET_TIMERSLACK: i32 = 29;
    pub const GET_TIMERSLACK: i32 = 30;
    pub const SET_CHILD_SUBREAPER: i32 = 36;
    pub const GET_CHILD_SUBREAPER: i32 = 37;
    pub const SET_NO_NEW_PRIVS: i32 = 38;
    pub const GET_NO_NEW_PRIVS: i32 = 39;
    pub const SET_THP_DISABLE: i32 = 41;
    pub const GET_THP_DISABLE: i32 = 42;
    pub const SET_MEMORY_MERGE: i32 = 67;
    pub const GET_MEMORY_MERGE: i32 = 68;
    // Freehold's own option: "XPF" and a number.
    pub const SET_XPFO: i32 = 0x5850_4601;
    pub const GET_XPFO: i32 = 0x5850_4602;
}

/// Reads a name of up to 15 bytes from the program. Also returns its length.
fn read_name(address: u64) -> Result<([u8; 16], usize)> {
    let mut name = [0; 16];
    let mut length = 0;
    while length < 15 {
        user::read_exact(address + length as u64, &mut name[length..=length])?;
        if name[length] == 0 {
            break;
        }
        length += 1;
    }
    Ok((name, length))
}

/// PR_SET_MEMORY_MERGE and PR_GET_MEMORY_MERGE.
fn memory_merge(process: &Process, args: &Args) -> Result<i64> {
    let is_set = args.int(0) == prctl::SET_MEMORY_MERGE;
    if !is_set && args[1] != 0 {
        return Err(Errno::EINVAL);
    }
    if !may(Capability::SysResource) {
        return Err(Errno::EPERM);
    }
    let space = process.space();
    if is_set {
        return mem::ksm::set_for_process(&space, args[1]).map(|()| 0);
    }
    Ok(i64::from(space.lock().merges_all()))
}

/// PR_GET_TSC, PR_SET_TSC: whether programs may read the CPU's counter.
fn counter_access(context: &mut UserContext, args: &Args) -> Result<()> {
    const ALLOWED: u32 = 1;
    const DENIED: u32 = 2;
    if args.int(0) == prctl::GET_TSC {
        let is_allowed = context.counter_access() == CounterAccess::Allowed;
        return UserPtr::new(args[1]).write(&if is_allowed { ALLOWED } else { DENIED });
    }
    context.set_counter_access(match args[1] {
        1 => CounterAccess::Allowed,
        2 => CounterAccess::Denied,
        _ => return Err(Errno::EINVAL),
    });
    Ok(())
}

/// prctl(option, ...)
pub fn sys_prctl(context: &mut UserContext, args: &Args) -> Result<i64> {
    use crate::task::capability_calls::{option::*, prctl_sets};
    use prctl::*;
    let task = current();
    let process = task.process();
    match args.int(0) {
        SET_PDEATHSIG => {
            if args[1] != 0 {
                Signal::new(args.long(1)).ok_or(Errno::EINVAL)?;
            }
            process.parent_death_signal.store(args.uint(1), Ordering::Relaxed);
        }
        GET_PDEATHSIG => UserPtr::new(args[1]).write(&process.parent_death_signal.load(Ordering::Relaxed))?,
        GET_DUMPABLE => return Ok(process.space().dumpable().number().into()),
        SET_DUMPABLE if args[1] == 0 => process.space().set_dumpable(Dumpable::No),
        SET_DUMPABLE if args[1] == 1 => process.space().set_dumpable(Dumpable::Yes),
        SET_NAME => {
            let (name, length) = read_name(args[1])?;
            task.set_name(&name[..length]);
        }
        GET_NAME => UserPtr::new(args[1]).write(&task.name())?,
        GET_SECCOMP => return Ok(task.seccomp().0.into()),
        SET_SECCOMP => return seccomp::set_mode(args),
        GET_TIMING => {}
        GET_TSC | SET_TSC => counter_access(context, args)?,
        SET_THP_DISABLE if args[2] | args[3] | args[4] == 0 => {
            let huge = if args[1] == 0 { HugeUse::ByArea } else { HugeUse::Disabled };
            process.space().lock().set_huge_use(huge);
        }
        GET_THP_DISABLE if args[1] | args[2] | args[3] | args[4] == 0 => {
            return Ok(i64::from(process.space().lock().huge_use() == HugeUse::Disabled));
        }
        SET_MEMORY_MERGE | GET_MEMORY_MERGE if args[2] | args[3] | args[4] == 0 => {
            return memory_merge(process, args);
        }
        GET_KEEPCAPS | SET_KEEPCAPS | CAPBSET_READ | CAPBSET_DROP | GET_SECUREBITS | SET_SECUREBITS
        | CAP_AMBIENT => return prctl_sets(args),
        SET_TIMERSLACK => {
            // Linux treats the argument as signed.
            let usual = task.default_timer_slack.load(Ordering::Relaxed);
            let slack = if args.long(1) <= 0 { usual } else { args[1] };
            task.timer_slack.store(slack, Ordering::Relaxed);
        }
        GET_TIMERSLACK => return Ok(task.timer_slack.load(Ordering::Relaxed) as i64),
        SET_CHILD_SUBREAPER => process.is_subreaper.store(args[1] != 0, Ordering::Relaxed),
        GET_CHILD_SUBREAPER => {
            UserPtr::new(args[1]).write(&u32::from(process.is_subreaper.load(Ordering::Relaxed)))?;
        }
        SET_NO_NEW_PRIVS if args[1] == 1 && args[2] | args[3] | args[4] == 0 => {
            process.no_new_privileges.store(true, Ordering::Relaxed)
        }
        SET_XPFO => set_closing(args)?,
        GET_XPFO => return Ok(task.closing() as i64),
        GET_NO_NEW_PRIVS if args[1] | args[2] | args[3] | args[4] == 0 => {
            return Ok(i64::from(process.no_new_privileges.load(Ordering::Relaxed)));
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
