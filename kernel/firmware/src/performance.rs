//! Costs of accesses, from HMAT's latency and bandwidth matrices (ACPI 6.5, 5.2.28.4).
//!
//! They are kept as in HMAT, an entry of 16 bits and a unit for each figure, since they are on the
//! stack of start-up.

use freehold_machine::NodeId;
use freehold_machine::topology::MAX_NODES;

/// The cost of accesses from one node to the memory of one node; 0 is "firmware does not say".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AccessCost {
    /// Latency of a load, in picoseconds.
    pub read_latency: u64,
    /// Latency of a store, in picoseconds.
    pub write_latency: u64,
    /// Bandwidth of loads, in MB/s.
    pub read_bandwidth: u64,
    /// Bandwidth of stores, in MB/s.
    pub write_bandwidth: u64,
}

/// How many figures there are for each pair of nodes.
const FIGURES: usize = 4;

/// Costs between all nodes.
#[derive(Clone, Debug)]
pub struct Performance {
    /// Value of an entry of 1.
    units: [u64; FIGURES],
    entries: [[[u16; MAX_NODES]; MAX_NODES]; FIGURES],
}

/// The figures that one matrix fills (HMAT's data type: "access" fills both).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PerformanceFigure {
    Latency(AccessDirection),
    Bandwidth(AccessDirection),
}

/// Loads, stores or both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessDirection {
    Access,
    Read,
    Write,
}

impl PerformanceFigure {
    /// HMAT's code for the data type.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Latency(AccessDirection::Access),
            1 => Self::Latency(AccessDirection::Read),
            2 => Self::Latency(AccessDirection::Write),
            3 => Self::Bandwidth(AccessDirection::Access),
            4 => Self::Bandwidth(AccessDirection::Read),
            5 => Self::Bandwidth(AccessDirection::Write),
            _ => return None,
        })
    }
    /// Which of the figures it fills: latency of loads and stores, bandwidth of loads and stores.
    fn fills(self) -> core::ops::Range<usize> {
        let (first, direction) = match self {
            Self::Latency(direction) => (0, direction),
            Self::Bandwidth(direction) => (2, direction),
        };
        match direction {
            AccessDirection::Access => first..first + 2,
            AccessDirection::Read => first..first + 1,
            AccessDirection::Write => first + 1..first + 2,
        }
    }
}

impl Performance {
    /// Nothing is known.
    pub(crate) const fn new() -> Self {
        Self { units: [0; FIGURES], entries: [[[0; MAX_NODES]; MAX_NODES]; FIGURES] }
    }

    /// The cost of accesses by CPUs of `from` to memory of `to`; all zero where nothing is known.
    pub fn cost(&self, from: NodeId, to: NodeId) -> AccessCost {
        let figure = |number: usize| {
            let row = self.entries[number].get(usize::from(from.0));
            let entry = row.and_then(|row| row.get(usize::from(to.0))).copied().unwrap_or_default();
            u64::from(entry).saturating_mul(self.units[number])
        };
        AccessCost {
            read_latency: figure(0),
            write_latency: figure(1),
            read_bandwidth: figure(2),
            write_bandwidth: figure(3),
        }
    }

    /// Begin a matrix whose entries count `unit`. Of several matrices for one figure the first
    /// counts, unless the unit is the same: then the last. Returns which figures to fill.
    pub(crate) fn begin(
        &mut self,
        figure: PerformanceFigure,
        unit: u64,
    ) -> impl Iterator<Item = usize> + Clone + use<> {
        let mut open = [false; FIGURES];
        for number in figure.fills() {
            open[number] = self.units[number] == 0 || self.units[number] == unit;
            if open[number] {
                self.units[number] = unit;
            }
        }
        (0..FIGURES).filter(move |&number| open[number])
    }

    /// Note one entry of the matrix that [`Performance::begin`] began.
    pub(crate) fn set(&mut self, from: NodeId, to: NodeId, figure: usize, entry: u16) {
        let row = self.entries[figure].get_mut(usize::from(from.0));
        if let Some(place) = row.and_then(|row| row.get_mut(usize::from(to.0))) {
            *place = entry;
        }
    }
}
