//! `freehold lab bounce`: the cost of bounce buffers, and the cost of their growth. (Petr Tesarik,
//! "Allow dynamic allocation of software IO TLB bounce buffers", 2023: its table compares a pool of
//! 64 MiB with one that grows from 1 MiB.)
//!
//! One program (guest/workloads/transfers.c) reads and writes a disk past the cache, with the
//! table's sizes and numbers of threads. The growing pool begins with 256 KiB, since most rows of
//! that table need less than 1 MiB. The microscope counts instructions and bytes that the kernel
//! stores, on one CPU. The guest's clock is the host's: a counted clock would leap over the waits
//! for a disk, and the kernel's periodic work of that time would count. Rates are those of runs
//! without the microscope, with the sides in turn. Linux gets a disk behind the DMA API
//! (ACCESS_PLATFORM), which bounces on request (`swiotlb=force`) or is behind VT-d. With a disk of
//! QEMU's that stores nothing (null-co), the host's share of the cost is left out.
//!
//! A count is the median of the boots, three of a side that is shown and five of one that is
//! judged: the host decides how long the guest waits for its disk, and how many requests one
//! interrupt ends, which changes a count in both directions. A pair of sides that misses a goal is
//! booted again, in turn, up to fifteen times. The record has the count of each boot.
//!
//! A confidential guest cannot run here. Its row is that of the growing pool, plus a stated cost
//! for each call that shares memory with the host ([`CALL`]): one call for each piece by which the
//! pool grows.
//!
//! Exit status: 1 where a full run misses a goal ([`GOALS`]), or a pool that has to grow does not.
//! A sentence names each. A quick run measures once, and its ratios are not compared with limits.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use freehold_scope_record::{CpuCounts, Results};
use serde::Serialize;

use super::{Experiment, Extent, MISSED, Settings, output_of};
use crate::bench::table::aligned;
use crate::failure::Failure;
use crate::html::{Cell, Column, Page, Table, Tile, Tone};
use crate::progress::LabSteps;
use crate::schema::LabHead;
use crate::statistics::median;
use crate::{Result, args, kernel, print, scope};

/// The experiment's entry in the list.
pub const EXPERIMENT: Experiment = Experiment {
    name: "bounce",
    question: "What does a transfer through bounce buffers cost, and what does their growth cost?",
    run,
};

const PROGRAM: &str = "guest/workloads/transfers";
/// Bytes of the disk.
const DISK: u64 = 32 << 20;
const WAYS: [&str; 2] = ["read", "write"];
/// Initial size of the growing pool.
const SMALL: u64 = 256 << 10;
/// The largest cost of growing, as a multiple of the cost of a pool of 64 MiB: in the long run, and
/// in a first run as a whole, in which the pool grows.
const GOALS: [f64; 2] = [1.01, 1.05];
/// Bytes of the smallest piece by which the pool grows where memory is free: the cost of a
/// confidential guest is stated for these, though fewer and larger pieces may do.
const SEGMENT: u64 = 256 << 10;
/// Instructions of a call that shares a piece of 64 pages with a host, or makes it private again:
/// stated, not measured. A hypervisor changes each page's state and flushes its translations.
const CALL: f64 = 100_000.0;

/// A row of the source's table, or of ours.
struct Load {
    name: &'static str,
    kib: u64,
    threads: u64,
    /// Transfers of each thread, in a first run.
    count: u64,
    /// Number of times as many in the long run. How many requests of 24 threads one interrupt
    /// ends depends on the host: over 40 transfers of each that changes a count by up to 8%, over
    /// 200 by some 2%.
    times: u64,
}

const LOADS: [Load; 6] = [
    Load { name: "small", kib: 4, threads: 1, count: 400, times: 1 },
    Load { name: "big", kib: 64, threads: 1, count: 200, times: 1 },
    Load { name: "4way", kib: 4, threads: 4, count: 200, times: 1 },
    Load { name: "24way", kib: 4, threads: 24, count: 60, times: 5 },
    Load { name: "24way at 64 KiB", kib: 64, threads: 24, count: 40, times: 5 },
    Load { name: "deep", kib: 256, threads: 16, count: 20, times: 1 },
];

impl Load {
    /// Returns whether the transfers in flight exceed the small pool. A disk has 16 requests.
    const fn must_grow(&self) -> bool {
        let at_once = if self.threads < 16 { self.threads } else { 16 };
        at_once * self.kib * 1024 > SMALL
    }
    /// Transfers of a first run, without the first ones.
    const fn transfers(&self) -> u64 {
        self.threads * self.count
    }
    /// Transfers of the long run.
    const fn long_run(&self) -> u64 {
        self.transfers() * self.times
    }
    /// Transfers that the program does first.
    const fn first(&self) -> u64 {
        self.threads * if self.count < 8 { self.count } else { 8 }
    }
}

/// The place of a disk's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Medium {
    /// A file in the host's memory.
    File,
    /// No place. Its answers take a millisecond, so that as many requests as possible are under
    /// way.
    NullCo,
}

/// A kernel, the way in which its devices reach memory, and the disk.
struct BounceSide {
    name: &'static str,
    words: &'static [&'static str],
    medium: Medium,
}

impl BounceSide {
    const fn new(name: &'static str, words: &'static [&'static str]) -> Self {
        Self { name, words, medium: Medium::File }
    }
    const fn null(name: &'static str, words: &'static [&'static str]) -> Self {
        Self { name, words, medium: Medium::NullCo }
    }
    /// Whether it is one of a pair that is compared.
    fn is_judged(&self) -> bool {
        PAIRS.iter().any(|(growing, fixed)| [growing.name, fixed.name].contains(&self.name))
    }
}

const GROW: &[&str] = &["--append", "swiotlb=128"];
const STAY: &[&str] = &["--append", "swiotlb=32768"];
const GROWING: BounceSide = BounceSide::new("growing", GROW);
const FIXED: BounceSide = BounceSide::new("64 MiB", STAY);
const GROWING_NULL: BounceSide = BounceSide::null("growing, null-co", GROW);
const FIXED_NULL: BounceSide = BounceSide::null("64 MiB, null-co", STAY);
const BEHIND: BounceSide = BounceSide::new("growing, VT-d", &["--append", "swiotlb=128", "--iommu"]);
const DIRECT: BounceSide = BounceSide::new("direct, VT-d", &["--append", "swiotlb=128", "--dma", "direct"]);
const FORCE: BounceSide = BounceSide::new(
    "Linux, force",
    &["--kernel", "linux", "--iommu", "--append", "intel_iommu=off swiotlb=force"],
);
const LINUX: BounceSide = BounceSide::new("Linux, VT-d", &["--kernel", "linux", "--iommu"]);
/// Sides that are judged, each by the one beside it.
const PAIRS: [(BounceSide, BounceSide); 2] = [(GROWING, FIXED), (GROWING_NULL, FIXED_NULL)];
/// Name of the row that is computed.
const CONFIDENTIAL: &str = "growing, confidential (stated)";

/// Extents of the measurement.
struct Extents {
    loads: &'static [Load],
    sides: &'static [BounceSide],
    /// Boots of each side under the microscope, of those that are judged, and the most of those
    /// whose pair misses a goal.
    counted: u32,
    judged: u32,
    most: u32,
    timed: u32,
}

impl Extents {
    fn of(settings: &Settings) -> Extents {
        let extents = match settings.extent {
            Extent::Full => Extents {
                loads: &LOADS,
                sides: &[GROWING, FIXED, GROWING_NULL, FIXED_NULL, BEHIND, DIRECT, FORCE, LINUX],
                counted: 3,
                judged: 5,
                most: 15,
                timed: 5,
            },
            Extent::Quick => Extents {
                loads: &LOADS[4..5],
                sides: &[GROWING, FIXED],
                counted: 1,
                judged: 1,
                most: 1,
                timed: 1,
            },
        };
        Extents { timed: settings.boots.unwrap_or(extents.timed), ..extents }
    }
}

/// Results of one way in one boot.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Counted {
    /// Kernel instructions per transfer: in the long run, and of the first ones.
    instructions: [f64; 2],
    /// Bytes that the kernel stored per transferred byte.
    stored: f64,
}

/// One row of the answer.
#[derive(Debug, Clone, Serialize)]
struct BounceRow {
    load: &'static str,
    way: &'static str,
    side: &'static str,
    /// Kernel instructions per transfer: in the long run, and of the first ones. The median of the
    /// boots.
    instructions: [f64; 2],
    /// The same of each boot.
    boots: Vec<[f64; 2]>,
    stored_per_byte: f64,
    /// Bytes of the pool before and after.
    pool: [u64; 2],
    /// Rate of each boot.
    mib_per_second: Vec<f64>,
}

impl BounceRow {
    fn mean(&self) -> f64 {
        self.mib_per_second.iter().sum::<f64>() / self.mib_per_second.len().max(1) as f64
    }
    /// Returns the standard deviation over the mean; `None` for fewer than two boots.
    fn variation(&self) -> Option<f64> {
        let (mean, count) = (self.mean(), self.mib_per_second.len());
        let squares: f64 = self.mib_per_second.iter().map(|rate| (rate - mean).powi(2)).sum();
        (count > 1).then(|| (squares / (count - 1) as f64).sqrt() / mean)
    }
}

#[derive(Serialize)]
struct BounceRecord<'a> {
    #[serde(flatten)]
    head: LabHead,
    how: &'static str,
    rows: &'a [BounceRow],
}

const HOW: &str = "Kernel instructions and stored bytes per transfer are counted on one CPU under the microscope. Rates are those of runs without the microscope. \
                   The disk is a file in memory; the pool that grows begins with 256 KiB.";

fn run(settings: &Settings) -> Result<u8> {
    let extents = Extents::of(settings);
    let program = kernel::installed(PROGRAM)
        .ok_or_else(|| Failure::new(format!("{PROGRAM} is missing"), "make build makes it"))?;
    let folder = in_memory()?;
    let disk = folder.path().join("disk");
    let made = std::fs::write(&disk, vec![0x5a; DISK as usize]);
    made.map_err(|e| Failure::io("write", &disk, &e))?;
    let mut rows = Vec::new();
    let mut steps = LabSteps::new(extents.loads.iter().map(|load| load.name.to_owned()))?;
    for load in extents.loads {
        let name = format!("{}: {} KiB, {} threads", load.name, load.kib, load.threads);
        let measured = steps.step(load.name, &name, || rows_of(&extents, load, (&program, &disk)))?;
        rows.extend(measured.into_iter().flatten());
    }
    let ended_by = steps.end()?;
    let head = LabHead::of(EXPERIMENT.name, ended_by);
    settings.write_record(&BounceRecord { head, how: HOW, rows: &rows })?;
    settings.write_page(|| page(&rows), ended_by)?;
    let misses = misses(&rows, settings.extent);
    misses.iter().for_each(|miss| print::stderr(format!("freehold: {miss}\n")));
    settings.conclude(&summary(&rows), ended_by, if misses.is_empty() { 0 } else { MISSED })
}

/// Returns a sentence for each row whose pool did not grow though it had to, and in a full run for
/// each goal that a row misses.
fn misses(rows: &[BounceRow], extent: Extent) -> Vec<String> {
    let still = rows.iter().filter(|row| !has_grown(row)).map(|row| {
        let BounceRow { load, way, side, pool, .. } = row;
        format!("{load}, {way}, {side}: the pool did not grow from {} KiB.", pool[0] >> 10)
    });
    let is_judged = |_: &(&BounceRow, [f64; 2])| extent == Extent::Full;
    let costly = ratios(rows).filter(is_judged).flat_map(|(row, ratio)| {
        ["in the long run", "in the first run"].into_iter().zip(ratio).zip(GOALS).filter_map(
            move |((when, ratio), goal)| {
                let BounceRow { load, way, side, .. } = row;
                let miss = format!("{load}, {way}, {side}: {ratio:.3} times the instructions of a pool of 64 MiB {when}, at most {goal} are asked.");
                (ratio > goal).then_some(miss)
            },
        )
    });
    still.chain(costly).collect()
}

/// Returns a folder in memory, if the host has such a file system.
fn in_memory() -> Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("freehold-lab-");
    let made = builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir());
    made.map_err(|e| Failure::new(format!("cannot make a temporary folder: {e}"), ""))
}

/// Returns whether a pool that begins small has grown, if it has to.
fn has_grown(row: &BounceRow) -> bool {
    let must = LOADS.iter().any(|load| load.name == row.load && load.must_grow());
    !must || !row.side.starts_with(GROWING.name) || row.pool[1] > row.pool[0]
}

/// Measures all sides of a load, both ways.
fn rows_of(
    extents: &Extents,
    load: &'static Load,
    (program, disk): (&Path, &PathBuf),
) -> Result<Vec<BounceRow>> {
    let mut tallies: Vec<BounceTally> =
        extents.sides.iter().map(|side| BounceTally::new(side, load)).collect();
    let mut rows: Vec<BounceRow> = Vec::new();
    for round in 0..extents.most {
        let costly: Vec<&str> = costly_sides(&rows).collect();
        let is_due = |side: &BounceSide| {
            let least = if side.is_judged() { extents.judged } else { extents.counted };
            round < least || costly.contains(&side.name)
        };
        let due = tallies.iter_mut().filter(|tally| is_due(tally.side));
        due.map(|tally| tally.boot((program, disk))).collect::<Result<()>>()?;
        rows = tallies.iter().flat_map(BounceTally::rows).collect();
    }
    for _ in 0..extents.timed {
        for (at, side) in extents.sides.iter().enumerate() {
            let output = output_of(&words(side, load, (program, disk)))?;
            let said = said(&output).ok_or_else(|| nothing(side, load))?;
            for (way, nanoseconds) in said.nanoseconds.iter().enumerate() {
                let mib = (load.long_run() * load.kib) as f64 / 1024.0;
                rows[at * WAYS.len() + way].mib_per_second.push(mib / (*nanoseconds as f64 / 1e9));
            }
        }
    }
    let shown: Vec<BounceRow> =
        rows.iter().filter(|row| row.side == GROWING.name).map(|row| confidential(row, load)).collect();
    rows.extend(shown);
    Ok(rows)
}

/// Returns the row of a confidential guest. Its pool grows in the first transfers of the first way;
/// later ones call the host for nothing.
fn confidential(row: &BounceRow, load: &Load) -> BounceRow {
    let calls = if row.way == WAYS[0] { (row.pool[1] - row.pool[0]).div_ceil(SEGMENT) } else { 0 };
    let [steady, first] = row.instructions;
    let instructions = [steady, first + calls as f64 * CALL / load.first() as f64];
    let (boots, mib_per_second) = (Vec::new(), Vec::new());
    BounceRow { side: CONFIDENTIAL, instructions, boots, mib_per_second, ..row.clone() }
}

fn nothing(side: &BounceSide, load: &Load) -> Failure {
    Failure::new(format!("{}, {}: the guest did not say what was asked", load.name, side.name), "")
}

/// Results of a side's boots under the microscope.
struct BounceTally {
    side: &'static BounceSide,
    load: &'static Load,
    /// By way.
    boots: [Vec<Counted>; 2],
    /// Bytes of the pool before and after, the most of all boots: whether it grows depends on the
    /// host, too.
    pool: [u64; 2],
}

impl BounceTally {
    fn new(side: &'static BounceSide, load: &'static Load) -> Self {
        Self { side, load, boots: [Vec::new(), Vec::new()], pool: [0; 2] }
    }
    fn boot(&mut self, files: (&Path, &PathBuf)) -> Result<()> {
        let watched = ["--model", "locality", "--no-oracle"].map(OsString::from);
        let watched = [&watched[..], &words(self.side, self.load, files)].concat();
        let (results, output) = scope::Measurement::prepare(&args::scope_options(&watched)?)?.run()?;
        let nothing = || nothing(self.side, self.load);
        for (way, boots) in WAYS.iter().zip(&mut self.boots) {
            boots.push(counted(&results, self.load, way).ok_or_else(nothing)?);
        }
        let pool = said(&String::from_utf8_lossy(&output)).ok_or_else(nothing)?.pool;
        self.pool = [pool[0], self.pool[1].max(pool[1])];
        Ok(())
    }
    /// Returns the rows of both ways, without rates.
    fn rows(&self) -> [BounceRow; 2] {
        core::array::from_fn(|way| {
            let boots = &self.boots[way];
            let of = |value: fn(&Counted) -> f64| median(&boots.iter().map(value).collect::<Vec<_>>());
            BounceRow {
                load: self.load.name,
                way: WAYS[way],
                side: self.side.name,
                instructions: [of(|boot| boot.instructions[0]), of(|boot| boot.instructions[1])],
                boots: boots.iter().map(|boot| boot.instructions).collect(),
                stored_per_byte: of(|boot| boot.stored),
                pool: self.pool,
                mib_per_second: Vec::new(),
            }
        })
    }
}

/// Returns the VM's command: both ways one after the other, and the pool's size before and after.
fn words(side: &BounceSide, load: &Load, (program, disk): (&Path, &PathBuf)) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        ["--accel", "tcg", "--report", "never", "-m", "1G"].map(OsString::from).into();
    words.extend(side.words.iter().map(OsString::from));
    let mut volume = program.as_os_str().to_owned();
    volume.push(":/transfers");
    let disk = match side.medium {
        Medium::File => disk.clone().into_os_string(),
        Medium::NullCo => format!("null={DISK},latency=1ms").into(),
    };
    words.extend(["--disk".into(), disk, "-v".into(), volume]);
    let Load { kib, threads, count, times, .. } = load;
    let count = count * times;
    // A Linux whose devices are behind an IOMMU has no pool.
    let pool = "echo pool $(cat /sys/kernel/debug/swiotlb/io_tlb_nslabs 2>/dev/null || echo 0)";
    let ways: String = WAYS.map(|way| format!("/transfers {kib} {threads} {count} {way} || exit; ")).concat();
    let script = format!("mount -t debugfs none /sys/kernel/debug 2>/dev/null; {pool}; {ways}{pool}");
    words.extend(["--", "busybox", "sh", "-c", &script].map(OsString::from));
    words
}

/// Parsed output of the guest.
#[derive(Debug, PartialEq)]
struct Said {
    pool: [u64; 2],
    /// Times by way.
    nanoseconds: [u64; 2],
}

/// Parses `pool SLABS` before and after, and a line `N transfers, 0 failed, T ns` for each way.
fn said(output: &str) -> Option<Said> {
    let pools: Option<Vec<u64>> = output
        .lines()
        .filter_map(|line| line.strip_prefix("pool "))
        .map(|slabs| slabs.trim().parse().ok())
        .collect();
    let spent =
        output.lines().filter_map(|line| line.split_once(" transfers, 0 failed, ")?.1.strip_suffix(" ns"));
    let nanoseconds: Option<Vec<u64>> = spent.map(|ns| ns.parse().ok().filter(|&ns| ns > 0)).collect();
    let pool: [u64; 2] = pools?.try_into().ok()?;
    Some(Said { pool: pool.map(|slabs| slabs * 2048), nanoseconds: nanoseconds?.try_into().ok()? })
}

/// Counts the kernel's work in the phases of a way.
fn counted(results: &Results, load: &Load, way: &str) -> Option<Counted> {
    let sum = |name: &str, of: fn(&CpuCounts) -> u64| {
        let phase = results.phases.iter().find(|phase| phase.name == name)?;
        Some(phase.cpus.iter().map(|cpu| of(&cpu.modes.kernel)).sum::<u64>() as f64)
    };
    let all = load.long_run() as f64;
    let first = load.first() as f64;
    Some(Counted {
        instructions: [
            sum(way, |counts| counts.instructions)? / all,
            sum(&format!("first {way}"), |counts| counts.instructions)? / first,
        ],
        stored: sum(way, |counts| counts.stored_bytes)? / (all * load.kib as f64 * 1024.0),
    })
}

/// Returns the cost of a growing pool over that of one of 64 MiB with the same disk, for each load
/// and way: in the long run, and in a first run, whose first transfers make the pool grow.
fn ratios(rows: &[BounceRow]) -> impl Iterator<Item = (&BounceRow, [f64; 2])> {
    rows.iter().filter_map(move |growing| {
        let (_, fixed) = PAIRS.iter().find(|(side, _)| side.name == growing.side)?;
        let is_pair =
            |row: &&BounceRow| row.side == fixed.name && (row.load, row.way) == (growing.load, growing.way);
        let fixed = rows.iter().find(is_pair)?;
        let load = LOADS.iter().find(|load| load.name == growing.load)?;
        let (later, first) = (load.transfers() as f64, load.first() as f64);
        let whole = |row: &BounceRow| row.instructions[0] * later + row.instructions[1] * first;
        Some((growing, [growing.instructions[0] / fixed.instructions[0], whole(growing) / whole(fixed)]))
    })
}

/// Names of the sides of pairs that miss a goal so far.
fn costly_sides(rows: &[BounceRow]) -> impl Iterator<Item = &'static str> {
    let missed = ratios(rows).filter(|(_, ratio)| !is_met(*ratio));
    missed.flat_map(|(row, _)| {
        let pair = PAIRS.iter().find(|(side, _)| side.name == row.side);
        pair.into_iter().flat_map(|(growing, fixed)| [growing.name, fixed.name])
    })
}

const HEADINGS: [&str; 8] =
    ["row", "", "side", "instructions", "at first", "stored per byte", "pool, KiB", "MiB/s (variation)"];

fn cells(row: &BounceRow) -> [String; 8] {
    let variation = row.variation().map_or(String::new(), |share| format!(" ({:.1}%)", share * 100.0));
    [
        row.load.into(),
        row.way.into(),
        row.side.into(),
        format!("{:.0}", row.instructions[0]),
        format!("{:.0}", row.instructions[1]),
        format!("{:.2}", row.stored_per_byte),
        format!("{} → {}", row.pool[0] >> 10, row.pool[1] >> 10),
        if row.mib_per_second.is_empty() { "-".into() } else { format!("{:.1}{variation}", row.mean()) },
    ]
}

fn is_met(ratio: [f64; 2]) -> bool {
    ratio[0] <= GOALS[0] && ratio[1] <= GOALS[1]
}

fn verdict(ratio: [f64; 2]) -> &'static str {
    if is_met(ratio) { "met" } else { "missed" }
}

fn summary(rows: &[BounceRow]) -> String {
    let lines: Vec<[String; 8]> =
        core::iter::once(HEADINGS.map(String::from)).chain(rows.iter().map(cells)).collect();
    let mut text = format!("{HOW}\n\n{}", aligned(&lines, |column| column >= 3));
    text.push_str(&format!(
        "\nInstructions of a growing pool over one of 64 MiB; asked: {} and in the first run {}\n",
        GOALS[0], GOALS[1]
    ));
    for (row, ratio) in ratios(rows) {
        text.push_str(&format!(
            "{:<18}{:<7}{:<18}{:.3}  first run {:.3}  {}\n",
            row.load,
            row.way,
            row.side,
            ratio[0],
            ratio[1],
            verdict(ratio)
        ));
    }
    text
}

fn page(rows: &[BounceRow]) -> Page {
    let mut page = Page::new("Bounce buffers", HOW);
    let worst = |at: usize| ratios(rows).map(|(_, ratio)| ratio[at]).fold(0.0, f64::max);
    let tile = |label: &str, at: usize| Tile {
        label: label.into(),
        value: format!("{:.3}", worst(at)),
        detail: format!("instructions ÷ those with a 64 MiB pool, worst row; goal: {}", GOALS[at]),
        tone: if worst(at) <= GOALS[at] { Tone::Good } else { Tone::Warning },
    };
    page.tiles(&[tile("growing", 0), tile("growing, first run", 1)]);
    page.section("Question");
    page.text(EXPERIMENT.question);
    page.section("Answer");
    let columns: Vec<Column> = HEADINGS
        .iter()
        .enumerate()
        .map(|(at, heading)| if at < 3 { Column::text(heading) } else { Column::number(heading) })
        .collect();
    let mut table = Table::new("", &columns);
    rows.iter().for_each(|row| table.row(cells(row).map(Cell::text)));
    page.table(&table);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_says_is_taken_whole_or_not_at_all() {
        let output = "pool 128\n9 transfers, 0 failed, 700 ns\n9 transfers, 0 failed, 800 ns\npool 640\n";
        let wanted = Said { pool: [256 << 10, 1280 << 10], nanoseconds: [700, 800] };
        assert_eq!(said(output), Some(wanted));
        for (part, other) in
            [(", 0 failed, 700", ", 1 failed, 700"), ("pool 640\n", ""), ("800", "0"), ("128", "")]
        {
            assert_eq!(said(&output.replacen(part, other, 1)), None, "{part}");
        }
    }

    fn of(side: &'static str, instructions: [f64; 2], pool: [u64; 2]) -> BounceRow {
        let mib_per_second = vec![9.0, 11.0];
        BounceRow {
            load: "deep",
            way: "read",
            side,
            instructions,
            boots: vec![instructions],
            stored_per_byte: 1.0,
            pool,
            mib_per_second,
        }
    }

    #[test]
    fn a_row_that_has_to_grow_and_does_not_is_found_and_growing_is_judged() {
        let grown = of(GROWING.name, [101.0, 130.0], [SMALL, 2 * SMALL]);
        assert!(has_grown(&grown) && has_grown(&of(FIXED.name, [100.0, 100.0], [SMALL, SMALL])));
        assert!(!has_grown(&BounceRow { pool: [SMALL, SMALL], ..grown.clone() }));
        assert!(has_grown(&BounceRow { load: "small", pool: [SMALL, SMALL], ..grown.clone() }));
        let rows = [grown, of(FIXED.name, [100.0, 100.0], [0, 0])];
        let [ratio] = ratios(&rows).map(|(_, ratio)| ratio).collect::<Vec<_>>()[..] else {
            panic!("one pair")
        };
        // 320 transfers, and 128 before them.
        let whole = (101.0 * 320.0 + 130.0 * 128.0) / (100.0 * 448.0);
        assert_eq!((ratio, verdict(ratio)), ([1.01, whole], "missed"));
        assert_eq!(verdict([1.0, 1.04]), "met");
        assert!((rows[0].variation().expect("two boots") - 0.1414).abs() < 1e-3);
        assert_eq!(misses(&rows, Extent::Quick), [""; 0]);
        let [miss] = &misses(&rows, Extent::Full)[..] else { panic!("one miss") };
        assert_eq!(
            miss,
            "deep, read, growing: 1.093 times the instructions of a pool of 64 MiB in the first run, at most 1.05 are asked."
        );
        assert_eq!(costly_sides(&rows).collect::<Vec<_>>(), ["growing", "64 MiB"]);
        let still = [of(GROWING_NULL.name, [1.0; 2], [SMALL; 2]), of(DIRECT.name, [1.0; 2], [SMALL; 2])];
        let miss = "deep, read, growing, null-co: the pool did not grow from 256 KiB.";
        assert_eq!(misses(&still, Extent::Quick), [miss]);
    }

    #[test]
    fn a_confidential_guest_pays_for_each_piece_that_comes_and_for_nothing_later() {
        let row = confidential(&of(GROWING.name, [100.0, 200.0], [SMALL, 3 * SMALL]), &LOADS[5]);
        assert_eq!((row.side, row.instructions), (CONFIDENTIAL, [100.0, 200.0 + 2.0 * CALL / 128.0]));
        let later = confidential(
            &BounceRow { way: "write", ..of(GROWING.name, [100.0; 2], [SMALL, 3 * SMALL]) },
            &LOADS[5],
        );
        assert_eq!(later.instructions, [100.0; 2]);
    }
}
