//! Costs of operations on Freehold, on a lean Linux and on Linux as Debian boots it: the table of
//! `freehold bench`.

use super::{Experiment, Extent, Settings};
use crate::Result;
use crate::args::BenchOptions;
use crate::bench;

/// `freehold lab costs`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "costs",
    question: "How many instructions does an operation cost, on Freehold, a lean Linux and Debian's?",
    run,
};

/// Rows of a short run: one or two of each program.
const FEW: [&str; 7] = ["null-call", "read-4k", "fork-exit", "fault-4k", "cow-copy", "mmap-4k", "switch-2"];

fn run(settings: &Settings) -> Result<u8> {
    let (quick, names) = match settings.extent {
        Extent::Quick => (true, FEW.map(str::to_owned).to_vec()),
        Extent::Full => (false, Vec::new()),
    };
    let options = BenchOptions {
        quick,
        names,
        html: settings.html.clone(),
        json: settings.json.clone(),
        csv: settings.csv.clone(),
        ..BenchOptions::default()
    };
    bench::run(&options, "What an operation costs on three kernels")
}
