//! Network namespaces: sets of sockets that can communicate with each other (Linux: `struct net`).
//!
//! A socket permanently belongs to the namespace of the process that made it. The same holds for
//! its port, its abstract name and the lists that show it. The machine's device belongs to the
//! initial namespace. Any other namespace has a loopback device only, which is down until a program
//! sets it up; no packet leaves the namespace.
//!
//! Callers: `socket`, /proc, unshare and setns, any context.

use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

use freehold_collections::{Arc, reserve};
use spin::Once;

use crate::Result;
use crate::sync::SpinLock;
use crate::task::credentials::Credentials;
use crate::task::userns::{NamespaceHead, NamespaceKind};

static INITIAL: Once<Arc<NetworkNamespace>> = Once::new();

/// Number of classes that `socket` divides sockets into.
pub const SOCKET_CLASSES: usize = 13;

/// A network namespace.
pub struct NetworkNamespace {
    head: NamespaceHead,
    is_up: AtomicBool,
    /// First and last group that may use ping sockets, as the kernel's IDs.
    ping_groups: SpinLock<(u32, u32)>,
    /// The first port that needs no CAP_NET_BIND_SERVICE.
    first_free_port: AtomicU32,
    /// Bytes of the loopback device's longest packet.
    loopback_mtu: AtomicU32,
    /// By [`ConfigTag`].
    tags: [AtomicI32; ConfigTag::ALL.len()],
    /// Number of sockets, by the class that `socket` lists them under.
    pub counts: [AtomicUsize; SOCKET_CLASSES],
}

/// Linux' initial net.ipv4.ip_unprivileged_port_start.
const FIRST_FREE_PORT: u32 = 1024;

/// No group may use ping sockets (Linux' initial net.ipv4.ping_group_range).
const NO_GROUPS: (u32, u32) = (1, 0);

/// The sets of settings in net.ipv4.conf: of all devices, of new devices, and of each device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigTag {
    /// All devices.
    All,
    /// The template of new devices.
    Default,
    /// The loopback device.
    Loopback,
    /// The machine's device.
    Machine,
}

impl ConfigTag {
    /// All sets.
    pub const ALL: [Self; 4] = [Self::All, Self::Default, Self::Loopback, Self::Machine];
}

/// Whether a device carries packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    /// The device carries packets.
    Up,
    /// The device carries no packets.
    Down,
}

impl NetworkNamespace {
    /// The number of the initial namespace.
    pub const INITIAL_NUMBER: u64 = NamespaceKind::Network.initial_inode();

    /// The usual [`loopback_mtu`](Self::loopback_mtu).
    pub const LOOPBACK_MTU: u32 = 65_536;

    /// Returns the initial namespace.
    pub fn initial() -> &'static Arc<Self> {
        INITIAL.call_once(|| {
            let head = NamespaceHead::initial(NamespaceKind::Network);
            Self::make(head, LinkState::Up, |_| 0)
        })
    }

    /// Makes a namespace that the user namespace of `maker` owns.
    ///
    /// # Errors
    /// `ENOSPC` if there are too many.
    pub fn new(maker: &Credentials) -> Result<Arc<Self>> {
        let head = NamespaceHead::new(NamespaceKind::Network, maker)?;
        // The devices' are the template's (Linux: `devinet_init_net`, `inetdev_init`).
        Ok(Self::make(head, LinkState::Down, |which| {
            Self::initial().tag(if which == ConfigTag::All { which } else { ConfigTag::Default })
        }))
    }

    fn make(head: NamespaceHead, link: LinkState, tag_of: impl Fn(ConfigTag) -> i32) -> Arc<Self> {
        reserve::arc(Self {
            head,
            is_up: AtomicBool::new(link == LinkState::Up),
            ping_groups: SpinLock::new(NO_GROUPS),
            first_free_port: AtomicU32::new(FIRST_FREE_PORT),
            loopback_mtu: AtomicU32::new(Self::LOOPBACK_MTU),
            tags: ConfigTag::ALL.map(|which| AtomicI32::new(tag_of(which))),
            counts: [const { AtomicUsize::new(0) }; SOCKET_CLASSES],
        })
    }

    /// Returns the part that every namespace has.
    pub const fn head(&self) -> &NamespaceHead {
        &self.head
    }

    /// Returns the namespace's unique number.
    pub const fn number(&self) -> u64 {
        self.head.inode()
    }

    /// Whether this is the initial namespace, which has the machine's device.
    pub const fn is_initial(&self) -> bool {
        self.number() == Self::INITIAL_NUMBER
    }

    /// Whether the namespace's loopback device is up.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Returns the groups whose members may open ping sockets, as the kernel's IDs.
    pub fn ping_groups(&self) -> RangeInclusive<u32> {
        let (first, last) = *self.ping_groups.lock();
        first..=last
    }

    /// Permits members of these groups to open ping sockets. If the first is above the last, no
    /// group may.
    pub fn set_ping_groups(&self, groups: RangeInclusive<u32>) {
        let wanted = if groups.is_empty() { NO_GROUPS } else { (*groups.start(), *groups.end()) };
        *self.ping_groups.lock() = wanted;
    }

    /// Returns the first port that needs no CAP_NET_BIND_SERVICE; 65,536 if all need it.
    pub fn first_free_port(&self) -> u32 {
        self.first_free_port.load(Ordering::Relaxed)
    }

    /// Changes [`first_free_port`](Self::first_free_port).
    pub fn set_first_free_port(&self, first: u32) {
        self.first_free_port.store(first, Ordering::Relaxed);
    }

    /// Returns the bytes of the loopback device's longest packet.
    pub fn loopback_mtu(&self) -> u32 {
        self.loopback_mtu.load(Ordering::Relaxed)
    }

    /// Sets [`loopback_mtu`](Self::loopback_mtu).
    pub fn set_loopback_mtu(&self, mtu: u32) {
        self.loopback_mtu.store(mtu, Ordering::Relaxed);
    }

    /// Returns net.ipv4.conf.DEVICE.tag.
    pub fn tag(&self, which: ConfigTag) -> i32 {
        self.tags[which as usize].load(Ordering::Relaxed)
    }

    /// Sets [`tag`](Self::tag).
    pub fn set_tag(&self, which: ConfigTag, value: i32) {
        self.tags[which as usize].store(value, Ordering::Relaxed);
    }

    /// Sets the loopback device up or down. That of the initial namespace stays up.
    pub fn set_link(&self, link: LinkState) {
        if !self.is_initial() {
            self.is_up.store(link == LinkState::Up, Ordering::Relaxed);
        }
    }
}
