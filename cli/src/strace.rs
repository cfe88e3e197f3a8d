//! `--strace`: a line for each system call of the program, as strace writes them, while it runs.
//!
//! The kernel's events are the source, so the program is not stopped for a line, and another
//! process may act while a line is made. Records of events may be lost; a line reports that at the
//! place where it happens.

mod arguments;
mod lines;
mod names;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::args::EventOptions;
use crate::failure::Failure;
use crate::kernel::Family;
use crate::{Result, events, files, print, terminal};
use lines::{Lines, ThreadNumbers};

pub use lines::{EVENTS, FirstProgram};

/// The place of the lines without a file.
const STDERR: &str = "/dev/stderr";

/// Rejects senseless options before the VM starts.
pub fn check_options(options: &EventOptions) -> Result<()> {
    let Some(path) = &options.strace else { return Ok(()) };
    if files::is_stdout(path) {
        return Err(Failure::new("--strace=-: the program's output goes to stdout", "name a file"));
    }
    if is_stderr(path) {
        return Ok(());
    }
    files::check_writable([&options.strace])
}

/// Rejects a kernel that does not send events.
pub fn check_family(options: &EventOptions, family: Family) -> Result<()> {
    if options.strace.is_some() && family == Family::Linux {
        let hint = "on a stock Linux, run strace itself: freehold run --kernel linux -- strace -f PROGRAM";
        return Err(Failure::new("--strace: only freehold's own kernel tells its calls", hint));
    }
    Ok(())
}

fn is_stderr(path: &Path) -> bool {
    path == Path::new(STDERR)
}

/// Writes lines from a run's records while it runs.
#[derive(Debug)]
pub struct Strace {
    lines: Lines,
    to: StraceOutput,
    failure: Option<Failure>,
}

/// Where lines go.
#[derive(Debug)]
enum StraceOutput {
    Stderr,
    File(PathBuf, File),
}

/// Numbers of lines written and records lost.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct StraceCounts {
    /// System calls that were written.
    pub calls: u64,
    /// Records that were overwritten before they were read.
    pub lost: u64,
}

impl Strace {
    /// Opens the place for the lines, a file or stderr.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn open(path: &Path, first: FirstProgram) -> Result<Strace> {
        let (to, numbers) = if is_stderr(path) {
            (StraceOutput::Stderr, ThreadNumbers::OfSeveral)
        } else {
            let file = File::create(path).map_err(|error| Failure::io("write", path, &error))?;
            (StraceOutput::File(path.to_owned(), file), ThreadNumbers::Always)
        };
        Ok(Strace { lines: Lines::new(first, numbers), to, failure: None })
    }

    /// Writes the lines of these records, entries as the guest sends them.
    pub fn add(&mut self, mut records: &[u8]) {
        let lines = &mut self.lines;
        let read = events::each_record(&mut records, |cpu, record| {
            lines.add(cpu, record);
            Ok(())
        });
        if let (Err(error), None) = (read, &self.failure) {
            self.failure = Some(Failure::new(format!("--strace: {error}"), ""));
        }
        self.write();
    }

    /// Writes the calls that have not ended. Returns the counts.
    ///
    /// # Errors
    /// A write failed, now or before.
    pub fn finish(mut self) -> Result<StraceCounts> {
        self.lines.finish();
        self.write();
        let counts = StraceCounts { calls: self.lines.calls, lost: self.lines.lost };
        self.failure.map_or(Ok(counts), Err)
    }

    fn write(&mut self) {
        let text = self.lines.take();
        match &mut self.to {
            _ if text.is_empty() || self.failure.is_some() => {}
            StraceOutput::Stderr if terminal::is_raw() => print::stderr(text.replace('\n', "\r\n")),
            StraceOutput::Stderr => print::stderr(text),
            StraceOutput::File(path, file) => {
                let written = file.write_all(text.as_bytes());
                self.failure = written.map_err(|error| Failure::io("write", path, &error)).err();
            }
        }
    }
}

/// Returns the closing line where records were lost.
pub fn closing(counts: &StraceCounts) -> Option<String> {
    (counts.lost > 0).then(|| format!("── strace: {} calls, {} records lost\n", counts.calls, counts.lost))
}
