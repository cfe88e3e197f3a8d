//! Segment descriptors, the task state and the interrupt descriptor table.
//!
//! The selectors are those that user programs of Linux see: user code 0x33, user data 0x2b.
//! Manual: Intel SDM volume 3, 3.4.5, 5.8.8 (SYSCALL), 6.14, 7.7.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use freehold_machine::{Cpus, VirtAddr};
use freehold_vdso::{CPU_SELECTOR, NODE_SHIFT};

use crate::X86;
use crate::cpu::{self, PerCpu};
use crate::memory::OutOfMemory;
use crate::registers::{self, MSR_CSTAR, MSR_EFER, MSR_FMASK, MSR_LSTAR, MSR_STAR, MSR_TSC_AUX};
use crate::vmap;

const KERNEL_CODE: u16 = 0x10;
const TASK: u16 = 0x40;
/// SYSCALL loads CS = 0x10 and SS = 0x18; SYSRET CS = 0x23 + 16 and SS = 0x23 + 8.
const STAR: u64 = 0x23 << 48 | 0x10 << 32;
/// Cleared by SYSCALL: every flag that a program can set (CF PF AF ZF SF TF IF DF OF IOPL NT RF AC
/// ID), as in Linux' `syscall_init`.
const FLAGS_CLEARED: u64 = 0x25_7fd5;
const EFER_SYSCALL: u64 = 1;
/// NMI, double fault, machine check and debug exceptions have a stack of their own, in this order
/// (entries 1 to 4 of the IST).
pub(crate) const OWN_STACKS: usize = 4;
/// Pages of each; a guard page is below it.
const OWN_STACK_PAGES: u64 = 2;

/// Entries of a CPU's table: the segments, two for the task state, and the entries up to the last,
/// in which programs read the CPU's number.
const ENTRIES: usize = CPU_NUMBER + 1;
/// The segment whose limit is the CPU's number and its node (Linux: GDT_ENTRY_CPUNODE).
const CPU_NUMBER: usize = CPU_SELECTOR as usize / 8;
/// Attributes of that segment: present, of privilege 3, data that is read and accessed, limit in
/// bytes.
const CPU_NUMBER_SEGMENT: u64 = 0x0040_f100_0000_0000;

const SEGMENTS: [u64; 8] = [
    0,
    0,
    0x00af_9b00_0000_ffff, // 0x10 kernel code
    0x00cf_9300_0000_ffff, // 0x18 kernel data
    0x00cf_fb00_0000_ffff, // 0x20 user code, 32-bit: what SYSRET counts from
    0x00cf_f300_0000_ffff, // 0x28 user data
    0x00af_fb00_0000_ffff, // 0x30 user code
    0,
];

#[repr(C, packed(4))]
struct TaskState {
    reserved: u32,
    rsp: [u64; 3],
    reserved2: u64,
    ist: [u64; 7],
    reserved3: u64,
    reserved4: u16,
    io_map: u16,
}

/// One CPU's segment descriptors and task state. The CPU itself reads them; `entry.s` writes rsp0.
#[repr(C, align(16))]
pub(crate) struct Descriptors {
    segments: UnsafeCell<[u64; ENTRIES]>,
    task: UnsafeCell<TaskState>,
}

// SAFETY: written by its own CPU only, before it is loaded or (rsp0) by one instruction with
// interrupts off.
unsafe impl Sync for Descriptors {}

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

impl Descriptors {
    /// The address of the task state's rsp0.
    pub(crate) const RSP0: usize = offset_of!(Self, task) + offset_of!(TaskState, rsp);

    pub(crate) const fn new() -> Self {
        let task = TaskState {
            reserved: 0,
            rsp: [0; 3],
            reserved2: 0,
            ist: [0; 7],
            reserved3: 0,
            reserved4: 0,
            io_map: size_of::<TaskState>() as u16,
        };
        Self { segments: UnsafeCell::new([0; ENTRIES]), task: UnsafeCell::new(task) }
    }
}

/// Makes the stacks of the exceptions that have stacks of their own. Returns where each begins.
fn own_stacks(per_cpu: &'static PerCpu) -> Result<[u64; OWN_STACKS], OutOfMemory> {
    let mut stacks = [0; OWN_STACKS];
    for (stack, bottom) in stacks.iter_mut().zip(&per_cpu.own_stacks) {
        let guarded = vmap::fixed_stack(OWN_STACK_PAGES)?;
        bottom.store(guarded.start.0, Ordering::Relaxed);
        // `entry.s` reads the PerCpu's address here; a frame on the stack begins right below it.
        *stack = guarded.end.0 - 16;
        let slot = *stack as *mut u64;
        // SAFETY: the topmost 16 bytes of a new stack: mapped, writable, aligned, and not in use
        // yet.
        unsafe { slot.write(core::ptr::from_ref(per_cpu) as u64) };
    }
    Ok(stacks)
}

/// Replaces this CPU's stacks for those exceptions; the frames of the old ones are mapped no more.
/// Used at start-up, on the first CPU: its frames came from start-up's own, which the direct map
/// holds.
///
/// # Errors
/// If there is no memory for them; the old ones stay in use then.
pub(crate) fn renew_stacks() -> Result<(), OutOfMemory> {
    let per_cpu = cpu::this();
    let before = per_cpu.own_stacks.each_ref().map(|bottom| bottom.load(Ordering::Relaxed));
    let stacks = own_stacks(per_cpu)?;
    let task = per_cpu.descriptors.task.get().cast::<u8>();
    for (number, stack) in stacks.into_iter().enumerate() {
        let slot = task.wrapping_add(offset_of!(TaskState, ist) + 8 * number).cast::<u64>();
        // SAFETY: inside this CPU's own task state, which nothing else writes. The processor reads
        // it when an exception comes: one store, before or after that.
        unsafe { slot.write_unaligned(stack) };
    }
    before.map(VirtAddr).into_iter().for_each(|bottom| vmap::unmap(bottom, OWN_STACK_PAGES));
    Ok(())
}

/// Load this CPU's descriptors and set up SYSCALL. `per_cpu` is this CPU's; once per CPU.
///
/// # Errors
/// When there is no memory for the stacks of NMI, double fault, machine check and debug.
pub(crate) fn init_cpu(per_cpu: &'static PerCpu) -> Result<(), OutOfMemory> {
    let stacks = own_stacks(per_cpu)?;
    let task = per_cpu.descriptors.task.get();
    let own_stacks = task.wrapping_byte_add(offset_of!(TaskState, ist)).cast::<[u64; OWN_STACKS]>();
    // SAFETY: inside this CPU's own task state, not loaded yet: nothing else reads or writes it.
    unsafe { own_stacks.write_unaligned(stacks) };

    let base = task as u64;
    let low = (size_of::<TaskState>() as u64 - 1)
        | (base & 0xff_ffff) << 16
        | 0x89 << 40
        | (base >> 24 & 0xff) << 56;
    let mut segments = [0; ENTRIES];
    segments[..8].copy_from_slice(&SEGMENTS);
    segments[8] = low;
    segments[9] = base >> 32;
    let table = per_cpu.descriptors.segments.get();
    // SAFETY: this CPU's own table, not loaded yet.
    unsafe { table.write(segments) };
    let pointer = Pointer { limit: size_of::<[u64; ENTRIES]>() as u16 - 1, base: table as u64 };
    // SAFETY: the table stays for ever and its kernel segments are flat, as those in use are.
    unsafe {
        asm!(
            "lgdt [{pointer}]",
            "push {code}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "retfq",
            "2:",
            "mov ss, {data:e}",
            "mov ds, {null:e}",
            "mov es, {null:e}",
            "ltr {task:x}",
            pointer = in(reg) &raw const pointer,
            code = const KERNEL_CODE,
            data = in(reg) 0x18,
            null = in(reg) 0,
            task = in(reg) TASK,
            scratch = out(reg) _,
        )
    };
    let table = IDT.0.get();
    let pointer = Pointer { limit: size_of::<[Gate; 256]>() as u16 - 1, base: table as u64 };
    // SAFETY: the table stays for ever; `write_idt` filled it before any CPU gets here.
    unsafe { asm!("lidt [{}]", in(reg) &raw const pointer, options(readonly, nostack, preserves_flags)) };
    set_up_syscall();
    tell_place(per_cpu);
    Ok(())
}

/// Lets SYSCALL enter `entry.s`. Before user mode runs on this CPU.
fn set_up_syscall() {
    // SAFETY: every 64-bit CPU has EFER.
    let features = unsafe { registers::rdmsr(MSR_EFER) };
    // SAFETY: SYSCALL enters `syscall_entry`, set up next, from user mode only.
    unsafe { registers::wrmsr(MSR_EFER, features | EFER_SYSCALL) };
    let entry = symbols::syscall_entry as *const () as u64;
    // AMD's CPUs take SYSCALL in a 32-bit code segment too.
    let entry_32 = symbols::syscall_entry_32 as *const () as u64;
    for (register, value) in
        [(MSR_STAR, STAR), (MSR_LSTAR, entry), (MSR_CSTAR, entry_32), (MSR_FMASK, FLAGS_CLEARED)]
    {
        // SAFETY: user mode does not run yet; the values send it to `entry.s` with its selectors.
        unsafe { registers::wrmsr(register, value) };
    }
}

/// Let programs on this CPU, whose private data is `per_cpu`, read its number and node: as the
/// limit of [`CPU_SELECTOR`]'s segment, and by RDTSCP and RDPID, as on Linux.
pub(crate) fn tell_place(per_cpu: &'static PerCpu) {
    let cpu = X86.current_cpu();
    let place = u64::from(cpu.0) | u64::from(X86.node_of_cpu(cpu).0) << NODE_SHIFT;
    let descriptor = CPU_NUMBER_SEGMENT | place & 0xffff | (place >> 16) << 48;
    let entry = per_cpu.descriptors.segments.get().cast::<u64>().wrapping_add(CPU_NUMBER);
    // SAFETY: the last entry of this CPU's own table, which the kernel never loads a segment from;
    // programs read it with one access.
    unsafe { entry.write_volatile(descriptor) };
    if registers::has_tsc_aux() {
        // SAFETY: the value that RDTSCP and RDPID return to programs; the CPU has the register.
        unsafe { registers::wrmsr(MSR_TSC_AUX, place) };
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Gate {
    low: u64,
    high: u64,
}

/// The interrupt descriptor table of all CPUs; written once at start-up.
#[repr(C, align(4096))]
struct Idt(UnsafeCell<[Gate; 256]>);

// SAFETY: written by the first CPU before it or another loads it.
unsafe impl Sync for Idt {}

static IDT: Idt = Idt(UnsafeCell::new([Gate { low: 0, high: 0 }; 256]));

#[cfg(target_os = "none")]
mod symbols {
    unsafe extern "C" {
        pub fn trap_vectors();
        pub fn syscall_entry();
        pub fn syscall_entry_32();
    }
}
#[cfg(not(target_os = "none"))]
mod symbols {
    pub fn trap_vectors() {}
    pub fn syscall_entry() {}
    pub fn syscall_entry_32() {}
}

/// The address where the CPU continues for `vector`.
pub(crate) fn entry_of(vector: u64) -> u64 {
    symbols::trap_vectors as *const () as u64 + 16 * vector
}

/// The address of the table that all CPUs load.
pub(crate) fn interrupt_table() -> VirtAddr {
    VirtAddr(IDT.0.get() as u64)
}

/// Fill the table: interrupt gates, so that handlers start with interrupts off. On the first CPU
/// only.
pub(crate) fn write_idt() {
    let gates: [Gate; 256] = core::array::from_fn(|vector| {
        let target = entry_of(vector as u64);
        let own_stack = match vector {
            2 => 1,
            8 => 2,
            18 => 3,
            1 => 4,
            _ => 0u64,
        };
        // INT3 and INTO may be executed in user mode.
        let privilege = if vector == 3 || vector == 4 { 3 } else { 0u64 };
        let kind = 0x8e | privilege << 5;
        Gate {
            low: target & 0xffff
                | u64::from(KERNEL_CODE) << 16
                | own_stack << 32
                | kind << 40
                | (target >> 16 & 0xffff) << 48,
            high: target >> 32,
        }
    });
    // SAFETY: only the first CPU runs, and it has not loaded the table yet.
    unsafe { IDT.0.get().write(gates) };
}
