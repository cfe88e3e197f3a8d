//! The options about the network.

use clap::{Args, ValueEnum};

/// The network that the VM reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum NetworkMode {
    /// Nothing
    None,
    /// What this machine's user reaches
    User,
}

/// Options that connect the VM to a network.
#[derive(Args, Clone, Debug, Default)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct NetworkOptions {
    /// Give the VM a network: user reaches whatever this user reaches, services on this machine's
    /// loopback among them (as 10.0.2.2) [default: none]
    #[arg(long, value_enum, value_name = "none|user", help_heading = "Network")]
    pub net: Option<NetworkMode>,

    /// Forward a port of this machine (of 127.0.0.1 unless ADDR is given) to one of the VM; alone,
    /// it lets the VM reach nothing else
    #[arg(short = 'p', long, value_name = "[ADDR:]HOST:GUEST[/udp]", help_heading = "Network")]
    pub publish: Vec<String>,
}
