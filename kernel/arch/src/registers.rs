//! Single instructions: ports, model-specific and control registers, CPUID, random bits.
//!
//! The functions that cannot break memory safety by themselves are safe; the others name the
//! caller's promises. Manual: Intel SDM volume 2 (instructions), volume 4 (MSRs).

use core::arch::asm;
use core::arch::x86_64::{__cpuid_count, CpuidResult};
use core::mem::MaybeUninit;

pub(crate) const MSR_APIC_BASE: u32 = 0x1b;
pub(crate) const MSR_MCG_CAP: u32 = 0x179;
pub(crate) const MSR_MCG_STATUS: u32 = 0x17a;
pub(crate) const MSR_MCG_CTL: u32 = 0x17b;
pub(crate) const MSR_MC0_CTL: u32 = 0x400;
pub(crate) const MSR_TSC_DEADLINE: u32 = 0x6e0;
pub(crate) const MSR_EFER: u32 = 0xc000_0080;
pub(crate) const MSR_STAR: u32 = 0xc000_0081;
pub(crate) const MSR_LSTAR: u32 = 0xc000_0082;
pub(crate) const MSR_CSTAR: u32 = 0xc000_0083;
pub(crate) const MSR_FMASK: u32 = 0xc000_0084;
pub(crate) const MSR_FS_BASE: u32 = 0xc000_0100;
pub(crate) const MSR_GS_BASE: u32 = 0xc000_0101;
pub(crate) const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;
/// The value that RDTSCP and RDPID return.
pub(crate) const MSR_TSC_AUX: u32 = 0xc000_0103;

pub(crate) const CR0_WRITE_PROTECT: u64 = 1 << 16;
/// Alignment checks, in user mode with AC set; ring 0 never raises one (Intel SDM volume 3, 6.15,
/// interrupt 17).
pub(crate) const CR0_ALIGNMENT: u64 = 1 << 18;

/// RDTSC and RDTSCP fault in user mode.
pub(crate) const CR4_TSD: u64 = 1 << 2;
pub(crate) const CR4_MCE: u64 = 1 << 6;
pub(crate) const CR4_PGE: u64 = 1 << 7;
pub(crate) const CR4_OSFXSR: u64 = 1 << 9;
pub(crate) const CR4_OSXMMEXCPT: u64 = 1 << 10;
pub(crate) const CR4_UMIP: u64 = 1 << 11;
/// RDFSBASE, RDGSBASE, WRFSBASE and WRGSBASE for programs.
pub(crate) const CR4_FSGSBASE: u64 = 1 << 16;
pub(crate) const CR4_OSXSAVE: u64 = 1 << 18;
pub(crate) const CR4_PKE: u64 = 1 << 22;
pub(crate) const CR4_SMEP: u64 = 1 << 20;
pub(crate) const CR4_SMAP: u64 = 1 << 21;

/// CPUID; a leaf beyond the highest reads as zeroes.
pub(crate) fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
    let highest = __cpuid_count(leaf & 0xf000_0000, 0).eax;
    if leaf > highest || highest & 0xf000_0000 != leaf & 0xf000_0000 {
        return CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    }
    __cpuid_count(leaf, subleaf)
}

/// Whether the CPU has [`MSR_TSC_AUX`]: with RDTSCP or RDPID.
pub(crate) fn has_tsc_aux() -> bool {
    cpuid(0x8000_0001, 0).edx & 1 << 27 != 0 || cpuid(7, 0).ecx & 1 << 22 != 0
}

/// The time-stamp counter.
pub(crate) fn rdtsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: RDTSC only reads a counter; CR4.TSD is for user mode only.
    unsafe { asm!("rdtsc", out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Returns 64 bits of RDSEED, if the CPU has it and it answers within a few tries.
pub(crate) fn rdseed() -> Option<u64> {
    if cpuid(7, 0).ebx & 1 << 18 == 0 {
        return None;
    }
    for _ in 0..16 {
        let (value, ok): (u64, u8);
        // SAFETY: the CPU has RDSEED (checked above); it writes registers and flags alone.
        unsafe { asm!("rdseed {}", "setc {}", out(reg) value, out(reg_byte) ok, options(nomem, nostack)) };
        if ok != 0 {
            return Some(value);
        }
    }
    None
}

/// Returns 64 bits of RDRAND, if the CPU has it and it answers within a few tries.
pub(crate) fn rdrand() -> Option<u64> {
    if cpuid(1, 0).ecx & 1 << 30 == 0 {
        return None;
    }
    for _ in 0..16 {
        let (value, ok): (u64, u8);
        // SAFETY: the CPU has RDRAND (checked above); it writes registers and flags alone.
        unsafe { asm!("rdrand {}", "setc {}", out(reg) value, out(reg_byte) ok, options(nomem, nostack)) };
        if ok != 0 {
            return Some(value);
        }
    }
    None
}

/// Read a model-specific register.
///
/// # Safety
/// The register exists on this CPU and reading it has no effect on memory.
pub(crate) unsafe fn rdmsr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags))
    };
    u64::from(high) << 32 | u64::from(low)
}

/// Write a model-specific register.
///
/// # Safety
/// The register exists and takes `value`. Every Rust reference stays valid with it.
pub(crate) unsafe fn wrmsr(register: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: the caller's promise. Not `nomem`: it may order or start other accesses.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") low, in("edx") high, options(nostack, preserves_flags))
    };
}

macro_rules! control_register {
    ($read:ident, $name:literal) => {
        #[doc = concat!("Read ", $name, ".")]
        pub(crate) fn $read() -> u64 {
            let value: u64;
            // SAFETY: reading a control register changes nothing.
            unsafe { asm!(concat!("mov {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)) };
            value
        }
    };
    ($read:ident, $write:ident, $name:literal) => {
        control_register!($read, $name);
        #[doc = concat!("Write ", $name, ".\n\n# Safety\nWhat it changes keeps every Rust reference valid.")]
        #[allow(dead_code)]
        pub(crate) unsafe fn $write(value: u64) {
            // SAFETY: the caller's promise.
            unsafe { asm!(concat!("mov ", $name, ", {}"), in(reg) value, options(nostack, preserves_flags)) };
        }
    };
}
control_register!(read_cr0, write_cr0, "cr0");
control_register!(read_cr2, "cr2");
control_register!(read_cr3, "cr3");
control_register!(read_cr4, write_cr4, "cr4");

/// Writes CR3. The value is stored first: an observer of the machine sees stores but no registers
/// (scope/doorbell).
///
/// # Safety
/// Every Rust reference stays valid under the new tables.
#[inline]
pub(crate) unsafe fn write_cr3(value: u64) {
    let mut told = MaybeUninit::<u64>::uninit();
    // SAFETY: the caller's promise; the store goes to `told`.
    unsafe {
        asm!("mov [{told}], {value}", "mov cr3, {value}", value = in(reg) value, told = in(reg) told.as_mut_ptr(),
            options(nostack, preserves_flags))
    };
}

/// Copies `words` words of 8 bytes upwards from address `from` to `to`, then writes CR3 as
/// [`write_cr3`], with no other store in between: the copied bytes may be the running code and its
/// stack.
///
/// # Safety
/// `from` is readable and `to` writable for as many words, no Rust object is in the second run, and
/// every Rust reference stays valid under the new tables.
pub(crate) unsafe fn copy_and_write_cr3(from: u64, to: u64, words: u64, value: u64) {
    let mut told = MaybeUninit::<u64>::uninit();
    // SAFETY: the caller's promise; the store goes to `told`.
    unsafe {
        asm!("rep movsq", "mov [{told}], rax", "mov cr3, rax", in("rax") value, told = in(reg) told.as_mut_ptr(),
            inout("rsi") from => _, inout("rdi") to => _, inout("rcx") words => _, options(nostack, preserves_flags))
    };
}

/// Flushes this CPU's translations of one page, global ones too. The address is stored first, as in
/// [`write_cr3`]. The two instructions, at most 7 bytes, are never in two pages: at a page border
/// QEMU's translator begins a new block, and an observer that cannot read registers does not
/// connect a block with the store before it.
#[inline]
pub(crate) fn invlpg(address: u64) {
    let mut told = MaybeUninit::<u64>::uninit();
    // SAFETY: flushing a translation never makes a valid access invalid; the store goes to `told`.
    // RAX: in this form every assembler encodes the operand as the register alone.
    unsafe {
        asm!(".p2align 3", "mov [{told}], rax", "invlpg [rax]", in("rax") address, told = in(reg) told.as_mut_ptr(),
            options(nostack, preserves_flags))
    };
}

/// Make all stores so far visible before anything that follows begins.
pub(crate) fn finish_stores() {
    // SAFETY: fences only wait. Not `nomem`: they order memory accesses.
    unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) };
}

/// RFLAGS.
pub(crate) fn read_flags() -> u64 {
    let flags: u64;
    // SAFETY: reads the flags through this function's own stack.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags
}

/// Reads and resets the debug status register. Its bits tell the cause of a debug exception (Intel
/// SDM volume 3, 17.2.3).
pub(crate) fn take_debug_status() -> u64 {
    const AT_RESET: u64 = 0xffff_0ff0;
    let status: u64;
    // SAFETY: debug registers describe exceptions and access no memory.
    unsafe { asm!("mov {}, dr6", out(reg) status, options(nomem, nostack, preserves_flags)) };
    // SAFETY: as above.
    unsafe { asm!("mov dr6, {}", in(reg) AT_RESET, options(nomem, nostack, preserves_flags)) };
    status
}

/// Whether a debug exception with this status was caused by watchpoints and nothing else.
pub(crate) fn is_watchpoint(status: u64) -> bool {
    /// Other causes: an access while debug registers were protected, a single step, a task switch.
    const OTHERS: u64 = 1 << 13 | 1 << 14 | 1 << 15;
    status & 0xf != 0 && status & OTHERS == 0
}

/// Whether an exception came before the kernel's GS base was loaded: then the other base is the
/// kernel's. For handlers on stacks of their own.
pub(crate) fn is_programs_gs_loaded() -> bool {
    // SAFETY: every x86-64 CPU has this register.
    let other = unsafe { rdmsr(MSR_KERNEL_GS_BASE) };
    other == core::ptr::from_ref(crate::cpu::this()) as u64
}

/// Whether QEMU emulates the CPU (TCG), by its signature.
pub(crate) fn is_emulated() -> bool {
    const SIGNATURE: u32 = u32::from_le_bytes(*b"TCGT");
    cpuid(0x4000_0000, 0).ebx == SIGNATURE
}

/// Arms hardware breakpoints and watchpoints: their addresses, and the debug control register
/// (Intel SDM volume 3, 17.2).
pub(crate) fn arm_watchpoints(addresses: &[u64; 4], control: u64) {
    // SAFETY: the caller enters user mode next; no address is the kernel's. A hit is an exception
    // with a stack of its own.
    unsafe {
        asm!(
            "mov dr0, {}", "mov dr1, {}", "mov dr2, {}", "mov dr3, {}", "mov dr7, {}",
            in(reg) addresses[0], in(reg) addresses[1], in(reg) addresses[2], in(reg) addresses[3], in(reg) control,
            options(nomem, nostack, preserves_flags)
        )
    };
}

/// Disarms all.
pub(crate) fn disarm_watchpoints() {
    const AT_RESET: u64 = 0x400;
    // SAFETY: clearing only prevents exceptions.
    unsafe { asm!("mov dr7, {}", in(reg) AT_RESET, options(nomem, nostack, preserves_flags)) };
}

/// DS, ES, FS and GS, 16 bits each from bit 0 on.
pub(crate) fn data_selectors() -> u64 {
    let (ds, es, fs, gs): (u64, u64, u64, u64);
    // SAFETY: copies four registers.
    unsafe {
        asm!("mov {ds:e}, ds", "mov {es:e}, es", "mov {fs:e}, fs", "mov {gs:e}, gs",
            ds = out(reg) ds, es = out(reg) es, fs = out(reg) fs, gs = out(reg) gs,
            options(nomem, nostack, preserves_flags))
    };
    ds | es << 16 | fs << 32 | gs << 48
}

/// Whether one of DS, ES, FS and GS is not null.
#[inline]
pub(crate) fn has_data_selectors() -> bool {
    let any: u32;
    // SAFETY: copies four registers.
    unsafe {
        asm!("mov {any:e}, ds", "mov {one:e}, es", "or {any:e}, {one:e}", "mov {one:e}, fs", "or {any:e}, {one:e}",
            "mov {one:e}, gs", "or {any:e}, {one:e}", any = out(reg) any, one = out(reg) _, options(nomem, nostack))
    };
    any != 0
}

/// The bases of FS and of user mode's GS.
///
/// # Safety
/// CR4.FSGSBASE is on and interrupts are off.
#[inline]
pub(crate) unsafe fn read_bases() -> (u64, u64) {
    let (fs, gs): (u64, u64);
    // SAFETY: the caller's promise. Only an NMI or a machine check can come between the two SWAPGS,
    // and their handlers accept any GS base.
    unsafe {
        asm!("rdfsbase {fs}", "swapgs", "rdgsbase {gs}", "swapgs", fs = out(reg) fs, gs = out(reg) gs,
            options(nostack, preserves_flags))
    };
    (fs, gs)
}

/// Set the bases of FS and of user mode's GS.
///
/// # Safety
/// CR4.FSGSBASE is on, interrupts are off, and the bases are canonical.
#[inline]
pub(crate) unsafe fn write_bases(fs: u64, gs: u64) {
    // SAFETY: the caller's promise; as in `read_bases`. The kernel uses neither.
    unsafe {
        asm!("wrfsbase {fs}", "swapgs", "wrgsbase {gs}", "swapgs", fs = in(reg) fs, gs = in(reg) gs,
            options(nostack, preserves_flags))
    };
}

/// Loads DS, ES, FS and the GS of user mode from `packed`, as [`data_selectors`] returns them. The
/// bases of FS and of user mode's GS are undefined afterwards.
///
/// # Safety
/// Each selector is null or names a data or readable segment of privilege level 3. Interrupts are
/// off.
pub(crate) unsafe fn load_data_selectors(packed: u64) {
    let [ds, es, fs, gs] = [0, 16, 32, 48].map(|shift| (packed >> shift) as u16);
    // SAFETY: the caller's promise. Only an NMI or a machine check can come between the two SWAPGS,
    // and their handlers accept any GS base.
    unsafe {
        asm!("mov ds, {ds:e}", "mov es, {es:e}", "mov fs, {fs:e}", "swapgs", "mov gs, {gs:e}", "swapgs",
            ds = in(reg) u32::from(ds), es = in(reg) u32::from(es), fs = in(reg) u32::from(fs),
            gs = in(reg) u32::from(gs), options(nostack, preserves_flags))
    };
}

/// Interrupts off (CLI).
pub(crate) fn disable_interrupts() {
    // SAFETY: delaying interrupts breaks no memory rule. Not `nomem`: it is a compiler barrier.
    unsafe { asm!("cli", options(nostack)) };
}

/// Interrupts on (STI).
pub(crate) fn enable_interrupts() {
    // SAFETY: the handlers of this crate keep every register. Not `nomem`: it is a compiler
    // barrier.
    unsafe { asm!("sti", options(nostack)) };
}

/// Wait for an interrupt with interrupts on, without a gap in which one is missed.
pub(crate) fn enable_interrupts_and_halt() {
    // SAFETY: STI holds interrupts off for one more instruction, so HLT is reached first.
    unsafe { asm!("sti", "hlt", options(nostack)) };
}

/// Stop this CPU: only an NMI wakes it, and then it stops again.
pub(crate) fn halt_for_ever() -> ! {
    loop {
        // SAFETY: stops the CPU with interrupts off.
        unsafe { asm!("cli", "hlt", options(nostack)) };
    }
}

macro_rules! port {
    ($input:ident, $output:ident, $type:ty, $register:tt) => {
        /// Read an I/O port.
        pub fn $input(port: u16) -> $type {
            let value: $type;
            // SAFETY: port reads access devices, not memory. The devices of this machine do DMA
            // only where the DMA API told them to.
            unsafe { asm!(concat!("in ", $register, ", dx"), in("dx") port, out($register) value, options(nostack, preserves_flags)) };
            value
        }
        /// Write an I/O port.
        pub fn $output(port: u16, value: $type) {
            // SAFETY: as for reads.
            unsafe { asm!(concat!("out dx, ", $register), in("dx") port, in($register) value, options(nostack, preserves_flags)) };
        }
    };
}
port!(in_u8, out_u8, u8, "al");
port!(in_u16, out_u16, u16, "ax");
port!(in_u32, out_u32, u32, "eax");

/// The place of the call: instruction, stack and frame pointer of the caller's frame.
#[inline(always)]
pub(crate) fn here() -> (u64, u64, u64) {
    let (rip, rsp, rbp): (u64, u64, u64);
    // SAFETY: copies three registers.
    unsafe {
        asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) rip, out(reg) rsp, out(reg) rbp, options(nomem, nostack, preserves_flags));
    }
    (rip, rsp, rbp)
}
