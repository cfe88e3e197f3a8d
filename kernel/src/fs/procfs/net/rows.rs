//! The lists of sockets. The rows of a list have the order of the sockets' places in their table. A
//! list of TCP begins with the listening sockets.

use crate::Result;
use crate::fs::generated::{More, PART, Parts, ShortLine, Text};
use crate::socket::address::Address;
use crate::socket::address::inet::InetAddress;
use crate::socket::address::netlink::NetlinkAddress;
use crate::socket::endpoint::Socket;
use crate::socket::table::{self, SocketClass};
use crate::socket::view::{InetView, TcpState};

/// Columns of a line of TCP and of UDP over IPv4, without the line feed. Lines for IPv6 have their
/// natural length.
const TCP_COLUMNS: usize = 149;
const UDP_COLUMNS: usize = 127;

const TCP_TITLE: &[u8] =
    b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
const TCP6_TITLE: &[u8] =
    b"  sl  local_address                         remote_address                        st tx_queue \
rx_queue tr tm->when retrnsmt   uid  timeout inode";
const ICMP_TITLE: &[u8] =
    b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops";
const UDP_TITLE: &[u8] =
    b"   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops";
/// Titles after the columns of TCP in lists of datagram sockets.
const DATAGRAM_TITLE: &[u8] = b" ref pointer drops";
const NETLINK_TITLE: &[u8] =
    b"sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode";
const PACKET_TITLE: &[u8] = b"sk               RefCnt Type Proto  Iface R Rmem   User   Inode";
const UNIX_TITLE: &[u8] = b"Num       RefCount Protocol Flags    Type St Inode Path";

/// Blanks that fill a line up to the greatest length.
const BLANKS: [u8; TCP_COLUMNS] = [b' '; TCP_COLUMNS];
/// `__SO_ACCEPTCON`.
const LISTENS: u32 = 0x1_0000;
/// States of AF_UNIX sockets: SS_UNCONNECTED, SS_CONNECTING, SS_CONNECTED.
const UNCONNECTED: u8 = 1;
const CONNECTING: u8 = 2;
const CONNECTED: u8 = 3;

/// The sockets that are listed now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Title,
    /// For TCP: the listening sockets.
    Listening,
    Others,
}

/// The parts of a list.
pub(super) struct SocketRows {
    /// The number of the namespace.
    network: u64,
    class: SocketClass,
    pass: Pass,
    /// The place that is checked next.
    place: usize,
    /// Number of lines so far.
    line: usize,
}

impl SocketRows {
    pub(super) const fn new(class: SocketClass, network: u64) -> Self {
        Self { class, network, pass: Pass::Title, place: 0, line: 0 }
    }

    /// Number of columns to which lines are padded.
    const fn columns(&self) -> usize {
        match self.class {
            SocketClass::Tcp => TCP_COLUMNS,
            SocketClass::Udp | SocketClass::UdpLite | SocketClass::Icmp => UDP_COLUMNS,
            _ => 0,
        }
    }

    fn title(&self, out: &mut Text) {
        out.push(match self.class {
            SocketClass::Tcp => TCP_TITLE,
            SocketClass::Tcp6 => TCP6_TITLE,
            SocketClass::Udp | SocketClass::UdpLite => UDP_TITLE,
            SocketClass::Udp6 | SocketClass::UdpLite6 | SocketClass::Raw6 | SocketClass::Icmp6 => TCP6_TITLE,
            SocketClass::Raw => TCP_TITLE,
            SocketClass::Icmp => ICMP_TITLE,
            SocketClass::Unix => UNIX_TITLE,
            SocketClass::Netlink => NETLINK_TITLE,
            SocketClass::Packet => PACKET_TITLE,
        });
        use SocketClass::{Icmp6, Raw, Raw6, Udp6, UdpLite6};
        if matches!(self.class, Udp6 | UdpLite6 | Raw | Raw6 | Icmp6) {
            out.push(DATAGRAM_TITLE);
        }
        self.end(out, 0);
    }

    /// Ends the line that began at `start`.
    fn end(&self, out: &mut Text, start: usize) {
        let missing = self.columns().saturating_sub(out.length() - start);
        out.push(&BLANKS[..missing]);
        out.push(b"\n");
    }

    fn row(&mut self, out: &mut Text, socket: &Socket) {
        let start = out.length();
        if self.class == SocketClass::Unix {
            return unix_row(out, socket);
        }
        if let Some(Address::Netlink(own)) = socket.address() {
            return netlink_row(out, socket, own);
        }
        if self.class == SocketClass::Packet {
            return packet_row(out, socket);
        }
        let Some(view) = socket.inet_view() else { return };
        let listens = view.state == TcpState::Listen;
        match self.class {
            SocketClass::Tcp | SocketClass::Tcp6 => {
                if listens != (self.pass == Pass::Listening) {
                    return;
                }
                write!(out, "{:4}: ", self.line);
            }
            SocketClass::Raw | SocketClass::Raw6 => write!(out, "{:4}: ", view.local.port),
            _ => write!(out, "{:5}: ", self.line),
        }
        inet_row(out, socket, &view);
        match self.class {
            SocketClass::Tcp | SocketClass::Tcp6 if listens => out.push(b" 100 0 0 10 0"),
            SocketClass::Tcp | SocketClass::Tcp6 => out.push(b" 20 4 0 10 -1"),
            _ => out.push(b" 0"),
        }
        self.line += 1;
        self.end(out, start);
    }
}

impl Parts for SocketRows {
    fn next(&mut self, out: &mut Text) -> Result<More> {
        if self.pass == Pass::Title {
            self.title(out);
            let is_tcp = matches!(self.class, SocketClass::Tcp | SocketClass::Tcp6);
            self.pass = if is_tcp { Pass::Listening } else { Pass::Others };
        }
        while out.length() < PART {
            crate::sched::checkpoint()?;
            match table::next(self.class, self.place) {
                Some((place, socket)) => {
                    if socket.network().number() == self.network {
                        self.row(out, &socket);
                    }
                    self.place = place + 1;
                }
                None if self.pass == Pass::Listening => {
                    (self.pass, self.place) = (Pass::Others, 0);
                }
                None => return Ok(More::No),
            }
        }
        Ok(More::Yes)
    }
}

/// Adds an address and a port: words of 32 bits in this machine's byte order, in hexadecimal.
fn push_address(line: &mut ShortLine, address: InetAddress, is_v6: bool) {
    let octets = address.ip.octets();
    let shown = if is_v6 { &octets[..] } else { &octets[12..] };
    for word in shown.chunks_exact(4) {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        line.hex_upper(word.into(), 8);
    }
    line.push(b":");
    line.hex_upper(address.port.into(), 4);
}

/// The columns that TCP and UDP share.
fn inet_row(out: &mut Text, socket: &Socket, view: &InetView) {
    let mut line = ShortLine::new();
    push_address(&mut line, view.local, socket.is_v6());
    line.push(b" ");
    push_address(&mut line, view.remote, socket.is_v6());
    line.push(b" ");
    line.hex_upper(u64::from(view.state as u8), 2);
    line.push(b" 00000000:");
    line.hex_upper(view.received as u64, 8);
    out.push(line.bytes());
    let mut line = ShortLine::of(b" 00:00000000 00000000 ");
    line.decimal(crate::task::shown_ids(socket.owner(), 0).0.into(), 5);
    line.push(b"        0 ");
    line.decimal(socket.inode(), 0);
    line.push(b" 1 0000000000000000");
    out.push(line.bytes());
}

/// Adds a number, padded to `width`, and a blank.
fn column(line: &mut ShortLine, value: u64, width: usize) {
    let end = line.bytes().len() + width;
    line.decimal(value, 0);
    line.pad(end);
    line.push(b" ");
}

fn netlink_row(out: &mut Text, socket: &Socket, own: NetlinkAddress) {
    let mut line = ShortLine::of(b"0000000000000000 ");
    column(&mut line, socket.protocol_number() as u64, 3);
    column(&mut line, own.port.into(), 10);
    line.hex(own.groups.into(), 8);
    line.push(b" ");
    // Bytes that wait, bytes sent, dumps, references, lost datagrams.
    let waiting = socket.channel().bytes() as u64;
    for (value, width) in [(waiting, 8), (0, 8), (0, 5), (2, 8), (0, 8)] {
        column(&mut line, value, width);
    }
    let end = line.bytes().len() + 8;
    line.decimal(socket.inode(), 0);
    line.pad(end);
    out.push(line.bytes());
    out.push(b"\n");
}

fn packet_row(out: &mut Text, socket: &Socket) {
    let Some((kind, (protocol, device))) = socket.packet_view() else { return };
    let mut line = ShortLine::of(b"0000000000000000 3      ");
    column(&mut line, kind as u64, 4);
    line.hex(protocol.into(), 4);
    line.push(b"   ");
    column(&mut line, device.into(), 5);
    column(&mut line, u64::from(protocol != 0), 1);
    column(&mut line, socket.channel().bytes() as u64, 6);
    column(&mut line, crate::task::shown_ids(socket.owner(), 0).0.into(), 6);
    line.decimal(socket.inode(), 0);
    out.push(line.bytes());
    out.push(b"\n");
}

fn unix_row(out: &mut Text, socket: &Socket) {
    let (is_connected, is_listening) = (socket.has_peer(), socket.is_listening());
    let state = match (is_connected, socket.inode()) {
        (true, 0) => CONNECTING,
        (true, _) => CONNECTED,
        (false, _) => UNCONNECTED,
    };
    let mut line = ShortLine::of(b"0000000000000000: ");
    line.hex(2 + u64::from(is_connected), 8);
    line.push(b" 00000000 ");
    line.hex(u64::from(if is_listening { LISTENS } else { 0 }), 8);
    line.push(b" ");
    line.hex(socket.kind() as u64, 4);
    line.push(b" ");
    line.hex(state.into(), 2);
    line.push(b" ");
    line.decimal(socket.inode(), 5);
    out.push(line.bytes());
    match socket.address() {
        Some(Address::Path(path)) => {
            out.push(b" ");
            out.push(&path);
        }
        Some(Address::Abstract(name)) => {
            out.push(b" @");
            name.iter().for_each(|&byte| out.push(&[if byte == 0 { b'@' } else { byte }]));
        }
        _ => {}
    }
    out.push(b"\n");
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use freehold_collections::{Arc, reserve};
    use proptest::prelude::*;

    use super::*;
    use crate::socket::endpoint::SocketKind;
    use crate::socket::family::Family;
    use crate::task::namespaces::network::NetworkNamespace;

    fn text(write: impl FnOnce(&mut Text)) -> String {
        let mut out = Text::new();
        write(&mut out);
        String::from_utf8(out.finish().unwrap().to_vec()).unwrap()
    }

    fn address(ip: &str, port: u16) -> InetAddress {
        InetAddress { ip: ip.parse().unwrap(), port }
    }

    #[test]
    fn a_line_of_tcp_is_linux_line() {
        let socket = Socket::new(Family::Inet, SocketKind::Stream);
        let view = InetView {
            local: address("::ffff:127.0.0.1", 0x1f90),
            remote: address("::ffff:127.0.0.1", 0xbd0e),
            state: TcpState::Established,
            received: 5,
            backlog: 0,
        };
        assert_eq!(
            text(|out| inet_row(out, &socket, &view)),
            "0100007F:1F90 0100007F:BD0E 01 00000000:00000005 00:00000000 00000000     0        0 0 1 \
             0000000000000000"
        );
        let mut title = text(|out| SocketRows::new(SocketClass::Tcp, 0).title(out));
        assert_eq!((title.pop(), title.len()), (Some('\n'), TCP_COLUMNS));
        let mut title = text(|out| SocketRows::new(SocketClass::Udp, 0).title(out));
        assert_eq!((title.pop(), title.len()), (Some('\n'), UDP_COLUMNS));
        let title = text(|out| SocketRows::new(SocketClass::Udp6, 0).title(out));
        assert!(title.ends_with(" timeout inode ref pointer drops\n"));
    }

    #[test]
    fn a_name_of_af_unix_has_an_at_sign_for_each_nul() {
        let socket = Socket::new(Family::Unix, SocketKind::Packets);
        socket.bind(Some(Address::Abstract(reserve::slice(b"rows\0of")))).unwrap();
        socket.listen(1).unwrap();
        assert_eq!(
            text(|out| unix_row(out, &socket)),
            "0000000000000000: 00000002 00000000 00010000 0005 01     0 @rows@of\n"
        );
    }

    proptest! {
        #[test]
        fn addresses_are_words_as_this_machine_reads_them(octets: [u8; 16], port: u16, is_v6: bool) {
            let mut line = ShortLine::new();
            push_address(&mut line, InetAddress { ip: Ipv6Addr::from(octets), port }, is_v6);
            let words = octets.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
            let words: Vec<String> = words.map(|word| format!("{word:08X}")).collect();
            let ip = if is_v6 { words.concat() } else { words[3].clone() };
            let wanted = format!("{ip}:{port:04X}");
            prop_assert_eq!(line.bytes(), wanted.as_bytes());
        }
    }

    /// The parts of a list are about a page each, and together have each socket once.
    #[test]
    fn a_long_list_comes_in_parts_that_are_bounded() {
        let sockets: Vec<Arc<Socket>> = (0..200)
            .map(|_| {
                let socket = Socket::new(Family::Unix, SocketKind::Datagram);
                table::enter(&socket).unwrap();
                socket
            })
            .collect();
        let (mut rows, mut lines) = (SocketRows::new(SocketClass::Unix, NetworkNamespace::INITIAL_NUMBER), 0);
        loop {
            let mut out = Text::new();
            let more = rows.next(&mut out).unwrap();
            assert!(out.length() < PART + 200);
            lines += out.finish().unwrap().iter().filter(|&&byte| byte == b'\n').count();
            if more == More::No {
                break;
            }
        }
        assert!(lines > sockets.len(), "{lines}");
    }
}
