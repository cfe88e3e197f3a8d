//! `freehold lab scaling`: does an operation cost more when all CPUs do it at once, each with data
//! of its own?
//!
//! Each of [`OPERATIONS`] is performed by one worker, and by as many workers as the VM has CPUs,
//! under the microscope. Counted are guest instructions per operation, those of waiting for a lock
//! by spinning included, and how often a cache line moves from one CPU to another because the
//! kernel stores to it on both (`freehold scope --model sharing`). Each worker stays on a CPU of
//! its own, so the moves do not depend on how the emulator's host interleaves the CPUs. The
//! instructions do, where a CPU spins while the host has stopped the one that holds the lock.

use std::collections::BTreeMap;
use std::ffi::OsString;

use freehold_scope_record::{Results, SharedStore};
use serde::Serialize;

use super::{Experiment, Extent, KernelSide, MISSED, Settings};
use crate::bench::table::aligned;
use crate::bench::{self, LEAN, Output, Phases};
use crate::failure::Failure;
use crate::html::{Axis, Cell, Column, Lines, Page, Shape, Table, Tile, Tone, Unit};
use crate::progress::LabSteps;
use crate::schema::LabHead;
use crate::scope::lines::{SharedLines, by_function};
use crate::scope::symbols::Names;
use crate::statistics::median;
use crate::{Result, args, scope};

/// The experiment's entry in the list.
pub const EXPERIMENT: Experiment = Experiment {
    name: "scaling",
    question: "Does an operation cost more when all CPUs do it at once, each with data of its own?",
    run,
};

/// An operation of the benchmark programs: the program, the row, and what it is.
type Operation = (&'static str, &'static str, &'static str);

/// Operations whose workers share nothing that they name.
const OPERATIONS: [Operation; 8] = [
    ("memory", "fault-4k", "first store to a page, by threads of one process"),
    ("memory", "mmap-4k", "map and unmap a page, by threads of one process"),
    ("files", "open-close", "open and close an own file, by threads of one process"),
    ("files", "open-own", "open and close a file in an own directory, by processes"),
    ("calls", "pipe-close", "make and close a pipe, by threads of one process"),
    ("calls", "eventfd", "write and read an own eventfd, by threads of one process"),
    ("syscalls", "futex-wake", "FUTEX_WAKE of an own word, by threads of one process"),
    ("processes", "fork-exit", "fork, exit, wait, by processes"),
];
/// Operations of a short run.
const FEW: [Operation; 2] = [OPERATIONS[0], OPERATIONS[7]];

const FREEHOLD: KernelSide = KernelSide { name: "Freehold", kernel: "freehold", append: "" };
const LINUX: KernelSide = KernelSide { name: "Linux, lean", kernel: "linux", append: LEAN };

/// Samples of each operation.
const SAMPLES: usize = 5;
/// The most instructions per operation with all CPUs, over those with one.
const MOST_GROWTH: f64 = 1.15;
/// The most moves of lines per operation with all CPUs.
const MOST_MOVES: f64 = 2.0;
/// Number of functions that are named for an operation.
const NAMED: usize = 4;

/// One operation on one kernel with one number of CPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct ScalingRow {
    side: &'static str,
    row: &'static str,
    what: &'static str,
    /// CPUs, and workers.
    cpus: u32,
    /// Guest instructions per operation of one worker: the median of the samples.
    instructions: f64,
    /// Largest possible number of moves of lines per operation.
    moves: f64,
    /// The functions to which lines moved, most first.
    functions: Vec<SharedLines>,
}

#[derive(Serialize)]
struct ScalingRecord<'a> {
    #[serde(flatten)]
    head: LabHead,
    most_growth: f64,
    most_moves: f64,
    rows: &'a [ScalingRow],
}

fn run(settings: &Settings) -> Result<u8> {
    let (sides, operations, counts): (&[KernelSide], &[Operation], &[u32]) = match settings.extent {
        Extent::Full => (&[FREEHOLD, LINUX], &OPERATIONS, &[1, 2, 4, 8]),
        Extent::Quick => (&[FREEHOLD], &FEW, &[1, 2]),
    };
    let name = |side: &KernelSide, cpus: u32| format!("{}, {cpus} CPUs", side.name);
    let turns = || counts.iter().flat_map(|&cpus| sides.iter().map(move |side| (side, cpus)));
    let mut steps = LabSteps::new(turns().map(|(side, cpus)| name(side, cpus)))?;
    let mut rows = Vec::new();
    for (side, cpus) in turns() {
        let name = name(side, cpus);
        let Some(found) = steps.step(&name, &name, || measure(side, cpus, operations))? else { break };
        rows.extend(found);
    }
    let ended_by = steps.end()?;
    let record = ScalingRecord {
        head: LabHead::of(EXPERIMENT.name, ended_by),
        most_growth: MOST_GROWTH,
        most_moves: MOST_MOVES,
        rows: &rows,
    };
    settings.write_record(&record)?;
    let courses: Vec<Course<'_>> = courses(&rows).collect();
    settings.write_page(|| page(&courses, counts), ended_by)?;
    let is_met = courses.iter().filter(|course| course.is_ours()).all(Course::is_met);
    settings.conclude(&summary(&courses, counts), ended_by, if is_met { 0 } else { MISSED })
}

/// Runs all operations with one worker for each of `cpus` CPUs.
fn measure(side: &KernelSide, cpus: u32, operations: &[Operation]) -> Result<Vec<ScalingRow>> {
    let words = words(side, cpus, operations)?;
    let seen = scope::Measurement::prepare(&args::scope_options(&words)?)?.run_named()?;
    let keys: Vec<_> = operations.iter().map(|&(_, row, _)| (row.to_owned(), cpus)).collect();
    let output = Output::parse(&seen.output, b"", Phases::of(&seen.results), &keys, SAMPLES);
    let of = |&(_, row, what): &Operation| {
        let found = &output.rows[&(row.to_owned(), cpus)];
        if let Some(failure) = &found.failure {
            return Err(Failure::new(format!("{}, {row} by {cpus}: {failure}", side.name), ""));
        }
        let operations = found.raw.iter().map(|(operations, _)| operations).sum::<u64>() * u64::from(cpus);
        let (moves, functions) = moves(&seen.results, &format!("{row} {cpus}"), &seen.names);
        Ok(ScalingRow {
            side: side.name,
            row,
            what,
            cpus,
            instructions: median(&found.samples) / f64::from(cpus),
            moves: moves as f64 / operations as f64,
            functions,
        })
    };
    operations.iter().map(of).collect()
}

fn words(side: &KernelSide, cpus: u32, operations: &[Operation]) -> Result<Vec<OsString>> {
    let cpus = cpus.to_string();
    let how = ["--report", "never", "-m", "1G", "--model", "sharing", "--kernel", side.kernel];
    let mut words: Vec<OsString> =
        how.iter().chain(&["--append", side.append, "--cpus", &cpus]).map(OsString::from).collect();
    for volume in bench::volumes()? {
        words.extend(["--volume".into(), volume]);
    }
    words.extend(["--", "/bench/sequence", &SAMPLES.to_string(), "1", "watched", &cpus].map(OsString::from));
    words.extend(operations.iter().map(|(program, row, _)| format!("{program}/{row}").into()));
    Ok(words)
}

/// Returns the moves of lines in all phases of this name, and the functions with most of them.
fn moves(results: &Results, name: &str, names: &Names) -> (u64, Vec<SharedLines>) {
    let phases = || {
        let all = results.sharing.iter().flat_map(|sharing| &sharing.phases);
        results.phases.iter().zip(all).filter(|(phase, _)| phase.name == name).map(|(_, sharing)| sharing)
    };
    let stores: Vec<SharedStore> = phases().flat_map(|sharing| sharing.stores.iter().copied()).collect();
    let mut functions = by_function(&stores, names);
    functions.truncate(NAMED);
    (phases().map(|sharing| sharing.moves).sum(), functions)
}

/// An operation on one kernel, by CPUs.
struct Course<'a> {
    first: &'a ScalingRow,
    by_cpus: BTreeMap<u32, &'a ScalingRow>,
}

/// Returns the courses of all operations, those of one operation together.
fn courses(rows: &[ScalingRow]) -> impl Iterator<Item = Course<'_>> {
    let firsts = || rows.iter().filter(|row| row.cpus == 1);
    let operations = firsts().filter(|row| row.side == FREEHOLD.name).map(|row| row.row);
    operations.flat_map(move |operation| firsts().filter(move |row| row.row == operation)).map(|first| {
        let same = rows.iter().filter(|row| (row.side, row.row) == (first.side, first.row));
        Course { first, by_cpus: same.map(|row| (row.cpus, row)).collect() }
    })
}

impl Course<'_> {
    fn is_ours(&self) -> bool {
        self.first.side == FREEHOLD.name
    }
    /// Returns the row with most CPUs.
    fn last(&self) -> &ScalingRow {
        self.by_cpus.last_key_value().map_or(self.first, |(_, row)| row)
    }
    fn growth(&self) -> f64 {
        self.last().instructions / self.first.instructions
    }
    fn is_met(&self) -> bool {
        self.growth() <= MOST_GROWTH && self.last().moves <= MOST_MOVES
    }
    fn show(&self, cpus: u32, of: fn(&ScalingRow) -> String) -> String {
        self.by_cpus.get(&cpus).map_or("–".into(), |row| of(row))
    }
}

const HOW: &str = "Guest instructions per operation of one worker, with as many workers as CPUs, and how often a cache line of \
                   the kernel moves between CPUs for an operation, at the most.";

fn headings(counts: &[u32]) -> Vec<String> {
    let mut headings = vec!["operation".to_owned(), String::new()];
    headings.extend(counts.iter().map(|cpus| format!("on {cpus}")));
    headings.push("growth".into());
    headings.extend(counts.iter().map(|cpus| format!("moves on {cpus}")));
    headings
}

fn cells(course: &Course<'_>, counts: &[u32]) -> Vec<String> {
    let mut cells = vec![course.first.row.to_owned(), course.first.side.to_owned()];
    cells.extend(counts.iter().map(|&cpus| course.show(cpus, |row| format!("{:.0}", row.instructions))));
    cells.push(format!("{:.2}", course.growth()));
    cells.extend(counts.iter().map(|&cpus| course.show(cpus, |row| format!("{:.1}", row.moves))));
    cells
}

fn summary(courses: &[Course<'_>], counts: &[u32]) -> String {
    let rows = core::iter::once(headings(counts)).chain(courses.iter().map(|course| cells(course, counts)));
    let mut text = format!("{HOW}\n\n{}", aligned(&rows.collect::<Vec<_>>(), |column| column > 1));
    let ours = || courses.iter().filter(|course| course.is_ours());
    for course in ours().filter(|course| !course.is_met()) {
        text.push_str(&format!("\n{}: lines move to\n", course.first.row));
        for SharedLines { function, data, moves } in &course.last().functions {
            let what = data.as_ref().map(|data| format!(" ({data})")).unwrap_or_default();
            text.push_str(&format!("{moves:>10}  {function}{what}\n"));
        }
    }
    let met = ours().filter(|course| course.is_met()).count();
    text.push_str(&format!(
        "\n{met} of {} operations cost at most {MOST_GROWTH} times as much on all CPUs and move at most {MOST_MOVES} lines\n",
        ours().count()
    ));
    text
}

fn page(courses: &[Course<'_>], counts: &[u32]) -> Page {
    let mut page = Page::new("What many CPUs cost each other", HOW);
    let ours: Vec<&Course<'_>> = courses.iter().filter(|course| course.is_ours()).collect();
    let met = ours.iter().filter(|course| course.is_met()).count();
    page.tiles(&[Tile {
        label: "operations that scale".into(),
        value: format!("{met} of {}", ours.len()),
        detail: format!(
            "at most {MOST_GROWTH} times one CPU's instructions and {MOST_MOVES} moved lines per operation"
        ),
        tone: if met == ours.len() { Tone::Good } else { Tone::Bad },
    }]);
    page.section("Question");
    page.text(EXPERIMENT.question);
    page.section("Answer");
    let headings = headings(counts);
    let column = |(at, heading): (usize, &String)| {
        if at < 2 { Column::text(heading) } else { Column::number(heading) }
    };
    let columns: Vec<Column> = headings.iter().enumerate().map(column).collect();
    let mut table = Table::new("", &columns);
    courses.iter().for_each(|course| table.row(cells(course, counts).into_iter().map(Cell::text)));
    page.table(&table);
    for ours in &ours {
        let axis = |label: &str| Axis::logarithmic(label, Unit::Number);
        let mut lines = Lines::new(ours.first.what, axis("CPUs"), axis("instructions"));
        for course in courses.iter().filter(|course| course.first.row == ours.first.row) {
            let points: Vec<(f64, f64)> =
                course.by_cpus.iter().map(|(&cpus, row)| (f64::from(cpus), row.instructions)).collect();
            lines.line(course.first.side, Shape::Straight, &points);
        }
        page.figure(&lines, "A level line: the CPUs do not slow each other down.");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(side: &KernelSide, cpus: u32, instructions: f64, moves: f64) -> ScalingRow {
        let function = SharedLines { function: "take_lock".into(), data: Some("LOCK".into()), moves: 7 };
        let functions = if moves > 0.0 { vec![function] } else { Vec::new() };
        let (_, row, what) = OPERATIONS[0];
        ScalingRow { side: side.name, row, what, cpus, instructions, moves, functions }
    }

    #[test]
    fn the_largest_number_of_cpus_is_judged_and_the_functions_are_named() {
        let few = [row(&FREEHOLD, 1, 100.0, 0.0), row(&FREEHOLD, 8, 110.0, 1.5), row(&LINUX, 1, 90.0, 0.0)];
        let found: Vec<Course<'_>> = courses(&few).collect();
        assert_eq!(found.len(), 2);
        assert!(found[0].is_met() && !summary(&found, &[1, 8]).contains("take_lock"));
        for (instructions, moves) in [(120.0, 1.0), (100.0, 3.0)] {
            let many = [row(&FREEHOLD, 1, 100.0, 0.0), row(&FREEHOLD, 8, instructions, moves)];
            let found: Vec<Course<'_>> = courses(&many).collect();
            let text = summary(&found, &[1, 8]);
            assert!(!found[0].is_met() && text.contains("take_lock (LOCK)"), "{text}");
            assert!(text.contains("0 of 1 operations"), "{text}");
        }
    }
}
