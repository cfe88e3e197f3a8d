//! /sys: CPUs, nodes, memory and parameters, as tools expect them.

mod cpus;
mod disks;
mod fault_inject;
mod gup_test;
mod huge;
mod kernel;
mod ksm;
mod latency;
mod memory;
mod net;
mod nodes;
mod page_tables;
mod provoke;
mod replica;
mod static_keys;
mod xpfo;

pub use provoke::set_ring_memory;

use super::device::unnamed_device;
use super::mount::{FileSystem, FsStats};
use super::node::Node;
use super::pseudo::{PseudoDir, Refusal};
use crate::Result;
use crate::sync::SpinLock;
use freehold_collections::{Arc, reserve};

/// The one sysfs, however often it is mounted.
pub struct SysFs {
    device: u64,
    root: Arc<PseudoDir>,
}

static INSTANCE: SpinLock<Option<Arc<SysFs>>> = SpinLock::new(None);

/// Returns the file system; makes it at the first call.
pub fn instance() -> Result<Arc<dyn FileSystem>> {
    Ok(get())
}

/// The root directory, to which drivers add their files.
pub fn root() -> Arc<PseudoDir> {
    get().root.clone()
}

/// Adds the files about the machine: once, when the CPUs run.
#[cold]
pub fn fill() {
    let root = root();
    let Some(machine) = super::machine::get() else { return };
    let topology = &machine.firmware.topology;
    cpus::fill(&root, topology);
    nodes::fill(&root, topology);
    memory::fill(&root, topology);
    huge::fill(&root);
    ksm::fill(&root);
    fault_inject::fill(&root.dirs("kernel/debug"));
    gup_test::fill(&root.dirs("kernel/debug"));
    kernel::fill(&root);
    net::fill(&root);
}

/// Adds the disks: once, when they are known, which is after [`fill`].
#[cold]
pub fn fill_disks() {
    disks::fill(&root());
}

/// Adds the network device, once, after it was started.
pub fn fill_network() {
    net::fill_network(&root());
}

/// debugfs: the directory /sys/kernel/debug, for programs that mount it there first.
struct DebugFs {
    root: Arc<PseudoDir>,
}

/// Returns the file system, which is a part of sysfs.
pub fn debugfs() -> Arc<dyn FileSystem> {
    reserve::arc(DebugFs { root: root().dirs("kernel/debug") })
}

impl FileSystem for DebugFs {
    fn name(&self) -> &'static str {
        "debugfs"
    }

    fn device(&self) -> u64 {
        self.root.identity().device
    }

    fn root(&self) -> Arc<dyn Node> {
        self.root.clone()
    }

    fn stats(&self) -> FsStats {
        FsStats { magic: 0x6462_6720, block_size: 4096, ..FsStats::default() }
    }
}

fn get() -> Arc<SysFs> {
    if let Some(there) = INSTANCE.lock().as_ref() {
        return there.clone();
    }
    let device = unnamed_device();
    let new = reserve::arc(SysFs { device, root: PseudoDir::new_root(device, Refusal::NotPermitted) });
    // As on Linux, readable only by root: the files are for debugging the kernel.
    new.root.dirs("kernel/debug").set_mode(0o700);
    INSTANCE.lock().get_or_insert(new).clone()
}

impl FileSystem for SysFs {
    fn name(&self) -> &'static str {
        "sysfs"
    }

    fn device(&self) -> u64 {
        self.device
    }

    fn root(&self) -> Arc<dyn Node> {
        self.root.clone()
    }

    fn stats(&self) -> FsStats {
        FsStats { magic: 0x6265_6572, block_size: 4096, ..FsStats::default() }
    }
}
