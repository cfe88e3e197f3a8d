//! What an access costs, from HMAT's latency and bandwidth matrices (ACPI 6.5, 5.2.28.4).

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

/// Costs between all nodes.
#[derive(Clone, Debug, Default)]
pub struct Performance {
    costs: [[AccessCost; MAX_NODES]; MAX_NODES],
}

/// Which of the four figures a matrix fills (HMAT's data type: "access" fills both).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Figure {
    Latency(Direction),
    Bandwidth(Direction),
}

/// Loads, stores or both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Access,
    Read,
    Write,
}

impl Figure {
    /// HMAT's code for the data type.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Latency(Direction::Access),
            1 => Self::Latency(Direction::Read),
            2 => Self::Latency(Direction::Write),
            3 => Self::Bandwidth(Direction::Access),
            4 => Self::Bandwidth(Direction::Read),
            5 => Self::Bandwidth(Direction::Write),
            _ => return None,
        })
    }
}

impl Performance {
    /// The cost of accesses by CPUs of `from` to memory of `to`; all zero where nothing is known.
    pub fn cost(&self, from: NodeId, to: NodeId) -> AccessCost {
        let row = self.costs.get(usize::from(from.0));
        row.and_then(|row| row.get(usize::from(to.0))).copied().unwrap_or_default()
    }

    /// Note one figure.
    pub(crate) fn set(&mut self, from: NodeId, to: NodeId, figure: Figure, value: u64) {
        let row = self.costs.get_mut(usize::from(from.0));
        let Some(cost) = row.and_then(|row| row.get_mut(usize::from(to.0))) else { return };
        let (read, write, direction) = match figure {
            Figure::Latency(direction) => (&mut cost.read_latency, &mut cost.write_latency, direction),
            Figure::Bandwidth(direction) => (&mut cost.read_bandwidth, &mut cost.write_bandwidth, direction),
        };
        if direction != Direction::Write {
            *read = value;
        }
        if direction != Direction::Read {
            *write = value;
        }
    }
}
