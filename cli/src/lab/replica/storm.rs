//! An exec storm: many short programs, each of which has an address space and so a root for each
//! node that runs it. Copies save little there, and their cost shows.
//!
//! All instructions are counted, the programs' and the kernel's. With a second node that has memory
//! and no CPU the runs repeat exactly. With a CPU on each node both run a storm at the same time,
//! and runs with copies and without alternate.

use std::ffi::OsString;

use serde::Serialize;

use super::{OFF, ON};
use crate::lab::{Extent, KernelSide};
use crate::progress::LabSteps;
use crate::scope::Digest;
use crate::statistics::{Estimate, Interval, paired_ratio};
use crate::{Result, args, scope};

/// A machine for the storm, and the limit of what copies may cost there.
struct StormMachine {
    name: &'static str,
    options: &'static [&'static str],
    /// Whether runs repeat exactly.
    is_counted: bool,
    /// Number of CPUs that run a storm each.
    cpus: usize,
    at_most: f64,
}

const MACHINES: [StormMachine; 2] = [
    StormMachine {
        name: "a second node has memory and no CPU",
        options: &["--icount", "--node", "mem=256M,cpus=0", "--node", "mem=256M"],
        is_counted: true,
        cpus: 1,
        at_most: 0.1,
    },
    StormMachine {
        name: "a storm on each of two nodes",
        options: &["--numa", "2", "--cpus", "2", "-m", "512M"],
        is_counted: false,
        cpus: 2,
        at_most: 1.3,
    },
];
const ROUNDS: usize = 10;

/// The cost of copies on one machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Storm {
    pub machine: &'static str,
    /// Instructions of each run with copies, and without.
    pub on: Vec<f64>,
    pub off: Vec<f64>,
    /// Instructions with copies, in percent more than without, and the 95% interval of that. Runs
    /// that repeat exactly have no interval: both ends are the value.
    pub percent: f64,
    pub low: f64,
    pub high: f64,
    pub too_few_runs: bool,
    /// The limit of the interval's upper end.
    pub at_most: f64,
    pub is_met: bool,
}

impl Storm {
    fn new(machine: &StormMachine, on: Vec<f64>, off: Vec<f64>) -> Self {
        let Estimate { value, interval } = paired_ratio(&on, &off);
        let interval = if machine.is_counted { Interval { low: value, high: value } } else { interval };
        let [percent, low, high] = [value, interval.low, interval.high].map(|ratio| 100.0 * (ratio - 1.0));
        let (at_most, too_few_runs) = (machine.at_most, interval.has_too_few_runs());
        let (machine, is_met) = (machine.name, high <= at_most);
        Self { machine, on, off, percent, low, high, too_few_runs, at_most, is_met }
    }
}

/// Runs the storms, until a signal ends the experiment; in a short run those that repeat exactly.
///
/// # Errors
/// Those of the microscope.
pub fn measure(extent: Extent, steps: &mut LabSteps) -> Result<Vec<Storm>> {
    let machines = || MACHINES.iter().filter(|machine| machine.is_counted || extent == Extent::Full);
    let rounds = |machine: &StormMachine| if machine.is_counted { 1 } else { ROUNDS };
    let turns = |machine: &StormMachine| -> Vec<(usize, KernelSide)> {
        // Each side is first in every second round.
        let sides = |round: usize| if round.is_multiple_of(2) { [ON, OFF] } else { [OFF, ON] };
        (0..rounds(machine)).flat_map(|round| sides(round).map(|side| (round, side))).collect()
    };
    let name = |machine: &StormMachine, round: usize, side: &KernelSide| {
        format!("exec storm, {}, {}, round {}", machine.name, side.name, round + 1)
    };
    for machine in machines() {
        steps.add(turns(machine).iter().map(|(round, side)| name(machine, *round, side)));
    }
    let mut storms = Vec::new();
    for machine in machines() {
        let (mut on, mut off) = (Vec::new(), Vec::new());
        for (round, side) in turns(machine) {
            let name = name(machine, round, &side);
            let Some(count) = steps.step(&name, &name, || instructions(machine, &side))? else { break };
            if side.name == ON.name { &mut on } else { &mut off }.push(count);
        }
        if on.len() == off.len() && !on.is_empty() {
            storms.push(Storm::new(machine, on, off));
        }
    }
    Ok(storms)
}

fn instructions(machine: &StormMachine, side: &KernelSide) -> Result<f64> {
    let (results, _) = scope::Measurement::prepare(&args::scope_options(&words(machine, side))?)?.run()?;
    let all = Digest::of(&results).total(|cpu| cpu.modes.user.instructions + cpu.modes.kernel.instructions);
    Ok(all as f64)
}

fn words(machine: &StormMachine, side: &KernelSide) -> Vec<OsString> {
    let storm = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); busybox true; done";
    let of_cpu = |cpu: usize| format!("busybox taskset {:x} busybox sh -c '{storm}' & ", 1 << cpu);
    let script = (0..machine.cpus).map(of_cpu).collect::<String>() + "wait";
    let how = ["--report", "never", "--model", "locality", "--kernel", side.kernel, "--append", side.append];
    // Whether a stack crosses a page would be a draw, of hundreds of faults.
    let alike = ["--append", "norandmaps"];
    let program = ["--", "busybox", "sh", "-c", &script];
    how.iter().chain(&alike).chain(machine.options).chain(&program).map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_end_of_the_interval_is_judged() {
        let several = &MACHINES[1];
        let calm = Storm::new(several, vec![101.0, 100.9, 101.1], vec![100.0, 100.0, 100.0]);
        assert!(calm.is_met && calm.low < calm.percent && calm.percent < calm.high, "{calm:?}");
        let spread = Storm::new(several, vec![103.0, 99.0, 101.0], vec![100.0, 100.0, 100.0]);
        assert!(!spread.is_met && (spread.percent - calm.percent).abs() < 0.1, "{spread:?}");
        // One pair of runs by the host's clock says nothing.
        let one = Storm::new(several, vec![100.0], vec![100.0]);
        assert!(!one.is_met && one.too_few_runs && !calm.too_few_runs, "{one:?}");
    }

    #[test]
    fn runs_that_repeat_exactly_have_no_spread() {
        let counted = &MACHINES[0];
        let storm = Storm::new(counted, vec![1_000_500.0], vec![1_000_000.0]);
        assert!(storm.is_met && storm.low == storm.high, "{storm:?}");
        assert!(!Storm::new(counted, vec![1_002_000.0], vec![1_000_000.0]).is_met);
    }
}
