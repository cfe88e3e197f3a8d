//! From the PVH loader to the kernel's main, and the loader's information.
//!
//! `boot.s` turns on long mode, draws the image's slide, applies the relocations and enters
//! [`early`] in the high half with the first GiB identity-mapped. [`early`] copies the loader's
//! information, builds the final tables, moves the image to the frames that [`slide`] drew for it,
//! and calls `kernel_main`, which the image crate provides with [`crate::kernel_entry`].

use core::arch::global_asm;
use core::ops::Range;
use core::sync::atomic::Ordering;

use freehold_machine::{PAGE_SIZE, PAGEBLOCK_FRAMES, Pfn, PfnRange, PhysAddr, VirtAddr};

use crate::memory::{self, OutOfMemory, tables};
use crate::sync::{Once, SpinLock};
use crate::vmap;
use crate::{apic, cpu, irq, registers, serial, time, traps};

mod pvh;
mod slide;

/// The page allocator and the firmware's information are built by value on this stack, before there
/// is a heap.
const STACK_SIZE: usize = 128 << 10;
const IMAGE_BASE: u64 = 0xffff_ffff_8000_0000;
/// The loader's two tables of 2 MiB leaves that map the image, in consecutive pages, and the number
/// of leaves from the leaf of the first pageblock after the slide on (`boot.s`).
const IMAGE_DIRECTORIES: Pfn = Pfn(0x55);
const IMAGE_LEAVES: u64 = 8;
const LOADER_LEAF: u64 = tables::PRESENT | tables::WRITABLE | tables::LARGE;
const MAX_REGIONS: usize = 64;
const MAX_PLAIN: usize = 16;
const MAX_COMMAND_LINE: usize = 2048;

/// The type of a run of physical addresses, in the terms of the loader's (E820) map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// Memory for any use.
    Usable,
    /// ACPI tables; usable once the kernel has read them.
    AcpiReclaimable,
    /// Anything else.
    Reserved,
}

/// A run of physical addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRegion {
    /// The first byte.
    pub start: PhysAddr,
    /// Bytes.
    pub len: u64,
    /// The type of memory.
    pub kind: MemoryKind,
}

impl MemoryRegion {
    /// The whole frames inside.
    pub fn frames(&self) -> PfnRange {
        let first = self.start.0.div_ceil(PAGE_SIZE as u64);
        PfnRange::new(Pfn(first), Pfn(self.start.0.saturating_add(self.len) / PAGE_SIZE as u64))
    }
}

/// The loader's information, copied.
#[derive(Debug)]
pub struct BootInfo {
    command_line: [u8; MAX_COMMAND_LINE],
    command_line_len: usize,
    regions: [MemoryRegion; MAX_REGIONS],
    region_count: usize,
    /// Usable memory from 1 MiB on, the longest run first. The image is inside one of these runs
    /// and is checked separately: it does not split its run, so a window's check has fewer runs to
    /// visit.
    plain: [PfnRange; MAX_PLAIN],
    memory_end: Pfn,
    initrd: Option<(PhysAddr, u64)>,
    rsdp: Option<PhysAddr>,
    slide: u64,
    /// The image's place.
    image: PfnRange,
    entry_tsc: u64,
}

static INFO: Once<BootInfo> = Once::new();

/// Returns the loader's information.
///
/// # Panics
/// Before [`early`] has read it.
pub(crate) fn info() -> &'static BootInfo {
    INFO.get().expect("the loader's information is read first of all")
}

/// Virtual address of the image's first byte.
pub(crate) fn image_base() -> u64 {
    IMAGE_BASE.wrapping_add(slide())
}

/// Returns how far the image was moved, in bytes; 0 before the distance is known.
pub(crate) fn slide() -> u64 {
    INFO.get().map_or(0, |boot| boot.slide)
}

impl BootInfo {
    /// Returns the kernel command line, at most 2047 bytes; empty if the loader's is not UTF-8.
    pub fn command_line(&self) -> &str {
        core::str::from_utf8(&self.command_line[..self.command_line_len]).unwrap_or("")
    }
    /// Returns the physical address map, sorted.
    pub fn memory_map(&self) -> &[MemoryRegion] {
        &self.regions[..self.region_count]
    }
    /// Returns the initial RAM disk: its first byte and its number of bytes.
    pub fn initrd(&self) -> Option<(PhysAddr, u64)> {
        self.initrd
    }
    /// Returns the frames that the initial RAM disk touches.
    pub fn initrd_frames(&self) -> PfnRange {
        let Some((start, len)) = self.initrd else { return PfnRange::default() };
        let end = (start.0 + len).div_ceil(PAGE_SIZE as u64);
        PfnRange::new(Pfn::containing(start), Pfn(end))
    }
    /// Returns the address of ACPI's root pointer.
    pub fn rsdp(&self) -> Option<PhysAddr> {
        self.rsdp
    }
    /// Returns the frames of the kernel image, stack of start-up and zero-initialised data
    /// included.
    pub fn image(&self) -> PfnRange {
        self.image
    }
    /// Returns the pageblocks that hold a part of the image.
    pub(crate) fn image_blocks(&self) -> PfnRange {
        let image = self.image();
        PfnRange::new(image.start.pageblock_start(), Pfn(image.end.0.next_multiple_of(PAGEBLOCK_FRAMES)))
    }
    /// Returns the frames where the loader put the image: it runs there until the final tables are
    /// loaded.
    pub(crate) fn loaded_image(&self) -> PfnRange {
        ImageMap::loaded(self.slide).frames()
    }
    /// Returns the distance between the image's linked and its present address, in bytes: a
    /// multiple of 2 MiB.
    pub fn slide(&self) -> u64 {
        self.slide
    }
    /// Returns the time-stamp counter at the image's first instruction.
    pub fn entry_tsc(&self) -> u64 {
        self.entry_tsc
    }
    /// Returns the frame after the highest frame of usable memory.
    pub fn memory_end(&self) -> Pfn {
        self.memory_end
    }
    /// Returns the runs of usable memory, upwards.
    pub fn usable_ranges(&self) -> impl Iterator<Item = PfnRange> {
        self.memory_map().iter().filter(|r| r.kind == MemoryKind::Usable).map(MemoryRegion::frames)
    }
    pub(crate) fn is_usable(&self, range: PfnRange) -> bool {
        self.usable_ranges().any(|usable| usable.intersection(range) == range)
    }
    pub(crate) fn is_partly_usable(&self, range: PfnRange) -> bool {
        self.usable_ranges().any(|usable| !usable.intersection(range).is_empty())
    }
    /// Returns whether one of the bytes is in usable memory, or the range wraps around.
    pub(crate) fn touches_memory(&self, start: PhysAddr, len: u64) -> bool {
        let Some(end) = start.0.checked_add(len) else { return true };
        let usable = self.memory_map().iter().filter(|r| r.kind == MemoryKind::Usable);
        usable.into_iter().any(|r| start.0 < r.start.0 + r.len && r.start.0 < end)
    }
    /// Returns whether the frame is usable memory from 1 MiB on, outside the image.
    pub(crate) fn is_plain_memory(&self, frame: Pfn) -> bool {
        let mut runs = self.plain.iter().take_while(|range| !range.is_empty());
        runs.any(|range| range.contains(frame)) && !self.image.contains(frame)
    }
    /// Returns whether all of the frames are usable memory from 1 MiB on, outside the image, in one
    /// run.
    pub(crate) fn is_plain_run(&self, frames: PfnRange) -> bool {
        let holds = |range: &PfnRange| range.intersection(frames).len() == frames.len();
        let beside_image = frames.end <= self.image.start || frames.start >= self.image.end;
        beside_image && self.plain.iter().take_while(|range| !range.is_empty()).any(holds)
    }
    /// Draws the image's place. The memory map and the initial RAM disk are known already.
    fn place_image(&mut self) {
        let loaded = self.loaded_image();
        if self.command_line().split(' ').any(|parameter| parameter == "nokaslr") {
            self.image = loaded;
            return;
        }
        let is_usable = |run| self.is_usable(run);
        let random = crate::entropy::early()();
        let start = slide::place(loaded, is_usable, self.initrd_frames(), random);
        self.image = PfnRange::new(start, start.offset(loaded.len()));
    }
    fn find_plain_memory(&mut self) {
        let from_1_mib = PfnRange::new(Pfn(0x100), Pfn(u64::MAX));
        let mut plain = [PfnRange::default(); MAX_PLAIN];
        let runs = self.usable_ranges().map(|usable| from_1_mib.intersection(usable));
        for (slot, run) in plain.iter_mut().zip(runs.filter(|run| !run.is_empty())) {
            *slot = run;
        }
        plain.sort_unstable_by_key(|run| core::cmp::Reverse(run.len()));
        self.plain = plain;
    }
}

unsafe extern "C" {
    static __text_start: u8;
    static __text_end: u8;
    static __rodata_start: u8;
    static __rodata_end: u8;
    static __data_start: u8;
    static __image_end: u8;
}

/// Addresses of the image's parts.
pub(crate) struct ImageMap {
    /// The first frame of the text.
    first: Pfn,
}

impl ImageMap {
    /// The place after the final tables are loaded.
    pub(crate) const fn of(boot: &BootInfo) -> Self {
        Self { first: boot.image.start }
    }
    /// The place where the loader put the image.
    fn loaded(slide: u64) -> Self {
        Self { first: Pfn::containing(PhysAddr(&raw const __text_start as u64 - IMAGE_BASE - slide)) }
    }
    fn phys(&self, address: u64) -> Pfn {
        self.first.offset((address - &raw const __text_start as u64) / PAGE_SIZE as u64)
    }
    fn frames(&self) -> PfnRange {
        PfnRange::new(self.first, self.phys(&raw const __image_end as u64))
    }
    /// Calls `f` with each leaf of the image: its address, its first frame, and its bits. Text has
    /// pages of 2 MiB as far as it fills them; everything else has pages of 4 KiB. The guard page
    /// below the stack of start-up is left out.
    pub(crate) fn for_each_leaf(
        &self,
        mut f: impl FnMut(VirtAddr, Pfn, u64) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        let guard = &raw const STACK as u64;
        let (text, rodata) = read_only_parts();
        const LARGE: u64 = PAGEBLOCK_FRAMES * PAGE_SIZE as u64;
        let small = text.end / LARGE * LARGE;
        for address in (text.start..small).step_by(LARGE as usize) {
            f(VirtAddr(address), self.phys(address), tables::TEXT | tables::LARGE)?;
        }
        let data = &raw const __data_start as u64..&raw const __image_end as u64;
        let parts = [(small..text.end, tables::TEXT), (rodata, tables::READ_ONLY), (data, tables::DATA)];
        for (part, flags) in parts {
            for address in part.step_by(PAGE_SIZE) {
                if address != guard {
                    f(VirtAddr(address), self.phys(address), flags)?;
                }
            }
        }
        Ok(())
    }
}

/// Loads the final tables with the root `root` and continues in the frames that were drawn for the
/// image. The image is copied there in its present state: text, data, and the stack that runs this
/// code.
///
/// # Safety
/// The loader's tables are loaded, with the first GiB identity-mapped, and interrupts are off. The
/// tables below `root` map the image's pages to the frames that were drawn, and everything else
/// that Rust code uses from now on.
pub(crate) unsafe fn enter_final_place(root: Pfn) {
    let boot = info();
    let (from, to) = (boot.loaded_image(), boot.image());
    let words = if from.start == to.start { 0 } else { from.len() * PAGE_SIZE as u64 / 8 };
    // SAFETY: the caller's promise. Both runs are memory below 1 GiB and do not overlap, and the
    // second has no owner. Between the copy and the new root no instruction writes to the image.
    unsafe { registers::copy_and_write_cr3(from.start.start().0, to.start.start().0, words, root.start().0) };
}

/// Lets the loader's tables, which the other CPUs use when they start, map the image at its present
/// place. The direct map exists already.
pub(crate) fn move_loader_mappings() {
    let boot = info();
    let to = boot.image().start;
    let first = boot.slide / (PAGEBLOCK_FRAMES * PAGE_SIZE as u64) + 1;
    for leaf in 0..IMAGE_LEAVES {
        let (table, index) = ((first + leaf) / PAGEBLOCK_FRAMES, (first + leaf) % PAGEBLOCK_FRAMES);
        let entry = tables::entry(IMAGE_DIRECTORIES.offset(table), index as usize);
        let value = tables::leaf(to.offset(leaf * PAGEBLOCK_FRAMES), LOADER_LEAF);
        entry.store(value, Ordering::Relaxed);
    }
}

/// Text and read-only data of the image, in whole pages. Text begins at a border of 2 MiB;
/// read-only data follows it.
pub(crate) fn read_only_parts() -> (Range<u64>, Range<u64>) {
    (
        &raw const __text_start as u64..&raw const __text_end as u64,
        &raw const __rodata_start as u64..&raw const __rodata_end as u64,
    )
}

/// The frames of the image's text and read-only data.
pub(crate) fn read_only_frames() -> PfnRange {
    let (text, rodata) = read_only_parts();
    let first = info().image().start;
    PfnRange::new(first, first.offset((rodata.end - text.start).div_ceil(PAGE_SIZE as u64)))
}

/// Returns the bytes of the initial RAM disk, read-only. The first call maps them. It must come
/// before [`release_initrd`].
///
/// # Errors
/// If there is no memory for the tables.
pub fn initrd() -> Result<&'static [u8], OutOfMemory> {
    let Some((start, len)) = info().initrd else { return Ok(&[]) };
    let mut mapped = INITRD.lock();
    let address = match *mapped {
        Initrd::Mapped(address) => address,
        Initrd::Fresh => vmap::map_range(start, len, tables::READ_ONLY)?,
        Initrd::Released => return Ok(&[]),
    };
    *mapped = Initrd::Mapped(address);
    // SAFETY: just mapped for reading, its frames are reserved, and `release_initrd` demands that
    // no code reads them any more.
    Ok(unsafe { core::slice::from_raw_parts(address.0 as *const u8, len as usize) })
}

enum Initrd {
    Fresh,
    Mapped(VirtAddr),
    Released,
}

static INITRD: SpinLock<Initrd> = SpinLock::new(Initrd::Fresh);

/// Unmaps the initial RAM disk and returns its frames, for the page allocator. A later access to a
/// slice of [`initrd`] is a page fault that is reported.
pub fn release_initrd() -> PfnRange {
    let mut mapped = INITRD.lock();
    let frames = info().initrd_frames();
    match core::mem::replace(&mut *mapped, Initrd::Released) {
        Initrd::Fresh => frames,
        Initrd::Mapped(address) => {
            drop(mapped);
            vmap::unmap(address.page_start(), frames.len());
            frames
        }
        Initrd::Released => PfnRange::default(),
    }
}

/// The stack of start-up; its lowest page is never mapped.
#[repr(C, align(4096))]
struct BootStack([u8; STACK_SIZE]);

static mut STACK: BootStack = BootStack([0; STACK_SIZE]);

#[cfg(target_os = "none")]
global_asm!(
    include_str!("boot.s"),
    stack = sym STACK,
    stack_size = const STACK_SIZE,
    early = sym early,
    virtual_slide = sym slide::virtual_slide,
    image_leaves = const IMAGE_LEAVES,
);

unsafe extern "Rust" {
    /// Provided by the image crate through [`crate::kernel_entry`].
    safe fn freehold_kernel_main(boot: &'static BootInfo) -> !;
}

/// Names the function that start-up ends in: `kernel_entry!(main)` where `fn main(&'static
/// BootInfo) -> !`.
#[macro_export]
macro_rules! kernel_entry {
    ($main:path) => {
        #[unsafe(no_mangle)]
        fn freehold_kernel_main(boot: &'static $crate::boot::BootInfo) -> ! {
            $main(boot)
        }
    };
}

/// The first Rust code: on the boot stack, relocated, first GiB identity-mapped, interrupts off.
extern "C" fn early(start_info: u64, slide: u64, entry_tsc: u64) -> ! {
    cpu::adopt_first();
    time::count_from(entry_tsc);
    serial::init();
    let boot = INFO.set(pvh::read(PhysAddr(start_info), slide, entry_tsc));
    cpu::enable_features();
    memory::build(boot, &ImageMap::of(boot));
    traps::write_idt();
    apic::init();
    cpu::init_this(0);
    irq::quiet_legacy();
    freehold_kernel_main(boot)
}
