//! Words of the image that start-up sets and nothing changes later. They are in read-only data, so
//! that each node reads its own copy of them ([`super::replica`]).
//!
//! A word is set directly while the loader's tables are loaded, which protect nothing
//! ([`BootWord::set_unprotected`]). Later, until the copies are made, it is set through the
//! patching window, as alternatives are ([`BootWord::set`]). Linux' relatives are `__ro_after_init`
//! and `runtime_const_init` (include/asm-generic/runtime-const.h).

use core::sync::atomic::{AtomicU64, Ordering};

use super::OutOfMemory;

/// A word of 64 bits. A static of this type is in read-only data:
/// `#[cfg_attr(target_os = "none", unsafe(link_section = ".data.rel.ro.boot"))]`.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct BootWord(AtomicU64);

impl BootWord {
    /// Makes a word with its first value.
    pub(crate) const fn of(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    /// Returns its value.
    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    /// Sets it while the loader's tables are loaded.
    pub(crate) fn set_unprotected(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
    /// Sets the value after that, and before copies of the image are made.
    ///
    /// # Errors
    /// If there is no memory for the patching window.
    #[cfg(target_os = "none")]
    pub(crate) fn set(&'static self, value: u64) -> Result<(), OutOfMemory> {
        use freehold_machine::{PAGE_SIZE, VirtAddr};

        use super::{patching, tables};

        patching::prepare()?;
        let address = self.0.as_ptr() as u64;
        let frame = tables::frame_at(VirtAddr(address)).expect("the image is mapped");
        patching::store(frame, address as usize % PAGE_SIZE, &value.to_le_bytes());
        Ok(())
    }
    /// Sets the value. A host has no write protection.
    ///
    /// # Errors
    /// None on a host.
    #[cfg(not(target_os = "none"))]
    pub(crate) fn set(&'static self, value: u64) -> Result<(), OutOfMemory> {
        self.set_unprotected(value);
        Ok(())
    }
}
