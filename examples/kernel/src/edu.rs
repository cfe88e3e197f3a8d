//! QEMU's device "edu" (docs/specs/edu.rst of QEMU): 4 KiB of memory of its own, and a DMA engine
//! between them and the machine's.

use freehold_bounce::{DmaMapping, Piece};

use crate::Frames;
use crate::hardware::{map_registers, port_read, port_write};

/// The highest address that its DMA engine can access.
pub const REACH: u64 = (1 << 28) - 1;
/// The device's memory, in the addresses of its DMA engine.
const MEMORY: u64 = 0x40000;

/// The device: its registers, by their byte offset.
pub struct Edu(*mut u64);

/// Reads a word of the PCI configuration of a device on bus 0.
fn configuration(device: u32, offset: u32) -> u16 {
    port_write(0xcf8, 1 << 31 | device << 11 | offset);
    0xcfc
}

/// Returns the device's address of bounce memory, which is the physical address.
fn address(piece: &Piece) -> u64 {
    piece.frame.start().0 + piece.offset as u64
}

impl Edu {
    /// Finds the device on bus 0, and enables its DMA.
    pub fn find() -> Option<Self> {
        let device = (0..32).find(|&device| port_read(configuration(device, 0)) == 0x11e8_1234)?;
        let command = port_read(configuration(device, 4));
        port_write(configuration(device, 4), command | 6);
        let bar = port_read(configuration(device, 0x10)) & !0xf;
        Some(Self(map_registers(bar.into())))
    }
    fn write(&self, offset: usize, value: u64) {
        // SAFETY: one of the device's registers, in the page that was mapped.
        unsafe { self.0.byte_add(offset).write_volatile(value) }
    }
    fn run(&self, from: u64, to: u64, length: usize, command: u64) {
        self.write(0x80, from);
        self.write(0x88, to);
        self.write(0x90, length as u64);
        self.write(0x98, command);
        // SAFETY: as above. The lowest bit is set until it is done.
        while unsafe { self.0.byte_add(0x98).read_volatile() } & 1 != 0 {
            core::hint::spin_loop();
        }
    }
    /// Makes the device read a mapping.
    pub fn copy_in(&self, mapping: &DmaMapping<Frames>) {
        let mut at = 0;
        for piece in mapping.pieces(0..mapping.len()) {
            self.run(address(&piece), MEMORY + at, piece.length, 1);
            at += piece.length as u64;
        }
    }
    /// Makes the device write a mapping.
    pub fn copy_out(&self, mapping: &DmaMapping<Frames>) {
        let mut at = 0;
        for piece in mapping.pieces(0..mapping.len()) {
            self.run(MEMORY + at, address(&piece), piece.length, 3);
            at += piece.length as u64;
        }
    }
}
