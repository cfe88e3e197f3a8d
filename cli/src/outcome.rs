//! The outcome of a run: our exit status, the printed text, and `--json`.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::backtrace::Symbols;
use crate::changes::KeptCounts;
use crate::failure::{Failure, OWN_ERROR, READER_GONE};
use crate::protocol::Ending;
use crate::schema::{self, RunMachine};
use crate::session::{End, Ended};
use crate::strace::StraceCounts;
use crate::{Result, files, report};

/// The signal that a terminal's user sends to end a program.
const SIGINT: u8 = 2;
/// Exit status of a time-out.
pub const TIMED_OUT: u8 = 124;
/// Exit status of a guest that died.
pub const GUEST_DIED: u8 = 255;

/// The record that `--json FILE` writes. Fields that do not apply are null.
#[derive(Serialize, Debug, Default)]
pub struct RunOutcome {
    /// Name and version of this form.
    schema: &'static str,
    /// exit, signal, audit, panic, died, timeout, interrupted or error. `audit`: the program ended
    /// as `exit` or `signal` says, but the kernel's closing audit found that frames were lost or
    /// counted twice.
    outcome: &'static str,
    /// This command's exit status.
    status: u8,
    /// The program's status when it called exit.
    exit: Option<u8>,
    /// The signal that ended the program.
    signal: Option<u8>,
    /// For `timeout`: the place of each thread of the guest, if its kernel reported it. `threads`:
    /// pid, tid, name, state (the letter that /proc shows), running (on a CPU), where (the kernel's
    /// functions, innermost first). `left_out`: the number of threads that are missing there. If
    /// the kernel did not answer, these are the CPUs from QEMU: their number as tid, no pid, an
    /// empty state, and in `where` every function that may be on the stack.
    pub threads: Option<Value>,
    /// The kernel's report of a panic.
    panic: Option<Value>,
    /// The error, for `error` and `audit`.
    message: Option<String>,
    /// The reason why there was no run: not-found (status 127), not-executable (126) or error
    /// (125). If null, these statuses are the program's own.
    reason: Option<&'static str>,
    /// Kernel name, from the guest.
    kernel: Option<Value>,
    /// The kernel's version, from the guest.
    version: Option<Value>,
    /// tcg or kvm.
    accel: Option<&'static str>,
    /// The machine; null if there was none.
    pub machine: Option<RunMachine>,
    /// Guest time from the first instruction to the program's start, in nanoseconds.
    boot_ns: Option<Value>,
    /// Host time of the whole VM, in milliseconds.
    wall_ms: Option<u64>,
    /// Memory totals, as the guest reports them.
    memory: Option<Value>,
    /// "ok", or the finding of the frame-table audit.
    audit: Option<Value>,
    /// System calls with their counts.
    syscalls: Option<Value>,
    /// With `--events`: the numbers of records that were written (`recorded`) and that were
    /// overwritten before (`lost`).
    events: Option<Value>,
    /// With `--strace`: the numbers of calls that were written (`calls`) and of records that were
    /// lost (`lost`).
    pub strace: Option<StraceCounts>,
    /// Files that were not found.
    missing: Option<Value>,
    /// With `--changes`: counts of the kept changes.
    pub changes: Option<KeptCounts>,
    /// Notices (an OOM kill, for example).
    notices: Vec<String>,
}

impl RunOutcome {
    /// Returns the outcome of a run that took place; `symbols` decide whether a certificate has
    /// addresses.
    pub fn of(ended: &Ended, accel: &'static str, symbols: &Symbols) -> RunOutcome {
        let mut outcome = RunOutcome {
            schema: schema::RUN,
            accel: Some(accel),
            wall_ms: u64::try_from(ended.wall.as_millis()).ok(),
            notices: ended.notices.clone(),
            ..RunOutcome::default()
        };
        outcome.kernel = field(&ended.ready, "kernel");
        outcome.version = field(&ended.ready, "version");
        outcome.boot_ns = field(&ended.ready, "boot_ns");
        outcome.memory = field(&ended.report, "memory");
        outcome.audit = field(&ended.report, "audit");
        outcome.syscalls = field(&ended.report, "syscalls");
        outcome.events = field(&ended.report, "events").filter(|it| ended.strace.is_none() && !it.is_null());
        outcome.missing = field(&ended.report, "missing");
        if let End::Program(ending) | End::Unbalanced(ending, _) | End::OutputLost(ending, _) = &ended.end {
            match ending {
                Ending::Exit(status) => outcome.exit = Some(*status),
                Ending::Signal(signal) => outcome.signal = Some(*signal),
            }
        }
        (outcome.outcome, outcome.status) = match &ended.end {
            End::Program(Ending::Exit(status)) => ("exit", *status),
            End::Program(Ending::Signal(signal)) => ("signal", 128u8.saturating_add(*signal)),
            End::Unbalanced(_, finding) => {
                outcome.message = Some(report::unbalanced(finding));
                ("audit", OWN_ERROR)
            }
            End::OutputLost(_, loss) => {
                outcome.message = Some(report::output_lost(*loss));
                ("error", if loss.reader_gone() { READER_GONE } else { OWN_ERROR })
            }
            End::Ready => ("exit", 0),
            End::TimedOut(_) => {
                outcome.threads = report::stuck_threads(ended, symbols);
                ("timeout", TIMED_OUT)
            }
            End::Interrupted(signal) => {
                outcome.signal = Some(*signal);
                ("interrupted", 128u8.saturating_add(*signal))
            }
            End::Escaped => {
                outcome.signal = Some(SIGINT);
                ("interrupted", 128u8.saturating_add(SIGINT))
            }
            End::Recalled => ("interrupted", OWN_ERROR),
            End::Panicked(certificate) => {
                outcome.panic = Some(report::public_certificate(certificate, symbols));
                ("panic", GUEST_DIED)
            }
            End::Died => ("died", GUEST_DIED),
            End::Qemu(words) | End::Refused(words) => {
                outcome.message = Some(words.clone());
                ("error", OWN_ERROR)
            }
        };
        outcome
    }

    /// Returns the outcome of a run that could not take place.
    pub fn of_failure(failure: &Failure) -> RunOutcome {
        RunOutcome {
            schema: schema::RUN,
            outcome: "error",
            status: failure.status(),
            message: Some(failure.to_string()),
            reason: Some(failure.reason()),
            ..RunOutcome::default()
        }
    }

    /// Returns the exit status of this command.
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Writes the file as a whole or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        files::write_json(path, self)
    }
}

/// Returns a field of a message, if there are both.
fn field(message: &Option<Value>, name: &str) -> Option<Value> {
    message.as_ref()?.get(name).cloned()
}
