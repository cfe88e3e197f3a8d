//! Small system calls about tasks.

use crate::Result;
use crate::sched;
use crate::syscall::Args;

/// sched_yield()
pub fn sys_sched_yield(_args: &Args) -> Result<i64> {
    sched::yield_now();
    Ok(0)
}
