//! A [`Machine`] for a kernel on one x86-64 CPU, over the instructions and tables of the crate
//! `x86_64`.
//!
//! Two slots of the kernel's root table are the machine's. Slot 256 is the direct map: frame n is
//! at [`DIRECT_MAP`] + 4096 n while its pageblock is the kernel's, and nowhere while it is a
//! program's or a device's. Slot 257 is for windows: each shows one frame for the time of one
//! closure.
//!
//! The kernel keeps the rest of the contract: one CPU runs, it switches tasks only where a task
//! asks for it, and the upper half of each root is a copy of that of the first (as
//! `freehold_paging::Space` makes it). Interrupt handlers may open windows, too. Process-context
//! identifiers (CR4.PCIDE) are off.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use freehold_machine::entry::{LARGE, NO_EXECUTE, PRESENT, UNCACHED, WRITABLE};
use freehold_machine::{
    CpuId, CpuSet, Cpus, DirectMap, Entropy, Flush, Machine, NodeId, PAGE_SIZE, PAGEBLOCK_FRAMES, Pfn,
    PfnRange, PhysicalBytes, TABLE_ENTRIES, Tables, Tlb, VirtAddr,
};
use x86_64::PhysAddr;
use x86_64::instructions::{random::RdRand, tlb};
use x86_64::registers::control::{Cr3, Cr3Flags, Cr4, Cr4Flags};
use x86_64::structures::paging::{PageTable, PageTableFlags};

use crate::frames::{to_pfn, to_x86_64};

/// The address of frame 0 in the direct map.
pub const DIRECT_MAP: VirtAddr = VirtAddr(0xffff_8000_0000_0000);
const WINDOWS: u64 = 0xffff_8080_0000_0000;
/// Windows that may be open at once. Registers of devices have the other entries of their table.
const MAX_OPEN: usize = 64;
/// A flush of more pages forgets everything, which is cheaper.
const MAX_PAGES: u64 = 64;

#[repr(C, align(4096))]
struct TableWords([AtomicU64; TABLE_ENTRIES]);

impl TableWords {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; TABLE_ENTRIES])
    }

    fn set(&self, index: usize, entry: u64) {
        self.0[index].store(entry, Ordering::Release);
    }
}

/// The tables of the direct map, for memory below `GIB` GiB (1 to 512), and of the windows: a
/// `static` of the kernel.
pub struct KernelMap<const GIB: usize> {
    direct: TableWords,
    blocks: [TableWords; GIB],
    windows: [TableWords; 3],
    open: AtomicUsize,
    registers: AtomicUsize,
    random: AtomicU64,
}

impl<const GIB: usize> KernelMap<GIB> {
    /// Makes empty tables.
    pub const fn new() -> Self {
        const { assert!(GIB >= 1 && GIB <= TABLE_ENTRIES, "1 to 512 GiB") };
        Self {
            direct: TableWords::new(),
            blocks: [const { TableWords::new() }; GIB],
            windows: [const { TableWords::new() }; 3],
            open: AtomicUsize::new(0),
            registers: AtomicUsize::new(MAX_OPEN),
            random: AtomicU64::new(0),
        }
    }

    /// Links the tables into slots 256 and 257 of `root`, the loaded root. `physical` returns the
    /// physical address of an address of the kernel's image.
    ///
    /// # Safety
    /// Called once, with the loaded root, whose two slots are empty. `physical` tells the truth for
    /// this value. No CPU but this one ever runs.
    pub unsafe fn link(
        &'static self,
        root: &mut PageTable,
        physical: impl Fn(VirtAddr) -> PhysAddr,
    ) -> OneCpu<GIB> {
        let address = |table: &TableWords| physical(VirtAddr(&raw const *table as u64));
        let entry = |table| address(table).as_u64() | PRESENT | WRITABLE;
        self.blocks.iter().enumerate().for_each(|(index, table)| self.direct.set(index, entry(table)));
        self.windows[0].set(0, entry(&self.windows[1]));
        self.windows[1].set(0, entry(&self.windows[2]));
        for (slot, table) in [(256, &self.direct), (257, &self.windows[0])] {
            root[slot].set_addr(address(table), PageTableFlags::PRESENT | PageTableFlags::WRITABLE);
        }
        OneCpu { map: self, random: RdRand::new() }
    }

    /// The entry of a pageblock in the direct map.
    fn block(&self, number: u64) -> &AtomicU64 {
        let table = self.blocks.get(number as usize / TABLE_ENTRIES);
        let table =
            table.unwrap_or_else(|| panic!("the direct map ends at {GIB} GiB, before {number}×2 MiB"));
        &table.0[number as usize % TABLE_ENTRIES]
    }
}

/// The machine: one CPU, one node. Made by [`KernelMap::link`].
#[derive(Clone, Copy)]
pub struct OneCpu<const GIB: usize> {
    map: &'static KernelMap<GIB>,
    random: Option<RdRand>,
}

impl<const GIB: usize> fmt::Debug for OneCpu<GIB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OneCpu<{GIB}>")
    }
}

impl<const GIB: usize> OneCpu<GIB> {
    /// Returns whether the direct map shows the frame.
    pub fn is_in_direct_map(self, frame: Pfn) -> bool {
        self.map.block(frame.0 / PAGEBLOCK_FRAMES).load(Ordering::Acquire) != 0
    }

    /// Maps the page of a device's registers, uncached and for ever. Returns the address of the
    /// register at `physical`.
    ///
    /// # Panics
    /// If 448 pages are mapped already.
    pub fn map_registers(self, physical: PhysAddr) -> NonNull<u8> {
        let index = self.map.registers.fetch_add(1, Ordering::Relaxed);
        assert!(index < TABLE_ENTRIES, "too many pages of registers");
        let page = physical.align_down(PAGE_SIZE as u64);
        self.map.windows[2].set(index, page.as_u64() | PRESENT | WRITABLE | UNCACHED | NO_EXECUTE);
        let pointer = (window(index) + (physical - page)) as *mut u8;
        NonNull::new(pointer).expect("windows are in the upper half")
    }

    fn word(self, table: Pfn, index: usize) -> &'static AtomicU64 {
        assert!(self.is_in_direct_map(table), "{table:?} is no table: it is outside of the direct map");
        assert!(index < TABLE_ENTRIES, "a table has no entry {index}");
        let address = DIRECT_MAP.0 + table.start().0 + 8 * index as u64;
        // SAFETY: the direct map shows the frame, which its owner uses as a table: words that are
        // accessed atomically.
        unsafe { &*(address as *const AtomicU64) }
    }
}

const fn window(index: usize) -> u64 {
    WINDOWS + (index * PAGE_SIZE) as u64
}

fn forget(address: u64) {
    tlb::flush(x86_64::VirtAddr::new_truncate(address));
}

/// Returns the addresses whose translations are to be forgotten one by one; `None` if all are.
fn addresses(what: Flush) -> Option<impl Iterator<Item = u64>> {
    let (start, count, bytes) = match what {
        Flush::Range { start, pages } => (start, pages, PAGE_SIZE as u64),
        Flush::Blocks { start, blocks } => (start, blocks, PAGE_SIZE as u64 * PAGEBLOCK_FRAMES),
        Flush::NonGlobal | Flush::All => return None,
    };
    (count <= MAX_PAGES).then(|| (0..count).map(move |index| start.0 + index * bytes))
}

impl<const GIB: usize> Cpus for OneCpu<GIB> {
    fn current_cpu(self) -> CpuId {
        CpuId(0)
    }
    fn cpu_count(self) -> usize {
        1
    }
    fn node_of_cpu(self, _: CpuId) -> NodeId {
        NodeId(0)
    }
    fn disable_preemption(self) {}
    fn enable_preemption(self) {}
}

impl<const GIB: usize> Tables for OneCpu<GIB> {
    fn load_entry(self, table: Pfn, index: usize) -> u64 {
        self.word(table, index).load(Ordering::Acquire)
    }
    fn store_entry(self, table: Pfn, index: usize, value: u64) {
        self.word(table, index).store(value, Ordering::Release);
    }
    fn swap_entry(self, table: Pfn, index: usize, value: u64) -> u64 {
        self.word(table, index).swap(value, Ordering::AcqRel)
    }
    fn compare_exchange_entry(self, table: Pfn, index: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.word(table, index).compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
    fn clear_table(self, table: Pfn) {
        (0..TABLE_ENTRIES).for_each(|index| self.store_entry(table, index, 0));
    }
}

impl<const GIB: usize> Tlb for OneCpu<GIB> {
    fn flush_local(self, what: Flush) {
        match addresses(what) {
            Some(addresses) => addresses.for_each(forget),
            None if what == Flush::All && Cr4::read().contains(Cr4Flags::PAGE_GLOBAL) => {
                // A change of this bit forgets global translations, too (Intel SDM 3A, 5.10.4.1).
                // SAFETY: the bit decides about caching only, and is on again afterwards.
                unsafe { Cr4::update(|flags| flags.remove(Cr4Flags::PAGE_GLOBAL)) };
                // SAFETY: as above.
                unsafe { Cr4::update(|flags| flags.insert(Cr4Flags::PAGE_GLOBAL)) };
            }
            None => tlb::flush_all(),
        }
    }
    fn flush_on(self, cpus: CpuSet, what: Flush) {
        if cpus.contains(CpuId(0)) {
            self.flush_local(what);
        }
    }
    fn hold_flushes<R>(self, f: impl FnOnce() -> R) -> R {
        f()
    }
    fn load_root(self, root: Pfn) {
        // SAFETY: the upper half of every root is that of the first: see the module's head.
        unsafe { Cr3::write(to_x86_64(root), Cr3Flags::empty()) }
    }
    fn current_root(self) -> Pfn {
        to_pfn(Cr3::read().0)
    }
}

impl<const GIB: usize> PhysicalBytes for OneCpu<GIB> {
    fn with_bytes<R>(self, frame: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        let index = self.map.open.fetch_add(1, Ordering::Relaxed);
        assert!(index < MAX_OPEN, "too many open windows");
        self.map.windows[2].set(index, frame.start().0 | PRESENT | WRITABLE | NO_EXECUTE);
        // SAFETY: mapped until the closure has returned. The caller holds the frame, and this
        // window is the only way to its bytes.
        let result = f(unsafe { &mut *(window(index) as *mut [u8; PAGE_SIZE]) });
        self.map.windows[2].set(index, 0);
        forget(window(index));
        self.map.open.fetch_sub(1, Ordering::Relaxed);
        result
    }
}

impl<const GIB: usize> DirectMap for OneCpu<GIB> {
    fn enter(self, blocks: PfnRange) {
        for number in blocks.start.0 / PAGEBLOCK_FRAMES..blocks.end.0 / PAGEBLOCK_FRAMES {
            let entry = number << 21 | PRESENT | WRITABLE | LARGE | NO_EXECUTE;
            self.map.block(number).store(entry, Ordering::Release);
        }
    }
    fn leave(self, blocks: PfnRange) {
        for number in blocks.start.0 / PAGEBLOCK_FRAMES..blocks.end.0 / PAGEBLOCK_FRAMES {
            self.map.block(number).store(0, Ordering::Release);
            forget(DIRECT_MAP.0 + (number << 21));
        }
    }
}

impl<const GIB: usize> Entropy for OneCpu<GIB> {
    /// Returns RDRAND's word; the mixed time stamp (SplitMix64) on a CPU without.
    fn random_u64(self) -> u64 {
        if let Some(word) = self.random.and_then(RdRand::get_u64) {
            return word;
        }
        // SAFETY: reading the time stamp changes nothing.
        let time = unsafe { core::arch::x86_64::_rdtsc() };
        let mut word = self.map.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed) ^ time;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }
    fn is_seeded(self) -> bool {
        self.random.is_some()
    }
}

impl<const GIB: usize> Machine for OneCpu<GIB> {
    fn node_count(self) -> usize {
        1
    }
}

/// Without the privileged instructions, which `examples/kernel` of the repository runs.
#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of 2 GiB, and the root that it is in. "Physical" addresses are 1 TiB lower.
    fn machine() -> (OneCpu<2>, PageTable) {
        static MAPS: [KernelMap<2>; 3] = [const { KernelMap::new() }; 3];
        static USED: AtomicUsize = AtomicUsize::new(0);
        let mut root = PageTable::new();
        let map = &MAPS[USED.fetch_add(1, Ordering::Relaxed)];
        // SAFETY: no instruction of these tests uses the root.
        let machine = unsafe { map.link(&mut root, |address| PhysAddr::new(address.0 - (1 << 40))) };
        (machine, root)
    }

    #[test]
    fn the_root_leads_to_the_leaves_of_the_direct_map_and_of_registers() {
        let (machine, root) = machine();
        let table = |entry: u64| {
            let address = (entry & freehold_machine::entry::FRAME) + (1 << 40);
            // SAFETY: a table of the static, by the address that its entry has.
            unsafe { &*(address as *const TableWords) }
        };
        let next = |entry: u64, index: usize| table(entry).0[index].load(Ordering::Relaxed);
        let slot = |index: usize| root[index].addr().as_u64();
        machine.enter(PfnRange::new(Pfn(513 * 512), Pfn(515 * 512)));
        let blocks = next(slot(256), 1);
        let leaf = |block: u64| block << 21 | PRESENT | WRITABLE | LARGE | NO_EXECUTE;
        assert_eq!([next(blocks, 0), next(blocks, 1), next(blocks, 2)], [0, leaf(513), leaf(514)]);
        assert!(machine.is_in_direct_map(Pfn(513 * 512)) && !machine.is_in_direct_map(Pfn(515 * 512)));

        let register = machine.map_registers(PhysAddr::new(0xfebf_0080)).addr().get() as u64;
        assert_eq!(register, WINDOWS + MAX_OPEN as u64 * 4096 + 0x80);
        let pages = next(next(slot(257), 0), 0);
        let wanted = 0xfebf_0000 | PRESENT | WRITABLE | UNCACHED | NO_EXECUTE;
        assert_eq!(next(pages, MAX_OPEN), wanted);
    }

    #[test]
    #[should_panic(expected = "outside of the direct map")]
    fn a_frame_outside_of_the_direct_map_is_no_table() {
        machine().0.store_entry(Pfn(7), 0, 1);
    }

    #[test]
    #[should_panic(expected = "ends at 2 GiB")]
    fn a_block_above_the_direct_map_is_refused_by_its_number() {
        machine().0.enter(PfnRange::new(Pfn(1024 * 512), Pfn(1025 * 512)));
    }

    #[test]
    fn a_few_translations_are_forgotten_one_by_one_and_many_at_once() {
        let start = VirtAddr(0x40_0000);
        let pages = |pages| addresses(Flush::Range { start, pages });
        assert!(pages(2).expect("few").eq([0x40_0000, 0x40_1000]));
        assert!(addresses(Flush::Blocks { start, blocks: 2 }).expect("few").eq([0x40_0000, 0x60_0000]));
        assert!(pages(MAX_PAGES + 1).is_none() && addresses(Flush::NonGlobal).is_none());
    }

    #[test]
    fn words_of_a_cpu_without_rdrand_differ() {
        static MAP: KernelMap<1> = KernelMap::new();
        let machine = OneCpu { map: &MAP, random: None };
        let words: [u64; 64] = core::array::from_fn(|_| machine.random_u64());
        assert!(!machine.is_seeded() && (1..64).all(|at| !words[..at].contains(&words[at])));
    }
}
