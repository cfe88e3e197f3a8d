//! /proc/PID/net: the network namespace of a process, in Linux' formats.
//!
//! | module | files |
//! |---|---|
//! | [`rows`] | icmp, netlink, packet, raw, tcp, udp, unix, of both versions: a line for each socket, written in parts |
//! | [`fixed`] | the others, whose length does not depend on programs |
//!
//! Pointers of the kernel are 0, as Linux shows them to unprivileged programs.

mod fixed;
mod rows;

use freehold_collections::{Arc, Box, reserve};

use crate::Result;
use crate::fs::generated::{Generate, Parts, Text};
use crate::socket::table::SocketClass;
use crate::task::namespaces::network::NetworkNamespace;

/// A file of the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::fs::procfs) enum NetFile {
    Arp,
    Dev,
    IfInet6,
    Ipv6Route,
    Protocols,
    Route,
    Snmp,
    Sockstat,
    Sockstat6,
    Sockets(SocketClass),
}

/// The entries of the directory.
pub(in crate::fs::procfs) const FILES: [(&str, NetFile); 22] = [
    ("arp", NetFile::Arp),
    ("dev", NetFile::Dev),
    ("icmp", NetFile::Sockets(SocketClass::Icmp)),
    ("icmp6", NetFile::Sockets(SocketClass::Icmp6)),
    ("if_inet6", NetFile::IfInet6),
    ("ipv6_route", NetFile::Ipv6Route),
    ("netlink", NetFile::Sockets(SocketClass::Netlink)),
    ("packet", NetFile::Sockets(SocketClass::Packet)),
    ("protocols", NetFile::Protocols),
    ("raw", NetFile::Sockets(SocketClass::Raw)),
    ("raw6", NetFile::Sockets(SocketClass::Raw6)),
    ("route", NetFile::Route),
    ("snmp", NetFile::Snmp),
    ("sockstat", NetFile::Sockstat),
    ("sockstat6", NetFile::Sockstat6),
    ("tcp", NetFile::Sockets(SocketClass::Tcp)),
    ("tcp6", NetFile::Sockets(SocketClass::Tcp6)),
    ("udp", NetFile::Sockets(SocketClass::Udp)),
    ("udp6", NetFile::Sockets(SocketClass::Udp6)),
    ("udplite", NetFile::Sockets(SocketClass::UdpLite)),
    ("udplite6", NetFile::Sockets(SocketClass::UdpLite6)),
    ("unix", NetFile::Sockets(SocketClass::Unix)),
];

/// A file of the directory for a namespace.
pub(in crate::fs::procfs) struct NetContent {
    pub file: NetFile,
    pub network: Arc<NetworkNamespace>,
}

impl Generate for NetContent {
    fn show(&self, out: &mut Text) -> Result<()> {
        fixed::show(self.file, &self.network, out)
    }

    fn parts(&self) -> Option<Box<dyn Parts>> {
        match self.file {
            NetFile::Sockets(class) => {
                Some(reserve::boxed(rows::SocketRows::new(class, self.network.number())))
            }
            _ => None,
        }
    }
}
