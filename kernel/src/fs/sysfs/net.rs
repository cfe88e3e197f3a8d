//! /sys/class/net: the network devices.

use core::fmt;

use freehold_collections::Arc;
use freehold_virtio::FrameCounts;

use crate::fs::pseudo::PseudoDir;
use crate::socket::interface::{self, Interface};
use crate::task::namespaces::network::NetworkNamespace;

/// Counters that are always 0.
const NEVER_COUNTED: [&str; 18] = [
    "collisions",
    "multicast",
    "rx_compressed",
    "rx_crc_errors",
    "rx_errors",
    "rx_fifo_errors",
    "rx_frame_errors",
    "rx_length_errors",
    "rx_missed_errors",
    "rx_nohandler",
    "rx_over_errors",
    "tx_aborted_errors",
    "tx_carrier_errors",
    "tx_compressed",
    "tx_dropped",
    "tx_errors",
    "tx_fifo_errors",
    "tx_window_errors",
];

/// Adds `lo`, once.
pub(super) fn fill(root: &Arc<PseudoDir>) {
    add(root, &interface::LO);
}

/// Adds the network device, once, if there is one.
pub(super) fn fill_network(root: &Arc<PseudoDir>) {
    interface::all(NetworkNamespace::initial()).skip(1).for_each(|device| add(root, &device));
}

/// A device's hardware address in the usual notation.
struct Hardware([u8; 6]);

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, last] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{last:02x}")
    }
}

/// Supported counters: their names, and how each is read.
const COUNTED: [(&str, fn(&FrameCounts) -> u64); 5] = [
    ("rx_bytes", |counts| counts.received_bytes),
    ("rx_dropped", |counts| counts.dropped),
    ("rx_packets", |counts| counts.received_frames),
    ("tx_bytes", |counts| counts.sent_bytes),
    ("tx_packets", |counts| counts.sent_frames),
];

#[cold]
fn add(root: &Arc<PseudoDir>, device: &Interface) {
    let (name, index) = (device.name, device.index);
    let folder = root.dirs(format_args!("devices/virtual/net/{name}"));
    root.dirs("class/net").link(name, format_args!("../../devices/virtual/net/{name}"));
    folder.link("subsystem", "../../../../class/net");
    folder.constant("address", Hardware(device.hardware_addresses[0]));
    folder.constant("broadcast", Hardware(device.hardware_addresses[1]));
    let is_lo = index == interface::LO.index;
    // IFF_RUNNING is computed for callers, and is not among the device's own flags.
    folder.constant("flags", if is_lo { "0x9" } else { "0x1003" });
    folder.constant("operstate", if is_lo { "unknown" } else { "up" });
    let numbers = [
        ("addr_assign_type", 0),
        ("addr_len", 6),
        ("carrier", 1),
        ("carrier_changes", 0),
        ("dev_port", 0),
        ("dormant", 0),
        ("ifindex", index),
        ("iflink", index),
        ("link_mode", 0),
        ("mtu", device.mtu),
        ("tx_queue_len", interface::QUEUE_LENGTH),
        ("type", device.hardware.into()),
    ];
    for (name, value) in numbers {
        folder.constant(name, value);
    }
    folder.constant("dev_id", "0x0");
    folder.file("uevent", move |out| {
        writeln!(out, "INTERFACE={name}\nIFINDEX={index}");
        Ok(())
    });
    let (statistics, device) = (folder.dirs("statistics"), *device);
    NEVER_COUNTED.into_iter().for_each(|name| statistics.constant(name, 0));
    for (name, read) in COUNTED {
        statistics.file(name, move |out| {
            writeln!(out, "{}", read(&device.counts()));
            Ok(())
        });
    }
}
