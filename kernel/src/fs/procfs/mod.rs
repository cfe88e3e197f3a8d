//! /proc: processes, and what the kernel counts.
//!
//! The fixed part is a [`PseudoDir`]; numbered directories are made when they are looked up and
//! hold a process ID only, so they show the process of that number or nothing once it is gone. The
//! numbers are those of one PID namespace, whichever process looks.

mod cpuinfo;
mod frames;
pub mod loads;
mod memory;
mod mounts;
mod net;
mod numa_maps;
mod oom;
mod processes;
mod scan;
mod settings;
mod status;
pub mod system;
mod sysvipc;
pub mod vmstat;
pub mod zones;

pub use memory::name as area_name;

use super::device::unnamed_device;
use super::mount::{FileSystem, FsStats};
use super::node::Node;
use super::pseudo::{PseudoDir, Refusal};
use crate::sched::checkpoint;
use crate::task::pidns::PidNs;
use crate::{Errno, Result};
use freehold_collections::{Arc, reserve};

/// A proc file system.
pub struct ProcFs {
    device: u64,
    root: Arc<PseudoDir>,
}

impl ProcFs {
    /// A file system of its own for each mount, with the processes of `namespace`. Its nodes
    /// together are more than a call's reserve, which is set aside anew between the folders.
    ///
    /// # Errors
    /// `ENOMEM`; `EINTR` where the task is to end.
    pub fn new(namespace: &PidNs) -> Result<Arc<Self>> {
        let device = unnamed_device();
        let root = PseudoDir::new_root(device, Refusal::NoSuchName);
        settings::fill(&root);
        checkpoint()?;
        settings::fill_rest(&root);
        checkpoint()?;
        settings::fill_net(&root);
        checkpoint()?;
        settings::fill_devices(&root);
        checkpoint()?;
        loads::fill(&root);
        {
            system::fill(&root);
            checkpoint()?;
            frames::fill(&root);
            zones::fill(&root);
            sysvipc::fill(&root);
            root.set_dynamic(reserve::arc(processes::Processes(namespace.clone())));
        }
        root.link("mounts", "self/mounts");
        root.link("net", "self/net");
        if !root.is_complete() {
            return Err(Errno::ENOMEM);
        }
        Ok(reserve::arc(Self { device, root }))
    }
}

impl FileSystem for ProcFs {
    fn name(&self) -> &'static str {
        "proc"
    }

    fn device(&self) -> u64 {
        self.device
    }

    fn root(&self) -> Arc<dyn Node> {
        self.root.clone()
    }

    fn stats(&self) -> FsStats {
        FsStats { magic: 0x9fa0, block_size: 4096, ..FsStats::default() }
    }
}
