//! Interrupts: on and off on this CPU, and vectors for devices.
//!
//! Devices interrupt by message (MSI, MSI-X) only; the 8259s are masked and the I/O APIC is left
//! masked as reset leaves it. Vectors 0x30 to 0xef are given to devices, one handler each, on all
//! CPUs alike.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicUsize, Ordering};

use freehold_machine::CpuId;

use crate::registers::{disable_interrupts, enable_interrupts, out_u8, read_flags};
use crate::sync::Once;
use crate::{apic, cpu};

const INTERRUPT_FLAG: u64 = 1 << 9;
const FIRST_DEVICE: usize = 0x30;
const DEVICES: usize = 0xf0 - FIRST_DEVICE;
pub(crate) const VECTOR_TIMER: u8 = 0xf0;
pub(crate) const VECTOR_RESCHEDULE: u8 = 0xf1;
pub(crate) const VECTOR_SHOOTDOWN: u8 = 0xf2;

/// Whether this CPU takes interrupts.
pub fn are_enabled() -> bool {
    read_flags() & INTERRUPT_FLAG != 0
}

/// Turns interrupts on: once per CPU, when it is set up.
pub fn enable() {
    enable_interrupts();
}

/// Turn interrupts off on this CPU until the guard is dropped; nests, dropped in reverse order.
pub fn disable() -> InterruptsOff {
    let were_on = are_enabled();
    disable_interrupts();
    InterruptsOff { were_on, _this_cpu: PhantomData }
}

/// Proof that interrupts are off on this CPU.
#[must_use = "interrupts are only off while the guard lives"]
#[derive(Debug)]
pub struct InterruptsOff {
    were_on: bool,
    _this_cpu: PhantomData<*mut ()>,
}

impl Drop for InterruptsOff {
    fn drop(&mut self) {
        if self.were_on {
            enable_interrupts();
        }
    }
}

/// Handler of a device's interrupt. Interrupts are off; the handler must not block, allocate, or
/// wait long.
pub trait InterruptHandler: Sync {
    /// The device has interrupted.
    fn interrupt(&self);
}

/// Address and value that a device writes to raise an interrupt (Intel SDM volume 3, 11.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Msi {
    /// The address to write to.
    pub address: u64,
    /// The value to write.
    pub data: u32,
    /// The vector of the interrupt.
    pub vector: u8,
    /// The number, on the interrupt bus, of the CPU that gets the interrupt.
    pub cpu: u32,
}

/// Whether CPUs' numbers on the interrupt bus have 32 bits (x2APIC) instead of 8.
pub fn has_wide_numbers() -> bool {
    apic::is_x2apic()
}

static HANDLERS: [Once<&'static dyn InterruptHandler>; DEVICES] = [const { Once::new() }; DEVICES];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Gives `handler` a vector of its own for ever, delivered to `cpu`. Returns `None` if all vectors
/// are taken, or the CPU's number on the bus does not fit a message.
pub fn allocate(handler: &'static dyn InterruptHandler, cpu: CpuId) -> Option<Msi> {
    let target = u8::try_from(cpu::apic_id(cpu)?).ok()?;
    let index = NEXT.fetch_add(1, Ordering::Relaxed);
    HANDLERS.get(index)?.set(handler);
    let vector = (FIRST_DEVICE + index) as u8;
    let address = 0xfee0_0000 | u64::from(target) << 12;
    Some(Msi { address, data: u32::from(vector), vector, cpu: u32::from(target) })
}

/// Calls the handler of a device's vector; a vector without a handler is ignored.
pub(crate) fn dispatch(vector: u8) {
    let index = usize::from(vector).wrapping_sub(FIRST_DEVICE);
    if let Some(handler) = HANDLERS.get(index).and_then(Once::get) {
        handler.interrupt();
    }
}

/// Masks the two 8259s, which firmware may have left open, and stops channel 0 of the 8254. Reset
/// leaves the channel counting, so the host of a sleeping guest would be woken 18 times per second
/// for an interrupt that is masked.
pub(crate) fn quiet_legacy() {
    out_u8(0x21, 0xff);
    out_u8(0xa1, 0xff);
    // Mode 0 (one interrupt, at the end of a count) without a count: the timer waits for one (Intel
    // 8254 data sheet).
    out_u8(0x43, 0b0011_0000);
}
