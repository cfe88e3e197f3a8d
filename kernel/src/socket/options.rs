//! Options of a socket: setting and reading them.

use linux_raw_sys::net as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::beside::{self, OptionRoom, Told};
use super::endpoint::{Socket, SocketKind};
use super::family::Family;
use super::memory::{BufferSizes, Ceiling, QueueEnd};
use super::message::PassCredentials;
use super::netlink;
use super::remembered::{Remembered, TCP};
use crate::task::registry;
use crate::task::userns::{IdKind, OVERFLOW_ID};
use crate::task::{Capability, Process};
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
    /// The credentials that a socket without a peer reports.
    pub const NOBODY: Self = Self { pid: 0, uid: u32::MAX, gid: u32::MAX };

    /// Returns the caller's credentials.
    pub fn current() -> Self {
        let of = |process: &Process| {
            let (uid, gid) = process.effective_ids();
            Self { pid: process.pid, uid, gid }
        };
        task::try_with_current(|task| of(task.process())).unwrap_or_default()
    }

    /// Returns the caller's real user, or 0 outside a task.
    pub(super) fn current_user() -> u32 {
        task::try_with_current(|task| task.process().uid()).unwrap_or(0)
    }

    /// Returns the credentials as seen in the caller's user namespace.
    pub fn shown(self) -> Self {
        let (uid, gid) = task::shown_ids(self.uid, self.gid);
        Self { pid: registry::shown(self.pid), uid, gid }
    }

    /// As [`shown`](Self::shown), but unknown users and groups have the overflow ID.
    pub fn shown_or_overflow(self) -> Self {
        let shown = self.shown();
        let id = |id| if id == u32::MAX { OVERFLOW_ID } else { id };
        Self { pid: shown.pid, uid: id(shown.uid), gid: id(shown.gid) }
    }

    /// Returns the credentials that the caller passed, with the kernel's IDs.
    ///
    /// # Errors
    /// `EINVAL` for IDs that the caller's user namespace does not map; `ESRCH` for a process that
    /// its PID namespace does not contain.
    pub fn of_kernel(self) -> Result<Self> {
        let (uid, gid) =
            (task::kernel_id(IdKind::User, self.uid)?, task::kernel_id(IdKind::Group, self.gid)?);
        Ok(Self { pid: registry::pid_by_number(self.pid).ok_or(Errno::ESRCH)?, uid, gid })
    }

    /// Whether the caller may send these credentials: each ID is one of its own, or it has the
    /// capability to adopt it (Linux: `scm_check_creds`).
    pub fn may_be_claimed(&self) -> bool {
        task::with_current(|task| {
            let (process, own) = (task.process(), task.process().credentials());
            (self.pid == process.pid || own.may_in(&process.pid_ns().owner(), Capability::SysAdmin))
                && ([own.uid, own.euid, own.suid].contains(&self.uid) || own.may_within(Capability::SetUid))
                && ([own.gid, own.egid, own.sgid].contains(&self.gid) || own.may_within(Capability::SetGid))
        })
    }
}

/// Options that setsockopt has set.
#[derive(Debug, Default)]
pub struct Options {
    /// SO_RCVTIMEO in nanoseconds.
    pub receive_timeout: Option<u64>,
    /// SO_SNDTIMEO in nanoseconds.
    pub send_timeout: Option<u64>,
    /// SO_LINGER: whether it is on, and its time in seconds. Closing never waits; a time of 0
    /// resets the connection.
    pub(super) linger: [i32; 2],
    /// SO_SNDBUF and SO_RCVBUF.
    pub(super) buffers: BufferSizes,
    /// Options that are only stored.
    pub(super) remembered: Remembered,
}

impl Options {
    /// Returns the options of a connection whose listener has these.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn inherited(&self) -> Result<Self> {
        Ok(Self { remembered: self.remembered.try_clone()?, ..*self })
    }
}

/// Whether an option is set or read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Set,
    Get,
}

/// Returns the deadline of a call that begins now.
pub fn deadline(timeout: Option<u64>) -> Option<u64> {
    timeout.map(|timeout| time::now().saturating_add(timeout))
}

fn timeout(value: u64, length: usize) -> Result<Option<u64>> {
    if length < size_of::<TimeVal>() {
        return Err(Errno::EINVAL);
    }
    let time = UserPtr::<TimeVal>::new(value).read()?;
    if !(0..1_000_000).contains(&time.microseconds) {
        return Err(Errno::EDOM);
    }
    // As on Linux, a negative time expires at once.
    if time.seconds < 0 {
        return Ok(Some(0));
    }
    let timeout = time.nanoseconds()?;
    Ok((timeout != 0).then_some(timeout))
}

/// Packet priorities that need no capability.
const UNPRIVILEGED_PRIORITIES: core::ops::RangeInclusive<i32> = 0..=6;

/// TCP_CONGESTION of IPPROTO_TCP.
const CONGESTION: (u32, u32) = (TCP, 13);
/// TCP_INFO of IPPROTO_TCP: information about a connection.
const TCP_INFO: (u32, u32) = (TCP, 11);
const TCP_ULP: (u32, u32) = (TCP, 31);
/// The clock of a connection (used with TCP_REPAIR).
const TCP_TIMESTAMP: (u32, u32) = (TCP, 24);
/// The congestion control algorithms that [`CONGESTION`] reports and accepts.
const CONGESTION_CONTROLS: [&[u8]; 2] = [b"cubic", b"reno"];

impl Socket {
    /// setsockopt(2).
    ///
    /// # Errors
    /// `ENOPROTOOPT`, `EINVAL`, `EFAULT`.
    pub fn set_option(&self, level: u32, name: u32, value: u64, length: usize) -> Result<()> {
        if !self.has_level(level) {
            return Err(self.lacks_level(Access::Set));
        }
        if (level, name) == CONGESTION {
            let wanted = user::read_vec(value, length.min(16))?;
            let wanted = wanted.split(|&byte| byte == 0).next().unwrap_or_default();
            return if CONGESTION_CONTROLS.contains(&wanted) { Ok(()) } else { Err(Errno::ENOENT) };
        }
        if (level, name) == TCP_ULP {
            return Err(Errno::ENOENT);
        }
        // No options of packets are what every socket has.
        if (level, name, length) == (beside::IP, c::IP_OPTIONS, 0) {
            return Ok(());
        }
        let number = || beside::number(level, value, length);
        if let Some(flag) = Told::of(level, name, self.nature()) {
            let number = number()?;
            if flag == Told::LEFT && !(0..=1).contains(&number) {
                return Err(Errno::EINVAL);
            }
            let wanted = if number != 0 { flag } else { Told::empty() };
            let others = if Told::TIMES.contains(flag) { Told::TIMES } else { flag };
            self.channel().tell(wanted, others);
            return Ok(());
        }
        if let Some(netlink) = self.netlink.as_ref().filter(|_| level == netlink::LEVEL)
            && netlink.set_option(name, number()?)?
        {
            return Ok(());
        }
        if level != c::SOL_SOCKET {
            self.check_transparent(level, name, number()?)?;
            // The lowest bits of a TCP packet's type of service are the protocol's own.
            let is_tos = self.is_tcp() && (level, name) == (beside::IP, c::IP_TOS);
            return self.remember(level, name, if is_tos { number()? & !3 } else { number()? });
        }
        if self.set_device_option(name, value, length)? {
            return Ok(());
        }
        self.set_own_option(name, value, length)
    }

    /// setsockopt(2) of SOL_SOCKET.
    fn set_own_option(&self, name: u32, value: u64, length: usize) -> Result<()> {
        let level = c::SOL_SOCKET;
        let number = || beside::number(level, value, length);
        match name {
            c::SO_RCVTIMEO => self.options.lock().receive_timeout = timeout(value, length)?,
            c::SO_SNDTIMEO => self.options.lock().send_timeout = timeout(value, length)?,
            c::SO_LINGER if length < size_of::<[i32; 2]>() => return Err(Errno::EINVAL),
            c::SO_LINGER => self.options.lock().linger = UserPtr::<[i32; 2]>::new(value).read()?,
            c::SO_PASSCRED => {
                let wanted = number()?;
                self.channel().name_senders(if wanted != 0 {
                    PassCredentials::Yes
                } else {
                    PassCredentials::No
                });
            }
            c::SO_SNDBUFFORCE | c::SO_RCVBUFFORCE if !task::may(Capability::NetAdmin) => {
                return Err(Errno::EPERM);
            }
            c::SO_DEBUG if number()? != 0 && !task::may(Capability::NetAdmin) => return Err(Errno::EACCES),
            c::SO_MARK if !self.may_mark() => return Err(Errno::EPERM),
            c::SO_PRIORITY if !UNPRIVILEGED_PRIORITIES.contains(&number()?) && !self.may_mark() => {
                return Err(Errno::EPERM);
            }
            c::SO_ZEROCOPY => return Err(Errno::EOPNOTSUPP),
            c::SO_REUSEPORT if !self.family().is_ip() && number()? != 0 => return Err(Errno::EOPNOTSUPP),
            c::SO_RCVLOWAT => {
                self.remember(level, name, number()?)?;
                self.note_least();
            }
            c::SO_SNDBUF => self.set_buffer(QueueEnd::Sender, number()?, Ceiling::Usual),
            c::SO_RCVBUF => self.set_buffer(QueueEnd::Receiver, number()?, Ceiling::Usual),
            c::SO_SNDBUFFORCE => self.set_buffer(QueueEnd::Sender, number()?, Ceiling::None),
            c::SO_RCVBUFFORCE => self.set_buffer(QueueEnd::Receiver, number()?, Ceiling::None),
            _ => self.remember(level, name, number()?)?,
        }
        Ok(())
    }

    /// getsockopt(2).
    ///
    /// # Errors
    /// `ENOPROTOOPT`, `EINVAL`, `EFAULT`.
    pub fn option(&self, level: u32, name: u32, value: u64, length: UserPtr<i32>) -> Result<()> {
        let room = OptionRoom::read(value, length)?;
        if !self.has_level(level) {
            return Err(self.lacks_level(Access::Get));
        }
        let put = |bytes: &[u8]| room.put(bytes);
        let put_number = |number: i32| match u8::try_from(number) {
            // As on Linux, a program may read these into a single byte.
            Ok(byte) if level == beside::IP && (1..4).contains(&room.bytes) => put(&[byte]),
            _ => put(number.as_bytes()),
        };
        if let Some(flag) = Told::of(level, name, self.nature()) {
            return put_number(i32::from(self.channel().told().contains(flag)));
        }
        if (level, name) == CONGESTION {
            return put(b"cubic\0");
        }
        if (level, name) == TCP_INFO {
            return put(self.tcp_info().as_bytes());
        }
        if (level, name) == TCP_ULP {
            return put(b"");
        }
        if let Some(fact) = self.fact((level, name), room.bytes)? {
            return put(fact.as_bytes());
        }
        if let Ok(number) = self.remembered(level, name) {
            return put_number(number);
        }
        if let Some(netlink) = self.netlink.as_ref().filter(|_| level == netlink::LEVEL) {
            return put(netlink.option(name).ok_or(Errno::ENOPROTOOPT)?.as_bytes());
        }
        if level != c::SOL_SOCKET {
            return Err(Errno::ENOPROTOOPT);
        }
        self.own_option(name, value, length)
    }

    /// getsockopt(2) of SOL_SOCKET.
    fn own_option(&self, name: u32, value: u64, length: UserPtr<i32>) -> Result<()> {
        let room = OptionRoom::read(value, length)?;
        let put = |bytes: &[u8]| room.put(bytes);
        let number = match name {
            c::SO_BINDTODEVICE => return self.write_device_name(value, length),
            c::SO_BINDTOIFINDEX => self.device() as i32,
            c::SO_TYPE => self.shown_type(),
            c::SO_DOMAIN => i32::from(self.family().number()),
            c::SO_SNDBUF => self.buffer_bytes(QueueEnd::Sender) as i32,
            c::SO_RCVBUF => self.buffer_bytes(QueueEnd::Receiver) as i32,
            c::SO_ACCEPTCONN => i32::from(self.is_listening()),
            c::SO_PASSCRED => i32::from(self.channel().names_senders() == PassCredentials::Yes),
            c::SO_PEERGROUPS => return self.write_peer_groups(value, length),
            c::SO_PEERCRED => {
                if room.bytes < size_of::<Credentials>() && self.kind() != SocketKind::Datagram {
                    return Err(Errno::EINVAL);
                }
                return put(self.peer_credentials().shown().as_bytes());
            }
            c::SO_RCVTIMEO | c::SO_SNDTIMEO => {
                let options = self.options.lock();
                let timeout =
                    if name == c::SO_RCVTIMEO { options.receive_timeout } else { options.send_timeout };
                drop(options);
                return put(TimeVal::from_nanoseconds(timeout.unwrap_or(0)).as_bytes());
            }
            c::SO_LINGER => {
                let linger = self.options.lock().linger;
                return put(linger.as_bytes());
            }
            c::SO_ERROR => self.channel().take_error().map_or(0, |error| error as i32),
            c::SO_PROTOCOL => self.protocol_number(),
            _ => return Err(Errno::ENOPROTOOPT),
        };
        put(number.as_bytes())
    }

    /// Returns the error for an option of a level that the socket does not have.
    fn lacks_level(&self, access: Access) -> Errno {
        match (self.family(), access) {
            (Family::Unix, _) | (Family::Inet, Access::Get) => Errno::EOPNOTSUPP,
            _ => Errno::ENOPROTOOPT,
        }
    }

    /// Checks TCP_TIMESTAMP, which cannot be set, and IP_TRANSPARENT, which needs a capability.
    fn check_transparent(&self, level: u32, name: u32, value: i32) -> Result<()> {
        let takes = (level, name) == (beside::IP, c::IP_TRANSPARENT) && value != 0;
        if (level, name) == TCP_TIMESTAMP || takes && !self.may_mark() {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Whether the process may choose how the socket's packets are routed and ordered.
    fn may_mark(&self) -> bool {
        let owner = self.network().head().owner();
        task::may_in(owner, Capability::NetAdmin) || task::may_in(owner, Capability::NetRaw)
    }

    /// Gives the socket the options of the TCP listener that it is a connection of, as Linux does.
    /// Connections of other families begin with their own.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn inherit(&self, listener: &Self) -> Result<()> {
        if self.is_tcp() {
            let inherited = listener.options.lock().inherited()?;
            *self.options.lock() = inherited;
        }
        Ok(())
    }

    /// SO_TYPE.
    fn shown_type(&self) -> i32 {
        if let Some(packet) = &self.packet {
            return packet.kind() as i32;
        }
        match (&self.netlink, &self.raw) {
            (Some(netlink), _) => netlink.shown_type,
            (None, Some(raw)) => raw.shown_type(),
            (None, None) => self.kind() as i32,
        }
    }
}
