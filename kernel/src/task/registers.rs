//! arch_prctl: the thread pointer registers.

use crate::hw::user::UserContext;
use crate::syscall::Args;
use crate::user::UserPtr;
use crate::{Errno, Result};

/// arch_prctl(option, address)
pub fn sys_arch_prctl(context: &mut UserContext, args: &Args) -> Result<i64> {
    const SET_GS: i32 = 0x1001;
    const SET_FS: i32 = 0x1002;
    const GET_FS: i32 = 0x1003;
    const GET_GS: i32 = 0x1004;
    const GET_CPUID: i32 = 0x1011;
    const SET_CPUID: i32 = 0x1012;
    match args.int(0) {
        SET_FS => context.set_fs_base(args[1]).map_err(|_| Errno::EPERM)?,
        SET_GS => context.set_gs_base(args[1]).map_err(|_| Errno::EPERM)?,
        GET_FS => UserPtr::<u64>::new(args[1]).write(&context.fs_base())?,
        GET_GS => UserPtr::<u64>::new(args[1]).write(&context.gs_base())?,
        // Programs may always execute CPUID: no fault can be enabled for it.
        GET_CPUID => return Ok(1),
        SET_CPUID => return Err(Errno::ENODEV),
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
