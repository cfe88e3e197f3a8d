//! Device control of /dev/random and /dev/urandom (random(4)).
//!
//! The generator is seeded before the first program runs, and always full after that. Bytes that a
//! program adds are read and checked, and not mixed in: they are not more random than its state.

use crate::task::{self, Capability};
use crate::user::{self, UserPtr};
use crate::{Errno, Result, sched};

/// Bits of the generator's state.
const FULL: i32 = 256;

/// The requests (linux/random.h).
mod request {
    pub const GET_COUNT: u32 = 0x8004_5200;
    pub const ADD_TO_COUNT: u32 = 0x4004_5201;
    pub const ADD_ENTROPY: u32 = 0x4008_5203;
    pub const ZAP_COUNT: u32 = 0x5204;
    pub const CLEAR_POOL: u32 = 0x5206;
    pub const RESEED: u32 = 0x5207;
}

/// Handles a request.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN for all but RNDGETENTCNT; `EINVAL` for a negative count, and for
/// other requests, as on Linux; `EFAULT`.
pub(super) fn control(request: u32, argument: u64) -> Result<i64> {
    match request {
        request::GET_COUNT => UserPtr::new(argument).write(&FULL)?,
        request::ADD_TO_COUNT
        | request::ADD_ENTROPY
        | request::ZAP_COUNT
        | request::CLEAR_POOL
        | request::RESEED
            if !task::may(Capability::SysAdmin) =>
        {
            return Err(Errno::EPERM);
        }
        request::ADD_TO_COUNT => check_count(UserPtr::new(argument).read()?)?,
        request::ADD_ENTROPY => add(argument)?,
        request::ZAP_COUNT | request::CLEAR_POOL | request::RESEED => {}
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

fn check_count(bits: i32) -> Result<()> {
    if bits < 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Reads struct rand_pool_info and its bytes.
fn add(argument: u64) -> Result<()> {
    let [bits, bytes]: [i32; 2] = UserPtr::new(argument).read()?;
    check_count(bits)?;
    let mut left = usize::try_from(bytes).map_err(|_| Errno::EFAULT)?;
    let mut at = argument + size_of::<[i32; 2]>() as u64;
    let mut part = [0u8; 64];
    while left > 0 {
        let count = left.min(part.len());
        user::read_exact(at, &mut part[..count])?;
        sched::checkpoint()?;
        (left, at) = (left - count, at + count as u64);
    }
    Ok(())
}
