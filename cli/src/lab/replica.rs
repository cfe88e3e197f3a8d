//! `freehold lab replica`: the value of a copy of the kernel's text on each node. (Kuzin, "x86:
//! kernel text replication", RFC of December 2023: its readers asked for the calls that gain and
//! lose.)
//!
//! One program (guest/workloads/node-calls.c) makes calls on a CPU of the last node, with warm and
//! with cold caches, under the microscope. The kernel's image lies on node 0 (no KASLR), so without
//! copies all kernel code comes from another node, as on a stock Linux. Instructions and fetches
//! are counted. Lines count as missed if the modelled caches do not have them.
//!
//! **Modelled time** is not measured: an instruction takes 1, a line from the own node [`LOCAL`], a
//! line from another node that value times the remote factor; nothing overlaps. A real CPU
//! prefetches, which makes remote text cheaper than here. The break-even is the factor from which
//! copies cost no more than they save.
//!
//! An exec storm (`replica/storm.rs`) shows what copies cost where they save little.

use std::ffi::OsString;

use freehold_scope_record::Results;
use serde::Serialize;

use super::{Experiment, Extent, KernelSide, MISSED, Settings};
use crate::bench::table::aligned;
use crate::failure::Failure;
use crate::html::{Axis, Bar, Bars, Cell, Column, Page, Table, Tile, Tone, Unit};
use crate::progress::LabSteps;
use crate::schema::LabHead;
use crate::statistics::Interval;
use crate::{Result, args, kernel, scope};

mod storm;
use storm::Storm;

/// The experiment's entry in the list.
pub const EXPERIMENT: Experiment = Experiment {
    name: "replica",
    question: "What does a copy of the kernel's text on each node save, and what does it cost?",
    run,
};

const PROGRAM: &str = "guest/workloads/node-calls";
const GUEST_PROGRAM: &str = "/node-calls";
/// Larger than all modelled caches of a CPU.
const EVICTED_BYTES: &str = "4194304";
/// The time of a line from the own node's memory, in instructions: 80 ns at 2.5 GHz.
const LOCAL: f64 = 200.0;
/// The time of a line from another node, as a multiple of that: next socket, two sockets on, far
/// memory.
const FACTORS: [f64; 3] = [1.4, 2.0, 3.0];

const ON: KernelSide = KernelSide { name: "on", kernel: "freehold", append: "nokaslr numa_replica=on" };
const OFF: KernelSide = KernelSide { name: "off", kernel: "freehold", append: "nokaslr numa_replica=off" };
const LINUX: KernelSide = KernelSide { name: "Linux 6.1", kernel: "linux", append: "nokaslr" };

/// The kernel's work for one call on one side: means of all calls of the row, on the CPU that made
/// them.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct ReplicaRow {
    nodes: usize,
    call: String,
    side: &'static str,
    times: u64,
    instructions: f64,
    /// Instructions that were fetched from another node.
    remote: f64,
    /// Lines of instructions and of data that no cache had, on the own node and on others.
    local_misses: f64,
    remote_misses: f64,
}

impl ReplicaRow {
    /// Returns the modelled time, in instructions.
    fn time(&self, factor: f64) -> f64 {
        self.instructions + LOCAL * (self.local_misses + factor * self.remote_misses)
    }

    fn remote_percent(&self) -> f64 {
        100.0 * self.remote / self.instructions.max(1.0)
    }
}

/// A row with copies and without.
struct Pair<'a> {
    on: &'a ReplicaRow,
    off: &'a ReplicaRow,
    linux: Option<&'a ReplicaRow>,
}

impl Pair<'_> {
    fn ratio(&self, factor: f64) -> f64 {
        self.on.time(factor) / self.off.time(factor)
    }

    /// Returns the remote factor from which the modelled time with copies is no longer than
    /// without; `None` if there is none.
    fn break_even(&self) -> Option<f64> {
        let saved = self.off.remote_misses - self.on.remote_misses;
        let more = (self.on.instructions - self.off.instructions) / LOCAL + self.on.local_misses
            - self.off.local_misses;
        if saved <= 0.0 { (more <= 0.0).then_some(1.0) } else { Some((more / saved).max(1.0)) }
    }

    fn show_break_even(&self) -> String {
        self.break_even().map_or("never".into(), |factor| format!("{factor:.2}"))
    }
}

#[derive(Serialize)]
struct ReplicaRecord<'a> {
    #[serde(flatten)]
    head: LabHead,
    local_instructions: f64,
    factors: [f64; 3],
    rows: &'a [ReplicaRow],
    storms: &'a [Storm],
}

fn run(settings: &Settings) -> Result<u8> {
    let (sides, sizes, times): (&[KernelSide], &[usize], u64) = match settings.extent {
        Extent::Full => (&[ON, OFF, LINUX], &[2, 4], 100),
        Extent::Quick => (&[ON, OFF], &[2], 10),
    };
    let program = kernel::installed(PROGRAM)
        .ok_or_else(|| Failure::new(format!("{PROGRAM} is missing"), "make build makes it"))?;
    let mut volume = program.into_os_string();
    volume.push(":");
    volume.push(GUEST_PROGRAM);
    let mut rows = Vec::new();
    let name = |nodes: usize, side: &KernelSide| format!("{nodes} nodes, {}", side.name);
    let mut steps =
        LabSteps::new(sizes.iter().flat_map(|&nodes| sides.iter().map(move |side| name(nodes, side))))?;
    for &nodes in sizes {
        for side in sides {
            let words = words(side, nodes, times, &volume);
            let name = name(nodes, side);
            let measure = || scope::Measurement::prepare(&args::scope_options(&words)?)?.run();
            let Some((results, output)) = steps.step(&name, &name, measure)? else { break };
            rows.extend(rows_of(side.name, nodes, &results, &String::from_utf8_lossy(&output))?);
        }
    }
    let storms = storm::measure(settings.extent, &mut steps)?;
    let ended_by = steps.end()?;
    let record = ReplicaRecord {
        head: LabHead::of(EXPERIMENT.name, ended_by),
        local_instructions: LOCAL,
        factors: FACTORS,
        rows: &rows,
        storms: &storms,
    };
    settings.write_record(&record)?;
    settings.write_page(|| page(&rows, &storms), ended_by)?;
    let is_met = storms.iter().all(|storm| storm.is_met);
    settings.conclude(&summary(&rows, &storms), ended_by, if is_met { 0 } else { MISSED })
}

fn words(side: &KernelSide, nodes: usize, times: u64, volume: &OsString) -> Vec<OsString> {
    let (count, last) = (nodes.to_string(), (nodes - 1).to_string());
    let mut words: Vec<OsString> = ["--report", "never", "-m", "512M", "--model", "cache", "--kernel"]
        .iter()
        .chain(&[side.kernel, "--append", side.append, "--cpus", &count, "--numa", &count, "--volume"])
        .map(OsString::from)
        .collect();
    words.push(volume.clone());
    let program = ["--", GUEST_PROGRAM, &last, EVICTED_BYTES, &times.to_string()].map(OsString::from);
    words.extend(program);
    words
}

/// Returns the rows that the program names in `output`, each a phase.
fn rows_of(side: &'static str, nodes: usize, results: &Results, output: &str) -> Result<Vec<ReplicaRow>> {
    let cpu = nodes - 1;
    let home = results.settings.cpus.get(cpu).copied().unwrap_or(0);
    let split = |by_node: &[u64]| {
        let local = by_node.get(home).copied().unwrap_or(0);
        (local, by_node.iter().sum::<u64>() - local)
    };
    let row = |line: &str| {
        let (call, times) = line.strip_prefix("row ")?.rsplit_once(' ')?;
        let times: u64 = times.parse().ok().filter(|&times| times > 0)?;
        let phase = results.phases.iter().find(|phase| phase.name == call)?;
        let kernel = &phase.cpus.get(cpu)?.modes.kernel;
        let each = |count: u64| count as f64 / times as f64;
        let ((_, remote), code, data) =
            (split(&kernel.fetches), split(&kernel.fetch_misses), split(&kernel.data_misses));
        Some(ReplicaRow {
            nodes,
            call: call.to_owned(),
            side,
            times,
            instructions: each(kernel.instructions),
            remote: each(remote),
            local_misses: each(code.0 + data.0),
            remote_misses: each(code.1 + data.1),
        })
    };
    let rows: Vec<ReplicaRow> = output.lines().filter_map(row).collect();
    if rows.is_empty() || rows.len() != output.lines().count() {
        return Err(Failure::new(format!("{side}: not all calls were seen: {output}"), ""));
    }
    Ok(rows)
}

/// Returns each row with copies together with the same call's row without copies.
fn pairs(rows: &[ReplicaRow]) -> impl Iterator<Item = Pair<'_>> {
    rows.iter().filter(|row| row.side == ON.name).filter_map(|on| {
        let other = |side: &KernelSide| {
            rows.iter().find(|row| (row.nodes, &row.call, row.side) == (on.nodes, &on.call, side.name))
        };
        Some(Pair { on, off: other(&OFF)?, linux: other(&LINUX) })
    })
}

const HEADINGS: [&str; 9] = [
    "call",
    "instructions: on",
    "off",
    "Linux 6.1",
    "remote code: on / off / Linux",
    "time on/off at 1.4",
    "at 2",
    "at 3",
    "break-even",
];

fn cells(pair: &Pair<'_>) -> [String; 9] {
    let (on, off) = (pair.on, pair.off);
    let linux = |show: &dyn Fn(&ReplicaRow) -> String| pair.linux.map_or("–".into(), show);
    let ratio = |factor: f64| format!("{:.3}", pair.ratio(factor));
    [
        format!("{} nodes, {}", on.nodes, on.call),
        format!("{:.0}", on.instructions),
        format!("{:.0}", off.instructions),
        linux(&|row| format!("{:.0}", row.instructions)),
        format!(
            "{:.2}% / {:.2}% / {}",
            on.remote_percent(),
            off.remote_percent(),
            linux(&|row| format!("{:.2}%", row.remote_percent()))
        ),
        ratio(FACTORS[0]),
        ratio(FACTORS[1]),
        ratio(FACTORS[2]),
        pair.show_break_even(),
    ]
}

const HOW: &str = "Kernel work for one call on a CPU of the last node; the image lies on node 0. Time is modelled: an instruction is 1, a line from \
                   the own node 200, from another that times the remote factor, nothing overlaps.";

/// The columns of the exec storms.
const STORM_HEADINGS: [&str; 5] =
    ["exec storm: instructions with copies over those without", "%", "95% interval", "at most", ""];

fn storm_cells(storm: &Storm) -> [String; 5] {
    [
        storm.machine.into(),
        format!("{:+.3}", storm.percent),
        Interval { low: storm.low, high: storm.high }.show(" to ", |end| format!("{end:+.2}")),
        format!("{:+.1}", storm.at_most),
        if storm.is_met { "met" } else { "missed" }.into(),
    ]
}

fn summary(rows: &[ReplicaRow], storms: &[Storm]) -> String {
    let calls = core::iter::once(HEADINGS.map(String::from)).chain(pairs(rows).map(|pair| cells(&pair)));
    let storms = core::iter::once(STORM_HEADINGS.map(String::from)).chain(storms.iter().map(storm_cells));
    let (calls, storms): (Vec<_>, Vec<_>) = (calls.collect(), storms.collect());
    format!("{HOW}\n\n{}\n{}", aligned(&calls, |column| column > 0), aligned(&storms, |column| column > 0))
}

fn page(rows: &[ReplicaRow], storms: &[Storm]) -> Page {
    let mut page = Page::new("The kernel's text on each node", HOW);
    let worst = |caches: &str, factor: f64| {
        pairs(rows)
            .filter(|pair| pair.on.call.ends_with(caches))
            .map(|pair| pair.ratio(factor))
            .fold(0.0, f64::max)
    };
    let tiles = ["hot", "cold"].map(|caches| Tile {
        label: format!("{caches} caches"),
        value: format!("{:.3}", worst(caches, FACTORS[0])),
        detail: "the worst row: modelled time with copies over without, remote factor 1.4".into(),
        tone: if worst(caches, FACTORS[0]) <= 1.0 { Tone::Good } else { Tone::Warning },
    });
    page.tiles(&tiles);
    page.section("Question");
    page.text(EXPERIMENT.question);
    page.section("Answer");
    let names: Vec<String> = FACTORS.iter().map(|factor| format!("factor {factor}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bars = Bars::new(
        "Modelled time with copies, over that without",
        Axis::linear("times", Unit::Number),
        &names,
    );
    let columns = |headings: &[&'static str]| -> Vec<Column> {
        let column = |(at, heading)| if at == 0 { Column::text(heading) } else { Column::number(heading) };
        headings.iter().copied().enumerate().map(column).collect()
    };
    let mut table = Table::new("", &columns(&HEADINGS));
    for pair in pairs(rows) {
        let bar = |factor: f64| Some(Bar::exact(pair.ratio(factor)));
        bars.group(&format!("{} nodes, {}", pair.on.nodes, pair.on.call), &FACTORS.map(bar));
        table.row(cells(&pair).map(Cell::text));
    }
    bars.reference(1.0, "without");
    page.figure(&bars, "Shorter is better.");
    page.table(&table);
    page.section("The cost where copies save little");
    page.text("Each program of an exec storm is an address space, with a root for each node that runs it. All instructions are counted.");
    let mut costs = Table::new("", &columns(&STORM_HEADINGS));
    storms.iter().for_each(|storm| costs.row(storm_cells(storm).map(Cell::text)));
    page.table(&costs);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(side: &'static str, instructions: f64, misses: (f64, f64)) -> ReplicaRow {
        let (local_misses, remote_misses) = misses;
        let remote = if remote_misses > 0.0 { instructions } else { 0.0 };
        ReplicaRow {
            nodes: 2,
            call: "a cold".into(),
            side,
            times: 1,
            instructions,
            remote,
            local_misses,
            remote_misses,
        }
    }

    #[test]
    fn time_and_break_even_are_those_of_the_model() {
        let rows = [row("on", 1200.0, (10.0, 0.0)), row("off", 1000.0, (0.0, 10.0))];
        let pair = pairs(&rows).next().expect("a pair");
        assert_eq!((pair.on.time(1.4), pair.off.time(2.0)), (3200.0, 5000.0));
        assert_eq!(pair.break_even(), Some(1.1));
        assert_eq!(pair.on.time(1.1), pair.off.time(1.1));
        assert_eq!((pair.on.remote_percent(), pair.off.remote_percent()), (0.0, 100.0));
        // If nothing is saved, copies pay off at once or never.
        let rows = [row("on", 1200.0, (5.0, 0.0)), row("off", 1000.0, (5.0, 0.0))];
        assert_eq!(pairs(&rows).next().expect("a pair").show_break_even(), "never");
        let rows = [row("on", 1000.0, (5.0, 0.0)), row("off", 1000.0, (5.0, 0.0))];
        assert_eq!(pairs(&rows).next().expect("a pair").break_even(), Some(1.0));
    }

    #[test]
    fn a_row_is_shown_beside_its_counterparts() {
        let rows = [
            row("on", 1000.0, (10.0, 0.0)),
            row("off", 1000.0, (0.0, 10.0)),
            row("Linux 6.1", 900.0, (0.0, 9.0)),
        ];
        let text = summary(&rows, &[]);
        assert!(text.contains("2 nodes, a cold") && text.contains("0.00% / 100.00% / 100.00%"), "{text}");
        assert_eq!(text.lines().count(), 6, "{text}");
    }
}
