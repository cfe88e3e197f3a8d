//! The comparison as a table in a terminal.

use std::fmt::Write;

use super::compare::{Cell, ComparedRow, Comparison, distinguishable};
use super::plan::Measure;
use super::report::BenchReport;
use crate::statistics::{Estimate, TOO_FEW_RUNS};

/// Separator of digit groups; a dot or a comma would be a decimal point for some readers.
const GROUP: char = '\u{a0}';

/// Formats a cost in the measure's unit.
pub fn cost(measure: Measure, value: f64) -> String {
    match measure {
        Measure::Instructions => grouped(value.round() as u64),
        Measure::Wall => crate::html::Unit::Nanoseconds.show(value),
    }
}

/// Formats a whole number with grouped digits.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(GROUP);
        }
        text.push(digit);
    }
    text
}

/// Returns a ratio with its interval, and whether it is significant.
pub fn ratio(ratio: Option<Estimate>) -> String {
    let Some(ratio) = ratio else {
        return "–".into();
    };
    let interval = ratio.interval.show("–", |end| format!("{end:.2}"));
    if !distinguishable(ratio) && !ratio.interval.has_too_few_runs() {
        return format!("not distinguishable ({interval})");
    }
    format!("{:.2} ({interval})", ratio.value)
}

/// Returns a side's cell: its cost, with the spread if measured by the host's clock.
pub fn cell(measure: Measure, cell: &Cell) -> String {
    match cell {
        Cell::Failed(_) => "failed".into(),
        Cell::Cost(found) => {
            let text = cost(measure, found.estimate.value);
            match measure {
                Measure::Instructions => text,
                Measure::Wall => match found.spread() {
                    Some(spread) => format!("{text} ±{:.0}%", spread * 100.0),
                    None => format!("{text} ({TOO_FEW_RUNS})"),
                },
            }
        }
    }
}

/// Returns the text of the goal's column for a row.
pub fn goal(line: &ComparedRow) -> String {
    let limit = format!("≤ {}", line.row.goal);
    match line.verdict() {
        Some(verdict) => format!("{limit} {}", verdict.word()),
        None => limit,
    }
}

/// Returns the whole text.
pub fn render(report: &BenchReport<'_>) -> String {
    let mut rows = vec![heading(report)];
    for line in &report.comparison.lines {
        let mut row = vec![line.name(), cell(report.plan.measure, &line.cells[0])];
        for (other, found) in line.cells[1..].iter().zip(&line.ratios) {
            row.push(cell(report.plan.measure, other));
            row.push(ratio(*found));
        }
        if report.plan.has_goals() {
            row.push(goal(line));
        }
        rows.push(row);
    }
    let mut text = format!("{}\n\n", report.unit());
    let sides = report.plan.sides.len();
    // Columns: the name, the first side's cost, then cost and ratio of each other side.
    text.push_str(&aligned(&rows, |column| {
        column == 1 || (column > 1 && column.is_multiple_of(2) && column < 2 * sides)
    }));
    text.push('\n');
    for line in notes(report.comparison, &report.labels()) {
        let _ = writeln!(text, "{line}");
    }
    for line in report.conclusions() {
        let _ = writeln!(text, "{line}");
    }
    text.push('\n');
    let width = report.settings.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, value) in &report.settings {
        let _ = writeln!(text, "{name:width$}  {value}");
    }
    text
}

fn heading(report: &BenchReport<'_>) -> Vec<String> {
    let labels = report.labels();
    let mut heading = vec!["operation".to_owned(), labels[0].to_owned()];
    for label in &labels[1..] {
        heading.push((*label).to_owned());
        heading.push("ratio (95%)".to_owned());
    }
    if report.plan.has_goals() {
        heading.push("goal".to_owned());
    }
    heading
}

/// Returns the guests' notes about rows.
pub fn notes(comparison: &Comparison, labels: &[&str]) -> Vec<String> {
    let mut notes = Vec::new();
    for line in &comparison.lines {
        for (cell, label) in line.cells.iter().zip(labels) {
            if let Cell::Cost(cost) = cell
                && let Some(note) = &cost.note
            {
                notes.push(format!("{} on {label}: {note}", line.name()));
            }
        }
    }
    notes
}

/// Aligns columns, separated by two spaces; numbers are right-aligned.
pub fn aligned(rows: &[impl AsRef<[String]>], is_number: impl Fn(usize) -> bool) -> String {
    let rows: Vec<&[String]> = rows.iter().map(AsRef::as_ref).collect();
    let columns = rows.first().map_or(0, |row| row.len());
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = " ".repeat(width - cell.chars().count());
            let (left, right) = if is_number(column) { (gap.as_str(), "") } else { ("", gap.as_str()) };
            let _ = write!(line, "{left}{cell}{right}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Interval;

    fn estimate(value: f64, low: f64, high: f64) -> Option<Estimate> {
        Some(Estimate { value, interval: Interval { low, high } })
    }

    #[test]
    fn a_ratio_whose_interval_holds_one_is_not_distinguishable() {
        assert_eq!(ratio(estimate(0.5, 0.48, 0.52)), "0.50 (0.48–0.52)");
        assert_eq!(ratio(estimate(0.99, 0.97, 1.01)), "not distinguishable (0.97–1.01)");
        assert_eq!(ratio(estimate(1.0, 1.0, 1.0)), "not distinguishable (1.00–1.00)");
        assert_eq!(ratio(estimate(1.3, 0.0, f64::INFINITY)), "1.30 (too few runs)");
        assert_eq!(ratio(None), "–");
    }

    #[test]
    fn costs_are_whole_instructions_or_times() {
        assert_eq!(cost(Measure::Instructions, 26_811_787.4), format!("26{GROUP}811{GROUP}787"));
        assert_eq!(cost(Measure::Instructions, 417.0), "417");
        assert_eq!(cost(Measure::Wall, 1234.0), "1.23 µs");
    }

    #[test]
    fn columns_stand_below_each_other() {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let text =
            aligned(&[row(["operation", "A", "B", "ratio"]), row(["x", "1 000", "20", "0.05"])], |column| {
                column == 1 || column == 2
            });
        assert_eq!(text, "operation      A   B  ratio\nx          1 000  20  0.05\n");
    }
}
