//! Accesses that frame exclusion and W^X have to stop, made on purpose:
//! /sys/kernel/debug/provoke-crash/DIRECT.
//!
//! Each access is one instruction of this file. If this instruction faults, the kernel continues
//! after it; the same fault anywhere else is a panic. The nearest relative in Linux is
//! `drivers/misc/lkdtm`.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::HeldFrame;
use freehold_machine::{Cpus, PAGE_SIZE, Pfn, VirtAddr};
use freehold_xpfo::Windows;

use crate::memory::{tables, windows};
use crate::{X86, boot, irq, time};

#[cfg(target_os = "none")]
core::arch::global_asm!(
    ".section .text.freehold_provoke, \"ax\"",
    // rdi: address. rax: the value; rdx: 1 if it was read.
    ".globl freehold_provoke_read, freehold_provoke_read_at",
    "freehold_provoke_read:",
    "mov edx, 1",
    "freehold_provoke_read_at:",
    "mov rax, [rdi]",
    "ret",
    // rdi: address of a byte that stays as it is.
    ".globl freehold_provoke_write, freehold_provoke_write_at",
    "freehold_provoke_write:",
    "mov edx, 1",
    "freehold_provoke_write_at:",
    "lock or byte ptr [rdi], 0",
    "ret",
    // rdi: address of a function that returns.
    ".globl freehold_provoke_jump",
    "freehold_provoke_jump:",
    "mov edx, 1",
    "jmp rdi",
    // The kernel continues here after a fault of any of them.
    ".globl freehold_provoke_refused",
    "freehold_provoke_refused:",
    "xor edx, edx",
    "ret",
    ".text",
);

/// RAX and RDX.
#[repr(C)]
struct Tried {
    value: u64,
    done: u64,
}

#[cfg(target_os = "none")]
unsafe extern "C" {
    fn freehold_provoke_read(address: u64) -> Tried;
    fn freehold_provoke_write(address: u64) -> Tried;
    fn freehold_provoke_jump(address: u64) -> Tried;
    static freehold_provoke_read_at: u8;
    static freehold_provoke_write_at: u8;
    static freehold_provoke_refused: u8;
}

/// The address that [`execute`] jumps to at this moment; 0 for none. One caller at a time.
static TARGET: AtomicU64 = AtomicU64::new(0);

/// Returns where the kernel continues after a fault at `rip` on `address`; `None` if the
/// instruction is not in this file.
#[cfg(target_os = "none")]
pub(crate) fn resume(rip: u64, address: u64) -> Option<u64> {
    let accesses = [&raw const freehold_provoke_read_at as u64, &raw const freehold_provoke_write_at as u64];
    let jumped = rip == address && rip == TARGET.load(Ordering::Relaxed);
    (jumped || accesses.contains(&rip)).then_some(&raw const freehold_provoke_refused as u64)
}
#[cfg(not(target_os = "none"))]
pub(crate) fn resume(_rip: u64, _address: u64) -> Option<u64> {
    None
}

#[cfg(not(target_os = "none"))]
unsafe fn freehold_provoke_read(_address: u64) -> Tried {
    unreachable!("on the machine only")
}
#[cfg(not(target_os = "none"))]
unsafe fn freehold_provoke_write(_address: u64) -> Tried {
    unreachable!("on the machine only")
}
#[cfg(not(target_os = "none"))]
unsafe fn freehold_provoke_jump(_address: u64) -> Tried {
    unreachable!("on the machine only")
}

/// Reads the word at any address of the kernel half. `None`: nothing is mapped there.
pub fn read_at(address: u64) -> Option<u64> {
    // SAFETY: one load of any eight bytes; after a fault the kernel continues after it.
    let tried = unsafe { freehold_provoke_read(address) };
    (tried.done != 0).then_some(tried.value)
}

/// Reads the first word of `frame` through the direct map. `None`: the frame is not mapped there.
pub fn read(frame: Pfn) -> Option<u64> {
    read_at(tables::frame_ptr(frame) as u64)
}

/// Reads the first word of the page shown at `bytes`, in a window or elsewhere, through the direct
/// map. `None`: the page is not mapped there.
pub fn read_alias(bytes: &[u8]) -> Option<u64> {
    let address = VirtAddr(bytes.as_ptr() as u64);
    let frame = tables::frame_at(address)?;
    read_at(tables::frame_ptr(frame) as u64 + address.0 % PAGE_SIZE as u64)
}

/// Jumps to the first byte of `frame`, which is a RET, through the direct map. Returns whether it
/// was executed. One caller at a time.
pub fn execute(frame: Pfn) -> bool {
    let pinned = X86.pin();
    let target = tables::frame_ptr(frame) as u64;
    TARGET.store(target, Ordering::Relaxed);
    // SAFETY: if the byte is executed, it returns to the caller; a fault does so, too.
    let tried = unsafe { freehold_provoke_jump(target) };
    TARGET.store(0, Ordering::Relaxed);
    drop(pinned);
    tried.done != 0
}

/// Writes a byte of the kernel's text through the direct map, with its present value. Returns
/// whether that worked.
pub fn write_text_alias() -> bool {
    let first = boot::read_only_frames().start;
    // SAFETY: the byte stays as it is; after a fault the kernel continues after the instruction.
    let tried = unsafe { freehold_provoke_write(tables::frame_ptr(first) as u64) };
    tried.done != 0
}

/// Result of [`read_closed_window`].
#[derive(Clone, Copy, Debug)]
pub struct ClosedWindow {
    /// The word; `None`: nothing is mapped there any more.
    pub word: Option<u64>,
    /// Time that this code waited for an interrupt that should have come before.
    pub late_ns: u64,
}

/// The longest wait for a due interrupt.
const PATIENCE_NS: u64 = 2_000_000_000;

/// Reads a word of `frame` at the address of its window, `wait_ns` nanoseconds after it closed, on
/// the same CPU. If the interrupt that ends its time is due and has not come (the host runs this
/// CPU but not its timer), waits for that interrupt first.
pub fn read_closed_window(frame: HeldFrame<'_>, wait_ns: u64) -> ClosedWindow {
    let pinned = X86.pin();
    let address = X86.with_bytes(&frame, |bytes| {
        core::hint::black_box(bytes[PAGE_SIZE - 1]);
        bytes.as_ptr() as u64
    });
    let until = time::now() + wait_ns;
    let mut now = time::now();
    while now < until || (windows::is_overdue() && now < until + PATIENCE_NS) {
        core::hint::spin_loop();
        now = time::now();
    }
    let word = read_at(address);
    drop(pinned);
    ClosedWindow { word, late_ns: now - until }
}

/// Writes a byte of `frame`, with its present value, through a window for reading. Returns whether
/// that worked.
pub fn write_reading_window(frame: HeldFrame<'_>) -> bool {
    X86.read_bytes(&frame, |bytes| {
        // SAFETY: the byte stays as it is; after a fault the kernel continues after the
        // instruction.
        let tried = unsafe { freehold_provoke_write(bytes.as_ptr() as u64) };
        tried.done != 0
    })
}

/// Requests a window as an interrupt's handler would. Returns whether it would be granted.
pub fn window_in_interrupt() -> bool {
    let _off = irq::disable();
    windows::enter_interrupt();
    let opens = windows::may_open();
    windows::leave_interrupt();
    opens
}
