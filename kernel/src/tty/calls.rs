//! vhangup.

use super::job;
use crate::syscall::Args;
use crate::task::capabilities::Capability;
use crate::{Errno, Result, task};

/// vhangup()
///
/// Hangs up the controlling terminal of the caller's session. Without one it has no effect.
///
/// # Errors
/// `EPERM` without CAP_SYS_TTY_CONFIG.
pub fn sys_vhangup(_args: &Args) -> Result<i64> {
    if !task::may(Capability::SysTtyConfig) {
        return Err(Errno::EPERM);
    }
    if let Some(terminal) = job::controlling() {
        terminal.hang_up();
    }
    Ok(0)
}
