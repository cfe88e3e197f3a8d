//! Packet sockets (packet(7)): frames as a network device sends and receives them.
//!
//! Like raw sockets they are shown what would otherwise be no packet: datagrams between the sockets
//! of this machine, and the packets of raw and ping sockets. TCP connections within the machine
//! have no packets, and appear on no device.
//!
//! | module | concept |
//! |---|---|
//! | [`frame`] | frames |
//! | [`show`] | the sockets that frames are shown to |
//! | [`send`] | frames of programs |
//! | [`offload`] | the header of virtio_net before frames |
//! | [`settings`] | options |
//! | [`ring`] | frames in memory that the socket shares with its program |
//!
//! **Locks.** A spin lock protects a socket's state. No other lock except the network's mutex may
//! be held when it is taken.

pub(super) mod frame;
mod offload;
mod ring;
mod send;
mod settings;
pub(super) mod show;

use core::sync::atomic::{AtomicU32, Ordering};

use freehold_collections::{Arc, Receiver, reserve};

pub use self::frame::PacketKind;

use self::frame::{Bound, LinkFrame};
use self::ring::PacketRings;
use super::address::link::LinkAddress;
use super::channel::Channel;
use super::filter::SocketFilter;
use super::interface::{self, Interface};
use super::memory::SocketAccount;
use super::registry::{HearerKey, Hearers, Hears};
use crate::mem::CacheContent;
use crate::sync::SpinLock;
use crate::task::namespaces::network::NetworkNamespace;
use crate::task::{self, Capability};
use crate::{Errno, Result};

/// All packet sockets that receive.
static HEARERS: Hearers<PacketSocket> = Hearers::new();

/// ETH_P_ALL: all protocols.
const ALL_PROTOCOLS: u16 = 3;

/// Values of options.
#[derive(Clone, Copy, Debug, Default)]
struct PacketSettings {
    ignores_outgoing: bool,
    /// Stored only: no queue delays frames.
    bypasses_queue: bool,
    /// PACKET_ORIGDEV, stored only: no device is made of others.
    names_origin: bool,
    /// PACKET_TIMESTAMP, stored only: no device has a clock.
    timestamps: u32,
}

#[derive(Clone, Copy)]
struct PacketState {
    /// ETH_P_*; 0 for a socket that receives nothing.
    protocol: u16,
    /// The number of the device; 0 for all.
    device: u32,
    key: Option<HearerKey>,
    settings: PacketSettings,
}

/// See the module's head.
pub struct PacketSocket {
    kind: PacketKind,
    network: Arc<NetworkNamespace>,
    channel: Arc<Channel>,
    state: SpinLock<PacketState>,
    filter: SocketFilter,
    rings: PacketRings,
    /// Frames for the socket since PACKET_STATISTICS was last read, and those without room.
    counts: [AtomicU32; 2],
}

impl PacketSocket {
    /// Makes a socket of `network` for the running task. `protocol` is in network byte order.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW in the user namespace that owns the network namespace, `ENOMEM`.
    pub fn open(kind: PacketKind, protocol: i32, network: Arc<NetworkNamespace>) -> Result<Arc<Self>> {
        if !task::may_in(network.head().owner(), Capability::NetRaw) {
            return Err(Errno::EPERM);
        }
        let state = PacketState { protocol: 0, device: 0, key: None, settings: PacketSettings::default() };
        let socket = reserve::arc(Self {
            kind,
            network,
            channel: Channel::new(SocketAccount::Other),
            state: SpinLock::new(state),
            filter: SocketFilter::default(),
            rings: PacketRings::default(),
            counts: [const { AtomicU32::new(0) }; 2],
        });
        socket.receive_from(u16::from_be(protocol as u16), 0)?;
        Ok(socket)
    }

    /// Returns the channel in which its frames arrive.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Returns whether programs see the device's header.
    pub const fn kind(&self) -> PacketKind {
        self.kind
    }

    /// Returns the protocol (ETH_P_*) and the device that the socket is bound to; 0 for none.
    pub fn bound(&self) -> (u16, u32) {
        let state = self.state.lock();
        (state.protocol, state.device)
    }

    /// Returns the device with this number.
    fn device(&self, index: u32) -> Option<Interface> {
        interface::all(&self.network).find(|device| device.index == index)
    }

    /// Returns the socket's address.
    pub fn own(&self) -> LinkAddress {
        let (protocol, index) = self.bound();
        let own = LinkAddress::new(protocol, index);
        match self.device(index) {
            Some(device) => own.at_device(device.hardware, device.hardware_addresses[0]),
            None => own,
        }
    }

    /// bind(2): to a device, or to all (0), and to a protocol, or to the one it has (0).
    ///
    /// # Errors
    /// `ENODEV`; `ENETDOWN` if the device is down; `ENOMEM`.
    pub(super) fn bind(self: &Receiver<Self>, to: LinkAddress) -> Result<()> {
        let device = self.device(to.interface());
        if to.interface() != 0 && device.is_none() {
            return Err(Errno::ENODEV);
        }
        let protocol = if to.protocol() == 0 { self.bound().0 } else { to.protocol() };
        self.receive_from(protocol, to.interface())?;
        if device.is_some_and(|device| !device.is_up()) {
            self.channel.fail(Errno::ENETDOWN);
        }
        Ok(())
    }

    /// Receives frames of this protocol from this device from now on.
    fn receive_from(self: &Receiver<Self>, protocol: u16, device: u32) -> Result<()> {
        let hears = match protocol {
            0 => None,
            ALL_PROTOCOLS => Some(Hears::AllFrames),
            protocol => Some(Hears::Frames(protocol)),
        };
        let key = hears.map(|hears| HEARERS.enter(self.network.number(), hears, self)).transpose()?;
        let before = {
            let mut state = self.state.lock();
            (state.protocol, state.device) = (protocol, device);
            core::mem::replace(&mut state.key, key)
        };
        before.iter().for_each(|key| HEARERS.leave(key));
        Ok(())
    }

    /// Whether the socket receives this frame, whose protocol is one of its own.
    fn hears(&self, frame: &LinkFrame<'_>) -> bool {
        let state = *self.state.lock();
        let is_wanted = frame.bound != Bound::Outgoing || !state.settings.ignores_outgoing;
        is_wanted && [0, frame.device.index].contains(&state.device)
    }

    /// Whether frames were lost since PACKET_STATISTICS was last read.
    fn has_lost(&self) -> bool {
        self.counts[1].load(Ordering::Relaxed) != 0
    }

    /// Whether a ring has frames for the program.
    pub(super) fn is_readable(&self) -> bool {
        self.rings.state.lock().is_readable()
    }

    /// Returns the file of the rings, for mmap(2).
    ///
    /// # Errors
    /// `EINVAL` without a ring.
    pub(super) fn mapping(&self) -> Result<Arc<CacheContent>> {
        self.rings.content()
    }

    /// Checks the part of the rings' file that mmap(2) maps.
    ///
    /// # Errors
    /// `EINVAL` if it is not all of it.
    pub(super) fn check_mapping(&self, offset: u64, length: u64) -> Result<()> {
        self.rings.check_mapping(offset, length)
    }

    /// Counts a frame, and its loss if there is no room. Returns whether there is.
    fn count(&self, has_room: bool) -> bool {
        self.counts[0].fetch_add(1, Ordering::Relaxed);
        if !has_room {
            self.counts[1].fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }
}

impl Drop for PacketSocket {
    fn drop(&mut self) {
        self.state.get_mut().key.iter().for_each(|key| HEARERS.leave(key));
    }
}
