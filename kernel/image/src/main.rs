//! The bootable image: joins freehold-arch to the kernel. May use `unsafe`: to name the entry point.
#![no_std]
#![no_main]

extern crate alloc;

use core::panic::PanicInfo;

use freehold_arch::boot::BootInfo;
use freehold_arch::heap::KernelHeap;
use freehold_arch::{power, serial};

#[global_allocator]
static HEAP: KernelHeap = KernelHeap;

freehold_arch::kernel_entry!(main);

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
