//! Sockets of AF_NETLINK: programs send requests to the kernel, and it sends answers
//! (netlink(7)). It supports NETLINK_ROUTE ([`route`]), NETLINK_SOCK_DIAG ([`diag`]) and
//! NETLINK_KOBJECT_UEVENT, which sends nothing; other protocols are `EPROTONOSUPPORT`.
//!
//! A request is answered before its send returns. The answer is queued in the socket's own channel,
//! which has the usual size. An answer that finds no room there is lost, and the next receive
//! returns `ENOBUFS`. A list of sockets is queued one part at a time: the receive that empties the
//! channel adds the next part. Requests are read as hostile input ([`wire`]).
//!
//! There are no unrequested notifications: groups can be joined, but the interfaces never change.
//!
//! **Locks.** [`PORTS`] and a socket's own [`NetlinkState`] are spin locks; the first is taken with
//! the second held. The lock of the list being sent is a sleeping lock. The locks of the table of
//! sockets and of channels are taken with it held.

mod diag;
mod route;
mod wire;

use core::sync::atomic::{AtomicU32, Ordering};

use freehold_collections::{Arc, Box, Map, Receiver, reserve};

use self::diag::{SocketDump, Told};
use self::wire::{HEADER_BYTES, Messages, NetlinkMessage, Replied, Writer, flag, kind};
use super::SocketFile;
use super::address::Address;
use super::address::netlink::NetlinkAddress;
use super::channel::{Ancillary, MessageOrigin, Patience};
use super::endpoint::Socket;
use super::family::Family;
use super::interface;
use super::memory::BUFFER_BYTES;
use super::options::Credentials;
use crate::fs::OpenFile;
use crate::fs::bytes::SliceSource;
use crate::sync::{Mutex, SpinLock};
use crate::task::namespaces::network::NetworkNamespace;
use crate::user::{self, Source};
use crate::{Errno, Result, sched, task};

/// Largest number of bytes of a send: the value of SO_SNDBUF, minus Linux' overhead per message.
const MOST_BYTES: usize = BUFFER_BYTES - 32;
/// NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_KOBJECT_UEVENT.
const ROUTE: i32 = 0;
const SOCK_DIAG: i32 = 4;
const UEVENT: i32 = 15;
/// Options of SOL_NETLINK: NETLINK_CAP_ACK, NETLINK_GET_STRICT_CHK.
const CAP_ACK: u32 = 10;
const STRICT: u32 = 12;
/// NETLINK_ADD_MEMBERSHIP, NETLINK_DROP_MEMBERSHIP, NETLINK_LIST_MEMBERSHIPS.
const ADD_MEMBERSHIP: u32 = 1;
const DROP_MEMBERSHIP: u32 = 2;
const LIST_MEMBERSHIPS: u32 = 9;
/// RTNLGRP_MAX.
const GROUPS: u32 = 36;

/// Families as one byte, the format of messages.
const UNIX: u8 = Family::Unix.number() as u8;
const INET: u8 = Family::Inet.number() as u8;
const INET6: u8 = Family::Inet6.number() as u8;

/// The level of options, SOL_NETLINK.
pub(super) const LEVEL: u32 = 270;

/// Ports in use, by network namespace and protocol.
static PORTS: SpinLock<Map<(u64, i32, u32), ()>> = SpinLock::new(Map::new());

/// The bit of ports that are no process IDs.
const PORTS_OF_NOBODY: u32 = 1 << 31;
/// The next port to try, without [`PORTS_OF_NOBODY`]; counts down.
static NEXT: AtomicU32 = AtomicU32::new(u32::MAX - 4096);
/// Largest number of ports that are tried: a program may have taken the next ones.
const TRIES: u32 = 4096;

#[derive(Default)]
struct NetlinkState {
    /// The socket's own address; its port is 0 until it has one.
    own: NetlinkAddress,
    /// The address that connect(2) has set.
    destination: NetlinkAddress,
}

/// State of a socket of AF_NETLINK beyond the common state.
pub struct Netlink {
    protocol: i32,
    /// The number of the socket's network namespace.
    network: u64,
    /// The value of SO_TYPE.
    pub(super) shown_type: i32,
    state: SpinLock<NetlinkState>,
    /// The list that the program has read in part.
    dump: Mutex<Option<SocketDump>>,
}

/// The sender of a request.
#[derive(Clone, Copy)]
struct Caller<'a> {
    port: u32,
    /// The sender's namespace.
    network: &'a NetworkNamespace,
    user: u32,
    may_change: bool,
    /// NETLINK_GET_STRICT_CHK: the fields of a dump request act as filters.
    is_strict: bool,
}

/// Result of a request.
enum Answered {
    /// The answer is complete; an ACK follows if the sender requested one.
    Nothing,
    /// Several messages, whose last one has this result, with these [`flag`]s.
    Dump(Result<()>, u16),
    /// A list of sockets, which is sent in parts from now on.
    List,
}

impl Netlink {
    /// Returns the state of a new socket of `protocol` and SOCK_* `shown_type` in the network
    /// namespace with the number `network`.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`.
    pub fn new(protocol: i32, shown_type: i32, network: u64) -> Result<Box<Self>> {
        if ![ROUTE, SOCK_DIAG, UEVENT].contains(&protocol) {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let (state, dump) = (SpinLock::new(NetlinkState::default()), Mutex::new(None));
        Ok(reserve::boxed(Self { protocol, network, shown_type, state, dump }))
    }

    /// SO_PROTOCOL.
    pub(super) const fn protocol(&self) -> i32 {
        self.protocol
    }

    /// Returns the address that the socket is bound to.
    pub fn own(&self) -> NetlinkAddress {
        self.state.lock().own
    }

    /// Returns the address that the socket is connected to.
    pub(super) fn destination(&self) -> NetlinkAddress {
        self.state.lock().destination
    }

    /// bind(2).
    ///
    /// # Errors
    /// `EINVAL` if the socket has another port, `EADDRINUSE`, `ENOMEM`.
    pub(super) fn bind(&self, wanted: NetlinkAddress) -> Result<()> {
        let mut state = self.state.lock();
        match (state.own.port, wanted.port) {
            (0, 0) => state.own.port = self.take_any()?,
            (0, port) => {
                self.take(port)?;
                state.own.port = port;
            }
            (own, port) if own == port => {}
            _ => return Err(Errno::EINVAL),
        }
        state.own.groups = wanted.groups;
        Ok(())
    }

    /// Returns the port. A socket without one is first bound to a free port.
    fn own_port(&self) -> Result<u32> {
        let mut state = self.state.lock();
        if state.own.port == 0 {
            state.own.port = self.take_any()?;
        }
        Ok(state.own.port)
    }

    fn take(&self, port: u32) -> Result<()> {
        let (mut ports, key) = (PORTS.lock(), (self.network, self.protocol, port));
        if ports.contains_key(&key) {
            return Err(Errno::EADDRINUSE);
        }
        ports.try_insert(key, ())?;
        Ok(())
    }

    /// Binds to the caller's process ID, or to a free port that is no process ID.
    fn take_any(&self) -> Result<u32> {
        let own = task::try_with_current(|task| task.process().number()).unwrap_or(PORTS_OF_NOBODY);
        match self.take(own) {
            Err(Errno::EADDRINUSE) => {}
            taken => return taken.map(|()| own),
        }
        for _ in 0..TRIES {
            let port = NEXT.fetch_sub(1, Ordering::Relaxed) | PORTS_OF_NOBODY;
            match self.take(port) {
                Err(Errno::EADDRINUSE) => {}
                taken => return taken.map(|()| port),
            }
        }
        Err(Errno::EADDRINUSE)
    }

    /// connect(2); `None` disconnects.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN for any address except the kernel's, `ENOMEM`.
    pub(super) fn connect(&self, to: Option<NetlinkAddress>, network: &NetworkNamespace) -> Result<()> {
        let to = to.unwrap_or_default();
        if to != NetlinkAddress::default() {
            interface::check_administrator(network)?;
        }
        self.own_port()?;
        self.state.lock().destination = to;
        Ok(())
    }

    /// Begins to send the list of sockets that `message` requests.
    fn begin(&self, message: &NetlinkMessage<'_>, caller: Caller<'_>) -> Result<Answered> {
        let dump = match diag::begin(message, caller.port, caller.network.number()) {
            // Linux has begun the list at this point, and reports the error at its end.
            Err(Errno::EPROTONOSUPPORT) => return Ok(Answered::Dump(Err(Errno::ENOENT), flag::MULTI)),
            begun => begun?,
        };
        let mut running = self.dump.lock();
        if running.is_some() {
            return Err(Errno::EBUSY);
        }
        *running = Some(dump);
        Ok(Answered::List)
    }

    /// setsockopt(2) of options that are more than a stored number. Returns whether `name` is one
    /// of them.
    ///
    /// # Errors
    /// `EINVAL` if there is no such group.
    pub(super) fn set_option(&self, name: u32, value: i32) -> Result<bool> {
        if ![ADD_MEMBERSHIP, DROP_MEMBERSHIP].contains(&name) {
            return Ok(false);
        }
        let group = u32::try_from(value).ok().filter(|group| (1..=GROUPS).contains(group));
        let group = group.ok_or(Errno::EINVAL)?;
        // Groups beyond the bits of an address are accepted, but not recorded.
        let bit = 1_u32.checked_shl(group - 1).unwrap_or(0);
        let groups = &mut self.state.lock().own.groups;
        *groups = if name == ADD_MEMBERSHIP { *groups | bit } else { *groups & !bit };
        Ok(true)
    }

    /// getsockopt(2) of the same options.
    pub(super) fn option(&self, name: u32) -> Option<u32> {
        (name == LIST_MEMBERSHIPS).then(|| self.own().groups)
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        let port = self.state.get_mut().own.port;
        if port != 0 {
            PORTS.lock().remove(&(self.network, self.protocol, port));
        }
    }
}

/// A socket that receives the bytes of a notification of mq_notify(3), which are no netlink
/// message.
pub struct CookieReceiver(Arc<Socket>);

impl CookieReceiver {
    /// Returns the socket of a descriptor's file.
    ///
    /// # Errors
    /// `ENOTSOCK`, `EINVAL` if it is of another family.
    pub fn of(file: &OpenFile) -> Result<Self> {
        let socket = file.file().downcast::<SocketFile>().ok_or(Errno::ENOTSOCK)?.socket.clone();
        if socket.netlink.is_some() { Ok(Self(socket)) } else { Err(Errno::EINVAL) }
    }

    /// Sends `bytes`. Without room or memory the next receive returns `ENOBUFS`.
    pub fn send(&self, bytes: &[u8]) {
        if self.0.put(bytes).is_err() {
            self.0.channel().fail(Errno::ENOBUFS);
        }
    }
}

impl Socket {
    /// Sends requests to the kernel, and answers them.
    ///
    /// # Errors
    /// `ENODATA` for an empty send, `EMSGSIZE`, `EPERM` or `ECONNREFUSED` for another destination
    /// than the kernel, `EFAULT`, `ENOMEM`.
    pub(super) fn send_netlink(
        self: &Receiver<Self>,
        netlink: &Netlink,
        source: &mut dyn Source,
        to: Option<&Address>,
    ) -> Result<usize> {
        let to = to.and_then(Address::netlink).unwrap_or_else(|| netlink.destination());
        if to != NetlinkAddress::default() {
            interface::check_administrator(self.network())?;
        }
        let port = netlink.own_port()?;
        let length = source.remaining();
        match length {
            0 => return Err(Errno::ENODATA),
            1..=MOST_BYTES => {}
            _ => return Err(Errno::EMSGSIZE),
        }
        if to.port != 0 {
            return Err(Errno::ECONNREFUSED);
        }
        let mut bytes = user::zeroed(length)?;
        let taken = source.take(&mut bytes)?;
        let caller = Caller {
            port,
            user: Credentials::current_user(),
            network: self.network(),
            may_change: interface::check_administrator(self.network()).is_ok(),
            is_strict: self.remembered(LEVEL, STRICT) == Ok(1),
        };
        for message in Messages(&bytes[..taken]) {
            sched::checkpoint()?;
            self.answer(netlink, &message, caller);
        }
        Ok(length)
    }

    /// Answers one message.
    fn answer(self: &Receiver<Self>, netlink: &Netlink, message: &NetlinkMessage<'_>, caller: Caller<'_>) {
        if message.flags & flag::REQUEST == 0 {
            return;
        }
        let mut out = Writer::new();
        let answered = match netlink.protocol {
            _ if message.kind < kind::FIRST => Ok(Answered::Nothing),
            SOCK_DIAG => netlink.begin(message, caller),
            // Linux lets root send events in the kernel's name.
            UEVENT => Err(Errno::EPERM),
            _ => route::answer(message, caller, &mut out),
        };
        let to = Replied { sequence: message.sequence, port: caller.port, flags: 0 };
        match answered {
            Ok(Answered::Nothing) => {
                self.deliver(out);
                if message.flags & flag::ACK != 0 {
                    self.deliver(outcome(message, to, Ok(()), Quoted::Header));
                }
            }
            Ok(Answered::List) => self.go_on(netlink),
            Ok(Answered::Dump(result, flags)) => {
                self.deliver(out);
                self.deliver(end(Replied { flags, ..to }, result));
            }
            Err(error) => {
                let is_capped = self.remembered(LEVEL, CAP_ACK) == Ok(1);
                let quoted = if is_capped { Quoted::Header } else { Quoted::Whole };
                self.deliver(outcome(message, to, Err(error), quoted));
            }
        }
    }

    /// Queues the next part of a list, if a list is being sent and the channel is empty.
    pub(super) fn go_on(&self, netlink: &Netlink) {
        let mut running = netlink.dump.lock();
        let Some(dump) = running.as_mut().filter(|_| !self.channel().has_message()) else { return };
        let mut out = Writer::new();
        // An error means that the task is being killed.
        let Ok(told) = dump.write(&mut out) else { return };
        let to = dump.to();
        if told == Told::All {
            *running = None;
        }
        self.deliver(out);
        if told == Told::All {
            self.deliver(end(to, Ok(())));
        }
    }

    /// Queues the written messages, if any, in this socket's own channel.
    fn deliver(&self, out: Writer) {
        let sent = out.finish().and_then(|bytes| self.put(&bytes));
        if sent.is_err() {
            self.channel().fail(Errno::ENOBUFS);
        }
    }

    fn put(&self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let from = MessageOrigin::named(Some(Address::Netlink(NetlinkAddress::default())));
        let source = &mut SliceSource::new(bytes);
        self.channel().send_message(source, Ancillary::default(), from, Patience::Never).map(|_| ())
    }
}

/// How much of a request the answer with its error repeats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quoted {
    Header,
    Whole,
}

fn number_of(result: Result<()>) -> i32 {
    result.map_or_else(|error| -(error as i32), |()| 0)
}

/// NLMSG_DONE.
fn end(to: Replied, result: Result<()>) -> Writer {
    let mut out = Writer::new();
    out.message(kind::DONE, to, |out| out.put(&number_of(result).to_ne_bytes()));
    out
}

/// NLMSG_ERROR about a request.
fn outcome(message: &NetlinkMessage<'_>, to: Replied, result: Result<()>, quoted: Quoted) -> Writer {
    let mut out = Writer::new();
    let (flags, request) = match quoted {
        Quoted::Header => (flag::CAPPED, &message.whole[..HEADER_BYTES]),
        Quoted::Whole => (0, message.whole),
    };
    out.message(kind::ERROR, Replied { flags, ..to }, |out| {
        out.put(&number_of(result).to_ne_bytes());
        out.put(request);
    });
    out
}
