//! `freehold sweep FILE`: many runs of `freehold run`, the product of kernels, parameters,
//! programs, machines and seeds. Each run is made once, even if processes are killed meanwhile.
//!
//! [`plan`] reads the file and numbers the runs. [`folder`] keeps the results: a run counts as made
//! if its file exists. The file appears as a whole. [`local`] makes runs here; [`elsewhere`]
//! writes what Slurm, Kubernetes and Ray need, whose jobs call this command with `--run N`.
//! [`report`] merges the results.

mod elsewhere;
mod folder;
mod local;
mod plan;
mod report;

use std::path::PathBuf;

use crate::args::{SweepOptions, SweepRunner};
use crate::failure::Failure;
use crate::progress::{partial_sentence, status_of};
use crate::{Result, files, print};
use folder::SweepFolder;
use plan::SweepPlan;

/// Exit status when runs are missing, or when a run was no success.
const NOT_ALL: u8 = 1;
/// The most runs at a time.
const MOST_JOBS: usize = 1024;

/// Makes the runs that are not made, and merges all; returns the exit status of this command.
///
/// # Errors
/// The sweep cannot be read, its folder is of another one, or files cannot be written.
pub fn sweep(options: &SweepOptions) -> Result<u8> {
    let plan = SweepPlan::read(&options.file)?;
    if options.list {
        print::stdout(plan.listing())?;
        return Ok(0);
    }
    files::check_writable([&options.html, &options.csv])?;
    let jobs = jobs(options)?;
    let folder = SweepFolder::open(&out(options), &plan)?;
    if let Some(number) = options.run {
        return one(&plan, &folder, number);
    }
    if options.merge {
        return merge(options, &plan, &folder, None);
    }
    if options.runner == SweepRunner::Local {
        let ended_by = local::make_all(&plan, &folder, jobs)?;
        return merge(options, &plan, &folder, ended_by);
    }
    let told = elsewhere::start(options, (&plan, &folder), jobs)?;
    print::stderr(told);
    Ok(0)
}

/// Returns the folder of the results.
fn out(options: &SweepOptions) -> PathBuf {
    options.out.clone().unwrap_or_else(|| options.file.with_extension(""))
}

fn jobs(options: &SweepOptions) -> Result<usize> {
    match &options.jobs {
        None => Ok(std::thread::available_parallelism().map_or(1, |count| count.get())),
        Some(text) => text.parse().ok().filter(|jobs| (1..=MOST_JOBS).contains(jobs)).ok_or_else(|| {
            Failure::new(format!("--jobs {text}: not a number of runs"), format!("1 to {MOST_JOBS}"))
        }),
    }
}

/// Makes one run, as a runner's job; the status is 0 once its result is kept.
fn one(plan: &SweepPlan, folder: &SweepFolder, number: usize) -> Result<u8> {
    let run = plan.runs.get(number).ok_or_else(|| {
        let hint = format!("0 to {}; freehold sweep FILE --list names all", plan.runs.len() - 1);
        Failure::new(format!("--run {number}: there is no such run"), hint)
    })?;
    match local::make(plan, folder, run)? {
        local::Made::Kept | local::Made::Before | local::Made::Elsewhere => Ok(0),
        local::Made::Lost(why) => {
            print::stderr(format!("freehold: run {number}: {why}\n"));
            Ok(NOT_ALL)
        }
    }
}

/// Writes `results.jsonl` and the reports of all runs that are made.
fn merge(options: &SweepOptions, plan: &SweepPlan, folder: &SweepFolder, ended_by: Option<u8>) -> Result<u8> {
    let results = folder.merge(plan)?;
    let report = report::SweepReport::new(plan, &results, ended_by);
    if let Some(path) = &options.csv {
        report.sheet()?.write(path)?;
    }
    if let Some(path) = &options.html {
        report.page().write(path)?;
    }
    let mut text = report.text();
    text.push_str(&format!("{}: a line for each run\n", folder.lines().display()));
    ended_by.map(partial_sentence).iter().for_each(|partial| text.push_str(&format!("{partial}\n")));
    files::print_beside(&text, [&options.csv, &options.html])?;
    let is_whole = report.is_whole();
    Ok(ended_by.map_or(if is_whole { 0 } else { NOT_ALL }, status_of))
}
