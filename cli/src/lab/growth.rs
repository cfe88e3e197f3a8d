//! `freehold lab growth`: does an operation cost more if more things are present?
//!
//! Each row of [`GROWTH`] is measured with one thing, 100, 1,000 and 10,000, on both kernels, in
//! guest instructions per operation. The **exponent** is the slope of the least-squares line
//! through log(added cost) over log(things). The added cost is the cost above that with one thing,
//! and at least a tenth of that cost, because smaller costs cannot be told from constant ones. A
//! constant has exponent 0, a balanced tree about 0.15, a list 1.

use serde::Serialize;
use serde_json::Value;

use super::{Experiment, Extent, Settings};
use crate::Result;
use crate::args::BenchOptions;
use crate::bench::{self, BenchRow, COUNTS, Compared, GROWTH, GrowthRows};
use crate::html::{Axis, Cell, Column, Lines, Page, Shape, Table, Tile, Tone, Unit};
use crate::schema::LabHead;

/// The experiment's entry in the list.
pub const EXPERIMENT: Experiment = Experiment {
    name: "growth",
    question: "Does an operation cost more because there are more things around it?",
    run,
};

/// The largest exponent that meets the goal.
const MOST: f64 = 0.2;
/// An added cost counts as at least this share of the cost with one thing.
const NOISE: f64 = 0.1;
/// Rows of a short run: rows that meet the goal and whose things are made quickly.
const FEW: [&str; 4] = ["mincore", "epoll-mod", "sigtimedwait", "timer"];
/// Exit status if a cost of ours grows.
const GROWS: u8 = 1;

/// One operation on one kernel.
#[derive(Debug, Serialize)]
struct Course {
    side: &'static str,
    row: &'static str,
    what: &'static str,
    /// Things, instructions per operation; failed rows are left out.
    costs: Vec<(u32, f64)>,
    exponent: Option<f64>,
}

#[derive(Serialize)]
struct GrowthRecord<'a> {
    #[serde(flatten)]
    head: LabHead,
    most: f64,
    courses: &'a [Course],
    /// Costs as `freehold bench --json` writes them.
    costs: Value,
}

const SIDES: [&str; 2] = ["Freehold", "Linux, lean"];

fn run(settings: &Settings) -> Result<u8> {
    let (rows, counts): (Vec<&GrowthRows>, &[u32]) = match settings.extent {
        Extent::Full => (GROWTH.iter().collect(), &COUNTS),
        Extent::Quick => (GROWTH.iter().filter(|row| FEW.contains(&name(row))).collect(), &[1, 100, 10_000]),
    };
    let all = rows.iter().flat_map(|row| at_counts(row, counts));
    let names = all.map(|(row, _)| row.name.to_owned()).collect();
    let options = BenchOptions {
        quick: true,
        names,
        runs: Some("1".into()),
        // Linux limits threads by the memory: 10,000 need this much.
        memory: Some("2G".into()),
        timeout: Some("3600".into()),
        against: Some("linux".into()),
        against_append: vec![bench::LEAN.into()],
        ..BenchOptions::default()
    };
    let compared = match bench::compare(&options)? {
        Ok(compared) => compared,
        Err(status) => return Ok(status),
    };
    let ended_by = compared.interrupted();
    let courses = rows.iter().map(|row| courses(row, counts, &compared));
    // After a signal there are only the operations that were measured with all counts.
    let is_whole = |pair: &[Course; 2]| pair.iter().all(|course| course.costs.len() == counts.len());
    let courses: Vec<Course> =
        courses.filter(|pair| ended_by.is_none() || is_whole(pair)).flatten().collect();
    let record = GrowthRecord {
        head: LabHead::of(EXPERIMENT.name, ended_by),
        most: MOST,
        courses: &courses,
        costs: compared.json(),
    };
    settings.write_record(&record)?;
    settings.write_page(|| page(&courses), ended_by)?;
    let failed = compared.tell_failures();
    let status = if courses.iter().any(Course::misses) { GROWS } else { failed };
    settings.conclude(&text(&courses, counts), ended_by, status)
}

/// Returns the row's name without its count.
fn name(row: &GrowthRows) -> &'static str {
    row[0].name.split('@').next().unwrap_or(row[0].name)
}

/// Returns the row with each of these counts.
fn at_counts<'a>(row: &'a GrowthRows, counts: &'a [u32]) -> impl Iterator<Item = (&'a BenchRow, u32)> {
    row.iter().zip(COUNTS).filter(|(_, count)| counts.contains(count))
}

fn courses(row: &GrowthRows, counts: &[u32], compared: &Compared) -> [Course; 2] {
    [0, 1].map(|side| {
        let costs: Vec<(u32, f64)> = at_counts(row, counts)
            .filter_map(|(row, count)| Some((count, compared.cost(row.name, side)?)))
            .collect();
        let exponent = exponent(&costs);
        Course { side: SIDES[side], row: name(row), what: row[0].what, costs, exponent }
    })
}

/// Returns the slope of the added cost, as defined in the module's head. `None` without a cost with
/// one thing and with two larger counts.
fn exponent(costs: &[(u32, f64)]) -> Option<f64> {
    let (&(1, alone), more) = costs.split_first()? else { return None };
    let added = |cost: f64| (cost - alone).max(alone * NOISE).ln();
    let points: Vec<(f64, f64)> =
        more.iter().map(|&(count, cost)| (f64::from(count).ln(), added(cost))).collect();
    let length = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / length;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let slope: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    (spread > 0.0).then(|| slope / spread)
}

impl Course {
    /// Returns whether the row is ours and grows, or cannot be judged.
    fn misses(&self) -> bool {
        self.side == SIDES[0] && self.exponent.is_none_or(|exponent| exponent > MOST)
    }
    fn show_exponent(&self) -> String {
        self.exponent.map_or("–".into(), |exponent| format!("{exponent:.2}"))
    }
    fn cost(&self, count: u32) -> Option<f64> {
        self.costs.iter().find(|(of, _)| *of == count).map(|(_, cost)| *cost)
    }
    fn show_cost(&self, count: u32) -> String {
        self.cost(count).map_or("failed".into(), |cost| format!("{cost:.0}"))
    }
}

fn text(courses: &[Course], counts: &[u32]) -> String {
    let mut text = String::from("guest instructions per operation, by how many things there are\n\n");
    text.push_str(&format!("{:<16}{:<13}", "operation", ""));
    counts.iter().for_each(|count| text.push_str(&format!("{count:>12}")));
    text.push_str("    exponent\n");
    for course in courses {
        let name = if course.side == SIDES[0] { course.row } else { "" };
        text.push_str(&format!("{name:<16}{:<13}", course.side));
        counts.iter().for_each(|&count| text.push_str(&format!("{:>12}", course.show_cost(count))));
        let verdict = if course.misses() { "  grows" } else { "" };
        text.push_str(&format!("{:>12}{verdict}\n", course.show_exponent()));
    }
    let ours = courses.iter().filter(|course| course.side == SIDES[0]);
    let (all, missed) = (ours.clone().count(), ours.filter(|course| course.misses()).count());
    text.push_str(&format!("\n{} of {all} exponents are at most {MOST}\n", all - missed));
    text
}

fn page(courses: &[Course]) -> Page {
    let mut page = Page::new("What more things cost", "guest instructions per operation, on both kernels");
    let ours: Vec<&Course> = courses.iter().filter(|course| course.side == SIDES[0]).collect();
    let met = ours.iter().filter(|course| !course.misses()).count();
    page.tiles(&[Tile {
        label: "costs that do not grow".into(),
        value: format!("{met} of {}", ours.len()),
        detail: format!("exponent of at most {MOST}"),
        tone: if met == ours.len() { Tone::Good } else { Tone::Bad },
    }]);
    page.section("Question");
    page.text(EXPERIMENT.question);
    page.section("Answer");
    let mut table = Table::new(
        "",
        &[Column::text("operation"), Column::number("Freehold"), Column::number("Linux, lean")],
    );
    for pair in courses.chunks(SIDES.len()) {
        let cells = pair.iter().map(|course| Cell::text(course.show_exponent()));
        table.row(pair.first().map(|course| Cell::text(course.what)).into_iter().chain(cells));
    }
    page.table(&table);
    for pair in courses.chunks(SIDES.len()) {
        let Some(first) = pair.first() else { continue };
        let axis = |label: &str| Axis::logarithmic(label, Unit::Number);
        let mut lines = Lines::new(first.what, axis("things"), axis("instructions"));
        for course in pair {
            let points: Vec<(f64, f64)> =
                course.costs.iter().map(|&(count, cost)| (f64::from(count), cost)).collect();
            lines.line(course.side, Shape::Straight, &points);
        }
        page.figure(&lines, "A level line: what there is around it does not matter.");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(cost: fn(f64) -> f64) -> f64 {
        exponent(&COUNTS.map(|count| (count, cost(f64::from(count))))).expect("an exponent")
    }

    #[test]
    fn a_constant_does_not_grow_a_tree_hardly_and_a_list_does() {
        assert_eq!(of(|_| 700.0), 0.0);
        assert!(of(|n| 1000.0 + 30.0 * n.log2()) < MOST);
        assert!(of(|n| 700.0 + 0.1 * n) > MOST, "a small cost per thing shows behind a large constant");
        assert!((of(|n| 1.0 + 50.0 * n) - 1.0).abs() < 0.05);
        assert!((of(|n| 1.0 + 50.0 * n * n) - 2.0).abs() < 0.05);
    }

    #[test]
    fn without_the_cost_of_one_thing_nothing_is_said() {
        assert_eq!(exponent(&[]), None);
        assert_eq!(exponent(&[(100, 5.0), (1000, 6.0)]), None);
        assert_eq!(exponent(&[(1, 5.0), (100, 6.0)]), None);
    }
}
