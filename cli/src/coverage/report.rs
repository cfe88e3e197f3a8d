//! Shows a record's contents, as text and as a page.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::record::{CoverageRecord, Function};
use crate::Result;
use crate::html::{Cell, Column, Page, Table, Tile, Tone, Unit};
use crate::scope::plural;
use crate::sheet::Sheet;

/// Number of functions that are named by default.
pub const NAMED: usize = 40;

/// Formats `61.2% of 1.83 MB`.
pub fn ran(record: &CoverageRecord) -> String {
    format!("{:.1}% of {}", record.percent(), Unit::Bytes.show(record.bytes as f64))
}

/// Bytes, and bytes that ran, by name.
type Sums<'a> = BTreeMap<&'a str, (u64, u64)>;

/// Sums up by a part of the functions' modules.
fn sums<'a>(record: &'a CoverageRecord, part: impl Fn(&'a str) -> &'a str) -> Sums<'a> {
    let mut sums = Sums::new();
    for function in &record.functions {
        let sum = sums.entry(part(&function.module)).or_default();
        sum.0 += function.bytes;
        sum.1 += function.ran;
    }
    sums
}

fn crate_of(module: &str) -> &str {
    module.split("::").next().unwrap_or(module)
}

fn share((bytes, ran): (u64, u64)) -> f64 {
    100.0 * ran as f64 / bytes.max(1) as f64
}

/// Returns crates, each with its modules; those with most bytes that never ran come first.
fn modules(record: &CoverageRecord) -> Vec<(&str, (u64, u64))> {
    let missing = |sum: &(u64, u64)| core::cmp::Reverse(sum.0 - sum.1);
    let mut crates: Vec<_> = sums(record, crate_of).into_iter().collect();
    crates.sort_by_key(|(_, sum)| missing(sum));
    let all = sums(record, |module| module);
    let mut rows = Vec::new();
    for (name, sum) in crates {
        rows.push((name, sum));
        let mut own: Vec<_> =
            all.iter().filter(|(module, _)| crate_of(module) == name && **module != name).collect();
        own.sort_by_key(|(_, sum)| missing(sum));
        rows.extend(own.into_iter().map(|(module, sum)| (*module, *sum)));
    }
    rows
}

/// Returns functions of which no byte ran, largest first.
fn never(record: &CoverageRecord) -> Vec<&Function> {
    let mut never: Vec<&Function> = record.functions.iter().filter(|function| function.ran == 0).collect();
    never.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.name.cmp(&b.name)));
    never
}

/// Returns the whole text, with at most `named` functions.
pub fn text(record: &CoverageRecord, named: usize) -> String {
    let never = never(record);
    let mut text = format!(
        "{:.2}% of {} bytes of the kernel's code ran in {}; {} of {} functions never did\n\n",
        record.percent(),
        record.bytes,
        plural(record.runs, "run"),
        never.len(),
        record.functions.len(),
    );
    if record.lost > 0 {
        let _ =
            writeln!(text, "{} left nothing behind: QEMU did not end in order\n", plural(record.lost, "run"));
    }
    let _ = writeln!(text, "{:>9}  {:>9}  {:>6}  module", "bytes", "never ran", "ran");
    for (name, sum) in modules(record) {
        let inner = if name.contains("::") { "  " } else { "" };
        let _ = writeln!(text, "{:>9}  {:>9}  {:>5.1}%  {inner}{name}", sum.0, sum.0 - sum.1, share(sum));
    }
    let _ = writeln!(text, "\n{:>9}  functions that never ran", "bytes");
    for function in never.iter().take(named) {
        let _ = writeln!(text, "{:>9}  {}", function.bytes, function.name);
    }
    if never.len() > named {
        let bytes: u64 = never[named..].iter().map(|function| function.bytes).sum();
        let _ = writeln!(
            text,
            "{bytes:>9}  in {} more (--all names them)",
            plural((never.len() - named) as u64, "function")
        );
    }
    text
}

/// Returns a row of a table: a name, with its bytes and those that ran.
fn row(name: &str, (bytes, ran): (u64, u64)) -> [Cell; 4] {
    [
        Cell::text(name),
        Cell::text(bytes.to_string()),
        Cell::text((bytes - ran).to_string()),
        Cell::text(format!("{:.1}%", share((bytes, ran)))).share(share((bytes, ran)) / 100.0),
    ]
}

/// Returns the page, with all functions that did not run completely.
pub fn page(record: &CoverageRecord) -> Page {
    let mut page =
        Page::new("Which of the kernel's code ran", &format!("{} in all", plural(record.runs, "run")));
    page.next("Adds a run to the record", "freehold scope --coverage code.json -- PROGRAM");
    let never = never(record);
    let tile = |label: &str, value: String, detail: String| Tile {
        label: label.into(),
        value,
        detail,
        tone: Tone::Plain,
    };
    page.tiles(&[
        tile("bytes that ran", format!("{:.1}%", record.percent()), format!("of {}", record.bytes)),
        tile("functions never reached", never.len().to_string(), format!("of {}", record.functions.len())),
        tile("runs that left nothing behind", record.lost.to_string(), "QEMU did not end in order".into()),
    ]);
    page.section("Modules");
    page.text("Inlined code counts for its caller. Padding between functions is not counted.");
    let columns =
        [Column::code("module"), Column::number("bytes"), Column::number("never ran"), Column::number("ran")];
    let mut table = Table::new("", &columns);
    for (name, sum) in modules(record) {
        table.row(row(name, sum));
    }
    page.table(&table);
    page.section("Functions");
    let mut parts: Vec<&Function> =
        record.functions.iter().filter(|function| function.ran < function.bytes).collect();
    parts.sort_by_key(|function| core::cmp::Reverse(function.bytes - function.ran));
    let columns = [
        Column::code("function"),
        Column::number("bytes"),
        Column::number("never ran"),
        Column::number("ran"),
    ];
    let mut table = Table::new("Functions that did not run whole", &columns);
    for function in parts {
        table.row(row(&function.name, (function.bytes, function.ran)));
    }
    page.table(&table);
    page
}

/// Returns a line for each function.
///
/// # Errors
/// If memory cannot be written to.
pub fn sheet(record: &CoverageRecord) -> Result<Sheet> {
    let mut sheet = Sheet::new(&["module", "function", "bytes", "ran"])?;
    for function in &record.functions {
        let numbers = [function.bytes, function.ran].map(|number| number.to_string());
        sheet.line([&function.module, &function.name, &numbers[0], &numbers[1]])?;
    }
    Ok(sheet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::record::Code;

    fn record() -> CoverageRecord {
        let function = |name: &str, module: &str, address, bytes| Function {
            name: name.into(),
            module: module.into(),
            address,
            bytes,
            ran: 0,
        };
        let functions = vec![
            function("k::fs::open", "k::fs", 0x1000, 100),
            function("k::fs::close", "k::fs", 0x1100, 50),
            function("k::net::send", "k::net", 0x1200, 200),
            function("entry", "assembly", 0x1300, 10),
        ];
        let mut record = CoverageRecord::new(Code { sum: String::new(), base: 0, functions });
        record.ran(&[(0x1000, 0x1064), (0x1300, 0x130a)].into_iter().collect(), &Default::default(), 0);
        record
    }

    #[test]
    fn what_never_ran_stands_first() {
        let text = text(&record(), 1);
        assert!(text.starts_with(
            "30.56% of 360 bytes of the kernel's code ran in 1 run; 2 of 4 functions never did"
        ));
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} in {text}"));
        assert!(
            at("  k\n") < at("  k::net") && at("  k::net") < at("  k::fs") && at("k::fs") < at("assembly")
        );
        assert!(text.contains("      200  k::net::send") && text.contains("       50  in 1 function more"));
    }

    #[test]
    fn the_page_names_every_function_that_did_not_run_whole() {
        let page = page(&record()).render();
        assert!(
            page.contains("k::net::send") && page.contains("k::fs::close") && !page.contains("k::fs::open")
        );
    }
}
