//! The outcome of a run: our exit status, the printed text, and `--json`.

use serde::Serialize;
use serde_json::Value;

use crate::args::RunOptions;
use crate::backtrace::Symbols;
use crate::changes::KeptCounts;
use crate::ending::{OomVictim, RunEnd};
use crate::failure::Failure;
use crate::owns::LastAnswer;
use crate::schema::{self, RunMachine};
use crate::session::{End, Ended};
use crate::strace::StraceCounts;
use crate::{Result, files, report};

/// The record that `--json FILE` writes. Fields that do not apply are null.
#[derive(Serialize, Debug, Default)]
pub struct RunOutcome {
    /// Name and version of this form.
    schema: &'static str,
    /// How it ended: [`RunEnd::name`].
    outcome: &'static str,
    /// The end in one sentence, as the terminal shows it.
    sentence: String,
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
    /// The process that was killed for want of memory, for `oom-kill`.
    victim: Option<OomVictim>,
    /// The death certificate. Of a stock Linux its `message` is the line of the panic.
    panic: Option<Value>,
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
    /// Answers to the questions of `--owns`, in their order.
    pub owners: Vec<LastAnswer>,
    /// Notices (an OOM kill, for example).
    notices: Vec<String>,
}

impl RunOutcome {
    /// Returns the outcome of a run of `program` that took place and ended like `end`; `symbols`
    /// decide whether a certificate has addresses.
    pub fn of(
        ended: &Ended,
        (program, end): (&str, &RunEnd),
        accel: &'static str,
        symbols: &Symbols,
    ) -> RunOutcome {
        let ending = match &ended.end {
            End::Program(ending) | End::Unbalanced(ending, _) | End::OutputLost(ending, _) => Some(ending),
            _ => None,
        };
        RunOutcome {
            schema: schema::RUN,
            outcome: end.name(),
            sentence: end.sentence(program),
            status: end.status(),
            exit: ending.and_then(|ending| ending.exit()),
            signal: ending.and_then(|ending| ending.signal()).or(end.host_signal()),
            threads: report::stuck_threads(ended, symbols),
            victim: end.victim().cloned(),
            panic: report::certificate(ended, symbols),
            kernel: field(&ended.ready, "kernel"),
            version: field(&ended.ready, "version"),
            accel: Some(accel),
            boot_ns: field(&ended.ready, "boot_ns"),
            wall_ms: u64::try_from(ended.wall.as_millis()).ok(),
            memory: field(&ended.report, "memory"),
            audit: field(&ended.report, "audit"),
            syscalls: field(&ended.report, "syscalls"),
            events: field(&ended.report, "events").filter(|it| ended.strace.is_none() && !it.is_null()),
            missing: field(&ended.report, "missing"),
            notices: ended.notices.clone(),
            ..RunOutcome::default()
        }
    }

    /// Returns the outcome of a run that could not take place, or in which QEMU or the kernel
    /// refused to work.
    pub fn of_failure(failure: &Failure) -> RunOutcome {
        let end = RunEnd::of_failure(failure);
        RunOutcome {
            schema: schema::RUN,
            outcome: end.name(),
            sentence: end.sentence(""),
            status: end.status(),
            reason: matches!(end, RunEnd::Error(..)).then(|| failure.reason()),
            signal: end.host_signal(),
            ..RunOutcome::default()
        }
    }

    /// Notes that the kernel broke a rule of memory isolation, whatever the program did.
    pub fn broke_isolation(&mut self, verdict: String) {
        let end = RunEnd::Isolation(verdict);
        (self.outcome, self.sentence, self.status) = (end.name(), end.sentence(""), end.status());
    }

    /// Returns the exit status of this command.
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Writes the record where `options` want it.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, options: &RunOptions) -> Result<()> {
        options.json.as_ref().map_or(Ok(()), |path| files::write_json(path, self))?;
        options.json_lines.as_ref().map_or(Ok(()), |path| files::append_line(path, self))
    }
}

/// Returns a field of a message, if there are both.
fn field(message: &Option<Value>, name: &str) -> Option<Value> {
    message.as_ref()?.get(name).cloned()
}
