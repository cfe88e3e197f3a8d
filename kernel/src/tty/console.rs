//! The host's terminal.
//!
//! Where the host's stdin is a terminal (raw there), the program gets this one: bytes of the
//! standard stream go through the line discipline in a kernel task, the pump, so that Ctrl-C
//! reaches a program that does not read. /dev/console and /dev/tty0 are this terminal too.

use super::termios::{Termios, WindowSize};
use super::{Tty, Wire};
use crate::dev::stream::HostStream;
use crate::sync::{PollWaiter, SpinLock};
use crate::task::Signal;
use crate::{Result, sched};
use freehold_collections::Arc;

/// /dev/tty1, by which the console's terminal is known.
pub const CONSOLE: (u32, u32) = (4, 1);
const CHUNK: usize = 256;

static CONSOLE_TTY: SpinLock<Option<Arc<Tty>>> = SpinLock::new(None);

/// Whether typed input comes from the standard stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keyboard {
    /// The stream brings typed input.
    Attached,
    /// The stream brings stdin's bytes, which are not a terminal's: the terminal is for output
    /// only.
    Absent,
}

/// Make the terminal, and start its pump if there is a keyboard. Called once, where some standard
/// stream of the host is a terminal.
///
/// # Errors
/// `ENOMEM`.
pub fn init(stream: Arc<HostStream>, rows: u16, columns: u16, keyboard: Keyboard) -> Result<Arc<Tty>> {
    let mut termios = Termios::standard();
    // Terminals of our time speak UTF-8: erasing takes whole characters.
    termios.iflag |= linux_raw_sys::general::IUTF8;
    let tty = Tty::new(CONSOLE.0, CONSOLE.1, Wire::Host(stream.clone()), termios)?;
    tty.state.lock().window = WindowSize { rows, columns, ..WindowSize::default() };
    *CONSOLE_TTY.lock() = Some(tty.clone());
    if keyboard == Keyboard::Attached {
        let pumped = tty.clone();
        sched::spawn_kernel("console", move || pump(&pumped, &stream))?;
    }
    Ok(tty)
}

/// The console's terminal, if there is one.
pub fn tty() -> Option<Arc<Tty>> {
    CONSOLE_TTY.lock().clone()
}

/// The host's window has changed.
pub fn resize(rows: u16, columns: u16) {
    if let Some(tty) = tty() {
        tty.resize(WindowSize { rows, columns, ..WindowSize::default() });
    }
}

/// Sends a signal from the host to the foreground group; returns `false` without a terminal or a
/// foreground group.
pub fn signal(signal: Signal) -> bool {
    let Some(tty) = tty().filter(|tty| tty.foreground() != 0) else { return false };
    tty.signal_foreground(signal);
    true
}

/// Waits until all output is on the stream. Output that Ctrl-S stopped is resumed, since no user is
/// left to start it.
pub fn flush() {
    if let Some(tty) = tty() {
        tty.state.lock().discipline.resume_output();
        tty.output_room.wait_uninterruptible(|| {
            let mut state = tty.state.lock();
            tty.flush_locked(&mut state);
            (state.discipline.output_length() == 0).then_some(())
        });
    }
}

/// Move bytes both ways for ever.
fn pump(tty: &Arc<Tty>, stream: &Arc<HostStream>) {
    let mut chunk = [0; CHUNK];
    let mut waiting = 0..0;
    let mut waiter = PollWaiter::new();
    waiter.register(stream.changed());
    waiter.register(&tty.wire_room);
    loop {
        loop {
            if waiting.is_empty() && stream.is_readable() {
                waiting = 0..stream.try_read(&mut chunk);
            }
            waiting.start += tty.receive(&chunk[waiting.clone()]);
            let more = if waiting.is_empty() { stream.is_readable() } else { tty.accepts() };
            if !more {
                break;
            }
        }
        // Output that found no room on the stream.
        tty.flush();
        // No deadline, and a kernel task has no signals.
        let _ = waiter.sleep(None);
    }
}
