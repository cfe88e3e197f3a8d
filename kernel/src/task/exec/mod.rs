//! execve: another program in the same process.
//!
//! Everything that can fail is done first, into a new address space ([`load`]); then all other
//! threads end, and the process changes over. After that there is no way back: a thread that cannot
//! go on is killed.

mod auxiliary;
pub mod elf;
mod load;
mod run;
pub mod script;
pub mod stack;
mod strings;
mod takeover;

pub use run::{ExecRequest, Prepared, load, sys_execve, sys_execveat};
pub use strings::Strings;
