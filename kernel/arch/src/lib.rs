//! x86-64: everything of the Freehold kernel that is a register, an instruction or an address.
//!
//! May use `unsafe`: registers, descriptor tables, page tables, windows, stacks and the boundary to
//! user mode cannot be used without it. All exported functions are safe to call: a misuse ends in a
//! report (a panic or a page fault that names the address), not in corruption.
//!
//! Folders: [`boot`] from the loader to the kernel's main; [`memory`] the kernel half of every
//! address space; [`traps`] exceptions and interrupts; [`user`] and [`usercopy`] user mode and its
//! bytes; [`thread`], [`cpu`], [`irq`], [`time`] execution; [`alternatives`] code that depends on
//! the CPU's features; [`speculation`] mitigations; [`panic`] the report of a panic.
//!
//! The kernel is soft-float: vector and x87 registers belong to user programs at all times.
#![no_std]
#![allow(unsafe_code, reason = "registers, tables, windows, stacks and user mode cannot be reached without")]
#![allow(
    bad_asm_style,
    reason = "the default syntax has no difference of two symbols, which position-independent 32-bit code needs"
)]
// A host checks and tests the parts that are plain logic; functions that only assembly calls are
// unused there.
#![cfg_attr(not(target_os = "none"), allow(unused))]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

pub mod alternatives;
mod apic;
pub mod boot;
pub mod built;
pub mod cpu;
pub mod entropy;
pub mod firmware;
pub mod heap;
pub mod irq;
mod linker_table;
pub mod memory;
pub mod mmio;
pub mod panic;
pub mod plant;
pub mod power;
pub mod probes;
pub mod provoke;
mod registers;
pub mod serial;
pub mod speculation;
pub mod static_keys;
pub mod sync;
pub mod thread;
pub mod time;
mod tracepoints;
pub mod traps;
pub mod user;
pub mod usercopy;
mod vmap;
pub mod watch;

pub use cpu::X86;

#[cfg(target_os = "none")]
core::arch::global_asm!(
    include_str!("alternative.s"),
    include_str!("bytes.s"),
    ".purgem alternative",
    fast_strings = const alternatives::Feature::FastStrings as u16,
    fast_short_strings = const alternatives::Feature::FastShortStrings as u16,
);
