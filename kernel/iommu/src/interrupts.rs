//! Which interrupts a device may raise: the interrupt remapping table (VT-d 5.1, 9.10).
//!
//! **Rule.** A message-signalled interrupt names an entry of the table, and the entry has the
//! vector and the CPU. The entry also has the function that may name it: the message of another
//! function is refused and reported as a fault. A message in the old format, which has vector and
//! CPU itself, is refused (compatibility format, 5.1.4). Entries stay with their function; an entry
//! is present while its function has no domain at all (a bridge), or a domain with a device.
//!
//! **Protocol.** The half of an entry that makes it present is stored last, and cleared first. A
//! changed entry is flushed from the unit's cache before the change counts as done:
//! [`Unit::silence`] returns after its answer.

use alloc::vec::Vec;

use freehold_frame::{DeviceTable, Frame};
use freehold_machine::{PAGE_SIZE, Pfn, Tables, Unconfirmed};
use spin::Mutex;

use crate::unit::PRESENT;
use crate::{IommuError, Registers, TableSource, Unit};

/// Entries in the table, which has a frame: more than there are vectors.
const ENTRIES: usize = PAGE_SIZE / 16;
/// The register's value for that (11.4.26): log2 less one.
const SIZE: u64 = ENTRIES.ilog2() as u64 - 1;
/// CPUs' numbers have 32 bits, in the register of the table.
const EXTENDED_MODE: u64 = 1 << 11;
/// Invalidations of the table's entries: all, and one (6.5.2.7).
pub(crate) const ENTRY_GLOBAL: u64 = 4;
pub(crate) const ENTRY_INDEX: u64 = 4 | 1 << 4;
/// The message names an entry (5.1.2.2).
const REMAPPABLE: u64 = 0xfee0_0000 | 1 << 4;
/// All 16 bits of the source are compared, in an entry's upper half.
const CHECKED: u64 = 1 << 18;

/// Treatment of devices' interrupts by a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupts {
    /// The unit lets them pass: the platform does not need remapping (8.1, flags).
    Passed,
    /// Each interrupt needs an entry, if the unit supports that.
    Remapped(CpuNumbers),
}

/// Bits of CPUs' numbers on the interrupt bus.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuNumbers {
    /// 8: local interrupt controllers whose registers are in memory.
    Narrow,
    /// 32: x2APIC.
    Wide,
}

/// The target of an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Its vector.
    pub vector: u8,
    /// The CPU's number on the interrupt bus.
    pub cpu: u32,
}

/// An entry as it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GivenEntry {
    /// Bus, device and function that may name it: 8, 5 and 3 bits.
    pub source_id: u16,
    /// Vector and CPU of the interrupt that the entry raises.
    pub arrival: Arrival,
}

/// The table, and the owner of each entry.
pub(crate) struct EntryTable {
    frame: Pfn,
    /// How the unit reads CPUs' numbers.
    numbers: CpuNumbers,
    given: Mutex<Vec<GivenEntry>>,
}

impl EntryTable {
    /// A table without entries, if the unit with these capabilities can use one.
    pub(crate) fn of<S: TableSource>(
        source: S,
        wanted: Interrupts,
        extended: u64,
    ) -> Result<Option<(Self, Frame<DeviceTable, S>)>, IommuError> {
        let numbers = match wanted {
            Interrupts::Remapped(numbers) if extended & 1 << 3 != 0 => numbers,
            _ => return Ok(None),
        };
        let numbers = if extended & 1 << 4 != 0 { numbers } else { CpuNumbers::Narrow };
        let frame = crate::domain::table(source)?;
        Ok(Some((Self { frame: frame.pfn(), numbers, given: Mutex::new(Vec::new()) }, frame)))
    }
    /// Returns the value of the unit's register of the table: the table's address, mode and size.
    pub(crate) fn register(&self) -> u64 {
        let mode = if self.numbers == CpuNumbers::Wide { EXTENDED_MODE } else { 0 };
        self.frame.start().0 | mode | SIZE
    }
    /// The half of an entry that makes it present: fixed delivery of an edge to one CPU by its
    /// number. `None`: the number has too many bits.
    fn low(&self, Arrival { vector, cpu }: Arrival) -> Option<u64> {
        let number = match self.numbers {
            CpuNumbers::Wide => cpu,
            CpuNumbers::Narrow => u32::from(u8::try_from(cpu).ok()?) << 8,
        };
        Some(u64::from(number) << 32 | u64::from(vector) << 16 | PRESENT)
    }
    fn get(&self, index: usize) -> Option<GivenEntry> {
        self.given.lock().get(index).copied()
    }
}

impl<R: Registers, S: TableSource> Unit<R, S> {
    /// Whether each interrupt needs an entry.
    pub const fn remaps_interrupts(&self) -> bool {
        self.interrupts.is_some()
    }

    /// Lets a function raise an interrupt: gives it an entry for ever. Returns the address that the
    /// function writes to; the value that it writes there is 0. If the function's domain has no
    /// device, the entry becomes present when it gets one.
    ///
    /// # Errors
    /// [`IommuError`]: the function can raise none.
    pub fn allow_interrupt(&self, source_id: u16, arrival: Arrival) -> Result<u64, IommuError> {
        let entries = self.interrupts.as_ref().ok_or(IommuError::Unsupported("interrupt remapping"))?;
        let low = entries.low(arrival).ok_or(IommuError::Unsupported("CPUs with such a number"))?;
        let mut given = entries.given.lock();
        let index = given.len();
        if index == ENTRIES {
            return Err(IommuError::TooManyInterrupts);
        }
        given.try_reserve(1).map_err(|_| IommuError::OutOfMemory)?;
        given.push(GivenEntry { source_id, arrival });
        drop(given);
        if !self.is_empty_place(source_id) {
            self.show_entry(index, low, source_id);
            let answered = self.send(&[[ENTRY_INDEX | (index as u64) << 32, 0]]);
            if answered.is_err() {
                self.source.machine().store_entry(entries.frame, 2 * index, 0);
                return Err(IommuError::Dead("a new interrupt"));
            }
        }
        // Indices have 8 bits here: bit 15 has a place of its own.
        Ok(REMAPPABLE | (index as u64) << 5)
    }

    fn show_entry(&self, index: usize, low: u64, source_id: u16) {
        let Some(entries) = &self.interrupts else { return };
        let machine = self.source.machine();
        machine.store_entry(entries.frame, 2 * index + 1, CHECKED | u64::from(source_id));
        machine.store_entry(entries.frame, 2 * index, low);
    }

    /// Takes all interrupts away from a function. Returns when the unit has flushed their entries.
    pub(crate) fn silence(&self, source_id: u16) -> Result<(), Unconfirmed> {
        self.change_entries(source_id, |entries, index, _| {
            self.source.machine().store_entry(entries.frame, 2 * index, 0);
        })
    }

    /// Lets a function raise its former interrupts again.
    pub(crate) fn revive(&self, source_id: u16) -> Result<(), Unconfirmed> {
        self.change_entries(source_id, |entries, index, arrival| {
            if let Some(low) = entries.low(arrival) {
                self.show_entry(index, low, source_id);
            }
        })
    }

    fn change_entries(
        &self,
        source_id: u16,
        change: impl Fn(&EntryTable, usize, Arrival),
    ) -> Result<(), Unconfirmed> {
        let Some(entries) = &self.interrupts else { return Ok(()) };
        let mut has_some = false;
        for index in 0..ENTRIES {
            let Some(given) = entries.get(index) else { break };
            if given.source_id == source_id {
                change(entries, index, given.arrival);
                has_some = true;
            }
        }
        if has_some { self.send(&[[ENTRY_GLOBAL, 0]]) } else { Ok(()) }
    }

    /// The entry with this index, if it was given.
    pub fn entry(&self, index: usize) -> Option<GivenEntry> {
        self.interrupts.as_ref()?.get(index)
    }
}
