//! The options about container images.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// A container image that is run.
#[derive(Args, Clone, Debug, Default)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct ContainerOptions {
    /// Run a container image: an archive of docker save or podman save, or an OCI layout. Program,
    /// environment, user and working directory are the image's; PROGRAM and its arguments replace
    /// its Cmd; -e, --cwd and --user (also by name) change them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["root", "sealed"], help_heading = "Container image")]
    pub image: Option<PathBuf>,

    /// Run PROG instead of the image's entrypoint and Cmd, with the arguments behind --
    #[arg(long, value_name = "PROG", requires = "image", help_heading = "Container image")]
    pub entrypoint: Option<OsString>,
}
