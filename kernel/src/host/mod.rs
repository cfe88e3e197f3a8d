//! The host: three byte streams, disks, folders, memory that it plugs in, and the control channel.
//!
//! `freehold run` gives the machine three virtio consoles, in slot order: the *stream* (the
//! program's stdin in, stdout or the terminal out), the *error* stream (stderr out), and *control*,
//! whose frames ([`frame`]) go both ways: the end of stdin, window sizes and signals come in;
//! READY, requests for memory, reports, the program's end and a panic's report go out. The UART
//! carries the log only. The host's side is `cli/src/protocol.rs`.
//!
//! Everything here waits by sleeping, except the report of a panic ([`last_words`]): it takes no
//! lock, allocates nothing, and is written byte by byte to a register.

pub mod frame;
pub mod json;
pub mod spec;

mod control;
mod devices;
pub mod hotplug;
pub mod iommu;
mod last_words;
mod memory;
mod pci;
mod slots;

pub use control::{
    Ending, Events, end, events, listen, names, notice, owners, ready, report, threads, want_memory,
};
#[cfg(test)]
pub(crate) use devices::init_with;
pub use devices::{
    BounceSettings, Disk, Folder, Host, Network, Port, control, disks, dma, error, folders, folders_ended,
    init, memory, network, slots, start_dma, start_worker, stream,
};
pub use last_words::LastWords;
pub use memory::{FoundMemory, MemoryDevice, find_memory};
pub use slots::DiskSlot;
