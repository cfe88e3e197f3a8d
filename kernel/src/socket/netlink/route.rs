//! NETLINK_ROUTE: the network devices, their addresses and the routes to them (rtnetlink(7)).
//! Attributes are in Linux' order. A request for a change succeeds only if it changes nothing.

use core::net::Ipv6Addr;

use super::wire::{NetlinkMessage, Replied, Writer, flag, u32_at};
use super::{Answered, Caller, INET, INET6};
use crate::socket::interface::{self, Interface, LO};
use crate::task::namespaces::network::{LinkState, NetworkNamespace};
use crate::{Errno, Result};

/// Request types come in groups of four. RTM_NEWLINK is the first of the four about links, and so
/// on. The third of each group (RTM_GET…) is a query.
const LINK: u16 = 16;
const ADDRESS: u16 = 20;
const ROUTE: u16 = 24;
const NEIGHBOUR: u16 = 28;
/// RTM_SETLINK.
const SET_LINK: u16 = 19;
/// RTM_MAX, rounded up as Linux does.
const LAST: u16 = 123;
/// The position of a type in its group of four.
const NEW: u16 = 0;
const GET: u16 = 2;

/// Bytes of the headers of requests about links, addresses and routes.
const LINK_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 8;
const ROUTE_BYTES: usize = 12;

const BRIDGE: u8 = 7;

/// RT_TABLE_MAIN, RT_TABLE_LOCAL.
const MAIN: u8 = 254;
const LOCAL: u8 = 255;
/// RTPROT_KERNEL, RTPROT_BOOT.
const BY_KERNEL: u8 = 2;
const AT_BOOT: u8 = 3;
/// RT_SCOPE_HOST, RT_SCOPE_LINK, RT_SCOPE_UNIVERSE.
const HOST: u8 = 254;
const ON_LINK: u8 = 253;
const ANYWHERE: u8 = 0;
/// RTN_UNICAST, RTN_LOCAL, RTN_BROADCAST.
const TO_ONE: u8 = 1;
const TO_HERE: u8 = 2;
const TO_ALL: u8 = 3;
/// ::1.
const ADDRESS6: [u8; 16] = Ipv6Addr::LOCALHOST.octets();
/// IFA_F_PERMANENT.
const PERMANENT: u8 = 0x80;

/// A request and its sender.
struct Asked<'a> {
    message: &'a NetlinkMessage<'a>,
    caller: Caller<'a>,
    to: Replied,
}

impl<'a> Asked<'a> {
    fn byte(&self, at: usize) -> u8 {
        self.message.body().get(at).copied().unwrap_or(0)
    }

    fn number(&self, at: usize) -> u32 {
        u32_at(self.message.body(), at).unwrap_or(0)
    }

    /// Returns the value of the attribute `kind`, after a header of `skipped` bytes. If it occurs
    /// repeatedly, the last one counts.
    fn attribute(&self, skipped: usize, kind: u16) -> Option<&'a [u8]> {
        self.message.attributes(skipped).filter(|found| found.0 == kind).last().map(|found| found.1)
    }

    /// `EINVAL` if a header of `bytes` bytes is incomplete.
    fn check_header(&self, bytes: usize) -> Result<()> {
        if self.message.body().len() < bytes { Err(Errno::EINVAL) } else { Ok(()) }
    }
}

/// Answers a request.
///
/// # Errors
/// The error for the answer: `EOPNOTSUPP` for a missing feature, `EPERM`, `ENODEV`, `EINVAL`,
/// `ENETUNREACH`, `EADDRNOTAVAIL`.
pub(super) fn answer(message: &NetlinkMessage<'_>, caller: Caller<'_>, out: &mut Writer) -> Result<Answered> {
    let kind = message.kind;
    if kind > LAST {
        return Err(Errno::EOPNOTSUPP);
    }
    if message.body().is_empty() {
        return Ok(Answered::Nothing);
    }
    let is_question = kind % 4 == GET;
    if !is_question && !caller.may_change {
        return Err(Errno::EPERM);
    }
    let mut to = Replied { sequence: message.sequence, port: caller.port, flags: 0 };
    let is_dump = is_question && message.flags & flag::DUMP == flag::DUMP;
    if is_dump {
        to.flags = flag::MULTI;
    }
    let mut asked = Asked { message, caller, to };
    let subject = kind - kind % 4;
    if is_dump {
        let result = match subject {
            LINK => dump_links(&asked, out),
            ADDRESS => dump_addresses(&mut asked, out),
            ROUTE => dump_routes(&mut asked, out),
            NEIGHBOUR => Ok(()),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        return Ok(Answered::Dump(result, asked.to.flags));
    }
    let done = match subject {
        LINK if is_question => one_link(&asked, out),
        LINK if kind % 4 == NEW || kind == SET_LINK => set_link(&asked),
        ADDRESS if is_question => one_address(&asked, out),
        ADDRESS if kind % 4 == NEW => new_address(&asked),
        ROUTE if is_question => one_route(&asked, out),
        _ => Err(Errno::EOPNOTSUPP),
    };
    done.map(|()| Answered::Nothing)
}

/// Attributes of links: IFLA_IFNAME, IFLA_MASTER, IFLA_LINKINFO, IFLA_ALT_IFNAME.
const NAME: u16 = 3;
const MASTER: u16 = 10;
const LINK_INFO: u16 = 18;
const OTHER_NAME: u16 = 53;

/// Whether `value` is the device's name, with or without a NUL.
fn is_name(device: &Interface, value: &[u8]) -> bool {
    value.split(|&byte| byte == 0).next() == Some(device.name.as_bytes())
}

fn dump_links(asked: &Asked<'_>, out: &mut Writer) -> Result<()> {
    if asked.caller.is_strict {
        asked.check_header(LINK_BYTES)?;
        if asked.number(4) != 0 {
            return Err(Errno::EINVAL);
        }
    }
    // The devices have no master, are no bridges, and have no kind.
    let of_others = |kind| asked.attribute(LINK_BYTES, kind).is_some_and(|value| value != [0; 4]);
    if asked.byte(0) != BRIDGE && !of_others(MASTER) && !of_others(LINK_INFO) {
        interface::all(asked.caller.network).for_each(|device| link(asked, &device, out));
    }
    Ok(())
}

/// Returns the interface that a request names by number or by name.
fn named_link(asked: &Asked<'_>) -> Result<Interface> {
    asked.check_header(LINK_BYTES)?;
    let name = asked.attribute(LINK_BYTES, NAME).or_else(|| asked.attribute(LINK_BYTES, OTHER_NAME));
    let found = match (asked.number(4), name) {
        (0, Some(name)) => interface::all(asked.caller.network).find(|device| is_name(device, name)),
        (0, None) => return Err(Errno::EINVAL),
        (index, _) => interface::all(asked.caller.network).find(|device| device.index == index),
    };
    found.ok_or(Errno::ENODEV)
}

fn one_link(asked: &Asked<'_>, out: &mut Writer) -> Result<()> {
    link(asked, &named_link(asked)?, out);
    Ok(())
}

/// RTM_NEWLINK and RTM_SETLINK: a request can only set a device up or down. Devices of the initial
/// namespace stay up.
fn set_link(asked: &Asked<'_>) -> Result<()> {
    const UP: u32 = 1;
    let (device, network) = (named_link(asked)?, asked.caller.network);
    let (flags, change) = (asked.number(8), asked.number(12));
    let only_named = asked.message.attributes(LINK_BYTES).all(|found| [NAME, OTHER_NAME].contains(&found.0));
    if !only_named || change | UP != UP {
        return Err(Errno::EOPNOTSUPP);
    }
    let is_up = if change & UP != 0 { flags & UP != 0 } else { device.is_up() };
    if network.is_initial() && !is_up {
        return Err(Errno::EOPNOTSUPP);
    }
    network.set_link(if is_up { LinkState::Up } else { LinkState::Down });
    Ok(())
}

/// RTM_NEWADDR: the loopback device gets its own address. No other address can be added.
fn new_address(asked: &Asked<'_>) -> Result<()> {
    asked.check_header(ADDRESS_BYTES)?;
    let address = asked.attribute(ADDRESS_BYTES, 2).or_else(|| asked.attribute(ADDRESS_BYTES, 1));
    let is_own = asked.byte(0) == INET && asked.byte(1) == LO.prefix && asked.number(4) == LO.index;
    if !is_own || address != Some(&LO.address[..]) {
        return Err(Errno::EOPNOTSUPP);
    }
    if asked.caller.network.is_up() { Err(Errno::EEXIST) } else { Ok(()) }
}

/// The device's name, with a NUL.
fn name(device: &Interface, out: &mut Writer, kind: u16) {
    let mut text = [0; 16];
    text[..device.name.len()].copy_from_slice(device.name.as_bytes());
    out.attribute(kind, &text[..=device.name.len()]);
}

/// Returns the counters of struct rtnl_link_stats: packets and bytes, received and sent; errors;
/// dropped packets.
fn counters(device: &Interface) -> [u64; 25] {
    let counts = device.counts();
    let mut values = [0; 25];
    values[..4].copy_from_slice(&[
        counts.received_frames,
        counts.sent_frames,
        counts.received_bytes,
        counts.sent_bytes,
    ]);
    values[6] = counts.dropped;
    values
}

#[cold]
fn link(asked: &Asked<'_>, device: &Interface, out: &mut Writer) {
    let is_lo = device.index == LO.index;
    out.message(LINK, asked.to, |out| {
        out.put([[0, 0], device.hardware.to_ne_bytes()].as_flattened());
        out.put(&device.index.to_ne_bytes());
        // Only this message reports LOWER_UP.
        let lower_up = if device.is_up() { 0x1_0000 } else { 0 };
        out.put(&(device.flags | lower_up).to_ne_bytes());
        out.put(&[0; 4]);
        name(device, out, NAME);
        out.number(13, interface::QUEUE_LENGTH);
        // Its operational state (unknown or up), and its link mode (the default).
        out.attribute(16, &[if is_lo { 0 } else { 6 }]);
        out.attribute(17, &[0]);
        out.number(4, device.mtu);
        // The minimum and maximum MTU; the group; the counts of promiscuous and all-multicast mode.
        for kind in [50, 51, 27, 30, 61] {
            out.number(kind, 0);
        }
        // Numbers of queues, of segments and of their bytes; carrier.
        for (kind, value) in [(31, 1), (40, 65_535), (41, 65_536), (32, 1)] {
            out.number(kind, value);
        }
        out.attribute(33, &[1]);
        out.attribute(6, if is_lo { b"noqueue\0" } else { b"fq_codel\0" });
        for kind in [35, 47, 48] {
            out.number(kind, 0);
        }
        out.attribute(39, &[0]);
        // Its hardware mapping, its address and the broadcast address, and its counters in 64 and
        // in 32 bits.
        out.attribute(14, &[0; 32]);
        out.attribute(1, &device.hardware_addresses[0]);
        out.attribute(2, &device.hardware_addresses[1]);
        let counters = counters(device);
        out.attribute(23, counters.map(u64::to_ne_bytes).as_flattened());
        let mut short = [[0; 4]; 24];
        short.iter_mut().zip(counters).for_each(|(to, value)| *to = (value as u32).to_ne_bytes());
        out.attribute(7, short.as_flattened());
    });
}

/// Returns whether a request of `family` is about IPv4, and whether it is about IPv6. With another
/// family it is about both.
const fn versions(family: u8) -> (bool, bool) {
    (family != INET6, family != INET)
}

fn dump_addresses(asked: &mut Asked<'_>, out: &mut Writer) -> Result<()> {
    let mut only = None;
    if asked.caller.is_strict {
        asked.check_header(ADDRESS_BYTES)?;
        if asked.message.body()[1..4] != [0; 3] {
            return Err(Errno::EINVAL);
        }
        let wanted = asked.number(4);
        if wanted != 0 {
            asked.to.flags |= flag::FILTERED;
            only = Some(wanted);
            interface::all(asked.caller.network)
                .find(|device| device.index == wanted)
                .ok_or(Errno::ENODEV)?;
        }
    }
    let (v4, v6) = versions(asked.byte(0));
    let is_wanted = |device: &Interface| device.is_up() && only.is_none_or(|index| device.index == index);
    if v4 {
        interface::all(asked.caller.network)
            .filter(is_wanted)
            .for_each(|device| address_v4(asked, &device, out));
    }
    if v6 && interface::all(asked.caller.network).next().is_some_and(|lo| is_wanted(&lo)) {
        address_v6(asked, out);
    }
    Ok(())
}

/// Answers RTM_GETADDR for one address. IPv4 has no such request, as on Linux 6.1.
fn one_address(asked: &Asked<'_>, out: &mut Writer) -> Result<()> {
    if asked.byte(0) != INET6 {
        return Err(Errno::EOPNOTSUPP);
    }
    asked.check_header(ADDRESS_BYTES)?;
    match asked.attribute(ADDRESS_BYTES, 1).or_else(|| asked.attribute(ADDRESS_BYTES, 2)) {
        Some(address) if address == ADDRESS6 => {
            address_v6(asked, out);
            Ok(())
        }
        Some(address) if address.len() == ADDRESS6.len() => Err(Errno::EADDRNOTAVAIL),
        _ => Err(Errno::EINVAL),
    }
}

/// Writes the preferred and valid lifetime of an address (forever), and the times of its creation
/// and change.
fn lifetimes(out: &mut Writer) {
    const EVER: u32 = u32::MAX;
    out.attribute(6, [EVER.to_ne_bytes(), EVER.to_ne_bytes(), [0; 4], [0; 4]].as_flattened());
}

fn address_v4(asked: &Asked<'_>, device: &Interface, out: &mut Writer) {
    let is_lo = device.index == LO.index;
    out.message(ADDRESS, asked.to, |out| {
        out.put(&[INET, device.prefix, PERMANENT, if is_lo { HOST } else { ANYWHERE }]);
        out.put(&device.index.to_ne_bytes());
        out.attribute(1, &device.address);
        out.attribute(2, &device.address);
        if !is_lo {
            out.attribute(4, &device.network().1);
        }
        name(device, out, 3);
        out.number(8, PERMANENT.into());
        lifetimes(out);
    });
}

fn address_v6(asked: &Asked<'_>, out: &mut Writer) {
    out.message(ADDRESS, asked.to, |out| {
        out.put(&[INET6, 128, PERMANENT, HOST]);
        out.put(&LO.index.to_ne_bytes());
        out.attribute(1, &ADDRESS6);
        lifetimes(out);
        out.number(8, PERMANENT.into());
        // IFAPROT_KERNEL_LO.
        out.attribute(11, &[1]);
    });
}

/// Attributes of routes: RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PREFSRC, RTA_TABLE.
const DESTINATION: u16 = 1;
const DEVICE: u16 = 4;
const GATEWAY: u16 = 5;
const SOURCE: u16 = 7;
const TABLE: u16 = 15;

/// An IPv4 route.
#[derive(Clone, Copy)]
struct RouteV4 {
    table: u8,
    /// Origin of the route (RTPROT_*).
    protocol: u8,
    to: [u8; 4],
    bits: u8,
    scope: u8,
    kind: u8,
    gateway: Option<[u8; 4]>,
    device: Interface,
}

/// Returns the IPv4 routes: to other machines, then to this one.
fn routes(network: &NetworkNamespace) -> impl Iterator<Item = RouteV4> + use<> {
    let outside = |device: Interface| {
        let gateway = device.gateway?;
        let (network, _) = device.network();
        let route = RouteV4 {
            table: MAIN,
            protocol: BY_KERNEL,
            to: network,
            bits: device.prefix,
            scope: ON_LINK,
            kind: TO_ONE,
            gateway: None,
            device,
        };
        let (to, gateway) = ([0; 4], Some(gateway));
        Some([RouteV4 { protocol: AT_BOOT, to, bits: 0, scope: ANYWHERE, gateway, ..route }, route])
    };
    let here = |device: Interface| {
        let (network, all) = device.network();
        let route = |to, bits, scope, kind| {
            let (table, protocol, gateway) = (LOCAL, BY_KERNEL, None);
            RouteV4 { table, protocol, to, bits, scope, kind, gateway, device }
        };
        let whole = (device.index == LO.index).then_some(route(network, device.prefix, HOST, TO_HERE));
        let own = [route(device.address, 32, HOST, TO_HERE), route(all, 32, ON_LINK, TO_ALL)];
        whole.into_iter().chain(own)
    };
    // A device that is down has no routes.
    let devices = || interface::all(network).filter(Interface::is_up);
    devices().filter_map(outside).flatten().chain(devices().flat_map(here))
}

/// The requested routes; 0 for any.
struct Wanted {
    table: u32,
    protocol: u8,
    kind: u8,
    device: u32,
}

impl Wanted {
    fn has(&self, table: u8, protocol: u8, kind: u8) -> bool {
        (self.table == 0 || self.table == table.into())
            && [0, protocol].contains(&self.protocol)
            && [0, kind].contains(&self.kind)
    }
}

fn wanted_routes(asked: &mut Asked<'_>) -> Result<Wanted> {
    let mut wanted = Wanted { table: 0, protocol: 0, kind: 0, device: 0 };
    if !asked.caller.is_strict {
        return Ok(wanted);
    }
    asked.check_header(ROUTE_BYTES)?;
    let table = asked.attribute(ROUTE_BYTES, TABLE).and_then(|value| u32_at(value, 0));
    wanted = Wanted {
        table: table.unwrap_or_else(|| asked.byte(4).into()),
        protocol: asked.byte(5),
        kind: asked.byte(7),
        device: 0,
    };
    let device = asked.attribute(ROUTE_BYTES, DEVICE).and_then(|value| u32_at(value, 0));
    if wanted.table != 0 || wanted.protocol != 0 || wanted.kind != 0 || device.is_some() {
        asked.to.flags |= flag::FILTERED;
    }
    if let Some(index) = device {
        interface::all(asked.caller.network).find(|device| device.index == index).ok_or(Errno::ENODEV)?;
        wanted.device = index;
    }
    let is_known = [0, MAIN.into(), LOCAL.into()].contains(&wanted.table);
    let is_of_one = [INET, INET6].contains(&asked.byte(0));
    if is_of_one && !is_known { Err(Errno::ENOENT) } else { Ok(wanted) }
}

#[cold]
fn dump_routes(asked: &mut Asked<'_>, out: &mut Writer) -> Result<()> {
    /// RTM_F_CLONED: routes from a cache of lookups, which does not exist.
    const CLONED: u32 = 0x200;
    let wanted = wanted_routes(asked)?;
    if asked.number(8) & CLONED != 0 {
        return Ok(());
    }
    let (v4, v6) = versions(asked.byte(0));
    let is_wanted = |route: &RouteV4| {
        wanted.has(route.table, route.protocol, route.kind)
            && [0, route.device.index].contains(&wanted.device)
    };
    for route in routes(asked.caller.network).filter(|route| v4 && is_wanted(route)) {
        out.message(ROUTE, asked.to, |out| {
            out.put(&[INET, route.bits, 0, 0, route.table, route.protocol, route.scope, route.kind]);
            out.put(&[0; 4]);
            out.number(TABLE, route.table.into());
            if route.bits > 0 {
                out.attribute(DESTINATION, &route.to);
            }
            match route.gateway {
                Some(gateway) => out.attribute(GATEWAY, &gateway),
                None => out.attribute(SOURCE, &route.device.address),
            }
            out.number(DEVICE, route.device.index);
        });
    }
    let v6 = v6 && asked.caller.network.is_up();
    if v6 && wanted.has(LOCAL, BY_KERNEL, TO_HERE) && [0, LO.index].contains(&wanted.device) {
        out.message(ROUTE, asked.to, |out| {
            out.put(&[INET6, 128, 0, 0, LOCAL, BY_KERNEL, 0, TO_HERE]);
            out.put(&[0; 4]);
            out.number(TABLE, LOCAL.into());
            out.attribute(DESTINATION, &ADDRESS6);
            route_v6_end(out);
        });
    }
    Ok(())
}

/// Writes a route's metric, device, cache information and preference.
fn route_v6_end(out: &mut Writer) {
    out.number(6, 0);
    out.number(DEVICE, LO.index);
    out.attribute(12, &[0; 32]);
    out.attribute(20, &[0]);
}

/// RTM_GETROUTE of one address: the route of a packet to it.
#[cold]
fn one_route(asked: &Asked<'_>, out: &mut Writer) -> Result<()> {
    asked.check_header(ROUTE_BYTES)?;
    let to = asked.attribute(ROUTE_BYTES, DESTINATION);
    match asked.byte(0) {
        INET => route_v4(asked, to.unwrap_or(&LO.address).try_into().map_err(|_| Errno::EINVAL)?, out),
        INET6 => route_v6(asked, to.unwrap_or(&ADDRESS6).try_into().map_err(|_| Errno::EINVAL)?, out),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn route_v4(asked: &Asked<'_>, to: [u8; 4], out: &mut Writer) -> Result<()> {
    /// RTM_F_CLONED, and RTCF_LOCAL if the packet stays on this machine.
    const LOOKED_UP: u32 = 0x200;
    const STAYS: u32 = 0x8000_0000;
    let matches = |route: &RouteV4| {
        let shift = 32 - u32::from(route.bits);
        let network = |ip| u64::from(u32::from_be_bytes(ip)) >> shift;
        route.kind != TO_ALL && network(route.to) == network(to)
    };
    let found = routes(asked.caller.network)
        .filter(matches)
        .max_by_key(|route| route.bits)
        .ok_or(Errno::ENETUNREACH)?;
    let stays = found.kind == TO_HERE;
    out.message(ROUTE, asked.to, |out| {
        out.put(&[INET, 32, 0, 0, MAIN, 0, 0, found.kind]);
        out.put(&(LOOKED_UP | if stays { STAYS } else { 0 }).to_ne_bytes());
        out.number(TABLE, MAIN.into());
        out.attribute(DESTINATION, &to);
        // Packets to an address of this machine pass through its loopback device.
        out.number(DEVICE, if stays { LO.index } else { found.device.index });
        found.gateway.iter().for_each(|gateway| out.attribute(GATEWAY, gateway));
        out.attribute(SOURCE, &found.device.address);
        out.number(25, asked.caller.user);
        out.attribute(12, &[0; 32]);
    });
    Ok(())
}

fn route_v6(asked: &Asked<'_>, to: [u8; 16], out: &mut Writer) -> Result<()> {
    if to != ADDRESS6 || !asked.caller.network.is_up() {
        return Err(Errno::ENETUNREACH);
    }
    out.message(ROUTE, asked.to, |out| {
        out.put(&[INET6, 128, 128, 0, LOCAL, BY_KERNEL, 0, TO_HERE]);
        out.put(&[0; 4]);
        out.number(TABLE, LOCAL.into());
        out.attribute(DESTINATION, &to);
        out.attribute(2, &[0; 16]);
        out.attribute(SOURCE, &ADDRESS6);
        route_v6_end(out);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec::Vec as Model;

    use super::super::wire::Messages;
    use super::*;

    fn caller() -> Caller<'static> {
        let network = NetworkNamespace::initial();
        Caller { port: 7, network, user: 0, may_change: true, is_strict: false }
    }

    /// Returns the types of the messages that answer a request with this header and body.
    fn answers(kind: u16, flags: u16, body: &[u8], caller: Caller<'_>) -> Result<Model<u16>> {
        let mut request = Writer::new();
        let to = Replied { sequence: 3, port: 0, flags: flags | flag::REQUEST };
        request.message(kind, to, |out| out.put(body));
        let request = request.finish().unwrap();
        let mut out = Writer::new();
        let answered = answer(&Messages(&request).next().unwrap(), caller, &mut out)?;
        if let Answered::Dump(result, _) = answered {
            result?;
        }
        let out = out.finish().unwrap();
        let whole: usize = Messages(&out).map(|message| message.whole.len().next_multiple_of(4)).sum();
        assert_eq!(whole, out.len(), "answers are whole messages");
        Ok(Messages(&out).map(|message| message.kind).collect())
    }

    #[test]
    fn what_is_asked_is_answered() {
        let lo = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(answers(LINK + GET, 0, &lo, caller()), Ok(std::vec![LINK]));
        assert_eq!(answers(LINK + GET, flag::DUMP, &[0], caller()), Ok(std::vec![LINK]));
        assert_eq!(answers(ADDRESS + GET, flag::DUMP, &[0; 8], caller()), Ok(std::vec![ADDRESS; 2]));
        assert_eq!(answers(ROUTE + GET, flag::DUMP, &[0; 12], caller()), Ok(std::vec![ROUTE; 4]));
        let strict = Caller { is_strict: true, ..caller() };
        assert_eq!(answers(LINK + GET, flag::DUMP, &[0], strict), Err(Errno::EINVAL));
        assert_eq!(answers(LINK + NEW, 0, &lo, caller()), Ok(std::vec![]));
        let powerless = Caller { may_change: false, ..caller() };
        assert_eq!(answers(LINK + NEW, 0, &lo, powerless), Err(Errno::EPERM));
        let mut down = lo;
        down[12] = 1;
        assert_eq!(answers(LINK + NEW, 0, &down, caller()), Err(Errno::EOPNOTSUPP));
    }

    proptest! {
        /// Any request gets an answer that is complete and short.
        #[test]
        fn no_request_harms(
            kind in prop_oneof![16..32_u16, any::<u16>()],
            flags: u16,
            body in prop::collection::vec(prop_oneof![0..12_u8, any::<u8>()], 0..80),
            is_strict: bool,
            may_change: bool,
        ) {
            let asking = Caller { is_strict, may_change, ..caller() };
            if let Ok(found) = answers(kind, flags, &body, asking) {
                prop_assert!(found.len() <= 4);
                prop_assert!(found.iter().all(|found| found + GET == kind));
            }
        }
    }
}
