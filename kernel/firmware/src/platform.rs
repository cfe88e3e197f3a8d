//! CPUs and timers: MADT, FADT, HPET, MCFG (ACPI 6.5, 5.2.12 and 5.2.9; PCI Firmware 3.3, 4.1.2).

use freehold_machine::{MAX_CPUS, PhysAddr};

use crate::bytes::{array, short_entries, u8_at, u16_at, u32_at, u64_at};
use crate::{Iommu, VirtualIommu, Warning};

/// Largest number of IOAPICs that are kept.
pub const MAX_IOAPICS: usize = 8;
/// Largest number of PCI configuration windows that are kept.
pub const MAX_PCI_WINDOWS: usize = 4;

/// A CPU that may be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cpu {
    /// Its local APIC's id; above 254 only an x2APIC can be addressed.
    pub apic_id: u32,
    /// The number by which the other tables and the AML name it.
    pub acpi_id: u32,
}

/// An I/O APIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoApic {
    /// Its registers.
    pub address: PhysAddr,
    /// The global interrupt of its first pin.
    pub first_interrupt: u32,
}

/// Memory through which the configuration space of some PCI buses is accessed: 1 MiB each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PciWindow {
    /// Where bus 0's space would be, even if `first_bus` is above 0.
    pub address: PhysAddr,
    /// PCI segment group.
    pub segment: u16,
    /// The first bus that the window covers.
    pub first_bus: u8,
    /// The last bus that the window covers, not below `first_bus`.
    pub last_bus: u8,
}

/// The address space of a register (ACPI 6.5, 5.2.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Register {
    /// A memory-mapped register.
    Memory(PhysAddr),
    /// A port.
    Port(u16),
}

/// How to reset the machine: write `value` to `register`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reset {
    /// The register.
    pub register: Register,
    /// The value to write there.
    pub value: u8,
}

/// Firmware's description of the machine except its memory.
///
/// Invariants: at least one CPU; CPU 0 is the boot CPU; no two CPUs have the same APIC id.
#[derive(Clone, Debug)]
pub struct Platform {
    cpu_count: usize,
    cpus: [Cpu; MAX_CPUS],
    /// Where the local APIC's registers are, for a CPU without x2APIC.
    pub local_apic: PhysAddr,
    /// Whether the machine also has the pair of 8259 interrupt controllers (to be masked).
    pub has_8259: bool,
    /// I/O APICs.
    pub ioapics: [Option<IoApic>; MAX_IOAPICS],
    /// Configuration windows.
    pub pci_windows: [Option<PciWindow>; MAX_PCI_WINDOWS],
    /// The IOMMU between devices and memory.
    pub iommu: Option<Iommu>,
    /// The IOMMU that is a virtio device.
    pub virtual_iommu: Option<VirtualIommu>,
    /// The registers of the high-precision event timer.
    pub hpet: Option<PhysAddr>,
    /// The port of the ACPI power-management timer (3 579 545 Hz).
    pub pm_timer: Option<u16>,
    /// The reset register.
    pub reset: Option<Reset>,
    /// The clock's register that holds the century, if it has one.
    pub rtc_century: Option<u8>,
}

impl Platform {
    /// A platform of one CPU, as before any table is read.
    pub(crate) fn new(boot_apic_id: u32) -> Self {
        let mut cpus = [Cpu::default(); MAX_CPUS];
        cpus[0].apic_id = boot_apic_id;
        Self {
            cpu_count: 1,
            cpus,
            local_apic: PhysAddr(0xfee0_0000),
            has_8259: true,
            ioapics: [None; MAX_IOAPICS],
            pci_windows: [None; MAX_PCI_WINDOWS],
            iommu: None,
            virtual_iommu: None,
            hpet: None,
            pm_timer: None,
            reset: None,
            rtc_century: None,
        }
    }

    /// The CPUs; index = logical CPU number, 0 is the boot CPU.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus[..self.cpu_count]
    }

    /// Adds the contents of the MADT.
    pub(crate) fn read_madt(&mut self, table: &[u8], warn: &mut dyn FnMut(Warning)) {
        if let Some(address) = u32_at(table, 36) {
            self.local_apic = PhysAddr(address.into());
        }
        self.has_8259 = u32_at(table, 40).is_some_and(|flags| flags & 1 != 0);
        for (kind, entry) in short_entries(table.get(44..).unwrap_or_default()) {
            // Each arm is `None` if the entry is shorter than its type requires; such an entry is
            // skipped.
            let understood = match kind {
                0 => self.add_local_apic(entry, warn),
                1 => self.add_ioapic(entry, warn),
                5 => u64_at(entry, 4).map(|address| self.local_apic = PhysAddr(address)),
                9 => self.add_x2apic(entry, warn),
                _ => Some(()),
            };
            if understood.is_none() {
                warn(Warning::BadEntry(*b"APIC", kind.into()));
            }
        }
    }

    fn add_local_apic(&mut self, entry: &[u8], warn: &mut dyn FnMut(Warning)) -> Option<()> {
        let (acpi_id, apic_id, flags) = (u8_at(entry, 2)?, u8_at(entry, 3)?, u32_at(entry, 4)?);
        if apic_id != u8::MAX {
            self.add_cpu(Cpu { apic_id: apic_id.into(), acpi_id: acpi_id.into() }, flags, warn);
        }
        Some(())
    }

    fn add_x2apic(&mut self, entry: &[u8], warn: &mut dyn FnMut(Warning)) -> Option<()> {
        let (apic_id, flags, acpi_id) = (u32_at(entry, 4)?, u32_at(entry, 8)?, u32_at(entry, 12)?);
        if apic_id != u32::MAX {
            self.add_cpu(Cpu { apic_id, acpi_id }, flags, warn);
        }
        Some(())
    }

    /// `flags` bit 0: usable now. Bit 1 (could be brought online later) is not: no CPU hotplug.
    fn add_cpu(&mut self, cpu: Cpu, flags: u32, warn: &mut dyn FnMut(Warning)) {
        if flags & 1 == 0 {
            return;
        }
        if let Some(known) = self.cpus[..self.cpu_count].iter_mut().find(|c| c.apic_id == cpu.apic_id) {
            known.acpi_id = cpu.acpi_id;
            return;
        }
        match self.cpus.get_mut(self.cpu_count) {
            Some(place) => {
                *place = cpu;
                self.cpu_count += 1;
            }
            None => warn(Warning::TooMany("CPUs")),
        }
    }

    fn add_ioapic(&mut self, entry: &[u8], warn: &mut dyn FnMut(Warning)) -> Option<()> {
        let ioapic =
            IoApic { address: PhysAddr(u32_at(entry, 4)?.into()), first_interrupt: u32_at(entry, 8)? };
        match self.ioapics.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(ioapic),
            None => warn(Warning::TooMany("I/O APICs")),
        }
        Some(())
    }

    /// Adds the contents of the FADT.
    pub(crate) fn read_fadt(&mut self, table: &[u8]) {
        self.pm_timer = u32_at(table, 76).and_then(|port| u16::try_from(port).ok()).filter(|&port| port != 0);
        self.rtc_century = u8_at(table, 108).filter(|&register| (0x0e..0x80).contains(&register));
        self.reset = reset_register(table);
    }

    /// Adds the contents of the HPET table.
    pub(crate) fn read_hpet(&mut self, table: &[u8]) {
        self.hpet = match register(table.get(40..52).unwrap_or_default()) {
            Some(Register::Memory(address)) => Some(address),
            _ => None,
        };
    }

    /// Adds the contents of the MCFG.
    pub(crate) fn read_mcfg(&mut self, table: &[u8], warn: &mut dyn FnMut(Warning)) {
        for entry in table.get(44..).unwrap_or_default().chunks_exact(16) {
            let window = pci_window(entry);
            let Some(window) = window else {
                warn(Warning::BadEntry(*b"MCFG", 0));
                continue;
            };
            match self.pci_windows.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(window),
                None => warn(Warning::TooMany("PCI windows")),
            }
        }
    }
}

/// Returns the window of an entry, if its buses are in order and its end is an address.
fn pci_window(entry: &[u8]) -> Option<PciWindow> {
    let (address, segment) = (u64_at(entry, 0)?, u16_at(entry, 8)?);
    let (first_bus, last_bus) = (u8_at(entry, 10)?, u8_at(entry, 11)?);
    address.checked_add((u64::from(last_bus) + 1) << 20)?;
    (first_bus <= last_bus).then_some(PciWindow { address: PhysAddr(address), segment, first_bus, last_bus })
}

/// The FADT's reset register, where its flags (bit 10) say that there is one.
fn reset_register(table: &[u8]) -> Option<Reset> {
    let flags = u32_at(table, 112)?;
    let register = register(&array::<12>(table, 116)?)?;
    (flags & (1 << 10) != 0).then_some(Reset { register, value: u8_at(table, 128)? })
}

/// A generic address structure of 12 bytes that names memory or a port.
fn register(structure: &[u8]) -> Option<Register> {
    let address = u64_at(structure, 4).filter(|&address| address != 0)?;
    match u8_at(structure, 0)? {
        0 => Some(Register::Memory(PhysAddr(address))),
        1 => u16::try_from(address).ok().map(Register::Port),
        _ => None,
    }
}
