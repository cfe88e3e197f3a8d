//! Options of `freehold owns`.

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
    #[arg(long, value_name = "SOCKET")]
    pub vm: PathBuf,

    /// Write the answer, for machines, to FILE (- is stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
