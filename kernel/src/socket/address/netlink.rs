//! Addresses of AF_NETLINK.

/// Address that a socket can be bound to: a port, and groups as bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct NetlinkAddress {
    /// The port; 0 is the kernel.
    pub port: u32,
    /// The multicast groups, as bits.
    pub groups: u32,
}
