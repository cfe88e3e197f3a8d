//! The machine's PCI bus, registers and interrupts, as `freehold-virtio` requires them.

use freehold_collections::reserve;
use freehold_machine::{CpuId, PhysAddr};
use freehold_virtio::platform::{Function, MsiMessage, Notify, Platform, Registers};
use spin::Once;

use crate::hw::irq::{self, InterruptHandler, Msi};
use crate::hw::mmio::{self, Mmio, port};
use crate::sync::SpinLock;

/// Configuration mechanism 1's address and data ports (PCI Local Bus 3.0, 3.2.2.3.2).
const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;
/// Held during the two accesses that make one configuration access. Tasks and start-up only; no
/// other lock is taken with it.
static CONFIGURATION: SpinLock<()> = SpinLock::new(());

/// Returns the message that a function has to write for an interrupt, if each interrupt needs an
/// entry of the IOMMU; `None` if the function gets no interrupt.
pub(super) type Remap = fn(Function, Msi) -> Option<MsiMessage>;
/// Set before the first device is started, if interrupts are remapped.
pub(super) static REMAP: Once<Remap> = Once::new();

/// The bus.
pub(super) struct Pci;

/// Mapped registers.
pub struct Bar(Mmio);

impl Registers for Bar {
    fn read8(&self, offset: usize) -> u8 {
        self.0.read_u8(offset)
    }
    fn read16(&self, offset: usize) -> u16 {
        self.0.read_u16(offset)
    }
    fn read32(&self, offset: usize) -> u32 {
        self.0.read_u32(offset)
    }
    fn write8(&self, offset: usize, value: u8) {
        self.0.write_u8(offset, value);
    }
    fn write16(&self, offset: usize, value: u16) {
        self.0.write_u16(offset, value);
    }
    fn write32(&self, offset: usize, value: u32) {
        self.0.write_u32(offset, value);
    }
}

impl freehold_iommu::Registers for Bar {
    fn read32(&self, offset: usize) -> u32 {
        self.0.read_u32(offset)
    }
    fn write32(&self, offset: usize, value: u32) {
        self.0.write_u32(offset, value);
    }
    fn read64(&self, offset: usize) -> u64 {
        self.0.read_u64(offset)
    }
    fn write64(&self, offset: usize, value: u64) {
        self.0.write_u64(offset, value);
    }
}

/// An interrupt vector's handler that notifies.
struct VectorHandler(&'static dyn Notify);

/// Allocates a vector for a handler; `None` if no vector is left.
pub(super) fn vector(handler: &'static dyn Notify) -> Option<Msi> {
    let line: &'static VectorHandler = reserve::leaked(VectorHandler(handler));
    irq::allocate(line, CpuId(0))
}

impl InterruptHandler for VectorHandler {
    fn interrupt(&self) {
        self.0.notify();
    }
}

impl Platform for Pci {
    type Registers = Bar;

    fn read_config(&self, function: Function, register: u8) -> u32 {
        let _access = CONFIGURATION.lock();
        port::out_u32(ADDRESS, function.port_address(register));
        port::in_u32(DATA)
    }
    fn write_config(&self, function: Function, register: u8, value: u32) {
        let _access = CONFIGURATION.lock();
        port::out_u32(ADDRESS, function.port_address(register));
        port::out_u32(DATA, value);
    }
    fn write_config16(&self, function: Function, register: u8, value: u16) {
        let _access = CONFIGURATION.lock();
        port::out_u32(ADDRESS, function.port_address(register));
        port::out_u16(DATA + u16::from(register & 2), value);
    }
    fn map(&self, address: PhysAddr, length: usize) -> Option<Bar> {
        let mapped = mmio::map(address, length);
        mapped.map(Bar).map_err(|error| log::error!("pci: registers at {:#x}: {error}", address.0)).ok()
    }
    fn interrupt(&self, function: Function, handler: &'static dyn Notify) -> Option<MsiMessage> {
        let message = vector(handler)?;
        match REMAP.get() {
            Some(remap) => remap(function, message),
            None => Some(MsiMessage { address: message.address, data: message.data }),
        }
    }
}
