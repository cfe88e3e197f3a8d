//! The hardware's side: `machine`'s traits on one x86-64 CPU, the serial port, the heap.
//!
//! The top half of addresses has three parts: the image at BASE; the direct map, whose pageblocks
//! enter and leave; windows, which show a frame for the time of one closure. No interrupt is ever
//! enabled, so the CPU is always pinned.

use core::alloc::{GlobalAlloc, Layout};
use core::arch::{asm, global_asm};
use core::fmt;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use freehold_machine::entry::{LARGE, NO_EXECUTE, PRESENT, UNCACHED, WRITABLE};
use freehold_machine::{
    CpuId, CpuSet, Cpus, DirectMap, Entropy, Flush, Machine, NodeId, PAGE_SIZE, PAGEBLOCK_FRAMES, Pfn,
    PfnRange, PhysicalBytes, TABLE_ENTRIES, Tables, Tlb, Topology, VirtAddr,
};

const BASE: u64 = 0xffff_ffff_8000_0000;
const DIRECT: u64 = 0xffff_8000_0000_0000;
const WINDOWS: u64 = 0xffff_8080_0000_0000;
/// Number of windows that may be open at once; registers of devices are mapped after them.
const MOST_WINDOWS: usize = 8;
/// 1 GiB: the span of one table of 2 MiB pages.
pub const MOST_FRAMES: usize = 512 * PAGEBLOCK_FRAMES as usize;

global_asm!(include_str!("boot.s"), start = sym crate::start, options(att_syntax));

#[repr(C, align(4096))]
struct Table([AtomicU64; TABLE_ENTRIES]);

impl Table {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; TABLE_ENTRIES])
    }
    fn set(&self, index: usize, entry: u64) {
        self.0[index].store(entry, Ordering::Release);
    }
    /// Returns the entry for the table above this one, which is the image's.
    fn link(&self) -> u64 {
        (&raw const *self as u64 - BASE) | PRESENT | WRITABLE
    }
}

unsafe extern "C" {
    static root_table: Table;
    static pages_table: Table;
    static end_of_image: u8;
}

static DIRECT_TABLES: [Table; 2] = [const { Table::new() }; 2];
static WINDOW_TABLES: [Table; 3] = [const { Table::new() }; 3];
static OPEN: AtomicUsize = AtomicUsize::new(0);

fn boot_tables() -> (&'static Table, &'static Table) {
    // SAFETY: tables of boot.s, which are never freed; words of them are changed as atomics only.
    unsafe { (&root_table, &pages_table) }
}

/// Returns the table whose upper half every root copies.
pub fn boot_root() -> Pfn {
    Pfn(boot_tables().0.link() >> 12)
}

/// Returns one past the image's last frame.
pub fn image_end() -> Pfn {
    Pfn((&raw const end_of_image as u64 - BASE) >> 12)
}

/// Returns the frame of a byte of the image, which contains the heap.
pub fn frame_of(byte: *const u8) -> Pfn {
    Pfn((byte as u64 - BASE) >> 12)
}

/// Returns usable memory from 1 MiB on, from the PVH start info (Xen's
/// public/arch-x86/hvm/start_info.h). Called before [`start`].
pub fn topology(start_info: u64) -> Topology {
    // SAFETY: the loader's data are in the first GiB, which is mapped at BASE, and not written.
    let word = |address: u64| unsafe { ((BASE + address) as *const u64).read_unaligned() };
    assert!(word(start_info) as u32 == 0x336e_c578, "the loader gave no PVH start info");
    let mut topology = Topology::new(1).expect("one node");
    for entry in (0..u64::from(word(start_info + 48) as u32)).map(|at| word(start_info + 40) + at * 24) {
        let (start, end) = (word(entry).div_ceil(4096), (word(entry) + word(entry + 8)) / 4096);
        let frames = PfnRange::new(Pfn(start.max(256)), Pfn(end.min(MOST_FRAMES as u64)));
        if word(entry + 16) as u32 == 1 && !frames.is_empty() {
            topology.add_range(frames, NodeId(0)).expect("a few ranges");
        }
    }
    topology
}

/// Unmaps everything except the image, and makes the tables of the direct map and of windows.
pub fn start() {
    let (root, pages) = boot_tables();
    root.set(256, DIRECT_TABLES[0].link());
    DIRECT_TABLES[0].set(0, DIRECT_TABLES[1].link());
    root.set(257, WINDOW_TABLES[0].link());
    WINDOW_TABLES[0].set(0, WINDOW_TABLES[1].link());
    WINDOW_TABLES[1].set(0, WINDOW_TABLES[2].link());
    root.set(0, 0);
    let image = 1..image_end().0.div_ceil(PAGEBLOCK_FRAMES) as usize;
    (0..TABLE_ENTRIES).filter(|block| !image.contains(block)).for_each(|block| pages.set(block, 0));
    Hardware.flush_local(Flush::All);
}

/// Returns whether the direct map shows the frame.
pub fn is_in_direct_map(frame: Pfn) -> bool {
    DIRECT_TABLES[1].0[(frame.0 / PAGEBLOCK_FRAMES) as usize].load(Ordering::Acquire) != 0
}

/// Maps registers of a device.
pub fn map_registers(physical: u64) -> *mut u64 {
    let leaf = physical | PRESENT | WRITABLE | UNCACHED | NO_EXECUTE;
    WINDOW_TABLES[2].set(MOST_WINDOWS, leaf);
    (WINDOWS + (MOST_WINDOWS * PAGE_SIZE) as u64) as *mut u64
}

/// Stores a value with the CPU through the loaded root.
pub fn store_at(address: VirtAddr, value: u64) {
    // SAFETY: the caller has mapped a page of its own there.
    unsafe { (address.0 as *mut u64).write_volatile(value) }
}

fn forget_page(address: u64) {
    // SAFETY: flushing a translation changes no memory.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) }
}

/// The machine: one CPU, one node.
#[derive(Clone, Copy, Debug)]
pub struct Hardware;

impl Cpus for Hardware {
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

impl Hardware {
    fn word(self, table: Pfn, index: usize) -> &'static AtomicU64 {
        assert!(is_in_direct_map(table) && index < TABLE_ENTRIES, "{table:?} is no table in the direct map");
        // SAFETY: mapped, as the check above has shown, and its owner uses the frame as a table:
        // atomic words.
        unsafe { &*((DIRECT + table.start().0 + 8 * index as u64) as *const AtomicU64) }
    }
}

impl Tables for Hardware {
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

impl Tlb for Hardware {
    fn flush_local(self, what: Flush) {
        match what {
            Flush::Range { start, pages } => (0..pages).for_each(|page| forget_page(start.0 + page * 4096)),
            Flush::Blocks { start, blocks } => {
                (0..blocks).for_each(|block| forget_page(start.0 + (block << 21)))
            }
            // No translation here is global.
            Flush::NonGlobal | Flush::All => self.load_root(self.current_root()),
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
        // SAFETY: every root has the boot root's upper half, with everything that the kernel uses.
        unsafe { asm!("mov cr3, {}", in(reg) root.start().0, options(nostack, preserves_flags)) }
    }
    fn current_root(self) -> Pfn {
        let root: u64;
        // SAFETY: reading the register changes nothing.
        unsafe { asm!("mov {}, cr3", out(reg) root, options(nomem, nostack, preserves_flags)) }
        Pfn(root >> 12)
    }
}

impl PhysicalBytes for Hardware {
    fn with_bytes<R>(self, frame: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        let window = OPEN.fetch_add(1, Ordering::Relaxed);
        assert!(window < MOST_WINDOWS, "too many windows");
        let address = WINDOWS + (window * PAGE_SIZE) as u64;
        WINDOW_TABLES[2].set(window, frame.start().0 | PRESENT | WRITABLE | NO_EXECUTE);
        // SAFETY: mapped for the time of the closure; the frame is the caller's, and this window
        // the only way to it.
        let result = f(unsafe { &mut *(address as *mut [u8; PAGE_SIZE]) });
        WINDOW_TABLES[2].set(window, 0);
        forget_page(address);
        OPEN.fetch_sub(1, Ordering::Relaxed);
        result
    }
}

impl DirectMap for Hardware {
    fn enter(self, blocks: PfnRange) {
        for block in blocks.start.0 / PAGEBLOCK_FRAMES..blocks.end.0 / PAGEBLOCK_FRAMES {
            DIRECT_TABLES[1].set(block as usize, block << 21 | PRESENT | WRITABLE | LARGE | NO_EXECUTE);
        }
    }
    fn leave(self, blocks: PfnRange) {
        for block in blocks.start.0 / PAGEBLOCK_FRAMES..blocks.end.0 / PAGEBLOCK_FRAMES {
            DIRECT_TABLES[1].set(block as usize, 0);
            forget_page(DIRECT + (block << 21));
        }
    }
}

impl Entropy for Hardware {
    /// Returns the mixed time stamp (SplitMix64): good enough to choose frames, and not seeded.
    fn random_u64(self) -> u64 {
        static STATE: AtomicU64 = AtomicU64::new(0);
        // SAFETY: reading the time stamp changes nothing.
        let time = unsafe { core::arch::x86_64::_rdtsc() };
        let mut word = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed) ^ time;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }
    fn is_seeded(self) -> bool {
        false
    }
}

impl Machine for Hardware {
    fn node_count(self) -> usize {
        1
    }
}

/// Writes to an I/O port.
pub fn port_write(port: u16, value: u32) {
    // SAFETY: the serial port, QEMU's exit and the PCI configuration; none of them writes memory.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags)) }
}

/// Reads an I/O port.
pub fn port_read(port: u16) -> u32 {
    let value;
    // SAFETY: as above.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nomem, nostack, preserves_flags)) }
    value
}

/// QEMU's device isa-debug-exit ends QEMU with status 2 × this + 1.
pub const SUCCESS: u32 = 0x10;
/// See [`SUCCESS`].
pub const FAILURE: u32 = 0x11;

pub fn exit(status: u32) -> ! {
    loop {
        port_write(0xf4, status);
    }
}

/// The first serial port.
pub struct Serial;

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: a byte for the transmitter, which QEMU always takes.
            unsafe {
                asm!("out dx, al", in("dx") 0x3f8_u16, in("al") byte, options(nomem, nostack, preserves_flags))
            }
        }
        Ok(())
    }
}

macro_rules! println {
    ($($text:tt)*) => {{
        use core::fmt::Write as _;
        let _ = writeln!($crate::hardware::Serial, $($text)*);
    }};
}
pub(crate) use println;

#[panic_handler]
fn panicked(info: &core::panic::PanicInfo) -> ! {
    println!("{info}");
    exit(FAILURE)
}

/// A heap that never frees: objects of this kernel live for ever, or are small.
struct Heap;

const HEAP_BYTES: usize = 2 << 20;

#[repr(C, align(4096))]
struct HeapBytes(core::cell::UnsafeCell<[u8; HEAP_BYTES]>);
// SAFETY: each byte is given out once, to one owner.
unsafe impl Sync for HeapBytes {}

static BYTES: HeapBytes = HeapBytes(core::cell::UnsafeCell::new([0; HEAP_BYTES]));
static USED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static HEAP: Heap = Heap;

// SAFETY: blocks are disjoint and aligned, since the whole is aligned to a page and no layout here
// asks for more.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let place = |used: usize| {
            let start = used.next_multiple_of(layout.align());
            Some(start + layout.size()).filter(|&end| end <= HEAP_BYTES && layout.align() <= 4096)
        };
        match USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, place) {
            // SAFETY: `place` has seen that the block ends within the bytes.
            Ok(used) => unsafe { BYTES.0.get().cast::<u8>().add(used.next_multiple_of(layout.align())) },
            Err(_) => core::ptr::null_mut(),
        }
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
