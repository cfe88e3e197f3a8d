//! Runs the VMs: sides alternate, so that changes on the host affect all of them.
//!
//! By the host's clock one VM runs at a time. Counted instructions do not depend on the host, so
//! there as many VMs run at a time as the host has CPUs; when one of them fails, the others are
//! recalled.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::Value;

use super::parse::{Output, Phases, RowKey};
use super::plan::{BenchSide, Counter, Measure, Plan};
use crate::ending::{GUEST_DIED, TIMED_OUT};
use crate::failure::{Failure, OWN_ERROR};
use crate::progress::{Interrupt, Progress};
use crate::protocol::Ending;
use crate::report;
use crate::session::{End, Ended, GroupMember, Recall};
use crate::{Result, args, print, scope};

/// Number of lines of a guest's other output that are shown with its failure.
const LINES_SHOWN: usize = 12;

/// Output of all runs of one side.
#[derive(Debug, Default)]
pub struct Measured {
    /// The kernel's name and version, as the guest tells them.
    pub version: Option<String>,
    /// Each run's output, in order.
    pub runs: Vec<Output>,
}

impl Measured {
    /// Returns whether a run has this row.
    pub fn has(&self, key: &RowKey) -> bool {
        self.runs.iter().any(|run| run.rows.contains_key(key))
    }

    /// Returns whether no row was measured.
    fn is_empty(&self) -> bool {
        self.runs.iter().all(|run| run.rows.is_empty())
    }
}

/// Reason why there is no result.
#[derive(Debug)]
pub enum Stop {
    /// An error of this command, or a kernel that does not boot.
    Failure(Failure),
    /// A guest died or hung while it measured: the text to print, and the exit status.
    Guest(String, u8),
    /// A signal came before the first row was finished.
    Interrupted(u8),
}

/// All results.
#[derive(Debug)]
pub struct Measurements {
    /// An entry for each side.
    pub sides: Vec<Measured>,
    /// The signal that ended the measurement early. Rows that were finished before are there.
    pub interrupted: Option<u8>,
}

/// Runs everything.
pub fn measure(plan: &Plan) -> std::result::Result<Measurements, Stop> {
    let order = order(plan.sides.len(), plan.extent.runs);
    let at_a_time = match plan.measure {
        Measure::Wall => 1,
        Measure::Instructions => std::thread::available_parallelism().map_or(1, |count| count.get()),
    };
    let at_a_time = at_a_time.min(order.len());
    let progress = progress(plan, at_a_time);
    let interrupt = Interrupt::watch().map_err(Stop::Failure)?;
    let (next, recall) = (AtomicUsize::new(0), Recall::new().map_err(Stop::Failure)?);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                while !recall.called()
                    && interrupt.came().is_none()
                    && let Some(&(side, run)) = order.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let result = one(plan, (side, run), &recall, &progress);
                    if result.is_err() {
                        recall.call();
                    }
                    results.lock().expect("no holder panics").push((run, side, result));
                }
            });
        }
    });
    progress.end();
    let mut results = results.into_inner().expect("no holder panics");
    results.sort_by_key(|(run, side, _)| (*run, *side));
    let mut sides: Vec<Measured> = plan.sides.iter().map(|_| Measured::default()).collect();
    let mut interrupted = interrupt.came();
    for (_, side, result) in results {
        // If a run was recalled, another that has failed is among them; only that failure is
        // returned.
        let BenchRun { version, output, ended_by } = result?;
        interrupted = interrupted.or(ended_by);
        sides[side].version = version.or(sides[side].version.take());
        sides[side].runs.push(output);
    }
    match interrupted {
        Some(signal) if sides.iter().all(Measured::is_empty) => Err(Stop::Interrupted(signal)),
        interrupted => Ok(Measurements { sides, interrupted }),
    }
}

/// Returns the progress of all rows of all runs.
fn progress(plan: &Plan, at_a_time: usize) -> Progress {
    let rows = Counter::ALL.into_iter().flat_map(|counter| plan.keys(counter));
    let keys: Vec<String> = rows.map(|key| show(&key)).collect();
    let runs = plan.sides.len() * plan.extent.runs;
    let parts = (0..runs).flat_map(|_| keys.iter().cloned());
    Progress::new(parts, u32::try_from(at_a_time).unwrap_or(u32::MAX))
}

/// Notes the rows of a VM that are finished.
struct RowTally<'a> {
    plan: &'a Plan,
    /// The side and the run, as a person reads them.
    of: String,
    progress: &'a Progress,
    /// Samples that are missing, by row.
    missing: BTreeMap<RowKey, usize>,
    /// End of the last row; the first one includes the boot.
    since: Instant,
}

impl RowTally<'_> {
    /// Takes a line of the guest's output.
    fn line(&mut self, line: &str) {
        let mut words = line.split(' ');
        let (kind, name, workers) = (words.next(), words.next(), words.next());
        let Some(key) = name.zip(workers.and_then(|count| count.parse().ok())) else { return };
        let key = (key.0.to_owned(), key.1);
        let Some(missing) = self.missing.get_mut(&key) else { return };
        match kind {
            Some("sample" | "watched") => *missing -= 1,
            Some("fail") => *missing = 0,
            _ => return,
        }
        if *missing == 0 {
            self.missing.remove(&key);
            let shown = show(&key);
            self.progress.finish(&shown, &format!("{shown}, {}", self.of), self.since.elapsed());
            self.since = Instant::now();
        }
    }

    /// Begins a VM for the rows of `counter`.
    fn begin(&mut self, counter: Counter) {
        let samples = self.plan.extent.samples;
        self.missing = self.plan.keys(counter).into_iter().map(|key| (key, samples)).collect();
        self.since = Instant::now();
    }
}

/// Results of one run of a side.
struct BenchRun {
    /// The kernel's name and version, if the guest told them.
    version: Option<String>,
    output: Output,
    /// The signal that ended the run early; `output` has the rows that were finished.
    ended_by: Option<u8>,
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

/// Makes one run of a side: a VM for the rows of each counter. Without a result where it was
/// recalled.
fn one(
    plan: &Plan,
    (at, run): (usize, usize),
    recall: &Recall,
    progress: &Progress,
) -> std::result::Result<BenchRun, Stop> {
    let side = &plan.sides[at];
    let mut done = BenchRun { version: None, output: Output::default(), ended_by: None };
    let of = format!("{}, run {} of {}", side.label, run + 1, plan.extent.runs);
    let tally = RowTally { plan, of, progress, missing: BTreeMap::new(), since: Instant::now() };
    let tally = RefCell::new(tally);
    let hear = |line: &str| tally.borrow_mut().line(line);
    for counter in Counter::ALL {
        let keys = plan.keys(counter);
        if keys.is_empty() {
            continue;
        }
        tally.borrow_mut().begin(counter);
        let member = GroupMember { recall, hear: &hear };
        let (ended, phases) = match side.watched.iter().find(|(of, _)| *of == counter) {
            Some((_, words)) => watch(words, member),
            None => {
                let ended = side.prepared.run_unless(plan.engine, Some(member));
                ended.map(|ended| (ended, Phases::default()))
            }
        }
        .map_err(Stop::Failure)?;
        let mut found = Output::parse(&ended.output, &ended.error, phases, &keys, plan.extent.samples);
        match ended.end {
            End::Recalled => found.keep_whole(plan.extent.samples),
            End::Interrupted(signal) => {
                found.keep_whole(plan.extent.samples);
                done.ended_by = Some(signal);
            }
            _ => judge(side, &ended, &found)?,
        }
        done.version = version(&ended).or(done.version);
        done.output.append(found);
        if matches!(ended.end, End::Recalled | End::Interrupted(_)) {
            break;
        }
    }
    Ok(done)
}

/// Returns the kernel's name and version, if the guest told them.
fn version(ended: &Ended) -> Option<String> {
    let ready = ended.ready.as_ref()?;
    let field = |name| ready.get(name).and_then(Value::as_str).unwrap_or("?");
    Some(format!("{} {}", field("kernel"), field("version")))
}

/// Makes a run under the microscope.
fn watch(words: &[OsString], member: GroupMember<'_>) -> Result<(Ended, Phases)> {
    let measurement = scope::Measurement::prepare(&args::scope_options(words)?)?;
    let (results, ended) = measurement.run_unless(Some(member))?;
    let results = match (results, &ended.end) {
        (Err(lost), End::Program(Ending::Exit(_))) => return Err(lost),
        (results, _) => results.ok(),
    };
    Ok((ended, results.as_ref().map(Phases::of).unwrap_or_default()))
}

/// Checks that the run came to its end.
fn judge(side: &BenchSide, ended: &Ended, output: &Output) -> std::result::Result<(), Stop> {
    let kernel = side.prepared.kernel.path.display();
    if ended.ready.is_none() {
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
        End::Qemu(words) => {
            return Err(Stop::Failure(Failure::qemu(words, format!("{}: {words}", side.label))));
        }
        end => return Err(died(side, ended, end, output)),
    }
    Ok(())
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
        Stop::Interrupted(signal) => Err(Failure::interrupted(signal)),
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
