//! CPUs: their private data, numbers and nodes, preemption.
//!
//! [`PerCpu`] is accessed through the GS base, which in the kernel always points to it (user mode's
//! is swapped in on the way out). Its fields are atomics that only their CPU writes, unless said
//! otherwise.

use core::arch::asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use freehold_machine::{
    CpuId, CpuSet, Cpus, Flush, MAX_CPUS, Machine, NodeId, PAGE_SIZE, PAGEBLOCK_FRAMES, Pfn, Tlb, Topology,
    VirtAddr,
};
use freehold_tracepoints::TraceEvent;
use freehold_tracepoints::table::TlbFlush;

use crate::apic::{self, Ipi};
use crate::entropy::CpuRandom;
use crate::heap::magazine::Magazines;
use crate::irq;
use crate::memory::tables;
use crate::memory::windows::{self, Windows};
use crate::registers::{
    self, CR0_ALIGNMENT, CR0_WRITE_PROTECT, CR4_FSGSBASE, CR4_MCE, CR4_OSFXSR, CR4_OSXMMEXCPT, CR4_OSXSAVE,
    CR4_PGE, CR4_PKE, CR4_SMAP, CR4_SMEP, CR4_UMIP, cpuid, enable_interrupts_and_halt, invlpg, read_cr0,
    read_cr3, read_cr4, write_cr0, write_cr3, write_cr4,
};
use crate::speculation;
use crate::static_keys;
use crate::thread::Threads;
use crate::time;
use crate::traps::{self, Descriptors, OWN_STACKS};
use crate::user::{self, Resident};

mod start;

pub use start::start_secondary;

const CR0_MONITOR: u64 = 1 << 1;
const CR0_EMULATION: u64 = 1 << 2;
const CR0_NATIVE_ERRORS: u64 = 1 << 5;

/// The machine: a zero-sized handle to this CPU and its memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct X86;

/// Data of one CPU.
#[repr(C)]
pub(crate) struct PerCpu {
    /// This structure's own address: the value at `gs:[0]`.
    this: AtomicPtr<PerCpu>,
    pub(crate) number: AtomicU32,
    pub(crate) preemption: AtomicU32,
    pub(crate) apic_id: AtomicU32,
    /// `entry.s`: the kernel's stack pointer after user mode.
    pub(crate) kernel_stack: AtomicU64,
    /// `entry.s`: the end of the running program's registers.
    pub(crate) context_end: AtomicU64,
    /// `entry.s`: the program's stack pointer during SYSCALL.
    pub(crate) user_stack: AtomicU64,
    /// `entry.s`: VERW's operand, the selector of the kernel's data.
    pub(crate) kernel_data: AtomicU32,
    /// The program whose floating-point registers, segment bases and selectors this CPU holds.
    pub(crate) user_live: AtomicPtr<Resident>,
    /// The lowest addresses of the stacks of NMI, double fault and machine check.
    pub(crate) own_stacks: [AtomicU64; OWN_STACKS],
    pub(crate) threads: Threads,
    pub(crate) descriptors: Descriptors,
    pub(crate) windows: Windows,
    /// Time of the kernel's next timer interrupt, as [`crate::time::now`] counts; `u64::MAX` for
    /// never.
    pub(crate) timer: AtomicU64,
    pub(crate) flush: FlushRequest,
    pub(crate) random: CpuRandom,
    /// The purpose of this CPU's allocations at this moment; see [`crate::heap`].
    pub(crate) heap_use: AtomicU8,
    /// Free objects of the heap that this CPU keeps.
    pub(crate) magazines: Magazines,
    /// Free objects that this CPU keeps while objects are charged.
    pub(crate) charged_magazines: Magazines,
    /// Number of interrupt-safe locks that this CPU holds ([`crate::sync::order`]).
    pub(crate) irq_locks: AtomicU32,
    /// Number of flush requests of other CPUs that this CPU has served.
    shootdowns: AtomicU64,
    /// Whether a probe's handler runs.
    pub(crate) is_in_probe: AtomicBool,
    /// The interrupt flag of code whose instruction runs in a probe's slot.
    pub(crate) probed_flags: AtomicU64,
}

impl PerCpu {
    pub(crate) const fn new() -> Self {
        Self {
            this: AtomicPtr::new(core::ptr::null_mut()),
            number: AtomicU32::new(0),
            preemption: AtomicU32::new(0),
            apic_id: AtomicU32::new(0),
            kernel_stack: AtomicU64::new(0),
            context_end: AtomicU64::new(0),
            user_stack: AtomicU64::new(0),
            kernel_data: AtomicU32::new(0x18),
            user_live: AtomicPtr::new(core::ptr::null_mut()),
            own_stacks: [const { AtomicU64::new(0) }; OWN_STACKS],
            threads: Threads::new(),
            descriptors: Descriptors::new(),
            windows: Windows::new(),
            timer: AtomicU64::new(u64::MAX),
            flush: FlushRequest::new(),
            random: CpuRandom::new(),
            heap_use: AtomicU8::new(0),
            magazines: Magazines::new(),
            charged_magazines: Magazines::new(),
            irq_locks: AtomicU32::new(0),
            shootdowns: AtomicU64::new(0),
            is_in_probe: AtomicBool::new(false),
            probed_flags: AtomicU64::new(0),
        }
    }
}

static FIRST: PerCpu = PerCpu::new();
/// The number of CPUs that will run.
static COUNT: AtomicUsize = AtomicUsize::new(1);
/// The CPUs that run: a flush interrupts them.
static ONLINE: AtomicU64 = AtomicU64::new(1);
static ALL: [AtomicPtr<PerCpu>; MAX_CPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];

/// Gives the CPU that runs this code its private data.
///
/// # Panics
/// For a number that is not below [`MAX_CPUS`].
fn adopt(per_cpu: &'static PerCpu, number: usize) {
    let slot = &ALL[number];
    per_cpu.this.store(core::ptr::from_ref(per_cpu).cast_mut(), Ordering::Relaxed);
    per_cpu.number.store(number as u32, Ordering::Relaxed);
    slot.store(core::ptr::from_ref(per_cpu).cast_mut(), Ordering::Release);
    // SAFETY: GS is used for nothing but this pointer, which stays valid for ever.
    unsafe { registers::wrmsr(registers::MSR_GS_BASE, core::ptr::from_ref(per_cpu) as u64) };
}

/// The first CPU's private data; before anything else in Rust.
pub(crate) fn adopt_first() {
    adopt(&FIRST, 0);
}

/// This CPU's private data. A hint only, unless the caller stays on this CPU.
pub(crate) fn this() -> &'static PerCpu {
    let this: *const PerCpu;
    // SAFETY: GS points to this CPU's PerCpu, whose first field is its own address, written once.
    unsafe { asm!("mov {}, gs:[0]", out(reg) this, options(nostack, preserves_flags, readonly)) };
    // SAFETY: PerCpu structures live for ever and are only shared.
    unsafe { &*this }
}

/// Whether `base` is the address of the private data of the CPU that runs this code, which is
/// identified by the interrupt controller.
#[cfg(feature = "entry-checks")]
pub(crate) fn is_this(base: u64) -> bool {
    let known = ALL.iter().map(|slot| slot.load(Ordering::Acquire)).find(|&slot| slot as u64 == base);
    // SAFETY: an entry that is not null points to a PerCpu that lives for ever.
    let per_cpu = known.and_then(|slot| unsafe { slot.as_ref() });
    per_cpu.is_some_and(|per_cpu| per_cpu.apic_id.load(Ordering::Relaxed) == apic::id())
}

/// Raise this CPU's preemption count by `N`, in one instruction.
#[inline(always)]
pub(crate) fn count_up<const N: u32>() {
    // SAFETY: GS points to this CPU's PerCpu, whose count is changed by this CPU only.
    unsafe {
        asm!("add dword ptr gs:[{}], {}", const offset_of!(PerCpu, preemption), const N as i32, options(nostack))
    };
}

/// Lowers the count by the amount that [`count_up`] raised it.
#[inline(always)]
pub(crate) fn count_down<const N: u32>() {
    // SAFETY: as in `count_up`.
    unsafe {
        asm!("sub dword ptr gs:[{}], {}", const offset_of!(PerCpu, preemption), const N as i32, options(nostack))
    };
}

/// Returns the number of nested reasons to stay on this CPU; 0 means that the caller may block.
pub fn preemption_count() -> u32 {
    this().preemption.load(Ordering::Relaxed)
}

/// Returns the private data of `cpu`, if it has started.
pub(crate) fn of(cpu: CpuId) -> Option<&'static PerCpu> {
    let per_cpu = ALL.get(usize::from(cpu.0))?.load(Ordering::Acquire);
    // SAFETY: an entry is null or points to a PerCpu that lives for ever.
    unsafe { per_cpu.as_ref() }
}

/// The private data of all CPUs that have started.
pub(crate) fn all() -> impl Iterator<Item = &'static PerCpu> {
    (0..MAX_CPUS).filter_map(|number| of(CpuId(number as u16)))
}

/// Returns the number of `cpu` on the interrupt bus, if it has started.
pub(crate) fn apic_id(cpu: CpuId) -> Option<u32> {
    of(cpu).map(|per_cpu| per_cpu.apic_id.load(Ordering::Relaxed))
}

/// Turns on the protections and features that this kernel relies on, on this CPU.
///
/// # Panics
/// If the CPU lacks a required one.
pub(crate) fn enable_features() {
    let leaf7 = cpuid(7, 0);
    assert!(
        leaf7.ebx & (1 << 7 | 1 << 20) == (1 << 7 | 1 << 20),
        "this kernel needs a CPU with SMEP and SMAP"
    );
    let mut features = read_cr4() | CR4_PGE | CR4_OSFXSR | CR4_OSXMMEXCPT | CR4_SMEP | CR4_SMAP;
    if leaf7.ecx & 1 << 2 != 0 {
        features |= CR4_UMIP;
    }
    if leaf7.ebx & 1 != 0 {
        features |= CR4_FSGSBASE;
    }
    let leaf1 = cpuid(1, 0);
    if leaf1.ecx & 1 << 26 != 0 {
        features |= CR4_OSXSAVE;
        // Protection keys, whose rights are an XSAVE component.
        if leaf7.ecx & 1 << 3 != 0 && cpuid(0xd, 0).eax & 1 << 9 != 0 {
            features |= CR4_PKE;
        }
    }
    if leaf1.edx & 1 << 7 != 0 {
        features |= CR4_MCE;
    }
    // SAFETY: global pages, protections against user memory, floating point and base registers for
    // programs, machine checks: no mapping changes.
    unsafe { write_cr4(features) };
    let cr0 = read_cr0() & !CR0_EMULATION | CR0_MONITOR | CR0_NATIVE_ERRORS;
    // SAFETY: write protection, native x87 errors, no emulation, alignment checks (in user mode
    // only): no mapping changes.
    unsafe { write_cr0(cr0 | CR0_WRITE_PROTECT | CR0_ALIGNMENT) };
}

/// Whether programs may use BMI2 (MULX and similar instructions).
pub fn has_bmi2() -> bool {
    cpuid(7, 0).ebx & 1 << 8 != 0
}

/// Whether programs' states are saved with XSAVE.
pub(crate) fn has_xsave() -> bool {
    read_cr4() & CR4_OSXSAVE != 0
}

/// Whether user pages have protection keys on this CPU.
pub(crate) fn has_protection_keys() -> bool {
    read_cr4() & CR4_PKE != 0
}

/// Sets up this CPU, whose private data and page tables are in place: descriptors, windows,
/// interrupt controller, floating point.
///
/// # Panics
/// If there is no memory for that, which only happens at start-up.
#[cold]
pub(crate) fn init_this(number: usize) {
    let per_cpu = this();
    let ready = traps::init_cpu(per_cpu).and_then(|()| windows::attach(per_cpu, number));
    assert!(ready.is_ok(), "too little memory to start CPU {number}");
    apic::enable();
    per_cpu.apic_id.store(apic::id(), Ordering::Relaxed);
    user::init_cpu();
    traps::machine_check::init_cpu();
    speculation::init_this();
}

/// Interrupts `cpu` so that it checks its run queue ([`crate::traps::Handlers::reschedule`]).
pub fn send_reschedule(cpu: CpuId) {
    send(cpu, irq::VECTOR_RESCHEDULE);
}

/// Interrupts `cpu` with `vector`, if it has started.
#[inline]
pub(crate) fn send(cpu: CpuId, vector: u8) {
    if let Some(apic_id) = apic_id(cpu) {
        let _off = irq::disable();
        apic::send(apic_id, Ipi::Vector(vector));
    }
}

/// Send an NMI to `cpu`.
#[cfg(feature = "entry-checks")]
pub fn send_nmi(cpu: CpuId) {
    if let Some(apic_id) = apic_id(cpu) {
        let _off = irq::disable();
        apic::send(apic_id, Ipi::Nmi);
    }
}

/// Waits for an interrupt. Called with interrupts off, after the last check for work. Interrupts
/// are on when this returns, and no interrupt in between was missed.
pub fn idle() {
    // A closed window's translation must not outlive its deadline while the CPU sleeps, nor wake
    // the CPU for that.
    windows::forget_closed();
    time::disarm_for_windows();
    enable_interrupts_and_halt();
}

/// This CPU's number on the interrupt bus.
pub fn bus_id() -> u32 {
    apic::id()
}

/// Sets the machine's nodes, each CPU's node, and the number of CPUs that will run (at most
/// [`MAX_CPUS`]): once, after firmware's tables are read. From then on [`Cpus::cpu_count`] returns
/// that number. Flushes are sent to the CPUs that run already.
pub fn set_topology(topology: &Topology, cpus: usize) {
    COUNT.store(cpus.clamp(1, MAX_CPUS), Ordering::Relaxed);
    NODES.store(topology.node_count(), Ordering::Relaxed);
    for (slot, node) in CPU_NODES.iter().enumerate() {
        node.store(topology.node_of_cpu(CpuId(slot as u16)).0, Ordering::Relaxed);
    }
    traps::tell_place(this());
}

/// The CPUs that run at this moment.
pub fn online() -> CpuSet {
    CpuSet(ONLINE.load(Ordering::Acquire))
}

impl Cpus for X86 {
    fn current_cpu(self) -> CpuId {
        let number = this().number.load(Ordering::Relaxed);
        // SAFETY: the field is 0 at first, and only `adopt` stores it, after a bounds check. So
        // tables of CPUs are indexed without another check.
        unsafe { core::hint::assert_unchecked((number as usize) < MAX_CPUS) };
        CpuId(number as u16)
    }
    fn cpu_count(self) -> usize {
        COUNT.load(Ordering::Relaxed)
    }
    fn node_of_cpu(self, cpu: CpuId) -> NodeId {
        NodeId(CPU_NODES.get(usize::from(cpu.0)).map_or(0, |node| node.load(Ordering::Relaxed)))
    }
    fn disable_preemption(self) {
        let count = &this().preemption;
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
    fn enable_preemption(self) {
        let count = &this().preemption;
        count.store(count.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
    #[inline(always)]
    fn is_traced<const EVENT: usize>(self) -> bool {
        static_keys::is_on::<EVENT>()
    }
    #[inline(always)]
    fn charges_frames(self) -> bool {
        static_keys::is_on::<{ static_keys::StaticKey::CHARGES }>()
    }
    #[inline(always)]
    fn mirrors_text(self) -> bool {
        static_keys::is_on::<{ static_keys::StaticKey::MIRRORS }>()
    }
    #[cold]
    #[inline(never)]
    fn record_event(self, event: usize, fields: &[u64]) {
        traps::handlers().record_event(event, fields);
    }
}

/// Linux' reasons of a flush, as the tracepoint has them.
const REMOTE_SEND: i32 = 4;
const LOCAL: i32 = 3;

/// The tracepoint of a flush.
#[inline(always)]
fn trace_flush(reason: i32, what: Flush) {
    if X86.is_traced::<{ TlbFlush::NUMBER }>() {
        record_flush(reason, what);
    }
}

#[cold]
#[inline(never)]
fn record_flush(reason: i32, what: Flush) {
    X86.record_event(TlbFlush::NUMBER, &TlbFlush { reason, pages: pages_of(what) }.words());
}

/// The number of pages in the tracepoint of a flush; -1 for all.
fn pages_of(what: Flush) -> i64 {
    match what {
        Flush::Range { pages, .. } => pages as i64,
        Flush::Blocks { blocks, .. } => (blocks * PAGEBLOCK_FRAMES) as i64,
        Flush::NonGlobal | Flush::All => -1,
    }
}

/// Above this number of pages, flushing everything is cheaper.
const FLUSH_CEILING: u64 = 32;

impl Tlb for X86 {
    fn flush_local(self, what: Flush) {
        match what {
            Flush::Range { start, pages } if pages <= FLUSH_CEILING => {
                for page in 0..pages {
                    invlpg(start.0 + page * PAGE_SIZE as u64);
                }
            }
            // The entry is gone. One INVLPG flushes everything that was cached of a leaf (SDM
            // 4.10.4.1), also if the leaf is cached in pieces.
            Flush::Blocks { start, blocks } if blocks <= FLUSH_CEILING => {
                for block in 0..blocks {
                    invlpg(start.0 + block * (PAGE_SIZE as u64 * PAGEBLOCK_FRAMES));
                }
            }
            Flush::NonGlobal => {
                // SAFETY: loading the present root again only flushes.
                unsafe { write_cr3(read_cr3()) };
                windows::forgotten();
            }
            Flush::Range { .. } | Flush::Blocks { .. } | Flush::All => {
                let features = read_cr4();
                // SAFETY: PGE off and on again flushes every translation and changes no mapping.
                unsafe { write_cr4(features & !CR4_PGE) };
                // SAFETY: as above.
                unsafe { write_cr4(features) };
                windows::forgotten();
            }
        }
    }
    fn flush_on(self, cpus: CpuSet, what: Flush) {
        let pinned = self.pin();
        let this_cpu = pinned.cpu();
        let others = cpus.without(this_cpu).0 & online().0;
        if others != 0 {
            trace_flush(REMOTE_SEND, what);
            this().flush.send(CpuSet(others), what);
        }
        if cpus.contains(this_cpu) {
            trace_flush(LOCAL, what);
            self.flush_local(what);
        }
        if others != 0 {
            while this().flush.pending.load(Ordering::Acquire) != 0 {
                // Two CPUs that wait for each other serve each other's requests, with interrupts
                // off, too.
                serve_flushes();
                self.relax();
            }
        }
    }
    fn hold_flushes<R>(self, f: impl FnOnce() -> R) -> R {
        // Requests of other CPUs come as interrupts, and `f` does not check for them.
        let _off = irq::disable();
        f()
    }
    fn load_root(self, root: Pfn) {
        // SAFETY: every root copies the kernel half from the kernel's root, so all that Rust code
        // uses stays mapped; the lower half holds no Rust object.
        unsafe { write_cr3(root.start().0) };
        windows::forgotten();
    }
    fn current_root(self) -> Pfn {
        tables::frame_of(read_cr3())
    }
}

impl Machine for X86 {
    fn node_count(self) -> usize {
        NODES.load(Ordering::Relaxed)
    }
}

/// One CPU's flush request to the others. Its CPU writes it, pinned, while no bit of `pending` is
/// set.
pub(crate) struct FlushRequest {
    /// The CPUs that have not flushed yet; each clears its own bit.
    pending: AtomicU64,
    start: AtomicU64,
    /// The number of pages, or one of the special values below.
    pages: AtomicU64,
}

const NON_GLOBAL: u64 = u64::MAX;
const EVERYTHING: u64 = u64::MAX - 1;
/// The number counts leaves of 2 MiB.
const BLOCKS: u64 = 1 << 32;

impl FlushRequest {
    const fn new() -> Self {
        Self { pending: AtomicU64::new(0), start: AtomicU64::new(0), pages: AtomicU64::new(0) }
    }
    fn send(&self, cpus: CpuSet, what: Flush) {
        let (start, pages) = match what {
            Flush::Range { start, pages } if pages <= FLUSH_CEILING => (start.0, pages),
            Flush::Blocks { start, blocks } if blocks <= FLUSH_CEILING => (start.0, blocks | BLOCKS),
            Flush::NonGlobal => (0, NON_GLOBAL),
            Flush::Range { .. } | Flush::Blocks { .. } | Flush::All => (0, EVERYTHING),
        };
        self.start.store(start, Ordering::Relaxed);
        self.pages.store(pages, Ordering::Relaxed);
        self.pending.store(cpus.0, Ordering::Release);
        let _off = irq::disable();
        for cpu in cpus.iter() {
            if let Some(apic_id) = apic_id(cpu) {
                apic::send(apic_id, Ipi::Vector(irq::VECTOR_SHOOTDOWN));
            }
        }
    }
    fn serve(&self, bit: u64) {
        if self.pending.load(Ordering::Acquire) & bit == 0 {
            return;
        }
        let start = VirtAddr(self.start.load(Ordering::Relaxed));
        X86.flush_local(match self.pages.load(Ordering::Relaxed) {
            NON_GLOBAL => Flush::NonGlobal,
            EVERYTHING => Flush::All,
            blocks if blocks & BLOCKS != 0 => Flush::Blocks { start, blocks: blocks & !BLOCKS },
            pages => Flush::Range { start, pages },
        });
        let served = &this().shootdowns;
        served.store(served.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.pending.fetch_and(!bit, Ordering::Release);
    }
}

/// Does the flushes that other CPUs request from this one.
pub(crate) fn serve_flushes() {
    let _off = irq::disable();
    let bit = 1 << this().number.load(Ordering::Relaxed);
    for cpu in online().iter() {
        if let Some(per_cpu) = of(cpu) {
            per_cpu.flush.serve(bit);
        }
    }
}

/// Returns the number of flush requests of other CPUs that `cpu` has served.
pub fn shootdowns(cpu: CpuId) -> u64 {
    of(cpu).map_or(0, |per_cpu| per_cpu.shootdowns.load(Ordering::Relaxed))
}

static NODES: AtomicUsize = AtomicUsize::new(1);
static CPU_NODES: [AtomicU8; MAX_CPUS] = [const { AtomicU8::new(0) }; MAX_CPUS];
