//! Runs the VMs: sides alternate, so that changes on the host affect all of them.
//!
//! By the host's clock one VM runs at a time. Counted instructions do not depend on the host, so
//! there as many VMs run at a time as the host has CPUs; when one of them fails, the others are
//! recalled.

use std::ffi::OsString;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::parse::{Output, Phases, RowKey};
use super::plan::{BenchSide, Counter, Measure, Plan};
use crate::failure::{Failure, OWN_ERROR};
use crate::outcome::{GUEST_DIED, TIMED_OUT};
use crate::protocol::Ending;
use crate::report;
use crate::session::{End, Ended, Recall};
use crate::{Result, args, print, scope};

/// Number of lines of a guest's other output that are shown with its failure.
const LINES_SHOWN: usize = 12;

/// Output of all runs of one side.
#[derive(Debug, Default)]
pub struct Measured {
    /// The kernel's name and version, as the guest tells them.
    pub version: String,
    /// Each run's output, in order.
    pub runs: Vec<Output>,
}

/// Reason why there is no result.
#[derive(Debug)]
pub enum Stop {
    /// An error of this command, or a kernel that does not boot.
    Failure(Failure),
    /// A guest died or hung while it measured: the text to print, and the exit status.
    Guest(String, u8),
    /// The user sent a signal.
    Interrupted(u8),
}

/// Runs everything. The result has an entry for each side.
pub fn measure(plan: &Plan) -> std::result::Result<Vec<Measured>, Stop> {
    let order = order(plan.sides.len(), plan.extent.runs);
    let at_a_time = match plan.measure {
        Measure::Wall => 1,
        Measure::Instructions => std::thread::available_parallelism().map_or(1, |count| count.get()),
    };
    let progress = ProgressBar::new(order.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos} of {len} runs, {elapsed} {msg}") {
        progress.set_style(style);
    }
    progress.tick();
    let (next, recall) = (AtomicUsize::new(0), Recall::new().map_err(Stop::Failure)?);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_a_time.min(order.len()) {
            scope.spawn(|| {
                while !recall.called()
                    && let Some(&(side, run)) = order.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    progress.set_message(plan.sides[side].label.clone());
                    let result = one(plan, &plan.sides[side], &recall);
                    if result.is_err() {
                        recall.call();
                    }
                    progress.inc(1);
                    results.lock().expect("no holder panics").push((run, side, result));
                }
            });
        }
    });
    progress.finish_and_clear();
    let mut results = results.into_inner().expect("no holder panics");
    results.sort_by_key(|(run, side, _)| (*run, *side));
    let mut measured: Vec<Measured> = plan.sides.iter().map(|_| Measured::default()).collect();
    for (_, side, result) in results {
        // If a run was recalled, another that has failed is among them; only that failure is
        // returned.
        let Some((version, output)) = result? else { continue };
        measured[side].version = version;
        measured[side].runs.push(output);
    }
    Ok(measured)
}

/// Returns the order of runs: sides alternate, every other round backwards, so that no side is
/// always first.
fn order(sides: usize, runs: usize) -> Vec<(usize, usize)> {
    let round = |run: usize| {
        let forwards = (0..sides).map(move |side| (side, run));
        let list: Vec<_> = if run.is_multiple_of(2) { forwards.collect() } else { forwards.rev().collect() };
        list
    };
    (0..runs).flat_map(round).collect()
}

/// Makes one run of a side: a VM for the rows of each counter. `None` when it was recalled.
fn one(
    plan: &Plan,
    side: &BenchSide,
    recall: &Recall,
) -> std::result::Result<Option<(String, Output)>, Stop> {
    let (mut version, mut output) = (String::new(), Output::default());
    for counter in Counter::ALL {
        let keys = plan.keys(counter);
        if keys.is_empty() {
            continue;
        }
        let (ended, phases) = match side.watched.iter().find(|(of, _)| *of == counter) {
            Some((_, words)) => watch(words, recall),
            None => {
                let ended = side.prepared.run_unless(plan.engine, Some(recall));
                ended.map(|ended| (ended, Phases::new()))
            }
        }
        .map_err(Stop::Failure)?;
        if matches!(ended.end, End::Recalled) {
            return Ok(None);
        }
        let found = Output::parse(&ended.output, &ended.error, phases, &keys, plan.extent.samples);
        version = judge(side, &ended, &found)?;
        output.append(found);
    }
    Ok(Some((version, output)))
}

/// Makes a run under the microscope.
fn watch(words: &[OsString], recall: &Recall) -> Result<(Ended, Phases)> {
    let measurement = scope::Measurement::prepare(&args::scope_options(words)?)?;
    let (results, ended) = measurement.run_unless(Some(recall))?;
    let results = match (results, &ended.end) {
        (Err(lost), End::Program(Ending::Exit(_))) => return Err(lost),
        (results, _) => results.ok(),
    };
    let mut phases = Phases::new();
    for phase in results.iter().flat_map(|results| &results.phases) {
        let instructions =
            phase.cpus.iter().map(|cpu| cpu.modes.user.instructions + cpu.modes.kernel.instructions);
        phases.entry(phase.name.clone()).or_default().push_back(instructions.sum());
    }
    Ok((ended, phases))
}

/// Returns the kernel's name and version, if the run came to its end.
fn judge(side: &BenchSide, ended: &Ended, output: &Output) -> std::result::Result<String, Stop> {
    let kernel = side.prepared.kernel.path.display();
    if ended.ready.is_none() && !matches!(ended.end, End::Interrupted(_)) {
        let cause = match &ended.end {
            End::TimedOut(_) => "nothing came before its time was up".to_owned(),
            End::Qemu(words) | End::Refused(words) => words.clone(),
            _ => report::cause_of_death(ended, &side.prepared.symbols()),
        };
        let hint = format!("freehold run --verbose --kernel {kernel} -- PROGRAM shows its log");
        return Err(Stop::Failure(Failure::new(
            format!("{}: {kernel} does not boot: {cause}", side.label),
            hint,
        )));
    }
    match &ended.end {
        End::Program(Ending::Exit(_)) => {}
        End::Unbalanced(_, finding) => {
            let text = format!("freehold: {}: {}\n", side.label, report::unbalanced(finding));
            return Err(Stop::Guest(text, OWN_ERROR));
        }
        End::Interrupted(signal) => return Err(Stop::Interrupted(*signal)),
        End::Qemu(words) => {
            return Err(Stop::Failure(Failure::qemu(words, format!("{}: {words}", side.label))));
        }
        end => return Err(died(side, ended, end, output)),
    }
    let field =
        |name| ended.ready.as_ref().and_then(|ready| ready.get(name)).and_then(Value::as_str).unwrap_or("?");
    Ok(format!("{} {}", field("kernel"), field("version")))
}

/// Describes a guest that came up and did not come to its end.
fn died(side: &BenchSide, ended: &Ended, end: &End, output: &Output) -> Stop {
    let row =
        output.last.as_ref().map_or("before the first row".to_owned(), |key| format!("in row {}", show(key)));
    let (what, status) = match end {
        End::TimedOut(_) => ("did not end in time", TIMED_OUT),
        End::Program(Ending::Signal(_)) => ("lost its first program to a signal", GUEST_DIED),
        _ => ("died", GUEST_DIED),
    };
    let mut text = format!("freehold: {} {what} {row}\n", side.label);
    if let Some(death) = report::death(ended, &side.prepared.symbols()) {
        text.push_str(&death);
    }
    text.push_str(&printed(output));
    Stop::Guest(text, status)
}

/// Returns a row's name for people.
pub fn show(key: &RowKey) -> String {
    match key {
        (name, 1) => name.clone(),
        (name, workers) => format!("{name} ×{workers}"),
    }
}

/// Returns the guest's output besides samples, for a person.
pub fn printed(output: &Output) -> String {
    let lines: Vec<&str> = output.other.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return "  the guest printed nothing else\n".into();
    }
    let shown = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
    let mut text = String::from("  the guest printed:\n");
    for line in shown {
        text.push_str(&format!("    {line}\n"));
    }
    text
}

/// Tells the user why the runs cannot go on; returns the exit status.
pub fn tell(stop: Stop) -> Result<u8> {
    match stop {
        Stop::Failure(failure) => Err(failure),
        Stop::Guest(text, status) => {
            print::stderr(text);
            Ok(status)
        }
        Stop::Interrupted(signal) => Ok(128u8.saturating_add(signal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_alternate_and_none_is_always_first() {
        assert_eq!(order(2, 3), [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2)]);
        assert_eq!(order(3, 2), [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1)]);
    }
}
