//! Exclusive page-frame ownership (XPFO): frames of programs are outside the kernel's map, and the
//! kernel accesses their bytes through short-lived windows of one CPU.
//!
//! Four parts, none of which touches hardware:
//! - [`Windows`]: a frame's bytes, for callers with a proof that the frame is held;
//! - [`Policy`]: how long a closed window may stay in a CPU's translation cache
//!   (`xpfo=off|lap|on|strict`);
//! - [`CpuWindows`]: which slot a CPU's next window takes ([`Lap`]), and when the CPU forgets
//!   closed ones;
//! - [`check`]: an audit of every leaf of the kernel half against the frame table.
//!
//! A kernel stores entries and computes addresses; INVLPG and CR3 are behind [`Translations`], its
//! timer behind [`Alarm`]. The nearest relatives in Linux are `kmap_local_page`, and the XPFO
//! series that was never merged (Aziz and Andersen, v9, April 2019).
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod audit;
mod cpu;
mod lap;
pub mod open;
mod policy;

pub use audit::{AuditReport, Rules, Violation, check, count_tables};
pub use cpu::{Alarm, CpuWindows, Translations, each_of};
pub use lap::{Lap, Renewal};
pub use open::Windows;
pub use policy::{Closing, DEADLINE_NS, Policy};
