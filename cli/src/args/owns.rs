//! Options of `freehold owns`, and of a run about owners of frames.

use std::path::PathBuf;

use clap::Args;

/// Options of `freehold owns`.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct OwnsOptions {
    /// A process of the VM (2), an address of it (2:0x401000), a frame (frame:499), or an address
    /// of the VM's memory (0x1f3000)
    #[arg(value_name = "PID|FRAME|ADDRESS", allow_hyphen_values = true)]
    pub what: String,

    /// The socket that freehold run --control made
    #[arg(long, value_name = "SOCKET", required_unless_present = "record")]
    pub vm: Option<PathBuf>,

    /// The record of a run with --owns: its answer at the program's end (- is stdin)
    #[arg(long, value_name = "FILE", conflicts_with = "vm")]
    pub record: Option<PathBuf>,

    /// Write the answer, for machines, to FILE (- is stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of a run about owners of frames.
#[derive(Args, Clone, Debug, Default)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct OwnerOptions {
    /// Answer freehold owns at SOCKET, a path, while the program runs
    #[arg(long, value_name = "SOCKET", help_heading = "Outcome")]
    pub control: Option<PathBuf>,

    /// Say what freehold owns would say when the program ends: 2 is the program, 2:0x401000 an
    /// address of it. May be repeated
    #[arg(long = "owns", value_name = "PID|FRAME|ADDRESS", help_heading = "Outcome")]
    pub at_end: Vec<String>,
}
