//! What the system calls itself: uname(2), the host name, the version.

use alloc::vec::Vec;

use zerocopy::{Immutable, IntoBytes};

use crate::sync::SpinLock;
use crate::syscall::Args;
use crate::user::{self, UserPtr};
use crate::{Errno, Result, task};

/// The name that programs know this system-call interface by.
pub const SYSTEM: &str = "Linux";
/// The Linux release whose interface this is, and who provides it.
pub const RELEASE: &str = "6.1.0-freehold";
/// The build.
pub const VERSION: &str = concat!("#1 SMP Freehold ", env!("CARGO_PKG_VERSION"));
/// The instruction set.
pub const MACHINE: &str = "x86_64";

/// Longest host or domain name.
const NAME_MAX: usize = 64;

struct Names {
    host: [u8; NAME_MAX + 1],
    domain: [u8; NAME_MAX + 1],
}

const fn field(text: &str) -> [u8; NAME_MAX + 1] {
    let mut field = [0; NAME_MAX + 1];
    let mut at = 0;
    while at < text.len() {
        field[at] = text.as_bytes()[at];
        at += 1;
    }
    field
}

static NAMES: SpinLock<Names> = SpinLock::new(Names { host: field("freehold"), domain: field("(none)") });

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

/// One of the names that can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name {
    /// The host's.
    Host,
    /// The NIS domain's.
    Domain,
}

/// A name's bytes.
pub fn name(which: Name) -> Vec<u8> {
    let names = NAMES.lock();
    let field = if which == Name::Host { &names.host } else { &names.domain };
    field.iter().copied().take_while(|&byte| byte != 0).collect()
}

/// Set a name: `EINVAL` for one of more than 64 bytes.
pub fn set_name(which: Name, name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Errno::EINVAL);
    }
    let mut new = [0; NAME_MAX + 1];
    new[..name.len()].copy_from_slice(name);
    let mut names = NAMES.lock();
    match which {
        Name::Host => names.host = new,
        Name::Domain => names.domain = new,
    }
    Ok(())
}

/// uname(buffer)
pub fn sys_uname(args: &Args) -> Result<i64> {
    const FIXED: [[u8; NAME_MAX + 1]; 4] = [field(SYSTEM), field(RELEASE), field(VERSION), field(MACHINE)];
    let [system, release, version, machine] = FIXED;
    let names = {
        let names = NAMES.lock();
        UtsName { system, host: names.host, release, version, machine, domain: names.domain }
    };
    UserPtr::new(args[0]).write(&names).map(|()| 0)
}

fn set_from_user(which: Name, args: &Args) -> Result<i64> {
    if !task::current().process().credentials().is_privileged() {
        return Err(Errno::EPERM);
    }
    if args.size(1) > NAME_MAX {
        return Err(Errno::EINVAL);
    }
    set_name(which, &user::read_vec(args[0], args.size(1))?).map(|()| 0)
}

/// sethostname(name, length)
pub fn sys_sethostname(args: &Args) -> Result<i64> {
    set_from_user(Name::Host, args)
}

/// setdomainname(name, length)
pub fn sys_setdomainname(args: &Args) -> Result<i64> {
    set_from_user(Name::Domain, args)
}
