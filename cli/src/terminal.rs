//! The host's terminal: raw while the guest uses it, restored at every end, also after panics.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};

use rustix::termios::{self, OptionalActions, Termios};

/// The terminal's former settings, while it is raw.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// For each of our three streams, whether it is a terminal.
#[derive(Debug, Clone, Copy)]
pub struct Streams {
    /// stdin.
    pub input: bool,
    /// stdout.
    pub output: bool,
    /// stderr.
    pub error: bool,
}

impl Streams {
    /// Returns the present state.
    pub fn now() -> Streams {
        Streams {
            input: std::io::stdin().is_terminal(),
            output: std::io::stdout().is_terminal(),
            error: std::io::stderr().is_terminal(),
        }
    }
}

/// Rows and columns without a terminal.
pub const WINDOW: (u16, u16) = (24, 80);

/// Returns rows and columns of the terminal, [`WINDOW`] if there is none.
pub fn window() -> (u16, u16) {
    for stream in [rustix::stdio::stdout(), rustix::stdio::stdin(), rustix::stdio::stderr()] {
        if let Ok(size) = termios::tcgetwinsize(stream)
            && size.ws_row > 0
            && size.ws_col > 0
        {
            return (size.ws_row, size.ws_col);
        }
    }
    WINDOW
}

/// Makes stdin raw: the guest gets every key, Ctrl-C too. Undone by [`restore`] and by a panic.
pub fn make_raw() {
    let Ok(before) = termios::tcgetattr(rustix::stdio::stdin()) else {
        return;
    };
    let mut raw = before.clone();
    raw.make_raw();
    *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |information| {
        restore();
        previous(information);
    }));
    if termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &raw).is_err() {
        restore();
    }
}

/// Returns whether the terminal is raw: a line feed alone does not return to the line's start.
pub fn is_raw() -> bool {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Restores the terminal. Harmless if it was never made raw.
pub fn restore() {
    if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // An error means that the terminal has gone; there is no remedy.
        let _ = termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &before);
    }
}
