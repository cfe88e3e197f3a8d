//! `--net` and `-p`: QEMU's network for one machine, and the ports of this machine that lead into
//! it.
//!
//! The guest is 10.0.2.15, alone in its network; QEMU connects it to everything beyond, with this
//! user's sockets. With `-p` alone QEMU passes on forwarded connections only (`restrict=on`); it
//! drops all that the guest sends over UDP then, answers too.

use std::collections::BTreeSet;
use std::fmt;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};

use super::CommandLine;
use crate::Result;
use crate::args::{NetworkMode, RunOptions};
use crate::failure::Failure;

/// Slot of the device on the PCI bus.
const SLOT: u32 = 7;
/// The guest's address and its gateway, as QEMU assigns them.
const RECORD: &str = "10.0.2.15/24,10.0.2.2";
/// The resolver of QEMU, which asks this machine's resolver.
pub const RESOLV_CONF: &str = "nameserver 10.0.2.3\n";

/// The protocol of a forwarded port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Protocol {
    Tcp,
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        })
    }
}

/// A forwarded port: a port of this machine that leads to one of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Forward {
    protocol: Protocol,
    host: SocketAddrV4,
    guest: u16,
}

/// The network of a machine that has one, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Whether the guest reaches more than forwarded connections.
    pub reaches_out: bool,
    forwards: Vec<Forward>,
}

impl Network {
    /// Returns the network that the options request.
    pub fn from_options(options: &RunOptions) -> Result<Option<Network>> {
        let forwards =
            options.network.publish.iter().map(|text| Forward::parse(text)).collect::<Result<Vec<_>>>()?;
        let reaches_out = options.network.net == Some(NetworkMode::User);
        if options.network.net == Some(NetworkMode::None) && !forwards.is_empty() {
            return Err(Failure::new(
                "-p needs a network, and --net none is none",
                "leave --net out: with -p alone the guest reaches nothing but what is forwarded",
            ));
        }
        if !reaches_out && forwards.is_empty() {
            return Ok(None);
        }
        if let Some(text) = mute_forward(&forwards, &options.network.publish).filter(|_| !reaches_out) {
            return Err(Failure::new(
                format!("-p {text}: without --net user every answer over UDP is lost"),
                "add --net user",
            ));
        }
        if options.icount {
            return Err(Failure::new(
                "--icount repeats a run, and a network does not",
                "leave one of them out",
            ));
        }
        let mut taken = BTreeSet::new();
        if let Some(twice) = forwards.iter().find(|forward| !taken.insert((forward.protocol, forward.host))) {
            return Err(Failure::new(
                format!("-p: {} is forwarded twice", twice.host),
                "each port of this machine leads to one of the guest",
            ));
        }
        Ok(Some(Network { reaches_out, forwards }))
    }

    /// Returns the entry in /.freehold/spec: address and bits of the network, and the gateway.
    pub const fn record(&self) -> &'static str {
        RECORD
    }

    /// Checks that the ports to be forwarded are free. QEMU would report a taken port later and in
    /// other words.
    pub fn check_ports(&self) -> Result<()> {
        self.forwards.iter().try_for_each(Forward::check)
    }

    /// Adds the network to QEMU's arguments.
    pub fn arguments(&self, line: &mut CommandLine) {
        let restrict = if self.reaches_out { "off" } else { "on" };
        let mut network = format!("user,id=net0,ipv6=off,restrict={restrict}");
        for Forward { protocol, host, guest } in &self.forwards {
            network += &format!(",hostfwd={protocol}:{}:{}-:{guest}", host.ip(), host.port());
        }
        line.option("-netdev", network);
        // No boot ROM: nothing boots from a network.
        let device = format!("virtio-net-pci,netdev=net0,addr={SLOT:#x},disable-legacy=on,romfile=");
        line.option("-device", device);
    }
}

/// Returns the text of the first forward over UDP.
fn mute_forward<'a>(forwards: &[Forward], texts: &'a [String]) -> Option<&'a String> {
    let mut both = forwards.iter().zip(texts);
    both.find(|(forward, _)| forward.protocol == Protocol::Udp).map(|(_, text)| text)
}

impl Forward {
    /// Parses `[ADDR:]HOST:GUEST[/udp|/tcp]`.
    fn parse(text: &str) -> Result<Forward> {
        let wrong = |what: &str| {
            Failure::new(format!("-p {text}: {what}"), "[ADDR:]HOST:GUEST[/udp], for example -p 8080:80")
        };
        let (ports, protocol) = match text.split_once('/') {
            None => (text, Protocol::Tcp),
            Some((ports, "tcp")) => (ports, Protocol::Tcp),
            Some((ports, "udp")) => (ports, Protocol::Udp),
            Some((_, other)) => return Err(wrong(&format!("{other} is neither tcp nor udp"))),
        };
        let (place, guest) = ports.rsplit_once(':').ok_or_else(|| wrong("not HOST:GUEST"))?;
        let (address, host) = place.rsplit_once(':').unwrap_or(("127.0.0.1", place));
        let address: Ipv4Addr =
            address.parse().map_err(|_| wrong(&format!("{address} is no address of IPv4")))?;
        let port = |port: &str| {
            let number = port.parse().ok().filter(|&number: &u16| number != 0);
            number.ok_or_else(|| wrong(&format!("{port} is no port: 1 to 65535")))
        };
        Ok(Forward { protocol, host: SocketAddrV4::new(address, port(host)?), guest: port(guest)? })
    }

    fn check(&self) -> Result<()> {
        let bound = match self.protocol {
            Protocol::Tcp => TcpListener::bind(self.host).map(drop),
            Protocol::Udp => UdpSocket::bind(self.host).map(drop),
        };
        let (port, address) = (self.host.port(), self.host.ip());
        bound.map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => Failure::new(
                format!("-p: {} port {port} of {address} is in use", self.protocol),
                "choose another one",
            ),
            ErrorKind::PermissionDenied => Failure::new(
                format!("-p: port {port} is not yours to take"),
                "ports from 1024 on need no rights, for example -p 8080:80",
            ),
            ErrorKind::AddrNotAvailable => Failure::new(
                format!("-p: {address} is no address of this machine"),
                "leave it out for 127.0.0.1",
            ),
            _ => Failure::new(format!("-p: port {port} of {address}: {error}"), ""),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> RunOptions {
        let words: Vec<_> = arguments.iter().chain(&["--", "true"]).map(Into::into).collect();
        crate::args::run_options(&words).unwrap()
    }

    fn message(arguments: &[&str]) -> String {
        Network::from_options(&options(arguments)).unwrap_err().to_string()
    }

    #[test]
    fn ports_are_parsed_as_they_are_meant() {
        for (arguments, restrict, forwards) in [
            (&["-p", "8080:80"][..], "on", "hostfwd=tcp:127.0.0.1:8080-:80"),
            (&["--net", "user", "-p", "0.0.0.0:53:5353/udp"], "off", "hostfwd=udp:0.0.0.0:53-:5353"),
        ] {
            let network = Network::from_options(&options(arguments)).unwrap().unwrap();
            assert_eq!(network.reaches_out, restrict == "off");
            let mut line = CommandLine::default();
            network.arguments(&mut line);
            let netdev = format!("user,id=net0,ipv6=off,restrict={restrict},{forwards}");
            assert_eq!(line.0[1].to_str().unwrap(), netdev);
        }
        let network = Network::from_options(&options(&["--net", "user"])).unwrap().unwrap();
        assert!(network.reaches_out && network.forwards.is_empty());
        assert_eq!(Network::from_options(&options(&[])).unwrap(), None);
        assert_eq!(Network::from_options(&options(&["--net", "none"])).unwrap(), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_one_sentence() {
        for (text, said) in [
            ("80", "not HOST:GUEST"),
            ("80:0", "0 is no port"),
            ("0:80", "0 is no port"),
            ("80:65536", "65536 is no port"),
            ("80:x", "x is no port"),
            ("::1:80:80", "is no address of IPv4"),
            ("here:80:80", "here is no address of IPv4"),
            ("80:80/sctp", "sctp is neither tcp nor udp"),
        ] {
            assert!(message(&["-p", text]).contains(said), "{text}: {}", message(&["-p", text]));
        }
        assert!(message(&["--net", "none", "-p", "80:80"]).contains("--net none is none"));
        assert!(message(&["--net", "user", "--icount"]).contains("a network does not"));
        assert!(message(&["-p", "80:80", "-p", "80:81"]).contains("forwarded twice"));
        assert!(message(&["-p", "80:80", "-p", "80:80/udp"]).contains("-p 80:80/udp: without --net user"));
        let both = ["--net", "user", "-p", "80:80", "-p", "80:80/udp"];
        assert!(Network::from_options(&options(&both)).is_ok());
    }

    #[test]
    fn a_port_that_is_taken_is_told() {
        let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = holder.local_addr().unwrap().port();
        let network = Network::from_options(&options(&["-p", &format!("{port}:80")])).unwrap().unwrap();
        assert!(network.check_ports().unwrap_err().to_string().contains("is in use"));
        drop(holder);
        assert!(network.check_ports().is_ok());
        let network = Network::from_options(&options(&["-p", "192.0.2.1:5000:80"])).unwrap().unwrap();
        assert!(network.check_ports().unwrap_err().to_string().contains("no address of this machine"));
    }
}
