//! The host's terminal: raw while the guest has it, given back on every way out, panics included.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};

use rustix::termios::{self, OptionalActions, Termios};

/// The terminal's settings from before, while it is raw.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Which of our three streams are terminals.
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
    /// As they are now.
    pub fn now() -> Streams {
        Streams {
            input: std::io::stdin().is_terminal(),
            output: std::io::stdout().is_terminal(),
            error: std::io::stderr().is_terminal(),
        }
    }
}

/// Rows and columns where there is no terminal.
pub const WINDOW: (u16, u16) = (24, 80);

/// Rows and columns of the terminal, [`WINDOW`] where there is none.
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

/// Makes stdin raw: every key goes to the guest, Ctrl-C too. Undone by [`restore`] and by a panic.
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

/// True while the terminal is raw: a line feed alone does not return to the line's start.
pub fn is_raw() -> bool {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Gives the terminal back. Harmless when it was never taken.
pub fn restore() {
    if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // Nothing can be done for a terminal that has gone.
        let _ = termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &before);
    }
}
