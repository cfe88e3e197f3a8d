//! Measurements beside the workloads: operations, a window, pageblocks that leave the kernel's map,
//! and the check of the map.

use std::ffi::OsString;

use freehold_scope_record::Results;
use serde::Serialize;

use super::super::output_of;
use super::{DEFAULT, Extent};
use crate::args::BenchOptions;
use crate::failure::Failure;
use crate::scope::Digest;
use crate::{Result, args, bench, kernel, scope};

/// An operation of `freehold bench`, in instructions under the default policy and under `off`.
#[derive(Debug, Serialize)]
pub struct OperationCost {
    pub name: &'static str,
    pub on: f64,
    pub off: f64,
}

/// Operations that are measured: those with a limit, and those whose windows are counted.
pub const OPERATIONS: [&str; 5] = ["cow-copy", "fault-4k", "read-4k", "fault-2m", "write-4k"];

/// Measures [`OPERATIONS`]. The inner error is an exit status: the user knows the reason.
pub fn operations(extent: Extent) -> Result<std::result::Result<Vec<OperationCost>, u8>> {
    let options = BenchOptions {
        names: OPERATIONS.map(str::to_owned).to_vec(),
        quick: extent == Extent::Quick,
        runs: Some("1".into()),
        append: vec![format!("xpfo={DEFAULT}")],
        against_append: vec!["xpfo=off".into()],
        ..BenchOptions::default()
    };
    let compared = match bench::compare(&options)? {
        Ok(compared) => compared,
        Err(status) => return Ok(Err(status)),
    };
    if let Some(signal) = compared.interrupted() {
        return Err(Failure::interrupted(signal));
    }
    if let status @ 1.. = compared.tell_failures() {
        return Ok(Err(status));
    }
    let cost = |name, side| compared.cost(name, side).unwrap_or(f64::NAN);
    let costs = OPERATIONS.map(|name| OperationCost { name, on: cost(name, 0), off: cost(name, 1) });
    Ok(Ok(costs.into()))
}

/// Cost of one window: instructions of an operation under the default policy, less those under
/// `off`, for each of its windows.
#[derive(Debug, Serialize)]
pub struct WindowCost {
    /// The operation.
    pub row: &'static str,
    /// Windows that the operation opens.
    pub windows: f64,
    /// Instructions per window: taking it, giving it back, counting it, and the interrupts that
    /// flush it.
    pub instructions: f64,
}

/// A window that is only read, and one that is written.
const WINDOW_ROWS: [&str; 2] = ["read-4k", "write-4k"];
/// Samples of a shorter and of a longer run of a row. The difference leaves out what the program
/// does at its start and end.
const SAMPLES: [u32; 2] = [2, 18];
/// Operations in a sample.
const SAMPLE: u32 = 500;

/// Returns the cost of a window in each of [`WINDOW_ROWS`]; counts the windows.
pub fn windows(operations: &[OperationCost]) -> Result<Vec<WindowCost>> {
    let program = kernel::installed("guest/bench/files").ok_or_else(|| {
        Failure::new("guest/bench/files is missing: a benchmark program", "make build makes it")
    })?;
    let mut volume = program.into_os_string();
    volume.push(":/files");
    let count = "busybox grep xpfo_windows /proc/vmstat";
    let runs: String = WINDOW_ROWS
        .iter()
        .flat_map(|row| SAMPLES.map(|samples| format!("; /files {row} {samples} 1 monotonic 1; {count}")))
        .collect();
    let mut words = quiet(&["--icount", "--append", &format!("xpfo={DEFAULT}"), "-v"]);
    words.push(volume);
    words.extend(["--", "busybox", "sh", "-c", &format!("{count}{runs}")].map(OsString::from));
    let counts = all_figures(&output_of(&words)?, "xpfo_windows");
    let rows = WINDOW_ROWS.into_iter().enumerate();
    let costs = rows.map(|(at, row)| {
        let windows = match counts.get(2 * at..2 * at + 3) {
            Some(&[start, few, many]) => {
                let more = (many - few) as f64 - (few - start) as f64;
                more / f64::from((SAMPLES[1] - SAMPLES[0]) * SAMPLE)
            }
            _ => f64::NAN,
        };
        let cost = operations.iter().find(|cost| cost.name == row);
        let more = cost.map_or(f64::NAN, |cost| cost.on - cost.off);
        WindowCost { row, windows, instructions: more / windows }
    });
    Ok(costs.collect())
}

/// Flushes while pageblocks leave the kernel's map.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Leaving {
    pub cpus: u32,
    /// Pageblocks that left.
    pub left: u64,
    /// Interrupts that other CPUs got for these.
    pub interrupted: u64,
    /// Flushes of everything on all CPUs, for any reason, in the program's time.
    pub full_flushes: u64,
    /// INVLPGs on all CPUs.
    pub page_flushes: u64,
}

const LEAVING_CPUS: u32 = 4;
/// Names of files make the kernel grow. They are removed, and a program's bytes take their
/// pageblocks, before any pages go to the swap. How many pageblocks leave is a matter of where the
/// kernel's pages happen to lie. After a few rounds they lie in all pageblocks that the kernel ever
/// had, and none leaves any more: only another boot places them anew.
const LEAVE: &str = "for round in 1 2 3 4; do busybox mkdir /tmp/d; cd /tmp/d; \
    busybox seq 7500 | busybox xargs busybox touch; cd /; busybox rm -r /tmp/d; \
    set -- $(busybox grep MemFree /proc/meminfo); \
    busybox dd if=/dev/zero of=/dev/null bs=$2k count=1 2>/dev/null; \
    set -- $(busybox grep -w xpfo_leave /proc/vmstat); [ $2 -lt 4 ] || break; done; \
    busybox grep xpfo_leave /proc/vmstat";
/// Boots until a pageblock leaves. Of 50 boots, about one keeps all.
const BOOTS: usize = 4;

/// Measures flushes on several CPUs while pageblocks change sides.
pub fn leaving() -> Result<Leaving> {
    let mut leaving = leaving_in_a_boot()?;
    for _ in 1..BOOTS {
        if leaving.left > 0 {
            break;
        }
        leaving = leaving_in_a_boot()?;
    }
    Ok(leaving)
}

fn leaving_in_a_boot() -> Result<Leaving> {
    let cpus = LEAVING_CPUS.to_string();
    let mut words =
        quiet(&["--cpus", &cpus, "-m", "64M", "--swap", "64M", "--model", "locality", "--append"]);
    words.push(format!("xpfo={DEFAULT}").into());
    words.extend(["--", "busybox", "sh", "-c", LEAVE].map(OsString::from));
    let (results, output) = watch(&words)?;
    let figure = |name| all_figures(&output, name).first().copied().unwrap_or(0);
    Ok(Leaving {
        cpus: LEAVING_CPUS,
        left: figure("xpfo_leave"),
        interrupted: figure("xpfo_leave_ipi"),
        full_flushes: Digest::of(&results).total(|cpu| cpu.full_flushes),
        page_flushes: Digest::of(&results).total(|cpu| cpu.page_flushes),
    })
}

/// Cost of a check of the map.
#[derive(Debug, Serialize)]
pub struct CheckCost {
    /// The machine's memory.
    pub gib: u64,
    /// Kernel instructions of a program that reads the check, more than of one that reads a line.
    pub instructions: u64,
}

/// Sizes of the machine, in GiB.
const CHECKED: [u64; 2] = [1, 3];
/// The first readings warm up.
const CHECK: &str = "cd /sys/kernel/debug/xpfo; busybox cat policy check >/dev/null || exit; \
    for phase in policy check; do phase $phase; busybox cat $phase >/dev/null || exit; done; phase end";

/// Measures the check with each size of [`CHECKED`].
pub fn checks() -> Result<Vec<CheckCost>> {
    let check = |gib: u64| -> Result<CheckCost> {
        let mut words = quiet(&["--icount", "--model", "locality", "--append"]);
        words.push(format!("xpfo={DEFAULT}").into());
        words.extend(["-m", &format!("{gib}G"), "--", "busybox", "sh", "-c", CHECK].map(OsString::from));
        let results = watch(&words)?.0;
        let reading = |name: &str| -> u64 {
            let phase = results.phases.iter().filter(|phase| phase.name == name);
            phase.flat_map(|phase| &phase.cpus).map(|cpu| cpu.modes.kernel.instructions).sum()
        };
        Ok(CheckCost { gib, instructions: reading("check").saturating_sub(reading("policy")) })
    };
    CHECKED.into_iter().map(check).collect()
}

fn quiet(words: &[&str]) -> Vec<OsString> {
    ["--report", "never"].iter().chain(words).map(OsString::from).collect()
}

fn watch(words: &[OsString]) -> Result<(Results, String)> {
    let (results, output) = scope::Measurement::prepare(&args::scope_options(words)?)?.run()?;
    Ok((results, String::from_utf8_lossy(&output).into_owned()))
}

/// Returns the numbers of all lines `name number`.
fn all_figures(output: &str, name: &str) -> Vec<u64> {
    let figure = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    output.lines().filter_map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_whole_names() {
        let output = "xpfo_leave_ipi 9\nxpfo_leave 3\nxpfo_leave 4\n";
        assert_eq!(all_figures(output, "xpfo_leave"), [3, 4]);
        assert_eq!(all_figures(output, "xpfo_enter"), [0; 0]);
    }
}
