//! Starting the other CPUs: INIT, then start-up interrupts to all at once.
//!
//! Each runs the trampoline (`start.s`, copied below 1 MiB) on the loader's page tables, which
//! still map low memory and the image, draws a stack by ticket, loads the kernel's root, and finds
//! its number by its identifier on the interrupt bus. Manual: Intel SDM volume 3, 9.4.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use freehold_machine::{CpuId, CpuSet, Cpus, MAX_CPUS, PAGE_SIZE, Pfn};

use super::{ALL, ONLINE, PerCpu, adopt, enable_features, init_this};
use crate::apic::{self, Ipi};
use crate::memory::{self, tables};
use crate::sync::Once;
use crate::vmap::Stack;
use crate::{X86, irq, time};

/// Address where the trampoline runs: the page after the loader's stack (`boot.s`).
const TRAMPOLINE: Pfn = Pfn(0x58);
const INIT_WAIT_NS: u64 = 100_000;
const ONLINE_WAIT_NS: u64 = 2_000_000_000;

#[cfg(target_os = "none")]
core::arch::global_asm!(
    include_str!("start.s"),
    trampoline = const TRAMPOLINE.0 << 12,
    stacks = sym STACKS,
    ticket = sym TICKET,
    root = sym ROOT,
    main = sym main,
);

/// Start addresses of the stacks, one for each ticket.
static STACKS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
static TICKET: AtomicU32 = AtomicU32::new(0);
static ROOT: AtomicU64 = AtomicU64::new(0);
static IDS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(u32::MAX) }; MAX_CPUS];
static WAITING: [AtomicPtr<PerCpu>; MAX_CPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];
/// Number of CPUs that are set up, the first included.
static READY: AtomicUsize = AtomicUsize::new(1);
/// Whether the number of CPUs is final: from then on every flush reaches all of them.
static RELEASED: AtomicBool = AtomicBool::new(false);
static ENTRY: Once<fn(CpuId) -> !> = Once::new();

#[cfg(target_os = "none")]
fn trampoline() -> &'static [u8] {
    unsafe extern "C" {
        static secondary_start: u8;
        static secondary_end: u8;
    }
    let start = &raw const secondary_start;
    let len = &raw const secondary_end as usize - start as usize;
    // SAFETY: `start.s` puts the trampoline between the two symbols, in read-only memory.
    unsafe { core::slice::from_raw_parts(start, len) }
}
#[cfg(not(target_os = "none"))]
fn trampoline() -> &'static [u8] {
    &[]
}

/// Starts all CPUs except the first. `apic_ids` are the numbers of all CPUs on the interrupt bus,
/// in the order of their [`CpuId`]s; the first is this CPU. Each ends in `entry`, with interrupts
/// off, on a stack of 24 KiB. Returns how many CPUs run, this one included. Numbers have no gaps,
/// so if a CPU does not answer, the CPUs after it are not used.
///
/// # Panics
/// When called twice, or before the clock runs.
pub fn start_secondary(apic_ids: &[u32], entry: fn(CpuId) -> !) -> usize {
    ENTRY.set(entry);
    let wanted = prepare(apic_ids);
    if wanted <= 1 {
        return 1;
    }
    let code = trampoline();
    for (offset, &byte) in code.iter().enumerate() {
        let to = tables::frame_ptr(TRAMPOLINE).wrapping_add(offset);
        // SAFETY: the frame below 1 MiB is memory, in the direct map, reserved, and used for
        // nothing else.
        unsafe { to.write_volatile(byte) };
    }
    ROOT.store(tables::root().start().0, Ordering::Release);
    let send = |ipi| {
        let _off = irq::disable();
        apic_ids[1..wanted].iter().for_each(|&id| apic::send(id, ipi));
    };
    send(Ipi::Init);
    wait(INIT_WAIT_NS, || false);
    send(Ipi::Startup(TRAMPOLINE.0 as u8));
    // The second start-up interrupt is for CPUs that missed the first; a CPU that runs ignores it.
    if !wait(INIT_WAIT_NS, || READY.load(Ordering::Acquire) == wanted) {
        send(Ipi::Startup(TRAMPOLINE.0 as u8));
        wait(ONLINE_WAIT_NS, || READY.load(Ordering::Acquire) == wanted);
    }
    let answered = (1..wanted).take_while(|&n| !ALL[n].load(Ordering::Acquire).is_null()).count();
    ONLINE.store(CpuSet::first(answered + 1).0, Ordering::Release);
    RELEASED.store(true, Ordering::Release);
    answered + 1
}

/// The order of the frames that hold a CPU's private data.
const DATA_ORDER: u32 = size_of::<PerCpu>().div_ceil(PAGE_SIZE).next_power_of_two().trailing_zeros();

/// Makes private data for a CPU, in frames of its node if the node has some.
fn private_data(cpu: CpuId) -> Option<*mut PerCpu> {
    let frames = memory::alloc_frames_near(X86.node_of_cpu(cpu), DATA_ORDER)?;
    let data = tables::frame_ptr(frames).cast::<PerCpu>();
    // SAFETY: the frames are new, in the direct map for ever, aligned to a page, and large enough.
    unsafe { data.write(PerCpu::new()) };
    Some(data)
}

/// Makes stacks and private data on each CPU's node. Returns for how many CPUs there was memory.
fn prepare(apic_ids: &[u32]) -> usize {
    let mut wanted = 1;
    for (number, &id) in apic_ids.iter().enumerate().take(MAX_CPUS).skip(1) {
        let cpu = CpuId(number as u16);
        let Ok(stack) = Stack::new(X86.node_of_cpu(cpu)) else { break };
        let Some(data) = private_data(cpu) else { break };
        STACKS[number - 1].store(stack.start(), Ordering::Relaxed);
        // The stack is the CPU's for ever.
        core::mem::forget(stack);
        WAITING[number].store(data, Ordering::Relaxed);
        IDS[number].store(id, Ordering::Release);
        wanted = number + 1;
    }
    wanted
}

/// Waits until `done`, at most `nanoseconds`. Returns whether it is done.
fn wait(nanoseconds: u64, done: impl Fn() -> bool) -> bool {
    let end = time::now() + nanoseconds;
    while !done() {
        if time::now() >= end {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

/// A secondary CPU's first Rust: on its own stack and the kernel's root, interrupts off.
extern "C" fn main() -> ! {
    let id = apic::id_before_enable();
    let number = IDS.iter().position(|slot| slot.load(Ordering::Acquire) == id);
    let Some(number) = number else { crate::registers::halt_for_ever() };
    let per_cpu = WAITING[number].load(Ordering::Acquire);
    // SAFETY: `prepare` leaked it for this CPU, whose number is found once.
    adopt(unsafe { &*per_cpu }, number);
    enable_features();
    init_this(number);
    memory::replica::load_own(CpuId(number as u16));
    time::init_secondary();
    READY.fetch_add(1, Ordering::AcqRel);
    while !RELEASED.load(Ordering::Acquire) {
        core::hint::spin_loop();
    }
    (ENTRY.get().expect("set before the CPUs were started"))(CpuId(number as u16))
}
