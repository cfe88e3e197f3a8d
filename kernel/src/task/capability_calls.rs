//! capget and capset, and the prctl options about capabilities.

use super::Capability;
use super::capabilities::{ALL, Capabilities, Presence, SecureBits};
use crate::syscall::Args;
use crate::user::UserPtr;
use crate::{Errno, Result};

/// The versions of `struct __user_cap_header_struct`, with the number of words per set.
const VERSIONS: [(u32, usize); 3] = [(0x1998_0330, 1), (0x2007_1026, 2), (0x2008_0522, 2)];

fn header(header: UserPtr<u32>) -> Result<(usize, i32)> {
    let version = header.read()?;
    let pid = header.add(1).read()? as i32;
    match VERSIONS.iter().find(|known| known.0 == version) {
        Some(&(_, words)) => Ok((words, pid)),
        None => {
            header.write(&VERSIONS[2].0)?;
            Err(Errno::EINVAL)
        }
    }
}

/// capget(header, data)
pub fn sys_capget(args: &Args) -> Result<i64> {
    let (words, pid) = match header(UserPtr::new(args[0])) {
        Err(Errno::EINVAL) if args[1] == 0 => return Ok(0),
        other => other?,
    };
    if pid < 0 {
        return Err(Errno::EINVAL);
    }
    let process = super::ids::named(pid)?;
    if args[1] == 0 {
        return Ok(0);
    }
    let sets = process.credentials().capabilities;
    for word in 0..words {
        let part = |set: u64| (set >> (32 * word)) as u32;
        let shown = [part(sets.effective), part(sets.permitted), part(sets.inheritable)];
        UserPtr::<[u32; 3]>::new(args[1]).add(word).write(&shown)?;
    }
    Ok(0)
}

/// capset(header, data)
pub fn sys_capset(args: &Args) -> Result<i64> {
    let (words, pid) = header(UserPtr::new(args[0]))?;
    let process = super::current().process().clone();
    if pid != 0 && u32::try_from(pid) != Ok(process.number()) {
        return Err(Errno::EPERM);
    }
    let mut new = Capabilities::NONE;
    for word in 0..words {
        let [effective, permitted, inheritable] = UserPtr::<[u32; 3]>::new(args[1]).add(word).read()?;
        let part = |set: u32| u64::from(set) << (32 * word) & ALL;
        new.effective |= part(effective);
        new.permitted |= part(permitted);
        new.inheritable |= part(inheritable);
    }
    process.change_credentials(|own| {
        own.capabilities = own.capabilities.ask(new)?;
        Ok(())
    })?;
    Ok(0)
}

/// The options of prctl that are about capabilities, and those of PR_CAP_AMBIENT.
pub(super) mod option {
    pub const GET_KEEPCAPS: i32 = 7;
    pub const SET_KEEPCAPS: i32 = 8;
    pub const CAPBSET_READ: i32 = 23;
    pub const CAPBSET_DROP: i32 = 24;
    pub const GET_SECUREBITS: i32 = 27;
    pub const SET_SECUREBITS: i32 = 28;
    pub const CAP_AMBIENT: i32 = 47;
    pub const AMBIENT_IS_SET: u64 = 1;
    pub const AMBIENT_RAISE: u64 = 2;
    pub const AMBIENT_LOWER: u64 = 3;
    pub const AMBIENT_CLEAR_ALL: u64 = 4;
}

/// Returns the number of a capability.
///
/// # Errors
/// `EINVAL` for a capability that does not exist.
fn number(argument: u64) -> Result<u32> {
    u32::try_from(argument).ok().filter(|&number| number < ALL.count_ones()).ok_or(Errno::EINVAL)
}

/// prctl(option, ...) for one of [`option`].
///
/// # Errors
/// As in the manual.
pub(super) fn prctl_sets(args: &Args) -> Result<i64> {
    use option::*;
    let process = super::current().process().clone();
    let sets = process.credentials().capabilities;
    match args.int(0) {
        GET_KEEPCAPS => Ok(sets.secure.has(SecureBits::KEEP_CAPS).into()),
        GET_SECUREBITS => Ok(sets.secure.0.into()),
        CAPBSET_READ => Ok((sets.bounding >> number(args[1])? & 1) as i64),
        CAP_AMBIENT if args[1] == AMBIENT_IS_SET => Ok((sets.ambient >> ambient_number(args)? & 1) as i64),
        _ => {
            process.change_credentials(|own| {
                own.capabilities = changed(own.capabilities, args)?;
                Ok(())
            })?;
            Ok(0)
        }
    }
}

/// Returns the sets after an option that changes them.
fn changed(sets: Capabilities, args: &Args) -> Result<Capabilities> {
    use option::*;
    Ok(match args.int(0) {
        SET_KEEPCAPS if args[1] > 1 => return Err(Errno::EINVAL),
        SET_KEEPCAPS if sets.secure.locks(SecureBits::KEEP_CAPS) => return Err(Errno::EPERM),
        SET_KEEPCAPS => {
            let there = if args[1] == 1 { Presence::Set } else { Presence::Clear };
            Capabilities { secure: sets.secure.with(SecureBits::KEEP_CAPS, there), ..sets }
        }
        CAP_AMBIENT => ambient(sets, args)?,
        // The other operations need CAP_SETPCAP.
        _ if !sets.has(Capability::SetPcap) => return Err(Errno::EPERM),
        CAPBSET_DROP => Capabilities { bounding: sets.bounding & !(1 << number(args[1])?), ..sets },
        SET_SECUREBITS => {
            let asked = u32::try_from(args[1]).map_err(|_| Errno::EPERM)?;
            Capabilities { secure: sets.secure.change(SecureBits(asked))?, ..sets }
        }
        _ => return Err(Errno::EINVAL),
    })
}

/// Returns the capability that PR_CAP_AMBIENT names.
fn ambient_number(args: &Args) -> Result<u32> {
    if args[3] | args[4] != 0 { Err(Errno::EINVAL) } else { number(args[2]) }
}

/// Returns the sets after a PR_CAP_AMBIENT operation that changes them.
fn ambient(sets: Capabilities, args: &Args) -> Result<Capabilities> {
    use option::*;
    match args[1] {
        AMBIENT_CLEAR_ALL if args[2] | args[3] | args[4] == 0 => Ok(Capabilities { ambient: 0, ..sets }),
        AMBIENT_RAISE => sets.raise_ambient(ambient_number(args)?),
        AMBIENT_LOWER => Ok(Capabilities { ambient: sets.ambient & !(1 << ambient_number(args)?), ..sets }),
        _ => Err(Errno::EINVAL),
    }
}
