//! Raw sockets (raw(7)) and ping sockets (icmp(7)) of both versions of IP.
//!
//! TCP and UDP between the sockets of this machine use no packets. Raw and ping sockets handle
//! packets. So packets are made if such a socket sends, or could receive. If there is no such
//! socket, a datagram costs one check ([`registry::any`](super::registry::any)).
//!
//! | module | concept |
//! |---|---|
//! | [`format`] | headers of IP and ICMP |
//! | [`arrive`] | packets for this machine: copies for sockets, answers, errors |
//! | [`send`] | packets of programs |
//! | [`settings`] | options |
//!
//! A socket belongs to its network namespace and receives only packets of that namespace. Opening a
//! raw socket needs CAP_NET_RAW in the user namespace that owns the network namespace. Ping sockets
//! are for the groups that the namespace names.
//!
//! **Locks.** A spin lock protects a socket's state. No other lock except the network's mutex may
//! be held when it is taken.

pub(super) mod arrive;
mod format;
mod send;
mod settings;

use core::net::Ipv6Addr;

use freehold_collections::{Arc, Receiver, reserve};
use linux_raw_sys::net as c;

pub(super) use self::format::checksum;
pub use self::settings::RawKind;

use self::format::{ICMP, ICMPV6, Version};
use self::settings::{RawNature, RawSettings};
use super::address::inet::InetAddress;
use super::beside::Told;
use super::channel::Channel;
use super::family::Family;
use super::filter::SocketFilter;
use super::memory::SocketAccount;
use super::registry::{HearerKey, Hearers, Hears};
use crate::task::namespaces::network::NetworkNamespace;
use crate::task::{self, Capability};
use crate::user::UserPtr;
use crate::{Errno, Result};

/// All sockets that receive packets.
static HEARERS: Hearers<RawSocket> = Hearers::new();

#[derive(Clone, Copy)]
struct RawState {
    local: Option<Ipv6Addr>,
    /// The number of the network device that the socket is bound to; 0 for none.
    device: u32,
    remote: Option<InetAddress>,
    /// For a ping socket: its identifier, or 0 before it has one.
    identifier: u16,
    key: Option<HearerKey>,
    settings: RawSettings,
}

/// A raw socket or a ping socket.
pub struct RawSocket {
    family: Family,
    protocol: u8,
    kind: RawKind,
    network: Arc<NetworkNamespace>,
    channel: Arc<Channel>,
    state: crate::sync::SpinLock<RawState>,
    filter: SocketFilter,
}

impl RawSocket {
    /// Makes a socket of `network` for the running task.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW, `EACCES` for a ping socket if the task has no permitted group,
    /// `EPROTONOSUPPORT`, `EINVAL` for numbers that are no protocol, `ENOMEM`.
    pub fn open(
        family: Family,
        kind: RawKind,
        protocol: i32,
        network: Arc<NetworkNamespace>,
    ) -> Result<Arc<Self>> {
        /// IPPROTO_MAX.
        const PROTOCOLS: i32 = 263;
        if !(0..PROTOCOLS).contains(&protocol) {
            return Err(Errno::EINVAL);
        }
        let protocol = u8::try_from(protocol).ok().filter(|&protocol| protocol != 0);
        let protocol = protocol.ok_or(Errno::EPROTONOSUPPORT)?;
        match kind {
            RawKind::Raw if !task::may_in(network.head().owner(), Capability::NetRaw) => {
                return Err(Errno::EPERM);
            }
            RawKind::Ping if !may_ping(&network) => return Err(Errno::EACCES),
            _ => {}
        }
        let version = version_of(family);
        let settings = RawSettings::new(version, protocol);
        let state = RawState { local: None, device: 0, remote: None, identifier: 0, key: None, settings };
        let socket = reserve::arc(Self {
            family,
            protocol,
            kind,
            network,
            channel: Channel::new(SocketAccount::Other),
            state: crate::sync::SpinLock::new(state),
            filter: SocketFilter::default(),
        });
        socket.channel.tell(Told::SHARES, Told::empty());
        if kind == RawKind::Raw {
            let hears = if family == Family::Inet { Hears::V4(protocol) } else { Hears::V6(protocol) };
            let key = HEARERS.enter(socket.network.number(), hears, &socket)?;
            socket.state.lock().key = Some(key);
        }
        Ok(socket)
    }

    /// Returns the channel in which its packets arrive.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Returns the socket's family.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Returns whether this is a raw or a ping socket.
    pub const fn kind(&self) -> RawKind {
        self.kind
    }

    /// SO_PROTOCOL.
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// SO_TYPE.
    pub const fn shown_type(&self) -> i32 {
        match self.kind {
            RawKind::Raw => 3,
            RawKind::Ping => 2,
        }
    }

    const fn is_v4(&self) -> bool {
        matches!(self.family, Family::Inet)
    }

    /// Returns the unspecified address of the socket's family.
    fn any(&self) -> Ipv6Addr {
        match self.family {
            Family::Inet => core::net::Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(),
            _ => Ipv6Addr::UNSPECIFIED,
        }
    }

    /// Whether `ip` has the socket's IP version.
    fn speaks(&self, ip: Ipv6Addr) -> bool {
        ip.to_ipv4_mapped().is_some() == self.is_v4()
    }

    const fn nature(&self) -> RawNature {
        RawNature { version: version_of(self.family), protocol: self.protocol, kind: self.kind }
    }

    /// setsockopt(2) of options that not every socket stores as a number. Returns whether `name` is
    /// one of them.
    ///
    /// # Errors
    /// `EINVAL`, `ENOPROTOOPT`, `EOPNOTSUPP` for another protocol, `EFAULT`.
    pub(super) fn set_option(&self, level: u32, name: u32, value: u64, length: usize) -> Result<bool> {
        if level == c::SOL_SOCKET && self.filter.set_option(name, value, length)? {
            return Ok(true);
        }
        let change = self.nature().change(level, name, value, length)?;
        change.iter().for_each(|&change| self.state.lock().settings.apply(change));
        Ok(change.is_some())
    }

    /// getsockopt(2) of the same options.
    ///
    /// # Errors
    /// `ENOPROTOOPT`, `EOPNOTSUPP`, `EINVAL`, `EFAULT`.
    pub(super) fn option(&self, level: u32, name: u32, value: u64, length: UserPtr<i32>) -> Result<bool> {
        if (level, name) == (c::SOL_SOCKET, c::SO_LOCK_FILTER) {
            return self.filter.write_lock(value, length).map(|()| true);
        }
        let settings = self.state.lock().settings;
        self.nature().write_option(&settings, (level, name), value, length)
    }

    /// Returns the socket's own address. In place of the port it has the protocol, or the
    /// identifier.
    pub fn own(&self) -> InetAddress {
        let state = self.state.lock();
        let port = match self.kind {
            RawKind::Raw => self.protocol.into(),
            RawKind::Ping => state.identifier,
        };
        InetAddress { ip: state.local.unwrap_or_else(|| self.any()), port }
    }

    pub(super) fn bind_to_device(&self, device: u32) {
        self.state.lock().device = device;
    }

    /// Whether the socket receives packets from `device`.
    fn hears_device(&self, device: u32) -> bool {
        [0, device].contains(&self.state.lock().device)
    }

    /// Returns the address that the socket is connected to.
    pub fn remote(&self) -> Option<InetAddress> {
        self.state.lock().remote
    }

    /// bind(2).
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the address is not this machine's; `EINVAL` if the socket is connected,
    /// or is a ping socket with an identifier; `ENOMEM`.
    pub(super) fn bind(self: &Receiver<Self>, wanted: InetAddress) -> Result<()> {
        {
            let state = self.state.lock();
            if state.identifier != 0 || self.kind == RawKind::Raw && state.remote.is_some() {
                return Err(Errno::EINVAL);
            }
        }
        if !self.speaks(wanted.ip) || !wanted.is_local(&self.network) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        if self.kind == RawKind::Ping {
            self.identify(wanted.port)?;
        }
        self.state.lock().local = (!wanted.is_any()).then_some(wanted.ip);
        Ok(())
    }

    /// Returns the identifier of a ping socket. A socket without one gets `wanted` first; 0 for
    /// any.
    fn identify(self: &Receiver<Self>, wanted: u16) -> Result<u16> {
        let before = self.state.lock().identifier;
        if before != 0 {
            return Ok(before);
        }
        let hears = if self.is_v4() { Hears::Ping4 } else { Hears::Ping6 };
        let (identifier, key) = HEARERS.enter_identified(self.network.number(), wanted, hears, self)?;
        let mut state = self.state.lock();
        if state.key.is_some() {
            // Another thread has set the identifier first.
            let identifier = state.identifier;
            drop(state);
            HEARERS.leave(&key);
            return if wanted == 0 { Ok(identifier) } else { Err(Errno::EINVAL) };
        }
        (state.identifier, state.key) = (identifier, Some(key));
        Ok(identifier)
    }

    /// connect(2): the socket receives only from `to`, and sends to it. `None` ends that.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EADDRINUSE`, `ENOMEM`.
    pub(super) fn connect(self: &Receiver<Self>, to: Option<InetAddress>) -> Result<()> {
        let Some(to) = to else {
            self.state.lock().remote = None;
            return Ok(());
        };
        let route = self.route(to.ip)?;
        if self.kind == RawKind::Ping {
            self.identify(0)?;
        }
        let mut state = self.state.lock();
        state.remote = Some(InetAddress { ip: route.to, port: to.port });
        state.local.get_or_insert(route.from);
        Ok(())
    }
}

impl Drop for RawSocket {
    fn drop(&mut self) {
        self.state.get_mut().key.iter().for_each(|key| HEARERS.leave(key));
    }
}

/// Returns the IP version of a family, which is AF_INET or AF_INET6.
const fn version_of(family: Family) -> Version {
    match family {
        Family::Inet => Version::V4,
        _ => Version::V6,
    }
}

/// Whether the running task has a group that may use ping sockets (net.ipv4.ping_group_range).
fn may_ping(network: &NetworkNamespace) -> bool {
    let groups = network.ping_groups();
    task::with_current(|task| {
        task.with_credentials(|own| {
            groups.contains(&own.egid) || own.groups.iter().any(|group| groups.contains(group))
        })
    })
}

/// Whether a datagram socket of `family` and `protocol` is a ping socket.
pub(super) fn pings(family: Family, protocol: i32) -> bool {
    protocol == i32::from(if family == Family::Inet { ICMP } else { ICMPV6 })
}
