//! Records which of our kernel's code ran. `freehold scope --coverage FILE` adds a run to a record,
//! `freehold coverage FILE` shows the record. With `FREEHOLD_COVERAGE=FILE` every `freehold run` on
//! our kernel adds itself, whole test suites among them.
//!
//! The counted bytes are those of the functions in the kernel's executable sections ([`code`]). A
//! byte ran if a block of code that holds it was executed at least once. Padding between functions
//! belongs to no function and is not counted.

mod code;
mod record;
mod report;

use std::path::{Path, PathBuf};

use freehold_scope_record::Executed;

use crate::args::{Accel, CoverageOptions, RunOptions};
use crate::failure::Failure;
use crate::kernel::{Family, KernelChoice};
use crate::run::Prepared;
use crate::scope::Microscope;
use crate::{Result, files, print};
pub use record::CoverageRecord;

/// The variable with the record to which each `freehold run` is added.
const VARIABLE: &str = "FREEHOLD_COVERAGE";
/// Exit status if less code ran than required.
const TOO_LITTLE: u8 = 1;

/// A run whose executed code is added to a record.
pub struct Watched {
    microscope: Microscope,
    seen: PathBuf,
    /// The record.
    into: PathBuf,
    /// The code of the kernel's file, with no run recorded.
    code: CoverageRecord,
}

impl Watched {
    /// Watches `run` if the environment asks for it and the run can be watched; `options` are the
    /// run's own.
    ///
    /// # Errors
    /// The plugin is missing, or the kernel has no symbols.
    pub fn by_environment(run: &mut Prepared, options: &RunOptions) -> Result<Option<Watched>> {
        match std::env::var_os(VARIABLE).filter(|into| !into.is_empty()) {
            Some(into) if run.kernel.family == Family::Freehold && options.accel != Accel::Kvm => {
                let into = PathBuf::from(into);
                files::check_writable([&Some(into.clone())])
                    .map_err(|failure| failure.at(Path::new(&format!("{VARIABLE}={}", into.display()))))?;
                Watched::new(run, into).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Watches `run` for the record `into`.
    ///
    /// # Errors
    /// As above; or the kernel is not ours.
    pub fn new(run: &mut Prepared, into: PathBuf) -> Result<Watched> {
        let code = CoverageRecord::new(code::functions(own(&run.kernel)?)?);
        // A damaged record is found before the machine runs.
        if into.exists() {
            CoverageRecord::read(&into)?.with(&code).map_err(|failure| failure.at(&into))?;
        }
        let mut microscope = Microscope::of_code()?;
        let seen = microscope.watch(run)?;
        Ok(Watched { microscope, seen, into, code })
    }

    /// Adds the executed code to the record, after the run has ended and QEMU printed `words`.
    /// Returns the run's own part and the whole.
    ///
    /// # Errors
    /// The record cannot be written, or is of another kernel. A run without results is counted as
    /// lost, in the record.
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

/// Returns the kernel's file, if the kernel is ours.
fn own(kernel: &KernelChoice) -> Result<&std::path::Path> {
    match kernel.family {
        Family::Freehold => Ok(&kernel.path),
        Family::Linux => Err(Failure::new(
            "--coverage knows our own kernel only: a stock Linux comes without the sizes of its functions",
            "leave --kernel linux out",
        )),
    }
}

/// Returns one line about a run and the record to which it was added.
pub fn line(own: &CoverageRecord, whole: &CoverageRecord) -> String {
    format!(
        "── coverage: this run {}; {} in the record: {}",
        report::ran(own),
        crate::scope::plural(whole.runs, "run"),
        report::ran(whole)
    )
}

/// Runs `freehold coverage`, which shows records; returns the exit status.
///
/// # Errors
/// A record cannot be read, or the records are of several kernels.
pub fn coverage(options: &CoverageOptions) -> Result<u8> {
    files::check_writable([&options.html, &options.json, &options.csv])?;
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
    if let Some(path) = &options.csv {
        report::sheet(&whole)?.write(path)?;
    }
    let text = report::text(&whole, if options.all { usize::MAX } else { report::NAMED });
    files::print_beside(&text, [&options.html, &options.json, &options.csv])?;
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
