//! All runs of a sweep together: text, sheet and page.

use std::collections::BTreeMap;

use serde_json::Value;

use super::plan::{SweepPlan, SweepRun};
use crate::Result;
use crate::bench::table::aligned;
use crate::html::{Axis, Bar, Bars, Cell, Column, Page, Table, Tile, Tone, Unit};
use crate::progress::partial_sentence;
use crate::sheet::{Sheet, number};
use crate::statistics::{Interval, median};

/// Figures of each run: name, place in the outcome, unit.
const FIGURES: [(&str, &str, Unit); 5] = [
    ("boot", "/boot_ns", Unit::Nanoseconds),
    ("whole VM", "/wall_ms", Unit::Number),
    ("program's peak, KiB", "/memory/peak_user_kib", Unit::Number),
    ("kernel, KiB", "/memory/kernel_kib", Unit::Number),
    ("faults", "/memory/faults_minor", Unit::Number),
];
/// The most runs that the page has a line for.
const LISTED: usize = 2000;

/// The report of a sweep.
pub struct SweepReport<'a> {
    plan: &'a SweepPlan,
    results: &'a BTreeMap<usize, Value>,
    ended_by: Option<u8>,
}

/// Runs that differ by their seed only.
struct SeedGroup<'a> {
    run: &'a SweepRun,
    made: Vec<&'a Value>,
    all: usize,
}

impl SeedGroup<'_> {
    /// Returns the figure of each run.
    fn figure(&self, place: &str) -> Vec<f64> {
        self.made.iter().filter_map(|line| line["outcome"].pointer(place)?.as_f64()).collect()
    }

    /// Returns each end with its number.
    fn ends(&self) -> String {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for line in &self.made {
            *counts.entry(end(line)).or_default() += 1;
        }
        let missing = self.all - self.made.len();
        if missing > 0 {
            counts.insert("not made".into(), missing);
        }
        let show = |(end, count): (String, usize)| if count == 1 { end } else { format!("{end} ×{count}") };
        counts.into_iter().map(show).collect::<Vec<_>>().join(", ")
    }

    /// Returns the name of the group's side: what is compared.
    fn side(&self) -> String {
        format!("{}, {}", self.run.kernel, self.run.parameters)
    }

    /// Returns the name of what the sides do.
    fn work(&self) -> String {
        format!("{}, {}", self.run.program, self.run.machine)
    }
}

/// Returns how a run ended, in a word or two.
fn end(line: &Value) -> String {
    let outcome = &line["outcome"];
    match (outcome["outcome"].as_str(), outcome["exit"].as_u64(), outcome["signal"].as_u64()) {
        (Some("exit"), Some(status), _) => format!("exit {status}"),
        (Some("signal"), _, Some(signal)) => format!("signal {signal}"),
        (name, ..) => name.unwrap_or("?").to_owned(),
    }
}

impl<'a> SweepReport<'a> {
    /// Assembles the report of what is made.
    pub fn new(
        plan: &'a SweepPlan,
        results: &'a BTreeMap<usize, Value>,
        ended_by: Option<u8>,
    ) -> SweepReport<'a> {
        SweepReport { plan, results, ended_by }
    }

    /// Returns whether every run is made, and the kernel and freehold did their part in each.
    pub fn is_whole(&self) -> bool {
        let is_of_program =
            |line: &Value| matches!(line["outcome"]["outcome"].as_str(), Some("exit" | "signal"));
        self.results.len() == self.plan.runs.len() && self.results.values().all(is_of_program)
    }

    fn groups(&self) -> Vec<SeedGroup<'a>> {
        let mut groups: Vec<SeedGroup<'a>> = Vec::new();
        for run in &self.plan.runs {
            // Seeds vary fastest.
            let is_same = |group: &SeedGroup<'_>| {
                group.side() == SeedGroup { run, made: Vec::new(), all: 0 }.side()
                    && group.work() == SeedGroup { run, made: Vec::new(), all: 0 }.work()
            };
            if !groups.last().is_some_and(is_same) {
                groups.push(SeedGroup { run, made: Vec::new(), all: 0 });
            }
            if let Some(group) = groups.last_mut() {
                group.all += 1;
                group.made.extend(self.results.get(&run.number));
            }
        }
        groups
    }

    fn verdict(&self) -> String {
        let (made, all) = (self.results.len(), self.plan.runs.len());
        let other = self.results.values().filter(|line| line["outcome"]["outcome"] != "exit").count();
        let ends =
            if other == 0 { "all ended by exit".into() } else { format!("{other} did not end by exit") };
        format!("{made} of {all} runs are made; {ends}")
    }

    /// Returns a table for a terminal.
    pub fn text(&self) -> String {
        let mut rows = vec![vec![
            "kernel, parameters".to_owned(),
            "program, machine".into(),
            "runs".into(),
            "ends".into(),
        ]];
        rows[0].extend(FIGURES.map(|(name, ..)| name.to_owned()));
        for group in self.groups() {
            let mut row =
                vec![group.side(), group.work(), format!("{}/{}", group.made.len(), group.all), group.ends()];
            row.extend(FIGURES.map(|(_, place, unit)| shown(&group.figure(place), unit)));
            rows.push(row);
        }
        format!("{}\n{}\n", aligned(&rows, |column| column == 2 || column > 3), self.verdict())
    }

    /// Returns a line for each run that is made.
    ///
    /// # Errors
    /// If memory cannot be written to.
    pub fn sheet(&self) -> Result<Sheet> {
        let names = ["number", "kernel", "parameters", "program", "machine", "seed", "outcome", "status"];
        let figures = FIGURES.map(|(_, place, _)| place.rsplit('/').next().unwrap_or(place));
        let mut sheet = Sheet::new(&[&names[..], &figures].concat())?;
        for run in &self.plan.runs {
            let Some(line) = self.results.get(&run.number) else { continue };
            let outcome = &line["outcome"];
            let seed = run.seed.map_or_else(String::new, |seed| seed.to_string());
            let mut cells = vec![run.number.to_string(), run.kernel.clone(), run.parameters.clone()];
            cells.extend([run.program.clone(), run.machine.clone(), seed]);
            cells.extend([
                outcome["outcome"].as_str().unwrap_or("?").to_owned(),
                outcome["status"].to_string(),
            ]);
            cells.extend(FIGURES.map(|(_, place, _)| number(outcome.pointer(place).and_then(Value::as_f64))));
            sheet.line(cells)?;
        }
        Ok(sheet)
    }

    /// Returns the page.
    pub fn page(&self) -> Page {
        let mut page = Page::new(&format!("Sweep {}", self.plan.name), &self.verdict());
        let file = self.plan.file.display();
        match self.results.len() < self.plan.runs.len() {
            true => page.next("Makes the runs that are missing", &format!("freehold sweep {file}")),
            false => page.next("For a spreadsheet", &format!("freehold sweep {file} --merge --csv runs.csv")),
        }
        page.tiles(&self.tiles());
        let groups = self.groups();
        for (name, place, unit) in FIGURES {
            self.figure(&mut page, &groups, (name, place, unit));
        }
        page.section("All runs");
        let mut table = Table::new("", &[Column::number("number"), Column::text("run"), Column::text("end")]);
        for run in self.plan.runs.iter().take(LISTED) {
            let end = match self.results.get(&run.number) {
                None => Cell::text("not made").tone(Tone::Warning),
                Some(line) => {
                    Cell::text(end(line)).hint(line["outcome"]["sentence"].as_str().unwrap_or_default())
                }
            };
            table.row([Cell::text(run.number.to_string()), Cell::text(run.name()), end]);
        }
        page.table(&table);
        if self.plan.runs.len() > LISTED {
            page.text(&format!("The first {LISTED} of {} runs.", self.plan.runs.len()));
        }
        self.ended_by.map(partial_sentence).iter().for_each(|partial| page.warn(partial));
        page
    }

    fn tiles(&self) -> Vec<Tile> {
        let (made, all) = (self.results.len(), self.plan.runs.len());
        vec![Tile {
            label: "runs made".into(),
            value: format!("{made} of {all}"),
            detail: self.plan.file.display().to_string(),
            tone: if self.is_whole() { Tone::Good } else { Tone::Warning },
        }]
    }

    /// Adds a figure with its table, unless no run has it.
    fn figure(&self, page: &mut Page, groups: &[SeedGroup<'_>], (name, place, unit): (&str, &str, Unit)) {
        let mut sides: Vec<String> = Vec::new();
        let mut works: Vec<String> = Vec::new();
        for group in groups.iter().filter(|group| !group.figure(place).is_empty()) {
            if !sides.contains(&group.side()) {
                sides.push(group.side())
            }
            if !works.contains(&group.work()) {
                works.push(group.work())
            }
        }
        if works.is_empty() {
            return;
        }
        page.section(name);
        let labels: Vec<&str> = sides.iter().map(String::as_str).collect();
        let mut bars = Bars::new(name, Axis::linear(name, unit), &labels);
        for work in &works {
            let of = |side: &String| {
                let group = groups.iter().find(|group| group.side() == *side && group.work() == *work)?;
                bar(&group.figure(place))
            };
            bars.group(work, &sides.iter().map(of).collect::<Vec<_>>());
        }
        page.figure(&bars, "Dots are medians of the seeds; lines reach from the least to the most.");
    }
}

fn bar(values: &[f64]) -> Option<Bar> {
    (!values.is_empty()).then(|| Bar::within(median(values), Interval::range(values)))
}

fn shown(values: &[f64], unit: Unit) -> String {
    if values.is_empty() { "–".into() } else { unit.show(median(values)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::plan;
    use super::*;

    #[test]
    fn seeds_of_a_run_are_one_row_and_what_is_missing_is_said() {
        let plan = plan::parse(
            "seeds = [1, 2, 3]\n[programs]\ngood = [\"busybox\", \"true\"]\nbad = [\"busybox\", \"false\"]\n",
        )
        .expect("a sweep");
        let line = |exit: u64, peak: u64| json!({"outcome": {"outcome": "exit", "exit": exit, "status": exit, "sentence": "x", "memory": {"peak_user_kib": peak}}});
        let results =
            BTreeMap::from([(0, line(0, 10)), (1, line(0, 30)), (2, line(0, 20)), (3, line(1, 50))]);
        let report = SweepReport::new(&plan, &results, Some(2));
        assert!(!report.is_whole());
        let text = report.text();
        assert!(text.contains("3/3  exit 0 ×3") && text.contains("1/3  exit 1, not made ×2"), "{text}");
        assert!(text.contains("4 of 6 runs are made; all ended by exit"), "{text}");
        let page = report.page().render();
        assert!(page.contains("partial: ended by signal 2") && page.contains("4 of 6"), "{page}");
        assert!(page.contains("20 (10 to 30)") && page.contains("50 (too few runs)"), "{page}");
        let sheet =
            String::from_utf8(report.sheet().expect("a sheet").bytes().expect("bytes")).expect("text");
        assert_eq!(sheet.lines().count(), 1 + 4);
        assert!(sheet.contains("\r\n1,-,-,good,-,2,exit,0,,,30,,\r\n"), "{sheet}");
    }
}
