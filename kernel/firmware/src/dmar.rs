//! The IOMMU: DMAR (Intel VT-d 3.2, chapter 8).

use freehold_machine::{PAGE_SIZE, Pfn, PfnRange, PhysAddr};

use crate::Warning;
use crate::bytes::{short_entries, u8_at, u16_at, u64_at};

/// Where the table's flags are (8.1), and bytes before the first structure.
const FLAGS: usize = 37;
const STRUCTURES: usize = 48;
/// Largest number of structures that are read.
const MAX_STRUCTURES: usize = 64;
/// Largest number of regions of functions, and of frames in one.
const MAX_REGIONS: usize = 8;
const MAX_REGION_FRAMES: u64 = (64 << 20) / PAGE_SIZE as u64;

/// A remapping unit of PCI segment 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Iommu {
    /// Its registers, on a page boundary.
    pub registers: PhysAddr,
    /// The machine works if interrupts are remapped.
    pub remaps_interrupts: bool,
    /// The functions of bus 0 that are behind it; a bridge includes all functions behind the
    /// bridge. By device, a bit for each function.
    functions: [u8; 32],
    /// Memory that firmware reserves for functions of bus 0.
    regions: [Option<ReservedRegion>; MAX_REGIONS],
}

/// Memory that firmware and one function share (a reserved memory region, 8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReservedRegion {
    device: u8,
    function: u8,
    frames: PfnRange,
}

impl Iommu {
    /// Whether function `function` of device `device` on bus 0 is behind this unit.
    pub fn has(&self, device: u8, function: u8) -> bool {
        self.functions
            .get(usize::from(device))
            .is_some_and(|bits| u32::from(*bits) >> (function & 7) & 1 != 0)
    }
    /// Returns the frames that firmware shares with this function of bus 0, and with no other: none
    /// of them is usable memory.
    pub fn shared_with(&self, device: u8, function: u8) -> impl Iterator<Item = PfnRange> {
        let own = move |region: &ReservedRegion| (region.device, region.function) == (device, function);
        self.regions.into_iter().flatten().filter(own).map(|region| region.frames)
    }
    /// Refuses regions that contain usable memory, which belongs to the kernel and programs.
    pub(crate) fn refuse(&mut self, usable: impl Fn(PfnRange) -> bool, warn: &mut dyn FnMut(Warning)) {
        for place in &mut self.regions {
            if place.take_if(|region| usable(region.frames)).is_some() {
                warn(Warning::BadEntry(*b"DMAR", 1));
            }
        }
    }
}

/// Returns the first unit of segment 0. Further ones are not supported, and reported.
pub(crate) fn read_dmar(table: &[u8], warn: &mut dyn FnMut(Warning)) -> Option<Iommu> {
    let mut rest = table.get(STRUCTURES..)?;
    let mut found = None;
    let mut regions = [None; MAX_REGIONS];
    for _ in 0..MAX_STRUCTURES {
        let (Some(kind), Some(length)) = (u16_at(rest, 0), u16_at(rest, 2)) else { break };
        let Some(structure) = rest.get(..usize::from(length)).filter(|_| length >= 4) else {
            warn(Warning::BadEntry(*b"DMAR", kind));
            break;
        };
        match kind {
            0 => match unit(structure) {
                Some(unit) if found.is_none() => found = Some(unit),
                Some(_) => warn(Warning::TooMany("IOMMUs")),
                None => warn(Warning::BadEntry(*b"DMAR", kind)),
            },
            1 => read_region(structure, &mut regions, warn),
            _ => {}
        }
        rest = &rest[usize::from(length)..];
    }
    let remaps_interrupts = u8_at(table, FLAGS)? & 1 != 0;
    found.map(|unit| Iommu { remaps_interrupts, regions, ..unit })
}

/// A region's structure: adds one for each function that it names.
fn read_region(structure: &[u8], regions: &mut [Option<ReservedRegion>], warn: &mut dyn FnMut(Warning)) {
    let (segment, first, last) = (u16_at(structure, 6), u64_at(structure, 8), u64_at(structure, 16));
    let (Some(0), Some(first), Some(last), Some(scopes)) = (segment, first, last, structure.get(24..)) else {
        return warn(Warning::BadEntry(*b"DMAR", 1));
    };
    let page = PAGE_SIZE as u64;
    let end = last.wrapping_add(1);
    let is_run = first.is_multiple_of(page) && end.is_multiple_of(page) && first < end && end <= 1 << 52;
    if !is_run || (end - first) / page > MAX_REGION_FRAMES {
        return warn(Warning::BadEntry(*b"DMAR", 1));
    }
    let frames = PfnRange::new(Pfn(first / page), Pfn(end / page));
    for (device, function) in scoped(scopes, &[ENDPOINT]) {
        match regions.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(ReservedRegion { device, function, frames }),
            None => warn(Warning::TooMany("memory regions of devices")),
        }
    }
}

/// Kinds of scopes (8.3.1): one function, and a bridge with all that is behind it.
const ENDPOINT: u8 = 1;
const BRIDGE: u8 = 2;

/// The functions that scopes name, of certain kinds: a path of one step from bus 0.
fn scoped<'a>(scopes: &'a [u8], kinds: &'a [u8]) -> impl Iterator<Item = (u8, u8)> + 'a {
    short_entries(scopes).filter_map(|(kind, scope)| {
        let is_one = kinds.contains(&kind) && scope.len() == 8 && u8_at(scope, 5) == Some(0);
        let (device, function) = (u8_at(scope, 6)?, u8_at(scope, 7)?);
        (is_one && device < 32 && function < 8).then_some((device, function))
    })
}

/// A unit's structure. It names the functions behind it, or says that all are.
fn unit(structure: &[u8]) -> Option<Iommu> {
    let (flags, segment, registers) = (u8_at(structure, 4)?, u16_at(structure, 6)?, u64_at(structure, 8)?);
    let is_place = registers != 0 && registers.is_multiple_of(4096) && registers < 1 << 52;
    if segment != 0 || !is_place {
        return None;
    }
    let mut functions = [if flags & 1 != 0 { u8::MAX } else { 0 }; 32];
    for (device, function) in scoped(structure.get(16..)?, &[ENDPOINT, BRIDGE]) {
        functions[usize::from(device)] |= 1 << function;
    }
    let (registers, regions) = (PhysAddr(registers), [None; MAX_REGIONS]);
    Some(Iommu { registers, remaps_interrupts: false, functions, regions })
}
