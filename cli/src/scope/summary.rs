//! Summary of the microscope's results, in a few lines on stderr: conflicts first, then TLBs,
//! memory read across nodes, the distribution of instructions, phases. Counts are of the program's
//! time; times before and after are in the rows of phases.

use std::fmt::Write;

use freehold_scope_record::{
    CpuCounts, CpuPhase, DataKind, Half, KernelData, KindCounts, NearCounts, Phase, Rule, Violation,
};

use super::Story;
use super::digest::{self, Digest, remote, share};
use super::owners;
use crate::html::{Unit, survival};

/// Number of functions that are named.
const HOTTEST: usize = 8;
/// Number of functions that are named for their stores to lines of several CPUs.
const SHARERS: usize = 16;
/// Number of pairs of frames that are named.
const PAIRS: usize = 3;
/// Number of violations that are described one by one.
const VIOLATIONS: usize = 5;

/// Selection of phases that get a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// The program's phases, if the guest marked some.
    Marked,
    /// All phases, including the start and the end.
    All,
}

/// Returns the whole summary.
pub fn summary(story: &Story<'_>, rows: Rows) -> String {
    let digest = &story.digest;
    let mut text = String::new();
    head(&mut text, story);
    near(&mut text, digest);
    pairs(&mut text, story);
    tlb(&mut text, digest);
    locality(&mut text, digest);
    hottest(&mut text, story);
    match rows {
        Rows::All => phases(&mut text, digest, &digest.results.phases),
        Rows::Marked if digest.phases().len() > 1 => phases(&mut text, digest, digest.phases()),
        Rows::Marked => {}
    }
    mapping(&mut text, story);
    exposure(&mut text, story);
    residue(&mut text, story);
    sharing(&mut text, story);
    smap(&mut text, story);
    violations(&mut text, story);
    for remark in &digest.results.remarks {
        let _ = writeln!(text, "   note: {remark}");
    }
    text
}

/// Returns one line for a run in which the kernel broke a rule.
pub fn verdict(oracle: &freehold_scope_record::Oracle) -> String {
    let mut rules: Vec<Rule> = oracle.violations.iter().map(|violation| violation.rule).collect();
    rules.dedup();
    let first = rules.first().map_or("", |rule| rule.description());
    format!(
        "the kernel broke its rules of memory isolation: {} (first: {first})",
        plural(oracle.total, "violation")
    )
}

pub fn plural(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{} {thing}s", Unit::Count.show(count as f64)) }
}

fn count(value: u64) -> String {
    Unit::Count.show(value as f64)
}

pub fn percent(share: Option<f64>) -> String {
    share.map_or("–".into(), |share| format!("{:.1}%", share * 100.0))
}

fn head(text: &mut String, story: &Story<'_>) {
    let digest = &story.digest;
    let (user, kernel) = (digest.all_counts(Half::User), digest.all_counts(Half::Kernel));
    let instructions = user.instructions + kernel.instructions;
    let cpus = digest.results.settings.cpus.len() as u64;
    let _ = writeln!(
        text,
        "── microscope: {} instructions of the program's time, {} of them in the kernel; {}, {}, {}",
        count(instructions),
        percent(share(kernel.instructions, instructions)),
        plural(cpus, "CPU"),
        plural(digest.nodes() as u64, "node"),
        story.kernel,
    );
}

fn near(text: &mut String, digest: &Digest<'_>) {
    let line = digest.results.settings.models.cache.map_or(0, |cache| cache.line);
    for (node, (near, result)) in digest.near().iter().zip(&digest.results.near).enumerate() {
        let _ = writeln!(
            text,
            "   near cache {node} ({}, {line} B)  conflicts {:>6}   of {} accesses; cold {}, capacity {}",
            Unit::Bytes.show(result.size as f64),
            percent(share(near.conflict, near.accesses)),
            count(near.accesses),
            percent(share(near.cold, near.accesses)),
            percent(share(near.capacity, near.accesses)),
        );
    }
}

/// Names the owners of the frames that evicted each other most.
fn pairs(text: &mut String, story: &Story<'_>) {
    let owners = owners::texts(story.pair_owners);
    let mut pairs: Vec<_> = story.digest.results.near.iter().flat_map(|near| &near.pairs).collect();
    pairs.sort_by_key(|pair| std::cmp::Reverse(pair.count));
    for pair in pairs.into_iter().take(PAIRS) {
        let (Some(left), Some(came)) = (owners.get(&pair.evicted), owners.get(&pair.arrived)) else {
            continue;
        };
        let _ = writeln!(
            text,
            "      {} evicted {}, by {}",
            plural(pair.count, "time"),
            printable(left),
            printable(came)
        );
    }
}

/// Returns walks per 1,000 instructions.
pub fn walks(counts: &CpuCounts) -> Option<f64> {
    share(counts.tlb_walks, counts.instructions).map(|share| share * 1000.0)
}

fn walks_text(counts: &CpuCounts) -> String {
    walks(counts).map_or("–".into(), |walks| format!("{walks:.2}"))
}

fn tlb(text: &mut String, digest: &Digest<'_>) {
    let Some(shape) = &digest.results.settings.models.tlb else { return };
    let (user, kernel) = (digest.all_counts(Half::User), digest.all_counts(Half::Kernel));
    let _ = writeln!(
        text,
        "   TLB ({})  walks for 1,000 instructions: kernel {}, programs {}",
        shape.name,
        walks_text(&kernel),
        walks_text(&user)
    );
    for lives in digest.lives().iter().take(3) {
        let age = digest::median(&survival(&lives.ages));
        let _ = writeln!(
            text,
            "      {:<24} {:>8} filled, half of them last {}",
            super::page::kind(lives),
            count(lives.fills),
            age.map_or("to the end".into(), |age| format!("{} instructions", count(age as u64))),
        );
    }
}

fn locality(text: &mut String, digest: &Digest<'_>) {
    if digest.nodes() < 2 {
        return;
    }
    text.push_str(
        "   CPU  node  instructions   remote fetches: kernel  programs   remote data: kernel  programs\n",
    );
    for (cpu, &node) in digest.results.settings.cpus.iter().enumerate() {
        let (user, kernel) = (digest.counts(cpu, Half::User), digest.counts(cpu, Half::Kernel));
        let _ = writeln!(
            text,
            "   {cpu:>3}  {node:>4}  {:>12}   {:>22}  {:>8}   {:>19}  {:>8}",
            count(user.instructions + kernel.instructions),
            percent(remote(&kernel.fetches, node)),
            percent(remote(&user.fetches, node)),
            percent(remote(&kernel.data, node)),
            percent(remote(&user.data, node)),
        );
    }
    kinds(text, digest);
    if let Some(parts) = kernel_code(digest) {
        let _ = writeln!(text, "   the kernel's code is fetched {parts}");
    }
}

/// The kernel's own data by kind: which share of all accesses to it goes to other nodes.
fn kinds(text: &mut String, digest: &Digest<'_>) {
    let all: Vec<KernelData> =
        (0..digest.results.settings.cpus.len()).map(|cpu| digest.kernel_data(cpu)).collect();
    if all.iter().all(|data| *data == KernelData::default()) {
        return;
    }
    text.push_str("   CPU  remote data of the kernel's own:    all");
    DataKind::OWN.iter().for_each(|kind| _ = write!(text, "  {:>11}", kind.name()));
    for (cpu, data) in all.iter().enumerate() {
        let KindCounts { local, remote } = data.own();
        let _ = write!(text, "\n   {cpu:>3}  {:>39}", percent(share(remote, local + remote)));
        for &kind in &DataKind::OWN {
            let _ = write!(text, "  {:>11}", percent(share(data.of(kind).remote, local + remote)));
        }
    }
    text.push('\n');
}

/// Describes the place of the kernel's code, which decides whose fetches are remote: "100.0% from
/// node 0, 0.0% from node 1".
pub fn kernel_code(digest: &Digest<'_>) -> Option<String> {
    let node = |(node, part): (usize, &f64)| format!("{} from node {node}", percent(Some(*part)));
    let parts: Vec<String> = digest.kernel_code()?.iter().enumerate().map(node).collect();
    Some(parts.join(", "))
}

fn hottest(text: &mut String, story: &Story<'_>) {
    if story.hot.is_empty() {
        return;
    }
    text.push_str("   share   instructions   function (program's time)\n");
    for hot in story.hot.iter().take(HOTTEST) {
        let _ = writeln!(
            text,
            "   {:>5}   {:>12}   {}",
            percent(Some(hot.share)),
            count(hot.instructions),
            hot.name
        );
    }
}

/// A phase's figures, all CPUs and nodes together.
pub struct PhaseRow {
    /// Instructions of both halves.
    pub instructions: u64,
    /// Share of the kernel.
    pub kernel: Option<f64>,
    /// Share of conflicts in all accesses to memory-side caches.
    pub conflicts: Option<f64>,
    /// TLB walks per 1,000 instructions.
    pub walks: Option<f64>,
    /// Loads and stores to another node.
    pub remote_data: Option<f64>,
    /// Instructions fetched from another node.
    pub remote_fetches: Option<f64>,
}

impl PhaseRow {
    /// Returns the figures of `phase`.
    pub fn of(digest: &Digest<'_>, phase: &Phase) -> PhaseRow {
        let half = |half| digest::sum(phase.cpus.iter().map(|cpu| digest::of_half(cpu, half)));
        let (user, kernel) = (half(Half::User), half(Half::Kernel));
        let all = digest::sum([&user, &kernel].into_iter());
        let mut near = NearCounts::default();
        for one in &phase.near {
            digest::add_near(&mut near, one);
        }
        PhaseRow {
            instructions: all.instructions,
            kernel: share(kernel.instructions, all.instructions),
            conflicts: share(near.conflict, near.accesses),
            walks: walks(&all),
            remote_data: all_remote(digest, phase, |counts| &counts.data),
            remote_fetches: all_remote(digest, phase, |counts| &counts.fetches),
        }
    }
}

fn all_remote(digest: &Digest<'_>, phase: &Phase, of: fn(&CpuCounts) -> &Vec<u64>) -> Option<f64> {
    let (mut away, mut all) = (0, 0);
    for (cpu, &node) in phase.cpus.iter().zip(&digest.results.settings.cpus) {
        let CpuPhase { modes, .. } = cpu;
        for by_node in [of(&modes.user), of(&modes.kernel)] {
            let sum: u64 = by_node.iter().sum();
            all += sum;
            away += sum - by_node.get(node).copied().unwrap_or(0);
        }
    }
    share(away, all)
}

fn phases(text: &mut String, digest: &Digest<'_>, phases: &[Phase]) {
    text.push_str(
        "   phase           instructions  kernel  conflicts  walks/1000  remote data  remote fetches\n",
    );
    for phase in phases {
        let row = PhaseRow::of(digest, phase);
        let _ = writeln!(
            text,
            "   {:<15} {:>12}  {:>6}  {:>9}  {:>10}  {:>11}  {:>14}",
            printable(&phase.name),
            count(row.instructions),
            percent(row.kernel),
            percent(row.conflicts),
            row.walks.map_or("–".into(), |walks| format!("{walks:.2}")),
            percent(row.remote_data),
            percent(row.remote_fetches),
        );
    }
}

/// Removes characters from a guest's name that would move a terminal's cursor.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Describes the kernel half's mappings, for kernels that publish their policy.
fn mapping(text: &mut String, story: &Story<'_>) {
    let oracle = &story.digest.results.oracle;
    let Some(layout) = &oracle.layout else { return };
    let _ = writeln!(
        text,
        "   kernel half (xpfo={}): {} judged in {}, {}",
        layout.policy,
        plural(oracle.checks.leaves, "stored leaf").replace("leafs", "leaves"),
        plural(oracle.checks.tables, "table"),
        plural(oracle.checks.changes, "change").replace("changes", "changes of owner"),
    );
}

/// Describes translations of programs' frames that the kernel could use, for kernels with windows.
fn exposure(text: &mut String, story: &Story<'_>) {
    let Some(exposure) = story.digest.results.exposure.as_ref().filter(|exposure| exposure.windows > 0)
    else {
        return;
    };
    let _ = writeln!(
        text,
        "   windows: {} opened, {} cached when closed, the longest for {} instructions, {} in halts; \
         frames × instructions cached: open {}, closed {}",
        count(exposure.windows),
        count(exposure.closed_cached),
        count(exposure.longest_closed),
        count(exposure.closed_at_halts),
        count(exposure.open),
        count(exposure.closed),
    );
}

/// Describes residue: programs' bytes that are still in memory.
fn residue(text: &mut String, story: &Story<'_>) {
    let looks = &story.digest.results.residue;
    let Some(last) = looks.last() else { return };
    let most = looks.iter().max_by_key(|look| look.residue_frames).unwrap_or(last);
    let _ = writeln!(
        text,
        "   programs' bytes: {} in {} at the end, {} of them in the kernel's map; residue there at most {} ({} of them free, {})",
        Unit::Bytes.show(last.bytes as f64),
        plural(last.frames, "frame"),
        Unit::Bytes.show(last.reachable_bytes as f64),
        plural(most.residue_frames, "frame"),
        count(most.free_frames),
        Unit::Bytes.show(most.residue_bytes as f64),
    );
}

/// Describes lines of the kernel that several CPUs store to.
fn sharing(text: &mut String, story: &Story<'_>) {
    let Some(sharing) = &story.digest.results.sharing else { return };
    let kernel = story.digest.all_counts(Half::Kernel);
    let _ = writeln!(
        text,
        "   lines of the kernel that several CPUs store to: {}; moved {} times at the most, {} in 1,000 instructions",
        count(sharing.lines),
        count(sharing.moves),
        share(sharing.moves, kernel.instructions)
            .map_or("–".into(), |share| format!("{:.2}", share * 1000.0)),
    );
    if !story.shared_lines.is_empty() {
        text.push_str("   share          moves   to (what is there)\n");
    }
    for lines in story.shared_lines.iter().take(SHARERS) {
        let data = lines.data.as_ref().map_or_else(String::new, |data| format!(" ({data})"));
        let part = percent(share(lines.moves, sharing.moves));
        let _ = writeln!(text, "   {part:>5}   {:>12}   {}{data}", count(lines.moves), lines.function);
    }
}

/// Describes the kernel's instructions with RFLAGS.AC set, for kernels that publish the permitted
/// places.
fn smap(text: &mut String, story: &Story<'_>) {
    let oracle = &story.digest.results.oracle;
    if oracle.layout.is_none() {
        return;
    }
    let smap = &oracle.smap;
    let _ = writeln!(
        text,
        "   SMAP off (RFLAGS.AC) outside user copies: {}; in them {}, in handlers before CLAC {}; {}, {} of programs with AC",
        plural(smap.outside, "kernel instruction"),
        count(smap.user_copies),
        count(smap.entries),
        plural(smap.frames, "trap frame"),
        count(smap.program_frames),
    );
}

/// Describes the target of a violation.
fn reached(violation: &Violation) -> String {
    match violation.rule {
        Rule::Smap => String::new(),
        _ => {
            format!("frame {:#x} ({}), address {:#x}, ", violation.frame, violation.owner, violation.address)
        }
    }
}

fn violations(text: &mut String, story: &Story<'_>) {
    let oracle = &story.digest.results.oracle;
    for violation in oracle.violations.iter().take(VIOLATIONS) {
        let _ = writeln!(
            text,
            "   violation: {}: CPU {} in {} at instruction {}, {}{}",
            violation.rule.description(),
            violation.cpu,
            story.names.function(violation.pc),
            violation.time,
            reached(violation),
            plural(violation.count, "time"),
        );
    }
    let more = oracle.violations.len().saturating_sub(VIOLATIONS);
    if more > 0 {
        let _ = writeln!(text, "   … and {} like these (--html, --json)", plural(more as u64, "instruction"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::tests::with_story;

    #[test]
    fn a_summary_tells_of_every_part_that_was_modelled() {
        let text = with_story(|story| summary(story, Rows::All));
        for part in [
            "near cache 0",
            "near cache 1",
            "TLB (skylake-sp)",
            "remote fetches",
            "fetched 100.0% from node 0",
            "firmware",
            "kernel half (xpfo=lap): 900 stored leaves judged in 40 tables",
            "windows: 900 opened, 850 cached when closed",
            "residue there at most 2 frames (1 of them free",
            "several CPUs store to: 1; moved 7 times",
            "SMAP off (RFLAGS.AC) outside user copies: 0 kernel instructions",
            "violation:",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 200), "{text}");
    }

    #[test]
    fn phases_are_told_without_being_asked_for_when_the_guest_marked_some() {
        let text = with_story(|story| summary(story, Rows::Marked));
        assert!(text.contains("remote data") && !text.contains("firmware"), "{text}");
    }
}
