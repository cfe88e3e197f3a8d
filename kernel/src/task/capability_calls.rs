//! capget and capset.

use super::capabilities::{ALL, Capabilities};
use super::credentials::Credentials;
use crate::syscall::Args;
use crate::user::UserPtr;
use crate::{Errno, Result};

/// `struct __user_cap_header_struct`: its versions, with the words of their sets.
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
    if pid != 0 && pid.unsigned_abs() != process.number() {
        return Err(Errno::EPERM);
    }
    let mut new = Capabilities { effective: 0, permitted: 0, inheritable: 0 };
    for word in 0..words {
        let [effective, permitted, inheritable] = UserPtr::<[u32; 3]>::new(args[1]).add(word).read()?;
        let part = |set: u32| u64::from(set) << (32 * word) & ALL;
        new.effective |= part(effective);
        new.permitted |= part(permitted);
        new.inheritable |= part(inheritable);
    }
    let mut credentials = Credentials::clone(&process.credentials());
    credentials.capabilities = credentials.capabilities.ask(new)?;
    process.change_credentials(credentials);
    Ok(0)
}
