//! The parsers against tables of a real q35, hand-made tables, and hostile bytes.

extern crate std;
use std::vec::Vec;

use freehold_machine::topology::{AddressMode, Indexing, WritePolicy};
use freehold_machine::{CpuId, NodeId, Pfn, PfnRange, PhysAddr};
use proptest::prelude::*;

use crate::{Firmware, Iommu, PhysicalMemory, Register, Warning, read};

/// Physical memory that has bytes in a few places.
#[derive(Default, Clone)]
pub struct Image(Vec<(u64, Vec<u8>)>);

impl PhysicalMemory for Image {
    fn bytes(&self, address: PhysAddr, length: usize) -> Option<&[u8]> {
        self.0.iter().find_map(|(at, bytes)| {
            let offset = usize::try_from(address.0.checked_sub(*at)?).ok()?;
            bytes.get(offset..offset.checked_add(length)?)
        })
    }
}

const RSDP: PhysAddr = PhysAddr(0xf0000);

fn with_checksum(mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    bytes[at] = 0;
    bytes[at] = bytes.iter().fold(0u8, |sum, &b| sum.wrapping_add(b)).wrapping_neg();
    bytes
}

pub fn table(signature: &[u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = signature.to_vec();
    bytes.extend((36 + body.len() as u32).to_le_bytes());
    bytes.push(revision);
    bytes.resize(36, 0);
    bytes.extend(body);
    with_checksum(bytes, 9)
}

impl Image {
    /// A revision 2 root pointer, an XSDT, and these tables.
    pub fn new(tables: &[Vec<u8>]) -> Self {
        let mut image = Self::default();
        let mut at = 0x10_0000;
        let mut entries = Vec::new();
        for table in tables {
            entries.extend(u64::to_le_bytes(at));
            image.0.push((at, table.clone()));
            at += 0x10_0000;
        }
        image.0.push((0x8000, table_of_pointers(&entries)));
        let mut root = b"RSD PTR \0FREEHD\x02".to_vec();
        root.extend([0; 4]);
        root.extend(36u32.to_le_bytes());
        root.extend(0x8000u64.to_le_bytes());
        root.resize(36, 0);
        let first = with_checksum(root[..20].to_vec(), 8);
        root[..20].copy_from_slice(&first);
        image.0.push((RSDP.0, with_checksum(root, 32)));
        image
    }

    pub fn read(&self, usable: &[PfnRange]) -> (Firmware, Vec<Warning>) {
        let mut warnings = Vec::new();
        let firmware = read(self, Some(RSDP), 0, usable.iter().copied(), &mut |w| warnings.push(w));
        (firmware, warnings)
    }
}

fn table_of_pointers(entries: &[u8]) -> Vec<u8> {
    table(b"XSDT", 1, entries)
}

fn run(start: u64, end: u64) -> PfnRange {
    PfnRange::new(Pfn(start), Pfn(end))
}

fn srat_memory(domain: u32, base: u64, length: u64, flags: u32) -> Vec<u8> {
    let mut entry = std::vec![1, 40];
    entry.extend(domain.to_le_bytes());
    entry.extend([0; 2]);
    entry.extend(base.to_le_bytes());
    entry.extend(length.to_le_bytes());
    entry.extend([0; 4]);
    entry.extend(flags.to_le_bytes());
    entry.extend([0; 8]);
    entry
}

fn srat_x2apic(domain: u32, apic_id: u32) -> Vec<u8> {
    let mut entry = std::vec![2, 24, 0, 0];
    entry.extend(domain.to_le_bytes());
    entry.extend(apic_id.to_le_bytes());
    entry.extend(1u32.to_le_bytes());
    entry.extend([0; 8]);
    entry
}

fn srat(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut body = std::vec![0; 12];
    body.extend(entries.concat());
    table(b"SRAT", 3, &body)
}

fn slit(domains: u64, distances: &[u8]) -> Vec<u8> {
    let mut body = domains.to_le_bytes().to_vec();
    body.extend(distances);
    table(b"SLIT", 1, &body)
}

fn hmat_cache(domain: u32, size: u64, attributes: u32, mode: u16) -> Vec<u8> {
    let mut entry = 2u32.to_le_bytes().to_vec();
    entry.extend(32u32.to_le_bytes());
    entry.extend(domain.to_le_bytes());
    entry.extend([0; 4]);
    entry.extend(size.to_le_bytes());
    entry.extend(attributes.to_le_bytes());
    entry.extend(mode.to_le_bytes());
    entry.extend([0; 2]);
    entry
}

fn hmat(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut body = std::vec![0; 4];
    body.extend(entries.concat());
    table(b"HMAT", 2, &body)
}

fn madt(entries: &[&[u8]]) -> Vec<u8> {
    let mut body = 0xfee0_0000u32.to_le_bytes().to_vec();
    body.extend(1u32.to_le_bytes());
    body.extend(entries.concat());
    table(b"APIC", 4, &body)
}

/// QEMU 7.2, q35, two nodes of 32 MiB, a direct-mapped 16 MiB cache each, both CPUs on node 0; the
/// records are address (8 bytes), length (4), bytes.
fn q35() -> Image {
    let mut rest: &[u8] = include_bytes!("../tests/data/q35-hmat.acpi");
    let mut image = Image::default();
    while !rest.is_empty() {
        let address = u64::from_le_bytes(rest[..8].try_into().unwrap());
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        image.0.push((address, rest[12..12 + length].to_vec()));
        rest = &rest[12 + length..];
    }
    image
}

#[test]
fn a_real_q35_is_read_whole() {
    let image = q35();
    let root = PhysAddr(image.0[0].0);
    let mut warnings = Vec::new();
    let usable = [run(0, 0x9f), run(0x100, 0x3fe0)];
    let Firmware { topology, platform, performance, .. } =
        read(&image, Some(root), 0, usable, &mut |w| warnings.push(w));
    assert_eq!(warnings, []);
    topology.validate().unwrap();
    assert_eq!(topology.node_count(), 2);
    let ranges: Vec<_> = topology.ranges().iter().map(|r| (r.frames, r.node)).collect();
    let expected =
        [(run(0, 0x9f), NodeId(0)), (run(0x100, 0x2000), NodeId(0)), (run(0x2000, 0x3fe0), NodeId(1))];
    assert_eq!(ranges, expected);
    assert_eq!(topology.distance(NodeId(0), NodeId(1)), 21);
    for node in [NodeId(0), NodeId(1)] {
        let cache = topology.near_caches(node).next().unwrap();
        assert_eq!((cache.size, cache.line_size, cache.level), (16 << 20, 64, 1));
        assert_eq!((cache.indexing, cache.write_policy), (Indexing::Direct, WritePolicy::Back));
        assert_eq!(cache.address_mode, AddressMode::Transparent);
    }
    let ids: Vec<_> = platform.cpus().iter().map(|cpu| cpu.apic_id).collect();
    assert_eq!(ids, [0, 1]);
    assert_eq!(topology.node_of_cpu(CpuId(1)), NodeId(0));
    assert_eq!(platform.hpet, Some(PhysAddr(0xfed0_0000)));
    assert_eq!(platform.pci_windows[0].unwrap().address, PhysAddr(0xb000_0000));
    assert_eq!(platform.ioapics[0].unwrap().address, PhysAddr(0xfec0_0000));
    assert_eq!(platform.reset.unwrap().register, Register::Port(0xcf9));
    assert_eq!(platform.pm_timer, Some(0x608));
    assert!(platform.has_8259);
    // QEMU was given nanoseconds and bytes per second.
    let near = performance.cost(NodeId(0), NodeId(0));
    let far = performance.cost(NodeId(0), NodeId(1));
    assert_eq!((near.read_latency, far.write_latency), (100_000, 300_000));
    assert_eq!((near.read_bandwidth, far.read_bandwidth), (100 << 10, 30 << 10));
}

#[test]
fn domains_become_dense_nodes_in_their_order() {
    let image = Image::new(&[
        srat(&[
            srat_memory(7000, 0x4000_0000, 0x4000_0000, 1),
            srat_memory(3, 0, 0x4000_0000, 1),
            srat_memory(5, 0x8000_0000, 0x4000_0000, 0), // not in use
            srat_memory(9, 0xc000_0000, 0x4000_0000, 5), // non-volatile
            srat_x2apic(7000, 700),
        ]),
        madt(&[&[0, 8, 0, 0, 1, 0, 0, 0], &[9, 16, 0, 0, 0xbc, 2, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0]]),
        slit(4, &[10, 20, 20, 20, 20, 10, 20, 20, 20, 20, 10, 20, 20, 20, 20, 10]),
    ]);
    let (firmware, warnings) = image.read(&[run(0x100, 0x80000)]);
    assert_eq!(warnings, []);
    let topology = &firmware.topology;
    assert_eq!(topology.node_count(), 2);
    assert_eq!(topology.node_of(Pfn(0x3ffff)), Some(NodeId(0)));
    assert_eq!(topology.node_of(Pfn(0x40000)), Some(NodeId(1)));
    assert_eq!(firmware.platform.cpus()[1].apic_id, 700);
    assert_eq!(topology.node_of_cpu(CpuId(1)), NodeId(1));
    // Domain 7000 is beyond SLIT's matrix: the default holds.
    assert_eq!(topology.distance(NodeId(0), NodeId(1)), 20);
}

#[test]
fn memory_outside_every_domain_goes_to_node_0_and_is_reported() {
    let image = Image::new(&[srat(&[
        srat_memory(0, 0x20_0000, 0x20_0000, 1),
        srat_memory(1, 0x60_0000, 0x20_0000, 1),
    ])]);
    let (firmware, warnings) = image.read(&[run(0x100, 0x900)]);
    assert_eq!(warnings, [Warning::Homeless(0x100 + 0x200 + 0x100)]);
    assert_eq!(firmware.topology.frames(), 0x800);
    assert_eq!(firmware.topology.node_of(Pfn(0x5ff)), Some(NodeId(0)));
    assert_eq!(firmware.topology.node_of(Pfn(0x600)), Some(NodeId(1)));
}

#[test]
fn plugged_memory_is_of_the_domain_its_device_names_or_of_the_range_kept_for_it() {
    let image = Image::new(&[srat(&[
        srat_memory(4, 0, 0x1000_0000, 1),
        srat_x2apic(6, 1),
        srat_memory(9, 0x1_0000_0000, 0x1000_0000, 3), // in use, hot-pluggable
    ])]);
    let (firmware, warnings) = image.read(&[run(0x100, 0x10000)]);
    assert_eq!((warnings, firmware.topology.node_count()), (std::vec![], 3));
    assert_eq!(firmware.topology.frames(), 0xff00, "what can be plugged in is not there");
    let kept = run(0x10_0000, 0x10_8000);
    let of = |domain, frames| firmware.domains.node_of_plugged(domain, frames);
    assert_eq!(of(Some(6), kept), NodeId(1), "a node without memory");
    assert_eq!((of(None, kept), of(Some(77), kept)), (NodeId(2), NodeId(2)));
    assert_eq!(of(None, run(0x20_0000, 0x20_0200)), NodeId(0));
}

#[test]
fn without_srat_there_is_one_node_and_its_cache_still_counts() {
    let image = Image::new(&[hmat(&[hmat_cache(0, 1 << 27, 0x0040_1111, 0)])]);
    let (firmware, warnings) = image.read(&[run(0x100, 0x200)]);
    assert_eq!(warnings, []);
    assert_eq!(firmware.topology.node_count(), 1);
    assert_eq!(firmware.topology.near_caches(NodeId(0)).count(), 1);
    assert_eq!(firmware.platform.cpus().len(), 1);
}

#[test]
fn an_extended_linear_cache_is_told_apart_and_must_be_direct_mapped() {
    let memory = srat(&[srat_memory(0, 0, 1 << 30, 1)]);
    let good = Image::new(&[memory.clone(), hmat(&[hmat_cache(0, 1 << 29, 0x0040_1111, 1)])]);
    let (firmware, warnings) = good.read(&[run(0x100, 0x200)]);
    assert_eq!(warnings, []);
    let cache = *firmware.topology.near_caches(NodeId(0)).next().unwrap();
    assert_eq!(cache.address_mode, AddressMode::ExtendedLinear);
    let complex = Image::new(&[memory, hmat(&[hmat_cache(0, 1 << 29, 0x0040_1211, 1)])]);
    let (firmware, warnings) = complex.read(&[run(0x100, 0x200)]);
    assert_eq!(warnings, [Warning::BadEntry(*b"HMAT", 2)]);
    assert_eq!(firmware.topology.near_caches(NodeId(0)).count(), 0);
}

#[test]
fn a_cache_without_lines_or_without_a_node_is_refused() {
    let memory = srat(&[srat_memory(0, 0, 1 << 30, 1)]);
    let caches = [
        hmat_cache(0, 1 << 27, 0x0000_1111, 0), // no line size
        hmat_cache(1, 1 << 27, 0x0040_1111, 0), // no such domain
        hmat_cache(0, 100, 0x0040_1111, 0),     // lines do not fill it
    ];
    let (firmware, warnings) = Image::new(&[memory, hmat(&caches)]).read(&[run(0x100, 0x200)]);
    assert_eq!(warnings, [Warning::BadEntry(*b"HMAT", 2); 3]);
    assert_eq!(firmware.topology.near_caches(NodeId(0)).count(), 0);
}

#[test]
fn a_table_with_a_wrong_checksum_is_passed_over() {
    let mut bad = srat(&[srat_memory(0, 0, 1 << 20, 1), srat_memory(1, 1 << 20, 1 << 20, 1)]);
    bad[50] ^= 1;
    let (firmware, warnings) = Image::new(&[bad]).read(&[run(0x100, 0x200)]);
    assert_eq!(warnings, [Warning::BadChecksum(*b"SRAT")]);
    assert_eq!(firmware.topology.node_count(), 1);
}

#[test]
fn contradictory_distances_leave_the_defaults() {
    let memory = srat(&[srat_memory(0, 0, 1 << 30, 1), srat_memory(1, 1 << 30, 1 << 30, 1)]);
    for distances in [[10, 10, 30, 10], [11, 30, 30, 10]] {
        let image = Image::new(&[memory.clone(), slit(2, &distances)]);
        let (firmware, warnings) = image.read(&[run(0x100, 0x200)]);
        assert_eq!(warnings, [Warning::BadDistances]);
        assert_eq!(firmware.topology.distance(NodeId(0), NodeId(1)), 20);
    }
}

#[test]
fn the_boot_cpu_is_cpu_0_wherever_the_madt_lists_it() {
    let image = Image::new(&[madt(&[
        &[0, 8, 0, 4, 1, 0, 0, 0],
        &[0, 8, 1, 6, 0, 0, 0, 0],
        &[0, 8, 2, 2, 1, 0, 0, 0],
    ])]);
    let firmware = read(&image, Some(RSDP), 2, [], &mut |_| {});
    let ids: Vec<_> = firmware.platform.cpus().iter().map(|cpu| cpu.apic_id).collect();
    assert_eq!(ids, [2, 4], "CPU 6 is not enabled");
}

/// A DMAR of these structures.
fn dmar(structures: &[u8]) -> Vec<u8> {
    table(b"DMAR", 1, &[&[38, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], structures].concat())
}

/// A remapping unit's structure, with a scope of 8 bytes.
fn remapping_unit(flags: u8, segment: u8, registers: u64) -> Vec<u8> {
    let mut structure = std::vec![0, 0, 24, 0, flags, 0, segment, 0];
    structure.extend(registers.to_le_bytes());
    structure.extend([1, 8, 0, 0, 0, 0, 3, 1]);
    structure
}

#[test]
fn an_iommu_has_the_functions_that_it_names_or_all() {
    let iommu = |structures: &[u8]| Image::new(&[dmar(structures)]).read(&[]).0.platform.iommu;
    let place = |structures: &[u8]| iommu(structures).map(|found| found.registers);
    let at = Some(PhysAddr(0xfed9_0000));
    // All functions, or those that it names: here device 3, function 1.
    let all = iommu(&remapping_unit(1, 0, 0xfed9_0000)).unwrap();
    let some = iommu(&remapping_unit(0, 0, 0xfed9_0000)).unwrap();
    let functions = |of: Iommu| {
        (0..32).flat_map(move |d| (0..8).map(move |f| (d, f))).filter(move |&(d, f)| of.has(d, f))
    };
    assert_eq!((all.registers, functions(all).count()), (PhysAddr(0xfed9_0000), 256));
    assert!(functions(some).eq([(3, 1)]) && !all.has(32, 0));
    // A bridge is named for all that is behind it; an I/O APIC is no function.
    for (kind, named) in [(2, 1), (3, 0), (4, 0)] {
        let mut structure = remapping_unit(0, 0, 0xfed9_0000);
        structure[16] = kind;
        assert_eq!(functions(iommu(&structure).unwrap()).count(), named, "{kind}");
    }
    for useless in [(1, 0xfed9_0000), (0, 0), (0, 0xfed9_0008), (0, 1 << 60)] {
        assert_eq!(iommu(&remapping_unit(1, useless.0, useless.1)), None);
    }
    // The table says whether interrupts can be remapped; opting out of x2APIC is another bit.
    for (flags, remaps) in [(0, false), (1, true), (2, false), (3, true)] {
        let unit = remapping_unit(1, 0, 0xfed9_0000);
        let body = [&[38, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &unit[..]].concat();
        let found = Image::new(&[table(b"DMAR", 1, &body)]).read(&[]).0.platform.iommu.unwrap();
        assert_eq!(found.remaps_interrupts, remaps, "{flags}");
    }
    // Any structure before it is passed over; a length of 0 ends the list.
    let unit = remapping_unit(1, 0, 0xfed9_0000);
    assert_eq!(place(&[&[9, 0, 4, 0], &unit[..]].concat()), at);
    assert_eq!(iommu(&[&[9, 0, 0, 0], &unit[..]].concat()), None);
    assert_eq!(iommu(&unit[..unit.len() - 1]), None);
}

/// A region that firmware shares with device `device`, function 0, from `first` to `last`.
fn region(device: u8, segment: u8, first: u64, last: u64) -> Vec<u8> {
    let mut structure = std::vec![1, 0, 32, 0, 0, 0, segment, 0];
    structure.extend(first.to_le_bytes());
    structure.extend(last.to_le_bytes());
    structure.extend([1, 8, 0, 0, 0, 0, device, 0]);
    structure
}

#[test]
fn a_region_that_firmware_shares_is_its_own_functions_alone_and_no_usable_memory() {
    let usable = [run(0x100, 0x3fe0)];
    let read = |regions: &[Vec<u8>]| {
        let structures = [regions.concat(), remapping_unit(1, 0, 0xfed9_0000)].concat();
        let (firmware, warnings) = Image::new(&[dmar(&structures)]).read(&usable);
        let found = firmware.platform.iommu.unwrap();
        let shared = (0..32).flat_map(|device| {
            (0..8).flat_map(move |function| {
                let shared: Vec<_> = found.shared_with(device, function).collect();
                shared.into_iter().map(move |frames| (device, function, frames))
            })
        });
        let bad = |w: &&Warning| **w == Warning::BadEntry(*b"DMAR", 1);
        (shared.collect::<Vec<_>>(), warnings.iter().filter(bad).count(), warnings)
    };
    let good = region(3, 0, 0x3ff0_0000, 0x3ff0_1fff);
    let shared = (3, 0, run(0x3_ff00, 0x3_ff02));
    assert_eq!(read(std::slice::from_ref(&good)).0, [shared]);
    // Usable memory, and what touches it; another segment; no whole pages; upside down; past what
    // there can be; far too much.
    for bad in [
        region(4, 0, 0x20_0000, 0x20_0fff),
        region(4, 0, 0x3fd_f000, 0x3fe_0fff),
        region(4, 0, 0, u64::MAX),
        region(4, 1, 0x3ff0_0000, 0x3ff0_0fff),
        region(4, 0, 0x3ff0_0008, 0x3ff0_0fff),
        region(4, 0, 0x3ff0_0000, 0x3ff0_0ffe),
        region(4, 0, 0x3ff0_1000, 0x3ff0_0fff),
        region(4, 0, 1 << 52, (1 << 52) + 0xfff),
        region(4, 0, 0x4000_0000, 0x7fff_ffff),
    ] {
        let (all, told, _) = read(&[bad, good.clone()]);
        assert_eq!((all, told), (std::vec![shared], 1));
    }
    // A function that there cannot be, and more regions than there is room for.
    assert_eq!(read(&[region(32, 0, 0x3ff0_0000, 0x3ff0_0fff)]).0, []);
    let (all, _, warnings) = read(&std::vec![good; 9]);
    assert_eq!(all.len(), 8);
    assert!(warnings.contains(&Warning::TooMany("memory regions of devices")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A host may put anything into its tables. The topology is valid and covers no frame that was
    /// not usable.
    #[test]
    fn hostile_tables_never_panic_nor_invent_memory(
        flips in proptest::collection::vec((0usize..9, 8usize..300, any::<u8>()), 1..24),
        truncate in proptest::option::of((0usize..9, 36u32..300)),
    ) {
        let mut image = q35();
        let root = PhysAddr(image.0[0].0);
        for (table, at, value) in flips {
            let bytes = &mut image.0[table].1;
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        if let Some((table, length)) = truncate {
            image.0[table].1[4..8].copy_from_slice(&length.to_le_bytes());
        }
        // Good checksums again, so that the damage arrives at the parsers.
        for (at, bytes) in image.0.iter_mut().skip(1) {
            let length = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
            if let Some(covered) = bytes.get(..length).filter(|b| b.len() >= 36 && *at > 0) {
                let fixed = with_checksum(covered.to_vec(), 9);
                bytes[..length].copy_from_slice(&fixed);
            }
        }
        let usable = [run(0x100, 0x3fe0)];
        let firmware = read(&image, Some(root), 0, usable, &mut |_| {});
        firmware.topology.validate().unwrap();
        prop_assert!(firmware.topology.frames() <= usable[0].len());
        prop_assert!(!firmware.platform.cpus().is_empty());
        for range in firmware.topology.ranges() {
            prop_assert_eq!(range.frames.intersection(usable[0]), range.frames);
        }
    }

    /// The same for tables of random entries.
    #[test]
    fn random_entries_never_panic(
        srat_entries in proptest::collection::vec(any::<u8>(), 0..400),
        hmat_entries in proptest::collection::vec(any::<u8>(), 0..400),
        madt_entries in proptest::collection::vec(any::<u8>(), 0..200),
        slit_entries in proptest::collection::vec(any::<u8>(), 0..100),
        dmar_structures in proptest::collection::vec(0u8..24, 0..200),
    ) {
        let image = Image::new(&[
            srat(&[srat_entries]),
            hmat(&[hmat_entries]),
            madt(&[&madt_entries]),
            table(b"SLIT", 1, &slit_entries),
            table(b"MCFG", 1, &madt_entries),
            dmar(&dmar_structures),
        ]);
        let (firmware, _) = image.read(&[run(0x100, 0x80000)]);
        prop_assert!(firmware.platform.iommu.is_none_or(|iommu| iommu.registers.0 % 4096 == 0));
        firmware.topology.validate().unwrap();
        prop_assert!(firmware.topology.frames() <= 0x80000 - 0x100);
    }
}
