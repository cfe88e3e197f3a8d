//! Makes runs in processes of this host.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::folder::{SweepFolder, SweepLine};
use super::plan::{SweepPlan, SweepRun};
use crate::failure::Failure;
use crate::progress::{Interrupt, Progress};
use crate::{Result, print, session};

/// Bytes of a program's stdout that are kept.
const STDOUT_KEPT: u64 = 64 << 10;
/// Bytes of stderr that are kept.
const STDERR_KEPT: u64 = 4 << 10;
/// Time between two looks at a process.
const LOOK: Duration = Duration::from_millis(20);
/// Ends that say something about the host and nothing about the run: it is made again.
const NOT_OF_THE_RUN: [&str; 2] = ["host-signal", "qemu"];

/// The fate of a run.
#[derive(Debug, PartialEq, Eq)]
pub enum Made {
    /// It is made, and its result is kept.
    Kept,
    /// It was made before.
    Before,
    /// Another process makes it.
    Elsewhere,
    /// It has no result: why.
    Lost(String),
}

/// Makes all runs that are not made, `jobs` at a time. Returns the signal that ended this early, if
/// one did.
///
/// # Errors
/// Files cannot be written, or processes cannot be started.
pub fn make_all(plan: &SweepPlan, folder: &SweepFolder, jobs: usize) -> Result<Option<u8>> {
    let missing = folder.missing(plan)?;
    if missing.len() < plan.runs.len() {
        let made = plan.runs.len() - missing.len();
        print::stderr(format!("freehold: {made} of {} runs were made before\n", plan.runs.len()));
    }
    let jobs = jobs.min(missing.len());
    let progress = Progress::new(missing.iter().map(|run| key(run)), jobs as u32);
    let interrupt = Interrupt::watch()?;
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while interrupt.came().is_none()
                    && failed.lock().unwrap_or_else(PoisonError::into_inner).is_none()
                    && let Some(run) = missing.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let begun = Instant::now();
                    match make_unless(plan, folder, run, &interrupt) {
                        Ok(made) => tell(&made, run, &progress, begun.elapsed()),
                        Err(failure) => {
                            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                        }
                    }
                }
            });
        }
    });
    progress.end();
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failure) => Err(failure),
        None => Ok(interrupt.came()),
    }
}

/// Returns the runs that take about as long as this one.
fn key(run: &SweepRun) -> String {
    format!("{}, {}, {}", run.kernel, run.program, run.machine)
}

fn tell(made: &Made, run: &SweepRun, progress: &Progress, took: Duration) {
    match made {
        Made::Kept => progress.finish(&key(run), &format!("run {}, {}", run.number, run.name()), took),
        Made::Before => {}
        Made::Elsewhere => {
            print::stderr(format!("freehold: run {} is being made by another process\n", run.number));
        }
        Made::Lost(why) => print::stderr(format!("freehold: run {} has no result: {why}\n", run.number)),
    }
}

/// Makes a run, if it is not made, after any other process that makes it.
///
/// # Errors
/// Files cannot be written, or the process cannot be started.
pub fn make(plan: &SweepPlan, folder: &SweepFolder, run: &SweepRun) -> Result<Made> {
    let _claim = folder.wait_for_claim(run.number)?;
    make_claimed(plan, folder, run, None)
}

/// Makes a run, unless another process makes it or a signal comes.
fn make_unless(
    plan: &SweepPlan,
    folder: &SweepFolder,
    run: &SweepRun,
    interrupt: &Interrupt,
) -> Result<Made> {
    match folder.claim(run.number)? {
        Some(_claim) => make_claimed(plan, folder, run, Some(interrupt)),
        None => Ok(Made::Elsewhere),
    }
}

/// Makes a run whose lock is held until the result is kept.
fn make_claimed(
    plan: &SweepPlan,
    folder: &SweepFolder,
    run: &SweepRun,
    interrupt: Option<&Interrupt>,
) -> Result<Made> {
    if folder.result(run.number)?.is_some() {
        return Ok(Made::Before);
    }
    let failed = |e: std::io::Error| Failure::new(format!("cannot make a temporary file: {e}"), "");
    let record = tempfile::NamedTempFile::new().map_err(failed)?;
    let [mut output, mut errors] =
        [tempfile::tempfile().map_err(failed)?, tempfile::tempfile().map_err(failed)?];
    let streams = [&output, &errors].map(File::try_clone);
    let [stdout, stderr] = streams;
    let mut command = session::owned_command(&std::env::current_exe().map_err(failed)?);
    command.args(["run", "--json"]).arg(record.path()).args(&run.words);
    // A relative path of the sweep's file is meant from its folder.
    command.current_dir(plan.file.parent().unwrap_or(std::path::Path::new("/")));
    command.stdin(Stdio::null()).stdout(stdout.map_err(failed)?).stderr(stderr.map_err(failed)?);
    let mut child =
        command.spawn().map_err(|e| Failure::new(format!("cannot start freehold run: {e}"), ""))?;
    if wait(&mut child, interrupt)?.is_none() {
        return Ok(Made::Lost("a signal came".into()));
    }
    let outcome: Option<Value> =
        std::fs::read(record.path()).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let Some(outcome) = outcome else {
        let told = part(&mut errors, SeekFrom::Start(0), STDERR_KEPT)?;
        return Ok(Made::Lost(told.lines().last().unwrap_or("freehold run wrote no record").to_owned()));
    };
    if NOT_OF_THE_RUN.iter().any(|name| outcome["outcome"] == *name) {
        return Ok(Made::Lost(outcome["sentence"].as_str().unwrap_or_default().to_owned()));
    }
    let stdout = part(&mut output, SeekFrom::Start(0), STDOUT_KEPT)?;
    let length = errors.metadata().map_err(failed)?.len();
    let stderr = part(&mut errors, SeekFrom::Start(length.saturating_sub(STDERR_KEPT)), STDERR_KEPT)?;
    folder.keep(&SweepLine::new(run, &outcome, stdout, stderr))?;
    Ok(Made::Kept)
}

/// Waits for a run's process; kills it when a signal comes. `None` if one came.
fn wait(child: &mut Child, interrupt: Option<&Interrupt>) -> Result<Option<ExitStatus>> {
    let failed = |e: std::io::Error| Failure::new(format!("cannot wait for freehold run: {e}"), "");
    loop {
        if interrupt.is_some_and(|interrupt| interrupt.came().is_some()) {
            // The program may take a signal for its own and end as if by itself.
            child.kill().and_then(|()| child.wait()).map_err(failed)?;
            return Ok(None);
        }
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(Some(status));
        }
        std::thread::sleep(LOOK);
    }
}

fn part(file: &mut File, from: SeekFrom, most: u64) -> Result<String> {
    let mut bytes = Vec::new();
    let read = file.seek(from).and_then(|_| file.take(most).read_to_end(&mut bytes));
    read.map_err(|e| Failure::new(format!("cannot read what a run printed: {e}"), ""))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
