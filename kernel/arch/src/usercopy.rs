//! Access to the loaded program's bytes: through its own addresses, with SMAP on.
//!
//! Only addresses below [`USER_END`] are touched, and only by the instructions in `usercopy.s`,
//! each of which is in the exception table. A fault there ends in one of two ways:
//! [`Faults::Sleep`] lets the kernel make the page present (which may sleep) and tries again;
//! [`Faults::Never`], for callers inside a window or under a spin lock, stops the copy. In both
//! cases the caller only sees a shorter count.

use freehold_machine::{PAGE_SIZE, VirtAddr};

#[cfg(target_os = "none")]
use crate::alternatives::Feature;
#[cfg(target_os = "none")]
use crate::linker_table::{self, absolute};
use crate::user::USER_END;

/// Effect of a page fault in the middle of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Faults {
    /// The fault is served, which may sleep; the access stops only if it cannot be served.
    Sleep,
    /// The access stops.
    Never,
}

#[cfg(target_os = "none")]
core::arch::global_asm!(
    include_str!("alternative.s"),
    include_str!("usercopy.s"),
    ".purgem alternative",
    fast_strings = const Feature::FastStrings as u16,
);

/// A value and whether the access faulted (1), in the two return registers.
#[repr(C)]
#[cfg(target_os = "none")]
struct Loaded {
    value: u64,
    failed: u64,
}

#[cfg(target_os = "none")]
unsafe extern "C" {
    fn user_copy_serve(to: u64, from: u64, bytes: usize) -> usize;
    fn user_copy_never(to: u64, from: u64, bytes: usize) -> usize;
    fn user_zero_serve(to: u64, bytes: usize) -> usize;
    fn user_zero_never(to: u64, bytes: usize) -> usize;
    fn user_zero_page(to: u64) -> usize;
    fn user_write_page(to: u64, from: u64) -> usize;
    fn user_load32_serve(from: u64) -> Loaded;
    fn user_load32_never(from: u64) -> Loaded;
    fn user_load64_serve(from: u64) -> Loaded;
    fn user_load64_never(from: u64) -> Loaded;
    fn user_store16_serve(to: u64, value: u16) -> u64;
    fn user_store16_never(to: u64, value: u16) -> u64;
    fn user_store32_serve(to: u64, value: u32) -> u64;
    fn user_store32_never(to: u64, value: u32) -> u64;
    fn user_store64_serve(to: u64, value: u64) -> u64;
    fn user_store64_never(to: u64, value: u64) -> u64;
    fn user_exchange_serve(at: u64, expected: u32, new: u32) -> Loaded;
    fn user_exchange_never(at: u64, expected: u32, new: u32) -> Loaded;
    static user_copies_start: u8;
    static user_copies_end: u8;
    static __ex_table_start: [ExceptionEntry; 0];
    static __ex_table_end: [ExceptionEntry; 0];
}

/// The same names on a host, where there is no user half: every access fails.
#[cfg(not(target_os = "none"))]
mod host {
    #![allow(clippy::missing_safety_doc)]
    pub struct Loaded {
        pub value: u64,
        pub failed: u64,
    }
    macro_rules! absent {
        ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $value:expr;)*) => {
            $(pub unsafe fn $name($($arg: $ty),*) -> $ret { let _ = ($($arg,)*); $value })*
        };
    }
    absent! {
        user_copy_serve(to: u64, from: u64, bytes: usize) -> usize = bytes;
        user_copy_never(to: u64, from: u64, bytes: usize) -> usize = bytes;
        user_zero_serve(to: u64, bytes: usize) -> usize = bytes;
        user_zero_never(to: u64, bytes: usize) -> usize = bytes;
        user_zero_page(to: u64) -> usize = 512;
        user_write_page(to: u64, from: u64) -> usize = 512;
        user_load32_serve(from: u64) -> Loaded = Loaded { value: 0, failed: 1 };
        user_load32_never(from: u64) -> Loaded = Loaded { value: 0, failed: 1 };
        user_load64_serve(from: u64) -> Loaded = Loaded { value: 0, failed: 1 };
        user_load64_never(from: u64) -> Loaded = Loaded { value: 0, failed: 1 };
        user_store16_serve(to: u64, value: u16) -> u64 = 1;
        user_store16_never(to: u64, value: u16) -> u64 = 1;
        user_store32_serve(to: u64, value: u32) -> u64 = 1;
        user_store32_never(to: u64, value: u32) -> u64 = 1;
        user_store64_serve(to: u64, value: u64) -> u64 = 1;
        user_store64_never(to: u64, value: u64) -> u64 = 1;
        user_exchange_serve(at: u64, expected: u32, new: u32) -> Loaded = Loaded { value: 0, failed: 1 };
        user_exchange_never(at: u64, expected: u32, new: u32) -> Loaded = Loaded { value: 0, failed: 1 };
    }
}
#[cfg(not(target_os = "none"))]
use host::*;

/// One instruction that may fault; offsets are relative to their own field.
#[repr(C)]
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
struct ExceptionEntry {
    from: i32,
    to: i32,
    serve: i32,
}

/// Where to continue after a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fixup {
    /// The instruction to continue at.
    pub resume: u64,
    /// Whether the fault may be served first.
    pub faults: Faults,
}

/// Returns how to continue after a fault of the kernel instruction at `rip`; `None` if that
/// instruction may not fault.
#[cfg(target_os = "none")]
pub(crate) fn fixup(rip: u64) -> Option<Fixup> {
    // SAFETY: the linker puts all entries, and nothing else, between the two symbols, in read-only
    // memory.
    let entries = unsafe { linker_table::entries(&raw const __ex_table_start, &raw const __ex_table_end) };
    entries.iter().find(|entry| absolute(&entry.from) == rip).map(|entry| Fixup {
        resume: absolute(&entry.to),
        faults: if entry.serve == 1 { Faults::Sleep } else { Faults::Never },
    })
}

/// The addresses of the code that runs with RFLAGS.AC set.
#[cfg(target_os = "none")]
pub(crate) fn code() -> core::ops::Range<u64> {
    &raw const user_copies_start as u64..&raw const user_copies_end as u64
}

/// A host has no such code.
#[cfg(not(target_os = "none"))]
pub(crate) fn code() -> core::ops::Range<u64> {
    0..0
}

/// On a host no instruction of the kernel may fault.
#[cfg(not(target_os = "none"))]
pub(crate) fn fixup(_rip: u64) -> Option<Fixup> {
    None
}

/// The part of `len` bytes from `address` that is below [`USER_END`].
fn user_part(address: VirtAddr, len: usize) -> usize {
    usize::try_from(USER_END.saturating_sub(address.0)).unwrap_or(usize::MAX).min(len)
}

fn is_user_word(address: VirtAddr, bytes: u64) -> bool {
    address.0 <= USER_END - bytes
}

/// Copies from the program's memory. Returns how many bytes were copied.
pub fn read(from: VirtAddr, to: &mut [u8], faults: Faults) -> usize {
    let bytes = user_part(from, to.len());
    let to = to.as_mut_ptr() as u64;
    let left = match faults {
        // SAFETY: `to` is valid for `bytes` bytes of writing, and the source is below USER_END,
        // where faults are handled.
        Faults::Sleep => unsafe { user_copy_serve(to, from.0, bytes) },
        // SAFETY: as above.
        Faults::Never => unsafe { user_copy_never(to, from.0, bytes) },
    };
    bytes - left
}

/// Copies to the program's memory. Returns how many bytes were copied.
pub fn write(to: VirtAddr, from: &[u8], faults: Faults) -> usize {
    let bytes = user_part(to, from.len());
    let from = from.as_ptr() as u64;
    let left = match faults {
        // SAFETY: `from` is valid for `bytes` bytes of reading, and the target is below USER_END:
        // never kernel memory.
        Faults::Sleep => unsafe { user_copy_serve(to.0, from, bytes) },
        // SAFETY: as above.
        Faults::Never => unsafe { user_copy_never(to.0, from, bytes) },
    };
    bytes - left
}

/// Fills the program's memory with zeroes. Returns how many bytes were written.
pub fn zero(to: VirtAddr, len: usize, faults: Faults) -> usize {
    let bytes = user_part(to, len);
    let left = match faults {
        // SAFETY: the target is below USER_END: never kernel memory.
        Faults::Sleep => unsafe { user_zero_serve(to.0, bytes) },
        // SAFETY: as above.
        Faults::Never => unsafe { user_zero_never(to.0, bytes) },
    };
    bytes - left
}

/// Fills a page of the program with zeroes. Returns whether all of it could be written. Faults are
/// never served.
#[inline]
pub fn zero_page(to: VirtAddr) -> bool {
    // SAFETY: the target is below USER_END: never kernel memory.
    to.0 <= USER_END - PAGE_SIZE as u64 && unsafe { user_zero_page(to.0) } == 0
}

/// Fills a page of the program with these bytes. Returns whether all of it could be written. Faults
/// are never served.
#[inline]
pub fn write_page(to: VirtAddr, from: &[u8; PAGE_SIZE]) -> bool {
    let from = from.as_ptr() as u64;
    // SAFETY: `from` is valid for a page of reading, and the target is below USER_END: never kernel
    // memory.
    to.0 <= USER_END - PAGE_SIZE as u64 && unsafe { user_write_page(to.0, from) } == 0
}

/// Load a word in one access; `None` if it cannot be read.
pub fn load_u32(from: VirtAddr, faults: Faults) -> Option<u32> {
    if !is_user_word(from, 4) {
        return None;
    }
    let loaded = match faults {
        // SAFETY: the word is below USER_END, where faults are handled.
        Faults::Sleep => unsafe { user_load32_serve(from.0) },
        // SAFETY: as above.
        Faults::Never => unsafe { user_load32_never(from.0) },
    };
    (loaded.failed == 0).then_some(loaded.value as u32)
}

/// Load a word in one access; `None` if it cannot be read.
pub fn load_u64(from: VirtAddr, faults: Faults) -> Option<u64> {
    if !is_user_word(from, 8) {
        return None;
    }
    let loaded = match faults {
        // SAFETY: the word is below USER_END, where faults are handled.
        Faults::Sleep => unsafe { user_load64_serve(from.0) },
        // SAFETY: as above.
        Faults::Never => unsafe { user_load64_never(from.0) },
    };
    (loaded.failed == 0).then_some(loaded.value)
}

/// Store half a word in one access; `None` if it cannot be written.
pub fn store_u16(to: VirtAddr, value: u16, faults: Faults) -> Option<()> {
    if !is_user_word(to, 2) {
        return None;
    }
    let failed = match faults {
        // SAFETY: the half word is below USER_END: never kernel memory.
        Faults::Sleep => unsafe { user_store16_serve(to.0, value) },
        // SAFETY: as above.
        Faults::Never => unsafe { user_store16_never(to.0, value) },
    };
    (failed == 0).then_some(())
}

/// Store a word in one access; `None` if it cannot be written.
pub fn store_u32(to: VirtAddr, value: u32, faults: Faults) -> Option<()> {
    if !is_user_word(to, 4) {
        return None;
    }
    let failed = match faults {
        // SAFETY: the word is below USER_END: never kernel memory.
        Faults::Sleep => unsafe { user_store32_serve(to.0, value) },
        // SAFETY: as above.
        Faults::Never => unsafe { user_store32_never(to.0, value) },
    };
    (failed == 0).then_some(())
}

/// Store a word in one access; `None` if it cannot be written.
pub fn store_u64(to: VirtAddr, value: u64, faults: Faults) -> Option<()> {
    if !is_user_word(to, 8) {
        return None;
    }
    let failed = match faults {
        // SAFETY: the word is below USER_END: never kernel memory.
        Faults::Sleep => unsafe { user_store64_serve(to.0, value) },
        // SAFETY: as above.
        Faults::Never => unsafe { user_store64_never(to.0, value) },
    };
    (failed == 0).then_some(())
}

/// Loads a value, in one access if it has 4 or 8 bytes; `None` if not all of it can be read. For
/// lengths that are known at compile time.
#[inline(always)]
pub fn load(from: VirtAddr, value: &mut [u8], faults: Faults) -> Option<()> {
    match value.len() {
        4 => value.copy_from_slice(&load_u32(from, faults)?.to_ne_bytes()),
        8 => value.copy_from_slice(&load_u64(from, faults)?.to_ne_bytes()),
        length => return (read(from, value, faults) == length).then_some(()),
    }
    Some(())
}

/// Stores a value, in one access if it has 2, 4 or 8 bytes; `None` if not all of it can be written.
/// For lengths that are known at compile time.
#[inline(always)]
pub fn store(to: VirtAddr, value: &[u8], faults: Faults) -> Option<()> {
    match *value {
        [a, b] => store_u16(to, u16::from_ne_bytes([a, b]), faults),
        [a, b, c, d] => store_u32(to, u32::from_ne_bytes([a, b, c, d]), faults),
        [a, b, c, d, e, f, g, h] => store_u64(to, u64::from_ne_bytes([a, b, c, d, e, f, g, h]), faults),
        _ => (write(to, value, faults) == value.len()).then_some(()),
    }
}

/// Replaces a word if it is `current`, atomically. Returns the old word, or `None` if it cannot be
/// written.
pub fn compare_exchange_u32(at: VirtAddr, current: u32, new: u32, faults: Faults) -> Option<u32> {
    if !is_user_word(at, 4) {
        return None;
    }
    let loaded = match faults {
        // SAFETY: the word is below USER_END: never kernel memory.
        Faults::Sleep => unsafe { user_exchange_serve(at.0, current, new) },
        // SAFETY: as above.
        Faults::Never => unsafe { user_exchange_never(at.0, current, new) },
    };
    (loaded.failed == 0).then_some(loaded.value as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_beyond_the_user_half() {
        assert_eq!(user_part(VirtAddr(USER_END - 10), 100), 10);
        assert_eq!(user_part(VirtAddr(u64::MAX), 100), 0);
        assert!(!is_user_word(VirtAddr(USER_END - 3), 4));
        assert!(is_user_word(VirtAddr(USER_END - 4), 4));
    }
}
