//! The bootable image: joins freehold-arch to the kernel. May use `unsafe`: to name the entry
//! point.
#![no_std]
#![no_main]
#![allow(unsafe_code, reason = "the entry point has a name that the loader looks for")]

extern crate alloc;

use freehold_arch::heap::KernelHeap;

#[global_allocator]
static HEAP: KernelHeap = KernelHeap;

freehold_arch::kernel_entry!(freehold_kernel::boot::main);

// Cargo links again when the linker script has changed.
const _: &str = include_str!("../kernel.ld");

// On a host, where only `cargo check` compiles this, the standard library has one.
#[cfg(target_os = "none")]
#[panic_handler]
fn panicked(info: &core::panic::PanicInfo) -> ! {
    freehold_arch::panic::die(format_args!("{info}"))
}
