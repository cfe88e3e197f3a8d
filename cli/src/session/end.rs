//! The end of a run, and all facts that are known then.

use std::fs::File;
use std::time::Duration;

use rustix::io::Errno;
use serde_json::Value;

use crate::failure::Failure;
use crate::learned::FoundNames;
use crate::protocol::Ending;
use crate::strace::Strace;
use crate::{Result, report};

/// The end of a run.
#[derive(Debug)]
pub enum End {
    /// The program ended, and the kernel's closing audit found every frame in its place; a stock
    /// Linux has no audit.
    Program(Ending),
    /// The program ended, and the kernel's closing audit found this.
    Unbalanced(Ending, String),
    /// The program ended, and some of its output could not be written.
    OutputLost(Ending, Loss),
    /// The run came to READY, which was its purpose.
    Ready,
    /// Time was up.
    TimedOut(LastSeen),
    /// A signal ended the run before the program could be told.
    Interrupted(u8),
    /// The user typed the escape key.
    Escaped,
    /// The run's [`Job::recall`] was called.
    Recalled,
    /// The kernel panicked and sent its report.
    Panicked(Value),
    /// The kernel refused to start the program: its reason.
    Refused(String),
    /// The VM ended without a message.
    Died,
    /// QEMU did not do its work: its own words, or the signal that killed it.
    Qemu(String),
}

/// Places of all threads at the time-out: `threads` of objects with `tid`, `name`, `state` and
/// `backtrace`, and `left_out`.
#[derive(Debug)]
pub enum LastSeen {
    /// The kernel's threads, as the kernel reports them.
    Threads(Value),
    /// The CPUs of a kernel that did not answer, as QEMU reports them.
    Cpus(Value),
    /// There was no answer.
    Unknown,
}

/// Output of the program that did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// stdout or stderr.
    pub stream: &'static str,
    /// The host's error for a write there.
    pub error: Errno,
}

impl Loss {
    /// Returns whether the reader closed the stream. A reader may do so: a program that writes on
    /// would be ended by SIGPIPE.
    pub fn reader_gone(self) -> bool {
        self.error == Errno::PIPE
    }
}

/// All facts that are known after a run.
#[derive(Debug)]
pub struct Ended {
    /// The end.
    pub end: End,
    /// The kernel's READY message.
    pub ready: Option<Value>,
    /// The kernel's report.
    pub report: Option<Value>,
    /// Notices for the user; already printed, except those of a measurement.
    pub notices: Vec<String>,
    /// The last part of the kernel log.
    pub log: String,
    /// A stock Linux' functions, if they were requested.
    pub symbols: Option<String>,
    /// Records of tracepoints, unchanged.
    pub events: Option<File>,
    /// The lines of `--strace`, as far as they are written.
    pub strace: Option<Strace>,
    /// Names that programs found, if they were asked for.
    pub names: Option<FoundNames>,
    /// Answers of `--owns`, in the questions' order.
    pub owners: Vec<Value>,
    /// The areas of each process at the end, if they were asked for.
    pub areas: Vec<Value>,
    /// stdout of a measurement.
    pub output: Vec<u8>,
    /// stderr of a measurement.
    pub error: Vec<u8>,
    /// Messages of QEMU and its plugin.
    pub words: String,
    /// Time from QEMU's start to its end.
    pub wall: Duration,
}

impl Ended {
    /// Returns whether our own kernel reported READY.
    pub fn is_of_own_kernel(&self) -> bool {
        is_own(self.ready.as_ref())
    }

    /// Returns stdout of a measurement.
    ///
    /// # Errors
    /// The program did not end with status 0, or the run failed. The error says how it ended, and
    /// the last line that the program wrote.
    pub fn into_output(self) -> Result<Vec<u8>> {
        match &self.end {
            End::Program(Ending::Exit(0)) => Ok(self.output),
            End::Qemu(words) => Err(Failure::qemu(words, words.clone())),
            End::Unbalanced(_, finding) => Err(Failure::new(report::unbalanced(finding), "")),
            End::Interrupted(signal) => Err(Failure::interrupted(*signal)),
            end => {
                let said = [&self.error, &self.output].map(|bytes| String::from_utf8_lossy(bytes));
                let said = said.iter().find_map(|said| said.lines().last()).unwrap_or("it said nothing");
                Err(Failure::new(format!("the guest did not end well ({end:?}): {said}"), ""))
            }
        }
    }
}

/// Returns whether a READY message is our own kernel's.
pub(super) fn is_own(ready: Option<&Value>) -> bool {
    ready.is_some_and(|ready| ready["kernel"] == "Freehold")
}

/// Returns the end of the run for a program's end. The run has failed if the kernel has lost count
/// of a frame, or if output is missing. The program's own status makes no difference.
pub(super) fn of(ending: Ending, report: Option<&Value>, loss: Option<Loss>) -> End {
    let audit = report.and_then(|report| report.get("audit")).filter(|audit| audit.as_str() != Some("ok"));
    if let Some(audit) = audit {
        let finding = audit.as_str().map_or_else(|| audit.to_string(), str::to_owned);
        return End::Unbalanced(ending, finding);
    }
    match loss {
        // A program that noticed the closed stream ended on its own terms.
        Some(loss) if !loss.reader_gone() || ending == Ending::Exit(0) => End::OutputLost(ending, loss),
        _ => End::Program(ending),
    }
}
