//! Pieces in which memory comes, and memory in small pieces.

extern crate std;

use std::vec::Vec;

use freehold_machine::PAGE_SIZE;

use crate::tests::{ANY, LIMITS, SEGMENT, dma, limited, source, source_of};
use crate::*;

#[test]
fn memory_comes_in_pieces_of_up_to_a_megabyte_and_its_segments_go_one_by_one() {
    let source = source(512);
    let dma = dma(source);
    let device = dma.attach(ANY).unwrap();
    let long = device.buffer(1 << 20, Direction::ToDevice).unwrap();
    assert_eq!((dma.statistics().nslabs, dma.statistics().grows), (512, 1));
    assert_eq!(long.pieces(0..1 << 20).count(), 1, "one descriptor");
    // The rest of the memory comes as 512 KiB and two segments.
    let rest = device.buffer((1 << 20) - (3 << 12), Direction::ToDevice).unwrap();
    assert_eq!((dma.statistics().grows, source.taken()), (4, 512));
    drop((long, rest));
    let kept = device.buffer(SEGMENT, Direction::ToDevice).unwrap();
    assert_eq!(dma.shrink(), 7 * SEGMENT);
    assert_eq!(source.taken(), 64);
    drop(kept);
    assert_eq!((dma.shrink(), source.taken()), (SEGMENT, 0));
}

/// The worker adds as much as is missing at once, up to a megabyte.
#[test]
fn the_worker_adds_large_pieces_when_much_is_missing() {
    let source = source_of(1024, 0, 1);
    let dma = dma(source);
    let device = dma.attach(ANY).unwrap();
    let held: Vec<_> = (0..8).map(|_| device.buffer(SEGMENT, Direction::ToDevice).unwrap()).collect();
    assert_eq!(dma.statistics().nslabs, 8 * 128);
    dma.tick();
    assert_eq!((dma.statistics().nslabs, dma.statistics().grows), (10 * 128, 9));
    drop(held);
}

#[test]
fn fragmented_memory_gives_single_pages_until_a_pageblock_is_empty() {
    let source = source(512);
    let dma = dma(source);
    let device = dma.attach(ANY).unwrap();
    source.fragment();
    let pages = device.buffer_up_to(2 * SEGMENT, Direction::ToDevice).unwrap();
    assert_eq!((pages.len(), pages.pieces(0..pages.len()).count()), (MAX_RUNS * PAGE_SIZE, MAX_RUNS));
    assert!(dma.is_fragmented() && dma.mend(), "there is no larger piece yet");
    source.evacuate(256);
    assert!(!dma.mend() && !dma.is_fragmented());
    let whole = device.buffer(2 * SEGMENT, Direction::ToDevice).unwrap();
    assert_eq!(whole.pieces(0..2 * SEGMENT).count(), 1, "as much as was needed");
    drop((pages, whole));
    (0..6).for_each(|_| _ = dma.tick());
    assert_eq!((dma.statistics().nslabs, dma.wants_ticks()), (0, false));
}

/// Otherwise the pages of a time without large pieces would split transfers as long as they are in
/// use.
#[test]
fn a_long_buffer_is_of_new_memory_rather_than_of_short_runs() {
    let source = source(512);
    let dma = dma(source);
    let device = dma.attach(ANY).unwrap();
    source.fragment();
    drop(device.buffer_up_to(2 * SEGMENT, Direction::ToDevice).unwrap());
    source.evacuate(256);
    let whole = device.buffer(2 * SEGMENT, Direction::ToDevice).unwrap();
    assert_eq!(whole.pieces(0..2 * SEGMENT).count(), 1);
    // A buffer for which short runs are enough takes them.
    let grows = dma.statistics().grows;
    let short = device.buffer(MAX_RUNS * PAGE_SIZE, Direction::ToDevice).unwrap();
    assert_eq!((dma.statistics().grows, short.pieces(0..short.len()).count()), (grows, MAX_RUNS));
    drop((whole, short));
}

/// Otherwise the worker would empty pageblocks in vain.
#[test]
fn no_pageblock_is_wanted_at_the_cap_or_once_the_small_pieces_are_gone() {
    for is_capped in [true, false] {
        let source = source(512);
        let dma = limited(source, Limits { cap: if is_capped { SEGMENT } else { 2 * SEGMENT }, ..LIMITS });
        let device = dma.attach(ANY).unwrap();
        source.fragment();
        let pages = device.buffer_up_to(SEGMENT, Direction::ToDevice).unwrap();
        assert_eq!((dma.is_fragmented(), dma.mend()), (true, !is_capped));
        assert_eq!(dma.is_fragmented(), !is_capped);
        drop(pages);
        (0..6).for_each(|_| _ = dma.tick());
        assert!(!dma.is_fragmented() && !dma.wants_ticks());
    }
}

#[test]
fn a_small_piece_near_the_cap_is_no_fragmentation() {
    let dma = limited(source(512), Limits { cap: SEGMENT + 3 * PAGE_SIZE, ..LIMITS });
    let device = dma.attach(ANY).unwrap();
    let held = device.buffer(SEGMENT + 3 * PAGE_SIZE, Direction::ToDevice).unwrap();
    assert!(!dma.is_fragmented());
    drop(held);
}
