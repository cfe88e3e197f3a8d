//! Values in the image that start-up sets and nothing changes later. They are in read-only data, so
//! that each node reads its own copy of them ([`super::replica`]).
//!
//! A value is set directly while the loader's tables are loaded, which protect nothing
//! ([`BootValue::set_unprotected`]). Later, until the copies are made, it is set through the
//! patching window, as alternatives are ([`BootValue::set`]). Linux' relatives are
//! `__ro_after_init` and `runtime_const_init` (include/asm-generic/runtime-const.h).

use core::cell::UnsafeCell;

use super::OutOfMemory;
use crate::cpu;

/// A value in read-only data: made by [`boot_value!`](crate::boot_value), in this crate also by a
/// static in the section `.data.rel.ro.boot`.
#[derive(Debug)]
#[repr(transparent)]
pub struct BootValue<T>(UnsafeCell<T>);

// SAFETY: it is only set while one CPU runs, by code that no interrupt handler calls; later there
// are only loads.
unsafe impl<T: Sync> Sync for BootValue<T> {}

impl<T: Copy + Sync> BootValue<T> {
    /// Makes a value that is `first` until it is set.
    pub const fn of(first: T) -> Self {
        Self(UnsafeCell::new(first))
    }
    /// Returns the value.
    #[inline(always)]
    pub fn get(&self) -> T {
        // SAFETY: it is valid from the beginning, and no CPU stores to it meanwhile (see `Sync`).
        unsafe { *self.0.get() }
    }
    /// Sets it while the loader's tables are loaded.
    ///
    /// # Panics
    /// If several CPUs run.
    pub(crate) fn set_unprotected(&self, value: T) {
        assert_alone();
        // SAFETY: no other CPU runs, and this one does not read it here.
        unsafe { *self.0.get() = value };
    }
    /// Sets it after that, and before copies of the image are made.
    ///
    /// # Errors
    /// If there is no memory for the patching window.
    ///
    /// # Panics
    /// If several CPUs run.
    #[cfg(target_os = "none")]
    pub fn set(&'static self, value: T) -> Result<(), OutOfMemory> {
        use freehold_machine::{PAGE_SIZE, VirtAddr};

        use super::{patching, tables};

        assert_alone();
        patching::prepare()?;
        let address = self.0.get() as u64;
        let from = (&raw const value).cast::<u8>();
        let mut done = 0;
        while done < size_of::<T>() {
            let to = address + done as u64;
            let offset = to as usize % PAGE_SIZE;
            let count = (size_of::<T>() - done).min(PAGE_SIZE - offset);
            let frame = tables::frame_at(VirtAddr(to)).expect("the image is mapped");
            // SAFETY: the value has `count` more bytes from there on; they are only copied.
            unsafe { patching::copy(frame, offset, from.add(done), count) };
            done += count;
        }
        Ok(())
    }
    /// Sets the value. A host has no write protection.
    ///
    /// # Errors
    /// None on a host.
    ///
    /// # Panics
    /// If several CPUs run.
    #[cfg(not(target_os = "none"))]
    pub fn set(&'static self, value: T) -> Result<(), OutOfMemory> {
        self.set_unprotected(value);
        Ok(())
    }
}

fn assert_alone() {
    assert!(cpu::online().len() <= 1, "a value of start-up is set while several CPUs run");
}

/// Defines a static that is a [`BootValue`](crate::memory::BootValue) in read-only data:
/// `boot_value! { static NAME: Type = first; }`.
#[macro_export]
macro_rules! boot_value {
    ($(#[$doc:meta])* static $name:ident: $type:ty = $first:expr;) => {
        $(#[$doc])*
        #[cfg_attr(target_os = "none", unsafe(link_section = ".data.rel.ro.boot"))]
        static $name: $crate::memory::BootValue<$type> = $crate::memory::BootValue::of($first);
    };
}
