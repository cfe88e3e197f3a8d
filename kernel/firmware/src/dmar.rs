//! The IOMMU: DMAR (Intel VT-d 3.2, chapter 8).

use freehold_machine::PhysAddr;

use crate::Warning;
use crate::bytes::{short_entries, u8_at, u16_at, u64_at};

/// Bytes before the first structure.
const STRUCTURES: usize = 48;
/// The most structures that are looked at.
const MAX_STRUCTURES: usize = 64;

/// A remapping unit of PCI segment 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Iommu {
    /// Its registers, on a page boundary.
    pub registers: PhysAddr,
    /// The functions of bus 0 that are behind it: by device, a bit for each function.
    functions: [u8; 32],
}

impl Iommu {
    /// Whether function `function` of device `device` on bus 0 is behind it.
    pub fn has(&self, device: u8, function: u8) -> bool {
        self.functions
            .get(usize::from(device))
            .is_some_and(|bits| u32::from(*bits) >> (function & 7) & 1 != 0)
    }
}

/// The first unit of segment 0. Further ones are not supported and told of, and so are regions that firmware wants devices to
/// reach.
pub(crate) fn read_dmar(table: &[u8], warn: &mut dyn FnMut(Warning)) -> Option<Iommu> {
    let mut rest = table.get(STRUCTURES..)?;
    let mut found = None;
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
            1 => warn(Warning::TooMany("memory regions of devices")),
            _ => {}
        }
        rest = &rest[usize::from(length)..];
    }
    found
}

/// A unit's structure. It names the functions behind it, or says that all are.
fn unit(structure: &[u8]) -> Option<Iommu> {
    let (flags, segment, registers) = (u8_at(structure, 4)?, u16_at(structure, 6)?, u64_at(structure, 8)?);
    let is_place = registers != 0 && registers.is_multiple_of(4096) && registers < 1 << 52;
    if segment != 0 || !is_place {
        return None;
    }
    let mut functions = [if flags & 1 != 0 { u8::MAX } else { 0 }; 32];
    for (kind, scope) in short_entries(structure.get(16..)?) {
        // A path of one step from bus 0 to an endpoint.
        if kind == 1
            && let (8, Some(0), Some(device), Some(function)) =
                (scope.len(), u8_at(scope, 5), u8_at(scope, 6), u8_at(scope, 7))
            && let Some(bits) = functions.get_mut(usize::from(device))
        {
            *bits |= 1 << (function & 7);
        }
    }
    Some(Iommu { registers: PhysAddr(registers), functions })
}
