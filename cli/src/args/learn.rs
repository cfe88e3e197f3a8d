//! The options about the files that a run used.

use std::path::PathBuf;

use clap::Args;

/// Options that write down or give the files of a run.
#[derive(Args, Clone, Debug, Default)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct LearnOptions {
    /// Write down in FILE which files of the host the run used, for --files-from
    #[arg(long, value_name = "FILE", conflicts_with = "image", help_heading = "Files and environment")]
    pub learn: Option<PathBuf>,

    /// Add copies of the files that FILE names, one a line, as --learn writes it: with --sealed the
    /// VM has what an earlier run used, and nothing else
    #[arg(long, value_name = "FILE", conflicts_with = "image", help_heading = "Files and environment")]
    pub files_from: Option<PathBuf>,
}
