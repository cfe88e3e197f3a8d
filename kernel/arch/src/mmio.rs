//! Device registers, in memory and behind ports.

use core::fmt;
use core::ptr::NonNull;

use freehold_machine::{PhysAddr, VirtAddr};

use crate::memory::tables::DEVICE;
use crate::{boot, registers, vmap};

/// A run of device registers, uncached.
#[derive(Debug)]
pub struct Mmio {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the registers stay mapped for ever, and each access is one volatile instruction. The
// device, not the memory, defines the effect of accesses from several CPUs.
unsafe impl Send for Mmio {}
// SAFETY: as above.
unsafe impl Sync for Mmio {}

/// The reason why there are no registers at an address. Devices and firmware name the address, and
/// it may be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRegisters {
    /// Usable memory is at the address.
    Memory,
    /// The address is beyond the CPU's physical addresses.
    Beyond,
    /// Memory does not suffice for the tables.
    NoTables,
}

impl fmt::Display for NoRegisters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory is there, and no device's registers",
            Self::Beyond => "the CPU has no such addresses",
            Self::NoTables => "no memory for the tables that map registers",
        })
    }
}

/// Maps `len` bytes of device registers at `phys`, for ever.
///
/// # Errors
/// [`NoRegisters`]. Then nothing is mapped, except for a part of the registers if memory ran out.
pub fn map(phys: PhysAddr, len: usize) -> Result<Mmio, NoRegisters> {
    let end = phys.0.checked_add(len as u64).ok_or(NoRegisters::Beyond)?;
    if end > 1 << physical_bits() {
        return Err(NoRegisters::Beyond);
    }
    if boot::info().touches_memory(phys, len as u64) {
        return Err(NoRegisters::Memory);
    }
    let address = vmap::map_range(phys, len as u64, DEVICE).map_err(|_| NoRegisters::NoTables)?;
    let base = NonNull::new(address.0 as *mut u8).ok_or(NoRegisters::NoTables)?;
    Ok(Mmio { base, len })
}

/// Bits of a physical address (CPUID.80000008H:EAX[7:0]); a table's entry has room for 52.
fn physical_bits() -> u32 {
    (registers::cpuid(0x8000_0008, 0).eax & 0xff).clamp(32, 52)
}

macro_rules! access {
    ($read:ident, $write:ident, $type:ty) => {
        /// Read the register at byte `offset`.
        ///
        /// # Panics
        /// When it is not aligned or beyond the mapped run.
        pub fn $read(&self, offset: usize) -> $type {
            let register = self.register::<$type>(offset);
            // SAFETY: aligned and inside a mapping that stays; any bits are a valid integer.
            unsafe { register.read_volatile() }
        }
        /// Write the register at byte `offset`.
        ///
        /// # Panics
        /// When it is not aligned or beyond the mapped run.
        pub fn $write(&self, offset: usize, value: $type) {
            let register = self.register::<$type>(offset);
            // SAFETY: aligned and inside a mapping that stays, and that is no Rust object's memory.
            unsafe { register.write_volatile(value) };
        }
    };
}

impl Mmio {
    fn register<T>(&self, offset: usize) -> *mut T {
        let inside = offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.len);
        assert!(
            inside && offset.is_multiple_of(size_of::<T>()),
            "register {offset:#x} of {:#x} bytes",
            self.len
        );
        self.base.as_ptr().wrapping_add(offset).cast()
    }
    /// Returns the number of mapped bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Returns the registers' address, for a driver library that does its own volatile accesses.
    pub fn address(&self) -> VirtAddr {
        VirtAddr(self.base.as_ptr() as u64)
    }
    access!(read_u8, write_u8, u8);
    access!(read_u16, write_u16, u16);
    access!(read_u32, write_u32, u32);
    access!(read_u64, write_u64, u64);
}

/// I/O ports.
pub mod port {
    pub use crate::registers::{in_u8, in_u16, in_u32, out_u8, out_u16, out_u32};
}
