//! The plan of a measurement: sides, rows, repetitions. It is checked before the first VM starts.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use tempfile::NamedTempFile;

use super::parse::RowKey;
use super::rows::{self, BenchRow, Waits};
use crate::args::{self, BenchOptions};
use crate::failure::Failure;
use crate::kernel::{self, Family};
use crate::qemu::MAX_CPUS;
use crate::run::Prepared;
use crate::{Result, accel, qemu, scope};

const DEFAULT_MEMORY: &str = "1G";
/// Default time-out: a full run takes about ten seconds on a quiet machine, so a slower VM is
/// stuck.
const DEFAULT_TIMEOUT: &str = "600";
const MOST_RUNS: usize = 1000;
/// Kernel parameter that stops a Debian kernel from clearing memory as it allocates it.
pub const LEAN: &str = "init_on_alloc=0";
/// Largest number of CPUs by default: more would compete with the host's own work.
const DEFAULT_CPUS_AT_MOST: usize = 4;
const PROGRAMS: [&str; 11] = [
    "sequence",
    "leave",
    "syscalls",
    "files",
    "processes",
    "memory",
    "pins",
    "switches",
    "calls",
    "crowds",
    "growth",
];
/// The disk of the rows that wait for one.
const DISK_BYTES: u64 = 64 << 20;
/// A disk of the same size for rows under the microscope. Its latency is so long that a waiting
/// task always sleeps. With a faster disk, luck would decide whether the answer comes before the
/// task looks again, and the instruction count would vary.
const LATE_DISK: &str = "null=64M,latency=1ms";

/// The quantity that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Guest instructions: they repeat.
    Instructions,
    /// The host's time.
    Wall,
}

impl Measure {
    /// Returns the counter of this row.
    pub fn counter(self, row: &BenchRow) -> Counter {
        match (self, row.waits) {
            (Measure::Instructions, Waits::Disk) => Counter::Microscope,
            (Measure::Instructions, Waits::DiskBehindIommu) => Counter::BehindIommu,
            _ => Counter::Clock,
        }
    }
}

/// The counter of a row's cost. The rows of each counter have a VM of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// The guest's clock.
    Clock,
    /// The microscope: the instructions that are executed, and none while a CPU waits.
    Microscope,
    /// The microscope, over a machine whose devices are behind an IOMMU.
    BehindIommu,
}

impl Counter {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Clock, Self::Microscope, Self::BehindIommu];
}

/// How much is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// VMs started on each side.
    pub runs: usize,
    /// Samples of a row in each.
    pub samples: usize,
    /// Operations in a sample are divided by this.
    pub divisor: u32,
}

/// One of the kernels that are compared.
pub struct BenchSide {
    /// Its column's heading.
    pub label: String,
    /// A machine with this kernel and the programs, ready to start.
    pub prepared: Prepared,
    /// The same runs under the microscope, in the form that `freehold scope` takes, for each
    /// counter that has rows.
    pub watched: Vec<(Counter, Vec<OsString>)>,
}

/// All decisions before the first run.
pub struct Plan {
    /// The rows.
    pub rows: Vec<&'static BenchRow>,
    /// Numbers of workers at a time: one, and as many as there are CPUs.
    pub workers: Vec<u32>,
    /// The sides; every other one is compared with the first.
    pub sides: Vec<BenchSide>,
    /// The quantity that is counted.
    pub measure: Measure,
    /// How much is run.
    pub extent: Extent,
    /// The engine that executes the guests.
    pub engine: qemu::Engine,
    /// The disk that the sides use in turn, for measurements by the host's time.
    _disk: Option<NamedTempFile>,
}

impl Plan {
    /// Checks the options and finds kernels and programs.
    pub fn new(options: &BenchOptions) -> Result<Plan> {
        let rows = rows::select(&options.names)?;
        let measure = if options.wall { Measure::Wall } else { Measure::Instructions };
        let extent = extent(options, measure)?;
        let cpus = cpus(options, measure)?;
        let workers = if cpus == 1 { vec![1] } else { vec![1, cpus] };
        let choice = Choice { measure, cpus, extent, workers: &workers, rows: &rows };
        let disk = match measure {
            Measure::Wall if rows.iter().any(|row| row.waits != Waits::Nothing) => Some(disk()?),
            _ => None,
        };
        let side = |side: &WantedSide| -> Result<BenchSide> {
            let mut words = words(options, side, &choice, Counter::Clock)?;
            if let Some(disk) = &disk {
                words = with_disk(&words, disk.path().as_os_str());
            }
            let prepared = Prepared::measurement(&args::run_options(&words)?)?;
            Ok(BenchSide { label: side.label.clone(), prepared, watched: watched(options, side, &choice)? })
        };
        let family = |name: &OsString| {
            let option = if options.against.as_ref() == Some(name) { "--against" } else { "--kernel" };
            Ok(kernel::select(option, name)?.family)
        };
        let sides = sides(options, family)?.iter().map(side).collect::<Result<Vec<_>>>()?;
        let clock = sides[0].prepared.machine.clock;
        let engine = accel::choose(options.accel.unwrap_or(args::Accel::Auto), clock)?;
        qemu::program()?;
        Ok(Plan { rows, workers, sides, measure, extent, engine, _disk: disk })
    }

    /// Returns every row of this counter in each of its forms, in order.
    pub fn keys(&self, counter: Counter) -> Vec<RowKey> {
        let forms = |row: &&'static BenchRow| {
            self.workers.iter().map(|count| (row.name.to_owned(), *count)).collect::<Vec<_>>()
        };
        self.rows.iter().filter(|row| self.measure.counter(row) == counter).flat_map(forms).collect()
    }

    /// Returns whether our kernel is compared with a lean Linux first: only then the rows' goals
    /// apply.
    pub fn has_goals(&self) -> bool {
        let family = |side: &BenchSide| side.prepared.kernel.family;
        let lean =
            |side: &BenchSide| family(side) == Family::Linux && side.prepared.machine.append.contains(LEAN);
        family(&self.sides[0]) == Family::Freehold && self.sides.get(1).is_some_and(lean)
    }
}

fn extent(options: &BenchOptions, measure: Measure) -> Result<Extent> {
    let default = match (measure, options.quick) {
        (Measure::Instructions, false) => Extent { runs: 2, samples: 10, divisor: 1 },
        (Measure::Instructions, true) => Extent { runs: 2, samples: 4, divisor: 5 },
        (Measure::Wall, false) => Extent { runs: 5, samples: 10, divisor: 1 },
        (Measure::Wall, true) => Extent { runs: 3, samples: 4, divisor: 5 },
    };
    let runs = match &options.runs {
        None => default.runs,
        Some(text) => text.parse().ok().filter(|runs| (1..=MOST_RUNS).contains(runs)).ok_or_else(|| {
            Failure::new(format!("--runs {text}: not a number of runs"), format!("1 to {MOST_RUNS}"))
        })?,
    };
    Ok(Extent { runs, ..default })
}

fn cpus(options: &BenchOptions, measure: Measure) -> Result<u32> {
    let host = std::thread::available_parallelism().map_or(1, |count| count.get());
    match (&options.cpus, measure) {
        (None, Measure::Instructions) => Ok(1),
        (None, Measure::Wall) => Ok(host.min(DEFAULT_CPUS_AT_MOST) as u32),
        (Some(text), _) => {
            let wrong =
                || Failure::new(format!("--cpus {text}: not a number of CPUs"), format!("1 to {MAX_CPUS}"));
            let cpus = text.parse().ok().filter(|cpus| (1..=MAX_CPUS).contains(cpus)).ok_or_else(wrong)?;
            if cpus > 1 && measure == Measure::Instructions {
                return Err(Failure::new(
                    format!("--cpus {cpus}: instructions are counted on one CPU"),
                    "--wall measures several",
                ));
            }
            Ok(cpus)
        }
    }
}

/// A side as the user names it.
struct WantedSide {
    label: String,
    kernel: OsString,
    append: String,
}

/// Returns the sides; `family_of` tells the kind of kernel for a name.
fn sides(options: &BenchOptions, family_of: impl Fn(&OsString) -> Result<Family>) -> Result<Vec<WantedSide>> {
    let kernel = options.kernel.clone().unwrap_or_else(|| "freehold".into());
    let append = options.append.join(" ");
    let other_append = options.against_append.join(" ");
    let against = match &options.against {
        Some(against) => against.clone(),
        // One kernel with two command lines.
        None if !other_append.is_empty() => kernel.clone(),
        None => "linux".into(),
    };
    let wanted = |label: String, kernel: &OsString, append: &str| WantedSide {
        label,
        kernel: kernel.clone(),
        append: append.to_owned(),
    };
    let mut sides = vec![wanted(label(&kernel, &append), &kernel, &append)];
    let is_linux = family_of(&against)? == Family::Linux;
    if is_linux && other_append.is_empty() {
        let name = label(&against, "");
        sides.push(wanted(format!("{name}, lean"), &against, LEAN));
        let stock = if against == "linux" { "Linux, Debian".to_owned() } else { name };
        sides.push(wanted(stock, &against, ""));
    } else {
        sides.push(wanted(label(&against, &other_append), &against, &other_append));
    }
    if sides[0].label == sides[1].label {
        if sides[0].kernel == sides[1].kernel && sides[0].append == sides[1].append {
            return Err(Failure::new(
                "both sides are the same kernel with the same command line",
                "--against KERNEL or --against-append PARAMETERS makes a difference",
            ));
        }
        for (side, letter) in sides.iter_mut().zip(["A", "B"]) {
            side.label = format!("{letter}: {}", side.label);
        }
    }
    Ok(sides)
}

/// Returns a heading for a kernel with its parameters, short enough for a table.
fn label(kernel: &OsString, append: &str) -> String {
    const LONGEST: usize = 28;
    let name = match kernel.to_str() {
        Some("freehold") => "Freehold".to_owned(),
        Some("linux") => "Linux".to_owned(),
        _ => Path::new(kernel).file_name().unwrap_or(kernel).to_string_lossy().into_owned(),
    };
    let text = [name.as_str(), append].join(" ").trim().to_owned();
    if text.chars().count() <= LONGEST {
        return text;
    }
    text.chars().take(LONGEST - 1).chain(['…']).collect()
}

/// Choices that all sides share.
struct Choice<'a> {
    measure: Measure,
    cpus: u32,
    extent: Extent,
    workers: &'a [u32],
    rows: &'a [&'static BenchRow],
}

/// Makes a disk for the rows that wait for one.
fn disk() -> Result<NamedTempFile> {
    let made = tempfile::Builder::new().prefix("freehold-").suffix(".disk").tempfile();
    made.and_then(|disk| disk.as_file().set_len(DISK_BYTES).map(|()| disk)).map_err(|e| {
        Failure::new(format!("cannot make a temporary disk: {e}"), "TMPDIR names another folder")
    })
}

/// Returns the side's runs under the microscope, for each counter that has rows, in the form that
/// `freehold scope` takes.
fn watched(
    options: &BenchOptions,
    side: &WantedSide,
    choice: &Choice<'_>,
) -> Result<Vec<(Counter, Vec<OsString>)>> {
    let has_rows = |counter: Counter| choice.rows.iter().any(|row| choice.measure.counter(row) == counter);
    let counters = Counter::ALL.into_iter().filter(|&counter| counter != Counter::Clock && has_rows(counter));
    let words = counters.map(|counter| {
        let words = with_disk(&words(options, side, choice, counter)?, OsStr::new(LATE_DISK));
        // A missing or unsuitable microscope is found before the measurement takes minutes.
        scope::Measurement::prepare(&args::scope_options(&words)?)?;
        Ok((counter, words))
    });
    words.collect()
}

/// Returns these words with this disk.
fn with_disk(words: &[OsString], disk: &OsStr) -> Vec<OsString> {
    ["--disk".into(), disk.into()].into_iter().chain(words.iter().cloned()).collect()
}

/// Returns the benchmark programs as volumes at /bench, in the form that `--volume` takes.
///
/// # Errors
/// A program is missing.
pub fn volumes() -> Result<Vec<OsString>> {
    let volume = |name: &str| {
        let file = kernel::installed(&format!("guest/bench/{name}")).ok_or_else(|| {
            Failure::new(format!("guest/bench/{name} is missing: a benchmark program"), "make build makes it")
        })?;
        let mut volume = file.into_os_string();
        volume.push(format!(":/bench/{name}"));
        Ok(volume)
    };
    PROGRAMS.into_iter().map(volume).collect()
}

/// Returns the side's run with the rows of `counter`, in the form that `freehold run` (`freehold
/// scope`) takes.
fn words(
    options: &BenchOptions,
    side: &WantedSide,
    choice: &Choice<'_>,
    counter: Counter,
) -> Result<Vec<OsString>> {
    let mut words: Vec<OsString> = Vec::new();
    let mut option = |name: &str, value: OsString| {
        words.push(name.into());
        words.push(value);
    };
    option("--kernel", side.kernel.clone());
    option("--memory", options.memory.clone().unwrap_or_else(|| DEFAULT_MEMORY.into()).into());
    option("--cpus", choice.cpus.to_string().into());
    option("--timeout", options.timeout.clone().unwrap_or_else(|| DEFAULT_TIMEOUT.into()).into());
    if !side.append.is_empty() {
        option("--append", side.append.clone().into());
    }
    if let Some(seed) = options.seed.as_ref().filter(|_| counter == Counter::Clock) {
        option("--seed", seed.into());
    }
    for volume in volumes()? {
        option("--volume", volume);
    }
    words.extend(counted(choice, counter));
    Ok(words)
}

/// Returns the end of a side's words: the way to count the rows of `counter`, and the program that
/// runs them.
fn counted(choice: &Choice<'_>, counter: Counter) -> Vec<OsString> {
    let &Choice { measure, extent, workers, rows, .. } = choice;
    let mut words: Vec<OsString> = Vec::new();
    let clock = match (counter, measure) {
        (Counter::Microscope, _) => {
            words.extend(["--model", "locality"].map(OsString::from));
            "watched"
        }
        (Counter::BehindIommu, _) => {
            words.extend(["--model", "locality", "--dma", "direct"].map(OsString::from));
            "watched"
        }
        (Counter::Clock, Measure::Instructions) => {
            words.push("--icount".into());
            "tsc"
        }
        (Counter::Clock, Measure::Wall) => "monotonic",
    };
    let workers: Vec<String> = workers.iter().map(ToString::to_string).collect();
    words.extend(["--", "/bench/sequence"].map(OsString::from));
    words.extend(
        [extent.samples.to_string(), extent.divisor.to_string(), clock.into(), workers.join(",")]
            .map(OsString::from),
    );
    let rows = rows.iter().filter(|row| measure.counter(row) == counter);
    words.extend(rows.map(|row| format!("{}/{}", row.program, row.name).into()));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(name: &OsString) -> Result<Family> {
        Ok(if name == "linux" { Family::Linux } else { Family::Freehold })
    }

    fn options(words: &[&str]) -> BenchOptions {
        args::bench_options(words).expect("a command line")
    }

    #[test]
    fn one_kernel_with_two_command_lines_is_two_sides() {
        let sides = sides(&options(&["--against-append", "page_alloc.shuffle=0"]), family).expect("sides");
        let labels: Vec<&str> = sides.iter().map(|side| side.label.as_str()).collect();
        assert_eq!(labels, ["Freehold", "Freehold page_alloc.shuffle…"]);
        assert_eq!(sides[1].append, "page_alloc.shuffle=0");
        assert_eq!(sides[1].kernel, "freehold");
    }

    #[test]
    fn linux_is_shown_lean_and_as_it_boots_unless_the_user_says_how() {
        let appends = |words: &[&str]| {
            let sides = sides(&options(words), family).expect("sides");
            sides.iter().map(|side| side.append.clone()).collect::<Vec<_>>()
        };
        assert_eq!(appends(&[]), ["", LEAN, ""]);
        assert_eq!(appends(&["--append", "a", "--against", "linux"]), ["a", LEAN, ""]);
        assert_eq!(appends(&["--against", "linux", "--against-append", "b"]), ["", "b"]);
    }

    #[test]
    fn a_kernel_is_not_compared_with_itself_alone() {
        let error = sides(&options(&["--against", "freehold"]), family).err().expect("refused").to_string();
        assert!(error.contains("--against-append"), "{error}");
    }

    #[test]
    fn rows_that_need_an_iommu_have_a_machine_of_their_own() {
        let counters = |measure: Measure| {
            let rows = rows::select(&["read-4k".into(), "direct-*".into()]).expect("rows");
            rows.into_iter().map(|row| measure.counter(row)).collect::<Vec<_>>()
        };
        let [clock, watched, iommu] = Counter::ALL;
        assert_eq!(counters(Measure::Instructions), [clock, watched, watched, iommu]);
        assert_eq!(counters(Measure::Wall), [clock; 4]);
        let choice = Choice {
            measure: Measure::Instructions,
            cpus: 1,
            extent: Extent { runs: 1, samples: 2, divisor: 5 },
            workers: &[1],
            rows: &rows::select(&["direct-*".into()]).expect("rows"),
        };
        let line = |counter| {
            let words = counted(&choice, counter);
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        let (with, without) = (line(iommu), line(watched));
        assert!(with.contains("--dma direct") && with.ends_with("watched 1 pins/direct-read-1m"), "{with}");
        assert!(
            !without.contains("--dma") && without.ends_with("pins/direct-read pins/direct-write"),
            "{without}"
        );
    }

    #[test]
    fn counted_instructions_have_one_cpu_and_runs_are_at_least_one() {
        for (words, part) in [
            (&["--cpus", "2"][..], "--wall"),
            (&["--cpus", "0", "--wall"][..], "1 to 16"),
            (&["--runs", "0"][..], "--runs 0"),
            (&["--runs", "many"][..], "--runs many"),
        ] {
            let options = options(words);
            let measure = if options.wall { Measure::Wall } else { Measure::Instructions };
            let result = extent(&options, measure).and_then(|_| cpus(&options, measure));
            let error = result.expect_err("refused").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
