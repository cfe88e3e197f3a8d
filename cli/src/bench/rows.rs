//! The operations that are measured: their names, the guest program that measures each, and what is asked of our kernel.

use crate::Result;
use crate::failure::Failure;

/// One operation.
#[derive(Debug, PartialEq)]
pub struct Row {
    /// Its name, here and in the guest.
    pub name: &'static str,
    /// The guest program that measures it (guest/bench/PROGRAM.c).
    pub program: &'static str,
    /// What is measured, in words.
    pub what: &'static str,
    /// The most that it may cost as a share of the lean Linux' cost.
    pub goal: f64,
    /// What it waits for.
    pub waits: Waits,
}

/// What an operation waits for, besides other programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// Nothing outside the guest's CPUs: under a clock that counts instructions it repeats.
    Nothing,
    /// A disk, which takes the host's time: a clock that counts instructions leaps while nobody runs.
    Disk,
}

const EQUAL: f64 = 1.0;
const HALF: f64 = 0.5;

const fn row(program: &'static str, name: &'static str, goal: f64, what: &'static str) -> Row {
    Row { name, program, what, goal, waits: Waits::Nothing }
}

const fn disk_row(program: &'static str, name: &'static str, goal: f64, what: &'static str) -> Row {
    Row { name, program, what, goal, waits: Waits::Disk }
}

/// All of them, in the order in which they run and are shown.
pub const ROWS: &[Row] = &[
    row("syscalls", "null-call", EQUAL, "getppid"),
    row("syscalls", "sigaction", EQUAL, "install a signal handler"),
    row("syscalls", "signal", EQUAL, "send a signal to oneself, handle it, return"),
    row("syscalls", "futex-wake", EQUAL, "futex wake where nobody waits"),
    row("files", "read-4k", EQUAL, "read 4 KiB of a tmpfs file"),
    row("files", "write-4k", EQUAL, "write 4 KiB of a tmpfs file"),
    row("files", "open-close", EQUAL, "open a tmpfs file and close it"),
    row("processes", "fork-exit", HALF, "fork, exit, wait"),
    row("processes", "fork-exec", HALF, "fork, exec of a small static program, exit, wait"),
    row("processes", "vfork-exec", HALF, "vfork, exec of the same, exit, wait"),
    row("processes", "thread", EQUAL, "create a thread and join it"),
    row("processes", "fork-256m", HALF, "fork, exit, wait with 256 MiB resident, huge pages where it likes"),
    row("processes", "fork-256m-4k", HALF, "the same with 256 MiB resident in pages of 4 KiB"),
    row("memory", "fault-4k", EQUAL, "first store to an anonymous page of 4 KiB"),
    row("memory", "fault-zero", EQUAL, "first load from an anonymous page of 4 KiB"),
    row("memory", "fault-2m", EQUAL, "first stores to all of 2 MiB of anonymous memory, huge page advised"),
    row("memory", "fault-file", EQUAL, "first load from a page of a mapped tmpfs file, pages in order"),
    row("memory", "cow-reuse", HALF, "store to a page that was shared and is so no more"),
    row("memory", "cow-copy", HALF, "store to a page that another process shares"),
    row("memory", "mmap-4k", HALF, "map and unmap 4 KiB, untouched"),
    row("memory", "mmap-1m", HALF, "map and unmap 1 MiB, untouched"),
    row("memory", "mmap-64m", HALF, "map and unmap 64 MiB, untouched"),
    row("memory", "mmap-4m-touched", HALF, "map 4 MiB of a tmpfs file, 26 stores, unmap (as lat_mmap)"),
    row("memory", "unmap-4k", HALF, "unmap 400 resident pages of 4 KiB, a page"),
    row("memory", "mprotect", EQUAL, "change the protection of a resident page"),
    row("memory", "brk", EQUAL, "grow the heap by a page and store there"),
    row("memory", "mremap", EQUAL, "move 16 resident pages to another address"),
    row("pins", "vmsplice", EQUAL, "a page of memory into a pipe by vmsplice, and away unread"),
    disk_row("pins", "direct-read", EQUAL, "read 4 KiB of a disk with O_DIRECT"),
    disk_row("pins", "direct-write", EQUAL, "write 4 KiB to a disk with O_DIRECT"),
    row("switches", "switch-2", HALF, "switch between 2 processes, without the pipe's read and write"),
    row("switches", "switch-16", HALF, "switch among 16 processes, without the pipe's read and write"),
    row("switches", "pipe", EQUAL, "a byte to another process and back, by pipes"),
    row("switches", "unix", EQUAL, "the same by an AF_UNIX socket pair"),
    row("switches", "futex-round-trip", EQUAL, "wake another thread by futex and be woken by it"),
];

/// The rows of these names; all rows for none. A name may end with `*`.
pub fn select(names: &[String]) -> Result<Vec<&'static Row>> {
    if names.is_empty() {
        return Ok(ROWS.iter().collect());
    }
    let matches = |name: &str, row: &Row| match name.strip_suffix('*') {
        Some(start) => row.name.starts_with(start),
        None => row.name == name,
    };
    if let Some(unknown) = names.iter().find(|name| !ROWS.iter().any(|row| matches(name, row))) {
        return Err(Failure::new(format!("no operation is named {unknown}"), suggestion(unknown)));
    }
    Ok(ROWS.iter().filter(|row| names.iter().any(|name| matches(name, row))).collect())
}

/// Names that the user may have meant.
fn suggestion(name: &str) -> String {
    let name = name.trim_end_matches('*');
    let near = |row: &&Row| {
        strsim::damerau_levenshtein(name, row.name) <= 2
            || (name.len() > 2 && (row.name.contains(name) || row.what.contains(name)))
    };
    let near: Vec<&str> = ROWS.iter().filter(near).map(|row| row.name).collect();
    match near.as_slice() {
        [] => "freehold bench --list names all".into(),
        near => format!("did you mean {}?", near.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &[&str]) -> Result<Vec<&'static str>> {
        let of: Vec<String> = of.iter().map(|name| (*name).to_owned()).collect();
        Ok(select(&of)?.iter().map(|row| row.name).collect())
    }

    #[test]
    fn rows_are_chosen_by_name_or_by_their_beginning_in_the_order_of_the_table() {
        assert_eq!(names(&[]).expect("all").len(), ROWS.len());
        assert_eq!(names(&["pipe", "null-call"]).expect("two"), ["null-call", "pipe"]);
        assert_eq!(names(&["cow*"]).expect("two"), ["cow-reuse", "cow-copy"]);
    }

    #[test]
    fn an_unknown_row_is_refused_with_what_was_perhaps_meant() {
        let error = names(&["nul-call"]).expect_err("unknown").to_string();
        assert!(error.contains("nul-call") && error.contains("did you mean null-call"), "{error}");
        let error = names(&["fork"]).expect_err("unknown").to_string();
        assert!(error.contains("fork-exit") && error.contains("vfork-exec"), "{error}");
        let error = names(&["quxx"]).expect_err("unknown").to_string();
        assert!(error.contains("--list"), "{error}");
    }

    #[test]
    fn no_two_rows_have_one_name() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..at].iter().all(|other| other.name != row.name), "{} is there twice", row.name);
        }
    }
}
