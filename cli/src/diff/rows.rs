//! Rows of `freehold bench`: the first side of each record.
//!
//! A ratio's interval is a bootstrap over the observations of the records. With counted
//! instructions the observations are the samples. With the host's time they are the runs' medians,
//! since other work of the host lasts longer than a sample. The two records were not measured in
//! turn, so runs do not pair. Fewer than [`LEAST_RUNS`] runs decide nothing. If a record has only
//! intervals and no samples, the ratio's interval goes from the least to the most that both
//! intervals allow.

use std::collections::HashMap;

use serde_json::Value;

use super::record::{Part, finite};
use super::result::{DiffLine, DiffResult, DiffValue, DiffVerdict, WhichRecord};
use crate::failure::Failure;
use crate::statistics::{self, Estimate, Interval};
use crate::{Result, bench};

/// Smallest number of runs by the host's clock on each side that can decide something.
const LEAST_RUNS: usize = 3;
/// Largest number of samples in a record, all rows together, for a bootstrap: many times bench's
/// own.
const MOST_SAMPLES: usize = 1_000_000;

/// The unit of a row's costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CostUnit {
    Instructions,
    Nanoseconds,
}

/// The cost of a row in one record.
#[derive(Debug, Clone, PartialEq)]
enum DiffCost {
    Failed(String),
    Known {
        estimate: Estimate,
        /// Independent observations; none if the record has no samples.
        observed: Vec<f64>,
    },
}

/// A record's rows: name with workers, cost.
type DiffRows = Vec<(String, DiffCost)>;

/// Compares two records of bench. A row whose ratio is above 1 plus `threshold` is a regression.
///
/// # Errors
/// A record is damaged, or the records count different things.
pub fn compare(a: Part<'_>, b: Part<'_>, threshold: f64, into: &mut DiffResult) -> Result<()> {
    let unit = unit(a)?;
    if unit != self::unit(b)? {
        let message = "one record counts instructions, the other the host's time";
        return Err(Failure::new(message, "measure both the same way: with --wall, or without"));
    }
    let (rows_a, rows_b) = (rows(a, unit)?, rows(b, unit)?);
    let theirs: HashMap<&str, &DiffCost> = rows_b.iter().map(|(name, cost)| (name.as_str(), cost)).collect();
    let mut found = Vec::new();
    for (name, cost_a) in &rows_a {
        match theirs.get(name.as_str()) {
            Some(cost_b) => found.push(line(name, unit, cost_a, cost_b)),
            None => into.only.push((name.clone(), WhichRecord::A)),
        }
    }
    let ours: HashMap<&str, &DiffCost> = rows_a.iter().map(|(name, cost)| (name.as_str(), cost)).collect();
    let new = rows_b.iter().filter(|(name, _)| !ours.contains_key(name.as_str()));
    into.only.extend(new.map(|(name, _)| (name.clone(), WhichRecord::B)));
    into.regressions.extend(found.iter().filter_map(|line| regression(line, threshold)));
    into.remarks.extend(remarks(unit, &rows_a, &rows_b));
    into.rows = found.len();
    // Rows come before the other findings.
    into.lines.splice(0..0, found);
    Ok(())
}

fn unit(part: Part<'_>) -> Result<CostUnit> {
    match part.text("unit", "")? {
        "instructions" => Ok(CostUnit::Instructions),
        "nanoseconds" => Ok(CostUnit::Nanoseconds),
        _ => Err(part.damaged("unit", "instructions or nanoseconds")),
    }
}

impl CostUnit {
    fn word(self) -> &'static str {
        match self {
            CostUnit::Instructions => "instructions",
            CostUnit::Nanoseconds => "nanoseconds",
        }
    }
}

fn rows(part: Part<'_>, unit: CostUnit) -> Result<DiffRows> {
    let mut found: DiffRows = Vec::new();
    let is_partial = part.get("partial").and_then(Value::as_bool) == Some(true);
    let (mut names, mut samples) = (std::collections::HashSet::new(), 0);
    for (at, row) in part.list("rows", "")?.iter().enumerate() {
        let (row, place) = (part.with(row), format!("rows[{at}]."));
        let name = row.text("name", &place)?;
        let workers = row.get("workers").and_then(Value::as_u64).and_then(|count| u32::try_from(count).ok());
        let workers =
            workers.ok_or_else(|| row.damaged(&format!("{place}workers"), "a number of workers"))?;
        let name = bench::show(&(name.to_owned(), workers));
        let first = row.list("costs", &place)?.first();
        let first = first.ok_or_else(|| row.damaged(&format!("{place}costs"), "a list with a side"))?;
        let cost = cost(row.with(first), unit, &format!("{place}costs[0]."))?;
        if let DiffCost::Known { observed, .. } = &cost {
            samples += observed.len();
        }
        if samples > MOST_SAMPLES {
            return Err(row.damaged("rows", "a list with at most a million samples"));
        }
        if !names.insert(name.clone()) {
            return Err(row.damaged(&format!("{place}name ({name})"), "a name of its own"));
        }
        // A signal came before the side was measured: that is no failure.
        if !(is_partial && matches!(cost, DiffCost::Failed(_))) {
            found.push((name, cost));
        }
    }
    Ok(found)
}

fn cost(cell: Part<'_>, unit: CostUnit, place: &str) -> Result<DiffCost> {
    if let Some(why) = cell.get("failure") {
        let why = why.as_str().ok_or_else(|| cell.damaged(&format!("{place}failure"), "text"))?;
        return Ok(DiffCost::Failed(why.to_owned()));
    }
    let number = |name: &str, open: Option<f64>| match (cell.get(name), open) {
        (None, Some(open)) => Ok(open),
        (found, _) => found
            .and_then(finite)
            .filter(|cost| *cost >= 0.0)
            .ok_or_else(|| cell.damaged(&format!("{place}{name}"), "a cost")),
    };
    let value = number("cost", None)?;
    let interval = Interval { low: number("low", Some(0.0))?, high: number("high", Some(f64::INFINITY))? };
    if !interval.holds(value) && interval.low > interval.high {
        return Err(cell.damaged(&format!("{place}low"), "below high"));
    }
    let mut runs = Vec::new();
    for (at, run) in cell.get("runs").map_or(Ok(&[][..]), |_| cell.list("runs", place))?.iter().enumerate() {
        let samples: Option<Vec<f64>> = run.as_array().and_then(|run| run.iter().map(finite).collect());
        let samples = samples.filter(|samples| samples.iter().all(|sample| *sample >= 0.0));
        runs.push(samples.ok_or_else(|| cell.damaged(&format!("{place}runs[{at}]"), "a list of samples"))?);
    }
    runs.retain(|samples| !samples.is_empty());
    let observed = match unit {
        CostUnit::Instructions => runs.concat(),
        CostUnit::Nanoseconds => runs.iter().map(|samples| statistics::median(samples)).collect(),
    };
    Ok(DiffCost::Known { estimate: Estimate { value, interval }, observed })
}

/// Compares a row that both records have.
fn line(name: &str, unit: CostUnit, a: &DiffCost, b: &DiffCost) -> DiffLine {
    let value = |cost: &DiffCost| match cost {
        DiffCost::Failed(why) => DiffValue::Text(format!("failed: {why}")),
        DiffCost::Known { estimate, observed } if observed.is_empty() => DiffValue::Number(estimate.value),
        DiffCost::Known { observed, .. } => DiffValue::Number(statistics::median(observed)),
    };
    let ratio = ratio(unit, a, b);
    let verdict = match b {
        DiffCost::Failed(_) => DiffVerdict::Failed,
        // A row that failed in A has no cost to compare with.
        DiffCost::Known { .. } if matches!(a, DiffCost::Failed(_)) => DiffVerdict::Changed,
        DiffCost::Known { .. } => DiffVerdict::of_cost(ratio),
    };
    DiffLine {
        name: name.to_owned(),
        unit: unit.word(),
        a: value(a),
        b: value(b),
        ratio: ratio.map(|ratio| ratio.value),
        interval: ratio.map(|ratio| ratio.interval),
        verdict,
    }
}

/// Returns B over A; `None` if a side failed, or a cost is 0.
fn ratio(unit: CostUnit, a: &DiffCost, b: &DiffCost) -> Option<Estimate> {
    let (
        DiffCost::Known { estimate: told_a, observed: seen_a },
        DiffCost::Known { estimate: told_b, observed: seen_b },
    ) = (a, b)
    else {
        return None;
    };
    let ratio = if seen_a.is_empty() || seen_b.is_empty() {
        let interval = Interval {
            low: told_b.interval.low / told_a.interval.high,
            high: told_b.interval.high / told_a.interval.low,
        };
        Estimate { value: told_b.value / told_a.value, interval }
    } else if unit == CostUnit::Nanoseconds && seen_a.len().min(seen_b.len()) < LEAST_RUNS {
        let value = statistics::median(seen_b) / statistics::median(seen_a);
        Estimate { value, interval: Interval::OPEN }
    } else {
        symmetric(seen_a, seen_b)
    };
    let is_known = ratio.value.is_finite() && ratio.value > 0.0 && !ratio.interval.low.is_nan();
    (is_known && !ratio.interval.high.is_nan()).then_some(ratio)
}

/// Computes the ratio so that exchanging the two sides gives exactly the inverse. The bootstrap
/// draws for one side, then for the other, so the side that costs more is always the first.
fn symmetric(a: &[f64], b: &[f64]) -> Estimate {
    if (statistics::median(a), a) <= (statistics::median(b), b) {
        return statistics::bootstrap_ratio(b, a);
    }
    let found = statistics::bootstrap_ratio(a, b);
    let interval = Interval { low: 1.0 / found.interval.high, high: 1.0 / found.interval.low };
    Estimate { value: 1.0 / found.value, interval }
}

fn regression(line: &DiffLine, threshold: f64) -> Option<String> {
    match line.verdict {
        DiffVerdict::Failed if line.a.number().is_some() => Some(format!("row {} failed", line.name)),
        DiffVerdict::CostsMore => {
            let ratio = line.ratio.filter(|ratio| *ratio > 1.0 + threshold)?;
            Some(format!("row {} costs {:.2}% more", line.name, (ratio - 1.0) * 100.0))
        }
        _ => None,
    }
}

fn remarks(unit: CostUnit, a: &DiffRows, b: &DiffRows) -> Vec<String> {
    let mut said = vec![match unit {
        CostUnit::Instructions => format!(
            "95% intervals: percentile bootstrap of the ratio of medians over the samples, {} resamples",
            statistics::RESAMPLES
        ),
        CostUnit::Nanoseconds => format!(
            "95% intervals: percentile bootstrap of the ratio of medians over the runs, {} resamples; fewer than {LEAST_RUNS} runs decide nothing",
            statistics::RESAMPLES
        ),
    }];
    let lacks = |(_, cost): &(String, DiffCost)| matches!(cost, DiffCost::Known { observed, .. } if observed.is_empty());
    for (name, rows) in [("A", a), ("B", b)] {
        let count = rows.iter().filter(|row| lacks(row)).count();
        if count > 0 {
            said.push(format!(
                "{name} has no samples of {count} rows: their ratios' intervals follow from the records' own intervals"
            ));
        }
    }
    said
}

#[cfg(test)]
mod tests;
