//! Where a page comes from: date, host, its load, kernel and command line.

use std::ffi::OsStr;
use std::fs::read_to_string;
use std::time::SystemTime;

use crate::dry_run::quote;
use crate::{kernel, schema};

/// Returns names and values. A value that the host does not tell is left out.
pub fn origin() -> Vec<(String, String)> {
    let words: Vec<String> = std::env::args_os().skip(1).map(|word| quote(&word)).collect();
    let build = kernel::own_kernel().ok().and_then(|path| schema::build(&path));
    let facts = [
        ("command", Some(format!("freehold {}", words.join(" ")))),
        ("date", Some(humantime::format_rfc3339_seconds(SystemTime::now()).to_string())),
        ("host", host()),
        ("load of the host at the end (1, 5, 15 minutes)", load()),
        ("build of Freehold's kernel (SHA-256)", build),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Returns model and number of the host's CPUs, and its kernel.
fn host() -> Option<String> {
    let cpus = read_to_string("/proc/cpuinfo").ok()?;
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "))?.1.to_owned();
    let count = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let release = read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(format!("{model}, {count} CPUs, Linux {}", release.trim_end()))
}

fn load() -> Option<String> {
    let text = read_to_string("/proc/loadavg").ok()?;
    Some(text.split(' ').take(3).collect::<Vec<_>>().join(", "))
}

/// Returns words as a shell takes them.
pub fn command_line(words: &[String]) -> String {
    words.iter().map(|word| quote(OsStr::new(word))).collect::<Vec<_>>().join(" ")
}
