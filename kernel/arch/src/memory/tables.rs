//! The kernel's own translation tables: entries, and mapping in the kernel half.
//!
//! One root holds the kernel half; every other root copies its top-level entries, which never
//! change after start-up. Below the top, tables are added with compare-exchange, without a lock,
//! and are never removed. Manual: Intel SDM volume 3, 4.5.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::entry::FRAME;
use freehold_machine::{PAGE_SIZE, Pfn, TABLE_ENTRIES, VirtAddr};

pub(crate) use freehold_machine::entry::{
    ACCESSED, DIRTY, GLOBAL, LARGE, NO_EXECUTE, PRESENT, UNCACHED, WRITABLE, WRITE_THROUGH,
};

use super::OutOfMemory;

/// A leaf for kernel data: read and write. Accessed and dirty are set, so that no page walk has to
/// set them.
pub(crate) const DATA: u64 = PRESENT | WRITABLE | ACCESSED | DIRTY | GLOBAL | NO_EXECUTE;
/// A leaf for kernel data that is only read.
pub(crate) const READ_ONLY: u64 = PRESENT | ACCESSED | GLOBAL | NO_EXECUTE;
/// A leaf for kernel text.
pub(crate) const TEXT: u64 = PRESENT | ACCESSED | GLOBAL;
/// A leaf for device registers.
pub(crate) const DEVICE: u64 = DATA | UNCACHED | WRITE_THROUGH;
const TABLE: u64 = PRESENT | WRITABLE | ACCESSED;

crate::boot_value! {
    /// The difference between a kernel-owned byte's virtual and physical address: 0 while the
    /// loader's identity map is on, the direct map's base afterwards.
    static DIRECT_BASE: u64 = 0;
}
/// The frame of the kernel's root.
static ROOT: AtomicU64 = AtomicU64::new(0);

/// Sets the direct map's base. The loader's tables are still loaded; no frame's bytes are used
/// until the final tables are loaded.
pub(crate) fn set_direct_base(base: u64) {
    DIRECT_BASE.set_unprotected(base);
}
#[inline]
pub(crate) fn direct_base() -> u64 {
    DIRECT_BASE.get()
}
pub(crate) fn set_root(root: Pfn) {
    ROOT.store(root.0, Ordering::Release);
}
/// The root that holds the kernel half and nothing else.
pub(crate) fn root() -> Pfn {
    Pfn(ROOT.load(Ordering::Relaxed))
}

/// Returns the address of a kernel-owned frame's bytes. Dereferencing it requires the frame's
/// pageblock in the direct map (or below 1 GiB under the identity map).
#[inline]
pub(crate) fn frame_ptr(frame: Pfn) -> *mut u8 {
    (direct_base() + frame.start().0) as *mut u8
}

/// Returns the entry `index` of the table in frame `table`, which the kernel made a table, or which
/// is [within memory](super::is_within_memory).
///
/// # Panics
/// If `index` is not below 512.
#[inline]
pub(crate) fn entry(table: Pfn, index: usize) -> &'static AtomicU64 {
    &entries(table)[index]
}

/// The entries of a table.
#[inline]
pub(crate) fn entries(table: Pfn) -> &'static [AtomicU64; TABLE_ENTRIES] {
    let address = frame_ptr(table) as usize;
    // SAFETY: the address is aligned and inside the direct map's area (or the identity map at
    // boot), where a byte is either kernel-owned memory, valid as any integer for ever, or absent,
    // which ends in a report.
    unsafe { &*(address as *const [AtomicU64; TABLE_ENTRIES]) }
}

/// Fills a frame of the direct map with zeroes. The frame is a table, or becomes one.
pub(crate) fn clear(frame: Pfn) {
    // SAFETY: the frame is the caller's alone and its bytes are where `frame_ptr` says; a frame
    // that is not in the direct map ends in a report.
    unsafe { frame_ptr(frame).write_bytes(0, PAGE_SIZE) };
}

/// The frame that an entry points to.
pub(crate) const fn frame_of(entry: u64) -> Pfn {
    Pfn((entry & FRAME) >> 12)
}

/// A leaf entry.
pub(crate) const fn leaf(frame: Pfn, flags: u64) -> u64 {
    frame.0 << 12 | flags
}

/// An entry that leads to a table.
pub(crate) const fn link(table: Pfn) -> u64 {
    leaf(table, TABLE)
}

/// Level 4 is the top; level 1 holds 4 KiB leaves.
pub(crate) const fn index_at(address: VirtAddr, level: u32) -> usize {
    (address.0 >> (12 + 9 * (level - 1))) as usize & (TABLE_ENTRIES - 1)
}

/// Walks down to the table of `level` for `address`. Missing tables are made of frames from
/// `alloc`.
///
/// # Errors
/// If `alloc` has no frame. Tables made so far stay, empty.
///
/// # Panics
/// If a large leaf maps the address.
pub(crate) fn table_at(
    address: VirtAddr,
    level: u32,
    alloc: &mut dyn FnMut() -> Option<Pfn>,
) -> Result<Pfn, OutOfMemory> {
    let mut table = root();
    for above in (level + 1..=4).rev() {
        let slot = entry(table, index_at(address, above));
        let mut value = slot.load(Ordering::Acquire);
        if value & PRESENT == 0 {
            let fresh = alloc().ok_or(OutOfMemory)?;
            clear(fresh);
            value = match slot.compare_exchange(0, link(fresh), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => link(fresh),
                Err(other) => {
                    super::free_frames(fresh, 0);
                    other
                }
            };
        }
        assert!(value & LARGE == 0, "{address:?} is inside a large page");
        table = frame_of(value);
    }
    Ok(table)
}

/// Returns the entry of `LEVEL` for `address`, if its table exists.
pub(crate) fn find_entry<const LEVEL: u32>(address: VirtAddr) -> Option<&'static AtomicU64> {
    let mut table = root();
    for above in (LEVEL + 1..=4).rev() {
        let value = entry(table, index_at(address, above)).load(Ordering::Acquire);
        if value & PRESENT == 0 || value & LARGE != 0 {
            return None;
        }
        table = frame_of(value);
    }
    Some(entry(table, index_at(address, LEVEL)))
}

/// The frame that is mapped at an address of the kernel half.
pub(crate) fn frame_at(address: VirtAddr) -> Option<Pfn> {
    let load = |entry: &AtomicU64| entry.load(Ordering::Acquire);
    if let Some(small) = find_entry::<1>(address).map(load) {
        return (small & PRESENT != 0).then_some(frame_of(small));
    }
    let large = find_entry::<2>(address).map(load).filter(|entry| entry & LARGE != 0)?;
    Some(frame_of(large).offset(index_at(address, 1) as u64))
}

/// Maps one 4 KiB page of the kernel half.
///
/// # Errors
/// If a table is missing and `alloc` has no frame.
///
/// # Panics
/// If something is mapped there.
pub(crate) fn map_page(
    address: VirtAddr,
    value: u64,
    alloc: &mut dyn FnMut() -> Option<Pfn>,
) -> Result<(), OutOfMemory> {
    map_leaf(address, 1, value, alloc)
}

/// Maps as much of the kernel half as a leaf of `level` covers: 4 KiB (1) or 2 MiB (2).
///
/// # Errors
/// If a table is missing and `alloc` has no frame.
///
/// # Panics
/// If something is mapped there.
pub(crate) fn map_leaf(
    address: VirtAddr,
    level: u32,
    value: u64,
    alloc: &mut dyn FnMut() -> Option<Pfn>,
) -> Result<(), OutOfMemory> {
    let table = table_at(address, level, alloc)?;
    let before = entry(table, index_at(address, level)).swap(value, Ordering::AcqRel);
    assert!(before == 0, "{address:?} is mapped already");
    Ok(())
}

/// The number of pages that hold `bytes` bytes.
pub(crate) const fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_SIZE as u64)
}
