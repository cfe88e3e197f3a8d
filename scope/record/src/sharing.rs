//! Lines of the kernel's memory that several CPUs store to.

use serde::{Deserialize, Serialize};

/// Lines of 64 bytes to which the kernel stored on several CPUs in the program's time. On hardware
/// a line moves to the CPU that stores, which waits for it.
///
/// The count does not depend on how the emulator's host interleaves the CPUs. All stores of a CPU
/// to a line are one visit until the CPU has stored nothing there for [`Sharing::AWAY`] of its own
/// instructions. A line moves at most as often as it is visited. A line also moves at most twice
/// for each visit of a CPU other than the one that visits it most. Frames of programs are left out
/// if the kernel publishes their owners.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Sharing {
    /// Number of such lines.
    pub lines: u64,
    /// Largest number of times that they can move.
    pub moves: u64,
    /// Moves by the instruction that stores first after a line has moved, most first, at most
    /// [`Sharing::STORES`].
    pub stores: Vec<SharedStore>,
    /// The same within each phase alone, in the order of the phases in the results. A move
    /// between two phases is in neither.
    #[serde(default)]
    pub phases: Vec<PhaseSharing>,
}

/// Lines that several CPUs store to in one phase.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PhaseSharing {
    /// Largest number of times that such lines can move.
    pub moves: u64,
    /// As [`Sharing::stores`], at most [`PhaseSharing::STORES`].
    pub stores: Vec<SharedStore>,
}

impl PhaseSharing {
    /// Largest number of instructions in the results.
    pub const STORES: usize = 16;
}

impl Sharing {
    /// Instructions of a CPU without a store to the line, after which its next store begins another
    /// visit.
    pub const AWAY: u64 = 200;
    /// Largest number of instructions in the results.
    pub const STORES: usize = 1024;
}

/// An instruction that stores to lines of several CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SharedStore {
    /// The instruction's address.
    pub by: u64,
    /// The address of one of its stores.
    pub address: u64,
    /// Its share of the moves.
    pub moves: u64,
}
