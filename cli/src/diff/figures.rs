//! Figures by their path in a record: `results.phases[program].cpus[0].modes.kernel.loads`.
//!
//! An element of a list is named by its own fields (name, side, row …), else by its position. A
//! list of repeated observations is one figure: its median.

use std::collections::HashMap;

use serde_json::Value;

use super::record::finite;
use super::result::{DiffLine, DiffResult, DiffVerdict, WhichRecord};
use crate::statistics::median;

/// Fields that tell an element of a list from the others.
const IDENTITY: [&str; 20] = [
    "name", "side", "row", "load", "way", "workload", "policy", "tlb", "call", "nodes", "age", "function",
    "data", "half", "page", "cpu", "cause", "boot", "label", "against",
];
/// Lists whose elements are observations of the same thing.
const OBSERVATIONS: [&str; 3] = ["boots", "cpu_seconds", "mib_per_second"];
/// Figures of the host's time that occur once per run.
const HOST_TIME: [&str; 1] = ["wall_ms"];
/// Suffix for the second of several elements with the same name.
const AGAIN: &str = " #";

/// The values of one figure in a record: one value, or several observations.
pub type Observed = Vec<f64>;

/// Figures with their paths, in the record's order.
#[derive(Debug, Default)]
pub struct PathFigures {
    list: Vec<(String, Observed)>,
    places: HashMap<String, usize>,
}

impl PathFigures {
    /// Returns the figures below `value`, whose own path is `path`. `is_left_out` excludes paths.
    pub fn of(value: &Value, path: &str, is_left_out: &dyn Fn(&str) -> bool) -> PathFigures {
        let mut figures = PathFigures::default();
        figures.walk(value, path, is_left_out);
        figures
    }

    /// Returns all figures with their paths, in the record's order.
    pub fn list(&self) -> &[(String, Observed)] {
        &self.list
    }

    /// Returns the figure at this path.
    pub fn get(&self, path: &str) -> Option<&Observed> {
        Some(&self.list[*self.places.get(path)?].1)
    }

    fn add(&mut self, path: String, value: f64) {
        match self.places.get(&path) {
            Some(&at) => self.list[at].1.push(value),
            None => {
                self.places.insert(path.clone(), self.list.len());
                self.list.push((path, vec![value]));
            }
        }
    }

    /// Collects figures recursively. The parser limits the depth of the recursion.
    fn walk(&mut self, value: &Value, path: &str, is_left_out: &dyn Fn(&str) -> bool) {
        if is_left_out(path) {
            return;
        }
        match value {
            Value::Number(_) => {
                if let Some(number) = finite(value) {
                    self.add(path.to_owned(), number);
                }
            }
            Value::Object(fields) => {
                for (name, value) in fields {
                    let dot = if path.is_empty() { "" } else { "." };
                    self.walk(value, &format!("{path}{dot}{name}"), is_left_out);
                }
            }
            Value::Array(list) if is_observations(path) => {
                list.iter().for_each(|value| self.walk(value, path, is_left_out));
            }
            Value::Array(list) => {
                let mut seen: HashMap<String, usize> = HashMap::new();
                for (at, value) in list.iter().enumerate() {
                    let name = identity(value).unwrap_or_else(|| at.to_string());
                    let times = seen.entry(name.clone()).or_default();
                    *times += 1;
                    let again = if *times > 1 { format!("{AGAIN}{times}") } else { String::new() };
                    self.walk(value, &format!("{path}[{name}{again}]"), is_left_out);
                }
            }
            Value::Null | Value::Bool(_) | Value::String(_) => {}
        }
    }
}

/// Returns the name of the field at the end of a path.
pub fn last(path: &str) -> &str {
    path.rsplit(['.', ']']).next().unwrap_or(path)
}

/// Returns the unit of a figure, as far as its name tells.
pub fn unit(path: &str) -> &'static str {
    let name = last(path);
    // A boot's time is compared only if instructions were counted: 1 ns is 1 instruction.
    if name == "boot_ns" || name.ends_with("instructions") {
        return "instructions";
    }
    const UNITS: [(&str, &str); 4] = [("_kib", "KiB"), ("_ms", "ms"), ("_ns", "ns"), ("bytes", "bytes")];
    UNITS.iter().find(|(end, _)| name.ends_with(end)).map_or("", |(_, unit)| unit)
}

fn is_observations(path: &str) -> bool {
    OBSERVATIONS.contains(&last(path))
}

/// Returns whether a figure is one of several observations of the same thing.
fn is_observed(path: &str) -> bool {
    path.split(['.', ']']).any(|part| OBSERVATIONS.contains(&part))
}

/// Returns the words by which an element of a list identifies itself.
fn identity(value: &Value) -> Option<String> {
    let words: Vec<String> = IDENTITY
        .iter()
        .filter_map(|name| match value.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(format!("{name} {number}")),
            _ => None,
        })
        .collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// Largest difference between figures of equal runs: the larger of share and count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Share of the figure.
    pub share: f64,
    /// Absolute difference that is tolerated, whatever the figure.
    pub count: f64,
}

impl Tolerance {
    /// Tolerance for instructions until the program starts. The kernel waits for devices, which the
    /// host serves; a busy host was seen to add some tens.
    pub const BOOT: Tolerance = Tolerance { share: 0.0, count: 1000.0 };

    /// Returns the tolerance of a share alone.
    pub fn of(share: f64) -> Tolerance {
        Tolerance { share, count: 0.0 }
    }
}

/// Rules for judging two figures.
pub struct Judge<'a> {
    /// Largest difference of a figure between equal runs.
    pub tolerance: &'a dyn Fn(&str) -> Tolerance,
    /// Whether a figure that one record lacks counts as 0 there.
    pub is_zero: &'a dyn Fn(&str) -> bool,
}

impl Judge<'_> {
    /// Compares all figures; figures of only one record are named.
    pub fn compare(&self, a: &PathFigures, b: &PathFigures, into: &mut DiffResult) {
        let zero: Observed = vec![0.0];
        for (path, seen_a) in &a.list {
            match b.get(path) {
                Some(seen_b) => into.lines.push(self.line(path, seen_a, seen_b)),
                None if (self.is_zero)(path) => into.lines.push(self.line(path, seen_a, &zero)),
                None => into.only.push((path.clone(), WhichRecord::A)),
            }
        }
        for (path, seen_b) in b.list.iter().filter(|(path, _)| a.get(path).is_none()) {
            if (self.is_zero)(path) {
                into.lines.push(self.line(path, &zero, seen_b));
            } else {
                into.only.push((path.clone(), WhichRecord::B));
            }
        }
    }

    fn line(&self, path: &str, a: &Observed, b: &Observed) -> DiffLine {
        let verdict = if HOST_TIME.contains(&last(path)) && a != b {
            DiffVerdict::NotJudged
        } else if a.len() == 1 && b.len() == 1 {
            let Tolerance { share, count } = (self.tolerance)(path);
            match DiffVerdict::of_figure(a[0], b[0], share) {
                DiffVerdict::Same => DiffVerdict::Same,
                _ if (a[0] - b[0]).abs() <= count => DiffVerdict::NotDistinguishable,
                DiffVerdict::More | DiffVerdict::Less if is_observed(path) => DiffVerdict::TooFewRuns,
                verdict => verdict,
            }
        } else if a.len().min(b.len()) < 2 {
            DiffVerdict::TooFewRuns
        } else {
            of_ranges(a, b)
        };
        let line = DiffLine::figures(path, (median(a), median(b)), verdict);
        DiffLine { unit: unit(path), ..line }
    }
}

/// Judges repeated observations: they differ if all of one list are above all of the other.
fn of_ranges(a: &[f64], b: &[f64]) -> DiffVerdict {
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if a == b {
        DiffVerdict::Same
    } else if least(b) > most(a) {
        DiffVerdict::More
    } else if most(b) < least(a) {
        DiffVerdict::Less
    } else {
        DiffVerdict::NotDistinguishable
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figures(value: &Value) -> PathFigures {
        PathFigures::of(value, "", &|path| path == "left_out")
    }

    #[test]
    fn a_figure_s_path_does_not_depend_on_its_place_where_it_has_a_name() {
        let found = figures(&json!({
            "left_out": 1,
            "text": "no figure",
            "phases": [{"name": "start", "cpus": [{"loads": 3}]}, {"name": "start", "end": 9}, {"end": 4}],
            "rows": [{"side": "on", "nodes": 2, "cost": 1.5}],
        }));
        let paths: Vec<(&str, f64)> =
            found.list.iter().map(|(path, seen)| (path.as_str(), seen[0])).collect();
        let expected = [
            ("phases[start].cpus[0].loads", 3.0),
            ("phases[start #2].end", 9.0),
            ("phases[2].end", 4.0),
            ("rows[on, nodes 2].nodes", 2.0),
            ("rows[on, nodes 2].cost", 1.5),
        ];
        assert_eq!(paths, expected);
    }

    #[test]
    fn repeated_observations_are_one_figure_that_differs_where_the_ranges_do_not_overlap() {
        let judge = Judge { tolerance: &|_| Tolerance::of(0.01), is_zero: &|_| false };
        let verdicts = |a: Value, b: Value| -> Vec<DiffVerdict> {
            let mut result = DiffResult::default();
            judge.compare(&figures(&a), &figures(&b), &mut result);
            result.lines.iter().map(|line| line.verdict).collect()
        };
        let boots = |values: [u64; 3]| json!({"boots": values.map(|copies| json!({"copies": copies}))});
        assert_eq!(verdicts(boots([1, 2, 3]), boots([4, 5, 9])), [DiffVerdict::More]);
        assert_eq!(verdicts(boots([4, 5, 9]), boots([1, 2, 3])), [DiffVerdict::Less]);
        assert_eq!(verdicts(boots([1, 2, 4]), boots([4, 5, 9])), [DiffVerdict::NotDistinguishable]);
        assert_eq!(verdicts(boots([1, 2, 4]), boots([1, 2, 4])), [DiffVerdict::Same]);
        let few = |values: &[u64]| json!({"boots": values.iter().map(|copies| json!({"copies": copies})).collect::<Vec<_>>()});
        assert_eq!(verdicts(few(&[1]), few(&[9])), [DiffVerdict::TooFewRuns]);
        assert_eq!(verdicts(few(&[1]), few(&[4, 5])), [DiffVerdict::TooFewRuns]);
        assert_eq!(verdicts(few(&[1]), few(&[1])), [DiffVerdict::Same]);
        let one = |value: f64| json!({"cost": value});
        assert_eq!(verdicts(one(100.0), one(100.9)), [DiffVerdict::NotDistinguishable]);
        assert_eq!(verdicts(one(100.0), one(102.0)), [DiffVerdict::More]);
        assert_eq!(verdicts(json!({"wall_ms": 1}), json!({"wall_ms": 9})), [DiffVerdict::NotJudged]);
    }

    #[test]
    fn a_figure_s_unit_is_told_by_its_name() {
        let paths =
            ["boot_ns", "a[b].kernel_instructions", "memory.free_kib", "x.bytes", "syscalls[read].calls"];
        assert_eq!(paths.map(unit), ["instructions", "instructions", "KiB", "bytes", ""]);
    }

    #[test]
    fn what_one_record_lacks_is_named_or_zero() {
        let judge = Judge { tolerance: &|_| Tolerance::of(0.0), is_zero: &|path| path.starts_with("calls") };
        let mut result = DiffResult::default();
        let a = figures(&json!({"calls": [{"name": "read", "count": 2}], "old": 1}));
        judge.compare(&a, &figures(&json!({"new": 1})), &mut result);
        assert_eq!(result.lines, [DiffLine::figures("calls[read].count", (2.0, 0.0), DiffVerdict::Less)]);
        assert_eq!(result.only, [("old".into(), WhichRecord::A), ("new".into(), WhichRecord::B)]);
    }
}
