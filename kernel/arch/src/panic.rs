//! The report of a panic: the last output of a kernel that cannot continue.
//!
//! The first CPU to fail stops all others with an NMI, each of which records its registers and
//! backtrace. Then the report goes to the serial line and to the registered sink, and the machine
//! ends. This code takes no lock that a stopped CPU could hold, and allocates nothing. A failure in
//! the middle of it ends the machine at once.

use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use freehold_machine::{CpuId, Cpus, MAX_CPUS, VirtAddr};

use crate::apic::{self, Ipi};
use crate::memory::tables;
use crate::sync::Once;
use crate::traps::Registers;
use crate::traps::machine_check::Banks;
use crate::{X86, boot, cpu, power, registers, serial};

/// Return addresses that are recorded per CPU.
pub const MAX_FRAMES: usize = 32;
const MAX_MESSAGE: usize = 1024;
/// Value for isa-debug-exit: QEMU ends with `1 << 1 | 1`.
const EXIT_PANIC: u8 = 1;
const NOBODY: u32 = u32::MAX;

/// State of one CPU when the kernel failed.
#[derive(Debug)]
pub struct CpuReport {
    cpu: CpuId,
    registers: Registers,
    backtrace: [u64; MAX_FRAMES],
    frames: usize,
}

impl CpuReport {
    /// Returns the CPU that failed or was stopped.
    pub fn cpu(&self) -> CpuId {
        self.cpu
    }
    /// Returns the registers at the failure or at the stop; after a panic only rip, rsp and rbp are
    /// known.
    pub fn registers(&self) -> &Registers {
        &self.registers
    }
    /// Returns the CPU's position and its return addresses: addresses in the slid image, innermost
    /// first.
    pub fn backtrace(&self) -> &[u64] {
        &self.backtrace[..self.frames]
    }
}

/// Everything that is known about the failure.
#[derive(Debug)]
pub struct Certificate {
    message: [u8; MAX_MESSAGE],
    message_len: usize,
    slide: u64,
}

impl Certificate {
    /// Why.
    pub fn message(&self) -> &str {
        core::str::from_utf8(&self.message[..self.message_len]).unwrap_or("(a message that is no text)")
    }
    /// Returns how far the image was moved: subtract it from addresses before looking them up.
    pub fn slide(&self) -> u64 {
        self.slide
    }
    /// Returns the state of each CPU, the failed one among them.
    pub fn cpus(&self) -> impl Iterator<Item = &CpuReport> {
        SLOTS.iter().filter_map(ReportSlot::get)
    }
}

impl Write for Certificate {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            let room = &mut self.message[self.message_len..];
            if room.len() < c.len_utf8() {
                return Ok(());
            }
            self.message_len += c.encode_utf8(room).len();
        }
        Ok(())
    }
}

/// Transmits the report to the host. Called with interrupts off and all other CPUs stopped, perhaps
/// in the middle of a locked section: it must not lock or allocate.
pub trait CertificateSink: Sync {
    /// Send it.
    fn certificate(&self, certificate: &Certificate);
}

static SINK: Once<&'static dyn CertificateSink> = Once::new();
static FAILED: AtomicU32 = AtomicU32::new(NOBODY);
static REPORTED: AtomicUsize = AtomicUsize::new(0);

/// A CPU's report: written by that CPU once, read after that.
struct ReportSlot {
    ready: AtomicBool,
    report: UnsafeCell<CpuReport>,
}

// SAFETY: the owning CPU writes before it sets `ready` (release); others read after they saw that
// (acquire).
unsafe impl Sync for ReportSlot {}

static SLOTS: [ReportSlot; MAX_CPUS] = [const {
    ReportSlot {
        ready: AtomicBool::new(false),
        report: UnsafeCell::new(CpuReport {
            cpu: CpuId(0),
            registers: Registers {
                r15: 0,
                r14: 0,
                r13: 0,
                r12: 0,
                rbp: 0,
                rbx: 0,
                r11: 0,
                r10: 0,
                r9: 0,
                r8: 0,
                rax: 0,
                rcx: 0,
                rdx: 0,
                rsi: 0,
                rdi: 0,
                vector: 0,
                error: 0,
                rip: 0,
                cs: 0,
                rflags: 0,
                rsp: 0,
                ss: 0,
            },
            backtrace: [0; MAX_FRAMES],
            frames: 0,
        }),
    }
}; MAX_CPUS];

impl ReportSlot {
    fn get(&self) -> Option<&CpuReport> {
        if !self.ready.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: `ready` is set after the only write.
        Some(unsafe { &*self.report.get() })
    }
    fn fill(&self, cpu: CpuId, registers: &Registers) {
        if self.ready.load(Ordering::Acquire) {
            return;
        }
        let mut report = CpuReport { cpu, registers: *registers, backtrace: [0; MAX_FRAMES], frames: 0 };
        report.frames = backtrace(registers, &mut report.backtrace);
        // SAFETY: only this CPU writes its slot, and it has not set `ready` yet.
        unsafe { self.report.get().write(report) };
        self.ready.store(true, Ordering::Release);
        REPORTED.fetch_add(1, Ordering::AcqRel);
    }
}

/// Sets where reports go besides the serial line.
///
/// # Panics
/// If it is set already.
pub fn set_sink(sink: &'static dyn CertificateSink) {
    SINK.set(sink);
}

/// Read a word of kernel memory if it is mapped.
fn peek(address: u64) -> Option<u64> {
    if address < 1 << 63 || !address.is_multiple_of(8) {
        return None;
    }
    let small = tables::find_entry::<1>(VirtAddr(address)).map_or(0, |entry| entry.load(Ordering::Acquire));
    let large = tables::find_entry::<2>(VirtAddr(address)).map_or(0, |entry| entry.load(Ordering::Acquire));
    if small & tables::PRESENT == 0 && (large & tables::PRESENT == 0 || large & tables::LARGE == 0) {
        return None;
    }
    // SAFETY: aligned and mapped in the kernel half; any bits are a valid integer; volatile, since
    // another CPU may be writing there.
    Some(unsafe { (address as *const u64).read_volatile() })
}

/// Follows the frame pointers. Returns how many addresses were recorded.
pub(crate) fn backtrace(registers: &Registers, into: &mut [u64; MAX_FRAMES]) -> usize {
    into[0] = registers.rip;
    let mut count = 1;
    let mut frame = registers.rbp;
    while count < MAX_FRAMES {
        let (Some(next), Some(back)) = (peek(frame), peek(frame.wrapping_add(8))) else { break };
        if back == 0 {
            break;
        }
        into[count] = back;
        count += 1;
        // Frames of callers are higher up.
        if next <= frame {
            break;
        }
        frame = next;
    }
    count
}

/// Handles a Rust panic: the image crate's panic handler ends here.
pub fn die(message: fmt::Arguments) -> ! {
    registers::disable_interrupts();
    let (rip, rsp, rbp) = registers::here();
    fail(message, &Registers { rip, rsp, rbp, ..Registers::default() })
}

/// An exception in kernel mode.
pub(crate) fn exception(frame: &Registers, address: u64) -> ! {
    const NAMES: [&str; 20] = [
        "divide error",
        "debug",
        "NMI",
        "breakpoint",
        "overflow",
        "bound range",
        "invalid opcode",
        "no device",
        "double fault",
        "coprocessor overrun",
        "invalid TSS",
        "segment not present",
        "stack fault",
        "general protection",
        "page fault",
        "exception 15",
        "x87 error",
        "alignment check",
        "machine check",
        "SIMD error",
    ];
    let name = NAMES.get(frame.vector as usize).copied().unwrap_or("exception");
    fail(
        format_args!(
            "{name} in kernel mode: vector {}, error code {:#x}, address {address:#x}, rip {:#x}",
            frame.vector, frame.error, frame.rip
        ),
        frame,
    )
}

/// A push hit the guard page below a stack of the kernel: `stack` names the stack.
pub(crate) fn stack_overflow(frame: &Registers, address: u64, stack: &str) -> ! {
    fail(format_args!("{stack} stack overflow: address {address:#x}, rip {:#x}", frame.rip), frame)
}

/// A machine check that is fatal for the machine.
pub(crate) fn machine_check(frame: &Registers, banks: &Banks) -> ! {
    let mode = if frame.cs & 3 == 0 { "kernel" } else { "user" };
    fail(format_args!("machine check in {mode} mode at rip {:#x}: {banks}", frame.rip), frame)
}

fn fail(message: fmt::Arguments, at: &Registers) -> ! {
    let this = X86.current_cpu();
    let first = FAILED.compare_exchange(NOBODY, u32::from(this.0), Ordering::AcqRel, Ordering::Acquire);
    match first {
        Ok(_) => {}
        Err(cpu) if cpu == u32::from(this.0) => {
            serial::print_unlocked(format_args!("\nfailed again while dying: {message}\n"));
            power::exit(EXIT_PANIC);
        }
        Err(_) => {
            SLOTS[usize::from(this.0)].fill(this, at);
            registers::halt_for_ever();
        }
    }
    let mut certificate = Certificate { message: [0; MAX_MESSAGE], message_len: 0, slide: boot::slide() };
    // The writer itself never fails. If a `Display` fails, there is no place to report that.
    let _ = certificate.write_fmt(message);
    SLOTS[usize::from(this.0)].fill(this, at);
    stop_others(this);
    print(&certificate, this);
    if let Some(sink) = SINK.get() {
        sink.certificate(&certificate);
    }
    power::exit(EXIT_PANIC)
}

fn stop_others(this: CpuId) {
    let cpus = cpu::online();
    for number in cpus.without(this).iter() {
        if let Some(apic_id) = cpu::apic_id(number) {
            apic::send(apic_id, Ipi::Nmi);
        }
    }
    // A CPU that does not answer is missing from the report.
    let mut patience = 20_000_000u32;
    while REPORTED.load(Ordering::Acquire) < cpus.len() && patience > 0 {
        patience -= 1;
        core::hint::spin_loop();
    }
}

/// Handles an NMI: if a CPU has failed, records this CPU's state and stops.
pub(crate) fn stop_if_asked(frame: &Registers) {
    if FAILED.load(Ordering::Acquire) == NOBODY {
        return;
    }
    let this = X86.current_cpu();
    SLOTS[usize::from(this.0)].fill(this, frame);
    registers::halt_for_ever()
}

fn print(certificate: &Certificate, this: CpuId) {
    serial::print_unlocked(format_args!(
        "\nkernel panic on CPU {}: {}\nimage slide {:#x}\n",
        this.0,
        certificate.message(),
        certificate.slide()
    ));
    for report in certificate.cpus() {
        let r = report.registers();
        serial::print_unlocked(format_args!(
            "CPU {}: rip {:#x} rsp {:#x} rbp {:#x} rflags {:#x}\n  rax {:#x} rbx {:#x} rcx {:#x} rdx {:#x} rsi {:#x} rdi {:#x}\n  \
             r8 {:#x} r9 {:#x} r10 {:#x} r11 {:#x} r12 {:#x} r13 {:#x} r14 {:#x} r15 {:#x}\n",
            report.cpu().0,
            r.rip,
            r.rsp,
            r.rbp,
            r.rflags,
            r.rax,
            r.rbx,
            r.rcx,
            r.rdx,
            r.rsi,
            r.rdi,
            r.r8,
            r.r9,
            r.r10,
            r.r11,
            r.r12,
            r.r13,
            r.r14,
            r.r15
        ));
        for address in report.backtrace() {
            serial::print_unlocked(format_args!("  at {:#x}\n", address.wrapping_sub(certificate.slide())));
        }
    }
}
