//! The promises in the crate's head, on the software machine.

extern crate std;
use std::boxed::Box;
use std::sync::Mutex;
use std::vec::Vec;

use freehold_frame::{FrameRecord, FrameSource, FrameTable, Order, OutOfMemory, Request};
use freehold_machine::model::{Config, Model};
use freehold_machine::{PAGE_SIZE, Pfn, PhysicalBytes};
use proptest::prelude::*;

use crate::*;

/// A page allocator of the simplest kind: first fit over frames 64.., aligned by size.
#[derive(Clone, Copy)]
pub(crate) struct Source(&'static State);

struct State {
    machine: Model,
    table: FrameTable,
    taken: Mutex<Vec<bool>>,
    first: u64,
}

impl FrameSource for Source {
    type Machine = Model;
    fn machine(self) -> Model {
        self.0.machine
    }
    fn table(self) -> FrameTable {
        self.0.table
    }
    fn allocate(self, request: Request) -> Result<Pfn, OutOfMemory> {
        let mut taken = self.0.taken.lock().unwrap();
        let frames = request.order.frames() as usize;
        let at = taken.chunks_exact(frames).position(|c| c.iter().all(|&t| !t)).ok_or(OutOfMemory)? * frames;
        taken[at..at + frames].fill(true);
        let first = Pfn(self.0.first + at as u64);
        // Memory is never clean unless it was asked for clean.
        for frame in 0..frames as u64 {
            let clean = request.content == freehold_frame::Content::Zeroed;
            let fill = if clean { 0 } else { 0xa5 };
            self.0.machine.with_bytes(first.offset(frame), |bytes| bytes.fill(fill));
        }
        Ok(first)
    }
    fn release(self, block: Pfn, order: Order) {
        let at = (block.0 - self.0.first) as usize;
        let mut taken = self.0.taken.lock().unwrap();
        for frame in &mut taken[at..at + order.frames() as usize] {
            assert!(*frame, "{block:?} was given back twice");
            *frame = false;
        }
    }
}

impl Source {
    pub fn taken(self) -> usize {
        self.0.taken.lock().unwrap().iter().filter(|&&t| t).count()
    }
}

/// A source of `frames` frames.
pub(crate) fn source(frames: u64) -> Source {
    let machine = Model::new(Config { frames: 1024, ..Config::default() });
    let records: Vec<FrameRecord> = (0..1024).map(|_| zerocopy::FromZeros::new_zeroed()).collect();
    let taken = Mutex::new(std::vec![false; frames as usize]);
    let table = FrameTable::new(Box::leak(records.into_boxed_slice()));
    Source(Box::leak(Box::new(State { machine, table, taken, first: 512 })))
}

fn dma(source: Source) -> &'static Dma<Source> {
    Box::leak(Box::new(Dma::new(source)))
}

const ANY: DeviceRules = DeviceRules { name: "disk", reach: DmaAddr(u64::MAX), quota: usize::MAX };

/// What the device sees of `length` bytes at `address`.
fn as_device(source: Source, address: DmaAddr, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|i| {
            let address = address.0 + i;
            let frame = Pfn(address / PAGE_SIZE as u64);
            source.0.machine.with_bytes(frame, |bytes| bytes[address as usize % PAGE_SIZE])
        })
        .collect()
}

fn device_writes(source: Source, address: DmaAddr, bytes: &[u8]) {
    for (i, &byte) in bytes.iter().enumerate() {
        let address = address.0 as usize + i;
        let frame = Pfn((address / PAGE_SIZE) as u64);
        source.0.machine.with_bytes(frame, |page| page[address % PAGE_SIZE] = byte);
    }
}

#[test]
fn a_device_sees_the_mapped_bytes_and_zeroes_after_them() {
    let source = source(256);
    let device = dma(source).attach(ANY).unwrap();
    let original: Vec<u8> = (0..5000).map(|i| i as u8 | 1).collect();
    let mapping = device.map(original.as_slice(), Direction::ToDevice).unwrap();
    let seen = as_device(source, mapping.address(), 3 * SLOT_SIZE);
    assert_eq!(&seen[..5000], original);
    assert!(seen[5000..].iter().all(|&b| b == 0), "padding shows something");
}

#[test]
fn what_the_device_wrote_comes_back_and_what_it_did_not_write_stays() {
    let source = source(256);
    let device = dma(source).attach(ANY).unwrap();
    let mut original = [7u8; 3000];
    let mapping = device.map(original.as_slice(), Direction::FromDevice).unwrap();
    device_writes(source, mapping.address(), &[1; 100]);
    mapping.unmap(original.as_mut_slice());
    assert_eq!(original[..100], [1; 100]);
    assert_eq!(original[100..], [7; 2900]);
}

#[test]
fn a_transfer_to_the_device_never_changes_the_original() {
    let source = source(256);
    let device = dma(source).attach(ANY).unwrap();
    let mut original = [7u8; 300];
    let mapping = device.map(original.as_slice(), Direction::ToDevice).unwrap();
    device_writes(source, mapping.address(), &[1; 300]);
    mapping.unmap(original.as_mut_slice());
    assert_eq!(original, [7; 300]);
}

#[test]
fn a_partial_sync_moves_that_part_only_also_in_later_slots() {
    let source = source(256);
    let device = dma(source).attach(ANY).unwrap();
    let mut original = [0u8; 3 * SLOT_SIZE];
    let mapping = device.map(original.as_slice(), Direction::Bidirectional).unwrap();
    device_writes(source, mapping.address(), &[9; 3 * SLOT_SIZE]);
    mapping.sync_for_cpu(original.as_mut_slice(), SLOT_SIZE + 10, 20);
    let changed: Vec<_> = original.iter().enumerate().filter(|&(_, &b)| b == 9).map(|(i, _)| i).collect();
    assert_eq!(changed, (SLOT_SIZE + 10..SLOT_SIZE + 30).collect::<Vec<_>>());
    original.fill(3);
    mapping.sync_for_device(original.as_slice(), 2 * SLOT_SIZE, usize::MAX);
    let seen = as_device(source, mapping.address(), 3 * SLOT_SIZE);
    assert_eq!(seen.iter().filter(|&&b| b == 3).count(), SLOT_SIZE);
}

#[test]
fn the_next_device_finds_no_residue() {
    let source = source(256);
    let dma = dma(source);
    let secret = dma.attach(ANY).unwrap().map([0x5e; 4000].as_slice(), Direction::Bidirectional).unwrap();
    let address = secret.address();
    device_writes(source, address, &[0x5e; 4096]);
    drop(secret);
    let other = dma.attach(ANY).unwrap().buffer(10, Direction::FromDevice).unwrap();
    assert_eq!(other.address(), address, "the test wants the same slots again");
    assert!(as_device(source, address, 4096).iter().all(|&b| b == 0));
}

#[test]
fn page_cache_frames_are_mapped_without_a_copy_in_between() {
    let source = source(256);
    let device = dma(source).attach(ANY).unwrap();
    let frames = [Pfn(20), Pfn(7)];
    source.0.machine.with_bytes(Pfn(20), |b| b.fill(20));
    source.0.machine.with_bytes(Pfn(7), |b| b.fill(7));
    let mut original = FrameBytes::new(source.0.machine, &frames);
    let mapping = device.map(&original, Direction::Bidirectional).unwrap();
    let seen = as_device(source, mapping.address(), 8192);
    assert!(seen[..4096].iter().all(|&b| b == 20) && seen[4096..].iter().all(|&b| b == 7));
    device_writes(source, mapping.address(), &[1; 8192]);
    mapping.unmap(&mut original);
    assert_eq!(source.0.machine.with_bytes(Pfn(7), |b| b[4095]), 1);
}

#[test]
fn a_part_of_frames_is_mapped_without_its_neighbours() {
    let source = source(256);
    let device = dma(source).attach(ANY).unwrap();
    let frames = [Pfn(20), Pfn(7)];
    source.0.machine.with_bytes(Pfn(20), |b| b.fill(20));
    source.0.machine.with_bytes(Pfn(7), |b| b.fill(7));
    let mut part = FrameBytes::new(source.0.machine, &frames).starting_at(3584).truncated(1024);
    let mapping = device.map(&part, Direction::Bidirectional).unwrap();
    let seen = as_device(source, mapping.address(), 1024);
    assert!(seen[..512].iter().all(|&b| b == 20) && seen[512..].iter().all(|&b| b == 7));
    device_writes(source, mapping.address(), &[1; 1024]);
    mapping.unmap(&mut part);
    let edge = |frame, at| source.0.machine.with_bytes(Pfn(frame), |b| (b[at - 1], b[at]));
    assert_eq!((edge(20, 3584), edge(7, 512)), ((20, 1), (1, 7)));
}

#[test]
fn limits_are_errors_and_change_nothing() {
    let source = source(256);
    let dma = dma(source);
    let device = dma.attach(DeviceRules { quota: 8192, ..ANY }).unwrap();
    assert_eq!(device.buffer(0, Direction::ToDevice).unwrap_err(), DmaError::Empty);
    assert_eq!(device.buffer(MAX_MAPPING + 1, Direction::ToDevice).unwrap_err(), DmaError::TooLong);
    let held = device.buffer(6000, Direction::ToDevice).unwrap();
    assert_eq!(device.buffer(2049, Direction::ToDevice).unwrap_err(), DmaError::Quota);
    assert_eq!(device.held(), 3 * SLOT_SIZE);
    drop(held);
    assert_eq!(device.held(), 0);
    let near = dma.attach(DeviceRules { reach: DmaAddr(0xfff), ..ANY }).unwrap();
    assert_eq!(near.buffer(1, Direction::ToDevice).unwrap_err(), DmaError::OutOfReach);
    assert_eq!(near.coherent(4096).unwrap_err(), DmaError::OutOfReach);
    assert_eq!((near.held(), dma.statistics().failed), (0, 4));
    for _ in 2..MAX_DEVICES {
        dma.attach(ANY).unwrap();
    }
    assert_eq!(dma.attach(ANY).unwrap_err(), DmaError::TooManyDevices);
}

#[test]
fn pools_grow_under_load_and_shrink_to_one_segment_after_it() {
    let source = source(256);
    let dma = dma(source);
    let device = dma.attach(ANY).unwrap();
    let held: Vec<_> = (0..4).map(|_| device.buffer(MAX_MAPPING, Direction::ToDevice).unwrap()).collect();
    assert_eq!(device.buffer(1, Direction::ToDevice).unwrap_err(), DmaError::OutOfMemory);
    assert_eq!(dma.statistics().nslabs, 4 * SEGMENT_SLOTS);
    drop(held);
    let after = dma.statistics();
    assert_eq!((after.nslabs, after.used, after.used_hiwater), (SEGMENT_SLOTS, 0, 4 * SEGMENT_SLOTS));
    assert_eq!(source.taken(), 64);
}

#[test]
fn where_memory_is_short_a_pool_is_smaller_than_a_segment() {
    let source = source(3);
    let device = dma(source).attach(ANY).unwrap();
    let held = device.buffer(3000, Direction::ToDevice).unwrap();
    assert_eq!(source.taken(), 2);
    drop(held);
}

#[test]
fn coherent_frames_are_zero_counted_and_given_back() {
    let source = source(256);
    let dma = dma(source);
    let device = dma.attach(ANY).unwrap();
    let rings = device.coherent(3 * 4096).unwrap();
    assert_eq!((rings.order().frames(), device.held(), dma.statistics().coherent_frames), (4, 4 * 4096, 4));
    assert!(as_device(source, rings.address(), 4 * 4096).iter().all(|&b| b == 0));
    drop(rings);
    assert_eq!((source.taken(), device.held()), (0, 0));
}

#[test]
fn lost_memory_is_never_used_again_and_is_counted_once() {
    let source = source(256);
    let dma = dma(source);
    let device = dma.attach(ANY).unwrap();
    let rings = device.coherent(4096).unwrap();
    let mapping = device.buffer(3 * SLOT_SIZE, Direction::FromDevice).unwrap();
    let lost = mapping.address().0..mapping.address().0 + 3 * SLOT_SIZE as u64;
    assert_eq!((mapping.lose(), mapping.lose()), (3 * SLOT_SIZE, 0));
    device_writes(source, mapping.address(), &[9; 10]);
    drop(mapping);
    assert_eq!(
        as_device(source, DmaAddr(lost.start), 1),
        [9],
        "the device may still use it: nothing clears it"
    );
    // All that is left of the pool goes to others, and more.
    let others: Vec<_> = (0..200).map(|_| device.buffer(SLOT_SIZE, Direction::ToDevice).unwrap()).collect();
    assert!(others.iter().all(|other| !lost.contains(&other.address().0)));
    drop(others);
    assert_eq!(rings.lose(), 4096);
    let bytes = 3 * SLOT_SIZE + 4096;
    assert_eq!((device.held(), device.lost(), dma.statistics().lost), (bytes, bytes, bytes));
    assert_eq!(dma.usage().map(|usage| usage.lost).collect::<Vec<_>>(), [bytes]);
    assert_eq!(dma.statistics().used, 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever is mapped and let go in whatever order: no two mappings share a slot, each keeps its own
    /// bytes, and in the end at most one segment is left.
    #[test]
    fn mappings_never_overlap(ops in proptest::collection::vec((1usize..MAX_MAPPING, any::<prop::sample::Index>(), any::<bool>()), 1..60)) {
        let source = source(512);
        let dma = dma(source);
        let device = dma.attach(ANY).unwrap();
        let mut live: Vec<(Mapping<Source>, u8)> = Vec::new();
        for (stamp, (length, index, drop_one)) in (1u8..).zip(ops) {
            if drop_one && !live.is_empty() {
                drop(live.swap_remove(index.index(live.len())));
            } else if let Ok(mapping) = device.buffer(length, Direction::Bidirectional) {
                prop_assert_eq!(mapping.write(0, &std::vec![stamp; length]), length);
                live.push((mapping, stamp));
            }
            for (mapping, stamp) in &live {
                let mut ends = [0; 2];
                mapping.read(0, &mut ends[..1]);
                mapping.read(mapping.len() - 1, &mut ends[1..]);
                prop_assert_eq!(ends, [*stamp; 2]);
            }
        }
        live.clear();
        let end = dma.statistics();
        prop_assert!(end.used == 0 && end.nslabs <= SEGMENT_SLOTS && device.held() == 0);
    }
}
