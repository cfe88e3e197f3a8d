//! Where the areas of the kernel half begin: drawn at boot, the same in every address space.
//!
//! Each area gets a top-level slot (512 GiB) of its own, drawn without repetition, and inside it a
//! random start of 1 GiB granularity (windows: 256 MiB). The last slots are the image's.

/// Bytes under one top-level entry.
pub(crate) const SLOT: u64 = 1 << 39;
const GIB: u64 = 1 << 30;
/// Bytes of the windows of all CPUs: in the first half those of 4 KiB, in the second half those of
/// 2 MiB.
pub(crate) const WINDOWS_SPAN: u64 = 256 << 20;
/// Addresses of the direct map above the end of start-up's memory, for memory that is plugged in
/// later.
pub(crate) const PLUGGABLE_SPAN: u64 = 1 << 40;
/// Bytes of the frame table's area.
pub(crate) const FRAME_TABLE_SPAN: u64 = 128 * GIB;
/// Bytes of each of the frame table's two parts: the records, and the reverse keys.
pub(crate) const FRAME_TABLE_PART: u64 = FRAME_TABLE_SPAN / 2;
/// Bytes of the dynamic area: stacks, mappings of frames and of device registers.
pub(crate) const DYNAMIC_SPAN: u64 = 64 * GIB;

/// First addresses of the areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VirtualLayout {
    pub direct_map: u64,
    pub direct_span: u64,
    pub windows: u64,
    pub frame_table: u64,
    pub dynamic: u64,
}

/// The address at which top-level slot `slot` (256..512) begins.
const fn slot_start(slot: u64) -> u64 {
    0xffff_0000_0000_0000 | slot << 39
}

/// Draws a layout for `direct_span` bytes of physical memory (at most 32 TiB), with bits from
/// `random`.
pub(crate) fn choose(mut random: impl FnMut() -> u64, direct_span: u64) -> VirtualLayout {
    let direct_span = direct_span.next_multiple_of(GIB);
    let direct_start = (random() % 512) * GIB;
    let direct_slots = (direct_start + direct_span).div_ceil(SLOT);
    // Slots 256..510: 510 stays free and 511 holds the image.
    let direct_slot = 256 + random() % (254 - direct_slots);
    let mut taken = [0; 3];
    let mut count = 0;
    while count < taken.len() {
        let slot = 256 + random() % 254;
        let in_direct = (direct_slot..direct_slot + direct_slots).contains(&slot);
        if !in_direct && !taken.contains(&slot) {
            taken[count] = slot;
            count += 1;
        }
    }
    let mut within = |span: u64, step: u64| random() % ((SLOT - span) / step) * step;
    VirtualLayout {
        direct_map: slot_start(direct_slot) + direct_start,
        direct_span,
        windows: slot_start(taken[0]) + within(WINDOWS_SPAN, WINDOWS_SPAN),
        frame_table: slot_start(taken[1]) + within(FRAME_TABLE_SPAN, GIB),
        dynamic: slot_start(taken[2]) + within(DYNAMIC_SPAN, GIB),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_never_overlap_and_stay_below_the_image() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 16
        };
        for round in 0..10_000 {
            let span = (round % 2048 + 1) * GIB;
            let layout = choose(&mut random, span);
            let mut areas = [
                (layout.direct_map, layout.direct_span),
                (layout.windows, WINDOWS_SPAN),
                (layout.frame_table, FRAME_TABLE_SPAN),
                (layout.dynamic, DYNAMIC_SPAN),
            ];
            areas.sort_unstable();
            assert!(areas[0].0 >= slot_start(256));
            for pair in areas.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{layout:x?}");
                // The areas are in different top-level slots, so they share no table below the top.
                assert!((pair[0].0 + pair[0].1 - 1) >> 39 < pair[1].0 >> 39, "{layout:x?}");
            }
            assert!(areas[3].0 + areas[3].1 <= slot_start(510));
        }
    }
}
