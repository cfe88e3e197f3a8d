//! NETLINK_ROUTE: what there is to say of `lo`, its addresses and the routes to them
//! (rtnetlink(7)). Attributes are in Linux' order. Nothing can be changed but what is so already.

use core::net::Ipv6Addr;

use super::wire::{NetlinkMessage, Replied, Writer, flag, u32_at};
use super::{Answered, Caller, INET, INET6};
use crate::socket::interface as lo;
use crate::{Errno, Result};

/// Types of requests: RTM_NEWLINK is the first of four about links, and so on. The third of four
/// asks.
const LINK: u16 = 16;
const ADDRESS: u16 = 20;
const ROUTE: u16 = 24;
const NEIGHBOUR: u16 = 28;
/// RTM_SETLINK.
const SET_LINK: u16 = 19;
/// RTM_MAX, rounded up as Linux does.
const LAST: u16 = 123;
/// Which of four a type is.
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
/// RTPROT_KERNEL.
const BY_KERNEL: u8 = 2;
/// RT_SCOPE_HOST, RT_SCOPE_LINK.
const HOST: u8 = 254;
const ON_LINK: u8 = 253;
/// RTN_LOCAL, RTN_BROADCAST.
const TO_HERE: u8 = 2;
const TO_ALL: u8 = 3;
/// ::1.
const ADDRESS6: [u8; 16] = Ipv6Addr::LOCALHOST.octets();
/// IFA_F_PERMANENT.
const PERMANENT: u8 = 0x80;

/// What was asked.
struct Asked<'a> {
    message: &'a NetlinkMessage<'a>,
    caller: Caller,
    to: Replied,
}

impl<'a> Asked<'a> {
    fn byte(&self, at: usize) -> u8 {
        self.message.body().get(at).copied().unwrap_or(0)
    }

    fn number(&self, at: usize) -> u32 {
        u32_at(self.message.body(), at).unwrap_or(0)
    }

    /// The value of the attribute `kind` behind a header of `skipped` bytes; the last one counts.
    fn attribute(&self, skipped: usize, kind: u16) -> Option<&'a [u8]> {
        self.message.attributes(skipped).filter(|found| found.0 == kind).last().map(|found| found.1)
    }

    /// `EINVAL` where a header of `bytes` bytes is not all there.
    fn check_header(&self, bytes: usize) -> Result<()> {
        if self.message.body().len() < bytes { Err(Errno::EINVAL) } else { Ok(()) }
    }
}

/// Answers a request.
///
/// # Errors
/// What the error that answers it says: `EOPNOTSUPP` for what is not there, `EPERM`, `ENODEV`,
/// `EINVAL`, `ENETUNREACH`, `EADDRNOTAVAIL`.
pub(super) fn answer(message: &NetlinkMessage<'_>, caller: Caller, out: &mut Writer) -> Result<Answered> {
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

/// Whether `value` is `lo`, with a NUL or without.
fn is_lo(value: &[u8]) -> bool {
    value.split(|&byte| byte == 0).next() == Some(lo::NAME)
}

fn dump_links(asked: &Asked<'_>, out: &mut Writer) -> Result<()> {
    if asked.caller.is_strict {
        asked.check_header(LINK_BYTES)?;
        if asked.number(4) != 0 {
            return Err(Errno::EINVAL);
        }
    }
    // It is nobody's slave, no bridge, and of no kind.
    let of_others = |kind| asked.attribute(LINK_BYTES, kind).is_some_and(|value| value != [0; 4]);
    if asked.byte(0) != BRIDGE && !of_others(MASTER) && !of_others(LINK_INFO) {
        link(asked, out);
    }
    Ok(())
}

/// The interface that a request names by number or by name.
fn check_link(asked: &Asked<'_>) -> Result<()> {
    asked.check_header(LINK_BYTES)?;
    let name = asked.attribute(LINK_BYTES, NAME).or_else(|| asked.attribute(LINK_BYTES, OTHER_NAME));
    match (asked.number(4), name) {
        (lo::INDEX, _) => Ok(()),
        (0, Some(name)) if is_lo(name) => Ok(()),
        (0, None) => Err(Errno::EINVAL),
        _ => Err(Errno::ENODEV),
    }
}

fn one_link(asked: &Asked<'_>, out: &mut Writer) -> Result<()> {
    check_link(asked)?;
    link(asked, out);
    Ok(())
}

/// RTM_NEWLINK and RTM_SETLINK: it is up already, and that is all that can be asked for.
fn set_link(asked: &Asked<'_>) -> Result<()> {
    const UP: u32 = 1;
    check_link(asked)?;
    let (flags, change) = (asked.number(8), asked.number(12));
    let only_named = asked.message.attributes(LINK_BYTES).all(|found| [NAME, OTHER_NAME].contains(&found.0));
    if only_named && change | UP == UP && flags & change == change { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

fn link(asked: &Asked<'_>, out: &mut Writer) {
    out.message(LINK, asked.to, |out| {
        out.put(&[[0, 0], lo::HARDWARE.to_ne_bytes()].as_flattened());
        out.put(&lo::INDEX.to_ne_bytes());
        // LOWER_UP is told here alone.
        out.put(&(lo::FLAGS | 0x1_0000).to_ne_bytes());
        out.put(&[0; 4]);
        out.attribute(NAME, b"lo\0");
        out.number(13, lo::QUEUE_LENGTH);
        // Its operational state is unknown, and its mode the default one.
        out.attribute(16, &[0]);
        out.attribute(17, &[0]);
        out.number(4, lo::MTU);
        // The least and the most of that; its group; who hears all.
        for kind in [50, 51, 27, 30, 61] {
            out.number(kind, 0);
        }
        // Queues, segments and their bytes; carrier.
        for (kind, value) in [(31, 1), (40, 65_535), (41, 65_536), (32, 1)] {
            out.number(kind, value);
        }
        out.attribute(33, &[1]);
        out.attribute(6, b"noqueue\0");
        for kind in [35, 47, 48] {
            out.number(kind, 0);
        }
        out.attribute(39, &[0]);
        // Its place in the machine, its address and that of all, and its counters in 64 and in 32
        // bits.
        for (kind, length) in [(14, 32), (1, 6), (2, 6), (23, 200), (7, 96)] {
            out.attribute(kind, &[0; 200][..length]);
        }
    });
}

/// Which of versions 4 and 6 a request of `family` is about: both, where it is about neither.
const fn versions(family: u8) -> (bool, bool) {
    (family != INET6, family != INET)
}

fn dump_addresses(asked: &mut Asked<'_>, out: &mut Writer) -> Result<()> {
    if asked.caller.is_strict {
        asked.check_header(ADDRESS_BYTES)?;
        if asked.message.body()[1..4] != [0; 3] {
            return Err(Errno::EINVAL);
        }
        match asked.number(4) {
            0 => {}
            lo::INDEX => asked.to.flags |= flag::FILTERED,
            _ => {
                asked.to.flags |= flag::FILTERED;
                return Err(Errno::ENODEV);
            }
        }
    }
    let (v4, v6) = versions(asked.byte(0));
    if v4 {
        address_v4(asked, out);
    }
    if v6 {
        address_v6(asked, out);
    }
    Ok(())
}

/// RTM_GETADDR of one address: version 4 has none, as on Linux 6.1.
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

/// How long it is preferred and valid: for ever; when it was made and changed.
fn lifetimes(out: &mut Writer) {
    const EVER: u32 = u32::MAX;
    out.attribute(6, [EVER.to_ne_bytes(), EVER.to_ne_bytes(), [0; 4], [0; 4]].as_flattened());
}

fn address_v4(asked: &Asked<'_>, out: &mut Writer) {
    out.message(ADDRESS, asked.to, |out| {
        out.put(&[INET, 8, PERMANENT, HOST]);
        out.put(&lo::INDEX.to_ne_bytes());
        out.attribute(1, &lo::ADDRESS);
        out.attribute(2, &lo::ADDRESS);
        out.attribute(3, b"lo\0");
        out.number(8, PERMANENT.into());
        lifetimes(out);
    });
}

fn address_v6(asked: &Asked<'_>, out: &mut Writer) {
    out.message(ADDRESS, asked.to, |out| {
        out.put(&[INET6, 128, PERMANENT, HOST]);
        out.put(&lo::INDEX.to_ne_bytes());
        out.attribute(1, &ADDRESS6);
        lifetimes(out);
        out.number(8, PERMANENT.into());
        // IFAPROT_KERNEL_LO.
        out.attribute(11, &[1]);
    });
}

/// Attributes of routes: RTA_DST, RTA_OIF, RTA_PREFSRC, RTA_TABLE.
const DESTINATION: u16 = 1;
const DEVICE: u16 = 4;
const SOURCE: u16 = 7;
const TABLE: u16 = 15;

/// Routes to version 4: destination, its bits, scope, type.
const ROUTES: [([u8; 4], u8, u8, u8); 3] = [
    ([127, 0, 0, 0], 8, HOST, TO_HERE),
    ([127, 0, 0, 1], 32, HOST, TO_HERE),
    ([127, 255, 255, 255], 32, ON_LINK, TO_ALL),
];

/// Which routes are wanted; 0 for any.
struct Wanted {
    table: u32,
    protocol: u8,
    kind: u8,
}

impl Wanted {
    fn has(&self, kind: u8) -> bool {
        let table = self.table == 0 || self.table == LOCAL.into();
        table && [0, BY_KERNEL].contains(&self.protocol) && (self.kind == 0 || self.kind == kind)
    }
}

fn wanted_routes(asked: &mut Asked<'_>) -> Result<Wanted> {
    let mut wanted = Wanted { table: 0, protocol: 0, kind: 0 };
    if !asked.caller.is_strict {
        return Ok(wanted);
    }
    asked.check_header(ROUTE_BYTES)?;
    let table = asked.attribute(ROUTE_BYTES, TABLE).and_then(|value| u32_at(value, 0));
    wanted = Wanted {
        table: table.unwrap_or_else(|| asked.byte(4).into()),
        protocol: asked.byte(5),
        kind: asked.byte(7),
    };
    let device = asked.attribute(ROUTE_BYTES, DEVICE).and_then(|value| u32_at(value, 0));
    if wanted.table != 0 || wanted.protocol != 0 || wanted.kind != 0 || device.is_some() {
        asked.to.flags |= flag::FILTERED;
    }
    if device.is_some_and(|device| device != lo::INDEX) {
        return Err(Errno::ENODEV);
    }
    let is_known = [0, MAIN.into(), LOCAL.into()].contains(&wanted.table);
    let is_of_one = [INET, INET6].contains(&asked.byte(0));
    if is_of_one && !is_known { Err(Errno::ENOENT) } else { Ok(wanted) }
}

fn dump_routes(asked: &mut Asked<'_>, out: &mut Writer) -> Result<()> {
    /// RTM_F_CLONED: what was looked up is not kept.
    const CLONED: u32 = 0x200;
    let wanted = wanted_routes(asked)?;
    if asked.number(8) & CLONED != 0 {
        return Ok(());
    }
    let (v4, v6) = versions(asked.byte(0));
    for (to, bits, scope, kind) in ROUTES.into_iter().filter(|route| v4 && wanted.has(route.3)) {
        out.message(ROUTE, asked.to, |out| {
            out.put(&[INET, bits, 0, 0, LOCAL, BY_KERNEL, scope, kind]);
            out.put(&[0; 4]);
            out.number(TABLE, LOCAL.into());
            out.attribute(DESTINATION, &to);
            out.attribute(SOURCE, &lo::ADDRESS);
            out.number(DEVICE, lo::INDEX);
        });
    }
    if v6 && wanted.has(TO_HERE) {
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

/// A route's metric, device, what is kept of its use, and how it is preferred.
fn route_v6_end(out: &mut Writer) {
    out.number(6, 0);
    out.number(DEVICE, lo::INDEX);
    out.attribute(12, &[0; 32]);
    out.attribute(20, &[0]);
}

/// RTM_GETROUTE of one address: the way of a packet to it.
fn one_route(asked: &Asked<'_>, out: &mut Writer) -> Result<()> {
    asked.check_header(ROUTE_BYTES)?;
    let to = asked.attribute(ROUTE_BYTES, DESTINATION);
    match asked.byte(0) {
        INET => route_v4(asked, to.unwrap_or(&lo::ADDRESS).try_into().map_err(|_| Errno::EINVAL)?, out),
        INET6 => route_v6(asked, to.unwrap_or(&ADDRESS6).try_into().map_err(|_| Errno::EINVAL)?, out),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn route_v4(asked: &Asked<'_>, to: [u8; 4], out: &mut Writer) -> Result<()> {
    /// RTM_F_CLONED and RTCF_LOCAL.
    const LOOKED_UP: u32 = 0x8000_0200;
    if to[0] != lo::ADDRESS[0] {
        return Err(Errno::ENETUNREACH);
    }
    out.message(ROUTE, asked.to, |out| {
        out.put(&[INET, 32, 0, 0, MAIN, 0, 0, TO_HERE]);
        out.put(&LOOKED_UP.to_ne_bytes());
        out.number(TABLE, MAIN.into());
        out.attribute(DESTINATION, &to);
        out.number(DEVICE, lo::INDEX);
        out.attribute(SOURCE, &lo::ADDRESS);
        out.number(25, asked.caller.user);
        out.attribute(12, &[0; 32]);
    });
    Ok(())
}

fn route_v6(asked: &Asked<'_>, to: [u8; 16], out: &mut Writer) -> Result<()> {
    if to != ADDRESS6 {
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

    const CALLER: Caller = Caller { port: 7, user: 0, may_change: true, is_strict: false };

    /// The types of the messages that answer a request with this header and body.
    fn answers(kind: u16, flags: u16, body: &[u8], caller: Caller) -> Result<Model<u16>> {
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
        assert_eq!(answers(LINK + GET, 0, &lo, CALLER), Ok(std::vec![LINK]));
        assert_eq!(answers(LINK + GET, flag::DUMP, &[0], CALLER), Ok(std::vec![LINK]));
        assert_eq!(answers(ADDRESS + GET, flag::DUMP, &[0; 8], CALLER), Ok(std::vec![ADDRESS; 2]));
        assert_eq!(answers(ROUTE + GET, flag::DUMP, &[0; 12], CALLER), Ok(std::vec![ROUTE; 4]));
        let strict = Caller { is_strict: true, ..CALLER };
        assert_eq!(answers(LINK + GET, flag::DUMP, &[0], strict), Err(Errno::EINVAL));
        assert_eq!(answers(LINK + NEW, 0, &lo, CALLER), Ok(std::vec![]));
        let powerless = Caller { may_change: false, ..CALLER };
        assert_eq!(answers(LINK + NEW, 0, &lo, powerless), Err(Errno::EPERM));
        let mut down = lo;
        down[12] = 1;
        assert_eq!(answers(LINK + NEW, 0, &down, CALLER), Err(Errno::EOPNOTSUPP));
    }

    proptest! {
        /// Any request has an answer that is whole, and it is short.
        #[test]
        fn no_request_harms(
            kind in prop_oneof![16..32_u16, any::<u16>()],
            flags: u16,
            body in prop::collection::vec(prop_oneof![0..12_u8, any::<u8>()], 0..80),
            is_strict: bool,
            may_change: bool,
        ) {
            let caller = Caller { is_strict, may_change, ..CALLER };
            if let Ok(found) = answers(kind, flags, &body, caller) {
                prop_assert!(found.len() <= 4);
                prop_assert!(found.iter().all(|found| found + GET == kind));
            }
        }
    }
}
