//! Defects of Linux' SWIOTLB since it has dynamic allocation, turned into promises of this crate.
//! Each class of defects has one test, with the commits or reports that name it. Each test was seen
//! to fail on a broken variant (`tools/broken-bounce`).

extern crate std;
use core::ops::Range;
use std::boxed::Box;
use std::vec::Vec;

use freehold_machine::{PAGE_SIZE, Pfn};

use crate::tests::{ANY, LIMITS, SEGMENT, Source, as_device, device_writes, dma, limited, source};
use crate::*;

fn aligned(keeps: usize, align: usize) -> Constraint {
    let alignment = |bytes| Alignment::new(bytes).unwrap();
    Constraint { keeps: alignment(keeps), align: alignment(align), ..Constraint::NONE }
}

fn transfer(length: usize, origin: u64, constraint: Constraint) -> Transfer {
    Transfer { length, origin, constraint }
}

/// The pages of a mapping.
fn pages(mapping: &DmaMapping<Source>) -> Vec<Pfn> {
    let pieces = mapping.pieces(0..mapping.len());
    let last = |piece: &Piece| (piece.offset + piece.length - 1) / PAGE_SIZE;
    pieces.flat_map(|piece| (0..=last(&piece) as u64).map(move |page| piece.frame.offset(page))).collect()
}

/// 1: 8ac04063354a, aabd12609f91, a6a241764f69. More areas than memory has room for.
#[test]
fn areas_are_hints_so_that_a_pool_smaller_than_they_are_many_gives_out_every_page_once() {
    let source = source(96);
    let dma = limited(source, Limits { slabs: 192, areas: 64, cap: 96 * PAGE_SIZE, ..LIMITS });
    let device = dma.attach(ANY).unwrap();
    let held: Vec<_> = core::iter::from_fn(|| device.buffer(PAGE_SIZE, Direction::ToDevice).ok()).collect();
    let mut all: Vec<Pfn> = held.iter().flat_map(pages).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!((held.len(), all.len(), dma.statistics().used), (96, 96, 192));
}

/// 2: 2d5780bbef8d. An address is published before the data with which its pool is found.
#[test]
fn a_thread_that_gets_an_address_from_another_finds_the_device_that_has_it() {
    let source = source(256);
    let dma = dma(source);
    let devices = [dma.attach(ANY).unwrap(), dma.attach(DeviceRules { name: "net", ..ANY }).unwrap()];
    let (sender, receiver) = std::sync::mpsc::sync_channel(0);
    let lender = std::thread::spawn(move || {
        for round in 0..300 {
            let device = devices[round % 2];
            let mapping = device.buffer(PAGE_SIZE << (round % 5), Direction::ToDevice).unwrap();
            sender.send((mapping.address(), device.rules().name)).unwrap();
            // The other thread has the address; it uses the address before the mapping is freed.
            sender.send((mapping.address(), device.rules().name)).unwrap();
        }
    });
    while let Ok((address, name)) = receiver.recv() {
        assert_eq!(dma.owner(address), Some(name));
        let _ = receiver.recv();
    }
    lender.join().unwrap();
}

/// 3: a5e3b127455d. Memory that a device may still access is freed.
#[test]
fn memory_that_cannot_be_withdrawn_is_never_freed_nor_given_to_others() {
    let source = source(256);
    let dma = dma(source);
    let (device, other) = (dma.attach(ANY).unwrap(), dma.attach(ANY).unwrap());
    let mapping = device.buffer(3 * PAGE_SIZE, Direction::FromDevice).unwrap();
    let lost = pages(&mapping);
    assert_eq!(mapping.lose(), 3 * PAGE_SIZE);
    drop(mapping);
    (0..10).for_each(|_| _ = dma.tick());
    assert_eq!(dma.shrink(), 0);
    let rest: Vec<_> = core::iter::from_fn(|| other.buffer(PAGE_SIZE, Direction::ToDevice).ok()).collect();
    assert_eq!(rest.len(), 256 - 3);
    assert!(rest.iter().flat_map(pages).all(|page| !lost.contains(&page)));
}

/// 4: 53c87e846e33, CVE-2023-52790. A pool of less than a segment is set up as a whole one.
#[test]
fn a_segment_that_is_cut_short_has_no_page_beyond_its_memory() {
    for frames in [1, 2, 3, 5, 33, 63] {
        let source = source(frames);
        let device = dma(source).attach(ANY).unwrap();
        let held: Vec<_> =
            core::iter::from_fn(|| device.buffer_up_to(SEGMENT, Direction::ToDevice).ok()).collect();
        let all: Vec<Pfn> = held.iter().flat_map(pages).collect();
        assert_eq!(all.len() as u64, frames);
        assert!(all.iter().all(|page| (512..512 + frames).contains(&page.0)), "{frames}: {all:?}");
    }
}

/// 5: 0eee5ae10256, bbb73a103fbb, 04867a7a3332, CVE-2024-35814. Several masks in combination make
/// two mappings overlap.
#[test]
fn transfers_of_all_masks_at_once_share_no_byte_and_no_page_with_another_device() {
    let source = source(500);
    let dma = dma(source);
    let devices = [dma.attach(ANY).unwrap(), dma.attach(ANY).unwrap()];
    let mut live = Vec::new();
    for (number, keeps) in [1, 512, 2048, 4096, 16384].into_iter().enumerate() {
        for align in [1, 64, 2048, 4096, 65536] {
            let origin = 0x1234_5600 + number as u64 % 2;
            let device = devices[(number + align) % 2];
            let stamp = live.len() as u8 + 1;
            let mapping =
                device.bounce(transfer(1500, origin, aligned(keeps, align)), Direction::Bidirectional);
            let mapping = mapping.unwrap();
            mapping.write(0, &[stamp; 1500]);
            live.push((mapping, stamp));
        }
    }
    for (mapping, stamp) in &live {
        let mut bytes = [0; 1500];
        mapping.read(0, &mut bytes);
        assert!(bytes.iter().all(|byte| byte == stamp));
        let foreign = live.iter().filter(|(other, _)| other.device().number() != mapping.device().number());
        assert!(foreign.flat_map(|(other, _)| pages(other)).all(|page| !pages(mapping).contains(&page)));
    }
}

/// 6: 86efbaa947be, d80e7bba2b0b. A mapping of a page or more is not aligned to pages.
#[test]
fn what_is_as_long_as_a_page_begins_on_one() {
    let source = source(256);
    let device = dma(source).attach(ANY).unwrap();
    let _small = device.buffer(10, Direction::ToDevice).unwrap();
    for length in [PAGE_SIZE, PAGE_SIZE + 1, 3 * PAGE_SIZE, SEGMENT] {
        let mapping = device.buffer(length, Direction::ToDevice).unwrap();
        assert_eq!(mapping.address().0 % PAGE_SIZE as u64, 0, "{length}");
    }
}

/// 7: af133562d5af. The original's low bits are lost where the memory is aligned to more than a
/// slot.
#[test]
fn the_originals_low_bits_are_kept_whatever_the_memory_is_aligned_to() {
    let source = source(500);
    let device = dma(source).attach(ANY).unwrap();
    let _first = device.buffer(PAGE_SIZE, Direction::ToDevice).unwrap();
    for keeps in [512, 2048, 4096, 16384, 65536] {
        for align in [1, 4096, 16384, 65536] {
            for origin in [0, 512, 0x7_fe00, 0x1_0800, 0xffff_fa00] {
                let wanted = transfer(3000, origin, aligned(keeps, align));
                let mapping = device.bounce(wanted, Direction::ToDevice).unwrap();
                let low = keeps as u64 - 1;
                assert_eq!(mapping.address().0 & low, origin & low, "{keeps} {align} {origin:#x}");
                let held = device.held() - PAGE_SIZE;
                assert!(held.is_multiple_of(align), "{keeps} {align}: the end is aligned, too");
            }
        }
    }
}

/// 8: e8068f2d756d. A sync of a part in the middle copies the wrong bytes.
#[test]
fn a_sync_of_any_part_moves_that_part_wherever_the_first_byte_lies() {
    let source = source(256);
    let device = dma(source).attach(ANY).unwrap();
    let wanted = transfer(9000, 0x2e00, aligned(4096, 1));
    let mapping = device.bounce(wanted, Direction::Bidirectional).unwrap();
    let pattern: Vec<u8> = (0..9000).map(|at| (at / 7) as u8).collect();
    let mut at = 0;
    for piece in mapping.pieces(0..9000) {
        let address = DmaAddr(piece.frame.start().0 + piece.offset as u64);
        device_writes(source, address, &pattern[at..at + piece.length]);
        at += piece.length;
    }
    for (offset, length) in
        [(0, 1), (500, 13), (511, 2), (512, 4096), (4607, 2), (4700, 4000), (8999, 1), (8999, 100)]
    {
        let mut original = [0; 9000];
        mapping.sync_for_cpu(original.as_mut_slice(), offset, length);
        let end = (offset + length).min(9000);
        assert_eq!(original[offset..end], pattern[offset..end], "{offset} {length}");
        let others = original[..offset].iter().chain(&original[end..]);
        assert!(others.into_iter().all(|&byte| byte == 0));
    }
    let seen = as_device(source, mapping.address(), 512);
    assert_eq!(seen, pattern[..512]);
    let device_sees = || -> Vec<u8> {
        let start = |piece: &Piece| DmaAddr(piece.frame.start().0 + piece.offset as u64);
        let pieces = mapping.pieces(0..9000);
        pieces.flat_map(|piece| as_device(source, start(&piece), piece.length)).collect()
    };
    let (mut expected, fresh) = (pattern, [0xee; 9000]);
    for (offset, length) in [(8999, 1), (4607, 2), (511, 2), (4700, 4000)] {
        mapping.sync_for_device(fresh.as_slice(), offset, length);
        expected[offset..offset + length].fill(0xee);
        assert!(device_sees() == expected, "{offset} {length}");
    }
}

/// 9: a1255ccab8ec. A count is set to 0 while counted uses have not ended yet.
#[test]
fn counts_never_go_below_zero_when_the_mark_begins_anew_or_another_cpu_gives_back() {
    let source = source(256);
    let dma = dma(source);
    let device = dma.attach(ANY).unwrap();
    let held: Vec<_> = (0..100).map(|_| device.buffer(PAGE_SIZE, Direction::ToDevice).unwrap()).collect();
    dma.reset_hiwater();
    std::thread::spawn(move || drop(held)).join().unwrap();
    let now = dma.statistics();
    assert_eq!((now.used, device.held()), (0, 0));
    assert!(now.used_hiwater <= 200, "{now:?}");
    dma.reset_hiwater();
    assert_eq!(dma.statistics().used_hiwater, 0);
    let _held: Vec<_> = (0..10).map(|_| device.buffer(PAGE_SIZE, Direction::ToDevice).unwrap()).collect();
    assert_eq!((dma.statistics().used, device.held()), (20, 10 * PAGE_SIZE));
}

/// 10: 75961ffb5cb3. A restricted pool is used before its list is made.
#[test]
fn a_restricted_pool_serves_its_device_and_its_readers_from_the_start() {
    let source = source(256);
    let dma = dma(source);
    assert_eq!(dma.restricted().count(), 0);
    let device = dma.attach_restricted(ANY, 16 * PAGE_SIZE).unwrap();
    let slots = || dma.restricted().collect::<Vec<_>>();
    assert_eq!((slots(), dma.owner(DmaAddr(0))), (std::vec![("disk", [32, 0])], None));
    assert_eq!((dma.tick(), dma.shrink(), dma.statistics().nslabs), (0, 0, 0));
    let cell = device.buffer(10, Direction::ToDevice).unwrap();
    let page = device.buffer(5000, Direction::ToDevice);
    assert_eq!(dma.owner(cell.address()), Some("disk"));
    assert_eq!(dma.owner(page.as_ref().unwrap().address()), Some("disk"));
    assert_eq!(slots(), [("disk", [32, 6])]);
    drop((cell, page));
    assert_eq!((slots(), device.held()), (std::vec![("disk", [32, 2])], 0));
}

/// 11: ddbd89deb7d3, aa6f8dcbab47, CVE-2022-0854. Bytes that the device did not write reach the
/// original, and the first fix broke drivers that sync before the device writes.
#[test]
fn a_device_that_writes_less_leaves_the_original_and_a_sync_towards_it_changes_nothing_it_wrote() {
    let source = source(256);
    let dma = dma(source);
    let device = dma.attach(ANY).unwrap();
    drop(device.map([0x5e; 5000].as_slice(), Direction::ToDevice).unwrap());
    let mut original = [7; 5000];
    let mapping = device.map(original.as_slice(), Direction::FromDevice).unwrap();
    device_writes(source, mapping.address(), &[1; 100]);
    mapping.sync_for_device(original.as_slice(), 0, 5000);
    mapping.unmap(original.as_mut_slice());
    assert!(original[..100].iter().all(|&byte| byte == 1));
    assert!(original[100..].iter().all(|&byte| byte == 7));
}

/// 12: an open report (our model of it fails in 12 of 24 cases). Memory that fits exactly has no
/// room to align in.
#[test]
fn memory_that_is_just_enough_serves_every_offset_in_a_page() {
    for offset in (0..PAGE_SIZE).step_by(512) {
        for length in [512, PAGE_SIZE - 512, PAGE_SIZE] {
            let need = (offset + length).div_ceil(PAGE_SIZE).next_power_of_two();
            let source = source(need as u64);
            let device = dma(source).attach(ANY).unwrap();
            let wanted = transfer(length, 0x7000 + offset as u64, aligned(4096, 1));
            let mapping = device.bounce(wanted, Direction::ToDevice).unwrap();
            assert_eq!(mapping.address().0 as usize % PAGE_SIZE, offset, "{length}");
        }
    }
}

/// 13: an open report. The address limit for memory that may be added later is used as the limit of
/// present memory.
#[test]
fn a_device_that_reaches_the_memory_there_is_works_though_more_would_be_beyond_it() {
    let source = source(256);
    let dma = limited(source, Limits { slabs: 128, ..LIMITS });
    // The first segment is just below the device's address limit.
    let reach = DmaAddr((512 + 64) * PAGE_SIZE as u64 - 1);
    let near = dma.attach(DeviceRules { reach, ..ANY }).unwrap();
    assert!(near.longest(Constraint::NONE) >= SEGMENT);
    let all: Vec<_> = (0..64).map(|_| near.buffer(PAGE_SIZE, Direction::ToDevice).unwrap()).collect();
    assert_eq!(near.buffer(PAGE_SIZE, Direction::ToDevice).unwrap_err(), DmaError::OutOfReach);
    let far = dma.attach(ANY).unwrap();
    let _far = far.buffer(SEGMENT, Direction::ToDevice).unwrap();
    drop(all);
    let lower = Constraint { reach: DmaAddr(reach.0 - 32 * PAGE_SIZE as u64), ..Constraint::NONE };
    let lowest = far.bounce(transfer(32 * PAGE_SIZE, 0, lower), Direction::ToDevice).unwrap();
    assert!(pages(&lowest).iter().all(|page| page.start().0 < lower.reach.0));
    let more = far.bounce(transfer(PAGE_SIZE, 0, lower), Direction::ToDevice);
    assert_eq!(more.unwrap_err(), DmaError::OutOfReach, "what is free lies above");
}

/// 14: CVE-2026-53164. A part of no bytes is linked.
#[test]
fn a_part_of_no_bytes_is_an_error_or_nothing_and_never_a_piece() {
    let source = source(256);
    let device = dma(source).attach(ANY).unwrap();
    let none = transfer(0, 0xe00, aligned(4096, 1));
    assert_eq!(device.bounce(none, Direction::ToDevice).unwrap_err(), DmaError::Empty);
    let boundary = Boundary::new(PAGE_SIZE as u64);
    let wanted = transfer(3 * PAGE_SIZE, 0x1e00, Constraint { boundary, ..aligned(4096, 1) });
    let mapping = device.bounce(wanted, Direction::ToDevice).unwrap();
    for start in (0..3 * PAGE_SIZE).step_by(512) {
        assert_eq!(mapping.pieces(start..start).count(), 0);
        let pieces: Vec<_> = mapping.pieces(start..3 * PAGE_SIZE).collect();
        assert!(pieces.iter().all(|piece| piece.length > 0 && piece.offset + piece.length <= PAGE_SIZE));
        assert_eq!(pieces.iter().map(|piece| piece.length).sum::<usize>(), 3 * PAGE_SIZE - start);
    }
    let backwards = Range { start: 9000, end: 3 };
    assert_eq!(mapping.pieces(backwards).count(), 0);
}

/// 15: 57d29044d0f2 and six more of June 2026. An error path leaks memory, or frees memory that is
/// not ours.
#[test]
fn a_mapping_that_fails_on_the_way_leaves_every_page_and_every_count_as_it_was() {
    for frames in [0, 1, 7, 63, 64, 65, 130] {
        let source = source(frames);
        let dma: &'static Dma<Source> = Box::leak(Box::new(Dma::new()));
        dma.start(source, LIMITS);
        let device = dma.attach(ANY).unwrap();
        let whole = transfer(SEGMENT + PAGE_SIZE, 0x600, aligned(2048, 16384));
        for _ in 0..3 {
            assert!(frames == 130 || device.bounce(whole, Direction::ToDevice).is_err(), "{frames}");
            assert_eq!((device.held(), dma.statistics().used), (0, 0));
        }
        dma.shrink();
        assert_eq!((source.taken(), dma.statistics().nslabs), (0, 0));
    }
}
