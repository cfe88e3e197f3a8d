//! The host's terminal: raw while the guest uses it, restored at every end, also after panics.

use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::termios::{self, OptionalActions, Termios};

/// The modes of the terminal, as far as this process has changed them.
struct Modes {
    /// The modes before the first change.
    before: Option<Termios>,
    is_raw: bool,
}

static MODES: Mutex<Modes> = Mutex::new(Modes { before: None, is_raw: false });

fn modes() -> MutexGuard<'static, Modes> {
    MODES.lock().unwrap_or_else(PoisonError::into_inner)
}

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

/// The place of this process among the jobs of its terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobPlace {
    /// It may change the terminal's modes and read its keys. This also holds if the terminal, if
    /// there is one, does not belong to its session.
    Foreground,
    /// Changing the modes or reading keys would stop it.
    Background,
}

/// Returns the present place of this process.
pub fn place() -> JobPlace {
    let streams = [rustix::stdio::stdin(), rustix::stdio::stderr(), rustix::stdio::stdout()];
    match streams.into_iter().find_map(|stream| termios::tcgetpgrp(stream).ok()) {
        Some(group) if group != rustix::process::getpgrp() => JobPlace::Background,
        _ => JobPlace::Foreground,
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
    {
        let mut modes = modes();
        modes.before.get_or_insert(before);
        modes.is_raw = true;
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |information| {
            restore();
            previous(information);
        }));
    });
    if termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &raw).is_err() {
        restore();
    }
}

/// Returns whether the terminal is raw: a line feed alone does not return to the line's start.
pub fn is_raw() -> bool {
    modes().is_raw
}

/// Forgets that the terminal is raw: a shell had it since, which sets modes of its own.
pub fn forget_modes() {
    modes().is_raw = false;
}

/// Restores the terminal. Harmless if it was never made raw, or is another job's by now.
pub fn restore() {
    if place() == JobPlace::Background {
        return forget_modes();
    }
    let mut modes = modes();
    if !std::mem::take(&mut modes.is_raw) {
        return;
    }
    if let Some(before) = modes.before.take() {
        // An error means that the terminal has gone; there is no remedy.
        let _ = termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &before);
    }
}
