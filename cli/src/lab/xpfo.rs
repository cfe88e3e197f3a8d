//! `freehold lab xpfo`: the cost of keeping programs' frames out of the kernel's map, and the time
//! for which translations of them outlive their use. (Julian Stecklina, "Redoing eXclusive Page
//! Frame Ownership (XPFO) with isolated CPUs in mind", 2018, and the answers.)
//!
//! Each workload runs under the microscope with each policy and on a stock Linux, with a clock that
//! counts instructions (1 ns each). Where a difference of instructions has a limit, both sides run
//! three times, in turns, of three boots, and the median counts. Programs have the same addresses
//! each time (norandmaps). Instructions and TLB events are counted; lives of
//! translations are those in the modelled TLB. A policy counts as the kernel's if its publication
//! names it. A policy that the kernel does not have is named as missing and has no row.
//!
//! Some figures have limits ([`required`]). The status is 1 if one is missed.

mod measures;
mod report;
mod required;
mod workloads;

use std::ffi::OsString;
use std::path::PathBuf;

use freehold_scope_record::{Cause, CpuCounts, Half, Lives, Phase, Results};
use serde::Serialize;

use super::{Experiment, Extent, MISSED, Settings};
use crate::failure::Failure;
use crate::progress::LabSteps;
use crate::schema::LabHead;
use crate::scope::Digest;
use crate::{Result, args, scope};
use measures::{CheckCost, Leaving, OperationCost, WindowCost};
use required::RequiredFigure;
use workloads::{RATES, SHELL, WORKLOADS, Workload};

/// The experiment's entry in the list.
pub const EXPERIMENT: Experiment = Experiment {
    name: "xpfo",
    question: "What does it cost to keep programs' frames out of the kernel's map, and how long do stale translations live?",
    run,
};

const POLICIES: [&str; 4] = ["off", "lap", "on", "strict"];
/// The kernel's default policy.
const DEFAULT: &str = "on";
const LINUX: &str = "linux";
/// Runs of each side of a difference that has a limit.
const ROUNDS: usize = 3;
const SHAPES: [&str; 6] = ["skylake-sp", "skylake-sp:plru", "ice-lake", "ice-lake:plru", "zen5", "zen5:plru"];

/// Results of one run, of the program's time unless a field says otherwise.
#[derive(Debug, Serialize)]
struct XpfoRow {
    workload: &'static str,
    policy: &'static str,
    tlb: String,
    cpus: u32,
    /// Nanoseconds of the program's time, the time in which the CPU halts included, where the guest
    /// tells it.
    elapsed: Option<u64>,
    /// Interrupts for flushes on other CPUs, if the workload has several.
    shootdowns: Option<u64>,
    /// Instructions of each run, in their order: the row is the run with the median.
    runs: Vec<u64>,
    user_instructions: u64,
    kernel_instructions: u64,
    kernel_walks: u64,
    walks: u64,
    /// First-level misses of loads and stores, of both halves.
    data_misses: u64,
    /// Translations of the kernel half that the modelled TLB was filled with, in the whole run.
    /// Walks for programs' addresses are not counted, even if the kernel makes them: the kernel
    /// writes a new page through the program's address, and saves the program that walk.
    kernel_fills: u64,
    /// The kernel's entries that were evicted from the modelled second level, in the whole run.
    kernel_replaced: u64,
    full_flushes: u64,
    page_flushes: u64,
    switches: u64,
    /// Windows in the whole run.
    windows: u64,
    closed_cached: u64,
    /// The longest life of a closed window, including windows alive at the end: nanoseconds of the
    /// machine's time, an instruction each.
    longest_closed: u64,
    /// The same in instructions of the CPU that holds the translation.
    longest_closed_own: u64,
    /// HLTs of the kernel, and closed windows that were cached then on the CPU that halts, summed.
    halts: u64,
    closed_at_halts: u64,
    /// Frames × instructions: while the window was open, after its close, in the direct map.
    exposure: [u64; 3],
    lives: Lives,
    alias_lives: Lives,
    other_alias_lives: Lives,
    alias_until_switch: Vec<u64>,
    aliases: u64,
    /// Programs' bytes that the kernel half maps outside windows: the mean and the maximum of the
    /// samples in the program's time. `None`: no samples.
    reachable_bytes: Option<(u64, u64)>,
    /// Frames that belonged to a program, with its bytes, in the kernel's map: the maximum of all
    /// samples.
    residue_frames: Option<u64>,
    violations: u64,
}

/// A workload that did not run, and why.
#[derive(Debug, Serialize)]
struct Skipped {
    workload: &'static str,
    why: String,
}

/// All results.
#[derive(Serialize)]
struct XpfoRecord {
    #[serde(flatten)]
    head: LabHead,
    how: &'static str,
    /// Policies that the kernel does not have.
    missing: Vec<&'static str>,
    skipped: Vec<Skipped>,
    rows: Vec<XpfoRow>,
    /// Rates with several TLBs.
    shapes: Vec<XpfoRow>,
    operations: Vec<OperationCost>,
    window: Vec<WindowCost>,
    leaving: Option<Leaving>,
    check: Vec<CheckCost>,
    required: Vec<RequiredFigure>,
}

impl XpfoRecord {
    fn new(experiment: &'static str) -> XpfoRecord {
        XpfoRecord {
            head: LabHead::of(experiment, None),
            how: HOW,
            missing: Vec::new(),
            skipped: Vec::new(),
            rows: Vec::new(),
            shapes: Vec::new(),
            operations: Vec::new(),
            window: Vec::new(),
            leaving: None,
            check: Vec::new(),
            required: Vec::new(),
        }
    }

    /// Returns the row of the same workload under `off`, if it was measured.
    fn base_of(&self, row: &XpfoRow) -> Option<&XpfoRow> {
        self.rows.iter().find(|other| other.workload == row.workload && other.policy == "off")
    }

    /// Returns kernel instructions and all instructions over those of `off`, in percent, if `off`
    /// was measured.
    fn overhead(&self, row: &XpfoRow) -> Option<(f64, f64)> {
        let base = self.base_of(row)?;
        let over = |own: u64, base: u64| (own as f64 / base.max(1) as f64 - 1.0) * 100.0;
        let all = |row: &XpfoRow| row.kernel_instructions + row.user_instructions;
        Some((over(row.kernel_instructions, base.kernel_instructions), over(all(row), all(base))))
    }

    /// Returns how often the TLB was filled with a translation of the kernel half for each window,
    /// more than under `off`, if `off` was measured and there were windows.
    fn fills_a_window(&self, row: &XpfoRow) -> Option<f64> {
        let base = self.base_of(row)?;
        let windows = row.windows.checked_sub(base.windows).filter(|&windows| windows > 0)?;
        Some((row.kernel_fills as f64 - base.kernel_fills as f64) / windows as f64)
    }
}

const HOW: &str = "Instructions, flushes and windows are counted by the microscope with --icount (1 instruction is 1 ns of the guest's \
                   time); walks, misses, replaced entries and lives are those of the modelled TLB; reachable bytes are the non-zero bytes that \
                   were stored while a program owned the frame, looked at at each phase and every 2^26 instructions.";

fn run(settings: &Settings) -> Result<u8> {
    let mut record = XpfoRecord::new(EXPERIMENT.name);
    let mut have = Vec::new();
    let asked = |policy: &str| format!("xpfo={policy}: does the kernel have it?");
    let mut steps = LabSteps::new(POLICIES.map(asked))?;
    for policy in POLICIES {
        let name = asked(policy);
        let Some(told) = steps.step(&name, &name, || published(policy))? else { break };
        if told == policy { have.push(policy) } else { record.missing.push(policy) }
    }
    match settings.extent {
        Extent::Quick => measure_all(&mut record, (&[SHELL], &have, "tlb"), &mut steps)?,
        Extent::Full => {
            let with_linux: Vec<_> = have.iter().copied().chain([LINUX]).collect();
            measure_all(&mut record, (&WORKLOADS, &with_linux, "tlb,residue"), &mut steps)?;
            measure_shapes(&mut record, &have, &mut steps)?;
        }
    }
    if let Err(status) = measure_parts(&mut record, settings.extent, &mut steps)? {
        return Ok(status);
    }
    let ended_by = steps.end()?;
    record.head = LabHead::of(EXPERIMENT.name, ended_by);
    record.required = required::figures(&record);
    settings.write_record(&record)?;
    settings.write_page(|| report::page(&record), ended_by)?;
    let is_met = record.required.iter().all(|figure| figure.is_met);
    let status = settings.conclude(&report::summary(&record), ended_by, if is_met { 0 } else { MISSED })?;
    if record.missing.is_empty() || ended_by.is_some() {
        return Ok(status);
    }
    let names = record.missing.join(", ");
    Err(Failure::new(format!("this kernel has no policy xpfo={names}: not measured"), ""))
}

/// Adds a row for each workload and policy, if the host has the workload's programs.
fn measure_all(
    record: &mut XpfoRecord,
    (workloads, policies, models): (&[Workload], &[&'static str], &str),
    steps: &mut LabSteps,
) -> Result<()> {
    let (workloads, absent): (Vec<_>, Vec<_>) =
        workloads.iter().partition(|workload| lacks(workload).is_none());
    absent.into_iter().for_each(|workload| skip(record, workload));
    let name = |workload: &Workload, policy: &str| format!("{}, {policy}", workload.name);
    let turns: Vec<_> = workloads.iter().flat_map(|&workload| turns(workload, policies)).collect();
    steps.add(turns.iter().map(|turn| name(turn.workload, turn.policy)));
    for turn in turns {
        let name = name(turn.workload, turn.policy);
        let row = steps.step(&name, &name, || measure(&turn, (models, SHAPES[0])))?;
        record.rows.extend(row);
    }
    record.rows = medians(std::mem::take(&mut record.rows));
    Ok(())
}

/// One run of a workload.
struct Turn<'a> {
    workload: &'a Workload,
    policy: &'static str,
    /// With counted instructions: the boot, of which random numbers are made.
    seed: usize,
}

/// Returns the runs of a workload, in their order.
fn turns<'a>(workload: &'a Workload, policies: &[&'static str]) -> Vec<Turn<'a>> {
    let again = |policy: &&str| required::has_limit(workload.name) && ["off", DEFAULT].contains(policy);
    let round = |seed: usize| policies.iter().copied().filter(move |policy| seed == 1 || again(policy));
    let turn = |seed| round(seed).map(move |policy| Turn { workload, policy, seed });
    (1..=ROUNDS).flat_map(turn).collect()
}

/// Returns, of the runs of each workload and policy, the one with the median of instructions; of an
/// even number, the lower of the two.
fn medians(runs: Vec<XpfoRow>) -> Vec<XpfoRow> {
    let mut groups: Vec<Vec<XpfoRow>> = Vec::new();
    for run in runs {
        let alike = |group: &&mut Vec<XpfoRow>| {
            group.first().is_some_and(|first| (first.workload, first.policy) == (run.workload, run.policy))
        };
        match groups.iter_mut().find(alike) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups.into_iter().filter_map(median).collect()
}

fn median(mut runs: Vec<XpfoRow>) -> Option<XpfoRow> {
    let all: Vec<u64> = runs.iter().flat_map(|run| run.runs.iter().copied()).collect();
    runs.sort_by_key(|run| run.user_instructions + run.kernel_instructions);
    let middle = runs.len().checked_sub(1)? / 2;
    Some(XpfoRow { runs: all, ..runs.swap_remove(middle) })
}

/// Returns a program of the workload that the host does not have.
fn lacks(workload: &Workload) -> Option<&'static str> {
    workload.needs.iter().copied().find(|path| !PathBuf::from(path).exists())
}

/// Notes, once, that a workload is skipped.
fn skip(record: &mut XpfoRecord, workload: &Workload) {
    if let Some(absent) = lacks(workload)
        && record.skipped.iter().all(|skipped| skipped.workload != workload.name)
    {
        let why = format!("this host has no {absent}");
        record.skipped.push(Skipped { workload: workload.name, why });
    }
}

/// Adds the rates with each TLB: all policies of interest, and Linux.
fn measure_shapes(record: &mut XpfoRecord, have: &[&'static str], steps: &mut LabSteps) -> Result<()> {
    let policies = || ["off", DEFAULT].into_iter().filter(|policy| have.contains(policy)).chain([LINUX]);
    let (workloads, absent): (Vec<_>, Vec<_>) = RATES.iter().partition(|workload| lacks(workload).is_none());
    absent.into_iter().for_each(|workload| skip(record, workload));
    let keys = workloads.iter().flat_map(|workload| SHAPES.map(|_| workload.name.to_owned()));
    steps.add(keys.flat_map(|key| policies().map(move |_| key.clone())));
    for workload in workloads {
        for (shape, policy) in SHAPES.iter().flat_map(|shape| policies().map(move |policy| (shape, policy))) {
            let name = format!("{}, {shape}, {policy}", workload.name);
            let turn = Turn { workload, policy, seed: 1 };
            let row = steps.step(workload.name, &name, || measure(&turn, ("tlb", shape)))?;
            record.shapes.extend(row);
        }
    }
    Ok(())
}

/// Measures operations, windows, pageblocks that leave the map, and the check. The inner error is
/// an exit status: the user knows the reason.
fn measure_parts(
    record: &mut XpfoRecord,
    extent: Extent,
    steps: &mut LabSteps,
) -> Result<std::result::Result<(), u8>> {
    const PARTS: [&str; 4] = ["operations", "windows", "pageblocks that leave the map", "its check"];
    steps.add(PARTS.map(str::to_owned));
    let [operations, windows, leaving, check] = PARTS;
    match steps.step(operations, operations, || measures::operations(extent))?.transpose() {
        Ok(operations) => record.operations = operations.unwrap_or_default(),
        Err(status) => return Ok(Err(status)),
    }
    let counted = steps.step(windows, windows, || measures::windows(&record.operations))?;
    record.window = counted.unwrap_or_default();
    record.leaving = steps.step(leaving, leaving, measures::leaving)?;
    record.check = steps.step(check, check, measures::checks)?.unwrap_or_default();
    Ok(Ok(()))
}

/// Returns the policy that the kernel publishes when this one is requested.
fn published(policy: &str) -> Result<String> {
    let words = words(("locality", SHAPES[0]), (&SHELL, policy, 1), "busybox true");
    let (results, _) = scope::Measurement::prepare(&args::scope_options(&words)?)?.run()?;
    Ok(results.oracle.layout.map_or_else(String::new, |layout| layout.policy))
}

fn words(
    (models, shape): (&str, &str),
    (workload, policy, seed): (&Workload, &str, usize),
    script: &str,
) -> Vec<OsString> {
    let mut words: Vec<String> =
        ["--report", "never", "-m", "256M", "--model", models, "--tlb", shape].map(String::from).into();
    // Several CPUs cannot run on one counted clock.
    if workload.cpus == 1 {
        words.extend(["--icount".into(), "--seed".into(), seed.to_string()]);
    } else {
        words.extend(["--cpus".into(), workload.cpus.to_string(), "--timeout".into(), "30m".into()]);
    }
    if policy == LINUX {
        words.extend(["--kernel".into(), LINUX.into()]);
    } else {
        words.extend(["--append".into(), format!("xpfo={policy}")]);
    }
    // Whether a stack crosses a page would be a draw, of hundreds of faults.
    words.extend(["--append".into(), "norandmaps".into()]);
    words.extend(workload.needs.iter().flat_map(|path| ["--add".to_owned(), (*path).to_owned()]));
    words.extend(["--", "busybox", "sh", "-c", script].map(String::from));
    words.into_iter().map(OsString::from).collect()
}

fn measure(turn: &Turn, how: (&str, &str)) -> Result<XpfoRow> {
    let &Turn { workload, policy, seed } = turn;
    let words = words(how, (workload, policy, seed), &workload.script());
    let (results, output) = scope::Measurement::prepare(&args::scope_options(&words)?)?.run()?;
    let output = String::from_utf8_lossy(&output);
    let row = row(workload.name, policy, how.1, &results);
    // The guest's clock ticks in hundredths of a second; a nanosecond is an instruction.
    let busy = row.user_instructions + row.kernel_instructions;
    let elapsed = workloads::elapsed(&output).map(|elapsed| elapsed.max(busy));
    let shootdowns = workloads::shootdowns(&output);
    Ok(XpfoRow { elapsed, cpus: workload.cpus, shootdowns, ..row })
}

fn row(workload: &'static str, policy: &'static str, tlb: &str, results: &Results) -> XpfoRow {
    let number = results
        .phases
        .iter()
        .position(|phase| phase.name == Phase::PROGRAM)
        .unwrap_or(results.phases.len().saturating_sub(1));
    let digest = Digest::of(results);
    let both = |count: fn(&CpuCounts) -> u64| -> [u64; 2] {
        [digest.total(|cpu| count(&cpu.modes.user)), digest.total(|cpu| count(&cpu.modes.kernel))]
    };
    let [user_instructions, kernel_instructions] = both(|counts| counts.instructions);
    let [user_walks, kernel_walks] = both(|counts| counts.tlb_walks);
    let data_misses = both(|counts| counts.tlb_data_misses).iter().sum();
    let of_kernel =
        || results.tlb.iter().flat_map(|tlb| &tlb.groups).filter(|group| group.half == Half::Kernel);
    let replaced = of_kernel().flat_map(|group| &group.deaths).filter(|death| death.cause == Cause::Capacity);
    let kernel_replaced = replaced.flat_map(|death| &death.lived).sum();
    let exposure = results.exposure.clone().unwrap_or_default();
    let looks: Vec<_> = results.residue.iter().filter(|look| look.phase == number).collect();
    let reachable = looks.iter().map(|look| look.reachable_bytes);
    XpfoRow {
        workload,
        policy,
        tlb: tlb.into(),
        cpus: 1,
        elapsed: None,
        shootdowns: None,
        runs: vec![user_instructions + kernel_instructions],
        user_instructions,
        kernel_instructions,
        kernel_walks,
        walks: user_walks + kernel_walks,
        data_misses,
        kernel_fills: of_kernel().map(|group| group.fills).sum(),
        kernel_replaced,
        full_flushes: digest.total(|cpu| cpu.full_flushes),
        page_flushes: digest.total(|cpu| cpu.page_flushes),
        switches: digest.total(|cpu| cpu.space_flushes),
        windows: exposure.windows,
        closed_cached: exposure.closed_cached,
        longest_closed: exposure.longest_closed,
        longest_closed_own: exposure.longest_closed_own,
        halts: exposure.halts,
        closed_at_halts: exposure.closed_at_halts,
        exposure: [exposure.open, exposure.closed, exposure.direct],
        lives: exposure.lives,
        alias_lives: exposure.alias_lives,
        other_alias_lives: exposure.other_alias_lives,
        alias_until_switch: exposure.alias_until_switch,
        aliases: exposure.aliases,
        reachable_bytes: (!looks.is_empty())
            .then(|| (reachable.clone().sum::<u64>() / looks.len() as u64, reachable.max().unwrap_or(0))),
        residue_frames: results.residue.iter().map(|look| look.residue_frames).max(),
        violations: results.oracle.total,
    }
}

/// A policy of the thread, as a model over the aliases that one run had: the mean life of a stale
/// translation on the CPU whose program takes the frame, or on another, in instructions.
struct Model {
    name: &'static str,
    life: f64,
}

/// Returns the models for a row. Eager shootdowns leave no stale translation. A deferred flush
/// comes with the next write to CR3 of the CPU that takes the frame, and a local INVLPG on that
/// CPU: the translations of other CPUs stay. Without any flush a translation lives as long as it
/// did in the run. A periodic full flush at a random phase ends it earlier: the mean of min(L, U),
/// U uniform in the period T, is T / 2 for L ≥ T and L − L² / 2T below. A translation that was
/// alive at the end counts with the life that was seen: a lower bound.
fn models(row: &XpfoRow) -> Vec<Model> {
    let own = both(&row.alias_lives);
    let others = both(&row.other_alias_lives);
    let everyone: Vec<u64> = own.iter().zip(&others).map(|(own, other)| own + other).collect();
    let all: u64 = everyone.iter().sum();
    let mean = |lives: &[u64], of: &dyn Fn(f64) -> f64| {
        let life = |n: usize| of(1.5 * 2f64.powi(n as i32));
        let sum: f64 = lives.iter().enumerate().map(|(n, &count)| count as f64 * life(n)).sum();
        sum / all.max(1) as f64
    };
    let elsewhere = mean(&others, &|life| life);
    let deferred = mean(&row.alias_until_switch, &|life| life);
    let mut models = vec![
        Model { name: "eager", life: 0.0 },
        Model { name: "local INVLPG", life: elsewhere },
        Model { name: "deferred to the next CR3 write", life: deferred + elsewhere },
        Model { name: "none", life: mean(&everyone, &|life| life) },
    ];
    for (name, period) in
        [("none, 1 Hz", 1e9), ("none, 10 Hz", 1e8), ("none, 100 Hz", 1e7), ("none, 1000 Hz", 1e6)]
    {
        let life =
            move |life: f64| if life >= period { period / 2.0 } else { life - life * life / (2.0 * period) };
        models.push(Model { name, life: mean(&everyone, &life) });
    }
    models
}

/// Returns lives by length, ended or not.
fn both(lives: &Lives) -> Vec<u64> {
    let at = |lives: &[u64], n: usize| lives.get(n).copied().unwrap_or(0);
    (0..64).map(|n| at(&lives.ended, n) + at(&lives.alive, n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::sample;

    #[test]
    fn a_row_has_the_figures_of_the_record() {
        let results = sample();
        let row = row("shell", "lap", "skylake-sp", &results);
        assert_eq!((row.windows, row.closed_cached, row.aliases), (900, 850, 40));
        assert_eq!((row.longest_closed, row.halts, row.closed_at_halts), (1_500_000, 12, 2));
        assert_eq!((row.exposure, row.residue_frames), ([120_000, 9_000_000, 0], Some(2)));
        assert_eq!(row.violations, 3);
    }

    #[test]
    fn a_row_is_the_median_of_its_runs() {
        let run = |policy, kernel_instructions| XpfoRow {
            user_instructions: 1,
            kernel_instructions,
            runs: vec![kernel_instructions + 1],
            ..row("shell", policy, "skylake-sp", &sample())
        };
        let rows = medians(vec![run("off", 8), run("on", 9), run("off", 7), run("on", 30), run("off", 50)]);
        let told = rows.iter().map(|row| (row.policy, row.kernel_instructions, row.runs.clone()));
        assert_eq!(
            told.collect::<Vec<_>>(),
            [("off", 8, vec![9, 8, 51]), ("on", 9, vec![10, 31])],
            "and all runs are kept"
        );
    }

    #[test]
    fn both_sides_of_a_limit_run_in_turns() {
        let policies = |workload: &Workload| -> Vec<&str> {
            turns(workload, &["off", "lap", DEFAULT, LINUX]).iter().map(|turn| turn.policy).collect()
        };
        assert_eq!(policies(&SHELL), ["off", "lap", "on", "linux", "off", "on", "off", "on"]);
        let seeds: Vec<_> = turns(&SHELL, &["off", DEFAULT]).iter().map(|turn| turn.seed).collect();
        assert_eq!(seeds, [1, 1, 2, 2, 3, 3]);
        assert_eq!(policies(&RATES[0]), ["off", "lap", "on", "linux"]);
    }

    #[test]
    fn a_periodic_flush_ends_long_lives_and_leaves_short_ones() {
        let row = row("shell", "lap", "skylake-sp", &sample());
        let models = models(&row);
        let life = |name: &str| models.iter().find(|model| model.name == name).expect("a model").life;
        assert!(life("eager") == 0.0 && life("deferred to the next CR3 write") == 1.5 * 4096.0);
        assert!(life("none, 1000 Hz") < life("none, 1 Hz") && life("none, 1 Hz") < life("none"));
        let exact = (3.0 * (98_304.0 - 98_304f64.powi(2) / 2e6) + 5.0 * 5e5) / 8.0;
        assert!((life("none, 1000 Hz") - exact).abs() < 1.0, "{}", life("none, 1000 Hz"));
    }

    #[test]
    fn a_local_flush_leaves_the_other_cpus_translations() {
        let mut row = row("shell", "lap", "skylake-sp", &sample());
        let life =
            |row: &XpfoRow| models(row).iter().find(|model| model.name == "local INVLPG").expect("it").life;
        assert_eq!(life(&row), 0.0, "one CPU has no others");
        row.other_alias_lives.ended = vec![0, 8];
        assert_eq!(life(&row), 1.5, "8 of 16 lived for 3");
    }
}
