//! Values that clap has no parser for.

/// Parses a TCP port, as `--gdb` takes it.
pub fn port(text: &str) -> std::result::Result<u16, &'static str> {
    text.parse().ok().filter(|&port| port > 0).ok_or("a port is a number of 1 to 65535")
}

/// Parses the value of `--numa-replica`.
pub fn numa_replica(text: &str) -> std::result::Result<String, &'static str> {
    let is_known = ["auto", "on", "off"].contains(&text) || text.parse::<u8>().is_ok();
    if is_known { Ok(text.into()) } else { Err("it can be auto, on, off or a number of nodes") }
}
