//! Connection of the machine to a network, if there is one: the device, its address, and the router
//! to all other networks.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::sync::atomic::AtomicBool;

use freehold_collections::Arc;
use freehold_virtio::FrameDevice;
use spin::Once;

use crate::sync::WaitQueue;
use crate::task;
use crate::task::namespaces::network::NetworkNamespace;

/// A network device and its settings.
pub struct Attachment {
    /// The device.
    pub device: Arc<dyn FrameDevice>,
    /// Woken when frames may have arrived, or transmit room may be free.
    pub changed: Arc<WaitQueue>,
    /// The device sets it before it wakes `changed`; the task that checks the device clears it.
    pub interrupted: &'static AtomicBool,
    /// The machine's address in that network.
    pub address: Ipv4Addr,
    /// Length of the network's prefix, 1..=31.
    pub prefix: u8,
    /// The router to all other networks.
    pub gateway: Ipv4Addr,
}

static ATTACHMENT: Once<Attachment> = Once::new();

/// Records the attachment of the machine. It is final.
pub(super) fn set(attachment: Attachment) -> &'static Attachment {
    ATTACHMENT.call_once(|| attachment)
}

/// Returns the attachment of the machine, if there is one.
pub fn attachment() -> Option<&'static Attachment> {
    ATTACHMENT.get()
}

/// Whether `ip` is the address of the network device.
pub fn is_own(ip: Ipv6Addr) -> bool {
    attachment().is_some_and(|attachment| ip.to_ipv4_mapped() == Some(attachment.address))
}

/// Returns the source address of packets to `to`, for an unbound sender. `None` if `to` is on this
/// machine, or if no network leads there.
pub fn source_for(to: Ipv6Addr) -> Option<Ipv6Addr> {
    let (attachment, ip) = (attachment()?, to.to_ipv4_mapped()?);
    let leads_out = !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast();
    leads_out.then(|| attachment.address.to_ipv6_mapped())
}

/// Returns the network namespace of the running process, or the initial one outside a process.
pub(super) fn network_of_caller() -> Arc<NetworkNamespace> {
    let own = task::try_with_current(|task| task.process().namespaces().network.clone());
    own.unwrap_or_else(|| NetworkNamespace::initial().clone())
}
