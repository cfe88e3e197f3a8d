//! The promises in the crate's head, on the software machine.

extern crate std;
use core::ops::Range;
use std::boxed::Box;
use std::sync::Mutex;
use std::vec::Vec;

use freehold_frame::{
    Frame, FrameRecord, FrameSource, FrameTable, NodePolicy, Order, OutOfMemory, PageCache, Request, Tag,
};
use freehold_machine::model::{Config, Model};
use freehold_machine::{CpuId, Cpus, NodeId, PAGE_SIZE, Pfn, PhysicalBytes};
use proptest::prelude::*;

use crate::*;

/// A page allocator of the simplest kind: first fit over frames 64.., aligned by size.
#[derive(Clone, Copy)]
pub(crate) struct Source(&'static SourceState);

struct SourceState {
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
        let (machine, frames) = (self.0.machine, request.order.frames() as usize);
        let near = match request.policy {
            NodePolicy::Preferred(node) => node,
            _ => machine.node_of_cpu(machine.current_cpu()),
        };
        let free = taken.chunks_exact(frames).enumerate().filter(|(_, block)| block.iter().all(|&t| !t));
        let free: Vec<usize> = free.map(|(number, _)| number * frames).collect();
        let is_near = |at: &&usize| self.node_of(Pfn(self.0.first + **at as u64)) == near;
        let at = *free.iter().find(is_near).or(free.first()).ok_or(OutOfMemory)?;
        taken[at..at + frames].fill(true);
        let first = Pfn(self.0.first + at as u64);
        // Memory is filled with other bytes unless zeroed memory was requested.
        for frame in 0..frames as u64 {
            let clean = request.content == freehold_frame::Content::Zeroed;
            let fill = if clean { 0 } else { 0xa5 };
            self.0.machine.with_bytes(first.offset(frame), |bytes| bytes.fill(fill));
        }
        let tag = Tag::new(request.owner, request.order, self.node_of(first));
        self.0.table.get(first).unwrap().hand_out(tag).unwrap();
        Ok(first)
    }
    fn release(self, block: Pfn, order: Order) {
        let record = self.0.table.get(block).unwrap();
        record.take_back(record.freeable(order).unwrap().trace(CpuId(0)));
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
    /// The node of a frame.
    pub fn node_of(self, frame: Pfn) -> NodeId {
        self.0.machine.topology().node_of(frame).unwrap()
    }
    /// Takes every other free frame, as other owners' memory.
    pub fn fragment(self) {
        self.0.taken.lock().unwrap().iter_mut().step_by(2).for_each(|taken| *taken = true);
    }
    /// Frees what [`Source::fragment`] took, of the frames from `first` on: a pageblock is empty.
    pub fn evacuate(self, first: usize) {
        self.0.taken.lock().unwrap()[first..].iter_mut().step_by(2).for_each(|taken| *taken = false);
    }
    /// Lets `f` run on a CPU of the machine.
    pub fn on_cpu<R>(self, cpu: freehold_machine::CpuId, f: impl FnOnce() -> R) -> R {
        self.0.machine.on_cpu(cpu, f)
    }
    /// Whether the frame has an owner.
    pub fn is_taken(self, frame: Pfn) -> bool {
        self.0.taken.lock().unwrap()[(frame.0 - self.0.first) as usize]
    }
}

/// A source of `frames` frames.
pub(crate) fn source(frames: u64) -> Source {
    source_of(frames, 512, 1)
}

/// A source of `frames` frames from `first` on. The machine's 1,024 frames are on so many nodes.
pub(crate) fn source_of(frames: u64, first: u64, nodes: usize) -> Source {
    let machine = Model::new(Config { frames: 1024, cpus: 2, nodes, ..Config::default() });
    let records: Vec<FrameRecord> = (0..1024).map(|_| zerocopy::FromZeros::new_zeroed()).collect();
    let taken = Mutex::new(std::vec![false; frames as usize]);
    let table = FrameTable::new(Box::leak(records.into_boxed_slice()));
    Source(Box::leak(Box::new(SourceState { machine, table, taken, first })))
}

/// Without a segment at first.
pub(crate) const LIMITS: Limits = Limits { slabs: 0, areas: 0, cap: usize::MAX, scrub: Scrub::OwnerChange };

pub(crate) fn dma(source: Source) -> &'static Dma<Source> {
    limited(source, LIMITS)
}

pub(crate) fn limited(source: Source, limits: Limits) -> &'static Dma<Source> {
    let dma: &'static Dma<Source> = Box::leak(Box::new(Dma::new()));
    dma.start(source, limits);
    dma
}

pub(crate) const SEGMENT: usize = 256 << 10;

pub(crate) const ANY: DeviceRules =
    DeviceRules { name: "disk", reach: DmaAddr(u64::MAX), quota: usize::MAX, domain: None };

/// The parts of `length` bytes at `address` that lie in one page each: page, offset, bytes.
fn parts(address: DmaAddr, length: usize) -> impl Iterator<Item = (Pfn, usize, usize)> {
    let (mut at, end) = (address.0 as usize, address.0 as usize + length);
    core::iter::from_fn(move || {
        let (page, offset, count) =
            (at / PAGE_SIZE, at % PAGE_SIZE, (PAGE_SIZE - at % PAGE_SIZE).min(end - at));
        at += count;
        (count > 0).then_some((Pfn(page as u64), offset, count))
    })
}

/// Returns the `length` bytes at `address` as the device sees them.
pub(crate) fn as_device(source: Source, address: DmaAddr, length: usize) -> Vec<u8> {
    let mut seen = Vec::new();
    for (page, offset, count) in parts(address, length) {
        source.0.machine.with_bytes(page, |bytes| seen.extend_from_slice(&bytes[offset..offset + count]));
    }
    seen
}

pub(crate) fn device_writes(source: Source, address: DmaAddr, bytes: &[u8]) {
    let mut left = bytes;
    for (page, offset, count) in parts(address, bytes.len()) {
        source
            .0
            .machine
            .with_bytes(page, |page| page[offset..offset + count].copy_from_slice(&left[..count]));
        left = &left[count..];
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

/// Two pages of a file, full of 20 and of 7.
fn two_pages(source: Source) -> [Frame<PageCache, Source>; 2] {
    [20, 7].map(|fill| {
        let frame = Frame::allocate(source).unwrap();
        source.0.machine.with_bytes(frame.pfn(), |b| b.fill(fill));
        frame
    })
}

#[test]
fn page_cache_frames_are_mapped_without_a_copy_in_between() {
    let source = source(256);
    let device = dma(source).attach(ANY).unwrap();
    let frames = two_pages(source);
    let mut original = FrameBytes::new(source.0.machine, frames.as_slice());
    let mapping = device.map(&original, Direction::Bidirectional).unwrap();
    let seen = as_device(source, mapping.address(), 8192);
    assert!(seen[..4096].iter().all(|&b| b == 20) && seen[4096..].iter().all(|&b| b == 7));
    device_writes(source, mapping.address(), &[1; 8192]);
    mapping.unmap(&mut original);
    assert_eq!(source.0.machine.with_bytes(frames[1].pfn(), |b| b[4095]), 1);
}

#[test]
fn a_part_of_frames_is_mapped_without_its_neighbours() {
    let source = source(256);
    let device = dma(source).attach(ANY).unwrap();
    let frames = two_pages(source);
    let mut part = FrameBytes::new(source.0.machine, frames.as_slice()).starting_at(3584).truncated(1024);
    let mapping = device.map(&part, Direction::Bidirectional).unwrap();
    let seen = as_device(source, mapping.address(), 1024);
    assert!(seen[..512].iter().all(|&b| b == 20) && seen[512..].iter().all(|&b| b == 7));
    device_writes(source, mapping.address(), &[1; 1024]);
    mapping.unmap(&mut part);
    let edge = |page: usize, at| source.0.machine.with_bytes(frames[page].pfn(), |b| (b[at - 1], b[at]));
    assert_eq!((edge(0, 3584), edge(1, 512)), ((20, 1), (1, 7)));
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
    assert_eq!(device.held(), 8192);
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
fn segments_come_under_load_stay_for_the_next_burst_and_go_after_five_seconds_without_use() {
    let source = source(256);
    let dma = dma(source);
    let device = dma.attach(ANY).unwrap();
    let held: Vec<_> = (0..4).map(|_| device.buffer(SEGMENT, Direction::ToDevice).unwrap()).collect();
    assert_eq!(device.buffer(1, Direction::ToDevice).unwrap_err(), DmaError::OutOfMemory);
    let full = dma.statistics();
    assert_eq!((full.nslabs, full.used, full.grows, full.transient), (512, 512, 4, 512));
    drop(held);
    for _ in 0..20 {
        assert_eq!(dma.tick(), 0, "bursts keep what they need");
        let burst: Vec<_> = (0..4).map(|_| device.buffer(SEGMENT, Direction::ToDevice).unwrap()).collect();
        drop(burst);
    }
    assert_eq!(dma.statistics().grows, 4, "and nothing comes and goes");
    let gone: Vec<_> = (0..7).map(|_| dma.tick()).collect();
    assert_eq!(gone, [0, 0, 0, 0, 0, 4 * SEGMENT, 0]);
    let after = dma.statistics();
    assert_eq!((after.nslabs, after.used, after.used_hiwater, after.transient), (0, 0, 512, 0));
    assert_eq!((source.taken(), dma.wants_ticks()), (0, false));
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
    let mapping = device.buffer(6000, Direction::FromDevice).unwrap();
    let lost = mapping.address().0..mapping.address().0 + 8192;
    assert_eq!((mapping.lose(), mapping.lose()), (8192, 0));
    device_writes(source, mapping.address(), &[9; 10]);
    drop(mapping);
    assert_eq!(
        as_device(source, DmaAddr(lost.start), 1),
        [9],
        "the device may still use it: nothing clears it"
    );
    // Other mappings take the rest of the segment, and more.
    let others: Vec<_> = (0..100).map(|_| device.buffer(4096, Direction::ToDevice).unwrap()).collect();
    assert!(others.iter().all(|other| !lost.contains(&other.address().0)));
    drop(others);
    assert_eq!(rings.lose(), 4096);
    let bytes = 8192 + 4096;
    assert_eq!((device.held(), device.lost(), dma.statistics().lost), (bytes, bytes, bytes));
    assert_eq!(dma.usage().map(|usage| usage.lost).collect::<Vec<_>>(), [bytes]);
    assert_eq!(dma.statistics().used, 4);
    assert_eq!(dma.shrink(), SEGMENT, "the segment that has lost pages stays");
    assert_eq!(dma.statistics().nslabs, 128);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Mappings are made and dropped in any order. No two mappings share a byte, no two devices
    /// share a page, and each mapping keeps its own bytes. In the end one page of cells of each
    /// size is left.
    #[test]
    fn mappings_never_overlap(ops in proptest::collection::vec((prop_oneof![1usize..3000, 1usize..SEGMENT, 1usize..1 << 20], any::<prop::sample::Index>(), any::<bool>()), 1..60)) {
        let source = source(512);
        let dma = dma(source);
        let devices = [dma.attach(ANY).unwrap(), dma.attach(ANY).unwrap()];
        let mut live: Vec<(DmaMapping<Source>, u8)> = Vec::new();
        for (stamp, (length, index, drop_one)) in (1u8..).zip(ops) {
            if drop_one && !live.is_empty() {
                drop(live.swap_remove(index.index(live.len())));
            } else if let Ok(mapping) = devices[usize::from(stamp % 2)].buffer(length, Direction::Bidirectional) {
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
        for (mapping, _) in &live {
            let owner = dma.owner(mapping.address());
            prop_assert_eq!(owner, Some(mapping.device().rules().name));
        }
        let mut pages: Vec<(Pfn, Device<Source>)> = Vec::new();
        for (mapping, _) in &live {
            for piece in mapping.pieces(0..mapping.len()) {
                let last = (piece.offset + piece.length - 1) / PAGE_SIZE;
                pages.extend((0..=last as u64).map(|page| (piece.frame.offset(page), mapping.device())));
            }
        }
        for (page, device) in &pages {
            let same = |other: &Device<Source>| core::ptr::eq(device.dma(), other.dma()) && device.number() == other.number();
            prop_assert!(pages.iter().all(|(other, owner)| other != page || same(owner)), "two devices share a page");
        }
        live.clear();
        dma.shrink();
        let end = dma.statistics();
        prop_assert!(end.used <= 2 * 3 * 2 && end.nslabs <= 6 * 128);
        prop_assert!(devices.iter().all(|device| device.held() == 0));
    }
}

#[test]
fn a_megabyte_is_one_mapping_also_where_memory_is_in_pieces() {
    let source = source(512);
    let dma = dma(source);
    let device = dma.attach(ANY).unwrap();
    let whole = device.buffer(1 << 20, Direction::ToDevice).unwrap();
    assert_eq!(whole.len(), 1 << 20);
    assert!(whole.pieces(0..1 << 20).count() <= 4);
    drop(whole);
    // Every eighth page is used, so the free pages are in runs of seven.
    let mut pages: Vec<_> = (0..512).map(|_| device.buffer(4096, Direction::ToDevice).unwrap()).collect();
    let mut number = 0;
    pages.retain(|_| {
        number += 1;
        number % 8 == 0
    });
    let pieces = device.buffer_up_to(1 << 20, Direction::Bidirectional).unwrap();
    assert!(pieces.len() >= MAX_RUNS * 4096 && pieces.len() < 1 << 20);
    let bytes: Vec<u8> = (0..pieces.len()).map(|at| (at / 1000) as u8).collect();
    pieces.write(0, &bytes);
    let mut seen = Vec::new();
    for piece in pieces.pieces(0..pieces.len()) {
        seen.extend(as_device(source, DmaAddr(piece.frame.start().0 + piece.offset as u64), piece.length));
    }
    assert!(seen == bytes, "the device's list of pieces is the driver's bytes");
    for start in (0..pieces.len()).step_by(1500) {
        let range = start..(start + 6000).min(pieces.len());
        let parts: Vec<_> = pieces.pieces(range.clone()).collect();
        assert_eq!(parts.iter().map(|piece| piece.length).sum::<usize>(), range.len());
        assert!(pieces.one_piece(range).is_none_or(|piece| parts == [piece]));
    }
    assert!(pieces.one_piece(0..6000).is_some() && pieces.one_piece(0..pieces.len()).is_none());
    let backwards = Range { start: 100, end: 0 };
    assert_eq!(pieces.one_piece(backwards), None, "no range");
}

#[test]
fn small_things_of_a_device_share_its_page_and_no_other_device_s() {
    let source = source(256);
    let dma = dma(source);
    let (one, other) = (dma.attach(ANY).unwrap(), dma.attach(ANY).unwrap());
    let page_of = |mapping: &DmaMapping<Source>| mapping.address().0 / PAGE_SIZE as u64;
    for (length, in_page) in [(17, 64), (64, 64), (65, 8), (512, 8), (513, 2), (2048, 2)] {
        let mine: Vec<_> = (0..in_page).map(|_| one.buffer(length, Direction::ToDevice).unwrap()).collect();
        let theirs = other.buffer(length, Direction::ToDevice).unwrap();
        assert!(mine.iter().all(|mapping| page_of(mapping) == page_of(&mine[0])), "{length}");
        assert_ne!(page_of(&theirs), page_of(&mine[0]));
        assert!(one.held() >= in_page * length && one.held() <= 4096);
    }
    assert_eq!((one.held(), other.held()), (0, 0));
    // More than four pages of cells: further buffers get separate pages, and none fails.
    let many: Vec<_> = (0..40).map(|_| one.buffer(600, Direction::ToDevice).unwrap()).collect();
    let mut addresses: Vec<_> = many.iter().map(|mapping| mapping.address().0).collect();
    addresses.sort_unstable();
    assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] >= 600));
}

#[test]
fn the_cap_is_kept_and_a_device_leaves_half_of_what_is_left_to_others() {
    let source = source(512);
    let dma = limited(source, Limits { cap: SEGMENT, ..LIMITS });
    let (greedy, late) = (dma.attach(ANY).unwrap(), dma.attach(ANY).unwrap());
    let mut held = Vec::new();
    while let Ok(mapping) = greedy.buffer_up_to(64 << 10, Direction::ToDevice) {
        held.push(mapping);
        if held.len() > 200 {
            break;
        }
    }
    assert!(dma.statistics().nslabs * SLOT_SIZE <= SEGMENT && source.taken() <= 64);
    drop(held.split_off(held.len() / 2));
    assert!(late.buffer_up_to(4096, Direction::ToDevice).is_ok());
    drop(held);
    assert_eq!(greedy.buffer(2 * SEGMENT, Direction::ToDevice).unwrap_err(), DmaError::Cap);
}

#[test]
fn bytes_of_a_device_stay_its_own_and_scrubbing_always_leaves_none() {
    for (scrub, left) in [(Scrub::OwnerChange, 0x5e), (Scrub::Always, 0)] {
        let source = source(256);
        let dma = limited(source, Limits { scrub, ..LIMITS });
        let (one, other) = (dma.attach(ANY).unwrap(), dma.attach(ANY).unwrap());
        let mapping = one.buffer(5000, Direction::FromDevice).unwrap();
        let address = mapping.address();
        device_writes(source, address, &[0x5e; 8192]);
        drop(mapping);
        let again = one.buffer(5000, Direction::FromDevice).unwrap();
        assert_eq!(again.address(), address);
        assert!(as_device(source, address, 8192).iter().all(|&byte| byte == left), "{scrub:?}");
        device_writes(source, address, &[0x5e; 8192]);
        let before = dma.usage().next().unwrap();
        again.begin_again();
        assert!(as_device(source, address, 8192).iter().all(|&byte| byte == left), "{scrub:?}");
        let after = dma.usage().next().unwrap();
        assert_eq!((after.bytes - before.bytes, after.held), (8192, before.held), "one transfer more");
        drop(again);
        let theirs = other.buffer(5000, Direction::FromDevice).unwrap();
        assert_eq!(theirs.address(), address);
        assert!(as_device(source, address, 8192).iter().all(|&byte| byte == 0), "{scrub:?}");
    }
}

#[test]
fn the_high_water_mark_is_right_to_a_segment_and_can_begin_anew() {
    let source = source(512);
    let dma = dma(source);
    let device = dma.attach(ANY).unwrap();
    let held: Vec<_> = (0..90).map(|_| device.buffer(4096, Direction::ToDevice).unwrap()).collect();
    drop(held);
    let most = dma.statistics().used_hiwater;
    assert!((180 - 128..=180).contains(&most), "{most}");
    dma.reset_hiwater();
    assert_eq!(dma.statistics().used_hiwater, 0);
}

#[test]
fn every_failed_allocation_is_an_error_that_leaves_the_accounts_as_they_were() {
    for frames in 0..70 {
        let source = source(frames);
        let dma = dma(source);
        let device = dma.attach(ANY).unwrap();
        for length in [1, 600, 5000, SEGMENT, 1 << 20] {
            let before = (device.held(), dma.statistics().used);
            match device.buffer(length, Direction::ToDevice) {
                Ok(mapping) => assert_eq!(mapping.len(), length),
                Err(error) => {
                    assert_eq!(error, DmaError::OutOfMemory);
                    assert_eq!((device.held(), dma.statistics().used), before);
                }
            }
            let free = frames - dma.statistics().used as u64 / 2;
            let some = device.buffer_up_to(1 << 20, Direction::ToDevice);
            assert_eq!(some.is_ok(), free > 0, "{frames} frames, {free} free");
        }
        assert_eq!(device.held(), 0);
    }
}

#[test]
fn a_restricted_device_has_its_own_memory_for_everything_and_never_more() {
    let source = source(512);
    let dma = limited(source, Limits { slabs: 128, ..LIMITS });
    let own = dma.attach_restricted(ANY, 16 * PAGE_SIZE).unwrap();
    let (other, taken) = (dma.attach(ANY).unwrap(), source.taken());
    let rings = own.coherent(2 * PAGE_SIZE).unwrap();
    device_writes(source, rings.address(), &[9; 2 * PAGE_SIZE]);
    let mut held = Vec::new();
    let error = loop {
        match own.buffer_up_to(5 * PAGE_SIZE, Direction::ToDevice) {
            Ok(mapping) => held.push(mapping),
            Err(error) => break error,
        }
    };
    assert_eq!((error, held.iter().map(DmaMapping::len).sum()), (DmaError::Cap, 14 * PAGE_SIZE));
    assert_eq!(own.buffer(1, Direction::ToDevice).unwrap_err(), DmaError::Cap);
    assert_eq!((own.longest(Constraint::NONE), dma.restricted().next()), (0, Some(("disk", [32, 32]))));
    // Other devices neither wait for the restricted memory nor take from it.
    let theirs: Vec<_> = (0..64).map(|_| other.buffer(PAGE_SIZE, Direction::ToDevice).unwrap()).collect();
    // The rings are in separate frames, and the same amount of restricted memory is out of use.
    assert_eq!((source.taken(), dma.statistics().used, dma.wants_ticks()), (taken + 2, 128, false));
    drop((held, theirs, rings));
    assert_eq!((own.held(), other.held(), dma.restricted().next()), (0, 0, Some(("disk", [32, 0]))));
    (0..10).for_each(|_| _ = dma.tick());
    assert_eq!((dma.shrink(), source.taken()), (0, taken));
    let again = own.coherent(16 * PAGE_SIZE).unwrap();
    assert!(as_device(source, again.address(), 16 * PAGE_SIZE).iter().all(|&byte| byte == 0));
    assert_eq!(again.lose(), 16 * PAGE_SIZE);
    assert_eq!(
        (own.buffer(1, Direction::ToDevice).unwrap_err(), own.lost()),
        (DmaError::Cap, 16 * PAGE_SIZE)
    );
    let all = dma.attach_restricted(ANY, 1 << 20);
    assert!(all.is_ok(), "{all:?}");
    assert_eq!(dma.attach_restricted(ANY, 2 << 20).unwrap_err(), DmaError::OutOfMemory);
}
