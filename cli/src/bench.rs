//! `freehold bench` runs the same guest programs in identical VMs on two kernels (or on one kernel
//! with two command lines) and compares the costs.
//!
//! options → [`plan`] → [`measure`] (VMs, as `freehold run` starts them) → [`parse`] → [`compare`]
//! ([`statistics`]) → [`report`] → [`table`], [`json`], [`sheet`],
//! [`page`].

pub mod compare;
mod json;
mod measure;
mod page;
mod parse;
mod plan;
mod report;
mod rows;
mod sheet;
pub mod table;

use serde_json::Value;

use crate::args::BenchOptions;
use crate::html::{Page, Tile};
use crate::progress::status_of;
use crate::{Result, files, print};
use compare::Comparison;
pub use measure::show;
pub use parse::{Output, Phases};
use plan::Plan;
pub use plan::{LEAN, volumes};
use report::BenchReport;
pub use report::emulator;
pub use rows::{BenchRow, COUNTS, GROWTH, GrowthRows};

/// Exit status when a guest failed to perform a row.
const ROW_FAILED: u8 = 1;

/// Measures as `options` say; returns the exit status of this command.
pub fn bench(options: &BenchOptions) -> Result<u8> {
    if options.list {
        return list();
    }
    run(options, "Costs of operations, side by side")
}

/// Measures in the same way with another title for the report.
pub fn run(options: &BenchOptions, title: &str) -> Result<u8> {
    // All possible errors are found before the measurement takes minutes.
    files::check_writable([&options.json, &options.html, &options.csv])?;
    let compared = match compare(options)? {
        Ok(compared) => compared,
        Err(status) => return Ok(status),
    };
    let report = compared.report();
    if let Some(path) = &options.json {
        files::write_json(path, &json::value(&report))?;
    }
    if let Some(path) = &options.csv {
        sheet::sheet(&report)?.write(path)?;
    }
    if let Some(path) = &options.html {
        page::page(&report, title).write(path)?;
    }
    files::print_beside(&table::render(&report), [&options.json, &options.html, &options.csv])?;
    Ok(compared.conclude())
}

/// The comparison in all its forms, for experiments.
pub struct Compared {
    plan: Plan,
    measured: measure::Measurements,
    comparison: Comparison,
}

/// Measures as `options` say. The inner error is the exit status after a guest died, which the user
/// has been told of.
pub fn compare(options: &BenchOptions) -> Result<std::result::Result<Compared, u8>> {
    let plan = Plan::new(options)?;
    let measured = match measure::measure(&plan) {
        Ok(measured) => measured,
        Err(stop) => return measure::tell(stop).map(Err),
    };
    let comparison = Comparison::new(&plan, &measured);
    Ok(Ok(Compared { plan, measured, comparison }))
}

impl Compared {
    fn report(&self) -> BenchReport<'_> {
        BenchReport::new(&self.plan, &self.measured, &self.comparison)
    }

    /// Returns the cost of the row `name` for one worker on side number `side`; `None` where it
    /// failed.
    pub fn cost(&self, name: &str, side: usize) -> Option<f64> {
        let line = self.comparison.lines.iter().find(|line| line.row.name == name && line.workers == 1)?;
        match line.cells.get(side)? {
            compare::Cell::Cost(cost) => Some(cost.estimate.value),
            compare::Cell::Failed(_) => None,
        }
    }

    /// Returns the table for a terminal.
    pub fn text(&self) -> String {
        table::render(&self.report())
    }

    /// Returns the record for machines.
    pub fn json(&self) -> Value {
        json::value(&self.report())
    }

    /// Returns the key figures of a page.
    pub fn tiles(&self) -> Vec<Tile> {
        page::tiles(&self.report())
    }

    /// Adds the other parts of a page.
    pub fn sections(&self, page: &mut Page) {
        page::sections(&self.report(), page);
    }

    /// Returns the signal that ended the measurement early, if one did.
    pub fn interrupted(&self) -> Option<u8> {
        self.measured.interrupted
    }

    /// Prints the rows that failed; returns the exit status.
    pub fn conclude(&self) -> u8 {
        let status = self.tell_failures();
        self.interrupted().map_or(status, status_of)
    }

    /// Prints the rows that failed; returns the exit status for them.
    pub fn tell_failures(&self) -> u8 {
        let failures = &self.comparison.failures;
        for failure in failures {
            print::stderr(format!(
                "freehold: row {} failed on {}: {}\n",
                failure.row, failure.side, failure.message
            ));
            print::stderr(&failure.printed);
        }
        if failures.is_empty() { 0 } else { ROW_FAILED }
    }
}

/// Returns the names of all rows.
pub fn names() -> impl Iterator<Item = &'static str> {
    rows::ROWS.iter().map(|row| row.name)
}

fn list() -> Result<u8> {
    let width = rows::ROWS.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let line = |row: &rows::BenchRow| format!("{:width$}  {}\n", row.name, row.what);
    print::stdout(rows::ROWS.iter().map(line).collect::<String>())?;
    Ok(0)
}
