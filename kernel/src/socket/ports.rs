//! Ports of TCP and UDP: which socket is bound to a port, and which socket a packet's address
//! selects.
//!
//! Each network namespace has its own ports. All addresses are this machine's own: 127.0.0.0/8,
//! ::1, that of the network device, and the two unspecified addresses.
//!
//! Sockets that share a port and that no packet tells apart are a *group*, like a reuseport group
//! of Linux: they have the same claim, listen or do not, and are connected to the same address. The
//! groups of a port are adjacent in one map, and the sockets of a group are in the order of their
//! numbers. So a look-up costs one search and one step per group, and bind(2) compares a claim with
//! groups. A connected UDP socket is a group of its own.
//!
//! **Locks.** [`PORTS`] is taken with no other lock of a socket held. No reference to a socket is
//! dropped under it, because the end of a socket takes it.

use core::net::Ipv6Addr;
use core::ops::{Bound, RangeInclusive};
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{Arc, Map, Vec, Weak, reserve::ArcMethods};
use spin::Once;

use super::address::inet::{ANY_V4, InetAddress};
use super::endpoint::Socket;
use crate::sync::SpinLock;
use crate::{Errno, Result, hw, sched};

/// Ports for sockets that request any port (net.ipv4.ip_local_port_range).
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;
/// Number of ports that are tried between two checks whether the task is being killed.
const TRIES: u32 = 256;

/// Protocol that a port belongs to, with the number of IPPROTO_*.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Protocol {
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
    /// UDP-Lite (RFC 3828), within this machine only.
    UdpLite = 136,
}

impl Protocol {
    /// Returns the protocol with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            136 => Some(Self::UdpLite),
            _ => None,
        }
    }
}

/// A port that a socket requests, and how the socket shares it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The address.
    pub address: InetAddress,
    /// The network device whose packets the socket receives; 0 for all.
    pub device: u32,
    /// The owner of the socket.
    pub user: u32,
    /// IPV6_V6ONLY: the unspecified address does not include IPv4.
    pub only_v6: bool,
    /// SO_REUSEADDR.
    pub reuses_address: bool,
    /// SO_REUSEPORT.
    pub reuses_port: bool,
}

impl Claim {
    fn covers(&self, ip: Ipv6Addr) -> bool {
        let is_v4 = ip.to_ipv4_mapped().is_some();
        match self.address.ip {
            ANY_V4 => is_v4,
            Ipv6Addr::UNSPECIFIED => !(is_v4 && self.only_v6),
            own => own == ip,
        }
    }

    /// Whether the socket receives packets from `device`.
    const fn hears_device(&self, device: u32) -> bool {
        self.device == 0 || self.device == device
    }

    /// Whether some packet could belong to either claim.
    fn overlaps(&self, other: &Self) -> bool {
        if self.device != 0 && !other.hears_device(self.device) {
            return false;
        }
        let both_any = self.address.is_any() && other.address.is_any();
        let v6_with_v4 = |v6: &Self, v4: &Self| !v6.address.is_v4() && v4.address.is_v4() && !v6.only_v6;
        if both_any {
            return self.address.ip == other.address.ip || v6_with_v4(self, other) || v6_with_v4(other, self);
        }
        self.covers(other.address.ip) || other.covers(self.address.ip)
    }
}

/// The properties of a socket that determine which packets it receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Traits {
    claim: Claim,
    listens: bool,
    /// The address that a datagram socket is connected to.
    remote: Option<InetAddress>,
}

/// The sockets of a port with the same traits, by number. There is at least one.
struct PortGroup {
    traits: Traits,
    members: Vec<(u64, Weak<Socket>)>,
}

/// Key of a socket with a port: the port in its namespace, and a unique number.
pub type EntryKey = (u64, Protocol, u16, u64);
/// A reference that a socket had in its group, and the group if it was its last socket.
type Removed = (Option<Weak<Socket>>, Option<PortGroup>);
/// A port of a namespace.
type PortKey = (u64, Protocol, u16);

struct Ports {
    /// The groups of one port are adjacent, each with a unique number.
    groups: Map<EntryKey, PortGroup>,
    /// The number of the group that a socket belongs to, by the socket's number.
    places: Map<u64, u64>,
}

static PORTS: SpinLock<Ports> = SpinLock::new(Ports { groups: Map::new(), places: Map::new() });
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

fn next_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

const fn port_of(key: &EntryKey) -> PortKey {
    (key.0, key.1, key.2)
}

impl Ports {
    fn of_port(&self, (network, protocol, port): PortKey) -> impl Iterator<Item = (&EntryKey, &PortGroup)> {
        let (first, end) = ((network, protocol, port, 0), (network, protocol, port, u64::MAX));
        self.groups.iter_from(Bound::Included(&first)).take_while(move |(key, _)| **key < end)
    }

    fn place(&self, key: &EntryKey) -> Option<EntryKey> {
        self.places.get(&key.3).map(|group| (key.0, key.1, key.2, *group))
    }

    fn traits(&self, key: &EntryKey) -> Option<Traits> {
        self.place(key).and_then(|place| self.groups.get(&place)).map(|group| group.traits)
    }

    /// Adds a socket to the group with these traits. Nothing is changed if it fails.
    fn add(&mut self, key: &EntryKey, traits: Traits, socket: Weak<Socket>) -> Result<()> {
        self.places.try_reserve(1)?;
        let found = self.of_port(port_of(key)).find(|(_, group)| group.traits == traits);
        let place = found.map_or_else(|| (key.0, key.1, key.2, next_number()), |(place, _)| *place);
        match self.groups.get_mut(&place) {
            Some(group) => {
                let at = group.members.partition_point(|member| member.0 < key.3);
                group.members.try_insert(at, (key.3, socket))?;
            }
            None => {
                let mut members = Vec::new();
                members.try_push((key.3, socket))?;
                self.groups.try_insert(place, PortGroup { traits, members })?;
            }
        }
        self.places.insert_reserved(key.3, place.3);
        Ok(())
    }

    /// Removes a socket. The caller drops the result with no lock held.
    fn remove(&mut self, key: &EntryKey, place: &EntryKey) -> Removed {
        let Some(group) = self.groups.get_mut(place) else { return (None, None) };
        let found = group.members.binary_search_by_key(&key.3, |member| member.0);
        let member = found.ok().map(|at| group.members.remove(at).1);
        let emptied = if group.members.is_empty() { self.groups.remove(place) } else { None };
        (member, emptied)
    }

    /// Changes the traits of a socket. The caller drops the result with no lock held.
    ///
    /// # Errors
    /// `EINVAL` if the socket has no port, `ENOMEM`.
    fn change(&mut self, key: &EntryKey, change: impl FnOnce(&mut Traits)) -> Result<Removed> {
        let place = self.place(key).ok_or(Errno::EINVAL)?;
        let group = self.groups.get(&place).ok_or(Errno::EINVAL)?;
        let mut traits = group.traits;
        change(&mut traits);
        if traits == group.traits {
            return Ok((None, None));
        }
        let found = group.members.binary_search_by_key(&key.3, |member| member.0);
        let socket = found.map(|at| group.members[at].1.clone()).map_err(|_| Errno::EINVAL)?;
        self.add(key, traits, socket)?;
        Ok(self.remove(key, &place))
    }
}

/// Binds `socket` to the port that `claim` names, or to a free one. Returns the address, and the
/// key for [`release`].
///
/// # Errors
/// `EADDRINUSE` if the port, or every port, is in use; `ENOMEM`, `ERESTARTSYS`.
pub fn bind(socket: &Arc<Socket>, protocol: Protocol, mut claim: Claim) -> Result<(InetAddress, EntryKey)> {
    if claim.address.port != 0 {
        return try_bind(socket, protocol, claim);
    }
    let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
    let mut random = [0; 4];
    hw::fill_random(&mut random);
    let first = u32::from_ne_bytes(random) % count;
    for step in 0..count {
        claim.address.port = EPHEMERAL.start() + ((first + step) % count) as u16;
        match try_bind(socket, protocol, claim) {
            Err(Errno::EADDRINUSE) if step % TRIES == TRIES - 1 => sched::checkpoint()?,
            Err(Errno::EADDRINUSE) => {}
            bound => return bound,
        }
    }
    Err(Errno::EADDRINUSE)
}

fn try_bind(socket: &Arc<Socket>, protocol: Protocol, claim: Claim) -> Result<(InetAddress, EntryKey)> {
    let (weak, network) = (socket.downgrade(), socket.network().number());
    let mut ports = PORTS.lock();
    let conflicts = |(_, other): (&EntryKey, &PortGroup)| {
        let (listens, other) = (other.traits.listens, &other.traits.claim);
        let both_reuse_port = claim.reuses_port && other.reuses_port && claim.user == other.user;
        let both_reuse = claim.reuses_address && other.reuses_address && !listens;
        claim.overlaps(other) && !both_reuse_port && !both_reuse
    };
    if ports.of_port((network, protocol, claim.address.port)).any(conflicts) {
        return Err(Errno::EADDRINUSE);
    }
    let key = (network, protocol, claim.address.port, next_number());
    ports.add(&key, Traits { claim, listens: false, remote: None }, weak)?;
    Ok((claim.address, key))
}

/// Marks the socket with this entry as listening.
///
/// # Errors
/// `EADDRINUSE` if another socket listens already and does not share the port; `EINVAL`, `ENOMEM`.
pub fn listen(key: &EntryKey) -> Result<()> {
    let mut ports = PORTS.lock();
    let own = ports.traits(key).ok_or(Errno::EINVAL)?;
    let taken = |(_, other): (&EntryKey, &PortGroup)| {
        let (listens, other) = (other.traits.listens, &other.traits.claim);
        listens && other.overlaps(&own.claim) && !(other.reuses_port && own.claim.reuses_port)
    };
    if !own.listens && ports.of_port(port_of(key)).any(taken) {
        return Err(Errno::EADDRINUSE);
    }
    let left = ports.change(key, |traits| traits.listens = true)?;
    drop(ports);
    drop(left);
    Ok(())
}

/// Marks the socket with this entry as not listening. It keeps its port.
///
/// # Errors
/// `ENOMEM`.
pub fn stop_listening(key: &EntryKey) -> Result<()> {
    change(key, |traits| traits.listens = false)
}

/// Makes the datagram socket with this entry receive only from `remote`, or from all if that is
/// `None`.
///
/// # Errors
/// `ENOMEM`.
pub fn set_remote(key: &EntryKey, remote: Option<InetAddress>) -> Result<()> {
    change(key, |traits| traits.remote = remote)
}

/// Makes the socket with this entry receive only packets from `device`; 0 for all.
///
/// # Errors
/// `ENOMEM`.
pub fn set_device(key: &EntryKey, device: u32) -> Result<()> {
    change(key, |traits| traits.claim.device = device)
}

fn change(key: &EntryKey, change: impl FnOnce(&mut Traits)) -> Result<()> {
    let mut ports = PORTS.lock();
    let left = ports.change(key, change)?;
    drop(ports);
    drop(left);
    Ok(())
}

/// Removes the entry of a socket that ends.
pub fn release(key: &EntryKey) {
    let mut ports = PORTS.lock();
    let left = ports.place(key).map(|place| ports.remove(key, &place));
    ports.places.remove(&key.3);
    drop(ports);
    drop(left);
}

/// Returns the socket of `network`, a namespace's number, that a packet goes to which comes by
/// `device` from `from` to `to`: of TCP one that listens. A socket that is connected to the sender
/// precedes one that is bound to the address. That one precedes a socket that is bound to the
/// device, and that one all others. Sockets that share the port (SO_REUSEPORT) and are equal so get
/// the senders spread over them: a sender's packets go to the same one as long as none is added or
/// ends.
pub fn find(
    (network, device): (u64, u32),
    protocol: Protocol,
    to: InetAddress,
    from: Option<InetAddress>,
) -> Option<Arc<Socket>> {
    let ports = PORTS.lock();
    let hears = |traits: &Traits| {
        let is_open = match protocol {
            Protocol::Tcp => traits.listens,
            Protocol::Udp | Protocol::UdpLite => traits.remote.is_none() || traits.remote == from,
        };
        is_open && traits.claim.covers(to.ip) && traits.claim.hears_device(device)
    };
    let hearing = || {
        let groups = ports.of_port((network, protocol, to.port)).map(|(_, group)| group);
        groups.filter(|group| hears(&group.traits))
    };
    let rank = |group: &PortGroup| {
        let Traits { claim, remote, .. } = &group.traits;
        (remote.is_some(), !claim.address.is_any(), claim.device != 0, claim.address.is_v4())
    };
    // Of equal sockets that do not share senders, the last one that was bound gets all.
    let newest = |group: &PortGroup| group.members.last().map(|member| member.0);
    let best = hearing().max_by_key(|group| (rank(group), newest(group)))?;
    let (true, Some(from)) = (best.traits.claim.reuses_port, from) else {
        return best.members.last().and_then(|member| member.1.upgrade());
    };
    let sharing = || hearing().filter(|group| group.traits.claim.reuses_port && rank(group) == rank(best));
    let count: usize = sharing().map(|group| group.members.len()).sum();
    let mut at = (spread(from, to) % count as u64) as usize;
    for group in sharing() {
        match group.members.get(at) {
            Some(member) => return member.1.upgrade(),
            None => at -= group.members.len(),
        }
    }
    None
}

/// Returns a number that is random for each pair of addresses, and always the same for one pair.
fn spread(from: InetAddress, to: InetAddress) -> u64 {
    static KEY: Once<u64> = Once::new();
    let key = *KEY.call_once(|| {
        let mut key = [0; 8];
        hw::fill_random(&mut key);
        u64::from_ne_bytes(key) | 1
    });
    let ports = u64::from(from.port) << 16 | u64::from(to.port);
    let words = [from.ip.to_bits(), to.ip.to_bits()].map(|bits| (bits >> 64) as u64 ^ bits as u64);
    // A multiplication moves bits upwards alone, so the upper half is mixed into the lower.
    [words[0], words[1], ports].into_iter().fold(key, |mixed, word| {
        let mixed = (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::super::endpoint::SocketKind;
    use super::super::family::Family;
    use super::super::interface::LO;
    use super::*;
    use crate::socket::address::inet::LOOPBACK_V4;
    use crate::task::namespaces::network::NetworkNamespace;
    use core::net::Ipv4Addr;

    /// The network and the device of the tests' packets.
    const HERE: (u64, u32) = (NetworkNamespace::INITIAL_NUMBER, LO.index);
    /// Addresses that a packet can have.
    const CONCRETE: [&str; 4] = ["::ffff:127.0.0.1", "::ffff:127.0.0.2", "::1", "::ffff:127.9.9.9"];
    /// Addresses that a socket can be bound to.
    const CLAIMED: [&str; 5] = ["::ffff:127.0.0.1", "::ffff:127.0.0.2", "::1", "::ffff:0.0.0.0", "::"];

    fn claims() -> impl Strategy<Value = Claim> {
        let parts =
            (0..CLAIMED.len(), 20_000..20_002_u16, 0..2_u32, any::<bool>(), any::<bool>(), any::<bool>());
        parts.prop_map(|(ip, port, user, only_v6, reuses_address, reuses_port)| Claim {
            address: InetAddress { ip: CLAIMED[ip].parse().unwrap(), port },
            device: 0,
            user,
            only_v6,
            reuses_address,
            reuses_port,
        })
    }

    /// Returns the indices of the concrete addresses whose packets a claim covers.
    fn heard(claim: &Claim) -> Vec<usize> {
        let hears = |&at: &usize| {
            let is_v4 = CONCRETE[at].starts_with("::ffff:");
            match claim.address.ip.to_string().as_str() {
                "::ffff:0.0.0.0" => is_v4,
                "::" => !is_v4 || !claim.only_v6,
                own => own == CONCRETE[at],
            }
        };
        (0..CONCRETE.len()).filter(hears).collect()
    }

    use std::string::ToString;

    proptest! {
        /// Compared with a list, and with the explicit list of addresses that each claim covers.
        #[test]
        fn ports_are_shared_by_rule_and_packets_find_the_closest_socket(
            steps in prop::collection::vec((claims(), any::<bool>(), 0..3_usize), 1..24),
        ) {
            let mut model: Vec<(Claim, bool, Arc<Socket>, EntryKey)> = Vec::new();
            for (claim, wants_to_listen, gone) in steps {
                let socket = Socket::new(Family::Inet6, SocketKind::Stream);
                let conflict = model.iter().any(|(other, listens, ..)| {
                    let meets = heard(&claim).iter().any(|at| heard(other).contains(at));
                    let by_port = claim.reuses_port && other.reuses_port && claim.user == other.user;
                    let by_address = claim.reuses_address && other.reuses_address && !listens;
                    claim.address.port == other.address.port && meets && !by_port && !by_address
                });
                match bind(&socket, Protocol::Tcp, claim) {
                    Ok((address, key)) => {
                        prop_assert!(!conflict);
                        prop_assert_eq!(address, claim.address);
                        let may_listen = !model.iter().any(|(other, listens, ..)| {
                            let meets = heard(&claim).iter().any(|at| heard(other).contains(at));
                            let shared = claim.reuses_port && other.reuses_port;
                            *listens && claim.address.port == other.address.port && meets && !shared
                        });
                        let listens = wants_to_listen && may_listen;
                        if wants_to_listen {
                            prop_assert_eq!(listen(&key), if may_listen { Ok(()) } else { Err(Errno::EADDRINUSE) });
                        }
                        model.push((claim, listens, socket, key));
                    }
                    Err(error) => prop_assert_eq!((error, conflict), (Errno::EADDRINUSE, true)),
                }
                for (at, ip) in CONCRETE.iter().enumerate() {
                    for port in 20_000..20_002 {
                        let to = InetAddress { ip: ip.parse().unwrap(), port };
                        let found = find(HERE, Protocol::Tcp, to, None);
                        let hears = |entry: &&(Claim, bool, Arc<Socket>, EntryKey)| {
                            entry.1 && entry.0.address.port == port && heard(&entry.0).contains(&at)
                        };
                        let rank = |claim: &Claim| match (claim.address.is_any(), claim.address.is_v4()) {
                            (false, _) => 0,
                            (true, true) => 1,
                            (true, false) => 2,
                        };
                        let best = model.iter().filter(hears).map(|entry| rank(&entry.0)).min();
                        let found_rank = found.as_ref().map(|found| {
                            let entry = model.iter().find(|entry| entry.2.address() == found.address());
                            rank(&entry.expect("only sockets of this test have the port").0)
                        });
                        prop_assert_eq!(found_rank, best);
                    }
                }
                if gone == 0 && !model.is_empty() {
                    let (_, _, socket, key) = model.swap_remove(claim.user as usize % model.len());
                    release(&key);
                    drop(socket);
                }
            }
            model.iter().for_each(|entry| release(&entry.3));
        }
    }

    #[test]
    fn a_connected_datagram_socket_hears_from_its_peer_alone() {
        let at = |port| InetAddress { ip: LOOPBACK_V4, port };
        let claim = |port| Claim {
            address: at(port),
            device: 0,
            user: 0,
            only_v6: false,
            reuses_address: true,
            reuses_port: false,
        };
        let [one, other] = [0, 1].map(|_| Socket::new(Family::Inet, SocketKind::Datagram));
        let (_, connected) = bind(&one, Protocol::Udp, claim(20_010)).unwrap();
        let (_, open) = bind(&other, Protocol::Udp, claim(20_010)).unwrap();
        set_remote(&connected, Some(at(7))).unwrap();
        let finds = |from| {
            find(HERE, Protocol::Udp, at(20_010), Some(at(from)))
                .is_some_and(|found| found.address() == one.address())
        };
        assert!(finds(7) && !finds(8));
        release(&open);
        assert!(find(HERE, Protocol::Udp, at(20_010), Some(at(8))).is_none());
        release(&connected);
        assert!(find(HERE, Protocol::Udp, at(20_010), Some(at(7))).is_none());
    }

    #[test]
    fn senders_are_spread_over_the_sockets_that_share_a_port() {
        let to = InetAddress { ip: LOOPBACK_V4, port: 20_030 };
        let claim = |ip| Claim {
            address: InetAddress { ip, ..to },
            device: 0,
            user: 0,
            only_v6: false,
            reuses_address: false,
            reuses_port: true,
        };
        let sockets = [0; 4].map(|_: u8| Socket::new(Family::Inet, SocketKind::Datagram));
        // The last one hears all addresses, and these packets others hear better.
        let ips = [LOOPBACK_V4, LOOPBACK_V4, LOOPBACK_V4, ANY_V4];
        let keys: Vec<EntryKey> = sockets
            .iter()
            .zip(ips)
            .map(|(socket, ip)| bind(socket, Protocol::Udp, claim(ip)).unwrap().1)
            .collect();
        let finds = |port| {
            let found = find(HERE, Protocol::Udp, to, Some(InetAddress { port, ..to })).unwrap();
            sockets.iter().position(|socket| socket.is_same(&found)).unwrap()
        };
        let found: Vec<usize> = (1..=900).map(finds).collect();
        assert_eq!(found, (1..=900).map(finds).collect::<Vec<_>>(), "a sender stays with its socket");
        for (socket, range) in [(0, 200..400), (1, 200..400), (2, 200..400), (3, 0..1)] {
            let count = found.iter().filter(|&&at| at == socket).count();
            assert!(range.contains(&count), "socket {socket} has {count} of 900 senders");
        }
        keys.iter().for_each(release);
    }

    #[test]
    fn sockets_of_two_devices_share_a_port_and_hear_their_own_packets() {
        let at = InetAddress { ip: ANY_V4, port: 20_020 };
        let claim = |device| Claim {
            address: at,
            device,
            user: 0,
            only_v6: false,
            reuses_address: false,
            reuses_port: false,
        };
        let sockets = [0, 1, 2].map(|_: u8| Socket::new(Family::Inet, SocketKind::Datagram));
        let (_, first) = bind(&sockets[0], Protocol::Udp, claim(1)).unwrap();
        let (_, second) = bind(&sockets[1], Protocol::Udp, claim(2)).unwrap();
        let any = bind(&sockets[2], Protocol::Udp, claim(0)).map(|_| ());
        assert_eq!(any, Err(Errno::EADDRINUSE), "it would hear the packets of either");
        let finds = |device| {
            let to = InetAddress { ip: LOOPBACK_V4, ..at };
            let found = find((NetworkNamespace::INITIAL_NUMBER, device), Protocol::Udp, to, None);
            found.and_then(|found| sockets.iter().position(|socket| socket.is_same(&found)))
        };
        assert_eq!([1, 2, 3].map(finds), [Some(0), Some(1), None]);
        set_device(&second, 3).unwrap();
        assert_eq!([1, 2, 3].map(finds), [Some(0), None, Some(1)]);
        [first, second].iter().for_each(release);
    }
}
