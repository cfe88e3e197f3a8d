//! `freehold lab slowdown`: the cost of watching. The same script runs in the same VM, without the
//! microscope and with more and more of its models, in turn. The CPU time of QEMU is compared,
//! which other work on the host disturbs least.

use std::ffi::OsString;
use std::path::Path;

use freehold_scope_record::{Counting, Emulator};
use serde::Serialize;

use super::{Experiment, Extent, Settings};
use crate::bench::compare::RowVerdict;
use crate::failure::Failure;
use crate::html::{Axis, Bar, Bars, Cell, Column, Page, Table, Tile, Tone, Unit};
use crate::progress::LabSteps;
use crate::qemu::Engine;
use crate::run::Prepared;
use crate::schema::LabHead;
use crate::statistics::{Estimate, Interval, geometric_mean, paired_ratio};
use crate::{Result, args, bench, scope};

/// The experiment's entry in the list.
pub const EXPERIMENT: Experiment = Experiment {
    name: "slowdown",
    question: "How many times slower is a guest under the microscope, with which models?",
    run,
};

/// A hundred lines of everyday shell: some forty processes, pipes, files, a disk of 1 MiB.
const SCRIPT: &[u8] = include_bytes!("../../tests/scripts/hundred-lines.sh");
/// Exit status of the script.
const SCRIPT_STATUS: u8 = 42;
const DISK_BYTES: u64 = 1 << 20;
/// The VM, with and without the microscope.
const MACHINE: [&str; 8] = ["--accel", "tcg", "--report", "never", "-m", "256M", "--near-cache", "32M"];

/// A way to run a guest.
struct Way {
    name: &'static str,
    /// The models; `None`: no microscope.
    models: Option<&'static str>,
    /// The largest allowed multiple of the CPU time without the microscope.
    goal: Option<f64>,
}

const PLAIN: Way = Way { name: "no microscope", models: None, goal: None };
const COUNTS: Way = Way { name: "counts and locality", models: Some("locality"), goal: None };
const CACHES: Way = Way { name: "caches", models: Some("cache"), goal: Some(3.5) };
const EVERYTHING: Way = Way { name: "all models", models: Some("all"), goal: Some(5.0) };

/// Results of one way.
#[derive(Serialize)]
struct Measured {
    name: &'static str,
    /// CPU time of each run, in order.
    cpu_seconds: Vec<f64>,
    /// Ratio to the previous run without the microscope.
    ratio: Option<f64>,
    /// The ratio's 95% interval; without an upper end if the runs are too few for one.
    interval: Option<(f64, f64)>,
    too_few_runs: Option<bool>,
    goal: Option<f64>,
    verdict: Option<&'static str>,
}

#[derive(Serialize)]
struct SlowdownRecord<'a> {
    #[serde(flatten)]
    head: LabHead,
    qemu: &'a str,
    interface: u32,
    counting: Counting,
    measured: &'a [Measured],
}

fn run(settings: &Settings) -> Result<u8> {
    let (ways, runs): (&[Way], u32) = match settings.extent {
        Extent::Full => (&[PLAIN, COUNTS, CACHES, EVERYTHING], 5),
        Extent::Quick => (&[PLAIN, EVERYTHING], 2),
    };
    let runs = settings.boots.unwrap_or(runs);
    let folder = tempfile::Builder::new()
        .prefix("freehold-lab-")
        .tempdir()
        .map_err(|e| Failure::new(format!("cannot make a temporary folder: {e}"), ""))?;
    let mut seconds = vec![Vec::new(); ways.len()];
    let mut emulator = None;
    let mut steps = LabSteps::new((0..runs).flat_map(|_| ways.iter().map(|way| way.name.to_owned())))?;
    for run in 1..=runs {
        for (way, seconds) in ways.iter().zip(&mut seconds) {
            let name = format!("{}, run {run} of {runs}", way.name);
            let Some((spent, watched_by)) = steps.step(way.name, &name, || once(way, folder.path()))? else {
                break;
            };
            seconds.push(spent);
            emulator = emulator.or(watched_by);
        }
    }
    let ended_by = steps.end()?;
    // Runs are compared in pairs.
    let pairs = seconds.iter().map(Vec::len).min().unwrap_or(0);
    if let (Some(signal), 0) = (ended_by, pairs) {
        return Err(Failure::interrupted(signal));
    }
    seconds.iter_mut().for_each(|seconds| seconds.truncate(pairs));
    let emulator = emulator.ok_or_else(|| Failure::new("the microscope saw nothing", ""))?;
    let plain = seconds.first().cloned().unwrap_or_default();
    let measured: Vec<Measured> =
        ways.iter().zip(seconds).map(|(way, seconds)| Measured::new(way, seconds, &plain)).collect();
    let report = SlowdownReport { measured: &measured, qemu: bench::emulator(), emulator };
    let record = SlowdownRecord {
        head: LabHead::of(EXPERIMENT.name, ended_by),
        qemu: &report.qemu,
        interface: emulator.interface,
        counting: emulator.counting,
        measured: &measured,
    };
    settings.write_record(&record)?;
    settings.write_page(|| report.page(), ended_by)?;
    settings.conclude(&report.summary(), ended_by, 0)
}

/// Makes one run; returns QEMU's CPU time, and the plugin's description of QEMU.
fn once(way: &Way, folder: &Path) -> Result<(f64, Option<Emulator>)> {
    let (script, disk) = (folder.join("script"), folder.join("disk"));
    let made =
        std::fs::write(&script, SCRIPT).and_then(|()| std::fs::File::create(&disk)?.set_len(DISK_BYTES));
    made.map_err(|e| Failure::io("write", folder, &e))?;
    let mut words: Vec<OsString> = MACHINE.iter().map(OsString::from).collect();
    let mut volume = script.into_os_string();
    volume.push(":/script");
    words.extend(["--cwd".into(), "/work".into(), "-v".into(), volume]);
    words.extend(["--disk".into(), disk.into_os_string()]);
    let script = format!("busybox ash /script /dev/vda; test $? = {SCRIPT_STATUS}");
    words.extend(["--", "busybox", "ash", "-c", &script].map(OsString::from));
    if let Some(models) = way.models {
        words.splice(0..0, ["--model", models].map(OsString::from));
        let watched = scope::Measurement::prepare(&args::scope_options(&words)?)?;
        let before = children_seconds()?;
        let (results, _) = watched.run()?;
        return Ok((children_seconds()? - before, Some(results.cost.emulator)));
    }
    let prepared = Prepared::measurement(&args::run_options(&words)?)?;
    let before = children_seconds()?;
    let ended = prepared.run(Engine::Tcg)?;
    let spent = children_seconds()? - before;
    ended.into_output().map(|_| (spent, None))
}

/// Returns the CPU time of all processes that this one has started and waited for: fields 16 and 17
/// of proc_pid_stat(5), in ticks. For programs on x86-64 Linux makes 100 ticks a second.
fn children_seconds() -> Result<f64> {
    let path = Path::new("/proc/self/stat");
    let text = std::fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))?;
    // The second field is in brackets and may hold anything.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
    let ticks: Vec<f64> = fields.skip(13).take(2).filter_map(|field| field.parse().ok()).collect();
    match ticks[..] {
        [user, system] => Ok((user + system) / 100.0),
        _ => Err(Failure::new("/proc/self/stat tells no CPU time", "")),
    }
}

impl Measured {
    fn new(way: &Way, cpu_seconds: Vec<f64>, plain: &[f64]) -> Measured {
        let ratio = way.models.is_some().then(|| paired_ratio(&cpu_seconds, plain));
        Measured {
            name: way.name,
            ratio: ratio.map(|ratio| ratio.value),
            interval: ratio.map(|ratio| (ratio.interval.low, ratio.interval.high)),
            too_few_runs: ratio.map(|ratio| ratio.interval.has_too_few_runs()),
            verdict: ratio.zip(way.goal).map(|(ratio, goal)| RowVerdict::of(ratio, goal).word()),
            goal: way.goal,
            cpu_seconds,
        }
    }

    fn mean(&self) -> f64 {
        geometric_mean(&self.cpu_seconds).value
    }

    /// Formats the minimum and the maximum: `2.81–2.99`.
    fn show_ends(&self) -> String {
        Interval::range(&self.cpu_seconds).show("–", |seconds| format!("{seconds:.2}"))
    }

    fn estimate(&self) -> Option<Estimate> {
        let (value, (low, high)) = self.ratio.zip(self.interval)?;
        Some(Estimate { value, interval: Interval { low, high } })
    }

    /// Formats `2.90 (2.81–2.99)`.
    fn show_ratio(&self) -> String {
        self.estimate().map_or_else(String::new, |Estimate { value, interval }| {
            format!("{value:.2} ({})", interval.show("–", |end| format!("{end:.2}")))
        })
    }

    /// Formats `at most 3.5: met`.
    fn show_goal(&self) -> String {
        match (self.goal, self.verdict) {
            (Some(goal), Some(verdict)) => format!("at most {goal}: {verdict}"),
            _ => String::new(),
        }
    }
}

struct SlowdownReport<'a> {
    measured: &'a [Measured],
    qemu: String,
    emulator: Emulator,
}

impl SlowdownReport<'_> {
    fn way(&self) -> String {
        let way = match self.emulator.counting {
            Counting::Calls => "blocks counted by calls",
            Counting::Inline => "blocks counted in QEMU's own code",
        };
        format!("plugin interface {}, {way}", self.emulator.interface)
    }

    fn runs(&self) -> usize {
        self.measured.first().map_or(0, |measured| measured.cpu_seconds.len())
    }

    fn summary(&self) -> String {
        let mut text = format!(
            "CPU time of QEMU for a boot and a shell script of a hundred lines; {} runs of each, in turn\n{}; {}\n\n",
            self.runs(),
            self.qemu,
            self.way()
        );
        text.push_str(&format!(
            "{:<22}{:>9}{:>14}   {:<24}{}\n",
            "", "CPU time", "least–most", "over none (95%)", "asked"
        ));
        for measured in self.measured {
            let line = format!(
                "{:<22}{:>8.2}s{:>14}   {:<24}{}",
                measured.name,
                measured.mean(),
                measured.show_ends(),
                measured.show_ratio(),
                measured.show_goal()
            );
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn page(&self) -> Page {
        let subtitle =
            format!("CPU time of QEMU, {} runs of each in turn; {}; {}", self.runs(), self.qemu, self.way());
        let mut page = Page::new("What the microscope costs", &subtitle);
        let watched = || self.measured.iter().filter(|measured| measured.ratio.is_some());
        let tile = |measured: &Measured| Tile {
            label: measured.name.into(),
            value: format!("{:.1}×", measured.ratio.unwrap_or(f64::NAN)),
            detail: if measured.goal.is_some() { measured.show_goal() } else { "no figure asked".into() },
            tone: match measured.verdict {
                Some("met") => Tone::Good,
                Some("missed") => Tone::Bad,
                _ => Tone::Plain,
            },
        };
        page.tiles(&watched().map(tile).collect::<Vec<_>>());
        page.section("Question");
        page.text(EXPERIMENT.question);
        page.section("Answer");
        let mut bars = Bars::new(
            "CPU time, over that of the same run without the microscope",
            Axis::linear("times", Unit::Number),
            &["with"],
        );
        for measured in watched() {
            let bar = measured.estimate().map(|ratio| Bar::within(ratio.value, ratio.interval));
            bars.group(measured.name, &[bar]);
        }
        bars.reference(1.0, "without");
        page.figure(&bars, "The lines at the ends are 95% intervals of the mean ratio. Shorter is better.");
        let columns = [
            Column::text("models"),
            Column::number("CPU time"),
            Column::number("least–most, s"),
            Column::number("over none (95%)"),
            Column::text("asked"),
        ];
        let mut table = Table::new("", &columns);
        for measured in self.measured {
            table.row([
                Cell::text(measured.name),
                Cell::text(format!("{:.2} s", measured.mean())),
                Cell::text(measured.show_ends()),
                Cell::text(measured.show_ratio()),
                Cell::text(measured.show_goal()),
            ]);
        }
        page.table(&table);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_only_where_all_of_the_interval_is_within_it() {
        let plain = [1.0, 1.0, 1.0];
        let verdict = |seconds: [f64; 3]| Measured::new(&CACHES, seconds.to_vec(), &plain).verdict;
        assert_eq!(verdict([3.0, 3.01, 3.02]), Some("met"));
        assert_eq!(verdict([3.0, 3.4, 3.8]), Some("open"));
        assert_eq!(verdict([4.0, 4.01, 4.02]), Some("missed"));
        assert_eq!(Measured::new(&PLAIN, plain.to_vec(), &plain).show_ratio(), "");
        assert_eq!(Measured::new(&CACHES, vec![3.0], &plain[..1]).show_ratio(), "3.00 (too few runs)");
    }

    #[test]
    fn time_of_children_is_seen_when_they_were_waited_for() {
        let before = children_seconds().expect("times");
        let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", script]).status().expect("sh").success());
        assert!(children_seconds().expect("times") > before);
    }
}
