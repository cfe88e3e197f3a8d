//! The local interrupt controller of each CPU: x2APIC registers where there are any, else
//! memory-mapped ones.
//!
//! Manual: Intel SDM volume 3, chapter 11. Register numbers are those of the memory-mapped form;
//! x2APIC's MSR is 0x800 + number / 16, and its interrupt command register is one 64-bit MSR.

use freehold_machine::PhysAddr;

use crate::mmio::{self, Mmio};
use crate::registers::{self, MSR_APIC_BASE};
use crate::sync::Once;

const ID: u32 = 0x20;
const END_OF_INTERRUPT: u32 = 0xb0;
const SPURIOUS: u32 = 0xf0;
const COMMAND: u32 = 0x300;
const COMMAND_HIGH: u32 = 0x310;
const TIMER: u32 = 0x320;
const TIMER_INITIAL: u32 = 0x380;
const TIMER_CURRENT: u32 = 0x390;
const TIMER_DIVIDE: u32 = 0x3e0;

const ENABLE: u32 = 1 << 8;
const MASKED: u32 = 1 << 16;
const TSC_DEADLINE: u32 = 2 << 17;
const DIVIDE_BY_1: u32 = 0b1011;
const PENDING: u32 = 1 << 12;

/// The vector of interrupts that vanished before they were delivered.
pub(crate) const SPURIOUS_VECTOR: u8 = 0xff;

/// Effect of an interprocessor interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ipi {
    /// An ordinary interrupt with this vector.
    Vector(u8),
    /// A non-maskable interrupt.
    Nmi,
    /// Reset the CPU and wait for [`Ipi::Startup`].
    Init,
    /// Begin at the page with this number (below 1 MiB).
    Startup(u8),
}

/// Condition that makes the timer fire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimerMode {
    /// The count reaches 0, once.
    OneShot,
    /// The time-stamp counter reaches the deadline register.
    Deadline,
}

enum ApicAccess {
    X2apic,
    Mapped(Mmio),
}

static ACCESS: Once<ApicAccess> = Once::new();

/// Finds out how the controller is accessed. Called on the first CPU, before [`enable`].
pub(crate) fn init() {
    // CPUID.1:ECX[21]
    let x2apic = registers::cpuid(1, 0).ecx & 1 << 21 != 0;
    ACCESS.set(if x2apic {
        ApicAccess::X2apic
    } else {
        // SAFETY: the register exists on every CPU with a local APIC; this kernel requires one.
        let base = unsafe { registers::rdmsr(MSR_APIC_BASE) } & 0xf_ffff_f000;
        ApicAccess::Mapped(mmio::map(PhysAddr(base), 0x1000).expect("registers of the local APIC"))
    });
}

/// Turn this CPU's controller on, its timer masked.
pub(crate) fn enable() {
    // SAFETY: as in `init`.
    let base = unsafe { registers::rdmsr(MSR_APIC_BASE) };
    let mode = if matches!(access(), ApicAccess::X2apic) { 0b11 << 10 } else { 0b10 << 10 };
    // SAFETY: turns the controller on in the mode that all accesses below use; its base stays.
    unsafe { registers::wrmsr(MSR_APIC_BASE, base | mode) };
    write(SPURIOUS, ENABLE | u32::from(SPURIOUS_VECTOR));
    write(TIMER, MASKED);
    write(TIMER_DIVIDE, DIVIDE_BY_1);
}

fn access() -> &'static ApicAccess {
    ACCESS.get().expect("the interrupt controller was found at boot")
}

fn read(register: u32) -> u32 {
    match access() {
        // SAFETY: a register of the x2APIC, which exists according to `access`.
        ApicAccess::X2apic => unsafe { registers::rdmsr(0x800 + register / 16) as u32 },
        ApicAccess::Mapped(mmio) => mmio.read_u32(register as usize),
    }
}

fn write(register: u32, value: u32) {
    match access() {
        // SAFETY: interrupts go to this crate's handlers only, which keep every register.
        ApicAccess::X2apic => unsafe { registers::wrmsr(0x800 + register / 16, u64::from(value)) },
        ApicAccess::Mapped(mmio) => mmio.write_u32(register as usize, value),
    }
}

/// Whether the controllers are x2APICs.
pub(crate) fn is_x2apic() -> bool {
    matches!(access(), ApicAccess::X2apic)
}

/// This CPU's number on the interrupt bus.
pub(crate) fn id() -> u32 {
    match access() {
        ApicAccess::X2apic => read(ID),
        ApicAccess::Mapped(_) => read(ID) >> 24,
    }
}

/// This CPU's number on the interrupt bus, before [`enable`]: from CPUID, leaf 11 or 1.
pub(crate) fn id_before_enable() -> u32 {
    let extended = registers::cpuid(0xb, 0);
    if matches!(access(), ApicAccess::X2apic) && extended.ebx != 0 {
        return extended.edx;
    }
    registers::cpuid(1, 0).ebx >> 24
}

/// Tells the controller that the current interrupt has been handled.
pub(crate) fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

/// Interrupt the CPU `apic_id`. Called with interrupts off: the memory-mapped form takes two
/// writes.
pub(crate) fn send(apic_id: u32, ipi: Ipi) {
    // Bit 14: assert; bits 8–10: 0 fixed, 4 NMI, 5 INIT, 6 start-up.
    let low = match ipi {
        Ipi::Vector(vector) => 1 << 14 | u32::from(vector),
        Ipi::Nmi => 1 << 14 | 4 << 8,
        Ipi::Init => 1 << 14 | 5 << 8,
        Ipi::Startup(page) => 1 << 14 | 6 << 8 | u32::from(page),
    };
    match access() {
        ApicAccess::X2apic => {
            // Stores for the target must be visible before it is interrupted: this write does not
            // wait (10.12.3).
            registers::finish_stores();
            let command = u64::from(apic_id) << 32 | u64::from(low);
            // SAFETY: the target runs this crate's handlers, or (INIT, start-up) its trampoline.
            unsafe { registers::wrmsr(0x800 + COMMAND / 16, command) };
        }
        ApicAccess::Mapped(mmio) => {
            mmio.write_u32(COMMAND_HIGH as usize, apic_id << 24);
            mmio.write_u32(COMMAND as usize, low);
            while mmio.read_u32(COMMAND as usize) & PENDING != 0 {
                core::hint::spin_loop();
            }
        }
    }
}

/// Lets this CPU's timer raise interrupts with `vector`.
pub(crate) fn set_timer(mode: TimerMode, vector: u8) {
    let mode = match mode {
        TimerMode::OneShot => 0,
        TimerMode::Deadline => TSC_DEADLINE,
    };
    write(TIMER, mode | u32::from(vector));
}

/// Start counting down from `count`; 0 stops the timer.
pub(crate) fn set_timer_count(count: u32) {
    write(TIMER_INITIAL, count);
}

/// Returns the remaining count.
pub(crate) fn timer_count() -> u32 {
    read(TIMER_CURRENT)
}
