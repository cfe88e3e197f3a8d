//! The device's side of a split ring (virtio 1.2, 2.7).

use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

use crate::lie::Lie;
use crate::memory::SharedMemory;

/// Largest number of descriptors in a chain.
const MAX_PARTS: usize = 256;

/// Delay until a repeated answer.
const AGAIN: Duration = Duration::from_millis(100);

/// A stretch of guest memory in a chain.
#[derive(Clone, Copy)]
pub(crate) struct ChainPart {
    pub address: u64,
    pub length: u32,
    pub writable: bool,
}

/// State of the ring. Addresses are guest-physical.
#[derive(Default)]
pub(crate) struct SplitRing {
    pub size: u16,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    /// Number of available entries taken, and of used entries returned.
    pub taken: u16,
    pub given: u16,
    pub kick: Option<File>,
    pub call: Option<File>,
    pub is_enabled: bool,
}

impl SplitRing {
    pub fn is_ready(&self) -> bool {
        self.is_enabled && self.kick.is_some() && self.size > 0 && self.descriptors > 0
    }

    /// Takes the next chain: its head and its parts.
    pub fn take(&mut self, memory: &SharedMemory) -> io::Result<Option<(u16, Vec<ChainPart>)>> {
        if memory.read_u16(self.available + 2)? == self.taken {
            return Ok(None);
        }
        let head = memory.read_u16(self.available + 4 + 2 * u64::from(self.taken % self.size))?;
        self.taken = self.taken.wrapping_add(1);
        let mut parts = Vec::new();
        let mut next = Some(head);
        while let Some(index) = next.filter(|_| parts.len() < MAX_PARTS) {
            let mut bytes = [0; 16];
            memory.read(self.descriptors + 16 * u64::from(index), &mut bytes)?;
            let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let address = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
            let length = u32::from_le_bytes(std::array::from_fn(|i| bytes[8 + i]));
            parts.push(ChainPart { address, length, writable: word(12) & 2 != 0 });
            next = (word(12) & 1 != 0).then(|| word(14));
        }
        Ok(Some((head, parts)))
    }

    fn give(&mut self, memory: &SharedMemory, id: u32, written: u32) -> io::Result<()> {
        self.add(memory, id, written)?;
        self.show_index(memory, self.given)
    }

    /// Adds a used entry, without advancing the index.
    fn add(&mut self, memory: &SharedMemory, id: u32, written: u32) -> io::Result<()> {
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&id.to_le_bytes());
        entry[4..].copy_from_slice(&written.to_le_bytes());
        memory.write(self.used + 4 + 8 * u64::from(self.given % self.size), &entry)?;
        self.given = self.given.wrapping_add(1);
        Ok(())
    }

    fn show_index(&self, memory: &SharedMemory, index: u16) -> io::Result<()> {
        memory.write(self.used + 2, &index.to_le_bytes())
    }

    /// Returns a chain, correctly or with the disk's fault, and interrupts the guest.
    pub fn answer(&mut self, memory: &SharedMemory, lie: Lie, head: u16, written: u32) -> io::Result<()> {
        let id = u32::from(head);
        let mut interrupts = 1;
        match lie {
            Lie::IdBeyondRing => self.give(memory, u32::from(self.size), written)?,
            Lie::IdInUpperBits => self.give(memory, id + 0x1_0000, written)?,
            Lie::IdNotInFlight => self.give(memory, u32::from(self.size) - 1, written)?,
            Lie::IdTwice => {
                self.add(memory, id, written)?;
                self.give(memory, id, written)?;
            }
            Lie::LengthZero => self.give(memory, id, 0)?,
            Lie::LengthHuge => self.give(memory, id, u32::MAX)?,
            Lie::UsedFlags => {
                memory.write(self.used, &u16::MAX.to_le_bytes())?;
                self.give(memory, id, written)?;
            }
            Lie::IndexBack => self.show_index(memory, self.given.wrapping_sub(1))?,
            Lie::IndexForward => self.show_index(memory, self.given.wrapping_add(40))?,
            Lie::IndexJump => self.show_index(memory, self.given.wrapping_add(0x8000))?,
            Lie::DoubleAnswer => {
                self.give(memory, id, written)?;
                self.interrupt(1)?;
                std::thread::sleep(AGAIN);
                self.give(memory, id, written)?;
            }
            Lie::SpuriousInterrupts => {
                interrupts = 1000;
                self.give(memory, id, written)?;
            }
            _ => self.give(memory, id, written)?,
        }
        self.interrupt(interrupts)
    }

    fn interrupt(&mut self, times: usize) -> io::Result<()> {
        if let Some(call) = &mut self.call {
            (0..times).try_for_each(|_| call.write_all(&1u64.to_le_bytes()))?;
        }
        Ok(())
    }
}
