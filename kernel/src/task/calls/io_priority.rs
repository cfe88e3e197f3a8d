//! ioprio_set and ioprio_get.
//!
//! A priority is stored and inherited as on Linux ([`crate::task::io_context`]), but it has no
//! effect. A disk's requests are served in the order of arrival, as with Linux' scheduler "none".

use super::{Among, for_each_thread};
use crate::sched::SchedPolicy;
use crate::syscall::Args;
use crate::task::{Capability, Task, current, may};
use crate::{Errno, Result};

/// IOPRIO_WHO_PROCESS.
const WHO_PROCESS: i32 = 1;

/// The class is above these bits. The level is in the three lowest bits, and a hint between them.
const CLASS_SHIFT: u16 = 13;
const LEVELS: u16 = 8;

const CLASS_NONE: u16 = 0;
const CLASS_RT: u16 = 1;
const CLASS_BE: u16 = 2;
const CLASS_IDLE: u16 = 3;

const fn class(priority: u16) -> u16 {
    priority >> CLASS_SHIFT
}

/// Checks a priority: `EPERM` for the real-time class without rights, `EINVAL` for an unknown
/// class.
fn check(priority: u16) -> Result<()> {
    match class(priority) {
        CLASS_RT if !may(Capability::SysAdmin) && !may(Capability::SysNice) => Err(Errno::EPERM),
        CLASS_RT | CLASS_BE | CLASS_IDLE => Ok(()),
        CLASS_NONE if priority.is_multiple_of(LEVELS) => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// ioprio_set(which, who, priority)
pub fn sys_ioprio_set(args: &Args) -> Result<i64> {
    // Truncated to an unsigned short, the type that Linux uses.
    let priority = args[2] as u16;
    check(priority)?;
    let own = current().process().credentials();
    for_each_thread(Among::new(args.int(0), WHO_PROCESS)?, args.uint(1), |task| {
        let uid = task.process().uid();
        if uid != own.euid && uid != own.uid && !own.may(Capability::SysNice) {
            return Err(Errno::EPERM);
        }
        task.io_context.set_priority(priority);
        Ok(())
    })?;
    Ok(0)
}

/// Returns the I/O priority that applies to a thread's requests. A thread without a class gets one
/// from its nice value (Linux: `__get_task_ioprio`).
fn effective(task: &Task) -> u16 {
    match task.io_context.priority() {
        None => 0,
        Some(priority) if class(priority) == CLASS_NONE => {
            let schedule = &task.schedule;
            let class = if schedule.policy() == SchedPolicy::Idle { CLASS_IDLE } else { CLASS_BE };
            class << CLASS_SHIFT | ((schedule.nice() + 20) / 5) as u16
        }
        Some(priority) => priority,
    }
}

/// ioprio_get(which, who): returns the best priority of several threads.
pub fn sys_ioprio_get(args: &Args) -> Result<i64> {
    let among = Among::new(args.int(0), WHO_PROCESS)?;
    let mut best = None;
    for_each_thread(among, args.uint(1), |task| {
        let priority = match among {
            Among::Thread => task.io_context.priority().unwrap_or_default(),
            Among::Group | Among::User => effective(task),
        };
        best = Some(best.map_or(priority, |best: u16| best.min(priority)));
        Ok(())
    })?;
    best.map(i64::from).ok_or(Errno::ESRCH)
}
