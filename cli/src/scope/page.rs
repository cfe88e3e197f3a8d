//! The report: one page that shows the conflicts and their causes, the lives of translations,
//! memory use by node, the executed code, and broken rules.

use std::collections::HashMap;

use freehold_scope_record::{Bucket, Counting, Half, NearResult, Page as PageSize, Results};

use super::Story;
use super::digest::{self, Digest, Lives, remote, share};
use super::owners;
use super::summary::{self, PhaseRow, percent, plural};
use crate::html::{
    Axis, Bar, Bars, Cell, Column, HeatMap, Lines, Matrix, Page, Shape, Table, Tile, Tone, Unit,
    command_line, survival,
};

/// Points of a profile over a cache's sets.
const PROFILE: usize = 256;
/// Rows of the heat map.
const HEAT_ROWS: usize = 64;
/// Functions in the table.
const HOTTEST: usize = 40;
/// Share of conflicts in all accesses that deserves attention …
const SOME_CONFLICTS: f64 = 0.05;
/// … and the share that placement should have avoided.
const MANY_CONFLICTS: f64 = 0.2;

/// Returns the page.
pub fn page(story: &Story<'_>) -> Page {
    let digest = &story.digest;
    let results = digest.results;
    let command = story.command.join(" ");
    let mut page = Page::new(
        &format!("What {} does to memory", name(story)),
        &format!("{command} · {} · counts are the program's time where nothing else is said", story.kernel),
    );
    let again = format!("freehold run --icount --syscalls -- {}", command_line(story.command));
    page.next("Which system calls are behind it", &again);
    tiles(&mut page, story);
    if results.oracle.total > 0 {
        page.note(Tone::Bad, &summary::verdict(&story.digest.results.oracle));
    }
    phases(&mut page, digest);
    if !results.near.is_empty() {
        near(&mut page, story);
    }
    if results.tlb.is_some() {
        tlb(&mut page, digest);
    }
    if digest.nodes() > 1 {
        locality(&mut page, digest);
    }
    if !results.regions.is_empty() {
        heat(&mut page, results);
    }
    code(&mut page, story);
    isolation(&mut page, story);
    settings(&mut page, story);
    page
}

/// Returns the program's name without its folders.
fn name<'a>(story: &Story<'a>) -> &'a str {
    let word = story.command.first().map_or("the program", String::as_str);
    word.rsplit('/').next().unwrap_or(word)
}

/// Returns a kind of TLB entry in words.
pub fn kind(lives: &Lives) -> String {
    let half = match lives.half {
        Half::Kernel => "kernel",
        Half::User => "programs",
    };
    let size = match lives.page {
        PageSize::Small => "4 KiB",
        PageSize::Large => "2 MiB",
        PageSize::Giant => "1 GiB",
    };
    format!("{half}, {size} pages")
}

fn tiles(page: &mut Page, story: &Story<'_>) {
    let digest = &story.digest;
    let (user, kernel) = (digest.all_counts(Half::User), digest.all_counts(Half::Kernel));
    let all = user.instructions + kernel.instructions;
    let tile = |label: &str, value: String, detail: String, tone: Tone| Tile {
        label: label.into(),
        value,
        detail,
        tone,
    };
    let mut tiles = vec![tile(
        "instructions",
        Unit::Count.show(all as f64),
        format!("{} in the kernel", percent(share(kernel.instructions, all))),
        Tone::Plain,
    )];
    for (node, (near, result)) in digest.near().iter().zip(&digest.results.near).enumerate() {
        let conflicts = share(near.conflict, near.accesses);
        let tone = match conflicts.unwrap_or(0.0) {
            share if share >= MANY_CONFLICTS => Tone::Bad,
            share if share >= SOME_CONFLICTS => Tone::Warning,
            _ => Tone::Good,
        };
        let size = Unit::Bytes.show(result.size as f64);
        let detail = format!("of {} accesses, {size}", Unit::Count.show(near.accesses as f64));
        tiles.push(tile(&format!("conflicts, near cache {node}"), percent(conflicts), detail, tone));
    }
    if let Some(shape) = &digest.results.settings.models.tlb {
        let both = digest::sum([&user, &kernel].into_iter());
        let walks = summary::walks(&both).unwrap_or(0.0);
        let detail = format!("for 1,000 instructions, {}", shape.name);
        tiles.push(tile("TLB walks", format!("{walks:.2}"), detail, Tone::Plain));
    }
    if digest.nodes() > 1 {
        let worst = (0..digest.results.settings.cpus.len())
            .filter_map(|cpu| {
                let node = digest.results.settings.cpus[cpu];
                Some((remote(&digest.counts(cpu, Half::Kernel).fetches, node)?, cpu))
            })
            .max_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((share, cpu)) = worst {
            let tone = if share > 0.5 { Tone::Warning } else { Tone::Plain };
            let detail = format!("of the kernel on CPU {cpu}, the most of all");
            tiles.push(tile("remote fetches", percent(Some(share)), detail, tone));
        }
    }
    let oracle = &digest.results.oracle;
    let (value, tone, detail) = match (&oracle.layout, oracle.total) {
        (None, _) => ("–".to_owned(), Tone::Plain, "this kernel publishes nothing to judge".to_owned()),
        (_, 0) => {
            let checks = oracle.checks.direct_map + oracle.checks.translations + oracle.checks.stores;
            ("0".to_owned(), Tone::Good, format!("in {} checks", Unit::Count.show(checks as f64)))
        }
        (_, total) => (total.to_string(), Tone::Bad, "see Isolation".to_owned()),
    };
    tiles.push(tile("isolation violations", value, detail, tone));
    page.tiles(&tiles);
}

fn phases(page: &mut Page, digest: &Digest<'_>) {
    page.section("Phases");
    page.text("Firmware, boot, program and closing are found by themselves; the guest begins others with the command “phase NAME”.");
    let columns = [
        Column::text("phase"),
        Column::number("instructions"),
        Column::number("in the kernel"),
        Column::number("cache conflicts"),
        Column::number("TLB walks / 1,000"),
        Column::number("remote data"),
        Column::number("remote fetches"),
    ];
    let mut table = Table::new("", &columns);
    let all = digest.results.instructions.max(1) as f64;
    for phase in &digest.results.phases {
        let row = PhaseRow::of(digest, phase);
        let walks = row.walks.map_or("–".into(), |walks| format!("{walks:.2}"));
        table.row([
            Cell::text(&phase.name),
            Cell::text(Unit::Count.show(row.instructions as f64))
                .share(row.instructions as f64 / all)
                .hint(format!("from instruction {} to {}", phase.start, phase.end)),
            Cell::text(percent(row.kernel)),
            Cell::text(percent(row.conflicts)),
            Cell::text(walks),
            Cell::text(percent(row.remote_data)),
            Cell::text(percent(row.remote_fetches)),
        ]);
    }
    page.table(&table);
}

fn near(page: &mut Page, story: &Story<'_>) {
    let (digest, owners) = (&story.digest, owners::texts(story.pair_owners));
    let results = digest.results;
    page.section("Memory-side cache");
    page.text(
        "A direct-mapped cache in front of each node: a line's place is its physical address modulo the cache's size. A miss is \
         cold (the line's first use), for want of capacity (a fully associative cache of the size misses too) or a conflict: \
         only those can be avoided by placing memory better.",
    );
    let mut table = Table::new(
        "",
        &["accesses", "hits", "cold", "capacity", "conflicts", "written back"].iter().fold(
            vec![Column::text("node")],
            |mut columns, name| {
                columns.push(Column::number(name));
                columns
            },
        ),
    );
    for (node, near) in digest.near().iter().enumerate() {
        let of_all = |count| Cell::text(percent(share(count, near.accesses))).hint(count.to_string());
        table.row([
            Cell::text(node.to_string()),
            Cell::text(Unit::Count.show(near.accesses as f64)).hint(near.accesses.to_string()),
            of_all(near.hits),
            of_all(near.cold),
            of_all(near.capacity),
            of_all(near.conflict),
            of_all(near.written_back),
        ]);
    }
    page.table(&table);
    let line = results.settings.models.cache.map_or(64, |cache| cache.line);
    profiles(page, &results.near, line);
    for (node, near) in results.near.iter().enumerate() {
        collisions(page, (results, &owners), node, near);
    }
}

fn profiles(page: &mut Page, near: &[NearResult], line: u64) {
    let Some(first) = near.first() else { return };
    let every = first.buckets.len().div_ceil(PROFILE).max(1);
    let bytes = (first.sets_per_bucket * line * every as u64) as f64;
    let place = || Axis::linear("place in the cache", Unit::Bytes).range(0.0, first.size as f64);
    let mut conflicts = Lines::new(
        "Where the cache conflicts",
        place(),
        Axis::linear(&format!("conflicts in each {}", Unit::Bytes.show(bytes)), Unit::Count),
    );
    let mut occupied = Lines::new(
        "How much of the cache is in use",
        place(),
        Axis::linear("lines in use at the end", Unit::Percent).up_to(1.0),
    );
    // Filled areas of several nodes would hide each other.
    let shape = if near.len() == 1 { Shape::Profile } else { Shape::Step };
    for (node, near) in near.iter().enumerate() {
        let name = format!("node {node}");
        let points = |of: fn(&Bucket) -> u64, whole: fn(u64) -> f64| {
            let mut points: Vec<(f64, f64)> = Vec::new();
            for (n, chunk) in near.buckets.chunks(every).enumerate() {
                let sum = chunk.iter().map(of).sum::<u64>();
                points
                    .push((n as f64 * bytes, sum as f64 / whole(near.sets_per_bucket * chunk.len() as u64)));
            }
            // The last step reaches the cache's end.
            points.extend(points.last().map(|last| (near.size as f64, last.1)));
            points
        };
        conflicts.line(&name, shape, &points(|bucket| bucket.conflicts, |_| 1.0));
        occupied.line(&name, shape, &points(|bucket| bucket.occupied, |sets| sets as f64));
    }
    page.figure(
        &conflicts,
        "Over the whole run. Even and low is good; a peak is a stretch of the cache that several hot pages share.",
    );
    page.figure(
        &occupied,
        "Places that stay empty while others conflict are what better placement would fill.",
    );
}

fn collisions(
    page: &mut Page,
    (results, owners): (&Results, &HashMap<u64, String>),
    node: usize,
    near: &NearResult,
) {
    let count = |left: usize, came: usize| {
        near.collisions.get(left).and_then(|row| row.get(came)).copied().unwrap_or(0)
    };
    let n = results.classes.len();
    // Classes that never collide would only widen the picture.
    let met: Vec<usize> =
        (0..n).filter(|&class| (0..n).any(|other| count(class, other) + count(other, class) > 0)).collect();
    if met.is_empty() {
        page.text(&format!("Node {node}: no frame evicted lines of another frame."));
        return;
    }
    let names: Vec<String> = met.iter().map(|&class| results.classes[class].clone()).collect();
    let values = met
        .iter()
        .flat_map(|&left| met.iter().map(move |&came| (left, came)))
        .map(|(l, c)| count(l, c) as f64);
    let matrix = Matrix::new(
        &format!("Evictions from node {node}'s cache, by owner"),
        ("evicted", "by"),
        &names,
        &names,
        values.collect(),
    );
    page.figure(&matrix, "Conflicts over the whole run, by the owners of the two frames when it happened.");
    if near.pairs.is_empty() {
        return;
    }
    let columns = [
        Column::code("evicted frame"),
        Column::text("its owner"),
        Column::code("by frame"),
        Column::text("its owner"),
        Column::number("times"),
    ];
    let mut table = Table::new(&format!("The worst pairs of frames, node {node}"), &columns);
    let owner = |frame: u64| Cell::text(owners.get(&frame).map_or("–", String::as_str));
    for pair in near.pairs.iter().take(10) {
        table.row([
            Cell::text(format!("{:#x}", pair.evicted)),
            owner(pair.evicted),
            Cell::text(format!("{:#x}", pair.arrived)),
            owner(pair.arrived),
            Cell::text(pair.count.to_string()),
        ]);
    }
    page.table(&table);
}

fn tlb(page: &mut Page, digest: &Digest<'_>) {
    let Some(tlb) = &digest.results.tlb else { return };
    page.section("Translations");
    let lives = digest.lives();
    let mut curves = Lines::new(
        "How long TLB entries live",
        Axis::logarithmic("age, instructions of the CPU", Unit::Count),
        Axis::linear("entries that live as long", Unit::Percent).up_to(1.0),
    );
    for kind_of in &lives {
        curves.line(&kind(kind_of), Shape::Step, &survival(&kind_of.ages));
    }
    page.figure(
        &curves,
        "Kaplan–Meier over the whole run: an entry that was alive at the end counts for as long as it was seen. An entry that \
         lives long is one that a missing flush would leave behind for long.",
    );
    let causes =
        ["capacity", "flushed by address", "space switched", "everything flushed", "alive at the end"];
    let mut bars =
        Bars::parts("What ends them", Axis::linear("part of the entries", Unit::Percent).up_to(1.0), &causes);
    for kind_of in &lives {
        let of_kind =
            || tlb.groups.iter().filter(|group| (group.half, group.page) == (kind_of.half, kind_of.page));
        let mut counts = [0u64; 5];
        for group in of_kind() {
            for death in &group.deaths {
                counts[death.cause as usize] += death.lived.iter().sum::<u64>();
            }
            counts[4] += group.alive.iter().sum::<u64>();
        }
        let all: u64 = counts.iter().sum();
        let parts: Vec<Option<Bar>> = counts.iter().map(|&count| share(count, all).map(Bar::exact)).collect();
        bars.group(&format!("{} ({})", kind(kind_of), Unit::Count.show(kind_of.fills as f64)), &parts);
    }
    page.figure(&bars, "In brackets: entries made. Capacity: another entry needed the place.");
    if tlb.unknown_page_flushes > 0 {
        page.text(&format!(
            "{} entries were flushed by an address that could not be read. \
             They were removed when the change of their translation was seen.",
            Unit::Count.show(tlb.unknown_page_flushes as f64)
        ));
    }
}

fn locality(page: &mut Page, digest: &Digest<'_>) {
    let results = digest.results;
    page.section("Locality");
    let columns = [
        Column::number("CPU"),
        Column::number("node"),
        Column::number("instructions"),
        Column::number("kernel: remote fetches"),
        Column::number("kernel: remote data"),
        Column::number("programs: remote fetches"),
        Column::number("programs: remote data"),
    ];
    let mut table = Table::new("Accesses to another node's memory", &columns);
    for (cpu, &node) in results.settings.cpus.iter().enumerate() {
        let (user, kernel) = (digest.counts(cpu, Half::User), digest.counts(cpu, Half::Kernel));
        let cell = |by_node: &[u64]| {
            let share = remote(by_node, node);
            Cell::text(percent(share)).share(share.unwrap_or(0.0)).hint(format!("by node: {by_node:?}"))
        };
        table.row([
            Cell::text(cpu.to_string()),
            Cell::text(node.to_string()),
            Cell::text(Unit::Count.show((user.instructions + kernel.instructions) as f64)),
            cell(&kernel.fetches),
            cell(&kernel.data),
            cell(&user.fetches),
            cell(&user.data),
        ]);
    }
    page.table(&table);
    if let Some(parts) = summary::kernel_code(digest) {
        page.note(Tone::Plain, &format!("The kernel's code is fetched {parts}."));
    }
    for (title, of) in [
        ("Remote instruction fetches over time", Traffic::Fetches),
        ("Remote loads and stores over time", Traffic::Data),
    ] {
        let mut figure = Lines::new(
            title,
            Axis::linear("guest instructions", Unit::Count).range(0.0, results.instructions as f64),
            Axis::linear("part that went to another node", Unit::Percent).up_to(1.0),
        );
        for cpu in 0..results.settings.cpus.len() {
            figure.line(&format!("CPU {cpu}"), Shape::Straight, &course(results, cpu, of));
        }
        marks(&mut figure, results);
        page.figure(&figure, "Kernel and programs together; where a CPU did nothing its line has a gap.");
    }
}

#[derive(Clone, Copy)]
enum Traffic {
    Fetches,
    Data,
}

/// Returns a point for each slice of time; a gap where the CPU did nothing.
fn course(results: &Results, cpu: usize, of: Traffic) -> Vec<(f64, f64)> {
    let slices = results.slices.iter().filter_map(|slice| {
        let modes = slice.cpus.get(cpu)?;
        let (mut away, mut all) = (0, 0);
        for half in [&modes.user, &modes.kernel] {
            let (local, remote) = match of {
                Traffic::Fetches => (half.fetch_local, half.fetch_remote),
                Traffic::Data => (half.data_local, half.data_remote),
            };
            away += remote;
            all += local + remote;
        }
        Some(((slice.start + slice.end) as f64 / 2.0, share(away, all).unwrap_or(f64::NAN)))
    });
    slices.collect()
}

fn marks(figure: &mut Lines, results: &Results) {
    for phase in results.phases.iter().skip(1) {
        figure.mark(phase.start as f64, &phase.name);
    }
}

fn heat(page: &mut Page, results: &Results) {
    page.section("Page heat");
    let every = results.regions.len().div_ceil(HEAT_ROWS).max(1);
    let rows = results.regions.len().div_ceil(every);
    let columns = results.slices.len().max(1);
    let mut values = vec![0.0; rows * columns];
    for (column, slice) in results.slices.iter().enumerate() {
        for &(region, count) in &slice.heat {
            values[region / every * columns + column] += count as f64;
        }
    }
    let bytes: u64 = results.regions.iter().map(|region| region.bytes).sum();
    let map = HeatMap::new(
        "Loads and stores by place and time",
        (
            Axis::linear("guest instructions", Unit::Count).range(0.0, results.instructions as f64),
            Axis::linear("physical memory, without holes", Unit::Bytes).range(0.0, bytes as f64),
        ),
        ("accesses", Unit::Count),
        columns,
        values,
    );
    page.figure(&map, "Each cell is a slice of time and a stretch of memory; shades go by the logarithm.");
}

fn code(page: &mut Page, story: &Story<'_>) {
    page.section("Code");
    let mut table = Table::new(
        "Where the instructions of the program's time went",
        &[Column::code("function"), Column::number("instructions"), Column::number("part of all")],
    );
    let most = story.hot.first().map_or(1.0, |hot| hot.share).max(f64::MIN_POSITIVE);
    for hot in story.hot.iter().take(HOTTEST) {
        table.row([
            Cell::text(&hot.name),
            Cell::text(Unit::Count.show(hot.instructions as f64)).hint(hot.instructions.to_string()),
            Cell::text(format!("{:.2}%", hot.share * 100.0)).share(hot.share / most),
        ]);
    }
    page.table(&table);
}

fn isolation(page: &mut Page, story: &Story<'_>) {
    let oracle = &story.digest.results.oracle;
    page.section("Isolation");
    if oracle.layout.is_none() {
        page.text(
            "This kernel does not publish who owns its frames, so nothing was judged. Freehold's own kernel does.",
        );
        return;
    }
    let checks = &oracle.checks;
    let show = |count: u64| Unit::Count.show(count as f64);
    let text = format!(
        "While the guest ran, {} kernel accesses through the direct map, {} uses of translations and {} stores were compared \
         with who owned the frames; {} changes of ownership were seen. {} leaves of the kernel half were judged as they were \
         stored, used or not, in {} translation tables.",
        show(checks.direct_map),
        show(checks.translations),
        show(checks.stores),
        show(checks.changes),
        show(checks.leaves),
        show(checks.tables),
    );
    page.text(&text);
    let smap = &oracle.smap;
    let text = format!(
        "The kernel ran {} instructions with RFLAGS.AC set, which switches SMAP off, outside user copies; {} in them, and {} of trap \
         handlers before their CLAC. {} trap frames were read; {} interrupted a program that had AC set.",
        show(smap.outside),
        show(smap.user_copies),
        show(smap.entries),
        show(smap.frames),
        show(smap.program_frames),
    );
    page.text(&text);
    if oracle.total == 0 {
        page.note(Tone::Good, "No rule of memory isolation was broken.");
        return;
    }
    let columns = [
        Column::text("rule"),
        Column::code("function"),
        Column::number("CPU"),
        Column::number("at instruction"),
        Column::code("frame"),
        Column::text("owner"),
        Column::code("address"),
        Column::number("times"),
    ];
    let mut table = Table::new(&plural(oracle.total, "violation"), &columns);
    for violation in &oracle.violations {
        let stale = violation.stale.as_ref().map_or(String::new(), |stale| {
            format!(
                "cached at {} while the frame was {}; it changed hands at {}",
                stale.filled, stale.owner, stale.changed
            )
        });
        table.row([
            Cell::text(violation.rule.description()).tone(Tone::Bad).hint(stale),
            Cell::text(story.names.function(violation.pc)).hint(format!("{:#x}", violation.pc)),
            Cell::text(violation.cpu.to_string()),
            Cell::text(violation.time.to_string()),
            Cell::text(format!("{:#x}", violation.frame)),
            Cell::text(&violation.owner),
            Cell::text(format!("{:#x}", violation.address)),
            Cell::text(violation.count.to_string()),
        ]);
    }
    page.table(&table);
    let windows: u64 = oracle.stale_windows.iter().sum();
    if windows > 0 {
        let mut bars = Bars::new(
            "How long translations had been stale when they were used",
            Axis::linear("uses", Unit::Count),
            &["uses"],
        );
        for (bucket, &count) in oracle.stale_windows.iter().enumerate().filter(|(_, count)| **count > 0) {
            let up_to = Unit::Count.show(2f64.powi(bucket as i32 + 1));
            bars.group(&format!("up to {up_to} instructions"), &[Some(Bar::exact(count as f64))]);
        }
        page.figure(&bars, "");
    }
}

fn settings(page: &mut Page, story: &Story<'_>) {
    let results = story.digest.results;
    let settings = &results.settings;
    page.section("Settings");
    let nodes: Vec<String> =
        settings.memory.backends.iter().map(|backend| Unit::Bytes.show(backend.bytes as f64)).collect();
    let mut facts = vec![
        ("program".to_owned(), story.command.join(" ")),
        ("kernel".to_owned(), story.kernel.clone()),
        ("memory by node".to_owned(), nodes.join(", ")),
        ("node of each CPU".to_owned(), format!("{:?}", settings.cpus)),
    ];
    if let Some(cache) = settings.models.cache {
        let shape = |shape: freehold_scope_record::CacheShape| {
            format!("{}, {}", Unit::Bytes.show(shape.size as f64), plural(shape.ways as u64, "way"))
        };
        facts.push(("cache line".to_owned(), format!("{} B", cache.line)));
        facts.push(("first-level caches".to_owned(), shape(cache.first)));
        facts.push(("last-level cache of each CPU".to_owned(), shape(cache.last)));
        if let Some(near) = cache.near {
            facts.push(("memory-side cache of each node".to_owned(), Unit::Bytes.show(near.size as f64)));
        }
    }
    if let Some(tlb) = &settings.models.tlb {
        facts.push((
            "TLB".to_owned(),
            format!(
                "{}: data {}/{}, instructions {}/{}, second level {}/{} (entries/ways); page sizes {}",
                tlb.name,
                tlb.data_entries,
                tlb.data_ways,
                tlb.fetch_entries,
                tlb.fetch_ways,
                tlb.second_entries,
                tlb.second_ways,
                results.tlb.as_ref().map_or("", |tlb| &tlb.page_sizes),
            ),
        ));
    }
    let cost = &results.cost;
    facts.push((
        "what looking cost".to_owned(),
        format!(
            "{:.1} s of CPU time; {} blocks ran, counted {} (plugin interface {}), {} accesses, {} of them translated by QEMU",
            cost.emulator.cpu_seconds,
            Unit::Count.show(cost.blocks as f64),
            match cost.emulator.counting {
                Counting::Calls => "by calls",
                Counting::Inline => "in QEMU's own code",
            },
            cost.emulator.interface,
            Unit::Count.show(cost.accesses as f64),
            Unit::Count.show(cost.translations as f64),
        ),
    ));
    page.facts(&facts);
    for remark in &results.remarks {
        page.note(Tone::Plain, remark);
    }
}

#[cfg(test)]
mod tests {
    use crate::scope::tests::with_story;

    #[test]
    fn the_report_draws_every_part_that_was_modelled() {
        let html = with_story(|story| super::page(story).render());
        for part in [
            "Evictions from node",
            "How long TLB entries live",
            "over time",
            "by place and time",
            "figure heat",
        ] {
            assert!(html.contains(part), "{part}");
        }
        assert!(html.matches("<svg class=\"figure").count() >= 8);
    }
}
