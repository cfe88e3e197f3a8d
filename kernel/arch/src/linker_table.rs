//! Tables that code writes entry by entry, each into a section of its own; the linker script puts a
//! symbol before and after them. Addresses are relative to the field that contains them, so that
//! they need no relocation.

/// The entries between the two symbols.
///
/// # Safety
/// Between them are entries of this type, and nothing else, in read-only memory.
pub(crate) unsafe fn entries<T>(start: *const [T; 0], end: *const [T; 0]) -> &'static [T] {
    let count = (end as usize - start as usize) / size_of::<T>();
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(start.cast(), count) }
}

/// Returns the address that a field of an entry refers to.
pub(crate) fn absolute(field: &i32) -> u64 {
    (core::ptr::from_ref(field) as u64).wrapping_add_signed(i64::from(*field))
}
