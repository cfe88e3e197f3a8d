//! uname, sethostname, setdomainname.

use zerocopy::{Immutable, IntoBytes};

use crate::syscall::Args;
use crate::task::Capability;
use crate::task::personality::{UNAME26, has, is_linux32};
use crate::task::uts::{MACHINE, MACHINE_32, NAME_MAX, Name, RELEASE, RELEASE_26, SYSTEM, VERSION, field};
use crate::user::{self, UserPtr};
use crate::{Errno, Result, task};

/// `struct new_utsname`.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct UtsName {
    system: [u8; NAME_MAX + 1],
    host: [u8; NAME_MAX + 1],
    release: [u8; NAME_MAX + 1],
    version: [u8; NAME_MAX + 1],
    machine: [u8; NAME_MAX + 1],
    domain: [u8; NAME_MAX + 1],
}

/// The names that programs without a personality see, except those that can be set.
const PLAIN: UtsName = UtsName {
    system: field(SYSTEM),
    host: field(""),
    release: field(RELEASE),
    version: field(VERSION),
    machine: field(MACHINE),
    domain: field(""),
};

/// uname(buffer)
pub fn sys_uname(args: &Args) -> Result<i64> {
    let mut names = PLAIN;
    task::current().process().namespaces().uts.look(|set| {
        names.host = set.host;
        names.domain = set.domain;
    });
    if has(UNAME26) {
        names.release = const { field(RELEASE_26) };
    }
    if is_linux32() {
        names.machine = const { field(MACHINE_32) };
    }
    UserPtr::new(args[0]).write(&names).map(|()| 0)
}

fn set_from_user(which: Name, args: &Args) -> Result<i64> {
    let uts = task::current().process().namespaces().uts.clone();
    if !task::may_in(uts.head().owner(), Capability::SysAdmin) {
        return Err(Errno::EPERM);
    }
    let length = args.size(1);
    let mut name = [0; NAME_MAX];
    let name = name.get_mut(..length).ok_or(Errno::EINVAL)?;
    user::read_exact(args[0], name)?;
    uts.set_name(which, name).map(|()| 0)
}

/// sethostname(name, length)
pub fn sys_sethostname(args: &Args) -> Result<i64> {
    set_from_user(Name::Host, args)
}

/// setdomainname(name, length)
pub fn sys_setdomainname(args: &Args) -> Result<i64> {
    set_from_user(Name::Domain, args)
}
