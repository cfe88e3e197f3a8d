//! The network: connections and datagrams whose other end is on another machine.
//!
//! A TCP connection to another machine has two channels, like a local one ([`inet`](super::inet)).
//! A [`Far`] takes the place of the peer's socket, and the task `net` moves bytes between it and
//! the TCP of `freehold-net`. So all operations on sockets, from poll(2) to splice(2), are the same
//! for local and remote connections. The task does not access a program's memory. It skips a queue
//! that another task holds, and tries again soon.
//!
//! | module | concept |
//! |---|---|
//! | [`far`] | the remote end of a connection |
//! | [`due`] | the connections that may have news |
//! | [`machine`] | the services of this kernel for the stack |
//!
//! **Locks.** One mutex protects the state of the network. It is taken with no lock of a socket
//! held. Taken under it: the map of ports, the table of sockets, a socket's state, a channel's
//! queue if it is free, and the device.

mod due;
mod far;
mod machine;

use core::net::{Ipv6Addr, SocketAddrV4};
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::{Arc, Vec, reserve};
use freehold_machine::PAGE_SIZE;
use freehold_net::{Config, Ends, Marks, Stack};
use spin::Once;

use self::due::Due;
use self::far::Far;
use self::machine::Machine;
use super::address::inet::InetAddress;
use super::attachment::{self, Attachment};
use super::channel::Channel;
use super::packet::PacketSocket;
use crate::sync::Mutex;
use crate::user::{Source, read_all};
use crate::{Errno, Result, hw, mem, sched, time};

/// Number of frames that are processed before connections and timers have their turn.
const BATCH: usize = 64;
/// The bytes of connections may use this fraction of memory: 1/16.
const PART: usize = 16;
/// Bytes of an Ethernet header.
const HEADER: usize = 14;

/// See the module's head.
pub struct Wire {
    attachment: &'static Attachment,
    state: Mutex<State>,
    due: Due,
    /// Whether the task has to check again: a deadline may have become earlier.
    changed: AtomicBool,
}

struct State {
    stack: Stack<Machine>,
    machine: Machine,
}

static WIRE: Once<&'static Wire> = Once::new();

/// Returns the network, if there is one.
pub fn wire() -> Option<&'static Wire> {
    WIRE.get().copied()
}

/// Connects the machine to a network, and starts the task `net`. Called once, before programs run.
///
/// # Errors
/// `ENOMEM`.
pub fn start(attachment: Attachment) -> Result<()> {
    let Attachment { device, address, prefix, gateway, .. } = &attachment;
    let config = Config {
        hardware: device.address(),
        address: *address,
        prefix: *prefix,
        gateway: *gateway,
        mtu: device.mtu() as u16,
        budget: mem::frames().total_frames() as usize * PAGE_SIZE / PART,
    };
    let mut secret = [0; 16];
    hw::fill_random(&mut secret);
    let halves = [0, 8].map(|at| u64::from_ne_bytes(secret[at..at + 8].try_into().unwrap_or_default()));
    let stack = Stack::new(config, halves, time::now());
    let frame = Vec::try_filled(0, HEADER + device.mtu())?;
    log::info!("eth0: {address}/{prefix} behind {gateway}");
    let machine = Machine::new(device.clone());
    let wire: &'static Wire = reserve::leaked(Wire {
        attachment: attachment::set(attachment),
        state: Mutex::new(State { stack, machine }),
        due: Due::new(),
        changed: AtomicBool::new(false),
    });
    wire.state.lock().machine.wire = Some(wire);
    sched::spawn_kernel("net", move || wire.work(frame))?;
    WIRE.call_once(|| wire);
    Ok(())
}

fn end(address: InetAddress) -> Result<SocketAddrV4> {
    let ip = address.ip.to_ipv4_mapped().ok_or(Errno::ENETUNREACH)?;
    Ok(SocketAddrV4::new(ip, address.port))
}

fn ends(local: InetAddress, remote: InetAddress) -> Result<Ends> {
    Ok(Ends { local: end(local)?, remote: end(remote)? })
}

impl Wire {
    /// Records that the connection with this number may have news. Any context.
    fn is_due(&self, number: usize) {
        self.due.add(number);
        self.attachment.changed.wake_all();
    }

    fn look_again(&self) {
        self.changed.store(true, Ordering::SeqCst);
        self.attachment.changed.wake_all();
    }

    /// Calls `remote` for the socket that receives from `own` and will send into `out`.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if such a connection exists, `ENOBUFS` if there are too many, `ENOMEM`.
    pub(super) fn call(
        &'static self,
        (local, remote): (InetAddress, InetAddress),
        own: &Arc<Channel>,
        out: &Arc<Channel>,
    ) -> Result<()> {
        let ends = ends(local, remote)?;
        let far = Far::new(self, own.clone(), out.clone())?;
        let tie = far.tie.clone();
        let mut state = self.state.lock();
        let State { stack, machine } = &mut *state;
        if stack.connections() >= due::MOST {
            return Err(Errno::ENOBUFS);
        }
        let id = stack.connect(machine, ends, far, time::now())?.ok_or(Errno::EADDRNOTAVAIL)?;
        drop(state);
        tie.bind(id.number());
        self.look_again();
        Ok(())
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// `EMSGSIZE` if it does not fit into a packet, `EFAULT`, `ENOMEM`.
    pub(super) fn send_datagram(
        &self,
        (local, remote): (InetAddress, InetAddress),
        marks: Marks,
        source: &mut dyn Source,
    ) -> Result<usize> {
        let (ends, length) = (ends(local, remote)?, source.remaining());
        if length > self.attachment.device.mtu() {
            return Err(Errno::EMSGSIZE);
        }
        let bytes = read_all(source)?;
        let mut state = self.state.lock();
        let State { stack, machine } = &mut *state;
        let fits = stack.send_datagram(machine, (ends, marks), &bytes, time::now());
        drop(state);
        self.look_again();
        if fits { Ok(length) } else { Err(Errno::EMSGSIZE) }
    }

    /// Sends an IPv4 packet. Its next hop is chosen for `to`.
    ///
    /// # Errors
    /// `EMSGSIZE` if it does not fit into a frame.
    pub(super) fn send_packet(&self, to: Ipv6Addr, packet: &[u8]) -> Result<()> {
        let to = to.to_ipv4_mapped().ok_or(Errno::ENETUNREACH)?;
        let mut state = self.state.lock();
        let State { stack, machine } = &mut *state;
        let fits = stack.send_packet(machine, to, packet, time::now());
        drop(state);
        self.look_again();
        if fits { Ok(()) } else { Err(Errno::EMSGSIZE) }
    }

    /// Sends a frame of a packet socket. Without room it is lost.
    pub(super) fn send_frame(&self, frame: &[u8], sender: &PacketSocket) {
        self.state.lock().machine.send_frame(frame, Some(sender));
    }

    /// The task `net`.
    fn work(&self, mut frame: Vec<u8>) {
        loop {
            let deadline = self.turn(&mut frame);
            sched::rest();
            let ready = || {
                let told = self.changed.swap(false, Ordering::SeqCst)
                    | self.attachment.interrupted.swap(false, Ordering::SeqCst);
                (told || !self.due.is_empty()).then_some(())
            };
            match deadline {
                Some(deadline) => drop(self.attachment.changed.wait_uninterruptible_until(deadline, ready)),
                None => self.attachment.changed.wait_uninterruptible(ready),
            }
        }
    }

    /// Does the pending work. Returns the time of the next work, in case the task is not woken
    /// earlier.
    fn turn(&self, frame: &mut [u8]) -> Option<u64> {
        let mut state = self.state.lock();
        let State { stack, machine } = &mut *state;
        machine.send_waiting();
        let now = time::now();
        let mut taken = 0;
        while taken < BATCH
            && let Some(length) = machine.receive(frame)
        {
            stack.receive(machine, &frame[..length], now);
            taken += 1;
        }
        for &number in machine.take_busy().iter() {
            stack.pump_numbered(machine, number, now);
        }
        self.due.take(|number| stack.pump_numbered(machine, number, now));
        stack.expire(machine, now);
        machine.deliver_late();
        let more = (taken == BATCH).then_some(now);
        let late = machine.waits_for_queues().then_some(now + machine::LATE);
        [more, late, stack.deadline()].into_iter().flatten().min()
    }
}
