//! NETLINK_SOCK_DIAG: the lists of sockets that `ss` shows (sock_diag(7)).
//!
//! Only whole lists can be requested, of TCP, UDP and AF_UNIX. They are written in parts: the next
//! part follows when the receiver has read the previous one. So a list of any length needs the
//! memory of one part. A request with a filter program is `EOPNOTSUPP`: `ss` then reads /proc/net,
//! and filters itself. AF_UNIX sockets do not know their peers' inodes.

use zerocopy::IntoBytes;

use super::wire::{NetlinkMessage, Replied, Writer, flag, u32_at};
use super::{INET, INET6, UNIX};
use crate::socket::address::Address;
use crate::socket::address::inet::InetAddress;
use crate::socket::endpoint::{Socket, SocketKind};
use crate::socket::family::Family;
use crate::socket::ports::Protocol;
use crate::socket::table::{self, SocketClass};
use crate::socket::view::TcpState;
use crate::{Errno, Result, sched, task};

/// SOCK_DIAG_BY_FAMILY, of requests and answers.
const BY_FAMILY: u16 = 20;
/// TCPDIAG_GETSOCK and DCCPDIAG_GETSOCK, the predecessors of that type.
const OLD_TCP: u16 = 18;
const OLD_DCCP: u16 = 19;
/// Bytes of `struct inet_diag_req_v2` and `struct unix_diag_req`.
const INET_BYTES: usize = 56;
const UNIX_BYTES: usize = 24;
/// INET_DIAG_REQ_BYTECODE, INET_DIAG_REQ_PROTOCOL.
const PROGRAM: u16 = 1;
const PROTOCOL: u16 = 3;
/// Approximate number of bytes of a part: programs receive into a page.
const PART: usize = 3000;

/// A list whose parts are being sent.
#[derive(Debug)]
pub(super) struct SocketDump {
    /// The number of the requester's network namespace.
    network: u64,
    class: SocketClass,
    /// Requested states, as bits.
    states: u32,
    /// Requested additional data: INET_DIAG_* as bits from 1 on, or UDIAG_SHOW_*.
    shown: u32,
    /// Requested ports; 0 for any.
    ports: [u16; 2],
    /// The table place that is visited next.
    place: usize,
    to: Replied,
}

/// Whether a list has more parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    Part,
    All,
}

/// Returns the list that a message requests.
///
/// # Errors
/// `EINVAL` for other requests and truncated ones, `ENOENT` for a family that is not listed,
/// `EPROTONOSUPPORT` for a protocol that is not listed, `EOPNOTSUPP` for a single socket or a
/// filter.
pub(super) fn begin(message: &NetlinkMessage<'_>, port: u32, network: u64) -> Result<SocketDump> {
    let body = message.body();
    match message.kind {
        BY_FAMILY => {}
        OLD_TCP | OLD_DCCP => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    }
    let &[family, protocol] = body.first_chunk().ok_or(Errno::EINVAL)?;
    // The field has one byte, too small for MPTCP's number. The attribute has the full number.
    let named = message.attributes(INET_BYTES).filter(|found| found.0 == PROTOCOL).last();
    let named = named.and_then(|(_, value)| u32_at(value, 0));
    let protocol = named.map_or(protocol, |named| u8::try_from(named).unwrap_or(0));
    let (class, bytes) = match Family::from_number(family.into()) {
        Ok(Family::Unix) => (SocketClass::Unix, UNIX_BYTES),
        Ok(family @ (Family::Inet | Family::Inet6)) => {
            let protocol = Protocol::from_number(protocol).ok_or(Errno::EPROTONOSUPPORT)?;
            (SocketClass::new(family, protocol), INET_BYTES)
        }
        _ => return Err(Errno::ENOENT),
    };
    if body.len() < bytes {
        return Err(Errno::EINVAL);
    }
    let is_dump = message.flags & flag::DUMP == flag::DUMP;
    let is_unix = class == SocketClass::Unix;
    let has_program = !is_unix && message.attributes(INET_BYTES).any(|(kind, _)| kind == PROGRAM);
    if !is_dump || has_program {
        return Err(Errno::EOPNOTSUPP);
    }
    let ports =
        if is_unix { [0; 2] } else { [[body[8], body[9]], [body[10], body[11]]].map(u16::from_be_bytes) };
    Ok(SocketDump {
        class,
        network,
        states: u32_at(body, 4).unwrap_or(0),
        shown: if is_unix { u32_at(body, 12).unwrap_or(0) } else { u32::from(body[2]) << 1 },
        ports,
        place: 0,
        to: Replied { sequence: message.sequence, port, flags: flag::MULTI },
    })
}

impl SocketDump {
    /// Returns the header fields for answers to the requester.
    pub(super) const fn to(&self) -> Replied {
        self.to
    }

    /// Writes the next part. Only the last part may be empty.
    ///
    /// # Errors
    /// `ERESTARTSYS` if the task is being killed.
    pub(super) fn write(&mut self, out: &mut Writer) -> Result<Told> {
        while out.length() < PART {
            sched::checkpoint()?;
            let Some((place, socket)) = table::next(self.class, self.place) else { return Ok(Told::All) };
            self.place = place + 1;
            if socket.network().number() != self.network {
                continue;
            }
            match self.class {
                SocketClass::Unix => self.unix(&socket, out),
                _ => self.inet(&socket, out),
            }
        }
        Ok(Told::Part)
    }

    fn wants(&self, state: TcpState) -> bool {
        self.states & 1 << state as u32 != 0
    }

    const fn shows(&self, bit: u32) -> bool {
        self.shown & 1 << bit != 0
    }

    fn inet(&self, socket: &Socket, out: &mut Writer) {
        let Some(view) = socket.inet_view().filter(|view| self.wants(view.state)) else { return };
        let fits = |wanted: u16, port: u16| wanted == 0 || wanted == port;
        if !fits(self.ports[0], view.local.port) || !fits(self.ports[1], view.remote.port) {
            return;
        }
        let is_v6 = socket.is_v6();
        let is_tcp = socket.kind() == SocketKind::Stream;
        out.message(BY_FAMILY, self.to, |out| {
            // No timer is reported.
            out.put(&[if is_v6 { INET6 } else { INET }, view.state as u8, 0, 0]);
            let ports = [view.local.port.to_be_bytes(), view.remote.port.to_be_bytes()];
            out.put(ports.as_flattened());
            out.put(&address(view.local, is_v6));
            out.put(&address(view.remote, is_v6));
            // The interface (none), a unique number, and the end of a timer.
            let cookie = socket.inode() as u32;
            let queues = [view.received as u32, view.backlog as u32];
            out.put(
                [0, cookie, 0, 0, queues[0], queues[1], task::shown_ids(socket.owner(), 0).0, cookie]
                    .as_bytes(),
            );
            out.attribute(8, &[socket.shut_down()]);
            if is_v6 && matches!(view.state, TcpState::Listen | TcpState::Close) {
                out.attribute(11, &[u8::from(socket.is_v6_alone())]);
            }
            if self.shows(1) {
                out.attribute(1, [view.received as u32, 0, 0, 0].as_bytes());
            }
            if self.shows(2) && is_tcp {
                out.attribute(2, socket.tcp_info().as_bytes());
            }
            if self.shows(4) && is_tcp {
                out.attribute(4, b"cubic\0");
            }
            if self.shows(7) {
                memory(out, 7, socket, view.received);
            }
        });
    }

    fn unix(&self, socket: &Socket, out: &mut Writer) {
        let (inode, backlog) = (socket.inode() as u32, socket.backlog());
        let state = match (backlog, socket.has_peer()) {
            (Some(_), _) => TcpState::Listen,
            (None, true) => TcpState::Established,
            (None, false) => TcpState::Close,
        };
        if inode == 0 || !self.wants(state) {
            return;
        }
        let queues = backlog.unwrap_or_else(|| (socket.channel().bytes(), socket.unreceived()));
        out.message(BY_FAMILY, self.to, |out| {
            out.put(&[UNIX, socket.kind() as u8, state as u8, 0]);
            out.put([inode, inode, 0].as_bytes());
            if self.shows(0) {
                match socket.address() {
                    Some(Address::Path(path)) => out.attribute_of(0, &[&path, &[0]]),
                    Some(Address::Abstract(name)) => out.attribute_of(0, &[&[0], &name]),
                    _ => {}
                }
            }
            if self.shows(4) {
                out.attribute(4, [queues.0 as u32, queues.1 as u32].as_bytes());
            }
            if self.shows(5) {
                memory(out, 5, socket, queues.0);
            }
            out.attribute(6, &[socket.shut_down()]);
            if self.shows(6) {
                out.number(7, task::shown_ids(socket.owner(), 0).0);
            }
        });
    }
}

/// Returns an address as 16 bytes. An IPv4 address fills the first of them.
fn address(address: InetAddress, is_v6: bool) -> [u8; 16] {
    let mut octets = address.ip.octets();
    if !is_v6 {
        octets.copy_within(12.., 0);
        octets[4..].fill(0);
    }
    octets
}

/// Writes nine numbers: bytes waiting to be received and their limit, bytes waiting to be sent and
/// their limit, and others.
fn memory(out: &mut Writer, kind: u16, socket: &Socket, received: usize) {
    let mut facts = socket.memory_facts();
    facts[0] = received as u32;
    out.attribute(kind, facts.as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec as Model;

    use freehold_collections::Arc;

    use super::super::wire::Messages;
    use super::*;
    use crate::socket::family::Family;
    use crate::task::namespaces::network::NetworkNamespace;

    fn asked(body: &[u8], flags: u16) -> Result<SocketDump> {
        let mut request = Writer::new();
        let to = Replied { sequence: 3, port: 0, flags: flags | flag::REQUEST };
        request.message(BY_FAMILY, to, |out| out.put(body));
        let request = request.finish().unwrap();
        begin(&Messages(&request).next().unwrap(), 7, NetworkNamespace::INITIAL_NUMBER)
    }

    /// Each bound UDP socket is listed once, in parts that fit into a page.
    #[test]
    fn a_list_comes_in_parts_that_a_page_holds() {
        let sockets: Model<Arc<Socket>> = (0..100)
            .map(|_| {
                let socket = Socket::new(Family::Inet, SocketKind::Datagram);
                table::enter(&socket).unwrap();
                let ip = core::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped();
                socket.bind(Some(Address::Inet(InetAddress { ip, port: 0 }))).unwrap();
                socket
            })
            .collect();
        let mut body = vec![0; INET_BYTES];
        body[..2].copy_from_slice(&[INET, Protocol::Udp as u8]);
        body[4..8].fill(0xff);
        let mut dump = asked(&body, flag::DUMP).unwrap();
        let mut ports = Model::new();
        loop {
            let mut out = Writer::new();
            let told = dump.write(&mut out).unwrap();
            let bytes = out.finish().unwrap();
            assert!(bytes.len() < 4096);
            ports.extend(Messages(&bytes).map(|message| {
                let body = message.body();
                assert_eq!((body[0], body[1], &body[8..12]), (INET, 7, &[127, 0, 0, 1][..]));
                u16::from_be_bytes([body[4], body[5]])
            }));
            if told == Told::All {
                break;
            }
        }
        for socket in &sockets {
            let port = socket.address().unwrap().inet().unwrap().port;
            assert_eq!(ports.iter().filter(|&&found| found == port).count(), 1);
        }
        body[8..10].copy_from_slice(&ports[0].to_be_bytes());
        let mut out = Writer::new();
        assert_eq!(asked(&body, flag::DUMP).unwrap().write(&mut out), Ok(Told::All));
        assert_eq!(Messages(&out.finish().unwrap()).count(), 1, "a port chooses");
    }

    proptest! {
        #[test]
        fn no_request_harms(
            mut body in prop::collection::vec(any::<u8>(), 0..90),
            family in prop_oneof![Just(UNIX), Just(INET), Just(INET6), any::<u8>()],
            is_tcp: bool,
            flags: u16,
        ) {
            body.splice(..body.len().min(2), [family, if is_tcp { Protocol::Tcp } else { Protocol::Udp } as u8]);
            if let Ok(mut dump) = asked(&body, flags) {
                // The writer pads a message to a multiple of 4 bytes.
                prop_assert!(body.len().next_multiple_of(4) >= UNIX_BYTES);
                prop_assert_eq!(flags & flag::DUMP, flag::DUMP);
                let mut out = Writer::new();
                dump.write(&mut out).unwrap();
                let out = out.finish().unwrap();
                prop_assert!(Messages(&out).all(|message| message.kind == BY_FAMILY));
            }
        }
    }
}
