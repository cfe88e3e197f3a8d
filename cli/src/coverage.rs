//! Which of our kernel's code ran: `freehold scope --coverage FILE` adds a run to a record,
//! `freehold coverage FILE` tells what is in it. With `FREEHOLD_COVERAGE=FILE` every `freehold run`
//! on our kernel adds itself, whole test suites among them.
//!
//! What is counted are bytes of the functions in the kernel's executable sections ([`code`]); a
//! byte ran if a block of code that holds it was executed at least once. Padding between functions
//! is none's and is not counted.

mod code;
mod record;
mod report;

use std::path::PathBuf;

use freehold_scope_record::Executed;

use crate::args::{Accel, CoverageOptions, RunOptions};
use crate::failure::Failure;
use crate::kernel::{Family, KernelChoice};
use crate::run::Prepared;
use crate::scope::Microscope;
use crate::{Result, files, print};
pub use record::CoverageRecord;

/// Names the record that each `freehold run` is added to.
const VARIABLE: &str = "FREEHOLD_COVERAGE";
/// The exit status where less ran than was asked for.
const TOO_LITTLE: u8 = 1;

/// A run of which the code that ran is added to a record.
pub struct Watched {
    microscope: Microscope,
    seen: PathBuf,
    /// The record.
    into: PathBuf,
    /// What the kernel's file holds, with nothing run.
    code: CoverageRecord,
}

impl Watched {
    /// Watches `run` where the environment asks for it and the run can be watched; `options` are
    /// the run's own.
    ///
    /// # Errors
    /// Where the plugin is missing, or the kernel has no symbols.
    pub fn by_environment(run: &mut Prepared, options: &RunOptions) -> Result<Option<Watched>> {
        match std::env::var_os(VARIABLE) {
            Some(into) if run.kernel.family == Family::Freehold && options.accel != Accel::Kvm => {
                Watched::new(run, into.into()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Watches `run` for the record `into`.
    ///
    /// # Errors
    /// As above; and where the kernel is not ours.
    pub fn new(run: &mut Prepared, into: PathBuf) -> Result<Watched> {
        let code = CoverageRecord::new(code::functions(own(&run.kernel)?)?);
        // Known before the machine runs for nothing.
        if into.exists() {
            CoverageRecord::read(&into)?.with(&code).map_err(|failure| failure.at(&into))?;
        }
        let mut microscope = Microscope::of_code()?;
        let seen = microscope.watch(run)?;
        Ok(Watched { microscope, seen, into, code })
    }

    /// The run has ended, and QEMU said `words`: adds what it ran to the record. Returns the run's
    /// own part and the whole.
    ///
    /// # Errors
    /// Where the record cannot be written, or is of another kernel. A run that left nothing behind
    /// is counted as lost, in the record.
    pub fn add(self, words: &str) -> Result<(CoverageRecord, CoverageRecord)> {
        let mut own = self.code;
        match Executed::read(&self.seen) {
            Ok(Executed { kernel, early, slide: Some(slide), .. }) => own.ran(&kernel, &early, slide),
            // QEMU was killed, or the kernel died before it said where it is.
            Ok(_) | Err(_) => own.lost += 1,
        }
        if own.lost > 0 && words.contains(crate::session::WATCHER_NAME) {
            print::stderr(format!("freehold: the code that ran is not known: {}\n", words.trim()));
        }
        drop(self.microscope);
        let whole = record::add(&self.into, &own)?;
        Ok((own, whole))
    }
}

/// The kernel's file, where it is ours.
fn own(kernel: &KernelChoice) -> Result<&std::path::Path> {
    match kernel.family {
        Family::Freehold => Ok(&kernel.path),
        Family::Linux => Err(Failure::new(
            "--coverage knows our own kernel only: a stock Linux comes without the sizes of its functions",
            "leave --kernel linux out",
        )),
    }
}

/// One line about a run and the record that it was added to.
pub fn line(own: &CoverageRecord, whole: &CoverageRecord) -> String {
    format!(
        "── coverage: this run {}; {} in the record: {}",
        report::ran(own),
        crate::scope::plural(whole.runs, "run"),
        report::ran(whole)
    )
}

/// `freehold coverage`: tells what records hold; returns the exit status.
///
/// # Errors
/// Where a record cannot be read, or they are of several kernels.
pub fn coverage(options: &CoverageOptions) -> Result<u8> {
    files::check_writable([&options.html, &options.json])?;
    let mut whole: Option<CoverageRecord> = None;
    for path in &options.files {
        let record = CoverageRecord::read(path)?;
        whole = Some(match whole {
            Some(whole) => whole.with(&record).map_err(|failure| failure.at(path))?,
            None => record,
        });
    }
    let whole = whole.ok_or_else(|| Failure::new("no record is named", "freehold coverage FILE"))?;
    if let Some(path) = &options.html {
        report::page(&whole).write(path)?;
    }
    if let Some(path) = &options.json {
        files::write_json(path, &whole)?;
    }
    let text = report::text(&whole, if options.all { usize::MAX } else { report::NAMED });
    files::print_beside(&text, [&options.html, &options.json])?;
    match options.least {
        Some(least) if whole.percent() < f64::from(least) => {
            print::stderr(format!(
                "freehold: {:.2}% of the kernel's code ran, and at least {least}% is asked for\n",
                whole.percent()
            ));
            Ok(TOO_LITTLE)
        }
        _ => Ok(0),
    }
}
