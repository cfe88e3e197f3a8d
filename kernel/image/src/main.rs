//! The bootable image: joins freehold-arch to the kernel. May use `unsafe`: to name the entry point.
#![no_std]
#![no_main]

extern crate alloc;

use core::panic::PanicInfo;

#[cfg(not(feature = "selftest"))]
use freehold_arch::boot::BootInfo;
use freehold_arch::heap::KernelHeap;
#[cfg(not(feature = "selftest"))]
use freehold_arch::{power, serial};

#[global_allocator]
static HEAP: KernelHeap = KernelHeap;

#[cfg(feature = "selftest")]
mod selftest;

#[cfg(feature = "selftest")]
freehold_arch::kernel_entry!(selftest::main);
#[cfg(not(feature = "selftest"))]
freehold_arch::kernel_entry!(main);

#[cfg(not(feature = "selftest"))]
fn main(boot: &'static BootInfo) -> ! {
    serial::print(format_args!("hello from {:#x}, command line {:?}\n", boot.slide(), boot.command_line()));
    for region in boot.memory_map() {
        serial::print(format_args!("{region:x?}\n"));
    }
    serial::print(format_args!("initrd {:x?} image {:?}\n", boot.initrd(), boot.image()));
    power::exit(0)
}

#[panic_handler]
fn panicked(info: &PanicInfo) -> ! {
    freehold_arch::panic::die(format_args!("{info}"))
}
