//! The options about tracepoints.

use std::path::PathBuf;

use clap::Args;

/// Options that choose the events to record while the program runs.
#[derive(Args, Clone, Debug, Default)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct EventOptions {
    /// Record these events of the kernel while the program runs, as set_event names them: for
    /// example 'sched:*,raw_syscalls:sys_enter'
    #[arg(long, value_name = "EVENTS", requires = "events_out", help_heading = "Outcome")]
    pub events: Option<String>,

    /// Write the events to FILE, in the JSON form of traces that ui.perfetto.dev opens
    #[arg(long, value_name = "FILE", requires = "events", help_heading = "Outcome")]
    pub events_out: Option<PathBuf>,

    /// Write a line for each system call, as strace does, to stderr or to FILE, while the program
    /// runs
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "/dev/stderr",
        conflicts_with = "events",
        help_heading = "Outcome"
    )]
    pub strace: Option<PathBuf>,
}
