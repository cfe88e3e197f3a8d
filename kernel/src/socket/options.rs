//! What can be set on a socket, and asked of it.

use linux_raw_sys::net as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::channel::BUFFER_BYTES;
use super::unix::{SocketKind, UnixSocket};
use crate::task::Capability;
use crate::time::TimeVal;
use crate::user::{self, UserPtr};
use crate::{Errno, Result, task, time};

/// `struct ucred`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Credentials {
    /// Process.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Credentials {
    /// Nobody's: what a socket without peer shows.
    pub const NOBODY: Self = Self { pid: 0, uid: u32::MAX, gid: u32::MAX };

    /// The caller's.
    pub fn current() -> Self {
        let Some(task) = task::try_current() else { return Self::default() };
        let credentials = task.process().credentials();
        Self { pid: task.process().pid, uid: credentials.euid, gid: credentials.egid }
    }

    /// Whether the caller may send them as its own: each is one of its own, or it has the
    /// capability to take it (Linux: `scm_check_creds`).
    pub fn may_be_claimed(&self) -> bool {
        task::with_current(|task| {
            let (process, own) = (task.process(), task.process().credentials());
            (self.pid == process.pid || own.may(Capability::SysAdmin))
                && ([own.uid, own.euid, own.suid].contains(&self.uid) || own.may(Capability::SetUid))
                && ([own.gid, own.egid, own.sgid].contains(&self.gid) || own.may(Capability::SetGid))
        })
    }
}

/// What setsockopt has set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// SO_RCVTIMEO in nanoseconds.
    pub receive_timeout: Option<u64>,
    /// SO_SNDTIMEO in nanoseconds.
    pub send_timeout: Option<u64>,
    /// SO_PASSCRED: nonzero where messages bring their sender's credentials.
    pub pass_credentials: i32,
}

/// The deadline of a call that begins now.
pub fn deadline(timeout: Option<u64>) -> Option<u64> {
    timeout.map(|timeout| time::now().saturating_add(timeout))
}

fn timeout(value: u64, length: usize) -> Result<Option<u64>> {
    if length < size_of::<TimeVal>() {
        return Err(Errno::EINVAL);
    }
    let timeout = UserPtr::<TimeVal>::new(value).read()?.nanoseconds()?;
    Ok((timeout != 0).then_some(timeout))
}

/// Options that have no effect between processes of one machine, and are taken as Linux takes them.
const WITHOUT_EFFECT: [u32; 12] = [
    c::SO_DEBUG,
    c::SO_REUSEADDR,
    c::SO_DONTROUTE,
    c::SO_BROADCAST,
    c::SO_SNDBUF,
    c::SO_RCVBUF,
    c::SO_KEEPALIVE,
    c::SO_OOBINLINE,
    c::SO_PRIORITY,
    c::SO_LINGER,
    c::SO_SNDBUFFORCE,
    c::SO_RCVBUFFORCE,
];

impl UnixSocket {
    /// setsockopt(2).
    ///
    /// # Errors
    /// `ENOPROTOOPT`, `EINVAL`, `EFAULT`.
    pub fn set_option(&self, level: u32, name: u32, value: u64, length: usize) -> Result<()> {
        if level != c::SOL_SOCKET {
            return Err(Errno::ENOPROTOOPT);
        }
        match name {
            c::SO_RCVTIMEO => self.options.lock().receive_timeout = timeout(value, length)?,
            c::SO_SNDTIMEO => self.options.lock().send_timeout = timeout(value, length)?,
            _ if length < size_of::<i32>() => return Err(Errno::EINVAL),
            c::SO_PASSCRED => {
                let wanted = UserPtr::<i32>::new(value).read()?;
                self.options.lock().pass_credentials = i32::from(wanted != 0);
            }
            _ if WITHOUT_EFFECT.contains(&name) => {
                UserPtr::<i32>::new(value).read()?;
            }
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(())
    }

    /// getsockopt(2).
    ///
    /// # Errors
    /// `ENOPROTOOPT`, `EINVAL`, `EFAULT`.
    pub fn option(&self, level: u32, name: u32, value: u64, length: UserPtr<i32>) -> Result<()> {
        let room = usize::try_from(length.read()?).map_err(|_| Errno::EINVAL)?;
        if level != c::SOL_SOCKET {
            return Err(Errno::EOPNOTSUPP);
        }
        let put = |bytes: &[u8]| {
            let count = room.min(bytes.len());
            user::write_exact(value, &bytes[..count])?;
            length.write(&(count as i32))
        };
        let options = *self.options.lock();
        let number = match name {
            c::SO_TYPE => self.kind() as i32,
            c::SO_DOMAIN => c::AF_UNIX as i32,
            c::SO_SNDBUF | c::SO_RCVBUF => BUFFER_BYTES as i32,
            c::SO_ACCEPTCONN => i32::from(self.is_listening()),
            c::SO_PASSCRED => options.pass_credentials,
            c::SO_PEERCRED => {
                if room < size_of::<Credentials>() && self.kind() != SocketKind::Datagram {
                    return Err(Errno::EINVAL);
                }
                return put(self.peer_credentials().as_bytes());
            }
            c::SO_RCVTIMEO | c::SO_SNDTIMEO => {
                let timeout =
                    if name == c::SO_RCVTIMEO { options.receive_timeout } else { options.send_timeout };
                return put(TimeVal::from_nanoseconds(timeout.unwrap_or(0)).as_bytes());
            }
            c::SO_ERROR | c::SO_PROTOCOL => 0,
            _ if WITHOUT_EFFECT.contains(&name) => 0,
            _ => return Err(Errno::ENOPROTOOPT),
        };
        put(number.as_bytes())
    }
}
