//! How processes end, and what is reported to their parents.

use super::signal::Signal;

/// The way in which a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// By exit or exit_group.
    Exited(u8),
    /// By a signal.
    Signaled(Signal),
    /// By a signal, with a core file.
    Dumped(Signal),
}

impl ExitStatus {
    /// Returns the status in the format of wait4.
    pub const fn wait_status(self) -> i32 {
        match self {
            Self::Exited(code) => (code as i32) << 8,
            Self::Signaled(signal) => signal.number() as i32,
            Self::Dumped(signal) => signal.number() as i32 | 0x80,
        }
    }
}

/// State change that was not reported to the parent yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitReport {
    /// The process stopped by this signal.
    Stopped(Signal),
    /// The process continued.
    Continued,
}
