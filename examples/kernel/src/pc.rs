//! QEMU's PC: its memory, the kernel's page tables and heap, the serial port, and the end.

use core::arch::global_asm;
use core::fmt;

use freehold_adapters::{EarlyHeap, KernelMap, OneCpu};
use freehold_machine::{NodeId, Pfn, PfnRange, Topology, VirtAddr};
use x86_64::PhysAddr;
use x86_64::instructions::{hlt, port::Port, tlb};
use x86_64::structures::paging::PageTable;

/// The hardware's traits on one CPU. The direct map is for memory below 1 GiB.
pub type Machine = OneCpu<1>;
static MAP: KernelMap<1> = KernelMap::new();

#[global_allocator]
static HEAP: EarlyHeap<{ 2 << 20 }> = EarlyHeap::new();

/// The address of the first byte of memory. The image is in the first 16 MiB, and nothing else is.
const BASE: u64 = 0xffff_ffff_8000_0000;
/// One past the last frame of the image, which contains the heap.
pub const END_OF_IMAGE: Pfn = Pfn(16 << 8);

global_asm!(include_str!("boot.s"), start = sym crate::start, options(att_syntax));
unsafe extern "C" {
    static mut root_table: PageTable;
}

/// Returns the first root, whose upper half is that of every root.
pub fn kernel_root() -> Pfn {
    Pfn((&raw const root_table as u64 - BASE) >> 12)
}

/// Returns memory from 1 MiB on, by the PVH start info (Xen's arch-x86/hvm/start_info.h).
pub fn memory(start_info: u64) -> Topology {
    // SAFETY: the loader's data are in the first 16 MiB, which are mapped at BASE.
    let word = |address: u64| unsafe { ((BASE + address) as *const u64).read_unaligned() };
    assert!(word(start_info) as u32 == 0x336e_c578, "the loader gave no PVH start info");
    let mut topology = Topology::new(1).expect("one node");
    for index in 0..u64::from(word(start_info + 48) as u32) {
        let entry = word(start_info + 40) + index * 24;
        let (start, bytes, kind) = (word(entry), word(entry + 8), word(entry + 16) as u32);
        if kind == 1 && start >= 1 << 20 {
            let frames = PfnRange::new(Pfn(start.div_ceil(4096)), Pfn((start + bytes) / 4096));
            topology.add_range(frames, NodeId(0)).expect("a few ranges");
        }
    }
    topology
}

/// Unmaps the lower half, and adds the tables of the direct map and of windows.
pub fn machine() -> Machine {
    // SAFETY: this is the only reference to the table of boot.s.
    let root = unsafe { &mut *(&raw mut root_table) };
    root[0].set_unused();
    tlb::flush_all();
    // SAFETY: the root is loaded, the image is at BASE, and no other CPU was started.
    unsafe { MAP.link(root, |address| PhysAddr::new(address.0 - BASE)) }
}

/// Stores a value with the CPU through the loaded root.
pub fn store_at(address: VirtAddr, value: u64) {
    // SAFETY: the caller has mapped a page of its own there.
    unsafe { (address.0 as *mut u64).write_volatile(value) }
}

/// Ends QEMU by its device isa-debug-exit: with status 33 if there was no fault, else 35.
pub fn exit(faults: u64) -> ! {
    // SAFETY: the device's port. The status is twice this value, plus 1.
    unsafe { Port::new(0xf4).write(if faults == 0 { 16_u32 } else { 17 }) };
    loop {
        hlt();
    }
}

/// The first serial port.
pub struct Serial;

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: bytes for the transmitter, which QEMU always takes.
        text.bytes().for_each(|byte| unsafe { Port::new(0x3f8).write(byte) });
        Ok(())
    }
}

macro_rules! println {
    ($($text:tt)*) => {{
        use core::fmt::Write as _;
        _ = writeln!($crate::pc::Serial, $($text)*);
    }};
}
pub(crate) use println;

#[panic_handler]
fn panicked(info: &core::panic::PanicInfo) -> ! {
    println!("{info}");
    exit(1)
}
