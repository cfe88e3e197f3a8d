//! Character devices and the program's standard streams.

mod entropy;
mod kmsg;
mod memory;
pub mod stdio;
pub mod stream;
mod terminal;

pub use kmsg::sys_syslog;

use crate::Result;
use crate::fs::device::register_char;
use crate::tty::pty;

/// Registers the numbers of the character devices. Called once, before the first program runs.
///
/// # Errors
/// `ENOMEM`.
pub fn init() -> Result<()> {
    register_char(1, 3..=9, "mem", memory::open)?;
    register_char(1, 11..=11, "mem", kmsg::open)?;
    register_char(4, 0..=1, "tty", terminal::open_virtual)?;
    register_char(5, 0..=2, "/dev/tty", terminal::open_alternate)?;
    register_char(pty::SLAVE_MAJOR, 0..=pty::MOST as u32 - 1, "pts", pty::open_slave)
}
