//! IOMMUs that are virtio devices, and the functions behind them: VIOT (ACPI 6.5, 5.2.34).

use crate::Warning;
use crate::bytes::{u8_at, u16_at, u32_at};

/// Bytes before the first node, at least.
const NODES: usize = 48;
/// Largest number of nodes that are read, and of ranges that are kept.
const MAX_NODES: usize = 64;
const MAX_RANGES: usize = 8;

/// Kinds of nodes: functions of PCI, and an IOMMU on PCI.
const PCI_RANGE: u8 = 1;
const PCI_IOMMU: u8 = 3;

/// An IOMMU on PCI, in segment 0, and the functions behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VirtualIommu {
    /// Its function: bus, device and function in 8, 5 and 3 bits.
    pub source_id: u16,
    ranges: [Option<EndpointRange>; MAX_RANGES],
}

/// Functions, as the IOMMU numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct EndpointRange {
    first: u16,
    last: u16,
    first_endpoint: u32,
}

impl VirtualIommu {
    /// Returns the IOMMU's number of a function; `None` for one that is not behind it.
    pub fn endpoint_of(&self, source_id: u16) -> Option<u32> {
        let found = |range: &&EndpointRange| (range.first..=range.last).contains(&source_id);
        let range = self.ranges.iter().flatten().find(found)?;
        Some(range.first_endpoint + u32::from(source_id - range.first))
    }
    /// Returns the function with this number.
    pub fn function_of(&self, endpoint: u32) -> Option<u16> {
        self.ranges.iter().flatten().find_map(|range| {
            let number = u16::try_from(endpoint.checked_sub(range.first_endpoint)?).ok()?;
            range.first.checked_add(number).filter(|&function| function <= range.last)
        })
    }
}

/// Returns the first IOMMU on PCI. Further ones are not supported and warned of.
pub(crate) fn read_viot(table: &[u8], warn: &mut dyn FnMut(Warning)) -> Option<VirtualIommu> {
    let first = usize::from(u16_at(table, 38)?);
    if first < NODES {
        warn(Warning::BadEntry(*b"VIOT", 0));
        return None;
    }
    let count = usize::from(u16_at(table, 36)?).min(MAX_NODES);
    let (iommu, source_id) = nodes(table, first, count).find_map(|(at, node)| {
        let is_one = u8_at(node, 0) == Some(PCI_IOMMU) && u16_at(node, 4) == Some(0);
        Some((at, u16_at(node, 6).filter(|_| is_one)?))
    })?;
    let mut found = VirtualIommu { source_id, ranges: [None; MAX_RANGES] };
    for (at, node) in nodes(table, first, count) {
        match u8_at(node, 0) {
            Some(PCI_RANGE) => match range(node, iommu) {
                Some(Ok(range)) => found.add(range, warn),
                Some(Err(())) => warn(Warning::BadEntry(*b"VIOT", PCI_RANGE.into())),
                // Behind another one.
                None => {}
            },
            Some(PCI_IOMMU) if at != iommu => warn(Warning::TooMany("IOMMUs")),
            _ => {}
        }
    }
    Some(found)
}

/// Returns the nodes with their places, up to the first with an impossible length.
fn nodes(table: &[u8], first: usize, count: usize) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = first;
    (0..count).map_while(move |_| {
        let length = usize::from(u16_at(table, at + 2)?);
        let node = table.get(at..at + length).filter(|_| length >= 16)?;
        let here = at;
        at += length;
        Some((here, node))
    })
}

/// Returns the functions of a range's node; `None` if they are behind another IOMMU than the one at
/// `iommu`, an error if the range is impossible.
fn range(node: &[u8], iommu: usize) -> Option<Result<EndpointRange, ()>> {
    let Some(behind) = u16_at(node, 16) else { return Some(Err(())) };
    if usize::from(behind) != iommu {
        return None;
    }
    let read = || {
        let (first_segment, last_segment) = (u16_at(node, 8)?, u16_at(node, 10)?);
        let (first, last) = (u16_at(node, 12)?, u16_at(node, 14)?);
        let first_endpoint = u32_at(node, 4)?;
        let fits = first <= last && first_endpoint.checked_add(u32::from(last - first)).is_some();
        ((first_segment, last_segment) == (0, 0) && fits).then_some(EndpointRange {
            first,
            last,
            first_endpoint,
        })
    };
    Some(read().ok_or(()))
}

impl VirtualIommu {
    /// Adds a range. One that shares functions or numbers with another is refused.
    fn add(&mut self, new: EndpointRange, warn: &mut dyn FnMut(Warning)) {
        let end = |range: &EndpointRange| range.first_endpoint + u32::from(range.last - range.first);
        let meets = |old: &EndpointRange| {
            old.first <= new.last && new.first <= old.last
                || old.first_endpoint <= end(&new) && new.first_endpoint <= end(old)
        };
        if self.ranges.iter().flatten().any(meets) {
            return warn(Warning::BadEntry(*b"VIOT", PCI_RANGE.into()));
        }
        match self.ranges.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(new),
            None => warn(Warning::TooMany("ranges of devices behind an IOMMU")),
        }
    }
}
