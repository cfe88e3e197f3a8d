//! The results, in words, tables and curves.

use std::fmt::Write;

use freehold_scope_record::Lives;

use super::{EXPERIMENT, XpfoRecord, XpfoRow, models};
use crate::html::{Axis, Cell, Column, Lines, Page, Shape, Table, Unit, survival};

fn count(value: u64) -> String {
    Unit::Count.show(value as f64)
}

/// Returns kernel instructions and all instructions over those of `off`, in percent, if `off` was
/// measured.
fn overhead(record: &XpfoRecord, row: &XpfoRow) -> Option<(f64, f64)> {
    let base = record.rows.iter().find(|other| other.workload == row.workload && other.policy == "off")?;
    let over = |own: u64, base: u64| (own as f64 / base.max(1) as f64 - 1.0) * 100.0;
    let all = |row: &XpfoRow| row.kernel_instructions + row.user_instructions;
    Some((over(row.kernel_instructions, base.kernel_instructions), over(all(row), all(base))))
}

fn show_overhead(record: &XpfoRecord, row: &XpfoRow) -> String {
    match overhead(record, row) {
        _ if row.policy == "linux" => "–".into(),
        Some((kernel, all)) => format!("{kernel:+.2}% / {all:+.3}%"),
        None => "off not measured".into(),
    }
}

/// Returns how often the TLB was filled with a translation of the kernel half for each window, more
/// than under `off`, if `off` was measured and there were windows.
fn fills_a_window(record: &XpfoRecord, row: &XpfoRow) -> Option<f64> {
    let base = record.rows.iter().find(|other| other.workload == row.workload && other.policy == "off")?;
    let windows = row.windows.checked_sub(base.windows).filter(|&windows| windows > 0)?;
    Some((row.kernel_fills as f64 - base.kernel_fills as f64) / windows as f64)
}

/// Formats events per million instructions of the program's time.
fn per_million(row: &XpfoRow, events: u64) -> String {
    format!("{:.1}", events as f64 * 1e6 / (row.user_instructions + row.kernel_instructions).max(1) as f64)
}

const HEADINGS: [&str; 13] = [
    "workload",
    "policy",
    "kernel",
    "programs",
    "over off: kernel / all",
    "walks: kernel",
    "walks: all",
    "full flushes",
    "windows",
    "kernel half: fills a window",
    "longest closed",
    "reachable bytes",
    "residue frames",
];

fn cells(record: &XpfoRecord, row: &XpfoRow) -> [String; 13] {
    [
        row.workload.into(),
        row.policy.into(),
        count(row.kernel_instructions),
        count(row.user_instructions),
        show_overhead(record, row),
        count(row.kernel_walks),
        count(row.walks),
        count(row.full_flushes),
        count(row.windows),
        fills_a_window(record, row)
            .filter(|_| row.policy != "linux")
            .map_or_else(|| "–".into(), |fills| format!("{fills:.2}")),
        if row.closed_cached == 0 { "–".into() } else { format!("< {}", count(row.longest_closed)) },
        row.reachable_bytes.map_or_else(|| "–".into(), |(mean, _)| count(mean)),
        row.residue_frames.filter(|_| row.policy != "linux").map_or_else(|| "–".into(), count),
    ]
}

const SHAPE_HEADINGS: [&str; 6] =
    ["TLB", "policy", "data misses per M", "walks per M", "kernel walks per M", "kernel entries replaced"];

fn shape_cells(row: &XpfoRow) -> [String; 6] {
    [
        row.tlb.clone(),
        row.policy.into(),
        per_million(row, row.data_misses),
        per_million(row, row.walks),
        per_million(row, row.kernel_walks),
        count(row.kernel_replaced),
    ]
}

fn aligned<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let width = |n: usize| {
        rows.iter().map(|row| row[n].chars().count()).chain([headings[n].chars().count()]).max().unwrap_or(0)
    };
    let line = |cells: &[&str; N]| {
        let parts: Vec<String> =
            cells.iter().enumerate().map(|(n, cell)| format!("{cell:<0$}", width(n))).collect();
        format!("{}\n", parts.join("  ").trim_end())
    };
    let mut text = line(&headings);
    for row in rows {
        text.push_str(&line(&std::array::from_fn(|n| row[n].as_str())));
    }
    text
}

pub fn summary(record: &XpfoRecord) -> String {
    let rows: Vec<_> = record.rows.iter().map(|row| cells(record, row)).collect();
    let mut text = format!("{}\n{}\n\n{}", EXPERIMENT.question, record.how, aligned(HEADINGS, &rows));
    for skipped in &record.skipped {
        let _ = writeln!(text, "{} was not measured: {}", skipped.workload, skipped.why);
    }
    if !record.shapes.is_empty() {
        let rows: Vec<_> = record.shapes.iter().map(shape_cells).collect();
        let _ = write!(text, "\n{}", aligned(SHAPE_HEADINGS, &rows));
    }
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
    page.section("Costs");
    let rows: Vec<_> = record.rows.iter().map(|row| cells(record, row)).collect();
    page.table(&table(
        "Instructions and TLB events of the program's time; windows of the whole run",
        HEADINGS,
        &rows,
    ));
    if !record.shapes.is_empty() {
        let rows: Vec<_> = record.shapes.iter().map(shape_cells).collect();
        page.table(&table("The shell workload with other TLBs", SHAPE_HEADINGS, &rows));
    }
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
        "From the first use by the program on a CPU to the end of that CPU's kernel translation, if nothing flushed it for this.",
    );
    page
}
