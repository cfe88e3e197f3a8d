//! `freehold lab near-cache`: how does the page allocator affect a direct-mapped memory-side cache?
//! (Dan Williams, "mm: Shuffle initial free memory to improve memory-side-cache utilization", v7,
//! January 2019.)
//!
//! Every boot runs a program (guest/workloads/near-cache.c) that fills a heap of three times the
//! cache and prints the frames of its pages, fresh and after memory has aged. Workloads are then
//! computed over these placements ([`workload`]). A small run of the microscope confirms the
//! computation from the guest's real accesses. Boots count instructions and get no varying input
//! from the host (`--icount`): the same kernel, QEMU and program give the same frames on any host,
//! however busy. Boots differ by their seed, which decides the ageing and all random choices of the
//! kernel.
//!
//! **What to expect.** Frames drawn at random miss more if there are more frames to draw from for
//! each place of the cache ([`workload::by_chance`]; the report shows it beside the rest):
//!
//! | frames a place | a heap that fits | a hot quarter | the 90/10 mix |
//! |---|---|---|---|
//! | 3 | 29.6% | 8.1% | 16.0% |
//! | 4 | 31.6% | 9.0% | 16.9% |
//! | 5 | 32.8% | 9.5% | 17.5% |
//! | 8, all of this lab's memory | 34.4% | 10.3% | 18.3% |
//! | endless | 36.8% | 11.5% | 19.7% |
//!
//! The question's own figures for a stock Linux that has aged ([`before`]) are 33–38%, 8–9% and
//! 16–17%. No line of this table has these values. A heap has them if its first quarter of a cache
//! comes from three or four frames a place, and its rest from anywhere
//! ([`workload::frames_of_a_part_first`]). Linux allocates its smallest free pieces first. So a
//! heap has those figures if small pieces lie in less than half of memory, and larger ones in all
//! of it.
//!
//! **The ageing.** The publication describes its ageing in one sentence, "multi-process random-size
//! map/free rounds and page-cache fill", which fits many programs. Ours follows the sentence. The
//! sizes of its areas and pieces of files were chosen so that Linux shows the reported figures: a
//! round of small ones until 5/16 of memory are in use, then one of larger ones in all of it. This
//! is a limitation. Other sizes that fit the sentence show these figures, on two boots each (this
//! lab: on ten):
//!
//! | rounds: memory in use, areas up to, pieces of files up to | fits | hot quarter | mix |
//! |---|---|---|---|
//! | 5/16, 64 KiB, 256 KiB; all, 8 MiB, 1 MiB (this lab) | 33.1–34.7% | 7.6–9.0% | 16.1–17.4% |
//! | 3/16, the same; the same | 34.0–34.4% | 8.5–8.7% | 17.0–17.1% |
//! | 8/16, the same; the same | 34.4–34.9% | 8.6–8.8% | 17.0–17.1% |
//! | 5/16, the same; all, 16 MiB, 2 MiB | 33.6–33.7% | 7.2–7.5% | 15.8–16.2% |
//! | 5/16, 128 KiB, 512 KiB; all, 4 MiB, 512 KiB | 34.1–34.8% | 9.9–10.0% | 18.1% |
//! | the large round alone | 34.0–35.3% | 8.7–9.2% | 16.8–17.4% |
//! | all, 64 KiB, 64 KiB, and no other | 31.4–32.5% | 8.3–8.4% | 16.7% |
//!
//! A fresh heap that fits begins in the rest of a piece of 4 MiB that the boot has left, and then
//! goes on elsewhere: up to 1.8%, and more if KASLR has put the kernel's image in its midst.

mod before;
mod report;
mod workload;

use std::ffi::OsString;

use serde::Serialize;

use super::{Experiment, Extent, Settings, output_of};
use crate::failure::Failure;
use crate::progress::LabSteps;
use crate::schema::LabHead;
use crate::size::{MIB, show_size};
use crate::statistics::Interval;
use crate::{Result, args, kernel, print, scope};
use workload::{MissShare, Workload, by_chance, frames_at_random, frames_of_a_part_first};

/// The experiment's entry in the list.
pub const EXPERIMENT: Experiment = Experiment {
    name: "near-cache",
    question: "What does the page allocator do to a direct-mapped memory-side cache, fresh, aged, shuffled, balanced?",
    run,
};

const PAGE: u64 = 4096;
const PROGRAM: &str = "guest/workloads/near-cache";
/// The program's place in the guest, independent of its place on the host.
const GUEST_PROGRAM: &str = "/near-cache";
/// Number of boots at a time, if the host has enough CPUs. Their speed does not matter, and each
/// fills all of its memory.
const AT_A_TIME: usize = 2;
/// Miss share above which a placement that should fit has failed.
const FITS_WELL: f64 = 0.01;

/// A kernel with its parameters.
struct NearCacheSide {
    name: &'static str,
    kernel: &'static str,
    append: &'static str,
}

const LINUX: NearCacheSide = NearCacheSide { name: "Linux 6.1", kernel: "linux", append: "" };
const SHUFFLED: NearCacheSide =
    NearCacheSide { name: "Linux 6.1, shuffled", kernel: "linux", append: "page_alloc.shuffle=1" };
const LINEAR: NearCacheSide =
    NearCacheSide { name: "Freehold, in order", kernel: "freehold", append: "page_alloc.placement=linear" };
const RANDOM: NearCacheSide =
    NearCacheSide { name: "Freehold, random", kernel: "freehold", append: "page_alloc.placement=random" };
/// Without a parameter: the kernel's default with such a cache.
const BALANCED: NearCacheSide = NearCacheSide { name: "Freehold, balanced", kernel: "freehold", append: "" };

/// Sizes and repetitions.
struct Extents {
    sides: &'static [NearCacheSide],
    /// Sides that the microscope watches.
    watched: &'static [NearCacheSide],
    cache: u64,
    memory: u64,
    boots: u32,
    /// The cache of the run under the microscope, and its accesses.
    confirmed: (u64, u64),
}

impl Extents {
    fn of(settings: &Settings) -> Extents {
        let mut extents = match settings.extent {
            Extent::Full => Extents {
                sides: &[LINUX, SHUFFLED, LINEAR, RANDOM, BALANCED],
                watched: &[LINUX, RANDOM, BALANCED],
                cache: 256 * MIB,
                memory: 2048 * MIB,
                boots: 10,
                confirmed: (32 * MIB, 2_000_000),
            },
            Extent::Quick => Extents {
                sides: &[LINUX, RANDOM, BALANCED],
                watched: &[RANDOM, BALANCED],
                cache: 32 * MIB,
                memory: 256 * MIB,
                boots: 1,
                confirmed: (16 * MIB, 500_000),
            },
        };
        extents.boots = settings.boots.unwrap_or(extents.boots);
        extents
    }
    /// Returns the numbers of the boots of a side, in groups that run at the same time.
    fn boot_groups(&self) -> Vec<Vec<u32>> {
        let numbers: Vec<u32> = (1..=self.boots).collect();
        let at_a_time = std::thread::available_parallelism().map_or(1, |count| count.get().min(AT_A_TIME));
        numbers.chunks(at_a_time).map(<[u32]>::to_vec).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Age {
    Fresh,
    Aged,
}

impl Age {
    const BOTH: [Age; 2] = [Age::Fresh, Age::Aged];

    const fn name(self) -> &'static str {
        match self {
            Age::Fresh => "fresh",
            Age::Aged => "aged",
        }
    }
}

/// One workload on one side at one age, a share for each boot.
#[derive(Debug, Serialize)]
struct Measured {
    side: &'static str,
    age: Age,
    workload: &'static str,
    boots: Vec<MissShare>,
}

impl Measured {
    fn misses(&self) -> Spread {
        Spread::of(&self.boots.iter().map(|share| share.misses).collect::<Vec<_>>())
    }
}

/// A mean and the range of the boots.
#[derive(Debug, Clone, Copy)]
struct Spread {
    mean: f64,
    range: Interval,
}

impl Spread {
    fn of(values: &[f64]) -> Spread {
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        Spread { mean, range: Interval::range(values) }
    }

    /// Formats `16.2%`, with the ends if they differ: `16.2% (9.8–30.6)`.
    fn show(self) -> String {
        let percent = |value: f64| format!("{:.1}", value * 100.0);
        if percent(self.range.low) == percent(self.range.high) {
            return format!("{}%", percent(self.mean));
        }
        format!("{}% ({})", percent(self.mean), self.range.show("–", percent))
    }
}

/// Place of the kernel's image in a boot, in frames. With KASLR it differs in each boot.
#[derive(Debug, PartialEq, Serialize)]
struct ImagePlace {
    side: &'static str,
    boot: u32,
    first: u64,
    last: u64,
    /// Whether the image is among the frames of the heap that fits: that heap is then longer than
    /// the cache by the image's size.
    among: bool,
}

/// An image is among a heap's frames if at least one of this many frames lies on either side.
const AMONG: usize = 20;

impl ImagePlace {
    /// Reads the image's place in a boot, if the guest prints it. `heap`: the frames of the heap
    /// that fits.
    fn told(output: &str, side: &'static str, boot: u32, heap: &[u64]) -> Option<ImagePlace> {
        let line = output.lines().find_map(|line| line.strip_prefix("image "))?;
        let (first, last) = line.split_once(' ')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (first, last) = (number(first)?, number(last)?);
        let mut sorted = heap.to_vec();
        sorted.sort_unstable();
        let edge = heap.len() / AMONG;
        let (low, high) = (*sorted.get(edge)?, *sorted.get(heap.len().checked_sub(edge + 1)?)?);
        // After a shuffle, frames come from all over memory. Any image is then among them, so
        // `among` would mean nothing.
        let together = high - low < 2 * heap.len() as u64;
        let among = together && low < first && last < high;
        Some(ImagePlace { side, boot, first, last, among })
    }
}

/// Results of all boots.
struct NearCacheResult {
    measured: Vec<Measured>,
    images: Vec<ImagePlace>,
    confirmed: Vec<Confirmed>,
}

impl NearCacheResult {
    /// Describes the miss shares that random placement alone would give.
    fn chance(extents: &Extents) -> Vec<String> {
        let frames = frames_at_random(extents.memory, (3 * extents.cache / PAGE) as usize);
        let share = |workload: Workload| {
            format!("{} {:.1}%", workload.name(), workload.run(&frames, extents.cache).misses * 100.0)
        };
        let shares: Vec<String> = Workload::ALL.into_iter().map(share).collect();
        let row = |places: u32| {
            let [fits, hot, mix] = by_chance(places).map(|share| format!("{:.1}%", share * 100.0));
            format!("{places}: {fits}, {hot}, {mix}")
        };
        let rows: Vec<String> = [3, 4, 5, 6, 8].into_iter().map(row).collect();
        let quarter = (extents.cache / 4 / PAGE) as usize;
        let uneven = |places: u64| {
            let frames =
                frames_of_a_part_first(extents.memory, places * extents.cache, quarter, frames.len());
            let shares = [Workload::Fits, Workload::Hot, Workload::Gups]
                .map(|workload| format!("{:.1}%", workload.run(&frames, extents.cache).misses * 100.0));
            format!("{places}: {}", shares.join(", "))
        };
        let uneven: Vec<String> = [3, 4].into_iter().map(uneven).collect();
        vec![
            format!("Frames drawn at random from all of memory would miss: {}.", shares.join(" · ")),
            format!(
                "Computed for random frames, by the number of frames that share a place of the cache (misses of the heap that fits, the hot quarter, the mix): {}. \
                 If this number holds for the heap's first quarter only, and the rest is random: {}.",
                rows.join(" · "),
                uneven.join(" · ")
            ),
        ]
    }

    /// Returns notes that explain boots unlike the others.
    fn notes(&self) -> Vec<String> {
        let note = |image: &ImagePlace| {
            let wanted = (image.side, Age::Fresh, Workload::Fits.name());
            let row = self.measured.iter().find(|m| (m.side, m.age, m.workload) == wanted)?;
            let misses = row.boots.get(image.boot as usize - 1)?.misses;
            Some(format!(
                "{}, boot {}: KASLR put the kernel's image ({}–{} MiB) among the frames of the fresh heap that would fit, which is \
                 the longer for it: {:.1}% misses. It is not compared with boots before.",
                image.side,
                image.boot,
                image.first * PAGE / MIB,
                (image.last * PAGE).div_ceil(MIB),
                misses * 100.0
            ))
        };
        self.images.iter().filter(|image| image.among).filter_map(note).collect()
    }
}

/// Values that the microscope saw, beside the values computed for the same frames.
#[derive(Debug, Serialize)]
struct Confirmed {
    side: &'static str,
    reckoned: f64,
    seen: f64,
    accesses: u64,
}

#[derive(Serialize)]
struct NearCacheRecord<'a> {
    #[serde(flatten)]
    head: LabHead,
    cache_bytes: u64,
    memory_bytes: u64,
    boots: u32,
    measured: &'a [Measured],
    images: &'a [ImagePlace],
    confirmed: &'a [Confirmed],
}

fn run(settings: &Settings) -> Result<u8> {
    let extents = Extents::of(settings);
    let program = kernel::installed(PROGRAM)
        .ok_or_else(|| Failure::new(format!("{PROGRAM} is missing"), "make build makes it"))?;
    let mut volume = program.into_os_string();
    volume.push(":");
    volume.push(GUEST_PROGRAM);
    let mut found = NearCacheResult { measured: Vec::new(), images: Vec::new(), confirmed: Vec::new() };
    let mut steps = LabSteps::new(extents.watched.iter().map(|side| confirmation(side)))?;
    for side in extents.sides {
        steps.add(extents.boot_groups().iter().map(|_| side.name.to_owned()));
    }
    for side in extents.sides {
        measure(side, &extents, &volume, (&mut found, &mut steps))?;
    }
    for side in extents.watched {
        let name = confirmation(side);
        found.confirmed.extend(steps.step(&name, &name, || confirm(side, &extents, &volume))?);
    }
    let ended_by = steps.end()?;
    let record = NearCacheRecord {
        head: LabHead::of(EXPERIMENT.name, ended_by),
        cache_bytes: extents.cache,
        memory_bytes: extents.memory,
        boots: extents.boots,
        measured: &found.measured,
        images: &found.images,
        confirmed: &found.confirmed,
    };
    settings.write_record(&record)?;
    settings.write_page(|| report::page(&extents, &found), ended_by)?;
    settings.conclude(&report::summary(&extents, &found), ended_by, 0)
}

/// Returns the name of a side's run under the microscope.
fn confirmation(side: &NearCacheSide) -> String {
    format!("{}, under the microscope", side.name)
}

/// Returns the options of every VM here: `side`'s kernel, one node with a memory-side cache, and
/// `volume`, which has the program.
fn options(
    side: &NearCacheSide,
    memory: u64,
    cache: u64,
    program: &[&str],
    volume: &OsString,
) -> Vec<OsString> {
    let mut options: Vec<OsString> = ["--accel", "tcg", "--report", "never", "--kernel", side.kernel]
        .iter()
        .chain(&["--append", side.append, "-m", &show_size(memory), "--near-cache", &show_size(cache)])
        .map(OsString::from)
        .collect();
    options.extend(["--volume".into(), volume.clone(), "--".into(), GUEST_PROGRAM.into()]);
    options.extend(program.iter().map(OsString::from));
    options
}

/// Results of one boot: shares at each age, of each workload, and the image's place.
struct Boot {
    shares: Vec<Vec<MissShare>>,
    image: Option<ImagePlace>,
}

/// Measures all boots of a side, some at a time.
fn measure(
    side: &NearCacheSide,
    extents: &Extents,
    volume: &OsString,
    (found, steps): (&mut NearCacheResult, &mut LabSteps),
) -> Result<()> {
    let cells = Age::BOTH.into_iter().flat_map(|age| Workload::ALL.map(|workload| (age, workload)));
    let mut measured: Vec<Measured> = cells
        .map(|(age, workload)| Measured {
            side: side.name,
            age,
            workload: workload.name(),
            boots: Vec::new(),
        })
        .collect();
    for together in extents.boot_groups() {
        let boots = || -> Result<Vec<Boot>> {
            std::thread::scope(|scope| {
                let threads: Vec<_> = together
                    .iter()
                    .map(|&number| scope.spawn(move || boot(side, extents, volume, number)))
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("a boot does not panic")).collect()
            })
        };
        let last = together.last().copied().unwrap_or(0);
        let name = format!("{}, boot {last} of {}", side.name, extents.boots);
        for Boot { shares, image } in steps.step(side.name, &name, boots)?.into_iter().flatten() {
            found.images.extend(image);
            for (measured, share) in measured.iter_mut().zip(shares.into_iter().flatten()) {
                measured.boots.push(share);
            }
        }
    }
    found.measured.extend(measured.into_iter().filter(|measured| !measured.boots.is_empty()));
    Ok(())
}

/// Measures one boot of a side, by its number.
fn boot(side: &NearCacheSide, extents: &Extents, volume: &OsString, number: u32) -> Result<Boot> {
    let (heap, seed) = ((3 * extents.cache / MIB).to_string(), number.to_string());
    let mut words: Vec<OsString> = ["--icount", "--seed", &seed].iter().map(OsString::from).collect();
    let arguments = ["frames", &heap, &seed];
    words.extend(options(side, extents.memory, extents.cache, &arguments, volume));
    let output = output_of(&words)?;
    let pages = (3 * extents.cache / PAGE) as usize;
    let of_ages = Age::BOTH.map(|age| frames(&output, age, pages));
    let of_ages = of_ages.into_iter().collect::<Result<Vec<_>>>()?;
    let image = ImagePlace::told(&output, side.name, number, &of_ages[0][..pages / 3]);
    let shares = |frames: &Vec<u64>| {
        Workload::ALL.iter().map(|workload| workload.run(frames, extents.cache)).collect()
    };
    Ok(Boot { shares: of_ages.iter().map(shares).collect(), image })
}

/// Returns the frames that the program printed after the name of `age`.
fn frames(output: &str, age: Age, pages: usize) -> Result<Vec<u64>> {
    let lines = output.lines().skip_while(|line| *line != age.name()).skip(1);
    let frames: Vec<u64> = lines.map_while(|line| u64::from_str_radix(line, 16).ok()).take(pages).collect();
    if frames.len() == pages {
        return Ok(frames);
    }
    Err(Failure::new(
        format!("the guest reported {} of {pages} frames ({})", frames.len(), age.name()),
        "guest/workloads/near-cache in the VM says why",
    ))
}

/// Watches a program that reads a heap as large as its cache at random.
fn confirm(side: &NearCacheSide, extents: &Extents, volume: &OsString) -> Result<Confirmed> {
    let (cache, accesses) = extents.confirmed;
    print::stderr(format!("freehold: {}, under the microscope\n", side.name));
    let arguments = ["walk", &(cache / MIB).to_string(), &accesses.to_string()];
    // A small last-level cache: the walk misses it, as a large heap misses a large one.
    let mut watched: Vec<OsString> =
        ["--model", "cache", "--llc", "64K,1"].iter().map(OsString::from).collect();
    let memory = 8 * cache;
    watched.extend(options(side, memory, cache, &arguments, volume));
    let (results, output) = scope::Measurement::prepare(&args::scope_options(&watched)?)?.run()?;
    let frames = frames(&String::from_utf8_lossy(&output), Age::Fresh, (cache / PAGE) as usize)?;
    let walk = results.phases.iter().find(|phase| phase.name == "walk").and_then(|phase| phase.near.first());
    let walk = walk.ok_or_else(|| Failure::new("the microscope saw no phase named walk", ""))?;
    Ok(Confirmed {
        side: side.name,
        reckoned: Workload::Fits.run(&frames, cache).conflicts,
        seen: walk.conflict as f64 / walk.accesses.max(1) as f64,
        accesses: walk.accesses,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_those_after_the_name_of_their_age_and_all_of_them() {
        let output = "fresh\n1a\n1b\naged\n2a\n2b\n";
        assert_eq!(frames(output, Age::Aged, 2).expect("frames"), [0x2a, 0x2b]);
        assert_eq!(frames(output, Age::Fresh, 2).expect("frames"), [0x1a, 0x1b]);
        assert!(frames(output, Age::Fresh, 3).is_err(), "too few must not pass for all");
    }

    #[test]
    fn an_image_among_a_heaps_frames_is_told_from_one_beside_them() {
        let image = |first: u64| {
            let output = format!("image {first:x} {:x}\nfresh\n", first + 99);
            let heap: Vec<u64> = (1000..2000).filter(|frame| !(first..first + 100).contains(frame)).collect();
            ImagePlace::told(&output, "a", 1, &heap).expect("told")
        };
        assert!(image(1500).among);
        assert!(!image(3000).among && !image(900).among);
        // A few frames far from all others do not count as heap on the image's other side.
        assert!(!image(1995).among);
        assert_eq!(ImagePlace::told("fresh\n1\n", "a", 1, &[1]), None);
        let scattered: Vec<u64> = (0..1000).map(|n| n * 8).collect();
        assert!(!ImagePlace::told("image 400 40f\n", "a", 1, &scattered).expect("told").among);
    }

    #[test]
    fn a_spread_shows_its_ends_where_boots_differ() {
        assert_eq!(Spread::of(&[0.1, 0.1]).show(), "10.0%");
        assert_eq!(Spread::of(&[0.1, 0.3]).show(), "20.0% (10.0–30.0)");
        assert_eq!(Spread::of(&[0.1]).show(), "10.0% (too few runs)");
    }
}
