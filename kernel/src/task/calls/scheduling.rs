//! How threads are scheduled: policies, nice values, CPUs.
//!
//! SCHED_FIFO and SCHED_RR need CAP_SYS_NICE or RLIMIT_RTPRIO. SCHED_DEADLINE is refused with
//! `EBUSY`, the error for exhausted bandwidth. The checks before that are those of Linux, in the
//! same order (`__sched_setscheduler`, kernel/sched/syscalls.c).

use freehold_collections::Arc;
use freehold_machine::CpuSet;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Among, for_each_thread, named_process, named_task};
use crate::sched::{self, OnFork, SchedPolicy, real_time};
use crate::syscall::Args;
use crate::task::{Capability, Process, Resource, Task, current, may};
use crate::time::TimeSpec;
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// sched_yield()
pub fn sys_sched_yield(_args: &Args) -> Result<i64> {
    sched::yield_now();
    Ok(0)
}

/// Checks that the caller may change how the tasks of `process` are scheduled. They must belong to
/// the caller's user and have no capability that the caller lacks (Linux: `check_same_owner` in
/// kernel/sched/core.c, `cap_safe_nice` in security/commoncap.c).
fn check_same_user(process: &Process) -> Result<()> {
    let (own, other) = (current().process().credentials(), process.credentials());
    let is_stronger = other.capabilities.permitted & !own.capabilities.permitted != 0;
    let is_same = own.euid == other.euid || own.euid == other.uid;
    if own.may_in(&other.user_ns, Capability::SysNice) || is_same && !is_stronger {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Whether RLIMIT_NICE permits this nice value for `task`. The limit counts from nice value 20
/// downwards, so with 0 no thread can lower its nice value.
fn may_have_nice(task: &Task, nice: i32) -> bool {
    let limit = i64::try_from(task.process().limit(Resource::Nice).soft).unwrap_or(i64::MAX);
    20 - i64::from(nice) <= limit
}

/// sched_setaffinity(tid, size, mask)
pub fn sys_sched_setaffinity(args: &Args) -> Result<i64> {
    let task = named_task(args.int(0))?;
    check_same_user(task.process())?;
    let size = args.size(1).min(8);
    let mut bytes = [0; 8];
    user::read_exact(args[2], &mut bytes[..size])?;
    let allowed = CpuSet(u64::from_le_bytes(bytes) & sched::online().0);
    if allowed.is_empty() {
        return Err(Errno::EINVAL);
    }
    sched::set_affinity(task.thread(), allowed);
    Ok(0)
}

/// sched_getaffinity(tid, size, mask): returns the number of bytes written.
pub fn sys_sched_getaffinity(args: &Args) -> Result<i64> {
    let size = args.size(1);
    let task = named_task(args.int(0))?;
    if size < 8 || !size.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    UserPtr::<u64>::new(args[2]).write(&(task.schedule.affinity().0 & sched::online().0))?;
    Ok(8)
}

const SCHED_DEADLINE: u32 = 6;
/// SCHED_EXT. Every Linux that knows the number reports a range of priorities for it. It is not
/// supported here.
const SCHED_EXT: u32 = 7;
/// SCHED_RESET_ON_FORK, or-ed to a policy.
const RESET_ON_FORK: u32 = 0x4000_0000;
/// The highest real-time priority.
const MOST_PRIORITY: u32 = real_time::MOST_PRIORITY as u32;

/// SCHED_FLAG_*: flags of `struct sched_attr`.
mod flag {
    pub const RESET_ON_FORK: u64 = 1;
    pub const KEEP_POLICY: u64 = 8;
    pub const KEEP_PARAMS: u64 = 16;
    pub const UTIL_CLAMP: u64 = 0x60;
    /// All flags, including those that only SCHED_DEADLINE uses.
    pub const ALL: u64 = 0x7f;
}

/// `struct sched_attr`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SchedAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    util_min: u32,
    util_max: u32,
}

/// Size of the first version of the structure, and of the version with the last two fields.
const SIZE_VER0: usize = 48;
const SIZE_VER1: usize = size_of::<SchedAttributes>();
/// Largest size of a future version.
const SIZE_MOST: usize = 4096;

impl SchedAttributes {
    /// Whether the times are valid for SCHED_DEADLINE (Linux: `__checkparam_dl`): at least 1024 ns,
    /// in order, and each below 2^63.
    fn are_times_valid(&self) -> bool {
        let period = if self.period == 0 { self.deadline } else { self.period };
        let in_order = self.runtime <= self.deadline && self.deadline <= period;
        self.deadline != 0
            && self.runtime >= 1024
            && in_order
            && self.deadline >> 63 == 0
            && period >> 63 == 0
    }
}

/// Scheduling attributes that a call sets.
struct Change {
    /// `None` keeps the policy and the reset-on-fork flag.
    policy: Option<u32>,
    attributes: SchedAttributes,
}

fn is_real_time(policy: u32) -> bool {
    SchedPolicy::new(policy).is_some_and(SchedPolicy::is_real_time)
}

/// Checks that the caller may give `task` this policy (Linux: `user_check_sched_setscheduler`).
fn check_rights(task: &Task, policy: u32, attributes: &SchedAttributes, resets: bool) -> Result<()> {
    if may(Capability::SysNice) {
        return Ok(());
    }
    let (schedule, nice) = (&task.schedule, attributes.nice);
    if is_real_time(policy) {
        let limit = task.process().limit(Resource::RtPriority).soft;
        let is_change = policy != schedule.policy() as u32 && limit == 0;
        let priority = attributes.priority;
        if is_change || priority > schedule.priority().into() && u64::from(priority) > limit {
            return Err(Errno::EPERM);
        }
    }
    let is_fair = matches!(SchedPolicy::new(policy), Some(SchedPolicy::Other | SchedPolicy::Batch));
    let is_gain = is_fair && nice < schedule.nice() && !may_have_nice(task, nice);
    // SCHED_IDLE ranks below all nice values, so leaving it raises the priority.
    let leaves_idle = schedule.policy() == SchedPolicy::Idle
        && policy != SchedPolicy::Idle as u32
        && !may_have_nice(task, schedule.nice());
    if is_gain || leaves_idle || policy == SCHED_DEADLINE || (schedule.resets_on_fork() && !resets) {
        return Err(Errno::EPERM);
    }
    check_same_user(task.process())
}

/// Changes how `task` is scheduled.
fn change(task: &Task, wanted: &Change) -> Result<()> {
    let (schedule, attributes) = (&task.schedule, &wanted.attributes);
    let (policy, resets) = match wanted.policy {
        None => (schedule.policy() as u32, schedule.resets_on_fork()),
        Some(policy) => (policy, attributes.flags & flag::RESET_ON_FORK != 0),
    };
    let known = SchedPolicy::new(policy);
    if known.is_none() && policy != SCHED_DEADLINE {
        return Err(Errno::EINVAL);
    }
    if attributes.flags & !flag::ALL != 0 || attributes.priority > MOST_PRIORITY {
        return Err(Errno::EINVAL);
    }
    if policy == SCHED_DEADLINE && !attributes.are_times_valid() {
        return Err(Errno::EINVAL);
    }
    if is_real_time(policy) != (attributes.priority != 0) {
        return Err(Errno::EINVAL);
    }
    check_rights(task, policy, attributes, resets)?;
    if attributes.flags & flag::UTIL_CLAMP != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let Some(policy) = known else { return Err(Errno::EBUSY) };
    // KEEP_PARAMS also keeps the policy.
    if attributes.flags & flag::KEEP_PARAMS == 0 {
        let keeps_nice = policy == SchedPolicy::Idle || policy.is_real_time();
        let nice = if keeps_nice { schedule.nice() } else { attributes.nice };
        sched::set_policy(task.thread(), policy, nice, attributes.priority as u8);
        task.rank_anew();
    }
    schedule.set_on_fork(if resets { OnFork::Reset } else { OnFork::Inherit });
    Ok(())
}

/// Implements the calls that are older than sched_setattr(2). They set a policy and a priority. The
/// nice value does not change.
fn change_plainly(args: &Args, policy: Option<u32>, parameters: u64) -> Result<i64> {
    if parameters == 0 || args.int(0) < 0 {
        return Err(Errno::EINVAL);
    }
    let priority = UserPtr::<u32>::new(parameters).read()?;
    let task = named_task(args.int(0))?;
    let resets = policy.is_some_and(|policy| policy & RESET_ON_FORK != 0);
    let flags = if resets { flag::RESET_ON_FORK } else { 0 };
    let attributes =
        SchedAttributes { flags, nice: task.schedule.nice(), priority, ..SchedAttributes::default() };
    change(&task, &Change { policy: policy.map(|policy| policy & !RESET_ON_FORK), attributes })?;
    Ok(0)
}

/// sched_setscheduler(tid, policy, parameters)
pub fn sys_sched_setscheduler(args: &Args) -> Result<i64> {
    if args.int(1) < 0 {
        return Err(Errno::EINVAL);
    }
    change_plainly(args, Some(args.uint(1)), args[2])
}

/// sched_setparam(tid, parameters)
pub fn sys_sched_setparam(args: &Args) -> Result<i64> {
    change_plainly(args, None, args[1])
}

/// Returns the named task; `None` for a process whose threads have ended, and whose parent has not
/// waited for it. That counts as one with the usual policy.
fn unless_ended(tid: i32) -> Result<Option<Arc<Task>>> {
    match named_task(tid) {
        Err(Errno::ESRCH) => named_process(tid).map(|_| None),
        named => named.map(Some),
    }
}

/// sched_getscheduler(tid)
pub fn sys_sched_getscheduler(args: &Args) -> Result<i64> {
    let Some(task) = unless_ended(args.int(0))? else { return Ok(SchedPolicy::Other as i64) };
    let resets = if task.schedule.resets_on_fork() { RESET_ON_FORK } else { 0 };
    Ok(i64::from(task.schedule.policy() as u32 | resets))
}

/// sched_getparam(tid, parameters): reports the real-time priority, 0 for none.
pub fn sys_sched_getparam(args: &Args) -> Result<i64> {
    if args[1] == 0 {
        return Err(Errno::EINVAL);
    }
    let task = unless_ended(args.int(0))?;
    UserPtr::<i32>::new(args[1]).write(&task.map_or(0, |task| task.schedule.priority().into()))?;
    Ok(0)
}

/// Reads the program's `struct sched_attr` at `address`, of any version. If it is larger than this
/// kernel's, the unknown part must be 0. Otherwise the call is `E2BIG`, and the program gets the
/// known size.
fn read_attributes(address: u64) -> Result<SchedAttributes> {
    let size = match UserPtr::<u32>::new(address).read()? as usize {
        0 => SIZE_VER0,
        size => size,
    };
    let refuse = || {
        UserPtr::<u32>::new(address).write(&(SIZE_VER1 as u32))?;
        Err(Errno::E2BIG)
    };
    if !(SIZE_VER0..=SIZE_MOST).contains(&size) {
        return refuse();
    }
    let known = size.min(SIZE_VER1);
    let mut bytes = [0; SIZE_VER1];
    user::read_exact(address, &mut bytes[..known])?;
    let rest = user::read_vec(address.wrapping_add(known as u64), size - known)?;
    if rest.iter().any(|&byte| byte != 0) {
        return refuse();
    }
    let attributes = SchedAttributes::read_from_bytes(&bytes).map_err(|_| Errno::EINVAL)?;
    if attributes.flags & flag::UTIL_CLAMP != 0 && size < SIZE_VER1 {
        return Err(Errno::EINVAL);
    }
    Ok(SchedAttributes { nice: attributes.nice.clamp(-20, 19), ..attributes })
}

/// sched_setattr(tid, attributes, flags)
pub fn sys_sched_setattr(args: &Args) -> Result<i64> {
    if args[1] == 0 || args.int(0) < 0 || args.uint(2) != 0 {
        return Err(Errno::EINVAL);
    }
    let mut attributes = read_attributes(args[1])?;
    if (attributes.policy as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let task = named_task(args.int(0))?;
    let keeps = |what: u64| attributes.flags & what != 0;
    let policy = if keeps(flag::KEEP_POLICY) { None } else { Some(attributes.policy) };
    if keeps(flag::KEEP_PARAMS) {
        attributes.nice = task.schedule.nice();
        attributes.priority = task.schedule.priority().into();
    }
    change(&task, &Change { policy, attributes })?;
    Ok(0)
}

/// sched_getattr(tid, attributes, size, flags)
pub fn sys_sched_getattr(args: &Args) -> Result<i64> {
    let size = args.uint(2) as usize;
    if args[1] == 0 || args.int(0) < 0 || !(SIZE_VER0..=SIZE_MOST).contains(&size) || args.uint(3) != 0 {
        return Err(Errno::EINVAL);
    }
    let task = named_task(args.int(0))?;
    let known = size.min(SIZE_VER1);
    let attributes = SchedAttributes {
        size: known as u32,
        policy: task.schedule.policy() as u32,
        flags: if task.schedule.resets_on_fork() { flag::RESET_ON_FORK } else { 0 },
        nice: if task.schedule.policy().is_real_time() { 0 } else { task.schedule.nice() },
        priority: task.schedule.priority().into(),
        ..SchedAttributes::default()
    };
    user::write_exact(args[1], &attributes.as_bytes()[..known])?;
    let rest = user::zeroed::<u8>(size - known)?;
    user::write_exact(args[1].wrapping_add(known as u64), &rest)?;
    Ok(0)
}

/// sched_get_priority_max(policy)
pub fn sys_sched_get_priority_max(args: &Args) -> Result<i64> {
    priority_bound(args.uint(0), MOST_PRIORITY)
}

/// sched_get_priority_min(policy)
pub fn sys_sched_get_priority_min(args: &Args) -> Result<i64> {
    priority_bound(args.uint(0), 1)
}

/// Returns `of_real_time` for policies with priorities, and 0 for other valid policies.
fn priority_bound(policy: u32, of_real_time: u32) -> Result<i64> {
    match policy {
        policy if is_real_time(policy) => Ok(i64::from(of_real_time)),
        SCHED_DEADLINE | SCHED_EXT => Ok(0),
        policy => SchedPolicy::new(policy).map(|_| 0).ok_or(Errno::EINVAL),
    }
}

/// sched_rr_get_interval(tid, time)
pub fn sys_sched_rr_get_interval(args: &Args) -> Result<i64> {
    let slice = match named_task(args.int(0))?.schedule.policy() {
        SchedPolicy::Fifo => 0,
        SchedPolicy::RoundRobin => real_time::TURN,
        _ => sched::runqueue::SLICE,
    };
    UserPtr::new(args[1]).write(&TimeSpec::from_nanoseconds(slice))?;
    Ok(0)
}

/// PRIO_PROCESS.
const PRIO_PROCESS: i32 = 0;

/// getpriority(which, who): returns 20 minus the lowest nice value.
pub fn sys_getpriority(args: &Args) -> Result<i64> {
    let mut nice = i32::MAX;
    for_each_thread(Among::new(args.int(0), PRIO_PROCESS)?, args.uint(1), |task| {
        nice = nice.min(task.schedule.nice());
        Ok(())
    })?;
    Ok(i64::from(20 - nice))
}

/// setpriority(which, who, nice)
pub fn sys_setpriority(args: &Args) -> Result<i64> {
    let nice = args.int(2).clamp(-20, 19);
    let privileged = may(Capability::SysNice);
    let mut outcome = Ok(0);
    // If one of the threads may not be changed, the others are changed nevertheless.
    for_each_thread(Among::new(args.int(0), PRIO_PROCESS)?, args.uint(1), |task| {
        if let Err(error) = check_same_user(task.process()) {
            outcome = Err(error);
        } else if nice < task.schedule.nice() && !may_have_nice(task, nice) && !privileged {
            outcome = Err(Errno::EACCES);
        } else {
            sched::set_nice(task.thread(), nice);
        }
        Ok(())
    })?;
    outcome
}
