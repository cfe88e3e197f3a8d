//! What an operation costs on Freehold, on a lean Linux and on Linux as Debian boots it: the table of `freehold bench`.

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

fn run(settings: &Settings) -> Result<u8> {
    let options = BenchOptions {
        quick: settings.extent == Extent::Quick,
        html: settings.html.clone(),
        json: settings.json.clone(),
        ..BenchOptions::default()
    };
    bench::run(&options, "What an operation costs on three kernels")
}
