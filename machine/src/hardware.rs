//! Translation tables, TLBs, physical bytes, the direct map and random bits.
//!
//! An mm crate reaches hardware through these traits. No trait is `unsafe`: the implementation
//! refuses (with a panic that names the frame) frames that its own records do not give to the
//! caller. So a bug in an mm crate ends in a report and not in corruption.

use core::ops::Range;

use crate::{CpuSet, Cpus, NodeId, PAGE_SIZE, Pfn, PfnRange, VirtAddr};

/// Entries in one translation table (x86-64: 512 at each of the four levels).
pub const TABLE_ENTRIES: usize = 512;

/// The words of translation tables, read and changed with single atomic accesses, since the
/// hardware walker reads them (and sets accessed and dirty bits) at any moment.
///
/// `table` is a frame that its owner made a translation table; `index` is below [`TABLE_ENTRIES`].
pub trait Tables: Copy + Send + Sync + 'static {
    /// Returns the entry now (acquire).
    fn load_entry(self, table: Pfn, index: usize) -> u64;
    /// Replaces the entry (release); for entries that the walker does not change meanwhile.
    fn store_entry(self, table: Pfn, index: usize, value: u64);
    /// Replaces the entry and returns the old one, with the walker's bits (acquire and release).
    fn swap_entry(self, table: Pfn, index: usize, value: u64) -> u64;
    /// Replaces the entry if it still is `current` (acquire and release); else returns its present
    /// value.
    fn compare_exchange_entry(self, table: Pfn, index: usize, current: u64, new: u64) -> Result<u64, u64>;
    /// Fills a table with zero entries before it is linked in anywhere.
    fn clear_table(self, table: Pfn);
    /// Returns the first entry of `range` that is not zero, with its index (acquire).
    fn next_entry(self, table: Pfn, range: Range<usize>) -> Option<(usize, u64)> {
        range.map(|index| (index, self.load_entry(table, index))).find(|&(_, entry)| entry != 0)
    }
    /// Shows `f` the entries of `range` that are not zero, upwards. Each is read just before its
    /// turn (acquire). `f` may change entries.
    fn each_entry(self, table: Pfn, range: Range<usize>, mut f: impl FnMut(usize, u64)) {
        let mut rest = range;
        while let Some((index, entry)) = self.next_entry(table, rest.clone()) {
            rest.start = index + 1;
            f(index, entry);
        }
    }
    /// Empties the entries of `range`. Shows `f` the old value of each that was not zero, upwards,
    /// with the walker's bits (acquire and release).
    fn take_entries(self, table: Pfn, range: Range<usize>, mut f: impl FnMut(usize, u64)) {
        self.each_entry(table, range, |index, _| f(index, self.swap_entry(table, index, 0)));
    }
    /// Copies the entries of `range` to the same places of `to`, which no walker uses yet.
    fn copy_entries(self, from: Pfn, to: Pfn, range: Range<usize>) {
        range.for_each(|index| self.store_entry(to, index, self.load_entry(from, index)));
    }
}

/// Translations to forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// Translations of `pages` pages of 4 KiB from `start` on, in the loaded root.
    Range {
        /// First address, page-aligned.
        start: VirtAddr,
        /// Pages of 4 KiB.
        pages: u64,
    },
    /// Translations of `blocks` leaves of 2 MiB from `start` on, each of which was one entry:
    /// cheaper than their pages one by one.
    Blocks {
        /// First address, aligned to 2 MiB.
        start: VirtAddr,
        /// Leaves of 2 MiB.
        blocks: u64,
    },
    /// All translations but global ones.
    NonGlobal,
    /// All translations.
    All,
}

/// Translation caches and the root they translate from.
pub trait Tlb: Cpus {
    /// Flushes on this CPU. The caller is pinned.
    fn flush_local(self, what: Flush);
    /// Flushes on each of `cpus` (this one too, if it is a member), and returns when all have done
    /// so. Called with interrupts on and without a lock that an interrupt handler takes.
    fn flush_on(self, cpus: CpuSet, what: Flush);
    /// Runs `f` on this CPU and no other. Until `f` returns, no [`Tlb::flush_on`] that names this
    /// CPU returns. `f` is short; it does not sleep, fault, flush, or free frames.
    fn hold_flushes<R>(self, f: impl FnOnce() -> R) -> R;
    /// From now on this CPU translates from the table `root`. The caller is pinned.
    fn load_root(self, root: Pfn);
    /// The root this CPU translates from. The caller is pinned.
    fn current_root(self) -> Pfn;
}

/// The bytes of frames, reached through short-lived per-CPU windows and never through the direct
/// map, by number.
///
/// A machine implements it. Code that uses frames does not call it: `freehold_xpfo::Windows` does,
/// for values that hold frames. Only callers without such a value have this bound: the page
/// allocator, for a block that moves or is being handed out, and the copier of the kernel's image.
pub trait PhysicalBytes: Copy + Send + Sync + 'static {
    /// Runs `f` on the frame's bytes. Does not sleep; `f` must not sleep, fault or take long. User
    /// space and devices that can access the frame may change the bytes meanwhile.
    fn with_bytes<R>(self, frame: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R;
    /// Runs `f` on the bytes `range` of adjacent frames, counted from the first byte of `first`.
    /// `f` gets all bytes at once, or part by part if they cannot be mapped side by side. It also
    /// gets the number of bytes before the part.
    fn with_run(self, first: Pfn, range: Range<usize>, f: impl FnMut(usize, &mut [u8])) {
        page_by_page(self, first, range, f);
    }
    /// As [`PhysicalBytes::with_run`], for bytes that are only read: the windows are read-only.
    fn read_run(self, first: Pfn, range: Range<usize>, mut f: impl FnMut(usize, &[u8])) {
        self.with_run(first, range, |before, bytes| f(before, bytes));
    }
    /// As [`PhysicalBytes::with_bytes`], for bytes that are only read: the window is read-only.
    fn read_bytes<R>(self, frame: Pfn, f: impl FnOnce(&[u8; PAGE_SIZE]) -> R) -> R {
        self.with_bytes(frame, |bytes| f(bytes))
    }
    /// Fill the frame with zeroes.
    fn zero(self, frame: Pfn) {
        self.with_bytes(frame, |bytes| bytes.fill(0));
    }
    /// Fill `count` frames from `first` on with zeroes.
    fn zero_run(self, first: Pfn, count: u64) {
        (0..count).for_each(|index| self.zero(first.offset(index)));
    }
    /// Run `f` on the bytes of two frames, the first of which is written. As
    /// [`PhysicalBytes::with_bytes`].
    ///
    /// # Panics
    /// If both are one frame.
    fn with_two<R>(
        self,
        to: Pfn,
        from: Pfn,
        f: impl FnOnce(&mut [u8; PAGE_SIZE], &[u8; PAGE_SIZE]) -> R,
    ) -> R {
        assert_ne!(to, from, "one frame cannot be copied to itself");
        self.with_bytes(to, |to| self.read_bytes(from, |from| f(to, from)))
    }
    /// Fills the page at `addr` with zeroes through that user address, in the address space that
    /// this CPU has loaded. The leaf is present and grants writing. Returns `false` if the machine
    /// cannot do this, or could not write the whole page.
    fn zero_at(self, addr: VirtAddr) -> bool {
        let _ = addr;
        false
    }
    /// Fills the page with the bytes of frame `from`; otherwise as [`PhysicalBytes::zero_at`].
    fn copy_at(self, from: Pfn, addr: VirtAddr) -> bool {
        let _ = (from, addr);
        false
    }
    /// Whether writing a program's new page by windows costs more than by the program's own
    /// address, where that is safe.
    fn has_windows(self) -> bool {
        false
    }
    /// Copy one frame's bytes to another.
    fn copy(self, from: Pfn, to: Pfn) {
        self.with_two(to, from, |to, from| to.copy_from_slice(from));
    }
}

/// [`PhysicalBytes::with_run`] for frames that are mapped one by one.
pub fn page_by_page<B: PhysicalBytes>(
    bytes: B,
    first: Pfn,
    range: Range<usize>,
    mut f: impl FnMut(usize, &mut [u8]),
) {
    let mut at = range.start;
    while at < range.end {
        let offset = at % PAGE_SIZE;
        let end = PAGE_SIZE.min(offset + (range.end - at));
        bytes.with_bytes(first.offset((at / PAGE_SIZE) as u64), |page| {
            f(at - range.start, &mut page[offset..end])
        });
        at += end - offset;
    }
}

/// The kernel's permanent map of the pageblocks it owns, in 2 MiB pages.
///
/// Whole pageblocks enter before the kernel may use any of their frames, and leave before any of
/// their frames may become a user's. The page allocator calls this when a pageblock moves between
/// kernel and user memory.
pub trait DirectMap: Copy + Send + Sync + 'static {
    /// Map `blocks`, pageblock-aligned. No flush is needed: nothing was cached for an absent entry.
    fn enter(self, blocks: PfnRange);
    /// Unmap `blocks`, pageblock-aligned, and return when no CPU can access them through the map.
    fn leave(self, blocks: PfnRange);
}

/// Random bits.
pub trait Entropy: Copy + Send + Sync + 'static {
    /// 64 bits from a seeded cryptographic generator, or the best available bits before it is
    /// seeded (see [`Entropy::is_seeded`]). May take a lock: draw before taking the allocator's.
    fn random_u64(self) -> u64;
    /// Whether enough true randomness went into the generator.
    fn is_seeded(self) -> bool;
}

/// All services that a machine gives to the memory manager, except frames' bytes. A frame's number
/// gives no right to see its bytes (`freehold_xpfo::Windows`).
pub trait Machine: Tables + Tlb + DirectMap + Entropy {
    /// The number of nodes that have memory or CPUs: 1 or more, dense from 0.
    fn node_count(self) -> usize;
    /// The node nearest to this CPU.
    fn current_node(self) -> NodeId {
        self.node_of_cpu(self.current_cpu())
    }
}
