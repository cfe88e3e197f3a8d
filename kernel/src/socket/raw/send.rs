//! Packets that programs send.

use core::net::Ipv6Addr;

use freehold_collections::{Receiver, Vec};

use super::format::{self, ECHO, ECHO_V6, Head, ICMP_HEADER, MOST_PACKET, V4_HEADER, V6_HEADER};
use super::{RawKind, RawSocket, arrive};
use crate::socket::address::inet::InetAddress;
use crate::socket::attachment::source_for;
use crate::socket::beside::wishes::Wishes;
use crate::socket::interface;
use crate::socket::wire::{self, Wire};
use crate::user::{self, Source};
use crate::{Errno, Result};

/// The route of a packet.
pub(super) struct RawRoute {
    pub(super) from: Ipv6Addr,
    pub(super) to: Ipv6Addr,
    /// The network that leads there, for an address on another machine.
    wire: Option<&'static Wire>,
}

impl RawSocket {
    /// Returns the route to `to`.
    ///
    /// # Errors
    /// `ENETUNREACH`; `EINVAL` if `to` has the other IP version.
    pub(super) fn route(&self, to: Ipv6Addr) -> Result<RawRoute> {
        if !self.speaks(to) {
            return Err(Errno::EINVAL);
        }
        let (local, device) = {
            let state = self.state.lock();
            (state.local, state.device)
        };
        let to = InetAddress { ip: to, port: 0 };
        if !self.network.is_up() {
            return Err(Errno::ENETUNREACH);
        }
        let is_local = to.is_local(&self.network);
        let to = if is_local { to.concrete() } else { to };
        let from = local.unwrap_or_else(|| to.source(&self.network));
        if is_local && [0, interface::LO.index].contains(&device) {
            return Ok(RawRoute { from, to: to.ip, wire: None });
        }
        let leads = !is_local
            && self.network.is_initial()
            && [0, interface::ETHERNET_INDEX].contains(&device)
            && source_for(to.ip).is_some();
        let wire = wire::wire().filter(|_| leads).ok_or(Errno::ENETUNREACH)?;
        if from.is_loopback() {
            return Err(Errno::EINVAL);
        }
        Ok(RawRoute { from, to: to.ip, wire: Some(wire) })
    }

    /// sendmsg(2) to `to`, or to the address that the socket is connected to.
    ///
    /// # Errors
    /// `EDESTADDRREQ`, `ENETUNREACH`, `EMSGSIZE`; `EINVAL` if a header is wrong, if a ping socket
    /// sends anything except an echo request, or if the requested source is not this machine's;
    /// `ENODEV` if there is no such interface; `EFAULT`, `ENOMEM`.
    pub(in crate::socket) fn send(
        self: &Receiver<Self>,
        source: &mut dyn Source,
        to: Option<InetAddress>,
        wishes: Option<&Wishes>,
    ) -> Result<usize> {
        let to = to.or_else(|| self.remote()).ok_or(Errno::EDESTADDRREQ)?;
        let length = source.remaining();
        if length > MOST_PACKET {
            return Err(Errno::EMSGSIZE);
        }
        let is_other =
            !self.is_v4() && self.kind == RawKind::Raw && ![0, u16::from(self.protocol)].contains(&to.port);
        if is_other {
            return Err(Errno::EINVAL);
        }
        let wishes = wishes.copied().unwrap_or_default();
        let mut route = self.route(to.ip)?;
        route.from = self.wished_source(&route, &wishes)?;
        let settings = self.state.lock().settings;
        let makes_header = settings.makes_header;
        let (ttl, tos) = (wishes.ttl.unwrap_or(settings.ttl), wishes.tos.unwrap_or(settings.tos));
        let head = Head { from: route.from, to: route.to, protocol: self.protocol, ttl, tos };
        let bytes = if makes_header {
            gather_packet(&head, source, length)?
        } else {
            let mut bytes = format::packet(&head, length)?;
            let payload = &mut bytes[format::header_bytes(&head)..];
            user::fill(source, payload)?;
            self.complete(&head, payload)?;
            bytes
        };
        match route.wire {
            Some(wire) => wire.send_packet(route.to, &bytes)?,
            None => arrive::arrive(&self.network, bytes),
        }
        Ok(length)
    }

    fn wished_source(&self, route: &RawRoute, wishes: &Wishes) -> Result<Ipv6Addr> {
        let is_there = |index| interface::all(&self.network).any(|device| device.index == index);
        if wishes.interface != 0 && !is_there(wishes.interface) {
            return Err(Errno::ENODEV);
        }
        let Some(ip) = wishes.source else { return Ok(route.from) };
        let is_own = self.speaks(ip) && InetAddress { ip, port: 0 }.is_local(&self.network);
        if is_own { Ok(ip) } else { Err(Errno::EINVAL) }
    }

    /// Adds the kernel's parts of a payload: identifiers and checksums.
    fn complete(self: &Receiver<Self>, head: &Head, payload: &mut [u8]) -> Result<()> {
        if self.kind == RawKind::Ping {
            let request = if self.is_v4() { ECHO } else { ECHO_V6 };
            if payload.len() < ICMP_HEADER || payload[..2] != [request, 0] {
                return Err(Errno::EINVAL);
            }
            let identifier = self.identify(0)?;
            payload[4..6].copy_from_slice(&identifier.to_be_bytes());
            format::fill_checksum(head, payload, 2);
            return Ok(());
        }
        let Some(at) = self.state.lock().settings.checksum_at.map(usize::from) else { return Ok(()) };
        if payload.len() < at + 2 {
            return Err(Errno::EINVAL);
        }
        format::fill_checksum(head, payload, at);
        Ok(())
    }
}

/// Reads a packet whose header the program made. The kernel completes the header (raw(7)).
fn gather_packet(head: &Head, source: &mut dyn Source, length: usize) -> Result<Vec<u8>> {
    if length < if head.is_v4() { V4_HEADER } else { V6_HEADER } {
        return Err(Errno::EINVAL);
    }
    let mut bytes: Vec<u8> = user::zeroed(length)?;
    user::fill(source, &mut bytes)?;
    if !head.is_v4() {
        return Ok(bytes);
    }
    let header = usize::from(bytes[0] & 0xf) * 4;
    if header < V4_HEADER || header > length {
        return Err(Errno::EINVAL);
    }
    bytes[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    if bytes[12..16] == [0; 4] {
        let from = head.from.to_ipv4_mapped().map_or([0; 4], |ip| ip.octets());
        bytes[12..16].copy_from_slice(&from);
    }
    format::fill_header_checksum(&mut bytes);
    Ok(bytes)
}
