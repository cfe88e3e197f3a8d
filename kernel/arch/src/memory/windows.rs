//! Windows: short-lived mappings of one frame, private to a CPU.
//!
//! Each CPU has [`SLOTS`] pages of its own, taken in laps: the protocol, with its models, is
//! `mm/xpfo`'s [`CpuWindows`]. So a window costs one entry store on each side and 1/64 of a local
//! flush, and no other CPU ever caches one. A whole pageblock is zeroed in one window of 2 MiB,
//! which the CPU forgets as it closes.
//!
//! **Proof.** A window opens on a frame whose record says that a program owns it: one load. All
//! other cases are checked slowly: the page allocator's blocks while they change owners, and
//! start-up. Frames in the direct map are the kernel's own and are accessed through it. Pages of
//! transfers have windows of their own kind ([`super::runs`]).
//!
//! **Time.** A closed window may be cached until the CPU flushes it. [`Policy`] says how long:
//! under `on` the CPU flushes at a deadline, before it idles, and before a program runs after a
//! kernel task. It flushes at once if the memory is another program's ([`close_as`]).
//!
//! **Context.** The holder keeps its CPU: an open window counts 1 in the third byte of the CPU's
//! preemption count. An interrupt counts there, too ([`enter_interrupt`]), so opening a window in
//! an interrupt is noticed and refused.

use core::arch::asm;
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use freehold_machine::{
    Cpus, Flush, KERNEL_OWNERS, PAGE_SIZE, PROGRAM_OWNER, PROGRAM_OWNER_MASK, Pfn, PfnRange, PhysicalBytes,
    TABLE_ENTRIES, Tlb, VirtAddr,
};
use freehold_xpfo::{Alarm, Closing, CpuWindows, Policy, Rules, Translations, each_of};

use super::block_window::{is_block, large_base, zero_block};
use super::tables::{self, ACCESSED, DIRTY, NO_EXECUTE, PRESENT, WRITABLE};
use super::{OutOfMemory, direct, layout, pluggable, runs};
use crate::cpu::{self, PerCpu};
use crate::static_keys::{self, KeyState, StaticKey};
use crate::sync::Once;
use crate::tracepoints::trace_window;
use crate::{X86, boot, irq, registers, time, usercopy};

/// Windows of one CPU.
pub(crate) const SLOTS: usize = 64;
/// A window for reading and writing. An entry above all windows forbids execution ([`prepare`]).
pub(super) const WINDOW: u64 = READING | WRITABLE | DIRTY;
/// A window through which bytes can only be read.
pub(super) const READING: u64 = PRESENT | ACCESSED;

/// An open window in a CPU's preemption count; the lower half counts other reasons to stay on the
/// CPU.
pub(crate) const OPEN: u32 = 1 << 16;
/// An interrupt is being served, at most 3 at a time.
const INTERRUPT: u32 = 1 << 22;
pub(super) const INTERRUPTS: u32 = 3 * INTERRUPT;
/// A window on a page of a transfer.
pub(super) const TRANSFER: u32 = 1 << 24;

/// The windows of one CPU; a slot's place is its address.
type LapSlots = CpuWindows<SLOTS, { PAGE_SIZE as u64 }>;

/// A CPU's windows. Only its own CPU uses it, pinned; others read the counts.
pub(crate) struct Windows {
    /// The entry of the window of 2 MiB.
    pub(super) large: AtomicPtr<AtomicU64>,
    /// Address of the first slot; 0 until [`attach`].
    base: AtomicU64,
    /// The address of a slot's entry, in the direct map, minus the slot's >> [`PAGE_PER_ENTRY`].
    entry_offset: AtomicU64,
    slots: LapSlots,
    /// Not 0: a window is forgotten as it closes.
    forgets_at_close: AtomicU32,
    /// Deadline by which closed windows must be flushed, as [`time::now`] counts; `u64::MAX` while
    /// nothing is cached.
    pub(crate) deadline: AtomicU64,
}

impl Windows {
    pub(crate) const fn new() -> Self {
        Self {
            large: AtomicPtr::new(core::ptr::null_mut()),
            base: AtomicU64::new(0),
            entry_offset: AtomicU64::new(0),
            slots: LapSlots::new(),
            forgets_at_close: AtomicU32::new(0),
            deadline: AtomicU64::new(u64::MAX),
        }
    }
    fn heed_tracing(&self) {
        let is_traced = static_keys::state(StaticKey::TRACED_WINDOWS) == KeyState::On;
        self.slots.set_longest_run(if is_traced { 1 } else { SLOTS });
    }
    fn address(&self, slot: usize) -> u64 {
        self.base.load(Ordering::Relaxed) + (slot * PAGE_SIZE) as u64
    }
    fn entry(&self, slot: usize) -> &'static AtomicU64 {
        assert!(slot < SLOTS && self.exist());
        // SAFETY: `attach` set the offset to that of SLOTS entries in a table that is never freed.
        unsafe { &*entry_at(self.address(slot), self.entry_offset.load(Ordering::Relaxed)) }
    }
    /// Slots that are in use.
    pub(super) fn open(&self) -> u64 {
        let used = (0..SLOTS).filter(|&slot| self.entry(slot).load(Ordering::Relaxed) != 0);
        used.fold(0, |mask, slot| mask | 1 << slot)
    }
    /// Opens the window of `slot`, the first of a run.
    pub(super) fn begin_run<const UNIT: u32>(&self, slot: usize, frame: Pfn, bits: u64) -> Reached<UNIT> {
        assert!(slot < SLOTS && self.exist());
        trace_window(frame, bits);
        show(self.address(slot), frame, bits)
    }
    /// Whether this CPU has its windows.
    pub(super) fn exist(&self) -> bool {
        self.base.load(Ordering::Acquire) != 0
    }
    /// The slot for a window; `open` has a bit for each slot that is in use.
    #[inline(always)]
    pub(super) fn take(&self, open: impl FnOnce() -> u64) -> usize {
        self.slots.take().unwrap_or_else(|| self.slots.renew(policy(), open(), self))
    }
}

impl Translations for Windows {
    fn forget_slot(&self, slot: usize) {
        registers::invlpg(self.address(slot));
    }
    fn forget_all(&self) {
        X86.flush_local(Flush::NonGlobal);
    }
}

impl Alarm for Windows {
    fn is_set(&self) -> bool {
        self.deadline.load(Ordering::Relaxed) != u64::MAX
    }
    fn set(&self, after_ns: u64) {
        let _off = irq::disable();
        time::arm_for_windows(after_ns);
    }
}

/// Windows are traced from now on, or no more, as their key says. The tracepoint is where a run of
/// slots begins, so that others cost no no-op: while windows are traced, each run is one slot. The
/// present run of another CPU ends as it would: at a switch of address spaces, or after [`SLOTS`]
/// windows.
pub(crate) fn heed_tracing() {
    cpu::online().iter().filter_map(cpu::of).for_each(|per_cpu| per_cpu.windows.heed_tracing());
    let _pinned = X86.pin();
    X86.flush_local(Flush::NonGlobal);
}

static POLICY: Once<Policy> = Once::new();
/// Number of windows that were refused in interrupts.
static REFUSED: AtomicU64 = AtomicU64::new(0);
/// Whether the policy is [`Policy::Off`]; each access reads this.
static IS_OFF: AtomicBool = AtomicBool::new(false);
/// Whether the policy is [`Policy::Strict`], as a word that [`close_as`] combines with the task's
/// request.
static IS_STRICT: AtomicU32 = AtomicU32::new(0);

/// The policy: `lap` until [`set_policy`], since times cannot be limited before there is a clock.
pub fn policy() -> Policy {
    POLICY.get().copied().unwrap_or(Policy::Lap)
}

/// Sets the policy for ever: before the page allocator exists and before a second CPU runs.
///
/// # Panics
/// When called twice.
pub fn set_policy(policy: Policy) {
    POLICY.set(policy);
    if policy == Policy::Off {
        direct::enter_all();
        IS_OFF.store(true, Ordering::Relaxed);
    }
    IS_STRICT.store(policy.forgets_at_close().into(), Ordering::Relaxed);
    close_as(Closing::ByPolicy);
}

/// From now on the windows of the task on this CPU are closed in this way. The caller stays on this
/// CPU.
#[inline]
pub fn close_as(closing: Closing) {
    let forgets = closing as u32 | IS_STRICT.load(Ordering::Relaxed);
    cpu::this().windows.forgets_at_close.store(forgets, Ordering::Relaxed);
}

crate::boot_value! {
    /// The first frame record's address, and one past the last frame that has a record: 0 until
    /// [`use_frame_table`].
    static RECORDS: u64 = 0;
}
crate::boot_value! {
    static RECORDS_END: u64 = 0;
}

/// From now on the frame table is in use: it tells which frames are programs'. A record is 8 bytes.
/// Called before nodes get copies of the kernel's read-only data.
///
/// # Errors
/// If there is no memory for the patching window.
pub fn use_frame_table() -> Result<(), OutOfMemory> {
    RECORDS.set(layout().frame_table)?;
    RECORDS_END.set(super::frame_table_end().0)
}

/// Returns the record of the block that starts with this frame; 0 if there is none.
#[inline(always)]
pub(super) fn record(frame: Pfn) -> u64 {
    if is_past_records(frame) {
        return 0;
    }
    let record = (RECORDS.get() + frame.0 * 8) as *const AtomicU64;
    // SAFETY: the table is mapped without a gap for every frame below its end, for ever, and its
    // records are atomic words.
    unsafe { &*record }.load(Ordering::Relaxed)
}

/// Whether a program owns the block that starts with this frame.
#[inline(always)]
fn is_programs(frame: Pfn) -> bool {
    record(frame) & PROGRAM_OWNER_MASK == PROGRAM_OWNER
}

/// Whether the kernel owns the block that starts with this frame. The page allocator takes such
/// blocks from pageblocks that are in the direct map.
fn is_kernels(frame: Pfn) -> bool {
    KERNEL_OWNERS >> (record(frame) & 15) & 1 != 0
}

// Comparisons with memory, in two instructions each: the compiler would load an atomic into a
// register first.

#[inline(always)]
fn is_past_records(frame: Pfn) -> bool {
    // SAFETY: compares with a word that always exists.
    unsafe {
        asm!("cmp {}, qword ptr [rip + {}]", "jae {}", in(reg) frame.0, sym RECORDS_END, label { return true },
            options(nostack, readonly));
    }
    false
}

/// Whether the policy is [`Policy::Off`].
#[inline(always)]
pub(super) fn is_off() -> bool {
    // SAFETY: compares with a byte that always exists.
    unsafe {
        asm!("cmp byte ptr [rip + {}], 0", "jne {}", sym IS_OFF, label { return true }, options(nostack, readonly));
    }
    false
}

/// Whether more than `N` windows are open on this CPU, or it serves an interrupt. Windows on pages
/// of transfers do not count: they show no program's frame.
#[inline(always)]
fn has_more_than<const N: u32>() -> bool {
    // SAFETY: GS points to this CPU's PerCpu.
    unsafe {
        asm!("cmp byte ptr gs:[{}], {}", "jae {}", const offset_of!(PerCpu, preemption) + 2, const N + 1,
            label { return true }, options(nostack, readonly));
    }
    false
}

/// Where [`Windows`] is in a CPU's data.
const WINDOWS: usize = offset_of!(PerCpu, windows);

/// Returns the word of this CPU's [`Windows`] at so many bytes from its beginning. The caller stays
/// on this CPU.
#[inline(always)]
fn of_this_cpu<const FIELD: usize>() -> u64 {
    const { assert!(FIELD + 8 <= size_of::<Windows>()) };
    let word;
    // SAFETY: GS points to this CPU's PerCpu, and the word is inside of its windows.
    unsafe {
        asm!("mov {}, qword ptr gs:[{} + {}]", out(reg) word, const WINDOWS, const FIELD,
            options(nostack, preserves_flags, readonly));
    }
    word
}
/// log2 of the bytes of a window for each byte of its entry.
const PAGE_PER_ENTRY: u32 = 9;
/// The entry of a window on a CPU with this [`Windows::entry_offset`].
#[inline(always)]
const fn entry_at(window: u64, offset: u64) -> *const AtomicU64 {
    (window >> PAGE_PER_ENTRY).wrapping_add(offset) as *const AtomicU64
}

/// The address of this CPU's next slot, as [`CpuWindows::take`] finds it. The caller stays on this
/// CPU.
#[inline(always)]
pub(super) fn take_slot() -> Option<u64> {
    const NEXT: usize = WINDOWS + offset_of!(Windows, slots) + LapSlots::NEXT_OFFSET;
    const LIMIT: usize = WINDOWS + offset_of!(Windows, slots) + LapSlots::LIMIT_OFFSET;
    let slot: u64;
    // SAFETY: GS points to this CPU's PerCpu, which has the two words; no other CPU stores to them.
    unsafe {
        asm!("mov {}, qword ptr gs:[{}]", out(reg) slot, const NEXT, options(nostack, preserves_flags, readonly));
        asm!("cmp {}, qword ptr gs:[{}]", "je {}", in(reg) slot, const LIMIT, label { return None },
            options(nostack, readonly));
        asm!("mov qword ptr gs:[{}], {}", const NEXT, in(reg) slot + PAGE_SIZE as u64,
            options(nostack, preserves_flags));
    }
    Some(slot)
}

/// Whether windows of this CPU are flushed as they close.
#[inline(always)]
fn forgets_at_close() -> bool {
    const FIELD: usize = offset_of!(PerCpu, windows) + offset_of!(Windows, forgets_at_close);
    // SAFETY: GS points to this CPU's PerCpu.
    unsafe {
        asm!("cmp dword ptr gs:[{}], 0", "jne {}", const FIELD, label { return true }, options(nostack, readonly));
    }
    false
}

fn cpu_base(cpu: usize) -> VirtAddr {
    VirtAddr(layout().windows + (cpu * SLOTS * PAGE_SIZE) as u64)
}

/// Makes the tables above the windows of all CPUs, at start-up. Their entry forbids execution for
/// all windows, so that a window's own need not: 32 bits of flags cost an instruction less than 64.
pub(crate) fn prepare(alloc: &mut dyn FnMut() -> Option<Pfn>) -> Result<(), OutOfMemory> {
    tables::table_at(cpu_base(0), 2, alloc)?;
    let above = tables::find_entry::<3>(cpu_base(0)).expect("it leads to the table just made");
    above.fetch_or(NO_EXECUTE, Ordering::Relaxed);
    Ok(())
}

/// Give `cpu` its windows before it runs.
pub(crate) fn attach(per_cpu: &PerCpu, cpu: usize) -> Result<(), OutOfMemory> {
    let pointer = |entry: &'static AtomicU64| core::ptr::from_ref(entry).cast_mut();
    let windows = &per_cpu.windows;
    let table = tables::table_at(large_base(cpu), 2, &mut || super::alloc_frames(0))?;
    let large = tables::entry(table, tables::index_at(large_base(cpu), 2));
    windows.large.store(pointer(large), Ordering::Release);
    let table = tables::table_at(cpu_base(cpu), 1, &mut || super::alloc_frames(0))?;
    let (base, first) = (cpu_base(cpu).0, pointer(tables::entry(table, cpu * SLOTS % TABLE_ENTRIES)));
    let offset = (first.addr() as u64).wrapping_sub(base >> PAGE_PER_ENTRY);
    windows.entry_offset.store(offset, Ordering::Relaxed);
    windows.slots.place(base);
    windows.heed_tracing();
    windows.base.store(base, Ordering::Release);
    windows.forgets_at_close.store(IS_STRICT.load(Ordering::Relaxed), Ordering::Relaxed);
    Ok(())
}

/// Access to a frame's bytes on this CPU, which the holder keeps; dropping it gives the window
/// back.
pub(super) struct Reached<const UNIT: u32 = OPEN> {
    pub(super) bytes: *mut [u8; PAGE_SIZE],
    /// The slot's entry; for a frame in the direct map an entry that is never used.
    entry: *const AtomicU64,
}

/// The placeholder entry for frames that need no window.
static NO_ENTRY: AtomicU64 = AtomicU64::new(0);

impl Reached {
    /// Access to a frame that is in the direct map.
    fn direct(frame: Pfn) -> Self {
        Self { bytes: tables::frame_ptr(frame).cast(), entry: &raw const NO_ENTRY }
    }
}

impl<const UNIT: u32> Drop for Reached<UNIT> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: an entry of this CPU's windows, or `NO_ENTRY`: both live for ever.
        let entry = unsafe { &*self.entry };
        if forgets_at_close() {
            close_and_forget(entry, self.bytes as u64);
        } else {
            entry.store(0, Ordering::Relaxed);
        }
        cpu::count_down::<UNIT>();
    }
}

/// Closes a window at `address`, and forgets it before anything else runs on this CPU.
#[inline(never)]
fn close_and_forget(entry: &AtomicU64, address: u64) {
    let _off = irq::disable();
    entry.store(0, Ordering::Relaxed);
    registers::invlpg(address);
}

/// Gives access to a frame's bytes; `BITS` ([`WINDOW`] or [`READING`]) says which. `NTH` is 1, or 2
/// if the caller has one window open, on another frame.
///
/// **Cost.** 29 instructions, including the check of the policy before it and [`Reached`]'s drop:
/// the policy 2, the context 4, the owner 7, the slot 5, the entry 7, giving back 4. Counting and
/// tracing cost none; 1/64 of the beginning of a lap costs one more. The lower limit is 20: the
/// same without the checks of owner and context.
///
/// # Panics
/// If the frame is not memory, belongs to the kernel's image (except for reading text and read-only
/// data), or is in a window of this CPU already; in an interrupt.
#[inline(always)]
fn reach<const NTH: u32, const BITS: u64>(frame: Pfn) -> Reached {
    cpu::count_up::<OPEN>();
    if is_programs(frame)
        && !has_more_than::<NTH>()
        && let Some(slot) = take_slot()
    {
        return show(slot, frame, BITS);
    }
    reach_slowly(frame, BITS)
}

/// Opens the window at the address `slot`, which was just taken on this CPU.
#[inline(always)]
pub(super) fn show<const UNIT: u32>(slot: u64, frame: Pfn, bits: u64) -> Reached<UNIT> {
    let entry = entry_at(slot, of_this_cpu::<{ offset_of!(Windows, entry_offset) }>());
    // SAFETY: the lap has slots once `attach` gave this CPU its entries, and `slot` is the address
    // of one of them.
    unsafe { &*entry }.store(tables::leaf(frame, bits), Ordering::Release);
    Reached { bytes: slot as *mut _, entry }
}

/// Handles the cases that [`reach`] does not: another run of slots, a further window, a frame that
/// belongs to no program, or a CPU without windows.
#[cold]
#[inline(never)]
fn reach_slowly(frame: Pfn, bits: u64) -> Reached {
    if is_kernels(frame) {
        return Reached::direct(frame);
    }
    let windows = &cpu::this().windows;
    // The present window is counted already.
    let has_others = cpu::preemption_count() >= 2 * OPEN;
    let others = || if has_others { windows.open() } else { 0 };
    if is_programs(frame) && !has_more_than::<1>() && windows.exist() {
        let slot = windows.take(others);
        return windows.begin_run(slot, frame, bits);
    }
    let is_memory = boot::info().is_plain_memory(frame) || pluggable::is_plugged(frame);
    // The image of one node, if this CPU uses another node's.
    let is_image = bits == READING && boot::read_only_frames().contains(frame);
    assert!(is_memory || is_image, "{frame:?} is not memory that may be touched");
    if direct::contains(frame) {
        return Reached::direct(frame);
    }
    assert!(windows.exist(), "no windows on this CPU yet");
    assert!(may_open(), "a window in an interrupt");
    let open = others();
    assert!(
        !each_of(open).any(|slot| tables::frame_of(windows.entry(slot).load(Ordering::Relaxed)) == frame),
        "{frame:?} is in a window already"
    );
    let slot = windows.take(|| open);
    windows.begin_run(slot, frame, bits)
}

/// Whether a window may be opened here: not in an interrupt's handler. A refusal is counted.
pub(crate) fn may_open() -> bool {
    let opens = cpu::preemption_count() & INTERRUPTS == 0;
    if !opens {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    opens
}

/// Returns the number of windows that were refused in interrupts so far.
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// Whether this CPU has a window open, or serves an interrupt.
fn is_open(per_cpu: &PerCpu) -> bool {
    per_cpu.preemption.load(Ordering::Relaxed) >= OPEN
}

/// Notes that this CPU has just flushed all non-global translations. If windows were opened before,
/// their deadline stays.
#[inline]
pub(crate) fn forgotten() {
    let per_cpu = cpu::this();
    if !is_open(per_cpu) {
        per_cpu.windows.slots.forgotten();
    }
}

/// Flushes the windows that were closed on this CPU, if the policy limits their time. No window is
/// open.
pub fn forget_closed() {
    if policy().bounds_time() {
        let _off = irq::disable();
        let windows = &cpu::this().windows;
        windows.slots.forget_closed(windows);
    }
}

/// Notes that a kernel task gets this CPU while a program's address space stays loaded. Interrupts
/// are off.
pub fn lend() {
    cpu::this().windows.slots.lend();
}

/// Notes that a program's task gets this CPU, with its address space loaded. Windows that kernel
/// tasks opened meanwhile are flushed, so that they are not cached while the program runs.
/// Interrupts are off.
pub fn take_back() {
    if cpu::this().windows.slots.take_back() {
        forget_closed();
    }
}

/// Returns the rules that hold for the kernel half.
pub fn map_rules() -> Rules {
    let start = layout().windows;
    Rules {
        root: tables::root(),
        windows: start..start + super::layout::WINDOWS_SPAN,
        stacks: layout().dynamic..layout().dynamic + super::layout::DYNAMIC_SPAN,
        read_only: boot::read_only_frames(),
        exclusive: policy().is_exclusive(),
    }
}

/// The alarm of this CPU's closed windows has come. Interrupts are off. Returns the nanoseconds
/// after which the next one comes, if any.
pub(crate) fn expire() -> Option<u64> {
    let per_cpu = cpu::this();
    // The interrupt itself counts: windows that lie below it are forgotten later.
    let open = (per_cpu.preemption.load(Ordering::Relaxed) & !INTERRUPTS) / OPEN;
    per_cpu.windows.slots.expire(open, &per_cpu.windows)
}

/// Whether the deadline of this CPU's closed windows has passed and its interrupt has not come yet:
/// interrupts are off, or a host delivers it late.
pub(crate) fn is_overdue() -> bool {
    cpu::this().windows.deadline.load(Ordering::Relaxed) <= time::now()
}

/// An interrupt's handler begins on this CPU: no windows until [`leave_interrupt`].
#[inline]
pub(crate) fn enter_interrupt() {
    cpu::count_up::<INTERRUPT>();
}

/// Ends the effect of [`enter_interrupt`].
#[inline]
pub(crate) fn leave_interrupt() {
    cpu::count_down::<INTERRUPT>();
}

/// Windows opened, and laps begun, on all CPUs.
pub fn totals() -> [u64; 2] {
    let each = cpu::online().iter().filter_map(cpu::of).map(|per_cpu| per_cpu.windows.slots.counts());
    each.fold([0; 2], |[windows, laps], [more, others]| [windows + more, laps + others])
}

impl PhysicalBytes for X86 {
    fn zero_run(self, first: Pfn, count: u64) {
        let block = PfnRange::new(first, first.offset(count));
        if !is_block(block) || !zero_block(block) {
            self.with_run(first, 0..count as usize * PAGE_SIZE, |_, bytes| bytes.fill(0));
        }
    }
    fn with_run(self, first: Pfn, range: Range<usize>, f: impl FnMut(usize, &mut [u8])) {
        runs::with_run(first, range, f);
    }
    fn read_run(self, first: Pfn, range: Range<usize>, f: impl FnMut(usize, &[u8])) {
        runs::read_run(first, range, f);
    }
    #[inline(always)]
    fn with_bytes<R>(self, frame: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        if is_off() && is_programs(frame) {
            let bytes = tables::frame_ptr(frame).cast::<[u8; PAGE_SIZE]>();
            // SAFETY: all memory is in the direct map; the callers of this trait own the frames
            // that they name.
            return f(unsafe { &mut *bytes });
        }
        let reached = reach::<1, WINDOW>(frame);
        // SAFETY: while `reached` lives, its pointer leads to the frame on this CPU, with no stale
        // translation of the slot's last lap and no other window of this CPU on it. Frames in the
        // direct map are the kernel's: the callers of this trait own the frames that they name.
        f(unsafe { &mut *reached.bytes })
    }
    #[inline(always)]
    fn read_bytes<R>(self, frame: Pfn, f: impl FnOnce(&[u8; PAGE_SIZE]) -> R) -> R {
        if is_off() && is_programs(frame) {
            // SAFETY: as in `with_bytes`.
            return f(unsafe { &*tables::frame_ptr(frame).cast() });
        }
        let reached = reach::<1, READING>(frame);
        // SAFETY: as in `with_bytes`.
        f(unsafe { &*reached.bytes })
    }
    fn zero_at(self, addr: VirtAddr) -> bool {
        usercopy::zero_page(addr)
    }
    fn copy_at(self, from: Pfn, addr: VirtAddr) -> bool {
        self.read_bytes(from, |page| usercopy::write_page(addr, page))
    }
    #[inline(always)]
    fn has_windows(self) -> bool {
        !is_off()
    }
    #[inline(always)]
    fn with_two<R>(
        self,
        to: Pfn,
        from: Pfn,
        f: impl FnOnce(&mut [u8; PAGE_SIZE], &[u8; PAGE_SIZE]) -> R,
    ) -> R {
        assert!(to != from, "one frame cannot be copied to itself");
        if is_off() && is_programs(to) && is_programs(from) {
            let [to, from] = [to, from].map(|frame| tables::frame_ptr(frame).cast::<[u8; PAGE_SIZE]>());
            // SAFETY: as in `with_bytes`; the frames differ.
            let from = unsafe { &*from };
            // SAFETY: as above.
            return f(unsafe { &mut *to }, from);
        }
        let to = reach::<1, WINDOW>(to);
        let from = reach::<2, READING>(from);
        // SAFETY: as in `with_bytes`; the frames differ.
        let source = unsafe { &*from.bytes };
        // SAFETY: as above.
        f(unsafe { &mut *to.bytes }, source)
    }
}
