//! The results, in words, tables and curves.

use std::fmt::Write;

use freehold_scope_record::Lives;

use super::{EXPERIMENT, OperationCost, RequiredFigure, XpfoRecord, XpfoRow, models};
use crate::bench::table::aligned;
use crate::html::{Axis, Cell, Column, Lines, Page, Shape, Table, Unit, survival};

fn count(value: u64) -> String {
    Unit::Count.show(value as f64)
}

fn show_overhead(record: &XpfoRecord, row: &XpfoRow) -> String {
    match record.overhead(row) {
        _ if row.policy == "linux" => "–".into(),
        Some((kernel, all)) => format!("{kernel:+.2}% / {all:+.3}%"),
        None => "off not measured".into(),
    }
}

/// Formats events per second and CPU, the time in which the CPU halts included.
fn per_second(row: &XpfoRow, events: u64) -> String {
    row.elapsed.filter(|&elapsed| elapsed > 0).map_or_else(
        || "–".into(),
        |elapsed| count((events as f64 * 1e9 / elapsed as f64 / f64::from(row.cpus)) as u64),
    )
}

const HEADINGS: [&str; 15] = [
    "workload",
    "policy",
    "kernel",
    "programs",
    "over off: kernel / all",
    "walks: kernel",
    "walks: all",
    "full flushes",
    "INVLPG",
    "IPIs",
    "windows",
    "kernel half: fills a window",
    "longest closed, ns",
    "reachable bytes",
    "residue frames",
];

fn cells(record: &XpfoRecord, row: &XpfoRow) -> [String; 15] {
    [
        row.workload.into(),
        row.policy.into(),
        count(row.kernel_instructions),
        count(row.user_instructions),
        show_overhead(record, row),
        count(row.kernel_walks),
        count(row.walks),
        count(row.full_flushes),
        count(row.page_flushes),
        row.shootdowns.map_or_else(|| "–".into(), count),
        count(row.windows),
        record
            .fills_a_window(row)
            .filter(|_| row.policy != "linux")
            .map_or_else(|| "–".into(), |fills| format!("{fills:.2}")),
        if row.closed_cached == 0 { "–".into() } else { count(row.longest_closed) },
        row.reachable_bytes.map_or_else(|| "–".into(), |(mean, _)| count(mean)),
        row.residue_frames.filter(|_| row.policy != "linux").map_or_else(|| "–".into(), count),
    ]
}

const SHAPE_HEADINGS: [&str; 7] =
    ["workload", "policy", "TLB", "data misses", "walks", "walks of the kernel", "kernel entries replaced"];

fn shape_cells(row: &XpfoRow) -> [String; 7] {
    [
        row.workload.into(),
        row.policy.into(),
        row.tlb.clone(),
        per_second(row, row.data_misses),
        per_second(row, row.walks),
        per_second(row, row.kernel_walks),
        per_second(row, row.kernel_replaced),
    ]
}

const OPERATION_HEADINGS: [&str; 4] = ["operation", "instructions", "under off", "ratio"];

fn operation_rows(record: &XpfoRecord) -> Vec<[String; 4]> {
    let row = |cost: &OperationCost| {
        let show = |value: f64| Unit::Count.show(value);
        [cost.name.into(), show(cost.on), show(cost.off), format!("{:.3}", cost.on / cost.off)]
    };
    record.operations.iter().map(row).collect()
}

const REQUIRED_HEADINGS: [&str; 4] = ["required figure", "measured", "at most", "verdict"];

fn required_rows(record: &XpfoRecord) -> Vec<[String; 4]> {
    let shown = |figure: &RequiredFigure| {
        let number = |value: f64| {
            let text = format!("{value:.3}");
            let text = text.trim_end_matches('0').trim_end_matches('.');
            format!("{text} {}", figure.unit).trim_end().to_owned()
        };
        let verdict = if figure.is_met { "met" } else { "missed" };
        [figure.name.clone(), number(figure.measured), number(figure.at_most), verdict.into()]
    };
    record.required.iter().map(shown).collect()
}

fn lines<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<_> = std::iter::once(headings.map(String::from)).chain(rows.iter().cloned()).collect();
    aligned(&rows, |_| false)
}

pub fn summary(record: &XpfoRecord) -> String {
    let rows: Vec<_> = record.rows.iter().map(|row| cells(record, row)).collect();
    let mut text = format!("{}\n{}\n\n{}", EXPERIMENT.question, record.how, lines(HEADINGS, &rows));
    for skipped in &record.skipped {
        let _ = writeln!(text, "{} was not measured: {}", skipped.workload, skipped.why);
    }
    if !record.shapes.is_empty() {
        let rows: Vec<_> = record.shapes.iter().map(shape_cells).collect();
        let _ = write!(text, "\nevents per second and CPU\n{}", lines(SHAPE_HEADINGS, &rows));
    }
    let _ = write!(text, "\n{}", lines(OPERATION_HEADINGS, &operation_rows(record)));
    let _ = write!(text, "\n{}", lines(REQUIRED_HEADINGS, &required_rows(record)));
    for row in record.rows.iter().filter(|row| has_aliases(row)) {
        let _ = writeln!(
            text,
            "\n{}, {}: {} frames went from the kernel to a program; the direct map's translation, stale from then on, would live",
            row.workload,
            row.policy,
            count(row.aliases)
        );
        for model in models(row) {
            let _ = writeln!(
                text,
                "  {:<32}{:>12} instructions (mean, modelled)",
                model.name,
                count(model.life as u64)
            );
        }
    }
    text
}

fn has_aliases(row: &XpfoRow) -> bool {
    row.alias_lives.ended.iter().chain(&row.alias_lives.alive).any(|&count| count > 0)
}

fn curve(lives: &Lives) -> Vec<(f64, f64)> {
    let at = |lives: &[u64], n: usize| lives.get(n).copied().unwrap_or(0);
    let last = (0..64).rev().find(|&n| at(&lives.ended, n) + at(&lives.alive, n) > 0);
    let ages: Vec<(f64, u64, u64)> = (0..=last.unwrap_or(0))
        .map(|n| (2f64.powi(n as i32 + 1), at(&lives.ended, n), at(&lives.alive, n)))
        .collect();
    if last.is_some() { survival(&ages) } else { Vec::new() }
}

fn table<const N: usize>(caption: &str, headings: [&str; N], rows: &[[String; N]]) -> Table {
    let columns: Vec<Column> = headings
        .iter()
        .enumerate()
        .map(|(n, heading)| if n < 2 { Column::text(heading) } else { Column::number(heading) })
        .collect();
    let mut table = Table::new(caption, &columns);
    for row in rows {
        table.row(row.each_ref().map(|cell| Cell::text(cell.clone())));
    }
    table
}

pub fn page(record: &XpfoRecord) -> Page {
    let mut page = Page::new("Programs' frames outside the kernel's map", EXPERIMENT.question);
    page.section("How it was measured");
    page.text(record.how);
    if !record.missing.is_empty() {
        page.text(&format!(
            "This kernel does not have the policies {}: they have no rows.",
            record.missing.join(", ")
        ));
    }
    page.section("Required figures");
    page.table(&table(
        "Figures of the default policy and of strict that have a limit",
        REQUIRED_HEADINGS,
        &required_rows(record),
    ));
    page.section("Costs");
    let rows: Vec<_> = record.rows.iter().map(|row| cells(record, row)).collect();
    page.table(&table(
        "Instructions and TLB events of the program's time; windows of the whole run",
        HEADINGS,
        &rows,
    ));
    if !record.shapes.is_empty() {
        let rows: Vec<_> = record.shapes.iter().map(shape_cells).collect();
        page.table(&table("Events per second and CPU with several TLBs", SHAPE_HEADINGS, &rows));
    }
    page.table(&table(
        "Operations under the default policy and under off",
        OPERATION_HEADINGS,
        &operation_rows(record),
    ));
    page.section("Lives of stale translations");
    let axis = || Axis::logarithmic("instructions of the CPU", Unit::Count);
    let share = || Axis::linear("still cached", Unit::Number).range(0.0, 1.0);
    let mut windows = Lines::new("Closed windows whose translation is still cached", axis(), share());
    let mut aliases =
        Lines::new("The direct map's translations of frames that became a program's", axis(), share());
    for row in &record.rows {
        let name = format!("{}, {}", row.workload, row.policy);
        let (closed, alias) = (curve(&row.lives), curve(&row.alias_lives));
        if !closed.is_empty() {
            windows.line(&name, Shape::Step, &closed);
        }
        if !alias.is_empty() {
            aliases.line(&name, Shape::Step, &alias);
        }
    }
    page.figure(&windows, "After Kaplan and Meier; from the close of a window to the end of its translation in the modelled TLB.");
    page.figure(
        &aliases,
        "From the program's first use of the frame on a CPU to the end of the kernel's translation in that CPU's TLB, if no flush is made for this purpose.",
    );
    page
}
