//! The kernel heap, from which `alloc` allocates.
//!
//! Sizes up to 2048 bytes come from slabs: blocks of 1 to 4 frames cut into objects of one size
//! ([`slab`]). Each CPU keeps some free objects ([`magazine`]). Larger sizes are whole orders of
//! frames. Empty slabs are freed, except one per size. Interrupt handlers do not use the heap. The
//! heap's lock is never held while frames are allocated or freed.
//!
//! A [reserve](ensure) of frames is used only if the page allocator has none: code that ensured it
//! before can make small infallible allocations.
//!
//! **Injected failures.** If a [hook](inject_faults) is set, it is called before each allocation.
//! An allocation that it fails can only use the reserve. Inside of [`fallibly`] it cannot use the
//! reserve either, since the caller handles a failure. Outside, the caller cannot handle a failure,
//! so it gets a small object from the reserve, and nothing larger. [`ensure`] is exempt, since it
//! fills the reserve. Once there is a hook, CPUs get no more free objects to keep. The objects that
//! they have are handed out without calling it.
//!
//! **Charges.** If groups of processes have limits, objects are charged to accounts ([`charge`]).

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use freehold_machine::{PAGE_SIZE, Pfn};

use crate::cpu;
use crate::memory::{self, OutOfMemory, boot_frames, tables};
use crate::sync::{Once, SpinLock, order};

pub mod charge;
pub(crate) mod magazine;
mod slab;

use magazine::{Chain, Magazines, ROOM};
use slab::{CLASSES, Slabs};

/// Frames of the reserve, by order: enough for the small allocations of any one system call.
const RESERVE: [usize; 3] = [12, 2, 2];

static SLABS: SpinLock<Slabs> = SpinLock::new(Slabs::new());
static STOCK: SpinLock<Stock> = SpinLock::new(Stock { blocks: [[Pfn(0); 12]; 3], counts: [0; 3] });
/// Whether the reserve needs a refill; [`ensure`] reads it without a lock.
static LOW: AtomicBool = AtomicBool::new(true);
/// Largest number of free objects that a CPU keeps per class. All are 0 once failures are injected
/// or objects are charged, so that only the slower path has to test for either.
static ROOMS: [AtomicU32; CLASSES.len()] = {
    let mut rooms = [const { AtomicU32::new(0) }; CLASSES.len()];
    let mut class = 0;
    while class < rooms.len() {
        rooms[class] = AtomicU32::new(ROOM[class]);
        class += 1;
    }
    rooms
};
/// Whether [`HOOK`] is set.
static INJECTING: AtomicBool = AtomicBool::new(false);
static HOOK: Once<FaultHook> = Once::new();
static FRAMES: AtomicUsize = AtomicUsize::new(0);
/// Bytes in objects that are made of whole frames.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

struct Stock {
    blocks: [[Pfn; 12]; 3],
    counts: [usize; 3],
}

impl Stock {
    fn take(&mut self, order: u32) -> Option<Pfn> {
        let count = self.counts.get_mut(order as usize)?;
        *count = count.checked_sub(1)?;
        LOW.store(true, Ordering::Relaxed);
        Some(self.blocks[order as usize][*count])
    }
    /// Adds a block, or returns it if there are enough.
    fn add(&mut self, order: usize, block: Pfn) -> Result<(), Pfn> {
        let count = &mut self.counts[order];
        if *count == RESERVE[order] {
            return Err(block);
        }
        self.blocks[order][*count] = block;
        *count += 1;
        Ok(())
    }
}

/// Returns whether an allocation of this size must fail. Called in task context, perhaps under spin
/// locks: it neither allocates nor sleeps.
pub type FaultHook = fn(usize) -> bool;

/// From now on calls `hook` before each allocation. The first hook stays.
pub fn inject_faults(hook: FaultHook) {
    if !INJECTING.swap(true, Ordering::Relaxed) {
        HOOK.set(hook);
        empty_magazines();
    }
}

/// From now on no CPU gets objects to keep. This CPU frees the objects that it has.
fn empty_magazines() {
    ROOMS.iter().for_each(|room| room.store(0, Ordering::Relaxed));
    give_back_all();
}

/// Returns the magazines of this CPU: the second ones if objects are charged.
fn at_hand() -> &'static Magazines {
    let cpu = cpu::this();
    if charge::has_begun() { &cpu.charged_magazines } else { &cpu.magazines }
}

/// Draws the orders in which the objects of a block are handed out; before the first allocation.
pub(crate) fn shuffle(seed: u64) {
    SLABS.lock().shuffle(seed);
}

/// Bytes that are reserved for each system call, and for each step of a long one.
pub const CALL_RESERVE: usize = 16 << 10;

/// Whether allocations whose callers cannot handle a failure are counted.
pub const CHECKED: bool = cfg!(feature = "entry-checks");
static WATCH: Once<Watch> = Once::new();

/// Functions that are called where the heap is [checked](CHECKED). Neither allocates or sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// Called with the size of a small object, up to 2048 bytes, if its creator did not say that it
    /// handles a failure. Larger objects are lists of the mm crates, which handle failures.
    pub drawn: fn(usize),
    /// Called when the reserve is full.
    pub ensured: fn(),
}

/// Registers `watch` for all later allocations.
pub fn watch(watch: Watch) {
    WATCH.set(watch);
}

fn note_drawn(layout: Layout) {
    if this_use().load(Ordering::Relaxed) == heap_use::FALLIBLE {
        return;
    }
    if let Some(watch) = WATCH.get()
        && let Some(class) = slab::class_for(layout)
    {
        (watch.drawn)(CLASSES[class].size);
    }
}

/// The purpose of this CPU's allocations in [`cpu::PerCpu::heap_use`]; 0 if the caller named none.
/// The caller sets it for code that does not sleep, so the CPU stays the task's.
mod heap_use {
    /// The caller handles a failure.
    pub const FALLIBLE: u8 = 1;
    /// The reserve is being filled.
    pub const REFILL: u8 = 2;
}

fn this_use() -> &'static AtomicU8 {
    &cpu::this().heap_use
}

fn with_use<R>(is: u8, body: impl FnOnce() -> R) -> R {
    let was = this_use().swap(is, Ordering::Relaxed);
    let result = body();
    this_use().store(was, Ordering::Relaxed);
    result
}

/// Allocates inside of `body`, which handles a failure and does not sleep. An injected failure is
/// returned there.
#[inline]
pub fn fallibly<R>(body: impl FnOnce() -> R) -> R {
    with_use(heap_use::FALLIBLE, body)
}

/// Sets the purpose of this CPU's allocations, one of [`heap_use`]. Returns the former purpose.
/// `freehold-collections` declares it; it is below this crate.
// SAFETY: no other symbol of the image has this name.
#[unsafe(no_mangle)]
extern "Rust" fn freehold_heap_use(purpose: u8) -> u8 {
    this_use().swap(purpose, Ordering::Relaxed)
}

/// Whether frames are being allocated for the reserve: such allocations are exempt from injection.
pub fn is_refilling() -> bool {
    this_use().load(Ordering::Relaxed) == heap_use::REFILL
}

fn is_injected(bytes: usize) -> bool {
    INJECTING.load(Ordering::Relaxed) && HOOK.get().is_some_and(|hook| hook(bytes))
}

/// Amounts of memory in the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapStats {
    /// Frames that hold objects, in slabs or whole.
    pub frames: usize,
    /// Bytes in objects, rounded up to their sizes.
    pub allocated_bytes: usize,
    /// Frames of the reserve.
    pub reserve_frames: usize,
}

/// Returns the amounts of memory that are in the heap now.
pub fn stats() -> HeapStats {
    let counts = STOCK.lock().counts;
    let in_slabs = SLABS.lock().allocated_bytes();
    let at_hand: usize = cpu::all().map(|cpu| cpu.magazines.bytes() + cpu.charged_magazines.bytes()).sum();
    HeapStats {
        frames: FRAMES.load(Ordering::Relaxed),
        // Other CPUs allocate and free meanwhile, so the figures may disagree.
        allocated_bytes: ALLOCATED.load(Ordering::Relaxed) + in_slabs.saturating_sub(at_hand),
        reserve_frames: counts.iter().enumerate().map(|(order, count)| count << order).sum(),
    }
}

/// Makes sure that the reserve is full. Then small allocations of together `bytes` bytes (at most
/// 32 KiB) do not fail for lack of memory, if they are made next, before others drain the reserve.
///
/// # Errors
/// If the page allocator cannot fill the reserve, or if `bytes` is more than a reserve can promise.
#[inline]
pub fn ensure(bytes: usize) -> Result<(), OutOfMemory> {
    if LOW.load(Ordering::Relaxed) {
        refill()?;
    }
    if CHECKED && let Some(watch) = WATCH.get() {
        (watch.ensured)();
    }
    if bytes <= RESERVE[0] / 3 * 2 * PAGE_SIZE { Ok(()) } else { Err(OutOfMemory) }
}

#[cold]
fn refill() -> Result<(), OutOfMemory> {
    LOW.store(false, Ordering::Relaxed);
    for (order, &wanted) in RESERVE.iter().enumerate() {
        while STOCK.lock().counts[order] < wanted {
            let block = with_use(heap_use::REFILL, || memory::alloc_frames(order as u32));
            let Some(block) = block else {
                LOW.store(true, Ordering::Relaxed);
                return Err(OutOfMemory);
            };
            let surplus = STOCK.lock().add(order, block);
            if let Err(block) = surplus {
                memory::free_frames(block, order as u32);
            }
        }
    }
    Ok(())
}

fn take_frames(order: u32) -> Option<Pfn> {
    let mut block = memory::alloc_frames(order).or_else(|| boot_frames::take(order));
    if block.is_none() && give_back_all() > 0 {
        block = memory::alloc_frames(order);
    }
    let Some(block) = block else { return take_reserved(order) };
    FRAMES.fetch_add(1 << order, Ordering::Relaxed);
    Some(block)
}

/// Takes frames of the reserve, in the smallest blocks that fit.
fn take_reserved(order: u32) -> Option<Pfn> {
    let block = if order < RESERVE.len() as u32 { STOCK.lock().take(order) } else { None }?;
    FRAMES.fetch_add(1 << order, Ordering::Relaxed);
    Some(block)
}

fn give_frames(first: Pfn, order: u32) {
    FRAMES.fetch_sub(1 << order, Ordering::Relaxed);
    memory::free_frames(first, order);
}

fn frame_at(address: *mut u8) -> Pfn {
    Pfn((address as u64 - tables::direct_base()) / PAGE_SIZE as u64)
}

/// The order of a block of frames for a large layout.
fn order_for(layout: Layout) -> u32 {
    layout.size().max(layout.align()).div_ceil(PAGE_SIZE).next_power_of_two().ilog2()
}

/// Takes whole frames from `source`; null if there are none.
#[cold]
fn alloc_large(layout: Layout, source: fn(u32) -> Option<Pfn>) -> *mut u8 {
    let order = order_for(layout);
    let Some(first) = source(order) else { return ptr::null_mut() };
    ALLOCATED.fetch_add(PAGE_SIZE << order, Ordering::Relaxed);
    tables::frame_ptr(first)
}

/// Gives whole frames back that [`alloc_large`] gave for this layout.
#[cold]
#[inline(never)]
fn free_large(object: *mut u8, layout: Layout) {
    let (first, order) = (frame_at(object), order_for(layout));
    ALLOCATED.fetch_sub(PAGE_SIZE << order, Ordering::Relaxed);
    if charge::has_begun() {
        charge::uncharge_block(first, layout);
    }
    give_frames(first, order);
}

/// Makes an allocation that the hook has failed: see the module's head. Returns null on failure.
#[cold]
#[inline(never)]
fn alloc_denied(layout: Layout) -> *mut u8 {
    if this_use().load(Ordering::Relaxed) == heap_use::FALLIBLE {
        return ptr::null_mut();
    }
    let Some(class) = slab::class_for(layout) else { return alloc_large(layout, take_reserved) };
    take_object(class, take_reserved)
}

/// Returns an object of a class of which this CPU has none; null if `source` has no frames for
/// another block.
fn take_object(class: usize, source: fn(u32) -> Option<Pfn>) -> *mut u8 {
    loop {
        // The task may allocate while it looks for frames, and may continue on another CPU.
        if let Some(object) = at_hand().take(class).or_else(|| take_from_slabs(class)) {
            return object.as_ptr();
        }
        let Some(first) = source(CLASSES[class].order) else { return ptr::null_mut() };
        // SAFETY: the block is fresh from the page allocator, in the direct map, of the class's
        // order.
        unsafe { SLABS.lock().add(class, tables::frame_ptr(first)) };
    }
}

/// Takes an object from the slabs. The others of its block go to the magazine if it has none of the
/// class.
fn take_from_slabs(class: usize) -> Option<NonNull<u8>> {
    if INJECTING.load(Ordering::Relaxed) {
        return SLABS.lock().take(class);
    }
    let chain = SLABS.lock().take_block(class)?;
    let magazines = at_hand();
    magazines.load(class, chain);
    magazines.take(class)
}

/// Returns objects to their slabs. Returns how many blocks became empty and were freed.
fn give_chain(class: usize, mut chain: Chain) -> usize {
    let mut blocks = 0;
    loop {
        let mut slabs = SLABS.lock();
        // SAFETY: objects in a chain have no owner, and came from the slabs.
        let give = |object: NonNull<u8>| unsafe { slabs.give(class, object.as_ptr()) };
        let Some(block) = core::iter::from_fn(|| chain.next()).find_map(give) else { return blocks };
        drop(slabs);
        give_frames(frame_at(block), CLASSES[class].order);
        blocks += 1;
    }
}

/// Frees all objects that this CPU keeps. Returns how many blocks were freed with them.
#[cold]
fn give_back_all() -> usize {
    let cpu = cpu::this();
    let all = [&cpu.magazines, &cpu.charged_magazines];
    let give = |magazines: &Magazines| -> usize {
        (0..CLASSES.len()).map(|class| give_chain(class, magazines.cut(class, 0))).sum()
    };
    all.into_iter().map(give).sum()
}

/// Frees an object for which the first magazine had no room. It goes to the second magazine if
/// objects are charged, else to the slabs, together with half of the magazine's objects.
///
/// # Safety
/// `object` is of the class and not used any more.
#[cold]
#[inline(never)]
unsafe fn give_further(class: usize, object: *mut u8) {
    let magazines = at_hand();
    if charge::has_begun() {
        // SAFETY: the caller's promise.
        unsafe { charge::uncharge_object(class, object) };
        if !INJECTING.load(Ordering::Relaxed) && magazines.has_room(class, ROOM[class]) {
            // SAFETY: the caller's promise.
            return unsafe { magazines.give(class, object) };
        }
    }
    let room = if INJECTING.load(Ordering::Relaxed) { 0 } else { ROOM[class] };
    let rest = magazines.cut(class, room / 2);
    // SAFETY: the caller's object is of the class and not used any more.
    let own = unsafe { Chain::of(object) };
    give_chain(class, own);
    give_chain(class, rest);
}

/// Serves the requests that the CPU's free objects cannot: large layouts, classes without a free
/// object, and every request while failures are injected.
#[cold]
#[inline(never)]
fn alloc_further(layout: Layout) -> *mut u8 {
    if is_injected(layout.size()) {
        return alloc_denied(layout);
    }
    if charge::has_begun() { charge::allocate(layout) } else { find(layout) }
}

/// Makes an allocation without checks; null if there is no memory.
fn find(layout: Layout) -> *mut u8 {
    match slab::class_for(layout) {
        Some(class) => take_object(class, take_frames),
        None => alloc_large(layout, take_frames),
    }
}

/// The allocator behind `alloc`: the image crate makes one the global allocator.
#[derive(Debug)]
pub struct KernelHeap;

// SAFETY: blocks are disjoint (a slab hands out each object once, the page allocator each frame
// once), as large and as aligned as the layout asks, and stay in the direct map until they are
// given back.
unsafe impl GlobalAlloc for KernelHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if CHECKED {
            order::assert_no_irq_lock("the heap is used");
            note_drawn(layout);
        }
        let found = slab::class_for(layout).and_then(|class| cpu::this().magazines.take(class));
        found.map_or_else(|| alloc_further(layout), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        order::assert_no_irq_lock("the heap is used");
        let Some(class) = slab::class_for(layout) else { return free_large(object, layout) };
        let magazines = &cpu::this().magazines;
        if !magazines.has_room(class, ROOMS[class].load(Ordering::Relaxed)) {
            // SAFETY: the caller gives back an object of this class.
            return unsafe { give_further(class, object) };
        }
        // SAFETY: the caller gives back an object that `alloc` gave for this layout, so of this
        // class.
        unsafe { magazines.give(class, object) };
    }
}
