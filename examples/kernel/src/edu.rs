//! QEMU's device "edu" (its docs/specs/edu.rst): a DMA engine to and from 4 KiB of its own.

use core::ptr::NonNull;

use freehold_bounce::{Direction, DmaMapping};
use x86_64::PhysAddr;
use x86_64::instructions::port::Port;

use crate::{Frames, pc};

/// The device, by its registers.
pub struct Edu(NonNull<u64>);

/// Selects a word of the PCI configuration of a device on bus 0.
fn configuration(device: u32, offset: u32) -> Port<u32> {
    // SAFETY: only selects.
    unsafe { Port::new(0xcf8).write(1 << 31 | device << 11 | offset) };
    Port::new(0xcfc)
}

impl Edu {
    /// Finds the device on bus 0, and enables its DMA.
    pub fn find(machine: pc::Machine) -> Self {
        // SAFETY: registers of the configuration can be read at any time.
        let read = |device, offset| unsafe { configuration(device, offset).read() };
        let device = (0..32).find(|&device| read(device, 0) == 0x11e8_1234).expect("QEMU has -device edu");
        // SAFETY: its registers and its DMA are on; it has no transfer to do yet.
        unsafe { configuration(device, 4).write(read(device, 4) | 6) };
        let registers = PhysAddr::new(u64::from(read(device, 0x10) & !0xf));
        Self(machine.map_registers(registers).cast())
    }

    /// Copies a mapping into the device's memory, or back, and waits until it is done.
    pub fn transfer(&self, mapping: &DmaMapping<Frames>) {
        let mut inside = 0x40000;
        for piece in mapping.pieces(0..mapping.len()) {
            let (outside, length) = (piece.frame.start().0 + piece.offset as u64, piece.length as u64);
            let (from, to, command) = match mapping.direction() {
                Direction::FromDevice => (inside, outside, 3),
                _ => (outside, inside, 1),
            };
            for (register, value) in [(0x80, from), (0x88, to), (0x90, length), (0x98, command)] {
                // SAFETY: one of the device's registers, in the page that was mapped.
                unsafe { self.0.byte_add(register).write_volatile(value) };
            }
            // SAFETY: as above. The lowest bit is set until the transfer is done.
            while unsafe { self.0.byte_add(0x98).read_volatile() } & 1 != 0 {}
            inside += length;
        }
    }
}
