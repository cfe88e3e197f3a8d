//! Options of `freehold scope` and `freehold coverage`.

use std::path::PathBuf;

use clap::Args;

use super::RunOptions;

/// Options of `freehold scope`.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct ScopeOptions {
    #[command(flatten)]
    pub run: RunOptions,

    /// What to model besides counts and locality: cache, tlb, heat (with commas between), all or
    /// locality. What all leaves out: residue follows programs' bytes until something is stored
    /// over them; sharing counts how often lines of the kernel move from one CPU to another
    #[arg(long, value_name = "MODELS", default_value = "all", help_heading = "Microscope")]
    pub model: String,

    /// Each CPU's last-level cache
    #[arg(long, value_name = "SIZE,WAYS", default_value = "2M,16", help_heading = "Microscope")]
    pub llc: String,

    /// Each CPU's TLBs: skylake-sp, ice-lake, zen4, zen5, or ENTRIES/WAYS of data, instructions,
    /// second level: 64/4,128/8,1536/12; behind it :plru for pseudo-LRU in the second level
    #[arg(long, value_name = "TLB", default_value = "skylake-sp", help_heading = "Microscope")]
    pub tlb: String,

    /// Print a row for every phase, those of the start included
    #[arg(long, help_heading = "Microscope")]
    pub phase_rows: bool,

    /// Take the kernel's symbols from this ELF file
    #[arg(long, value_name = "ELF", help_heading = "Microscope")]
    pub symbols: Option<PathBuf>,

    /// Do not judge the kernel's memory isolation
    #[arg(long, help_heading = "Microscope")]
    pub no_oracle: bool,

    /// Write a report to look at: one file, no network
    #[arg(long, value_name = "FILE", help_heading = "Outcome")]
    pub html: Option<PathBuf>,

    /// Write page heat as a record that `damo report` reads
    #[arg(long, value_name = "FILE", help_heading = "Outcome")]
    pub damo: Option<PathBuf>,

    /// Add the kernel's code that ran to the record FILE, and watch nothing else: nearly as fast as
    /// a plain run
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Outcome",
        conflicts_with_all = ["model", "llc", "tlb", "phase_rows", "symbols", "no_oracle", "html", "damo", "json"]
    )]
    pub coverage: Option<PathBuf>,
}

/// Options of `freehold coverage`.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct CoverageOptions {
    /// Records of one kernel, which are joined
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Name every function that never ran
    #[arg(long)]
    pub all: bool,

    /// Fail where less than PERCENT of the code ran
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, value_parser = clap::value_parser!(u8).range(..=100))]
    pub least: Option<u8>,

    /// Write a report to look at: one file, no network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write the records, joined, to FILE
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a line for each function, for spreadsheets, to FILE (- is stdout)
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}
