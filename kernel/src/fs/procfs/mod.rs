//! /proc: processes, and the kernel's figures.
//!
//! The fixed part is a [`PseudoDir`]; numbered directories are made at each lookup and have only a
//! process ID. So they show the process with that ID, or nothing once it has ended. The IDs are
//! those of one PID namespace, whichever process reads them.

mod cpuinfo;
mod devices;
mod frames;
mod keys;
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
    /// Makes a file system for one mount, with the processes of `namespace`. All its nodes together
    /// need more than a call's reserve, so the reserve is refilled between the folders.
    ///
    /// # Errors
    /// `ENOMEM`; `EINTR` if the task must end.
    #[cold]
    pub fn new(namespace: &PidNs) -> Result<Arc<Self>> {
        let device = unnamed_device();
        let root = PseudoDir::new_root(device, Refusal::NoSuchName);
        settings::fill(&root);
        checkpoint()?;
        settings::fill_rest(&root);
        checkpoint()?;
        settings::fill_net(&root);
        checkpoint()?;
        devices::fill(&root);
        checkpoint()?;
        loads::fill(&root);
        {
            system::fill(&root);
            checkpoint()?;
            frames::fill(&root);
            zones::fill(&root);
            sysvipc::fill(&root);
            keys::fill(&root);
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
