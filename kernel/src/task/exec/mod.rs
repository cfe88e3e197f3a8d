//! execve: replaces the program of a process.
//!
//! All steps that can fail are done first, in a new address space ([`load`]). Then all other
//! threads end, and the process switches to the new program. After that the old program is lost: a
//! thread that cannot continue is killed.

mod auxiliary;
pub mod elf;
mod load;
mod run;
pub mod script;
pub mod stack;
mod strings;
mod takeover;

pub use load::{randomness, set_randomness};
pub use run::{ExecRequest, Prepared, load, sys_execve, sys_execveat};
pub use strings::Strings;
