//! The common part of the records that commands write with `--json`. Each record begins with
//! `schema`, its name and its version, and says where it was measured. docs/book/records.md
//! describes them.
//!
//! A version may gain fields. A change of meaning makes a new version.

use std::io::Read;
use std::path::Path;

use serde::Serialize;
use sha2::Digest as _;

use crate::args::IommuKind;
use crate::container::hexadecimal;
use crate::kernel::{self, KernelChoice};
use crate::qemu::{Clock, Devices, VirtualMachine};
use crate::{bench, print};

/// Schema of `freehold run`.
pub const RUN: &str = "freehold-run-2";
/// Schema of `freehold scope`.
pub const SCOPE: &str = "freehold-scope-1";
/// Schema of `freehold scope --coverage` and `freehold coverage`.
pub const COVERAGE: &str = "freehold-coverage-1";
/// Schema of `freehold bench`.
pub const BENCH: &str = "freehold-bench-1";
/// Schema of every experiment except `costs`, which writes a record of `freehold bench`.
pub const LAB: &str = "freehold-lab-1";
/// Schema of a line of `freehold sweep`.
pub const SWEEP: &str = "freehold-sweep-1";
/// Schema of `freehold diff`.
pub const DIFF: &str = "freehold-diff-1";
/// Schema of `freehold owns`.
pub const OWNS: &str = "freehold-owns-1";
/// Of `freehold doctor`.
pub const DOCTOR: &str = "freehold-doctor-1";

/// The machine of a run. A comparison of two runs that differ here is not fair.
#[derive(Debug, Serialize)]
pub struct RunMachine {
    /// Bytes at the start, by node.
    memory: Vec<u64>,
    /// Bytes that may be plugged in, by node.
    growth: Vec<(usize, u64)>,
    cpus: u32,
    /// Whether the machine has a disk for swap.
    swap: bool,
    /// The access of devices to memory: nothing, iommu or in-place (VT-d), virtio-iommu or
    /// in-place-virtio-iommu.
    devices: &'static str,
    /// Kernel parameters, including those that the command adds.
    parameters: String,
    /// instructions (`--icount`: 1 ns is 1 instruction) or real.
    clock: &'static str,
    /// The seed, if instructions are counted.
    seed: Option<u64>,
    /// QEMU and its version.
    qemu: String,
    /// The kernel's file.
    kernel_file: String,
    /// SHA-256 of that file; null if it cannot be read.
    kernel_build: Option<String>,
}

impl RunMachine {
    /// Describes a run of `kernel` on `machine`.
    pub fn of(machine: &VirtualMachine, kernel: &KernelChoice) -> RunMachine {
        let (clock, seed) = match machine.clock {
            Clock::Instructions { seed } => ("instructions", Some(seed)),
            Clock::Real => ("real", None),
        };
        RunMachine {
            memory: machine.topology.sizes(),
            growth: machine.topology.growth().collect(),
            cpus: machine.cpus,
            swap: machine.swap.is_some(),
            devices: match machine.devices {
                Devices::Unchecked => "nothing",
                Devices::BehindIommu(IommuKind::Vtd) => "iommu",
                Devices::InPlace(IommuKind::Vtd) => "in-place",
                Devices::BehindIommu(IommuKind::Virtio) => "virtio-iommu",
                Devices::InPlace(IommuKind::Virtio) => "in-place-virtio-iommu",
            },
            parameters: machine.parameters(kernel.family),
            clock,
            seed,
            qemu: bench::emulator(),
            kernel_file: kernel.path.display().to_string(),
            kernel_build: build(&kernel.path),
        }
    }
}

/// The first fields of an experiment's record.
#[derive(Debug, Serialize)]
pub struct LabHead {
    schema: &'static str,
    experiment: &'static str,
    /// Whether a signal ended the experiment early. The parts that were finished before are there.
    partial: bool,
    /// QEMU and its version.
    emulator: String,
    /// SHA-256 of our own kernel's file; null if there is none.
    kernel_build: Option<String>,
}

impl LabHead {
    /// Makes the fields for the experiment with this name, which a signal may have ended.
    pub fn of(experiment: &'static str, ended_by: Option<u8>) -> LabHead {
        let kernel_build = kernel::own_kernel().ok().and_then(|path| build(&path));
        let partial = ended_by.is_some();
        LabHead { schema: LAB, experiment, partial, emulator: bench::emulator(), kernel_build }
    }
}

/// Returns the SHA-256 of a kernel's file, which tells builds apart. `None`, and a line on stderr,
/// if it cannot be read.
pub fn build(path: &Path) -> Option<String> {
    digest(path)
        .inspect_err(|error| {
            print::stderr(format!("freehold: cannot read {} for its hash: {error}\n", path.display()));
        })
        .ok()
}

fn digest(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let (mut hasher, mut piece) = (sha2::Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hexadecimal(&hasher.finalize())),
            count => hasher.update(&piece[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_the_file_s_hash() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("kernel");
        std::fs::write(&file, "abc").expect("written");
        // The example of FIPS 180-2.
        let told = build(&file).expect("readable");
        assert_eq!(told, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(build(&folder.path().join("none")), None);
    }
}
