//! The results, in words, tables and bars.

use super::workload::Workload;
use super::{Age, EXPERIMENT, Extents, FITS_WELL, Measured, NearCacheResult, NearCacheSide, Spread, before};
use crate::html::{Axis, Bar, Bars, Cell, Column, Page, Table, Tile, Tone, Unit};
use crate::size::show_size;

fn title(extents: &Extents) -> String {
    format!(
        "{} of direct-mapped cache in front of {}; {} per kernel; share of accesses that miss, by page placement",
        show_size(extents.cache),
        show_size(extents.memory),
        if extents.boots == 1 { "1 boot".to_owned() } else { format!("{} boots", extents.boots) },
    )
}

/// The reason why the figures repeat.
const BOOTS: &str =
    "--icount --seed N for boot N: the same kernel, QEMU and program give the same frames on any host";
/// The way in which the program ages memory, and the reason.
const AGEING: &str = "\
    six processes take turns: each maps an area and writes a piece of a file, both of random size. Areas have up to \
    64 KiB and pieces up to 256 KiB until 5/16 of memory are in use. Then they have up to 8 MiB and 1 MiB until memory \
    is full. The processes end; the files stay. The publication describes its ageing in one sentence, so the sizes \
    were chosen to reproduce Linux' misses there";

/// Returns the summary for the terminal.
pub fn summary(extents: &Extents, found: &NearCacheResult) -> String {
    let mut text = format!("{}\n\n{:<36}", title(extents), "");
    for workload in Workload::ALL {
        text.push_str(&format!("{:>22}", workload.name()));
    }
    text.push('\n');
    for row in found.measured.chunks(Workload::ALL.len()) {
        text.push_str(&format!("{:<36}", format!("{}, {}", row[0].side, row[0].age.name())));
        for cell in row {
            text.push_str(&format!("{:>22}", cell.misses().show()));
        }
        text.push('\n');
    }
    for note in found.notes().into_iter().chain(NearCacheResult::chance(extents)) {
        text.push_str(&format!("{note}\n"));
    }
    if before::compares(extents.cache, extents.memory) {
        text.push_str(&format!(
            "\n{:<44}{:>10}{:>22}{:>22}\n",
            "a stock Linux, before and now", "before", "now", "within"
        ));
        for [what, before, now, within] in before::beside(&found.measured, &found.images) {
            text.push_str(&format!("{what:<44}{before:>10}{now:>22}{within:>22}\n"));
        }
    }
    text.push_str(
        "\nconfirmed by the microscope (a walk over a heap of 1×, conflicts)    reckoned      seen\n",
    );
    for row in &found.confirmed {
        text.push_str(&format!(
            "{:<66}{:>10.1}%{:>9.1}%\n",
            row.side,
            row.reckoned * 100.0,
            row.seen * 100.0
        ));
    }
    text
}

/// Returns key figures: the heap that fits, on each kernel, when memory has aged.
fn tiles(extents: &Extents, measured: &[Measured]) -> Vec<Tile> {
    let tile = |side: &NearCacheSide| {
        let wanted = (side.name, Age::Aged, Workload::Fits.name());
        let found = measured.iter().find(|m| (m.side, m.age, m.workload) == wanted)?;
        let spread = found.misses();
        Some(Tile {
            label: side.name.into(),
            value: format!("{:.1}%", spread.mean * 100.0),
            detail: "misses of a heap that would fit, aged".into(),
            tone: if spread.mean <= FITS_WELL { Tone::Good } else { Tone::Warning },
        })
    };
    extents.sides.iter().filter_map(tile).collect()
}

/// Returns the page for a browser.
pub fn page(extents: &Extents, found: &NearCacheResult) -> Page {
    let NearCacheResult { measured, confirmed, .. } = found;
    let mut page = Page::new("A direct-mapped cache and the page allocator", &title(extents));
    page.tiles(&tiles(extents, measured));
    page.section("Question");
    page.text(EXPERIMENT.question);
    page.text(
        "Shuffling free memory in blocks of 4 MiB was Linux' answer in 2019: it makes the conflict rate of an aged machine \
         steadier, and that of a fresh one worse. Placing each page where the cache holds fewest keeps it low at any age.",
    );
    page.section("Answer");
    for age in Age::BOTH {
        let names: Vec<&str> = extents.sides.iter().map(|side| side.name).collect();
        let mut bars = Bars::new(
            &format!("Misses in {} memory", age.name()),
            Axis::linear("misses for each access", Unit::Percent),
            &names,
        );
        for workload in Workload::ALL {
            let bar = |side: &NearCacheSide| {
                let found = measured
                    .iter()
                    .find(|m| (m.side, m.age, m.workload) == (side.name, age, workload.name()))?;
                let spread = found.misses();
                Some(Bar::within(spread.mean, spread.range))
            };
            bars.group(workload.name(), &extents.sides.iter().map(bar).collect::<Vec<_>>());
        }
        page.figure(&bars, "The lines at the ends reach from the best boot to the worst. Shorter is better.");
    }
    let mut columns = vec![Column::text("workload"), Column::text("memory")];
    columns.extend(extents.sides.iter().map(|side| Column::number(side.name)));
    let mut table = Table::new("Misses: mean (least–most of all boots)", &columns);
    for workload in Workload::ALL {
        for age in Age::BOTH {
            let wanted = (age, workload.name());
            let cell = |row: &Measured| {
                let conflicts: Vec<f64> = row.boots.iter().map(|share| share.conflicts).collect();
                let tone = match workload {
                    Workload::Fits if row.misses().mean <= FITS_WELL => Tone::Good,
                    _ => Tone::Plain,
                };
                let hint = format!("conflicts alone: {}", Spread::of(&conflicts).show());
                Cell::text(row.misses().show()).tone(tone).hint(hint)
            };
            let row = measured.iter().filter(|row| (row.age, row.workload) == wanted).map(cell);
            let names = [Cell::text(workload.name()), Cell::text(age.name())];
            table.row(names.into_iter().chain(row));
        }
    }
    page.table(&table);
    for note in found.notes().into_iter().chain(NearCacheResult::chance(extents)) {
        page.note(Tone::Plain, &note);
    }
    if before::compares(extents.cache, extents.memory) {
        let columns =
            [Column::text(""), Column::number("before"), Column::number("now"), Column::number("within")];
        let mut table = Table::new("A stock Linux: what was measured before, on few boots", &columns);
        for row in before::beside(&found.measured, &found.images) {
            table.row(row.map(Cell::text));
        }
        page.table(&table);
    }
    page.section("Confirmation");
    page.text(
        "The figures above are reckoned from frame numbers. Here a program really reads a heap as large as a small cache at \
         random, and the microscope counts the conflicts of its accesses line by line.",
    );
    let columns = [
        Column::text("kernel"),
        Column::number("reckoned"),
        Column::number("seen"),
        Column::number("accesses"),
    ];
    let mut table = Table::new("", &columns);
    for row in confirmed {
        table.row([
            Cell::text(row.side),
            Cell::text(Unit::Percent.show(row.reckoned)),
            Cell::text(Unit::Percent.show(row.seen)),
            Cell::text(Unit::Count.show(row.accesses as f64)),
        ]);
    }
    page.table(&table);
    page.section("Settings");
    let fact = |name: &str, what: &str| (name.to_owned(), what.to_owned());
    let mut facts = vec![fact("boots", BOOTS), fact("ageing", AGEING)];
    let sides = extents.sides.iter();
    facts.extend(
        sides.map(|side| fact(side.name, &format!("--kernel {} --append '{}'", side.kernel, side.append))),
    );
    facts.extend(Workload::ALL.iter().map(|workload| fact(workload.name(), workload.what())));
    page.facts(&facts);
    page
}
