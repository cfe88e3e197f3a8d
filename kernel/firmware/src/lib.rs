//! Firmware's description of the machine, read from ACPI before the first frame is handed out.
//!
//! [`read`] turns the tables into a [`Topology`] (nodes, ranges, distances, memory-side caches) and
//! a [`Platform`] (CPUs, timers, PCI windows). It needs no allocator, holds no lock, and runs once,
//! on the boot CPU. The tables come from outside: whatever bytes they contain, the result is a
//! valid topology, and invalid parts cause a [`Warning`]. All of it is safe code over byte slices;
//! only the mapping of the bytes is the caller's ([`PhysicalMemory`]).
//!
//! The parsers are ours because those of the `acpi` crate need a nightly compiler, read tables
//! through pointers, do not support HMAT, and need a heap for the MADT; there is no heap yet.
//!
//! ```
//! use freehold_firmware::read;
//! use freehold_machine::{NodeId, Pfn, PfnRange, PhysAddr};
//!
//! // No tables at all: one CPU, one node that has all the memory.
//! let memory = [PfnRange::new(Pfn(0x100), Pfn(0x8000))];
//! let nothing = |_: PhysAddr, _: usize| -> Option<&'static [u8]> { None };
//! let firmware = read(&nothing, None, 0, memory, &mut |warning| println!("{warning}"));
//! assert_eq!(firmware.topology.node_of(Pfn(0x100)), Some(NodeId(0)));
//! assert_eq!(firmware.platform.cpus().len(), 1);
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bytes;
mod dmar;
mod memory;
mod performance;
mod platform;
mod tables;
#[cfg(test)]
mod tests;
mod viot;
#[cfg(test)]
mod viot_tests;

use core::fmt;

use freehold_machine::{PfnRange, PhysAddr, Topology};

pub use dmar::Iommu;
pub use memory::Domains;
pub use performance::{AccessCost, Performance};
pub use platform::{Cpu, IoApic, MAX_IOAPICS, MAX_PCI_WINDOWS, PciWindow, Platform, Register, Reset};
pub use tables::PhysicalMemory;
pub use viot::VirtualIommu;

/// Everything that was read.
#[derive(Clone, Debug)]
pub struct Firmware {
    /// Nodes, their memory, their distances and their memory-side caches. Valid.
    pub topology: Topology,
    /// CPUs and fixed devices.
    pub platform: Platform,
    /// Costs of accesses from one node to another's memory, where HMAT has them.
    pub performance: Performance,
    /// The node of each proximity domain, for devices that name domains.
    pub domains: Domains,
}

/// A part of the tables that was skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Warning {
    /// There is no sound root pointer at this address.
    NoRootPointer(PhysAddr),
    /// This table's length is impossible.
    BadLength([u8; 4]),
    /// This table's bytes do not add up to 0.
    BadChecksum([u8; 4]),
    /// An entry of this table, of this type, is too short or contradicts itself.
    BadEntry([u8; 4], u16),
    /// More entries of some kind than there is room for.
    TooMany(&'static str),
    /// So many frames of memory are in no proximity domain; they count as node 0's.
    Homeless(u64),
    /// The distances contradict themselves; defaults are used.
    BadDistances,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |signature: &[u8; 4]| signature.map(|b| if b.is_ascii_graphic() { b.into() } else { '?' });
        match self {
            Self::NoRootPointer(at) => write!(f, "no ACPI root pointer at {:#x}", at.0),
            Self::BadLength(table) => {
                let [a, b, c, d] = name(table);
                write!(f, "{a}{b}{c}{d} has an impossible length, ignored")
            }
            Self::BadChecksum(table) => {
                let [a, b, c, d] = name(table);
                write!(f, "{a}{b}{c}{d} has a wrong checksum, ignored")
            }
            Self::BadEntry(table, kind) => {
                let [a, b, c, d] = name(table);
                write!(f, "{a}{b}{c}{d} has a bad entry of type {kind}, ignored")
            }
            Self::TooMany(what) => write!(f, "more {what} than are supported, the rest ignored"),
            Self::Homeless(frames) => {
                write!(f, "SRAT says nothing about {frames} frames, counted as node 0's")
            }
            Self::BadDistances => write!(f, "SLIT contradicts itself, ignored"),
        }
    }
}

/// Read all tables that [`Firmware`] is made of.
///
/// `rsdp` is where the loader found the root pointer, `boot_apic_id` the CPU that runs this, and
/// `usable` the frames that may be handed out (whole frames; where two runs overlap, the later
/// one's share is lost). Missing tables are no error: no SRAT is one node, no MADT one CPU.
pub fn read<M: PhysicalMemory>(
    memory: &M,
    rsdp: Option<PhysAddr>,
    boot_apic_id: u32,
    usable: impl IntoIterator<Item = PfnRange>,
    warn: &mut dyn FnMut(Warning),
) -> Firmware {
    let mut platform = Platform::new(boot_apic_id);
    let tables = rsdp.and_then(|rsdp| tables::Tables::new(memory, rsdp, warn));
    let signatures =
        [*b"APIC", *b"FACP", *b"HPET", *b"MCFG", *b"SRAT", *b"SLIT", *b"HMAT", *b"DMAR", *b"VIOT"];
    let found = tables.map_or([None; 9], |tables| tables.find(signatures, warn));
    let [madt, fadt, hpet, mcfg, srat, slit, hmat, dmar, viot] = found;
    if let Some(table) = madt {
        platform.read_madt(table, warn);
    }
    if let Some(table) = fadt {
        platform.read_fadt(table);
    }
    if let Some(table) = hpet {
        platform.read_hpet(table);
    }
    if let Some(table) = mcfg {
        platform.read_mcfg(table, warn);
    }
    platform.iommu = dmar.and_then(|table| dmar::read_dmar(table, warn));
    platform.virtual_iommu = viot.and_then(|table| viot::read_viot(table, warn));
    let domains = memory::Domains::read(srat, warn);
    let mut topology = domains.topology(usable, warn);
    domains.place_cpus(&platform, &mut topology);
    if let Some(iommu) = &mut platform.iommu {
        let is_usable =
            |run: PfnRange| topology.ranges().iter().any(|r| !r.frames.intersection(run).is_empty());
        iommu.refuse(is_usable, warn);
    }
    if let Some(table) = slit
        && !domains.read_slit(table, &mut topology)
    {
        warn(Warning::BadDistances);
    }
    let mut performance = Performance::new();
    if let Some(table) = hmat {
        domains.read_hmat(table, &mut topology, &mut performance, warn);
    }
    Firmware { topology, platform, performance, domains }
}
