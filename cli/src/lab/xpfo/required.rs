//! Figures with a limit: the largest cost of exclusion, and the longest time that it may leave a
//! window cached.

use serde::Serialize;

use super::{DEFAULT, XpfoRecord, XpfoRow};

/// A figure with its limit.
#[derive(Debug, PartialEq, Serialize)]
pub struct RequiredFigure {
    pub name: String,
    pub unit: &'static str,
    pub measured: f64,
    pub at_most: f64,
    pub is_met: bool,
}

impl RequiredFigure {
    fn new(name: impl Into<String>, unit: &'static str, measured: f64, at_most: f64) -> Self {
        // A figure that is no number is missed.
        Self { name: name.into(), unit, measured, at_most, is_met: measured <= at_most }
    }
}

/// Instructions of all kinds over those under `off`, in percent.
const OVERHEAD: [(&str, f64); 5] =
    [("gcc -O1", 0.02), ("shell", 0.35), ("exec storm", 0.3), ("tar, gzip -1", 0.05), ("sqlite", 0.1)];
/// Instructions over those under `off`, as a ratio.
const OPERATIONS: [(&str, f64); 4] =
    [("cow-copy", 1.06), ("fault-4k", 1.035), ("read-4k", 1.03), ("fault-2m", 1.01)];
/// The workload whose modelled walks have a limit, and that limit.
const WALKS: (&str, f64) = ("shell", 1.15);
/// Translations of the kernel half for each window.
const FILLS: f64 = 1.05;
const WINDOW: f64 = 36.0;
/// Nanoseconds of a machine that runs an instruction in each.
const LIFE: f64 = 4e6;
/// Instructions of the CPU itself, if each window is flushed as it closes: INVLPG follows the store
/// this closely. Other CPUs go on meanwhile, for as long as the host likes.
const LIFE_STRICT: f64 = 16.0;
const CHECK: f64 = 1e6;

/// Whether this workload's instructions over those under `off` have a limit.
pub fn has_limit(workload: &str) -> bool {
    OVERHEAD.iter().any(|(name, _)| *name == workload)
}

/// Returns all figures that the record has, with their limits.
pub fn figures(record: &XpfoRecord) -> Vec<RequiredFigure> {
    let mut figures = Vec::new();
    for row in &record.rows {
        workload(record, row, &mut figures);
    }
    for cost in &record.operations {
        let limit = OPERATIONS.iter().find(|(name, _)| *name == cost.name);
        figures.extend(limit.map(|&(name, limit)| {
            RequiredFigure::new(format!("{name}, over off"), "times", cost.on / cost.off, limit)
        }));
    }
    for cost in &record.window {
        let name = format!("a window ({})", cost.row);
        figures.push(RequiredFigure::new(name, "instructions", cost.instructions, WINDOW));
    }
    if let Some(leaving) = &record.leaving {
        let name = format!("{} CPUs, {} pageblocks left the map", leaving.cpus, leaving.left);
        // If no pageblock left, there is nothing to compare with the limit.
        let flushes = if leaving.left == 0 { f64::NAN } else { leaving.full_flushes as f64 };
        figures.push(RequiredFigure::new(name, "full flushes", flushes, 0.0));
    }
    for cost in &record.check {
        let name = format!("check of the map, {} GiB", cost.gib);
        // A check without a cost was not measured.
        let each = if cost.instructions == 0 { f64::NAN } else { cost.instructions as f64 / cost.gib as f64 };
        figures.push(RequiredFigure::new(name, "instructions per GiB", each, CHECK));
    }
    figures
}

/// Adds the figures of a workload under one policy.
fn workload(record: &XpfoRecord, row: &XpfoRow, figures: &mut Vec<RequiredFigure>) {
    let mut add = |what: &str, unit: &'static str, measured: f64, at_most: f64| {
        let name = format!("{}, {}: {what}", row.workload, row.policy);
        figures.push(RequiredFigure::new(name, unit, measured, at_most));
    };
    if row.policy == DEFAULT {
        let limit = OVERHEAD.iter().find(|(name, _)| *name == row.workload);
        if let (Some((_, limit)), Some((_, all))) = (limit, record.overhead(row)) {
            add("instructions over off", "%", all, *limit);
        }
        if row.workload == WALKS.0 {
            if let Some(off) = record.base_of(row) {
                let walks = row.walks as f64 / off.walks.max(1) as f64;
                add("modelled walks over off", "times", walks, WALKS.1);
            }
            if let Some(fills) = record.fills_a_window(row) {
                add("translations of the kernel half a window", "", fills, FILLS);
            }
        }
    }
    let (longest, unit, at_most) = match row.policy {
        DEFAULT => (row.longest_closed, "ns", LIFE),
        "strict" => (row.longest_closed_own, "instructions", LIFE_STRICT),
        _ => return,
    };
    add("longest life of a closed window", unit, longest as f64, at_most);
    add("closed windows cached while the CPU halts", "", row.closed_at_halts as f64, 0.0);
    if let Some(frames) = row.residue_frames {
        add("frames with bytes of an ended program in the map", "", frames as f64, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::measures::{CheckCost, Leaving, OperationCost, WindowCost};
    use super::super::{EXPERIMENT, row};
    use super::*;
    use crate::scope::sample;

    fn measured(policy: &'static str, change: impl FnOnce(&mut XpfoRow)) -> XpfoRow {
        let mut row = row("shell", policy, "skylake-sp", &sample());
        change(&mut row);
        row
    }
    fn missed(record: &XpfoRecord) -> Vec<String> {
        figures(record).into_iter().filter(|figure| !figure.is_met).map(|figure| figure.name).collect()
    }

    #[test]
    fn a_figure_at_its_limit_is_met_and_one_above_or_unknown_is_missed() {
        let is_met = |measured| RequiredFigure::new("x", "", measured, 2.0).is_met;
        assert!(is_met(2.0) && is_met(-1.0));
        assert!(!is_met(2.01) && !is_met(f64::NAN) && !is_met(f64::INFINITY));
    }

    #[test]
    fn each_limit_of_a_workload_is_missed_by_the_row_that_breaks_it() {
        let good = |row: &mut XpfoRow| (row.closed_at_halts, row.residue_frames) = (0, Some(0));
        let record = |change: fn(&mut XpfoRow)| {
            let mut record = XpfoRecord::new(EXPERIMENT.name);
            let off = measured("off", |row| (row.windows, row.kernel_fills) = (0, 0));
            let on = measured(DEFAULT, |row| {
                good(row);
                row.kernel_fills = row.windows;
                change(row);
            });
            record.rows = vec![off, on];
            missed(&record)
        };
        assert_eq!(record(|_| {}), [""; 0]);
        assert_eq!(record(|row| row.user_instructions *= 2), ["shell, on: instructions over off"]);
        assert_eq!(record(|row| row.walks *= 2), ["shell, on: modelled walks over off"]);
        assert_eq!(
            record(|row| row.kernel_fills *= 2),
            ["shell, on: translations of the kernel half a window"]
        );
        assert_eq!(
            record(|row| row.longest_closed = 4_000_001),
            ["shell, on: longest life of a closed window"]
        );
        assert_eq!(
            record(|row| row.closed_at_halts = 1),
            ["shell, on: closed windows cached while the CPU halts"]
        );
        assert_eq!(
            record(|row| row.residue_frames = Some(1)),
            ["shell, on: frames with bytes of an ended program in the map"]
        );
    }

    #[test]
    fn under_strict_the_cpus_own_instructions_count() {
        let mut record = XpfoRecord::new(EXPERIMENT.name);
        let change = |row: &mut XpfoRow| {
            (row.closed_at_halts, row.residue_frames) = (0, None);
            (row.longest_closed, row.longest_closed_own) = (1_000_000, 16);
        };
        record.rows = vec![measured("strict", change)];
        assert_eq!(missed(&record), [""; 0]);
        record.rows[0].longest_closed_own = 17;
        assert_eq!(missed(&record), ["shell, strict: longest life of a closed window"]);
    }

    #[test]
    fn each_other_limit_is_missed_by_the_measurement_that_breaks_it() {
        let mut record = XpfoRecord::new(EXPERIMENT.name);
        record.operations = vec![OperationCost { name: "read-4k", on: 104.0, off: 100.0 }];
        record.window = vec![WindowCost { row: "read-4k", windows: 1.0, instructions: 37.0 }];
        record.leaving = Some(Leaving { cpus: 4, left: 3, full_flushes: 2, ..Leaving::default() });
        record.check =
            vec![CheckCost { gib: 1, instructions: 0 }, CheckCost { gib: 3, instructions: 3_000_003 }];
        let all = figures(&record);
        assert_eq!((all.len(), missed(&record).len()), (5, 5));
        record.operations[0].on = 103.0;
        record.window[0].instructions = 36.0;
        record.leaving = Some(Leaving { cpus: 4, left: 3, ..Leaving::default() });
        (record.check[0].instructions, record.check[1].instructions) = (1_000_000, 3_000_000);
        assert_eq!(missed(&record), [""; 0]);
        // No pageblock left: nothing was shown.
        record.leaving = Some(Leaving::default());
        assert_eq!(missed(&record).len(), 1);
    }
}
