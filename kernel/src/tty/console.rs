//! The host's terminal.
//!
//! If the host's stdin is a terminal (in raw mode), the program gets this terminal. A kernel task,
//! the pump, passes bytes of the standard stream through the line discipline, so that Ctrl-C
//! affects a program that does not read. /dev/console and /dev/tty0 are this terminal, too.

use super::termios::{Termios, WindowSize};
use super::{Tty, Wire};
use crate::dev::stream::HostStream;
use crate::sync::{PollWaiter, SpinLock};
use crate::task::Signal;
use crate::{Result, sched};
use freehold_collections::Arc;

/// /dev/tty1, the device of the console's terminal.
pub const CONSOLE: (u32, u32) = (4, 1);
const CHUNK: usize = 256;

static CONSOLE_TTY: SpinLock<Option<Arc<Tty>>> = SpinLock::new(None);

/// Whether typed input comes from the standard stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keyboard {
    /// The stream brings typed input.
    Attached,
    /// The stream has the bytes of stdin, which is no terminal: this terminal is for output only.
    Absent,
}

/// Makes the terminal, and starts its pump if there is a keyboard. Called once, if some standard
/// stream of the host is a terminal.
///
/// # Errors
/// `ENOMEM`.
pub fn init(stream: Arc<HostStream>, rows: u16, columns: u16, keyboard: Keyboard) -> Result<Arc<Tty>> {
    let mut termios = Termios::standard();
    // Modern terminals use UTF-8: erasing removes whole characters.
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

/// Returns the console's terminal, if there is one.
pub fn tty() -> Option<Arc<Tty>> {
    CONSOLE_TTY.lock().clone()
}

/// Changes the terminal's size after that of the host's window.
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

/// Moves bytes in both directions, forever.
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
        // Send output that found no room on the stream before.
        tty.flush();
        // No error is possible: there is no deadline, and a kernel task gets no signals.
        let _ = waiter.sleep(None);
    }
}
