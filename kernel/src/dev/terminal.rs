//! Device numbers that refer to terminals: /dev/tty, /dev/console, /dev/ptmx, /dev/tty0, /dev/tty1.

use super::stdio::{self, Standard};
use crate::fs::{Blocking, File, Node, OpenFlags, Ready};
use crate::sync::PollWaiter;
use crate::tty::{console, job, pty};
use crate::user::{Sink, Source};
use crate::{Errno, Result};
use freehold_collections::{Arc, reserve};

/// Opens a minor of major 5.
///
/// # Errors
/// `ENXIO` if the caller has no terminal, or no such device exists.
pub fn open_alternate(node: Arc<dyn Node>, minor: u32, flags: OpenFlags) -> Result<Arc<dyn File>> {
    match minor {
        0 => Ok(job::controlling().ok_or(Errno::ENXIO)?.open(node, flags | OpenFlags::NOCTTY)?),
        1 => open_console(node, flags),
        2 => pty::open_master(node),
        _ => Err(Errno::ENXIO),
    }
}

/// Opens a minor of major 4.
///
/// # Errors
/// `ENXIO` if the host's stdin is no terminal.
pub fn open_virtual(node: Arc<dyn Node>, minor: u32, mut flags: OpenFlags) -> Result<Arc<dyn File>> {
    // tty0 is the currently visible terminal, and so never a controlling one.
    flags.set(OpenFlags::NOCTTY, flags.contains(OpenFlags::NOCTTY) || minor == 0);
    Ok(console::tty().ok_or(Errno::ENXIO)?.open(node, flags)?)
}

/// Opens the terminal if there is one, else the program's own standard streams.
fn open_console(node: Arc<dyn Node>, flags: OpenFlags) -> Result<Arc<dyn File>> {
    match console::tty() {
        Some(tty) => Ok(tty.open(node, flags | OpenFlags::NOCTTY)?),
        None => Ok(reserve::arc(PlainConsole {
            input: stdio::open(Standard::Input, (0, 0))?,
            output: stdio::open(Standard::Error, (0, 0))?,
            node,
        })),
    }
}

/// /dev/console without terminal: reads stdin, writes stderr.
struct PlainConsole {
    input: Arc<dyn File>,
    output: Arc<dyn File>,
    node: Arc<dyn Node>,
}

impl File for PlainConsole {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }
    fn read_at(&self, offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        self.input.read_at(offset, sink, blocking)
    }
    fn write_at(&self, offset: u64, source: &mut dyn Source, blocking: Blocking) -> Result<usize> {
        self.output.write_at(offset, source, blocking)
    }
    fn poll(&self, mut waiter: Option<&mut PollWaiter>) -> Ready {
        self.input.poll(waiter.as_deref_mut()) | self.output.poll(waiter)
    }
}
