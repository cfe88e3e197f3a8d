//! The files whose length does not depend on the number of sockets. There are no packets to be
//! counted: their numbers are 0.

use core::mem::size_of;
use core::sync::atomic::Ordering;

use super::NetFile;
use crate::Result;
use crate::fs::generated::{ShortLine, Text};
use crate::sched;
use crate::socket::endpoint::{Socket, SocketKind};
use crate::socket::interface;
use crate::socket::memory::SocketAccount;
use crate::socket::table::{self, SocketClass};
use crate::socket::view::TcpState;
use crate::task::namespaces::network::{NetworkNamespace, SOCKET_CLASSES};

const DEV: &[u8] = b"\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
";

/// Header of the routes. /proc does not list routes to this machine's own addresses.
const ROUTE: &[u8] = b"Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\
                                                       \n";
const ARP: &[u8] = b"IP address       HW type     Flags       HW address            Mask     Device\n";
const IF_INET6: &[u8] = b"00000000000000000000000000000001 01 80 10 80       lo\n";
/// Routes that refuse other addresses; they come before and after the route to the device's own.
const IPV6_ROUTE: &[u8] = b"\
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 \
ffffffff 00000001 00000000 00200200       lo
00000000000000000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 \
00000000 00000002 00000000 80200001       lo
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 \
ffffffff 00000001 00000000 00200200       lo
";

const SNMP_BEFORE_TCP: &[u8] = b"\
Ip: Forwarding DefaultTTL InReceives InHdrErrors InAddrErrors ForwDatagrams InUnknownProtos InDiscards InDelivers \
OutRequests OutDiscards OutNoRoutes ReasmTimeout ReasmReqds ReasmOKs ReasmFails FragOKs FragFails FragCreates
Ip: 2 64 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
Icmp: InMsgs InErrors InCsumErrors InDestUnreachs InTimeExcds InParmProbs InSrcQuenchs InRedirects InEchos InEchoReps \
InTimestamps InTimestampReps InAddrMasks InAddrMaskReps OutMsgs OutErrors OutRateLimitGlobal OutRateLimitHost \
OutDestUnreachs OutTimeExcds OutParmProbs OutSrcQuenchs OutRedirects OutEchos OutEchoReps OutTimestamps \
OutTimestampReps OutAddrMasks OutAddrMaskReps
Icmp: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs \
RetransSegs InErrs OutRsts InCsumErrors
";
const SNMP_AFTER_TCP: &[u8] = b"\
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
Udp: 0 0 0 0 0 0 0 0 0
UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
UdpLite: 0 0 0 0 0 0 0 0 0
";

const PROTOCOLS: &[u8] = b"protocol  size sockets  memory press maxhdr  slab module     \
cl co di ac io in de sh ss gs se re sp bi br ha uh gp em\n";
/// Per protocol: its name, the sockets that it lists, whether memory can be short for them, the
/// longest header, and its calls, by the letters of the title.
const PROTOCOL_ROWS: [(&str, SocketClass, &str, usize, &str); SOCKET_CLASSES] = [
    ("PINGv6", SocketClass::Icmp6, "NI", 0, "y  y  y  n  n  y  n  n  y  y  y  y  n  y  y  y  y  y  n"),
    ("RAWv6", SocketClass::Raw6, "NI", 0, "y  y  y  n  y  y  y  n  y  y  y  y  n  y  y  y  y  n  n"),
    ("UDPLITEv6", SocketClass::UdpLite6, "NI", 0, "y  y  y  n  y  y  y  n  y  y  y  y  n  n  n  y  y  y  n"),
    ("UDPv6", SocketClass::Udp6, "NI", 0, "y  y  y  n  y  y  y  n  y  y  y  y  n  n  n  y  y  y  n"),
    ("TCPv6", SocketClass::Tcp6, "no", 256, "y  y  y  y  y  y  y  y  y  y  y  y  y  n  y  y  y  y  y"),
    ("UNIX", SocketClass::Unix, "NI", 0, "y  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n"),
    ("UDP-Lite", SocketClass::UdpLite, "NI", 0, "y  y  y  n  y  y  y  n  y  y  y  y  y  n  n  y  y  y  n"),
    ("PING", SocketClass::Icmp, "NI", 0, "y  y  y  n  n  y  n  n  y  y  y  y  n  y  y  y  y  y  n"),
    ("RAW", SocketClass::Raw, "NI", 0, "y  y  y  n  y  y  y  n  y  y  y  y  n  y  y  y  y  n  n"),
    ("UDP", SocketClass::Udp, "NI", 0, "y  y  y  n  y  y  y  n  y  y  y  y  y  n  n  y  y  y  n"),
    ("TCP", SocketClass::Tcp, "no", 256, "y  y  y  y  y  y  y  y  y  y  y  y  y  n  y  y  y  y  y"),
    ("PACKET", SocketClass::Packet, "NI", 0, "n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n"),
    ("NETLINK", SocketClass::Netlink, "NI", 0, "n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n  n"),
];

/// Writes the content of `file`.
pub(super) fn show(file: NetFile, network: &NetworkNamespace, out: &mut Text) -> Result<()> {
    match file {
        NetFile::Arp => out.push(ARP),
        NetFile::Dev => devices(network, out),
        NetFile::IfInet6 | NetFile::Ipv6Route if !network.is_up() => {}
        NetFile::IfInet6 => out.push(IF_INET6),
        NetFile::Ipv6Route => out.push(IPV6_ROUTE),
        NetFile::Protocols => protocols(out),
        NetFile::Route => routes(network, out),
        NetFile::Snmp => snmp(network, out)?,
        NetFile::Sockstat => sockstat(network, out)?,
        NetFile::Sockstat6 => sockstat6(network, out)?,
        // These lists are written in parts.
        NetFile::Sockets(_) => {}
    }
    Ok(())
}

/// Writes a row for each network device.
fn devices(network: &NetworkNamespace, out: &mut Text) {
    out.push(DEV);
    for device in interface::all(network) {
        let counts = device.counts();
        let (bytes, packets, dropped) = (counts.received_bytes, counts.received_frames, counts.dropped);
        write!(
            out,
            "{:>6}: {bytes:7} {packets:7}    0 {dropped:4}    0     0          0         0",
            device.name
        );
        let (bytes, packets) = (counts.sent_bytes, counts.sent_frames);
        writeln!(out, " {bytes:8} {packets:7}    0    0    0     0       0          0");
    }
}

/// Writes the routes to other machines.
fn routes(network: &NetworkNamespace, out: &mut Text) {
    /// RTF_UP, RTF_GATEWAY.
    const UP: u32 = 1;
    const GATEWAY: u32 = 2;
    out.push(ROUTE);
    for device in interface::all(network) {
        let Some(gateway) = device.gateway else { continue };
        let (network, mask) = (device.network().0, device.mask());
        for (to, by, flags, mask) in [([0; 4], gateway, UP | GATEWAY, [0; 4]), (network, [0; 4], UP, mask)] {
            let [to, by, mask] = [to, by, mask].map(u32::from_ne_bytes);
            let mut line = ShortLine::displaying(format_args!(
                "{}\t{to:08X}\t{by:08X}\t{flags:04X}\t0\t0\t0\t{mask:08X}\t0\t0\t0",
                device.name
            ));
            line.pad(127);
            line.push(b"\n");
            out.push(line.bytes());
        }
    }
}

/// Returns the number of sockets of `class` with an address at which a packet can find them, and
/// how many of those are connected and not reset.
fn in_use(network: &NetworkNamespace, class: SocketClass) -> Result<(usize, usize)> {
    let (mut from, mut found, mut connected) = (0, 0, 0);
    while let Some((place, socket)) = table::next(class, from) {
        sched::checkpoint()?;
        from = place + 1;
        if socket.network().number() != network.number() {
            continue;
        }
        let state = socket.tcp_state();
        let is_found =
            socket.is_bound() && (state != TcpState::Close || socket.kind() == SocketKind::Datagram);
        found += usize::from(is_found);
        connected += usize::from(matches!(state, TcpState::Established | TcpState::CloseWait));
    }
    Ok((found, connected))
}

/// Returns the number of sockets of `class` in the namespace.
fn sockets(network: &NetworkNamespace, class: SocketClass) -> usize {
    network.counts[class as usize].load(Ordering::Relaxed)
}

fn snmp(network: &NetworkNamespace, out: &mut Text) -> Result<()> {
    let connected = in_use(network, SocketClass::Tcp)?.1 + in_use(network, SocketClass::Tcp6)?.1;
    out.push(SNMP_BEFORE_TCP);
    writeln!(out, "Tcp: 1 200 120000 -1 0 0 0 0 {connected} 0 0 0 0 0 0");
    out.push(SNMP_AFTER_TCP);
    Ok(())
}

fn sockstat(network: &NetworkNamespace, out: &mut Text) -> Result<()> {
    let all: usize = SocketClass::ALL.iter().map(|&class| sockets(network, class)).sum();
    let tcp = sockets(network, SocketClass::Tcp) + sockets(network, SocketClass::Tcp6);
    let [tcp_in_use, udp_in_use, lite] =
        [SocketClass::Tcp, SocketClass::Udp, SocketClass::UdpLite].map(|class| in_use(network, class));
    let (tcp_in_use, udp_in_use, lite) = (tcp_in_use?.0, udp_in_use?.0, lite?.0);
    let (tcp_pages, udp_pages) = (SocketAccount::Tcp.pages(), SocketAccount::Udp.pages());
    writeln!(out, "sockets: used {all}\nTCP: inuse {tcp_in_use} orphan 0 tw 0 alloc {tcp} mem {tcp_pages}");
    writeln!(out, "UDP: inuse {udp_in_use} mem {udp_pages}\nUDPLITE: inuse {lite}");
    writeln!(out, "RAW: inuse {}\nFRAG: inuse 0 memory 0", sockets(network, SocketClass::Raw));
    Ok(())
}

fn sockstat6(network: &NetworkNamespace, out: &mut Text) -> Result<()> {
    let [tcp_in_use, udp_in_use, lite] =
        [SocketClass::Tcp6, SocketClass::Udp6, SocketClass::UdpLite6].map(|class| in_use(network, class));
    let (tcp_in_use, udp_in_use, lite) = (tcp_in_use?.0, udp_in_use?.0, lite?.0);
    writeln!(out, "TCP6: inuse {tcp_in_use}\nUDP6: inuse {udp_in_use}\nUDPLITE6: inuse {lite}");
    let raw = sockets(network, SocketClass::Raw6);
    writeln!(out, "RAW6: inuse {raw}\nFRAG6: inuse 0 memory 0");
    Ok(())
}

fn protocols(out: &mut Text) {
    out.push(PROTOCOLS);
    for (name, class, pressure, header, calls) in PROTOCOL_ROWS {
        let mut line = ShortLine::of(name.as_bytes());
        line.pad(10);
        line.decimal(size_of::<Socket>() as u64, 4);
        line.push(b" ");
        line.decimal(table::count(class) as u64, 6);
        line.push(if pressure == "no" { b"       0   no  " } else { b"      -1   NI  " });
        line.decimal(header as u64, 6);
        out.push(line.bytes());
        writeln!(out, "   yes  kernel      {calls}");
    }
}
