//! How processes end, and what their parents are told.

use super::signal::Signal;

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// By exit or exit_group.
    Exited(u8),
    /// By a signal.
    Signaled(Signal),
    /// By a signal, and there is a core file.
    Dumped(Signal),
}

impl ExitStatus {
    /// The status as wait4 gives it.
    pub const fn wait_status(self) -> i32 {
        match self {
            Self::Exited(code) => (code as i32) << 8,
            Self::Signaled(signal) => signal.number() as i32,
            Self::Dumped(signal) => signal.number() as i32 | 0x80,
        }
    }
}

/// State change that a parent has not been told of yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitReport {
    /// The process stopped by this signal.
    Stopped(Signal),
    /// The process continued.
    Continued,
}
