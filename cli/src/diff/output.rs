//! The result as text, as JSON and as CSV.

use std::fmt::Write;

use serde_json::{Value, json};

use super::record::{KeptRecord, RecordKind};
use super::result::{DiffLine, DiffResult, DiffValue, DiffVerdict, WhichRecord};
use crate::bench::table::{aligned, grouped};
use crate::html::Unit;
use crate::sheet::{self, Sheet};
use crate::statistics::{Interval, TOO_FEW_RUNS};
use crate::{Result, schema};

/// Number of lines of figures that are shown; all are in the JSON and the CSV.
const SHOWN: usize = 40;
/// Number of names shown for parts that only one record has.
const NAMES_SHOWN: usize = 12;
/// A number from here on is not written as a whole number, because its digits are not all known.
const WHOLE: f64 = 9e15;

/// A result with its sources.
pub struct Output<'a> {
    /// The first record.
    pub a: &'a KeptRecord,
    /// The second.
    pub b: &'a KeptRecord,
    /// The threshold.
    pub percent: f64,
    /// The result of the comparison.
    pub result: &'a DiffResult,
}

impl Output<'_> {
    /// Returns the text for people. Strings from the records are shown without control characters.
    pub fn text(&self) -> String {
        let result = self.result;
        let mut text = format!("A  {}\nB  {}\n", self.a.file, self.b.file);
        if !result.not_same.is_empty() {
            text.push_str("\nnot the same:\n");
            let rows: Vec<Vec<String>> = result
                .not_same
                .iter()
                .map(|one| vec![format!("  {}", one.what), plain(&one.a), plain(&one.b)])
                .collect();
            text.push_str(&aligned(&rows, |_| false));
        }
        let (rows, figures) = result.lines.split_at(result.rows);
        if !rows.is_empty() {
            let unit = rows[0].unit;
            let _ = writeln!(text, "\n{unit} per operation; ratio = B ÷ A, below 1 is better\n");
            text.push_str(&table(["operation", "ratio (95%)"], rows.iter()));
        }
        self.changed_figures(&mut text, figures);
        for (which, word) in [(WhichRecord::A, "A"), (WhichRecord::B, "B")] {
            let mut names =
                result.only.iter().filter(|(_, side)| *side == which).map(|(name, _)| plain(name));
            let first: Vec<String> = names.by_ref().take(NAMES_SHOWN).collect();
            if !first.is_empty() {
                let _ = write!(text, "\nonly in {word}: {}", first.join(", "));
                let more = names.count();
                text.push_str(&if more > 0 { format!(" and {more} more\n") } else { "\n".to_owned() });
            }
        }
        text.push('\n');
        for line in result.remarks.iter().chain(&self.conclusions()) {
            let _ = writeln!(text, "{}", plain(line));
        }
        text
    }

    /// Adds the figures that differ, the largest changes first if there are many.
    fn changed_figures(&self, text: &mut String, figures: &[DiffLine]) {
        let is_shown =
            |line: &&DiffLine| !matches!(line.verdict, DiffVerdict::Same | DiffVerdict::NotDistinguishable);
        let mut changed: Vec<&DiffLine> = figures.iter().filter(is_shown).collect();
        let all = changed.len();
        if all > SHOWN {
            changed.sort_by(|one, other| change(other).total_cmp(&change(one)));
            changed.truncate(SHOWN);
        }
        if all > 0 {
            text.push('\n');
            text.push_str(&table(["figure", "ratio"], changed.iter().copied()));
        }
        if all > SHOWN {
            let _ =
                writeln!(text, "and {} more, with smaller changes (--json and --csv have all)", all - SHOWN);
        }
    }

    /// Returns the conclusions, a sentence each.
    fn conclusions(&self) -> Vec<String> {
        let (rows, figures) = self.result.lines.split_at(self.result.rows);
        let count = |lines: &[DiffLine], verdict| lines.iter().filter(|line| line.verdict == verdict).count();
        let mut said = Vec::new();
        if !rows.is_empty() {
            said.push(format!(
                "{} of {} rows cost less, {} cost more, {} are not distinguishable",
                count(rows, DiffVerdict::CostsLess),
                rows.len(),
                count(rows, DiffVerdict::CostsMore),
                count(rows, DiffVerdict::NotDistinguishable)
            ));
        } else if self.a.kind == RecordKind::Bench {
            said.push("no row is in both records".into());
        }
        if !figures.is_empty() {
            let (same, close) =
                (count(figures, DiffVerdict::Same), count(figures, DiffVerdict::NotDistinguishable));
            let few = count(figures, DiffVerdict::TooFewRuns);
            let differ = figures.len() - same - close - few - count(figures, DiffVerdict::NotJudged);
            let mut sentence = format!(
                "{differ} of {} figures differ, {same} are equal, {close} are not distinguishable",
                figures.len()
            );
            if few > 0 {
                let _ = write!(sentence, ", {few} have {TOO_FEW_RUNS}");
            }
            said.push(sentence);
        }
        if self.result.regressions.is_empty() {
            said.push("no regression".into());
        }
        let regressions = self.result.regressions.iter().map(|sentence| format!("regression: {sentence}"));
        said.extend(regressions);
        said
    }

    /// Returns the record for machines.
    pub fn json(&self) -> Value {
        let result = self.result;
        let record =
            |record: &KeptRecord| json!({ "file": record.file, "schema": record.value.get("schema") });
        let only = |which: WhichRecord| {
            let names = result.only.iter().filter(move |(_, side)| *side == which);
            names.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
        };
        let not_same: Vec<Value> =
            result.not_same.iter().map(|one| json!({ "what": one.what, "a": one.a, "b": one.b })).collect();
        json!({
            "schema": schema::DIFF,
            "a": record(self.a),
            "b": record(self.b),
            "command": self.a.kind.command(),
            "threshold_percent": self.percent,
            "status": result.status(),
            "regressions": result.regressions,
            "not_the_same": not_same,
            "rows": result.lines[..result.rows].iter().map(line_json).collect::<Vec<_>>(),
            "figures": result.lines[result.rows..].iter().map(line_json).collect::<Vec<_>>(),
            "only_in_a": only(WhichRecord::A),
            "only_in_b": only(WhichRecord::B),
            "remarks": result.remarks,
        })
    }

    /// Returns the sheet: all compared values, then the names that only one record has.
    ///
    /// # Errors
    /// If memory cannot be written to.
    pub fn sheet(&self) -> Result<Sheet> {
        let mut sheet = Sheet::new(&["name", "unit", "a", "b", "ratio", "low", "high", "verdict"])?;
        for line in &self.result.lines {
            let value = |value: &DiffValue| match value {
                DiffValue::Number(number) => sheet::number(Some(*number)),
                DiffValue::Text(text) => text.clone(),
            };
            sheet.line([
                line.name.clone(),
                line.unit.to_owned(),
                value(&line.a),
                value(&line.b),
                sheet::number(line.ratio),
                sheet::number(line.interval.map(|interval| interval.low)),
                sheet::number(line.interval.map(|interval| interval.high)),
                line.verdict.words().to_owned(),
            ])?;
        }
        for (name, which) in &self.result.only {
            let verdict = if *which == WhichRecord::A { "only in A" } else { "only in B" };
            sheet.line([name.as_str(), "", "", "", "", "", "", verdict])?;
        }
        Ok(sheet)
    }
}

fn line_json(line: &DiffLine) -> Value {
    let value = |value: &DiffValue| match value {
        DiffValue::Number(number) => json!(number),
        DiffValue::Text(text) => json!(text),
    };
    let end = |end: fn(Interval) -> f64| line.interval.map(end).filter(|end| end.is_finite());
    json!({
        "name": line.name,
        "unit": line.unit,
        "a": value(&line.a),
        "b": value(&line.b),
        "ratio": line.ratio,
        "low": end(|interval| interval.low),
        "high": end(|interval| interval.high),
        "too_few_runs": line.interval.is_some_and(Interval::has_too_few_runs),
        "verdict": line.verdict.words(),
    })
}

/// Returns the size of a change: of figures the logarithm of their ratio, of anything else
/// infinity.
fn change(line: &DiffLine) -> f64 {
    line.ratio.map_or(f64::INFINITY, |ratio| ratio.ln().abs())
}

fn table<'a>([name, ratio_name]: [&str; 2], lines: impl Iterator<Item = &'a DiffLine>) -> String {
    let heading = [name, "A", "B", ratio_name, "verdict"].map(str::to_owned).to_vec();
    let row = |line: &DiffLine| {
        vec![
            plain(&line.name),
            shown(&line.a, line.unit),
            shown(&line.b, line.unit),
            ratio(line),
            line.verdict.words().to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(lines.map(row)).collect();
    aligned(&rows, |column| column == 1 || column == 2)
}

fn shown(value: &DiffValue, unit: &str) -> String {
    match value {
        DiffValue::Number(number) if unit == "nanoseconds" => Unit::Nanoseconds.show(*number),
        DiffValue::Number(number) if unit == "instructions" && *number >= 100.0 => decimal(number.round()),
        DiffValue::Number(number) => decimal(*number),
        DiffValue::Text(text) => plain(text),
    }
}

/// Formats whole numbers with grouped digits, others with six significant digits.
fn decimal(number: f64) -> String {
    if number.fract() == 0.0 && number.abs() < WHOLE {
        let sign = if number < 0.0 { "-" } else { "" };
        return format!("{sign}{}", grouped(number.abs() as u64));
    }
    if !(1e-6..WHOLE).contains(&number.abs()) {
        return format!("{number:.5e}");
    }
    let places = (5.0 - number.abs().log10().floor()).clamp(0.0, 11.0) as usize;
    let text = format!("{number:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn ratio(line: &DiffLine) -> String {
    match (line.ratio, line.interval) {
        (None, _) => "–".into(),
        (Some(ratio), None) => factor(ratio),
        (Some(ratio), Some(interval)) => format!("{} ({})", factor(ratio), interval.show("–", factor)),
    }
}

/// Formats a ratio with three places, so that a change of a tenth of a percent is visible.
fn factor(ratio: f64) -> String {
    if ratio == 0.0 || (1e-3..1e6).contains(&ratio) { format!("{ratio:.3}") } else { format!("{ratio:.2e}") }
}

/// Removes control characters, which a terminal would obey, and limits the length.
fn plain(text: &str) -> String {
    const MOST: usize = 200;
    let mut plain: String = text.chars().take(MOST).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(MOST).is_some() {
        plain.push('…');
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_show_what_differs_and_no_more() {
        let cases = [
            (1_234_567.0, "1\u{a0}234\u{a0}567"),
            (-12.0, "-12"),
            (0.0, "0"),
            (0.25, "0.25"),
            (1234.5678, "1234.57"),
            (0.000_123_456_7, "0.000123457"),
            (1e300, "1.00000e300"),
        ];
        for (number, text) in cases {
            assert_eq!(decimal(number), text);
        }
    }

    #[test]
    fn a_terminal_obeys_nothing_that_a_record_says() {
        assert_eq!(plain("a\u{1b}[31m\nb"), "a?[31m?b");
        assert_eq!(plain(&"x".repeat(500)).chars().count(), 201);
    }
}
