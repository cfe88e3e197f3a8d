//! Where the image lies: its slide among virtual addresses, and its frames.
//!
//! Both are drawn at each boot, in steps of 2 MiB, as in Linux' `arch/x86/boot/compressed/kaslr.c`:
//! text is mapped in leaves of 2 MiB, whose virtual and physical addresses have their low 21 bits
//! in common. With a finer step, a leaf could begin before the text or end after it: then other
//! bytes would be executable, or each node would need more memory.
//!
//! **Virtual.** [`virtual_slide`] picks one of [`STEPS`] places in the top 2 GiB: 10 bits (Linux
//! has 9). `boot.s` calls it before the relocations are applied, so it computes and touches no
//! memory.
//!
//! **Physical.** The loader puts the image where it is linked for, at 2 MiB. [`place`] picks other
//! frames in the first 128 MiB, and the image is copied there at the moment when the final tables
//! are loaded ([`crate::memory`]). A machine with 256 MiB or more has about 55 places: 5.8 bits.
//! The window ends at 128 MiB because frames further up may belong to another node, and every CPU
//! fetches kernel text. The frames are of no use to a program: no other mapping shows them.
//!
//! The kernel parameter `nokaslr` leaves the image where it is linked and loaded, for a debugger.
//!
//! Everything else comes from RDRAND and the time stamp: with `--icount --seed N` the emulator
//! gives the same bits each time.

use freehold_machine::{PAGEBLOCK_FRAMES, Pfn, PfnRange};

/// Number of places of the image in the top 2 GiB, 2 MiB apart; 16 of the 1024 are left out, since
/// the image itself needs them.
pub(super) const STEPS: u64 = 1008;
const STEP_SHIFT: u32 = 21;
/// One past the last frame that the image may use: 128 MiB.
const WINDOW_END: Pfn = Pfn(64 * PAGEBLOCK_FRAMES);

/// Returns the virtual slide in bytes, a multiple of 2 MiB below [`STEPS`] times that. `drawn` has
/// hardware random bits, or 0 if the CPU has none; `stamp` is the time-stamp counter. Called by
/// `boot.s` at the image's physical address. `start_info` is the loader's: with `nokaslr` on its
/// command line the slide is 0.
pub(super) extern "C" fn virtual_slide(drawn: u64, stamp: u64, start_info: u64) -> u64 {
    if super::pvh::has_nokaslr(start_info) {
        return 0;
    }
    let mixed = mix(drawn ^ mix(stamp));
    let step = (u128::from(mixed) * u128::from(STEPS)) >> 64;
    (step as u64) << STEP_SHIFT
}

/// Spreads each bit over all others (the finaliser of SplitMix64, Steele, Lea and Flood 2014).
const fn mix(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// Returns the first frame of the image's place. `loaded` is where the loader put it; `is_usable`
/// tells whether a whole run is memory. Places with a pageblock that holds a frame of `initrd` are
/// excluded; `random` picks one of the others. The place begins at a pageblock and does not overlap
/// `loaded`, so that a forward copy works. Returns `loaded.start` if there is no such place.
pub(super) fn place(
    loaded: PfnRange,
    is_usable: impl Fn(PfnRange) -> bool,
    initrd: PfnRange,
    random: u64,
) -> Pfn {
    let places = || {
        let blocks = (PAGEBLOCK_FRAMES..WINDOW_END.0).step_by(PAGEBLOCK_FRAMES as usize);
        let runs = blocks.map(|block| PfnRange::new(Pfn(block), Pfn(block + loaded.len())));
        runs.filter(|&run| {
            // Start-up uses the rest of the image's pageblocks.
            let end = Pfn(run.end.0.next_multiple_of(PAGEBLOCK_FRAMES));
            run.end <= WINDOW_END
                && is_usable(run)
                && run.intersection(loaded).is_empty()
                && PfnRange::new(run.start.pageblock_start(), end).intersection(initrd).is_empty()
        })
    };
    let count = places().count() as u64;
    let nth = (u128::from(random) * u128::from(count)) >> 64;
    places().nth(nth as usize).map_or(loaded.start, |run| run.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    /// Bits of the collision entropy of `values`, from the number of equal pairs: the probability
    /// that two boots agree is 2 to the minus that.
    fn collision_bits(values: &mut [u64]) -> f64 {
        values.sort_unstable();
        let equal: usize = values.chunk_by(|a, b| a == b).map(|same| same.len() * (same.len() - 1) / 2).sum();
        let pairs = values.len() * (values.len() - 1) / 2;
        (pairs as f64 / equal.max(1) as f64).log2()
    }

    fn random() -> impl FnMut() -> u64 {
        let mut state = 7u64;
        move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        }
    }

    const LOADED: PfnRange = PfnRange { start: Pfn(512), end: Pfn(512 + 1100) };

    fn draw(memory_end: u64, random: u64) -> Pfn {
        let initrd = PfnRange::new(Pfn(memory_end - 300), Pfn(memory_end - 100));
        place(LOADED, |run| run.end.0 <= memory_end, initrd, random)
    }

    #[test]
    fn virtual_slides_are_pageblocks_in_the_top_2_gib_and_use_all_of_them() {
        let mut random = random();
        let mut slides: Vec<u64> = (0..100_000).map(|stamp| virtual_slide(random(), stamp, 0)).collect();
        assert!(slides.iter().all(|slide| slide % (2 << 20) == 0 && *slide < STEPS << STEP_SHIFT));
        assert!(collision_bits(&mut slides) > 9.9);
        let places: BTreeSet<u64> = slides.into_iter().collect();
        assert_eq!(places.len() as u64, STEPS);
    }

    #[test]
    fn without_hardware_bits_neighbouring_time_stamps_give_slides_far_apart() {
        let mut slides: Vec<u64> = (0..100_000).map(|stamp| virtual_slide(0, 1 << 40 | stamp, 0)).collect();
        assert!(collision_bits(&mut slides) > 9.9);
    }

    #[test]
    fn places_are_pageblocks_of_memory_that_is_nobodys() {
        let mut random = random();
        for memory_end in [10_000, 16_384, 65_536] {
            let mut places = Vec::new();
            for _ in 0..20_000 {
                let first = draw(memory_end, random());
                let run = PfnRange::new(first, first.offset(LOADED.len()));
                assert_eq!(first.0 % 512, 0);
                assert!(run.end.0 <= memory_end && run.end <= WINDOW_END && first.0 >= 512);
                assert!(run.intersection(LOADED).is_empty());
                assert!(
                    run.intersection(PfnRange::new(Pfn(memory_end - 300), Pfn(memory_end - 100))).is_empty()
                );
                places.push(first.0);
            }
            let expected = if memory_end >= 32_768 { 5.7 } else { 3.5 };
            assert!(collision_bits(&mut places) > expected, "{memory_end}");
        }
    }

    #[test]
    fn an_image_that_fits_nowhere_else_stays_where_the_loader_put_it() {
        assert_eq!(draw(LOADED.end.0 + 400, u64::MAX), LOADED.start);
    }
}
