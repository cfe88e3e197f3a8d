//! Addresses of IP.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::socket::attachment::{is_own, source_for};
use crate::task::namespaces::network::NetworkNamespace;

/// An IP address and a port. IPv4 addresses are stored as IPv4-mapped IPv6 addresses (RFC 4291,
/// section 2.5.5.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct InetAddress {
    /// The address.
    pub ip: Ipv6Addr,
    /// The port; 0 for any.
    pub port: u16,
}

/// 0.0.0.0.
pub(in crate::socket) const ANY_V4: Ipv6Addr = Ipv4Addr::UNSPECIFIED.to_ipv6_mapped();
/// 127.0.0.1.
pub(in crate::socket) const LOOPBACK_V4: Ipv6Addr = Ipv4Addr::LOCALHOST.to_ipv6_mapped();

impl InetAddress {
    /// Whether this is an IPv4 address.
    pub fn is_v4(self) -> bool {
        self.ip.to_ipv4_mapped().is_some()
    }

    /// Whether this is the unspecified address of its version. That of IPv6 includes IPv4.
    pub fn is_any(self) -> bool {
        self.ip == ANY_V4 || self.ip.is_unspecified()
    }

    /// Whether the address belongs to `network`. Addresses of a loopback device that is down do
    /// not.
    pub fn is_local(self, network: &NetworkNamespace) -> bool {
        let is_loopback =
            || self.ip.is_loopback() || self.ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback());
        self.is_any() || (network.is_up() && is_loopback()) || (network.is_initial() && is_own(self.ip))
    }

    /// Returns the destination of a packet to this address: the unspecified address means this
    /// machine.
    pub fn concrete(self) -> Self {
        let ip = match self.ip {
            ANY_V4 => LOOPBACK_V4,
            Ipv6Addr::UNSPECIFIED => Ipv6Addr::LOCALHOST,
            ip => ip,
        };
        Self { ip, ..self }
    }

    /// Returns the source of packets from an unbound socket to this address: the address of the
    /// device through which they leave `network`.
    pub fn source(self, network: &NetworkNamespace) -> Ipv6Addr {
        let loopback = if self.is_v4() { LOOPBACK_V4 } else { Ipv6Addr::LOCALHOST };
        source_for(self.ip).filter(|_| network.is_initial()).unwrap_or(loopback)
    }
}
