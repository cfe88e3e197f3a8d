//! The dynamic area: addresses for kernel stacks, device registers, firmware tables, the initial
//! RAM disk.
//!
//! Addresses are handed out upwards from a random page on. Mappings of devices and firmware stay
//! for ever; stacks are kept for reuse, each on the node whose frames it has. When [`KEPT_STACKS`]
//! plus [`UNMAPPED_AT_ONCE`] stacks of a node are unused, [`UNMAPPED_AT_ONCE`] of them are unmapped
//! with one flush of all CPUs. The page-table entries of their guard pages then record their
//! places.
//!
//! A stack's frames are mapped here and nowhere else: they are outside the direct map, so that the
//! bytes of programs that pass through a stack have no second address.
//!
//! A thread starts at a random place in the upper half of its stack's top page ([`Stack::start`]).
//! So the places of stack frames and buffers differ between threads that use the same stack one
//! after the other. Linux draws an offset per system call (`randomize_kstack_offset`), which here
//! would cost more than a hundredth of the shortest one.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::topology::MAX_NODES;
use freehold_machine::{CpuSet, Cpus, Flush, NodeId, PAGE, Pfn, PhysAddr, PhysicalBytes, Tlb, VirtAddr};

use crate::X86;
use crate::memory::layout::DYNAMIC_SPAN;
use crate::memory::{self, OutOfMemory, layout, tables};
use crate::registers::rdtsc;
use crate::sync::SpinLock;

/// Pages of a stack; as many pages below it are left unmapped. The deepest path, a fork that
/// reclaims memory through a disk and is interrupted, takes about 16 KiB. Half as much again is
/// left for growth.
pub const STACK_PAGES: u64 = 6;
const SLOT_BYTES: u64 = 2 * STACK_PAGES * PAGE;
const KEPT_STACKS: usize = 16;
/// Number of stacks that are unmapped together, since each time all CPUs are interrupted.
const UNMAPPED_AT_ONCE: usize = 16;
/// Stacks of one node that are mapped and unused, at most.
pub const MOST_IDLE_STACKS: usize = KEPT_STACKS + UNMAPPED_AT_ONCE;
/// Number of places in the upper half of a page where a thread's stack may start, 16 bytes apart.
const STARTS: u64 = PAGE / 2 / 16;
/// Largest number of unused pages at the area's beginning: 1 GiB, in a dynamic area of 64 GiB.
const RANDOM_PAGES: u64 = 1 << 18;

/// Bytes of the area that are taken.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Random key for the places where threads start.
static START_KEY: AtomicU64 = AtomicU64::new(0);

/// Begins the area at a random page and draws the key for the threads' starts; before the first
/// address is taken.
pub(crate) fn shift(mut random: impl FnMut() -> u64) {
    TAKEN.store(random() % RANDOM_PAGES * PAGE, Ordering::Relaxed);
    START_KEY.store(random(), Ordering::Relaxed);
}

/// Takes addresses for `bytes` bytes, aligned to `align` bytes.
pub(crate) fn take_addresses(bytes: u64, align: u64) -> Result<VirtAddr, OutOfMemory> {
    let taken = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
        let end = taken.next_multiple_of(align) + bytes;
        (end <= DYNAMIC_SPAN).then_some(end)
    });
    let start = taken.map_err(|_| OutOfMemory)?.next_multiple_of(align);
    Ok(VirtAddr(layout().dynamic + start))
}

fn alloc_table() -> Option<Pfn> {
    memory::alloc_frames(0)
}

/// Map the physical range with leaf `flags`, for ever; returns the address of its first byte.
pub(crate) fn map_range(phys: PhysAddr, len: u64, flags: u64) -> Result<VirtAddr, OutOfMemory> {
    let first = Pfn::containing(phys);
    let offset = phys.0 % PAGE;
    let pages = tables::pages(offset + len);
    let address = take_addresses(pages * PAGE, PAGE)?;
    for page in 0..pages {
        let value = tables::leaf(first.offset(page), flags);
        tables::map_page(VirtAddr(address.0 + page * PAGE), value, &mut alloc_table)?;
    }
    Ok(VirtAddr(address.0 + offset))
}

/// Unmaps `pages` pages that [`map_range`] mapped, on all CPUs. The addresses are not used again.
pub(crate) fn unmap(start: VirtAddr, pages: u64) {
    for page in 0..pages {
        let address = VirtAddr(start.0 + page * PAGE);
        tables::find_entry::<1>(address).expect("what was mapped has its table").store(0, Ordering::Release);
    }
    X86.flush_on(CpuSet::first(X86.cpu_count()), Flush::Range { start, pages });
}

/// Maps a stack of `pages` pages for ever, above a page that is never mapped, in frames of this
/// CPU's node. Returns its addresses. Used at start-up: no program has run yet, so the frames hold
/// no program's bytes.
///
/// # Errors
/// If there is no memory for it.
pub(crate) fn fixed_stack(pages: u64) -> Result<Range<VirtAddr>, OutOfMemory> {
    let bottom = VirtAddr(take_addresses((pages + 1) * PAGE, PAGE)?.0 + PAGE);
    let node = X86.node_of_cpu(X86.current_cpu());
    for page in 0..pages {
        let frame = memory::alloc_stack_frame(node).ok_or(OutOfMemory)?;
        let address = VirtAddr(bottom.0 + page * PAGE);
        tables::map_page(address, tables::leaf(frame, tables::DATA), &mut alloc_table)?;
    }
    Ok(bottom..VirtAddr(bottom.0 + pages * PAGE))
}

/// A kernel stack of 24 KiB above an unmapped guard, so that running over its end is a fault.
#[derive(Debug)]
pub struct Stack {
    /// The stack's lowest address, and in its lowest bits the node that the stack was made for. A
    /// stack without a user waits on that node. Two words would put a thread's object into the next
    /// larger size class.
    word: u64,
}

const _: () = assert!(MAX_NODES <= PAGE as usize);

impl Stack {
    fn at(bottom: VirtAddr, node: NodeId) -> Self {
        Self { word: bottom.0 | u64::from(node.0) }
    }
    fn bottom(&self) -> u64 {
        self.word & !(PAGE - 1)
    }
    fn node(&self) -> NodeId {
        NodeId((self.word % PAGE) as u8)
    }
}

/// One node's stacks without a user.
struct Idle {
    /// Stacks that are mapped and unused.
    kept: [u64; MOST_IDLE_STACKS],
    count: usize,
    /// The bottom of the first unmapped stack place. The guard entry of each has the next one's
    /// bottom; 0 is the end.
    places: u64,
}

static IDLE: [SpinLock<Idle>; MAX_NODES] =
    [const { SpinLock::new(Idle { kept: [0; MOST_IDLE_STACKS], count: 0, places: 0 }) }; MAX_NODES];

fn idle_on(node: NodeId) -> &'static SpinLock<Idle> {
    &IDLE[usize::from(node.0) % MAX_NODES]
}

fn guard_entry(bottom: VirtAddr) -> &'static AtomicU64 {
    tables::find_entry::<1>(VirtAddr(bottom.0 - PAGE)).expect("a used stack place has its table")
}

impl Stack {
    /// Makes a stack of `node`'s frames, if the node has some; its bytes are undefined.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(node: NodeId) -> Result<Self, OutOfMemory> {
        let place = {
            let mut idle = idle_on(node).lock();
            if idle.count > 0 {
                idle.count -= 1;
                return Ok(Self::at(VirtAddr(idle.kept[idle.count]), node));
            }
            let place = VirtAddr(idle.places);
            if place.0 != 0 {
                // Addresses are even, so an entry that records one never counts as present.
                idle.places = guard_entry(place).swap(0, Ordering::AcqRel);
            }
            place
        };
        let bottom = match place.0 {
            0 => VirtAddr(take_addresses(SLOT_BYTES, SLOT_BYTES)?.0 + STACK_PAGES * PAGE),
            _ => place,
        };
        let stack = Self::at(bottom, node);
        for page in 0..STACK_PAGES {
            let mapped = memory::alloc_stack_frame(node).ok_or(OutOfMemory).and_then(|frame| {
                // Bytes that a program left there must not enter the kernel's map.
                X86.zero(frame);
                let address = VirtAddr(bottom.0 + page * PAGE);
                let mapped = tables::map_page(address, tables::leaf(frame, tables::DATA), &mut alloc_table);
                mapped.inspect_err(|_| memory::free_stack_frame(frame))
            });
            if mapped.is_err() {
                unmap_stacks(node, &[bottom.0]);
                core::mem::forget(stack);
                return Err(OutOfMemory);
            }
        }
        Ok(stack)
    }

    /// Draws the address below which a thread that begins on this stack has its first bytes: a
    /// multiple of 16. Hashing the time stamp with a secret key takes a few instructions; a random
    /// generator would cost a fiftieth of a thread.
    pub fn start(&self) -> u64 {
        let mixed = (rdtsc() ^ START_KEY.load(Ordering::Relaxed)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.bottom() + STACK_PAGES * PAGE - mixed.rotate_left(STARTS.trailing_zeros()) % STARTS * 16
    }
}

/// Unmaps the pages of a node's stacks, at most [`UNMAPPED_AT_ONCE`] stacks, and records their
/// places in their page tables.
fn unmap_stacks(node: NodeId, bottoms: &[u64]) {
    let mut frames = [Pfn(0); UNMAPPED_AT_ONCE * STACK_PAGES as usize];
    let mut count = 0;
    for bottom in bottoms {
        for page in 0..STACK_PAGES {
            let address = VirtAddr(bottom + page * PAGE);
            let value = tables::find_entry::<1>(address).map_or(0, |entry| entry.swap(0, Ordering::AcqRel));
            if value != 0 {
                frames[count] = tables::frame_of(value);
                count += 1;
            }
        }
    }
    let what = match *bottoms {
        [bottom] => Flush::Range { start: VirtAddr(bottom), pages: STACK_PAGES },
        _ => Flush::All,
    };
    X86.flush_on(CpuSet::first(X86.cpu_count()), what);
    for &frame in &frames[..count] {
        memory::free_stack_frame(frame);
    }
    for bottom in bottoms {
        if let Some(guard) = tables::find_entry::<1>(VirtAddr(bottom - PAGE)) {
            let mut idle = idle_on(node).lock();
            guard.store(idle.places, Ordering::Release);
            idle.places = *bottom;
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let mut surplus = [0; UNMAPPED_AT_ONCE];
        {
            let mut idle = idle_on(self.node()).lock();
            let count = idle.count;
            if count < idle.kept.len() {
                idle.kept[count] = self.bottom();
                idle.count += 1;
                return;
            }
            // The stacks that were used last stay, this one included: their lines may be cached.
            surplus.copy_from_slice(&idle.kept[..UNMAPPED_AT_ONCE]);
            idle.kept.copy_within(UNMAPPED_AT_ONCE.., 0);
            idle.count = KEPT_STACKS + 1;
            idle.kept[KEPT_STACKS] = self.bottom();
        }
        unmap_stacks(self.node(), &surplus);
    }
}
