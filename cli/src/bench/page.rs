//! The comparison as one offline HTML file.

use super::compare::{Cell, ComparedRow, RowVerdict, distinguishable};
use super::plan::Measure;
use super::report::BenchReport;
use super::table;
use crate::html::{self, Axis, Bar, Bars, Column, Page, Table, Tile, Tone, Unit};
use crate::statistics::Estimate;

/// Returns the comparison with its title and its key figures.
pub fn page(report: &BenchReport<'_>, title: &str) -> Page {
    let mut page = Page::new(title, &format!("{}. {}.", report.unit(), report.comparison.method.words()));
    let (why, command) = next(report);
    page.next(&why, &command);
    page.tiles(&tiles(report));
    sections(report, &mut page);
    report.partial().iter().for_each(|partial| page.warn(partial));
    page
}

/// Returns the command that a reader would type next, and why: about a row that misses its goal, or
/// for a comparison with the next build.
fn next(report: &BenchReport<'_>) -> (String, String) {
    let is_missed = |line: &&ComparedRow| line.verdict() == Some(RowVerdict::Missed);
    match report.comparison.lines.iter().find(is_missed).filter(|_| report.plan.has_goals()) {
        Some(line) => {
            let name = line.row.name;
            (format!("{name} misses its goal; with more samples"), format!("freehold bench {name} --runs 10"))
        }
        None => {
            let command = "freehold bench --json new.json && freehold diff old.json new.json";
            ("After a change, with the records of both builds".into(), command.into())
        }
    }
}

/// Adds everything below the key figures.
pub fn sections(report: &BenchReport<'_>, page: &mut Page) {
    let labels = report.labels();
    for failure in &report.comparison.failures {
        page.note(Tone::Bad, &format!("{} failed on {}: {}", failure.row, failure.side, failure.message));
    }
    page.section("Ratios");
    let axis =
        Axis::logarithmic(&format!("{} ÷ other; left of the line it costs less", labels[0]), Unit::Number);
    let mut ratios = Bars::new("Cost as a share of the other kernel's", axis, &labels[1..]);
    for line in &report.comparison.lines {
        ratios.group(&line.name(), &line.ratios.iter().map(|ratio| ratio.map(bar)).collect::<Vec<_>>());
    }
    ratios.reference(1.0, "equal");
    page.figure(
        &ratios,
        "Whiskers are 95% intervals; where they cross the line the sides are not distinguishable.",
    );
    page.section("Costs");
    page.table(&costs(report));
    for note in table::notes(report.comparison, &labels) {
        page.note(Tone::Plain, &note);
    }
    let unit = match report.plan.measure {
        Measure::Instructions => Unit::Count,
        Measure::Wall => Unit::Nanoseconds,
    };
    let mut bars = Bars::new("Cost of an operation", Axis::logarithmic(&report.unit(), unit), &labels);
    for line in &report.comparison.lines {
        let of = |cell: &Cell| match cell {
            Cell::Cost(cost) => Some(bar(cost.estimate)),
            Cell::Failed(_) => None,
        };
        bars.group(&line.name(), &line.cells.iter().map(of).collect::<Vec<_>>());
    }
    page.figure(&bars, "");
    page.section("What follows");
    for sentence in report.conclusions() {
        page.text(&sentence);
    }
    page.section("Settings");
    page.facts(&report.settings);
}

fn bar(estimate: Estimate) -> Bar {
    // The axis has no place for an end of 0.
    if estimate.interval.low > 0.0 || estimate.interval.has_too_few_runs() {
        return Bar::within(estimate.value, estimate.interval);
    }
    Bar::exact(estimate.value)
}

/// Returns the key figures.
pub fn tiles(report: &BenchReport<'_>) -> Vec<Tile> {
    let lines = &report.comparison.lines;
    let tile =
        |label: &str, value: String, detail: String, tone| Tile { label: label.into(), value, detail, tone };
    let mut tiles = Vec::new();
    for (other, side) in report.plan.sides[1..].iter().enumerate() {
        let ratios: Vec<Estimate> = lines.iter().filter_map(|line| line.ratios[other]).collect();
        let less = ratios.iter().filter(|ratio| ratio.value <= 1.0 || !distinguishable(**ratio)).count();
        let tone = if less == ratios.len() { Tone::Good } else { Tone::Warning };
        let detail = "rows that cost no more".to_owned();
        tiles.push(tile(
            &format!("against {}", side.label),
            format!("{less} of {}", ratios.len()),
            detail,
            tone,
        ));
    }
    if report.plan.has_goals() {
        let judged: Vec<RowVerdict> = lines.iter().filter_map(ComparedRow::verdict).collect();
        let met = judged.iter().filter(|verdict| **verdict == RowVerdict::Met).count();
        let tone = if met == judged.len() { Tone::Good } else { Tone::Warning };
        tiles.push(tile(
            "goals met",
            format!("{met} of {}", judged.len()),
            format!("against {}", report.labels()[1]),
            tone,
        ));
    }
    if let (Some(differences), None) = (&report.comparison.differences, report.comparison.interrupted) {
        let (value, tone) = match differences.len() {
            0 => ("equal".to_owned(), Tone::Good),
            count => (format!("{count} rows differ"), Tone::Warning),
        };
        tiles.push(tile(
            "repeated runs",
            value,
            format!("{} runs, to the instruction", report.plan.extent.runs),
            tone,
        ));
    }
    tiles
}

fn costs(report: &BenchReport<'_>) -> Table {
    let labels = report.labels();
    let mut columns = vec![Column::text("operation"), Column::text("what"), Column::number(labels[0])];
    for label in &labels[1..] {
        columns.push(Column::number(label));
        columns.push(Column::number("ratio (95%)"));
    }
    if report.plan.has_goals() {
        columns.push(Column::text("goal"));
    }
    let mut table = Table::new("", &columns);
    for line in &report.comparison.lines {
        let cell = |of: &Cell| {
            let shown = html::Cell::text(table::cell(report.plan.measure, of));
            match of {
                Cell::Failed(why) => shown.tone(Tone::Bad).hint(why),
                Cell::Cost(_) => shown,
            }
        };
        let mut cells =
            vec![html::Cell::text(line.name()), html::Cell::text(line.row.what), cell(&line.cells[0])];
        for (other, ratio) in line.cells[1..].iter().zip(&line.ratios) {
            cells.push(cell(other));
            let tone = match ratio {
                Some(ratio) if distinguishable(*ratio) && ratio.value < 1.0 => Tone::Good,
                Some(ratio) if distinguishable(*ratio) => Tone::Bad,
                _ => Tone::Plain,
            };
            cells.push(html::Cell::text(table::ratio(*ratio)).tone(tone));
        }
        if report.plan.has_goals() {
            let tone = match line.verdict() {
                Some(RowVerdict::Met) => Tone::Good,
                Some(RowVerdict::Missed) => Tone::Warning,
                Some(RowVerdict::Open) | None => Tone::Plain,
            };
            cells.push(html::Cell::text(table::goal(line)).tone(tone));
        }
        table.row(cells);
    }
    table
}
