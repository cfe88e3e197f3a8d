//! The microscope's engine: it feeds the models with an emulator's reports about a guest, and
//! watches the ownership of frames.
//!
//! The driver of an emulator (for QEMU the plugin) makes one [`Watch`] for the machine and one
//! [`Cpu`] for each of its CPUs, and calls
//! - [`Watch::block`] for each block of code that is translated, [`special`] for its instructions;
//! - [`Cpu::block`] when a block runs, or takes its [`steps`](Watch::steps) itself
//!   ([`Watch::set_counted`]); [`Cpu::access`] for each load and store;
//! - [`Watch::at_site`] for each instruction of the kernel that is translated, [`Cpu::ran_at_site`]
//!   before it runs, if it is not a whole instruction there;
//! - [`Cpu::flush`] before an instruction that flushes translations, [`Cpu::ring`] when the
//!   doorbell rings;
//! - [`Cpu::flags`] before an instruction that has to do with RFLAGS.AC, [`Cpu::flags_at`] after
//!   its access;
//! - [`finish`] when all CPUs have stopped.
//!
//! CPUs share the machine's clock and the phase, which are atomic; each near cache, which has a
//! lock (`near`); and frames, which are atomic words (`frames`). All else belongs to one CPU, and
//! is joined at the end.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod board;
mod cpu;
mod decode;
mod finish;
mod frames;
mod guest;
mod kernel_half;
mod linux;
mod near;
mod patching;
mod residue;
mod sharing;
mod smap;
mod tally;
#[cfg(test)]
mod tests;
mod texts;
mod uses;
mod watch;

pub use board::{Board, Due, Step, board_words};
pub use cpu::{Choice, Counted, Cpu, Flush};
pub use decode::{Flags, Special, special, tells};
pub use finish::finish;
pub use guest::GuestMemory;
pub use patching::AtSite;
pub use watch::{CodePlace, DoorbellRing, Watch, WatchedBlock};
