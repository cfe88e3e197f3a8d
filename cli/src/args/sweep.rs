//! Options of `freehold sweep`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Where the runs of a sweep are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SweepRunner {
    /// Here, --jobs at a time
    Local,
    /// In a job array of Slurm
    Slurm,
    /// In an indexed Job of Kubernetes
    Kubernetes,
    /// In tasks of Ray
    Ray,
}

/// Options of `freehold sweep`.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct SweepOptions {
    /// The sweep: kernels, parameters, programs, seeds and machines
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The folder of the results [default: FILE without .toml]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Where the runs are made
    #[arg(long, value_enum, default_value = "local")]
    pub runner: SweepRunner,

    /// How many runs at a time [default: the host's CPUs]
    #[arg(long, value_name = "N")]
    pub jobs: Option<String>,

    /// Write the runner's files and stop: submit nothing
    #[arg(long)]
    pub write_only: bool,

    /// Name the runs with their numbers and stop
    #[arg(long)]
    pub list: bool,

    /// Make run N, if it is not made, and stop: for the jobs of a runner
    #[arg(long, value_name = "N", conflicts_with = "list")]
    pub run: Option<usize>,

    /// Make no run: merge what is there
    #[arg(long, conflicts_with_all = ["list", "run"])]
    pub merge: bool,

    /// Write a report to look at: one file, no network
    #[arg(long, value_name = "FILE", help_heading = "Outcome")]
    pub html: Option<PathBuf>,

    /// Write a line for each run, for spreadsheets, to FILE (- is stdout)
    #[arg(long, value_name = "FILE", help_heading = "Outcome")]
    pub csv: Option<PathBuf>,
}
