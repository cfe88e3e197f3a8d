//! How a run ended, and everything that is known then.

use std::fs::File;
use std::time::Duration;

use rustix::io::Errno;
use serde_json::Value;

use crate::protocol::Ending;

/// How a run ended.
#[derive(Debug)]
pub enum End {
    /// The program ended, and the kernel's closing audit found every frame where it belongs; a
    /// stock Linux has no audit.
    Program(Ending),
    /// The program ended, and the kernel's closing audit found this.
    Unbalanced(Ending, String),
    /// The program ended, and some of its output could not be written where it was to go.
    OutputLost(Ending, Loss),
    /// It came to READY, and nothing else was wanted.
    Ready,
    /// Time was up.
    TimedOut(LastSeen),
    /// A signal told us to stop before the program could be told.
    Interrupted(u8),
    /// The user typed the escape key.
    Escaped,
    /// Its [`Job::recall`] was called.
    Recalled,
    /// The kernel sent its death certificate.
    Panicked(Value),
    /// The kernel did not want to start the program: its reason.
    Refused(String),
    /// The VM ended without a word.
    Died,
    /// QEMU did not do what it was asked: its own words, or the signal that killed it.
    Qemu(String),
}

/// Where everything was when time was up: `threads` of objects with `tid`, `name`, `state` and
/// `backtrace`, and `left_out`.
#[derive(Debug)]
pub enum LastSeen {
    /// The kernel's threads, as it says.
    Threads(Value),
    /// The CPUs of a kernel that did not answer, as QEMU says.
    Cpus(Value),
    /// Nobody said.
    Unknown,
}

/// Output of the program that did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// stdout or stderr.
    pub stream: &'static str,
    /// What the host said of a write there.
    pub error: Errno,
}

impl Loss {
    /// The reader went away, which is its right: a program that writes on would be ended by
    /// SIGPIPE.
    pub fn reader_gone(self) -> bool {
        self.error == Errno::PIPE
    }
}

/// Everything that is known after a run.
#[derive(Debug)]
pub struct Ended {
    /// How.
    pub end: End,
    /// The kernel's READY message.
    pub ready: Option<Value>,
    /// Its report.
    pub report: Option<Value>,
    /// Notices for the user; already printed, but for a measurement's.
    pub notices: Vec<String>,
    /// The last part of the kernel log.
    pub log: String,
    /// A stock Linux' functions, if it was asked for them.
    pub symbols: Option<String>,
    /// Records of tracepoints, as they came.
    pub events: Option<File>,
    /// stdout of a measurement.
    pub output: Vec<u8>,
    /// stderr of a measurement.
    pub error: Vec<u8>,
    /// What QEMU and its plugin said.
    pub words: String,
    /// From QEMU's start to its end.
    pub wall: Duration,
}

impl Ended {
    /// Whether our own kernel said that it was ready.
    pub fn is_of_own_kernel(&self) -> bool {
        is_own(self.ready.as_ref())
    }
}

/// Whether a READY message is our own kernel's.
pub(super) fn is_own(ready: Option<&Value>) -> bool {
    ready.is_some_and(|ready| ready["kernel"] == "Freehold")
}

/// How a program's end counts: whatever it returned, the run has failed where the kernel has lost
/// count of a frame, or where output is missing.
pub(super) fn of(ending: Ending, report: Option<&Value>, loss: Option<Loss>) -> End {
    let audit = report.and_then(|report| report.get("audit")).filter(|audit| audit.as_str() != Some("ok"));
    if let Some(audit) = audit {
        let finding = audit.as_str().map_or_else(|| audit.to_string(), str::to_owned);
        return End::Unbalanced(ending, finding);
    }
    match loss {
        // A program that heard of the closed stream ended as it saw fit.
        Some(loss) if !loss.reader_gone() || ending == Ending::Exit(0) => End::OutputLost(ending, loss),
        _ => End::Program(ending),
    }
}
