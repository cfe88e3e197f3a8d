//! `freehold lab xpfo`: the cost of keeping programs' frames out of the kernel's map, and the time
//! for which translations of them outlive their use. (Julian Stecklina, "Redoing eXclusive Page
//! Frame Ownership (XPFO) with isolated CPUs in mind", 2018, and the answers.)
//!
//! Each workload runs once under the microscope with each policy and on a stock Linux, with a clock
//! that counts instructions (1 ns each). Instructions and TLB events are counted; lives of
//! translations are those in the modelled TLB. A policy counts as the kernel's if its publication
//! names it. A policy that the kernel does not have is named as missing and has no row.

mod report;

use std::ffi::OsString;
use std::path::PathBuf;

use freehold_scope_record::{Cause, Half, Lives, Results};
use serde::Serialize;

use super::{Experiment, Extent, Settings};
use crate::failure::Failure;
use crate::schema::LabHead;
use crate::{Result, args, files, print, scope};

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
const SHAPES: [&str; 6] = ["skylake-sp", "skylake-sp:plru", "ice-lake", "ice-lake:plru", "zen5", "zen5:plru"];

/// A program that runs in the VM.
struct Workload {
    name: &'static str,
    /// Programs of the host that it needs, besides busybox.
    needs: &'static [&'static str],
    script: &'static str,
}

const SHELL: Workload = Workload {
    name: "shell",
    needs: &[],
    script: "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo $i >/tmp/f$i; busybox cat /tmp/f$i >/dev/null; done; busybox ls -l /tmp | busybox sort | busybox md5sum",
};
const WORKLOADS: [Workload; 5] = [
    SHELL,
    Workload {
        name: "exec storm",
        needs: &[],
        script: "i=0; while [ $i -lt 300 ]; do i=$((i+1)); busybox true; done",
    },
    Workload {
        name: "tar, gzip -1",
        needs: &[],
        script: "mkdir /tmp/d; i=0; while [ $i -lt 20 ]; do i=$((i+1)); busybox head -c 20000 /proc/self/exe >/tmp/d/$i || exit; done; busybox tar c /tmp/d 2>/dev/null | busybox gzip -1 | busybox md5sum",
    },
    Workload {
        name: "sqlite",
        needs: &["/usr/bin/sqlite3"],
        script: "sqlite3 /tmp/db 'create table t(a integer primary key, b text); with recursive c(x) as (select 1 union all select x+1 from c where x<6000) insert into t select x, hex(x*x) from c; select count(*), sum(length(b)) from t;'",
    },
    Workload {
        name: "gcc -O1",
        needs: &["/usr/lib/gcc/x86_64-linux-gnu/12/cc1"],
        script: "i=0; while [ $i -lt 150 ]; do i=$((i+1)); echo \"int f$i(int *p, int n) { int s = $i; for (int i = 0; i < n; i++) s += p[i] * $i; return s; }\"; done >/tmp/a.c; cc1 -quiet -O1 /tmp/a.c -o /tmp/a.s; busybox md5sum /tmp/a.s",
    },
];

/// Results of one run, of the program's time unless a field says otherwise.
#[derive(Debug, Serialize)]
struct XpfoRow {
    workload: &'static str,
    policy: &'static str,
    tlb: String,
    user_instructions: u64,
    kernel_instructions: u64,
    kernel_walks: u64,
    walks: u64,
    /// First-level misses of loads and stores, of both halves.
    data_misses: u64,
    /// Translations of the kernel half that the modelled TLB was filled with, in the whole run.
    /// Walks of the kernel at programs' addresses are not among them: a new page that the kernel
    /// writes through its program's address is a walk that the program does not make.
    kernel_fills: u64,
    /// The kernel's entries that were evicted from the modelled second level, in the whole run.
    kernel_replaced: u64,
    full_flushes: u64,
    page_flushes: u64,
    switches: u64,
    /// Windows in the whole run.
    windows: u64,
    closed_cached: u64,
    /// The longest life of a closed window, as the upper end of its power of two, including windows
    /// alive at the end.
    longest_closed: u64,
    /// Frames × instructions: while the window was open, after its close, in the direct map.
    exposure: [u64; 3],
    lives: Lives,
    alias_lives: Lives,
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
    /// The default policy with several TLBs.
    shapes: Vec<XpfoRow>,
}

impl XpfoRecord {
    fn new(experiment: &'static str) -> XpfoRecord {
        XpfoRecord {
            head: LabHead::of(experiment),
            how: HOW,
            missing: Vec::new(),
            skipped: Vec::new(),
            rows: Vec::new(),
            shapes: Vec::new(),
        }
    }
}

const HOW: &str = "Instructions, flushes and windows are counted by the microscope with --icount (1 instruction is 1 ns of the guest's \
                   time); walks, misses, replaced entries and lives are those of the modelled TLB; reachable bytes are the non-zero bytes that \
                   were stored while a program owned the frame, looked at at each phase and every 2^26 instructions.";

fn run(settings: &Settings) -> Result<u8> {
    let mut record = XpfoRecord::new(EXPERIMENT.name);
    let mut have = Vec::new();
    for policy in POLICIES {
        print::stderr(format!("freehold: xpfo={policy}: does the kernel have it?\n"));
        if published(policy)? == policy { have.push(policy) } else { record.missing.push(policy) }
    }
    match settings.extent {
        Extent::Quick => measure_all(&mut record, &[SHELL], &have, "tlb")?,
        Extent::Full => {
            let with_linux: Vec<_> = have.iter().copied().chain([LINUX]).collect();
            measure_all(&mut record, &WORKLOADS, &with_linux, "tlb,residue")?;
            measure_shapes(&mut record, &have)?;
        }
    }
    if let Some(path) = &settings.json {
        files::write_json(path, &record)?;
    }
    if let Some(path) = &settings.html {
        report::page(&record).write(path)?;
    }
    settings.print(&report::summary(&record))?;
    if record.missing.is_empty() {
        return Ok(0);
    }
    let names = record.missing.join(", ");
    Err(Failure::new(format!("this kernel has no policy xpfo={names}: not measured"), ""))
}

/// Adds a row for each workload and policy, if the host has the workload's programs.
fn measure_all(
    record: &mut XpfoRecord,
    workloads: &[Workload],
    policies: &[&'static str],
    models: &str,
) -> Result<()> {
    for workload in workloads {
        if let Some(absent) = workload.needs.iter().find(|path| !PathBuf::from(path).exists()) {
            let why = format!("this host has no {absent}");
            record.skipped.push(Skipped { workload: workload.name, why });
            continue;
        }
        for &policy in policies {
            print::stderr(format!("freehold: {}, {policy}\n", workload.name));
            record.rows.push(measure(workload, policy, (models, SHAPES[0]))?);
        }
    }
    Ok(())
}

/// Adds the shell workload with each TLB, under the default policy and on Linux.
fn measure_shapes(record: &mut XpfoRecord, have: &[&'static str]) -> Result<()> {
    let default = have.iter().copied().find(|&policy| policy == DEFAULT);
    for shape in SHAPES {
        print::stderr(format!("freehold: {}, {shape}\n", SHELL.name));
        for policy in default.into_iter().chain([LINUX]) {
            record.shapes.push(measure(&SHELL, policy, ("tlb", shape))?);
        }
    }
    Ok(())
}

/// Returns the policy that the kernel publishes when this one is requested.
fn published(policy: &str) -> Result<String> {
    let words = words(policy, ("locality", SHAPES[0]), &[], "busybox true");
    let (results, _) = scope::Measurement::prepare(&args::scope_options(&words)?)?.run()?;
    Ok(results.oracle.layout.map_or_else(String::new, |layout| layout.policy))
}

fn words(policy: &str, (models, shape): (&str, &str), needs: &[&str], script: &str) -> Vec<OsString> {
    let mut words: Vec<String> =
        ["--icount", "--report", "never", "-m", "256M", "--model", models, "--tlb", shape]
            .map(String::from)
            .into();
    if policy == LINUX {
        words.extend(["--kernel".into(), LINUX.into()]);
    } else {
        words.extend(["--append".into(), format!("xpfo={policy}")]);
    }
    words.extend(needs.iter().flat_map(|path| ["--add".to_owned(), (*path).to_owned()]));
    words.extend(["--", "busybox", "sh", "-c", script].map(String::from));
    words.into_iter().map(OsString::from).collect()
}

fn measure(workload: &Workload, policy: &'static str, how: (&str, &str)) -> Result<XpfoRow> {
    // An added program is named by its path.
    let script = workload.needs.iter().fold(workload.script.to_owned(), |script, path| {
        let name = path.rsplit('/').next().unwrap_or(path);
        script.replace(&format!("{name} "), &format!("{path} "))
    });
    let words = words(policy, how, workload.needs, &script);
    let (results, _) = scope::Measurement::prepare(&args::scope_options(&words)?)?.run()?;
    Ok(row(workload.name, policy, how.1, &results))
}

fn row(workload: &'static str, policy: &'static str, tlb: &str, results: &Results) -> XpfoRow {
    let number = results
        .phases
        .iter()
        .position(|phase| phase.name == "program")
        .unwrap_or(results.phases.len().saturating_sub(1));
    let cpus = || results.phases.get(number).into_iter().flat_map(|phase| &phase.cpus);
    let both = |count: fn(&freehold_scope_record::CpuCounts) -> u64| -> [u64; 2] {
        [cpus().map(|cpu| count(&cpu.modes.user)).sum(), cpus().map(|cpu| count(&cpu.modes.kernel)).sum()]
    };
    let [user_instructions, kernel_instructions] = both(|counts| counts.instructions);
    let [user_walks, kernel_walks] = both(|counts| counts.tlb_walks);
    let data_misses = both(|counts| counts.tlb_data_misses).iter().sum();
    let of_kernel =
        || results.tlb.iter().flat_map(|tlb| &tlb.groups).filter(|group| group.half == Half::Kernel);
    let replaced = of_kernel().flat_map(|group| &group.deaths).filter(|death| death.cause == Cause::Capacity);
    let kernel_replaced = replaced.flat_map(|death| &death.lived).sum();
    let exposure = results.exposure.clone().unwrap_or_default();
    let longest =
        |lives: &[u64]| lives.iter().rposition(|&count| count > 0).map_or(0, |bucket| 2u64 << bucket);
    let looks: Vec<_> = results.residue.iter().filter(|look| look.phase == number).collect();
    let reachable = looks.iter().map(|look| look.reachable_bytes);
    XpfoRow {
        workload,
        policy,
        tlb: tlb.into(),
        user_instructions,
        kernel_instructions,
        kernel_walks,
        walks: user_walks + kernel_walks,
        data_misses,
        kernel_fills: of_kernel().map(|group| group.fills).sum(),
        kernel_replaced,
        full_flushes: cpus().map(|cpu| cpu.full_flushes).sum(),
        page_flushes: cpus().map(|cpu| cpu.page_flushes).sum(),
        switches: cpus().map(|cpu| cpu.space_flushes).sum(),
        windows: exposure.windows,
        closed_cached: exposure.closed_cached,
        longest_closed: longest(&exposure.lives.ended).max(longest(&exposure.lives.alive)),
        exposure: [exposure.open, exposure.closed, exposure.direct],
        lives: exposure.lives,
        alias_lives: exposure.alias_lives,
        alias_until_switch: exposure.alias_until_switch,
        aliases: exposure.aliases,
        reachable_bytes: (!looks.is_empty())
            .then(|| (reachable.clone().sum::<u64>() / looks.len() as u64, reachable.max().unwrap_or(0))),
        residue_frames: results.residue.iter().map(|look| look.residue_frames).max(),
        violations: results.oracle.total,
    }
}

/// A policy of the thread, as a model over the aliases that one run had: the mean life of a stale
/// translation, in instructions.
struct Model {
    name: &'static str,
    life: f64,
}

/// Returns the models for a row. Eager shootdowns leave no stale translation. A deferred flush
/// comes with the next write to CR3. Without any flush a translation lives as long as it did in the
/// run. A periodic full flush at a random phase ends it earlier: the mean of min(L, U), U uniform
/// in the period T, is T / 2 for L ≥ T and L − L² / 2T below. A translation that was alive at the
/// end counts with the life that was seen: a lower bound.
fn models(row: &XpfoRow) -> Vec<Model> {
    let mean = |lives: &[u64], of: &dyn Fn(f64) -> f64| {
        let all: u64 = lives.iter().sum();
        let sum: f64 =
            lives.iter().enumerate().map(|(n, &count)| count as f64 * of(1.5 * 2f64.powi(n as i32))).sum();
        sum / all.max(1) as f64
    };
    let seen: Vec<u64> = (0..64)
        .map(|n| {
            [&row.alias_lives.ended, &row.alias_lives.alive]
                .map(|lives| lives.get(n).copied().unwrap_or(0))
                .iter()
                .sum()
        })
        .collect();
    let mut models = vec![
        Model { name: "eager", life: 0.0 },
        Model { name: "deferred to the next CR3 write", life: mean(&row.alias_until_switch, &|life| life) },
        Model { name: "none", life: mean(&seen, &|life| life) },
    ];
    for (name, period) in
        [("none, 1 Hz", 1e9), ("none, 10 Hz", 1e8), ("none, 100 Hz", 1e7), ("none, 1000 Hz", 1e6)]
    {
        let life =
            move |life: f64| if life >= period { period / 2.0 } else { life - life * life / (2.0 * period) };
        models.push(Model { name, life: mean(&seen, &life) });
    }
    models
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
        assert_eq!(row.longest_closed, 2 << 20, "one was alive in that bucket");
        assert_eq!((row.exposure, row.residue_frames), ([120_000, 9_000_000, 0], Some(2)));
        assert_eq!(row.violations, 3);
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
}
