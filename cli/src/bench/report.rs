//! A comparison with its context: sides, settings, and conclusions.

use super::compare::{ComparedRow, Comparison, Difference, RowVerdict};
use super::measure::Measurements;
use super::plan::{Counter, Measure, Plan};
use crate::progress::partial_sentence;
use crate::qemu::{self, Clock, Engine};
use crate::size::show_size;
use crate::statistics::Estimate;

/// All parts of the report.
pub struct BenchReport<'a> {
    /// The plan of the measurement.
    pub plan: &'a Plan,
    /// The results.
    pub comparison: &'a Comparison,
    /// Kernel name and version of each side.
    pub versions: Vec<String>,
    /// Settings, by name.
    pub settings: Vec<(String, String)>,
}

impl<'a> BenchReport<'a> {
    /// Assembles the report.
    pub fn new(plan: &'a Plan, measured: &Measurements, comparison: &'a Comparison) -> BenchReport<'a> {
        let version = |side: &super::measure::Measured| side.version.clone().unwrap_or_else(|| "?".into());
        let versions: Vec<String> = measured.sides.iter().map(version).collect();
        let settings = settings(plan, &versions, comparison);
        BenchReport { plan, comparison, versions, settings }
    }

    /// Returns the headings of the sides.
    pub fn labels(&self) -> Vec<&str> {
        self.plan.sides.iter().map(|side| side.label.as_str()).collect()
    }

    /// Describes the unit of the figures and how to read the ratios.
    pub fn unit(&self) -> String {
        let first = &self.plan.sides[0].label;
        let what = match self.plan.measure {
            Measure::Instructions => "guest instructions per operation",
            Measure::Wall => "host time per operation",
        };
        format!("{what}; ratio = {first} ÷ other, below 1 is better")
    }

    /// Returns the conclusions from the figures, a sentence each.
    pub fn conclusions(&self) -> Vec<String> {
        let mut text: Vec<String> = self.partial().into_iter().collect();
        let lines = &self.comparison.lines;
        for (other, side) in self.plan.sides[1..].iter().enumerate() {
            let ratios: Vec<Estimate> = lines.iter().filter_map(|line| line.ratios[other]).collect();
            let (equal, sure): (Vec<Estimate>, Vec<Estimate>) =
                ratios.iter().partition(|ratio| ratio.interval.holds(1.0));
            let less = sure.iter().filter(|ratio| ratio.value < 1.0).count();
            text.push(format!(
                "against {}: {less} of {} rows cost less, {} cost more, {} are not distinguishable",
                side.label,
                ratios.len(),
                sure.len() - less,
                equal.len()
            ));
        }
        if self.plan.has_goals() {
            let of = |wanted: RowVerdict| -> Vec<String> {
                lines.iter().filter(|line| line.verdict() == Some(wanted)).map(ComparedRow::name).collect()
            };
            let (met, missed, open) = (of(RowVerdict::Met), of(RowVerdict::Missed), of(RowVerdict::Open));
            let judged = met.len() + missed.len() + open.len();
            let mut sentence =
                format!("goals against {}: {} of {judged} met", self.plan.sides[1].label, met.len());
            for (verdict, names) in [(RowVerdict::Missed, missed), (RowVerdict::Open, open)] {
                if !names.is_empty() {
                    sentence.push_str(&format!("; {}: {}", verdict.word(), names.join(", ")));
                }
            }
            text.push(sentence);
        }
        text.extend(self.repetition());
        text
    }

    /// Returns the sentence that marks a measurement that a signal ended.
    pub fn partial(&self) -> Option<String> {
        self.comparison.interrupted.map(partial_sentence)
    }

    /// Describes whether runs that should be equal are equal.
    pub fn repetition(&self) -> Option<String> {
        let runs = self.plan.extent.runs;
        if self.comparison.interrupted.is_some() {
            return None;
        }
        Some(match self.comparison.differences.as_deref()? {
            [] if runs == 2 => "both runs of every side agree to the instruction".into(),
            [] => format!("all {runs} runs of every side agree to the instruction"),
            differences => {
                let rows: Vec<String> = differences.iter().map(describe).collect();
                format!("runs that should be equal are not: {}", rows.join("; "))
            }
        })
    }
}

fn describe(difference: &Difference) -> String {
    let (first, other) = difference.units;
    format!("{} on {}: {first} and {other} instructions", difference.row, difference.side)
}

fn settings(plan: &Plan, versions: &[String], comparison: &Comparison) -> Vec<(String, String)> {
    let machine = &plan.sides[0].prepared.machine;
    let mut list: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, value: String| list.push((name.to_owned(), value));
    for (side, version) in plan.sides.iter().zip(versions) {
        let prepared = &side.prepared;
        let parameters = prepared.machine.parameters(prepared.kernel.family);
        let parameters = if parameters.is_empty() { "none".into() } else { parameters };
        add(&side.label, format!("{version}; parameters: {parameters}"));
    }
    let cpus = if machine.cpus == 1 { "1 CPU".into() } else { format!("{} CPUs", machine.cpus) };
    let engine = match plan.engine {
        Engine::Tcg => "TCG",
        Engine::Kvm => "KVM",
    };
    add(
        "machine",
        format!(
            "{}, {engine}, q35, -cpu {}, {cpus}, -m {}",
            emulator(),
            qemu::cpu(machine.clock),
            show_size(machine.memory)
        ),
    );
    let extent = plan.extent;
    add(
        "clock",
        match machine.clock {
            Clock::Instructions { seed } => format!(
                "-icount {} (1 ns is 1 instruction), -rtc {}, -seed {seed}; read from the TSC, its own cost taken off",
                qemu::ICOUNT,
                qemu::RTC,
            ),
            Clock::Real => "CLOCK_MONOTONIC in the guest, its own cost taken off".into(),
        },
    );
    watched(plan).into_iter().for_each(|(name, value)| add(name, value));
    let runs = if extent.runs == 1 { "1 run".into() } else { format!("{} runs, sides in turn", extent.runs) };
    let operations = match extent.divisor {
        1 => "all operations".to_owned(),
        divisor => format!("1/{divisor} of the operations"),
    };
    add(
        "repetition",
        format!("{runs}, {} samples of each row in a run, {operations} in a sample", extent.samples),
    );
    add("statistics", comparison.method.words());
    list
}

/// Returns settings that describe the rows counted by the microscope.
fn watched(plan: &Plan) -> Vec<(&'static str, String)> {
    let names = |counter| plan.keys(counter).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let (plain, behind_iommu) = (names(Counter::Microscope), names(Counter::BehindIommu));
    let mut said = Vec::new();
    if !behind_iommu.is_empty() {
        let rows = behind_iommu.join(", ");
        said.push((
            "IOMMU",
            format!("of {rows}: VT-d; our kernel's disks reach programs' pages in their places"),
        ));
    }
    let rows = [plain, behind_iommu].concat().join(", ");
    if !rows.is_empty() {
        let words = format!(
            "of what waits for a disk ({rows}): a clock would count the waiting, so a plugin of QEMU counts what is executed, without \
             -icount; the disk keeps nothing and answers after 1 ms, so who waits always sleeps"
        );
        said.push(("microscope", words));
    }
    said
}

/// Returns QEMU and its version, in the form of a report.
pub fn emulator() -> String {
    let line = qemu::program().and_then(|program| qemu::version::line(&program));
    line.map_or_else(
        |_| "QEMU of an unknown version".to_owned(),
        |line| line.replace("emulator version ", ""),
    )
}
