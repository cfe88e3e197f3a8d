//! Figures of a stock Linux 6.1 that were measured before this lab existed, with a memory and a
//! cache of the same size, on few boots. The lab shows them beside its own figures and compares as
//! precisely as they are written.

use super::workload::Workload;
use super::{Age, ImagePlace, LINUX, Measured, NearCacheSide, SHUFFLED, Spread};
use crate::size::MIB;

/// One of those figures: the minimum and the maximum of some boots.
struct Before {
    side: &'static str,
    age: Age,
    workload: Workload,
    low: f64,
    high: f64,
    /// The unit to which the figures are rounded.
    unit: f64,
}

const fn before(
    side: &NearCacheSide,
    age: Age,
    workload: Workload,
    (low, high): (f64, f64),
    unit: f64,
) -> Before {
    Before { side: side.name, age, workload, low, high, unit }
}

const WHOLE: f64 = 0.01;
const TENTH: f64 = 0.001;

const BEFORE: [Before; 7] = [
    before(&LINUX, Age::Fresh, Workload::Fits, (0.013, 0.016), TENTH),
    before(&LINUX, Age::Fresh, Workload::Gups, (0.09, 0.10), WHOLE),
    before(&LINUX, Age::Aged, Workload::Fits, (0.33, 0.38), WHOLE),
    before(&LINUX, Age::Aged, Workload::Hot, (0.08, 0.09), WHOLE),
    before(&LINUX, Age::Aged, Workload::Gups, (0.16, 0.17), WHOLE),
    before(&SHUFFLED, Age::Fresh, Workload::Fits, (0.33, 0.38), WHOLE),
    before(&SHUFFLED, Age::Fresh, Workload::Gups, (0.10, 0.31), WHOLE),
];

impl Before {
    /// Returns whether the share is in the range, at the precision of the written figure.
    fn contains(&self, share: f64) -> bool {
        (self.low - self.unit / 2.0..self.high + self.unit / 2.0).contains(&share)
    }

    fn show(&self) -> String {
        let digits = if self.unit < WHOLE { 1 } else { 0 };
        format!("{:.digits$}–{:.digits$}%", self.low * 100.0, self.high * 100.0)
    }
}

/// Returns whether a lab with this cache and this memory has figures to compare.
pub fn compares(cache: u64, memory: u64) -> bool {
    (cache, memory) == (256 * MIB, 2048 * MIB)
}

/// Returns rows: name, earlier figure, present figure, agreement. Fresh boots with the kernel's
/// image inside the heap are left out: their additional misses are not caused by the page
/// allocator.
pub fn beside(measured: &[Measured], images: &[ImagePlace]) -> Vec<[String; 4]> {
    let row = |before: &Before| {
        let wanted = (before.side, before.age, before.workload.name());
        let found = measured.iter().find(|m| (m.side, m.age, m.workload) == wanted)?;
        let apart = |boot: u32| {
            before.age == Age::Fresh
                && images.iter().any(|image| image.among && (image.side, image.boot) == (before.side, boot))
        };
        let boots = (1..).zip(&found.boots).filter(|(boot, _)| !apart(*boot));
        let misses: Vec<f64> = boots.map(|(_, share)| share.misses).collect();
        let spread = Spread::of(&misses);
        let mean = if before.contains(spread.mean) { "mean, " } else { "" };
        let within = misses.iter().filter(|misses| before.contains(**misses)).count();
        Some([
            format!("{}, {}, {}", before.side, before.age.name(), before.workload.name()),
            before.show(),
            if misses.is_empty() { "–".into() } else { spread.show() },
            format!("{mean}{within} of {} boots", misses.len()),
        ])
    };
    BEFORE.iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::super::workload::MissShare;
    use super::*;

    #[test]
    fn boots_within_the_ends_are_counted_and_sides_that_were_not_run_are_left_out() {
        let share = |misses| MissShare { misses, conflicts: misses };
        let measured = Measured {
            side: LINUX.name,
            age: Age::Aged,
            workload: Workload::Fits.name(),
            boots: [0.3249, 0.3251, 0.3849, 0.39].map(share).to_vec(),
        };
        let [row] = &beside(&[measured], &[])[..] else { panic!("one row") };
        assert_eq!(row[1..], ["33–38%", "35.6% (32.5–39.0)", "mean, 2 of 4 boots"]);
    }

    #[test]
    fn a_fresh_boot_with_the_image_among_its_heap_is_not_compared() {
        let share = |misses| MissShare { misses, conflicts: misses };
        let measured = |age| Measured {
            side: LINUX.name,
            age,
            workload: Workload::Fits.name(),
            boots: [0.015, 0.13].map(share).to_vec(),
        };
        let image = |side: &NearCacheSide, boot, among| ImagePlace {
            side: side.name,
            boot,
            first: 0,
            last: 1,
            among,
        };
        let images = [image(&LINUX, 1, false), image(&LINUX, 2, true), image(&SHUFFLED, 1, true)];
        let rows = beside(&[measured(Age::Fresh), measured(Age::Aged)], &images);
        assert_eq!(rows[0][1..], ["1.3–1.6%", "1.5% (too few runs)", "mean, 1 of 1 boots"]);
        assert!(rows[1][3].ends_with("of 2 boots"), "an aged heap is anywhere: {:?}", rows[1]);
        let none = beside(&[measured(Age::Fresh)], &[image(&LINUX, 1, true), image(&LINUX, 2, true)]);
        assert_eq!(none[0][2..], ["–", "0 of 0 boots"]);
    }
}
