//! Kprobes, as far as they need no kernel: the length and the kind of an instruction ([`decode`]),
//! the lines that define probes ([`Command`]), and the record that the build leaves in the image
//! ([`BuildRecord`]): where functions begin, and a hash of each page.
//!
//! Everything here allocates nothing and reads its input as hostile: addresses and lines come from
//! programs. `tools/seal` writes the record and uses the same code.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(test)]
extern crate std;

mod command;
mod decode;
mod record;
#[cfg(test)]
mod tests;

pub use command::{Command, Definition, Location, ParseError};
pub use decode::{Decoded, Kind, LONGEST, decode};
pub use record::{BuildRecord, Function, MAGIC, NameSearch, Probing, name_hash};
