//! `freehold lab cow`: how many copies does exact copy-on-write save, and what does it cost?
//! (Andrea Arcangeli, "mm: restore full accuracy in COW page reuse", 2021.)
//!
//! A program that reads its own frame numbers (guest/workloads/needless.c) counts the copies that
//! no other process needed, in the same way on both kernels. The rows of `freehold bench` that
//! copy, share and pin pages show the cost.

use std::ffi::OsString;

use serde::Serialize;
use serde_json::Value;

use super::{Experiment, Extent, Settings, output_of};
use crate::args::BenchOptions;
use crate::bench::{self, Compared};
use crate::failure::Failure;
use crate::html::{Axis, Bar, Bars, Cell, Column, Page, Table, Tile, Tone, Unit};
use crate::progress::LabSteps;
use crate::schema::LabHead;
use crate::statistics::Interval;
use crate::{Result, kernel};

/// The experiment's entry in the list.
pub const EXPERIMENT: Experiment = Experiment {
    name: "cow",
    question: "How many pages are copied that nobody else needs, and what do sharing, copying and pinning cost?",
    run,
};

const PROGRAM: &str = "guest/workloads/needless";
const SIDES: [CowSide; 2] =
    [CowSide { name: "Freehold", kernel: "freehold" }, CowSide { name: "Linux 6.1", kernel: "linux" }];

struct CowSide {
    name: &'static str,
    kernel: &'static str,
}

/// Sizes and repetitions.
struct Extents {
    boots: u32,
    memory: &'static str,
    swap: &'static str,
    /// Sizes of the patterns, in MiB, and of the mix, in percent of the memory.
    sizes: [&'static str; 2],
    /// Rows of `freehold bench`.
    rows: &'static [&'static str],
    /// Parameters of the Linux for the comparison: none means a lean one and Debian's.
    against: &'static [&'static str],
}

impl Extents {
    fn of(settings: &Settings) -> Extents {
        let extents = match settings.extent {
            Extent::Full => Extents {
                boots: 3,
                memory: "128M",
                swap: "256M",
                sizes: ["16", "140"],
                rows: &["cow-*", "fork-256m*", "vmsplice", "direct-*"],
                against: &[],
            },
            Extent::Quick => Extents {
                boots: 1,
                memory: "96M",
                swap: "96M",
                sizes: ["4", "105"],
                rows: &["cow-copy", "direct-read"],
                against: &[bench::LEAN],
            },
        };
        Extents { boots: settings.boots.unwrap_or(extents.boots), ..extents }
    }

    fn machine(&self) -> String {
        format!("2 CPUs, {} of memory, {} of swap", self.memory, self.swap)
    }
}

/// Counts of one pattern in one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Count {
    stores: u64,
    /// Pages that were in another frame after the store.
    copies: u64,
    /// Copies that were necessary: without them another process would have seen the store.
    needed: u64,
}

impl Count {
    /// Returns the needless copies. A page that went to swap before the store does not look copied,
    /// so it never counts as needless.
    fn needless(self) -> u64 {
        self.copies.saturating_sub(self.needed)
    }
}

/// One pattern on one side, a count for each boot.
#[derive(Debug, PartialEq, Serialize)]
struct Pattern {
    side: &'static str,
    name: String,
    boots: Vec<Count>,
}

impl Pattern {
    fn needless(&self) -> Vec<f64> {
        self.boots.iter().map(|count| count.needless() as f64).collect()
    }

    fn mean(&self) -> f64 {
        self.needless().iter().sum::<f64>() / self.boots.len().max(1) as f64
    }

    /// Formats `13`, `4–13`, `13 (too few runs)`.
    fn show(&self) -> String {
        let range = Interval::range(&self.needless());
        let (mean, ends) = (self.mean(), range.show("–", |copies| format!("{copies:.0}")));
        match range.has_too_few_runs() {
            true => format!("{mean:.0} ({ends})"),
            false if range.low == range.high => format!("{mean:.0}"),
            false => ends,
        }
    }

    fn show_needed(&self) -> String {
        self.boots.first().map_or(String::new(), |count| format!("{} of {}", count.needed, count.stores))
    }
}

#[derive(Serialize)]
struct CowRecord<'a> {
    #[serde(flatten)]
    head: LabHead,
    machine: String,
    needless: &'a [Pattern],
    /// Costs as `freehold bench --json` writes them; null where a signal came before.
    costs: Option<Value>,
}

/// The last step.
const COSTS: &str = "what it costs";

fn run(settings: &Settings) -> Result<u8> {
    let extents = Extents::of(settings);
    let program = kernel::installed(PROGRAM)
        .ok_or_else(|| Failure::new(format!("{PROGRAM} is missing"), "make build makes it"))?;
    let mut patterns = Vec::new();
    let boots = |side: &CowSide| (0..extents.boots).map(|_| side.name.to_owned()).collect::<Vec<_>>();
    let mut steps = LabSteps::new(SIDES.iter().flat_map(boots))?;
    for side in &SIDES {
        for boot in 1..=extents.boots {
            let name = format!("{}, boot {boot} of {}", side.name, extents.boots);
            let count = || output_of(&words(side, &extents, program.as_os_str().to_owned()));
            let Some(output) = steps.step(side.name, &name, count)? else { break };
            add(&mut patterns, side.name, &output)?;
        }
    }
    let options = BenchOptions {
        quick: settings.extent == Extent::Quick,
        names: extents.rows.iter().map(|&name| name.to_owned()).collect(),
        against: Some("linux".into()),
        against_append: extents.against.iter().map(|&words| words.to_owned()).collect(),
        ..BenchOptions::default()
    };
    steps.add([COSTS.to_owned()]);
    let costs = match steps.step(COSTS, COSTS, || bench::compare(&options))?.transpose() {
        Ok(costs) => costs,
        Err(status) => return Ok(status),
    };
    let ended_by = steps.end()?;
    let record = CowRecord {
        head: LabHead::of(EXPERIMENT.name, ended_by),
        machine: extents.machine(),
        needless: &patterns,
        costs: costs.as_ref().map(Compared::json),
    };
    settings.write_record(&record)?;
    settings.write_page(|| page(&extents, &patterns, costs.as_ref()), ended_by)?;
    let told = costs.as_ref().map(Compared::text).unwrap_or_default();
    let failed = costs.as_ref().map_or(0, Compared::tell_failures);
    settings.conclude(&format!("{}\n{told}", summary(&extents, &patterns)), ended_by, failed)
}

/// Returns the VM's command for a count, with `program` in it.
fn words(side: &CowSide, extents: &Extents, program: OsString) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["--accel", "tcg", "--report", "never", "--cpus", "2"]
        .iter()
        .chain(&["--kernel", side.kernel, "-m", extents.memory, "--swap", extents.swap, "--"])
        .map(OsString::from)
        .collect();
    words.push(program);
    words.extend(extents.sizes.map(OsString::from));
    words
}

/// Adds the output of one boot.
fn add(patterns: &mut Vec<Pattern>, side: &'static str, output: &str) -> Result<()> {
    for line in output.lines() {
        let (name, count) =
            count(line).ok_or_else(|| Failure::new(format!("{side}: no count of copies: {line}"), ""))?;
        match patterns.iter_mut().find(|pattern| pattern.side == side && pattern.name == name) {
            Some(pattern) => pattern.boots.push(count),
            None => patterns.push(Pattern { side, name: name.to_owned(), boots: vec![count] }),
        }
    }
    Ok(())
}

/// Parses `NAME STORES stores COPIES copies NEEDED needed NEEDLESS needless`; a name may have
/// spaces.
fn count(line: &str) -> Option<(&str, Count)> {
    let mut rest = line.trim_end();
    let mut number = |what: &str| {
        let (before, value) = rest.strip_suffix(what)?.trim_end().rsplit_once(' ')?;
        rest = before.trim_end();
        value.parse::<i64>().ok()
    };
    let needless = number("needless")?;
    let (needed, copies, stores) = (number("needed")?, number("copies")?, number("stores")?);
    let count = Count {
        stores: stores.try_into().ok()?,
        copies: copies.try_into().ok()?,
        needed: needed.try_into().ok()?,
    };
    (copies - needed == needless && !rest.is_empty()).then_some((rest, count))
}

/// Returns the patterns by name, for each side.
fn by_name(patterns: &[Pattern]) -> impl Iterator<Item = (&str, [Option<&Pattern>; 2])> {
    let names = patterns.iter().filter(|pattern| pattern.side == SIDES[0].name).map(|p| p.name.as_str());
    names
        .map(|name| (name, SIDES.map(|side| patterns.iter().find(|p| p.side == side.name && p.name == name))))
}

fn total(patterns: &[Pattern], side: &CowSide) -> f64 {
    patterns.iter().filter(|pattern| pattern.side == side.name).map(Pattern::mean).sum()
}

fn title(extents: &Extents) -> String {
    let boots = if extents.boots == 1 { "1 boot".to_owned() } else { format!("{} boots", extents.boots) };
    format!("Copies of pages that nobody else needed; {}, {boots} of each kernel", extents.machine())
}

fn summary(extents: &Extents, patterns: &[Pattern]) -> String {
    let mut text = format!("{}\n\n{:<28}{:>20}", title(extents), "", "needed, of stores");
    for side in &SIDES {
        text.push_str(&format!("{:>20}", side.name));
    }
    text.push('\n');
    for (name, sides) in by_name(patterns) {
        let needed = sides[0].map_or(String::new(), Pattern::show_needed);
        text.push_str(&format!("{name:<28}{needed:>20}"));
        for pattern in sides {
            text.push_str(&format!("{:>20}", pattern.map_or("–".into(), Pattern::show)));
        }
        text.push('\n');
    }
    text
}

fn page(extents: &Extents, patterns: &[Pattern], costs: Option<&Compared>) -> Page {
    let mut page = Page::new("Exact copy-on-write", &title(extents));
    let tile = |side: &CowSide| {
        let total = total(patterns, side);
        Tile {
            label: side.name.into(),
            value: Unit::Number.show(total),
            detail: "needless copies in a boot, all patterns".into(),
            tone: if total == 0.0 { Tone::Good } else { Tone::Warning },
        }
    };
    page.tiles(
        &SIDES.iter().map(tile).chain(costs.into_iter().flat_map(Compared::tiles)).collect::<Vec<_>>(),
    );
    page.section("Question");
    page.text(EXPERIMENT.question);
    page.text(
        "A store to a page that is marked read-only needs a copy only where another process has the page too. A kernel that guesses this \
         from reference counts copies more, and may copy a page from under a device that writes to it; one that knows owners exactly \
         keeps the frame.",
    );
    page.section("Answer");
    let names: Vec<&str> = SIDES.iter().map(|side| side.name).collect();
    let mut bars = Bars::new("Needless copies in a boot", Axis::linear("copies", Unit::Count), &names);
    let mut columns = vec![Column::text("pattern"), Column::number("needed, of stores")];
    columns.extend(names.iter().map(|name| Column::number(name)));
    let mut table = Table::new("Needless copies: least–most of all boots", &columns);
    for (name, sides) in by_name(patterns) {
        let bar = |pattern: &Pattern| Bar::within(pattern.mean(), Interval::range(&pattern.needless()));
        bars.group(name, &sides.map(|pattern| pattern.map(bar)));
        let cell = |pattern: Option<&Pattern>| {
            let tone = match pattern {
                Some(pattern) if pattern.mean() == 0.0 => Tone::Good,
                _ => Tone::Plain,
            };
            Cell::text(pattern.map_or("–".into(), Pattern::show)).tone(tone)
        };
        let needed = sides[0].map_or(String::new(), Pattern::show_needed);
        table.row([Cell::text(name), Cell::text(needed)].into_iter().chain(sides.map(cell)));
    }
    page.figure(&bars, "The lines at the ends reach from the best boot to the worst. None is best.");
    page.table(&table);
    costs.inspect(|costs| costs.sections(&mut page));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "anon-cow-seq, 4 children          5120 stores     4099 copies     4096 needed        3 needless";

    #[test]
    fn a_count_is_taken_whole_or_not_at_all() {
        let wanted = Count { stores: 5120, copies: 4099, needed: 4096 };
        assert_eq!(count(LINE), Some(("anon-cow-seq, 4 children", wanted)));
        assert_eq!(wanted.needless(), 3);
        let swapped = count("a 5120 stores 4095 copies 4096 needed -1 needless").expect("a count").1;
        assert_eq!(swapped.needless(), 0);
        for wrong in [
            "",
            "5120 stores 4099 copies 4096 needed 3 needless",
            "a 5120 stores 4099 copies 4096 needed 4 needless",
            "a 5120 stores many copies 4096 needed 3 needless",
            "needless: no swap",
        ] {
            assert_eq!(count(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn boots_of_a_pattern_are_shown_with_their_ends_for_each_side() {
        let mut patterns = Vec::new();
        for (side, lines) in
            [("Freehold", "a b 9 stores 4 copies 4 needed 0 needless\n"), ("Linux 6.1", LINE)]
        {
            add(&mut patterns, side, lines).expect("counts");
        }
        let more = "a b 9 stores 6 copies 4 needed 2 needless";
        add(&mut patterns, "Linux 6.1", more).expect("counts");
        add(&mut patterns, "Linux 6.1", "a b 9 stores 5 copies 4 needed 1 needless").expect("counts");
        assert!(add(&mut patterns, "Freehold", "swapon: failed").is_err());
        let shown: Vec<_> = by_name(&patterns)
            .map(|(name, sides)| (name, sides.map(|pattern| pattern.map_or("–".into(), Pattern::show))))
            .collect();
        assert_eq!(shown, [("a b", ["0 (too few runs)".to_owned(), "1–2".to_owned()])]);
        assert_eq!(total(&patterns, &SIDES[1]), 3.0 + 1.5);
    }
}
