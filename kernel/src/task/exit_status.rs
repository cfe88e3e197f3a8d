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

/// The end of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Zombie {
    /// How it ended.
    pub status: ExitStatus,
    /// The next process that may collect it.
    pub awaits: Collector,
}

/// The process that may collect an ended one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Collector {
    /// A tracer that is not the parent.
    Tracer,
    /// The parent.
    Parent,
    /// None: the parent ignores the ends of its children, or is the kernel.
    None,
}

/// State change that was not reported to the parent yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitReport {
    /// The process stopped by this signal.
    Stopped(Signal),
    /// The process continued.
    Continued,
}
