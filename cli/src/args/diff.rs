//! Options of `freehold diff`.

use std::path::PathBuf;

use clap::Args;

/// Options of `freehold diff`.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct DiffOptions {
    /// The record to compare with (- is stdin)
    #[arg(value_name = "A.json")]
    pub a: PathBuf,

    /// The record that is judged (- is stdin)
    #[arg(value_name = "B.json")]
    pub b: PathBuf,

    /// A row of bench that costs at most PERCENT more is no regression; figures of other records
    /// that differ by at most PERCENT are not shown, unless both counted instructions
    #[arg(long, value_name = "PERCENT", default_value = "1", allow_hyphen_values = true)]
    pub threshold: String,

    /// Write all that was compared, for machines, to FILE (- is stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a line for each figure, for spreadsheets, to FILE (- is stdout)
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}
