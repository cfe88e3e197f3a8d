//! The kernel half of every address space, and the source of its frames.
//!
//! Order of start-up: the loader's identity map → [`build`] (final tables: image W^X, direct map,
//! windows) → [`frame_table`] → [`seal`] → the page allocator is set up → [`set_frame_provider`].
//! Until the last step frames come from start-up's own bump allocator.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::topology::{MAX_NODES, MemoryRange};
use freehold_machine::{
    NodeId, PAGE_SIZE, PAGEBLOCK_FRAMES, Pfn, PfnRange, TABLE_ENTRIES, Tables, Topology, VirtAddr,
};
use zerocopy::{FromBytes, FromZeros};

use crate::boot::{self, BootInfo};
use crate::sync::Once;
use crate::{X86, traps, vmap};

mod block_window;
pub(crate) mod boot_frames;
pub(crate) mod constants;
pub(crate) mod direct;
mod kernel_pages;
pub(crate) mod layout;
pub(crate) mod patching;
pub mod pluggable;
pub mod replica;
mod runs;
pub(crate) mod tables;
pub(crate) mod windows;
pub(crate) mod wiping;

pub use constants::BootValue;
pub use direct::{MapFigures, figures as map_figures};
pub use kernel_pages::KernelPages;
use layout::VirtualLayout;
use tables::{DATA, LARGE, READ_ONLY, leaf};
pub use windows::{
    close_as, forget_closed, lend, map_rules, policy, refused as refused_windows, set_policy, take_back,
    totals as window_totals, use_frame_table,
};

/// There is not enough memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory")
    }
}

impl core::error::Error for OutOfMemory {}

/// The source of kernel frames once the page allocator works. Called with preemption and interrupts
/// on and no lock held, so that it may move a pageblock into or out of the direct map, flush and
/// reclaim. It must not block.
pub trait FrameProvider: Sync {
    /// 2^`order` kernel-side frames (in the direct map), aligned to that, with any content.
    fn alloc(&self, order: u32) -> Option<Pfn>;
    /// The same, from `node` if it has them, else from the nearest node that does.
    fn alloc_near(&self, node: NodeId, order: u32) -> Option<Pfn>;
    /// A frame for a kernel stack, outside the direct map, with any content, from `node` if it has
    /// one, else from the nearest node that does.
    fn alloc_stack(&self, node: NodeId) -> Option<Pfn>;
    /// Takes back frames that one of the other functions returned. Frames of start-up, which are
    /// reserved, stay so.
    fn free(&self, first: Pfn, order: u32);
    /// The same for a frame of a stack.
    fn free_stack(&self, frame: Pfn);
}

static LAYOUT: Once<VirtualLayout> = Once::new();
static PROVIDER: Once<&'static dyn FrameProvider> = Once::new();
static RESERVED: Once<Reserved> = Once::new();
static FRAME_TABLE: Once<FrameTableBase> = Once::new();

/// The two parts of the frame table, and the frames that its holes share.
struct FrameTableBase {
    parts: [TablePart; 2],
    /// The page of records that holes share, all zero.
    zero_page: Pfn,
    /// A table whose entries all point to that page.
    zero_table: Option<Pfn>,
}

/// A part of the frame table: one array of records.
#[derive(Clone, Copy)]
struct TablePart {
    base: u64,
    /// Bytes of a record.
    record: u64,
}

impl TablePart {
    /// Describes part number `index`, with records of type `T`.
    fn of<T>(index: u64) -> Self {
        let record = size_of::<T>();
        assert!(record >= 8 && PAGE_SIZE.is_multiple_of(record), "{record} bytes do not divide a page");
        Self { base: layout().frame_table + index * layout::FRAME_TABLE_PART, record: record as u64 }
    }
}

const MAX_RESERVED: usize = 80;
// Start-up's, nodes', the first MiB, the image and the initial RAM disk.
const _: () = assert!(MAX_RESERVED >= boot_frames::MAX_RUNS + MAX_NODES + 3);

struct Reserved {
    ranges: [PfnRange; MAX_RESERVED],
    count: usize,
}

pub(crate) fn layout() -> &'static VirtualLayout {
    LAYOUT.get().expect("set before the first use of the direct map")
}

/// Whether the direct map maps this frame.
pub fn is_in_direct_map(frame: Pfn) -> bool {
    is_within_memory(frame) && direct::contains(frame)
}

crate::boot_value! {
    /// One past the highest frame of memory, at a place that the checks of hot paths can read
    /// cheaply.
    static MEMORY_END: u64 = 0;
}

/// Whether the frame is below the end of memory, so that it has a place in the direct map's area.
#[inline]
pub(crate) fn is_within_memory(frame: Pfn) -> bool {
    frame.0 < MEMORY_END.get()
}

/// Returns an entry of a table that the caller names.
///
/// # Panics
/// If the table is not below the end of memory, or `index` is not below 512.
#[inline]
fn checked_entry(table: Pfn, index: usize) -> &'static AtomicU64 {
    &checked_entries(table)[index]
}

/// Returns the entries of a table that the caller names.
///
/// # Panics
/// If the table is not below the end of memory.
#[inline]
fn checked_entries(table: Pfn) -> &'static [AtomicU64; TABLE_ENTRIES] {
    if !is_within_memory(table) {
        no_table(table);
    }
    tables::entries(table)
}

#[cold]
fn no_table(table: Pfn) -> ! {
    panic!("{table:?} is no translation table")
}

/// Builds the final tables of the kernel half in boot memory and loads them instead of the
/// loader's.
///
/// # Panics
/// If memory does not suffice even for that.
pub(crate) fn build(boot: &'static BootInfo, image: &boot::ImageMap) {
    let mut random = crate::entropy::early();
    let layout = layout::choose(&mut random, boot.memory_end().start().0 + layout::PLUGGABLE_SPAN);
    LAYOUT.set(layout);
    crate::heap::shuffle(random());
    vmap::shift(random);
    MEMORY_END.set_unprotected(boot.memory_end().0);
    let mut alloc = || boot_frames::take(0);
    let built = (|| {
        let root = alloc().ok_or(OutOfMemory)?;
        tables::clear(root);
        tables::set_root(root);
        image.for_each_leaf(|address, frame, flags| {
            let level = if flags & LARGE != 0 { 2 } else { 1 };
            tables::map_leaf(address, level, leaf(frame, flags), &mut || boot_frames::take(0))
        })?;
        windows::prepare(&mut alloc)?;
        for area in [layout.frame_table, layout.dynamic] {
            tables::table_at(VirtAddr(area), 3, &mut alloc)?;
        }
        direct::prepare(boot, layout.direct_map)
    })();
    assert!(built.is_ok(), "too little memory for the kernel's page tables");
    let root = tables::root();
    // Set while it can be written: it is read-only data of the final tables.
    tables::set_direct_base(layout.direct_map);
    // SAFETY: the loader's tables are loaded. The new root maps the image, this stack and all boot
    // memory at the addresses in use, except for the identity map. `set_direct_base` has named the
    // direct map in its place, and no frame is accessed in between.
    unsafe { boot::enter_final_place(root) };
    boot::move_loader_mappings();
}

/// One past the last frame that has a record.
pub(crate) fn frame_table_end() -> Pfn {
    boot::info().memory_end().max(pluggable::end())
}

/// Maps the frame table. For each frame from 0 to the end of memory, memory that may be plugged in
/// included, it has a record and a companion record, each in an array of its own. Start-up does not
/// clear them: the page allocator writes a pageblock's records when it first hands the block out.
/// The records of frames without memory, or without memory yet, are read-only copies of one zero
/// page. A write to them is a fault that is reported.
///
/// The records of a node's frames are on the node, if that has 64 MiB at least and `topology`
/// tells that a page of records is for this node alone.
///
/// # Errors
/// When boot memory does not suffice.
///
/// # Panics
/// When called twice, after [`seal`], or for records that do not divide a page or are shorter than
/// 8 bytes.
pub fn frame_table<T: FromBytes + Sync, U: FromBytes + Sync>(
    topology: &Topology,
) -> Result<(&'static [T], &'static [U]), OutOfMemory> {
    let parts = [TablePart::of::<T>(0), TablePart::of::<U>(1)];
    let count = frame_table_end().0;
    let zero_page = zeroed(0)?;
    let mut zero_table = None;
    for part in parts {
        map_part(part, count, topology, (zero_page, &mut zero_table))?;
    }
    FRAME_TABLE.set(FrameTableBase { parts, zero_page, zero_table });
    let [first, second] = parts;
    // SAFETY: the part from `base` on was mapped for `count` records without a gap, aligned to a
    // page, holds bytes of some kind (any are a valid T), is never unmapped, and handed out once:
    // only shared references exist. The records of a pageblock that is added or removed become
    // zeroes at a time when no code uses them.
    let records = unsafe { core::slice::from_raw_parts(first.base as *const T, count as usize) };
    // SAFETY: as above, for the other part.
    let others = unsafe { core::slice::from_raw_parts(second.base as *const U, count as usize) };
    Ok((records, others))
}

/// Maps `count` records of a part of the frame table.
fn map_part(
    part: TablePart,
    count: u64,
    topology: &Topology,
    (zero_page, zero_table): (Pfn, &mut Option<Pfn>),
) -> Result<(), OutOfMemory> {
    let boot = boot::info();
    let per_page = PAGE_SIZE as u64 / part.record;
    let per_block = per_page * PAGEBLOCK_FRAMES;
    let mut first = 0;
    while first < count {
        let address = VirtAddr(part.base + first * part.record);
        let covered = PfnRange::new(Pfn(first), Pfn(first + per_block));
        let large = if !first.is_multiple_of(per_block) {
            None
        } else if is_mostly_usable(covered) && is_on_one_node(topology, covered) {
            Some(leaf(untouched(home_of(topology, covered), 9)?, DATA | LARGE))
        } else if !boot.is_partly_usable(covered) {
            Some(tables::link(shared_table(zero_table, zero_page)?))
        } else {
            None
        };
        if let Some(value) = large {
            let table = tables::table_at(address, 2, &mut || alloc_frames(0))?;
            X86.store_entry(table, tables::index_at(address, 2), value);
            first += per_block;
            continue;
        }
        let covered = PfnRange::new(Pfn(first), Pfn(first + per_page));
        let value = if boot.is_partly_usable(covered) {
            leaf(untouched(home_of(topology, covered), 0)?, DATA)
        } else {
            leaf(zero_page, READ_ONLY)
        };
        tables::map_page(address, value, &mut || alloc_frames(0))?;
        first += per_page;
    }
    Ok(())
}

/// Whether nearly all of these frames are memory, and the others never will be. Then one page of 2
/// MiB holds the records of all. That takes one table entry instead of 512, and one TLB entry.
fn is_mostly_usable(frames: PfnRange) -> bool {
    let usable: u64 = boot::info().usable_ranges().map(|range| range.intersection(frames).len()).sum();
    usable >= frames.len() / 8 * 7 && !pluggable::is_possible_in(frames)
}

/// Smallest number of frames of a node that keeps the records of its frames: 64 MiB. Blocks that
/// hold a part of them are not for programs.
const LEAST_NEAR: u64 = 64 << 8;

/// Whether no two nodes have memory among these frames.
fn is_on_one_node(topology: &Topology, frames: PfnRange) -> bool {
    let mut nodes = topology
        .boot_ranges()
        .filter(|range| !range.frames.intersection(frames).is_empty())
        .map(|range| range.node);
    nodes.next().is_none_or(|first| nodes.all(|node| node == first))
}

/// Returns the memory of the node of these frames, if records of them belong there and not to
/// start-up's other frames: start-up takes the lowest memory.
fn home_of(topology: &Topology, frames: PfnRange) -> Option<MemoryRange> {
    let ranges = || topology.boot_ranges();
    let home = ranges().find(|range| !range.frames.intersection(frames).is_empty())?;
    let is_first = ranges().next().is_none_or(|first| first.node == home.node);
    let size: u64 = ranges().filter(|range| range.node == home.node).map(|range| range.frames.len()).sum();
    (!is_first && size >= LEAST_NEAR).then_some(*home)
}

/// Returns an array of zeroes for ever, for tables that grow with memory. Short arrays are in the
/// direct map, long ones in 2 MiB pages of their own. Eight bytes cost one instruction. Call it
/// before [`seal`].
///
/// # Errors
/// If boot memory does not suffice.
pub fn boot_zeroes<T: FromZeros + Sync>(count: usize) -> Result<&'static [T], OutOfMemory> {
    const { assert!(align_of::<T>() <= PAGE_SIZE) };
    let block = PAGEBLOCK_FRAMES * PAGE_SIZE as u64;
    let bytes = (count * size_of::<T>()) as u64;
    if bytes <= block / 2 {
        let frames = zeroed(tables::pages(bytes).next_power_of_two().trailing_zeros())?;
        // SAFETY: frames of start-up are in the direct map for ever; these are the caller's alone,
        // aligned to a page, hold as many bytes, and were just filled with zeroes, which are a T.
        return Ok(unsafe { core::slice::from_raw_parts(tables::frame_ptr(frames) as *const T, count) });
    }
    let blocks = bytes.div_ceil(block);
    let start = vmap::take_addresses(blocks * block, block)?;
    for address in (0..blocks).map(|index| VirtAddr(start.0 + index * block)) {
        let frames = zeroed(9)?;
        let table = tables::table_at(address, 2, &mut || alloc_frames(0))?;
        X86.store_entry(table, tables::index_at(address, 2), leaf(frames, DATA | LARGE));
    }
    // SAFETY: just mapped without a gap, aligned to 2 MiB, filled with zeroes, which are a T, never
    // unmapped, and handed out once.
    Ok(unsafe { core::slice::from_raw_parts(start.0 as *const T, count) })
}

/// Returns the table whose entries all point to `page`, made at the first call.
fn shared_table(table: &mut Option<Pfn>, page: Pfn) -> Result<Pfn, OutOfMemory> {
    if let Some(table) = *table {
        return Ok(table);
    }
    let fresh = alloc_frames(0).ok_or(OutOfMemory)?;
    tables::entries(fresh).iter().for_each(|entry| entry.store(leaf(page, READ_ONLY), Ordering::Relaxed));
    Ok(*table.insert(fresh))
}

/// Takes 2^`order` boot frames, from `home` if possible, without clearing them. With the kernel's
/// self-checks on, each begins with a value that is invalid as a record.
fn untouched(home: Option<MemoryRange>, order: u32) -> Result<Pfn, OutOfMemory> {
    let near = home.and_then(|home| boot_frames::take_near(&home, order));
    let first = near.or_else(|| alloc_frames(order)).ok_or(OutOfMemory)?;
    #[cfg(feature = "entry-checks")]
    for frame in PfnRange::new(first, first.offset(1 << order)).iter() {
        // The value reads as a free frame with a holder: the audit finds code that uses such a
        // record.
        tables::entry(frame, 0).store(!0xf, Ordering::Relaxed);
    }
    Ok(first)
}

/// 2^`order` boot frames of zeroes.
fn zeroed(order: u32) -> Result<Pfn, OutOfMemory> {
    let first = alloc_frames(order).ok_or(OutOfMemory)?;
    for frame in PfnRange::new(first, first.offset(1 << order)).iter() {
        tables::clear(frame);
    }
    Ok(first)
}

/// Ends start-up's own use of frames. Returns the runs that start-up took and other runs that do
/// not belong to the page allocator: sorted and disjoint. Pageblocks that hold a part of a run stay
/// in the direct map for ever. The runs of the initial RAM disk among them come back with
/// [`crate::boot::release_initrd`].
pub fn seal() -> &'static [PfnRange] {
    if RESERVED.get().is_none() {
        boot_frames::seal();
        let mut list = Reserved { ranges: [PfnRange::default(); MAX_RESERVED], count: 0 };
        list.add(PfnRange::new(Pfn(0), Pfn(0x100)));
        list.add(boot::info().image());
        list.add(boot::info().initrd_frames());
        boot_frames::for_each_run(|run| list.add(run));
        list.sort_and_join();
        RESERVED.set(list);
    }
    RESERVED.get().map_or(&[], |list| &list.ranges[..list.count])
}

impl Reserved {
    fn add(&mut self, range: PfnRange) {
        if !range.is_empty() {
            assert!(self.count < MAX_RESERVED, "too many reserved ranges");
            self.ranges[self.count] = range;
            self.count += 1;
        }
    }
    fn sort_and_join(&mut self) {
        self.ranges[..self.count].sort_unstable_by_key(|range| range.start);
        let mut kept = 0;
        for index in 1..self.count {
            let range = self.ranges[index];
            if range.start <= self.ranges[kept].end {
                self.ranges[kept].end = self.ranges[kept].end.max(range.end);
            } else {
                kept += 1;
                self.ranges[kept] = range;
            }
        }
        self.count = (kept + 1).min(self.count);
    }
}

/// From now on kernel frames come from the page allocator. This CPU's stacks of exceptions, whose
/// frames are in the direct map, are replaced by others.
///
/// # Panics
/// When called twice, or if there is no memory for that.
pub fn set_frame_provider(provider: &'static dyn FrameProvider) {
    PROVIDER.set(provider);
    assert!(traps::renew_stacks().is_ok(), "too little memory for the first CPU's stacks");
}

/// Returns 2^`order` kernel-side frames with any content. Takes no lock once the provider works.
pub(crate) fn alloc_frames(order: u32) -> Option<Pfn> {
    match PROVIDER.get() {
        Some(provider) => provider.alloc(order),
        None => boot_frames::take(order),
    }
}

/// As [`alloc_frames`], from `node` if it has them. Frames of start-up may be on any node.
pub(crate) fn alloc_frames_near(node: NodeId, order: u32) -> Option<Pfn> {
    match PROVIDER.get() {
        Some(provider) => provider.alloc_near(node, order),
        None => boot_frames::take(order),
    }
}

/// Returns a frame for a kernel stack, with any content, from `node` if it has one. Once the
/// provider works, the frame is mapped nowhere.
pub(crate) fn alloc_stack_frame(node: NodeId) -> Option<Pfn> {
    PROVIDER.get().map_or_else(|| boot_frames::take(0), |provider| provider.alloc_stack(node))
}

/// Frees frames. Those that were taken before there was a provider are only forgotten.
pub(crate) fn free_frames(first: Pfn, order: u32) {
    if let Some(provider) = PROVIDER.get() {
        provider.free(first, order);
    }
}

/// As [`free_frames`], for a frame of [`alloc_stack_frame`].
pub(crate) fn free_stack_frame(frame: Pfn) {
    if let Some(provider) = PROVIDER.get() {
        provider.free_stack(frame);
    }
}

impl Tables for X86 {
    #[inline]
    fn load_entry(self, table: Pfn, index: usize) -> u64 {
        checked_entry(table, index).load(Ordering::Acquire)
    }
    #[inline]
    fn store_entry(self, table: Pfn, index: usize, value: u64) {
        checked_entry(table, index).store(value, Ordering::Release);
    }
    #[inline]
    fn swap_entry(self, table: Pfn, index: usize, value: u64) -> u64 {
        checked_entry(table, index).swap(value, Ordering::AcqRel)
    }
    #[inline]
    fn compare_exchange_entry(self, table: Pfn, index: usize, current: u64, new: u64) -> Result<u64, u64> {
        checked_entry(table, index).compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
    fn clear_table(self, table: Pfn) {
        assert!(is_within_memory(table), "{table:?} is no translation table");
        tables::clear(table);
    }
    #[inline]
    fn next_entry(self, table: Pfn, range: Range<usize>) -> Option<(usize, u64)> {
        let start = range.start;
        let entries = checked_entries(table)[range].iter().map(|entry| entry.load(Ordering::Acquire));
        let (offset, entry) = entries.enumerate().find(|&(_, entry)| entry != 0)?;
        Some((start + offset, entry))
    }
    #[inline]
    fn each_entry(self, table: Pfn, range: Range<usize>, mut f: impl FnMut(usize, u64)) {
        each_used(table, range, |index, slot| f(index, slot.load(Ordering::Acquire)));
    }
    #[inline]
    fn take_entries(self, table: Pfn, range: Range<usize>, mut f: impl FnMut(usize, u64)) {
        each_used(table, range, |index, slot| f(index, slot.swap(0, Ordering::AcqRel)));
    }
    fn copy_entries(self, from: Pfn, to: Pfn, range: Range<usize>) {
        let from = checked_entries(from)[range.clone()].iter();
        let to = checked_entries(to)[range].iter();
        from.zip(to).for_each(|(from, to)| to.store(from.load(Ordering::Acquire), Ordering::Release));
    }
}

/// Number of entries that are checked together: as many as a fault on a file fills in passing. With
/// eight, a large empty range would cost half as much again.
const CHUNK: usize = 16;

/// Calls `f` with the entries of `range` that are in use, upwards.
///
/// `f` is called at only one place in this function, so that the compiler inlines it: `f` is all
/// the work of fork and exit on a page, and with two places it would be a function call for each
/// page.
#[inline]
fn each_used(table: Pfn, range: Range<usize>, mut f: impl FnMut(usize, &AtomicU64)) {
    let slots = &checked_entries(table)[..range.end];
    let mut start = range.start;
    while let Some(left) = slots.get(start..).filter(|left| !left.is_empty()) {
        // If the first entry of a chunk is in use, the chunk need not be searched.
        let is_empty = |chunk: &[AtomicU64; CHUNK]| {
            chunk[0].load(Ordering::Relaxed) == 0
                && chunk[1..].iter().fold(0, |all, slot| all | slot.load(Ordering::Relaxed)) == 0
        };
        // Most chunks of a table are empty.
        if left.first_chunk().is_some_and(is_empty) {
            start += CHUNK;
            continue;
        }
        let next = &left[..left.len().min(CHUNK)];
        for (index, slot) in (start..).zip(next) {
            if slot.load(Ordering::Relaxed) != 0 {
                f(index, slot);
            }
        }
        start += next.len();
    }
}

impl X86 {
    /// The template of `node`'s roots: its upper half (entries 256 to 511) is copied into every new
    /// root and never changes after start-up. If nodes have replicas of the image, their templates
    /// differ in the image's slot.
    pub fn kernel_root(self, node: NodeId) -> Pfn {
        replica::root_of(node)
    }
}
