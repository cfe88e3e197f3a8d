//! Another machine on the guest's network: frames go to a TCP/IP stack of this process instead of
//! QEMU's.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use freehold_net::{Config, Ends, Failure, Host, Id, Marks, Owner, Refusal, Stack};

/// The guest's server.
const GUEST: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 15), 80);
/// The peer, and one whose answers are dropped.
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const DEAF: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
const ARP: [u8; 2] = [8, 6];

/// State of a connection of the peer's programs.
#[derive(Debug)]
pub struct Caller {
    id: Option<Id>,
    to_send: VecDeque<u8>,
    pub received: Vec<u8>,
    pub connected: bool,
    pub failure: Option<Failure>,
    owner: Owner,
}

/// The peer's programs, and the wire.
struct Programs {
    wire: UdpSocket,
    callers: Vec<Caller>,
}

impl Host for Programs {
    type Socket = usize;
    fn transmit(&mut self, frame: &[u8]) {
        // A frame that is lost on its way is sent again.
        let _ = self.wire.send(frame);
    }
    fn listens(&mut self, _: Ends) -> bool {
        false
    }
    fn accept(&mut self, _: Ends, _: Id) -> Result<usize, Refusal> {
        Err(Refusal::Gone)
    }
    fn connected(&mut self, socket: &usize) {
        self.callers[*socket].connected = true;
    }
    fn has_bytes(&mut self, socket: &usize) -> bool {
        !self.callers[*socket].to_send.is_empty()
    }
    fn fetch(&mut self, socket: &usize, room: &mut [u8]) -> usize {
        let queue = &mut self.callers[*socket].to_send;
        let count = queue.len().min(room.len());
        room.iter_mut().zip(queue.drain(..count)).for_each(|(to, byte)| *to = byte);
        count
    }
    fn has_ended(&mut self, _: &usize) -> bool {
        false
    }
    fn deliver(&mut self, socket: &usize, bytes: &[u8]) -> usize {
        self.callers[*socket].received.extend(bytes);
        bytes.len()
    }
    fn owner(&mut self, socket: &usize) -> Owner {
        self.callers[*socket].owner
    }
    fn ended(&mut self, _: &usize) {}
    fn failed(&mut self, socket: &usize, failure: Failure) {
        self.callers[*socket].failure = Some(failure);
    }
    fn datagram(&mut self, _: Ends, _: Marks, _: &[u8]) -> bool {
        false
    }
    fn refused(&mut self, _: Ends) {}
}

/// The peer of the module's head.
pub struct Peer {
    stack: Stack<Programs>,
    /// A stack whose calls are never completed.
    flood: Stack<Programs>,
    programs: Programs,
    nobody: Programs,
    started: Instant,
    port: u16,
}

fn stack(address: Ipv4Addr) -> Stack<Programs> {
    let hardware = [2, 0, 0, 0, 0, address.octets()[3]];
    let config = Config { hardware, address, prefix: 24, gateway: PEER, mtu: 1500, budget: 64 << 20 };
    Stack::new(config, [1, 2], 0)
}

impl Peer {
    /// Makes a peer, and the emulator that connects a guest to it: a script in `folder`.
    pub fn new(folder: &tempfile::TempDir) -> (Peer, PathBuf) {
        let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let (wire, other) = (bind(), bind());
        let port = |socket: &UdpSocket| socket.local_addr().expect("it is bound").port();
        let (own, qemu) = (port(&wire), port(&other));
        drop(other);
        wire.connect((Ipv4Addr::LOCALHOST, qemu)).expect("an address of this machine");
        wire.set_read_timeout(Some(Duration::from_millis(1))).expect("a time-out");
        let end =
            |name: &str, port: u16| format!("{name}.type=inet,{name}.host=127.0.0.1,{name}.port={port}");
        let netdev = format!("dgram,id=net0,{},{}", end("local", qemu), end("remote", own));
        let script = format!(
            "#!/bin/sh\nfor word; do\n  shift\n  case $word in user,id=net0*) word={netdev} ;; esac\n  set -- \"$@\" \"$word\"\ndone\nexec {} \"$@\"\n",
            std::env::var("FREEHOLD_QEMU").unwrap_or_else(|_| "qemu-system-x86_64".into()),
        );
        let path = folder.path().join("qemu");
        std::fs::write(&path, script).expect("written");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
        let programs =
            |wire: &UdpSocket| Programs { wire: wire.try_clone().expect("a copy"), callers: Vec::new() };
        let peer = Peer {
            stack: stack(PEER),
            flood: stack(DEAF),
            programs: programs(&wire),
            nobody: programs(&wire),
            started: Instant::now(),
            port: 1024,
        };
        (peer, path)
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn ends(&mut self, ip: Ipv4Addr) -> Ends {
        self.port += 1;
        Ends { local: SocketAddrV4::new(ip, self.port), remote: GUEST }
    }

    /// Calls the guest's server to send `bytes`; returns the caller's number.
    pub fn call(&mut self, bytes: &[u8]) -> usize {
        let (now, ends, number) = (self.now(), self.ends(PEER), self.programs.callers.len());
        self.programs.callers.push(Caller {
            id: None,
            to_send: bytes.iter().copied().collect(),
            received: Vec::new(),
            connected: false,
            failure: None,
            owner: Owner::Program,
        });
        let id = self.stack.connect(&mut self.programs, ends, number, now).expect("memory");
        self.programs.callers[number].id = id;
        number
    }

    /// Calls the guest's server and ignores its answer.
    pub fn call_and_go(&mut self) {
        let (now, ends) = (self.now(), self.ends(DEAF));
        self.nobody.callers.push(Caller {
            id: None,
            to_send: VecDeque::new(),
            received: Vec::new(),
            connected: false,
            failure: None,
            owner: Owner::Program,
        });
        let number = self.nobody.callers.len() - 1;
        self.flood.connect(&mut self.nobody, ends, number, now).expect("memory");
    }

    /// Sends more bytes.
    pub fn send(&mut self, caller: usize, bytes: &[u8]) {
        self.programs.callers[caller].to_send.extend(bytes);
        self.pump(caller);
    }

    /// Resets the connection.
    pub fn reset(&mut self, caller: usize) {
        self.programs.callers[caller].owner = Owner::Reset;
        self.pump(caller);
    }

    fn pump(&mut self, caller: usize) {
        let now = self.now();
        if let Some(id) = self.programs.callers[caller].id {
            self.stack.pump(&mut self.programs, id, now);
        }
    }

    /// Returns a caller.
    pub fn caller(&self, number: usize) -> &Caller {
        &self.programs.callers[number]
    }

    /// Exchanges frames until `holds`.
    #[track_caller]
    pub fn run_until(&mut self, mut holds: impl FnMut(&Peer) -> bool) {
        let until = Instant::now() + Duration::from_secs(120);
        let mut frame = [0; 2048];
        while !holds(self) {
            assert!(Instant::now() < until, "it does not come about");
            if let Ok(length) = self.programs.wire.recv(&mut frame) {
                let now = self.now();
                self.stack.receive(&mut self.programs, &frame[..length], now);
                if frame[12..14] == ARP {
                    self.flood.receive(&mut self.nobody, &frame[..length], now);
                }
            }
            let now = self.now();
            self.stack.expire(&mut self.programs, now);
        }
    }
}
