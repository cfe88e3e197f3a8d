//! `freehold diff A.json B.json`: the changes between two runs, commits or kernels.
//!
//! [`record`] reads records that `run`, `bench`, `lab` and `scope` wrote with `--json`. [`context`]
//! finds differences that make the comparison unfair, [`rows`] compares rows of bench, [`outcome`]
//! ends of programs, [`figures`] all other numbers. All of them fill a [`DiffResult`], which
//! [`output`] shows as text, JSON and CSV.

mod context;
mod figures;
mod outcome;
mod output;
pub mod record;
mod result;
mod rows;
/// Returns a record's figures as a sheet: a line for each, with its path in the record. Of repeated
/// observations it has the median and the ends.
///
/// # Errors
/// The record cannot be represented.
pub fn sheet_of_figures(record: &impl Serialize) -> Result<Sheet> {
    let value = serde_json::to_value(record)
        .map_err(|error| Failure::new(format!("cannot represent the record: {error}"), ""))?;
    let mut sheet = Sheet::new(&["name", "unit", "value", "low", "high", "observations"])?;
    for (path, observed) in PathFigures::of(&value, "", &|_| false).list() {
        let ends = observed.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(*value), high.max(*value))
        });
        let numbers = [median(observed), ends.0, ends.1].map(|value| number(Some(value)));
        let [value, low, high] = numbers;
        sheet.line([path.clone(), unit(path).to_owned(), value, low, high, observed.len().to_string()])?;
    }
    Ok(sheet)
}

#[cfg(test)]
mod tests;

use freehold_scope_record::Phase;
use serde::Serialize;
use serde_json::Value;

use crate::args::DiffOptions;
use crate::failure::Failure;
use crate::sheet::{Sheet, number};
use crate::statistics::median;
use crate::{Result, files};
use figures::{Judge, PathFigures, Tolerance, unit};
use output::Output;
use record::{KeptRecord, Part, RecordKind, finite};
use result::DiffResult;

/// The largest threshold, in percent.
const MOST_PERCENT: f64 = 1_000_000.0;
/// Parts of a microscope's record below `results` that are not compared: addresses, lists by
/// address or time, and the host's work.
const NOT_COMPARED: [&str; 11] = [
    "results.phases[closing]",
    "results.version",
    "results.settings",
    "results.blocks",
    "results.owners",
    "results.slices",
    "results.regions",
    "results.near",
    "results.cost",
    "results.oracle.layout",
    "results.oracle.violations",
];
/// Difference that is allowed between counts of accesses in equal runs.
const FEW: f64 = 100.0;
/// Largest amount that one instruction adds to a total: the bytes that it stores.
const PER_INSTRUCTION: f64 = 8.0;
/// The remark about two runs with counted instructions.
const EXACT: &str = "both runs counted instructions: every difference of the program's is shown, of the boot's beyond 1,000; other counts may differ by the \
                     threshold, by 100, or as far as the closing phases do";

/// Compares the two files of `options`; returns the exit status of this command.
///
/// # Errors
/// The files cannot be read or compared, or the result cannot be written.
pub fn diff(options: &DiffOptions) -> Result<u8> {
    let percent = threshold(&options.threshold)?;
    if [&options.a, &options.b].iter().all(|path| files::is_stdout(path)) {
        return Err(Failure::new("both records are to come from stdin", "name a file for one of them"));
    }
    files::check_writable([&options.json, &options.csv])?;
    let (a, b) = (KeptRecord::read(&options.a)?, KeptRecord::read(&options.b)?);
    let result = compare(&a, &b, percent / 100.0)?;
    let output = Output { a: &a, b: &b, percent, result: &result };
    if let Some(path) = &options.json {
        files::write_json(path, &output.json())?;
    }
    if let Some(path) = &options.csv {
        output.sheet()?.write(path)?;
    }
    files::print_beside(&output.text(), [&options.json, &options.csv])?;
    Ok(result.status())
}

fn threshold(text: &str) -> Result<f64> {
    let number = text.trim_end_matches('%').parse().ok();
    number.filter(|percent| (0.0..=MOST_PERCENT).contains(percent)).ok_or_else(|| {
        Failure::new(format!("--threshold {text}: not a share in percent"), "0 or more, 1 if it is not given")
    })
}

/// Compares the two records. `threshold` is a share.
///
/// # Errors
/// The records are of two commands or experiments, or one is damaged.
fn compare(a: &KeptRecord, b: &KeptRecord, threshold: f64) -> Result<DiffResult> {
    let refused = |what: &str, of_a: &str, of_b: &str| {
        let message = format!("the records are of two {what}: {} of {of_a}, {} of {of_b}", a.file, b.file);
        Failure::new(message, "compare two records of one kind").in_one_line()
    };
    if a.kind != b.kind {
        return Err(refused("commands", a.kind.command(), b.kind.command()));
    }
    let mut result = DiffResult { not_same: context::not_same(a, b), ..DiffResult::default() };
    let (part_a, part_b) = (a.part(), b.part());
    match a.kind {
        RecordKind::Bench => rows::compare(part_a, part_b, threshold, &mut result)?,
        RecordKind::Run => {
            outcome::compare(part_a, part_b, "", threshold, &mut result)?;
            result.remarks.push(match context::are_exact(&a.value, &b.value) {
                true => {
                    "both runs counted instructions (1 ns is 1 of them): every difference is shown, of the boot beyond 1,000".into()
                }
                false => noise_in_words(threshold),
            });
        }
        RecordKind::Scope => scope(part_a, part_b, threshold, &mut result)?,
        RecordKind::Lab => {
            let (of_a, of_b) = (part_a.text("experiment", "")?, part_b.text("experiment", "")?);
            if of_a != of_b {
                return Err(refused("experiments", of_a, of_b));
            }
            lab(part_a, part_b, threshold, &mut result)?;
        }
    }
    Ok(result)
}

/// Compares runs under the microscope.
fn scope(a: Part<'_>, b: Part<'_>, threshold: f64, into: &mut DiffResult) -> Result<()> {
    let outcome = |part: Part<'_>| part.get("outcome").map_or(Value::Null, Value::clone);
    let (of_a, of_b) = (outcome(a), outcome(b));
    outcome::compare(a.with(&of_a), b.with(&of_b), "outcome.", threshold, into)?;
    let broken = |part: Part<'_>| {
        let total = part.value.pointer("/results/oracle/total");
        let total = total.and_then(finite).filter(|total| *total >= 0.0);
        total.ok_or_else(|| part.damaged("results.oracle.total", "a number of violations"))
    };
    if broken(a)? == 0.0 && broken(b)? > 0.0 {
        into.regressions.push("the kernel broke its rules of memory isolation".into());
    }
    let exact = context::are_exact(&of_a, &of_b);
    // A function without executed instructions is not in the list.
    let is_zero = |path: &str| path.starts_with("symbols[") || path.starts_with("shared_lines[");
    let closing = (closing_instructions(a) - closing_instructions(b)).abs();
    let tolerance = |path: &str| match exact {
        true if is_instructions(path) && path.contains("].cpus[") && !path.contains("[boot") => {
            Tolerance::of(0.0)
        }
        true if path.starts_with("symbols[") => Tolerance::of(0.0),
        // The begin and end of a phase are counted from the first instruction of the boot.
        true if is_instructions(path) => Tolerance::BOOT,
        true => Tolerance { share: threshold, count: FEW.max(closing * PER_INSTRUCTION) },
        false => Tolerance::of(threshold),
    };
    let judge = Judge { tolerance: &tolerance, is_zero: &is_zero };
    let is_left_out = |path: &str| NOT_COMPARED.contains(&path);
    for name in ["results", "symbols", "shared_lines"] {
        let figures =
            |part: Part<'_>| PathFigures::of(part.get(name).unwrap_or(&Value::Null), name, &is_left_out);
        judge.compare(&figures(a), &figures(b), into);
    }
    into.remarks.push(match exact {
        true => EXACT.to_owned(),
        false => noise_in_words(threshold),
    });
    Ok(())
}

/// Returns whether a figure of the microscope is a number of instructions that an equal run
/// repeats. All other counts are of accesses; a busy host was seen to add a few.
fn is_instructions(path: &str) -> bool {
    let repeats = path.starts_with("results.phases[") || path.starts_with("symbols[");
    repeats && ["instructions", "share", "start", "end"].contains(&figures::last(path))
}

/// Returns the instructions of the closing phase, in which the kernel makes its audit. That phase
/// waits for the host, so its count does not repeat, and all totals contain it.
fn closing_instructions(part: Part<'_>) -> f64 {
    let phases = part.value.pointer("/results/phases").and_then(Value::as_array);
    let is_closing = |phase: &&Value| phase.get("name").and_then(Value::as_str) == Some(Phase::CLOSING);
    let closing = phases.into_iter().flatten().filter(is_closing);
    let cpus = closing.filter_map(|phase| phase.get("cpus")?.as_array()).flatten();
    let places = ["/modes/user/instructions", "/modes/kernel/instructions"];
    cpus.flat_map(|cpu| places.map(|place| cpu.pointer(place))).flatten().filter_map(finite).sum()
}

/// Compares experiments: their figures, and the costs that some of them have from bench.
fn lab(a: Part<'_>, b: Part<'_>, threshold: f64, into: &mut DiffResult) -> Result<()> {
    // Values outside lists are settings and were compared as settings. Ratios of host times and
    // their intervals follow from values that are compared.
    let is_left_out = |path: &str| {
        path == "costs"
            || (!path.is_empty() && !path.contains('[') && !is_list_at(path, a, b))
            || path.ends_with("].ratio")
            || path.ends_with("].interval")
    };
    let judge = Judge { tolerance: &|_| Tolerance::of(threshold), is_zero: &|_| false };
    let figures = |part: Part<'_>| PathFigures::of(part.value, "", &is_left_out);
    judge.compare(&figures(a), &figures(b), into);
    into.remarks.push(noise_in_words(threshold));
    if let (Some(costs_a), Some(costs_b)) = (a.get("costs"), b.get("costs")) {
        rows::compare(a.with(costs_a), b.with(costs_b), threshold, into)?;
    }
    Ok(())
}

/// Returns whether a field of the record is a list of findings.
fn is_list_at(path: &str, a: Part<'_>, b: Part<'_>) -> bool {
    [a, b].iter().any(|part| {
        let list = part.get(path).and_then(Value::as_array);
        list.is_some_and(|list| list.iter().any(|value| value.is_object() || value.is_array()))
    })
}

fn noise_in_words(noise: f64) -> String {
    format!("figures that differ by at most {}% are not told apart", noise * 100.0)
}
