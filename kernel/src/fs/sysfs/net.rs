//! /sys/class/net: the network device `lo`, whose counters are 0 since no packet passes through it.

use freehold_collections::Arc;

use crate::fs::pseudo::PseudoDir;
use crate::socket::interface;

/// What is always 0.
const COUNTERS: [&str; 23] = [
    "collisions",
    "multicast",
    "rx_bytes",
    "rx_compressed",
    "rx_crc_errors",
    "rx_dropped",
    "rx_errors",
    "rx_fifo_errors",
    "rx_frame_errors",
    "rx_length_errors",
    "rx_missed_errors",
    "rx_nohandler",
    "rx_over_errors",
    "rx_packets",
    "tx_aborted_errors",
    "tx_bytes",
    "tx_carrier_errors",
    "tx_compressed",
    "tx_dropped",
    "tx_errors",
    "tx_fifo_errors",
    "tx_packets",
    "tx_window_errors",
];

/// Put in the device, once.
pub(super) fn fill(root: &Arc<PseudoDir>) {
    let device = root.dirs("devices/virtual/net/lo");
    root.dirs("class/net").link("lo", "../../devices/virtual/net/lo");
    device.link("subsystem", "../../../../class/net");
    for name in ["address", "broadcast"] {
        device.constant(name, "00:00:00:00:00:00");
    }
    // IFF_RUNNING is worked out for callers, and is not among the device's own.
    device.constant("flags", "0x9");
    device.constant("operstate", "unknown");
    let numbers = [
        ("addr_assign_type", 0),
        ("addr_len", 6),
        ("carrier", 1),
        ("carrier_changes", 0),
        ("dev_port", 0),
        ("dormant", 0),
        ("ifindex", interface::INDEX),
        ("iflink", interface::INDEX),
        ("link_mode", 0),
        ("mtu", interface::MTU),
        ("tx_queue_len", interface::QUEUE_LENGTH),
        ("type", interface::HARDWARE.into()),
    ];
    for (name, value) in numbers {
        device.constant(name, value);
    }
    device.constant("dev_id", "0x0");
    device.constant("uevent", "INTERFACE=lo\nIFINDEX=1");
    let statistics = device.dirs("statistics");
    COUNTERS.into_iter().for_each(|name| statistics.constant(name, 0));
}
