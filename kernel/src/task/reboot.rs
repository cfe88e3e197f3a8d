//! reboot(2). In the initial PID namespace the machine ends, as if its program had exited with 0.
//! In any other the namespace's first process ends by a signal (Linux: `reboot_pid_ns`). There is
//! no key for a restart, so the setting of that key has no effect but that it can be read.

use core::sync::atomic::{AtomicU32, Ordering};

use super::signal::{Signal, end_group};
use super::{Capability, ExitStatus, current, may_in, registry};
use crate::syscall::Args;
use crate::user::UserPtr;
use crate::{Errno, Result};

const MAGIC1: u32 = 0xfee1_dead;
const MAGIC2: [u32; 4] = [672_274_793, 85_072_278, 369_367_448, 537_993_216];

/// LINUX_REBOOT_CMD_*.
mod command {
    pub const RESTART: u32 = 0x0123_4567;
    pub const RESTART2: u32 = 0xa1b2_c3d4;
    pub const HALT: u32 = 0xcdef_0123;
    pub const POWER_OFF: u32 = 0x4321_fedc;
    pub const CAD_ON: u32 = 0x89ab_cdef;
    pub const CAD_OFF: u32 = 0;
}

/// kernel.ctrl-alt-del: 1 if the key restarts the machine, 0 if it signals the first process.
pub static KEY_RESTARTS: AtomicU32 = AtomicU32::new(1);

/// reboot(magic1, magic2, command, text)
///
/// # Errors
/// `EPERM` without CAP_SYS_BOOT, `EINVAL` for other numbers, `EFAULT`.
pub fn sys_reboot(args: &Args) -> Result<i64> {
    use command::*;
    let task = current();
    let namespace = task.process().pid_ns();
    if !may_in(&namespace.owner(), Capability::SysBoot) {
        return Err(Errno::EPERM);
    }
    if args.uint(0) != MAGIC1 || !MAGIC2.contains(&args.uint(1)) {
        return Err(Errno::EINVAL);
    }
    if !namespace.is_initial() {
        let signal = match args.uint(2) {
            RESTART | RESTART2 => Signal::HUP,
            HALT | POWER_OFF => Signal::INT,
            _ => return Err(Errno::EINVAL),
        };
        if let Some(first) = registry::find(namespace.init()) {
            end_group(&mut first.signals.lock(), ExitStatus::Signaled(signal));
        }
        task.finish(0);
        return Ok(0);
    }
    match args.uint(2) {
        CAD_ON => KEY_RESTARTS.store(1, Ordering::Relaxed),
        CAD_OFF => KEY_RESTARTS.store(0, Ordering::Relaxed),
        RESTART | RESTART2 | HALT | POWER_OFF => {
            if args.uint(2) == RESTART2 {
                UserPtr::<u8>::new(args[3]).read()?;
            }
            for process in registry::processes().filter(|process| process.pid > super::INIT) {
                end_group(&mut process.signals.lock(), ExitStatus::Exited(0));
            }
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
