//! `freehold bench`: the same guest programs in identical VMs on two kernels (or on one kernel with two command lines), and
//! what can be said about the difference.
//!
//! options → [`plan`] → [`measure`] (VMs, as `freehold run` starts them) → [`parse`] → [`compare`] ([`statistics`]) →
//! [`report`] → [`table`], [`json`], [`page`].

pub mod compare;
mod json;
mod measure;
mod page;
mod parse;
mod plan;
mod report;
mod rows;
pub mod statistics;
mod table;

use std::io::Write;

use crate::Result;
use crate::args::BenchOptions;
use crate::files;
use compare::Comparison;
use plan::Plan;
use report::Report;
pub use report::emulator;

/// Exit status when a guest failed to perform a row.
const ROW_FAILED: u8 = 1;

/// Measures what `options` describe; returns the exit status of this command.
pub fn bench(options: &BenchOptions) -> Result<u8> {
    if options.list {
        return Ok(list());
    }
    run(options, "Costs of operations, side by side")
}

/// The same with another title for the report.
pub fn run(options: &BenchOptions, title: &str) -> Result<u8> {
    // Everything that can be wrong is found before minutes are spent.
    for path in [&options.json, &options.html].into_iter().flatten() {
        files::check_writable(path)?;
    }
    let plan = Plan::new(options)?;
    let measured = match measure::measure(&plan) {
        Ok(measured) => measured,
        Err(stop) => return measure::tell(stop),
    };
    let comparison = Comparison::new(&plan, &measured);
    let report = Report::new(&plan, &measured, &comparison);
    print(&table::render(&report));
    if let Some(path) = &options.json {
        json::write(&report, path)?;
    }
    if let Some(path) = &options.html {
        page::write(&report, title, path)?;
    }
    for failure in &comparison.failures {
        eprintln!("freehold: row {} failed on {}: {}", failure.row, failure.side, failure.message);
        eprint!("{}", failure.printed);
    }
    Ok(if comparison.failures.is_empty() { 0 } else { ROW_FAILED })
}

fn list() -> u8 {
    let width = rows::ROWS.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let line = |row: &rows::Row| format!("{:width$}  {}\n", row.name, row.what);
    print(&rows::ROWS.iter().map(line).collect::<String>());
    0
}

fn print(text: &str) {
    // A reader that closes early (`| head`) has what it wanted.
    let _ = std::io::stdout().write_all(text.as_bytes());
}
