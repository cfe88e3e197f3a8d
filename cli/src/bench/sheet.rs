//! The comparison for spreadsheets: a line for each row and side.

use super::compare::{Cell, ComparedRow};
use super::plan::Measure;
use super::report::BenchReport;
use crate::Result;
use crate::sheet::{Sheet, number};
use crate::statistics::Estimate;

/// Columns in this order. `ratio` is the first side over this one, and is empty for the first side.
const COLUMNS: [&str; 12] = [
    "name",
    "workers",
    "side",
    "unit",
    "median",
    "low",
    "high",
    "samples",
    "ratio",
    "ratio_low",
    "ratio_high",
    "failure",
];

/// Returns all rows.
///
/// # Errors
/// If memory cannot be written to.
pub fn sheet(report: &BenchReport<'_>) -> Result<Sheet> {
    let mut sheet = Sheet::new(&COLUMNS)?;
    let unit = report.plan.measure.unit();
    for line in &report.comparison.lines {
        for cells in lines(line, &report.labels(), unit) {
            sheet.line(cells)?;
        }
    }
    Ok(sheet)
}

impl Measure {
    /// Returns the name of a cost's unit for machines.
    pub fn unit(self) -> &'static str {
        match self {
            Measure::Instructions => "instructions",
            Measure::Wall => "nanoseconds",
        }
    }
}

/// Returns a line for each side of a row.
fn lines(row: &ComparedRow, labels: &[&str], unit: &str) -> Vec<[String; COLUMNS.len()]> {
    let ratios = std::iter::once(None).chain(row.ratios.iter().copied());
    let line = |((cell, label), ratio): ((&Cell, &&str), Option<Estimate>)| {
        let (cost, failure) = match cell {
            Cell::Cost(cost) => (Some(cost), String::new()),
            Cell::Failed(why) => (None, why.clone()),
        };
        let estimate = cost.map(|cost| cost.estimate);
        let samples = cost.map_or(0, |cost| cost.runs.iter().map(Vec::len).sum());
        [
            row.row.name.to_owned(),
            row.workers.to_string(),
            (*label).to_owned(),
            unit.to_owned(),
            number(estimate.map(|found| found.value)),
            number(estimate.map(|found| found.interval.low)),
            number(estimate.map(|found| found.interval.high)),
            samples.to_string(),
            number(ratio.map(|ratio| ratio.value)),
            number(ratio.map(|ratio| ratio.interval.low)),
            number(ratio.map(|ratio| ratio.interval.high)),
            failure,
        ]
    };
    row.cells.iter().zip(labels).zip(ratios).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::compare::Cost;
    use super::super::rows::ROWS;
    use super::*;
    use crate::statistics::Interval;

    #[test]
    fn each_side_has_a_line_and_the_others_have_the_ratio() {
        let estimate = |value, low, high| Estimate { value, interval: Interval { low, high } };
        let cost =
            Cost { estimate: estimate(5.5, 5.0, 6.0), runs: vec![vec![5.0, 6.0], vec![5.5]], note: None };
        let row = ComparedRow {
            row: &ROWS[0],
            workers: 2,
            cells: vec![Cell::Cost(cost.clone()), Cell::Cost(cost), Cell::Failed("no memory".into())],
            ratios: vec![Some(estimate(1.0, 0.5, f64::INFINITY)), None],
        };
        let text: Vec<String> = lines(&row, &["ours", "theirs", "third"], "instructions")
            .iter()
            .map(|cells| cells.join(";"))
            .collect();
        let name = ROWS[0].name;
        let expected = [
            "2;ours;instructions;5.5;5;6;3;;;;",
            "2;theirs;instructions;5.5;5;6;3;1;0.5;;",
            "2;third;instructions;;;;0;;;;no memory",
        ];
        assert_eq!(text, expected.map(|line| format!("{name};{line}")));
    }
}
